"""Graders of k06.
Outputs start as 7, so that unwritten places show."""

import contextlib

import numpy as np
import pytest

from lab.judge.addresses import in_64_bits
from lab.judge.adversarial import factors
from lab.judge.mistakes import mistake, same_report
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.matmul_cases import operands, product

BLOCKS = {          # side of a block's tile, threads, thread tile
    "matmul_strip_cuda": (64, 512, (8, 1)), "matmul_square_cuda": (128, 256, (8, 8)),
    "matmul_vector_cuda": (128, 256, (8, 8))}
BK = 8


def run(subject, name, a, w, c, grid=None):
    (M, K), N = a.shape, len(w)
    side, threads, _ = BLOCKS[name]
    grid = grid or (-(-N // side), -(-M // side))
    with contextlib.ExitStack() as stack:
        for tile in ("a_tile", "w_tile"):
            stack.enter_context(same_report("no_barrier", "All must have multiplied before any "
                                            "fetches the next tiles.", kind="race", array=tile))
            stack.enter_context(same_report("returned_early", "A thread without an element of c "
                                            "fetches too.", kind="uninitialised", array=tile))
        return subject.launch(name, grid, threads, (a, w, c, M, N, K))


def padded(x, side):
    """x with zeros up to multiples of side."""
    return np.pad(x, [(0, -rows % side) for rows in x.shape])


def moved(want, side, rows, columns):
    """The c that results if row r of a block's tile gets what belongs to rows[r], and so on."""
    whole = padded(want, side)
    r, c = (np.concatenate([first + np.array(order) for first in range(0, n, side)])
            for n, order in zip(whole.shape, (rows, columns), strict=True))
    return whole[r][:, c][:want.shape[0], :want.shape[1]]


def crossed(want, side, of):
    """The c that results if element (m, n) of a block's tile gets what belongs to of(m, n)."""
    whole = padded(want, side)
    m, n = np.indices(want.shape)
    row, column = of(m % side, n % side)
    return whole[m - m % side + row, n - n % side + column]


def of_steps(name, a, w):
    """{mistake: (sentence, what it gives)} of any kernel that walks along k in steps of BK."""
    (M, K), N, k = a.shape, len(w), np.arange(a.shape[1])
    steps, last = k // BK, K % BK == 0      # the last k of a step is K - 1 only where it is whole
    rows = {
        "sums_reset": ("sets its sums to 0 again in each step", (steps == steps[-1]) * 1),
        "one_step": ("multiplies in the first or the last step only", (steps == 0) * 1),
        "overwritten": ("overwrites its sums: += instead of =", (k == K - 1) * last),
        "no_last_k": ("leaves out the last k of each step", k % BK < BK - 1),
        "no_first_k": ("leaves out the first k of each step", k % BK > 0),
        "half_of_k": ("multiplies only the first half of each step", k % BK < BK // 2),
        "one_k": ("multiplies only the first k of each step", k % BK == 0),
        "every_other_k": ("leaves out every other k", k % 2 == 0)}
    finite = (np.where(np.isfinite(x), x, 0) for x in (a, w))
    return {known: (sentence, product(a * of, w)) for known, (sentence, of) in rows.items()
            if not np.all(of == 1)} | {
        "old_contents": ("adds to the old contents of c, not to 0", product(a, w) + 7),
        "finite_only": ("skips products with infinity or NaN", product(*finite)),
        "not_stored": ("stores nothing", np.full((M, N), 7))}


def right(agree, name, a, w, got, what="", precision="float32"):
    """c is a · wᵀ, or the message names the element and the likely mistake."""
    side, _, _ = BLOCKS[name]
    with np.errstate(all="ignore"):
        rows = MISTAKES[name](a, w) | of_steps(name, a, w)
        agree(got, product(a, w), precision, f"{name}, a {a.shape} and w {w.shape}{what}",
              lambda index: f"row {index[0]}, column {index[1]} of c (row {index[0] % side}, "
                            f"column {index[1] % side} of its block's tile)",
              {known: (f"{name} {sentence}", gives)
               for known, (sentence, gives) in rows.items()}, unwritten=7)


def many_steps(subject, reference, agree, rng, name):
    """More blocks than one and more steps than one; and what was done, beside the course's own."""
    side = BLOCKS[name][0]
    a, w, c = operands(rng, side + 1, side + 3, 12)
    launch = run(subject, name, a, w, c)
    right(agree, name, a, w, c)
    same_work(name, launch, run(reference, name, a, w, c.copy()))


def hard(subject, agree, rng, name):
    """Each kind of numbers; a size past 15 bits, of which the first tile is made; no k at all."""
    for a, w, parts in factors(rng, 8):
        c = np.full((len(a), len(w)), 7, np.float32)
        run(subject, name, a, w, c)
        for rows, columns, what, precision in parts:
            right(agree, name, a[rows], w[columns], c[rows, columns], what, precision)
    side, _, _ = BLOCKS[name]
    a, w, c = operands(rng, 2, 33_000, 4)
    run(subject, name, a, w, c, grid=(1, 1))
    right(agree, name, a, w[:side], c[:, :side], f", the first {side} columns of 33,000")
    a, w, c = operands(rng, 3, 5, 0)
    run(subject, name, a, w, c)
    assert (c == 0).all(), mistake("empty_sum", (
        f"{name}: with K = 0 every element of c is 0; c[0, 0] held 7 and holds {c[0, 0]:g}"))


def addresses(subject, name, row, threads):
    """Rows of c begin at products of more than 32 bits; the given fetch has those of a and w."""
    side, block, _ = BLOCKS[name]
    x, c = np.zeros(4, np.float32), np.zeros(side, np.float32)
    in_64_bits(subject, name, (1, 1), block, (x, x, c, row + 1, 2**32 // row, 0), threads,
               "c, m · N", row)


def economical(name, launch, vector=1):
    """One step of one block. vector: numbers that are read from shared memory at once"""
    side, threads, (TM, TN) = BLOCKS[name]
    apart = f"the rows (and columns) of one thread must be {side // TM} apart"
    if vector == 4:
        apart = "a thread reads float4 [y] and [y + SIDE], not [2y] and [2y + 1]"
    for known, got, most, what in (
            ("reads_again", launch.bytes("load", "shared") / 4 / (side * side * BK),
             (TM + TN) / (TM * TN), f"numbers read from shared memory for each multiplication. For "
             f"each k, read each number of a thread tile of {TM} x {TN} into a register once."),
            ("local_memory", launch.requests("load", "local") + launch.requests("store", "local"),
             0, "requests to local memory: sums are not in registers. Give every loop over them "
             "constant bounds, so that the compiler can unroll it."),
            ("conflicts", launch.bank_conflicts(), 1.01, "times the fewest passes through shared "
             f"memory. Neighbouring threads must read neighbours, so {apart}."),
            ("single_numbers", launch.requests("load", "shared"),
             threads // 32 * BK * (TM + TN) // vector, "load requests to shared memory. Read a "
             "float4 each time, not single numbers.")):
        assert got <= most, mistake(known, f"{name}: {got:,.6g}, not {most:,.6g}, {what}", what)


# ---- counting


def test_shared_reads(subject, reference, rng):
    for name in ("matmul_strip_cuda", "matmul_square_cuda"):
        side, _, (TM, TN) = BLOCKS[name]
        launch = run(reference, name, *operands(rng, side, side, BK))
        want = launch.bytes("load", "shared") / 4 / (side * side * BK)
        got = subject.shared_reads(TM, TN)
        assert isinstance(got, (int, float)), mistake(
            "no_number", f"shared_reads: expected a number, got {got!r}")
        guesses = (
            (1 / want, "turned_round", "That is multiplications per number, not the reverse."),
            (want / 2, "flops", "Count multiplications, not FLOPs."),
            (2, "no_registers", "2 is right without registers: two numbers for each product."),
            (TM + TN, "no_division", "That is for one k; divide by the multiplications."),
            (TM * TN, "multiplications", "These are the multiplications for one k."),
            (2 / (TM * TN) ** 0.5, "square", "That is so for a square; a tile may be a strip."),
            ((TM + 1) / TM, "strip", "That is so for a strip alone: TN is not used."),
            (4 * want, "bytes", "Count numbers, not bytes."),
            (1 / TM, "no_a", "Each thread reads numbers of a as well, TM for one k."),
            (want // 1, "rounded_down", "// rounds down, or w's numbers are not counted."))
        known, why = next((row for value, *row in guesses if abs(got - value) < 1e-6),
                          ("other", "For one k, TM numbers of a meet TN numbers of w."))
        assert abs(got - want) < 1e-6, mistake(
            known, f"shared_reads({TM}, {TN}): the simulator does not count {got:g} numbers per "
                   f"multiplication in {name}. {why}", why)


def test_shared_reads__unseen(unseen, rng):
    for TM, TN in [*rng.integers(1, 100, (4, 2)).tolist(), (1, 1), (2**10, 3)]:
        unseen("shared_reads", TM, TN)


# ---- a strip


def of_strip(a, w):
    want, order = product(a, w), np.arange(64)
    return {
        "rows_8y_i": ("reads rows 8y + i of a_tile but stores rows y + 8i, or conversely",
                      moved(want, 64, order % 8 * 8 + order // 8, order)),
        "column_y": ("reads column y of w_tile; a thread's column is x",
                     crossed(want, 64, lambda m, n: (m, m % 8))),
        "row_x": ("reads row x of a_tile; a thread's rows are y + 8i",
                  crossed(want, 64, lambda m, n: (n, n))),
        "rows_y_i": ("reads rows y + i of a_tile but stores rows y + 8i",
                     moved(want, 64, order % 8 + order // 8, order)),
        "one_row": ("takes row y for all sums, not rows y + 8i", moved(want, 64, order % 8, order))}


@pytest.mark.parametrize("M, N, K", [(60, 50, 13), (1, 1, 1), (3, 70, 5), (64, 33, 8)])
def test_matmul_strip_cuda(subject, agree, rng, M, N, K):
    a, w, c = operands(rng, M, N, K)
    run(subject, "matmul_strip_cuda", a, w, c)
    right(agree, "matmul_strip_cuda", a, w, c)


def test_matmul_strip_cuda__work(subject, rng):
    economical("matmul_strip_cuda", run(subject, "matmul_strip_cuda", *operands(rng, 64, 64, BK)))


def test_matmul_strip_cuda__many_blocks(subject, reference, agree, rng):
    many_steps(subject, reference, agree, rng, "matmul_strip_cuda")


def test_matmul_strip_cuda__hard(subject, agree, rng):
    hard(subject, agree, rng, "matmul_strip_cuda")


def test_matmul_strip_cuda__addresses(subject):
    addresses(subject, "matmul_strip_cuda", row=4, threads=64)


# ---- a square


def of_square(a, w):
    want, order = product(a, w), np.arange(128)
    whole = padded(want, 128)[:128, :128].reshape(8, 16, 8, 16)         # (i, y, j, x)
    beside = order % 16 * 8 + order // 16       # 8y + i in place of y + 16i
    apart = order % 8 * 16 + order // 8         # and the reverse
    near = order % 16 + order // 16             # y + i
    one = order % 16
    return {
        "reads_beside": ("reads rows 8y + i and columns 8x + j but stores y + 16i and x + 16j",
                         moved(want, 128, beside, beside)),
        "columns_beside": ("reads columns 8x + j, not x + 16j", moved(want, 128, order, beside)),
        "rows_beside": ("reads rows 8y + i, not y + 16i", moved(want, 128, beside, order)),
        "stores_beside": ("reads rows y + 16i and columns x + 16j but stores 8y + i and 8x + j",
                          moved(want, 128, apart, apart)),
        "stores_rows_beside": ("stores 8y + i, not y + 16i", moved(want, 128, apart, order)),
        "stores_columns_beside": ("stores 8x + j, not x + 16j", moved(want, 128, order, apart)),
        "x_y_exchanged": ("exchanges x and y: a_tile's rows are those of y", crossed(
            want, 128, lambda m, n: (m - m % 16 + n % 16, n - n % 16 + m % 16))),
        "one_row": ("takes row y for all rows of a thread", moved(want, 128, one, order)),
        "one_column": ("takes column x for all columns of a thread", moved(want, 128, order, one)),
        "w_part_i": ("multiplies by w_part[i], not by w_part[j]",
                     crossed(want, 128, lambda m, n: (m, n % 16 + m // 16 * 16))),
        "a_part_j": ("multiplies a_part[j], not a_part[i]",
                     crossed(want, 128, lambda m, n: (m % 16 + n // 16 * 16, n))),
        "i_j_exchanged": ("swaps i and j between the products and the stores",
                          whole.transpose(2, 1, 0, 3).reshape(128, 128)[:len(a), :len(w)]),
        "reads_near": ("reads y + i and x + j but stores y + 16i and x + 16j",
                       moved(want, 128, near, near))}


@pytest.mark.parametrize("M, N, K", [(60, 100, 7), (1, 1, 1), (128, 33, 8)])
def test_matmul_square_cuda(subject, agree, rng, M, N, K):
    a, w, c = operands(rng, M, N, K)
    run(subject, "matmul_square_cuda", a, w, c)
    right(agree, "matmul_square_cuda", a, w, c)


def test_matmul_square_cuda__work(subject, rng):
    economical("matmul_square_cuda",
               run(subject, "matmul_square_cuda", *operands(rng, 128, 128, BK)))


def test_matmul_square_cuda__many_blocks(subject, reference, agree, rng):
    many_steps(subject, reference, agree, rng, "matmul_square_cuda")


def test_matmul_square_cuda__hard(subject, agree, rng):
    hard(subject, agree, rng, "matmul_square_cuda")


def test_matmul_square_cuda__addresses(subject):
    addresses(subject, "matmul_square_cuda", row=4, threads=16)


# ---- vectors


def of_vector(a, w):
    want, order = product(a, w), np.arange(128)
    beside = (order % 64 + order // 64 * 4) % 128       # the second float4 is the next one
    pair = order % 64 // 4 * 8 + order // 64 * 4 + order % 4            # 2y and 2y + 1
    stored = order // 8 * 4 + order % 4 + order % 8 // 4 * 64           # at 8y + i
    first = order % 64
    turned = (order + 64) % 128
    both = {
        "second_beside": ("reads the second float4 next to the first, not SIDE on", beside, beside),
        "first_twice": ("reads the first float4 twice; the second is at [y + SIDE]", first, first),
        "first_twice_a": ("reads the first float4 of a twice", first, order),
        "first_twice_w": ("reads the first float4 of w twice", order, first),
        "second_beside_a": ("reads the second float4 of a next to the first", beside, order),
        "second_beside_w": ("reads the second float4 of w next to the first", order, beside),
        "pairs": ("reads float4 2y and 2y + 1, 2x and 2x + 1, not SIDE apart", pair, pair),
        "stores_beside": ("stores rows 8y + i and columns 8x + j; its float4 are SIDE apart",
                          stored, stored),
        "stores_rows_beside": ("stores rows 8y + i, but reads a SIDE apart", stored, order),
        "stores_columns_beside": ("stores columns 8x + j, but reads w SIDE apart", order, stored),
        "turned_a": ("has the two float4 of a the wrong way round", turned, order),
        "turned_w": ("has the two float4 of w the wrong way round", order, turned)}
    return {known: (sentence, moved(want, 128, rows, columns))
            for known, (sentence, rows, columns) in both.items()} | {
        "x_y_exchanged": ("exchanges x and y: a_tile's rows are those of y", crossed(
            want, 128, lambda m, n: (m // 64 * 64 + n % 64 // 4 * 4 + m % 4,
                                     n // 64 * 64 + m % 64 // 4 * 4 + n % 4))),
        "w_part_i": ("multiplies by number i of w_part, not by number j", crossed(
            want, 128, lambda m, n: (m, n % 64 // 4 * 4 + m % 4 + m // 64 * 64))),
        "i_j_exchanged": ("swaps i and j between the products and the stores", crossed(
            want, 128, lambda m, n: (m % 64 // 4 * 4 + n % 4 + n // 64 * 64,
                                     n % 64 // 4 * 4 + m % 4 + m // 64 * 64)))}


@pytest.mark.parametrize("M, N, K", [(60, 100, 8), (65, 47, 4), (1, 1, 4), (128, 35, 8)])
def test_matmul_vector_cuda(subject, agree, rng, M, N, K):
    a, w, c = operands(rng, M, N, K)
    run(subject, "matmul_vector_cuda", a, w, c)
    right(agree, "matmul_vector_cuda", a, w, c)


def test_matmul_vector_cuda__work(subject, rng):
    economical("matmul_vector_cuda",
               run(subject, "matmul_vector_cuda", *operands(rng, 128, 128, BK)), vector=4)


def test_matmul_vector_cuda__many_blocks(subject, reference, agree, rng):
    many_steps(subject, reference, agree, rng, "matmul_vector_cuda")


def test_matmul_vector_cuda__hard(subject, agree, rng):
    hard(subject, agree, rng, "matmul_vector_cuda")


def test_matmul_vector_cuda__addresses(subject):
    """Of one store, rows 4 and 8 with 16 threads each lie beyond."""
    addresses(subject, "matmul_vector_cuda", row=8, threads=4)


MISTAKES = {"matmul_strip_cuda": of_strip, "matmul_square_cuda": of_square,
            "matmul_vector_cuda": of_vector}


# ---- the course's own launcher


def test_every_launcher(subject, agree, rng):
    import torch

    for M, N, K in ((129, 3, 100), (2, 200, 36)):
        a, w, _ = operands(rng, M, N, K)
        want = subject.matmul_oracle(a, w)
        for name in BLOCKS:
            got = subject.matmul_registers_cuda(torch.from_numpy(a), torch.from_numpy(w), name)
            agree(got, want, "float32", f"{name}, {(M, N, K)}")


def test_extreme_values(subject):
    """Overflow is as in torch, and a row with inf or NaN spoils only itself."""
    import torch

    a, w = torch.ones(4, 36), torch.ones(5, 36)
    a[0, 0], a[1, 35], a[2, 2], w[:, 1:3] = torch.inf, torch.nan, 0, 3e38
    want = a @ w.T                                      # inf, NaN, 3e38, and 6e38, which is inf
    assert want[2, 0].isfinite() and want[3].isinf().all()
    for name in BLOCKS:
        got = subject.matmul_registers_cuda(a, w, name)
        assert torch.equal(got.nan_to_num(nan=7), want.nan_to_num(nan=7)), name


@pytest.mark.parametrize("M, N, K", [(0, 5, 3), (5, 0, 4), (3, 4, 0)])
def test_nothing_to_do(subject, M, N, K):
    import torch

    for name in BLOCKS:
        if K % 4 == 0 or name != "matmul_vector_cuda":
            got = subject.matmul_registers_cuda(torch.ones(M, K), torch.ones(N, K), name)
            assert torch.equal(got, torch.zeros(M, N)), name


def test_what_the_launcher_refuses(subject):
    import torch

    a, w = torch.ones(4, 8), torch.ones(5, 8)
    for args, says in (((a, w[:, :5]), "(5, 5), expected (M, K) and (N, K)"),
                       ((a.half(), w.half()), "a is torch.float16"),
                       ((torch.ones(8, 4).T, w), "a has strides (1, 4)"),
                       ((torch.ones(4, 6), torch.ones(5, 6)), "rows of 6 numbers")):
        with pytest.raises(Raised) as refusal:
            subject.matmul_registers_cuda(*args)
        assert says in refusal.value.text


@pytest.mark.slow
def test_no_register_is_spilled():
    from layer1_kernels.k06_matmul_registers import KERNELS

    for name in BLOCKS:
        for arch in ("sm_80", "sm_90"):
            resources = KERNELS.resources(name, arch)
            assert resources.spill_stores == resources.stack == 0, f"{name} on {arch}: {resources}"


@pytest.mark.gpu
@pytest.mark.parametrize("M, N, K", [(0, 5, 4), (3, 4, 0), (1, 1000, 1000), (129, 127, 1000),
                                     (1024, 2048, 512)])
def test_every_kernel_on_the_device(M, N, K):
    import torch

    from layer1_kernels import matmul_registers_cuda

    a, w = (torch.randn(rows, K, device="cuda") for rows in (M, N))
    want = a.double() @ w.double().T
    for name in BLOCKS:
        got = matmul_registers_cuda(a, w, name).double()
        assert torch.allclose(got, want, rtol=2e-5, atol=1e-4), name


@pytest.mark.gpu
def test_matmul_vector_cuda_speed(pace):
    pace("matmul_registers_cuda", numbers("float32", 4096, 4096), numbers("float32", 4096, 4096))
