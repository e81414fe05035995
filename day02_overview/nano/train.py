"""Train the nano Llama of o02 on sentences.txt and write weights.npz:  python train.py

B: sequences   T: tokens of each   the other letters as in o02
Two layers of width 64 learn 32 sentences by heart, and nothing else.
Another machine rounds differently and gets other weights; the tests state how sure these are of
each letter.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

HERE = Path(__file__).parent
B = 16
T = 256
STEPS = 1500
SEED = 0


def shapes(m):
    """{name as Hugging Face has it: shape}. The embedding serves as lm_head too."""
    C, H, G, D, F = (m[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads",
                                    "head_dim", "intermediate_size"))
    yield "model.embed_tokens.weight", (m["vocab_size"], C)
    for i in range(m["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (C,)
        yield f"{layer}.self_attn.q_proj.weight", (H * D, C)
        yield f"{layer}.self_attn.k_proj.weight", (G * D, C)
        yield f"{layer}.self_attn.v_proj.weight", (G * D, C)
        yield f"{layer}.self_attn.o_proj.weight", (C, H * D)
        yield f"{layer}.post_attention_layernorm.weight", (C,)
        yield f"{layer}.mlp.gate_proj.weight", (F, C)
        yield f"{layer}.mlp.up_proj.weight", (F, C)
        yield f"{layer}.mlp.down_proj.weight", (C, F)
    yield "model.norm.weight", (C,)


def forward(m, w, tokens):                          # (B, T) -> (B, T, V)
    """The scores of the next token after each token.
    PyTorch's own operations, to be trained."""
    eps, H, G, D = (m[k] for k in ("rms_norm_eps", "num_attention_heads", "num_key_value_heads",
                                   "head_dim"))
    width = (D,)
    positions = torch.arange(tokens.shape[1])
    angle = positions[:, None] * m["rope_theta"] ** (-torch.arange(0, D, 2) / D)    # (T, D/2)
    cos = angle.cos()
    sin = angle.sin()

    def rope(x):                                    # (B, heads, T, D)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def heads(x, count):                            # (B, T, heads·D) -> (B, heads, T, D)
        return x.unflatten(-1, (count, *width)).transpose(1, 2)

    x = w["model.embed_tokens.weight"][tokens]      # (B, T, C)
    for i in range(m["num_hidden_layers"]):
        p = {k.split(f"layers.{i}.")[1]: v for k, v in w.items() if f"layers.{i}." in k}
        y = functional.rms_norm(x, x.shape[-1:], p["input_layernorm.weight"], eps)
        q, k, v = (heads(y @ p[f"self_attn.{n}_proj.weight"].T, count)
                   for n, count in (("q", H), ("k", G), ("v", G)))
        mixed = functional.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True,
                                                        enable_gqa=True)
        x = x + mixed.transpose(1, 2).flatten(-2) @ p["self_attn.o_proj.weight"].T
        y = functional.rms_norm(x, x.shape[-1:], p["post_attention_layernorm.weight"], eps)
        hidden = functional.silu(y @ p["mlp.gate_proj.weight"].T) * (y @ p["mlp.up_proj.weight"].T)
        x = x + hidden @ p["mlp.down_proj.weight"].T
    return functional.rms_norm(x, x.shape[-1:], w["model.norm.weight"], eps) \
        @ w["model.embed_tokens.weight"].T


def batch(sentences, rng):                          # -> (B, T + 1)
    """Sentences in random order, one a line, cut anywhere."""
    def line():
        text = "\n"
        while len(text) <= 2 * T:
            text += sentences[rng.integers(len(sentences))] + "\n"
        start = rng.choice((0, rng.integers(T)))    # half of them start with a sentence
        return list(text[start:start + T + 1].encode("ascii"))

    return torch.tensor([line() for _ in range(B)])


def main():
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    m = json.loads((HERE / "config.json").read_text("utf-8"))
    sentences = (HERE / "sentences.txt").read_text("utf-8").splitlines()
    w = {name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * shape[-1] ** -0.5
         for name, shape in shapes(m)}
    w["model.embed_tokens.weight"] *= 0.5
    for weight in w.values():
        weight.requires_grad_()
    optimiser = torch.optim.AdamW(w.values(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=STEPS,
                                                   pct_start=0.1)
    for step in range(STEPS):
        tokens = batch(sentences, rng)              # (B, T + 1)
        logits = forward(m, w, tokens[:, :-1])      # (B, T, V)
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == STEPS - 1:
            print(f"step {step:4}  loss {loss.item():.3f}")
    np.savez(HERE / "weights.npz", **{k: v.detach().numpy().astype(np.float16)
                                      for k, v in w.items()})


if __name__ == "__main__":
    main()
