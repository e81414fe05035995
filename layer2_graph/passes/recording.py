"""Run a graph and record what happened: its launches, and the storages that each one used.

A storage is memory that a launch made; a tensor and its views share one.
"""

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves, tree_map

from layer2_graph.drawing import Box
from layer2_graph.launches import Launches
from layer2_graph.passes.rewriting import label, writes

__all__ = ["Recording", "boxes", "record", "run_in_arena"]


class RecordedLaunch(NamedTuple):
    """A node that launched, and its storages, by number.

    count: of launches: one, unless the node is made of several operations
    """

    node: str
    label: str
    count: int              # type: ignore[assignment]      # it hides tuple.count
    uses: tuple             # what it reads, or writes into
    writes: tuple           # of these, what it may write into
    makes: tuple            # what it makes, or is the first to use after it was only set aside


class Recording(NamedTuple):
    """What happened in a run of a graph."""

    result: object
    launches: list[RecordedLaunch]
    sizes: dict             # {storage that a launch made: bytes}
    kept: tuple             # storages that are returned
    given: dict             # {storage of an input: its name}
    new: dict               # {node: storages that it set aside, in the order of its result}


class LaunchRecorder(Interpreter):
    """Runs a graph node by node.
    It frees nothing, so that no address is used twice."""

    def __init__(self, module: GraphModule):
        super().__init__(module, garbage_collect_values=False)
        self.seen = Launches()
        self.launches: list[RecordedLaunch] = []
        self.numbers: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.given: dict[int, str] = {}
        self.new: dict[str, tuple] = {}
        self.unused: dict[int, int] = {}

    def run_node(self, node: Node):
        before = len(self.seen.names)
        known = set(self.numbers.values())
        result = super().run_node(node)
        touched = self.storages(result)
        if node.op == "placeholder":
            self.given |= dict.fromkeys(touched, node.name)
        elif node.op == "call_function":
            new = {s: size for s, size in touched.items() if s not in known}
            self.new[node.name] = tuple(new)
            self.unused |= new
        if count := len(self.seen.names) - before:
            uses, written = (tuple(self.storages([self.env[n] for n in some]))
                             for some in (node.all_input_nodes, writes(node)))
            makes = tuple(s for s in self.unused if s in touched or s in uses)
            self.sizes |= {s: self.unused.pop(s) for s in makes}
            self.launches.append(
                RecordedLaunch(node.name, label(node), count, uses, written, makes))
        return result

    def call_function(self, target, args, kwargs):
        ours = not isinstance(target, torch._ops.OpOverload) and target is not operator.getitem
        if ours:                                    # a kernel of the table is one launch
            target = self.seen.watch(target.__name__, target)
        return super().call_function(target, args, kwargs)

    def storages(self, tree: object) -> dict[int, int]:
        """{number: bytes} of the storages of all tensors in a value."""
        unique = {}
        for storage in map(torch.Tensor.untyped_storage, tensors(tree)):
            if storage.nbytes():
                number = self.numbers.setdefault(storage.data_ptr(), len(self.numbers))
                unique[number] = storage.nbytes()
        return unique


def tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def record(module: GraphModule, inputs: Iterable[Tensor]) -> Recording:
    """The Recording of one run: its result, its launches, and the storages that each one used.

    A launch is counted as Launches counts: views are free, a kernel of a table is one.
    Arrays that a node makes and drops within itself are not seen.
    """
    recorder = LaunchRecorder(module)
    with torch.no_grad(), recorder.seen:
        result = recorder.run(*inputs)
    return Recording(result, recorder.launches, recorder.sizes, tuple(recorder.storages(result)),
                     recorder.given, recorder.new)


def boxes(run: Recording) -> list[Box]:
    """The boxes of a run, inputs first.
    A line leads to a box from the box that last wrote what it uses."""
    used = {s for launch in run.launches for s in launch.uses}
    drawn = [(s, name) for s, name in run.given.items() if s in used]
    inputs = [Box(name, launch=False) for _, name in drawn]
    writer = {s: i for i, (s, _) in enumerate(drawn)}
    for launch in run.launches:
        takes = tuple(sorted({writer[s] for s in launch.uses if s in writer}))
        writer |= dict.fromkeys((*launch.makes, *launch.writes), len(inputs))
        times = f" ×{launch.count}" if launch.count > 1 else ""
        size = sum(run.sizes[s] for s in launch.makes)
        inputs.append(Box(launch.label + times, takes, f"{size:,} B" if size else "in place"))
    return inputs


class Placed(Interpreter):
    """Runs a graph, and moves the results of its launches to their places in the arena."""

    def __init__(self, module: GraphModule, run: Recording, plan: Any):
        super().__init__(module, garbage_collect_values=False)
        self.launched = {launch.node for launch in run.launches}
        self.new = run.new
        self.offsets = plan.offsets
        self.arena = torch.full((plan.peak,), 255, dtype=torch.uint8)   # as float32: not a number
        self.elsewhere: set[int] = set()

    def run_node(self, node: Node):
        result = super().run_node(node)
        if node.op in ("placeholder", "get_attr"):
            self.elsewhere |= {address(t) for t in tensors(result)}
        full = dict.fromkeys(address(t) for t in tensors(result) if t.untyped_storage().nbytes())
        new = [a for a in full if a not in self.elsewhere and a != address(self.arena)]
        at = {a: self.offsets[s] for a, s in zip(new, self.new.get(node.name, ()), strict=True)
              if s in self.offsets}
        return tree_map(lambda t: self.move(t, at[address(t)], node.name in self.launched)
                        if isinstance(t, torch.Tensor) and address(t) in at else t, result)

    def move(self, tensor: Tensor, offset: int, filled: bool) -> Tensor:
        if filled:              # memory that is only set aside has no numbers yet, and its place
            raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            self.arena[offset:offset + len(raw)] = raw      # may be another's until it is used
        return torch.empty(0, dtype=tensor.dtype).set_(
            self.arena.untyped_storage(), offset // tensor.itemsize + tensor.storage_offset(),
            tensor.shape, tensor.stride())


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def run_in_arena(module: GraphModule, run: Recording, plan: Any,
                 inputs: Iterable[Tensor]) -> object:
    """Runs the graph on the CPU with the result of every launch at its planned offset.

    plan: a Plan of g04.
    If two live storages share bytes, the numbers come out wrong.
    """
    with torch.no_grad():
        return tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t,
                        Placed(module, run, plan).run(*inputs))
