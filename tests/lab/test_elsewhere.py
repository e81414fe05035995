"""Checks on another machine: a program in place of ssh, and a real server of this machine."""

import dataclasses
import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from lab import course, elsewhere
from lab.course import ROOT, CourseError
from lab.judge.candidate import reference
from lab.judge.plugin import NotProvenHere

LESSON = course.find("k01_vector_add")
OTHER = SimpleNamespace(id=LESSON.id, fingerprint="another", sources={}, bench=LESSON.bench)
# Its graders are ours, its kernel is not.
OLDER = SimpleNamespace(id=LESSON.id, fingerprint=LESSON.fingerprint, sources={"cuda": "older"},
                        bench=LESSON.bench)
# What ssh does, without the other machine: it runs its last word in the user's own folder.
SSH = """#!/bin/sh
for command; do :; done
cd {home}
echo Welcome to the box.
exec sh -c "$command"
"""


@pytest.fixture
def home(tmp_path):
    """A user's folder with a clone that is set up."""
    (tmp_path / elsewhere.FOLDER).mkdir()
    (tmp_path / elsewhere.FOLDER / ".venv").symlink_to(sys.prefix)
    return tmp_path


def in_place_of_ssh(folder, monkeypatch, text):
    programs = folder / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(text)
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def box(home, monkeypatch):
    in_place_of_ssh(home, monkeypatch, SSH.format(home=home))
    return home


def graded(place, source=None):
    candidate = reference(LESSON)
    if source is not None:
        candidate = dataclasses.replace(candidate, sources=candidate.sources | {"cuda": source})
    right, speed = elsewhere.verdicts(place, LESSON, candidate, ["add_vector_cuda"])
    assert speed.name == "add_vector_cuda.speed"
    return right


def test_the_learners_file_goes_there_and_verdicts_come_back(box):
    assert graded("box").verdict == "pass"
    wrong = graded("box", LESSON.sources["cuda"].replace("a.x + b.x", "a.x - b.x"))
    assert (wrong.verdict, wrong.points) == ("fail", 0) and wrong.message


def command(*words):
    return subprocess.run([sys.executable, "-P", "-m", "lab.cli", *words], capture_output=True,
                          text=True)


def check_by_command(place, tmp_path):
    """`lab check` of a right file on another machine, as a learner types it."""
    mine = tmp_path / "mine.cu"
    mine.write_text(LESSON.sources["cuda"])
    done = command("check", "k01/add_vector_cuda", "--on", place, "--json", "--file", mine)
    names = [(row["name"], row["verdict"]) for row in json.loads(done.stdout)["exercises"]]
    assert ("add_vector_cuda", "pass") in names and "add_vector_cuda.speed" in dict(names)


def test_the_command_and_its_report(box, tmp_path):
    check_by_command("box", tmp_path)
    done = command("bench", "s01", "--on", "box")
    assert done.returncode == 2
    assert done.stderr.startswith("lab: box: ") and "no NVIDIA GPU there" in done.stderr


@pytest.mark.parametrize("place, lesson, sentence", [
    ("box", OTHER, "box: its k01_vector_add is not the one that you have: bring both clones"),
    ("box", OLDER, "box: its k01_vector_add is not the one that you have: bring both clones"),
    ("box:elsewhere", LESSON, "no answer from box: expected a clone of the course that is set up "
                              "in elsewhere, found: .*elsewhere"),
    ("-oProxyCommand=x", LESSON, "--on -oProxyCommand=x: expected HOST or HOST:FOLDER"),
    (":x", LESSON, "--on :x: expected HOST or HOST:FOLDER")])
def test_what_cannot_be_asked_is_one_line(box, place, lesson, sentence):
    with pytest.raises(CourseError, match=sentence):
        elsewhere.measure(place, lesson)


def test_a_machine_that_cannot_be_reached(tmp_path, monkeypatch):
    in_place_of_ssh(tmp_path, monkeypatch, "#!/bin/sh\necho 'port 22: refused' >&2\nexit 255\n")
    with pytest.raises(CourseError, match="^cannot reach box: port 22: refused$"):
        elsewhere.measure("box", LESSON)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CourseError, match="--on needs the program ssh"):
        elsewhere.measure("box", LESSON)


def test_what_needs_no_gpu_is_not_sent():
    lesson = course.find("r01_roofline")
    with pytest.raises(CourseError, match="count_add needs no GPU: check it here, without --on"):
        elsewhere.verdicts("box", lesson, reference(lesson), ["count_add"])


@pytest.fixture
def server(home, monkeypatch):
    """An ssh server on this machine, for this user alone."""
    programs = [shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
                for name in ("sshd", "ssh", "ssh-keygen")]
    if None in programs:
        raise NotProvenHere("needs an ssh server")
    sshd, ssh, keygen = programs
    for name in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", home / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (home / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {home}/host\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {home}/user.pub\nStrictModes no\n"
        f"SetEnv PYTHONPATH={ROOT} XDG_CACHE_HOME={home}\n")
    (home / "ssh_config").write_text(
        f"Host box\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n"
        f" IdentityFile {home}/user\n IdentitiesOnly yes\n BatchMode yes\n"
        f" UserKnownHostsFile {home}/known\n StrictHostKeyChecking accept-new\n")
    in_place_of_ssh(home, monkeypatch, f'#!/bin/sh\nexec {ssh} -F {home}/ssh_config "$@"\n')
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    process = subprocess.Popen([sshd, "-D", "-e", "-f", home / "sshd_config"])
    try:
        wait_for(port)
        yield f"box:{home / elsewhere.FOLDER}"
    finally:
        process.terminate()
        process.wait()


def wait_for(port):
    for _ in range(100):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the ssh server does not listen")


def test_over_a_real_server(server, tmp_path):
    assert graded(server).verdict == "pass"
    check_by_command(server, tmp_path)
    with pytest.raises(CourseError, match="its k01_vector_add is not the one"):
        elsewhere.measure(server, OTHER)
