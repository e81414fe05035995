"""What guesses gain and cost, into speculation.json, both parts or one:

    python -m layer3_system.bench.s10_speculative [acceptance] [speed]

acceptance: how often a guess holds, by kind of text, draft and rule, along held-out texts
speed: tokens a second with guesses ÷ without, in the same run, of the 135M shape on one thread.
The clock is that of the process, so that other work on the machine counts little.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from layer1_kernels import kernels
from layer2_graph import Batch, CpuLlama, Llama, PagedCache, Tokenizer, cpu_kernels, load, tile
from layer2_graph.models import SMALL, shape_135m
from layer2_graph.small.corpus import corpus
from layer3_system.engine.drafts import Drafter, Sampler
from layer3_system.engine.draws import Draw
from layer3_system.engine.lengths import Lengths, StepCost
from layer3_system.s01_request import SamplingParams, draw
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.s07_engine import Engine
from layer3_system.s10_speculative import draw_by_noise, lookup
from layer3_system.server.drafters import measured_cost
from layer3_system.testing.mock_llama import ByteTokenizer

RECORD = Path(__file__).with_name("speculation.json")
TEXTS = 10              # of a kind
PLACES = 40             # tokens of each, at most
RACES = 4               # draws at a place
ROUNDS = 3              # of each speed
LENGTH = 16             # tokens of an answer that is timed
MAX_GUESSES = 4         # guesses of a request in a step
TEXT = [20, 40, 60, 80, 100, 120, 140]      # what repeats in an answer that is timed
THREADS = 1             # a second one would wait for other work


# ---- acceptance


def rows_of(model: Llama, tokens: list[int]) -> np.ndarray:         # (N,) -> (N, V) float64
    """Shares of the token after each one of a text."""
    logits = model.forward(whole(tokens), PagedCache(model.config, 64, 16), every=True)
    return torch.softmax(logits.double(), -1).numpy()


def whole(tokens: list[int]) -> Batch:
    """A text as one step."""
    N = len(tokens)
    places = torch.arange(N)
    table = torch.arange(64, dtype=torch.int32)[None]
    return Batch(torch.tensor(tokens), places, places, table,
                 torch.tensor([0, N], dtype=torch.int32), torch.tensor([N], dtype=torch.int32))


def agreements(p: np.ndarray, q: np.ndarray, rng: np.random.Generator) -> dict[str, float]:
    """How often a guess holds by each rule, at one place.   (V,), (V,)"""
    u = np.maximum(rng.random((RACES, len(p))), 2.0**-53)
    one = rng.random(RACES)
    logs = [np.log(np.maximum(row, 1e-300)) for row in (p, q)]
    return {"rejection": float(np.minimum(p, q).sum()),
            "one noise a token": float(np.mean([draw_by_noise(p, row) == draw_by_noise(q, row)
                                                for row in u])),
            "one number": float(np.mean([draw(logs[0], v) == draw(logs[1], v) for v in one])),
            "the model's own draw": float((p * q).sum()),
            "greedy": float(p.argmax() == q.argmax())}


def looked_up(tokens: list[int]) -> tuple[int, int]:
    """(guesses that held, guesses that were judged) of look-up along a text."""
    hits = 0
    trials = 0
    for n in range(2, len(tokens)):
        for guess, token in zip(lookup(tokens[:n], MAX_GUESSES), tokens[n:], strict=False):
            trials += 1
            if guess != token:
                break
            hits += 1
    return hits, trials


def acceptance() -> dict[str, dict[str, float]]:
    """{kind of text: {rule: share of guesses that hold}}, of the shipped draft and of look-up."""
    small = load(SMALL, dtype=torch.float32)
    draft = load(SMALL.parent / "draft", dtype=torch.float32)
    words = Tokenizer(SMALL, small.config)
    rng = np.random.default_rng(0)
    record = {}
    for kind, texts in corpus("held out")._asdict().items():
        encoded = [words.encode(text)[:PLACES] for text in texts[::max(len(texts) // TEXTS, 1)]]
        rows = [agreements(p, q, rng) for tokens in encoded
                for p, q in zip(rows_of(small, tokens), rows_of(draft, tokens), strict=True)]
        hits, trials = np.sum([looked_up(tokens) for tokens in encoded], 0).tolist()
        record[kind] = {rule: round(float(np.mean([row[rule] for row in rows])), 3)
                        for rule in rows[0]}
        record[kind]["look-up"] = round(hits / trials, 3)
    hits, trials = np.sum([looked_up(tokens * 2) for tokens in encoded], 0).tolist()
    record["a text twice"] = {"look-up": round(hits / trials, 3)}
    return record


# ---- speed


def rate(model: Llama, B: int, drafter: Drafter) -> tuple[float, float]:
    """(tokens a second of CPU time of B answers after their prompts, tokens a step of each)"""
    pool = PrefixPool(B * 8)
    engine = Engine(model, ByteTokenizer(), pool, Scheduler(pool, B, 1024),
                    kernels("torch").sample, drafter)
    for b in range(B):
        engine.submit([3 + b, *TEXT, *TEXT], SamplingParams(LENGTH, temperature=0, ignore_eos=True))
    engine.step()
    began = time.process_time()
    sizes = []
    while engine.busy:
        sizes += [len(output.tokens) for output in engine.step()]
    return sum(sizes) / (time.process_time() - began), sum(sizes) / len(sizes)


class Recital(Drafter):
    """Each answer is the same few tokens again and again, whatever the scores are: random weights
    would write nothing that repeats."""

    def draw(self, draws: list[Draw], scores: Tensor,
             sample: Sampler) -> Tensor:                # (draws, V) -> (draws,)
        tokens = super().draw(draws, scores, sample)
        places = [len(draw.request.output) + draw.place for draw in draws]
        return torch.tensor([TEXT[place % len(TEXT)] for place in places], dtype=tokens.dtype)


def drafters(cost: StepCost) -> dict[str, Callable[[], Drafter]]:
    """{name: a new Drafter}"""
    look = partial(lookup, count=MAX_GUESSES)

    def wrong(tokens: list[int]) -> list[int]:
        return [1] * MAX_GUESSES

    return {"plain": lambda: Recital(lambda tokens: []),
            "look-up": lambda: Recital(look),
            "look-up, adaptive": lambda: Recital(look, lengths=Lengths(MAX_GUESSES, cost)),
            "wrong guesses": lambda: Recital(wrong),
            "wrong guesses, adaptive": lambda: Recital(wrong, lengths=Lengths(MAX_GUESSES, cost))}


def speed(sizes: tuple[int, ...] = (1, 8, 32)) -> dict:
    """{"ratios": {B: {drafter: [tokens a second ÷ plain, a round each]}}, "median": their medians,
    "tokens": {B: {drafter: tokens a step of a request}}, "cost": a StepCost, …}"""
    load = round(os.getloadavg()[0], 1)
    config, weights = shape_135m()
    model = tile(CpuLlama(config, weights, cpu_kernels()))      # as `lab serve` lays it out
    cost = measured_cost(model, ByteTokenizer(), kernels("torch").sample,
                         sizes=sizes, clock=time.process_time)
    ratios: dict[str, dict[str, list[float]]] = {}
    tokens: dict[str, dict[str, float]] = {}
    for B in sizes:
        arms = drafters(cost)
        rows: dict[str, list[float]] = {name: [] for name in arms}
        for turn in range(ROUNDS):
            names = list(arms)[turn % len(arms):] + list(arms)[:turn % len(arms)]
            rates = {name: rate(model, B, arms[name]()) for name in names}
            for name in arms:
                rows[name].append(round(rates[name][0] / rates["plain"][0], 3))
        ratios[str(B)] = rows
        tokens[str(B)] = {name: round(each, 3) for name, (_, each) in rates.items()}
    return {"cores": os.cpu_count(), "threads": THREADS, "load_before": load,
            "cost": {name: round(value, 6) for name, value in cost._asdict().items()},
            "ratios": ratios, "tokens": tokens,
            "median": {B: {name: median(row) for name, row in rows.items()}
                       for B, rows in ratios.items()}}


PARTS: dict[str, Callable[[], dict]] = {"acceptance": acceptance, "speed": speed}


def main() -> None:
    torch.set_num_threads(THREADS)
    for part in sys.argv[1:] or PARTS:
        result = PARTS[part]()
        record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
        record[part] = result
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        print(json.dumps(record[part], indent=1))


if __name__ == "__main__":
    main()
