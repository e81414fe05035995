"""k14 · Paged attention: keys and values lie in pages; a sequence's block table says in which

B: sequences   T: new tokens of this step, all sequences, one after the other
P: pages   S: slots of a page   slot: page · S + place in the page
N: length of a sequence, its new tokens included
H: query heads   G: kv heads   R = H // G: query heads of a kv head   D: head width
In decoding, a sequence reads 2·N·G·D numbers and does 4·N·H·D FLOPs: R FLOPs per byte in fp16, so
memory decides.
Pages: Kwon and others, "Efficient memory management for large language model serving with
PagedAttention", 2023.
Parts are merged by Milakov and Gimelshein's recurrence, k07.
"""

from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gpu import properties
from layer1_kernels.gradients import without_gradients
from layer1_kernels.k13_flash_attention import (
    LOG2E,
    attend_triton,
    check_width,
    flash_attention_torch,
)

__all__ = ["paged_attention", "paged_attention_cuda", "paged_attention_torch", "write_kv",
           "write_kv_torch"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
THREADS = 128           # a block of the .cu
ROWS = 64               # most query heads per kv head
SHORTEST = 256          # keys for each split, about: a merge should cost less than a split gains
LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


def paged_attention_oracle(q, k_pages, v_pages, block_tables, cu_q, lens, scale):
    """float64, token by token: (T, H, D), 2 × (P, S, G, D), (B, pages), (B + 1,), (B,)."""
    T, H, D = q.shape
    _, S, G, _ = k_pages.shape
    out = np.empty((T, H, D))
    for b, N in enumerate(lens):
        slots = [block_tables[b, n // S] * S + n % S for n in range(N)]
        keys, values = (x.reshape(-1, G, D)[slots].astype(np.float64) for x in (k_pages, v_pages))
        for t in range(cu_q[b], cu_q[b + 1]):
            visible = N - (cu_q[b + 1] - 1 - t)
            for h in range(H):
                scores = keys[:visible, h // (H // G)] @ q[t, h].astype(np.float64) * scale
                weights = np.exp(scores - scores.max())
                out[t, h] = weights / weights.sum() @ values[:visible, h // (H // G)]
    return out


def predict_reads_ratio():
    """Bytes of keys and values that decoding reads with one program for each query head, divided by
    those with one for each kv head. 32 query heads, 8 kv heads."""
    # exercise: how many programs read the same keys?
    return 32 / 8


# ---- into the pages


@triton.jit
def write_kv_triton(k, v, k_pages, v_pages, slots, k_t, k_g, v_t, v_g, k_p, k_s, k_h, v_p, v_s, v_h,
                    S, G, D: tl.constexpr, BLOCK: tl.constexpr):
    """One program for each token copies its keys and values to its slot, or does nothing if the
    slot is -1.

    k, v: (T, G, D)   k_pages, v_pages: (P, S, G, D)   slots: (T,), page · S + place, or -1
    Strides: k_t, k_g of tokens and heads in k; k_p, k_s, k_h of pages, slots and heads in k_pages;
    v_ likewise
    """
    t, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    g, d, inside = i // D, i % D, i < G * D
    # exercise: load the slot; if it is not -1, compute page and place; copy keys and values there
    slot = tl.load(slots + t).to(tl.int64)
    if slot >= 0:
        page, place = slot // S, slot % S
        keys = tl.load(k + t * k_t + g * k_g + d, inside)
        values = tl.load(v + t * v_t + g * v_g + d, inside)
        tl.store(k_pages + page * k_p + place * k_s + g * k_h + d, keys, inside)
        tl.store(v_pages + page * v_p + place * v_s + g * v_h + d, values, inside)


# ---- out of the pages


@triton.jit
def load_pages_triton(pages, table, n, bound, stride_page, stride_slot, S: tl.constexpr,
                      BN: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Keys, or values, n to n + BN - 1 of one sequence and one head: (BN, BD).

    pages: points to that head's first number in page 0   table: to the sequence's first entry
    Zeros in rows of keys from `bound` on and in columns from D on.
    For keys from `bound` on, the table is not read either.
    """
    key, d = n + tl.arange(0, BN), tl.arange(0, BD)
    # exercise: look up the page of each key, compute its place in the page, load the rows
    page = tl.load(table + key // S, key < bound, 0).to(tl.int64)
    rows = pages + page * stride_page + key % S * stride_slot
    return tl.load(rows[:, None] + d[None, :], (key < bound)[:, None] & (d < D)[None, :], 0)


@triton.jit
def find_sequence(cu_q, B, tile, BQ: tl.constexpr):
    """The sequence that a tile of BQ queries belongs to.
    The tiles of sequence b are numbered from cu_q[b] // BQ + b to where those of b + 1 start:
    always enough for its queries."""
    low, high = 0, B
    while low + 1 < high:
        middle = (low + high) // 2
        if tl.load(cu_q + middle) // BQ + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def store_part(out, lse, row, m, s, mixed, inside, D: tl.constexpr):
    """Store mixed / s in the rows `row` (BM,) of out (·, D), and lse in base 2, where inside."""
    d = tl.arange(0, mixed.shape[1])
    mixed /= tl.where(s > 0, s, 1)[:, None]         # a row that sees no key: zeros, and lse -inf
    tl.store(out + row[:, None] * D + d[None, :], mixed, inside[:, None] & (d < D)[None, :])
    tl.store(lse + row, m + tl.log2(s), inside)


@triton.jit
def gather_triton(pages, block_tables, lens, out, stride_page, stride_slot, stride_head, t_b, N, G,
                  S: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    """One program copies BN keys of one kv head and sequence from the pages to out (B, N, G, D)."""
    n, g, b = tl.program_id(0) * BN, tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    length = tl.load(lens + b)
    tile = load_pages_triton(pages + g * stride_head, block_tables + b * t_b, n, length,
                             stride_page, stride_slot, S, BN, D, BD)
    key, d = n + tl.arange(0, BN), tl.arange(0, BD)
    row = (b * N + key) * G + g
    tl.store(out + row[:, None] * D + d[None, :], tile, (key < length)[:, None] & (d < D)[None, :])


@triton.jit
def paged_triton(q, k_pages, v_pages, out, lse, block_tables, cu_q, lens, scale, T, B, H,
                 q_t, q_h, k_p, k_s, k_g, v_p, v_s, v_g, t_b, splits, R: tl.constexpr,
                 S: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                 BD: tl.constexpr):
    """One program for each tile of queries, kv head and split of the keys.

    q: (T, H, D)   k_pages, v_pages: (P, S, G, D)   block_tables: (B, pages)   lens: (B,), tokens
    cu_q: (B + 1,), where the new tokens of each sequence start   R: query heads of a kv head
    out (splits, T, H, D)   lse (splits, T, H): of each split, in base 2; -inf where it sees no key
    """
    BQ: tl.constexpr = BM // R                      # tokens of a tile, with R query heads each
    b = find_sequence(cu_q, B, tl.program_id(0), BQ)
    begin = tl.load(cu_q + b)
    count, N = tl.load(cu_q + b + 1) - begin, tl.load(lens + b)
    first = (tl.program_id(0) - begin // BQ - b) * BQ
    if first >= count:
        return                                      # the tile does not exist
    g, split, d = tl.program_id(1).to(tl.int64), tl.program_id(2), tl.arange(0, BD)
    k_pages += g * k_g
    v_pages += g * v_g
    table = block_tables + b.to(tl.int64) * t_b
    # row r of the tile: token r // R, and head r % R of the group
    t, h = first + tl.arange(0, BM) // R, g * R + tl.arange(0, BM) % R
    token = (begin + t).to(tl.int64)
    inside = (tl.arange(0, BM) < BQ * R) & (t < count)
    query_mask = inside[:, None] & (d < D)[None, :]
    queries = tl.load(q + (token * q_t + h * q_h)[:, None] + d[None, :], query_mask, 0)
    m, s = tl.full([BM], LOWEST, tl.float32), tl.zeros([BM], tl.float32)
    mixed = tl.zeros([BM, BD], tl.float32)
    reach = tl.minimum(N - count + first + BQ, N)   # keys that the tile's last token sees
    # exercise: the loop of k13 over this split's share of the keys, up to reach; then store_part
    share = tl.cdiv(tl.cdiv(reach, BN), splits) * BN
    for n in range(split * share, tl.minimum((split + 1) * share, reach), BN):
        keys = load_pages_triton(k_pages, table, n, reach, k_p, k_s, S, BN, D, BD)
        values = load_pages_triton(v_pages, table, n, reach, v_p, v_s, S, BN, D, BD)
        mask = n + tl.arange(0, BN)[None, :] <= (N - count + t)[:, None]
        m, s, mixed = attend_triton(queries, keys, values, mask, m, s, mixed, scale)
    store_part(out, lse, (split.to(tl.int64) * T + token) * H + h, m, s, mixed, inside, D)


@triton.jit
def merge_triton(parts, lse, out, rows, splits, D: tl.constexpr, BS: tl.constexpr,
                 BD: tl.constexpr):
    """One program for each row of out (rows, D), from parts (splits, rows, D) and lse (splits,
    rows) in base 2. BS and BD are powers of two: BS >= splits, BD >= D."""
    row, i, d = tl.program_id(0).to(tl.int64), tl.arange(0, BS), tl.arange(0, BD)
    # exercise: the weight of a part is exp2(lse - largest lse); divide by the sum of the weights
    sums = tl.load(lse + i.to(tl.int64) * rows + row, i < splits, -float("inf"))
    weights = tl.exp2(sums - tl.max(sums))
    inside = (i < splits)[:, None] & (d < D)[None, :]
    part = tl.load(parts + (i.to(tl.int64) * rows + row)[:, None] * D + d[None, :], inside, 0)
    mixed = tl.sum(weights[:, None] * part, 0) / tl.sum(weights)
    tl.store(out + row * D + d, mixed, d < D)


# ---- launchers


def write(kernel, k, v, k_pages, v_pages, slots):
    """write_kv by a kernel such as write_kv_triton."""
    T, G, D = k.shape
    S = k_pages.shape[1]
    kernel[(T,)](k, v, k_pages, v_pages, slots, *k.stride()[:2], *v.stride()[:2],
                 *k_pages.stride()[:3], *v_pages.stride()[:3], S, G, D=D,
                 BLOCK=triton.next_power_of_2(G * D))


@without_gradients
def write_kv(k, v, k_pages, v_pages, slots):
    """Write the keys and values of new tokens into their slots, in place; -1 is skipped.

    k, v (T, G, D)   k_pages, v_pages (P, S, G, D)   slots (T,) int64 or int32: page · S + place,
    each at most once. float32, float16 or bfloat16 on the CPU or on CUDA, any strides whose last
    is 1; T may be 0.
    ValueError or TypeError otherwise.
    Slots beyond the pages raise an error on the CPU only: on a GPU the check would have to wait for
    the device.
    """
    check_write("write_kv", k, v, k_pages, v_pages, slots)
    if k.numel():
        write(write_kv_triton, k, v, k_pages, v_pages, slots.contiguous())


def write_kv_torch(k, v, k_pages, v_pages, slots):
    """As write_kv, in PyTorch."""
    check_write("write_kv_torch", k, v, k_pages, v_pages, slots)
    S = k_pages.shape[1]
    known = slots >= 0
    where = slots[known].long()
    k_pages[where // S, where % S] = k[known]
    v_pages[where // S, where % S] = v[known]


def count_splits(programs, keys, processors):
    """The number of parts that the keys are split into: up to two programs for each processor, but
    at most one for every SHORTEST keys, rounded up, and 1 if there are enough programs already.

    programs: of a launch without splits   keys: room of one row of the block tables, in tokens
    """
    return max(1, min(2 * processors // programs, -(-keys // SHORTEST)))


def sizes_for(T, B, R, D, itemsize):
    """Tile sizes, warps and stages of a launch of paged_triton.

    A tile has rows for the heads of an average sequence's new tokens.
    A key can be loaded only once its page is known, and that lookup takes two of the stages. fp32
    goes without tensor cores, and larger tiles would spill registers.
    Those of 16-bit decoding are the fastest of twenty on an H200 (benchmarks/LOG.md).
    """
    largest = 128 if itemsize == 2 else 32
    rows = min(largest, max(16, triton.next_power_of_2(R * triton.cdiv(T, B))))
    BM = max(rows, triton.next_power_of_2(R))
    BN = 16 if itemsize == 4 else 32 if BM <= 32 else 64
    return {"BM": BM, "BN": BN, "BD": triton.next_power_of_2(D),
            "num_warps": 4 if largest > BM else 8, "num_stages": 5 if BM <= 32 else 3}


def launch(paged, merge, q, k_pages, v_pages, block_tables, cu_q, lens, scale, splits, sizes):
    """out of paged_attention by the kernels paged and merge, the keys in `splits` parts; sizes as
    sizes_for() has them.

    Never waits for the device: each tile finds its sequence itself, and a tile that does not exist
    returns at once.
    """
    T, H, D = q.shape
    _, S, G, _ = k_pages.shape
    B = len(lens)
    tiles = T // (sizes["BM"] // (H // G)) + B
    out = torch.empty((T, H, D), dtype=q.dtype, device=q.device)
    parts = out if splits == 1 else torch.empty((splits, T, H, D), device=q.device)
    lse = torch.empty((splits, T, H), device=q.device)
    paged[(tiles, G, splits)](
        q, k_pages, v_pages, parts, lse, block_tables, cu_q, lens, scale * LOG2E, T, B, H,
        *q.stride()[:2], *k_pages.stride()[:3], *v_pages.stride()[:3], block_tables.stride(0),
        splits, R=H // G, S=S, D=D, **sizes)
    if splits > 1:
        merge[(T * H,)](parts, lse, out, T * H, splits, D=D, BS=triton.next_power_of_2(splits),
                        BD=sizes["BD"])
    return out


@without_gradients
def paged_attention(q, k_pages, v_pages, block_tables, cu_q, lens, scale):
    """Causal attention of new tokens to all tokens of their sequences, whose keys lie in pages.

    q (T, H, D): the new tokens of all sequences, one sequence after the other
    k_pages, v_pages (P, S, G, D): pages, which already hold the new tokens' own keys
    block_tables (B, pages) int32: row b lists the pages of sequence b in order; entries after its
        last page are not read
    cu_q (B + 1,) int32: sequence b has the new tokens cu_q[b] to cu_q[b + 1] - 1, zero or more;
        rows of q from cu_q[B] on belong to no sequence, and are not written in out
    lens (B,) int32: tokens of each sequence, the new ones included
    scale: positive, as a rule 1 / sqrt(D)
    Returns (T, H, D). float32 (IEEE), float16 or bfloat16 on the CPU or on CUDA; D a multiple of 16
    up to 128; H a multiple of G, at most 64 times.
    Any strides whose last is 1; T or B may be 0.
    ValueError or TypeError otherwise.
    The contents of block_tables, cu_q and lens are checked on the CPU only: on a GPU the check
    would have to wait for the device.
    """
    check("paged_attention", q, k_pages, v_pages, block_tables, cu_q, lens, scale)
    check_heads("paged_attention", q, k_pages)
    T, H, D = q.shape
    _, S, G, _ = k_pages.shape
    B = len(lens)
    if not T or not B:
        return torch.empty((T, H, D), dtype=q.dtype, device=q.device)
    sizes = sizes_for(T, B, H // G, D, q.element_size())
    programs = min(T, T // (sizes["BM"] // (H // G)) + B) * G
    splits = count_splits(programs, S * block_tables.shape[1],
                          properties()["multiprocessor_count"])
    return launch(paged_triton, merge_triton, q, k_pages, v_pages, block_tables, cu_q, lens, scale,
                  splits, sizes)


@without_gradients
def paged_attention_cuda(q, k_pages, v_pages, block_tables, cu_q, lens, scale):
    """As paged_attention by the CUDA kernel: float32, all arrays contiguous except q, which is
    copied first if it is not."""
    check("paged_attention_cuda", q, k_pages, v_pages, block_tables, cu_q, lens, scale)
    check_heads("paged_attention_cuda", q, k_pages)
    q = q.contiguous()              # a view, where one matrix makes q, k and v
    for name, x in (("q", q), ("k_pages", k_pages), ("v_pages", v_pages),
                    ("block_tables", block_tables)):
        if not x.is_contiguous() or x.dtype not in (torch.float32, torch.int32):
            raise ValueError(f"paged_attention_cuda: {name} is {x.dtype} with strides "
                             f"{x.stride()}, expected float32 and contiguous")
    T, H, D = q.shape
    _, S, G, _ = k_pages.shape
    B = len(lens)
    out = torch.empty_like(q)
    if T and B:
        KERNELS.get("paged_cuda")(
            T * H, THREADS, (q, k_pages, v_pages, out, block_tables, cu_q, lens, scale * LOG2E, B,
                             H, G, D, S, block_tables.shape[1]))
    return out


def paged_attention_torch(q, k_pages, v_pages, block_tables, cu_q, lens, scale):
    """As paged_attention, sequence by sequence in PyTorch: the plain formula over gathered pages,
    for heads of any width and number.

    Zeros in rows of no sequence.
    Waits for the device.
    """
    check("paged_attention_torch", q, k_pages, v_pages, block_tables, cu_q, lens, scale)
    S = k_pages.shape[1]
    out = torch.zeros_like(q)
    for b, (N, begin, end) in enumerate(zip(*(x.tolist() for x in (lens, cu_q[:-1], cu_q[1:])),
                                            strict=True)):
        if begin == end:
            continue
        pages = block_tables[b, :-(-N // S)].long()     # the last one may be part empty
        keys, values = (x[pages].flatten(0, 1)[None, :N] for x in (k_pages, v_pages))
        out[begin:end] = flash_attention_torch(q[None, begin:end], keys, values, True, scale)[0][0]
    return out


def check_pages(name, D, k_pages, v_pages, **others):
    """What all public functions assume of pages and dtypes."""
    if k_pages.ndim != 4 or k_pages.shape != v_pages.shape or k_pages.shape[3] != D:
        raise ValueError(f"{name}: k_pages {tuple(k_pages.shape)}, v_pages {tuple(v_pages.shape)}; "
                         f"expected both (pages, slots, kv heads, {D})")
    tensors = {**others, "k_pages": k_pages, "v_pages": v_pages}
    kinds = {x.dtype for x in tensors.values()}
    if len(kinds) > 1 or not kinds < {torch.float32, torch.float16, torch.bfloat16}:
        raise TypeError(f"{name}: " + ", ".join(f"{n} is {x.dtype}" for n, x in tensors.items())
                        + "; expected float32, float16 or bfloat16 for all")
    for n, x in tensors.items():
        if x.numel() and x.stride(-1) != 1:
            raise ValueError(f"{name}: {n} has strides {x.stride()}, expected the last to be 1")


def check_write(name, k, v, k_pages, v_pages, slots):
    if k.ndim != 3 or k.shape != v.shape or slots.shape != k.shape[:1] or \
            k_pages.shape[2:3] != k.shape[1:2]:
        raise ValueError(f"{name}: k {tuple(k.shape)}, v {tuple(v.shape)}, slots "
                         f"{tuple(slots.shape)}, k_pages {tuple(k_pages.shape)}; expected (T, G, "
                         f"D) twice, (T,), (P, S, G, D)")
    check_pages(name, k.shape[2], k_pages, v_pages, k=k, v=v)
    if slots.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name}: slots are {slots.dtype}, expected torch.int64 or torch.int32")
    room = k_pages.shape[0] * k_pages.shape[1]
    if not slots.is_cuda and len(slots) and not -1 <= slots.min() <= slots.max() < room:
        raise ValueError(f"{name}: slots {slots.min()} to {slots.max()}, expected -1 to {room - 1}")


def check(name, q, k_pages, v_pages, block_tables, cu_q, lens, scale):
    """What the attention kernels assume, each with a clear message."""
    if q.ndim != 3:
        raise ValueError(f"{name}: q has shape {tuple(q.shape)}, expected (T, H, D)")
    _, H, D = q.shape
    B = len(lens)
    check_pages(name, D, k_pages, v_pages, q=q)
    G = k_pages.shape[2]
    if not G or H % G:
        raise ValueError(f"{name}: {H} query heads, expected a multiple of the {G} kv heads")
    if block_tables.ndim != 2 or block_tables.shape[0] != B or cu_q.shape != (B + 1,):
        raise ValueError(f"{name}: block_tables {tuple(block_tables.shape)}, cu_q "
                         f"{tuple(cu_q.shape)}, lens {tuple(lens.shape)}; expected (B, pages), "
                         f"(B + 1,), (B,)")
    for n, x in (("block_tables", block_tables), ("cu_q", cu_q), ("lens", lens)):
        if x.dtype != torch.int32 or x.numel() and x.stride(-1) != 1:
            raise TypeError(f"{name}: {n} is {x.dtype} with strides {x.stride()}, expected "
                            f"torch.int32, the last stride 1")
    if not scale > 0:
        raise ValueError(f"{name}: scale is {scale}, expected a positive one")
    if not q.is_cuda:
        check_contents(name, q, k_pages, block_tables, cu_q, lens)


def check_heads(name, q, k_pages):
    """What the kernels assume of heads; the plain formula takes any."""
    check_width(name, q.shape[2])
    H = q.shape[1]
    G = k_pages.shape[2]
    if H // G > ROWS:
        raise ValueError(f"{name}: {H} query heads, expected at most {ROWS} times as many as the "
                         f"{G} kv heads")


def check_contents(name, q, k_pages, block_tables, cu_q, lens):
    """That cu_q, lens and the used part of the block tables fit together."""
    T = len(q)
    P, S, _, _ = k_pages.shape
    counts = cu_q.diff()
    if cu_q[0] != 0 or (counts < 0).any() or cu_q[-1] > T:
        raise ValueError(f"{name}: cu_q is {cu_q.tolist()}, expected it to rise from 0 to at most "
                         f"the {T} tokens of q")
    for b, (N, count) in enumerate(zip(lens.tolist(), counts.tolist(), strict=True)):
        pages = -(-N // S)
        used = block_tables[b, :pages]
        if count > N or pages > len(used):
            raise ValueError(f"{name}: sequence {b} has {N} tokens, expected its {count} new ones "
                             f"among them, and room in {block_tables.shape[1]} pages of {S}")
        if count and not 0 <= used.min() <= used.max() < P:
            raise ValueError(f"{name}: the block table of sequence {b} names the pages "
                             f"{used.tolist()}, expected 0 to {P - 1}")


def decode_batch(B, N, H, G, D, S, device="cpu", dtype=torch.float16):
    """Arguments of paged_attention for B sequences of N tokens that decode one more each: the pages
    are dealt out at random, as after hours of service."""
    pages = triton.cdiv(N, S)
    shape = (B * pages, S, G, D)
    k_pages, v_pages = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
    tables = torch.randperm(B * pages, device=device).reshape(B, pages).int()       # (B, pages)
    q = torch.randn((B, H, D), device=device, dtype=dtype)                          # (B, H, D)
    cu_q = torch.arange(B + 1, device=device, dtype=torch.int32)
    return (q, k_pages, v_pages, tables, cu_q, torch.full_like(cu_q[1:], N), D ** -0.5)
