"""Graders of k07.
Outputs start as 7, which no softmax gives, so that unwritten places show."""

import math
from pathlib import Path

import numpy as np
import pytest

from lab.judge.adversarial import VALUES, shifted
from lab.judge.compare import rounded_once
from lab.judge.mistakes import mistake, raises, same_report
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.row_cases import total

CUDA = ("softmax_three_pass_cuda", "softmax_fused_cuda", "softmax_online_cuda")
SIZES = [(3, 127, 64), (3, 127, 128), (3, 1000, 128), (2, 1500, 256), (1, 129, 32), (1, 1, 128),
         (1, 0, 32)]                                                        # R, C, threads
BLOCKS = [(3, 127, 128, "float16"), (1, 1000, 128, "float32"), (3, 129, 128, "bfloat16"),
          (2, 1500, 512, "float16"), (1, 1, 128, "float32"), (1, 0, 128, "float32")]
                                                                            # R, C, BLOCK, dtype
DESCRIBED = {"large": "numbers around 10,000",
             "around 3000": "numbers around 3000, where exp overflows and fp16 has steps of 2",
             "around -3000": "numbers around -3000, where a maximum that started at 0 would stay 0",
             "around -30000": "numbers around -30,000, where -1e4 is no stand-in for -inf",
             "masked": "rows with some -inf, the last all -inf",
             "negative": "negative numbers only", "equal": "rows of equal numbers",
             "uneven": "rows of very different sizes", "not_a_number": "a NaN in the second row",
             "signed_zeros": "0 and -0 among the numbers", "denormal": "numbers of 1e-40"}


# ---- rows, oracles, and what goes wrong


def oracle(x):                                  # (R, C) -> (R, C)
    return over(np.exp(x - top(x)), np.exp(x - top(x)))


def top(x):                                     # (R, C) -> (R, 1)
    return x.max(-1, keepdims=True)


def rows(rng, R, C, kind="mild"):               # -> (R, C) float32
    if kind in VALUES:
        return VALUES[kind](rng, (R, C))
    if kind.startswith("around"):
        return shifted(rng, (R, C), float(kind.split()[1]))
    x = 3 * rng.standard_normal((R, C), dtype=np.float32)
    if kind == "large":
        x *= 1e4 / 3
    if kind == "masked":                        # at random; at its beginning; as a whole
        x[0, rng.random(C) < 0.5], x[0, -1] = -np.inf, 1
        x[1, :C // 2] = -np.inf
        x[2] = -np.inf
    return x


def by_parts(x, part, function):                # (R, C), (C,) -> (R, C)
    """A function of the elements of each part of a row, at their places."""
    result = np.empty_like(x)
    for p in np.unique(part):
        result[:, part == p] = function(x[:, part == p])
    return result


def in_float32(exponents):                      # (R, C) -> (R, C)
    """Weights from other exponents than x minus its maximum: what overflows does so in float32."""
    e = np.exp(exponents.astype(np.float32))
    return over(e, e)


def of_last_blocks(x, part):
    """With the maximum of each block for that of all so far; in float32, in which it overflows."""
    m, s = np.full((len(x), 1), np.finfo(np.float32).min), np.zeros((len(x), 1), np.float32)
    for p in np.unique(part):
        v = x[:, part == p].astype(np.float32)
        s = s * np.exp(m - top(v)) + total(np.exp(v - top(v)))
        m = top(v)
    return np.exp(x.astype(np.float32) - m) / s


def of_columns(x, some):
    """The softmax of some columns (C,) of each row; the others are not written."""
    e = np.exp(x - top(x)) * some
    return np.where(some, over(e, e), 7)


def over(e, weights):
    """e divided by the sum of each row of weights."""
    return e / total(weights)


def of_kernels(x):
    """{mistake: (what a kernel does, what it gives)}, however it divides a row."""
    e = np.exp(x - top(x))
    return {
        "not_divided": ("does not divide by the sum", e),
        "bare_when_written": ("subtracts the maximum when it sums, but not when it writes",
                              over(np.exp(x), e)),
        "minimum": ("subtracts the minimum of the row, not its maximum", in_float32(x + top(-x))),
        "exponent_reversed": ("takes the maximum minus x for the exponent", in_float32(top(x) - x)),
        "row_0_read": ("reads row 0 whatever its row is", 0 * x + oracle(x)[:1]),
        "first_row_only": ("writes only its first row",
                           np.where(np.arange(len(x))[:, None] > 0, 7, oracle(x))),
        "nothing_written": ("writes nothing", np.full_like(x, 7))}


def of_threads(x, threads):
    """The same, and of a kernel whose thread t has the columns t, t + threads, …"""
    part = np.arange(x.shape[1]) % threads
    maxima = by_parts(x, part, top)
    so_far = by_parts(x, part, lambda v: np.maximum.accumulate(v, axis=-1))
    e, own = np.exp(x - top(x)), np.exp(x - maxima)
    c = np.arange(x.shape[1])
    whole = c < len(c) // threads * threads
    return of_kernels(x) | {
        "own_maximum": ("lets each thread subtract the maximum of its own columns instead of the "
                        "row's (is the result of block_max used?)", over(own, own)),
        "own_sum": ("lets each thread divide by the sum of its own columns instead of the row's",
                    e / by_parts(e, part, total)),
        "no_rescale": ("does not rescale the sum of a thread when its maximum grows",
                       over(e, np.exp(x - so_far + maxima - top(x)))),
        "sums_not_rescaled": ("adds the threads' sums without rescaling them to the row's maximum",
                              over(e, own)),
        "written_with_own_maximum": ("subtracts the maximum of a thread's own columns when it "
                                     "writes, instead of the row's", over(own, e)),
        "threads_sign_reversed": (
            "rescales the threads' sums with the sign reversed: the exponent is a thread's maximum "
            "minus the row's", over(e, own * np.exp(top(x) - maxima))),
        "ones_added": ("adds 1 to the sum for each number, not exp(v - larger)",
                       over(e, np.exp(so_far - top(x)))),
        "rounds_rounded_down": (
            "leaves out the columns of the last round: C / blockDim.x is rounded down",
            of_columns(x, whole) if whole.any() else np.full_like(x, 7)),
        "last_round_not_summed": ("does not add the columns of the last round", over(e, e * whole)),
        "one_round": ("gives each thread one column, and no round follows",
                      of_columns(x, c < threads)),
        "last_column_left_out": ("leaves out the last column", of_columns(x, c < len(c) - 1)),
        "last_column_unwritten": ("does not write the last column",
                                  np.where(c < len(c) - 1, oracle(x), 7)),
        "last_column_not_summed": ("does not add the last column", over(e, e * (c < len(c) - 1))),
        "first_round_not_summed": ("does not add each thread's first column",
                                   over(e, e * (c >= threads)))}


def of_blocks(x, block):
    """The same, and of a program that takes `block` columns at a time."""
    part = np.arange(x.shape[1]) // block
    e, own = np.exp(x - top(x)), np.exp(x - by_parts(x, part, top))
    so_far = np.stack([x[:, part <= p].max(-1) for p in range(part[-1] + 1)], -1)[:, part]
    zeros = -x.shape[1] % block                                         # columns beyond the row
    return of_kernels(x) | {
        "no_rescale": ("does not rescale the sum when the maximum grows",
                       over(e, np.exp(x - so_far))),
        "blocks_as_rows": ("treats each block of columns as a row of its own",
                           own / by_parts(own, part, total)),
        "last_block_sum": ("adds only the last block of columns", over(e, e[:, part == part[-1]])),
        "starts_at_minus_inf": (
            "computes -inf minus -inf where a row begins with a block of only -inf",
            np.where(np.isneginf(x[:, :block]).all(-1, keepdims=True), np.nan, oracle(x))),
        "block_maximum": ("takes the maximum of a block for m, even where that is less than m was",
                          of_last_blocks(x, part)),
        "first_block_written": ("writes only the first block of columns",
                                np.where(part == 0, oracle(x), 7)),
        "last_block_written": ("writes only the last block of columns",
                               np.where(part == part[-1], oracle(x), 7)),
        "first_block_not_summed": ("does not add the first block of columns",
                                   over(e, e * (part > 0))),
        "last_block_not_summed": ("does not add the last block of columns",
                                  over(e, e * (part < part[-1]))),
        "last_block_left_out": ("leaves out the columns beyond the last whole block",
                                of_columns(x, part < x.shape[1] // block)),
        "written_with_block_maximum": (
            "writes each block with its own maximum, not with the row's", over(own, e)),
        "zeros_past_row": ("loads 0 for columns beyond the row, and exp(0) = 1 is added: load -inf",
                           e / (total(e) + zeros * np.exp(-top(x))))}


def not_a_number(name, x):
    """{mistake: (what the kernel does, what it gives)} where NaN comes or is missing."""
    nothing = np.full_like(x, np.nan)
    if np.isinf(x).any():
        return {"inf_minus_inf": ("computes -inf minus -inf", nothing),
                "zeros_for_nan": ("returns zeros for a row of only -inf; NaN is expected, as in "
                                  "torch", np.nan_to_num(oracle(x)))}
    if (x < -1e4).all():
        return {"shallow_start": ("lets the maximum start at a number such as -1e4, which is "
                                  "larger than every number of the row", nothing),
                "shallow_fill": ("loads a number such as -1e4 for columns beyond the row, which is "
                                 "larger than every number of the row: load -inf", 0 * x)}
    if (x < -100).all():
        return {"starts_at_zero": ("lets the maximum start at 0, which is larger than every number "
                                   "of the row", nothing)}
    if np.isnan(x).any():
        return {"nan_spreads": ("lets the NaN of one row get into the others", nothing)}
    if "online" not in name:
        return {"infinite_maximum": ("leaves the maximum at the infinity that it starts with",
                                     nothing)} if np.abs(x).max() < 88 else {}
    if np.abs(x).max() > 1000:
        return {"maximum_lowered": ("lets m become less than it was: m is the larger of m and the "
                                    "new number, so no exponent is above 0", nothing)}
    return {"sign_reversed": ("rescales with the sign reversed: the exponent is old maximum minus "
                              "new, which is never positive", nothing)}


def no_maximum(launch):
    """A message for the commonest mistake, with the learner's line that takes exp of x itself."""
    report = launch.launches[0]
    own = {int(number): line["text"] for number, line in report["lines"].items()
           if number.isdigit()}             # lines of a header are keyed with its name
    bare = [f"{Path(report['path']).name}, line {number}: {text}"
            for number, text in sorted(own.items()) if "exp" in text and "-" not in text]
    return ("does not subtract the row's maximum; exp overflows above 88"
            + "".join(f"\n    {line}" for line in bare[:1]))


# ---- launches and what is asked of all kernels


def run_cuda(subject, name, x, threads, shared=0):
    """(y, launch) of one block of `threads` a row."""
    y = np.full_like(x, 7)
    launch = subject.launch(name, len(x), threads, (x, y, x.shape[1]),
                            shared_mem=shared * x.itemsize)
    return y, launch


def run_triton(subject, name, x, block, dtype):
    """(y, launch) of one program a row; x is rounded to dtype in place."""
    import torch

    rounded = torch.from_numpy(x).to(getattr(torch, dtype))
    x[...] = rounded.float().numpy()
    y = torch.full_like(rounded, 7)
    with same_report("reads_past_row", kind="out_of_bounds", array="x"), \
            same_report("writes_past_row", kind="out_of_bounds", array="y"):
        launch = subject.launch(name, len(x), args=(rounded, y, x.shape[1]), BLOCK=block)
    return y, launch


def right(agree, name, x, got, launch, what, threads=None, block=None, precision="float32"):
    """The answer is the oracle's, or the message names the element and the likely mistake."""
    def place(index):
        r, c = index
        return f"row {r}, column {c} " + (
            f"(thread {c % threads}, its column number {c // threads})" if threads else
            f"(column {c % block} of block {c // block})")

    x = x.astype(np.float64)
    if not x.size:
        return
    with np.errstate(all="ignore"):
        rows = not_a_number(name, x) | {"no_maximum": (no_maximum(launch), in_float32(x))}
        rows |= of_threads(x, threads) if threads else of_blocks(x, block)
        # With one row, or one block, some of them give the right answer.
        mistakes = {known: (f"{name} {sentence}", answer)
                    for known, (sentence, answer) in rows.items()
                    if not np.array_equal(answer, oracle(x))}
        agree(got, oracle(x), precision, f"{name}, {what}", place, mistakes)


def right_cuda(subject, agree, name, x, threads, what="", shared=0):
    y, launch = run_cuda(subject, name, x, threads, shared)
    what = what or f"{len(x)} row(s) of {x.shape[1]} by {threads} threads each"
    right(agree, name, x, y, launch, what, threads=threads)


def right_triton(subject, agree, x, block, dtype, what=""):
    name = "softmax_online_triton"
    y, launch = run_triton(subject, name, x, block, dtype)
    what = what or f"{len(x)} row(s) of {x.shape[1]} {dtype} in blocks of {block}"
    right(agree, name, x, y, launch, what, block=block, precision=dtype)


def economical(name, launch, x, reads):
    """Each number read `reads` times and written once, by requests that want what they move."""
    for op, times in (("store", 1), ("load", reads)):
        got = launch.bytes(op) / x.nbytes
        verb = "reads" if op == "load" else "writes"
        known, why = (
            ("columns_left_out", "some columns are left out") if got < times else
            ("kept_in_y", "y keeps numbers for a later pass, or a pass too many writes") if
            op == "store" else
            ("read_again", "the row is read again, though `row` can keep it") if times == 1 else
            ("read_again", "one pass gives maximum and sum, and one more writes"))
        assert got == times, mistake(
            known, f"{name} {verb} each number {got:g} times, expected {times}: {why}", why)
        counts = launch.memory("global", op)
        assert counts["transactions"] == counts["ideal"], mistake(
            "far_apart", f"{name}: one {op} request touches {launch.sectors_per_request(op):g} "
            f"sectors; {counts['ideal'] / counts['requests']:g} are enough. Give neighbouring "
            f"threads neighbouring columns.")


# ---- counting and the recurrence


def test_predict_bytes_ratio(subject, reference, rng):
    x, moved = rows(rng, 2, 1000), {}
    for name in CUDA:
        _, launch = run_cuda(reference, name, x, 128, shared=1000)
        moved[name] = launch.bytes("load") + launch.bytes("store")
    three_pass, fused, online = moved.values()
    got = subject.predict_bytes_ratio()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_bytes_ratio: expected a number, got {got!r}")
    known, why = {
        3: ("reads_alone", "3 compares only the reads; both kernels also write."),
        4: ("other_writes_nothing", "4 forgets that the other kernel writes too."),
        fused / three_pass: ("upside_down", "The kernel that reads more moves more bytes."),
        online / fused: ("two_reads", "1.5 is right for two reads; count the loops over x."),
    }.get(got, ("other", "Count the reads and writes of one number in each of the two kernels."))
    assert abs(got - three_pass / fused) < 0.05, mistake(
        known, f"predict_bytes_ratio: the simulator does not count {got:g}. {why}", why)


def pair(x):
    """(m, s) of some entries, as merge's docstring defines it."""
    m = max(x, default=-math.inf)
    return (m, 0.0) if m == -math.inf else (m, sum(math.exp(v - m) for v in x))


PARTS = {
    "first part has the larger maximum": ([1.0, 3.0, 2.5], [0.5, -1.0]),
    "second part has the larger maximum": ([0.5, -1.0], [1.0, 3.0, 2.5]),
    "equal maxima": ([2.0, 1.0], [2.0, 0.0, 2.0]),
    "maxima 20,000 apart": ([-1e4, -1e4 + 1], [1e4]),
    "first part empty": ([], [-5.0, -4.0]),
    "second part empty": ([-5.0, -4.0], []),
    "one part of only -inf": ([-math.inf, -math.inf], [0.25]),
    "both parts empty": ([], [])}


@pytest.mark.parametrize("what", PARTS)
def test_merge(subject, agree, what):
    parts = PARTS[what]
    (m_a, s_a), (m_b, s_b) = a, b = [pair(part) for part in parts]
    m, want = max(m_a, m_b), pair([*parts[0], *parts[1]])
    smaller = "first" if m_a < m_b else "second"
    with raises("exp_of_maximum", OverflowError, "exp is taken of a maximum itself, or of a larger "
                "one minus a smaller: a[0] - m and b[0] - m are never above 0."):
        got = subject.merge(a, b)
    with np.errstate(all="ignore"):
        scale_a, scale_b = np.exp(np.subtract(m_a, m)), np.exp(np.subtract(m_b, m))
        agree(got, want, "float64", f"merge, {what}: {a} and {b}",
              lambda index: ("the maximum", "the sum")[index[0]], {
                  **of_one_empty(a, b, m),
                  "inf_minus_inf": ("merge computes -inf minus -inf", (m, np.nan)),
                  f"{smaller}_not_rescaled": (
                      f"the sum of the {smaller} part is not rescaled to the larger maximum",
                      (m, s_a + s_b)),
                  "sign_reversed": ("the exponents are reversed; each is old maximum minus new",
                                    (m, s_a / scale_a + s_b / scale_b)),
                  "smaller_maximum": ("the smaller maximum is kept",
                                      (min(m_a, m_b), s_a / scale_b + s_b / scale_a)),
                  "first_as_reference": ("both sums are rescaled to the first part's maximum",
                                         (m, s_a + s_b * np.exp(np.subtract(m_b, m_a)))),
                  "second_as_reference": ("both sums are rescaled to the second part's maximum",
                                          (m, s_b + s_a * np.exp(np.subtract(m_a, m_b)))),
                  "other_factor": ("each sum is rescaled by the other part's maximum",
                                   (m, s_a * scale_b + s_b * scale_a)),
                  "larger_sum": ("only the larger sum is kept; both must be added",
                                 (m, max(s_a * scale_a, s_b * scale_b))),
                  "swapped": ("(s, m) is returned, in the wrong order", want[::-1])})


def of_one_empty(a, b, m):
    """{mistake: (sentence, what it gives)} where one part has no entries, and the other has."""
    if m == -math.inf or -math.inf not in (a[0], b[0]):
        return {}
    return {"empty_part_returned": ("the part without entries is returned; the other one is right",
                                    (-math.inf, 0.0)),
            "empty_gives_zero": ("the sum is 0 wherever a part has no entries; it is the other "
                                 "part's", (m, 0.0))}


@pytest.mark.parametrize("shift", [0, 200, -3000, -30_000])
def test_merge__drawn(subject, agree, rng, shift):
    """Many pairs, merged in one process: numbers around a value, equal ones, far apart ones."""
    for _ in range(20):
        size, scale = rng.integers(0, 4, 2), 10.0 ** rng.integers(-1, 4)
        parts = [(shift + scale * rng.integers(-4, 5, n)).tolist() for n in size]
        a, b = map(pair, parts)
        want, empty = pair([*parts[0], *parts[1]]), pair([])
        agree(subject.merge(a, b), want, "float64", f"merge({a}, {b}), numbers around {shift}",
              lambda index: ("the maximum", "the sum")[index[0]], {} if want == empty else {
                  "low_as_empty": ("parts of low numbers are taken for empty ones; only -inf means "
                                   "that a part is empty", empty)})


def test_merge__number_by_number(subject, agree, rng):
    x = [-math.inf, *(3 * rng.standard_normal(20)), -math.inf]
    got = pair([])
    for v in x:
        got = subject.merge(tuple(got), pair([v]))
    agree(got, pair(x), "float64", f"a row of {len(x)} numbers merged one by one",
          lambda index: ("the maximum", "the sum")[index[0]])


# ---- fused, CUDA


@pytest.mark.parametrize("R, C, threads", SIZES)
def test_softmax_fused_cuda(subject, agree, rng, R, C, threads):
    right_cuda(subject, agree, "softmax_fused_cuda", rows(rng, R, C), threads, shared=C)


@pytest.mark.parametrize("kind", DESCRIBED)
def test_softmax_fused_cuda__hard_rows(subject, agree, rng, kind):
    right_cuda(subject, agree, "softmax_fused_cuda", rows(rng, 3, 500, kind), 128, DESCRIBED[kind],
               shared=500)


def test_softmax_fused_cuda__work(subject, reference, rng):
    x = rows(rng, 4, 1024)
    _, launch = run_cuda(subject, "softmax_fused_cuda", x, 128, shared=1024)
    economical("softmax_fused_cuda", launch, x, reads=1)
    own = run_cuda(reference, "softmax_fused_cuda", x, 128, shared=1024)[1]
    same_work("softmax_fused_cuda", launch, own)
    conflicts = launch.bank_conflicts()
    assert conflicts == 1, mistake(
        "bank_conflicts", f"softmax_fused_cuda: shared memory needs {conflicts:.2g} times as many "
        f"wavefronts as necessary. Give neighbouring threads neighbouring columns of row.")


# ---- online, CUDA


@pytest.mark.parametrize("R, C, threads", SIZES)
def test_softmax_online_cuda(subject, agree, rng, R, C, threads):
    right_cuda(subject, agree, "softmax_online_cuda", rows(rng, R, C), threads)


@pytest.mark.parametrize("kind", DESCRIBED)
def test_softmax_online_cuda__hard_rows(subject, agree, rng, kind):
    right_cuda(subject, agree, "softmax_online_cuda", rows(rng, 3, 500, kind), 128, DESCRIBED[kind])


def test_softmax_online_cuda__work(subject, reference, rng):
    x = rows(rng, 4, 1024)
    _, launch = run_cuda(subject, "softmax_online_cuda", x, 128)
    economical("softmax_online_cuda", launch, x, reads=2)
    same_work("softmax_online_cuda", launch, run_cuda(reference, "softmax_online_cuda", x, 128)[1])
    longer = run_cuda(subject, "softmax_online_cuda", rows(rng, 4, 2048), 128)[1]
    assert longer.barriers == launch.barriers, mistake(
        "barrier_in_loop", f"softmax_online_cuda: a warp waits at {launch.barriers // 16} barriers "
        f"for a row of 1,024 and at {longer.barriers // 16} for a row of 2,048. Merge the threads "
        f"once, after the loop.")


def test_softmax_online_cuda__long_row(subject, agree, rng):
    right_cuda(subject, agree, "softmax_online_cuda", rows(rng, 1, 33_000), 256)


# ---- online, Triton


@pytest.mark.parametrize("R, C, block, dtype", BLOCKS)
def test_softmax_online_triton(subject, agree, rng, R, C, block, dtype):
    right_triton(subject, agree, rows(rng, R, C), block, dtype)


@pytest.mark.parametrize("kind", DESCRIBED)
def test_softmax_online_triton__hard_rows(subject, agree, rng, kind):
    right_triton(subject, agree, rows(rng, 3, 500, kind), 128, "float32", DESCRIBED[kind])


def test_softmax_online_triton__rounded_once(subject, rng):
    name = "softmax_online_triton"
    for dtype in ("float16", "bfloat16"):
        x = rows(rng, 3, 500)
        got, _ = run_triton(subject, name, x, 128, dtype)
        rounded_once(got, oracle(x.astype(np.float64)), name, f"3 rows of 500 {dtype}")


def test_softmax_online_triton__work(subject, reference, rng):
    x = rows(rng, 4, 1024)
    _, launch = run_triton(subject, "softmax_online_triton", x, 128, "float32")
    economical("softmax_online_triton", launch, x, reads=2)
    own = run_triton(reference, "softmax_online_triton", x, 128, "float32")[1]
    same_work("softmax_online_triton", launch, own)


def test_softmax_online_triton__long_row(subject, agree, rng):
    right_triton(subject, agree, rows(rng, 1, 33_000), 4096, "float32")


# ---- the course's own launchers


@pytest.mark.parametrize("kind", ["mild", "large", "masked"])
def test_every_launcher(subject, agree, rng, kind):
    """Its kernels under every kind of row; the last length is too long for a fused one."""
    import torch

    for C in (1, 127, 129, 1000, 33_000):
        x = rows(rng, 3, C, kind)
        rows_of_x = torch.from_numpy(x)
        results = {"softmax": subject.softmax(rows_of_x)}
        results |= {kernel: subject.softmax_cuda(rows_of_x, kernel) for kernel in CUDA
                    if C < 33_000 or kernel != "softmax_fused_cuda"}
        with np.errstate(invalid="ignore"):
            for name, got in results.items():
                agree(got, oracle(x.astype(np.float64)), "float32", f"{name} of 3 rows of {C}")


@pytest.mark.parametrize("R, C", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_do(subject, R, C):
    import torch

    assert subject.softmax(torch.ones(R, C)).shape == (R, C)
    assert all(subject.softmax_cuda(torch.ones(R, C), kernel).shape == (R, C) for kernel in CUDA)


def test_what_the_launchers_refuse(subject):
    import torch

    for x, words in ((torch.ones(5), "shape (5,)"), (torch.ones(4, 6).double(), "float64"),
                     (torch.ones(4, 5).T, "strides (1, 5)"),
                     (torch.ones(4, 6)[:, ::2], "strides (6, 2)")):
        for launcher in (subject.softmax, subject.softmax_cuda):
            with pytest.raises(Raised) as refusal:
                launcher(x)
            assert words in refusal.value.text
    with pytest.raises(Raised) as refusal:
        subject.softmax_cuda(torch.ones(1, 12_001), "softmax_fused_cuda")
    assert "at most 12,000" in refusal.value.text


def test_oracle_is_torchs(subject, rng):
    import torch

    x = rows(rng, 3, 127, "masked")
    want = torch.softmax(torch.from_numpy(x).double(), -1).numpy()
    assert np.allclose(subject.softmax_oracle(x), want, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.slow
def test_the_last_cuda_step_does_not_spill():
    from layer1_kernels.k07_softmax import KERNELS

    assert KERNELS.get("softmax_online_cuda").resources.spill_stores == 0


@pytest.mark.gpu
@pytest.mark.parametrize("R, C", [(0, 5), (5, 0), (1, 1), (3, 127), (3, 129), (1000, 1000),
                                  (2, 12_000), (2, 100_000)])
def test_every_kernel_on_the_device(R, C):
    import torch

    from layer1_kernels import softmax, softmax_cuda

    x = 3 * torch.randn(R, C, device="cuda")
    want = torch.softmax(x.double(), -1)
    for kernel in CUDA:
        if kernel != "softmax_fused_cuda" or C <= 12_000:
            got = softmax_cuda(x, kernel).double()
            assert torch.allclose(got, want, rtol=2e-5, atol=1e-12), kernel
    for dtype, near in ((torch.float32, 2e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
        want = torch.softmax(x.to(dtype).double(), -1)
        assert torch.allclose(softmax(x.to(dtype)).double(), want, rtol=near, atol=1e-7), dtype


@pytest.mark.gpu
def test_softmax_online_cuda_speed(pace):
    pace("softmax_cuda", numbers("float32", 4096, 8192), "softmax_online_cuda")


@pytest.mark.gpu
def test_softmax_online_triton_speed(pace):
    pace("softmax", numbers("bfloat16", 1024, 65_536))
