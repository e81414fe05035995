"""Given code round the exercises of g09: kernels that no compiler can look into, and counts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layer2_graph.compilations import Graphs, compilations, find_breaks

NORM, WRITE = "g09_test::rmsnorm", "g09_test::write_kv"


def norm_kernel(x: Tensor, w: Tensor, eps: float) -> Tensor:        # (…, C), (C,) -> (…, C)
    """RMSNorm in NumPy: a kernel needs memory with numbers in it.
    Row after row, in x's dtype."""
    a = x.float().numpy()
    y = a / np.sqrt((a * a).mean(-1, keepdims=True) + eps) * w.float().numpy()
    return torch.from_numpy(np.ascontiguousarray(y)).to(x.dtype)


def write_kernel(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
    """write_kv in NumPy, for slots that are all there."""
    for new, pages in ((k, k_pages), (v, v_pages)):
        P, S, G, D = pages.shape
        pages.numpy().reshape(P * S, G, D)[slots.numpy()] = new.numpy()


def problems(operator: Any, arguments: tuple) -> dict[str, str]:
    """{test: first line of what is wrong}: of PyTorch's opcheck, only tests that fail."""
    tests = torch.library.opcheck(operator, arguments, raise_exception=False,
                                  test_utils=("test_schema", "test_faketensor"))
    return {test: f"{type(answer).__name__}: {answer}".splitlines()[0]
            for test, answer in tests.items() if answer != "SUCCESS"}


def norm_problems(register: Callable, inputs: list[tuple]) -> list[dict[str, str]]:
    """The problems of the operator for each (x, w, eps)."""
    operator = register(NORM, norm_kernel)
    return [problems(operator, tuple(arguments)) for arguments in inputs]


def norm_in_graph(register: Callable, inputs: list[tuple]) -> tuple[list[int], list[Tensor]]:
    """(graphs compiled after each call, results) of a function round the operator."""
    operator = register(NORM, norm_kernel)
    backend = Graphs()
    results = []

    def step(x: Tensor, w: Tensor, eps: float) -> None:
        return operator(x + 1, w, eps) * 2

    compiled = torch.compile(step, backend=backend, fullgraph=True)
    counts = compilations(lambda *own: results.append(compiled(*own)), backend,
                          [tuple(arguments) for arguments in inputs])
    return counts, results


def write_problems(register: Callable, arguments: list) -> tuple[dict[str, str], list[bool]]:
    """(problems, for each argument whether the schema says that it is changed)"""
    operator = register(WRITE, write_kernel)
    schema = operator._opoverload._schema
    marks = [bool(a.alias_info and a.alias_info.is_write) for a in schema.arguments]
    return problems(operator, tuple(arguments)), marks


def write_then_read(register: Callable, arguments: list) -> list[Tensor]:
    """Sums of the pages before and after the write, in one compiled function, and the pages."""
    operator = register(WRITE, write_kernel)
    own = [a.clone() for a in arguments]

    def step(k, v, k_pages, v_pages, slots):
        before = k_pages.sum() + v_pages.sum()
        operator(k, v, k_pages, v_pages, slots)
        return before, k_pages.sum() + v_pages.sum()

    sums = torch.compile(step, backend="aot_eager", fullgraph=True)(*own)
    return [*sums, own[2], own[3]]


def breaks(f: Callable, arguments: list) -> tuple[int, list[str]]:
    """(graphs, breaks) of one call."""
    graphs, reasons = find_breaks(f, *arguments)
    return graphs, reasons


def shared_graph(one_graph: Callable, inputs: list[Tensor]) -> dict[str, Any]:
    """What became of a step under one_graph.
    The first of the inputs is the example.

    counts: graphs after each of the inputs    sizes: of x in each graph    results: of each call
    """
    backend = Graphs()
    results = []

    def step(x: Tensor) -> Tensor:
        return torch.relu(x) * 2

    torch.compiler.reset()
    compiled = one_graph(step, inputs[0], backend)
    first = backend.count
    counts = compilations(lambda x: results.append(compiled(x)), backend,
                          [(x,) for x in inputs])
    sizes = [next((size for size in graph if len(size) == 2), ()) for graph in backend.sizes]
    return {"first": first, "counts": counts, "sizes": sizes, "results": results}
