"""Uninitialised values: where they come from, where they go, and where they must not arrive.

A value that was never written does no harm until it is used: cub loads whole tiles, vectorised
tails load past the end of what was written, and both throw the rest away.
So loading such a value is not reported.
It is followed, bit by bit, until it decides a branch, is an address, or is stored to global memory;
the error names that line and the one that read the value.

Every register has a twin that holds a 1 for each undefined bit, but only while there is one: most
launches never make a twin, and pay for one look-up in a dict per instruction.
Twins start

- at a load from shared memory that no thread of the block has written,
- at a load from a local variable or array that the thread has not written,
- at a register that its function may read before it writes it.
  Where the compiler has picked a value for a C variable that was never set, unset.py sees it.

What global memory holds at the start of a launch is taken as written: numpy.empty and numpy.zeros
look alike from here.

How a twin moves on is found by running the instruction again with the undefined bits set to 0 and
to 1, and by comparing the results.
That is exact for what moves or combines bits (mov, prmt, and, selp, shfl, ...) and for matrix
products.
All other arithmetic makes all bits of its result undefined; of a pair such as f16x2, those of the
same half.
"""

from contextlib import contextmanager
from itertools import product

import numpy as np

from .counts import Counts
from .dtypes import DTYPES, UNSIGNED
from .lanes import WARP
from .memory import raw
from .undefined import anything, bits_type, differing_bits, ones, whole_elements, zero
from .uses import names, unset_registers, uses_of
from .wave import Registers

# which operands are moved to the result; the others say how, and spoil it all if undefined
MOVED = {"mov": (1,), "shl": (1,), "shr": (1,), "prmt": (1, 2), "bfe": (1,), "bfi": (1, 2),
         "shf": (1, 2), "shfl": (1,), "movmatrix": (1,), "mma": (1, 2, 3), "brev": (1,)}
COMBINED = {"and", "or", "xor", "not", "lop3", "selp"}      # each undefined input on its own
ACROSS = {"vote", "match", "redux", "wmma"}                 # results depend on the whole warp
PACKED = {"add", "sub", "mul", "fma", "min", "max", "neg", "abs", "tanh", "ex2", "cvt"}
PAIRS = {"f16x2", "bf16x2", "s16x2", "u16x2", "e4m3x2", "e5m2x2"}   # two halves do not mix
LOCAL = "a local variable"
UNSET = f"{LOCAL} that was never set"
ADVICE = "; give it a value where it is declared, or on every path that leads here"


class Taint:
    """The undefined values of one wave."""

    def __init__(self, wave):
        self.wave = wave
        self.frames = {}                # Frame -> {register: (undefined bits (B, T), origin)}
        self.shared = None              # (B, bytes): undefined bits that were stored there
        self.local = None               # (B·T, bytes), made by a function with local variables
        self.shared_origin = self.local_origin = None       # of what was stored there
        self.touched = None             # a load has just read undefined bytes from here
        self.captured = None            # a list while stores are recorded and not done
        self.enter(wave.frame, wave.live)

    def enter(self, frame, lanes):
        """A function begins for these lanes: its variables have no values."""
        for name in unset_registers(frame.function):
            known = self.frames.setdefault(frame, {})
            all_ones, none = (f(frame.registers.types[name]) for f in (ones, zero))
            before = known[name][0] if name in known else none
            known[name] = np.where(np.broadcast_to(lanes.mask, lanes.shape), all_ones, before), \
                UNSET
        variables = [v for v in frame.function.variables.values() if v.space == "local"]
        if variables:
            self.wave.frame = frame
            self.local_view(np.dtype(np.uint8))
            for v in variables:
                start = frame.local[v.name]
                self.local[lanes.index, start:start + v.size] = 0xFF

    # ---- running an instruction

    def knows_nothing(self):
        """Is every register of the running function defined?"""
        return not self.frames.get(self.wave.frame)

    def run(self, inst):
        """Run it for the wave's lanes, and its effect on what is undefined."""
        wave = self.wave
        uses = uses_of(inst)
        known = self.frames.get(wave.frame)
        if not known or known.keys().isdisjoint(uses.everything):
            if not uses.loads:
                inst.run(wave)
                return
            known = {}
        undefined = [n for n in uses.reads if n in known]
        self.check_address(inst, uses, known)
        stored = self.capture(inst, undefined) if uses.stores and undefined else ()
        results = self.results(inst, uses, undefined) if undefined and uses.writes else {}
        before = {n: wave.registers[n] for n in uses.reads} if uses.loads else {}
        origin = self.origin(inst, known[undefined[0]][1]) if undefined else None
        self.touched = None
        inst.run(wave)
        if self.touched:
            results = self.loaded(inst, uses, before)
            origin = self.touched
        if stored:
            self.put(stored, known[undefined[0]][1])
        if results or known:
            self.commit(uses, results, origin)

    @staticmethod
    def origin(inst, text):
        """Where a value comes from; for a variable that was never set, also the line that reads it
        first.
        The compiler's own copies do not count."""
        return f"{UNSET}{read_in(inst)}," if text == UNSET and inst.opcode != "mov" else text

    def commit(self, uses, results, origin):
        """Record the undefined bits of the active lanes' results; those of other lanes stay."""
        known = self.frames.setdefault(self.wave.frame, {})
        active = self.wave.lanes.mask
        for name in uses.writes:
            if name not in results and name not in known:
                continue
            old = known[name][0] if name in known else np.zeros((), bool)
            new = results.get(name, old.dtype.type(0))
            bits = np.where(active, new, old.astype(np.asarray(new).dtype))
            if bits.any():
                earlier = known[name][1] if name in known and name not in results else origin
                known[name] = np.broadcast_to(bits, self.wave.shape), earlier
            elif name in known:
                del known[name]

    # ---- what comes out

    def results(self, inst, uses, undefined):
        """-> {register: undefined bits} of the instruction's results."""
        if inst.opcode in COMBINED:
            return self.vary(inst, uses, product((False, True), repeat=len(undefined)), undefined)
        places = MOVED.get(inst.opcode)
        if inst.opcode == "cvt" and not {"sat", "pack"} & set(inst.modifiers) and \
                all(m[0] in "usb" for m in inst.modifiers):
            places = (1,)
        if inst.opcode == "vote" and "ballot" in inst.modifiers:
            places = (1,)
        if inst.opcode == "wmma" and "mma" in inst.modifiers:
            places = (1, 2, 3)
        moved = {n for i in places or () for n in names(inst.operands[i])}
        if places and moved.issuperset(undefined):
            count = len(undefined)
            return self.vary(inst, uses, [(False,) * count, (True,) * count], undefined)
        known = self.frames[self.wave.frame]
        if inst.opcode in PACKED and len(inst.operands) <= 4 and \
                not PAIRS.isdisjoint(inst.modifiers):
            return self.in_halves(inst, uses)
        lanes = np.zeros(self.wave.shape, bool)
        for name in undefined:
            lanes |= known[name][0] != 0
        if inst.opcode in ACROSS:
            lanes &= self.wave.lanes.mask
            lanes = np.repeat(lanes.reshape(-1, WARP).any(axis=1), WARP).reshape(self.wave.shape)
        types = self.wave.registers.types
        return {n: np.where(lanes, ones(types[n]), zero(types[n])) for n in uses.writes}

    def in_halves(self, inst, uses):
        """-> {register: undefined bits} of an instruction on pairs."""
        known = self.frames[self.wave.frame]
        undefined = np.zeros((*self.wave.shape, 2), bool)       # the low half, the high one
        for i, operand in enumerate(inst.operands[1:]):
            for name in known.keys() & names(operand):
                bits = known[name][0]
                if inst.opcode == "cvt" and len(inst.operands) == 3:    # from two: high, low
                    undefined[..., 1 - i] |= bits != 0
                else:
                    half = UNSIGNED[bits.dtype.itemsize // 2]
                    halves = np.ascontiguousarray(bits).view(half) != 0
                    undefined |= halves.reshape(undefined.shape)
        whole = bits_type(self.wave.registers.types[uses.writes[0]])
        half = UNSIGNED[whole.itemsize // 2]
        bits = np.where(undefined, ~half.type(0), half.type(0)).view(whole).reshape(self.wave.shape)
        return {uses.writes[0]: bits}

    def vary(self, inst, uses, settings, undefined):
        """Run the instruction with the undefined bits of each register all 0 or all 1; what then
        differs in a result is undefined."""
        wave = self.wave
        known = self.frames[self.wave.frame]
        floats = "mma" in (inst.opcode, *inst.modifiers)
        first = None
        differs = {}
        for setting in settings:
            registers = Registers(wave.registers.types)
            registers.update({n: wave.registers[n] for n in uses.reads})
            for name, high in zip(undefined, setting, strict=True):
                bits = known[name][0]
                bits = whole_elements(bits, inst) if floats else bits
                value = wave.registers[name].view(bits.dtype)
                registers[name] = value | bits if high else value & ~bits
            for name in uses.writes:
                if name not in uses.reads:
                    registers[name] = np.full((1, 1), zero(registers.types[name]))
            with self.aside(registers):
                inst.run(wave)
            now = {n: registers[n].view(bits_type(registers.types[n])) for n in uses.writes}
            first = first or now
            for name, value in now.items():
                bits = value ^ first[name]
                differs[name] = differs[name] | bits if name in differs else bits
        if floats:
            differs = {n: whole_elements(bits, inst, result=True) for n, bits in differs.items()}
        return {n: bits for n, bits in differs.items() if np.any(bits)}

    @contextmanager
    def aside(self, registers):
        """Instructions run without a trace: on other registers, uncounted and unchecked."""
        wave = self.wave
        state = wave.registers, wave.shadow, wave.launch.counts, wave.taint
        wave.registers, wave.shadow, wave.launch.counts = registers, None, Counts()
        wave.taint = self if self.captured is not None else None
        try:
            yield
        finally:
            wave.registers, wave.shadow, wave.launch.counts, wave.taint = state

    # ---- memory

    def loaded(self, inst, uses, before):
        """A load has read undefined bytes: load again, from the memories' undefined bits."""
        wave = self.wave
        registers = Registers(wave.registers.types)
        registers.update(before)
        for name in uses.writes:
            if name not in uses.reads:
                registers[name] = np.full((1, 1), zero(registers.types[name]))
        state = wave.shared, wave.shared_views, wave.local, wave.local_views
        wave.shared = self.undefined_shared()
        wave.shared_views = {}
        if self.local is not None:
            wave.local = self.local
            wave.local_views = {}
        try:
            with self.aside(registers):
                inst.run(wave)
        finally:
            wave.shared, wave.shared_views, wave.local, wave.local_views = state
        return {n: registers[n].view(bits_type(registers.types[n])) for n in uses.writes}

    def undefined_shared(self):
        """(B, bytes), 0xFF where no thread has written."""
        shadow = self.wave.shadow
        bits = np.repeat(shadow.shared.writes == 0, shadow.cell).view(np.uint8) * np.uint8(0xFF)
        blocks, length = self.wave.shared.shape
        bits = np.ascontiguousarray(bits.reshape(blocks, -1)[:, :length])
        return bits | self.shared if self.shared is not None else bits

    def local_view(self, dtype):
        """The undefined bits of local memory, in the shape of local memory itself."""
        memory = self.wave.local_memory(np.dtype(np.uint8))
        if self.local is None or self.local.shape != memory.shape:
            grown = np.zeros(memory.shape, np.uint8)
            if self.local is not None:
                grown[:, :self.local.shape[1]] = self.local
            self.local = grown
        return self.local.view(dtype).reshape(-1)

    def local_load(self, inst, index, size):
        """access.py loads local memory at this index of elements."""
        if self.local is not None and anything(self.local_view(raw(size)).take(index)):
            self.touched = self.local_origin or \
                f"{LOCAL}, which this thread has not set{read_in(inst)},"

    def never_stored(self, access, i):
        """The race detector has seen lane i of a load read what was never written."""
        self.touched = f"{access.name(i)}, which was never written{read_in(access.inst)},"

    def local_store(self, index, size):
        """access.py has stored defined values there."""
        if self.local is not None:
            self.local_view(raw(size))[index] = 0

    def shared_load(self, index, size):
        if self.shared is not None and anything(
                self.shared.view(raw(size)).reshape(-1).take(index)):
            self.touched = self.shared_origin

    def shared_store(self, index, size):
        if self.shared is not None:
            self.shared.view(raw(size)).reshape(-1)[index] = 0

    def capture(self, inst, undefined):
        """Run a store of undefined values, with their bits 0 and 1, without storing
        -> [(space, index, size, undefined bits)]"""
        runs = []
        for high in (False, True):
            self.captured = []
            try:
                self.vary(inst, uses_of(inst), [(high,) * len(undefined)], undefined)
            finally:
                runs.append(self.captured)
                self.captured = None
        results = []
        for (space, segment, index, size, low), (*_, up) in zip(*runs, strict=True):
            bits = differing_bits(low, up)
            if space == "global" and bits.any():
                self.check_global(inst, undefined, segment, bits)
            results.append((space, index, size, bits))
        return results

    def capture_store(self, space, segment, index, size, value):
        """A store that access.py would make now."""
        self.captured.append((space, segment, index, size, value))

    def put(self, stored, origin):
        """Keep undefined bits that were stored to shared or local memory."""
        for space, index, size, bits in stored:
            if space == "shared" and bits.any():
                if self.shared is None:
                    self.shared = np.zeros(self.wave.shared.shape, np.uint8)
                self.shared_origin = origin
                self.shared.view(raw(size)).reshape(-1)[index] = bits
            elif space == "local" and bits.any():
                self.local_origin = origin
                self.local_view(raw(size))[index] = bits

    # ---- where an undefined value must not arrive

    def check_address(self, inst, uses, known):
        bad = [n for n in uses.address if n in known]
        if bad:
            self.arrived(inst, bad, "is the address of this access")
        if inst.opcode in ("atom", "red", "cp"):
            bad = [n for n in uses.data if n in known]
            if bad:
                self.arrived(inst, bad, "is what this instruction works with")

    def check_guard(self, inst, lanes):
        """A guard decides for these lanes whether the instruction runs; mostly it is a branch."""
        known = self.frames.get(self.wave.frame)
        if known and inst.guard.name in known:
            self.wave.select(lanes)
            self.arrived(inst, [inst.guard.name], "decides which way this goes")

    def check_operands(self, inst):
        """The operands of barriers and jump tables."""
        known = self.frames.get(self.wave.frame) or {}
        bad = [n for n in uses_of(inst).reads if n in known]
        if bad:
            self.arrived(inst, bad, "decides what this does")

    def check_global(self, inst, undefined, segment, bits):
        known = self.frames[self.wave.frame]
        origin = next((known[n][1] for n in undefined if known[n][0].any()), "")
        lanes = np.flatnonzero(self.padding_aside(inst, bits, origin))
        if len(lanes) and not segment.opaque:
            self.complain(inst, origin, int(lanes[0]), f"is stored to `{segment.name}`")

    def padding_aside(self, inst, bits, origin):
        """-> which lanes (n,) store an undefined value.
        A struct is copied with the gaps between
        its members: from local memory only the lowest byte of an item counts."""
        bits = np.ascontiguousarray(bits).view(np.uint8).reshape(len(bits), -1)
        item = DTYPES[next(m for m in inst.modifiers if m in DTYPES)].itemsize
        if origin.startswith(LOCAL):
            bits = bits[:, ::item]
        return bits.any(axis=1)

    def arrived(self, inst, registers, what):
        """Complain if one of the registers is undefined in an active lane."""
        known = self.frames[self.wave.frame]
        for name in registers:
            bits, origin = known[name]
            lanes = np.flatnonzero(self.wave.per_lane(bits) != 0)
            if len(lanes):
                self.complain(inst, origin, int(lanes[0]), what)

    def complain(self, inst, origin, i, what):
        lane = int(self.wave.lanes.index[i])
        advice = ADVICE if origin.startswith(LOCAL) else ""
        raise self.wave.launch.error(
            inst, "uninitialised", f"uninitialised value: {origin} {what}{advice}", self.wave,
            lane)


def read_in(inst):
    return f", read in line {inst.location.line}" if inst.location else ""
