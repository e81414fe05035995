"""k20 · Grouped GEMM: y[i] = x[i // k] · w[e]ᵀ for slot i, a choice of expert e; all in one launch

T: tokens   E: experts   k: experts that a token chooses   R = T·k slots, slot i = token·k + choice
N K: the weight of an expert is (N, K), numbers out, numbers in; w: (E, N, K)   n_e: slots of e
BM BN BK: tile of y of a program, and how many numbers of a row are fetched for it at a time
2·R·N·K FLOPs, and a tile of BM rows costs as much if it has fewer: sum over e of ⌈n_e/BM⌉ · BM rows
are multiplied.
An expert with slots is read ⌈n_e/BM⌉ times from L2, in one without no tile begins.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from layer1_kernels.gpu import properties
from layer1_kernels.gradients import without_gradients
from layer1_kernels.k05_matmul_tiled import GROUP, grouped_triton
from layer1_kernels.k08_rmsnorm import FLOATS

__all__ = ["grouped_gemm", "grouped_gemm_torch", "sort_slots", "sort_slots_torch"]

LARGEST = 2**31 - 2**16     # sizes: the kernels count with 32 bits, a last tile beyond the end
MOST_EXPERTS = 1024         # of sort_slots: a slot has a row of this many numbers in registers
NUMBERS = 2**14             # of such rows that a program has at a time: 64 registers a thread
SMALLEST = 16               # slots of a program
SORT = {"num_warps": 8}
ALIGNED = 16                # bytes at whose multiples rows of a descriptor and of grouped_mm begin

# BM, BN, BK, warps, stages by bytes of a number. Chosen from what Triton makes of them for Hopper
# (see shipped: no spills, wgmma from 64 rows on); the largest was the fastest of ten on an H200,
# before w was read by descriptor.
TILES = {2: [(128, 256, 64, 8, 4), (64, 128, 64, 4, 4), (16, 64, 128, 4, 4)],
         4: [(64, 64, 16, 4, 4), (16, 32, 64, 4, 3)]}


# ---- by the book


def sort_slots_oracle(experts, E):                  # (T, k) -> (R,), (E + 1,)
    """Slots by expert, those of an expert in order, and where each expert's begin."""
    slots = [[i for i, e in enumerate(experts.ravel()) if e == expert] for expert in range(E)]
    return np.array(sum(slots, []), int), np.cumsum([0, *map(len, slots)])


def grouped_gemm_oracle(x, w, order, offsets, weights=None):    # (X, K), (E, N, K) … -> (R, N)
    """float64, slot by slot."""
    R = len(order)
    y = np.zeros((R, w.shape[1]))                   # (R, N)
    for e, (begin, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        for slot in order[begin:end]:
            row = x[slot // (R // len(x))].astype(np.float64)   # (K,)
            y[slot] = w[e].astype(np.float64) @ row
    return y if weights is None else y * weights[:, None]


def sort_slots_torch(experts, E):                   # (T, k) -> (R,), (E + 1,)
    """As sort_slots, by PyTorch."""
    check_experts("sort_slots_torch", experts, E)
    flat = experts.reshape(-1)                      # (R,)
    loads = torch.zeros(E + 1, dtype=torch.int64, device=experts.device)
    loads.scatter_add_(0, flat.long() + 1, torch.ones_like(flat, dtype=torch.int64))
    return flat.argsort(stable=True).int(), loads.cumsum(0).int()


def grouped_gemm_torch(x, w, order, offsets, weights=None):     # (X, K), (E, N, K) … -> (R, N)
    """As grouped_gemm, by PyTorch, gradients and float64 too.
    In 16 bits products are rounded before they are multiplied by `weights`.

    It is torch's grouped_mm where that takes the arrays: bfloat16 on a GPU, 32 bits or fewer on a
    CPU, rows of whole 16 bytes.
    Else the experts follow one another, and the host reads offsets.
    """
    check("grouped_gemm_torch", (*FLOATS, torch.float64), x, w, order, offsets, weights)
    R = len(order)
    E, N, K = w.shape
    if 0 in (R, N, K):
        return x.new_zeros(R, N)
    rows = x[order // (R // len(x))]                # (R, K), those of an expert together
    known = x.dtype == torch.bfloat16 or x.device.type == "cpu" and x.dtype in FLOATS
    if known and K * x.itemsize % ALIGNED == 0 and N * x.itemsize % ALIGNED == 0:
        sums = torch.nn.functional.grouped_mm(rows, w.transpose(1, 2), offs=offsets[1:])
    else:
        loads = offsets.diff().tolist()
        sums = torch.cat([part @ w[e].T for e, part in enumerate(rows.split(loads))])
    if weights is not None:
        sums = sums * weights[order][:, None]       # (R, N)
    return x.new_empty(R, N).index_copy(0, order.long(), sums.to(x.dtype))


# ---- sorting


def predict_rows():
    """Rows that are multiplied, over rows that are needed: a decode step of 8 tokens, each with 2
    of 64 experts, all 16 of them different; tiles of 16 rows."""
    # exercise: how many tiles are there, and how many rows of each are needed?
    return 16.0


@triton.jit
def count_triton(experts, counts, n, E: tl.constexpr, BLOCK: tl.constexpr):
    """Program b counts its BLOCK slots by expert: counts[b, e].

    experts: (n,), each from 0 to E - 1   counts: (blocks, E)   E, BLOCK: powers of two
    """
    b = tl.program_id(0)
    # exercise: load the experts of the block's slots, store their histogram in row b
    slot = b * BLOCK + tl.arange(0, BLOCK)
    e = tl.load(experts + slot, slot < n, 0)
    tl.store(counts + b * E + tl.arange(0, E), tl.histogram(e, E, mask=slot < n))


@triton.jit
def scan_triton(counts, offsets, starts, blocks, E: tl.constexpr, B: tl.constexpr):
    """One program. offsets[e]: slots of all experts before e   starts[b, e]: slots of e in all
    blocks before b.

    counts, starts: (blocks, E)   offsets: (E + 1,)   B: rows of counts that are loaded at a time
    """
    e = tl.arange(0, E)
    total = tl.zeros((E,), tl.int32)                # slots of each expert so far
    for first in range(0, blocks, B):
        b = first + tl.arange(0, B)[:, None]        # (B, 1)
        # exercise: starts of these blocks, and the new total; after the loop the offsets
        here = tl.load(counts + b * E + e, b < blocks, 0)       # (B, E)
        tl.store(starts + b * E + e, total + tl.cumsum(here, 0) - here, b < blocks)
        total += tl.sum(here, 0)
    tl.store(offsets, 0)
    tl.store(offsets + 1 + e, tl.cumsum(total, 0))


@triton.jit
def place_triton(experts, offsets, starts, order, n, E: tl.constexpr, BLOCK: tl.constexpr):
    """Program b puts its BLOCK slots where they belong: order[place] = slot, those of an expert in
    order.

    experts, order: (n,)   offsets: (E + 1,)   starts: (blocks, E)
    """
    b = tl.program_id(0)
    slot = b * BLOCK + tl.arange(0, BLOCK)
    e = tl.load(experts + slot, slot < n, 0)
    # exercise: how many slots of its expert stand before each in this block? Then store
    same = (e[:, None] == tl.arange(0, E)).to(tl.int32)         # (BLOCK, E)
    rank = tl.sum((tl.cumsum(same, 0) - same) * same, 1)        # (BLOCK,)
    begin = tl.load(offsets + e) + tl.load(starts + b * E + e)
    tl.store(order + begin + rank, slot, slot < n)


# ---- the product


@triton.jit
def product_triton(x_rows, w, row, m_inside, K, BM: tl.constexpr, BN: tl.constexpr,
                   BK: tl.constexpr):
    """fp32 sums (BM, BN) of BM rows of x with BN rows of w: the loop of k05.

    x_rows (BM, 1): addresses of rows, which may lie anywhere   m_inside (BM,): which of them exist
    w: a descriptor with tiles (BN, BK), whose rows are neighbours   row: the first of them
    """
    k = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        x_tile = tl.load(x_rows + start + k, m_inside[:, None] & (start + k < K), 0)    # (BM, BK)
        sums = tl.dot(x_tile, w.load([row, start]).T, sums, input_precision="ieee")
    return sums


@triton.jit
def grouped_gemm_triton(x, w, y, offsets, order, weights, N, K, EACH, E, BM: tl.constexpr,
                        BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """Of P programs, program p makes tiles p, p + P, p + 2·P … of y: first those of expert 0, in
    the order of k05, then those of expert 1, and so on.

    w: a descriptor of (E·N, K) with tiles (BN, BK), which reads 0 beyond the end   y: (R, N)
    order: (R,)   offsets: (E + 1,)   weights: (R,), or None for 1
    EACH: slots that share a row of x   GROUP: rows of tiles that share the tiles of w
    """
    tl.assume(K > 0)                    # as in k05: keeps Hopper's matmul instructions apart
    p = tl.program_id(0)
    columns = tl.cdiv(N, BN)
    first = 0                           # tiles of the experts before e
    for e in range(E):
        begin = tl.load(offsets + e)
        end = tl.load(offsets + e + 1)
        # exercise: while tile p is one of e's, make it and go on to p + P
        rows = tl.cdiv(end - begin, BM)
        while p < first + rows * columns:
            row, column = grouped_triton(p - first, rows, columns, GROUP)
            m = begin + row * BM + tl.arange(0, BM)
            n = column * BN + tl.arange(0, BN)
            slot = tl.load(order + m, m < end, 0).to(tl.int64)  # R·N may not fit 32 bits
            x_rows = x + (slot // EACH)[:, None] * K
            sums = product_triton(x_rows, w, e * N + column * BN, m < end, K, BM, BN, BK)
            if weights is not None:
                sums *= tl.load(weights + slot, m < end, 0)[:, None]
            tl.store(y + slot[:, None] * N + n, sums, (m < end)[:, None] & (n < N))
            p += tl.num_programs(0)
        first += rows * columns


# ---- the launchers


def sort_slots(experts, E):                         # (T, k) -> (R,), (E + 1,)
    """(order, offsets), both int32: the slots by expert, those of an expert in order.
    Those of expert e are order[offsets[e]:offsets[e + 1]].
    Three launches of Triton kernels.

    experts: int32 or int64, from 0 to E - 1, any strides, on the CPU or on CUDA; T or k may be 0.
    E: at most 1024.
    Another number among the experts is a ValueError on the CPU.
    On a device it is not looked for, since the host would have to wait, and the result is
    undefined.
    """
    check_experts("sort_slots", experts, E)
    flat = experts.reshape(-1).to(torch.int32)      # (R,)
    R = len(flat)
    if R == 0:
        return flat, flat.new_zeros(E + 1)
    width = triton.next_power_of_2(E)
    BLOCK = max(SMALLEST, min(NUMBERS // width, triton.next_power_of_2(R)))
    blocks = triton.cdiv(R, BLOCK)
    if blocks * width > LARGEST:
        raise ValueError(f"sort_slots: {R:,} slots of {E} experts, expected at most "
                         f"{LARGEST // width * BLOCK:,}")
    order = torch.empty_like(flat)                  # (R,)
    offsets = flat.new_empty(width + 1)
    counts, starts = flat.new_empty(2, blocks, width)           # (blocks, width)
    count_triton[(blocks,)](flat, counts, R, E=width, BLOCK=BLOCK, **SORT)
    scan_triton[(1,)](counts, offsets, starts, blocks, E=width, B=BLOCK // 4, **SORT)
    place_triton[(blocks,)](flat, offsets, starts, order, R, E=width, BLOCK=BLOCK, **SORT)
    return order, offsets[:E + 1]


def configuration(R, E, itemsize):
    """The arguments of grouped_gemm_triton that say how: those of the largest tile that the mean
    load, R / E, fills by more than half, else those of the smallest."""
    *larger, smallest = TILES[itemsize]
    BM, BN, BK, warps, stages = next((tile for tile in larger if tile[0] * E < 2 * R), smallest)
    return {"BM": BM, "BN": BN, "BK": BK, "GROUP": GROUP, "num_warps": warps, "num_stages": stages}


@without_gradients
def grouped_gemm(x, w, order, offsets, weights=None):           # (X, K), (E, N, K) … -> (R, N)
    """Row i of the result: row i // (R / X) of x times the weight of slot i's expert, and times
    weights[i].
    One launch of a Triton kernel; the host does not read the loads.

    x, w: float32 (IEEE products, not TF32), float16 or bfloat16, contiguous, on the CPU or on CUDA
    order (R,), offsets (E + 1,): int32, as sort_slots gives them   weights: (R,) float32, or None
    Sums are fp32, and rounded once, to x's dtype.
    X divides R; any size may be 0.
    Each call copies w first if K numbers are not a multiple of 16 bytes, or if w does not start at
    one: that takes the memory of a second w, and the time to write it.
    """
    check("grouped_gemm", FLOATS, x, w, order, offsets, weights)
    R = len(order)
    E, N, K = w.shape
    if 0 in (R, E, N, K):
        return x.new_zeros(R, N)
    y = x.new_empty(R, N)                           # (R, N)
    how = configuration(R, E, x.itemsize)
    tiles = (R // how["BM"] + min(E, R)) * triton.cdiv(N, how["BN"])    # at most
    programs = min(properties()["multiprocessor_count"], tiles)
    launch_grouped(x, w, y, order, offsets, weights, R // len(x), programs, how)
    return y


def launch_grouped(x, w, y, order, offsets, weights, each, programs, how):
    """Write the products into y (R, N), by this number of programs.
    No size is 0.

    each: slots that share a row of x   how: as configuration gives it   the rest: as grouped_gemm's
    """
    E, N, K = w.shape
    tiles = TensorDescriptor.from_tensor(aligned_rows(w), [how["BN"], how["BK"]])
    grouped_gemm_triton[(programs,)](x, tiles, y, offsets, order, weights, N, K, each, E, **how)


def aligned_rows(w):
    """w (E, N, K) as one matrix of E·N rows, each of which starts at a multiple of 16 bytes: w
    itself where they do, else a copy, in which zeros fill up the rows."""
    E, N, K = w.shape
    apart = K + -K % (ALIGNED // w.itemsize)        # numbers from row to row
    if apart == K and w.data_ptr() % ALIGNED == 0:
        return w.view(E * N, K)
    rows = w.new_zeros(E * N, apart)
    rows[:, :K] = w.view(E * N, K)
    return rows


def check_experts(op, experts, E):
    """What sort_slots assumes."""
    if experts.ndim != 2 or experts.numel() > LARGEST:
        raise ValueError(f"{op}: experts has shape {tuple(experts.shape)}, expected (T, k), at "
                         f"most {LARGEST} in all")
    if experts.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{op}: experts is {experts.dtype}, expected torch.int32 or torch.int64")
    if not 1 <= E <= MOST_EXPERTS:
        raise ValueError(f"{op}: E is {E}, expected 1 to {MOST_EXPERTS}")
    if experts.device.type == "cpu":
        numbers = experts.numpy()
        wrong = np.argwhere((numbers < 0) | (numbers >= E))
        if len(wrong):
            raise ValueError(f"{op}: expert {numbers[tuple(wrong[0])]} in row {wrong[0, 0]}, "
                             f"expected 0 to {E - 1}")


def check(op, dtypes, x, w, order, offsets, weights):
    """What grouped_gemm assumes; the kernel ignores strides and counts with 32 bits."""
    if x.ndim != 2 or w.ndim != 3 or x.shape[1] != w.shape[2]:
        raise ValueError(f"{op}: x has shape {tuple(x.shape)} and w {tuple(w.shape)}, expected "
                         f"(X, K) and (E, N, K)")
    if x.dtype not in dtypes or w.dtype != x.dtype:
        raise TypeError(f"{op}: x is {x.dtype} and w {w.dtype}, expected both "
                        f"{' or both '.join(map(str, dtypes))}")
    if order.ndim != 1 or len(order) % max(len(x), 1) or len(order) > len(x) == 0:
        raise ValueError(f"{op}: x has {len(x)} rows and order shape {tuple(order.shape)}, "
                         f"expected (R,), R a multiple of the rows of x")
    if offsets.shape != (len(w) + 1,):
        raise ValueError(f"{op}: offsets has shape {tuple(offsets.shape)}, expected "
                         f"({len(w) + 1},): one more than the experts of w")
    if weights is not None and weights.shape != order.shape:
        raise ValueError(f"{op}: weights has shape {tuple(weights.shape)}, expected "
                         f"{tuple(order.shape)}: one for each slot")
    arrays = {"x": x, "w": w, "order": order, "offsets": offsets}
    arrays |= {} if weights is None else {"weights": weights}
    kinds = {"order": torch.int32, "offsets": torch.int32, "weights": torch.float32}
    for name, array in arrays.items():
        if array.dtype != kinds.get(name, x.dtype) or array.device != x.device:
            raise TypeError(f"{op}: {name} is {array.dtype} on {array.device}, expected "
                            f"{kinds.get(name, x.dtype)} on {x.device}")
        if not array.is_contiguous():
            raise ValueError(f"{op}: {name} has strides {array.stride()}, expected it to be "
                             f"contiguous; {name}.contiguous() makes it so")
    if max(len(w) * w.shape[1], w.shape[2], len(order)) > LARGEST:
        raise ValueError(f"{op}: w has shape {tuple(w.shape)} and order {tuple(order.shape)}, "
                         f"expected E · N, K and R up to {LARGEST}")
