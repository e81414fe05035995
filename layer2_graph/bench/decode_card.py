"""What decode_speed recorded, as tables: for the command, and for the README."""

import json
from pathlib import Path
from statistics import median

from lab.measure import targets
from lab.measure.cards import measured_on

RECORD = Path(__file__).parents[2] / "benchmarks" / "decode.json"


def text():
    """The tables of the record, as Markdown."""
    return "\n" + table(json.loads(RECORD.read_text("utf-8")))


def table(record):
    """The record as two tables and how it was measured."""
    lines = [*targets.table(record["targets"]), "",
             "| model | arm | prefill, ms | a step, ms | GB/s | tokens as ours |",
             "| --- " * 6 + "|"]
    for model, arms in record["models"].items():
        for arm, row in arms["arms"].items():
            step = median(row["decode"])
            lines.append(f"| {model} | {arm} | {1e3 * median(row['prefill']):.1f} | "
                         f"{1e3 * step:.2f} | {arms['floor_bytes'] / step / 1e9:.1f} | "
                         f"{row['same_tokens']} of {record['written']} |")
        rate = median(arms["rates"])
        lines.append(f"| {model} | the floor | | {1e3 * arms['floor_bytes'] / rate:.2f} | "
                     f"{rate / 1e9:.1f} | |")
    lines += ["", f"One text, {record['prompt']} tokens read and {record['written']} written, the "
              f"last {record['timed']} of them timed. fp32. Ours is \"{record['ours']}\". "
              + measured_on(record)]
    return "\n".join(lines) + "\n"
