"""Graders of r01. Sizes are ragged, so that a formula for squares alone does not pass."""

import pytest

PEAK, BANDWIDTH = 312e12, 1.5e12


def times(n, peak):
    """Seconds of the add by the roofline: the longer of the two."""
    return max(n / peak, 3 * n * 2 / BANDWIDTH)


@pytest.mark.parametrize("n, itemsize", [(1000, 2), (4096**2, 2), (2**31 + 1, 8), (1, 1), (0, 4)])
def test_count_add(subject, agree, n, itemsize):
    what = f"(FLOPs, bytes) of an add of {n} elements of {itemsize} bytes"
    agree(subject.count_add(n, itemsize), (n, 3 * n * itemsize), what=what, at=part, mistakes={
        "only the two inputs are counted, not the output": (n, 2 * n * itemsize),
        "the size of a number in bytes is left out of an add": (n, 3 * n),
        "an add is counted as two operations, as a multiply-add is": (2 * n, 3 * n * itemsize),
    })


def test_count_add__unseen(unseen, rng):
    for itemsize in (1, 2, 4, 8):
        unseen("count_add", int(rng.integers(2, 10**9)), itemsize, precision="exact")


@pytest.mark.parametrize(
    "M, N, K, itemsize", [(4096, 4096, 4096, 2), (3, 5, 7, 4), (1, 1000, 127, 2),
                          (2**31, 3, 2**15, 1), (1, 1, 1, 8), (0, 3, 5, 4), (3, 5, 0, 4)]
)
def test_count_matmul(subject, agree, M, N, K, itemsize):
    flops, moved = 2 * M * N * K, (M * K + K * N + M * N) * itemsize
    inputs, naive = (M * K + K * N) * itemsize, (2 * M * N * K + M * N) * itemsize
    what = f"(FLOPs, bytes) of a ({M}, {K}) by ({K}, {N}) matmul of {itemsize}-byte numbers"
    agree(subject.count_matmul(M, N, K, itemsize), (flops, moved), what=what, at=part, mistakes={
        "the additions of the dot products are left out": (M * N * K, moved),
        "the output matrix is not counted among the bytes": (flops, inputs),
        "every load of the naive loop is counted, not each matrix once": (flops, naive),
    })


def test_count_matmul__unseen(unseen, rng):
    for itemsize in (1, 2, 4, 8):
        unseen("count_matmul", *rng.integers(2, 5000, 3).tolist(), itemsize, precision="exact")


@pytest.mark.parametrize("R, C, itemsize", [(128, 1000, 4), (7, 129, 2), (2**31, 2**15, 1),
                                            (1, 1, 8), (0, 5, 4), (5, 0, 4)])
def test_count_softmax(subject, agree, R, C, itemsize):
    flops, moved = 5 * R * C, 2 * R * C * itemsize
    what = f"(FLOPs, bytes) of softmax over {R} rows of {C} numbers of {itemsize} bytes"
    agree(subject.count_softmax(R, C, itemsize), (flops, moved), what=what, at=part, mistakes={
        "each number is read three times, as without fusion": (flops, 2 * moved),
        "the write of the softmax is left out": (flops, R * C * itemsize),
        "one row is counted instead of all": (5 * C, 2 * C * itemsize),
    })


def test_count_softmax__unseen(unseen, rng):
    for itemsize in (1, 2, 4, 8):
        unseen("count_softmax", *rng.integers(2, 5000, 2).tolist(), itemsize, precision="exact")


def test_attainable(subject, agree):
    intensities = [1 / 6, 0.0, 1.0, 207.9, 208.0, 1365.3]
    roof = [i * BANDWIDTH for i in intensities]
    got = [subject.attainable(i, PEAK, BANDWIDTH) for i in intensities]
    agree(got, [min(PEAK, r) for r in roof], "float64", "FLOP/s under 312 TFLOP/s and 1.5 TB/s",
          at=lambda index: f"{intensities[index[0]]:.4g} FLOP/byte", mistakes={
              "the higher roof is taken instead of the lower": [max(PEAK, r) for r in roof],
              "the peak is given whatever the intensity": PEAK,
              "the memory roof is drawn beyond the ridge": roof,
          })


def test_attainable__other_machines(subject, agree):
    for machine in ((989e12, 4.8e12), (65e12, 0.32e12), (2250e12, 8e12)):
        peak, bandwidth = machine
        for intensity in (150.0, 205.0, 250.0, 300.0):
            agree(subject.attainable(intensity, peak, bandwidth),
                  min(peak, intensity * bandwidth), "float64",
                  f"attainable({intensity:g}, {peak:g}, {bandwidth:g})", mistakes={
                      "it is the peak if the intensity is above 208, another machine's ridge":
                          peak if intensity > 208 else intensity * bandwidth,
                      "the rate is that of another machine's memory": intensity * BANDWIDTH})


def test_attainable__unseen(unseen, rng):
    for exponent in rng.uniform(-1, 4, 6):
        unseen("attainable", float(10**exponent), float(rng.uniform(1e12, 1e15)),
               float(rng.uniform(1e11, 8e12)))


@pytest.mark.parametrize("flops, moved, peak, bandwidth", [
    (100, 600, PEAK, BANDWIDTH), (2 * 4096**3, 6 * 4096**2, PEAK, BANDWIDTH),
    (208, 1, PEAK, BANDWIDTH), (207, 1, PEAK, BANDWIDTH), (209, 1, PEAK, BANDWIDTH),
    (207, 1, 989e12, 4.8e12), (300, 1, 121e12, 0.3e12),     # machines with another ridge
    (1, 0, PEAK, BANDWIDTH), (0, 1, PEAK, BANDWIDTH), (0, 0, PEAK, BANDWIDTH)])
def test_bound(subject, flops, moved, peak, bandwidth):
    got = subject.bound(flops, moved, peak, bandwidth)
    arithmetic, memory = flops / peak, moved / bandwidth        # seconds
    want = "compute" if arithmetic >= memory else "memory"
    assert got in ("compute", "memory"), f'bound: got {got!r}, expected "compute" or "memory"'
    reason = (f"the arithmetic needs {arithmetic:.3g} s, the bytes need {memory:.3g} s, and the "
              f"longer time decides")
    if moved and (peak, bandwidth) != (PEAK, BANDWIDTH):
        reason += f"; this machine's ridge is at {peak / bandwidth:g} FLOP/byte, not at 208"
    if flops == moved == 0:
        reason = "nothing to do takes 0 s on both roofs: that is on the ridge, so compute"
    if flops == 208 * moved > 0:
        reason = "it stands exactly on the ridge, which counts as compute"
    assert got == want, \
        f'bound of {flops} FLOPs and {moved} bytes: got "{got}", expected "{want}": {reason}'


def test_bound__unseen(unseen, rng):
    for flops, moved in rng.integers(1, 10**12, (40, 2)).tolist():
        unseen("bound", flops, moved, float(rng.uniform(1, 20)) * 1e12,
               float(rng.uniform(1, 20)) * 1e12)


def test_predict_intensity_of_matmul(subject):
    got, n = subject.predict_intensity_of_matmul(), 4096
    flops, moved = 2 * n**3, 3 * n**2 * 2
    assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
    near = "too low" if got < flops / moved else "too high"
    if abs(got - flops / moved / 2) < 0.05 * flops / moved:
        near = "half of it: a multiply-add is two operations"
    elif abs(got - flops / moved * 2) < 0.05 * flops / moved:
        near = "twice as much: a 16-bit number has two bytes"
    assert abs(got / (flops / moved) - 1) < 0.05, \
        (f"intensity of the matmul: {got:g} FLOP/byte is {near}; write down FLOPs and bytes, then "
         f"divide")


def test_predict_gain_of_doubled_peak(subject):
    got = subject.predict_gain_of_doubled_peak()
    want = times(4096**2, PEAK) / times(4096**2, 2 * PEAK)
    assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
    said = ("that would hold for a kernel under the compute roof" if got == 2 else
            "a faster chip slows nothing down" if got < want else "the bytes still have to arrive")
    assert abs(got - want) < 0.05, f"gain of the add: {got:g} is not what the roofline says; {said}"


def part(index):
    return ("FLOPs", "bytes")[index[0]]
