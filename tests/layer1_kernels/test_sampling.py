"""`sample`: the oracle against float64 by the book, Triton's kernel against the oracle."""

import numpy as np
import pytest
import torch

from lab import simulator
from layer1_kernels import Sampling, sample, sample_torch

BACK_ENDS = [sample_torch, sample]


@pytest.fixture(scope="module", autouse=True)
def triton_on_the_cpu():
    simulator.activate_triton()
    yield
    simulator.deactivate_triton()


@pytest.fixture
def triton_on_the_gpu():
    simulator.deactivate_triton()
    yield
    simulator.activate_triton()


def params(B, temperature=1.0, top_k=0, top_p=1.0, uniform=0.0):
    """One value for all rows, or B of them."""
    kinds = torch.float32, torch.int32, torch.float32, torch.float32
    return Sampling(*(torch.as_tensor(a, dtype=kind).expand(B).contiguous() for a, kind in
                      zip((temperature, top_k, top_p, uniform), kinds, strict=True)))


def probabilities(z, temperature, top_k, top_p):    # (V,) -> (V,)
    """By the book, in float64: sort, keep k, keep the share, normalise."""
    z = np.asarray(z, np.float64)
    weights = np.exp((z - z.max()) / temperature)
    ordered = np.sort(z)[::-1]
    if top_k:
        weights[z < ordered[min(top_k, len(z)) - 1]] = 0
    weights /= weights.sum()
    if top_p < 1:
        sums = np.cumsum(np.sort(weights)[::-1])
        fewest = np.sort(weights)[::-1][min(np.searchsorted(sums, top_p), len(z) - 1)]
        weights[weights < fewest] = 0
    return weights / weights.sum()


@pytest.mark.parametrize("function", BACK_ENDS)
@pytest.mark.parametrize("V, temperature, top_k, top_p", [
    (5, 1.0, 0, 1.0), (129, 0.5, 0, 1.0), (129, 1.0, 7, 1.0), (129, 1.0, 0, 0.6),
    (129, 2.0, 9, 0.8), (129, 1.0, 1, 0.3), (129, 1.0, 500, 0.0)])
def test_tokens_have_their_probabilities(rng, function, V, temperature, top_k, top_p):
    """n uniform numbers at even distances: a token of probability p occurs n·p times, give or
    take one."""
    n = 400
    z = rng.standard_normal(V).astype(np.float32) * 2
    p = params(n, temperature, top_k, top_p, (torch.arange(n) + 0.5) / n)
    counts = np.bincount(function(torch.from_numpy(z).expand(n, V), p), minlength=V)
    want = probabilities(z, temperature, top_k, top_p) * n
    assert np.abs(counts - want).max() <= 1 + 1e-3 and not counts[want == 0].any()


@pytest.mark.parametrize("function", BACK_ENDS)
def test_a_row_rests_on_itself_alone(rng, function):
    """The same row alone, and among rows that are sampled in other ways."""
    z = torch.from_numpy(rng.standard_normal((6, 1000)).astype(np.float32))
    p = params(6, [0, 1, 0.7, 1.3, 1e-4, 1], [0, 0, 5, 0, 3, 999], [1, 1, 1, 0.9, 0.5, 0.99],
               [0.1, 0.99, 0.5, 0.2, 0.7, 0.999999])
    together = function(z, p)
    alone = [function(z[b:b + 1], Sampling(*(a[b:b + 1] for a in p))) for b in range(6)]
    assert torch.equal(together, torch.cat(alone))
    assert together[0] == z[0].argmax() and together[4] == z[4].argmax()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_triton_draws_what_the_oracle_draws(rng, dtype):
    """3,000 numbers: more than one block, the last one ragged; columns of a larger array."""
    B, V = 12, 3000
    z = torch.from_numpy(rng.standard_normal((V, B)).astype(np.float32) * 3).to(dtype).T
    p = params(B, torch.linspace(0, 2, B), torch.arange(B) % 4 * 40, 1 - torch.arange(B) % 3 * 0.2,
               torch.from_numpy(rng.random(B).astype(np.float32)))
    assert torch.equal(sample(z, p), sample_torch(z, p))


@pytest.mark.parametrize("function", BACK_ENDS)
def test_equals_are_kept_together_and_the_first_is_the_largest(function):
    z = torch.tensor([[0.0, 2.0, -0.0, 2.0, -1.0, 0.0]])
    assert function(z, params(1, temperature=0)) == 1
    fourth = [function(z, params(1, top_k=3, uniform=u)).item() for u in np.linspace(0, 0.999, 40)]
    assert set(fourth) == {0, 1, 2, 3, 5}           # the third largest is 0, three times


@pytest.mark.parametrize("function", BACK_ENDS)
def test_what_cannot_be_drawn_is_minus_one(function):
    nan, inf = float("nan"), float("inf")
    z = torch.tensor([[0, nan, 1], [-inf, -inf, -inf], [inf, 0, 0], [-inf, 3, -inf]])
    for temperature in (0.0, 1.0):
        assert function(z, params(4, temperature, 2, 0.9, 0.5)).tolist() == [-1, -1, -1, 1]


@pytest.mark.parametrize("function", BACK_ENDS)
def test_extreme_numbers(function):
    z = torch.tensor([[1e38, -1e38, 9e37], [1e4, 1e4 - 1, -1e4]])
    assert function(z, params(2, 1e-4, uniform=0.99)).tolist() == [0, 0]
    assert function(z, params(2, 1.0, uniform=0.9999)).tolist() == [0, 1]
    assert function(z[:0], params(0)).shape == (0,)


@pytest.mark.parametrize("function", BACK_ENDS)
@pytest.mark.parametrize("logits, given, says", [
    (torch.zeros(3), params(3), r"logits \(3,\)"),
    (torch.zeros(2, 0), params(2), r"logits \(2, 0\).*V from 1 on"),
    (torch.zeros(2, 3, dtype=torch.int64), params(2), "torch.int64"),
    (torch.zeros(2, 3), params(3), r"temperature \(3,\).*expected \(2,\)"),
    (torch.zeros(2, 3), params(2)._replace(top_k=torch.zeros(2)), "top_k.*torch.int32")])
def test_wrong_arguments_are_one_sentence(function, logits, given, says):
    with pytest.raises(ValueError, match=says):
        function(logits, given)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sample_on_the_device(rng, dtype, triton_on_the_gpu):
    B, V = 64, 128_256
    z = torch.from_numpy(rng.standard_normal((B, V)).astype(np.float32) * 3).to(dtype)
    p = params(B, torch.linspace(0, 2, B), torch.arange(B) % 4 * 40, 1 - torch.arange(B) % 3 * 0.2,
               torch.from_numpy(rng.random(B).astype(np.float32)))
    got = sample(z.cuda(), Sampling(*(a.cuda() for a in p))).cpu()
    # Sums of 128,256 weights in another order: a row in which the order decides may differ.
    assert (got != sample_torch(z, p)).sum() <= 1
