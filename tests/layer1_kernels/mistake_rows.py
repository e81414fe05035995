"""Rows of mistakes, {id: (what the kernel does, what it gives)}: named, and those that show."""

import numpy as np


def named(name, rows):
    """{id: (sentence, what it gives)}, each sentence with the kernel as its subject."""
    return {known: (f"{name} {phrase}", answer) for known, (phrase, answer) in rows.items()}


def different(rows, want):
    """The rows that give something else."""
    return {known: row for known, row in rows.items()
            if not np.array_equal(row[1], want, equal_nan=True)}


def telling(name, want, rows):
    """The rows that can be told from what is right: with one column, say, a sum is a mean."""
    return {known: row for known, row in named(name, rows).items()
            if not np.allclose(row[1], want, rtol=2e-3, atol=0, equal_nan=True)}
