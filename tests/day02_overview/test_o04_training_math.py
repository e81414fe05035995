"""Graders of o04. The oracles are torch modules that autograd and PyTorch's FLOP counter are asked
about, a ring that passes its pieces on, and the bytes that two processes sent."""

import json
from collections import namedtuple

import pytest
import torch

from day02_overview import autograd_memory as memory
from day02_overview import wire_bytes

Shape = namedtuple("Shape", "L C H G D F V tied")
# No two sizes alike, H more than G, H · D not C.
RAGGED = (Shape(3, 10, 6, 2, 7, 11, 13, False), Shape(2, 12, 3, 1, 4, 17, 29, True))
LLAMA_8B = Shape(32, 4096, 32, 8, 128, 14336, 128256, False)
STEPS = ((2, 5), (1, 9))
KEPT = ("x", "scale", "normed", "y", "q", "k", "v", "lse", "mixed", "x2", "scale2", "normed2", "y2",
        "gate", "up", "silu", "hidden")


def given(subject, m):
    return subject.make("day01_roofline:Llama", "", *m)


def named(m, B, T):
    return f"B={B} T={T} in a Llama of " + " ".join(f"{k}={v}" for k, v in m._asdict().items())


def number(got, what):
    assert isinstance(got, (int, float)) and not isinstance(got, bool), \
        f"{what}: got {got!r}, expected a number"
    return got


def row(got, keys, what):
    """The values of a dict in the order of `keys`, which must be exactly its keys."""
    assert isinstance(got, dict), f"{what}: got {got!r}, expected a dict"
    missing, extra = [k for k in keys if k not in got], [k for k in got if k not in keys]
    assert not missing, f"{what}: no key {missing[0]!r} in the answer; expected {' '.join(keys)}"
    assert not extra, f"{what}: the key {extra[0]!r} is not asked for; expected {' '.join(keys)}"
    return [number(got[k], f"{what}, {k}") for k in keys]


def but(values, **changes):
    return list({**values, **changes}.values())


# ---- state


def kept_of_a_parameter():
    """{part: bytes a parameter} of a real step: bf16 weights, AdamW on an fp32 copy of them."""
    weights = torch.nn.Parameter(torch.ones(10, dtype=torch.bfloat16))
    copy = torch.nn.Parameter(weights.detach().float())
    weights.sum().backward()
    copy.grad = weights.grad.float()
    adam = torch.optim.AdamW([copy])
    adam.step()
    moments = [a for a in adam.state[copy].values() if a.numel() == copy.numel()]
    return {part: sum(a.nbytes for a in arrays) // 10 for part, arrays in (
        ("weights", [weights]), ("gradients", [weights.grad]), ("optimiser", [copy, *moments]))}


def test_predict_bytes_a_parameter(subject):
    got, parts = number(subject.predict_bytes_a_parameter(), "a prediction"), kept_of_a_parameter()
    want = sum(parts.values())
    said = {2: "that is the weight alone", 4: "weight and gradient; Adam keeps something, too",
            want - 4: "Adam's fp32 weights, its mean or its variance is left out"}
    assert got == want, (f"bytes a parameter: {got:g} is not it; "
                         f"{said.get(got, f'there are {len(parts)} kinds, in two precisions')}")


def held(parameters, W, stage):
    """Bytes on rank 0, shard by shard."""
    sizes = kept_of_a_parameter()
    shard = len(range(0, parameters, W))                # rank 0's share, the larger one
    order = ("optimiser", "gradients", "weights")
    return sum(size * (shard if order.index(part) < stage else parameters)
               for part, size in sizes.items())


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("parameters, W", [(1000, 1), (1001, 4), (8_030_261_248, 64)])
def test_state_bytes(subject, agree, parameters, W, stage):
    want = held(parameters, W, stage)
    order = ("weights", "gradients", "optimiser")
    shard, sizes = -(-parameters // W), kept_of_a_parameter()
    agree(subject.state_bytes(parameters, W, stage), want,
          what=f"bytes of state, {parameters:,} parameters on {W} ranks, stage {stage}", mistakes={
        "a stage too few is sharded": held(parameters, W, max(stage - 1, 0)),
        "a stage too many is sharded": held(parameters, W, min(stage + 1, 3)),
        "everything is sharded, whatever the stage": held(parameters, W, 3),
        "nothing is sharded, whatever the stage": held(parameters, 1, 0),
        "the shard is rounded down: the last parameters are lost":
            sum(sizes[p] * (parameters // W if i > 2 - stage else parameters)
                for i, p in enumerate(order)),
        "a shard is rounded up to whole bytes, not to whole parameters":
            sum(-(-parameters * sizes[p] // W) if i > 2 - stage else parameters * sizes[p]
                for i, p in enumerate(order)),
        "a shard is not rounded up to whole parameters":
            sum(sizes[p] * (parameters / W if i > 2 - stage else parameters)
                for i, p in enumerate(order)),
        "a shard is one parameter too many where W divides them: // W + 1":
            sum(sizes[p] * (parameters // W + 1 if i > 2 - stage else parameters)
                for i, p in enumerate(order)),
        "a stage shards its own part alone, but it shards those of the stages before, too":
            sum(sizes[p] * (shard if i == 3 - stage else parameters) for i, p in enumerate(order)),
        "weights are sharded first, but ZeRO begins with the optimiser":
            sum(sizes[p] * (shard if i < stage else parameters) for i, p in enumerate(order))})


def test_state_bytes__unseen(unseen, rng):
    for stage in range(4):
        unseen("state_bytes", int(rng.integers(1, 10**11)), int(rng.integers(2, 1000)), stage,
               precision="exact")
    for parameters, W, stage in rng.integers((0, 1, 0), (9, 6, 4), (100, 3)).tolist():
        unseen("state_bytes", parameters, W, stage, precision="exact")      # more ranks than those
    unseen("state_bytes", 1001, precision="exact")
    unseen("state_bytes", 1001, 4, precision="exact")


def drawn(rng):
    """(Llama, B, T) that nobody has seen: of the usual sizes, of the smallest, and past 2^31."""
    for low, high, most in ((2, 50, 3000), (2, 50, 3000), *[(1, 3, 3)] * 40):
        yield shape(rng, low, high), *rng.integers(1, most + 1, 2).tolist()
    yield RAGGED[0], 2**33 + int(rng.integers(9)), 2


def shape(rng, low=2, high=50):
    """A Llama that nobody has seen."""
    L, H, G, D, F = rng.integers(low, high, 5).tolist()
    return Shape(L, int(rng.integers(10, 5000)), H * G, G, D, F, int(rng.integers(9, 10**5)),
                 bool(rng.integers(2)))


# ---- activations


@pytest.mark.parametrize("B, T", STEPS)
@pytest.mark.parametrize("m", RAGGED)
def test_kept_numbers(subject, agree, m, B, T):
    x = torch.randn(B, T, m.C, requires_grad=True)
    want = {name: memory.counted_kept(memory.TorchLayer(m), x)[name] for name in KEPT}
    got = row(subject.kept_numbers(given(subject, m), B, T), KEPT, "kept_numbers")
    mlp = dict.fromkeys(("gate", "up", "silu", "hidden"), B * T * m.C)
    agree(got, list(want.values()), what=f"numbers kept of a layer, {named(m, B, T)}",
          at=lambda i: KEPT[i[0]], mistakes={
        "keys and values are kept for the H heads of the queries":
            but(want, k=want["q"], v=want["q"]),
        "the heads' output is taken as C wide; it has H · D numbers":
            but(want, mixed=B * T * m.C),
        "queries and the heads' output are taken as C wide":
            but(want, q=B * T * m.C, mixed=B * T * m.C),
        "the T × T scores are kept; this attention keeps a number for each query and head":
            but(want, lse=B * m.H * T * T),
        "lse is kept for the G heads of k and v, not for the H of q":
            but(want, lse=B * T * m.G),
        "a norm's scale is counted for one sequence: T numbers, not B · T":
            but(want, scale=T, scale2=T),
        "keys and values are taken as C wide": but(want, k=B * T * m.C, v=B * T * m.C),
        "queries and the heads' output are counted for the G heads of the keys":
            but(want, q=want["k"], mixed=want["k"]),
        "lse is kept once a token, but each head has its own": but(want, lse=B * T),
        "the scale of a norm is one number a token, not one a channel":
            but(want, scale=B * T * m.C, scale2=B * T * m.C),
        "the MLP is taken as C wide": but(want, **mlp),
        "one sequence is counted instead of all B": [n // B for n in want.values()]})


def test_kept_numbers__unseen(unseen, rng):
    for m, *sizes in drawn(rng):
        unseen("kept_numbers", lambda side, m=m: given(side, m), *sizes, precision="exact",
               shown=named(m, *sizes))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("B, T", STEPS)
@pytest.mark.parametrize("m", RAGGED)
def test_peak_activations(subject, agree, m, B, T, recompute):
    layers = [memory.TorchLayer(m) for _ in range(m.L)]
    x = torch.randn(B, T, m.C)
    want = memory.counted_peak(layers, x, recompute)
    one, inputs = memory.counted_peak(layers[:1], x, False), B * T * m.C
    agree(subject.peak_activations(given(subject, m), B, T, recompute), want,
          what=f"numbers kept at the peak, {'with' if recompute else 'without'} recomputation, "
               f"{named(m, B, T)}", mistakes={
        "all layers are kept, though each can be run again": m.L * one,
        "only the inputs are kept; the layer that runs again keeps its arrays for a while":
            m.L * inputs,
        "the input of the layer that runs again is counted twice": m.L * inputs + one,
        "the layer that runs again is counted without its own input": (m.L - 2) * inputs + one,
        "a layer's input is taken as H · D wide; it is C wide":
            (m.L - 1) * B * T * m.H * m.D + one,
        "the layers run again, though recompute is False": (m.L - 1) * inputs + one,
        "one layer is counted instead of all": one})


def test_peak_activations__unseen(unseen, rng):
    for m, *sizes in drawn(rng):
        unseen("peak_activations", lambda side, m=m: given(side, m), *sizes, bool(rng.integers(2)),
               precision="exact", shown=named(m, *sizes))


# ---- FLOPs


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("B, T", STEPS)
@pytest.mark.parametrize("m", RAGGED)
def test_training_flops(subject, agree, m, B, T, recompute):
    tokens = torch.randint(m.V, (2, B, T))
    keys = ("matrices", "attention", "lm_head")
    forward = {"matrices": m.L * sum(2 * B * T * w.numel() for w in
                                     memory.TorchLayer(m).parameters() if w.ndim == 2),
               "lm_head": 2 * B * T * m.C * m.V}
    total = memory.counted_flops(memory.TorchLlama(m, book=True), *tokens)
    attention = total // 3 - sum(forward.values())          # forward and twice that in backward
    again = 4 if recompute else 3
    want = {"matrices": again * forward["matrices"], "attention": again * attention,
            "lm_head": 3 * forward["lm_head"]}
    got = row(subject.training_flops(given(subject, m), B, T, recompute), keys, "training_flops")
    agree(got, list(want.values()), at=lambda i: keys[i[0]],
          what=f"FLOPs of a step, recompute={recompute}, {named(m, B, T)}", mistakes={
        "backward is counted once, but it makes two products for each of forward's":
            [n * (again - 1) // again if k != "lm_head" else n * 2 // 3 for k, n in want.items()],
        "forward alone is counted": [forward["matrices"], attention, forward["lm_head"]],
        "lm_head is not run again: only layers are":
            but(want, lm_head=again * forward["lm_head"]),
        "the layers run again, too: recomputation is left out": [
            3 * forward["matrices"], 3 * attention, 3 * forward["lm_head"]],
        "attention is counted C wide; its heads have H · D numbers":
            but(want, attention=want["attention"] * m.C // (m.H * m.D)),
        "attention squares all B · T tokens, but a sequence does not see the others":
            but(want, attention=want["attention"] * B),
        "a tied lm_head is left out: it shares its weights, but has its own FLOPs":
            but(want, lm_head=0),
        "one layer is counted instead of all L":
            [n // m.L if k != "lm_head" else n for k, n in want.items()],
        "attention's scores are counted, but not their product with the values, or half of the "
        "T × T square":
            but(want, attention=want["attention"] // 2),
        "attention is counted for the G heads of the keys, not the H of the queries":
            but(want, attention=want["attention"] // m.H * m.G),
        "a multiplication and an addition are two FLOPs": [n // 2 for n in want.values()]})


def test_training_flops__unseen(unseen, rng):
    for m, *sizes in drawn(rng):
        more = [[], [False], [True]][int(rng.integers(3))]
        unseen("training_flops", lambda side, m=m: given(side, m), *sizes, *more,
               precision="exact", shown=f"{named(m, *sizes)}{', recompute=' * bool(more)}"
                                        f"{more[0] if more else ''}")


# ---- communication


def ring(collective, size, W):
    """Bytes that each rank of a ring sends, piece by piece."""
    piece, sent = size / W, [0] * W
    tours = {"all_reduce": ("sum", "spread"), "reduce_scatter": ("sum",), "all_gather": ("spread",)}
    for _ in tours[collective]:
        for _ in range(W - 1):                              # a piece is W - 1 steps from its end
            for r in range(W):
                sent[r] += piece
    assert len(set(sent)) == 1
    return sent[0]


@pytest.mark.parametrize("size, W", [(24_000, 8), (24_000, 1), (24_000, 2), (24_000, 3), (10, 4)])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_sent_by(subject, agree, collective, size, W):
    want = ring(collective, size, W)
    agree(subject.sent_by(collective, size, W), want, "float64",
          what=f"bytes that a rank sends, {collective} of {size:,} bytes on {W} ranks", mistakes={
        "one tour of the ring is counted, but summing and spreading are two": want / 2,
        "two tours of the ring are counted, where one is enough": 2 * want,
        "each rank sends the whole array to every other, or size stands for one piece":
            size * (W - 1),
        "a rank passes its own piece on once, not W - 1 pieces": size / W,
        "there are W rounds: the last one would bring a piece home": want + size / W,
        "a piece is rounded down; the last bytes are sent, too":
            want // (size / W) * (size // W),
        "the whole array is sent, even the piece that stays": 2 * size})


def test_sent_by__unseen(unseen, rng):
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        unseen("sent_by", collective, int(rng.integers(1, 10**12)), int(rng.integers(2, 5000)))
        for size, W in rng.integers(1, 20, (40, 2)).tolist():
            unseen("sent_by", collective, size, W)


@pytest.fixture(scope="module")
def recorded():
    return json.loads(wire_bytes.RECORD.read_text("utf-8"))


@pytest.mark.parametrize("way", ["dp", "zero3", "tp", "sp", "pp"])
def test_step_bytes(subject, recorded, way):
    """Against what two processes really sent; message headers are at most 2 % of it here."""
    m, W, itemsize = wire_bytes.SHAPE, 2, 4
    hidden = itemsize * wire_bytes.B * wire_bytes.T * m.C
    counted_bytes = recorded["ranks"][0][way] * (2 if way == "pp" else 1)   # of two neighbours, one
    B = wire_bytes.B // W if way in ("dp", "zero3") else wire_bytes.B
    shape = given(subject, list(vars(m).values())[1:])
    got = number(subject.step_bytes(way, shape, B, wire_bytes.T, W, itemsize),
                 f"step_bytes of {way}")
    said = {"dp": "a step ends with one all_reduce of all gradients",
            "zero3": "weights come twice, for forward and for backward; gradients are scattered",
            "tp": "in each layer, forward and backward, attention and MLP each add up once",
            "sp": "an all_gather and a reduce_scatter do the work of tp's all_reduce",
            "pp": "a hidden state forward to the next, and one gradient of it back"}[way]
    for much, why in ((2, "twice as much"), (0.5, "half as much"), (1 / m.L, "one layer's"),
                      (2 / 3, "two thirds"), (hidden / counted_bytes, "one hidden state")):
        if abs(got / counted_bytes / much - 1) < 0.02:
            said += f"; this is {why}"
            said += (": either two places a layer are counted, not four, or T/W of the tokens, but "
                     "size is that of the whole array" if (way, much) == ("sp", 0.5) else "")
            break
    assert 0.98 < got / counted_bytes <= 1, \
        f"{way}: {got:,.0f} bytes by step_bytes, {counted_bytes:,} were sent; {said}"


@pytest.mark.parametrize("way", ["dp", "zero3", "tp", "sp", "pp"])
def test_step_bytes__any_shape(subject, agree, way):
    m, B, T, W, itemsize = LLAMA_8B, 3, 1000, 8, 2
    weights = 8_030_261_248 * itemsize
    hidden = itemsize * B * T * m.C
    want = {"dp": ring("all_reduce", weights, W), "zero3": 3 * ring("all_gather", weights, W),
            "tp": 4 * m.L * ring("all_reduce", hidden, W),
            "sp": 8 * m.L * ring("all_gather", hidden, W), "pp": 2 * hidden}[way]
    agree(subject.step_bytes(way, given(subject, m), B, T, W, itemsize), want, "float64",
          what=f"bytes a rank sends a step of the 8B model under {way}, {W} ranks, B={B} T={T}",
          mistakes={"numbers are counted, not the bytes that they take": want / itemsize,
                    "the step's bytes are those of one layer": want / m.L} | (
                        {"a rank sends for each of its L/W layers, but only the last one's hidden "
                         "state leaves it": want * m.L / W} if way == "pp" else {
                            "1/W of the array stands for size, which is that of all": want / W,
                            "two ranks are counted, whatever W is": want / (W - 1) * W / 2,
                            "the number of ranks is left out": want / (W - 1) * W}))


def test_step_bytes__unseen(unseen, rng):
    for way in ("dp", "zero3", "tp", "sp", "pp"):
        for m, B, T in drawn(rng):
            W, itemsize = int(rng.integers(1, 9)), int(rng.choice([1, 2, 4, 8]))
            unseen("step_bytes", way, lambda side, m=m: given(side, m), B, T, W, itemsize,
                   shown=f"{way}, {named(m, B, T)} W={W} itemsize={itemsize}")


def test_predict_cheapest_way(subject):
    got = subject.predict_cheapest_way()
    assert got in ("dp", "tp"), f"the cheaper way: got {got!r}, expected \"dp\" or \"tp\""
    m, W, B, T = LLAMA_8B, 8, 8, 8192
    cost = {"dp": ring("all_reduce", 2 * 8_030_261_248, W),
            "tp": 4 * m.L * ring("all_reduce", 2 * B * T * m.C, W)}
    want = min(cost, key=cost.get)
    assert got == want, (f"{got} is not the cheaper way: a rank sends {cost['dp'] / 1e9:.0f} GB a "
                         f"step under dp, whatever T is, and {cost['tp'] / 1e9:.0f} GB under tp")


# ---- given, not exercises: only the course's own tests check it


def test_tokens_of_experts_and_shards_of_a_context_are_sent_as_often_as_more_bytes_says():
    from day01_roofline import Llama
    from day02_overview import more_bytes, rounds

    m, B, T, W, itemsize = Llama("", *RAGGED[0]), 2, 12, 4, 2
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
    from day01_roofline import Llama, count_parameters

    for m in RAGGED:
        assert sum(w.numel() for w in memory.TorchLlama(m).parameters()) \
            == sum(count_parameters(Llama("", *m)).values())


def test_both_attentions_give_the_same():
    m, x = RAGGED[0], torch.randn(2, 5, 10)
    layer = memory.TorchLayer(m)
    fused = layer(x)
    layer.book = True
    assert torch.allclose(layer(x), fused, atol=1e-6)
    assert memory.counted_kept(layer, x.requires_grad_())["scores"] == 2 * m.H * 5 * 5


def test_two_processes_send_what_is_recorded(recorded):
    """And their loss and gradients are those of one process."""
    model, tokens, targets = wire_bytes.whole()
    loss = model(tokens, targets)
    loss.backward()
    ranks = wire_bytes.run()
    for found, before in zip(ranks, recorded["ranks"], strict=True):
        for way in wire_bytes.WAYS:
            assert abs(found[f"{way} loss"] - loss.item()) < 1e-5
            got = torch.tensor(found[f"{way} gradient"])
            assert torch.allclose(got, model.embedding.weight.grad.flatten(), atol=1e-6)
        for name, count in before.items():
            assert abs(found[name] / count - 1) < 0.01, f"{name}: {found[name]}, recorded {count}"
            assert 0 <= count / wire_bytes.expected(name) - 1 < 0.02
