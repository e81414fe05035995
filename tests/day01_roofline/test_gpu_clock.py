"""r02's clock of a GPU: on one made up, whose every time is known, and on a real one."""

from types import SimpleNamespace

import pytest

from day01_roofline import r02_clock


class Marks:
    """torch.cuda of a machine whose every speed is known: events in a queue that a host fills."""

    def __init__(self):
        self.host = self.device = 0.0           # seconds: now, and when the queue will be empty

    def Event(self, enable_timing):
        mark = SimpleNamespace(at=None)
        mark.record = lambda: setattr(mark, "at", max(self.host, self.device))
        mark.query = lambda: mark.at <= self.host
        mark.elapsed_time = lambda other: (other.at - mark.at) * 1e3
        return mark

    def work(self, launch, seconds):
        """A function that the host takes `launch` to start, and the device `seconds` to do."""
        def run():
            self.host += launch
            self.device = max(self.device, self.host) + seconds
        return run

    def synchronize(self):
        self.host = max(self.host, self.device)


@pytest.mark.parametrize("launch, want", [
    (5e-6, 1e-3),           # while the GPU flushes once
    (3e-4, 1e-3),           # takes several flushes
    (5e-3, 6e-3)])          # no flushes last so long: the host is in the time
def test_a_launch_is_not_in_the_time_on_a_gpu(launch, want):
    gpu = r02_clock.Gpu.__new__(r02_clock.Gpu)
    gpu.torch = SimpleNamespace(cuda=Marks())
    gpu.flush = gpu.torch.cuda.work(1e-6, 6e-5)
    gpu.flushes = {}
    run = gpu.torch.cuda.work(launch, 1e-3)
    assert gpu.sample(run, 3) == pytest.approx([want] * 3, rel=0.02)
    assert gpu.sample(run, 1, cold=False) == pytest.approx([1e-3 + launch], rel=0.02)


@pytest.mark.gpu
def test_gpu_measures_its_own_roofs():
    gpu = r02_clock.Gpu()
    assert gpu.spill.is_cuda and gpu.spill.nbytes >= 4 * gpu.cache > 0
    jobs = [*r02_clock.roof_jobs(gpu), r02_clock.add_job(gpu)]
    timings = r02_clock.measure(jobs, gpu, limit=5.0)
    roofs = r02_clock.Roofs.of(jobs, timings)
    assert min(roofs.copy, roofs.read, roofs.matmul) > 0
    assert all(t.runs >= r02_clock.ROUNDS for t in timings.values())
    x, y, z = (gpu.array(1001) for _ in range(3))
    gpu.add(z, x, y)
    assert (z == x + y).all()
