"""Graders of g04. Graphs are built node by node in the child, and computed here as well."""

import itertools
import math
import operator
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.functional import linear, silu

from lab import simulator
from lab.judge.adversarial import VALUES, views
from lab.judge.compare import brief
from lab.judge.subject import Stopped
from layer1_kernels import kernels
from layer2_graph import (
    Config,
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
    merge_matmuls,
    plan_memory,
    record,
    rope_tables,
    run_in_arena,
    run_passes,
    share_equal,
    use_matmul,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.g01_llama import llama_block
from layer2_graph.g04_graph_passes import gated_mlp, norm
from layer2_graph.passes.rewriting import insert, rewrite

aten = torch.ops.aten
T, C, F = 5, 12, 7


class Graph:
    """A graph in the child. Each node has its value on this side, computed as it is added.

    values: makes the numbers of inputs and weights    layout: of views, for those with two axes
    """

    def __init__(self, subject, rng, values=None, layout=None):
        self.make, self.rng, self.made, self.layout = subject.make, rng, values, layout
        self.aten = subject.make("importlib:import_module", "torch").ops.aten
        self.ops = subject.make("layer1_kernels:kernels", "torch")
        self.root, self.graph = subject.make("torch.nn:Module"), subject.make("torch.fx:Graph")
        self.inputs, self.values, self.lines = [], [], []

    def random(self, *shape, dtype=torch.float32):
        if self.made:
            return torch.from_numpy(self.made(self.rng, shape)).to(dtype)
        value = torch.from_numpy(self.rng.standard_normal(shape)).to(dtype)
        return views(value)[self.layout] if self.layout and len(shape) == 2 else value

    def add(self, node, value):
        self.make("builtins:setattr", node, "meta", {"val": value.clone()})
        self.values.append((node, value))
        return len(self.values) - 1

    def given(self, *shape, dtype=torch.float32):
        value = self.random(*shape, dtype=dtype)
        self.inputs.append(value if self.layout else value.clone())
        return self.add(self.graph.placeholder(f"x{len(self.inputs)}"), value)

    def weight(self, name, *shape, dtype=torch.float32):
        value = self.random(*shape, dtype=dtype)
        self.root.register_buffer(name, value if self.layout else value.clone())
        return self.add(self.graph.get_attr(name), value)

    def call(self, name, *args):
        """name: as in torch.ops.aten. An argument is the number of a value, or a Constant."""
        node, value = ([self.values[a][side] if type(a) is int else a.value for a in args]
                       for side in (0, 1))
        packet, overload = name.split(".")
        self.lines.append(f"{len(self.values)} = {packet}({', '.join(map(shown, args))})")
        target = getattr(getattr(self.aten, packet), overload)
        return self.add(self.graph.call_function(target, tuple(node)),
                        getattr(getattr(aten, packet), overload)(*value))

    def module(self, *results):
        """The GraphModule that returns these values."""
        self.graph.output([self.values[i][0] for i in results])
        self.results = results
        self.built = self.make("torch.fx:GraphModule", self.root, self.graph)
        return self.built

    def check_order(self, title):
        before = set()
        for node in self.built.graph.nodes:
            late = [n.name for n in node.all_input_nodes if n.name not in before]
            assert not late, (f"{title}: the graph cannot run: {late[0]} stands behind a call that "
                              f"takes it, {node.name}")
            before.add(node.name)

    def run(self):
        """What the rewritten graph gives, and what it should give, flat."""
        self.built.graph.lint()
        self.built.recompile()
        got = self.built(*[x if self.layout else x.clone() for x in self.inputs])
        return [np.concatenate([np.asarray(a, dtype=np.float64).ravel() for a in some])
                for some in (got, [self.values[i][1] for i in self.results])]

    def calls(self):
        """{name of a function: the number of its calls that the results need}."""
        counts, waiting, seen = {}, [], set()
        for node in self.built.graph.nodes:
            if node.op == "output" or self.writes(node):
                waiting.append(node)
        while waiting:
            node = waiting.pop()
            if node.name in seen:
                continue
            seen.add(node.name)
            waiting += list(node.all_input_nodes)
            if node.op == "call_function":
                name = self.name(node)
                counts[name] = counts.get(name, 0) + 1
        return counts

    def name(self, node):
        return self.make("builtins:getattr", node.target, "__name__")

    def writes(self, node):
        return node.op == "call_function" and self.name(node).split(".")[0].endswith("_")


class Constant(NamedTuple):
    """An argument that is not a value of the graph."""

    value: object


def shown(argument):
    return f"number {argument.value}" if type(argument) is Constant else str(argument)


# ---- predict_mlp_launches


def test_predict_mlp_launches(subject):
    layer = SimpleNamespace(mlp_norm=torch.ones(C), gate=torch.ones(F, C), up=torch.ones(F, C),
                            down=torch.ones(C, F))
    x, w = torch.ones(T, C), torch.ones(C)
    with Launches() as mlp:
        gated_mlp(x, layer, 1e-5)
    with Launches() as normed:
        norm(x, w, 1e-5)
    want, inside = len(mlp.names), len(normed.names)
    got = subject.predict_mlp_launches()
    assert isinstance(got, int), f"predict_mlp_launches: expected a whole number, got {got!r}"
    mistakes = {
        want + 3: "Was each weight transposed by a launch? That is a view.",
        want - inside + 1: "Was norm counted as one? PyTorch runs what is written, an operation "
                           "at a time.",
        want - inside: "Was norm forgotten? It is six operations long.",
        want - 1: "Is one missing? SiLU, the product and the last addition are a launch each.",
    }
    assert got == want, (f"predict_mlp_launches: {got}, but a run has {want}: "
                         f"{', '.join(mlp.names)}.\n{mistakes.get(got, '')}")


# ---- fuse_swiglu


def plain(g):
    gate, up = g.given(T, F), g.given(T, F)
    return [g.call("mul.Tensor", g.call("silu.default", gate), up)]


def turned_round(g):
    gate, up = g.given(T, F), g.given(T, F)
    return [g.call("mul.Tensor", up, g.call("silu.default", gate))]


def gate_has_another_user(g):
    gate, up = g.given(T, F), g.given(T, F)
    out = g.call("mul.Tensor", g.call("silu.default", gate), up)
    return [out, g.call("add.Tensor", gate, Constant(1.0))]


def two_of_them(g):
    gate, up = g.given(T, F), g.given(T, F)
    hidden = g.call("mul.Tensor", g.call("silu.default", gate), up)
    return [g.call("mul.Tensor", g.call("silu.default", hidden), up)]


def written_before_and_after(g):
    gate, up = g.given(T, F), g.given(T, F)
    g.call("add_.Tensor", gate, Constant(1.0))
    out = g.call("mul.Tensor", g.call("silu.default", gate), up)
    g.call("add_.Tensor", gate, Constant(1.0))
    return [out]


def silu_is_returned(g):
    gate, up = g.given(T, F), g.given(T, F)
    middle = g.call("silu.default", gate)
    return [g.call("mul.Tensor", middle, up), middle]


def three_users(g):
    gate, up, other = g.given(T, F), g.given(T, F), g.given(T, F)
    middle = g.call("silu.default", gate)
    return [g.call("mul.Tensor", middle, up), g.call("mul.Tensor", middle, other), middle]


def silu_is_written(g):
    gate, up = g.given(T, F), g.given(T, F)
    middle = g.call("silu.default", gate)
    g.call("mul_.Tensor", middle, Constant(2.0))
    return [g.call("mul.Tensor", middle, up)]


def two_silus(g):
    return [g.call("mul.Tensor", *(g.call("silu.default", g.given(T, F)) for _ in range(2)))]


def a_product_of_products(g):
    a, b, c = (g.given(T, F) for _ in range(3))
    inner = g.call("mul.Tensor", g.call("silu.default", a), b)
    return [g.call("mul.Tensor", inner, g.call("silu.default", c)), inner]


def times_itself(g):
    x = g.given(T, F)
    return [g.call("mul.Tensor", x, g.call("silu.default", x))]


def up_comes_after_silu(g):
    x = g.given(T, F)
    middle = g.call("silu.default", x)
    return [g.call("mul.Tensor", middle, g.call("add.Tensor", x, Constant(1.0)))]


def up_is_written(g):
    gate, up = g.given(T, F), g.given(T, F)
    middle = g.call("silu.default", gate)
    g.call("add_.Tensor", up, Constant(1.0))
    return [g.call("mul.Tensor", middle, up)]


def in_double(g):
    gate, up = (g.given(T, F, dtype=torch.float64) for _ in range(2))
    return [g.call("mul.Tensor", g.call("silu.default", gate), up)]


def one_axis(g):
    gate, up = g.given(F), g.given(F)
    return [g.call("mul.Tensor", g.call("silu.default", gate), up)]


def one_number(g):
    gate, up = g.given(1, 1), g.given(1, 1)
    return [g.call("mul.Tensor", g.call("silu.default", gate), up)]


def ragged(g):
    gate, up = g.given(15, 33), g.given(15, 33)
    return [g.call("mul.Tensor", g.call("silu.default", gate), up)]


def wide(g):
    gate, up = g.given(1, 40_000), g.given(1, 40_000)
    return [g.call("mul.Tensor", g.call("silu.default", gate), up)]


def one_column(g):
    gate, up = g.given(T, F), g.given(T, 1)
    return [g.call("mul.Tensor", g.call("silu.default", gate), up)]


def times_a_number(g):
    return [g.call("mul.Tensor", g.call("silu.default", g.given(T, F)), Constant(2.0))]


def another_dtype(g):
    gate, up = g.given(T, F), g.given(T, F, dtype=torch.float64)
    return [g.call("mul.Tensor", g.call("silu.default", gate), up)]


def three_axes(g):
    gate, up = g.given(2, T, F), g.given(2, T, F)
    return [g.call("mul.Tensor", g.call("silu.default", gate), up)]


def gate_is_written(g):
    gate, up = g.given(T, F), g.given(T, F)
    middle = g.call("silu.default", gate)
    g.call("add_.Tensor", gate, Constant(1.0))
    return [g.call("mul.Tensor", middle, up)]


def gate_is_written_through_a_view(g):
    gate, up = g.given(T, F), g.given(T, F)
    middle = g.call("silu.default", gate)
    g.call("mul_.Tensor", g.call("view.default", gate, Constant([T * F])), Constant(3.0))
    return [g.call("mul.Tensor", middle, up)]


def a_sigmoid(g):
    gate, up = g.given(T, F), g.given(T, F)
    return [g.call("mul.Tensor", g.call("sigmoid.default", gate), up)]


# The number of swiglu, and why there are no more.
SWIGLU = {
    plain: (1, "silu(gate) * up is there to be found"),
    turned_round: (1, "silu may be the second factor"),
    gate_has_another_user: (1, "the gate may have other users; it is those of silu that count"),
    two_of_them: (2, "there are two"),
    written_before_and_after: (1, "the gate is written into before and after, not in between"),
    three_users: (0, "the result of silu has other users, so it must be computed anyway"),
    silu_is_returned: (0, "the result of silu is returned as well, so it has two users"),
    silu_is_written: (0, "what silu made is written into, and the product reads that"),
    two_silus: (1, "both factors are SiLUs; one of them is the gate, the other is up"),
    a_product_of_products: (2, "the first product is the second one's factor"),
    times_itself: (1, "gate and up may be the same"),
    up_comes_after_silu: (1, "up is made after silu, and before the product"),
    up_is_written: (1, "up is written into before the product, which reads it then as now"),
    in_double: (1, "both are float64, and of one dtype"),
    one_number: (1, "(1, 1) is a shape like others"),
    ragged: (1, "shapes are what they are"),
    wide: (1, "shapes are what they are"),
    one_column: (0, "up has one column, which the product repeats; ops.swiglu takes equal shapes"),
    times_a_number: (0, "silu is multiplied by a number"),
    another_dtype: (0, "gate and up have other dtypes"),
    three_axes: (0, "gate and up have three axes; ops.swiglu takes (T, F)"),
    one_axis: (0, "gate and up have one axis"),
    gate_is_written: (0, "the gate is written into between silu and the product"),
    gate_is_written_through_a_view: (
        0, "the gate is written into between silu and the product, through a view"),
    a_sigmoid: (0, "a sigmoid is no SiLU"),
}


def test_fuse_swiglu(subject, agree, rng):
    for case in SWIGLU:
        check_swiglu(subject, agree, Graph(subject, rng), case)


def test_fuse_swiglu__hard(subject, agree, rng):
    """Hard numbers and layouts in the first form of the pattern."""
    for kind, values in VALUES.items():
        check_swiglu(subject, agree, Graph(subject, rng, values), plain, f", numbers {kind}")
    for layout in views(torch.ones(2, 2)):
        check_swiglu(subject, agree, Graph(subject, rng, layout=layout), plain, f", {layout}")


def test_fuse_swiglu__takes_the_table(subject, agree, rng):
    """A stand-in in the table: the difference of gate and up."""
    g = Graph(subject, rng)
    minus = subject.make("importlib:import_module", "operator").sub
    results, ops = plain(g), subject.make("types:SimpleNamespace", swiglu=minus)
    subject.fuse_swiglu(g.module(*results), ops)
    got, value = g.run()
    gate, up = (x.numpy().ravel() for x in g.inputs)
    agree(got, gate - up, "float32", "the result with a table whose swiglu is gate - up",
          mistakes={"another kernel is called than that of the table handed in": value})


def random_graph(g):
    """A few calls, most of them SiLUs and products, some of them writes; the last are returned."""
    values, pick = [g.given(T, F) for _ in range(3)], g.rng.integers
    for _ in range(int(pick(2, 6))):
        a, b = (int(i) for i in g.rng.choice(values[-3:], 2, replace=False))
        middle = g.call(("silu.default", "silu.default", "sigmoid.default")[pick(3)], a)
        write = pick(6)
        if write == 0:
            g.call("add_.Tensor", (a, b, middle)[pick(3)], Constant(0.5))
        elif write == 1:
            g.call("mul_.Tensor", g.call("view.default", a, Constant([T * F])), Constant(0.5))
        values.append(g.call("mul.Tensor", *((middle, b) if pick(2) else (b, middle))))
        values += [middle] * int(pick(4) == 0)              # then it has other users
    return values[-2:]


def test_fuse_swiglu__drawn(subject, reference, agree, rng):
    """Graphs of a few calls, beside the course's own pass on each."""
    for number, seed in enumerate(rng.integers(0, 2**31, 40)):
        counts = []
        for side in (subject, reference):
            g = Graph(side, np.random.default_rng(seed))
            module = g.module(*random_graph(g))
            counts.append(side.fuse_swiglu(module, g.ops))
            what = (f"fuse_swiglu, graph {number}, as drawn: {'; '.join(g.lines)}; "
                    f"return {g.results}")
            got, value = g.run()
            agree(got, value, "float32", f"the result after {what}")
        assert counts[0] == counts[1], f"{what}: {counts[0]} found, expected {counts[1]}"


def check_swiglu(subject, agree, g, case, words=""):
    results, (want, why) = case(g), SWIGLU[case]
    title = case.__name__.replace("_", " ") + words
    try:
        found = subject.fuse_swiglu(g.module(*results), g.ops)
    except Stopped:
        if case is not two_silus:
            raise
        raise AssertionError(
            f"fuse_swiglu, {title}: no answer. Is a product that is rewritten already looked at "
            f"again, with its factors in the other order? It is no longer in the graph") from None
    made = g.calls().get("swiglu_torch", 0)
    assert made <= want, f"fuse_swiglu, {title}: it was rewritten, and must not be: {why}."
    got, value = g.run()
    mistakes = {}
    if case is plain and not words:
        gate, up = g.inputs
        mistakes["gate and up are given to ops.swiglu the other way round"] = \
            (silu(up) * gate).ravel()
        mistakes["ops.swiglu is given silu's result for a gate; it takes SiLU itself"] = \
            (silu(silu(gate)) * up).ravel()
        mistakes["ops.swiglu is given silu's result for up"] = (silu(gate) * silu(gate)).ravel()
        mistakes["silu is rewritten, and the product multiplies by up a second time"] = \
            (silu(gate) * up * up).ravel()
    agree(got, value, "float32", f"the result after fuse_swiglu, {title}",
          at=lambda i: f"number {i[0]}", mistakes=mistakes)
    assert made == want, (f"fuse_swiglu, {title}: {made} calls of ops.swiglu in the graph, "
                          f"expected {want}. {why.capitalize()}.")
    left = g.calls()
    assert not want or not left.get("mul.Tensor"), \
        f"fuse_swiglu, {title}: the product is still computed beside ops.swiglu"
    assert found == want, \
        (f"fuse_swiglu, {title}: it rewrote {want} and said {found}; it returns how many it found"
         + ("; nothing is returned" if found is None else ""))


# ---- merge_matmuls


def gate_and_up(g):
    x = g.given(T, C)
    return [g.call("linear.default", x, g.weight(name, F, C)) for name in ("gate", "up")]


def q_k_and_v(g):
    x = g.given(T, C)
    return [g.call("linear.default", x, g.weight(name, n, C))
            for name, n in (("q", 8), ("k", 4), ("v", 2))]


def one_row_and_one_column(g):
    x = g.given(1, 1)
    return [g.call("linear.default", x, g.weight(name, 1, 1)) for name in "ab"]


def ragged_ones(g):
    x = g.given(15, 17)
    return [g.call("linear.default", x, g.weight(name, n, 17)) for name, n in (("a", 1), ("b", 33))]


def many_rows(g):
    x = g.given(1, 2)
    return [g.call("linear.default", x, g.weight(name, n, 2))
            for name, n in (("a", 40_000), ("b", 3))]


def the_same_weight_twice(g):
    x, w = g.given(T, C), g.weight("w", F, C)
    return [g.call("linear.default", x, w) for _ in range(2)]


def used_in_between(g):
    x = g.given(T, C)
    first = g.call("silu.default", g.call("linear.default", x, g.weight("a", F, C)))
    second = g.call("linear.default", x, g.weight("b", F, C))
    return [g.call("mul.Tensor", first, second), second]


def written_after_both(g):
    x = g.given(T, C)
    g.call("add_.Tensor", x, Constant(1.0))
    both = [g.call("linear.default", x, g.weight(name, F, C)) for name in "ab"]
    g.call("add_.Tensor", both[0], Constant(1.0))
    g.call("add_.Tensor", x, Constant(1.0))
    return both


def a_weight_is_written(g):
    x, w = g.given(T, C), g.weight("a", F, C)
    g.call("mul_.Tensor", w, Constant(2.0))
    return [g.call("linear.default", x, w), g.call("linear.default", x, g.weight("b", F, C))]


def in_double_precision(g):
    x = g.given(T, C, dtype=torch.float64)
    return [g.call("linear.default", x, g.weight(name, F, C, dtype=torch.float64))
            for name in "ab"]


def five_of_them(g):
    x = g.given(T, C)
    return [g.call("linear.default", x, g.weight(f"w{n}", n, C)) for n in (3, 1, 4, 2, 5)]


def two_inputs(g):
    one, other = g.given(T, C), g.given(T, C)
    return [g.call("linear.default", x, g.weight(name, F, C))
            for name, x in (("a", one), ("b", other), ("c", one), ("d", other))]


def one_after_the_other(g):
    x = g.given(T, C)
    y = g.call("linear.default", x, g.weight("a", C, C))
    return [g.call("linear.default", y, g.weight("b", C, C))]


def given_weights(g):
    x = g.given(T, C)
    return [g.call("linear.default", x, g.given(F, C)) for _ in range(2)]


def with_biases(g):
    x = g.given(T, C)
    return [g.call("linear.default", x, g.weight(f"w{i}", F, C), g.weight(f"b{i}", F))
            for i in range(2)]


def x_is_written(g):
    x = g.given(T, C)
    first = g.call("linear.default", x, g.weight("a", F, C))
    g.call("add_.Tensor", x, Constant(1.0))
    return [first, g.call("linear.default", x, g.weight("b", F, C))]


def a_batch(g):
    x = g.given(2, T, C)
    return [g.call("linear.default", x, g.weight(name, F, C)) for name in "ab"]


# The matmuls that are left, those that were saved, and why there are no more.
MATMULS = {
    q_k_and_v: (1, 2, "all three multiply x"),
    gate_and_up: (1, 1, "both multiply x"),
    two_inputs: (2, 2, "two matrices multiply each of the inputs"),
    five_of_them: (1, 4, "all five multiply x"),
    used_in_between: (1, 1, "the second is made after the first was used, of the same x"),
    written_after_both: (1, 1, "x is written into before both and after both"),
    the_same_weight_twice: (1, 1, "both multiply x, by the same"),
    in_double_precision: (1, 1, "both multiply x"),
    one_row_and_one_column: (1, 1, "both multiply x"),
    ragged_ones: (1, 1, "both multiply x"),
    many_rows: (1, 1, "both multiply x"),
    a_weight_is_written: (2, 0, "one weight is written into in each run"),
    one_after_the_other: (2, 0, "the second one needs the result of the first"),
    given_weights: (2, 0, "the weights come with each run, so they cannot be joined before"),
    with_biases: (2, 0, "they have biases"),
    x_is_written: (2, 0, "x is written into between the two"),
    a_batch: (2, 0, "x has three axes; ops.matmul takes (T, C)"),
}


def test_merge_matmuls(subject, agree, rng):
    for case in MATMULS:
        check_matmuls(subject, agree, Graph(subject, rng), case)


def test_merge_matmuls__hard(subject, agree, rng):
    """Hard numbers and layouts of x and of the weights."""
    for kind, values in VALUES.items():
        check_matmuls(subject, agree, Graph(subject, rng, values), gate_and_up, f", numbers {kind}")
    for layout in views(torch.ones(2, 2)):
        check_matmuls(subject, agree, Graph(subject, rng, layout=layout), gate_and_up,
                      f", {layout}")


def test_merge_matmuls__takes_the_table(subject, agree, rng):
    """A stand-in in the table, which counts under another name."""
    g = Graph(subject, rng)
    other = subject.make("importlib:import_module", "torch.nn.functional").linear
    results = gate_and_up(g)
    subject.merge_matmuls(g.module(*results), subject.make("types:SimpleNamespace", matmul=other))
    calls = g.calls()
    assert calls.get("linear") == 1, (
        f"merge_matmuls: ops.matmul is here torch's linear, and is called {calls.get('linear', 0)} "
        f"times, expected once: the kernel is that of the table handed in; calls {calls}")


def check_widths(g, results, title):
    """Pieces cut along the columns, each as wide as its own result."""
    widths = [g.values[i][1].shape[1] for i in results]
    slices = [node.args[1:] for node in g.built.graph.nodes
              if node.op == "call_function" and g.name(node) == "slice.Tensor"]
    for args in slices:
        assert len(args) != 3 or args[0] in (1, -1), (
            f"merge_matmuls, {title}: a piece is cut along axis {args[0]}, that of the tokens; the "
            f"results lie side by side, in the columns, axis 1")
    cut = [min(args[2], sum(widths)) - args[1] for args in slices if len(args) == 3]
    assert len(cut) != len(widths) or cut == widths, (
        f"merge_matmuls, {title}: the pieces are {', '.join(map(str, cut))} columns wide, expected "
        f"{', '.join(map(str, widths))}: each is as wide as its own matrix has rows" + (
            "; slice.Tensor takes where a piece ends, not how wide it is"
            if [args[2] for args in slices] == widths else ""))


def check_pieces(g, results, title):
    """One matmul, whose val says what it gives, and views of its columns; nothing else runs."""
    x = g.values[0][1]
    extra = set(g.calls()) - {"matmul_torch", "slice.Tensor"}
    assert not extra, (
        f"merge_matmuls, {title}: {', '.join(sorted(extra))} in each run. Weights are joined "
        f"before it, and the results are pieces by slice.Tensor, which are views")
    for node in g.built.graph.nodes:
        if node.op == "call_function" and g.name(node) == "matmul_torch":
            val, N = node.meta["val"], sum(g.values[i][1].shape[1] for i in results)
            assert torch.is_tensor(val) and (val.shape, val.dtype) == ((len(x), N), x.dtype), (
                f"merge_matmuls, {title}: val of the new matmul is "
                f"{brief(val)}, expected ({len(x)}, {N}), as its result")
    ends = np.cumsum([0, *(g.values[i][1].shape[1] for i in results)]).tolist()
    pieces = [tuple(node.args[1:]) for node in g.built.graph.nodes
              if node.op == "call_function" and g.name(node) == "slice.Tensor"]
    want = [(1, begin, end) for begin, end in itertools.pairwise(ends)]
    assert pieces == want, (
        f"merge_matmuls, {title}: the pieces are (axis, begin, end) {pieces}, expected {want}: in "
        f"the order of the group, as fuse_matmul_swiglu looks for them")


def check_matmuls(subject, agree, g, case, words=""):
    results, (want, saved, why) = case(g), MATMULS[case]
    module, names = g.module(*results), ("matmul_torch", "linear.default")
    found = subject.merge_matmuls(module, g.ops)
    title = case.__name__.replace("_", " ") + words
    left = sum(g.calls().get(name, 0) for name in names)
    assert left >= want, \
        f"merge_matmuls, {title}: {left} matmuls are left, and there must be {want}: {why}."
    g.check_order(f"merge_matmuls, {title}")
    if case is q_k_and_v:
        check_widths(g, results, title)
    got, value = g.run()
    mistakes = {}
    if case is q_k_and_v:
        first, n = value.reshape(-1)[:T * 8].reshape(T, 8), (8, 4, 2)
        x, weights = g.inputs[0], [w for node, w in g.values if node.op == "get_attr"]
        mistakes["every piece begins at column 0"] = np.concatenate(
            [first[:, :m].ravel() for m in n])
        both = linear(x, torch.cat(weights[::-1])).numpy()
        mistakes["the weights are joined in another order than the columns are cut"] = \
            np.concatenate([part.ravel() for part in np.split(both, [8, 12], axis=1)])
        both = linear(x, torch.cat(weights)).numpy()
        mistakes["the pieces are cut from the end, the first matmul's last"] = np.concatenate(
            [both[:, 14 - end:14 - begin].ravel() for begin, end in ((0, 8), (8, 12), (12, 14))])
    agree(got, value, "float32", f"the results after merge_matmuls, {title}",
          at=lambda i: f"number {i[0]}", mistakes=mistakes)
    assert left == want, (f"merge_matmuls, {title}: {left} matmuls are launched, expected {want}: "
                          f"{why}.")
    if case in (gate_and_up, q_k_and_v, five_of_them):
        check_pieces(g, results, title)
    assert found is not None, f"merge_matmuls, {title}: it returns nothing, expected {saved}"
    what = "saved, not the matmuls" if found > saved else "saved, one less than each group has"
    assert found == saved, (f"merge_matmuls, {title}: it said {found}, expected {saved}: the "
                            f"launches that are {what}")


# ---- lifetimes


CHAIN = ([((0,), (1,)), ((1,), (2,)), ((2,), (3,))], (3,))
CASES = {
    "a chain": CHAIN,
    "a residual": ([((0,), (1,)), ((1,), (2,)), ((2,), (3,)), ((1, 3), (4,))], (4,)),
    "one that is returned early": ([((0,), (1,)), ((1,), (2,)), ((2,), (3,))], (1, 3)),
    "one that nobody reads": ([((0,), (1, 2)), ((1,), (3,)), ((3,), (4,))], (4,)),
    "one that is written in place": ([((0,), (1,)), ((0,), (2,)), ((1,), ()), ((1, 2), (3,))],
                                     (3,)),
    "an input that is returned": ([((0,), (1,)), ((1,), (2,))], (0, 2)),
    "used and made at once": ([((0, 1), (1,)), ((1, 1, 2), (2, 3)), ((3,), ())], (1,)),
    "returned twice, and never used": ([((0,), (40_000,)), ((0,), (5,))], (40_000, 40_000)),
    "one launch": ([((), (3, 2))], (2,)),
    "nothing": ([], ()),
}


def needed(launches, kept):
    """By the book: for every storage, the launches that use or make it."""
    last, made = len(launches) - 1, {s for _, makes in launches for s in makes}
    found = {s: [i for i, (uses, makes) in enumerate(launches) if s in (*uses, *makes)]
             + [last] * (s in kept) for s in made}
    return {s: (min(at), max(at)) for s, at in found.items()}


def test_lifetimes(subject, rng):
    for name, (launches, kept) in CASES.items():
        check_lives(subject, launches, kept, name)
    for _ in range(300):
        made, launches = 1, []
        for _ in range(int(rng.integers(1, 8))):
            new = range(made, made + int(rng.integers(0, 3)))
            made += len(new)            # a launch uses and makes what was only set aside before
            uses = rng.choice(made, min(made, int(rng.integers(0, 4))), replace=False)
            launches.append((tuple(map(int, uses)), tuple(new)))
        kept = tuple(map(int, rng.choice(made, min(made, int(rng.integers(0, 3))), replace=False)))
        check_lives(subject, launches, kept, "a random graph")


def check_lives(subject, launches, kept, name):
    want, got = needed(launches, kept), subject.lifetimes(launches, kept)
    assert isinstance(got, dict), f"lifetimes: got {type(got).__name__}, expected a dict"
    about = f"lifetimes, {name}: launches (uses, makes) {launches}, returned: {kept}.\n"
    extra, missing = sorted(set(got) - set(want)), sorted(set(want) - set(got))
    assert not extra, f"{about}Storage {extra[0]} is there before the first launch: leave it out"
    assert not missing, (f"{about}Storage {missing[0]} has no lifetime. Whoever makes it needs "
                         f"room for it, even if nobody reads it")
    for s, (born, dies) in want.items():
        value = got[s]
        assert isinstance(value, (tuple, list)) and len(value) == 2, \
            f"{about}Storage {s}: got {value!r}, expected (born, dies)"
        value = tuple(value)
        last = len(launches) - 1
        reason = (f"Launches are counted from 0: the last one is number {last}"
                  if value[1] > last or value == (born + 1, dies + 1) else
                  "The launch that makes it comes first, then the one that needs it last"
                  if value == (dies, born) else
                  "It is returned, so it lives to the last launch" if s in kept else
                  "It is needed up to its last use, and not one launch longer"
                  if value == (born, dies + 1) else
                  "It is needed at its last use, too, and not only before"
                  if value == (born, dies - 1) else
                  "Nobody uses it after that" if value[0] == born and value[1] > dies else
                  "It is born where it is made, not where it is first used"
                  if value[1] == dies else "Its last use counts, not its first")
        assert value == (born, dies), \
            f"{about}Storage {s}: got {value}, expected {(born, dies)}. {reason}"


# ---- place


def clash(a, b):
    return a[0] <= b[1] and b[0] <= a[1]


def greedy(sizes, lives, order, top=False):
    """Offsets in this order, each at the lowest place; top: above all that live with it."""
    offsets = {}
    for s in order:
        with_it = [o for o in offsets if clash(lives[o], lives[s])]
        ends = sorted(offsets[o] + sizes[o] for o in with_it)
        if top:
            offsets[s] = max(ends, default=0)
            continue
        offsets[s] = next(at for at in [0, *ends] if all(
            at + sizes[s] <= offsets[o] or offsets[o] + sizes[o] <= at for o in with_it))
    return offsets


def walk(sizes, lives, order, meet=clash, fits=lambda room, size: room >= size, back=False,
         low=sorted, ends=False):
    """Offsets as an answer deals them out that goes through the taken places from below."""
    offsets = {}
    for new in order:
        at = 0
        for begin, end in low([(offsets[o], offsets[o] + sizes[o]) for o in offsets
                               if meet(lives[o], lives[new])]):
            if fits(begin - at, sizes[new]):
                break
            at = end if back else max(at, end)
        offsets[new] = at + sizes[new] * ends
    return offsets


def reason(sizes, lives, got):
    """The mistake that leads to these offsets, as a sentence; "" if none is known."""
    large = orders(sizes, lives)["large"]

    def length(s):
        return lives[s][0] - lives[s][1]

    right = walk(sizes, lives, large)
    ways = {
        "the search goes back down after a place that ends below the one before: the offset may "
        "only rise": {"back": True},
        "a gap is taken whatever its size": {"fits": lambda room, size: room > 0},
        "a gap that fits exactly is passed over": {"fits": lambda room, size: room > size},
        "taken places are gone through as they were dealt out, not from the lowest up":
            {"low": list},
        "one that dies at a launch makes room at it, though it is still read": {
            "meet": lambda old, new: old[0] < new[1] and new[0] < old[1]},
        "only storages that live when the new one is born count, not those born after it": {
            "meet": lambda old, new: old[0] <= new[0] <= old[1]},
        "only storages that are born after the new one count, not those that are there": {
            "meet": lambda old, new: new[0] <= old[0] <= new[1]},
        "storages of other times are in the way, too": {"meet": lambda old, new: True},
        "nothing is in the way of anything": {"meet": lambda old, new: False},
        "the longest lives come first, not the largest sizes": {
            "order": sorted(sizes, key=lambda s: (length(s), lives[s]))},
        "an offset says where a storage ends, not where it begins": {"ends": True}}
    for mistake, way in ways.items():
        if got == walk(sizes, lives, **{"order": large, **way}) != right:
            return f"\nThis is what comes out when {mistake}."
    return ""


def peak(sizes, offsets):
    return max((offsets[s] + sizes[s] for s in sizes), default=0)


def orders(sizes, lives):
    return {"large": sorted(sizes, key=lambda s: (-sizes[s], lives[s])),
            "small": sorted(sizes, key=lambda s: (sizes[s], lives[s])),
            "born": sorted(sizes, key=lives.get)}


ARENAS = {      # in the first, each mistake leads to a peak of its own
    "five of them": ({0: 1280, 1: 1024, 2: 1280, 3: 512, 4: 256},
                     {0: (2, 3), 1: (3, 3), 2: (0, 2), 3: (1, 1), 4: (0, 0)}),
    "a gap that is too small": ({0: 512, 1: 768, 2: 1024, 3: 640},
                                {0: (0, 1), 1: (0, 3), 2: (0, 3), 3: (2, 3)}),
    "a gap that fits exactly": ({0: 1280, 1: 512, 2: 512, 3: 768, 4: 4096},
                                {0: (0, 1), 1: (1, 4), 2: (2, 5), 3: (3, 3), 4: (7, 7)}),
    "one that ends below another's end": ({0: 1024, 1: 512, 2: 256, 3: 128},
                                          {0: (0, 1), 1: (3, 4), 2: (4, 5), 3: (1, 4)}),
    "all of one size": ({0: 256, 1: 256, 2: 256, 3: 256},
                        {0: (2, 3), 1: (1, 2), 2: (0, 1), 3: (3, 4)}),
    "past 31 bits": ({0: 2**31, 1: 2**32, 2: 2**31 + 256}, {0: (0, 2), 1: (1, 2), 2: (2, 2)}),
    "one": ({7: 256}, {7: (0, 0)}),
    "nothing": ({}, {}),
}


def random_arena(rng, count):
    born = rng.integers(0, 12, count)
    return ({i: 256 * int(rng.integers(1, 9)) for i in range(count)},
            {i: (int(b), int(b + rng.integers(0, 6))) for i, b in enumerate(born)})


def test_place(subject, rng):
    for name, (sizes, lives) in ARENAS.items():
        check_place(subject, sizes, lives, name)
    for count in (3, 5, 8, 13, 21, 21, 34):
        check_place(subject, *random_arena(rng, count), "a random graph")
    for _ in range(300):
        check_place(subject, *small_arena(rng), "a small graph, as drawn", exact=True)


def small_arena(rng):
    """Few sizes and births, but no two storages alike in both, so the plan is unique."""
    pairs = rng.permutation(list(itertools.product((256, 512, 768), range(5))))
    rows = pairs[:rng.integers(2, 9)].tolist()
    return ({s: size for s, (size, _) in enumerate(rows)},
            {s: (born, born + int(rng.integers(0, 4))) for s, (_, born) in enumerate(rows)})


def check_place(subject, sizes, lives, name, exact=False):
    got = subject.place(sizes, lives)
    about = f"place, {name}: "
    assert isinstance(got, dict) and set(got) == set(sizes), (
        f"{about}offsets of storages {sorted(got) if isinstance(got, dict) else got!r}, "
        f"expected {sorted(sizes)}")
    assert all(isinstance(at, int) and at >= 0 for at in got.values()), \
        f"{about}offsets are whole numbers from 0 on, got {got}"
    for a, b in itertools.combinations(sizes, 2):
        over = got[a] < got[b] + sizes[b] and got[b] < got[a] + sizes[a]
        (first, one), (last, other) = sorted((lives[s][0], s) for s in (a, b))
        ends = got[a] + sizes[a], got[b] + sizes[b]
        meet = ("the one wholly within the other"
                if (got[a] - got[b]) * (ends[0] - ends[1]) < 0 else
                "where one is read while the other is written" if lives[one][1] == last else
                "in the midst of both")
        assert not (over and clash(lives[a], lives[b])), (
            f"{about}storages {a} and {b} overlap at byte {max(got[a], got[b])}, and both live at "
            f"launch {last}, {meet}. Lives: {lives[a]} and {lives[b]}{reason(sizes, lives, got)}")
    order = orders(sizes, lives)
    want, found = peak(sizes, greedy(sizes, lives, order["large"])), peak(sizes, got)
    large, small, born = order["large"], order["small"], order["born"]
    reasons = {
        peak(sizes, greedy(sizes, lives, small)):
            "Were the smallest taken first? They then stand in the way of the large ones",
        peak(sizes, greedy(sizes, lives, born)):
            "Were they taken in the order of their births? The largest come first",
        peak(sizes, greedy(sizes, lives, large, top=True)):
            "A gap below was big enough, and it was put above all others",
        sum(sizes.values()): "No place was used twice",
    }
    assert found <= want, (f"{about}the arena has {found:,} bytes, and {want:,} are enough. "
                           f"{reasons.get(found, 'Take the largest first')}.\n"
                           f"Sizes {sizes}, lives {lives}{reason(sizes, lives, got)}")
    if exact or name in ARENAS:
        want = greedy(sizes, lives, order["large"])
        later = sorted(sizes, key=lambda s: (-sizes[s], -lives[s][0]))
        listed = sorted(sizes, key=lambda s: -sizes[s])
        tie = "Of equal sizes the later born came first" + (
            ": the order is that of `sizes`" if got == greedy(sizes, lives, listed) else "")
        wrong = next((s for s in order["large"] if got[s] != want[s]), None)
        assert wrong is None, (
            f"{about}storage {wrong} is at byte {got[wrong]:,}, expected {want[wrong]:,}. " + (
                tie if got == greedy(sizes, lives, later) else
                "Of equal sizes the one that `sizes` has first came first, not the first born"
                if got == greedy(sizes, lives, listed) else
                "Each lies at the lowest place where it fits")
            + f".\nSizes {sizes}, lives {lives}{reason(sizes, lives, got)}")


# ---- the course's own pipeline


PASSES = [share_equal, fold_scale, fuse_rmsnorm, fuse_add_rmsnorm, fuse_attention, fuse_rope,
          merge_matmuls, fuse_swiglu, fuse_matmul_swiglu, use_matmul]


def random_llama(**entries):
    torch.manual_seed(0)
    m = Config(**{"L": 2, "C": 32, "H": 4, "G": 2, "D": 16, "F": 48, "V": 31, "eps": 1e-5,
                  "theta": 1e4, "room": 64} | entries)
    return Llama(m, {name: torch.randn(shape) / 4 for name, shape in shapes(m)}, kernels("torch"))


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
        "mean + scale", "q & scale & k & v", "turn q + turn k", "scores + softmax + mix", "o",
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
    lambda x, w: norm(x[None], w, 1e-5),                                            # three axes
    lambda x, w: norm(x, w[None], 1e-5),
    lambda x, w: norm(x, w.double(), 1e-5),
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

    assert fused(own)
    for function in (inputs_are_kept, q_is_returned, through_a_view, q_is_written_after, k_needs_q,
                     other_angles):
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
    for change, words in ((wrong_by_a_little, r"a result differs by up to [\d.]+ where numbers go"),
                          (another_shape, r"the graph after it gives \(\) float32, .* expected "
                                          r"\(4, 8\) float32"),
                          (does_not_run, "the graph does not run after it: ")):
        with pytest.raises(Refused, match=f"^{change.__name__}: {words}"):
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


def test_an_input_that_is_written_into_is_a_result():
    def function(x):
        return x.add_(1) * 2

    def forgets(module, ops):
        for node in list(module.graph.nodes):
            if node.target is aten.add_.Tensor:
                rewrite(node, aten.add.Tensor, node.args, "add")
        return 1

    module = capture_graph(function, (rows(3, 4),))
    with pytest.raises(Refused, match="forgets: a result differs"):
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
