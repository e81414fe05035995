"""Shared memory that a cp.async is still filling.

From its start to the wait for it, a copy may write at any time.
Until then no thread may touch the place: a read could find old or new bytes.
"""

import numpy as np

from .accesses import SharedAccess


class InFlight:
    """Marks on the cells of shared memory."""

    def __init__(self, shadow):
        self.shadow = shadow
        self.copy = np.zeros(len(shadow.shared.writes), np.int32)   # number of the copy; 0: none
        self.inst = [None]                                          # number -> Instruction

    def start(self, wave, inst, offset, size):
        """Copies begin.
        Earlier accesses to the place must be ordered before them."""
        shadow = self.shadow
        cells = self.shadow.shared
        access = SharedAccess(shadow, wave, inst, offset, size)
        self.check(access, "copied to again")
        cells.look_up(shadow.oldest_barrier)
        self.inst.append(inst)
        for place in access.places():
            access.check(cells.writes[place], "written by cp.async", "written")
            if cells.reads is not None:
                access.check(cells.reads[place], "written by cp.async", "read")
            self.copy[place] = len(self.inst) - 1

    def land(self, wave, inst, offset, size):
        """The copies end and write now."""
        for place in SharedAccess(self.shadow, wave, inst, offset, size).places():
            self.copy[place] = 0

    def check(self, access, verb):
        """Raise if an access touches a place before its copy has arrived."""
        for place in access.places():
            copies = self.copy[place]
            if copies.any():
                i = int(np.flatnonzero(copies)[0])
                self.too_early(access, i, self.inst[copies[i]], verb)

    @staticmethod
    def too_early(access, i, copy, verb):
        lines = [f" in line {inst.location.line}" if inst.location else ""
                 for inst in (access.inst, copy)]
        raise access.error(
            "race", i, f"race: {access.name(i)} is {verb}{lines[0]} before its cp.async{lines[1]} "
            f"was waited for (cp.async.wait_group, __pipeline_wait_prior or an mbarrier that it "
            f"arrives at)")
