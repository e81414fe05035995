"""Graders of g08. Codes are compared with oracles in float64 that compare with every level."""

import json
import math

import numpy as np
import pytest
import torch

from day02_overview import NANO
from lab import simulator
from lab.compare import brief
from lab.course import ROOT
from layer1_kernels import kernels
from layer2_graph import (
    LEVELS,
    Config,
    Llama,
    PagedCache,
    QuantizedCache,
    Tokenizer,
    by_channel,
    by_token,
    channel_maxima,
    dynamic,
    generate_on,
    int_levels,
    is_matrix,
    load,
    outlier_columns,
    perplexity,
    quantize_tokens,
    read_quantized,
    scaled_matmul,
    smooth,
    smoothed,
    split,
    split_matmul,
    static,
    with_kv,
    with_outliers,
    write_quantized,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.small.corpus import BEGIN, stories

SMALL = ROOT / "layer2_graph" / "small"


@pytest.fixture(scope="module")
def small():
    return load(SMALL, dtype=torch.float32)


def tiny(**entries):
    torch.manual_seed(0)
    m = Config(**{"L": 2, "C": 32, "H": 4, "G": 2, "D": 16, "F": 48, "V": 31, "eps": 1e-5,
                  "theta": 1e4, "room": 64} | entries)
    return Llama(m, {name: torch.randn(shape) / 4 for name, shape in shapes(m)}, kernels("torch"))


def logits(model, prompts, cache=None):
    cache = cache or PagedCache(model.config, len(prompts), 32)
    return model.forward(cache.step(prompts), cache, every=True)


def book(x, levels):
    """Codes of numbers that no tie is among: of the level that is nearest."""
    away = np.abs(np.abs(x)[..., None] - np.array(levels))
    return (away.argmin(-1) * np.sign(x)).astype(int)


def coded(x, levels):
    """(what the codes stand for, the scales), a scale for each row: float64."""
    scales = np.abs(x).max(-1, keepdims=True) / levels[-1]
    codes = book(x / np.where(scales > 0, scales, 1), levels)
    return np.array(levels)[np.abs(codes)] * np.sign(codes), scales


def product(x, w, levels):
    """Rows of both rounded, then multiplied."""
    (a, p), (b, q) = coded(x, levels), coded(w, levels)
    return a @ b.T * p * q.T


# ---- predict_kv_bytes


def test_predict_kv_bytes(subject, truth, small):
    """Counted: the bytes of a cache's four arrays, by its slots."""
    m, got = small.config, subject.predict_kv_bytes()
    want = truth(lambda: QuantizedCache(m, 1, 64, LEVELS["int8"], LEVELS["int8"]).nbytes / 64)
    wrong = {2 * m.L * m.G * m.D: "The scales are forgotten.",
             2 * m.L * m.G * (m.D + 4): "The scales are fp16: 2 bytes each.",
             m.L * m.G * (m.D + 2): "So much the keys take; values take as much.",
             2 * m.G * (m.D + 2): "That is one layer's.",
             2 * m.L * m.H * (m.D + 2): "So it were if every query head had its own keys.",
             2 * m.L * (m.G * m.D + 2): "Each head's key has a scale of its own.",
             4 * m.L * m.G * m.D: "That is what fp16 takes."}
    assert isinstance(got, (int, float)), f"predict_kv_bytes: {got!r} is no number"
    assert got == want, (f"predict_kv_bytes: predicted {got:g}, counted {want:g} bytes a token in "
                         f"the arrays of a cache. {wrong.get(got, '')}")


# ---- quantize_tokens


@pytest.mark.parametrize("name", ["int8", "fp8", "int4"])
def test_quantize_tokens(subject, agree, rng, name):
    levels, (T, K) = LEVELS[name], (5, 33)
    x = (rng.standard_normal((T, K)) * 10.0 ** np.arange(-2, 3)[:, None]).astype(np.float32)
    x[1, 7] = -3 * np.abs(x[1]).max()                   # the largest |x| is a negative number
    x[2] = 0
    what = f"quantize_tokens, {name}"
    got = subject.quantize_tokens(torch.from_numpy(x), levels)
    assert isinstance(got, (tuple, list)) and len(got) == 2, \
        f"{what}: expected codes and scales, got {type(got).__name__}"
    codes, scales = got
    x = x.astype(np.float64)
    largest = np.abs(x).max(-1, keepdims=True)
    want = largest / levels[-1]
    agree(scales, want, "float32", f"{what}, scales", lambda i: f"token {i[0]}", {
        "one scale serves all tokens": np.full((T, 1), largest.max() / levels[-1]),
        "the largest x is taken, not the largest |x|": x.max(-1, keepdims=True) / levels[-1],
        "the largest |x| is not divided by the last level": largest,
        "the largest |x| is divided by the number of levels": largest / len(levels)})
    own = book(x / np.where(want > 0, want, 1), levels)
    agree(codes, own, what=f"{what}, codes", at=lambda i: f"token {i[0]}, channel {i[1]}",
          mistakes={"x is not divided by its scale": book(x, levels)})
    assert codes.dtype == torch.int8, f"{what}: codes are {codes.dtype}, expected torch.int8"


def test_quantizing_tokens_refuses_what_is_not_finite():
    with pytest.raises(ValueError, match="not finite"):
        quantize_tokens(torch.tensor([[1.0, math.inf]]), LEVELS["int8"])
    codes, scales = quantize_tokens(torch.ones(0, 8), LEVELS["int8"])
    assert codes.shape == (0, 8) and scales.shape == (0, 1)


def test_scales_of_rows_leave_the_sum(rng):
    """In integers, as a kernel adds: the same to the last bit."""
    x, w = (torch.from_numpy(rng.standard_normal((n, 512))).float() for n in (4, 7))
    (a, p), (b, q) = (quantize_tokens(m, LEVELS["int8"]) for m in (x, w))
    added = (a.long() @ b.long().T).float()
    assert torch.equal(scaled_matmul(a, p, b, q, LEVELS["int8"]), added * p * q.T)


# ---- split_matmul


def test_split_matmul__where_nothing_needs_rounding(subject, agree, rng):
    """All but the columns that are split are whole numbers up to 127: x wᵀ itself."""
    levels, columns = LEVELS["int8"], np.array([3, 20])
    x, w = (rng.integers(-126, 127, (n, 24)).astype(np.float32) for n in (5, 7))
    x[:, 0], w[:, 1] = 127, -127
    x[:, columns] = rng.uniform(300, 2000, (5, 2))
    w[:, columns] = rng.uniform(-900, 900, (7, 2))
    got = subject.split_matmul(*map(torch.from_numpy, (x, w, columns)), levels)
    x, w = x.astype(np.float64), w.astype(np.float64)
    check_split(agree, got, x, w, columns, levels, x @ w.T, "integers and two columns of outliers")


@pytest.mark.parametrize("columns", [[5], [0, 9, 30], [], list(range(31))])
def test_split_matmul(subject, agree, rng, columns):
    levels, columns = LEVELS["int4"], np.array(columns, int)
    x, w = (rng.standard_normal((n, 31)).astype(np.float32) for n in (6, 9))
    x[:, columns] *= 40
    got = subject.split_matmul(*map(torch.from_numpy, (x, w, columns)), levels)
    x, w = x.astype(np.float64), w.astype(np.float64)
    rest = np.setdiff1d(np.arange(31), columns)
    want = x[:, columns] @ w[:, columns].T
    if len(rest):
        want = want + product(x[:, rest], w[:, rest], levels)
    check_split(agree, got, x, w, columns, levels, want, f"int4, split columns {columns.tolist()}")


def check_split(agree, got, x, w, columns, levels, want, what):
    rest = np.setdiff1d(np.arange(x.shape[1]), columns)
    some, (a, p), (b, q) = x[:, columns] @ w[:, columns].T, coded(x, levels), coded(w, levels)
    agree(got, want, "float32", f"split_matmul, {what}", lambda i: f"token {i[0]}, output {i[1]}", {
        "the columns that are split are lost": want - some,
        "no column is split: outliers set the scales": product(x, w, levels),
        "the scales are taken before the columns are out":
            some + a[:, rest] @ b[:, rest].T * p * q.T,
        "the columns are added to a product that has them, too": some + product(x, w, levels),
        "w's scales are taken before the columns are out": some + (
            coded(zeroed(x, columns), levels)[0] @ zeroed(b, columns).T
            * coded(zeroed(x, columns), levels)[1] * q.T),
        "nothing is rounded": x @ w.T})


def zeroed(x, columns):
    x = x.copy()
    x[:, columns] = 0
    return x


def test_a_split_product_is_within_its_bound(rng):
    """Each factor is off by half a scale at most."""
    x, w = (torch.from_numpy(rng.standard_normal((n, 64))) for n in (5, 6))
    x[:, 9] *= 60
    columns, levels = torch.tensor([9]), LEVELS["int8"]
    rest = torch.arange(64) != 9
    p, q = (quantize_tokens(m[:, rest], levels)[1] for m in (x, w))
    bound = (p / 2 * w[:, rest].abs().sum(1) + q.T / 2 * x[:, rest].abs().sum(1, keepdim=True)
             + rest.sum() * p * q.T / 4)
    split_away = (split_matmul(x, w, columns, levels) - x @ w.T).abs()
    assert (split_away <= bound + 1e-9).all()
    assert (split_matmul(x, w, columns[:0], levels) - x @ w.T).abs().mean() > 4 * split_away.mean()


# ---- smooth


@pytest.mark.parametrize("alpha", [0.5, 0.8])
def test_smooth(subject, agree, rng, alpha):
    C = 12
    norm = rng.uniform(0.5, 2, C).astype(np.float32)
    matrices = [rng.standard_normal((n, C)).astype(np.float32) for n in (5, 3, 3)]
    largest = rng.uniform(0.2, 3, C).astype(np.float32)
    matrices[1][:, 2] *= 9                              # the largest is not in the first matrix
    largest[7] *= 50
    largest[4] = 0
    for w in matrices:
        w[:, 10] = 0
    got = subject.smooth(torch.from_numpy(norm), [torch.from_numpy(w) for w in matrices],
                         torch.from_numpy(largest), alpha)
    assert isinstance(got, (tuple, list)) and len(got) == 2 and len(got[1]) == 3, \
        f"smooth: expected a norm and three matrices, got {brief(got)}"

    def s(alpha, columns):
        with np.errstate(divide="ignore", invalid="ignore"):
            found = largest.astype(np.float64) ** alpha / columns ** (1 - alpha)
        return np.where((largest > 0) & (columns > 0), found, 1)

    every = np.abs(np.concatenate(matrices)).max(0).astype(np.float64)
    own, what = s(alpha, every), f"smooth, alpha {alpha}"
    agree(got[0], norm / own, "float32", f"{what}, the norm", lambda i: f"channel {i[0]}", {
        "the norm is multiplied by s": norm * own,
        "the norm stays as it was": norm,
        "only the first matrix is asked for its largest |w|":
            norm / s(alpha, np.abs(matrices[0]).max(0).astype(np.float64)),
        "alpha and 1 - alpha have changed places": norm / s(1 - alpha, every),
        "w's factor is multiplied, not divided by": norm / np.where(
            (largest > 0) & (every > 0), largest ** alpha * every ** (1 - alpha), 1)})
    for i, (w, found) in enumerate(zip(matrices, got[1], strict=True)):
        agree(found, w * own, "float32", f"{what}, matrix {i}",
              lambda i: f"row {i[0]}, channel {i[1]}", {
                  "the matrices are divided by s, as the norm is": w / own,
                  "the matrices stay as they were": w})


def test_smoothing_keeps_the_product(rng):
    norm, x, w = (torch.from_numpy(rng.standard_normal(shape)) for shape in (16, (4, 16), (5, 16)))
    own, (v,) = smooth(norm, [w], (x * norm).abs().amax(0))
    torch.testing.assert_close(x * own @ v.T, x * norm @ w.T, rtol=1e-12, atol=1e-12)


# ---- write_quantized


def packed(codes, levels):
    """Bytes of rows of codes, digit by digit."""
    n, radix = {1: (5, 3), 7: (2, 16)}.get(len(levels) - 1, (1, 256))
    digits = codes + len(levels) - 1
    digits = np.pad(digits, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % n)],
                    constant_values=len(levels) - 1)
    return (digits.reshape(*codes.shape[:-1], -1, n) * radix ** np.arange(n)).sum(-1)


@pytest.mark.parametrize("name", ["int8", "fp8", "int4", "ternary"])
def test_write_quantized(subject, agree, rng, name):
    levels, (P, S, G, D) = LEVELS[name], (4, 4, 2, 6)
    x = rng.standard_normal((5, G, D)).astype(np.float32)
    x[:, 1] *= 9
    slots = np.array([6, -1, 13, 0, 7])
    scales = (np.abs(x).max(-1) / np.float32(levels[-1])).astype(np.float16)        # (T, G)
    codes = book(x / scales.astype(np.float64)[..., None], levels)
    width = packed(codes, levels).shape[-1]
    pages, kept = np.full((P, S, G, width), 77, np.uint8), np.full((P, S, G), 0.5, np.float16)

    def filled(start, rows, slots=slots, swap=False):
        out = start.copy()
        for row, slot in zip(rows, slots, strict=True):
            if slot >= 0:
                out[(slot % S, slot // S) if swap else (slot // S, slot % S)] = row
        return out

    shared = np.broadcast_to(np.abs(x).max((1, 2), keepdims=True) / levels[-1], (5, G, 1))
    own, what = filled(pages, packed(codes, levels)), f"write_quantized, {name}"
    last = np.where(slots < 0, P * S - 1, slots)
    got, found = torch.from_numpy(pages.copy()), torch.from_numpy(kept.copy())
    subject.write_quantized(torch.from_numpy(x), got, found, torch.from_numpy(slots), levels)
    agree(got, own, what=f"{what}, codes",
          at=lambda i: f"page {i[0]}, place {i[1]}, head {i[2]}, byte {i[3]}", mistakes={
              "nothing is written": pages,
              "a slot of -1 is taken for the last one": filled(pages, packed(codes, levels), last),
              "page and place have changed places":
                  filled(pages, packed(codes, levels), swap=True),
              "the heads of a token share one scale":
                  filled(pages, packed(book(x / shared, levels), levels)),
              "numbers are not divided by their scale":
                  filled(pages, packed(book(x, levels), levels))})
    agree(found, filled(kept, scales), "float16", f"{what}, scales",
          lambda i: f"page {i[0]}, place {i[1]}, head {i[2]}", {
              "no scale is written": kept,
              "what is kept is 1 / scale": filled(kept, 1 / scales.astype(np.float32)),
              "what is kept is the largest |x|": filled(kept, np.abs(x).max(-1))})


@pytest.mark.parametrize("name", ["int8", "fp8", "int4", "ternary"])
def test_what_is_read_is_the_round_trip(rng, name):
    levels, x = LEVELS[name], torch.from_numpy(rng.standard_normal((6, 2, 10))).float()
    width = {"ternary": 2, "int4": 5}.get(name, 10)
    codes, scales = torch.zeros(2, 4, 2, width, dtype=torch.uint8), torch.zeros(2, 4, 2)
    write_quantized(x, codes, scales, torch.tensor([0, 5, 2, 3, 4, 7]), levels)
    pages = read_quantized(codes, scales, levels, 10).flatten(0, 1)
    assert torch.equal(pages[[0, 5, 2, 3, 4, 7]], by_token(levels)(x))
    assert (pages[[1, 6]] == 0).all()                   # a scale of 0
    before = codes.clone()
    write_quantized(x[:1], codes, scales, torch.tensor([-1]), levels)
    assert torch.equal(codes, before)


# ---- the cache


@pytest.mark.parametrize("kinds", [("int8", "int8"), ("fp8", "int8"), ("int4", "ternary")])
def test_a_quantized_cache_is_a_cache_of_rounded_numbers(kinds):
    model, (k, v) = tiny(), (LEVELS[kind] for kind in kinds)
    rounded, prompts = with_kv(model, by_token(k), by_token(v)), [[5, 17, 3], [9] * 20]
    cache, plain = QuantizedCache(model.config, 2, 40, k, v), PagedCache(model.config, 2, 40)
    torch.testing.assert_close(logits(model, prompts, cache), logits(rounded, prompts, plain))
    assert generate_on(QuantizedCache(model.config, 2, 40, k, v), model, prompts, 8) == \
        generate_on(PagedCache(model.config, 2, 40), rounded, prompts, 8)
    with pytest.raises(ValueError, match="there is room for 40"):
        cache.step([[1] * 38, [1]])


def test_bytes_are_counted_from_the_arrays(small):
    m, found = small.config, {}
    for kind in ("int8", "fp8", "int4", "ternary"):
        found[kind] = QuantizedCache(m, 2, 64, LEVELS[kind], LEVELS[kind]).nbytes / 128
    rows = 2 * m.L * m.G
    assert found == {"int8": rows * 34, "fp8": rows * 34, "int4": rows * 18, "ternary": rows * 9}


def test_greedy_tokens_with_int8_are_those_without(small):
    words = Tokenizer(SMALL, small.config)
    prompts = [words.encode("Once upon a time"), words.encode("Return the number of")]
    cache = QuantizedCache(small.config, 2, 64, LEVELS["int8"], LEVELS["int8"])
    assert generate_on(cache, small, prompts, 30) == generate_on(
        PagedCache(small.config, 2, 64), small, prompts, 30)


def test_triton_kernels_attend_to_it():
    model, prompts = load(NANO, dtype=torch.float32), [[10, 97, 30], [5]]

    def cache():
        return QuantizedCache(model.config, 2, 16, LEVELS["int8"], LEVELS["int4"])

    want = generate_on(cache(), model, prompts, 2)
    simulator.activate_triton()
    try:
        model.ops = kernels("triton")
        assert generate_on(cache(), model, prompts, 2) == want
    finally:
        simulator.deactivate_triton()


def test_scales_by_channel_are_of_neighbours_in_time(rng):
    x = torch.from_numpy(rng.standard_normal((7, 2, 5))).float()
    got, levels = by_channel(LEVELS["int4"], 4)(x), LEVELS["int4"]
    for part, own in ((x[:4], got[:4]), (x[4:], got[4:])):
        for g in range(2):
            want, scales = coded(part[:, g].T.double().numpy(), levels)
            np.testing.assert_allclose(own[:, g].T, want * scales, rtol=2e-3, atol=1e-6)


# ---- a model


@pytest.mark.parametrize("entries", [{}, {"bias_qkv": True}])
def test_outliers_made_and_smoothed_leave_the_function(entries):
    model, prompts = tiny(**entries), [[5, 17, 3], [9, 8, 7, 6]]
    want = logits(model, prompts)
    hard = with_outliers(model, [3, 11], 50)
    torch.testing.assert_close(logits(hard, prompts), want, rtol=1e-4, atol=1e-4)
    maxima = channel_maxima(hard, prompts)
    name = "model.layers.0.mlp.gate_proj.weight"
    assert set(outlier_columns(maxima, 8)[name].tolist()) == {3, 11}
    smooth_one = smoothed(hard, maxima)
    torch.testing.assert_close(logits(smooth_one, prompts), want, rtol=1e-4, atol=1e-4)
    after = channel_maxima(smooth_one, prompts)
    for name, largest in maxima.items():
        if "o_proj" not in name:
            assert after[name].max() / after[name].median() < largest.max() / largest.median()


def test_smoothed_refuses_a_bias_that_it_would_have_to_move():
    model = tiny(bias_mlp=True)
    with pytest.raises(ValueError, match="up_proj has a bias, expected none"):
        smoothed(model, channel_maxima(model, [[1, 2, 3]]))


def test_static_scales_cut_off_what_the_sample_had_not():
    model, prompts = tiny(), [[5, 17, 3, 8]]
    maxima = channel_maxima(model, prompts)
    near = logits(static(model, LEVELS["int8"], maxima), prompts)
    half = logits(static(model, LEVELS["int8"], {k: v / 4 for k, v in maxima.items()}), prompts)
    want = logits(model, prompts)
    assert (half - want).abs().mean() > 4 * (near - want).abs().mean()
    own = logits(dynamic(model, LEVELS["int8"]), prompts)
    assert (own - want).abs().mean() < (near - want).abs().mean()


def test_a_model_of_split_matmuls_without_rounding_is_the_model():
    model, prompts = tiny(), [[5, 17, 3, 8]]
    every = {name: torch.arange(w.shape[1]) for name, w in model.weights.items() if is_matrix(name)}
    torch.testing.assert_close(logits(split(model, LEVELS["int4"], every), prompts),
                               logits(model, prompts))


def test_levels_of_integers():
    assert int_levels(8) == LEVELS["int8"] and int_levels(4) == LEVELS["int4"]
    assert int_levels(2) == LEVELS["ternary"]


# ---- the record


@pytest.fixture(scope="module")
def record():
    return json.loads((ROOT / "benchmarks" / "flow_bits.json").read_text("utf-8"))


def test_the_recorded_perplexities_are_of_the_shipped_model(record, small):
    """Stories are judged again: unrounded, and some ways to round; and all must be in order."""
    found = record["quality"]["perplexity"]
    words = Tokenizer(SMALL, small.config)
    judged = [words.encode(text.removeprefix(BEGIN)) for text in stories("held out")[::8]]
    assert sum(len(text[:small.config.room]) - 1 for text in judged) == \
        record["quality"]["tokens"]["stories"]
    int2 = by_token(int_levels(2))
    for row, model, rows in ((found["fp32"]["fp32"], small, 16),
                             (found["cache"]["int2, both"], with_kv(small, int2, int2), 1)):
        assert row["stories"] == pytest.approx(perplexity(model, judged, rows), rel=1e-3)
    for part in ("stories", "docstrings"):
        plain = found["fp32"]["fp32"][part]
        for name in ("small, fp32", "small, smooth, fp32", "made, fp32", "made, smooth, fp32"):
            assert found["outliers"][name][part] == pytest.approx(plain, rel=1e-3)
        assert found["activations"]["int8, dynamic"][part] == pytest.approx(plain, rel=5e-3)
        losses = [found["cache"][f"int{bits}, both"][part] for bits in (8, 4, 3, 2)]
        assert losses == sorted(losses)


def test_the_recorded_times_are_of_the_bytes_that_are_said(record):
    found = record["speed"]
    assert {k: v["size"] for k, v in found["activations"].items()} == {"fp32": 32, "int8": 8}
    assert {k: v["size"] for k, v in found["cache"].items()} == {
        "fp32": 2 * 8 * 128 * 4, "int8": 2 * 8 * (128 + 2), "int4": 2 * 8 * (64 + 2)}
    for way in (*found["activations"].values(), *found["cache"].values()):
        assert len(way["seconds"]) == found["rounds"] and min(way["seconds"]) > 0
