"""MergedLlama and folded norms: the same model, counted launch by launch and byte by byte."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from day01_roofline import count_bytes, count_flops
from day02_overview import NANO
from lab import simulator
from layer1_kernels import kernels
from layer2_graph import (
    Config,
    ContiguousCache,
    Launches,
    Llama,
    MergedLlama,
    PagedCache,
    Work,
    fold_norm,
    generate_on,
    greedy,
    load,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.g03_merging import fold_norms


def random_weights(dtype=torch.float32, **entries):
    torch.manual_seed(0)
    m = Config(**{"L": 2, "C": 32, "H": 4, "G": 2, "D": 16, "F": 48, "V": 31, "eps": 1e-5,
                  "theta": 1e4, "room": 64} | entries)
    return m, {name: (torch.randn(shape) / 4).to(dtype) for name, shape in shapes(m)}


def launched(kind, T=2, **entries):
    """The launches of a step of T tokens of each of two sequences."""
    model = kind(*random_weights(**entries), kernels("torch"))
    cache = PagedCache(model.config, 2, 16)
    step = cache.step([[1] * T] * 2)
    with Launches() as seen:
        model.ops = seen.counting(model.ops)
        model.forward(step, cache)
    return seen.names


# ---- the norm's weight


@pytest.mark.parametrize("T, C, N", [(1, 1, 1), (3, 7, 5), (2, 129, 127)])
def test_fold_norm(agree, rng, T, C, N):
    x, norm, weight = (rng.standard_normal(shape) for shape in ((T, C), C, (N, C)))
    rms = np.sqrt((x * x).mean(-1, keepdims=True) + 0.1)
    folded = fold_norm(torch.from_numpy(norm), torch.from_numpy(weight)).numpy()
    want = (x / rms * norm) @ weight.T
    agree(x / rms @ folded.T, want, "float64")
    agree(x @ folded.T / rms, want, "float64")          # the rest of the norm may come last


@pytest.mark.parametrize("entries", [{}, {"tied": True}, {"bias_qkv": True, "bias_mlp": True},
                                     {"qk_norm": True}])
def test_a_model_with_folded_norms_is_the_same(entries):
    m, weights = random_weights(torch.float64, **entries)
    folded = fold_norms(m, weights)
    prompt = ContiguousCache(m, 1, 5).step([[1, 2, 3, 4, 5]])
    cache = SimpleNamespace(attend=lambda layer, q, k, v, step, ops, scale: ops.flash_attention(
        q[None], k[None], v[None], True, scale)[0][0])          # caches keep no float64

    def logits(weights):
        return Llama(m, weights, kernels("torch")).forward(prompt, cache, every=True)

    torch.testing.assert_close(logits(folded), logits(weights), rtol=1e-12, atol=1e-12)
    ones = {name for name in weights if (folded[name] == 1).all()}
    assert ones == {f"model.layers.{i}.{norm}_layernorm.weight" for i in range(m.L) for norm in
                    ("input", "post_attention")} | (set() if m.tied else {"model.norm.weight"})


# ---- the model


PROMPTS = [[5, 17, 3], [9, 8, 7, 6, 5, 4, 3], [30]]


@pytest.mark.parametrize("entries", [
    {}, {"G": 4}, {"G": 1, "tied": True}, {"bias_qkv": True, "bias_o": True, "bias_mlp": True},
    {"qk_norm": True, "H": 6}], ids=str)
def test_a_merged_model_is_the_same(entries):
    m, weights = random_weights(**entries)
    apart, merged = (kind(m, weights, kernels("torch")) for kind in (Llama, MergedLlama))
    assert greedy(merged, PROMPTS, 8) == greedy(apart, PROMPTS, 8)
    caches = [kind(m, 2, 16) for kind in (PagedCache, ContiguousCache)]
    for new in ([[1, 2, 3], [4]], [[5], [6, 7]], [[1], [2]]):
        want, got = (model.forward(cache.step(new), cache, every=True)
                     for model, cache in zip((apart, merged), caches, strict=True))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("folder", [NANO, NANO.parents[1] / "layer2_graph/small"])
def test_shipped_models_give_the_same_tokens(folder):
    apart = load(folder, dtype=torch.float32)
    merged = MergedLlama(apart.config, apart.weights, apart.ops)
    prompts = [[10, 97], [30, 31, 32, 33, 34], [99]]
    assert greedy(merged, prompts, 25) == greedy(apart, prompts, 25)


def test_nothing_is_held_twice():
    m, weights = random_weights(bias_qkv=True)
    names = set(weights)
    model = MergedLlama(m, weights, kernels("torch"))
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for t in model.weights.values()}
    assert sum(held.values()) == sum(t.nbytes for t in weights.values())
    assert set(weights) == set(model.weights) == names
    for name, tensor in weights.items():
        assert torch.equal(model.weights[name], tensor)


def test_merged_launches_and_what_norms_of_heads_give_back():
    def layer(kind, **entries):
        return len(launched(kind, L=2, **entries)) - len(launched(kind, L=1, **entries))

    assert (layer(Llama), layer(MergedLlama)) == (15, 12)
    # rows of views must be copied for a kernel that takes contiguous ones
    assert (layer(Llama, qk_norm=True), layer(MergedLlama, qk_norm=True)) == (17, 16)
    assert launched(MergedLlama, qk_norm=True).count("clone") == 4


@pytest.mark.parametrize("B, T", [(1, 1), (3, 1), (2, 9)])
def test_counted_bytes_are_those_of_day_1(B, T):
    m, weights = random_weights()
    model, work = MergedLlama(m, weights, kernels("torch")), Work()
    cache, model.ops = ContiguousCache(m, B, 16), work.counting(model.ops)
    model.forward(cache.step([[2] * T] * B), cache)
    moved = count_bytes(m, B, T, T, 4)
    assert work.flops == sum(count_flops(m, B, T, T).values())
    assert (work.weights, work.activations, work.cache) == tuple(map(sum, zip(*moved.values(),
                                                                              strict=True)))


@pytest.fixture
def simulated():
    simulator.activate_triton()
    yield
    simulator.deactivate_triton()


def test_triton_kernels_take_the_views(simulated):
    m, weights = random_weights(L=1)
    want = greedy(Llama(m, weights, kernels("torch")), [[5, 17], [9, 8, 7]], 2)
    assert greedy(MergedLlama(m, weights, kernels("triton")), [[5, 17], [9, 8, 7]], 2) == want


@pytest.mark.parametrize("kind", [PagedCache, ContiguousCache])
def test_cuda_kernels_take_the_views(simulated, kind):
    m, weights = random_weights(L=1)
    prompts = [[5, 17], [9, 8, 7]]
    want = greedy(Llama(m, weights, kernels("torch")), prompts, 2)
    assert generate_on(kind(m, 2, 5), MergedLlama(m, weights, kernels("cuda")), prompts, 2) == want
