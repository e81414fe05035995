"""What a message says of wrong numbers that no known mistake explains."""

import numpy as np
import pytest

from lab.judge.compare import agree

ROWS = np.random.default_rng(0).normal(size=(5, 7))


def last(a, n=2):
    a = a.copy()
    a[:, -n:] += np.random.default_rng(1).normal(size=(len(a), n)) + 3
    return a


def nan(a):
    a = a.copy()
    a[1, 2:5] = np.nan
    return a


@pytest.mark.parametrize(("got", "want", "says"), [
    (-ROWS, ROWS, "Each is the right number with the wrong sign."),
    (ROWS / 8, ROWS, "Each is 1/8 of the right number."),
    (ROWS * 4, ROWS, "Each is 4 times the right number."),
    (ROWS * 0.3535534, ROWS, "Each is 0.353553 times the right number."),
    (12, 48, "That is 1/4 of the right number."),
    (ROWS + 0.5, ROWS, "Each is 0.5 more than the right number."),
    (ROWS.T.reshape(5, 7), ROWS, "transposed: row and column are exchanged."),
    (ROWS[:, ::-1], ROWS, "in reverse order along axis 1."),
    (np.roll(ROWS, 1, 0), ROWS, "shifted by 1 along axis 0, in a circle."),
    (np.random.default_rng(2).permutation(ROWS.ravel()).reshape(5, 7), ROWS, "in other places."),
    (nan(ROWS), ROWS, "All the wrong ones are NaN."),
    (np.where(np.arange(7) > 4, 7.0, ROWS), ROWS, "All the wrong ones are 7."),
    (last(ROWS), ROWS, "Only the last 2 of 7 along axis 1 are wrong."),
    ([1, 2, 3, 4, 6], [1, 2, 3, 4, 5], "Only the last of 5 of them is wrong."),
])
def test_what_wrong_numbers_have_in_common_is_said(got, want, says):
    with pytest.raises(AssertionError) as caught:
        agree(got, want, 1e-5, "rows")
    assert str(caught.value).endswith(says)


@pytest.mark.parametrize(("got", "want"), [
    (3, 2), (1, 0), (0, 1), (np.nan, 1), ([0, 0], [1, 1]), (5000, 1),
    (ROWS + np.random.default_rng(3).normal(size=ROWS.shape), ROWS)])
def test_chance_is_no_pattern(got, want):
    with pytest.raises(AssertionError) as caught:
        agree(got, want, 1e-5, "rows")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("odd", [
    [True] * 6, [1j, 2j, 3j, 4j, 5j, 6j], [1e308] * 6, [5e-324, 1, -1e308, np.inf, np.nan, 0],
    np.zeros(6, np.uint8), np.full(6, 2**63, np.uint64)])
@pytest.mark.parametrize("want", [
    np.arange(6), np.arange(6.0), np.array([5e-324, 2, -3, 1, 2, 3]),
    np.array([np.nan, np.inf, 1, 2, 3, 4]), np.arange(6) > 2])
def test_odd_numbers_are_told_as_wrong_ones(odd, want):
    """Never an exception of our own."""
    with pytest.raises(AssertionError, match="^numbers: "):
        agree(odd, want, 1e-5, "numbers")


def test_a_factor_of_almost_one_is_no_factor():
    with pytest.raises(AssertionError) as caught:
        agree(ROWS * 1.00001, ROWS, 1e-7, "rows")
    assert "times" not in str(caught.value)


def test_a_known_mistake_comes_first():
    with pytest.raises(AssertionError, match="comes out when it is halved") as caught:
        agree(ROWS / 2, ROWS, 1e-5, "rows", mistakes={"halved": ("it is halved", ROWS / 2)})
    assert "1/2" not in str(caught.value)


def test_a_mistake_of_nothing_but_nan_is_one_among_others():
    with pytest.raises(AssertionError, match=r"comes out \(among others\) when it overflows"):
        agree(ROWS * np.nan, ROWS, 1e-5, "rows", mistakes={
            "overflows": ("it overflows", ROWS * np.nan)})


def test_a_right_number_that_is_lost_in_a_large_one_explains_nothing():
    """What was there before, and the sum added to it: not "nothing was written"."""
    before = np.full(4, 7e7)
    with pytest.raises(AssertionError) as caught:
        agree(before + 5435, np.full(4, 5435.0), 1e-5, "sums", mistakes={
            "stops": ("nothing is passed on", before)})
    assert "nothing is passed on" not in str(caught.value)
