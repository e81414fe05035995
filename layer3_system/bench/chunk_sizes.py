"""What a chunk size gains and costs on a CPU:  python -m layer3_system.bench.chunk_sizes

The small model writes DECODERS texts.
Meanwhile long prompts come, each when the one before has its ANSWER tokens, so that there is always
one.
A run begins when the first of them comes, and ends with the last.
Runs of all chunk sizes take turns, ROUNDS times.
A run's schedule is the same in all rounds, so the time of each of its steps is the median over the
rounds.
layer3_system/bench/chunk_sizes.json has the result.
"""

import datetime
import json
import os
import platform
import re
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch

from day01_roofline import take_turns
from lab.device import cpu_model
from layer2_graph import CpuLlama, Tokenizer, cpu_kernels, one_block, read_config, read_weights
from layer2_graph.models import SMALL
from layer2_graph.small.corpus import stories
from layer3_system.s01_request import SamplingParams
from layer3_system.s02_block_pool import BlockPool
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s05_chunked_prefill import StepLog, SweepPoint
from layer3_system.s07_engine import Engine

RECORD = Path(__file__).with_name("chunk_sizes.json")
LONG, PROMPTS, ANSWER = 448, 6, 8           # tokens of a prompt, prompts, tokens of an answer
SHORT, DECODERS, WARM = 16, 4, 8            # tokens of their prompts, texts, tokens before a run
CHUNKS = (8, 16, 32, 64, 128, 256, LONG)
ROUNDS = 15


def small_model():
    """(model, tokenizer): the small Llama on the course's fastest kernels for a CPU, fp32."""
    m = read_config(SMALL)
    model = CpuLlama(m, read_weights(SMALL, m, torch.float32), cpu_kernels())
    return one_block(model), Tokenizer(SMALL, m)


def texts(tokenizer, N, count):
    """[[int]]: `count` prompts of N tokens, from stories that the model was not trained on."""
    every = [token for story in stories("dev") for token in tokenizer.encode(story)]
    apart = len(every) // count
    return [every[i * apart:i * apart + N] for i in range(count)]


@dataclass
class ChunkedRun:
    """One run.
    Seconds, and counts of what happened within it."""

    seconds: float
    gaps: list          # between two tokens of the requests that decode
    first: list         # from the arrival of each long prompt to its first token
    steps: int
    tokens: int         # computed
    written: int        # sampled
    reread: int         # tokens whose keys and values were read again, for later chunks
    output: list        # [[int]] of the long prompts


def serve(model, tokenizer, long, short, chunk):
    """The ChunkedRun of the long prompts, [[int]], one after another, beside the short ones."""
    model, room = StepLog(model), model.config.room
    pool = BlockPool((len(short) + 1) * -(-room // 16))
    engine = Engine(model, tokenizer, pool, Scheduler(pool, budget=room, chunk=chunk),
                    clock=time.perf_counter)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=ANSWER)
    writing = [engine.submit(prompt, replace(params, max_tokens=None))[0] for prompt in short]
    while any(len(request.output) < WARM for request in writing):
        engine.step()
    model.steps.clear()
    began = time.perf_counter()
    done = []
    for prompt in long:
        done += engine.submit(prompt, params)
        while done[-1].status != "finished":
            engine.step()
    return run_of(time.perf_counter() - began, model.steps, writing, done)


def run_of(seconds, steps, writing, done):
    """The ChunkedRun that took `seconds` and these steps, [StepRecord].

    writing, done: the requests with short and with long prompts; the former come first in each step
    """
    last = writing[0].token_times[-len(steps) - 1:] if writing else []
    chunks = [(n, context) for step in steps for n, context in
              list(zip(step.new, step.contexts, strict=True))[len(writing):]
              if context <= len(done[0].prompt)]        # beyond that it is in its answer
    return ChunkedRun(
        seconds, gaps=[after - before for before, after in pairwise(last)],
        first=[request.token_times[0] - request.arrival for request in done], steps=len(steps),
        tokens=sum(sum(step.new) for step in steps),
        written=sum(len(request.output) for request in done) + len(writing) * len(steps),
        reread=sum(context - n for n, context in chunks), output=[r.output for r in done])


def summary(runs):
    """What the record keeps of the runs of one chunk size."""
    first = runs[0]
    gaps = np.median([run.gaps for run in runs], axis=0)
    return {"steps": first.steps, "tokens": first.tokens, "written": first.written,
            "reread": first.reread, "seconds": median(run.seconds for run in runs),
            "first": median(s for run in runs for s in run.first),
            "gaps": [round(s, 6) for s in gaps.tolist()]}


def sweep(rounds=ROUNDS, chunks=CHUNKS, decoders=DECODERS):
    """{chunk: [ChunkedRun of each round]}, by turns.
    RuntimeError if tokens depend on the chunk."""
    model, tokenizer = small_model()
    long = texts(tokenizer, LONG, PROMPTS)
    short = texts(tokenizer, SHORT, DECODERS)[:decoders]
    ways = {chunk: partial(serve, model, tokenizer, long, short, chunk) for chunk in chunks}
    ways[chunks[0]]()                           # warm up
    seconds = take_turns(ways, rounds)
    for chunk, runs in seconds.items():
        if any(run.output != seconds[chunks[0]][0].output for run in runs):
            raise RuntimeError(f"chunks of {chunk} give other tokens than chunks of {chunks[0]}")
    return seconds


def points(record):
    """{chunk: SweepPoint} of a part of the record."""
    return {int(chunk): SweepPoint.of(row["tokens"] / row["seconds"], row["gaps"])
            for chunk, row in record.items()}


def main():
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    record = {
        "made_by": "python -m layer3_system.bench.chunk_sizes",
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "threads": 1,
                    "load_before": load},
        "versions": {"python": platform.python_version(), "torch": torch.__version__,
                     "numpy": np.__version__},
        "model": "layer2_graph/small, CpuLlama, fp32", "long": LONG, "prompts": PROMPTS,
        "answer": ANSWER, "short": SHORT, "decoders": DECODERS, "rounds": ROUNDS}
    for part, decoders in (("beside", DECODERS), ("alone", 0)):
        record[part] = {chunk: summary(runs)
                        for chunk, runs in sweep(decoders=decoders).items()}
    text = re.sub(r"(?<=[\[,])\n\s+(?=\d)", " ", json.dumps(record, indent=1))  # a list in one line
    RECORD.write_text(text + "\n", "utf-8")
    for chunk, row in points(record["beside"]).items():
        print(f"chunks of {chunk:3}: {row.rate:7.0f} tokens/s, gaps {row.p95 * 1e3:5.1f} ms at "
              f"p95, {row.longest * 1e3:5.1f} ms the longest")


if __name__ == "__main__":
    main()
