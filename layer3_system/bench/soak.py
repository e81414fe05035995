"""Random requests, aborts and steps on an engine that is checked after each:
python -m layer3_system.bench.soak

The model is MockLlama, so each answer can be worked out without an engine.
A run is the same each time, since its name is its seed. benchmarks/soak.txt has the result.
"""

import random
from collections import Counter
from itertools import count
from pathlib import Path

import torch

from lab.course import ROOT
from layer3_system.engine.drafts import Drafter
from layer3_system.s01_request import SamplingParams, sample_row, uniform
from layer3_system.s02_block_pool import BlockPool, Broken
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.s07_engine import Engine, check_engine
from layer3_system.s10_speculative import draw_by_noise, noise
from layer3_system.s11_kv_offload import TieredPool
from layer3_system.speculation import ModelDrafter, shares_of
from layer3_system.testing.mock_llama import ByteTokenizer, MockLlama, mock_scores
from layer3_system.tiers import HostTier, TieredPages

RECORD = Path(ROOT) / "benchmarks" / "soak.txt"
KINDS = ("plain", "no prefix cache", "overlap", "guesses", "draft model", "tiers")
STEPS = 2_500           # of each kind: 15,000 in all
END = 256
ABOUT = """\
Random steps on an engine; made by `python -m layer3_system.bench.soak`. A run is named by its seed.
After each step check_engine checks: pages are free or in use, and counted once for each table that
has them; requests that share a page have the same tokens in it; no request has more tokens computed
than it has, or than fit its pages; a waiting request has none; seats and budget are kept; no
request is lost. At the end each answer is the one that its prompt gets without an engine, up to
where it was aborted."""


def drawn_alone(request, z, place):                 # (V,) -> int
    """The token of a request at a place of its answer."""
    p = request.params
    u = uniform(request.seed, request.index, place)
    return sample_row(z.numpy(), p.temperature, p.top_k, p.top_p, u)


def raced_alone(request, z, place):                 # (V,) -> int
    """The same where a draft model guesses."""
    if not request.params.temperature:
        return int(z.argmax())
    numbers = noise(request.seed, request.index, place, len(z))
    return draw_by_noise(shares_of(z, request), numbers)


def alone(request, scores=mock_scores, draw=drawn_alone):
    """The tokens that a request must get: from the scores of its context, token by token."""
    p = request.params
    out = []
    while len(out) < request.limit - len(request.prompt):
        out.append(draw(request, scores(request.prompt + out, END + 1), len(out)))
        if out[-1] == END and not p.ignore_eos and len(out) >= max(p.min_tokens, 1):
            break
    return out


def narrow(context, V):
    """Scores of four tokens and the end, so that texts often coincide."""
    z = torch.full((V,), -20.0)
    z[:4] = mock_scores(context, 4) / 2
    z[END] = -1
    return z


def narrow_draft(context, V):
    """Scores of a draft model: nearly those of `narrow`."""
    z = narrow(context, V)
    z[:4] += mock_scores([*context, 1], 4) / 8
    return z


class Lottery:
    """Guesses that are right now and then."""

    def __init__(self, seed):
        self.chance = random.Random(seed)

    def propose(self, tokens):
        return [self.chance.randrange(4) for _ in range(self.chance.randrange(4))]


def engine_for(kind, chance):
    """An engine with few pages and seats."""
    drafters = {"guesses": lambda: Drafter(Lottery(kind).propose),
                "draft model": lambda: ModelDrafter(MockLlama(80, scores=narrow_draft), 3, 30, 4)}
    pools = {"no prefix cache": lambda: BlockPool(24, 4),
             "tiers": lambda: TieredPool(24, 4, None, HostTier(12))}
    pool = pools.get(kind, lambda: PrefixPool(24, 4))()
    budget = chance.choice([6, 9, 32])
    chunk = chance.choice([None, 3])
    engine = Engine(MockLlama(80, scores=narrow), ByteTokenizer(), pool,
                    Scheduler(pool, 6, budget, chunk), overlap=kind == "overlap",
                    drafter=drafters[kind]() if kind in drafters else None,
                    clock=count().__next__)
    if kind == "tiers":
        engine.pages = TieredPages(engine.pages, pool.host)
    return engine


def ask(engine, chance):
    """A random request: its answers."""
    begin = chance.choice([[1] * 9, [2, 3] * 8, [0]])
    prompt = begin + [chance.randrange(4) for _ in range(chance.randrange(1, 20))]
    params = SamplingParams(
        chance.randrange(1, 30), temperature=chance.choice([0, 1]), seed=chance.randrange(9),
        n=chance.choice([1, 1, 3]), min_tokens=chance.choice([0, 0, 1]))
    return engine.submit(prompt, params, salt=chance.choice(["", "", "salt"]))


def soak(kind, steps=STEPS):
    """What happened in `steps` random steps and those that finished open requests: {what: count}.

    Broken if an invariant does not hold, or an answer is not what it must be.
    """
    chance = random.Random(kind)
    engine = engine_for(kind, chance)
    every = []
    taken = 0
    while taken < steps or engine.busy:
        if taken < steps and chance.random() < 0.25 and len(engine.scheduler.waiting) < 12:
            every += ask(engine, chance)
        if taken < steps and every and chance.random() < 0.04:
            engine.abort([chance.choice(every[-12:])])
        engine.step()
        check_engine(engine)
        taken += 1
        if taken > steps + 1000:
            raise Broken(f"still busy after {taken} steps")
    reasons = Counter(request.reason for request in every)
    for request in every:
        want = (alone(request, narrow, raced_alone) if kind == "draft model" else
                alone(request, narrow))
        end = len(request.output) if request.reason == "abort" else None
        if request.reason == "error" or request.output != want[:end]:
            raise Broken(f"{request.id} ended by {request.reason} ({request.error}), and wrote "
                         f"{request.output}, expected {want[:end]}")
    return {"steps": taken, "answers": len(every),
            **{name: reasons[name] for name in ("stop", "length", "abort")},
            "tokens written": sum(len(r.output) for r in every),
            "preempted": sum(r.preemptions for r in every),
            "from the cache": sum(r.num_cached for r in every),
            "pages in use at the end": sum(map(bool, engine.pool.refs))}


def line(kind, counts):
    """A run as a line of the log."""
    return f"{kind}: " + ", ".join(f"{name} {number:,}" for name, number in counts.items())


def main():
    lines = [line(kind, soak(kind)) for kind in KINDS]
    RECORD.write_text("\n".join([ABOUT, "", *lines]) + "\n", "utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
