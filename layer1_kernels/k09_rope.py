"""k09 · Rotary positions: rotates each pair of numbers of q and k by an angle that grows with the
token's position, in place

T: tokens   H: query heads   G: key heads   D: head width   room: positions in the tables
Reads and writes T·(H+G)·D numbers, 3 FLOPs per number: 3/8 FLOP per byte in fp32.
Memory is the limit.
Source: Su, Lu, Pan, Murtadha, Wen and Liu, "RoFormer: Enhanced Transformer with Rotary Position
Embedding", 2021.
Pairs as Hugging Face has them: number d with number d + D/2.
"""

from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from lab import simulator
from layer1_kernels.k08_rmsnorm import FLOATS, at_least_fp32

__all__ = ["rope", "rope_and_cache", "rope_and_cache_torch", "rope_cuda", "rope_torch"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
PAIRS = 1024            # of a program of rope_triton: 16 a thread of 2 warps
WIDEST = 16_384         # D
MAX_PROGRAMS = 2**31 - 1    # of a launch


# ---- by the formula


def rope_angles(room, D, theta):                    # -> 2 × (room, D/2)
    """(cos, sin) of the angle of each pair at each position, in float64.

    Pair d turns by theta^(-2d/D) radians per position.
    """
    # exercise: one speed per pair; one angle per position and pair
    speed = theta ** (-np.arange(0, D, 2) / D)                          # (D//2,)
    angle = np.arange(room)[:, None] * speed                            # (room, D//2)
    return np.cos(angle), np.sin(angle)


def rope_oracle(x, cos, sin, positions):            # (T, H, D) -> (T, H, D)
    """float64; not in place."""
    a, b = np.split(x.astype(np.float64), 2, axis=-1)                   # (T, H, D//2)
    c = cos[positions, None]
    s = sin[positions, None]                                            # (T, 1, D//2)
    return np.concatenate((a * c - b * s, b * c + a * s), axis=-1)


def rope_torch(q, k, cos, sin, positions):          # (T, H, D), (T, G, D), 2 × (room, D/2), (T,)
    """As rope, by PyTorch, one operation after another; also takes float64."""
    c = cos[positions, None]
    s = sin[positions, None]                                            # (T, 1, D//2)
    for x in (q, k):
        a, b = at_least_fp32(x).chunk(2, dim=-1)                        # (T, -1, D//2)
        x.copy_(torch.cat((a * c - b * s, b * c + a * s), dim=-1))


def rope_and_cache_torch(q, k, v, cos, sin, positions, k_pages, v_pages, slots):
    """As rope_and_cache, by PyTorch, one operation after another."""
    k = k.clone()                                   # (T, G, D)
    rope_torch(q, k, cos, sin, positions)
    stored = slots >= 0                             # (T,)
    for pages, new in ((k_pages, k), (v_pages, v)):
        pages.view(-1, *new.shape[1:])[slots[stored]] = new[stored]


# ---- the kernels


@triton.jit
def rope_heads_triton(x, cos, sin, positions, row, head, H, half, BLOCK: tl.constexpr):
    """One program per head and token, for one array. half: D/2, at most BLOCK.

    Tokens of x start `row` numbers apart, heads of a token `head` numbers apart.
    """
    t = (tl.program_id(0) // H).to(tl.int64)
    h = (tl.program_id(0) % H).to(tl.int64)
    d = tl.arange(0, BLOCK)
    inside = d < half
    first = x + t * row + h * head + d              # addresses of this head's first half
    angle = tl.load(positions + t) * half + d       # places of its angles in cos and sin
    # exercise: load c and s, then the two halves a and b; rotate; store them in the same places
    c = tl.load(cos + angle, inside)
    s = tl.load(sin + angle, inside)
    a = tl.load(first, inside)
    b = tl.load(first + half, inside)
    tl.store(first, a * c - b * s, inside)
    tl.store(first + half, b * c + a * s, inside)


def predict_bytes_ratio(H, G):
    """Your guess: the bytes that two launches of rope_heads_triton ask for (q, then k), divided by
    those of one kernel that loads a token's angles once for all its heads.

    All numbers are fp32; leave out the positions.
    H, G: heads of q and of k
    """
    # exercise: in units of half a head: what is read, what is written, what is read of cos and sin?
    n = H + G
    return n * (2 + 2 + 2) / (n * (2 + 2) + 2)


@triton.jit
def rope_triton(q, k, cos, sin, positions, q_row, q_head, k_row, k_head, H, G, half,
                WAY: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """One program per HEADS heads of a token; its heads are the H of q, then the G of k.

    WAY: 1, or -1 to rotate back.
    Tokens of q start q_row numbers apart, heads q_head; the same for k.
    """
    blocks = tl.cdiv(H + G, HEADS)                  # of a token
    t = (tl.program_id(0) // blocks).to(tl.int64)
    h = (tl.program_id(0) % blocks * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
    d = tl.arange(0, BLOCK)
    inside = (h < H + G) & (d < half)               # (HEADS, BLOCK)
    # exercise: load c and s once, s times WAY; compute the addresses of all heads; rotate them
    angle = tl.load(positions + t) * half + d       # (BLOCK,)
    c = tl.load(cos + angle, d < half)
    s = WAY * tl.load(sin + angle, d < half)
    # + d on both sides: a column of chosen addresses may lose its alignment, whole rows keep it
    first = tl.where(h < H, q + t * q_row + h * q_head + d, k + t * k_row + (h - H) * k_head + d)
    a = tl.load(first, inside)                      # (HEADS, BLOCK)
    b = tl.load(first + half, inside)
    tl.store(first, a * c - b * s, inside)
    tl.store(first + half, b * c + a * s, inside)


@triton.jit
def rope_and_cache_triton(q, k, v, cos, sin, positions, k_pages, v_pages, slots, q_row, q_head,
                          k_row, k_head, v_row, v_head, H, G, half,
                          HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """One program per HEADS heads of a token: the H of q stay in place, the G of k and G of v go to
    the token's slot.
    A slot holds G heads."""
    blocks = tl.cdiv(H + 2 * G, HEADS)
    t = (tl.program_id(0) // blocks).to(tl.int64)
    h = (tl.program_id(0) % blocks * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
    d = tl.arange(0, BLOCK)
    inside = (h < H + 2 * G) & (d < half)
    angle = tl.load(positions + t) * half + d
    slot = tl.load(slots + t)
    c = tl.load(cos + angle, d < half)
    s = tl.load(sin + angle, d < half)
    of_q = h < H                                    # (HEADS, 1)
    of_k = h < H + G                                # of q or of k; the rest is v
    g = tl.where(of_k, h - H, h - H - G)            # the head of k or v
    source = tl.where(of_q, q + t * q_row + h * q_head + d,
                      tl.where(of_k, k + t * k_row + g * k_head + d,
                               v + t * v_row + g * v_head + d))         # (HEADS, BLOCK)
    place = (slot * G + g) * 2 * half + d           # this head's place in the pages
    a = tl.load(source, inside)
    b = tl.load(source + half, inside)
    turns = inside & of_k & (of_q | (slot >= 0))
    copies = inside & (h >= H + G) & (slot >= 0)
    target = tl.where(of_q, source, k_pages + place)
    tl.store(target, a * c - b * s, turns)
    tl.store(target + half, b * c + a * s, turns)
    tl.store(v_pages + place, a, copies)
    tl.store(v_pages + place + half, b, copies)


# ---- the launchers


def rope(q, k, cos, sin, positions):                # (T, H, D), (T, G, D), 2 × (room, D/2), (T,)
    """Rotate the heads of q and k in place by the angles of their tokens' positions; returns None.

    q, k: float32, float16 or bfloat16, on the CPU or on CUDA; computed in fp32.
    They may be slices of one array: tokens and heads may start any distance apart, a head is
    contiguous. cos, sin: float32. positions: int64, from 0 to room - 1, not checked: a check would
    wait for the device.
    Any size may be 0. One launch, or one for each array where autograd records, since it allows one
    changed view at a time. q and k get gradients, cos and sin do not; a leaf that requires one is
    refused, as in every in-place operation of torch.
    """
    check("rope", FLOATS, cos, sin, positions, q=q, k=k)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        for name, x in (("q", q), ("k", k)):
            if x.is_leaf and x.requires_grad:
                raise RuntimeError(f"rope: {name} is a leaf that requires a gradient, expected the "
                                   f"result of an operation; rope works in place, so give it "
                                   f"{name}.clone()")
        for x in (q, k):
            Turn.apply(x, cos, sin, positions)
    else:
        launch(q, k, cos, sin, positions)


class Turn(torch.autograd.Function):
    """rope of one array.
    The gradient of a rotation is the rotation back."""

    @staticmethod
    def forward(ctx, x, cos, sin, positions):
        ctx.mark_dirty(x)
        ctx.save_for_backward(cos, sin, positions)
        launch(x, x[:, :0], cos, sin, positions)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        x = upstream.clone(memory_format=torch.contiguous_format)       # (T, H, D)
        launch(x, x[:, :0], *ctx.saved_tensors, way=-1)
        return x, None, None, None


def launch(q, k, cos, sin, positions, way=1):
    """rope_triton on checked arrays.
    Autograd is told that q and k have changed."""
    T, H, D = q.shape
    G = k.shape[1]
    if T * (H + G) * D:
        meta = plan(H + G, D // 2)
        rope_triton[(T * triton.cdiv(H + G, meta["HEADS"]),)](
            q, k, cos, sin, positions, *q.stride()[:2], *k.stride()[:2], H, G, D // 2,
            WAY=way, **meta)
    torch.autograd.graph.increment_version([x for x in (q, k) if not x.is_inference()])


def rope_and_cache(q, k, v, cos, sin, positions, k_pages, v_pages, slots):
    """rope on q in place; the rotated k, and v, go to slot slots[t] of the pages, in one launch.

    k, v (T, G, D), not changed. k_pages, v_pages (P, S, G, D), contiguous, of q's dtype: slot
    page·S + place is a place of a page. slots (T,), int64: each at most once, below P·S, not
    checked; -1 is skipped.
    No gradients: RuntimeError where autograd would record.
    Else as rope.
    """
    check("rope_and_cache", FLOATS, cos, sin, positions, q=q, k=k, v=v)
    check_cache(q, k, v, positions, k_pages, v_pages, slots)
    T, H, D = q.shape
    G = k.shape[1]
    if T * (H + G) * D:
        meta = plan(H + 2 * G, D // 2)
        rope_and_cache_triton[(T * triton.cdiv(H + 2 * G, meta["HEADS"]),)](
            q, k, v, cos, sin, positions, k_pages, v_pages, slots, *q.stride()[:2],
            *k.stride()[:2], *v.stride()[:2], H, G, D // 2, **meta)
    changed = (q, k_pages, v_pages)
    torch.autograd.graph.increment_version([x for x in changed if not x.is_inference()])


def plan(heads, half):
    """How rope_triton is compiled for `heads` heads per token: all in one program if they fit.

    Each thread has 16 pairs: of twenty ways the fastest on an H200 (benchmarks/LOG.md).
    """
    BLOCK = triton.next_power_of_2(half)
    HEADS = min(triton.next_power_of_2(heads), max(PAIRS // BLOCK, 1))
    return {"HEADS": HEADS, "BLOCK": BLOCK, "num_warps": min(max(HEADS * BLOCK // 512, 1), 8)}


def rope_cuda(q, k, cos, sin, positions, kernel="rope_fused_cuda"):
    """As rope, float32, by a CUDA kernel, without gradients."""
    check("rope_cuda", FLOATS[:1], cos, sin, positions, q=q, k=k)
    refuse_gradients("rope_cuda", q, k)
    T, H, D = q.shape
    G = k.shape[1]
    threads = min(-(-D // 64) * 32, 256)            # whole warps
    if T * (H + G) * D == 0:
        return
    if kernel == "rope_fused_cuda":
        KERNELS.get(kernel)(T, threads, (q, k, cos, sin, positions, *map(
            np.int64, (*q.stride()[:2], *k.stride()[:2])), H, G, D // 2))
        return
    for x in (q, k):
        heads = x.shape[1]
        if heads:
            KERNELS.get(kernel)(T * heads, threads, (x, cos, sin, positions, *map(
                np.int64, x.stride()[:2]), heads, D // 2))


def check(op, dtypes, cos, sin, positions, **arrays):
    """What the kernels assume. arrays: q, k and perhaps v, by name."""
    q = arrays["q"]
    for name, x in arrays.items():
        if x.ndim != 3 or x.shape[0] != q.shape[0] or x.shape[2] != q.shape[2]:
            raise ValueError(f"{op}: q has shape {tuple(q.shape)} and {name} {tuple(x.shape)}, "
                             f"expected (tokens, heads, head width), tokens and width the same")
        if x.dtype not in dtypes:
            raise TypeError(f"{op}: {name} is {x.dtype}, expected {' or '.join(map(str, dtypes))}")
        if x.dtype != q.dtype or x.device != q.device:
            raise TypeError(f"{op}: q is {q.dtype} on {q.device} and {name} {x.dtype} on "
                            f"{x.device}, expected the same")
        check_strides(op, name, x)
    T, _, D = q.shape
    heads = sum(x.shape[1] for x in arrays.values())
    if D % 2 or D > WIDEST or T * max(heads, 1) > MAX_PROGRAMS:
        raise ValueError(f"{op}: {T} tokens with {heads} heads of {D} numbers, expected an even "
                         f"number up to {WIDEST}, and at most {MAX_PROGRAMS} heads in all")
    for name, table in (("cos", cos), ("sin", sin)):
        expect(op, name, table, (len(cos), D // 2), torch.float32, q.device)
    expect(op, "positions", positions, (T,), torch.int64, q.device)


def check_strides(op, name, x):
    """A head is contiguous, and no number is in two heads: it would be rotated twice."""
    if x.numel() == 0:
        return
    if x.stride(2) != 1 and x.shape[2] > 1:
        raise ValueError(f"{op}: {name} has strides {x.stride()}, expected the numbers of a head "
                         f"one after the other, the last stride 1")
    taken = x.shape[2]                              # numbers from the first to the last, so far
    for stride, size in sorted(zip(x.stride()[:2], x.shape[:2], strict=True)):
        if size > 1 and stride < taken:
            raise ValueError(f"{op}: {name} has shape {tuple(x.shape)} and strides {x.stride()}: "
                             f"its heads overlap, expected each number once")
        taken += stride * (size - 1)


def check_cache(q, k, v, positions, k_pages, v_pages, slots):
    """What rope_and_cache_triton assumes in addition."""
    if v.shape != k.shape:
        raise ValueError(f"rope_and_cache: k has shape {tuple(k.shape)} and v {tuple(v.shape)}, "
                         f"expected the same")
    for name, pages in (("k_pages", k_pages), ("v_pages", v_pages)):
        if pages.ndim != 4:
            raise ValueError(f"rope_and_cache: {name} has shape {tuple(pages.shape)}, expected "
                             f"(pages, slots a page, heads, head width)")
        expect("rope_and_cache", name, pages, (*k_pages.shape[:2], *k.shape[1:]), q.dtype, q.device)
    expect("rope_and_cache", "slots", slots, positions.shape, torch.int64, q.device)
    refuse_gradients("rope_and_cache", q, k, v, k_pages, v_pages)


def expect(op, name, x, shape, dtype, device):
    """This shape, dtype and device, contiguous."""
    if tuple(x.shape) != shape:
        raise ValueError(f"{op}: {name} has shape {tuple(x.shape)}, expected {shape}")
    if x.dtype != dtype or x.device != device:
        raise TypeError(f"{op}: {name} is {x.dtype} on {x.device}, expected {dtype} on {device}")
    if not x.is_contiguous():
        raise ValueError(f"{op}: {name} has strides {x.stride()}, expected it to be contiguous")


def refuse_gradients(op, *arrays):
    if torch.is_grad_enabled() and any(x.requires_grad for x in arrays):
        raise RuntimeError(f"{op}: an array requires a gradient, which {op} does not give; "
                           f"rope does, or use torch.no_grad()")
