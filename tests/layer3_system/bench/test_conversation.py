"""The recorded conversation with OpenAI's client comes out again."""

import re

import pytest

from layer3_system.bench.conversation import RECORD, joined, serving, stable, talk, write

NUMBER = re.compile(r"-?\d+\.\d+")


def test_the_record_comes_out_again():
    """Text for text.
    The likeliest token leads by 0.1 of a logit or more, 10,000 times the difference that machines'
    rounding makes.
    Log probabilities may differ a little."""
    with serving() as address:
        found = write(talk(address))
    recorded = RECORD.read_text("utf-8")
    assert NUMBER.sub("…", found) == NUMBER.sub("…", recorded)
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (found, recorded)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.01)


def test_what_is_left_out():
    assert stable({"id": "cmpl-1", "created": 5, "choices": [{"index": 0, "x": 0.12349}]}) == {
        "choices": [{"index": 0, "x": 0.123}]}
    assert stable({"id": "small", "object": "model", "created": 5}) == {
        "id": "small", "object": "model"}


def test_a_stream_is_joined_whatever_its_events():
    events = [{"choices": [{"text": "a ", "finish_reason": None}], "usage": None},
              {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]},
              {"choices": [], "usage": {"total_tokens": 2}}]
    assert joined(events) == {"text": "a b", "finish_reason": "stop", "usage": {"total_tokens": 2}}
