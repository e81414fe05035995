"""The plans that are measured for s26: they train one model, and what is predicted for them."""

import json
from dataclasses import astuple, replace

import pytest
import torch
import torch.distributed as dist

from day01_roofline import LlamaShape
from lab import course
from lab.judge.failures import Raised
from lab.judge.isolate import running
from layer3_system.bench import s26_planner as bench
from layer3_system.plan_costs import step_flops
from layer3_system.planner import Architecture, Cluster, TrainingPlan, plan_faults
from layer3_system.s26_planner import rank_bytes
from layer3_system.testing.plan_ranks import PlanLlama, draw_batch

SHAPE = LlamaShape("toy", L=4, C=32, H=4, G=4, D=8, F=48, V=64, tied=False)
BATCH = 8
T = 16
PLANS = [*(TrainingPlan(4, zero=zero, B=2) for zero in range(4)), TrainingPlan(1, tp=4, B=8),
         TrainingPlan(1, tp=4, B=2), TrainingPlan(1, pp=4, B=1), TrainingPlan(1, pp=4, B=4),
         TrainingPlan(1, cp=4, B=8, zero=0), TrainingPlan(1, cp=4, B=8, zero=1)]


@pytest.fixture(scope="module")
def ranks():
    lesson = course.find("s26_planner")
    with running(lesson, lesson.sources) as subject:
        yield subject.ranks


def losses(ranks, plan):
    """Of three steps, by rank."""
    return ranks("layer3_system.testing.plan_ranks:losses",
                 [(astuple(SHAPE), astuple(plan), BATCH, T, 3)] * 4).results


def alone():
    """The loss of the first step and a step of the weights, in one process, in float64."""
    model = PlanLlama(SHAPE).double()
    return (model(draw_batch(SHAPE, BATCH, T)) / (BATCH * T)).item()


def test_all_plans_train_one_model(ranks):
    """Also after two steps of Adam, in fp32."""
    want = losses(ranks, PLANS[0])[0]
    assert want[0] == pytest.approx(alone(), rel=1e-6)
    assert want[2] < want[0]
    for plan in PLANS:
        for own in losses(ranks, plan):
            assert torch.tensor(own) == pytest.approx(torch.tensor(want), rel=1e-5), plan


def test_a_plan_of_two_kinds_is_refused(ranks):
    with pytest.raises(Raised, match="expected one kind of parallelism on all 4 ranks"):
        losses(ranks, TrainingPlan(2, tp=2))


# ---- what is predicted for them


def test_places_of_equal_values_are_shared():
    assert bench.spearman([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert bench.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert bench.spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.75 ** 0.5)


def test_numbers_of_four_bytes_are_predicted():
    """Without rounds, by hand: bytes over rate of what the plan sends."""
    cluster = Cluster(4, peak=1e9, efficiency=1.0, inside=1e6, across=1e6, node=4, alpha=0)
    m = bench.SHAPE
    parameters = m.L * (4 * m.C ** 2 + 3 * m.C * m.F + 2 * m.C) + m.C + 2 * m.V * m.C
    for zero, times in enumerate((2, 2, 2, 3)):
        seconds = bench.predicted(cluster, TrainingPlan(4, zero=zero, B=2))
        assert seconds["dp"] == pytest.approx(times * 3 / 4 * 4 * parameters / 1e6)
    seconds = bench.predicted(cluster, TrainingPlan(1, tp=4, B=8, zero=0))
    assert seconds["tp"] == pytest.approx(m.L * 4 * 2 * 3 / 4 * 4 * 8 * bench.T * m.C / 1e6)


def test_a_layer_of_each_kind_is_timed_without_messages(monkeypatch):
    monkeypatch.setattr(bench, "SHAPE", SHAPE)
    monkeypatch.setattr(bench, "T", T)
    rates = bench.layer_rates(1)
    assert set(rates) == {bench.kind_of(plan) for plan in bench.PLANS.values()}
    assert min(rates.values()) > 0
    assert not dist.is_initialized()


def test_the_record_is_of_these_plans():
    """Its correlations are those of its rows."""
    record = json.loads(bench.RECORD.read_text("utf-8"))
    rows = record["rows"]
    assert {row["plan"] for row in rows} == set(bench.PLANS)
    assert record["shape"] == list(astuple(bench.SHAPE)) and record["T"] == bench.T
    for row in rows:
        plan = bench.PLANS[row["plan"]]
        rate = record["FLOP/s of a rank"] * record["efficiency"][bench.kind_of(plan)]
        flops = step_flops(Architecture(bench.SHAPE), bench.BATCH, bench.T, plan.recompute)
        assert row["parts"]["compute"] == pytest.approx(flops / bench.W / rate)
        ways = bench.in_every_way(row["parts"], plan.zero)
        assert {way: row[way] for way in bench.WAYS} == pytest.approx(ways)
    assert len(record["spearman"]) == 2 * len(bench.WAYS)
    for names, value in record["spearman"].items():
        one, other = ([row[name] for row in rows] for name in names.split(", "))
        assert bench.spearman(one, other) == pytest.approx(value, abs=5e-4)


def test_one_rate_of_arithmetic_for_all_plans_ranks_them_worse():
    """s26 says by how much."""
    record = json.loads(bench.RECORD.read_text("utf-8"))
    rate = record["bytes a second"]
    cluster = Cluster(bench.W, peak=record["FLOP/s of a rank"], efficiency=1.0, node=bench.W,
                      inside=rate, across=rate, alpha=record["alpha"], shard=1)
    medians = [row["median"] for row in record["rows"]]
    plans = [bench.PLANS[row["plan"]] for row in record["rows"]]
    ways = [bench.in_every_way(bench.predicted(cluster, plan), plan.zero) for plan in plans]
    got = [bench.spearman([way[name] for way in ways], medians) for name in bench.WAYS]
    assert got == pytest.approx([0.73, 0.75, 0.79], abs=0.005)
    assert all(value < record["spearman"][f"{name}, median"]
               for name, value in zip(bench.WAYS, got, strict=True))


def test_published_plans_are_what_they_say():
    """A GPT of those sizes has that many parameters, its ranks that rate together, and a model on
    half as many ranks would not fit from 18 billion on, which s26 says."""
    published = json.loads(bench.MEGATRON.read_text("utf-8"))
    petaflops = 4.4, 8.8, 18.2, 34.6, 70.8, 143.8, 227.1, 297.4, 410.2, 502.0    # the table's
    for (size, H, C, L, tp, pp, W, batch, rate), together in zip(published["rows"], petaflops,
                                                                 strict=True):
        parameters = 12 * L * C**2 * (1 + 13 / (12 * C) + (51200 + 2048) / (12 * L * C))
        assert parameters / 1e9 == pytest.approx(size, abs=0.06)
        assert W * rate / 1e3 == pytest.approx(together, rel=0.005)
        gpt = Architecture(LlamaShape("GPT", L=L, C=C, H=H, G=H, D=C // H, F=C // 3 * 8, V=51200,
                                 tied=True))
        plan = TrainingPlan(W // (tp * pp), tp, pp, zero=0, recompute=True)
        assert not plan_faults(gpt, Cluster(W), plan, 2048, batch)
        assert rank_bytes(gpt, plan, 2048, batch) < 80e9
        if size > 18:
            half = replace(plan, pp=pp // 2) if pp > 1 else replace(plan, tp=tp // 2)
            assert rank_bytes(gpt, half, 2048, batch) > 80e9
