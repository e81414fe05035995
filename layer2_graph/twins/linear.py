"""The mixer of the twins without attention: g13's chunks in the place of softmax attention.

B: sequences   T: tokens of each   C: model width   H: heads   N: width of q and k, and of v here
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, rms_norm, silu, softplus

from layer2_graph.g13_state_space import chunked
from layer2_graph.hybrid import short_convolution
from layer2_graph.twins.attention import STEPS
from layer2_graph.twins.model import EPS, MLP, Attention, C, D, H, Variant

WIDTH = 4               # tokens that the short convolution sees
CHUNK = 32


class LinearMixer(nn.Module):
    """A short convolution over q, k and v, a state with decay, a norm and a gate."""

    def __init__(self, C: int, H: int, N: int):
        super().__init__()
        self.H = H
        self.in_proj = nn.Linear(C, 4 * H * N + H, bias=False)      # q, k, v, gate, step
        self.conv = nn.Parameter(torch.zeros(3 * H * N, WIDTH))
        self.step_bias = nn.Parameter(torch.logspace(-2, 0, H).expm1().log())   # softplus⁻¹
        self.rate = nn.Parameter(torch.zeros(H))
        self.norm = nn.Parameter(torch.ones(N))
        self.o_proj = nn.Linear(H * N, C, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:   # (B, T, C) -> (B, T, C)
        B, T, _ = x.shape
        H = self.H
        y = self.in_proj(x)
        qkv, gate, step = y.split([len(self.conv), y.shape[-1] - len(self.conv) - H, H], -1)
        qkv = short_convolution(pad(qkv, (0, 0, WIDTH - 1, 0)), self.conv)
        q, k, v = (part.unflatten(-1, (H, -1)).transpose(0, 1).flatten(1, 2)    # (T, B·H, N)
                   for part in qkv.chunk(3, -1))
        step = softplus(step + self.step_bias).transpose(0, 1)          # (T, B, H)
        log_a = (-step * self.rate.exp()).flatten(1)                    # (T, B·H)
        mixed, _ = chunked(q, k, v * step.flatten(1)[..., None], log_a, None, CHUNK)
        mixed = rms_norm(mixed, self.norm.shape, self.norm, EPS)
        return self.o_proj(mixed.view(T, B, -1).transpose(0, 1) * silu(gate))



def hybrid_entries(F: int, linear: list[int]) -> dict:
    """The entries of config.json of a twin whose layers `linear` keep a state."""
    return {"architectures": ["ThreeFloorsHybrid"], "intermediate_size": F,
            "linear_layers": linear, "linear_key_head_dim": D, "linear_conv_kernel_dim": WIDTH}


# A mixer here has more weights than attention, so that the MLP beside it has fewer.
MIXER = partial(LinearMixer, C, H, D)
LINEARS = {
    "attention": Variant(partial(MLP, 256), runs="linear", steps=STEPS),    # the dense twin again
    "linear": Variant(partial(MLP, 218), mixer=MIXER, runs="linear", steps=STEPS),
    "hybrid": Variant(partial(MLP, 231), mixer=MIXER, mixers={1: Attention},
                      entries=hybrid_entries(231, [0, 2]), runs="linear", steps=STEPS),
}
