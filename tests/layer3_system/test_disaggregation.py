"""What is given of s12: both sides, the router, the wires, real processes that are killed."""

import json
import os
import socket
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from queue import SimpleQueue
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from day01_roofline import LLAMAS, kv_bytes_per_token
from day02_overview import NANO
from layer2_graph import Llama, load
from layer3_system import SamplingParams
from layer3_system.bench.s12_disaggregation import (
    PANELS,
    RECORD,
    Answers,
    P,
    small_parts,
    soak,
    soak_processes,
    transfer,
    written_alone,
)
from layer3_system.bench.soak import alone
from layer3_system.disaggregation.faults import FAULTS, OneProcess
from layer3_system.disaggregation.fleet import Fleet, send_all
from layer3_system.disaggregation.parts import Part, Ticket, checksum
from layer3_system.disaggregation.router import Router
from layer3_system.disaggregation.sides import DecodeSide, PrefillSide
from layer3_system.disaggregation.timeline import (
    BUDGETS,
    PROMPT,
    STEP,
    WRITER,
    frontier,
    machine,
    split,
)
from layer3_system.disaggregation.wires import PartListener, TcpWire, pack, unpack
from layer3_system.engine.drafts import Drafter
from layer3_system.s01_request import RequestError
from layer3_system.s03_static_batching import Job
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.s07_engine import Engine, check_engine
from layer3_system.s09_load_test import Objective
from layer3_system.s10_speculative import lookup
from layer3_system.s12_disaggregation import Inbox, Outbox
from layer3_system.testing.mock_llama import ByteTokenizer, MockLlama
from tests.layer3_system.repeats import Repeats


def fleet(faults=None, **options):
    return OneProcess(lambda: MockLlama(120), ByteTokenizer(), Random(1), faults or {}, **options)


def ask(one, answers, id, prompt, **params):
    one.router.submit(id, prompt, SamplingParams(**{"max_tokens": 8, "temperature": 0,
                                                    "ignore_eos": True} | params))
    answers.requests[id] = one.router.calls[id].request
    answers.tokens[id] = []


def finish(one, answers, rounds=400):
    while one.router.calls and one.now < rounds:
        answers.take(one.round())
    assert not one.router.calls, "a request never ended"


@pytest.mark.parametrize("fault", ["none", *FAULTS])
def test_transfers_with_faults(fault):
    said = transfer(Inbox, Outbox, fault)
    assert said.startswith("12 of 12 answers right") and said.endswith(" 0 pages held at the end")


def test_soak():
    row = soak(300, 15)
    assert row["requests"] == 300 and row["kills"] == 15
    assert row["wrong answers"] == row["pages held at the end"] == 0
    assert row["torn or lost"] and row["repeated"] and row["prompts computed again"]


@pytest.mark.slow
@pytest.mark.alone
def test_soak_of_processes():
    row = soak_processes(40, 8)
    assert row["kills"] == 8 and row["wrong answers"] == row["pages held at the end"] == 0


def test_the_last_token_alone_is_computed_again():
    """Not the prompt, and not nothing: a full hit would be wrong from token 0."""
    one, answers = fleet(prefills=1, decodes=1), Answers()
    ask(one, answers, "a", [3] * 13)
    steps = []
    while one.router.calls:
        answers.take(one.round())
        steps.append(sum(one.sides["decode", 0].engine.counts.values()))
    assert set(steps) <= {0, 1} and sum(steps) == 8
    assert not answers.wrong(alone, set())


def test_a_prefix_of_the_sender_travels_too():
    one, answers = fleet(prefills=1, decodes=1), Answers()
    ask(one, answers, "a", [3] * 21)
    finish(one, answers)
    before = one.wire.counts["parts"]
    ask(one, answers, "b", [3] * 20 + [4])
    finish(one, answers)
    assert one.sides["prefill", 0].engine.pool.P and one.wire.counts["parts"] == before + 6
    assert one.again() == 0 and not answers.wrong(alone, set())


def test_a_receiver_that_never_answers_costs_no_page():
    """Every part is lost: the lease ends, the prompt is computed at the receiver."""
    one, answers = fleet({"drop": 1}, prefills=1, decodes=1, lease=5, patience=12), Answers()
    ask(one, answers, "a", [3] * 13)
    finish(one, answers)
    assert one.again() == 1 and not answers.wrong(alone, set())
    assert one.used() == 0


@pytest.mark.parametrize("kind", ["prefill", "decode"])
@pytest.mark.parametrize("rounds", range(12))
def test_killed_at_any_round(kind, rounds):
    """Each client gets each token once."""
    one, answers = fleet({"shuffle": 0.5}, prefills=1, decodes=1), Answers()
    for n in range(3):
        ask(one, answers, f"r{n}", [n] * (9 + n), temperature=1, seed=n)
    for _ in range(rounds):
        answers.take(one.round())
    one.kill(kind, 0)
    finish(one, answers)
    for _ in range(100):
        answers.take(one.round())
    assert not answers.wrong(alone, set()) and one.used() == 0


@pytest.mark.parametrize("rounds", range(12))
def test_clients_that_leave(rounds):
    one, answers = fleet({"shuffle": 0.5}), Answers()
    for n in range(3):
        ask(one, answers, f"r{n}", [n] * (9 + n))
    for _ in range(rounds):
        answers.take(one.round())
    one.router.abort("r1")
    one.router.abort("r1")
    one.router.abort("unknown")
    finish(one, answers)
    for _ in range(100):
        answers.take(one.round())
    assert one.used() == 0 and not answers.wrong(alone, {"r1"} - answers.reasons.keys())


def test_what_never_fits_is_refused():
    one = fleet()
    with pytest.raises(RequestError, match="at most 120 with the answer; found 115, up to 123"):
        one.router.submit("a", [1] * 115, SamplingParams(8))
    with pytest.raises(RequestError, match="expected one answer"):
        one.router.submit("a", [1] * 9, SamplingParams(8, n=2, temperature=1))


def engine(**options):
    pool = PrefixPool(60, 4)
    return Engine(Repeats(), ByteTokenizer(), pool, Scheduler(pool, 6, 16), **options)


def written(**options):
    """([(tokens, those with log probabilities, tokens found in pages)] of some requests, rounds).
    options: of the engine that writes"""
    wire = []

    def post(address, read):
        wire.append((Ticket(), read))
        return wire[-1][0]

    sides = {"prefill": PrefillSide(engine(), post), "decode": DecodeSide(engine(**options))}

    def send(kind, number, message):
        what, *values = message
        getattr(sides[kind], what)(*values, *([0] if what == "expect" else []))

    router = Router(1, 1, 60, 4, 200, send)
    text = list(b"the cat and the hat and the cat")
    requests = [router.submit(f"r{n}", text + [n], SamplingParams(
        40, temperature=n % 2, seed=n, ignore_eos=True, logprobs=2)) for n in range(3)]
    rounds = 0
    while router.calls:
        rounds += 1
        for ticket, read in wire:
            ticket.state = "done"
            sides["decode"].arrive(read())
        wire.clear()
        for side in sides.values():
            side.step(0)
            check_engine(side.engine)
            for news in side.news:
                router.hear(*news)
            side.news = []
    return [(r.output, [token for token, row in zip(r.output, r.logprobs, strict=True)
                        if token in row], r.num_cached) for r in requests], rounds


def test_guesses_and_steps_ahead_change_no_token():
    """On the side that writes.
    What a client is told of its prompt is what the other side found."""
    (want, rounds), (tokens, fewer) = written(), written(drafter=Drafter(partial(lookup, count=3)))
    assert tokens == want == written(overlap=True)[0] and fewer < rounds
    assert all(len(output) == 40 and own == output for output, own, _ in want)
    assert [cached for *_, cached in want] == [0, 28, 28]


def test_news_that_a_client_left_may_come_before_its_prompt():
    side = PrefillSide(engine(), lambda address, read: Ticket())
    side.settle("r", 1, "aborted")
    side.begin("r", 1, [1, 2, 3, 4, 5], 0)
    side.step(0)
    assert not side.engine.busy and not side.engine.pool.used and not side.open
    side.begin("r", 2, [1, 2, 3, 4, 5], 0)
    assert side.engine.busy


def test_a_prompt_that_was_received_was_not_cached():
    requests = []
    one, answers = fleet(prefills=1, decodes=1), Answers()
    one.sides["decode", 0].observers = [SimpleNamespace(
        stepped=lambda engine, outputs: requests.extend(engine.counts))]
    ask(one, answers, "a", [3] * 13)
    finish(one, answers)
    assert requests and {request.num_cached for request in requests} == {0}


class Falling(Llama):
    """Its step of two prompts falls in layer 1, after layer 0 was posted."""

    def block(self, i, x, batch, cache):
        if i == 1 and len(batch.lens) > self.most:
            raise RuntimeError("too many")
        return super().block(i, x, batch, cache)


def posted(most):
    """{what part: its keys} of two prompts, whose steps fall above `most` sequences."""
    nano = load(NANO, dtype=torch.float32)
    model = Falling(nano.config, nano.weights, nano.ops)
    model.most = most
    parts = {}

    def post(address, read):
        part = read()
        parts[part.id, part.layer, part.place] = part.k
        return Ticket()

    pool = PrefixPool(60, 4)
    side = PrefillSide(Engine(model, ByteTokenizer(), pool, Scheduler(pool, 6, 64)), post)
    for id, prompt in (("a", [1, 2, 3, 4, 5]), ("b", [6] * 9)):
        side.begin(id, 1, prompt, 0)
    while side.engine.busy:
        side.step(0)
        check_engine(side.engine)
    return parts


def test_a_step_that_falls_is_posted_whole_when_it_is_taken_again():
    """One by one; no page of a prompt goes out that is not computed."""
    whole = posted(6)
    again = posted(1)
    assert whole.keys() == again.keys() and len(whole) == len({key[1] for key in whole}) * 5
    for key, k in whole.items():
        assert np.allclose(np.frombuffer(k, np.float32), np.frombuffer(again[key], np.float32),
                           atol=1e-5), key


# ---- parts and the wire


def part(place=0):
    whole = Part("r1", 2, 1, place, 7, b"keys" * 99, b"values" * 66, 0)
    return whole._replace(crc=checksum(whole))


def test_a_part_as_a_message():
    assert unpack(pack(part())) == part()


def test_tcp():
    listener = PartListener(b"key")
    wire = TcpWire(b"key")
    tickets = [wire.post(listener.address, lambda i=i: part(i)) for i in range(50)]
    got = [listener.parts.get(timeout=30) for _ in range(50)]
    assert got == [part(i) for i in range(50)]
    assert {ticket.poll() for ticket in tickets} <= {"done", "pending"}


def test_who_does_not_know_the_key_keeps_nobody_waiting():
    listener = PartListener(b"key")
    with socket.create_connection(listener.address):        # it says nothing
        with pytest.raises(AuthenticationError):
            Client(listener.address, authkey=b"another")
        TcpWire(b"key").post(listener.address, part)
        assert listener.parts.get(timeout=30) == part()


def test_a_prompt_begins_only_after_its_parts_are_expected():
    letters = {worker: SimpleQueue() for worker in (("decode", 0), ("prefill", 0))}
    fleet = SimpleNamespace(letters=letters, addresses={0: "place"})
    Fleet.send(fleet, "decode", 0, ("expect", "r"))
    Fleet.send(fleet, "prefill", 0, ("begin", "r", 0, [1], 0, ""))
    assert letters["prefill", 0].empty()
    letters["decode", 0].put(None)
    sent = []
    send_all(SimpleNamespace(send=sent.append), letters["decode", 0])
    assert sent == [("expect", "r")]
    assert letters["prefill", 0].get() == ("begin", "r", 0, [1], "place", "")


def test_a_receiver_that_is_not_there():
    listener = PartListener(b"key")
    listener.listener.close()
    wire = TcpWire(b"key")
    ticket = wire.post(("127.0.0.1", 1), part)
    while ticket.poll() == "pending":
        os.sched_yield()
    assert ticket.poll() == "error"


# ---- processes


def test_processes_write_what_one_engine_writes():
    """With a worker of each kind killed in the middle."""
    chance = Random(3)
    answers = Answers()
    with Fleet(small_parts, 1, 1, P) as processes:
        for n in range(6):
            prompt = [chance.randrange(2, 300) for _ in range(chance.randrange(20, 120))]
            processes.submit(f"r{n}", prompt, SamplingParams(12, temperature=0, ignore_eos=True))
            answers.requests[f"r{n}"] = processes.router.calls[f"r{n}"].request
            answers.tokens[f"r{n}"] = []
            if n % 3 == 2:
                processes.kill("prefill" if n == 2 else "decode", 0)
        while processes.router.calls:
            answers.take(processes.poll(0.1))
        assert processes.deaths == 2
        while processes.facts()["used"]:
            answers.take(processes.poll(0.05))
    right = written_alone(answers.requests.values())
    assert not answers.wrong(lambda request: right[request.id], set())


# ---- what s12 says of two machines on paper


def test_smaller_chunks_shorten_gaps_and_a_split_answer_notices_no_prompt():
    """A step costs 10 ms, 0.4 ms a prompt token and 0.6 ms a request that writes."""
    assert (STEP, PROMPT, WRITER) == (0.010, 0.0004, 0.0006)
    jobs = [Job(0.0, 20, 100), *(Job(0.3 * i + 0.1, 500, 20) for i in range(5))]
    large, small, apart = machine(jobs, 256)[0], machine(jobs, 64)[0], split(jobs, 256)[0]
    gaps = [max(np.diff(times)) for times in (large, small, apart)]
    assert gaps[1] < 0.5 * gaps[0] and gaps[2] < STEP + 2 * WRITER + PROMPT
    assert small[-1] >= large[-1] - 1e-9 and apart[-1] < 0.6 * large[-1]


def test_a_machine_for_short_prompts_works_14_percent_of_the_time():
    """It could take 29 requests a second; the other, with 200 steps an answer, serves 4."""
    prompt = STEP + 60 * PROMPT
    seats = int((0.020 - STEP) / WRITER)
    served = seats / (200 * (STEP + seats * WRITER))
    assert (round(1e3 * prompt), round(1 / prompt)) == (34, 29)
    assert (round(served), round(served * prompt, 2)) == (4, 0.14)


def test_a_slow_wire_takes_longer_than_the_prompt():
    each = kv_bytes_per_token(LLAMAS["Llama-3.1-8B"], 2)
    assert round(8192 * each / 1e9, 2) == 1.07 and each == 131_072


def test_the_panels_of_s12_are_won_as_it_says():
    """Long prompts and a tight TPOT: split keeps up for longer.
    Otherwise together does."""
    panels = json.loads(RECORD.read_text("utf-8"))["model"]
    assert list(panels) == list(PANELS) and len(BUDGETS) == 3
    prompt, answer, tpot, _ = PANELS["500 in, 150 out, 20 ms a token"]
    again = frontier(prompt, answer, Objective(1.5, tpot), [3], count=300)
    assert again["split"] == [pytest.approx(panels["500 in, 150 out, 20 ms a token"]["split"][2],
                                            abs=5e-4)]
    last = []
    for panel in panels.values():
        keeps = {kind: max(rate for rate, good in zip(panel["offered"], panel[kind], strict=True)
                           if good > 0.95 * rate) for kind in ("together", "split")}
        last.append((keeps["together"], keeps["split"]))
    assert last[0][0] < last[0][1]
    assert all(together > apart for together, apart in last[1:])
