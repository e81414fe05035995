"""Attention that remembers less: shared heads, a latent, a window; and the twins that have it.

B: sequences   T: tokens of each   R: width of a latent   E: width of the rotated part of a key
W: window   A: sinks   the other letters as in g01
All have as many weights as the dense twin, within 1 %: what attention saves, the MLP gets.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from layer2_graph.twins.model import EPS, MLP, Attention, C, D, H, Variant, rope

R = 32
E = D                   # so that the decoder's tables of angles serve
W = 32
A = 4
STEPS = 500             # of the schedule's 1500: enough for a comparison at equal steps


class LatentAttention(nn.Module):
    """Keys and values of all heads come from one latent a token, but for the rotated part of keys.

    Expanded, as in training; g11's LatentLlama absorbs.
    The names of parameters are DeepSeek-V2's; kv_b_proj has each head's D rows of keys, then its D
    rows of values.
    """

    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(C, H * (D + E), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(C, R + E, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(R, EPS)
        self.kv_b_proj = nn.Linear(R, H * 2 * D, bias=False)
        self.o_proj = nn.Linear(H * D, C, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:   # (B, T, C) -> (B, T, C)
        q = self.q_proj(x).unflatten(-1, (H, D + E)).transpose(1, 2)    # (B, H, T, D + E)
        q, turned = q.split((D, E), -1)
        c, k_turned = self.kv_a_proj_with_mqa(x).split((R, E), -1)      # (B, T, R), (B, T, E)
        both = self.kv_b_proj(self.kv_a_layernorm(c)).unflatten(-1, (H, 2 * D))
        k, v = both.transpose(1, 2).chunk(2, -1)                        # (B, H, T, D)
        k_turned = rope(k_turned[:, None], cos, sin).expand(-1, H, -1, -1)
        mixed = scaled_dot_product_attention(torch.cat((q, rope(turned, cos, sin)), -1),
                                             torch.cat((k, k_turned), -1), v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class WindowAttention(Attention):
    """Attention to the last W tokens and the first A."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:   # (B, T, C) -> (B, T, C)
        q, k, v = (project(x).unflatten(-1, (H, D)).transpose(1, 2)     # (B, H, T, D)
                   for project in (self.q_proj, self.k_proj, self.v_proj))
        T = x.shape[1]
        n = torch.arange(T)
        back = n[:, None] - n                                           # (T, T)
        visible = (back >= 0) & ((back < W) | (n < A))                  # (T, T)
        mixed = scaled_dot_product_attention(rope(q, cos, sin), rope(k, cos, sin), v, visible)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


def latent_entries(F: int) -> dict:
    """The entries of config.json of a twin with latent attention."""
    return {"architectures": ["ThreeFloorsLatent"], "intermediate_size": F, "kv_lora_rank": R,
            "qk_rope_head_dim": E}


ATTENTIONS = {
    "gqa": Variant(partial(MLP, 299), mixer=partial(Attention, 2), runs="attention", steps=STEPS),
    "mqa": Variant(partial(MLP, 309), mixer=partial(Attention, 1), runs="attention", steps=STEPS),
    "latent": Variant(partial(MLP, 251), mixer=LatentAttention, entries=latent_entries(251),
                      runs="attention", steps=STEPS),
    "window": Variant(partial(MLP, 256), mixer=WindowAttention, runs="attention", steps=STEPS),
}
