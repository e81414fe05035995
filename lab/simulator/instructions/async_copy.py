"""cp.async: copy from global to shared memory behind the lane's back.

A lane's copies belong to the group that its next commit closes.
The bytes appear in shared memory only when wait_group says that the group is done, or a wait on the
mbarrier that was given to cp.async.mbarrier.arrive; so a kernel that forgets to wait reads old
data, here as on a GPU.
The race detector reports it (in_flight.py).
"""

import numpy as np

from ..access import load, shared_offset, store
from ..decode import MEMORY, address, opcode, source
from ..in_flight import InFlight
from ..lanes import Lanes
from ..memory import raw
from ..ptx import Immediate, Register
from . import mbarrier
from .loads import CACHE_HINTS


@opcode("cp", kind=MEMORY)
def cp(inst, mods):
    if not mods.flag("async") or mods.flag("bulk"):
        mods.refuse()
    if mods.flag("mbarrier"):
        return arrive_after_copies(inst, mods)
    if mods.flag("commit_group"):
        return lambda wave: commit(wave)
    if mods.flag("wait_group"):
        keep = inst.operands[0].bits
        return lambda wave: finish(wave, keep)
    if mods.flag("wait_all"):
        return lambda wave: finish(wave, 0, uncommitted=True)
    return start(inst, mods)


def start(inst, mods):
    """cp.async.ca [shared], [global], size{, source size or "ignore it"}"""
    cache = mods.need("ca", "cg")
    mods.need("shared", "shared::cta")
    mods.need("global")
    operands = inst.operands[:-1] if mods.flag("L2::cache_hint") else inst.operands
    while mods.flag(*CACHE_HINTS):
        pass
    size = operands[2].bits
    if size not in ((16,) if cache == "cg" else (4, 8, 16)):
        mods.refuse()
    where, frm = address(operands[0]), address(operands[1])
    source_size = given_size(operands[3], size) if len(operands) > 3 else None

    def run(wave):
        place = where(wave)
        offset = shared_offset(wave, inst, place, size, "write")
        copy = Copy(wave, inst, place, size)
        copy.data = fetch(wave, inst, frm, size, source_size)
        if wave.shadow:
            wave.shadow.in_flight = wave.shadow.in_flight or InFlight(wave.shadow)
            wave.shadow.in_flight.start(wave, inst, offset, size)
        pending(wave).append(copy)
    return run


def given_size(operand, size):
    """-> read(wave), how many bytes to read: an integer, or 0 where a predicate holds."""
    if isinstance(operand, Register) and operand.type == "pred":
        ignore = source(operand, "pred")
        return lambda wave: np.where(ignore(wave), 0, size)
    if isinstance(operand, Immediate) and operand.bits == size:
        return None
    return source(operand, "u32")


def fetch(wave, inst, frm, size, source_size):
    """The bytes to copy, read now (n, size).
    Beyond the source size they are zero, and where that is zero nothing is read."""
    amount = None if source_size is None else wave.per_lane(source_size(wave)).astype(np.int64)
    if source_size is None or (amount == size).all():
        data = wave.per_lane(load(wave, inst, frm(wave), size, "global"))
        return np.ascontiguousarray(data).view(np.uint8).reshape(-1, size)
    if (amount > size).any():
        i = int(np.flatnonzero(amount > size)[0])
        raise wave.launch.error(inst, "out_of_bounds", f"cp.async reads {amount[i]} bytes to copy "
                                f"{size}", wave, int(wave.lanes.index[i]))
    data = np.zeros((len(amount), size), np.uint8)
    if not amount.any():
        return data
    source_address = wave.per_lane(frm(wave))
    everyone = wave.lanes
    with wave.launch.counts.one_request(wave, inst):
        for n in np.unique(amount[amount > 0]):
            chosen = amount == n
            wave.select(Lanes(wave.shape, index=everyone.index[chosen]), True)
            for start, width in pieces(int(n)):
                place = source_address[chosen] + np.uint64(start)
                part = load(wave, inst, place if wave.flat else place.reshape(wave.shape), width,
                            "global")
                data[chosen, start:start + width] = np.ascontiguousarray(wave.per_lane(part)).view(
                    np.uint8).reshape(-1, width)
    wave.select(everyone, True)
    return data


def pieces(n):
    """n bytes as pieces of 16, 8, 4, 2 and 1."""
    start = 0
    for width in (16, 8, 4, 2, 1):
        while n - start >= width:
            yield start, width
            start += width


class Copy:
    """Copies that one instruction started, one for each of its lanes.

    lanes   those whose copies have not landed
    place   where they go, in the layout that the lanes have
    group   which of the lane's groups each belongs to
    number  how many copy instructions the wave had started before
    """

    def __init__(self, wave, inst, place, size):
        self.inst, self.place, self.size = inst, place, size
        self.lanes, self.index = wave.lanes, wave.lanes.index
        self.group = commits(wave)[self.index]
        self.number = wave.copies_started = getattr(wave, "copies_started", 0) + 1
        self.data = None

    def land(self, wave, done):
        """Write those that are done -> what is left, or None."""
        if done.all():
            self.write(wave, self.lanes, self.place, self.data)
            return None
        wave.select(self.lanes, True)
        place = wave.per_lane(self.place)
        self.write(wave, Lanes(wave.shape, index=self.index[done]), place[done], self.data[done])
        self.index, self.place = self.index[~done], place[~done]
        self.lanes = Lanes(wave.shape, index=self.index)
        self.data, self.group = self.data[~done], self.group[~done]
        return self

    def write(self, wave, lanes, place, data):
        wave.select(lanes, True)
        value = np.ascontiguousarray(data).view(raw(self.size)).reshape(-1)
        if not wave.flat:
            value = value.reshape(wave.shape)
        if wave.shadow:
            wave.shadow.in_flight.land(wave, self.inst, place.view(np.int64), self.size)
        store(wave, self.inst, place, self.size, "shared", value)


def commits(wave):
    """How many groups each lane has committed (B·T,)."""
    if not hasattr(wave, "commits"):
        wave.commits = np.zeros(wave.live.size, np.int64)
    return wave.commits


def pending(wave):
    if not hasattr(wave, "pending"):
        wave.pending = []
    return wave.pending


def waited_lanes(wave):
    """Which lanes have waited for a group before (B·T,)."""
    if not hasattr(wave, "waited"):
        wave.waited = np.zeros(wave.live.size, bool)
    return wave.waited


def commit(wave):
    commits(wave)[wave.lanes.index] += 1


def finish(wave, keep, uncommitted=False):
    """wait_group: all but the last `keep` groups of the waiting lanes are done."""
    done, index = np.zeros(wave.live.size, np.int64), wave.lanes.index      # groups of each lane
    done[index] = commits(wave)[index] + (1 if uncommitted else -keep)
    land(wave, lambda copy: copy.group < done.take(copy.index))
    waiting, waited = np.zeros(wave.live.size, bool), waited_lanes(wave)
    waiting[index] = True
    left = sum(copy.size * int(np.count_nonzero(waiting[copy.index])) for copy in pending(wave))
    wave.launch.counts.wait(len(index), int(np.count_nonzero(waiting & ~waited)), left)
    waited |= waiting


def land(wave, is_done):
    """Copies arrive in shared memory. is_done(Copy) -> bool for each of its lanes"""
    lanes, left = wave.lanes, []
    for copy in pending(wave):
        done = is_done(copy)
        copy = copy.land(wave, done) if done.any() else copy
        if copy is not None:
            left.append(copy)
    wave.pending = left
    wave.select(lanes, True)


def arrive_after_copies(inst, mods):
    """cp.async.mbarrier.arrive{.noinc}: arrive when all copies that the lane has started are done.
    Without .noinc the phase waits for one more arrival, so that the sum stays the same."""
    mods.need("arrive")
    no_increment, shared = mods.flag("noinc"), mbarrier.take_space(mods)
    mods.need("b64")
    where = mbarrier.barrier_address(inst, inst.operands[0], shared)

    def run(wave):
        memory, index = mbarrier.find(wave, inst, where)
        if not no_increment:
            np.add.at(memory, index, np.uint64(1))
        mine, started = np.zeros(wave.live.size, bool), getattr(wave, "copies_started", 0)
        mine[wave.lanes.index] = True
        mbarrier.barriers(wave).copying.append((
            lambda: land(wave, lambda copy: mine[copy.index] & (copy.number <= started)), index))
    return run
