"""What `lab serve --host-pages` makes: a tier in host memory, one in a file, and what they cost

F, BW and α of s11's `worth_loading` are measured before the server listens, on the machine as it is
then.
"""

import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from layer3_system.file_tier import FileTier, HostOverFile, digest_of
from layer3_system.s01_request import SamplingParams
from layer3_system.s02_block_pool import BlockPool
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s07_engine import Engine
from layer3_system.s11_kv_offload import Costs
from layer3_system.tiers import HostTier, TieredPages

PROMPT = 64             # tokens of the step that is measured, at most
MANY = 16               # pages of the longer copy
ROUNDS = 3              # of each measurement; the median counts


class Tiers(NamedTuple):
    """The tiers that a server was asked for."""

    places: int                     # of host memory
    file: Path | None = None
    records: int = 0                # of the file, at most
    reset: bool = False             # forget what is in the file


def host_of(tiers, config, weights, S, read):
    """The HostTier of `tiers`, over a file if there is one.
    ValueError if it cannot be used.

    read: like s11's read_record
    """
    if config.latent:
        raise ValueError("--host-pages: this model keeps a latent of each token, expected one that "
                         "keeps keys and values")
    if config.linear:
        raise ValueError("--host-pages: this model keeps a state of each request, which pages do "
                         "not hold")
    if tiers.file is None:
        return HostTier(tiers.places)
    length = S * bytes_of_token(config, weights["model.embed_tokens.weight"].dtype)
    file = FileTier(tiers.file, tiers.records, length, digest_of(config, weights, S), tiers.reset,
                    read)
    return HostOverFile(tiers.places, file)


def bytes_of_token(config, dtype):
    """κ: bytes of a token's keys and values, all layers."""
    return 2 * config.L * config.G * config.D * dtype.itemsize


def flops_of_token(m):
    """FLOPs of a token without attention to others and without the scores of the vocabulary."""
    attention = m.C * (m.H + 2 * m.G) * m.D + m.H * m.D * m.C
    dense = 3 * m.C * m.F
    if not m.E:
        return 2 * m.L * (attention + dense)
    routed = m.C * m.E + 3 * m.k * m.C * m.F_expert
    few = len(m.dense_layers)
    return 2 * (m.L * attention + few * dense + (m.L - few) * routed)


def connect(engine, clock=time.perf_counter):
    """Give an engine on a TieredPool its memory below, and the pool its costs."""
    pool = engine.pool
    engine.pages = TieredPages(engine.pages, pool.host)
    pool.costs = measured_costs(engine, clock)
    pool.copies.pages.clear()
    pool.copies.bytes.clear()


def measured_costs(engine, clock=time.perf_counter):
    """The Costs of an engine that has served nothing yet.
    It overwrites page 0.  clock: seconds"""
    m = engine.model.config
    n = min(PROMPT, engine.room - 1)
    flops = flops_of_token(m)
    pair = 4 * m.L * m.H * m.D
    work = n * flops + n * (n + 1) / 2 * pair
    size = bytes_of_token(m, engine.pages.k.dtype)
    one = copy_seconds(engine, 1, clock)
    many = max(copy_seconds(engine, MANY, clock), one * 1.01)       # rounding of a clock
    page = (many - one) / (MANY - 1)
    return Costs(flops, pair, size, work / prefill_seconds(engine, n, clock),
                 engine.pool.S * size / page, max(one - page, 0))


def prefill_seconds(engine, n, clock):
    """Of a step that computes a prompt of n tokens."""
    pool = BlockPool(-(-n // 16) + 1, 16)
    alone = Engine(engine.model, engine.tokenizer, pool, Scheduler(pool, 1, n), engine.sample)
    times = []
    for i in range(ROUNDS):
        alone.submit([(7 * i + j) % engine.model.config.V for j in range(n)],
                     SamplingParams(1, temperature=0))
        times.append(timed(alone.step, engine, clock))
    return median(times)


def copy_seconds(engine, pages, clock):
    """Of a run of copies into that many pages."""
    copies = engine.pool.copies
    times = []
    for _ in range(ROUNDS):
        for _ in range(pages):
            copies.into(0, 0)
        times.append(timed(lambda: copies.run(engine.pages), engine, clock))
    return median(times)


def timed(work, engine, clock):
    """Seconds until it is done on the device, too."""
    began = clock()
    work()
    if engine.pages.k.is_cuda:
        torch.cuda.synchronize(engine.pages.k.device)
    return clock() - began
