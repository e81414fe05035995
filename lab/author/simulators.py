"""Compare the simulator with other tools that run or judge kernels without a GPU.

benchmarks/compared/ has 21 kernels, right and broken, and measure.py, which gives one of them
to one tool in a process of its own.
What happened is decided here, from what that process said and did.

    python -m lab.author.simulators --numba PYTHON --ttsem PYTHON --vgre PYTHON --sentryward PYTHON

writes benchmarks/simulators.json and the tables of lab/simulator/README.md.
PYTHON is that of an environment which has the tool; without it the tool is "not run here".
SentryWard's has NVRTC, too.
"""

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections import Counter

from lab.course import ROOT
from lab.device import cpu_model

FOLDER = ROOT / "benchmarks" / "compared"
RECORD = ROOT / "benchmarks" / "simulators.json"
PAGE = ROOT / "lab" / "simulator" / "README.md"
MARKS = "<!-- lab:simulators -->", "<!-- /lab:simulators -->"
LIMIT_SECONDS = 60

TOOLS = {           # tool: (its column, the language it takes)
    "ours_cuda": ("this, CUDA C", "cuda"),
    "ours_triton": ("this, Triton", "triton"),
    "numba": ("Numba's simulator", "numba"),
    "interpreter": ("Triton's interpreter", "triton"),
    "ttsem": ("ttsem", "triton"),
    "vgre": ("VGRE", "cuda"),
    "sentryward": ("SentryWard", "cuda"),
}
OWN = ("ours_cuda", "ours_triton", "interpreter")       # these run on the course's own Python

CELLS = {           # outcome: what the table calls it
    "right": "right", "wrong": "wrong result", "passed": "passed", "named": "**named**",
    "warned": "**warned**", "both": "said of the right one too", "other": "another reason",
    "crashed": "crashed", "hung": "hung", "unwritten": "—", "absent": "not run here",
}
GROUPS = {          # column of the counts: outcomes of right kernels, or of broken ones
    "right": {"accepted": ("right", "passed"), "warned of": ("warned",),
              "wrong, refused or crashed": ("wrong", "other", "crashed", "hung")},
    "broken": {"named": ("named", "warned"), "undecided": ("other", "both"),
               "wrong result alone": ("wrong",), "unnoticed": ("right", "passed"),
               "crashed or hung": ("crashed", "hung")},
}


def cases():
    with open(FOLDER / "kernels.toml", "rb") as file:
        return tomllib.load(file)


# One kernel on one tool

def execute(python, tool, name):
    """-> (exit code or None after the time limit, what measure.py says or None, its stderr).
    What hangs has a second try: a busy machine may have been the reason."""
    for _ in range(2):
        answer = attempt(python, tool, name)
        if answer[0] is not None:
            break
    return answer


def attempt(python, tool, name):
    process = subprocess.Popen([python, FOLDER / "measure.py", tool, name], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True)
    try:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, None, ""
    lines = output.splitlines()
    return process.returncode, json.loads(lines[-1]) if lines else None, errors


def outcome(case, code, answer):
    """One of CELLS, of a kernel that was run.
    What names the mistake may be anywhere in a text."""
    if code is None:
        return "hung"
    if code or answer is None:
        return "crashed"
    named = case.get("named")
    if answer["refusal"] is not None:
        return "named" if named and re.search(named, answer["refusal"]) else "other"
    if answer["warnings"] and (named is None or re.search(named, "\n".join(answer["warnings"]))):
        return "warned"
    return {True: "right", False: "wrong", None: "passed"}[answer["equal"]]


def row(case, name, tool, python):
    """What the record holds of one kernel on one tool, and the versions that ran it."""
    entry = {"kernel": name, "tool": tool, "seconds": None, "said": None}
    language = TOOLS[tool][1]
    if language not in case:
        return entry | {"outcome": "unwritten", "said": case["unwritten"][language]}, None
    if python is None:
        return entry | {"outcome": "absent"}, None
    code, answer, errors = execute(python, tool, name)
    entry["outcome"] = outcome(case, code, answer)
    if answer is None or code:
        ended = f"exit code {code}" if code is not None else f"after {LIMIT_SECONDS} s"
        return entry | {"said": " · ".join([ended, *errors.strip().splitlines()[-1:]])}, None
    text = answer["refusal"] or "\n".join(answer["warnings"])
    entry["said"] = text.splitlines()[0] if text else None
    return entry | {"seconds": round(answer["seconds"], 3)}, answer["versions"]


def compare_with_right(rows):
    """What is said of the right kernel too does not name the fault of the broken one."""
    outcomes = {(entry["kernel"], entry["tool"]): entry["outcome"] for entry in rows}
    kernels = cases()
    for entry in rows:
        right = outcomes.get((kernels[entry["kernel"]].get("right"), entry["tool"]), "right")
        if entry["outcome"] in ("named", "warned") and right not in ("right", "passed"):
            entry["outcome"] = "both"


def run(pythons, names=None):
    """pythons: {tool: Python or None}    names: of kernels, None for all    -> the record"""
    rows = []
    versions = {}
    for name, case in cases().items():
        if names is None or name in names:
            for tool in TOOLS:
                entry, packages = row(case, name, tool, pythons.get(tool))
                rows.append(entry)
                versions |= {tool: packages} if packages else {}
                print(name, tool, entry["outcome"], entry["said"] or "", flush=True)
    compare_with_right(rows)
    return {"date": datetime.date.today().isoformat(), "limit_seconds": LIMIT_SECONDS,
            "machine": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0))},
            "versions": versions, "rows": rows}


# Telling

def counts(record):
    """{tool: {"right" or "broken": {column: number of kernels}}}"""
    kernels = cases()
    outcomes = {tool: {"right": Counter(), "broken": Counter()} for tool in TOOLS}
    for entry in record["rows"]:
        kind = "broken" if "fault" in kernels[entry["kernel"]] else "right"
        outcomes[entry["tool"]][kind][entry["outcome"]] += 1
    return {tool: {kind: {column: sum(of[kind][o] for o in group)
                          for column, group in GROUPS[kind].items()} for kind in GROUPS}
            for tool, of in outcomes.items()}


def count_table(record):
    columns = [f"{kind}: {column}" for kind, groups in GROUPS.items() for column in groups]
    lines = [f"| | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
    for tool, of in counts(record).items():
        numbers = [str(n) for kind in GROUPS for n in of[kind].values()]
        absent = any(e["tool"] == tool and e["outcome"] == "absent" for e in record["rows"])
        numbers = ["not run here"] * len(numbers) if absent else numbers
        lines.append(f"| {TOOLS[tool][0]} | {' | '.join(numbers)} |")
    return lines


def kernel_table(record):
    lines = ["| | " + " | ".join(title for title, _ in TOOLS.values()) + " |",
             "| --- " * (len(TOOLS) + 1) + "|"]
    outcomes = {(entry["kernel"], entry["tool"]): entry["outcome"] for entry in record["rows"]}
    for name, case in cases().items():
        unnoticed = dict.fromkeys(GROUPS["broken"]["unnoticed"], "unnoticed")
        words = CELLS | (unnoticed if "fault" in case else {"warned": "warned"})
        cells = " | ".join(words[outcomes[name, tool]] for tool in TOOLS)
        lines.append(f"| {case.get('fault', f'right: `{name}`')} | {cells} |")
    return lines


def text(record):
    """Both tables, and how they came about."""
    used = {package: version for packages in record["versions"].values()
            for package, version in packages.items() if package not in ("numpy", "triton")}
    tritons = [f"Triton {record['versions'][tool]['triton']} ({TOOLS[tool][0]})"
               for tool in ("ours_triton", "ttsem") if tool in record["versions"]]
    packages = ", ".join([f"{p} {v}" for p, v in used.items()] + tritons)
    note = ("named: it refuses, or warns, with the right reason, and not of the right kernel as "
            "well. undecided: it refuses for another reason, or says the same of the right one. "
            "wrong result alone: only a comparison with the truth shows it. unnoticed: the result "
            "is right, or the proof passes, and nothing is said. —: the language cannot express "
            f"it. A kernel has {record['limit_seconds']} s. {packages}, "
            f"{record['machine']['cores']} cores of {record['machine']['cpu']}, {record['date']}. "
            "What each tool said, and how long it took, is in `benchmarks/simulators.json`.")
    return "\n".join([*count_table(record), "", *kernel_table(record), "", note]) + "\n"


def page(record):
    """The README with this record's tables."""
    head, _, rest = PAGE.read_text("utf-8").partition(MARKS[0])
    tail = rest.partition(MARKS[1])[2]
    return f"{head}{MARKS[0]}\n{text(record)}{MARKS[1]}{tail}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for tool in TOOLS:
        if tool not in OWN:
            parser.add_argument(f"--{tool}", metavar="PYTHON")
    pythons = vars(parser.parse_args()) | dict.fromkeys(OWN, sys.executable)
    record = run(pythons)
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(page(record), "utf-8")


if __name__ == "__main__":
    main()
