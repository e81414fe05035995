"""Pipelines: schedules in unit times, and a training step on ranks beside one process."""

from itertools import combinations

import pytest
import torch

from lab import course
from lab.judge.isolate import running
from layer3_system import (
    Deadlock,
    Stage,
    bubble,
    gpipe,
    interleaved,
    needs,
    one_forward_one_backward,
    peak_kept,
    pictures,
    play,
    run_schedule,
    split_layers,
    zero_bubble,
)
from layer3_system.bench import s23_pipeline_parallel as bench

LESSON = course.find("s23_pipeline_parallel")
FB = {"F": 1, "B": 2}
FBW = {"F": 1, "B": 1, "W": 1}


def played(schedule, p, m, cost, message=0.0):
    return play([schedule(i, p, m) for i in range(p)], needs, cost, message)


@pytest.mark.parametrize("p, m", [(2, 2), (4, 4), (4, 8), (8, 32)])
def test_the_bubble_is_what_the_formulas_say(p, m):
    for schedule in (gpipe, one_forward_one_backward):
        assert bubble(played(schedule, p, m, FB), p) == pytest.approx((p - 1) / (m + p - 1))
    for v in (1, 2, 4):
        times = played(lambda i, p, m, v=v: interleaved(i, p, m, v), p, m, FB)
        assert bubble(times, p) == pytest.approx((p - 1) / (v * m + p - 1))
        assert len(times) == 2 * p * m * v
    assert bubble(played(zero_bubble, p, m, FBW), p) == pytest.approx((p - 1) / (3 * m + p - 1))
    assert {peak_kept(zero_bubble(i, p, m)) for i in range(p)} == {min(p, m)}


def test_a_message_that_takes_time():
    """Two stages, one micro-batch: two messages on the way down and up again."""
    times = played(gpipe, 2, 1, FB, message=0.5)
    assert times == {("F", 0, 0): (0, 1), ("F", 1, 0): (1.5, 2.5), ("B", 1, 0): (2.5, 4.5),
                     ("B", 0, 0): (5, 7)}


def test_a_deadlock_says_what_waits_for_what():
    reverse = [("F", 0), ("F", 1), ("B", 1), ("B", 0)]
    both = [[("F", 0), ("B", 0), ("F", 1), ("B", 1)], reverse]
    with pytest.raises(Deadlock, match="stage 0 waits with B 0 for B 0 of stage 1; "
                                       "stage 1 waits with F 1 for F 1 of stage 0"):
        play(both, needs, FB)
    with pytest.raises(Deadlock, match="for F 0 of stage 5, which no schedule has"):
        play([[("F", 0)]], lambda *action: [("F", 5, 0)], FB)


def test_layers_are_cut_so_that_the_dearest_stage_costs_least():
    costs = [3, 1, 4, 1, 5, 9, 2, 6]
    for p in range(1, 9):
        cuts = split_layers(costs, p)
        assert [layer for cut in cuts for layer in cut] == list(range(8)) and len(cuts) == p
        best = min(max(sum(costs[b:e]) for b, e in zip((0, *ends), (*ends, 8), strict=True))
                   for ends in combinations(range(1, 8), p - 1))
        assert max(sum(costs[layer] for layer in cut) for cut in cuts) == best
    with pytest.raises(ValueError, match="4 layers cannot be cut into 6 stages"):
        split_layers([1] * 4, 6)


@pytest.mark.parametrize("schedule, text", [
    ([("F", 0), ("B", 0), ("B", 0)], "stage 1's schedule has ('B', 0) 2 times"),
    ([("F", 0), ("F", 1), ("B", 0)], "stage 1's schedule has ('F', 1) and no ('B', 1)"),
    ([("B", 0)], "stage 1's schedule has ('B', 0) and no ('F', 0)")])
def test_a_schedule_that_is_not_whole_is_refused(schedule, text):
    stage = Stage(1, 2, torch.nn.Identity(), [1, 1], 4)
    with pytest.raises(ValueError) as error:
        run_schedule(stage, schedule, {})
    assert text in str(error.value)


def test_a_stage_is_told_what_it_lacks():
    with pytest.raises(ValueError, match="one token or more, found \\[2, 0\\]"):
        Stage(0, 1, torch.nn.Identity(), [2, 0], 4)
    stage = Stage(1, 3, torch.nn.Identity(), [2], 4)
    with pytest.raises(ValueError, match="stage 1 has no batch"):
        stage.input(0)
    with pytest.raises(ValueError, match="only the last stage has them"):
        stage.loss(torch.zeros(2, 4), 0)
    with pytest.raises(ValueError, match="multiple of 4 micro-batches, found 6"):
        interleaved(0, 4, 6, 2)


@pytest.mark.parametrize("schedule, p, sizes", [
    (gpipe, 4, [3, 5, 4, 2, 6, 3, 1, 4]), (one_forward_one_backward, 4, [3, 5, 4, 2, 6, 3, 1, 4]),
    (one_forward_one_backward, 4, [1, 6]), (one_forward_one_backward, 3, [2, 5, 1, 3])])
def test_ranks_compute_what_one_process_does(schedule, p, sizes):
    torch.manual_seed(0)
    layers = [(torch.randn(32, 32) / 32**0.5, torch.randn(32)) for _ in range(8)]
    batch, targets = torch.randn(2, sum(sizes), 32)
    leaves = [t.double().requires_grad_() for pair in layers for t in pair]
    y = batch.double()
    for w, b in zip(leaves[::2], leaves[1::2], strict=True):
        y = torch.tanh(y @ w.T + b)
    loss = ((y - targets) ** 2).sum() / len(batch)
    loss.backward()
    cuts = split_layers([1] * 8, p)
    with running(LESSON, LESSON.sources) as subject:
        run = subject.ranks("layer3_system.testing.pipeline_ranks:train", [
            (schedule(i, p, len(sizes)), sizes, [layers[layer] for layer in cut],
             batch if i == 0 else None, targets if i == p - 1 else None)
            for i, cut in enumerate(cuts)])
    assert run.results[-1]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for got, leaf in zip([g for r in run.results for g in r["gradients"]], leaves, strict=True):
        assert (got - leaf.grad).abs().max() <= 1e-5 * leaf.grad.abs().max()
    for i, result in enumerate(run.results):
        neighbours = (i > 0) + (i < p - 1)
        assert result["peak"] == peak_kept(schedule(i, p, len(sizes)))
        assert result["left"] == 0 and result["begun"] == len(sizes) * neighbours
        assert run.sent(i) == 4 * sum(sizes) * 32 * neighbours


@pytest.mark.slow                               # PyTorch's pipelining imports its compiler
def test_interleaved_is_the_librarys_order():
    from torch.distributed.pipelining import schedules

    for p, m, v in ((4, 8, 2), (8, 32, 2), (4, 4, 3)):
        for i in range(p):
            ahead = min((v - 1) * p + 2 * (p - 1 - i), m * v)
            own = interleaved(i, p, m, v)

            def chunk(k, i=i, p=p, v=v):
                return i + p * (k // p % v)

            def back(k, i=i, p=p, v=v, ahead=ahead):
                return i + p * (v - 1 - (k - ahead) // p % v)

            rows = schedules._get_1f1b_rank_ops(v, p, ahead, m * v - ahead, ahead, i, chunk, back)
            kinds = {"FORWARD": "F", "FULL_BACKWARD": "B"}
            assert own == [(kinds[a.computation_type.name], a.microbatch_index, a.stage_index // p)
                           for a in rows if a is not None]


def test_schedules_on_ranks_that_sleep():
    rows = bench.measured(0.002)
    assert list(rows) == list(bench.WAYS)
    assert all(0 < row["idle"] < 1 and row["message_s"] > 0 for row in rows.values())


def test_how_long_a_message_takes_is_read_from_the_times():
    for name, (schedule, cost, _) in bench.WAYS.items():
        assert bench.handover(played(schedule, 4, 8, cost, 0.25), 4) == pytest.approx(0.25), name


def test_pictures():
    """A box for each action, its number in it; a line for each stage."""
    runs = {"GPipe": played(gpipe, 4, 3, FB), "ZB-H1": played(zero_bubble, 4, 3, FBW)}
    figure = pictures.pipeline_lanes(runs, 4)
    assert [len(axes.patches) for axes in figure.axes] == [24, 36]
    assert figure.axes[0].get_title("left") == "GPipe: 18 ticks, 50.0% idle"
    assert [t.get_text() for t in figure.axes[0].texts] == [str(j) for _, _, j in runs["GPipe"]]
    lines = pictures.kept_lines({"GPipe": runs["GPipe"]}, 4).axes[0].lines
    assert [max(line.get_ydata()) for line in lines] == [3, 3, 3, 3]
