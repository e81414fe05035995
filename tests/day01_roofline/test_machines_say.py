"""What r01 and r02 say in words of the machines that their cells print."""

import numpy as np
import pytest

from day01_roofline import ACCELERATORS, Cpu, ridge
from day01_roofline.r02_clock import KNOWN
from lab.judge.mocks import FakeGpu

PCIE = {"NVIDIA T4", "NVIDIA L4"}


def test_r01_ridges_lie_between_200_and_400():
    ridges = [ridge(machine) for machine in ACCELERATORS]
    assert (round(min(ridges), -2), round(max(ridges), -2)) == (200, 400)


def test_r01_links_of_gpus_are_3_to_6_times_slower_than_memory():
    slower = {m.name: m.bandwidth / m.link for m in ACCELERATORS}
    made_for_gpus = [times for name, times in slower.items() if name not in PCIE]
    assert (round(min(made_for_gpus)), round(max(made_for_gpus))) == (3, 6)
    assert slower["NVIDIA T4"] == 10


def test_r01_an_addition_keeps_a_thousandth_of_an_a100_busy():
    """Also beside the other units' 78 TFLOP/s in fp16."""
    peak, bandwidth = 312e12, 1.5e12
    addition = bandwidth / (3 * 2)                      # FLOP/s
    assert addition == 0.25e12 and addition / peak < 0.001
    assert round(78e12 / addition, -2) == 300
    doublings = bandwidth * 1e-6 / (2 * 2)              # in a microsecond
    assert doublings == 0.375e6 and round(doublings / (peak * 1e-6), 3) == 0.001


def test_r02_the_simulated_gpu_has_the_costs_that_the_text_names():
    gpu = FakeGpu()
    assert (gpu.bandwidth, gpu.cached / gpu.bandwidth) == (0.3e12, 4)
    assert (gpu.launch, gpu.first) == pytest.approx((5e-6, 20e-3))
    busy = 24e6 / gpu.bandwidth
    assert (gpu.launch, gpu.launch + busy) == pytest.approx((5e-6, 85e-6))


def test_r02_measure_knows_medians_to_2_percent_and_arrays_are_four_caches_large():
    assert KNOWN == 0.02
    device = Cpu()
    assert device.large == 4 * device.cache


def test_r02_one_core_of_132_for_nine_tenths_of_the_time():
    assert np.round(0.9 / 132, 3) == 0.007
