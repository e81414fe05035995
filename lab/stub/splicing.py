"""An answer's units put into a module's: each in place of what it replaces, or where it is needed.
"""

from collections import Counter, defaultdict
from typing import NamedTuple


class Spliced(NamedTuple):
    text: str
    origin: list        # origin[i]: the answer's line that line i + 1 of the text is from, or None


def merged(source, old, answer, new, gap):
    """The units `new` of an answer put among the units `old` of a source."""
    if _all(old) <= _all(new):
        return _numbered([(answer, 1)])
    pieces = []
    cursor = 0
    for start, end, instead in sorted(_edits(old, new, gap), key=lambda edit: edit[:2]):
        pieces += [(source[cursor:start], None), *instead]
        cursor = end
    return _numbered([*pieces, (source[cursor:], None)])


def changed(new, old):
    """The texts of the units in `new` that `old` lacks or has in another form."""
    for unit, home in zip(new, _match(old, new)[0], strict=True):
        theirs = None if home is None else old[home]
        if theirs and unit.normal == theirs.normal:
            continue
        if theirs and unit.members and theirs.members and unit.head == theirs.head:
            if parts := list(changed(unit.members, theirs.members)):
                yield "\n".join([unit.header, *parts])
        else:
            yield "".join(text for text, _ in _pieces(unit, unit.above))


def _all(units):
    """What a module cannot do without: its names, and its stray statements."""
    return {part for unit in units for part in unit.names or [unit.normal]}


def _match(old, new):
    """What each of `new` replaces, as an index in `old` or None; and what that makes obsolete."""
    count = Counter(name for unit in old for name in unit.names)

    def key(unit):
        overloaded = any(count[name] > 1 for name in unit.names)
        return (unit.names, unit.role if overloaded else "") if unit.names else unit.normal

    slots = defaultdict(list)
    taken = {}
    homes = []
    for k, unit in enumerate(old):
        slots[key(unit)].append(k)
    for unit in new:
        this = key(unit)
        if slots[this]:
            homes.append(slots[this].pop(0))
            taken[this] = homes[-1]
        else:                       # defined twice in the answer: both have one place
            homes.append(taken.get(this) if unit.defines else None)
    return homes, {k for this in taken for k in slots[this] if old[k].names}


def _plan(old, new):
    """What goes where, as indices in `old`: {k: units in its place}, {k: units above it}, the
    obsolete ones, and the index above which units go that belong below all replaced ones."""
    homes, obsolete = _match(old, new)
    anchors = {k: h for k, h in enumerate(homes) if h is not None and old[h].defines}
    below = max(anchors.values(), default=len(old) - 1) + 1
    last = max([*anchors, *(k for k, unit in enumerate(new) if unit.defines)], default=-1)
    instead = defaultdict(list)
    above = defaultdict(list)
    for k, (unit, home) in enumerate(zip(new, homes, strict=True)):
        spot = min((h for a, h in anchors.items() if a >= k), default=below)
        if home is None and unit.normal.startswith("from __future__"):      # leads all code
            spot = next((j for j, u in enumerate(old) if u.names != ("__doc__",)), below)
        if home is not None and (k in anchors or home < spot or k > last):
            instead[home].append(unit)
            continue
        if home is not None:                # it stands too low for what needs it: moved up
            obsolete.add(home)
        above[spot].append(unit)
    return instead, above, obsolete, below


def _edits(old, new, gap, pad=None):
    """(start, end, pieces): what stands between two offsets of the source is replaced by pieces."""
    instead, above, obsolete, below = _plan(old, new)
    for k, units in instead.items():
        if all(_amends(unit, old[k]) for unit in units):
            members = [member for unit in units for member in unit.members]
            yield from _edits(old[k].members, members, "\n\n",
                              _indentation(old[k].members[0].text))
        else:
            yield old[k].start, old[k].end, [piece for j, unit in enumerate(units) for piece in (
                ([("\n", None)] if j else []) + _pieces(unit, "", old[k].scope, pad))]
    for k in obsolete:
        yield old[k].lead, old[k].end, []
    for k, units in above.items():
        column = _column(units, gap, pad)
        if k < below:
            yield old[k].span[0], old[k].span[0], [*column, (gap, None)]
        else:
            yield old[k - 1].span[1], old[k - 1].span[1], [(gap, None), *column]


def _amends(new, old):
    """True where a class holds methods for another: under the same header, or a shorter one."""
    return bool(old.members) and any(member.defines for member in new.members) and all(
        mine in ((), theirs) for mine, theirs in zip(new.head, old.head, strict=True))


def _column(units, gap, pad):
    """Units one below another, each with the comment above it."""
    pieces = []
    for before, unit in zip([None, *units], units, strict=False):
        if before:
            pieces.append((gap if before.defines or unit.defines else "\n", None))
        pieces += _pieces(unit, unit.above, (), pad)
    return pieces


def _pieces(unit, above, scope=(), pad=None):
    """A unit in its blocks, as (text, its first line in the answer); `scope`: already entered."""
    text = above + unit.text
    first = unit.line - above.count("\n")
    if pad is not None:
        own = _indentation(unit.text)
        text = "\n".join(row if n in unit.strings or not row.startswith(own)
                         else pad + row.removeprefix(own)
                         for n, row in enumerate(text.split("\n"), first))
    blocks = [block for block in unit.scope if block not in scope]
    return [*((block.opener + "\n", None) for block in blocks), (text, first),
            *(("\n" + block.closer, None) for block in reversed(blocks))]


def _indentation(text):
    return text[:len(text) - len(text.lstrip())]


def _numbered(pieces):
    lines = [""]
    origin = [None]
    for text, first in pieces:
        for k, part in enumerate(text.split("\n")):
            if k:
                lines.append("")
                origin.append(None)
            lines[-1] += part
            if first is not None:
                origin[-1] = first + k
    return Spliced("\n".join(lines), origin[:-1])       # the last line is empty: texts end with one
