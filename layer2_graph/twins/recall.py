"""How many pairs can a memory tell apart?  python -m layer2_graph.twins.recall

n: pairs of a key and a value that a memory is shown   B: memories   N: width of keys and of values
A memory is one head of one layer, with tables of learnt vectors for keys, values, questions and
answers, and nothing else: attention over the pairs, the sum of outer products, or the delta rule.
It is shown n pairs with different keys, and then asked for the value of each.
Trained for each batch with another n; writes runs/linear/recall-SEED.json, the share of right
answers by n. fp32.
"""

import argparse
import json

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from layer2_graph.g13_state_space import chunked, delta_chunk
from layer2_graph.twins.train import RUNS

KINDS = ("attention", "linear", "delta")
N = 16
WORDS = 64              # different keys, and as many values
B = 32
STEPS = 1500
RATE = 1e-2
PAIRS = (2, 4, 8, 12, 16, 24, 32)
ROUNDS = 40             # batches that a share is counted over


class Memory(nn.Module):
    """One head and its tables."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.keys, self.values, self.questions, self.answers = (
            nn.Parameter(torch.randn(WORDS, N) * N ** -0.5) for _ in range(4))
        self.beta = nn.Parameter(torch.zeros(WORDS))
        self.sharpness = nn.Parameter(torch.tensor(4.0))

    def forward(self, keys: Tensor, values: Tensor) -> Tensor:      # 2 × (B, n) -> (B, n, WORDS)
        """Scores of the value of each key, in order, after all pairs were shown."""
        k = normalize(self.keys[keys], dim=-1)                      # (B, n, N)
        v = self.values[values]                                     # (B, n, N)
        q = self.sharpness * normalize(self.questions[keys], dim=-1)
        if self.kind == "attention":
            return (q @ k.mT).softmax(-1) @ v @ self.answers.T
        k, v = k.transpose(0, 1), v.transpose(0, 1)                 # (n, B, N): a head for each
        stays = k.new_zeros(k.shape[:2])                            # (n, B)
        if self.kind == "linear":
            _, state = chunked(k, k, v, stays)
        else:
            state = k.new_zeros(k.shape[1], N, N)
            _, state = delta_chunk(k, k, v, stays, self.beta[keys.T].sigmoid(), state)
        return q @ state @ self.answers.T


def draw(n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:    # 2 × (B, n)
    """n pairs with different keys for each memory."""
    keys = torch.rand(B, WORDS, generator=rng).argsort(-1)[:, :n]
    return keys, torch.randint(WORDS, (B, n), generator=rng)


def shares(kind: str, seed: int) -> dict[int, float]:
    """{n: share of right answers} of a memory after its training."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    memory = Memory(kind)
    optimiser = torch.optim.AdamW(memory.parameters(), weight_decay=0)
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - step / STEPS)
        keys, values = draw(int(torch.randint(2, max(PAIRS) + 1, (), generator=rng)), rng)
        loss = cross_entropy(memory(keys, values).flatten(0, 1), values.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {n: right_share(memory, n, rng) for n in PAIRS}


@torch.no_grad()
def right_share(memory: Memory, n: int, rng: torch.Generator) -> float:
    right = 0
    for _ in range(ROUNDS):
        keys, values = draw(n, rng)
        right += int((memory(keys, values).argmax(-1) == values).sum())
    return round(right / (ROUNDS * B * n), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    torch.set_num_threads(1)
    row = {"steps": STEPS, "seed": seed, "width": N, "words": WORDS, "torch": torch.__version__,
           "shares": {kind: shares(kind, seed) for kind in KINDS}}
    print(json.dumps(row["shares"], indent=1))
    (RUNS / "linear" / f"recall-{seed}.json").write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
