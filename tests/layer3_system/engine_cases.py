"""Engines for the cases that they must handle, and what their answers must be.

The model is MockLlama: it reads its whole context back from the pages and refuses one that is not
the sequence's own, and its scores depend on every token of it.
`alone` works out what each answer must be, with no engine at all.
"""

import sys
from itertools import count

import pytest
import torch

from layer3_system import (
    ByteTokenizer,
    Engine,
    MockLlama,
    PrefixPool,
    SamplingParams,
    Scheduler,
    check_engine,
    mock_scores,
)
from layer3_system.bench.soak import alone
from layer3_system.engine.drafts import Drafter
from layer3_system.s11_kv_offload import TieredPool
from layer3_system.tiers import HostTier, TieredPages

S = 4                                   # slots of a page
END = 256
Pool = PrefixPool                       # what `prefix_pool` makes
Guess = None                            # makes what an `engine` guesses by that has nothing else


def pytest_generate_tests(metafunc):
    """Each test of a file that uses `mode` in all of them."""
    if "mode" in metafunc.fixturenames:
        metafunc.parametrize("mode", ["device", "tiers", "guesses"], indirect=True)


@pytest.fixture(name="mode")
def mode_of_engines(request, monkeypatch):
    """What the engines of a test have besides the device: a tier below, or guesses."""
    here = sys.modules[__name__]
    if request.param == "tiers":
        monkeypatch.setattr(here, "Pool", over_host)
    if request.param == "guesses":
        monkeypatch.setattr(here, "Guess", Guesses)
    return request.param


class Guesses:
    """Guesses at a mock model's greedy tokens, of which one in five is wrong."""

    def __init__(self, k=3):
        self.k = k

    def propose(self, tokens):
        guesses = list(tokens)
        for _ in range(self.k):
            best = int(mock_scores(guesses).argmax())
            guesses.append((best + (len(guesses) % 5 == 0)) % (END + 1))
        return guesses[len(tokens):]


def over_host(P, S):
    """A PrefixPool with 6 places below."""
    return TieredPool(P, S, None, HostTier(6))


def prefix_pool(P, S):
    """A PrefixPool, or one with a tier below where the case has one."""
    return Pool(P, S)


def connected(*parts, **options):
    """An Engine, whose memory below is connected where its pool has one."""
    e = Engine(*parts, **options)
    if isinstance(e.pool, TieredPool):
        e.pages = TieredPages(e.pages, e.pool.host)
    return e


def engine(P=64, max_seqs=8, budget=64, chunk=None, pool=None, room=512, scores=mock_scores,
           **others):
    """An engine with a mock model, P pages of 4 slots, and a clock that ticks once a reading."""
    pages = (pool or prefix_pool)(P, S)
    if Guess is not None and not others.get("overlap"):
        others.setdefault("drafter", Drafter(Guess().propose))
    return connected(MockLlama(room, scores=scores), ByteTokenizer(), pages,
                     Scheduler(pages, max_seqs, budget, chunk), clock=count().__next__, **others)


def params(max_tokens=8, temperature=0, **others):
    return SamplingParams(max_tokens, temperature=temperature, **others)


def run(e, most=2000):
    """All outputs until nothing is left to do; invariants are checked after every step."""
    outputs = []
    for _ in range(most):
        if not e.busy:
            return outputs
        outputs += e.step()
        check_engine(e)
    raise AssertionError(f"still busy after {most} steps: {len(e.scheduler.running)} run")


def text_of(outputs, request):
    return "".join(o.text for o in outputs if o.request is request)


def writing(*tokens):
    """Scores of a model that writes these tokens after any prompt of 2 tokens, then ends."""
    def scores(context, V):
        z = torch.zeros(V)
        written = len(context) - 2
        z[tokens[written] if written < len(tokens) else END] = 9
        return z
    return scores


def same_as_alone(*requests):
    for request in requests:
        assert request.reason in ("stop", "length"), (request.id, request.reason, request.error)
        assert request.output == alone(request), request.id
