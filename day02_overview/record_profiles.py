"""`python -m day02_overview.record_profiles` measures six profiles on two CPU cores: profiles.json.

A core plays the device, with one thread.
An operation on a CPU is over when its call returns, so a kernel's span is the time of the call.
Only launch-bound needs a device of its own: a second process that takes operations out of a pipe,
as a GPU takes them out of its queue.
Of TRIES runs the shortest is kept: the one that other programs disturbed least.
"""

import json
import multiprocessing
import os
import tempfile
import time
import zlib
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing

from day02_overview.o04_training_math import sent_by
from day02_overview.profiles import RECORD

TRIES = 60
LAYERS, C = 4, 3072                         # unbatched: matrices of C × C
N = 4_000_000                               # unfused: numbers in an array
NUMBERS, LAUNCHES = 256, 60                 # launch-bound
B, WIDE, OUT = 256, 1024, 64                # starved: (B, WIDE) @ (WIDE, OUT)
SIDE, UNEVEN, SMALL = 512, (1, 24), 1000    # imbalanced: matmuls of each rank, numbers to add up
MESSAGE = 4_000_000                         # communication-bound: numbers to add up


class LaunchTape:
    """Spans of one rank, while it runs."""

    def __init__(self, rank=0):
        self.rank = rank
        self.spans = []

    @contextmanager
    def span(self, kind, name, *work):
        start = time.perf_counter()
        yield
        self.spans.append([self.rank, kind, name, start, time.perf_counter(), *work])


def matmul_work(M, N, K, weights=False):
    """FLOPs, bytes, bytes of weights (the second matrix), between kernels; fp32."""
    return 2 * M * N * K, 4 * (M * K + K * N + M * N), 4 * K * N if weights else 0, 0


# ---- one rank


def neighbours(i, n):
    """How many of n launches in a row lie beside launch i."""
    return len({i - 1, i + 1} & set(range(n)))


def unfused():
    """A polynomial of degree 3 by Horner's rule, an array an operation."""
    x = torch.randn(N)
    arrays = [torch.empty(N) for _ in range(6)]
    chain = ((torch.mul, 0.5), (torch.add, 0.25), (torch.mul, x), (torch.add, 2.0), (torch.mul, x),
             (torch.add, 1.0))

    def run(tape):
        y = x
        for i, ((operation, other), out) in enumerate(zip(chain, arrays, strict=True)):
            moved = 4 * N * (3 if other is x else 2)
            between = 4 * N * neighbours(i, len(chain))
            with tape.span("kernel", operation.__name__, N, moved, 0, between):
                y = operation(y, other, out=out)

    return run


def unbatched():
    """One row through matrices."""
    matrices = [torch.randn(C, C) for _ in range(LAYERS)]
    x = torch.randn(C)

    def run(tape):
        y = x
        for i, w in enumerate(matrices):
            between = 4 * C * neighbours(i, LAYERS)
            with tape.span("kernel", "matmul", *matmul_work(1, C, C, True)[:3], between):
                y = torch.mv(w, y)

    return run


def decode(pipe):
    """The loader: unpack a batch when it is asked for."""
    packed = zlib.compress(np.random.default_rng(0).integers(0, 99, (B, WIDE)).astype(np.float32))
    while pipe.recv():
        pipe.send_bytes(zlib.decompress(packed))


def starved(pipe):
    """Least squares; each batch is asked for when it is needed."""
    w = torch.zeros(WIDE, OUT)
    target = torch.ones(B, OUT)

    def run(tape):
        for step in range(3):
            with tape.span("input", f"batch {step}"):
                pipe.send(True)
                x = torch.frombuffer(bytearray(pipe.recv_bytes()), dtype=torch.float32)
                x = x.view(B, WIDE)
            with tape.span("kernel", "forward", *matmul_work(B, OUT, WIDE, True)):
                y = x @ w
            with tape.span("kernel", "error", B * OUT, 3 * 4 * B * OUT):
                y -= target
            with tape.span("kernel", "gradient", *matmul_work(WIDE, OUT, B)):
                gradient = x.T @ y
            with tape.span("kernel", "update", 2 * WIDE * OUT, 3 * 4 * WIDE * OUT,
                           2 * 4 * WIDE * OUT):
                w.add_(gradient, alpha=-1e-9)

    return run


def device(pipe):
    """Take operations out of the pipe; at the end of a run, report when they ran."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})         # the host has the others
    a, out = np.ones((2, NUMBERS), np.float32)
    operations = {"add": np.add, "multiply": np.multiply}
    spans = []
    while True:
        while not pipe.poll():
            pass                        # a device watches its queue; it does not have to be woken
        message = pipe.recv()
        if message is None:
            return
        if message == "end":
            pipe.send(spans)
            spans = []
            continue
        name, scalar = message
        start = time.perf_counter()
        operations[name](a, scalar, out)
        spans.append([0, "kernel", name, start, time.perf_counter(), NUMBERS, 8 * NUMBERS])


def launch_bound(pipe):
    """Short operations, one launch each."""
    cores = os.sched_getaffinity(0)

    def run(tape):
        os.sched_setaffinity(0, cores - {max(cores)})
        for i in range(LAUNCHES):
            with tape.span("host", "launch"):
                pipe.send((("add", "multiply")[i % 2], np.float32(i)))
        pipe.send("end")
        tape.spans += pipe.recv()
        os.sched_setaffinity(0, cores)

    return run


# ---- two ranks


def together(r, W, folder):
    """One of two processes: both profiles of two ranks, TRIES times; written to `folder`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=r, world_size=W)
    a = torch.randn(SIDE, SIDE)
    profiles = {"imbalanced": [], "communication-bound": []}
    for cause, numbers, count in (("imbalanced", SMALL, UNEVEN[r]),
                                  ("communication-bound", MESSAGE, 1)):
        message = torch.ones(numbers)
        for _ in range(TRIES):
            tape = LaunchTape(r)
            dist.barrier()
            for step in range(2):
                for _ in range(count):
                    with tape.span("kernel", "matmul", *matmul_work(SIDE, SIDE, SIDE)):
                        a @ a
                with tape.span("collective", f"sum {step}", 0,
                               int(sent_by("all_reduce", 4 * numbers, W))):
                    dist.all_reduce(message)
            profiles[cause].append(tape.spans)
    torch.save(profiles, f"{folder}/{r}")
    dist.destroy_process_group()


def of_two():
    """{cause: [spans of both ranks, a run each]}."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(together, (2, folder), 2)
        ranks = [torch.load(f"{folder}/{r}") for r in range(2)]
    return {cause: [a + b for a, b in zip(*(profiles[cause] for profiles in ranks), strict=True)]
            for cause in ranks[0]}


# ---- all


def taped(run):
    tapes = [LaunchTape() for _ in range(TRIES)]
    for tape in tapes:
        run(tape)
    return [tape.spans for tape in tapes]


def served(make, process):
    """As taped, with another process at the end of a pipe."""
    pipe, other = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=process, args=(other,))
    child.start()
    runs = taped(make(pipe))
    pipe.send(None)
    child.join()
    return runs


def best_rates():
    """(FLOP/s, byte/s) of one core: the best matmul of two sizes, the best of copying and reading.
    """
    x, y = torch.randn(2, 16_000_000)
    small = torch.randn(SIDE, SIDE)
    large = torch.randn(2 * SIDE, 2 * SIDE)

    def best(run):
        times = []
        for _ in range(TRIES):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return min(times)

    peak = max(2 * len(a)**3 / best(lambda a=a: a @ a) for a in (small, large))
    return peak, max(2 * x.nbytes / best(lambda: y.copy_(x)), x.nbytes / best(x.sum))


def shortest(runs):
    """Spans and seconds of the shortest run, its clock set to 0; ticks of 0.1 µs."""
    def seconds(spans):
        return max(s[4] for s in spans) - min(s[3] for s in spans)

    spans = min(runs, key=seconds)
    began = min(s[3] for s in spans)
    spans = [[*s[:3], round(s[3] - began, 7), round(s[4] - began, 7), *s[5:]] for s in spans]
    return spans, max(s[4] for s in spans)


def main():
    torch.set_num_threads(1)
    rates = [best_rates()]
    runs = {"starved": served(starved, decode), "launch-bound": served(launch_bound, device)}
    rates.append(best_rates())
    runs |= {"unfused": taped(unfused()), "unbatched": taped(unbatched())}
    rates.append(best_rates())
    runs |= of_two()
    peak, bandwidth = map(max, *rates, best_rates())
    lines = []
    for cause, profile in runs.items():
        spans, wall = shortest(profile)
        lines.append(json.dumps({
            "name": cause, "made": "measured",
            "how": f"two shared CPU cores, torch {torch.__version__}, the shortest of {TRIES} runs",
            "ranks": 1 + max(s[0] for s in spans), "wall": wall, "peak": peak,
            "bandwidth": bandwidth, "spans": spans}))
    RECORD.write_text('{"command": "OMP_NUM_THREADS=1 python -m day02_overview.record_profiles",\n'
                      '"profiles": [\n' + ",\n".join(lines) + "\n]}\n", "utf-8")


if __name__ == "__main__":
    main()
