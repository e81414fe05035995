"""A sum in pieces is the sum; DTensor's split meets as often as the lesson's."""

import re
import subprocess
import sys

import pytest
import torch

from day01_roofline import LLAMAS
from day02_overview import sent_by
from lab import course
from lab.course import ROOT
from lab.judge.candidate import reference
from lab.judge.isolate import running
from layer3_system.s20_collectives import ring_seconds

BENCH = "layer3_system.bench.tensor_parallel"


@pytest.fixture(scope="module")
def ranks():
    lesson = course.find("s22_tensor_parallel")
    with running(lesson, reference(lesson).sources) as subject:
        yield subject.ranks


@pytest.mark.parametrize("pieces", [1, 5])
def test_pieces_are_summed_one_by_one(ranks, pieces):
    x = torch.randint(1, 9, (64, 6)).float()
    w = torch.randint(1, 9, (10, 6)).float()
    run = ranks(f"{BENCH}:sum_in_pieces", [
        (a.contiguous(), b.contiguous(), pieces)
        for a, b in zip(x.chunk(2, 1), w.chunk(2, 1), strict=True)])
    assert all(torch.equal(own, x @ w.T) for own in run.results)
    sizes = [sum(c.pieces) for c in run.collectives if c.rank == 1]
    assert sizes == [len(rows) * 10 for rows in torch.arange(64).tensor_split(pieces)]


@pytest.mark.slow                               # each process imports PyTorch's compiler
def test_the_program_shows_dtensor_beside_ours():
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", BENCH]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "2 ranks, 16 steps of 4 prompts: " in done.stdout
    ours, library = re.search(r"from one process: ours (\S+), DTensor (\S+);", done.stdout).groups()
    assert float(ours) < 1e-6 and float(library) < 1e-6


def test_dtensor_meets_once_forward_and_once_backward(ranks):
    run = ranks(f"{BENCH}:dtensor", [()] * 2)
    assert run.results[0]["calls"] == {"forward": 1, "backward": 1}
    assert run.results[0]["difference"] < 1e-6
    calls = [(c.label, c.name, sum(c.pieces)) for c in run.collectives if c.rank == 0 and c.label]
    assert calls == [("forward", "all_reduce", 5 * 192), ("backward", "all_reduce", 5 * 192)]


def test_a_one_shot_sum_on_8_ranks_sends_four_times_the_rings_bytes():
    """The ring waits for 14 rounds, which last longer than it takes to read the weights."""
    m = LLAMAS["Llama-3.1-8B"]
    size = 2 * m.C
    assert 7 * size / sent_by("all_reduce", size, 8) == pytest.approx(4)
    seconds = ring_seconds(8, size, 3e-6, 1 / 450e9)
    assert ring_seconds(8, 0, 3e-6, 1 / 450e9) / 3e-6 == pytest.approx(14)
    assert (2 * m.L + 1) * seconds > 16e9 / 8 / 3.35e12
    assert m.V == 128_256
