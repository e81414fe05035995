"""Targets of records on a CPU: a figure of each round, its median beside a limit."""

from statistics import median

SIGNS = {True: "≥", False: "≤"}         # of a target that is a least figure, or a largest one


def judged(figures, limit, at_least=True):
    """What a record says of a target. figures: of each round    at_least: the limit is the least"""
    figure = median(figures)
    return {"limit": limit, "at_least": at_least, "figure": figure, "lowest": min(figures),
            "highest": max(figures), "met": figure >= limit if at_least else figure <= limit}


def table(rows):
    """A Markdown table, [line], of a record's targets."""
    return ["| | model | target | measured | |", "| --- " * 5 + "|"] + [
        f"| {row['title']} | {row['model']} | {SIGNS[row['at_least']]} "
        f"{row['limit']:.3g} | {row['figure']:.3g} ({row['lowest']:.3g} to {row['highest']:.3g}) | "
        f"{'met' if row['met'] else '**missed**'} |" for row in rows]
