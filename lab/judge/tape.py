"""What the reference answers in a lesson's tests, for a student edition, which does not have it.

A test that counts compares with the reference's counts, or with what it counts in the reference
itself; an endless loop ends at a multiple of the reference's steps or time.
`lab release` grades the reference again and records all of it in <lesson>.recorded.json.gz beside
the tests.
The reference's text is not in there.
"""

import base64
import gzip
import hashlib
import json
import time
from dataclasses import dataclass, field

from lab.judge.isolate import Place, running
from lab.remote import wire
from lab.remote.frames import frame, read_frame
from lab.remote.warm import Child

TEXT = ("lines", "path")        # of a launch's report: the kernel's own lines


@dataclass
class Exchange:
    """One question to a child and its answer, as they crossed."""

    question: bytes
    answer: bytearray = field(default_factory=bytearray)
    seconds: float = 0.0

    @property
    def asked(self):
        return parsed(self.question)[0]["do"]


class ReferenceTape:
    """Exchanges with the reference, as the code under test and as what a test asks, and the truths
    that tests made with it."""

    def __init__(self):
        self.graded = []
        self.asked = {}
        self.truths = {}

    def child(self, fixture, test):
        """What a Subject starts, so that this tape records it."""
        log = self.graded if fixture == "subject" else self.asked.setdefault(test, [])
        return lambda *request: RecordingChild(log, *request)

    def data(self):
        """The recording, as data."""
        return {
            "steps": max(map(steps, self.graded), default=0),
            "seconds": max((e.seconds for e in self.graded if e.asked in ("call", "ranks")),
                           default=0.0),
            "answers": {test: [[digest(e.question), base64.b64encode(cleaned(e)).decode()]
                               for e in log] for test, log in self.asked.items()},
            "truths": {test: [base64.b64encode(frame).decode() for frame in log]
                       for test, log in self.truths.items()},
        }


class Taped(Place):
    """A place where a tape records."""

    def __init__(self, tape):
        super().__init__()
        self.tape = tape

    def subject(self, lesson, candidate, test, reference):
        return running(lesson, candidate.sources, None, reference, candidate.shapes,
                       child=self.tape.child("subject", test.name))

    def reference(self, lesson, test):
        return running(lesson, lesson.sources, child=self.tape.child("reference", test.name))

    def reference_for_limits(self, lesson, test):
        return super().reference(lesson, test)

    def truth(self, test, data):
        tree, buffers = wire.pack(data)
        message = frame({"value": tree}, buffers)
        self.tape.truths.setdefault(test.name, []).append(message)
        return value(message)           # as the edition will have it


class RecordingChild(Child):
    """A child whose exchanges are recorded."""

    def __init__(self, log, *request):
        super().__init__(*request)
        self.log, self.connection = log, Tapped(self.connection, log)

    def part(self, most, before=b""):
        data = super().part(most, before)
        self.log[-1].answer += data
        self.log[-1].seconds = time.monotonic() - self.connection.began
        return data


class Tapped:
    """A connection on which each message sent begins an exchange."""

    def __init__(self, connection, log):
        self.connection = connection
        self.log = log
        self.began = 0.0

    def sendall(self, data):
        self.log.append(Exchange(data))
        self.began = time.monotonic()
        self.connection.sendall(data)

    def __getattr__(self, name):
        return getattr(self.connection, name)


class ReplayChild:
    """Stands in for a child and gives the answers that were recorded for a test."""

    flooded = False

    def __init__(self, recorded):
        self.recorded = iter(recorded)
        self.rest = b""
        self.connection = self

    def settimeout(self, seconds):
        """An answer is there at once."""

    def sendall(self, data):
        question, answer = next(self.recorded, (None, None))
        if question != digest(data):
            raise RuntimeError("this test no longer asks the reference what it asked when the "
                               "edition was made")
        self.rest = base64.b64decode(answer)

    def answers(self, deadline):
        return True

    def part(self, most, before=b""):
        data = self.rest[:most]
        self.rest = self.rest[most:]
        return data

    def kill(self):
        """There is no process."""


class Recorded:
    """The limits of a lesson whose reference is not here; a Subject asks it like a reference."""

    def __init__(self, lesson):
        self.most = read(lesson)

    def _effort(self, request, meta):
        return self.most["steps"], self.most["seconds"]

    def _seconds(self, name, args, kwargs):
        return self.most["seconds"]

    def _on_ranks(self, question, limit, slack):
        return {"seconds": self.most["seconds"]}        # what it changes is not recorded

    def _written(self, question):
        return None                 # not recorded


def file_of(lesson):
    return lesson.test.with_name(f"{lesson.id}.recorded.json.gz")


def write(path, tape):
    path.write_bytes(gzip.compress(json.dumps(tape.data()).encode(), mtime=0))


def read(lesson):
    return json.loads(gzip.decompress(file_of(lesson).read_bytes()))


# ---- messages


def parsed(data):
    """(message, buffers) of a frame's bytes."""
    rest = memoryview(bytes(data))

    def read(n):
        nonlocal rest
        part = rest[:n]
        rest = rest[n:]
        return bytes(part)

    return read_frame(read)


def value(data):
    """The value in a frame's bytes."""
    message, buffers = parsed(data)
    return wire.unpack(message["value"], buffers)


def digest(question):
    """A digest without the arrays' numbers, whose last bits may differ between machines."""
    return hashlib.sha256(json.dumps(parsed(question)[0]).encode()).hexdigest()[:16]


def cleaned(exchange):
    """The answer without the reference's text."""
    message, buffers = parsed(exchange.answer)
    if exchange.asked == "launch":
        message = without_text(message)
    return frame(message, buffers)


def without_text(tree):
    if isinstance(tree, list):
        return [without_text(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.get("$") == "dict":
        tree = tree | {"items": [pair for pair in tree["items"] if pair[0] not in TEXT]}
    return {key: without_text(part) for key, part in tree.items()}


def steps(exchange):
    """The most steps of a launch; 0 if nothing was launched."""
    if exchange.asked != "launch":
        return 0
    message, buffers = parsed(exchange.answer)
    if "value" not in message:          # it ended in an exception: the first limit, say
        return 0
    launches, _ = wire.unpack(message["value"], buffers)
    return max((launch["steps"] for launch in launches), default=0)
