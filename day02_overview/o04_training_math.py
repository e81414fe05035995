"""o04 · Memory and communication of training: what a rank keeps, does and sends in one step

B: sequences a rank has in a step   T: tokens of each   W: ranks, one GPU each
L: layers   C: model width   H: query heads   G: key and value heads   D: head width   F: mlp width
V: vocabulary   (r03's letters, and its `Llama`)   itemsize: bytes of one number
A step of Adam in mixed precision keeps 16 bytes a parameter, does 6 FLOPs for each parameter and
token, and keeps what backward needs: numbers that grow with B·T and not with the parameters.
"""

from day01_roofline import count_parameters, layer_matrices

__all__ = ["COLLECTIVES", "MIXED", "WAYS", "kept_numbers", "more_bytes", "peak_activations",
           "rounds", "sent_by", "state_bytes", "step_bytes", "training_flops"]

# Bytes a parameter, mixed precision with Adam: Rajbhandari et al. 2020 (ZeRO), section 3.1.
MIXED = {"weights": 2, "gradients": 2, "optimiser": 4 + 4 + 4}     # fp32 weights, mean, variance
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
WAYS = ("dp", "zero3", "tp", "sp", "pp")


def predict_bytes_a_parameter():
    """Bytes that training keeps for one parameter: bf16 weights and gradients, Adam in fp32."""
    # exercise: Adam has a mean and a variance, and it adds its small steps to fp32 weights
    return 2 + 2 + 4 + 4 + 4


def state_bytes(parameters, W=1, stage=0):
    """Bytes of weights, gradients and optimiser on each of W ranks, without activations.

    stage: of ZeRO. 0 keeps all on every rank, 1 shards the optimiser's part, 2 the gradients, too,
    3 the weights, too. A shard is rounded up to whole parameters.
    """
    # exercise: what is sharded has 1/W of the parameters here; sizes are in MIXED
    shard = -(-parameters // W)
    sharded = {"optimiser": stage >= 1, "gradients": stage >= 2, "weights": stage >= 3}
    return sum(size * (shard if sharded[part] else parameters) for part, size in MIXED.items())


def kept_numbers(m, B, T):
    """{array: numbers} that backward needs from one layer, with an attention that keeps no scores.

    Keys, in the order of forward:
      x, scale, normed, y    a norm's input, 1 / root mean square of each token, x · scale, and
                             y = normed · weight, the matrices' input
      q, k, v, lse, mixed    attention's inputs, a number for each query and head, its output
      x2, scale2, normed2, y2    the second norm's
      gate, up, silu, hidden     the MLP's: hidden = silu · up
    """
    # exercise: how many numbers does each have, for B·T tokens?
    tokens = B * T
    width = tokens * m.C
    queries = tokens * m.H * m.D
    keys = tokens * m.G * m.D
    norm = {"x": width, "scale": tokens, "normed": width, "y": width}
    attention = {"q": queries, "k": keys, "v": keys, "lse": tokens * m.H, "mixed": queries}
    mlp = dict.fromkeys(("gate", "up", "silu", "hidden"), tokens * m.F)
    return norm | attention | {name + "2": n for name, n in norm.items()} | mlp


def peak_activations(m, B, T, recompute):
    """Numbers kept for backward at their peak, over all layers.

    recompute: each layer keeps only its input, and backward runs the layer again when it comes to
    it: then all the arrays of that one layer exist.
    """
    # exercise: L layers of everything, or L inputs and one layer's other arrays
    layer = sum(kept_numbers(m, B, T).values())
    return m.L * B * T * m.C + layer - B * T * m.C if recompute else m.L * layer


def training_flops(m, B, T, recompute=False):
    """{part: FLOPs} of one training step: matrices, attention, lm_head.

    Attention counts the full T × T square, as MFU is reported (Chowdhery et al. 2022, appendix B).
    Backward does twice what forward does: a gradient for each input and one for each weight.
    recompute: forward of the layers, but not of lm_head, runs a second time.
    """
    # exercise: 2 FLOPs a weight and token forward; attention has two products of T × D by D × T
    forward = {"matrices": m.L * 2 * B * T * sum(n * k for n, k in layer_matrices(m).values()),
               "attention": m.L * B * m.H * 2 * 2 * T * T * m.D,
               "lm_head": 2 * B * T * m.C * m.V}
    return {part: n * (4 if recompute and part != "lm_head" else 3) for part, n in forward.items()}


def sent_by(collective, size, W):
    """Bytes that each of W ranks sends in a ring.

    size: bytes of the whole array. all_reduce: each rank has one and gets the sum. all_gather:
    each has a piece of size / W and gets all. reduce_scatter: each has a whole array and gets a
    piece of the sum.
    """
    # exercise: in W - 1 rounds each rank passes one piece on; which collective goes round twice?
    tours = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}[collective]
    return tours * (W - 1) * size / W


def step_bytes(way, m, B, T, W, itemsize):
    """Bytes that a rank sends in a training step, for one of WAYS to share the work among W ranks.

    dp: each has all weights and B sequences of its own    zero3: likewise, weights in shards
    tp: each has 1/W of every layer's matrices, all work on the same B sequences
    sp: tp whose ranks keep T/W of the tokens between the matrices
    pp: each has L/W of the layers; counted for a rank between two others
    """
    gradients = itemsize * sum(count_parameters(m).values())
    hidden = itemsize * B * T * m.C                             # one layer's input
    # exercise: which collectives does each need, how often, on how many bytes?
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

    ep: each of W ranks holds 1/W of every layer's experts and has B sequences of its own. A token
    goes to `met` experts and comes back, forward and backward; all experts are met equally often.
    cp: each has T/W of the tokens of the same B sequences. Keys and values go around the ring,
    forward and again backward, and their gradients are added up there.
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

    Rings, as in sent_by; ep sends to each other rank in turn. zero3 gathers a layer at a time.
    ep, cp: without the sum of gradients, as in more_bytes; dp: that sum alone
    """
    ring = W - 1
    return {"dp": 2 * ring, "zero3": m.L * 3 * ring, "tp": m.L * 4 * 2 * ring,
            "sp": m.L * 4 * 2 * ring, "pp": 2, "ep": m.L * 4 * ring, "cp": m.L * 3 * ring}[way]


def predict_cheapest_way():
    """Which of "dp" and "tp" sends less in a step of Llama-3.1-8B on 8 ranks, in 16-bit numbers?
    Under dp each rank has 1 sequence of 8,192 tokens; under tp all ranks work on 8 of them."""
    # exercise: 16 GB of gradients against four times 32 hidden states of 65,536 tokens
    return "dp"
