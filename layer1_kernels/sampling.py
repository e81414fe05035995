"""From logits to tokens: temperature, top-k, top-p, and one uniform number for each row.

B: rows, one a sequence   V: vocabulary
The row's numbers stay in their order: a token is drawn where the running sum of the weights passes
the row's uniform number.
So a row's token depends on that row alone, whatever else is in the batch.
Reads B·V numbers three times; each search of a threshold reads them up to 33 times more, from L2
where they fit.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gradients import without_gradients

__all__ = ["Sampling", "sample", "sample_torch"]

BLOCK = 1024        # on Triton's four warps 8 numbers a lane, 16 bytes of bf16; 2,048 would spill


class Sampling(NamedTuple):
    """How each row is sampled.
    Arrays of (B,), on the device of the logits.

    temperature: float32, 0 takes the largest logit    top_k: int32, at most this many tokens, 0 all
    top_p: float32, the fewest tokens that hold this share of what top_k left, 1 all
    uniform: float32 in [0, 1), the row's random number
    Tokens as likely as the last one that is kept are kept, too.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    uniform: torch.Tensor


@triton.jit
def to_order(x):
    """float32 -> an integer, larger where x is larger."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def from_order(key):
    bits = key.to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def held(logits, V, v_stride, threshold, largest, temperature, BLOCK: tl.constexpr):
    """Count and weight of the logits of one row from `threshold` on.
    Weight: exp(logit / t), 1 for the largest."""
    count = tl.zeros((BLOCK,), tl.int32)
    weight = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, V, BLOCK):
        v = start + tl.arange(0, BLOCK)
        z = tl.load(logits + v * v_stride, v < V, float("-inf")).to(tl.float32)
        keep = (z >= threshold) & (v < V)
        count += keep.to(tl.int32)
        weight += tl.where(keep, tl.exp((z - largest) / temperature), 0)
    return tl.sum(count), tl.sum(weight)


@triton.jit
def sample_triton(logits, b_stride, v_stride, temperatures, top_k, top_p, uniform, tokens, V,
                  BLOCK: tl.constexpr):
    """One program per row."""
    b = tl.program_id(0)
    logits += b.to(tl.int64) * b_stride
    largest, token, broken = float("-inf"), -1, 0
    for start in range(0, V, BLOCK):
        v = start + tl.arange(0, BLOCK)
        z = tl.load(logits + v * v_stride, v < V, float("-inf")).to(tl.float32)
        broken |= tl.max((z != z).to(tl.int32))
        top, at = tl.max(z, 0, return_indices=True)             # the first of equals
        token = tl.where(top > largest, start + at, token)
        largest = tl.maximum(largest, top)
    broken |= (largest == float("inf")) | (largest == float("-inf"))
    temperature = tl.load(temperatures + b)
    if (broken == 0) & (temperature > 0):
        lowest, highest = to_order(tl.full((), float("-inf"), tl.float32)), to_order(largest)
        k, p = tl.load(top_k + b), tl.load(top_p + b)
        if (k > 0) & (k < V):                                   # the largest threshold that holds k
            high = highest
            while lowest < high:
                middle = lowest + ((high - lowest + 1) >> 1)
                count, _ = held(logits, V, v_stride, from_order(middle), largest, temperature,
                                BLOCK)
                lowest = tl.where(count >= k, middle, lowest)
                high = tl.where(count >= k, high, middle - 1)
        _, weight = held(logits, V, v_stride, from_order(lowest), largest, temperature, BLOCK)
        if p < 1:                                               # the largest that holds the share p
            share, high = p * weight, highest
            while lowest < high:
                middle = lowest + ((high - lowest + 1) >> 1)
                _, weight = held(logits, V, v_stride, from_order(middle), largest, temperature,
                                 BLOCK)
                lowest = tl.where(weight >= share, middle, lowest)
                high = tl.where(weight >= share, high, middle - 1)
            _, weight = held(logits, V, v_stride, from_order(lowest), largest, temperature, BLOCK)
        target, passed, last, winner = tl.load(uniform + b) * weight, 0.0, token, V
        for start in range(0, V, BLOCK):
            v = start + tl.arange(0, BLOCK)
            z = tl.load(logits + v * v_stride, v < V, float("-inf")).to(tl.float32)
            keep = (z >= from_order(lowest)) & (v < V)
            weights = tl.where(keep, tl.exp((z - largest) / temperature), 0)
            beyond = (passed + tl.cumsum(weights) > target) & (weights > 0)
            winner = tl.minimum(winner, tl.min(tl.where(beyond, v, V)))
            last = tl.maximum(last, tl.max(tl.where(weights > 0, v, 0)))
            passed += tl.sum(weights)
        token = tl.where(winner < V, winner, last)                # V: the two sums rounded apart
    tl.store(tokens + b, tl.where(broken != 0, -1, token).to(tl.int64))


@without_gradients
def sample(logits, params):                         # (B, V), Sampling -> (B,) int64
    """The tokens; -1 for a row with a NaN, or whose largest number is infinite.
    Any strides."""
    check(logits, params)
    B, V = logits.shape
    tokens = torch.empty(B, dtype=torch.int64, device=logits.device)
    if B:
        sample_triton[B,](logits, *logits.stride(), *params, tokens, V,
                          BLOCK=min(BLOCK, triton.next_power_of_2(V)))
    return tokens


@without_gradients
def sample_torch(logits, params):                   # (B, V), Sampling -> (B,) int64
    """The oracle of `sample`, in PyTorch."""
    check(logits, params)
    z = logits.float()
    largest, tokens = z.max(-1)
    broken = ~largest.isfinite()                    # a NaN is the largest of its row
    drawn = (params.temperature > 0) & ~broken
    if drawn.any():
        rows = drawn.nonzero()[:, 0]
        tokens[rows] = draw(z[rows], largest[rows, None], Sampling(*(a[rows] for a in params)))
    return tokens.masked_fill(broken, -1)


def draw(z, largest, params):                       # (R, V), (R, 1), Sampling of R -> (R,)
    """Tokens of rows that can be drawn from."""
    weights = ((z - largest) / params.temperature[:, None]).exp().double()
    least = torch.full_like(largest, float("-inf"))
    k = params.top_k.long()[:, None]
    p = params.top_p.double()[:, None]
    if ((k > 0) | (p < 1)).any():
        ordered, places = z.sort(-1, descending=True)
        at = torch.where(k > 0, k, z.shape[1]).clamp(max=z.shape[1]) - 1
        least = ordered.gather(1, at)
        candidates = weights.gather(1, places) * (ordered >= least)
        before = candidates.cumsum(-1) - candidates
        needed = (before < p * candidates.sum(-1, keepdim=True)).sum(-1, keepdim=True)
        fewest = ordered.gather(1, needed.clamp(min=1) - 1)
        least = torch.where(p < 1, torch.maximum(least, fewest), least)
    sums = (weights * (z >= least)).cumsum(-1)
    return torch.searchsorted(sums, params.uniform.double()[:, None] * sums[:, -1:],
                              right=True)[:, 0]


def shipped():
    """What Triton makes of `sample` for Hopper, for the vocabulary of Llama 3: {name: Hopper}."""
    others = ["i32:16", 1, "*fp32", "*i32", "*fp32", "*fp32", "*i64", 128_256]
    return {f"sample_{dtype}": simulator.hopper(sample_triton, [f"*{dtype}", *others],
                                                {"BLOCK": BLOCK}) for dtype in ("fp32", "bf16")}


def check(logits, params):
    """What `sample` assumes, each with a clear message."""
    if logits.ndim != 2 or not logits.is_floating_point() or logits.shape[1] == 0:
        raise ValueError(f"sample: logits {tuple(logits.shape)} of {logits.dtype}, expected (B, V) "
                         f"of a float type, V from 1 on")
    kinds = Sampling(torch.float32, torch.int32, torch.float32, torch.float32)
    for name, a, kind in zip(Sampling._fields, params, kinds, strict=True):
        if a.shape != logits.shape[:1] or a.dtype != kind or a.device != logits.device \
                or not a.is_contiguous():
            raise ValueError(f"sample: {name} {tuple(a.shape)} of {a.dtype} on {a.device}, "
                             f"expected ({len(logits)},) of {kind} on {logits.device}, contiguous")
