"""cp.async: copy from global to shared memory behind the lane's back.

A lane's copies belong to the group that its next commit closes. The bytes appear in shared memory
no sooner than wait_group says that the group is done; so a kernel that forgets to wait reads old
data, here as on a GPU.
"""

import numpy as np

from ..access import load, store
from ..decode import MEMORY, address, opcode, source
from ..lanes import Lanes
from .loads import CACHE_HINTS


@opcode("cp", kind=MEMORY)
def cp(inst, mods):
    if not mods.flag("async"):
        mods.refuse()
    if mods.flag("commit_group"):
        return lambda wave: commits(wave).__setitem__(
            wave.lanes.index, commits(wave)[wave.lanes.index] + 1)
    if mods.flag("wait_group"):
        keep = inst.operands[0].bits
        return lambda wave: finish(wave, keep)
    if mods.flag("wait_all"):
        return lambda wave: finish(wave, 0, uncommitted=True)
    mods.flag("ca", "cg")
    if mods.one_of("shared", "shared::cta") is None or not mods.flag("global"):
        mods.refuse()
    hinted = mods.flag("L2::cache_hint")
    while mods.flag(*CACHE_HINTS):
        pass
    operands = inst.operands[:-1] if hinted else inst.operands
    size = operands[2].bits
    where, frm = address(operands[0]), address(operands[1])
    given = source(operands[3], "u32") if len(operands) > 3 else None

    def run(wave):
        place = wave.per_lane(where(wave))
        pending(wave).append(Copy(wave, inst, place, fetch(wave, inst, frm, size, given), size))
    return run


def fetch(wave, inst, frm, size, given):
    """The bytes to copy, read now (n, size). Beyond the source size they are zero, and where that
    is zero nothing is read."""
    if given is None:
        data = wave.per_lane(load(wave, inst, frm(wave), size, "global"))
        return np.ascontiguousarray(data).view(np.uint8).reshape(-1, size)
    amount = wave.per_lane(given(wave)).astype(np.int64)
    source_address = wave.per_lane(frm(wave))
    data = np.zeros((len(amount), size), np.uint8)
    everyone = wave.lanes
    for n in np.unique(amount[amount > 0]):
        chosen = amount == n
        wave.select(Lanes(wave.shape, index=everyone.index[chosen]), True)
        for start, width in pieces(int(n)):
            part = load(wave, inst, source_address[chosen] + np.uint64(start), width, "global")
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
    """Copies that one instruction started."""

    def __init__(self, wave, inst, place, data, size):
        self.inst, self.place, self.data, self.size = inst, place, data, size
        self.index = wave.lanes.index.copy()
        self.group = commits(wave)[self.index]

    def land(self, wave, done):
        """Write those that are done -> what is left, or None."""
        wave.select(Lanes(wave.shape, index=self.index[done]), True)
        value = np.ascontiguousarray(self.data[done]).view(
            {4: np.uint32, 8: np.uint64, 16: np.complex128}[self.size]).reshape(-1)
        place = self.place[done]
        if not wave.flat:
            value, place = value.reshape(wave.shape), place.reshape(wave.shape)
        store(wave, self.inst, place, self.size, "shared", value)
        if done.all():
            return None
        self.index, self.place = self.index[~done], self.place[~done]
        self.data, self.group = self.data[~done], self.group[~done]
        return self


def commits(wave):
    """How many groups each lane has committed (B·T,)."""
    if not hasattr(wave, "commits"):
        wave.commits = np.zeros(wave.live.size, np.int64)
    return wave.commits


def pending(wave):
    if not hasattr(wave, "pending"):
        wave.pending = []
    return wave.pending


def finish(wave, keep, uncommitted=False):
    """wait_group: all but the last `keep` groups of the waiting lanes are done."""
    lanes = wave.lanes
    waits = np.zeros(wave.live.size, bool)
    waits[lanes.index] = True
    left = []
    for copy in pending(wave):
        done = waits[copy.index]
        if not uncommitted:
            done &= copy.group < commits(wave)[copy.index] - keep
        copy = copy.land(wave, done) if done.any() else copy
        if copy is not None:
            left.append(copy)
    wave.pending = left
    wave.select(lanes, True)
