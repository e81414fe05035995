"""What o04's formulas are held against: torch modules that are counted, and two processes."""

import json

import torch

from day01_roofline import LLAMAS, LlamaShape, count_parameters
from day02_overview import autograd_memory as memory
from day02_overview import (
    kept_numbers,
    more_bytes,
    peak_activations,
    rounds,
    state_bytes,
    step_bytes,
    training_flops,
    wire_bytes,
)

# No two sizes alike, H more than G, H · D not C.
RAGGED = (LlamaShape("", 3, 10, 6, 2, 7, 11, 13, False),
          LlamaShape("", 2, 12, 3, 1, 4, 17, 29, True))


def test_tokens_of_experts_and_shards_of_a_context_are_sent_as_often_as_more_bytes_says():
    m = RAGGED[0]
    B, T, W, itemsize = 2, 12, 4, 2
    experts = 0                         # a token's two experts are on ranks t, t + 1 of W
    for t in range(B * T):
        experts += itemsize * m.C * sum((t + j) % W != 0 for j in range(2))     # sent by rank 0
    assert more_bytes("ep", m, B, T, W, itemsize) == m.L * 4 * experts
    shard = itemsize * B * T // W * 2 * m.G * m.D       # keys and values of a rank
    assert more_bytes("cp", m, B, T, W, itemsize) == m.L * 3 * sum(shard for _ in range(W - 1))
    for way in ("dp", "zero3", "tp", "sp", "ep", "cp"):
        assert rounds(way, m, 1) == 0
    assert rounds("dp", m, W) == 6 and rounds("cp", m, W) == m.L * 9


def test_the_torch_modules_have_the_parameters_that_r03_counts():
    for m in RAGGED:
        assert sum(w.numel() for w in memory.TorchLlama(m).parameters()) \
            == sum(count_parameters(m).values())


def test_both_attentions_give_the_same():
    m = RAGGED[0]
    x = torch.randn(2, 5, 10)
    layer = memory.TorchLayer(m)
    fused = layer(x)
    layer.book = True
    assert torch.allclose(layer(x), fused, atol=1e-6)
    assert memory.counted_kept(layer, x.requires_grad_())["scores"] == 2 * m.H * 5 * 5


def test_two_processes_send_what_is_recorded():
    """And their loss and gradients are those of one process."""
    recorded = json.loads(wire_bytes.RECORD.read_text("utf-8"))
    model, tokens, targets = wire_bytes.whole()
    loss = model(tokens, targets)
    loss.backward()
    ranks = wire_bytes.run()
    for numbers, before in zip(ranks, recorded["ranks"], strict=True):
        for way in wire_bytes.WAYS:
            assert abs(numbers[f"{way} loss"] - loss.item()) < 1e-5
            got = torch.tensor(numbers[f"{way} gradient"])
            assert torch.allclose(got, model.embedding.weight.grad.flatten(), atol=1e-6)
        for name, count in before.items():
            assert abs(numbers[name] / count - 1) < 0.01, f"{name}: {numbers[name]}, was {count}"
            assert 0 <= count / wire_bytes.expected(name) - 1 < 0.02


# ---- what o04 states and no cell prints


def test_a_layer_keeps_the_numbers_of_the_formula():
    """B T (6C + 2HD + 2GD + 4F + H + 2)"""
    for m in (*RAGGED, *LLAMAS.values()):
        B, T = 3, 7
        want = B * T * (6 * m.C + 2 * m.H * m.D + 2 * m.G * m.D + 4 * m.F + m.H + 2)
        assert sum(kept_numbers(m, B, T).values()) == want


def test_scores_overtake_the_rest_between_64_and_256_tokens():
    m = LlamaShape("small", L=1, C=64, H=8, G=2, D=8, F=192, V=256, tied=True)
    share = {T: m.H * T**2 / sum(kept_numbers(m, 1, T).values()) for T in (64, 256)}
    assert share[64] < 1 < share[256]


def test_what_the_8b_model_needs():
    """128 GB of state, 16 a rank at stage 3; 12 GB of activations, 0.9 recomputed; eight times as
    much as the checkpoint of 16 GB; 2.1 GB of logits for 8,192 tokens."""
    m = LLAMAS["Llama-3.1-8B"]
    n = sum(count_parameters(m).values())
    assert [int(state_bytes(n, *where) / 1e9) for where in ((1, 0), (8, 3))] == [128, 16]
    assert round(2 * n / 1e9) == 16 and state_bytes(n) == 8 * 2 * n
    kept, again = (2 * peak_activations(m, 1, 2048, way) / 1e9 for way in (False, True))
    assert (round(kept), round(again, 1)) == (12, 0.9)
    assert round(2 * 8192 * m.V / 1e9, 1) == 2.1
    assert round(2 * 4096 * 4096 / 1e6, 1) == 33.6


def test_recomputation_costs_up_to_a_third_more_flops():
    for m in LLAMAS.values():
        for T in (64, 8192, 131_072):
            one, again = (sum(training_flops(m, 1, T, way).values()) for way in (False, True))
            assert 1 < again / one < 4 / 3 + 1e-12
    assert round(again / one, 2) == 1.33


def test_dp_sends_28_gb_and_tp_120():
    m = LLAMAS["Llama-3.1-8B"]
    gb = {way: step_bytes(way, m, B, 8192, 8, 2) / 1e9 for way, B in (("dp", 1), ("tp", 8))}
    assert {way: round(size) for way, size in gb.items()} == {"dp": 28, "tp": 120}
    hidden = 8 * 8192 * m.C * 2
    assert (4 * m.L, 8 * 8192, round(hidden / 1e9, 2)) == (128, 65_536, 0.54)


def test_a_decode_step_of_tp_sends_64_sums_of_8_kb():
    """Two sums a layer in forward, half of the four of a training step, of one token's row."""
    m = LLAMAS["Llama-3.1-8B"]
    W = 8
    sums = rounds("tp", m, W) // (2 * (W - 1)) // 2
    assert (sums, 2 * m.C) == (64, 8192)
