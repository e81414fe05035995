"""Boxes: what is in one, how it ends, and which level a machine gets."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.course import ROOT, CourseError
from lab.grading import box
from lab.judge.check import NotProvenHere
from tests.lab.grading import container

WALLS = ("bubblewrap", "namespaces")


@pytest.fixture(params=WALLS)
def level(request):
    if problem := box.trial(request.param):
        raise NotProvenHere(f"{request.param}: {problem}")
    return request.param


def test_a_box_ends_with_all_that_is_in_it(level):
    one = box.Box(level, {})
    assert Path(f"/proc/{one.holder}").exists()
    one.close()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{one.holder}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{one.holder}").exists()


def test_without_walls_each_job_writes_to_a_folder_of_its_own():
    """Compiled kernels lie there: in one for all, the next user could not write, or would find a
    kernel that somebody laid out for it."""
    one, two = (box.Box("limits", {}, user) for user in (61_184, 61_185))
    folders = [Path(each.request()["scratch"]) for each in (one, two)]
    assert folders[0] != folders[1] and all(not any(folder.iterdir()) for folder in folders)
    if os.getuid() == 0:
        assert [folder.stat().st_uid for folder in folders] == [61_184, 61_185]
        assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    (folders[0] / "left").touch()
    one.close(), two.close()
    assert not any(folder.exists() for folder in folders)


def test_a_box_that_cannot_be_made_says_why(level, tmp_path):
    with pytest.raises(OSError, match=level):
        box.Box(level, {"/here": tmp_path / "not there"})


def test_the_best_level_comes_first(monkeypatch):
    monkeypatch.setattr(box, "trial", {"bubblewrap": "no", "namespaces": None}.get)
    assert box.best.__wrapped__() == ("namespaces", ["bubblewrap: no"])


def test_where_not_even_limits_hold_nothing_is_graded(monkeypatch):
    monkeypatch.setattr(box, "trial", lambda level: "no")
    with pytest.raises(CourseError, match="nothing can be graded here: bubblewrap: no; .*limits"):
        box.best.__wrapped__()


def test_limits_are_refused_to_root_where_others_cannot_read(monkeypatch, tmp_path):
    """A right answer that cannot be imported would fail."""
    if os.getuid() != 0:
        raise NotProvenHere("needs root, which alone runs the code as another user")
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "python").symlink_to(box.sys.executable)
    monkeypatch.setattr(box.sys, "executable", str(private / "python"))
    assert "cannot read Python" in box.trial("limits")


def test_runs_beside_each_other_have_users_of_their_own():
    """As many as there are groups of users, of processes that began one after the other."""
    first, end = box.USERS
    users = [box.user_of(pid, slot) for pid in range(4_194_000, 4_194_067)
             for slot in range(box.EACH)]
    assert sorted(users) == list(range(first, end)) and end <= 2**16 - 2


def test_runs_in_two_containers_have_users_of_their_own():
    """Both are the same process there, by its number."""
    code = ("import os\nfrom lab.grading import box\n"
            "print(os.getpid(), box.user_of(box.process_number(), 0), flush=True)\ninput()")
    runs = [subprocess.Popen([*container.start(), "--ro-bind", str(ROOT), str(ROOT), "--ro-bind",
                              sys.prefix, sys.prefix, "--chdir", str(ROOT), sys.executable, "-c",
                              code], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(2)]
    (one_id, one), (two_id, two) = [run.stdout.readline().split() for run in runs]
    for run in runs:
        run.communicate("\n")
    assert one_id == two_id and one != two


def test_jobs_of_one_run_have_users_of_their_own():
    assert len({box.user_of(7, slot) for slot in range(1000)}) == 1000
