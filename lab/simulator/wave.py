"""A wave: the blocks that run together, their registers and their memories.

On a GPU the blocks of a wave are those resident on the multiprocessors at one time.
Here they are the rows of numpy arrays, so that one numpy call does one instruction for all of them.
"""

import sys

import numpy as np

from .dtypes import BOOL, DTYPES
from .lanes import WARP, Lanes
from .tile_sync import clear

POISON = 0xFF               # what was never written: NaN as a float, -1 as an integer


class Registers(dict):
    """Register name -> array.
    A register that was never written holds poison.

    late    name -> the matrix product whose result it will hold, unless it is here
    layer   products that wait to be computed together, see instructions/products.py
    """

    def __init__(self, types):
        super().__init__()
        self.types = types
        self.late = {}
        self.layer = None

    def __missing__(self, name):
        if name in self.late:
            self.late[name].layer.deliver(self)
            return self[name]
        dtype = DTYPES[self.types[name]]
        return np.full((1, 1), POISON, np.uint8).repeat(dtype.itemsize, 1).view(dtype) \
            if dtype != BOOL else np.zeros((1, 1), BOOL)


class Frame:
    """One activation of a function.
    Lanes that came by different calls have different frames."""

    def __init__(self, function, caller=None, return_pc=0, bound=()):
        self.function = function
        self.code = function.code
        self.caller = caller
        self.return_pc = return_pc
        self.depth = caller.depth + 1 if caller else 0
        self.registers = Registers(function.registers)
        self.callees = {}           # pc of a call, function -> Frame
        self.local = dict(bound)    # variable -> offset in local memory; parameters share the
                                    # caller's .param variables
        self.local_end = caller.local_end if caller else 0
        for variable in function.variables.values():
            if variable.space in ("local", "param"):
                start = -(-self.local_end // 16) * 16
                self.local[variable.name] = start
                self.local_end = start + variable.size


class Wave:
    """B blocks of T lanes; see lanes.py for the layouts of values.

    lanes     those that the current instruction runs for
    everyone  do they include every lane that still lives?
    flat      are values (n,), one per lane of `lanes`, rather than broadcasts of (B, T)?
    """

    def __init__(self, launch, blocks, function):
        self.launch = launch
        self.block_numbers = np.asarray(blocks)                             # (B,)
        threads = launch.threads
        T = -(-threads // WARP) * WARP
        self.shape = (len(blocks), T)
        self.live = Lanes(self.shape, np.arange(T).reshape(1, T) < threads if threads != T
                          else np.ones((1, 1), bool))
        self.no_lanes = Lanes(self.shape, index=np.zeros(0, np.int64))
        self.frame = Frame(function)
        self.registers = self.frame.registers
        self.lanes = self.live
        self.everyone = True
        self.flat = False
        row = max(32, -(-launch.shared_size // 32) * 32)                    # fits every dtype
        self.shared = np.full((len(blocks), row), POISON, np.uint8)
        clear(self)
        self.shared_views = {}
        self.local = np.empty((self.live.size, 0), np.uint8)                # (B·T, bytes)
        self.local_views = {}
        self.specials = {}
        self.shadow = None          # the race detector, and
        self.taint = None           # the uninitialised values, where this wave is checked

    def select(self, lanes, one_value_per_lane=False):
        """The next instruction runs for these lanes."""
        if lanes is self.lanes and lanes.whole:
            return
        self.lanes = lanes
        self.everyone = lanes.count == self.live.count
        self.flat = (lanes.sparse and not self.everyone) or (one_value_per_lane and not lanes.whole)

    def run(self, inst):
        inst.run(self)

    def enter(self, frame):
        self.frame = frame
        self.registers = frame.registers

    # ---- registers

    def gather(self, value):
        """(B, T) or a broadcast of it -> (n,) or (1,), one value per lane."""
        rows, columns = value.shape
        if columns == 1:
            return value[0] if rows == 1 else value[:, 0].take(self.lanes.blocks)
        if rows == 1:
            return value[0].take(self.lanes.threads)
        return value.take(self.lanes.index)

    def write(self, name, value):
        """Arrays in registers are never changed in place, since two registers may share one; the
        exception is an array that nothing else refers to."""
        if value.ndim == 2:
            if not self.everyone:
                old = self.registers[name]
                value = np.where(self.lanes.mask, value, old.view(value.dtype))
            self.registers[name] = value
            return
        if self.everyone:
            full = np.zeros(self.shape, value.dtype)
        else:
            old = self.registers[name]
            if old.shape != self.shape:
                full = np.broadcast_to(old.view(value.dtype), self.shape).copy()
            elif old.base is None and sys.getrefcount(old) <= 3:
                full = old.view(value.dtype)
            else:
                full = old.copy().view(value.dtype)
        full.reshape(-1)[self.lanes.index] = value
        self.registers[name] = full

    def forget(self, names):
        """No lane will read these registers before it writes them."""
        for name in names:
            self.registers.pop(name, None)

    def full(self, value):
        """A value as one number per lane of the whole wave (B·T,); other lanes hold rubbish."""
        if value.ndim == 2:
            return np.broadcast_to(value, self.shape).reshape(-1)
        full = np.zeros(self.shape[0] * self.shape[1], value.dtype)
        full[self.lanes.index] = value
        return full

    def per_lane(self, value):
        """A value as one number per active lane (n,), in the order of lanes.index."""
        shape = (self.lanes.count,) if value.ndim == 1 else self.shape
        if value.shape != shape:
            value = np.broadcast_to(value, shape)
        if value.ndim == 1:
            return value
        return value.reshape(-1) if self.lanes.whole else value.reshape(-1)[self.lanes.index]

    # ---- special registers

    def special(self, name):
        if name in ("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo",
                    "globaltimer_hi"):
            return np.full((1, 1), self.launch.interpreter_steps, np.uint64)
        if name not in self.specials:
            self.specials[name] = self.make_special(name)
        return self.specials[name]

    def make_special(self, name):
        """-> uint32, as small as possible: (1, 1), (B, 1), (1, T)."""
        launch = self.launch
        T = self.shape[1]
        base, _, axis = name.partition(".")
        axis = "xyz".find(axis) if axis else 0
        if base == "tid":
            value = thread_index(np.arange(T), launch.block)[axis].reshape(1, T)
        elif base == "ctaid":
            value = thread_index(self.block_numbers, launch.grid)[axis].reshape(-1, 1)
        elif base == "ntid":
            value = launch.block[axis]
        elif base == "nctaid":
            value = launch.grid[axis]
        elif base == "laneid":
            value = np.arange(T).reshape(1, T) % WARP
        elif base == "warpid":
            value = np.arange(T).reshape(1, T) // WARP
        elif base.startswith("lanemask_"):
            lane = np.arange(WARP).reshape(WARP, 1)
            other = np.arange(WARP)
            members = {"eq": other == lane, "le": other <= lane, "lt": other < lane,
                       "ge": other >= lane, "gt": other > lane}[base[-2:]]
            bits = np.packbits(members, axis=1, bitorder="little").view(np.uint32).reshape(1, WARP)
            value = np.tile(bits, T // WARP)
        else:
            value = {"nwarpid": T // WARP, "smid": 0, "nsmid": 1, "gridid": 0,
                     "dynamic_smem_size": launch.dynamic_shared,
                     "total_smem_size": launch.shared_size,
                     "envreg1": launch.grid_workspace >> 32,
                     "envreg2": launch.grid_workspace & 0xFFFFFFFF}[base]
        value = np.asarray(value, np.uint32).reshape(np.shape(value) or (1, 1))
        return value[:1, :1] if (value == value.flat[0]).all() else value

    # ---- variables

    def symbol(self, symbol):
        """The address of a variable.
        Shared and local ones are offsets within their window."""
        name = symbol.name
        if name in self.frame.local:
            return self.frame.local[name] + symbol.offset
        return self.launch.addresses[name] + symbol.offset

    def local_memory(self, dtype):
        """All local memory as elements of a dtype (B·T, elements)."""
        size = -(-self.frame.local_end // 16) * 16
        if self.local.shape[1] < size:
            grown = np.full((len(self.local), size), POISON, np.uint8)
            grown[:, :self.local.shape[1]] = self.local
            self.local = grown
            self.local_views = {}
        if dtype not in self.local_views:
            self.local_views[dtype] = self.local.view(dtype)
        return self.local_views[dtype]

    def shared_memory(self, dtype):
        """All shared memory as elements of a dtype (B, elements)."""
        if dtype not in self.shared_views:
            self.shared_views[dtype] = self.shared.view(dtype)
        return self.shared_views[dtype]

    # ---- for messages

    def thread_of(self, lane):
        """Lane number within the wave -> (x, y, z) of its thread."""
        return tuple(int(i) for i in thread_index(lane % self.shape[1], self.launch.block))

    def block_of(self, lane):
        number = self.block_numbers[lane // self.shape[1]]
        return tuple(int(i) for i in thread_index(number, self.launch.grid))


def thread_index(number, sizes):
    """A running number -> its x, y and z; x runs fastest."""
    x, y, _ = sizes
    return number % x, number // x % y, number // (x * y)
