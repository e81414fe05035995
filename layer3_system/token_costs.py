"""What serving costs: one token of one sequence by each kind of parallelism, and plans that serve

m: r03's `LlamaShape`   W: ranks   tp: ranks that share a model
N: tokens of context   b: sequences
Weights and cache have 2 bytes a number; a step reads each once, at the rate of the memory.
"""

from dataclasses import dataclass

from day01_roofline import (
    LlamaShape,
    count_flops,
    count_parameters,
    decode_costs,
    kv_bytes_per_token,
)
from day02_overview import sent_by
from layer3_system.plan_costs import link_seconds
from layer3_system.planner import Cluster

__all__ = ["ServingPlan", "TokenCost", "decode_seconds", "prefill_seconds", "serving_plans",
           "token_costs"]


@dataclass(frozen=True)
class TokenCost:
    """Of one token on W ranks: seconds, bytes that the fullest rank has, bytes that it sends."""

    seconds: float
    bytes: float
    sent: float


def token_costs(m: LlamaShape, cluster: Cluster, N: int, W: int) -> dict[str, TokenCost]:
    """{kind: its cost} of decoding one token of one sequence: by one rank, and by W ranks of each
    kind alone.
    A dense model has no experts to share, and one token no others to be cut from."""
    _, weights, each = decode_costs(m, N, 2)
    size = 2 * sum(count_parameters(m).values())
    cache = N * kv_bytes_per_token(m, 2)
    hidden = 2 * m.C
    alone = (weights + each) / cluster.hbm
    answers = 2 * W * m.H * (m.D + 1)                       # of one layer, with lse: s25

    def link(collective: str, size: float) -> float:
        return link_seconds(collective, size, W, W, cluster)

    costs = dict.fromkeys(("one rank", "dp", "zero", "sp", "ep"), TokenCost(alone, size + cache, 0))
    return costs | {
        "fsdp": TokenCost(alone + m.L * link("all_gather", size / m.L), size / W + cache,
                          sent_by("all_gather", size, W)),
        "tp": TokenCost(alone / W + 2 * m.L * link("all_reduce", hidden), (size + cache) / W,
                        2 * m.L * sent_by("all_reduce", hidden, W)),
        "pp": TokenCost(alone + (W - 1) * link("send", hidden), (size + cache) / W, hidden),
        "cp": TokenCost((weights + each / W) / cluster.hbm + m.L * link("all_gather", answers),
                        size + cache / W, m.L * sent_by("all_gather", answers, W))}


def decode_seconds(m: LlamaShape, cluster: Cluster, tp: int, b: int, N: int) -> float:
    """Seconds of a decode step of b sequences on tp ranks: arithmetic or bytes, whichever takes
    longer, and two sums a layer."""
    flops, weights, each = decode_costs(m, N, 2)
    return max(b * flops / (cluster.efficiency * cluster.peak),
               (weights + b * each) / cluster.hbm) / tp \
        + 2 * m.L * link_seconds("all_reduce", 2 * b * m.C, tp, tp, cluster)


def prefill_seconds(m: LlamaShape, cluster: Cluster, tp: int, T: int) -> float:
    """Seconds to read a prompt of T tokens on tp ranks, arithmetic and two sums a layer."""
    return sum(count_flops(m, 1, T, T).values()) / (tp * cluster.efficiency * cluster.peak) \
        + 2 * m.L * link_seconds("all_reduce", 2 * T * m.C, tp, tp, cluster)


@dataclass(frozen=True)
class ServingPlan:
    """tp ranks that decode b sequences at a time. tpot, ttft: seconds   rate: tokens/s of a GPU"""

    tp: int
    b: int
    tpot: float
    ttft: float
    rate: float


def serving_plans(m: LlamaShape, cluster: Cluster, prompt: int, answer: int,
                  tpot: float) -> list[ServingPlan]:
    """For each tp that divides the heads and a machine: the largest batch whose step keeps to tpot
    seconds and whose weights and caches fit; none for a tp that cannot."""
    size = 2 * sum(count_parameters(m).values())
    N = prompt + answer
    plans = []
    for tp in (tp for tp in (1, 2, 4, 8) if tp <= cluster.node and m.G % tp == 0):
        room = int((cluster.memory * tp - size) // (N * kv_bytes_per_token(m, 2)))
        b = max((b for b in range(1, room + 1) if decode_seconds(m, cluster, tp, b, N) <= tpot),
                default=0)
        if b:
            seconds = decode_seconds(m, cluster, tp, b, N)
            plans.append(ServingPlan(tp, b, seconds, prefill_seconds(m, cluster, tp, prompt),
                                     b / seconds / tp))
    return plans
