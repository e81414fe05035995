"""Ladder, targets and measurements of r02_clock: see lab/measure/bench.py."""

from day01_roofline.r02_clock import Gpu, add_job, large_side, matmul_job, measure, roof_jobs


def bench():
    """On a GPU: its roofs, an add and a matmul of one row, by turns; rows of lab.measure.bench."""
    from lab.measure.bench import row

    device = Gpu()
    side = large_side(device)
    jobs = [*roof_jobs(device), add_job(device), matmul_job(device, 1, side, side, "one_row")]
    timings = measure(jobs, device, limit=12)
    roofs = {job.name: job.moved / timings[job.name].seconds for job in jobs[:2]}   # copy, read
    return {job.name: row(job, timings[job.name], roofs) for job in jobs}
