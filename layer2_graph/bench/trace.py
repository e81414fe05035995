"""Record where the time of serving goes:  python -m layer2_graph.bench.trace

The small Llama serves two requests on one core of a CPU; B comes while A is being written.
Every nanosecond belongs to one floor. kernel: a call of one kernel of the table. graph: the rest of
the model's forward. system: all else except waiting, which is idle. day02_overview/trace.json has
the result, and o01 reads it.

The core may be shared, so the clock is this program's own: it stops while others have the core.
B: sequences of a step   T: new tokens of a sequence   N: its context with them
"""

import datetime
import gc
import json
import math
import os
import platform
import sys
import time
from dataclasses import fields, replace
from statistics import median

import numpy as np
import torch

from day01_roofline import Cpu, attended, roof_jobs
from day02_overview import TRACE, Span, time_by_floor
from lab.device import cpu_model
from layer2_graph.checkpoint import Tokenizer
from layer2_graph.g01_llama import Llama, PagedCache, load
from layer2_graph.launches import Launches
from layer2_graph.models import SMALL

ROUNDS, PAUSE = 12, 0.5         # runs, the quietest of which is recorded; seconds between them
REQUESTS = (                    # name, text, tokens to write, arrival in ns
    ("A", "Once upon a time there was a curious fox named Mira. One winter Mira was given a "
          "strange kite. She liked to sleep beside the kite. One Sunday Mira was by the river.",
     14, 1_000_000),
    ("B", "Long ago a proud badger named Poppy lived in the workshop. She did not like to ask for "
          "help. Her dearest possession was a silver coin.", 8, 16_000_000),
)


# ---- the clock


class TraceRecorder:
    """Rows [name, floor, begin, end] in the order in which they began, in ns.

    The clock: the time of the cores that this program used, plus the waiting that it asked for.
    """

    def __init__(self):
        self.rows, self.slept, self.started = [], 0, time.process_time_ns()

    def now(self):
        return time.process_time_ns() - self.started + self.slept

    def sleep(self, ns):
        time.sleep(ns / 1e9)
        self.slept += ns

    def timed(self, name, floor, function, *args):
        """function(*args), and a row of how long it took."""
        row = [name, floor, self.now(), 0]
        self.rows.append(row)
        result = function(*args)
        row[3] = self.now()
        return result

    def watch(self, name, function):
        return lambda *args: self.timed(name, "kernel", function, *args)


def with_each(ops, watch):
    """The same table of kernels, each with watch(name, kernel) around it."""
    return replace(ops, **{f.name: watch(f.name, getattr(ops, f.name)) for f in fields(ops)})


# ---- what each call must compute and move


def counted(name, args, out):
    """(FLOPs, bytes) of a kernel's call, as day 1 counts: matrix products alone compute, and every
    array crosses once.
    Of pages only the contexts do.
    Index arrays are left out."""
    if name == "paged_attention":
        q, k_pages, _, _, cu_q, lens, _ = args
        pairs = sum(attended(T, N) for T, N in zip(cu_q.diff().tolist(), lens.tolist(),
                                                   strict=True))
        cache = 2 * int(lens.sum()) * k_pages[0, 0].nbytes
        return 4 * pairs * q.shape[1] * q.shape[2], q.nbytes + out.nbytes + cache
    if name == "write_kv":
        return 0, 2 * (args[0].nbytes + args[1].nbytes)             # read, and written into pages
    if name == "rope":
        q, k, cos, sin, positions = args
        return 0, 2 * (q.nbytes + k.nbytes) + len(positions) * (cos[0].nbytes + sin[0].nbytes)
    moved = out.nbytes + sum(a.nbytes for a in args if isinstance(a, torch.Tensor))
    return 2 * len(args[0]) * args[1].numel() if name == "matmul" else 0, moved


def count(model, steps):
    """[[name, FLOPs, bytes, operations]] of every forward of some steps and of every kernel in it.

    The steps run again for it: counting takes time, so it is not done under the clock. steps: the
    new tokens of each sequence. operations: PyTorch's, without views; a forward's are those outside
    its kernels
    """
    launches = []
    calls = []
    recorder = Launches()

    def watch(name, function):
        def call(*args):
            before = len(recorder.names)
            out = function(*args)
            calls.append((name, args, out, len(recorder.names) - before))
            return out
        return call

    again = Llama(model.config, model.weights, with_each(model.ops, watch))
    cache = new_cache(model)
    for new in steps:
        step = batch(cache, new)
        calls.clear()
        recorder.names.clear()
        with recorder:
            again.forward(step, cache)
        others = len(recorder.names) - sum(number for *_, number in calls)
        launches.append(["forward", 0, 0, others])
        launches += [[name, *counted(name, args, out), number] for name, args, out, number in calls]
    return launches


# ---- serving


class Request:
    """A text to continue. sent: when each new token reached its reader."""

    def __init__(self, tokenizer, name, text, count, arrival):
        self.name = name
        self.text = text
        self.count = count
        self.arrival = arrival
        self.prompt = tokenizer.encode(text)
        self.tokens = []
        self.sent = []
        self.answer = ""

    def entry(self):
        """The request's entry in the trace."""
        return {"name": self.name, "arrival": self.arrival, "sent": self.sent,
                "prompt": self.text, "prompt_tokens": len(self.prompt), "answer": self.answer}


def new_cache(model):
    return PagedCache(model.config, len(REQUESTS), 128)


def batch(cache, new):
    """The Batch of the sequences that have new tokens. new: [[token]], a list for every sequence"""
    every = cache.step(new)
    running = [b for b, tokens in enumerate(new) if tokens]
    return every._replace(block_tables=every.block_tables[running], lens=every.lens[running],
                          cu_q=every.cu_q[[0, *(b + 1 for b in running)]])


def schedule(requests, now):
    """("prefill" or "decode", requests): those that came and have no token yet go first, alone."""
    here = [r for r in requests if r.arrival <= now and len(r.tokens) < r.count]
    fresh = [r for r in here if not r.tokens]
    return ("prefill", fresh) if fresh else ("decode", here)


def send(tokenizer, request, token, recorder):
    request.tokens.append(token)
    request.answer = tokenizer.decode(request.prompt + request.tokens)[len(request.text):]
    request.sent.append(recorder.now())


def step(model, cache, tokenizer, running, requests, recorder):
    """One step for the requests in `running`; -> the new tokens of every sequence."""
    new = [[] if r not in running else r.tokens[-1:] or r.prompt for r in requests]
    inputs = recorder.timed("batch", "system", batch, cache, new)
    logits = recorder.timed("forward", "graph", model.forward, inputs, cache)        # (B, V)
    tokens = recorder.timed("sample", "system", lambda: logits.argmax(-1).tolist())
    for request, token in zip(running, tokens, strict=True):
        recorder.timed("detokenise", "system", send, tokenizer, request, token, recorder)
    return new


def loop(model, cache, tokenizer, requests, recorder):
    """Step until all is written; -> [new tokens of every sequence], one entry a step."""
    steps = []
    while waiting := [r for r in requests if len(r.tokens) < r.count]:
        phase, running = recorder.timed("schedule", "system", schedule, requests, recorder.now())
        if running:
            steps.append(recorder.timed(phase, "system", step, model, cache, tokenizer, running,
                                        requests, recorder))
        else:
            left = min(r.arrival for r in waiting) - recorder.now()
            recorder.timed("wait", "idle", recorder.sleep, max(left, 0))
    return steps


def serve(model, tokenizer, ops):
    """(rows, requests, steps, ns that the clock was stopped) of one run from an empty cache."""
    requests = [Request(tokenizer, *fields) for fields in REQUESTS]
    cache = new_cache(model)
    began = time.perf_counter_ns()
    recorder = TraceRecorder()
    model.ops = with_each(ops, recorder.watch)
    steps = recorder.timed("serve", "system", loop, model, cache, tokenizer, requests, recorder)
    return recorder.rows, requests, steps, time.perf_counter_ns() - began - recorder.now()


# ---- the record


def busy(rows):
    """ns that were not idle."""
    time = time_by_floor([Span(*row) for row in rows])
    return sum(time.values()) - time["idle"]


def with_counts(rows, counts):
    """[Span] of rows; forwards and kernels have counts, which come in the same order."""
    counts = iter(counts)
    spans = []
    for name, floor, begin, end in rows:
        of, *numbers = next(counts) if floor in ("graph", "kernel") else (name, 0, 0, 0)
        if of != name:
            raise ValueError(f"trace: {name} was timed where {of} was counted")
        spans.append(Span(name, floor, begin, end, *numbers))
    return spans


def costs(model):
    """Medians in ns of what blurs the floors: a row of the recorder, and an addition of one token's
    numbers, which the forward does outside the table."""
    recorder = TraceRecorder()
    x = torch.ones(1, model.config.C)
    jobs = {"row": lambda: recorder.timed("nothing", "system", int), "addition": lambda: x + x}
    by_name = {}
    for name, job in jobs.items():
        times = []
        for _ in range(1000):
            began = time.perf_counter_ns()
            job()
            times.append(time.perf_counter_ns() - began)
        by_name[name] = median(times)
    return by_name


class OwnTime(Cpu):
    """r02's Cpu by the clock of the TraceRecorder."""

    clock = staticmethod(time.process_time)


def machine(cpu, load_before, best):
    """What ran, and its roofs. best: {Job: seconds}, of r02's roof_jobs"""
    return {"cpu": cpu_model(), "cores": os.cpu_count(), "cores_used": cpu.parts,
            "threads": torch.get_num_threads(), "load_before": round(load_before, 1),
            "cache": cpu.cache, "bandwidth": round(max(job.moved / t for job, t in best.items())),
            "peak": round(max(job.flops / t for job, t in best.items())),
            "python": platform.python_version(), "torch": torch.__version__,
            "numpy": np.__version__}


def record():
    """The trace of the quietest of ROUNDS runs, as o01's read_trace expects it in a file."""
    load_before = os.getloadavg()[0]
    cpu = OwnTime()
    model = load(SMALL, dtype=torch.float32)
    ops = model.ops
    m = model.config
    tokenizer = Tokenizer(SMALL, model.config)
    serve(model, tokenizer, ops)                        # warm
    runs = []
    best = dict.fromkeys(roof_jobs(cpu), math.inf)
    for _ in range(ROUNDS):
        time.sleep(PAUSE)
        gc.collect()                                    # rather than in the middle of a run
        runs.append(serve(model, tokenizer, ops))
        best = {job: min(t, *cpu.sample(job.run, 1)) for job, t in best.items()}
    times = [busy(rows) for rows, *_ in runs]
    rows, requests, steps, stood = runs[times.index(min(times))]
    model.ops = ops
    return {
        "made_by": "python -m layer2_graph.bench.trace", "date": datetime.date.today().isoformat(),
        "machine": machine(cpu, load_before, best),
        "busy_ns": times, "others_ns": stood, "cost_ns": costs(model),
        "model": {"name": "small", **{size: getattr(m, size) for size in "LCHGDFV"},
                  "tied": m.tied, "itemsize": model.embedding.itemsize},
        "requests": [request.entry() for request in requests],
        "batches": [[[r.name, len(tokens)] for r, tokens in zip(requests, new, strict=True)
                     if tokens] for new in steps],
        "spans": [list(span) for span in with_counts(rows, count(model, steps))]}


def text(trace):
    """The JSON of a trace: one line an entry, and one a span."""
    entries = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
               for key, value in trace.items() if key != "spans"]
    spans = ",\n".join(json.dumps(span, separators=(",", ":")) for span in trace["spans"])
    return "{\n" + ",\n".join(entries) + f',\n"spans": [\n{spans}\n]}}\n'


def main():
    cores = os.sched_getaffinity(0)
    if len(cores) > 1:          # start again on one: the clock would add up several
        os.sched_setaffinity(0, {max(cores)})
        os.execv(sys.executable, [sys.executable, "-m", __spec__.name])
    TRACE.write_text(text(record()), "utf-8")
    print(f"written: {TRACE.name}")


if __name__ == "__main__":
    main()
