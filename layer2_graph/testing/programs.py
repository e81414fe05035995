"""Random programs of PyTorch calls, the same in the code under test and here."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import numpy as np
from torch import Tensor

REST = {"flip": ([0],), "add_": (1.5,), "chunk": (2,)}      # arguments after the first


class Program:
    """A program of calls on (4, 4) arrays x and y, with views, several results and steps in place.

    make: makes an object on either side, `subject.make` or `here`
    draws: [(one of NAMES, place, place)]; the places choose among the results so far
    """

    NAMES = ("add", "sub", "maximum", "t", "flip", "sort", "add_", "neg_", "chunk", "mul", "clone")

    def __init__(self, make: Callable, draws: Iterable[tuple], arrays: dict[str, Tensor]):
        self.graph = make("torch.fx:Graph")
        root = make("torch.nn:Module")
        self.item = make("builtins:getattr", make("importlib:import_module", "operator"), "getitem")
        self.graph.placeholder("ops")
        for name, array in arrays.items():
            root.register_buffer(name, array.clone())
        self.nodes = [self.graph.get_attr(name) for name in arrays]
        for name, *places in draws:
            self.add(name, *(self.nodes[place % len(self.nodes)] for place in places))
        self.graph.output([self.nodes[-1], (self.nodes[-2], {"third": self.nodes[-3]})])
        self.module = make("torch.fx:GraphModule", root, self.graph)

    def add(self, name: str, one: Any, other: Any) -> None:
        call = self.graph.call_method
        rest = (other,) if name in ("add", "sub", "maximum", "mul") else REST.get(name, ())
        node = call(name, (one, *rest))
        if name == "sort":                              # values, and places as numbers
            values, places = self.parts(node)
            node = call("add", (values, places))
        elif name == "chunk":                           # two views, changed in place
            for half in reversed(self.parts(node)):
                call("mul_", (half, 0.5))
            node = call("t", (one,))
        self.nodes.append(node)

    def parts(self, pair: Any) -> list:
        return [self.graph.call_function(self.item, (pair, i)) for i in (0, 1)]


def here(path: str, *args: Any) -> Any:
    """An object of this process, as `subject.make` makes one in the child."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)(*args)


def flat(output: tuple) -> np.ndarray:                      # (3, 4, 4)
    """What a program returns."""
    last, (second, rest) = output
    return np.stack([np.asarray(a, dtype=np.float64) for a in (last, second, rest["third"])])
