"""`make gpu`: the tests and the bench that need a GPU, in slices of at most 9 minutes a call.

Several run at once, since they take mostly the time of compilers; a bench that measures has the GPU
alone.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from lab import device
from lab.author import units
from lab.course import ROOT, CourseError
from lab.measure import records
from lab.setup import NO_GPU

# Units run beside each other: more threads than one would take cores from another.
PYTHON = ["env", "OMP_NUM_THREADS=1", "TORCHINDUCTOR_COMPILE_THREADS=1", sys.executable]
PYTEST = [*PYTHON, "-m", "pytest", "-q", "-rfEsx"]
BENCH_BYTES = 12 * 2**30    # of the GPU's memory for each bench: they took 5 to 34 GB
BENCH = "bench "                                    # how the names of such units begin
SLICE = 9 * 60 - 15                                 # seconds: 9 minutes less start and end
TIMED_OUT = (124, 137)                              # how timeout(1) ends at its limit

RUNNING = set()                                     # processes of units
COUNT = re.compile(r"(\d+) (passed|failed|error|skipped|xfailed)")
UNDECIDED = re.compile(r"(SKIPPED|XFAIL) ")         # pytest's short summary, asked for by -rsx


@dataclass
class Outcome:
    """How a unit ended and what it said."""

    exit_code: int = 0
    seconds: float = 0.0
    said: str = "nothing"                           # its last line that is not empty
    undecided: list = field(default_factory=list)   # the tests that did not decide, with reasons

    def counts(self):
        """(passed, failed, skipped): pytest's where it gave them, else the unit itself as one."""
        numbers = {word: int(n) for n, word in COUNT.findall(self.said)}
        passed = numbers.get("passed", 0)
        failed = numbers.get("failed", 0) + numbers.get("error", 0)
        skipped = max(numbers.get("skipped", 0) + numbers.get("xfailed", 0), len(self.undecided))
        if self.exit_code == 0:
            return passed if numbers else 1, failed, skipped
        return passed, max(failed, 1), skipped


def run(name, command, limit):
    """Run a unit and pass its output on when it has ended. limit: seconds until it is stopped."""
    command = ["timeout", "--kill-after=5", f"{limit:.0f}", *command]
    output = [f"\n== {name}: {' '.join(command)}\n"]
    outcome = Outcome()
    begun = time.monotonic()
    # A session of its own, so that its workers can be ended with it.
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, text=True,
                               errors="replace", stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    RUNNING.add(process)
    try:
        for line in process.stdout:
            output.append(line)
            outcome.said = line.strip(" =\n") or outcome.said
            if UNDECIDED.match(line):
                outcome.undecided.append(line.strip())
        outcome.exit_code = process.wait()
    finally:
        end(process)
        RUNNING.discard(process)
        print("".join(output), end="", flush=True)
    outcome.seconds = time.monotonic() - begun
    return outcome


def end(process):
    """End a unit and what it started, if it has not ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):       # it ends just now
            os.killpg(process.pid, signal.SIGKILL)


def total(counts):
    passed, failed, skipped = (sum(column) for column in zip((0, 0, 0), *counts, strict=True))
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def gpu_units():
    """{unit: command} of all that a GPU adds: a test file each, then a bench each.

    lab.measure.bench lists its units one a line; a unit writes its results to a file, a JSON
    object.
    """
    bench = [*PYTHON, "-m", "lab.measure.bench"]
    listed = subprocess.run([*bench, "--list"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        reason = (listed.stderr.strip() or "no reason given").splitlines()[-1]
        raise CourseError(f"the bench cannot list its units: {reason}")
    return {**{path: [*PYTEST, "-m", "gpu", path] for path in units.marked("gpu")},
            **{f"{BENCH}{name}": [*bench, "--unit", name] for name in listed.stdout.split()}}


def run_unit(name, command, limit, turns):
    """One unit's row of the record. turns: the file by which benches take turns"""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        bench = name.startswith(BENCH)
        more = ["--turns", str(turns), "--out", str(results)] if bench else []
        outcome = run(name, command + more, limit)
        row = {"exit_code": outcome.exit_code, "counts": outcome.counts(), "said": outcome.said,
               "not_proven": outcome.undecided, "seconds": round(outcome.seconds, 1)}
        if bench and outcome.exit_code == 0:
            row |= json.loads(results.read_text())
    return row


def earlier_units(journal, record):
    """The rows of an unfinished run on the same machine with the same sources; {} without one."""
    try:
        earlier = json.loads(journal.read_text())
        return earlier["units"] if earlier == {**record, "units": earlier["units"]} else {}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        raise CourseError(f"{journal} is damaged: delete it to begin again") from None


class Slice:
    """The units of one call: those that no earlier slice has done, until the time is up."""

    def __init__(self, planned, record, journal, seconds, memory):
        """planned: {unit: command}    record: what is written, whose units are those done
        memory: bytes of the GPU"""
        self.planned = planned
        self.record = record
        self.journal = journal
        self.turns = journal.with_suffix(".turns")
        self.benches = max(1, min(device.workers(), memory // BENCH_BYTES))     # at once
        self.end = time.monotonic() + seconds
        self.ran = 0
        self.writing = threading.Lock()

    @property
    def rows(self):
        return self.record["units"]

    def attempt(self, name):
        """Run a unit and keep its row.
        What is stopped as the slice ends has a whole one next time, unless it had one."""
        left = self.end - time.monotonic()
        if left < 1:
            return
        whole = not self.ran
        row = run_unit(name, self.planned[name], left, self.turns)
        if row["exit_code"] in TIMED_OUT and not whole:
            return
        with self.writing:
            self.ran += 1
            self.record["units"] = {each: {**self.rows, name: row}[each] for each in self.planned
                                    if each in self.rows or each == name}
            records.write(self.journal, self.record)

    def run(self):
        """The benches, as many at once as the memory holds, all of them prepared before one
        measures; then the files of tests; and what failed again, alone."""
        left = [name for name in self.planned if name not in self.rows]
        benches = [name for name in left if name.startswith(BENCH)]
        tests = [name for name in left if name not in benches]
        for start in range(0, len(benches), self.benches):
            self.at_once(benches[start:start + self.benches], self.benches)
        self.at_once(tests, device.workers())
        for name in left:
            if name in self.rows and self.rows[name]["exit_code"] not in (0, *TIMED_OUT):
                self.attempt(name)
        self.turns.unlink(missing_ok=True)

    def at_once(self, names, workers):
        with ThreadPoolExecutor(workers) as pool:
            try:
                list(pool.map(self.attempt, names))
            except BaseException:           # such as Ctrl-C
                pool.shutdown(wait=False, cancel_futures=True)
                for process in list(RUNNING):
                    end(process)
                raise


def prove(seconds=None):
    """One slice, of SLICE seconds if None is given; the exit code.

    0: everything ran and passed. 1: something failed. 3: not finished, or a test did not decide.
    """
    gpu = device.gpu()
    if gpu is None:
        print(NO_GPU)
        return 3
    file = records.path_of(gpu)
    journal = file.with_suffix(".partial.json")
    record = records.about(gpu)
    record["units"] = earlier_units(journal, record)
    planned = gpu_units()
    Slice(planned, record, journal, SLICE if seconds is None else seconds, gpu.memory).run()
    rows = record["units"]
    whole = len(rows) == len(planned)
    if whole:
        records.write(file, record)
        journal.unlink(missing_ok=True)
    print_summary(rows, planned, file if whole else journal)
    if any(row["exit_code"] for row in rows.values()):
        return 1
    undecided = any(skipped for *_, skipped in (row["counts"] for row in rows.values()))
    return 3 if not rows or not whole or undecided else 0


def print_summary(rows, planned, file):
    """file: the record, or the journal of a run that is not finished"""
    print(f"\n== summary, {len(rows)} of {len(planned)} units")
    for name, row in rows.items():
        print(f"{name}: {row['said']}", *row["not_proven"], sep="\n  ")
    if len(rows) < len(planned):
        print(f"not finished: `make gpu` goes on from {file.relative_to(ROOT)}")
    else:
        print(f"written: {file.relative_to(ROOT)}")
    print(total([row["counts"] for row in rows.values()]))
