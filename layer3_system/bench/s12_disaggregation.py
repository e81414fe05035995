"""Prompts here, answers there, into disaggregation.json, all parts or some:

    python -m layer3_system.bench.s12_disaggregation [model] [one] [two] [measured]

model: the goodput frontier of two machines on paper
one: a soak of both sides in one process, on MockLlama, whose pages name their own tokens
two: the same with real processes, the small Llama and kill -9
measured: goodput of two real engines in one process, together and split; the wire is free
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from layer2_graph import CpuLlama, Tokenizer, cpu_kernels, read_config, read_weights
from layer2_graph.models import SMALL
from layer3_system.bench.soak import alone
from layer3_system.disaggregation.faults import FAULTS, OneProcess
from layer3_system.disaggregation.fleet import Fleet
from layer3_system.disaggregation.timeline import frontier
from layer3_system.disaggregation.workers import Parts
from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s03_static_batching import Job
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.s07_engine import Engine
from layer3_system.s09_load_test import Objective, Sample, goodput, poisson_arrivals
from layer3_system.s12_disaggregation import Inbox, Outbox
from layer3_system.testing.mock_llama import ByteTokenizer, MockLlama

RECORD = Path(__file__).with_name("disaggregation.json")
LIKELY = {"repeat": 0.02, "shuffle": 0.3, "tear": 0.003, "drop": 0.003}     # for a part
P = 200                 # pages of a real worker
LOADS = {               # prompt and answer in tokens, TPOT limit, rate, of the small Llama
    "450 in, 50 out, 3 ms a token": (450, 50, 0.003, 8),
    "16 in, 150 out, 5 ms a token": (16, 150, 0.005, 24)}
COUNT = 40              # requests of a load
AT_A_TIME = 14          # requests
PANELS = {                              # prompt and answer in tokens, TPOT limit, rates offered
    "500 in, 150 out, 20 ms a token": (500, 150, 0.02, (1, 2, 3, 4, 5)),
    "500 in, 150 out, 100 ms a token": (500, 150, 0.1, (1, 2, 3, 4, 5)),
    "60 in, 200 out, 20 ms a token": (60, 200, 0.02, (1, 2, 3, 4, 5))}


class Answers:
    """What clients asked for, and what they got."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}

    def take(self, outputs: Any) -> None:
        for id, tokens, _, reason in outputs:
            if id in self.reasons:
                raise AssertionError(f"{id}: an answer after its end")
            self.tokens[id] += tokens
            if reason:
                self.reasons[id] = reason

    def wrong(self, right: Any, aborted: set[str]) -> int:
        """Answers that are not what they must be.  right(request) -> [token]"""
        count = 0
        for id, request in self.requests.items():
            want = right(request)
            end = len(self.tokens[id]) if id in aborted else len(want)
            if self.tokens[id] != want[:end] or (id not in self.reasons) != (id in aborted):
                count += 1
        return count


def drawn_prompt(chance: Random, V: int, begins: list[list[int]]) -> list[int]:
    """A prompt that often begins as others do."""
    begin = chance.choice(begins)
    return begin[:chance.randrange(1, len(begin))] + [
        chance.randrange(V) for _ in range(chance.randrange(1, 30))]


def soak(count: int, kills: int, seed: int = 12) -> dict[str, int]:
    """What happened to `count` requests in one process, `kills` of whose workers died."""
    chance = Random(seed)
    fleet = OneProcess(lambda: MockLlama(120), ByteTokenizer(), chance, LIKELY)
    answers = Answers()
    aborted: set[str] = set()
    begins = [[chance.randrange(256) for _ in range(24)] for _ in range(5)]
    killed = 0
    while len(answers.requests) < count or fleet.router.calls:
        n = len(answers.requests)
        if n < count and len(fleet.router.calls) < AT_A_TIME:
            params = SamplingParams(chance.randrange(1, 16), temperature=chance.choice([0, 1]),
                                    seed=n, ignore_eos=True)
            fleet.router.submit(f"r{n}", drawn_prompt(chance, 256, begins), params)
            answers.requests[f"r{n}"] = fleet.router.calls[f"r{n}"].request
            answers.tokens[f"r{n}"] = []
        if killed * count < n * kills:
            fleet.kill(chance.choice(["prefill", "decode"]), chance.randrange(2))
            killed += 1
        if chance.random() < 0.005:
            id = chance.choice(sorted(fleet.router.calls))
            fleet.router.abort(id)
            aborted.add(id)
        answers.take(fleet.round())
    for _ in range(200):                # leases end
        answers.take(fleet.round())
    counts = fleet.wire.counts
    return {"requests": count, "kills": killed, "clients that left": len(aborted),
            "parts": counts["parts"], "torn or lost": counts["tear"] + counts["drop"],
            "repeated": counts["repeat"], "prompts computed again": fleet.again(),
            "wrong answers": answers.wrong(alone, aborted), "pages held at the end": fleet.used()}


def transfer(inbox: type[Inbox], outbox: type[Outbox], fault: str = "none",
             count: int = 12) -> str:
    """What becomes of some requests between one prefill and one decode worker, with a fault of
    FAULTS or "none" on the wire.
    A learner's Inbox and Outbox may be used."""
    chance = Random(7)
    faults = {kind: 0.5 if kind in ("shuffle", "repeat") else 0.05 for kind in FAULTS
              if kind == fault}
    fleet = OneProcess(lambda: MockLlama(120), ByteTokenizer(), chance, faults, 1, 1, 60,
                       inbox=inbox, outbox=outbox, lease=30, patience=40)
    answers = Answers()
    for n in range(count):
        prompt = [chance.randrange(256) for _ in range(chance.randrange(10, 50))]
        fleet.router.submit(f"r{n}", prompt, SamplingParams(8, temperature=0, ignore_eos=True))
        answers.requests[f"r{n}"] = fleet.router.calls[f"r{n}"].request
        answers.tokens[f"r{n}"] = []
    while fleet.router.calls and fleet.now < 1000:
        answers.take(fleet.round())
    for _ in range(40):
        fleet.round()
    right = count - answers.wrong(alone, set())
    return (f"{right} of {count} answers right, {fleet.wire.counts['parts']} parts, "
            f"{fleet.again()} prompts computed again, {fleet.used()} pages held at the end")


def model() -> dict[str, dict[str, Any]]:
    """The frontier on paper, a panel for each kind of load."""
    return {title: {"offered": rates} | {
        name: [round(rate, 3) for rate in curve]
        for name, curve in frontier(prompt, answer, Objective(1.5, tpot), rates).items()}
        for title, (prompt, answer, tpot, rates) in PANELS.items()}


# ---- real processes


def small_engine() -> Engine:
    """An engine of the small Llama, as a worker builds it."""
    config = read_config(SMALL)
    llama = CpuLlama(config, read_weights(SMALL, config, torch.float32, "cpu"), cpu_kernels())
    pool = PrefixPool(P, 16)
    return Engine(llama, Tokenizer(SMALL, config), pool, Scheduler(pool, 16, 64))


def small_parts(kind: str) -> Parts:
    """What a worker of the small Llama is made of."""
    return Parts(small_engine())


def written_alone(requests: Iterable[Request]) -> dict[str, list[int]]:
    """{id: the tokens that one engine writes for it}"""
    engine = small_engine()
    right = {}
    for request in requests:
        (own,) = engine.submit(request.prompt, request.params)
        while engine.busy:
            engine.step()
        right[request.id] = own.output
    return right


def soak_processes(count: int, kills: int, seed: int = 12) -> dict[str, int]:
    """What happened to `count` requests with one worker of each kind, killed by SIGKILL."""
    chance = Random(seed)
    answers = Answers()
    begins = [[chance.randrange(2, 300) for _ in range(100)] for _ in range(3)]
    killed = again = 0
    with Fleet(small_parts, 1, 1, P) as fleet:
        while len(answers.requests) < count or fleet.router.calls or fleet.deaths < killed:
            n = len(answers.requests)
            up = fleet.deaths == killed and fleet.whole
            if n < count and len(fleet.router.calls) < 6 and up:
                params = SamplingParams(chance.randrange(1, 30), temperature=0, ignore_eos=True)
                fleet.submit(f"r{n}", drawn_prompt(chance, 300, begins), params)
                answers.requests[f"r{n}"] = fleet.router.calls[f"r{n}"].request
                answers.tokens[f"r{n}"] = []
            if killed * count < n * kills and up:
                if killed % 3 == 0:             # its own count dies with it
                    again += fleet.facts()["again"]
                fleet.kill("prefill" if killed % 3 else "decode", 0)
                killed += 1
            answers.take(fleet.poll(chance.random() * 0.02))
        until = time.monotonic() + 60
        while fleet.facts()["used"] and time.monotonic() < until:
            fleet.poll(0.05)
        again += fleet.facts()["again"]
        used = fleet.facts()["used"]
    right = written_alone(answers.requests.values())
    return {"requests": count, "kills": killed, "prompts computed again": again,
            "wrong answers": answers.wrong(lambda request: right[request.id], set()),
            "pages held at the end": used}


# ---- goodput of real engines


def clocked(engine: Engine, jobs: Sequence[Job], received: Any = None
            ) -> tuple[list[list[float]], list[Any]]:
    """(when each job's tokens came, the pages of its prompt) on an engine whose clock is its own
    CPU time, so that other work on the machine counts little."""
    chance = Random(5)
    prompts = [[chance.randrange(2, 300) for _ in range(job.prompt)] for job in jobs]
    times: list[list[float]] = [[] for _ in jobs]
    pages: list[Any] = [None] * len(jobs)
    numbers: dict[Request, int] = {}
    now = 0.0
    n = 0
    while n < len(jobs) or engine.busy:
        if not engine.busy:
            now = max(now, jobs[n].arrival)
        while n < len(jobs) and jobs[n].arrival <= now:
            (request,) = engine.submit(
                prompts[n], SamplingParams(jobs[n].output, temperature=0, ignore_eos=True),
                hold=jobs[n].output == 1, received=received and received[n])
            numbers[request] = n
            n += 1
        began = time.process_time()
        outputs = engine.step()
        ends = [output.request for output in outputs if output.request in engine.intake.held]
        for request in ends:
            pages[numbers[request]] = engine.pages.read(engine.intake.held[request])
            engine.release(request)
        now += time.process_time() - began
        for output in outputs:
            times[numbers[output.request]] += [now] * len(output.tokens)
    return times, pages


def engines_together(jobs: Sequence[Job]) -> list[list[float]]:
    """Two engines that each do all."""
    times: list[list[float]] = [[] for _ in jobs]
    for first in (0, 1):
        times[first::2], _ = clocked(small_engine(), jobs[first::2])
    return times


def engines_split(jobs: Sequence[Job]) -> list[list[float]]:
    """One engine for the prompts, one for the answers; the wire hides."""
    ready, pages = clocked(small_engine(), [job._replace(output=1) for job in jobs])
    later = [job._replace(arrival=tokens[0]) for job, tokens in zip(jobs, ready, strict=True)]
    return clocked(small_engine(), later, pages)[0]


def measured() -> dict[str, dict[str, Any]]:
    """{load: rate offered, and requests a second within the objective}, the small Llama."""
    torch.set_num_threads(1)
    clocked(small_engine(), [Job(0.0, 100, 10)])        # warm
    rows: dict[str, dict[str, Any]] = {}
    for name, (prompt, answer, tpot, rate) in LOADS.items():
        arrivals = poisson_arrivals(rate, COUNT, np.random.default_rng(12))
        arrivals *= COUNT / rate / arrivals[-1]
        jobs = [Job(float(t), prompt, answer) for t in arrivals]
        rows[name] = {"offered": rate}
        for kind, run in (("together", engines_together), ("split", engines_split)):
            samples = [Sample(job.arrival, times[0], times[-1], job.output)
                       for job, times in zip(jobs, run(jobs), strict=True)]
            rows[name][kind] = round(goodput(samples, Objective(0.5, tpot), COUNT / rate), 2)
    return rows


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "model": lambda: {"model": model()},
    "one": lambda: {"one process": soak(2_000, 50)},
    "two": lambda: {"two processes": soak_processes(400, 50)},
    "measured": lambda: {"measured": measured()}}


def main() -> None:
    for part in sys.argv[1:] or PARTS:
        if part not in PARTS:
            raise SystemExit(f"{part!r}: expected {', '.join(PARTS)}")
        new = PARTS[part]()
        record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
        RECORD.write_text(json.dumps(record | new, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
