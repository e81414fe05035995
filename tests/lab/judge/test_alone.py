"""An exercise that uses others is judged by itself."""

import pytest

from lab import course
from lab.judge import alone, check
from lab.judge.candidate import Candidate
from lab.judge.verdict import Verdict


def candidate(lesson, language, find, replace):
    """The course's own answers with one change, as its author's file."""
    text = lesson.sources[language]
    assert text.count(find) == 1
    sources = lesson.sources | {language: text.replace(find, replace)}
    return Candidate(sources, dict.fromkeys(sources, "mine"))


def graded(lesson, answer, names=None):
    return {v.name: v for v in check.grade(lesson, answer, names)}


def test_a_wrong_helper_fails_alone():
    """s06's names of pages are used by its other exercises."""
    lesson = course.find("s06_prefix_cache")
    rows = graded(lesson, candidate(lesson, "python", "np.array(tokens, np.int64)",
                                    "np.array(tokens[1:], np.int64)"))
    assert rows["page_hash"].verdict == "fail" and rows["page_hash"].points == 0
    assert rows["longest_hit"].verdict == rows["note_full_pages"].verdict == "pass"


def test_what_passed_with_help_says_so():
    lesson = course.find("s07_engine")
    wrong = candidate(lesson, "python", "row = end - 1 if every else b", "row = len(pairs)")
    rows = graded(lesson, wrong, ["to_draw", "run_step"])
    assert rows["to_draw"].verdict == "fail"
    assert (rows["run_step"].verdict, rows["run_step"].points) == ("pass", 2)
    assert rows["run_step"].message == "Judged with the course's own to_draw."


def test_what_is_wrong_itself_stays_wrong_and_keeps_its_own_lines():
    """The helper is a stub, and the exercise is wrong, too: its own mistake is told."""
    lesson = course.find("o04_training_math")
    text = lesson.sources["python"]
    stub = lesson.stubs["python"]
    from lab.stub import extract, splice
    # nothing of the course's but this exercise
    wrong = splice(stub, extract(text, "step_bytes", "python"), "python").text
    right = graded(lesson, Candidate({"python": wrong}, {"python": "mine"}), ["step_bytes"])
    assert right["step_bytes"].verdict == "pass"
    line = next(n for n, row in enumerate(wrong.splitlines(), 1) if "def step_bytes" in row)
    wrong = wrong.replace(wrong.splitlines()[line - 1],
                          wrong.splitlines()[line - 1] + "\n    return missing_name")
    row = graded(lesson, Candidate({"python": wrong}, {"python": "mine"}), ["step_bytes"])
    message = row["step_bytes"].message
    assert f"mine, line {line + 1}: return missing_name" in message
    assert "Judged" not in message          # the same with the course's own helper


def test_the_courses_own_lines_are_not_shown_as_the_learners():
    """sent_by is still a stub, and the course's own raises for a misspelt collective."""
    lesson = course.find("o04_training_math")
    from lab.stub import extract, splice
    own = extract(lesson.sources["python"], "step_bytes", "python")
    own = own.replace("all_reduce", "allreduce")
    wrong = splice(lesson.stubs["python"], own, "python").text
    row = graded(lesson, Candidate({"python": wrong}, {"python": "mine"}), ["step_bytes"])
    message = row["step_bytes"].message
    assert row["step_bytes"].verdict == "fail" and "KeyError: 'allreduce'" in message
    shown = [line.partition(": ")[2].strip() for line in message.splitlines()
             if line.strip().startswith("mine, line ")]
    assert shown and all(line in wrong for line in shown), message
    assert "tours" not in message


def test_a_syntax_error_in_cuda_stops_its_own_kernel_alone():
    lesson = course.find("k03_reduce")
    text = lesson.sources["cuda"]
    place = text.index(";", text.index("sum_sequential_cuda("))
    answer = Candidate(lesson.sources | {"cuda": text[:place] + " +" + text[place:]},
                       dict.fromkeys(lesson.sources, "mine"))
    rows = graded(lesson, answer, ["sum_sequential_cuda", "block_sum_cuda"])
    assert rows["sum_sequential_cuda"].verdict == "fail"
    assert 'expected a ";"' in rows["sum_sequential_cuda"].message
    assert rows["block_sum_cuda"].verdict == "pass"


@pytest.mark.parametrize("shows_answers, verdict, says", [
    (True, "fail", "the second\nJudged with the course's own to_draw."),
    (False, "fail", "the first")])
def test_where_answers_are_held_back_a_second_message_is_not_told(shows_answers, verdict, says):
    """It comes from a process that holds the course's answers: the code in it could tell them."""
    lesson = course.find("s07_engine")
    wrong = candidate(lesson, "python", "row = end - 1 if every else b", "row = len(pairs)")
    run_step = lesson.exercise("run_step")
    first = Verdict("run_step", "fail", 0, 2, "the first")
    rows = {"run_step": first} | alone.again(lesson, wrong, run_step, first, set(), lambda *_: {
        "run_step": Verdict("run_step", "fail", 0, 2, "the second")}, shows_answers)
    assert (rows["run_step"].verdict, rows["run_step"].message) == (verdict, says)


@pytest.mark.parametrize("find, replace", [
    ("range(end - n, end)", "range(end - n + 1, end + 1)"),
    ("            pairs += [(other, row) for other in request.forks]", "            pass"),
    ("[output for flight in flights for output in engine.commit(flight)]",
     "[engine.commit(flight) for flight in flights]")])
def test_what_the_tests_alone_run_is_the_courses_own(find, replace):
    """The reference of s07's end_request uses no other exercise; the engine in its tests does."""
    lesson = course.find("s07_engine")
    row = graded(lesson, candidate(lesson, "python", find, replace), ["end_request"])["end_request"]
    assert row.verdict == "pass" and row.message.startswith("Judged with the course's own ")


def test_nobody_is_helped_by_an_exercise_that_neither_the_reference_nor_its_tests_use():
    lesson = course.find("s07_engine")
    for name, others in {"predict_steps": [], "run_step": ["build_step", "to_draw", "end_request"],
                         "end_request": ["build_step", "to_draw", "run_step"]}.items():
        assert [e.name for e in alone.needed(lesson, lesson.exercise(name))] == others


def test_lines_are_those_of_the_author():
    before = "a\nb\nc\nd"
    text = "a\nX\nY\nc\nd"
    assert alone.lines_of(text, before, None) == [1, None, None, 3, 4]
    assert alone.lines_of(text, before, [7, None, 9, None]) == [7, None, None, 9, None]
