"""What a memory below saves, into kv_offload.json, all parts or some:

    python -m layer3_system.bench.s11_kv_offload [conversations] [preemption] [first_token] [copies]

conversations: tokens computed in conversations of several users, by tier; these are counts
preemption: the same, where pages run out while answers are written
first_token: TTFT of the small Llama in such conversations, in seconds of CPU time
copies: seconds to compute a prompt of the 135M shape, to copy its pages, to write and read a file
One thread.
The clock is that of the process, so that other work on the machine counts little.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, BinaryIO

import torch

from layer1_kernels import kernels
from layer2_graph import CpuLlama, Tokenizer, cpu_kernels, load
from layer2_graph.models import SMALL, shape_135m
from layer3_system.model import Model
from layer3_system.records import CHECK, HEADER, record_of
from layer3_system.s01_request import SamplingParams
from layer3_system.s02_block_pool import BlockPool
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.s07_engine import Engine, check_engine
from layer3_system.s11_kv_offload import TieredPool, read_record
from layer3_system.testing.mock_llama import ByteTokenizer, MockLlama
from layer3_system.tiers import HostTier, TieredPages

RECORD = Path(__file__).with_name("kv_offload.json")
P = 100                 # pages of the device
S = 16
TURNS = 4
NEW = 40                # tokens that a user adds in a turn
WRITTEN = 20            # tokens of an answer
USERS = (4, 8, 16, 32)
PLACES = (50, 100, 200, 400, 800, 1600)


def engine_on(pool: BlockPool, model: Model | None = None, **options: Any) -> Engine:
    """An engine of 8 seats; a TieredPool's tier is connected."""
    engine = Engine(model or MockLlama(1024), options.pop("tokenizer", ByteTokenizer()), pool,
                    Scheduler(pool, 8, 256), **options)
    if isinstance(pool, TieredPool):
        engine.pages = TieredPages(engine.pages, pool.host)
    return engine


def converse(engine: Engine, users: int, check: Callable[[Engine], None] = lambda engine: None,
             V: int = 256) -> tuple[int, list[list[int]], list[float]]:
    """(tokens computed, [answer], [TTFT]) of conversations: in each turn all users ask, in an order
    that is drawn, and send all that was said so far."""
    chance = Random(users)

    def text(n: int) -> list[int]:
        return [chance.randrange(2, V) for _ in range(n)]

    talks = [text(chance.randrange(200, 241)) for _ in range(users)]
    params = SamplingParams(WRITTEN, temperature=0, ignore_eos=True)
    computed = 0
    answers = []
    times = []
    for turn in range(TURNS):
        requests = {}
        for user in chance.sample(range(users), users):
            talks[user] += text(NEW) if turn else []
            requests[user] = engine.submit(talks[user], params)[0]
        while engine.busy:
            engine.step()
            computed += sum(engine.counts.values())
            check(engine)
        for user, request in sorted(requests.items()):
            talks[user] = request.tokens
            answers.append(request.output)
            times.append(request.token_times[0] - request.arrival)
    return computed, answers, times


def conversations(users: tuple[int, ...] = USERS, places: tuple[int, ...] = PLACES
                  ) -> dict[str, dict[str, dict[str, int]]]:
    """{users: {tier: {"computed", "out", "into"}}}; all answers are those of a pool that remembers
    nothing."""
    record = {}
    for count in users:
        pools = {"none": BlockPool(P, S), "device": PrefixPool(P, S)} | {
            f"host {n}": TieredPool(P, S, None, HostTier(n)) for n in places}
        pools["enough pages"] = PrefixPool(100 * count, S)
        rows = {}
        want = None
        for name, pool in pools.items():
            computed, answers, _ = converse(engine_on(pool), count, check_engine)
            want = want or answers
            if answers != want:
                raise AssertionError(f"{count} users, {name}: other answers than without a cache")
            pages = pool.copies.pages if isinstance(pool, TieredPool) else {}
            rows[name] = {"computed": computed, "out": pages.get("out", 0),
                          "into": pages.get("into", 0)}
        record[str(count)] = rows
    return record


def preemption() -> dict[str, dict[str, int]]:
    """{pool: {"computed", "preempted"}} of 8 answers of 200 tokens to prompts of 60, 60 pages."""
    record = {}
    for name, pool in (("none", BlockPool(60, S)), ("device", PrefixPool(60, S)),
                       ("host 200", TieredPool(60, S, None, HostTier(200))),
                       ("enough pages", BlockPool(200, S))):
        engine = engine_on(pool)
        params = SamplingParams(200, temperature=0, ignore_eos=True)
        requests = [engine.submit([n] * 60, params)[0] for n in range(8)]
        computed = 0
        while engine.busy:
            engine.step()
            check_engine(engine)
            computed += sum(engine.counts.values())
        record[name] = {"computed": computed, "preempted": sum(r.preemptions for r in requests)}
    return record


def first_token() -> dict[str, Any]:
    """{pool: {"TTFT", "computed"}}: medians over the turns after the first, 8 users."""
    small = load(SMALL, dtype=torch.float32)
    words = Tokenizer(SMALL, small.config)
    record: dict[str, Any] = {"users": 8}
    for name, pool in (("none", BlockPool(P, S)), ("device", PrefixPool(P, S)),
                       ("host 400", TieredPool(P, S, None, HostTier(400)))):
        engine = engine_on(pool, small, tokenizer=words, clock=time.process_time)
        computed, _, times = converse(engine, 8, V=small.config.V)
        record[name] = {"TTFT": round(median(times[8:]), 4), "computed": computed}
    return record


def copies() -> dict[str, float]:
    """Seconds for the 128 tokens of 8 pages of the 135M shape, medians of five."""
    config, weights = shape_135m()
    model = CpuLlama(config, weights, cpu_kernels())
    pool = TieredPool(64, S, None, HostTier(64))
    engine = engine_on(pool, model, sample=kernels("torch").sample)
    runs: dict[str, list[float]] = {"compute": [], "copy": [], "write": [], "read": []}

    def clocked(what: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = work()
        runs[what].append(time.process_time() - began)
        return result

    for i in range(5):
        engine.submit([(7 * i + n) % 1000 for n in range(128)], SamplingParams(1, temperature=0))
        clocked("compute", engine.step)
        for page in range(8):
            pool.copies.into(page, page)
        clocked("copy", partial(pool.copies.run, engine.pages))
        payloads = [pool.copies.memory[page].numpy().tobytes() for page in range(8)]
        with tempfile.TemporaryFile(buffering=0) as file:
            clocked("write", partial(write_all, file, payloads))
            file.seek(0)
            back = clocked("read", partial(read_all, file, len(payloads[0])))
        if back != payloads:
            raise AssertionError("the file gives other pages than were written")
    return {"bytes": 8 * len(payloads[0])} | {
        what: round(median(times), 6) for what, times in runs.items()}


def write_all(file: BinaryIO, payloads: list[bytes]) -> None:
    for payload in payloads:
        file.write(record_of(payload, bytes(32), bytes(32)))


def read_all(file: BinaryIO, length: int) -> list[bytes | None]:
    size = HEADER.size + length + CHECK.size
    return [read_record(file.read(size), bytes(32), bytes(32), length) for _ in range(8)]


PARTS: dict[str, Callable[[], Any]] = {"conversations": conversations, "preemption": preemption,
                                       "first_token": first_token, "copies": copies}


def main() -> None:
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    for name in sys.argv[1:] or PARTS:
        record[name] = PARTS[name]()
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        print(name, json.dumps(record[name]))


if __name__ == "__main__":
    main()
