"""The script for a cluster, run here: two agents on this machine stand in for two nodes."""

import os
import socket
import subprocess
import sys

import pytest

from lab.course import ROOT

SCRIPT = ROOT / "layer3_system" / "bench" / "nodes.sh"
# `srun` starts its command once on each node and fails where one of them does.
SRUN = """#!/usr/bin/env bash
"$@" & first=$!
"$@" & second=$!
wait $first && wait $second
"""
SCONTROL = "#!/usr/bin/env bash\necho localhost\n"


@pytest.fixture
def cluster(tmp_path):
    """cluster(words…): the script's process, with this Python as its .venv."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv").symlink_to(sys.prefix)

    def run(*words):
        slurm = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2",
                 "SLURM_JOB_ID": str(free_port() - 20000)}
        own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "RANKS": "1",
               "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run(["bash", SCRIPT, *words], cwd=tmp_path, capture_output=True,
                              text=True, env=os.environ | slurm | own)
    return run


def free_port():
    """One that the script can choose by a job's number."""
    for port in range(20000, 30000):
        with socket.socket() as server:
            try:
                server.bind(("localhost", port))
                return port
            except OSError:
                continue
    raise AssertionError("no port between 20000 and 30000 is free")


@pytest.mark.slow                       # each waits for two agents
@pytest.mark.parametrize("name", ["data_parallel", "tensor_parallel"])
def test_two_nodes_end_well(cluster, name):
    done = cluster(name)
    assert done.returncode == 0 and done.stdout, done.stderr


def test_two_nodes_meet_and_compare(cluster):
    done = cluster("context_parallel")
    assert done.returncode == 0, done.stderr
    ring, ulysses = [line for line in done.stdout.splitlines() if "from one rank" in line]
    assert ring.startswith("ring") and ulysses.startswith("Ulysses")
    assert "2 ranks, gloo" in done.stdout


def test_another_name_is_refused(cluster):
    done = cluster("pipeline")
    assert done.returncode == 2 and "got 'pipeline'" in done.stderr
