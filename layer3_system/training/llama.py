"""A Llama for training, on a table of kernels: tokens and targets in, the sum of losses out.

B: sequences   T: tokens of each   the other letters as in o02
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from day02_overview.nano.train import shapes
from layer1_kernels import Kernels, kernels
from layer1_kernels.gradients import differentiable
from layer1_kernels.k05_matmul_tiled import matmul_torch
from layer2_graph.config import Config
from layer2_graph.g01_llama import rope_tables
from layer3_system.training.arms import FP32, Arm, through_bf16, through_fp16
from layer3_system.training.data import IGNORED, Batch

LAYER = 9               # weights of a layer, in the order of `shapes`


def entries(m: Config) -> dict[str, int]:
    """A tied Config in the words of `shapes`."""
    return {"vocab_size": m.V, "hidden_size": m.C, "num_attention_heads": m.H,
            "num_key_value_heads": m.G, "head_dim": m.D, "intermediate_size": m.F,
            "num_hidden_layers": m.L}


def new_weights(m: Config, seed: int) -> dict[str, Tensor]:
    """Random weights by name.
    What adds to the stream is smaller, as there are 2·L such sums."""
    generator = torch.Generator().manual_seed(seed)
    w = {}
    for name, shape in shapes(entries(m)):
        if len(shape) == 1:
            w[name] = torch.ones(shape)
            continue
        w[name] = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            w[name] *= (2 * m.L) ** -0.5
    w["model.embed_tokens.weight"] *= 0.5
    return w


def decayed(weight: Tensor) -> bool:
    """Whether a weight decays: matrices do, the embedding too; norms, near 1, do not."""
    return weight.ndim == 2


def fused_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool,
                    scale: float) -> tuple[Tensor, None]:       # (B, T, H, D), 2 × (B, N, G, D)
    """As flash_attention, by PyTorch's own fused one, and without lse."""
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                         is_causal=causal, scale=scale, enable_gqa=True)
    return out.transpose(1, 2), None                            # (B, T, H, D)


def training_kernels(back_end: str) -> Kernels:
    """The table of a back end, with gradients.

    triton: products get theirs by their oracle, the others as their lessons say.
    torch: attention is PyTorch's fused one, since the oracle holds all scores.
    """
    ops = kernels(back_end)
    if back_end == "torch":
        return replace(ops, flash_attention=fused_attention)
    return replace(ops, matmul=differentiable(ops.matmul, matmul_torch))


class TrainableLlama:
    """m: a Config, tied.  w: its weights by name, fp32.  recompute: the function by which
    layers keep their inputs alone, such as s30's Recompute.
    """

    def __init__(self, m: Config, w: dict[str, Tensor], ops: Kernels, arm: Arm = FP32,
                 recompute: type[torch.autograd.Function] | None = None) -> None:
        self.m = m
        self.ops = ops
        self.arm = arm
        self.recompute = recompute
        self.weights = {name: weight.requires_grad_() for name, weight in w.items()}
        self.tables = rope_tables(m, m.room)

    def block(self, B: int, x: Tensor, *weights: Tensor) -> Tensor:     # (B·T, C) -> (B·T, C)
        """A layer of B sequences, whose weights come in the order of `shapes`."""
        norm, q, k, v, o, mlp_norm, gate, up, down = weights
        m = self.m
        ops = self.ops
        positions = torch.arange(len(x) // B).repeat(B)                 # (B·T,)
        y = ops.rmsnorm(x, norm, m.eps)
        queries, keys, values = (ops.matmul(y, w).unflatten(-1, (-1, m.D)) for w in (q, k, v))
        ops.rope(queries, keys, *self.tables, positions)                # (B·T, heads, D), in place
        mixed, _ = ops.flash_attention(*(a.unflatten(0, (B, -1)) for a in (queries, keys, values)),
                                       True, m.scale)                   # (B, T, H, D)
        x = x + ops.matmul(mixed.reshape(len(x), -1), o)
        y = ops.rmsnorm(x, mlp_norm, m.eps)
        return x + ops.matmul(ops.swiglu(ops.matmul(y, gate), ops.matmul(y, up)), down)

    def layer(self, B: int, x: Tensor, weights: list[Tensor]) -> Tensor:   # (B·T, C) -> (B·T, C)
        """`block`, of which only the inputs are kept if the model recomputes."""
        block = partial(self.block, B)
        return self.recompute.apply(block, x, *weights) if self.recompute else block(x, *weights)

    def logits(self, tokens: Tensor) -> Tensor:                         # (B, T) -> (B·T, V)
        """The scores of the next token after each."""
        own = list(self.weights.values())
        if self.arm.bf16:
            own = [through_bf16(weight) for weight in own]
        embedding, *layers, norm = own
        x = F.embedding(tokens.flatten(), embedding)                    # (B·T, C)
        for i in range(0, len(layers), LAYER):
            x = self.layer(len(tokens), x, layers[i:i + LAYER])
        return self.ops.matmul(self.ops.rmsnorm(x, norm, self.m.eps), embedding)

    def loss_sum(self, batch: Batch) -> tuple[Tensor, int]:
        """(the sum of the losses of a batch, how many tokens have one)."""
        logits = self.logits(batch.tokens)
        if self.arm.mean_of and logits.requires_grad:
            logits.register_hook(partial(through_fp16, arm=self.arm))
        losses = self.ops.cross_entropy(logits, batch.targets.flatten())     # (B·T,)
        return losses.sum(), int((batch.targets != IGNORED).sum())

    def round(self) -> None:
        """Where an arm has no masters: what is kept of the weights after an update."""
        if not self.arm.master:
            for weight in self.weights.values():
                weight.data.copy_(through_bf16(weight.data))

    @torch.no_grad()
    def mean_loss(self, batches: list[Batch]) -> float:
        """Of batches that nothing is learnt from."""
        sums = [self.loss_sum(batch) for batch in batches]
        return sum(float(loss) for loss, _ in sums) / sum(count for _, count in sums)


def load(state: dict[str, Any], model: TrainableLlama) -> None:
    """Put weights by name into a model, whose tensors stay where they are."""
    for name, weight in model.weights.items():
        weight.data.copy_(state[name])
