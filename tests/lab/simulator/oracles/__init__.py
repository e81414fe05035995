"""Oracles for the simulator's arithmetic, independent of it.
Importing fills the table CASES."""

from . import choices, conversions, floating, functions, integers, moves  # noqa: F401
from .cases import CASES

__all__ = ["CASES"]
