"""What a landing proof and a full proof consist of, and the record of lessons proven whole."""

import json
import shutil

import pytest

from lab import course
from lab.author import proven, units, verify
from lab.course import CourseError

LESSON = course.find("k01_vector_add")


def names(planned):
    return [unit.name for unit in planned]


@pytest.fixture
def all_proven(monkeypatch):
    monkeypatch.setattr(proven, "proven", lambda lesson: True)


# ---- the landing proof


def test_a_landing_proof_has_the_house_the_main_path_and_every_quick_file(all_proven):
    planned, fresh = units.landing()
    must = [unit for unit in planned if not unit.drawn]
    assert fresh == 0
    assert {"ruff", "lab build --check", "the house's tests", "the main path",
            "solutions/layer1_kernels/k01_vector_add.ipynb"} <= set(names(must))
    quick = {file for unit in must for file in unit.command if file.startswith("tests/lab/simul")}
    assert quick and all(units.seconds_of(file) <= units.QUICK for file in quick)


def test_a_landing_proof_draws_a_lesson_of_each_floor_by_the_commit(all_proven, monkeypatch):
    draws = set()
    for sha in ("a", "b", "a"):
        monkeypatch.setattr(units, "commit", lambda sha=sha: sha)
        planned, _ = units.landing()
        lessons = [course.find(unit.name.split()[1]) for unit in planned
                   if unit.name.startswith("verify ")]
        assert [i.floor for i in lessons].count(lessons[0].floor) == 1
        assert {i.floor for i in lessons} == {floor.name for floor in course.floors()}
        draws.add(tuple(names(planned)))
    assert len(draws) == 2


def test_every_file_of_tests_can_be_drawn(all_proven):
    planned, _ = units.landing()
    words = {word for unit in planned for word in unit.command}
    assert set(units.test_files()) | set(units.HOUSE) <= words


def test_a_lesson_without_a_row_is_proven_whole_with_its_notebook(monkeypatch):
    monkeypatch.setattr(proven, "proven", lambda lesson: lesson.id != "k04_matmul_naive")
    planned, fresh = units.landing()
    whole = next(unit for unit in planned if unit.name == "verify k04_matmul_naive")
    assert fresh == 1 and not whole.drawn and "--mutants" not in whole.command
    notebook = next(unit for unit in planned if unit.name.endswith("k04_matmul_naive.ipynb"))
    assert not notebook.drawn


def test_more_lessons_than_a_landing_proof_takes_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(proven, "proven", lambda lesson: False)
    with pytest.raises(CourseError, match="lab verify r01_roofline r02_clock"):
        units.landing()


# ---- the full proof


def test_a_full_proof_has_every_file_lesson_and_notebook_once():
    planned = units.full()
    assert len(set(names(planned))) == len(planned)
    together = [word for unit in planned if not unit.alone for word in unit.command]
    for file in [*units.test_files(), *units.HOUSE]:
        assert together.count(file) == 1, file
    for lesson in course.lessons():
        assert f"verify {lesson.id}" in names(planned)
        assert f"solutions/{lesson.floor}/{lesson.id}.ipynb" in names(planned)
    assert [unit for unit in planned if unit.alone] == [
        unit for unit in planned if unit.name.startswith("alone ")]


def test_files_are_packed_by_what_they_take(monkeypatch):
    monkeypatch.setattr(units, "timed", lambda: {"a": 50, "b": 9, "c": 2, "d": 70, "e": 1})
    assert units.packed(list("abcde"), 60) == [["a", "b"], ["c"], ["d"], ["e"]]


def test_what_a_unit_depends_on():
    kernels = units.inputs_of_tests(["tests/layer1_kernels/test_kernels.py"])
    assert "lab" in kernels and "layer1_kernels" in kernels and "layer2_graph" not in kernels
    assert "tests/layer1_kernels" in kernels and "benchmarks" in kernels
    assert units.inputs_of_tests(["tests/redteam/test_redteam.py"]) == (".",)


def test_a_units_key_changes_with_its_files(monkeypatch, tmp_path):
    (tmp_path / "a.py").write_text("1")
    monkeypatch.setattr(units, "ROOT", tmp_path)
    monkeypatch.setattr(units, "tracked", lambda name: [name])
    unit = units.Unit("one", ("python", "x"), ("a.py",))
    before = units.key(unit)
    units.digest.cache_clear()
    assert units.key(unit) == before
    (tmp_path / "a.py").write_text("2")
    units.digest.cache_clear()
    assert units.key(unit) != before
    units.digest.cache_clear()


# ---- the record


@pytest.fixture
def copied(monkeypatch, tmp_path):
    """A lesson's files where they may be changed, and an empty record."""
    originals = {path: tmp_path / str(path.relative_to(course.ROOT)).replace("/", "-")
                 for path in proven.files(LESSON)}
    for path, copy in originals.items():
        shutil.copy(path, copy)
    monkeypatch.setattr(proven, "files", lambda lesson: list(originals.values()))
    monkeypatch.setattr(proven, "FOLDER", tmp_path / "proofs")
    return list(originals.values())


def test_a_row_is_of_the_files_that_were_proven(copied):
    before = proven.digest(LESSON)
    copied[0].write_text(copied[0].read_text() + "\n")
    proven.keep(LESSON, ROWS, 9, before)
    assert not proven.proven(LESSON) and proven.row(LESSON)["digest"] == before
    proven.write(proven.file_of(LESSON.floor), {"k99_gone": {}})
    proven.keep(LESSON, ROWS, 9)
    assert proven.proven(LESSON) and list(proven.read(proven.file_of(LESSON.floor))) == [LESSON.id]


ROWS = [{"proof": "the reference passes", "ok": True}, {"proof": "mutant 'a' -> 'b'", "ok": True},
        {"proof": "twin: loops", "ok": True}, {"proof": "the reference passes", "ok": None}]


def test_a_row_holds_for_the_files_as_they_are(copied):
    assert not proven.proven(LESSON) and proven.seconds(LESSON) == proven.NEW_LESSON
    path = proven.keep(LESSON, ROWS, 12.4)
    row = json.loads(path.read_text())[LESSON.id]
    assert proven.proven(LESSON) and proven.seconds(LESSON) == 12
    assert (row["proofs"], row["mutants"], row["twins"], row["not_proven_here"]) == (4, 1, 1, 1)


def test_any_change_of_its_files_voids_a_row(copied):
    """Three places in each of the six files: 18 changes."""
    proven.keep(LESSON, ROWS, 12)
    changes = 0
    for path in copied:
        text = path.read_bytes()
        for place in (0, len(text) // 2, len(text)):
            path.write_bytes(text[:place] + b"#" + text[place:])
            assert not proven.proven(LESSON), (path.name, place)
            changes += 1
        path.write_bytes(text)
        assert proven.proven(LESSON)
    assert changes >= 18


def test_a_damaged_record_is_one_line(copied):
    proven.FOLDER.mkdir()
    proven.file_of(LESSON.floor).write_text("[")
    with pytest.raises(CourseError, match="is damaged"):
        proven.proven(LESSON)


def test_lab_verify_writes_a_row_only_of_a_lesson_proven_whole(monkeypatch):
    kept = []
    monkeypatch.setattr(proven, "keep", lambda lesson, *_: kept.append(lesson.id))
    lesson = course.find("r01_roofline")
    rows = verify.verify([lesson], most=1, record=True)
    tried = [row["exercise"] for row in rows if row["proof"].startswith("mutant")]
    assert tried == [e.name for e in lesson.exercises] and all(row["ok"] for row in rows)
    assert kept == []

    class Failing(verify.Proof):
        def rows(self):
            return [self.row("x", "the reference passes", False, "no")]

    class Passing(verify.Proof):
        def rows(self):
            return [self.row("x", "the reference passes", True)]

    for kind in (Failing, Passing):
        monkeypatch.setattr(verify, "Proof", kind)
        verify.verify([lesson], record=True)
    assert kept == ["r01_roofline"]
