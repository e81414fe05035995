"""The fused model: its tokens are g01's, by families and dtypes; its launches and bytes."""

from dataclasses import replace

import pytest
import torch

from lab import simulator
from layer1_kernels import kernels
from layer2_graph import (
    ContiguousCache,
    FusedLlama,
    MergedLlama,
    PagedCache,
    generate_on,
    greedy,
    load,
)
from layer2_graph.decode_ladder import comparison
from layer2_graph.testing.layer_traffic import FAMILIES, KINDS, fused, of_a_layer, traffic
from layer2_graph.testing.random_llama import random_llama

PROMPTS = [[5, 17, 3], [1, 2, 3], [9, 8, 7, 6, 5, 4, 3], [30]]


# ---- the model


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_g01(family):
    model = random_llama(**FAMILIES[family])
    want = greedy(model, PROMPTS, 12)
    assert greedy(fused(model), PROMPTS, 12) == want
    assert generate_on(ContiguousCache(model.config, 4, 20), fused(model), PROMPTS, 12) == want


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_where_prompts_chunks_and_decodes_are_mixed(family):
    model = random_llama(**FAMILIES[family])
    one, other = PagedCache(model.config, 2, 32), PagedCache(model.config, 2, 32)
    for new in ([[1, 2, 3], [4]], [[5], [6, 7, 8, 9]], [[], [1]], [[1], [2]], [[3], []]):
        got = fused(model).forward(one.step(new), one, every=True)
        want = model.forward(other.step(new), other, every=True)
        assert got.shape == (sum(map(len, new)), 31)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.k, other.k, rtol=1e-4, atol=1e-5)


def test_tokens_of_the_nano_and_of_the_small_model():
    from day02_overview import NANO, encode, generate, load_nano

    nano, texts = load(NANO, dtype=torch.float32), ["a warp has", "the ridge"]
    tokens = greedy(fused(nano), [encode(some).tolist() for some in texts], 12)
    assert tokens == [generate(load_nano(), encode(some), 12) for some in texts]
    small = load(comparison.SMALL, dtype=torch.float32)
    prompts = torch.randint(2048, (3, 20), generator=torch.Generator().manual_seed(1)).tolist()
    prompts[1] = prompts[1][:7]
    assert greedy(fused(small), prompts, 12) == greedy(small, prompts, 12)


def test_bfloat16_too():
    small = load(comparison.SMALL, dtype=torch.bfloat16)
    cache, other = (PagedCache(small.config, 1, 32, torch.bfloat16) for _ in range(2))
    got = fused(small).forward(cache.step([[5, 17, 3]]), cache)
    want = small.forward(other.step([[5, 17, 3]]), other)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=0.05, atol=0.2)


# ---- launches and bytes


@pytest.mark.parametrize("new", [[[3]], [[3, 4, 5], [6]]])
@pytest.mark.parametrize("family, alone, merged, eight", [
    ("Llama", 15, 12, 8), ("SmolLM", 15, 12, 8), ("Mistral", 15, 12, 8), ("Qwen 2", 18, 13, 9),
    ("Llama with biases", 22, 16, 13)])
def test_launches_of_a_layer(new, family, alone, merged, eight):
    for kind, want in zip(KINDS, (alone, merged, eight), strict=True):
        assert of_a_layer(kind, new=new, **FAMILIES[family])[0] == want


def test_norms_of_heads_add_two_launches_and_two_copies_of_several_tokens():
    assert of_a_layer(FusedLlama, new=[[3]], qk_norm=True)[0] == 10
    assert of_a_layer(FusedLlama, new=[[3, 4]], qk_norm=True)[0] == 12


def test_eight_launches_by_name():
    names = traffic(FusedLlama).names
    assert names[9:17] == ["add_rmsnorm", "matmul", "rope_and_cache", "paged_attention", "matmul",
                           "add_rmsnorm", "matmul_swiglu", "matmul"]
    assert names[:2] == ["index", "rmsnorm"]        # before the first layer there is no sum
    assert names[17:] == ["_to_copy", "sub", "index", "index", "add_rmsnorm", "matmul"]


@pytest.mark.parametrize("before, new", [([], [[1, 2, 3], [4]]), ([[1, 2], [3]], [[4], [5, 6]])])
def test_bytes_of_a_fused_layer(before, new):
    m, itemsize = random_llama().config, 4
    got = of_a_layer(FusedLlama, before=before, new=new)[1]
    T, pages = sum(map(len, new)), 2
    contexts = sum(len(old) for old in before) + T
    weights = 2 * m.C + (m.H + 2 * m.G) * m.D * m.C + m.C * m.H * m.D + 3 * m.F * m.C
    cached = 2 * contexts * m.G * m.D
    norms, qkv = 2 * 4 * m.C, m.C + (m.H + 2 * m.G) * m.D
    written, angles = 2 * (m.H + 2 * m.G) * m.D, m.D
    attention, projected = 2 * m.H * m.D, m.H * m.D + m.C
    numbers = weights + cached + T * (norms + qkv + written + angles + attention + projected
                                      + m.C + m.F + m.F + m.C)
    B = len(new)
    integers = 2 * 8 * T + 4 * (B * pages + B + 1 + B)     # positions, slots; tables, cu_q, lens
    assert got == numbers * itemsize + integers


def test_what_a_launch_reads():
    """The merged layer's graph, launch by launch."""
    launches = traffic(MergedLlama, L=1).launches
    names = [launch.name for launch in launches]
    assert names[:13] == ["index", "rmsnorm", "matmul", "rope", "write_kv", "paged_attention",
                          "matmul", "add", "rmsnorm", "matmul", "swiglu", "matmul", "add"]
    assert [launch.inputs for launch in launches[:13]] == [
        (), (0,), (1,), (2,), (3,), (3, 4), (5,), (0, 6), (7,), (8,), (9,), (10,), (7, 11)]
    assert names[-2:] == ["rmsnorm", "matmul"] and launches[-1].inputs == (len(launches) - 2,)


@pytest.mark.parametrize("room, want", [(16, 8), (600, 9)])
def test_on_the_device_a_layer_is_eight_launches_too(triton_on_the_cpu, room, want):
    """Triton's kernels in the simulator.
    If the cache has room for more keys than a program should read, attention is split, and its
    merge is one more launch on the device."""
    counts = []
    for L in (1, 2):
        llama = random_llama(L=L, room=room)
        model = FusedLlama(llama.config, llama.weights, kernels("triton"))
        cache, other = (PagedCache(llama.config, 1, room) for _ in range(2))
        with simulator.trace() as trace:
            got = model.forward(cache.step([[3]]), cache)
        counts.append(len(trace.launches))
        torch.testing.assert_close(got, llama.forward(other.step([[3]]), other), rtol=1e-4,
                                   atol=1e-5)
    assert counts[1] - counts[0] == want


def test_the_cuda_table_takes_a_prompt(triton_on_the_cpu):
    """There q is a view of wider rows, and its attention needs it in one piece."""
    llama = random_llama(L=1)
    cuda = FusedLlama(llama.config, llama.weights, kernels("cuda"))
    assert greedy(cuda, PROMPTS[::3], 2) == greedy(llama, PROMPTS[::3], 2)


def test_the_fused_model_does_not_change_the_weights():
    model = random_llama()
    before = {name: w.clone() for name, w in model.weights.items()}
    greedy(fused(model), PROMPTS, 3)
    assert all((model.weights[name] == w).all() for name, w in before.items())
    assert fused(model).config == replace(model.config)
