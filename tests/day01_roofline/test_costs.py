"""What r03 gives and does not ask for, and the numbers that its text states."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from day01_roofline import (
    LLAMAS,
    LlamaShape,
    attended,
    count_bytes,
    count_conv,
    count_flops,
    count_parameters,
    decode_batch,
    decode_costs,
    intensity,
    layer_matrices,
)
from day01_roofline.tables import step_table

H100 = 989e12, 3.35e12          # FLOP/s, byte/s
RAGGED = (LlamaShape("", 13, 357, 21, 3, 11, 37, 101, False),
          LlamaShape("", 2, 12, 3, 1, 4, 17, 29, True))
# As the models' own pages state them, exactly.
PUBLISHED = {"SmolLM-135M": 134_515_008, "Llama-3.2-1B": 1_235_814_400,
             "Llama-3.1-8B": 8_030_261_248, "Llama-3.1-70B": 70_553_706_496}


def test_published_totals():
    """The given shapes are those of the models: their parameters add up to the published totals."""
    assert {name: sum(count_parameters(m).values()) for name, m in LLAMAS.items()} == PUBLISHED


def test_numbers_that_the_text_states_and_no_cell_prints():
    """Where the matmuls of the 8B model pass the H100's ridge; the cache of the H200's batch."""
    batches = [decode_batch(2 * n * k, 2 * n * k, 2 * (n + k), *H100) for n, k in (
        (4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 128256))]
    assert (min(batches), max(batches)) == (319, 345)
    batch = decode_batch(*decode_costs(LLAMAS["Llama-3.1-8B"], 512, 2), 989e12, 4.8e12)
    assert batch == 8364 and round(batch * 512 * 2 * 32 * 2 * 8 * 128 / 1e9) == 561


def test_shares_of_vocabulary_and_mlp_that_the_text_states():
    """One in five in the two smallest models, 80 % in the largest; the hints' counts of the 8B."""
    counts = [count_parameters(m) for m in LLAMAS.values()]
    vocabulary = [(c["embedding"] + c["lm_head"]) / sum(c.values()) for c in counts]
    mlp = [(c["gate_up"] + c["down"]) / sum(c.values()) for c in counts]
    assert np.round(vocabulary[:2], 2).tolist() == [0.21, 0.21] and round(mlp[-1], 2) == 0.8
    m, c = LLAMAS["Llama-3.1-8B"], counts[2]
    attention = (c["qkv"] + c["out"]) / m.L
    assert (round((c["gate_up"] + c["down"]) / m.L / 1e6), round(attention / 1e6)) == (176, 42)
    assert round((c["gate_up"] + c["down"]) / 1e9, 2) == 5.64
    assert round((c["embedding"] + c["lm_head"]) / 1e9, 2) == 1.05


def test_one_user_of_the_8b_model_on_an_h100():
    """15 GFLOPs a token, 66,000 tokens a second by arithmetic, 223 by memory."""
    peak, bandwidth = H100
    flops, weights, each = decode_costs(LLAMAS["Llama-3.1-8B"], 1, 2)
    assert (round(flops / 1e9), round(peak / flops, -3)) == (15, 66_000)
    assert round(bandwidth / (weights + each)) == 223


def test_smallest_compute_bound_batches_on_an_h100():
    """331 users at their first token, 1202 with contexts of 256, none with 512.
    Attention stays at 4 FLOP/byte, the matmuls of a batch of 64 rise to 62 or 63."""
    m = LLAMAS["Llama-3.1-8B"]
    assert [decode_batch(*decode_costs(m, N, 2), *H100) for N in (1, 256, 512)] == [331, 1202, None]
    flops, moved = count_flops(m, 64, 1, 2048), count_bytes(m, 64, 1, 2048, 2)
    by_name = {name: flops[name] / sum(moved[name]) for name in flops}
    assert round(by_name.pop("attention")) == 4
    assert {round(ratio) for ratio in by_name.values()} == {62, 63}


def test_what_a_depthwise_convolution_saves():
    """256 times fewer FLOPs, of which a factor of 5.5 saves time and 46 saves none."""
    peak, bandwidth = 312e12, 1.5e12
    (full, full_moved), (deep, deep_moved) = (
        count_conv(32, 56, 56, 256, 256, 3, groups, 2) for groups in (1, 256))
    assert full // deep == 256 and full_moved / deep_moved < 1.02
    assert (round(full / 1e9), round(deep_moved / 1e6)) == (118, 103)
    arithmetic, transfer = full / peak, deep_moved / bandwidth
    assert (round(1e3 * arithmetic, 3), round(1e3 * transfer, 4)) == (0.379, 0.0685)
    gain = arithmetic / transfer
    assert round(gain, 1) == 5.5 and round(256 / gain) == 46


def test_a_causal_mask_hides_almost_half_of_a_prefill():
    T = 2048
    assert 0.49 < 1 - attended(T, T) / T**2 < 0.5 and attended(1, T) == T


@pytest.mark.parametrize("T, N", [(1, 1), (1, 9), (5, 5), (4, 9)])
def test_attended(T, N):
    """Counted in the mask."""
    assert attended(T, N) == (np.arange(N - T, N)[:, None] >= np.arange(N)).sum()


@pytest.mark.parametrize("T, N", [(0, 3), (4, 3)])
def test_attended_refuses_what_is_no_step(T, N):
    with pytest.raises(ValueError, match=f"got T = {T} and N = {N}"):
        attended(T, N)


@pytest.mark.parametrize("m", RAGGED)
def test_layer_matrices(m):
    one = count_parameters(replace(m, L=1))
    assert {name: prod(size) for name, size in layer_matrices(m).items()} == {
        name: one[name] for name in ("qkv", "out", "gate_up", "down")}


@pytest.mark.parametrize("m", RAGGED)
def test_decode_costs(m):
    weights, activations, cache = np.sum([*count_bytes(m, 1, 1, 9, 2).values()], 0)
    assert decode_costs(m, 9, 2) == (
        sum(count_flops(m, 1, 1, 9).values()), weights, activations + cache)


def test_intensity():
    step = RAGGED[0], 3, 4, 9
    want = sum(count_flops(*step).values()) / np.sum([*count_bytes(*step, 2).values()])
    assert intensity(*step, 2) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_count_conv(groups):
    """Against a convolution that counts its multiplications as it does them."""
    B, height, width, inputs, outputs, side, itemsize = 2, 4, 3, 6, 12, 3, 4
    touched, products = set(), 0
    for index in np.ndindex(B, height, width, outputs):
        group = index[3] // (outputs // groups)
        for channel in range(group * inputs // groups, (group + 1) * inputs // groups):
            for tap in np.ndindex(side, side):
                products += 1
                touched |= {("image", *index[:3], channel), ("filter", index[3], channel, *tap),
                            ("result", *index)}
    assert count_conv(B, height, width, inputs, outputs, side, groups, itemsize) \
        == (2 * products, itemsize * len(touched))


def test_count_conv_refuses_ragged_groups():
    with pytest.raises(ValueError, match="6 input and 5 output channels do not divide into 2"):
        count_conv(1, 2, 2, 6, 5, 3, 2, 4)


def test_a_batch_on_the_ridge_is_enough_also_where_its_times_are_no_binary_fractions():
    """3 · 4 / 3 seconds of arithmetic, 1 + 3 of bytes."""
    assert decode_batch(4, 1, 1, 3, 1) == 3


def test_step_table():
    """Two steps side by side, of any order of keys; the last row is the whole step."""
    names = ("lm_head", "down", "gate_up", "out", "attention", "qkv")
    flops, moved = ({name: by * 10**9 for by, name in enumerate(names, 1)} for _ in range(2))
    moved = {name: 2 * count for name, count in moved.items()}
    _, head, *rows = step_table({"one": (flops, moved), "two": (moved, flops)}).splitlines()
    assert head.split() == ["GFLOP", "GB", "FLOP/byte"] * 2
    assert [row.split() for row in rows] == [
        *([name, f"{by}.0", f"{2 * by}.0", "0.5", f"{2 * by}.0", f"{by}.0", "2.0"]
          for by, name in reversed(list(enumerate(names, 1)))),
        ["total", "21.0", "42.0", "0.5", "42.0", "21.0", "2.0"]]
