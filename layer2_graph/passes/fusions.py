"""The passes that come with g04: (module, table of kernels) -> how many places they changed.

Each leaves alone what it cannot prove safe: an intermediate with another user, other shapes or
dtypes, a write in between.
See rewriting.py for the questions they ask.
"""

import math
import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map

from layer1_kernels import Kernels
from layer2_graph.passes.rewriting import (
    ADD,
    LINEAR,
    MUL,
    aten,
    base,
    calls,
    constant,
    hold,
    insert,
    is_call,
    label,
    match,
    matches,
    nodes_in,
    rewrite,
    rows_alike,
    shows,
    writes,
    written_between,
)

__all__ = ["drop_dead", "fold_scale", "fuse_add_rmsnorm", "fuse_attention", "fuse_matmul_swiglu",
           "fuse_rmsnorm", "fuse_rope", "share_equal", "use_matmul"]


# ---- without kernels


def drop_dead(module: GraphModule, ops: Kernels | None = None) -> int:
    """Removes calls whose result is unused, unless they write or draw random numbers."""
    places = 0
    for node in reversed(module.graph.nodes):
        dead = node.op in ("call_function", "get_attr") and not node.users
        if dead and not writes(node) and not draws(node):
            module.graph.erase_node(node)
            if node.op == "call_function":
                places += 1
    return places


def draws(node: Node) -> bool:
    """Whether a call draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def share_equal(module: GraphModule, ops: Kernels | None = None) -> int:
    """Two calls of one function with the same arguments become one, unless an argument or a result
    is ever written into."""
    first: dict[tuple, Node] = {}
    places = 0
    written = set().union(*map(writes, module.graph.nodes))
    for node in list(module.graph.nodes):
        key = (node.target, repr((node.args, node.kwargs)))      # names of nodes are unique
        known = node.op == "call_function" and (
            isinstance(node.target, torch._ops.OpOverload) or "writes" in node.meta)
        if not known or draws(node) or {base(n) for n in (node, *node.all_input_nodes)} & written:
            continue
        if first.setdefault(key, node) is not node:
            node.replace_all_uses_with(first[key])
            module.graph.erase_node(node)
            if not shows(node.target):
                places += 1
    return places


def fold_scale(module: GraphModule, ops: Kernels | None = None) -> int:
    """(x · wᵀ) · number becomes x · (number · w)ᵀ, which costs nothing when it runs (&)."""
    places = 0
    for mul in calls(module, MUL):
        matmul, scale = mul.args
        if not is_call(matmul, LINEAR) or len(matmul.users) > 1 or isinstance(scale, Node):
            continue
        weight = constant(module, matmul.args[1])
        if weight is not None and len(matmul.args) == 2 and not written_between(
                matmul.args, matmul, mul) and mul.meta["val"].dtype == weight.dtype:
            name = f"{label(matmul)} & scale"
            scaled = hold(module, matmul, weight * scale, "scaled")
            rewrite(mul, LINEAR, (matmul.args[0], scaled), name)
            places += 1
    return places


# ---- to kernels of the table


SQUARES = (aten.mean.dim, (aten.pow.Tensor_Scalar, "x", 2), [-1], True)
RMSNORM = (MUL, (MUL, "x", (aten.rsqrt.default, (ADD, SQUARES, "eps"))), "w")


def fuse_rmsnorm(module: GraphModule, ops: Kernels) -> int:
    """The six operations of a norm become one launch (+)."""
    places = 0
    for node, got in matches(module, RMSNORM):
        x = got["x"]
        w = got["w"]
        eps = got["eps"]
        if rows_alike(x, node) and isinstance(eps, float) and isinstance(w, Node) and (
                w.meta["val"].shape == x.meta["val"].shape[1:]) and (
                w.meta["val"].dtype == x.meta["val"].dtype):
            rewrite(node, ops.rmsnorm, (x, w, eps), "mean + scale")
            places += 1
    return places


def fuse_add_rmsnorm(module: GraphModule, ops: Kernels) -> int:
    """A sum and its norm become one launch that gives both (+)."""
    places = 0
    for norm in calls(module, ops.rmsnorm):
        total, w, eps = norm.args
        if not is_call(total, ADD) or total.kwargs or not rows_alike(total, *total.args):
            continue
        if w.op in ("get_attr", "placeholder") and not written_between([total, w], total, norm):
            with module.graph.inserting_before(total):
                w = w if w.op == "placeholder" else module.graph.node_copy(w)
            pair = insert(total, ops.add_rmsnorm, (*total.args, w, eps), None, "add + rmsnorm")
            rewrite(norm, operator.getitem, (pair, 0), "normed")
            rewrite(total, operator.getitem, (pair, 1), "sum")
            places += 1
    return places


def fuse_matmul_swiglu(module: GraphModule, ops: Kernels) -> int:
    """SwiGLU of the two halves of a merged matmul becomes the end of that matmul (& and +)."""
    places = 0
    for node in calls(module, ops.swiglu):
        gate, up = node.args
        both = base(gate)
        F = node.meta["val"].shape[1]
        if not is_call(both, ops.matmul) or both.meta["val"].shape[1] != 2 * F:
            continue
        halves = [is_call(a, aten.slice.Tensor) and a.args == (both, 1, f, f + F)
                  for a, f in ((gate, 0), (up, F))]
        alone = [set(both.users), *map(set, (gate.users, up.users))] == [{gate, up}, {node}, {node}]
        if all(halves) and alone and not written_between(both.args, both, node):
            rewrite(node, ops.matmul_swiglu, both.args, f"{label(both)} + swiglu")
            places += 1
    return places


CHUNKS = (aten.chunk.default, "x", 2, -1)
A = (operator.getitem, CHUNKS, 0)
B = (operator.getitem, CHUNKS, 1)
COS = (aten.unsqueeze.default, "cos", 1)
SIN = (aten.unsqueeze.default, "sin", 1)


def fuse_rope(module: GraphModule, ops: Kernels) -> int:
    """The rotations of q and k by the same angles become one launch, in place (+).

    Because it works in place, no other node may read q or k before the rotation, and neither may be
    an input or a weight.
    """
    places = 0
    waiting: dict[tuple, tuple] = {}
    for node in calls(module, aten.cat.default):
        got = match_turn(module, node)
        order = list(module.graph.nodes)
        if got is None:
            continue
        other = waiting.pop((got["cos"], got["sin"]), None)
        if other is None or min(map(order.index, other[0].users)) < order.index(node):
            waiting[got["cos"], got["sin"]] = node, got         # q, and k may follow
            continue
        q = other[1]["x"]
        k = got["x"]
        T = len(got["x"].meta["val"])
        positions = hold(module, node, torch.arange(T, device=got["x"].meta["val"].device), "rows")
        insert(node, ops.rope, (q, k, got["cos"], got["sin"], positions), None,
               "rotate q + rotate k", writes=(0, 1))
        other[0].replace_all_uses_with(q)
        node.replace_all_uses_with(k)
        places += 1
    return places


def match_turn(module: GraphModule, node: Any) -> dict | None:
    """What match finds in a rotation of heads that may be done in place, or None."""
    if len(node.args) != 2 or node.args[1] != -1 or len(node.args[0]) != 2:
        return None
    minus, plus = node.args[0]
    got: dict | None = {"nodes": []}
    for half, pattern in (
            (minus, (aten.sub.Tensor, (MUL, A, COS), (MUL, B, SIN))),
            (plus, (ADD, (MUL, B, COS), (MUL, A, SIN)))):
        got = got and match(half, pattern, got)
    if not got:
        return None
    inner = {node, *got["nodes"]}
    x = got["x"]
    angles = (got["cos"], got["sin"])
    shared = {n for n in got["nodes"] if base(n) in angles}     # cos and sin serve many
    memory = base(x)
    order = list(module.graph.nodes)
    first = min(inner, key=order.index)
    readers = {user for n in order if base(n) is memory for user in n.users
               if base(user) is not memory}
    written = any(memory in writes(n) for n in order[order.index(first):])
    alone = not written and readers <= inner and memory.op == "call_function" and all(
        set(n.users) <= inner for n in inner - shared - {node})
    free = alone and not written_between(angles, first, node)
    return got if free and can_turn(x, angles) else None


def can_turn(x: Any, angles: tuple) -> bool:
    """Are these heads (T, H, D) in memory of their own, with D / 2 angles for each token?"""
    heads = x.meta["val"]
    if not rows_alike(*angles) or heads.dim() != 3 or 0 in heads.stride():
        return False
    shape = len(heads), heads.shape[-1] // 2
    return angles[0].meta["val"].shape == shape and all(
        node.meta["val"].dtype == torch.float32 for node in (x, *angles))


def repeat(name: str) -> tuple:       # as often as a key head has query heads
    return (aten.repeat_interleave.self_int, name, "copies", 1)


SCORES = (aten.matmul.default, (aten.transpose.int, "q", 0, 1),
          (aten.permute.default, repeat("k"), [1, 2, 0]))
WEIGHTS = (aten.softmax.int, (aten.masked_fill.Scalar, SCORES, "later", -math.inf), -1)
MIXED = (aten.transpose.int,
         (aten.matmul.default, WEIGHTS, (aten.transpose.int, repeat("v"), 0, 1)), 0, 1)


def fuse_attention(module: GraphModule, ops: Kernels) -> int:
    """Scores, mask, softmax and mix become flash attention, if the mask is the causal one (+).

    The mask is computed here, from nodes that do not depend on the graph's inputs.
    """
    places = 0
    for node, got in matches(module, MIXED):
        q, k, v, later = (got[name] for name in ("q", "k", "v", "later"))
        T, H, _ = q.meta["val"].shape
        mask = fixed_value(module, later)
        if mask is None or mask.shape != (T, T) or not torch.equal(
                mask, torch.ones_like(mask).triu(1)) or got["copies"] * k.meta["val"].shape[1] != H:
            continue
        one = [insert(node, aten.unsqueeze.default, (a, 0), a.meta["val"][None], "one")
               for a in (q, k, v)]
        pair = insert(node, ops.flash_attention, (*one, True, 1.0), None,
                      "scores + softmax + mix")
        out = insert(node, operator.getitem, (pair, 0), node.meta["val"][None], "out")
        rewrite(node, aten.squeeze.dim, (out, 0), "mixed")
        places += 1
    return places


def use_matmul(module: GraphModule, ops: Kernels) -> int:
    """The matrices that are left go to the table as well.
    It saves nothing; it makes the graph yours."""
    places = 0
    for node in calls(module, LINEAR):
        if len(node.args) == 2 and node.args[0].meta["val"].dim() == 2:
            rewrite(node, ops.matmul, node.args, label(node))
            places += 1
    return places


def fixed_value(module: GraphModule, node: Any) -> Tensor | None:
    """What a node is in every run, or None if it depends on the graph's inputs."""
    if constant(module, node) is not None:
        return constant(module, node)
    takes = nodes_in([node.args, node.kwargs])
    written = set().union(*map(writes, module.graph.nodes))
    if node.op != "call_function" or draws(node) or writes(node) or base(node) in written:
        return None
    values = {n: fixed_value(module, n) for n in takes}
    if any(v is None for v in values.values()):
        return None
    args, kwargs = tree_map(lambda a: values.get(a, a) if isinstance(a, Node) else a,
                            (node.args, dict(node.kwargs)))
    return node.target(*args, **kwargs)
