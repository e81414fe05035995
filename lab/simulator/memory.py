"""Where addresses lead.

An address is 64 bits: the upper 16 name a segment, the lower 48 are a place within it.
Every kernel argument has a segment of its own and starts in its middle, so that even a far
overshoot to either side cannot hit another array.
Shared and local memory are windows with segment numbers of their own: a generic address says by
itself which memory it means.
"""

import numpy as np

SEGMENT_SHIFT = 48
OFFSET_BITS = (1 << SEGMENT_SHIFT) - 1
SHARED_WINDOW = 0x7001
LOCAL_WINDOW = 0x7002
CODE_WINDOW = 0x7003        # addresses of functions; nothing can be read there
TEXTURE_WINDOW = 0x7004     # handles of textures; nothing to read there either
FIRST_SEGMENT = 1
MIDDLE = 1 << 47


class Segment:
    """One global or constant array: a view of `length` bytes, not a copy."""

    def __init__(self, data, name, element="", skew=0, writable=True):
        self.bytes = data                           # uint8 (length,)
        self.length = len(data)
        self.name = name                            # as the learner calls it
        self.element = element                      # dtype name for messages, "" if unknown
        self.skew = skew                            # bytes after a 256-byte boundary
        self.writable = writable
        self.opaque = False                         # structs of a library: members may lack a value
        self.number = 0
        self.views = {}
        self.cells = None                           # what the race detector knows of it,
        self.first_cell = 0                         # and where its own cells begin there

    @property
    def base(self):
        return (self.number << SEGMENT_SHIFT) + MIDDLE + self.skew

    def name_of(self, offset):
        """What lies at a byte offset, as the learner knows it."""
        if not self.element:
            return f"byte {offset} of `{self.name}` ({self.length} bytes)"
        item = np.dtype(self.element).itemsize
        return (f"element {offset // item} of `{self.name}` "
                f"({self.length // item} {self.element})")

    def view(self, dtype):
        """The bytes as elements of a dtype; a remainder is cut off."""
        if dtype not in self.views:
            size = dtype.itemsize
            self.views[dtype] = self.bytes[:self.length // size * size].view(dtype)
        return self.views[dtype]


class AddressSpace:
    """The segments of one launch."""

    def __init__(self):
        self.segments = []
        self.textures = []

    def add(self, segment):
        self.segments.append(segment)
        segment.number = len(self.segments) - 1 + FIRST_SEGMENT
        return segment

    def add_texture(self, texture):
        """-> its handle, a cudaTextureObject_t"""
        self.textures.append(texture)
        return (TEXTURE_WINDOW << SEGMENT_SHIFT) + len(self.textures) - 1

    def find(self, address):
        """The segment that an address names, or None."""
        number = (int(address) >> SEGMENT_SHIFT) - FIRST_SEGMENT
        return self.segments[number] if 0 <= number < len(self.segments) else None


def raw(size):
    """A dtype of `size` bytes that numpy moves in one piece."""
    return np.dtype({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64,
                     16: np.complex128}[size])
