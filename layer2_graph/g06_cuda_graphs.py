"""g06 · CUDA graphs: a step's launches are recorded once, then asked for all at once

B: sequences of a step   T: its new tokens   size: rows that a graph was recorded for, B at most
pages: width of the block tables   a launch: as g01 counts them
Run eagerly, the host asks for every launch, 15 a layer in g01.
From a graph it asks once, after copying the Batch into the buffers that the graph reads.
A recording freezes everything that the host decided: shapes, addresses, Python numbers.
So rows are padded up to a recorded size.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from layer1_kernels import Kernels
from layer2_graph.g01_llama import Batch, Cache, Layer, Llama
from layer2_graph.launches import FREE, Launches

__all__ = ["CaptureError", "Forked", "GraphRunner", "Tape", "capture", "choose_sizes", "end_times",
           "side_by_side"]


class CaptureError(RuntimeError):
    """A function that cannot be recorded, because the host would have to read an array."""


# ---- the recording


class Call(NamedTuple):
    """A launch, as the host asked for it while recording."""

    name: str
    function: Callable
    args: tuple
    kwargs: dict
    result: object          # the recorded arrays; later calls have them as arguments


def tensors(tree):
    """[the arrays in a nest of tuples, lists and dicts]"""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@torch.no_grad()
def replay(calls):
    """Make every recorded call again, in order, on the same arrays.

    calls: [Call].
    The contents of an array may have changed since the recording; its address has not.
    What a call returns is copied into its recorded result: later calls, and the reader of the
    output, look there.
    """
    # exercise: make each call again, and copy what it returns into the recorded result
    for call in calls:
        result = call.function(*call.args, **call.kwargs)
        for old, new in zip(tensors(call.result), tensors(result), strict=True):
            old.copy_(new)         # onto itself where the call worked in place


class Tape(TorchDispatchMode):
    """A stand-in for a CUDA graph on a CPU: .calls of function(ops), .output, .replay().

    As on a GPU, a replay runs none of the function's Python code, so everything that Python decided
    is frozen.
    A replay reads the present contents of the arrays and overwrites the previous output.
    item(), tolist(), masks and the like, which would stop a capture on a GPU, raise a CaptureError
    here.
    A call into the table `ops` is one launch; its launcher stands for the kernel, so it may read
    contents, and it runs again on a replay.
    Recording here makes the calls; a GPU only records them.
    """

    def __init__(self, function: Callable, ops: Kernels):
        super().__init__()
        self.calls: list[Call] = []
        self.inside = False
        with torch.no_grad(), HostReads(self), self:
            self.output = function(self.watching(ops))

    def replay(self) -> None:
        replay(self.calls)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = operation.overloadpacket.__name__
        if not self.inside and depends_on_contents(operation, name, args):
            raise refused(name)
        result = operation(*args, **kwargs)
        free = operation.is_view or name in FREE        # moves nothing: its address is enough
        if not self.inside and not free and tensors(result):
            self.calls.append(Call(name, operation, args, kwargs, result))
        return result

    def watching(self, ops: Kernels) -> Kernels:
        """The same table of kernels, each call of which is one launch."""
        return replace(ops, **{f.name: partial(self.kernel, f.name, getattr(ops, f.name))
                               for f in fields(ops)})

    def kernel(self, name: str, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """function(*args, **kwargs), listed as one call."""
        if self.inside:                     # a kernel that calls another one
            return function(*args, **kwargs)
        self.inside = True
        try:
            result = function(*args, **kwargs)
        finally:
            self.inside = False
        self.calls.append(Call(name, function, args, kwargs, result))
        return result


def depends_on_contents(operation, name, args):
    """True if the host must read an array's contents: item(), nonzero(), indexing with a mask."""
    if name in ("index", "index_put", "index_put_"):
        return any(i is not None and i.dtype == torch.bool for i in args[1])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
                & set(operation.tags))


class HostReads(TorchFunctionMode):
    """Refuses reads of an array that bypass PyTorch's dispatcher, outside kernels."""

    def __init__(self, tape):
        super().__init__()
        self.tape = tape

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if not self.tape.inside and name in ("tolist", "numpy", "cpu", "__array__"):
            raise refused(name)
        return function(*args, **(kwargs or {}))


def refused(name):
    what = {"_local_scalar_dense": "item(), or `if` on an array,",
            "index": "a mask", "index_put_": "a mask", "index_put": "a mask"}.get(name, f"{name}()")
    return CaptureError(f"capture: {what} reads the array on the host, but a replay runs no "
                        f"Python. Decide before the capture, or on the device with torch.where")


class DeviceGraph:
    """The same on a GPU, with torch.cuda.CUDAGraph."""

    def __init__(self, function, ops, pool):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            function(ops)           # compiles kernels, opens libraries: neither fits in a capture
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph, pool=pool):
            self.output = function(ops)

    def replay(self) -> None:
        self.graph.replay()


def capture(function: Callable, ops: Kernels, device: torch.device | str,
            pool: tuple | None = None) -> Tape | DeviceGraph:
    """Records function(ops): an object with .output and .replay().

    function: uses arrays whose addresses do not change, and kernels of the table that it is given.
        On a GPU it runs once before the recording, on a CPU while recording.
    pool: of torch.cuda.graph_pool_handle(): graphs that never run at once may share its memory.
        A Tape has arrays of its own.
    CaptureError on a CPU, torch's RuntimeError on a GPU, if the host would read an array.
    """
    if torch.device(device).type == "cuda":
        return DeviceGraph(function, ops, pool)
    return Tape(function, ops)


class Example:
    """A small function to record: four launches on two arrays."""

    def __init__(self, numbers):
        self.x = torch.tensor([numbers])                            # (1, N)
        self.total = torch.zeros_like(self.x)                       # (1, N)

    def put(self, numbers):
        """Overwrites x in place."""
        self.x.copy_(torch.tensor([numbers]))

    def __call__(self, ops):                        # -> (1, N)
        y = ops.swiglu(self.x, self.x + 1)                          # (1, N)
        self.total += y
        return y * self.total


# ---- sizes


def predict_host_launches() -> int:
    """How often the host asks the device for something in a decode step that runs from a graph of
    exactly the batch's size.
    The arrays of the step are on the device already."""
    # exercise: the replay is one request. What does it read, and how does that get there?
    return 6 + 1


def choose_sizes(max_batch: int, waste: float) -> list[int]:
    """The fewest sizes, ascending, such that no batch from 1 to max_batch has a larger share of
    padding than `waste`.

    A batch runs in the smallest size that holds it. waste: padded rows divided by all rows of that
    size, 0 to 1. Buffers have max_batch rows, so no size is larger.
    """
    # exercise: which batch needs the largest size? Which is the largest that would waste too much?
    sizes = []
    batch = max_batch
    while batch > 0:
        sizes.append(batch)
        while batch > 0 and sizes[-1] - batch <= waste * sizes[-1]:
            batch -= 1
    return sizes[::-1]


def padded_share(sizes, batch):
    """The share of padding when a batch runs in the smallest size that holds it; 0 if no size does,
    because it then runs eagerly."""
    size = next((size for size in sizes if size >= batch), batch)
    return (size - batch) / size


def memory(tape):
    """The most bytes that a recording needs at one time, if every array is freed after its last use
    and the output is never freed.
    A real allocator needs at least this much."""
    def storages(tree):
        return {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors(tree)}

    born = {}
    last = {}
    size = {}
    for i, call in enumerate(tape.calls):
        inputs = storages((call.args, call.kwargs))
        result = storages(call.result)
        for array in result.keys() - inputs.keys():
            born.setdefault(array, i)
        last |= dict.fromkeys(inputs | result, i)
        size |= result
    last |= dict.fromkeys(storages(tape.output), len(tape.calls))
    return max(sum(size[array] for array in born if born[array] <= i <= last[array])
               for i in range(len(tape.calls)))


# ---- the runner


def pad_step(buffers, batch, size):
    """Copies a step into the first B rows of the buffers; makes the rows from B to `size` harmless.

    buffers: a Batch with more rows    batch: a Batch with B = T, B at most size
    In place: the graph reads the buffers at their old addresses.
    A padded row gets slot -1, so it writes nothing, and length 1, so attention reads one key.
    In cu_q it is a sequence of one new token.
    Its token, position and pages may stay as they are.
    """
    # exercise: 1. copy each array of the step into its buffer; 2. set slots, lens, cu_q of padding
    B = len(batch.lens)
    for buffer, values in zip(buffers, batch, strict=True):
        buffer[tuple(slice(n) for n in values.shape)] = values      # a table may be narrower
    if size > B:
        buffers.slots[B:size] = -1
        buffers.lens[B:size] = 1
        torch.arange(B + 1, size + 1, out=buffers.cu_q[B + 1:size + 1])


def blank_step(rows, pages, device):
    """A Batch in which every row is padding."""
    zeros = partial(torch.zeros, dtype=torch.int64, device=device)
    return Batch(zeros(rows), zeros(rows), zeros(rows) - 1, zeros(rows, pages).int(),
                torch.arange(rows + 1, device=device).int(), zeros(rows).int() + 1)


def first_rows(buffers, size):
    """The first `size` rows of the buffers as a Batch of views."""
    return Batch(*(x[:size + 1 if x is buffers.cu_q else size] for x in buffers))


def with_ops(model, ops):
    """The same model, sharing the weights, with another table of kernels."""
    twin = copy(model)
    twin.ops = ops
    return twin


class GraphRunner:
    """Behaves like a model whose steps use one cache.
    If a graph fits the step it is replayed, otherwise the model runs eagerly.

    A graph fits by shapes alone: one new token per sequence (T = B), B at most the largest size,
    block tables at most as wide as the buffers.
    Contents are never read on the host, because that would make it wait for the GPU.
    """

    def __init__(self, model: Llama, cache: Cache, sizes: Iterable[int], max_batch: int,
                 pages: int):
        """model: has .ops, a table of kernels, and .forward(batch, cache)    pages: widest table

        sizes: to capture; larger ones are reduced to max_batch.
        Capturing writes nothing into the cache, because all rows are padding.
        On a GPU the table must not be torch's, which waits for the device.
        """
        sizes = list(sizes)
        if not sizes or min(*sizes, max_batch, pages) < 1:
            raise ValueError(f"GraphRunner: sizes {sizes}, max_batch {max_batch}, pages "
                             f"{pages}; expected one size or more, all numbers 1 or more")
        self.model = model
        self.cache = cache
        device = cache.k.device
        self.sizes = sorted({min(size, max_batch) for size in sizes})
        self.buffers = blank_step(self.sizes[-1], pages, device)
        pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.graphs = {size: capture(partial(self.compute, first_rows(self.buffers, size)),
                                     model.ops, device, pool)
                       for size in reversed(self.sizes)}        # the largest makes room for all

    def compute(self, batch: Batch, ops: Kernels) -> Tensor:
        return with_ops(self.model, ops).forward(batch, self.cache)

    def pick(self, batch: Batch) -> int | None:
        """The smallest size that holds a step, or None if no graph fits."""
        B, width = batch.block_tables.shape
        if len(batch.tokens) != B or width > self.buffers.block_tables.shape[1]:
            return None
        return next((size for size in self.sizes if size >= B), None)

    def forward(self, batch: Batch, cache: Cache) -> Tensor:    # (B, V)
        """Like the model's forward.
        The next step overwrites the scores; use or copy them first."""
        if cache is not self.cache:
            raise ValueError("GraphRunner: this is not the cache whose addresses the graphs have "
                             "recorded")
        size = self.pick(batch)
        if size is None:
            return self.model.forward(batch, cache)
        pad_step(self.buffers, batch, size)
        self.graphs[size].replay()
        return self.graphs[size].output[:len(batch.lens)]


def asked(runner, batch):
    """The names of all requests that the host makes in a step.
    A replay counts as one."""
    recorder = Launches()
    twin = copy(runner)
    twin.model = with_ops(runner.model, recorder.counting(runner.model.ops))
    twin.graphs = {size: SimpleNamespace(output=graph.output,
                                         replay=recorder.watch("replay", graph.replay))
                   for size, graph in runner.graphs.items()}
    with recorder:
        twin.forward(batch, runner.cache)
    return recorder.names


class Request(NamedTuple):
    """A request that arrives at step `start` and wants `count` tokens."""

    prompt: list
    count: int          # type: ignore[assignment]      # it hides tuple.count
    start: int


def serve(model, cache, requests):
    """([[token]] of each request, [(sequences, new tokens) of each step]), greedily.

    model: a Llama, or a GraphRunner on this cache.
    Request b is the cache's sequence b.
    Each step contains the requests that have arrived and are not finished: batches grow and shrink,
    prompts and decoding are mixed.
    """
    new = [[] for _ in requests]
    shapes = []
    for now in range(max(r.start + r.count for r in requests)):
        here = [r.start <= now < r.start + r.count for r in requests]
        tokens = [(r.prompt if r.start == now else out[-1:]) if there else []
                  for r, out, there in zip(requests, new, here, strict=True)]
        if any(here):
            batch = awake(cache.step(tokens))
            shapes.append((len(batch.lens), len(batch.tokens)))
            scores = model.forward(batch, cache)                    # (B, V)
            for out, token in zip((out for out, there in zip(new, here, strict=True) if there),
                                  scores.argmax(-1).tolist(), strict=True):
                out.append(token)
    return new, shapes


def awake(batch):
    """The step without sequences that have no new token."""
    counts = batch.cu_q.diff()                              # (B,)
    there = counts > 0
    ends = counts[there].cumsum(0).int()
    return batch._replace(block_tables=batch.block_tables[there], lens=batch.lens[there],
                          cu_q=torch.cat([ends.new_zeros(1), ends]))


# ---- side by side


WRITES = {"rope": (0, 1), "rope_and_cache": (0, 6, 7), "write_kv": (2, 3)}      # which arguments


def spans(call):
    """(ranges read, ranges written) by a call, in bytes: [(start, end)] each."""
    def ranges(tree):
        return [(x.data_ptr(), x.data_ptr() + x.element_size() * (1 + sum(
            (n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))))
            for x in tensors(tree) if x.numel()]

    if isinstance(call.function, torch._ops.OpOverload):        # PyTorch's own say what they write
        arguments = dict(enumerate(call.args)) | call.kwargs
        inplace = [arguments.get(i, arguments.get(a.name)) for i, a in
                   enumerate(call.function._schema.arguments)
                   if a.alias_info and a.alias_info.is_write]
    else:
        inplace = [call.args[i] for i in WRITES.get(call.name, ())]
    return ranges((call.args, call.kwargs)), ranges((call.result, inplace))


def needs(calls):
    """For each call, the set of earlier calls, by number, that it waits for.

    A call waits for every call that wrote what it reads or writes, and for every call that read
    what it writes.
    """
    def meet(some, others):
        return any(a < end and first < b for a, b in some for first, end in others)

    known = [spans(call) for call in calls]
    edges = []
    for j, (read, written) in enumerate(known):
        edges.append({i for i, (before, wrote) in enumerate(known[:j])
                      if meet(wrote, read + written) or meet(before, written)})
    return edges


def end_times(needs: Sequence[set[int]], costs: Sequence[float]) -> list[float]:
    """[time at which each call ends], if each starts as soon as all calls that it waits for have
    ended, and at 0 if it waits for none.
    The largest is the length of the critical path.

    needs: for each call the set of earlier calls, by number, that it waits for
    costs: the cost of each call, 0 or more
    """
    # exercise: a call starts when the last call that it waits for has ended
    ends: list[float] = []
    for waits, cost in zip(needs, costs, strict=True):
        ends.append(cost + max((ends[i] for i in waits), default=0))
    return ends


def side_by_side(device: torch.device | str, *functions: Callable) -> list:
    """[the result of each function].
    On a GPU each function runs on its own stream between a fork and a join; in a capture they
    become branches of the graph.
    On a CPU one runs after the other.
    """
    if torch.device(device).type != "cuda":
        return [function() for function in functions]
    here = torch.cuda.current_stream()
    others = [torch.cuda.Stream() for _ in functions[1:]]
    for stream in others:
        stream.wait_stream(here)            # the fork: before anything of a branch is launched
    results = []
    for stream, function in zip((here, *others), functions, strict=True):
        with torch.cuda.stream(stream):
            results.append(function())
    for stream in others:
        here.wait_stream(stream)            # the join
    # A branch's stream may reuse the memory of these results: the next fork waits for `here` first.
    return results


class Forked(Llama):
    """A Llama that computes q, k and v, with their norms, on parallel branches."""

    def heads(self, layer: Layer, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def branch(matrix, norm):
            x = self.linear(y, matrix).view(len(y), -1, self.config.D)      # (T, G, D)
            if norm is not None:
                x = self.ops.rmsnorm(x.flatten(0, 1), norm, self.config.eps).view_as(x)
            return x

        q, k, v = side_by_side(y.device, *(partial(branch, matrix, norm) for matrix, norm in (
            (layer.q, layer.q_norm), (layer.k, layer.k_norm), (layer.v, None))))
        return q, k, v
