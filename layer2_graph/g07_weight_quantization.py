"""g07 · Low-precision weights: a code of few bits for each, and a scale for each group

N, K: numbers out and in of a matrix w    group: neighbours in a row of w that share a scale
levels: what the codes 0, 1, 2 … stand for, from 0 up; code -q stands for -levels[q]
w ≈ levels[code] · scale.
A weight costs the bits of its code, plus those of a scale over `group`.

A decode step reads each weight once and is limited by memory, so fewer bits take less time, if the
kernel unpacks codes in registers.
No formula gives the loss of quality; it is measured.
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

SHRINK = tuple(1 - i / 20 for i in range(20))       # factors of the largest scale to try


# ---- codes


def float_levels(exponent: int, mantissa: int, largest: float) -> tuple[float, ...]:
    """All values from 0 to `largest` of a float with these bits, in the order of the bit patterns.

    The bias is 2^(exponent - 1) - 1; exponent 0 has the subnormal numbers.
    Source: Open Compute Project, "OCP Microscaling Formats", 2023, 5.3.
    """
    bias = 2 ** (exponent - 1) - 1
    steps = 2 ** mantissa
    values = ((m + steps if e else m) / steps * 2.0 ** (max(e, 1) - bias)
              for e in range(2 ** exponent) for m in range(steps))
    return tuple(value for value in values if value <= largest)


LEVELS = {
    "int8": tuple(map(float, range(128))),
    "fp8": float_levels(4, 3, 448),                 # E4M3, in which 480 would be NaN
    "int4": tuple(map(float, range(8))),
    "fp4": float_levels(2, 1, 6),                   # E2M1
    "ternary": (0.0, 1.0),
}


def predict_model_bits() -> float:
    """The mean number of bits of a weight of the small model, with its matrices in int4.

    28 matrices: 1,572,864 weights in groups of 32, with an fp16 scale for each group.
    Everything else stays in fp16: 394,944 weights.
    """
    # exercise: within 0.1 is right; how many bits does a group of 32 take?
    return (1_572_864 * (4 + 16 / 32) + 394_944 * 16) / (1_572_864 + 394_944)


def nearest(x: Tensor, levels: Sequence[float]) -> Tensor:
    """The code of the level nearest to each number, int8; beyond the last level, the last code.

    x: floats, any shape    levels: ascending from 0, 128 at most
    Halfway between two levels, take the even code, as IEEE 754 rounds.
    """
    values = torch.tensor(levels, dtype=x.dtype, device=x.device)
    # exercise: 1. the borders, and the code of |x|; 2. ties to the even code; 3. the sign
    borders = (values[1:] + values[:-1]) / 2
    code = torch.bucketize(x.abs(), borders)            # borders below |x|
    tie = x.abs() == borders[code.clamp(max=len(borders) - 1)]
    code = code + (tie & (code % 2 == 1))
    return (code * x.sign()).to(torch.int8)


def quantize(w: Tensor, levels: Sequence[float],
             scales: Tensor) -> Tensor:             # (…, K), (…, K / group) -> (…, K)
    """Codes of w / scale, int8; scales of shape (1, 1) are one for the whole array."""
    groups = w.unflatten(-1, (scales.shape[-1], -1))                # (…, K / group, group)
    divisor = torch.where(scales > 0, scales, 1)[..., None]         # a group of zeros: by 1
    return nearest(groups / divisor, levels).flatten(-2)


def dequantize(codes: Tensor, levels: Sequence[float],
               scales: Tensor) -> Tensor:           # (…, K), (…, K / group) -> (…, K)
    """levels[code] · scale, in the scales' dtype."""
    values = torch.tensor(levels, dtype=scales.dtype, device=codes.device)
    values = values[codes.abs().long()] * codes.sign()
    return (values.unflatten(-1, (scales.shape[-1], -1)) * scales[..., None]).flatten(-2)


def round_trip(w: Tensor, levels: Sequence[float], scales: Tensor) -> Tensor:   # -> (…, K)
    """w, quantised and dequantised."""
    return dequantize(quantize(w, levels, scales), levels, scales)


def in_a_byte(low: int, top: int) -> tuple[int, int]:
    """(n, radix): a byte holds n codes from low to top, as digits from 0 to radix - 1."""
    n = 1
    while (top - low + 1) ** (n + 1) <= 256:
        n += 1
    return n, int(256 ** (1 / n))


def pack(codes: Tensor, low: int, top: int) -> Tensor:          # (N, K) -> (bytes,)
    """Codes from low to top packed n to a byte, uint8, row after row; n and radix as of in_a_byte.

    A digit is the code minus low, so it is 0 or more. n digits make a byte: the first counts ones,
    the second `radix`, the third `radix`², and so on.
    Zeros fill the last byte.
    """
    n, radix = in_a_byte(low, top)
    # exercise: digits, n to a byte, each times its power of radix
    digits = codes.flatten().long() - low
    digits = pad(digits, (0, -len(digits) % n)).unflatten(0, (-1, n))           # (bytes, n)
    powers = radix ** torch.arange(n, device=codes.device)
    return (digits * powers).sum(-1).to(torch.uint8)


def unpack(packed: Tensor, low: int, top: int,
           shape: Sequence[int]) -> Tensor:         # (bytes,) -> shape
    """The inverse of pack: the codes, int8."""
    n, radix = in_a_byte(low, top)
    powers = radix ** torch.arange(n, device=packed.device)
    digits = packed[:, None].long() // powers % radix                           # (bytes, n)
    return (digits.flatten()[:math.prod(shape)] + low).to(torch.int8).view(shape)


# ---- scales


def grouped(w: Tensor, group: int) -> Tensor:       # (…, K) -> (…, K / group, group)
    """w in groups; ValueError if the group does not divide a row, or w is not finite."""
    if w.shape[-1] % group:
        raise ValueError(f"scales: rows of {w.shape[-1]} numbers, expected a multiple of the "
                         f"group, {group}")
    if not w.isfinite().all():
        raise ValueError("scales: w has values that are not finite, expected none")
    return w.unflatten(-1, (-1, group))


def half(scales: Tensor) -> Tensor:
    """Scales rounded to fp16, as fp32; ValueError if one is larger than fp16 can hold."""
    if scales.numel() and scales.max() > 65504:
        raise ValueError(f"scales: the largest is {scales.max():.6g}, expected up to fp16's 65504")
    return scales.half().float()


def absmax_scales(w: Tensor, levels: Sequence[float], group: int) -> Tensor:  # (…, K / group)
    """The largest |w| of a group is mapped to the last level; the scale is rounded to fp16."""
    return half(grouped(w, group).abs().amax(-1) / levels[-1])


def absmean_scales(w: Tensor, levels: Sequence[float], group: int) -> Tensor:  # (…, K / group)
    """The mean |w| becomes level 1. Source: "BitNet b1.58", Ma and others, 2024, for a matrix."""
    return half(grouped(w, group).abs().mean(-1))


def least_error_scales(w: Tensor, levels: Sequence[float],
                       group: int) -> Tensor:       # (…, K) -> (…, K / group)
    """For each group the best of 20 scales: absmax's times each share in SHRINK, rounded to fp16.

    Best: the least sum of (ŵ - w)² over the group, ŵ the round trip of w; of equals, the first.
    """
    largest = grouped(w, group).abs().amax(-1) / levels[-1]
    best = half(largest)
    least = torch.full_like(largest, torch.inf)
    # exercise: try each share; each group keeps its own best scale
    for share in SHRINK:
        scales = half(largest * share)
        error = grouped(round_trip(w, levels, scales) - w, group).square().sum(-1)
        best = torch.where(error < least, scales, best)
        least = torch.minimum(error, least)
    return best


def mx_scales(w: Tensor, levels: Sequence[float], group: int) -> Tensor:  # (…, K / group)
    """Powers of two, 8 bits each, so that the largest |w| gets the exponent of the last level.

    Values beyond the last level are clipped.
    Source: OCP, as above, section 6.3; group is 32.
    """
    largest = grouped(w, group).abs().amax(-1)
    return torch.exp2(largest.frexp()[1] - math.frexp(levels[-1])[1]) * (largest > 0)


def nv_scales(w: Tensor, levels: Sequence[float], group: int) -> Tensor:  # (…, K / group)
    """absmax's scales, in fp8 with one fp32 scale for them all: NVIDIA's NVFP4, group 16."""
    scales = grouped(w, group).abs().amax(-1) / levels[-1]
    fp8 = LEVELS["fp8"]
    return round_trip(scales, fp8, (scales.amax() / fp8[-1]).reshape(1, 1))


def with_zero_point(w: Tensor, bits: int, group: int) -> Tensor:    # (…, K) -> (…, K)
    """w after a round trip through codes 0 to 2^bits - 1, of which `zero` stands for 0.

    The levels span the least to the largest w of a group, which stores its scale (fp16) and zero.
    """
    groups = grouped(w, group)
    top = 2 ** bits - 1
    low = groups.amin(-1).clamp(max=0)
    high = groups.amax(-1).clamp(min=0)
    scales = half((high - low) / top)[..., None]
    divisor = torch.where(scales > 0, scales, 1)
    zero = (-low[..., None] / divisor).round()
    codes = ((groups / divisor).round() + zero).clamp(0, top)
    return ((codes - zero) * scales).flatten(-2).to(w.dtype)


# ---- a whole model


class Scheme(NamedTuple):
    """How the matrices are stored."""

    levels: tuple[float, ...]
    group: int | None           # None: a whole row
    scales: Callable            # (w, levels, group) -> scales
    scale_bits: int

    def scaled(self, w: Tensor) -> Tensor:
        return self.scales(w, self.levels, self.group or w.shape[-1])

    def rounded(self, w: Tensor) -> Tensor:
        return round_trip(w, self.levels, self.scaled(w)).to(w.dtype)

    def llama(self, model: Llama) -> Llama:
        """A Llama with its matrices rounded by this scheme."""
        return with_matrices(model, lambda name, w: self.rounded(w))

    def nbytes(self, w: Tensor) -> float:
        """Bytes of the packed codes and the scales."""
        scales = self.scaled(w)
        top = len(self.levels) - 1
        codes = pack(quantize(w, self.levels, scales), -top, top)
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
    """True if the weight is a matrix of a layer; its Hugging Face name decides."""
    return name.endswith("_proj.weight")


def with_matrices(model: Llama, change: Callable) -> Llama:
    """A Llama with every matrix w replaced by change(name, w)."""
    model.config.expect_plain()
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
    """exp of the mean loss per token, without the first token of each document; rows: in a batch"""
    loss = count = 0.0
    for begin in range(0, len(documents), rows):
        some = [tokens[:model.config.room] for tokens in documents[begin:begin + rows]]
        cache = ContiguousCache(model.config, len(some), max(map(len, some)),
                                model.embedding.dtype, model.embedding.device)
        logits = model.forward(cache.step([tokens[:-1] for tokens in some]), cache, every=True)
        follow = torch.tensor([token for tokens in some for token in tokens[1:]])
        loss += float(cross_entropy(logits.float().cpu(), follow, reduction="sum"))
        count += len(follow)
    return math.exp(loss / count)


# ---- codes that know the inputs


@torch.no_grad()
def hessians(model: Llama, documents: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """{name of a matrix: (K, K)}: the sum of x xᵀ over all inputs x of the matrix in the documents.

    In fp32 at least.
    It is half the second derivative of the squared error of w x by a row of w.
    """
    model.config.expect_plain()
    names = {id(w): name for name, w in model.weights.items() if is_matrix(name)}
    sums: dict[str, Tensor] = {}

    def matmul(x, w):
        if id(w) in names:
            own = x.to(torch.promote_types(x.dtype, torch.float32))
            sums[names[id(w)]] = sums.get(names[id(w)], 0) + own.T @ own
        return model.ops.matmul(x, w)

    perplexity(Llama(model.config, model.weights, replace(model.ops, matmul=matmul)), documents)
    return sums


def inverse_root(hessian: Tensor) -> Tensor:        # (K, K) -> (K, K)
    """Upper triangular U with Uᵀ U = (hessian + 0.01 · mean of its diagonal · I)⁻¹."""
    identity = torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
    damped = hessian + 0.01 * hessian.diagonal().mean() * identity      # inputs may hardly vary
    return torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)


def gptq(w: Tensor, hessian: Tensor, levels: Sequence[float],
         scales: Tensor) -> Tensor:             # (N, K), (K, K), …, (N, K / group) -> (N, K)
    """Codes, int8, column by column; later columns correct the error of earlier ones.

    U = inverse_root(hessian).
    Let e = column k minus its dequantised codes, (N, 1).
    The best correction, for inputs with this Hessian, is to subtract e · U[k, j] / U[k, k] from
    each later column j.
    Source: "GPTQ", Frantar, Ashkboos, Hoefler and Alistarh, 2023.
    """
    upper = inverse_root(hessian)
    w = w.clone()
    codes = torch.empty_like(w, dtype=torch.int8)
    group = w.shape[1] // scales.shape[1]
    for k in range(w.shape[1]):
        # exercise: the codes of column k, the error e, and the correction of the columns after k
        column = w[:, k:k + 1]                                              # (N, 1)
        scale = scales[:, k // group, None]                                 # (N, 1)
        codes[:, k:k + 1] = quantize(column, levels, scale)
        e = column - dequantize(codes[:, k:k + 1], levels, scale)           # (N, 1)
        w[:, k + 1:] -= e * upper[k, k + 1:] / upper[k, k]
    return codes


def with_gptq(model: Llama, scheme: Scheme, hessian_of: dict[str, Tensor]) -> Llama:
    """A Llama with its matrices rounded by GPTQ. hessian_of: what `hessians` returns"""
    def solved(name, w):
        scales = scheme.scaled(w)
        codes = gptq(w.to(hessian_of[name].dtype), hessian_of[name], scheme.levels, scales)
        return dequantize(codes, scheme.levels, scales).to(w.dtype)

    return with_matrices(model, solved)


# ---- on k15's kernels


class PackedWeight(NamedTuple):
    """A matrix in the form that k15's kernels read."""

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
    """The table `ops`, its matmul accepting a PackedWeight too: it calls quantized_matmul."""
    def matmul(x, w):                               # (T, K), (N, K) -> (T, N)
        return ops.quantized_matmul(x, *w) if isinstance(w, PackedWeight) else ops.matmul(x, w)

    return replace(ops, matmul=matmul)


def quantize_llama(model: Llama, bits: int, group: int) -> Llama:
    """A Llama with every matrix, the head included, packed for k15.

    bits: 4 or 8    group: a power of two, 16 or more
    If the head is the embedding, an unpacked copy stays for looking up tokens.
    ValueError if the group does not divide a row.
    """
    def packed(w):
        return PackedWeight(*quantize_weight(w, bits, group), bits, group)

    own = with_matrices(model, lambda name, w: packed(w))
    own.ops = packed_matmul(model.ops)
    own.head = packed(model.head)
    return own
