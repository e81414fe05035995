"""Graders of o06. The oracles are grids that are searched, o04's calculators on sizes divided here,
and this file's own search for designs."""

import functools
import math
from dataclasses import astuple, replace

import numpy as np
import pytest

from day01_roofline import LLAMAS, Llama, count_parameters, kv_bytes_per_token
from day02_overview import (
    HOFFMANN,
    REFIT,
    Budget,
    Design,
    Recipe,
    best_split,
    design,
    effective_parameters,
    lifetime_split,
    micro_batches,
    peak_activations,
    rank_shape,
    recipes,
    seconds,
    shape_faults,
    shape_for,
    state_bytes,
    stored_parameters,
    training_flops,
    violations,
)
from lab.judge.subject import Raised

LAWS = {"Hoffmann": HOFFMANN, "the refit": REFIT}
# No two sizes alike, H · D not C, and what tp divides is divisible by 4.
RAGGED = Llama("", 5, 40, 12, 4, 7, 44, 132, False)
SMALL = Budget(W=16, days=3, batch=16 * 24 * 96, served=1000, serving=1e9, T=96, V=132,
               memory=1e9, peak=3e12, mfu=0.3, inside=4e9, across=7e8)
WEEK = Budget(W=64, days=7, batch=2 ** 22, served=2 ** 17, serving=24e9)
ROUTED = Budget(W=32, days=7, batch=2 ** 21, served=2 ** 16, serving=80e9, experts=8)
PLANS = [Recipe(1, 3, False, 4), Recipe(3, 2, True, 2), Recipe(3, 1, False, 1),
         Recipe(1, 2, True, 4)]


def number(got, what):
    assert isinstance(got, (int, float)) and not isinstance(got, bool), \
        f"{what}: got {got!r}, expected a number"
    return got


def total(m):
    return sum(count_parameters(m).values())


def named(recipe, experts):
    return (f"stage {recipe.stage}, B={recipe.B}, recompute={recipe.recompute}, tp={recipe.tp}, "
            f"{experts} experts")


def given(subject, budget, m, recipe):
    return (subject.Budget(*astuple(budget)), subject.make("day01_roofline:Llama", *astuple(m)),
            subject.Recipe(*astuple(recipe)))


def local(handle):
    return Llama(*(getattr(handle, k) for k in (
        "name", "L", "C", "H", "G", "D", "F", "V", "tied")))


# ---- what the law wants


def searched(law, flops, served):
    """(N, tokens) of the least loss on a fine grid."""
    tokens = np.exp(np.linspace(math.log(1e6), math.log(flops / 6), 400_001))
    N = flops / (6 * tokens + 2 * served)
    E, A, B, a, b = law
    at = np.argmin(A / N ** a + B / tokens ** b)
    return [N[at], tokens[at]]


def test_predict_growth(subject):
    got = number(subject.predict_growth(), "a prediction")
    small, large = (searched(HOFFMANN, flops, 0)[0] for flops in (1e21, 1e23))
    want = large / small
    said = {100: "that gives the parameters all of it, and the data nothing",
            10: "that is the root of 100, which needs a = b; here data has the smaller exponent",
            100 / want: "that is how the tokens grow"}
    assert abs(got / want - 1) <= 0.05, (
        f"100 times the FLOPs: {got:g} times the parameters is not it; "
        + next((s for value, s in said.items() if abs(got / value - 1) < 0.03),
               "write N^a ~ tokens^b and N · tokens ~ FLOPs"))


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
        "the FLOPs of serving are left out": searched(law, flops, 0),
        "a served token costs 6 · N FLOPs; it has no backward": searched(law, flops, 3 * served),
        "N and tokens are the wrong way round": searched(law, flops, served)[::-1],
        "the two exponents are the wrong way round":
            searched((E, A, B, b, a), flops, served),
        "the slopes are compared without the exponents that the powers bring down":
            searched((E, A / a, B / b, a, b), flops, served),
        "a smaller N is taken to cost as much as if nothing were served":
            balanced(law, flops, served),
        **({"HOFFMANN is used, not the law handed in": searched(HOFFMANN, flops, served)}
           if law != HOFFMANN else {}),
        "N is flops / (6 · tokens) at the end: what serving costs is not in it":
            [flops / 6 / want[1], want[1]],
        "the gain by one more token is compared with the price of 1 % more":
            balanced(law, flops, served, gain_of_one=True),
        "the tokens served are added to those that are returned": [want[0], want[1] + served],
        "a training token costs N FLOPs, without the 6": searched(law, 6 * flops, 6 * served),
        "the range keeps the wrong half: more tokens are tried where fewer lower the loss":
            [flops / (flops + 2 * served), flops / 6],
        "the range keeps the wrong half: fewer tokens are tried where more lower the loss":
            [flops / (6 + 2 * served), 1],
        "the budget is filled near the best split, as where the range is halved too few times, or "
        "on a linear scale, whose small end takes many more":
            got if nearly(got, want, flops, served) else [0, 0]})


def nearly(got, want, flops, served):
    """Whether (N, tokens) fills the budget, and is at most 10 % off."""
    if not isinstance(got, (tuple, list)) or len(got) != 2 or \
            not all(isinstance(x, (int, float)) for x in got):
        return False
    N, tokens = got
    return abs(N * (6 * tokens + 2 * served) / flops - 1) < 1e-6 and abs(N / want[0] - 1) < 0.1


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


def test_lifetime_split__unseen(subject, agree, rng):
    """Another law; N is also compared alone, since it is small beside the tokens."""
    for _ in range(3):
        law = rng.uniform((1, 100, 100, 0.2, 0.2), (2, 2000, 2000, 0.5, 0.5)).tolist()
        flops, served = (10 ** rng.uniform((19, 9), (25, 13))).tolist()
        got = subject.lifetime_split(subject.make("day02_overview:Law", *law), flops, served)
        want = searched(law, flops, served)
        what = (f"{{}} of {flops:g} FLOPs with {served:g} tokens served, E, A, B, a, b = "
                + ", ".join(f"{number:.4g}" for number in law))
        agree(got, want, "float16", what.format("(N, tokens)"))
        agree(got[0], want[0], "float16", what.format("N"))


SPLITS = {
    "equal exponents": ((1.7, 400, 400, 0.3, 0.3), 1e21, 10 ** 11),
    "a above b": ((1.7, 400, 2000, 0.5, 0.25), 1e21, 10 ** 11),
    "a below b": ((1.7, 2000, 400, 0.25, 0.5), 1e21, 10 ** 11),
    "far more served than learned": (HOFFMANN, 1e19, 10 ** 15),
    "one token served": (HOFFMANN, 1e19, 1),
    "a budget of a laptop": (REFIT, 1e13, 32_768),
    "a budget of a nation": (REFIT, 1e28, 10 ** 14)}


def test_lifetime_split__hard(subject, reference, agree):
    """One after the other in one process; each number by itself, since they differ in size."""
    for what, (law, flops, served) in SPLITS.items():
        got, want = (side.lifetime_split(side.make("day02_overview:Law", *law), flops, served)
                     for side in (subject, reference))
        assert isinstance(got, (tuple, list)) and len(got) == 2, \
            f"lifetime_split: got {got!r}, expected two numbers, (N, tokens)"
        for name, mine, own in zip(("N", "tokens"), got, want, strict=True):
            agree(mine, own, "float16", f"{name}, {what}: {flops:g} FLOPs, {served:g} served")


def test_training_alone_has_the_split_of_o05():
    for law in LAWS.values():
        assert np.allclose(lifetime_split(law, 1e22, 0), best_split(law, 1e22), rtol=1e-9)


# ---- a shape


@pytest.mark.parametrize("queries", [4, 8])
@pytest.mark.parametrize("N, V", [(8.03e9, 128256), (2e9, 32000), (3e10, 128256), (7e10, 50000)])
def test_shape_for(subject, N, V, queries):
    judge_shape(subject, N, V, queries)


def test_shape_for__unseen(subject, rng):
    for queries in (4, 8):
        judge_shape(subject, float(10 ** rng.uniform(9.4, 11)), int(rng.integers(30_000, 130_000)),
                    queries)


def judge_shape(subject, N, V, queries):
    handle = subject.shape_for(N, V, queries)
    assert handle is not None, f"shape_for({N:g}, {V}, {queries}): got None, expected a Llama"
    m = local(handle)
    what = f"shape_for({N:g}, {V}, {queries}) has L={m.L} C={m.C} H={m.H} G={m.G} F={m.F}"
    faults = shape_faults(m)
    assert not faults, f"{what}: {faults[0]}"
    assert m.V == V and not m.tied, f"{what}: expected V={V}, untied, got V={m.V}, tied={m.tied}"
    assert queries * m.G == m.H, f"{what}: H / G is {m.H / m.G:g}, expected {queries}"
    off = total(m) / N - 1
    layers = (total(m) - 2 * m.V * m.C) / N - 1
    nearest, of_nearest = nearest_off(N, V, queries)
    assert m.H <= 128, f"{what}: {m.H} heads, expected at most 128"
    if nearest > 0.01:
        why = "the nearest one has 128 heads, which are allowed" \
            if of_nearest.H == 128 and m.H == 120 else \
            "this one's C / L is nearer to 128, but C / L counts only within 1 %" \
            if abs(m.C / m.L - 128) < abs(of_nearest.C / of_nearest.L - 128) else \
            "at most 128 heads and all faults avoided"
        assert abs(off) <= nearest + 1e-9, (
            f"{what}: {total(m):,} parameters, {off:+.1%} off, expected the nearest, which is "
            f"{nearest:.1%} off. Nothing is within 1 % here, and then the nearest counts: {why}")
        return
    squat = nearest_ratio(N, V, queries)
    ratio = squat.C / squat.L
    hints = [words for words, so in (
        ("its layers alone have N: the vocabulary's two matrices count as well",
         abs(layers) < 0.01),
        ("its C / L is nearer to 128 than that of any within 1 % of N, but those come first",
         abs(m.C / m.L - 128) < abs(ratio - 128)),
        ("the text says within 1 %", abs(off) <= 0.02)) if so]
    assert abs(off) <= 0.01, (
        f"{what}: {total(m):,} parameters, {off:+.1%} off; "
        + (", or ".join(hints) or "there are nearer ones: has each F been tried?"))
    why = "this one is the nearest to N, but within 1 % C / L decides" \
        if abs(off) <= nearest + 1e-9 else "of those the one nearest to 128 counts" \
        if abs(m.C / m.L - 128) > 40 else \
        f"is F / C = {squat.F / squat.C:.3g} among those tried, and is L rounded to the nearest?"
    assert abs(m.C / m.L - 128) <= abs(ratio - 128), (
        f"{what}: C / L is {m.C / m.L:.1f}, but within 1 % of N there is one with {ratio:.1f}, "
        f"L={squat.L} C={squat.C} F={squat.F}; {why}")


EXTREMES = [(1e8, 32_000, 4), (5e8, 128_256, 8), (10 ** 6, 1000, 4), (1.0, 1, 8),
            (10 ** 13, 128_256, 4), (900 * 10 ** 9, 50_000, 8), (350e9, 50_257, 4), (9e8, 1, 8)]


def test_shape_for__extremes(subject):
    """Where nothing is within 1 %, and where 128 heads are just enough."""
    for N, V, queries in EXTREMES:
        judge_shape(subject, N, V, queries)


@functools.cache
def nearest_off(N, V, queries):
    """(share, shape) of the shape without faults that is the least share off N."""
    least = math.inf, None
    for C in range(1024, 16385, 1024):
        matrices = 2 * C * C + 2 * C * C // queries
        for F in range(-(-8 * C // 768) * 256, 7 * C // 2 + 1, 256):
            each, rest = matrices + 3 * C * F + 2 * C, 2 * V * C + C
            L = min(max(round((N - rest) / each), -(-C // 160)), C // 48)
            off = abs((L * each + rest) / N - 1)
            if off < least[0]:
                least = off, Llama("", L, C, C // 128, C // 128 // queries, 128, F, V, False)
    return least


@functools.cache
def nearest_ratio(N, V, queries):
    """The shape whose C / L is nearest to 128, of all within 1 % of N; for each width and F, one
    depth."""
    found = []
    for C in range(1024, 16385, 1024):
        matrices = 2 * C * C + 2 * C * C // queries
        for F in range(256, 4 * C, 256):
            L = round((N - 2 * V * C - C) / (matrices + 3 * C * F + 2 * C)) or 1
            m = Llama("", L, C, C // 128, C // 128 // queries, 128, F, V, False)
            if L > 0 and not shape_faults(m) and abs(total(m) / N - 1) <= 0.01:
                found.append(m)
    return min(found, key=lambda m: abs(m.C / m.L - 128))


@pytest.mark.parametrize("experts", [4, 1, 2])
def test_stored_parameters(subject, agree, experts):
    m = RAGGED
    attention = m.C * (m.H + 2 * m.G) * m.D + m.H * m.D * m.C
    expert, router, norms = 3 * m.C * m.F, m.C * experts if experts > 1 else 0, 2 * m.C

    def model(extra, layers=m.L // 2):
        return m.L * (attention + norms + expert) + 2 * m.V * m.C + m.C + layers * extra
    others = (experts - 1) * expert
    agree(subject.stored_parameters(subject.make("day01_roofline:Llama", *astuple(m)), experts),
          model(others + router), what=f"parameters stored by {experts} experts", mistakes={
        **({"two experts are taken to need no router": model(others)} if experts == 2 else {}),
        "the router is left out": model(others),
        "the number of experts is not used at all": model(0),
        ("a dense model has no router" if experts == 1 else
         "a router has C numbers in all, and not C an expert"): model(others + m.C),
        "one router is counted for the whole model, and not one for each of its L // 2 layers":
            model(others) + router,
        "every layer has a router, and not only those with experts": model(others) + m.L * router,
        "the router has no numbers for the first expert":
            model(others + max(router - m.C, 0)),
        "m's own parameters are left out": model(others + router) - model(0),
        "norms are stored once an expert, too": model(others + router + (experts - 1) * norms),
        "one expert too many is stored: m has one already": model(others + expert + router),
        "an MLP is taken to have two matrices": model(others * 2 // 3 + router),
        "attention is stored once an expert, too":
            model(others + router + (experts - 1) * attention),
        "every layer has experts, not every second one": model(others + router, m.L),
        "L / 2 is rounded up: the last layer has no partner": model(others + router, m.L // 2 + 1),
        "L / 2 is not rounded down: half a layer has experts":
            model(others + router, m.L / 2),
        "one layer has experts instead of every second": model(others + router, 1)})


STORED = {
    "a single layer, no second one": (Llama("", 1, 40, 12, 4, 7, 44, 132, False), 8),
    "two layers": (Llama("", 2, 40, 12, 4, 7, 44, 132, False), 8),
    "three layers": (Llama("", 3, 40, 12, 4, 7, 44, 132, False), 8),
    "a tied head": (Llama("", 6, 40, 12, 4, 7, 44, 132, True), 3),
    "a tied head, one expert": (Llama("", 6, 40, 12, 4, 7, 44, 132, True), 1),
    "the smallest of all": (Llama("", 1, 1, 1, 1, 1, 1, 1, False), 1),
    "more than 2^31 of everything": (
        Llama("", 126, 2 ** 14, 128, 8, 128, 53_248, 3 * 10 ** 9, False), 64)}


def test_stored_parameters__hard(unseen):
    for what, (m, experts) in STORED.items():
        unseen("stored_parameters", lambda side, m=m: side.make(
            "day01_roofline:Llama", *astuple(m)), experts, precision="exact",
            shown=f"{what}: {m}, {experts} experts")


def shape(rng):
    """A Llama that nobody has seen; what tp divides is divisible by 4."""
    L, G, D, F, V = rng.integers(2, 90, 5).tolist()
    return Llama("", L, int(rng.integers(8, 999)), 8 * G, 4 * G, D, 4 * F, 4 * V, False)


def test_stored_parameters__unseen(unseen, rng):
    for experts in rng.integers(2, 64, 3).tolist():
        m = shape(rng)
        unseen("stored_parameters", lambda side, m=m: side.make(
            "day01_roofline:Llama", *astuple(m)), experts, precision="exact",
            shown=f"{m}, {experts}")


# ---- does it fit, and how long does it take?


@pytest.mark.parametrize("experts", [3, 1])
@pytest.mark.parametrize("recipe", PLANS, ids=str)
def test_rank_bytes(subject, agree, recipe, experts):
    m, tp, dp = RAGGED, recipe.tp, SMALL.W // recipe.tp
    part = Llama("", m.L, m.C, m.H // tp, m.G // tp, m.D, m.F // tp, m.V // tp, False)

    def bytes_of(state_of=part, kept_of=part, ways=dp, stored=experts, again=recipe.recompute):
        others = m.L // 2 * ((stored - 1) * 3 * m.C * state_of.F
                             + (m.C * stored if stored > 1 else 0))
        kept = peak_activations(kept_of, recipe.B, SMALL.T, again)
        return (state_bytes(total(state_of) + others, ways, recipe.stage)
                + 2 * (kept + recipe.B * SMALL.T * kept_of.V))
    want = bytes_of()
    logits = recipe.B * SMALL.T * part.V
    kept = peak_activations(part, recipe.B, SMALL.T, recipe.recompute)
    agree(subject.rank_bytes(*given(subject, SMALL, m, recipe)[:2], experts,
                             given(subject, SMALL, m, recipe)[2]), want,
          what=f"bytes on a rank, {named(recipe, experts)}", mistakes={
        "the logits are left out": want - 2 * logits,
        "a number kept has two bytes": want - kept - logits,
        "the logits are those of the whole vocabulary; tp shares them out":
            want + 2 * (tp - 1) * logits if tp > 1 else 0,
        "the logits are those of one sequence, not of the micro-batch":
            want - 2 * (recipe.B - 1) * logits // recipe.B if recipe.B > 1 else 0,
        "logits are counted as one byte": want - logits,
        "the layers' state is not shared out by tp": bytes_of(state_of=m),
        "the activations are not shared out by tp": bytes_of(kept_of=m),
        "neither state nor activations are shared out by tp": bytes_of(m, m),
        "the layers' activations are those of all heads and all of F; tp shares them out":
            want + 2 * (peak_activations(m, recipe.B, SMALL.T, recipe.recompute) - kept),
        "the activations are those of one sequence, not of B":
            want + 2 * (peak_activations(part, 1, SMALL.T, recipe.recompute) - kept),
        "ZeRO shares among all W ranks, not among the W / tp of dp": bytes_of(ways=SMALL.W),
        "only one expert is kept, but each rank stores all": bytes_of(stored=1),
        "recompute is not passed on": bytes_of(again=False),
        "recompute is turned round": bytes_of(again=not recipe.recompute),
        "numbers kept have four bytes; they are of 16 bits": want + 2 * (kept + logits),
        "the logits have four bytes; they are of 16 bits": want + 2 * logits,
        "ZeRO is left out: each rank of dp keeps the whole state": bytes_of(ways=1),
        "ZeRO shares among tp ranks, not among W / tp": bytes_of(ways=tp),
        "the state of the whole model is divided by tp; norms and routers are whole on each rank":
            want + state_bytes(stored(m, experts) / tp, dp, recipe.stage)
            - state_bytes(stored(part, experts), dp, recipe.stage),
        **{f"ZeRO's stage is taken to be {stage}, whatever the recipe says":
           want + state_bytes(stored(part, experts), dp, stage)
           - state_bytes(stored(part, experts), dp, recipe.stage)
           for stage in (0, 1, 2, 3) if stage != recipe.stage}})


def test_rank_bytes__unseen(unseen, rng):
    for recipe in PLANS:
        m, experts = shape(rng), int(rng.integers(1, 9))

        def made(i, m=m, recipe=recipe):
            return lambda side: given(side, SMALL, m, recipe)[i]
        unseen("rank_bytes", made(0), made(1), experts, made(2),
               shown=f"{m}, {named(recipe, experts)}")


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
        experts = int(rng.choice((1, 2, 16)))
        words = (f"{budget.W} ranks, {times} micro-batches, T={T}, {named(recipe, experts)}, "
                 f"L={m.L}{', a tied head' if m.tied else ''}, mfu {budget.mfu:.3f}")
        yield budget.W * T * m.L, words, budget, m, recipe, experts


def test_rank_bytes__situations(unseen, rng):
    judge_situations("rank_bytes", unseen, rng)


def judge_situations(name, unseen, rng):
    """Plain ones first, in which ranks, tokens and layers are few."""
    for _, words, budget, m, recipe, experts in sorted(situations(rng, 40), key=lambda s: s[0]):
        def made(i, case=(budget, m, recipe)):
            return lambda side: given(side, *case)[i]
        unseen(name, made(0), made(1), experts, made(2), shown=words)


@pytest.mark.parametrize("W", [16, 8])
@pytest.mark.parametrize("experts", [3, 1])
@pytest.mark.parametrize("recipe", PLANS, ids=str)
def test_step_seconds(subject, agree, recipe, experts, W):
    """Also of ranks that fit into one machine."""
    given_budget = replace(SMALL, W=W)
    m, dp, want = RAGGED, W // recipe.tp, parts_of_a_step(given_budget, RAGGED, experts, recipe)
    times = SMALL.batch // (dp * recipe.B * SMALL.T)
    part, share = rank_shape(m, recipe.tp), (dp - 1) / dp

    def but(**changes):
        return list({**want, **changes}.values())
    budget, shape, how = given(subject, given_budget, m, recipe)
    got = subject.step_seconds(budget, shape, experts, how)
    assert isinstance(got, dict) and set(got) == set(want), \
        f"step_seconds: got {got!r}, expected a dict with the keys arithmetic, tp and dp"
    agree([got[part] for part in want], list(want.values()), "float64",
          at=lambda i: list(want)[i[0]],
          what=f"seconds of a step, {W} ranks, {named(recipe, experts)}", mistakes={
        "the arithmetic is taken to run at the whole peak":
            but(arithmetic=want["arithmetic"] * SMALL.mfu),
        "recomputing is taken to cost no FLOPs": but(
            arithmetic=parts_of_a_step(given_budget, m, experts, replace(recipe, recompute=False))[
                "arithmetic"]),
        "one rank does all the arithmetic": but(arithmetic=want["arithmetic"] * W),
        "only the FLOPs of one micro-batch are counted":
            but(arithmetic=want["arithmetic"] / times),
        "tp talks once a step, but each micro-batch needs it": but(tp=want["tp"] / times),
        "forward's sums are not sent again by recomputation": but(tp=want["tp"] * 2 / 3),
        "the weights of stage 3 come once a step, but each micro-batch gathers them":
            but(dp=want["dp"] / (times if recipe.stage == 3 else 1)),
        "gradients are summed once a micro-batch; they can be added up first":
            but(dp=want["dp"] * (times if recipe.stage == 1 else 1)),
        "stage 3 is counted as one all_reduce":
            but(dp=2 * 2 * stored(part, experts) * share / SMALL.across),
        "the slow wires between machines are used by tp, the fast ones by dp":
            but(tp=want["tp"] * SMALL.inside / SMALL.across,
                dp=want["dp"] * SMALL.across / SMALL.inside),
        "numbers are counted, not their two bytes": but(dp=want["dp"] / 2),
        "only one expert's gradients are sent":
            but(dp=want["dp"] * total(part) / stored(part, experts)),
        "dp goes at the rate inside a machine; the text has it at the rate across, even there":
            but(dp=want["dp"] * SMALL.across / SMALL.inside),
        "tp goes at the rate across machines; its ranks are inside one":
            but(tp=want["tp"] * SMALL.inside / SMALL.across),
        "dp sends the whole model's gradients; a rank has those of its part":
            but(dp=want["dp"] * stored(m, experts) / stored(part, experts)),
        "dp has W ranks; it is W / tp": but(dp=want["dp"] * (W - 1) / W / share),
        "gradients have four bytes; they are of 16 bits": but(dp=want["dp"] * 2),
        "stage 3 sends twice; it gathers weights twice and scatters gradients, three in all":
            but(dp=want["dp"] * (2 / 3 if recipe.stage == 3 else 1)),
        "recomputation sends all of tp's bytes again, not forward's half of them":
            but(tp=want["tp"] * (4 / 3 if recipe.recompute else 1)),
        "the batch's tokens are taken for its sequences: batch / T is missing":
            but(arithmetic=want["arithmetic"] * SMALL.T),
        "only W / tp ranks share the arithmetic": but(arithmetic=want["arithmetic"] * recipe.tp),
        "only tp ranks share the arithmetic": but(arithmetic=want["arithmetic"] * dp)})


def test_step_seconds__unseen(unseen, rng):
    for recipe in PLANS:
        m, experts = shape(rng), int(rng.integers(1, 9))

        def made(i, m=m, recipe=recipe):
            return lambda side: given(side, SMALL, m, recipe)[i]
        unseen("step_seconds", made(0), made(1), experts, made(2),
               shown=f"{m}, {named(recipe, experts)}")


def test_step_seconds__situations(unseen, rng):
    judge_situations("step_seconds", unseen, rng)


# ---- the whole: judged by the book, since its limits use functions that learners write


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
    """What the lesson's `violations` says."""
    m, experts, recipe = plan.shape, plan.experts, plan.recipe
    faults = shape_faults(m)
    if m.V != budget.V or m.tied:
        faults.append(f"the vocabulary is {m.V:,}, expected {budget.V:,}, untied")
    if experts not in range(1, budget.experts + 1):
        faults.append(f"{experts} experts, expected 1 to {budget.experts}")
    if recipe not in recipes(budget, m):
        return [*faults, f"{recipe} is not one of recipes(budget, shape)"]
    serving = 2 * stored(m, experts) + budget.served * kv_bytes_per_token(m, 2)
    for what, needs, limit, unit, scale in (
            ("memory of a rank", on_a_rank(budget, m, experts, recipe), budget.memory, "GB", 1e9),
            ("memory to serve", serving, budget.serving, "GB", 1e9),
            ("time to train", spent(budget, plan), budget.days * 86400, "days", 86400)):
        if needs > limit:
            faults.append(f"the {what} is {needs / scale:.2f} {unit}, {needs / limit - 1:.1%} more "
                          f"than the {limit / scale:.2f} there are")
    return faults


@functools.cache
def best_found(budget):
    """(loss, Design) of a search of this test: widths, depths, F and recipes on a grid."""
    best = math.inf, None
    counts = [e for e in (1, 2, 4, 8) if e <= budget.experts]
    for C in range(2048, 8193, 1024):
        for ratio in (56, 72, 96, 128, 152):
            for F in (-(-8 * C // 768) * 256, 3 * C, 7 * C // 2):
                for queries in (4, 8):
                    m = Llama("", C // ratio, C, C // 128, C // 128 // queries, 128, F, budget.V,
                              False)
                    for experts in counts:
                        best = min([best, *tried(budget, m, experts)], key=lambda pair: pair[0])
    return best


def tried(budget, m, experts):
    for recipe in recipes(budget, m):
        step = sum(parts_of_a_step(budget, m, experts, recipe).values())
        plan = Design(m, experts, recipe, int(budget.days * 86400 / step) * budget.batch)
        if plan.tokens and not faults_of(budget, plan):
            yield promised(plan), plan


def promised(plan):
    """The loss that the law promises; experts count as in o05."""
    return HOFFMANN.loss(effective_parameters(total(plan.shape), plan.experts), plan.tokens)


@pytest.mark.parametrize("budget", [
    pytest.param(WEEK, id="a week"), pytest.param(ROUTED, id="experts"),
    pytest.param(replace(WEEK, W=8, days=20, batch=2 ** 20, T=4096, memory=36e9, peak=312e12,
                         inside=300e9, across=25e9), id="a machine of smaller GPUs"),
    pytest.param(replace(WEEK, W=512, serving=144e9, served=2 ** 16), id="many")])
def test_design(subject, budget):
    judge_design(subject, budget)


def test_design__unseen(subject, rng):
    """Few recipes divide evenly among 512 ranks, so that both searches are short."""
    judge_design(subject, replace(
        WEEK, W=512, batch=2 ** 21, days=int(rng.integers(3, 30)),
        V=8 * int(rng.integers(4000, 16_000)), serving=1e9 * int(rng.integers(90, 144))))


MANY = replace(WEEK, W=512, serving=144e9, served=2 ** 16)
BRIEF = replace(MANY, days=0.01, batch=2 ** 21)     # small models, few recipes: a short search


@pytest.mark.parametrize("budget", [
    pytest.param(replace(MANY, batch=2 ** 21, experts=8, serving=16e9, served=2 ** 14),
                 id="little room to serve"),
    pytest.param(replace(MANY, batch=2 ** 21, serving=200e9, served=2 ** 21),
                 id="a long context")])
def test_design__serving(subject, budget):
    """The serving GPU decides: over a small model, few experts, or few key and value heads."""
    judge_design(subject, budget)


REFUSED = {
    "a thousandth of a second to train": replace(BRIEF, days=1e-8),
    "a rank of 0.1 GB": replace(BRIEF, memory=1e8),
    "a serving GPU of 0.1 GB": replace(BRIEF, serving=1e8),
    "ranks that share no batch evenly": replace(BRIEF, W=7 * 11),
    "a vocabulary of more than 2^31": replace(BRIEF, V=2 ** 32)}


def test_design__refuses(subject):
    """The text asks for ValueError where nothing fits."""
    for what, budget in REFUSED.items():
        try:
            plan = subject.design(subject.Budget(*astuple(budget)))
        except Raised as error:
            assert error.type == "ValueError", \
                f"design, {what}: it raises {error.type}, expected ValueError, as nothing fits"
            continue
        got = "None" if plan is None else f"a Design of {plan.tokens:,} tokens"
        raise AssertionError(f"design, {what}: got {got}, expected ValueError, as nothing fits")


def test_design__at_most_so_many_experts(subject):
    budget = replace(MANY, serving=1e12, batch=2 ** 21, days=7)
    for experts in (2, 3):
        handle = subject.design(subject.Budget(*astuple(replace(budget, experts=experts))))
        assert handle is not None, "design: got None, expected a Design"
        assert handle.experts <= experts, \
            f"design: {handle.experts} experts, expected 1 to {experts}: the budget's maximum"


def judge_design(subject, budget):
    what = (f"{budget.W} GPUs for {budget.days} days, V = {budget.V}, {budget.serving / 1e9:g} GB "
            f"to serve {budget.served:,} tokens")
    try:
        handle = subject.design(subject.Budget(*astuple(budget)))
    except Raised as error:
        _, found = best_found(budget)
        if error.type != "ValueError" or found is None:
            raise
        law, _ = best_split(HOFFMANN, budget.W * budget.days * 86400 * budget.mfu * budget.peak)
        size = total(found.shape)
        raise AssertionError(
            f"{what}: it raises ValueError: {error.text[:80]}… But a model of {size / 1e9:.2f} "
            f"billion parameters fits, {size / law:.2f} times the size by the law, with H / G = "
            f"{found.shape.H / found.shape.G:g} and {found.experts} expert(s): such sizes must be "
            f"tried, too") from None
    assert handle is not None, "design: got None, expected a Design"
    how = handle.recipe
    plan = Design(local(handle.shape), handle.experts,
                  Recipe(how.stage, how.B, how.recompute, how.tp), handle.tokens)
    m = plan.shape
    what += (f": {total(m) / 1e9:.2f} billion parameters, "
             f"{plan.experts} experts, {plan.tokens / 1e9:.0f} billion tokens, "
             f"{named(plan.recipe, plan.experts)}")
    faults = faults_of(budget, plan)
    assert not faults, f"{what}: {faults[0]}"
    loss = promised(plan)
    least, found = best_found(budget)
    assert loss <= 1.005 * least, (
        f"{what}: loss {loss:.4f}, {loss / least - 1:.1%} more than the {least:.4f} of a search; "
        + wasted(budget, plan, found))


def wasted(budget, plan, found):
    """Why a valid plan is not good: the first reason that holds."""
    used = spent(budget, plan) / (budget.days * 86400)
    if used < 0.9:
        return f"only {used:.0%} of the days are used"
    if plan.experts == 1 and found.experts > 1:
        return f"the budget allows experts, and {found.experts} are better"
    if plan.experts > found.experts:
        return (f"the search's model has {found.experts} expert(s): the serving GPU stores all of "
                f"them, and fewer leave room for a larger model")
    m, other = plan.shape, found.shape
    if m.H / m.G < other.H / other.G and total(m) < total(other):
        return (f"H / G is {m.H / m.G:g}: with {other.H / other.G:g} the cache has half the heads, "
                f"and the serving GPU has room for a larger model")
    per_token = spent(budget, plan) / plan.tokens
    fastest = min(sum(parts_of_a_step(budget, plan.shape, plan.experts, r).values()) / budget.batch
                  for r in recipes(budget, plan.shape)
                  if not faults_of(budget, replace(plan, recipe=r, tokens=budget.batch)))
    if per_token > 1.2 * fastest:
        return f"another recipe trains this model in {fastest / per_token:.0%} of the time a token"
    size = total(plan.shape) / total(found.shape)
    return f"the model has {size:.2f} times the parameters of that search's"


# ---- given, not exercises: only the course's own tests check it


def test_the_published_large_shapes_have_no_faults():
    for name in ("Llama-3.1-8B", "Llama-3.1-70B"):
        assert not shape_faults(LLAMAS[name])
    assert "not 128" in shape_faults(LLAMAS["SmolLM-135M"])[0]


def test_a_violation_says_which_limit_and_by_how_much():
    m = shape_for(6e9, WEEK.V, 8)
    plan = Design(m, 1, Recipe(3, 1, True, 1), 2 ** 22 * 1000)
    assert not violations(WEEK, plan)
    late = replace(plan, tokens=10 ** 13)
    days = seconds(WEEK, late) / 86400
    assert violations(WEEK, late) == [
        f"the time to train is {days:.2f} days, {days / 7 - 1:.1%} more than the 7.00 there are"]
    assert "memory to serve" in violations(replace(WEEK, serving=9e9), plan)[0]
    assert "memory of a rank" in violations(replace(WEEK, memory=3e9), plan)[0]
    assert "2 experts, expected 1 to 1" in violations(WEEK, replace(plan, experts=2))[0]
    assert "not one of recipes" in violations(WEEK, replace(plan, recipe=Recipe(3, 3, True, 1)))[0]
    assert "vocabulary" in violations(replace(WEEK, V=1000), plan)[0]


def test_violations_are_those_of_the_book():
    m = shape_for(6e9, WEEK.V, 8)
    for budget in (WEEK, ROUTED, replace(WEEK, V=1000), replace(WEEK, memory=3e9, serving=9e9)):
        for recipe in recipes(budget, m):
            plan = Design(m, 2, recipe, 2 ** 22 * 40_000)
            assert violations(budget, plan) == faults_of(budget, plan)


def test_a_slice_has_a_share_of_the_parameters():
    part, norms = rank_shape(RAGGED, 4), count_parameters(RAGGED)["norms"]
    assert (total(part) - norms) * 4 == total(RAGGED) - norms
    assert stored_parameters(RAGGED, 1) == total(RAGGED)


def test_bad_input_is_one_clear_error():
    for call, words in ((lambda: lifetime_split(HOFFMANN, 0, 0), "flops > 0"),
                        (lambda: shape_for(1e9, 1000, 3), "expected N and V above 0"),
                        (lambda: rank_shape(RAGGED, 8), "do not all divide by tp = 8"),
                        (lambda: micro_batches(SMALL, Recipe(1, 5, False, 1)), "and B = 5"),
                        (lambda: stored_parameters(RAGGED, 0), "at least 1 expert, got 0"),
                        (lambda: replace(SMALL, days=0), "expected days above 0, got 0"),
                        (lambda: replace(SMALL, T=100), "not a whole number of sequences of 100"),
                        (lambda: design(replace(WEEK, memory=1e9)), "nothing fits")):
        with pytest.raises(ValueError, match=words):
            call()
