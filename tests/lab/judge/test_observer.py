"""Kinds of hard inputs are made and recognised."""

import numpy as np
import pytest
import torch

from lab.judge import adversarial
from lab.judge.adversarial import INPUTS, VALUES, around, views
from lab.judge.observer import Observer

RNG = np.random.default_rng(3)


def seen(*values, launch=False, times=1):
    eye = Observer()
    for _ in range(times):
        eye("f", list(values), launch)
    return eye


@pytest.mark.parametrize("kind", sorted(set(VALUES) & set(INPUTS)))
def test_a_kind_of_values_is_recognised_and_no_other_array_is(kind):
    hard = VALUES[kind](RNG, (4, 33))
    assert hard.dtype == np.float32 and hard.shape == (4, 33)
    assert kind in seen(hard).uses and kind in seen(hard, launch=True).uses
    assert kind in seen(torch.from_numpy(hard)).uses
    assert kind not in seen(np.array([[1.0, 2.0], [2.0, 5.0]], np.float32)).uses


def test_sums_that_are_exact_in_float32_alone():
    x = adversarial.exact_sums(RNG, (1, 5000))
    assert x.sum(dtype=np.float32) == x.astype(np.float64).sum() != x.sum(dtype=np.float16)


def test_an_output_of_a_launch_is_no_input():
    outputs = np.full((2, 40), 7.0, np.float32)
    assert "equal" not in seen(outputs, launch=True).uses


@pytest.mark.parametrize("values, kind", [
    ([0], "zero"), ([[]], "zero"), ([1], "one"), ([2**15], "far"), ([2**31], "farther"),
    ([np.zeros((17, 3))], "edges"), ([np.zeros((6, 4)).T], "strided")])
def test_sizes_and_layouts(values, kind):
    assert kind in seen(*values).uses and kind not in seen(5, np.ones((4, 4))).uses


def test_the_same_again_with_other_sizes():
    eye = seen(np.ones((2, 3)), times=2)
    assert "again" not in eye.uses
    eye("f", [np.ones((5, 3))], False)
    assert "again" in eye.uses


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_views_hold_the_same_numbers(make):
    x = make([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert len(views(x)) == 3
    for view in views(x).values():
        assert (view == x).all() and view.shape == x.shape
        assert view.base is not None if isinstance(view, np.ndarray) else view._is_view()


def test_sizes_around_a_tile():
    assert around(16) == [1, 15, 16, 17, 33, 43] and around(1) == [1, 2, 3]
