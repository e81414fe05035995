"""Llamas in which some or all layers keep a state in place of keys and values (g13).

B: sequences   T: new tokens of all   H N P: heads, and both sides of a head's state
W: tokens of the short convolution   X: its channels, H·(2·N + P)   R: seats, one a request
A layer's mixer: one matrix makes q, k, v, a gate and a step of each head; q, k and v go through a
short causal convolution; a = exp(-step · e^rate), and v is multiplied by the step; what is read out
of the state is normed and multiplied by SiLU(gate).
So a request's state is (N, P) numbers a head and the last W - 1 inputs of the convolution, in each
layer, whatever its length.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from layer1_kernels import Kernels, kernels
from layer2_graph.checkpoint import read_weights
from layer2_graph.config import Config, ModelError, read_config
from layer2_graph.g01_llama import Batch, Layer, Llama, PagedCache
from layer2_graph.g13_state_space import decode_states, ssd, ssd_torch

__all__ = ["HybridCache", "HybridLlama", "SeatedBatch", "StateCache", "load_hybrid",
           "short_convolution"]


class SeatedBatch(Batch):
    """A Batch with the row of each sequence's state.    seats: (B,) int64"""

    seats: Tensor

    def __new__(cls, batch: Batch, seats: Tensor) -> "SeatedBatch":
        self = super().__new__(cls, *batch)
        self.seats = seats
        return self


class LinearLayer(NamedTuple):
    """The weights of a layer with a state."""

    attention_norm: Tensor      # (C,)
    into: tuple                 # (X + H·D + H, C)
    filters: Tensor             # (X, W)
    step_bias: Tensor           # (H,)
    rate: Tensor                # (H,)
    norm: Tensor                # (D,)
    o: tuple                    # (C, H·D)
    mlp_norm: Tensor            # (C,)
    gate: tuple                 # (F, C)
    up: tuple                   # (F, C)
    down: tuple                 # (C, F)


def short_convolution(x: Tensor, filters: Tensor) -> Tensor:    # (…, W - 1 + T, X), (X, W)
    """SiLU of each channel's sum over the last W tokens: (…, T, X).
    The last tap is the newest."""
    windows = x.unfold(-2, filters.shape[1], 1)                     # (…, T, X, W)
    return silu((windows * filters).sum(-1))


class StateCache:
    """What layers with a state keep of each request: a row, its seat.
    All fp32."""

    def __init__(self, m: Config, seats: int, device: torch.device | str = "cpu"):
        L = len(m.linear)
        X = m.H * (2 * m.N + m.D)
        self.states = torch.zeros(L, seats, m.H, m.N, m.D, device=device)   # (L, R, H, N, P)
        self.inputs = torch.zeros(L, seats, m.W - 1, X, device=device)      # (L, R, W - 1, X)

    def read(self, seats: Tensor) -> tuple[Tensor, Tensor]:
        """A copy of some requests' rows."""
        return self.states[:, seats], self.inputs[:, seats]

    def write(self, seats: Tensor, states: Tensor, inputs: Tensor) -> None:
        """Put such a copy back."""
        self.states[:, seats], self.inputs[:, seats] = states, inputs

    @contextmanager
    def unless_raised(self, seats: Tensor) -> Iterator[None]:
        """For what changes some requests' rows: they are as they were if it raises."""
        before = self.read(seats)
        try:
            yield
        except Exception:
            self.write(seats, *before)
            raise

    def begin(self, batch: SeatedBatch) -> None:
        """Zeros for the sequences of a step whose first token is in it."""
        new = batch.seats[batch.lens == batch.cu_q.diff()]
        self.states[:, new] = 0
        self.inputs[:, new] = 0

    def convolve(self, i: int, x: Tensor, filters: Tensor,
                 batch: SeatedBatch) -> Tensor:                     # (T, X), (X, W) -> (T, X)
        """The short convolution of each sequence over what came before and its new tokens."""
        rows = []
        parts = x.split(batch.cu_q.diff().tolist())
        for seat, part in zip(batch.seats.tolist(), parts, strict=True):
            whole = torch.cat((self.inputs[i, seat], part))         # (W - 1 + n, X)
            self.inputs[i, seat] = whole[len(part):]
            if len(part):
                rows.append(short_convolution(whole, filters))
        return torch.cat(rows)

    def mix(self, i: int, q: Tensor, k: Tensor, v: Tensor, log_a: Tensor,
            batch: SeatedBatch) -> Tensor:                          # -> (T, H, P)
        """Take the new tokens into layer i's states, and read for each of them."""
        states = self.states[i]
        if int(batch.cu_q.diff().max()) == 1 and len(q) == len(batch.seats):
            return decode_states(q, k, v, log_a, states, batch.seats)
        chunks = ssd if q.is_cuda else ssd_torch
        return chunks(q, k, v, log_a, batch.cu_q, states, batch.seats)


class HybridCache(PagedCache):
    """A PagedCache of the layers that attend, and the states of the others.
    Seat b is sequence b's.
    """

    def __init__(self, config: Config, sequences: int, room: int,
                 dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"):
        super().__init__(config.pages(), sequences, room, dtype, device)
        self.state = StateCache(config, sequences, device)

    def step(self, new: Sequence[Sequence[int]]) -> SeatedBatch:
        """The Batch that appends new[b], a list of tokens, to sequence b."""
        return SeatedBatch(super().step(new), torch.arange(len(new), device=self.k.device))


class HybridLlama(Llama):
    """A Llama whose layers m.linear keep a state.
    Its cache has one more part, `state`."""

    has_state = True

    def __init__(self, config: Config, weights: dict[str, Tensor], ops: Kernels):
        super().__init__(config, weights, ops)
        attention = [i for i in range(config.L) if i not in config.linear]
        self.places = {i: j for kind in (attention, config.linear) for j, i in enumerate(kind)}

    def pick(self, weights: dict[str, Tensor],              # type: ignore[override]
             prefix: str) -> Layer | LinearLayer:
        mixer = prefix + "self_attn."
        if mixer + "in_proj.weight" not in weights:
            return super().pick(weights, prefix)

        def matrix(name):
            return weights[f"{prefix}{name}.weight"], None

        filters, step_bias, rate, norm = (
            weights[mixer + name].float() for name in ("conv", "step_bias", "rate", "norm"))
        return LinearLayer(
            weights[prefix + "input_layernorm.weight"], matrix("self_attn.in_proj"), filters,
            step_bias, rate, norm, matrix("self_attn.o_proj"),
            weights[prefix + "post_attention_layernorm.weight"], matrix("mlp.gate_proj"),
            matrix("mlp.up_proj"), matrix("mlp.down_proj"))

    def forward(self, batch: Batch, cache: HybridCache,     # type: ignore[override]
                every: bool = False) -> Tensor:             # (B, V), or (T, V) for every token
        """As Llama's.
        ValueError for a batch without seats.
        If a kernel raises, states are as they
        were: they would take the same tokens in twice when the step is tried again."""
        if not isinstance(batch, SeatedBatch):
            raise ValueError("HybridLlama: a batch without seats, expected the row of the state of "
                             "each sequence")
        with cache.state.unless_raised(batch.seats):
            cache.state.begin(batch)
            return super().forward(batch, cache, every)

    def block(self, i: int, x: Tensor, batch: SeatedBatch,  # type: ignore[override]
              cache: HybridCache) -> Tensor:                # (T, C) -> (T, C)
        m, ops, layer = self.config, self.ops, self.layers[i]
        y = ops.rmsnorm(x, layer.attention_norm, m.eps)             # (T, C)
        mix = self.recur if i in m.linear else self.attend
        x = x + self.linear(mix(self.places[i], layer, y, batch, cache), layer.o)
        y = ops.rmsnorm(x, layer.mlp_norm, m.eps)                   # (T, C)
        hidden = ops.swiglu(self.linear(y, layer.gate), self.linear(y, layer.up))   # (T, F)
        return x + self.linear(hidden, layer.down)

    def attend(self, i: int, layer: Layer, y: Tensor, batch: Batch,
               cache: HybridCache) -> Tensor:               # (T, C) -> (T, H·D)
        """Attention, on layer i of the pages."""
        q, k, v = self.heads(layer, y)
        self.ops.rope(q, k, self.cos, self.sin, batch.positions)
        return cache.attend(i, q, k, v, batch, self.ops, self.config.scale).flatten(1)

    def recur(self, i: int, layer: LinearLayer, y: Tensor, batch: SeatedBatch,
              cache: HybridCache) -> Tensor:                # (T, C) -> (T, H·D)
        """What the tokens read from layer i of the states. fp32 inside."""
        m = self.config
        X = len(layer.filters)
        x, gate, step = self.linear(y, layer.into).float().split([X, m.H * m.D, m.H], -1)
        x = cache.state.convolve(i, x, layer.filters, batch)        # (T, X)
        q, k, v = (part.unflatten(-1, (m.H, -1))
                   for part in x.split([m.H * m.N, m.H * m.N, m.H * m.D], -1))
        step = softplus(step + layer.step_bias)                     # (T, H)
        mixed = cache.state.mix(i, q, k, v * step[..., None], -step * layer.rate.exp(), batch)
        mixed = self.ops.rmsnorm(mixed.flatten(0, 1), layer.norm, m.eps).view_as(gate)
        return (mixed * silu(gate)).to(y.dtype)


def load_hybrid(folder: Path | str, ops: Kernels | None = None, dtype: torch.dtype | None = None,
                device: torch.device | str = "cpu") -> HybridLlama:
    """The HybridLlama in a folder.
    ModelError says what is wrong with the folder."""
    config = read_config(folder)
    if not config.linear:
        raise ModelError(f"{folder}: no layer keeps a state, expected a model with some that do")
    return HybridLlama(config, read_weights(folder, config, dtype, device),
                       ops or kernels("torch"))
