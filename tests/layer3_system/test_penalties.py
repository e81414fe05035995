"""Penalties, min_p and a bias: against transformers' processors, and in every kind of batch."""

import math

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
)

from layer3_system import (
    ByteTokenizer,
    Engine,
    MockLlama,
    PrefixPool,
    Request,
    SamplingParams,
    Scheduler,
    check_engine,
    logprobs_of,
    mock_scores,
)
from layer3_system.engine.drafts import Drafter
from layer3_system.engine.draws import Draw, adjusted
from tests.layer3_system.server.http_server import NAME, served

V = 257
EVERY = {"presence_penalty": 1.5, "frequency_penalty": 0.7, "repetition_penalty": 1.4,
         "min_p": 0.02, "logit_bias": ((65, 4.0), (66, -100))}


def scores(seed=0, rows=1):
    """Some above 0, some below, in float32."""
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 5


def request(prompt=(1, 2, 3), output=(), draft=(), **params):
    one = Request("r", list(prompt), SamplingParams(**params))
    one.output, one.draft = list(output), list(draft)
    return one


def row(z, one, place=0, newest=None):
    (out,) = adjusted(z.clone(), [Draw(one, 0, place)], {} if newest is None else {one: newest})
    return out


# ---- one row


@pytest.mark.parametrize("penalty", [0.5, 1.2, 3.0])
@pytest.mark.parametrize("output", [(), (5, 5, 200)])
def test_repetition_is_transformers(penalty, output):
    z, one = scores(), request(output=output, repetition_penalty=penalty)
    want = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([one.tokens]), z.clone())[0]
    assert torch.equal(row(z, one), want) and not torch.equal(want, z[0])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_min_p_is_transformers(temperature, share):
    """From what temperature leaves; the likeliest always stays."""
    z = scores()
    heated = TemperatureLogitsWarper(temperature)(None, z.clone())
    want = MinPLogitsWarper(share)(None, heated)[0].isfinite()
    ours = row(z, request(min_p=share, temperature=temperature))
    assert torch.equal(ours.isfinite(), want) and 0 < want.sum() < V
    assert torch.equal(ours[want], z[0][want])


def test_min_p_means_nothing_to_the_likeliest():
    z = scores()
    assert torch.equal(row(z, request(min_p=0.5, temperature=0)), z[0])


def test_a_bias_is_transformers():
    z, pairs = scores(), ((3, 2.5), (200, -100.0))
    want = SequenceBiasLogitsProcessor({(t,): v for t, v in pairs})(torch.tensor([[1]]), z.clone())
    assert torch.equal(row(z, request(logit_bias=pairs)), want[0])


def test_presence_and_frequency_are_of_the_answer():
    """Once for being there, and each time; a token of the prompt alone costs nothing."""
    z = scores()
    ours = row(z, request(prompt=(1, 5), output=(5, 5, 7), presence_penalty=0.5,
                          frequency_penalty=0.25))
    want = z[0].clone()
    want[5] -= 0.5 + 2 * 0.25
    want[7] -= 0.5 + 0.25
    assert torch.equal(ours, want)


def test_the_order_is_vllms():
    """The bias first, so that the repetition penalty sees its sign; then what is taken off."""
    z = torch.full((1, V), -1.0)
    ours = row(z, request(prompt=[9], output=[9], logit_bias=((9, 5),), repetition_penalty=2,
                          frequency_penalty=1, presence_penalty=0.5))
    assert ours[9] == (-1 + 5) / 2 - 1 - 0.5


def test_guesses_and_tokens_on_their_way_count():
    z = scores()
    want = row(z, request(output=(5, 6), frequency_penalty=1))
    assert torch.equal(row(z, request(output=(5,), draft=(6, 7), frequency_penalty=1), 1), want)
    assert torch.equal(row(z, request(output=(5,), frequency_penalty=1),
                           newest=torch.tensor(6)), want)
    assert row(z, request(frequency_penalty=1), newest=torch.tensor(-1)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_others_in_the_batch_stay_as_they_are(dtype):
    z = scores(rows=3).to(dtype)
    draws = [Draw(request(), 0, 0), Draw(request(**EVERY), 1, 0), Draw(request(), 2, 0)]
    ours = adjusted(z.clone(), draws, {})
    assert torch.equal(ours[[0, 2]], z[[0, 2]].float()) and not torch.equal(ours[1], z[1].float())
    assert adjusted(z, draws[:1], {}) is z


def test_scores_that_are_not_finite_stay_so():
    z = scores()
    z[0, 7] = math.nan
    assert row(z, request(**EVERY)).isnan().any()


# ---- in an engine


class Naive:
    """What an answer must be: one request, its whole context each time, each rule by hand."""

    def __init__(self, prompt, params, index=0):
        self.params, self.request = params, Request("r", list(prompt), params, index)

    def answer(self, count):
        from layer3_system import sample_rows
        from layer3_system.engine.draws import sampling

        one, p = self.request, self.params
        for _ in range(count):
            z = mock_scores(one.tokens, V).clone()
            for token, value in p.logit_bias:
                z[token] += value
            for token in set(one.tokens):
                z[token] = (z[token] / p.repetition_penalty if z[token] > 0 else
                            z[token] * p.repetition_penalty)
            for token in set(one.output):
                z[token] -= p.presence_penalty + p.frequency_penalty * one.output.count(token)
            if p.min_p:
                shares = (z / p.temperature).softmax(0)
                z[shares < p.min_p * shares.max()] = -math.inf
            one.output += sample_rows(z[None], sampling([Draw(one, 0, 0)], "cpu")).tolist()
        return one.output


def params(**more):
    return SamplingParams(**{"max_tokens": 24, "ignore_eos": True, "seed": 5} | EVERY | more)


def answers(engine, *asked):
    """[[token]] of prompts and params, after all invariants held in every step."""
    requests = [r for prompt, wish in asked for r in engine.submit(list(prompt), wish)]
    while engine.busy:
        engine.step()
        check_engine(engine)
    return [r.output for r in requests]


def engine(pages=64, drafter=None, overlap=False, **options):
    pool = PrefixPool(pages)
    return Engine(MockLlama(), ByteTokenizer(), pool, Scheduler(pool, **options), drafter=drafter,
                  overlap=overlap)


class Guesses:
    """Guesses, some right, since it knows the answer, and some wrong."""

    def __init__(self, prompt, answer):
        self.tokens = [*prompt, *answer]

    def propose(self, tokens):
        guess = self.tokens[len(tokens):len(tokens) + 3]
        return guess[:-1] + [7] if len(tokens) % 2 else guess


PROMPT = b"hello, hello"


def test_an_answer_is_what_the_rules_say():
    want = Naive(PROMPT, params()).answer(24)
    plain = Naive(PROMPT, params(presence_penalty=0, frequency_penalty=0, repetition_penalty=1,
                                 min_p=0, logit_bias=())).answer(24)
    assert answers(engine(), (PROMPT, params())) == [want] and want != plain
    assert 66 not in want


def test_it_is_the_same_in_every_batch():
    """Beside others, in chunks, with steps launched ahead, and with guesses."""
    want = Naive(PROMPT, params()).answer(24)
    other = (b"some other prompt", SamplingParams(max_tokens=30, ignore_eos=True))
    for crowd in (engine(), engine(budget=8, max_seqs=4, chunk=4), engine(overlap=True),
                  engine(drafter=Drafter(Guesses(PROMPT, want).propose)),
                  engine(pages=5, max_seqs=4)):
        texts = answers(crowd, other, (PROMPT, params()), other, (b"xy", params(seed=9)))
        assert texts[1] == want


def test_it_is_the_same_after_a_preemption():
    want = Naive(PROMPT, params()).answer(24)
    one = engine(pages=5, max_seqs=4)
    for prompt in (b"some other", b"prompts that", b"take its pages"):
        one.submit(list(prompt), SamplingParams(max_tokens=30, ignore_eos=True))
    (last,) = one.submit(list(PROMPT), params())
    while one.busy:
        one.step()
    assert last.preemptions and last.output == want


@pytest.mark.parametrize("overlap", [False, True])
def test_each_of_several_answers_has_its_own(overlap):
    want = [Naive(PROMPT, params(), i).answer(24) for i in range(3)]
    assert answers(engine(overlap=overlap), (PROMPT, params(n=3))) == want
    assert len(set(map(tuple, want))) == 3


def test_the_likeliest_token_too():
    wish = params(temperature=0, min_p=0)
    assert answers(engine(), (PROMPT, wish)) == [Naive(PROMPT, wish).answer(24)]


def test_log_probabilities_stay_the_models_own():
    """They are of the model's scores, whatever was done to those before the draw."""
    one = engine()
    (asked,) = one.submit(list(PROMPT), params(logprobs=2))
    while one.busy:
        one.step()
    for i, found in enumerate(asked.logprobs):
        z = mock_scores([*PROMPT, *asked.output[:i]], V)
        assert found == logprobs_of(z, asked.output[i], 2)


# ---- over HTTP


def test_clients_ask_for_them():
    want = Naive(PROMPT, params()).answer(24)
    fields = {"presence_penalty": 1.5, "frequency_penalty": 0.7,
              "logit_bias": {"65": 4.0, "66": -100}, "max_tokens": 24, "seed": 5}
    more = {"repetition_penalty": 1.4, "min_p": 0.02, "ignore_eos": True}
    with served() as server:
        said = server.openai.completions.create(model=NAME, prompt=PROMPT.decode(), **fields,
                                                extra_body=more)
        assert said.choices[0].text == ByteTokenizer().decode(want)
        chat = server.openai.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "hi"}], max_tokens=4,
            logit_bias={"65": 100}, extra_body={"ignore_eos": True})
        assert chat.choices[0].message.content == "AAAA"
        nothing = {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1,
                   "min_p": 0, "logit_bias": {}}
        plain = [server.post(prompt="a", seed=1, **each).json()["choices"]
                 for each in ({}, nothing, dict.fromkeys(nothing))]
        assert plain[0] == plain[1] == plain[2]
