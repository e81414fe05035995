"""Designs by the book: what a plan costs and which is best, by trying all."""

import functools
import math
from itertools import product

import numpy as np

from day01_roofline import LlamaShape, count_parameters, kv_bytes_per_token
from day02_overview import Design, rank_shape, recipes, shape_faults
from day02_overview.o04_training_math import peak_activations, state_bytes, training_flops
from day02_overview.o05_scaling_laws import HOFFMANN, REFIT, effective_parameters

LAWS = {"Hoffmann": HOFFMANN, "the refit": REFIT}


def total(m):
    return sum(count_parameters(m).values())


def searched(law, flops, served):
    """(N, tokens) of the least loss on a fine grid."""
    tokens = np.exp(np.linspace(math.log(1e6), math.log(flops / 6), 400_001))
    N = flops / (6 * tokens + 2 * served)
    E, A, B, a, b = law
    at = np.argmin(A / N ** a + B / tokens ** b)
    return [N[at], tokens[at]]


def balanced(law, flops, served, gain_of_one=False):
    """Where A·a / N^a is B·b / tokens^b although serving has its share, or, of one token, where
    its gain is the price of a percent: mistakes."""
    _, A, B, a, b = law
    tokens = np.exp(np.linspace(math.log(1e6), math.log(flops / 6), 400_001))
    N = flops / (6 * tokens + 2 * served)
    gain, price = B * b / tokens ** b, A * a / N ** a
    if gain_of_one:
        gain, price = gain / tokens, price * 6 * tokens / (6 * tokens + 2 * served)
    at = np.argmin(abs(np.log(price) - np.log(gain)))
    return [N[at], tokens[at]]


@functools.cache
def nearest_depths(N, V, queries):
    """[(share off N, distance of C / L from 128, shape)]: for each width and F the best depth."""
    rows = []
    for C in range(1024, 16385, 1024):
        matrices = 2 * C * C + 2 * C * C // queries
        for F in range(-(-8 * C // 768) * 256, 7 * C // 2 + 1, 256):
            each, rest = matrices + 3 * C * F + 2 * C, 2 * V * C + C
            L = min(max(round((N - rest) / each), -(-C // 160)), C // 48)
            rows.append((abs((L * each + rest) / N - 1), abs(C / L - 128),
                         LlamaShape("", L, C, C // 128, C // 128 // queries, 128, F, V, False)))
    return rows


def stored(m, experts):
    """Parameters of a model with this many experts in every second layer."""
    router = m.C * experts if experts > 1 else 0
    return total(m) + m.L // 2 * ((experts - 1) * 3 * m.C * m.F + router)


def on_a_rank(budget, m, experts, recipe):
    """Bytes at the peak of a step."""
    part = rank_shape(m, recipe.tp)
    kept = peak_activations(part, recipe.B, budget.T, recipe.recompute)
    return (state_bytes(stored(part, experts), budget.W // recipe.tp, recipe.stage)
            + 2 * (kept + recipe.B * budget.T * part.V))


def parts_of_a_step(budget, m, experts, recipe):
    """{part: seconds}."""
    tp, dp = recipe.tp, budget.W // recipe.tp
    times = budget.batch // (dp * recipe.B * budget.T)
    flops = training_flops(m, budget.batch // budget.T, budget.T, recipe.recompute)
    hidden = 2 * recipe.B * budget.T * m.C
    sums = 2 * (6 if recipe.recompute else 4)          # tours of the ring in a layer
    sent = 2 * stored(rank_shape(m, tp), experts) * (dp - 1) / dp
    return {"arithmetic": sum(flops.values()) / (budget.W * budget.mfu * budget.peak),
            "tp": times * m.L * sums * hidden * (tp - 1) / tp / budget.inside,
            "dp": sent / budget.across * (3 * times if recipe.stage == 3 else 2)}


def spent(budget, plan):
    """Seconds of the whole training."""
    step = parts_of_a_step(budget, plan.shape, plan.experts, plan.recipe)
    return plan.tokens / budget.batch * sum(step.values())


def faults_of(budget, plan):
    """[(id of the mistake, what the lesson's `violations` says)]."""
    m, experts, recipe = plan.shape, plan.experts, plan.recipe
    faults = [("shape", fault) for fault in shape_faults(m)]
    if m.V != budget.V or m.tied:
        faults.append(("vocabulary", f"the vocabulary is {m.V:,}, expected {budget.V:,}, untied"))
    if experts not in range(1, budget.experts + 1):
        faults.append(("too_many_experts", f"{experts} experts, expected 1 to {budget.experts}"))
    if recipe not in recipes(budget, m):
        return [*faults, ("other_recipe", f"{recipe} is not in recipes(budget, shape)")]
    serving = 2 * stored(m, experts) + budget.context * kv_bytes_per_token(m, 2)
    for name, what, needs, limit, unit, scale in (
            ("rank_full", "memory of a rank", on_a_rank(budget, m, experts, recipe), budget.memory,
             "GB", 1e9),
            ("card_full", "memory to serve", serving, budget.serving_memory, "GB", 1e9),
            ("late", "time to train", spent(budget, plan), budget.days * 86400, "days", 86400)):
        if needs > limit:
            faults.append((name, f"the {what} is {needs / scale:.2f} {unit}: "
                                 f"{needs / limit - 1:.1%} more than the limit of "
                                 f"{limit / scale:.2f}"))
    return faults


@functools.cache
def best_of_search(budget):
    """(loss, Design) of a search of this test: widths, depths, F and recipes on a grid."""
    best = math.inf, None
    for C in range(2048, 8193, 1024):
        for ratio, F, queries in product((56, 72, 96, 128, 152), (
                -(-8 * C // 768) * 256, 3 * C, 7 * C // 2), (4, 8)):
            m = LlamaShape("", C // ratio, C, H := C // 128, H // queries, 128, F, budget.V, False)
            for experts in [e for e in (1, 2, 4, 8) if e <= budget.experts]:
                best = min([best, *plans_of(budget, m, experts)], key=lambda pair: pair[0])
    return best


def plans_of(budget, m, experts):
    for recipe in recipes(budget, m):
        step = sum(parts_of_a_step(budget, m, experts, recipe).values())
        plan = Design(m, experts, recipe, int(budget.days * 86400 / step) * budget.batch)
        if plan.tokens and not faults_of(budget, plan):
            yield predicted_loss(plan), plan


def predicted_loss(plan):
    """By the law; experts count as in o05."""
    return HOFFMANN.loss(effective_parameters(total(plan.shape), plan.experts), plan.tokens)
