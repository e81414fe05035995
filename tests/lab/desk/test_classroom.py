"""Points for GitHub Classroom: the workflow's own command, and what its reporter adds up."""

import base64
import json
import subprocess
import sys

import pytest
import yaml

from lab import device
from lab.course import ROOT

WORKFLOW = yaml.safe_load((ROOT / "lab" / "grading" / "classroom.yml").read_text("utf-8"))
STEPS = WORKFLOW["jobs"]["run-autograding-tests"]["steps"]


def handed_in(folder, reports):
    """The result that the step `points` gives to the reporter, decoded."""
    (folder / "check.json").write_text(json.dumps(reports))
    [step] = [step for step in STEPS if step.get("id") == "points"]
    command = step["run"].replace(".venv/bin/python", f"{sys.executable} -P")
    output = folder / "output"
    subprocess.run(["bash", "-e", "-c", command], cwd=folder, check=True,
                   env=device.child_environment(ROOT) | {"GITHUB_OUTPUT": str(output)})
    name, _, text = output.read_text().partition("=")
    assert name == "result" and text.count("\n") == 1
    return json.loads(base64.b64decode(text))


def exercise(name, verdict, points, most=2):
    return {"name": name, "verdict": verdict, "points": points, "max_points": most, "message": "é"}


@pytest.mark.parametrize("verdict, points, status", [
    ("pass", 2, "pass"), ("fail", 0, "fail"), ("not_attempted", 0, "pass"), ("error", 0, "fail")])
def test_the_sum_and_whether_the_run_is_red(tmp_path, verdict, points, status):
    result = handed_in(tmp_path, [
        {"lesson": "k01", "exercises": [exercise("add", verdict, points),
                                        exercise("add.speed", "not_proven_here", None)]},
        {"lesson": "r01", "exercises": [exercise("count_add", "pass", 3, 3)]}])
    assert (result["status"], result["max_score"]) == (status, 5)
    assert [(t["name"], t["score"]) for t in result["tests"]] == [("k01/add", points),
                                                                  ("r01/count_add", 3)]


def test_it_reads_what_lab_check_writes(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("def count_add(n, itemsize):\n    return n, 3 * n * itemsize\n")
    done = subprocess.run([sys.executable, "-P", "-m", "lab.cli", "check", "r01", "--json",
                           "--file", mine], cwd=ROOT, capture_output=True, text=True)
    result = handed_in(tmp_path, json.loads(done.stdout))       # one lesson's, which is no list
    scores = {test["name"]: test["score"] for test in result["tests"]}
    assert scores.pop("r01_roofline/count_add") > 0 and set(scores.values()) == {0}
    assert result["status"] == "pass" and result["max_score"] > sum(scores.values())


def test_the_reporter_is_told_where_the_points_are():
    reporter = STEPS[-1]
    assert reporter["env"] == {"POINTS_RESULTS": "${{ steps.points.outputs.result }}"}
    assert reporter["with"]["runners"] == "points"
