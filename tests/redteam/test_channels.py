"""No submission passes a word to the next by any way that its level does not name as open.

Tried as root and as an ordinary user, each in a container with folders of its own, since what the
first leaves would otherwise stay on this machine.
"""

import json
import subprocess
import sys

import pytest

from lab.course import ROOT
from lab.grading import box, channels, seccomp
from lab.judge.plugin import NotProvenHere
from tests.lab.grading.container import USER, for_everybody
from tests.redteam.channels import READERS

pytestmark = pytest.mark.alone          # a user has room for few keys, whoever asks
RINGS = ("session keyring", "user keyring", "user session keyring", "persistent keyring")
NAMED = {
    channels.KEYS: {*RINGS},
    channels.LOCKS: {"flock", "lock by fcntl", "inotify"},
    channels.SOCKETS: {"abstract socket", "TCP", "UDP"},
    channels.IPC: {"System V shared memory", "System V semaphore", "System V message queue",
                   "POSIX message queue"},
    channels.FILES: {"file in /tmp", "file in /var/tmp", "file in /dev/shm", "pipe in a folder"},
    channels.TIMES: {"time of a shared file's last reading"},
    channels.PROCESSES: {"name of a process", "environment of a process", "signal",
                         "anonymous memory of a process"},
    channels.LOAD: set(),           # no yes or no: it would have to be measured
}


@pytest.fixture(scope="module")
def container():
    return for_everybody()


def worked(container, who, level, filtered=True):
    """Names of the ways by which a word came through."""
    done = subprocess.run(
        [*container, *who, "env", "HOME=/tmp", f"PYTHONPATH={ROOT}", sys.executable, "-P", "-m",
         "tests.redteam.channels", level, "" if filtered else "unfiltered"],
        capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout)["read"])


def test_every_way_belongs_to_one_that_is_named():
    ways = [way for group in NAMED.values() for way in group]
    assert sorted(ways) == sorted(READERS)


@pytest.mark.parametrize("who", [(), USER], ids=["root", "user"])
def test_without_a_box_every_way_is_open(container, who):
    """So no way is closed merely because of how it is tested."""
    assert worked(container, who, "none") == set(READERS)


@pytest.mark.parametrize("who", [(), USER], ids=["root", "user"])
@pytest.mark.parametrize("filtered", [True, False], ids=["filtered", "unfiltered"])
@pytest.mark.parametrize("level", box.LEVELS)
def test_what_a_level_does_not_name_is_closed(container, level, filtered, who):
    if filtered and (problem := seccomp.problem()):
        raise NotProvenHere(problem)
    through = worked(container, who, level, filtered)
    named = [NAMED[way] for way in channels.open_ways(level, filtered)]
    assert through <= set().union(*named), "open but not named"
    for group in named:
        assert not group or through & group, "named but not open"
