"""Rounding against training at few bits:  python -m layer2_graph.bench.qat rounded; … trained

rounded: perplexity of the small model with its matrices on each grid of g15, without training.
GPTQ's and AWQ's Hessians come from the text that neither trains nor judges.
trained: STEPS steps of g15's Student for each grid and seed, B windows of T tokens of stories a
step.
In runs of "scales" the matrices stay: only scales, norms and embedding are trained.
In runs of "mixed" every second step reads docstrings.
A run that is in the record is not made again, so a stopped command goes on where it was.
layer2_graph/bench/qat.json has both. fp32 on one thread; perplexity is of every tenth held-out
text.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch

from layer2_graph.checkpoint import Tokenizer
from layer2_graph.g01_llama import Llama, load
from layer2_graph.g07_weight_quantization import (
    hessians,
    inverse_root,
    perplexity,
    with_matrices,
)
from layer2_graph.g15_qat import GRIDS, Student, on_grid, searched_scales
from layer2_graph.models import SMALL
from layer2_graph.small.corpus import BEGIN, corpus
from layer2_graph.twins.train import B, T, batch, encoded

RECORD = Path(__file__).parent / "qat.json"
GROUP = 32
STEPS = 300
SEEDS = 3               # the record may lack the last ones
RATE = 3e-4             # the highest: it falls in a line to 0
JUDGED = (0, 10, 30, 100, 300)      # steps after which stories are read
KINDS = {"QAT": ("ternary", "2 bits", "int4"), "scales": ("ternary",), "mixed": ("2 bits",)}
BINS = 80               # of w / s, from -2 to 2
ALPHAS = 21             # exponents of AWQ's scales, from 0 to 1


# ---- without training


def widest_scales(w, low, top):                     # (N, K) -> (N, K / GROUP)
    """The least scale with which no code is clamped, in fp16."""
    groups = w.unflatten(-1, (-1, GROUP))
    return torch.maximum(groups.amax(-1) / top, groups.amin(-1) / low).half().float()


def gptq_on_grid(w, hessian, scales, low, top):     # (N, K), (K, K), (N, K / GROUP) -> (N, K)
    """What g07's GPTQ makes of w, for codes that may reach further down than up."""
    upper = inverse_root(hessian)
    w = w.clone()
    result = torch.empty_like(w)
    for k in range(w.shape[1]):
        column = w[:, k:k + 1]
        result[:, k:k + 1] = on_grid(column, scales[:, k // GROUP, None], low, top)
        lost = column - result[:, k:k + 1]
        w[:, k + 1:] -= lost * upper[k, k + 1:] / upper[k, k]
    return result


def awq_on_grid(w, hessian, low, top):              # (N, K), (K, K) -> (N, K)
    """w with its columns scaled before they are rounded, and back: a column of large inputs becomes
    larger, and its weights lose less.
    Of ALPHAS exponents, that with the least error of w x.

    The layer before can take the inverse scales, so they cost nothing.
    Source: "AWQ", Lin and others, 2024, with the root mean square of inputs for their mean.
    """
    size = hessian.diagonal().clamp(min=1e-12).sqrt()                       # (K,)
    best = (math.inf, w)
    for alpha in torch.linspace(0, 1, ALPHAS):
        s = size ** alpha
        s = s / (s.max() * s.min()).sqrt()
        scaled = w * s
        fake = on_grid(scaled, searched_scales(scaled, low, top, GROUP), low, top) / s
        lost = fake - w
        best = min(best, (float((lost @ hessian * lost).sum()), fake), key=lambda row: row[0])
    return best[1]


def rounded(model, grid, hessian_of):
    """(name, Llama) of each way to put the matrices on a grid at once."""
    low, top = grid

    def searched(w):
        return searched_scales(w, low, top, GROUP)

    yield "nearest", with_matrices(
        model, lambda _, w: on_grid(w, widest_scales(w, low, top), low, top))
    yield "searched", with_matrices(model, lambda _, w: on_grid(w, searched(w), low, top))
    yield "AWQ", with_matrices(model, lambda name, w: awq_on_grid(w, hessian_of[name], low, top))
    yield "GPTQ", with_matrices(
        model, lambda name, w: gptq_on_grid(w, hessian_of[name], searched(w), low, top))


# ---- training


def codes_of(student):
    """{name: codes}, as whole numbers."""
    return {name: (fake.detach().unflatten(-1, (-1, GROUP)) / student.scales[name].detach().half()
                   .float()[..., None]).round()
            for name, fake in student.fake().items() if name in student.scales}


def moved(before, after):
    """The share of codes that differ."""
    count = sum(codes.numel() for codes in before.values())
    return sum(int((codes != after[name]).sum()) for name, codes in before.items()) / count


def heaps(student):
    """How many weights have w / s in each of BINS bins."""
    ratios = [(student.weights[name].detach().unflatten(-1, (-1, GROUP)) / scales.detach()[
        ..., None]).flatten() for name, scales in student.scales.items()]
    return torch.histc(torch.cat(ratios), BINS, -2, 2).int().tolist()


def train(model, m, texts, grid, seed, matrices, judge):
    """A run's row.

    texts: [(stream, where its documents begin)], read in turn    judge(student): perplexity
    """
    student = Student(m, model.weights, grid, GROUP, RATE, matrices)
    first = codes_of(student)
    row = {"seed": seed, "steps": STEPS, "tokens": STEPS * B * T,
           "heaps": [heaps(student)] if seed == 0 else [], "loss": [],
           "stories by step": {}, "moved": {}, "seconds": 0.0}
    for step in range(STEPS + 1):
        if step in JUDGED:
            row["stories by step"][step] = judge(student)
            row["moved"][step] = moved(first, codes_of(student))
        if step < STEPS:
            begin = time.process_time()
            for group in student.optimiser.param_groups:
                group["lr"] = RATE * (1 - step / STEPS)
            row["loss"].append(round(student.step(batch(*texts[step % len(texts)], seed, step)),
                                     4))
            row["seconds"] += time.process_time() - begin
    if seed == 0:
        row["heaps"].append(heaps(student))
    return row, student


# ---- the record


class Judge:
    """A tenth of the small model's held-out text, and what a Llama makes of it."""

    def __init__(self, model):
        tokenizer = Tokenizer(SMALL, model.config)
        self.model = model
        self.parts = {part: [tokenizer.encode(text.removeprefix(BEGIN))[:model.config.room]
                             for text in texts[::10]]
                      for part, texts in corpus("held out")._asdict().items()}
        self.dev = [tokenizer.encode(text.removeprefix(BEGIN)) for text in sum(corpus("dev"), [])]

    def llama(self, student):
        with torch.no_grad():
            return Llama(self.model.config, student.fake(), self.model.ops)

    def all(self, llama):
        return {part: perplexity(llama, texts) for part, texts in self.parts.items()}

    def stories(self, student):
        return perplexity(self.llama(student), self.parts["stories"])


def write(record):
    RECORD.write_text(json.dumps(record) + "\n", "utf-8")


def round_all(record, model, judge):
    rows = {"fp32": judge.all(model)}
    hessian_of = hessians(model, judge.dev)
    for grid, bounds in GRIDS.items():
        for name, llama in rounded(model, bounds, hessian_of):
            rows[f"{grid}, {name}"] = judge.all(llama)
            print(grid, name, rows[f"{grid}, {name}"], flush=True)
    record["rounded"] = rows
    record["held out"] = {part: sum(len(text) - 1 for text in texts)
                          for part, texts in judge.parts.items()}
    write(record)


def stream_of(texts):
    """(texts as one stream of tokens, where each begins)"""
    documents = encoded(texts)
    return torch.cat(documents), torch.tensor([0, *map(len, documents[:-1])]).cumsum(0)


def train_all(record, model, judge, count):
    """The next `count` runs that the record lacks."""
    m = json.loads((SMALL / "config.json").read_text("utf-8"))
    stories, docstrings = map(stream_of, corpus("train"))
    runs = record.setdefault("runs", {})
    missing = [(seed, kind, grid) for seed in range(SEEDS) for kind, grids in KINDS.items()
               for grid in grids if str(seed) not in runs.get(f"{grid}, {kind}", {})]
    for seed, kind, grid in missing[:count]:
        texts = [stories, docstrings] if kind == "mixed" else [stories]
        row, student = train(model, m, texts, GRIDS[grid], seed, kind != "scales", judge.stories)
        runs.setdefault(f"{grid}, {kind}", {})[str(seed)] = row | judge.all(judge.llama(student))
        record["torch"] = torch.__version__
        write(record)
        print(f"{grid}, {kind}, seed {seed}: "
              f"{runs[f'{grid}, {kind}'][str(seed)]['stories']:.4f}", flush=True)


def share(lost: float, best: float, now: float) -> float:
    """The share of the loss that rounding cost which is won back, of three perplexities."""
    return (math.log(lost) - math.log(now)) / (math.log(lost) - math.log(best))


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("rounded", "trained"))
    parser.add_argument("--runs", type=int, default=None, help="how many to make now; all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    model = load(SMALL, dtype=torch.float32)
    judge = Judge(model)
    if options.part == "rounded":
        round_all(record, model, judge)
    else:
        train_all(record, model, judge, options.runs)


if __name__ == "__main__":
    main()
