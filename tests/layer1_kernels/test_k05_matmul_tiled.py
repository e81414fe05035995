"""Graders of k05.
Outputs start as 7, so that unwritten places show."""

import contextlib
import itertools

import numpy as np
import pytest

from lab.judge.addresses import FAR, ROWS, in_64_bits
from lab.judge.adversarial import factors, views
from lab.judge.mistakes import mistake, same_report
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.matmul_cases import operands, product, tensors, tf32

TILE = 32
SIZES = [(9, 21, 65), (33, 17, 31), (3, 40, 29), (1, 1, 1), (32, 32, 64)]           # M, N, K
TILES = [(33, 17, 40, 16, 16, 16, "float32"), (17, 50, 129, 16, 32, 64, "float16"),
         (40, 33, 100, 32, 16, 32, "bfloat16"), (1, 1, 1, 16, 16, 32, "float32"),
         (5, 127, 65, 16, 32, 32, "bfloat16")]          # M, N, K, BM, BN, BK, dtype


def padded(x, tile=TILE):
    """x with zeros up to multiples of a tile."""
    return np.pad(x.astype(np.float64), [(0, -size % tile) for size in x.shape])


@contextlib.contextmanager
def reports():
    """Within this context, the simulator's reports are mistakes of a tiled matmul."""
    with contextlib.ExitStack() as stack:
        for x in "awc":
            for known, kind, array, sentence in (
                    ("no_barrier", "race", f"{x}_tile", "All threads must have loaded before any "
                     "multiplies, and all must have multiplied before any loads again."),
                    ("tile_unset", "uninitialised", f"{x}_tile", "Every thread loads, if only 0."),
                    (f"beyond_{x}", "out_of_bounds", x, "")):
                stack.enter_context(same_report(known, sentence, kind=kind, array=array))
        yield


def likely(name, a, w, step):
    """{mistake: (sentence, what it gives)} of any kernel that walks along k in steps."""
    (M, K), N = a.shape, len(w)
    k = np.arange(K)
    number = k // step
    want = product(a, w)
    finite = (np.where(np.isfinite(x), x, 0) for x in (a, w))
    rows = {
        "one_tile_zeroed": ("sets only one tile to 0 beyond K; infinity times 0 is NaN",
                            want + 0 * (a[:, -1:] + w[:, -1])),
        "sums_reset": ("resets its sums in every step", product(a, w, number == number[-1])),
        "first_step": ("stops after the first step", product(a, w, number == 0)),
        "whole_steps": ("leaves out a last, short step", product(a, w, k < K // step * step)),
        "columns_of_w": ("reads w as if it were (K, N)", product(a, w.reshape(K, N).T)),
        "no_last_k": ("leaves out the last k of each step", product(a, w, k % step < step - 1)),
        "first_tiles": ("loads the first tiles in every step: `start` is not used",
                        (number.max(initial=0) + 1) * product(a, w, number == 0)),
        "w_stays": ("takes w's first tile in every step", product(a, w[:, k % step])),
        "a_stays": ("takes a's first tile in every step", product(a[:, k % step], w)),
        "c_transposed": ("stores c transposed; row m starts at m · N", want.T.reshape(M, N)),
        "old_contents": ("adds to the old contents of c; sums must start at 0", want + 7),
        "finite_only": ("leaves out products with infinity or NaN", product(*finite)),
        "nan_zeroed": ("stores 0 in place of NaN", np.where(np.isnan(want), 0, want)),
        "not_stored": ("stores nothing", np.full((M, N), 7))}
    return {known: (f"{name} {sentence}", gives) for known, (sentence, gives) in rows.items()}


# ---- intensity


def guesses(BM, BN, itemsize, want):
    """[(answer, mistake, sentence)] of a wrong tile_intensity, the likeliest first."""
    flops = 2 * BM * BN
    one_side = "one_side", "itemsize multiplies only one of the two sides: parentheses are missing."
    return [
        (want * itemsize, "per_number", "This is FLOPs per number; a number has itemsize bytes."),
        (want * itemsize / 4, "four_bytes", "That is for 4 bytes, whatever itemsize is."),
        (want / 2, "one_flop", "Each pair is a multiplication and an addition: two FLOPs."),
        (2 / itemsize, "area", "The tile loads its two sides, BM + BN numbers, not its area."),
        (1 / want, "turned_round", "This is bytes per FLOP."),
        (want * itemsize**2, "itemsize_above", "itemsize multiplies; it belongs to the divisor."),
        (want / 8, "bits", "itemsize is in bytes already, not in bits."),
        (flops / (BM + BN * itemsize), *one_side),
        (flops / (BM * itemsize + BN), *one_side),
        (flops / ((BM + BN + BM * BN) * itemsize), "store", "The store of c is not counted here."),
        (2 * want, "one_operand", "The tile loads both its sides; a pair is two FLOPs, not four."),
        (want // 1, "rounded_down", "The fraction is lost: // rounds down, / does not."),
        (BN / itemsize, "side_BM", "Both sides are taken to be BM, or the tile to be BN x BN."),
        (BM / itemsize, "side_BN", "Both sides are taken to be BN, or the tile to be BM x BM."),
        (0, "other", "For one k, BM + BN numbers are loaded and BM · BN pairs are multiplied.")]


def test_tile_intensity(subject, reference, rng):
    a, w, c = operands(rng, TILE, TILE, 64)
    counted = 2 * TILE * TILE * 64 / run_cuda(reference, a, w, c).bytes("load")
    for BM, BN, itemsize, want in ((TILE, TILE, 4, counted), (16, 64, 1, 2 * 16 * 64 / 80),
                                   (128, 32, 2, 2 * 128 * 32 / 320)):
        got = subject.tile_intensity(BM, BN, itemsize)
        assert isinstance(got, (int, float)), mistake(
            "no_number", f"tile_intensity: expected a number, got {got!r}")
        known, why = next((row for value, *row in guesses(BM, BN, itemsize, want)
                           if not value or abs(got - value) < 1e-6 * value))
        assert abs(got - want) < 1e-6 * want, mistake(
            known, f"tile_intensity({BM}, {BN}, {itemsize}): the simulator does not count {got:g} "
                   f"FLOP/byte. {why}", why)


def test_tile_intensity__unseen(unseen, rng):
    for BM, BN, itemsize in [*rng.integers(1, 300, (4, 3)).tolist(), (2**31, 2**15, 2), (1, 1, 1)]:
        unseen("tile_intensity", BM, BN, itemsize)


# ---- CUDA


def run_cuda(subject, a, w, c, grid=None):
    (M, K), N = a.shape, len(w)
    grid = grid or (-(-N // TILE), -(-M // TILE))
    with reports():
        return subject.launch("matmul_tiled_cuda", grid, (TILE, TILE), (a, w, c, M, N, K))


def untransposed(a, w, tile=TILE):
    """What comes out when a column of w's square tile is multiplied by instead of its row."""
    left, right = padded(a, tile), padded(w, tile)
    blocks = [sum(left[:, k:k + tile] @ right[n:n + tile, k:k + tile]
                  for k in range(0, left.shape[1], tile)) for n in range(0, len(right), tile)]
    return np.hstack(blocks)[:len(a), :len(w)]


def of_threads(a, w, of_a, of_w):
    """What comes out when thread (x, y) multiplies row of_a of a's tile and of_w of w's."""
    m, n = np.indices((len(a), len(w)))
    place = {"x": n % TILE, "y": m % TILE}
    whole = padded(a) @ padded(w).T
    return whole[m - m % TILE + place[of_a], n - n % TILE + place[of_w]]


def left_over(a, w):
    """What comes out when the last step keeps, beyond K, the numbers of the step before."""
    K = a.shape[1]
    k, whole = np.arange(K), K // TILE * TILE
    return product(a, w, 1 + ((k >= K - TILE) & (k < whole)) if K % TILE and whole else None)


def of_own_row(a, w):
    """What comes out when a thread loads row n of w, so that its warp loads 32 rows."""
    N, k = len(w), np.arange(a.shape[1])
    row = np.arange(N)[:, None] // TILE * TILE + k % TILE       # (N, K)
    return product(a, np.where(row < N, w[np.minimum(row, N - 1), k], 0))


def right_cuda(agree, a, w, c, what="", precision="float32"):
    """c is a · wᵀ, or the message names the element, its thread and the likely mistake."""
    name = "matmul_tiled_cuda"
    with np.errstate(all="ignore"):
        mistakes = likely(name, a, w, TILE) | {
            "column_of_w_tile": ("a thread reads column x of w_tile, not row x",
                                 untransposed(a, w)),
            "own_row": ("a thread loads row n of w, not row `row`", of_own_row(a, w)),
            "x_y_exchanged": ("x and y are exchanged: row x of a_tile meets row y of w_tile",
                              of_threads(a, w, "x", "y")),
            "row_y_of_w": ("row y of w_tile is used, not row x", of_threads(a, w, "y", "y")),
            "row_x_of_a": ("row x of a_tile is used, not row y", of_threads(a, w, "x", "x")),
            "stale_tile": ("beyond K a tile keeps numbers of the previous step: store 0 there",
                           left_over(a, w)),
            "sum_unset": ("the sum is not initialised: float sum = 0", np.nan)} if a.size else {}
        agree(c, product(a, w), precision, f"{name}, a {a.shape} and w {w.shape}{what}",
              lambda index: f"row {index[0]}, column {index[1]} of c (thread ({index[1] % TILE}, "
                            f"{index[0] % TILE}) of its tile)", mistakes, unwritten=7)


@pytest.mark.parametrize("M, N, K", SIZES)
def test_matmul_tiled_cuda(subject, agree, rng, M, N, K):
    a, w, c = operands(rng, M, N, K)
    run_cuda(subject, a, w, c)
    right_cuda(agree, a, w, c)


def test_matmul_tiled_cuda__work(subject, reference, rng):
    a, w, c = operands(rng, TILE, TILE, 64)
    launch = run_cuda(subject, a, w, c)
    for known, got, most, what in (
            ("loads_again", launch.bytes("load"), a.nbytes + w.nbytes, "bytes loaded for one tile "
             "of c. Load each number once and then read it from shared memory."),
            ("far_lanes", launch.sectors_per_request("load"), 4, "sectors touched by one load "
             "request. While loading, let x count k, for a and for w."),
            ("conflicts", launch.bank_conflicts(), 1.01, "times the fewest wavefronts. A warp "
             f"reads one column of w_tile, and with rows of {TILE} numbers a column lies in one "
             f"bank. Make its rows {TILE} + 1 long."),
            ("stores_again", launch.bytes("store"), c.nbytes, "bytes stored. Keep the sum in a "
             "register and store it once.")):
        assert got <= most, mistake(
            known, f"matmul_tiled_cuda: {got:,.6g}, not {most:,.6g}, {what}", what)
    a, w, c = operands(rng, 36, 40, 64)
    same_work("matmul_tiled_cuda", *(run_cuda(side, a, w, c) for side in (subject, reference)))


def test_matmul_tiled_cuda__hard(subject, agree, rng):
    for a, w, parts in factors(rng, 39):
        c = np.full((len(a), len(w)), 7, np.float32)
        run_cuda(subject, a, w, c)
        for rows, columns, what, precision in parts:
            right_cuda(agree, a[rows], w[columns], c[rows, columns], what, precision)
    a, w, c = operands(rng, 3, 5, 0)
    run_cuda(subject, a, w, c)
    assert (c == 0).all(), mistake("empty_sum", f"matmul_tiled_cuda: with K = 0 every element of c "
                                   f"is 0; c[0, 0] held 7 and holds {c[0, 0]:g}")
    a, w, c = operands(rng, 2, 33_000, 3)
    run_cuda(subject, a, w, c, grid=(1, 1))
    right_cuda(agree, a, w[:TILE], c[:, :TILE], ", the first of 1,032 tiles")


def test_matmul_tiled_cuda__addresses(subject):
    x = np.zeros(TILE, np.float32)
    for of, sizes in {"a, m · K": (ROWS, 1, FAR), "w, row · K": (1, ROWS, FAR),
                      "c, m · N": (ROWS, FAR, 0)}.items():
        in_64_bits(subject, "matmul_tiled_cuda", (1, 1), (TILE, TILE), (x, x, x.copy(), *sizes),
                   TILE, of)


# ---- the order of tiles


def tile_order(rows, columns, group):
    """[(row, column)] by the book."""
    return [(r, c) for first in range(0, rows, group) for c in range(columns)
            for r in range(first, min(first + group, rows))]


def order(subject, rows, columns, group, programs=None):
    """(tiles, launch) of order_triton; (-7, -7) where no tile was written. programs: the first"""
    import torch

    tiles = torch.full((programs or rows * columns, 2), -7, dtype=torch.int32)
    args = tiles, rows, columns
    return tiles, subject.launch("order_triton", len(tiles), args=args, GROUP=group)


def pairs(row, column):
    return np.stack([row, column], 1)


def placed(first, within, height):
    """The tiles of programs, from the first row and the height of their group and their place in
    it.
    Division as in the simulator: towards 0, and by 0 it gives -1."""
    some = np.where(height == 0, 1, height)
    return pairs(first + np.where(height == 0, within, np.fmod(within, some)),
                 np.where(height == 0, -1, np.fix(within / some)))


def of_orders(p, rows, columns, group):
    """{mistake: (sentence, the tiles that it gives)}"""
    first, within = p // (group * columns) * group, p % (group * columns)
    left = rows - first
    height = np.minimum(left, group)
    by_rows = p // (group * rows) * group       # first rows, if a group had GROUP · rows tiles
    by_tiles = p // group * group               # and if it had GROUP
    number = first // group
    return {
        "row_by_row": ("tiles are numbered row by row", pairs(p // columns, p % columns)),
        "last_group_full": ("each group is given GROUP rows", placed(first, within, group)),
        "p_of_all": ("p is not counted from its group's start", placed(first, p, height)),
        "first_row_0": ("each group begins with row 0", placed(0, within, height)),
        "groups_of_columns": ("groups are GROUP columns wide instead of GROUP rows high",
                              np.array(tile_order(columns, rows, group))[:, ::-1]),
        "rows_counted": ("a group is counted as GROUP · rows tiles; it has GROUP · columns",
                         placed(by_rows, p % (group * rows), np.minimum(rows - by_rows, group))),
        "number_of_group": ("a group begins with the row of its number; that times GROUP is right",
                            placed(number, within, np.minimum(rows - number, group))),
        "column_by_column": ("tiles are numbered column by column", pairs(p % rows, p // rows)),
        "operators_exchanged": ("% and // are exchanged: the row within the group is p % height",
                                pairs(first + within // height, within % height)),
        "group_of_tiles": ("a group is counted as GROUP tiles; it has GROUP · columns",
                           placed(by_tiles, within, np.minimum(rows - by_tiles, group))),
        "all_rows_left": ("a group is given all rows that are left", placed(first, within, left)),
        "remainder": ("the last group is given rows % GROUP rows, which is 0 where it is full",
                      placed(first, within, np.where(left > group, group, rows % group))),
        "row_and_column": ("row and column are exchanged",
                           np.array(tile_order(rows, columns, group))[:, ::-1])}


def right_order(agree, tiles, rows, columns, group):
    """The tiles are those by the book, or the message names the program and the mistake."""
    p = np.arange(len(tiles))
    whole = len(p) == rows * columns        # else the first group alone
    agree(tiles, np.array(tile_order(rows, columns, group)) if whole else
          pairs(p % group, p // group), "exact",
          f"the first {len(p)} of {rows} x {columns} tiles in groups of {group} rows",
          lambda index: f"the {('row', 'column')[index[1]]} of program {index[0]}",
          of_orders(p, rows, columns, group) if whole else {}, unwritten=-7)


@pytest.mark.parametrize("rows, columns, group", [(5, 3, 2), (4, 4, 4), (3, 7, 8), (7, 2, 1),
                                                  (1, 1, 3)])
def test_grouped_triton(subject, agree, rows, columns, group):
    right_order(agree, order(subject, rows, columns, group)[0], rows, columns, group)


def test_grouped_triton__work(subject, reference):
    same_work("grouped_triton", order(subject, 8, 6, 4)[1], order(reference, 8, 6, 4)[1])


def test_grouped_triton__unseen(subject, agree, rng):
    group = int(rng.integers(2, 6))
    sizes = rng.integers(1, 12, (12, 2)).tolist()
    for rows, columns in [*sizes, (group, 3), (2 * group, 5), (group + 1, 1), (group - 1, 2)]:
        right_order(agree, order(subject, rows, columns, group)[0], rows, columns, group)
    tiles, _ = order(subject, 33_000, 40_001, group, programs=99)
    right_order(agree, tiles, 33_000, 40_001, group)


# ---- Triton


def run_triton(subject, a, w, BM, BN, BK, programs=None):
    """(c, launch). programs: the first of them, all if None"""
    import torch

    (M, K), N = a.shape, len(w)
    c = torch.full((M, N), 7, dtype=a.dtype)
    with reports():
        launch = subject.launch("matmul_tiled_triton", programs or -(-M // BM) * -(-N // BN),
                                args=(a, w, c, M, N, K, *a.stride(), *w.stride()),
                                BM=BM, BN=BN, BK=BK, GROUP=2)
    return c, launch


def again(a, w, step):
    """What comes out when each step multiplies the first tiles, as far as its own k exist."""
    sizes = [min(step, a.shape[1] - start) for start in range(0, a.shape[1], step)]
    return sum(product(a[:, :size], w[:, :size]) for size in sizes)


@pytest.mark.parametrize("M, N, K, BM, BN, BK, dtype", TILES)
def test_matmul_tiled_triton(subject, agree, rng, M, N, K, BM, BN, BK, dtype):
    a, w = tensors(rng, M, N, K, dtype)
    right_triton(agree, a, w, run_triton(subject, a, w, BM, BN, BK)[0], (BM, BN, BK), dtype)


def right_triton(agree, a, w, c, tile, precision, what=""):
    """c is a · wᵀ, or the message names the element, its tile and the likely mistake."""
    name, (BM, BN, BK) = "matmul_tiled_triton", tile
    dtype = str(a.dtype).removeprefix("torch.")
    a, w = a.double().numpy(), w.double().numpy()
    with np.errstate(all="ignore"):
        mistakes = likely(name, a, w, BK)
        mistakes["not_advanced"] = "each step has the same addresses: advance them", again(a, w, BK)
        if BN == BK:
            mistakes["untransposed"] = ("w_tile is multiplied without .T; tl.dot needs (BK, BN)",
                                        untransposed(a, w, BK))
        if dtype == "float32":
            mistakes["tf32"] = ("tl.dot rounds fp32 inputs to TF32; input_precision=\"ieee\" "
                                "forbids it", product(tf32(a), tf32(w)))
        agree(c, product(a, w), precision, f"{name}, a {a.shape} and w {w.shape} {dtype} in tiles "
              f"of {BM} x {BN} and steps of {BK}{what}",
              lambda index: f"row {index[0]}, column {index[1]} of c (row {index[0] % BM}, column "
                            f"{index[1] % BN} of its tile)", mistakes, unwritten=7)


def test_matmul_tiled_triton__strides(subject, agree, rng):
    a, w = tensors(rng, 20, 16, 49, "float32")
    a = a[:, :40]
    w = w[:, 9:].T.contiguous().T
    c, _ = run_triton(subject, a, w, 16, 16, 32)
    n, k = np.indices(w.shape)
    near = w.T.numpy().ravel()[k % 32 * 16 + n + k // 32 * 32]  # 32 numbers on, not 32 k
    agree(c, product(a.numpy(), w.numpy()), "float32",
          "matmul_tiled_triton, rows of a 49 numbers apart of which 40 count, and w transposed",
          lambda index: f"row {index[0]}, column {index[1]} of c",
          {"no_strides": ("a step advances by BK numbers, not by BK · a_k and BK · w_k",
                          product(a.numpy(), near))})


def test_matmul_tiled_triton__large_sums(subject, agree, rng):
    a, w = tensors(rng, 16, 16, 512, "float16")
    a[:] = 1
    w[:, :256] += 100
    w[:, 256:] -= 100
    c, _ = run_triton(subject, a, w, 16, 16, 64)
    off = np.abs(c.double().numpy() - product(a.double().numpy(), w.double().numpy())).max()
    assert off < 0.1, mistake("short_sums", (
        f"matmul_tiled_triton, float16 numbers whose sums grow to 25,600 and fall back: {off:.3g} "
        f"off. At 25,600 float16 has steps of 16, so the sums are not fp32 all the way."))


def test_matmul_tiled_triton__work(subject, reference, rng):
    M, N, K, BM, BN, BK = 64, 64, 128, 32, 32, 64
    a, w = tensors(rng, M, N, K, "bfloat16")
    _, launch = run_triton(subject, a, w, BM, BN, BK)
    got, least = launch.bytes("load"), M // BM * (N // BN) * (BM + BN) * K * 2
    assert got <= least, mistake("loads_again", (
        f"matmul_tiled_triton loads {got:,} bytes; {least:,} are enough, BM + BN rows of {K} "
        f"numbers for each tile. Load each tile once in a step."))
    kinds = ", ".join(launch.launches[0]["totals"]["flops_by_type"])
    assert "tensor" in kinds, mistake("no_tensor_cores", (
        f"matmul_tiled_triton multiplies bfloat16 tiles as {kinds or 'nothing'}, not on tensor "
        f"cores. Pass the tiles to tl.dot as they were loaded."))
    same_work("matmul_tiled_triton", launch, run_triton(reference, a, w, BM, BN, BK)[1])


def test_matmul_tiled_triton__views(subject, agree, rng):
    """Each layout of one operand with each of the other: their strides differ."""
    a, w = tensors(rng, 18, 21, 37, "float32")
    for (of_a, left), (of_w, right) in itertools.product(views(a).items(), views(w).items()):
        c, _ = run_triton(subject, left, right, 16, 16, 16)
        agree(c, product(a.numpy(), w.numpy()), "float32",
              f"matmul_tiled_triton, a with {of_a}, w with {of_w}",
              lambda index: f"row {index[0]}, column {index[1]} of c", unwritten=7)


def test_matmul_tiled_triton__hard(subject, agree, rng):
    import torch

    tile = 16, 16, 32
    for a, w, parts in factors(rng, 39):
        a, w = torch.from_numpy(a), torch.from_numpy(w)
        c, _ = run_triton(subject, a, w, *tile)
        for rows, columns, what, precision in parts:
            right_triton(agree, a[rows], w[columns], c[rows, columns], tile, precision, what)
    a, w = tensors(rng, 2, 33_000, 3, "float32")
    c, _ = run_triton(subject, a, w, *tile, programs=1)
    right_triton(agree, a, w[:16], c[:, :16], tile, "float32", ", the first of 2,063 tiles")


# ---- the course's own launchers


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_launcher(subject, agree, rng, dtype):
    for M, N, K in ((1, 129, 127), (40, 33, 72), (5, 70, 33)):
        a, w = tensors(rng, M, N, K, dtype)
        want = subject.matmul_oracle(a.double().numpy(), w.double().numpy())
        agree(subject.matmul(a, w), want, dtype, f"matmul {dtype}, {(M, N, K)}")
        agree(subject.matmul_torch(a, w), want, dtype, f"matmul_torch {dtype}, {(M, N, K)}")
    if dtype == "float32":
        a, w = tensors(rng, 33, 40, 31, dtype)
        agree(subject.matmul_cuda(a, w), product(a.numpy(), w.numpy()), dtype, "matmul_cuda")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_strides(subject, agree, rng, dtype):
    a, w = tensors(rng, 6, 10, 40, dtype)
    for left, right in ((a[:, :33], w[:, 7:]), (a[::2], w[3:]), (a[:1].expand(5, 40), w),
                        (a[:, ::40], w[:, ::40]), (a.T.contiguous().T, w[:, :1].expand(10, 40))):
        agree(subject.matmul(left, right), left.double().numpy() @ right.double().numpy().T,
              dtype, f"matmul, {dtype}, strides {left.stride()} and {right.stride()}")


def test_extreme_values(subject):
    """Overflow is as in torch, and a row with inf or NaN spoils only itself."""
    import torch

    a, w = torch.ones(3, 40), torch.ones(5, 40)
    a[0, 0], a[1, 0], w[:, 1] = torch.inf, torch.nan, 3e38
    got, want = subject.matmul(a, w), a @ w.T
    assert torch.equal(torch.isnan(got), torch.isnan(want))
    assert torch.equal(got[0], want[0])
    a, w = torch.full((1, 64), 255.0).half(), torch.full((1, 64), 255.0).half()
    assert torch.isinf(subject.matmul(a, w)).all()      # 64 · 255² is beyond fp16
    w[:, ::2] *= -1
    assert (subject.matmul(a, w) == 0).all()            # and its sums are not


@pytest.mark.parametrize("M, N, K", [(0, 5, 3), (5, 0, 3), (0, 0, 0), (3, 4, 0)])
def test_nothing_to_do(subject, M, N, K):
    import torch

    for launcher in (subject.matmul, subject.matmul_cuda, subject.matmul_torch):
        assert torch.equal(launcher(torch.ones(M, K), torch.ones(N, K)), torch.zeros(M, N))


def test_twice_the_same(subject, rng):
    import torch

    a, w = tensors(rng, 20, 30, 200, "float32")
    assert torch.equal(subject.matmul(a, w), subject.matmul(a, w))


def test_what_the_launchers_refuse(subject):
    import torch

    a, w = torch.ones(4, 6), torch.ones(5, 6)
    both = (((a, w[:, :5]), "(5, 5), expected (M, K) and (N, K)"), ((a[0], w), "shape (6,)"),
            ((a.half(), w), "a is torch.float16 and w torch.float32"),
            ((a.double(), w.double()), "torch.float64"))
    cuda = (((torch.ones(6, 4).T, w), "a has strides (1, 4)"),
            ((a, torch.ones(5, 12)[:, ::2]), "w has strides (12, 2)"),
            ((torch.ones(4, 7)[:, :6], w), "a has strides (7, 1)"),
            ((torch.ones(2_097_121, 1), w[:, :1].contiguous()), "2097121 rows"))
    for launcher, cases in ((subject.matmul, both), (subject.matmul_cuda, both + cuda)):
        for args, says in cases:
            with pytest.raises(Raised) as refusal:
                launcher(*args)
            assert says in refusal.value.text


def test_oracle_is_torchs(subject, rng):
    import torch

    a, w, _ = operands(rng, 5, 7, 9)
    want = torch.nn.functional.linear(torch.from_numpy(a).double(), torch.from_numpy(w).double())
    assert np.allclose(subject.matmul_oracle(a, w), want.numpy(), rtol=1e-13, atol=1e-13)


def test_the_tile_fits_the_matrix(subject):
    """Half-empty tiles and half-empty GPUs are not chosen while there is a smaller tile."""
    for M, N, itemsize, want in ((8192, 8192, 2, (128, 256)), (512, 4096, 2, (128, 128)),
                                 (1, 8192, 2, (16, 32)), (64, 4096, 2, (64, 32)),
                                 (1, 64, 4, (16, 32)), (4096, 4096, 4, (128, 128))):
        how = subject.configuration(M, N, itemsize)
        assert (how["BM"], how["BN"]) == want, (M, N, itemsize)


@pytest.mark.slow
def test_what_hopper_gets():
    from layer1_kernels.bench.k05_matmul_tiled import shipped
    from layer1_kernels.k05_matmul_tiled import KERNELS

    for name, code in shipped().items():
        assert code.spills == 0, f"{name}: {code.spills} bytes spilled"
        assert not code.serialised, f"{name}: {code.serialised}"
        assert code.shared <= 227 * 1024, f"{name}: {code.shared} bytes of shared memory"
        assert code.cp_async and not code.loads, f"{name}: loads are not pipelined"
        assert code.wgmma or "matmul" not in name, f"{name}: no wgmma"
        assert code.wgmma or code.mma_sync or "fp32" in name, f"{name}: no tensor cores"
    assert KERNELS.get("matmul_tiled_cuda").resources.spill_stores == 0


@pytest.mark.gpu
@pytest.mark.parametrize("M, N, K", [(0, 5, 3), (3, 4, 0), (1, 1000, 1000), (129, 127, 1000),
                                     (40, 4096, 512), (1024, 4096, 512), (4096, 4096, 256)])
def test_every_kernel_on_the_device(M, N, K):
    import torch

    from layer1_kernels import matmul, matmul_cuda

    a, w = (torch.randn(rows, K, device="cuda") for rows in (M, N))
    want = a.double() @ w.double().T
    for launcher in (matmul, matmul_cuda):
        assert torch.allclose(launcher(a, w).double(), want, rtol=2e-5, atol=1e-4), launcher
    for dtype, near in ((torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
        left, right = a.to(dtype), w.to(dtype)
        want = left.double() @ right.double().T
        assert torch.allclose(matmul(left, right).double(), want, rtol=near, atol=near), dtype


@pytest.mark.gpu
def test_matmul_tiled_cuda_speed(pace):
    pace("matmul_cuda", numbers("float32", 2048, 2048), numbers("float32", 2048, 2048))


@pytest.mark.gpu
def test_matmul_tiled_triton_speed(pace):
    pace("matmul", numbers("bfloat16", 4096, 4096), numbers("bfloat16", 4096, 4096))
