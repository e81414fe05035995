"""Train the small models whose losses o05 fits, and write runs.json:

    python -m day02_overview.laws.train [SET ...]

N: parameters   D: tokens learnt, each once   L: layers   C: width   T: tokens of a window
V: vocabulary   B: windows of a step
A token is a character.
The text is the source of Python's standard library, read where it is installed (licence: PSF
License Agreement; no line of it is kept here) and cut into windows.
Files whose path has a small hash are held out, so another Python holds out the same ones.
A run learns the first D characters of the same shuffled windows, each once.
Another Python has another library, and another machine rounds differently: losses will differ.
"""

import hashlib
import json
import platform
import sys
import sysconfig
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

RUNS = Path(__file__).parent / "runs.json"
T = 64
B = 8
HELD_OUT = 2048                     # windows that losses are measured on
BYTES_HELD_OUT = 24                 # a file is held out if the last byte of its hash is less
READ = 2_500_000                    # bytes, at least, if the library has them
D_HEAD = 8                          # width of a head
ALPHABET = b"\n" + bytes(range(32, 127))
V = len(ALPHABET)
# Folders that are not read. `encodings` has tables, many alike: some held out would be learnt.
ELSEWHERE = {"site-packages", "test", "tests", "idle_test", "lib2to3", "encodings"}
RATE = {"transformer": 0.012, "lstm": 0.032}        # at C = 32; twice as much is a little better


@cache
def windows(part):
    """Windows of the part "train" or "held out" in a fixed random order, (windows, T + 1)."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = []
    size = 0
    folders = (p for p in root.iterdir() if p.is_dir() and p.name not in ELSEWHERE)
    paths = [*root.glob("*.py"), *(p for folder in folders for p in folder.rglob("*.py")
                                   if not ELSEWHERE & set(p.relative_to(root).parts))]
    by_hash = sorted((hashlib.sha256(p.relative_to(root).as_posix().encode()).digest(), p)
                     for p in paths)
    for digest, path in by_hash:
        if (digest[-1] < BYTES_HELD_OUT) == (part == "held out") and size < READ:
            texts.append(path.read_bytes())
            size += len(texts[-1])
    code = np.full(256, -1, np.int64)
    code[list(ALPHABET)] = range(V)
    ids = code[np.frombuffer(b"".join(texts), np.uint8)]
    ids = ids[ids >= 0]                             # a few characters beyond ASCII are left out
    cut = ids[:len(ids) // (T + 1) * (T + 1)].reshape(-1, T + 1)
    return torch.from_numpy(np.random.default_rng(0).permutation(cut))


@cache
def turns():
    """cos and sin of the angles by which a position turns a pair, (T, D/2) each."""
    angle = torch.arange(T)[:, None] * 1000 ** (-torch.arange(0, D_HEAD, 2) / D_HEAD)
    return angle.cos(), angle.sin()


def rope(x):                                        # (B, H, T, D)
    """Half-split, as in o02: the product of q and k depends on how far apart they are."""
    (cos, sin), (a, b) = turns(), x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    """Attention and an MLP of width 4C, a norm before each: 12 C² parameters and two norms."""

    def __init__(self, C, L):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(C), nn.RMSNorm(C)])
        self.qkv, self.out = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C, bias=False)
        self.up, self.down = nn.Linear(C, 4 * C, bias=False), nn.Linear(4 * C, C, bias=False)
        with torch.no_grad():                       # the sum of 2L branches stays near 1
            self.out.weight /= (2 * L) ** 0.5
            self.down.weight /= (2 * L) ** 0.5

    def forward(self, x):                           # (B, T, C) -> (B, T, C)
        q, k, v = (part.unflatten(-1, (-1, D_HEAD)).transpose(1, 2)
                   for part in self.qkv(self.norms[0](x)).chunk(3, -1))     # (B, H, T, D)
        mixed = functional.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    """Scores of the next character.
    The embedding serves as the head too.

    kind: "transformer", with rotary positions, or "lstm"
    """

    def __init__(self, kind, L, C):
        super().__init__()
        self.kind = kind
        self.embedding = nn.Parameter(torch.randn(V, C) * C ** -0.5)
        if kind == "transformer":
            self.body = nn.Sequential(*(Block(C, L) for _ in range(L)))
        else:
            self.body = nn.LSTM(C, C, L, batch_first=True)
        self.norm = nn.RMSNorm(C)

    def forward(self, ids):                         # (B, T) -> (B, T, V)
        x = self.embedding[ids]
        x = self.body(x) if self.kind == "transformer" else self.body(x)[0]
        return self.norm(x) @ self.embedding.T

    def count(self):
        """(all parameters, those outside the embedding)"""
        total = sum(p.numel() for p in self.parameters())
        return total, sum(p.numel() for p in [*self.body.parameters(), *self.norm.parameters()])


def losses(model):
    """Nats of each held-out character, (windows, T)."""
    texts = windows("held out")[:HELD_OUT]
    with torch.no_grad():
        return torch.cat([functional.cross_entropy(model(part[:, :-1]).transpose(1, 2), part[:, 1:],
                                                   reduction="none") for part in texts.split(128)])


def train(kind, L, C, D, seed=0, pace=1):
    """One run: (its row in runs.json, losses of the held-out windows (HELD_OUT,)).

    D: characters, no window twice    pace: factor on the learning rate
    """
    learnt = windows("train")[:D // T]
    steps = D // (T * B)
    rate = pace * RATE[kind] * 32 / C
    if len(learnt) < D // T or not steps:
        raise ValueError(f"train: expected D from {T * B} to {len(windows('train')) * T:,} "
                         f"characters, all that there is to read; got {D:,}")
    torch.manual_seed(seed)
    model = Model(kind, L, C)
    start = time.process_time()
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01,
                                  fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(
        (step + 1) / (0.1 * steps), 0.02 + 0.98 * (1 - step / steps)))      # up, then down to 0
    for part in learnt[torch.randperm(len(learnt))].split(B)[:steps]:       # (B, T + 1)
        loss = functional.cross_entropy(model(part[:, :-1]).transpose(1, 2), part[:, 1:])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    seconds, nats = time.process_time() - start, losses(model).double()     # (HELD_OUT, T)
    of_window, (N, body) = nats.mean(1), model.count()
    return {"kind": kind, "L": L, "C": C, "N": N, "N_body": body, "D": steps * B * T,
            "flops": 6 * N * steps * B * T, "seed": seed, "pace": pace, "rate": round(rate, 5),
            "loss": round(of_window.mean().item(), 4),
            "error": round((of_window.std() / len(of_window) ** 0.5).item(), 4),
            "by_position": [round(part.mean().item(), 3)
                            for part in nats.mean(0).split([1, 1, 2, 4, 8, 16, 32])],
            "seconds": round(seconds, 1)}, of_window.numpy()


def plan():
    """{set: arguments of its runs}.

    "grid" has the runs of at most 5.2e10 FLOPs, to be fitted; "far" has the same sizes at up to
    7.3 times the FLOPs of the dearest of these, to be predicted.
    """
    sizes = [(1, 16), (2, 16), (2, 24), (2, 40), (3, 56)]
    lstms = (18, 25, 39, 66, 115)
    cheap = {16: 5, 17: 4, 18: 3, 19: 3}            # log2 of D: how many of the sizes
    return {
        "grid": [("transformer", *size, 2 ** d) for d, n in cheap.items() for size in sizes[:n]],
        "far": [("transformer", *sizes[i], 2 ** d)
                for i, d in ((3, 18), (4, 17), (3, 19), (4, 18), (4, 19))],
        "lstm": [("lstm", 1, C, 2 ** d) for d in (17, 19) for C in lstms],
        "depth": [("transformer", L, C, 2 ** 17, 0, pace) for pace in (0.5, 1)
                  for L, C in ((1, 64), (4, 32), (7, 24), (16, 16))],
        "rate": [(kind, L, 32, 2 ** 17, 0, pace) for kind, L in (("transformer", 2), ("lstm", 1))
                 for pace in (0.25, 0.5, 1, 2)],
        "seed": [("transformer", 2, 24, 2 ** 17, seed) for seed in (1, 2, 3)],
    }


def kept():
    """The contents of runs.json so far: its runs, and how they were made."""
    if RUNS.exists():
        return json.loads(RUNS.read_text("utf-8"))
    return {"command": "python -m day02_overview.laws.train", "python": platform.python_version(),
            "torch": torch.__version__, "machine": "CPU, one thread on a shared machine; seconds "
            "are those of its processor", "T": T, "B": B, "V": V, "judged on": HELD_OUT, "runs": []}


def main():
    """Make the named sets, or all.
    A run that is in runs.json is not repeated."""
    torch.set_num_threads(1)
    for name in sys.argv[1:] or plan():
        for arguments in plan()[name]:
            if any((run["set"], *run["made"]) == (name, *arguments) for run in kept()["runs"]):
                continue
            row, _ = train(*arguments)
            stored = kept()
            stored["runs"].append({"set": name, "made": arguments} | row)
            RUNS.write_text(json.dumps(stored).replace('{"set"', '\n{"set"') + "\n", "utf-8")
            print(name, row, flush=True)


if __name__ == "__main__":
    main()
