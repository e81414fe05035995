"""Graders of k04.
Outputs start as 7, so that unwritten places show."""

import numpy as np
import pytest

from lab.judge.addresses import FAR, ROWS, in_64_bits
from lab.judge.adversarial import factors
from lab.judge.mistakes import mistake, same_report
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.matmul_cases import operands, product

CUDA = ("matmul_naive_cuda", "matmul_swapped_cuda", "matmul_coalesced_cuda")
SIZES = [(33, 17, 40), (40, 9, 31), (3, 21, 129), (5, 2, 1000), (1, 1, 1)]      # M, N, K
SMALLER = [(5, 9, 72), (3, 9, 31), (2, 21, 129), (3, 2, 1000), (1, 1, 1)]       # warps
WARPS = 8


def run(subject, name, a, w, c, block=(32, WARPS)):
    (M, K), N, (x, y) = a.shape, len(w), block
    grid = {"matmul_naive_cuda": (-(-M // x), -(-N // y)),
            "matmul_coalesced_cuda": (-(-N // y), M)}[name]
    return subject.launch(name, grid, block, (a, w, c, M, N, K))


def right(agree, name, a, w, c, what="", precision="float32"):
    """c is a · wᵀ, or the message names the element and the likely mistake."""
    with np.errstate(all="ignore"):
        rows = (of_lanes(a, w) if "coalesced" in name else {}) | of_any(a, w)
        agree(c, product(a, w), precision, f"{name}, a {a.shape} and w {w.shape}{what}",
              lambda index: f"row {index[0]}, column {index[1]} of c",
              {known: (f"{name} {sentence}", gives)
               for known, (sentence, gives) in rows.items()}, unwritten=7)


def of_any(a, w):
    """{mistake: (what the kernel does, what comes out)} of any kernel that adds up products."""
    (M, K), N = a.shape, len(w)
    k = np.arange(K)
    finite = (np.where(np.isfinite(x), x, 0) for x in (a, w))
    return {
        "columns_of_w": ("reads w as if it were (K, N); its rows have K numbers",
                         product(a, w.reshape(K, N).T)),
        "c_transposed": ("stores c transposed; row m of c starts at m · N",
                         product(w, a).reshape(M, N)),
        "last_product": ("resets its sum for each k, so only the last product is left",
                         product(a, w, k == K - 1)),
        "no_last_k": ("leaves out the last k", product(a, w, k < K - 1)),
        "no_first_k": ("leaves out the first k", product(a, w, k > 0)),
        "whole_fours": ("leaves out the last K % 4 products", product(a, w, k < K // 4 * 4)),
        "old_contents": ("adds to the old contents of c; the sum must start at 0",
                         product(a, w) + 7),
        "finite_only": ("skips products with infinity or NaN", product(*finite)),
        "not_stored": ("stores nothing", np.full((M, N), 7))}


def of_lanes(a, w):
    """{mistake: (what the kernel does, what comes out)} where lane t has the k t, t + 32, ..."""
    K = a.shape[1]
    k = np.arange(K)
    lane = k % 32
    return {
        "no_shuffles": ("does not add the sums of the 32 lanes: lane 0 stores only its own",
                        product(a, w, lane == 0)),
        "no_shuffle_1": ("leaves out the shuffle by 1 lane", product(a, w, lane % 2 == 0)),
        "no_shuffle_16": ("leaves out the shuffle by 16 lanes", product(a, w, lane < 16)),
        "steps_of_1": ("lets the lanes step by 1, not 32: most products are added several times",
                       product(a, w, np.minimum(k + 1, 32))),
        "one_k_a_lane": ("takes only one k in each lane: the loop over k is missing",
                         product(a, w, k < 32)),
        "whole_warps": ("leaves out the last K % 32 products", product(a, w, k < K // 32 * 32)),
        "lanes_return": ("lets lanes without a k return before the shuffles, which need all 32",
                         product(a, w) + (np.nan if K < 32 else 0))}


def hard_numbers(subject, agree, rng, name):
    for a, w, parts in factors(rng, 39):
        c = np.full((len(a), len(w)), 7, np.float32)
        run(subject, name, a, w, c)
        for rows, columns, what, precision in parts:
            right(agree, name, a[rows], w[columns], c[rows, columns], what, precision)


def other_sizes(subject, agree, rng, name, cases):
    """cases: [((M, N, K), block)].
    Blocks of another form, a size past 15 bits, no k at all."""
    for sizes, block in cases:
        a, w, c = operands(rng, *sizes)
        run(subject, name, a, w, c, block)
        right(agree, name, a, w, c, f" in blocks of {block} threads")
    a, w, c = operands(rng, 3, 5, 0)
    with same_report("first_product", "With K = 0 there is no product, not even that of k = 0.",
                     kind="out_of_bounds"):
        run(subject, name, a, w, c)
    assert (c == 0).all(), mistake("empty_sum", (
        f"{name}, a (3, 0) and w (5, 0): with K = 0 every element of c is 0; c[0, 0] is "
        f"{c[0, 0]:g}{', as it was before' if c[0, 0] == 7 else ''}"))


def addresses(subject, name, grids, block, threads):
    """Rows of a, of w and of c begin at products of more than 32 bits."""
    x, c = np.zeros(32, np.float32), np.zeros(block[1], np.float32)
    for of, (M, N, K) in {"a, m · K": (ROWS, 1, FAR), "w, n · K": (1, ROWS, FAR),
                          "c, m · N": (ROWS, FAR, 0)}.items():
        of_row = threads if K else block[1]
        in_64_bits(subject, name, grids[of[0]], block, (x, x, c, M, N, K), of_row, of)


def economical(name, launch, a, w, c, loads, stores):
    """Two numbers loaded for each multiplication, each element stored once; else some advice."""
    two = 2 * 4 * c.size * a.shape[1]
    assert launch.bytes("load") <= two, mistake("loads_again", (
        f"{name} loads {launch.bytes('load'):,} bytes; two numbers per multiplication are "
        f"{two:,}. {loads}"))
    assert launch.bytes("store") == c.nbytes, mistake("stores_again", (
        f"{name} stores {launch.bytes('store'):,} bytes; c has {c.nbytes:,}. {stores}"))


# ---- one element of c for each thread


def test_predict_read_ratio(subject, reference, rng):
    for M, N, K in ((32, 32, 8), (64, 16, 24)):
        a, w, c = operands(rng, M, N, K)
        want = run(reference, "matmul_naive_cuda", a, w, c).bytes("load") / (a.nbytes + w.nbytes)
        got = subject.predict_read_ratio(M, N, K)
        assert isinstance(got, (int, float)), mistake(
            "no_number", f"predict_read_ratio: expected a number, got {got!r}")
        rows = {2 * M * N * K: ("no_division", "These are the numbers loaded; divide by the "
                                               "numbers in a and w."),
                want / 2: ("one_each", "Each of the M·N·K products needs two numbers, one of a and "
                                       "one of w."),
                want * (M + N) / (M + N + M * N / K): (
                    "c_counted", "c is stored, not loaded: leave it out."),
                1: ("loaded_once", "1 would mean that each number is loaded once, but the threads "
                                   "share nothing."),
                1 / want: ("turned_round", "That is the other way round.")}
        known, why = next((row for value, row in rows.items() if abs(got - value) < 1e-3 * value),
                          ("other", "Count the numbers that one element of c needs, then the "
                                    "elements."))
        assert abs(got - want) < 1e-3 * want, mistake(
            known, f"predict_read_ratio({M}, {N}, {K}): the simulator does not count {got:g}. "
                   f"{why}", why)


def test_predict_read_ratio__unseen(unseen, rng):
    for sizes in rng.integers(1, 10_000, (4, 3)).tolist():
        unseen("predict_read_ratio", *sizes)


@pytest.mark.parametrize("M, N, K", SIZES)
def test_matmul_naive_cuda(subject, agree, rng, M, N, K):
    a, w, c = operands(rng, M, N, K)
    run(subject, "matmul_naive_cuda", a, w, c)
    right(agree, "matmul_naive_cuda", a, w, c)


def test_matmul_naive_cuda__work(subject, reference, rng):
    """In two blocks of 32 rows: a thread that does the work of all takes 17 times as many steps,
    and still ends within the limit."""
    a, w, c = operands(rng, 34, 16, 32)
    launch = run(subject, "matmul_naive_cuda", a, w, c)
    economical("matmul_naive_cuda", launch, a, w, c, "Something is loaded twice.",
               "Keep the sum in a register and store it once.")
    same_work("matmul_naive_cuda", launch, run(reference, "matmul_naive_cuda", a, w, c.copy()))


def test_matmul_naive_cuda__hard(subject, agree, rng):
    hard_numbers(subject, agree, rng, "matmul_naive_cuda")
    other_sizes(subject, agree, rng, "matmul_naive_cuda", [
        ((33, 20, 37), (16, 16)), ((6, 11, 37), (7, 3)), ((33_000, 1, 3), (1024, 1))])


def test_matmul_naive_cuda__addresses(subject):
    addresses(subject, "matmul_naive_cuda", {"a": (1, 3), "w": (1, 3), "c": (1, 1)}, (32, WARPS), 1)


def test_predict_sectors(subject, reference, rng):
    a, w, c = operands(rng, 32, 8, 256)
    loads = run(reference, "matmul_naive_cuda", a, w, c).memory("global", "load")
    want = loads["transactions"] / (loads["requests"] / 2)          # one request of a, one of w
    got = subject.predict_sectors()
    assert isinstance(got, int), mistake(
        "no_count", f"predict_sectors: expected a whole number, got {got!r}")
    known, why = {
        64: ("rows_of_w", "64 would be right if each thread had its own row of w; all 32 have the "
                          "same n."),
        8: ("coalesced", "8 would be right if neighbouring threads read neighbouring numbers, of a "
                         "and of w."),
        36: ("four_of_w", "36 counts 4 sectors for w; all 32 threads read the same 4 bytes of it."),
        5: ("four_of_a", "5 counts 4 sectors for a, as if the threads were 4 bytes apart; they are "
                         "a row apart."),
        32: ("no_w", "32 leaves out w."),
    }.get(got, ("other", "Count the different sectors among the addresses."))
    assert got == want, mistake(
        known, f"predict_sectors: the simulator does not count {got}. {why}", why)


# ---- one element of c for each warp


@pytest.mark.parametrize("M, N, K", SMALLER)
def test_matmul_coalesced_cuda(subject, agree, rng, M, N, K):
    a, w, c = operands(rng, M, N, K)
    run(subject, "matmul_coalesced_cuda", a, w, c)
    right(agree, "matmul_coalesced_cuda", a, w, c)


def test_matmul_coalesced_cuda__work(subject, reference, rng):
    a, w, c = operands(rng, 4, 16, 128)
    launch = run(subject, "matmul_coalesced_cuda", a, w, c)
    economical("matmul_coalesced_cuda", launch, a, w, c,
               "Divide the k of one element among the 32 lanes.",
               "Let only one lane of each warp store.")
    got = launch.sectors_per_request("load")
    assert got <= 4, mistake("far_lanes", f"matmul_coalesced_cuda: a load request touches {got:g} "
                             f"sectors, not 4. Give neighbouring lanes neighbouring k.")
    same_work("matmul_coalesced_cuda", launch,
              run(reference, "matmul_coalesced_cuda", a, w, c.copy()))


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
    for args, says in (((a, w[:, :5]), "(5, 5), expected (M, K) and (N, K)"),
                       ((a[0], w), "a has shape (6,)"), ((a.half(), w), "a is torch.float16"),
                       ((a, w.double()), "w torch.float64"),
                       ((torch.ones(6, 4).T, w), "a has strides (1, 4)"),
                       ((a[:, ::2], w[:, ::2]), "a has strides (6, 2)"),
                       ((torch.ones(65_536, 1), torch.ones(1, 1)), "at most 65535 rows")):
        with pytest.raises(Raised) as refusal:
            subject.matmul_untiled_cuda(*args)
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
        resources = KERNELS.get(kernel).resources
        assert resources.spill_stores == 0 == resources.spill_loads, f"{kernel}: {resources}"
    for name, code in shipped().items():
        assert code.spills == 0, f"{name}: {code.spills} bytes spilled"
        assert max(code.loads) == 16, f"{name}: loads of {max(code.loads)} bytes a lane"


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
