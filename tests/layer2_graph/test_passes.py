"""g04's pipeline: what its passes rewrite and what not, what is refused, the memory plan."""

import math
import operator

import numpy as np
import pytest
import torch
from torch.nn.functional import linear, silu

from lab import simulator
from layer1_kernels import kernels
from layer2_graph import (
    Launches,
    Llama,
    PagedCache,
    PlainLayers,
    Refused,
    boxes,
    capture_graph,
    drop_dead,
    fold_scale,
    fuse_add_rmsnorm,
    fuse_attention,
    fuse_matmul_swiglu,
    fuse_rmsnorm,
    fuse_rope,
    fuse_swiglu,
    g04_graph_passes,
    merge_matmuls,
    plan_memory,
    record,
    rope_tables,
    run_in_arena,
    run_passes,
    share_equal,
    use_matmul,
)
from layer2_graph.g01_llama import llama_block
from layer2_graph.g04_graph_passes import norm
from layer2_graph.passes.rewriting import insert, rewrite
from layer2_graph.testing.random_llama import random_llama

aten = torch.ops.aten
PASSES = [share_equal, fold_scale, fuse_rmsnorm, fuse_add_rmsnorm, fuse_attention, fuse_rope,
          merge_matmuls, fuse_swiglu, fuse_matmul_swiglu, use_matmul]


def example(model, T, dtype=torch.float32):
    torch.manual_seed(1)
    cos, sin = (a.to(dtype) for a in rope_tables(model.config, T))
    return torch.randn(T, model.config.C, dtype=dtype), cos, sin


def launches(module, inputs):
    return [launch.label for launch in record(module, inputs).launches]


def names(module):
    return [str(n.target) for n in module.graph.nodes if n.op == "call_function"]


def test_plain_layers_are_g01s():
    model = random_llama()
    x, cos, sin = example(model, 9)
    cache = PagedCache(model.config, 1, 9)
    step, want = cache.step([[0] * 9]), x
    for i in range(model.config.L):
        want = llama_block(model, i, want, step, cache)
    torch.testing.assert_close(PlainLayers(model)(x, cos, sin), want, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="biases or QK-norm, expected neither"):
        PlainLayers(random_llama(qk_norm=True))


@pytest.mark.parametrize("T", [1, 9])
def test_eight_launches_a_layer_and_the_same_result(T):
    model = random_llama()
    inputs = example(model, T)
    module = capture_graph(PlainLayers(model), inputs)
    with Launches() as eager:
        want = PlainLayers(model)(*inputs)
    assert [launch.count for launch in record(module, inputs).launches] == [1] * len(eager.names)
    rewritten, rows = run_passes(module, PASSES, inputs, kernels("torch"))
    copies = 0 if T == 1 else 2         # one transposed row is contiguous
    assert rows[0].launches == len(eager.names) == 2 * 46 + copies
    assert rows[-1].launches == len(launches(rewritten, inputs)) == 2 * 8 + 1
    torch.testing.assert_close(rewritten(*inputs), want, rtol=1e-5, atol=1e-5)
    assert torch.equal(module(*inputs), want)       # the original is unchanged
    assert launches(rewritten, inputs)[:9] == [
        "mean + scale", "q & scale & k & v", "rotate q + rotate k", "scores + softmax + mix", "o",
        "add + rmsnorm", "gate & up + swiglu", "down", "add + rmsnorm"]


def test_a_graph_is_counted_as_launches_counts_a_run():
    """The rewritten graph as well, with the kernels of the counting table."""
    model = random_llama(L=1)
    inputs = example(model, 6)
    seen = Launches()
    ops = seen.counting(kernels("torch"))
    rewritten, rows = run_passes(capture_graph(PlainLayers(model), inputs), PASSES, inputs, ops)
    seen.names.clear()
    with seen, torch.no_grad():
        rewritten(*inputs)
    assert len(seen.names) == rows[-1].launches == 9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    model = random_llama(L=1)
    model = Llama(model.config, {k: w.to(dtype) / 4 for k, w in model.weights.items()}, model.ops)
    inputs = example(model, 7, dtype)
    module = capture_graph(PlainLayers(model), inputs)
    _, rows = run_passes(module, PASSES, inputs, kernels("torch"))
    # ops.rope takes fp32 angles alone; other dtypes are turned by their own operations
    assert rows[-1].launches == 9 - 1 + 14


def test_the_order_of_passes_may_change_the_count_and_never_the_result():
    model = random_llama(L=1)
    inputs = example(model, 5)
    module = capture_graph(PlainLayers(model), inputs)
    for seed in range(3):
        mixed = np.random.default_rng(seed).permutation(PASSES)
        run_passes(module, mixed, inputs, kernels("torch"))


@pytest.fixture
def triton_on_the_cpu():
    simulator.activate_triton()
    yield
    simulator.deactivate_triton()


@pytest.mark.slow
def test_the_rewritten_graph_runs_on_triton_kernels(triton_on_the_cpu):
    model = random_llama(L=1)
    inputs = example(model, 3)
    module = capture_graph(PlainLayers(model), inputs)
    rewritten, rows = run_passes(module, PASSES, inputs, kernels("triton"))
    assert rows[-1].launches == 9
    torch.testing.assert_close(rewritten(*inputs), module(*inputs), rtol=1e-4, atol=1e-4)


# ---- what must not be rewritten


def rewritten(function, inputs, *passes):
    """Names of the graph's calls after the passes; run_passes has compared the results."""
    module, _ = run_passes(capture_graph(function, inputs), passes, inputs, kernels("torch"))
    return names(module)


def rows(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("function", [
    lambda x, w: (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5), w),      # no weight
    lambda x, w: (lambda s: x * torch.rsqrt(s + 1e-5) * w + s)(
        x.pow(2).mean(-1, keepdim=True)),                                           # s is used
    lambda x, w: x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-5) * w,        # other axis
    lambda x, w: x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-5) * w,
    lambda x, w: (x + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w,
    lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w,        # no pow
    lambda x, w: norm(x[None], w, 1e-5),                                            # three axes
    lambda x, w: norm(x, w[None], 1e-5),
    lambda x, w: norm(x, w.double(), 1e-5),
    lambda x, w: norm(x, w.bfloat16(), 1e-5),
])
def test_what_is_no_rmsnorm_stays(function):
    assert not any("rmsnorm" in name for name in
                   rewritten(function, (rows(4, 8), rows(8)), fuse_rmsnorm))


def test_a_norm_of_a_norm_is_two():
    found = rewritten(lambda x, w: norm(norm(x, w, 1e-5), w, 1e-6), (rows(4, 8), rows(8)),
                      fuse_rmsnorm)
    assert sum("rmsnorm" in name for name in found) == 2 == len(found)


def overwritten(x, w):
    square = x.pow(2).mean(-1, keepdim=True)
    y = x * torch.rsqrt(square + 1e-5)
    x.add_(1)
    return y * w


def scaled_by_another(a, b, w):
    total = torch.add(a, b, alpha=2)
    return norm(total, w, 1e-5)


def one_row_for_all(a, b, w):
    return norm(a + b[:1], w, 1e-5)


def total_is_written(a, b, w):
    total = a + b
    kept = total.clone()
    total.mul_(2)
    return norm(total, w, 1e-5), kept


def test_a_sum_and_its_norm():
    inputs, both = (rows(4, 8), rows(4, 8), rows(8)), (fuse_rmsnorm, fuse_add_rmsnorm)
    assert any("add_rmsnorm" in n for n in rewritten(
        lambda a, b, w: (norm(a + b, w, 1e-5), a), inputs, *both))
    kept = rewritten(lambda a, b, w: (norm(a + b, w, 1e-5), (a + b) * 2), inputs,
                     share_equal, *both)
    assert any("add_rmsnorm" in n for n in kept) and "aten.add.Tensor" not in kept
    for function in (scaled_by_another, one_row_for_all, total_is_written):
        assert not any("add_rmsnorm" in n for n in rewritten(function, inputs, *both)), function
    assert not any("rmsnorm" in n for n in rewritten(overwritten, (rows(4, 8), rows(8)),
                                                     fuse_rmsnorm))


def test_equal_calls_are_shared_unless_written_or_drawn():
    def count(function):
        return len(rewritten(function, (rows(4, 8),), share_equal))

    assert count(lambda x: (x + 1) * (x + 1)) == 2
    assert count(lambda x: (x + 1) * (x + 2)) == 3
    assert count(lambda x: (x.sum(0), x.sum(1))) == 2

    def written(x):
        a, b = x + 1, x + 1
        b.mul_(2)
        return a, b

    def x_changes(x):
        a = x + 1
        x.mul_(2)
        return a, x + 1

    assert count(written) == count(x_changes) == 3
    module = capture_graph(lambda x: (torch.rand_like(x), torch.rand_like(x)), (rows(4, 8),))
    assert share_equal(module) == 0 and drop_dead(module) == 0
    with pytest.raises(ValueError, match="draws random numbers; two runs could not be compared"):
        run_passes(module, [], (rows(4, 8),), kernels("torch"))


def test_dead_calls_go_and_writes_stay():
    def function(x):
        x.pow(2).sum()
        x.add_(1)
        return x * 2

    assert rewritten(function, (rows(4, 8),), drop_dead) == ["aten.add_.Tensor", "aten.mul.Tensor"]


class Scaled(torch.nn.Module):
    def __init__(self, then):
        super().__init__()
        self.then = then
        self.register_buffer("w", rows(6, 8))

    def forward(self, x):
        return self.then(x, self.w)


def test_a_scale_is_folded_into_a_weight():
    def count(then):
        return len(rewritten(Scaled(then), (rows(4, 8),), fold_scale))

    assert count(lambda x, w: linear(x, w) * 0.3) == 1
    assert count(lambda x, w: (lambda y: y * 0.3 + y)(linear(x, w))) == 3
    assert count(lambda x, w: linear(x, w, w[:, 0]) * 0.3) == 3
    assert count(lambda x, w: linear(x, w) * x[:, :1]) > 2
    module = capture_graph(lambda x, w: linear(x, w) * 0.3, (rows(4, 8), rows(6, 8)))
    assert fold_scale(module) == 0                  # the weight is an input

    def changes(x, w):
        y = linear(x, w)
        x.mul_(2)
        return y * 0.3

    assert count(changes) == 3


def test_a_weight_that_changes_is_no_constant():
    def counts(x, w):
        y = linear(x, w) * 0.3
        w.add_(1)
        return y

    module = capture_graph(Scaled(counts), (rows(4, 8),))
    assert fold_scale(module) == 0
    with pytest.raises(ValueError, match="writes into the weight w; two runs"):
        run_passes(module, [], (rows(4, 8),), kernels("torch"))


class Both(torch.nn.Module):
    def __init__(self, gate_too):
        super().__init__()
        self.gate_too = gate_too
        self.register_buffer("gate", rows(6, 8))
        self.register_buffer("up", rows(6, 8) * 2)

    def forward(self, x):
        gate = linear(x, self.gate)
        hidden = silu(gate) * linear(x, self.up)
        return (hidden, gate) if self.gate_too else hidden


def test_a_matmul_ends_with_swiglu_where_nobody_else_needs_its_halves():
    passes = merge_matmuls, fuse_swiglu, fuse_matmul_swiglu
    for gate_too in (False, True):
        found = rewritten(Both(gate_too), (rows(4, 8),), *passes)
        assert any("matmul_swiglu" in n for n in found) is not gate_too


def heads(x, later=1, changed=False):
    """Attention as PlainLayer has it, with a mask of our own."""
    q, (k, v) = x * 2, ((x[:, :2] + i).repeat_interleave(2, 1) for i in (1, 2))
    scores = q.transpose(0, 1) @ k.permute(1, 2, 0)
    mask = torch.ones(len(x), len(x), dtype=torch.bool).triu(later)
    if changed:
        mask[0, 1:2].fill_(False)
    weights = scores.masked_fill(mask, -math.inf).softmax(-1)
    return (weights @ v.transpose(0, 1)).transpose(0, 1).flatten(1)


def test_attention_is_fused_where_the_mask_is_the_causal_one():
    from layer2_graph.g04_graph_passes import attend

    def fused(function, *inputs):
        return any("flash" in n for n in rewritten(function, inputs, fuse_attention))

    q, k, v = rows(5, 4, 16), rows(5, 2, 16), rows(5, 2, 16)
    assert fused(attend, q, k, v) and fused(heads, rows(5, 4, 16))
    assert not fused(lambda x: heads(x, 2), rows(5, 4, 16))     # sees one token ahead
    assert not fused(lambda x: heads(x, changed=True), rows(5, 4, 16))

    def given_mask(q, k, v, later):
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = (q.transpose(0, 1) @ k.permute(1, 2, 0)).masked_fill(later, -math.inf)
        return (scores.softmax(-1) @ v.transpose(0, 1)).transpose(0, 1)

    assert not fused(given_mask, q, k, v, torch.ones(5, 5).triu(1).bool())
    for flat in (lambda: torch.arange(5) > 2, lambda: (torch.arange(5) > 2)[None]):
        assert not fused(lambda q, k, v, flat=flat: given_mask(q, k, v, flat()), q, k, v)


def test_a_turn_is_done_in_place_only_where_nobody_else_reads():
    from layer2_graph.g04_graph_passes import turn

    def fused(function):
        inputs = rows(5, 2, 16), rows(5, 1, 16), rows(5, 8), rows(5, 8)
        return any("rope" in n for n in rewritten(function, inputs, fuse_rope))

    def angles(cos, sin):
        return cos[:, None], sin[:, None]

    def own(q, k, cos, sin):
        return turn(q * 2, *angles(cos, sin)), turn(k * 2, *angles(cos, sin))

    def inputs_are_kept(q, k, cos, sin):
        return turn(q, *angles(cos, sin)), turn(k, *angles(cos, sin))

    def q_is_returned(q, k, cos, sin):
        q = q * 2
        return turn(q, *angles(cos, sin)), turn(k * 2, *angles(cos, sin)), q

    def through_a_view(q, k, cos, sin):
        q = q * 2
        return turn(q, *angles(cos, sin)), turn(k * 2, *angles(cos, sin)), q.flatten() + 1

    def q_is_written_after(q, k, cos, sin):
        q = q * 2
        new = turn(q, *angles(cos, sin)), turn(k * 2, *angles(cos, sin))
        q.add_(1)
        return new

    def k_needs_q(q, k, cos, sin):
        q = turn(q * 2, *angles(cos, sin))
        return q, turn(k * 2 + q[:, :1], *angles(cos, sin))

    def other_angles(q, k, cos, sin):
        return turn(q * 2, *angles(cos, sin)), turn(k * 2, *angles(sin, cos))

    def one_row_of_angles(q, k, cos, sin):
        return own(q, k, cos[:1] * 1, sin[:1] * 1)

    def one_angle_a_token(q, k, cos, sin):
        return own(q, k, cos[:, :1] * 1, sin[:, :1] * 1)

    def one_key_head_for_two(q, k, cos, sin):
        k = (k * 2).expand(-1, 2, -1)
        return turn(q * 2, *angles(cos, sin)), turn(k, *angles(cos, sin))

    assert fused(own)
    for function in (
            one_row_of_angles, one_angle_a_token, one_key_head_for_two, inputs_are_kept,
            q_is_returned, through_a_view, q_is_written_after, k_needs_q, other_angles):
        assert not fused(function), function.__name__


# ---- the pipeline refuses


def wrong_by_a_little(module, ops):
    for node in module.graph.nodes:
        if node.target is aten.silu.default:
            rewrite(node, aten.mul.Tensor, (node.args[0], 0.5), "half")
    return 1


def another_shape(module, ops):
    last = list(module.graph.nodes)[-1]
    result = last.args[0][0]
    with module.graph.inserting_before(last):
        last.args = ([module.graph.call_function(aten.sum.default, (result,))],)
    return 1


def does_not_run(module, ops):
    for node in list(module.graph.nodes):
        if node.target is aten.silu.default:
            insert(node, operator.getitem, (node.args[0], 99), node.meta["val"], "")
            rewrite(node, aten.view.default, (node.args[0], [3]), "")
    return 1


def test_a_pass_that_changes_the_result_is_refused_by_name():
    def function(gate, up):
        return silu(gate) * up

    inputs = rows(4, 8), rows(4, 8)
    module, ops = capture_graph(function, inputs), kernels("torch")
    for change, words in ((wrong_by_a_little, r"a result differs by up to [\d.]+; the largest"),
                          (another_shape, r"the graph returns \(\) float32, .* expected "
                                          r"\(4, 8\) float32"),
                          (does_not_run, "the graph does not run: ")):
        with pytest.raises(Refused, match=f"^after {change.__name__} {words}"):
            run_passes(module, [fuse_rmsnorm, change], inputs, ops)
        assert torch.equal(module(*inputs), function(*inputs))
    with pytest.raises(Refused, match="differs by up to inf"):
        run_passes(capture_graph(lambda a, b: a / b, inputs), [to_zero], inputs, ops)
    _, found = run_passes(module, [fuse_swiglu], inputs, ops)
    assert [r.launches for r in found] == [2, 1]


def to_zero(module, ops):
    for node in list(module.graph.nodes):
        if node.target is aten.div.Tensor:
            rewrite(node, aten.mul.Tensor, (node.args[0], math.inf), "")
    return 1


def test_a_graph_is_compared_on_the_inputs_and_on_two_draws(monkeypatch):
    seeds = []
    drawn = g04_graph_passes.random_like
    monkeypatch.setattr(g04_graph_passes, "random_like",
                        lambda inputs, seed: seeds.append(seed) or drawn(inputs, seed))
    inputs = rows(4, 8), rows(4, 8)
    run_passes(capture_graph(lambda a, b: silu(a) * b, inputs), [], inputs, kernels("torch"))
    assert len(set(seeds)) == len(seeds) == 2


def test_an_input_that_is_written_into_is_a_result():
    def function(x):
        return x.add_(1) * 2

    def forgets(module, ops):
        for node in list(module.graph.nodes):
            if node.target is aten.add_.Tensor:
                rewrite(node, aten.add.Tensor, node.args, "add")
        return 1

    module = capture_graph(function, (rows(3, 4),))
    with pytest.raises(Refused, match="after forgets a result differs"):
        run_passes(module, [forgets], (rows(3, 4),), kernels("torch"))


# ---- the recording, the plan and the drawing


def aliased(x, w):
    y = linear(x, w)                    # 0
    a, b = y.chunk(2, -1)
    z = (a * 2).relu_()                 # 1, and 2 in place
    b.add_(1)                           # 3, into y through a view
    return z + y[:, :3], y.view(-1)     # 4


def test_views_show_a_storage_and_writes_use_it():
    inputs = rows(4, 8), rows(6, 8)
    run = record(capture_graph(aliased, inputs), inputs)
    assert [launch.count for launch in run.launches] == [1] * 5
    assert [len(launch.makes) for launch in run.launches] == [1, 1, 0, 0, 1]
    (y,), (z,), (out,) = (run.launches[i].makes for i in (0, 1, 4))
    assert run.launches[2].writes == (z,) and run.launches[3].writes == (y,)
    assert set(run.launches[4].uses) == {y, z}
    assert set(run.kept) == {y, out}
    assert run.sizes == {y: 4 * 6 * 4, z: 4 * 3 * 4, out: 4 * 3 * 4}
    assert [b.inputs for b in boxes(run)] == [(), (), (0, 1), (2,), (3,), (2,), (4, 5)]


@pytest.mark.parametrize("passes", [[], PASSES])
def test_the_graph_runs_in_its_arena(passes):
    model = random_llama()
    inputs = example(model, 6)
    module, rows = run_passes(capture_graph(PlainLayers(model), inputs), passes, inputs,
                              kernels("torch"))
    run = record(module, inputs)
    plan = plan_memory(run)
    assert plan.live <= plan.peak < plan.kept / 3
    assert (rows[-1].kept, rows[-1].live, rows[-1].peak) == (plan.kept, plan.live, plan.peak)
    assert torch.equal(run_in_arena(module, run, plan, inputs), run.result)
    # a plan that puts two storages into one place is caught
    spoiled = plan._replace(offsets=dict.fromkeys(plan.offsets, 0))
    assert not torch.equal(run_in_arena(module, run, spoiled, inputs), run.result)


def test_the_arena_takes_views_writes_and_several_results():
    inputs = rows(4, 8), rows(6, 8)
    module = capture_graph(aliased, inputs)
    run = record(module, inputs)
    got = run_in_arena(module, run, plan_memory(run), inputs)
    assert all(torch.equal(a, b) for a, b in zip(got, run.result, strict=True))


def test_memory_that_is_set_aside_is_made_by_who_first_uses_it():
    def function(x):
        room, y = torch.empty_like(x), x + 1
        z = (y * 2).sum()
        return room.copy_(y) + z

    inputs = (rows(4, 8),)
    module = capture_graph(function, inputs)
    run = record(module, inputs)
    assert [launch.label for launch in run.launches] == ["add", "mul", "sum", "copy_", "add"]
    assert [len(launch.makes) for launch in run.launches] == [1] * 5
    assert torch.equal(run_in_arena(module, run, plan_memory(run), inputs), run.result)


def test_a_node_of_several_operations_counts_as_many():
    inputs = (rows(4, 8),)
    module = capture_graph(lambda x: torch.nn.functional.rms_norm(x, (8,)) + x, inputs)
    with Launches() as seen:
        module(*inputs)
    run = record(module, inputs)
    assert sum(launch.count for launch in run.launches) == len(seen.names) > 2
