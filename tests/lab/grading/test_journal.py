"""The journal of a grading: what is written stays, whatever happens to the disk or beside it."""

import errno
import os

import pytest

from lab import course
from lab.course import CourseError
from lab.grading import grade, reports
from lab.grading.journal import Journal

ROW = {"sandbox": "limits", "results": [], "notes": []}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "out" / "journal.jsonl"


@pytest.fixture
def journal(file):
    return Journal.begin(file, [course.find("r01")], 7)


def units(file):
    return [unit for unit, _ in Journal.resume(file).units]


def test_a_full_disk_costs_the_line_alone(journal, file, monkeypatch):
    """Half of it was written; another job goes on when there is room again."""
    journal.done(("one", "r01"), **ROW)
    whole = file.read_bytes()
    write = os.pwrite

    def full(descriptor, data, offset):
        if len(data) > 10:
            return write(descriptor, data[:10], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: full(
        descriptor, data if offset == len(whole) else data[:5], offset))
    with pytest.raises(CourseError, match="No space left on device. The units in it are"):
        journal.done(("two", "r01"), **ROW)
    assert file.read_bytes() == whole
    monkeypatch.setattr(os, "pwrite", write)
    journal.done(("three", "r01"), **ROW)
    assert units(file) == ["one", "three"]


def test_of_two_runs_that_go_on_one_writes(journal, file):
    """Both have read the line that was cut off."""
    journal.done(("one", "r01"), **ROW)
    with open(file, "ab") as stream:
        stream.write(b'{"unit": ["cut o')
    first, second = Journal.resume(file), Journal.resume(file)
    first.done(("two", "r01"), **ROW)
    first.done(("three", "r01"), **ROW)
    with pytest.raises(CourseError, match="another `lab grade` has written to .*--resume"):
        second.done(("four", "r01"), **ROW)
    assert units(file) == ["one", "two", "three"]


def test_what_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(CourseError, match="cannot make .*journal.jsonl: (File exists|Not a dir)"):
        Journal.begin(tmp_path / "taken" / "journal.jsonl", [], 7)
    with pytest.raises(CourseError, match="cannot write to .*taken"):
        grade.shared_seed(tmp_path / "taken", 7)
    with pytest.raises(CourseError, match="cannot write .*grades.csv: .*--resume"):
        reports.write_file(tmp_path / "taken" / "grades.csv", "")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_run_goes_on_with_the_edition_that_it_was_begun_with(tmp_path):
    held_back = {"k01_vector_add", "k02_transpose"}
    journal = Journal.begin(tmp_path / "journal.jsonl", [], 7, held_back)
    assert grade.same_edition(None, journal) == held_back
    assert grade.same_edition(None, None) == set()
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "course.toml").write_text("")       # an edition that gives no answer
    with pytest.raises(CourseError, match="begun with another edition"):
        grade.same_edition(tmp_path, journal)


def test_a_journal_of_another_form_is_refused_by_name(file, journal):
    file.write_text(file.read_text().replace('"schema": 2', '"schema": 1'))
    with pytest.raises(CourseError, match="journal 1; this is .*journal 2"):
        Journal.resume(file)
