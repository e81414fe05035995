"""What s05 gives beside its exercises: chunks in an engine, steps on paper, and the record.

"case N" counts the cases that any engine must handle.
"""

import json
from functools import cache
from statistics import median

import pytest
import torch

from day01_roofline import ACCELERATORS, LLAMAS, Machine, attended, count_bytes, count_flops
from day02_overview import read_trace
from lab.judge.mocks import Watched
from layer1_kernels import kernels
from layer2_graph import load
from layer2_graph.models import SMALL
from layer3_system import (
    BlockPool,
    ByteTokenizer,
    Engine,
    MockLlama,
    SamplingParams,
    Scheduler,
    StepLog,
    check_engine,
    chunks_of,
    largest_budget,
    on_paper,
    step_seconds,
    tokens_reread,
)
from layer3_system.bench import chunk_sizes

LLAMA = LLAMAS["Llama-3.1-8B"]
H100 = next(machine for machine in ACCELERATORS if machine.name == "NVIDIA H100 SXM")

# ---- case 16: chunks change when, never what


PROMPTS = [list(range(65, 65 + n)) for n in (1, 15, 16, 17, 50, 33)]


def finish(engine, requests):
    while engine.busy:
        engine.step()
        check_engine(engine)
    return [request.output for request in requests]


def with_scheduler(model, tokenizer, chunk, budget=256, sample=None):
    pool = BlockPool(160)
    return Engine(model, tokenizer, pool, Scheduler(pool, 8, budget, chunk), sample)


@cache
def served_by_the_mock(chunk, budget):
    """The tokens of greedy and of seeded requests."""
    engine = with_scheduler(MockLlama(room=128), ByteTokenizer(), chunk, budget)
    requests = [engine.submit(prompt, SamplingParams(
        max_tokens=9, ignore_eos=True, temperature=i % 2, seed=i))[0]
        for i, prompt in enumerate(PROMPTS)]
    return finish(engine, requests)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 15, 16, 17, 49, 50, 51])
@pytest.mark.parametrize("budget", [8, 24, 256])
def test_any_chunk_gives_the_same_tokens(chunk, budget):
    """case 16, and of case 23 the chunked part."""
    assert served_by_the_mock(chunk, budget) == served_by_the_mock(None, 256)


@cache
def served_by_the_small_llama(chunk):
    """Two prompts come while a third is in its answer."""
    model = load(SMALL, dtype=torch.float32)
    first, *others = chunk_sizes.texts(chunk_sizes.small_model()[1], 90, 3)
    engine = with_scheduler(model, ByteTokenizer(), chunk)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    requests = engine.submit(first[:20], params)
    while not requests[0].output:
        engine.step()
    for prompt in others:
        requests += engine.submit(prompt, params)
    return finish(engine, requests)


@pytest.mark.parametrize("chunk", [5, 16, 33, 64])
def test_any_chunk_gives_the_same_tokens__of_the_small_llama(chunk):
    """case 16, on a real model."""
    assert served_by_the_small_llama(chunk) == served_by_the_small_llama(None)


@pytest.mark.parametrize("N, chunk", [(50, 16), (48, 16), (33, 8), (17, 1), (20, 64)])
def test_a_partial_chunk_samples_nothing(N, chunk):
    """case 16: no token, and no row for the sampler, before all of the prompt is computed."""
    sample = Watched(kernels("torch").sample)
    engine = with_scheduler(MockLlama(room=128), ByteTokenizer(), chunk, sample=sample)
    (other,) = engine.submit([1, 2, 3], SamplingParams(max_tokens=80, ignore_eos=True))
    while not other.output:
        engine.step()
    (prompt,) = engine.submit(list(range(N)), SamplingParams(max_tokens=2, ignore_eos=True))
    counts = chunks_of(N, 1, 256, chunk)
    for number in range(len(counts)):
        written = len(other.output)
        outputs = engine.step()
        assert engine.counts[prompt] == counts[number]
        assert len(other.output) == written + 1, "each decode gets its token in every step"
        last = number == len(counts) - 1
        assert len(prompt.output) == last
        assert [o.request for o in outputs] == [other, prompt] if last else [other]
        assert len(sample.calls[-1][0]) == 1 + last, "rows that were sampled"
        check_engine(engine)


def test_two_chunks_coexist():
    """case 16: two prompts share a step, each with a part of it, and a third waits its turn."""
    engine = with_scheduler(MockLlama(room=128), ByteTokenizer(), chunk=8, budget=20)
    a, b, c = (engine.submit([n] * n, SamplingParams(max_tokens=1))[0] for n in (20, 30, 9))
    steps = []
    while engine.busy:
        engine.step()
        check_engine(engine)
        steps.append([engine.counts.get(request, 0) for request in (a, b, c)])
    assert steps == [[8, 8, 4], [8, 8, 4], [4, 8, 1], [0, 6, 0]]
    assert all(len(request.output) == 1 for request in (a, b, c))


# ---- what chunks cost, counted


@pytest.mark.parametrize("N, chunk", [(100, 30), (96, 16), (65, 64), (50, 1), (90, 90)])
def test_what_an_engine_reads_is_what_the_formulas_say(N, chunk):
    model = StepLog(MockLlama(room=128))
    engine = with_scheduler(model, ByteTokenizer(), chunk)
    engine.submit([7] * N, SamplingParams(max_tokens=1))
    finish(engine, [])
    new = [step.new for step in model.steps]
    assert new == [[n] for n in chunks_of(N, 0, 256, chunk)]
    assert sum(sum(step.contexts) for step in model.steps) == N + tokens_reread(N, chunk)
    pairs = sum(attended(T, context) for step in model.steps
                for T, context in zip(step.new, step.contexts, strict=True))
    assert pairs == attended(N, N), "chunks add no FLOPs of attention"


def test_a_step_on_paper_is_day_1s_where_it_has_one_part():
    for T, N in ((1, 2048), (8192, 8192)):
        flops = sum(count_flops(LLAMA, 3, T, N).values())
        moved = sum(map(sum, count_bytes(LLAMA, 3, T, N, 2).values()))
        want = max(flops / H100.peak, moved / H100.bandwidth)
        assert step_seconds(LLAMA, H100, [(3, T, N)]) == pytest.approx(want)


def test_parts_of_a_step_share_the_weights_alone():
    flat = Machine("memory alone", 1e30, 1e9, 0)
    apart = sum(step_seconds(LLAMA, flat, [part]) for part in ((4, 1, 100), (1, 32, 64)))
    weights = sum(w for w, _, _ in count_bytes(LLAMA, 1, 1, 1, 2).values())
    together = step_seconds(LLAMA, flat, [(4, 1, 100), (1, 32, 64)])
    assert together == pytest.approx(apart - weights / 1e9)
    assert on_paper(LLAMA, flat, [32, 32], 4, 100)[1] == pytest.approx(together)


def test_what_the_lesson_says_of_an_h100():
    """A gap of 5.8 ms; the whole prompt takes as long as 23; none of it is free beside 400."""
    decodes = (16, 1, 2048)
    usual, stall = (step_seconds(LLAMA, H100, parts)
                    for parts in ([decodes], [decodes, (1, 8192, 8192)]))
    assert (round(1e3 * usual, 1), round(stall / usual)) == (5.8, 23)
    assert largest_budget(LLAMA, H100, 400, 16, 2) is None


# ---- the record


def test_the_record_counts_what_its_schedule_does():
    record = json.loads(chunk_sizes.RECORD.read_text("utf-8"))
    assert record["long"] == chunk_sizes.LONG and record["rounds"] >= 5
    for part, decoders in (("beside", record["decoders"]), ("alone", 0)):
        assert [int(chunk) for chunk in record[part]] == list(chunk_sizes.CHUNKS)
        for chunk, row in record[part].items():
            N, prompts, answer = (record[name] for name in ("long", "prompts", "answer"))
            steps = prompts * (-(-N // int(chunk)) + answer - 1)
            assert row["steps"] == steps
            assert row["tokens"] == prompts * (N + answer - 1) + decoders * steps
            assert row["written"] == prompts * answer + decoders * steps
            assert row["reread"] == prompts * tokens_reread(N, int(chunk))
            assert len(row["gaps"]) == (steps if decoders else 0)
            assert row["seconds"] > 0 and row["first"] > 0


def test_a_sweep_gives_every_chunk_the_same_tokens():
    """case 16 again, in the runs that are measured."""
    sweep = chunk_sizes.sweep(rounds=1, chunks=(64, 448))
    assert sweep[64][0].output == sweep[448][0].output
    rows = {chunk: chunk_sizes.summary(runs) for chunk, runs in sweep.items()}
    assert all(point.p95 <= point.longest for point in chunk_sizes.points(rows).values())


def test_the_record_says_what_s05_says_of_it():
    record = json.loads(chunk_sizes.RECORD.read_text("utf-8"))
    points = chunk_sizes.points(record["beside"])
    least, kept, whole = points[8], points[128], points[448]
    assert whole.p95 / least.p95 == pytest.approx(7.5, abs=0.05)
    assert least.rate / whole.rate == pytest.approx(1 / 3, abs=0.03)
    assert kept.rate / whole.rate == pytest.approx(0.96, abs=0.005)
    assert kept.p95 / whole.p95 == pytest.approx(1 / 3, abs=0.03)


def test_seven_in_eight_steps_contain_no_prompt_and_the_median_sees_only_those():
    """No chunk size has a better median gap; a step takes ten times as long as the weights."""
    record = json.loads(chunk_sizes.RECORD.read_text("utf-8"))
    whole = record["beside"]["448"]
    assert record["prompts"] / whole["steps"] == 1 / 8
    medians = {chunk: median(row["gaps"]) for chunk, row in record["beside"].items()}
    assert min(medians, key=medians.get) == "448"
    weights = sum(w.nbytes for w in load(SMALL, dtype=torch.float32).weights.values())
    seconds = weights / read_trace().about["machine"]["bandwidth"]
    assert round(1e3 * seconds, 1) == 0.3
    assert medians["8"] / seconds == pytest.approx(10, rel=0.1)
    assert medians["8"] / medians["16"] > 0.9


def test_a_prompt_of_12_beside_three_is_cut_into_5_5_and_2():
    assert chunks_of(12, 3, 8) == [5, 5, 2]
