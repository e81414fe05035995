"""Graders of k06. Outputs start as 7, so that unwritten places show."""

import numpy as np
import pytest

from lab.judge.addresses import in_64_bits
from lab.judge.adversarial import factors
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work

BLOCKS = {          # side of a block's tile, threads, thread tile
    "matmul_strip_cuda": (64, 512, (8, 1)), "matmul_square_cuda": (128, 256, (8, 8)),
    "matmul_vector_cuda": (128, 256, (8, 8))}
BK = 8


def operands(rng, M, N, K):
    """a (M, K), w (N, K), and c (M, N) of sevens."""
    a, w = (rng.standard_normal((rows, K), dtype=np.float32) for rows in (M, N))
    return a, w, np.full((M, N), 7, np.float32)


def product(a, w):
    return a.astype(np.float64) @ w.T


def run(subject, name, a, w, c, grid=None):
    (M, K), N = a.shape, len(w)
    side, threads, _ = BLOCKS[name]
    return subject.launch(name, grid or (-(-N // side), -(-M // side)), threads,
                          (a, w, c, M, N, K))


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
    """{mistake: what it gives} of any kernel that walks along k in steps of BK."""
    (M, K), N, k = a.shape, len(w), np.arange(a.shape[1])
    steps, last = k // BK, K % BK == 0      # the last k of a step is K - 1 only where it is whole
    mistakes = {
        f"{name} starts its sums again with each step": (steps == steps[-1]) * 1,
        f"{name} multiplies only in the last step, or the first": (steps == 0) * 1,
        f"{name} replaces its sums instead of adding to them": (k == K - 1) * last,
        f"{name} leaves out the last k of each step": k % BK < BK - 1,
        f"{name} leaves out the first k of each step": k % BK > 0,
        f"{name} multiplies only the first half of each step": k % BK < BK // 2,
        f"{name} multiplies only the first k of each step": k % BK == 0}
    if name == "matmul_vector_cuda":
        mistakes[f"{name} leaves out every other k"] = k % 2 == 0
    return {words: product(a * of, w) for words, of in mistakes.items() if not np.all(of == 1)} | {
        f"{name} adds to what c held before; sums start at 0": product(a, w) + 7,
        f"{name} leaves out products with infinity or NaN":
            product(*(np.where(np.isfinite(x), x, 0) for x in (a, w))),
        f"{name} writes nothing": np.full((M, N), 7)}


def right(agree, name, a, w, got, what="", precision="float32"):
    """c is a · wᵀ, or the message names the element and the likely mistake."""
    side, _, _ = BLOCKS[name]
    with np.errstate(all="ignore"):
        mistakes = MISTAKES[name](a, w) | of_steps(name, a, w) if a.size else {}
        agree(got, product(a, w), precision, f"{name}, a {a.shape} and w {w.shape}{what}",
              lambda index: f"row {index[0]}, column {index[1]} of c (row {index[0] % side}, "
                            f"column {index[1] % side} of its block's tile)",
              mistakes, unwritten=7)


def many_steps(subject, reference, agree, rng, name):
    """More blocks than one and more steps than one; and what was done, beside the course's own."""
    side, _, _ = BLOCKS[name]
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
    right(agree, name, a, w, c, ": a sum of nothing is 0")


def addresses(subject, name, row, threads):
    """Rows of c begin at products of more than 32 bits; the given fetch has those of a and w."""
    side, block, _ = BLOCKS[name]
    x, c = np.zeros(4, np.float32), np.zeros(side, np.float32)
    in_64_bits(subject, name, (1, 1), block, (x, x, c, row + 1, 2**32 // row, 0), threads,
               "c, m · N", row)


def economical(name, launch, vector=1):
    """One step of one block. vector: numbers that are read from shared memory at once"""
    side, threads, (TM, TN) = BLOCKS[name]
    multiplications = side * side * BK
    got = launch.bytes("load", "shared") / 4 / multiplications
    least = (TM + TN) / (TM * TN)
    assert got <= least, (
        f"{name} reads {got:g} numbers of shared memory for each multiplication, {least:g} are "
        f"enough for a thread tile of {TM} x {TN}: read each into a register, once for each k")
    local = launch.requests("load", "local") + launch.requests("store", "local")
    assert local == 0, (
        f"{name} reads and writes local memory {local} times: its sums are not in registers. Loops "
        f"over them need constant bounds, and to be unrolled")
    conflicts = launch.bank_conflicts()
    assert conflicts <= 1.01, (
        f"{name}: shared memory is asked {conflicts:.3g} times as often as need be: neighbouring "
        f"threads should read neighbouring numbers, so the rows and columns of one thread are "
        f"apart")
    requests = launch.requests("load", "shared")
    enough = threads // 32 * BK * (TM + TN) // vector
    assert requests <= enough, (
        f"{name} reads shared memory by {requests} requests, {enough} are enough with 16 bytes a "
        f"thread: read float4, not single numbers")


# ---- counting


def test_shared_reads(subject, reference, rng):
    for name in ("matmul_strip_cuda", "matmul_square_cuda"):
        side, _, (TM, TN) = BLOCKS[name]
        launch = run(reference, name, *operands(rng, side, side, BK))
        want = launch.bytes("load", "shared") / 4 / (side * side * BK)
        got = subject.shared_reads(TM, TN)
        assert isinstance(got, (int, float)), f"a count is a number, got {got!r}"
        why = {1 / want: "that is multiplications for each number read",
               want / 2: "count multiplications, not FLOPs",
               2: "2 would hold without registers, two numbers for each multiplication",
               TM + TN: "these are the numbers for one k; divide by the multiplications",
               TM * TN: "these are the multiplications for one k",
               2 / (TM * TN) ** 0.5: "that is so for a square alone; a tile may be a strip",
               (TM + 1) / TM: "that is so for a strip alone: TN is not used",
               4 * want: "count numbers, not bytes",
               1 / TM: "each thread reads numbers of a as well, TM for one k",
               want // 1: "the fraction is lost (// rounds down), or w's numbers are not counted"}
        why.pop(want, None)
        said = next((text for value, text in why.items() if abs(got - value) < 1e-6),
                    "for one k, TM numbers of a meet TN numbers of w")
        assert abs(got - want) < 1e-6, (
            f"a thread tile of {TM} x {TN}: the counter of {name} does not say {got:g} numbers "
            f"for each multiplication; {said}")


def test_shared_reads__unseen(unseen, rng):
    for TM, TN in [*rng.integers(1, 100, (4, 2)).tolist(), (1, 1), (2**10, 3)]:
        unseen("shared_reads", TM, TN)


# ---- a strip


def of_strip(a, w):
    want, order = product(a, w), np.arange(64)
    return {
        "matmul_strip_cuda reads rows 8y + i of a_tile and stores rows y + 8i, or conversely":
            moved(want, 64, order % 8 * 8 + order // 8, order),
        "matmul_strip_cuda reads column y of w_tile; a thread's column is x":
            crossed(want, 64, lambda m, n: (m, m % 8)),
        "matmul_strip_cuda reads row x of a_tile; a thread's rows are y + 8i":
            crossed(want, 64, lambda m, n: (n, n)),
        "matmul_strip_cuda reads rows y + i of a_tile and stores rows y + 8i":
            moved(want, 64, order % 8 + order // 8, order),
        "all sums of matmul_strip_cuda are taken with row y of a_tile":
            moved(want, 64, order % 8, order)}


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
    return {
        "matmul_square_cuda reads rows 8y + i and columns 8x + j and stores y + 16i and x + 16j":
            moved(want, 128, order % 16 * 8 + order // 16, order % 16 * 8 + order // 16),
        "matmul_square_cuda reads columns 8x + j and stores x + 16j":
            moved(want, 128, order, order % 16 * 8 + order // 16),
        "matmul_square_cuda reads rows 8y + i and stores y + 16i":
            moved(want, 128, order % 16 * 8 + order // 16, order),
        "matmul_square_cuda reads rows y + 16i and columns x + 16j and stores 8y + i and 8x + j":
            moved(want, 128, order % 8 * 16 + order // 8, order % 8 * 16 + order // 8),
        "matmul_square_cuda reads rows y + 16i and stores 8y + i":
            moved(want, 128, order % 8 * 16 + order // 8, order),
        "matmul_square_cuda reads columns x + 16j and stores 8x + j":
            moved(want, 128, order, order % 8 * 16 + order // 8),
        "matmul_square_cuda exchanges x and y: a_tile's rows are those of y":
            crossed(want, 128, lambda m, n: (m - m % 16 + n % 16, n - n % 16 + m % 16)),
        "all rows of a thread are the first, y":
            moved(want, 128, order % 16, order),
        "all columns of a thread are the first, x":
            moved(want, 128, order, order % 16),
        "matmul_square_cuda multiplies by w_part[i], not by w_part[j]":
            crossed(want, 128, lambda m, n: (m, n % 16 + m // 16 * 16)),
        "matmul_square_cuda multiplies a_part[j], not a_part[i]":
            crossed(want, 128, lambda m, n: (m % 16 + n // 16 * 16, n)),
        "matmul_square_cuda exchanges i and j between its products and its stores":
            whole.transpose(2, 1, 0, 3).reshape(128, 128)[:want.shape[0], :want.shape[1]],
        "matmul_square_cuda reads neighbours, y + i and x + j, and stores y + 16i and x + 16j":
            moved(want, 128, order % 16 + order // 16, order % 16 + order // 16)}


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
    neighbours = order % 64 // 4 * 8 + order // 64 * 4 + order % 4      # 2y and 2y + 1
    stored = order // 8 * 4 + order % 4 + order % 8 // 4 * 64           # at 8y + i
    return {
        "the second float4 of matmul_vector_cuda is the one beside the first; it is SIDE away":
            moved(want, 128, beside, beside),
        "both float4 of matmul_vector_cuda are the first":
            moved(want, 128, order % 64, order % 64),
        "both float4 of a are the first in matmul_vector_cuda": moved(want, 128, order % 64, order),
        "both float4 of w are the first in matmul_vector_cuda": moved(want, 128, order, order % 64),
        "the second float4 of a is the one beside the first in matmul_vector_cuda; it is SIDE away":
            moved(want, 128, beside, order),
        "the second float4 of w is the one beside the first in matmul_vector_cuda; it is SIDE away":
            moved(want, 128, order, beside),
        "matmul_vector_cuda reads float4 2y and 2y + 1, 2x and 2x + 1; y and y + SIDE, x and x + "
        "SIDE are stored": moved(want, 128, neighbours, neighbours),
        "matmul_vector_cuda stores rows 8y to 8y + 7 and columns 8x to 8x + 7; its float4 are SIDE "
        "apart": moved(want, 128, stored, stored),
        "matmul_vector_cuda stores rows 8y to 8y + 7; its float4 of a are SIDE apart":
            moved(want, 128, stored, order),
        "matmul_vector_cuda stores columns 8x to 8x + 7; its float4 of w are SIDE apart":
            moved(want, 128, order, stored),
        "the two float4 of a are the wrong way round in matmul_vector_cuda":
            moved(want, 128, (order + 64) % 128, order),
        "the two float4 of w are the wrong way round in matmul_vector_cuda":
            moved(want, 128, order, (order + 64) % 128),
        "matmul_vector_cuda exchanges x and y: a_tile's rows are those of y":
            crossed(want, 128, lambda m, n: (m // 64 * 64 + n % 64 // 4 * 4 + m % 4,
                                             n // 64 * 64 + m % 64 // 4 * 4 + n % 4)),
        "matmul_vector_cuda multiplies by number i of w_part, not by number j":
            crossed(want, 128, lambda m, n: (m, n % 64 // 4 * 4 + m % 4 + m // 64 * 64)),
        "matmul_vector_cuda exchanges i and j between its products and its stores":
            crossed(want, 128, lambda m, n: (m % 64 // 4 * 4 + n % 4 + n // 64 * 64,
                                             n % 64 // 4 * 4 + m % 4 + m // 64 * 64))}


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
    for given, says in (((a, w[:, :5]), "(5, 5), expected (M, K) and (N, K)"),
                        ((a.half(), w.half()), "a is torch.float16"),
                        ((torch.ones(8, 4).T, w), "a has strides (1, 4)"),
                        ((torch.ones(4, 6), torch.ones(5, 6)), "rows of 6 numbers")):
        with pytest.raises(Raised) as refusal:
            subject.matmul_registers_cuda(*given)
        assert says in refusal.value.text


@pytest.mark.slow
def test_no_register_is_spilled():
    from layer1_kernels.k06_matmul_registers import KERNELS

    for name in BLOCKS:
        for arch in ("sm_80", "sm_90"):
            found = KERNELS.resources(name, arch)
            assert found.spill_stores == found.stack == 0, f"{name} on {arch}: {found}"


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
