"""Ways to do the same work, measured side by side with a copy, a read and matmuls in one run."""

from day01_roofline.r01_roofline import count_matmul
from day01_roofline.r02_clock import Gpu, Job, copy_job, measure, read_job
from lab.measure.bench import left_out, row
from lab.measure.turns import alone

__all__ = ["measure_side_by_side"]

# The ways that the others are compared with: PyTorch, as it stands and compiled; the vendors'
# libraries, each by its name; what runs op by op; and a pair of kernels, where one kernel can do
# the work of both.
THEIRS = ("torch", "torch.compile", "library", "cublas", "flash", "cudnn", "sdpa")
BASELINES = ("eager", *THEIRS, "pair")


def measure_side_by_side(families, limit=8, device=None):
    """Measure all ways of all families, a copy and a read, from cold caches and by turns.

    families: {family: (FLOPs, bytes that must move, {way: function without arguments})}. A fourth
    item where arithmetic may decide: the torch dtype whose matmul is the roof, by the library and
    in the same run.
    For a way that must move other bytes than its family: (its bytes, its function).
    For one of THEIRS that cannot do this work: the reason, as a string.
    limit: seconds, as for `measure`    device: the GPU if None

    -> {"copy": row, "read": row, "matmul of float16": row, "family: way": row, …}, rows of
    lab.measure.bench.
    Each has its shares of the roofs, and its speed over that of the BASELINES in its family.
    If one of THEIRS raises, its row says so; if one of the course's own ways raises, so does this
    call.
    """
    device = device or Gpu()
    jobs = {}
    reasons = {}
    for family, (flops, moved, ways, *_) in families.items():
        for way, run in ways.items():
            name = f"{family}: {way}"
            own, run = run if isinstance(run, tuple) else (moved, run)
            reason = run if isinstance(run, str) else way in THEIRS and refusal(run, device)
            if reason:
                reasons[name] = reason
            else:
                jobs[name] = Job(name, run, flops, own)
    roofs = [copy_job(device), read_job(device)]
    peaks = {dtype: peak_job(device, dtype) for *_, dtype in families.values()
             if not isinstance(dtype, dict)}
    everything = [*roofs, *peaks.values(), *jobs.values()]
    for job in everything:
        job.run()                                           # compiled before it is this one's turn
    device.synchronise()
    with alone():
        timings = measure(everything, device, limit)
    rates = {roof.name: roof.moved / timings[roof.name].seconds for roof in roofs}
    rows = {job.name: row(job, timings[job.name], rates) for job in [*roofs, *peaks.values()]}
    for family, (_, _, ways, *dtype) in families.items():
        peak = rows[peaks[dtype[0]].name]["flop_per_second"] if dtype else None
        others = {way: f"{family}: {way}" for way in BASELINES if f"{family}: {way}" in jobs}
        for name in (f"{family}: {way}" for way in ways):
            against = {way: timings[other] for way, other in others.items() if other != name}
            rows[name] = (left_out(reasons[name]) if name in reasons else
                          row(jobs[name], timings[name], rates, against, peak))
    return rows


def refusal(run, device):
    """Why a way cannot be run here, in a line; None if it can."""
    try:
        run()
        device.synchronise()
    except Exception as error:          # whatever a library refuses with; its row says it
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None


def peak_job(device, dtype):
    """The library's matmul of two large squares of this dtype."""
    side = device.side
    c, a, b = (device.array(side, side).to(dtype) for _ in range(3))        # (side, side)
    return Job(f"matmul of {str(dtype).removeprefix('torch.')}", lambda: device.matmul(c, a, b),
               *count_matmul(side, side, side, dtype.itemsize))
