"""Products of fragments, many at a time: D = A · B + C.

A warp's tile is larger than one mma.
The kernel multiplies each of several fragments of A by each of several fragments of B, in
instructions none of which needs another's result.
Here such a layer of instructions waits until a result is wanted: the next layer, whose accumulators
are those of this one, or an instruction that reads a register.
Then the fragments of A become a tall matrix and those of B a wide one, each is decoded once, and
one multiplication does it all.
The accumulators stay a matrix from layer to layer and become registers when they are read.

The sum of each element is that of its own instruction: K products and the accumulator in double
precision, rounded once.
"""

from functools import cache

import numpy as np

from ..dtypes import F16, F32, F64, S32, U32, UNSIGNED
from ..exact import fma_f64
from ..lanes import WARP
from ..rounding import canonical
from .fragments import DECODERS, width_of

ACCUMULATOR = {"f16": F16, "f32": F32, "s32": S32, "f64": F64}
PIECE = 1 << 17                 # elements of the sums at a time: they stay in the cache (measured)


class Form:
    """What an mma computes.

    shape     (M, N, K)
    types     of A, B, D, C
    places    how the fragments of A, B, D, C lie in registers
    multiply  products of matrices, where it is not the plain one
    matrices  how many products a warp computes at a time; they are stacked in a fragment
    """

    def __init__(self, shape, types, places, saturate=False, multiply=None, matrices=1):
        self.shape, self.types, self.places = shape, types, places
        self.saturate, self.matrices = saturate, matrices
        self.multiply = multiply or np.matmul
        self.registers = [p.count // width_of(t) for p, t in zip(places, types, strict=True)]
        self.word = [UNSIGNED[8 if t == "f64" else 4] for t in types]

    def values(self, role, words, tall, wide):
        """The numbers of tall · wide fragments (W, tall · wide, r, 32), as matrices that lie side
        by side (W · matrices, tall · rows, wide · columns)."""
        ptx_type, places = self.types[role], self.places[role]
        words = words.reshape(len(words), -1)
        numbers = words.view(ACCUMULATOR[ptx_type]) if role == 3 else DECODERS[ptx_type](words)
        index = gather(places, width_of(ptx_type), self.matrices, tall, wide)
        rows, columns = places.shape
        return numbers.reshape(len(words), -1).take(index, axis=1, mode="wrap").reshape(
            -1, tall * rows // self.matrices, wide * columns)

    def sums(self, left, right, start):
        """float64 (W, M, K), (W, K, N) and accumulators (W, M, N) -> accumulators, rounded once."""
        if self.types[0] == "f64":
            for k in range(left.shape[2]):                  # a chain of fused multiply-adds
                start = fma_f64(left[:, :, k, None], right[:, None, k, :], start)
            return start
        total = self.multiply(left, right)
        total += start.astype(F64)                          # numpy adds slowly what it must cast
        if self.saturate:
            total = np.clip(total, -2.0**31, 2.0**31 - 1)
        if self.types[2] == "s32":
            return total.astype(np.int64).astype(U32).view(S32)
        return total.astype(ACCUMULATOR[self.types[2]])

    def words(self, total, tall, wide):
        """Accumulators -> fragments (tall · wide, r, W, 32).
        A NaN becomes the hardware's."""
        ptx_type, places = self.types[2], self.places[2]
        if ptx_type in ("f16", "f32"):
            total = canonical(total)
        index = spread(places, width_of(ptx_type), self.matrices, tall, wide)
        values = total.reshape(len(total) // self.matrices, -1).take(index, axis=1, mode="wrap")
        words = values.view(self.word[2]).reshape(len(values), tall * wide, -1, WARP)
        return np.ascontiguousarray(words.transpose(1, 2, 0, 3))


@cache
def gather(places, width, matrices, tall, wide):
    """Where the matrices (matrices, tall · rows, wide · columns), flat, find their elements among
    the numbers of tall · wide fragments, in the order (fragment, register, lane, number in the
    register, which holds `width`)."""
    element, lane = places.slot // WARP, places.slot % WARP
    number = (element // width * WARP + lane) * width + element % width
    fragments = np.arange(tall * wide) * (places.count * WARP)
    return (fragments.reshape(1, tall, 1, wide, 1)
            + number.reshape(matrices, 1, -1, 1, places.shape[1])).reshape(-1)


@cache
def spread(places, width, matrices, tall, wide):
    """The way back: where the fragments, flat, find their numbers in the matrices."""
    rows, columns = places.shape[0] // matrices, places.shape[1]
    cell = places.cell.reshape(-1, width, WARP).transpose(0, 2, 1).reshape(-1)
    i, j = np.arange(tall).reshape(tall, 1, 1), np.arange(wide).reshape(1, wide, 1)
    row = (cell // columns // rows * tall + i) * rows + cell // columns % rows
    return (row * (wide * columns) + j * columns + cell % columns).reshape(-1)


class Operation:
    """One mma of a layer: its place there, and the registers of its result."""

    __slots__ = ("layer", "i", "j", "names")

    def __init__(self, layer, i, j, names):
        self.layer, self.i, self.j, self.names = layer, i, j, names


class Layer:
    """Operations of one form by the whole wave.
    None needs another's result.

    lefts, rights   distinct fragments of A and B; each is a tuple of arrays in registers
    starts          (i, j) -> accumulators: an Operation of an earlier layer, or a tuple of arrays
    total           the sums, once they are computed
    size            how many fragments of A and of B it then has
    """

    def __init__(self, form, shape):
        self.form, self.shape = form, shape                 # (B, T) of the wave
        self.lefts, self.rights = {}, {}                    # identities -> (number, arrays)
        self.starts, self.operations = {}, []
        self.total = self.fragments = None

    def takes(self, form, left, right, start):
        """May the layer grow by this operation?
        It stays a full grid but for its last row or column, so that little is computed in vain."""
        if self.form is not form or self.total is not None:
            return False
        if isinstance(start, Operation) and start.layer is self:
            return False
        i, j = self.lefts.get(left), self.rights.get(right)
        if i and j:
            return (i[0], j[0]) not in self.starts
        return bool(i or j) and len(self.starts) == len(self.lefts) * len(self.rights)

    def add(self, left, right, start, names):
        """left, right: {identities: arrays} of one fragment"""
        (left, a), (right, b) = left, right
        i, _ = self.lefts.setdefault(left, (len(self.lefts), a))
        j, _ = self.rights.setdefault(right, (len(self.rights), b))
        self.starts[i, j] = start
        self.operations.append(Operation(self, i, j, names))
        return self.operations[-1]

    def compute(self):
        form, tall, wide = self.form, len(self.lefts), len(self.rights)
        left = self.stack(0, [arrays for _, arrays in self.lefts.values()])
        right = self.stack(1, [arrays for _, arrays in self.rights.values()])
        start = self.start(tall, wide)
        m = form.matrices
        step = max(1, PIECE * len(start) // (start.size * m))       # warps
        pieces = [form.sums(form.values(0, left[w:w + step], tall, 1),
                            form.values(1, right[w:w + step], 1, wide),
                            start[w * m:(w + step) * m] if len(start) > m else start)
                  for w in range(0, len(left), step)]
        self.total = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        self.size = tall, wide
        self.lefts = self.rights = self.starts = None       # let go of the arrays

    def results(self, operation):
        """-> arrays (B, T) of one operation's registers"""
        if self.total is None:
            self.compute()
        if self.fragments is None:
            self.fragments = self.form.words(self.total, *self.size)
        words = self.fragments[operation.i * self.size[1] + operation.j]
        return tuple(word.reshape(self.shape) for word in words)

    def deliver(self, registers):
        """A result is read: put all that still count into registers."""
        for operation in self.operations:
            words = self.results(operation)
            for name, word in zip(operation.names, words, strict=True):
                if registers.late.get(name) is operation:
                    del registers.late[name]
                    registers.setdefault(name, word)        # unless it has been written since

    def stack(self, role, fragments):
        """Tuples of arrays (B, T) or broadcasts of it -> (W, fragments, r, 32); where
        accumulators are one number each, W = 1."""
        r, word = self.form.registers[role], self.form.word[role]
        one = role == 3 and all(value.size == 1 for arrays in fragments for value in arrays)
        shape = (1, WARP) if one else self.shape
        words = [whole(value, shape).reshape(-1, WARP).view(word)
                 for arrays in fragments for value in arrays]
        # columns that lie one after the other are joined so, too, and cannot be seen as halves
        rows = np.ascontiguousarray(np.concatenate(words, axis=1))
        return rows.reshape(len(words[0]), len(fragments), r, WARP)

    def start(self, tall, wide):
        """The accumulators to start from: those of an earlier layer as they are, if all are from
        there and lie in the same places."""
        first = next(iter(self.starts.values()))
        if isinstance(first, Operation):
            before = first.layer
            same = before.size == (tall, wide) and len(self.starts) == tall * wide and all(
                isinstance(s, Operation) and s.layer is before and (s.i, s.j) == place
                for place, s in self.starts.items())
            if same and before.form.shape == self.form.shape and \
                    before.form.matrices == self.form.matrices and \
                    before.form.types[2] == self.form.types[3]:
                return before.total
        nothing = (np.zeros((1, 1), self.form.word[3]),) * self.form.registers[3]
        return self.form.values(3, self.stack(3, [
            fragment(self.starts.get((i, j), nothing)) for i in range(tall) for j in range(wide)]),
            tall, wide)


def whole(value, shape):
    return value if value.shape == shape else np.broadcast_to(value, shape)


def fragment(start):
    """The arrays of an accumulator, in registers or not"""
    return start if isinstance(start, tuple) else start.layer.results(start)


def issue(form, registers, shape, d, a, b, c):
    """The whole wave, of a shape (B, T), runs an operation on these registers (names)."""
    left, right = fetch(registers, a), fetch(registers, b)
    start = registers.late.get(c[0])
    if start is None or start.names != c or any(
            n in registers or registers.late.get(n) is not start for n in c):
        start = tuple(registers[n] for n in c)
    layer = registers.layer                                 # reading may have computed it
    if layer is None or not layer.takes(form, left[0], right[0], start):
        if layer is not None and layer.total is None:
            layer.compute()
        layer = registers.layer = Layer(form, shape)
    operation = layer.add(left, right, start, d)
    for name in d:
        registers.pop(name, None)
        registers.late[name] = operation


def fetch(registers, names):
    """-> what identifies the fragment, and its arrays.
    They are never changed in place."""
    arrays = tuple([registers[n] for n in names])
    return tuple(map(id, arrays)), arrays
