"""Where threads of a block wait for each other.

CUDA demands that every thread of a block reaches the same __syncthreads(). A real GPU hangs, or
carries on with wrong values, when one does not; here it is an error that says which threads wait
where.
A thread that has returned early is not waited for: hardware tolerates it, the manual does not
promise it, so it is a warning.
"""

from functools import cached_property

import numpy as np

from .lanes import WARP, Lanes
from .ordering import BARRIERS
from .returns import returned_early

MAX_BLOCKS = 4                              # blocks with early returns that each barrier examines


class BarrierRoom:
    """Lanes that wait at bar.sync, until their block is complete."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.wave = scheduler.wave
        self.waiting = np.zeros(self.wave.live.size, bool)
        self.places = []                                    # (frame, pc)
        self.arrived = np.zeros((self.wave.shape[0], BARRIERS), np.int64)   # by bar.arrive
        self.somebody_returned = False

    # What the waiting lanes wait for. Most kernels need none of these arrays.

    @cached_property
    def number(self):
        return np.zeros(self.wave.live.size, np.int64)      # which of the 16 barriers

    @cached_property
    def needed(self):
        return np.zeros(self.wave.live.size, np.int64)      # how many lanes; 0: the whole block

    @cached_property
    def predicate(self):
        return np.zeros(self.wave.live.size, bool)          # for barrier.red

    @cached_property
    def place(self):
        return np.zeros(self.wave.live.size, np.int64)      # index into places

    def complete(self, inst, lanes):
        """The usual case: all threads of all blocks arrive together, and none has returned."""
        return (lanes.count == self.wave.live.count and inst.guard is None and inst.simple_barrier
                and not self.somebody_returned)

    def pass_through(self, inst):
        if self.wave.shadow:
            self.wave.shadow.barrier(None)
        self.record(inst, self.wave.live.index)

    def record(self, inst, index):
        if self.scheduler.timeline:
            steps = self.scheduler.launch.interpreter_steps
            self.scheduler.timeline.barrier(inst, index, steps)

    def enter(self, frame, pc, inst, lanes):
        """The lanes arrive.
        A .arrive does not wait."""
        wave = self.wave
        index = lanes.index
        number, needed, predicate, waits = inst.run(wave)
        self.check_operands(inst, lanes, number, needed)
        if waits:
            self.waiting[index] = True
            self.number[index] = number
            self.needed[index] = needed
            self.predicate[index] = predicate
            if (frame, pc) not in self.places:
                self.places.append((frame, pc))
            self.place[index] = self.places.index((frame, pc))
        else:
            np.add.at(self.arrived, (lanes.blocks, number), 1)
            if wave.shadow:
                wave.shadow.named_barrier(index, number)
            self.scheduler.add(frame, pc + 1, lanes, inst)
        self.release()
        if not waits:                                       # a barrier that no thread waited for
            full = self.arrived[lanes.blocks, number] >= needed
            self.arrived[lanes.blocks[full], number[full]] = 0

    def check_operands(self, inst, lanes, number, needed):
        """A barrier has a number below 16 and counts whole warps."""
        for wrong, text in (
                (number >= BARRIERS, "there is no barrier {}: a block has 16, numbered from 0"),
                (needed % WARP != 0, "barrier {} cannot wait for {} threads: the number must be a "
                                     "multiple of 32")):
            if wrong.any():
                i = int(np.flatnonzero(wrong)[0])
                raise self.wave.launch.error(inst, "barrier", text.format(number[i], needed[i]),
                                             self.wave, int(lanes.index[i]))

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
        """Let the threads of complete barriers go. -> did any?"""
        wave = self.wave
        B, T = wave.shape
        index = np.flatnonzero(self.waiting)
        block = index // T
        key = block * BARRIERS + self.number[index]
        here = np.bincount(key, minlength=B * BARRIERS)                         # (B·16,)
        alive = np.broadcast_to(wave.live.mask, wave.shape).sum(axis=1)         # (B,)
        arrived = self.arrived.reshape(-1)
        needed = np.where(self.needed[index] > 0, self.needed[index], alive[block])
        go = (here + arrived)[key] >= needed
        if not go.any():
            return False
        self.check_same_count(index)
        go &= turn_of(key) < needed - arrived[key]          # the others wait for the next round
        leaving = index[go]
        self.check_same_barrier(leaving)
        self.check_returned(leaving)
        arrived[np.unique(key[go])] = 0
        self.waiting[leaving] = False
        if wave.shadow:
            self.tell(leaving, alive)
        for number in np.unique(self.number[leaving]):
            met = leaving[self.number[leaving] == number]
            self.record(self.inst(met[0]), met)
        for place in np.unique(self.place[leaving]):
            frame, pc = self.places[place]
            lanes = Lanes(wave.shape, index=leaving[self.place[leaving] == place])
            if frame.code[pc].reduction:
                self.reduce(frame, frame.code[pc], lanes, leaving)
            self.scheduler.add(frame, pc + 1, lanes, frame.code[pc])
        return True

    def tell(self, leaving, alive):
        """Tell the race detector which threads have met: whole blocks, or parts of them by name."""
        shadow = self.wave.shadow
        T = self.wave.shape[1]
        block = leaving // T
        met = np.bincount(block * BARRIERS + self.number[leaving],
                          minlength=self.wave.shape[0] * BARRIERS)
        whole = met[block * BARRIERS + self.number[leaving]] == alive[block]
        if whole.any():
            shadow.barrier(np.unique(block[whole]))
        if not whole.all():
            shadow.named_barrier(leaving[~whole], self.number[leaving[~whole]])

    def reduce(self, frame, inst, lanes, leaving):
        """barrier.red: every thread learns for how many threads the predicate holds."""
        wave = self.wave
        T = wave.shape[1]
        key = leaving // T * BARRIERS + self.number[leaving]
        votes, total = (np.bincount(k, minlength=wave.shape[0] * BARRIERS)
                        for k in (key[self.predicate[leaving]], key))
        mine = lanes.blocks * BARRIERS + self.number[lanes.index]
        wave.enter(frame)
        wave.select(lanes, True)
        inst.reduction(wave, votes[mine], total[mine])

    def retry(self):
        """No lane can run: some barrier is complete, or it is a deadlock."""
        if not self.release():
            self.deadlock()

    # ---- what a learner did wrong

    def check_same_barrier(self, leaving):
        """All threads of a block must be at one __syncthreads(), or at least all of a warp."""
        T = self.wave.shape[1]
        whole = leaving[self.needed[leaving] == 0]
        if (self.place[whole] == self.place[whole[:1]]).all():
            return
        barrier = whole // T * BARRIERS + self.number[whole]
        for within in (whole // WARP * BARRIERS + self.number[whole], barrier):
            order = np.argsort(within, kind="stable")
            ordered = within[order]
            lanes = whole[order]
            differs = (ordered[1:] == ordered[:-1]) & (
                self.place[lanes[1:]] != self.place[lanes[:-1]])
            if differs.any():
                i = int(np.flatnonzero(differs)[0])
                self.different_lines(int(lanes[i + 1]), int(lanes[i]), within is barrier)
                return

    def different_lines(self, lane, other, whole_warps):
        if whole_warps and self.wave.launch.any_barrier:
            return
        advice = ". Each warp is whole, so PTX takes the two for one barrier; " \
            "any_barrier=True, given to RawKernel or RawModule, allows that" if whole_warps else ""
        raise self.wave.launch.error(
            self.inst(lane), "barrier",
            f"barrier in divergent code: thread {self.wave.thread_of(lane)} waits at this "
            f"__syncthreads(), thread {self.wave.thread_of(other)} of the same block at the "
            f"one in line {line_of(self.inst(other))}{advice}", self.wave, lane)

    def check_same_count(self, waiting):
        """Threads that wait at a barrier must agree on how many it waits for."""
        key = waiting // self.wave.shape[1] * BARRIERS + self.number[waiting]
        order = np.argsort(key, kind="stable")
        key = key[order]
        needed = self.needed[waiting][order]
        differs = (key[1:] == key[:-1]) & (needed[1:] != needed[:-1])
        if differs.any():
            i = int(np.flatnonzero(differs)[0])
            lane = int(waiting[order[i + 1]])
            other = int(waiting[order[i]])
            how_many = [f"{n} threads" if n else "the whole block" for n in needed[i:i + 2]]
            raise self.wave.launch.error(
                self.inst(lane), "barrier",
                f"thread {self.wave.thread_of(lane)} waits at barrier {self.number[lane]} for "
                f"{how_many[1]}, thread {self.wave.thread_of(other)} in line "
                f"{line_of(self.inst(other))} for {how_many[0]}", self.wave, lane)

    def check_returned(self, leaving):
        """Threads that never came: a warning if they returned early, else an error."""
        if not self.somebody_returned:
            return
        wave = self.wave
        launch = self.wave.launch
        B, T = wave.shape
        whole = leaving[self.needed[leaving] == 0]
        exists = np.broadcast_to(np.arange(T) < launch.threads, wave.shape)
        gone = exists & ~np.broadcast_to(wave.live.mask, wave.shape)
        blocks = np.unique(whole // T)
        for block in blocks[gone[blocks].any(axis=1)][:MAX_BLOCKS]:
            absent = np.flatnonzero(gone[block]) + block * T
            inst = self.inst(whole[whole // T == block][0])
            left_by = self.scheduler.left_by
            for before, lane in {left_by[lane]: lane for lane in absent[::-1]}.items():
                if not returned_early(before, inst, launch):
                    raise launch.error(
                        inst, "barrier",
                        f"barrier in divergent code: thread {wave.thread_of(lane)} did not reach "
                        f"this __syncthreads() but went on to line {line_of(before)}; "
                        f"{len(absent)} threads of the block did not come", wave, int(lane))
            launch.warn(inst, f"{len(absent)} threads of block {wave.block_of(absent[0])} returned "
                              f"before this barrier (first {wave.thread_of(absent[0])})")

    def deadlock(self):
        """No thread can go on: which wait where, in the first block that has any."""
        wave = self.wave
        lanes = np.flatnonzero(self.waiting)
        block = lanes[0] // wave.shape[1]
        mine = lanes[lanes // wave.shape[1] == block]
        text = self.who_waits(mine)
        ended = wave.launch.threads - int(np.broadcast_to(wave.live.mask, wave.shape)[block].sum())
        if ended:
            text += f"; {ended} threads have ended"
        raise wave.launch.error(self.inst(mine[0]), "deadlock",
                                f"deadlock: no thread can go on. Waiting: {text}", wave,
                                int(mine[0]))

    def who_waits(self, lanes):
        where = {}
        for lane in lanes:
            where.setdefault((self.place[lane], self.number[lane], self.needed[lane]),
                             []).append(lane)
        words = []
        for (_, number, needed), members in where.items():
            arrived = self.arrived[members[0] // self.wave.shape[1], number]
            words.append(
                f"{len(members)} threads (first {self.wave.thread_of(members[0])}) at barrier "
                f"{number} in line {line_of(self.inst(members[0]))}"
                + (f", which waits for {needed}" if needed else "")
                + (f" and where {arrived} have arrived" if arrived else ""))
        return "; ".join(words)


def turn_of(key):
    """How many equal keys come before each one (n,)."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.ones(len(key), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    start = np.maximum.accumulate(np.where(first, np.arange(len(key)), 0))
    turn = np.empty(len(key), np.int64)
    turn[order] = np.arange(len(key)) - start
    return turn


def line_of(inst):
    return inst.location.line if inst.location else None
