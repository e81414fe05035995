"""Graders of o04.
The oracles are torch modules that autograd and PyTorch's FLOP counter are asked about, a ring
that passes its pieces on, and the bytes that two processes sent."""

import json
from collections import namedtuple
from numbers import Real

import pytest
import torch

from day02_overview import autograd_memory as memory
from day02_overview import wire_bytes
from lab.judge.mistakes import mistake

Shape = namedtuple("Shape", "L C H G D F V tied")
# No two sizes alike, H more than G, H · D not C.
RAGGED = (Shape(3, 10, 6, 2, 7, 11, 13, False), Shape(2, 12, 3, 1, 4, 17, 29, True))
LLAMA_8B = Shape(32, 4096, 32, 8, 128, 14336, 128256, False)
STEPS = ((2, 5), (1, 9))
KEPT = ("x", "scale", "normed", "y", "q", "k", "v", "lse", "mixed", "x2", "scale2", "normed2", "y2",
        "gate", "up", "silu", "hidden")


def given(subject, m):
    return subject.make("day01_roofline:LlamaShape", "", *m)


def named(m, B, T):
    return f"B={B} T={T} in a Llama of " + " ".join(f"{k}={v}" for k, v in m._asdict().items())


def number(got, what):
    assert isinstance(got, Real) and not isinstance(got, bool), mistake(
        "no_number", f"{what}: got {got!r}, expected a number")
    return got


def row(got, keys, what):
    """The values of a dict in the order of `keys`, which must be exactly its keys."""
    assert isinstance(got, dict), mistake("no_dict", f"{what}: got {got!r}, expected a dict")
    other = [f"the key {k!r} is missing" for k in keys if k not in got] + [
        f"the key {k!r} is not one of the expected ones" for k in got if k not in keys]
    assert not other, mistake("other_keys", f"{what}: {other[0]}; expected {' '.join(keys)}")
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
    got = number(subject.predict_bytes_a_parameter(), "predict_bytes_a_parameter")
    want = sum(kept_of_a_parameter().values())
    name, why = {
        2: ("weight_only", "that is only the weight"),
        4: ("no_adam", "that is weight and gradient; Adam stores numbers as well"),
        want - 4: ("one_missing", "one of Adam's three fp32 numbers is missing: its mean, its "
                                  "variance or its copy of the weight"),
    }.get(got, ("other_sum", "count weight, gradient and Adam's numbers; the first two have 2 "
                             "bytes each, Adam's have 4"))
    assert got == want, mistake(name, f"predict_bytes_a_parameter: not {got:g}: {why}", why)


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
    order = ("weights", "gradients", "optimiser")
    sizes = kept_of_a_parameter()
    shard = -(-parameters // W)

    def with_shard(share, sharded=lambda i: i > 2 - stage):
        return sum(sizes[p] * (share if sharded(i) else parameters) for i, p in enumerate(order))

    agree(subject.state_bytes(parameters, W, stage), held(parameters, W, stage),
          what=f"bytes of state, {parameters:,} parameters on {W} ranks, stage {stage}", mistakes={
        "part_too_few": ("one part too few is sharded at this stage",
                         held(parameters, W, max(stage - 1, 0))),
        "part_too_many": ("one part too many is sharded at this stage",
                          held(parameters, W, min(stage + 1, 3))),
        "all_sharded": ("everything is sharded, whatever the stage", held(parameters, W, 3)),
        "none_sharded": ("nothing is sharded, whatever the stage", held(parameters, 1, 0)),
        "rounded_down": ("the shard is rounded down: the last parameters are lost",
                         with_shard(parameters // W)),
        "whole_bytes": ("a shard is rounded up to whole bytes, not to whole parameters",
                        sum(-(-parameters * sizes[p] // W) if i > 2 - stage else
                            parameters * sizes[p] for i, p in enumerate(order))),
        "not_rounded": ("a shard is not rounded to whole parameters", with_shard(parameters / W)),
        "one_too_many": ("a shard is one parameter too many where W divides them: // W + 1",
                         with_shard(parameters // W + 1)),
        "own_part_only": ("a stage shards its own part alone; it shards those of the stages before "
                          "too", with_shard(shard, sharded=lambda i: i == 3 - stage)),
        "weights_first": ("the weights are sharded first; ZeRO starts with the optimiser",
                          with_shard(shard, sharded=lambda i: i < stage))})


def test_state_bytes__unseen(unseen, rng):
    for stage in range(4):
        unseen("state_bytes", int(rng.integers(1, 10**11)), int(rng.integers(2, 1000)), stage,
               precision="exact")
    for parameters, W, stage in rng.integers((0, 1, 0), (9, 6, 4), (100, 3)).tolist():
        unseen("state_bytes", parameters, W, stage, precision="exact")      # more ranks than those


def test_state_bytes__defaults(subject, agree):
    agree([subject.state_bytes(1001), subject.state_bytes(1001, 4)], [held(1001, 1, 0)] * 2,
          what="bytes of state, 1,001 parameters, one rank or 4, stage 0 by default", mistakes={
        f"default_{stage}": (f"stage is {stage} where it is not given, not 0",
                             [held(1001, 1, stage), held(1001, 4, stage)]) for stage in (1, 2, 3)})


def drawn(rng):
    """(Llama, B, T) that no one has seen: of the usual sizes, of the smallest, and past 2^31."""
    for low, high, most in ((2, 50, 3000), (2, 50, 3000), *[(1, 3, 3)] * 40):
        yield shape(rng, low, high), *rng.integers(1, most + 1, 2).tolist()
    yield RAGGED[0], 2**33 + int(rng.integers(9)), 2


def shape(rng, low=2, high=50):
    """A Llama that no one has seen."""
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
    width = B * T * m.C
    mlp = dict.fromkeys(("gate", "up", "silu", "hidden"), width)
    agree(got, list(want.values()), what=f"numbers that one layer keeps, {named(m, B, T)}",
          at=lambda i: KEPT[i[0]], mistakes={
        "keys_of_h": ("k and v are counted for H heads; they have only G",
                      but(want, k=want["q"], v=want["q"])),
        "mixed_c_wide": ("mixed has width C, not H · D", but(want, mixed=width)),
        "queries_c_wide": ("q and mixed have width C, not H · D", but(want, q=width, mixed=width)),
        "scores": ("lse counts the T × T scores; this attention keeps one number per query and "
                   "head", but(want, lse=B * m.H * T * T)),
        "lse_of_g": ("lse is kept for the G heads of k and v, not for the H of q",
                     but(want, lse=B * T * m.G)),
        "scale_of_one": ("a norm's scale is counted for one sequence: T numbers, not B · T",
                         but(want, scale=T, scale2=T)),
        "keys_c_wide": ("k and v have width C, not G · D", but(want, k=width, v=width)),
        "queries_of_g": ("q and mixed are counted for the G heads of the keys",
                         but(want, q=want["k"], mixed=want["k"])),
        "lse_a_token": ("lse is counted once per token; each head has its own",
                        but(want, lse=B * T)),
        "scale_a_channel": ("scale has one number per channel; it has one per token",
                            but(want, scale=width, scale2=width)),
        "mlp_c_wide": ("the MLP's arrays have width C, not F", but(want, **mlp)),
        "one_sequence": ("only one of the B sequences is counted",
                         [n // B for n in want.values()])})


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
    one = memory.counted_peak(layers[:1], x, False)
    inputs = B * T * m.C
    agree(subject.peak_activations(given(subject, m), B, T, recompute), want,
          what=f"numbers kept at the peak, {'with' if recompute else 'without'} recomputation, "
               f"{named(m, B, T)}", mistakes={
        "all_layers": ("all layers' arrays are counted, although each layer can be run again",
                       m.L * one),
        "inputs_only": ("only the inputs are counted; the layer that runs again has all its arrays "
                        "for a moment", m.L * inputs),
        "input_twice": ("the input of the layer that runs again is counted twice",
                        m.L * inputs + one),
        "no_own_input": ("the layer that runs again is counted without its own input",
                         (m.L - 2) * inputs + one),
        "inputs_h_d_wide": ("a layer's input is taken as H · D wide; it is C wide",
                            (m.L - 1) * B * T * m.H * m.D + one),
        "always_again": ("the layers run again, though recompute is False",
                         (m.L - 1) * inputs + one),
        "one_layer": ("only one layer is counted", one)})


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
        "backward_once": (
            "backward is counted once; it has two products for each one of forward",
            [n * (again - 1) // again if k != "lm_head" else n * 2 // 3 for k, n in want.items()]),
        "forward_only": ("only forward is counted",
                         [forward["matrices"], attention, forward["lm_head"]]),
        "lm_head_again": ("lm_head is recomputed; only the layers are",
                          but(want, lm_head=again * forward["lm_head"])),
        "not_again": ("recomputation is left out: the layers run forward a second time",
                      [3 * forward["matrices"], 3 * attention, 3 * forward["lm_head"]]),
        "attention_c_wide": ("attention is counted C wide; its heads have H · D numbers",
                             but(want, attention=want["attention"] * m.C // (m.H * m.D))),
        "square_of_all": ("attention squares all B · T tokens, but a sequence does not see the "
                          "others", but(want, attention=want["attention"] * B)),
        "no_tied_head": ("a tied lm_head is left out: it shares its weights, but has its own FLOPs",
                         but(want, lm_head=0)),
        "one_layer": ("one layer is counted instead of all L",
                      [n // m.L if k != "lm_head" else n for k, n in want.items()]),
        "scores_only": ("attention's scores are counted, but not their product with the values, or "
                        "half of the T × T square", but(want, attention=want["attention"] // 2)),
        "attention_of_g": ("attention is counted for G heads; there are H heads of queries",
                           but(want, attention=want["attention"] // m.H * m.G)),
        "one_a_pair": ("a multiply-add is counted as one FLOP; it is two",
                       [n // 2 for n in want.values()])})


def test_training_flops__unseen(unseen, rng):
    for m, *sizes in drawn(rng):
        more = [[], [False], [True]][int(rng.integers(3))]
        unseen("training_flops", lambda side, m=m: given(side, m), *sizes, *more,
               precision="exact", shown=f"{named(m, *sizes)}{', recompute=' * bool(more)}"
                                        f"{more[0] if more else ''}")


# ---- communication


def ring(collective, size, W):
    """Bytes that each rank of a ring sends, piece by piece."""
    piece = size / W
    sent = [0] * W
    tours = {"all_reduce": ("sum", "spread"), "reduce_scatter": ("sum",), "all_gather": ("spread",)}
    for _ in tours[collective]:
        for _ in range(W - 1):                              # a piece is W - 1 steps from its end
            for r in range(W):
                sent[r] += piece
    assert len(set(sent)) == 1, "the course's own case is wrong: please report it"
    return sent[0]


@pytest.mark.parametrize("size, W", [(24_000, 8), (24_000, 1), (24_000, 2), (24_000, 3), (10, 4)])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_sent_by(subject, agree, collective, size, W):
    want = ring(collective, size, W)
    agree(subject.sent_by(collective, size, W), want, "float64",
          what=f"bytes that each rank sends in an {collective} of {size:,} bytes on {W} ranks",
          mistakes={
        "one_trip": ("one trip around the ring is counted; an all_reduce needs two, to add and to "
                     "distribute", want / 2),
        "two_trips": ("two trips around the ring are counted; one is enough", 2 * want),
        "to_every_one": ("each rank sends the whole array to every other, or size stands for one "
                         "piece", size * (W - 1)),
        "one_piece": ("only one piece is counted; each rank sends W - 1", size / W),
        "w_rounds": ("W rounds are counted; W - 1 are enough, as the last would bring each piece "
                     "back to its start", want + size / W),
        "rounded_down": ("size / W is rounded down; use a float", want // (size / W) * (size // W)),
        "own_piece": ("the rank's own piece is counted as sent", 2 * size)})


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
    why = {"dp": "a step ends with one all_reduce of all gradients",
           "zero3": "the weights are gathered twice, for forward and for backward; the gradients "
                    "are reduce_scattered once",
           "tp": "each layer needs four all_reduces: attention and MLP, in forward and in backward",
           "sp": "an all_gather and a reduce_scatter replace each all_reduce of tp",
           "pp": "one hidden state to the next rank, and its gradient back to the one before"}[way]
    for ratio, words in ((2, "twice that"), (0.5, "half of that"), (1 / m.L, "that of one layer"),
                         (2 / 3, "two thirds of that"),
                         (hidden / counted_bytes, "that of one hidden state")):
        if abs(got / counted_bytes / ratio - 1) < 0.02:
            why += f"; your number is {words}"
            why += (": either two places a layer are counted, not four, or T/W of the tokens, but "
                    "size is that of the whole array" if (way, ratio) == ("sp", 0.5) else "")
            break
    assert 0.98 < got / counted_bytes <= 1, mistake(f"other_bytes_of_{way}", (
        f"{way}: {got:,.0f} bytes by step_bytes, {counted_bytes:,} were sent; {why}"), why)


@pytest.mark.parametrize("way", ["dp", "zero3", "tp", "sp", "pp"])
def test_step_bytes__any_shape(subject, agree, way):
    m, B, T, W, itemsize = LLAMA_8B, 3, 1000, 8, 2
    weights = 8_030_261_248 * itemsize
    hidden = itemsize * B * T * m.C
    want = {"dp": ring("all_reduce", weights, W), "zero3": 3 * ring("all_gather", weights, W),
            "tp": 4 * m.L * ring("all_reduce", hidden, W),
            "sp": 8 * m.L * ring("all_gather", hidden, W), "pp": 2 * hidden}[way]
    agree(subject.step_bytes(way, given(subject, m), B, T, W, itemsize), want, "float64",
          what=f"bytes that a rank sends per step of the 8B model under {way}, {W} ranks, B={B} "
               f"T={T}", mistakes={
        "numbers": ("numbers are counted, not bytes", want / itemsize),
        "one_layer": ("only one layer is counted", want / m.L)} | ({
        "each_layer_of_a_rank": ("a rank sends for each of its L/W layers, but only the last one's "
                                 "hidden state leaves it", want * m.L / W)} if way == "pp" else {
        "a_shard": ("1/W of the array stands for size, which is that of all", want / W),
        "two_ranks": ("the number is that of two ranks, whatever W is", want / (W - 1) * W / 2),
        "no_w": ("W is not used", want / (W - 1) * W)}))


def test_step_bytes__unseen(unseen, rng):
    for way in ("dp", "zero3", "tp", "sp", "pp"):
        for m, B, T in drawn(rng):
            W, itemsize = int(rng.integers(1, 9)), int(rng.choice([1, 2, 4, 8]))
            unseen("step_bytes", way, lambda side, m=m: given(side, m), B, T, W, itemsize,
                   shown=f"{way}, {named(m, B, T)} W={W} itemsize={itemsize}")


def test_predict_cheapest_way(subject):
    got = subject.predict_cheapest_way()
    assert got in ("dp", "tp"), mistake(
        "no_way", f"predict_cheapest_way: got {got!r}, expected \"dp\" or \"tp\"")
    m, W, B, T = LLAMA_8B, 8, 8, 8192
    cost = {"dp": ring("all_reduce", 2 * 8_030_261_248, W),
            "tp": 4 * m.L * ring("all_reduce", 2 * B * T * m.C, W)}
    assert got == min(cost, key=cost.get), mistake("dearer", (
        f"predict_cheapest_way: {got} sends more. dp sends the gradients, however many tokens "
        f"there are; tp sends hidden states 4 · L times. Estimate both"))
