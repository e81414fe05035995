"""o04 · Memory and communication of training: what a rank stores, computes and sends in one step

B: sequences a rank has in a step   T: tokens of each   W: ranks, one GPU each
L: layers   C: model width   H: query heads   G: key and value heads   D: head width   F: mlp width
V: vocabulary   (r03's letters, and its `LlamaShape`)   itemsize: bytes of one number
A training step with Adam in mixed precision stores 16 bytes per parameter, does about 6 FLOPs per
parameter and token, and keeps activations for backward, whose number grows with B·T.
"""

from day01_roofline import count_parameters, layer_matrices

__all__ = ["COLLECTIVES", "MIXED", "WAYS", "kept_numbers", "more_bytes", "peak_activations",
           "rounds", "sent_by", "state_bytes", "step_bytes", "training_flops"]

# Bytes a parameter, mixed precision with Adam: Rajbhandari et al. 2020 (ZeRO), section 3.1.
MIXED = {"weights": 2, "gradients": 2, "optimiser": 4 + 4 + 4}     # fp32 weights, mean, variance
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
WAYS = ("dp", "zero3", "tp", "sp", "pp")


def predict_bytes_a_parameter():
    """Bytes that training stores for one parameter: weight and gradient in bf16, Adam's in fp32."""
    # exercise: weight, gradient, Adam's mean and variance, and its fp32 copy of the weight
    return 2 + 2 + 4 + 4 + 4


def state_bytes(parameters, W=1, stage=0):
    """Bytes of weights, gradients and optimiser on each of W ranks, without activations.

    stage: ZeRO's. 0: every rank holds everything; 1: the optimiser's part is sharded; 2: the
    gradients too; 3: the weights too.
    A shard is rounded up to whole parameters.
    """
    # exercise: a sharded part has 1/W of the parameters on this rank; MIXED has the bytes
    shard = -(-parameters // W)
    sharded = {"optimiser": stage >= 1, "gradients": stage >= 2, "weights": stage >= 3}
    return sum(size * (shard if sharded[part] else parameters) for part, size in MIXED.items())


def kept_numbers(m, B, T):
    """{array: how many numbers}, for each array that one layer keeps for backward.

    Keys, in the order of forward; its attention keeps no scores:
      x, scale, normed, y    the first norm's input; one number per token, 1 / its root mean square;
                             x · scale; normed · weight, which is the input of q, k, v
      q, k, v, lse, mixed    attention's three inputs; one number per query and head; its output
      x2, scale2, normed2, y2    the second norm's four
      gate, up, silu, hidden     the MLP's: hidden = silu · up
    """
    tokens = B * T
    width = tokens * m.C
    norm = {"x": width, "scale": tokens, "normed": width, "y": width}
    # exercise: how many numbers has each array of attention and of the MLP, for B·T tokens?
    queries = tokens * m.H * m.D
    keys = tokens * m.G * m.D
    attention = {"q": queries, "k": keys, "v": keys, "lse": tokens * m.H, "mixed": queries}
    mlp = dict.fromkeys(("gate", "up", "silu", "hidden"), tokens * m.F)
    return norm | attention | {name + "2": n for name, n in norm.items()} | mlp


def peak_activations(m, B, T, recompute):
    """The most numbers kept for backward at one time, all layers together.

    recompute: each layer keeps only its input; backward runs a layer again when it reaches it, and
    then all arrays of that one layer exist.
    """
    # exercise: all arrays of L layers; or L inputs and the other arrays of one layer
    layer = sum(kept_numbers(m, B, T).values())
    return m.L * B * T * m.C + layer - B * T * m.C if recompute else m.L * layer


def training_flops(m, B, T, recompute=False):
    """{part: FLOPs} of one training step: matrices, attention, lm_head.

    Attention counts the full T × T square, as MFU is reported (Chowdhery et al. 2022, appendix B).
    Backward does twice the FLOPs of forward: one product for the gradient of the input, one for
    that of the weights. recompute: the forward pass of the layers, not of lm_head, runs once again.
    """
    # exercise: forward: 2 FLOPs a weight and token; of a head (T, D)·(D, T) and (T, T)·(T, D)
    forward = {"matrices": m.L * 2 * B * T * sum(n * k for n, k in layer_matrices(m).values()),
               "attention": m.L * B * m.H * 2 * 2 * T * T * m.D,
               "lm_head": 2 * B * T * m.C * m.V}
    return {part: n * (4 if recompute and part != "lm_head" else 3) for part, n in forward.items()}


def sent_by(collective, size, W):
    """Bytes that each of W ranks in a ring sends. size: bytes of the whole array

    all_reduce: every rank gives an array and gets the sum
    all_gather: every rank gives a piece of size / W and gets the whole
    reduce_scatter: every rank gives an array and gets one piece of the sum
    """
    # exercise: in each of W - 1 rounds a rank sends one piece; which collective goes around twice?
    tours = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}[collective]
    return tours * (W - 1) * size / W


def step_bytes(way, m, B, T, W, itemsize):
    """Bytes that a rank sends in a training step. way: how W ranks share the work, one of WAYS

    dp: each rank holds all weights and has B sequences of its own    zero3: the same, with the
    weights sharded    tp: each holds 1/W of every matrix; all work on the same B sequences
    sp: as tp, but between the matrices each rank holds T/W of the tokens
    pp: each holds L/W of the layers; counted for a rank in the middle
    """
    gradients = itemsize * sum(count_parameters(m).values())
    hidden = itemsize * B * T * m.C                             # one layer's input
    # exercise: which collectives does each way need, how often, and on how many bytes?
    return {
        "dp": sent_by("all_reduce", gradients, W),
        "zero3": 2 * sent_by("all_gather", gradients, W) + sent_by("reduce_scatter", gradients, W),
        "tp": m.L * (2 + 2) * sent_by("all_reduce", hidden, W),
        "sp": m.L * 4 * (sent_by("all_gather", hidden, W)
                         + sent_by("reduce_scatter", hidden, W)),
        "pp": hidden + hidden,                  # forward to the next, a gradient to the one before
    }[way]


def more_bytes(way, m, B, T, W, itemsize, met=2):
    """Bytes that a rank sends in a training step by two more ways, besides the sum of gradients.

    ep: each of W ranks holds 1/W of every layer's experts and has B sequences of its own.
    A token goes to `met` experts and comes back, in forward and in backward; all are met equally
    often.
    cp: each holds T/W of the tokens of the same B sequences.
    Keys and values go around the ring in forward and again in backward, and there their gradients
    as well.
    """
    sent = met * itemsize * B * T * m.C * (W - 1) / W               # of its tokens, to other ranks
    keys_values = itemsize * B * T * 2 * m.G * m.D                  # of one layer, all tokens
    return {
        "ep": m.L * 4 * sent,
        "cp": m.L * (2 * sent_by("all_gather", keys_values, W)
                     + sent_by("reduce_scatter", keys_values, W)),
    }[way]


def rounds(way, m, W):
    """Messages that a rank waits for one after another in a step, by one of WAYS, "ep" or "cp".

    Rings, as in sent_by; ep sends to the other ranks in turn. zero3 gathers a layer at a time.
    ep, cp: without the sum of gradients, as in more_bytes; dp: that sum alone, in one piece
    """
    ring = W - 1
    return {"dp": 2 * ring, "zero3": m.L * 3 * ring, "tp": m.L * 4 * 2 * ring,
            "sp": m.L * 4 * 2 * ring, "pp": 2, "ep": m.L * 4 * ring, "cp": m.L * 3 * ring}[way]


def predict_cheapest_way():
    """Which sends fewer bytes per rank and step, "dp" or "tp"?
    Llama-3.1-8B, 8 ranks, 16-bit numbers, sequences of 8,192 tokens.
    Under dp each rank has one; under tp all ranks work on the same eight."""
    # exercise: 16 GB of gradients once, or hidden states of 65,536 tokens 4 · 32 times
    return "dp"
