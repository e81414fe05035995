"""Prefill and decode workers as processes, and the Fleet that starts, tells and restarts them

A worker reads what the router tells it from a pipe, takes a step, and writes its news there. When
the router is gone its pipe ends, and so does the worker. Parts go from worker to worker.
"""

import multiprocessing
import secrets
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from layer3_system.disaggregation.router import Router
from layer3_system.disaggregation.sides import DecodeSide, PrefillSide
from layer3_system.disaggregation.wires import PartListener, TcpWire
from layer3_system.s01_request import SamplingParams
from layer3_system.s07_engine import Engine, check_engine

IDLE = 0.05             # seconds that a worker without work waits for a message
SOON = 0.001            # the same while it waits for parts or for an answer
START = 60.0            # seconds in which a worker must come up
Output = tuple[str, list[int], str, str | None]


# ---- in a worker


def prefill_worker(pipe: Connection, build: Callable[[], Engine], key: bytes,
                   lease: float) -> None:
    """Compute prompts and send their pages, until the router is gone."""
    torch.set_num_threads(1)
    side = PrefillSide(build(), TcpWire(key).post, lease)
    pipe.send(("ready", None))
    while True:
        rest = 0 if side.engine.busy else SOON if side.open else IDLE
        for what, *values in messages(pipe, rest):
            if what == "ask":
                pipe.send(("answer", facts(side)))
            else:
                getattr(side, what)(*values)
        side.step(time.monotonic())


def decode_worker(pipe: Connection, build: Callable[[], Engine], key: bytes,
                  patience: float) -> None:
    """Take parts and write answers, until the router is gone."""
    torch.set_num_threads(1)
    side = DecodeSide(build(), patience)
    listener = PartListener(key)
    pipe.send(("ready", listener.address))
    while True:
        parts = listener.take()
        # A prompt is announced here before any worker may compute it. So whatever announces these
        # parts is in the pipe by now.
        rest = 0 if side.engine.busy or parts else SOON if side.boxes else IDLE
        for what, *values in messages(pipe, rest):
            if what == "ask":
                pipe.send(("answer", facts(side)))
            else:
                getattr(side, what)(*values, *([time.monotonic()] if what == "expect" else []))
        for part in parts:
            side.arrive(part)
        side.step(time.monotonic())
        for news in side.news:
            pipe.send(news)
        side.news = []


def facts(side: PrefillSide | DecodeSide) -> dict[str, int]:
    """What a worker says of itself."""
    check_engine(side.engine)
    again = side.recomputed if isinstance(side, DecodeSide) else 0
    return {"used": side.engine.pool.used, "again": again}


def messages(pipe: Connection, rest: float) -> list[tuple]:
    """All messages that are there; waits up to `rest` seconds for the first. SystemExit at the
    end of the pipe."""
    there = []
    try:
        while pipe.poll(0 if there else rest):
            there.append(pipe.recv())
    except (EOFError, OSError):
        raise SystemExit from None
    return there


# ---- in the router's process


class Fleet:
    """Workers of both kinds, and the router between them and clients."""

    def __init__(self, build: Callable[[], Engine], prefills: int = 1, decodes: int = 1,
                 pages: int = 200, S: int = 16, room: int = 512, lease: float = 30.0,
                 patience: float = 10.0):
        """build: makes a worker's engine, of `pages` pages of S slots and contexts of `room`; a
        function of a module, since the workers import it"""
        self.build = build
        self.options = {"prefill": (prefill_worker, lease), "decode": (decode_worker, patience)}
        self.key = secrets.token_bytes(32)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__])
        self.processes: dict[tuple[str, int], Any] = {}
        self.pipes: dict[tuple[str, int], Connection] = {}
        self.addresses: dict[int, Any] = {}
        self.deaths = 0
        self.answers: list[dict[str, int]] = []
        workers = [("prefill", i) for i in range(prefills)] + [
            ("decode", j) for j in range(decodes)]
        for kind, number in workers:
            self.start(kind, number)
        self.router = Router(0, 0, pages, S, room, self.send)
        until = time.monotonic() + START
        while not self.whole:
            self.poll(0.1)
            if time.monotonic() > until:
                self.close()
                raise RuntimeError(f"a worker did not come up within {START:g} s")

    def start(self, kind: str, number: int) -> None:
        """Start a worker. It is known to the router when it says that it is ready."""
        here, there = self.context.Pipe()
        target, seconds = self.options[kind]
        process = self.context.Process(target=target, args=(there, self.build, self.key, seconds),
                                       name=f"{kind} {number}", daemon=True)
        process.start()
        there.close()
        self.processes[kind, number] = process
        self.pipes[kind, number] = here

    def send(self, kind: str, number: int, message: tuple) -> None:
        """Tell a worker something. One that is dead is noticed by `poll`."""
        if message[0] == "begin":               # to which address its parts go
            what, id, attempt, prompt, decode, salt = message
            message = what, id, attempt, prompt, self.addresses[decode], salt
        try:
            self.pipes[kind, number].send(message)
        except OSError:
            return

    def submit(self, id: str, prompt: list[int], params: SamplingParams) -> None:
        """A request. RequestError if no worker could serve it."""
        self.router.submit(id, prompt, params)

    def abort(self, id: str) -> None:
        self.router.abort(id)

    def poll(self, seconds: float) -> list[Output]:
        """What clients get: waits for news, at most so long."""
        who = {pipe: worker for worker, pipe in self.pipes.items()}
        for pipe in wait(list(self.pipes.values()), seconds):
            kind, number = who[pipe]                                    # type: ignore
            try:
                while pipe.poll():                                      # type: ignore
                    self.hear(kind, number, *pipe.recv())               # type: ignore
            except (EOFError, OSError):
                self.bury(kind, number)
        outputs = self.router.outputs
        self.router.outputs = []
        return outputs

    def hear(self, kind: str, number: int, what: str, *values: Any) -> None:
        """News of a worker."""
        if what == "ready":
            if kind == "decode":
                self.addresses[number] = values[0]
            self.router.came(kind, number)
        elif what == "answer":
            self.answers.append(values[0])
        elif what == "arrived":
            self.router.arrived(*values)
        else:
            self.router.wrote(*values)

    def bury(self, kind: str, number: int) -> None:
        """A worker is dead: start another, and see to its requests."""
        self.deaths += 1
        self.pipes.pop((kind, number)).close()
        self.processes.pop((kind, number)).join()
        self.start(kind, number)
        self.router.died(kind, number)

    @property
    def whole(self) -> bool:
        """Whether all workers are up."""
        return len(self.router.prefills) + len(self.router.decodes) == len(self.pipes)

    def facts(self) -> dict[str, int]:
        """{"used": pages held by all workers, "again": prompts that decode workers computed
        themselves}. RuntimeError if a worker does not answer."""
        self.answers = []
        for pipe in self.pipes.values():
            pipe.send(("ask",))
        until = time.monotonic() + START
        while len(self.answers) < len(self.pipes):
            if time.monotonic() > until:
                raise RuntimeError(f"a worker did not answer within {START:g} s")
            outputs = self.poll(0.1)
            self.router.outputs = outputs               # for the next poll
        return {name: sum(answer[name] for answer in self.answers) for name in ("used", "again")}

    def kill(self, kind: str, number: int) -> None:
        """SIGKILL, as the kernel does to a process that takes too much memory."""
        self.processes[kind, number].kill()

    def close(self) -> None:
        """End all workers."""
        for process in self.processes.values():
            process.kill()
            process.join()
        for pipe in self.pipes.values():
            pipe.close()

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
