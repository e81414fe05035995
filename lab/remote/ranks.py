"""n ranks of one program: forks of this process that meet on loopback and are watched.

No port is ever in use: the listening socket is made before the fork and inherited.
Each rank (rank.py) writes what it is about to do into a pipe.
This process reads along, says what does not fit (ledger.py), and ends all ranks when it is done;
when it is ended itself, they end.
"""

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from lab.remote import wire
from lab.remote.frames import read_frame
from lab.remote.ledger import Ending, Ledger, Operation, explain
from lab.remote.rank import become

LOOK = 0.1              # seconds between two looks at the ranks
ASLEEP = 10             # looks at which nothing moves: the ranks wait for each other
ASLEEP_AFTER_END = 3    # likewise where a rank has ended, which nothing more can come from
UNSEEN = 5.0            # seconds without a line where the system does not say what sleeps
GRACE = 0.3             # seconds for others to end after one: what is seen first may be an echo
STACK = 1.0             # seconds that a rank has to say where it is
ECHO = re.compile(r"[Cc]onnection|peer|[Bb]roken pipe")     # of gloo, where another rank has gone


class Rank:
    """A forked rank, as this process sees it."""

    def __init__(self, number, pid, log, answer):
        self.number = number
        self.pid = pid
        self.log = log              # the end of its pipe, not blocking
        self.answer = answer        # the file that its result is written to
        self.text = b""
        self.over = None            # its last line: {"kind": returned or raised, …}
        self.code = None            # its exit code, or minus the signal
        self.stack = []             # lines of faulthandler: where it is, innermost first

    @property
    def ended(self):
        return self.over is not None or self.code is not None

    @property
    def failed(self):
        """Whether it died or raised."""
        return self.over["kind"] == "raised" if self.over else self.code is not None

    @property
    def told(self):
        """Whether its stack is here, or as much of it as faulthandler tells."""
        return any(line.endswith(("in <module>", "...")) for line in self.stack)

    def line(self, file):
        """The line of a file at which it is; None where it is in no function of it."""
        places = re.findall(r'File "(.+)", line (\d+) in', "\n".join(self.stack))
        return next((int(line) for name, line in places if name == file), None)

    def lines(self):
        """The lines that it has written since the last time."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.log, 1 << 16):
                self.text += part
        *whole, self.text = self.text.split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def reap(self):
        """Notice that the process has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)

    def kill(self):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)       # not reaped yet, so the number is its own

    def bury(self):
        if self.code is None:
            os.waitpid(self.pid, 0)
            self.code = -signal.SIGKILL
        os.close(self.log)

    def result(self):
        self.answer.seek(0)
        message, buffers = read_frame(self.answer.read)
        return wire.unpack(message["value"], buffers)

    def states(self):
        """The states of its threads, proc_pid_stat(5): R runs or could, S sleeps."""
        with contextlib.suppress(OSError):
            return [(task / "stat").read_text().rpartition(")")[2].split()[0]
                    for task in Path(f"/proc/{self.pid}/task").iterdir()]
        return []

    def seconds(self):
        """Seconds of CPU that it has used; 0 where the system does not say."""
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        return 0.0


class Team:
    """The ranks of one run of a Program, one for each tuple of arguments."""

    def __init__(self, program, arguments):
        self.program = program
        self.arguments = arguments
        self.ledger = Ledger(len(arguments), Path(program.file).name)
        self.ranks = []
        self.quiet = 0                      # looks in a row at which all slept, and no line came
        self.last_line = time.monotonic()
        self.first_end = None               # when a rank was first seen to have failed

    def start(self, answers):
        """Fork the ranks. answers: a file for each one's result"""
        sys.stdout.flush()          # else each rank would print it, too
        sys.stderr.flush()
        n = len(self.arguments)
        parent = os.getpid()
        with socket.create_server(("127.0.0.1", 0), backlog=n) as listener:
            for number, (own, answer) in enumerate(zip(self.arguments, answers, strict=True)):
                log, write = os.pipe()
                pid = os.fork()
                if pid == 0:
                    become(self.program, own, number, n, listener, parent, write, answer)
                os.close(write)
                os.set_blocking(log, False)
                self.ranks.append(Rank(number, pid, log, answer))

    def watch(self, limit):
        """Follow the ranks to their end: the Fault of the run, or None. limit: seconds of CPU of
        one rank, after which it is an endless loop"""
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                selector.register(rank.log, selectors.EVENT_READ, rank)
            news = True
            while not self.settled(news) and not self.endless(limit):
                news = bool(selector.select(LOOK))
                fault = self.read()
                if fault is not None:
                    return fault
                for rank in self.ranks:
                    if rank.ended and rank.log in selector.get_map():
                        selector.unregister(rank.log)
        return self.read() or self.explain(limit)

    def settled(self, news):
        """Whether nothing more is to be expected of the ranks. news: lines came at this look"""
        now = time.monotonic()
        ended = [rank for rank in self.ranks if rank.ended]
        if len(ended) == len(self.ranks):
            return True
        if any(rank.failed for rank in ended):
            self.first_end = self.first_end or now
            if now - self.first_end > GRACE:
                return True
        if news:
            self.quiet = 0
            self.last_line = now
            return False
        self.quiet = self.quiet + 1 if self.asleep(now - self.last_line) else 0
        return self.quiet >= (ASLEEP_AFTER_END if ended else ASLEEP)

    def read(self):
        """Take what the ranks have written; the Fault of the first line that does not fit."""
        for rank in self.ranks:
            rank.reap()             # first: what it wrote before its end is in the pipe then
            for line in rank.lines():
                if not line.startswith("{"):
                    rank.stack.append(line)
                    continue
                fields = json.loads(line)
                if "kind" in fields:
                    rank.over = fields
                    continue
                fault = self.ledger.add(rank.number, Operation(**fields))
                if fault is not None:
                    return fault
        return None

    def asleep(self, silence):
        """Whether no rank at work has a thread that runs or could."""
        working = [rank.states() for rank in self.ranks if not rank.ended]
        if not all(working):                    # the system does not say, or one has just ended
            return silence > UNSEEN
        return all(state == "S" for states in working for state in states)

    def endless(self, limit):
        return any(not rank.ended and rank.seconds() > limit for rank in self.ranks)

    def explain(self, limit):
        """The Fault of ranks that ended or wait; None also where one raised."""
        if self.raised() is not None:
            return None
        working = [rank for rank in self.ranks if not rank.ended]
        for rank in working:
            os.kill(rank.pid, signal.SIGUSR1)
        deadline = time.monotonic() + STACK
        while time.monotonic() < deadline and not all(rank.told for rank in working):
            time.sleep(LOOK / 10)
            self.read()
        return explain(self.ledger, [self.ending(rank, limit) for rank in self.ranks])

    def ending(self, rank, limit):
        if rank.over is not None:
            return Ending("returned")
        if rank.code is not None:
            return Ending("died", code=rank.code)
        kind = "computes" if rank.seconds() > limit else "waits"
        return Ending(kind, rank.line(self.program.file))

    def raised(self):
        """The rank whose exception is to be told: the first that is no echo of another's end."""
        rows = sorted((rank for rank in self.ranks if rank.over and rank.over["kind"] == "raised"),
                      key=lambda rank: rank.over["at"])
        gone = any(rank.over is None and rank.code is not None for rank in self.ranks)
        own = [rank for rank in rows if not ECHO.search(rank.over["error"]["text"])]
        return own[0] if own else rows[0] if rows and not gone else None

    def end(self):
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:                     # then: each takes some milliseconds to end
            rank.bury()


def run(program, arguments, limit):
    """Run a Program on len(arguments) ranks, as of Team.watch.
    What came of it, as data:

    {"results": [value], "changed", "edited": [as of a call, by rank], "operations": [[fields]],
     "spans": [[of spans.spans]], "error": of a rank that raised, "rank", "seconds": of the CPU,
     "fault": [mistake, text, rank]}
    """
    with contextlib.ExitStack() as stack:
        answers = [stack.enter_context(tempfile.TemporaryFile()) for _ in arguments]
        team = Team(program, arguments)
        stack.callback(team.end)
        team.start(answers)
        fault = team.watch(limit)
        outcome = {"operations": [[list(o) for o in rows] for rows in team.ledger.operations],
                   "seconds": max(rank.seconds() for rank in team.ranks)}
        raised = team.raised()
        if fault is not None:
            return outcome | {"fault": list(fault)}
        if raised is not None:
            return outcome | {"error": raised.over["error"], "rank": raised.number}
        names = "results", "changed", "edited", "spans"
        columns = zip(*(rank.result() for rank in team.ranks), strict=True)
        return outcome | {name: list(column) for name, column in zip(names, columns, strict=True)}
