"""Measure the simulator's speed against other simulators and its targets: `make speed`.

benchmarks/speed/ holds the kernels and measure.py, which measures one thing in a process of its
own.
Numba and Triton's interpreter run in environments of their own under .cache/speed/. Ours and a
baseline take turns, so that a busy machine disturbs both. benchmarks/simulator.json has the result,
and `lab build` puts its table into the README.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from statistics import median

from lab.author.versions import equip, made
from lab.course import ROOT, CourseError
from lab.device import cpu_model
from lab.measure import targets
from lab.setup import Missing

FOLDER = ROOT / ".cache" / "speed"
RECORD = ROOT / "benchmarks" / "simulator.json"
MEASURE = ROOT / "benchmarks" / "speed" / "measure.py"

ROUNDS = 3
OURS, CHECKED = "unchecked", "simulator"        # sides of measure.py; no baseline has our checks
ENVIRONMENTS = {                                # side: packages, the rest as the course has it
    "numba": ["numba"],
    # Triton 3.6's interpreter fails on NumPy 2.4. Triton 3.7's does not.
    "interpreter": ["numpy<2.4", "torch", "triton"],
}
VARYING = ("numpy",)


@dataclass(frozen=True)
class SpeedTarget:
    """over: the side whose seconds are divided by ours; None: our seconds themselves."""

    title: str
    job: str
    over: str | None
    limit: float
    at_least: bool


TARGETS = (
    SpeedTarget("CUDA C matmul 64³ on 16×16 tiles, against Numba's CUDA simulator",
                "cuda_matmul_64", "numba", 500, True),
    SpeedTarget("the same with checks, against without", "cuda_matmul_64", CHECKED, 6, False),
    SpeedTarget("CUDA C matmul 512³ on 16×16 tiles", "cuda_matmul_512", None, 0.7, False),
    SpeedTarget("Triton matmul 512³ on 64×32×32 tiles, against Triton's interpreter",
                "triton_matmul_512_small_tiles", "interpreter", 1.5, True),
    SpeedTarget("… on 128×256×64 tiles", "triton_matmul_512_large_tiles", "interpreter", 1.5, True),
    SpeedTarget("Triton softmax 1024×1000, against Triton's interpreter",
                "triton_softmax_1024_1000", "interpreter", 1.5, True),
    SpeedTarget("Triton flash attention 4×256×64 on 64×32 tiles, against Triton's interpreter",
                "triton_attention_4_256_64_small_tiles", "interpreter", 1.5, True),
    SpeedTarget("… on 128×64 tiles",
                "triton_attention_4_256_64_large_tiles", "interpreter", 1.5, True),
)


def jobs():
    """{job: the sides that its targets need}"""
    sides_of = {}
    for target in TARGETS:
        sides = sides_of.setdefault(target.job, [OURS, CHECKED])
        if target.over and target.over not in sides:
            sides.append(target.over)
    return sides_of


# Measuring

def measure(python, job, side):
    """What measure.py says of one process.
    CourseError if it fails or computes a wrong result."""
    done = subprocess.run([python, MEASURE, job, side], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise CourseError(f"{job} on {side}: {reason}")
    return json.loads(done.stdout)


def take_turns(job, sides, pythons):
    """-> {side: [measure.py's answer for each round]}, every other round in reverse order."""
    answers = {side: [] for side in sides}
    for number in range(ROUNDS):
        for side in sides[::-1] if number % 2 else sides:
            answers[side].append(measure(pythons.get(side, sys.executable), job, side))
            print(f"{job}, round {number + 1}, {side}: "
                  f"{median(answers[side][-1]['seconds']):.4f} s", flush=True)
    return answers


def condense(answers):
    """Rounds -> CPU seconds: medians of the imports and of the first launches, and for each round
    the median of its later launches."""
    return {"imports": median(answer["imports"] for answer in answers),
            "first": median(answer["first"] for answer in answers),
            "rounds": [median(answer["seconds"]) for answer in answers]}


# Judging

def figures(target, ours, measured):
    """The target's figure of each round, with these seconds of ours."""
    if target.over is None:
        return measured[ours]["rounds"]
    return [theirs / own for theirs, own in
            zip(measured[target.over]["rounds"], measured[ours]["rounds"], strict=True)]


def judge(target, measured):
    """measured: {side: as `condense` makes it} -> a row of the record."""
    with_checks = None if target.over == CHECKED else median(figures(target, CHECKED, measured))
    return {"title": target.title, "job": target.job, "over": target.over,
            "with_checks": with_checks} | targets.judged(
                figures(target, OURS, measured), target.limit, target.at_least)


def run(wheels):
    """Measure all and write the record; -> the record."""
    pythons = {}
    for side, packages in ENVIRONMENTS.items():
        environment = made(FOLDER / side)
        equip(environment, packages, VARYING, wheels)
        pythons[side] = environment.python
    load = os.getloadavg()[0]
    versions = {}
    measured = {}
    for job, sides in jobs().items():
        answers = take_turns(job, sides, pythons)
        measured[job] = {side: condense(answer) for side, answer in answers.items()}
        versions |= {side: answer[0]["versions"] for side, answer in answers.items()}
    record = {
        "date": datetime.date.today().isoformat(), "rounds": ROUNDS,
        "machine": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
                    "load_before": load},
        "versions": versions, "measured": measured,
        "targets": [judge(target, measured[target.job]) for target in TARGETS]}
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return record


# Telling

def seconds(measured):
    return f"{measured['first']:.2f}, {median(measured['rounds']):.3g}"


def text(record):
    """The record as a Markdown table, and how it was measured."""
    lines = ["| | target | measured | | with checks | ours, s | the other, s |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in record["targets"]:
        measured = record["measured"][row["job"]]
        over = row["over"]
        unit = "×" if over else "s"
        sign = targets.SIGNS[row["at_least"]]
        checked = "" if row["with_checks"] is None else f"{row['with_checks']:.3g} {unit}"
        lines.append(f"| {row['title']} | {sign} {row['limit']:g} {unit} | {row['figure']:.3g} "
                     f"{unit} ({row['lowest']:.3g} to {row['highest']:.3g}) | "
                     f"{'met' if row['met'] else '**missed**'} | {checked} | "
                     f"{seconds(measured[OURS])} | {seconds(measured[over]) if over else ''} |")
    machine = record["machine"]
    versions = record["versions"]
    lines += ["", f"Medians of {record['rounds']} rounds, the lowest and the highest in brackets, "
              "without checks, since the others have none. In a round ours and the other take "
              "turns, each in a new process. Seconds are CPU seconds of the first launch, which "
              f"compiles, and of a later one. {machine['cores']} cores of {machine['cpu']}, "
              f"on which {machine['load_before']:.1f} programs ran already, "
              f"{record['date']}. Numba {versions['numba']['numba']}, Triton "
              f"{versions[OURS]['triton']}, NumPy {versions[OURS]['numpy']}, for the interpreter "
              f"{versions['interpreter']['numpy']}. `make speed` measures again."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", required=True, help="PyTorch's own index of CPU builds, used "
                        "where pip is set to none")
    try:
        print(text(run(parser.parse_args().wheels)))
    except (Missing, CourseError, subprocess.CalledProcessError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
