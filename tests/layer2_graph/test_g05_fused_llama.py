"""Graders of g05.
A layer is compared with NumPy in float64, around watched kernels; predictions with what is
counted."""

from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from lab.judge.adversarial import VALUES, views
from lab.judge.mistakes import mistake, named, raises
from layer2_graph import FusedLlama
from layer2_graph.testing.layer_traffic import FAMILIES, KINDS, of_a_layer, traffic
from layer2_graph.testing.random_llama import random_llama
from tests.layer2_graph.oracle_g05_fused_llama import (
    ALONE,
    Block,
    Scores,
    slips,
    wrong_residuals,
    wrong_x,
)

# ---- predict_launches


def test_predict_launches(subject, truth):
    eager, merged, want = truth(lambda: [of_a_layer(kind)[0] for kind in KINDS])
    names = truth(lambda: traffic(FusedLlama).names)
    got = subject.predict_launches()
    assert type(got) in (int, float), mistake(
        "no_number", f"predict_launches: a prediction is a number, got {got!r}")
    known = {
        3: ("kernels", "Three kernels of floor 1 fuse two launches; how many launches remain?"),
        merged - want: ("saved", "That is how many are saved; how many are left?"),
        2 * want: ("two_layers", "One layer is asked for, not two."),
        eager: ("as_g01", "That is g01's layer: nothing is merged or fused."),
        merged: ("as_merged", "That is the merged layer: nothing is fused yet."),
        merged - 1: ("one_pair", "You fused one pair of launches; four pairs can be fused."),
        want + 2: ("two_pairs", "Two launches too many. Which kernel can store k as soon as it is "
                                "rotated? What follows the gate-and-up matrix?"),
        want + 1: ("three_pairs", "One launch too many: for two consecutive launches there is "
                                  "still a kernel that does both."),
        want - 1: ("one_missing", "One launch too few. Both norms remain, and so do four matrices: "
                                  "q, k and v, the output projection, gate and up, down."),
        len(names): ("whole_step", "That counts the whole step of a two-layer model; count one "
                                   "layer.")}
    name, sentence = known.get(got, ("other", (
        "A launch is whole." if got % 1 else
        "Too many: the merged layer, in which nothing is fused, makes fewer." if got > merged else
        "Too few. One is saved only where one of the three kernels does the work of two.")))
    assert got == want, mistake(name, f"predict_launches: {got!r} launches is not right.\n"
                                      f"{sentence}", sentence)


# ---- fused_block


def shape(array):
    """Of a tensor or an array, or () of a number."""
    return tuple(np.shape(array))


def channel(i):
    return f"token {i[0]}, channel {i[1]}"


class Given(Block):
    """Three layers of ragged widths with random weights, one of which is called; around it watched
    kernels, and an attention with a given result."""

    NAMES = ("matmul", "matmul_swiglu", "rmsnorm", "add_rmsnorm", "rope", "rope_and_cache",
             "swiglu")

    def __init__(self, subject, rng, T=5, C=6, H=4, G=2, D=4, F=7, i=1, biases=False,
                 head_norms=False, last=31):
        self.T, self.C, self.H, self.G, self.D, self.F, self.i = T, C, H, G, D, F, i
        self.eps, self.biases = 0.1, biases
        sizes = {"q": (H * D, C), "k": (G * D, C), "v": (G * D, C), "o": (C, H * D),
                 "gate": (F, C), "up": (F, C), "down": (C, F)}
        norms = {"attention_norm": C, "mlp_norm": C} | (
            {"q_norm": D, "k_norm": D} if head_norms else {})
        self.layers = [
            ({name: rng.standard_normal(size) for name, size in (sizes | norms).items()},
             {name: rng.standard_normal(size[0]) * biases for name, size in sizes.items()})
            for _ in range(3)]
        self.w, self.bias = self.layers[i]
        self.x, self.residual = rng.standard_normal((2, T, C))
        self.positions = np.resize([last, 9, 0, 1, 2, 4], T)        # of three sequences
        self.slots = rng.permutation(32)[:T]
        self.answer = rng.standard_normal((T, H, D))
        self.build(subject, last + 1)

    def build(self, subject, room):
        """Model, step and cache, in the code under test."""
        tensor, watched = torch.from_numpy, lambda *a: subject.make("lab.judge.mocks:Watched", *a)
        config = subject.make("layer2_graph.config:Config", L=3, C=self.C, H=self.H, G=self.G,
                              D=self.D, F=self.F, V=1, eps=self.eps, theta=100.0, room=room)
        table = subject.make("layer1_kernels:kernels", "torch")
        self.kernels = {name: watched(getattr(table, name)) for name in self.NAMES}
        self.kernels["write_kv"] = watched()                # which would refuse float64
        self.kernels["paged_attention"] = watched(None, tensor(self.answer))
        ops = subject.make("types:SimpleNamespace", **self.kernels)
        blank = torch.zeros(1, self.C).double()
        self.model = subject.FusedLlama(config, {
            "model.embed_tokens.weight": blank, "lm_head.weight": blank,
            "model.norm.weight": blank[0]} | {
            f"model.layers.{layer}.{name}": tensor(array) for layer in range(3)
            for name, array in self.named(*self.layers[layer])}, ops)
        self.cos, self.sin = self.model.cos.numpy(), self.model.sin.numpy()
        B = min(self.T, 3)
        self.tables = torch.arange(2 * B, dtype=torch.int32).view(B, 2)
        self.cu_q = torch.tensor([*range(B), self.T], dtype=torch.int32)
        self.lens = torch.tensor([5, 10, 3][:B], dtype=torch.int32)
        self.step = subject.make("layer2_graph.g01_llama:Batch", torch.zeros(0),
                                 tensor(self.positions), tensor(self.slots), self.tables,
                                 self.cu_q, self.lens)
        pages = torch.zeros(3, 4, 8, self.G, self.D).double()
        self.attend = watched(None, tensor(self.answer))    # as g01's layer calls it
        self.cache = subject.make("types:SimpleNamespace", k=pages, v=pages.clone(),
                                  attend=self.attend)

    def named(self, weights, biases):
        """The tensors of a layer as Hugging Face names them."""
        norms = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
                 "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
        for name, array in weights.items():
            place = "self_attn" if name[0] in "qkvo" else "mlp"
            full = norms.get(name) or f"{place}.{name}_proj"
            yield f"{full}.weight", array
            if self.biases and name in biases:
                yield f"{full}.bias", biases[name]

    def run(self, subject, x=None, residual=None, first=False):
        x = torch.from_numpy(self.x.copy()) if x is None else x
        residual = torch.from_numpy(self.residual.copy()) if residual is None else residual
        try:
            got = subject.fused_block(self.model, self.i, x, None if first else residual,
                                      self.step, self.cache)
        except Exception:
            self.judge_arguments()
            raise
        for name, array in (("x", x), ("residual", residual)):
            assert np.array_equal(array.numpy(), getattr(self, name), equal_nan=True), mistake(
                "input_changed", f"fused_block changes its argument {name}: kernels of the table "
                                 f"make new arrays, and x += … does not")
        self.judge_arguments()
        return got

    def judge_arguments(self):
        """The order of what add_rmsnorm and rope_and_cache are given."""
        heads = (self.T, self.H, self.D), (self.T, self.G, self.D)
        for call in self.calls("rope_and_cache"):
            q, k = shape(call[0]), shape(call[1])
            assert (q, k) != heads[::-1] or q == k, mistake("heads_order", (
                f"fused_block: rope_and_cache got q {q} and k {k}, expected q {k}: model.heads "
                f"returns q, k, v in this order"), "model.heads returns q, k, v in this order")
        calls = self.calls("add_rmsnorm")
        for x, other, *_ in calls:
            assert other is None or shape(other) == shape(x), mistake("norm_arguments", (
                f"fused_block: add_rmsnorm got x {shape(x)} and a residual {shape(other)}; "
                f"its arguments are x, residual, w, eps"), "add_rmsnorm takes x, residual, w, eps")
        weights = [np.asarray(call[2]) for call in calls if len(call) > 2]
        assert len(weights) < 2 or not np.array_equal(weights[0], self.w["mlp_norm"]) or not \
            np.array_equal(weights[-1], self.w["attention_norm"]), mistake("mlp_first", (
                "fused_block: the first norm has the weights mlp_norm, the second attention_norm; "
                "attention comes first"))

    def calls(self, name):
        return self.kernels[name].calls


def pair(got):
    assert isinstance(got, (tuple, list)) and len(got) == 2, mistake("no_pair", (
        f"fused_block returned {type(got).__name__}; expected two arrays, x and the residual"))
    return got


def judge_sums(agree, given, got, sum_in, what="fused_block"):
    """The two results of a layer, compared with those by the book."""
    x, residual = pair(got)
    want_x, want = given.out(sum_in)
    agree(residual, want, "float64", f"{what}: the residual that it returns", at=channel,
          mistakes=wrong_residuals(given, sum_in, want_x, want))
    agree(x, want_x, "float64", f"{what}: the x that it returns", at=channel,
          mistakes=wrong_x(given, sum_in, want_x, want))


def judge_cache(agree, given, sum_in, what=""):
    """What a layer wrote into the pages, and the arguments of its attention."""
    page, place = np.divmod(given.slots, 8)
    q, k, v = given.heads(sum_in)
    rotated = given.rotated(k, given.positions)
    none = np.zeros_like(k)
    wrong = {
        "cos_sin_swapped": ("cos and sin are swapped", given.rotated(k, given.positions, True)),
        "no_head_norms": ("the norms of q and k are left out; model.heads has them",
                          given.rotated([*given.heads(sum_in, norms=False)][1], given.positions)),
        "short_positions": ("positions are kept in 16 bits, which end at 32,767",
                            given.rotated(k, given.positions.astype(np.int16)))}
    for i in range(3):
        own = i == given.i
        agree(given.cache.k[i].numpy()[page, place], rotated if own else none, "float64",
              f"the keys in layer {i}'s pages after layer {given.i} has run{what}", mistakes={
                  "other_layer": ("they are another layer's keys", none if own else rotated),
                  "pages_swapped": ("keys and values went into each other's pages",
                                    v if own else none)} | (wrong if own else {}))
    agree(given.cache.v[given.i].numpy()[page, place], v, "float64",
          f"the values of layer {given.i}{what}")
    assert given.calls("paged_attention"), mistake(
        "no_attention", "fused_block: it does not call ops.paged_attention")
    call = given.calls("paged_attention")[-1]
    assert len(call) == 7, mistake("arguments", (
        f"fused_block: ops.paged_attention got {len(call)} arguments, expected 7: q, the pages of "
        f"keys and of values, block_tables, cu_q, lens, scale"), "")
    query, keys, values, *fields, scale = call
    pages = shape(given.cache.k[given.i])
    assert shape(keys) == shape(values) == pages, mistake("no_pages", (
        f"fused_block: ops.paged_attention got keys {shape(keys)} and values "
        f"{shape(values)}, expected the layer's pages {pages}"), "")
    agree(query, given.rotated(q, given.positions), "float64", f"q as attention gets it{what}",
          mistakes={"q_not_rotated": ("q is not rotated: attention was called before the rotation, "
                                      "or a copy of q was rotated", q)})
    for name, array, want, other in (("keys", keys, rotated, v), ("values", values, v, rotated)):
        agree(array[page, place], want, "float64", f"the {name} that attention may read{what}",
              mistakes={
                  "not_written": ("the pages were not written yet, or another layer's pages were "
                                  "passed", none),
                  "attention_swapped": ("attention gets keys and values the wrong way round, or "
                                        "one of them as both", other)})
    judge_fields(agree, given, fields, what)
    judge_scale(agree, given, scale, what)


def judge_fields(agree, given, got, what):
    """block_tables, cu_q and lens, as attention gets them."""
    fields = {"block_tables": given.tables, "cu_q": given.cu_q, "lens": given.lens}
    for (name, want), field in zip(fields.items(), got, strict=True):
        for other in fields.keys() - {name}:
            assert field.tolist() != fields[other].tolist(), mistake(
                "fields_swapped", f"fused_block{what}: attention gets batch.{other} where it takes "
                f"{name}: first come block_tables, then cu_q, then lens",
                "batch.block_tables comes first, then batch.cu_q, then batch.lens")
        agree(field, want.numpy(), "exact", f"{name} as attention gets them{what}")


def judge_scale(agree, given, scale, what):
    unscaled = "nothing is scaled" + (
        ", or the head width is taken to be C / H" if given.C == given.H else "")
    agree(scale, given.D ** -0.5, "float64", f"the scale as attention gets it{what}", mistakes={
        "scale_inverted": ("it is the square root of D, not one over it", given.D ** 0.5),
        "scale_without_root": ("the square root of D is forgotten: it is 1 / D", 1 / given.D),
        "scale_of_model": ("the model's width C is taken for the head's width D", given.C ** -0.5),
        "scale_one": (unscaled, 1.0),
        "scale_c_by_h": ("the head width is taken to be C / H", (given.C / given.H) ** -0.5)})


@pytest.mark.parametrize("first", [False, True])
def test_fused_block(subject, agree, rng, first):
    given = Given(subject, rng, i=0 if first else 1)
    covered = raises("no_residual", TypeError, "In the first layer the residual is None; "
                     "model.add_norm covers that case.") if first else nullcontext()
    with covered:
        got = given.run(subject, first=first)
    assert not given.attend.calls, mistake(
        "attend_of_g01", "fused_block: cache.attend makes two launches; call ops.rope_and_cache, "
                         "then ops.paged_attention")
    judge_sums(agree, given, got, given.x if first else given.x + given.residual,
               "fused_block, the first layer" if first else "fused_block")


def test_fused_block__what_it_launches(subject, rng):
    given = Given(subject, rng)
    given.run(subject)
    names = {name: len(given.calls(name)) for name in given.kernels}
    for name, why in ALONE.items():
        assert not names[name], mistake(f"alone_{name}", f"fused_block: {why}")
    want = {"add_rmsnorm": 2, "matmul": 3, "rope_and_cache": 1, "paged_attention": 1,
            "matmul_swiglu": 1}
    for name, count in want.items():
        assert names[name] == count, mistake(
            f"calls_of_{name}", f"fused_block calls ops.{name} {names[name]} times, expected "
                                f"{count}; the layer makes eight launches in all")


def test_fused_block__what_the_cache_is_given(subject, agree, rng):
    given = Given(subject, rng)
    given.run(subject)
    assert given.calls("rope_and_cache"), mistake(
        "no_write", "fused_block: it does not call ops.rope_and_cache")
    *heads, _, _, positions, k_pages, v_pages, slots = given.calls("rope_and_cache")[0]
    assert k_pages.ndim == 4, mistake(
        "all_layers", f"fused_block: rope_and_cache got pages of shape {tuple(k_pages.shape)}, "
                      f"expected those of this layer")
    agree(positions, given.positions, "exact", "the positions that rope_and_cache gets",
          mistakes={"slots_as_positions": ("slots are taken for positions", given.slots)})
    agree(slots, given.slots, "exact", "the slots that rope_and_cache gets",
          mistakes={"positions_as_slots": ("positions are taken for slots", given.positions)})
    sum_in = given.x + given.residual
    judge_heads(agree, given, dict(zip("qkv", heads, strict=True)), sum_in)
    judge_cache(agree, given, sum_in)


def judge_heads(agree, given, got, sum_in):
    """q, k and v as rope_and_cache gets them."""
    inputs = {
        "heads_of_the_sum": ("the first norm's result is not used: heads are computed from the sum",
                             sum_in),
        "heads_of_x": ("heads are computed from x as it came, without the addition and the norm",
                       given.x),
        "second_norm_twice": ("the first norm has the weights of the second",
                              given.normed(sum_in, "mlp_norm")),
        "first_eps": ("the first norm's eps is 1e-5 or less, whatever config.eps is",
                      given.normed(sum_in, "attention_norm", 1e-6))}
    wrong = {name: (why, dict(zip("qkv", given.heads(sum_in, y), strict=True)))
             for name, (why, y) in inputs.items()}
    want = dict(zip("qkv", given.heads(sum_in), strict=True))
    for name, array in got.items():
        known = {key: (why, heads[name]) for key, (why, heads) in wrong.items()}
        if name != "q":
            known["k_v_swapped"] = ("k and v are swapped", want["vk"[name == "v"]])
        agree(array, want[name], "float64", f"{name} as rope_and_cache gets it",
              at=lambda i: f"token {i[0]}, head {i[1]}, number {i[2]}", mistakes=known)


BLOCKS = {
    "the last layer": {"i": 2}, "one token": {"T": 1}, "15 tokens": {"T": 15},
    "biases at every matrix": {"biases": True}, "one head": {"H": 1, "G": 1},
    "as many key heads as query heads": {"G": 4, "D": 2},
    "norms of each head": {"head_norms": True, "H": 6, "G": 3},
    "a token at position 40,000": {"T": 1, "last": 40_000}}


def test_fused_block__hard(subject, agree, rng):
    """Other sizes, layers and families, then hard numbers and layouts, in one process."""
    def judge(given, what, x=None, residual=None):
        got, sum_in = given.run(subject, x, residual), given.x + given.residual
        judge_sums(agree, given, got, sum_in, f"fused_block, {what}")
        judge_cache(agree, given, sum_in, f", {what}")

    for what, sizes in BLOCKS.items():
        judge(Given(subject, rng, **sizes), what)
    given = Given(subject, rng, T=9)
    with np.errstate(invalid="ignore"):
        for what, arguments in hard_pairs(given, rng, [(4, np.nan), (4, -np.inf)]):
            judge(given, what, **arguments)


def hard_pairs(given, rng, values):
    """(what, arguments): hard numbers and layouts of x and of the residual, one of them at a time;
    at the end each (row, value) in one of its channels, which may change no other row."""
    for name in ("x", "residual"):
        before = getattr(given, name)
        for kind in sorted(set(VALUES) - {"infinite", "not_a_number"}):
            setattr(given, name, VALUES[kind](rng, given.x.shape).astype(np.float64))
            yield f"{name} of the kind {kind}", {}
        setattr(given, name, before)
        for layout, view in views(torch.from_numpy(before)).items():
            yield f"{name} with {layout}", {name: view}
        for row, value in values:
            setattr(given, name, before.copy())
            getattr(given, name)[row, 1] = value
            yield f"row {row} of {name} holds {value}", {}
        setattr(given, name, before)


def counting_model(side, m, weights):
    """(Launches, config, a model whose launches they count), in the code under test."""
    config = side.make("layer2_graph.config:Config", **vars(m))
    seen = side.make("layer2_graph.launches:Launches")
    ops = seen.counting(side.make("layer1_kernels:kernels", "torch"))
    return seen, config, side.FusedLlama(config, weights, ops)


def run_steps(side, m, weights, inputs):
    """[(x, residual, names of the launches)] of each layer and step, and the pages at the end."""
    seen, config, model = counting_model(side, m, weights)
    cache, rows = side.make("layer2_graph.g01_llama:PagedCache", config, 2, 32), []
    for new, sums in inputs:
        step = cache.step(new)
        for i, (x, residual) in enumerate(sums):
            before = len(seen.names)
            with seen:
                got = side.fused_block(model, i, x, residual if i else None, step, cache)
            given = 2 if i else 1       # arrays, which the child copies before and after the call
            rows.append((*pair(got), seen.names[before + given:-given]))
    return rows, (cache.k, cache.v)


def test_fused_block__as_many_launches_as_the_course(subject, reference, agree, rng):
    """With the table's own attention, on each family: prompts, then both mixed, then decode."""
    for family, entries in FAMILIES.items():
        model = random_llama(**entries)
        m, inputs = model.config, []
        for new in ([[1, 2, 3], [4]], [[5], [6, 7]], [[8], [9]]):
            T = sum(map(len, new))
            inputs.append((new, torch.from_numpy(rng.standard_normal((m.L, 2, T, m.C))).float()))
        (rows, pages), (own_rows, own_pages) = (
            run_steps(side, m, model.weights, inputs) for side in (subject, reference))
        for number, (row, own) in enumerate(zip(rows, own_rows, strict=True)):
            what = f"{family}, layer {number % m.L} of step {number // m.L}"
            for name, got, want in zip(("residual", "x"), row[1::-1], own[1::-1], strict=True):
                agree(got, want.numpy(), "float32", f"fused_block, {what}: {name}", at=channel)
            more = [*(Counter(row[2]) - Counter(own[2]))]
            copies = {"clone", "cat", "copy_"} & {*more}
            sentence = ("The kernels accept views; each copy is one launch more" if copies else
                        f"Each PyTorch operation is a launch too; here: {' and '.join(more)}")
            assert len(row[2]) <= len(own[2]), mistake(
                "copies" if copies else "own_operation", f"fused_block, {what}: {len(row[2])} "
                f"launches, expected {len(own[2])}: {', '.join(row[2])}. {sentence}", sentence)
        for name, got, want in zip("kv", pages, own_pages, strict=True):
            agree(got, want.numpy(), "float32", f"the pages of {name}, {family}")


# ---- last_scores


class Scored(Scores):
    """The end of a model with random weights, of ragged widths, and watched kernels."""

    def __init__(self, subject, rng, T=10, C=6, V=8, tied=False):
        self.T, self.C, self.eps = T, C, 0.1
        self.x, self.residual = rng.standard_normal((2, T, C))
        embedding, head = rng.standard_normal((2, V, C))
        self.norm, self.head, self.embedding = rng.standard_normal(C), head, embedding
        config = subject.make("layer2_graph.config:Config", L=0, C=C, H=1, G=1, D=2, F=1, V=V,
                              eps=self.eps, theta=100.0, room=32, tied=tied)
        table = subject.make("layer1_kernels:kernels", "torch")
        self.kernels = {name: subject.make("lab.judge.mocks:Watched", getattr(table, name))
                        for name in ("add_rmsnorm", "rmsnorm", "matmul")}
        weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": self.norm}
        weights |= {} if tied else {"lm_head.weight": head}
        self.head = embedding if tied else head
        self.model = subject.FusedLlama(
            config, {name: torch.from_numpy(array) for name, array in weights.items()},
            subject.make("types:SimpleNamespace", **self.kernels))

    def judge(self, subject, agree, rows, what="", x=None, residual=None):
        before = {name: len(kernel.calls) for name, kernel in self.kernels.items()}
        x = torch.from_numpy(self.x.copy()) if x is None else x
        residual = torch.from_numpy(self.residual.copy()) if residual is None else residual
        places = np.arange(self.T) if rows is None else np.array(rows)
        asked = subject.make("builtins:slice", None) if rows is None else torch.tensor(rows)
        try:
            with named("slice", "`rows` may be a slice: x[rows] takes both.", lambda error: (
                    "slice" in getattr(error, "text", "") and error.type == "TypeError")), named(
                    "norm_of_layer", "The last norm's weights are model.norm; last_scores needs "
                    "no layer.", lambda error: "list index out" in getattr(error, "text", "")):
                got = subject.last_scores(self.model, x, residual, asked)
        except Exception:
            self.judge_arguments()
            raise
        for name, array in (("x", x), ("residual", residual)):
            assert np.array_equal(array.numpy(), getattr(self, name), equal_nan=True), mistake(
                "input_changed", f"last_scores changes its argument {name}")
        want = self.scores(self.x + self.residual, places)
        size = tuple(getattr(got, "shape", ()))
        assert len(places) == 1 or size != (1, want.shape[1]), mistake(
            "one_row", f"last_scores{what}: one row of scores, but {len(places)} rows are wanted: "
                       f"index x and the residual with `rows`")
        assert size != (len(places),), mistake(
            "one_number", f"last_scores{what}: one number a row, but each of the {want.shape[1]} "
                          f"tokens of the vocabulary has a score; the largest is not wanted here")
        agree(got, want, "float64",
              f"the scores of {'all' if rows is None else f'rows {rows} of'} {self.T}{what}",
              at=lambda i: f"row {i[0]}, token {i[1]} of the vocabulary",
              mistakes=self.wrong_scores(places, want))
        self.judge_calls(before, places, what)

    def judge_arguments(self):
        """What the kernel was given in which an answer raised."""
        if calls := self.kernels["matmul"].calls:
            y, head = calls[-1]
            assert not isinstance(y, (list, tuple)), mistake("pair_as_array", (
                "last_scores: ops.matmul got a pair: add_rmsnorm returns the normed rows and the "
                "sum"))
            assert shape(head) != self.head.T.shape or shape(head) == self.head.shape, \
                mistake("head_transposed", f"last_scores: ops.matmul got the head transposed, "
                                           f"{shape(head)}; it takes a matrix (V, C)", "")
        elif calls := self.kernels["add_rmsnorm"].calls:
            shapes = tuple(map(shape, calls[-1][:3]))
            assert shapes[0] == shapes[1] and shapes[2:] == ((self.C,),), mistake(
                "norm_arguments", f"last_scores: add_rmsnorm got x, residual and w of the shapes "
                                  f"{shapes}, expected the same rows of x and residual, and w of "
                                  f"C = {self.C} numbers", "")

    def judge_calls(self, before, places, what):
        calls = {name: kernel.calls[before[name]:] for name, kernel in self.kernels.items()}
        assert not calls["rmsnorm"], mistake(
            "add_alone", "last_scores: the last addition is a launch of its own; ops.add_rmsnorm "
                         "adds and norms in one")
        for name in ("add_rmsnorm", "matmul"):
            assert len(calls[name]) == 1, mistake(
                f"calls_of_{name}", f"last_scores{what}: {len(calls[name])} calls of ops.{name}, "
                                    f"expected one: the table computes it")
            rows_in = len(calls[name][0][0])
            assert rows_in == len(places), mistake(
                "all_rows", f"last_scores: ops.{name} gets all {rows_in} rows, but only "
                            f"{len(places)} are wanted. Select the rows first")


@pytest.mark.parametrize("rows", [[4, 6, 9], [0]])
def test_last_scores(subject, agree, rng, rows):
    Scored(subject, rng).judge(subject, agree, rows)


ENDS = {"the last row alone": ({}, [9]), "in another order": ({}, [7, 2, 0]),
        "a row that is wanted twice": ({}, [2, 7, 7]), "every row is wanted": ({}, None),
        "a step of one token": ({"T": 1}, [0]), "all of 17 tokens": ({"T": 17}, [*range(17)]),
        "15 channels": ({"C": 15}, [3, 5]), "a vocabulary of one token": ({"V": 1}, [3, 5]),
        "a vocabulary of 40,000": ({"V": 40_000, "C": 3}, [1]),
        "the embedding is the head": ({"tied": True}, [3, 5])}


def test_last_scores__hard(subject, agree, rng):
    """Other sizes and rows, then hard numbers and layouts, in one process."""
    for what, (sizes, rows) in ENDS.items():
        Scored(subject, rng, **sizes).judge(subject, agree, rows, f", {what}")
    given, rows = Scored(subject, rng), [4, 6, 9]
    values = [(5, np.nan), (6, np.nan), (6, -np.inf)]       # row 5 is not among the rows
    with np.errstate(invalid="ignore"):
        for what, arguments in hard_pairs(given, rng, values):
            given.judge(subject, agree, rows, f", {what}", **arguments)


def launches_of_scores(side, m, weights, x, residual, rows):
    """(scores, names of the launches)"""
    seen, _, model = counting_model(side, m, weights)
    asked = side.make("builtins:slice", None) if rows is None else torch.tensor(rows)
    with seen:
        got = side.last_scores(model, x, residual, asked)
    given = 2 if rows is None else 3    # arrays, which the child copies before and after the call
    return got, seen.names[given:-given]


def test_last_scores__as_many_launches_as_the_course(subject, reference, agree, rng):
    model = random_llama()
    x, residual = torch.from_numpy(rng.standard_normal((2, 7, model.config.C))).float()
    for rows in ([2, 6], [5], None):
        (got, names), (want, own) = (launches_of_scores(side, model.config, model.weights, x,
                                                        residual, rows)
                                     for side in (subject, reference))
        what = f"last_scores, rows {'all' if rows is None else rows} of 7"
        agree(got, want.numpy(), "float32", what)
        more = [*(Counter(names) - Counter(own))]
        sentence = (f"Selecting the rows of both arrays, one add_rmsnorm and one matmul are "
                    f"enough; not needed: {' and '.join(more)}")
        assert len(names) <= len(own), mistake(
            "own_operation", f"{what}: {len(names)} launches, expected {len(own)}: "
                             f"{', '.join(names)}. {sentence}", sentence)


# ---- predict_numbers_saved


@pytest.mark.parametrize("entries", [
    {"C": 41, "H": 9, "G": 3, "F": 107}, {}, {"C": 24, "H": 6, "G": 3, "F": 104}, {"F": 8}])
def test_predict_numbers_saved(subject, truth, entries):
    T = 3
    how = {"new": [[1] * T], **entries}
    m = random_llama(**entries).config
    eager, merged, fused = truth(lambda: [of_a_layer(kind, **how)[1] // (4 * T) for kind in KINDS])
    config = subject.make("layer2_graph.config:Config", **vars(m) | {"L": 3})
    want = merged - fused
    got = subject.predict_numbers_saved(config)
    assert type(got) in (int, float), mistake(
        "no_number", f"predict_numbers_saved: got {got!r}, expected a number")
    alone = {
        -want: ("negative", "The sign is wrong: how many fewer is asked for."),
        37_888: ("fixed", "m has the sizes of a model; this one is small."),
        4: ("launches", "Numbers are asked for, not launches."),
        2 * want: ("bytes_of_16_bits", "Numbers are asked for, not bytes."),
        want // 2: ("half", "Half of it. Does each array that disappears count twice, written and "
                            "read back?"),
        2 * m.C * m.F: ("weights", "Activations are counted, not weights."),
        eager - fused: ("merging_too", "That is what merging and fusing save. What does fusing "
                                       "alone save?"),
        want * 3: ("whole_model", "One layer is asked for, not all."),
        want * 4: ("bytes", "Numbers are asked for, not bytes of 32 bits.")}
    other = ("Too many." if got > want else "Too few.") + (
        " List the arrays of each launch that disappeared, and mark which are still read or "
        "written.")
    names, sentences = zip(*[alone[got]] if got in alone else slips(got - want, m)
                           or [("other", other)], strict=True)
    sentence = "\n".join(sentences)
    assert got == want, mistake(
        names[0], f"predict_numbers_saved: {got!r} numbers is not right for C = {m.C}, H = "
                  f"{m.H}, G = {m.G}, D = {m.D}, F = {m.F}.\n{sentence}", sentence)


def test_predict_numbers_saved__unseen(unseen, rng):
    for C, G, D, F in rng.integers(1, 500, (4, 4)).tolist():
        sizes = {"L": 2, "C": C, "H": 2 * G, "G": G, "D": D, "F": F, "V": 31, "eps": 1e-5,
                 "theta": 1e4, "room": 64}
        unseen("predict_numbers_saved", lambda side, sizes=sizes: side.make(
            "layer2_graph.config:Config", **sizes), precision="exact",
            shown=f"C = {C}, G = {G}, D = {D}, F = {F}")
