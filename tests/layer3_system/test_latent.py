"""An engine whose model keeps latents: pages, prefixes, copies and transfers as with keys."""

from dataclasses import replace

import pytest
import torch

from layer2_graph import LatentCache, LatentPages, load_latent
from layer2_graph.models import TWINS
from layer3_system import (
    BlockPool,
    ByteTokenizer,
    Engine,
    PrefixPool,
    SamplingParams,
    Scheduler,
    check_engine,
    hand_over,
    prefill,
)

MODEL = load_latent(TWINS / "latent", dtype=torch.float32)
GREEDY = SamplingParams(8, temperature=0, ignore_eos=True)
PROMPTS = [[0, 300 + n, *range(400, 412 + 3 * n)] for n in range(4)]


def engine(P=32, chunk=None, pool=PrefixPool):
    pages = pool(P, 8)
    return Engine(MODEL, ByteTokenizer(), pages, Scheduler(pages, 4, 32, chunk))


def run(e):
    while e.busy:
        e.step()
        check_engine(e)


def alone(prompt, count=8):
    cache = LatentCache(MODEL.config, 1, len(prompt) + count)
    tokens, step = [], prompt
    for _ in range(count):
        step = [int(MODEL.forward(cache.step([step]), cache)[0].argmax())]
        tokens += step
    return tokens


@pytest.mark.parametrize("P, chunk, pool", [(32, None, BlockPool), (8, 5, PrefixPool)])
def test_requests_share_steps_and_pages(P, chunk, pool):
    """The second pool is too small for all: some are preempted and come back."""
    e = engine(P, chunk, pool)
    assert type(e.pages) is LatentPages and e.pages.k.shape == (3, P, 8, 1, 48)
    requests = [e.submit(prompt, replace(GREEDY, max_tokens=24))[0] for prompt in PROMPTS]
    run(e)
    assert [r.output for r in requests] == [alone(p, 24) for p in PROMPTS]
    assert any(r.preemptions for r in requests) == (P == 8)


def test_answers_that_share_a_page_copy_it():
    e = engine()
    answers = e.submit(PROMPTS[1], replace(GREEDY, n=3))
    run(e)
    assert [r.output for r in answers] == [alone(PROMPTS[1])] * 3


def test_latents_are_handed_over():
    here, there = engine(), engine()
    request = prefill(here, PROMPTS[2], GREEDY)
    run(here)
    sent = []
    (other,) = hand_over(request, here, there, GREEDY, lambda k, v: sent.append(k.numel()
                                                                                + v.numel())
                         or (k, v))
    run(there)
    assert other.output == alone(PROMPTS[2])
    assert sent == [3 * 3 * 8 * 48]                 # 20 tokens lie in 3 pages; no values are sent
