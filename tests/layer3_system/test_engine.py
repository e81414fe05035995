"""An engine on each back end, under faults, and in a soak of random steps."""

import pytest
import torch

from day02_overview import NANO
from lab import device, simulator
from layer1_kernels import kernels
from layer2_graph import PagedCache, greedy, load
from layer2_graph.generate import ROUNDING
from layer3_system import (
    BlockPool,
    Broken,
    ByteTokenizer,
    Engine,
    MockLlama,
    Pages,
    PrefixPool,
    Scheduler,
)
from layer3_system.bench.soak import KINDS, RECORD, alone, line, soak
from layer3_system.s01_request import Detokenizer
from tests.layer3_system.engine_cases import (
    S,
    connected,
    engine,
    params,
    prefix_pool,
    run,
    same_as_alone,
)


@pytest.mark.parametrize("table", ["triton", "cuda"])
def test_case_24_on_each_back_end(table, request):
    """The kernels of a back end, in the simulator without a GPU: PyTorch's tokens, up to a tie."""
    device.use_best()
    request.addfinalizer(simulator.deactivate_triton if device.gpu() is None else lambda: None)
    nano = load(NANO, kernels(table), torch.float32, device.torch_device())
    oracle = load(NANO, dtype=torch.float32)
    prompts = [[10, 97, 32, 119], [10] + list(range(97, 110)), [10, 116]]
    for chunk, P in ((None, 32), (5, 5)):
        pages = prefix_pool(P, 16)
        e = connected(nano, ByteTokenizer(), pages, Scheduler(pages, 3, 16, chunk),
                      sample=nano.ops.sample)
        answers = [e.submit(p, params(4, ignore_eos=True))[0] for p in prompts]
        run(e)
        for answer, prompt in zip(answers, prompts, strict=True):
            own = greedy(oracle, [prompt], 4)[0]
            if answer.output != own:
                at = next(i for i in range(4) if answer.output[i] != own[i])
                assert gap(oracle, prompt + own[:at], own[at], answer.output[at]) < ROUNDING


def gap(model, context, token, other):
    """How much a model prefers a token to another after a context."""
    cache = PagedCache(model.config, 1, len(context))
    z = model.forward(cache.step([context]), cache)[0]
    return float(z[token] - z[other])


# ---- faults


class Cracked(MockLlama):
    """A model whose kernel raises where a token is 13."""

    def forward(self, step, cache, every=False):
        if (step.tokens == 13).any():
            raise FloatingPointError("unlucky")
        return super().forward(step, cache, every)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_kernel_that_raises(overlap):
    """That request fails and says why; the others go on, and no page is lost."""
    pool = prefix_pool(64, S)
    e = connected(Cracked(), ByteTokenizer(), pool, Scheduler(pool, 8, 64), overlap=overlap)
    asked = params(4, ignore_eos=True, min_tokens=4)
    good, bad, late = [e.submit([n] * 5, asked)[0] for n in (1, 13, 2)]
    outputs = run(e)
    assert (bad.reason, bad.error) == ("error", "FloatingPointError: unlucky")
    assert [o.reason for o in outputs if o.request is bad] == ["error"] and not e.pool.used
    for r in (good, late):
        assert 13 in alone(r) or r.output == alone(r)
        assert r.reason == ("error" if 13 in alone(r)[:-1] else "length")


def test_scores_that_are_no_numbers():
    e = engine(scores=lambda context, V: torch.full((V,), float("nan") if context[0] == 1 else 0.0))
    bad, good = [e.submit([n] * 5, params(2))[0] for n in (1, 2)]
    outputs = [(o.tokens, o.reason) for o in run(e) if o.request is bad]
    assert outputs == [([], "error")] and not e.pool.used
    assert bad.reason == "error" and "not finite" in bad.error and good.reason == "length"


def test_a_text_that_cannot_be_decoded_ends_its_own_request():
    class Torn(ByteTokenizer):
        def decode(self, tokens):
            if 13 in tokens:
                raise ValueError("no text")
            return super().decode(tokens)

    pool = prefix_pool(64, S)
    scores = lambda context, V: torch.eye(V)[13 if context[0] == 1 else 65]     # noqa: E731
    e = connected(MockLlama(scores=scores), Torn(), pool, Scheduler(pool, 8, 64))
    bad, good = [e.submit([n] * 5, params(3))[0] for n in (1, 2)]
    run(e)
    assert (bad.reason, bad.error) == ("error", "ValueError: no text")
    assert good.output == [65] * 3 and not e.pool.used


def test_a_mark_amid_an_answer_costs_no_space():
    """As tokenizers of SentencePiece have it: a text's first space is not shown."""
    words = {1: "▁Hello", 2: "▁world"}

    def decode(tokens):
        return "".join(words.get(t, "") for t in tokens).replace("▁", " ").removeprefix(" ")

    letters = Detokenizer(decode, [1])
    assert [letters.add(token) for token in (1, 0, 0, 2)] == [" Hello", "", "", " world"]


# ---- a cache that is the model's own


class Latent(MockLlama):
    """A model that makes its own cache."""

    def make_cache(self, *sizes):
        self.sizes = sizes
        self.cache = Pages(self.config, *sizes)
        return self.cache

    def forward(self, batch, cache, every=False):
        assert cache is self.cache
        return super().forward(batch, cache, every)


def test_a_model_may_make_its_own_cache():
    """Of the pool's pages, the weights' dtype and device; forks and preemptions work on it."""
    model, pool = Latent(), BlockPool(7, S)
    e = Engine(model, ByteTokenizer(), pool, Scheduler(pool))
    answers = [*e.submit([1, 2, 3, 4, 5], params(ignore_eos=True, n=2)),
               *e.submit([6] * 9, params(ignore_eos=True))]
    run(e)
    assert e.pages is model.cache
    assert model.sizes == (7, S, model.embedding.dtype, model.embedding.device)
    assert any(r.preemptions for r in answers)
    same_as_alone(*answers)


# ---- the soak


@pytest.mark.parametrize("kind", KINDS)
def test_random_steps(kind):
    """Random requests, aborts and steps; every invariant after each; then every answer."""
    counts = soak(kind, 300)
    assert min(counts[name] for name in ("abort", "stop", "length")) > 0, counts
    assert counts["pages in use at the end"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_soak(kind):
    """The same, thousands of steps: the counts are those in benchmarks/soak.txt."""
    counts = soak(kind)
    assert min(counts[name] for name in ("abort", "stop", "length", "preempted")) > 10, counts
    assert (counts["from the cache"] > 100) == (kind != "no prefix cache")
    assert counts["pages in use at the end"] == 0
    assert line(kind, counts) in RECORD.read_text("utf-8").splitlines()


def test_a_soak_sees_what_breaks(monkeypatch):
    """A page that is forgotten, and a token that is not the sequence's own."""
    with monkeypatch.context() as patched:
        patched.setattr(PrefixPool, "release", lambda self, table: table.clear())
        with pytest.raises(Broken):
            soak("plain", 100)
    monkeypatch.setattr("layer3_system.bench.soak.alone", lambda request, scores: [0])
    with pytest.raises(Broken, match="request-"):
        soak("plain", 100)
