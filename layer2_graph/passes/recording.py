"""Run a graph and see what happened: its launches, and who used which storage.

A storage is memory that a launch made; a tensor and its views show the same one.
"""

import operator
from typing import NamedTuple

import torch
from torch.fx import Interpreter
from torch.utils._pytree import tree_leaves, tree_map

from layer2_graph.drawing import Box
from layer2_graph.launches import Launches
from layer2_graph.passes.rewriting import label, writes

__all__ = ["Recording", "boxes", "record", "run_in_arena"]


class Launch(NamedTuple):
    """A node that launched, and the storages that it had to do with, by number."""

    node: str
    label: str
    count: int              # of launches: one, unless the node is made of several operations
    uses: tuple             # reads, or writes into
    writes: tuple           # of these, what it may write into
    makes: tuple            # or is the first to use, of what was only set aside


class Recording(NamedTuple):
    """What happened in a run of a graph."""

    result: object
    launches: list
    sizes: dict             # {storage that a launch made: bytes}
    kept: tuple             # storages that are returned
    given: dict             # {storage of an input: its name}
    new: dict               # {node: storages that it set aside, in the order of its result}


class Recorder(Interpreter):
    """Runs a graph node by node. It frees nothing, so that no address is used twice."""

    def __init__(self, module):
        super().__init__(module, garbage_collect_values=False)
        self.seen, self.launches, self.numbers, self.sizes = Launches(), [], {}, {}
        self.given, self.new, self.unused = {}, {}, {}

    def run_node(self, node):
        before, known = len(self.seen.names), set(self.numbers.values())
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
            self.launches.append(Launch(node.name, label(node), count, uses, written, makes))
        return result

    def call_function(self, target, args, kwargs):
        ours = not isinstance(target, torch._ops.OpOverload) and target is not operator.getitem
        if ours:                                    # a kernel out of the table is one launch
            target = self.seen.watch(target.__name__, target)
        return super().call_function(target, args, kwargs)

    def storages(self, tree):
        """{number: bytes} of the storages of all tensors in a value."""
        unique = {}
        for storage in map(torch.Tensor.untyped_storage, tensors(tree)):
            if storage.nbytes():
                number = self.numbers.setdefault(storage.data_ptr(), len(self.numbers))
                unique[number] = storage.nbytes()
        return unique


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def record(module, inputs):
    """The Recording of one run: its result, its launches, and who used which storage.

    A launch is counted as Launches counts: views are free, a kernel of a table is one. Arrays that
    a node makes and forgets inside itself are not seen.
    """
    recorder = Recorder(module)
    with torch.no_grad(), recorder.seen:
        result = recorder.run(*inputs)
    return Recording(result, recorder.launches, recorder.sizes, tuple(recorder.storages(result)),
                     recorder.given, recorder.new)


def boxes(run):
    """The drawing of a run: [Box], inputs first. A box takes from who last wrote what it uses."""
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
    """Runs a graph with what its launches make moved to its place in the arena."""

    def __init__(self, module, run, plan):
        super().__init__(module, garbage_collect_values=False)
        self.launched = {launch.node for launch in run.launches}
        self.new, self.offsets = run.new, plan.offsets
        self.arena = torch.full((plan.peak,), 255, dtype=torch.uint8)   # as float32: not a number
        self.elsewhere = set()

    def run_node(self, node):
        result = super().run_node(node)
        if node.op in ("placeholder", "get_attr"):
            self.elsewhere |= {address(t) for t in tensors(result)}
        new = dict.fromkeys(address(t) for t in tensors(result) if t.untyped_storage().nbytes())
        new = [a for a in new if a not in self.elsewhere and a != address(self.arena)]
        at = {a: self.offsets[s] for a, s in zip(new, self.new.get(node.name, ()), strict=True)
              if s in self.offsets}
        return tree_map(lambda t: self.move(t, at[address(t)], node.name in self.launched)
                        if isinstance(t, torch.Tensor) and address(t) in at else t, result)

    def move(self, tensor, offset, filled):
        if filled:              # what is only set aside has no numbers yet, and its place may be
            raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            self.arena[offset:offset + len(raw)] = raw              # another's until it is used
        return torch.empty(0, dtype=tensor.dtype).set_(
            self.arena.untyped_storage(), offset // tensor.itemsize + tensor.storage_offset(),
            tensor.shape, tensor.stride())


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def run_in_arena(module, run, plan, inputs):
    """The result of the graph where every launch's result lies where the plan says. On the CPU.

    A plan with two owners of a place gives wrong numbers here.
    """
    with torch.no_grad():
        return tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t,
                        Placed(module, run, plan).run(*inputs))
