"""g06's tape and its GraphRunner: what is refused, what is replayed, what the host asks for."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import layer2_graph
from lab import simulator
from lab.course import ROOT
from layer1_kernels import kernels
from layer2_graph import (
    Batch,
    CaptureError,
    Forked,
    GraphRunner,
    Llama,
    PagedCache,
    Tape,
    capture,
    choose_sizes,
    end_times,
    generate_on,
    greedy,
    load,
)
from layer2_graph.bench.g06_cuda_graphs import bench
from layer2_graph.g06_cuda_graphs import (
    Request,
    asked,
    blank_step,
    memory,
    needs,
    pad_step,
    serve,
)
from layer2_graph.testing.random_llama import random_llama


def noisy(model, sequences, room):
    """A cache whose every slot holds something."""
    cache = PagedCache(model.config, sequences, room)
    cache.k.normal_(), cache.v.normal_()
    return cache


# ---- the recording


OPS = kernels("torch")
REFUSED = {
    "item": lambda x, ops: x.sum().item(),
    "if": lambda x, ops: x if x.sum() > 0 else -x,
    "float": lambda x, ops: x * float(x[0]),
    "tolist": lambda x, ops: x * x.tolist()[0],
    "numpy": lambda x, ops: torch.from_numpy(x.numpy()),
    "cpu": lambda x, ops: x.cpu(),
    "mask": lambda x, ops: x[x > 0],
    "write by a mask": lambda x, ops: x.__setitem__(x > 0, 2.0),
    "nonzero": lambda x, ops: x.nonzero(),
    "equal": lambda x, ops: torch.equal(x, x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_question_to_the_device_is_refused(name):
    x = torch.ones(3)
    with pytest.raises(CaptureError, match="on the host, but a replay runs no Python"):
        capture(partial(REFUSED[name], x), OPS, "cpu")
    assert (x + 1 > 0).all().item()             # no mode is left active


def test_a_kernel_may_look_at_contents_and_is_one_launch():
    model = random_llama()
    step = PagedCache(model.config, 2, 16).step([[1], [2]])
    q, pages = torch.randn(2, 4, 16), torch.randn(2, 16, 2, 16)
    tape = capture(lambda ops: ops.paged_attention(q, pages, pages, *step[3:], 0.25), OPS, "cpu")
    assert [call.name for call in tape.calls] == ["paged_attention"]
    step.lens.fill_(9)
    q.mul_(2)
    tape.replay()
    want = OPS.paged_attention(q, pages, pages, *step[3:], 0.25)
    assert torch.equal(tape.output, want)


def test_python_is_not_run_again_and_its_numbers_are_frozen():
    x, seen, factor = torch.ones(2), [], 2.0

    def step(ops):
        seen.append(factor)
        return x * factor

    tape = Tape(step, OPS)
    address, factor = tape.output.data_ptr(), 10.0
    x.fill_(3)
    tape.replay()
    assert seen == [2.0] and tape.output.tolist() == [6, 6]
    assert tape.output.data_ptr() == address


def test_memory_that_is_set_aside_is_no_launch():
    x = torch.ones(3)
    tape = Tape(lambda ops: torch.empty(3).copy_(x).mul_(2), OPS)
    x.fill_(5)
    tape.replay()
    assert [call.name for call in tape.calls] == ["copy_", "mul_"]
    assert tape.output.tolist() == [10] * 3


def test_views_lie_where_they_lay():
    x = torch.arange(6.0)
    tape = Tape(lambda ops: (x.view(2, 3).t() + 1).reshape(6)[1:3], OPS)
    x.mul_(10)
    tape.replay()
    assert tape.output.tolist() == [31, 11]


# ---- the runner


LADDERS = [([1, 2, 4, 8], 6), ([1, 2, 4, 8, 16], 20), ([3], 5), ([1, 2, 4, 8], 4), ([7], 7),
           ([9], 1)]


@pytest.mark.parametrize("sizes, max_batch", LADDERS)
def test_every_batch_has_a_graph_or_the_fallback(sizes, max_batch):
    model = random_llama(L=1)
    cache, other = noisy(model, max_batch, 20), PagedCache(model.config, max_batch, 20)
    other.k.copy_(cache.k), other.v.copy_(cache.v)
    runner = GraphRunner(model, cache, sizes, max_batch, cache.pages)
    assert torch.equal(cache.k, other.k) and torch.equal(cache.v, other.v)      # capturing
    assert len(runner.buffers.tokens) == runner.sizes[-1] <= max_batch
    for batch in [*range(max_batch, 0, -1), *range(1, max_batch + 1)]:          # shrinks and grows
        step = first_sequences(cache, batch)
        fits = batch <= runner.sizes[-1]
        assert ("replay" in asked(runner, step)) == fits
        before = cache.k.clone(), cache.v.clone()
        got, want = runner.forward(step, cache).clone(), model.forward(step, other)
        assert got.shape == (batch, 31)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        elsewhere = torch.ones(cache.k.shape[1] * 16, dtype=torch.bool)
        elsewhere[step.slots] = False
        for old, new in zip(before, (cache.k, cache.v), strict=True):
            old, new = (x.flatten(1, 2)[:, elsewhere].view(torch.int32) for x in (old, new))
            assert torch.equal(old, new)                    # bytewise
        torch.testing.assert_close(cache.k, other.k, rtol=1e-5, atol=1e-5)


def first_sequences(cache, batch):
    """A step of one new token for each of the first sequences, at the third place of each."""
    cache.lens = [2] * len(cache.lens)
    step = cache.step([[b % 31] for b in range(len(cache.lens))])
    return Batch(step.tokens[:batch], step.positions[:batch], step.slots[:batch],
                step.block_tables[:batch], step.cu_q[:batch + 1], step.lens[:batch])


REQUESTS = [Request([1, 2, 3], 6, 0), Request([4], 10, 0), Request([5, 6], 3, 2),
            Request([7] * 9, 12, 3), Request([9], 1, 7), Request([8, 8], 2, 18)]


@pytest.mark.parametrize("entries", [{}, {"tied": True, "qk_norm": True, "bias_qkv": True}])
@pytest.mark.parametrize("sizes", [[1, 2, 4], [2], [6], [1, 3]])
def test_requests_that_come_and_go_get_the_tokens_they_would_get_alone(sizes, entries):
    model = random_llama(**entries)
    cache = noisy(model, len(REQUESTS), 21)
    runner = GraphRunner(model, cache, sizes, 6, cache.pages)
    got, steps = serve(runner, cache, REQUESTS)
    assert got == [greedy(model, [r.prompt], r.count)[0] for r in REQUESTS]
    assert len({B for B, _ in steps}) > 3 and any(T > B for B, T in steps)


@pytest.mark.parametrize("folder", ["day02_overview/nano", "layer2_graph/small"])
def test_shipped_models_too(folder):
    model = load(Path(layer2_graph.__file__).parents[1] / folder, dtype=torch.float32)
    requests = [r._replace(prompt=[t + 60 for t in r.prompt]) for r in REQUESTS[:4]]
    cache = noisy(model, 4, 21)
    got, _ = serve(GraphRunner(model, cache, [1, 2, 4], 4, cache.pages), cache, requests)
    assert got == [greedy(model, [r.prompt], r.count)[0] for r in requests]


def test_it_stands_in_for_a_model():
    model = random_llama()
    cache = PagedCache(model.config, 3, 20)
    runner = GraphRunner(model, cache, [4], 4, cache.pages)
    prompts = [[1, 2], [3], [4, 5, 6]]
    assert generate_on(cache, runner, prompts, 9) == greedy(model, prompts, 9)


def test_what_a_padded_row_reads_stays_in_it():
    model = random_llama()
    cache = noisy(model, 3, 20)
    runner = GraphRunner(model, cache, [4], 4, cache.pages)
    step = cache.step([[5], [], []])
    step = Batch(step.tokens, step.positions, step.slots + 2 * 32, step.block_tables[2:],
                torch.tensor([0, 1], dtype=torch.int32), step.lens[:1])
    want = model.forward(step, cache)
    cache.k[:, 0], cache.v[:, 0] = torch.nan, torch.inf                 # page 0: the padded rows'
    runner.buffers.block_tables[:, 1:] = 10**6                          # after the last page
    torch.testing.assert_close(runner.forward(step._replace(block_tables=step.block_tables[:, :1]),
                                              cache), want)
    assert runner.graphs[4].output[1:].isnan().any()
    assert (runner.buffers.block_tables[:, 1:] == 10**6).all()


def test_two_new_tokens_for_one_and_none_for_another_fit_by_their_shapes():
    model = random_llama()
    caches = [PagedCache(model.config, 3, 20) for _ in range(2)]
    runner = GraphRunner(model, caches[0], [4], 4, caches[0].pages)
    for new in ([[1], [2], [3]], [[4, 5], [], [6]], [[], [7], [8, 9]], [[1], [2], [3]]):
        got = runner.forward(caches[0].step(new), caches[0])
        want = model.forward(caches[1].step(new), caches[1])
        there = [bool(tokens) for tokens in new]
        torch.testing.assert_close(got[there], want[there])


def test_what_does_not_fit_runs_eagerly():
    model = random_llama()
    cache = PagedCache(model.config, 3, 40)
    runner = GraphRunner(model, cache, [1, 2], 3, 2)
    wide = cache.step([[1], [2], [3]])
    assert wide.block_tables.shape[1] == 3
    one = Batch(*(x[:1] for x in wide[:4]), wide.cu_q[:2], wide.lens[:1])
    assert runner.pick(one) is None
    narrow = one._replace(block_tables=one.block_tables[:, :2])
    assert runner.pick(narrow) == 1
    assert runner.pick(wide._replace(block_tables=wide.block_tables[:, :2])) is None
    assert runner.pick(PagedCache(model.config, 2, 32).step([[1, 2], [3]])) is None


def test_bad_input_is_one_sentence():
    model = random_llama()
    cache = PagedCache(model.config, 2, 16)
    for sizes, max_batch, pages in (([], 2, 1), ([0, 2], 2, 1), ([1], 0, 1), ([1], 2, 0)):
        with pytest.raises(ValueError, match="expected one size or more, all numbers 1 or more"):
            GraphRunner(model, cache, sizes, max_batch, pages)
    runner = GraphRunner(model, cache, [2], 2, 1)
    with pytest.raises(ValueError, match="not the cache whose addresses"):
        runner.forward(cache.step([[1], [2]]), PagedCache(model.config, 2, 16))


@pytest.fixture
def triton_on_the_cpu():
    simulator.activate_triton()
    yield
    simulator.deactivate_triton()


def test_triton_kernels_are_replayed_too(triton_on_the_cpu):
    model = random_llama(L=1)
    want = greedy(model, [[1, 2], [3]], 3)
    model.ops = kernels("triton")
    cache = noisy(model, 2, 16)
    runner = GraphRunner(model, cache, [4], 4, cache.pages)
    assert generate_on(cache, runner, [[1, 2], [3]], 3) == want


# ---- counts


def test_the_host_asks_for_the_same_whatever_the_layers():
    for L in (1, 3):
        model = random_llama(L=L)
        runner = GraphRunner(model, PagedCache(model.config, 3, 16), [3, 4], 4, 1)
        step = runner.cache.step([[1], [2], [3]])
        assert len(asked(runner, step)) == 7
        runner.sizes = [4]
        assert len(asked(runner, step)) == 10
        runner.sizes = []
        assert len(asked(runner, step)) == 15 * L + 6
        assert len(runner.graphs[3].calls) == 15 * L + 6


def test_calls_wait_for_writers_and_for_readers():
    x, y = torch.ones(4), torch.ones(4)

    def step(ops):
        a = x + 1               # 0
        b = y + 1               # 1
        x.mul_(2)               # 2: after 0 has read it
        y[2:].add_(1)           # 3: after 1 has read it
        c = y[:2] * 3           # 4: another half than 3 writes
        d = x + a               # 5
        return b, c, d

    assert needs(Tape(step, OPS).calls) == [set(), set(), {0}, {1}, set(), {0, 2}]


def test_a_layer_is_12_steps_of_15():
    for L in (1, 2):
        model = random_llama(L=L)
        runner = GraphRunner(model, PagedCache(model.config, 2, 16), [2], 2, 1)
        calls = runner.graphs[2].calls
        ends = end_times(needs(calls), [1] * len(calls))
        assert max(ends) == 12 * L + 4
        for end, matrices in ((3, 3), (10, 2)):                 # q, k, v; gate, up
            together = [c.name for c, e in zip(calls, ends, strict=True) if e == end]
            assert together == ["matmul"] * matrices


def test_memory_is_given_back_after_the_last_use():
    x = torch.ones(100)
    tape = Tape(lambda ops: (((x + 1) * 2).view(10, 10) - 1).sum(1), OPS)
    assert memory(tape) == 2 * 400                      # two neighbours in the chain
    tape = Tape(lambda ops: (x + 1, x * 2, x - 1), OPS)
    assert memory(tape) == 3 * 400                      # all are the output


def test_a_pool_holds_what_the_largest_does():
    model = random_llama()
    runner = GraphRunner(model, PagedCache(model.config, 2, 16), choose_sizes(8, 0.5), 8, 1)
    held = [memory(runner.graphs[size]) for size in runner.sizes]
    assert list(runner.graphs) == runner.sizes[::-1]            # the largest is captured first
    assert held == sorted(held) and held[-1] == 8 * held[0]


@pytest.mark.parametrize("entries", [{}, {"qk_norm": True, "bias_qkv": True}])
def test_side_by_side_gives_the_same_tokens(entries):
    model = random_llama(**entries)
    forked = Forked(model.config, model.weights, model.ops)
    assert greedy(forked, [[1, 2, 3], [4]], 9) == greedy(model, [[1, 2, 3], [4]], 9)
    cache = PagedCache(model.config, 2, 16)
    runner = GraphRunner(forked, cache, [2], 2, 1)
    assert generate_on(cache, runner, [[1, 2, 3], [4]], 9) == greedy(model, [[1, 2, 3], [4]], 9)


def test_padding_leaves_blank_buffers_blank():
    buffers = blank_step(3, 2, "cpu")
    assert buffers.slots.tolist() == [-1] * 3 and buffers.lens.tolist() == [1] * 3
    pad_step(buffers, Batch(*(torch.tensor(x) for x in ([5], [0], [7], [[1, 0]], [0, 1], [1]))), 3)
    assert buffers.cu_q.tolist() == [0, 1, 2, 3] and buffers.slots.tolist() == [7, -1, -1]
    assert all(x.dtype == kind for x, kind in zip(
        buffers, [torch.int64] * 3 + [torch.int32] * 3, strict=True))


def test_what_is_measured_gives_the_same_scores(triton_on_the_cpu, monkeypatch):
    """Every way of the bench, in the simulator; nothing is timed."""
    import day01_roofline as day1

    tiny = day1.LlamaShape("tiny", L=1, C=32, H=2, G=1, D=16, F=32, V=48, tied=True)
    monkeypatch.setitem(day1.LLAMAS, "tiny", tiny)
    monkeypatch.setattr(day1, "measure_side_by_side", lambda found: found)
    for flops, moved, ways in bench("tiny", (2,), 4, "cpu").values():
        assert type(flops) is int and type(moved) is int
        eager, *others = (way().float() for way in ways.values())
        for other in others:
            torch.testing.assert_close(other, eager)


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [Llama, Forked])
def test_graphs_on_a_gpu(kind):
    small = random_llama(qk_norm=True, bias_qkv=True)
    weights = {name: w.cuda() for name, w in small.weights.items()}
    model = kind(replace(small.config, room=64), weights, kernels("triton"))
    cache = PagedCache(model.config, len(REQUESTS), 21, device="cuda")
    runner = GraphRunner(model, cache, [1, 2, 4], 6, cache.pages)
    assert not cache.k.any() and not cache.v.any()
    got, _ = serve(runner, cache, REQUESTS)
    assert got == [greedy(model, [r.prompt], r.count)[0] for r in REQUESTS]


ASKS_A_GPU = """
import torch
from layer1_kernels import kernels
from layer2_graph import capture

x = torch.ones(3, device="cuda")
try:
    capture(lambda ops: x * x.sum().item(), kernels("triton"), "cuda")
except RuntimeError:
    print("refused")
"""


@pytest.mark.gpu
def test_a_gpu_refuses_what_the_tape_refuses():
    """In a process of its own: after a failed capture, it may not be able to use its GPU again."""
    done = subprocess.run([sys.executable, "-c", ASKS_A_GPU], cwd=ROOT, text=True,
                          capture_output=True)
    assert done.stdout == "refused\n", done.stderr
