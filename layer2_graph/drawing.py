"""Draw a graph of launches as SVG: each box a launch, & for merged, + for fused."""

import unicodedata
from collections.abc import Iterable
from html import escape
from typing import NamedTuple

__all__ = ["Box", "draw"]

LETTER, HIGH = 7.3, 38          # pixels: of a letter, and of a box
GAP, STEP, EDGE = 22, 34, 20    # between neighbours, between rows, around the picture
PLAIN = ("#f6f8fa", "#8c959f", "")
LOOKS = {       # (is " & " in a label, is " + ") -> fill, line, words of the legend
    (True, False): ("#ddf4ff", "#0969da", "& merged: one equation"),
    (False, True): ("#fff8c5", "#9a6700", "+ fused: one launch"),
    (True, True): ("#dafbe1", "#1a7f37", "& and +: both"),
}


class Box(NamedTuple):
    """A launch, or a value from outside, which is drawn without a frame.

    label: what it does; " & " in it marks what was merged, " + " what was fused
    inputs: indices of the boxes whose results it takes, all earlier in the list
    note: a second line, such as its bytes
    """

    label: str
    inputs: tuple = ()
    note: str = ""
    launch: bool = True


def draw(boxes: Iterable[Box], title: str) -> str:
    """The boxes from top to bottom, as the text of an SVG file.

    boxes: [Box], each after those that it takes from; ValueError names one that is not.
    Lines pass between boxes and never over one.
    Text is escaped, control characters are blanks.
    """
    boxes = [Box(plain(b.label), tuple(b.inputs), plain(b.note), b.launch) for b in boxes]
    for i, box in enumerate(boxes):
        if not all(0 <= j < i for j in box.inputs):
            raise ValueError(f"draw: box {i}, {box.label!r}, takes from boxes {box.inputs}; "
                             f"expected earlier ones, 0 to {i - 1}")
    rows = levels(boxes)
    places = arrange(boxes, rows)
    looks = [look for look in LOOKS if look in {kind(b) for b in boxes if b.launch}]
    legend = sum(letters(LOOKS[look][2]) * LETTER + 46 for look in looks)
    title = plain(title)
    left = min((x - width(boxes, key) / 2 for key, x in places.items()), default=0)
    right = max((x + width(boxes, key) / 2 for key, x in places.items()), default=0)
    across = max(right - left, legend, letters(title) * LETTER * 1.2) + 2 * EDGE
    shift = across / 2 - (left + right) / 2
    places = {key: x + shift for key, x in places.items()}
    top = EDGE + 44
    down = top + (max(rows, default=-1) + 1) * (HIGH + STEP) + EDGE
    body = [text(across / 2, EDGE + 8, title, 15, "#24292f", "bold")]
    body += lines(boxes, rows, places, top)
    body += [part for i, box in enumerate(boxes)
             for part in frame(box, places[i, rows[i]], top + rows[i] * (HIGH + STEP))]
    x = (across - legend) / 2 + 23
    for look in looks:
        fill, line, words = LOOKS[look]
        wide = letters(words) * LETTER
        body += [f'<rect x="{x - 14:.1f}" y="{down - 20}" width="12" height="12" rx="2" '
                 f'fill="{fill}" stroke="{line}"/>',
                 text(x + 4 + wide / 2, down - 10, words, 12, "#57606a")]
        x += wide + 46
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{across:.0f}" height="{down:.0f}" '
        f'viewBox="0 0 {across:.0f} {down:.0f}" role="img" '
        f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace">',
        f"<title>{escape(title)}</title>", '<rect width="100%" height="100%" fill="white"/>',
        *body, "</svg>", ""])


def plain(label):
    return "".join(c if c.isprintable() else " " for c in str(label))


def letters(label):
    """How many columns a text takes: East Asian wide letters two, combining marks none."""
    return sum(0 if unicodedata.combining(c) else
               2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in label)


def kind(box):
    return " & " in box.label, " + " in box.label


def levels(boxes):
    """The row of each box: under all that it takes from; one that takes nothing, above its first
    use."""
    rows = []
    users = [[] for _ in boxes]
    for i, box in enumerate(boxes):
        rows.append(max((rows[j] + 1 for j in box.inputs), default=0))
        for j in box.inputs:
            users[j].append(i)
    return [min((rows[user] for user in users[i]), default=1) - 1 if not box.inputs else rows[i]
            for i, box in enumerate(boxes)]


def width(boxes, key):
    """The width of a box, or of a line that passes through a row between boxes."""
    i = key[0]
    passes = len(key) == 3
    box = boxes[i]
    return 2 if passes else max(letters(box.label), letters(box.note) * 0.85) * LETTER + 20


def arrange(boxes, rows):
    """{(box, row) or (box, row, "passes"): middle}, in pixels; nothing overlaps in a row."""
    keys = {row: [] for row in range(max(rows, default=-1) + 1)}
    for i, row in enumerate(rows):
        keys[row].append((i, row))
        last = max((rows[j] for j, box in enumerate(boxes) if i in box.inputs), default=row)
        for between in range(row + 1, last):
            keys[between].append((i, between, "passes"))
    places = {}
    for row, here in keys.items():
        wish = {}
        for key in here:
            box = boxes[key[0]]
            above = [places[at] for at in (
                [up(key[0], row, rows)] if len(key) == 3 else
                [up(j, row, rows) for j in box.inputs])]
            wish[key] = sum(above) / len(above) if above else 0.0
        right = None
        here = sorted(here, key=lambda key: (wish[key], key[0]))
        for key in here:
            half = width(boxes, key) / 2
            places[key] = wish[key] if right is None else max(wish[key], right + GAP + half)
            right = places[key] + half
        slack = sum(wish[key] - places[key] for key in here) / len(here)
        places |= {key: places[key] + slack for key in here}
    return places


def up(i, row, rows):
    """The place from which a line from box i enters this row."""
    return (i, rows[i]) if rows[i] == row - 1 else (i, row - 1, "passes")


def lines(boxes, rows, places, top):
    """Lines from each box to its users; users further down share one line through the rows."""
    drawn = {}
    for i, box in enumerate(boxes):
        for j in box.inputs:
            for row in range(rows[j] + 1, rows[i] + 1):
                end = (i, row) if row == rows[i] else (j, row, "passes")
                drawn[up(j, row, rows), end] = row
    parts = []
    for (start, end), row in drawn.items():
        x = places[start]
        y = top + (row - 1) * (HIGH + STEP) + HIGH
        to = places[end]
        under = top + row * (HIGH + STEP)
        parts.append(f'<path d="M{x:.1f} {y}C{x:.1f} {y + STEP / 2} {to:.1f} {under - STEP / 2} '
                     f'{to:.1f} {under}" fill="none" stroke="#57606a" stroke-width="1.4"/>')
        if len(end) == 3:
            parts.append(f'<path d="M{to:.1f} {under}v{HIGH}" stroke="#57606a" '
                         f'stroke-width="1.4"/>')
        else:
            parts.append(f'<path d="M{to - 4:.1f} {under - 6}L{to:.1f} {under}L{to + 4:.1f} '
                         f'{under - 6}" fill="none" stroke="#57606a" stroke-width="1.4"/>')
    return parts


def frame(box, x, y):
    fill, line, _ = LOOKS.get(kind(box), PLAIN)
    wide = width([box], (0, 0))
    middle = y + HIGH / 2 + 4
    parts = [f'<rect x="{x - wide / 2:.1f}" y="{y}" width="{wide:.1f}" height="{HIGH}" rx="5" '
             f'fill="{fill}" stroke="{line}"/>'] if box.launch else []
    if box.note:
        middle -= 8
        parts.append(text(x, middle + 16, box.note, 10, "#57606a"))
    return [*parts, text(x, middle, box.label, 12, "#24292f")]


def text(x, y, words, size, colour, weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
            f'font-weight="{weight}" text-anchor="middle" xml:space="preserve">'
            f'{escape(words)}</text>')
