"""A model that keeps a state of each request, served: answers do not depend on company, chunks,
preemption or failures beside them."""

import re
from dataclasses import replace
from functools import cache

import pytest
import torch

from layer1_kernels import kernels
from layer2_graph import HybridCache, HybridLlama, load_hybrid, read_config
from layer2_graph.models import SMALL, TWINS
from layer2_graph.twins.linear import LINEARS
from layer2_graph.twins.model import Twin
from layer3_system import (
    BlockPool,
    Engine,
    PrefixPool,
    SamplingParams,
    Scheduler,
    StaticScheduler,
    check_engine,
)
from layer3_system.engine.drafts import Drafter
from layer3_system.s01_request import RequestError
from layer3_system.server import assembly, cli
from layer3_system.states import Seats
from tests.layer3_system.server.http_server import Served

PROMPTS = [[5, 6, 7], [8], [9, 10] * 15, [11, 12, 13, 14, 15, 16, 17, 18]]
HYBRID = TWINS / "hybrid"
LAYERS = {"linear": (0, 1, 2), "hybrid": (0, 2)}


class Codec:
    def encode(self, text):
        return [ord(letter) for letter in text]

    def decode(self, tokens):
        return "".join(chr(97 + token % 26) for token in tokens)


@pytest.fixture(scope="module", params=[*LAYERS, "shipped"])
def model(request):
    """Two that are random, and the one that ships; none of them ends a text."""
    if request.param == "shipped":
        m = load_hybrid(HYBRID, dtype=torch.float32)
        return HybridLlama(replace(m.config, ends=()), m.weights, m.ops)
    torch.manual_seed(1)
    twin = Twin(LINEARS[request.param])
    F = len(twin.model.layers[0].mlp.gate_proj.weight)
    config = replace(read_config(TWINS / "dense"), F=F, ends=(), linear=LAYERS[request.param],
                     N=16, W=4)
    weights = {key: weight.detach() for key, weight in twin.named_parameters()}
    return HybridLlama(config, weights, kernels("torch"))


def alone(model, prompt, count):
    """The tokens that follow a prompt, greedily, without an engine."""
    return list(after(model, tuple(prompt)))[:count]


@cache
def after(model, prompt):
    """Twenty of them."""
    states = HybridCache(model.config, 1, len(prompt) + 20)
    answer = []
    step = list(prompt)
    for _ in range(20):
        step = [int(model.forward(states.step([step]), states).argmax())]
        answer += step
    return answer


def serve(engine, prompts=PROMPTS, count=20, **params):
    """The answers of requests that arrive together, checked after each step."""
    wanted = SamplingParams(max_tokens=count, temperature=0, **params)
    requests = [r for prompt in prompts for r in engine.submit(prompt, wanted)]
    while engine.busy:
        engine.step()
        check_engine(engine)
        rows = [engine.seats.rows[r] for r in engine.scheduler.running if r in engine.seats.rows]
        assert len(set(rows)) == len(rows)
    return requests


@pytest.mark.parametrize("P, chunk, overlap", [(6, 7, False), (6, None, True), (64, 7, True)])
def test_each_request_has_its_own_tokens(model, P, chunk, overlap):
    """With 6 pages of 16 slots three of them need more: some are preempted."""
    pool = BlockPool(P)
    engine = Engine(model, Codec(), pool, Scheduler(pool, max_seqs=4, budget=32, chunk=chunk),
                    overlap=overlap)
    requests = serve(engine)
    assert any(r.preemptions for r in requests) == (P == 6)
    for request, prompt in zip(requests, PROMPTS, strict=True):
        assert request.output == alone(model, prompt, 20), prompt


def test_seats_are_taken_again(model):
    """Eight requests, two at a time, also in a batch that waits."""
    for kind in (Scheduler, StaticScheduler):
        pool = BlockPool(64)
        engine = Engine(model, Codec(), pool, kind(pool, max_seqs=2))
        assert engine.pages.state.states.shape[1] == 2
        for request in serve(engine, PROMPTS * 2, 9):
            assert request.output == alone(model, request.prompt, 9)


def test_answers_to_one_prompt_compute_it_each(model):
    engine = Engine(model, Codec())
    requests = serve(engine, [[5, 6, 7]], n=3)
    assert [r.index for r in requests] == [0, 1, 2]
    assert all(r.output == alone(model, [5, 6, 7], 20) for r in requests)


def test_a_kernel_that_fails_ends_one_request_and_spoils_no_state(model):
    """The step fails at its last layer, after states were changed, whenever token 3 is in it."""
    class Faulty(HybridLlama):
        def block(self, i, x, batch, cache):
            x = super().block(i, x, batch, cache)
            if i == 2 and (batch.tokens == 3).any():
                raise RuntimeError("a bad token")
            return x

    prompts = [prompt for prompt in PROMPTS if 3 not in alone(model, prompt, 20)]
    faulty = Faulty(model.config, model.weights, model.ops)
    pool = BlockPool(64)
    engine = Engine(faulty, Codec(), pool, Scheduler(pool, max_seqs=4, chunk=2))
    requests = serve(engine, [*prompts, [20, 21, 22, 3]])
    assert requests[-1].reason == "error" and prompts
    for request, prompt in zip(requests, prompts, strict=False):
        assert request.output == alone(model, prompt, 20)


def test_a_sampler_that_fails_spoils_no_state(model):
    """It fails in the third step, after the model has taken the tokens in."""
    own = model.ops.sample
    failures = iter([False, False, True])

    def sample(scores, wanted):
        if len(scores) > 1 and next(failures, False):
            raise RuntimeError("once")
        return own(scores, wanted)

    pool = BlockPool(64)
    engine = Engine(model, Codec(), pool, Scheduler(pool, max_seqs=4), sample=sample)
    for request, prompt in zip(serve(engine), PROMPTS, strict=True):
        assert request.output == alone(model, prompt, 20)
    assert not next(failures, False)


def test_what_a_state_forbids(model):
    with pytest.raises(ValueError, match="a prefix cache cannot serve a model with state"):
        Engine(model, Codec(), PrefixPool(64))
    with pytest.raises(ValueError, match="keeps a state; guesses cannot be taken back"):
        Engine(model, Codec(), drafter=Drafter(lambda tokens: []))
    engine = Engine(model, Codec())
    assert not isinstance(engine.pool, PrefixPool)
    with pytest.raises(RequestError, match="which pages do not hold"):
        engine.submit([5], hold=True)


def test_seats_are_given_back_by_those_that_do_not_run():
    seats = Seats(2)
    a, b, c = "abc"
    first = seats.of([a, b], [a, b]).tolist()
    assert sorted(first) == [0, 1]
    assert seats.of([b, c], [b, c]).tolist() == [first[1], first[0]]
    assert seats.of([], [b]).tolist() == [] and len(seats.free) == 1


# ---- served


@pytest.fixture
def serve_words(command, monkeypatch):
    """serve_words(*words): (exit code, output, errors, engines) of `lab serve`, which stops before
    it listens."""
    engines = []
    monkeypatch.setattr(cli, "listener_of", lambda engine, *_: engines.append(engine))
    monkeypatch.setattr(cli, "run", lambda *_: None)

    def run(*words):
        code, said, wrong = command(cli.app, "serve", "--port", 0, *words)
        return code, said, " ".join(wrong.split()), engines

    return run


def written(engine, text, count=60):
    """What the model writes after a text, alone, whatever ends a text."""
    prompt = engine.tokenizer.encode(text)
    cache = HybridCache(engine.model.config, 1, len(prompt) + count)
    tokens = []
    step = prompt
    while len(tokens) < count:
        step = [int(engine.model.forward(cache.step([step]), cache).argmax())]
        tokens += step
    decode = engine.tokenizer.decode
    return decode(prompt + tokens)[len(decode(prompt)):]


@pytest.mark.parametrize("words", [[], ["--async-scheduling", "--chunk", 8]])
def test_the_shipped_model_is_served(serve_words, words):
    """Over HTTP, on too few pages for all: the answers are those that it gives alone."""
    code, said, wrong, engines = serve_words(HYBRID, "--pages", 14, "--max-seqs", 4, *words)
    assert not code, wrong
    assert "BlockPool        reference" in said and "PrefixPool" not in said
    engine, = engines
    assert type(engine.model) is HybridLlama and not isinstance(engine.pool, PrefixPool)
    texts = ["Once upon a time", "Tom had a red ball.", "One day", "The cat", "Her mum"]
    server = Served(engine)
    try:
        answer = server.post(prompt=texts, max_tokens=60, temperature=0, ignore_eos=True)
        server.drained()
        metrics = server.http.get("/metrics").text
    finally:
        server.end()
    assert [choice["text"] for choice in answer.json()["choices"]] == [
        written(engine, text) for text in texts]
    assert float(re.search(r'num_preemptions_total{.*} (.*)', metrics)[1]) > 0


def test_parts_of_a_learner_that_serve_states():
    """Their BlockPool does; what finds prefixes is not asked for."""
    class Own(BlockPool):
        def grow(self, table, N):
            self.grown = True
            return BlockPool.grow(self, table, N)

    m = read_config(HYBRID)
    setup = assembly.Setup(HYBRID, "hybrid", "torch", None, "float32", (), None, {}, None, 4, False,
                           None)
    assert {"PrefixPool", "HashChain"}.isdisjoint(setup.candidates(m))
    model = load_hybrid(HYBRID, dtype=torch.float32)
    engine = assembly.build(model, Codec(), model.ops, {"BlockPool": Own}, 40)
    request, = engine.submit([5, 6], SamplingParams(max_tokens=40, temperature=0))
    while engine.busy:
        engine.step()
        check_engine(engine)
    assert engine.pool.grown and request.reason in ("length", "stop")


@pytest.mark.parametrize("words, says", [
    (["--draft", "lookup"], "--draft: hybrid keeps a state of each request, which takes no guess"),
    (["--draft", "shipped", "--replicas", 2], "--draft: hybrid keeps a state of each request"),
    (["--host-pages", 4], "--host-pages: this model keeps a state of each request, which pages do"),
    (["--prefill", 1, "--decode", 1], "--prefill: hybrid has a cache of another kind than keys"),
    (["--tp", 2], "hybrid keeps a state in 2 of its 3 layers, expected keys and values in all")])
def test_flags_that_a_state_forbids(serve_words, words, says):
    code, said, wrong, engines = serve_words(HYBRID, *words)
    assert (code, said, engines) == (2, "", []) and says in wrong


def test_a_draft_model_keeps_no_state(serve_words):
    code, _, wrong, _ = serve_words(SMALL, "--draft", HYBRID)
    assert code == 2 and f"--draft {HYBRID}: a model that keeps a state of each request" in wrong
