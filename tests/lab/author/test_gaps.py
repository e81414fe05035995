"""Which kinds of hard inputs apply to an exercise, and what its graders leave out."""

import pytest

from lab import course
from lab.author import gaps
from lab.course import CourseError


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


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    one = course.find("r01_roofline")
    file = tmp_path / "r01_roofline.gaps.toml"
    monkeypatch.setattr(course.Lesson, "gaps", file)
    file.write_text("")
    return one, file


def test_a_kind_is_used_or_excused_or_open(lesson):
    one, file = lesson
    before = {row["exercise"]: row for row in gaps.examine(one)}
    left_open = before["attainable"]["open"]
    assert left_open and not before["predict_intensity_of_matmul"]["open"]
    file.write_text(f"[[gap]]\nexercises = ['*']\nkinds = {left_open}\nwhy = 'for a test'\n"
                    "[[gap]]\nexercises = ['attainable']\nkinds = ['ignored']\nwhy = 'wrong'\n")
    after = {row["exercise"]: row for row in gaps.examine(one)}
    assert after["attainable"]["open"] == [] and after["attainable"]["stale"] == ["ignored"]
    lines = "\n".join(gaps.text(after.values()))
    assert "STALE, used after all: ignored" in lines and "for a test" in lines


@pytest.mark.parametrize("row", ["exercises = ['nobody']\nkinds = ['one']",
                                 "exercises = ['count_add']\nkinds = ['onne']"])
def test_an_excuse_for_nothing_is_refused(lesson, row):
    one, file = lesson
    file.write_text(f"[[gap]]\n{row}\nwhy = 'w'\n")
    with pytest.raises(CourseError, match="expected an exercise of r01_roofline and a kind"):
        gaps.excuses(one)
