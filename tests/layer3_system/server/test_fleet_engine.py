"""`lab serve --replicas N` and `--prefill N --decode M`: OpenAI's client notices nothing, whichever
process is killed or started again."""

import json
import os
import signal
import threading

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from layer3_system import BlockPool, ByteTokenizer, MockLlama
from layer3_system.disaggregation.router import (
    ATTEMPTS,
    LEAD,
    ReplicaLoad,
    ReplicaRouter,
    Router,
    choose_replica,
)
from layer3_system.s01_request import SamplingParams
from layer3_system.server import cli
from layer3_system.server.fleet_engine import FleetEngine
from tests.layer3_system.parallel.test_team import alive
from tests.layer3_system.server.http_server import until
from tests.layer3_system.server.test_server_shutdown import running

MODES = {"replicas": ["--replicas", "2"], "split": ["--prefill", "1", "--decode", "2"]}
PROMPTS = ["Once upon a time", "One day a fox", "There was a king who", "In a small house"]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
          "additionalProperties": False}


class Fleet:
    """A server with workers, and its clients."""

    def __init__(self, server):
        self.server = server
        self.openai = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0,
                                    timeout=300)
        self.http = httpx.Client(base_url=server.url, timeout=300, trust_env=False)

    def workers(self):
        """{name: what /engine says of it}"""
        return {row["name"]: row for row in self.http.get("/engine").json()["workers"]}

    def at_work(self, kind):
        """The worker of a kind that runs an answer."""
        return next((row for row in self.workers().values() if kind in row["name"]
                     and row["engine"] and row["engine"]["running"]), None)

    def settled(self):
        """All workers are up, and no page is held."""
        def whole():
            return all(row["status"] == "up" and row["engine"] and not any(row["engine"]["refs"])
                       for row in self.workers().values())
        until(whole)

    def write(self, prompt=PROMPTS[0], **fields):
        return self.openai.completions.create(**{"model": "small", "prompt": prompt,
                                                 "max_tokens": 60, "temperature": 0} | fields)

    def stream(self, **fields):
        for piece in self.write(stream=True, extra_body={"ignore_eos": True}, **fields):
            yield piece.choices[0].text


def said(client):
    """What OpenAI's client gets of all kinds."""
    several = client.write(n=3, seed=3, temperature=0.7, logprobs=2)
    prompts = client.write(PROMPTS, max_tokens=8)
    chat = client.openai.chat.completions.create(
        model="small", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=8,
        temperature=0, logprobs=True, top_logprobs=2, extra_body={"ignore_eos": True})
    form = client.openai.chat.completions.create(
        model="small", messages=[{"role": "user", "content": "Yes?"}], temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}})
    assert isinstance(json.loads(form.choices[0].message.content)["a"], bool)
    rows = several.choices, prompts.choices, chat.choices, form.choices
    return [[choice.model_dump() for choice in choices] for choices in rows] + [
        [one.usage.completion_tokens for one in (several, prompts, chat, form)],
        "".join(client.stream(seed=7, temperature=0.9))]


def rounded(value):
    """With numbers that differ in the last bits made equal."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 2) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def alone():
    """What one engine in the server's process says: all kinds, and a long answer to each prompt."""
    with running() as server:
        client = Fleet(server)
        yield said(client), {prompt: "".join(client.stream(prompt=prompt, max_tokens=200))
                             for prompt in PROMPTS}


@pytest.fixture(scope="module", params=MODES)
def client(request):
    with running(*MODES[request.param]) as server:
        one = Fleet(server)
        one.mode = request.param
        yield one


def writers(client):
    """The kind of worker that writes answers."""
    return {"replicas": "replica", "split": "decode"}[client.mode]


def test_answers_are_those_of_one_engine(client, alone):
    assert rounded(said(client)) == rounded(alone[0])


def test_refusals_are_those_of_one_engine(client):
    for fields in ({"prompt": "x " * 3000}, {"max_tokens": 10**6}, {"temperature": -1},
                   {"extra_body": {"structured_outputs": {"regex": "("}}}):
        with pytest.raises(openai.BadRequestError):
            client.write(**fields)
    client.settled()


def test_metrics_of_each_worker(client):
    client.write()
    text = client.http.get("/metrics").text
    (written,) = [family for family in text_string_to_metric_families(text)
                  if family.name == "vllm:generation_tokens"]
    workers = [sample.labels["worker"] for sample in written.samples
               if sample.name.endswith("_total")]
    assert workers == [*client.workers()]
    assert text.count("# TYPE vllm:generation_tokens_total") == 1
    assert 'vllm:num_requests_waiting{model_name="small",worker="router"} 0.0' in text


@pytest.mark.parametrize("number", [signal.SIGKILL, None])
def test_a_writer_that_is_killed_or_restarted_in_a_stream(client, alone, number):
    """kill -9: another writes the same answer, and the client gets the rest of it.
    A restart waits until the answer is over."""
    client.settled()
    pieces = client.stream(max_tokens=200)
    text = next(pieces)
    row = client.at_work(writers(client))
    if number:
        os.kill(row["process"], number)
    else:
        assert client.http.post("/engine/restart", json={"worker": row["name"]}).status_code == 202
        assert client.http.post("/engine/restart", json={"worker": row["name"]}).status_code == 409
    assert text + "".join(pieces) == alone[1][PROMPTS[0]]
    until(lambda: client.workers()[row["name"]]["process"] not in (row["process"], None))
    client.settled()
    assert not alive(row["process"])


def test_many_clients_while_workers_are_killed_and_restarted(client, alone):
    """Each gets its whole answer, and no page is lost."""
    client.settled()
    texts = {}

    def ask(n):
        texts[n] = "".join(client.stream(prompt=PROMPTS[n % len(PROMPTS)], max_tokens=200))

    clients = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
    for thread in clients:
        thread.start()
    for i, (name, row) in enumerate(client.workers().items()):
        if i == 1:
            client.http.post("/engine/restart", json={"worker": name})
        elif row["process"]:
            os.kill(row["process"], signal.SIGKILL)
    for thread in clients:
        thread.join()
    assert texts == {n: alone[1][PROMPTS[n % len(PROMPTS)]] for n in range(12)}
    client.settled()


def test_a_client_that_leaves_costs_no_page(client):
    with client.server.stream() as reply:
        next(reply.iter_lines())
    client.settled()


def test_a_worker_that_stands_still_is_left_out(client):
    """Of /metrics and /engine, which answer; it is there again when it goes on."""
    name, row = list(client.workers().items())[-1]
    os.kill(row["process"], signal.SIGSTOP)
    try:
        assert f'worker="{name}"' not in client.http.get("/metrics").text
        assert client.workers()[name]["engine"] is None
    finally:
        os.kill(row["process"], signal.SIGCONT)
    client.settled()


def test_no_such_worker(client):
    for name in ("decode 9", ["decode 0"]):
        answer = client.http.post("/engine/restart", json={"worker": name})
        assert answer.status_code == 404 and "expected one of" in answer.json()["error"]["message"]


def test_more_seats_than_a_scheduler_has_tokens_by_default():
    engine = FleetEngine(None, MockLlama().config, ByteTokenizer(), BlockPool(64), 288)
    assert engine.scheduler.max_seqs == 288


def test_a_server_that_ends_takes_its_workers_along(client):
    """Told to, or killed: the last test of each server."""
    processes = [row["process"] for row in client.workers().values()]
    assert all(map(alive, processes)) and len(processes) > 1
    if client.mode == "split":
        client.server.send(signal.SIGKILL)
        client.server.process.wait()
    else:
        client.server.send(signal.SIGTERM)
        assert client.server.ended() == 0
    until(lambda: not any(map(alive, processes)))


# ---- flags


@pytest.mark.parametrize("words, says", [
    (["--prefill", 1], "--prefill and --decode: expected both, or neither"),
    (["--decode", 1], "--prefill and --decode: expected both, or neither"),
    (["--replicas", 2, "--prefill", 1, "--decode", 1], "--replicas and --prefill exclude"),
    (["--replicas", 2, "--tp", 2], "--replicas and --tp exclude each other"),
    (["--replicas", 2, "--host-pages", 4, "--kv-file", "x"], "--replicas and --kv-file exclude"),
    (["--prefill", 1, "--decode", 1, "--host-pages", 4], "--prefill and --host-pages exclude"),
    (["--replicas", 1, "--draft", "none"], "--draft none: expected lookup, shipped or the folder"),
    (["--replicas", 0], "'--replicas'")])
def test_flags_that_do_not_go_together(command, words, says):
    code, out, wrong = command(cli.app, "serve", "--port", 0, *words)
    assert (code, out, wrong.count("\n")) == (2, "", 1) and says in wrong


# ---- the router


def test_choose_replica():
    """The longest prefix, unless that replica has much more to do; else the one with least."""
    names = [b"a", b"b", b"c"]
    idle, busy = ReplicaLoad(0, ()), ReplicaLoad(3, ())
    assert choose_replica(names, {}) is None
    assert choose_replica(names, {0: busy, 1: idle}) == 1
    assert choose_replica(names, {0: ReplicaLoad(LEAD, [b"a"]), 1: idle}) == 0
    assert choose_replica(names, {0: ReplicaLoad(LEAD + 1, [b"a"]), 1: idle}) == 1
    assert choose_replica(names, {0: ReplicaLoad(0, [b"b", b"c"]), 1: ReplicaLoad(1, [b"a"])}) == 1


def router(kind, *sizes):
    sent = []
    return kind(*sizes, 40, 4, 120, lambda *message: sent.append(message)), sent


def test_a_request_that_ends_every_process_is_given_up():
    one, _ = router(Router, 1, 1)
    one.submit("a", [1] * 9, SamplingParams(8))
    for _ in range(ATTEMPTS):
        assert not one.outputs
        one.died("decode", 0)
        one.came("decode", 0)
    assert one.outputs == [("a", [], "", "error")] and not one.calls


def test_a_replica_that_leaves_gets_nothing_new():
    one, sent = router(ReplicaRouter, 2, 4)
    first = one.submit("a", [1] * 9, SamplingParams(8))
    (j,) = {number for _, number, _ in sent}
    one.leaves("decode", j)
    assert not one.is_idle("decode", j) and one.is_idle("decode", 1 - j)
    for n in range(6):                          # four find seats, two wait
        one.submit(f"b{n}", [n] * 9, SamplingParams(8))
    assert {number for _, number, message in sent if message[1] != "a"} == {1 - j}
    assert len(one.waiting) == 2
    one.wrote("a", 1, [5], "x", "stop", [{5: -1.0}], 4)
    assert one.is_idle("decode", j)
    assert (first.output, first.logprobs, first.num_cached) == ([5], [{5: -1.0}], 4)
