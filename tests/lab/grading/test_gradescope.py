"""The zip for Gradescope, run as Gradescope's container would run it: at /autograder, as root with
Docker's rights, which make no namespaces.
This Python stands in for setup.sh's."""

import json
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from lab.course import ROOT, CourseError
from lab.grading import gradescope
from tests.lab.grading.classroom import K01, R01, body, changed, everything, mutant, put, right
from tests.lab.grading.container import start

# https://gradescope-autograders.readthedocs.io/en/latest/specs/: field -> what it may be
VISIBILITY = ("hidden", "after_due_date", "after_published", "visible")
FORMAT = ("text", "simple_format", "html", "md", "ansi")
TEST = {"score": (int, float), "max_score": (int, float), "status": ("passed", "failed"),
        "name": str, "name_format": FORMAT, "number": str, "output": str, "output_format": FORMAT,
        "tags": list, "visibility": VISIBILITY, "extra_data": dict}
RESULTS = {"score": (int, float), "execution_time": (int, float), "output": str,
           "output_format": FORMAT, "test_output_format": FORMAT, "test_name_format": FORMAT,
           "visibility": VISIBILITY, "stdout_visibility": VISIBILITY, "extra_data": dict,
           "tests": list, "leaderboard": list}
# Right only if no file can be opened: the answers, the tests, the grader's own.
REACHES_OUT = """
    for mode, paths in (("r", ("source/course/day01_roofline/r01_roofline.py",
                               "source/course/day01_roofline/r01_roofline.md",
                               "source/course/tests/day01_roofline/test_r01_roofline.py",
                               "source/course/layer1_kernels/k01_vector_add.cu")),
                        ("w", ("results/results.json", "results/x", "source/failed.json",
                               "source/course/lab/judge/check.py", "run_autograder"))):
        for path in paths:
            try:
                open("/autograder/" + path, mode)
                return "it could open " + path
            except PermissionError:
                pass"""


@pytest.fixture(scope="module")
def container():
    return start()


@pytest.fixture
def autograder(tmp_path):
    """What Gradescope makes of a zip: autograder(*lessons) -> the folder for /autograder."""
    def unpack(*lessons):
        gradescope.export(lessons, tmp_path / "autograder.zip")
        folder = tmp_path / "autograder"
        with zipfile.ZipFile(tmp_path / "autograder.zip") as archive:
            archive.extractall(folder / "source")
        for name in ("submission", "results"):
            (folder / name).mkdir()
        shutil.copy(folder / "source" / "run_autograder", folder)
        (folder / "run_autograder").chmod(0o755)
        (folder / "source/course/.venv").mkdir()
        return folder
    return unpack


def ran(container, folder):
    """(results.json, what was printed) of the container."""
    done = subprocess.run([*container, "--bind", str(folder), "/autograder",
                           "--ro-bind", sys.prefix, "/autograder/source/course/.venv",
                           "--chdir", "/autograder", "/autograder/run_autograder"],
                          capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert (folder / "results/results.json").exists(), said
    found = json.loads((folder / "results/results.json").read_text())
    documented(found, RESULTS)
    for test in found["tests"]:
        documented(test, TEST)
    return found, said


def documented(found, fields):
    assert found.keys() <= fields.keys()
    for name, value in found.items():
        allowed = fields[name]
        strings = isinstance(allowed, tuple) and isinstance(allowed[0], str)
        assert value in allowed if strings else isinstance(value, allowed), (name, value)


def scores(found):
    return {t["name"].split("/")[1]: t["score"] for t in found["tests"] if "score" in t}


ALL = {e.name: 1 for e in R01.exercises}
SUBMISSIONS = {
    "right": (lambda: {"r01_roofline.py": right(R01)}, ALL),
    "wrong": (lambda: {"r01_roofline.py": mutant(R01, 0)}, ALL | {"count_add": 0}),
    "broken": (lambda: {"r01_roofline.py": changed(R01, "count_add", "return", "return return"),
                        "x.zip": b"PK no zip"}, ALL | {"count_add": 0}),
    "empty": (dict, dict.fromkeys(ALL, 0)),
    "reaches out": (lambda: {"r01_roofline.py": body(REACHES_OUT)}, ALL),
}


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_a_submission_gets_its_points(container, autograder, name):
    folder = autograder("r01")
    made, expected = SUBMISSIONS[name]
    for path, data in made().items():
        put(folder / "submission" / path, data)
    found, said = ran(container, folder)
    assert scores(found) == expected, said
    assert found["score"] == sum(expected.values())
    assert found["extra_data"] == {"sandbox": "limits"} and "Operation not permitted" in said
    if name == "empty":
        assert "nothing to grade in it" in found["output"]


@pytest.mark.slow
def test_kernels_are_graded_with_the_instructors_points(container, autograder, tmp_path):
    (tmp_path / "grading.toml").write_text('[points]\nk01_vector_add = 10\n')
    folder = autograder("r01", "k01")
    for path, data in everything().items():
        put(folder / "submission" / path, data)
    found, said = ran(container, folder)
    assert found["score"] == 17, said
    assert set(scores(found)) == {e.name for e in (*R01.exercises, *K01.exercises)}


def test_a_grader_that_fails_gives_no_score(container, autograder):
    folder = autograder("r01")
    put(folder / "submission/r01_roofline.py", right(R01))
    put(folder / "source/course/tests/day01_roofline/test_r01_roofline.py", "import nothing_here\n")
    found, said = ran(container, folder)
    assert "score" not in found and not scores(found)
    assert "The grader failed, not you" in found["output"]
    assert "the course failed" in said and "nothing_here" in said


def test_a_python_that_does_not_start_gives_no_score(container, autograder):
    folder = autograder("r01")
    (folder / "source/course/lab/cli.py").unlink()
    put(folder / "source/course/lab/grading/autograder.py", "raise SystemExit(1)")
    assert "score" not in ran(container, folder)[0]


def test_the_zip_is_the_same_each_time_and_holds_no_desk(tmp_path):
    for name in ("a", "b"):
        gradescope.export(["r01"], tmp_path / f"{name}.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        names = set(archive.namelist())
        modes = {i.filename: i.external_attr >> 16 & 0o777 for i in archive.infolist()}
    assert {"setup.sh", "run_autograder", "course/lab/setup.py", "course/Makefile"} <= names
    assert modes["setup.sh"] == modes["run_autograder"] == 0o755 and modes["lessons.txt"] == 0o644
    places = {name.split("/")[1] for name in names if name.startswith("course/")}
    assert not places & {"work", ".git", ".venv", "notebooks", "solutions"}
    assert not [n for n in names if "__pycache__" in n or n.startswith("course/tests/lab")]


def test_the_points_are_told_and_come_with_the_zip(tmp_path):
    (tmp_path / "grading.toml").write_text('[points]\nr01_roofline = 20\n')
    lines = gradescope.export(["k01", "r01"], tmp_path / "a.zip")
    assert "25 points" in lines[1]
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("lessons.txt") == b"r01_roofline\nk01_vector_add\n"
        assert archive.read("course/grading.toml") == (tmp_path / "grading.toml").read_bytes()
        readme = archive.read("README.md").decode()
    assert "| 25 |" in readme and "`r01_roofline`, `k01_vector_add`" in readme


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "a.zip").write_text("mine")
    with pytest.raises(CourseError, match="is there already"):
        gradescope.export(["r01"], tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_text() == "mine"
    with pytest.raises(CourseError, match="cannot write"):
        gradescope.export(["r01"], tmp_path / "no" / "a.zip")


def test_a_mistake_in_the_points_makes_no_zip(tmp_path):
    (tmp_path / "grading.toml").write_text('[points]\nr99 = 20\n')
    with pytest.raises(CourseError, match="r99"):
        gradescope.export([], tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()


@pytest.mark.parametrize("name", ["setup.sh", "run_autograder"])
def test_the_scripts_parse_and_name_no_host(name):
    file = gradescope.OURS / name
    subprocess.run(["bash", "-n", file], check=True)
    assert not re.search(r"https?:|\w\.(org|com|io)\b", file.read_text())


def test_setup_asks_for_a_python_that_the_course_supports(tmp_path):
    """setup.sh with stand-ins for apt-get and make: what it asks of them, and that it stops."""
    asked = tmp_path / "asked"
    for name in ("apt-get", "make"):
        put(tmp_path / "bin" / name, f'#!/bin/sh\necho {name} "$@" >> {asked}\n')
        (tmp_path / "bin" / name).chmod(0o755)
    run = ["env", f"PATH={tmp_path}/bin:/usr/bin:/bin", "bash", str(gradescope.OURS / "setup.sh")]
    subprocess.run(run, check=True)
    assert asked.read_text().splitlines() == [
        "apt-get update", "apt-get install --yes --no-install-recommends bubblewrap make "
        "python3.11 python3.11-venv", "make -C /autograder/source/course set-up BUILD=cpu"]
    put(tmp_path / "bin" / "apt-get", "#!/bin/sh\nexit 1\n")
    assert subprocess.run(run).returncode and asked.read_text().count("make -C") == 1
    assert re.search(r"^set-up:", (ROOT / "Makefile").read_text(), re.M)


def test_the_command_writes_the_zip(command, tmp_path):
    from lab import cli
    code, out, _ = command(cli.app, "lab", "export", "r01", "--gradescope", tmp_path / "a.zip")
    assert not code and "set in Gradescope: 7 points" in out and (tmp_path / "a.zip").exists()
    code, _, error = command(cli.app, "lab", "export")
    assert code == 2 and "export to what?" in error
