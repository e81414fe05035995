"""Graders of r01.
Sizes are ragged, so that a formula for squares only does not pass."""

from numbers import Real

import numpy as np
import pytest

from lab.judge.mistakes import mistake

PEAK, BANDWIDTH = 312e12, 1.5e12


def times(n, peak):
    """Seconds of the add by the roofline: the longer of the two."""
    return max(n / peak, 3 * n * 2 / BANDWIDTH)


@pytest.mark.parametrize("n, itemsize", [
    (1000, 16), (4096**2, 2), (2**31 + 1, 8), (1, 1), (0, 4)])
def test_count_add(subject, agree, n, itemsize):
    what = f"(FLOPs, bytes) of an addition of {n} elements of {itemsize} bytes"
    moved = 3 * n * itemsize
    got = pair(subject.count_add(n, itemsize), f"count_add({n}, {itemsize})")
    agree(got, (n, moved), what=what, at=part, mistakes={
        "inputs_only": ("only the two inputs are counted, not the output", (n, 2 * n * itemsize)),
        "one_array": ("one array is counted of the three", (n, n * itemsize)),
        "output_read_too": (
            "one of the three arrays is counted twice: the output is written, not read as well",
            (n, 4 * n * itemsize)),
        "no_itemsize": ("numbers are counted instead of bytes: itemsize is left out",
                        (n, 3 * n)),
        "two_flops": ("each addition is counted as two operations; only a multiply-add is two",
                      (2 * n, moved)),
        "flop_a_number": (
            "an operation is counted for each number that moves, not for each addition",
            (3 * n, moved)),
        "one_at_least": (
            "an addition is counted where there is nothing to add", (max(n, 1), moved)),
        "flops_times_itemsize": (
            "the FLOPs are multiplied by the bytes of a number", (n * itemsize, moved)),
    } | of_every_count(n, 3 * n, itemsize))


def test_count_add__unseen(unseen, rng):
    for itemsize in (1, 2, 4, 8):
        unseen("count_add", int(rng.integers(2, 10**9)), itemsize, precision="exact")


@pytest.mark.parametrize(
    "M, N, K, itemsize", [(3, 5, 7, 16), (4096, 4096, 4096, 2), (3, 5, 7, 4), (1, 1000, 127, 2),
                          (2**31, 3, 2**15, 1), (1, 1, 1, 8), (0, 3, 5, 4), (3, 5, 0, 4)]
)
def test_count_matmul(subject, agree, M, N, K, itemsize):
    """The first sizes tell the mistakes apart: all differ, and no usual number has 16 bytes."""
    flops = 2 * M * N * K
    a, b, c = M * K, K * N, M * N
    moved = (a + b + c) * itemsize
    what = f"(FLOPs, bytes) of a ({M}, {K}) by ({K}, {N}) matmul of {itemsize}-byte numbers"
    got = pair(subject.count_matmul(M, N, K, itemsize), f"count_matmul({M}, {N}, {K}, {itemsize})")
    agree(got, (flops, moved), what=what, at=part, mistakes={
        "no_additions": ("the additions of the dot products are left out", (M * N * K, moved)),
        "one_addition_less": (
            "a dot product has K - 1 additions: here the sum starts at 0, so it has K",
            (M * N * (2 * K - 1), moved)),
        "terms_n": ("the dot products have N terms, not K", (2 * M * N * N, moved)),
        "terms_m": ("the dot products have M terms, not K", (2 * M * N * M, moved)),
        "flops_times_itemsize": (
            "the FLOPs are multiplied by the bytes of a number", (flops * itemsize, moved)),
        "no_output": (
            "the output matrix is not counted among the bytes", (flops, (a + b) * itemsize)),
        "every_load": (
            "every load of the plain triple loop is counted; each matrix has to move only once",
            (flops, (2 * M * N * K + c) * itemsize)),
        "output_read_too": (
            "the output is counted as read and as written: it is written alone",
            (flops, (a + b + 2 * c) * itemsize)),
        "b_as_a": (
            "b is counted with the size of a: b has K · N numbers",
            (flops, (2 * a + c) * itemsize)),
        "a_as_b": (
            "a is counted with the size of b: a has M · K numbers",
            (flops, (2 * b + c) * itemsize)),
        "c_as_a": (
            "c is counted with the size of a: c has M · N numbers",
            (flops, (2 * a + b) * itemsize)),
        "c_as_b": (
            "c is counted with the size of b: c has M · N numbers",
            (flops, (a + 2 * b) * itemsize)),
        "output_in_4_bytes": (
            "the output's numbers have 4 bytes each, whatever `itemsize`",
            (flops, (a + b) * itemsize + 4 * c)),
        "no_brackets": (
            "`itemsize` multiplies only the last matrix: brackets are missing",
            (flops, a + b + c * itemsize)),
        "product_of_sizes": (
            "M · N · K numbers are counted, not those of three matrices",
            (flops, M * N * K * itemsize)),
        "sum_of_sizes": (
            "M + N + K numbers are counted, not those of three matrices",
            (flops, (M + N + K) * itemsize)),
    } | of_every_count(flops, a + b + c, itemsize))


def test_count_matmul__unseen(unseen, rng):
    for itemsize in (1, 2, 4, 8):
        unseen("count_matmul", *rng.integers(2, 5000, 3).tolist(), itemsize, precision="exact")


@pytest.mark.parametrize("R, C, itemsize", [
    (128, 1000, 16), (128, 1000, 4), (7, 129, 2), (2**31, 2**15, 1), (1, 1, 8), (0, 5, 4),
    (5, 0, 4)])
def test_count_softmax(subject, agree, R, C, itemsize):
    """16 bytes come first: of fewer, a wrong size looks like a wrong number of reads."""
    flops, moved = 5 * R * C, 2 * R * C * itemsize
    what = f"(FLOPs, bytes) of softmax over {R} rows of {C} numbers of {itemsize} bytes"
    got = pair(subject.count_softmax(R, C, itemsize), f"count_softmax({R}, {C}, {itemsize})")
    agree(got, (flops, moved), what=what, at=part, mistakes={
        "three_reads": ("each number is read three times and written once, as without fusion",
                        (flops, 2 * moved)),
        "two_reads": (
            "each number is read twice: a fused kernel keeps the row after one read",
            (flops, 3 * R * C * itemsize)),
        "one_pass": (
            "one pass is counted, a read or a write; both are needed",
            (flops, R * C * itemsize)),
        "one_output_a_row": (
            "one number is written a row: softmax writes as many as it reads",
            (flops, (R * C + R) * itemsize)),
        "one_row": ("one row is counted instead of all", (5 * C, 2 * C * itemsize)),
        "four_flops": ("one of the five operations is left out", (4 * R * C, moved)),
        "one_flop": ("one operation is counted for an element, not five", (R * C, moved)),
        "flop_a_row": (
            "one of the five operations is counted once a row, not once an element",
            (R * (4 * C + 1), moved)),
        "two_flops_a_row": (
            "two of the five operations are counted once a row, not once an element",
            (R * (3 * C + 2), moved)),
        "one_term_less": (
            "the maximum or the sum is counted as C - 1 operations a row, not C",
            (R * (5 * C - 1), moved)),
        "two_terms_less": (
            "the maximum and the sum are counted as C - 1 operations a row each, not C",
            (R * (5 * C - 2), moved)),
        "sum_of_sizes": (
            "the numbers are counted as R + C, not R · C", (5 * (R + C), 2 * (R + C) * itemsize)),
        "flops_times_itemsize": (
            "the FLOPs are multiplied by the bytes of a number", (flops * itemsize, moved)),
    } | of_every_count(flops, 2 * R * C, itemsize))


def test_count_softmax__unseen(unseen, rng):
    for itemsize in (1, 2, 4, 8):
        unseen("count_softmax", *rng.integers(2, 5000, 2).tolist(), itemsize, precision="exact")


def test_attainable(subject, agree):
    intensities = [1 / 6, 1.0, 207.9, 208.0, 1365.3]
    roof = [i * BANDWIDTH for i in intensities]
    got = [subject.attainable(i, PEAK, BANDWIDTH) for i in intensities]
    agree(got, [min(PEAK, r) for r in roof], "float64", "FLOP/s under 312 TFLOP/s and 1.5 TB/s",
          at=lambda index: f"{intensities[index[0]]:.4g} FLOP/byte", mistakes={
              "higher_roof": (
                  "the higher roof is taken instead of the lower", [max(PEAK, r) for r in roof]),
              "always_peak": ("the peak is returned whatever the intensity", PEAK),
              "memory_roof_alone": (
                  "intensity · bandwidth is returned even where it is above the peak", roof),
              "no_intensity": (
                  "the bandwidth is compared with the peak as it is: without the intensity it is "
                  "bytes, not FLOPs, a second", min(PEAK, BANDWIDTH)),
              "bandwidth_as_rate": (
                  "the bandwidth is given as it is left of the ridge: times the intensity it is "
                  "FLOP/s", [PEAK if i >= PEAK / BANDWIDTH else BANDWIDTH for i in intensities]),
              "sum_of_times": (
                  "the times of the arithmetic and of the bytes are added: they overlap, so the "
                  "longer one alone counts", [PEAK * r / (PEAK + r) for r in roof]),
              "divides_by_intensity": (
                  "the intensity divides the bandwidth: FLOP/byte times byte/s is FLOP/s",
                  [min(PEAK, BANDWIDTH / i) for i in intensities]),
              "intensity_times_peak": (
                  "the intensity multiplies the peak, not the bandwidth",
                  [min(PEAK * i, BANDWIDTH) for i in intensities]),
              "whole_intensity": (
                  "the intensity is rounded down before it is multiplied, as int and // do",
                  [min(PEAK, int(i) * BANDWIDTH) for i in intensities]),
              "share_of_peak": (
                  "the share of the peak is given, not FLOP/s", [min(1, r / PEAK) for r in roof]),
              "sum_of_roofs": ("the roofs are added", [PEAK + r for r in roof]),
              "mean_of_roofs": ("the mean of the roofs is taken", [(PEAK + r) / 2 for r in roof]),
          })
    agree(subject.attainable(0.0, PEAK, BANDWIDTH), 0.0, "float64",
          "FLOP/s of work that moves bytes and computes nothing", mistakes={
              "peak_at_0": ("the peak is given where the intensity is 0", PEAK),
              "bandwidth_at_0": ("the bandwidth is given where the intensity is 0", BANDWIDTH)})


def test_attainable__other_machines(subject, agree):
    for machine in ((989e12, 4.8e12), (65e12, 0.32e12), (2250e12, 8e12)):
        peak, bandwidth = machine
        for intensity in (150.0, 205.0, 250.0, 300.0):
            agree(subject.attainable(intensity, peak, bandwidth),
                  min(peak, intensity * bandwidth), "float64",
                  f"attainable({intensity:g}, {peak:g}, {bandwidth:g})", mistakes={
                      "ridge_208": (
                          "the ridge of 208 is written into the code; this machine has another",
                          peak if intensity > 208 else intensity * bandwidth),
                      "other_bandwidth": (
                          "1.5 TB/s is written into the code; use the argument `bandwidth`",
                          intensity * BANDWIDTH)})


def test_attainable__beside_the_ridge(subject, agree, rng):
    """Intensities between the ridge and the whole numbers beside it."""
    for whole, part in zip(rng.integers(1, 9, 6).tolist(), rng.uniform(0.3, 0.7, 6), strict=True):
        bandwidth = float(rng.uniform(1e11, 8e12))
        peak = float(whole + part) * bandwidth
        for intensity in (whole + 0.9 * part, whole + 1.1 * part):
            roof = intensity * bandwidth
            agree(subject.attainable(float(intensity), peak, bandwidth), min(peak, roof), "float64",
                  f"FLOP/s at {intensity:.4g} FLOP/byte, beside a ridge at {whole + part:.4g}",
                  mistakes={
                      "ridge_rounded_down": ("the ridge is rounded down to a whole number", peak),
                      "ridge_rounded_up": ("the ridge is rounded up to a whole number", roof)})


def test_attainable__unseen(unseen, rng):
    for exponent in rng.uniform(-1, 4, 6):
        unseen("attainable", float(10**exponent), float(rng.uniform(1e12, 1e15)),
               float(rng.uniform(1e11, 8e12)))


BOUND_CASES = [
    (2 * 4096**3, 6 * 4096**2, PEAK, BANDWIDTH), (4096**2, 6 * 4096**2, PEAK, BANDWIDTH),
    (10**15, 6 * 10**15, PEAK, BANDWIDTH), (2, 1, PEAK, BANDWIDTH), (100, 600, PEAK, BANDWIDTH),
    (208, 1, PEAK, BANDWIDTH), (207, 1, PEAK, BANDWIDTH), (209, 1, PEAK, BANDWIDTH),
    (207, 1, 989e12, 4.8e12), (300, 1, 121e12, 0.3e12),     # machines with another ridge
    (206, 1, 989e12, 4.8e12), (2064, 10, 989e12, 4.8e12),   # beside it: 206, 206.042, 206.4
    (1, 0, PEAK, BANDWIDTH), (0, 1, PEAK, BANDWIDTH), (0, 0, PEAK, BANDWIDTH)]
# When a wrong answer says "compute".
BOUND_WRONG = {
    "roofs_exchanged": (
        "the roofs are exchanged: the longer time names the roof that is hit",
        lambda flops, moved, peak, bandwidth: flops / peak < moved / bandwidth),
    "all_exchanged": (
        "the roofs are exchanged, and the ridge with them: the longer time names the roof",
        lambda flops, moved, peak, bandwidth: flops / peak <= moved / bandwidth),
    "no_rates": (
        "FLOPs and bytes are compared as they are, not the times that they need",
        lambda flops, moved, peak, bandwidth: flops >= moved),
    "rates_exchanged": (
        "the rates are exchanged: the peak is for the FLOPs, the bandwidth for the bytes",
        lambda flops, moved, peak, bandwidth: flops / bandwidth >= moved / peak),
    "always_compute": ('the answer is "compute" whatever the numbers', lambda *case: True),
    "always_memory": ('the answer is "memory" whatever the numbers', lambda *case: False),
    "whole_seconds": (
        "a time is rounded down to whole seconds, with // or int: short times are all 0",
        lambda flops, moved, peak, bandwidth: flops // peak >= moved // bandwidth),
    "rounded_times": (
        "the times are rounded before they are compared, so that two short ones are equal",
        lambda flops, moved, peak, bandwidth:
            round(flops / peak, 6) >= round(moved / bandwidth, 6)),
    "ridge_rounded_down": (
        "the ridge is rounded down, as // does",
        lambda flops, moved, peak, bandwidth: flops >= peak // bandwidth * moved),
    "whole_intensity": (
        "the intensity is rounded down, as // does",
        lambda flops, moved, peak, bandwidth: not moved or flops // moved >= peak / bandwidth),
    "ridge_is_memory": (
        "the ridge itself counts as memory",
        lambda flops, moved, peak, bandwidth: flops / peak > moved / bandwidth),
    "no_bytes_is_memory": (
        "work that moves no byte counts as memory",
        lambda flops, moved, peak, bandwidth: moved and flops / moved >= peak / bandwidth),
    "ridge_208": (
        "the ridge is 208 on every machine: it is the quotient of the two rates",
        lambda flops, moved, peak, bandwidth: flops >= 208 * moved),
}


def test_bound(subject):
    said = [subject.bound(*case) for case in BOUND_CASES]
    want = [roof(flops / peak >= moved / bandwidth)
            for flops, moved, peak, bandwidth in BOUND_CASES]
    for got in said:
        assert got in ("compute", "memory"), mistake(
            "another_word", f'bound: got {got!r}, expected "compute" or "memory"')
    known = [(name, sentence) for name, (sentence, compute) in BOUND_WRONG.items()
             if said == [roof(compute(*case)) for case in BOUND_CASES]]
    name, sentence = known[0] if known else ("", "")
    cause = f"\nThis is what comes out when {sentence}." if known else ""
    for case, got, right in zip(BOUND_CASES, said, want, strict=True):
        flops, moved, *_ = case
        assert got == right, mistake(
            name, f'bound of {flops} FLOPs and {moved} bytes: got "{got}", expected '
                  f'"{right}": {reason(*case)}{cause}', sentence)


def roof(compute):
    return "compute" if compute else "memory"


def reason(flops, moved, peak, bandwidth):
    if flops == moved == 0:
        return ("0 FLOPs and 0 bytes take 0 s each: that is exactly on the ridge, which counts as "
                "compute")
    if flops == 208 * moved and (peak, bandwidth) == (PEAK, BANDWIDTH):
        return "it is exactly on the ridge, which counts as compute"
    said = (f"the arithmetic needs {flops / peak:.3g} s, the bytes need {moved / bandwidth:.3g} s, "
            f"and the longer time decides")
    if moved and (peak, bandwidth) != (PEAK, BANDWIDTH):
        said += f"; on this machine the ridge is {peak / bandwidth:g} FLOP/byte, not 208"
    return said


def test_bound__unseen(unseen, rng):
    for flops, moved in rng.integers(1, 10**12, (40, 2)).tolist():
        unseen("bound", flops, moved, float(rng.uniform(1, 20)) * 1e12,
               float(rng.uniform(1, 20)) * 1e12)


def test_predict_intensity_of_matmul(subject):
    name, n = "predict_intensity_of_matmul", 4096
    flops, moved = 2 * n**3, 3 * n**2 * 2
    got = number(name, subject.predict_intensity_of_matmul())
    label, near = ("too_low", "too low") if got < flops / moved else ("too_high", "too high")
    if abs(got - flops / moved / 2) < 0.05 * flops / moved:
        label = "one_flop"
        near = "half the right value: a multiply-add is two operations"
    elif abs(got - flops / moved * 2) < 0.05 * flops / moved:
        label = "one_byte"
        near = "twice the right value: a 16-bit number takes two bytes"
    assert abs(got / (flops / moved) - 1) < 0.05, mistake(
        label, f"{name}: predicted {got:g} FLOP/byte, which is {near}. Write down the FLOPs and "
               f"the bytes, then divide.", near)


def test_predict_gain_of_doubled_peak(subject):
    name = "predict_gain_of_doubled_peak"
    got = number(name, subject.predict_gain_of_doubled_peak())
    want = times(4096**2, PEAK) / times(4096**2, 2 * PEAK)
    label, why = (
        ("compute_roof", "that would be true of a compute-bound kernel") if got == 2 else
        ("slower", "a faster chip slows nothing down") if got < want else
        ("bytes_forgotten", "the addition's bytes still arrive at the same speed"))
    assert abs(got - want) < 0.05, mistake(
        label, f"{name}: predicted {got:g} times as fast, but {why}", why)


def number(name, got):
    """A prediction, if it is a number."""
    assert isinstance(got, Real), mistake("no_number", f"{name}: expected a number, got {got!r}")
    return got


def pair(got, call):
    """The answer of a count, if there are two numbers in it."""
    assert isinstance(got, (tuple, list, np.ndarray)) and len(got) == 2, mistake(
        "no_pair", f"{call}: got {got!r}, expected a pair, (FLOPs, bytes), for any sizes")
    return got


def of_every_count(flops, numbers, itemsize):
    """What goes wrong in any count of FLOPs and of numbers that move."""
    moved = numbers * itemsize
    return {
        "exchanged": ("FLOPs and bytes are exchanged", (moved, flops)),
        "bits": ("bits are counted, not bytes", (flops, 8 * moved)),
        "numbers": ("numbers are counted, not their bytes", (flops, numbers)),
    } | {f"always_{size}_bytes": (
            f"a number has {size} bytes whatever `itemsize`", (flops, numbers * size))
         for size in (2, 4, 8) if size != itemsize}


def part(index):
    return ("FLOPs", "bytes")[index[0]]
