"""Graders of s22.
Numbers of the exercises that only move and add are whole, so sums are exact."""

import numpy as np
import pytest
import torch

from lab.judge.mistakes import mistake

DRIVER = "layer3_system.testing.tensor_driver"
CONFIG = {"L": 1, "C": 10, "H": 8, "G": 2, "D": 4, "F": 12, "V": 20, "eps": 1e-5, "theta": 1e4,
          "room": 8}
SHAPES = {"self_attn.q_proj.weight": (32, 10), "self_attn.k_proj.weight": (8, 10),
          "self_attn.v_proj.weight": (8, 10), "self_attn.o_proj.weight": (10, 32),
          "mlp.gate_proj.weight": (12, 10), "mlp.up_proj.weight": (12, 10),
          "mlp.down_proj.weight": (10, 12), "self_attn.q_proj.bias": (32,),
          "self_attn.k_proj.bias": (8,), "self_attn.v_proj.bias": (8,),
          "self_attn.o_proj.bias": (10,), "mlp.gate_proj.bias": (12,), "mlp.down_proj.bias": (10,),
          "input_layernorm.weight": (10,), "self_attn.q_norm.weight": (4,)}
NAMES = {f"model.layers.0.{name}": shape for name, shape in SHAPES.items()} | {
    "model.embed_tokens.weight": (20, 10), "lm_head.weight": (20, 10), "model.norm.weight": (10,)}


def whole_numbers(rng, *shape):
    """From 1 to 9, in fp32."""
    return torch.from_numpy(rng.integers(1, 10, shape).astype(np.float32))


def one_collective(run, what, numbers, name, why):
    """AssertionError unless each rank calls one all-reduce, of these numbers."""
    for r in range(run.n):
        got = [(c.name, sum(c.pieces)) for c in run.collectives if c.rank == r]
        assert got == [("all_reduce", numbers)], mistake(
            name, f"{what}: rank {r} calls {words(got)}, expected one all_reduce of {numbers} "
            f"numbers: {why}", why)


def words(calls):
    return ", then ".join(f"{name} of {numbers} numbers" for name, numbers in calls) or "nothing"


def test_predict_all_reduces(subject):
    L = 4
    sums = ["embedding", *(f"layer {i}: {part}" for i in range(L) for part in ("o", "down"))]
    known = {L: ("one_a_layer", "attention and MLP are two pairs of matrices, and each ends in a "
                                "sum"),
             2 * L: ("no_embedding", "a token's row is on one rank: how do the others get it?"),
             7 * L: ("each_matrix", "each matrix of a layer is counted; what is cut by columns "
                                    "needs nothing"),
             4 * L: ("with_backward", "backward is counted too")}
    guess = subject.predict_all_reduces()
    name, why = known.get(guess, ("", "it is a whole number"))
    assert guess == len(sums), mistake(
        name, f"predict_all_reduces: {guess} in a forward of {L} layers is not right: {why}", why)


# ---- which rank has which weights


def kind_of(name):
    """What is cut of a weight: rows, heads, columns or nothing."""
    part = name.split(".")[-2]
    if part in ("k_proj", "v_proj"):
        return "heads"
    if part in ("o_proj", "down_proj"):
        return "columns" if name.endswith("weight") else "bias"
    return "rows" if part.endswith("_proj") or part in ("embed_tokens", "lm_head") else "norm"


def heads_of(r, n):
    """The kv heads that rank r's query heads read."""
    H, G = CONFIG["H"], CONFIG["G"]
    return sorted({h // (H // G) for h in range(r * H // n, (r + 1) * H // n)})


def part_of(name, w, r, n, heads=None):
    """Rank r's part of a weight, by the book."""
    kind = kind_of(name)
    if kind == "heads":
        return np.concatenate([np.split(w, CONFIG["G"])[g] for g in heads or heads_of(r, n)])
    if kind in ("rows", "columns"):
        return np.split(w, n, axis=int(kind == "columns"))[r]
    return w


def wrong_shape(name, got, want, r, n):
    """The message about a part of another shape."""
    kind = kind_of(name)
    sentences = {
        "rows": ("rows_whole", "rank r takes 1/n of the rows, which are its outputs"),
        "heads": ("kv_cut", f"{n} ranks, {CONFIG['G']} kv heads of {CONFIG['D']} rows: a head is "
                            f"never cut; with more ranks than heads, several have the same"),
        "columns": ("both_rows", "o and down come second: their inputs are cut, the columns"),
        "bias": ("bias_cut", "the bias of o and down is added to the sum, which is whole on every "
                             "rank"),
        "norm": ("norm_cut", "a norm looks at a whole token, and every rank has it")}
    id, why = sentences[kind]
    return mistake(id, f"shard of {name}, rank {r} of {n}: shape {tuple(got)}, expected "
                   f"{tuple(want)}: {why}", why)


def check_part(subject, agree, name, w, m, r, n):
    got = subject.shard(name, w, m, r, n)
    array = w.numpy()
    want = part_of(name, array, r, n)
    what = f"shard of {name}, rank {r} of {n}"
    shape = getattr(got, "shape", None)
    assert shape is None or shape == want.shape, wrong_shape(name, shape, want.shape, r, n)
    known = {"interleaved": (f"rank {r} takes rows {r}, {r + n}, {r + 2 * n} …: they are not of "
                             f"one head", array[r::n])} if kind_of(name) == "rows" and n > 1 else {}
    if kind_of(name) == "heads" and n > CONFIG["G"]:
        head = r % CONFIG["G"]
        known["wrong_head"] = (f"rank {r} gets kv head {head}: its query heads read head "
                               f"{heads_of(r, n)[0]}", part_of(name, array, r, n, [head]))
    agree(got, want, what=what, mistakes={
        id: row for id, row in known.items() if row[1].shape == want.shape})


@pytest.mark.parametrize("n", [2, 4, 1])
def test_shard(subject, rng, agree, n):
    m = subject.make("layer2_graph.config:Config", **CONFIG)
    for name, shape in NAMES.items():
        w = whole_numbers(rng, *shape)
        for r in range(n):
            check_part(subject, agree, name, w, m, r, n)


def test_shard__memory(subject, rng):
    m = subject.make("layer2_graph.config:Config", **CONFIG)
    for name in ("mlp.gate_proj.weight", "mlp.down_proj.weight", "self_attn.k_proj.weight"):
        w = whole_numbers(rng, *SHAPES[name])
        got = subject.make(f"{DRIVER}:kept_bytes", f"model.layers.0.{name}", w, m, 1, 2)
        want = 4 * w.numel() // 2
        why = "a view keeps the whole weight in memory: make a copy"
        assert got == want, mistake("view_kept", f"rank 1's half of {name}, {w.numel()} numbers, "
                                    f"keeps {got} bytes, expected {want}: {why}", why)


# ---- the meetings


def check_row_linear(subject, rng, agree, n, T, C, K, bias):
    x = whole_numbers(rng, T, n * K)
    w = whole_numbers(rng, C, n * K)
    b = whole_numbers(rng, C) if bias else None
    run = subject.ranks(f"{DRIVER}:sum_rows", [
        (one.clone(), own.clone(), b) for one, own in zip(x.chunk(n, 1), w.chunk(n, 1),
                                                          strict=True)])
    parts = [one.numpy() @ own.numpy().T for one, own in zip(x.chunk(n, 1), w.chunk(n, 1),
                                                             strict=True)]
    added = b.numpy() if bias else 0
    want = sum(parts) + added
    for r in range(n):
        agree(run.results[r], want, what=f"row_linear, {n} ranks, rank {r}", mistakes={
            "no_sum": ("a rank returns its own part of the sum", parts[r] + added),
            "bias_forgotten": ("the bias is not added", sum(parts)),
            "bias_each": ("every rank adds the bias before the sum, so it is in it "
                          f"{n} times", sum(parts) + n * added),
            "average": ("the sum is divided by the number of ranks", sum(parts) / n + added)}
            if bias else {})
    one_collective(run, f"row_linear, {n} ranks", T * C, "gathers",
                   "all ranks need the sum, and none the parts of the others")


@pytest.mark.parametrize("n, T, C, K, bias", [(2, 5, 7, 3, True), (3, 1, 4, 2, True),
                                              (4, 2, 9, 1, False)])
def test_row_linear(subject, rng, agree, n, T, C, K, bias):
    check_row_linear(subject, rng, agree, n, T, C, K, bias)


EDGES = [0, 3, 4, 7, 8, 11, 5, 0, 11]       # of shards of 4 rows, and of 6


def test_embed(subject, rng, agree):
    for case in ((3, 12, 5, EDGES), (2, 12, 3, EDGES), (4, 1000, 1, [999, 0, 250, 249, 750])):
        check_embed(subject, rng, agree, *case)


def check_embed(subject, rng, agree, n, V, C, tokens):
    table = whole_numbers(rng, V, C)
    parts = table.chunk(n)
    ids = torch.tensor(tokens)
    run = subject.ranks(f"{DRIVER}:find_rows", [(own.clone(), ids) for own in parts])
    rows = V // n
    t = table.numpy()
    first = [sum(t[p * rows + np.clip(token - p * rows, 0, rows - 1)] for p in range(n))
             for token in tokens]
    for r in range(n):
        own = [t[token] if token // rows == r else np.zeros(C) for token in tokens]
        agree(run.results[r], t[tokens], what=f"embed, {n} ranks, {V} tokens: x of rank {r}",
              at=lambda index: f"token {tokens[index[0]]}, number {index[1]}", mistakes={
            "no_sum": ("nothing is added: tokens of other ranks are zeros", own),
            "clamp_only": ("each rank adds its nearest row to tokens of other ranks: it must add "
                           "zeros", first),
            "modulo": ("each rank adds a row to every token: row token % (V / n)", [
                sum(t[p * rows + token % rows] for p in range(n)) for token in tokens]),
            "first_row": ("the first row of a rank's part is taken for a stranger's", [
                t[token] * (token % rows > 0) for token in tokens])})
    one_collective(run, f"embed, {n} ranks", len(tokens) * C, "gathers_table",
                   "the sum of one row and zeros is that row; the table stays where it is")


# ---- the model


PROMPTS = [[5, 7, 300], [9], [1000, 3, 4, 1500, 2, 8], [44, 2047]]


def test_embed__model(subject):
    """The same next tokens as one rank's, with biases, and heads that two ranks share."""
    n = 4
    run = subject.ranks(f"{DRIVER}:write_tokens", [("random", PROMPTS, 4)] * n)
    alone = subject.ranks(f"{DRIVER}:write_tokens", [("random", PROMPTS, 4)]).results[0]
    assert run.results == [alone] * n, (
        f"{n} ranks write {run.results}, one alone {alone}: row_linear and embed pass, is shard "
        f"right?")


# ---- training


def cross_entropy(logits, targets):
    """(losses, gradient of their sum), float64, by the book."""
    e = np.exp(logits - logits.max(-1, keepdims=True))
    softmax = e / e.sum(-1, keepdims=True)
    picked = np.eye(logits.shape[1])[targets]
    losses = -np.log(softmax[np.arange(len(targets)), targets])
    return losses, softmax - picked


def loss_mistakes(parts, targets, starts, r, want, high):
    """{id: (sentence, losses)} of rank r. high: rows whose logits exceed fp32's exp"""
    tops = [p.max(-1) for p in parts]
    sums = [np.exp(p - top[:, None]).sum(-1) for p, top in zip(parts, tops, strict=True)]
    places = [np.clip(targets - start, 0, p.shape[1] - 1)
              for p, start in zip(parts, starts, strict=True)]
    near = [p[np.arange(len(targets)), place] for p, place in zip(parts, places, strict=True)]
    inside = [(targets >= start) & (targets < start + p.shape[1])
              for p, start in zip(parts, starts, strict=True)]
    at = sum(np.where(mine, one, 0) for mine, one in zip(inside, near, strict=True))
    whole = want + at                       # the logarithm of the sum of all exponentials
    return {
        "local_max": ("each rank takes away the maximum of its own columns, and the sums are added "
                      "as if it were the same", np.log(sum(sums)) + tops[r] - at),
        "target_everywhere": ("each rank adds a logit for every target, also where another rank "
                              "has it", whole - sum(near)),
        "own_columns": ("a rank's loss is that of its own columns: nothing is added",
                        np.log(sums[r]) + tops[r] - np.where(inside[r], near[r], 0)),
        "no_max": ("no maximum is taken away, and exp(200) is more than fp32 can hold",
                   np.where(high, np.inf, want))}


@pytest.mark.parametrize("n, V, T", [(3, 1000, 7), (2, 9, 4)])
def test_vocabulary_loss(subject, rng, agree, n, V, T):
    logits = torch.from_numpy(5 * rng.standard_normal((T, V))).float()
    logits[T // 2] += 200
    targets = torch.from_numpy(rng.integers(0, V, T))
    parts = logits.tensor_split(n, 1)
    starts = np.cumsum([0, *(p.shape[1] for p in parts)])[:n].tolist()
    targets[:2] = torch.tensor([starts[1] - 1, starts[1]])          # both sides of an edge
    run = subject.ranks("vocabulary_loss", [
        (p.clone(), targets, start) for p, start in zip(parts, starts, strict=True)])
    losses, gradient = cross_entropy(logits.double().numpy(), targets.numpy())
    columns = np.split(gradient, starts[1:], axis=1)
    double = [p.double().numpy() for p in parts]
    for r in range(n):
        agree(run.results[r][0], losses, "float32", f"losses on rank {r} of {n}",
              mistakes=loss_mistakes(double, targets.numpy(), starts, r, losses,
                                     np.arange(T) == T // 2))
        places = np.clip(targets.numpy() - starts[r], 0, parts[r].shape[1] - 1)
        mine = (targets.numpy() >= starts[r]) & (
            targets.numpy() < starts[r] + parts[r].shape[1])
        softmax = columns[r] + np.eye(parts[r].shape[1])[places] * mine[:, None]
        agree(run.results[r][1], columns[r], "float32", f"gradient of the logits, rank {r} of {n}",
              mistakes={
            "softmax_alone": ("1 is not taken from the target's column", softmax),
            "one_everywhere": ("1 is taken from a column of each rank, also where another rank has "
                               "the target", softmax - np.eye(parts[r].shape[1])[places])})
    check_loss_counts(run, T)


def check_loss_counts(run, T):
    for r in range(run.n):
        got = [(c.name, sum(c.pieces)) for c in run.collectives if c.rank == r]
        why = "three numbers a token are enough: a maximum, a sum and the target's logit"
        assert {name for name, _ in got} == {"all_reduce"} and sum(
            count for _, count in got) <= 3 * T, mistake(
                "gathers_logits", f"vocabulary_loss of {T} tokens: rank {r} calls {words(got)}, "
                f"expected all_reduces of {3 * T} numbers in all: {why}", why)


def test_choose_summed_gradients(subject):
    norms = ["attention_norm", "mlp_norm"]
    why = {"none_of_them": "a norm is whole on every rank, and each rank's gradient is by its own "
                           "tokens alone",
           "bands": "a band sees all tokens, and belongs to one rank: its gradient is complete",
           "all_of_them": "two ranks' bands are not the same weight: their gradients have no sum"}
    guess = subject.choose_summed_gradients()
    assert isinstance(guess, (list, tuple)), mistake(
        "", f"choose_summed_gradients: got {guess!r}, expected a list of names")
    name = ("none_of_them" if not guess else "all_of_them" if {*norms, "q"} <= {*guess} else
            "bands")
    assert sorted(guess) == norms, mistake(
        name, f"choose_summed_gradients: {list(guess)} is not right: {why[name]}", why[name])


@pytest.mark.parametrize("n, T, C", [(3, 6, 5), (2, 2, 1)])
def test_GatherTokens_forward(subject, rng, agree, n, T, C):
    x = whole_numbers(rng, T, C)
    parts = x.numpy().reshape(n, T // n, C)
    run = subject.ranks(f"{DRIVER}:gather_tokens", [(own.clone(),) for own in x.chunk(n)])
    for r in range(n):
        shape = getattr(run.results[r], "shape", None)
        why = "tokens are the first axis, and every rank has whole ones"
        assert shape is None or shape == x.shape, mistake(
            "gather_axis", f"GatherTokens.forward, {n} ranks with {T // n} tokens of {C} numbers: "
            f"shape {tuple(shape)}, expected {tuple(x.shape)}: {why}", why)
        agree(run.results[r], x, what=f"GatherTokens.forward, {n} ranks, rank {r}", mistakes={
            "own_first": ("a rank puts its own tokens first", np.concatenate(
                [parts[(r + p) % n] for p in range(n)])),
            "own_copies": ("a rank repeats its own tokens", np.concatenate([parts[r]] * n))})
        got = [c.name for c in run.collectives if c.rank == r]
        why = "a sum sends twice as much as a gather, and there is nothing to add"
        assert got == ["all_gather"], mistake(
            "all_reduced", f"GatherTokens.forward: rank {r} calls {', '.join(got) or 'nothing'}, "
            f"expected one all_gather: {why}", why)


@pytest.mark.parametrize("n, T, C", [(3, 6, 5), (2, 2, 1)])
def test_GatherTokens_backward(subject, rng, agree, n, T, C):
    x = whole_numbers(rng, T, C)
    upstream = [whole_numbers(rng, T, C) for _ in range(n)]
    run = subject.ranks(f"{DRIVER}:gather_and_return", list(zip(x.chunk(n), upstream, strict=True)))
    rows = [one.numpy().reshape(n, T // n, C) for one in upstream]
    for r in range(n):
        total = sum(one[r] for one in rows)
        agree(run.results[r], total, what=f"the gradient of rank {r}'s tokens, {n} ranks",
              mistakes={
            "own_slice": ("a rank takes its slice of its own gradient: what the other ranks' bands "
                          "ask of its tokens is lost", rows[r][r]),
            "average": ("the sum is divided by the number of ranks", total / n),
            "first_tokens": ("every rank takes the sum of rank 0's tokens",
                             sum(one[0] for one in rows))})
    for r in range(n):
        got = [c.name for c in run.during("backward").collectives if c.rank == r]
        why = "no rank needs the sum of more than its own tokens"
        assert got == ["reduce_scatter"], mistake(
            "all_reduced", f"GatherTokens.backward: rank {r} calls {', '.join(got) or 'nothing'}, "
            f"expected one reduce_scatter: {why}", why)


def one_process(x, w, a, b, upstream):
    """(z, gradients of x, w, a, b) of the layer, float64, on one rank."""
    inputs = [one.double().requires_grad_() for one in (x, w, a, b)]
    x, w, a, b = inputs
    y = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w
    z = x + torch.tanh(y @ a.T) @ b.T
    return z.detach(), *torch.autograd.grad((z * upstream.double()).sum(), inputs)


@pytest.mark.parametrize("n", [2, 3])
def test_GatherTokens_backward__layer(subject, rng, agree, n):
    T, C, F = 6, 5, 12
    x, w, a, b, upstream = (torch.from_numpy(rng.standard_normal(shape)).float() for shape in (
        (T, C), (C,), (F, C), (C, F), (T, C)))
    run = subject.ranks(f"{DRIVER}:sequence_layer", list(zip(
        x.chunk(n), [w] * n, a.chunk(n), (one.contiguous() for one in b.chunk(n, 1)),
        upstream.chunk(n), strict=True)))
    z, *gradients = one_process(x, w, a, b, upstream)
    join = {"z": 0, "x": 0, "a": 0, "b": 1}
    for name, right in zip(("z", "x", "w", "a", "b"), (z, *gradients), strict=True):
        got = (torch.cat([own[name] for own in run.results], join[name]) if name in join else
               run.results[0][name])
        agree(got, right, "float32", f"a layer on {n} ranks: " + (
            "z" if name == "z" else f"the gradient of {name}"))
    names = sorted(c.name for c in run.during("layer").collectives if c.rank == 0)
    want = ["all_gather"] * 2 + ["reduce_scatter"] * 2
    assert names == want, f"a layer and its gradients: collectives {names}, expected {want}"
