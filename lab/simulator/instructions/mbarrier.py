"""mbarrier: a barrier that is an object of 8 bytes in shared memory.

A phase of it ends when as many arrivals have come as it was made for; the next phase begins at
once.
Arriving and waiting are separate: `arrive` returns a token that names the phase, and `test_wait`
asks whether that phase is over.
A copy by cp.async can be made to arrive when it is done.
The object's contents are the hardware's secret; here they are

    bits 0-19   arrivals still missing in this phase (the pending count)
    bits 20-39  arrivals that the next phase will need (the expected count)
    bits 40-63  number of the phase

For the race detector the end of a phase comes after all that the block did before it, and before
all that threads do once they have waited for it.
That is a little more than the hardware promises:
accesses of threads that did not arrive count as ordered too.
"""

import numpy as np

from ..access import only_shared, place, store
from ..decode import MEMORY, address, destination, opcode, source
from ..dtypes import U32, U64

COUNT_BITS = 20
COUNT = (1 << COUNT_BITS) - 1
PHASE = 2 * COUNT_BITS
POLLS = 1024                # by every thread without an arrival between: a deadlock


@opcode("mbarrier", kind=MEMORY)
def mbarrier(inst, mods):
    operation = mods.need("init", "inval", "arrive", "arrive_drop", "test_wait", "pending_count")
    mods.need("b64")
    if operation == "pending_count":
        read, write = source(inst.operands[1], "b64"), destination(inst.operands[0], "b32")
        return lambda wave: write(wave, (read(wave) & U64.type(COUNT)).astype(U32))
    shared = take_space(mods)
    return {"init": init, "inval": inval, "arrive": arrive, "arrive_drop": arrive,
            "test_wait": test_wait}[operation](inst, mods, shared)


def take_space(mods):
    """Is the address one within shared memory?
    Else it is generic."""
    return mods.flag("shared", "shared::cta")


def barrier_address(inst, operand, shared):
    where = address(operand)
    return where if shared else lambda wave: only_shared(wave, inst, where(wave))


def word(phase, expected, pending):
    return (phase << PHASE | expected << COUNT_BITS | pending) & (1 << 64) - 1


class Barriers:
    """The mbarriers of a wave.
    Their state is in shared memory; this is what else is known.

    valid    which 8-byte words of all shared memory are mbarriers
    ended    word -> stamp of the race detector when its last phase ended
    copying  [(land, words)]: arrivals that come when land() has finished the copies they are for
    polls    how often each lane has asked in vain since the last arrival at any barrier
    asked    which word it asked, and by which instruction
    """

    def __init__(self, wave):
        self.valid = np.zeros(wave.shared.size // 8, bool)
        self.ended = {}
        self.copying = []
        self.polls = np.zeros(wave.live.size, np.int64)
        self.asked = np.zeros(wave.live.size, np.int64)
        self.asked_by = np.zeros(wave.live.size, object)

    def ask_in_vain(self, wave, inst, lanes, words):
        """Lanes go on to poll.
        If all that are not stuck elsewhere have done so for long without an arrival, none will
        come."""
        self.polls[lanes] += 1
        self.asked[lanes], self.asked_by[lanes] = words, inst
        if self.polls[lanes[0]] % POLLS == 0:
            stuck = wave.scheduler.stuck()
            if (self.polls >= POLLS)[wave.live.index[~stuck[wave.live.index]]].all():
                self.deadlock(wave, inst, np.flatnonzero(stuck))

    def deadlock(self, wave, inst, elsewhere):
        """Which threads wait where, in the first block that has any."""
        T, launch = wave.shape[1], wave.launch
        lanes = np.flatnonzero(self.polls >= POLLS)
        lanes = lanes[lanes // T == lanes[0] // T]
        memory = wave.shared_memory(np.dtype(np.uint64)).reshape(-1)
        words = []
        for word in np.unique(self.asked[lanes]):
            mine = lanes[self.asked[lanes] == word]
            state, here = int(memory[word]), self.asked_by[mine[0]]
            line = f" in line {here.location.line}" if here.location else ""
            name = launch.shared_name(int(word) * 8 % wave.shared.shape[1], 8)
            words.append(
                f"{len(mine)} threads (first {wave.thread_of(int(mine[0]))}){line} at the mbarrier "
                f"{name}, to whose phase {state & COUNT} of {state >> COUNT_BITS & COUNT} arrivals "
                f"are missing")
        others = wave.scheduler.barriers.who_waits(elsewhere[elsewhere // T == lanes[0] // T])
        raise launch.error(inst, "deadlock", "deadlock: no thread can go on. Waiting: "
                           + "; ".join(words + ([others] if others else [])), wave, int(lanes[0]))


def barriers(wave):
    if not hasattr(wave, "mbarriers"):
        wave.mbarriers = Barriers(wave)
    return wave.mbarriers


def find(wave, inst, where):
    """-> shared memory as one row of words, and the word of each lane (n,)."""
    memory, index, _ = place(wave, inst, where(wave), 8, "shared")
    missing = ~barriers(wave).valid[index]
    if missing.any():
        i = int(np.flatnonzero(missing)[0])
        raise wave.launch.error(inst, "uninitialised", "there is no mbarrier here: it was never "
                                "initialised, or it was invalidated", wave,
                                int(wave.lanes.index[i]))
    return memory, index


# ---- the operations

def init(inst, mods, shared):
    where = barrier_address(inst, inst.operands[0], shared)
    count = source(inst.operands[1], "u32")

    def run(wave):
        need = count(wave).astype(U64)
        if need.min() < 1 or need.max() > COUNT:
            raise wave.launch.error(inst, "argument", f"an mbarrier counts from 1 to {COUNT} "
                                    f"arrivals, not {int(need.flat[0])}", wave,
                                    int(wave.lanes.index[0]))
        here = where(wave)
        value = need | need << U64.type(COUNT_BITS)
        store(wave, inst, here, 8, "shared", np.broadcast_to(value, np.broadcast_shapes(
            value.shape, here.shape)))
        per_block = wave.shared.shape[1] // 8
        index = wave.per_lane(here).astype(np.int64) // 8 + wave.lanes.blocks * per_block
        barriers(wave).valid[index] = True
    return run


def inval(inst, mods, shared):
    where = barrier_address(inst, inst.operands[0], shared)

    def run(wave):
        _, index = find(wave, inst, where)
        barriers(wave).valid[index] = False
    return run


def arrive(inst, mods, shared):
    """arrive{.noComplete} token, [barrier]{, count}; arrive_drop also takes itself out of the
    phases to come. .noComplete promises that the phase does not end by it."""
    drop, no_complete = "arrive_drop" in inst.modifiers, mods.flag("noComplete")
    if mods.flag("release"):
        mods.need("cta")
    if len(inst.operands) != (3 if no_complete else 2):     # other counts came with sm_90
        mods.refuse()
    write = destination(inst.operands[0], "b64")
    where = barrier_address(inst, inst.operands[1], shared)
    count = source(inst.operands[2], "u32") if no_complete else None

    def run(wave):
        memory, index = find(wave, inst, where)
        lanes = wave.lanes
        many = wave.per_lane(count(wave)).astype(np.int64) if count else \
            np.ones(lanes.count, np.int64)
        tokens, ended = count_down(memory, index, many, drop)
        if no_complete and len(ended):
            raise wave.launch.error(inst, "barrier", "mbarrier.arrive.noComplete has ended a phase",
                                    wave, int(lanes.index[0]))
        end_phases(wave, ended)
        barriers(wave).polls[:] = 0
        write(wave, tokens if wave.flat else tokens.reshape(wave.shape))
    return run


def count_down(memory, index, many, drop=False):
    """Arrivals, lane after lane -> tokens: the words before (n,), and the barriers (words) with a
    phase that has ended."""
    tokens, ended = np.empty(len(index), U64), []
    order = np.argsort(index, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(index[order]) != 0])
    for lanes in np.split(order, starts[1:]):
        here, arrivals = index[lanes[0]], int(many[lanes].sum())
        state = int(memory[here])
        phase, expected, pending = state >> PHASE, state >> COUNT_BITS & COUNT, state & COUNT
        if arrivals < pending and not drop:                 # the usual case, all at once
            before = np.cumsum(many[lanes]) - many[lanes]
            tokens[lanes] = U64.type(state) - before.astype(U64)
            memory[here] = state - arrivals
            continue
        for lane in lanes:
            tokens[lane] = word(phase, expected, pending)
            expected -= int(many[lane]) if drop else 0
            pending -= int(many[lane])
            if pending <= 0:
                phase, pending = phase + 1, expected
                ended.append(int(here))
        memory[here] = word(phase, expected, pending)
    return tokens, ended


def end_phases(wave, ended):
    if ended and wave.shadow:
        stamp = wave.shadow.order.stamp()
        barriers(wave).ended.update(dict.fromkeys(ended, stamp))


def test_wait(inst, mods, shared):
    """test_wait{.parity} predicate, [barrier], token or parity of the phase"""
    parity = mods.flag("parity")
    if mods.flag("acquire"):
        mods.need("cta")
    write = destination(inst.operands[0], "pred")
    where = barrier_address(inst, inst.operands[1], shared)
    queried = source(inst.operands[2], "b32" if parity else "b64")

    def run(wave):
        finish_copies(wave)
        memory, index = find(wave, inst, where)
        phase, wanted = memory[index] >> U64.type(PHASE), wave.per_lane(queried(wave))
        over = (phase & U64.type(1)) != wanted if parity else phase != wanted >> U64.type(PHASE)
        acquire(wave, index, over)
        if not over.all():
            barriers(wave).ask_in_vain(wave, inst, wave.lanes.index[~over], index[~over])
        write(wave, over if wave.flat else over.reshape(wave.shape))
    return run


def acquire(wave, index, over):
    """Order the lanes for which the phase is over after it."""
    shadow, ended = wave.shadow, barriers(wave).ended
    if shadow is None or not over.any():
        return
    stamps = np.array([ended.get(int(i), 0) for i in index[over]])
    lanes = shadow.start + wave.lanes.index[over]
    for last in (shadow.order.block_barrier, shadow.order.warp_barrier):
        last[lanes] = np.maximum(last[lanes], stamps)


# ---- copies that arrive

def finish_copies(wave):
    """A copy takes its time: here, until a thread asks a barrier."""
    known = barriers(wave)
    copying, known.copying = known.copying, []
    for land, index in copying:
        known.polls[:] = 0
        land()
        memory = wave.shared_memory(np.dtype(np.uint64)).reshape(-1)
        end_phases(wave, count_down(memory, index, np.ones(len(index), np.int64))[1])
