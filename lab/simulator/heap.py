"""malloc() and free() within a kernel.

All threads share one heap of the size that CUDA gives it unless told otherwise.
It lasts for one launch here; on a GPU, until the memory is freed.
An overshoot is found only at the heap's end.
"""

import numpy as np

from .memory import Segment
from .wave import POISON

HEAP_BYTES = 8 << 20            # CUDA C++ Programming Guide, "Heap Memory Allocation"
ALIGNMENT = 16


class Heap(Segment):
    def __init__(self):
        super().__init__(np.full(HEAP_BYTES, POISON, np.uint8), "the heap of malloc()")
        self.sizes = {}                     # start of a block in use -> its bytes
        self.end = 0

    def allocate(self, size):
        """-> an address, 0 where there is no room.
        Only what was freed at the end is reused."""
        size = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        if self.end + size > HEAP_BYTES:
            return 0
        start = self.end
        self.end = self.end + size
        self.sizes[start] = size
        return self.base + start

    def release(self, address):
        """-> was it a block in use?"""
        size = self.sizes.pop(address - self.base, None)
        if size and address - self.base + size == self.end:
            before = self.end
            self.end = max((s + n for s, n in self.sizes.items()), default=0)
            if self.cells:
                self.cells.forget(self.end, before)
        return size is not None
