"""Warm processes: found again, replaced, ended; and what they end."""

import functools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from lab.course import ROOT, CourseError
from lab.remote import servers, warm
from lab.remote.servers import Servers
from lab.remote.warm import Child

ROLE = "tests.lab.remote.echo"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Shared servers in a folder of the test, which end with it."""
    monkeypatch.setattr(servers, "STARTED", [])
    monkeypatch.setattr(servers, "QUIET", 0.05)
    yield Servers(str(servers.own(tmp_path / "warm")), servers.fingerprint(), leashed=False)
    for process, _ in servers.STARTED:
        process.kill()
        process.wait()


def ask(place, *lines, modules=("json",)):
    """(a child, its process ID, its server's, what it says)."""
    child = Child(ROLE, {"lines": lines}, modules, place)
    text = b""
    while not text.endswith(b"\n"):
        text += child.read(1, time.monotonic() + 60)
    pid, server, said = text.decode().split(" ", 2)
    return child, int(pid), int(server), said.strip()


def wait_until(true):
    """Return when it is; the test's own time limit ends what never is."""
    while not true():
        time.sleep(0.01)


def is_gone(pid):
    """Whether a process has ended, be it buried or not."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(") ")[2].startswith(("Z", "X"))
    except (FileNotFoundError, ProcessLookupError):
        return True


def sockets(place):
    return [path for path in Path(place.folder).iterdir() if path.is_socket()]


# ---- found, started


def test_a_server_is_found_again(place):
    first, second = ask(place), ask(place)
    assert first[2] == second[2] and first[1] != second[1]
    assert len(servers.STARTED) == 1


def test_what_a_forked_process_starts_is_not_found_by_others(place):
    """It would end with that process, and what the others had forked in it as well."""
    forked = replace(place, leashed=True, here=("json",))
    child, *_ = ask(forked)
    assert sockets(place) == []
    child.kill()


def test_other_modules_have_another_server(place):
    assert ask(place)[2] != ask(place, modules=("json", "numpy"))[2]


def test_a_process_uses_the_server_that_it_was_given_where_that_has_enough(place):
    large = ("json", "numpy")
    _, _, server, _ = ask(place, modules=large)
    here = replace(place, here=large)
    assert ask(here, modules=("json",))[2] == server
    assert ask(here, modules=("json", "decimal"))[2] != server


def test_others_than_the_given_one_are_never_started_where_they_would_end_with_this_process(
        place, monkeypatch):
    """A unit of a class's grading: the others would find a server that ends under their hands."""
    monkeypatch.setattr(servers, "common", lambda: replace(place, here=()))
    here = replace(place, here=("numpy",), leashed=True)
    assert ask(here)[2] == ask(place)[2]


def test_many_that_start_at_once_start_one(place):
    with ThreadPoolExecutor(8) as pool:
        children = list(pool.map(lambda _: ask(place), range(8)))
    assert len({server for _, _, server, _ in children}) == 1


def test_many_processes_that_start_at_once_start_one(place):
    code = ("from tests.lab.remote.test_servers import ask\n"
            "from lab.remote.servers import Servers\n"
            f"print(ask(Servers(*{(place.folder, place.course, False)!r}))[2])")
    processes = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True,
                                  stdout=subprocess.PIPE) for _ in range(4)]
    pids = {int(process.communicate()[0]) for process in processes}
    assert len(pids) == 1
    os.kill(pids.pop(), signal.SIGKILL)


def test_a_killed_server_is_started_again(place):
    _, pid, server, _ = ask(place)
    os.kill(server, signal.SIGKILL)
    servers.STARTED[0][0].wait()
    assert ask(place)[2] != server
    os.kill(pid, signal.SIGKILL)


def test_who_is_hung_up_on_asks_once_more(place, monkeypatch):
    connect = Servers.connect
    here, there = socket.socketpair()
    there.close()
    closed = [here]
    monkeypatch.setattr(Servers, "connect",
                        lambda self, *names: closed.pop() if closed else connect(self, *names))
    assert ask(place)[3] == ""
    assert not closed


def test_a_folder_may_lie_deep(place, tmp_path):
    """The address of a socket has room for 107 bytes."""
    deep = servers.own(tmp_path / ("d" * 100) / ("e" * 100))
    assert ask(replace(place, folder=str(deep)))[3] == ""


def test_a_server_that_cannot_import_says_why(place):
    with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
        ask(place, modules=("no_such_module",))


def test_who_connects_and_leaves_does_no_harm(place):
    _, _, server, _ = ask(place)
    for _ in range(20):
        servers.dial(place.address(("json",))).close()
    assert ask(place)[2] == server


# ---- whose it is


@pytest.mark.parametrize("made", ["another user's", "a link"])
def test_a_folder_of_anybody_else_is_refused(tmp_path, monkeypatch, made):
    folder = tmp_path / "warm"
    if made == "a link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(CourseError, match=rf"{re.escape(str(folder))}: expected a folder of user"):
        servers.own(folder)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "warm").write_text("")
    with pytest.raises(CourseError, match=r"cannot use .*warm, where .*: File exists; XDG_CACHE_"):
        servers.own(tmp_path / "warm")


def test_a_server_of_another_user_is_refused(place, monkeypatch):
    address = place.start(("json",))
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(CourseError, match="expected a server of user"):
        servers.dial(address)


def test_no_other_user_may_enter_the_folder(tmp_path):
    folder = tmp_path / "warm"
    folder.mkdir(mode=0o777)
    assert servers.own(folder).stat().st_mode & 0o077 == 0


def test_all_processes_of_a_run_share_one_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_WARM", str(tmp_path / "run"))
    monkeypatch.setattr(servers, "common", functools.cache(servers.common.__wrapped__))
    assert servers.common().folder == servers.shared().folder == str(tmp_path / "run")
    assert not servers.common().leashed


def test_without_a_run_a_command_has_its_own_and_learners_share(tmp_path, monkeypatch):
    monkeypatch.delenv("LAB_WARM")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(servers, "common", functools.cache(servers.common.__wrapped__))
    assert servers.common() == servers.private() and servers.private().leashed
    assert servers.shared().folder == str(tmp_path / "three-floors" / f"warm-{os.geteuid()}")
    assert not servers.shared().leashed


def test_a_class_is_graded_with_private_servers_whatever_the_run_shares(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_WARM", str(tmp_path / "run"))
    assert servers.private().folder != str(tmp_path / "run")
    assert "private()" in (ROOT / "lab" / "grading" / "run.py").read_text("utf-8")


# ---- when it ends


def test_an_idle_server_ends_and_takes_its_name_away(place, monkeypatch):
    monkeypatch.setattr(servers, "IDLE", 0)
    child, _, _, _ = ask(place)
    [(process, address)] = servers.STARTED
    for _ in range(5):
        time.sleep(servers.QUIET)               # a child is work
        assert process.poll() is None and address.exists()
    child.kill()
    assert process.wait() == 0 and sockets(place) == []
    assert ask(place)[2] != process.pid


def test_a_server_of_an_earlier_course_ends(place):
    earlier = replace(place, course="of the files before")
    child, _, server, _ = ask(earlier)
    assert ask(place)[2] != server              # a changed course has its own from the first
    assert not is_gone(server)                  # what is being graded ends first
    child.kill()
    assert servers.STARTED[0][0].wait() == 0


def test_a_server_whose_name_is_gone_ends(place):
    child, _, _, _ = ask(place)
    [(process, address)] = servers.STARTED
    address.unlink()
    child.kill()
    assert process.wait() == 0


def test_the_course_is_another_when_a_file_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "ROOT", tmp_path)
    path = tmp_path / "lab" / "room" / "a.py"
    path.parent.mkdir(parents=True)
    path.write_text("x = 1")
    prints = [servers.fingerprint()]
    for change in (lambda: path.write_text("x = 12"), lambda: os.utime(path, (1, 1)),
                   lambda: path.with_name("b.py").touch(), path.unlink):
        change()
        prints.append(servers.fingerprint())
    assert len(set(prints)) == len(prints)
    (tmp_path / "work").mkdir()
    (tmp_path / "lab" / "__pycache__").mkdir()
    (tmp_path / "lab" / "__pycache__" / "a.pyc").touch()
    assert servers.fingerprint() == prints[-1]


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_a_private_server_ends_with_its_process(how):
    code = ("import os, sys, time\nfrom tests.lab.remote.test_servers import ask\n"
            "from lab.remote.servers import private\n"
            "print(ask(private())[2], private().folder, flush=True)\n"
            f"{'time.sleep(600)' if how == 'is killed' else ''}")
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE)
    server, folder = process.stdout.readline().split()
    if how == "is killed":
        process.kill()
    process.wait()
    wait_until(lambda: is_gone(int(server)))
    assert how == "is killed" or not Path(folder).exists()


# ---- children

STARTS = "said = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid"


def test_a_child_ends_with_all_it_started_when_who_asked_hangs_up(place):
    child, pid, _, other = ask(place, STARTS)
    child.connection.close()                    # as the kernel does for a process that is killed
    wait_until(lambda: is_gone(pid) and is_gone(int(other)))


def test_what_a_child_leaves_behind_ends_too(place):
    child, pid, server, other = ask(place, STARTS)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(int(other)))
    with pytest.raises(EOFError):
        child.read(8, time.monotonic() + 60)
    assert child.ending() == "SIGKILL ended it"
    assert ask(place)[2] == server


def test_a_child_that_is_killed_leaves_no_temporary_file(place):
    made = "import tempfile; said = tempfile.mkdtemp()"
    child, pid, _, folder = ask(place, made)
    assert Path(folder).is_dir()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(folder).parent.exists())


def test_how_a_child_ended_before_it_was_asked_is_known(place):
    child, pid, _, _ = ask(place)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not child.runs())
    wait_until(lambda: child.answers(time.monotonic()))
    with pytest.raises(BrokenPipeError):
        child.connection.sendall(b"x")
    assert child.ending() == "SIGKILL ended it"


def test_the_number_of_a_child_that_has_ended_is_not_used(place, monkeypatch):
    """By then it may be another's."""
    child, pid, _, _ = ask(place)
    assert child.runs()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not child.runs())
    signals = []
    monkeypatch.setattr(warm, "end_group", signals.append)
    child.end()
    assert child.stack() == [] and signals == []
    child.kill()
    child.kill()


def test_a_child_has_no_file_of_its_server_or_of_another_child(place):
    ask(place)
    listed = "said = len(os.listdir('/proc/self/fd'))"
    _, _, _, second = ask(place, listed)
    others = [ask(place) for _ in range(5)]
    assert ask(place, listed)[3] == second and len(others) == 5


def test_many_children_are_buried(place):
    for _ in range(30):
        child, pid, server, _ = ask(place)
        child.kill()
    wait_until(lambda: not any(
        path.read_text().rpartition(") ")[2].split()[1] == str(server)
        for path in Path("/proc").glob("[0-9]*/stat") if path.exists()))
