"""Where lanes wait for each other: block-wide barriers and warp-wide instructions.

CUDA demands that every thread of a block reaches the same __syncthreads(), and that every thread
which a warp mask names reaches the same shuffle. A real GPU hangs, or carries on with wrong values,
when one does not; here it is an error that says who waits where. A thread that has returned early
is not waited for: hardware tolerates it, the manual does not promise it, so it is a warning.
"""

import numpy as np

from .lanes import WARP, Lanes

BARRIERS = 16                               # a block has this many, numbered from 0


class BarrierRoom:
    """Lanes that wait at bar.sync, until their block is complete."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.wave = scheduler.wave
        size = self.wave.live.size
        self.waiting = np.zeros(size, bool)
        self.number = np.zeros(size, np.int64)              # which of the 16 barriers
        self.needed = np.zeros(size, np.int64)              # how many lanes; 0: the whole block
        self.predicate = np.zeros(size, bool)               # for barrier.red
        self.place = np.zeros(size, np.int64)               # index into places
        self.places = []                                    # (frame, pc)
        self.arrived = np.zeros((self.wave.shape[0], BARRIERS), np.int64)   # by bar.arrive
        self.somebody_returned = False

    def complete(self, inst, lanes):
        """The usual case: all threads of all blocks come together, and nobody has returned."""
        return (lanes.count == self.wave.live.count and inst.guard is None and inst.simple_barrier
                and not self.somebody_returned)

    def pass_through(self, inst):
        if self.wave.shadow:
            self.wave.shadow.barrier(None)

    def enter(self, frame, pc, inst, lanes):
        """The lanes arrive. A .arrive does not wait."""
        wave, index = self.wave, lanes.index
        number, needed, predicate, waits = inst.run(wave)
        if not waits:
            np.add.at(self.arrived, (lanes.blocks, number), 1)
            self.scheduler.add(frame, pc + 1, lanes, inst)
        else:
            self.waiting[index] = True
            self.number[index] = number
            self.needed[index] = needed
            self.predicate[index] = predicate
            if (frame, pc) not in self.places:
                self.places.append((frame, pc))
            self.place[index] = self.places.index((frame, pc))
        self.release()

    def inst(self, lane):
        """The instruction at which a lane waits."""
        frame, pc = self.places[self.place[lane]]
        return frame.code[pc]

    def somebody_left(self):
        alive = np.broadcast_to(self.wave.live.mask, self.wave.shape).sum(axis=1)
        self.somebody_returned = bool(((alive > 0) & (alive < self.wave.launch.threads)).any())
        if self.waiting.any():
            self.release()

    def release(self):
        """Let complete blocks go. -> did any?"""
        wave = self.wave
        B, T = wave.shape
        index = np.flatnonzero(self.waiting)
        block = index // T
        key = block * BARRIERS + self.number[index]
        here = np.bincount(key, minlength=B * BARRIERS).reshape(B, BARRIERS)    # (B, 16)
        alive = np.broadcast_to(wave.live.mask, wave.shape).sum(axis=1)         # (B,)
        needed = np.where(self.needed[index] > 0, self.needed[index], alive[block])
        go = (here + self.arrived).reshape(-1)[key] >= needed
        if not go.any():
            return False
        leaving = index[go]
        self.check_same_barrier(leaving)
        self.check_returned(leaving)
        self.arrived.reshape(-1)[np.unique(key[go])] = 0
        self.waiting[leaving] = False
        if wave.shadow:
            wave.shadow.barrier(np.unique(block[go]))
        for place in np.unique(self.place[leaving]):
            frame, pc = self.places[place]
            lanes = Lanes(wave.shape, index=leaving[self.place[leaving] == place])
            if frame.code[pc].reduction:
                self.reduce(frame, frame.code[pc], lanes, leaving)
            self.scheduler.add(frame, pc + 1, lanes, frame.code[pc])
        return True

    def reduce(self, frame, inst, lanes, leaving):
        """barrier.red: every thread learns for how many threads the predicate holds."""
        wave = self.wave
        T = wave.shape[1]
        votes = np.bincount(leaving[self.predicate[leaving]] // T, minlength=wave.shape[0])
        total = np.bincount(leaving // T, minlength=wave.shape[0])
        wave.enter(frame)
        wave.select(lanes, True)
        inst.reduction(wave, votes[lanes.blocks], total[lanes.blocks])

    def retry(self):
        """Nobody can run: complete or deadlocked."""
        if not self.release():
            self.deadlock()

    # ---- what a learner did wrong

    def check_same_barrier(self, leaving):
        """All threads of a block must be at one __syncthreads()."""
        T = self.wave.shape[1]
        whole = leaving[self.needed[leaving] == 0]
        if (self.place[whole] == self.place[whole[:1]]).all():
            return
        barrier = whole // T * BARRIERS + self.number[whole]
        order = np.argsort(barrier, kind="stable")
        barrier, whole = barrier[order], whole[order]
        differs = (barrier[1:] == barrier[:-1]) & (self.place[whole[1:]] != self.place[whole[:-1]])
        if differs.any():
            i = int(np.flatnonzero(differs)[0])
            lane, other = int(whole[i + 1]), int(whole[i])
            raise self.wave.launch.error(
                self.inst(lane), "barrier",
                f"barrier in divergent code: thread {self.wave.thread_of(lane)} waits at this "
                f"__syncthreads(), thread {self.wave.thread_of(other)} of the same block at the "
                f"one in line {line_of(self.inst(other))}", self.wave, lane)

    def check_returned(self, leaving):
        """Threads that never came: a warning if they returned early, else an error."""
        if not self.somebody_returned:
            return
        wave, launch = self.wave, self.wave.launch
        B, T = wave.shape
        whole = leaving[self.needed[leaving] == 0]
        exists = np.broadcast_to(np.arange(T) < launch.threads, wave.shape)
        gone = exists & ~np.broadcast_to(wave.live.mask, wave.shape)
        for block in np.unique(whole // T)[:1]:
            absent = np.flatnonzero(gone[block]) + block * T
            if not len(absent):
                continue
            inst = self.inst(whole[whole // T == block][0])
            for lane in absent:
                if not returned_early(self.scheduler.left_by[lane], inst, launch):
                    raise launch.error(
                        inst, "barrier",
                        f"barrier in divergent code: thread {wave.thread_of(lane)} did not reach "
                        f"this __syncthreads() but went on to line "
                        f"{line_of(self.scheduler.left_by[lane])}; {len(absent)} threads of the "
                        f"block did not come", wave, int(lane))
            launch.warn(inst, f"{len(absent)} threads of block {wave.block_of(absent[0])} returned "
                              f"before this barrier, for one thread {wave.thread_of(absent[0])}")

    def deadlock(self):
        wave = self.wave
        lanes = np.flatnonzero(self.waiting)
        block = lanes[0] // wave.shape[1]
        mine = lanes[lanes // wave.shape[1] == block]
        where = {}
        for lane in mine:
            where.setdefault((self.place[lane], self.number[lane]), []).append(lane)
        text = "; ".join(
            f"{len(members)} threads (first {wave.thread_of(members[0])}) at barrier {number} in "
            f"line {line_of(self.inst(members[0]))}" for (_, number), members in where.items())
        raise wave.launch.error(self.inst(mine[0]), "deadlock",
                                f"deadlock: nobody can go on. Waiting: {text}", wave, int(mine[0]))


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
        alive, present = wave.live.bits.reshape(-1)[warp], lanes.bits.reshape(-1)[warp]
        mask = wave.per_lane(inst.mask(wave)) if inst.mask else np.uint32(0xFFFFFFFF)
        return mask & alive & ~present

    def retry(self):
        """Nobody can run. Lanes that have left since are not waited for; else it is an error."""
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
        if not progress:
            self.absent(inst, lanes, missing, "wait elsewhere")

    def check_passed_by(self, inst, lanes):
        """Lanes that a mask names must not have run on without the instruction."""
        wave, left_by = self.wave, self.scheduler.left_by
        mask = wave.per_lane(inst.mask(wave)) if inst.mask else np.uint32(0xFFFFFFFF)
        masks = np.broadcast_to(mask, (lanes.count,))[:, None]
        named = masks >> np.arange(WARP, dtype=np.uint32) & 1
        other = lanes.warp_of[:, None] * WARP + np.arange(WARP)             # (n, 32) lane numbers
        for i, lane in zip(*np.nonzero(named), strict=True):
            before = left_by[other[i, lane]]
            if before and not returned_early(before, inst, wave.launch):
                missing = np.zeros(lanes.count, np.uint32)
                missing[i] = 1 << lane
                self.absent(inst, lanes, missing, f"went on to line {line_of(before)}")

    def absent(self, inst, lanes, missing, what):
        i = int(np.flatnonzero(missing)[0])
        names = [lane for lane in range(WARP) if int(missing[i]) >> lane & 1]
        raise self.wave.launch.error(
            inst, "mask", f"the mask of this warp-wide instruction names lanes that do not come: "
            f"lane {', '.join(map(str, names))} {what}", self.wave, int(lanes.index[i]))


def returned_early(before, waiting, launch):
    """Did a lane whose last instruction was `before` return ahead of the one that others wait at?
    The text decides: its last line comes first, or says `return`."""
    line = line_of(before)
    return line is None or line <= (line_of(waiting) or 0) or \
        "return" in launch.text(before.location)


def line_of(inst):
    return inst.location.line if inst.location else None
