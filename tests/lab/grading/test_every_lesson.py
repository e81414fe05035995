"""What each lesson must be so that an answer to it can be told from all others, and cut out."""

import pytest

from lab import course
from tests.lab.grading.test_extract import code, got, of

# Of lessons that are older than this rule. An answer in a file by another name is then left out.
SHARED = {"predict_bytes_ratio", "predict_launches", "predict_numbers_saved", "predict_rows",
          "predict_steps"}


def test_an_exercise_has_a_name_of_its_own():
    names = [e.name for lesson in course.lessons() for e in lesson.exercises]
    assert {name for name in names if names.count(name) > 1} == SHARED


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.id)
def test_a_whole_reference_comes_through_as_it_is(lesson):
    suffixes = course.SUFFIX
    made, notes = of(*[(f"{lesson.floor}/{lesson.id}{suffixes[k]}", text)
                       for k, text in lesson.sources.items()], lesson=lesson)
    assert made.sources == lesson.sources and not notes


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.id)
def test_a_notebook_as_handed_out_is_not_attempted(lesson):
    made, notes = of((f"{lesson.id}.ipynb", lesson.notebook.read_text()), lesson=lesson)
    assert made.sources == lesson.stubs and not notes


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.id)
def test_a_notebook_that_is_solved_gives_every_exercise(lesson):
    made, notes = of((f"{lesson.id}.ipynb", lesson.solution.read_text()), lesson=lesson)
    for e in lesson.exercises:
        assert got(made, e.name, lesson) == code(lesson.sources[e.language], e.name, e.language)
    assert not notes
