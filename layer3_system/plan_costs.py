"""What a rank of a plan holds and sends: parameters and activations of a stage, seconds of messages

W, ep, B, M, v, T and r03's letters as in planner.py   i: a stage of the pp
Weights and activations have 2 bytes a number, gradients 4.
"""

from functools import cache
from typing import NamedTuple

from day01_roofline import layer_matrices
from day02_overview import kept_numbers, sent_by
from layer3_system.planner import Architecture, Cluster, TrainingPlan

__all__ = ["cache_bytes_per_token", "different_stages", "kept_micro_batches", "largest_stage",
           "layer_seconds", "link_seconds", "share_seconds", "stage_layers", "stage_numbers",
           "stage_parameters", "step_flops", "total_seconds"]


# ---- what a stage holds


class LayerParameters(NamedTuple):
    """Of one layer: what tp cuts, what each of its ranks has whole, and the routed experts."""

    cut: int
    whole: int
    routed: int


@cache
def layer_parameters(model: Architecture, dense: bool) -> LayerParameters:
    """Parameters of a layer with an MLP (dense) or with experts."""
    m = model.shape
    matrices = {name: n * k for name, (n, k) in layer_matrices(m).items()}
    attention = matrices["qkv"] + matrices["out"]
    whole = 2 * m.C                                         # two norms
    if latent := model.latent:
        attention = (latent.q * m.H * (m.D + latent.rope) + latent.kv * m.H * 2 * m.D
                     + matrices["out"])
        whole += m.C * (latent.q + latent.kv + latent.rope) + latent.q + latent.kv
    if dense or model.experts is None:
        return LayerParameters(attention + matrices["gate_up"] + matrices["down"], whole, 0)
    one = 3 * m.C * model.experts.F
    return LayerParameters(attention + model.experts.shared * one, whole + m.C * model.experts.E,
                           model.experts.E * one)


def stage_layers(model: Architecture, pp: int, i: int) -> range:
    """The layers of stage i of pp.
    The embedding counts as a layer before the first, the head as
    one after the last: so Llama 3 cut 126 layers in 16. v > 1 deals them out in another order, and
    as many."""
    size, rest = divmod(model.shape.L + 2, pp)
    begin = i * size + min(i, rest)
    end = begin + size + 1 if i < rest else begin + size
    return range(max(begin - 1, 0), min(end - 1, model.shape.L))


def stage_kind(model: Architecture, pp: int, i: int) -> tuple[int, int]:
    """(dense, experts): how many layers of each kind stage i of pp has."""
    layers = stage_layers(model, pp, i)
    few = model.experts.dense_layers if model.experts else model.shape.L
    dense = len(range(layers.start, min(layers.stop, few)))
    return dense, len(layers) - dense


@cache
def different_stages(model: Architecture, pp: int) -> list[int]:
    """The first stage of each sort: a later one of the same sort keeps fewer micro-batches."""
    sorts = {(i == 0, i == pp - 1, *stage_kind(model, pp, i)): i for i in reversed(range(pp))}
    return list(sorts.values())


def stage_parameters(model: Architecture, plan: TrainingPlan, i: int) -> tuple[float, float]:
    """(dense, experts): parameters on a rank of stage i before ZeRO; experts are the routed ones.
    The first stage has the embedding, the last the head; the ones between have neither."""
    m = model.shape
    dense = 0.0
    experts = 0.0
    for is_dense, count in zip((True, False), stage_kind(model, plan.pp, i), strict=True):
        if count:
            cut, whole, routed = layer_parameters(model, is_dense)
            dense += count * (cut / plan.tp + whole)
            experts += count * routed / (plan.ep * plan.tp)
    if i == 0:
        dense += m.V * m.C / plan.tp
    if i == plan.pp - 1:
        dense += m.C + (0 if m.tied and plan.pp == 1 else m.V * m.C / plan.tp)
    return dense, experts


def largest_stage(model: Architecture, plan: TrainingPlan) -> tuple[float, float]:
    """`stage_parameters` of the stage that has most."""
    return max((stage_parameters(model, plan, i) for i in different_stages(model, plan.pp)),
               key=sum)


@cache
def layer_numbers(model: Architecture, tokens: int, dense: bool) -> int:
    """Numbers that backward needs from one layer, of all its ranks together: o04's, or fewer where
    kernels are fused, more where there are experts."""
    m = model.shape
    counts = kept_numbers(m, 1, tokens)
    if latent := model.latent:
        counts |= {"q": tokens * m.H * (m.D + latent.rope), "k": tokens * m.H * (m.D + latent.rope),
                   "latents": tokens * (latent.q + latent.kv + latent.rope)}
    if model.experts and not dense:
        met = model.experts.k + model.experts.shared
        counts |= dict.fromkeys(("gate", "up", "silu", "hidden"), tokens * met * model.experts.F)
        counts |= dict.fromkeys(("rows", "answers"), tokens * model.experts.k * m.C)
    return sum(count for name, count in counts.items() if name not in model.dropped)


def stage_numbers(model: Architecture, plan: TrainingPlan, T: int, i: int) -> tuple[float, float]:
    """(each, once): numbers on a rank of stage i that each micro-batch in flight keeps for
    backward, and those that are there once, for the layer that is recomputed."""
    kind = stage_kind(model, plan.pp, i)
    tokens = plan.B * T
    share = plan.tp * plan.cp
    numbers = [layer_numbers(model, tokens, dense) for dense in (True, False)]
    if not plan.recompute:
        return sum(count * n for count, n in zip(kind, numbers, strict=True)) / share, 0
    inputs = tokens * model.shape.C
    largest = max([n for count, n in zip(kind, numbers, strict=True) if count], default=inputs)
    return sum(kind) * inputs / share, (largest - inputs) / share


def kept_micro_batches(plan: TrainingPlan, M: int, i: int) -> float:
    """How many micro-batches stage i keeps at a time: 1F1B, or with v > 1 the interleaved one of
    s23, where a piece counts as 1/v."""
    if plan.v == 1:
        return min(plan.pp - i, M)
    return min((plan.v - 1) * plan.pp + 2 * (plan.pp - 1 - i) + 1, plan.v * M) / plan.v


def cache_bytes_per_token(model: Architecture) -> int:
    """16-bit bytes that a token of context holds, on one rank that has all heads."""
    m = model.shape
    latent = model.latent
    return 2 * m.L * (latent.kv + latent.rope if latent else 2 * m.G * m.D)


# ---- what takes time


def step_flops(model: Architecture, batch: int, T: int, recompute: bool = False) -> float:
    """FLOPs of a step of `batch` sequences, all ranks together.
    Attention is causal: half of o04's square. recompute: forward of the layers, but not of the
    head, runs a second time."""
    m = model.shape
    experts = model.experts
    dense = layer_parameters(model, True)
    few = experts.dense_layers if experts else m.L
    weights = few * (dense.cut + dense.whole)
    if experts:
        cut, whole, routed = layer_parameters(model, False)
        weights += (m.L - few) * (cut + whole + routed * experts.k // experts.E)
    weights -= 2 * m.L * m.C                                # norms are no matrices
    width = m.D + (m.D + model.latent.rope if model.latent else m.D)
    layers = 2 * T * weights + m.L * m.H * 2 * width * T * T / 2
    head = 2 * T * m.C * m.V
    return batch * (layers * (4 if recompute else 3) + head * 3)


def link_seconds(collective: str, size: float, ranks: int, span: int, cluster: Cluster) -> float:
    """Seconds of one collective in a ring, or of one "send": alpha a round, and bytes over rate.

    size: bytes of the whole array, as in o04's sent_by; of an all_to_all, what one rank has
    span: ranks from the first of the group to its last, both counted: more than a machine's, and
    the slowest link is one across
    """
    if ranks == 1:
        return 0.0
    if collective == "send":
        rounds = 1
        sent = size
    elif collective == "all_to_all":
        rounds = ranks - 1
        sent = size * (ranks - 1) / ranks
    else:
        rounds = (ranks - 1) * (2 if collective == "all_reduce" else 1)
        sent = sent_by(collective, size, ranks)
    return rounds * cluster.alpha + sent / (
        cluster.inside if span <= cluster.node else cluster.across)


def layer_seconds(model: Architecture, cluster: Cluster, plan: TrainingPlan,
                  T: int) -> tuple[float, float]:
    """(cp, ep): seconds that the ring of s25 and the exchanges of s24 take for one micro-batch in
    an average layer, forward and backward.
    Recomputing does forward's a second time."""
    m = model.shape
    latent = model.latent
    width = latent.kv + latent.rope if latent else 2 * m.G * m.D / plan.tp
    keys_values = 2 * plan.B * T * width
    span = plan.tp * plan.cp
    gather = link_seconds("all_gather", keys_values, plan.cp, span, cluster)
    scatter = link_seconds("reduce_scatter", keys_values, plan.cp, span, cluster)
    cp = (2 + plan.recompute) * gather + scatter
    if model.experts is None:
        return cp, 0.0
    rows = 2 * plan.B * T / span * model.experts.k * m.C
    exchange = link_seconds("all_to_all", rows, plan.ep, plan.tp * plan.ep, cluster)
    share = (m.L - model.experts.dense_layers) / m.L
    return cp, share * (4 + 2 * plan.recompute) * exchange


def share_seconds(model: Architecture, cluster: Cluster, plan: TrainingPlan, collective: str,
                  itemsize: int) -> float:
    """Seconds of a collective over all parameters of a rank, layer by layer, among the ranks that
    have the same ones: dp · cp of them, of experts dp · cp / ep."""
    calls = max(1, round(model.shape.L / plan.pp))
    sharers = plan.dp * plan.cp
    return sum(calls * link_seconds(collective, itemsize * parameters / calls, ranks, plan.W,
                                    cluster)
               for parameters, ranks in zip(largest_stage(model, plan),
                                            (sharers, sharers // plan.ep), strict=True)
               if parameters)


def total_seconds(seconds: dict[str, float]) -> float:
    """The parts of a step together.
    What dp sends hides behind backward, two thirds of the arithmetic, as far as it fits; nothing
    else overlaps."""
    rest = sum(value for part, value in seconds.items() if part != "dp")
    return rest + max(0.0, seconds["dp"] - 2 / 3 * seconds["compute"])
