"""What o04's formulas are held against: torch modules that are counted, and two processes."""

import json

import torch

from day01_roofline import LlamaShape, count_parameters
from day02_overview import autograd_memory as memory
from day02_overview import more_bytes, rounds, wire_bytes

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
