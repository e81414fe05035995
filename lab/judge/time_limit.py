"""How long an answer may take: counted by what the code under test does, not by the clock alone.

A busy machine, a fork bomb beside it or a stall of the host makes a right answer late.
So the time is counted in slices: one in which the code waits counts whole, any other one with the
CPU time that the code got in it.
An endless loop that has a core to itself, and a sleep, end at the limit.
Where a fork bomb keeps the grader itself from looking, a slice lasts longer, and counts for more.
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
        looked = self.began
        while not self.child.answers(monotonic() + SLICE):
            used, runs = self.child.work()
            now = monotonic()
            most = max(SLICE, now - looked)
            self.counted += min(most, max(0.0, used - self.used)) if runs else SLICE
            self.used, looked = used, now
            if self.counted >= limit or now - self.began >= LAST_RESORT * limit:
                return False
        return True
