"""grid.sync() of cooperative groups: a barrier of all blocks of a launch.

Its header finds a counter in global memory, the grid workspace, through %envreg1 and %envreg2,
which the driver sets.
One thread of every block adds to the counter and spins until all have.
The race detector takes the last arrival for what it is: everything before it is ordered before
everything after it, in all blocks.
"""

import numpy as np

from .memory import Segment

WORKSPACE_BYTES = 8             # its size, and the counter


class GridWorkspace(Segment):
    """The counter, and how many blocks have arrived since all last met."""

    def __init__(self, blocks):
        super().__init__(np.zeros(WORKSPACE_BYTES, np.uint8), "the grid workspace")
        self.blocks = blocks
        self.arrived = 0

    def arrive(self, count):
        """`count` blocks arrive. -> are all there now?"""
        self.arrived = (self.arrived + count) % self.blocks
        return self.arrived == 0
