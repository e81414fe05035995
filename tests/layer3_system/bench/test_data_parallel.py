"""Stages of ZeRO beside each other, the formula, PyTorch's FSDP; gradients of few bits."""

import pytest
import torch
import torch.distributed as dist

from day01_roofline import LLAMAS, count_parameters
from day02_overview import sent_by, state_bytes
from lab import course
from lab.judge.candidate import reference
from lab.judge.isolate import running
from lab.judge.plugin import NotProvenHere
from lab.judge.subject import Raised
from layer3_system.bench import data_parallel
from layer3_system.bench.data_parallel import rounded
from layer3_system.s21_data_parallel import Adam, adam_, fill_buckets
from layer3_system.testing import training_driver

DRIVER = "layer3_system.testing.training_driver"
BENCH = "layer3_system.bench.data_parallel"
LENS = [5, 9, 2, 7, 3, 6]
P = 90_496
LAYER = 36_992                  # numbers of one layer; what is around the layers has the rest


@pytest.fixture(scope="module")
def ranks():
    lesson = course.find("s21_data_parallel")
    with running(lesson, reference(lesson).sources) as subject:
        yield subject.ranks


def test_a_stage_keeps_what_the_formula_says_and_its_padding(ranks):
    for stage, row in ranks(f"{DRIVER}:compare_stages", [(LENS,)] * 3).results[1].items():
        extra = sum(row["parts"].values()) - state_bytes(P, 3, stage)
        assert 0 <= extra <= 16 * 20                # parameters whose last shard is padded
        assert stage < 3 or 0 <= row["peak"] - 2 * (P - LAYER) <= 2 * 2 * 3


def test_stages_learn_alike_as_fsdp_does(ranks):
    runs = {stage: ranks(f"{DRIVER}:train_llama", [(stage, LENS)] * 3) for stage in range(4)}
    losses = {stage: run.results[2]["losses"] for stage, run in runs.items()}
    losses["alone"] = ranks(f"{DRIVER}:train_llama", [(0, LENS)]).results[0]["losses"]
    losses["fsdp2"] = ranks(f"{BENCH}:fsdp2", [(LENS,)] * 3).results[2]
    for name, own in losses.items():
        assert own == pytest.approx(losses[0], rel=1e-5), name
    sent = {stage: run.during("step").sent(0) / 3 for stage, run in runs.items()}
    plain = sent_by("all_reduce", 4 * P, 3)
    for stage in (0, 1, 2):
        assert sent[stage] == pytest.approx(plain, rel=1e-3)
    assert 1.4 < sent[3] / plain < 1.5              # the embedding is gathered once


def test_a_step_without_a_token_is_refused_on_every_rank(ranks):
    weights = [torch.eye(3)]
    empty = torch.zeros(0, 3), torch.zeros(0, 3)
    with pytest.raises(Raised, match="no tokens in this step on any of 2 ranks"):
        ranks(f"{DRIVER}:train_net", [(0, weights, [empty])] * 2)


def test_what_does_not_fit_is_refused(ranks):
    with pytest.raises(Raised, match="2 ranks need a multiple of 2 numbers, found 7: pad with"):
        ranks("zero_step", [(torch.zeros(7), torch.zeros(7), None, 0.1, 1.0)] * 2)
    with pytest.raises(ValueError, match="expected a capacity of at least 1, found 0"):
        fill_buckets([3], 0)
    with pytest.raises(ValueError, match="4 weights, 8 gradients and a state of 4"):
        adam_(torch.zeros(4), torch.zeros(8), Adam(torch.zeros(4)), 0.1)


def test_three_values_need_error_feedback_and_int8_does_not(ranks):
    loss = ranks(f"{BENCH}:few_bits", [()] * 3).results[0]
    assert loss["int8"] == pytest.approx(loss["fp32"], rel=0.01)
    assert loss["three values, error feedback"] == pytest.approx(loss["fp32"], rel=0.01)
    assert loss["three values"] > 1.2 * loss["fp32"]


def test_rounded():
    x = torch.tensor([-2.0, -0.9, 0.0, 1.1, 2.0])
    assert rounded(x, 1).tolist() == [-2, 0, 0, 2, 2]
    assert torch.allclose(rounded(x, 127), x, atol=1 / 127)
    assert rounded(torch.zeros(3), 127).tolist() == [0, 0, 0]


# ---- what s21 says of large models and of few bits


def test_which_stage_fits_into_80_gigabytes():
    """8 billion parameters on 8 ranks from stage 1 on, 70 billion on 64 in stage 3 alone."""
    for name, n, least in (("Llama-3.1-8B", 8, 1), ("Llama-3.1-70B", 64, 3)):
        parameters = sum(count_parameters(LLAMAS[name]).values())
        fits = [state_bytes(parameters, n, stage) < 80e9 for stage in range(4)]
        assert fits == [stage >= least for stage in range(4)]


def test_int8_has_255_values_and_three_are_three():
    x = torch.linspace(-1, 1, 10_001)
    assert [len(rounded(x, levels).unique()) for levels in (127, 1)] == [255, 3]
    assert (data_parallel.WEIGHTS, data_parallel.STEPS) == (40, 120)
    assert training_driver.TURNS == 15


def test_pytorch_2_13_deprecates_what_s21_says():
    if torch.__version__ < "2.13":
        raise NotProvenHere(f"not proven here: needs PyTorch 2.13, this is {torch.__version__}")
    for old, new in ((dist.reduce_scatter_tensor, dist.reduce_scatter_single),
                     (dist.all_gather_into_tensor, dist.all_gather_single)):
        assert f"use `torch.distributed.{new.__name__}` instead" in old.__deprecated__
