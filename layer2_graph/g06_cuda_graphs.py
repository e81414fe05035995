"""g06 · CUDA graphs: a step's launches are recorded once, then asked for all at once

B: sequences of a step   T: its new tokens   size: rows that a graph was recorded for, B at most
pages: width of the block tables   a launch: as g01 counts them
In eager mode the host asks for every launch: 15 for a layer of g01, 8 for one of g05. With a graph
it copies the Batch into the buffers that the graph reads, six copies, and asks once. A recording
freezes all that the host decided: shapes, addresses, Python numbers. So rows are padded up to a
recorded size.
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
    """This cannot be recorded: the host would need an array's contents to go on."""


# ---- the recording


class Call(NamedTuple):
    """A launch, as the host asked for it while recording."""

    name: str
    function: Callable
    args: tuple
    kwargs: dict
    result: object          # its arrays stay where they are; later calls have them as args


def tensors(tree):
    """[the arrays in a nest of tuples, lists and dicts]"""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@torch.no_grad()
def replay(calls):
    """Ask for every call again, in order: the same functions, on the same arrays.

    calls: [Call]. An array's contents may have changed since; its address has not. What a call
    returns goes where its recorded result is, since the calls after it, and the readers of the
    output, look there.
    """
    # exercise: call each function again, and copy what it returns over its recorded result
    for call in calls:
        result = call.function(*call.args, **call.kwargs)
        for old, new in zip(tensors(call.result), tensors(result), strict=True):
            old.copy_(new)         # onto itself where the call worked in place


class Tape(TorchDispatchMode):
    """A CUDA graph's stand-in on a CPU: .calls of function(ops), .output, .replay().

    As on a GPU, a replay runs none of the function's Python: its decisions are frozen. It reads the
    arrays' current contents, and overwrites the output of the replay before. item(), tolist(),
    masks and the like, which would stop a capture on a GPU, are a CaptureError here as well.
    A call into the table `ops` is one launch, and its launcher stands for the kernel: it may look
    at contents, and runs again at a replay. Recording runs every call; a GPU only takes notes.
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
    """True where the host must wait for contents: item(), nonzero(), an array picked by a mask."""
    if name in ("index", "index_put", "index_put_"):
        return any(i is not None and i.dtype == torch.bool for i in args[1])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
                & set(operation.tags))


class HostReads(TorchFunctionMode):
    """Refuses functions that read an array without the dispatcher, outside kernels."""

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
    return CaptureError(f"capture: {what} needs an array's contents on the host, which takes no "
                        f"part in a replay. Decide before the capture, or on the device "
                        f"(torch.where)")


class DeviceGraph:
    """The same on a GPU, by torch.cuda.CUDAGraph. Written with care, not proven here: no GPU."""

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
    """function(ops), recorded: an object with .output and .replay().

    function: computes with arrays that stay where they are, and with the table of kernels it is
        given. On a GPU it runs once before the recording, on a CPU while recording.
    pool: of torch.cuda.graph_pool_handle(): graphs that never run at once may share its memory. A
        Tape has arrays of its own.
    CaptureError on a CPU, torch's RuntimeError on a GPU, if the host would read an array.
    """
    if torch.device(device).type == "cuda":
        return DeviceGraph(function, ops, pool)
    return Tape(function, ops)


class Example:
    """A step for a first recording: four launches on two arrays of its own."""

    def __init__(self, numbers):
        self.x = torch.tensor([numbers])                            # (1, N)
        self.total = torch.zeros_like(self.x)                       # (1, N)

    def put(self, numbers):
        """New contents for x, at the old address."""
        self.x.copy_(torch.tensor([numbers]))

    def __call__(self, ops):                        # -> (1, N)
        y = ops.swiglu(self.x, self.x + 1)                          # (1, N)
        self.total += y
        return y * self.total


# ---- sizes


def predict_host_launches():
    """What the host asks the device for in a decode step from a graph whose size is the batch's.

    The step's arrays are on the device already.
    """
    # exercise: the replay is one. What does it read, and what puts that there?
    return 6 + 1


def choose_sizes(max_batch: int, waste: float) -> list[int]:
    """The fewest sizes, ascending, with which no batch from 1 to max_batch pads more than `waste`.

    A batch runs in the smallest size that holds it. waste: padded rows over all rows of that size,
    0 to 1. Buffers have max_batch rows, so no size is larger.
    """
    # exercise: which batch needs the largest size? What is the largest batch that it serves badly?
    sizes, batch = [], max_batch
    while batch > 0:
        sizes.append(batch)
        while batch > 0 and sizes[-1] - batch <= waste * sizes[-1]:
            batch -= 1
    return sizes[::-1]


def padded_share(sizes, batch):
    """The share of rows that are padding when a batch runs in the smallest size that holds it; 0 if
    no size does, since the batch then runs eagerly."""
    size = next((size for size in sizes if size >= batch), batch)
    return (size - batch) / size


def memory(tape):
    """The most bytes of its own arrays that a recording holds at once: each array is given back
    after its last use, the output never. An allocator needs this much or more."""
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
    """Put a step into the first rows of the buffers, and make the rest up to `size` harmless.

    buffers: a Batch with more rows    batch: a Batch of B = T, B at most size
    Afterwards the first B rows are the step's. A padded row writes nothing: its slot is -1. It is a
    sequence of one token, so that attention reads one key for it. All else may stay: a token, a
    position and pages of earlier steps are valid, though no longer true.
    """
    # exercise: copy each array of the step; for the rows after it set slots, lens and cu_q
    B = len(batch.lens)
    for buffer, values in zip(buffers, batch, strict=True):
        buffer[tuple(slice(n) for n in values.shape)] = values      # a table may be narrower
    if size > B:
        buffers.slots[B:size] = -1
        buffers.lens[B:size] = 1
        torch.arange(B + 1, size + 1, out=buffers.cu_q[B + 1:size + 1])


def blank_step(rows, pages, device):
    """Buffers in which every row is padding."""
    zeros = partial(torch.zeros, dtype=torch.int64, device=device)
    return Batch(zeros(rows), zeros(rows), zeros(rows) - 1, zeros(rows, pages).int(),
                torch.arange(rows + 1, device=device).int(), zeros(rows).int() + 1)


def first_rows(buffers, size):
    """The first rows of the buffers as a step of `size` sequences: views."""
    return Batch(*(x[:size + (x is buffers.cu_q)] for x in buffers))


def with_ops(model, ops):
    """The same model, weights shared, that computes with another table."""
    twin = copy(model)
    twin.ops = ops
    return twin


class GraphRunner:
    """Stands in for a model whose steps use one cache. If a graph fits a step, it is replayed; if
    not, the model computes eagerly.

    A graph fits a step by its shapes alone: a new token for each sequence (T = B), B at most the
    largest size, block tables at most as wide as the buffers'. Contents are never read: the host
    would have to wait for the GPU.
    """

    def __init__(self, model: Llama, cache: Cache, sizes: Iterable[int], max_batch: int,
                 pages: int):
        """model: has .ops, a table of kernels, and .forward(batch, cache)    pages: widest table

        sizes: to capture; those above max_batch become max_batch. Capturing writes nothing into
        the cache: all rows are padding. On a GPU the table must not be torch's, which waits for
        the device.
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
        """As the model's. The next step overwrites the scores: use them first, or copy them."""
        if cache is not self.cache:
            raise ValueError("GraphRunner: got another cache than the one whose addresses its "
                             "graphs recorded")
        size = self.pick(batch)
        if size is None:
            return self.model.forward(batch, cache)
        pad_step(self.buffers, batch, size)
        self.graphs[size].replay()
        return self.graphs[size].output[:len(batch.lens)]


def asked(runner, batch):
    """What the host asks the device for in a step: [name]. A replay is one."""
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
    """A request for `count` tokens that comes at step `start`."""

    prompt: list
    count: int          # type: ignore[assignment]      # it hides tuple.count
    start: int


def serve(model, cache, requests):
    """([[token]] of each request, [(sequences, new tokens) of each step]), greedily.

    model: a Llama, or a GraphRunner on this cache. Request b is the cache's sequence b. Every
    request that has come and is not finished is in a step: batches grow and shrink, and prompts and
    decoding are mixed.
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
    """A batch without the sequences that have no new token."""
    counts = batch.cu_q.diff()                              # (B,)
    there = counts > 0
    ends = counts[there].cumsum(0).int()
    return batch._replace(block_tables=batch.block_tables[there], lens=batch.lens[there],
                          cu_q=torch.cat([ends.new_zeros(1), ends]))


# ---- side by side


WRITES = {"rope": (0, 1), "rope_and_cache": (0, 6, 7), "write_kv": (2, 3)}      # which arguments


def spans(call):
    """(read, written): the byte ranges of a call's arrays, [(first, end)] each."""
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
    """[{numbers of the earlier calls that it waits for}] of each call.

    A call waits for those that wrote what it reads or writes, and those that read what it writes.
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
    """When each call ends, if the first begins at 0, and each other as soon as all that it waits
    for have ended: [cost]. The latest is the critical path: no number of streams makes a step
    shorter.

    needs: [{numbers of earlier calls}] of each call    costs: [cost] of each, 0 or more
    """
    # exercise: a call begins when the last of those that it waits for ends
    ends: list[float] = []
    for waits, cost in zip(needs, costs, strict=True):
        ends.append(cost + max((ends[i] for i in waits), default=0))
    return ends


def side_by_side(device: torch.device | str, *functions: Callable) -> list:
    """[the result of each function]. On a GPU each has a stream of its own, between a fork and a
    join; in a capture they become branches of the graph. On a CPU one runs after the other.

    The streams are not proven here: no GPU.
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
    # A branch's arrays may go back to its stream's memory at any time: the next fork waits for us.
    return results


class Forked(Llama):
    """A Llama whose queries, keys and values are made side by side, their norms with them."""

    def heads(self, layer: Layer, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def branch(matrix, norm):
            x = self.linear(y, matrix).view(len(y), -1, self.config.D)      # (T, G, D)
            if norm is not None:
                x = self.ops.rmsnorm(x.flatten(0, 1), norm, self.config.eps).view_as(x)
            return x

        q, k, v = side_by_side(y.device, *(partial(branch, matrix, norm) for matrix, norm in (
            (layer.q, layer.q_norm), (layer.k, layer.k_norm), (layer.v, None))))
        return q, k, v
