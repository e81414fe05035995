"""Graders of r03.
The oracle lists a model's tensors one by one and lets each do its work.
Shapes are ragged, so that a formula for H = G, D = C / H or an untied lm_head does not pass."""

from collections import namedtuple
from fractions import Fraction
from math import prod
from numbers import Real

import numpy as np
import pytest

from lab.judge.mistakes import mistake, raises

Shape = namedtuple("Shape", "L C H G D F V tied")
LLAMA_8B = Shape(32, 4096, 32, 8, 128, 14336, 128256, False)
# Of the first sizes no two are alike, nor are two of their quotients: a factor that is left out
# shows which it was.
RAGGED = (Shape(13, 357, 21, 3, 11, 37, 101, False), Shape(2, 12, 3, 1, 4, 17, 29, True))
PARTS = ("embedding", "qkv", "out", "gate_up", "down", "norms", "lm_head")
OPERATIONS = ("qkv", "attention", "out", "gate_up", "down", "lm_head")
# (B, T, N): a part of a prompt, a whole prompt, one token each, the smallest step there is
STEPS = ((5, 9, 23), (2, 5, 5), (4, 1, 17), (1, 1, 1))


def tensors(m):
    """(part, shape) of every tensor that a checkpoint of this Llama holds."""
    yield "embedding", (m.V, m.C)
    for _ in range(m.L):
        yield "norms", (m.C,)
        yield "qkv", (m.H * m.D, m.C)
        yield "qkv", (m.G * m.D, m.C)
        yield "qkv", (m.G * m.D, m.C)
        yield "out", (m.C, m.H * m.D)
        yield "norms", (m.C,)
        yield "gate_up", (m.F, m.C)
        yield "gate_up", (m.F, m.C)
        yield "down", (m.C, m.F)
    yield "norms", (m.C,)
    if not m.tied:
        yield "lm_head", (m.V, m.C)


def parameters(m):
    total = dict.fromkeys(PARTS, 0)
    for part, shape in tensors(m):
        total[part] += prod(shape)
    return total


def matrices(m):
    """(operation, shape) of every matrix that multiplies in a step; a tied one does so too."""
    yield from ((part, shape) for part, shape in tensors(m) if part in OPERATIONS)
    if m.tied:
        yield "lm_head", (m.V, m.C)


def visible(T, N):
    """Pairs that the causal mask leaves, counted in the mask."""
    return int((np.arange(N - T, N)[:, None] >= np.arange(N)).sum())


def flops(m, B, T, N):
    total = dict.fromkeys(OPERATIONS, 0)
    for operation, shape in matrices(m):
        total[operation] += 2 * (B if operation == "lm_head" else B * T) * prod(shape)
    total["attention"] = m.L * B * m.H * visible(T, N) * 2 * (2 * m.D)
    return total


def numbers_of_a_token(m):
    """{operation: numbers in and out}, from the shapes of the arrays of one token in one layer."""
    width, queries, keys, hidden = (m.C,), (m.H, m.D), (m.G, m.D), (m.F,)
    arrays = {"qkv": [width, queries, keys, keys], "attention": [queries, queries],
              "out": [queries, width], "gate_up": [width, hidden, hidden], "down": [hidden, width],
              "lm_head": [width, (m.V,)]}
    return {operation: sum(map(prod, shapes)) for operation, shapes in arrays.items()}


def moved(m, B, T, N, itemsize):
    """(6, 3) bytes: weights, activations, cache of each operation."""
    weights, numbers = dict.fromkeys(OPERATIONS, 0), numbers_of_a_token(m)
    for operation, shape in matrices(m):
        weights[operation] += prod(shape)
    cache = prod((m.L, B, N, 2, m.G, m.D))
    return itemsize * np.array([
        (weights[o], numbers[o] * (B if o == "lm_head" else m.L * B * T),
         cache if o == "attention" else 0) for o in OPERATIONS])


def shapes(rng):
    """The ragged shapes and one that no one has seen."""
    L, C, G, D, F, V, group = (int(rng.integers(2, 40)) for _ in range(7))
    return (*RAGGED, Shape(L, C, G * group, G, D, F, V, False))


def sizes(m):
    return "a Llama of " + " ".join(f"{k}={v}" for k, v in m._asdict().items())


def row(got, keys, what):
    """The values of a dict in the order of `keys`, which must be exactly its keys."""
    names = " ".join(keys)
    assert isinstance(got, dict), mistake(
        "no_dict", f"{what}: got {got!r}, expected a dict with the keys {names}")
    missing = [key for key in keys if key not in got]
    extra = [key for key in got if key not in keys]
    assert not missing, mistake(
        "key_missing", f'{what}: the key "{missing[0]}" is missing; expected {names}')
    assert not extra, mistake(
        "key_extra", f'{what}: there is a key "{extra[0]}" too many; expected {names}')
    return [got[key] for key in keys]


def sizes_assumed(want, itemsize):
    """{id: (sentence, bytes)} of answers that take numbers of another size than they are told. 16
    bytes tell: of fewer, a wrong size looks like a number that is left out."""
    return {f"always_{size}_bytes": (f"a number is given {size} bytes whatever `itemsize` is",
                                     want // itemsize * size)
            for size in (2, 4) if itemsize == 16}


def byte_kind(index):
    return f"{('weights', 'activations', 'cache')[index[1]]} of {OPERATIONS[index[0]]}"


def sides_added(m, times):
    """What comes of matrices whose sides are added; `times` of each layer's."""
    sides = {"qkv": m.C + (m.H + 2 * m.G) * m.D, "out": m.H * m.D + m.C,
             "gate_up": m.C + 2 * m.F, "down": m.F + m.C}
    return "the sides of a matrix are added, not multiplied", {
        name: times * m.L * side for name, side in sides.items()}


def with_changes(want, mistakes):
    """{id: (sentence, values)} from {id: (sentence, {key: other value})}."""
    return {name: (sentence, list({**want, **changes}.values()))
            for name, (sentence, changes) in mistakes.items()}


def judge_guess(name, got, cases, right, unit=""):
    """name: of the prediction    got: what it returned, in the unit
    cases: [(whether a guess is so, id, sentence)]; the first that is so names the mistake"""
    assert isinstance(got, Real), mistake("no_number", f"{name}: expected a number, got {got!r}")
    label, why = next((label, why) for applies, label, why in cases if applies(got))
    assert right(got), mistake(label, f"{name}: predicted {got:g}{unit}; {why}", why)


# ---- parameters


def test_count_parameters(subject, agree, rng):
    earlier = parameters(RAGGED[0])
    for m in (*shapes(rng), LLAMA_8B):
        want = parameters(m)
        answer = subject.count_parameters(subject.LlamaShape("", *m))
        assert not (m.tied and isinstance(answer, dict)) or "lm_head" in answer, mistake(
            "no_tied_key", 'count_parameters: the key "lm_head" is missing for a tied model; '
                           'expected 0 there')
        got = row(answer, PARTS, "count_parameters")
        agree(got, list(want.values()), what=f"parameters of {sizes(m)}",
              at=lambda i: PARTS[i[0]], mistakes=with_changes(want, {
                  "earlier_call": ("results of an earlier call are kept",
                                   earlier | {"lm_head": want["lm_head"]}),
                  **parameters_wrong(m, want)}))
        earlier = want


def parameters_wrong(m, want):
    """{id: (sentence, {part: its parameters})}"""
    columns, width, keys = m.L * m.C, m.H * m.D, 2 * m.G * m.D
    return {
        "h_keys": ("keys and values are given H heads; they have G", {"qkv": columns * 3 * width}),
        "square_out": ("`out` is counted as C × C; it turns H · D numbers into C",
                       {"out": columns * m.C}),
        "c_by_h": ("the head width is computed as C / H; use m.D",
                   {"qkv": columns * (m.H + 2 * m.G) * (m.C // m.H), "out": columns * m.C}),
        "c_by_h_in_qkv": ("the head width is computed as C / H in `qkv`; use m.D",
                          {"qkv": columns * (m.H + 2 * m.G) * (m.C // m.H)}),
        "c_queries": ("the queries are counted as C numbers; they are H · D",
                      {"qkv": columns * (m.C + keys)}),
        "c_qkv": ("queries, keys and values are counted as C numbers each",
                  {"qkv": columns * 3 * m.C}),
        "queries_alone": ("queries are counted, but neither keys nor values",
                          {"qkv": columns * width}),
        "one_key_head": ("all heads share one key and one value head, as if G were 1",
                         {"qkv": columns * (m.H + 2) * m.D}),
        "f_is_4c": ("F is computed as 4 · C; use m.F",
                    {"gate_up": 2 * columns * 4 * m.C, "down": 4 * columns * m.C}),
        "norm_hd": ("a norm is counted as H · D numbers; it has C",
                    {"norms": (2 * m.L + 1) * width}),
        "norm_d": ("a norm is counted as D numbers; it has C", {"norms": (2 * m.L + 1) * m.D}),
        "norm_shift": ("a norm is given a scale and a shift for each channel; here it has a scale "
                       "alone", {"norms": 2 * want["norms"]}),
        "norm_one": ("a norm is counted as one number; it has one for each channel",
                     {"norms": 2 * m.L + 1}),
        "norm_brackets": ("brackets are missing: 2 · L + C is not (2 · L + 1) · C",
                          {"norms": 2 * m.L + m.C}),
        "norms_of_a_layer": ("the norms of one layer are counted, not those of all",
                             {"norms": 3 * m.C}),
        "sides_added": sides_added(m, 1),
        "tied_reversed": ("`tied` is read the wrong way round, or no model is given a matrix for "
                          "lm_head", {} if m.tied else {"lm_head": 0}),
        "tied_as_head": ("the tied matrix is counted as lm_head and not as embedding",
                         {"embedding": 0, "lm_head": m.C * m.V} if m.tied else {}),
        "embedding_a_layer": ("the embedding is counted once per layer",
                              {"embedding": columns * m.V}),
        "up_alone": ("only `up` is counted; `gate_up` has the gate as well",
                     {"gate_up": columns * m.F}),
        "tied_counted": ("the lm_head of a tied model is counted; it uses the embedding's matrix",
                         {"lm_head": m.C * m.V}),
        "no_last_norm": ("the last norm, after the layers, is forgotten", {"norms": 2 * columns}),
        "one_norm": ("each layer is given one norm instead of two", {"norms": (m.L + 1) * m.C}),
        "one_layer": ("one layer is counted instead of all",
                      {p: want[p] // m.L for p in ("qkv", "out", "gate_up", "down")}),
        "keys_alone": ("keys are counted and values are not",
                       {"qkv": columns * (width + m.G * m.D)})}


def test_predict_mlp_share(subject):
    parts = parameters(LLAMA_8B)
    want = (parts["gate_up"] + parts["down"]) / sum(parts.values())
    judge_guess("predict_mlp_share", subject.predict_mlp_share(), (
        (lambda got: got > 1, "percent", "a share is at most 1; 25 % is written 0.25"),
        (lambda got: got < want, "low",
         "too low: the MLP has three matrices, and F is much larger than C"),
        (lambda got: True, "high", "too high: attention and vocabulary have parameters too")),
        lambda got: abs(got - want) < 0.05)


# ---- one step


@pytest.mark.parametrize("B, T, N", STEPS)
def test_count_flops(subject, agree, rng, B, T, N):
    for m in (*shapes(rng), LLAMA_8B):
        want = flops(m, B, T, N)
        got = row(subject.count_flops(subject.LlamaShape("", *m), B, T, N), OPERATIONS,
                  "count_flops")
        agree(got, list(want.values()), what=f"FLOPs of a step of B={B} T={T} N={N} by {sizes(m)}",
              at=lambda i: OPERATIONS[i[0]],
              mistakes=with_changes(want, flops_wrong(m, B, T, N, want)))


def flops_wrong(m, B, T, N, want):
    """{id: (sentence, {operation: its FLOPs})}"""
    attention, head, pairs = want["attention"], want["lm_head"], visible(T, N)
    one = attention // pairs
    matrices = {name: n for name, n in want.items() if name not in ("attention", "lm_head")}
    in_attention = {
        "no_mask": ("pairs hidden by the causal mask are counted", one * T * N),
        "new_alone": ("the new tokens are compared with each other, but not with the context "
                      "before them", one * visible(T, T)),
        "g_heads": ("attention is counted for the G heads of the keys; it has the H of the queries",
                    attention // m.H * m.G),
        "half_attention": ("attention is half counted: scores, but not their product with the "
                           "values, or multiplications without their additions", attention // 2),
        "quarter_attention": ("only the D multiplications of a score are counted; its additions "
                              "and the product with the values are left out", attention // 4),
        "c_attention": ("attention is counted on C numbers per token; its heads have H · D",
                        attention // (m.H * m.D) * m.C),
        "one_head": ("attention is counted for one head instead of H", attention // m.H),
        "attention_of_a_sequence": ("attention is counted for one sequence, not for B",
                                    attention // B),
        "no_diagonal": ("a token is not compared with itself: the pairs on the diagonal are left "
                        "out", one * (pairs - T)),
        "half_pairs": ("half of the T · N pairs are counted, as if no context stood before the new "
                       "tokens", one * (T * N // 2)),
        "all_new": ("all N tokens are counted as new in attention", one * visible(N, N)),
        "context_and_new": ("the new tokens are added to the context in attention: N includes them",
                            one * visible(T, N + T)),
        "one_pair": ("a new token is compared with one token, not with all of its context",
                     one * T),
        "one_new_token": ("one new token is counted in attention, not T", one * N)}
    in_matrices = {
        "matrices_one_token": ("the matrices run on one new token of each sequence, not on T",
                               1, T),
        "matrices_one_sequence": ("the matrices run on the T tokens of one sequence, not on B · T",
                                  1, B),
        "matrices_all_tokens": ("the matrices run on all N tokens of the context, not on the T new "
                                "ones", N, T),
        "matrices_one_layer": ("the matrices of one layer are counted, not those of L", 1, m.L)}
    in_head = {
        "head_one_sequence": ("lm_head runs for one sequence, not for B", head // B),
        "head_a_layer": ("the lm_head is counted once per layer", head * m.L),
        "head_no_additions": ("lm_head's additions are not counted", head // 2),
        "head_all_tokens": ("lm_head runs on all new tokens, not on the last of each sequence",
                            head * T),
        "tied_idle": ("a tied lm_head is counted as 0 FLOPs; it has no parameters of its own, but "
                      "it multiplies all the same", 0)}
    return {
        "no_additions": ("the matrices' additions are not counted, only their multiplications",
                         {o: n // 2 for o, n in want.items() if o != "attention"}),
        **{name: (words, {"attention": n}) for name, (words, n) in in_attention.items()},
        "multiplications_alone": ("no additions are counted, only multiplications",
                                  {o: n // 2 for o, n in want.items()}),
        **{name: (words, {o: n // under * over for o, n in matrices.items()})
           for name, (words, over, under) in in_matrices.items()},
        "sides_added": sides_added(m, 2 * B * T),
        **{name: (words, {"lm_head": n}) for name, (words, n) in in_head.items()},
        "attention_one_layer": ("attention is counted in one layer only",
                                {"attention": attention // m.L}),
        "one_long_sequence": ("the B sequences are treated as one long sequence",
                              {"attention": one // B * visible(B * T, B * N)}),
        "one_sequence": ("one sequence is counted instead of all B",
                         {o: n // B for o, n in want.items()})}


def test_kv_bytes_per_token(subject, agree, rng):
    for m in (*shapes(rng), LLAMA_8B):
        for itemsize in (16, 4, 2, 1):      # with 16 first: 2 for 4 looks like keys alone
            want = itemsize * prod((m.L, 2, m.G, m.D))
            agree(subject.kv_bytes_per_token(subject.LlamaShape("", *m), itemsize), want,
                  what=f"KV bytes a token, {itemsize} bytes a number, of {sizes(m)}", mistakes={
                "no_values": ("keys are kept and values are not", want // 2),
                "h_keys": ("a key is kept for each of the H query heads; the keys have G",
                           want // m.G * m.H),
                "one_layer": ("the cache of one layer is counted", want // m.L),
                "numbers": ("numbers are counted instead of bytes", want // itemsize),
                "c_by_h": ("the head width is computed as C / H; use m.D",
                           want // m.D * (m.C // m.H)),
                "c_keys": ("a key is counted as C numbers; its heads have G · D",
                           want // (m.G * m.D) * m.C),
                "one_key_head": ("one key head is counted, not G", want // m.G),
                "heads_alone": ("the heads are counted, and not the D numbers of each",
                                want // m.D),
                "queries_too": ("queries are kept too", want // (2 * m.G) * (m.H + 2 * m.G)),
                "bits": ("bits are counted, not bytes", 8 * want)}
                | sizes_assumed(want, itemsize) | ({} if itemsize > 1 else {
                    "at_least_2_bytes": ("a number is given 2 bytes or more; an 8-bit cache has 1",
                                         2 * want)}))


@pytest.mark.parametrize("B, T, N", STEPS)
def test_count_bytes(subject, agree, rng, B, T, N):
    for m, itemsize in zip((*shapes(rng), LLAMA_8B), (16, 4, 1, 2), strict=True):
        want = moved(m, B, T, N, itemsize)
        got = subject.count_bytes(subject.LlamaShape("", *m), B, T, N, itemsize)
        rows = row(got, OPERATIONS, "count_bytes")
        for name, kinds in zip(OPERATIONS, rows, strict=True):
            assert isinstance(kinds, (tuple, list)) and len(kinds) == 3, mistake("no_three", (
                f"count_bytes: got {kinds!r} for {name}, expected (weights, activations, cache)"))
        agree(rows, want, at=byte_kind, what=f"bytes of a step of B={B} T={T} N={N}, {itemsize} a "
              f"number, by {sizes(m)}", mistakes=moved_wrong(m, B, T, N, itemsize, want))


def moved_wrong(m, B, T, N, itemsize, want):
    """{id: (sentence, bytes)}"""
    def but(place, values):
        other = want.copy()
        other[place] = values
        return other

    tokens = m.L * B * T * itemsize
    mix, head = OPERATIONS.index("attention"), OPERATIONS.index("lm_head")
    weights, activations, cache = want.T
    of_head, context = activations[head], cache[mix]
    layers = np.array([m.L] * head + [1])
    each = np.array([tokens] * head + [B * itemsize])
    reads, writes = each * [m.C, m.H * m.D, m.H * m.D, m.C, m.F, m.C], each * [
        (m.H + 2 * m.G) * m.D, m.H * m.D, m.C, 2 * m.F, m.C, m.V]
    matrix = [o not in ("attention", "lm_head") for o in OPERATIONS]
    in_weights = {
        "weights_per_sequence": ("the weights are counted once per sequence; they are read once "
                                 "per step", weights * B),
        "weights_per_token": ("the weights are counted once per new token; they are read once per "
                              "step", weights * np.array([B * T] * head + [B])),
        "tied_not_read": ("the weights of a tied lm_head are counted as 0 bytes; they must be read "
                          "all the same", [*weights[:head], 0]),
        "weights_one_layer": ("the weights of one layer are counted, not those of L",
                              weights // layers),
        "head_a_layer": ("the lm_head is counted once per layer",
                         [*weights[:head], weights[head] * m.L])}
    in_cache = {
        "cache_of_a_sequence": ("the cache of one sequence is counted, not that of all B",
                                context // B),
        "newest_missing": ("the newest token is left out of the cache; N includes it",
                           context // N * (N - 1)),
        "cache_new_alone": ("only the new tokens are read from the cache", context // N * T),
        "cache_per_pair": ("each pair of a new token and one that it sees reads the cache again; "
                           "it is read once per step", context // N * visible(T, N)),
        "cache_per_token": ("each new token reads the whole cache again; it is read once per step",
                            context * T),
        "context_and_new": ("the new tokens are added to the context: N includes them",
                            context // N * (N + T)),
        "h_keys": ("the cache is given a key for each of the H query heads; the keys have G",
                   context // m.G * m.H),
        "no_values": ("the cache is given keys and no values", context // 2),
        "cache_one_layer": ("the cache of one layer is read, not that of L", context // m.L)}
    in_attention = {
        "c_attention": ("attention is counted as reading and writing C numbers per token; it has H "
                        "· D", 2 * m.C),
        "half_attention": ("attention's output is not counted among its activations, or its "
                           "queries are not", m.H * m.D),
        "g_activations": ("attention's activations are those of G heads; queries have H",
                          2 * m.G * m.D),
        "new_keys_twice": ("the new keys and values are counted as activations of attention, and "
                           "again in its cache", 2 * (m.H + m.G) * m.D),
        "no_attention": ("attention is given no activations", 0)}
    in_activations = {
        "head_all_tokens": ("lm_head runs on all new tokens; it needs only the last of each "
                            "sequence", [*activations[:head], of_head * T]),
        "activations_one_layer": ("activations of one layer are counted", activations // layers),
        "activations_one_token": ("activations are counted for one token per sequence; there are T",
                                  [*activations[:head] // T, of_head]),
        "inputs_alone": ("the numbers that an operation reads are counted, and not those that it "
                         "writes", reads),
        "outputs_alone": ("the numbers that an operation writes are counted, and not those that it "
                          "reads", writes),
        "matrix_inputs_alone": ("the numbers that a layer's matrices read are counted, and not "
                                "those that they write", np.where(matrix, reads, activations)),
        "matrix_outputs_alone": ("the numbers that a layer's matrices write are counted, and not "
                                 "those that they read", np.where(matrix, writes, activations)),
        "activations_one_sequence": ("the activations of one sequence are counted, not those of B",
                                     activations // B),
        "activations_all_tokens": ("the activations of all N tokens of the context are counted, "
                                   "not those of the T new ones",
                                   [*activations[:head] // T * N, of_head]),
        "head_activations_a_layer": ("lm_head's activations are counted once per layer",
                                     [*activations[:head], of_head * m.L]),
        "head_activations_one_sequence": ("lm_head's activations are those of one sequence, not of "
                                          "B", [*activations[:head], of_head // B]),
        "head_outputs_alone": ("the C numbers that lm_head reads are left out; only the V that it "
                               "writes are counted", [*activations[:head], writes[head]])}
    places = (np.s_[:, 0], in_weights), ((mix, 2), in_cache), (np.s_[:, 1], in_activations)
    return {
        **{name: (words, but(place, values)) for place, mistakes in places
           for name, (words, values) in mistakes.items()},
        **{name: (words, but((mix, 1), tokens * n)) for name, (words, n) in in_attention.items()},
        "numbers": ("numbers are counted, not the bytes that they take", want // itemsize),
        "cache_as_activations": ("the cache's bytes stand among the activations",
                                 but(np.s_[:, 1], activations + cache) * [1, 1, 0]),
        **sizes_assumed(want, itemsize)}


def test_predict_decode_intensity(subject):
    step = LLAMA_8B, 1, 1, 2048
    want = sum(flops(*step).values()) / moved(*step, 2).sum()
    judge_guess("predict_decode_intensity", subject.predict_decode_intensity(), (
        (lambda got: 0.4 < got / want < 0.6, "half",
         "half the right value: a weight does a multiplication and an addition"),
        (lambda got: 1.7 < got / want < 2.3, "twice",
         "twice the right value: a 16-bit weight has two bytes"),
        (lambda got: got < want, "low", "too low: a weight does two FLOPs and has two bytes"),
        (lambda got: True, "high", "too high: each weight is used for one token only")),
        lambda got: abs(got / want - 1) < 0.15, " FLOP/byte")


# ---- the batch


def smallest(flops, weights, each, peak, bandwidth):
    """The smallest compute-bound batch, by trying; None where a batch of 2⁶⁰ is not enough."""
    def bound(B):
        arithmetic, bytes_ = Fraction(B * flops), Fraction(weights + B * each)
        return arithmetic / Fraction(peak) >= bytes_ / Fraction(bandwidth)

    low, high = 0, 1                # bound(low) is false; bound(high) is true in the end
    while not bound(high):
        low, high = high, 2 * high
        if high > 2**60:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) else (middle, high)
    return high


def costs(m, N, itemsize):
    """(FLOPs a sequence, bytes once a step, bytes a sequence) of a decode step."""
    one = moved(m, 1, 1, N, itemsize).sum(0)
    return sum(flops(m, 1, 1, N).values()), int(one[0]), int(one[1] + one[2])


H100, A100, TOY = (989e12, 3.35e12), (312e12, 1.555e12), (8.0, 1.0)


@pytest.mark.parametrize("cost, chip", [
    (costs(LLAMA_8B, 128, 2), H100), (costs(LLAMA_8B, 300, 1), H100), (costs(LLAMA_8B, 1, 2), A100),
    (costs(LLAMA_8B, 512, 2), A100), (costs(LLAMA_8B, 8192, 2), H100), ((24, 10, 1), TOY),
    ((9, 1000, 1), TOY), ((8, 10, 1), TOY), ((80, 1, 1), TOY), ((16, 8, 0), TOY)])
def test_decode_batch(subject, cost, chip):
    (work, weights, each), (peak, bandwidth) = cost, chip
    want = smallest(*cost, *chip)
    with raises("no_gain", ZeroDivisionError, "One more sequence may add as much time in bytes as "
                "in arithmetic: then no batch is enough, so None"):
        got = subject.decode_batch(*cost, *chip)
    case = (f"decode_batch for {work:,} FLOPs and {each:,} bytes a sequence, {weights:,} bytes of "
            f"weights, {peak:.4g} FLOP/s, {bandwidth:.4g} byte/s")
    more = (f"one more sequence adds {work / peak:.3g} s of arithmetic and "
            f"{each / bandwidth:.3g} s of bytes")
    if want is None:
        assert got is None, mistake("never", f"{case}: got {got!r}, but no batch is enough, so "
                                             f"None: {more}", "no batch is enough, so None")
        return
    name, late = ("search_ends", f": a search that ends before {want:,} finds nothing") \
        if want > 1000 else ("none", "")
    assert got is not None, mistake(
        name, f"{case}: got None, expected {want}: {more}, so the arithmetic does catch up{late}",
        f"the arithmetic does catch up{late}")
    assert isinstance(got, Real), mistake(
        "no_number", f"{case}: got {got!r}, expected a batch or None")
    name, sentence = wrong_batch(got, want, *cost, *chip)
    assert got == want, mistake(name, f"{case}: got {got}, expected {want}; {sentence}", sentence)


def wrong_batch(got, want, flops, weights, each, peak, bandwidth):
    """(id, sentence) of a wrong batch."""
    work = flops / peak                 # seconds of one sequence's arithmetic, and of its bytes
    load = each / bandwidth
    first = weights / bandwidth
    rules = {
        "rounded_down": (got == want - 1, f"a batch of {got} is still memory-bound: round up"),
        "ridge_left_out": (got == want + 1, f"a batch of {want} is exactly on the ridge, which "
                                            f"counts as compute-bound"),
        "no_whole_number": (got != int(got), "a batch has a whole number of sequences: round up"),
        "weights_no_time": (abs(got * (work - load) - weights) <= work,
                            "you get this if the bytes of the weights are not divided by the "
                            "bandwidth"),
        "each_left_out": (abs(got * work - first) <= work,
                          "you get this if you leave out the bytes that each sequence adds"),
        "each_added": (abs(got * (work + load) - first) <= work,
                       "you get this if the time of the bytes that a sequence adds is added to the "
                       "time of its arithmetic, not subtracted from it"),
        "each_once": (abs(got * work - first - load) <= work,
                      "you get this if the bytes of one sequence are counted, not those of the "
                      "batch"),
        "peak_for_bandwidth": (abs(got * flops / bandwidth - weights / peak) <= flops / bandwidth,
                               "you get this if peak and bandwidth are swapped"),
        "no_times": (abs(got * flops - weights) <= flops,
                     "you get this if FLOPs and bytes are compared as they are, not their times"),
        "one": (got == 1, "the weights, which are read once per step, take more time than one "
                          "sequence computes"),
        "ridge": (abs(got - peak / bandwidth) <= 1,
                  "that is the ridge in FLOP/byte, not a batch. How many FLOPs does one byte of "
                  "weights do for one sequence?")}
    return next(((name, sentence) for name, (holds, sentence) in rules.items() if holds),
                ("other", f"{want} is the first batch whose arithmetic takes as long as its bytes"))


def test_decode_batch__unseen(unseen, rng):
    for _ in range(8):
        unseen("decode_batch", *(float(n) for n in rng.integers(1, 10**10, 3)),
               float(rng.uniform(1, 1000)) * 1e12, float(rng.uniform(1, 8)) * 1e12)


# ---- convolutions


def convolution(B, height, width, inputs, outputs, side, groups, itemsize):
    """(FLOPs, bytes) from the shapes of the three arrays."""
    image, result = (B, inputs, height, width), (B, outputs, height, width)
    filters = (outputs, inputs // groups, side, side)
    flops = 2 * prod(filters) * B * height * width
    return flops, itemsize * sum(map(prod, (image, filters, result)))


def test_predict_gain_of_depthwise(subject):
    counts = [convolution(32, 56, 56, 256, 256, 3, groups, 2) for groups in (1, 256)]
    (full, many), (depthwise, few) = counts
    slow, fast = (max(work / 312e12, load / 1.5e12) for work, load in counts)
    want = slow / fast
    judge_guess("predict_gain_of_depthwise", subject.predict_gain_of_depthwise(), (
        (lambda got: abs(got - full / depthwise) < 0.1 * got, "flops_ratio",
         "that is the ratio of the FLOPs; bytes cost time too"),
        (lambda got: abs(got - many / few) < 0.05, "bytes_ratio",
         "that is the ratio of the bytes; the full one is bound by its arithmetic"),
        (lambda got: got < want, "low", "too low: compute the time of each under its own roof"),
        (lambda got: True, "high", "too high: the depthwise one's bytes take longer")),
        lambda got: abs(got / want - 1) < 0.1, " times as fast")


# ---- the oracles


@pytest.mark.parametrize("m", RAGGED)
def test_torch_agrees(subject, m):
    """A decode step written in torch: its parameters, and the FLOPs that torch's counter saw."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    B, N = 3, 9
    weights = [(part, torch.zeros(shape)) for part, shape in tensors(m)]
    assert sum(w.numel() for _, w in weights) == sum(
        subject.count_parameters(subject.LlamaShape("", *m)).values())
    x, q = torch.zeros(B, m.C), torch.zeros(B, m.H, 1, m.D)
    k = torch.zeros(B, m.G, N, m.D).repeat_interleave(m.H // m.G, 1)        # (B, H, N, D)
    with FlopCounterMode(display=False) as counter:
        for part, w in weights:
            if part in OPERATIONS and part != "lm_head":
                torch.zeros(B, w.shape[1]) @ w.T
        for _ in range(m.L):
            (q @ k.transpose(2, 3)) @ k
        x @ weights[0][1].T                                                 # lm_head, tied or not
    got = subject.count_flops(subject.LlamaShape("", *m), B, 1, N)
    assert sum(got.values()) == counter.get_total_flops()
