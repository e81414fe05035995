"""Mocks that graders hand to the code under test."""

import pytest

from lab.judge.mocks import Watched


def less(a, b, scale=1):
    return (a - b) * scale


def test_arguments_by_name_are_noted_by_their_places():
    watched = Watched(less)
    assert watched(b=2, a=7) == 5
    assert watched(7, 2, scale=3) == 15
    assert watched.calls == [[7, 2], [7, 2, 3]]
    with pytest.raises(TypeError, match="unexpected keyword argument 'c'"):
        watched(7, 2, c=2)


def test_without_a_function_they_are_in_the_order_given():
    watched = Watched(answer=4)
    assert watched(1, k=2, v=3) == 4
    assert watched.calls == [[1, 2, 3]]
