"""What o01 says of its recording: ratios and shares that its tables do not print."""

import numpy as np
import pytest

from day01_roofline import ACCELERATORS, LlamaShape, count_parameters
from day02_overview import latencies, read_trace, time_by_floor


@pytest.fixture(scope="module")
def trace():
    return read_trace()


@pytest.fixture(scope="module")
def steps(trace):
    """{prefill, A, AB}: the first prefill, and decode steps of median length of A and of both."""
    def middle(batch):
        those = [s for s in trace.steps if s.phase == "decode" and "".join(s.batch) == batch]
        return sorted(those, key=length)[len(those) // 2]

    return {"prefill": trace.steps[0], "A": middle("A"), "AB": middle("AB")}


def length(step):
    """ms"""
    return (step.spans[0].end - step.spans[0].begin) / 1e6


def kernels(step, name=None):
    """(ms, bytes, FLOPs, operations) of all kernels of a step, or of those of one name."""
    spans = [s for s in step.spans if s.floor == "kernel" and name in (None, s.name)]
    return tuple(np.sum([(s.end - s.begin, s.moved, s.flops, s.operations) for s in spans], 0)
                 / (1e6, 1, 1, 1))


def test_the_model_has_two_million_weights(trace):
    m = trace.about["model"]
    shape = LlamaShape(m["name"], *(m[letter] for letter in "LCHGDFV"), m["tied"])
    weights = sum(count_parameters(shape).values())
    assert round(weights / 1e6) == 2
    assert round(weights * m["itemsize"] / 1e6) == 8        # MB, in a cache of 32
    assert trace.about["machine"]["cache"] == 32 * 2**20


def test_the_fastest_of_twelve_runs_is_shown(trace):
    spans = trace.spans
    idle = time_by_floor(spans)["idle"]
    assert len(trace.about["busy_ns"]) == 12
    assert spans[0].end - spans[0].begin - idle == min(trace.about["busy_ns"])


def test_one_step_seen_from_each_floor(steps):
    """4.6 ms, one forward of 4.3, 54 calls of which four, attention, take half of the time."""
    step = steps["AB"]
    forward, = (s for s in step.spans if s.name == "forward")
    assert (round(length(step), 1), round((forward.end - forward.begin) / 1e6, 1)) == (4.6, 4.3)
    calls = [s.name for s in step.spans if s.floor == "kernel"]
    assert len(calls) == 54 and calls.count("paged_attention") == 4


def test_kernels_take_most_of_every_step(trace):
    """87 % over all decode steps; graph and system take half a millisecond, for two as for one."""
    decode = [time_by_floor(s.spans) for s in trace.steps if s.phase == "decode"]
    shares = {floor: sum(t[floor] for t in decode) / sum(sum(t.values()) for t in decode)
              for floor in decode[0]}
    assert round(shares["kernel"], 2) == 0.87
    for step in trace.steps:
        assert time_by_floor(step.spans)["kernel"] > 0.8e6 * length(step)
    for batch in ("A", "AB"):
        rest = [t["graph"] + t["system"] for t, s in zip(
            decode, (s for s in trace.steps if s.phase == "decode"), strict=True)
            if "".join(s.batch) == batch]
        assert np.median(rest) / 1e6 == pytest.approx(0.5, abs=0.1)


def test_a_second_request_adds_flops_and_hardly_a_byte(steps):
    """A decode step does a 39th of the prefill's FLOPs and moves 0.6 of its bytes."""
    _, before_moved, before, _ = kernels(steps["prefill"])
    _, moved, flops, _ = kernels(steps["A"])
    assert round(before / flops) == 39 and round(moved / before_moved, 1) == 0.6
    _, both_moved, both, _ = kernels(steps["AB"])
    assert 1.9 < both / flops < 2 and round(both_moved / moved - 1, 2) == 0.02


def test_attention_takes_half_of_the_time_for_2_percent_of_the_bytes(steps):
    """And its 42 operations take about 12 µs each; the matmuls move 96 % in a quarter."""
    whole = kernels(steps["AB"])
    attention = kernels(steps["AB"], "paged_attention")
    shares = {name: np.divide(kernels(steps["AB"], name), whole)
              for name in ("paged_attention", "matmul")}
    assert np.round(shares["paged_attention"][:2], 2).tolist() == [0.5, 0.02]
    assert np.round(shares["matmul"][:2], 2).tolist() == [0.24, 0.96]
    assert attention[3] == 4 * 42 and round(1e3 * attention[0] / attention[3]) == 12


def test_what_the_second_request_costs_the_first(trace, steps):
    """28 % longer steps, 56 % more tokens; a gap twice as long as others while B is prefilled."""
    alone, both = length(steps["A"]), length(steps["AB"])
    assert (round(alone, 1), round(both, 1)) == (3.6, 4.6)
    assert round(both / alone - 1, 2) == 0.28 and round(2 * alone / both - 1, 2) == 0.56
    gaps = np.sort(np.diff(trace.requests[0].sent))
    assert gaps[-1] / np.median(gaps[:-1]) == pytest.approx(2, abs=0.3)
    assert gaps[-1] > 1.9 * gaps[-2]
    assert latencies(trace.requests[0])[1] > np.median(gaps) / 1e9


def test_both_shares_are_small_and_the_ridge_lies_between(trace, steps):
    """Prefill is above the ridge, decode far below it."""
    machine = trace.about["machine"]
    ridge = machine["peak"] / machine["bandwidth"]
    (_, moved, flops, _), (ms, less, few, _) = kernels(steps["prefill"]), kernels(steps["A"])
    assert few / less < ridge / 5 < ridge < flops / moved
    assert flops / (length(steps["prefill"]) / 1e3) / machine["peak"] < 0.25
    assert less / (ms / 1e3) / machine["bandwidth"] < 0.25


def test_launches_would_take_most_of_an_h100s_time(trace, steps):
    """66 launches of 5 µs, against the least time for the bytes."""
    gpu = next(m for m in ACCELERATORS if m.name == "NVIDIA H100 SXM")
    launches = 54 + next(s.operations for s in steps["A"].spans if s.name == "forward")
    assert launches == 66
    assert kernels(steps["A"])[1] / gpu.bandwidth < 0.01 * launches * 5e-6
