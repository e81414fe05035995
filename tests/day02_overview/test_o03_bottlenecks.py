"""Graders of o03.
The oracle of a timeline is a grid of ticks, asked tick by tick; a diagnosis is compared with the
cause that was built into a profile: measured, made by the model, or by hand."""

import random
from numbers import Real

import pytest

from day02_overview import CAUSES, Profile, load_profiles, model, where_time_goes
from lab.judge.mistakes import mistake

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
    whats = {}
    for rank in range(p.ranks):
        for second in range(int(p.wall)):
            here = {s.kind: s for s in p.spans if s.rank == rank and s.start <= second < s.end}
            kind = next((k for k in ("kernel", "input", "collective") if k in here), "host")
            if kind == "collective":
                name = here[kind].name
                there = [s.rank for s in p.spans if s.kind == kind and s.name == name
                         and s.start <= second]
                kind = "wire" if len(there) == p.ranks else "rank"
            whats[rank, second] = {"kernel": "busy"}.get(kind, kind)
    return whats


def together(mistakes):
    """{id: (sentence, answer)}; mistakes with one answer are one, as no one can tell them apart."""
    rows = {}
    for name, (sentence, answer) in mistakes.items():
        rows.setdefault(answer, []).append((name, sentence))
    return {row[0][0]: (" or ".join(sentence for _, sentence in row), answer)
            for answer, row in rows.items()}


# ---- the device is busy


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
    kernels = [s for s in p.spans if s.kind == "kernel"]
    whole = p.ranks * p.wall
    busy = sum(what == "busy" for what in ticks(p).values())
    at_any = len({second for (_, second), what in ticks(p).items() if what == "busy"})
    of_0 = sum(what == "busy" for (rank, _), what in ticks(p).items() if rank == 0)
    ends = [max((s.end for s in p.spans if s.rank == r), default=0) for r in range(p.ranks)]
    agree(subject.busy_share(given(subject, p)), busy / whole, "float64",
          what=f"busy_share of {p.name}", mistakes=together({
        "overlap_twice": ("two kernels at once count twice",
                          sum(s.end - s.start for s in kernels) / whole),
        "ranks_mixed": ("the ranks are mixed up: while one is busy, the others count as busy too",
                        at_any / p.wall),
        "over_one_wall": ("the busy time of all ranks is divided by the wall time of one",
                          busy / p.wall),
        "not_reset": ("what is covered is not set back to 0 for the next rank",
                      covered_seconds(p, reset=False) / whole),
        "as_listed": ("kernels are taken as they stand in the list, not in the order of their "
                      "starts", covered_seconds(p, key=lambda s: 0) / whole),
        "order_of_ends": ("kernels are taken in the order of their ends, not of their starts",
                          covered_seconds(p, key=lambda s: s.end) / whole),
        "last_end": ("covered becomes the end of the last kernel, not the latest end so far",
                     covered_seconds(p, latest=lambda covered, end: end) / whole),
        "below_0": ("a kernel inside another takes time off: what it adds is below 0",
                    covered_seconds(p, least=-p.wall) / whole),
        "seconds": ("seconds are given, not a share of the time", busy),
        "idle_share": ("the share in which no kernel runs is given", 1 - busy / whole),
        "rank_0": ("rank 0 alone is looked at", of_0 / p.wall),
        "rank_0_over_all": ("rank 0's busy time is divided by all ranks' time", of_0 / whole),
        "up_to_last_span": ("a rank's time is taken to end with its last span, before the profile "
                            "does", busy / sum(ends)),
        "gaps_too": ("the gaps between the first kernel and the last are counted too",
                     sum(max(s.end for s in kernels if s.rank == r) - min(
                         s.start for s in kernels if s.rank == r) for r in range(p.ranks)) / whole),
        "every_span": ("every span counts, not only kernels", len(
            {(s.rank, t) for s in p.spans for t in range(int(s.start), int(s.end))}) / whole)}))


def test_busy_share__unseen(unseen, rng):
    for p in drawn(rng, 60):
        unseen("busy_share", lambda side, p=p: given(side, p), shown=str(p.spans))


SAID = {        # (expected, got): why
    ("busy", "wire"): "a collective that runs while a kernel runs costs nothing: it is hidden",
    ("busy", "input"): "a batch that loads while a kernel runs costs nothing: it is hidden",
    ("busy", "rank"): "a rank whose kernel runs is not waiting, even if another rank is late",
    ("busy", "host"): "a kernel runs here, whatever the host does",
    ("rank", "wire"): "the last rank has not entered this collective yet, so it cannot finish",
    ("wire", "rank"): "all ranks are in this collective now; only the wires hold it up",
    ("rank", "host"): "this rank is in a collective, so it is not waiting for its host",
    ("wire", "host"): "this rank is in a collective, so it is not waiting for its host",
    ("input", "host"): "the host waits for the batch too, so loading is the reason",
    ("host", "busy"): "no kernel runs here",
    ("input", "busy"): "no kernel runs here; the rank waits for its batch",
    ("rank", "busy"): "no kernel runs here; the rank is in a collective",
    ("wire", "busy"): "no kernel runs here; the rank is in a collective",
    ("input", "rank"): "input comes before collectives: this rank waits for its batch too",
    ("input", "wire"): "input comes before collectives: this rank waits for its batch too",
    ("host", "input"): "the rank waits for no batch here, and is in no collective",
    ("host", "rank"): "this rank is in no collective here",
    ("host", "wire"): "this rank is in no collective here",
    ("rank", "input"): "the rank waits for no batch here; it is in a collective",
    ("wire", "input"): "the rank waits for no batch here; it is in a collective",
}


def gap(left_out, at, wall):
    """(id, why) of a piece that does not start where the one before ends."""
    if left_out == {"host"}:
        return "host_left_out", "the time between is the host's, also where nothing runs, {}"
    if left_out:
        return "piece_left_out", "a piece is left out"
    if at == wall:
        return "one_list", "the pieces of two ranks are in one list"
    return "out_of_order", "pieces follow each other from 0 to wall"


@pytest.mark.parametrize("p", (MEET, *BY_HAND), ids=lambda p: p.name)
def test_timeline(subject, p):
    got = subject.timeline(given(subject, p))
    assert isinstance(got, (list, tuple)) and len(got) == p.ranks and all(
        isinstance(lane, (list, tuple)) for lane in got), mistake("no_lists", (
            f"timeline: got {str(got)[:80]}, expected a list of {p.ranks} lists, one per rank"))
    want = ticks(p)
    for rank, lane in enumerate(got):
        at = 0
        head = f"timeline of {p.name}, rank {rank}"
        for piece in lane:
            assert isinstance(piece, (tuple, list)) and len(piece) == 3 and piece[2] in WHATS, \
                mistake("no_piece", f"timeline: got the piece {piece!r}, expected (start, end, one "
                                    f"of {WHATS})")
            start, end, what = piece
            name, why = gap({want[rank, s] for s in range(int(at), int(start))}, at, p.wall)
            assert start == at, mistake(name, f"{head}: a piece starts at {start} s, but the one "
                                              f"before ends at {at} s; {why}", why)
            for second in range(int(start), int(end)):
                right = want[rank, second]
                why = SAID.get((right, what))
                assert what == right, mistake(f"{what}_for_{right}", (
                    f"{head}, at {second} s: got {what!r}, expected {right!r}: {why}"), why)
            at = end
        assert at == p.wall, mistake(
            "ends_early", f"{head}: the last piece ends at {at} s, expected {p.wall} s")


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
                why = SAID.get((other[2], piece[2]), "its start or end differs")
                assert piece[2] == other[2] and piece == pytest.approx(other), mistake(
                    f"{piece[2]}_for_{other[2]}", f"timeline of a random profile, rank {rank}: got "
                    f"{tuple(piece)}, expected {tuple(other)}: {why}; its spans are "
                    f"{[tuple(s) for s in p.spans]}", why)
            text = f"timeline of a random profile, rank {rank}: got {lane}, expected {right}"
            assert len(lane) == len(right), mistake("pieces", text)


# ---- the roof


@pytest.mark.parametrize("flops, moved", [(1000, 20), (50, 200), (200, 20), (25, 1), (0, 30),
                                          (30, 0), (1, 1), (2**40, 2**33), (0, 0)])
def test_least_seconds(subject, agree, flops, moved):
    span = subject.make("day02_overview.profiles:Span", 0, "kernel", "k", 0.0, 99.0, flops, moved)
    arithmetic = flops / PEAK
    memory = moved / BANDWIDTH
    agree(subject.least_seconds(span, PEAK, BANDWIDTH), max(arithmetic, memory), "float64",
          what=f"least seconds of {flops} FLOPs and {moved} bytes at {PEAK} FLOP/s and {BANDWIDTH} "
               f"byte/s", mistakes=together({
        "added": ("both times are added, but arithmetic and memory work at the same time",
                  arithmetic + memory),
        "no_bytes": ("the bytes are left out", arithmetic),
        "no_flops": ("the arithmetic is left out", memory),
        "shorter": ("the shorter of the two times is taken; the longer one decides",
                    min(arithmetic, memory)),
        "roofs_swapped": ("peak and bandwidth are swapped", max(flops / BANDWIDTH, moved / PEAK)),
        "whole_seconds": ("seconds are rounded down to whole ones: // stands for /",
                          max(flops // PEAK, moved // BANDWIDTH)),
        "rate": ("the rate at the roof is returned, in FLOP/s, not the seconds",
                 min(PEAK, flops / max(moved, 1e-9) * BANDWIDTH)),
        "time_taken": ("you return the time the kernel took, not the time it needs at its roof",
                       99)}))


@pytest.mark.parametrize("flops, moved", [(122, 10), (128, 10)])
def test_least_seconds__beside_the_ridge(subject, agree, flops, moved):
    """The ridge is at 12.5 FLOP/byte."""
    span = subject.make("day02_overview.profiles:Span", 0, "kernel", "k", 0.0, 99.0, flops, moved)
    want = max(flops / 100, moved / 8)
    agree(subject.least_seconds(span, 100, 8), want, "float64",
          what=f"least seconds of {flops} FLOPs and {moved} bytes at 100 FLOP/s and 8 byte/s",
          mistakes={"ridge_down": ("the ridge is rounded down: peak // bandwidth", flops / 100),
                    "ridge_up": ("the ridge is rounded up to a whole number", moved / 8)})


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
    """A profile of two ranks, whose kernels run from 0 to `first` and from 0 to `second`.
    Rank 0 enters a collective at `first`, rank 1 at `late`, and it ends at `end`."""
    return profile(wall, (0, "kernel", "k", 0, first), (1, "kernel", "k", 0, second),
                   (0, "collective", "sum", first, end), (1, "collective", "sum", late, end), *more,
                   ranks=2)


EDGES = {       # what holds, on the edge of the next answer: (the profile, its cause)
    "busy for exactly BUSY": (kernels((6, 0, 60, 60, 0), wall=9), "unbatched"),
    "busy for less than BUSY": (kernels((5, 0, 50, 50, 0), wall=9), "launch-bound"),
    "exactly FAR of the roof": (kernels((6, 0, 20, 20, 0)), "unbatched"),
    "less than FAR of the roof": (kernels((6, 0, 19, 19, 0)), "far from its roof"),
    "each kernel is near a different roof": (kernels((6, 600, 1, 1, 0), (3, 1, 30, 0, 1)),
                                         "at its roof"),
    "on the ridge": (kernels((6, 600, 60, 60, 0)), "at its roof"),
    "half of the bytes are weights": (kernels((6, 0, 60, 30, 0)), "unbatched"),
    "half of the bytes are weights, half between kernels": (kernels((6, 0, 60, 30, 30)),
                                                            "unbatched"),
    "equally long for the batch and for the host":
        (kernels((1, 0, 1, 1, 0), wall=9, more=[(0, "input", "b", 5, 9)]), "starved"),
    "equally long for the batch and for the last rank":
        (meeting(4, 1, 1, 3, 3, (1, "input", "b", 1, 3), (0, "kernel", "k", 3, 4),
                 (1, "kernel", "k", 3, 4)), "starved"),
    "equally long for the host and for the last rank":
        (meeting(4, 1, 1, 3, 3, (0, "kernel", "k", 3, 4), (1, "kernel", "k", 3, 4)),
         "launch-bound"),
    "equally long for the batch and for the wires":
        (kernels((1, 0, 1, 1, 0), wall=5, more=[(0, "input", "b", 1, 3),
                                                (0, "collective", "sum", 3, 5)]), "starved"),
    "equally long for the host and for the wires":
        (kernels((1, 0, 1, 1, 0), wall=5, more=[(0, "collective", "sum", 3, 5)]), "launch-bound"),
    "equally long for the last rank and for the wires": (meeting(4, 1, 3, 3, 4), "imbalanced"),
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
    "most bytes are the cache of keys and values": (kernels((6, 0, 60, 25, 25)), "at its roof"),
    "the batch is loaded while the kernels run":
        (kernels((6, 0, 60, 0, 50), more=[(0, "input", "next", 0, 6)]), "unfused"),
    "both the loader and the kernel are slow":
        (kernels((1, 0, 1, 1, 0), wall=9, more=[(0, "input", "b", 3, 9)]), "starved"),
}
CASES = {**{f"measured, {c}": (p, c) for c, p in load_profiles().items()},
         **{f"by the model, {c}, {seed}": (model(c, random.Random(seed)), c)
            for c in CAUSES for seed in range(6)},
         **{f"by hand, {what}": case for what, case in EDGES.items()}}
EDGED = {f"by hand, {what}" for what in EDGES}
REASONS = {
    "starved": "the devices are idle, and for most of that time they wait for a batch",
    "launch-bound": "the devices are idle, and for most of that time only the host works",
    "imbalanced": "most of the lost time is spent in collectives, before the last rank enters",
    "communication-bound": "most of the lost time is spent in collectives that all ranks have "
                           "entered",
    "far from its roof": "kernels run nearly all the time, but take more than three times as long "
                         "as they would at their roof",
    "unbatched": "the bytes decide, and at least half of them are weights, which more rows could "
                 "share",
    "unfused": "the bytes decide, and at least half of them only go from one kernel to the next",
    "at its roof": "the kernels are near their roof, and either arithmetic decides, or less than "
                   "half of the bytes are weights and less than half lie between kernels",
}
IDLE = ("starved", "launch-bound", "imbalanced", "communication-bound")


def rule_missed(case, p, want, cause):
    """(id, why) of a cause that is not the one that holds."""
    name = case.removeprefix("by hand, ") if case in EDGED else f"{cause} for {want}"
    why = REASONS[want]
    if want in IDLE and cause not in IDLE:
        name = name if case in EDGED else "kernels first"
        why += "; first ask whether the devices are busy; look at the kernels only then"
    elif want in IDLE and "equally long" in case:
        why += "; in a tie, the first in WHATS counts"
    elif "far from its roof" in (want, cause):
        least = sum(max(s.flops / p.peak, s.moved / p.bandwidth) for s in p.spans
                    if s.kind == "kernel")
        why += (f". The sum of the kernels' least seconds: {least:.4g} s; FAR of the busy seconds: "
                f"{where_time_goes(p)['busy'] / 3:.4g} s")
    elif want == "at its roof" and cause in ("unbatched", "unfused"):
        why += (f". {cause} needs both: bytes that take longer than the FLOPs, and at least half "
                "of those bytes")
    return name.lower().replace(" ", "_").replace("-", "_").replace(",", ""), why


@pytest.mark.parametrize("case", CASES)
def test_diagnose(subject, case):
    p, want = CASES[case]
    got = subject.diagnose(given(subject, p))
    assert isinstance(got, (tuple, list)) and len(got) == 2 and got[1] in CAUSES, mistake(
        "no_cause", f"diagnose: got {got!r}, expected (floor, cause), with a cause of "
                    f"{', '.join(CAUSES)}")
    floor, cause = got
    name, why = rule_missed(case, p, want, cause)
    assert cause == want, mistake(
        name, f"profile {case}: got {cause!r}, expected {want!r}: {why}")
    assert floor == CAUSES[want], mistake("other_floor", (
        f"profile {case}: the cause is right, but {want} belongs to the floor {CAUSES[want]!r}, "
        f"got {floor!r}"))


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
    of_rank = [sum(found == what for (r, _), found in ticks(p).items() if r == rank)
               for rank in range(p.ranks)]
    lost = sum(of_rank)
    busy = sum(kind == "busy" for kind in ticks(p).values())

    def over(rest):
        return p.wall / rest if rest else float("inf")

    agree(subject.most_gain(given(subject, p), what), whole / (whole - lost), "float64",
          what=f"most_gain of {p.name} without its {what}", mistakes=together({
        "share_lost": ("you return the share that is lost; the gain is 1 divided by the share that "
                       "is left", lost / whole),
        "one_plus": ("you return 1 + the lost share; divide by what is left instead",
                     1 + lost / whole),
        "from_one_wall": ("the loss of all ranks is subtracted from the wall time of one",
                          over(p.wall - lost)),
        "rank_0": ("rank 0's loss alone is subtracted from the wall time",
                   over(p.wall - of_rank[0])),
        "most_lost": ("the rank that loses most decides", over(p.wall - max(of_rank))),
        "most_left": ("the rank that has most left decides; the ranks share the rest evenly",
                      over(p.wall - min(of_rank))),
        "all_losses": ("all losses are subtracted, not only this kind", whole / busy),
        "over_lost": ("the whole is divided by what is lost, not by what is left",
                      whole / lost if lost else float("inf")),
        "minus_one": ("you return what is gained, 1 less than how many times as fast",
                      whole / (whole - lost) - 1),
        "one_over": ("1 is divided by the seconds that are left, not the whole time",
                     1 / (whole - lost)),
        "busy_over": ("the busy time is divided by what is left, not the whole time",
                      busy / (whole - lost)),
        "others_lost": ("this kind of loss is kept, and all the others are subtracted",
                        whole / (busy + lost)),
        "share_left": ("you return the share that is left, not how many times as fast",
                       1 - lost / whole)}))


def test_most_gain__unseen(unseen, rng):
    for p in drawn(rng, 60):
        for what, seconds in lost_to(p).items():
            if seconds < p.ranks * p.wall:      # else nothing is left to do
                unseen("most_gain", lambda side, p=p: given(side, p), what, shown=str(p.spans))


# ---- a prediction and choices


def test_predict_gain_of_a_loader(subject):
    got = subject.predict_gain_of_a_loader()
    assert isinstance(got, Real), mistake(
        "no_number", f"predict_gain_of_a_loader: expected a number, got {got!r}")
    loaded = done = 0
    for _ in range(10_000):                     # a batch is loaded while the one before is computed
        loaded += 75
        done = max(done, loaded) + 25
    name, why = "other_time", "the longer of the two decides how often a step ends"
    if got > 3:
        name, why = "loading_gone", "loading still takes 75 ms; it only overlaps with the computing"
    elif got <= 1:
        name, why = "no_overlap", "loading and computing now happen at the same time"
    assert abs(got - 10_000 * (75 + 25) / done) < 0.01, mistake(
        name, f"predict_gain_of_a_loader: not {got:.3g}: {why}", why)


WHY = (
    {"a": "the host decides how long a step takes, so this user's tokens come no sooner. The total "
          "of tokens per second would rise, but that was not the wish",
     "b": "the device is busy for 3 of 12 µs; a CUDA graph launches everything at once and removes "
          "the host's part",
     "c": "fewer bytes shorten the 3 µs, but the 12 µs stay. 100 % only says that some kernel ran "
          "in each sample"},
    {"a": "there are no gaps, so nothing waits for a batch",
     "b": "the bytes between the kernels double, and so do the FLOPs: the MFU stays",
     "c": "85 % of the peak for 35 % of the time gives the 30 %; the rest moves bytes that fusion "
          "avoids"},
    {"a": "seven ranks wait for the one with most work; its work must be shared",
     "b": "the 4 ms are not transfer time: the rank that enters last is through in 0.3 ms",
     "c": "all ranks would compute faster and would still wait for the same one"},
    {"a": "each step takes a chunk of the prompt together with the running replies: none stops, "
          "and the prompt finishes a little later",
     "b": "the replies go on, but the prompt's TTFT grows by the longest reply",
     "c": "nothing waits for space in the cache; one long step delays the replies"},
    {"a": "the longest of 64 replies is no shorter, and more requests wait for it",
     "b": "launches are not the problem: slots are empty until the round ends",
     "c": "the slot of a finished reply is filled at once"},
    {"a": "each hidden state crosses more wires, and more of the slow ones",
     "b": "the slow wires between the machines are no longer used; each GPU holds twice as much of "
          "the weights",
     "c": "all ranks enter at the same time, so none has more work than the others"},
)


def test_choose_remedies(subject):
    got = subject.choose_remedies()
    assert isinstance(got, str) and len(got) == len(WHY) and set(got) <= set("abc"), mistake(
        "no_letters", f"choose_remedies: got {got!r}, expected a string of {len(WHY)} letters, "
                      "each a, b or c")
    reasons = ["choose_remedies:"]
    for number, (letter, answer, why) in enumerate(zip(got, "bcaacb", WHY, strict=True), 1):
        assert letter == answer, mistake(f"case_{number}_{letter}", "\n".join(
            [*reasons, f"case {number}: {letter} is wrong: {why[letter]}"]), why[letter])
        reasons.append(f"case {number}: {letter} is right: {why[letter]}")
