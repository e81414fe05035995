"""`lab bench`: what the lessons' kernels reach on this GPU, as shares and ratios of one run.

A lesson takes part if its reference has a function bench() -> {name: row}; see `row`.
"""

import argparse
import ast
import importlib
import json
import sys
from pathlib import Path

from lab import course, device
from lab.course import CourseError


def units(function="bench"):
    """The lessons that can be measured, in the course's order: those that define the function."""
    return [lesson for lesson in course.lessons()
            if any(isinstance(node, ast.FunctionDef) and node.name == function
                   for node in ast.parse(lesson.sources["python"]).body)]


def measure(lesson):
    """The rows of one lesson. CourseError without a GPU: the simulator's time means nothing."""
    if device.gpu() is None:
        raise CourseError("no NVIDIA GPU here: nothing to measure")
    if lesson not in units():
        raise CourseError(f"{lesson.id} has nothing to measure; "
                          f"{', '.join(i.id for i in units())} have")
    return importlib.import_module(f"{lesson.floor}.{lesson.id}").bench()


def row(job, timing, roofs, against=None):
    """One measurement, JSON-able.

    job: has .moved (bytes) and .flops    timing: has .seconds, .spread, .uncertainty, .runs
    roofs: {name: byte/s that it reached in the same run}, such as a copy's
    against: {name: timing in the same run} of other ways to do the same work
    """
    found = {"seconds": timing.seconds, "spread": timing.spread,
             "uncertainty": timing.uncertainty, "runs": timing.runs,
             "bytes": job.moved, "flops": job.flops}
    for name, rate in roofs.items():
        found[f"share_of_{name}"] = job.moved / timing.seconds / rate
    for name, other in (against or {}).items():
        found[f"times_{name}"] = other.seconds / timing.seconds
    return found


def text(lesson, rows):
    """The rows as a table."""
    lines, width = [lesson.id], max(map(len, rows))
    for name, found in rows.items():
        time = (f"{found['seconds'] * 1e6:10.1f} µs ±{found['uncertainty']:4.0%}"
                f"{found['flops'] / found['seconds'] / 1e12:9.2f} TFLOP/s")
        shares = "".join(f"{v:8.1%} of {k.removeprefix('share_of_')}" for k, v in found.items()
                         if k.startswith("share_of_"))
        ratios = "".join(f"   {v:.2f} × {k.removeprefix('times_')}" for k, v in found.items()
                         if k.startswith("times_"))
        lines.append(f"  {name:{width}}{time}{shares}{ratios}")
    return "\n".join(lines)


def main():
    """For `make gpu`: --list names the units, --unit measures one and writes its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--unit")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.list:
        print(*(lesson.id for lesson in units()), sep="\n")
        return 0
    try:
        lesson = course.find(args.unit or "")
        rows = measure(lesson)
    except CourseError as error:
        print(error, file=sys.stderr)
        return 2
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    print(text(lesson, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
