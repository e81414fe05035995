"""Graders of k04. Outputs start as 7, so that unwritten places show."""

import numpy as np
import pytest

from lab.judge.addresses import FAR, ROWS, in_64_bits
from lab.judge.adversarial import VALUES, shifted
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work

CUDA = ("matmul_naive_cuda", "matmul_swapped_cuda", "matmul_coalesced_cuda")
SIZES = [(33, 17, 40), (40, 9, 31), (3, 21, 129), (5, 2, 1000), (1, 1, 1)]          # M, N, K
SMALLER = [(5, 9, 40), (3, 9, 31), (2, 21, 129), (3, 2, 1000), (1, 1, 1)]   # a warp an element
WARPS = 8
HARD = VALUES | {"around -3000": lambda rng, shape: shifted(rng, shape, -3000)}
DESCRIBED = {"unrounded": "numbers of 24 bits", "exact_sums": "numbers whose sums are exact",
             "shifted": "numbers around 200", "around -3000": "numbers around -3000",
             "negative": "only numbers below 0", "equal": "equal numbers throughout a row",
             "uneven": "rows of very different sizes", "infinite": "-inf among the numbers",
             "not_a_number": "a NaN", "signed_zeros": "0 and -0 among the numbers",
             "denormal": "numbers of 1e-40", "tied": "whole numbers from 0 to 2"}


def operands(rng, M, N, K):
    """a (M, K), w (N, K), and c (M, N) of sevens."""
    a, w = (rng.standard_normal((rows, K), dtype=np.float32) for rows in (M, N))
    return a, w, np.full((M, N), 7, np.float32)


def product(a, w, of=None):
    """a · wᵀ in float64, of some of the k or with a weight for each."""
    of = np.ones(a.shape[1]) if of is None else of
    return (a * of).astype(np.float64) @ w.T


def ceil(a, b):
    return -(-a // b)


def run(subject, name, a, w, c, block=(32, WARPS)):
    (M, K), N, (x, y) = a.shape, len(w), block
    grid = {"matmul_naive_cuda": (ceil(M, x), ceil(N, y)),
            "matmul_coalesced_cuda": (ceil(N, y), M)}[name]
    return subject.launch(name, grid, block, (a, w, c, M, N, K))


def right(agree, name, a, w, c, what="", precision="float32"):
    """c is a · wᵀ, or the message names the element and the likely mistake."""
    with np.errstate(all="ignore"):
        want = product(a, w)
        agree(c, want, precision, f"{name}, a {a.shape} and w {w.shape}{what}",
              lambda index: f"row {index[0]}, column {index[1]} of c",
              MISTAKES[name](a, w) | of_any(name, a, w) if a.size else {}, unwritten=7)


def of_any(name, a, w):
    """{mistake: what it gives} of any kernel for a sum over k."""
    (M, K), N = a.shape, len(w)
    k = np.arange(K)
    return {f"{name} reads w as (K, N), down its columns": product(a, w.reshape(K, N).T),
            f"{name} writes c transposed, column after column": product(w, a).reshape(M, N),
            f"{name} leaves the last k out": product(a, w, k < K - 1),
            f"{name} leaves the first k out": product(a, w, k > 0),
            f"{name} drops the k beyond the last whole 4": product(a, w, k < K // 4 * 4),
            f"{name} adds to what c held before; a sum starts at 0": product(a, w) + 7,
            f"{name} leaves out products with infinity or NaN":
                product(*(np.where(np.isfinite(x), x, 0) for x in (a, w))),
            f"{name} writes nothing": np.full((M, N), 7)}


def of_threads(a, w):
    """{mistake: what it gives} of a kernel whose thread adds up an element."""
    return {"matmul_naive_cuda starts its sum again for each k":
                product(a, w, np.arange(a.shape[1]) == a.shape[1] - 1)}


def of_lanes(a, w):
    """{mistake: what it gives} of a kernel whose lane t has the k t, t + 32, ..."""
    k = np.arange(a.shape[1])
    name, lane = "matmul_coalesced_cuda", k % 32
    return {f"the 32 sums of {name} are not added, and lane 0 stores its own":
                product(a, w, lane == 0),
            f"the shuffles of {name} leave out the lanes 1 apart": product(a, w, lane % 2 == 0),
            f"the shuffles of {name} leave out the lanes 16 apart": product(a, w, lane < 16),
            f"the lanes of {name} step by 1, so that most k are added by many lanes":
                product(a, w, np.minimum(k + 1, 32)),
            f"{name} takes 32 k in all, one a lane": product(a, w, k < 32),
            f"{name} drops the k beyond the last whole 32":
                product(a, w, k < len(k) // 32 * 32)}


MISTAKES = {"matmul_naive_cuda": of_threads, "matmul_coalesced_cuda": of_lanes}


def hard_numbers(subject, agree, rng, name):
    """Each kind of numbers in a, then in w. Of rows of different sizes each is looked at alone."""
    for kind, draw in HARD.items():
        for hard in "aw":
            a, w, c = operands(rng, 5, 6, 39)
            x, other = (a, w) if hard == "a" else (w, a)
            x[...] = draw(rng, x.shape)
            other[...] = VALUES["tied" if kind == "exact_sums" else "unrounded"](rng, other.shape)
            if kind == "infinite":          # at the edge too, and with no NaN in a right answer
                x[-1, -1], other[...] = -np.inf, np.abs(other)
            run(subject, name, a, w, c)
            what = f", {DESCRIBED[kind]} in {hard}"
            if kind != "uneven":
                right(agree, name, a, w, c, what, "exact" if kind == "exact_sums" else "float32")
            for i in range(len(x)) if kind == "uneven" else ():
                part = np.s_[i:i + 1] if hard == "a" else np.s_[:, i:i + 1]
                agree(c[part], product(a, w)[part], "float32", f"{name}, row {i} of {hard}{what}")


def other_sizes(subject, agree, rng, name, cases):
    """cases: [((M, N, K), block)]. Blocks of another form, a size past 15 bits, no k at all."""
    for sizes, block in [*cases, ((3, 5, 0), (32, WARPS))]:
        a, w, c = operands(rng, *sizes)
        run(subject, name, a, w, c, block)
        right(agree, name, a, w, c, f" by blocks of {block} threads" +
              ("" if sizes[2] else ": a sum of nothing is 0"))


def addresses(subject, name, grids, block, threads):
    """Rows of a, of w and of c begin at products of more than 32 bits."""
    x, c = np.zeros(32, np.float32), np.zeros(block[1], np.float32)
    for of, (M, N, K) in {"a, m · K": (ROWS, 1, FAR), "w, n · K": (1, ROWS, FAR),
                          "c, m · N": (ROWS, FAR, 0)}.items():
        of_row = threads if K else block[1]
        in_64_bits(subject, name, grids[of[0]], block, (x, x, c, M, N, K), of_row, of)


def work(subject, reference, rng, name, K):
    """A launch of 4 blocks and more, of 8 warps each, beside the course's own. Two blocks of 32
    have 34 rows: one thread that does all takes 17 times the steps, fewer than the limit."""
    a, w, c = operands(rng, 34 if name == "matmul_naive_cuda" else 4, 16, K)
    same_work(name, run(subject, name, a, w, c), run(reference, name, a, w, c.copy()))


# ---- an element a thread


def test_predict_read_ratio(subject, reference, rng):
    for M, N, K in ((32, 32, 8), (64, 16, 24)):
        a, w, c = operands(rng, M, N, K)
        want = run(reference, "matmul_naive_cuda", a, w, c).bytes("load") / (a.nbytes + w.nbytes)
        got = subject.predict_read_ratio(M, N, K)
        assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
        why = {2 * M * N * K: "these are the numbers asked for; divide by those of a and w",
               want / 2: "each of the M·N·K products takes two numbers, one of a and one of w",
               want * (M + N) / (M + N + M * N / K): "c is written, not loaded; leave it out",
               1: "1 would hold if each number came once, and nothing is shared here",
               1 / want: "that is the other way round"}
        said = next((text for value, text in why.items() if abs(got - value) < 1e-3 * abs(value)),
                    "count the numbers that one element of c takes, then the elements")
        assert abs(got - want) < 1e-3 * want, (
            f"matmul_naive_cuda with M = {M}, N = {N}, K = {K}: the counter does not say "
            f"{got:g} times; {said}")


def test_predict_read_ratio__unseen(unseen, rng):
    for sizes in rng.integers(1, 10_000, (4, 3)).tolist():
        unseen("predict_read_ratio", *sizes)


@pytest.mark.parametrize("M, N, K", SIZES)
def test_matmul_naive_cuda(subject, agree, rng, M, N, K):
    a, w, c = operands(rng, M, N, K)
    run(subject, "matmul_naive_cuda", a, w, c)
    right(agree, "matmul_naive_cuda", a, w, c)


def test_matmul_naive_cuda__work(subject, reference, rng):
    a, w, c = operands(rng, 18, 16, 64)
    launch, enough = run(subject, "matmul_naive_cuda", a, w, c), 2 * 4 * 18 * 16 * 64
    assert launch.bytes("load") <= enough, (
        f"matmul_naive_cuda loads {launch.bytes('load'):,} bytes, {enough:,} are two numbers for "
        f"each multiplication: something is loaded twice")
    assert launch.bytes("store") == c.nbytes, (
        f"matmul_naive_cuda stores {launch.bytes('store'):,} bytes, c has {c.nbytes:,}: keep the "
        f"sum in a register and store it once")
    work(subject, reference, rng, "matmul_naive_cuda", 32)


def test_matmul_naive_cuda__hard(subject, agree, rng):
    hard_numbers(subject, agree, rng, "matmul_naive_cuda")
    other_sizes(subject, agree, rng, "matmul_naive_cuda", [
        ((33, 20, 37), (16, 16)), ((6, 11, 37), (7, 3)), ((33_000, 1, 3), (1024, 1))])


def test_matmul_naive_cuda__addresses(subject):
    name = "matmul_naive_cuda"
    addresses(subject, name, {"a": (1, 3), "w": (1, 3), "c": (1, 1)}, (32, WARPS), 1)


def test_predict_sectors(subject, reference, rng):
    a, w, c = operands(rng, 32, 8, 256)
    loads = run(reference, "matmul_naive_cuda", a, w, c).memory("global", "load")
    want = loads["transactions"] / (loads["requests"] / 2)          # a request of a, one of w
    got = subject.predict_sectors()
    assert isinstance(got, int), f"a count of sectors is a whole number, got {got!r}"
    why = {64: "64 would hold if the rows of w differed too; all 32 threads have the same n",
           8: "8 would be coalesced, with neighbouring numbers of a and of w",
           36: "36 counts 4 sectors for w; all 32 threads want the same 4 bytes of it",
           5: "5 counts 4 sectors for a, as if threads were 4 bytes apart; they are rows apart",
           32: "32 leaves w out"}.get(got, "count the different sectors among 32 addresses")
    assert got == want, \
        f"one round of matmul_naive_cuda: {got} sectors is not what the counter says; {why}"


# ---- an element a warp


@pytest.mark.parametrize("M, N, K", SMALLER)
def test_matmul_coalesced_cuda(subject, agree, rng, M, N, K):
    a, w, c = operands(rng, M, N, K)
    run(subject, "matmul_coalesced_cuda", a, w, c)
    right(agree, "matmul_coalesced_cuda", a, w, c)


def test_matmul_coalesced_cuda__work(subject, reference, rng):
    a, w, c = operands(rng, 4, 16, 128)
    launch, enough = run(subject, "matmul_coalesced_cuda", a, w, c), 2 * 4 * 4 * 16 * 128
    assert launch.bytes("load") <= enough, (
        f"matmul_coalesced_cuda loads {launch.bytes('load'):,} bytes, {enough:,} are two numbers "
        f"for each multiplication: the lanes should share the k of one element")
    got = launch.sectors_per_request("load")
    assert got <= 4, (
        f"matmul_coalesced_cuda: a load of a warp touches {got:g} sectors, 4 hold its 128 bytes: "
        f"neighbouring lanes should take neighbouring k")
    assert launch.bytes("store") == c.nbytes, (
        f"matmul_coalesced_cuda stores {launch.bytes('store'):,} bytes, c has {c.nbytes:,}: one "
        f"lane of a warp is enough to store its element")
    work(subject, reference, rng, "matmul_coalesced_cuda", 128)


def test_matmul_coalesced_cuda__hard(subject, agree, rng):
    hard_numbers(subject, agree, rng, "matmul_coalesced_cuda")
    other_sizes(subject, agree, rng, "matmul_coalesced_cuda", [
        ((6, 11, 37), (32, 1)), ((6, 11, 37), (32, 5)), ((3, 33, 65), (32, 32)),
        ((2, 2, 33_000), (32, WARPS))])


def test_matmul_coalesced_cuda__addresses(subject):
    name = "matmul_coalesced_cuda"
    addresses(subject, name, {"a": (1, ROWS), "w": (3, 1), "c": (1, ROWS)}, (32, WARPS), 32)


# ---- the course's own kernels and launchers


def test_every_launcher(subject, agree, rng):
    import torch

    for M, N, K in ((9, 17, 40), (1, 100, 65)):
        a, w, _ = operands(rng, M, N, K)
        for kernel in CUDA:
            got = subject.matmul_untiled_cuda(torch.from_numpy(a), torch.from_numpy(w), kernel)
            agree(got, subject.matmul_oracle(a, w), "float32", f"{kernel}, {(M, N, K)}")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_few_rows(subject, agree, rng, dtype):
    import torch

    for M, N, K in ((3, 37, 129), (1, 5, 1), (2, 9, 500)):
        a, w, _ = operands(rng, M, N, K)
        a, w = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in (a, w))
        for left, right in ((a, w), (a.T.contiguous().T, w[::2]), (a[:1].expand(2, K), w)):
            agree(subject.matmul_few_rows(left, right),
                  left.double().numpy() @ right.double().numpy().T, dtype,
                  f"matmul_few_rows, {dtype}, strides {left.stride()} and {right.stride()}")


def test_extreme_values(subject):
    """Overflow is as in torch, and a row with inf or NaN spoils only itself."""
    import torch

    a, w = torch.ones(4, 40), torch.ones(5, 40)
    a[0, 0], a[1, 0], a[2, 2], w[:, 1:3] = torch.inf, torch.nan, 0, 3e38
    want = a @ w.T                                      # inf, NaN, 3e38, and 6e38, which is inf
    assert want[2, 0].isfinite() and want[3].isinf().all()
    for got in (subject.matmul_few_rows(a, w),
                *(subject.matmul_untiled_cuda(a, w, kernel) for kernel in CUDA)):
        assert torch.equal(got.nan_to_num(nan=7), want.nan_to_num(nan=7))
    a, w = torch.full((1, 64), 255.0).half(), torch.full((1, 64), 255.0).half()
    assert torch.isinf(subject.matmul_few_rows(a, w)).all()     # 64 · 255² is beyond fp16
    w[:, ::2] *= -1
    assert (subject.matmul_few_rows(a, w) == 0).all()           # and its sums are not


@pytest.mark.parametrize("M, N, K", [(0, 5, 3), (5, 0, 3), (0, 0, 0)])
def test_nothing_to_do(subject, M, N, K):
    import torch

    for kernel in CUDA:
        got = subject.matmul_untiled_cuda(torch.ones(M, K), torch.ones(N, K), kernel)
        assert got.shape == (M, N)
    assert subject.matmul_few_rows(torch.ones(M, K), torch.ones(N, K)).shape == (M, N)


def test_a_sum_of_nothing_is_zero(subject):
    import torch

    for kernel in CUDA:
        got = subject.matmul_untiled_cuda(torch.ones(3, 0), torch.ones(40, 0), kernel)
        assert torch.equal(got, torch.zeros(3, 40)), kernel
    got = subject.matmul_few_rows(torch.ones(3, 0), torch.ones(40, 0))
    assert torch.equal(got, torch.zeros(3, 40))


def test_what_the_launcher_refuses(subject):
    import torch

    a, w = torch.ones(4, 6), torch.ones(5, 6)
    for given, says in (((a, w[:, :5]), "(5, 5), expected (M, K) and (N, K)"),
                        ((a[0], w), "a has shape (6,)"), ((a.half(), w), "a is torch.float16"),
                        ((a, w.double()), "w torch.float64"),
                        ((torch.ones(6, 4).T, w), "a has strides (1, 4)"),
                        ((a[:, ::2], w[:, ::2]), "a has strides (6, 2)"),
                        ((torch.ones(65_536, 1), torch.ones(1, 1)), "at most 65535 rows")):
        with pytest.raises(Raised) as refusal:
            subject.matmul_untiled_cuda(*given)
        assert says in refusal.value.text


def test_oracle_is_torchs(subject, rng):
    import torch

    a, w, _ = operands(rng, 5, 7, 9)
    want = torch.nn.functional.linear(torch.from_numpy(a).double(), torch.from_numpy(w).double())
    assert np.allclose(subject.matmul_oracle(a, w), want.numpy(), rtol=1e-13, atol=1e-13)


@pytest.mark.slow
def test_what_the_assemblers_say():
    from layer1_kernels.bench.k04_matmul_naive import shipped
    from layer1_kernels.k04_matmul_naive import KERNELS

    for kernel in CUDA:
        found = KERNELS.get(kernel).resources
        assert found.spill_stores == 0 == found.spill_loads, f"{kernel} spills registers: {found}"
    for name, found in shipped().items():
        assert found.spills == 0, f"{name}: {found.spills} bytes spilled"
        assert max(found.loads) == 16, f"{name}: loads of {max(found.loads)} bytes a lane"


@pytest.mark.gpu
@pytest.mark.parametrize("M, N, K", [(0, 5, 3), (3, 4, 0), (1, 1000, 1000), (129, 127, 1000)])
def test_every_kernel_on_the_device(M, N, K):
    import torch

    from layer1_kernels import matmul_few_rows, matmul_untiled_cuda

    a, w = (torch.randn(rows, K, device="cuda") for rows in (M, N))
    want = a.double() @ w.double().T
    for kernel in CUDA:
        got = matmul_untiled_cuda(a, w, kernel).double()
        assert torch.allclose(got, want, rtol=2e-5, atol=1e-4), kernel
    assert torch.allclose(matmul_few_rows(a, w).double(), want, rtol=2e-5, atol=1e-4)


@pytest.mark.gpu
def test_matmul_coalesced_cuda_speed(pace):
    pace("matmul_untiled_cuda", numbers("float32", 1024, 1024), numbers("float32", 1024, 1024))
