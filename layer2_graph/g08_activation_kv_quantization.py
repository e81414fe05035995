"""g08 · Low-precision activations and cache: codes for activations, keys and values

T: tokens   K: numbers in of a matrix, its channels   N: numbers out   C, F: model and mlp width
L: layers   G: kv heads   D: head width   P: pages   S: slots of a page
levels, codes, scales: as in g07.
A row is one token, or one of a matrix's N.

A product of codes is a sum of small integers, which tensor cores compute at twice the rate of 16
bits.
A row's scale can be taken out of the sum, a channel's cannot.
A cache of codes takes fewer bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from layer1_kernels import Kernels
from layer2_graph.config import Config
from layer2_graph.g01_llama import SLOTS, Batch, Llama, PagedCache
from layer2_graph.g07_weight_quantization import (
    absmax_scales,
    dequantize,
    in_a_byte,
    is_matrix,
    pack,
    perplexity,
    quantize,
    round_trip,
    unpack,
)

__all__ = ["QuantizedCache", "by_channel", "by_token", "channel_maxima", "dynamic", "int_levels",
           "outlier_columns", "quantize_tokens", "read_quantized", "scaled_matmul", "smooth",
           "smoothed", "split", "split_matmul", "static", "with_kv", "with_matmul",
           "with_outliers", "write_quantized"]


def int_levels(bits: int) -> tuple[float, ...]:
    """Levels 0 to 2^(bits - 1) - 1; with the signs, a symmetric integer. 2 bits are ternary."""
    return tuple(map(float, range(2 ** (bits - 1))))


def predict_kv_bytes():
    """Bytes of cache for one token of the small model, with keys and values in int8.

    4 layers, 2 kv heads of width 32.
    One fp16 scale for each key and each value of each head.
    """
    # exercise: how many bytes does one head's key take, and how many such rows does a token have?
    return 4 * 2 * 2 * (32 + 2)


# ---- codes times codes


def quantize_tokens(x: Tensor,
                    levels: Sequence[float]) -> tuple[Tensor, Tensor]:  # (T, K) -> (T, K), (T, 1)
    """Codes, int8, and one scale for each token, which maps its largest |x| to the last level.

    Scales keep x's dtype; they are used for one matmul and not stored.
    ValueError where x is not finite.
    """
    if not x.isfinite().all():
        raise ValueError("quantize_tokens: x has values that are not finite, expected none")
    # exercise: the scale of each row, then the codes
    scales = x.abs().amax(-1, keepdim=True) / levels[-1]            # (T, 1)
    return quantize(x, levels, scales), scales


def scaled_matmul(x: Tensor, x_scales: Tensor, w: Tensor, w_scales: Tensor,
                  levels: Sequence[float]) -> Tensor:   # (T, K), (T, 1), (N, K), (N, 1) -> (T, N)
    """Codes times codes, times the scales of both rows.

    fp32 adds integers below 2^24 exactly, so for int8 and K up to 1040 the result is that of a
    kernel that adds in int32.
    """
    exact = torch.promote_types(x_scales.dtype, torch.float32)
    x, w = (dequantize(codes, levels, torch.ones_like(scales, dtype=exact))
            for codes, scales in ((x, x_scales), (w, w_scales)))
    return (x @ w.T * x_scales * w_scales.T).to(x_scales.dtype)


def split_matmul(x: Tensor, w: Tensor, columns: Tensor,
                 levels: Sequence[float]) -> Tensor:    # (T, K), (N, K) -> (T, N)
    """x wᵀ with some columns unrounded and all others as codes times codes.

    columns: int64 indices of the outlier columns, any number of them.
    The scales are computed without these columns.
    Source: "LLM.int8()", Dettmers, Lewis, Belkada and Zettlemoyer, 2022.
    """
    # exercise: 1. the outlier columns, unrounded   2. the rest, with those columns set to zero
    outliers = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
    outliers[columns] = True
    rest_x, rest_w = (quantize_tokens(m.masked_fill(outliers, 0), levels) for m in (x, w))
    return x[:, outliers] @ w[:, outliers].T + scaled_matmul(*rest_x, *rest_w, levels)


def smooth(norm: Tensor, matrices: list[Tensor], largest: Tensor,
           alpha: float = 0.5) -> tuple[Tensor, list]:  # (…, C), [(N, C)], (C,) -> (…, C), [(N, C)]
    """(norm / s, [w · s]): the same function, with smoother inputs.

    norm: factors that produce the channels, the last axis    matrices: all that read the channels
    largest: the largest |x| of each channel. s = largest^alpha / columns^(1 - alpha), where columns
    is the largest |w| of each column over all matrices; s = 1 where largest or columns is 0.
    Source: "SmoothQuant", Xiao and others, 2023, equation 4.
    """
    # exercise: the largest |w| of each column, then s, then norm and matrices
    columns = torch.cat(matrices).abs().amax(0)                     # (C,)
    s = largest ** alpha / columns ** (1 - alpha)
    s = torch.where((largest > 0) & (columns > 0), s, 1)            # (C,)
    return norm / s, [w * s for w in matrices]


# ---- a whole model


def with_matmul(model: Llama, matmul: Callable) -> Llama:
    """A Llama that calls matmul(name, x, w) for every matrix; the head is unchanged."""
    model.config.expect_plain()
    names = {id(w): name for name, w in model.weights.items() if is_matrix(name)}

    def chosen(x, w):                               # (T, K), (N, K) -> (T, N)
        return matmul(names[id(w)], x, w) if id(w) in names else model.ops.matmul(x, w)

    return Llama(model.config, model.weights, replace(model.ops, matmul=chosen))


def channel_maxima(model: Llama, documents: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """{name of a matrix: (K,)}: the largest |x| of each input channel over the documents."""
    maxima: dict[str, Tensor] = {}

    def matmul(name, x, w):
        largest = x.abs().amax(0)                                   # (K,)
        maxima[name] = torch.maximum(maxima.get(name, largest), largest)
        return model.ops.matmul(x, w)

    perplexity(with_matmul(model, matmul), documents)
    return maxima


def dynamic(model: Llama, levels: Sequence[float]) -> Llama:
    """A Llama that rounds its activations with one scale per token."""
    def matmul(name, x, w):
        codes, scales = quantize_tokens(x, levels)
        return model.ops.matmul(dequantize(codes, levels, scales), w)

    return with_matmul(model, matmul)


def static(model: Llama, levels: Sequence[float], maxima: Mapping[str, Tensor]) -> Llama:
    """A Llama that rounds its activations with one fixed scale per matrix.

    maxima: channel_maxima of a sample.
    Larger values are clipped.
    """
    def matmul(name, x, w):
        scale = maxima[name].max().reshape(1, 1) / levels[-1]       # (1, 1)
        return model.ops.matmul(round_trip(x, levels, scale), w)

    return with_matmul(model, matmul)


def split(model: Llama, levels: Sequence[float], columns: Mapping[str, Tensor]) -> Llama:
    """A Llama that uses split_matmul for every matrix; weights are codes as well.

    columns: {name of a matrix: (any number,) int64}
    """
    return with_matmul(model, lambda name, x, w: split_matmul(x, w, columns[name], levels))


def outlier_columns(maxima: Mapping[str, Tensor], times: float) -> dict[str, Tensor]:
    """{name: (any number,) int64}: channels whose largest |x| is more than `times` the median over
    the channels."""
    return {name: (largest > times * largest.median()).nonzero().flatten()
            for name, largest in maxima.items()}


def readers(model: Llama) -> Iterator[tuple[str, list[str]]]:
    """For each norm of all layers: (name of its weight, [names of the matrices that read it])."""
    for i in range(model.config.L):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", [f"{layer}self_attn.{n}_proj.weight" for n in "qkv"]
        yield layer + "post_attention_layernorm.weight", [
            f"{layer}mlp.{n}_proj.weight" for n in ("gate", "up")]


def smoothed(model: Llama, maxima: Mapping[str, Tensor], alpha: float = 0.5) -> Llama:
    """A Llama with smoothed inputs of q, k, v, gate, up and down.

    For `down`, the rows of `up` take 1 / s.
    `o` is unchanged.
    ValueError if `up` has a bias.
    maxima: channel_maxima of a sample
    """
    w = dict(model.weights)
    for norm, names in readers(model):
        w[norm], some = smooth(w[norm], [w[name] for name in names], maxima[names[0]], alpha)
        w.update(zip(names, some, strict=True))
    for i in range(model.config.L):
        up, down = (f"model.layers.{i}.mlp.{name}_proj" for name in ("up", "down"))
        if f"{up}.bias" in w:
            raise ValueError(f"smoothed: {up} has a bias, which would have to be divided as well; "
                             f"expected none")
        rows, (w[f"{down}.weight"],) = smooth(
            w[f"{up}.weight"].T, [w[f"{down}.weight"]], maxima[f"{down}.weight"], alpha)
        w[f"{up}.weight"] = rows.T.contiguous()
    return Llama(model.config, w, model.ops)


def with_outliers(model: Llama, channels: Sequence[int], times: float) -> Llama:
    """The same function with outliers: in every norm, `channels` are multiplied by `times`, and the
    columns of the matrices that read them are divided by it."""
    w = dict(model.weights)
    factors = torch.ones(model.config.C, device=model.embedding.device)
    factors[channels] = times
    for norm, names in readers(model):
        own = factors.to(w[norm].dtype)
        w[norm] = w[norm] * own
        w.update({name: w[name] / own for name in names})
    return Llama(model.config, w, model.ops)


# ---- the cache


def with_kv(model: Llama, keys: Callable, values: Callable) -> Llama:
    """A Llama that stores keys(k) and values(v) in its cache instead of k and v, (T, G, D)."""
    model.config.expect_plain()

    def write_kv(k, v, *pages):
        return model.ops.write_kv(keys(k).to(k.dtype), values(v).to(v.dtype), *pages)

    return Llama(model.config, model.weights, replace(model.ops, write_kv=write_kv))


def by_token(levels: Sequence[float]) -> Callable:
    """A function that rounds (T, G, D) with one scale per token and head."""
    return lambda x: round_trip(x, levels, absmax_scales(x, levels, x.shape[-1]))


def by_channel(levels: Sequence[float], group: int = 32) -> Callable:
    """A function that rounds (T, G, D) with one scale per channel over `group` consecutive
    tokens."""
    def change(x):
        some = (part.permute(1, 2, 0).contiguous() for part in x.split(group))      # (G, D, group)
        return torch.cat([by_token(levels)(part).permute(2, 0, 1) for part in some])

    return change


def pack_rows(codes: Tensor, levels: Sequence[float]) -> Tensor:    # (…, D) -> (…, bytes)
    """g07's pack for each row separately, uint8; a row takes whole bytes."""
    top = len(levels) - 1
    n, _ = in_a_byte(-top, top)
    whole = pad(codes, (0, -codes.shape[-1] % n))                   # whole bytes a row
    return pack(whole, -top, top).view(*whole.shape[:-1], whole.shape[-1] // n)


def write_quantized(x: Tensor, codes: Tensor, scales: Tensor, slots: Tensor,
                    levels: Sequence[float]) -> None:   # (T, G, D), (P, S, G, bytes), (P, S, G)
    """Write the codes and scales of new keys or values into their slots, in place.

    slots: (T,) int64, page · S + place; a token with slot -1 is not written.
    Each token and head has one scale, absmax_scales(x, levels, D), rounded to fp16.
    """
    # exercise: select the tokens that have a slot; then their scales; then their packed codes
    known = slots >= 0
    S = codes.shape[1]
    x, where = x[known], slots[known]
    fresh = absmax_scales(x, levels, x.shape[-1])                   # (T, G, 1)
    codes[where // S, where % S] = pack_rows(quantize(x, levels, fresh), levels)
    scales[where // S, where % S] = fresh[..., 0].to(scales.dtype)


def read_quantized(codes: Tensor, scales: Tensor, levels: Sequence[float],
                   D: int) -> Tensor:   # (P, S, G, bytes), (P, S, G) -> (P, S, G, D)
    """The pages as fp32 numbers."""
    top = len(levels) - 1
    n, _ = in_a_byte(-top, top)
    whole = unpack(codes.flatten(), -top, top, (*codes.shape[:-1], codes.shape[-1] * n))
    return dequantize(whole[..., :D], levels, scales[..., None].float())


class QuantizedCache(PagedCache):
    """A PagedCache that stores codes and scales. attend dequantises whole pages, then attends."""

    def __init__(self, config: Config, sequences: int, room: int, k_levels: Sequence[float],
                 v_levels: Sequence[float], device: torch.device | str = "cpu"):
        """room: tokens that each sequence may reach.
        ModelError if the model cannot."""
        config.check_room(room)
        self.room = room
        self.pages = -(-room // SLOTS)
        self.lens = [0] * sequences
        self.levels = k_levels, v_levels
        shape = (config.L, sequences * self.pages, SLOTS, config.G)
        self.k, self.v = (
            pack_rows(torch.zeros(*shape, config.D, dtype=torch.int8, device=device), levels)
            for levels in self.levels)                              # (L, P, S, G, bytes)
        self.k_scales, self.v_scales = (
            torch.zeros(shape, dtype=torch.float16, device=device) for _ in self.levels)

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self.k, self.v, self.k_scales, self.v_scales))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch, ops: Kernels,
               scale: float) -> Tensor:             # (T, H, D), 2 × (T, G, D) -> (T, H, D)
        """Store the codes of a layer's new keys and values, then attend to dequantised pages."""
        pages = []
        for x, codes, scales, levels in ((k, self.k, self.k_scales, self.levels[0]),
                                         (v, self.v, self.v_scales, self.levels[1])):
            write_quantized(x, codes[layer], scales[layer], batch.slots, levels)
            numbers = read_quantized(codes[layer], scales[layer], levels, x.shape[-1])
            pages.append(numbers.to(q.dtype))
        return ops.paged_attention(q, *pages, batch.block_tables, batch.cu_q, batch.lens, scale)
