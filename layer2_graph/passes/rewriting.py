"""Capture a graph, ask it what a pass must know, and change it.

A node is a call in a torch.fx graph, at aten level. A pass changes a graph and says how many places
it changed. Inputs are taken to lie in memory of their own, and weights to stay as they are.
"""

import copy
import operator
import warnings
from contextlib import contextmanager

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

__all__ = ["capture_graph"]

aten = torch.ops.aten
LINEAR, SILU, MUL, ADD = aten.linear.default, aten.silu.default, aten.mul.Tensor, aten.add.Tensor


def capture_graph(model, args):
    """The graph of a module, or of a function of tensors, at these arguments' shapes.

    A GraphModule of aten calls: weights are get_attr nodes, and every node's .meta["val"] has its
    shape and dtype. Sizes are constants in it. In-place operations stay what they are.
    """
    module = model if isinstance(model, torch.nn.Module) else Called(model)
    with torch.no_grad(), quiet():
        captured = torch.export.export(module, tuple(args)).module(check_guards=False)
    return GraphModule(captured, captured.graph)


def copied(module):
    """The same module with a graph of its own; they share the weights."""
    with quiet():
        return GraphModule(module, copy.deepcopy(module.graph))


@contextmanager
def quiet():
    """torch 2.11 to 2.13 warn of how they copy the trees that describe arguments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


class Called(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


# ---- questions that a pass asks of a graph


def calls(module, target):
    """The nodes that call this function, in order."""
    return [node for node in module.graph.nodes if is_call(node, target)]


def is_call(node, target):
    return isinstance(node, Node) and node.op == "call_function" and node.target is target


def label(node):
    """What a box says: given by the pass that made the node; a matrix by its weight's name."""
    if "label" in node.meta:
        return node.meta["label"]
    if is_call(node, LINEAR) and node.args[1].op == "get_attr":
        return node.args[1].target.rpartition(".")[2]
    return getattr(node.target, "overloadpacket", node.target).__name__


def rows_alike(*values):
    """Whether all are nodes of one shape (T, F) and one dtype, as the table's kernels take them."""
    if not all(isinstance(v, Node) for v in values):
        return False
    shapes = {(v.meta["val"].shape, v.meta["val"].dtype) for v in values}
    return len(shapes) == 1 and values[0].meta["val"].dim() == 2


def nodes_in(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Node)]


def base(node):
    """The node whose memory this one shows, through views, parts of tuples, in-place results."""
    while node.op == "call_function" and shows(node.target) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def shows(target):
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem
    return target is aten._unsafe_view.default or any(r.alias_info for r in target._schema.returns)


def writes(node):
    """The bases that a call may write into. A function of which nothing is known may write into
    all that it takes."""
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


def written_between(values, first, last):
    """Whether a call after `first` and before `last` may write into the memory of a value."""
    watched, node = {base(v) for v in values}, first.next
    while node is not last:
        if writes(node) & watched:
            return True
        node = node.next
    return False


def constant(module, node):
    """The weight that a node stands for, if it is one and no call of the graph writes into it."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    if any(w.op == "get_attr" and w.target == node.target
           for n in module.graph.nodes for w in writes(n)):
        return None
    return operator.attrgetter(node.target)(module).detach()


# ---- what a pass does to it


def insert(before, target, args, val, label, writes=()):
    """A new call, in front of a node. val: a tensor of its result's shape and dtype, or None.

    writes: which of the arguments it writes into, by position
    """
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args)
    node.meta = {"val": val, "label": label, "writes": writes}
    return node


def rewrite(old, target, args, label):
    """The call in place of `old`: whoever used that takes the new one, and `old` is gone."""
    new = insert(old, target, args, old.meta["val"], label)
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)
    return new


def hold(module, before, weight, name):
    """A node, in front of another, that stands for a new weight."""
    while hasattr(module, name):
        name += "_"
    module.register_buffer(name, weight)
    with before.graph.inserting_before(before):
        node = before.graph.get_attr(name)
    node.meta["val"] = weight
    return node


# ---- patterns


def match(value, pattern, bound):
    """What the names in a pattern stand for, or None: {name: value, "nodes": [matched calls]}.

    A pattern is a name, a constant, or a tuple of a function and patterns of its arguments, of all
    of them. A name that comes twice is the same value twice. The factors of a product and the
    terms of a sum may come in either order.
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
        got = bound | {"nodes": [*bound["nodes"], value]}
        for part, arg in zip(parts, args, strict=True):
            got = got and match(arg, part, got)
        if got:
            return got
    return None


def matches(module, pattern):
    """(last node, what match found), one by one, where nothing outside uses what lies between, and
    nothing that it starts from is written into before its end."""
    for node in list(module.graph.nodes):
        got = match(node, pattern, {"nodes": []})
        if got is None:
            continue
        inner, order = set(got["nodes"]) - {node}, list(module.graph.nodes)
        first = min(got["nodes"], key=order.index)
        nodes = [v for name, v in got.items() if isinstance(v, Node)]
        if all(set(n.users) <= {*inner, node} for n in inner) and not written_between(
                nodes, first, node):
            yield node, got
