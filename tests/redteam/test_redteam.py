"""No attack earns a point that it did not earn, stops the grader, or leaves its box."""

import os
import socket

import pytest

from tests.redteam import attacks


@pytest.fixture
def canary(tmp_path):
    """A file outside that nobody in a box may read or change."""
    file = tmp_path / "outside" / "canary"
    file.parent.mkdir()
    file.write_text("a secret of the instructor's")
    file.chmod(0o666)
    file.parent.chmod(0o777)
    return file


@pytest.fixture
def port():
    """A socket outside that nobody in a box may reach."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as named:
        named.bind("\0lab-canary")
        named.listen()
        yield server.getsockname()[1]
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("table", attacks.TABLES, ids=lambda table: table.stem)
def test_every_attack_gets_its_verdict(table, tmp_path, canary, port):
    sent = attacks.read(attacks.CONTROLS) + attacks.read(table)
    attacks.send(sent, tmp_path / "sent", canary, port)
    rows, said = attacks.grade(tmp_path / "sent", tmp_path / "out",
                               {**os.environ, "LAB_CANARY": "a secret of the instructor's"})
    wrong = [f"{one.name}: {row['verdict']} {row['points']}, {row['message']}" for one in sent
             if (row := rows[one.student, one.exercise])["verdict"] != one.verdict]
    assert not wrong, "\n".join([*wrong, said])
    assert canary.read_text() == "a secret of the instructor's"
    assert [file.name for file in canary.parent.iterdir()] == ["canary"]
