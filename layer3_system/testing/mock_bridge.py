"""A Bridge driven by hand, for tests and for reading: no thread, no client, a stopped clock

If the engine thread would sleep for ever, Asleep is raised.
"""

import asyncio
import queue
from collections import deque
from copy import deepcopy
from dataclasses import asdict, is_dataclass
from functools import partial
from types import SimpleNamespace

from layer3_system.engine.outputs import Output
from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s08_server import Call


class Asleep(Exception):
    """The engine thread waits for a letter that will never come."""


class Polled(Exception):
    """The engine thread asks an empty mailbox again and again."""


MAX_LOOKS = 200         # at an empty mailbox, one after the other


class Mailbox:
    """A queue.SimpleQueue for one thread. later: letters that come while its reader sleeps."""

    def __init__(self):
        self.letters = deque()
        self.later = deque()
        self.slept = 0
        self.waited = False             # in vain, for as long as was said
        self.looks = 0                  # at an empty mailbox since the last letter

    def look(self):
        """Whether there is a letter.
        Polled where it was asked too often."""
        self.looks = 0 if self.letters else self.looks + 1
        if self.looks > MAX_LOOKS:
            raise Polled("it asks an empty mailbox again and again")
        return bool(self.letters)

    def put(self, letter):
        self.letters.append(letter)

    def qsize(self):
        self.look()
        return len(self.letters)

    def empty(self):
        return not self.look()

    def get(self, block=True, timeout=None):
        if not self.letters:
            if not block:
                self.look()
                raise queue.Empty
            if timeout is not None and not self.waited:
                self.waited = True
                raise queue.Empty
            if not self.later:
                raise Asleep("it waits for a letter that will never come")
            self.slept += 1
            self.letters.append(self.later.popleft())
        return self.letters.popleft()

    def get_nowait(self):
        return self.get(block=False)


class Loop:
    """The clients' side: a stopped clock, and the calls it has been asked to make."""

    def __init__(self, now):
        self.now = now
        self.told = deque()

    def time(self):
        return self.now

    def call_later(self, seconds, function, *values):
        return SimpleNamespace(cancel=lambda: None)

    def call_soon_threadsafe(self, function, *values):
        self.told.append(partial(function, *values))


class StillEngine:
    """What a Bridge sees of an engine, without any computing."""

    def __init__(self, max_seqs=2, busy=False):
        self.scheduler = SimpleNamespace(max_seqs=max_seqs)
        self.busy = busy
        self.finished = 0


class ByHand:
    """A Bridge without its thread. done: names of the letters that were called"""

    def __init__(self, bridge, now=100.0):
        self.bridge = bridge
        self.engine = bridge.engine
        self.done = []
        self.loop = Loop(now)
        self.mail = Mailbox()
        bridge.loop = self.loop
        bridge.mail = self.mail

    # ---- letters

    def letter(self, name, busy=None, later=False):
        """A letter that notes its name. busy: what a StillEngine is after it    later: it comes
        while its reader sleeps"""
        def read():
            self.done.append(name)
            if busy is not None:
                self.engine.busy = busy
        (self.mail.later.append if later else self.mail.put)(read)

    def fail(self):
        """A letter that raises."""
        def read():
            raise LookupError("a letter fails")
        self.mail.put(read)

    def end(self):
        """The letter that ends the thread."""
        self.mail.put(None)

    def read_twice(self, letters, ends):
        """What read_mail returns, the names that it read by then, how often it slept, and the first
        two of a second time. letters: [(name, busy, later)]    ends: the last letter comes
        before the second time"""
        for letter in letters:
            self.letter(*letter)
        first = self.bridge.read_mail(), list(self.done), self.mail.slept
        if ends:
            self.end()
        return *first, self.bridge.read_mail(), list(self.done)

    def submit(self, id, prompt, **params):
        """A Call for one prompt, [int]; its letter is in the mailbox."""
        params = SamplingParams(**params)
        call = Call(id, params.n)
        call.timer = self.loop.call_later(0, None)
        self.mail.put(partial(self.bridge.enqueue, call, [list(prompt)], params))
        return call

    def step(self):
        """Mail and a step.
        False if a letter ends the thread."""
        goes_on = self.bridge.read_mail()
        if goes_on:
            self.bridge.report(self.engine.step())
        return goes_on

    # ---- how many there are

    def fill(self, taken, finished, ends=()):
        """Set how many answers were taken, and finished; ends: when the latest did, in seconds."""
        self.bridge.taken = taken
        self.engine.finished = finished
        self.bridge.ends.extend(ends)


def attempt(function, *args):
    """{"value": what it returns}, {"returned": the class of an exception that it returns}, {"left":
    what it has made of its arguments}, or of the error that a client gets {"status", "field",
    "text", "headers"}."""
    before = deepcopy(args)
    try:
        value = function(*args)
    except Exception as error:
        if not hasattr(error, "status"):
            raise
        return {"status": error.status, "field": error.field, "text": str(error),
                "headers": dict(error.headers)}
    if args != before:
        return {"left": args}
    if isinstance(value, Exception):
        return {"returned": type(value).__name__}
    return {"value": asdict(value) if is_dataclass(value) else value}


class StepWriter:
    """What steps write into a Call, as if an engine took them."""

    def __init__(self, call):
        self.call = call
        self.request = Request("r", [1], SamplingParams(), error="an illegal memory access")

    def add(self, index, text, tokens, reason=None):
        """One step's output of an answer. tokens: how many"""
        self.call.add(index, Output(self.request, list(range(tokens)), text, reason))

    def unread(self):
        """{index: (text, tokens, reason)} of what is unread in the Call."""
        return {index: tuple(piece) for index, piece in self.call.unread.items()}

    def read(self):
        """Let the Call's reader take what is unread."""
        async def first():
            return await anext(self.call.pieces())
        asyncio.run(first())
