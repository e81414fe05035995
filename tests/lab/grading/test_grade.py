"""`lab grade` on a classroom: exact grades, whatever is sent; a killed run continues."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from lab import course
from lab.course import ROOT, CourseError
from lab.grading import box
from lab.grading import grade as grading
from lab.grading.journal import Journal
from tests.lab.grading import classroom

EXPECTED = Path(__file__).with_name("expected.csv").read_text()
FEW = ["right desk", "one mistake", "untouched", "syntax", "twice", "empty.zip"]
LESSONS = "r01,k01"
SEED = 7


@pytest.fixture(scope="module", autouse=True)
def environment():
    """`lab grade` forgets its environment; the tests after this one want theirs."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def verdicts(out):
    return list(csv.DictReader(io.StringIO((out / "verdicts.csv").read_text())))


def graded(sent, out, **options):
    """(what it printed, grades.csv without the column of the sandbox)."""
    said = io.StringIO()
    given = {"lessons": LESSONS, "jobs": 2} | options
    os.environ["LAB_SEED"] = str(SEED)
    lines = grading.grade(sent, out, Console(file=said), **given)
    return "\n".join([said.getvalue(), *lines]), without_sandbox(out)


def level_of(out):
    """The sandbox that a run used."""
    levels = {unit["sandbox"] for journal in out.glob("journal*")
              for unit in Journal.resume(journal).units.values()}
    assert len(levels) == 1 and levels <= set(box.LEVELS)
    return levels.pop()


def without_sandbox(out):
    text = (out / "grades.csv").read_text()
    rows = list(csv.reader(io.StringIO(text)))
    assert {row[3] for row in rows[1:]} == {level_of(out)}
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows(row[:3] + row[4:] for row in rows)
    return made.getvalue()


def rows(students):
    """The expected lines of some students, below the header."""
    head, *lines = EXPECTED.splitlines()
    return "\n".join([head, *(line for line in lines if line.split(",")[0] in students)]) + "\n"


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A small class, graded once: (its folder, where the reports are)."""
    sent = tmp_path_factory.mktemp("few")
    classroom.write(sent, FEW)
    out = tmp_path_factory.mktemp("graded") / "out"
    graded(sent, out)
    return sent, out


def test_a_small_class_gets_its_exact_grades(few):
    assert without_sandbox(few[1]) == rows([name.removesuffix(".zip") for name in FEW])


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_forty_submissions_of_every_kind_get_their_exact_grades(tmp_path):
    classroom.write(tmp_path / "sent")
    said, grades = graded(tmp_path / "sent", tmp_path / "out")
    assert grades == EXPECTED
    assert f"sandbox: {level_of(tmp_path / 'out')}" in said and "COURSE ERROR" not in said
    page = (tmp_path / "out" / "feedback" / "raises.html").read_text()
    assert "&lt;script&gt;" in page and "<script" not in page


def test_a_folder_with_nothing_of_the_course_is_named_in_the_summary(tmp_path):
    for student, name, text in (("ada", "report.pdf", "%PDF"), ("ben", "k07_softmax.ipynb",
                                classroom.notebook("print('another course')")),
                                ("cem", "hw.py", "def f(): pass\n")):
        classroom.put(tmp_path / "sent" / student / name, text)
    graded(tmp_path / "sent", tmp_path / "out", lessons="r01")
    said = json.loads((tmp_path / "out" / "summary.json").read_text())["problems"]
    words = {one["student"]: " ".join(one["problems"]) for one in said}
    assert "nothing to grade in it" in words["ada"] and "report.pdf" in words["ada"]
    assert words["ben"] == "k07_softmax.ipynb: no exercise of this course is in it"
    assert words["cem"] == "hw.py: no exercise of this course is in it"


def test_a_kernel_that_does_not_compile_costs_no_other(tmp_path):
    """A missing semicolon, which NVRTC finds: each kernel is compiled with what it needs alone."""
    helper = "__device__ float sum_of(float a, float b) { return a + b; }\n\n"
    text = classroom.changed(classroom.K01, "add_cuda", "z[i] = x[i] + y[i];",
                             "z[i] = x[i] + y[i]", "cuda")
    text = text.replace("z[i] = x[i] + y[i];", "z[i] = sum_of(x[i], y[i]);", 1)
    classroom.put(tmp_path / "sent" / "ada" / "k01_vector_add.cu", helper + text)
    graded(tmp_path / "sent", tmp_path / "out", lessons="k01")
    found = verdicts(tmp_path / "out")
    kinds = {row["exercise"]: row["verdict"] for row in found if row["student"] == "ada"}
    assert {name: kinds[name] for name in kinds if name.endswith("_cuda")} == {
        "add_cuda": "fail", "add_grid_stride_cuda": "pass", "add_vector_cuda": "pass"}
    [said] = [row["message"] for row in found if row["exercise"] == "add_cuda"]
    line = (helper + text).partition("z[i] = x[i] + y[i]\n}")[0].count("\n") + 2
    assert said.startswith(f"add_cuda: k01_vector_add.cu, line {line}: error: expected a"), said


@pytest.mark.parametrize("line", ["import a_module_that_is_not_here", "entered = int(input())"])
def test_a_line_that_no_answer_needs_costs_none(tmp_path, line):
    lesson = course.find("r01_roofline")
    right = line + "\n" + lesson.sources["python"]
    use = "entered + 1" if "=" in line else "a_module_that_is_not_here.f()"
    needed = right.replace("    # exercise: ", f"    {use}\n    # exercise: ", 1)
    assert needed != right
    for student, text in (("ada", right), ("ben", needed)):
        classroom.put(tmp_path / "sent" / student / "r01_roofline.py", text)
    graded(tmp_path / "sent", tmp_path / "out", lessons="r01")
    rows = verdicts(tmp_path / "out")
    kinds = {student: [row["verdict"] for row in rows if row["student"] == student]
             for student in ("ada", "ben")}
    assert kinds["ada"] == ["pass"] * len(lesson.exercises)
    assert sorted(kinds["ben"]) == ["fail"] + ["pass"] * (len(lesson.exercises) - 1)
    [message] = [row["message"] for row in rows if row["verdict"] == "fail"]
    assert line.split()["import" in line] in message             # the name that it lacks
    said = json.loads((tmp_path / "out" / "summary.json").read_text())["problems"]
    words = {one["student"]: " ".join(one["problems"]) for one in said}
    assert "its file raises when it is imported" in words["ada"] and "line 1" in words["ada"]


def test_a_wrong_answer_of_any_kind_stays_in_the_maximum(tmp_path):
    """A failure that only the submission caused counts 0, in the maximum that all can earn."""
    python = classroom.changed(classroom.K01, "predict_sectors_per_request", "return ",
                               "return 10**5000 or ")
    cuda = classroom.changed(classroom.K01, "add_cuda", "z[i] = x[i] + y[i];",
                             '{ int v; asm volatile("mov.u32 %0, %%pm0;" : "=r"(v)); z[i] = v; }',
                             "cuda")
    for student, texts in (("ada", {"k01": python, "cu": cuda}), ("ben", {})):
        given = classroom.everything() | classroom.desk(**texts)
        for path, text in given.items():
            classroom.put(tmp_path / "sent" / student / path, text)
    _, grades = graded(tmp_path / "sent", tmp_path / "out", lessons="k01")
    ada, ben = list(csv.DictReader(io.StringIO(grades)))
    assert ada["out_of"] == ben["out_of"] and float(ada["total"]) == float(ben["total"]) - 2
    found = {(row["student"], row["exercise"]): row
             for row in verdicts(tmp_path / "out")}
    for name, words in (("add_cuda", "%pm0`, which the simulator does not have"),
                        ("predict_sectors_per_request", "an integer of 5,001 digits")):
        row = found["ada", name]
        assert row["verdict"] == "fail" and words in row["message"], row
    page = (tmp_path / "out" / "feedback" / "ada.html").read_text()
    assert "5,001 digits" in page and "could not decide" not in page


def test_shards_and_another_seed_give_the_same_grades(few, tmp_path):
    sent, out = few
    for part in ("1/2", "2/2"):
        graded_shard(sent, tmp_path / "out", part)
    _, grades = graded(sent, tmp_path / "out", merge=True)
    assert grades == without_sandbox(out)
    seeds = {Journal.resume(file).header["seed"] for file in (tmp_path / "out").glob("journal-*")}
    assert seeds == {1} and Journal.resume(out / "journal.jsonl").header["seed"] == SEED


def graded_shard(sent, out, part):
    os.environ["LAB_SEED"] = part[0]                # the first one counts
    lines = grading.grade(sent, out, Console(file=io.StringIO()), lessons=LESSONS, jobs=2,
                          shard=part)
    assert part in lines[0]


def test_a_merge_says_which_shard_is_missing(few, tmp_path):
    graded_shard(few[0], tmp_path / "out", "1/2")
    with pytest.raises(CourseError, match="units are not graded yet.*--resume"):
        graded(few[0], tmp_path / "out", merge=True)


STOPS = """
import time
from lab import cli
from lab.grading.journal import Journal
append = Journal.append
def stop(journal, row):
    append(journal, row)
    if len(journal.units) == 2:             # and this row is the third
        print("three", flush=True)
        time.sleep(10_000)
Journal.append = stop
cli.main()
"""


def test_a_run_that_is_killed_goes_on_and_repeats_nothing(few, tmp_path):
    """Killed when three units are in its journal, and others at work."""
    sent, out = few
    mine = tmp_path / "out"
    words = ["grade", str(sent), "--out", str(mine), "--lessons", LESSONS, "--jobs", "2"]
    run = subprocess.Popen([sys.executable, "-c", STOPS, *words], cwd=ROOT, text=True,
                           stdout=subprocess.PIPE, start_new_session=True,
                           env=os.environ | {"LAB_SEED": str(SEED)})
    assert any(line == "three\n" for line in run.stdout)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    run.stdout.close()
    journal = mine / "journal.jsonl"
    before = journal.read_bytes()
    assert before.count(b"\n") == 4         # the first line tells of the run
    with open(journal, "ab") as stream:
        stream.write(b'{"unit": ["cut o')              # as after a crash in the middle of a line
    done = subprocess.run([sys.executable, "-m", "lab.cli", *words, "--resume"], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert journal.read_bytes().startswith(before)
    units = [tuple(json.loads(line)["unit"]) for line in journal.read_text().splitlines()[1:]]
    assert len(units) == len(set(units))
    assert (mine / "grades.csv").read_bytes() == (out / "grades.csv").read_bytes()


def test_grades_are_not_thrown_away(few):
    sent, out = few
    with pytest.raises(CourseError, match="is there already: go on with --resume"):
        graded(sent, out)


def test_a_journal_of_other_lessons_or_another_course_is_refused(few, tmp_path):
    journal = Journal.resume(few[1] / "journal.jsonl")
    with pytest.raises(CourseError, match="begun with other lessons"):
        graded(few[0], few[1], lessons="r02", resume=True)
    for field, other, says in (("course_version", "9.9", "begun with course 9.9"),
                               ("lessons", {"r01_roofline": "0"}, "has changed since")):
        file = tmp_path / field / "journal.jsonl"
        file.parent.mkdir()
        file.write_text(json.dumps(journal.header | {field: other}) + "\n")
        with pytest.raises(CourseError, match=says):
            graded(few[0], file.parent, lessons=None, resume=True)


@pytest.mark.parametrize("options, says", [
    ({"shard": "3/2"}, "expected I/N"), ({"shard": "x"}, "expected I/N"),
    ({"lessons": "k99"}, "no lesson 'k99'"), ({"resume": True}, "nothing to resume"),
    ({"merge": True}, "nothing to merge")])
def test_what_cannot_be_is_refused(few, tmp_path, options, says):
    with pytest.raises(CourseError, match=says):
        graded(few[0], tmp_path / "out", **options)


@pytest.mark.parametrize("option, text, says", [
    ("points", "[points]\nk99 = 1\n", "no lesson 'k99'"),
    ("roster", "name\nada\n", "found the columns name"),
    ("overrides", "student,lesson,exercise,points,reason\nzoe,r01_roofline,attainable,1,late\n",
     "line 2: expected a student with a submission, found 'zoe'")])
@pytest.mark.parametrize("more", [{}, {"shard": "1/2"}])
def test_a_mistake_of_the_instructor_is_told_before_anything_is_graded(few, tmp_path, monkeypatch,
                                                                       option, text, says, more):
    monkeypatch.setattr(grading.run, "Grading", None)       # calling it would be another error
    file = tmp_path / option
    file.write_text(text)
    with pytest.raises(CourseError, match=says):
        graded(few[0], tmp_path / "out", **{option: file}, **more)
    assert not (tmp_path / "out").exists()


def test_points_beside_the_submissions_are_read_before_anything_is_graded(tmp_path):
    (tmp_path / "grading.toml").write_text("[late]\nday = 1\n")
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "ada.py").write_text("")
    with pytest.raises(CourseError, match="expected the table .points. alone, found 'late'"):
        graded(tmp_path / "sent", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_submissions_are_no_class(tmp_path):
    with pytest.raises(CourseError, match="no submissions in"):
        graded(tmp_path, tmp_path / "out")


def test_a_required_sandbox_that_is_not_there_is_refused(few, tmp_path, monkeypatch):
    monkeypatch.setattr(box, "best", lambda: ("limits", ["bubblewrap: not here"]))
    with pytest.raises(CourseError, match="--require-sandbox: this machine has none.*not here"):
        graded(few[0], tmp_path / "out", required=True)


def test_the_grader_that_breaks_is_an_error_of_the_course(few, tmp_path, monkeypatch):
    """A unit whose process dies costs its student nothing, and the others go on."""
    from lab.grading import run
    start, broken = run.Child, []

    def child(role, request, *where):
        made = start(role, request, *where)
        if not broken:
            broken.append(request["lesson"])
            os.kill(made.pid, signal.SIGKILL)
        return made

    monkeypatch.setattr(run, "Child", child)
    said, _ = graded(few[0], tmp_path / "out", jobs=1)
    assert "COURSE ERRORS" in said
    verdicts = (tmp_path / "out" / "verdicts.csv").read_text()
    wrong = {line.split(",")[1] for line in verdicts.splitlines() if ",error," in line}
    assert wrong == set(broken)
    graded(few[0], tmp_path / "out", jobs=1, lessons=None, resume=True)
    assert ",error," not in (tmp_path / "out" / "verdicts.csv").read_text()


def test_ctrl_c_ends_the_units_that_run(few, tmp_path, monkeypatch):
    """They are in sessions of their own, and get no signal; --resume takes them again."""
    from lab.grading import run

    class Endless(run.Child):
        def read(self, n, deadline):
            (tmp_path / "reading").touch()
            return super().read(2**20, deadline)        # more than comes

    def interrupt(self):
        until = time.monotonic() + 60
        while not (tmp_path / "reading").exists() and time.monotonic() < until:
            time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "Child", Endless)
    monkeypatch.setattr(run, "as_completed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        graded(few[0], tmp_path / "out", jobs=1)
    assert (tmp_path / "reading").exists()
    units = Journal.resume(tmp_path / "out" / "journal.jsonl").units.values()
    assert {row["verdict"] for unit in units for row in unit["results"]} <= {"not_attempted"}


def test_a_unit_that_takes_too_long_fails(few, tmp_path, monkeypatch):
    """An error would take the lesson out of the maximum: a gain for wrong answers."""
    from lab.grading import run
    monkeypatch.setattr(run, "MAX_UNIT_SECONDS", -1)
    _, grades = graded(few[0], tmp_path / "out")
    assert grades.count(",0,12,") == 6, grades
    verdicts = (tmp_path / "out" / "verdicts.csv").read_text()
    assert "stopped: grading it took more than" in verdicts and ",error," not in verdicts


def test_every_lesson_is_named_by_its_start():
    from lab.grading import run
    assert run.chosen("k01, r01") == [course.find("r01"), course.find("k01")]
