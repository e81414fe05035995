"""Graders of o03. The oracle of a timeline is a grid of ticks, asked tick by tick; a diagnosis is
compared with the cause that was built into a profile: measured, made by the model, or by hand."""

import json
import random
from itertools import pairwise

import pytest

from day02_overview import CAUSES, Profile, load_profiles, model, where_time_goes
from day02_overview import record_profiles as rec
from day02_overview.o04_training_math import sent_by

WHATS = ("busy", "input", "host", "rank", "wire")
PEAK, BANDWIDTH = 100, 10                       # FLOP/s and byte/s: the ridge is at 10 FLOP/byte


def profile(wall, *spans, ranks=1, name="by hand"):
    return Profile(name, "by a model", "written by hand", ranks, wall, PEAK, BANDWIDTH, spans)


def given(subject, p):
    return subject.make("day02_overview:Profile", p.name, p.made, p.how, p.ranks, p.wall, p.peak,
                        p.bandwidth, [list(s) for s in p.spans])


def scattered(seed):
    """Spans on whole seconds, on 1 to 3 ranks; kernels overlap, collectives of a rank do not."""
    draw, ranks, spans = random.Random(seed), seed % 3 + 1, []
    for rank in range(ranks):
        for kind, count in (("kernel", 4), ("input", 2), ("host", 2)):
            for _ in range(count):
                start = draw.randrange(36)
                spans.append((rank, kind, kind, start, draw.randint(start + 1, 40)
                              if kind == "input" else start + draw.randint(1, 5)))
        for n in range(2):                      # 0 to 19 and 20 to 39
            start = 20 * n + draw.randrange(12)
            spans.append((rank, "collective", f"sum {n}", start, 20 * n + 15 + draw.randrange(3)))
    draw.shuffle(spans)
    return profile(42, *spans, ranks=ranks, name=f"profile {seed}")


def drawn(rng, count):
    """Small profiles on eighths of a second: ranks without a kernel, kernels that begin together,
    touch or lie inside one another, useless batches, collectives that all ranks enter at once."""
    for n in range(count):
        ranks, wall = int(rng.integers(1, 4)), int(rng.integers(8, 41))
        spans = []
        for rank in range(ranks):
            for kind in ("kernel", "kernel", "input", "host")[:int(rng.integers(0, 5))]:
                for start, length in rng.integers((0, 1), (wall, 9), (2, 2)).tolist():
                    spans.append((rank, kind, kind, start / 8, min(start + length, wall) / 8,
                                  *(rng.integers(0, 5, 4) * (kind == "kernel")).tolist()))
        half = wall // 2
        for k in range(int(rng.integers(0, 3))):
            ends = half * k + half
            spans += [(rank, "collective", f"sum {k}", int(rng.integers(half * k, ends - 1)) / 8,
                       ends / 8) for rank in range(ranks)]
        spans = [s if len(s) == 5 else (*s[:7], *sorted(s[7:])[:1], 0) if rng.random() < 0.5 else
                 (*s[:6], s[6] + s[7] + s[8], *s[7:]) for s in spans]
        order = rng.permutation(len(spans))
        yield profile(wall / 8, *(spans[i] for i in order), ranks=ranks, name=f"drawing {n}")


STREAMS = profile(10, (0, "kernel", "long", 1, 8), (0, "kernel", "inside", 2, 3),
                  (0, "kernel", "after it", 5, 9), name="two streams")
APART = profile(10, (1, "kernel", "k", 0, 6), (0, "kernel", "k", 2, 5), (0, "input", "b", 0, 2),
                (0, "collective", "sum", 5, 7), (1, "collective", "sum", 6, 7), ranks=2,
                name="two ranks")
MEET = profile(12, (0, "kernel", "k", 0, 2), (0, "collective", "sum", 2, 9),
               (1, "kernel", "k", 0, 6), (1, "collective", "sum", 6, 9),
               (0, "input", "b", 9, 11), (0, "kernel", "k", 10, 12),
               (1, "kernel", "beside the next sum", 9, 11), (1, "host", "launch", 11, 12),
               ranks=2, name="two ranks that meet")
BY_HAND = (STREAMS, APART, MEET, *map(scattered, range(6)))


def ticks(p):
    """{(rank, second): what}, for a profile on whole seconds."""
    found = {}
    for rank in range(p.ranks):
        for second in range(int(p.wall)):
            here = {s.kind: s for s in p.spans if s.rank == rank and s.start <= second < s.end}
            kind = next((k for k in ("kernel", "input", "collective") if k in here), "host")
            if kind == "collective":
                name = here[kind].name
                there = [s.rank for s in p.spans if s.kind == kind and s.name == name
                         and s.start <= second]
                kind = "wire" if len(there) == p.ranks else "rank"
            found[rank, second] = {"kernel": "busy"}.get(kind, kind)
    return found


def together(mistakes):
    """{mistake: answer}; mistakes with one answer are one, since nobody can tell them apart."""
    names = {}
    for name, answer in mistakes.items():
        names.setdefault(answer, []).append(name)
    return {" or ".join(of): answer for answer, of in names.items()}


# ---- the device at work


def covered_seconds(p, reset=True, key=lambda s: s.start, latest=max, least=0):
    """Busy seconds as the exercise adds them up, by mistakes: `covered` is not reset for a rank,
    kernels come in another order, or it is not the latest end; an addition is `least` or more."""
    busy = covered = 0
    for rank in range(p.ranks):
        covered = 0 if reset else covered
        kernels = [s for s in p.spans if s.rank == rank and s.kind == "kernel"]
        for s in sorted(kernels, key=key):
            busy += max(least, s.end - max(s.start, covered))
            covered = latest(covered, s.end)
    return busy


@pytest.mark.parametrize("p", BY_HAND, ids=lambda p: p.name)
def test_busy_share(subject, agree, p):
    found, kernels = ticks(p), [s for s in p.spans if s.kind == "kernel"]
    whole = p.ranks * p.wall
    busy = sum(what == "busy" for what in found.values())
    at_any = len({second for (_, second), what in found.items() if what == "busy"})
    of_0 = sum(what == "busy" for (rank, _), what in found.items() if rank == 0)
    ends = {r: max((s.end for s in p.spans if s.rank == r), default=0) for r in range(p.ranks)}
    agree(subject.busy_share(given(subject, p)), busy / whole, "float64",
          what=f"busy_share of {p.name}", mistakes=together({
        "two kernels at once count twice": sum(s.end - s.start for s in kernels) / whole,
        "the ranks are not told apart: one that works covers the others": at_any / p.wall,
        "the busy time of all ranks is divided by the wall time of one": busy / p.wall,
        "what is covered is not set back to 0 for the next rank":
            covered_seconds(p, reset=False) / whole,
        "kernels are taken as they stand in the list, not in the order of their starts":
            covered_seconds(p, key=lambda s: 0) / whole,
        "kernels are taken in the order of their ends, not of their starts":
            covered_seconds(p, key=lambda s: s.end) / whole,
        "covered becomes the end of the last kernel, not the latest end so far":
            covered_seconds(p, latest=lambda covered, end: end) / whole,
        "a kernel inside another takes time off: what it adds is below 0":
            covered_seconds(p, least=-p.wall) / whole,
        "seconds are given, not a share of the time": busy,
        "the share in which no kernel runs is given": 1 - busy / whole,
        "rank 0 alone is looked at": of_0 / p.wall,
        "rank 0's busy time is divided by all ranks' time": of_0 / whole,
        "a rank's time is taken to end with its last span, before the profile does":
            busy / sum(ends.values()),
        "the time from the first kernel to the last one counts, gaps included":
            sum(max(s.end for s in kernels if s.rank == r) - min(
                s.start for s in kernels if s.rank == r) for r in range(p.ranks)) / whole,
        "every span counts, not only kernels":
            len({(s.rank, t) for s in p.spans for t in range(int(s.start), int(s.end))}) / whole}))


def test_busy_share__unseen(unseen, rng):
    for p in drawn(rng, 60):
        unseen("busy_share", lambda side, p=p: given(side, p), shown=str(p.spans))


SAID = {
    ("busy", "wire"): "a collective beside a kernel costs nothing: it is hidden",
    ("busy", "input"): "a batch that loads beside a kernel costs nothing: it is hidden",
    ("busy", "rank"): "a rank whose kernel runs is not waiting, whoever is late",
    ("rank", "wire"): "the last rank has not entered this collective yet; nothing is sent",
    ("wire", "rank"): "all ranks are inside this collective by now, and the wires decide",
    ("rank", "host"): "this rank is inside a collective; the host has nothing to prepare",
    ("wire", "host"): "this rank's collective is under way; the host has nothing to prepare",
    ("input", "host"): "the host waits for the batch as well; loading is what is slow",
    ("host", "busy"): "no kernel runs here",
    ("input", "busy"): "no kernel runs here; the rank awaits its batch",
    ("rank", "busy"): "no kernel runs here; the rank is inside a collective",
    ("wire", "busy"): "no kernel runs here; the rank is inside a collective",
    ("busy", "host"): "a kernel runs here, whatever the host does",
    ("input", "rank"): "input comes before the collectives: this rank awaits its batch as well",
    ("input", "wire"): "input comes before the collectives: this rank awaits its batch as well",
    ("host", "input"): "the rank awaits no batch here, and is in no collective",
    ("host", "rank"): "this rank is in no collective here",
    ("host", "wire"): "this rank is in no collective here",
    ("rank", "input"): "the rank awaits no batch here; it is inside a collective",
    ("wire", "input"): "the rank awaits no batch here; it is inside a collective",
}


@pytest.mark.parametrize("p", (MEET, *BY_HAND), ids=lambda p: p.name)
def test_timeline(subject, p):
    got = subject.timeline(given(subject, p))
    assert isinstance(got, list) and len(got) == p.ranks and all(
        isinstance(lane, list) for lane in got), \
        f"timeline: got {str(got)[:80]}, expected a list of {p.ranks} lists, one for each rank"
    want = ticks(p)
    for rank, lane in enumerate(got):
        at = 0
        for piece in lane:
            assert isinstance(piece, (tuple, list)) and len(piece) == 3 and piece[2] in WHATS, \
                f"timeline: got the piece {piece!r}, expected (start, end, one of {WHATS})"
            start, end, what = piece
            left_out = {want[rank, second] for second in range(int(at), int(start))}
            why = ("; the time between is the host's, also where nothing runs, {}"
                   if left_out == {"host"} else "; a piece is left out" if left_out else
                   "; the pieces of two ranks are in one list" if at == p.wall else "")
            assert start == at, (f"timeline of {p.name}, rank {rank}: a piece begins at {start} s, "
                                 f"the one before ended at {at} s{why}")
            for second in range(int(start), int(end)):
                right = want[rank, second]
                assert what == right, (
                    f"timeline of {p.name}, rank {rank}, at {second} s: got {what!r}, expected "
                    f"{right!r}: {SAID.get((right, what), 'look at the order of the four cases')}")
            at = end
        assert at == p.wall, f"timeline of {p.name}, rank {rank}: it ends at {at} s, not {p.wall} s"


def painted(lane):
    """A rank's pieces without those of no length, neighbours of one `what` as one piece."""
    pieces = []
    for start, end, what in lane:
        if pieces and pieces[-1][2] == what and abs(pieces[-1][1] - start) < 1e-9:
            pieces[-1][1] = end
        elif end > start:
            pieces.append([start, end, what])
    return pieces


def test_timeline__unseen(subject, reference, rng):
    for p in drawn(rng, 60):
        got, want = ([painted(lane) for lane in side.timeline(given(side, p))]
                     for side in (subject, reference))
        for rank, (lane, right) in enumerate(zip(got, want, strict=True)):
            for piece, other in zip(lane, right, strict=False):
                assert piece == pytest.approx(other) if piece[2] == other[2] else False, (
                    f"timeline of a drawn profile, rank {rank}: got {tuple(piece)}, expected "
                    f"{tuple(other)}: {SAID.get((other[2], piece[2]), 'it ends elsewhere')}; its "
                    f"spans are {[tuple(s) for s in p.spans]}")
            assert len(lane) == len(right), (
                f"timeline of a drawn profile, rank {rank}: got {lane}, expected {right}")


# ---- the roof


@pytest.mark.parametrize("flops, moved", [(1000, 20), (50, 200), (200, 20), (25, 1), (0, 30),
                                          (30, 0), (1, 1), (2**40, 2**33), (0, 0)])
def test_least_seconds(subject, agree, flops, moved):
    span = subject.make("day02_overview.profiles:Span", 0, "kernel", "k", 0.0, 99.0, flops, moved)
    arithmetic, memory = flops / PEAK, moved / BANDWIDTH
    agree(subject.least_seconds(span, PEAK, BANDWIDTH), max(arithmetic, memory), "float64",
          what=f"least seconds of {flops} FLOPs and {moved} bytes at {PEAK} FLOP/s and {BANDWIDTH} "
               f"byte/s", mistakes=together({
        "both times are added, but arithmetic and loads go on together": arithmetic + memory,
        "only the arithmetic is counted": arithmetic,
        "only the bytes are counted": memory,
        "the shorter of the two times is taken, where the longer one decides":
            min(arithmetic, memory),
        "peak and bandwidth are swapped": max(flops / BANDWIDTH, moved / PEAK),
        "seconds are rounded down to whole ones: // stands for /":
            max(flops // PEAK, moved // BANDWIDTH),
        "the rate at the roof is returned, in FLOP/s, not the seconds":
            min(PEAK, flops / max(moved, 1e-9) * BANDWIDTH),
        "the time that the kernel took is returned": 99}))


@pytest.mark.parametrize("flops, moved", [(122, 10), (128, 10)])
def test_least_seconds__beside_the_ridge(subject, agree, flops, moved):
    """The ridge is at 12.5 FLOP/byte."""
    span = subject.make("day02_overview.profiles:Span", 0, "kernel", "k", 0.0, 99.0, flops, moved)
    times = {"the ridge is rounded down: peak // bandwidth": flops / 100,
             "the ridge is rounded up to a whole number": moved / 8}
    want = max(times.values())
    agree(subject.least_seconds(span, 100, 8), want, "float64",
          what=f"least seconds of {flops} FLOPs and {moved} bytes at 100 FLOP/s and 8 byte/s",
          mistakes=times)


def test_least_seconds__unseen(unseen, rng):
    for flops, moved, peak, bandwidth in rng.integers(1, 10**6, (8, 4)).tolist():
        span = (0, "kernel", "k", 0.0, 99.0, flops, moved)
        unseen("least_seconds", lambda side, span=span: side.make(
            "day02_overview.profiles:Span", *span), peak, bandwidth,
            shown=f"{flops} FLOPs, {moved} bytes, {peak} FLOP/s, {bandwidth} byte/s")


# ---- the procedure


def kernels(*rows, wall=None, more=()):
    """A profile of kernels one after the other; rows: seconds, FLOPs, bytes, weights, between."""
    spans, clock = list(more), 0.0
    for seconds, *work in rows:
        spans.append((0, "kernel", "k", clock, clock + seconds, *work))
        clock += seconds
    return profile(wall or clock, *spans)


def meeting(wall, first, second, late, end, *more):
    """A profile of two ranks, whose kernels run from 0 to `first` and from 0 to `second`. Rank 0
    enters a collective at `first`, rank 1 at `late`, and it ends at `end`."""
    return profile(wall, (0, "kernel", "k", 0, first), (1, "kernel", "k", 0, second),
                   (0, "collective", "sum", first, end), (1, "collective", "sum", late, end), *more,
                   ranks=2)


EDGES = {       # what holds, on the edge of the next answer: (the profile, its cause)
    "busy for exactly BUSY": (kernels((6, 0, 60, 60, 0), wall=9), "unbatched"),
    "busy for less than BUSY": (kernels((5, 0, 50, 50, 0), wall=9), "launch-bound"),
    "exactly FAR of the roof": (kernels((6, 0, 20, 20, 0)), "unbatched"),
    "less than FAR of the roof": (kernels((6, 0, 19, 19, 0)), "far from its roof"),
    "each kernel is near another roof": (kernels((6, 600, 1, 1, 0), (3, 1, 30, 0, 1)),
                                         "at its roof"),
    "on the ridge": (kernels((6, 600, 60, 60, 0)), "at its roof"),
    "half of the bytes are weights": (kernels((6, 0, 60, 30, 0)), "unbatched"),
    "half of the bytes are weights, half between kernels": (kernels((6, 0, 60, 30, 30)),
                                                            "unbatched"),
    "as long for the batch as for the host":
        (kernels((1, 0, 1, 1, 0), wall=9, more=[(0, "input", "b", 5, 9)]), "starved"),
    "as long for the batch as for the last rank":
        (meeting(4, 1, 1, 3, 3, (1, "input", "b", 1, 3), (0, "kernel", "k", 3, 4),
                 (1, "kernel", "k", 3, 4)), "starved"),
    "as long for the host as for the last rank":
        (meeting(4, 1, 1, 3, 3, (0, "kernel", "k", 3, 4), (1, "kernel", "k", 3, 4)),
         "launch-bound"),
    "as long for the batch as for the wires":
        (kernels((1, 0, 1, 1, 0), wall=5, more=[(0, "input", "b", 1, 3),
                                                (0, "collective", "sum", 3, 5)]), "starved"),
    "as long for the host as for the wires":
        (kernels((1, 0, 1, 1, 0), wall=5, more=[(0, "collective", "sum", 3, 5)]), "launch-bound"),
    "as long for the last rank as for the wires": (meeting(4, 1, 3, 3, 4), "imbalanced"),
    "arithmetic and bytes in turn, near the roof":
        (kernels((6, 300, 0, 0, 0), (6, 0, 35, 35, 0)), "unbatched"),
    "arithmetic and bytes together, far from the roof":
        (kernels((6, 150, 15, 15, 0)), "far from its roof"),
    "near the roof for the time it is busy": (kernels((7, 0, 28, 28, 0), wall=10), "unbatched"),
    "far from the roof on both ranks":
        (profile(6, (0, "kernel", "k", 0, 6, 0, 15, 15, 0), (1, "kernel", "k", 0, 6, 0, 15, 15, 0),
                 ranks=2), "far from its roof"),
    "kernels that do nothing": (kernels((6, 0, 0, 0, 0)), "far from its roof"),
    "no kernel at all": (profile(9, (0, "input", "b", 0, 4)), "launch-bound"),
    "half of the bytes are between kernels": (kernels((6, 0, 60, 0, 30)), "unfused"),
    "the cache of keys is read, not weights": (kernels((6, 0, 60, 25, 25)), "at its roof"),
    "the batch is loaded beside the kernels":
        (kernels((6, 0, 60, 0, 50), more=[(0, "input", "next", 0, 6)]), "unfused"),
    "the loader is slow and so is the kernel":
        (kernels((1, 0, 1, 1, 0), wall=9, more=[(0, "input", "b", 3, 9)]), "starved"),
}
CASES = {**{f"measured, {c}": (p, c) for c, p in load_profiles().items()},
         **{f"by the model, {c}, {seed}": (model(c, random.Random(seed)), c)
            for c in CAUSES for seed in range(6)},
         **{f"by hand, {what}": case for what, case in EDGES.items()}}
REASONS = {
    "starved": "the devices idle, and most of that time a batch is waited for",
    "launch-bound": "the devices idle, and most of that time only the host is at work",
    "imbalanced": "most of the lost time passes in collectives before the last rank enters",
    "communication-bound": "most of the lost time passes in collectives that all ranks are in",
    "far from its roof": "the kernels run nearly all the time, and take three times as long as "
                         "they need",
    "unbatched": "the bytes decide, and weights are at least half of them: more rows would share "
                 "them",
    "unfused": "the bytes decide, and half of them or more only go from kernel to kernel",
    "at its roof": "the kernels are near the roof, and no half of their bytes could be spared: "
                   "arithmetic decides, or the bytes are neither weights nor between kernels",
}
IDLE = ("starved", "launch-bound", "imbalanced", "communication-bound")


@pytest.mark.parametrize("case", CASES)
def test_diagnose(subject, case):
    p, want = CASES[case]
    got = subject.diagnose(given(subject, p))
    assert isinstance(got, (tuple, list)) and len(got) == 2 and got[1] in CAUSES, \
        f"diagnose: got {got!r}, expected (floor, cause), with a cause of {', '.join(CAUSES)}"
    floor, cause = got
    said = REASONS[want]
    if want in IDLE and cause not in IDLE:
        said += ("; kernels are not asked before the devices have work, and these are busy for "
                 f"{where_time_goes(p)['busy'] / p.ranks / p.wall:.0%} of all ranks' time")
    elif want in IDLE and "as long for" in case:
        said += "; of equals, the first in WHATS counts"
    elif "far from its roof" in (want, cause):
        least = sum(max(s.flops / p.peak, s.moved / p.bandwidth) for s in p.spans
                    if s.kind == "kernel")
        said += (f". Each kernel's least seconds, added up: {least:.4g} s; FAR of the busy time: "
                 f"{where_time_goes(p)['busy'] / 3:.4g} s")
    elif want == "at its roof" and cause in ("unbatched", "unfused"):
        said += f". {cause} needs bytes that take longer than the FLOPs, half of them of its kind"
    assert cause == want, f"profile {case}: got {cause!r}, expected {want!r}: {said}"
    assert floor == CAUSES[want], \
        f"profile {case}: {want} lives on the floor {CAUSES[want]!r}, got {floor!r}"


def test_diagnose__unseen(unseen, rng):
    for p in drawn(rng, 100):
        unseen("diagnose", lambda side, p=p: given(side, p), shown=str(p.spans))


def lost_to(p):
    """Seconds that are lost to each of WHATS[1:]."""
    seconds = where_time_goes(p)
    return {what: seconds[what] for what in WHATS[1:]}


@pytest.mark.parametrize("what", WHATS[1:])
@pytest.mark.parametrize("p", (scattered(2), MEET, APART), ids=lambda p: p.name)
def test_most_gain(subject, agree, p, what):
    whole = p.ranks * p.wall
    of_ranks = [rank for (rank, _), found in ticks(p).items() if found == what]
    lost = len(of_ranks)
    of_rank = [of_ranks.count(rank) for rank in range(p.ranks)]
    busy = sum(kind == "busy" for kind in ticks(p).values())
    agree(subject.most_gain(given(subject, p), what), whole / (whole - lost), "float64",
          what=f"most_gain of {p.name} without its {what}", mistakes=together({
        "the share of the time that is lost is given; the gain is 1 over what is left":
            lost / whole,
        "the share is added to 1, but what is left is what counts": 1 + lost / whole,
        "all ranks' loss is taken from the wall time of one": p.wall / (p.wall - lost)
            if lost != p.wall else float("inf"),
        "rank 0's loss alone is taken from the wall time":
            p.wall / (p.wall - of_ranks.count(0)),
        "the rank that loses most decides": p.wall / (p.wall - max(of_rank))
            if max(of_rank) != p.wall else float("inf"),
        "the rank that has most left decides; what is left is shared out evenly":
            p.wall / (p.wall - min(of_rank)) if min(of_rank) != p.wall else float("inf"),
        "all that is lost goes, not this kind of loss alone": whole / busy,
        "the whole is divided by what is lost, not by what is left":
            whole / lost if lost else float("inf"),
        "1 is taken off: what is gained is given, not how many times as fast":
            whole / (whole - lost) - 1,
        "1 is divided by the seconds that are left, not the whole time": 1 / (whole - lost),
        "the busy time is divided by what is left, not the whole time": busy / (whole - lost),
        "this kind of loss is kept, and all the others go": whole / (busy + lost),
        "the share that stays is given, not how many times as fast": 1 - lost / whole}))


def test_most_gain__unseen(unseen, rng):
    for p in drawn(rng, 60):
        for what, seconds in lost_to(p).items():
            if seconds < p.ranks * p.wall:      # else nothing is left to do
                unseen("most_gain", lambda side, p=p: given(side, p), what, shown=str(p.spans))


# ---- a prediction and choices


def test_predict_gain_of_a_loader(subject):
    got, load, compute, steps = subject.predict_gain_of_a_loader(), 75, 25, 10_000
    assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
    loaded = done = 0
    for _ in range(steps):                      # a batch is loaded while the one before is computed
        loaded += load
        done = max(done, loaded) + compute
    want = steps * (load + compute) / done
    said = ("the loading is not gone; it goes on while the device computes" if got > 3 else
            "both go on at the same time now" if got <= 1 else
            "the longer of the two decides how often a step can end")
    assert abs(got - want) < 0.01, f"gain of a loader beside the step: {got:.3g} is not it; {said}"


WHY = (
    {"a": "the step of one user stays as long, since the host decides it; total tokens a second "
          "would rise, but that was not asked for",
     "b": "the device works 3 µs of 12; one launch for all takes the host away",
     "c": "fewer bytes shorten the 3 µs, and the 12 µs stay. 100 % says that some kernel ran in "
          "each sample"},
    {"a": "there are no gaps: nobody waits for a batch",
     "b": "the bytes between the kernels double with the rows, and so do the FLOPs: MFU stays",
     "c": "85 % of the peak in 35 % of the time is the 30 %; the rest moves bytes that merging "
          "spares"},
    {"a": "seven wait for the one with the most work; its work must be shared",
     "b": "the 4 ms are not spent sending: the last rank to enter is done in 0.3 ms",
     "c": "all ranks would compute faster, and still wait for the same one"},
    {"a": "each step has a piece of the prompt beside the running replies: no reply stops, the "
          "prompt is read a little later",
     "b": "replies run on, but the prompt's TTFT becomes as long as the longest reply",
     "c": "nothing waits for room in the cache; a long step is in the way"},
    {"a": "the longest of 64 replies is no shorter: more requests wait for it",
     "b": "launches are not the problem; there is no work until the round is over",
     "c": "the place of a reply that is done is free at once"},
    {"a": "each hidden state goes through more wires, and through more of the slow ones",
     "b": "the slow wires between the machines are no longer needed; each GPU holds twice as much",
     "c": "all ranks come together, so no rank has more work than another"},
)


def test_choose_remedies(subject):
    got = subject.choose_remedies()
    assert isinstance(got, str) and len(got) == len(WHY) and set(got) <= set("abc"), \
        f"choose_remedies: got {got!r}, expected a text of {len(WHY)} letters, each a, b or c"
    right, reasons = "bcaacb", []
    for number, (letter, answer, why) in enumerate(zip(got, right, WHY, strict=True), 1):
        assert letter == answer, "\n".join([*reasons, f"{number} {letter}, no: {why[letter]}"])
        reasons.append(f"{number} {letter}, yes: {why[letter]}")


# ---- given, not exercises: only the course's own tests check it


@pytest.mark.parametrize("p", [*load_profiles().values(), *(model(c, random.Random(7))
                                                            for c in CAUSES)],
                         ids=lambda p: f"{p.made}, {p.name}")
def test_a_profile_holds_together(p):
    for rank in range(p.ranks):
        for kind in ("kernel", "input", "collective", "host"):
            mine = sorted((s for s in p.spans if (s.rank, s.kind) == (rank, kind)),
                          key=lambda s: s.start)
            assert all(a.end <= b.start for a, b in pairwise(mine))
    for s in p.spans:
        assert s.weights + s.between <= s.moved
        if s.kind == "kernel":
            large = s.moved > 30e6 or p.made == "by a model"        # no cache holds its arrays
            least = max(s.flops / p.peak, large * s.moved / p.bandwidth)
            assert least < 1.05 * (s.end - s.start), f"{s} is above its roof"


def test_six_are_measured():
    found = load_profiles()
    assert list(found) == ["starved", "launch-bound", "unfused", "unbatched", "imbalanced",
                           "communication-bound"]
    assert all(p.made == "measured" and "shared CPU cores" in p.how for p in found.values())
    assert rec.RECORD.stat().st_size < 100_000
    assert json.loads(rec.RECORD.read_text("utf-8"))["command"].endswith(rec.__name__)


def test_the_counts_are_those_of_the_formulas():
    found = load_profiles()

    def work(cause, kind="kernel"):
        return [(s.flops, s.moved, s.weights, s.between) for s in found[cause].spans
                if s.kind == kind]

    row, array, few = 4 * rec.C, 4 * rec.N, 4 * rec.FEW
    matrix = row * rec.C
    assert work("unbatched") == [
        (2 * rec.C**2, matrix + 2 * row, matrix, n * row) for n in (1, *[2] * (rec.LAYERS - 2), 1)]
    assert work("unfused") == [
        (rec.N, n * array, 0, k * array)
        for n, k in zip((2, 2, 3, 2, 3, 2), (1, 2, 2, 2, 2, 1), strict=True)]
    assert work("launch-bound") == [(rec.FEW, 2 * few, 0, 0)] * rec.LAUNCHES
    assert len(work("launch-bound", "host")) == rec.LAUNCHES
    n = rec.SIDE
    for cause, count in (("imbalanced", 2 * sum(rec.UNEVEN)), ("communication-bound", 4)):
        assert work(cause) == [(2 * n**3, 12 * n**2, 0, 0)] * count
    for cause, numbers in (("imbalanced", rec.SMALL), ("communication-bound", rec.MESSAGE)):
        assert work(cause, "collective") == [(0, sent_by("all_reduce", 4 * numbers, 2), 0, 0)] * 4
    x, w, y = 4 * rec.B * rec.WIDE, 4 * rec.WIDE * rec.OUT, 4 * rec.B * rec.OUT
    product = 2 * rec.B * rec.WIDE * rec.OUT
    assert work("starved") == 3 * [
        (product, x + w + y, w, 0), (rec.B * rec.OUT, 3 * y, 0, 0), (product, x + y + w, 0, 0),
        (2 * rec.WIDE * rec.OUT, 3 * w, 2 * w, 0)]


def test_the_launch_bound_device_waits_for_its_host():
    """It is idle because the next launch has not come, not because it is behind."""
    spans = load_profiles()["launch-bound"].spans
    launches, ran = ([s for s in spans if s.kind == kind] for kind in ("host", "kernel"))
    kept_up = 0
    for i, (launch, kernel) in enumerate(zip(launches, ran, strict=True)):
        assert launch.start < kernel.start
        kept_up += i + 2 >= len(launches) or kernel.end < launches[i + 2].end
    assert kept_up > 0.9 * len(launches)
    assert sum(s.end - s.start for s in launches) > 0.8 * load_profiles()["launch-bound"].wall


def test_a_span_outside_its_profile_is_an_error():
    for span in ((1, "kernel", "k", 0, 1), (0, "kernels", "k", 0, 1), (0, "kernel", "k", 2, 1),
                 (0, "kernel", "k", 0, 11)):
        with pytest.raises(ValueError, match="is not a span of a profile of 1 ranks and 10 s"):
            profile(10, span)


def test_a_span_can_be_recorded():
    """The recorder's tape and its choice, without the minutes of a whole recording."""
    tape = rec.Tape(3)
    with tape.span("kernel", "k", 5):
        pass
    (rank, kind, name, start, end, flops), = tape.spans
    assert (rank, kind, name, flops) == (3, "kernel", "k", 5) and start <= end
    spans, wall = rec.shortest([[[0, "host", "h", 5.0, 9.0]], [[0, "host", "h", 7.0, 8.5]]])
    assert spans == [[0, "host", "h", 0.0, 1.5]] and wall == 1.5
