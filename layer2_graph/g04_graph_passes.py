"""g04 · A graph you can rewrite: capture, find a pattern, replace it, compare, plan the memory

T: tokens   C: model width   H: query heads   G: key and value heads   D: head width   F: mlp width
A node is a call in a graph.
A launch is what launches.py counts; a node that makes a view is not one.
A storage is memory that a launch made; a tensor and its views share one.
&  merged: two operations become one, with combined weights
+  fused: two operations are computed in one launch
L layers of PyTorch's own operations make 47·L launches for T > 1.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from layer1_kernels import Kernels
from layer2_graph.g01_llama import Llama
from layer2_graph.passes.fusions import draws, drop_dead
from layer2_graph.passes.recording import Recording, record, tensors
from layer2_graph.passes.rewriting import (
    LINEAR,
    MUL,
    SILU,
    aten,
    calls,
    constant,
    copied,
    hold,
    insert,
    is_call,
    label,
    rewrite,
    rows_alike,
    writes,
    written_between,
)

__all__ = ["PassResult", "PlainLayers", "Plan", "Refused", "fuse_swiglu", "merge_matmuls",
           "plan_memory", "run_passes"]


# ---- a model to rewrite: g01's layers in PyTorch's own operations


def gated_mlp(x, layer, eps):                       # (T, C) -> (T, C)
    """x plus the MLP of x. A transposed matrix is a view."""
    y = norm(x, layer.mlp_norm, eps)
    hidden = torch.nn.functional.silu(linear(y, layer.gate)) * linear(y, layer.up)      # (T, F)
    return x + linear(hidden, layer.down)


def norm(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def linear(x, w):                                   # (T, C), (N, C) -> (T, N)
    return torch.nn.functional.linear(x, w)


def turn(x, cos, sin):                              # (T, H, D), 2 × (T, 1, D//2) -> (T, H, D)
    a, b = x.chunk(2, -1)                                               # (T, H, D//2)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attend(q, k, v):                                # (T, H, D), 2 × (T, G, D) -> (T, H·D)
    """Causal attention; q is already scaled."""
    T = len(q)
    k, v = (a.repeat_interleave(q.shape[1] // a.shape[1], 1) for a in (k, v))   # (T, H, D)
    scores = q.transpose(0, 1) @ k.permute(1, 2, 0)                     # (H, T, T)
    later = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)         # (T, T)
    weights = scores.masked_fill(later, -math.inf).softmax(-1)          # (H, T, T)
    return (weights @ v.transpose(0, 1)).transpose(0, 1).flatten(1)


class PlainLayer(torch.nn.Module):
    """One layer.
    Its weights are buffers with the names of the fields of g01's Layer."""

    def __init__(self, layer, m):
        super().__init__()
        self.m = m
        for name in ("attention_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"):
            weight = getattr(layer, name)
            self.register_buffer(name, weight[0] if isinstance(weight, tuple) else weight)

    def forward(self, x, cos, sin):                 # (T, C), 2 × (T, D//2) -> (T, C)
        m = self.m
        y = norm(x, self.attention_norm, self.m.eps)
        q = linear(y, self.q) * m.scale
        k = linear(y, self.k)
        v = linear(y, self.v)
        q, k, v = (a.view(len(x), -1, m.D) for a in (q, k, v))
        cos, sin = cos[:, None], sin[:, None]                           # (T, 1, D//2)
        mixed = attend(turn(q, cos, sin), turn(k, cos, sin), v)         # (T, H·D)
        return gated_mlp(x + linear(mixed, self.o), self, m.eps)


class PlainLayers(torch.nn.Module):
    """The first `count` layers of a g01 Llama, for one sequence of T tokens from position 0 on.

    All layers by default.
    ValueError for a model with biases or with norms of q and k.
    """

    def __init__(self, model: Llama, count: int | None = None):
        super().__init__()
        m = model.config
        if m.bias_qkv or m.bias_o or m.bias_mlp or m.qk_norm:
            raise ValueError("PlainLayers: the model has biases or QK-norm, expected neither")
        self.layers = torch.nn.ModuleList(PlainLayer(layer, m) for layer in model.layers[:count])

    def forward(self, x: Tensor, cos: Tensor,
                sin: Tensor) -> Tensor:             # (T, C), 2 × (T, D//2) -> (T, C)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


# ---- exercises


def predict_mlp_launches() -> int:
    """The number of launches in gated_mlp, run by PyTorch one operation at a time."""
    # exercise: go through it line by line; norm alone is several
    return 6 + 2 + 2 + 1 + 1        # norm, gate and up, silu and mul, down, add


def fuse_swiglu(module: GraphModule, ops: Kernels) -> int:
    """Replaces each silu(gate) * up by one call of ops.swiglu(gate, up) (+). Returns their number.

    Leaves the product alone if silu's result has another user, if gate and up are not alike
    (rows_alike), or if the gate is written into between silu and the product.
    """
    # exercise: try both factors of each mul as the silu; then rewrite(mul, …, "silu + mul")
    places = 0
    for mul in calls(module, MUL):
        for silu, up in (mul.args, mul.args[::-1]):
            if not is_call(silu, SILU) or len(silu.users) > 1:
                continue
            gate = silu.args[0]
            if rows_alike(gate, up) and not written_between([gate], silu, mul):
                rewrite(mul, ops.swiglu, (gate, up), "silu + mul")
                places += 1
                break
    return places


def merge_matmuls(module: GraphModule, ops: Kernels) -> int:
    """Merges the matrices that multiply the same x (&). Returns the number of launches saved.

    A group holds calls LINEAR(x, w) without bias, x (T, C), w a constant.
    Its weights are stacked to (N1 + N2 + …, C); one ops.matmul stands before the first call; each
    old result becomes a slice of its columns.
    """
    # exercise: for each group stack and hold the weights, insert the matmul; then rewrite to slices
    saved = 0
    for group in groups_of_matmuls(module):
        first = group[0]
        weight = torch.cat([constant(module, matmul.args[1]) for matmul in group])
        both = insert(first, ops.matmul,
                      (first.args[0], hold(module, first, weight, "merged")),
                      torch.cat([matmul.meta["val"] for matmul in group], -1),
                      " & ".join(label(matmul) for matmul in group))
        column = 0
        for matmul in group:
            end = column + matmul.meta["val"].shape[1]
            rewrite(matmul, aten.slice.Tensor, (both, 1, column, end), label(matmul))
            column = end
        saved += len(group) - 1
    return saved


def groups_of_matmuls(module):
    """Lists of two or more nodes that merge_matmuls may merge."""
    groups = []
    for node in calls(module, LINEAR):
        x = node.args[0]
        weight = constant(module, node.args[1])
        if weight is None or len(node.args) > 2 or x.meta["val"].dim() != 2:
            continue
        group = next((g for g in groups if g[0].args[0] is x
                      and not written_between([x], g[0], node)), None)
        if group is None:
            groups.append(group := [])
        group.append(node)
    return [group for group in groups if len(group) > 1]


def lifetimes(launches: Sequence[tuple], returned: Iterable[int]) -> dict[int, tuple]:
    """{storage: (born, dies)}: the launch that makes it and the last launch that needs it.

    launches: [(uses, makes)], each a tuple of storages    returned: those that the graph returns
    A storage that no launch makes existed before the run: it is left out.
    One that is never used is needed while it is written.
    A returned storage lives to the last launch.
    """
    # exercise: go through the launches in order
    lives = {}
    for i, (uses, makes) in enumerate(launches):
        lives |= dict.fromkeys(makes, (i, i))
        lives |= {storage: (lives[storage][0], i) for storage in uses if storage in lives}
    last = len(launches) - 1
    return lives | {storage: (lives[storage][0], last) for storage in returned if storage in lives}


def place(sizes: dict[int, int], lives: dict[int, tuple]) -> dict[int, int]:
    """{storage: offset in the arena}; two that live at the same launch do not overlap.

    The largest first, of equal sizes the one born earlier; each at the lowest offset where it fits.
    sizes: in bytes.
    A launch reads while it writes, so a storage that dies at a launch and one that is born there
    must not overlap.
    """
    # exercise: for each storage, which bytes are taken while it lives? Use the lowest gap that fits
    offsets = {}
    for new in sorted(sizes, key=lambda s: (-sizes[s], lives[s])):
        taken = sorted((offsets[s], offsets[s] + sizes[s]) for s in offsets
                       if lives[s][0] <= lives[new][1] and lives[new][0] <= lives[s][1])
        offset = 0
        for low, high in taken:
            if offset + sizes[new] <= low:
                break
            offset = max(offset, high)
        offsets[new] = offset
    return offsets


# ---- memory


ALIGNED = 256               # bytes: what cudaMalloc gives at least; no vector load needs more


class Plan(NamedTuple):
    """The offset of each storage in one arena."""

    offsets: dict           # {storage: byte of the arena}
    lives: dict             # {storage: (born, dies)}: launches
    sizes: dict             # bytes, rounded up
    kept: int               # bytes if nothing were freed
    live: int               # the most bytes needed at one launch; no plan can use fewer
    peak: int               # bytes of the arena


def plan_memory(run: Recording) -> Plan:
    """The Plan of a run.
    Inputs and weights lie elsewhere."""
    sizes = {s: -(-size // ALIGNED) * ALIGNED for s, size in run.sizes.items()}
    lives = lifetimes([(launch.uses, launch.makes) for launch in run.launches], run.kept)
    offsets = place(sizes, lives)
    live = [sum(sizes[s] for s, (born, dies) in lives.items() if born <= i <= dies)
            for i in range(len(run.launches))]
    plan = Plan(offsets, lives, sizes, sum(sizes.values()), max(live, default=0),
                max((offsets[s] + sizes[s] for s in sizes), default=0))
    for s in sizes:
        for other in sizes:
            apart = (lives[s][1] < lives[other][0] or lives[other][1] < lives[s][0]
                     or offsets[s] + sizes[s] <= offsets[other]
                     or offsets[other] + sizes[other] <= offsets[s])
            if s != other and not apart:
                raise ValueError(f"plan_memory: storages {s} and {other} are alive at the same "
                                 f"launch and overlap")
    return plan


# ---- the pipeline


# Relative to the largest number of a result: sums in another order round differently. Twice the
# difference that one back end may have from the oracle.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 4e-5, torch.float16: 4e-3,
              torch.bfloat16: 3.2e-2}


class Refused(ValueError):
    """A pass changed what the graph computes."""


class PassResult(NamedTuple):
    """The graph after a pass."""

    name: str
    found: int              # what the pass returned: places changed; merge_matmuls: launches saved
    launches: int
    kept: int               # bytes if nothing were freed
    live: int               # bytes that are needed at once
    peak: int               # bytes of the planned arena


def run_passes(module: GraphModule, passes: Iterable[Callable], inputs: Sequence[Tensor],
               ops: Kernels) -> tuple[GraphModule, list[PassResult]]:
    """(rewritten graph, [PassResult]): one before all passes, one after each.
    `module` stays.

    passes: functions (module, ops) -> found; unused calls are removed after each. inputs: tensors,
    the arguments of a run.
    After each pass the new graph and the captured one run on them and on two random draws of the
    same shapes.
    Refused names the pass if a result, or an input that is written into, differs by more than the
    tolerance of its dtype.
    """
    check(module)
    trials = [inputs, *(random_like(inputs, seed) for seed in (1, 2))]
    wanted = [run_copy(module, trial) for trial in trials]
    now = module
    rows = [row("captured", 0, module, inputs)]
    for change in passes:
        now = copied(now)
        name = change.__name__
        changes = change(now, ops)
        drop_dead(now)
        try:
            now.graph.lint()
            now.recompile()
            for trial, want in zip(trials, wanted, strict=True):
                compare(name, run_copy(now, trial), want)
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"after {name} the graph does not run: {error}") from error
        rows.append(row(name, changes, now, inputs))
    return now, rows


def check(module):
    """ValueError for a graph that changes its weights or draws random numbers: its runs differ."""
    for node in module.graph.nodes:
        weights = [w.target for w in writes(node) if w.op == "get_attr"]
        if weights or draws(node):
            why = f"writes into the weight {weights[0]}" if weights else "draws random numbers"
            raise ValueError(f"run_passes: {node.name} {why}; two runs could not be compared")


def random_like(inputs, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(a.shape, generator=generator).to(a) if a.is_floating_point() else a
            for a in inputs]


def run_copy(module, inputs):
    """All tensors that a run returns, followed by the inputs as they are after the run."""
    copies = [a.clone() for a in inputs]
    with torch.no_grad():
        return [*tensors(module(*copies)), *copies]


def compare(name, got, want):
    if [(a.shape, a.dtype) for a in got] != [(a.shape, a.dtype) for a in want]:
        raise Refused(f"after {name} the graph returns {like(got)}, expected {like(want)}")
    for a, b in zip(got, want, strict=True):
        tolerance = TOLERANCES.get(b.dtype, 0)
        a = a.double()
        b = b.double()
        same = (a == b) | (a.isnan() & b.isnan())
        difference = (a - b).abs().nan_to_num(math.inf, math.inf)[~same]
        largest = b[b.isfinite()].abs().max().item() if b.isfinite().any() else 0.0
        if len(difference) and difference.max() > tolerance * largest:
            raise Refused(f"after {name} a result differs by up to {difference.max():.3g}; the "
                          f"largest number is {largest:.3g}, and a difference of {tolerance:g} of "
                          f"it is allowed")


def like(results):
    return ", ".join(f"{tuple(a.shape)} {str(a.dtype).removeprefix('torch.')}" for a in results)


def row(name, changes, module, inputs):
    run = record(module, [a.clone() for a in inputs])
    plan = plan_memory(run)
    launches = sum(launch.count for launch in run.launches)
    return PassResult(name, changes, launches, plan.kept, plan.live, plan.peak)
