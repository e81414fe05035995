"""r03 · Count a transformer: the parameters, FLOPs and bytes of one step, by operation

B: sequences   T: new tokens of each in this step   N: context of each, the new tokens included
L: layers   C: model width   H: query heads   G: key and value heads   D: head width
F: mlp width   V: vocabulary   itemsize: bytes of one number
A weight does 2 FLOPs per token but is read once per step.
Prefill: T = N. Decode: T = 1.
"""

import math
from dataclasses import dataclass

__all__ = ["LLAMAS", "OPERATIONS", "LlamaShape", "attended", "count_bytes", "count_conv",
           "count_flops", "count_parameters", "decode_batch", "decode_costs", "intensity",
           "kv_bytes_per_token", "layer_matrices"]

# The operations on which a step spends its time. `qkv` makes queries, keys and values; `attention`
# compares queries with keys and averages values; `out` joins the heads. `gate_up` and `down` are
# the MLP. `lm_head` scores the vocabulary.
OPERATIONS = ("qkv", "attention", "out", "gate_up", "down", "lm_head")


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a Llama: gated MLPs, two RMSNorms a layer and one at the end, no biases."""

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
    LlamaShape("SmolLM-135M", L=30, C=576, H=9, G=3, D=64, F=1536, V=49152, tied=True),
    LlamaShape("Llama-3.2-1B", L=16, C=2048, H=32, G=8, D=64, F=8192, V=128256, tied=True),
    LlamaShape("Llama-3.1-8B", L=32, C=4096, H=32, G=8, D=128, F=14336, V=128256, tied=False),
    LlamaShape("Llama-3.1-70B", L=80, C=8192, H=64, G=8, D=128, F=28672, V=128256, tied=False),
)}


def attended(T, N):
    """Pairs (new token, token that it may see) in one sequence under the causal mask."""
    if not 1 <= T <= N:
        raise ValueError(f"attended: expected 1 <= T <= N, got T = {T} and N = {N}")
    return T * N - T * (T - 1) // 2         # the last one sees all N, the one before it N - 1


def layer_matrices(m):
    """{operation: (numbers in, numbers out)} of the matrices in one layer."""
    return {
        "qkv": (m.C, (m.H + 2 * m.G) * m.D),
        "out": (m.H * m.D, m.C),
        "gate_up": (m.C, 2 * m.F),
        "down": (m.F, m.C),
    }


def count_parameters(m):
    """{part: number of parameters} of the whole model.

    Keys: embedding qkv out gate_up down norms lm_head.
    A norm has C parameters.
    """
    # exercise: a matrix that turns n numbers into k has n · k parameters; each layer has its own
    count = {name: m.L * n * k for name, (n, k) in layer_matrices(m).items()}
    count["embedding"] = m.V * m.C
    count["norms"] = (2 * m.L + 1) * m.C
    count["lm_head"] = 0 if m.tied else m.C * m.V
    return count


def count_flops(m, B, T, N):
    """{operation: FLOPs} of one step: T new tokens in each of B sequences, contexts of N tokens.

    Keys: OPERATIONS.
    Count matrix products only. lm_head runs on the last token of each sequence, tied or not.
    """
    # exercise: each weight does a multiplication and an addition for every token
    flops = {name: m.L * B * T * 2 * n * k for name, (n, k) in layer_matrices(m).items()}
    scores = m.L * B * m.H * attended(T, N)
    flops["attention"] = scores * (2 * m.D + 2 * m.D)   # for the score, and for the value
    flops["lm_head"] = B * 2 * m.C * m.V
    return flops


def kv_bytes_per_token(m, itemsize):
    """Bytes that one token of context takes up in the KV cache, over all layers."""
    # exercise: every layer keeps G keys and G values of the token
    return m.L * 2 * m.G * m.D * itemsize


def count_bytes(m, B, T, N, itemsize):
    """{operation: (weights, activations, cache)}, the bytes that it moves in one step.

    Arguments as in count_flops.
    Keys: OPERATIONS.
    Each operation is a kernel of its own; everything it needs travels once.
    """
    # exercise: weights once a step; activations for each new token; the cache of each sequence
    tokens = m.L * B * T * itemsize
    contexts = m.L * B * N * itemsize
    moved = {name: (m.L * n * k * itemsize, tokens * (n + k), 0)
             for name, (n, k) in layer_matrices(m).items()}
    moved["attention"] = 0, tokens * (m.H * m.D + m.H * m.D), contexts * 2 * m.G * m.D
    moved["lm_head"] = m.C * m.V * itemsize, B * (m.C + m.V) * itemsize, 0
    return moved


def intensity(m, B, T, N, itemsize):
    """FLOP/byte of one whole step."""
    return (sum(count_flops(m, B, T, N).values())
            / sum(map(sum, count_bytes(m, B, T, N, itemsize).values())))


def decode_costs(m, N, itemsize):
    """(FLOPs of a sequence, bytes of the weights, bytes of a sequence) of a decode step."""
    moved = count_bytes(m, 1, 1, N, itemsize).values()
    return (sum(count_flops(m, 1, 1, N).values()), sum(weights for weights, _, _ in moved),
            sum(new + cache for _, new, cache in moved))


def decode_batch(flops, weights, each, peak, bandwidth):
    """The smallest batch whose decode step is compute-bound, or None if there is none.

    flops: per sequence   weights: bytes read once per step, more than 0
    each: further bytes per sequence   peak: FLOP/s   bandwidth: byte/s
    The step counts as one kernel: all its FLOPs against all its bytes.
    """
    # exercise: how many seconds of arithmetic, and of bytes, does one more sequence add?
    gain = flops * bandwidth - each * peak      # by which a sequence closes the gap
    return math.ceil(weights * peak / gain) if gain > 0 else None


def count_conv(B, height, width, inputs, outputs, side, groups, itemsize):
    """A convolution of B images, stride 1, output as large as the input: (FLOPs, fewest bytes).

    inputs, outputs: channels   side: width of the square filter   groups: each output channel is
    computed from inputs / groups channels; 1 is a full convolution, groups = inputs = outputs a
    depthwise one.
    Positions in the padding count as work.
    """
    if inputs % groups or outputs % groups:
        raise ValueError(f"count_conv: {inputs} input and {outputs} output channels do not divide "
                         f"into {groups} groups")
    pixels = B * height * width
    taps = side * side * (inputs // groups)
    flops = 2 * pixels * outputs * taps
    moved = (pixels * inputs + outputs * taps + pixels * outputs) * itemsize
    return flops, moved


def predict_mlp_share():
    """Your guess: the share of Llama-3.1-8B's parameters that is in its MLPs, from 0 to 1."""
    # exercise: within 0.05 is right; compare one layer's MLP with its attention
    return 0.70             # 176 of 218 million in a layer, and the vocabulary takes a part


def predict_decode_intensity():
    """Your guess: the FLOP/byte of Llama-3.1-8B while it decodes one sequence of 2048 tokens.

    Its weights have 16 bits.
    """
    # exercise: within 15 % is right; how many FLOPs does a weight do, how many bytes does it take?
    return 1.0              # one multiplication and one addition for two bytes


def predict_gain_of_depthwise():
    """Your guess: how many times faster a depthwise convolution is than a full one, at most.

    Filters of 3 × 3, 32 images of 56 × 56, 256 channels in and out, 16-bit numbers, on
    312 TFLOP/s and 1.5 TB/s.
    """
    # exercise: within 10 % is right; which roof limits each of them?
    return 5.5              # 0.379 ms of arithmetic against 0.0685 ms of bytes
