"""How long an answer may take: counted by what the code under test does, not by the clock alone.

A busy machine, a fork bomb beside it or a stall of the host makes a right answer late. So the time
is counted in slices: one in which the code waits counts whole, any other one with the CPU time that
the code got in it. An endless loop that has a core to itself, and a sleep, end at the limit.
"""

from time import monotonic

SLICE = 0.25            # seconds
LAST_RESORT = 12        # times the limit may pass on the clock, whatever is counted


class TimeLimit:
    """The time of one answer of a lab.remote.warm.Child.

    counted: seconds so far
    """

    def __init__(self, child):
        self.child = child
        self.began = monotonic()
        self.counted = self.used = 0.0

    def answered(self, limit):
        """Wait for an answer; False if there is none when `limit` seconds are over."""
        while not self.child.answers(monotonic() + SLICE):
            used, runs = self.child.work()
            self.counted += min(SLICE, max(0.0, used - self.used)) if runs else SLICE
            self.used = used
            clock = monotonic() - self.began
            if self.counted >= limit or clock >= LAST_RESORT * limit:
                return False
        return True
