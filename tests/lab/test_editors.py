"""What editors and containers read: files that name commands, and find the lines of fails."""

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from lab import course
from lab.course import ROOT
from lab.judge import report
from lab.judge.candidate import Candidate
from lab.judge.verdict import Verdict

FILES = [*sorted((ROOT / ".vscode").glob("*.json")), ROOT / ".devcontainer" / "devcontainer.json"]
TASKS = json.loads((ROOT / ".vscode" / "tasks.json").read_text("utf-8"))["tasks"]
MATCHER = re.compile(TASKS[0]["problemMatcher"]["pattern"]["regexp"])
R01 = course.find("r01_roofline")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_can_be_read(path):
    assert json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task["label"])
def test_a_task_runs_a_command_that_is_there(task):
    """With a file of the desk: its name is its lesson's."""
    program, name, lesson, *options = task["command"].split()
    assert program == ".venv/bin/lab" and lesson == "${fileBasenameNoExtension}"
    told = subprocess.run([sys.executable, "-P", "-m", "lab.cli", name, "--help"], cwd=ROOT,
                          capture_output=True, text=True, check=True).stdout
    assert all(option in told for option in options)


def test_a_container_has_a_python_that_is_supported():
    version = re.search(r"FROM python:(3\.\d+)", (ROOT / ".devcontainer/Dockerfile").read_text())[1]
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    low, high = (tuple(map(int, part.split("."))) for part in re.findall(r"3\.\d+", wanted))
    assert low <= tuple(map(int, version.split("."))) < high


def test_a_container_is_set_up_by_a_target_that_is_there():
    container = json.loads(FILES[-1].read_text("utf-8"))
    make, target = container["postCreateCommand"].split()
    assert subprocess.run([make, "-n", target], cwd=ROOT, capture_output=True).returncode == 0


def problem(text, message, label="work/r01.py", name="count_add"):
    candidate = Candidate({"python": text}, {"python": label})
    line, = report.problems(R01, candidate, [Verdict(name, "fail", 0, 1, message)])
    return MATCHER.fullmatch(line).groups()


@pytest.mark.parametrize("message, line, sentence", [
    ("count_add: TypeError: no\n  in count_add(1000, 16)\n    work/r01.py, line 7: return 2", "7",
     "TypeError: no"),
    ("count_add: got 3, expected 2", "4", "got 3, expected 2"),     # its definition
    ("work/r01.py, line 2: invalid syntax\n    x =", "2", "work/r01.py, line 2: invalid syntax"),
    ("count_add: wrong\n    lab/other.py, line 9", "4", "wrong")])
def test_a_fail_is_at_the_learners_line(message, line, sentence):
    text = "import math\n\n\ndef count_add(n, itemsize):\n    return n, n\n"
    assert problem(text, message) == ("work/r01.py", line, f"count_add: {sentence}")


def test_a_text_that_cannot_be_read_has_its_first_line():
    assert problem("def count_add(:\n", "nothing known")[1] == "1"


def test_what_passed_is_no_problem():
    candidate = Candidate({"python": ""}, {"python": "work/r01.py"})
    verdicts = [Verdict("count_add", kind, 0, 1, "") for kind in ("pass", "not_attempted")]
    assert report.problems(R01, candidate, verdicts) == []


def test_lab_check_prints_them_last(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("def count_add(n, itemsize):\n    return n[0], n\n")
    command = [sys.executable, "-P", "-m", "lab.cli", "check", "count_add", "--problems", "--file"]
    done = subprocess.run([*command, mine], cwd=ROOT, capture_output=True, text=True)
    path, line, message = MATCHER.fullmatch(done.stdout.splitlines()[-1]).groups()
    assert (path, line) == (str(mine), "2") and "count_add: TypeError" in message
    mine.write_text("def count_add(n, itemsize):\n    return n, 3 * n * itemsize\n")
    done = subprocess.run([*command, mine], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and not any(map(MATCHER.fullmatch, done.stdout.splitlines()))


def test_the_workflow_proves_as_everybody_can():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "proof.yml").read_text("utf-8"))
    commands = [step["run"] for step in workflow["jobs"]["proof"]["steps"] if "run" in step]
    assert commands == [".ci/run"] and os.access(ROOT / ".ci" / "run", os.X_OK)
