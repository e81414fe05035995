"""k13 · Flash attention: out = softmax(q · kᵀ · scale) · v, its matrix of scores never stored

B: batch   T: queries   N: keys and values (causal: the T queries are the last T of the N tokens)
H: query heads   G: kv heads; query head h reads kv head h // (H // G)   D: head width
m, s: the maximum of a query's scores so far, and the sum of exp2(score - m); both in base 2
A pair of query and key costs 4·D FLOPs.
Least bytes: q, k, v read, out written, each once.
For T = N and G = H that is N / 2 FLOPs per byte in fp16 (N / 4 if causal): compute-bound.
Algorithm: Dao, Fu, Ermon, Rudra and Ré, "FlashAttention", 2022.
Order of the loops: Dao, "FlashAttention-2", 2023.
"""

import math
from functools import partial
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gpu import properties
from layer1_kernels.gradients import differentiable, without_gradients

__all__ = ["flash_attention", "flash_attention_cuda", "flash_attention_torch"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
CUDA_TILE, CUDA_THREADS = 16, 128       # of the .cu: queries, and keys, of a tile; a block
LOG2E = math.log2(math.e)
LN2 = tl.constexpr(math.log(2))


def flash_attention_oracle(q, k, v, causal, scale):
    """float64, by the book: (B, T, H, D), 2 × (B, N, G, D) -> (B, T, H, D), (B, T, H)."""
    _, T, H, _ = q.shape
    _, N, G, _ = k.shape
    k, v = (np.repeat(x, H // G, axis=2).astype(np.float64) for x in (k, v))    # (B, N, H, D)
    scores = np.einsum("bthd,bnhd->bthn", q.astype(np.float64), k) * scale      # (B, T, H, N)
    if causal:
        later = np.arange(N) > np.arange(N - T, N)[:, None]                     # (T, N)
        scores = np.where(later[:, None], -np.inf, scores)                      # (B, T, H, N)
    m = scores.max(-1, keepdims=True)
    weights = np.exp(scores - m)                                                # (B, T, H, N)
    s = weights.sum(-1, keepdims=True)
    return np.einsum("bthn,bnhd->bthd", weights / s, v), (m + np.log(s))[..., 0]


def flash_attention_torch(q, k, v, causal, scale):
    """The plain formula in PyTorch, fp32 inside (float64 for float64).
    As flash_attention, and for heads of any width."""
    check("flash_attention_torch", q, k, v, causal, scale, torch.float64)
    B, T, H, D = q.shape
    _, N, G, _ = k.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    queries = q.to(wide).reshape(B, T, G, H // G, D)
    scores = torch.einsum("btgrd,bngd->btgrn", queries, k.to(wide)) * scale
    if causal:
        later = torch.ones(T, N, dtype=torch.bool, device=q.device).triu(N - T + 1)     # (T, N)
        scores = scores.masked_fill(later[:, None, None], -math.inf)
    lse = scores.logsumexp(-1)
    out = torch.einsum("btgrn,bngd->btgrd", (scores - lse[..., None]).exp(), v.to(wide))
    return out.reshape(B, T, H, D).to(q.dtype), lse.reshape(B, T, H)


# ---- counting


def predict_traffic_ratio():
    """Bytes moved by three kernels that store the matrix, divided by those of one that does not.

    One head, not causal, T = N = 4096, D = 128, every number 2 bytes.
    Each kernel reads each of its inputs once and writes its output once.
    """
    # exercise: q, k, v, out have N · D numbers, the matrix has N · N. Which kernel moves which?
    N = 4096
    D = 128
    return (4 * N * D + 4 * N * N) / (4 * N * D)


def count_tiles(T, N, BM, BN):
    """(visited, whole): how many tiles of BM queries by BN keys a causal kernel visits, and how
    many of those need no mask.
    T <= N.

    visited: at least one query sees at least one key   whole: every query sees all BN keys
    Tiles start at query 0 and key 0. The last tile of queries may have fewer than BM queries and
    still be whole; a tile with fewer than BN keys is never whole.
    """
    # exercise: in a tile of queries, how many keys does the last one see, and how many the first?
    visited = whole = 0
    for first in range(0, T, BM):
        last = min(first + BM, T) - 1
        visited += -(-(N - T + last + 1) // BN)     # partly visible counts too
        whole += (N - T + first + 1) // BN
    return visited, whole


# ---- parts of the Triton kernels


@triton.jit
def attend_triton(queries, keys, values, mask, m, s, mixed, scale):
    """Add one tile of keys and values to the state of a tile of queries: new (m, s, mixed).

    queries (BM, BD)   keys, values (BN, BD)
    mask (BM, BN): True where the query sees the key; None: every query sees every key
    m, s (BM,): maximum and sum so far, in base 2; m starts at -inf (k14: at a very low number)
    mixed (BM, BD): the sum of exp2(score - m) · value so far
    scale: positive, already multiplied by log2(e)
    """
    # exercise: scores, their new maximum, weights; rescale s and mixed to it, then add to them
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    if mask is not None:
        scores = tl.where(mask, scores, -float("inf"))
    larger = tl.maximum(m, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - larger[:, None])
    fade = tl.exp2(m - larger)
    s = s * fade + tl.sum(weights, 1)
    mixed = tl.dot(weights.to(values.dtype), values, mixed * fade[:, None], input_precision="ieee")
    return larger, s, mixed


@triton.jit
def place(T, N, H, CAUSAL: tl.constexpr, BM: tl.constexpr):
    """What this program has to do: (b, h, first, last, common, reach).

    Batch b, head h, the queries from `first` on   last (BM,): the last key that each query sees
    common: the number of keys that all its queries see   reach: that at least one of them sees
    """
    tiles = tl.cdiv(T, BM)
    pair = tl.program_id(0) // tiles
    first = (tiles - 1 - tl.program_id(0) % tiles) * BM     # causal: the most keys start first
    last, common, reach = tl.full([BM], N - 1, tl.int32), N, N
    if CAUSAL:
        last = tl.minimum(N - T + first + tl.arange(0, BM), N - 1)
        common, reach = N - T + first + 1, tl.minimum(N - T + first + BM, N)
    return (pair // H).to(tl.int64), (pair % H).to(tl.int64), first, last, common, reach


@triton.jit
def load_tile(x, stride, first, bound, ROWS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """ROWS rows of a matrix of D columns, from row `first` on: (ROWS, BD).

    stride: numbers from one row to the next.
    Zeros in columns from D on, and in rows from `bound` on; None: no bound, all the rows exist.
    """
    r, d = first + tl.arange(0, ROWS), tl.arange(0, BD)
    x += r.to(tl.int64)[:, None] * stride + d[None, :]
    if bound is not None:
        tile = tl.load(x, (r < bound)[:, None] & (d < D)[None, :], 0)
    elif D < BD:
        tile = tl.load(x, (d < D)[None, :], 0)
    else:
        tile = tl.load(x)
    return tile


@triton.jit
def store_tile(out, lse, b, h, first, m, s, mixed, T, H, D: tl.constexpr):
    """Write mixed / s to out (B, T, H, D) and lse (B, T, H), for the queries that exist."""
    BM: tl.constexpr = mixed.shape[0]
    t, d = first + tl.arange(0, BM), tl.arange(0, mixed.shape[1])
    row = (b * T + t) * H + h
    inside = (t < T)[:, None] & (d < D)[None, :]
    tl.store(out + row[:, None] * D + d[None, :], mixed / s[:, None], inside)
    tl.store(lse + row, (m + tl.log2(s)) * LN2, t < T)


# ---- the ladder: visit every tile; skip the future; no mask on whole tiles


@triton.jit
def flash_every_tile_triton(q, k, v, out, lse, scale, T, N, H, G, q_b, q_t, q_h, k_b, k_n, k_g,
                            v_b, v_n, v_g, CAUSAL: tl.constexpr, D: tl.constexpr,
                            BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    """One program per tile of BM queries of one head; it visits all N keys, BN at a time."""
    b, h, first, last, common, reach = place(T, N, H, CAUSAL, BM)
    k += b * k_b + h // (H // G) * k_g
    v += b * v_b + h // (H // G) * v_g
    queries = load_tile(q + b * q_b + h * q_h, q_t, first, T, BM, D, BD)
    m, s = tl.full([BM], -float("inf"), tl.float32), tl.zeros([BM], tl.float32)
    mixed = tl.zeros([BM, BD], tl.float32)
    for n in range(0, N, BN):
        keys = load_tile(k, k_n, n, N, BN, D, BD)
        values = load_tile(v, v_n, n, N, BN, D, BD)
        mask = n + tl.arange(0, BN)[None, :] <= last[:, None]
        m, s, mixed = attend_triton(queries, keys, values, mask, m, s, mixed, scale)
    store_tile(out, lse, b, h, first, m, s, mixed, T, H, D)


@triton.jit
def flash_skip_triton(q, k, v, out, lse, scale, T, N, H, G, q_b, q_t, q_h, k_b, k_n, k_g,
                      v_b, v_n, v_g, CAUSAL: tl.constexpr, D: tl.constexpr,
                      BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    """As flash_every_tile_triton, but it stops after the last key that any of its queries sees."""
    b, h, first, last, common, reach = place(T, N, H, CAUSAL, BM)
    k += b * k_b + h // (H // G) * k_g
    v += b * v_b + h // (H // G) * v_g
    queries = load_tile(q + b * q_b + h * q_h, q_t, first, T, BM, D, BD)
    m, s = tl.full([BM], -float("inf"), tl.float32), tl.zeros([BM], tl.float32)
    mixed = tl.zeros([BM, BD], tl.float32)
    for n in range(0, reach, BN):
        keys = load_tile(k, k_n, n, N, BN, D, BD)
        values = load_tile(v, v_n, n, N, BN, D, BD)
        mask = n + tl.arange(0, BN)[None, :] <= last[:, None]
        m, s, mixed = attend_triton(queries, keys, values, mask, m, s, mixed, scale)
    store_tile(out, lse, b, h, first, m, s, mixed, T, H, D)


@triton.jit
def flash_triton(q, k, v, out, lse, scale, T, N, H, G, q_b, q_t, q_h, k_b, k_n, k_g,
                 v_b, v_n, v_g, CAUSAL: tl.constexpr, D: tl.constexpr,
                 BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    """As flash_skip_triton, but tiles that all its queries see completely come first, without a
    bound or a mask."""
    b, h, first, last, common, reach = place(T, N, H, CAUSAL, BM)
    k += b * k_b + h // (H // G) * k_g
    v += b * v_b + h // (H // G) * v_g
    queries = load_tile(q + b * q_b + h * q_h, q_t, first, T, BM, D, BD)
    m, s = tl.full([BM], -float("inf"), tl.float32), tl.zeros([BM], tl.float32)
    mixed = tl.zeros([BM, BD], tl.float32)
    # exercise: one loop over the whole tiles, one over the rest up to `reach`; then store_tile
    whole = common // BN * BN
    for n in range(0, whole, BN):
        keys = load_tile(k, k_n, n, None, BN, D, BD)
        values = load_tile(v, v_n, n, None, BN, D, BD)
        m, s, mixed = attend_triton(queries, keys, values, None, m, s, mixed, scale)
    for n in range(whole, reach, BN):
        keys = load_tile(k, k_n, n, N, BN, D, BD)
        values = load_tile(v, v_n, n, N, BN, D, BD)
        mask = n + tl.arange(0, BN)[None, :] <= last[:, None]
        m, s, mixed = attend_triton(queries, keys, values, mask, m, s, mixed, scale)
    store_tile(out, lse, b, h, first, m, s, mixed, T, H, D)


# ---- launchers


def tiles(T, D, itemsize):
    """What a launch of flash_triton is compiled for: its tiles, warps and stages.

    More stages hide more of the latency of a load, as far as the shared memory of a block holds
    them. fp32 goes without tensor cores: more keys at a time, or stages, would spill registers.
    """
    BD = triton.next_power_of_2(D)
    BM = min(128 if itemsize == 2 else 64, max(16, triton.next_power_of_2(T)))
    BN = 64 if itemsize == 2 else 16
    room = properties()["max_shared_mem"] // (itemsize * BD)      # rows of a tile
    stages = min(3 if itemsize == 2 else 2, (room - BM) // (2 * BN))
    warps = 8 if BM == 128 or BM == 64 and itemsize == 4 else 4
    return {"BM": BM, "BN": BN, "BD": BD, "num_warps": warps, "num_stages": max(1, stages)}


def launch(kernel, q, k, v, causal, scale, sizes):
    """(out, lse) by one of the flash kernels. sizes: BM, BN and BD, as tiles() has them."""
    B, T, H, D = q.shape
    _, N, G, _ = k.shape
    out = torch.empty((B, T, H, D), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, T, H), dtype=torch.float32, device=q.device)
    if out.numel():
        kernel[(triton.cdiv(T, sizes["BM"]) * B * H,)](
            q, k, v, out, lse, scale * LOG2E, T, N, H, G, *q.stride()[:3], *k.stride()[:3],
            *v.stride()[:3], CAUSAL=causal, D=D, **sizes)
    return out, lse


@partial(differentiable, oracle=flash_attention_torch)
def flash_attention(q, k, v, causal, scale):
    """softmax(q · kᵀ · scale) · v by the Triton kernel, and the logarithm of each softmax's sum.

    q (B, T, H, D)   k, v (B, N, G, D) -> out (B, T, H, D) as q, lse (B, T, H) float32, natural
    causal: the T queries are the last T of N tokens, and query t sees the keys n <= N - T + t
    scale: positive, as a rule 1 / sqrt(D)
    float32 (IEEE), float16 or bfloat16, on CPU or CUDA; D a multiple of 16 up to 128; H a multiple
    of G. Any strides as long as the last is 1. B or T may be 0. ValueError or TypeError otherwise.
    Gradients of out and lse are those of k18, or of flash_attention_torch where k18 is not there.
    """
    check("flash_attention", q, k, v, causal, scale)
    check_width("flash_attention", q.shape[3])
    sizes = tiles(q.shape[1], q.shape[3], q.element_size())
    return launch(flash_triton, q, k, v, causal, scale, sizes)


@without_gradients
def flash_attention_cuda(q, k, v, causal, scale):
    """flash_attention by the CUDA kernel: float32 only, no gradients.
    Tensors that are not contiguous are copied first."""
    check("flash_attention_cuda", q, k, v, causal, scale)
    check_width("flash_attention_cuda", q.shape[3])
    if q.dtype != torch.float32:
        raise ValueError(f"flash_attention_cuda: q, k and v are {q.dtype}, expected torch.float32")
    q, k, v = (x.contiguous() for x in (q, k, v))
    B, T, H, D = q.shape
    _, N, G, _ = k.shape
    out = torch.empty_like(q)
    lse = q.new_empty(B, T, H)
    if out.numel():
        KERNELS.get("flash_cuda")(
            triton.cdiv(T, CUDA_TILE) * B * H, CUDA_THREADS,
            (q, k, v, out, lse, scale * LOG2E, T, N, H, G, D, int(causal)))
    return out, lse


def check(name, q, k, v, causal, scale, *more_dtypes):
    """ValueError or TypeError unless the arguments are what the kernels assume."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.ndim == k.ndim == v.ndim == 4 or k.shape != v.shape or \
            (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        raise ValueError(f"{name}: {shapes}; expected q (B, T, H, D) and k, v (B, N, G, D)")
    _, T, H, _ = q.shape
    _, N, G, _ = k.shape
    if not G or H % G:
        raise ValueError(f"{name}: {H} query heads, expected a multiple of the {G} kv heads")
    if causal and T > N:
        raise ValueError(f"{name}: {T} queries and {N} keys; causal queries are the last of the "
                         f"tokens, expected at most {N}")
    if T and not N:
        raise ValueError(f"{name}: {T} queries and no key; expected at least one key")
    if not scale > 0:
        raise ValueError(f"{name}: scale is {scale}, expected a positive number")
    known = (torch.float32, torch.float16, torch.bfloat16, *more_dtypes)
    if not q.dtype == k.dtype == v.dtype or q.dtype not in known:
        raise TypeError(f"{name}: q is {q.dtype}, k {k.dtype}, v {v.dtype}; expected one of "
                        f"{', '.join(map(str, known))} for all three")
    if not q.device == k.device == v.device:
        raise ValueError(f"{name}: q is on {q.device}, k on {k.device}, v on {v.device}; expected "
                         f"one device")
    for letter, x in (("q", q), ("k", k), ("v", v)):
        if x.stride(3) != 1:
            raise ValueError(f"{name}: {letter} has strides {x.stride()}, expected the last to be "
                             f"1; {letter}.contiguous() makes it so")
    if max(T, N) >= 2**31 - 128:
        raise ValueError(f"{name}: {T} queries and {N} keys, expected fewer than 2^31 - 128")


def check_width(name, D):
    """ValueError unless the kernels take heads of width D; the plain formula takes any width."""
    if D not in range(16, 129, 16):
        raise ValueError(f"{name}: heads of width {D}, expected a multiple of 16, 16 to 128")
