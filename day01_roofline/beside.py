"""Ways to do the same work, beside each other, a copy and a read, in one run."""

from day01_roofline.r02_clock import Gpu, Job, copy_job, measure, read_job
from lab.bench import row

__all__ = ["beside"]

# The ways that the others are compared with: PyTorch, as it stands and compiled; the vendors'
# libraries, each by its name; and a pair of kernels, where one kernel can do the work of both.
BASELINES = ("eager", "torch", "torch.compile", "library", "cublas", "flash", "cudnn", "sdpa",
             "pair")


def beside(families, limit=60, device=None):
    """Measure all ways of all families, a copy and a read, from cold caches and by turns.

    families: {family: (FLOPs, bytes that must move, {way: function without arguments})}. For a way
    that must move other bytes than its family: (its bytes, its function).
    limit: seconds, as for `measure`    device: the GPU if None

    -> {"copy": row, "read": row, "family: way": row, …}, rows of lab.bench. Each has its shares of
    both roofs, and its speed over that of the BASELINES in its family.
    """
    device = device or Gpu()
    roofs = [copy_job(device), read_job(device)]
    jobs = {family: {way: job(f"{family}: {way}", flops, moved, run) for way, run in ways.items()}
            for family, (flops, moved, ways) in families.items()}
    every = [*roofs, *(one for ways in jobs.values() for one in ways.values())]
    timings = measure(every, device, limit)
    rates = {roof.name: roof.moved / timings[roof.name].seconds for roof in roofs}
    rows = {roof.name: row(roof, timings[roof.name], rates) for roof in roofs}
    for ways in jobs.values():
        for way, one in ways.items():
            against = {other: timings[ways[other].name] for other in BASELINES
                       if other in ways and other != way}
            rows[one.name] = row(one, timings[one.name], rates, against)
    return rows


def job(name, flops, moved, run):
    """The Job of a way of a family, which may have bytes of its own."""
    own, run = run if isinstance(run, tuple) else (moved, run)
    return Job(name, run, flops, own)
