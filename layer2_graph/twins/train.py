"""Train one twin on the stories of the corpus:  python -m layer2_graph.twins.train moe --seed 0

B: sequences   T: tokens of each
Everything is fp32 on one thread, and a step's batch depends on seed and step alone: a training that
was stopped, by --stop or otherwise, resumes from .cache/ and ends with the same weights.
On a CPU without instructions for bf16 autocast is many times slower than fp32.
Rounding is that of the CPU:
with AVX-512 hybrid-0 ends at another perplexity, with ATEN_CPU_CAPABILITY=avx2 at the recorded one.
A run writes NAME-SEED.json into its variant's folder of runs/: perplexity on held-out stories at
some steps, how often each expert was chosen there, and by which tokens of the first story.
At its end that of seed 0 writes the folder of a variant that ships: dense, moe, latent and hybrid,
which a lesson or the engine runs.
Of the others (GQA, MQA, a window, states alone) a lesson shows the score alone, so runs/ has that;
a run makes the weights again.
"""

import argparse
import hashlib
import json
import math
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from layer2_graph.models import SMALL, TWINS
from layer2_graph.small.corpus import stories
from layer2_graph.twins.attention import ATTENTIONS
from layer2_graph.twins.linear import LINEARS
from layer2_graph.twins.model import EPS, ROOM, STEPS, THETA, VARIANTS, C, D, H, L, Twin, V

RUNS = TWINS / "runs"
SAVED_EVERY = 50        # steps
STATES = TWINS.parents[1] / ".cache" / "twins"           # of trainings; git ignores it
TEXT = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")    # the small model's
B = 4
T = 256
JUDGED = (250, 500, 1000, 1500)                         # steps after which a twin is judged
RATE = 4e-3             # the highest, after a twentieth of the steps
DECAY = 0.1             # of matrices
TWIN_VARIANTS = VARIANTS | ATTENTIONS | LINEARS
SHARED = {"vocab_size": V, "hidden_size": C, "num_hidden_layers": L, "num_attention_heads": H,
          "num_key_value_heads": H, "head_dim": D, "hidden_act": "silu",
          "max_position_embeddings": ROOM, "rms_norm_eps": EPS, "rope_theta": THETA,
          "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1,
          "torch_dtype": "float16"}


# ---- the text


def tokens_of(part: str) -> list[Tensor]:
    """The stories of a part of the corpus, in the small model's tokens."""
    return encoded(stories(part))


def encoded(texts: list[str]) -> list[Tensor]:
    """Texts in the small model's tokens."""
    tokenizer = Tokenizer.from_file(str(SMALL / "tokenizer.json"))
    return [torch.tensor(encoding.ids) for encoding in
            tokenizer.encode_batch(texts, add_special_tokens=False)]


def batch(stream: Tensor, begins: Tensor, seed: int, step: int) -> Tensor:      # -> (B, T + 1)
    """Windows of the stream.
    Half of them, about, begin where a story does."""
    rng = np.random.default_rng((seed, step))
    last = len(stream) - T - 1
    places = [rng.integers(last) if rng.random() < 0.5 else min(int(rng.choice(begins)), last)
              for _ in range(B)]
    return torch.stack([stream[place:place + T + 1] for place in places])


@torch.no_grad()
def judge(twin: Twin, documents: list[Tensor]) -> tuple[float, list[list[int]]]:
    """Perplexity a token, each story cut at T + 1 tokens and read alone, and how often each expert
    of each layer was chosen.
    """
    total = 0.0
    count = 0
    loads = [Counter[int]() for _ in twin.experts()]
    for document in documents:
        text = document[:T + 1]
        total += float(cross_entropy(twin(text[None, :-1])[0], text[1:], reduction="sum"))
        count += len(text) - 1
        for load, layer in zip(loads, twin.experts(), strict=True):
            load.update(layer.choices.flatten().tolist())
    return math.exp(total / count), [[load[e] for e in range(len(layer.experts))]
                                     for load, layer in zip(loads, twin.experts(), strict=True)]


@torch.no_grad()
def experts_of(twin: Twin, text: Tensor) -> dict:
    """The tokens of a text, and the k experts of each in each layer."""
    twin(text[None])
    return {"tokens": text.tolist(),
            "experts": [layer.choices.tolist() for layer in twin.experts()]}


@torch.no_grad()
def by_position(twin: Twin, documents: list[Tensor]) -> list[float]:
    """Perplexity a token of each quarter of the T places, of the same texts as `judge`."""
    losses = torch.full((len(documents), T), torch.nan)
    for row, document in zip(losses, documents, strict=True):
        text = document[:T + 1]
        row[:len(text) - 1] = cross_entropy(twin(text[None, :-1])[0], text[1:], reduction="none")
    return [round(math.exp(part.nanmean()), 4) for part in losses.chunk(4, 1)]


# ---- training


def rate(done: float) -> float:
    """The share of the highest rate at a share of the steps: up for a twentieth, then down to 0."""
    return min(done / 0.05, (1 - done) / 0.95)


def optimiser_of(twin: Twin) -> torch.optim.AdamW:
    weights = list(twin.parameters())
    return torch.optim.AdamW(
        [{"params": [w for w in weights if w.ndim == 2], "weight_decay": DECAY},
         {"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0}], betas=(0.9, 0.98))


def one_step(twin: Twin, optimiser: torch.optim.AdamW, tokens: Tensor, step: int) -> None:
    for group in optimiser.param_groups:
        group["lr"] = RATE * rate((step + 1) / STEPS)
    logits = twin(tokens[:, :-1])                               # (B, T, V)
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss = loss + sum(layer.loss for layer in twin.experts())
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    optimiser.step()
    for layer in twin.experts():
        layer.step()


def train(name: str, seed: int, stop: int) -> None:
    """Steps up to `stop`, from where the run was."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    twin = Twin(TWIN_VARIANTS[name])
    optimiser = optimiser_of(twin)
    saved = STATES / f"{name}-{seed}.pt"
    run: dict[str, Any] = {"step": 0, "seconds": 0.0, "perplexity": {}, "loads": [], "story": {}}
    if saved.exists():
        state = torch.load(saved)
        run = state["run"]
        twin.load_state_dict(state["twin"])
        optimiser.load_state_dict(state["optimiser"])
    documents = tokens_of("train")
    stream = torch.cat(documents)
    begins = torch.tensor([0, *map(len, documents[:-1])]).cumsum(0)
    held_out = tokens_of("held out")
    while run["step"] < stop:
        begin = time.process_time()
        one_step(twin, optimiser, batch(stream, begins, seed, run["step"]), run["step"])
        run["seconds"] += time.process_time() - begin
        run["step"] += 1
        if run["step"] in JUDGED:
            score, run["loads"] = judge(twin, held_out)
            run["story"] = experts_of(twin, held_out[0][:T])
            run["perplexity"][run["step"]] = round(score, 4)
            run["by_position"] = by_position(twin, held_out)
            print(f"{name}-{seed} step {run['step']:5}  perplexity {score:.3f}  "
                  f"{run['seconds']:.0f} s of a core", flush=True)
        if run["step"] % SAVED_EVERY == 0 or run["step"] == stop:
            keep({"run": run, "twin": twin.state_dict(), "optimiser": optimiser.state_dict()},
                 saved)
    write(name, seed, twin, run)


def keep(state: dict[str, Any], saved: Path) -> None:
    """Replace the state of a training that was kept before, in one step."""
    saved.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, fresh := saved.with_suffix(".new"))
    fresh.replace(saved)


def write(name: str, seed: int, twin: Twin, run: dict) -> None:
    """The run's row, and at its end the folder of a variant that ships."""
    folder = TWINS / name
    variant = TWIN_VARIANTS[name]
    rows = RUNS / variant.runs
    row = run | {"of": STEPS, "seed": seed, "tokens": run["step"] * B * T,
                 "torch": torch.__version__,
                 "weights": sum(weight.numel() for weight in twin.parameters())}
    if variant.entries and seed == 0 and run["step"] == variant.steps:
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(variant.entries | SHARED, indent=2) + "\n")
        for file in TEXT:
            shutil.copy(SMALL / file, folder / file)
        path = folder / "model.safetensors"
        save_file({key: weight.half().contiguous() for key, weight in twin.state_dict().items()},
                  path, metadata={"format": "pt"})
        row["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    rows.mkdir(parents=True, exist_ok=True)
    (rows / f"{name}-{seed}.json").write_text(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=tuple(TWIN_VARIANTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop", type=int, help="the step to stop at for now")
    options = parser.parse_args()
    train(options.name, options.seed, options.stop or TWIN_VARIANTS[options.name].steps)


if __name__ == "__main__":
    main()
