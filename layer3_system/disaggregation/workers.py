"""Prefill and decode workers as processes: what runs in each of them

A worker reads what the router tells it from a pipe, takes a step, and writes its news there.
When the router is gone its pipe ends, and so does the worker.
Parts go from worker to worker.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from lab.course import CourseError
from lab.remote.rank import end_with
from layer3_system.disaggregation.sides import DecodeSide, PrefillSide, Side
from layer3_system.disaggregation.wires import PartListener, TcpWire
from layer3_system.s07_engine import Engine, check_engine
from layer3_system.s12_disaggregation import Inbox, Outbox

IDLE = 0.05             # seconds that a worker without work waits for a message
SOON = 0.001            # the same while it waits for parts or for an answer


class Parts(NamedTuple):
    """What a worker is made of.

    observers: of its engine    questions: {name: what answers it}, beside "facts"
    """

    engine: Engine
    inbox: type[Inbox] = Inbox
    outbox: type[Outbox] = Outbox
    observers: Sequence[Any] = ()
    questions: Mapping[str, Callable[[Engine], Any]] = {}


Build = Callable[[str], Parts]          # of a worker of that kind


def prefill_worker(pipe: Connection, build: Build, key: bytes, lease: float,
                   threads: int) -> None:
    """Compute prompts and send their pages, until the router is gone."""
    parts = begin(pipe, build, "prefill", threads)
    side = PrefillSide(parts.engine, TcpWire(key).post, lease, parts.outbox)
    side.observers = parts.observers
    send(pipe, ("ready", os.getpid(), None))
    while True:
        rest = 0 if side.engine.busy else SOON if side.open else IDLE
        for what, *values in messages(pipe, rest):
            if not answer(pipe, side, parts, what, values):
                getattr(side, what)(*values)
        side.step(time.monotonic())
        tell_news(pipe, side)


def decode_worker(pipe: Connection, build: Build, key: bytes, patience: float,
                  threads: int) -> None:
    """Take parts and write answers, until the router is gone."""
    parts = begin(pipe, build, "decode", threads)
    side = DecodeSide(parts.engine, patience, parts.inbox)
    side.observers = parts.observers
    listener = PartListener(key)
    send(pipe, ("ready", os.getpid(), listener.address))
    while True:
        arrived = listener.take()
        # A prompt is announced here before any worker may compute it. So whatever announces these
        # parts is in the pipe by now.
        rest = 0 if side.engine.busy or arrived else SOON if side.boxes else IDLE
        for what, *values in messages(pipe, rest):
            if not answer(pipe, side, parts, what, values):
                now = [time.monotonic()] if what == "expect" else []
                getattr(side, what)(*values, *now)
        for part in arrived:
            side.arrive(part)
        side.step(time.monotonic())
        tell_news(pipe, side)


def begin(pipe: Connection, build: Build, kind: str, threads: int) -> Parts:
    """Make a worker's parts.
    What goes wrong is told before the process ends."""
    end_with(os.getppid())
    for number in (signal.SIGINT, signal.SIGTERM):      # the router's alone: it lets answers end
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(threads)
    try:
        return build(kind)
    except Exception as error:                          # a model may be missing, or anything
        known = isinstance(error, (CourseError, ValueError))
        send(pipe, ("failed", str(error) if known else f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from None


def answer(pipe: Connection, side: Side, parts: Parts, what: str, values: Sequence[Any]) -> bool:
    """Do what is not the side's business: answer a question, or end.
    Whether it was that."""
    if what == "end":
        raise SystemExit
    if what == "ask":
        ticket, question = values
        reply = facts(side) if question == "facts" else parts.questions[question](side.engine)
        send(pipe, ("answer", ticket, reply))
    return what == "ask"


def tell_news(pipe: Connection, side: Side) -> None:
    for news in side.news:
        send(pipe, news)
    side.news = []


def send(pipe: Connection, message: tuple) -> None:
    """Tell the router something.
    SystemExit if it is gone."""
    try:
        pipe.send(message)
    except OSError:
        raise SystemExit from None


def facts(side: Side) -> dict[str, int]:
    """What a worker says of itself."""
    check_engine(side.engine)
    again = side.recomputed if isinstance(side, DecodeSide) else 0
    return {"used": side.engine.pool.used, "again": again}


def messages(pipe: Connection, rest: float) -> list[tuple]:
    """All messages that are there; waits up to `rest` seconds for the first.
    SystemExit at the end of the pipe."""
    there = []
    try:
        while pipe.poll(0 if there else rest):
            there.append(pipe.recv())
    except (EOFError, OSError):
        raise SystemExit from None
    return there
