"""Train the dense twin a little after its key and value heads were made fewer:

    python -m layer2_graph.twins.uptrain mean      or first, or random

Each group of heads becomes their mean, its first head, or random numbers of the same spread. Writes
runs/attention/pooled_HOW.json: perplexity on held-out stories at once, and after some steps.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from layer2_graph.checkpoint import read_weights
from layer2_graph.config import read_config
from layer2_graph.g11_attention_variants import pool_heads
from layer2_graph.models import TWINS
from layer2_graph.twins.model import MLP, Attention, D, H, Twin, Variant
from layer2_graph.twins.train import RUNS, batch, judge, optimiser_of, tokens_of

G = 2
STEPS = 100             # of 1,024 tokens: a fifteenth of the training
JUDGED = (0, 50, 100)
RATE = 1e-3             # at the first step, a quarter of the training's highest; 0 at the last
SEED = 1                # of the batches: others than the training had


def first_heads(weight: Tensor) -> Tensor:                      # (H·D, C) -> (G·D, C)
    return weight.unflatten(0, (G, H // G, D))[:, 0].flatten(0, 1)


def random_heads(weight: Tensor) -> Tensor:                     # (H·D, C) -> (G·D, C)
    return torch.randn_like(first_heads(weight)) * weight.std()


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda weight: pool_heads(weight, H, G), "first": first_heads, "random": random_heads}


def converted(way: Callable[[Tensor], Tensor]) -> Twin:
    """The dense twin with G key and value heads."""
    weights = read_weights(TWINS / "dense", read_config(TWINS / "dense"), torch.float32)
    twin = Twin(Variant(partial(MLP, 256), mixer=partial(Attention, G)))
    twin.load_state_dict({
        name: way(w) if name.endswith(("k_proj.weight", "v_proj.weight")) else w
        for name, w in weights.items()})
    return twin


def train(name: str) -> dict[int, float]:
    """{step: perplexity}"""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    twin = converted(WAYS[name])
    optimiser = optimiser_of(twin)
    documents = tokens_of("train")
    stream = torch.cat(documents)
    begins = torch.tensor([0, *map(len, documents[:-1])]).cumsum(0)
    held_out = tokens_of("held out")
    scores = {0: round(judge(twin, held_out)[0], 4)}
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - step / STEPS)
        tokens = batch(stream, begins, SEED, step)
        loss = cross_entropy(twin(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        optimiser.step()
        if step + 1 in JUDGED:
            scores[step + 1] = round(judge(twin, held_out)[0], 4)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("way", choices=tuple(WAYS))
    name = parser.parse_args().way
    row = {"G": G, "perplexity": train(name), "seed": SEED, "torch": torch.__version__}
    (RUNS / "attention" / f"pooled_{name}.json").write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
