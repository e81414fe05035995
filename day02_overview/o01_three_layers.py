"""o01 · The three-storey building: every nanosecond of serving belongs to one floor

A span is a stretch of time with a name: [begin, end), in ns.
Spans nest: a call and what it calls.
kernel: inside one operation   graph: the model's code between operations
system: the serving code around the model   idle: there is no request
TTFT: time to first token   TPOT: time per output token   TPS: tokens per second
MFU: model FLOPs utilisation, the share of the peak FLOP/s that a model's own FLOPs take
"""

import json
from pathlib import Path
from typing import NamedTuple

__all__ = ["FLOORS", "TRACE", "Request", "Span", "Step", "Trace", "journey", "latencies",
           "perfetto", "read_trace", "roof_shares", "throughput", "time_by_floor"]

TRACE = Path(__file__).parent / "trace.json"        # written by python -m layer2_graph.bench.trace
FLOORS = ("kernel", "graph", "system", "idle")


class Span(NamedTuple):
    name: str
    floor: str              # one of FLOORS
    begin: int              # ns
    end: int                # ns
    flops: int = 0          # FLOPs that a kernel must do
    moved: int = 0          # bytes that it must read and write
    operations: int = 0     # PyTorch operations inside it; of a forward, those outside its kernels


class Step(NamedTuple):
    """One step: a forward, and the serving code before and after it."""

    phase: str              # prefill or decode
    batch: dict             # {name of a request: its new tokens}
    spans: list             # [Span]: first the whole step, then every span inside it


class Request(NamedTuple):
    name: str
    arrival: int            # ns
    sent: list              # [ns]: when each new token was sent to the user
    prompt: str
    prompt_tokens: int
    answer: str


class Trace(NamedTuple):
    about: dict             # how it was made: machine, versions, model
    requests: list          # [Request]
    steps: list             # [Step]
    spans: list             # [Span]: all, in order of beginning; the first holds the others


def read_trace(path=TRACE):
    """The Trace in a file written by layer2_graph.bench.trace.
    ValueError if it is not one."""
    try:
        about = json.loads(Path(path).read_text("utf-8"))
        spans = [Span(*row) for row in about.pop("spans")]
        requests = [Request(**entry) for entry in about.pop("requests")]
        whole = [s for s in spans if s.name in ("prefill", "decode")]
        steps = [Step(s.name, dict(batch), [s, *inside(spans, s)])
                 for s, batch in zip(whole, about.pop("batches"), strict=True)]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{path}: expected a trace, as python -m layer2_graph.bench.trace writes "
                         f"it; found {type(error).__name__}: {error}") from None
    return Trace(about, requests, steps, spans)


def inside(spans, outer):
    """The spans inside another one, without that one."""
    return [s for s in spans if s is not outer and outer.begin <= s.begin and s.end <= outer.end]


# ---- floors


def predict_floor():
    """Your guess: the floor with the largest share of a decode step's time, "kernel", "graph" or
    "system"."""
    # exercise: a small model on a CPU, one or two tokens per step, 54 kernels per step
    return "kernel"


def time_by_floor(spans):
    """{floor: ns} with the keys FLOORS.
    Each nanosecond counts once, for its innermost span.

    spans: [Span] in order of beginning, an outer span before those inside it.
    Two spans either nest or do not overlap; one may begin in the nanosecond in which another ends.
    """
    time = dict.fromkeys(FLOORS, 0)
    running = []                # the spans still open, the innermost last
    # exercise: add each span's length to its floor, and subtract it from that of the span around it
    for span in spans:
        while running and running[-1].end <= span.begin:
            running.pop()
        length = span.end - span.begin
        time[span.floor] += length
        if running:
            time[running[-1].floor] -= length
        running.append(span)
    return time


# ---- how each floor is measured


def roof_shares(spans, peak, bandwidth):
    """(share of the bandwidth, MFU), two numbers of 0 or more; 1 is the roof.

    spans: [Span], first the whole step, then every span inside it; kernels do not nest
    peak: FLOP/s    bandwidth: byte/s
    Divide the bytes by the time in which kernels ran, the FLOPs by the time of the whole step.
    Source of MFU: "PaLM", Chowdhery et al., 2022, section 4.1.
    """
    kernels = [s for s in spans if s.floor == "kernel"]
    # exercise: a rate is bytes or FLOPs divided by seconds; the times of a span are in ns
    ran = sum(s.end - s.begin for s in kernels) / 1e9
    whole = (spans[0].end - spans[0].begin) / 1e9
    moved = sum(s.moved for s in kernels)
    flops = sum(s.flops for s in kernels)
    return moved / ran / bandwidth, flops / whole / peak


def latencies(request):
    """(TTFT, TPOT) in seconds; TPOT is None if there is only one token.

    TTFT counts from the arrival, so it includes waiting.
    TPOT is the mean time from one token to the next; the time to the first token is not part of it.
    """
    # exercise: how many gaps are there between n tokens?
    first = request.sent[0]
    last = request.sent[-1]
    gaps = len(request.sent) - 1
    ttft = (first - request.arrival) / 1e9
    return ttft, (last - first) / gaps / 1e9 if gaps else None


def throughput(requests):
    """TPS: new tokens of all requests, divided by the seconds from first arrival to last token."""
    seconds = (max(r.sent[-1] for r in requests) - min(r.arrival for r in requests)) / 1e9
    return sum(len(r.sent) for r in requests) / seconds


# ---- techniques


def choose_floors():
    """Floor and constraint of twelve techniques: a list of twelve strings, such as "kernel memory".

    1   flash attention: softmax runs tile by tile, and the T · N scores never go to memory
    2   tensor cores: instructions that multiply 16-bit tiles replace those for single numbers
    3   ring all-reduce: to add up their results, each GPU sends parts to one neighbour instead of
        everything to every GPU
    4   kernel fusion: one kernel does the addition and the norm after it, so the sum is not read
        again
    5   CUDA graphs: the launches of a step are recorded once, and replayed by one call
    6   quantised weights: a decode step reads weights of 4 bits instead of 16
    7   prefetch: the next layer's weights are copied from the host while this layer computes
    8   continuous batching: a request joins at the next step, not after the whole batch is finished
    9   paged KV cache: a context is given small pages as it grows, not one piece large enough for
        the longest
    10  prefix cache: the part that many prompts share is prefilled only once
    11  speculative decoding: a small model guesses the next tokens, so that one step of the large
        model reads its weights for several tokens
    12  tensor parallelism: the weights, too large for one GPU, are split over several

    Floors: kernel, graph, system
    Constraints: compute, memory, communication, overhead, capacity, waiting
    """
    # exercise: for each of the twelve a floor, a space and a constraint
    return ["kernel memory", "kernel compute", "kernel communication",
            "graph memory", "graph overhead", "graph memory", "graph communication",
            "system waiting", "system capacity", "system compute", "system memory",
            "system capacity"]


# ---- to look at


def journey(trace, request):
    """[Span] of one request from its arrival to its last token: waiting, prefill, decode."""
    spans = []
    at = request.arrival
    for step in trace.steps:
        if request.name in step.batch:
            whole = step.spans[0]
            spans.append(Span("waiting", "system", at, whole.begin))
            spans.append(whole)
            at = whole.end
    return spans


def perfetto(trace):
    """The trace for ui.perfetto.dev, as a dict to be written with json.dump.

    Source: "Trace Event Format", the Chromium project. ph X is a whole span, ts and dur are in µs;
    ph M gives a row its name.
    Spans of a row nest.
    """
    rows = {"serving": trace.spans} | {f"request {r.name}": journey(trace, r)
                                       for r in trace.requests}
    events = []
    for tid, (title, spans) in enumerate(rows.items(), 1):
        row = {"pid": 1, "tid": tid}
        events.append({"ph": "M", "name": "thread_name", "args": {"name": title}, **row})
        events += [{"ph": "X", "name": s.name, "cat": s.floor, "ts": s.begin / 1e3,
                    "dur": (s.end - s.begin) / 1e3,
                    "args": {"FLOP": s.flops, "bytes": s.moved}, **row}
                   for s in spans]
    return {"displayTimeUnit": "ns", "traceEvents": events}
