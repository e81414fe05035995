"""Pipelines: schedules in unit times, and a Llama's training step on ranks beside one process."""

import json
import re
import subprocess
import sys
from itertools import combinations

import pytest
import torch

from day01_roofline import LLAMAS
from lab import course
from lab.course import ROOT
from lab.judge.isolate import running
from lab.judge.subject import Raised
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
from layer3_system.testing.pipeline_llama import MODEL, train_alone

LLAMA = "layer3_system.testing.pipeline_llama"
FB = {"F": 1, "B": 2}
FBW = {"F": 1, "B": 1, "W": 1}


@pytest.fixture(scope="module")
def ranks():
    lesson = course.find("s23_pipeline_parallel")
    with running(lesson, lesson.sources) as subject:
        yield subject.ranks


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


SIZES = [3, 5, 4, 2, 6, 3, 1, 4]


def same_step(steps, loss, gradients):
    """Whether the stages' parts together are the training step of one process."""
    rows = [gradient for step in steps for gradient in step["gradients"]]
    return steps[-1]["loss"] == pytest.approx(loss, rel=1e-5) and all(
        (got - want).abs().max() <= 1e-5 * want.abs().max()
        for got, want in zip(rows, gradients, strict=True))


@pytest.mark.parametrize("schedule, p, sizes", [
    (gpipe, 4, SIZES), (one_forward_one_backward, 4, SIZES), (one_forward_one_backward, 4, [1, 6]),
    (one_forward_one_backward, 3, [2, 5, 1, 3]), (gpipe, 1, [4, 2])])
def test_a_llama_in_stages_trains_as_in_one_process(ranks, schedule, p, sizes):
    m = len(sizes)
    run = ranks(f"{LLAMA}:train_llama", [(schedule(i, p, m), sizes) for i in range(p)])
    assert same_step(run.results, *train_alone(sizes))
    assert [step["peak"] for step in run.results] == [peak_kept(schedule(i, p, m))
                                                      for i in range(p)]
    assert len(run.messages) == 2 * m * (p - 1)
    assert [run.sent(i) for i in range(p)] == [
        4 * sum(sizes) * MODEL.C * ((i > 0) + (i < p - 1)) for i in range(p)]


@pytest.mark.slow                               # PyTorch's pipelining imports its compiler
def test_pytorchs_schedules_make_the_same_step_and_send_shapes(ranks):
    schedules = {"GPipe": gpipe, "1F1B": one_forward_one_backward}
    run = ranks(f"{LLAMA}:beside_library", [
        ({name: schedule(i, 4, 8) for name, schedule in schedules.items()}, [5] * 8)
        for i in range(4)])
    alone = train_alone([5] * 8)
    for name in schedules:
        for one in (name, f"{name} of PyTorch"):
            assert same_step([steps[one] for steps in run.results], *alone), one
        ours, library = run.during(name), run.during(f"{name} of PyTorch")
        assert len(library.messages) - len(ours.messages) == 3 * 2 * 3     # 3 boundaries, 2 ways
        extra = library.matrix() - ours.matrix()
        assert ((extra > 0) == (ours.matrix() > 0)).all()
        assert {*extra.ravel().tolist()} <= {0, 173, 174}                  # as s23 says
    with pytest.raises(Raised, match="must be greater than or equal to the number of stages"):
        ranks(f"{LLAMA}:train_library", [("1F1B", [5, 5])] * 4)


@pytest.mark.slow                               # each of four processes imports all of it
def test_the_program_for_torchrun():
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "-m",
             bench.__name__, "0.002"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\S.*?) +loss (\S+)$", done.stdout, re.M)
    assert [name for name, _ in rows] == ["one process", "GPipe", "GPipe of PyTorch", "1F1B",
                                          "1F1B of PyTorch"]
    losses = [float(loss) for _, loss in rows]
    assert losses == pytest.approx([train_alone([bench.LENGTH] * bench.M)[0]] * 5, rel=1e-5)
    assert re.findall(r"^(.*), forward 0.002 s: 0", done.stdout, re.M) == list(bench.WAYS)


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
    assert [row["messages"] for row in rows.values()] == [48, 48, 112, 48]
    assert all(0 < row["idle"] < 1 and 0 < row["message_s"] <= row["longest_s"]
               for row in rows.values())


def test_how_long_a_message_takes_is_read_from_the_times():
    for name, (schedule, cost, _) in bench.WAYS.items():
        delays = bench.handovers(played(schedule, 4, 8, cost, 0.25), 4)
        assert delays == [pytest.approx(0.25)] * len(delays) and delays, name


def test_the_record_shows_what_the_lesson_says_of_it():
    for row in json.loads(bench.RECORD.read_text())["rows"]:
        lead = {}
        for name, one in row["schedules"].items():
            schedule, cost, _ = bench.WAYS[name]
            paper, latency = (bubble(played(schedule, 4, 8, cost, message), 4)
                              for message in (0, one["message_s"] / row["forward_s"]))
            assert one["idle"] > latency > paper
            assert one["longest_s"] > 3 * one["message_s"]
            assert one["messages"] == (112 if name == "interleaved, v = 2" else 48)
            lead[name] = paper, one["idle"]
        ours, other = lead["1F1B"], lead["interleaved, v = 2"]
        assert 0 < ours[1] - other[1] < ours[0] - other[0]


def test_pictures():
    """A box for each action, its number in it; a line for each stage."""
    runs = {"GPipe": played(gpipe, 4, 3, FB), "ZB-H1": played(zero_bubble, 4, 3, FBW)}
    figure = pictures.pipeline_lanes(runs, 4)
    assert [len(axes.patches) for axes in figure.axes] == [24, 36]
    assert figure.axes[0].get_title("left") == "GPipe: 18 ticks, 50.0% idle"
    assert [t.get_text() for t in figure.axes[0].texts] == [str(j) for _, _, j in runs["GPipe"]]
    lines = pictures.kept_lines({"GPipe": runs["GPipe"]}, 4).axes[0].lines
    assert [max(line.get_ydata()) for line in lines] == [3, 3, 3, 3]


# ---- what s23 says of whole batches, of ZB-H1 and of a large model


def test_one_batch_through_four_stages_leaves_three_quarters_idle():
    assert bubble(played(gpipe, 4, 1, FB), 4) == pytest.approx(3 / 4)


def test_zb_h1_keeps_on_every_stage_what_1f1b_keeps_on_its_first():
    for p, m in ((4, 4), (4, 8), (8, 32)):
        first = peak_kept(one_forward_one_backward(0, p, m))
        assert [peak_kept(zero_bubble(i, p, m)) for i in range(p)] == [first] * p


def test_llama_3_8b_has_layers_of_218_million_weights_and_a_head_of_525():
    m = LLAMAS["Llama-3.1-8B"]
    layer = 2 * m.C * m.H * m.D + 2 * m.C * m.G * m.D + 3 * m.C * m.F
    assert (m.L, round(layer / 1e6), round(m.V * m.C / 1e6)) == (32, 218, 525)
