"""o06 · Design an LLM: find the model, the tokens and the recipe with the lowest predicted loss

W: GPUs   T: tokens of a sequence   tp: ranks that share each layer's matrices   dp: W / tp
L C H G D F V: r03's letters; its `LlamaShape` here describes the parameters that one token uses
experts: MLPs in every second layer; a token uses one of them, so 1 means a dense model
law: o05's, of the form loss = E + A / N^a + B / tokens^b, in nats a token
Rates are from data sheets, all arithmetic runs at the same share of the peak, and communication
never overlaps arithmetic.
So a plan is an estimate, not a measurement.
"""

import math
from dataclasses import dataclass, replace
from itertools import product

from day01_roofline import LlamaShape, count_parameters, kv_bytes_per_token
from day02_overview.o04_training_math import (
    peak_activations,
    sent_by,
    state_bytes,
    step_bytes,
    training_flops,
)
from day02_overview.o05_scaling_laws import HOFFMANN, best_split, effective_parameters

__all__ = ["QUERIES", "Budget", "Design", "Recipe", "design", "lifetime_split", "micro_batches",
           "nearest_shape", "one_layer_shapes", "rank_bytes", "rank_shape", "recipes", "seconds",
           "serving_bytes", "shape_faults", "shape_for", "step_seconds", "stored_parameters",
           "total_parameters", "violations"]

QUERIES = (4, 8)                # query heads per key and value head, as in large Llamas


@dataclass(frozen=True)
class Budget:
    """What is available: GPUs and days for training, and one GPU for serving.

    The rates are an H100's, from its data sheet.
    """

    W: int
    days: float
    batch: int                  # tokens of a step, all ranks together
    context: int                # tokens of context that the serving GPU holds at once
    serving_memory: float       # bytes of the serving GPU
    experts: int = 1            # the largest number of experts allowed
    T: int = 8192
    V: int = 128256
    memory: float = 72e9        # usable bytes of a rank: 80 GB less a tenth
    peak: float = 989e12        # FLOP/s, 16-bit, dense
    mfu: float = 0.40           # share of the peak that the arithmetic reaches
    inside: float = 450e9       # byte/s each way between the GPUs of a machine of eight
    across: float = 50e9        # byte/s each way of a GPU to other machines

    def __post_init__(self):
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"Budget: expected {name} above 0, got {value}")
        if self.batch % self.T:
            raise ValueError(f"Budget: batch = {self.batch:,} is not a multiple of T = {self.T:,}")


@dataclass(frozen=True)
class Recipe:
    """How W ranks share the work."""

    stage: int                  # of ZeRO, 1 or 3
    B: int                      # sequences in a micro-batch
    recompute: bool             # whether activations are computed again in backward
    tp: int                     # ranks that split each matrix


@dataclass(frozen=True)
class Design:
    """A model, its training tokens and its recipe."""

    shape: LlamaShape
    experts: int
    recipe: Recipe
    tokens: int


# ---- what the law recommends


def predict_growth():
    """How many times as many parameters the best model has with 100 times the FLOPs, by HOFFMANN
    (a = 0.34, b = 0.29)."""
    # exercise: within 5 % is right; at the best split A·a / N^a = B·b / tokens^b
    return 8.33             # N^a grows as tokens^b, so N as FLOPs^(b / (a + b)) = FLOPs^0.46


def lifetime_split(law, flops, served):
    """(N, tokens) with the lowest loss, if one budget pays for training and serving.

    flops: 6 · N · tokens + 2 · N · served    served: all tokens served in the model's life
    With served = 0 this is o05's best_split.
    Sardana et al. 2023 count both as well.
    """
    if flops <= 0 or served < 0:
        raise ValueError(f"lifetime_split: expected flops > 0 and served >= 0, got {flops:g} and "
                         f"{served:g}")
    few = 1.0
    many = flops / 6
    for _ in range(100):
        tokens = math.sqrt(few * many)                          # the middle on a log scale
        # exercise: N by the budget; do more tokens still lower the loss? after the loop, return
        N = flops / (6 * tokens + 2 * served)
        gain = law.b * law.B / tokens ** law.b                  # of the loss, by 1 % more tokens
        price = law.a * law.A / N ** law.a * 6 * tokens / (6 * tokens + 2 * served)
        if gain > price:
            few = tokens
        else:
            many = tokens
    return N, tokens


# ---- a shape


def total_parameters(m):
    """Parameters of m, with one MLP in each layer."""
    return sum(count_parameters(m).values())


def shape_faults(m):
    """A sentence for each way in which an untied Llama differs from published large ones."""
    return [fault for fault, present in (
        (f"D is {m.D}, not 128", m.D != 128),
        (f"H = {m.H} is not a multiple of 8", m.H % 8),
        (f"H · D is {m.H * m.D}, not C = {m.C}", m.H * m.D != m.C),
        (f"F = {m.F} is not a multiple of 256", m.F % 256),
        (f"F / C = {m.F / m.C:.2f} is not from 2.67 to 3.5", not 8 * m.C <= 3 * m.F <= 10.5 * m.C),
        (f"H / G = {m.H / m.G:g} is not one of {QUERIES}",
         m.H % m.G or m.H // m.G not in QUERIES),
        (f"C / L = {m.C / m.L:.0f} is not from 48 to 160", not 48 * m.L <= m.C <= 160 * m.L),
    ) if present]


def one_layer_shapes(V, queries):
    """Untied Llamas of one layer: all widths of at most 128 heads, with every F they may have.

    V: vocabulary    queries: H / G
    """
    return [LlamaShape("", 1, 128 * H, H, H // queries, 128, F, V, tied=False)
            for H in range(8, 129, 8)
            for F in range(-(-8 * 128 * H // 768) * 256, 7 * 128 * H // 2 + 1, 256)]


def nearest_shape(shapes, N):
    """Of the shapes within 1 % of N parameters, the one with C / L nearest to 128; if there is
    none, the one nearest to N."""
    return min(shapes, key=lambda m: (max(abs(total_parameters(m) / N - 1), 0.01),
                                      abs(m.C / m.L - 128)))


def shape_for(N, V, queries):
    """An untied Llama without `shape_faults` and with at most 128 heads.

    Among those within 1 % of N parameters, the one with C / L nearest to 128; if there is none, the
    one nearest to N.  queries: H / G, one of QUERIES
    """
    if queries not in QUERIES or min(N, V) < 1:
        raise ValueError(f"shape_for: expected N and V above 0 and H / G among {QUERIES}, got "
                         f"N = {N:g}, V = {V} and H / G = {queries}")
    shapes = []
    for one in one_layer_shapes(V, queries):
        # exercise: append it with the allowed depth nearest to N; then the nearest_shape of all
        rest = total_parameters(replace(one, L=0))
        L = round((N - rest) / (total_parameters(one) - rest))
        shapes.append(replace(one, L=min(max(L, -(-one.C // 160)), one.C // 48)))
    return nearest_shape(shapes, N)


def stored_parameters(m, experts):
    """Parameters stored by a model of shape m with experts in every second layer.

    For experts > 1, each of these L // 2 layers has the MLP's three matrices once per expert, and a
    router with C numbers per expert.
    """
    if experts < 1:
        raise ValueError(f"stored_parameters: expected at least 1 expert, got {experts}")
    # exercise: what is stored in addition to m's own parameters?
    router = m.C * experts if experts > 1 else 0
    return total_parameters(m) + m.L // 2 * ((experts - 1) * 3 * m.C * m.F + router)


# ---- does it fit, and how long does it take?


def rank_shape(m, tp):
    """The slice of m on one of tp ranks: all norms, and 1/tp of the heads, MLP and vocabulary."""
    if any(n % tp for n in (m.H, m.G, m.F, m.V)):
        raise ValueError(f"rank_shape: H = {m.H}, G = {m.G}, F = {m.F} and V = {m.V} do not all "
                         f"divide by tp = {tp}")
    return replace(m, H=m.H // tp, G=m.G // tp, F=m.F // tp, V=m.V // tp)


def micro_batches(budget, recipe):
    """How many micro-batches a rank runs in one step; it adds up their gradients."""
    at_once = budget.W // recipe.tp * recipe.B * budget.T
    if budget.W % recipe.tp or budget.batch % at_once:
        raise ValueError(f"micro_batches: {budget.batch:,} tokens on {budget.W} ranks do not "
                         f"divide by tp = {recipe.tp} and B = {recipe.B}")
    return budget.batch // at_once


def rank_bytes(budget, m, experts, recipe):
    """Bytes on a rank at the peak of a step: state, 16-bit activations and 16-bit logits.

    The state, experts included, is split tp ways; ZeRO then shards it over the W / tp ranks of dp.
    Activations and logits are those of one micro-batch.
    """
    # exercise: o04's functions count the parts; which model do they get, if a rank holds a slice?
    part = rank_shape(m, recipe.tp)
    state = state_bytes(stored_parameters(part, experts), budget.W // recipe.tp, recipe.stage)
    activations = peak_activations(part, recipe.B, budget.T, recipe.recompute)
    return state + 2 * (activations + recipe.B * budget.T * part.V)


def step_seconds(budget, m, experts, recipe):
    """{part: seconds} of one step, for the parts arithmetic, tp and dp.

    arithmetic: o04's FLOPs of the whole batch, on W ranks at mfu · peak each
    tp: its bytes for every micro-batch, at `inside`; with recomputation, half as much again
    dp: 16-bit gradients of the rank's slice with all experts, summed once per step; at stage 3,
    instead, two gathers of the weights and a scatter of the gradients for every micro-batch.
    At `across`, even inside one machine
    """
    dp = budget.W // recipe.tp
    times = micro_batches(budget, recipe)
    # exercise: how many FLOPs, for batch / T sequences? what is sent, and how often?
    flops = sum(training_flops(m, budget.batch // budget.T, budget.T, recipe.recompute).values())
    tp = step_bytes("tp", m, recipe.B, budget.T, recipe.tp, 2) * (1.5 if recipe.recompute else 1)
    weights = 2 * stored_parameters(rank_shape(m, recipe.tp), experts)
    sent = 3 * times * sent_by("all_gather", weights, dp) if recipe.stage == 3 \
        else sent_by("all_reduce", weights, dp)
    return {"arithmetic": flops / (budget.W * budget.mfu * budget.peak),
            "tp": times * tp / budget.inside, "dp": sent / budget.across}


def seconds(budget, plan):
    """Seconds of the whole training of a Design."""
    step = step_seconds(budget, plan.shape, plan.experts, plan.recipe)
    return plan.tokens / budget.batch * sum(step.values())


def serving_bytes(budget, m, experts):
    """Bytes of 16-bit weights and cache on the serving GPU."""
    return 2 * stored_parameters(m, experts) + budget.context * kv_bytes_per_token(m, 2)


def violations(budget, plan):
    """A sentence for each limit that a Design breaks, and by how much."""
    m = plan.shape
    experts = plan.experts
    recipe = plan.recipe
    faults = shape_faults(m)
    if m.V != budget.V or m.tied:
        faults.append(f"the vocabulary is {m.V:,}, expected {budget.V:,}, untied")
    if experts not in range(1, budget.experts + 1):
        faults.append(f"{experts} experts, expected 1 to {budget.experts}")
    if recipe not in recipes(budget, m):
        return [*faults, f"{recipe} is not in recipes(budget, shape)"]
    for what, needs, limit, unit in (
            ("memory of a rank", rank_bytes(budget, m, experts, recipe), budget.memory, "GB"),
            ("memory to serve", serving_bytes(budget, m, experts), budget.serving_memory,
             "GB"),
            ("time to train", seconds(budget, plan), budget.days * 86400, "days")):
        if needs > limit:
            scale = 86400 if unit == "days" else 1e9
            faults.append(f"the {what} is {needs / scale:.2f} {unit}: {needs / limit - 1:.1%} more "
                          f"than the limit of {limit / scale:.2f}")
    return faults


def recipes(budget, m):
    """Every recipe that divides evenly, with tp inside a machine of eight.

    Stage 0 is left out because it sends as much as stage 1 and stores more; stage 2 to keep the
    search short.
    Real systems copy key and value heads if tp is more than G; here tp divides G.
    """
    return [Recipe(stage, B, again, tp)
            for tp, B, stage, again in product((1, 2, 4, 8), (1, 2, 4, 8), (1, 3), (False, True))
            if not (budget.W % tp or budget.batch % (budget.W // tp * B * budget.T)
                    or m.H % tp or m.G % tp or m.F % tp or m.V % tp)]


# ---- the whole


def design(budget):
    """The Design without `violations` that has the lowest loss predicted by HOFFMANN.

    With experts, N is `effective_parameters` of the active ones.
    ValueError if nothing fits.
    """
    best = None
    least = math.inf
    flops = budget.W * budget.days * 86400 * budget.mfu * budget.peak
    around, _ = best_split(HOFFMANN, flops)
    # exercise: sizes near the law's, several numbers of experts, all recipes: how many tokens each?
    sizes = [around * 1.1 ** i for i in range(-40, 5)]
    shapes = [shape_for(size, budget.V, queries) for size, queries in product(sizes, QUERIES)]
    for m, experts in product(shapes, [e for e in (1, 2, 4, 8, 16) if e <= budget.experts]):
        for recipe in recipes(budget, m):
            step = sum(step_seconds(budget, m, experts, recipe).values())
            steps = max(1, int(budget.days * 86400 / step))
            plan = Design(m, experts, recipe, steps * budget.batch)
            N = effective_parameters(total_parameters(m), experts)
            loss = HOFFMANN.loss(N, plan.tokens)
            if loss < least and not violations(budget, plan):
                best = plan
                least = loss
    if best is None:
        raise ValueError(f"design: no plan fits {budget}")
    return best
