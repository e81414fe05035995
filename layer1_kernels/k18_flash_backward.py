"""k18 · Gradients of flash attention from what it leaves: q, k, v, out and lse.
No T × N array

B T N H G D as in k13; BM BN: queries and keys of a tile   S: scores, scale · q · kᵀ
grad_out, grad_lse: the upstream gradients dO and dlse, of a loss by out and by lse
P = exp(S - lse), the weights   dP = dO · vᵀ   delta = sum over D of dO · out, less dlse
dS = P · (dP - delta)   dv = Pᵀ · dO   dq = scale · dS · k   dk = scale · dSᵀ · q
Least bytes: q, k, v, out, dO, lse read, dq, dk, dv written, each once; a tile costs some products
of 2·BM·BN·D FLOPs.
Arithmetic decides, as in k13.
The formulas are those of Dao and others, "FlashAttention", 2022, appendix B. Two passes, which
share no sum, give the same bits every time.
"""

import math

import torch
import triton
import triton.language as tl

from layer1_kernels.k13_flash_attention import check, check_width, load_tile, place

__all__ = ["flash_backward"]

LOG2E = tl.constexpr(math.log2(math.e))
ROWS = 16                               # of delta_triton: a program's
# BM, BN, warps, stages by pass, bytes of a number and width up to 64 or up to 128. Chosen from what
# Triton makes of them for Hopper (bench/k18_flash_backward.py, shipped): no spills, wgmma in 16
# bits. For 16 bits and widths up to 128 from times on an H200, though the keys pass spills so: it
# takes 1.29 ms, and 1.60 with the best tiles that spill nothing.
TILES = {("keys", 2, 64): (64, 128, 8, 2), ("keys", 2, 128): (64, 64, 4, 2),
         ("queries", 2, 64): (128, 64, 8, 2), ("queries", 2, 128): (128, 64, 8, 3),
         ("keys", 4, 64): (16, 32, 4, 2), ("keys", 4, 128): (16, 32, 4, 2),
         ("queries", 4, 64): (32, 16, 4, 2), ("queries", 4, 128): (32, 16, 4, 2)}


# ---- what is to be counted


def predict_products():
    """Products of tiles that the two passes make, over those of the forward pass.

    A product is one tl.dot of a tile that is visited; all three visit the same tiles.
    """
    # exercise: which of S, dP, dv, dk and dq does each pass need to make?
    forward = 2
    keys_pass = 4
    queries_pass = 3
    return (keys_pass + queries_pass) / forward


# ---- one number a row


@triton.jit
def delta_triton(out, grad_out, grad_lse, delta, rows, D, BD: tl.constexpr, BLOCK: tl.constexpr):
    """delta[row] = the sum over D of grad_out · out, less grad_lse.
    BLOCK rows a program.

    out, grad_out: (rows, D)   grad_lse, delta: (rows,) fp32   BD: D, rounded up to a power of two
    """
    row, d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BD)
    at = row.to(tl.int64)[:, None] * D + d[None, :]             # (BLOCK, BD)
    inside = (row < rows)[:, None] & (d < D)[None, :]
    # exercise: load both rows as fp32, add up their products, subtract grad_lse, store
    o = tl.load(out + at, inside, 0).to(tl.float32)
    do = tl.load(grad_out + at, inside, 0).to(tl.float32)
    lse_part = tl.load(grad_lse + row, row < rows, 0)
    tl.store(delta + row, tl.sum(o * do, 1) - lse_part, row < rows)


# ---- one tile


@triton.jit
def load_rows(lse, delta, b, h, first, T, H, ROWS: tl.constexpr):
    """lse in base 2, and delta, (ROWS,) each, of one head's queries from `first` on; 0 from T on.

    lse, delta: (B, T, H)
    """
    t = first + tl.arange(0, ROWS)
    row = (b * T + t) * H + h
    return tl.load(lse + row, t < T, 0) * LOG2E, tl.load(delta + row, t < T, 0)


@triton.jit
def gradient_tile_triton(left, right, left_v, right_v, lse, delta, mask, scale):
    """(weights, grad_scores) of a tile, fp32, a row for each row of left, a column for each of
    right.

    left, left_v: (rows, BD)   right, right_v: (columns, BD)   mask: bool, or None: all is seen
    Queries on the left: left_v are rows of grad_out, right_v values, lse and delta (rows, 1).
    Keys on the left: left_v are values, right_v rows of grad_out, lse and delta (1, columns).
    lse and scale hold log2(e) already.
    """
    # exercise: scores, weights (0 where not seen), gradients of weights, gradients of scores
    scores = tl.dot(left, tl.trans(right), input_precision="ieee")
    weights = tl.exp2(scores * scale - lse)
    if mask is not None:
        weights = tl.where(mask, weights, 0)
    grad_weights = tl.dot(left_v, tl.trans(right_v), input_precision="ieee")
    return weights, weights * (grad_weights - delta)


@triton.jit
def one_tile_triton(q, k, v, grad_out, lse, delta, weights, grad_scores, scale, T, N,
                    TURNED: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Weights and gradients of scores of one tile, to look at: (T, BN), or (BN, T) if TURNED.

    q, grad_out: (T, D)   k, v: (N, D)   lse, delta: (T,)   T <= BM   Keys from N on are not seen.
    """
    queries, grads = load_tile(q, D, 0, T, BM, D, D), load_tile(grad_out, D, 0, T, BM, D, D)
    keys, values = load_tile(k, D, 0, N, BN, D, D), load_tile(v, D, 0, N, BN, D, D)
    t, n = tl.arange(0, BM), tl.arange(0, BN)
    lse_t, delta_t = load_rows(lse, delta, 0, 0, 0, T, 1, BM)
    if TURNED:
        tile, grad_tile = gradient_tile_triton(keys, queries, values, grads, lse_t[None, :],
                                               delta_t[None, :], (n < N)[:, None], scale * LOG2E)
        at, inside = n[:, None] * T + t[None, :], (n >= 0)[:, None] & (t < T)[None, :]
    else:
        tile, grad_tile = gradient_tile_triton(queries, keys, grads, values, lse_t[:, None],
                                               delta_t[:, None], (n < N)[None, :], scale * LOG2E)
        at, inside = t[:, None] * BN + n[None, :], (t < T)[:, None] & (n >= 0)[None, :]
    tl.store(weights + at, tile, inside)
    tl.store(grad_scores + at, grad_tile, inside)


# ---- what both passes need


@triton.jit
def place_keys(N, G, BN: tl.constexpr):
    """This program's part of the keys pass: batch b, kv head g, its first key."""
    tiles = tl.cdiv(N, BN)
    pair = tl.program_id(0) // tiles
    n0 = tl.program_id(0) % tiles * BN                      # causal: the most queries start first
    return (pair // G).to(tl.int64), (pair % G).to(tl.int64), n0


@triton.jit
def store_rows(x, tile, stride, first, bound, D: tl.constexpr):
    """A tile (ROWS, BD) into a matrix (·, D) from row `first` on, up to row `bound`."""
    r, d = first + tl.arange(0, tile.shape[0]), tl.arange(0, tile.shape[1])
    inside = (r < bound)[:, None] & (d < D)[None, :]
    tl.store(x + r.to(tl.int64)[:, None] * stride + d[None, :], tile, inside)


# ---- the two passes


@triton.jit
def first_query(n0, T, N, BM: tl.constexpr, CAUSAL: tl.constexpr):
    """The first query of the first tile of BM queries that sees some key from n0 on: a multiple
    of BM."""
    # exercise: which query is the first that sees key n0? In which tile is it?
    first = 0
    if CAUSAL:
        first = tl.maximum(n0 - (N - T), 0) // BM * BM
    return first


@triton.jit
def starts_triton(starts, T, N, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """first_query of each tile of BN keys, to look at: one program each."""
    tile = tl.program_id(0)
    tl.store(starts + tile, first_query(tile * BN, T, N, BM, CAUSAL))


@triton.jit
def keys_pass_triton(q, k, v, grad_out, lse, delta, grad_k, grad_v, scale, T, N, H, G, q_b, q_t,
                     q_h, k_b, k_n, k_g, v_b, v_n, v_g, CAUSAL: tl.constexpr, D: tl.constexpr,
                     BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    """grad_k and grad_v of BN keys of one kv head: sums over all queries of all heads that read it.

    q, k, v with strides   grad_out (B, T, H, D)   lse, delta (B, T, H)
    grad_k, grad_v (B, N, G, D)
    """
    b, g, n0 = place_keys(N, G, BN)
    keys = load_tile(k + b * k_b + g * k_g, k_n, n0, N, BN, D, BD)
    values = load_tile(v + b * v_b + g * v_g, v_n, n0, N, BN, D, BD)
    n = n0 + tl.arange(0, BN)
    at = (b * N * G + g) * D                                    # of the results
    dk, dv = tl.zeros([BN, BD], tl.float32), tl.zeros([BN, BD], tl.float32)
    # exercise: each head that reads g, each tile of queries: add to dv and dk; then store_rows
    for h in range(g * (H // G), (g + 1) * (H // G)):
        for t0 in range(first_query(n0, T, N, BM, CAUSAL), T, BM):
            queries = load_tile(q + b * q_b + h * q_h, q_t, t0, T, BM, D, BD)
            grads = load_tile(grad_out + (b * T * H + h) * D, H * D, t0, T, BM, D, BD)
            lse_t, delta_t = load_rows(lse, delta, b, h, t0, T, H, BM)
            mask = None
            if CAUSAL:
                mask = (n - (N - T))[:, None] <= t0 + tl.arange(0, BM)[None, :]
            weights, grad_scores = gradient_tile_triton(
                keys, queries, values, grads, lse_t[None, :], delta_t[None, :], mask, scale * LOG2E)
            dv = tl.dot(weights.to(grads.dtype), grads, dv, input_precision="ieee")
            dk = tl.dot(grad_scores.to(queries.dtype), queries, dk, input_precision="ieee")
    store_rows(grad_k + at, dk * scale, G * D, n0, N, D)
    store_rows(grad_v + at, dv, G * D, n0, N, D)


@triton.jit
def queries_pass_triton(q, k, v, grad_out, lse, delta, grad_q, scale, T, N, H, G, q_b, q_t, q_h,
                        k_b, k_n, k_g, v_b, v_n, v_g, CAUSAL: tl.constexpr, D: tl.constexpr,
                        BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    """grad_q of BM queries of one head: a sum over all keys that they see.
    Arrays as above."""
    b, h, first, last, common, reach = place(T, N, H, CAUSAL, BM)
    at = (b * T * H + h) * D
    queries = load_tile(q + b * q_b + h * q_h, q_t, first, T, BM, D, BD)
    grads = load_tile(grad_out + at, H * D, first, T, BM, D, BD)
    lse_t, delta_t = load_rows(lse, delta, b, h, first, T, H, BM)
    dq = tl.zeros([BM, BD], tl.float32)
    # exercise: for each tile of keys up to `reach`: gradients of scores, into dq; then store_rows
    g = h // (H // G)
    for n0 in range(0, reach, BN):
        keys = load_tile(k + b * k_b + g * k_g, k_n, n0, N, BN, D, BD)
        values = load_tile(v + b * v_b + g * v_g, v_n, n0, N, BN, D, BD)
        mask = n0 + tl.arange(0, BN)[None, :] <= last[:, None]
        _, grad_scores = gradient_tile_triton(
            queries, keys, grads, values, lse_t[:, None], delta_t[:, None], mask, scale * LOG2E)
        dq = tl.dot(grad_scores.to(keys.dtype), keys, dq, input_precision="ieee")
    store_rows(grad_q + at, dq * scale, H * D, first, T, D)


# ---- the launcher


def tiles(which, T, N, D, itemsize):
    """What a launch of a pass, "keys" or "queries", is compiled for: its tiles, warps, stages."""
    BM, BN, warps, stages = TILES[which, itemsize, 64 if D <= 64 else 128]
    BM = min(BM, max(16, triton.next_power_of_2(T)))
    BN = min(BN, max(16, triton.next_power_of_2(N)))
    warps = min(warps, max(4, BM * BN // 512))
    return {"BM": BM, "BN": BN, "BD": triton.next_power_of_2(D), "num_warps": warps,
            "num_stages": stages}


def launch(kernels, q, k, v, out, lse, grad_out, grad_lse, causal, scale, keys, queries):
    """(grad_q, grad_k, grad_v) by three kernels: of delta, of the keys pass, of the queries pass.

    out, grad_out, lse, grad_lse: contiguous   keys, queries: sizes of a pass as tiles() gives them
    """
    B, T, H, D = q.shape
    _, N, G, _ = k.shape
    delta_kernel, keys_kernel, queries_kernel = kernels
    grad_q, grad_k, grad_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device)
                              for x in (q, k, v))
    delta = torch.empty_like(lse)
    delta_kernel[(triton.cdiv(B * T * H, ROWS),)](
        out, grad_out, grad_lse, delta, B * T * H, D, BD=triton.next_power_of_2(D), BLOCK=ROWS)
    sizes = scale, T, N, H, G, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], causal, D
    keys_kernel[(triton.cdiv(N, keys["BN"]) * B * G,)](
        q, k, v, grad_out, lse, delta, grad_k, grad_v, *sizes, **keys)
    queries_kernel[(triton.cdiv(T, queries["BM"]) * B * H,)](
        q, k, v, grad_out, lse, delta, grad_q, *sizes, **queries)
    return grad_q, grad_k, grad_v


def flash_backward(q, k, v, out, lse, grad_out, grad_lse, causal, scale):
    """(grad_q, grad_k, grad_v), as q, k and v, by three launches of Triton kernels.

    q, k, v, causal, scale as of k13's flash_attention, out and lse its results
    grad_out (B, T, H, D): gradient by out, of q's dtype   grad_lse (B, T, H): by lse, float32, or
    None for zeros.
    Any strides.
    Sums are fp32; ValueError or TypeError for other arguments.
    """
    check("flash_backward", q, k, v, causal, scale)
    check_width("flash_backward", q.shape[3])
    grad_lse = torch.zeros_like(lse) if grad_lse is None else grad_lse
    check_results(q, out=out, lse=lse, grad_out=grad_out, grad_lse=grad_lse)
    if not q.numel():
        return tuple(torch.zeros_like(x) for x in (q, k, v))
    results = (x.contiguous() for x in (out, lse, grad_out, grad_lse))
    T, N, D = q.shape[1], k.shape[1], q.shape[3]
    return launch((delta_triton, keys_pass_triton, queries_pass_triton), q, k, v, *results, causal,
                  scale, *(tiles(which, T, N, D, q.itemsize) for which in ("keys", "queries")))


def check_results(q, **arrays):
    """What flash_backward assumes of the forward pass's results and of their gradients."""
    for name, x in arrays.items():
        whole = "out" in name
        like = "q" if whole else "(B, T, H)"
        shape = q.shape if whole else q.shape[:3]
        if x.shape != shape:
            raise ValueError(f"flash_backward: {name} {tuple(x.shape)}, expected the shape of "
                             f"{like}, {tuple(shape)}")
        dtype = q.dtype if whole else torch.float32
        if x.dtype != dtype or x.device != q.device:
            raise TypeError(f"flash_backward: {name} is {x.dtype} on {x.device}, expected {dtype} "
                            f"on {q.device}")
