"""Judge the shipped weights on held-out text:  python layer2_graph/small/evaluate.py

Writes report.json: perplexity a token of the small model, its draft, a trigram model and the small
model in int4, hashes of the corpus and of the files, and texts that the small model writes.
A text counts up to the model's context of 512 tokens, and is read alone.
"""

import hashlib
import math
import platform
import time

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional

from day02_overview.nano.train import forward
from layer2_graph.small.corpus import BEGIN, END, corpus, document
from layer2_graph.small.train import FOLDERS, encode, read_json, write_json
from layer2_graph.small.trigram import Trigram

REPORT = FOLDERS["small"] / "report.json"
SHIPPED = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
           "tokenizer_config.json")
GROUP = 32                                  # weights of a row that share a scale in int4
PROMPTS = ("", "Once upon a time there was a curious fox named Mira.", "Return the number of",
           "Raise ValueError if")
QUESTIONS = ("Tell me a story about an owl and a red kite.", "Write a story about Otto and a cake.")
HEAT = 0.7
SEED = 0
SOURCES = {
    "stories": "made by layer2_graph/small/stories.py",
    "docstrings": "the standard library of the Python named here; PSF License Agreement",
    "trigram": "interpolated Kneser-Ney, one discount of 0.75, counted on all that was learnt",
    "int4": "matrices of the layers; groups of 32, symmetric, round to nearest",
}


def load(name):
    """(config, weights in fp32, tokenizer) of the small model or its draft."""
    folder = FOLDERS[name]
    weights = load_file(folder / "model.safetensors")
    return (read_json(folder / "config.json"), {k: v.float() for k, v in weights.items()},
            Tokenizer.from_file(str(folder / "tokenizer.json")))


def int4(w):
    """The weights after a trip through int4: 32 of a row share a scale, and their largest is ±7.

    Round to nearest, symmetric.
    The embedding, which is the head too, and the norms stay.
    """
    def trip(weight):                               # (N, K) -> (N, K)
        groups = weight.unflatten(1, (-1, GROUP))                           # (N, K/32, 32)
        scale = groups.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 7
        return ((groups / scale).round().clamp(-8, 7) * scale).flatten(1)

    return {k: trip(v) if k.endswith("proj.weight") else v for k, v in w.items()}


@torch.no_grad()
def losses(m, w, documents, rows=16):
    """-log of the chance of each token but the first, of each document: [tensor]."""
    room = m["max_position_embeddings"]
    results = [None] * len(documents)
    order = sorted(range(len(documents)), key=lambda i: len(documents[i]))
    for begin in range(0, len(order), rows):
        some = order[begin:begin + rows]
        cut = [documents[i][:room] for i in some]
        tokens = torch.nn.utils.rnn.pad_sequence(cut, batch_first=True)    # what follows changes
        logits = forward(m, w, tokens[:, :-1])                              # nothing before it
        for i, row, text in zip(some, logits, cut, strict=True):
            results[i] = functional.cross_entropy(row[:len(text) - 1], text[1:], reduction="none")
    return results


def perplexity(losses):
    """exp of the mean loss a token, of a list of documents' losses."""
    return math.exp(sum(sum(map(float, some)) for some in losses) / sum(map(len, losses)))


@torch.no_grad()
def write(m, w, tokens, end, heat, rng, count=300):
    """The tokens that the model adds. heat 0 takes the likeliest."""
    tokens = list(tokens)
    begin = len(tokens)
    while len(tokens) < min(m["max_position_embeddings"], begin + count):
        logits = forward(m, w, torch.tensor([tokens]))[0, -1]               # (V,)
        token = int(logits.argmax()) if heat == 0 else int(
            torch.multinomial((logits / heat).softmax(0), 1, generator=rng))
        if token == end:
            break
        tokens.append(token)
    return tokens[begin:]


def samples(m, w, tokenizer):
    """[{asked, heat, text}]: not chosen, but the first that the seed gives."""
    rng = torch.Generator().manual_seed(SEED)
    starts = [(text, BEGIN + text) for text in PROMPTS]
    starts += [(text, document("", text).removesuffix(END)) for text in QUESTIONS]
    texts = []
    for question, start in starts:
        tokens = tokenizer.encode(start, add_special_tokens=False).ids
        written = write(m, w, tokens, tokenizer.token_to_id(END), HEAT, rng)
        texts.append({"asked": question, "heat": HEAT, "text": tokenizer.decode(written)})
    return texts


def judge(held_out, learnt):
    """{model: {part: perplexity}} over the same tokens of held-out text."""
    small = load("small")
    draft = load("draft")
    tokenizer = small[2]
    room = small[0]["max_position_embeddings"]
    trigram = Trigram([tokens.tolist() for tokens in encode(tokenizer, sum(learnt, []))],
                      small[0]["vocab_size"])
    scores = {name: {} for name in ("small", "small int4", "draft", "trigram")}
    parts = held_out._asdict() | {"all": sum(held_out, [])}
    for part, texts in parts.items():
        documents = encode(tokenizer, texts)
        scores["trigram"][part] = perplexity(
            [trigram.loss(tokens[:room].tolist()) for tokens in documents])
        for name, (m, w) in {"small": small[:2], "draft": draft[:2],
                             "small int4": (small[0], int4(small[1]))}.items():
            scores[name][part] = perplexity(losses(m, w, documents))
    return {name: {part: round(value, 3) for part, value in score.items()}
            for name, score in scores.items()}


def hashes():
    """{file that ships: its sha256}"""
    return {f"{name}/{file}": hashlib.sha256((folder / file).read_bytes()).hexdigest()
            for name, folder in FOLDERS.items() for file in SHIPPED}


def main():
    begin = time.monotonic()
    old = read_json(REPORT) if REPORT.exists() else {}
    texts = {part: corpus(part) for part in ("train", "held out")}
    digests = {part: score.sha256() for part, score in texts.items()}
    if old and digests != old["corpus"]:
        print(f"The text made here by Python {platform.python_version()} is not what "
              f"{old['python']} made, whose hashes report.json holds. These figures are for this "
              f"text; report.json stays.")
    scores = judge(texts["held out"], texts["train"])
    ratios = {f"small / {other}": round(scores["small"]["all"] / scores[other]["all"], 3)
              for other in ("draft", "trigram", "small int4")}
    for name, score in scores.items():
        print(f"{name:10}", *(f"{part} {value:8.3f}" for part, value in score.items()), sep="  ")
    print(*(f"{pair} {value}" for pair, value in ratios.items()), sep="   ")
    if not old or digests == old["corpus"]:
        m, w, tokenizer = load("small")
        write_json(REPORT, {
            "perplexity": scores, "ratios": ratios, "sources": SOURCES, "corpus": digests,
            "python": platform.python_version(), "machine": platform.machine(),
            "training": {name: read_json(folder / "training.json")
                         for name, folder in FOLDERS.items()},
            "files": hashes(), "samples": samples(m, w, tokenizer)})
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
