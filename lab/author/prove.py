"""Prove the course on this machine: `make test` (landing), `make test-all` (all), `make soak`,
`make gpu`.

A proof is a list of units (units.py), each a process of its own; one that fails stops no other.
It ends with what failed, what is not proven here and why, what took longest, and the counts.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree

from lab import course, device
from lab.author import gpu_proof, proven, units
from lab.author.machine import Watch
from lab.course import ROOT, CourseError
from lab.measure import records
from lab.measure.records import contents

# Seconds after which a landing proof begins no more of what it has drawn. Its budget is 6 minutes
# on two idle cores, set-up included.
LANDING = 260
SLOWEST = 10            # times what a unit is expected to take, and PATIENCE seconds: then it ends
PATIENCE = 600
MARGIN = 60             # seconds before the deadline in which a longer unit may begin
MORE = 1                # units of a full proof beyond one a core: some wait for clocks and servers
LINES = 20              # of a failure that are told
MAX_LISTED = 10         # units that are listed
JOURNAL = ROOT / ".cache" / "proof.json"
NOTHING_CHOSEN = 5      # pytest's exit code where the marks leave no test


@dataclass
class UnitRow:
    """How a unit ended."""

    exit_code: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failures: list = field(default_factory=list)    # each failed test, with its first lines
    unproven: list = field(default_factory=list)    # a file and a reason for each that is undecided
    files: dict = field(default_factory=dict)       # seconds of each file of tests

    @property
    def ok(self):
        return self.exit_code == 0 and not self.failed


class Proof:
    """Runs units on all cores and keeps their rows.

    rows: those that an earlier run left
    more: units at a time beyond one for each core
    deadline: by time.monotonic(), for the units that may be left out
    journal(rows): called when a unit has ended
    """

    def __init__(self, rows=None, deadline=float("inf"), journal=None, more=0):
        self.rows = dict(rows or {})
        self.at_a_time = device.workers() + more
        self.deadline = deadline
        self.journal = journal
        self.left_out = []
        self.lock = threading.Lock()
        self.environment = None         # of the units' processes
        self.processes = set()
        self.total = 0

    def run(self, planned):
        """Run all units that have no row yet, in their order; those that are alone come last."""
        with tempfile.TemporaryDirectory(prefix="proof-") as warm:
            self.environment = device.run_environment(warm)
            self.run_all(planned)

    def run_all(self, planned):
        planned = [unit for unit in planned if unit.name not in self.rows]
        self.total = len(planned) + len(self.rows)
        together = [unit for unit in planned if not unit.alone]
        with ThreadPoolExecutor(self.at_a_time) as pool:
            try:
                list(pool.map(self.step, together))
                for unit in planned:
                    if unit.alone:
                        self.step(unit)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.end()
                raise

    def step(self, unit):
        if unit.drawn and time.monotonic() + min(unit.seconds, MARGIN) > self.deadline:
            with self.lock:
                self.left_out.append(unit)
            return
        row = self.outcome(unit)
        with self.lock:
            self.rows[unit.name] = row
            print(f"{len(self.rows):4}/{self.total} {'ok' if row.ok else 'FAILED':6} "
                  f"{row.seconds:5.0f} s  {unit.name}", flush=True)
            for failure in row.failures:
                print(indented(failure), flush=True)
            if self.journal:
                self.journal(self.rows)

    def outcome(self, unit):
        """Run a unit to its end."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="proof-") as folder:
            report = Path(folder, "report")
            command = [*unit.command]
            if unit.reports == "junit":
                command += [f"--junit-xml={report}", "-o", "junit_family=xunit1"]
            output = Path(folder, "output")
            with open(output, "wb") as stream:
                code = self.process(command, stream, PATIENCE + SLOWEST * unit.seconds)
            text = output.read_text("utf-8", "replace")
            row = read_report(unit, code, report, text)
        row.seconds = round(time.monotonic() - began, 1)
        if not row.ok and not row.failures:
            last = text.strip().splitlines()[-LINES:]
            row.failures.append("\n".join([f"{unit.name}: exit code {code}", *last]))
        return row

    def process(self, command, stream, limit):
        """The exit code of a command, 124 where it was ended at the limit."""
        # A session of its own, so that what it starts can be ended with it.
        process = subprocess.Popen(command, cwd=ROOT, env=self.environment, start_new_session=True,
                                   stdin=subprocess.DEVNULL, stdout=stream,
                                   stderr=subprocess.STDOUT)
        self.processes.add(process)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            stream.write(f"\nended after {limit:.0f} s\n".encode())
            return 124
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self.processes.discard(process)

    def end(self):
        """End what is still running: the proof was interrupted."""
        for process in list(self.processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def read_report(unit, code, report, text):
    """A unit's row, from what it wrote."""
    try:
        if unit.reports == "junit":
            return junit(code, report)
        if unit.reports == "rows":
            return verified(code, json.loads(text))
    except (ElementTree.ParseError, ValueError, FileNotFoundError) as error:
        last = "\n".join(text.strip().splitlines()[-LINES:])
        return UnitRow(exit_code=code or 1, failed=1, failures=[
            f"{unit.name}: exit code {code}, and no report that can be read ({error})\n{last}"])
    # It has no counts of its own: it is one thing that passed or failed.
    return UnitRow(exit_code=code, passed=int(code == 0), failed=int(code != 0))


def junit(code, report):
    """The row that a report of pytest's makes."""
    row = UnitRow(exit_code=0 if code == NOTHING_CHOSEN else code)
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('file') or case.get('classname')}::{case.get('name')}"
        file = name.partition("::")[0]
        row.files[file] = row.files.get(file, 0.0) + float(case.get("time") or 0)
        problem = next((part for part in case if part.tag in ("failure", "error")), None)
        absent = case.find("skipped")
        if problem is not None:
            row.failed += 1
            row.failures.append(beginning(f"{name}\n{problem.text or problem.get('message')}"))
        elif absent is not None:
            row.skipped += 1
            row.unproven.append(f"{file}: {reason(absent.get('message'))}")
        else:
            row.passed += 1
    return row


def verified(code, rows):
    """The row that the rows of `lab verify` make."""
    row = UnitRow(exit_code=code)
    for one in rows:
        name = f"{one['lesson']}/{one['exercise']}"
        if one["ok"] is None:
            row.skipped += 1
            row.unproven.append(f"{one['lesson']}: {reason(one['message'])}")
        elif one["ok"]:
            row.passed += 1
        else:
            row.failed += 1
            row.failures.append(beginning(f"{name}: {one['proof']}\n{one['message']}"))
    return row


def reason(message):
    """Why something is not proven here, without what every reason begins with."""
    return re.sub(r"^(\S*NotProvenHere: |not.proven.here: )+", "", " ".join(message.split()))


def beginning(text):
    """A failure's name, its first lines, and the last, which for pytest is the place."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) <= LINES:
        return "\n".join(lines)
    return "\n".join([*lines[:LINES], "…", lines[-1]])


def indented(text):
    return "\n".join(f"      {line}" for line in text.splitlines())


# ---- the three sizes


def landing():
    """What every merge passes, and a newcomer's proof; the exit code."""
    began = time.monotonic()
    planned, fresh = units.landing()
    proof = Proof(deadline=began + LANDING)
    code = watched(proof, planned, began)
    if course.edition():                # it leaves nothing out, and has no full proof
        return code, proof
    kinds = ", ".join(f"{len(names)} {kind}" for kind, names in sorts(proof.left_out).items())
    print(f"{fresh} lessons proven whole, {len(proof.left_out)} drawn units left out for want of "
          f"time{f': {kinds}' if kinds else ''}. `make test-all` leaves nothing out but soaks.")
    return code, proof


def sorts(left_out):
    """{kind: names} of units."""
    kinds = {}
    for unit in left_out:
        kind = {"junit": "files of tests", "rows": "lessons"}[unit.reports]
        kind = "notebooks" if unit.name.endswith(".ipynb") else kind
        kinds.setdefault(kind, []).append(unit.name)
    return kinds


def full(seconds=None):
    """Everything but the soaks, in slices: goes on from where the last one stopped.

    seconds: until no further unit is begun, None for no limit
    """
    began = time.monotonic()
    planned = [replace(unit, drawn=seconds is not None) for unit in units.full()]
    keys = {unit.name: units.key(unit) for unit in planned}
    rows = {name: UnitRow(**row) for name, (key, row) in journal().items() if keys.get(name) == key}
    rows = {name: row for name, row in rows.items() if row.ok}
    if rows:
        print(f"{len(rows)} of {len(planned)} units were proven before, with the same files")

    def keep(rows):
        JOURNAL.parent.mkdir(exist_ok=True)
        records.write(JOURNAL, {name: [keys[name], asdict(row)] for name, row in rows.items()})

    deadline = began + seconds if seconds else float("inf")
    proof = Proof(rows, deadline, keep, MORE)
    code = watched(proof, planned, began)
    if proof.left_out:
        print(f"not finished: {len(proof.left_out)} units are left; the same command goes on")
        return code or 3, proof
    if code == 0:
        durations = Counter()               # of a file whose tests are in two units, both
        for row in proof.rows.values():
            durations.update(row.files)
        proven.keep_seconds(durations)
    return code, proof


def journal():
    """{unit: (key, row)} of the full proof that is under way."""
    try:
        return json.loads(JOURNAL.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        raise CourseError(f"{JOURNAL} is damaged: delete it to begin again") from None


def soak():
    """What takes hours; the exit code."""
    began = time.monotonic()
    proof = Proof()
    return watched(proof, units.soak(), began), proof


def watched(proof, planned, began):
    """Run the units of a proof, look at the machine and at the desk meanwhile, and tell; the exit
    code."""
    print(f"{len(planned)} units, {proof.at_a_time} at a time", flush=True)
    desk = contents(ROOT / "work")
    with Watch() as machine:
        proof.run(planned)
    changed = sorted(path for path, _ in desk.items() ^ contents(ROOT / "work").items())
    row = UnitRow(passed=int(not changed), failed=int(bool(changed)))
    if changed:
        row.failures.append(f"work/ changed during the proof: {', '.join(changed[:5])}")
    proof.rows["work/ is byte for byte as before"] = row
    tell(proof.rows, time.monotonic() - began, machine.told())
    return int(not all(row.ok for row in proof.rows.values()))


def tell(rows, seconds, machine):
    """The summary."""
    print(f"\n== {seconds:.0f} s, {machine}")
    longest = sorted(rows.items(), key=lambda pair: -pair[1].seconds)[:MAX_LISTED]
    print("longest:", *(f"  {row.seconds:5.0f} s  {name}" for name, row in longest), sep="\n")
    unproven = Counter(reason for row in rows.values() for reason in row.unproven)
    if unproven:
        print("not proven here:", *(f"  {n:3} × {reason}" for reason, n in unproven.items()),
              sep="\n")
    failures = [failure for row in rows.values() for failure in row.failures]
    if failures:
        print("failed:", *map(indented, failures), sep="\n")


def counts(rows):
    """pytest's closing line, of all rows."""
    passed, failed, skipped = (sum(getattr(row, kind) for row in rows.values())
                               for kind in ("passed", "failed", "skipped"))
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def in_seconds(text):
    """Seconds of a time such as 9m, 90s or 1h."""
    number, unit = text[:-1], text[-1:]
    if unit not in ("s", "m", "h") or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a time such as 9m or 90s")
    seconds = int(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    if seconds <= MARGIN:
        raise argparse.ArgumentTypeError(f"{text}: expected more than {MARGIN} s, in the last of "
                                         "which nothing long begins")
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("landing", "all", "soak", "gpu"))
    parser.add_argument("--slice", type=in_seconds, metavar="TIME",
                        help="of `all` and `gpu`: begin nothing after so long, and go on next time")
    options = parser.parse_args()
    if options.slice and options.what not in ("all", "gpu"):
        parser.error("--slice is for `all` and `gpu`")
    try:
        if options.what == "gpu":
            return gpu_proof.prove(options.slice)
        code, proof = full(options.slice) if options.what == "all" else (
            {"landing": landing, "soak": soak}[options.what]())
        print(counts(proof.rows))
        return code
    except CourseError as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
