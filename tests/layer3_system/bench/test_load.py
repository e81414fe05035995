"""`lab load` against a server on a mock model: what it counts, what it refuses, what it leaves."""

import json
from pathlib import Path

import numpy as np
import pytest

from layer3_system import (
    ByteTokenizer,
    Engine,
    Job,
    Limits,
    MockLlama,
    PrefixPool,
    Sample,
    Scheduler,
    summarise,
    tpot,
)
from layer3_system.bench import load
from layer3_system.pictures.clients import served_in_seats
from layer3_system.s09_load_test import percentile, poisson_arrivals
from layer3_system.server.server_thread import ServerThread
from tests.layer3_system.server.http_server import Gated, let_through, served
from tests.layer3_system.test_s09_load_test import LIMITS, SAMPLES


@pytest.fixture(scope="module")
def url():
    pool = PrefixPool(256, 16)
    engine = Engine(MockLlama(), ByteTokenizer(), pool, Scheduler(pool, 8, 64))
    server = ServerThread(engine, "mock", Limits(queue=40), key="secret")
    yield server.url
    server.stop()
    assert engine.pool.used == 0


@pytest.fixture
def run(command):
    """run(words) -> (exit code, output)"""
    def one(*words):
        code, said, wrong = command(load.app, "load", *words)
        return code or 0, said + wrong          # typer exits with None where all is well
    return one


def test_a_curve(run, url, tmp_path):
    """Every request in every test is counted; JSON and a picture."""
    out = tmp_path / "curve.json"
    code, said = run(url, "--api-key", "secret", "--rates", "40,80", "--seconds", 0.3, "--most", 9,
                     "--out", out)
    assert code == 0, said
    tests = json.loads(out.read_text())["tests"]
    assert [(t["rate"], t["requests"], t["failed"]) for t in tests] == [(40, 12, 0), (80, 24, 0)]
    objective, curve = load.read_curve(out)
    assert objective == (0.5, 0.05) and curve[80].ttft[0.9] == tests[1]["ttft"]["0.9"]
    for t in tests:
        assert 0 < t["ttft"]["0.5"] <= t["ttft"]["0.9"] <= t["ttft"]["0.99"] <= t["e2e"]["0.99"]
        assert t["throughput"] > 0 and t["goodput"] <= t["requests"] / t["seconds"] * 1.001
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_trace(run, url, tmp_path):
    """Its times and lengths, as they stand."""
    trace, out = tmp_path / "trace.jsonl", tmp_path / "found.json"
    jobs = [Job(0.0, 3, 5), Job(0.05, 4, 1), Job(0.1, 30, 7)]
    trace.write_text("".join(json.dumps(job._asdict()) + "\n" for job in jobs))
    assert load.read_trace(trace) == jobs
    code, said = run(url, "--api-key", "secret", "--trace", trace, "--out", out)
    (only,) = json.loads(out.read_text())["tests"]
    assert code == 0 and only["requests"] == 3 and only["failed"] == 0
    assert only["throughput"] * only["seconds"] == pytest.approx(13)


def test_without_rates_it_tries_shares_of_the_most(run, url, tmp_path):
    out = tmp_path / "curve.json"
    code, said = run(url, "--api-key", "secret", "--requests", 20, "--seconds", 0.1, "--most", 9,
                     "--out", out)
    rates = [t["rate"] for t in json.loads(out.read_text())["tests"]]
    assert code == 0 and rates[0] is None
    assert [rate / rates[1] for rate in rates[1:]] == pytest.approx([1, 2.5, 5, 7.5, 9, 11, 15])


@pytest.mark.parametrize("failed", [10, 20])
def test_the_most_is_of_requests_that_were_served(run, url, tmp_path, monkeypatch, failed):
    def with_failures(samples, objective, offered=None):
        summary = summarise(samples, objective, offered)
        return summary if offered else summary._replace(failed=failed, seconds=2.0)

    monkeypatch.setattr(load, "summarise", with_failures)
    out = tmp_path / "curve.json"
    code, said = run(url, "--api-key", "secret", "--requests", 20, "--seconds", 0.1, "--most", 9,
                     "--out", out)
    if failed == 20:
        assert code == 2 and "every request failed" in said and "Traceback" not in said
    else:
        rates = [t["rate"] for t in json.loads(out.read_text())["tests"]]
        assert rates[1:3] == pytest.approx([load.SHARES[0] * 5, load.SHARES[1] * 5])


def test_too_much_is_counted_as_failed(run, tmp_path):
    """48 can run and wait; those beyond are refused, and told so.
    The engine begins after that."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"arrival": 0, "prompt": 3, "output": 200}) + "\n"
                             for _ in range(80)))
    out = tmp_path / "found.json"
    model = Gated()
    with served(model, Limits(queue=40), pages=256, kind=let_through(model, 32), max_seqs=8,
                budget=64) as server:
        code, said = run(server.url, "--trace", trace, "--out", out)
    (only,) = json.loads(out.read_text())["tests"]
    assert only["failed"] == 32 and "no room for 1 more: at most 48 answers" in said


@pytest.mark.parametrize("text", ['{"arrival": 0, "prompt": 3}', "no JSON", "[1]",
                                  '{"arrival": -1, "prompt": 3, "output": 1}',
                                  '{"arrival": 0, "prompt": 0, "output": 1}'])
def test_a_broken_trace(run, tmp_path, text):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrival": 0, "prompt": 3, "output": 1}\n' + text)
    assert "line 2: expected" in run("--trace", trace)[1]


def test_what_is_refused(run, url, tmp_path):
    """One line that says what was expected."""
    assert "no server at http://127.0.0.1:1" in run("http://127.0.0.1:1")[1]
    assert "API key is missing or wrong" in run(url)[1]
    for rates in ("2,1", "0", "many", ""):
        code, said = run(url, "--api-key", "secret", f"--rates={rates}", "--out", tmp_path / "x")
        assert code == 2 and "expected ascending numbers" in said
    assert str(tmp_path / "none") in run("--trace", tmp_path / "none")[1]


# ---- its numbers


def test_summary():
    """Failures count as requests, and in no time."""
    s = summarise([sample for sample, *_ in SAMPLES], LIMITS)
    assert (s.requests, s.failed, s.seconds) == (11, 2, 11.0)
    assert s.throughput == pytest.approx((9 + 9 + 1 + 5 + 11 + 9 + 5 + 7 + 9) / 11)
    assert s.goodput == pytest.approx(6 / 11)
    assert (s.ttft[0.5], s.ttft[0.99], s.tpot[0.99], s.e2e[0.99]) == (0.25, 0.75, 0.15625, 1.75)
    none = summarise([SAMPLES[5][0]], LIMITS)
    assert (none.failed, none.throughput, none.ttft[0.5]) == (1, 0, None)


def test_case_33_one_token_has_no_tpot():
    """Case 33: TPOT is (E2E - TTFT) / (n - 1); of one token it is undefined."""
    assert tpot(Sample(0.0, 1.0, 1.0, 1)) is None
    assert tpot(Sample(0.0, 1.0, 3.0, 5)) == 0.5


# ---- what s09 says of its record and its examples


def test_the_recorded_server_answers_in_60_ms_and_writes_ten_times_as_much_under_load():
    """Then clients wait for seconds.
    The tests at light load have too few requests for a p99."""
    path = Path(load.__file__).with_name("frontier.json")
    first, second, *_, last = [test for test in json.loads(path.read_text())["tests"]
                               if test["rate"]]
    assert (first["e2e"]["0.5"] + second["e2e"]["0.5"]) / 2 == pytest.approx(0.06, abs=0.005)
    assert last["throughput"] / first["throughput"] > 10
    assert last["ttft"]["0.5"] > 2
    assert max(first["requests"], second["requests"]) < 200


def test_percentiles_of_s09s_four_times():
    times = [2, 4, 7, 9]
    assert [percentile(times, q) for q in (0.5, 0.75, 0.9)] == [4, 7, 9]
    assert percentile(list(range(30)), 0.99) == 29, "the slowest of 30"


def test_request_5_of_s09s_picture_waits_for_most_of_its_ttft():
    """Its tokens then come as fast as those of the others."""
    arrivals = poisson_arrivals(12, 6, np.random.default_rng(3)).tolist()
    rows = served_in_seats(arrivals, [6, 4, 8, 5, 6, 7], 2, 0.02, 0.01)
    begin, tokens = rows[5]
    assert begin - arrivals[5] > 0.5 * (tokens[0] - arrivals[5])
    gaps = [np.diff(each).mean() for _, each in rows]
    assert min(gaps[:5]) <= gaps[5] <= max(gaps[:5])


def test_a_server_queues_up_to_1024_answers():
    assert Limits().queue == 1024
