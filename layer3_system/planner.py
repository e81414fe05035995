"""What a plan of training is, on which cluster and for which model, and which plans are legal

W: ranks = dp · tp · pp · cp   ep: ranks that share the experts, out of dp · cp
B: sequences of a micro-batch   M: micro-batches of a rank in a step   v: pieces of a rank's stage
T: tokens of a sequence   L, C, H, G, D, F, V: r03's letters, of a `LlamaShape`
E: experts of a layer   k: experts that a token chooses
Ranks are numbered tp first, then cp, pp, dp, as in Llama 3's report (2024), section 3.3.2.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from day01_roofline import LLAMAS, LlamaShape

__all__ = ["ARCHITECTURES", "Architecture", "Cluster", "Experts", "Latent", "TrainingPlan",
           "every_plan", "plan_faults"]


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

    shape: LlamaShape
    experts: Experts | None = None
    latent: Latent | None = None
    dropped: tuple[str, ...] = ("normed", "normed2", "silu")


@dataclass(frozen=True)
class Cluster:
    """W GPUs in machines of `node`.
    Rates: an H100's data sheet, InfiniBand of 400 Gbit/s."""

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
    "405B": Architecture(LlamaShape("Llama-3.1-405B", L=126, C=16384, H=128, G=8, D=128, F=53248,
                               V=128256, tied=False)),
    "Mixtral-8x7B": Architecture(
        LlamaShape("Mixtral-8x7B", L=32, C=4096, H=32, G=8, D=128, F=14336, V=32000, tied=False),
        Experts(E=8, k=2, F=14336)),
    "DeepSeek-V3": Architecture(
        LlamaShape("DeepSeek-V3", L=61, C=7168, H=128, G=128, D=128, F=18432, V=129280, tied=False),
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
