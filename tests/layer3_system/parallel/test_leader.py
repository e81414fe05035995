"""An engine on several ranks answers as one alone, page for page and fork for fork."""

from dataclasses import replace

import pytest
import torch

from lab import course
from lab.judge.candidate import reference
from lab.judge.isolate import running
from layer2_graph import Batch, ModelError
from layer3_system.parallel.leader import Leader, apart, batch_sizes, glued
from layer3_system.s22_tensor_parallel import check_ranks, local_config
from layer3_system.testing.tensor_driver import random_model, small_model

DRIVER = "layer3_system.testing.tensor_driver"
PROMPTS = [list(range(5, 25)), [9], [1000, 3, 4, 1500, 2, 8], [44, 2047]]


@pytest.fixture(scope="module")
def ranks():
    lesson = course.find("s22_tensor_parallel")
    with running(lesson, reference(lesson).sources) as subject:
        yield subject.ranks


def serve(ranks, model, jobs, n, **settings):
    """(what rank 0 answers, the run) of an engine on n ranks."""
    run = ranks(f"{DRIVER}:serve", [(model, jobs)] * n, **settings)
    assert run.results[1:] == [None] * (n - 1)
    return run.results[0], run


@pytest.mark.parametrize("model, n, g", [("small", 2, 1), ("random", 4, 1), ("random", 2, 1)])
def test_an_engine_on_ranks_answers_as_one_alone(ranks, model, n, g):
    """Two answers to one prompt share a page, which one of them must copy on every rank."""
    jobs = [(PROMPTS[0], 2, 8), (PROMPTS[1], 1, 12), (PROMPTS[2], 3, 5)]
    alone, _ = serve(ranks, model, jobs, 1)
    own, _ = serve(ranks, model, jobs, n)
    assert own["tokens"] == alone["tokens"] and own["steps"] == alone["steps"]
    assert own["pages"][3] == g and own["read"][3] == alone["pages"][3]
    assert own["same"] == [True, True]


def test_an_engine_sends_what_the_lesson_says(ranks):
    """2 L + 1 all-reduces of T·C numbers a step, and the scores."""
    m, _ = small_model()
    _, run = serve(ranks, "small", [(PROMPTS[0], 1, 2)], 2)
    for step, T in enumerate((len(PROMPTS[0]), 1)):
        calls = [(c.name, sum(c.pieces)) for c in run.during(f"step {step}").collectives
                 if c.rank == 0]
        assert calls.count(("all_reduce", T * m.C)) == 2 * m.L + 1
        assert [name for name, _ in calls].count("all_gather") == 1
        assert [name for name, _ in calls].count("broadcast") == 2
        assert len(calls) == 2 * m.L + 4


def test_a_batch_travels_as_one_row():
    batch = Batch(*(torch.tensor(a) for a in ([7, 8, 9], [0, 1, 5], [16, 17, 37])), *(
        torch.tensor(a, dtype=torch.int32) for a in ([[1, 0], [0, 2]], [0, 2, 3], [2, 6])))
    flat = glued(batch)
    assert len(flat) == sum(batch_sizes(3, 2, 2))
    for array, other in zip(batch, apart(flat, 3, 2, 2), strict=True):
        assert torch.equal(array, other) and array.dtype == other.dtype


def test_a_model_is_shared_by_as_many_ranks_as_divide_it():
    m, _ = small_model()
    for n in (0, 3, 4, 6, -1):
        with pytest.raises(ModelError) as refusal:
            check_ranks(m, n, "small")
        assert str(refusal.value) == (
            "small (6 query heads, 2 kv heads, mlp 512, vocabulary 2048) can be shared by 1 or 2 "
            f"ranks, not by {n}")
    with pytest.raises(ModelError, match="small has 8 experts in a layer, expected one MLP"):
        check_ranks(replace(m, E=8, k=2), 2, "small")
    with pytest.raises(ModelError, match="small keeps a state in 2 of its 4 layers, expected keys"):
        check_ranks(replace(m, linear=(0, 2)), 2, "small")
    wide, _ = random_model()
    assert [local_config(wide, n).G for n in (1, 2, 4)] == [2, 1, 1]


def test_a_leader_that_has_failed_asks_nothing_more():
    """Its model raises before anything is sent; from then on every call says why."""
    class Fails:
        config = embedding = ops = None

    faults = []

    def fault(text):
        faults.append(text)
        return "rank 1 ended (signal 9)"

    leader = Leader(Fails(), 2, fault)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^rank 1 ended \(signal 9\)$"), leader.together():
            raise ValueError("Connection closed by peer")
    assert faults == ["rank 0: ValueError: Connection closed by peer"]
