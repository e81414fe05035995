"""The wires of s20's measurement: which rank waits how long."""

import time

import pytest
import torch
import torch.distributed as dist

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
