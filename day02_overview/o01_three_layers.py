"""o01 · The three-storey building: every nanosecond of serving belongs to one floor

A span is a stretch of time with a name: [begin, end), in ns. Spans nest: a call and what it calls.
kernel: inside one operation   graph: the forward around its operations
system: the serving around the forward   idle: there is no work
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
    floor: str
    begin: int              # ns
    end: int                # ns
    flops: int = 0          # that a kernel must do
    moved: int = 0          # bytes that it must read and write
    operations: int = 0     # of PyTorch, in a kernel or in a forward outside its kernels


class Step(NamedTuple):
    """One forward, and what is done before and after it."""

    phase: str              # prefill or decode
    batch: dict             # {name of a request: its new tokens}
    spans: list             # [Span]: the whole step first, then all in it


class Request(NamedTuple):
    name: str
    arrival: int            # ns
    sent: list              # [ns]: when each new token reached its reader
    prompt: str
    prompt_tokens: int
    answer: str


class Trace(NamedTuple):
    about: dict             # how it was made: machine, versions, model
    requests: list
    steps: list
    spans: list             # all, in the order in which they began; the first holds the others


def read_trace(path=TRACE):
    """The Trace in a file of layer2_graph.bench.trace. ValueError if the file is not one."""
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
    """The spans that run within `outer`, itself left out."""
    return [s for s in spans if s is not outer and outer.begin <= s.begin and s.end <= outer.end]


# ---- floors


def predict_floor():
    """The floor that most of the time of a decode step belongs to: kernel, graph or system."""
    # exercise: a small model, one or two rows a step, on a CPU; a step calls 54 kernels
    return "kernel"


def time_by_floor(spans):
    """{floor: ns}, keys FLOORS. Each nanosecond counts once: for the innermost span it is in.

    spans: [Span] in the order in which they began, a span before those inside it. Two either nest
    or do not overlap; one may begin in the nanosecond in which another has ended.
    """
    time, running = dict.fromkeys(FLOORS, 0), []    # running: spans, each inside the last
    # exercise: a span's length goes to its floor, and is taken from the floor of the one around it
    for span in spans:
        while running and running[-1].end <= span.begin:
            running.pop()
        length = span.end - span.begin
        time[span.floor] += length
        if running:
            time[running[-1].floor] -= length
        running.append(span)
    return time


# ---- what each floor is judged by


def roof_shares(spans, peak, bandwidth):
    """(bandwidth share of the kernels, MFU of the step), two numbers >= 0; 1 is the roof.

    spans: [Span], a whole step first, then all in it; no kernel lies within another
    peak: FLOP/s    bandwidth: byte/s
    The kernels are judged by the time in which a kernel ran, the graph by the time of the step.
    Source of MFU: "PaLM", Chowdhery et al., 2022, section 4.1; here with the FLOPs in `spans`.
    """
    kernels = [s for s in spans if s.floor == "kernel"]
    # exercise: a rate is bytes or FLOPs over seconds; a span is in ns
    ran = sum(s.end - s.begin for s in kernels) / 1e9
    whole = (spans[0].end - spans[0].begin) / 1e9
    moved = sum(s.moved for s in kernels)
    flops = sum(s.flops for s in kernels)
    return moved / ran / bandwidth, flops / whole / peak


def latencies(request):
    """(TTFT, TPOT) in seconds; TPOT is None where there is one token.

    TTFT counts from the arrival, so it includes waiting. TPOT is the mean time from one token to
    the next, so it leaves out the wait for the first.
    """
    # exercise: how many gaps are there between n tokens?
    first = request.sent[0]
    last = request.sent[-1]
    gaps = len(request.sent) - 1
    ttft = (first - request.arrival) / 1e9
    return ttft, (last - first) / gaps / 1e9 if gaps else None


def throughput(requests):
    """TPS: new tokens of all requests over the seconds from the first arrival to the last token."""
    seconds = (max(r.sent[-1] for r in requests) - min(r.arrival for r in requests)) / 1e9
    return sum(len(r.sent) for r in requests) / seconds


# ---- techniques


def choose_floors():
    """The floor and the constraint of twelve techniques: a list of twelve texts, two words each.

    1   flash attention: softmax runs tile by tile, and the T · N scores never go to memory
    2   tensor cores: the instructions that multiply 16-bit tiles replace those for single numbers
    3   ring all-reduce: to add up their results, GPUs send parts to a neighbour, not all to all
    4   kernel fusion: the norm's kernel does the addition before it, so the sum is not read again
    5   CUDA graphs: the launches of a step are recorded once, and replayed by one call
    6   quantised weights: a decode step reads matrices of 4 bits instead of 16
    7   pinned prefetch: the next layer's weights come from the host while this layer computes
    8   continuous batching: a request joins at the next step, not when the batch has ended
    9   paged KV cache: a context gets small pages as it grows, not one piece for the longest
    10  prefix cache: a prompt that many requests share is prefilled once
    11  speculative decoding: a draft guesses, so that one step reads the weights for several tokens
    12  tensor parallelism: the weights, too large for one GPU, are split over several
    """
    # exercise: kernel, graph or system; compute, memory, communication, overhead, capacity, waiting
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
    ph M gives a row its name. Spans of a row nest.
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
