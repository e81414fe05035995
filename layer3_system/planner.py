"""What a plan of training is, which plans are legal, and what a stage of one holds and sends

W: ranks = dp · tp · pp · cp   ep: ranks that share the experts, out of dp · cp
B: sequences of a micro-batch   M: micro-batches of a rank in a step   v: pieces of a rank's stage
T: tokens of a sequence   L, C, H, G, D, F, V: r03's letters, of a `Llama`
E: experts of a layer   k: experts that a token chooses
Ranks are numbered tp first, then cp, pp, dp, as in Llama 3's report (2024), section 3.3.2.
Weights and activations have 2 bytes a number, gradients 4, Adam's state 12 with its fp32 weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

from day01_roofline import LLAMAS, Llama, layer_matrices
from day02_overview import kept_numbers, sent_by

__all__ = ["ARCHITECTURES", "Architecture", "Cluster", "Experts", "Latent", "TrainingPlan",
           "cache_bytes_per_token", "different_stages", "every_plan", "kept_micro_batches", "largest_stage",
           "layer_seconds", "link_seconds", "plan_faults", "share_seconds", "stage_layers",
           "stage_numbers", "stage_parameters", "step_flops", "total_seconds"]


@dataclass(frozen=True)
class Experts:
    """What stands in an MLP's place, in all layers but the first `dense_layers`."""

    E: int
    k: int
    F: int                      # width of one expert
    shared: int = 0             # experts that every token meets
    dense_layers: int = 0


@dataclass(frozen=True)
class Latent:
    """Attention by one latent of a token for all heads (MLA): a head has D numbers in keys and in
    values, and `rope` more, which turn with the position."""

    kv: int
    rope: int
    q: int


@dataclass(frozen=True)
class Architecture:
    """A Llama, or one with experts or latents. dropped: arrays of o04's `kept_numbers` that fused
    kernels do not keep (k08, k10)."""

    shape: Llama
    experts: Experts | None = None
    latent: Latent | None = None
    dropped: tuple[str, ...] = ("normed", "normed2", "silu")


@dataclass(frozen=True)
class Cluster:
    """W GPUs in machines of `node`. Rates: an H100's data sheet, InfiniBand of 400 Gbit/s."""

    W: int
    memory: float = 80e9        # bytes of a rank
    peak: float = 989e12        # FLOP/s, 16-bit, dense
    efficiency: float = 0.54    # share of the peak that arithmetic reaches: chosen, see the lesson
    node: int = 8
    inside: float = 360e9       # byte/s each way between GPUs of a machine: 80 % of 450
    across: float = 45e9        # byte/s each way of a GPU to other machines: 90 % of 50
    alpha: float = 2e-6         # seconds of a round, however small the message: assumed
    shard: int = 4096           # fewest tokens of a piece that cp may make: s25
    hbm: float = 3.35e12        # byte/s of a GPU's memory

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0 or (value == 0 and name != "alpha"):
                bound = "0 or more" if name == "alpha" else "more than 0"
                raise ValueError(f"Cluster: {name} is {value}, expected {bound}")


@dataclass(frozen=True)
class TrainingPlan:
    """How W ranks share a step. zero: 0 to 3, as in s21. recompute: a layer keeps its input alone.
    All ranks of a tp keep a piece of the tokens between matrices: sequence parallelism, s22."""

    dp: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 1
    B: int = 1
    v: int = 1
    recompute: bool = False

    @property
    def W(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    def micro_batches(self, batch: int) -> int:
        """M, where a step has `batch` sequences in all."""
        return batch // (self.dp * self.B)


ARCHITECTURES = {
    "8B": Architecture(LLAMAS["Llama-3.1-8B"]),
    "70B": Architecture(LLAMAS["Llama-3.1-70B"]),
    "405B": Architecture(Llama("Llama-3.1-405B", L=126, C=16384, H=128, G=8, D=128, F=53248,
                               V=128256, tied=False)),
    "Mixtral-8x7B": Architecture(
        Llama("Mixtral-8x7B", L=32, C=4096, H=32, G=8, D=128, F=14336, V=32000, tied=False),
        Experts(E=8, k=2, F=14336)),
    "DeepSeek-V3": Architecture(
        Llama("DeepSeek-V3", L=61, C=7168, H=128, G=128, D=128, F=18432, V=129280, tied=False),
        Experts(E=256, k=8, F=2048, shared=1, dense_layers=3), Latent(kv=512, rope=64, q=1536)),
}


# ---- what divides what


def plan_faults(model: Architecture, cluster: Cluster, plan: TrainingPlan, T: int,
                batch: int) -> list[str]:
    """A sentence for each reason why a plan cannot run; whether it fits is another question."""
    m = model.shape
    if min(plan.dp, plan.tp, plan.pp, plan.cp, plan.ep, plan.B, plan.v) < 1:
        return [f"plan: {plan} has a number below 1"]
    faults = []
    if plan.W != cluster.W:
        faults.append(f"plan: dp {plan.dp} · tp {plan.tp} · pp {plan.pp} · cp {plan.cp} is "
                      f"{plan.W} ranks, the cluster has {cluster.W}")
    for name, size in (("H", m.H), ("F", m.F), ("V", m.V), ("G", m.G)):
        if size % plan.tp:
            why = ": KV heads would be kept twice" if name == "G" else ""
            faults.append(f"plan: tp {plan.tp} does not divide {name} = {size}{why}")
    if plan.pp * plan.v > m.L + 2:
        faults.append(f"plan: pp {plan.pp} · v {plan.v} pieces for {m.L} layers, the embedding and "
                      f"the head")
    if batch % (plan.dp * plan.B):
        faults.append(f"plan: batch {batch} does not divide by dp {plan.dp} · B {plan.B}")
    elif plan.v > 1 and (plan.pp == 1 or plan.micro_batches(batch) % plan.pp):
        faults.append(f"plan: v {plan.v} needs pp above 1 and micro-batches by the pp, not "
                      f"{plan.micro_batches(batch)} for pp {plan.pp}")
    if plan.cp > 1 and (T % (2 * plan.cp) or T // plan.cp < cluster.shard):
        faults.append(f"plan: cp {plan.cp} leaves {T / plan.cp:g} of {T} tokens, expected an even "
                      f"number of {cluster.shard} or more")
    E = model.experts.E if model.experts else 1
    if E % plan.ep:
        faults.append(f"model: {E} experts do not divide by ep {plan.ep}")
    if plan.dp * plan.cp % plan.ep:
        faults.append(f"plan: ep {plan.ep} does not divide dp {plan.dp} · cp {plan.cp}")
    if plan.zero not in range(4):
        faults.append(f"plan: zero is {plan.zero}, expected 0 to 3")
    return faults


def every_plan(model: Architecture, cluster: Cluster) -> Iterator[TrainingPlan]:
    """All plans whose numbers are powers of two, legal or not: B and v up to 8, tp to two machines,
    zero from 1."""
    powers = [2 ** i for i in range(cluster.W.bit_length())]
    few = powers[:4]
    for tp, pp, cp in product(powers, powers, powers):
        if tp > 2 * cluster.node or cluster.W % (tp * pp * cp):
            continue
        dp = cluster.W // (tp * pp * cp)
        for ep, zero, B, v, recompute in product(
                powers if model.experts else [1], (1, 2, 3), few, few, (False, True)):
            if v == 1 or pp > 1:
                yield TrainingPlan(dp, tp, pp, cp, ep, zero, B, v, recompute)


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
    """The layers of stage i of pp. The embedding counts as a layer before the first, the head as
    one after the last: so Llama 3 cut 126 layers in 16. v > 1 deals them out in another order, and
    as many."""
    size, rest = divmod(model.shape.L + 2, pp)
    begin = i * size + min(i, rest)
    end = begin + size + (i < rest)
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
    kept = kept_numbers(m, 1, tokens)
    if latent := model.latent:
        kept |= {"q": tokens * m.H * (m.D + latent.rope), "k": tokens * m.H * (m.D + latent.rope),
                 "latents": tokens * (latent.q + latent.kv + latent.rope)}
    if model.experts and not dense:
        met = model.experts.k + model.experts.shared
        kept |= dict.fromkeys(("gate", "up", "silu", "hidden"), tokens * met * model.experts.F)
        kept |= dict.fromkeys(("rows", "answers"), tokens * model.experts.k * m.C)
    return sum(count for name, count in kept.items() if name not in model.dropped)


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
    """FLOPs of a step of `batch` sequences, all ranks together. Attention is causal: half of o04's
    square. recompute: forward of the layers, but not of the head, runs a second time."""
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
    an average layer, forward and backward. Recomputing does forward's a second time."""
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
    """The parts of a step together. What dp sends hides behind backward, two thirds of the
    arithmetic, as far as it fits; nothing else overlaps."""
    rest = sum(value for part, value in seconds.items() if part != "dp")
    return rest + max(0.0, seconds["dp"] - 2 / 3 * seconds["compute"])
