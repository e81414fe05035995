"""The wires of s20's measurement: which rank waits how long."""

import time

import pytest
import torch
import torch.distributed as dist

from lab import course
from lab.judge.candidate import reference
from lab.judge.isolate import running
from layer3_system.bench.s20_collectives import Wire, all_reduce_tree, measured_crossing
from layer3_system.s20_collectives import all_reduce, ring_seconds, tree_seconds

ALPHA, BETA = 3.0, 0.5          # seconds, seconds a byte: never slept


@pytest.fixture
def slept(monkeypatch):
    """The seconds of each sleep of rank 0 among 4 ranks that are not there."""
    seconds = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    dist.init_process_group("fake", rank=0, world_size=4)
    yield seconds
    dist.destroy_process_group()


def test_a_message_waits_for_its_wire(slept):
    x = torch.ones(10)
    with Wire(ALPHA, BETA):
        dist.send(x, 1)
        dist.recv(x, 1)
        dist.isend(x, 1).wait()
    assert slept == [ALPHA + 40 * BETA] * 2
    dist.send(x, 1)
    assert len(slept) == 2, "outside a Wire nothing waits"


def test_a_ring_waits_as_its_formula_says(slept):
    with Wire(ALPHA, BETA):
        all_reduce(torch.ones(400))
    assert sum(slept) == ring_seconds(4, 1600, ALPHA, BETA)


def test_a_trees_root_waits_for_half_of_the_rounds(slept):
    """Sums go up to the root, which receives; then it sends."""
    with Wire(ALPHA, BETA):
        all_reduce_tree(torch.ones(400))
    assert sum(slept) == tree_seconds(4, 1600, ALPHA, BETA) / 2


def test_where_measured_times_cross():
    seconds = {"ring": [3.0, 4.0, 6.0], "tree": [1.0, 3.0, 9.0]}
    assert measured_crossing([100, 200, 600], seconds) == 300
    with pytest.raises(ValueError, match="do not cross between 100 and 200 bytes"):
        measured_crossing([100, 200], {"ring": [3.0, 4.0], "tree": [1.0, 3.0]})


# ---- what s20 says of its sizes and pictures


def test_a_megabyte_on_64_ranks_takes_1_3_ms_in_a_ring_and_0_36_in_a_tree():
    wire = 10e-6, 1 / 50e9
    assert 1e3 * ring_seconds(64, 1e6, *wire) == pytest.approx(1.3, abs=0.005)
    assert 1e3 * tree_seconds(64, 1e6, *wire) == pytest.approx(0.36)
    assert 1e3 * ring_seconds(256, 0, *wire) == pytest.approx(5.1)


def test_which_wires_are_used():
    """On four ranks: one a rank by the ring, three by the tree, whose root sends twice, all of
    them by the all-to-all."""
    lesson = course.find("s20_collectives")
    with running(lesson, reference(lesson).sources) as subject:
        x = torch.ones(16)
        ring = subject.ranks("all_reduce", [(x,)] * 4).matrix()
        tree = subject.ranks("broadcast_tree", [(x, 0)] * 4).matrix()
        each = subject.ranks("all_to_all", [([x] * 4, [x] * 4)] * 4).matrix()
    assert (ring > 0).sum(0).tolist() == (ring > 0).sum(1).tolist() == [1] * 4
    assert (tree > 0).sum() == 3 and (tree[0] > 0).sum() == 2
    assert (each > 0).sum() == 12 and {*each[each > 0].tolist()} == {x.nbytes} == {64}
