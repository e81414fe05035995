"""Boxes: what is in one, how it ends, and which level a machine gets."""

import os
import select
import subprocess
import threading
from pathlib import Path

import pytest

from lab.course import CourseError
from lab.grading import box
from lab.judge.plugin import NotProvenHere

WALLS = ("bubblewrap", "namespaces")


@pytest.fixture(params=WALLS)
def level(request):
    if problem := box.trial(request.param):
        raise NotProvenHere(f"{request.param}: {problem}")
    return request.param


@pytest.mark.alone
def test_a_box_ends_with_all_that_is_in_it(level):
    one = box.Box(level, {})
    with open(os.pidfd_open(one.holder)) as holder:
        assert select.select([holder], [], [], 0) == ([], [], [])
        one.close()
        assert select.select([holder], [], [], 0) == ([holder], [], [])     # it is gone at once


def test_a_jobs_user_has_no_processes_after_it():
    """Not even of sessions of their own, which end with no box where there is none."""
    if os.getuid() != 0:
        raise NotProvenHere("needs root, which alone runs the code as another user")
    user = 61_190
    bomb = "for i in 1 2 3 4 5 6 7 8; do setsid sleep 1000 & done; echo ready; sleep 1000"
    with subprocess.Popen(["sh", "-c", bomb], user=user, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"ready\n" and len(box.processes()[user]) >= 2
        reaper = threading.Thread(target=first.wait)
        reaper.start()
        assert user not in box.draw_users(10_000)
        box.vacate(user, "limits")
        reaper.join()
        assert user not in box.processes()


def test_without_walls_each_job_writes_to_a_folder_of_its_own():
    """Compiled kernels lie there: in a shared folder the next user could not write, or would find
    a kernel that was planted for it."""
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


def test_where_not_even_limits_hold_grading_is_refused(monkeypatch):
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


def test_jobs_of_one_run_have_users_of_their_own():
    first, end = box.USERS
    users = box.draw_users(1000)
    assert len(set(users)) == 1000 and set(users) <= set(range(first, end)) and end <= 2**16 - 2


def test_runs_beside_each_other_have_users_of_their_own():
    """Nearly always: 100 runs of four jobs begin at 90 different users or more."""
    assert len({box.draw_users(4)[0] for _ in range(100)}) >= 90


def test_a_course_in_a_folder_that_boxes_show_is_graded_in_none(monkeypatch):
    monkeypatch.setattr(box, "ROOT", Path("/usr/src/app"))
    for level in ("bubblewrap", "namespaces"):
        assert box.trial(level) == "the course is in /usr, which every box shows"
