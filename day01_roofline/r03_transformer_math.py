"""r03 · Count a transformer: the parameters, FLOPs and bytes of one step, by operation

B: sequences   T: new tokens of each in this step   N: context of each, the new tokens included
L: layers   C: model width   H: query heads   G: key and value heads   D: head width
F: mlp width   V: vocabulary   itemsize: bytes of one number
A weight does 2 FLOPs for each token, but is read once a step. Prefill is T = N, decode is T = 1.
"""

import math
from dataclasses import dataclass

__all__ = ["LLAMAS", "OPERATIONS", "Llama", "activations", "attended", "count_bytes", "count_conv",
           "count_flops", "count_parameters", "decode_batch", "intensity", "kv_bytes_per_token"]

# What a step spends its time on. `qkv` makes queries, keys and values, `attention` mixes them, `out`
# brings the heads together; `gate_up` and `down` are the MLP; `lm_head` scores the vocabulary.
OPERATIONS = ("qkv", "attention", "out", "gate_up", "down", "lm_head")


@dataclass(frozen=True)
class Llama:
    """A shape: RMSNorm, attention, RMSNorm, gated MLP in each layer, a last RMSNorm, no biases."""

    name: str
    L: int
    C: int
    H: int
    G: int
    D: int
    F: int
    V: int
    tied: bool              # lm_head uses the embedding's matrix and has none of its own


# The sizes are those of the published configurations.
LLAMAS = {m.name: m for m in (
    Llama("SmolLM-135M", L=30, C=576, H=9, G=3, D=64, F=1536, V=49152, tied=True),
    Llama("Llama-3.2-1B", L=16, C=2048, H=32, G=8, D=64, F=8192, V=128256, tied=True),
    Llama("Llama-3.1-8B", L=32, C=4096, H=32, G=8, D=128, F=14336, V=128256, tied=False),
    Llama("Llama-3.1-70B", L=80, C=8192, H=64, G=8, D=128, F=28672, V=128256, tied=False),
)}


def attended(T, N):
    """Pairs (new token, token it may see) of one sequence under the causal mask."""
    if not 1 <= T <= N:
        raise ValueError(f"attended: expected 1 <= T <= N, got T = {T} and N = {N}")
    return T * N - T * (T - 1) // 2         # the k-th new token from the end misses k - 1 others


def activations(m):
    """{operation: numbers that it reads and writes for one token in one layer}. lm_head stands alone."""
    return {
        "qkv": m.C + (m.H + 2 * m.G) * m.D,
        "attention": m.H * m.D + m.H * m.D,     # queries in, one result for each out; not the cache
        "out": m.H * m.D + m.C,
        "gate_up": m.C + 2 * m.F,
        "down": m.F + m.C,
        "lm_head": m.C + m.V,
    }


def count_parameters(m):
    """{part: parameters} of the whole model.

    Parts: embedding qkv out gate_up down norms lm_head. A norm has one number for each channel.
    """
    # exercise: a matrix that makes k numbers of n has n · k of them, and each layer has its own
    return {
        "embedding": m.V * m.C,
        "qkv": m.L * m.C * (m.H + 2 * m.G) * m.D,       # keys and values have G heads each
        "out": m.L * m.H * m.D * m.C,
        "gate_up": m.L * m.C * 2 * m.F,
        "down": m.L * m.F * m.C,
        "norms": (2 * m.L + 1) * m.C,
        "lm_head": 0 if m.tied else m.C * m.V,
    }


def count_flops(m, B, T, N):
    """{operation: FLOPs} of one step: T new tokens of each of B sequences, N tokens of context each.

    Keys: OPERATIONS. Only matrix products count. lm_head runs on the last token of each sequence.
    """
    # exercise: each weight does a multiplication and an addition for every token that meets it
    parameters = count_parameters(m)
    flops = {name: 2 * B * T * parameters[name] for name in ("qkv", "out", "gate_up", "down")}
    scores = m.L * B * m.H * attended(T, N)
    flops["attention"] = scores * (2 * m.D + 2 * m.D)   # to make a score, and to use it on a value
    flops["lm_head"] = 2 * B * m.C * m.V
    return flops


def kv_bytes_per_token(m, itemsize):
    """Bytes that one token of context holds in the KV cache, over all layers."""
    # exercise: every layer keeps the token's keys and its values
    return m.L * 2 * m.G * m.D * itemsize


def count_bytes(m, B, T, N, itemsize):
    """{operation: (weights, activations, cache)}: the bytes it moves in one step, arguments as above.

    Keys: OPERATIONS. Each operation is a kernel of its own, and what it needs crosses the bus once.
    """
    # exercise: weights once a step, activations for each new token, the cache of each sequence
    parameters, numbers = count_parameters(m), activations(m)
    new = {name: m.L * B * T * numbers[name] * itemsize for name in OPERATIONS}
    moved = {name: (parameters[name] * itemsize, new[name], 0)
             for name in ("qkv", "out", "gate_up", "down")}
    moved["attention"] = 0, new["attention"], B * N * kv_bytes_per_token(m, itemsize)
    moved["lm_head"] = m.C * m.V * itemsize, B * numbers["lm_head"] * itemsize, 0
    return moved


def intensity(m, B, T, N, itemsize):
    """FLOP/byte of one whole step."""
    return (sum(count_flops(m, B, T, N).values())
            / sum(map(sum, count_bytes(m, B, T, N, itemsize).values())))


def decode_batch(m, N, peak, bandwidth, itemsize):
    """The smallest batch whose decode step is compute-bound, None where no batch is.

    peak: FLOP/s   bandwidth: byte/s. All FLOPs of the step stand against all its bytes.
    """
    # exercise: what does one more sequence add to the arithmetic, and what to the bytes?
    flops = sum(count_flops(m, 1, 1, N).values())
    moved = count_bytes(m, 1, 1, N, itemsize).values()
    weights = sum(w for w, _, _ in moved)
    each = sum(new + cache for _, new, cache in moved)
    gain = flops / peak - each / bandwidth      # seconds of arithmetic beyond the sequence's own bytes
    return math.ceil(weights / bandwidth / gain) if gain > 0 else None


def count_conv(B, height, width, inputs, outputs, side, groups, itemsize):
    """A convolution of B images, stride 1, output as large as the input: (FLOPs, fewest bytes).

    inputs, outputs: channels   side: of the square filter   groups: each output channel sees
    inputs / groups channels; 1 is a full convolution, groups = inputs = outputs a depthwise one.
    Taps that fall on the padding are counted.
    """
    if inputs % groups or outputs % groups:
        raise ValueError(f"count_conv: {inputs} input and {outputs} output channels do not divide "
                         f"into {groups} groups")
    pixels, taps = B * height * width, side * side * (inputs // groups)
    flops = 2 * pixels * outputs * taps
    moved = (pixels * inputs + outputs * taps + pixels * outputs) * itemsize
    return flops, moved


def predict_mlp_share():
    """The share of Llama-3.1-8B's parameters that is in its MLPs: a number from 0 to 1."""
    # exercise: within 0.05 is right; compare one layer's MLP with its attention
    return 0.70


def predict_decode_intensity():
    """FLOP/byte of Llama-3.1-8B decoding one sequence of 2048 tokens, 16-bit weights."""
    # exercise: within 15 % is right; how many FLOPs does a weight do, and how many bytes has it?
    return 1.0


def predict_gain_of_depthwise():
    """How many times faster than the full 3 x 3 convolution the depthwise one can be at most.

    32 images of 56 x 56, 256 channels in and out, 16-bit, on 312 TFLOP/s and 1.5 TB/s.
    """
    # exercise: within 10 % is right; which roof does each stand under?
    return 5.5
