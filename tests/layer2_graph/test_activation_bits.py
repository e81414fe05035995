"""What g08 is given: products of codes, a cache of codes, models that round, and the record."""

import json
import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
import torch

from day02_overview import NANO
from lab import simulator
from lab.course import ROOT
from layer1_kernels import kernels
from layer2_graph import (
    LEVELS,
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
    pictures,
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
from layer2_graph.models import SMALL
from layer2_graph.small.corpus import BEGIN, stories
from layer2_graph.testing.random_llama import random_llama
from tests.layer2_graph.oracle_g08_activation_kv_quantization import coded


@pytest.fixture(scope="module")
def small():
    return load(SMALL, dtype=torch.float32)


def logits(model, prompts, cache=None):
    cache = cache or PagedCache(model.config, len(prompts), 32)
    return model.forward(cache.step(prompts), cache, every=True)


# ---- products


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
    p, q = p.half(), q.half()               # of a 16-bit model: the codes are added all the same
    got = scaled_matmul(a, p, b, q, LEVELS["int8"])
    assert torch.equal(got, (added * p.float() * q.float().T).half()) and got.isfinite().all()


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


def test_smoothing_keeps_the_product(rng):
    norm, x, w = (torch.from_numpy(rng.standard_normal(shape)) for shape in (16, (4, 16), (5, 16)))
    own, (v,) = smooth(norm, [w], (x * norm).abs().amax(0))
    torch.testing.assert_close(x * own @ v.T, x * norm @ w.T, rtol=1e-12, atol=1e-12)


# ---- the cache


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


@pytest.mark.parametrize("kinds", [("int8", "int8"), ("fp8", "int8"), ("int4", "ternary")])
def test_a_quantized_cache_is_a_cache_of_rounded_numbers(kinds):
    model, (k, v) = random_llama(), (LEVELS[kind] for kind in kinds)
    rounded, prompts = with_kv(model, by_token(k), by_token(v)), [[5, 17, 3], [9] * 20]
    cache, plain = QuantizedCache(model.config, 2, 40, k, v), PagedCache(model.config, 2, 40)
    torch.testing.assert_close(logits(model, prompts, cache), logits(rounded, prompts, plain))
    assert generate_on(QuantizedCache(model.config, 2, 40, k, v), model, prompts, 8) == \
        generate_on(PagedCache(model.config, 2, 40), rounded, prompts, 8)
    with pytest.raises(ValueError, match="there is room for 40"):
        cache.step([[1] * 38, [1]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("change", [
    lambda m: with_kv(m, by_token(LEVELS["int8"]), by_channel(LEVELS["int8"])),
    lambda m: with_outliers(m, [1, 5], 50)])
def test_a_model_of_16_bits_stays_one(dtype, change):
    model = random_llama()
    model = Llama(model.config, {name: w.to(dtype) for name, w in model.weights.items()}, model.ops)
    documents = [[3, 1, 4, 1, 5], [9, 2, 6]]
    right = perplexity(model, documents)
    assert perplexity(change(model), documents) == pytest.approx(right, rel=0.1)


def test_perplexity_asks_for_the_room_of_its_documents():
    """A model may have room for a million tokens, which no cache here could hold."""
    model = random_llama()
    documents = [[3, 1, 4, 1, 5], [9, 2, 6]]
    vast = Llama(model.config, model.weights, model.ops)
    vast.config = replace(model.config, room=2**40)
    assert perplexity(vast, documents) == perplexity(model, documents)


def test_bytes_are_counted_from_the_arrays(small):
    m, sizes = small.config, {}
    for kind in ("int8", "fp8", "int4", "ternary"):
        sizes[kind] = QuantizedCache(m, 2, 64, LEVELS[kind], LEVELS[kind]).nbytes / 128
    rows = 2 * m.L * m.G
    assert sizes == {"int8": rows * 34, "fp8": rows * 34, "int4": rows * 18, "ternary": rows * 9}


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
    model, prompts = random_llama(C=32, F=48, **entries), [[5, 17, 3], [9, 8, 7, 6]]
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
    model = random_llama(bias_mlp=True)
    with pytest.raises(ValueError, match="up_proj has a bias, which would have to be divided"):
        smoothed(model, channel_maxima(model, [[1, 2, 3]]))


def test_static_scales_cut_off_what_the_sample_had_not():
    model, prompts = random_llama(), [[5, 17, 3, 8]]
    maxima = channel_maxima(model, prompts)
    near = logits(static(model, LEVELS["int8"], maxima), prompts)
    half = logits(static(model, LEVELS["int8"], {k: v / 4 for k, v in maxima.items()}), prompts)
    want = logits(model, prompts)
    assert (half - want).abs().mean() > 4 * (near - want).abs().mean()
    own = logits(dynamic(model, LEVELS["int8"]), prompts)
    assert (own - want).abs().mean() < (near - want).abs().mean()


def test_a_model_of_split_matmuls_without_rounding_is_the_model():
    model, prompts = random_llama(), [[5, 17, 3, 8]]
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
    """Stories are judged again, unrounded and rounded in some ways; all must come in order."""
    perplexities = record["quality"]["perplexity"]
    words = Tokenizer(SMALL, small.config)
    judged = [words.encode(text.removeprefix(BEGIN)) for text in stories("held out")[::8]]
    assert sum(len(text[:small.config.room]) - 1 for text in judged) == \
        record["quality"]["tokens"]["stories"]
    int2 = by_token(int_levels(2))
    for row, model, rows in ((perplexities["fp32"]["fp32"], small, 16),
                             (perplexities["cache"]["int2, both"], with_kv(small, int2, int2), 1)):
        assert row["stories"] == pytest.approx(perplexity(model, judged, rows), rel=1e-3)
    for part in ("stories", "docstrings"):
        plain = perplexities["fp32"]["fp32"][part]
        for name in ("small, fp32", "small, smooth, fp32", "made, fp32", "made, smooth, fp32"):
            assert perplexities["outliers"][name][part] == pytest.approx(plain, rel=1e-3)
        assert perplexities["activations"]["int8, dynamic"][part] == pytest.approx(plain, rel=5e-3)
        losses = [perplexities["cache"][f"int{bits}, both"][part] for bits in (8, 4, 3, 2)]
        assert losses == sorted(losses)


def test_the_recorded_times_are_of_the_bytes_that_are_said(record):
    speed = record["speed"]
    assert {k: v["size"] for k, v in speed["activations"].items()} == {"fp32": 32, "int8": 8}
    assert {k: v["size"] for k, v in speed["cache"].items()} == {
        "fp32": 2 * 8 * 128 * 4, "int8": 2 * 8 * (128 + 2), "int4": 2 * 8 * (64 + 2)}
    for way in (*speed["activations"].values(), *speed["cache"].values()):
        assert len(way["seconds"]) == speed["rounds"] and min(way["seconds"]) > 0


def costs(rows, plain):
    """{name: {part: % above the perplexity without rounding}}"""
    return {name: {part: 100 * (row[part] / plain[part] - 1) for part in row}
            for name, row in rows.items()}


def test_what_the_lesson_says_of_activations(record):
    perplexities = record["quality"]["perplexity"]
    rows = perplexities["activations"]
    cost = costs(rows, perplexities["fp32"]["fp32"])
    static8, dynamic8 = cost["int8, static"], cost["int8, dynamic"]
    assert (round(static8["stories"], 1), round(static8["docstrings"], 1)) == (0.2, 1.4)
    assert max(dynamic8.values()) < 0.1
    assert cost["int4, static"]["stories"] > 100
    assert max(cost["fp8, static"].values()) < 0.2          # its scales are as wide as int8's
    assert round(rows["int4, static, docstrings"]["stories"], 2) == 3.18
    assert rows["int4, static, docstrings"]["stories"] < rows["int4, static"]["stories"]


def test_what_the_lesson_says_of_outliers(record, small):
    channels = record["quality"]["channels"]
    down = [value for name, value in channels.items() if "down_proj" in name]
    assert len(down) == 4 and min(down) > max(value for name, value in channels.items()
                                              if "down_proj" not in name)
    rows = record["quality"]["perplexity"]["outliers"]
    for part in ("stories", "docstrings"):
        assert rows["made, int4"][part] > 1e6
        for way in ("split", "smooth"):
            plain, made = (rows[f"{kind}, int4, {way}"][part] for kind in ("small", "made"))
            assert made == pytest.approx(plain, rel=0.01)
            change = plain / rows["small, int4"][part] - 1
            assert -0.01 < change < 0 if part == "stories" else 0 < change < 0.01
    assert small.config.C == 192


def test_what_the_lesson_says_of_the_cache(record, small):
    perplexities, m = record["quality"]["perplexity"], small.config
    rows = perplexities["cache"]
    cost = costs(rows, perplexities["fp32"]["fp32"])
    assert max(cost[f"{kind}, both"][part] for kind in ("int8", "fp8")
               for part in ("stories", "docstrings")) < 0.05
    four = cost["int4, both"]
    assert (round(four["stories"], 1), round(four["docstrings"], 1)) == (0.2, 0.9)
    for part in ("stories", "docstrings"):
        assert all(rows[f"int{bits}, K"][part] > rows[f"int{bits}, V"][part] for bits in (3, 2))
        keys, values = (rows[f"int2, {kind}"][part] - rows[f"int2, {kind} by channel"][part]
                        for kind in "KV")
        assert keys > 10 * values > 0
    assert (m.L, m.G, m.D) == (4, 2, 32)                    # 32 numbers share a scale both ways


def test_what_the_lesson_says_of_bytes_and_times(record, small):
    plain = PagedCache(small.config, 2, 64)
    full = plain.k.nbytes + plain.v.nbytes
    fold = [full / QuantizedCache(small.config, 2, 64, LEVELS[kind], LEVELS[kind]).nbytes
            for kind in ("int8", "int4")]
    assert [round(times, 1) for times in fold] == [3.8, 7.1]

    def gain(ways, name):
        pairs = zip(ways["fp32"]["seconds"], ways[name]["seconds"], strict=True)
        return median(a / b for a, b in pairs)

    speed = record["speed"]
    assert round(gain(speed["activations"], "int8")) == 4
    assert [round(1 / gain(speed["cache"], name)) for name in ("int8", "int4")] == [11, 11]


def test_the_first_picture_is_of_80_tokens(small):
    words = Tokenizer(SMALL, small.config)
    story = words.encode(stories("held out")[0].removeprefix(BEGIN))
    sample = [words.encode("Return the number of bytes.")]
    axes, = pictures.largest_of_tokens(small, "model.layers.3.mlp.down_proj.weight", story[:81],
                                       sample).axes
    assert len(axes.patches) == 80
