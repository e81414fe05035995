"""No attack gets a point that it did not earn, stops the grader, or leaves its box."""

import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from lab.course import ROOT
from lab.grading import box, seccomp
from lab.judge.plugin import NotProvenHere
from tests.lab.grading.container import USER, for_everybody, start
from tests.redteam import attacks

pytestmark = pytest.mark.timeout(1800)      # all tables together are a hundred submissions
HANGS = attacks.FOLDER / "hangs.toml"       # each takes the grader's whole patience
BOMBS = attacks.FOLDER / "bombs.toml"       # likewise, and one by one: no control beside a bomb
WALLS = attacks.FOLDER / "walls.toml"       # what only a box can hold back


@pytest.fixture
def canary(tmp_path):
    """A file outside that no process in a box may read or change."""
    file = tmp_path / "outside" / "canary"
    file.parent.mkdir()
    file.write_text("a secret of the instructor's")
    file.chmod(0o666)
    file.parent.chmod(0o777)
    return file


@pytest.fixture
def port():
    """A socket outside that no process in a box may reach."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as named:
        port = server.getsockname()[1]
        named.bind(f"\0lab-canary-{port}")
        named.listen()
        yield port
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def read(tables):
    """The controls, and the attacks of some tables."""
    return [one for table in (attacks.CONTROLS, *tables) for one in attacks.read(table)]


def refuse_otherwise(sent, rows, said):
    """AssertionError that names each attack whose verdict is not the one that it must get."""
    found = [(one, rows[one.student, one.exercise]) for one in sent]
    wrong = [f"{one.name}: {row['verdict']} {row['points']}, {row['message']}"
             for one, row in found if row["verdict"] not in one.verdict.split(" or ")]
    assert not wrong, "\n".join([*wrong, said])


@pytest.mark.parametrize("tables", [
    pytest.param([table for table in attacks.TABLES if table not in (HANGS, BOMBS)], id="together"),
    pytest.param([HANGS], id="hangs", marks=pytest.mark.slow),
    pytest.param([BOMBS], id="bombs", marks=[pytest.mark.slow, pytest.mark.alone])])
def test_every_attack_gets_its_verdict(tables, tmp_path, canary, port):
    sent = read(tables)
    attacks.send(sent, tmp_path / "sent", canary, port)
    rows, said = attacks.grade(tmp_path / "sent", tmp_path / "out",
                               {**os.environ, "LAB_CANARY": "a secret of the instructor's"},
                               jobs=1 if tables == [BOMBS] else 2)
    refuse_otherwise(sent, rows, said)
    assert canary.read_text() == "a secret of the instructor's"
    assert [file.name for file in canary.parent.iterdir()] == ["canary"]


@pytest.mark.slow
@pytest.mark.parametrize("level", ["bubblewrap", "namespaces"])
def test_the_walls_stand_at_either_level(level, tmp_path, canary, port):
    """A grader that does not find bubblewrap takes namespaces."""
    if problem := box.trial(level):
        raise NotProvenHere(problem)
    programs = tmp_path / "programs"
    programs.mkdir()
    if level == "bubblewrap":
        (programs / "bwrap").symlink_to(shutil.which("bwrap"))
    sent = read([WALLS])
    attacks.send(sent, tmp_path / "sent", canary, port)
    paths = f"{programs}:{Path(sys.executable).parent}"
    rows, said = attacks.grade(tmp_path / "sent", tmp_path / "out", {
        **os.environ, "LAB_CANARY": "a secret of the instructor's", "PATH": paths})
    assert f"sandbox: {level}" in said
    assert "system calls: filtered" in said or seccomp.problem()
    refuse_otherwise(sent, rows, said)
    assert canary.read_text() == "a secret of the instructor's"


@pytest.mark.slow
def test_the_walls_stand_around_an_ordinary_users_boxes(tmp_path, canary, port):
    """There the code in a box has the same user as the box itself."""
    sent = read([WALLS])
    attacks.send(sent, tmp_path / "sent", canary, port)
    tmp_path.chmod(0o777)
    rows, said = attacks.grade(tmp_path / "sent", tmp_path / "out", dict(os.environ), before=(
        *for_everybody(tmp_path), *USER, "env", "HOME=/tmp",
        "LAB_CANARY=a secret of the instructor's"))
    assert "sandbox: bubblewrap" in said
    refuse_otherwise(sent, rows, said)
    assert canary.read_text() == "a secret of the instructor's"


@pytest.mark.slow
def test_without_walls_points_are_as_they_were(tmp_path, canary, port):
    """In a container that may not make namespaces.
    Without walls there is no limit on space either.
    """
    words = start()
    for path in (ROOT, Path(sys.prefix)):
        words += [word for above in reversed(path.parents[:-1]) for word in ("--dir", str(above))]
        words += ["--ro-bind", str(path), str(path)]
    sent = [one for one in read(set(attacks.TABLES) - {HANGS, BOMBS, WALLS})
            if one.name != "a file of more than the box has room for"]
    attacks.send(sent, tmp_path / "sent", canary, port)
    rows, said = attacks.grade(tmp_path / "sent", tmp_path / "out", dict(os.environ), before=(
        *words, "--bind", str(tmp_path), str(tmp_path), "--chdir", str(ROOT), "--setenv",
        "LAB_CANARY", "a secret of the instructor's", "--setenv", "PYTHONPATH", str(ROOT)))
    assert "sandbox: limits" in said
    refuse_otherwise(sent, rows, said)


def test_the_catalogue_is_whole():
    """Each number has its line, and a line names exactly the tables that have its attacks."""
    lines = re.findall(r"^\| (\d+) \| .*? \| (.*) \|$",
                       (attacks.FOLDER / "README.md").read_text("utf-8"), re.M)
    assert [int(number) for number, _ in lines] == list(range(1, 54))
    tried = {(table.name, number) for table in attacks.TABLES
             for one in attacks.read(table) for number in one.numbers}
    named = {(table, int(number)) for number, text in lines
             for table in re.findall(r"`(\w+\.toml)`", text.replace("`output.toml` 32", ""))}
    assert named == tried


def test_attacks_have_names_of_their_own():
    sent = [one for table in (attacks.CONTROLS, *attacks.TABLES) for one in attacks.read(table)]
    assert len({one.student for one in sent}) == len(sent)
