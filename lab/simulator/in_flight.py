"""Shared memory that a cp.async is still filling.

From its start to the wait for it, a copy may write at any time. Until then nobody may touch the
place: a read finds old or new bytes, whichever comes first.
"""

import numpy as np

from .races import SharedAccess


class InFlight:
    """Marks on the cells of shared memory."""

    def __init__(self, shadow):
        self.shadow = shadow
        self.copy = np.zeros(len(shadow.shared.writes), np.int32)   # number of the copy; 0: none
        self.inst = [None]                                          # number -> Instruction

    def start(self, wave, inst, offset, size):
        """Copies begin. What others have done at the place before must be ordered."""
        shadow, cells = self.shadow, self.shadow.shared
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
        """The copies have come to their end and write now."""
        for place in SharedAccess(self.shadow, wave, inst, offset, size).places():
            self.copy[place] = 0

    def check(self, access, verb):
        """Is somebody touching a place before its copy has arrived?"""
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
            f"was waited for (cp.async.wait_group, __pipeline_wait_prior or a barrier that knows "
            f"of it)")
