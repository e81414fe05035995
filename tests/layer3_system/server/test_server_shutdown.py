"""`lab serve` as a process: it listens when it says so, and ends with 0 whenever it is told to."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pytest

from lab.course import ROOT
from layer3_system import Limits
from tests.layer3_system.server.http_server import Gated, served, until

SIGNALS = [signal.SIGTERM, signal.SIGINT]
FIELDS = {"model": "small", "prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True,
          "stream": True}


class Process:
    def __init__(self, process):
        self.process, said = process, ""
        while "  curl http://127.0.0.1:" not in said:
            assert process.poll() is None, process.stderr.read()
            said += process.stdout.readline()
        self.port = int(re.search(r"Listening on http://127\.0\.0\.1:(\d+)", said)[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def send(self, number):
        self.process.send_signal(number)

    def ended(self):
        """Its exit status, once it has ended, in order."""
        status = self.process.wait()
        assert "Traceback" not in (wrong := self.process.stderr.read()), wrong
        return status

    def stream(self):
        return httpx.stream("POST", f"{self.url}/v1/completions", json=FIELDS, timeout=300,
                            trust_env=False)


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "layer3_system.server.cli", "--port", "0", *words], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"})


@contextmanager
def running(*words):
    process = start(*words)
    try:
        yield Process(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", SIGNALS)
def test_told_to_end_right_after_it_listens(number):
    with running() as server:
        server.send(number)
        assert server.ended() == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_told_to_end_while_the_model_loads(tmp_path, number):
    os.mkfifo(tmp_path / "config.json")
    process = start(str(tmp_path))
    with open(tmp_path / "config.json", "w"):               # waits until the server reads it
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_it_listens_when_it_says_so():
    """A connection at once is answered, with an idle one open it ends."""
    with running() as server, httpx.Client(trust_env=False) as client:
        assert client.get(f"{server.url}/health").status_code == 200
        with socket.create_connection(("127.0.0.1", server.port)) as silent:
            silent.sendall(b"GET /health HTTP/1.1\r\n")
            server.send(signal.SIGTERM)
            assert server.ended() == 0


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT],
                                     [signal.SIGTERM, signal.SIGTERM]])
def test_told_to_end_during_a_stream(numbers):
    """The stream comes to its end, however often SIGTERM is sent."""
    with running("--grace", "300") as server:
        with server.stream() as reply:
            lines = reply.iter_lines()
            next(lines)
            for number in numbers:
                server.send(number)
            *_, last, done = [line for line in lines if line]
        assert done == "data: [DONE]"
        assert json.loads(last[6:])["choices"][0]["finish_reason"] == "length"
        assert server.ended() == 0


def test_a_second_ctrl_c_does_not_wait():
    model = Gated()
    with served(model, limits=Limits(grace=1000)) as server:
        client = server.open(prompt="a", stream=True)
        until(lambda: server.bridge.taken == 1)
        for closing in (False, True):
            until(lambda: server.bridge.closing == closing)     # noqa: B023  (called here)
            server.listener.handle_exit(signal.SIGINT, None)
        with client.makefile("rb") as answer:
            assert b"the server is shutting down" in answer.read()
        model.gate.release(1000)


@pytest.mark.alone
def test_told_again_and_again_until_it_is_gone():
    """Up to the last moment of the process: no signal finds it unprepared."""
    with running() as server:
        while server.process.poll() is None:
            server.send(signal.SIGTERM)
            time.sleep(0.001)
        assert server.ended() == 0
