"""Ways to do the same work, on a machine whose every speed is known."""

import pytest

from day01_roofline import beside
from day01_roofline.r02_clock import time_call
from lab.mocks import FakeGpu

COPY, READ = 3e12, 4e12         # byte/s


class Machine(FakeGpu):
    """A FakeGpu with all that `measure` asks of a device; it reads faster than it copies."""

    ramp = 0.01

    def __init__(self, **facts):
        super().__init__(bandwidth=COPY, launch=0.0, **facts)

    def sample(self, run, repeats, cold=True):
        return time_call(run, self, repeats, 0, cold)

    def read(self, source):
        self.enqueue(source.nbytes / READ)

    def work(self, seconds):
        """A function that keeps the device busy for so long."""
        return lambda: self.enqueue(seconds)


def test_rows_have_their_shares_and_the_ratios_of_their_own_family():
    gpu = Machine()
    rows = beside({
        "norm": (40, 6e9, {"torch": gpu.work(8e-3), "library": gpu.work(3e-3),
                           "triton": gpu.work(2e-3), "slow_cuda": gpu.work(4e-3)}),
        "matmul": (10, 9e9, {"cublas": (12e9, gpu.work(4e-3)), "triton": gpu.work(6e-3)})},
        device=gpu)
    assert list(rows) == ["copy", "read", "norm: torch", "norm: library", "norm: triton",
                          "norm: slow_cuda", "matmul: cublas", "matmul: triton"]

    def figures(name):
        return {k: pytest.approx(v) for k, v in rows[name].items() if "_" in k}

    assert figures("copy") == {"share_of_copy": 1, "share_of_read": COPY / READ}
    assert figures("read") == {"share_of_copy": READ / COPY, "share_of_read": 1}
    assert figures("norm: triton") == {     # 6 GB in 2 ms: 3 TB/s
        "share_of_copy": 1, "share_of_read": 0.75, "times_torch": 4, "times_library": 1.5}
    assert figures("norm: library") == {
        "share_of_copy": 2 / 3, "share_of_read": 0.5, "times_torch": 8 / 3}
    assert figures("norm: slow_cuda") == {
        "share_of_copy": 0.5, "share_of_read": 0.375, "times_torch": 2, "times_library": 0.75}
    assert figures("matmul: cublas") == {   # 12 GB of its own
        "share_of_copy": 1, "share_of_read": 0.75}
    assert figures("matmul: triton") == {
        "share_of_copy": 0.5, "share_of_read": 0.375, "times_cublas": 2 / 3}
    for name, seconds, moved, flops in (("norm: triton", 2e-3, 6e9, 40),
                                        ("matmul: cublas", 4e-3, 12e9, 10)):
        assert rows[name]["seconds"] == pytest.approx(seconds)
        assert (rows[name]["bytes"], rows[name]["flops"]) == (moved, flops)


def test_it_ends_when_its_time_is_up():
    gpu = Machine(noise=[0.5, 1.0, 1.5, 4.0])   # copies that never settle
    beside({"norm": (1, 1e9, {"triton": gpu.work(1e-3)})}, limit=0.5, device=gpu)
    assert 0.5 < gpu.clock() < 1
