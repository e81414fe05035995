"""From a regular expression to an automaton over bytes

states: of the automaton
A character is one to four bytes of UTF-8, and there are states between them.
First come nodes that may be active together (Thompson, 1968), then a state for each set of them
that a text can reach.
Costs 1 KiB a state.
A set may be large and there may be many, so the sum of their sizes is bounded.
"""

from collections.abc import Iterator
from string import hexdigits
from typing import NamedTuple

import numpy as np

__all__ = ["Automaton", "PatternError", "compile_regex"]

MAX_PATTERN = 16384     # characters
MAX_DEPTH = 50          # parentheses within each other
MAX_REPEAT = 1000       # of {m,n}
MAX_NODES = 40_000
MAX_WORK = 100_000      # nodes of all sets: less than a second
LAST = 0x10FFFF         # the last character
Ranges = list[tuple[int, int]]                  # characters from the first to the last, both in
DIGIT: Ranges = [(48, 57)]
WORD: Ranges = [(48, 57), (65, 90), (95, 95), (97, 122)]
SPACE: Ranges = [(9, 13), (32, 32)]
CLASSES = {"d": DIGIT, "w": WORD, "s": SPACE}
CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}


class PatternError(ValueError):
    """A pattern that cannot be compiled: what is wrong, and at which character."""


class Automaton(NamedTuple):
    """A state is what may still come of a text.
    From each state an end can be reached.

    table: (states, 256) int32, the state after a byte; -1: no text goes on so
    start: the state of the empty text    accepting: (states,) bool, whether a text may end there
    """

    table: np.ndarray
    start: int
    accepting: np.ndarray


# ---- characters as bytes


def complement(ranges: Ranges) -> Ranges:
    """All other characters."""
    others = []
    begin = 0
    for first, last in sorted(ranges):
        if first > begin:
            others.append((begin, first - 1))
        begin = max(begin, last + 1)
    return [*others, (begin, LAST)] if begin <= LAST else others


def byte_ranges(first: int, last: int) -> Iterator[list[tuple[int, int]]]:
    """Characters first to last as sequences of byte ranges: each holds the texts of UTF-8 that have
    a byte of each range.
    Surrogates, which UTF-8 cannot write, are left out."""
    for low, high in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF),
                      (0x10000, LAST)):
        if first <= high and last >= low:
            yield from same_length(max(first, low), min(last, high))


def same_length(first: int, last: int) -> Iterator[list[tuple[int, int]]]:
    """byte_ranges of characters with equally many bytes."""
    for i in range(1, len(chr(last).encode())):
        low = (1 << 6 * i) - 1                  # the bits of the last i bytes
        if first | low >= last | low:
            continue
        if first & low:
            yield from same_length(first, first | low)
            yield from same_length((first | low) + 1, last)
            return
        if last & low != low:
            yield from same_length(first, (last & ~low) - 1)
            yield from same_length(last & ~low, last)
            return
    yield list(zip(chr(first).encode(), chr(last).encode(), strict=True))


# ---- from a pattern to nodes


class Nodes:
    """A pattern as nodes: of each its edges, (first byte, last byte, node), and the nodes that are
    active with it.

    The methods `read_…` take the node at which a part of the pattern begins, and return the node at
    its end.
    """

    def __init__(self, pattern: str):
        self.pattern = pattern
        self.at = 0
        self.depth = 0
        self.edges: list[list[tuple[int, int, int]]] = []
        self.jumps: list[list[int]] = []

    def node(self) -> int:
        if len(self.edges) == MAX_NODES:
            raise PatternError(f"more than {MAX_NODES} nodes: repeat less")
        self.edges.append([])
        self.jumps.append([])
        return len(self.edges) - 1

    def next(self) -> str:
        return self.pattern[self.at:self.at + 1]

    def take(self) -> str:
        """The next character, which is read with this; "" at the end."""
        character = self.next()
        self.at += 1
        return character

    def wrong(self, message: str, at: int | None = None) -> PatternError:
        return PatternError(f"{message} at character {self.at if at is None else at}")

    def read_choice(self, begin: int) -> int:
        """Alternatives from a node on: the node at their end."""
        end = self.node()
        while True:
            self.jumps[self.read_sequence(begin)].append(end)
            if self.next() != "|":
                return end
            self.take()

    def read_sequence(self, begin: int) -> int:
        last = self.node()
        self.jumps[begin].append(last)
        while self.next() and self.next() not in "|)":
            last = self.read_repeat(last)
        return last

    def read_repeat(self, begin: int) -> int:
        """One part, as often as what follows it says."""
        start = self.at
        inner = self.node()
        self.jumps[begin].append(inner)
        last = self.read_atom(inner)
        stop = self.at
        least, most = self.read_count()
        if (least, most) == (1, 1):
            return last
        after = self.at
        end = self.node()
        for i in range(most or max(least, 1)):
            if i:                                   # again, from the pattern's text
                self.at = start
                inner = self.node()
                self.jumps[last].append(inner)
                last = self.read_atom(inner)
                assert self.at == stop
            if i >= least:
                self.jumps[inner].append(end)
        if most is None:
            self.jumps[last].append(inner)
        if most == 0:
            last = begin
        self.jumps[last].append(end)
        self.at = after
        return end

    def read_count(self) -> tuple[int, int | None]:
        """(least, most) of a repetition; None: without a bound."""
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self.next() in simple and self.next():
            least, most = simple[self.take()]
        elif self.next() == "{":
            least, most = self.read_braces()
        else:
            return 1, 1
        if self.next() and self.next() in "*+?{":
            raise self.wrong(f"{self.next()!r} after a repetition: expected parentheses around it")
        return least, most

    def read_braces(self) -> tuple[int, int | None]:
        start = self.at
        close = self.pattern.find("}", start)
        low, comma, high = self.pattern[start + 1:max(close, start)].partition(",")
        if not low.isdecimal() or high and not high.isdecimal():
            raise self.wrong("expected {m}, {m,} or {m,n}")
        least = int(low)
        most = int(high) if high else None if comma else least
        if most is not None and most < least or max(least, most or 0) > MAX_REPEAT:
            raise self.wrong(f"expected m to be at most n, and n at most {MAX_REPEAT},")
        self.at = close + 1
        return least, most

    def read_atom(self, begin: int) -> int:
        """A group, a class or a character: the node at its end."""
        start = self.at
        character = self.take()
        if character == "(":
            return self.read_group(begin, start)
        if character == "[":
            return self.add(begin, self.read_class(start))
        if character == ".":
            return self.add(begin, complement([(10, 10)]))
        if character == "\\":
            return self.add(begin, self.read_escape())
        if character in "*+?{":
            raise self.wrong(f"{character!r} repeats nothing", start)
        if character in "^$":
            raise self.wrong(f"{character!r}: a pattern is for the whole text, without anchors;",
                             start)
        return self.add(begin, [(ord(character), ord(character))])

    def read_group(self, begin: int, start: int) -> int:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.wrong(f"more than {MAX_DEPTH} parentheses within each other", start)
        if self.pattern.startswith("?:", self.at):
            self.at += 2
        elif self.next() == "?":
            raise self.wrong("expected (?:, since look-around and flags are not regular;", start)
        end = self.read_choice(begin)
        if self.take() != ")":
            raise self.wrong("the parenthesis is not closed", start)
        self.depth -= 1
        return end

    def read_escape(self) -> Ranges:
        """The characters of what follows a backslash."""
        start = self.at - 1
        letter = self.take()
        if letter.lower() in CLASSES:
            ranges = CLASSES[letter.lower()]
            return ranges if letter.islower() else complement(ranges)
        if letter in ("x", "u"):
            size = 2 if letter == "x" else 4
            digits = self.pattern[self.at:self.at + size]
            if len(digits) < size or not set(digits) <= set(hexdigits):
                raise self.wrong(f"\\{letter}: expected {size} hexadecimal digits", start)
            self.at += size
            return [(int(digits, 16),) * 2]
        if letter.isdecimal():
            raise self.wrong("back-references are not regular;", start)
        if letter not in CONTROLS and (letter.isalnum() or not letter):
            raise self.wrong(f"\\{letter} has no meaning here", start)
        return [(ord(CONTROLS.get(letter, letter)),) * 2]

    def read_class(self, start: int) -> Ranges:
        """The characters of [...]."""
        negative = self.next() == "^"
        self.at += negative
        ranges: Ranges = []
        first = True
        while first or self.next() != "]":
            if not self.next():
                raise self.wrong("the bracket is not closed", start)
            first = False
            low = self.read_member()
            if self.next() == "-" and self.pattern[self.at + 1:self.at + 2] not in ("]", ""):
                self.take()
                high = self.read_member()
                if any(one[0][0] != one[-1][1] for one in (low, high)) or high < low:
                    raise self.wrong("a range that goes backwards or ends in a class", start)
                low = [(low[0][0], high[0][1])]
            ranges += low
        self.take()
        return complement(ranges) if negative else ranges

    def read_member(self) -> Ranges:
        character = self.take()
        return self.read_escape() if character == "\\" else [(ord(character), ord(character))]

    def add(self, begin: int, ranges: Ranges) -> int:
        """Edges for one character of the ranges."""
        end = self.node()
        for first, last in ranges:
            for sequence in byte_ranges(first, last):
                node = begin
                for i, (low, high) in enumerate(sequence):
                    target = end if i == len(sequence) - 1 else self.node()
                    self.edges[node].append((low, high, target))
                    node = target
        return end


# ---- from nodes to states


def compile_regex(pattern: str) -> Automaton:
    r"""The automaton of the texts that a pattern matches as a whole.

    As in Python's re: characters, classes, . \d \w \s, * + ? {m,n}, | and parentheses. \d, \w and
    \s are those of ASCII.
    PatternError says what is wrong or too large, and where.
    """
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"expected at most {MAX_PATTERN} characters, found {len(pattern)}")
    nodes = Nodes(pattern)
    begin = nodes.node()
    end = nodes.read_choice(begin)
    if nodes.next():
        raise nodes.wrong("a parenthesis closes that was never opened")
    return trimmed(*states_of(nodes, begin, end))


def closure(nodes: Nodes, active: set[int]) -> frozenset[int]:
    """With the nodes that are active with them."""
    whole = set(active)
    waiting = list(active)
    while waiting:
        for node in nodes.jumps[waiting.pop()]:
            if node not in whole:
                whole.add(node)
                waiting.append(node)
    return frozenset(whole)


def states_of(nodes: Nodes, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """(table, accepting): a state for each set of nodes that a text can reach, from 0 on."""
    sets = [closure(nodes, {begin})]
    numbers = {sets[0]: 0}
    rows = []
    work = 0
    for active in sets:                             # grows meanwhile
        work += len(active)
        if work > MAX_WORK:
            raise PatternError("too many states: repeat less, or use fewer alternatives")
        edges = [edge for node in active for edge in nodes.edges[node]]
        cuts = sorted({0, 256, *(low for low, _, _ in edges), *(high + 1 for _, high, _ in edges)})
        row = np.full(256, -1, dtype=np.int32)
        for low, above in zip(cuts, cuts[1:], strict=False):        # bytes that act alike
            targets = {node for a, b, node in edges if a <= low <= b}
            if targets:
                reached = closure(nodes, targets)
                if reached not in numbers:
                    numbers[reached] = len(sets)
                    sets.append(reached)
                row[low:above] = numbers[reached]
        rows.append(row)
    return np.stack(rows), np.array([end in active for active in sets])


def trimmed(table: np.ndarray, accepting: np.ndarray) -> Automaton:
    """Without states from which no end can be reached.
    PatternError if no text matches at all."""
    states, codes = np.nonzero(table >= 0)
    edges = np.unique(np.stack((table[states, codes], states)), axis=1)     # (after, before)
    first = np.searchsorted(edges[0], np.arange(len(table) + 1))
    alive = accepting.copy()
    waiting = np.flatnonzero(alive).tolist()
    while waiting:
        state = waiting.pop()
        for before in edges[1, first[state]:first[state + 1]].tolist():
            if not alive[before]:
                alive[before] = True
                waiting.append(before)
    if not alive[0]:
        raise PatternError("no text matches this pattern")
    numbers = np.where(alive, np.cumsum(alive) - 1, -1).astype(np.int32)
    table = np.where(table >= 0, numbers[table], -1).astype(np.int32)
    return Automaton(table[alive], 0, accepting[alive])
