"""Train the dense twin a little after its key and value heads were made fewer:

    python -m layer2_graph.twins.uptrain mean --seed 1         or first, or random

Each group of heads becomes their mean, its first head, or random numbers of the same spread.
Writes runs/attention/pooled_HOW-SEED.json: perplexity on held-out stories at once, and after some
steps.
The batches of seed 0 are those that the twin was trained on.
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


def train(name: str, seed: int) -> dict[int, float]:
    """{step: perplexity}"""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
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
        tokens = batch(stream, begins, seed, step)
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
    parser.add_argument("--seed", type=int, default=1, help="of the batches and random heads")
    options = parser.parse_args()
    name, seed = options.way, options.seed
    row = {"G": G, "perplexity": train(name, seed), "seed": seed, "torch": torch.__version__}
    (RUNS / "attention" / f"pooled_{name}-{seed}.json").write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
