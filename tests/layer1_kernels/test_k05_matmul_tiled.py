"""Graders of k05. Outputs start as 7, so that unwritten places show."""

import itertools

import numpy as np
import pytest

from lab.judge.addresses import FAR, ROWS, in_64_bits
from lab.judge.adversarial import factors, views
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work

TILE = 32
SIZES = [(9, 21, 65), (33, 17, 31), (3, 40, 29), (1, 1, 1), (32, 32, 64)]           # M, N, K
TILES = [(33, 17, 40, 16, 16, 16, "float32"), (17, 50, 129, 16, 32, 64, "float16"),
         (40, 33, 100, 32, 16, 32, "bfloat16"), (1, 1, 1, 16, 16, 32, "float32"),
         (5, 127, 65, 16, 32, 32, "bfloat16")]          # M, N, K, BM, BN, BK, dtype


def operands(rng, M, N, K):
    """a (M, K), w (N, K), and c (M, N) of sevens."""
    a, w = (rng.standard_normal((rows, K), dtype=np.float32) for rows in (M, N))
    return a, w, np.full((M, N), 7, np.float32)


def product(a, w, of=None):
    """a · wᵀ in float64, of some of the k or with a weight for each."""
    of = np.ones(a.shape[1]) if of is None else of
    return (a * of).astype(np.float64) @ w.T


def padded(x, rows, columns):
    """x with zeros up to multiples of rows and columns."""
    return np.pad(x.astype(np.float64), [(0, -x.shape[0] % rows), (0, -x.shape[1] % columns)])


def ceil(a, b):
    return -(-a // b)


def likely(name, a, w, step):
    """{mistake: what it gives} of any kernel that walks along k in steps."""
    (M, K), N = a.shape, len(w)
    number = np.arange(K) // step
    return {
        f"in {name} a number fetched beyond K is multiplied by 0, and infinity times 0 is NaN; "
        f"both tiles are 0 there": product(a, w) + 0 * (a[:, -1:] + w[:, -1]),
        f"{name} starts its sums again with each step": product(a, w, number == number[-1]),
        f"{name} ends after the first step": product(a, w, number == 0),
        f"{name} drops the k beyond the last whole step":
            product(a, w, np.arange(K) < K // step * step),
        f"{name} reads w as (K, N), down its columns": product(a, w.reshape(K, N).T),
        f"{name} leaves out the last k of each step":
            product(a, w, np.arange(K) % step < step - 1),
        f"{name} fetches the first tiles in each step: `start` is not used":
            (number.max(initial=0) + 1) * product(a, w, number == 0),
        f"{name} goes on along a alone, and takes w's first tile in each step":
            product(a, w[:, np.arange(K) % step]),
        f"{name} goes on along w alone, and takes a's first tile in each step":
            product(a[:, np.arange(K) % step], w),
        f"{name} writes c column by column: m and n are exchanged in its address":
            product(a, w).T.reshape(M, N),
        f"{name} adds to what c held before; sums start at 0": product(a, w) + 7,
        f"{name} leaves out products with infinity or NaN":
            product(*(np.where(np.isfinite(x), x, 0) for x in (a, w))),
        f"{name} writes nothing": np.full((M, N), 7)}


# ---- intensity


ONE_STRIP = "only one of the two sides is multiplied by itemsize: parentheses are missing"


def test_tile_intensity(subject, reference, rng):
    a, w, c = operands(rng, TILE, TILE, 64)
    launch = reference.launch("matmul_tiled_cuda", (1, 1), (TILE, TILE),
                              (a, w, c, TILE, TILE, 64))
    counted = 2 * TILE * TILE * 64 / launch.bytes("load")
    for BM, BN, itemsize, want in ((TILE, TILE, 4, counted), (16, 64, 1, 2 * 16 * 64 / 80),
                                   (128, 32, 2, 2 * 128 * 32 / 320)):
        got = subject.tile_intensity(BM, BN, itemsize)
        assert isinstance(got, (int, float)), f"an intensity is a number, got {got!r}"
        why = {want * itemsize: "these are FLOPs for each number; a number has itemsize bytes",
               want * itemsize / 4: "that is for numbers of 4 bytes, whatever itemsize is",
               want / 2: "each pair of numbers is a multiplication and an addition, two FLOPs",
               2 * BM * BN / (BM * BN * itemsize): "the tile fetches its two sides, BM + BN, not "
                                                   "its area",
               1 / want: "that is bytes for each FLOP",
               want * itemsize ** 2: "itemsize multiplies; as bytes it belongs to the divisor: "
                                     "parentheses are missing",
               want / 8: "itemsize is in bytes already, not in bits",
               2 * BM * BN / (BM + BN * itemsize): ONE_STRIP,
               2 * BM * BN / (BM * itemsize + BN): ONE_STRIP,
               2 * BM * BN / ((BM + BN + BM * BN) * itemsize): "the store of c is left out here",
               2 * want: "the tile fetches both of its sides, BM + BN (or four FLOPs are counted "
                         "for two)",
               want // 1: "the fraction is lost: // rounds down, / does not",
               BN / itemsize: "both sides are taken to be BM, the shorter one, or the tile to be "
                              "BN x BN",
               BM / itemsize: "both sides are taken to be BN, the longer one, or the tile to be "
                              "BM x BM"}
        said = next((text for value, text in why.items() if abs(got - value) < 1e-6 * value),
                    "for one k: BM + BN numbers come, BM · BN multiplications are done")
        assert abs(got - want) < 1e-6 * want, (
            f"a tile {BM} x {BN} of {itemsize}-byte numbers: {got:g} FLOP/byte is not what is "
            f"counted, {want:g}; {said}")


def test_tile_intensity__unseen(unseen, rng):
    for BM, BN, itemsize in [*rng.integers(1, 300, (4, 3)).tolist(), (2**31, 2**15, 2), (1, 1, 1)]:
        unseen("tile_intensity", BM, BN, itemsize)


# ---- CUDA


def run_cuda(subject, a, w, c, grid=None):
    (M, K), N = a.shape, len(w)
    return subject.launch("matmul_tiled_cuda", grid or (ceil(N, TILE), ceil(M, TILE)),
                          (TILE, TILE), (a, w, c, M, N, K))


def untransposed(a, w, tile=TILE):
    """What comes out when a column of w's square tile is multiplied by instead of its row."""
    left, right = padded(a, tile, tile), padded(w, tile, tile)
    blocks = [sum(left[:, k:k + tile] @ right[n:n + tile, k:k + tile]
                  for k in range(0, left.shape[1], tile)) for n in range(0, len(right), tile)]
    return np.hstack(blocks)[:len(a), :len(w)]


def of_threads(a, w, of_a, of_w):
    """What comes out when thread (x, y) multiplies row of_a of a's tile and of_w of w's."""
    left, right = padded(a, TILE, TILE), padded(w, TILE, TILE)
    whole = left @ right.T
    m, n = np.indices((len(a), len(w)))
    place = {"x": n % TILE, "y": m % TILE}
    return whole[m - m % TILE + place[of_a], n - n % TILE + place[of_w]]


def left_over(a, w):
    """What comes out when the last step keeps, beyond K, the numbers of the step before."""
    K = a.shape[1]
    k, whole = np.arange(K), K // TILE * TILE
    return product(a, w, 1 + ((k >= K - TILE) & (k < whole)) if K % TILE and whole else None)


def of_own_row(a, w):
    """What comes out when a thread fetches row n of w, so that its warp fetches 32 rows."""
    N, k = len(w), np.arange(a.shape[1])
    row = np.arange(N)[:, None] // TILE * TILE + k % TILE       # (N, K)
    return product(a, np.where(row < N, w[np.minimum(row, N - 1), k], 0))


def right_cuda(agree, a, w, c, what="", precision="float32"):
    """c is a · wᵀ, or the message names the element, its thread and the likely mistake."""
    name = "matmul_tiled_cuda"
    with np.errstate(all="ignore"):
        mistakes = likely(name, a, w, TILE) | {
            "a thread reads column x of w_tile; its row of w stands in row x": untransposed(a, w),
            "a thread fetches row n of w, the one it multiplies with; it should fetch `row`":
                of_own_row(a, w),
            "x and y are exchanged: row x of a_tile is multiplied by row y of w_tile":
                of_threads(a, w, "x", "y"),
            "row y of w_tile is multiplied by; a thread's column is x": of_threads(a, w, "y", "y"),
            "row x of a_tile is multiplied by; a thread's row is y": of_threads(a, w, "x", "x"),
            "nothing is fetched beyond K, and the numbers of the step before stay there":
                left_over(a, w),
            "the sum has no value before the first step: float sum = 0": np.nan} if a.size else {}
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
    launch, enough = run_cuda(subject, a, w, c), a.nbytes + w.nbytes
    assert launch.bytes("load") <= enough, (
        f"matmul_tiled_cuda, one tile of c: {launch.bytes('load'):,} bytes are loaded, {enough:,} "
        f"are all of a and w: fetch a number once, and read it from shared memory after that")
    got = launch.sectors_per_request("load")
    assert got <= 4, (
        f"matmul_tiled_cuda: a load of a warp touches {got:g} sectors, 4 hold its 128 bytes: while "
        f"fetching, let x run along k, for a and for w")
    conflicts = launch.bank_conflicts()
    assert conflicts <= 1.01, (
        f"matmul_tiled_cuda: shared memory is asked {conflicts:.3g} times as often as need be: the "
        f"threads of a warp read one column of w_tile, and its rows are {TILE} banks apart; rows "
        f"of {TILE} + 1 numbers are not")
    assert launch.bytes("store") == c.nbytes, (
        f"matmul_tiled_cuda stores {launch.bytes('store'):,} bytes, c has {c.nbytes:,}: keep the "
        f"sum in a register and store it once")
    a, w, c = operands(rng, 36, 40, 64)
    same_work("matmul_tiled_cuda", run_cuda(subject, a, w, c),
              run_cuda(reference, a, w, c.copy()))


def test_matmul_tiled_cuda__hard(subject, agree, rng):
    for a, w, parts in factors(rng, 39):
        c = np.full((len(a), len(w)), 7, np.float32)
        run_cuda(subject, a, w, c)
        for rows, columns, what, precision in parts:
            right_cuda(agree, a[rows], w[columns], c[rows, columns], what, precision)
    a, w, c = operands(rng, 3, 5, 0)
    run_cuda(subject, a, w, c)
    right_cuda(agree, a, w, c, ": a sum of nothing is 0")
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

    programs = programs or rows * columns
    tiles = torch.full((programs, 2), -7, dtype=torch.int32)
    return tiles, subject.launch("order_triton", programs, args=(tiles, rows, columns),
                                 GROUP=group)


def placed(first, within, rows, group):
    """The tiles of programs, from the first row of their group and their place in it."""
    height = np.maximum(np.minimum(rows - first, group), 1)
    return np.stack([first + within % height, within // height], 1)


def of_few_tiles(p, columns, rows, group):
    """What comes out when the first row is p // GROUP * GROUP; a height below 0 divides as in C."""
    first, within = p // group * group, p % (group * columns)
    height = np.minimum(rows - first, group)
    height = np.where(height == 0, 1, height)
    return np.stack([first + np.fmod(within, height), np.fix(within / height)], 1)


def right_order(agree, tiles, rows, columns, group):
    """The tiles are those by the book, or the message names the program and the mistake."""
    if len(tiles) < rows * columns:         # the first group alone
        p = np.arange(len(tiles))
        agree(tiles, np.stack([p % group, p // group], 1), "exact",
              f"the first {len(p)} of {rows} x {columns} tiles in groups of {group} rows",
              lambda index: f"the {('row', 'column')[index[1]]} of program {index[0]}")
        return
    p = np.arange(rows * columns)
    first, within = p // (group * columns) * group, p % (group * columns)
    height = np.minimum(rows - first, group)
    agree(tiles, np.array(tile_order(rows, columns, group)), "exact",
          f"tiles of {rows} x {columns} in groups of {group} rows",
          lambda index: f"the {('row', 'column')[index[1]]} of program {index[0]}", {
              "the programs go row by row through all tiles": np.stack([p // columns,
                                                                        p % columns], 1),
              "the last group is taken to be as high as the others":
                  np.stack([first + within % group, within // group], 1),
              "p is not counted from the beginning of its group":
                  np.stack([first + p % height, p // height], 1),
              "each group begins with row 0": np.stack([within % height, within // height], 1),
              "a group is GROUP columns, not GROUP rows":
                  np.array(tile_order(columns, rows, group))[:, ::-1],
              "a group is counted as GROUP · rows tiles; GROUP rows have GROUP · columns":
                  placed(p // (group * rows) * group, p % (group * rows), rows, group),
              "a group begins with the row of its own number: that times GROUP is its first":
                  placed(first // group, within, rows, group),
              "the programs go column by column through all tiles, without groups":
                  np.stack([p % rows, p // rows], 1),
              "% and // are exchanged: the row within the group is p % height":
                  np.stack([first + within // height, within % height], 1),
              "a group is counted as GROUP tiles; GROUP rows have GROUP · columns":
                  of_few_tiles(p, columns, rows, group),
              "the height is what is left of the rows, and not at most GROUP":
                  np.stack([first + within % (rows - first), within // (rows - first)], 1),
              "row and column are exchanged":
                  np.array(tile_order(rows, columns, group))[:, ::-1]}, unwritten=-7)


@pytest.mark.parametrize("rows, columns, group", [(5, 3, 2), (4, 4, 4), (3, 7, 8), (7, 2, 1),
                                                  (1, 1, 3)])
def test_grouped_triton(subject, agree, rows, columns, group):
    tiles, _ = order(subject, rows, columns, group)
    right_order(agree, tiles, rows, columns, group)


def test_grouped_triton__work(subject, reference):
    same_work("grouped_triton", order(subject, 8, 6, 4)[1], order(reference, 8, 6, 4)[1])


def test_grouped_triton__unseen(subject, agree, rng):
    group = int(rng.integers(2, 6))
    drawn = rng.integers(1, 12, (12, 2)).tolist()
    for rows, columns in [*drawn, (group, 3), (2 * group, 5), (group + 1, 1), (group - 1, 2)]:
        tiles, _ = order(subject, rows, columns, group)
        right_order(agree, tiles, rows, columns, group)
    tiles, _ = order(subject, 33_000, 40_001, group, programs=99)
    right_order(agree, tiles, 33_000, 40_001, group)


# ---- Triton


def run_triton(subject, a, w, BM, BN, BK, programs=None):
    """(c, launch). programs: the first of them, all if None"""
    import torch

    (M, K), N = a.shape, len(w)
    c = torch.full((M, N), 7, dtype=a.dtype)
    launch = subject.launch("matmul_tiled_triton", programs or ceil(M, BM) * ceil(N, BN),
                            args=(a, w, c, M, N, K, *a.stride(), *w.stride()),
                            BM=BM, BN=BN, BK=BK, GROUP=2)
    return c, launch


def tensors(rng, M, N, K, dtype):
    """a (M, K) and w (N, K) as tensors."""
    import torch

    return [torch.from_numpy(x).to(getattr(torch, dtype)) for x in operands(rng, M, N, K)[:2]]


def again(a, w, step):
    """What comes out when each step multiplies the first tiles, as far as its own k exist."""
    steps = [min(step, a.shape[1] - start) for start in range(0, a.shape[1], step)]
    return sum(product(a[:, :size], w[:, :size]) for size in steps)


def tf32(x):
    """fp32 with the 13 last bits cut off, as tensor cores read it."""
    return (x.astype(np.float32).view(np.int32) & ~0x1FFF).view(np.float32)


@pytest.mark.parametrize("M, N, K, BM, BN, BK, dtype", TILES)
def test_matmul_tiled_triton(subject, agree, rng, M, N, K, BM, BN, BK, dtype):
    a, w = tensors(rng, M, N, K, dtype)
    c, _ = run_triton(subject, a, w, BM, BN, BK)
    right_triton(agree, a, w, c, (BM, BN, BK), dtype)


def right_triton(agree, a, w, c, tile, precision, what=""):
    """c is a · wᵀ, or the message names the element, its tile and the likely mistake."""
    name, (BM, BN, BK) = "matmul_tiled_triton", tile
    dtype = str(a.dtype).removeprefix("torch.")
    a, w = a.double().numpy(), w.double().numpy()
    with np.errstate(all="ignore"):
        mistakes = likely(name, a, w, BK)
        mistakes[f"{name} takes the first tiles again and again"] = again(a, w, BK)
        if BN == BK:
            mistakes["tl.dot is given w's tile as it is loaded, (BN, BK), not transposed"] = \
                untransposed(a, w, BK)
        if dtype == "float32":
            mistakes["tl.dot rounds fp32 inputs to TF32; input_precision=\"ieee\" forbids it"] = \
                product(tf32(a), tf32(w))
        agree(c, product(a, w), precision, f"{name}, a {a.shape} and w {w.shape} {dtype} in tiles "
              f"of {BM} x {BN} and steps of {BK}{what}",
              lambda index: f"row {index[0]}, column {index[1]} of c (row {index[0] % BM}, column "
                            f"{index[1] % BN} of its tile)", mistakes, unwritten=7)


def test_matmul_tiled_triton__strides(subject, agree, rng):
    a, w = tensors(rng, 20, 16, 49, "float32")
    a, w = a[:, :40], w[:, 9:].T.contiguous().T
    c, _ = run_triton(subject, a, w, 16, 16, 32)
    n, k = np.indices(w.shape)
    near = w.T.numpy().ravel()[k % 32 * 16 + n + k // 32 * 32]  # 32 numbers on, not 32 k
    agree(c, product(a.numpy(), w.numpy()), "float32",
          "matmul_tiled_triton, rows of a 49 numbers apart of which 40 count, and w transposed",
          lambda index: f"row {index[0]}, column {index[1]} of c",
          {"a step moves on by BK numbers, not by BK · a_k and BK · w_k": product(a.numpy(), near)})


def test_matmul_tiled_triton__large_sums(subject, agree, rng):
    a, w = tensors(rng, 16, 16, 512, "float16")
    a[:] = 1
    w[:, :256] += 100
    w[:, 256:] -= 100
    c, _ = run_triton(subject, a, w, 16, 16, 64)
    got, want = c.double().numpy(), product(a.double().numpy(), w.double().numpy())
    off = np.abs(got - want).max()
    assert off < 0.1, (
        f"matmul_tiled_triton, float16 and sums that grow to 25,600 and come back: {off:.3g} off. "
        f"A float16 of that size is known to the nearest 16: the sums are not fp32 throughout")


def test_matmul_tiled_triton__work(subject, reference, rng):
    M, N, K, BM, BN, BK = 64, 64, 128, 32, 32, 64
    a, w = tensors(rng, M, N, K, "bfloat16")
    _, launch = run_triton(subject, a, w, BM, BN, BK)
    tiles, got = M // BM * (N // BN), launch.bytes("load")
    enough = tiles * (BM + BN) * K * 2
    assert got <= enough, (
        f"matmul_tiled_triton, {tiles} tiles of {BM} x {BN}: {got:,} bytes are loaded, {enough:,} "
        f"are BM + BN rows of {K} for each: load a tile of a and one of w a step, once")
    kinds = launch.launches[0]["totals"]["flops_by_type"]
    assert any("tensor" in kind for kind in kinds), (
        f"matmul_tiled_triton multiplies bfloat16 tiles as {', '.join(kinds) or 'nothing'}, not on "
        f"tensor cores: give tl.dot the tiles as they were loaded")
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
    import torch

    for M, N, K in ((1, 129, 127), (40, 33, 72), (5, 70, 33)):
        a, w = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in operands(rng, M, N, K)[:2])
        want = subject.matmul_oracle(a.double().numpy(), w.double().numpy())
        agree(subject.matmul(a, w), want, dtype, f"matmul {dtype}, {(M, N, K)}")
        agree(subject.matmul_torch(a, w), want, dtype, f"matmul_torch {dtype}, {(M, N, K)}")
    if dtype == "float32":
        a, w, _ = operands(rng, 33, 40, 31)
        agree(subject.matmul_cuda(torch.from_numpy(a), torch.from_numpy(w)), product(a, w), dtype,
              "matmul_cuda")


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

    a, w, _ = operands(rng, 20, 30, 200)
    a, w = torch.from_numpy(a), torch.from_numpy(w)
    assert torch.equal(subject.matmul(a, w), subject.matmul(a, w))


def test_what_the_launchers_refuse(subject):
    import torch

    a, w = torch.ones(4, 6), torch.ones(5, 6)
    both = (((a, w[:, :5]), "(5, 5), expected (M, K) and (N, K)"), ((a[0], w), "shape (6,)"),
            ((a.half(), w), "a is torch.float16 and w torch.float32"),
            ((a.double(), w.double()), "torch.float64"))
    for launcher in (subject.matmul, subject.matmul_cuda):
        for given, says in both:
            with pytest.raises(Raised) as refusal:
                launcher(*given)
            assert says in refusal.value.text
    for given, says in (((torch.ones(6, 4).T, w), "a has strides (1, 4)"),
                        ((a, torch.ones(5, 12)[:, ::2]), "w has strides (12, 2)"),
                        ((torch.ones(4, 7)[:, :6], w), "a has strides (7, 1)"),
                        ((torch.ones(2_097_121, 1), w[:, :1].contiguous()), "2097121 rows")):
        with pytest.raises(Raised) as refusal:
            subject.matmul_cuda(*given)
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

    for name, found in shipped().items():
        assert found.spills == 0, f"{name}: {found.spills} bytes spilled"
        assert not found.serialised, f"{name}: {found.serialised}"
        assert found.shared <= 227 * 1024, f"{name}: {found.shared} bytes of shared memory"
        assert found.cp_async and not found.loads, f"{name}: loads are not pipelined"
        assert found.wgmma or "matmul" not in name, f"{name}: no wgmma"
        assert found.wgmma or found.mma_sync or "fp32" in name, f"{name}: no tensor cores"
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
