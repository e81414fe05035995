"""Where lanes of a warp wait for the others that a mask names: at shuffles, votes, __syncwarp().

CUDA demands that every lane which a mask names comes to an instruction of the same kind with the
same mask.
One that has returned early is not waited for, with a warning, as at __syncthreads().
"""

import numpy as np

from .barriers import line_of
from .lanes import WARP, Lanes
from .returns import returned_early
from .together import result_types, run_together


class WarpRoom:
    """Lanes that wait at a .sync instruction for others that their mask names."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.wave = scheduler.wave
        self.waiting = {}                                   # (frame, pc) -> Lanes

    def enter(self, frame, pc, inst, lanes):
        """-> the lanes whose partners are all here; the others wait."""
        wave = self.wave
        if lanes.count == wave.live.count:
            return lanes
        if (frame, pc) in self.waiting:
            lanes = self.waiting.pop((frame, pc)) | lanes
        wave.enter(frame)
        wave.select(lanes, True)
        missing = self.missing(inst, lanes)
        if not missing.any():
            return lanes
        ready, rest = (Lanes(wave.shape, index=lanes.index[chosen])
                       for chosen in (missing == 0, missing != 0))
        self.waiting[frame, pc] = rest
        return ready

    def missing(self, inst, lanes):
        """Per lane the bits of its mask that name living lanes which are not here (n,)."""
        wave = self.wave
        warp = lanes.warp_of
        alive = wave.live.bits.reshape(-1)[warp]
        present = lanes.bits.reshape(-1)[warp]
        mask = wave.per_lane(inst.mask(wave)) if inst.mask else np.uint32(0xFFFFFFFF)
        return mask & alive & ~present

    def retry(self):
        """No lane can run.
        Lanes that have left since are not waited for; all else is an error."""
        progress = False
        for (frame, pc), lanes in list(self.waiting.items()):
            inst = frame.code[pc]
            self.wave.enter(frame)
            self.wave.select(lanes, True)
            missing = self.missing(inst, lanes)
            if (missing == 0).any():
                self.check_passed_by(inst, lanes)
                del self.waiting[frame, pc]
                self.scheduler.add(frame, pc, lanes, inst)
                progress = True
        if not progress and not self.meet_at_several():
            frame, pc = min(self.waiting, key=lambda key: (-key[0].depth, key[1]))
            inst = frame.code[pc]
            lanes = self.waiting[frame, pc]
            self.wave.enter(frame)
            self.wave.select(lanes, True)
            missing = self.missing(inst, lanes)
            self.absent(inst, lanes, missing, self.elsewhere(lanes, missing))

    def meet_at_several(self):
        """Let lanes go that have met at several places, see together.py. -> did any?"""
        kinds = {}
        for frame, pc in self.waiting:
            inst = frame.code[pc]
            if result_types(inst) is not None:
                kinds.setdefault((frame, inst.opcode, inst.modifiers), []).append((frame, pc))
        return any(self.meet(places) for places in kinds.values() if len(places) > 1)

    def meet(self, places):
        """Let the lanes go whose masks' lanes are all at one of these places. -> did any?"""
        index = np.concatenate([self.waiting[place].index for place in places])
        mask = np.concatenate([self.masks(place) for place in places]).astype(np.int64)
        names, which = np.unique(index // WARP << 32 | mask, return_inverse=True)
        here = np.zeros(len(names), np.int64)
        np.bitwise_or.at(here, which, 1 << index % WARP)
        alive = self.wave.live.bits.reshape(-1)[index // WARP].astype(np.int64)
        met = Lanes(self.wave.shape, index=np.sort(index[mask & alive & ~here[which] == 0]))
        groups = [(place, self.waiting[place] & met) for place in places if met.count]
        groups = [(place, lanes) for place, lanes in groups if lanes.count]
        if groups:
            run_together(self.wave, places[0][0],
                         [(frame.code[pc], lanes) for (frame, pc), lanes in groups])
        for (frame, pc), lanes in groups:
            rest = self.waiting.pop((frame, pc)) - lanes
            if rest.count:
                self.waiting[frame, pc] = rest
            self.scheduler.add(frame, pc + 1, lanes, frame.code[pc])
        return len(groups) > 0

    def masks(self, place):
        """Of the lanes that wait at a place (n,) uint32."""
        frame, pc = place
        self.wave.enter(frame)
        self.wave.select(self.waiting[place], True)
        read = frame.code[pc].mask
        return self.wave.per_lane(read(self.wave) if read else np.full(1, 0xFFFFFFFF, np.uint32))

    def elsewhere(self, lanes, missing):
        """Where the first of the missing lanes waits."""
        i = int(np.flatnonzero(missing)[0])
        lane = int(lanes.warp_of[i]) * WARP + (int(missing[i]) & -int(missing[i])).bit_length() - 1
        room = self.scheduler.barriers
        if room.waiting[lane]:
            return f"wait at a barrier in line {line_of(room.inst(lane))}"
        for (frame, pc), others in self.waiting.items():
            if np.broadcast_to(others.mask, others.shape).reshape(-1)[lane]:
                return f"wait in line {line_of(frame.code[pc])}"
        return "wait elsewhere"

    def check_passed_by(self, inst, lanes):
        """Lanes that a mask names must not have run on without the instruction."""
        wave = self.wave
        left_by = self.scheduler.left_by
        mask = wave.per_lane(inst.mask(wave)) if inst.mask else np.uint32(0xFFFFFFFF)
        masks = np.broadcast_to(mask, (lanes.count,))[:, None]
        named = masks >> np.arange(WARP, dtype=np.uint32) & 1
        other = lanes.warp_of[:, None] * WARP + np.arange(WARP)             # (n, 32) lane numbers
        gone = ~np.broadcast_to(wave.live.mask, wave.shape).reshape(-1)
        i, lane = np.nonzero((named == 1) & gone[other])
        first = {left_by[other[i[k], lane[k]]]: k for k in reversed(range(len(i)))}
        for before, k in first.items():
            if before and not returned_early(before, inst, wave.launch):
                missing = np.zeros(lanes.count, np.uint32)
                missing[i[k]] = 1 << lane[k]
                self.absent(inst, lanes, missing, f"went on to line {line_of(before)}")

    def absent(self, inst, lanes, missing, what):
        i = int(np.flatnonzero(missing)[0])
        names = [lane for lane in range(WARP) if int(missing[i]) >> lane & 1]
        wanted = "the mask of this warp-wide instruction names lanes that do not come" \
            if inst.mask else f"all lanes of a warp must execute this together ({inst.opcode}.sync)"
        raise self.wave.launch.error(
            inst, "mask", f"{wanted}: lane {', '.join(map(str, names))} {what}", self.wave,
            int(lanes.index[i]))
