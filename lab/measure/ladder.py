"""A ladder as text: a row for each step, with its counts and what changed."""


def table(steps):
    """The steps of a lesson, NamedTuples of one type, under the names of their fields.

    The first field is the step's name, the last says what changed; those between are numbers, or
    None where nothing is counted.
    Whole numbers are shown whole, others to four digits.
    """
    named = ["step", *(field.replace("_", " ") for field in steps[0]._fields[1:])]
    rows = [named, *(list(map(cell, step)) for step in steps)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *counted, changed in rows:
        padded = (f"{text:>{width}}" for text, width in zip(counted, widths[1:-1], strict=True))
        lines.append("  ".join([f"{name:{widths[0]}}", *padded, changed]))
    return "\n".join(lines)


def cell(value):
    """A name, a sentence or a number as the table shows it."""
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,.4g}" if value % 1 else f"{value:,.0f}"
