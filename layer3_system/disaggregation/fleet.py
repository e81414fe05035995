"""The router's process: it starts workers, talks to them, and starts those again that end"""

import atexit
import contextlib
import logging
import multiprocessing
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from layer3_system.disaggregation.router import ReplicaRouter, Router
from layer3_system.disaggregation.workers import Build, decode_worker, prefill_worker
from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s12_disaggregation import choose_workers

START = 60.0            # seconds in which workers must come up, and answer a question
STARTS = 3              # of a worker in a row that never got ready; then it is given up
Output = tuple[str, list[int], str, str | None]
Worker = tuple[str, int]        # its kind, prefill or decode, and its number
log = logging.getLogger(__name__)


class FleetError(RuntimeError):
    """Workers that cannot be started."""


class Inquiry(NamedTuple):
    """A question to all workers that are up."""

    reply: Callable[[dict[Worker, Any]], None]
    missing: set[Worker]
    answers: dict[Worker, Any]
    until: float                    # when it is waited for no longer, seconds


class Fleet:
    """Workers of both kinds, and the router between them and clients."""

    def __init__(self, build: Build, prefills: int = 1, decodes: int = 1, pages: int = 200,
                 S: int = 16, room: int = 512, lease: float = 30.0, patience: float = 10.0,
                 seats: int | None = None, threads: int = 1, start: float = START,
                 choose=choose_workers):
        """build: makes a worker's parts, for `pages` pages of S slots and contexts of `room`; it is
        pickled: a function of a module, or a partial of one
        seats: answers of each worker at a time, where there is no prefill worker
        start: seconds until all must be up.
        FleetError if they are not, or one cannot be built
        """
        self.build = build
        self.options = {"prefill": (prefill_worker, lease), "decode": (decode_worker, patience)}
        self.threads = threads
        self.key = secrets.token_bytes(32)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([decode_worker.__module__])
        self.processes: dict[Worker, Any] = {}
        self.pipes: dict[Worker, Connection] = {}
        self.letters: dict[Worker, queue.SimpleQueue] = {}      # what each is told
        self.addresses: dict[int, Any] = {}
        self.up: dict[Worker, int] = {}             # process ids
        self.leaving: set[Worker] = set()           # will end when they have nothing to do
        self.starts: Counter[Worker] = Counter()    # since a worker was up
        self.lost: dict[Worker, str] = {}           # given up, and why
        self.inquiries: dict[int, Inquiry] = {}
        self.tickets = count()
        self.bell, self.bell_end = self.context.Pipe(duplex=False)
        self.deaths = 0
        self.router = Router(0, 0, pages, S, room, self.send, choose) if prefills else \
            ReplicaRouter(0, seats or pages, pages, S, room, self.send)
        atexit.register(self.close)                 # before multiprocessing waits for its children
        self.names = {("prefill", i): f"prefill {i}" for i in range(prefills)}
        self.names |= {("decode", j): f"{'decode' if prefills else 'replica'} {j}"
                       for j in range(decodes)}
        for worker in self.names:
            self.start(*worker)
        self.wait_until_whole(start)

    def wait_until_whole(self, seconds: float) -> None:
        """Until all workers are up."""
        until = time.monotonic() + seconds
        while not self.whole:
            self.poll(0.1)
            late = f"a worker did not come up within {seconds:g} s"
            if self.lost or time.monotonic() > until:
                self.close()
                raise FleetError(next(iter(self.lost.values()), late))

    def start(self, kind: str, number: int) -> None:
        """Start a worker.
        It is known to the router when it says that it is ready."""
        here, there = self.context.Pipe()
        target, seconds = self.options[kind]
        process = self.context.Process(
            target=target, args=(there, self.build, self.key, seconds, self.threads),
            name=f"{kind} {number}", daemon=True)
        process.start()
        there.close()
        self.starts[kind, number] += 1
        self.processes[kind, number] = process
        self.pipes[kind, number] = here
        self.letters[kind, number] = queue.SimpleQueue()
        threading.Thread(target=send_all, args=(here, self.letters[kind, number]),
                         daemon=True).start()

    def send(self, kind: str, number: int, message: tuple) -> None:
        """Tell a worker something.
        One that is dead is noticed by `poll`; one that does not read holds nothing up."""
        if message[0] == "begin":               # to which address its parts go
            what, id, attempt, prompt, decode, salt = message
            message = what, id, attempt, prompt, self.addresses[decode], salt
            # By way of the queue of the worker that is to get the parts, which is told of them
            # there: no part may come before that.
            self.letters["decode", decode].put(partial(self.letters[kind, number].put, message))
        else:
            self.letters[kind, number].put(message)

    # ---- requests

    def submit(self, id: str, prompt: list[int], params: SamplingParams,
               index: int = 0) -> Request:
        """A request.
        RequestError if no worker could serve it."""
        return self.router.submit(id, prompt, params, index=index)

    def abort(self, id: str) -> None:
        self.router.abort(id)
        self.let_leave()

    def poll(self, seconds: float) -> list[Output]:
        """What clients get: waits for news or a `ring`, at most so long."""
        who = {pipe: worker for worker, pipe in self.pipes.items()}
        for pipe in wait([*self.pipes.values(), self.bell], seconds):
            try:
                while pipe.poll():                                      # type: ignore
                    if pipe is self.bell:
                        pipe.recv_bytes()
                    else:
                        self.hear(who[pipe], *pipe.recv())              # type: ignore
            except (EOFError, OSError):
                self.bury(who[pipe])                                    # type: ignore
        self.let_leave()
        now = time.monotonic()
        for ticket, inquiry in list(self.inquiries.items()):
            if now >= inquiry.until:
                del self.inquiries[ticket]
                inquiry.reply(inquiry.answers)
        outputs = self.router.outputs
        self.router.outputs = []
        return outputs

    def ring(self) -> None:
        """End a `poll` that waits, from any thread."""
        self.bell_end.send_bytes(b"")

    # ---- workers

    def hear(self, worker: Worker, what: str, *values: Any) -> None:
        """News of a worker."""
        if what == "ready":
            kind, number = worker
            self.up[worker], address = values
            self.starts[worker] = 0
            if kind == "decode":
                self.addresses[number] = address
            self.router.came(kind, number)
        elif what == "failed":
            self.lost[worker] = values[0]
        elif what == "answer":
            ticket, value = values
            self.settle(ticket, worker, value)
        else:
            self.router.hear(what, *values)

    def bury(self, worker: Worker) -> None:
        """A worker has ended: start another, and see to its requests."""
        kind, number = worker
        if worker not in self.leaving:
            self.deaths += 1
        self.leaving.discard(worker)
        self.up.pop(worker, None)
        self.letters.pop(worker).put(None)
        self.pipes.pop(worker).close()
        self.processes.pop(worker).join()
        if self.starts[worker] >= STARTS:
            self.lost.setdefault(worker, f"{self.names[worker]} ended {STARTS} times before it was "
                                         f"ready")
        if worker in self.lost:
            log.error("%s is given up: %s", self.names[worker], self.lost[worker])
        else:
            self.start(kind, number)
        self.router.died(kind, number)
        for ticket in list(self.inquiries):
            self.settle(ticket, worker, None)

    @property
    def fault(self) -> str | None:
        """Why no worker can write answers any more; None while one can."""
        if any(kind == "decode" for kind, _ in self.pipes):
            return None
        return f"no worker is left: {next(iter(self.lost.values()))}"

    @property
    def whole(self) -> bool:
        """Whether all workers are up."""
        return len(self.up) == len(self.pipes)

    def status(self, worker: Worker) -> str:
        """starting, up, leaving or lost"""
        if worker in self.leaving:
            return "leaving"
        return "up" if worker in self.up else "lost" if worker in self.lost else "starting"

    def restart(self, kind: str, number: int) -> bool:
        """Give a worker nothing new, and start it again once it has nothing left to do.
        False if it is not up."""
        worker = kind, number
        if self.status(worker) != "up":
            return False
        self.leaving.add(worker)
        self.router.leaves(kind, number)
        self.let_leave()
        return True

    def let_leave(self) -> None:
        """Tell workers that are to leave, and are idle, to end."""
        for worker in self.leaving & self.up.keys():
            if self.router.is_idle(*worker):
                self.send(*worker, ("end",))
                del self.up[worker]

    # ---- questions

    def ask(self, question: str, reply: Callable[[dict[Worker, Any]], None],
            seconds: float = START) -> None:
        """Ask all workers that are up; `poll` calls reply({worker: its answer}) when all that still
        live have answered, or after so long."""
        ticket = next(self.tickets)
        self.inquiries[ticket] = Inquiry(reply, set(self.up), {}, time.monotonic() + seconds)
        for worker in list(self.up):
            self.send(*worker, ("ask", ticket, question))
        self.settle(ticket, None, None)             # perhaps there is none

    def settle(self, ticket: int, worker: Worker | None, value: Any) -> None:
        """A worker has answered, or never will."""
        inquiry = self.inquiries.get(ticket)
        if inquiry is None:                         # it was not waited for
            return
        if value is not None:
            inquiry.answers[worker] = value
        inquiry.missing.discard(worker)
        if not inquiry.missing:
            del self.inquiries[ticket]
            inquiry.reply(inquiry.answers)

    def answers(self, question: str) -> dict[Worker, Any]:
        """{worker: its answer}, waited for."""
        replies: list[dict[Worker, Any]] = []
        self.ask(question, replies.append)
        while not replies:
            outputs = self.poll(0.1)
            self.router.outputs = outputs               # for the next poll
        return replies[0]

    def facts(self) -> dict[str, int]:
        """{"used": pages held by all workers, "again": prompts that decode workers computed
        themselves}"""
        rows = self.answers("facts").values()
        return {name: sum(row[name] for row in rows) for name in ("used", "again")}

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
        self.processes = {}
        self.pipes = {}
        atexit.unregister(self.close)

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def send_all(pipe: Connection, letters: queue.SimpleQueue) -> None:
    """Tell a worker what it is to be told, until None comes or it is gone."""
    with contextlib.suppress(OSError):
        while (message := letters.get()) is not None:
            message() if callable(message) else pipe.send(message)
