"""A learner's path through the command line: one exercise of each kind, and every bad input."""

import json
import os
import subprocess
import sys

import pytest

from lab import cli, course, stub, terminal
from lab.course import ROOT
from lab.desk.desk import Desk
from lab.judge.candidate import Candidate
from lab.judge.messages import Messages
from lab.judge.verdict import Verdict

# kind: exercise, a wrong answer, what its message names, the right answer is the reference's
KINDS = {
    "function": ("r01_roofline/count_add", ("3 * n", "2 * n"), "not the output"),
    "prediction": ("r01_roofline/predict_gain_of_doubled_peak", ("1.0", "2.0"),
                   "of a compute-bound kernel"),
    "cuda": ("k01_vector_add/add_cuda", ("if (i < n) ", ""), "out-of-bounds"),
    "triton": ("k01_vector_add/add_triton", ("tl.program_id(0) * BLOCK + ", ""),
               "works on the first block"),
}


def lab(*args, desk=None, cwd=None, **variables):
    chosen = ["--desk", str(desk)] if desk else []
    command = [sys.executable, "-m", "lab.cli", *chosen, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd or ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **variables})


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a learner") / "work"
    done = lab("start", desk=folder)
    assert done.returncode == 0, done.stderr
    return folder


def put(desk, exercise, text):
    path = Desk(desk).path(exercise.lesson, course.SUFFIX[exercise.language])
    path.write_text(stub.splice(path.read_text(), text, exercise.language).text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_path_of_a_learner(desk, kind):
    name, (find, replacement), says = KINDS[kind]
    lesson, exercise = course.find_exercise(name)
    right = stub.extract(lesson.sources[exercise.language], exercise.name, exercise.language)

    done = lab("check", name, desk=desk)
    assert done.returncode == 3 and "not attempted" in done.stdout

    put(desk, exercise, right.replace(find, replacement))
    done = lab("check", name, desk=desk)
    assert done.returncode == 1 and says in done.stdout, done.stdout + done.stderr

    done = lab("show", exercise.name, desk=desk)
    assert done.returncode == 2 and "not passed yet" in done.stderr
    for tier in ("nudge", "idea", "nearly the line"):
        assert tier in lab("hint", exercise.name, desk=desk).stdout

    put(desk, exercise, right)
    done = lab("check", name, "--json", desk=desk)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["exercises"][0] == {
        "name": exercise.name, "verdict": "pass", "points": 1, "max_points": 1, "message": ""}
    assert {"schema", "course_version", "lesson", "device", "source", "exercises"} == set(report)
    status = lab("status", desk=desk).stdout
    assert f"✓ {exercise.name}" in status and "yours" in status

    done = lab("reset", name, desk=desk)
    assert done.returncode == 0 and "kept" in done.stdout
    assert lab("check", name, desk=desk).returncode == 3


def test_one_line_of_verdict_for_a_whole_desk(desk):
    done = lab("check", desk=desk)
    assert done.returncode == 3
    assert "r01_roofline" in done.stdout and "k01_vector_add" in done.stdout


BAD = {
    "unknown lesson": (["check", "k99_nothing"], "no lesson 'k99_nothing'"),
    "unknown exercise": (["check", "r01_roofline/nothing"], "has no exercise 'nothing'"),
    "missing file": (["check", "r01_roofline", "--file", "no such.py"], "no file"),
    "a folder as file": (["check", "r01_roofline", "--file", "day01_roofline"],
                         "expected a .py, .cu or .ipynb"),
    "file without a lesson": (["check", "--file", "x.py"], "which lesson"),
    "cuda for a lesson without": (
        ["check", "r01_roofline", "--file", "layer1_kernels/k01_vector_add.cu"],
        "no .cu exercises"),
    "unknown command": (["chekc"], "No such command"),
    "unknown option": (["check", "--fiel", "x"], "No such option"),
    "hint of a lesson": (["hint", "r01_roofline"], "name an exercise"),
    "hint of nothing": (["hint", "nothing"], "no lesson 'nothing'"),
    "show of nothing": (["show", "r01_roofline/nothing"], "has no exercise"),
    "reset of nothing": (["reset", "nothing"], "no lesson"),
    "open of nothing": (["open", "nothing"], "no lesson"),
    "watch of nothing": (["watch", "nothing"], "no lesson"),
    "verify of nothing": (["verify", "nothing"], "no lesson"),
    "build of nothing": (["build", "nothing"], "no lesson"),
    "new of no id": (["new", "Softmax"], "is not a lesson id"),
    "new of what is there": (["new", "r01_roofline"], "nothing was written"),
    "empty word": (["check", ""], "no lesson ''"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_2(desk, case):
    words, says = BAD[case]
    before = snapshot(desk)
    done = lab(*words, desk=desk)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert snapshot(desk) == before


NO_DESK = ["status", "check", "hint count_add", "reset r01", "open", "watch", "show count_add"]


@pytest.mark.parametrize("words", NO_DESK)
def test_without_a_desk(tmp_path, words):
    done = lab(*words.split(), desk=tmp_path / "nowhere")
    assert done.returncode == 2 and "run `lab start`" in done.stderr
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("words", ["status", "check", "open", "watch"])
def test_an_empty_desk(tmp_path, words):
    Desk(tmp_path / "work").prepare()
    done = lab(words, desk=tmp_path / "work")
    assert done.returncode == 2 and "run `lab start`" in done.stderr


def test_start_takes_several_lessons(tmp_path):
    done = lab("start", "r01", "k01", desk=tmp_path / "work")
    assert done.returncode == 0 and "2 lesson(s) on the desk" in done.stdout
    assert [lesson.id[:3] for lesson in Desk(tmp_path / "work").lessons()] == ["r01", "k01"]


def test_a_missing_file_of_the_desk(tmp_path):
    lab("start", "r01", desk=tmp_path / "work")
    (tmp_path / "work" / "day01_roofline" / "r01_roofline.py").unlink()
    done = lab("check", "r01", desk=tmp_path / "work")
    assert done.returncode == 2 and "missing" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name, content, says", [
    ("x.ipynb", b"not json", "not a notebook"), ("x.py", b"\xff\xfe", "not UTF-8"),
    ("x.txt", b"", "expected a .py, .cu or .ipynb")])
def test_a_damaged_file_given(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    done = lab("check", "r01", "--file", tmp_path / name)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1


def test_no_write_permission(tmp_path):
    """A path that cannot be made gives one line, for root too: it leads through a file."""
    (tmp_path / "file").write_text("")
    done = lab("start", "r01", desk=tmp_path / "file" / "work")
    assert done.returncode == 2 and "cannot" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_bare_answer_and_a_notebook_as_file(tmp_path):
    text = "def count_add(n, itemsize):\n    return n, 3 * n * itemsize\n"
    (tmp_path / "a.py").write_text(text)
    done = lab("check", "r01_roofline/count_add", "--file", tmp_path / "a.py")
    assert done.returncode == 0 and "pass" in done.stdout and "a.py" in done.stdout
    notebook = {"cells": [{"cell_type": "code", "metadata": {}, "source": source} for source in (
        ["%matplotlib inline\n", *text.splitlines(True)], "%timeit count_add(10, 4)",
        "count_add(10,")]}
    (tmp_path / "a.ipynb").write_text(json.dumps(notebook))
    assert lab("check", "r01_roofline/count_add", "--file", tmp_path / "a.ipynb").returncode == 0
    done = lab("check", "r01_roofline", "--file", tmp_path / "a.ipynb")
    assert done.returncode == 3 and "1 pass, 6 not attempted" in done.stdout


@pytest.mark.parametrize("call", ["lesson.check('count_add')", "print(lesson.check('count_add'))"])
def test_a_check_in_the_cell_of_an_answer_is_no_part_of_the_file(tmp_path, call):
    source = f"def count_add(n, itemsize):\n    return n, 3 * n * itemsize\n\n{call}\n"
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [
        {"cell_type": "code", "metadata": {}, "source": source}]}))
    done = lab("check", "r01_roofline/count_add", "--file", tmp_path / "a.ipynb")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("turn", [1, -1])
def test_a_cell_that_cannot_be_read_costs_its_own_exercise(tmp_path, turn):
    cells = ["def count_add(n, itemsize):\n    return n, 3 * n * itemsize\n",
             "# mine\ndef bound(flops, moved, peak, bandwidth)\n    return 1\n"][::turn]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [
        {"cell_type": "code", "metadata": {}, "source": source} for source in cells]}))
    done = lab("check", "r01_roofline", "--file", tmp_path / "a.ipynb")
    assert done.returncode == 1 and "1 pass, 1 fail, 5 not attempted" in done.stdout
    place = f"a.ipynb, code cell {1 if turn == -1 else 2}, line 2"
    assert f"{place}: expected ':'\n" in done.stdout
    assert "def bound(flops, moved, peak, bandwidth)\n" in done.stdout


def test_lines_of_a_notebook_are_those_of_its_cells(tmp_path):
    """Also of a cell that stood in the module before another was put there."""
    cells = ["def count_matmul(M, K, N, itemsize):\n    return M / 0, 1\n", "import json\n",
             "\n%matplotlib inline\n\ndef count_add(n, itemsize):\n    x = 1\n"
             "    return n, 1 / 0\n",
             "def bound(flops, moved, peak, bandwidth):\n    return 1\n"]
    file = tmp_path / "a.ipynb"
    file.write_text(json.dumps({"cells": [
        {"cell_type": "code", "metadata": {}, "source": source} for source in cells]}))
    done = lab("check", "r01_roofline", "--problems", "--file", file)
    assert f"{file}, code cell 1, line 2: return M / 0, 1\n" in done.stdout
    assert f"{file}, code cell 3, line 6: return n, 1 / 0\n" in done.stdout
    assert f"{file}, code cell 4, line 1: def bound(" in done.stdout
    assert f"\n{file}:cell 1:2: error: count_matmul: ZeroDivisionError" in done.stdout
    assert f"\n{file}:cell 3:6: error: count_add: ZeroDivisionError" in done.stdout
    assert f"\n{file}:cell 4:1: error: bound: " in done.stdout


def test_a_line_that_the_learner_does_not_have_keeps_the_modules_name():
    lesson = course.find("r01_roofline")
    words = Messages(lesson, Candidate({"python": "x\ny\n"}, {"python": "a.py"},
                                       {"python": [None, 7]}), {})
    assert words.in_own_lines("r01_roofline.py, line 1; r01_roofline.py, line 2") == \
        "r01_roofline.py, line 1; a.py, line 7"


def test_a_cache_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "a.py").write_text("def count_add(n, itemsize):\n    return n, 3 * n * itemsize\n")
    done = lab("check", "r01_roofline/count_add", "--file", tmp_path / "a.py",
               XDG_CACHE_HOME=str(tmp_path / "file"))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "XDG_CACHE_HOME may name another folder" in done.stderr


RIGHT = "def count_add(n, itemsize):\n    return n, 3 * n * itemsize\n"


def test_what_was_shown_as_passed_has_passed_when_a_check_is_cut_short(tmp_path, monkeypatch,
                                                                      command):
    desk = Desk(tmp_path / "work")
    desk.prepare()
    lesson, exercise = course.find_exercise("r01/count_add")
    desk.start(lesson)
    put(desk.folder, exercise, RIGHT)

    def cut_short(*_):
        yield Verdict("count_add", "pass", 1, 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "graded", cut_short)
    monkeypatch.setitem(terminal.options, "desk", None)
    code, shown, _ = command(cli.app, "lab", "--desk", desk.folder, "check", "r01")
    assert code == 130 and "✓ pass" in shown and desk.passed(exercise)


@pytest.mark.parametrize("words", [["check"], ["check", "--json"]])
def test_a_desk_that_cannot_be_written_is_checked_all_the_same(tmp_path, words):
    desk = Desk(tmp_path / "work")
    desk.prepare()
    for name in ("r01", "r02"):
        desk.start(course.find(name))
    put(desk.folder, course.find_exercise("r01/count_add")[1], RIGHT)
    lock = desk.state_file.with_suffix(".lock")
    lock.unlink()
    lock.mkdir()                            # not to be opened, for root neither
    done = lab(*words, desk=desk.folder)
    assert done.returncode == 3 and "r02_" in done.stdout
    assert ('"pass"' if "--json" in words else "1 pass") in done.stdout
    [line] = done.stderr.splitlines()
    assert line.startswith("lab: the verdicts were not recorded: cannot write "), line


def test_lines_are_those_of_the_learners_own_file(tmp_path):
    text = "# one\n# two\n\ndef count_add(n, itemsize):\n    return n, 1 / 0\n"
    (tmp_path / "a.py").write_text(text)
    done = lab("check", "r01_roofline/count_add", "--file", tmp_path / "a.py")
    assert "ZeroDivisionError" in done.stdout and "line 5: return n, 1 / 0" in done.stdout
    (tmp_path / "a.py").write_text("# one\ndef count_add(n, itemsize)\n    return 1\n")
    done = lab("check", "r01_roofline/count_add", "--file", tmp_path / "a.py")
    assert done.returncode == 1 and "line 2" in done.stdout and "expected ':'" in done.stdout


@pytest.mark.parametrize("folder", ["my files", "s[old]"])
def test_the_line_is_the_learners_own_in_any_folder_and_after_any_character(tmp_path, folder):
    file = tmp_path / folder / "a.py"
    file.parent.mkdir()
    file.write_text('NOTE = "a\u2028b\x0cc"\n\n\ndef count_add(n, itemsize):\n    x = 1\n'
                    "    return n, 1 / 0\n")
    done = lab("check", "r01_roofline/count_add", "--problems", "--file", file)
    assert f"r01_roofline   {file}\n" in done.stdout
    assert f"{file}, line 6: return n, 1 / 0" in done.stdout
    assert f"\n{file}:6: error: count_add: ZeroDivisionError" in done.stdout


def test_a_second_check_finds_the_process_of_the_first(tmp_path, desk):
    """In a terminal and in a notebook; another learner's, with a cache elsewhere, does not."""
    put(desk, course.find_exercise("r01/count_add")[1],
        "def count_add(n, itemsize):\n    return n, 3 * n * itemsize\n")
    checks = []
    for cache in ("one", "one", "another"):
        done = lab("check", "r01/count_add", desk=desk, LAB_WARM="",
                   XDG_CACHE_HOME=str(tmp_path / cache))
        assert done.returncode == 0, done.stdout + done.stderr
        [socket] = (path for path in tmp_path.glob(f"{cache}/*/warm-*/*") if path.is_socket())
        checks.append((socket, socket.stat().st_ino))
    assert checks[0] == checks[1] != checks[2]
    code = ("from lab.desk.notebook import open_lesson\n"
            "print(open_lesson('r01').check('count_add'))")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=desk, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LAB_WARM": "",
             "XDG_CACHE_HOME": str(tmp_path / "one")})
    assert "pass: count_add" in done.stdout, done.stderr
    sockets = [path for path in checks[0][0].parent.iterdir() if path.is_socket()]
    assert [(path, path.stat().st_ino) for path in sockets] == checks[:1]
    for socket, _ in set(checks):
        socket.unlink()                     # its process ends when it looks for its name


def test_watch_checks_at_every_save_and_moves_on(tmp_path):
    """Wrong, then right: it says so after each save and waits at the next exercise."""
    desk = tmp_path / "work"
    lab("start", "r01", desk=desk)
    path = desk / "day01_roofline" / "r01_roofline.py"
    watcher = subprocess.Popen(
        [sys.executable, "-m", "lab.cli", "--desk", str(desk), "watch", "r01"],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"})
    try:
        assert "not attempted" in until(watcher, "waiting for a save")
        text = path.read_text()
        for moved, says in ((2, "only the two inputs"), (3, "pass")):
            answer = f"def count_add(n, itemsize):\n    return n, {moved} * n * itemsize\n"
            path.write_text(stub.splice(text, answer, "python").text)
            assert says in until(watcher, "waiting for a save")
    finally:
        watcher.kill()


def until(process, words):
    """What the process prints, to the line with these words."""
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"it ended without {words!r}: {said}")


def snapshot(folder):
    return {p: p.read_bytes() for p in folder.rglob("*")
            if p.is_file() and p.suffix != ".lock" and "desk.json" not in p.name}
