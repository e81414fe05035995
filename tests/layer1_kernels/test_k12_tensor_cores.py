"""Graders of k12.
Outputs start as 7, so that unwritten places show."""

import numpy as np
import pytest
import torch

from lab.judge.addresses import FAR, tiles_in_64_bits
from lab.judge.adversarial import factors
from lab.judge.mistakes import mistake, same_report
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.matmul_cases import matrices, product, tensors, tf32

TILE, BK, THREADS = 64, 64, 128
WHOLE = [(32, 16, 48), (16, 48, 16), (16, 16, 160)]         # M, N, K of wmma_warp_cuda
SIZES = [(33, 50, 72), (70, 40, 60), (70, 40, 129), (1, 1, 1), (1, 127, 200), (64, 64, 64)]
TILES = [(33, 17, 40, 32, 16, 16, "float32", "ieee"), (17, 33, 72, 16, 32, 32, "float32", "tf32"),
         (20, 16, 65, 16, 16, 32, "float32", "tf32x3"),
         (17, 50, 129, 16, 32, 64, "float16", "ieee"), (1, 1, 1, 16, 16, 16, "float32", "ieee"),
         (5, 127, 65, 16, 32, 32, "bfloat16", "ieee")]


def untransposed(a, w):
    """What comes out when each 16 x 16 of w is taken for (k, n), not for (n, k)."""
    left, right = (np.pad(x.astype(np.float64), [(0, -n % 16) for n in x.shape]) for x in (a, w))
    blocks = [sum(left[:, k:k + 16] @ right[n:n + 16, k:k + 16]
                  for k in range(0, left.shape[1], 16)) for n in range(0, len(right), 16)]
    return np.hstack(blocks)[:len(a), :len(w)]


def likely(a, w, step, rows=None, columns=None):
    """{id: (sentence, what it gives)} of any kernel that walks along k in steps, in tiles of (rows,
    columns)."""
    (M, K), N = a.shape, len(w)
    k, m, n = np.arange(K), np.arange(M)[:, None], np.arange(N)
    want = product(a, w)
    return {
        "sums_reset": (f"sums are set to 0 again in each step of {step} k",
                       product(a, w, k // step == k[-1:] // step)),
        "first_step": (f"only the first {step} k are multiplied", product(a, w, k < step)),
        "last_step": (f"the last k are left out if K is not a multiple of {step}",
                      product(a, w, k < K // step * step)),
        "last_k": ("the last k is left out", product(a, w, k < K - 1)),
        "not_stored": ("nothing is written", np.full((M, N), 7)),
        "one_block": ("only the first block writes its tile", np.where(
            (m < (rows or M)) & (n < (columns or N)), want, 7))}


def halves(rng, K, whole=1):
    """factors in fp16, with rows of -1 so that there is a whole number of them."""
    for a, w, parts in factors(rng, K):
        yield (*(np.pad(x, [(0, -len(x) % whole), (0, 0)], constant_values=-1).astype(np.float16)
                 for x in (a, w)), parts)


def low_digits(want):
    """The right answer itself as a mistake, because right answers are compared only to 1e-3. It is
    tried first."""
    return {"low_digits": ("sums have too few digits: make the accumulator a fragment of float",
                           want)}


# ---- the prediction


def run_warp(subject, a, w, grid=None):
    """(c, launch). grid: of only some blocks"""
    (M, K), N = a.shape, len(w)
    c = np.full((M, N), 7, np.float32)
    return c, subject.launch("wmma_warp_cuda", grid or (N // 16, M // 16), 32, (a, w, c, N, K))


def tensor_instructions(launch):
    return launch.launches[0]["totals"]["instructions"].get("tensor core", 0)


def test_predict_mma_flops(subject, reference, rng):
    _, launch = run_warp(reference, *matrices(rng, 16, 16, 64, np.float16))
    want = launch.launches[0]["flops"] // tensor_instructions(launch)
    got = subject.predict_mma_flops()
    assert isinstance(got, int), mistake(
        "no_count", f"predict_mma_flops: expected a whole number, got {got!r}")
    known, why = {
        want // 2: ("products_alone", "Each product takes a multiplication and an addition."),
        want // 16: ("one_product", "Each of the 16 · 16 results is a sum of 16 products."),
        64: ("multiply_add", "64 is what a warp's fp32 multiply-add does, two FLOPs a lane."),
        want // 32: ("one_thread", "That is one thread's share; count the whole warp's."),
    }.get(got, ("other", "Count the results, and the products in each."))
    assert got == want, mistake(
        known, f"predict_mma_flops: the simulator does not count {got} FLOPs for one mma of "
               f"16 x 16 x 16. {why}", why)


# ---- one warp


def not_advanced(a, w, step):
    """{id: (sentence, what it gives)} where every step takes the k of the first."""
    left, right = (x[:, np.arange(x.shape[1]) % step] for x in (a, w))
    pairs = {"a": (left, w), "w": (a, right), "both": (left, right)}
    return {f"{what}_not_advanced": (f"each step takes the first {step} k of {what}: add the k of "
                                     f"the step to the addresses", product(*pair))
            for what, pair in pairs.items()}


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
    """c is a · wᵀ, or the message names the element, its block and the likely mistake."""
    a, w = matrices(rng, M, N, K, np.float16)
    want, k = product(a, w), np.arange(K)
    agree(run_warp(subject, a, w)[0], want, "float32", f"wmma_warp_cuda, a {a.shape} and w "
          f"{w.shape}", lambda index: f"row {index[0]}, column {index[1]} of c (block "
          f"({index[1] // 16}, {index[0] // 16}))",
          low_digits(want) | likely(a, w, 16, 16, 16) | not_advanced(a, w, 16) | {
              "w_row_major": ("the fragment of w is row_major, but a row of w is a column of the "
                              "second matrix: use col_major", untransposed(a, w)),
              "last_of_two": ("the last 16 k are left out", product(a, w, k < K // 32 * 32)),
              "every_other": ("only every other step of 16 k is taken", product(a, w, k % 32 < 16)),
              "a_col_major": ("the fragment of a must be row_major", product(turned_blocks(a), w)),
              "a_16_apart": ("a is loaded as if its rows were 16 (or N) numbers apart; they are K "
                             "apart", read_sixteen_apart(w, a).T),
              "w_16_apart": ("w is loaded as if its rows were 16 numbers apart; they are K apart",
                             read_sixteen_apart(a, w)),
              "from_1": ("the sums start at 1: use fill_fragment(sums, 0)", want + 1),
              "stored_by_columns": ("each tile of c is stored column by column; use mem_row_major",
                                    turned_blocks(want)),
              "first_of_w": ("all blocks use the first 16 rows of w: add n to the row",
                             np.tile(product(a, w[:16]), (1, N // 16))),
              "first_of_a": ("all blocks use the first 16 rows of a: add m to the row",
                             np.tile(product(a[:16], w), (M // 16, 1)))})


def test_wmma_warp_cuda__hard(subject, agree, rng):
    for a, w, parts in halves(rng, 48, whole=16):
        right_parts(agree, "wmma_warp_cuda", a, w, run_warp(subject, a, w)[0], parts)
    a, w = matrices(rng, 16, 32_768 + 16, 16, np.float16)
    c, _ = run_warp(subject, a, w, grid=(1, 1))
    agree(c[:, :16], product(a, w[:16]), "float32", "wmma_warp_cuda, the first of 2,049 tiles")
    assert (c[:, 16:] == 7).all(), mistake(
        "outside_tile", "wmma_warp_cuda: a block writes outside its own tile")


def test_wmma_warp_cuda__addresses(subject):
    x, c = np.zeros(32, np.float16), np.zeros(32, np.float32)
    for what, N, K in (("m · K (a) and of n · K (w)", 32, FAR), ("m · N (c)", FAR, 0)):
        tiles_in_64_bits(subject, "wmma_warp_cuda", (2, 2), 32, (x, x, c, N, K), what)


def right_parts(agree, name, a, w, c, parts):
    """Each part of c that holds one kind of numbers, looked at alone."""
    for rows, columns, what, precision in parts:
        with np.errstate(all="ignore"):
            want = product(a[rows], w[columns])
            mistakes = likely(a[rows], w[columns], 16)
        agree(c[rows, columns], want, precision, f"{name}, a {a.shape} and w {w.shape}{what}",
              mistakes=mistakes)


def enough(known, text, got, want, why, equal=False):
    """The mistake `known` where a count, whose place is in `text`, is more than is wanted."""
    assert got == want if equal else got <= want, mistake(
        known, f"{text.format(got)}; {want:,} are enough. {why}", why)


def test_wmma_warp_cuda__work(subject, reference, rng):
    a, w = matrices(rng, 32, 32, 64, np.float16)
    launch = run_warp(subject, a, w)[1]
    enough("more_mma", "wmma_warp_cuda, 32 x 32 x 64: {} mma instructions",
           tensor_instructions(launch), 32 * 32 * 64 // 16**3,
           "Use one for each 16 k of each block.", equal=True)
    enough("loads_again", "wmma_warp_cuda: {:,} bytes loaded", launch.bytes("load"),
           2 * 2 * 32 * 32 * 64 // 16, "Load two fragments of 512 bytes for each mma.")
    same_work("wmma_warp_cuda", launch, run_warp(reference, a, w)[1])


# ---- tiles in shared memory


def run_tiled(subject, a, w, dtype=np.float32, grid=None):
    """(c, launch). grid: of only some blocks"""
    (M, K), N = a.shape, len(w)
    c = np.full((M, N), 7, dtype)
    grid = grid or (-(-N // TILE), -(-M // TILE))
    with same_report("no_barrier_in_loop", "One warp already fetches the next tiles while others "
                     "still load fragments: a barrier is missing.", kind="race", array="a_tile"), \
            same_report("no_barrier_at_end", "One warp copies c_tile to c before the others have "
                        "written their part: a barrier is missing.", kind="race", array="c_tile"):
        return c, subject.launch("wmma_tiled_cuda", grid, THREADS, (a, w, c, c.itemsize, M, N, K))


def quarters(a, w, rows, columns):
    """c where warp i multiplies the quarter of a at rows[i] with that of w at columns[i]."""
    left, right = (np.pad(x, [(0, -len(x) % TILE), (0, 0)]) for x in (a, w))
    c = np.zeros((len(left), len(right)))
    for m in range(0, len(left), TILE):
        for n in range(0, len(right), TILE):
            for warp in range(4):
                y, x = warp // 2 * 32, warp % 2 * 32
                i, j = m + rows[warp], n + columns[warp]
                c[m + y:m + y + 32, n + x:n + x + 32] = product(left[i:i + 32], right[j:j + 32])
    return c[:len(a), :len(w)]


@pytest.mark.parametrize("M, N, K", SIZES)
def test_wmma_tiled_cuda(subject, agree, rng, M, N, K):
    """c is a · wᵀ, or the message names the element, its place in a tile and the likely mistake."""
    a, w = matrices(rng, M, N, K, np.float16)
    within = np.arange(K) % BK
    want = product(a, w)
    row, column = np.arange(M)[:, None], np.arange(N)
    padded_c = np.pad(want, 32)[32:, 32:]
    half_a, half_w = (x[np.arange(len(x)) // 32 * 32 + np.arange(len(x)) % 16] for x in (a, w))
    stays = row // TILE * TILE + row % 2 * 32 < M           # the warp that stores a row
    agree(run_tiled(subject, a, w)[0], want, "float32", f"wmma_tiled_cuda, a {a.shape} and w "
          f"{w.shape}", lambda index: f"row {index[0]}, column {index[1]} of c (row "
          f"{index[0] % TILE}, column {index[1] % TILE} of its tile)",
          low_digits(want) | likely(a, w, BK, TILE, TILE) | {
              "w_row_major": ("w_part is row_major, but a row of w_tile is a column of the second "
                              "matrix: use col_major", untransposed(a, w)),
              "first_16": (f"only the first 16 of the {BK} fetched k are multiplied",
                           product(a, w, within < 16)),
              "w_at_row": ("the fragments of w start at `row`; they must start at `column`",
                           quarters(a, w, (0, 0, 32, 32), (0, 0, 32, 32))),
              "a_at_column": ("the fragments of a start at `column`; they must start at `row`",
                              quarters(a, w, (0, 32, 0, 32), (0, 32, 0, 32))),
              "left_early": ("a warp whose quarter is outside c returns early, though it fetches "
                             "and stores for the others too", np.where(stays, want, 7)),
              "three_products": ("only three of the four products of each 16 k are made", np.where(
                  (row % 32 >= 16) & (column % 32 >= 16), 0, want)),
              "exchanged": ("products 1 and 2 are exchanged: i / 2 is for the rows of product i, "
                            "i % 2 for its columns", np.where(
                                (row ^ column) & 16, padded_c[row ^ 16, column ^ 16], want)),
              "stored_by_columns": (
                  "each fragment of c is stored column by column; use mem_row_major",
                  padded_c[row // 16 * 16 + column % 16, column // 16 * 16 + row % 16]),
              "first_16_again": ("the same 16 k are taken again", 4 * product(a, w, within < 16)),
              "last_16": ("the last 16 fetched k are left out", product(a, w, within < BK - 16)),
              "every_other": ("every other 16 k are left out", product(a, w, within % 32 < 16)),
              "halves": ("a_part[0] and w_part[0] are used for all four products",
                         product(half_a, half_w)),
              "half_of_a": ("a_part[0] is used for all four products", product(half_a, w)),
              "half_of_w": ("w_part[0] is used for all four products", product(a, half_w)),
              "w_at_0": ("all fragments of w start at row 0 of w_tile",
                         quarters(a, w, (0, 0, 32, 32), (0, 0, 0, 0))),
              "a_at_0": ("all fragments of a start at row 0 of a_tile",
                         quarters(a, w, (0, 0, 0, 0), (0, 32, 0, 32))),
              "one_quarter": ("all four warps compute the first quarter: use `row` and `column`",
                              quarters(a, w, (0, 0, 0, 0), (0, 0, 0, 0)))})


def test_wmma_tiled_cuda__hard(subject, agree, rng):
    for a, w, parts in halves(rng, 39):
        right_parts(agree, "wmma_tiled_cuda", a, w, run_tiled(subject, a, w)[0], parts)
    a, w = matrices(rng, 3, 5, 0, np.float16)
    agree(run_tiled(subject, a, w)[0], product(a, w), "float32",
          "wmma_tiled_cuda, K = 0: an empty sum is 0", mistakes={
              "stored_in_loop": ("c is stored only if there is a step over k", np.full((3, 5), 7))})
    a, w = matrices(rng, 2, 33_000, 3, np.float16)
    c, _ = run_tiled(subject, a, w, grid=(1, 1))
    agree(c[:, :TILE], product(a, w[:TILE]), "float32", "wmma_tiled_cuda, the first of 516 tiles")
    a, w = matrices(rng, 20, 70, 40, np.float16)
    agree(run_tiled(subject, a, w, np.float16)[0], product(a, w), "float16",
          "wmma_tiled_cuda, c in fp16")


def test_wmma_tiled_cuda__work(subject, reference, rng):
    K, steps = 128, 128 // 16
    launch = run_tiled(subject, *matrices(rng, TILE, TILE, K, np.float16))[1]
    enough("more_mma", "wmma_tiled_cuda, a tile of 64 x 64 and 128 k: {} mma instructions",
           tensor_instructions(launch), 16 * steps, "Use four for each 16 k of each warp.",
           equal=True)
    enough("loads_again", "wmma_tiled_cuda loads {:,} bytes of global memory",
           launch.bytes("load"), 2 * TILE * K * 2, "Load the fragments from a_tile and w_tile.")
    enough("fragment_again", "wmma_tiled_cuda reads {:,} bytes of shared memory",
           launch.bytes("load", "shared"), 4 * 4 * 512 * steps + 4 * TILE * TILE,
           "Load each fragment once, for two products.")
    conflicts = launch.bank_conflicts()
    assert conflicts <= 1.01, mistake(
        "conflicts", f"wmma_tiled_cuda: bank conflicts: shared memory takes {conflicts:.3g} times "
        f"as many passes as necessary. Rows of c_tile are TILE + PAD numbers apart.")
    a, w = matrices(rng, TILE + 2, TILE + 2, K, np.float16)
    same_work("wmma_tiled_cuda", run_tiled(subject, a, w)[1], run_tiled(reference, a, w)[1])


# ---- Triton


def run_triton(subject, a, w, BM, BN, BK, precision, grid=None):
    """(c, launch). grid: of only some programs"""
    (M, K), N = a.shape, len(w)
    c = torch.full((M, N), 7, dtype=torch.float32)
    launch = subject.launch("matmul_dot_triton", grid or (-(-M // BM), -(-N // BN)),
                            args=(a, w, c, M, N, K), BM=BM, BN=BN, BK=BK, PRECISION=precision)
    return c, launch


@pytest.mark.parametrize("M, N, K, BM, BN, BK, dtype, precision", TILES)
def test_matmul_dot_triton(subject, agree, rng, M, N, K, BM, BN, BK, dtype, precision):
    tensor_a, tensor_w = tensors(rng, M, N, K, dtype)
    c, _ = run_triton(subject, tensor_a, tensor_w, BM, BN, BK, precision)
    a, w = tensor_a.double().numpy(), tensor_w.double().numpy()
    want = product(a, w)
    mistakes = likely(a, w, BK, BM, BN) | not_advanced(a, w, BK) | {
        "first_left_out": ("the first BK k are left out", product(a, w, np.arange(K) >= BK))}
    if BN == BK == 16:
        mistakes["untransposed"] = ("w_tile (BN, BK) is taken for (BK, BN): multiply by w_tile.T",
                                    untransposed(a, w))
    if dtype == "float32":
        mistakes["tf32"] = ("fp32 inputs are cut to TF32 although PRECISION says otherwise: pass "
                            "input_precision=PRECISION", product(tf32(a), tf32(w)))
    else:
        mistakes["short_sums"] = ("sums are rounded to the dtype of a before the store; c is fp32",
                                  torch.from_numpy(want).to(tensor_a.dtype).double().numpy())
    # products are exact and sums are fp32 from whatever inputs; TF32 has as many digits as fp16
    agree(c, want, "float16" if precision == "tf32" else "float32",
          f"matmul_dot_triton, a {a.shape} and w {w.shape} {dtype}, {precision}, in tiles of {BM} "
          f"x {BN} and steps of {BK}",
          lambda index: f"row {index[0]}, column {index[1]} of c (row {index[0] % BM}, column "
                        f"{index[1] % BN} of its tile)", mistakes)


@pytest.mark.parametrize("dtype, precision, want", [
    ("float32", "tf32", "tensor tf32"), ("float32", "ieee", "fp32"),
    ("float16", "ieee", "tensor fp16"), ("bfloat16", "ieee", "tensor bf16")])
def test_matmul_dot_triton__work(subject, reference, rng, dtype, precision, want):
    M, N, K, BM, BN, BK = 32, 32, 64, 16, 32, 32
    a, w = tensors(rng, M, N, K, dtype)
    _, launch = run_triton(subject, a, w, BM, BN, BK, precision)
    kinds = launch.launches[0]["totals"]["flops_by_type"]
    why = "Give tl.dot the tiles in the type they were loaded in, and input_precision=PRECISION."
    assert kinds.get(want, 0) >= 2 * M * N * K, mistake(
        "precision_ignored", f"matmul_dot_triton, {dtype} and PRECISION = {precision}: its FLOPs "
        f"are of type {', '.join(kinds) or 'none'}, expected {want}. {why}", why)
    enough("loads_again", "matmul_dot_triton, tiles of 16 x 32: {:,} bytes loaded",
           launch.bytes("load"), M // BM * (N // BN) * (BM + BN) * K * a.itemsize,
           "In each step, load one tile of a and one of w.")
    _, own = run_triton(reference, a, w, BM, BN, BK, precision)
    same_work("matmul_dot_triton", launch, own)


def test_matmul_dot_triton__hard(subject, agree, rng):
    for (a, w, parts), dtype in ((each, dtype) for dtype in (np.float32, np.float16)
                                 for each in factors(rng, 39)):
        a, w = a.astype(dtype), w.astype(dtype)
        c, _ = run_triton(subject, *map(torch.from_numpy, (a, w)), 16, 16, 32, "ieee")
        right_parts(agree, f"matmul_dot_triton, {np.dtype(dtype)}", a, w, c.numpy(), parts)
    a, w = (-abs(x) for x in tensors(rng, 2, 33_000, 3, "float32"))
    c, _ = run_triton(subject, a, w, 16, 16, 16, "ieee", grid=(1, 1))
    agree(c[:, :16], product(a.numpy(), w[:16].numpy()), "float32",
          "matmul_dot_triton, the first of 2,063 tiles")


# ---- the course's own launcher and experiments


def test_matmul_wmma_cuda(subject, agree, rng):
    for M, N, K in ((1, 129, 127), (65, 33, 72), (3, 5, 1000)):
        a, w = tensors(rng, M, N, K, "float16")
        want = subject.matmul_oracle(a.double().numpy(), w.double().numpy())
        half = subject.matmul_wmma_cuda(a, w)
        single = subject.matmul_wmma_cuda(a, w, subject.torch.float32)
        assert (half.dtype, single.dtype) == (torch.float16, torch.float32)
        agree(half, want, "float16", f"matmul_wmma_cuda, {(M, N, K)}")
        agree(single, want, "float32", f"matmul_wmma_cuda to fp32, {(M, N, K)}")
        assert torch.equal(half, single.half())
        assert torch.equal(half, subject.matmul_wmma_cuda(a, w))


def test_rows_that_start_anywhere(subject, agree, rng):
    """Contiguous, but not at a multiple of 16 bytes."""
    a = torch.from_numpy(matrices(rng, 1, 1, 20 * 32 + 1, np.float16)[0][0])
    w = tensors(rng, 9, 9, 32, "float16")[1]
    left = a[1:].view(20, 32)
    agree(subject.matmul_wmma_cuda(left, w), product(left.double().numpy(), w.double().numpy()),
          "float16", "matmul_wmma_cuda, a from byte 2 on")


@pytest.mark.parametrize("M, N, K", [(0, 5, 3), (5, 0, 3), (0, 0, 0), (3, 4, 0)])
def test_nothing_to_do(subject, rng, M, N, K):
    for got in (subject.matmul_wmma_cuda(torch.ones(M, K).half(), torch.ones(N, K).half()),
                subject.matmul_persistent(*(padded(rng, rows, K, "float16") for rows in (M, N)))):
        assert torch.equal(got, torch.zeros(M, N).half())


def test_extreme_values(subject):
    """A row with inf or NaN spoils only itself; fp16 overflows in c, not in the sums."""
    a, w = torch.ones(3, 40).half(), torch.ones(5, 40).half()
    a[0, 0], a[1, 0], w[:, 1] = torch.inf, torch.nan, 60000
    got = subject.matmul_wmma_cuda(a, w, subject.torch.float32)
    assert torch.isinf(got[0]).all() and torch.isnan(got[1]).all() and (got[2] == 60039).all()
    a, w = torch.full((1, 64), 255.0).half(), torch.full((1, 64), 255.0).half()
    assert torch.isinf(subject.matmul_wmma_cuda(a, w)).all()
    assert (subject.matmul_wmma_cuda(a, w, subject.torch.float32) == 64 * 255**2).all()
    w[:, ::2] *= -1
    assert (subject.matmul_wmma_cuda(a, w) == 0).all()


def test_what_the_launchers_refuse(subject):
    a, w = torch.ones(4, 6).half(), torch.ones(5, 6).half()
    cases = {"matmul_wmma_cuda": [
        ((a, w[:, :5]), "(5, 5), expected (M, K) and (N, K)"),
        ((a.float(), w.float()), "a is torch.float32"),
        ((torch.empty(TILE * 65_535 + 1, 0).half(), w[:, :0]), "expected at most"),
        ((a, w.bfloat16()), "w torch.bfloat16"),
        ((a, w, subject.torch.bfloat16), "expected torch.float16 or torch.float32"),
        ((torch.ones(6, 4).half().T, w), "a has strides (1, 4)"),
        ((a, torch.ones(5, 12).half()[:, ::2]), "w has strides (12, 2)")]}
    a, w = torch.ones(4, 16).half(), torch.ones(5, 16).half()
    cases["matmul_persistent"] = [
        ((a, w[:, :8]), "(5, 8), expected (M, K) and (N, K)"),
        ((a.float(), w.float()), "a is torch.float32"),
        ((a, torch.ones(16, 5).half().T), "w has strides (1, 5)"),
        ((a[:1].expand(4, 16), w), "a has strides (0, 1)"),
        ((torch.ones(4, 9).half(), torch.ones(5, 9).half()), "a has strides (9, 1)")]
    for launcher, rows in cases.items():
        for args, says in rows:
            with pytest.raises(Raised) as refusal:
                getattr(subject, launcher)(*args)
            assert says in refusal.value.text


def padded(rng, rows, K, dtype, device="cpu"):
    """(rows, K) in rows that start at multiples of 16 bytes, NaN between them."""
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


def test_persistent_refuses_rows_that_start_anywhere():
    """In this process: an array that is sent to another one gets another alignment."""
    from layer1_kernels.k12_tensor_cores import matmul_persistent

    with pytest.raises(ValueError, match="starts at byte 2 of 16, expected"):
        matmul_persistent(torch.ones(4, 16).half()[:, 1:9], torch.ones(5, 8).half())


def test_fp16_sums_lose_digits(subject):
    """What the lesson says of sums: fp32 keeps the digits, fp16 loses more the longer the sum."""
    short, long = subject.errors_of_sums(64), subject.errors_of_sums(1024)
    assert long["fp32"] < 1e-6 and short["fp16"] > 3e-4 and long["fp16"] > 3 * short["fp16"]


def test_tf32_has_the_digits_of_fp16(subject):
    errors = subject.errors_of_products(256)
    assert errors["ieee"] < 5e-6 and errors["tf32x3"] < 5e-6
    assert 1e-4 < errors["as fp16"] < 2e-3 and 1e-4 < errors["tf32"] < 2e-3 < 2 * errors["as bf16"]


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
        code = compiled(BM, 64, warps)
        assert code.mma_sync and not code.wgmma, (BM, warps)
    for BM, BN, warps in ((64, 64, 4), (128, 128, 8), (128, 256, 8)):
        code = compiled(BM, BN, warps)
        assert code.wgmma and not code.mma_sync and not code.spills, (BM, BN, warps)
        assert not code.serialised and code.shared <= 227 * 1024, (BM, BN, warps)
    assert compiled(128, 256, 4).spills
    assert compiled(128, 128, 8, "fp32", "tf32").wgmma
    code = compiled(128, 128, 8, "fp32", "ieee")
    assert not code.wgmma and not code.mma_sync


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["i32:16", "i32"])
def test_what_the_assembler_makes_of_persistent(sizes):
    """Tiles copied by the TMA both ways, no thread loads or stores; ragged sizes change nothing."""
    from lab.author import hopper_report
    from layer1_kernels.bench.k12_tensor_cores import shipped

    for name, code in shipped(sizes).items():
        assert code.wgmma and not code.mma_sync and not code.spills, name
        assert code.tma_loads and code.tma_stores and not code.serialised, name
        assert not code.loads and not code.stores and code.shared <= hopper_report.SHARED, name


@pytest.mark.slow
def test_what_the_assembler_makes_of_wmma():
    """No spills, and mma of a single warp, two for each wmma, even for Hopper."""
    from lab import simulator
    from layer1_kernels.k12_tensor_cores import KERNELS

    for arch in ("sm_80", "sm_90"):
        for name in ("wmma_warp_cuda", "wmma_tiled_cuda"):
            code = KERNELS.resources(name, arch)
            assert code.spill_stores == code.stack == 0, f"{name} on {arch}: {code}"
        assert simulator.sass(KERNELS.get("wmma_tiled_cuda"), arch).count("HMMA") == 2 * 4 * 4


@pytest.mark.gpu
@pytest.mark.parametrize("M, N, K", [(0, 5, 4), (3, 4, 0), (1, 1000, 1000), (129, 127, 1000),
                                     (1024, 2048, 512)])
def test_every_kernel_on_the_device(M, N, K):
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
    from layer1_kernels import matmul_persistent

    a, w = (padded(rng, rows, K, dtype, "cuda") for rows in (M, N))
    want = a.double() @ w.double().T
    got = matmul_persistent(a, w)                               # eps: twice what rounding c costs
    assert torch.allclose(got.double(), want, rtol=torch.finfo(got.dtype).eps, atol=1e-3)
    assert torch.equal(matmul_persistent(a, w), got)


@pytest.mark.gpu
@pytest.mark.parametrize("M, N, K", [(16, 32, 48), (512, 256, 1024)])
def test_what_no_public_function_launches_on_the_device(M, N, K):
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
