"""A small decoder to be trained, whose parts are exchanged, and the table of its variants.

B: sequences   T: tokens of each   the other letters as in g01 and g12
Parameters have the names that Hugging Face writes, so that a trained twin is a folder like others.
A further variant is a row of VARIANTS, and a module for the part that differs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from layer2_graph.g12_mixture_of_experts import balance_loss, gate, rebalance

V = 2048                # the small model's tokenizer
C = 96
L = 3
H = 6
D = 16
ROOM = 256              # tokens of the longest context
EPS = 1e-5
THETA = 1e4
STEPS = 1500            # of the schedule of rates


class Attention(nn.Module):
    """Causal attention of H query heads and G heads of keys and values."""

    def __init__(self, G: int = H):
        super().__init__()
        self.q_proj = nn.Linear(C, H * D, bias=False)
        self.k_proj = nn.Linear(C, G * D, bias=False)
        self.v_proj = nn.Linear(C, G * D, bias=False)
        self.o_proj = nn.Linear(H * D, C, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:   # (B, T, C) -> (B, T, C)
        q, k, v = (project(x).unflatten(-1, (-1, D)).transpose(1, 2)    # (B, heads, T, D)
                   for project in (self.q_proj, self.k_proj, self.v_proj))
        mixed = scaled_dot_product_attention(rope(q, cos, sin), rope(k, cos, sin), v,
                                             is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:        # (B, heads, T, D), 2 × (T, D/2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class MLP(nn.Module):
    """The gated MLP of a Llama."""

    def __init__(self, F: int):
        super().__init__()
        self.gate_proj = nn.Linear(C, F, bias=False)
        self.up_proj = nn.Linear(C, F, bias=False)
        self.down_proj = nn.Linear(F, C, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Expert(nn.Module):
    """The same under Mixtral's names."""

    def __init__(self, F: int):
        super().__init__()
        self.w1 = nn.Linear(C, F, bias=False)
        self.w2 = nn.Linear(F, C, bias=False)
        self.w3 = nn.Linear(C, F, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """E experts of which each token has k, and what keeps them busy: a loss, a bias, or nothing."""

    bias: Tensor

    def __init__(self, E: int, k: int, F: int, pull: float = 0.0, rate: float = 0.0):
        """pull: weight of the auxiliary loss    rate: of the bias, a step"""
        super().__init__()
        self.k = k
        self.pull = pull
        self.rate = rate
        self.gate = nn.Linear(C, E, bias=False)
        self.experts = nn.ModuleList(Expert(F) for _ in range(E))
        self.register_buffer("bias", torch.zeros(E), persistent=rate > 0)
        self.choices = torch.zeros(0, k, dtype=torch.int64)     # (B·T, k) of the last forward
        self.loss = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:                     # (B, T, C) -> (B, T, C)
        rows = x.flatten(0, 1)                                  # (B·T, C)
        scores = self.gate(rows)                                # (B·T, E)
        weights, self.choices = gate(scores, self.k, True, self.bias)
        if self.pull:
            self.loss = self.pull * balance_loss(scores.softmax(-1), self.choices)
        y = torch.zeros_like(rows)
        for e, expert in enumerate(self.experts):
            token, choice = (self.choices == e).nonzero(as_tuple=True)
            y = y.index_add(0, token, expert(rows[token]) * weights[token, choice, None])
        return y.view_as(x)

    def step(self) -> None:
        """After a step of the optimiser: move the bias."""
        if self.rate:
            self.bias.copy_(rebalance(self.bias, self.choices, self.rate))


class Block(nn.Module):
    """x plus its attention, and that plus its MLP."""

    def __init__(self, variant: "Variant", i: int):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(C, EPS)
        self.self_attn = variant.mixers.get(i, variant.mixer)()
        self.post_attention_layernorm = nn.RMSNorm(C, EPS)
        self.name = variant.mlp_name
        self.add_module(self.name, variant.mlp())

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.get_submodule(self.name)(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """The embedding, which serves as the head too, L blocks and a norm."""

    cos: Tensor
    sin: Tensor

    def __init__(self, variant: "Variant"):
        super().__init__()
        self.embed_tokens = nn.Embedding(V, C)
        self.layers = nn.ModuleList(Block(variant, i) for i in range(L))
        self.norm = nn.RMSNorm(C, EPS)
        angles = torch.arange(ROOM)[:, None] * THETA ** (-torch.arange(0, D, 2) / D)
        self.register_buffer("cos", angles.cos(), persistent=False)     # (ROOM, D/2)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:                # (B, T) -> (B, T, V)
        T = tokens.shape[1]
        x = self.embed_tokens(tokens)                           # (B, T, C)
        for layer in self.layers:
            x = layer(x, self.cos[:T], self.sin[:T])
        return self.norm(x) @ self.embed_tokens.weight.T


class Twin(nn.Module):
    """A variant with random weights.
    What adds to the stream is smaller, as there are 2·L sums."""

    def __init__(self, variant: "Variant"):
        super().__init__()
        self.model = Decoder(variant)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                scale = 0.5 if "embed_tokens" in name else 1.0
                scale *= (2 * L) ** -0.5 if name.split(".")[-2] in (
                    "o_proj", "down_proj", "w2") else 1.0
                nn.init.normal_(weight, std=scale * weight.shape[-1] ** -0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)

    def experts(self) -> list[Experts]:
        return [module for module in self.modules() if isinstance(module, Experts)]


@dataclass(frozen=True)
class Variant:
    """What differs between twins."""

    mlp: Callable[[], nn.Module]
    mlp_name: str = "mlp"
    mixer: Callable[[], nn.Module] = Attention
    mixers: dict[int, Callable[[], nn.Module]] = field(default_factory=dict)    # of other layers
    entries: dict = field(default_factory=dict)     # of config.json, if its weights ship
    runs: str = ""                                  # folder of its rows, below runs/
    steps: int = STEPS                              # after which it is done, and ships


def llama(F: int) -> dict:
    """The entries of config.json of a twin that is a Llama."""
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": F}


MOE = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": 128,
       "num_local_experts": 8, "num_experts_per_tok": 2}
EIGHT = partial(Experts, 8, 2, 128)

VARIANTS = {
    "dense": Variant(partial(MLP, 256), entries=llama(256)),
    "moe": Variant(partial(EIGHT, pull=0.01), "block_sparse_moe", entries=MOE),
    "moe_unbalanced": Variant(EIGHT, "block_sparse_moe"),
    "moe_bias": Variant(partial(EIGHT, rate=0.003), "block_sparse_moe"),
    "dense_wide": Variant(partial(MLP, 1024)),
}
