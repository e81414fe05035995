"""The table of counted and derived bytes."""

import json

import pytest

from lab import course
from lab.judge.isolate import running
from layer3_system.bench import counted_bytes


@pytest.mark.parametrize("name", ["s20_collectives", "s22_tensor_parallel"])
def test_what_is_counted_is_what_was_derived(name):
    lesson = course.find(name)
    with running(lesson, lesson.sources) as subject:
        for what, ranks, counted, derived in counted_bytes.PARTS[name](subject):
            assert counted == derived > 0, (what, ranks)


def test_the_record_has_every_lesson_and_no_difference():
    record = json.loads(counted_bytes.RECORD.read_text("utf-8"))
    assert {row["lesson"] for row in record["rows"]} == set(counted_bytes.PARTS)
    assert all(row["counted"] == row["derived"] for row in record["rows"])
    assert record["differences"] == 0
