"""Where the time of `make test-all`, or of `make test`, goes:
`python -m lab.author.prove all --durations FILE`, or `sample`.

A record has the seconds of each stage, of each test file (its tests' own, set-up included, added
up), of each lesson's proofs and of each notebook, and the tests that take longest.
"""

import datetime
import json
import os
import platform
import re
from collections import defaultdict
from xml.etree import ElementTree

from lab.course import ROOT
from lab.device import cpu_model

LONGEST = 60                                        # tests that are listed
PROOFS = re.compile(r"(\w+): \d+ of \d+ proofs, \d+ mutants, (\d+) s$")


def tests_of(path):
    """{(file, test): seconds} of a JUnit report that pytest wrote."""
    seconds = defaultdict(float)
    for case in ElementTree.parse(path).iter("testcase"):
        module = case.get("classname", "")
        parts = module.split(".")
        while parts and not (ROOT / "/".join(parts)).with_suffix(".py").exists():
            parts.pop()                             # a class within the file
        file = "/".join(parts) + ".py" if parts else module.replace(".", "/")
        seconds[file, case.get("name")] += float(case.get("time") or 0)
    return seconds


def by_file(tests):
    """{file: seconds}, the longest first."""
    files = defaultdict(float)
    for (file, _), seconds in tests.items():
        files[file] += seconds
    return rounded(files)


def rounded(seconds):
    """{name: seconds}, to a tenth, the longest first."""
    return {name: round(s, 1) for name, s in sorted(seconds.items(), key=lambda row: -row[1])}


def record(what, outcomes, reports):
    """What is written. what: "all" or "sample"    reports: {stage: the path of its JUnit report},
    of stages that are pytest's; the others' lines are read."""
    tests = {stage: tests_of(path) for stage, path in reports.items() if path.exists()}
    longest = {f"{file}::{name}": s for (file, name), s in tests.get("tests", {}).items()}
    return {
        "what": what,
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
                    "python": platform.python_version()},
        "seconds": {o.name: round(o.seconds) for o in outcomes},
        "tests": by_file(tests.get("tests", {})),
        "longest tests": dict(list(rounded(longest).items())[:LONGEST]),
        "proofs": rounded({name: float(s) for o in outcomes for name, s in o.proofs}),
        "notebooks": by_file(tests.get("solutions", {})),
    }


def write(path, what, outcomes, reports):
    path.write_text(json.dumps(record(what, outcomes, reports), indent=1) + "\n", "utf-8")
