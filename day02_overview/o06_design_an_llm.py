"""o06 · Spend a compute budget: the model, its tokens and the plan that a law rates best

W: GPUs   T: tokens of a sequence   tp: ranks that share each layer's matrices   dp: W / tp
L C H G D F V: r03's letters, and its `Llama`: here the model that one token meets
experts: MLPs that every second layer stores; a token meets one of them, so 1 is a dense model
law: o05's, of the form loss = E + A / N^a + B / tokens^b, in nats a token
Rates are those of data sheets, all work runs at one share of the peak, and no bytes are sent
during computation. So a plan of this lesson is an estimate, not a measurement.
"""

import math
from dataclasses import dataclass, replace
from itertools import product

from day01_roofline import Llama, count_parameters, kv_bytes_per_token
from day02_overview.o04_training_math import (
    peak_activations,
    sent_by,
    state_bytes,
    step_bytes,
    training_flops,
)
from day02_overview.o05_scaling_laws import HOFFMANN, best_split, effective_parameters

__all__ = ["QUERIES", "Budget", "Design", "Recipe", "design", "lifetime_split", "micro_batches",
           "rank_bytes", "rank_shape", "recipes", "seconds", "serving_bytes", "shape_faults",
           "shape_for", "step_seconds", "stored_parameters", "total_parameters", "violations"]

QUERIES = (4, 8)                # query heads for each key and value head, as large Llamas have them


@dataclass(frozen=True)
class Budget:
    """GPUs and days to train, and one GPU to serve. Rates: an H100's data sheet."""

    W: int
    days: float
    batch: int                  # tokens of a step, all ranks together
    served: int                 # tokens of context that the serving GPU holds at once
    serving: float              # bytes of the serving GPU
    experts: int = 1            # the most that the team can route
    T: int = 8192
    V: int = 128256
    memory: float = 72e9        # bytes of a rank: 80 GB, a tenth of them left to the allocator
    peak: float = 989e12        # FLOP/s, 16-bit, dense
    mfu: float = 0.40           # share of the peak that the arithmetic reaches
    inside: float = 450e9       # byte/s each way between the GPUs of a machine of eight
    across: float = 50e9        # byte/s each way of a GPU to other machines

    def __post_init__(self):
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"Budget: expected {name} above 0, got {value}")
        if self.batch % self.T:
            raise ValueError(f"Budget: {self.batch:,} tokens of a step are not a whole number of "
                             f"sequences of {self.T:,}")


@dataclass(frozen=True)
class Recipe:
    """How W ranks share the work: ZeRO's stage 1 or 3, and B sequences in a micro-batch."""

    stage: int
    B: int
    recompute: bool
    tp: int


@dataclass(frozen=True)
class Design:
    """A model, the tokens it learns, and how."""

    shape: Llama
    experts: int
    recipe: Recipe
    tokens: int


# ---- what the law wants


def predict_growth():
    """How many times as many parameters the best model has for 100 times the FLOPs, by HOFFMANN
    (a = 0.34, b = 0.29)."""
    # exercise: within 5 % is right; the best split keeps A·a / N^a = B·b / tokens^b
    return 8.33             # N^a grows as tokens^b, so N as FLOPs^(b / (a + b)) = FLOPs^0.46


def lifetime_split(law, flops, served):
    """(N, tokens) of the least loss, where training and serving share the FLOPs.

    flops: in all, 6 · N · tokens + 2 · N · served    served: tokens, for all users, over its life
    served = 0 is o05's best_split. Counting both: Sardana et al. 2023.
    """
    if flops <= 0 or served < 0:
        raise ValueError(f"lifetime_split: expected flops > 0 and served >= 0, got {flops:g} and "
                         f"{served:g}")
    few = 1.0
    many = flops / 6
    # exercise: halve the range of tokens, on a log scale, until more of them do not lower the loss
    for _ in range(100):
        tokens = math.sqrt(few * many)
        N = flops / (6 * tokens + 2 * served)
        gain = law.b * law.B / tokens ** law.b                  # of the loss, by 1 % more tokens
        price = law.a * law.A / N ** law.a * 6 * tokens / (6 * tokens + 2 * served)
        few, many = (tokens, many) if gain > price else (few, tokens)
    return N, tokens


# ---- a shape


def total_parameters(m):
    """Parameters of m itself, with one expert."""
    return sum(count_parameters(m).values())


def shape_faults(m):
    """How an untied Llama differs from the published large ones: a sentence for each fault."""
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


def shape_for(N, V, queries):
    """The untied Llama whose C / L is nearest to 128, of those within 1 % of N parameters and
    without `shape_faults`; where there is none, the nearest to N. At most 128 heads.

    queries: H / G, one of QUERIES
    """
    if queries not in QUERIES or min(N, V) < 1:
        raise ValueError(f"shape_for: expected N and V above 0 and H / G among {QUERIES}, got "
                         f"N = {N:g}, V = {V} and H / G = {queries}")
    best = None
    least = (math.inf, math.inf)
    # exercise: for each width and each F, which depth comes nearest to N, and is it allowed?
    for H in range(8, 129, 8):
        C = 128 * H
        for F in range(-(-8 * C // 768) * 256, 7 * C // 2 + 1, 256):
            one = Llama("", 1, C, H, H // queries, 128, F, V, tied=False)
            rest = total_parameters(replace(one, L=0))
            L = round((N - rest) / (total_parameters(one) - rest))
            m = replace(one, L=min(max(L, -(-C // 160)), C // 48))
            off = max(abs(total_parameters(m) / N - 1), 0.01), abs(C / m.L - 128)
            if off < least:
                best = m
                least = off
    return best


def stored_parameters(m, experts):
    """Parameters of a model whose tokens meet m, with `experts` experts in every second layer.

    If there is more than one, each of these L // 2 layers stores an MLP's three matrices for every
    expert, and a router of C numbers an expert.
    """
    if experts < 1:
        raise ValueError(f"stored_parameters: expected at least 1 expert, got {experts}")
    # exercise: what is there besides m's own parameters?
    router = m.C * experts if experts > 1 else 0
    return total_parameters(m) + m.L // 2 * ((experts - 1) * 3 * m.C * m.F + router)


# ---- does it fit, and how long does it take?


def rank_shape(m, tp):
    """The part of m on one of tp ranks: whole norms, and 1/tp of heads, MLP and vocabulary."""
    if any(n % tp for n in (m.H, m.G, m.F, m.V)):
        raise ValueError(f"rank_shape: H = {m.H}, G = {m.G}, F = {m.F} and V = {m.V} do not all "
                         f"divide by tp = {tp}")
    return replace(m, H=m.H // tp, G=m.G // tp, F=m.F // tp, V=m.V // tp)


def micro_batches(budget, recipe):
    """How many micro-batches a rank runs in a step, their gradients added up."""
    at_once = budget.W // recipe.tp * recipe.B * budget.T
    if budget.W % recipe.tp or budget.batch % at_once:
        raise ValueError(f"micro_batches: {budget.batch:,} tokens on {budget.W} ranks do not "
                         f"divide by tp = {recipe.tp} and B = {recipe.B}")
    return budget.batch // at_once


def rank_bytes(budget, m, experts, recipe):
    """Bytes on a rank at the peak of a step: state, 16-bit activations, 16-bit logits.

    All of the state, experts included, is shared out: tp ways, and then by ZeRO among the ranks of
    dp. The logits are those of one micro-batch.
    """
    # exercise: o04 counts the parts; what must it be given where a rank holds a slice?
    part = rank_shape(m, recipe.tp)
    state = state_bytes(stored_parameters(part, experts), budget.W // recipe.tp, recipe.stage)
    activations = peak_activations(part, recipe.B, budget.T, recipe.recompute)
    return state + 2 * (activations + recipe.B * budget.T * part.V)


def step_seconds(budget, m, experts, recipe):
    """{part: seconds} of a step. Parts: arithmetic, tp, dp.

    arithmetic: o04's FLOPs of the whole batch, shared by W ranks at mfu · peak
    tp: its bytes for each micro-batch, inside a machine; recomputing sends forward's half again
    dp: 16-bit gradients of a rank's part (`rank_shape`, all experts), summed once a step; stage 3
    instead gathers those weights twice and scatters the gradients, once a micro-batch. At the rate
    across machines, even within one
    """
    dp = budget.W // recipe.tp
    times = micro_batches(budget, recipe)
    # exercise: FLOPs of batch / T sequences; and what is sent, and how often?
    flops = sum(training_flops(m, budget.batch // budget.T, budget.T, recipe.recompute).values())
    tp = step_bytes("tp", m, recipe.B, budget.T, recipe.tp, 2) * (1.5 if recipe.recompute else 1)
    weights = 2 * stored_parameters(rank_shape(m, recipe.tp), experts)
    sent = 3 * times * sent_by("all_gather", weights, dp) if recipe.stage == 3 \
        else sent_by("all_reduce", weights, dp)
    return {"arithmetic": flops / (budget.W * budget.mfu * budget.peak),
            "tp": times * tp / budget.inside, "dp": sent / budget.across}


def seconds(budget, plan):
    """Seconds of a Design's whole training."""
    step = step_seconds(budget, plan.shape, plan.experts, plan.recipe)
    return plan.tokens / budget.batch * sum(step.values())


def serving_bytes(budget, m, experts):
    """Bytes of 16-bit weights and cache on the one GPU that serves."""
    return 2 * stored_parameters(m, experts) + budget.served * kv_bytes_per_token(m, 2)


def violations(budget, plan):
    """What is wrong with a Design, a sentence for each fault: which limit, and by how much."""
    m = plan.shape
    experts = plan.experts
    recipe = plan.recipe
    faults = shape_faults(m)
    if m.V != budget.V or m.tied:
        faults.append(f"the vocabulary is {m.V:,}, expected {budget.V:,}, untied")
    if experts not in range(1, budget.experts + 1):
        faults.append(f"{experts} experts, expected 1 to {budget.experts}")
    if recipe not in recipes(budget, m):
        return [*faults, f"{recipe} is not one of recipes(budget, shape)"]
    for what, needs, limit, unit in (
            ("memory of a rank", rank_bytes(budget, m, experts, recipe), budget.memory, "GB"),
            ("memory to serve", serving_bytes(budget, m, experts), budget.serving, "GB"),
            ("time to train", seconds(budget, plan), budget.days * 86400, "days")):
        if needs > limit:
            scale = 86400 if unit == "days" else 1e9
            faults.append(f"the {what} is {needs / scale:.2f} {unit}, {needs / limit - 1:.1%} more "
                          f"than the {limit / scale:.2f} there are")
    return faults


def recipes(budget, m):
    """Every way to train m that divides evenly, tp within a machine of eight.

    Stage 0 sends what stage 1 sends, and keeps more; stage 2 is left out for brevity.
    """
    return [Recipe(stage, B, again, tp)
            for tp, B, stage, again in product((1, 2, 4, 8), (1, 2, 4, 8), (1, 3), (False, True))
            if not (budget.W % tp or budget.batch % (budget.W // tp * B * budget.T)
                    or m.H % tp or m.G % tp or m.F % tp or m.V % tp)]


# ---- the whole


def design(budget):
    """The Design to which HOFFMANN promises the least loss, among those without `violations`.

    Experts count by `effective_parameters` of the model a token meets. ValueError: nothing fits.
    """
    best = None
    least = math.inf
    flops = budget.W * budget.days * 86400 * budget.mfu * budget.peak
    around, _ = best_split(HOFFMANN, flops)
    # exercise: try sizes around the law's, some experts, all recipes; the time gives the tokens
    sizes = [around * 1.07 ** i for i in range(-24, 7)]
    shapes = [shape_for(size, budget.V, queries) for size, queries in product(sizes, QUERIES)]
    for m, experts in product(shapes, [e for e in (1, 2, 4, 8, 16) if e <= budget.experts]):
        for recipe in recipes(budget, m):
            step = sum(step_seconds(budget, m, experts, recipe).values())
            steps = max(1, int(budget.days * 86400 / step))
            plan = Design(m, experts, recipe, steps * budget.batch)
            N = effective_parameters(total_parameters(m), experts)
            loss = HOFFMANN.loss(N, plan.tokens)
            if loss < least and not violations(budget, plan):
                best, least = plan, loss
    if best is None:
        raise ValueError(f"design: nothing fits {budget}")
    return best
