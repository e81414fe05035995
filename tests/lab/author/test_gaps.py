"""Which kinds of hard inputs apply to an exercise, and what its graders leave out."""

import pytest

from lab import course
from lab.author import gaps


def required(lesson, exercise, *takes):
    return set(gaps.required(course.find(lesson).exercise(exercise), set(takes)))


def test_a_bound_is_asked_for_where_the_reference_compares_by_order():
    assert "bound" in required("r01", "bound")
    assert "bound" not in required("r01", "count_add") | required("r01", "attainable")
    assert "bound" in required("s04", "Scheduler.admit_waiting")
    assert "bound" not in required("s04", "Scheduler.preempt")
    assert "bound" in required("k01", "add_cuda", "kernels")


@pytest.mark.parametrize("text, compares", [
    ("float * p = reinterpret_cast < float * > ( x ) ; * p = 1 ;", False),
    ("x = y << 2 ; z = a -> b ;", False), ("if ( i < n ) z = 1 ;", True),
    ("while ( f < int > ( x ) >= y ) ;", True)])
def test_order_in_cuda(text, compares):
    assert gaps.compares_by_order(text, "cuda") == compares


def test_large_sizes_are_asked_for_where_integers_have_a_width():
    far = {"far", "farther"}
    assert far <= required("k01", "add_cuda", "kernels", "numbers")
    assert not far & required("r01", "count_add", "numbers")
    assert far <= required("s06", "page_hash", "numbers")           # np.int64
    assert not far & required("s06", "page_hash")


def test_a_kind_is_used_or_open(monkeypatch, tmp_path):
    monkeypatch.setattr(course.Lesson, "mutants", tmp_path / "r01_roofline.mutants.toml")
    lesson = course.find("r01_roofline")
    rows = {row["exercise"]: row for row in gaps.examine(lesson)}
    left_open = rows["attainable"]["open"]
    assert left_open and not rows["predict_intensity_of_matmul"]["open"]
    assert not set(left_open) & set(rows["attainable"]["uses"])
    lesson.mutants.write_text(f'[[mutant]]\nexercise = "attainable"\nshows = "a"\nbody = "return 0"'
                              f'\nkind = "{left_open[0]}"\n')
    rows = {row["exercise"]: row for row in gaps.examine(lesson)}
    assert left_open[0] in rows["attainable"]["uses"]
    assert rows["attainable"]["open"] == left_open[1:]
    assert f"OPEN: {', '.join(left_open[1:])}" in "\n".join(gaps.text(rows.values()))
