"""Graders of k07. Outputs start as 7, which no softmax gives, so that unwritten places show."""

import math
from pathlib import Path

import numpy as np
import pytest

from lab.judge.adversarial import VALUES, shifted
from lab.judge.compare import rounded_once
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work

CUDA = ("softmax_three_pass_cuda", "softmax_fused_cuda", "softmax_online_cuda")
SIZES = [(3, 127, 64), (3, 127, 128), (3, 1000, 128), (2, 1500, 256), (1, 129, 32), (1, 1, 128),
         (1, 0, 32)]                                                        # R, C, threads
BLOCKS = [(3, 127, 128, "float16"), (1, 1000, 128, "float32"), (3, 129, 128, "bfloat16"),
          (2, 1500, 512, "float16"), (1, 1, 128, "float32"), (1, 0, 128, "float32")]
                                                                            # R, C, BLOCK, dtype
DESCRIBED = {"large": "numbers around 10,000",
             "masked": "rows with -inf among them, the last of only -inf",
             "around 3000": "rows around 3000, where exp overflows and half has steps of 2",
             "around -3000": "rows around -3000, where a maximum that starts at 0 stays 0",
             "negative": "only numbers below 0", "equal": "equal numbers throughout a row",
             "uneven": "rows of very different sizes", "not_a_number": "a NaN in the second row",
             "signed_zeros": "0 and -0 among the numbers", "denormal": "numbers of 1e-40"}


# ---- rows, oracles, and what goes wrong


def oracle(x):                                  # (R, C) -> (R, C)
    return np.exp(x - top(x)) / np.exp(x - top(x)).sum(-1, keepdims=True)


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


def maxima(x, part):                            # (R, C), (C,) -> (R, C)
    """The maximum of each element's part of its row."""
    return sums(x, part, np.max)


def sums(x, part, over=np.sum):                 # (R, C), (C,) -> (R, C)
    """The sum over each element's part of its row."""
    found = np.empty_like(x)
    for p in np.unique(part):
        found[:, part == p] = over(x[:, part == p], axis=-1, keepdims=True)
    return found


def running(x, part):                           # (R, C), (C,) -> (R, C)
    """The maximum of each element's part of its row, up to and including the element."""
    found = np.empty_like(x)
    for p in np.unique(part):
        found[:, part == p] = np.maximum.accumulate(x[:, part == p], axis=-1)
    return found


def naive(x):
    e = np.exp(x.astype(np.float32))
    return e / e.sum(-1, keepdims=True)


def least(x):
    """With the minimum subtracted: what overflows does so in float32."""
    e = np.exp((x - x.min(-1, keepdims=True)).astype(np.float32))
    return e / e.sum(-1, keepdims=True)


def turned(x):
    """With the maximum minus x as the exponent."""
    e = np.exp((top(x) - x).astype(np.float32))
    return e / e.sum(-1, keepdims=True)


def of_last_blocks(x, part):
    """With the maximum of each block for that of all so far; in float32, in which it overflows."""
    m, s = np.full((len(x), 1), np.finfo(np.float32).min), np.zeros((len(x), 1), np.float32)
    for p in np.unique(part):
        v = x[:, part == p].astype(np.float32)
        s = s * np.exp(m - top(v)) + np.exp(v - top(v)).sum(-1, keepdims=True)
        m = top(v)
    return np.exp(x.astype(np.float32) - m) / s


def of_columns(x, some, rest=7):
    """The softmax of some columns (C,) of each row, and `rest` in the others."""
    e = np.exp(x - top(x)) * some
    return np.where(some, e / e.sum(-1, keepdims=True), rest)


def over(e, weights):
    """e divided by the sum of each row of weights."""
    return e / weights.sum(-1, keepdims=True)


def of_threads(name, x, threads, launch):
    """{mistake: what it gives} for a kernel whose thread t has the columns t, t + threads, …"""
    part = np.arange(x.shape[1]) % threads
    e, own = np.exp(x - top(x)), np.exp(x - maxima(x, part))
    forgotten = np.exp(x - running(x, part)) * np.exp(maxima(x, part) - top(x))
    c = np.arange(x.shape[1])
    whole = c < len(c) // threads * threads
    mistakes = {
        no_maximum(name, launch): naive(x),
        f"{name} does not divide by the sum": e,
        f"{name} subtracts the maximum for the sum, not where it writes":
            over(np.exp(x), e),
        f"in {name} each thread goes on with the maximum of its own columns, not of the row":
            over(own, own),
        f"in {name} each thread divides by the sum of its own columns": e / sums(e, part),
        f"{name} does not rescale the sum of a thread when its maximum grows": over(e, forgotten),
        f"{name} adds the sums of all threads as they are, each for the maximum of its thread":
            over(e, own),
        f"{name} writes with the maximum of a thread's own columns, not of the row": over(own, e),
        f"{name} rescales the sums of the threads the wrong way round: the exponent is a thread's "
        f"maximum minus the row's": over(e, own * np.exp(top(x) - maxima(x, part))),
        f"in {name} each number adds 1 to the sum, not exp(v - larger)":
            over(e, np.exp(running(x, part) - top(x))),
        f"{name} subtracts the minimum of the row, not its maximum": least(x),
        f"{name} takes the maximum minus x for the exponent": turned(x),
        f"{name} leaves out the columns of the last round: C / blockDim.x is rounded down":
            of_columns(x, whole) if whole.any() else np.full_like(x, 7),
        f"in {name} the columns of the last round are not in the sum": over(e, e * whole),
        f"in {name} a thread takes one column, and no round follows": of_columns(x, c < threads),
        f"{name} leaves out the last column": of_columns(x, c < len(c) - 1),
        f"{name} does not write the last column": np.where(c < len(c) - 1, oracle(x), 7),
        f"in {name} the last column is not in the sum": over(e, e * (c < len(c) - 1)),
        f"in {name} a thread's first column is not in the sum": over(e, e * (c >= threads)),
        f"{name} reads the first row in each block": 0 * x + oracle(x)[:1],
        f"{name} writes only its first row": np.where(np.arange(len(x))[:, None] > 0, 7, oracle(x)),
        f"{name} writes nothing": np.full_like(x, 7)}
    return {mistake: answer for mistake, answer in mistakes.items()
            if not np.array_equal(answer, oracle(x))}


def of_blocks(name, x, block, launch):
    """{mistake: what it gives} for a program that takes `block` columns at a time."""
    part = np.arange(x.shape[1]) // block
    e, own = np.exp(x - top(x)), np.exp(x - maxima(x, part))
    so_far = np.stack([x[:, part <= p].max(-1) for p in range(part[-1] + 1)], -1)[:, part]
    zeros = -x.shape[1] % block                                         # columns beyond the row
    mistakes = {
        no_maximum(name, launch): naive(x),
        f"{name} does not divide by the sum": e,
        f"{name} subtracts the maximum for the sum, not where it writes":
            over(np.exp(x), e),
        f"{name} does not rescale the sum when the maximum grows": over(e, np.exp(x - so_far)),
        f"{name} takes each block of columns for a row of its own": own / sums(own, part),
        f"in {name} only the last block of columns is in the sum":
            over(e, e[:, part == part[-1]]),
        f"{name} reads the first row in each program": 0 * x + oracle(x)[:1],
        f"{name} computes -inf minus -inf where a row begins with a block of only -inf":
            np.where(np.isneginf(x[:, :block]).all(-1, keepdims=True), np.nan, oracle(x)),
        f"in {name} m becomes the maximum of a block, less than it may have been before":
            of_last_blocks(x, part),
        f"{name} writes only its first row": np.where(np.arange(len(x))[:, None] > 0, 7, oracle(x)),
        f"in {name} only the first block of columns is written": np.where(part == 0, oracle(x), 7),
        f"in {name} only the last block of columns is written":
            np.where(part == part[-1], oracle(x), 7),
        f"in {name} the first block of columns is not in the sum": over(e, e * (part > 0)),
        f"in {name} the last block of columns is not in the sum": over(e, e * (part < part[-1])),
        f"{name} leaves out the columns beyond the last whole block":
            of_columns(x, part < x.shape[1] // block),
        f"{name} subtracts the minimum of the row, not its maximum": least(x),
        f"{name} takes the maximum minus x for the exponent": turned(x),
        f"{name} writes each block with its own maximum, not with the row's": over(own, e),
        f"in {name} the columns beyond the row count as zeros, and exp(0) is 1":
            e / (e.sum(-1, keepdims=True) + zeros * np.exp(-top(x))),
        f"{name} writes nothing": np.full_like(x, 7)}
    # With one row, or one block, some of them give the right answer.
    return {mistake: answer for mistake, answer in mistakes.items()
            if not np.array_equal(answer, oracle(x))}


def not_a_number(name, x):
    """{mistake: what it gives} where NaN comes or is missing."""
    nothing = np.full_like(x, np.nan)
    if np.isinf(x).any():
        return {f"{name} computes -inf minus -inf": nothing,
                f"{name} gives a row of only -inf zeros; it is NaN, as in torch: its sum is 0, and "
                f"is divided by":
                    np.nan_to_num(oracle(x))}
    if (x < -100).all():
        return {f"in {name} the maximum starts at 0, more than any number of the row": nothing}
    if np.isnan(x).any():
        return {f"in {name} the NaN of one row comes into the others": nothing}
    if "online" not in name:
        return {f"in {name} the maximum is infinite: it keeps the value that it starts with":
                nothing} if np.abs(x).max() < 88 else {}
    if np.abs(x).max() > 1000:
        return {f"in {name} m becomes less than it was: it is the larger of m and the new number, "
                f"so that no exponent is above 0": nothing}
    return {f"{name} rescales the wrong way round: the exponent is the old maximum minus the new, "
            f"never positive": nothing}


def no_maximum(name, launch):
    """A message for the commonest mistake, with the learner's line that takes exp of x itself."""
    report = launch.launches[0]
    own = {int(number): line["text"] for number, line in report["lines"].items()
           if number.isdigit()}             # lines of a header are keyed with its name
    bare = [f"{Path(report['path']).name}, line {number}: {text}"
            for number, text in sorted(own.items()) if "exp" in text and "-" not in text]
    return (f"{name} does not subtract the maximum of the row, and exp overflows above 88"
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

    given = torch.from_numpy(x).to(getattr(torch, dtype))
    x[...] = given.float().numpy()
    y = torch.full_like(given, 7)
    launch = subject.launch(name, len(x), args=(given, y, x.shape[1]), BLOCK=block)
    return y, launch


def right(agree, name, x, got, launch, what, threads=None, block=None, precision="float32"):
    """The answer is the oracle's, or the message names the element and the likely mistake."""
    def place(index):
        r, c = index
        return f"row {r}, column {c} " + (
            f"(round {c // threads} of thread {c % threads})" if threads else
            f"(column {c % block} of block {c // block})")

    x = x.astype(np.float64)
    if not x.size:
        return
    with np.errstate(all="ignore"):
        mistakes = not_a_number(name, x)
        mistakes |= of_threads(name, x, threads, launch) if threads else \
            of_blocks(name, x, block, launch)
        agree(got, oracle(x), precision, f"{name}, {what}", place, mistakes)


def economical(name, launch, x, reads, sectors=None):
    """Each number read `reads` times and written once, by requests that want what they move."""
    for op, times in (("store", 1), ("load", reads)):
        got = launch.bytes(op) / x.nbytes
        verb = "reads" if op == "load" else "writes"
        wrong = "it leaves some out" if got < times else \
            "y keeps numbers for a later pass, or they are written in a pass too many" \
            if op == "store" else \
            "the row is read again, though `row` keeps what is needed again" if times == 1 else \
            "maximum and sum come out of one pass, and one more writes"
        assert got == times, f"{name} {verb} each number {got:g} times, expected {times}: {wrong}"
        counts = launch.memory("global", op)
        assert counts["transactions"] == counts["ideal"], (
            f"{name}: a {op} of a warp touches {launch.sectors_per_request(op):g} sectors, "
            f"{counts['ideal'] / counts['requests']:g} are enough: neighbouring threads should "
            f"take neighbouring columns")


# ---- counting and the recurrence


def test_predict_bytes_ratio(subject, reference, rng):
    x, moved = rows(rng, 2, 1000), {}
    for name in CUDA:
        _, launch = run_cuda(reference, name, x, 128, shared=1000)
        moved[name] = launch.bytes("load") + launch.bytes("store")
    three_pass, fused, online = moved.values()
    got = subject.predict_bytes_ratio()
    assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
    why = {3: "3 compares only the reads; both kernels also write",
           4: "4 would hold if the other kernel moved each number once; it reads and writes",
           fused / three_pass: "1/2 is the other way round",
           online / fused: "1.5 would hold for a kernel that reads twice; count the loops over x"}
    assert abs(got - three_pass / fused) < 0.05, (
        f"bytes of three passes over bytes of one: {got:g} is not what the counters say; "
        f"{why.get(got, 'count reads and writes of one number, in each of the two kernels')}")


def pair(x):
    """(m, s) of some entries, as merge's docstring defines it."""
    m = max(x, default=-math.inf)
    return (m, 0.0) if m == -math.inf else (m, sum(math.exp(v - m) for v in x))


PARTS = {
    "the larger maximum first": ([1.0, 3.0, 2.5], [0.5, -1.0]),
    "the larger maximum last": ([0.5, -1.0], [1.0, 3.0, 2.5]),
    "equal maxima": ([2.0, 1.0], [2.0, 0.0, 2.0]),
    "maxima 20,000 apart": ([-1e4, -1e4 + 1], [1e4]),
    "the first part empty": ([], [-5.0, -4.0]),
    "the second part empty": ([-5.0, -4.0], []),
    "a part of only -inf": ([-math.inf, -math.inf], [0.25]),
    "two parts, both empty": ([], []),
}


@pytest.mark.parametrize("what", PARTS)
def test_merge(subject, agree, what):
    parts = PARTS[what]
    (m_a, s_a), (m_b, s_b) = a, b = [pair(part) for part in parts]
    m, want = max(m_a, m_b), pair([*parts[0], *parts[1]])
    smaller = "first" if m_a < m_b else "second"
    with np.errstate(all="ignore"):
        scale_a, scale_b = np.exp(np.subtract(m_a, m)), np.exp(np.subtract(m_b, m))
        agree(subject.merge(a, b), want, "float64", f"merge, {what}: {a} and {b}",
              lambda index: ("the maximum", "the sum")[index[0]], {
                  **of_one_empty(a, b, m), "merge computes -inf minus -inf": (m, np.nan),
                  f"the sum of the {smaller} part is not rescaled to the larger maximum":
                      (m, s_a + s_b),
                  "the sums are rescaled the wrong way round: the exponent is old minus new":
                      (m, s_a / scale_a + s_b / scale_b),
                  "the smaller maximum is kept": (min(m_a, m_b), s_a / scale_b + s_b / scale_a),
                  "both sums are rescaled to the first part's maximum":
                      (m, s_a + s_b * np.exp(np.subtract(m_b, m_a))),
                  "both sums are rescaled to the second part's maximum":
                      (m, s_b + s_a * np.exp(np.subtract(m_a, m_b))),
                  "each sum is rescaled by the other part's maximum":
                      (m, s_a * scale_b + s_b * scale_a),
                  "the larger sum is kept, not both": (m, max(s_a * scale_a, s_b * scale_b)),
                  "(s, m) is returned, in the wrong order": want[::-1]})


def of_one_empty(a, b, m):
    """{mistake: what it gives} where one part has no entries, and the other has."""
    if m == -math.inf or -math.inf not in (a[0], b[0]):
        return {}
    return {"the part without entries is returned; the other one is": (-math.inf, 0.0),
            "the sum is 0 wherever a part has no entries; it is the other part's": (m, 0.0)}


@pytest.mark.parametrize("shift", [0, 200, -3000])
def test_merge__drawn(subject, agree, rng, shift):
    """Many pairs, merged in one process: numbers around a value, equal ones, far apart ones."""
    for _ in range(20):
        size, scale = rng.integers(0, 4, 2), 10.0 ** rng.integers(-1, 4)
        parts = [(shift + scale * rng.integers(-4, 5, n)).tolist() for n in size]
        a, b = map(pair, parts)
        agree(subject.merge(a, b), pair([*parts[0], *parts[1]]), "float64",
              f"merge({a}, {b}), numbers around {shift}",
              lambda index: ("the maximum", "the sum")[index[0]])


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
    x = rows(rng, R, C)
    got, launch = run_cuda(subject, "softmax_fused_cuda", x, threads, shared=C)
    right(agree, "softmax_fused_cuda", x, got, launch,
          f"{R} row(s) of {C} by {threads} threads each", threads=threads)


@pytest.mark.parametrize("kind", DESCRIBED)
def test_softmax_fused_cuda__hard_rows(subject, agree, rng, kind):
    x = rows(rng, 3, 500, kind)
    got, launch = run_cuda(subject, "softmax_fused_cuda", x, 128, shared=500)
    right(agree, "softmax_fused_cuda", x, got, launch, DESCRIBED[kind], threads=128)


def test_softmax_fused_cuda__work(subject, reference, rng):
    x = rows(rng, 4, 1024)
    _, launch = run_cuda(subject, "softmax_fused_cuda", x, 128, shared=1024)
    economical("softmax_fused_cuda", launch, x, reads=1)
    own = run_cuda(reference, "softmax_fused_cuda", x, 128, shared=1024)[1]
    same_work("softmax_fused_cuda", launch, own)
    conflicts = launch.bank_conflicts()
    assert conflicts == 1, (
        f"softmax_fused_cuda: shared memory is asked {conflicts:.2g} times as often as need be: "
        f"neighbouring threads should take neighbouring columns of row")


# ---- online, CUDA


@pytest.mark.parametrize("R, C, threads", SIZES)
def test_softmax_online_cuda(subject, agree, rng, R, C, threads):
    x = rows(rng, R, C)
    got, launch = run_cuda(subject, "softmax_online_cuda", x, threads)
    right(agree, "softmax_online_cuda", x, got, launch,
          f"{R} row(s) of {C} by {threads} threads each", threads=threads)


@pytest.mark.parametrize("kind", DESCRIBED)
def test_softmax_online_cuda__hard_rows(subject, agree, rng, kind):
    x = rows(rng, 3, 500, kind)
    got, launch = run_cuda(subject, "softmax_online_cuda", x, 128)
    right(agree, "softmax_online_cuda", x, got, launch, DESCRIBED[kind], threads=128)


def test_softmax_online_cuda__work(subject, reference, rng):
    x = rows(rng, 4, 1024)
    _, launch = run_cuda(subject, "softmax_online_cuda", x, 128)
    economical("softmax_online_cuda", launch, x, reads=2)
    same_work("softmax_online_cuda", launch, run_cuda(reference, "softmax_online_cuda", x, 128)[1])
    longer = run_cuda(subject, "softmax_online_cuda", rows(rng, 4, 2048), 128)[1]
    assert longer.barriers == launch.barriers, (
        f"softmax_online_cuda: a warp waits {launch.barriers // 16} times for a row of 1024 and "
        f"{longer.barriers // 16} times for one of 2048: merge the threads once, after the loop")


def test_softmax_online_cuda__long_row(subject, agree, rng):
    x = rows(rng, 1, 33_000, "mild")
    got, launch = run_cuda(subject, "softmax_online_cuda", x, 256)
    right(agree, "softmax_online_cuda", x, got, launch, "a row of 33,000", threads=256)


# ---- online, Triton


@pytest.mark.parametrize("R, C, block, dtype", BLOCKS)
def test_softmax_online_triton(subject, agree, rng, R, C, block, dtype):
    x = rows(rng, R, C)
    got, launch = run_triton(subject, "softmax_online_triton", x, block, dtype)
    right(agree, "softmax_online_triton", x, got, launch,
          f"{R} row(s) of {C} {dtype} in blocks of {block}", block=block, precision=dtype)


@pytest.mark.parametrize("kind", DESCRIBED)
def test_softmax_online_triton__hard_rows(subject, agree, rng, kind):
    x = rows(rng, 3, 500, kind)
    got, launch = run_triton(subject, "softmax_online_triton", x, 128, "float32")
    right(agree, "softmax_online_triton", x, got, launch, DESCRIBED[kind], block=128)


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
    x = rows(rng, 1, 33_000, "mild")
    got, launch = run_triton(subject, "softmax_online_triton", x, 4096, "float32")
    right(agree, "softmax_online_triton", x, got, launch, "a row of 33,000", block=4096)


# ---- the course's own launchers


@pytest.mark.parametrize("kind", ["mild", "large", "masked"])
def test_every_launcher(subject, agree, rng, kind):
    """Its kernels under every kind of row; the last length is too long for a fused one."""
    import torch

    for C in (1, 127, 129, 1000, 33_000):
        x = rows(rng, 3, C, kind)
        given = torch.from_numpy(x)
        found = {"softmax": subject.softmax(given)}
        found |= {kernel: subject.softmax_cuda(given, kernel) for kernel in CUDA
                  if C < 33_000 or kernel != "softmax_fused_cuda"}
        with np.errstate(invalid="ignore"):
            for name, got in found.items():
                agree(got, oracle(x.astype(np.float64)), "float32", f"{name} of 3 rows of {C}")


@pytest.mark.parametrize("R, C", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_do(subject, R, C):
    import torch

    assert subject.softmax(torch.ones(R, C)).shape == (R, C)
    assert all(subject.softmax_cuda(torch.ones(R, C), kernel).shape == (R, C) for kernel in CUDA)


def test_what_the_launchers_refuse(subject):
    import torch

    for x, says in ((torch.ones(5), "shape (5,)"), (torch.ones(4, 6).double(), "float64"),
                    (torch.ones(4, 5).T, "strides (1, 5)"),
                    (torch.ones(4, 6)[:, ::2], "strides (6, 2)")):
        for launcher in (subject.softmax, subject.softmax_cuda):
            with pytest.raises(Raised) as refusal:
                launcher(x)
            assert says in refusal.value.text
    with pytest.raises(Raised) as refusal:
        subject.softmax_cuda(torch.ones(1, 12_001), "softmax_fused_cuda")
    assert "at most 12000" in refusal.value.text


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
