"""Writes down every call of torch.distributed before it is made.

It sees all of `dist.*`, `batch_isend_irecv`, DDP's reducer and FSDP2 (operations of `c10d`), and
DTensor and functional collectives (`_c10d_functional`, which do not pass through `c10d` again).
It cannot see `Work.wait()`, which is no operation.
"""

import contextlib
import json
import sys
import time

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from lab.remote.traffic import MESSAGES

current = None          # the CollectiveRecorder of this process; None where nothing is recorded


def mark(label):
    """Label the calls that this rank makes from now on: a driver's cases are counted one by one."""
    if current is not None:
        current.label = label


@contextlib.contextmanager
def paused():
    """Nothing is recorded within: a call that is timed takes what it takes without this."""
    if current is None:
        yield
        return
    current.__exit__(None, None, None)
    try:
        yield
    finally:
        current.__enter__()


def numel(tensors):
    return sum(map(numel, tensors)) if isinstance(tensors, (list, tuple)) else tensors.numel()


def whole(name):
    """The sizes of a call that hands over one array, or several as if they were one."""
    return lambda a, n: [numel(a[name])]


def listed(name):
    """Those of a call that hands over a list with a piece for each rank."""
    return lambda a, n: [t.numel() for one in a[name] for t in one]


def equal(name):
    """Those of a call whose array has a piece of equal size for each rank."""
    return lambda a, n: [numel(a[name]) // n] * n


def own(name):
    """Those of a call that hands over this rank's piece, of which all have as much."""
    return lambda a, n: [numel(a[name])] * n


def rows(array, splits):
    """Those of an array whose first axis is cut as `splits` says, or evenly where it is empty."""
    def sizes(a, n):
        t = a[array]
        row = t.numel() // max(len(t), 1)
        return [size * row for size in a[splits]] or [t.numel() // n] * n
    return sizes


# operation: (the name in torch.distributed, sizes of what is handed over)
C10D = {
    "send": ("send", whole("tensors")),
    "recv_": ("recv", whole("tensors")),
    "recv_any_source_": ("recv", whole("tensors")),
    "allreduce_": ("all_reduce", whole("tensors")),
    "allreduce_coalesced_": ("all_reduce", whole("tensors")),
    "allgather_": ("all_gather", listed("output_tensors")),
    "_allgather_base_": ("all_gather", own("input_tensor")),
    "allgather_into_tensor_coalesced_": ("all_gather", own("inputs")),
    "reduce_scatter_": ("reduce_scatter", listed("input_tensors")),
    "_reduce_scatter_base_": ("reduce_scatter", equal("input_tensor")),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", equal("inputs")),
    "alltoall_": ("all_to_all", lambda a, n: [t.numel() for t in a["input_tensors"]]),
    "alltoall_base_": ("all_to_all", rows("input", "input_split_sizes")),
    "broadcast_": ("broadcast", whole("tensors")),
    "reduce_": ("reduce", whole("tensors")),
    "gather_": ("gather", whole("input_tensors")),
    "scatter_": ("scatter", whole("output_tensors")),
    "barrier": ("barrier", lambda a, n: []),
    "monitored_barrier_": ("barrier", lambda a, n: []),
}
FUNCTIONAL = {
    "all_reduce": ("all_reduce", whole("input")),
    "all_reduce_": ("all_reduce", whole("input")),
    "all_reduce_coalesced": ("all_reduce", whole("inputs")),
    "all_reduce_coalesced_": ("all_reduce", whole("inputs")),
    "all_gather_into_tensor": ("all_gather", own("input")),
    "all_gather_into_tensor_out": ("all_gather", own("input")),
    "all_gather_into_tensor_coalesced": ("all_gather", own("inputs")),
    "reduce_scatter_tensor": ("reduce_scatter", equal("input")),
    "reduce_scatter_tensor_out": ("reduce_scatter", equal("input")),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", equal("inputs")),
    "all_to_all_single": ("all_to_all", rows("input", "input_split_sizes")),
    "broadcast": ("broadcast", whole("input")),
    "broadcast_": ("broadcast", whole("input")),
}
SPACES = {"c10d": C10D, "_c10d_functional": FUNCTIONAL}
RECEIVED = {"alltoall_": lambda a, n: [t.numel() for t in a["output_tensors"]],
            "alltoall_base_": rows("output", "output_split_sizes")}
NO_TRAFFIC = ("check_for_nan", "wait_tensor", "_wrap_tensor_autograd")
PEERS = ("dst", "src", "root_rank")


class CollectiveRecorder(TorchDispatchMode):
    """Writes a line of JSON, a ledger's Operation, to `write` before each call. file: the lesson's,
    whose line is noted."""

    def __init__(self, write, file):
        super().__init__()
        self.write = write
        self.file = file
        self.label = None

    @classmethod
    def _should_skip_dynamo(cls):
        """True would import torch._dynamo at the first operation: 900 modules, seconds a rank."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented       # it goes first, and makes the calls that are noted here
        if func.namespace in SPACES:
            name = func._schema.name.partition("::")[2]
            arguments = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
            if name not in NO_TRAFFIC:
                self.note(func.namespace, name, arguments | (kwargs or {}))
        return func(*args, **(kwargs or {}))

    def note(self, space, name, a):
        if name not in SPACES[space]:
            raise NotImplementedError(f"the course does not count {space}::{name}")
        group, ranks = members(a.get("process_group", a.get("group_name")))
        title, sizes = SPACES[space][name]
        first = next(tensors(a), None)
        peer = next((a[key] for key in PEERS if key in a), None)
        if peer is not None and not 0 <= peer < len(ranks):
            raise ValueError(f"{title}: there is no rank {peer}, expected 0 to {len(ranks) - 1}")
        if title in MESSAGES and peer is not None:
            peer = ranks[peer]                  # its number in the world
        pieces = sizes(a, len(ranks))
        self.write(json.dumps({
            "name": title, "group": group, "ranks": ranks, "peer": peer, "tag": a.get("tag", 0),
            "dtype": "" if first is None else str(first.dtype).removeprefix("torch."),
            "itemsize": 0 if first is None else first.element_size(), "pieces": pieces,
            "received": RECEIVED[name](a, len(ranks)) if name in RECEIVED else [],
            "line": self.line(), "label": self.label, "at": time.monotonic()}))

    def line(self):
        """The lesson's line that is at work; None where given code calls by itself."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return frame and frame.f_lineno


def members(group):
    """(name, [numbers in the world]) of a process group or of its name."""
    if not isinstance(group, str):
        group = dist.ProcessGroup.unbox(group).group_name
    return group, dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(group))


def tensors(a):
    """The tensors among a call's arguments."""
    for value in a.values():
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(dict(enumerate(value)))
