"""Graders of k03.
Most inputs are multiples of 1/16, whose fp32 sums are exact in any order.

Outputs start as 7e7, which no sum of these is, so that unwritten places show.
"""

import re

import numpy as np
import pytest

from lab.judge.adversarial import VALUES
from lab.judge.mistakes import mistake, same_report
from lab.judge.pace import whole
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.mistake_rows import different, named

CUDA = ("sum_tree_cuda", "sum_sequential_cuda", "sum_shuffle_cuda", "sum_vector_cuda",
        "sum_atomic_cuda")
SIZES = [(1000, 256), (2048, 1024), (129, 64), (127, 32), (513, 512), (1, 128), (0, 64)]
                                                                                # n, threads
SHARES = [(5003, 2, 128), (1000, 3, 64), (4096, 1, 256), (1023, 5, 32), (1026, 4, 96),
          (129, 1, 32), (4, 2, 32), (3, 2, 32), (2, 1, 32), (1, 1, 64), (0, 2, 32)]
                                                                                # n, blocks, threads
PLACES = (*range(6), 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255)  # of numbers in a block
UNWRITTEN = 7e7
LARGEST_COUNT = 2**20           # a larger one is no count, but what was in the array before
DESCRIBED = {
    "shifted": "numbers around 200", "negative": "negative numbers only",
    "equal": "all numbers of a row equal",
    "uneven": "rows whose numbers differ widely in size",
    "infinite": "-inf in the first row, inf in the second",
    "not_a_number": "a NaN in the third row", "signed_zeros": "0 and -0 among the numbers",
    "denormal": "numbers of 1e-42",
    "unrounded": "numbers that use all 24 bits"}


# ---- numbers, launches, and what goes wrong


def numbers(rng, n):                                # -> (n,) float32
    return rng.integers(1, 10, n).astype(np.float32)


def exact(rng, shape):                              # -> float32
    """Sixteenths up to ±500: no 16-bit type holds them, and a thousand add up exactly in fp32."""
    return (rng.integers(-8000, 8001, shape) / 16).astype(np.float32)


def hard(rng, kind, shape):                         # -> float32
    """Numbers of a kind, in rows; except for `unrounded` their sums are exact."""
    if kind == "unrounded":
        return VALUES[kind](rng, shape)
    x = exact(rng, shape)
    if kind == "shifted":
        x = 200 + np.round(x / 30) / 16
    if kind == "denormal":
        x = 1e-42 * np.round(1 + np.abs(x) / 60)
    if kind == "negative":
        x = -1 - np.abs(x)
    if kind == "equal":
        x[:] = x[:, :1]
    if kind == "uneven":
        x *= 2.0 ** np.linspace(-10, 10, len(x), dtype=np.int32)[:, None]
    if kind == "infinite":
        x[0, 3], x[1, 5] = -np.inf, np.inf
    if kind == "not_a_number":
        x[2, 7] = np.nan
    if kind == "signed_zeros":
        x.flat[::3], x.flat[1::3] = 0.0, -0.0
    return x.astype(np.float32)


def run(subject, name, x, threads):
    """(partial, launch) of a kernel that takes one number a thread."""
    partial = np.full(max(-(-x.size // threads), 1), UNWRITTEN, np.float32)
    shared = 0 if "shuffle" in name else 4 * threads
    array = "warps" if "shuffle" in name else "a"
    with same_report("no_barrier", f"Threads read numbers of `{array}` that other warps write: all "
                     f"must wait in between. Not all reach a barrier inside an `if`.",
                     kind="race", array=array), \
            same_report("in_one_round", "In a round, thread t reads a[t] and a[t + s], which no "
                        "other thread writes; before the next round, all must wait.", kind="race",
                        array="a", words="__syncwarp"), \
            same_report("every_lane", "Only lane 0 has the sum of its warp: it alone may store, "
                        "each warp's in a place of its own.",
                        kind="race", array="warps", words="in the same instruction"):
        return partial, subject.launch(name, partial.size, threads, (x, partial, x.size),
                                       shared_mem=shared)


def by_blocks(x, threads):                          # -> (blocks, threads)
    x = x.reshape(-1).astype(np.float64)
    return np.pad(x, (0, -x.size % threads if x.size else threads)).reshape(-1, threads)


def of_values(exercise, a):                         # (..., n) -> {mistake: (sentence, (...))}
    rows = {
        "flushed": ("replaces numbers below 1e-38 by 0",
                    np.where(np.abs(a) < 2.0**-126, 0, a).sum(-1)),
        "fractions_dropped": ("drops the fractions of the numbers",
                              np.trunc(np.nan_to_num(a, posinf=0, neginf=0)).sum(-1)),
        "negatives_left_out": ("leaves out negative numbers", np.maximum(a, 0).sum(-1)),
        "magnitudes": ("adds absolute values", np.abs(a).sum(-1)),
        "largest": ("returns the largest number, not the sum", a.max(-1)),
        "finite_only": ("leaves NaN or infinities out", np.where(np.isfinite(a), a, 0).sum(-1))}
    return named(exercise, rows)


def counts_of_blocks(subject, kernel, threads):
    """What a block's sum makes of one number alone, for some of its numbers."""
    places = [k for k in PLACES if k < threads]
    x = np.zeros((len(places), threads), np.float32)
    x[range(len(places)), places] = 1
    partial, _ = run(subject, kernel, x, threads)
    return [(f"number {k} of a block", times, "") for k, times in zip(places, partial, strict=True)]


def not_once(counts, got):
    """{mistake: (sentence, what it gives)} of the first number that is not counted once.

    counts: (number, times, where) of each;  got: the wrong numbers, which this explains
    """
    for number, times, where in counts:
        if times != 1 and abs(times) < LARGEST_COUNT:
            return {"not_once": (f"counts {number} {times:g} times{where}", got)}
    return {}


def right(subject, agree, exercise, kernel, x, threads, mistakes, what="", precision="exact"):
    """The partial sums are right.

    mistakes: {mistake: (sentence, what it gives, from (blocks, threads))}
    """
    a = by_blocks(x, threads)
    partial, launch = run(subject, kernel, x, threads)
    with np.errstate(invalid="ignore"):
        rows = {known: (sentence, give(a)) for known, (sentence, give) in mistakes.items()} | {
            "thread_0": ("returns only the number of thread 0", a[:, 0])}
        if np.isfinite(a).all() and precision == "exact" and (partial != a.sum(1)).any():
            rows |= not_once(counts_of_blocks(subject, kernel, threads), partial)
        agree(partial, a.sum(1), precision,
              f"{exercise}, {what or f'{x.size} number(s)'} in blocks of {threads}",
              lambda index: f"the sum of block {index[0]}",
              different(of_values(exercise, a) | named(exercise, rows), a.sum(1)),
              unwritten=UNWRITTEN)
    return launch


def every_case(subject, agree, rng, exercise, kernel, mistakes):
    """Every size, then every kind of numbers."""
    for n, threads in SIZES:
        right(subject, agree, exercise, kernel, exact(rng, n), threads, mistakes)
    for kind, what in DESCRIBED.items():
        right(subject, agree, exercise, kernel, hard(rng, kind, (5, 128)), 128, mistakes, what,
              "float32" if kind == "unrounded" else "exact")


# ---- counting


def test_predict_tree_warps(subject, reference, rng):
    _, launch = run(reference, "sum_tree_cuda", exact(rng, 256), 256)
    want = launch.requests("store", "shared") - 8       # the warps also store what they loaded
    got = subject.predict_tree_warps()
    assert isinstance(got, (int, float)), mistake(
        "no_count", f"predict_tree_warps: expected a whole number, got {got!r}")
    known, why = {
        12: ("neighbours", "12 would be enough if neighbouring threads added."),
        64: ("all_warps", "64 counts every warp in every round; from s = 32 on, some warps have no "
                          "thread that adds."),
        255: ("additions", "255 is the number of additions; a warp is counted once, however many "
                           "lanes add."),
        40: ("five_rounds", "40 is the total of the rounds up to s = 16; three more follow."),
    }.get(got, ("other", "For each s, in how many of the 8 warps is there a multiple of 2 * s?"))
    assert got == want, mistake(
        known, f"predict_tree_warps: the simulator does not count {got} busy warps. {why}", why)


def test_predict_resident_blocks(subject):
    from lab.simulator import occupancy
    from lab.simulator.nvrtc import Resources

    want = occupancy(Resources(40, 0, 0, 0, 0), 256, gpu="H200").blocks
    got = subject.predict_resident_blocks()
    assert isinstance(got, (int, float)), mistake(
        "no_count", f"predict_resident_blocks: expected a whole number, got {got!r}")
    known, why = {
        8: ("warps_alone", "8 is what the warps allow; the registers allow fewer."),
        32: ("blocks_alone", "32 is the limit of blocks, but 32 of these would need 256 warps."),
        7: ("rounded_up", "There are not enough registers for a seventh block, and only whole "
                          "blocks are resident."),
        48: ("warps_counted", "48 is the number of resident warps; a block has 8."),
        1638: ("threads_counted", "1638 is the number of threads that the registers allow; a block "
                                  "has 256."),
    }.get(got, ("other", "Count the blocks that each limit allows; the smallest number decides.")
          if got % 1 == 0 else ("no_whole", "Only whole blocks are resident."))
    assert got == want, mistake(
        known, f"predict_resident_blocks: the limits do not allow exactly {got}. {why}", why)


# ---- CUDA


def rounds(a, distances, other=lambda t, s: t + s, keep=1):     # (blocks, threads) -> (blocks,)
    """The result of rounds in which the threads t < s add what a[other(t, s)] has."""
    a = a.copy()
    for s in distances:
        t = np.arange(s)
        a[:, t] = keep * a[:, t] + a[:, other(t, s)]
    return a[:, 0]


def halves(a, least=1, by=2):
    """The distances of the rounds, from half a block on."""
    s = a.shape[1] // 2
    while s >= least:
        yield s
        s //= by


ROUNDS = {
    "not_stored": ("writes no result", lambda a: np.full(len(a), UNWRITTEN)),
    "zero": ("writes 0", lambda a: np.zeros(len(a))),
    "added_to_old": ("adds its sum to what partial held before, with += in place of =",
                     lambda a: (np.float32(UNWRITTEN) + a.sum(1).astype(np.float32)).astype(float)),
    "no_last_round": ("leaves out the last round, s = 1", lambda a: a[:, ::2].sum(1)),
    "quarter": ("starts with s = a quarter of the block and so leaves out the upper half",
                lambda a: a[:, :a.shape[1] // 2].sum(1)),
    "blocks_of_256": ("assumes blocks of 256 threads; blockDim.x says how many there are",
                      lambda a: a[:, :256].sum(1)),
    "powers": ("adds numbers 0, 1, 2, 4, 8, … of a block alone: s has to fall from blockDim.x / 2, "
               "the threads t < s have to add, what they add is in a, not in x, and each round "
               "leaves its sums in a",
               lambda a: rounds(a, [*halves(a)][::-1])),
    "a_of_s": ("adds a[s] in each thread, not a[t + s]",
               lambda a: rounds(a, halves(a), lambda t, s: s + 0 * t)),
    "half_block": ("adds a[t + blockDim.x / 2] in each round, not a[t + s]",
                   lambda a: rounds(a, halves(a), lambda t, s: t + a.shape[1] // 2)),
    "replaced": ("replaces a[t] by a[t + s] and does not add it",
                 lambda a: rounds(a, halves(a), keep=0)),
    "by_one": ("lowers s by 1 after each round; it must halve",
               lambda a: rounds(a, range(a.shape[1] // 2, 0, -1))),
    "by_four": ("divides s by 4 after each round; it must halve",
                lambda a: rounds(a, halves(a, by=4))),
    "warp_left": ("ends while 32 numbers are left: the rounds s = 16, 8, 4, 2, 1 are missing",
                  lambda a: rounds(a, halves(a, 32)))}


def test_sum_sequential_cuda(subject, agree, rng):
    every_case(subject, agree, rng, "sum_sequential_cuda", "sum_sequential_cuda", ROUNDS)


def test_sum_sequential_cuda__work(subject, reference, agree, rng):
    x, blocks = exact(rng, 2048), 8
    _, launch = run(subject, "sum_sequential_cuda", x, 256)
    conflicts = launch.bank_conflicts()
    assert conflicts == 1, mistake(
        "conflicts", f"sum_sequential_cuda: shared memory takes {conflicts:.3g} times the fewest "
        f"wavefronts: in each round the lanes that add should read neighbouring words")
    warps = launch.requests("store", "shared") // blocks - 8        # 8 store what they load
    assert warps <= 12, mistake(
        "busy_warps", f"sum_sequential_cuda: over all rounds {warps} warps of a block add; 12 are "
        f"enough. The threads t < s should add.")
    waits = launch.barriers // (8 * blocks)
    assert waits <= 9, mistake(
        "barriers", f"sum_sequential_cuda: each warp waits at {waits} barriers; 9 are enough: one "
        f"after loading and one a round")
    loads = launch.requests("load", "shared") // blocks             # two a round, and a[0]
    assert loads <= 40, mistake(
        "one_thread", f"sum_sequential_cuda: a block makes {loads} loads of shared memory; 25 are "
        f"enough: in each round, s threads add the upper half to the lower half")
    same_work("sum_sequential_cuda", launch, run(reference, "sum_sequential_cuda", x, 256)[1])
    same_work("sum_sequential_cuda in blocks of 512", *(
        run(side, "sum_sequential_cuda", x, 512)[1] for side in (subject, reference)))
    right(subject, agree, "sum_sequential_cuda", "sum_sequential_cuda", exact(rng, 40_000), 1024,
          ROUNDS)


def warps(a):                                       # (blocks, threads) -> (blocks, warps, 32)
    return a.reshape(len(a), -1, 32)


def shuffled(v, steps=(16, 8, 4, 2, 1)):            # (..., 32) -> (..., 32)
    """What the lanes of a warp have after these shuffles."""
    lane = np.arange(32)
    for away in steps:
        v = v + v[..., np.where(lane + away < 32, lane + away, lane)]
    return v


def with_old_lanes(a, keep=0):                      # (blocks, threads) -> (blocks,)
    """The result where lanes of the first warp that get no warp's sum keep what they have. keep:
    how much of it those keep to which a sum is added"""
    v = shuffled(warps(a))
    first = v[:, 0].copy()
    first[:, :v.shape[1]] = keep * first[:, :v.shape[1]] + v[..., 0]
    return shuffled(first)[:, 0]


def stored_by(lane, a):                             # (blocks, threads) -> (blocks,)
    """The result where warp w stores what lane(w) of it has."""
    v = shuffled(warps(a))
    w = np.arange(v.shape[1])
    return v[:, w, lane(w)].sum(1)


SHUFFLES = {
    "not_stored": ("returns nothing, so that its kernel stores nothing: a `return` is missing",
                   lambda a: np.full(len(a), UNWRITTEN)),
    "zero": ("returns 0, as `return {};` does, or shuffled values replace v and are not added, or "
             "the first warp takes none of the sums in `warps`, of which a block has "
             "blockDim.x / 32", lambda a: np.zeros(len(a))),
    "replaced": ("replaces v by what the first five shuffles bring and does not add it",
                 lambda a: a[:, 31::32].sum(1)),
    "old_lanes": ("adds the sums of the warps to what other lanes of the first warp still have; "
                  "lanes without a warp must have 0", with_old_lanes),
    "first_warp": ("gives the sum of only the first warp", lambda a: a[:, :32].sum(1)),
    "first_lanes": ("adds only lane 0 of each warp", lambda a: a[:, ::32].sum(1)),
    "last_warp": ("leaves out the last warp", lambda a: warps(a)[:, :-1].sum((1, 2))),
    "no_16": ("leaves out the shuffle with away = 16", lambda a: warps(a)[..., :16].sum((1, 2))),
    "no_1": ("leaves out the shuffle with away = 1", lambda a: warps(a)[..., ::2].sum((1, 2))),
    "no_1_twice": ("leaves out the shuffles with away = 1, of the lanes and of the warps",
                   lambda a: warps(a)[:, ::2, ::2].sum((1, 2))),
    "kept_v": ("adds the sums of the warps to the old v of the first warp; they replace it",
               lambda a: with_old_lanes(a, keep=1)),
    "lane_31": ("stores what lane 31 of each warp has; lane 0 has the warp's sum",
                lambda a: stored_by(lambda w: 0 * w + 31, a)),
    "lane_of_warp": ("stores what lane w of warp w has; lane 0 has the warp's sum",
                     lambda a: stored_by(lambda w: w, a)),
    "own_warp": ("takes warps[warp] in each lane of the first warp; lane l takes warps[l]",
                 lambda a: a[:, :32].sum(1) * a.shape[1] // 32),
    "upwards": ("shuffles upwards, so that lane 0 gets nothing; __shfl_down_sync brings what lane "
                "l + away has", lambda a: 1024 * a[:, 0]),
    "exchanged": ("exchanges v and away, so that away is added: __shfl_down_sync(mask, v, away)",
                  lambda a: a[:, 0] + 62),
    "by_one": ("lowers away by 1 after each shuffle; it must halve",
               lambda a: shuffled(warps(a), range(16, 0, -1))[..., 0].sum(1)),
    "eight_warps": ("adds at most 8 warps", lambda a: a[:, :256].sum(1)),
    "sixteen_warps": ("adds at most 16 warps", lambda a: a[:, :512].sum(1))}


def test_block_sum_cuda(subject, agree, rng):
    every_case(subject, agree, rng, "block_sum_cuda", "sum_shuffle_cuda", SHUFFLES)


def test_block_sum_cuda__work(subject, reference, agree, rng):
    x, blocks = exact(rng, 2048), 8
    _, launch = run(subject, "sum_shuffle_cuda", x, 256)
    asked = sum(launch.requests(op, "shared") for op in ("load", "store")) // blocks
    known, meaning = (
        ("one_thread", "one thread reads what all the others stored") if asked > 64 else
        ("one_place", "the warps add in one place, one after the other: each has a place of its "
                      "own, and the first warp adds up those")
        if "shared atomic" in launch.launches[0]["totals"]["memory"] else
        ("no_shuffles", "use shuffles within a warp; each warp stores one number"))
    assert asked <= 16, mistake(
        known, f"block_sum_cuda: the 8 warps make {asked} requests of shared memory; 9 are enough: "
               f"{meaning}", meaning)
    waits = launch.barriers // (8 * blocks)
    assert waits, mistake(
        "no_barrier", "block_sum_cuda has no barrier between what the warps store and what the "
                      "first warp loads")
    assert waits <= 2, mistake(
        "barriers", f"block_sum_cuda: each warp waits at {waits} barriers; one is enough")
    same_work("block_sum_cuda", launch, run(reference, "sum_shuffle_cuda", x, 256)[1],
              limits={"warp instructions": 2})
    same_work("block_sum_cuda in blocks of 512", *(
        run(side, "sum_shuffle_cuda", x, 512)[1] for side in (subject, reference)))
    right(subject, agree, "block_sum_cuda", "sum_shuffle_cuda", exact(rng, 40_000), 1024, SHUFFLES)


def counts_of_shares(subject, n, blocks, threads):
    """What the shares make of one number alone, for some of n numbers."""
    places = {*range(5), 4 * threads, 4 * blocks * threads, *range(n // 4 * 4 - 4, n)}
    for k in sorted(places & {*range(n)}):
        x, sums = np.zeros(n, np.float32), np.zeros(blocks * threads, np.float32)
        x[k] = 1
        subject.launch("shares_cuda", blocks, threads, (x, sums, n))
        owners = np.flatnonzero(sums)
        yield f"x[{k}]", sums.sum(), (
            f" (in the share of thread{'s' * (len(owners) > 1)} {', '.join(map(str, owners[:4]))}"
            f"{' and others' * (len(owners) > 4)})" if len(owners) else "")


def shares(subject, agree, x, blocks, threads, what="", precision="exact"):
    """All shares of thread_sum_cuda together are the sum, and each number is read once."""
    n, all_threads = x.size, blocks * threads
    sums = np.full(all_threads, UNWRITTEN, np.float32)
    launch = subject.launch("shares_cuda", blocks, threads, (x, sums, n))
    x = x.reshape(-1).astype(np.float64)
    fours, first = n // 4 * 4, np.arange(n) < 4 * all_threads
    tail, name = x[fours:].sum(), "thread_sum_cuda"
    before = n - 1 - np.arange(threads, all_threads)    # the same counted from the end, by the grid
    before = before[(np.arange(threads, all_threads) % threads < n % 4) & (before >= 0)]
    whole = x[:fours].sum()
    rows = {
        "tail_left_out": ("leaves out the last n % 4 numbers", whole),
        "first_for_last": ("takes the first n % 4 numbers for the last", whole + x[:n % 4].sum()),
        "one_round": ("stops each thread after its first four",
                      x[:fours][first[:fours]].sum() + tail),
        "one_of_four": ("takes only the first of each four", x[:fours:4].sum() + tail),
        "product_of_four": ("multiplies the four where it should add them",
                            x[:fours].reshape(-1, 4).prod(1).sum() + tail),
        "tail_by_blocks": ("adds the last n % 4 numbers in every block: let i run over the whole "
                           "grid", whole + blocks * tail),
        "tail_and_before": ("adds the last n % 4 numbers in every block, or numbers before them",
                            x.sum() + x[before].sum()),
        "tail_by_all": ("adds the last n % 4 numbers in every thread", whole + all_threads * tail),
        "one_too_many": ("adds one number too many at the end",
                         x.sum() + x[max(fours - 1, 0):fours].sum()),
        "short_n": ("keeps n in 16 bits", x[:n % 2**16].sum()),
        "zero": ("returns 0, as `return {};` does", 0.0),
        "not_stored": ("returns nothing: a `return` is missing", UNWRITTEN * all_threads),
        "int_sum": ("keeps its sum in an int, which drops the fractions",
                    sums.sum(dtype=np.float64) if (sums == np.trunc(sums)).all()
                    and abs(sums.sum(dtype=np.float64) - x.sum()) < n else np.nan)}
    got = sums.astype(np.float64).sum()
    if np.isfinite(x).all() and precision == "exact" and got != x.sum():
        rows |= not_once(counts_of_shares(subject, n, blocks, threads), got)
    with np.errstate(invalid="ignore"):
        agree(got, x.sum(), precision,
              f"{name}, {what or f'{n} number(s)'} by {blocks} block(s) of {threads}",
              lambda index: "the sum of all shares",
              different(of_values(name, x if n else np.zeros(1)) | named(name, rows), x.sum()))
    assert launch.bytes("load") == 4 * n, mistake(
        "read_again", f"{name} reads {launch.bytes('load')} bytes, expected {4 * n}: each number "
        f"once")


def test_thread_sum_cuda(subject, agree, rng):
    for n, blocks, threads in SHARES:
        shares(subject, agree, exact(rng, n), blocks, threads)
    for kind, what in DESCRIBED.items():
        shares(subject, agree, hard(rng, kind, (5, 131)), 2, 32, what,
               "float32" if kind in ("unrounded", "uneven") else "exact")


def test_thread_sum_cuda__what_follows(subject, rng):
    """What follows the last whole four: a thread each."""
    for n in (1, 2, 3, 257, 258, 259):
        x = np.zeros(n, np.float32)
        tail = rng.permutation(9)[:n % 4] + 1
        x[n - n % 4:] = tail
        sums = np.full(128, UNWRITTEN, np.float32)
        subject.launch("shares_cuda", 2, 64, (x, sums, n))
        got, want = sorted(sums[sums != 0].tolist()), sorted(tail.tolist())
        assert got == want, mistake(
            "tail_by_one", f"thread_sum_cuda, {n} numbers by 2 blocks of 64, all 0 but the last "
            f"{n % 4}, {tail.tolist()}: the shares that are not 0 are {got}, expected {want}: the "
            f"last n % 4 numbers have a thread each")


def test_thread_sum_cuda__work(subject, reference, agree, rng):
    x, sums = exact(rng, 16_384), np.zeros(1024, np.float32)
    args = 8, 128, (x, sums, x.size)
    launch = subject.launch("shares_cuda", *args)
    counts, enough = launch.memory("global", "load"), x.size // 128
    assert counts["requests"] == enough, mistake(
        "one_by_one", f"thread_sum_cuda makes {counts['requests']} load requests for 16,384 "
        f"numbers; {enough} are enough: take four at once, as one float4")
    assert counts["transactions"] == counts["ideal"], mistake(
        "far_apart", f"thread_sum_cuda: one load request touches "
        f"{launch.sectors_per_request('load'):g} sectors; its bytes fit in 16. Give neighbouring "
        f"threads neighbouring groups of four.")
    same_work("thread_sum_cuda", launch, reference.launch("shares_cuda", *args))
    args = 8, 128, (exact(rng, 16_387), sums, 16_387)
    same_work("thread_sum_cuda, 16,387 numbers",
              *(side.launch("shares_cuda", *args) for side in (subject, reference)))
    shares(subject, agree, exact(rng, 140_001), 4, 256)


# ---- the course's own launchers


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_reduce_sum(subject, agree, rng, dtype):
    import torch

    for shape in ((), (1,), (127,), (3, 43), (1000,), (2, 5, 1001), (70_001,)):
        x = 1000 + torch.from_numpy(np.asarray(rng.standard_normal(shape)))
        x = x.to(getattr(torch, dtype))
        want = x.double().sum().item()              # beyond 65,504, where fp16 ends
        for name in ("reduce_sum", "reduce_sum_torch"):
            got = getattr(subject, name)(x)
            assert got.dtype == torch.float32 and got.shape == ()
            agree(got, want, "float32", f"{name} of {dtype} {shape}")


def test_reduce_sum_cuda_of_any_size(subject, agree, rng):
    import torch

    for n in (1, 3, 127, 129, 1000, 5003, 70_001):
        x = torch.from_numpy(numbers(rng, n))
        for kernel in CUDA if n < 2000 else CUDA[2:]:
            agree(subject.reduce_sum_cuda(x, kernel), x.double().sum().item(), "exact",
                  f"{kernel} of {n} numbers")


def test_cancelling_numbers(subject):
    """The error is small against the sum of magnitudes, where the sum itself is small."""
    import torch

    x = torch.linspace(-1, 1, 10_001)
    for got in (subject.reduce_sum(x), subject.reduce_sum_cuda(x)):
        assert abs(got.item() - x.double().sum().item()) <= 1e-6 * x.abs().sum()


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_special_values(subject, value):
    import torch

    x = torch.ones(1001)
    x[500] = float(value)
    for got in (subject.reduce_sum(x), subject.reduce_sum_cuda(x)):
        assert torch.equal(got.nan_to_num(7), x[500].nan_to_num(7))


def test_nothing_to_add(subject):
    import torch

    for x in (torch.ones(0), torch.ones(3, 0)):
        assert subject.reduce_sum(x) == subject.reduce_sum_torch(x) == 0
        assert all(subject.reduce_sum_cuda(x, kernel) == 0 for kernel in CUDA)


def test_what_the_launchers_refuse(subject):
    import torch

    def refuses(says, function, *args):
        with pytest.raises(Raised) as refusal:
            function(*args)
        assert says in refusal.value.text

    for launcher in (subject.reduce_sum, subject.reduce_sum_cuda):
        refuses("float64", launcher, torch.ones(5).double())
        refuses("strides (1, 5)", launcher, torch.ones(4, 5).T)
        refuses("strides (2,)", launcher, torch.ones(8)[::2])
    refuses("torch.float16", subject.reduce_sum_cuda, torch.ones(4).half())


def test_reduce_sum_cuda_wants_sixteen_bytes():
    """Here and not in the child, where a slice begins at an address of its own."""
    import torch

    from layer1_kernels import reduce_sum_cuda

    with pytest.raises(ValueError, match="expected a multiple of 16 bytes"):
        reduce_sum_cuda(torch.ones(9)[1:])


def test_the_public_sums_have_no_atomics():
    """Their order is fixed by n, whatever ends first."""
    from layer1_kernels.bench.k03_reduce import shipped
    from layer1_kernels.k03_reduce import KERNELS

    atomic = re.compile(r"\b(atom|red)\.")
    texts = {name: found.ptx for name, found in shipped().items()}
    texts["sum_vector_cuda"] = KERNELS.get("sum_vector_cuda").ptx
    assert not [name for name, text in texts.items() if atomic.search(text)]
    assert atomic.search(KERNELS.get("sum_atomic_cuda").ptx)


@pytest.mark.slow
def test_shipped_for_hopper():
    from layer1_kernels.bench.k03_reduce import shipped
    from layer1_kernels.k03_reduce import KERNELS

    for name, found in shipped().items():
        assert found.spills == 0 and not found.serialised, found
        assert found.shared <= 227 * 1024, found
        assert set(found.loads) == {16}, f"{name}: not by 16 bytes\n{found}"
    for kernel in ("sum_vector_cuda", "sum_atomic_cuda"):
        resources = KERNELS.get(kernel).resources
        assert resources.spill_stores == resources.spill_loads == 0, resources


@pytest.mark.gpu
@pytest.mark.parametrize("n", [0, 1, 127, 1000, 70_001, 2**22 + 3])
def test_every_kernel_on_the_device(n):
    import torch

    from layer1_kernels import reduce_sum, reduce_sum_cuda

    x = 1 + torch.rand(n, device="cuda")
    want = x.double().sum().item()
    for kernel in CUDA:
        assert abs(reduce_sum_cuda(x, kernel).item() - want) <= 2e-5 * want, kernel
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        given = x.to(dtype)
        want = given.double().sum().item()
        assert abs(reduce_sum(given).item() - want) <= 2e-5 * want, dtype
        assert torch.equal(reduce_sum(given), reduce_sum(given))


@pytest.mark.gpu
def test_thread_sum_cuda_speed(pace):
    pace("reduce_sum_cuda", whole("float32", 10, 1 << 27), "sum_vector_cuda")
