"""Textures: arrays that a kernel reads by coordinates, through cudaTextureObject_t.

Addressing and filtering are those of the CUDA C++ Programming Guide, appendix "Texture Fetching".
Texel i of N is centred at i + 0.5. The weights of linear filtering have 9 bits, 8 of them after the
point, so that 1.0 is exact; the guide does not say how they are rounded, here to the nearest.
"""

import numpy as np

from .errors import KernelError

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32")
FILTERS, ADDRESSES = ("point", "linear"), ("clamp", "border", "wrap", "mirror")
READS = ("element", "normalized")
WEIGHT = 256                    # steps of a filter's weight
FURTHEST = 1 << 30              # texels, beyond which a coordinate is cut off


class Texture:
    """A texture of one or two dimensions, an argument for a parameter of cudaTextureObject_t.

    array       (W,) or (H, W), and a last axis more where channels > 1; it is copied
    filter      "point", or "linear" between the two or four nearest texels
    address     what lies outside: "clamp" the edge, "border" zeros; "wrap", "mirror" it again
    normalized  do coordinates run from 0 to 1 rather than to W and H? "wrap" and "mirror" need it
    channels    1, 2 or 4 numbers a texel: float2, uchar4
    read        "element", or "normalized": 8 and 16-bit integers are read as floats up to 1
    """

    def __init__(self, array, filter="point", address="clamp", normalized=False, channels=1,
                 read="element"):
        self.array = np.array(array, order="C")
        self.filter, self.address, self.normalized = filter, address, normalized
        self.channels, self.read = channels, read
        self.dimensions = self.array.ndim - (channels > 1)
        self.on_gpu = {}                                # see cuda.py
        self.check()
        rows = (1,) * (2 - self.dimensions) + self.array.shape[:self.dimensions]
        self.texels = self.array.reshape(*rows, channels)               # (H, W, C)
        if read == "normalized":
            highest = np.iinfo(self.array.dtype).max
            self.texels = np.maximum(self.texels / highest, -1).astype(np.float32)

    def check(self):
        dtype = self.array.dtype
        small = dtype.kind in "iu" and dtype.itemsize <= 2
        for fine, text in (
                (dtype.name in DTYPES, f"has {dtype.name}, expected {', '.join(DTYPES)}"),
                (self.channels in (1, 2, 4), f"has {self.channels} channels, expected 1, 2 or 4"),
                (self.dimensions in (1, 2) and self.array.size,
                 f"has shape {self.array.shape}, expected one or two axes, and one for channels"),
                (self.channels == 1 or self.array.shape[-1] == self.channels,
                 f"has shape {self.array.shape}, expected a last axis of {self.channels} channels"),
                (self.filter in FILTERS, f"has filter {self.filter!r}, expected {FILTERS}"),
                (self.address in ADDRESSES, f"has address {self.address!r}, expected {ADDRESSES}"),
                (self.read in READS, f"has read {self.read!r}, expected {READS}"),
                (self.normalized or self.address in ("clamp", "border"),
                 f'needs normalized=True for address="{self.address}"'),
                (self.read == "element" or small, 'needs 8 or 16-bit integers for '
                                                  f'read="normalized", not {dtype.name}'),
                (self.filter == "point" or dtype.kind == "f" or self.read == "normalized",
                 'needs floats, or read="normalized", for filter="linear"')):
            if not fine:
                raise KernelError(f"a texture {text}", "argument")

    @property
    def dtype(self):
        """Of what a kernel reads."""
        return self.texels.dtype

    def fetch(self, x):
        """tex1Dfetch: texels by their number, any shape -> (…, C)"""
        return self.texel(np.zeros_like(x, np.int64), x.astype(np.int64))

    def sample(self, x, y=None):
        """tex1D, tex2D: float32 coordinates, any shape -> (…, C)"""
        height, width = self.texels.shape[:2]
        x = self.in_texels(x, width)
        y = np.float32(0.5) if y is None else self.in_texels(y, height)
        if self.filter == "point":
            return self.texel(np.floor(y).astype(np.int64), np.floor(x).astype(np.int64))
        (left, right), (above, below) = (weights(c) for c in (x, y))
        total = sum(self.texel(row, column) * (one * other)[..., None]
                    for row, one in (above, below) for column, other in (left, right))
        return total.astype(np.float32)

    def in_texels(self, coordinate, size):
        if self.normalized:
            coordinate = coordinate * np.float32(size)
        return np.clip(np.nan_to_num(coordinate), -FURTHEST, FURTHEST)

    def texel(self, row, column):
        height, width = self.texels.shape[:2]
        row, column = np.broadcast_arrays(row, column)
        values = self.texels[self.inside(row, height), self.inside(column, width)]
        if self.address == "border":
            outside = (row < 0) | (row >= height) | (column < 0) | (column >= width)
            values = np.where(outside[..., None], values.dtype.type(0), values)
        return values

    def inside(self, index, size):
        if self.address == "wrap":
            return index % size
        if self.address == "mirror":
            turn = index % (2 * size)
            return np.minimum(turn, 2 * size - 1 - turn)
        return np.clip(index, 0, size - 1)


def weights(coordinate):
    """-> ((texel before, its weight), (texel after, its weight))"""
    place = np.asarray(coordinate, np.float32) - np.float32(0.5)
    before = np.floor(place)
    after = np.floor((place - before) * WEIGHT + np.float32(0.5)).astype(float) / WEIGHT
    before = before.astype(np.int64)
    return (before, 1 - after), (before + 1, after)
