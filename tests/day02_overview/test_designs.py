"""What is given of o06: shapes, slices, the limits of a plan, and pictures."""

from dataclasses import replace

import numpy as np
import pytest

from day01_roofline import LLAMAS, count_parameters
from day02_overview import (
    HOFFMANN,
    REFIT,
    Design,
    Recipe,
    best_split,
    design,
    lifetime_split,
    micro_batches,
    pictures,
    rank_shape,
    recipes,
    seconds,
    shape_faults,
    shape_for,
    stored_parameters,
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
