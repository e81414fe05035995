"""Graders of g04.
Graphs are built node by node in the child, and computed here as well."""

import itertools
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import linear, silu

from lab.judge.adversarial import VALUES, WORDS, views
from lab.judge.compare import brief
from lab.judge.mistakes import mistake
from lab.judge.subject import Stopped
from layer2_graph import Launches
from layer2_graph.g04_graph_passes import gated_mlp, norm
from layer2_graph.testing.graphs import Graph

T, C, F = 5, 12, 7


def graph(side, rng, values=None, layout=None):
    """values: makes the numbers of inputs and weights    layout: of views, for matrices"""
    return Graph(side.make, lambda shape: torch.from_numpy(
        values(rng, shape) if values else rng.standard_normal(shape)).float(),
        (lambda value: views(value)[layout]) if layout else None)


class Case(NamedTuple):
    """A graph, and what a pass must find in it."""

    count: int              # replacements, or launches saved
    why: str
    text: str
    shapes: dict = {}       # of the names that differ from the usual ones
    double: str = ""        # names of those in float64

    def build(self, g, usual):
        words = self.text.replace(";", "").split()
        shapes = {name: shape for name, shape in usual.items() if name in words}
        return g.program(self.text, shapes | self.shapes, self.double)


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
    guesses = {
        want + 3: ("transposes", "You counted a launch for each transposed weight. That is a view"),
        want - inside + 1: ("norm_as_one", "You counted norm as one launch. PyTorch runs each of "
                                           "its operations on its own"),
        want - inside: ("no_norm", "norm is missing; count its operations"),
        want - 1: ("one_missing", "One launch is missing. SiLU, the product and the last addition "
                                  "are one each"),
        want + 1: ("one_too_many", "One launch too many. A product with a norm's weight is one")}
    name, why = guesses.get(got, ("other", "Go through gated_mlp and norm operation by operation"))
    assert got == want, mistake(name, f"predict_mlp_launches: {got!r} is not right. {why}", why)


# ---- fuse_swiglu


PLAIN = "s = silu gate; y = mul s up; return y"
USUAL = {"gate": (T, F), "up": (T, F), "other": (T, F)}
SWIGLU = {
    "plain": Case(1, "silu(gate) * up is in the graph", PLAIN),
    "swapped": Case(1, "silu may be the second factor", "s = silu gate; y = mul up s; return y"),
    "gate_used": Case(1, "the gate may have other users; it is those of silu that count",
                      "s = silu gate; y = mul s up; z = add gate 1.0; return y z"),
    "two": Case(2, "there are two",
                "s = silu gate; h = mul s up; t = silu h; y = mul t up; return y"),
    "written_outside": Case(
        1, "the gate is written into before silu and after the product, not in between",
        "add_ gate 1.0; s = silu gate; y = mul s up; add_ gate 1.0; return y"),
    "three_users": Case(0, "silu's result has other users, so it must be computed anyway",
                        "s = silu gate; y = mul s up; z = mul s other; return y z s"),
    "silu_returned": Case(0, "silu's result is returned as well, so it has two users",
                          "s = silu gate; y = mul s up; return y s"),
    "silu_written": Case(0, "silu's result is changed in place before the product reads it",
                         "s = silu gate; mul_ s 2.0; y = mul s up; return y"),
    "two_silus": Case(1, "both factors are SiLUs; one of them becomes the gate, the other is up",
                      "s = silu gate; t = silu up; y = mul s t; return y"),
    "product_of_products": Case(
        2, "the first product is a factor of the second",
        "s = silu gate; first = mul s up; t = silu other; y = mul first t; return y first"),
    "same_node": Case(1, "gate and up may be the same node",
                      "s = silu gate; y = mul gate s; return y"),
    "up_later": Case(1, "up is computed after silu, but before the product",
                     "s = silu gate; u = add gate 1.0; y = mul s u; return y"),
    "up_written": Case(
        1, "up is written into before the product; both the old and the new graph read it after "
        "that", "s = silu gate; add_ up 1.0; y = mul s up; return y"),
    "float64": Case(1, "float64 is fine: both have the same dtype", PLAIN, double="gate up"),
    "one_number": Case(1, "(1, 1) is a shape like others", PLAIN, {"gate": (1, 1), "up": (1, 1)}),
    "ragged": Case(1, "any two-dimensional shape will do", PLAIN,
                   {"gate": (15, 33), "up": (15, 33)}),
    "wide": Case(1, "any two-dimensional shape will do", PLAIN,
                 {"gate": (1, 40_000), "up": (1, 40_000)}),
    "one_column": Case(0, "up has one column, which the product broadcasts; ops.swiglu takes equal "
                          "shapes", PLAIN, {"up": (T, 1)}),
    "times_a_number": Case(0, "the other factor is a number, not a node",
                           "s = silu gate; y = mul s 2.0; return y"),
    "dtypes": Case(0, "gate and up have different dtypes", PLAIN, double="up"),
    "three_axes": Case(0, "gate and up have three axes; ops.swiglu takes (T, F)", PLAIN,
                       {"gate": (2, T, F), "up": (2, T, F)}),
    "one_axis": Case(0, "gate and up have one axis; ops.swiglu takes (T, F)", PLAIN,
                     {"gate": (F,), "up": (F,)}),
    "gate_written": Case(0, "the gate is written into between silu and the product",
                         "s = silu gate; add_ gate 1.0; y = mul s up; return y"),
    "view_written": Case(
        0, "the gate is written into between silu and the product, through a view",
        f"s = silu gate; v = view gate [{T * F}]; mul_ v 3.0; y = mul s up; return y"),
    "sigmoid": Case(0, "a sigmoid is not a SiLU", "s = sigmoid gate; y = mul s up; return y"),
}


def test_fuse_swiglu(subject, agree, rng):
    for name in SWIGLU:
        check_swiglu(subject, agree, graph(subject, rng), name)


def test_fuse_swiglu__hard(subject, agree, rng):
    """Hard numbers and layouts in the first form of the pattern."""
    for kind, values in VALUES.items():
        check_swiglu(subject, agree, graph(subject, rng, values), "plain", f", {WORDS[kind]}")
    for layout in views(torch.ones(2, 2)):
        check_swiglu(subject, agree, graph(subject, rng, layout=layout), "plain", f", {layout}")


def test_fuse_swiglu__takes_the_table(subject, agree, rng):
    """A stand-in in the table: the difference of gate and up."""
    g = graph(subject, rng)
    minus = subject.make("importlib:import_module", "operator").sub
    module = SWIGLU["plain"].build(g, USUAL)
    subject.fuse_swiglu(module, subject.make("types:SimpleNamespace", swiglu=minus))
    got, value = g.run()
    gate, up = (x.numpy().ravel() for x in g.inputs)
    agree(got, gate - up, "float32", "the result with a table whose swiglu is gate - up",
          mistakes={"other_table": ("a kernel is called that is not from the table `ops`", value)})


def random_program(rng):
    """A few calls, most of them SiLUs and products, some of them writes; the last are returned."""
    values, lines = ["gate", "up", "other"], []
    for n in range(int(rng.integers(2, 6))):
        a, b = rng.choice(values[-3:], 2, replace=False)
        silu, y = f"s{n}", f"y{n}"
        lines.append(f"{silu} = {('silu', 'silu', 'sigmoid')[rng.integers(3)]} {a}")
        write = rng.integers(6)
        if write == 0:
            lines.append(f"add_ {(a, b, silu)[rng.integers(3)]} 0.5")
        elif write == 1:
            lines += [f"v{n} = view {a} [{T * F}]", f"mul_ v{n} 0.5"]
        lines.append(f"{y} = mul {' '.join((silu, b) if rng.integers(2) else (b, silu))}")
        values.append(y)
        values += [silu] * int(rng.integers(4) == 0)            # then it has other users
    return "; ".join([*lines, f"return {values[-2]} {values[-1]}"])


def test_fuse_swiglu__drawn(subject, reference, agree, rng):
    """Graphs of a few calls, beside the course's own pass on each."""
    for seed in rng.integers(0, 2**31, 40):
        counts, text = [], random_program(np.random.default_rng(seed))
        for side in (subject, reference):
            g = graph(side, np.random.default_rng(seed))
            counts.append(side.fuse_swiglu(g.program(text, USUAL), g.ops))
            got, value = g.run()
            agree(got, value, "float32", f"the result after fuse_swiglu, random graph: {text}")
        assert counts[0] == counts[1], mistake(
            "random_graph", f"fuse_swiglu, random graph: {text}: it returned {counts[0]}, expected "
                            f"{counts[1]}", "")


def wrong_swiglu(gate, up):
    """{id: (sentence, result)}"""
    known = {
        "gate_up_swapped": ("gate and up are passed to ops.swiglu in the wrong order",
                            silu(up) * gate),
        "silu_for_gate": ("ops.swiglu gets silu's result as the gate; it takes SiLU itself",
                          silu(silu(gate)) * up),
        "silu_for_up": ("ops.swiglu gets silu's result as up", silu(gate) * silu(gate)),
        "up_twice": ("silu is replaced, and the product multiplies by up a second time",
                     silu(gate) * up * up)}
    return {name: (why, result.ravel()) for name, (why, result) in known.items()}


def check_swiglu(subject, agree, g, name, words=""):
    case = SWIGLU[name]
    title = f"fuse_swiglu, {name.replace('_', ' ')}{words}: {case.text}"
    module = case.build(g, USUAL)
    try:
        count = subject.fuse_swiglu(module, g.ops)
    except Stopped:
        if name != "two_silus":
            raise
        raise AssertionError(mistake("seen_twice", (
            f"{title}: no answer. Is a product that is replaced already looked at again, with its "
            f"factors in the other order? It is no longer in the graph"))) from None
    made = g.calls().get("swiglu_torch", 0)
    assert made <= case.count, mistake(
        name, f"{title}: this product must not be replaced: {case.why}", case.why)
    got, value = g.run()
    agree(got, value, "float32", f"the result after {title}", at=lambda i: f"number {i[0]}",
          mistakes=wrong_swiglu(*g.inputs) if name == "plain" and not words else {})
    assert made == case.count, mistake(
        f"missed_{name}", f"{title}: the graph has {made} calls of ops.swiglu, expected "
                          f"{case.count}: {case.why}", case.why)
    assert not made or not g.calls().get("mul.Tensor"), mistake(
        "product_stays", f"{title}: the product is still computed next to ops.swiglu")
    assert count == made, mistake(
        "count", f"{title}: it replaced {made} and returned {count}; return the number of "
                 f"replacements", "return the number of replacements")


# ---- merge_matmuls


PAIR = "a = linear x A; b = linear x B; return a b"
MATRICES = {"x": (T, C), "A": (F, C), "B": (F, C)}
MATMULS = {
    "three": Case(2, "all three multiply x",
                  "q = linear x Q; k = linear x K; v = linear x V; return q k v",
                  {"Q": (8, C), "K": (4, C), "V": (2, C)}),
    "two": Case(1, "both multiply x", PAIR),
    "two_inputs": Case(2, "two matrices multiply each of the inputs",
                       "a = linear x A; b = linear z B; c = linear x Y; d = linear z D; "
                       "return a b c d", {"z": (T, C), "Y": (F, C), "D": (F, C)}),
    "five": Case(4, "all five multiply x",
                 "a = linear x A; b = linear x B; c = linear x Y; d = linear x D; e = linear x E; "
                 "return a b c d e", {"A": (3, C), "B": (1, C), "Y": (4, C), "D": (2, C),
                                      "E": (5, C)}),
    "used_between": Case(
        1, "the second call comes after a use of the first, but multiplies the same x",
        "a = linear x A; s = silu a; b = linear x B; y = mul s b; return y b"),
    "written_outside": Case(
        1, "x is written into before both and after both",
        "add_ x 1.0; a = linear x A; b = linear x B; add_ a 1.0; add_ x 1.0; return a b"),
    "same_weight": Case(1, "both multiply x by the same weight",
                        "a = linear x A; b = linear x A; return a b"),
    "float64": Case(1, "both multiply x, in float64", PAIR, double="x A B"),
    "one_number": Case(1, "both multiply x, one number", PAIR,
                       {"x": (1, 1), "A": (1, 1), "B": (1, 1)}),
    "ragged": Case(1, "both multiply x, 15 rows", PAIR,
                   {"x": (15, 17), "A": (1, 17), "B": (33, 17)}),
    "many_rows": Case(1, "both multiply x, one row", PAIR,
                      {"x": (1, 2), "A": (40_000, 2), "B": (3, 2)}),
    "weight_written": Case(0, "one weight is written into in each run",
                           "mul_ A 2.0; a = linear x A; b = linear x B; return a b"),
    "chain": Case(0, "the second one needs the result of the first",
                  "a = linear x A; b = linear a B; return b", {"A": (C, C), "B": (C, C)}),
    "weights_given": Case(
        0, "these weights are inputs of the graph, so they cannot be stacked before the run",
        "a = linear x v; b = linear x w; return a b", {"v": (F, C), "w": (F, C)}),
    "biases": Case(0, "calls with a bias are left alone",
                   "a = linear x A P; b = linear x B R; return a b", {"P": (F,), "R": (F,)}),
    "x_written": Case(0, "x is written into between the two",
                      "a = linear x A; add_ x 1.0; b = linear x B; return a b"),
    "three_axes": Case(0, "x has three axes; ops.matmul takes (T, C)", PAIR, {"x": (2, T, C)}),
}


def test_merge_matmuls(subject, agree, rng):
    for name in MATMULS:
        check_matmuls(subject, agree, graph(subject, rng), name)


def test_merge_matmuls__hard(subject, agree, rng):
    """Hard numbers and layouts of x and of the weights."""
    for kind, values in VALUES.items():
        check_matmuls(subject, agree, graph(subject, rng, values), "two", f", {WORDS[kind]}")
    for layout in views(torch.ones(2, 2)):
        check_matmuls(subject, agree, graph(subject, rng, layout=layout), "two", f", {layout}")


def test_merge_matmuls__takes_the_table(subject, rng):
    """A stand-in in the table, which counts under another name."""
    g = graph(subject, rng)
    other = subject.make("importlib:import_module", "torch.nn.functional").linear
    module = MATMULS["two"].build(g, MATRICES)
    subject.merge_matmuls(module, subject.make("types:SimpleNamespace", matmul=other))
    count = g.calls().get("linear", 0)
    assert count == 1, mistake("other_table", (
        f"merge_matmuls: `ops.matmul` of this table is called {count} times, expected once: call "
        f"the kernel of the table `ops`; the graph calls {g.calls()}"))


def check_slices(g, title):
    """Slices of the columns, each as wide as its own result."""
    widths = [g.values[name][1].shape[1] for name in g.results]
    slices = [node.args[1:] for node in g.named("slice.Tensor")]
    for args in slices:
        assert len(args) != 3 or args[0] in (1, -1), mistake("axis_0", (
            f"{title}: a slice is cut along axis {args[0]}, that of the tokens; the results lie "
            f"side by side, in the columns, axis 1"))
    cut = [min(args[2], sum(widths)) - args[1] for args in slices if len(args) == 3]
    ends = [args[2] for args in slices] == widths
    assert len(cut) != len(widths) or cut == widths, mistake(
        "end_is_width" if ends else "widths",
        f"{title}: the slices are {', '.join(map(str, cut))} columns wide, expected "
        f"{', '.join(map(str, widths))}: each is as wide as its own matrix has rows" + (
            "; slice.Tensor takes where a slice ends, not how wide it is" if ends else ""))


def check_merged(g, title):
    """One matmul, whose val has the shape of its result, and views of its columns."""
    x, extra = g.inputs[0], set(g.calls()) - {"matmul_torch", "slice.Tensor"}
    assert not extra, mistake("runs_too", (
        f"{title}: {', '.join(sorted(extra))} is computed in every run. Stack the weights when the "
        f"pass runs, and take the results with aten.slice.Tensor, which makes views"))
    ends = np.cumsum([0, *(g.values[name][1].shape[1] for name in g.results)]).tolist()
    for node in g.named("matmul_torch"):
        val, shape = node.meta["val"], (len(x), ends[-1])
        assert torch.is_tensor(val) and (val.shape, val.dtype) == (shape, x.dtype), mistake("val", (
            f"{title}: meta[\"val\"] of the new matmul is {brief(val)}, expected the shape of its "
            f"result, {shape}"))
    slices = [tuple(node.args[1:]) for node in g.named("slice.Tensor")]
    want = [(1, start, end) for start, end in itertools.pairwise(ends)]
    assert slices == want, mistake("order_of_group", (
        f"{title}: the slices (axis, start, end) are {slices}, expected {want}: in the order of "
        f"the group, where fuse_matmul_swiglu looks for them"))


def wrong_merges(g):
    """{id: (sentence, results)} of three matrices."""
    whole, backwards = (linear(g.inputs[0], torch.cat(weights)).numpy()
                        for weights in (g.weights, g.weights[::-1]))

    def flat(results, slices):
        return np.concatenate([results[:, start:end].ravel() for start, end in slices])

    return {
        "column_0": ("every slice starts at column 0", flat(whole, ((0, 8), (0, 4), (0, 2)))),
        "stacked_otherwise": ("the weights are stacked in another order than the columns are "
                              "sliced", flat(backwards, ((0, 8), (8, 12), (12, 14)))),
        "from_the_end": ("the slices run from the end, the first matmul's last",
                         flat(whole, ((6, 14), (2, 6), (0, 2))))}


def check_matmuls(subject, agree, g, name, words=""):
    case = MATMULS[name]
    title = f"merge_matmuls, {name.replace('_', ' ')}{words}: {case.text}"
    module = case.build(g, MATRICES)
    want = case.text.count("linear") - case.count
    count = subject.merge_matmuls(module, g.ops)
    left = sum(g.calls().get(name, 0) for name in ("matmul_torch", "linear.default"))
    assert left >= want, mistake(
        name, f"{title}: {left} matmuls are left, expected at least {want}: {case.why}", case.why)
    if late := g.late():
        raise AssertionError(mistake("late", (
            f"{title}: the graph cannot run: {late[1]} uses {late[0]}, which comes after it. "
            f"Insert before the first node of the group")))
    if name == "three":
        check_slices(g, title)
    got, value = g.run()
    agree(got, value, "float32", f"the results after {title}", at=lambda i: f"number {i[0]}",
          mistakes=wrong_merges(g) if name == "three" else {})
    assert left == want, mistake(
        "unmerged", f"{title}: {left} matmuls are launched, expected {want}: {case.why}")
    if name in ("two", "three", "five"):
        check_merged(g, title)
    assert count == case.count, mistake(
        "counts_matmuls" if (count or 0) > case.count else "counts_too_few",
        f"{title}: it returned {count}, expected {case.count}: count the launches saved, " + (
            "not the matmuls" if (count or 0) > case.count else "n - 1 for a group of n"))


# ---- lifetimes


CASES = {           # launches (uses, makes), and what is returned
    "a chain": ([((0,), (1,)), ((1,), (2,)), ((2,), (3,))], (3,)),
    "a residual": ([((0,), (1,)), ((1,), (2,)), ((2,), (3,)), ((1, 3), (4,))], (4,)),
    "one that is returned early": ([((0,), (1,)), ((1,), (2,)), ((2,), (3,))], (1, 3)),
    "one that is never read": ([((0,), (1, 2)), ((1,), (3,)), ((3,), (4,))], (4,)),
    "one that is written in place": ([((0,), (1,)), ((0,), (2,)), ((1,), ()), ((1, 2), (3,))],
                                     (3,)),
    "an input that is returned": ([((0,), (1,)), ((1,), (2,))], (0, 2)),
    "used and made at once": ([((0, 1), (1,)), ((1, 1, 2), (2, 3)), ((3,), ())], (1,)),
    "returned twice, and never used": ([((0,), (40_000,)), ((0,), (5,))], (40_000, 40_000)),
    "one launch": ([((), (3, 2))], (2,)),
    "nothing": ([], ()),
}


def needed(launches, returned):
    """By the book: for every storage, the launches that use or make it."""
    last, made = len(launches) - 1, {s for _, makes in launches for s in makes}
    at = {s: [i for i, (uses, makes) in enumerate(launches) if s in (*uses, *makes)]
          + [last] * (s in returned) for s in made}
    return {s: (min(numbers), max(numbers)) for s, numbers in at.items()}


def test_lifetimes(subject, rng):
    for name, (launches, returned) in CASES.items():
        check_lives(subject, launches, returned, name)
    for _ in range(300):
        made, launches = 1, []
        for _ in range(int(rng.integers(1, 8))):
            new = range(made, made + int(rng.integers(0, 3)))
            made += len(new)            # a launch uses and makes what was only set aside before
            uses = rng.choice(made, min(made, int(rng.integers(0, 4))), replace=False)
            launches.append((tuple(map(int, uses)), tuple(new)))
        returned = rng.choice(made, min(made, int(rng.integers(0, 3))), replace=False)
        check_lives(subject, launches, tuple(map(int, returned)), "a random graph")


def check_lives(subject, launches, returned, name):
    want, got = needed(launches, returned), subject.lifetimes(launches, returned)
    about = f"lifetimes, {name}: launches (uses, makes) {launches}, returned: {returned}.\n"
    assert isinstance(got, dict), mistake(
        "no_dict", f"{about}Got {type(got).__name__}, expected a dict")
    extra, missing = sorted(set(got) - set(want)), sorted(set(want) - set(got))
    assert not extra, mistake("inputs_too", (
        f"{about}Storage {extra[0]} exists before the first launch: leave it out"))
    assert not missing, mistake("unread_missing", (
        f"{about}Storage {missing[0]} has no lifetime. The launch that makes it needs room for it, "
        f"even if nothing reads it"))
    last = len(launches) - 1
    for s, life in want.items():
        assert isinstance(got[s], (tuple, list)) and len(got[s]) == 2, mistake(
            "no_pair", f"{about}Storage {s}: got {got[s]!r}, expected (born, dies)")
        name, why = wrong_life(tuple(got[s]), life, last, s in returned)
        assert tuple(got[s]) == life, mistake(
            name, f"{about}Storage {s}: got {tuple(got[s])}, expected {life}. {why}", why)


def wrong_life(value, life, last, returned):
    """(id, sentence)"""
    born, dies = life
    if value[1] > last or value == (born + 1, dies + 1):
        return "from_1", "Launches are counted from 0, so the last has the number of launches - 1"
    if value == (dies, born):
        return "pair_swapped", "The launch that makes it comes first, then the last that needs it"
    if returned:
        return "returned_lives", "It is returned, so it lives to the last launch"
    if value == (born, dies + 1):
        return "one_longer", "It is needed up to its last use, and not one launch longer"
    if value == (born, dies - 1):
        return "one_shorter", "It is needed at its last use, too, and not only before"
    if value[0] == born and value[1] > dies:
        return "outlives", "Nothing uses it after that"
    if value[1] == dies:
        return "born_at_use", "It is born at the launch that makes it, not at its first use"
    return "first_use", "Take its last use, not its first"


# ---- place


def clash(a, b):
    return a[0] <= b[1] and b[0] <= a[1]


def walk(sizes, lives, order, meet=clash, fits=lambda room, size: room >= size, back=False,
         low=sorted, ends=False):
    """Offsets as an answer deals them out that goes through the taken places from below."""
    offsets = {}
    for new in sorted(sizes, key=order):
        at = 0
        for start, end in low([(offsets[o], offsets[o] + sizes[o]) for o in offsets
                               if meet(lives[o], lives[new])]):
            if fits(start - at, sizes[new]):
                break
            at = end if back else max(at, end)
        offsets[new] = at + sizes[new] * ends
    return offsets


def wrong_plan(sizes, lives, got):
    """(id, sentence) of the mistake that leads to these offsets, each "" if none is known."""
    def large(s):
        return -sizes[s], lives[s]

    ways = {
        "goes_back": ("the search goes back down after a place that ends below the one before; the "
                      "offset may only rise", {"back": True}),
        "any_gap": ("a gap is taken whatever its size", {"fits": lambda room, size: room > 0}),
        "exact_gap": ("a gap that fits exactly is passed over",
                      {"fits": lambda room, size: room > size}),
        "on_top": ("each is placed above everything, though a gap further down is large enough",
                   {"fits": lambda room, size: False}),
        "unsorted": ("taken places are gone through in the order of placing, not from the lowest "
                     "up", {"low": list}),
        "dying_gives_room": ("a storage that dies at a launch gives its room to one that is born "
                             "there, though it is still read", {
                                 "meet": lambda old, new: old[0] < new[1] and new[0] < old[1]}),
        "at_birth_alone": ("only storages that live when the new one is born count, not those born "
                           "after it", {"meet": lambda old, new: old[0] <= new[0] <= old[1]}),
        "born_later_alone": ("only storages that are born after the new one count",
                             {"meet": lambda old, new: new[0] <= old[0] <= new[1]}),
        "no_byte_twice": ("no byte is used twice, so nothing is saved",
                          {"meet": lambda old, new: True}),
        "no_obstacle": ("nothing is in the way of anything", {"meet": lambda old, new: False}),
        "longest_first": ("the longest lives come first, not the largest sizes",
                          {"order": lambda s: (lives[s][0] - lives[s][1], lives[s])}),
        "smallest_first": ("the smallest come first; they block the large ones",
                           {"order": lambda s: (sizes[s], lives[s])}),
        "born_first": ("they are placed in the order of birth, not the largest first",
                       {"order": lives.get}),
        "later_born_first": ("of equal sizes the one born later comes first",
                             {"order": lambda s: (-sizes[s], -lives[s][0])}),
        "as_listed": ("of equal sizes the one that `sizes` has first comes first, not the one born "
                      "earlier", {"order": lambda s: -sizes[s]}),
        "ends": ("an offset says where a storage ends, not where it starts", {"ends": True})}
    right = walk(sizes, lives, large)
    return next(((name, why) for name, (why, way) in ways.items()
                 if got == walk(sizes, lives, **{"order": large} | way) != right), ("", ""))


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


def small_arena(rng):
    """Few sizes and births, but no two storages alike in both, so the plan is unique."""
    pairs = rng.permutation(list(itertools.product((256, 512, 768), range(5))))
    rows = pairs[:rng.integers(2, 9)].tolist()
    return ({s: size for s, (size, _) in enumerate(rows)},
            {s: (born, born + int(rng.integers(0, 4))) for s, (_, born) in enumerate(rows)})


def test_place(subject, rng):
    for name, (sizes, lives) in ARENAS.items():
        check_place(subject, sizes, lives, name)
    for count in (3, 5, 8, 13, 21, 21, 34):
        check_place(subject, *random_arena(rng, count), "a random graph", unique=False)
    for _ in range(300):
        check_place(subject, *small_arena(rng), "a small random graph")


def check_place(subject, sizes, lives, name, unique=True):
    got = subject.place(sizes, lives)
    about = f"place, {name}: "
    assert isinstance(got, dict) and set(got) == set(sizes), mistake("storages", (
        f"{about}offsets of storages {sorted(got) if isinstance(got, dict) else got!r}, expected "
        f"{sorted(sizes)}"))
    assert all(isinstance(at, int) and at >= 0 for at in got.values()), mistake(
        "no_offsets", f"{about}offsets are whole numbers from 0 on, got {got}")
    cause, why = wrong_plan(sizes, lives, got)
    rest = f"\nSizes {sizes}, lives {lives}" + (f"\nThis is what comes out when {why}." if why
                                                else "")
    for a, b in itertools.combinations(sizes, 2):
        over = got[a] < got[b] + sizes[b] and got[b] < got[a] + sizes[a]
        (_, one), (last, _) = sorted((lives[s][0], s) for s in (a, b))
        inside = (got[a] - got[b]) * (got[a] + sizes[a] - got[b] - sizes[b]) < 0
        meet = ("one lies wholly inside the other" if inside else "one is read there while the "
                "other is written" if lives[one][1] == last else "it is inside both lives")
        assert not (over and clash(lives[a], lives[b])), mistake(cause or "overlap", (
            f"{about}storages {a} and {b} overlap at byte {max(got[a], got[b])}, and both live at "
            f"launch {last}: {meet}.{rest}"), why)
    want = walk(sizes, lives, lambda s: (-sizes[s], lives[s]))
    peaks = [max((offsets[s] + sizes[s] for s in sizes), default=0) for offsets in (got, want)]
    assert peaks[0] <= peaks[1], mistake(cause or "larger", (
        f"{about}the arena has {peaks[0]:,} bytes; {peaks[1]:,} are enough. Take the largest "
        f"first.{rest}"), why)
    wrong = next((s for s in sizes if unique and got[s] != want[s]), None)
    assert wrong is None, mistake(cause or "not_lowest", (
        f"{about}storage {wrong} is at byte {got[wrong]:,}, expected {want[wrong]:,}. Largest "
        f"first, of equal sizes the one born earlier, each at the lowest offset where it fits."
        f"{rest}"), why)
