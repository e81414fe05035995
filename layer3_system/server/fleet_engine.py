"""Engines in other processes, as one: what a Bridge and the addresses ask of an engine

A Fleet (s12) starts them: whole engines, or some for prompts and some for answers.
Everything that clients see is the same as with one engine in this process.
"""

import queue
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import torch

from layer3_system.disaggregation.fleet import Fleet, FleetError
from layer3_system.disaggregation.workers import Parts
from layer3_system.engine.intake import Intake, default_pages
from layer3_system.engine.outputs import Output
from layer3_system.recorder import name_of
from layer3_system.s01_request import Request
from layer3_system.s02_block_pool import BlockPool
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s12_disaggregation import Inbox, Outbox, choose_workers
from layer3_system.server.assembly import Assembly, S, assemble
from layer3_system.server.live import Live
from layer3_system.server.metrics import Metrics
from layer3_system.structured import Grammars

PATIENCE = 60.0         # seconds for all parts of a prompt that a living worker computes
WAIT = 1.0              # seconds of a step in which nothing happens


def worker_parts(setup, name, kind):
    """What a worker of a server is made of.  kind: prefill or decode    name: of the model"""
    if kind == "prefill":               # it writes no answers
        setup = setup._replace(draft=None, overlap=False)
    engine, candidates, summary, _ = assemble(setup)
    metrics = Metrics(engine, name)
    live = Live()
    inbox = candidates.get("Inbox") or Inbox
    outbox = candidates.get("Outbox") or Outbox
    return Parts(engine, inbox, outbox, (metrics, live),
                 {"metrics": lambda engine: metrics.text(), "live": live.state,
                  "summary": lambda engine: summary})


def start_fleet(setup, name, prefills, decodes):
    """The Assembly of that many workers as one engine.
    FleetError if one cannot be made.

    prefills: 0 for whole engines    name: of the model
    """
    config = setup.config()
    tokenizer = setup.tokenizer(config)
    pages = setup.pages or default_pages(config, S)
    seats = setup.scheduling["max_seqs"]
    candidates = setup.candidates(config)
    fleet = Fleet(partial(worker_parts, setup, name), prefills, decodes, pages, S, config.room,
                  patience=PATIENCE, seats=seats, start=float("inf"),
                  threads=max(1, torch.get_num_threads() // (prefills + decodes)),
                  choose=candidates.get("choose_workers") or choose_workers)
    engine = FleetEngine(fleet, config, tokenizer, BlockPool(pages, S), decodes * seats)
    what = f"{prefills} for prompts, {decodes} for answers" if prefills else f"{decodes} replicas"
    summary = fleet.answers("summary")["decode", 0]
    return Assembly(engine, candidates, f"processes: {what}, each with\n{summary}", None)


class Mailbox(queue.SimpleQueue):
    """Letters whose arrival ends a step that waits."""

    def __init__(self, ring):
        super().__init__()
        self.ring = ring

    def put(self, letter):
        super().put(letter)
        self.ring()


class FleetEngine:
    """Workers as one engine. busy: always, since a step is what notices that a worker ended"""

    busy = True

    def __init__(self, fleet: Fleet, config, tokenizer, pool: BlockPool, seats: int):
        """pool: as large as each worker's, it stays empty    seats: answers of all workers"""
        self.fleet = fleet
        self.tokenizer = tokenizer
        self.pool = pool
        self.scheduler = Scheduler(pool, seats, max(seats, 1))         # it schedules nothing
        self.intake = Intake(config, tokenizer, pool, self.scheduler, time.monotonic,
                             Grammars(tokenizer, config))
        self.room = self.intake.room
        self.requests: dict[str, Request] = {}
        self.finished = 0

    def check(self, prompt, params):
        """RequestError if a prompt cannot be served."""
        self.intake.check(prompt, params)

    def submit(self, prompt, params, id) -> list[Request]:
        """Hand a prompt to the router: its [Request], one for each answer, with one seed."""
        first = Request(id, prompt, params)
        seed = (first.seed + 2**63) % 2**64 - 2**63             # as SamplingParams take it, signed
        answers = []
        for index in range(params.n):
            own = name_of(Request(id, prompt, params, index, seed=0))
            request = self.fleet.submit(own, prompt, replace(params, n=1, seed=seed), index)
            self.requests[own] = request
            answers.append(request)
        return answers

    def abort(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.end(request, "abort")
            self.fleet.abort(request.id)

    def end(self, request, reason):
        del self.requests[request.id]
        request.status = "finished"
        request.reason = reason
        self.finished += 1

    def step(self) -> list[Output]:
        """What workers wrote: waits until there is something, or a letter.
        FleetError if there is no worker left."""
        outputs = []
        for id, tokens, text, reason in self.fleet.poll(WAIT):
            request = self.requests[id]
            if reason:
                self.end(request, reason)
            outputs.append(Output(request, tokens, text, reason))
        if self.fleet.fault:
            raise FleetError(self.fleet.fault)
        return outputs
