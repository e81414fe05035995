"""Ranks in a sandbox: they meet over a loopback that no other box has, or the level says so."""

import os
import struct
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from lab import course
from lab.course import ROOT
from lab.grading import box, seccomp
from lab.grading.sandbox import Sandbox
from lab.judge import check, mutants
from lab.judge.candidate import reference
from lab.judge.plugin import NotProvenHere

# The first mutant of both exercises of s23 is a send that waits: a verdict that only ranks give.
EXERCISES = [("s20_collectives", "exchange"), ("s23_pipeline_parallel", "forward_step"),
             ("s23_pipeline_parallel", "backward_step")]
OPEN = """
import errno, socket
from lab.grading import seccomp
seccomp.install(loopback=True)
for family, kind, protocol in ((2, 1, 0), (2, 2, 0), (16, 3, 0), (10, 1, 0), (1, 1, 0), (16, 3, 9),
                               (40, 1, 0), (17, 3, 0)):
    try:
        socket.socket(family, kind, protocol).close()
        print(family, protocol, "open")
    except OSError as error:
        print(family, protocol, errno.errorcode[error.errno])
"""


def grade(level, lesson, candidate, exercise):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        place = Sandbox(level, lesson, candidate, folder)
        try:
            return check.grade(lesson, candidate, [exercise], place)[0]
        finally:
            place.close()


@pytest.mark.parametrize("name, exercise", EXERCISES)
@pytest.mark.parametrize("level", ["bubblewrap", "namespaces"])
def test_ranks_meet_in_a_box(level, name, exercise):
    if problem := box.trial(level):
        raise NotProvenHere(f"{level}: {problem}")
    lesson = course.find(name)
    own = replace(reference(lesson), shapes=False)
    assert grade(level, lesson, own, exercise).verdict == "pass"
    mutant = next(m for m in mutants.mutants(lesson) if m["exercise"] == exercise)
    wrong = grade(level, lesson, mutants.mutate(lesson, mutant), exercise)
    assert (wrong.verdict, wrong.mistake) == ("fail", mutant["shows"])


@pytest.mark.parametrize("name, exercise", EXERCISES)
def test_without_walls_ranks_are_not_proven(name, exercise):
    """Their sockets would be the machine's."""
    lesson = course.find(name)
    verdict = grade("limits", lesson, replace(reference(lesson), shapes=False), exercise)
    assert verdict.verdict == "not_proven_here" and verdict.points is None
    assert "bubblewrap or namespaces" in verdict.message


@pytest.mark.parametrize("level", ["bubblewrap", "namespaces"])
def test_a_box_has_loopback_up_and_nothing_else(level):
    if problem := box.trial(level):
        raise NotProvenHere(f"{level}: {problem}")
    one = box.Box(level, {})
    try:
        lines = Path(f"/proc/{one.holder}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in lines] == ["lo"]
        routes = Path(f"/proc/{one.holder}/net/fib_trie").read_text()
        assert "127.0.0.1" in routes        # an address that is down has no route
    finally:
        one.close()


def test_with_loopback_only_its_sockets_open():
    if problem := seccomp.problem():
        raise NotProvenHere(problem)
    done = subprocess.run([sys.executable, "-P", "-c", OPEN], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.stdout.splitlines() == [
        "2 0 open", "2 0 open", "16 0 open", "10 0 EPERM", "1 0 EPERM", "16 9 EPERM", "40 0 EPERM",
        "17 0 EPERM"], done.stderr


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_no_other_call_is_decided_otherwise_with_loopback(machine):
    """The programs differ in the part about `socket` alone."""
    plain, ranks = (seccomp.program(machine, loopback) for loopback in (False, True))
    added = len(ranks) - len(plain)
    at = next(i for i in range(0, len(plain), 8) if plain[i:i + 8] != ranks[i:i + 8])
    assert added > 0 and plain[at:] == ranks[at + added:]
    number = seccomp.SOCKET[seccomp.MACHINES[machine][0]]
    assert struct.unpack("=HBBI", ranks[at:at + 8])[3] == number
