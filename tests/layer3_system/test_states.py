"""A model that keeps a state of each request, served: answers do not depend on company, chunks,
preemption or failures beside them."""

from functools import cache

import pytest
import torch

from layer1_kernels import kernels
from layer2_graph import read_config
from layer2_graph.hybrid import HybridCache, HybridConfig, HybridLlama
from layer2_graph.models import TWINS
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
from layer3_system.states import Seats

PROMPTS = [[5, 6, 7], [8], [9, 10] * 15, [11, 12, 13, 14, 15, 16, 17, 18]]
LAYERS = {"linear": (0, 1, 2), "hybrid": (0, 2)}


class Codec:
    def encode(self, text):
        return [ord(letter) for letter in text]

    def decode(self, tokens):
        return "".join(chr(97 + token % 26) for token in tokens)


@pytest.fixture(scope="module", params=LAYERS)
def model(request):
    torch.manual_seed(1)
    twin = Twin(LINEARS[request.param])
    F = len(twin.model.layers[0].mlp.gate_proj.weight)
    dense = vars(read_config(TWINS / "dense"))
    config = HybridConfig(**dense | {"F": F, "ends": ()}, linear=LAYERS[request.param])
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
