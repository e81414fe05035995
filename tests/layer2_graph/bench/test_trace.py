"""The recorder behind o01's trace: what it times, what it counts, what it serves."""

import json
from types import SimpleNamespace

import pytest
import torch

from day02_overview import FLOORS, TRACE, read_trace, time_by_floor
from layer2_graph import Tokenizer, greedy, load
from layer2_graph.bench import trace
from layer2_graph.models import SMALL


@pytest.fixture(scope="module")
def model():
    return load(SMALL, dtype=torch.float32)


@pytest.fixture(scope="module")
def served(model):
    """(spans, requests, steps) of one run.
    Both requests come at once, long after it began: by how many steps one is ahead, and whether
    both are awaited, must not depend on this machine's speed.
    """
    ops, tokenizer = model.ops, Tokenizer(SMALL, model.config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "REQUESTS", [(*given[:3], 200_000_000) for given in trace.REQUESTS])
        rows, requests, steps, _ = trace.serve(model, tokenizer, ops)
    model.ops = ops
    return trace.with_counts(rows, trace.count(model, steps)), requests, steps


def test_every_nanosecond_belongs_to_one_floor(served):
    spans, _, _ = served
    time = time_by_floor(spans)
    assert sum(time.values()) == spans[0].end - spans[0].begin
    assert all(time[floor] > 0 for floor in FLOORS)


def test_requests_get_the_tokens_that_they_would_get_alone(served, model):
    _, requests, _ = served
    for request in requests:
        assert [request.tokens] == greedy(model, [request.prompt], request.count)
        assert request.sent == sorted(request.sent) and request.sent[0] > request.arrival
        assert request.answer


def test_a_step_is_what_its_requests_have_new(served):
    _, requests, steps = served
    for b, request in enumerate(requests):
        entered = [token for new in steps for token in new[b]]
        assert entered == request.prompt + request.tokens[:-1]
    assert max(sum(map(bool, new)) for new in steps) == 2


COUNTS = [["forward", 0, 0, 10], ["matmul", 5, 6, 1], ["rope", 0, 7, 20]]


def test_counts_belong_to_the_kernels_that_were_timed():
    rows = [["forward", "graph", 0, 9], ["matmul", "kernel", 1, 2], ["rope", "kernel", 3, 4]]
    spans = trace.with_counts(rows, COUNTS)
    assert [s[4:] for s in spans] == [(0, 0, 10), (5, 6, 1), (0, 7, 20)]
    with pytest.raises(ValueError, match="trace: matmul was timed where rope was counted"):
        trace.with_counts(rows, [COUNTS[0], COUNTS[2], COUNTS[1]])


def test_a_matmul_is_one_operation_and_the_forward_has_its_own(served):
    """Eight additions, the embedding's rows, the last rows and their two numbers."""
    spans, _, steps = served
    own = {s.operations for s in spans if s.name == "forward"}
    assert {s.operations for s in spans if s.name == "matmul"} == {1} and own == {12}
    assert len([s for s in spans if s.name == "forward"]) == len(steps)


def test_the_clock_is_this_programs_own(monkeypatch):
    """The time of its cores, and the waiting that it asked for."""
    cores = iter([100, 130, 150, 190])
    monkeypatch.setattr(trace, "time", SimpleNamespace(process_time_ns=lambda: next(cores),
                                                       sleep=lambda seconds: None))
    recorder = trace.TraceRecorder()
    assert recorder.now() == 30
    recorder.timed("wait", "idle", recorder.sleep, 7_000_000)
    assert recorder.rows == [["wait", "idle", 50, 7_000_090]]


def test_waiting_is_not_busy():
    rows = [["serve", "system", 0, 100], ["wait", "idle", 10, 40], ["forward", "graph", 50, 60]]
    assert trace.busy(rows) == 70


def test_a_request_waits_for_its_arrival_and_goes_first():
    class One:
        def __init__(self, arrival, tokens, count=5):
            self.arrival, self.tokens, self.count = arrival, [1] * tokens, count

    old, new, done, later = One(0, 2), One(10, 0), One(0, 5), One(11, 0)
    assert trace.schedule([old, new, done, later], 10) == ("prefill", [new])
    assert trace.schedule([old, done, later], 10) == ("decode", [old])
    assert trace.schedule([done, later], 10) == ("decode", [])


def test_the_file_is_what_o01_reads(tmp_path):
    record = json.loads(TRACE.read_text("utf-8"))
    path = tmp_path / "trace.json"
    path.write_text(trace.text(record), "utf-8")
    assert json.loads(path.read_text("utf-8")) == record and read_trace(path) == read_trace()
    assert path.read_bytes() == TRACE.read_bytes()


def test_the_record_is_of_this_model_and_these_requests(served):
    requests = served[1]
    assert [(r.name, r.text, len(r.prompt), r.answer) for r in requests] == [
        (r.name, r.prompt, r.prompt_tokens, r.answer) for r in read_trace().requests]


def test_what_blurs_the_floors_is_measured(model):
    found = trace.costs(model)
    assert found.keys() == read_trace().about["cost_ns"].keys() and min(found.values()) > 0
