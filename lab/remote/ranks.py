"""n ranks of one program: forks of this process that meet on loopback and are watched.

No port is ever in use: the listening socket is made before the fork and inherited. Each rank writes
what it is about to do (recorder.py) into a pipe; this process reads along, says what does not fit
(ledger.py), and ends all ranks when it is done, or when it is ended itself.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import re
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

from lab import device
from lab.remote import agreement, wire
from lab.remote.ledger import Ending, Ledger, Operation, explain

LOOK = 0.1              # seconds between two looks at the ranks
ASLEEP = 10             # looks at which nothing moves: the ranks wait for each other
ASLEEP_AFTER_END = 3    # likewise where a rank has ended, which nothing more can come from
UNSEEN = 5.0            # seconds without a line where the system does not say what sleeps
GRACE = 0.3             # seconds for others to end once one has: the first to be seen may be an echo
STACK = 1.0             # seconds that a rank has to say where it is
PR_SET_PDEATHSIG = 1
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
        self.stack = []             # [(file, line)], innermost first

    @property
    def ended(self):
        return self.over is not None or self.code is not None

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

    def end(self):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)       # not reaped yet, so the number is its own
            os.waitpid(self.pid, 0)
            self.code = -signal.SIGKILL
        os.close(self.log)
        self.answer.close()

    def result(self):
        self.answer.seek(0)
        message, buffers = wire.read_frame(self.answer.read)
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
    """The ranks of one run.

    function: called in each rank with its own arguments.  file: of the lesson, whose lines are
    noted.  describe(error): an exception as data.  facts: what all ranks must have alike
    private: a connection of this process alone
    """

    def __init__(self, function, arguments, kwargs, file, describe, facts, private):
        self.file = file
        self.n = len(arguments)
        self.ledger = Ledger(self.n, Path(file).name)
        self.ranks = []
        sys.stdout.flush()          # else each rank would print it, too
        sys.stderr.flush()
        with socket.create_server(("127.0.0.1", 0), backlog=self.n) as listener:
            for number, own in enumerate(arguments):
                log, write = os.pipe()
                answer = tempfile.TemporaryFile()
                parent = os.getpid()
                pid = os.fork()
                if pid == 0:
                    private.close()
                    become(parent, write, answer, describe, lambda: work(
                        function, own, kwargs, number, self.n, listener, write, file, facts))
                os.close(write)
                os.set_blocking(log, False)
                self.ranks.append(Rank(number, pid, log, answer))

    def watch(self, limit):
        """Follow the ranks to their end: the Fault of the run, or None. limit: seconds of CPU of
        one rank, after which it is an endless loop"""
        quiet = 0                   # looks in a row at which all slept, and no line came
        since = time.monotonic()    # of the last line
        first_end = None
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                selector.register(rank.log, selectors.EVENT_READ, rank)
            while not all(rank.ended for rank in self.ranks):
                ready = selector.select(LOOK)
                fault = self.read()
                if fault is not None:
                    return fault
                for rank in self.ranks:
                    if rank.ended and rank.log in selector.get_map():
                        selector.unregister(rank.log)
                now = time.monotonic()
                if any(rank.code is not None or rank.over and rank.over["kind"] == "raised"
                       for rank in self.ranks):
                    first_end = first_end or now
                    if now - first_end > GRACE:
                        break
                if ready:
                    quiet = 0
                    since = now
                    continue
                quiet = quiet + 1 if self.asleep(now - since) else 0
                over = any(rank.ended for rank in self.ranks)
                if quiet >= (ASLEEP_AFTER_END if over else ASLEEP) or self.endless(limit):
                    break
        return self.read() or self.explain(limit)

    def read(self):
        """Take what the ranks have written; the Fault of the first line that does not fit."""
        for rank in self.ranks:
            rank.reap()             # first: what it wrote before its end is in the pipe then
            for line in rank.lines():
                if not line.startswith("{"):
                    rank.stack += re.findall(r'File "(.+)", line (\d+) in', line)
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
        while time.monotonic() < deadline and not all(rank.stack for rank in working):
            time.sleep(LOOK / 10)
            self.read()
        return explain(self.ledger, [self.ending(rank, limit) for rank in self.ranks])

    def ending(self, rank, limit):
        if rank.over is not None:
            return Ending("returned")
        if rank.code is not None:
            return Ending("died", code=rank.code)
        line = next((int(line) for file, line in rank.stack if file == self.file), None)
        return Ending("computes" if rank.seconds() > limit else "waits", line)

    def raised(self):
        """The rank whose exception is to be told: the first that is no echo of another's end."""
        rows = sorted((rank for rank in self.ranks if rank.over and rank.over["kind"] == "raised"),
                      key=lambda rank: rank.over["at"])
        gone = any(rank.over is None and rank.code is not None for rank in self.ranks)
        own = [rank for rank in rows if not ECHO.search(rank.over["error"]["text"])]
        return own[0] if own else rows[0] if rows and not gone else None

    def end(self):
        for rank in self.ranks:
            rank.end()


def run(function, arguments, kwargs, file, describe, facts, private, limit):
    """Run `function` on len(arguments) ranks. What came of it, as data:

    {"results": [value], "changed", "edited": [as of a call, by rank], "operations": [[fields]],
     "error": of a rank that raised, "fault": [mistake, text, rank], "rank", "seconds": of the CPU}
    """
    team = Team(function, arguments, kwargs, file, describe, facts, private)
    try:
        fault = team.watch(limit)
        outcome = {"operations": [[list(o) for o in rows] for rows in team.ledger.operations],
                   "seconds": max(rank.seconds() for rank in team.ranks)}
        raised = team.raised()
        if fault is not None:
            return outcome | {"fault": list(fault)}
        if raised is not None:
            return outcome | {"error": raised.over["error"], "rank": raised.number}
        results, changed, edited = zip(*(rank.result() for rank in team.ranks), strict=True)
        return outcome | {"results": list(results), "changed": list(changed),
                          "edited": list(edited)}
    finally:
        team.end()


# ---- in a rank

def become(parent, write, answer, describe, do):
    """A rank's life; never returns. do(): (result, changed arrays, edited lists)."""
    try:
        end_with(parent)
        faulthandler.register(signal.SIGUSR1, file=write, all_threads=False, chain=False)
        over = {"kind": "returned"}
        try:
            tree, buffers = wire.pack(do())
            answer.write(wire.frame({"value": tree}, buffers))
            answer.flush()
        except BaseException as error:
            over = {"kind": "raised", "error": describe(error)}
        sys.stdout.flush()
        sys.stderr.flush()
        put(write, json.dumps(over | {"at": time.monotonic()}))
        while True:                 # others may still read from its sockets
            signal.pause()
    finally:
        os._exit(1)


def end_with(parent):
    """End this process when its parent ends, however that comes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=look_for, args=(parent,), daemon=True).start()
    if os.getppid() != parent:      # it has ended meanwhile
        os._exit(1)


def look_for(parent):
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)


def put(write, line):
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(write, data):]


def work(function, arguments, kwargs, r, n, listener, write, file, facts):
    """Meet the other ranks, then call the function with the recorder on."""
    import torch
    import torch.distributed as dist

    from lab.remote import recorder
    from lab.remote.child import seen

    device.on_loopback()
    torch.set_num_threads(1)
    port = listener.getsockname()[1]
    patience = timedelta(minutes=10)            # a call that is stuck is told of long before
    if r == 0:
        store = dist.TCPStore("127.0.0.1", port, n, True, patience, wait_for_workers=False,
                              master_listen_fd=listener.detach())
    else:
        listener.close()
        store = dist.TCPStore("127.0.0.1", port, n, False, patience, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=r, world_size=n, timeout=patience)
    agreement.agree(facts)
    recorder.current = recorder.Recorder(lambda line: put(write, line), file)
    with seen(arguments, kwargs) as watch, recorder.current:
        result = function(*arguments, **kwargs)
    return result, watch.changed(), watch.edited()
