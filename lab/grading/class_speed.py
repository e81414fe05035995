"""How fast a class is graded: `python -m lab.grading.class_speed`, into benchmarks/grading.json.

200 submissions of 20 exercises each, 12 in Python, 5 in CUDA C and 3 in Triton, about seven in ten
right, no two with the same source.
The machine should be otherwise idle.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path

from lab import course, device, stub
from lab.course import ROOT, SUFFIX
from lab.grading import submit
from lab.grading.journal import Journal
from lab.judge import mutants

RECORD = ROOT / "benchmarks" / "grading.json"
LESSONS = ("r01_roofline", "k01_vector_add", "k07_softmax", "k09_rope")
LEFT = ("rope_triton",)         # a stub: the rest are 12 in Python, 5 in CUDA C, 3 in Triton
RIGHT = 0.7                     # share of right answers
TARGET = 10                     # minutes on 2 cores


def exercises():
    return [e for i in LESSONS for e in course.find(i).exercises if e.name not in LEFT]


def write(folder, students):
    """An archive for each student, as `lab submit` packs one."""
    for number in range(students):
        rng = random.Random(number)
        texts = {}
        for exercise in exercises():
            place = f"{exercise.lesson.floor}/{exercise.lesson.id}{SUFFIX[exercise.language]}"
            texts[place] = texts.get(place, "") + answer(exercise, number, rng) + "\n\n\n"
        data = submit.zipped({name: text.encode() for name, text in texts.items()})
        Path(folder, f"student{number:03}.zip").write_bytes(data)


def answer(exercise, number, rng):
    """The course's own or one of its known mistakes, with a comment that names the student."""
    lesson = exercise.lesson
    language = exercise.language
    text = lesson.sources[language]
    if rng.random() > RIGHT:
        wrong = [m for m in mutants.mutants(lesson) if m["exercise"] == exercise.name]
        text = mutants.mutate(lesson, rng.choice(wrong)).sources[language]
    own = stub.extract(text, exercise.name, language)
    return own.replace("exercise:", f"student {number}:")


def memory():
    """Megabytes that this process's descendants hold, shared pages counted once."""
    import psutil

    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue                    # it has just ended
    return total / 2**20


def measure(students, jobs):
    """Grade a class of this size: speed, memory and verdicts as data."""
    with tempfile.TemporaryDirectory() as folder:
        sent = Path(folder, "sent")
        out = Path(folder, "out")
        sent.mkdir()
        write(sent, students)
        began = time.monotonic()
        samples = []
        run = subprocess.Popen([sys.executable, "-m", "lab.cli", "grade", str(sent), "--out",
                                str(out), "--jobs", str(jobs), "--lessons", ",".join(LESSONS)],
                               cwd=ROOT)
        while run.poll() is None:
            samples.append(memory())
            time.sleep(1)
        seconds = time.monotonic() - began
        if run.returncode:
            raise SystemExit(f"lab grade ended with {run.returncode}")
        units = Journal.resume(out / "journal.jsonl").units.values()
    names = {(e.lesson.id, e.name) for e in exercises()}
    verdicts = Counter(r["verdict"] for unit in units for r in unit["results"]
                       if (r["lesson"], r["exercise"]) in names)
    third = max(1, len(samples) // 3)
    return {"date": str(date.today()), "cores": len(os.sched_getaffinity(0)), "jobs": jobs,
            "students": students, "exercises": len(names), "minutes": round(seconds / 60, 2),
            "submissions_a_minute": round(students / seconds * 60, 1), "target_minutes": TARGET,
            "sandbox": next(iter(units))["sandbox"], "verdicts": dict(sorted(verdicts.items())),
            "megabytes_by_third": [round(max(samples[i:i + third]))
                                   for i in range(0, 3 * third, third)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--students", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=device.workers())
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    record = measure(options.students, options.jobs)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{record['submissions_a_minute']} submissions a minute: {record['students']} of "
          f"{record['exercises']} exercises in {record['minutes']} minutes on {record['cores']} "
          f"cores (target {TARGET}), sandbox {record['sandbox']}; memory by third "
          f"{record['megabytes_by_third']} MB")


if __name__ == "__main__":
    main()
