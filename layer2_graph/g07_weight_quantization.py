"""g07 · Low-precision weights: a code of few bits for each, and a scale for each group

N, K: numbers out and in of a matrix w    group: neighbours in a row of w that share a scale
levels: what the codes 0, 1, 2 … stand for, from 0 up; code -q stands for -levels[q]
w ≈ levels[code] · scale. A weight takes the bits of its code, and those of a scale over `group`.

A decode step reads each weight once, and memory decides: fewer bits take less time, if a kernel
turns codes into numbers on the way. No formula says what the model loses by it: that is measured.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from layer1_kernels import Kernels, quantize_weight
from layer2_graph.g01_llama import Llama
from layer2_graph.g02_kv_cache import ContiguousCache

__all__ = ["LEVELS", "PackedWeight", "SHRINK", "Scheme", "absmax_scales", "absmean_scales",
           "dequantize", "gptq", "hessians", "is_matrix", "least_error_scales", "mx_scales",
           "nearest", "nv_scales", "pack", "packed_matmul", "perplexity", "quantize",
           "quantize_llama", "relative_error", "round_trip", "schemes", "unpack", "with_gptq",
           "with_matrices", "with_zero_point"]

SHRINK = tuple(1 - i / 20 for i in range(20))       # shares of the largest scale to try


# ---- codes


def float_levels(exponent, mantissa, largest):
    """The numbers of a small float with these bits of each, from 0 to `largest`: a tuple.

    In the order of their bit patterns. The bias is 2^(exponent - 1) - 1; exponent 0 is for numbers
    below the smallest power. Source: Open Compute Project, "OCP Microscaling Formats", 2023, 5.3.
    """
    bias = 2 ** (exponent - 1) - 1
    steps = 2 ** mantissa
    values = ((m + steps * (e > 0)) / steps * 2.0 ** (max(e, 1) - bias)
              for e in range(2 ** exponent) for m in range(steps))
    return tuple(value for value in values if value <= largest)


LEVELS = {
    "int8": tuple(map(float, range(128))),
    "fp8": float_levels(4, 3, 448),                 # E4M3, in which 480 would be NaN
    "int4": tuple(map(float, range(8))),
    "fp4": float_levels(2, 1, 6),                   # E2M1
    "ternary": (0.0, 1.0),
}


def predict_model_bits():
    """Bits of a weight of the small model, on average: its 28 matrices in int4, all else in fp16.

    28 matrices: 1,572,864 weights in groups of 32, an fp16 scale each. All else: 394,944 weights.
    """
    # exercise: within 0.1 is right; what does a group of 32 take?
    return (1_572_864 * (4 + 16 / 32) + 394_944 * 16) / (1_572_864 + 394_944)


def nearest(x: Tensor, levels: Sequence[float]) -> Tensor:
    """The code of the level nearest to each number, int8; beyond the last level, the last code.

    x: floats, any shape    levels: ascending from 0, 128 at most. Halfway between two levels the
    even code is taken: for floats the one that ends in 0, as IEEE 754 rounds.
    """
    values = torch.tensor(levels, dtype=x.dtype, device=x.device)
    # exercise: the code of |x| is how many borders lie below it; ties to even; then the sign
    borders = (values[1:] + values[:-1]) / 2
    code = torch.bucketize(x.abs(), borders)            # borders below |x|
    tie = x.abs() == borders[code.clamp(max=len(borders) - 1)]
    code = code + (tie & (code % 2 == 1))
    return (code * x.sign()).to(torch.int8)


def quantize(w: Tensor, levels: Sequence[float],
             scales: Tensor) -> Tensor:             # (…, K), (…, K / group) -> (…, K)
    """Codes of w over its scales, int8. One scale for all: scales of shape (1, 1)."""
    groups = w.unflatten(-1, (scales.shape[-1], -1))                # (…, K / group, group)
    divisor = torch.where(scales > 0, scales, 1)[..., None]         # of a group of zeros: any
    return nearest(groups / divisor, levels).flatten(-2)


def dequantize(codes: Tensor, levels: Sequence[float],
               scales: Tensor) -> Tensor:           # (…, K), (…, K / group) -> (…, K)
    """What the codes stand for, in the scales' dtype."""
    values = torch.tensor(levels, dtype=scales.dtype, device=codes.device)
    values = values[codes.abs().long()] * codes.sign()
    return (values.unflatten(-1, (scales.shape[-1], -1)) * scales[..., None]).flatten(-2)


def round_trip(w: Tensor, levels: Sequence[float], scales: Tensor) -> Tensor:   # -> (…, K)
    """w as its codes give it back."""
    return dequantize(quantize(w, levels, scales), levels, scales)


def in_a_byte(levels):
    """(n, radix): a byte holds n codes, each of them one of `radix` values."""
    n = 1
    values = 2 * len(levels) - 1
    while values ** (n + 1) <= 256:
        n += 1
    return n, int(256 ** (1 / n))


def pack(codes: Tensor, levels: Sequence[float]) -> Tensor:     # (N, K) -> (bytes,)
    """Codes in as few whole bytes as in_a_byte allows, uint8, row after row.

    A code plus the largest code is a digit, 0 or more. n digits make a byte: the first counts ones,
    the next `radix`es, and so on. Zeros fill the last byte.
    """
    n, radix = in_a_byte(levels)
    # exercise: digits, n to a byte, each times its power of radix
    digits = codes.flatten().long() + len(levels) - 1
    digits = pad(digits, (0, -len(digits) % n)).unflatten(0, (-1, n))           # (bytes, n)
    powers = radix ** torch.arange(n, device=codes.device)
    return (digits * powers).sum(-1).to(torch.uint8)


def unpack(packed: Tensor, levels: Sequence[float],
           shape: Sequence[int]) -> Tensor:         # (bytes,) -> shape
    """The codes again, int8."""
    n, radix = in_a_byte(levels)
    powers = radix ** torch.arange(n, device=packed.device)
    digits = packed[:, None].long() // powers % radix                           # (bytes, n)
    return (digits.flatten()[:math.prod(shape)] - (len(levels) - 1)).to(torch.int8).view(shape)


# ---- scales


def grouped(w, group):                              # (…, K) -> (…, K / group, group)
    if w.shape[-1] % group:
        raise ValueError(f"scales: rows of {w.shape[-1]} numbers, expected a multiple of the "
                         f"group, {group}")
    if not w.isfinite().all():
        raise ValueError("scales: w has values that are not finite, expected none")
    return w.unflatten(-1, (-1, group))


def half(scales):
    """The scales, rounded to fp16."""
    if scales.numel() and scales.max() > 65504:
        raise ValueError(f"scales: the largest is {scales.max():.6g}, expected up to 65504, fp16's "
                         f"largest")
    return scales.half().float()


def absmax_scales(w: Tensor, levels: Sequence[float], group: int) -> Tensor:  # (…, K / group)
    """The largest |w| of a group becomes the last level; the scale is rounded to fp16."""
    return half(grouped(w, group).abs().amax(-1) / levels[-1])


def absmean_scales(w: Tensor, levels: Sequence[float], group: int) -> Tensor:  # (…, K / group)
    """The mean |w| becomes level 1. Source: "The Era of 1-bit LLMs", Ma and others, 2024."""
    return half(grouped(w, group).abs().mean(-1))


def least_error_scales(w: Tensor, levels: Sequence[float],
                       group: int) -> Tensor:       # (…, K) -> (…, K / group)
    """The scale with the least error: absmax's times one of SHRINK, rounded to fp16.

    error: the sum of (what comes back - w)² over the group; of equal ones the first
    """
    largest = grouped(w, group).abs().amax(-1) / levels[-1]
    best = half(largest)
    least = torch.full_like(largest, torch.inf)
    # exercise: try each, and let every group keep its own best
    for share in SHRINK:
        scales = half(largest * share)
        error = grouped(round_trip(w, levels, scales) - w, group).square().sum(-1)
        best = torch.where(error < least, scales, best)
        least = torch.minimum(error, least)
    return best


def mx_scales(w: Tensor, levels: Sequence[float], group: int) -> Tensor:  # (…, K / group)
    """Powers of two, 8 bits each, so that the largest |w| and the last level have one exponent.

    Numbers beyond the last level are clipped. Source: OCP, as above, section 6.3; group is 32.
    """
    largest = grouped(w, group).abs().amax(-1)
    return torch.exp2(largest.frexp()[1] - math.frexp(levels[-1])[1]) * (largest > 0)


def nv_scales(w: Tensor, levels: Sequence[float], group: int) -> Tensor:  # (…, K / group)
    """absmax's scales in fp8, over one fp32 scale for all of them; NVIDIA's NVFP4, group 16."""
    scales = grouped(w, group).abs().amax(-1) / levels[-1]
    fp8 = LEVELS["fp8"]
    return round_trip(scales, fp8, (scales.amax() / fp8[-1]).reshape(1, 1))


def with_zero_point(w: Tensor, bits: int, group: int) -> Tensor:    # (…, K) -> (…, K)
    """w as it comes back from codes 0 to 2^bits - 1, where `zero`, one of them, stands for 0.

    Levels lie between the least and the largest w of a group, so that no code is unused. Scales
    are fp16; a zero takes `bits` more.
    """
    groups = grouped(w, group)
    top = 2 ** bits - 1
    low = groups.amin(-1).clamp(max=0)
    high = groups.amax(-1).clamp(min=0)
    scales = half((high - low) / top)[..., None]
    divisor = torch.where(scales > 0, scales, 1)
    zero = (-low[..., None] / divisor).round()
    codes = ((groups / divisor).round() + zero).clamp(0, top)
    return ((codes - zero) * scales).flatten(-2)


# ---- a whole model


class Scheme(NamedTuple):
    """How matrices are stored."""

    levels: tuple[float, ...]
    group: int | None           # None: a whole row
    scales: Callable            # (w, levels, group) -> scales
    scale_bits: int

    def scaled(self, w: Tensor) -> Tensor:
        return self.scales(w, self.levels, self.group or w.shape[-1])

    def rounded(self, w: Tensor) -> Tensor:
        return round_trip(w, self.levels, self.scaled(w))

    def llama(self, model: Llama) -> Llama:
        """The Llama whose matrices are rounded by this scheme."""
        return with_matrices(model, lambda name, w: self.rounded(w))

    def nbytes(self, w: Tensor) -> float:
        """Bytes of the packed codes and the scales."""
        scales = self.scaled(w)
        codes = pack(quantize(w, self.levels, scales), self.levels)
        return codes.nbytes + scales.numel() * self.scale_bits / 8


def schemes() -> dict[str, Scheme]:
    """{name: Scheme}, fewest bits last."""
    def scheme(name, group, scales=absmax_scales, scale_bits=16):
        return Scheme(LEVELS[name], group, scales, scale_bits)

    return {
        "int8, a row": scheme("int8", None),
        "fp8, a row": scheme("fp8", None),
        "int4, 32": scheme("int4", 32),
        "int4, 32, least error": scheme("int4", 32, least_error_scales),
        "fp4, 32": scheme("fp4", 32),
        "NVFP4": scheme("fp4", 16, nv_scales, 8),
        "MXFP4": scheme("fp4", 32, mx_scales, 8),
        "int4, a row": scheme("int4", None),
        "ternary, 32": scheme("ternary", 32),
        "ternary, 32, mean": scheme("ternary", 32, absmean_scales),
        "ternary, 32, least error": scheme("ternary", 32, least_error_scales),
    }


def is_matrix(name: str) -> bool:
    """Whether a weight is a matrix of a layer, by its name as Hugging Face has it."""
    return name.endswith("_proj.weight")


def with_matrices(model: Llama, change: Callable) -> Llama:
    """The Llama whose matrices are change(name, w)."""
    weights = {name: change(name, w) if is_matrix(name) else w
               for name, w in model.weights.items()}
    return Llama(model.config, weights, model.ops)


def relative_error(model: Llama, other: Llama) -> float:
    """sqrt(sum of (w of other - w)² / sum of w²), over the matrices."""
    pairs = [(w, other.weights[name]) for name, w in model.weights.items() if is_matrix(name)]
    return math.sqrt(sum(float((b - a).square().sum()) for a, b in pairs)
                     / sum(float(a.square().sum()) for a, _ in pairs))


@torch.no_grad()
def perplexity(model: Llama, documents: Sequence[Sequence[int]], rows: int = 16) -> float:
    """exp of the mean loss of a token, the first of a document left out; documents: [[int]]."""
    loss = count = 0.0
    for begin in range(0, len(documents), rows):
        some = [tokens[:model.config.room] for tokens in documents[begin:begin + rows]]
        cache = ContiguousCache(model.config, len(some), model.config.room,
                                model.embedding.dtype, model.embedding.device)
        logits = model.forward(cache.step([tokens[:-1] for tokens in some]), cache, every=True)
        follow = torch.tensor([token for tokens in some for token in tokens[1:]])
        loss += float(cross_entropy(logits.float().cpu(), follow, reduction="sum"))
        count += len(follow)
    return math.exp(loss / count)


# ---- codes that know the inputs


@torch.no_grad()
def hessians(model: Llama, documents: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """{name of a matrix: (K, K)}: the sum of x xᵀ over all rows x that it multiplies in the text.

    It is half the second derivative of the squared error of the matrix's results, with respect to
    any of its rows. documents: [[int]]
    """
    names = {id(w): name for name, w in model.weights.items() if is_matrix(name)}
    sums: dict[str, Tensor] = {}

    def matmul(x, w):
        if id(w) in names:
            sums[names[id(w)]] = sums.get(names[id(w)], 0) + x.T @ x
        return model.ops.matmul(x, w)

    perplexity(Llama(model.config, model.weights, replace(model.ops, matmul=matmul)), documents)
    return sums


def inverse_root(hessian):                          # (K, K) -> (K, K)
    """Upper triangular U with Uᵀ U = (hessian + 0.01 · mean of its diagonal · I)⁻¹.

    The addition, GPTQ's authors' choice, is for inputs that vary little or not at all.
    """
    identity = torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
    damped = hessian + 0.01 * hessian.diagonal().mean() * identity
    return torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)


def gptq(w: Tensor, hessian: Tensor, levels: Sequence[float],
         scales: Tensor) -> Tensor:             # (N, K), (K, K), …, (N, K / group) -> (N, K)
    """Codes, int8, column by column: the later columns make good what one column gets wrong.

    U = inverse_root(hessian). If column k comes back too small by e, the best correction for the x
    of the Hessian is to subtract e · U[k, j] / U[k, k] from each later column j.
    Source: "GPTQ", Frantar, Ashkboos, Hoefler and Alistarh, 2023.
    """
    upper, w, codes = inverse_root(hessian), w.clone(), torch.empty_like(w, dtype=torch.int8)
    K = w.shape[1]
    group = K // scales.shape[1]
    for k in range(K):
        # exercise: the codes of column k, what is lost, and the columns after it
        column, scale = w[:, k:k + 1], scales[:, k // group, None]          # 2 × (N, 1)
        codes[:, k:k + 1] = quantize(column, levels, scale)
        lost = column - dequantize(codes[:, k:k + 1], levels, scale)        # (N, 1)
        w[:, k + 1:] -= lost * upper[k, k + 1:] / upper[k, k]
    return codes


def with_gptq(model: Llama, scheme: Scheme, hessian_of: dict[str, Tensor]) -> Llama:
    """The Llama whose matrices are rounded by GPTQ. hessian_of: hessians of the model"""
    def solved(name, w):
        scales = scheme.scaled(w)
        codes = gptq(w, hessian_of[name], scheme.levels, scales)
        return dequantize(codes, scheme.levels, scales)

    return with_matrices(model, solved)


# ---- on k15's kernels


class PackedWeight(NamedTuple):
    """A matrix as k15 takes it."""

    packed: Tensor              # (N, K · bits / 8)
    scales: Tensor              # (N, K / group), fp32
    bits: int
    group: int

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scales.nbytes

    def numel(self) -> int:
        return self.scales.numel() * self.group


def packed_matmul(ops: Kernels) -> Kernels:
    """The table `ops` with a matmul that also takes a PackedWeight: then quantized_matmul runs."""
    def matmul(x, w):                               # (T, K), (N, K) -> (T, N)
        return ops.quantized_matmul(x, *w) if isinstance(w, PackedWeight) else ops.matmul(x, w)

    return replace(ops, matmul=matmul)


def quantize_llama(model: Llama, bits: int, group: int) -> Llama:
    """The Llama with every matrix packed for k15, the head included.

    bits: 4 or 8    group: a power of two, 16 or more, that divides the rows. If the head is the
    embedding, that stays beside it, to look tokens up. ValueError if a group does not fit.
    """
    def packed(w):
        codes, scales = quantize_weight(w, bits, group)
        return PackedWeight(codes, scales, bits, group)

    own = with_matrices(model, lambda name, w: packed(w))
    own.ops, own.head = packed_matmul(model.ops), packed(model.head)
    return own
