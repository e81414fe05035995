"""Which lanes run next.

Lanes at one place in the code form a group and run together.
A branch on which they disagree splits the group; groups that meet again merge.
The group with the lowest place runs first, so that lanes which skipped some code wait for the
others at its end: this is how a warp reconverges.
A group that keeps jumping back while others wait must let each of them run for a while, since it
may be waiting for any (a spin lock).

Lanes leave the run queue at a barrier until their block is complete, and at a warp-wide instruction
(.sync) until the lanes that its mask names have come.
"""

import numpy as np

from . import instructions  # noqa: F401  (fills the table of opcodes)
from .access import SeveralSegments
from .barriers import BarrierRoom
from .decode import ALU, BARRIER, BRANCH, BRANCH_TABLE, CALL, WARP_SYNC, decode
from .errors import Unsupported
from .lanes import WARP
from .series import series_of
from .timeline import Timeline
from .uses import last_uses
from .warp_room import WarpRoom
from .wave import Frame

PATIENCE = 64               # jumps back before other groups get a turn
TURN = 256                  # instructions that such a turn lasts


class Scheduler:
    """Runs one wave to its end."""

    def __init__(self, launch, wave):
        self.launch = launch
        self.wave = wave
        self.groups = {}                        # (frame, pc) -> Lanes
        self.origins = {}                       # (frame, pc) -> [(Lanes, instruction before)]
        self.spins = 0
        self.last_turn = (0, 0)                 # place of the group that had one
        self.spun = None                        # (frame, pc) where the last group was put back
        self.left_by = np.zeros(wave.live.size, object)     # last instruction of lanes that left
        self.barriers = BarrierRoom(self)
        wave.scheduler = self
        self.warps = WarpRoom(self)
        # instructions that each warp ran
        self.busy = np.zeros((wave.shape[0], wave.shape[1] // WARP), np.int64)
        self.timeline = Timeline(wave) if wave.block_numbers[0] == 0 else None
        launch.counts.timeline = launch.counts.timeline or self.timeline

    def run(self):
        self.add(self.wave.frame, 0, self.wave.live)
        while True:
            if self.groups:
                before = self.launch.interpreter_steps
                lanes = self.run_group()
                self.busy += lanes.present * (self.launch.interpreter_steps - before)
            elif self.warps.waiting:
                self.warps.retry()
            elif self.barriers.waiting.any():
                self.barriers.retry()
            else:
                break
        counts = self.launch.counts
        counts.busiest = max(counts.busiest, int(self.busy.max(initial=0)))
        if self.timeline:
            self.timeline.turn(None, self.launch.interpreter_steps)

    def run_group(self):
        """Run one group until it splits, leaves, or reaches the place of another -> its lanes."""
        frame, pc = min(self.groups, key=place)
        turn = 1 << 60
        if self.spins > PATIENCE:
            frame, pc = self.next_in_turn()
            turn = TURN
            self.spins = 0
        lanes = self.groups.pop((frame, pc))
        origins = self.origins.pop((frame, pc), [])
        inst = None
        limit = min((p for f, p in self.groups if f is frame and p > pc), default=len(frame.code))

        wave = self.wave
        launch = self.launch
        code = frame.code
        wave.enter(frame)
        wave.select(lanes)
        if self.timeline:
            self.timeline.turn(lanes, launch.interpreter_steps)
        warps = lanes.warps
        count = lanes.count
        warps_run = launch.counts.warps
        lanes_run = launch.counts.lanes
        taint = wave.taint
        ahead = 0                               # instructions that a series has run already
        while True:
            before = inst
            inst = code[pc]
            if inst.run is None:
                self.decode(inst)
            kind = inst.kind
            launch.interpreter_steps += 1
            launch.steps += warps
            if launch.steps > launch.budget or launch.interpreter_steps > launch.patience:
                launch.out_of_budget(inst, wave)
            warps_run[inst] = warps_run.get(inst, 0) + warps
            if kind == ALU and inst.guard is None:
                lanes_run[inst] = lanes_run.get(inst, 0) + count
                if ahead:
                    ahead -= 1
                elif taint and not (inst.series and taint.knows_nothing()):
                    taint.run(inst)
                elif inst.series:
                    ahead = inst.series.run(wave, inst, min(limit - pc, turn)) - 1
                else:
                    inst.run(wave)
                pc += 1
            elif kind <= WARP_SYNC and inst.guard is None and lanes.whole:
                self.run_some(inst, lanes)                  # no lane is missing
                pc += 1
            elif kind < WARP_SYNC:
                self.run_some(inst, self.guarded(inst, lanes)[0])
                wave.select(lanes)
                pc += 1
            elif kind == BRANCH:
                lanes_run[inst] = lanes_run.get(inst, 0) + count
                taken, rest = self.guarded(inst, lanes)
                self.spins += inst.target <= pc and len(self.groups) > 0
                if taken.count and rest.count:
                    self.add(frame, inst.target, taken, inst)
                    self.add(frame, pc + 1, rest, inst)
                    launch.counts.split(inst, lanes, (taken, rest))
                    return lanes
                pc = inst.target if taken.count else pc + 1
            elif kind == WARP_SYNC:
                chosen, rest = self.guarded(inst, lanes)
                ready = self.warps.enter(frame, pc, inst, chosen) if chosen.count else chosen
                if ready.count:
                    self.run_some(inst, ready)
                pc += 1
                if ready is not lanes:
                    self.add(frame, pc, ready, inst)
                    self.add(frame, pc, rest, inst)
                    return lanes
                wave.select(lanes)
            elif kind == BARRIER and self.barriers.complete(inst, lanes):
                self.barriers.pass_through(inst)
                lanes_run[inst] = lanes_run.get(inst, 0) + count
                pc += 1
            else:
                lanes_run[inst] = lanes_run.get(inst, 0) + count
                self.leave(frame, pc, inst, lanes, [(lanes, before)] if before else origins)
                return lanes
            if inst.dying and wave.everyone:            # their memory is still in the cache
                wave.forget(inst.dying)
            turn -= 1
            if pc >= limit or turn == 0 or (self.spins > PATIENCE and self.groups):
                self.add(frame, pc, lanes, inst)
                self.spun = frame, pc
                return lanes

    def next_in_turn(self):
        """All groups but the one that has just been spinning have their turns from the highest
        down, round and round."""
        others = [key for key in self.groups if key != self.spun]
        lower = [key for key in others if place(key) < self.last_turn]
        key = max(lower or others or self.groups, key=place)
        self.last_turn = place(key)
        return key

    def decode(self, inst):
        try:
            decode(inst)
        except Unsupported as error:
            raise self.launch.error(inst, "unsupported", str(error), self.wave) from None
        if inst.elementwise and not inst.series:
            self.find_series(inst)
        inst.dying = last_uses(inst.function).get(inst.pc, ())
        if inst.kind == BRANCH:
            inst.target = inst.function.labels[inst.operands[0].name]

    def find_series(self, inst):
        """Decode the series that begins with this instruction."""
        series = series_of(inst)
        for member in series.members if series else ():
            member.series = series
            if member.run is None:
                self.decode(member)

    def guarded(self, inst, lanes):
        """-> lanes for which the guard @p holds, and the others."""
        wave = self.wave
        if inst.guard is None:
            return lanes, wave.no_lanes
        if wave.taint:
            wave.taint.check_guard(inst, lanes)
        value = wave.registers[inst.guard.name]
        if lanes.sparse:
            wave.lanes = lanes
            value = wave.gather(value)
        chosen, rest = lanes.split(~value if inst.guard_negated else value)
        return (lanes, wave.no_lanes) if not rest.count else (chosen, rest)

    def run_some(self, inst, lanes):
        if not lanes.count:
            return
        wave = self.wave
        lanes_run = self.launch.counts.lanes
        lanes_run[inst] = lanes_run.get(inst, 0) + lanes.count
        wave.select(lanes, inst.kind != ALU)
        run = wave.taint.run if wave.taint else wave.run
        try:
            run(inst)
        except SeveralSegments as several:
            with self.launch.counts.one_request(wave, inst):
                parts = list(several.groups)
                while parts:
                    wave.select(parts.pop(), True)
                    try:
                        run(inst)
                    except SeveralSegments as more:
                        parts += more.groups
            wave.select(lanes, inst.kind != ALU)

    def add(self, frame, pc, lanes, before=None):
        """Lanes are ready to run at a place; they join those already there."""
        if not lanes.count:
            return
        key = frame, pc
        if before is not None:
            self.origins.setdefault(key, []).append((lanes, before))
        if key in self.groups:
            lanes = self.groups[key] | lanes
        self.groups[key] = self.wave.live if lanes.count == self.wave.live.count else lanes

    # ---- instructions that take lanes out of the group

    def leave(self, frame, pc, inst, lanes, origins):
        chosen, rest = self.guarded(inst, lanes)
        self.add(frame, pc + 1, rest, inst)
        if not chosen.count:
            return
        self.wave.select(chosen, True)
        if self.wave.taint:
            self.wave.taint.check_operands(inst)
        if inst.kind == BARRIER:
            self.barriers.enter(frame, pc, inst, chosen)
        elif inst.kind == CALL:
            self.call(frame, pc, inst, chosen)
        elif inst.kind == BRANCH_TABLE:
            parts = inst.run(self.wave)
            if len(parts) > 1:
                self.launch.counts.split(inst, chosen, [part for _, part in parts])
            for target, part in parts:
                self.add(frame, target, part, inst)
        elif inst.opcode == "ret" and frame.caller:
            self.add(frame.caller, frame.return_pc, chosen, inst)
        else:
            self.exit(chosen, origins)

    def call(self, frame, pc, inst, lanes):
        callees = inst.run(self.wave)                   # None: a system call, and it is done
        if callees is None:
            self.add(frame, pc + 1, lanes, inst)
            return
        if len(callees) > 1:
            self.launch.counts.split(inst, lanes, [part for _, _, part in callees])
        for function, bound, part in callees:
            if (pc, function.name) not in frame.callees:
                frame.callees[pc, function.name] = Frame(function, frame, pc + 1, bound)
            if self.wave.taint:
                self.wave.taint.enter(frame.callees[pc, function.name], part)
            self.add(frame.callees[pc, function.name], 0, part, inst)

    def stuck(self):
        """Which lanes wait for others, at a barrier or a warp-wide instruction (B·T,) bool"""
        waiting = self.barriers.waiting.copy()
        for lanes in self.warps.waiting.values():
            waiting[lanes.index] = True
        return waiting

    def exit(self, lanes, origins):
        wave = self.wave
        if lanes.count == wave.live.count:                  # no lane is left to miss them
            wave.live = wave.no_lanes
            return
        for part, before in origins:
            self.left_by[(part & lanes).index] = before
        wave.live = wave.live - lanes
        for key, group in self.groups.items():
            if group.count == wave.live.count:
                self.groups[key] = wave.live
        self.barriers.somebody_left()


def place(key):
    frame, pc = key
    return -frame.depth, pc
