"""The record of serving_speed, as tables and in a sentence."""

import json
from pathlib import Path
from statistics import median

from lab.measure import targets
from lab.measure.cards import measured_on

RECORD = Path(__file__).parents[2] / "benchmarks" / "serving.json"


def text():
    """The tables of the record, as Markdown."""
    return "\n" + table(json.loads(RECORD.read_text("utf-8")))


def headline():
    """Two of its figures in a sentence."""
    record = json.loads(RECORD.read_text("utf-8"))
    ratio = {row["title"]: row["figure"] for row in record["targets"]}
    rate = median(record["models"]["135M"]["ours 8"]["rate"])
    return (f"On {record['machine']['cores']} CPU cores, a Llama of 135 million parameters writes "
            f"{rate:.0f} tokens a second for 8 requests at once, "
            f"{ratio['8 at once, against generate']:.1f} times as many as Hugging Face's "
            "`generate`; and for requests of mixed lengths "
            f"{ratio['mixed lengths, against padded static batches']:.1f} times as many as in "
            "padded static batches.\n")


def table(record):
    """The record as two tables and how it was measured."""
    lines = [*targets.table(record["targets"]), "", "| model | arm | tokens/s | texts as ours |",
             "| --- " * 4 + "|"]
    lines += [f"| {model} | {name} | {median(arm['rate']):.0f} | {arm['same_texts']} of "
              f"{record['trace'] if name.endswith('mixed') else name.split()[-1]} |"
              for model, arms in record["models"].items() for name, arm in arms.items()]
    lines += ["", f"Equal: 1, 8 or 32 requests at once, {record['prompt']} tokens each, "
              f"{record['written']} to write. Mixed: {record['trace']} requests, all there at the "
              f"start, at most {record['seats']} at a time. Greedy, fp32; prompts are in the time. "
              + measured_on(record)]
    return "\n".join(lines) + "\n"
