"""What serving_speed recorded, as tables for the README."""

import json
from pathlib import Path
from statistics import median

RECORD = Path(__file__).parents[1] / "benchmarks" / "serving.json"


def text():
    """The tables of the record, as Markdown."""
    return "\n" + table(json.loads(RECORD.read_text("utf-8")))


def table(record):
    """The record as two tables and how it was measured."""
    lines = ["| | model | target | measured | |", "| --- " * 5 + "|"]
    lines += [f"| {row['title']} | {row['model']} | {'<' if 'share' in row['title'] else '≥'} "
              f"{row['limit']:.3g} | {row['figure']:.3g} ({row['lowest']:.3g} to "
              f"{row['highest']:.3g}) | {'met' if row['met'] else '**missed**'} |"
              for row in record["targets"]]
    lines += ["", "| model | arm | tokens/s | texts as ours |", "| --- " * 4 + "|"]
    lines += [f"| {model} | {name} | {median(arm['rate']):.0f} | {arm['same_texts']} of "
              f"{record['trace'] if name.endswith('mixed') else name.split()[-1]} |"
              for model, arms in record["models"].items() for name, arm in arms.items()]
    machine, versions = record["machine"], record["versions"]
    lines += ["", f"Equal: 1, 8 or 32 requests at once, {record['prompt']} tokens each, "
              f"{record['written']} to write. Mixed: {record['trace']} requests, all there at the "
              f"start, at most {record['seats']} at a time. Greedy, fp32; prompts are in the time. "
              f"Medians of {record['rounds']} rounds, the lowest and the highest in brackets. "
              f"{machine['threads']} threads on {machine['cores']} cores of {machine['cpu']}, on "
              f"which {machine['load_before']:.1f} programs ran already, {record['date']}. "
              + ", ".join(f"{k} {v}" for k, v in versions.items()) + "."]
    return "\n".join(lines) + "\n"
