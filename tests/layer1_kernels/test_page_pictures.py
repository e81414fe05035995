"""The pictures of pages say what is computed."""

from collections import Counter

import pytest
from matplotlib.colors import to_hex

from lab.plots import BLUE, RED
from layer1_kernels import pictures
from layer1_kernels.pictures.pages import PALE


def colours(axes):
    return Counter(to_hex(patch.get_facecolor()) for patch in axes.patches)


@pytest.mark.parametrize("token, entry, place, slot", [(37, 2, 5, 101), (0, 0, 0, 80),
                                                       (31, 1, 15, 31)])
def test_a_token_is_looked_up(token, entry, place, slot):
    axes, = pictures.page_lookup([5, 1, 6], 40, token, 16).axes
    words = [text.get_text() for text in axes.texts]
    assert f"{token} // 16 = {entry}" in words and f"{token} % 16 = {place}" in words
    assert any(word.endswith(f"= {slot}") for word in words)
    assert colours(axes)[RED] == 3              # the token, its entry, its place


def test_splits_are_whole_tiles_and_meet_at_what_a_token_sees():
    first, second = pictures.attention_programs([0, 1, 4], [40, 21], 4, 2, 16).axes
    assert colours(first) == {BLUE: 32, RED: 8}
    assert colours(second) == {BLUE: 3 * 16, RED: 3 + 4 + 5, PALE: 2 + 1}
    assert [label.get_text() for label in second.get_yticklabels()] == [
        "tile 1, token 18", "tile 1, token 19", "tile 1, token 20"]


def test_a_page_is_drawn_slot_by_slot():
    axes, = pictures.page_map("two", 4, 8, {"a": [2, 0], "b": [3]}, {"a": 11, "b": 8}).axes
    assert colours(axes) == {BLUE: 11, RED: 8, PALE: 4 * 8 - 19}
