"""s26 · A planner: bytes and seconds of every way to share a training step, and the best of them

W: ranks = dp · tp · pp · cp   ep: ranks that share the experts, out of dp · cp
B: sequences of a micro-batch   M: micro-batches of a rank in a step   v: pieces of a rank's stage
T: tokens of a sequence   batch: sequences of a step, all ranks together   i: a stage of the pp
A plan is costed in microseconds, so all of them can be: some ten thousand.
"""

from itertools import product

from layer3_system.plan_costs import (
    different_stages,
    kept_micro_batches,
    layer_seconds,
    link_seconds,
    share_seconds,
    stage_numbers,
    stage_parameters,
    step_flops,
    total_seconds,
)
from layer3_system.planner import (
    Architecture,
    Cluster,
    TrainingPlan,
    every_plan,
    plan_faults,
)

__all__ = ["best_plans", "plan_bytes", "plan_seconds", "rank_bytes", "split_machines"]


# ---- what helps whom


def predict_faster_token() -> list[str]:
    """Which of "dp", "zero", "fsdp", "tp", "sp", "pp", "cp" and "ep" let one token of one sequence
    come sooner on 8 ranks than on one, in any order?
    A dense Llama decodes, with 2,000 tokens of context."""
    # exercise: which ranks read fewer bytes, at the same time as the others?
    return ["tp"]


def predict_mla_tokens() -> int:
    """How many times as many tokens of DeepSeek-V3's cache fit on 8 ranks that each have sequences
    of their own, as on 8 ranks that cut heads: weights aside, the same memory."""
    # exercise: what does one token hold on each rank, and on how many ranks?
    return 8


# ---- bytes


def plan_bytes(model: Architecture, plan: TrainingPlan, T: int, batch: int,
               i: int) -> dict[str, float]:
    """{"weights", "gradients", "optimiser", "activations"}: bytes at their peak on a rank of stage
    i. A parameter: 2, 4 and 12 bytes; a number that is kept for backward: 2.

    ZeRO cuts the optimiser's from stage 1 on, gradients from 2, weights from 3, each among the
    ranks that have the same parameters.
    """
    # exercise: what do which ranks share, and how many micro-batches are kept?
    dense, experts = stage_parameters(model, plan, i)
    whole = dense + experts
    shard = (dense + experts * plan.ep) / (plan.dp * plan.cp)
    each, once = stage_numbers(model, plan, T, i)
    copies = kept_micro_batches(plan, plan.micro_batches(batch), i)
    return {"weights": 2 * (shard if plan.zero >= 3 else whole),
            "gradients": 4 * (shard if plan.zero >= 2 else whole),
            "optimiser": 12 * (shard if plan.zero >= 1 else whole),
            "activations": 2 * (copies * each + once)}


def rank_bytes(model: Architecture, plan: TrainingPlan, T: int, batch: int) -> float:
    """Bytes on the fullest rank."""
    return max(sum(plan_bytes(model, plan, T, batch, i).values())
               for i in different_stages(model, plan.pp))


# ---- seconds


def plan_seconds(model: Architecture, cluster: Cluster, plan: TrainingPlan, T: int,
                 batch: int) -> dict[str, float]:
    """{"compute", "tp", "cp", "ep", "bubble", "pp", "dp"}: seconds of a step, one after another.

    compute   FLOPs of all ranks, shared evenly, at efficiency · peak
    tp        4 all_reduces of a layer's input, (B, T/cp, C), a layer and micro-batch; 6 if layers
              are recomputed. cp, ep: as layer_seconds has them
    bubble    (pp - 1) / (v · M) of all that a stage does so far
    pp        2 sends of a tp rank's share of that input, for each micro-batch and piece; their
              span is 2 · tp · cp
    dp        gradients of 4 bytes, weights of 2. ZeRO 0: one all_reduce. 1: one reduce_scatter and
              an all_gather. 2: a reduce_scatter each micro-batch, one all_gather. 3: each
              micro-batch a reduce_scatter and two all_gathers
    """
    # exercise: count each part for one rank; what is done for each micro-batch, what once a step?
    M = plan.micro_batches(batch)
    work = M * model.shape.L / plan.pp                      # layers times micro-batches of a rank
    inputs = 2 * plan.B * T / plan.cp * model.shape.C
    cp, ep = layer_seconds(model, cluster, plan, T)
    tp = link_seconds("all_reduce", inputs, plan.tp, plan.tp, cluster) * (4 + 2 * plan.recompute)
    seconds = {"tp": work * tp, "cp": work * cp, "ep": work * ep, "compute": step_flops(
        model, batch, T, plan.recompute) / (plan.W * cluster.peak * cluster.efficiency)}
    seconds["bubble"] = (plan.pp - 1) / (plan.v * M) * sum(seconds.values())
    seconds["pp"] = 2 * M * plan.v * link_seconds(
        "send", inputs / plan.tp, plan.pp, 2 * plan.tp * plan.cp, cluster)
    gradients = share_seconds(model, cluster, plan, "reduce_scatter", 4)
    weights = share_seconds(model, cluster, plan, "all_gather", 2)
    seconds["dp"] = (2 * gradients, gradients + weights, M * gradients + weights,
                     M * (gradients + 2 * weights))[plan.zero]
    return seconds


# ---- the search


def best_plans(model: Architecture, cluster: Cluster, T: int, batch: int,
               count: int) -> list[tuple[float, TrainingPlan]]:
    """The `count` fastest of `every_plan` that have no faults and fit, (seconds, plan), the fastest
    first; of equally fast ones, that of fewer bytes first.
    Fewer where there are not as many.

    seconds: total_seconds of a step    to fit: rank_bytes is at most the cluster's memory
    """
    # exercise: drop what cannot run and what does not fit, and sort the rest
    rows = []
    for plan in every_plan(model, cluster):
        if plan_faults(model, cluster, plan, T, batch):
            continue
        size = rank_bytes(model, plan, T, batch)
        if size <= cluster.memory:
            seconds = total_seconds(plan_seconds(model, cluster, plan, T, batch))
            rows.append((seconds, size, plan))
    rows.sort(key=lambda row: row[:2])
    return [(seconds, plan) for seconds, _, plan in rows[:count]]


# ---- serving


def split_machines(total: int, prefill: float, decode: float) -> tuple[int, int]:
    """(x, y): x machines for prefill and y for decode, one of each at least and `total` at most,
    that answer most requests a second; of several such pairs, that of fewest machines.

    prefill, decode: requests a second that one machine can prefill, or can decode
    ValueError for fewer than two machines, and for a rate that is not more than 0
    """
    if total < 2 or min(prefill, decode) <= 0:
        raise ValueError(f"split_machines: expected 2 machines and rates above 0, got {total} "
                         f"machines, {prefill:g} and {decode:g} requests a second")
    # exercise: a request needs both; what do x and y machines answer together?
    pairs = ((x, y) for x, y in product(range(1, total), repeat=2) if x + y <= total)
    return max(pairs, key=lambda pair: (min(pair[0] * prefill, pair[1] * decode), -sum(pair)))
