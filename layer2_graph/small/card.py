"""What the README says of the small model, from its files and from report.json."""

import json
import textwrap
from math import prod
from pathlib import Path

from safetensors import safe_open

SMALL = Path(__file__).parent
FOLDERS = {"small": SMALL, "draft": SMALL.parent / "draft"}
SHOWN = 320             # characters of a sample


def text():
    """A table of perplexities and all samples, as Markdown."""
    report = json.loads((SMALL / "report.json").read_text("utf-8"))
    rows = ["| | weights | file | stories | docstrings | both |", "| --- " * 6 + "|"]
    for name, value in report["perplexity"].items():
        figures = " | ".join(f"{value[part]:.2f}" for part in ("stories", "docstrings", "all"))
        rows.append(f"| {name} | {size(FOLDERS[name]) if name in FOLDERS else ' | '} | {figures} |")
    shown = ["```text"]
    for sample in report["samples"]:
        whole = sample["text"]
        cut = whole if len(whole) <= SHOWN else whole[:SHOWN].rsplit(" ", 1)[0] + " …"
        shown.append(f"» {sample['asked'] or '(nothing)'}")
        shown += [line for part in cut.strip().splitlines() for line in textwrap.wrap(part, 98)]
        shown.append("")
    return "\n".join(["", *rows, "", *shown[:-1], "```", ""])


def size(folder):
    """Weights and bytes of a model, as two cells of a table."""
    path = folder / "model.safetensors"
    with safe_open(path, framework="numpy") as file:
        weights = sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return f"{weights:,} | {path.stat().st_size / 1e6:.1f} MB"
