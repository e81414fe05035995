"""The worked example for a cluster, run here: Slurm's variables stand in for Slurm."""

import os
import subprocess
import sys

import pytest

from lab.course import ROOT
from tests.lab.grading import classroom

SCRIPT = ROOT / "lab" / "grading" / "slurm.sh"
FEW = ["right desk", "one mistake", "untouched", "empty.zip"]


@pytest.fixture
def lab(tmp_path):
    """A folder to grade in, with this Python as its .venv: lab(words…) runs `lab` there."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
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


def test_the_script_is_one_that_slurm_takes():
    """Slurm reads #SBATCH lines only up to the first command."""
    lines = SCRIPT.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert lines[0].startswith("#!") and options and max(options) < first
    subprocess.run(["bash", "-n", SCRIPT], check=True)
