"""What was measured on GPUs, as tables: from benchmarks/<device>.json, which `make gpu` writes.

A lesson takes part if its reference has a function bench(); its text shows the table where it says
<!-- lab:measured -->. What no record has is "not measured".
"""

import json

from lab import bench
from lab.course import ROOT

NONE = "not measured"


def records(folder=ROOT / "benchmarks"):
    """[what `make gpu` wrote], a device each, by name."""
    found = [json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")
             if not path.name.endswith(".partial.json")]
    return sorted((r for r in found if "units" in r and "device" in r), key=lambda r: r["device"])


def rows(record, lesson):
    """{kernel: its row of lab.bench} of a lesson; nothing where it did not end well."""
    return record["units"].get(f"bench {lesson.id}", {}).get("results", {})


def of_lesson(lesson, known):
    """A lesson's table in Markdown. known: the records."""
    lines = []
    for record in known:
        measured = rows(record, lesson)
        if measured:
            ratios = sorted({k for row in measured.values() for k in row if k.startswith("times_")})
            lines += ["", f"Measured on an {record['device']}, all by turns in one run:", "",
                      "| | µs | TFLOP/s | share of copy | share of read | " + " | ".join(
                          f"× {r.removeprefix('times_')}" for r in ratios) + " |",
                      "| --- " * (5 + len(ratios)) + "|"]
            lines += [f"| {name} | {1e6 * row['seconds']:.1f} ± {row['uncertainty']:.0%} | "
                      f"{row['flops'] / row['seconds'] / 1e12:.2f} | "
                      f"{share(row, 'copy')} | {share(row, 'read')} | " + " | ".join(
                          f"{row[r]:.2f}" if r in row else "" for r in ratios) + " |"
                      for name, row in measured.items()]
    return "\n".join(lines[1:]) or (
        f"On a GPU: {NONE} yet. `lab bench {lesson.id[:3]}` measures it where there is one.")


def share(row, roof):
    return f"{row[f'share_of_{roof}']:.0%}" if f"share_of_{roof}" in row else ""


def summary(known):
    """The README's table: of each lesson the kernel that does best against the strongest it is
    compared with, or against a copy's bandwidth."""
    devices = [record["device"] for record in known] or ["a GPU"]
    lines = [f"| lesson | {' | '.join(devices)} |", "| --- " * (1 + len(devices)) + "|"]
    for lesson in bench.units():
        cells = [best(rows(record, lesson)) for record in known] or [NONE]
        lines.append(f"| {lesson.id} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def best(measured):
    """The kernel to name in one cell, with its figures: of those that no other is compared with,
    the one that does best against the strongest in its family. Names are `way`, `family: way`."""
    def family(name):
        return name.rpartition(": ")[0]

    def ratios(row):
        return {k.removeprefix("times_"): v for k, v in row.items() if k.startswith("times_")}

    def rank(name):
        row = measured[name]
        return min(ratios(row).values(), default=0), row.get("share_of_copy", 0)

    rivals = {(family(name), other) for name, row in measured.items() for other in ratios(row)}
    own = [name for name in measured if name not in ("copy", "read")
           and (family(name), name.rpartition(": ")[2]) not in rivals]
    if not own:
        return NONE
    name = max(own, key=rank)
    figures = [f"{share(measured[name], roof)} of {roof}" for roof in ("copy", "read")
               if share(measured[name], roof)]
    figures += [f"{value:.2f} × {other}" for other, value in ratios(measured[name]).items()]
    return f"{name}: {', '.join(figures)}"
