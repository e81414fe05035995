"""Graders of k12. Outputs start as 7, so that unwritten places show."""

import numpy as np
import pytest

from lab.judge.adversarial import factors
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work

TILE, BK, THREADS = 64, 64, 128
WHOLE = [(32, 16, 48), (16, 48, 16), (16, 16, 160)]         # M, N, K of wmma_warp_cuda
SIZES = [(33, 50, 72), (70, 40, 129), (1, 1, 1), (1, 127, 200), (64, 64, 64)]
TILES = [(33, 17, 40, 32, 16, 16, "float32", "ieee"), (17, 33, 72, 16, 32, 32, "float32", "tf32"),
         (20, 16, 65, 16, 16, 32, "float32", "tf32x3"),
         (17, 50, 129, 16, 32, 64, "float16", "ieee"), (1, 1, 1, 16, 16, 16, "float32", "ieee"),
         (5, 127, 65, 16, 32, 32, "bfloat16", "ieee")]


def operands(rng, M, N, K, dtype=np.float16):
    """a (M, K), w (N, K)."""
    return [rng.standard_normal((rows, K)).astype(dtype) for rows in (M, N)]


def product(a, w, of=None):
    """a · wᵀ in float64, of some of the k or with a weight for each."""
    of = np.ones(a.shape[1]) if of is None else of
    return (a * of).astype(np.float64) @ w.astype(np.float64).T


def ceil(a, b):
    return -(-a // b)


def untransposed(a, w):
    """What comes out when each 16 x 16 of w is taken for (k, n), not for (n, k)."""
    left, right = (np.pad(x.astype(np.float64), [(0, -n % 16) for n in x.shape]) for x in (a, w))
    blocks = [sum(left[:, k:k + 16] @ right[n:n + 16, k:k + 16]
                  for k in range(0, left.shape[1], 16)) for n in range(0, len(right), 16)]
    return np.hstack(blocks)[:len(a), :len(w)]


def likely(name, a, w, step):
    """{mistake: what it gives} of any kernel that walks along k in steps."""
    (M, K), N = a.shape, len(w)
    number = np.arange(K) // step
    return {f"{name} starts its sums again with each step of {step} k":
                product(a, w, number == number[-1]),
            f"{name} ends after the first {step} k": product(a, w, number == 0),
            f"{name} drops the k beyond the last whole step":
                product(a, w, np.arange(K) < K // step * step),
            f"{name} leaves out the last k": product(a, w, np.arange(K) < K - 1),
            f"{name} writes nothing": np.full((M, N), 7)}


def first_alone(name, want, rows, columns):
    """{mistake: what it gives} where one block writes its tile, and no other does."""
    M, N = want.shape
    first = (np.arange(M)[:, None] < rows) & (np.arange(N) < columns)
    return {f"only the first block of {name} writes its tile": np.where(first, want, 7)}


def halves(rng, K, whole=1):
    """factors in fp16, with rows of -1 so that there is a whole number of them."""
    for a, w, parts in factors(rng, K):
        yield (*(np.pad(x, [(0, -len(x) % whole), (0, 0)], constant_values=-1).astype(np.float16)
                 for x in (a, w)), parts)


def too_few_digits(name, want):
    """The right answer itself as a mistake, because right answers are compared only to 1e-3. It is
    tried first."""
    return {f"{name} has too few digits in its sums: the accumulator is a fragment of float": want}


# ---- the prediction


def run_warp(subject, a, w, kernel="wmma_warp_cuda", dtype=np.float32, grid=None):
    """(c, launch). grid: of only some blocks"""
    (M, K), N = a.shape, len(w)
    c = np.full((M, N), 7, dtype)
    return c, subject.launch(kernel, grid or (N // 16, M // 16), 32, (a, w, c, N, K))


def tensor_instructions(launch):
    return launch.launches[0]["totals"]["instructions"].get("tensor core", 0)


def test_predict_mma_flops(subject, reference, rng):
    _, launch = run_warp(reference, *operands(rng, 16, 16, 64))
    want = launch.launches[0]["flops"] // tensor_instructions(launch)
    got = subject.predict_mma_flops()
    assert isinstance(got, int), f"a count of FLOPs is a whole number, got {got!r}"
    why = {want // 2: "each product is multiplied and added: two FLOPs",
           want // 16: "each of the 16 · 16 results is a sum of 16 products",
           64: "64 is what a warp's fp32 multiply-add does, two FLOPs a lane",
           want // 32: "that is one lane's share; the warp's is asked for",
           }.get(got, "count the results, and the products in each")
    assert got == want, (f"{got} FLOPs are not what the simulator counts for one mma of 16 x 16 x "
                         f"16; {why}")


# ---- one warp


def steps_of_first(a, w, step, of_a=False, of_w=False):
    """What comes out when every step takes the k of the first, of a or of w."""
    first = np.arange(a.shape[1]) % step
    return product(a[:, first] if of_a else a, w[:, first] if of_w else w)


def turned_blocks(a):
    """Each 16 x 16 of a transposed."""
    M, K = a.shape
    blocks = a.astype(np.float64).reshape(M // 16, 16, K // 16, 16)
    return blocks.swapaxes(1, 3).reshape(M, K)


def read_sixteen_apart(a, w):
    """a · wᵀ where rows of w are taken to be 16 numbers apart."""
    N, K = w.shape
    flat = np.pad(w.reshape(-1), (0, 16 * 16))
    rows = [flat[n // 16 * 16 * K + n % 16 * 16 + np.arange(16) + k] for n in range(N)
            for k in range(0, K, 16)]
    return product(a, np.concatenate(rows).reshape(N, K))


@pytest.mark.parametrize("M, N, K", WHOLE)
def test_wmma_warp_cuda(subject, agree, rng, M, N, K):
    a, w = operands(rng, M, N, K)
    right_warp(agree, a, w, run_warp(subject, a, w)[0])


def right_warp(agree, a, w, c):
    """c is a · wᵀ, or the message names the element, its block and the likely mistake."""
    want = product(a, w)
    M, N = want.shape
    K = a.shape[1]
    tiles = want.reshape(M // 16, 16, N // 16, 16)
    agree(c, want, "float32", f"wmma_warp_cuda, a {a.shape} and w {w.shape}",
          lambda index: f"row {index[0]}, column {index[1]} of c (block ({index[1] // 16}, "
                        f"{index[0] // 16}))",
          too_few_digits("wmma_warp_cuda", want) | likely("wmma_warp_cuda", a, w, 16) | {
              "a row of w's fragment is taken for a row of the second matrix; for mma it is a "
              "column: col_major": untransposed(a, w),
              "the last 16 k are left out, as where a round takes two steps and one is left over":
                  product(a, w, np.arange(K) < K // 32 * 32),
              "only every other step of 16 k is taken": product(a, w, np.arange(K) % 32 < 16),
              "w's fragment is always that of the first 16 k": steps_of_first(a, w, 16, of_w=True),
              "a's fragment is always that of the first 16 k": steps_of_first(a, w, 16, of_a=True),
              "a row of a's fragment is taken for a column of the first matrix; for mma it is a "
              "row: row_major": turned_blocks(a) @ w.astype(np.float64).T,
              "the rows of a are taken to be 16 numbers apart (or N); they are K apart":
                  read_sixteen_apart(w, a).T,
              "the sums start at 1; fill_fragment(sums, 0) empties them": want + 1,
              "the rows of w are taken to be 16 numbers apart; they are K apart":
                  read_sixteen_apart(a, w),
              "each tile of c is stored by its columns; mem_row_major stores rows":
                  tiles.swapaxes(1, 3).reshape(M, N),
              "all blocks multiply the first rows of w":
                  np.tile(product(a, w[:16]), (1, N // 16)),
              "all blocks multiply the first rows of a":
                  np.tile(product(a[:16], w), (M // 16, 1))} | first_alone(
                      "wmma_warp_cuda", want, 16, 16))



def test_wmma_warp_cuda__hard(subject, agree, rng):
    for a, w, parts in halves(rng, 48, whole=16):
        c, _ = run_warp(subject, a, w)
        right_parts(agree, "wmma_warp_cuda", a, w, c, parts)
    a, w = operands(rng, 16, 32_768 + 16, 16)
    c, _ = run_warp(subject, a, w, grid=(1, 1))
    agree(c[:, :16], product(a, w[:16]), "float32", "wmma_warp_cuda, the first of 2,049 tiles")
    assert (c[:, 16:] == 7).all(), "wmma_warp_cuda: a block writes beyond its own tile"


def right_parts(agree, name, a, w, c, parts):
    """Each part of c that holds one kind of numbers, looked at alone."""
    for rows, columns, what, precision in parts:
        with np.errstate(all="ignore"):
            want = product(a[rows], w[columns])
            mistakes = likely(name, a[rows], w[columns], 16)
        agree(c[rows, columns], want, precision, f"{name}, a {a.shape} and w {w.shape}{what}",
              mistakes=mistakes)


def test_wmma_warp_cuda__work(subject, reference, rng):
    M, N, K = 32, 32, 64
    a, w = operands(rng, M, N, K)
    launch = run_warp(subject, a, w)[1]
    got, want = tensor_instructions(launch), M * N * K // 16**3
    assert got == want, (f"wmma_warp_cuda, {M} x {N} x {K}: {got} mma of a warp, {want} are "
                         f"enough: one for each 16 k of each block")
    got, want = launch.bytes("load"), 2 * 2 * M * N * K // 16
    assert got <= want, (f"wmma_warp_cuda: {got:,} bytes are loaded, {want:,} are two fragments of "
                         f"512 bytes for each mma")
    same_work("wmma_warp_cuda", launch, run_warp(reference, a, w)[1])


# ---- tiles in shared memory


def run_tiled(subject, a, w, dtype=np.float32, grid=None):
    """(c, launch). grid: of only some blocks"""
    (M, K), N = a.shape, len(w)
    c = np.full((M, N), 7, dtype)
    grid = grid or (ceil(N, TILE), ceil(M, TILE))
    return c, subject.launch("wmma_tiled_cuda", grid, THREADS, (a, w, c, c.itemsize, M, N, K))


def quarters(a, w, rows, columns):
    """c where warp i multiplies the quarter of a at rows[i] with that of w at columns[i]."""
    M, N = len(a), len(w)
    left, right = (np.pad(x, [(0, -len(x) % TILE), (0, 0)]) for x in (a, w))
    c = np.zeros((len(left), len(right)))
    for m in range(0, len(left), TILE):
        for n in range(0, len(right), TILE):
            for warp in range(4):
                y, x = warp // 2 * 32, warp % 2 * 32
                i, j = m + rows[warp], n + columns[warp]
                c[m + y:m + y + 32, n + x:n + x + 32] = product(left[i:i + 32], right[j:j + 32])
    return c[:M, :N]


def halved(a, w, of_a=False, of_w=False):
    """c where the second 16 rows of each quarter of a, or of w, are taken to be the first."""
    row, column = (np.arange(len(x)) for x in (a, w))
    return product(a[row // 32 * 32 + row % 16] if of_a else a,
                   w[column // 32 * 32 + column % 16] if of_w else w)


def exchanged(want):
    """Each quarter of a tile with its upper right 16 x 16 and its lower left one exchanged."""
    M, N = want.shape
    c = np.pad(want, [(0, -n % 32) for n in want.shape])
    parts = c.reshape(c.shape[0] // 32, 2, 16, c.shape[1] // 32, 2, 16)
    return parts.swapaxes(1, 4).reshape(c.shape)[:M, :N]


def left_early(want):
    """What is stored if a warp whose quarter begins outside c is gone: it stores every other row of
    half of the columns."""
    c = want.copy()
    for m in range(0, len(c), TILE):
        for n in range(0, c.shape[1], TILE):
            for warp in range(4):
                y, x = m + warp // 2 * 32, n + warp % 2 * 32
                if y >= len(c) or x >= c.shape[1]:
                    c[m + warp // 2:m + TILE:2, x:x + 32] = 7
    return c


@pytest.mark.parametrize("M, N, K", SIZES)
def test_wmma_tiled_cuda(subject, agree, rng, M, N, K):
    a, w = operands(rng, M, N, K)
    right_tiled(agree, a, w, run_tiled(subject, a, w)[0])


def right_tiled(agree, a, w, c):
    """c is a · wᵀ, or the message names the element, its place in a tile and the likely mistake."""
    K = a.shape[1]
    within = np.arange(K) % BK
    want = product(a, w)
    M, N = want.shape
    row, column = np.arange(M)[:, None], np.arange(N)
    agree(c, want, "float32", f"wmma_tiled_cuda, a {a.shape} and w {w.shape}",
          lambda index: f"row {index[0]}, column {index[1]} of c (row {index[0] % TILE}, column "
                        f"{index[1] % TILE} of its tile)",
          too_few_digits("wmma_tiled_cuda", want) | likely("wmma_tiled_cuda", a, w, BK) | {
              "w_part holds rows of w_tile as rows; they are columns of the second matrix":
                  untransposed(a, w),
              f"of each {BK} k that were fetched only the first 16 are multiplied":
                  product(a, w, within < 16),
              "a warp takes its fragments of w from the rows that it has of a":
                  quarters(a, w, (0, 0, 32, 32), (0, 0, 32, 32)),
              "a warp whose quarter is outside c returns before the store, though it stores for "
              "the others too": left_early(want),
              "only three of the four products of each 16 k are made":
                  np.where((row % 32 >= 16) & (column % 32 >= 16), 0, want),
              "products 1 and 2 are exchanged: i / 2 is for the rows of product i, i % 2 for its "
              "columns": exchanged(want),
              "each fragment of c is stored by its columns; mem_row_major stores rows":
                  turned_blocks(np.pad(want, [(0, -n % 16) for n in want.shape]))[:M, :N],
              f"of each {BK} k the first 16 are multiplied four times; a fragment begins at [k]":
                  4 * product(a, w, within < 16),
              f"of each {BK} k the last 16 are left out": product(a, w, within < BK - 16),
              "only every other 16 k are multiplied": product(a, w, within % 32 < 16),
              "only the first half of each quarter is multiplied, of a and of w":
                  halved(a, w, of_a=True, of_w=True),
              "only the first half of each quarter of a is multiplied, twice":
                  halved(a, w, of_a=True),
              "only the first half of each quarter of w is multiplied, twice":
                  halved(a, w, of_w=True),
              "a warp takes its fragments of a from the rows that it has of w":
                  quarters(a, w, (0, 32, 0, 32), (0, 32, 0, 32)),
              "all warps take their fragments of w from the first rows of w_tile":
                  quarters(a, w, (0, 0, 32, 32), (0, 0, 0, 0)),
              "all warps take their fragments of a from the first rows of a_tile":
                  quarters(a, w, (0, 0, 0, 0), (0, 32, 0, 32)),
              "all warps multiply the first quarter":
                  quarters(a, w, (0, 0, 0, 0), (0, 0, 0, 0))} | first_alone(
                      "wmma_tiled_cuda", want, TILE, TILE))


def test_wmma_tiled_cuda__hard(subject, agree, rng):
    for a, w, parts in halves(rng, 39):
        c, _ = run_tiled(subject, a, w)
        right_parts(agree, "wmma_tiled_cuda", a, w, c, parts)
    a, w = operands(rng, 3, 5, 0)
    agree(run_tiled(subject, a, w)[0], product(a, w), "float32",
          "wmma_tiled_cuda, K = 0: a sum of nothing is 0", mistakes={
              "c is stored within the loop over k, which has no round here": np.full((3, 5), 7)})
    a, w = operands(rng, 2, 33_000, 3)
    c, _ = run_tiled(subject, a, w, grid=(1, 1))
    agree(c[:, :TILE], product(a, w[:TILE]), "float32", "wmma_tiled_cuda, the first of 516 tiles")


def test_wmma_tiled_cuda__fp16(subject, agree, rng):
    a, w = operands(rng, 20, 70, 40)
    c, _ = run_tiled(subject, a, w, np.float16)
    agree(c, product(a, w), "float16", "wmma_tiled_cuda, c in fp16")


def test_wmma_tiled_cuda__work(subject, reference, rng):
    K, steps = 128, 128 // 16
    launch = run_tiled(subject, *operands(rng, TILE, TILE, K))[1]
    got, want = tensor_instructions(launch), 16 * steps
    assert got == want, (f"wmma_tiled_cuda, a tile of {TILE} x {TILE} and {K} k: {got} mma, {want} "
                         f"are enough: four for each 16 k of each warp")
    got, want = launch.bytes("load"), 2 * TILE * K * 2
    assert got <= want, (f"wmma_tiled_cuda loads {got:,} bytes of global memory, {want:,} are all "
                         f"of a and w: take fragments from a_tile and w_tile")
    got, want = launch.bytes("load", "shared"), 4 * 4 * 512 * steps + 4 * TILE * TILE
    assert got <= want, (f"wmma_tiled_cuda reads {got:,} bytes of shared memory, {want:,} are "
                         f"enough: load each fragment once, and use it for two products")
    conflicts = launch.bank_conflicts()
    assert conflicts <= 1.01, (f"wmma_tiled_cuda: shared memory is asked {conflicts:.3g} times as "
                               f"often as need be; the rows of c_tile are TILE + PAD apart too")
    a, w = operands(rng, TILE + 2, TILE + 2, K)
    same_work("wmma_tiled_cuda", run_tiled(subject, a, w)[1], run_tiled(reference, a, w)[1])


# ---- Triton


def run_triton(subject, a, w, BM, BN, BK, precision, grid=None):
    """(c, launch). grid: of only some programs"""
    import torch

    (M, K), N = a.shape, len(w)
    c = torch.full((M, N), 7, dtype=torch.float32)
    launch = subject.launch("matmul_dot_triton", grid or (ceil(M, BM), ceil(N, BN)),
                            args=(a, w, c, M, N, K), BM=BM, BN=BN, BK=BK, PRECISION=precision)
    return c, launch


def tensors(rng, M, N, K, dtype):
    """a (M, K) and w (N, K) as tensors."""
    import torch

    return [torch.from_numpy(x).to(getattr(torch, dtype))
            for x in operands(rng, M, N, K, np.float32)]


def tf32(x):
    """fp32 with the 13 last bits cut off, as tensor cores read it."""
    return (x.astype(np.float32).view(np.int32) & ~0x1FFF).view(np.float32)


def short(x, dtype):
    """Rounded to a 16-bit type and back."""
    import torch

    return torch.from_numpy(x).to(getattr(torch, dtype)).double().numpy()


@pytest.mark.parametrize("M, N, K, BM, BN, BK, dtype, precision", TILES)
def test_matmul_dot_triton(subject, agree, rng, M, N, K, BM, BN, BK, dtype, precision):
    a, w = tensors(rng, M, N, K, dtype)
    c, _ = run_triton(subject, a, w, BM, BN, BK, precision)
    a, w = a.double().numpy(), w.double().numpy()
    name, want = "matmul_dot_triton", product(a, w)
    mistakes = likely(name, a, w, BK) | first_alone(name, want, BM, BN) | {
        f"{name} takes the first {BK} k of a in each step; a + start is where a step begins":
            steps_of_first(a, w, BK, of_a=True),
        f"{name} takes the first {BK} k of w in each step; w + start is where a step begins":
            steps_of_first(a, w, BK, of_w=True),
        f"{name} takes the first {BK} k of both in each step; a + start and w + start are where a "
        f"step begins": steps_of_first(a, w, BK, True, True),
        f"{name} leaves out the first {BK} k": product(a, w, np.arange(K) >= BK)}
    if BN == BK == 16:
        mistakes["w_tile is (BN, BK), and is taken for (BK, BN): w_tile.T is the second matrix"] = \
            untransposed(a, w)
    if dtype != "float32":
        mistakes[f"{name} rounds the sums to the dtype of a before it stores them; c is fp32"] = \
            short(want, dtype)
    if dtype == "float32":
        mistakes["fp32 is rounded to TF32, though PRECISION says otherwise"] = \
            product(tf32(a), tf32(w))
    # products are exact and sums are fp32 from whatever inputs; TF32 has as many digits as fp16
    agree(c, want, "float16" if precision == "tf32" else "float32",
          f"{name}, a {a.shape} and w {w.shape} {dtype}, {precision}, in tiles of {BM} "
          f"x {BN} and steps of {BK}",
          lambda index: f"row {index[0]}, column {index[1]} of c (row {index[0] % BM}, column "
                        f"{index[1] % BN} of its tile)", mistakes)


def test_matmul_dot_triton__hard(subject, agree, rng):
    import torch

    name = "matmul_dot_triton"
    for (a, w, parts), dtype in ((each, dtype) for dtype in (np.float32, np.float16)
                                 for each in factors(rng, 39)):
        a, w = a.astype(dtype), w.astype(dtype)
        c, _ = run_triton(subject, *map(torch.from_numpy, (a, w)), 16, 16, 32, "ieee")
        right_parts(agree, f"{name}, {np.dtype(dtype)}", a, w, c.numpy(), parts)
    a, w = (-abs(x) for x in tensors(rng, 2, 33_000, 3, "float32"))
    c, _ = run_triton(subject, a, w, 16, 16, 16, "ieee", grid=(1, 1))
    agree(c[:, :16], product(a.numpy(), w[:16].numpy()), "float32",
          f"{name}, the first of 2,063 tiles")


@pytest.mark.parametrize("dtype, precision, want", [
    ("float32", "tf32", "tensor tf32"), ("float32", "ieee", "fp32"),
    ("float16", "ieee", "tensor fp16"), ("bfloat16", "ieee", "tensor bf16")])
def test_matmul_dot_triton__work(subject, reference, rng, dtype, precision, want):
    M, N, K, BM, BN, BK = 32, 32, 64, 16, 32, 32
    a, w = tensors(rng, M, N, K, dtype)
    _, launch = run_triton(subject, a, w, BM, BN, BK, precision)
    kinds = launch.launches[0]["totals"]["flops_by_type"]
    assert kinds.get(want, 0) >= 2 * M * N * K, (
        f"matmul_dot_triton, {dtype} and PRECISION = {precision}: its FLOPs are "
        f"{', '.join(kinds) or 'none'}, expected {want}: give tl.dot the tiles as they were "
        f"loaded, and input_precision=PRECISION")
    got, enough = launch.bytes("load"), M // BM * (N // BN) * (BM + BN) * K * a.itemsize
    assert got <= enough, (
        f"matmul_dot_triton, tiles of {BM} x {BN}: {got:,} bytes are loaded, {enough:,} are BM + "
        f"BN rows of {K} for each: load a tile of a and one of w a step, once")
    _, own = run_triton(reference, a, w, BM, BN, BK, precision)
    same_work("matmul_dot_triton", launch, own)


# ---- the course's own launcher and experiments


def test_matmul_wmma_cuda(subject, agree, rng):
    import torch

    for M, N, K in ((1, 129, 127), (65, 33, 72), (3, 5, 1000)):
        a, w = tensors(rng, M, N, K, "float16")
        want = subject.matmul_oracle(a.double().numpy(), w.double().numpy())
        half = subject.matmul_wmma_cuda(a, w)
        single = subject.matmul_wmma_cuda(a, w, subject.torch.float32)
        assert (half.dtype, single.dtype) == (torch.float16, torch.float32)
        agree(half, want, "float16", f"matmul_wmma_cuda, {(M, N, K)}")
        agree(single, want, "float32", f"matmul_wmma_cuda to fp32, {(M, N, K)}")
        assert torch.equal(half, single.half())


def test_rows_that_start_anywhere(subject, agree, rng):
    """Contiguous, but not at a multiple of 16 bytes."""
    import torch

    a = torch.from_numpy(operands(rng, 1, 1, 20 * 32 + 1)[0][0])
    w = tensors(rng, 9, 9, 32, "float16")[1]
    left = a[1:].view(20, 32)
    agree(subject.matmul_wmma_cuda(left, w), product(left.double().numpy(), w.double().numpy()),
          "float16", "matmul_wmma_cuda, a from byte 2 on")


@pytest.mark.parametrize("M, N, K", [(0, 5, 3), (5, 0, 3), (0, 0, 0), (3, 4, 0)])
def test_nothing_to_do(subject, M, N, K):
    import torch

    got = subject.matmul_wmma_cuda(torch.ones(M, K).half(), torch.ones(N, K).half())
    assert torch.equal(got, torch.zeros(M, N).half())


def test_extreme_values(subject):
    """A row with inf or NaN spoils only itself; fp16 overflows in c, not in the sums."""
    import torch

    a, w = torch.ones(3, 40).half(), torch.ones(5, 40).half()
    a[0, 0], a[1, 0], w[:, 1] = torch.inf, torch.nan, 60000
    got = subject.matmul_wmma_cuda(a, w, subject.torch.float32)
    assert torch.isinf(got[0]).all() and torch.isnan(got[1]).all() and (got[2] == 60039).all()
    a, w = torch.full((1, 64), 255.0).half(), torch.full((1, 64), 255.0).half()
    assert torch.isinf(subject.matmul_wmma_cuda(a, w)).all()
    assert (subject.matmul_wmma_cuda(a, w, subject.torch.float32) == 64 * 255**2).all()
    w[:, ::2] *= -1
    assert (subject.matmul_wmma_cuda(a, w) == 0).all()


def test_twice_the_same(subject, rng):
    import torch

    a, w = tensors(rng, 20, 30, 200, "float16")
    assert torch.equal(subject.matmul_wmma_cuda(a, w), subject.matmul_wmma_cuda(a, w))


def test_what_the_launcher_refuses(subject):
    import torch

    a, w = torch.ones(4, 6).half(), torch.ones(5, 6).half()
    for given, says in (((a, w[:, :5]), "(5, 5), expected (M, K) and (N, K)"),
                        ((a.float(), w.float()), "a is torch.float32"),
                        ((torch.empty(TILE * 65_535 + 1, 0).half(), w[:, :0]), "expected at most"),
                        ((a, w.bfloat16()), "w torch.bfloat16"),
                        ((a, w, subject.torch.bfloat16), "expected torch.float16 or torch.float32"),
                        ((torch.ones(6, 4).half().T, w), "a has strides (1, 4)"),
                        ((a, torch.ones(5, 12).half()[:, ::2]), "w has strides (12, 2)")):
        with pytest.raises(Raised) as refusal:
            subject.matmul_wmma_cuda(*given)
        assert says in refusal.value.text


def padded(rng, rows, K, dtype, device="cpu"):
    """(rows, K) in rows that start at multiples of 16 bytes, NaN between them."""
    import torch

    x = torch.full((rows, K + -K % 8), torch.nan, dtype=getattr(torch, dtype), device=device)
    return x[:, :K].copy_(torch.from_numpy(rng.standard_normal((rows, K))))


@pytest.mark.parametrize("M, N, K, programs, dtype", [
    (129, 127, 72, 3, "float16"), (70, 129, 127, 4, "bfloat16"), (1, 1, 1, 9, "float16"),
    (5, 100, 1000, 1, "bfloat16"), (33, 31, 129, 9, "float16")])
def test_launch_persistent(subject, agree, rng, M, N, K, programs, dtype):
    """Few programs, small tiles: each makes several, or there are fewer tiles than programs."""
    a, w = (padded(rng, rows, K, dtype) for rows in (M, N))
    got = subject.launch_persistent(a, w, programs, {"BM": 32, "BN": 64, "BK": 32, "GROUP": 2})
    want = subject.matmul_oracle(a.double().numpy(), w.double().numpy())
    agree(got, want, dtype, f"launch_persistent, {(M, N, K)} by {programs} programs")


def test_matmul_persistent(subject, agree, rng):
    a, w = (padded(rng, rows, 40, "bfloat16") for rows in (130, 259))
    got = subject.matmul_persistent(a, w)
    assert got.shape == (130, 259) and got.stride() == (264, 1) and got.dtype == a.dtype
    agree(got, subject.matmul_oracle(a.double().numpy(), w.double().numpy()), "bfloat16",
          "matmul_persistent, two rows of tiles and two columns")


@pytest.mark.parametrize("M, N, K", [(0, 5, 3), (5, 0, 3), (0, 0, 0), (3, 4, 0)])
def test_persistent_with_nothing_to_do(subject, rng, M, N, K):
    import torch

    got = subject.matmul_persistent(*(padded(rng, rows, K, "float16") for rows in (M, N)))
    assert torch.equal(got, torch.zeros(M, N).half())


def test_what_persistent_refuses(subject):
    import torch

    a, w = torch.ones(4, 16).half(), torch.ones(5, 16).half()
    for given, says in (((a, w[:, :8]), "(5, 8), expected (M, K) and (N, K)"),
                        ((a.float(), w.float()), "a is torch.float32"),
                        ((a, torch.ones(16, 5).half().T), "w has strides (1, 5)"),
                        ((a[:1].expand(4, 16), w), "a has strides (0, 1)"),
                        ((torch.ones(4, 9).half(), torch.ones(5, 9).half()),
                         "a has strides (9, 1)")):
        with pytest.raises(Raised) as refusal:
            subject.matmul_persistent(*given)
        assert says in refusal.value.text


def test_persistent_refuses_rows_that_start_anywhere():
    """In this process: an array that is sent to another one gets another alignment."""
    import torch

    from layer1_kernels.k12_tensor_cores import matmul_persistent

    with pytest.raises(ValueError, match="starts at byte 2 of 16, expected"):
        matmul_persistent(torch.ones(4, 16).half()[:, 1:9], torch.ones(5, 8).half())


def test_fp16_sums_lose_digits(subject):
    """What the lesson says of sums: fp32 keeps the digits, fp16 loses more the longer the sum."""
    short, long = subject.errors_of_sums(64), subject.errors_of_sums(1024)
    assert long["fp32"] < 1e-6 and short["fp16"] > 3e-4 and long["fp16"] > 3 * short["fp16"]


def test_tf32_has_the_digits_of_fp16(subject):
    found = subject.errors_of_products(256)
    assert found["ieee"] < 5e-6 and found["tf32x3"] < 5e-6
    assert 1e-4 < found["as fp16"] < 2e-3 and 1e-4 < found["tf32"] < 2e-3 < 2 * found["as bf16"]


# ---- what the assembler makes


@pytest.mark.slow
def test_what_the_lesson_says_of_hopper():
    from lab import simulator
    from layer1_kernels.k12_tensor_cores import matmul_dot_triton

    def compiled(BM, BN, warps, dtype="fp16", precision="ieee"):
        args = dict.fromkeys("aw", f"*{dtype}") | {"c": "*fp32"} | dict.fromkeys("MNK", "i32:16")
        BK = 128 // (4 if dtype == "fp32" else 2)
        sizes = {"BM": BM, "BN": BN, "BK": BK, "PRECISION": precision}
        return simulator.hopper(matmul_dot_triton, args, sizes, num_warps=warps)

    for BM, warps in ((32, 4), (64, 2)):
        found = compiled(BM, 64, warps)
        assert found.mma_sync and not found.wgmma, (BM, warps)
    for BM, BN, warps in ((64, 64, 4), (128, 128, 8), (128, 256, 8)):
        found = compiled(BM, BN, warps)
        assert found.wgmma and not found.mma_sync and not found.spills, (BM, BN, warps)
        assert not found.serialised and found.shared <= 227 * 1024, (BM, BN, warps)
    assert compiled(128, 256, 4).spills
    assert compiled(128, 128, 8, "fp32", "tf32").wgmma
    found = compiled(128, 128, 8, "fp32", "ieee")
    assert not found.wgmma and not found.mma_sync


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["i32:16", "i32"])
def test_what_the_assembler_makes_of_persistent(sizes):
    """Tiles copied by the TMA both ways, no thread loads or stores; ragged sizes change nothing."""
    from lab.author import hopper_report
    from layer1_kernels.bench.k12_tensor_cores import shipped

    for name, found in shipped(sizes).items():
        assert found.wgmma and not found.mma_sync and not found.spills, name
        assert found.tma_loads and found.tma_stores and not found.serialised, name
        assert not found.loads and not found.stores and found.shared <= hopper_report.SHARED, name


@pytest.mark.slow
def test_what_the_assembler_makes_of_wmma():
    """No spills, and mma of a single warp, two for each wmma, even for Hopper."""
    from lab import simulator
    from layer1_kernels.k12_tensor_cores import KERNELS

    for arch in ("sm_80", "sm_90"):
        for name in ("wmma_warp_cuda", "wmma_tiled_cuda"):
            found = KERNELS.resources(name, arch)
            assert found.spill_stores == found.stack == 0, f"{name} on {arch}: {found}"
        assert simulator.sass(KERNELS.get("wmma_tiled_cuda"), arch).count("HMMA") == 2 * 4 * 4


@pytest.mark.gpu
@pytest.mark.parametrize("M, N, K", [(0, 5, 4), (3, 4, 0), (1, 1000, 1000), (129, 127, 1000),
                                     (1024, 2048, 512)])
def test_every_kernel_on_the_device(M, N, K):
    import torch

    from layer1_kernels import matmul_wmma_cuda

    a, w = (torch.randn(rows, K, device="cuda").half() for rows in (M, N))
    want = a.double() @ w.double().T
    got = matmul_wmma_cuda(a, w, torch.float32)
    assert torch.allclose(got.double(), want, rtol=2e-5, atol=1e-3)
    assert torch.equal(matmul_wmma_cuda(a, w), got.half())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("M, N, K", [(0, 5, 8), (3, 4, 0), (1, 1, 1), (1, 1000, 1000),
                                     (129, 127, 1001), (4096, 2304, 256)])
def test_matmul_persistent_on_the_device(rng, M, N, K, dtype):
    """The last has 288 tiles, more than any device has multiprocessors."""
    import torch

    from layer1_kernels import matmul_persistent

    a, w = (padded(rng, rows, K, dtype, "cuda") for rows in (M, N))
    want = a.double() @ w.double().T
    got = matmul_persistent(a, w)
    near = torch.finfo(got.dtype).eps                           # twice what rounding c costs
    assert torch.allclose(got.double(), want, rtol=near, atol=1e-3)
    assert torch.equal(matmul_persistent(a, w), got)


@pytest.mark.gpu
@pytest.mark.parametrize("M, N, K", [(16, 32, 48), (512, 256, 1024)])
def test_what_no_public_function_launches_on_the_device(M, N, K):
    import torch

    from layer1_kernels.k12_tensor_cores import KERNELS, matmul_dot_triton

    a, w = (torch.randn(rows, K, device="cuda") for rows in (M, N))
    c = torch.full((M, N), torch.nan, device="cuda")
    near = {"ieee": 2e-5, "tf32x3": 2e-5, "tf32": 2e-3}         # of the largest result
    for precision, relative in near.items():
        want = a.double() @ w.double().T
        matmul_dot_triton[(-(-M // 16), -(-N // 32))](a, w, c, M, N, K, BM=16, BN=32, BK=32,
                                                      PRECISION=precision)
        assert (c - want).abs().max() <= relative * want.abs().max(), precision
    a, w = a.half(), w.half()
    want = a.double() @ w.double().T
    c.fill_(torch.nan)
    KERNELS.get("wmma_warp_cuda")((N // 16, M // 16), 32, (a, w, c, N, K))
    assert (c - want).abs().max() <= 2e-5 * want.abs().max()


@pytest.mark.gpu
def test_wmma_tiled_cuda_speed(pace):
    pace("matmul_wmma_cuda", numbers("float16", 4096, 4096), numbers("float16", 4096, 4096))
