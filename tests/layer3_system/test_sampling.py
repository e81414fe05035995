"""What s01 gives: rows of tokens, random numbers, ends, log probabilities, parameters.

"case N" in a docstring counts the cases that any engine must handle.
"""

import re

import numpy as np
import pytest
import torch

from layer1_kernels import Sampling, kernels
from layer2_graph import PagedCache, Tokenizer, load, read_config
from layer2_graph.models import SMALL
from layer3_system import (
    ByteTokenizer,
    Detokenizer,
    Request,
    RequestError,
    SamplingParams,
    finish_reason,
    logprobs_of,
    sample_rows,
    uniform,
)
from layer3_system.s01_request import keep_top_k, keep_top_p
from tests.layer3_system.test_s01_request import BROKEN, END, kept_by_the_book

# ---- rows, beside the kernels' own `sample`


def sampling(temperature, top_k, top_p, u):
    return Sampling(*(torch.tensor(a, dtype=kind) for a, kind in zip(
        (temperature, top_k, top_p, u),
        (torch.float32, torch.int32, torch.float32, torch.float32), strict=True)))


def is_close(z, temperature, top_k, top_p, u):
    """Whether rounding in float32 may decide what is drawn."""
    if temperature == 0:
        return False
    z = (z.astype(np.float64) - z.max()) / np.float64(np.float32(temperature))
    weights = np.exp(z)
    if 0 < top_k < len(z):
        weights[z < np.sort(z)[-top_k]] = 0
    if top_p < 1:
        kept, margin = kept_by_the_book(np.log(np.maximum(weights, 1e-300)), np.float32(top_p))
        weights[~kept] = 0
        if margin < 1e-5:
            return True
    sums = np.cumsum(weights) / weights.sum()
    return np.abs(sums[:-1] - u).min(initial=1) < 1e-5


@pytest.mark.parametrize("V", [1, 2, 129, 2048])
def test_rows_are_those_of_the_kernels(rng, V):
    """case 25: a mixed batch; temperatures 0 and 1e-4; top_k from 0 over V to above it."""
    B = 400
    z = (rng.standard_normal((B, V)) * 3).astype(np.float32)
    temperature = rng.choice([0, 1e-4, 0.5, 1, 2], B).astype(np.float32)
    top_k = rng.choice([0, 1, 7, V, 3000], B)
    top_p = rng.choice([0.05, 0.5, 0.9, 1], B)
    u = rng.random(B, dtype=np.float32)
    params = sampling(temperature, top_k, top_p, u)
    got = sample_rows(torch.from_numpy(z), params)
    want = kernels("torch").sample(torch.from_numpy(z), params)
    sure = ~np.array([is_close(*row) for row in zip(z, temperature, top_k, top_p, u, strict=True)])
    assert sure.mean() > 0.9, "too few rows are compared"
    assert torch.equal(got[sure], want[sure]) and got.dtype == want.dtype
    greedy = (temperature == 0) | (top_k == 1)
    assert (got.numpy()[greedy] == z.argmax(1)[greedy]).all()


def test_a_row_depends_on_itself_alone(rng):
    z = torch.from_numpy(rng.standard_normal((6, 500)).astype(np.float32))
    p = sampling([0, 1, 0.7, 1.3, 1e-4, 1], [0, 0, 5, 0, 3, 999], [1, 1, 1, 0.9, 0.5, 0.99],
                 [0.1, 0.99, 0.5, 0.2, 0.7, 0.999999])
    alone = [sample_rows(z[b:b + 1], Sampling(*(a[b:b + 1] for a in p))) for b in range(6)]
    assert torch.equal(sample_rows(z, p), torch.cat(alone))


def test_what_cannot_be_sampled_is_minus_one():
    nan = float("nan")
    inf = float("inf")
    z = torch.tensor([[0, nan, 1], [-inf, -inf, -inf], [inf, 0, 0], [-inf, 3, -inf]])
    for temperature in (0.0, 1.0):
        p = sampling([temperature] * 4, [2] * 4, [0.9] * 4, [0.5] * 4)
        assert sample_rows(z, p).tolist() == [-1, -1, -1, 1]
        assert torch.equal(sample_rows(z, p), kernels("torch").sample(z, p))


def test_very_large_logits_and_very_small_temperatures():
    """case 25: no NaN where logits / temperature would overflow."""
    z = torch.tensor([[1e38, -1e38, 9e37], [1e4, 1e4 - 1, -1e4]])
    p = sampling([1e-4, 1e-4], [0, 0], [1, 0.5], [0.99, 0.99])
    assert sample_rows(z, p).tolist() == [0, 0]


# ---- uniform


def test_a_number_depends_on_seed_answer_and_position_alone():
    """case 23: in any order, any number of times; others for another seed, answer or position."""
    places = [(seed, index, position) for seed in (0, 1, 2**63, 2**64 - 1) for index in range(3)
              for position in (0, 1, 2, 511)]
    first = {place: uniform(*place) for place in places}
    assert first == {place: uniform(*place) for place in reversed(places)}
    assert len(set(first.values())) == len(places)
    assert all(0 <= u < 1 and np.float32(u) == u for u in first.values())


def test_the_numbers_of_a_request_are_even():
    """Kolmogorov's distance of 4,000 numbers, and none of a request's that follow each other alike:
    limits that even numbers miss once in 10⁶ times."""
    u = np.array([uniform(7, 0, i) for i in range(4000)])
    distance = np.abs(np.sort(u) - (np.arange(4000) + 0.5) / 4000).max()
    assert distance < 2.7 / np.sqrt(4000)
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 5 / np.sqrt(4000)


def test_seeds_of_requests():
    """case 23: a seed that is given, also a negative one; without one, twins differ."""
    given = Request("a", [1], SamplingParams(seed=-1))
    assert given.seed == 2**64 - 1 and given.uniform() == uniform(2**64 - 1, 0, 0)
    given.output.append(5)
    assert given.uniform() == uniform(2**64 - 1, 0, 1)
    twins = [Request("b", [1], SamplingParams()) for _ in range(2)]
    assert twins[0].uniform() != twins[1].uniform()
    brothers = [Request("c", [1], SamplingParams(seed=3), index) for index in range(2)]
    assert brothers[0].uniform() != brothers[1].uniform()


# ---- texts


@pytest.mark.parametrize("seed", range(3))
def test_pieces_of_the_small_model_are_its_text(seed):
    """case 28: the sum of what is shown is the text, whatever the tokens; also random ones."""
    tokenizer = Tokenizer(SMALL, read_config(SMALL))
    rng = np.random.default_rng(seed)
    tokens = [int(t) for t in rng.integers(2, 400, 300)]            # many are single bytes
    prompt = tokenizer.encode("Once upon a time")
    letters = Detokenizer(tokenizer.decode, prompt)
    got = "".join(letters.add(t) for t in tokens) + letters.rest()
    assert got == tokenizer.decode(prompt + tokens)[len(tokenizer.decode(prompt)):]


def test_a_prompt_is_not_cut_inside_a_character():
    """case 28, for a tokenizer that falls back to bytes: one broken byte breaks all its neighbours,
    so the few tokens of the prompt that are decoded again must begin with a character."""
    from tokenizers import decoders

    decoder = decoders.ByteFallback()

    def decode(tokens):
        return decoder.decode([f"<0x{t:02X}>" for t in tokens])

    for faces in range(1, 5):
        letters = Detokenizer(decode, list(("🙂" * faces).encode()))
        got = [letters.add(token) for token in "🙃é".encode()]
        assert got == ["", "", "", "🙃", "", "é"], f"after {faces} faces"


# ---- how an answer ends


def answer(output, ends=(1, 2), prompt=(9, 9), limit=2**31, **params):
    request = Request("r", list(prompt), SamplingParams(**params), limit=limit)
    request.output = list(output)
    return finish_reason(request, ends)


def test_an_end_comes_before_the_length():
    """case 26: first the model's ends, which are a list, then stop tokens, then length."""
    assert answer([5, 6]) is None
    assert answer([5, 1]) == answer([5, 2]) == "stop"
    assert answer([1, 5]) is None                               # only the newest token ends it
    assert answer([5, 7], stop_token_ids=(7, 8)) == "stop"
    assert answer([5, 6], max_tokens=2) == "length"
    assert answer([5, 1], max_tokens=2) == "stop"               # both at once
    assert answer([5, 7], max_tokens=2, stop_token_ids=(7,)) == "stop"
    assert answer([5, 6], max_tokens=None, limit=4) == "length"
    assert answer([5], max_tokens=None, limit=4) is None


def test_ignore_eos_leaves_stop_tokens_and_length():
    """case 26"""
    assert answer([1], ignore_eos=True) is None
    assert answer([1], ignore_eos=True, stop_token_ids=(1,)) == "stop"
    assert answer([1], ignore_eos=True, max_tokens=1) == "length"


def test_nothing_but_length_ends_before_min_tokens():
    """case 26"""
    least = {"min_tokens": 3, "max_tokens": 5, "stop_token_ids": (7,)}
    assert answer([1], **least) is None and answer([5, 7], **least) is None
    assert answer([5, 5, 1], **least) == "stop" and answer([5, 5, 7], **least) == "stop"
    assert answer([5, 1], min_tokens=3, max_tokens=9, limit=4) == "length"


def test_one_token_is_an_answer():
    """case 22: max_tokens 1 is done with the token that the prompt's step gives."""
    assert answer([5], max_tokens=1) == "length" and answer([1], max_tokens=1) == "stop"


# ---- log probabilities


def test_log_probabilities_are_those_of_raw_logits(rng):
    """case 29: log-softmax of the logits; the token itself is always there."""
    z = (rng.standard_normal(50) * 4).astype(np.float32)
    want = z.astype(np.float64) - np.log(np.exp(z.astype(np.float64)).sum())
    order = np.argsort(-z)
    for token in (int(order[0]), int(order[3]), int(order[-1])):
        for count in (0, 1, 5, 50, 60):
            got = logprobs_of(torch.from_numpy(z), token, count)
            assert set(got) == {*order[:count].tolist(), token}
            assert all(abs(got[t] - want[t]) < 1e-5 for t in got)
    got = logprobs_of(torch.from_numpy(z), int(order[-1]), 5)
    assert list(got) == [*order[:5].tolist(), order[-1]]        # the likeliest first


def test_log_probabilities_of_extreme_logits():
    """case 29"""
    got = logprobs_of(torch.tensor([1e4, 0.0, -1e4]), 2, 1)
    assert got == {0: 0.0, 2: -2e4}
    assert logprobs_of(torch.tensor([3.0, 3.0], dtype=torch.bfloat16), 1, 0) == \
        {1: pytest.approx(-np.log(2), abs=1e-6)}


# ---- what a client may ask for


@pytest.mark.parametrize("field, value", [
    *(("max_tokens", v) for v in (0, -1, 1.0, "16", True)),
    *(("min_tokens", v) for v in (-1, None, 0.5)), ("min_tokens", 17),
    *(("temperature", v) for v in (-0.1, float("nan"), float("inf"), "1", None, True, 101)),
    *(("top_k", v) for v in (-2, 1.0, 2**31, None, False)),
    *(("top_p", v) for v in (0, -0.5, 1.01, float("nan"), "0.9", None)),
    *(("seed", v) for v in (2**63, -2**63 - 1, 1.0, "1", True)),
    *(("stop", v) for v in ("text", ["text"], ("",), ("a", 1), ("x",) * 17, None)),
    *(("stop_token_ids", v) for v in ((-1,), (1.0,), [1], (True,), 5)),
    *(("ignore_eos", v) for v in (0, None, "yes")),
    *(("logprobs", v) for v in (-1, 21, True, 1.5)),
    *(("prompt_logprobs", v) for v in (-1, 21, "1")),
    *(("n", v) for v in (0, -1, 129, None, 2.0, True))])
def test_a_wrong_field_is_one_sentence(field, value):
    """case 22: zero, negative and wrongly typed; the message names field, expected and found."""
    with pytest.raises(RequestError, match=f"^{field}: expected .*found"):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("params", [
    {}, {"max_tokens": 1}, {"max_tokens": None, "min_tokens": 50}, {"temperature": 0},
    {"temperature": 1e-4}, {"top_k": -1}, {"top_k": 10**6}, {"top_p": 1}, {"top_p": 1e-9},
    {"seed": -2**63}, {"seed": 2**63 - 1}, {"stop": ("a",) * 16}, {"stop_token_ids": (0,)},
    {"logprobs": 0, "prompt_logprobs": 20}, {"n": 128}])
def test_what_is_right_is_taken(params):
    """case 22"""
    made = SamplingParams(**params)
    assert all(getattr(made, name) == value for name, value in params.items())


def test_the_mock_tokenizer_is_what_the_graders_think():
    assert ByteTokenizer().decode([*"é".encode(), END]) == "é"
    assert ByteTokenizer().decode([0xF0, 0x9F]) == BROKEN


# ---- what s01 says of its pictures


def test_what_is_kept_of_the_seven_words_of_s01():
    words = np.array(["dog", "cat", "the", "boy", "sea", "fox", "of"])
    z = np.array([2.1, 3.4, -0.5, 2.9, 1.0, 1.7, -0.3])
    assert set(words[np.isfinite(keep_top_k(z, 2))]) == {"cat", "boy"}
    assert set(words[np.isfinite(keep_top_p(z, 0.9))]) == {"dog", "cat", "boy", "fox"}


def test_most_of_what_top_k_20_removes_after_named_belongs_to_names():
    """And many names have a share below 1 %; the vocabulary has 2048 tokens."""
    small = load(SMALL, dtype=torch.float32)
    words = Tokenizer(SMALL, small.config)
    tokens = words.encode("Once upon a time there was a kind badger named")
    cache = PagedCache(small.config, 1, len(tokens))
    shares = small.forward(cache.step([tokens]), cache)[0].softmax(-1).numpy()
    removed = np.argsort(-shares)[20:]
    names = [v for v in removed.tolist() if re.fullmatch(" [A-Z][a-z]{2,}", words.decode([v]))]
    assert len(shares) == 2048
    assert shares[names].sum() > 0.5 * shares[removed].sum()
    assert (shares[names] < 0.01).sum() > 50


def test_16_bits_round_as_much_more_coarsely_as_s01_says():
    fp32 = torch.finfo(torch.float32).eps
    assert torch.finfo(torch.float16).eps / fp32 == 2**13
    assert torch.finfo(torch.bfloat16).eps / fp32 == 2**16
