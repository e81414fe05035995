"""The table for few tokens on a CPU: each operation as kernels("torch") computes it, on ragged
shapes, in mixed batches, and where it must leave the work to PyTorch; then whole models."""

import subprocess
import sys
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab.course import ROOT
from layer1_kernels import kernels
from layer2_graph import (
    Config,
    CpuLlama,
    FusedLlama,
    Llama,
    MergedLlama,
    PagedCache,
    cpu_kernels,
    greedy,
    load,
    one_block,
    tile,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.cpu import attention, llama
from layer2_graph.cpu import kernels as cpu
from layer2_graph.models import SMALL

TORCH, CPU = kernels("torch"), cpu_kernels()
RAGGED = [(1, 1), (1, 7), (5, 1), (3, 64), (130, 33), (96, 577)]        # N, K
TINY = Config(L=2, C=24, H=6, G=2, D=16, F=40, V=50, eps=1e-5, theta=1e4, room=64)


def randn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def same(agree, name, *args, precision="float32"):
    """One operation of both tables; arguments that it changes are compared too."""
    others = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    got, want = getattr(CPU, name)(*args), getattr(TORCH, name)(*others)
    pairs = [(g, w) for g, w in zip(args, others, strict=True) if isinstance(g, torch.Tensor)]
    if want is not None:
        pairs += zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for g, w in pairs:
        assert g.dtype == w.dtype
        agree(g.detach().double(), w.detach().double().numpy(), precision, name)


def test_what_is_replaced_and_what_is_not():
    replaced = {f.name for f in fields(CPU)
                if getattr(CPU, f.name) is not getattr(TORCH, f.name)}
    assert replaced == {"matmul", "matmul_swiglu", "rmsnorm", "add_rmsnorm", "rope",
                        "rope_and_cache", "write_kv", "paged_attention", "swiglu"}
    assert CPU.sources()["matmul"] == "matmul_cpu"


# ---- matrices


@pytest.mark.parametrize("rows", [1, 2, cpu.PACKED_TOKENS - 1, cpu.PACKED_TOKENS, 33])
@pytest.mark.parametrize("N, K", RAGGED)
def test_matmul(agree, rows, N, K):
    same(agree, "matmul", randn(rows, K), randn(N, K))
    same(agree, "matmul_swiglu", randn(rows, K), randn(2 * N, K))


@pytest.mark.parametrize("rows", [slice(1, 2), slice(None), slice(None, None, 2)])
def test_matmul_of_views(agree, rows):
    wide, x = randn(40, 60), randn(2 * cpu.PACKED_TOKENS, 60)
    same(agree, "matmul", x[rows, :30], wide[::2, :30])     # rows with gaps between them
    same(agree, "matmul", x[rows, ::2], wide[:, :30])
    same(agree, "matmul", x[rows, :40], wide.T)             # a row's numbers are not neighbours
    same(agree, "matmul", x[rows, :0], wide[:, :0])


def test_many_rows_go_to_onednn_where_it_is(agree, monkeypatch):
    """PyTorch's own table never calls it, so nothing is compared with itself."""
    asked = []
    monkeypatch.setattr(cpu, "linear", lambda *args: asked.append(args) or
                        torch.nn.functional.linear(*args))
    for rows in (1, cpu.PACKED_TOKENS - 1, cpu.PACKED_TOKENS):
        same(agree, "matmul", randn(rows, 20), randn(7, 20))
    assert len(asked) == cpu.mkldnn.is_available()
    monkeypatch.setattr(cpu.mkldnn, "is_available", lambda: False)
    same(agree, "matmul", randn(cpu.PACKED_TOKENS, 20), randn(7, 20))
    assert len(asked) <= 1


@pytest.mark.parametrize("N", [1, 2, 7, 100])
def test_matmul_on_several_threads(agree, monkeypatch, N):
    monkeypatch.setattr(cpu, "SHARE", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    same(agree, "matmul", randn(1, 20), randn(N, 20))
    same(agree, "matmul", randn(1, 700), randn(N, 700))


def test_after_a_wait_for_others_one_thread_does_it(monkeypatch):
    """After a product that took longer than one thread would, none is shared for a while."""
    clock = iter([0.0, 0.0001, 1.0, 1.5, 2.0, 2.0001])      # the second product waits
    monkeypatch.setattr(cpu, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(cpu, "RESTING", 3)
    alone = []
    monkeypatch.setattr(cpu.np, "vecdot", lambda w, x: alone.append(len(w)) or w @ x)
    shared, w, x = cpu.Shared(), np.ones((1024, 512), np.float32), np.ones(512, np.float32)
    made = []
    for _ in range(6):
        assert (shared.product(w, x) == 512).all()
        made.append(len(alone))
    assert w.nbytes == cpu.SHARE and made == [0, 0, 1, 2, 3, 3]
    shared.product(w[1:], x)                                # too small to be shared
    assert len(alone) == 4 and next(clock, None) is None


FORKED = """
import os
import torch
from layer2_graph import cpu_kernels
torch.get_num_threads = lambda: 2
x, w = torch.randn(1, 600), torch.randn(1024, 600)          # large enough to be shared
want = cpu_kernels().matmul(x, w)
child = os.fork()
if child == 0:
    os._exit(0 if torch.allclose(cpu_kernels().matmul(x, w), want, atol=1e-4) else 1)
raise SystemExit(os.waitpid(child, 0)[1])
"""


def test_a_forked_process_has_threads_of_its_own():
    """Else it would wait for ever.
    In a process of its own: this one may have more threads."""
    assert subprocess.run([sys.executable, "-c", FORKED], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("rows", [1, 2, 8, 70])
@pytest.mark.parametrize("N, K", RAGGED)
def test_matrices_in_tiles(agree, rows, N, K):
    """Any shape, any number of tokens, and tokens that lie apart."""
    x, w = randn(rows, K), randn(2 * N, K)
    packed = torch.ops.mkldnn._reorder_linear_weight(w, llama.ROWS)
    wide = randn(rows, 2 * K)[:, :K]
    for own, name in ((x, "matmul"), (wide, "matmul"), (x, "matmul_swiglu")):
        want = getattr(TORCH, name)(own, w)
        agree(getattr(CPU, name)(own, packed).double(), want.double().numpy(), "float32", name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_numbers_are_left_to_torch(agree, dtype):
    x, w = randn(1, 32).to(dtype), randn(8, 32).to(dtype)
    same(agree, "matmul", x, w, precision="exact")
    same(agree, "rmsnorm", x, w[0], 1e-5, precision="exact")
    same(agree, "swiglu", x, w[:1], precision="exact")


def test_gradients_are_torchs():
    x, w = randn(1, 6), randn(4, 6).requires_grad_()
    CPU.matmul(x, w).sum().backward()
    torch.testing.assert_close(w.grad, x.expand(4, 6))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="mismatch"):
        CPU.matmul(randn(1, 1), randn(4, 6))               # einsum would broadcast the one number
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        CPU.matmul(randn(cpu.PACKED_TOKENS, 1), randn(4, 6))
    with pytest.raises(ValueError, match="shapes"):
        CPU.rmsnorm(randn(1, 6), randn(5), 1e-5)


# ---- number by number


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("C", [1, 7, 576])
def test_norms_and_swiglu(agree, T, C):
    x, r, w = 1e3 * randn(T, C), randn(T, C), randn(C)
    same(agree, "rmsnorm", x, w, 1e-5)
    same(agree, "rmsnorm", 0 * x, w, 1e-5)
    same(agree, "add_rmsnorm", x, r, w, 1e-5)
    same(agree, "swiglu", x, r)                             # far beyond what exp can hold
    both = randn(T, 2 * C)
    same(agree, "swiglu", *both.chunk(2, dim=-1))


@pytest.mark.parametrize("T", [1, 4])
def test_rope_and_the_pages(agree, T):
    every = randn(T, 6 + 2 * 2, 16)                         # q, k and v as parts of one array
    cos, sin = randn(2, 30, 8)
    positions, slots = torch.arange(T) + 20, torch.arange(T) + 9
    q, k, v = every.split((6, 2, 2), dim=1)
    same(agree, "rope", q, k, cos, sin, positions)
    pages = randn(2, 5, 4, 2, 16)
    for where in (slots, slots - 9, torch.full_like(slots, -1)):
        same(agree, "write_kv", k, v, *pages.clone(), where)
        same(agree, "write_kv", k, v, *pages.clone(), where.int())
        same(agree, "rope_and_cache", q, k, v, cos, sin, positions, *pages.clone(), where)


@pytest.mark.parametrize("slot", [20, -2])
def test_slots_beyond_the_pages_are_refused(slot):
    k, pages = randn(1, 2, 16), randn(2, 5, 4, 2, 16)
    with pytest.raises(ValueError, match=f"slots {slot}"):
        CPU.write_kv(k, k, *pages, torch.tensor([slot]))


def test_pages_that_do_not_lie_in_one_piece_are_torchs(agree):
    """NumPy's reshape would copy them, and writes to a copy would be lost silently."""
    k, slots = randn(2, 5, 16), torch.tensor([3, 7])
    pages = [randn(2, 5, 4, 16).transpose(1, 2) for _ in range(2)]      # (P, S, G, D), not in order
    assert not pages[0].is_contiguous()
    same(agree, "write_kv", k, k + 1, *pages, slots)
    with pytest.raises(RuntimeError, match="view size"):
        CPU.rope_and_cache(randn(2, 5, 16), k, k + 1, randn(20, 8), randn(20, 8),
                            torch.tensor([0, 19]), *pages, slots)


# ---- attention


@pytest.mark.parametrize("order", ["as they lie", "shuffled"])
@pytest.mark.parametrize("counts, lens", [
    ([1], [1]), ([1], [16]), ([1], [17]), ([1], [100]), ([1, 1, 1], [5, 32, 90]), ([7], [7]),
    ([1, 5, 0, 1, 16], [33, 5, 4, 1, 40])])
def test_paged_attention(agree, order, counts, lens):
    H, G, D, S, pages = 6, 2, 16, 16, 7
    many = len(lens) * pages
    tables = torch.arange(many) if order == "as they lie" else torch.randperm(many)
    cu_q = torch.tensor([0, *counts]).cumsum(0).int()
    k_pages, v_pages = randn(2, many, S, G, D)
    q = randn(sum(counts) + 2, H + 1, D)[:, :H]             # two unused rows, and gaps
    same(agree, "paged_attention", q, k_pages, v_pages, tables.view(-1, pages).int(), cu_q,
         torch.tensor(lens, dtype=torch.int32), 0.25)


@pytest.mark.parametrize("short", [0, attention.SHORT])
def test_many_that_decode(agree, monkeypatch, short):
    """In batches of similar length.
    Slots without a token hold NaN and must not be read."""
    monkeypatch.setattr(attention, "SHORT", short)
    seen, each = [], attention.attend_group
    monkeypatch.setattr(attention, "attend_group",
                        lambda *args: seen.append(args[3].rows) or each(*args))
    monkeypatch.setattr(attention, "GATHERED", 10 * 16 * 2 * 16 * 4)      # 10 pages
    lens, S = [1, 16, 17, 90, 5, 33, 31, 20], 16
    tables = torch.randperm(48).view(8, 6)
    k_pages, v_pages = randn(2, 48, S, 2, 16)
    for b, N in enumerate(lens):
        for n in range(N, 6 * S):
            k_pages[tables[b, n // S], n % S] = v_pages[tables[b, n // S], n % S] = torch.nan
    arguments = (randn(8, 6, 16), k_pages.nan_to_num(), v_pages.nan_to_num(), tables.int(),
                 torch.arange(9, dtype=torch.int32), torch.tensor(lens, dtype=torch.int32), 0.25)
    want = TORCH.paged_attention(*arguments)
    got = CPU.paged_attention(arguments[0], k_pages, v_pages, *arguments[3:])
    agree(got.double(), want.double().numpy(), "float32", "attention")
    assert [[lens[b] for b in rows] for rows in seen] == [[1, 16, 5, 17, 31], [20, 33], [90]]


def broken(**changes):
    """Arguments of paged_attention, one of them wrong."""
    whole = {"q": randn(2, 4, 16), "k_pages": randn(6, 16, 2, 16), "v_pages": randn(6, 16, 2, 16),
             "block_tables": torch.arange(6).view(2, 3).int(),
             "cu_q": torch.tensor([0, 1, 2], dtype=torch.int32),
             "lens": torch.tensor([20, 40], dtype=torch.int32), "scale": 0.25}
    return list((whole | changes).values())


@pytest.mark.parametrize("changes", [
    {"lens": torch.tensor([20, 49], dtype=torch.int32)},                # more than its table has
    {"lens": torch.tensor([20, 0], dtype=torch.int32)},                 # less than its new tokens
    {"lens": torch.tensor([20], dtype=torch.int32)},
    {"block_tables": torch.tensor([[0, 6, 1], [3, 4, 5]], dtype=torch.int32)},
    {"block_tables": torch.tensor([[0, -1, 1], [3, 4, 5]], dtype=torch.int32)},
    {"cu_q": torch.tensor([0, 2, 1], dtype=torch.int32)},
    {"cu_q": torch.tensor([0, 1, 3], dtype=torch.int32)},
    {"q": randn(2, 5, 16)}, {"q": randn(2, 4, 32)}, {"v_pages": randn(6, 16, 1, 16)},
    {"scale": -1.0}])
def test_what_does_not_fit_together_is_refused_as_by_torch(changes):
    with pytest.raises(ValueError) as told:
        TORCH.paged_attention(*broken(**changes))
    with pytest.raises(ValueError) as found:
        CPU.paged_attention(*broken(**changes))
    assert str(found.value) == str(told.value)


# ---- models


FAMILIES = [TINY, replace(TINY, tied=True), replace(TINY, qk_norm=True),
            replace(TINY, bias_qkv=True, bias_o=True, bias_mlp=True)]


def random_model(m, ops, kind=Llama):
    generator = torch.Generator().manual_seed(3)
    return kind(m, {name: torch.randn(shape, generator=generator) for name, shape in shapes(m)},
                ops)


@pytest.mark.parametrize("kind", [Llama, MergedLlama, FusedLlama])
@pytest.mark.parametrize("m", FAMILIES)
def test_a_model_in_steps_of_one_and_more(agree, kind, m):
    """Prefill, a step of one each, prefill and decode mixed, and one without the others."""
    models = random_model(m, TORCH), one_block(random_model(m, CPU, kind))
    caches = [PagedCache(m, 2, 40) for _ in models]
    for new in ([[1, 2, 3], [4]], [[5], [6]], [[7], [8] * 20], [[], [9]], [[10, 11], []]):
        want, got = (model.forward(cache.step(new), cache, every=True)
                     for model, cache in zip(models, caches, strict=True))
        agree(got, want.double().numpy(), "float32", f"scores after {new}")
    agree(caches[1].k, caches[0].k.double().numpy(), "float32", "the keys")


@pytest.mark.parametrize("m", [*FAMILIES, replace(TINY, L=1)])
def test_rows_that_nobody_asks_for_are_left_out(agree, m):
    """The scores are those of g01, and so are the keys and values of every token."""
    rows = []
    counted = replace(CPU, add_rmsnorm=lambda x, *others: rows.append(len(x)) or
                      CPU.add_rmsnorm(x, *others))
    models = random_model(m, TORCH), random_model(m, counted, CpuLlama)
    caches = [PagedCache(m, 2, 40) for _ in models]
    for new in ([[], [4, 5]], [[1, 2, 3], [4]], [[5], [6]], [[7, 8], [8] * 20], [[9] * 4, []]):
        rows.clear()
        want, got = (model.forward(cache.step(new), cache)
                     for model, cache in zip(models, caches, strict=True))
        new_here = [bool(tokens) for tokens in new]
        agree(got[new_here], want[new_here].double().numpy(), "float32", f"scores after {new}")
        assert rows[-2] == (2 if all(new_here) else sum(map(len, new)))     # before the last mlp
    for one, other in ((caches[1].k, caches[0].k), (caches[1].v, caches[0].v)):
        agree(one, other.double().numpy(), "float32", "what is kept")


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("lean", [0, 1, llama.LEAN])
@pytest.mark.parametrize("m", FAMILIES)
def test_steps_of_decoding_go_around_the_table(agree, monkeypatch, m, lean, tiled):
    """One sequence, several, in any order of lengths: the scores of g01, and the keys and values.
    A model with biases or norms of heads uses the table, and so does every step but decoding."""
    monkeypatch.setattr(llama, "LEAN", lean)
    around, own = [], llama.decode
    monkeypatch.setattr(llama, "decode", lambda *args: (
        around.append((scores := own(*args)) is not None) or scores))
    plain = not (m.qk_norm or m.bias_qkv)
    for first in ([[1, 2, 3]], [[3] * 20, [4], [5] * 17]):
        models = random_model(m, TORCH), random_model(m, CPU, CpuLlama)
        if tiled:
            tile(models[1])
        caches = [PagedCache(m, len(first), 40) for _ in models]
        caches[1].k[:], caches[1].v[:] = torch.nan, torch.nan       # no empty slot may be read
        around.clear()
        one = [[7] for _ in first]
        for new in (first, one, one, [[8, 9] for _ in first], one):
            want, got = (model.forward(cache.step(new), cache)
                         for model, cache in zip(models, caches, strict=True))
            agree(got, want.double().numpy(), "float32", f"scores after {new}")
        assert around == [False, plain, plain, False, plain]
        for kept, right in ((caches[1].k, caches[0].k), (caches[1].v, caches[0].v)):
            there = ~kept.isnan()
            assert there.sum() == m.L * m.G * m.D * sum(caches[1].lens)
            agree(kept[there], right[there].double().numpy(), "float32", "what is kept")


@pytest.mark.parametrize("N, K, n", [
    (320, 192, 64), (192, 512, 64), (96, 513, 32), (64, 2048, 16), (33, 8, None), (64, 2049, None),
    (8, 8, None), (512, 512, None)])
def test_small_matrices_in_strips(agree, N, K, n):
    """One thread makes a product of n rows and LEAN tokens: a larger one would start others."""
    w, x = randn(N, K), randn(llama.LEAN, K)
    strips = llama.in_strips(w.numpy())
    if n is None:
        assert strips is None
        return
    assert strips.shape == (N // n, K, n) and n * K * len(x) <= llama.ONE_THREAD
    for T in (1, 3, len(x)):
        found = llama.matmul_np(strips, x[:T].numpy())
        agree(torch.from_numpy(found).double(), (x[:T] @ w.T).double().numpy(), "float32", "strips")


def test_what_is_small_is_held_twice_and_nothing_else():
    m = replace(TINY, C=64, H=4, F=8192)                # gate, up and down are large
    for change in (lambda model: model, tile):
        model = change(random_model(m, CPU, CpuLlama))
        for few, many in zip(model.arrays(llama.LEAN), model.arrays(llama.LEAN + 1),
                             strict=True):
            assert [few.qkv.ndim, few.o.ndim] == [3, 3]
            assert few.gate_up is many.gate_up and few.down is many.down
            assert isinstance(many.o, np.ndarray) == isinstance(many.down, np.ndarray) == (
                change is not tile)


@pytest.mark.parametrize("change", [
    lambda step: step._replace(slots=torch.tensor([-1, 40])),           # a padded row's
    lambda step: step._replace(cu_q=torch.tensor([0, 1, 1], dtype=torch.int32)),
    lambda step: step._replace(lens=torch.tensor([1, 200], dtype=torch.int32)),
    lambda step: step._replace(slots=torch.tensor([1]))])
def test_what_does_not_fit_goes_to_the_table(change):
    model, cache = random_model(TINY, CPU, CpuLlama), PagedCache(TINY, 2, 40)
    assert llama.decode(model, cache.step([[1], [2]]), cache) is not None
    assert llama.decode(model, change(cache.step([[1], [2]])), cache) is None
    for other in (cache.k.double(), cache.k.transpose(2, 3).contiguous().transpose(2, 3)):
        odd = PagedCache(TINY, 2, 40)
        odd.k = other
        assert llama.decode(model, odd.step([[1], [2]]), odd) is None


def test_more_tokens_than_numpy_gains_from_go_to_the_table(monkeypatch):
    monkeypatch.setattr(llama, "LEAN_TOKENS", 1)
    model = random_model(TINY, CPU, CpuLlama)
    for B, lean in ((1, True), (2, False)):
        cache = PagedCache(TINY, B, 20)
        assert (llama.decode(model, cache.step([[1]] * B), cache) is not None) == lean


@pytest.mark.parametrize("kind", [Llama, CpuLlama])
def test_the_small_model_says_the_same(kind):
    threads = torch.get_num_threads()
    prompts, plain = [list(range(100, 140)), [5]], load(SMALL, dtype=torch.float32)
    model = one_block(kind(plain.config, plain.weights, CPU))
    for texts in ([prompts[0]], prompts):
        assert greedy(model, texts, 24) == greedy(plain, texts, 24)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("m", FAMILIES)
def test_a_model_in_tiles(agree, m):
    """The scores of g01, for one token, few and many; all matrices get a new layout."""
    models = random_model(m, TORCH), tile(random_model(m, CPU, CpuLlama))
    matrices = [getattr(layer, name)[0] for layer in models[1].layers
                for name in ("qkv", "o", "gate_up", "down")] + [models[1].head]
    assert all(w.is_mkldnn for w in matrices)
    assert not models[1].weights                        # nothing is held twice
    caches = [PagedCache(m, 2, 40) for _ in models]
    for new in ([[1, 2, 3], [4]], [[5], [6]], [[7], [8] * 20], [[9], []]):
        want, got = (model.forward(cache.step(new), cache, every=True)
                     for model, cache in zip(models, caches, strict=True))
        agree(got, want.double().numpy(), "float32", f"scores after {new}")


def test_other_models_are_not_tiled():
    model = random_model(TINY, CPU, CpuLlama)
    model.weights = {name: w.bfloat16() for name, w in model.weights.items()}
    assert tile(model) is model and model.weights and not model.head.is_mkldnn


@pytest.mark.parametrize("kind", [Llama, MergedLlama, FusedLlama])
@pytest.mark.parametrize("m", FAMILIES)
def test_settled_weights_are_the_same_ones_in_one_piece(kind, m):
    model, moved = random_model(m, TORCH), one_block(random_model(m, TORCH, kind))
    block = moved.embedding.untyped_storage()
    assert {a.untyped_storage().data_ptr() for a in moved.weights.values()} == {block.data_ptr()}
    assert all(torch.equal(a, moved.weights[name]) for name, a in model.weights.items())
    assert len(block) <= sum(a.nbytes + 15 for a in model.weights.values())     # nothing twice
    for name in ("embedding", "head", "norm"):
        assert torch.equal(getattr(moved, name), getattr(model, name))
    assert (moved.head.data_ptr() == moved.embedding.data_ptr()) == m.tied
    down = moved.weights["model.layers.1.mlp.down_proj.weight"]
    assert moved.layers[1].down[0].data_ptr() == down.data_ptr()
    assert greedy(moved, [[1, 2]], 5) == greedy(model, [[1, 2]], 5)
