"""What `lab verify` says of mutants that show the ids of their mistakes."""

import pytest

from lab import course
from lab.author import verify
from lab.judge.verdict import Verdict

LESSON = course.find("r01_roofline")
ROWS = {
    "the right id": ("inputs_only", "return n, 2 * n * itemsize", ""),
    "another's id": ("no_itemsize", "return 3 * n * itemsize, n", "it shows exchanged, expected"),
    "an unknown id": ("no_such_id", "return n, 3 * n", "it shows no_itemsize, expected"),
    "a mistake without an id": ("inputs_only", "return n + 5, 7",
                                "it shows a mistake without an id, expected inputs_only"),
    "the right answer": ("two_flops", "return n, 3 * n * itemsize", "pass, expected fail")}


def proven(tmp_path, monkeypatch, text):
    """The rows of `lab verify` where r01's file of mutants is this text."""
    file = tmp_path / "r01_roofline.mutants.toml"
    file.write_text(text)
    monkeypatch.setattr(course.Lesson, "mutants", file)
    return verify.verify([LESSON])


def test_a_mutant_shows_the_id_that_it_names(tmp_path, monkeypatch):
    rows = proven(tmp_path, monkeypatch, "".join(
        f'[[mutant]]\nexercise = "count_add"\nshows = "{name}"\nbody = "{body}"\n'
        for name, body, _ in ROWS.values()))
    tried = [row for row in rows if row["proof"].startswith("mutant")]
    assert [row["proof"] for row in tried] == [f"mutant {name}" for name, *_ in ROWS.values()]
    for row, (_, _, problem) in zip(tried, ROWS.values(), strict=True):
        assert row["ok"] == (not problem) and row["message"].startswith(problem), row
    counts = {row["exercise"]: row["ok"] for row in rows if row["proof"] == "at least 3 mutants"}
    assert counts == {e.name: e.name == "count_add" for e in LESSON.exercises}


@pytest.mark.parametrize("row", [
    'shows = "a"\nbody = "return 0"\nfind = "n"', 'body = "return 0"', 'shows = "a"'])
def test_a_row_that_is_not_whole_is_told(tmp_path, monkeypatch, row):
    rows = proven(tmp_path, monkeypatch, f'[[mutant]]\nexercise = "count_add"\n{row}\n')
    [broken] = [row for row in rows if row["ok"] is False]
    assert broken["proof"] == "the mutants and twins can be made"
    assert "a row of count_add has" in broken["message"]


def failure(mistake, sentence, name="count_add"):
    return Verdict(name, "fail", 0, 1, f"wrong: {sentence}", mistake=mistake, sentence=sentence)


@pytest.mark.parametrize("other, same", [
    (failure("two", "it is lost"), True), (failure("one", "it is lost"), False),
    (failure("two", "it is late"), False), (failure("two", "it is lost", "bound"), False)])
def test_two_ids_of_an_exercise_have_different_sentences(other, same):
    problem = verify.shows_other("one", failure("one", "it is lost"), [other])
    assert problem == ("one and two have the same sentence: it is lost" if same else "")


def test_mistakes_without_a_sentence_are_not_compared():
    assert verify.shows_other("race", failure("race", ""), [failure("barrier", "")]) == ""
