"""Graphs for passes, built node by node in the code under test and computed here as well."""

import ast
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

OPERATIONS = {"silu": "silu.default", "sigmoid": "sigmoid.default", "linear": "linear.default",
              "view": "view.default", "mul": "mul.Tensor", "mul_": "mul_.Tensor",
              "add": "add.Tensor", "add_": "add_.Tensor"}


class Graph:
    """A torch.fx graph in the child.
    Each node has its value on this side, computed as it is added.

    make: makes an object in the child, `subject.make`    random: shape -> a float32 tensor
    view: another view of a matrix, if inputs and weights are to have another layout
    """

    def __init__(self, make: Callable, random: Callable, view: Callable | None = None):
        self.make = make
        self.random = random
        self.view = view
        self.aten = make("importlib:import_module", "torch").ops.aten
        self.ops = make("layer1_kernels:kernels", "torch")
        self.root = make("torch.nn:Module")
        self.graph = make("torch.fx:Graph")
        self.inputs: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.values: dict[str, tuple[Any, Tensor]] = {}     # {name: (node, its value)}
        self.lines: list[str] = []
        self.results: list[str] = []

    def add(self, name: str, node: Any, value: Tensor) -> None:
        self.make("builtins:setattr", node, "meta", {"val": value.clone()})
        self.values[name] = node, value

    def input(self, name: str, shape: tuple, dtype: torch.dtype) -> None:
        value = self.number(shape, dtype)
        self.inputs.append(value if self.view else value.clone())
        self.add(name, self.graph.placeholder(name), value)

    def weight(self, name: str, shape: tuple, dtype: torch.dtype) -> None:
        value = self.number(shape, dtype)
        self.weights.append(value)
        self.root.register_buffer(name, value if self.view else value.clone())
        self.add(name, self.graph.get_attr(name), value)

    def number(self, shape: tuple, dtype: torch.dtype) -> Tensor:
        value = self.random(shape).to(dtype)
        return self.view(value) if self.view and len(shape) == 2 else value

    def call(self, line: str) -> None:
        """One statement, such as `s = silu gate`.
        Arguments are names, numbers or lists."""
        name, _, words = line.rpartition(" = ")
        operation, *arguments = words.split()
        self.lines.append(line)
        known = [self.values.get(a) or (ast.literal_eval(a),) * 2 for a in arguments]
        packet, overload = OPERATIONS[operation].split(".")
        nodes, values = zip(*known, strict=True)
        target = getattr(getattr(self.aten, packet), overload)
        value = getattr(getattr(torch.ops.aten, packet), overload)(*values)
        self.add(name or f"unused{len(self.lines)}", self.graph.call_function(target, nodes), value)

    def program(self, text: str, shapes: dict[str, tuple],
                double: str = "") -> Any:                   # a GraphModule of the child
        """The module of statements, separated by "; ", the last of which is `return NAME …`.

        shapes: of the inputs and, in capital letters, of the weights    double: those in float64
        """
        for name, shape in shapes.items():
            dtype = torch.float64 if name in double else torch.float32
            (self.weight if name.isupper() else self.input)(name, shape, dtype)
        *lines, last = text.split("; ")
        for line in lines:
            self.call(line)
        return self.module(last.split()[1:])

    def module(self, results: list[str]) -> Any:
        """The GraphModule that returns these values."""
        self.graph.output([self.values[name][0] for name in results])
        self.results = results
        self.built = self.make("torch.fx:GraphModule", self.root, self.graph)
        return self.built

    def run(self) -> list[np.ndarray]:
        """What the rewritten graph returns, and what it should return, flat."""
        self.built.graph.lint()
        self.built.recompile()
        got = self.built(*[x if self.view else x.clone() for x in self.inputs])
        return [np.concatenate([np.asarray(a, dtype=np.float64).ravel() for a in arrays])
                for arrays in (got, [self.values[name][1] for name in self.results])]

    def late(self) -> tuple[str, str] | None:
        """(a node, a call before it that takes it), if there is one: such a graph cannot run."""
        before = set()
        for node in self.built.graph.nodes:
            for other in node.all_input_nodes:
                if other.name not in before:
                    return other.name, node.name
            before.add(node.name)
        return None

    def calls(self) -> dict[str, int]:
        """{name of a function: the number of its calls that the results need}."""
        counts: dict[str, int] = {}
        waiting = [node for node in self.built.graph.nodes
                   if node.op == "output" or self.name(node).split(".")[0].endswith("_")]
        names = set()
        while waiting:
            node = waiting.pop()
            if node.name not in names:
                names.add(node.name)
                waiting += list(node.all_input_nodes)
                if name := self.name(node):
                    counts[name] = counts.get(name, 0) + 1
        return counts

    def named(self, name: str) -> list:
        """The nodes that call a function of this name."""
        return [node for node in self.built.graph.nodes if self.name(node) == name]

    def name(self, node: Any) -> str:
        """The name of the function that a node calls; "" for an input, a weight, the output."""
        if node.op != "call_function":
            return ""
        return self.make("builtins:getattr", node.target, "__name__")
