"""`lab bench`: what the lessons' kernels reach on this GPU, as shares and ratios of one run.

A lesson takes part if <floor>/bench/<lesson>.py has a function bench() -> {name: row}; see `row`.
The file may also say what the course's kernels are to reach on an H200, as a literal:
H200_TARGETS = {name: {figure: least}}. A figure is a key of the row.
A lesson about a CPU's speed has bench_cpu() too, which measures where there is no GPU.
"""

import argparse
import ast
import importlib
import json
import sys
from pathlib import Path

from lab import course, device
from lab.course import CourseError
from lab.measure import records, turns

VERDICTS = {True: "met", False: "missed", None: "not measured"}


def units(function="bench"):
    """The lessons that can be measured, in the course's order: those that define the function."""
    return [lesson for lesson in course.lessons()
            if any(isinstance(node, ast.FunctionDef) and node.name == function
                   for node in body(lesson))]


def body(lesson):
    """The statements of a lesson's bench file; empty where it has none."""
    return ast.parse(lesson.bench.read_text("utf-8")).body if lesson.bench.exists() else []


def targets(lesson):
    """{name of a row: {figure: least}} of a lesson, read without running it."""
    for node in body(lesson):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "H200_TARGETS":
            return ast.literal_eval(node.value)
    return {}


def judge(rows, wanted):
    """The rows; those with targets say the least of each figure, and whether it was reached.

    met is None where there is nothing to judge: no such row, or the way to compare with failed.
    """
    judged = rows | {name: rows.get(name, {}) | {"targets": {}} for name in wanted}
    for name, figures in wanted.items():
        for figure, least in figures.items():
            value = judged[name].get(figure)
            met = None if value is None else value >= least
            judged[name]["targets"][figure] = {"least": least, "met": met}
    return judged


def here():
    """The function that measures on this machine: its GPU or, without one, its CPU.
    That takes another function, since the simulator's time says nothing."""
    return "bench_cpu" if device.gpu() is None else "bench"


def measure(lesson):
    """The rows of one lesson, judged if a GPU gave them.
    CourseError if nothing can be measured on this machine."""
    if lesson not in units(here()):
        where = "" if device.gpu() else "no NVIDIA GPU here, and without one "
        raise CourseError(f"{where}{lesson.id} has nothing to measure; "
                          f"{', '.join(i.id for i in units(here()))} can be measured")
    module = importlib.import_module(f"{lesson.floor}.bench.{lesson.id}")
    if here() == "bench_cpu":
        return module.bench_cpu()
    import torch

    torch.set_float32_matmul_precision("highest")   # IEEE, which a container's setting may not be
    torch.compiler.reset()              # two lessons that compile one function share its limit
    return judge(module.bench(), targets(lesson))


def unit(lesson):
    """What a record keeps of one lesson: its rows, and the clocks right after the last of them."""
    return {"results": measure(lesson), "clocks": records.clocks()}


def row(job, timing, roofs, against=None, matmul=None):
    """One measurement, JSON-able.

    job: has .moved (bytes) and .flops    timing: has .seconds, .spread, .uncertainty, .runs
    roofs: {name: byte/s that it reached in the same run}, such as a copy's
    against: {name: timing in the same run} of other ways to do the same work
    matmul: FLOP/s of the library's matmul in the same run, where arithmetic may be the roof
    """
    result = {"seconds": timing.seconds, "spread": timing.spread,
             "uncertainty": timing.uncertainty, "runs": timing.runs,
             "bytes": job.moved, "flops": job.flops, "flop_per_second": job.flops / timing.seconds}
    for name, rate in roofs.items():
        result[f"share_of_{name}"] = job.moved / timing.seconds / rate
    if matmul is not None:
        result["share_of_matmul"] = result["flop_per_second"] / matmul
    for name, other in (against or {}).items():
        result[f"times_{name}"] = other.seconds / timing.seconds
    return result


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
    lines = [lesson.id]
    width = max(map(len, rows))
    for name, one in rows.items():
        parts = [f"  {name:{width}}"]
        if "seconds" in one:
            parts[0] += (f"{one['seconds'] * 1e6:10.1f} µs ±{one['uncertainty']:4.0%}"
                         f"{one['flop_per_second'] / 1e12:9.2f} TFLOP/s")
            parts += [f"{v:6.1%} of {k.removeprefix('share_of_')}" for k, v in one.items()
                      if k.startswith("share_of_")]
            parts += [figure(k, v) for k, v in one.items() if k.startswith("times_")]
        else:
            parts.append(f"not measured: {one.get('left_out', 'no such row')}")
        lines.append("  ".join([*parts, *(f"target {aim}" for aim in aims(one))]))
    return "\n".join(lines)


def main():
    """For `make gpu`: --list names the units, --unit measures one and writes what it found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--unit")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--turns", type=Path, help="the file that the units of a run share")
    args = parser.parse_args()
    if args.list:
        print(*(lesson.id for lesson in units()), sep="\n")
        return 0
    if args.turns:
        turns.prepare(args.turns)
    try:
        lesson = course.find(args.unit or "")
        result = unit(lesson)
    except CourseError as error:
        print(error, file=sys.stderr)
        return 2
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(text(lesson, result["results"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
