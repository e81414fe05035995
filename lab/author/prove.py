"""Prove the course on this machine: `make test` (sample), `make test-all` (all), `make gpu` (gpu).

Each stage is a command of its own, and one that fails does not stop the next. The run ends with
what each stage said last, what is not proven here and why, what failed, and the counts.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from lab import course, device
from lab.author import durations
from lab.course import ROOT, CourseError
from lab.measure import records as records
from lab.measure.records import contents
from lab.setup import NO_GPU

PYTEST = [sys.executable, "-m", "pytest", "-q", "-rfEsx"]
WORKERS = min(len(os.sched_getaffinity(0)), 8)      # one with torch takes about a gigabyte
SLICE = 9 * 60 - 15                                 # seconds: 9 minutes less start and end
TIMED_OUT = (124, 137)                              # how timeout(1) ends at its limit

COUNT = re.compile(r"(\d+) (passed|failed|error|skipped|xfailed)")
UNDECIDED = re.compile(r"(SKIPPED|XFAIL) ")         # pytest's short summary, asked for by -rsx
FAILED = re.compile(r"(FAILED|ERROR) ")             # asked for by -rfE


@dataclass
class Outcome:
    """How a stage ended and what it said."""

    name: str
    exit_code: int = 0
    seconds: float = 0.0
    said: str = "nothing"                           # its last line that is not empty
    undecided: list = field(default_factory=list)   # the tests that did not decide, with reasons
    failed: list = field(default_factory=list)      # the tests that failed, with reasons
    proofs: list = field(default_factory=list)      # (lesson, seconds) of `lab verify`

    def counts(self):
        """(passed, failed, skipped): pytest's where it gave them, else the stage itself as one."""
        numbers = {word: int(n) for n, word in COUNT.findall(self.said)}
        passed = numbers.get("passed", 0)
        failed = numbers.get("failed", 0) + numbers.get("error", 0)
        skipped = numbers.get("skipped", 0) + numbers.get("xfailed", 0)
        if self.exit_code == 0:
            return passed if numbers else 1, failed, skipped
        return passed, max(failed, 1), skipped


def run(name, command, limit=None):
    """Run a stage and pass its output on as it comes. limit: seconds until it is stopped."""
    if limit:
        command = ["timeout", "--kill-after=5", f"{limit:.0f}", *command]
    print(f"\n== {name}: {' '.join(command)}", flush=True)
    outcome = Outcome(name)
    begun = time.monotonic()
    # A session of its own, so that its workers can be ended with it.
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, text=True,
                               errors="replace", stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            outcome.said = line.strip(" =\n") or outcome.said
            if UNDECIDED.match(line):
                outcome.undecided.append(line.strip())
            elif FAILED.match(line):
                outcome.failed.append(line.strip())
            elif proofs := durations.PROOFS.match(line):
                outcome.proofs.append(proofs.groups())
        outcome.exit_code = process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    outcome.seconds = time.monotonic() - begun
    return outcome


def total(counts):
    passed, failed, skipped = (sum(column) for column in zip((0, 0, 0), *counts, strict=True))
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def marked(mark):
    """The test files in which a test carries this mark, relative to the course's folder."""
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))
            if f"mark.{mark}" in path.read_text()]


# make test, make test-all

def stages(sample):
    if course.edition():
        return stages_of_edition()
    lab = str(Path(sys.executable).with_name("lab"))
    parallel = [*PYTEST, "-n", str(WORKERS)]
    core = [lesson for lesson in course.lessons() if lesson.core]
    deep = [lesson for lesson in course.lessons() if not lesson.core]
    tests = ["tests"]
    verify = []
    solutions = ["solutions"]
    if sample:
        tests = ["-m", "not slow", "tests", *(f"--ignore=tests/{i.floor}/test_{i.id}.py"
                                              for i in deep)]
        verify = ["--mutants", "1", *(lesson.id for lesson in core)]
        solutions = [f"solutions/{lesson.floor}/{lesson.id}.ipynb" for lesson in core]
    return {
        # What grades exercises runs in the next stage, on the references.
        "tests": [*parallel, "--timeout=300", "--no-graders", *tests],
        "verify": [lab, "verify", *verify],
        "build": [lab, "build", "--check"],
        "solutions": [*parallel, "--nbval-lax", "--nbval-current-env",
                      "--nbval-cell-timeout=120", "--dist", "loadscope", *solutions],
    }


def stages_of_edition():
    """Without the tests of the course itself: its graders are proven, its solutions run."""
    lab = str(Path(sys.executable).with_name("lab"))
    stages = {"verify": [lab, "verify", "--mutants", "1"], "build": [lab, "build", "--check"]}
    if any(lesson.answered for lesson in course.lessons()):
        stages["solutions"] = [*PYTEST, "-n", str(WORKERS), "--nbval-lax", "--nbval-current-env",
                               "--nbval-cell-timeout=120", "--dist", "loadscope", "solutions"]
    return stages


def prove(sample, record=None):
    """Run every stage; the exit code. record: a file for what took how long"""
    begun = time.monotonic()
    desk = contents(ROOT / "work")
    outcomes, reports = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name, command in stages(sample).items():
            if record and "pytest" in command:
                reports[name] = Path(folder) / f"{name}.xml"
                command = [*command, f"--junit-xml={reports[name]}"]
            outcomes.append(run(name, command))
        if record:
            durations.write(record, "sample" if sample else "all", outcomes, reports)
    changed = sorted(path for path, _ in desk.items() ^ contents(ROOT / "work").items())
    outcomes.append(Outcome("work/", exit_code=bool(changed), said=(
        f"changed during the run: {', '.join(changed[:5])}" if changed else
        f"byte for byte as before, {len(desk)} files and folders")))

    print(f"\n== summary, {time.monotonic() - begun:.0f} s on {WORKERS} cores")
    for outcome in outcomes:
        verdict = "FAILED" if outcome.exit_code else "ok"
        print(f"{outcome.name:<10} {verdict:<7} {outcome.seconds:5.0f} s   {outcome.said}")
    unproven = [line for outcome in outcomes for line in outcome.undecided]
    if unproven:
        print("not proven here:", *unproven, sep="\n  ")
    failed = [line for outcome in outcomes for line in outcome.failed]
    if failed:
        print("failed:", *failed, sep="\n  ")
    left_out = ("; a sample: `make test-all` adds the deep lessons, all mutants but one of each "
                f"exercise, and the slow tests in {', '.join(marked('slow'))}")
    if course.edition():
        left_out = "; a sample: one mutant of each exercise that is answered"
    print(total(map(Outcome.counts, outcomes)) + (left_out if sample else ""))
    return int(any(outcome.exit_code for outcome in outcomes))


# make gpu

def gpu_units():
    """{unit: command} of all that a GPU adds: a test file each, then a bench each.

    lab.measure.bench lists its units one a line; a unit writes its results to a file, a JSON
    object.
    """
    bench = [sys.executable, "-m", "lab.measure.bench"]
    listed = subprocess.run([*bench, "--list"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        reason = (listed.stderr.strip() or "no reason given").splitlines()[-1]
        raise CourseError(f"the bench cannot list its units: {reason}")
    return {**{path: [*PYTEST, "-m", "gpu", path] for path in marked("gpu")},
            **{f"bench {name}": [*bench, "--unit", name] for name in listed.stdout.split()}}


def run_unit(name, command, limit):
    """One unit's row of the record."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        bench = name.startswith("bench ")
        outcome = run(name, [*command, "--out", str(results)] if bench else command, limit)
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


def prove_gpu():
    """One slice: the units that no earlier slice has done, until the time is up; the exit code.

    0: everything ran and passed. 1: something failed. 3: not finished, or a test did not decide.
    """
    begun = time.monotonic()
    gpu = device.gpu()
    if gpu is None:
        print(NO_GPU)
        return 3
    file = records.path_of(gpu)
    journal = file.with_suffix(".partial.json")
    record = records.about(gpu)
    rows = record["units"] = earlier_units(journal, record)
    units = gpu_units()
    ran = 0
    for name, command in units.items():
        left = SLICE - (time.monotonic() - begun)
        if name in rows or left < 1:
            continue
        row = run_unit(name, command, left)
        if row["exit_code"] in TIMED_OUT and ran:
            break                   # it gets a whole slice next time
        rows[name] = row
        ran += 1
        records.write(journal, record)

    print(f"\n== summary, {len(rows)} of {len(units)} units")
    for name, row in rows.items():
        print(f"{name}: {row['said']}", *row["not_proven"], sep="\n  ")
    if len(rows) < len(units):
        print(f"not finished: `make gpu` goes on from {journal.relative_to(ROOT)}")
    else:
        records.write(file, record)
        journal.unlink(missing_ok=True)
        print(f"written: {file.relative_to(ROOT)}")
    counts = [row["counts"] for row in rows.values()]
    print(total(counts))
    if any(row["exit_code"] for row in rows.values()):
        return 1
    undecided = any(skipped for *_, skipped in counts)
    return 3 if not rows or len(rows) < len(units) or undecided else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("sample", "all", "gpu"))
    parser.add_argument("--durations", type=Path, metavar="FILE", help="write what took how long")
    options = parser.parse_args()
    try:
        return prove_gpu() if options.what == "gpu" else prove(options.what == "sample",
                                                             options.durations)
    except CourseError as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
