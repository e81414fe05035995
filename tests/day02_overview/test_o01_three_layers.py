"""Graders of o01.
Times are judged by painting: each span paints its nanoseconds, the innermost last, and what is seen
at the end is counted.
What the recorded trace says is recomputed from it."""

import json
import re
from math import prod

import numpy as np
import pytest

from day01_roofline import LlamaShape, count_bytes, count_flops
from day02_overview import TRACE
from lab import course
from lab.judge.mistakes import mistake, raises
from lab.judge.subject import Raised

FLOORS = ("kernel", "graph", "system", "idle")
RECORD = json.loads(TRACE.read_text("utf-8"))
SPANS = [tuple(row) for row in RECORD["spans"]]     # as o01's Span
STEPS = [i for i, s in enumerate(SPANS) if s[0] in ("prefill", "decode")]


def painted(spans):
    """{floor: ns}: every nanosecond has the colour of the span that painted it last."""
    start = min((s[2] for s in spans), default=0)
    line = np.full(max((s[3] for s in spans), default=0) - start, len(FLOORS), np.uint8)
    for _, floor, begin, end, *_ in spans:
        line[begin - start:end - start] = FLOORS.index(floor)
    return {floor: int((line == i).sum()) for i, floor in enumerate(FLOORS)}


def within(i):
    """Span i and those inside it."""
    _, _, begin, end, *_ = SPANS[i]
    return [SPANS[i], *(s for j, s in enumerate(SPANS) if j != i and begin <= s[2] and s[3] <= end)]


# ---- the prediction


def test_predict_floor(subject):
    got = subject.predict_floor()
    text = f"predict_floor: got {got!r}, expected kernel, graph or system"
    assert got in FLOORS[:3], mistake("no_floor", text)
    time = dict.fromkeys(FLOORS, 0)
    for i in STEPS:
        if SPANS[i][0] == "decode":
            for floor, ns in painted(within(i)).items():
                time[floor] += ns
    why = {"kernel": "what runs inside the operations",
           "graph": "what Python does between the operations of a forward",
           "system": "batching, sampling and turning tokens into text"}[got]
    assert got == max(time, key=time.get), mistake(
        got, f"predict_floor: {got} takes {time[got] / sum(time.values()):.0%} of the time of the "
        f"decode steps, which is not the largest share. That floor is {why}", why)


# ---- time_by_floor


def spans_of(*rows):
    return [("s", *row, 0, 0) for row in rows]


CASES = {
    "one span": spans_of(("system", 5, 9)),
    "a child": spans_of(("system", 0, 10), ("kernel", 2, 5)),
    "a grandchild": spans_of(("system", 0, 100), ("graph", 10, 60), ("kernel", 20, 50)),
    "two children": spans_of(("graph", 0, 100), ("kernel", 10, 30), ("kernel", 40, 45)),
    "one span begins where another ends": spans_of(
        ("graph", 0, 100), ("kernel", 10, 30), ("system", 30, 45)),
    "two spans end at once": spans_of(
        ("system", 0, 100), ("graph", 10, 60), ("kernel", 20, 60), ("idle", 70, 90)),
    "the same floor inside": spans_of(("system", 0, 50), ("system", 5, 25), ("system", 6, 16)),
    "no span around": spans_of(("system", 0, 10), ("idle", 20, 30), ("kernel", 22, 23)),
    "a span as long as the one around it": spans_of(("graph", 3, 9), ("kernel", 3, 9)),
    "children that begin and end with their parent": spans_of(
        ("system", 0, 20), ("graph", 0, 8), ("kernel", 0, 3), ("graph", 12, 20), ("idle", 17, 20)),
    "spans of no length": spans_of(("system", 4, 9), ("graph", 4, 4), ("kernel", 6, 6)),
    "a day later, in ns": spans_of(("system", 864 * 10**11, 864 * 10**11 + 50),
                                   ("kernel", 864 * 10**11 + 7, 864 * 10**11 + 9)),
    "no span at all": [],
}


def lengths(spans, sign=0, leaves=False):
    """{floor: ns} by mistakes: children are not subtracted (sign 0) or from every ancestor."""
    time = dict.fromkeys(FLOORS, 0)
    for i, (_, floor, begin, end, *_) in enumerate(spans):
        others = [s for j, s in enumerate(spans) if j != i]
        children = [s for s in others if begin <= s[2] and s[3] <= end]
        if not (leaves and children):
            time[floor] += end - begin - sign * sum(s[3] - s[2] for s in children)
    return time


def stacked(spans, over=int.__le__, pops=None, taken_from=-1, last=False):
    """{floor: ns} with a stack of running spans, by mistakes. over(end, begin) says whether one has
    ended; at most `pops` of those are removed; a span is subtracted from stack[taken_from]; a floor
    holds only its last number."""
    time = dict.fromkeys(FLOORS, 0)
    stack = []
    for _, floor, begin, end, *_ in spans:
        ended = 0
        while stack and over(stack[-1][1], begin) and ended != pops:
            stack.pop()
            ended += 1
        time[floor] = end - begin + (0 if last else time[floor])
        if stack:
            time[stack[taken_from][0]] -= end - begin
        stack.append((floor, end))
    return time


def with_gaps(spans):
    """{floor: ns}, and what is in no span counts as idle."""
    time = painted(spans)
    time["idle"] += max((s[3] for s in spans), default=0) - sum(time.values()) - min(
        (s[2] for s in spans), default=0)
    return time


def up_to_children(spans):
    """{floor: ns}, and a span's time ends where the first span inside it begins."""
    time = dict.fromkeys(FLOORS, 0)
    for i, (_, floor, begin, end, *_) in enumerate(spans):
        first = next((s for s in spans[i + 1:] if s[3] <= end), None)
        time[floor] += (end if first is None else first[2]) - begin
    return time


def values(got, what):
    assert isinstance(got, dict) and sorted(got) == sorted(FLOORS), mistake(
        "other_keys", f"{what}: got {got!r}, expected a dict with the keys {', '.join(FLOORS)}")
    return [got[floor] for floor in FLOORS]


@pytest.mark.parametrize("case", CASES)
def test_time_by_floor(subject, agree, case):
    spans = CASES[case]
    what = f"time_by_floor, {case}: " + ", ".join(
        f"{floor} {begin}-{end}" for _, floor, begin, end, *_ in spans)
    got = values(subject.time_by_floor([subject.Span(*s) for s in spans]), what)
    mistakes = {
        "counted_twice": (lengths(spans), "the time of inner spans counts twice: subtract it"),
        "from_every_one": (lengths(spans, sign=1), "an inner span is subtracted from every span "
                           "around it; subtract it only from the nearest"),
        "innermost_only": (lengths(spans, leaves=True), "only the innermost spans are counted; the "
                           "time between them is lost"),
        "still_open": (stacked(spans, over=int.__lt__), "a span that just ended counts as open"),
        "one_removed": (stacked(spans, pops=1), "of the spans that have ended only one is removed"),
        "none_removed": (stacked(spans, pops=0), "spans that have ended are never removed"),
        "from_outermost": (stacked(spans, taken_from=0),
                           "a span is subtracted from the outermost one around, not the nearest"),
        "not_added": (stacked(spans, last=True), "a floor has the length of its last span: use +="),
        "outside_is_idle": (with_gaps(spans), "time in no span is counted as idle"),
        "up_to_child": (up_to_children(spans), "the time after the first inner span is lost"),
        "from_its_own": (dict.fromkeys(FLOORS, 0), "a span's length is subtracted from its own "
                         "floor, or the spans still open at the end of the list are left out")}
    agree(got, list(painted(spans).values()), what=what, at=lambda i: f"ns of {FLOORS[i[0]]}",
          mistakes={name: (sentence, list(wrong.values()))
                    for name, (wrong, sentence) in mistakes.items()})


def nest(rng, begin, end, depth=0):
    """Spans of random floors inside each other, in the order in which they begin."""
    rows = [("s", FLOORS[rng.integers(3)], begin, end, int(rng.integers(1000)),
             int(rng.integers(1, 1000)))]
    if rows[0][1] == "kernel":                  # what it calls is part of it
        return rows
    cuts = sorted(rng.choice(np.arange(begin, end), 4, replace=False).tolist())
    for first, last in (cuts[:2], cuts[2:]) if depth < 2 and end - begin > 20 else ():
        rows += nest(rng, first, last, depth + 1)
    return rows


def test_time_by_floor__unseen(unseen, rng):
    for _ in range(3):
        rows = nest(rng, 0, int(rng.integers(100, 10**6)))
        unseen("time_by_floor", lambda side, rows=rows: [side.Span(*row) for row in rows],
               precision="exact", shown=str(rows))


def small(rng, begin, end, depth=0):
    """Spans within a few ns, as nest gives them: touching, filling each other, of no length."""
    rows = [("s", FLOORS[rng.integers(4)], begin, end, 0, 0)]
    cuts = [begin, *sorted(rng.integers(begin, end + 1, int(rng.integers(0, 4))).tolist()), end]
    for first, last in zip(cuts, cuts[1:], strict=False):
        if depth < 3 and first < last and rng.random() < 0.5:
            rows += small(rng, first, last, depth + 1)
    return rows


def test_time_by_floor__small(unseen, rng):
    for _ in range(150):
        rows = [row for first in range(0, 10 * int(rng.integers(0, 4)), 10)
                for row in small(rng, first, first + int(rng.integers(1, 11)))]
        unseen("time_by_floor", lambda side, rows=rows: [side.Span(*row) for row in rows],
               precision="exact", shown=", ".join(f"{row[1]} {row[2]}-{row[3]}" for row in rows))


def test_time_by_floor__of_the_recorded_trace(subject):
    got = values(subject.time_by_floor(subject.read_trace().spans), "the recorded trace")
    wall = SPANS[0][3] - SPANS[0][2]
    assert sum(got) == wall, (
        f"the floors add up to {sum(got):,} ns; the recording has {wall:,} ns")
    want = list(painted(SPANS).values())
    assert got == want, f"time_by_floor of the recorded trace: got {got}, expected {want}"


# ---- roof_shares

SHARES = ("the bandwidth share", "the MFU")


def test_roof_shares(subject, agree):
    rows = [("decode", "system", 1_000, 9_000, 0, 0), ("forward", "graph", 1_500, 8_500, 0, 0),
            ("matmul", "kernel", 2_500, 4_500, 600, 3_000),
            ("swiglu", "kernel", 5_000, 6_000, 0, 1_000)]
    peak = 1e9
    bandwidth = 2e9
    want = np.array([4_000 / 3e-6 / bandwidth, 600 / 8e-6 / peak])
    got = subject.roof_shares([subject.Span(*row) for row in rows], peak, bandwidth)
    assert isinstance(got, (tuple, list)) and len(got) == 2, mistake(
        "no_pair", f"roof_shares: got {got!r}, expected (bandwidth share, MFU)")
    wrong = {               # what each of the two is multiplied by
        "bytes_by_step": (3 / 8, 1, "the bytes are divided by the whole step's time"),
        "flops_by_kernels": (1, 8 / 3, "the FLOPs are divided by the time of only the kernels"),
        "ns_as_seconds": (1e-9, 1e-9, "nanoseconds are used as seconds"),
        "ns_as_us": (1e-3, 1e-3, "a nanosecond is taken for 1e-6 s, not for 1e-9 s"),
        "ns_as_ms": (1e-6, 1e-6, "a nanosecond is taken for 1e-3 s, not for 1e-9 s"),
        "rates": (bandwidth, peak, "rates are returned; divide them by the roofs"),
        "answers_swapped": (want[1] / want[0], want[0] / want[1], "the two answers are swapped"),
        "roofs_swapped": (2, 1 / 2, "peak and bandwidth are swapped"),
        "per_cent": (100, 100, "shares are given in per cent; 1 is the roof"),
        "time_of_forward": (1, 8 / 7, "the time of `forward` is used, not of the whole step"),
        "up_to_last_span": (1, 8 / 5, "the step is taken to end with the last span in the list"),
        "step_is_all": (1, 8 / 18, "the step's time is all spans' time added up"),
        "kernels_are_all": (3 / 18, 1, "the time of all spans is added up, not of the kernels"),
        "gaps_too": (3 / 3.5, 1, "the kernels' time runs from first to last, gaps included"),
        "mean_of_shares": (15 / 16, 1, "the bandwidth share is the mean of the kernels' own "
                           "shares, though they ran for unequal times"),
        "sum_of_shares": (15 / 8, 1, "the bandwidth share is the sum of the kernels' own shares"),
        "no_flops_no_bytes": (9 / 8, 1, "kernels without FLOPs are left out, or all but the first")}
    agree(got, want, "float64", "roof_shares of a step of 8 µs, kernels of 2 µs and 1 µs, 600 "
          "FLOPs and 4000 bytes, on 1 GFLOP/s and 2 GB/s", at=lambda i: SHARES[i[0]], mistakes={
              name: (why, want * factors) for name, (*factors, why) in wrong.items()})


def test_roof_shares__above_the_roof(subject, agree):
    """What comes from a cache can be faster than the memory's roof, and a peak can be wrong."""
    rows = [("decode", "system", 0, 4_000, 0, 0), ("matmul", "kernel", 0, 2_000, 9_000, 12_000)]
    agree(subject.roof_shares([subject.Span(*row) for row in rows], 1e9, 2e9), [3.0, 2.25],
          "float64", "roof_shares of a step above both roofs", at=lambda i: SHARES[i[0]],
          mistakes={"cut_off": ("a share is cut off at 1, but it can exceed the roof", [1, 1])})


def test_roof_shares__unseen(unseen, rng):
    for late in (0, 1, 86_400 * 10**9):
        rows = [("decode", "system", late, late + 10**6, 0, 0),
                ("k", "kernel", late + 5, late + 500, 2**40, 2**33),
                *nest(rng, late + 1000, late + 10**6)]
        unseen("roof_shares", lambda side, rows=rows: [side.Span(*row) for row in rows],
               float(rng.uniform(1e9, 1e12)), float(rng.uniform(1e9, 1e12)), shown=str(rows))
    rows = [("decode", "kernel", 3, 9, 0, 5)]
    unseen("roof_shares", lambda side: [side.Span(*row) for row in rows], 2.0, 3.0,
           shown=f"{rows}, a step that is one kernel without FLOPs")


@pytest.mark.parametrize("i", [0, -1])
def test_roof_shares__of_recorded_steps(subject, agree, i):
    trace, spans = subject.read_trace(), within(STEPS[i])
    kernels = [s for s in spans if s[1] == "kernel"]
    want = [sum(s[5] for s in kernels) / sum(s[3] - s[2] for s in kernels) * 1e9 / 2e9,
            sum(s[4] for s in kernels) / (spans[0][3] - spans[0][2]) * 1e9 / 3e9]
    got = subject.roof_shares(trace.steps[i].spans, 3e9, 2e9)
    agree(got, want, "float64", f"roof_shares of the {'first' if i == 0 else 'last'} step")


# ---- latencies


def test_latencies(subject, agree):
    sent = [n * 10**6 for n in (8, 11, 21, 25, 26, 33)]
    got = subject.latencies(subject.Request("A", 4_000_000, sent, "", 3, ""))
    assert isinstance(got, (tuple, list)) and len(got) == 2, mistake(
        "no_pair", f"latencies: got {got!r}, expected (TTFT, TPOT)")
    wrong = {               # both in ms
        "from_clock_start": (8, 5, "TTFT counts from the start of the clock, not from the arrival"),
        "to_last_token": (29, 5, "TTFT runs to the last token, not to the first"),
        "negative": (-4, 5, "arrival and first token are swapped: their difference is negative"),
        "six_gaps": (4, 25 / 6, "there are six tokens, but five gaps between them"),
        "wait_in_tpot": (4, 29 / 5, "the wait for the first token is counted in TPOT"),
        "wait_is_a_gap": (4, 29 / 6, "the wait for the first token is counted as a sixth gap"),
        "tpot_from_start": (4, 33 / 5, "TPOT counts from the start of the clock, not from a token"),
        "last_over_tokens": (4, 33 / 6, "TPOT is the last token's time over the number of tokens"),
        "rate": (4, 200e3, "tokens per second are given in place of seconds per token"),
        "answers_swapped": (5, 4, "the two answers are swapped"),
        "whole_seconds": (0, 0, "seconds are rounded down to whole ones: // stands for /"),
        "in_milliseconds": (4e3, 5e3, "the answer is in milliseconds"),
        "in_microseconds": (4e6, 5e6, "the answer is in microseconds"),
        "in_nanoseconds": (4e9, 5e9, "the answer is in nanoseconds")
    } | {f"{which}_of_gaps": (4, ms, f"TPOT is the {which} of the gaps, not their mean")
         for which, ms in {"sum": 25, "median": 4, "last": 7, "first": 3, "longest": 10}.items()}
    agree(got, [4e-3, 5e-3], "float64", "latencies of a request that arrives at 4 ms, its tokens "
          "at 8, 11, 21, 25, 26 and 33 ms", at=lambda i: ("TTFT", "TPOT")[i[0]], mistakes={
              name: (why, np.divide(ms, 1e3)) for name, (*ms, why) in wrong.items()})


@pytest.mark.parametrize("arrival, sent, want, name, why", [
    (0, [4, 6], (4e-9, 2e-9), "no_gap_of_two", "two tokens have one gap between them"),
    (0, [4, 6, 7], (4e-9, 1.5e-9), "whole_ns", "// would lose the half of a nanosecond"),
    (5, [5, 5, 5], (0.0, 0.0), "none_for_zero",
     "tokens sent at the same time have TPOT 0; only a single token has TPOT None")])
def test_latencies__short(subject, arrival, sent, want, name, why):
    got = tuple(subject.latencies(subject.Request("A", arrival, sent, "", 3, "")))
    text = f"latencies, arrival {arrival} ns, sent {sent}: got {got}, expected {want}; {why}"
    assert None not in got and got == pytest.approx(want), mistake(name, text, why)


def test_latencies__unseen(unseen, rng):
    for n in rng.integers(2, 5, 60):            # a few ns, so that many are equal
        arrival, *sent = np.cumsum(rng.integers(0, 3, n + 1)).tolist()
        unseen("latencies", lambda side, given=("A", arrival, sent, "", 3, ""):
               side.Request(*given), shown=f"arrival {arrival}, sent {sent}")
    for n in rng.integers(2, 20, 3):
        arrival, *sent = np.cumsum(rng.integers(1, 10**9, n + 1)).tolist()
        unseen("latencies", lambda side, given=("A", arrival, sent, "", 3, ""):
               side.Request(*given), shown=f"arrival {arrival}, sent {sent}")


def test_latencies__of_one_token(subject):
    why = "there is no gap, so TPOT is None"
    with raises("no_gap", ZeroDivisionError, f"of a single token {why}"):
        got = subject.latencies(subject.Request("A", 1_000_000, [3_000_000], "", 3, ""))
    assert tuple(got) == (2e-3, None), mistake(
        "zero_for_one_token", f"latencies of one token: got {tuple(got)}; {why}", why)


# ---- choose_floors

TECHNIQUES = (      # name, floor, constraint; why this floor; why this constraint
    ("flash attention", "kernel", "memory", "one operation is done in another way, with the same "
     "inputs and result", "it does no fewer FLOPs, but the scores' bytes do not move"),
    ("tensor cores", "kernel", "compute", "other instructions inside one operation",
     "the same bytes arrive, and more FLOPs a second are done with them"),
    ("ring all-reduce", "kernel", "communication", "one operation, the same sum",
     "fewer bytes travel between GPUs"),
    ("kernel fusion", "graph", "memory", "two operations of the step become one",
     "the sum is written and no longer read back"),
    ("CUDA graphs", "graph", "overhead", "every operation stays; how a step launches them changes",
     "the GPU does the same work; the host makes one call instead of many"),
    ("quantised weights", "graph", "memory", "the step's operations get other weights",
     "a decode step reads a quarter of the bytes"),
    ("prefetch", "graph", "communication", "the step gets a copy that runs beside its operations",
     "the same bytes cross the wire, but the kernels no longer wait for them"),
    ("continuous batching", "system", "waiting", "it changes which requests are in a step, not the "
     "step itself", "a free place is filled at once"),
    ("paged KV cache", "system", "capacity", "it decides how requests get memory",
     "less memory is reserved and unused, so more contexts fit"),
    ("prefix cache", "system", "compute", "the keys and values of one request are kept for another",
     "the shared tokens are not computed again"),
    ("speculative decoding", "system", "memory", "two models take turns, and some of the guessed "
     "tokens are rejected", "the weights are read once for several tokens, with more FLOPs"),
    ("tensor parallelism", "system", "capacity", "it decides which GPU holds which weights",
     "one GPU has no room for all weights"),
)
CONSTRAINTS = ("compute", "memory", "communication", "overhead", "capacity", "waiting")


def test_choose_floors(subject):
    got = subject.choose_floors()
    assert isinstance(got, (list, tuple)) and len(got) == len(TECHNIQUES), mistake(
        "not_twelve", f"choose_floors: got {got!r}, expected a list of {len(TECHNIQUES)} strings")
    for number, (answer, row) in enumerate(zip(got, TECHNIQUES, strict=True), 1):
        name, floor, constraint, why_floor, why_constraint = row
        words = answer.split() if isinstance(answer, str) else []
        head = f"choose_floors, line {number}, {name}"
        key = name.lower().replace(" ", "_").replace("-", "_")
        assert len(words) == 2 and words[0] in FLOORS[:3] and words[1] in CONSTRAINTS, mistake(
            "no_such_words", f"{head}: got {answer!r}, expected a floor ({', '.join(FLOORS[:3])}) "
            f"and a constraint ({', '.join(CONSTRAINTS)})")
        assert words[0] == floor, mistake(
            f"floor_of_{key}", f"{head}: not {words[0]}: {why_floor}", why_floor)
        assert words[1] == constraint, mistake(
            f"constraint_of_{key}",
            f"{head}: the floor is right, but not {words[1]}: {why_constraint}", why_constraint)


# ---- given, not exercises


def test_throughput(subject):
    """Tokens over the time from the first arrival to the last token, in whatever order."""
    requests = [subject.Request("A", 2_000_000_000, [3_000_000_000, 6_000_000_000], "", 1, ""),
                subject.Request("B", 1_000_000_000, [5_000_000_000], "", 1, "")]
    assert subject.throughput(requests) == 3 / 5


@pytest.mark.parametrize("text", ["no JSON", "[]", "{}", '{"spans": [], "requests": []}',
                                  '{"spans": [[1]], "requests": [], "batches": []}',
                                  '{"spans": [["decode", "system", 0, 1]], "requests": [], '
                                  '"batches": []}'])
def test_what_is_no_trace_is_refused_in_one_line(subject, tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(Raised, match="trace.json: expected a trace, as python -m layer2"):
        subject.read_trace(str(path))


def test_journey(subject):
    """From the arrival to the last token nothing is left out, and nothing is counted twice."""
    trace = subject.read_trace()
    for request in trace.requests:
        spans = list(subject.journey(trace, request))
        assert spans[0].begin == request.arrival and spans[0].name == "waiting"
        ends = [s.end for s in spans]
        assert [s.begin for s in spans[1:]] == ends[:-1] and request.sent[-1] <= ends[-1]
        assert [s.name for s in spans[1:4]] == ["prefill", "waiting", "decode"]


def test_perfetto(subject):
    """The Trace Event Format: what its complete events must have, and that rows nest."""
    trace = subject.perfetto(subject.read_trace())
    json.dumps(trace)
    rows = {}
    titles = {}
    for event in trace["traceEvents"]:
        assert event["pid"] == 1 and isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] == "thread_name"
            titles[event["tid"]] = event["args"]["name"]
        else:
            assert event["ph"] == "X" and event["ts"] >= 0 and event["dur"] >= 0
            assert isinstance(event["name"], str) and isinstance(event["cat"], str)
            rows.setdefault(event["tid"], []).append(event)
    assert titles.keys() == rows.keys() and len(set(titles.values())) == len(titles)
    for events in rows.values():
        around = []
        for event in events:
            begin, end = (round(1e3 * t) for t in (event["ts"], event["ts"] + event["dur"]))
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)
    serving = next(rows[tid] for tid, title in titles.items() if title == "serving")
    assert [(e["name"], round(1e3 * e["ts"]), round(1e3 * e["dur"])) for e in serving] == \
        [(s[0], s[2], s[3] - s[2]) for s in SPANS]              # dur is in µs


# ---- the record


def test_spans_of_the_record_nest_in_one():
    around = []
    for i, (name, floor, begin, end, flops, moved, operations) in enumerate(SPANS):
        while around and around[-1][3] <= begin:
            around.pop()
        assert (not i or around) and (i == 0 or begin >= SPANS[i - 1][2]) and begin <= end
        assert not around or end <= around[-1][3]
        holder = around[-1][1] if around else "system"
        assert floor in FLOORS and holder == ("graph" if floor == "kernel" else "system"), name
        assert (moved > 0) == (floor == "kernel") and (flops > 0) <= (moved > 0)
        assert (operations > 0) == (floor in ("graph", "kernel"))
        around.append(SPANS[i])


def test_the_record_is_of_two_requests_of_which_one_comes_while_the_other_decodes():
    a, b = RECORD["requests"]
    assert a["sent"][1] < b["arrival"] < a["sent"][-2]
    phases = [SPANS[i][0] for i in STEPS]
    assert phases[0] == "prefill" and phases.count("prefill") == 2 and "decode" in phases[1:3]
    assert len(STEPS) == len(RECORD["batches"])
    for request in (a, b):
        written = [dict(batch)[request["name"]] for batch in RECORD["batches"]
                   if request["name"] in dict(batch)]
        assert written == [request["prompt_tokens"]] + [1] * (len(request["sent"]) - 1)
        ends = [SPANS[i] for i, batch in zip(STEPS, RECORD["batches"], strict=True)
                if request["name"] in dict(batch)]
        assert all(s[2] < t < s[3] for s, t in zip(ends, request["sent"], strict=True))
    assert max(len(batch) for batch in RECORD["batches"]) == 2
    floors = painted(SPANS)
    assert min(RECORD["busy_ns"]) == sum(floors.values()) - floors["idle"]


def test_the_counts_of_the_record_are_those_of_day_1():
    """r03 counts one product for q, k and v, and one for gate and up; here each reads x itself."""
    m, size = RECORD["model"], RECORD["model"]["itemsize"]
    shape = LlamaShape(m["name"], *(m[letter] for letter in "LCHGDFV"), m["tied"])
    N = {}
    for i, pairs in zip(STEPS, RECORD["batches"], strict=True):
        batch, total = dict(pairs), sum(T for _, T in pairs)
        N |= {name: N.get(name, 0) + T for name, T in batch.items()}
        kernels = [s for s in within(i) if s[1] == "kernel"]
        matrices = [s for s in kernels if s[0] in ("matmul", "paged_attention")]
        assert sum(s[4] for s in kernels) == sum(
            sum(count_flops(shape, 1, T, N[name]).values()) for name, T in batch.items())
        each = [count_bytes(shape, 1, T, N[name], size) for name, T in batch.items()]
        weights = sum(kinds[0] for kinds in each[0].values())
        others = sum(kinds[1] + kinds[2] for one in each for kinds in one.values())
        again = 3 * m["L"] * total * m["C"] * size
        assert sum(s[5] for s in matrices) == weights + others + again
        heads, groups = m["H"] * m["D"], m["G"] * m["D"]
        small = prod((2, m["L"], 2 * total * m["C"] + m["C"])) + 2 * len(batch) * m["C"] + m["C"]
        small += m["L"] * total * (2 * (heads + groups) + m["D"] + 4 * groups + 3 * m["F"])
        assert sum(s[5] for s in kernels) - sum(s[5] for s in matrices) == size * small
        assert len(kernels) == 13 * m["L"] + 2


def test_the_record_says_how_it_was_made():
    machine = RECORD["machine"]
    assert RECORD["made_by"] == "python -m layer2_graph.bench.trace"
    assert machine["threads"] == machine["cores_used"] == 1 and RECORD["others_ns"] >= 0
    assert machine["peak"] > machine["bandwidth"] > 1e9
    assert TRACE.stat().st_size < 200_000
    assert set(RECORD["cost_ns"]) == {"row", "addition"}


def test_the_tables_link_every_lesson_that_is_there():
    """And name the others by their id alone."""
    notebooks = {lesson.id[:3]: lesson.notebook for lesson in course.lessons()}
    here = course.find("o01_three_layers")
    cells = json.loads(here.notebook.read_text("utf-8"))["cells"]
    rows = [line for cell in cells for line in "".join(cell["source"]).splitlines()
            if line.startswith("| ") and ("](" in line or re.search(r"`[kgs]\d\d`", line))]
    assert len(rows) >= 30
    for row in rows:
        links = dict(re.findall(r"\[([rokgs]\d\d)\]\(([^)]*)\)", row))
        for name, place in links.items():
            assert (here.notebook.parent / place).resolve() == notebooks.get(name), row
        assert not set(re.findall(r"`([rokgs]\d\d)`", row)) & set(notebooks), f"link it: {row}"
