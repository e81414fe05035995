"""`lab bench`: what the lessons' kernels reach on this GPU, as shares and ratios of one run.

A lesson takes part if its reference has a function bench() -> {name: row}; see `row`. Beside it may
stand what the course's kernels are to reach on an H200, as a literal:
H200_TARGETS = {name: {figure: least}}. A figure is a key of the row.
One whose subject is a CPU's speed, too, has bench_host(), which measures where there is no GPU.
"""

import argparse
import ast
import importlib
import json
import sys
from pathlib import Path

from lab import course, device, record
from lab.course import CourseError

VERDICTS = {True: "met", False: "missed", None: "not measured"}


def units(function="bench"):
    """The lessons that can be measured, in the course's order: those that define the function."""
    return [lesson for lesson in course.lessons()
            if any(isinstance(node, ast.FunctionDef) and node.name == function
                   for node in ast.parse(lesson.sources["python"]).body)]


def targets(lesson):
    """{name of a row: {figure: least}} of a lesson, read without running it."""
    for node in ast.parse(lesson.sources["python"]).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "H200_TARGETS":
            return ast.literal_eval(node.value)
    return {}


def judge(rows, wanted):
    """The rows; those with targets say of each figure its least, and whether it was reached.

    met is None where there is nothing to judge: no such row, or the way it is compared with failed.
    """
    judged = rows | {name: rows.get(name, {}) | {"targets": {}} for name in wanted}
    for name, figures in wanted.items():
        for figure, least in figures.items():
            found = judged[name].get(figure)
            met = None if found is None else found >= least
            judged[name]["targets"][figure] = {"least": least, "met": met}
    return judged


def here():
    """The function that measures on this machine: a GPU, or a CPU without one. There it is another,
    since the simulator's time says nothing."""
    return "bench_host" if device.gpu() is None else "bench"


def measure(lesson):
    """The rows of one lesson, on a GPU judged. CourseError where it has nothing to measure on this
    machine."""
    if lesson not in units(here()):
        where = "" if device.gpu() else "no NVIDIA GPU here, and without one "
        raise CourseError(f"{where}{lesson.id} has nothing to measure; "
                          f"{', '.join(i.id for i in units(here()))} can be measured")
    module = importlib.import_module(f"{lesson.floor}.{lesson.id}")
    if here() == "bench_host":
        return module.bench_host()
    import torch

    torch.set_float32_matmul_precision("highest")   # IEEE, which a container's setting may not be
    torch.compiler.reset()              # a function that two lessons compile has one limit of forms
    return judge(module.bench(), targets(lesson))


def unit(lesson):
    """What a record keeps of one lesson: its rows, and the clocks right after the last of them."""
    return {"results": measure(lesson), "clocks": record.clocks()}


def row(job, timing, roofs, against=None, matmul=None):
    """One measurement, JSON-able.

    job: has .moved (bytes) and .flops    timing: has .seconds, .spread, .uncertainty, .runs
    roofs: {name: byte/s that it reached in the same run}, such as a copy's
    against: {name: timing in the same run} of other ways to do the same work
    matmul: FLOP/s of the library's matmul in the same run, where arithmetic may be the roof
    """
    found = {"seconds": timing.seconds, "spread": timing.spread,
             "uncertainty": timing.uncertainty, "runs": timing.runs,
             "bytes": job.moved, "flops": job.flops, "flop_per_second": job.flops / timing.seconds}
    for name, rate in roofs.items():
        found[f"share_of_{name}"] = job.moved / timing.seconds / rate
    if matmul is not None:
        found["share_of_matmul"] = found["flop_per_second"] / matmul
    for name, other in (against or {}).items():
        found[f"times_{name}"] = other.seconds / timing.seconds
    return found


def left_out(reason):
    """The row of a way that could not be measured."""
    return {"left_out": reason}


def figure(name, value):
    """A figure of a row in words, such as `97% of copy`."""
    kind, _, other = name.partition("_of_" if name.startswith("share") else "_")
    if kind == "share":
        return f"{value:.0%} of {other}"
    if kind == "times":
        return f"{value:.2f} × {other}"
    return f"{value / 1e12:.0f} TFLOP/s"


def aims(row):
    """The targets of a judged row, in words."""
    return [f"≥ {figure(name, target['least'])}: {VERDICTS[target['met']]}"
            for name, target in row.get("targets", {}).items()]


def text(lesson, rows):
    """The rows as a table."""
    lines, width = [lesson.id], max(map(len, rows))
    for name, found in rows.items():
        parts = [f"  {name:{width}}"]
        if "seconds" in found:
            parts[0] += (f"{found['seconds'] * 1e6:10.1f} µs ±{found['uncertainty']:4.0%}"
                         f"{found['flop_per_second'] / 1e12:9.2f} TFLOP/s")
            parts += [f"{v:6.1%} of {k.removeprefix('share_of_')}" for k, v in found.items()
                      if k.startswith("share_of_")]
            parts += [figure(k, v) for k, v in found.items() if k.startswith("times_")]
        else:
            parts.append(f"not measured: {found.get('left_out', 'no such row')}")
        lines.append("  ".join([*parts, *(f"target {aim}" for aim in aims(found))]))
    return "\n".join(lines)


def main():
    """For `make gpu`: --list names the units, --unit measures one and writes what it found."""
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
        found = unit(lesson)
    except CourseError as error:
        print(error, file=sys.stderr)
        return 2
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(text(lesson, found["results"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
