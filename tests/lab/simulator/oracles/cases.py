"""The table of all forms of instructions, each with an oracle.

An oracle maps the operands' bits to the result's bits with Python's integers, see formats.py.
It returns None where the result is a NaN whose bits are unspecified.
Rules are those of the PTX ISA manual; where it is silent, the rule follows what NVIDIA's assembler
makes of constants, and the oracle says so.
"""

from typing import NamedTuple

from .program import Operands

MODES = ("rn", "rz", "rm", "rp")
FTZ, SAT, RELU = ("", "ftz"), ("", "sat"), ("", "relu")
INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64")
WORDS = ("u32", "u64", "s32", "s64")
BITS = ("b16", "b32", "b64")
HALVES = ("f16", "f16x2", "bf16", "bf16x2")


class Case(NamedTuple):
    operands: Operands
    oracle: object              # f(bits of each source) -> bits of the result, or a tuple of them
    close: object = None        # f(bits, expected) -> is it near enough? None: equal bits


CASES = {}                      # form -> Case


def case(form, results, sources, oracle, text="", close=None):
    assert form not in CASES, form
    one_or_more = [(x,) if isinstance(x, str) else tuple(x) for x in (results, sources)]
    CASES[form] = Case(Operands(*one_or_more, text), oracle, close)


def forms(*groups):
    """("rn", "rz"), ("", "ftz") -> ".rn", ".rn.ftz", ".rz", ".rz.ftz" with the words of each."""
    if not groups:
        yield "", ()
        return
    for word in groups[0]:
        for text, words in forms(*groups[1:]):
            yield ("." + word if word else "") + text, (word, *words)


def packed(oracle):
    """An oracle of 16-bit halves -> of both halves of 32-bit words."""
    def both(*words):
        low = oracle(*(word & 0xFFFF for word in words))
        high = oracle(*(word >> 16 for word in words))
        return None if None in (low, high) else low | high << 16
    return both
