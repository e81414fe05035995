"""What Dynamo makes of a function, counted without a compiler: nothing here needs g++ or a GPU."""

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Breaks", "Graphs", "compilations", "find_breaks"]


class Graphs:
    """A backend of torch.compile that notes each graph and runs it as PyTorch would.

    sizes: for each graph that was compiled, the sizes of its tensors as text: a number that the
    graph counts on, or the name of a symbol
    """

    def __init__(self) -> None:
        self.sizes: list[list[tuple[str, ...]]] = []

    def __call__(self, module: torch.fx.GraphModule, examples: list) -> Callable:
        inputs = [node.meta["example_value"] for node in module.graph.find_nodes(op="placeholder")]
        self.sizes.append([tuple(map(str, a.shape)) for a in inputs if isinstance(a, Tensor)])
        return module.forward

    @property
    def count(self) -> int:
        return len(self.sizes)


def compilations(f: Callable, backend: Graphs, calls: list[tuple]) -> list[int]:
    """How many graphs `backend` has compiled after each of these calls of f, a compiled function.

    calls: the arguments of each, in order
    """
    counts = []
    for arguments in calls:
        f(*arguments)
        counts.append(backend.count)
    return counts


class Breaks(NamedTuple):
    """What Dynamo makes of one call of a function."""

    graphs: int
    reasons: list[str]          # the line of each, and Dynamo's first line about it


def find_breaks(f: Callable, *arguments: object) -> Breaks:
    """The Breaks of f, which runs once.
    What was compiled before is forgotten."""
    from torch._dynamo import explain  # takes a second to import

    torch._logging.set_logs(dynamo=logging.ERROR)       # it would print each break as well
    report = explain(f)(*arguments)
    reasons = [f"{reason.user_stack[-1].line}: {reason.reason.splitlines()[0]}"
               for reason in report.break_reasons]
    return Breaks(report.graph_count, reasons)
