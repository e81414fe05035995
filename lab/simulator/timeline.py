"""When the warps of a block run and when they wait for each other.

The clock is a count of instructions, not of time.
Every warp has a clock of its own, which each of its instructions moves by one, as if all warps
issued one instruction a step.
At a barrier the clocks of the warps that meet jump to the latest of them: the jump of a warp's
clock is its wait.
So the picture shows which warp has more instructions between two barriers.
It knows nothing of latencies, which on a GPU decide how long they take.
"""

import numpy as np

from .lanes import WARP

MAX_BARRIERS = 2000                     # barriers that are recorded


class Timeline:
    """Of the first block of a launch.

    clock     steps per warp, so far (warps,)
    meetings  [(line, warps, steps at which each arrived, step at which all went on)]
    """

    def __init__(self, wave):
        self.threads = wave.shape[1]
        self.clock = np.zeros(self.threads // WARP, np.int64)
        self.meetings = []
        self.missed = 0                 # barriers beyond those recorded
        self.lanes = None
        self.since = 0

    # ---- called by the scheduler; steps: the instructions that it has run

    def turn(self, lanes, steps):
        """From now on these lanes run; until now those of the turn before ran."""
        self.close(steps)
        self.lanes = lanes

    def close(self, steps):
        if self.lanes is not None and steps > self.since:
            self.clock[self.warps_of(self.lanes)] += steps - self.since
        self.since = steps

    def barrier(self, inst, index, steps):
        """The lanes with these numbers meet and go on."""
        self.close(steps)
        warps = np.unique(index[index < self.threads] // WARP)
        if not len(warps):
            return
        arrived = self.clock[warps].tolist()
        self.clock[warps] = max(arrived)
        if len(self.meetings) < MAX_BARRIERS:
            line = inst.location.line if inst.location else None
            self.meetings.append((line, warps.tolist(), arrived, max(arrived)))
        else:
            self.missed += 1

    def warps_of(self, lanes):
        """Of the first block: an index for self.clock."""
        if lanes.whole:
            return slice(None)
        if "mask" in lanes.__dict__:
            row = np.broadcast_to(lanes.mask, lanes.shape)[0]
            return row.reshape(-1, WARP).any(axis=1)
        return np.unique(lanes.index[:np.searchsorted(lanes.index, self.threads)] // WARP)

    # ---- for its readers

    def spans(self, warp):
        """-> [(start, end, line)] of a warp in order; line is None where it ran, else the line of
        the barrier at which it waited."""
        spans = []
        now = 0
        for line, warps, arrived, left in self.meetings:
            if warp in warps:
                came = arrived[warps.index(warp)]
                spans += [(now, came, None), (came, left, line)]
                now = left
        end = int(self.clock[warp])
        return [span for span in [*spans, (now, end, None)] if span[1] > span[0]]

    def __str__(self):
        rows = ["block (0, 0, 0), in instructions of a warp, not time (counts at PTX level)",
                " warp      ran   waited  waited longest at"]
        for warp in range(len(self.clock)):
            spans = self.spans(warp)
            waits = [(end - start, line) for start, end, line in spans if line is not None]
            ran = sum(end - start for start, end, line in spans if line is None)
            longest = f"line {max(waits)[1]}: {max(waits)[0]}" if waits else "-"
            rows.append(f"{warp:5} {ran:8} {sum(w for w, _ in waits):8}  {longest}")
        if self.missed:
            rows.append(f"(the last {self.missed} barriers are not included)")
        return "\n".join(rows)
