"""Capture a graph, ask it what a pass must know, and change it.

A node is a call in a torch.fx graph, at aten level.
A pass changes a graph and returns how many places it changed.
Inputs are assumed to lie in memory of their own, and weights not to change.
"""

import copy
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

__all__ = ["capture_graph"]

aten = torch.ops.aten
LINEAR = aten.linear.default
SILU = aten.silu.default
MUL = aten.mul.Tensor
ADD = aten.add.Tensor


def capture_graph(model: Callable, args: Iterable[Tensor]) -> GraphModule:
    """The graph of a module, or of a function of tensors, captured for these arguments' shapes.

    A GraphModule of aten calls: weights are get_attr nodes, and every node's .meta["val"] has its
    shape and dtype.
    Sizes are constants in the graph.
    In-place operations stay in place.
    """
    module = model if isinstance(model, torch.nn.Module) else Called(model)
    with torch.no_grad(), quiet():
        captured = torch.export.export(module, tuple(args)).module(check_guards=False)
    return GraphModule(captured, captured.graph)


def copied(module: GraphModule) -> GraphModule:
    """The same module with a graph of its own; the two share the weights."""
    with quiet():
        return GraphModule(module, copy.deepcopy(module.graph))


@contextmanager
def quiet() -> Iterator[None]:
    """torch 2.11 to 2.13 warn of how they copy the trees that describe arguments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


class Called(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable):
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor):
        return self.function(*args)


# ---- questions that a pass asks of a graph


def calls(module: GraphModule, target: Callable) -> list:
    """The nodes that call this function, in order."""
    return [node for node in module.graph.nodes if is_call(node, target)]


def is_call(node: object, target: Callable) -> bool:
    """True if the value is a node that calls this function."""
    return isinstance(node, Node) and node.op == "call_function" and node.target is target


def label(node: Any) -> str:
    """The text in a node's box: the one that its pass gave it; for a matrix, its weight's name."""
    if "label" in node.meta:
        return node.meta["label"]
    if is_call(node, LINEAR) and node.args[1].op == "get_attr":
        return node.args[1].target.rpartition(".")[2]
    return getattr(node.target, "overloadpacket", node.target).__name__


def rows_alike(*values: Any) -> bool:
    """True if all are nodes of one dtype and one shape (T, F), as the kernels require."""
    if not all(isinstance(v, Node) for v in values):
        return False
    shapes = {(v.meta["val"].shape, v.meta["val"].dtype) for v in values}
    return len(shapes) == 1 and values[0].meta["val"].dim() == 2


def nodes_in(tree: object) -> list[Node]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Node)]


def base(node: Any) -> Node:
    """The node whose memory this one shows: through views, parts of tuples, in-place results."""
    while node.op == "call_function" and shows(node.target) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def shows(target: Callable) -> bool:
    """Whether a function's result shows the memory of its first argument."""
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem
    return target is aten._unsafe_view.default or any(r.alias_info for r in target._schema.returns)


def writes(node: Any) -> set[Node]:
    """The bases that a call may write into: for an unknown function, those of all its
    arguments."""
    if node.op in ("placeholder", "get_attr", "output"):
        return set()
    written = [node.args, node.kwargs]
    if isinstance(node.target, torch._ops.OpOverload):
        arguments = node.target._schema.arguments
        values = dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
        written = [values.get(a.name) for a in arguments
                   if a.alias_info and a.alias_info.is_write]
    elif node.target is operator.getitem:
        written = []
    elif "writes" in node.meta:
        written = [node.args[i] for i in node.meta["writes"]]
    return {base(n) for n in nodes_in(written)}


def written_between(values: Iterable, first: Node, last: Node) -> bool:
    """True if a call between `first` and `last` may write into the memory of a value."""
    watched = {base(v) for v in values}
    node = first.next
    while node is not last:
        if writes(node) & watched:
            return True
        node = node.next
    return False


def constant(module: GraphModule, node: Any) -> Any:
    """The array of a weight's node; None if it is no weight, or a call writes into it."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    if any(w.op == "get_attr" and w.target == node.target
           for n in module.graph.nodes for w in writes(n)):
        return None
    return operator.attrgetter(str(node.target))(module).detach()


# ---- what a pass does to it


def insert(before: Node, target: Callable, args: tuple, val: Tensor | None, label: str,
           writes: Sequence[int] = ()) -> Node:
    """A new call, placed before the node `before`.

    val: a tensor with the shape and dtype of its result, or None
    writes: which of the arguments it writes into, by position
    """
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args)
    node.meta = {"val": val, "label": label, "writes": writes}
    return node


def rewrite(old: Node, target: Callable, args: tuple, label: str) -> Node:
    """Replaces `old` by a new call: the users of `old` take the new node, and `old` is erased."""
    new = insert(old, target, args, old.meta["val"], label)
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)
    return new


def hold(module: GraphModule, before: Node, weight: Tensor, name: str) -> Node:
    """A node for a new weight, placed before the node `before`."""
    while hasattr(module, name):
        name += "_"
    module.register_buffer(name, weight)
    with before.graph.inserting_before(before):
        node = before.graph.get_attr(name)
    node.meta["val"] = weight
    return node


# ---- patterns


def match(value: Any, pattern: object, bound: dict) -> dict | None:
    """What the names in a pattern stand for, or None: {name: value, "nodes": [matched calls]}.

    A pattern is a name, a constant, or a tuple of a function and the patterns of all its arguments.
    A name that comes twice is the same value twice.
    The factors of a product and the terms of a sum may come in either order.
    """
    if isinstance(pattern, str):
        same = bound.get(pattern, value) == value
        return bound | {pattern: value} if same else None
    if not isinstance(pattern, tuple):
        return bound if value == pattern else None
    target, *parts = pattern
    if not is_call(value, target) or value.kwargs or len(value.args) != len(parts):
        return None
    for args in [value.args, value.args[::-1]][:2 if target in (MUL, ADD) else 1]:
        got: dict | None = bound | {"nodes": [*bound["nodes"], value]}
        for part, arg in zip(parts, args, strict=True):
            got = got and match(arg, part, got)
        if got:
            return got
    return None


def matches(module: GraphModule, pattern: tuple) -> Iterator[tuple]:
    """(last node, what match found), one by one: no outside node uses the results in between, and
    none of the values at the start is written into before the end."""
    for node in list(module.graph.nodes):
        got = match(node, pattern, {"nodes": []})
        if got is None:
            continue
        inner = set(got["nodes"]) - {node}
        order = list(module.graph.nodes)
        first = min(got["nodes"], key=order.index)
        nodes = [v for name, v in got.items() if isinstance(v, Node)]
        if all(set(n.users) <= {*inner, node} for n in inner) and not written_between(
                nodes, first, node):
            yield node, got
