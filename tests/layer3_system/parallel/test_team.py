"""`lab serve --tp 2`: OpenAI's client is answered as by one rank; a rank that ends ends the others,
with one line that says which."""

import json
import os
import signal
import threading

import openai
import pytest
import torch

from lab.course import CourseError
from layer2_graph import read_config, read_weights
from layer2_graph.models import SMALL
from layer3_system.parallel.plan import Plan, facts
from layer3_system.parallel.team import Team
from layer3_system.server import cli
from tests.layer3_system.server.http_server import until
from tests.layer3_system.server.test_server_shutdown import running

PROMPT = "Once upon a time"


def workers(parent):
    """The processes of ranks that a process has started."""
    rows = []
    for folder in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{folder}/stat") as stat, open(f"/proc/{folder}/cmdline") as line:
                fields = stat.read().rpartition(")")[2].split()
                if int(fields[1]) == parent and "parallel.worker" in line.read():
                    rows.append(int(folder))
        except OSError:                 # it has ended meanwhile
            continue
    return rows


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def answers(server):
    """What OpenAI's client gets: two answers of one prompt, and a stream."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0,
                       timeout=300) as client:
        both = client.completions.create(model="small", prompt=PROMPT, max_tokens=20, n=2, seed=3,
                                         temperature=0.7)
        stream = client.completions.create(model="small", prompt=PROMPT, max_tokens=30,
                                           temperature=0, stream=True)
        return [c.text for c in both.choices], "".join(p.choices[0].text for p in stream)


def test_two_ranks_answer_as_one():
    with running() as server:
        alone = answers(server)
    with running("--tp", "2") as server:
        (worker,) = workers(server.process.pid)
        assert answers(server) == alone
        server.send(signal.SIGTERM)
        assert server.ended() == 0
        until(lambda: not alive(worker))


@pytest.mark.parametrize("at_work", [False, True])
def test_a_rank_that_is_killed_ends_the_server(at_work):
    with running("--tp", "2") as server:
        (worker,) = workers(server.process.pid)
        if at_work:
            with server.stream() as stream:
                lines = stream.iter_lines()
                next(lines)
                os.kill(worker, signal.SIGKILL)
                last = [line for line in lines if "error" in line]
            assert "rank 1 ended (signal 9)" in json.loads(last[-1].removeprefix("data: "))[
                "error"]["message"]
        else:
            os.kill(worker, signal.SIGKILL)
        assert server.process.wait(60) == 2
        assert server.process.stderr.read().splitlines()[-1] == "serve: rank 1 ended (signal 9)"


def test_a_server_that_is_killed_takes_its_ranks_along():
    with running("--tp", "2") as server:
        (worker,) = workers(server.process.pid)
        server.send(signal.SIGKILL)
        server.process.wait()
        until(lambda: not alive(worker))


def test_ranks_that_cannot_share_the_model_are_refused(command):
    assert command(cli.app, "serve", "--tp", 4) == (
        2, "", "serve: small (6 query heads, 2 kv heads, mlp 512, vocabulary 2048) can be shared "
        "by 1 or 2 ranks, not by 4\n")
    code, out, wrong = command(cli.app, "serve", "--tp", 0)
    assert (code, out, wrong.count("\n")) == (2, "", 1) and "'--tp'" in wrong


def lead(folder, weights):
    """The refusal of a team whose other rank reads a folder."""
    team = Team(Plan(str(folder), 2))
    try:
        with pytest.raises(CourseError) as refusal:
            team.lead(read_config(SMALL), weights)
    finally:
        team.end()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert team.processes[1].poll() is not None
    return str(refusal.value)


def test_a_rank_that_reads_other_weights_is_refused():
    weights = read_weights(SMALL, read_config(SMALL), torch.float32)
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1
    text = lead(SMALL, weights)
    theirs = facts(read_weights(SMALL, read_config(SMALL), torch.float32))
    assert f"rank 1 has another copy of the weights: {theirs['copy of the weights']}, rank 0 " \
           f"has {facts(weights)['copy of the weights']}" in text


def test_a_rank_that_cannot_read_its_folder_is_named(tmp_path):
    text = lead(tmp_path, {})
    assert text.startswith("rank 1: ModelError: ") and str(tmp_path) in text


def test_a_fault_is_told_to_those_that_come_later():
    team = Team(Plan("nowhere", 2))
    told = threading.Event()
    until(team.over.is_set)
    team.watched_by(told.set)
    assert told.is_set() and team.fault.startswith("rank 1")
    team.end()
