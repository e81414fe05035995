"""What was measured on GPUs, as tables: from benchmarks/<device>.json, see lab/measure/records.py.

A lesson takes part if its bench file has a function bench(); its text shows the table where it says
<!-- lab:measured -->. What no record has is "not measured".
Targets are judged again, so a record need not know those of today.
"""

import json

from lab.course import ROOT
from lab.measure import bench

NONE = "not measured"
DEVICE = "an H200"          # what the targets are for


def records(folder=ROOT / "benchmarks"):
    """[the record of a device], by its name."""
    rows = [json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")
             if not path.name.endswith(".partial.json")]
    return sorted((r for r in rows if "units" in r and "device" in r), key=lambda r: r["device"])


def rows(record, lesson):
    """{kernel: its row of lab.measure.bench} of a lesson; {} where it did not end well."""
    return record["units"].get(f"bench {lesson.id}", {}).get("results", {})


def of_lesson(lesson, known):
    """A lesson's table in Markdown. known: the records."""
    lines = []
    wanted = bench.targets(lesson)
    for record in known:
        if measured := rows(record, lesson):
            lines += ["", f"Measured on an {record['device']}, by turns in one run:", "",
                      *table(bench.judge(measured, wanted))]
    if lines:
        return "\n".join(lines[1:])
    lines = [f"On a GPU: {NONE} yet. `lab bench {lesson.id[:3]}` measures it where there is one."]
    if wanted:
        lines += ["", f"| target on {DEVICE} | | |", "| --- | --- | --- |"]
        lines += [f"| {name} | ≥ {bench.figure(figure, least)} | {NONE} |"
                  for name, figures in wanted.items() for figure, least in figures.items()]
    return "\n".join(lines)


def table(measured):
    """Judged rows as lines of Markdown: shares of a copy's and a matmul's rate, ratios, targets.

    The roofs have their rates alone.
    Shares of what a read reaches, which hardly differ from those of a copy, are in the record.
    """
    figures = {key: None for row in measured.values() for key in row}
    shares = [key for key in figures if key.startswith("share_of_") and key != "share_of_read"]
    ratios = sorted(key for key in figures if key.startswith("times_"))
    aimed = any("targets" in row for row in measured.values())
    heads = ["", "µs", "TFLOP/s", *(f"share of {s.removeprefix('share_of_')}" for s in shares),
             *(f"× {r.removeprefix('times_')}" for r in ratios),
             *([f"target on {DEVICE}"] if aimed else [])]
    lines = [cells(heads), "| --- " * len(heads) + "|"]
    for name, row in measured.items():
        line = [name, row.get("left_out", NONE).replace("|", "\\|"), ""]
        if "seconds" in row:
            line[1:] = (f"{1e6 * row['seconds']:.1f}" + about(row["uncertainty"]),
                        f"{row['flop_per_second'] / 1e12:.1f}" if row["flops"] else "")
        if name in ("copy", "read") and "seconds" in row:
            line[2] = f"{row['bytes'] / row['seconds'] / 1e12:.2f} TB/s"
        row = {} if is_roof(name) else row
        line += [f"{row[s]:.0%}" if s in row else "" for s in shares]
        line += [f"{row[r]:.2f}" if r in row else "" for r in ratios]
        lines.append(cells([*line, *(["; ".join(bench.aims(row))] if aimed else [])]))
    return lines


def about(uncertainty):
    """` ± 2%`; empty below one in a hundred, which is what a measurement aims at."""
    return f" ± {uncertainty:.0%}" if uncertainty > 0.01 else ""


def cells(texts):
    return f"| {' | '.join(texts)} |"


def summary(known):
    """The README's table: each lesson's targets, and the kernel that does best against its
    strongest rival, or against a copy's bandwidth."""
    heads = ["lesson", f"targets on {DEVICE}", *([r["device"] for r in known] or ["a GPU"])]
    lines = [cells(heads), "| --- " * len(heads) + "|"]
    for lesson in bench.units():
        wanted = bench.targets(lesson)
        lines.append(cells([lesson.id, "; ".join(
            f"{name} {', '.join(f'≥ {bench.figure(*aim)}' for aim in figures.items())}"
            for name, figures in wanted.items()),
            *([best(rows(record, lesson), wanted) for record in known] or [NONE])]))
    return "\n".join(lines) + "\n"


def best(measured, wanted):
    """One cell: the kernel to name with its figures, and how many of the targets are met.

    The kernel is itself no rival of another, and does best against the strongest rival of its
    family.
    Names are `way`, `family: way`.
    """
    def family(name):
        return name.rpartition(": ")[0]

    def ratios(row):
        return {key: value for key, value in row.items() if key.startswith("times_")}

    def rank(name):
        row = measured[name]
        return min(ratios(row).values(), default=0), row.get("share_of_copy", 0)

    rivals = {(family(name), other.removeprefix("times_"))
              for name, row in measured.items() for other in ratios(row)}
    own = [name for name, row in measured.items() if "seconds" in row and not is_roof(name)
           and (family(name), name.rpartition(": ")[2]) not in rivals]
    if not own:
        return NONE
    name = max(own, key=rank)
    row = measured[name]
    figures = [f"{row[key]:.0%} of {key.removeprefix('share_of_')}" for key in row
               if key.startswith("share_of_")]
    figures += [f"{value:.2f} × {key.removeprefix('times_')}" for key, value in ratios(row).items()]
    text = f"{name}: {', '.join(figures)}"
    verdicts = [target["met"] for row in bench.judge(measured, wanted).values()
                for target in row.get("targets", {}).values()]
    return text + (f". Targets: {verdicts.count(True)} of {len(verdicts)} met" if verdicts else "")


def is_roof(name):
    """True for the rows that `measure_side_by_side` adds to a lesson's own."""
    return name in ("copy", "read") or name.startswith("matmul of ")
