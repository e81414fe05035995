"""Graders of s26.
The oracles list every tensor of every rank and every message of a step, and play the pipeline's
schedules."""

import functools
import itertools
import math
from dataclasses import astuple, replace

import numpy as np
import pytest

from day01_roofline import LLAMAS, LlamaShape, count_parameters
from day02_overview import training_flops
from lab.judge.mistakes import mistake, raises
from layer3_system.pipeline import interleaved, peak_kept, play
from layer3_system.plan_costs import (
    cache_bytes_per_token,
    different_stages,
    kept_micro_batches,
    largest_stage,
    layer_numbers,
    link_seconds,
    stage_layers,
    stage_numbers,
    stage_parameters,
    step_flops,
    total_seconds,
)
from layer3_system.planner import (
    ARCHITECTURES,
    Architecture,
    Cluster,
    Experts,
    Latent,
    TrainingPlan,
    every_plan,
    plan_faults,
)
from layer3_system.s23_pipeline_parallel import needs, one_forward_one_backward
from layer3_system.s26_planner import best_plans, plan_bytes, plan_seconds, rank_bytes
from layer3_system.token_costs import serving_plans, token_costs
from tests.layer3_system.reasons import because

STATE = ("weights", "gradients", "optimiser", "activations")
PARTS = ("compute", "tp", "cp", "ep", "bubble", "pp", "dp")
SHAPE = LlamaShape("toy", L=6, C=24, H=8, G=4, D=3, F=40, V=88, tied=False)
DENSE = Architecture(SHAPE)
ROUTED = Architecture(SHAPE, Experts(E=4, k=2, F=12, shared=1, dense_layers=1))
LATENT = replace(ROUTED, latent=Latent(kv=10, rope=2, q=14))
SMALL = Cluster(16, memory=1e6, peak=3e9, efficiency=0.5, node=4, inside=4e8, across=7e7,
                alpha=3e-5, shard=16)
T = 64


def give(side, value):
    """A dataclass of the planner, made beside the code under test."""
    if isinstance(value, Architecture):
        shape = side.make("day01_roofline:LlamaShape", *astuple(value.shape))
        experts = value.experts and side.make("layer3_system:Experts", *astuple(value.experts))
        latent = value.latent and side.make("layer3_system:Latent", *astuple(value.latent))
        return side.make("layer3_system:Architecture", shape, experts, latent)
    return side.make(f"layer3_system:{type(value).__name__}", *astuple(value))


def words(plan):
    """A plan by what is not 1."""
    return ", ".join(f"{name} {value}" for name, value in vars(plan).items()
                     if value != 1 or name == "zero")


def vector(got, keys, what):
    """A dict's values in order."""
    assert isinstance(got, dict) and set(got) == set(keys), mistake(
        "keys", f"{what}: got {got!r:.80}, expected a dict of {', '.join(keys)}")
    return [got[key] for key in keys]


# ---- predictions


def test_predict_faster_token(subject):
    costs = token_costs(LLAMAS["Llama-3.1-8B"], Cluster(8), 2000, 8)
    want = {kind for kind, cost in costs.items() if cost.seconds < 0.95 * costs["one rank"].seconds}
    got = subject.predict_faster_token()
    kinds = sorted(costs.keys() - {"one rank"})
    assert isinstance(got, (list, tuple)) and set(got) <= set(kinds), because(
        "no_kinds", f"predict_faster_token: {got!r:.60} is not right",
        f"expected a list out of {', '.join(kinds)}")
    known = {
        "pp": "the stages work one after the other on a single token",
        "cp": "decode has one query: its cache is spread, but every rank reads all weights, and at "
              "2,000 tokens they are 98 % of the bytes",
        "fsdp": "each rank still reads all weights, after it has fetched them",
        "dp": "a sequence is on one rank; the others work on other sequences",
        "zero": "it spreads what the optimiser has, and decoding has no optimiser",
        "sp": "it shares the tokens between matrices, and there is one token",
        "ep": "a dense model has no experts to share out"}
    for kind, why in known.items():
        assert kind not in got, because(
            kind, f'predict_faster_token: "{kind}" does not help', why)
    assert set(got) == want, because(
        "no_tp", "predict_faster_token: one kind is missing",
        "where each rank has a part of every matrix, all ranks read at the same time")


def test_predict_mla_tokens(subject):
    model = ARCHITECTURES["DeepSeek-V3"]
    by_heads = cache_bytes_per_token(model) * 8         # the one latent on each of the 8 ranks
    want = by_heads / cache_bytes_per_token(model)
    full = replace(model, latent=None)
    got = subject.predict_mla_tokens()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_mla_tokens: expected a number, got {got!r:.40}")
    ratio = cache_bytes_per_token(full) / cache_bytes_per_token(model)
    name, why = next((row for value, row in {
        1: ("heads_are_cut", "a rank that has 16 of the heads needs the whole latent for them: "
            "there is one for all heads, and nothing to cut"),
        ratio: ("mla_against_mha", "that is a latent against keys and values of 128 heads, on one "
                "rank")}.items() if abs(got - value) < 1),
        ("other", "count on how many ranks each token's latent lies, one way and the other"))
    assert got == want, because(name, f"predict_mla_tokens: {got:g} is not right", why)


# ---- bytes


def tensors(model, layer):
    """{tensor: (numbers, is cut by tp)} of a layer; an expert's is ("expert", e)."""
    m = model.shape
    some = {"norm": (m.C, False), "norm2": (m.C, False), "out": (m.H * m.D * m.C, True)}
    if latent := model.latent:
        some |= {"q_a": (m.C * latent.q, False), "q_norm": (latent.q, False),
                 "q_b": (latent.q * m.H * (m.D + latent.rope), True),
                 "kv_a": (m.C * (latent.kv + latent.rope), False), "kv_norm": (latent.kv, False),
                 "kv_b": (latent.kv * m.H * 2 * m.D, True)}
    else:
        some |= {"qkv": (m.C * (m.H + 2 * m.G) * m.D, True)}
    experts = model.experts
    if experts is None or layer < experts.dense_layers:
        return some | {"mlp": (3 * m.C * m.F, True)}
    return some | {"router": (m.C * experts.E, False),
                   "shared": (experts.shared * 3 * m.C * experts.F, True)} | {
        ("expert", e): (3 * m.C * experts.F, True) for e in range(experts.E)}


def pieces(model, plan, rank):
    """{(layer, tensor, rank of tp): numbers} that a rank works with."""
    d, c, t, i = rank
    m = model.shape
    place = (d * plan.cp + c) % plan.ep                 # its rank among those of ep
    own = {}
    for layer in stage_layers(model, plan.pp, i):
        for name, (size, cut) in tensors(model, layer).items():
            if name[0] != "expert" or name[1] * plan.ep // model.experts.E == place:
                own[layer, name, t] = size / plan.tp if cut else size
    if i == 0:
        own["embedding", "", t] = m.V * m.C / plan.tp
    if i == plan.pp - 1:
        own["head", "", t] = m.V * m.C / plan.tp
        own["norm", "", t] = m.C
    return own


def schedule(plan, M, i):
    return (interleaved(i, plan.pp, M, plan.v) if plan.v > 1
            else one_forward_one_backward(i, plan.pp, M))


def byte_rows(model, plan, batch):
    """{name: (pp, 4)}: "right", and what comes out of mistakes."""
    groups = list(itertools.product(range(plan.dp), range(plan.cp), range(plan.tp)))
    rows = {}
    M = batch // (plan.dp * plan.B)
    for i in range(plan.pp):
        every = [pieces(model, plan, (*group, i)) for group in groups]
        holders = {key: sum(key in own for own in every) for key in every[0]}
        whole = sum(every[0].values())
        shards = {"right": sum(n / holders[key] for key, n in every[0].items()),
                  "zero_over_all": whole / plan.W,
                  "experts_over_dp": whole / (plan.dp * plan.cp),
                  "dp_alone": sum(n / holders[key] * plan.cp for key, n in every[0].items())}
        each, once = stage_numbers(model, plan, T, i)
        kept = peak_kept(schedule(plan, M, i)) / plan.v

        def row(shard, first=1, numbers=None, whole=whole, each=each, once=once, kept=kept):
            return [size * (shard if plan.zero >= stage + first else whole)
                    for size, stage in ((2, 2), (4, 1), (12, 0))] + [
                2 * (kept * each + once if numbers is None else numbers)]

        right = row(shards["right"])
        for name, value in {
                **{name: row(shard) for name, shard in shards.items()},
                "one_in_flight": row(shards["right"], numbers=each + once),
                "all_in_flight": row(shards["right"], numbers=M * each + once),
                "once_each": row(shards["right"], numbers=kept * (each + once)),
                "stage_late": row(shards["right"], first=2),
                "two_byte_gradients": [right[0], right[1] / 2, *right[2:]],
                "numbers": [*right[:3], right[3] / 2]}.items():
            rows.setdefault(name, []).append(value)
    rows["first_stage"] = [rows["right"][0]] * plan.pp
    return {name: np.array(value) for name, value in rows.items()}


BYTES_WHY = {
    "zero_over_all": "tp's and pp's ranks have other weights: only dp · cp ranks share",
    "experts_over_dp": "an expert lives on dp · cp / ep ranks, and only they can share it",
    "dp_alone": "cp's ranks have the same weights as well: dp · cp share",
    "one_in_flight": "a stage has 1/pp of the layers, but several micro-batches in flight",
    "all_in_flight": "all M micro-batches are kept, as in GPipe: kept_micro_batches says how many",
    "once_each": "the layer that is recomputed is there once, not for each micro-batch",
    "stage_late": "ZeRO 1 cuts the optimiser's part already, 2 the gradients, 3 the weights",
    "two_byte_gradients": "gradients are added up in 4 bytes here",
    "numbers": "activations are counted in numbers, of 2 bytes each",
    "first_stage": "this is what stage 0 holds: all stages are taken for the first"}
BYTE_CASES = [(DENSE, TrainingPlan(2, tp=2, pp=4), 16),
              (ROUTED, TrainingPlan(2, pp=2, cp=2, ep=2, zero=2, B=2), 16),
              (DENSE, TrainingPlan(2, pp=2, cp=2, zero=3, v=2, recompute=True), 16),
              (LATENT, TrainingPlan(4, tp=2, pp=3, ep=4), 16),
              (DENSE, TrainingPlan(4, tp=4, pp=4, zero=0), 8)]


@pytest.mark.parametrize("model, plan, batch", BYTE_CASES, ids=[words(c[1]) for c in BYTE_CASES])
def test_plan_bytes(subject, agree, model, plan, batch):
    what = f"plan_bytes of {words(plan)}, batch {batch}"
    handles = give(subject, model), give(subject, plan)
    got = [vector(subject.plan_bytes(*handles, T, batch, i), STATE, what) for i in range(plan.pp)]
    rows = byte_rows(model, plan, batch)
    want = rows.pop("right")
    agree(np.array(got), want, "float64", what, lambda at: f"stage {at[0]}, {STATE[at[1]]}",
          mistakes={name: (BYTES_WHY[name], row) for name, row in rows.items()
                    if not np.allclose(row, want)})


def drawn(rng):
    """A plan of 16 ranks for SHAPE, and a batch."""
    tp, pp, cp = ([1, 2, 2], [2, 2, 1], [2, 1, 4], [4, 2, 1])[rng.integers(4)]
    plan = TrainingPlan(16 // (tp * pp * cp), tp, pp, cp, zero=int(rng.integers(4)),
                        recompute=bool(rng.integers(2)), B=int(rng.integers(1, 3)))
    return plan, plan.dp * plan.B * int(rng.integers(1, 9))


def test_plan_bytes__unseen(unseen, rng):
    for model in (DENSE, ROUTED):
        plan, batch = drawn(rng)
        unseen("plan_bytes", lambda side, model=model: give(side, model),
               lambda side, plan=plan: give(side, plan), T, batch, 0,
               shown=f"{words(plan)}, batch {batch}, stage 0")


# ---- seconds


def ring(kind, size, n, span, cluster):
    """Seconds of a collective, by its rounds."""
    rounds = {"all_reduce": 2 * (n - 1), "send": 1}.get(kind, n - 1)
    piece = size if kind == "send" else size / n
    rate = cluster.inside if span <= cluster.node else cluster.across
    return sum(cluster.alpha + piece / rate for _ in range(rounds)) if n > 1 else 0.0


def per_layer(model, cluster, plan):
    """(tp, cp, ep): seconds of one micro-batch in all layers of the model."""
    m = model.shape
    tokens = plan.B * T / plan.cp
    tp = cp = ep = 0.0
    width = model.latent.kv + model.latent.rope if model.latent else 2 * m.G * m.D / plan.tp
    for layer in range(m.L):
        for _ in range(6 if plan.recompute else 4):
            tp += ring("all_reduce", 2 * tokens * m.C, plan.tp, plan.tp, cluster)
            if model.experts and layer >= model.experts.dense_layers:
                ep += ring("all_to_all", 2 * tokens / plan.tp * model.experts.k * m.C, plan.ep,
                           plan.tp * plan.ep, cluster)
        for _ in range(4 if plan.recompute else 3):
            cp += ring("all_gather", 2 * plan.B * T * width, plan.cp, plan.tp * plan.cp, cluster)
    return tp, cp, ep


def second_rows(model, cluster, plan, batch):
    """{name: (7,)}: "right", and what comes out of mistakes."""
    m = model.shape
    M = batch // (plan.dp * plan.B)
    compute = step_flops(model, batch, T, plan.recompute) / (
        plan.W * cluster.peak * cluster.efficiency)
    tp, cp, ep = (M * t / plan.pp for t in per_layer(model, cluster, plan))
    busy = compute + tp + cp + ep
    tick = busy / M / 3
    times = play([schedule(plan, M, i) for i in range(plan.pp)], needs, {"F": tick, "B": 2 * tick})
    bubble = max(end for _, end in times.values()) - busy
    inputs = 2 * plan.B * T / plan.cp / plan.tp * m.C
    hop = ring("send", inputs, plan.pp, 2 * plan.tp * plan.cp, cluster)
    dense, routed = largest_stage(model, plan)
    calls = max(1, round(m.L / plan.pp))

    def shared(kind, size, span=plan.W):
        groups = ((dense, plan.dp * plan.cp), (routed, plan.dp * plan.cp // plan.ep))
        return sum(ring(kind, size * n / calls, ranks, span, cluster)
                   for _ in range(calls) for n, ranks in groups if n)

    gradients, weights = shared("reduce_scatter", 4), shared("all_gather", 2)
    dp = {0: shared("all_reduce", 4), 1: gradients + weights, 2: M * gradients + weights,
          3: M * (gradients + 2 * weights)}[plan.zero]
    right = {"compute": compute, "tp": tp, "cp": cp, "ep": ep, "bubble": bubble,
             "pp": 2 * M * plan.v * hop, "dp": dp}

    def but(**changes):
        return np.array([(right | changes)[part] for part in PARTS])

    slow = M / plan.pp * m.L * (6 if plan.recompute else 4) * ring(
        "all_reduce", inputs * plan.tp, plan.tp, 1, cluster)
    return {
        "right": but(),
        "bubble_of_step": but(bubble=(plan.pp - 1) / (plan.v * M + plan.pp - 1) * busy),
        "bubble_of_compute": but(bubble=bubble * compute / busy),
        "bubble_of_sends": but(bubble=bubble * (busy + 2 * M * plan.v * hop) / busy),
        "bubble_in_one_piece": but(bubble=plan.v * bubble),
        "dp_every_time": but(dp=M * dp if plan.zero < 2 else dp),
        "dp_once": but(dp={2: gradients + weights, 3: gradients + 2 * weights}.get(plan.zero, dp)),
        "sums_not_again": but(tp=tp * (2 / 3 if plan.recompute else 1)),
        "tp_always_inside": but(tp=slow),
        "one_message_a_step": but(pp=plan.v * 2 * hop),
        "pieces_send_no_more": but(pp=2 * M * hop),
        "one_rank_computes": but(compute=compute * plan.W)}


SECONDS_WHY = {
    "bubble_of_step": "(pp - 1) / (M + pp - 1) is the bubble's share of the whole step; of the "
                      "work it is (pp - 1) / M",
    "bubble_of_compute": "a stage that waits, waits through its neighbours' messages, too",
    "bubble_of_sends": "the sends between stages are no part of what the bubble is a share of",
    "bubble_in_one_piece": "v pieces make the bubble v times shorter",
    "dp_every_time": "ZeRO 0 and 1 add gradients up at home, and send them once a step",
    "dp_once": "from ZeRO 2 on gradients leave, and with 3 weights come, in each micro-batch",
    "sums_not_again": "layers that are recomputed add up forward's parts a second time: 6, not 4",
    "tp_always_inside": "tp ranks that do not fit into a machine send across: span is tp",
    "one_message_a_step": "every micro-batch goes from stage to stage",
    "pieces_send_no_more": "each of v pieces sends its own messages",
    "one_rank_computes": "W ranks share the arithmetic"}
SECOND_CASES = [(DENSE, SMALL, TrainingPlan(2, tp=2, pp=2, cp=2), 16),
                (DENSE, SMALL, TrainingPlan(4, tp=2, pp=2, zero=3), 24),
                (DENSE, SMALL, TrainingPlan(8, pp=2, zero=2, v=2, recompute=True), 32),
                (DENSE, replace(SMALL, node=2), TrainingPlan(4, tp=4, zero=0), 12),
                (ROUTED, SMALL, TrainingPlan(4, tp=2, pp=2, ep=4, B=2), 40),
                (LATENT, SMALL, TrainingPlan(2, tp=2, cp=4, ep=2, zero=2), 6)]


@pytest.mark.parametrize("model, cluster, plan, batch", SECOND_CASES,
                         ids=[words(c[2]) for c in SECOND_CASES])
def test_plan_seconds(subject, agree, model, cluster, plan, batch):
    what = f"plan_seconds of {words(plan)}, batch {batch}"
    got = vector(subject.plan_seconds(give(subject, model), give(subject, cluster),
                                      give(subject, plan), T, batch), PARTS, what)
    rows = second_rows(model, cluster, plan, batch)
    want = rows.pop("right")
    agree(got, want, "float64", what, lambda at: PARTS[at[0]],
          mistakes={name: (SECONDS_WHY[name], row) for name, row in rows.items()
                    if not np.allclose(row, want)})


def test_plan_seconds__unseen(unseen, rng):
    for model in (DENSE, ROUTED):
        plan, batch = drawn(rng)
        unseen("plan_seconds", lambda side, model=model: give(side, model),
               lambda side: give(side, SMALL), lambda side, plan=plan: give(side, plan), T, batch,
               shown=f"{words(plan)}, batch {batch}")


# ---- the search


@functools.cache
def costs(model, cluster, batch):
    """{plan: (seconds, bytes, bytes of stage 0)} of all plans without faults, by the oracles above.
    Whatever the cluster's memory."""
    rows = {}
    for plan in every_plan(model, cluster):
        if not plan_faults(model, cluster, plan, T, batch):
            right = second_rows(model, cluster, plan, batch)["right"]
            seconds = total_seconds(dict(zip(PARTS, right, strict=True)))
            size = byte_rows(model, plan, batch)["right"].sum(1)
            rows[plan] = seconds, size.max(), size[0]
    return rows


def check_search(subject, cluster, batch, count):
    words_of = f"best_plans on {cluster.W} ranks of {cluster.memory / 1e3:g} kB, batch {batch}"
    rows = costs(DENSE, replace(cluster, memory=1), batch)
    fits = {plan: row for plan, row in rows.items() if row[1] <= cluster.memory}
    got = subject.best_plans(give(subject, DENSE), give(subject, cluster), T, batch, count)
    assert isinstance(got, (list, tuple)), because("no_list", f"{words_of}: got {got!r:.60}",
                                          "expected a list, empty where nothing fits")
    plans = [TrainingPlan(*(getattr(plan, name) for name in vars(next(iter(rows))))) for _, plan in
             got]
    for plan in plans:
        assert plan in rows, because("illegal", f"{words_of}: {words(plan)} cannot run",
                                     "plan_faults has a sentence for it")
        _, size, first = rows[plan]
        name, why = (("first_stage_fits", "another stage than the first is fuller: rank_bytes "
                      "looks at all") if first <= cluster.memory else
                     ("too_large", "drop the plans of more bytes than a rank has"))
        assert plan in fits, because(name, f"{words_of}: {words(plan)} needs {size / 1e3:.0f} kB",
                                     why)
    assert len(plans) == min(count, len(fits)), because(
        "too_few", f"{words_of}: got {len(plans)} plans, {len(fits)} fit and {count} were to come",
        "drop what does not fit before the fastest are taken")
    times = [rows[plan][0] for plan in plans]
    for plan, (seconds, _), want in zip(plans, got, times, strict=True):
        name, why = (("no_overlap", "total_seconds adds the parts up, and hides what dp sends")
                     if seconds > want else ("other_seconds", "it is total_seconds of its parts"))
        assert math.isclose(seconds, want, rel_tol=1e-9), because(
            name, f"{words_of}: {words(plan)} takes {seconds:.6g} s, expected {want:.6g}", why)
    best = sorted((seconds, size) for seconds, size, _ in fits.values())[:count]
    assert np.allclose(times, [seconds for seconds, _ in best], rtol=1e-9), because(
        "not_the_fastest", f"{words_of}: seconds are {np.round(times, 6)}, expected "
        f"{np.round([seconds for seconds, _ in best], 6)}", "the fastest come first")
    for one, two in itertools.combinations(plans, 2):
        if replace(one, zero=two.zero) == two and rows[one][0] > rows[two][0] * (1 - 1e-9):
            assert rows[one][1] <= rows[two][1], because(
                "ties_by_chance", f"{words_of}: {words(one)} comes before zero {two.zero}",
                "of equally fast plans that of fewer bytes comes first")


@pytest.mark.parametrize("memory, batch, count", [(3e5, 16, 9), (1.1e5, 16, 5), (8.5e4, 16, 40),
                                                  (1e3, 16, 3)])
def test_best_plans(subject, memory, batch, count):
    check_search(subject, replace(SMALL, W=8, memory=memory), batch, count)


def test_best_plans__unseen(subject, rng):
    check_search(subject, replace(SMALL, W=8, memory=float(rng.integers(90_000, 200_000)),
                                  across=float(rng.integers(2e7, 3e8))), 16, 12)


# ---- serving


def answered(pair, prefill, decode):
    return min(pair[0] * prefill, pair[1] * decode)


def check_split(subject, total, prefill, decode):
    pairs = [(x, y) for x in range(1, total) for y in range(1, total - x + 1)]
    most = max(answered(pair, prefill, decode) for pair in pairs)
    want = min((pair for pair in pairs if answered(pair, prefill, decode) == most), key=sum)
    what = f"split_machines({total}, {prefill:g}, {decode:g})"
    with raises("no_decode_machine", ZeroDivisionError, "at least one of each"):
        got = subject.split_machines(total, prefill, decode)
    assert isinstance(got, (tuple, list)) and len(got) == 2, mistake(
        "no_pair", f"{what}: got {got!r:.40}, expected a pair")
    x, y = got
    assert min(x, y) >= 1, because("no_decode_machine", f"{what}: got {x} and {y}",
                                   "a request needs both: at least one machine of each")
    assert x + y <= total, because("too_many", f"{what}: got {x} and {y}",
                                   f"that is more than {total} machines")
    rate = answered((x, y), prefill, decode)
    name, why = (("turned_round", "the slower of the two kinds needs more machines")
                 if x * decode == y * prefill or (y, x) == want else
                 ("rounded", "rounding a share leaves one side waiting: try its neighbours"))
    assert rate == most, because(
        name, f"{what}: {x} and {y} machines answer {rate:g} a second, {want[0]} and {want[1]} "
        f"answer {most:g}", why)
    assert x + y == sum(want), because("idle_machines", f"{what}: got {x} and {y}",
                                       f"{want[0]} and {want[1]} answer as many")


def test_split_machines(subject):
    for case in ((7, 80, 20), (8, 80, 20), (3, 1, 1), (2, 5, 1), (9, 10, 30), (12, 3, 7)):
        check_split(subject, *case)


def test_split_machines__unseen(subject, rng):
    for _ in range(5):
        total, prefill, decode = rng.integers((2, 1, 1), (30, 60, 60)).tolist()
        check_split(subject, total, prefill, decode)


# ---- given, not exercises


def test_counted_parameters_are_the_published():
    """DeepSeek-V3: 671B, of which a token meets 36.6B, the head's 0.9B included (its model card,
    README_WEIGHTS.md); Mixtral: 46.7B (its announcement)."""
    one = TrainingPlan(1)
    whole = {name: sum(stage_parameters(model, one, 0)) for name, model in ARCHITECTURES.items()}
    assert round(whole["DeepSeek-V3"] / 1e9) == 671
    assert round(whole["Mixtral-8x7B"] / 1e9, 1) == 46.7
    for name in ("8B", "70B", "405B"):
        assert whole[name] == sum(count_parameters(ARCHITECTURES[name].shape).values())
    model = ARCHITECTURES["DeepSeek-V3"]
    dense, experts = stage_parameters(model, one, 0)
    m = model.shape
    assert round((dense + experts * 8 / 256 - m.V * m.C) / 1e9, 1) == 36.6


@pytest.mark.parametrize("model", [DENSE, ROUTED, LATENT], ids=["dense", "routed", "latent"])
def test_stages_have_every_tensor_once(model):
    for plan in (TrainingPlan(4, tp=2, pp=3, ep=2), TrainingPlan(2, tp=4, pp=4), TrainingPlan(1)):
        for i in range(plan.pp):
            own = pieces(model, plan, (0, 0, 0, i))
            experts = sum(n for (_, name, _), n in own.items() if name[:1] == ("expert",))
            assert stage_parameters(model, plan, i) == pytest.approx(
                (sum(own.values()) - experts, experts))
        layers = [j for i in range(plan.pp) for j in stage_layers(model, plan.pp, i)]
        assert layers == list(range(model.shape.L))


def test_the_fullest_stage_is_among_those_looked_at():
    for plan in (TrainingPlan(2, tp=2, pp=4), TrainingPlan(2, tp=2, pp=8), TrainingPlan(1, pp=5)):
        every = [sum(plan_bytes(ROUTED, plan, T, 16, i).values()) for i in range(plan.pp)]
        assert rank_bytes(ROUTED, plan, T, 16) == max(every)
        assert 0 in different_stages(ROUTED, plan.pp)


def test_kept_micro_batches_are_those_of_the_schedules():
    for pp, v, M in itertools.product((2, 3, 4), (1, 2, 3), (6, 12)):
        if v == 1 or M % pp == 0:
            plan = TrainingPlan(1, pp=pp, v=v)
            for i in range(pp):
                assert kept_micro_batches(plan, M, i) == peak_kept(schedule(plan, M, i)) / v


def test_flops_and_numbers_are_those_of_o04():
    for model in (DENSE, ARCHITECTURES["8B"]):
        for recompute in (False, True):
            parts = training_flops(model.shape, 3, 40, recompute)
            want = sum(parts.values()) - parts["attention"] / 2
            assert step_flops(model, 3, 40, recompute) == pytest.approx(want)
    with_all = replace(DENSE, dropped=())
    assert layer_numbers(with_all, 10, True) - layer_numbers(DENSE, 10, True) == 10 * (2 * 24 + 40)


def test_the_published_runs_of_llama_3():
    """TFLOP/s of a GPU in Table 4 of the report: one constant was chosen, three came."""
    model = ARCHITECTURES["405B"]
    for W, dp, cp, tokens, batch, published in (
            (8192, 64, 1, 8192, 2048, 430), (16384, 128, 1, 8192, 2048, 400),
            (16384, 8, 16, 131072, 128, 380)):
        plan = TrainingPlan(dp, 8, 16, cp, v=8)
        assert not plan_faults(model, Cluster(W), plan, tokens, batch)
        seconds = total_seconds(plan_seconds(model, Cluster(W), plan, tokens, batch))
        rate = step_flops(model, batch, tokens) / W / seconds / 1e12
        assert abs(rate / published - 1) < 0.08, (W, rate)


def test_serving_plans_fit_and_keep_to_the_time():
    m = LLAMAS["Llama-3.1-70B"]
    plans = serving_plans(m, Cluster(8), 2048, 256, 0.03)
    assert [plan.tp for plan in plans] == [2, 4, 8]             # 140 GB do not fit one
    assert all(plan.tpot <= 0.03 for plan in plans)


def test_bad_input_is_one_clear_error():
    plan = TrainingPlan(4, tp=2, pp=2)
    for change, part in (({"dp": 3}, "is 12 ranks, the cluster has 16"), ({"tp": 16}, "does not "
                         "divide G = 4: KV heads would be kept twice"), ({"pp": 9}, "for 6 layers"),
                         ({"B": 5}, "does not divide by dp 4 · B 5"), ({"ep": 3}, "experts do not"),
                         ({"zero": 4}, "expected 0 to 3"), ({"cp": 8}, "expected an even number"),
                         ({"v": 2, "pp": 1}, "needs pp above 1"), ({"B": 0}, "a number below 1")):
        sentences = plan_faults(ROUTED, SMALL, replace(plan, **change), T, 16)
        assert any(part in sentence for sentence in sentences), (change, sentences)
    assert plan_faults(DENSE, SMALL, plan, T, 16) == []
    with pytest.raises(ValueError, match="alpha is -1e-06, expected 0 or more"):
        Cluster(8, alpha=-1e-6)
    with pytest.raises(KeyError):
        link_seconds("broadcast", 1, 2, 2, SMALL)


def test_nothing_fits_is_no_error():
    assert best_plans(DENSE, replace(SMALL, memory=1), T, 16, 3) == []
