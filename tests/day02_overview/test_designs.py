"""What is given of o06: shapes, slices, the limits of a plan, and pictures."""

from dataclasses import replace

import numpy as np
import pytest

from day01_roofline import LLAMAS, LlamaShape, count_parameters, kv_bytes_per_token
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
    pictures,
    rank_shape,
    recipes,
    seconds,
    serving_bytes,
    shape_faults,
    shape_for,
    step_seconds,
    stored_parameters,
    training_flops,
    violations,
)
from tests.day02_overview.test_o06_design_an_llm import (
    BUDGETS,
    RAGGED,
    SMALL,
    WEEK,
    faults_of,
    total,
)


def test_training_alone_has_the_split_of_o05():
    for law in (HOFFMANN, REFIT):
        assert np.allclose(lifetime_split(law, 1e22, 0), best_split(law, 1e22), rtol=1e-9)


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
        f"the time to train is {days:.2f} days: {days / 7 - 1:.1%} more than the limit of 7.00"]
    assert "memory to serve" in violations(replace(WEEK, serving_memory=9e9), plan)[0]
    assert "memory of a rank" in violations(replace(WEEK, memory=3e9), plan)[0]
    assert "2 experts, expected 1 to 1" in violations(WEEK, replace(plan, experts=2))[0]
    assert "is not in recipes" in violations(WEEK, replace(plan, recipe=Recipe(3, 3, True, 1)))[0]
    assert "vocabulary" in violations(replace(WEEK, V=1000), plan)[0]


def test_violations_are_those_of_the_grader():
    m = shape_for(6e9, WEEK.V, 8)
    for budget in (WEEK, BUDGETS["experts"], replace(WEEK, V=1000),
                   replace(WEEK, memory=3e9, serving_memory=9e9)):
        for recipe in recipes(budget, m):
            plan = Design(m, 2, recipe, 2 ** 22 * 40_000)
            assert violations(budget, plan) == [fault for _, fault in faults_of(budget, plan)]


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
                        (lambda: replace(SMALL, T=100), "is not a multiple of T = 100"),
                        (lambda: design(replace(WEEK, memory=1e9)), "no plan fits")):
        with pytest.raises(ValueError, match=words):
            call()


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_a_picture_crosses_n_at_the_depth_of_llama():
    (axes,) = pictures.depth_line(replace(LLAMAS["Llama-3.1-8B"], L=1), 8.03e9).axes
    assert "L = 32.0" in words(axes)


def test_a_picture_numbers_the_slices():
    whole, sliced = pictures.gpu_grid(16, (1, 8)).axes
    assert words(whole) == ["1"] * 16
    assert sorted(words(sliced)) == sorted("12345678" * 2)


def test_bars_end_with_their_sums():
    memory, times = pictures.plan_bars({
        "memory": ("GB", {"one": {"all": 3.0}, "two": {"all": 4.0}}, 5.0),
        "time": ("seconds", {"one": {"a": 1.0, "b": 2.5}, "two": {"a": 0.0, "b": 1.0}}, None)}).axes
    assert words(memory) == ["3.0", "4.0"] and words(times) == ["3.5", "1.0"]


# ---- what o06 states of its budgets

LESSON_WEEK = Budget(W=64, days=7, batch=2**22, context=16 * 8192, serving_memory=0.9 * 24e9)
FLOPS = 64 * 7 * 86400 * 0.40 * 989e12
# The plans that the lesson's search prints: the week's, and the one of 256 GPUs with experts.
DENSE = LlamaShape("", L=29, C=4096, H=32, G=4, D=128, F=11264, V=128256, tied=False)
ROUTED = LlamaShape("", L=34, C=4096, H=32, G=4, D=128, F=14080, V=128256, tied=False)


def test_a_trillion_served_tokens_take_two_thirds_of_the_parameters():
    alone, served = (lifetime_split(HOFFMANN, FLOPS, tokens) for tokens in (0, 1e12))
    assert round(alone[0] / 1e9, 1) == 9.0 and served[1] > alone[1]
    assert served[0] / alone[0] == pytest.approx(1 / 3, abs=0.02)
    growth = best_split(HOFFMANN, 100 * FLOPS)[0] / best_split(HOFFMANN, FLOPS)[0]
    assert round(growth, 2) == 8.33


def test_half_the_best_n_has_a_loss_0_4_percent_higher():
    N, tokens = best_split(HOFFMANN, FLOPS)
    assert round(HOFFMANN.loss(N / 2, 2 * tokens) / HOFFMANN.loss(N, tokens) - 1, 3) == 0.004


def test_the_two_laws_differ_by_a_quarter_in_n():
    first, second = (best_split(law, FLOPS)[0] for law in (HOFFMANN, REFIT))
    assert second / first == pytest.approx(1.25, abs=0.01)


def test_half_the_kv_heads_take_half_the_cache():
    """And the shape of 8 billion with four queries a head is Llama-3.1-8B but for F."""
    wide, narrow = (shape_for(8e9, 128256, queries) for queries in (4, 8))
    assert replace(wide, name="Llama-3.1-8B", F=14336) == LLAMAS["Llama-3.1-8B"]
    a_layer = [kv_bytes_per_token(m, 2) / m.L for m in (wide, narrow)]
    assert a_layer[0] == 2 * a_layer[1]


def test_what_parts_the_plan_from_the_law_is_attention_and_communication():
    """Less what 6 · N · tokens counts too much, the embedding table."""
    parts = step_seconds(LESSON_WEEK, DENSE, 1, Recipe(1, 1, False, 1))
    rate = LESSON_WEEK.W * LESSON_WEEK.mfu * LESSON_WEEK.peak
    gap = sum(parts.values()) - 6 * total(DENSE) * LESSON_WEEK.batch / rate
    attention = training_flops(DENSE, LESSON_WEEK.batch // 8192, 8192)["attention"] / rate
    table = 6 * count_parameters(DENSE)["embedding"] * LESSON_WEEK.batch / rate
    assert attention > parts["dp"] + parts["tp"] > 0
    assert gap == pytest.approx(attention + parts["dp"] + parts["tp"] - table, rel=0.01)


def test_the_card_that_serves_allows_only_sizes_left_of_the_floor():
    N, _ = best_split(HOFFMANN, FLOPS)
    for queries in (4, 8):
        at_floor = serving_bytes(LESSON_WEEK, shape_for(N, 128256, queries), 1)
        assert at_floor > LESSON_WEEK.serving_memory
    assert serving_bytes(LESSON_WEEK, DENSE, 1) < LESSON_WEEK.serving_memory and total(DENSE) < N


def test_where_experts_win_and_where_they_lose():
    """Eight experts: fewer FLOPs, fewer bytes at batch 1 and 2, more than twice the weights."""
    active, stored = total(ROUTED), stored_parameters(ROUTED, 8)
    rival = effective_parameters(active, 8)
    assert active < rival < stored / 2

    def read(batch):
        hit = 8 * (1 - (7 / 8) ** batch)
        return active + ROUTED.L // 2 * (hit - 1) * 3 * ROUTED.C * ROUTED.F

    assert [read(batch) < rival for batch in (1, 2, 3, 4, 8)] == [True, True, False, False, False]
    assert (active * stored) ** 0.5 > 1.25 * rival      # the rule of thumb is more optimistic
