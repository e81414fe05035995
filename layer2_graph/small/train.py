"""Train the small model and its draft on the corpus of corpus.py.
Three commands, in this order:

    python layer2_graph/small/train.py tokenizer
    python layer2_graph/small/train.py small --steps 2000
    python layer2_graph/small/train.py draft --steps 1000

B: sequences   T: tokens of each   the other letters as in o02
What ships is the running mean of the weights, at the step that does best on text that is used
neither to learn nor to judge.
A stopped training resumes where it was: its state is in .cache/.
Products are in bf16, sums and weights in fp32.
Other roundings give other weights.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn import functional

from day02_overview.nano.train import forward, shapes
from layer2_graph.small.corpus import ASSISTANT, BEGIN, END, USER, corpus

FOLDERS = {"small": Path(__file__).parent, "draft": Path(__file__).parents[1] / "draft"}
STATES = Path(__file__).parents[2] / ".cache"           # of trainings; git ignores it
B = 4
T = 512
SEED = 0
RATE = {"small": 3e-3, "draft": 5e-3}       # the highest, after a twentieth of the steps
MEAN = 0.98                                 # the running mean's: about the last fifty steps
DECAY = 0.1                                 # of matrices
CHAT = ("{{ bos_token }}{% for message in messages %}"
        "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}"
        "{{ message['content'] + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")


# ---- the folders


def make_tokenizer(texts, size):
    """A byte-level byte-pair tokenizer: any text goes in, and the same comes out."""
    marks = [BEGIN, END, USER, ASSISTANT]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, special_tokens=marks, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))])
    return tokenizer


def write_folders(tokenizer):
    """Everything but the weights, in both folders: the draft speaks the same tokens."""
    begin, end = (tokenizer.token_to_id(mark) for mark in (BEGIN, END))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END,
             "model_max_length": T, "clean_up_tokenization_spaces": False, "chat_template": CHAT}
    for folder in FOLDERS.values():
        tokenizer.save(str(folder / "tokenizer.json"))
        write_json(folder / "tokenizer_config.json", words)
        write_json(folder / "generation_config.json",
                   {"bos_token_id": begin, "eos_token_id": end, "do_sample": False})


def write_json(path, entries):
    path.write_text(json.dumps(entries, indent=2) + "\n", "utf-8")


def read_json(path):
    return json.loads(path.read_text("utf-8"))


def encode(tokenizer, texts):
    """[tokens of a text, as int64].
    The marks are in the texts already."""
    return [torch.tensor(encoding.ids) for encoding in
            tokenizer.encode_batch(texts, add_special_tokens=False)]


# ---- training


def windows(documents, rng):                        # yields (B, T + 1)
    """Texts in random order, one after another.
    Half of the rows begin at a text's beginning."""
    def endless():
        while True:
            for i in rng.permutation(len(documents)):
                yield documents[i]

    source = endless()
    rest = torch.empty(0, dtype=torch.int64)
    while True:
        rows = []
        for _ in range(B):
            if rng.random() < 0.5:
                rest = rest[:0]
            pieces = [rest]
            while sum(map(len, pieces)) <= T:
                pieces.append(next(source))
            row = torch.cat(pieces)
            rows.append(row[:T + 1])
            rest = row[T + 1:]
        yield torch.stack(rows)


def new_weights(m):
    """Random weights.
    What adds to the stream is smaller, as there are 2·L such sums."""
    w = {}
    for name, shape in shapes(m):
        w[name] = torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * shape[-1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            w[name] *= (2 * m["num_hidden_layers"]) ** -0.5
    w["model.embed_tokens.weight"] *= 0.5
    return {name: weight.requires_grad_() for name, weight in w.items()}


def mean_loss(m, w, tokens):                        # (B, T + 1) -> ()
    with torch.autocast("cpu", torch.bfloat16):
        logits = forward(m, w, tokens[:, :-1])      # (B, T, V)
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def rate(done):
    """The share of the highest rate at a share of the steps: up for a twentieth, then down to 0."""
    return min(done / 0.05, (1 - done) / 0.95)


def optimiser_of(w):
    return torch.optim.AdamW(
        [{"params": [v for v in w.values() if v.ndim == 2], "weight_decay": DECAY},
         {"params": [v for v in w.values() if v.ndim == 1], "weight_decay": 0.0}],
        betas=(0.9, 0.98), fused=True)


@torch.no_grad()
def keep(state, name, steps, w, mean, optimiser, dev, m):
    """Judge the mean weights, ship them if they are the best so far, and save the training."""
    score = sum(mean_loss(m, mean, tokens).item() for tokens in dev) / len(dev)
    folder = FOLDERS[name]
    if score < state["best"]:
        state["best"] = score
        save_file({k: v.half() for k, v in mean.items()}, folder / "model.safetensors",
                  metadata={"format": "pt"})
        write_json(folder / "training.json", {
            "best_step": state["step"], "steps": steps, "tokens": state["step"] * B * T,
            "dev_loss": round(score, 4), "torch": torch.__version__})
    torch.save(state | {"w": w, "mean": mean, "optimiser": optimiser.state_dict()},
               STATES / f"{name}.pt")
    return score


def train(name, steps):
    torch.manual_seed(SEED)
    STATES.mkdir(exist_ok=True)
    folder = FOLDERS[name]
    saved = STATES / f"{name}.pt"
    m = read_json(folder / "config.json")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    dev = windows(encode(tokenizer, sum(corpus("dev"), [])), np.random.default_rng(SEED))
    dev = [next(dev) for _ in range(6)]
    w = new_weights(m)
    state = {"step": 0, "best": float("inf")}
    mean = {k: v.detach().clone() for k, v in w.items()}
    optimiser = optimiser_of(w)
    if saved.exists():
        before = torch.load(saved)
        state = {k: before[k] for k in state}
        w = before["w"]
        mean = before["mean"]
        optimiser = optimiser_of(w)
        optimiser.load_state_dict(before["optimiser"])
    rng = np.random.default_rng((SEED, state["step"]))
    batches = windows(encode(tokenizer, sum(corpus("train"), [])), rng)
    print(f"{name}: {sum(v.numel() for v in w.values()):,} weights, step {state['step']}",
          flush=True)
    while state["step"] < steps:
        for group in optimiser.param_groups:
            group["lr"] = RATE[name] * rate((state["step"] + 1) / steps)
        loss = mean_loss(m, w, next(batches))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
        optimiser.step()
        state["step"] += 1
        with torch.no_grad():
            torch._foreach_lerp_(list(mean.values()), list(w.values()), 1 - MEAN)
        if state["step"] % 50 == 0:
            score = keep(state, name, steps, w, mean, optimiser, dev, m)
            print(f"step {state['step']:5}  loss {loss.item():.3f}  dev {score:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("tokenizer", *FOLDERS))
    parser.add_argument("--steps", type=int, default=2000,
                        help="steps in all, including those made before it was stopped")
    options = parser.parse_args()
    if options.what == "tokenizer":
        size = read_json(FOLDERS["small"] / "config.json")["vocab_size"]
        write_folders(make_tokenizer(sum(corpus("train"), []), size))
    else:
        train(options.what, options.steps)


if __name__ == "__main__":
    main()
