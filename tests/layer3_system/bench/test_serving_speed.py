"""The benchmark of serving, on a model so small that only its counts mean anything."""

import json
import resource
from statistics import median

import pytest
import torch

from layer2_graph import Config
from layer2_graph.checkpoint import shapes
from layer3_system.bench import serving_card, serving_speed
from layer3_system.bench.serving_speed import ARMS, TARGETS, jobs, judge, measure_all

GIB = 2**30


def tiny():
    m = Config(L=2, C=32, H=4, G=2, D=8, F=64, V=97, eps=1e-5, theta=1e4, room=512, tied=True)
    torch.manual_seed(0)
    return m, {name: torch.randn(shape) * shape[-1] ** -0.5 if len(shape) > 1 else torch.ones(shape)
               for name, shape in shapes(m)}


@pytest.fixture
def small_machine(monkeypatch):
    """Hugging Face is told of GIB of memory, and takes a small part of it."""
    monkeypatch.setattr("transformers.generation.continuous_batching.cache."
                        "get_device_and_memory_breakdown",
                        lambda: (torch.device("cpu"), GIB, 0, 0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss     # KiB, at the peak
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GIB // 4 // 2**10


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize("load", ["3", "mixed"])
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_writes_what_was_asked_for(arm, load):
    """The lengths that were asked for, and the same texts as ours, or different within rounding."""
    m, weights = tiny()
    asked = [(prompt[:40], min(count, 9)) for prompt, count in jobs(load, m.V)][:10]
    rate, own, texts = ARMS[arm](m, weights, asked)
    _, _, ours = ARMS["no cache"](m, weights, asked)
    assert rate > 0 and (own is None) == arm.startswith("generate")
    assert [len(text) for text in texts] == [count for _, count in asked]
    assert sum(a == b for a, b in zip(texts, ours, strict=True)) >= len(asked) - 1


def test_the_mixed_load_is_mixed():
    asked = jobs("mixed", 97)
    counts = [count for _, count in asked]
    assert len(asked) == 32 and max(counts) > 4 * sorted(counts)[16]
    assert {len(prompt) for prompt, _ in jobs("8", 97)} == {32}


def test_a_target_is_judged_by_ratios_of_the_same_round():
    def at(*rates):
        return [{"rate": rate} for rate in rates]

    rounds = {"ours 8": at(10, 20, 30), "ours 1": at(2, 4, 5)}
    row = judge(("eight", "small", ("ours 8", "ours 1"), 5), rounds)
    assert (row["figure"], row["lowest"], row["highest"], row["met"]) == (5, 5, 6, True)
    assert judge(("rate", "small", ("ours 8", None), 21), rounds)["met"] is False


def test_the_record(monkeypatch):
    """Every run by turns, every target judged; no number that was not measured."""
    seen = []

    def in_process(run, model):
        seen.append((run, model))
        return {"rate": 10.0 + len(seen), "own": 0.05, "tokens": [[1], [2]]}
    monkeypatch.setattr(serving_speed, "in_process", in_process)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")      # else NumPy asks the processor
    record = measure_all(2)
    assert len(seen) == 2 * sum(map(len, serving_speed.RUNS.values()))
    assert len(record["targets"]) == len(TARGETS) + 1
    assert all(run["same_texts"] == 2 for runs in record["models"].values()
               for run in runs.values())
    json.dumps(record, allow_nan=False)
    record["date"] = "2026-01-02"
    lines = serving_card.table(record).splitlines()
    assert sum("met |" in line or "missed** |" in line for line in lines) == len(record["targets"])
    rate = median(record["models"]["135M"]["ours 32"]["rate"])
    assert f"| 135M | ours 32 | {rate:.0f} | 2 of 32 |" in lines and "2026-01-02" in lines[-1]
    assert "OPENBLAS_CORETYPE=Haswell." in lines[-1]
    assert "| the engine's own share of a step, 32 at once | 135M | ≤ 0.1 | 0.05 (0.05 to 0.05) " \
           "| met |" in lines
