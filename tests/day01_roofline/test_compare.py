"""Ways to do the same work, on a machine whose every speed is known."""

import pytest

from day01_roofline import measure_side_by_side
from day01_roofline.r02_clock import time_call
from lab.judge.mocks import FakeArray, FakeGpu

COPY, READ = 3e12, 4e12         # byte/s
HALF, WIDE = 1e15, 5e13         # FLOP/s of a matmul of numbers of 2 bytes, and of 4


class Format:
    """As much of a torch dtype as the measurement uses."""

    def __init__(self, name, itemsize):
        self.name, self.itemsize = name, itemsize

    def __str__(self):
        return f"torch.{self.name}"


class Array(FakeArray):
    def to(self, dtype):
        return Array(self.nbytes * dtype.itemsize // 4)


class Machine(FakeGpu):
    """A FakeGpu with all that `measure` asks of a device; it reads faster than it copies."""

    ramp, side = 0.01, 1000

    def array(self, *shape):
        return Array(super().array(*shape).nbytes)

    def matmul(self, out, a, b):
        assert out.nbytes == a.nbytes == b.nbytes
        self.enqueue(2 * self.side**3 / (HALF if a.nbytes == 2 * self.side**2 else WIDE))

    def __init__(self, **facts):
        super().__init__(bandwidth=COPY, launch=0.0, **facts)

    def sample(self, run, repeats, cold=True):
        return time_call(run, self, repeats, 0, cold)

    def read(self, source):
        self.enqueue(source.nbytes / READ)

    def work(self, seconds):
        """A function that keeps the device busy for that many seconds."""
        return lambda: self.enqueue(seconds)


def test_rows_have_their_shares_and_the_ratios_of_their_own_family():
    gpu = Machine()
    rows = measure_side_by_side({
        "norm": (40, 6e9, {"torch": gpu.work(8e-3), "library": gpu.work(3e-3),
                           "triton": gpu.work(2e-3), "slow_cuda": gpu.work(4e-3)}),
        "matmul": (10, 9e9, {"cublas": (12e9, gpu.work(4e-3)), "triton": gpu.work(6e-3)})},
        device=gpu)
    assert list(rows) == ["copy", "read", "norm: torch", "norm: library", "norm: triton",
                          "norm: slow_cuda", "matmul: cublas", "matmul: triton"]

    def figures(name):
        return {k: pytest.approx(v) for k, v in rows[name].items()
                if k.startswith(("share_of_", "times_"))}

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
    measure_side_by_side({"norm": (1, 1e9, {"triton": gpu.work(1e-3)})}, limit=0.5, device=gpu)
    assert 0.5 < gpu.clock() < 1


def test_where_arithmetic_may_decide_the_matmul_of_the_same_format_is_a_roof():
    gpu, half, wide = Machine(), Format("float16", 2), Format("float32", 4)
    rows = measure_side_by_side({
        "fp16": (10e12, 1e9, {"cublas": gpu.work(20e-3), "triton": gpu.work(40e-3)}, half),
        "fp32": (1e12, 1e9, {"triton": gpu.work(40e-3)}, wide),
        "fp16, one row": (1e9, 1e9, {"triton": gpu.work(1e-3)}),
        "more fp16": (1e12, 1e9, {"triton": gpu.work(2e-3)}, half)}, device=gpu)
    assert list(rows)[:4] == ["copy", "read", "matmul of float16", "matmul of float32"]
    assert rows["matmul of float16"]["flop_per_second"] == pytest.approx(HALF)
    shares = {name: row.get("share_of_matmul") for name, row in rows.items()}
    assert {name: share for name, share in shares.items() if share} == {
        "fp16: cublas": pytest.approx(0.5), "fp16: triton": pytest.approx(0.25),
        "fp32: triton": pytest.approx(0.5), "more fp16: triton": pytest.approx(0.5)}


def test_a_baseline_that_cannot_do_the_work_says_why():
    gpu = Machine()

    def refuses():
        raise RuntimeError("no kernel for this format\nwith a long explanation")

    rows = measure_side_by_side({"norm": (1, 6e9, {"torch": gpu.work(4e-3), "cudnn": refuses,
                                     "flash": "it takes 16-bit numbers only",
                                     "triton": gpu.work(2e-3)})}, device=gpu)
    assert list(rows)[2:] == ["norm: torch", "norm: cudnn", "norm: flash", "norm: triton"]
    assert rows["norm: cudnn"] == {"left_out": "RuntimeError: no kernel for this format"}
    assert rows["norm: flash"] == {"left_out": "it takes 16-bit numbers only"}
    assert {k for k in rows["norm: triton"] if "times" in k} == {"times_torch"}


def test_a_kernel_of_the_course_that_fails_ends_the_measurement():
    gpu = Machine()

    def breaks():
        raise RuntimeError("an illegal address")

    with pytest.raises(RuntimeError, match="an illegal address"):
        measure_side_by_side({"norm": (1, 6e9, {"torch": gpu.work(4e-3), "triton": breaks})},
                             device=gpu)
