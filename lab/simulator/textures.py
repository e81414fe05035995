"""Textures: arrays that a kernel reads by coordinates, through cudaTextureObject_t.

Addressing and filtering are those of the CUDA C++ Programming Guide, appendix "Texture Fetching".
Texel i of N is centred at i + 0.5. The weights of linear filtering have 9 bits, 8 of them after the
point, so that 1.0 is exact; the guide does not say how they are rounded, here to the nearest.
"""

from itertools import product

import numpy as np

from .errors import KernelError

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32")
FILTERS = ("point", "linear")
ADDRESSES = ("clamp", "border", "wrap", "mirror")
READS = ("element", "normalized")
WEIGHT = 256                    # steps of a filter's weight
FURTHEST = 1 << 30              # texels, beyond which a coordinate is cut off


class Texture:
    """A texture of one to three dimensions, an argument for a parameter of cudaTextureObject_t.

    array       (W,), (H, W) or (D, H, W), and a last axis where channels > 1; it is copied
    filter      "point", or "linear" between the two, four or eight nearest texels
    address     what lies outside: "clamp" the edge, "border" zeros; "wrap", "mirror" it again
    normalized  do coordinates run from 0 to 1, not to W, H and D? "wrap" and "mirror" need it
    channels    1, 2 or 4 numbers a texel: float2, uchar4
    read        "element", or "normalized": 8 and 16-bit integers are read as floats up to 1
    """

    def __init__(self, array, filter="point", address="clamp", normalized=False, channels=1,
                 read="element"):
        self.array = np.array(array, order="C")
        self.filter = filter
        self.address = address
        self.normalized = normalized
        self.channels = channels
        self.read = read
        self.dimensions = self.array.ndim - 1 if channels > 1 else self.array.ndim
        self.on_gpu = {}                                # see cuda.py
        self.check()
        sizes = (1,) * (3 - self.dimensions) + self.array.shape[:self.dimensions]
        self.texels = self.array.reshape(*sizes, channels)              # (D, H, W, C)
        if read == "normalized":
            highest = np.iinfo(self.array.dtype).max
            self.texels = np.maximum(self.texels / highest, -1).astype(np.float32)

    def check(self):
        dtype = self.array.dtype
        small = dtype.kind in "iu" and dtype.itemsize <= 2
        for fine, text in (
                (dtype.name in DTYPES, f"has {dtype.name}, expected {', '.join(DTYPES)}"),
                (self.channels in (1, 2, 4), f"has {self.channels} channels, expected 1, 2 or 4"),
                (self.dimensions in (1, 2, 3) and self.array.size,
                 f"has shape {self.array.shape}, expected one to three axes, and one for channels"),
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
        """The dtype of what a kernel reads."""
        return self.texels.dtype

    def fetch(self, x):
        """tex1Dfetch: texels by their number, any shape -> (…, C)"""
        first = np.zeros_like(x, np.int64)
        return self.texel((first, first, x.astype(np.int64)))

    def sample(self, *coordinates):
        """tex1D, tex2D, tex3D: float32 x, y and z, any shape -> (…, C)"""
        middle = (np.float32(0.5),) * (3 - len(coordinates))
        sizes = self.texels.shape[:3]
        places = (*middle, *(self.in_texels(c, size) for c, size in
                             zip(coordinates[::-1], sizes[len(middle):], strict=True)))
        if self.filter == "point":
            return self.texel([np.floor(place).astype(np.int64) for place in places])
        total = 0
        for corner in product(*map(weights, places)):
            index, shares = zip(*corner, strict=True)
            total = total + self.texel(index) * (shares[0] * shares[1] * shares[2])[..., None]
        return total.astype(np.float32)

    def in_texels(self, coordinate, size):
        if self.normalized:
            coordinate = coordinate * np.float32(size)
        return np.clip(np.nan_to_num(coordinate), -FURTHEST, FURTHEST)

    def texel(self, index):
        """Texels by their places on the three axes (D, H, W)."""
        index = np.broadcast_arrays(*index)
        sizes = self.texels.shape[:3]
        values = self.texels[tuple(map(self.inside, index, sizes))]
        if self.address == "border":
            outside = [(i < 0) | (i >= size) for i, size in zip(index, sizes, strict=True)]
            values = np.where(np.any(outside, axis=0)[..., None], values.dtype.type(0), values)
        return values

    def inside(self, index, size):
        if self.address == "wrap":
            return index % size
        if self.address == "mirror":
            turn = index % (2 * size)
            return np.minimum(turn, 2 * size - 1 - turn)
        return np.clip(index, 0, size - 1)


def weights(coordinate):
    """-> (texel before, its weight), (texel after, its weight)"""
    place = np.asarray(coordinate, np.float32) - np.float32(0.5)
    before = np.floor(place)
    after = np.floor((place - before) * WEIGHT + np.float32(0.5)).astype(float) / WEIGHT
    before = before.astype(np.int64)
    return (before, 1 - after), (before + 1, after)
