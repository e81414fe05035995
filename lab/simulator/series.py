"""The same instruction many times in a row, run as one.

An unrolled loop leaves the same instruction many times in a row, on other registers each time.
The arrays of a wave of few lanes are small, and numpy's call costs more than its work on them.
So where no instruction reads what another of them writes, their operands are stacked into one array
with an extra axis, and one call does the work of all.
"""

import numpy as np

from .uses import uses_of

FEWEST = 3                      # instructions for which stacking pays (measured)
PIECE = 1 << 15                 # numbers in a stack: it stays in the cache (measured)


class Series:
    """Instructions that follow each other, made by decode.elementwise()."""

    def __init__(self, members):
        self.members = members

    def run(self, wave, inst, most):
        """Run members from `inst` on, no more than `most`, for the wave's lanes -> how many."""
        most = min(most, PIECE // wave.live.size)
        if most < FEWEST or wave.flat:
            inst.run(wave)
            return 1
        first = inst.pc - self.members[0].pc
        members = self.members[first:first + most]
        if len(members) < FEWEST or not run_together(wave, members):
            for member in members:
                member.run(wave)
        return len(members)


def run_together(wave, members):
    """-> False if their operands are of several shapes; then nothing has been done."""
    function = members[0].elementwise.function
    reads = zip(*(member.elementwise.reads for member in members), strict=True)
    operands = [stacked([read(wave) for read in column]) for column in reads]
    if any(operand is None for operand in operands):
        return False
    results = function(*operands)
    if results.ndim == 2:                                   # all have the same operands
        results = [results] * len(members)
    for member, result in zip(members, results, strict=True):
        member.elementwise.write(wave, result)
    return True


def stacked(values):
    """Arrays of one shape -> all in one array, or the one that all are; None for several shapes."""
    first = values[0]
    if all(value is first for value in values):
        return first
    if len({value.shape for value in values}) > 1:
        return None
    return np.concatenate(values).reshape(len(values), *first.shape)


def series_of(inst):
    """The Series that begins with an instruction, or None if the next one is not like it."""
    labels = set(inst.function.labels.values())
    written = set()
    members = []
    for other in inst.function.code[inst.pc:]:
        uses = uses_of(other)
        if (other.opcode, other.modifiers) != (inst.opcode, inst.modifiers) or other.guard or \
                (members and other.pc in labels) or not written.isdisjoint(uses.reads) or \
                not written.isdisjoint(uses.writes):
            break
        written.update(uses.writes)
        members.append(other)
    return Series(members) if len(members) >= FEWEST else None
