"""Graders of o06.
The oracles are grids that are searched, o04's calculators on sizes divided here, and this file's
own search for designs."""

from dataclasses import astuple, replace
from numbers import Real

import pytest

from day01_roofline import LlamaShape
from day02_overview import Budget, Design, Recipe, rank_shape, recipes, shape_faults
from day02_overview.o04_training_math import peak_activations, state_bytes
from day02_overview.o05_scaling_laws import HOFFMANN, REFIT, best_split
from lab.judge.mistakes import mistake, named
from lab.judge.subject import Raised
from tests.day02_overview.oracle_o06_design_an_llm import (
    LAWS,
    balanced,
    best_of_search,
    faults_of,
    nearest_depths,
    parts_of_a_step,
    predicted_loss,
    searched,
    spent,
    stored,
    total,
)

# No two sizes alike, H · D not C, and what tp divides is divisible by 4.
RAGGED = LlamaShape("", 5, 40, 12, 4, 7, 44, 132, False)
SMALL = Budget(W=16, days=3, batch=16 * 24 * 96, context=1000, serving_memory=1e9, T=96, V=132,
               memory=1e9, peak=3e12, mfu=0.3, inside=4e9, across=7e8)
WEEK = Budget(W=64, days=7, batch=2 ** 22, context=2 ** 17, serving_memory=24e9)
MANY = replace(WEEK, W=512, serving_memory=144e9, context=2 ** 16)
BRIEF = replace(MANY, days=0.01, batch=2 ** 21)     # small models, few recipes: a short search
PLANS = [Recipe(1, 3, False, 4), Recipe(3, 2, True, 2), Recipe(3, 1, False, 1),
         Recipe(1, 2, True, 4)]


def words_of(recipe, experts):
    return (f"stage {recipe.stage}, B={recipe.B}, recompute={recipe.recompute}, tp={recipe.tp}, "
            f"{experts} experts")


def llama(side, m):
    return side.make("day01_roofline:LlamaShape", *astuple(m))


def on(side, budget, m, experts, recipe):
    """The arguments of rank_bytes and step_seconds."""
    return (side.Budget(*astuple(budget)), llama(side, m), experts, side.Recipe(*astuple(recipe)))


def local(handle):
    return LlamaShape(*(getattr(handle, k) for k in (
        "name", "L", "C", "H", "G", "D", "F", "V", "tied")))


def tell(name, seen, why):
    """The message of a mistake: what was seen, and why it is wrong."""
    return mistake(name, f"{seen}: {why}", why)


def first(*reasons):
    """(id, why) of the first of the reasons (id, why, whether it holds); two texts "" if none."""
    return next(((name, why) for name, why, holds in reasons if holds), ("", ""))


# ---- what the law recommends


def test_predict_growth(subject):
    got = subject.predict_growth()
    assert isinstance(got, Real) and not isinstance(got, bool), mistake(
        "no_number", f"predict_growth: got {got!r}, expected a number")
    small, large = (searched(HOFFMANN, flops, 0)[0] for flops in (1e21, 1e23))
    want = large / small
    guesses = {
        100: ("all_to_parameters", "that spends everything on parameters and nothing on data"),
        10: ("root", "the root of 100 would be right for a = b; here b is smaller"),
        100 / want: ("tokens_growth", "that is how the tokens grow, not the parameters")}
    name, why = next((row for value, row in guesses.items() if abs(got / value - 1) < 0.03),
                     ("", "combine N^a ~ tokens^b with N · tokens ~ FLOPs"))
    assert abs(got / want - 1) <= 0.05, tell(
        name, f"predict_growth: not {got:g} times the parameters", why)


@pytest.mark.parametrize("served", [0, 3e12, 1e11])
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("flops", [1.5e22, 6e19])
def test_lifetime_split(subject, agree, flops, name, served):
    law = LAWS[name]
    E, A, B, a, b = law
    got = subject.lifetime_split(subject.make("day02_overview:Law", *law), flops, served)
    want = searched(law, flops, served)
    agree(got, want, "float16",
          what=f"the split of {flops:g} FLOPs with {served:g} tokens served by {name}",
          at=lambda i: ("N", "tokens")[i[0]], mistakes={
        "serving_left_out": ("the FLOPs of serving are left out", searched(law, flops, 0)),
        "serving_trains": ("serving is counted with 6 · N FLOPs per token; without a backward pass "
                           "it is 2 · N", searched(law, flops, 3 * served)),
        "swapped": ("N and tokens are swapped", want[::-1]),
        "exponents_swapped": ("the exponents a and b are swapped",
                              searched((E, A, B, b, a), flops, served)),
        "no_exponents": ("the factors a and b are missing from the slopes",
                         searched((E, A / a, B / b, a, b), flops, served)),
        "price_without_serving": ("the change of N ignores serving: N shrinks by 6·tokens / "
                                  "(6·tokens + 2·served) of the change in tokens",
                                  balanced(law, flops, served)),
        **({"hoffmann": ("HOFFMANN is used instead of the argument law",
                         searched(HOFFMANN, flops, served))} if law != HOFFMANN else {}),
        "n_without_serving": ("N is flops / (6 · tokens) at the end: the cost of serving is "
                              "missing in it", [flops / 6 / want[1], want[1]]),
        "gain_of_one": ("the gain by one more token is compared with the price of 1 % more",
                        balanced(law, flops, served, gain_of_one=True)),
        "served_added": ("the tokens served are added to those that are returned",
                         [want[0], want[1] + served]),
        "no_6": ("a training token costs N FLOPs: the 6 is missing",
                 searched(law, 6 * flops, 6 * served)),
        "more_tokens": ("the wrong half is kept: more tokens are tried where fewer lower the loss",
                        [flops / (flops + 2 * served), flops / 6]),
        "fewer_tokens": ("the wrong half is kept: fewer tokens are tried where more lower the loss",
                         [flops / (6 + 2 * served), 1]),
        "coarse": ("the split is near the best one, as where the range is halved too few times, or "
                   "on a linear scale, whose small end takes many more",
                   got if nearly(got, want, flops, served) else [0, 0])})


def nearly(got, want, flops, served):
    """Whether (N, tokens) fills the budget, and is at most 10 % off."""
    if not isinstance(got, (tuple, list)) or len(got) != 2 or \
            not all(isinstance(x, (int, float)) for x in got):
        return False
    N, tokens = got
    return abs(N * (6 * tokens + 2 * served) / flops - 1) < 1e-6 and abs(N / want[0] - 1) < 0.1


SPLITS = {
    "equal exponents": ((1.7, 400, 400, 0.3, 0.3), 1e21, 10 ** 11),
    "a above b": ((1.7, 400, 2000, 0.5, 0.25), 1e21, 10 ** 11),
    "a below b": ((1.7, 2000, 400, 0.25, 0.5), 1e21, 10 ** 11),
    "far more tokens served than trained on": (HOFFMANN, 1e19, 10 ** 15),
    "one token served": (HOFFMANN, 1e19, 1),
    "a laptop's budget": (REFIT, 1e13, 32_768),
    "a nation's budget": (REFIT, 1e28, 10 ** 14)}


def test_lifetime_split__unseen(subject, reference, agree, rng):
    """One after the other in one process; each number by itself, since they differ in size."""
    cases = list(SPLITS.items())
    for _ in range(3):
        law = rng.uniform((1, 100, 100, 0.2, 0.2), (2, 2000, 2000, 0.5, 0.5)).tolist()
        cases.append((f"E, A, B, a, b = {', '.join(f'{number:.4g}' for number in law)}",
                      (law, *(10 ** rng.uniform((19, 9), (25, 13))).tolist())))
    for what, (law, flops, served) in cases:
        got, want = (side.lifetime_split(side.make("day02_overview:Law", *law), flops, served)
                     for side in (subject, reference))
        assert isinstance(got, (tuple, list)) and len(got) == 2, \
            f"lifetime_split: got {got!r}, expected two numbers, (N, tokens)"
        for name, mine, own in zip(("N", "tokens"), got, want, strict=True):
            agree(mine, own, "float16", f"{name}, {what}: {flops:g} FLOPs, {served:g} served")


# ---- a shape

SHAPES = [(N, V, queries) for N, V in (
    (8.03e9, 128256), (2e9, 32000), (3e10, 128256), (7e10, 50000)) for queries in (4, 8)]
# Where nothing is within 1 %, and where 128 heads are just enough.
EXTREMES = [(1e8, 32_000, 4), (5e8, 128_256, 8), (10 ** 6, 1000, 4), (1.0, 1, 8),
            (10 ** 13, 128_256, 4), (900 * 10 ** 9, 50_000, 8), (350e9, 50_257, 4), (9e8, 1, 8)]
# By the beginning of a sentence of shape_faults.
FAULTS = {"F / C": ("other_f", "F is 8 / 3 to 3.5 times C"),
          "H / G": ("other_g", "G is H / queries"),
          "C / L": ("depth_not_clipped", "clip L to what C / L allows")}


def test_shape_for(subject):
    for case in SHAPES:
        judge_shape(subject, *case)


def test_shape_for__extremes(subject):
    for case in EXTREMES:
        judge_shape(subject, *case)


def test_shape_for__unseen(subject, rng):
    for queries in (4, 8):
        judge_shape(subject, float(10 ** rng.uniform(9.4, 11)), int(rng.integers(30_000, 130_000)),
                    queries)


def judge_shape(subject, N, V, queries):
    handle = subject.shape_for(N, V, queries)
    assert handle is not None, f"shape_for({N:g}, {V}, {queries}): got None, expected a Llama"
    m = local(handle)
    what = f"shape_for({N:g}, {V}, {queries}) has L={m.L} C={m.C} H={m.H} G={m.G} F={m.F}"
    for fault in shape_faults(m):
        name, why = FAULTS.get(fault[:5], ("", ""))
        raise AssertionError(mistake(name, f"{what}: {fault}. {why}", why))
    assert m.V == V and not m.tied, f"{what}: expected V={V}, untied, got V={m.V}, tied={m.tied}"
    assert queries * m.G == m.H, f"{what}: H / G is {m.H / m.G:g}, expected {queries}"
    assert m.H <= 128, tell("too_many_heads", what, "expected at most 128 heads")
    off = total(m) / N - 1
    what += f": {total(m):,} parameters, {off:+.1%} off"
    rows = nearest_depths(N, V, queries)
    nearest, its_ratio, nearest_shape = min(rows, key=lambda row: row[0])
    ratio = abs(m.C / m.L - 128)
    if nearest > 0.01:
        name, why = first(("heads_below_128", "the nearest one has 128 heads, which are allowed",
                           nearest_shape.H == 128 and m.H == 120),
                          ("ratio_first", "C / L counts only within 1 %", ratio < its_ratio))
        assert abs(off) <= nearest + 1e-9, mistake(name, (
            f"{what}. No allowed shape is within 1 % of this N, so return the nearest one, which "
            f"is {nearest:.1%} off. {why}"), why)
        return
    _, best, squat = min((row for row in rows if row[0] <= 0.01), key=lambda row: row[1])
    layers = (total(m) - 2 * m.V * m.C) / N - 1
    name, why = first(
        ("no_vocabulary", "without the vocabulary it would have N: the embedding and lm_head count "
                          "too", abs(layers) < 0.01),
        ("ratio_first", "C / L counts only within 1 %", ratio < best),
        ("not_within_1_percent", "the text says within 1 %", abs(off) <= 0.02),
        ("far_off", "there are shapes nearer to N: have you tried every F?", True))
    assert abs(off) <= 0.01, tell(name, what, why)
    name, why = first(
        ("nearest_first", "it is the nearest to N, but within 1 % C / L decides",
         abs(off) <= nearest + 1e-9),
        ("other_ratio", "C / L should be near 128", ratio > 40),
        ("f_missed", f"is F / C = {squat.F / squat.C:.3g} among those tried, and is L rounded to "
                     f"the nearest?", True))
    assert ratio <= best, mistake(name, (
        f"{what}. C / L is {m.C / m.L:.1f}; another shape within 1 % of N has "
        f"{squat.C / squat.L:.1f}, which is nearer to 128: L={squat.L} C={squat.C} F={squat.F}. "
        f"{why}"), why)


# ---- stored_parameters


@pytest.mark.parametrize("experts", [4, 1, 2])
def test_stored_parameters(subject, agree, experts):
    m = RAGGED
    attention = m.C * (m.H + 2 * m.G) * m.D + m.H * m.D * m.C
    expert, router, norms = 3 * m.C * m.F, m.C * experts if experts > 1 else 0, 2 * m.C

    def model(extra, layers=m.L // 2):
        return m.L * (attention + norms + expert) + 2 * m.V * m.C + m.C + layers * extra

    others = (experts - 1) * expert
    agree(subject.stored_parameters(llama(subject, m), experts), model(others + router),
          what=f"parameters stored by {experts} experts", mistakes={
        **({"two_without_router": ("two experts need a router as well", model(others))}
           if experts == 2 else {}),
        "no_router": ("the router is left out", model(others)),
        "experts_ignored": ("experts is not used", model(0)),
        **({"dense_router": ("a router is counted for one expert; a dense model has none",
                             model(m.C))} if experts == 1 else {}),
        "router_of_c": ("a router has C numbers in all, and not C per expert",
                        model(others + m.C)),
        "one_router": ("one router is counted for the whole model; each of L // 2 layers has one",
                       model(others) + router),
        "router_in_every_layer": ("every layer has a router, not only those with experts",
                                  model(others) + m.L * router),
        "router_skips_first": ("the router has no numbers for the first expert",
                               model(others + max(router - m.C, 0))),
        "rest_alone": ("m's own parameters are left out", model(others + router) - model(0)),
        "norms_again": ("norms are stored once per expert",
                        model(others + router + (experts - 1) * norms)),
        "one_too_many": ("there is one MLP too many: m already counts one",
                         model(others + expert + router)),
        "two_matrices": ("an MLP has three matrices, not two", model(others * 2 // 3 + router)),
        "attention_again": ("attention is stored once, not once per expert",
                            model(others + router + (experts - 1) * attention)),
        "every_layer": ("experts are counted in every layer; only every second one has them",
                        model(others + router, m.L)),
        "rounded_up": ("L / 2 is rounded up; L // 2 layers have experts",
                       model(others + router, m.L // 2 + 1)),
        "half_a_layer": ("L / 2 is not rounded down: half a layer has experts",
                         model(others + router, m.L / 2)),
        "one_layer": ("only one layer has experts", model(others + router, 1))})


STORED = {
    "a single layer, no second one": (LlamaShape("", 1, 40, 12, 4, 7, 44, 132, False), 8),
    "two layers": (LlamaShape("", 2, 40, 12, 4, 7, 44, 132, False), 8),
    "three layers": (LlamaShape("", 3, 40, 12, 4, 7, 44, 132, False), 8),
    "a tied head": (LlamaShape("", 6, 40, 12, 4, 7, 44, 132, True), 3),
    "a tied head, one expert": (LlamaShape("", 6, 40, 12, 4, 7, 44, 132, True), 1),
    "the smallest of all": (LlamaShape("", 1, 1, 1, 1, 1, 1, 1, False), 1),
    "more than 2^31 of everything": (
        LlamaShape("", 126, 2 ** 14, 128, 8, 128, 53_248, 3 * 10 ** 9, False), 64)}


def shape(rng):
    """A Llama of drawn sizes; what tp divides is divisible by 4."""
    L, G, D, F, V = rng.integers(2, 90, 5).tolist()
    return LlamaShape("", L, int(rng.integers(8, 999)), 8 * G, 4 * G, D, 4 * F, 4 * V, False)


def test_stored_parameters__unseen(subject, agree, rng):
    drawn = {f"drawn shape {i}": (shape(rng), int(rng.integers(2, 64))) for i in range(3)}
    for what, (m, experts) in (STORED | drawn).items():
        agree(subject.stored_parameters(llama(subject, m), experts), stored(m, experts), "exact",
              f"stored_parameters, {what}: {m}, {experts} experts", mistakes={} if not m.tied else {
                  "head_again": ("the head is counted although it is tied",
                                 stored(replace(m, tied=False), experts))})


# ---- does it fit, and how long does it take?


@pytest.mark.parametrize("experts", [3, 1])
@pytest.mark.parametrize("recipe", PLANS, ids=str)
def test_rank_bytes(subject, agree, recipe, experts):
    m, tp, dp = RAGGED, recipe.tp, SMALL.W // recipe.tp
    part = rank_shape(m, tp)

    def kept(of=part, B=recipe.B, again=recipe.recompute):
        return 2 * peak_activations(of, B, SMALL.T, again)

    def state(parameters=None, ways=dp, stage=recipe.stage):
        return state_bytes(stored(part, experts) if parameters is None else parameters, ways, stage)

    own, activations = state(), kept()
    logits = 2 * recipe.B * SMALL.T * part.V
    want = own + activations + logits
    agree(subject.rank_bytes(*on(subject, SMALL, m, experts, recipe)), want,
          what=f"bytes on a rank, {words_of(recipe, experts)}", mistakes={
        "no_logits": ("the logits are left out", want - logits),
        "one_byte": ("activations and logits are counted with one byte; they have two",
                     own + (activations + logits) / 2),
        "whole_vocabulary": ("the logits of the whole vocabulary are counted; each rank has V / tp",
                             want + (tp - 1) * logits if tp > 1 else 0),
        "one_sequence_of_logits": ("the logits of one sequence are counted; a micro-batch has B",
                                   own + activations + logits // recipe.B if recipe.B > 1 else 0),
        "logits_one_byte": ("the logits are counted with one byte; they have two",
                            want - logits / 2),
        "whole_state": ("the state is that of the whole model, not of the rank's slice",
                        want + state(stored(m, experts)) - own),
        "whole_activations": ("activations and logits are those of the whole model, not of the "
                              "slice", own + kept(m) + tp * logits),
        "whole_model": ("state and activations are those of the whole model, not of the slice",
                        state(stored(m, experts)) + kept(m) + tp * logits),
        "all_heads": ("the activations are those of all heads and all of F; tp splits them",
                      want + kept(m) - activations),
        "one_sequence": ("the activations are those of one sequence, not of B",
                         want + kept(B=1) - activations),
        "zero_over_w": ("ZeRO shards over all W ranks; it has only W / tp",
                        want + state(ways=SMALL.W) - own),
        "one_expert": ("only one expert is counted; every rank stores its slice of all",
                       want + state(stored(part, 1)) - own),
        "recompute_ignored": ("recompute is not passed to peak_activations",
                              want + kept(again=False) - activations),
        "recompute_inverted": ("recompute is inverted",
                               want + kept(again=not recipe.recompute) - activations),
        "four_bytes": ("activations and logits are counted with four bytes; they have two",
                       want + activations + logits),
        "logits_four_bytes": ("the logits are counted with four bytes; they have two",
                              want + logits),
        "no_zero": ("ZeRO is left out: each rank of dp keeps the whole state",
                    want + state(ways=1) - own),
        "zero_over_tp": ("ZeRO shards over tp ranks; it has W / tp", want + state(ways=tp) - own),
        "all_divided": ("the state of the whole model is divided by tp; norms and routers are "
                        "whole on each rank", want + state(stored(m, experts) / tp) - own),
        **{f"always_stage_{stage}": (f"ZeRO's stage is {stage}, whatever the recipe says",
                                     want + state(stage=stage) - own)
           for stage in (0, 1, 2, 3) if stage != recipe.stage}})


def situations(rng, count):
    """(words, budget, shape, recipe, experts): ones, single ranks and large sizes are frequent."""
    for i in range(count):
        tp, groups, B = (int(rng.choice(sizes)) for sizes in ((1, 2, 4), (1, 2, 5), (1, 3, 8)))
        T, times = int(rng.choice((1, 17, 4096))), int(rng.choice((1, 2, 7)))
        budget = Budget(tp * groups, 3, times * groups * B * T, 1000, 1e9, 16, T, 132, 1e9,
                        *rng.uniform((1e12, 0.1, 1e9, 1e8), (1e15, 0.9, 1e12, 1e11)).tolist())
        m = shape(rng) if i % 4 else replace(shape(rng), L=int(rng.choice((1, 2))), V=2 ** 32)
        m = replace(m, tied=bool(rng.integers(2)))
        recipe = Recipe(int(rng.choice((1, 3))), B, bool(rng.integers(2)), tp)
        experts = int(rng.choice((1, 2, 5, 16)))
        words = (f"{budget.W} ranks, {times} micro-batches, T={T}, {words_of(recipe, experts)}, "
                 f"L={m.L}{', a tied head' if m.tied else ''}, mfu {budget.mfu:.3f}")
        yield budget.W * T * m.L, words, budget, m, recipe, experts


def test_rank_bytes__unseen(unseen, rng):
    judge_situations("rank_bytes", unseen, rng)


def judge_situations(name, unseen, rng):
    """Plain ones first, in which ranks, tokens and layers are few."""
    cases = [(0, f"{m}, {words_of(recipe, experts)}", SMALL, m, recipe, experts) for
             m, recipe, experts in ((shape(rng), r, int(rng.integers(1, 9))) for r in PLANS)]
    cases += sorted(situations(rng, 40), key=lambda case: case[0])
    for _, words, budget, m, recipe, experts in cases:
        def argument(i, case=(budget, m, experts, recipe)):
            return lambda side: on(side, *case)[i]

        with named("other_situation", "", lambda error: isinstance(error, AssertionError)):
            unseen(name, argument(0), argument(1), experts, argument(3), shown=words)


@pytest.mark.parametrize("W", [16, 8])
@pytest.mark.parametrize("experts", [3, 1])
@pytest.mark.parametrize("recipe", PLANS, ids=str)
def test_step_seconds(subject, agree, recipe, experts, W):
    """Also of ranks that fit into one machine."""
    budget, m, tp, dp = replace(SMALL, W=W), RAGGED, recipe.tp, W // recipe.tp
    want = parts_of_a_step(budget, m, experts, recipe)
    once = parts_of_a_step(budget, m, experts, replace(recipe, recompute=False))
    times = SMALL.batch // (dp * recipe.B * SMALL.T)
    part, share, slower = rank_shape(m, tp), (dp - 1) / dp, SMALL.inside / SMALL.across
    third, again = recipe.stage == 3, recipe.recompute

    def but(**factors):
        return [seconds * factors.get(name, 1) for name, seconds in want.items()]

    got = subject.step_seconds(*on(subject, budget, m, experts, recipe))
    assert isinstance(got, dict) and set(got) == set(want), mistake("other_keys", (
        f"step_seconds: got {got!r}, expected a dict with the keys arithmetic, tp and dp"))
    agree([got[name] for name in want], list(want.values()), "float64",
          at=lambda i: list(want)[i[0]],
          what=f"seconds of a step, {W} ranks, {words_of(recipe, experts)}", mistakes={
        "whole_peak": ("mfu is left out", but(arithmetic=SMALL.mfu)),
        "recompute_is_free": ("the FLOPs of recomputation are left out",
                              but(arithmetic=once["arithmetic"] / want["arithmetic"])),
        "one_rank_computes": ("W is left out: all ranks share the arithmetic", but(arithmetic=W)),
        "dp_ranks_compute": ("only W / tp ranks share the arithmetic", but(arithmetic=tp)),
        "tp_ranks_compute": ("only tp ranks share the arithmetic", but(arithmetic=dp)),
        "one_micro_batch": ("only the FLOPs of one micro-batch are counted",
                            but(arithmetic=1 / times)),
        "tokens_as_sequences": ("the batch's tokens are taken for its sequences: divide by T",
                                but(arithmetic=SMALL.T)),
        "tp_once": ("tp's bytes are counted once per step; they are sent for every micro-batch",
                    but(tp=1 / times)),
        "tp_not_again": ("recomputation sends forward's half of tp's bytes again", but(tp=2 / 3)),
        "tp_all_again": ("recomputation sends all of tp's bytes again, not forward's half of them",
                         but(tp=4 / 3 if again else 1)),
        "tp_across": ("tp goes at the rate across machines; its ranks are inside one",
                      but(tp=slower)),
        "dp_inside": ("dp goes at the rate inside a machine; it is `across`, even there",
                      but(dp=1 / slower)),
        "rates_swapped": ("`inside` and `across` are swapped", but(tp=slower, dp=1 / slower)),
        "stage_3_once": ("stage 3's weights are counted once per step; every micro-batch gathers "
                         "them", but(dp=1 / times if third else 1)),
        "scatters_once": ("stage 3's gradients are scattered once per step; every micro-batch "
                          "scatters its own", but(dp=(2 + 1 / times) / 3 if third else 1)),
        "stage_1_often": ("stage 1's gradients are summed once per micro-batch; once per step is "
                          "enough", but(dp=1 if third else times)),
        "stage_3_as_sum": ("stage 3 is counted as one all_reduce",
                           but(dp=2 / 3 / times if third else 1)),
        "stage_3_twice": ("stage 3 sends twice; it gathers weights twice and scatters gradients, "
                          "three in all", but(dp=2 / 3 if third else 1)),
        "no_bytes": ("dp counts numbers, not bytes: two bytes each", but(dp=1 / 2)),
        "four_bytes": ("dp's gradients have four bytes; they are of 16 bits", but(dp=2)),
        "one_expert": ("dp counts one expert's gradients; all are summed",
                       but(dp=total(part) / stored(part, experts))),
        "whole_model": ("dp sends the whole model's gradients; a rank has those of its slice",
                        but(dp=stored(m, experts) / stored(part, experts))),
        "dp_is_w": ("dp has W ranks; it is W / tp", but(dp=(W - 1) / W / share)),
        "no_share": ("dp sends all of a rank's bytes; in a ring it sends (dp - 1) / dp of them",
                     but(dp=1 / share))})


def test_step_seconds__unseen(unseen, rng):
    judge_situations("step_seconds", unseen, rng)


# ---- the whole: judged by the book, since its limits use functions that learners write


BUDGETS = {
    "a week": WEEK,
    "experts": Budget(W=32, days=7, batch=2 ** 21, context=2 ** 16, serving_memory=80e9, experts=8),
    "a machine of smaller GPUs": replace(WEEK, W=8, days=20, batch=2 ** 20, T=4096, memory=36e9,
                                         peak=312e12, inside=300e9, across=25e9),
    "many": MANY}
SERVING = {                     # the serving GPU decides
    "little room to serve": replace(MANY, batch=2 ** 21, experts=8, serving_memory=16e9,
                                    context=2 ** 14),
    "a long context": replace(MANY, batch=2 ** 21, serving_memory=200e9, context=2 ** 21),
    "a small card": replace(BRIEF, W=512, days=30, context=2 ** 17, serving_memory=0.9 * 24e9)}
REFUSED = {
    "a thousandth of a second to train": replace(BRIEF, days=1e-8),
    "a rank of 0.1 GB": replace(BRIEF, memory=1e8),
    "a serving GPU of 0.1 GB": replace(BRIEF, serving_memory=1e8),
    "ranks that share no batch evenly": replace(BRIEF, W=7 * 11),
    "a vocabulary of more than 2^31": replace(BRIEF, V=2 ** 32)}


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_design(subject, budget):
    judge_design(subject, budget)


def test_design__unseen(subject, rng):
    """Few recipes divide evenly among 512 ranks, so that both searches are short."""
    judge_design(subject, replace(
        WEEK, W=512, batch=2 ** 21, days=int(rng.integers(3, 30)),
        V=8 * int(rng.integers(4000, 16_000)), serving_memory=1e9 * int(rng.integers(90, 144))))


@pytest.mark.parametrize("budget", SERVING.values(), ids=SERVING)
def test_design__serving(subject, budget):
    """A small model, few experts, or few key and value heads."""
    judge_design(subject, budget)


def test_design__refuses(subject):
    """The text asks for ValueError if nothing fits."""
    for what, budget in REFUSED.items():
        try:
            plan = subject.design(subject.Budget(*astuple(budget)))
            got = "got None" if plan is None else f"got a Design of {plan.tokens:,} tokens"
        except Raised as error:
            got = f"it raises {error.type}"
        assert got == "it raises ValueError", tell(
            "no_error", f"design, {what}: {got}", "expected ValueError because nothing fits")


def test_design__at_most_so_many_experts(subject):
    budget = replace(MANY, serving_memory=1e12, batch=2 ** 21, days=7)
    for experts in (2, 3):
        handle = subject.design(subject.Budget(*astuple(replace(budget, experts=experts))))
        assert handle is not None, "design: got None, expected a Design"
        assert handle.experts <= experts, mistake(
            "too_many_experts", f"design: {handle.experts} experts, expected 1 to {experts}", "")


def judge_design(subject, budget):
    what = (f"{budget.W} GPUs for {budget.days} days, V = {budget.V}, "
            f"{budget.serving_memory / 1e9:g} GB to serve {budget.context:,} tokens")
    try:
        handle = subject.design(subject.Budget(*astuple(budget)))
    except Raised as error:
        _, other = best_of_search(budget)
        if error.type != "ValueError" or other is None:
            raise
        law, _ = best_split(HOFFMANN, budget.W * budget.days * 86400 * budget.mfu * budget.peak)
        size = total(other.shape)
        raise AssertionError(tell("not_tried", (
            f"{what}: it raises ValueError: {error.text[:80]}… But a model of {size / 1e9:.2f} "
            f"billion parameters fits, {size / law:.2f} times the size by the law, with H / G = "
            f"{other.shape.H / other.shape.G:g} and {other.experts} expert(s)"),
            "such sizes must be tried")) from None
    assert handle is not None, "design: got None, expected a Design"
    how = handle.recipe
    plan = Design(local(handle.shape), handle.experts,
                  Recipe(how.stage, how.B, how.recompute, how.tp), handle.tokens)
    what += (f": {total(plan.shape) / 1e9:.2f} billion parameters, {plan.experts} experts, "
             f"{plan.tokens / 1e9:.0f} billion tokens, {words_of(plan.recipe, plan.experts)}")
    for name, fault in faults_of(budget, plan):
        raise AssertionError(mistake(name, f"{what}: {fault}", ""))
    loss = predicted_loss(plan)
    least, other = best_of_search(budget)
    if loss > 1.005 * least:
        name, why = wasted(budget, plan, other)
        raise AssertionError(mistake(name, (
            f"{what}: predicted loss {loss:.4f}, {loss / least - 1:.1%} above the {least:.4f} that "
            f"the grader's search found: {why}"), ""))


def wasted(budget, plan, other):
    """(id, why) a valid plan is not good: the first reason that holds."""
    used = spent(budget, plan) / (budget.days * 86400)
    m, better = plan.shape, other.shape
    per_token = spent(budget, plan) / plan.tokens
    fastest = min(sum(parts_of_a_step(budget, m, plan.experts, r).values()) / budget.batch
                  for r in recipes(budget, m)
                  if not faults_of(budget, replace(plan, recipe=r, tokens=budget.batch)))
    return first(
        ("idle_days", f"only {used:.0%} of the days are used", used < 0.9),
        ("no_experts", f"the budget allows experts, and {other.experts} are better",
         plan.experts == 1 < other.experts),
        ("fewer_experts", f"the search's model has {other.experts} expert(s): the serving GPU "
                          f"stores all of them, and fewer leave room for a larger model",
         plan.experts > other.experts),
        ("one_ratio", f"H / G is {m.H / m.G:g}: with {better.H / better.G:g} the cache has half "
                      f"the heads, and the serving GPU has room for a larger model",
         m.H / m.G < better.H / better.G and total(m) < total(better)),
        ("slow_recipe", f"another recipe needs only {fastest / per_token:.0%} of this one's time "
                        f"per token", per_token > 1.2 * fastest),
        ("other_size", f"the search found a model with {total(better) / 1e9:.2f} billion "
                       f"parameters", True))
