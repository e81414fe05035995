"""What zeros cost:  python -m layer2_graph.bench.sparsity weights; … contexts

weights: perplexity of the small model by pattern, score and share of zeros.
Scores come from the text that chose the best step of training, and that neither trains nor judges.
contexts: windows of held-out stories, one after the other, read by each rule of sparse_context.
Both take a part of the held-out text, so that each ends in a few minutes of one core: the record
says how much. benchmarks/sparsity.json has both.
"""

import sys
from functools import cache

import torch

from lab.course import ROOT
from layer2_graph import sparse_context
from layer2_graph.bench.weight_bits import keep
from layer2_graph.checkpoint import Tokenizer
from layer2_graph.g01_llama import load
from layer2_graph.g07_weight_quantization import hessians, perplexity
from layer2_graph.models import SMALL
from layer2_graph.pruning import (
    by_chance,
    by_curvature,
    by_fisher,
    by_magnitude,
    channels,
    fisher,
    in_2_4,
    in_2_4_down,
    of_all,
    of_rows,
    pruned,
)
from layer2_graph.small.corpus import BEGIN, stories

RECORD = ROOT / "benchmarks" / "sparsity.json"
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
EACH = 12                       # one held-out story of this many is judged
WINDOW = 512                    # tokens of a window, the model's context
WINDOWS = 64
SEED = 0                        # of the random score; nothing else is drawn
BUDGETS = (2, 4, 8, 16)


@cache
def small():
    torch.set_num_threads(1)
    model = load(SMALL, dtype=torch.float32)
    return model, Tokenizer(SMALL, model.config)


def tokens(texts):
    model, tokenizer = small()
    return [tokenizer.encode(text.removeprefix(BEGIN))[:model.config.room] for text in texts]


def scores():
    """{name: Score}, and the number of tokens that they were made from."""
    model, _ = small()
    calibration = tokens(stories("dev"))
    return {"random": by_chance(model, SEED), "magnitude": by_magnitude(model),
            "curvature": by_curvature(model, hessians(model, calibration)),
            "Fisher": by_fisher(model, fisher(model, calibration))}, sum(map(len, calibration))


def masks_of(score):
    """(pattern, share of zeros in the matrices that it is for, masks)"""
    for share in SHARES:
        yield "rows", share, of_rows(score, share)
        yield "all together", share, of_all(score, share)
        yield "channels", share, channels(score, share)
    yield "2:4", 0.5, in_2_4(score)
    yield "2:4 down the columns", 0.5, in_2_4_down(score)


def weights():
    model, _ = small()
    judged = tokens(stories("held out")[::EACH])
    rows = []
    known, calibration = scores()
    for name, score in known.items():
        for pattern, share, masks in masks_of(score):
            if name == "random" and (pattern != "rows" or share > 0.5):
                continue
            rows.append({"score": name, "pattern": pattern, "zeros": share,
                         "perplexity": perplexity(pruned(model, masks), judged)})
            print(rows[-1], flush=True)
    return {"dense": perplexity(model, judged), "rows": rows, "seed": SEED,
            "calibration_tokens": calibration,
            "stories": len(judged), "tokens": sum(len(text) - 1 for text in judged)}


def windows(count):
    """The first `count` windows of the held-out stories, one after the other: [[int]]."""
    _, tokenizer = small()
    flat: list[int] = []
    for text in stories("held out"):
        flat += tokenizer.encode(text)
        if len(flat) >= count * WINDOW:
            break
    return [flat[i * WINDOW:(i + 1) * WINDOW] for i in range(count)]


def contexts():
    model, _ = small()
    texts = windows(WINDOWS)
    begin = WINDOW // 2
    rows = {"all": {"": sparse_context.judge(model, texts, sparse_context.every, begin)}}
    for budget in BUDGETS:
        for name, rule in sparse_context.rules(budget).items():
            rows.setdefault(name, {})[budget] = sparse_context.judge(model, texts, rule, begin)
            print(budget, name, rows[name][budget], flush=True)
    return {"rows": rows, "windows": WINDOWS, "from": begin, "to": WINDOW,
            "slots": sparse_context.S}


if __name__ == "__main__":
    sys.exit(keep({"weights": weights, "contexts": contexts}, RECORD))
