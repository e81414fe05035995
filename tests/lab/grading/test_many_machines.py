"""The worked examples for many machines, run here: what Slurm, Kubernetes and GitHub Actions would
set is set by the tests."""

import os
import subprocess
import sys

import pytest
import yaml

from lab.course import ROOT
from tests.lab.grading import classroom

GRADING = ROOT / "lab" / "grading"
SCRIPT = GRADING / "slurm.sh"
FEW = ["right desk", "one mistake", "untouched", "empty.zip"]


@pytest.fixture
def lab(tmp_path):
    """A folder to grade in, with this Python as its .venv: lab(words…) runs `lab` there."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "lab").symlink_to(ROOT / "lab")         # they run in the course's folder
    classroom.write(tmp_path / "sent", FEW)

    def run(*words, **variables):
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True,
                              env=os.environ | {"PYTHONPATH": str(ROOT)} | variables)
    return run


def task(lab, number, of, highest=None):
    return lab("bash", SCRIPT, "sent", "out", "--lessons", "r01", SLURM_ARRAY_TASK_ID=str(number),
               SLURM_ARRAY_TASK_COUNT=str(of), SLURM_ARRAY_TASK_MAX=str(highest or of),
               SLURM_CPUS_PER_TASK="2", LAB_SEED=str(number))


def test_the_array_and_its_merge_give_the_grades_of_one_run(lab, tmp_path):
    for number in (2, 1):                       # tasks come in any order
        done = task(lab, number, 2)
        assert done.returncode == 0, done.stderr
    merge = next(line for line in SCRIPT.read_text().splitlines() if "--merge" in line)
    words = merge.split('"')[1].replace("SUBMISSIONS", "sent").replace("OUT", "out").split()
    done = lab(*words)
    assert done.returncode == 0, done.stderr
    single = lab(".venv/bin/lab", "grade", "sent", "--out", "single", "--lessons", "r01",
                 LAB_SEED="3")
    assert single.returncode == 0, single.stderr
    for name in ("grades.csv", "verdicts.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "single" / name).read_bytes()
    assert (tmp_path / "out/grades.csv").read_text().count("\n") == 1 + len(FEW)
    repeated(lab, tmp_path)


def repeated(lab, folder):
    """The array submitted again after a failure: finished units stay as they are."""
    journal = folder / "out/journal-1-of-2.jsonl"
    whole = journal.read_bytes()
    done = task(lab, 1, 2)
    assert done.returncode == 0, done.stderr
    assert journal.read_bytes() == whole
    journal.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    assert task(lab, 1, 2).returncode == 0
    assert journal.read_bytes().count(b"\n") == whole.count(b"\n")


def test_a_part_of_an_array_is_refused(lab):
    """`--array=3` alone would be shard 1 of 1 by its count."""
    done = task(lab, 3, 1, highest=3)
    assert done.returncode == 2 and "without gaps" in done.stderr


def test_a_pod_and_a_job_are_shards_too(lab, tmp_path):
    """The first shard by Kubernetes' command, the second by the workflow's, and its merge."""
    pod = yaml.safe_load((GRADING / "kubernetes.yaml").read_text())["spec"]
    container = pod["template"]["spec"]["containers"][0]
    steps, merging = ([step["run"] for step in job["steps"] if "run" in step] for job in
                      yaml.safe_load((GRADING / "matrix.yml").read_text())["jobs"].values())
    assert container["env"] == [{"name": "SHARDS", "value": str(pod["completions"])}]
    assert pod["completionMode"] == "Indexed" and steps[0] == merging[0] == "make set-up"

    def here(command):
        for word, of_test in (("/class/submissions", "sent"), ("submissions", "sent"),
                              ("/class/out", "out"), ("k01,k02", "r01"), ("/8", "/2"),
                              ("${{ matrix.shard }}", "2")):
            command = command.replace(word, of_test)
        return command

    for command, index in ((*container["args"], "0"), (steps[-1], "")):
        done = lab("bash", "-c", here(command), SHARDS="2", JOB_COMPLETION_INDEX=index)
        assert done.returncode == 0, done.stderr
    assert lab("bash", "-c", here(merging[-1])).returncode == 0
    assert (tmp_path / "out/grades.csv").read_text().count("\n") == 1 + len(FEW)


def test_a_workflow_grades_as_many_shards_as_it_says():
    jobs = yaml.safe_load((GRADING / "matrix.yml").read_text())["jobs"]
    shards = jobs["shard"]["strategy"]["matrix"]["shard"]
    said = next(step["run"] for step in jobs["shard"]["steps"] if "shard.sh" in step.get("run", ""))
    assert shards == list(range(1, len(shards) + 1)) and f"}}}}/{len(shards)} " in said
    assert jobs["merge"]["needs"] == "shard"


def test_the_script_is_one_that_slurm_takes():
    """Slurm reads #SBATCH lines only up to the first command."""
    lines = SCRIPT.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert lines[0].startswith("#!") and options and max(options) < first
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    subprocess.run(["bash", "-n", GRADING / "shard.sh"], check=True)
