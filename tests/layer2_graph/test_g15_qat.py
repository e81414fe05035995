"""Graders of g15.
Oracles are loops and PyTorch's own autograd, in float64."""

import json
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from day02_overview.nano.train import forward, shapes
from lab.judge.mistakes import mistake, raises
from layer2_graph.bench import qat as bench
from layer2_graph.g01_llama import Llama
from layer2_graph.g07_weight_quantization import (
    LEVELS,
    gptq,
    is_matrix,
    least_error_scales,
    round_trip,
)
from layer2_graph.g15_qat import (
    GRIDS,
    LEAST_SCALE,
    Student,
    export,
    on_grid,
    restored,
    searched_scales,
)

# ---- the predictions


def check_guess(name, guess, right, tolerance, why):
    """why: {a wrong guess: (id, sentence)}"""
    assert isinstance(guess, (int, float)), mistake(
        "no_number", f"{name}: a prediction is a number, got {guess!r}")
    near = [row for wrong, row in why.items() if abs(guess - wrong) < 0.01 * abs(wrong) + 1e-9]
    label, sentence = near[0] if near else ("other", "Take one group, or one step, and count.")
    assert abs(guess - right) <= tolerance * right, mistake(
        label, f"{name}: predicted {guess:g}. {sentence}", sentence)


def test_predict_dead_share(subject):
    """Counted in 10,000 groups."""
    groups = torch.from_numpy(np.random.default_rng(0).standard_normal((10_000, 32)))
    right = (groups / groups.abs().amax(-1, keepdim=True)).abs().ge(1).float().mean().item()
    check_guess("predict_dead_share", subject.predict_dead_share(), right, 0.05, {
        0: ("largest_inside", "Nothing is clamped, so it looks as if all were inside. But the "
            "largest of a group has |w / s| = 1, which is not below 1."),
        0.5: ("half_rounded", "Many weights get a code of 0, but that is well inside."),
        1: ("all_dead", "That is round's own gradient, without any rule.")})


def test_predict_steps_to_move(subject):
    """Counted, with AdamW and a gradient that does not change."""
    w = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.AdamW([w], lr=1e-3, weight_decay=0)
    steps = 0
    while (w / 0.1).round() == 0:
        w.grad = torch.tensor(-3.0, dtype=torch.float64)
        optimiser.step()
        steps += 1
    check_guess("predict_steps_to_move", subject.predict_steps_to_move(), steps, 0.1, {
        1: ("each_step", "That would be so if a step moved ŵ. It moves w, by 0.001."),
        100: ("whole_level", "Levels are 0.1 apart, but the border to the next one is half as "
              "far."),
        25: ("quarter_level", "The border lies half of a level away, 0.05.")})


# ---- as_half


@pytest.mark.parametrize("n", [1, 127, 129, 1000])
def test_as_half(subject, agree, rng, n):
    x = torch.from_numpy(rng.standard_normal(n) * 10.0 ** rng.uniform(-6, 4, n)).float()
    got = subject.as_half(x)
    assert got.dtype == torch.float32, mistake(
        "stays_half", f"as_half: the result is {got.dtype}, expected x's own torch.float32: it is "
        f"rounded, and then goes on in fp32")
    agree(got, x.half().float().numpy(), "exact", f"as_half of {n} numbers", mistakes={
        "not_rounded": ("x comes back as it was", x.numpy())})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_half__gradient(subject, agree, rng, dtype):
    x = torch.from_numpy(rng.uniform(-2, 2, 129)).to(dtype).requires_grad_()
    upstream = torch.from_numpy(rng.standard_normal(129) * 10.0 ** rng.uniform(-12, 2, 129)
                                ).to(dtype)
    with raises("detached", RuntimeError, "Nothing of the result depends on x: no gradient at all "
                "comes back."):
        got, = subject.grad("as_half", [x], upstream)
    agree(got, upstream.numpy(), "exact", "the gradient of as_half", mistakes={
        "gradient_in_16_bits": ("the gradient goes through fp16, too, where small ones are 0",
                                upstream.half().to(dtype).numpy()),
        "doubled": ("x and its rounding both pass the gradient on", 2 * upstream.numpy())})


# ---- Round.backward


def slopes(r, q, low, top, wrong):
    """(∂ŵ/∂w, ∂ŵ/∂s) of one weight. r: w / s    q: r rounded, not clamped"""
    inside = {"dead_at_bound": low < r < top, "dead_by_rounding": low <= r <= top, "no_clip": True,
              "mirrored": abs(q) <= top}.get(wrong, low <= q <= top)
    code = min(max(q, low), top)
    of_scale = code - r if inside else code
    if wrong == "scale_of_outside" and not inside:
        of_scale = 0
    if wrong == "clamped_ratio":
        of_scale = code - min(max(r, low), top)
    return float(inside and wrong != "true_gradient"), -of_scale if wrong == "scale_sign" \
        else of_scale


def book(w, scales, upstream, low, top, wrong=None):    # -> gradients (R, K), (R, groups)
    """Weight by weight. wrong: the id of a mistake to make"""
    of_w = np.zeros_like(w)
    of_scales = np.zeros_like(scales)
    n = w.shape[1] // scales.shape[1]
    for i, k in np.ndindex(*w.shape):
        s = scales[i, k // n]
        by_w, by_s = slopes(w[i, k] / s, round(w[i, k] / s), low, top, wrong)
        of_w[i, k] = upstream[i, k] * by_w / (s if wrong == "divides_by_scale" else 1)
        of_scales[i, k // n] += upstream[i, k] * by_s
    if wrong == "scale_not_shared":
        of_scales[:] = of_scales.sum(-1, keepdims=True)
    return of_w, of_scales / (1 if wrong == "not_scaled" else math.sqrt(n * top))


OF_W = {
    "dead_at_bound": "a weight exactly at the bound gets no gradient: its code needed no clamping, "
                     "so it is inside, and every group's largest weight lies there",
    "dead_by_rounding": "inside is taken to be low ≤ w/s ≤ top: w/s may be 1.0003 and its code 1, "
                        "without any clamping",
    "no_clip": "weights far outside get a gradient, too: they drift further, and no code changes",
    "mirrored": "inside is taken to be |code| ≤ top: codes may reach further down than up",
    "true_gradient": "nothing gets a gradient, which is round's own: look past it",
    "divides_by_scale": "the gradient is divided by the scale: ŵ = s · round(w / s) follows w one "
                        "to one",
}
OF_SCALES = {
    "scale_of_outside": "weights outside do not count: ŵ = s · top there, so each pulls with top",
    "clamped_ratio": "w / s is clamped before it is subtracted: inside it is taken as it is, and "
                     "outside not at all",
    "scale_sign": "the sign is turned round: it is q - w/s, and the scale would move away",
    "scale_not_shared": "the sum goes over the whole row: each group has a scale of its own",
    "not_scaled": "the division by sqrt(n · top) is missing",
}


def weights_on_purpose(rng, rows, groups, n, low, top):
    """w, scales, upstream as float64 arrays of fp32 numbers.
    The first weights of each group lie at a bound, beyond it, and halfway between two codes;
    none lies near a half by chance."""
    scales = 2.0 ** rng.integers(-6, 3, (rows, groups)) * rng.integers(33, 64, (rows, groups)) / 64
    whole = rng.integers(low - 3, top + 4, (rows, groups, n))
    ratio = whole + rng.uniform(-0.45, 0.45, whole.shape)
    edges = [top, low, 0, top + 0.4, low - 0.4, top + 0.6, low - 0.6, top - 0.5, top + 0.5,
             low - 0.5, top + 2.2, low - 2.2][:n]
    ratio[..., :len(edges)] = edges
    w = np.float32((ratio * scales[..., None]).reshape(rows, groups * n))
    return w.astype(np.float64), scales, np.float32(rng.standard_normal(w.shape)).astype(np.float64)


def check_backward(subject, agree, arrays, low, top, what):
    w, scales, upstream = (torch.from_numpy(a).float() for a in arrays)
    n = w.shape[1] // scales.shape[1]
    w.requires_grad_()
    scales.requires_grad_()
    got = subject.grad("on_grid", [w, scales, low, top], upstream)
    want = book(*arrays, low, top)

    def place(index):
        ratio = arrays[0][index] / arrays[1][index[0], index[1] // n]
        return f"row {index[0]}, column {index[1]}, where w/s = {ratio:.4g}"

    def wrong(sentences, part):
        return {name: (why, book(*arrays, low, top, name)[part])
                for name, why in sentences.items() if name != "mirrored" or low != -top}

    what = f"{what}, codes from {low} to {top}"
    agree(got[0], want[0], "float32", f"the gradient of w, {what}", place, wrong(OF_W, 0))
    agree(got[1], want[1], "float32", f"the gradient of the scales, {what}",
          lambda i: f"row {i[0]}, group {i[1]}", wrong(OF_SCALES, 1))


@pytest.mark.parametrize("low, top", [(-1, 1), (-3, 3), (-7, 7), (-2, 1), (0, 1)])
def test_Round_backward(subject, agree, rng, low, top):
    check_backward(subject, agree, weights_on_purpose(rng, 3, 3, 32, low, top), low, top,
                   "3 groups of 32")


@pytest.mark.parametrize("rows, groups, n", [(1, 1, 1), (2, 1, 127), (1, 8, 125), (0, 2, 16)])
def test_Round_backward__ragged(subject, agree, rng, rows, groups, n):
    check_backward(subject, agree, weights_on_purpose(rng, rows, groups, n, -1, 1), -1, 1,
                   f"{rows} rows, {groups} groups of {n}")


# ---- Student.step


TINY = {"vocab_size": 13, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 48, "rms_norm_eps": 1e-5,
        "rope_theta": 1e4}
GROUP, RATE = 16, 0.01


def tiny(rng):
    """Weights in float64.
    Those of some groups are so small that their scales are the least."""
    weights = {name: torch.from_numpy(rng.standard_normal(shape) * (0.3 if is_matrix(name) else 1))
               for name, shape in shapes(TINY)}
    weights["model.layers.0.mlp.up_proj.weight"][:12] *= 1e-9
    return weights


def seen(w, s, low, top):
    """ŵ with the gradients of the text, by differences that have none."""
    half = s + (s.half().double() - s).detach()
    shrunk = half / math.sqrt(w.shape[-1] / s.shape[-1] * top)
    half = shrunk + (half - shrunk).detach()
    ratio = w.unflatten(-1, (s.shape[-1], -1)) / half[..., None]
    q = ratio.detach().round()
    line = ratio * ((q >= low) & (q <= top))
    return ((line + (q.clamp(low, top) - line).detach()) * half[..., None]).flatten(-2)


class Book:
    """Training by the book: AdamW number by number. wrong: the id of a mistake to make"""

    def __init__(self, weights, scales, bounds, wrong=None):
        self.weights = {name: w.detach().clone().requires_grad_() for name, w in weights.items()}
        self.scales = {name: s.detach().clone().requires_grad_() for name, s in scales.items()}
        self.bounds, self.wrong, self.t = bounds, wrong, 0
        every = [*self.weights.values(), *self.scales.values()]
        self.state = [(w, torch.zeros_like(w), torch.zeros_like(w), torch.zeros_like(w))
                      for w in every]                           # each with m, v and its gradient

    def fake(self):
        return {name: seen(w, self.scales[name], *self.bounds) if name in self.scales else
                w + (w.half().double() - w).detach() for name, w in self.weights.items()}

    def step(self, tokens):
        self.t += 1
        logits = forward(TINY, self.fake(), tokens[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        gradients = torch.autograd.grad(loss, [w for w, *_ in self.state], allow_unused=True)
        for (*_, total), g in zip(self.state, gradients, strict=True):
            total.mul_(self.wrong == "gradients_add_up").add_(0 if g is None else g)
        norm = math.sqrt(sum(float(total.square().sum()) for *_, total in self.state))
        for w, m, v, total in self.state:
            if self.wrong != "not_clipped":
                total *= min(1, 1 / (norm + 1e-6))              # as PyTorch keeps it from 0
            m.lerp_(total, 0.1)
            v.lerp_(total * total, 0.001)
            w.data -= RATE * (m / (1 - 0.9 ** self.t)) / ((v / (1 - 0.999 ** self.t)).sqrt() + 1e-8)
        if self.wrong != "no_floor":
            for s in self.scales.values():
                s.data.clamp_(min=LEAST_SCALE)
        if self.wrong == "rounds_weights":
            for name, w in self.fake().items():
                self.weights[name].data.copy_(w)
        return loss.item()


STEPS = {
    "rounds_weights": "the rounded weights are written back: what a small step has added to a "
                      "weight is lost, and its code never changes",
    "gradients_add_up": "the gradients of the step before are still there (`zero_grad`)",
    "not_clipped": "gradients are not shortened to MAX_NORM",
    "no_floor": "a scale is below LEAST_SCALE, and where it is negative, the group's signs turn",
}


def check_steps(subject, agree, rng, bounds):
    weights = tiny(rng)
    student = subject.Student(TINY, weights, bounds, GROUP, RATE)
    books = {name: Book(weights, student.scales, bounds, name) for name in (None, *STEPS)}
    for number in range(3):
        tokens = torch.from_numpy(rng.integers(13, size=(2, 9 + 20 * number)))
        losses = {name: one.step(tokens) for name, one in books.items()}
        got = student.step(tokens)
        assert isinstance(got, float), mistake(
            "no_number", f"step: returned {got!r}, expected the loss before the step, a float")
        what = f"after step {number + 1}, codes from {bounds[0]} to {bounds[1]}"
        agree(got, losses[None], "float32", f"the loss of step {number + 1}")
        for kind in ("scales", "weights"):
            tensors = getattr(student, kind)
            for name, want in getattr(books[None], kind).items():
                agree(tensors[name].detach(), want.detach().numpy(), "float32",
                      f"{kind} of {name} {what}", lambda i: f"row {i[0]}, column {i[-1]}", {
                          label: (why, getattr(books[label], kind)[name].detach().numpy())
                          for label, why in STEPS.items()})


@pytest.mark.parametrize("bounds", [(-1, 1), (-2, 1), (-7, 7)])
def test_Student_step(subject, agree, rng, bounds):
    check_steps(subject, agree, rng, bounds)


# ---- export


def to_export(rng):
    """Weights and scales that training has left anywhere: in fp32, and not at the largest |w|.

    Some weights lie halfway between two codes: eight of each group by the fp32 scale, which fp16
    decides, and six by the fp16 scale.
    """
    weights = {"a.q_proj.weight": (9, 96), "a.down_proj.weight": (5, 32), "norm.weight": (33,)}
    weights = {name: torch.from_numpy(rng.standard_normal(shape)).float()
               for name, shape in weights.items()}
    scales = {name: torch.from_numpy(rng.uniform(0.05, 0.6, (len(w), w.shape[1] // 32))).float()
              for name, w in weights.items() if w.ndim == 2}
    for name, s in scales.items():
        groups, s = weights[name].view(len(s), -1, 32), s[..., None]
        groups[..., :8] = 0.5 * s
        groups[..., 8:14] = torch.tensor([0.5, -0.5, 1.5, -1.5, 2.5, -2.5]) * s.half().float()
    return weights, scales


PACKED = {"int4": (2, 16, -7), "2 bits": (4, 4, -2), "ternary": (5, 3, -1)}


def unpacked(codes, grid, count):
    """The codes of bytes: digits, ones first, plus the smallest code."""
    n, radix, smallest = PACKED[grid]
    digits = [int(byte) // radix ** i % radix for byte in codes for i in range(n)]
    return np.array(digits[:count], int) + smallest


def check_codes(agree, one, w, s, absmax, grid, what):
    """Codes of one matrix. s: its scales    absmax: those of its largest |w|"""
    low, top = GRIDS[grid]
    bytes_of_all = -(-w.numel() // PACKED[grid][0])
    assert tuple(one.codes.shape) == (bytes_of_all,), mistake(
        "packed_otherwise", f"export: codes of {what} have the shape {tuple(one.codes.shape)}, "
        f"expected ({bytes_of_all},): give `pack` the grid's low and top")
    assert one.codes.dtype == torch.uint8, mistake(
        "codes_not_uint8", f"export: codes of {what} are {one.codes.dtype}, expected torch.uint8")

    def ratio(divisor):
        return w.double().unflatten(1, (-1, 32)) / divisor.double()[..., None]

    def over(divisor, low=low, rule=torch.round):
        return rule(ratio(divisor)).clamp(low, top).flatten().int().numpy()

    agree(unpacked(one.codes.numpy(), grid, w.numel()), over(s.half()), "exact",
          f"export: codes of {what}", mistakes={
              "codes_of_fp32_scales": ("codes come from the fp32 scales: a kernel has those in "
                                       "fp16", over(s)),
              "codes_of_fresh_scales": ("codes come from scales made of the weights, not the "
                                        "learned ones", over(absmax)),
              "weights_not_divided": ("codes are the rounded weights, without their scales",
                                      over(torch.ones_like(s))),
              "clamped_evenly": ("codes are clamped to -top and top: the smallest code is low",
                                 over(s.half(), low=-top)),
              "cut_off": ("codes are cut off towards 0; the forward pass rounds them",
                          over(s.half(), rule=torch.trunc)),
              "ties_up": ("halfway between two codes the upper one is taken; the forward pass "
                          "takes the even one", over(s.half(), rule=lambda r: (r + 0.5).floor()))})


@pytest.mark.parametrize("grid", GRIDS)
def test_export(subject, agree, rng, grid):
    weights, scales = to_export(rng)
    got = subject.export(weights, scales, *GRIDS[grid])
    assert isinstance(got, dict) and set(got) == set(weights), mistake(
        "names", f"export: expected the names {sorted(weights)}")
    norm = got["norm.weight"]
    assert isinstance(norm, torch.Tensor) and norm.dtype == torch.float16, mistake(
        "norm_not_half", "export: norm.weight has no scales, and ships as an fp16 tensor")
    for name, s in scales.items():
        one, w = got[name], weights[name]
        assert not isinstance(one, torch.Tensor), mistake(
            "not_packed", f"export: {name} is a tensor, expected a PackedMatrix")
        assert one.scales.dtype == torch.float16, mistake(
            "scales_not_half", f"export: scales of {name} are {one.scales.dtype}, expected fp16")
        absmax = (w.unflatten(1, (-1, 32)).abs().amax(-1) / GRIDS[grid][1]).half().float()
        agree(one.scales.float(), s.half().float().numpy(), "exact", f"export: scales of {name}",
              mistakes={"fresh_scales": ("scales are made from the weights again: those that "
                                         "training has learned are lost", absmax.numpy())})
        check_codes(agree, one, w, s, absmax, grid, f"{name}, {grid}")
        assert tuple(one.shape) == tuple(w.shape), mistake(
            "shape_lost", f"export: {name} has the shape {one.shape}, expected {tuple(w.shape)}")


# ---- what is given


@pytest.fixture(scope="module")
def small():
    m = json.loads((bench.SMALL / "config.json").read_text("utf-8"))
    model = bench.load(bench.SMALL, dtype=torch.float32)
    return m, model


@pytest.mark.parametrize("name", ["int4", "ternary"])
def test_the_forward_pass_is_g07s(rng, name):
    w = torch.from_numpy(rng.standard_normal((7, 96))).float()
    searched = searched_scales(w, *GRIDS[name], 32)
    assert torch.equal(searched, least_error_scales(w, LEVELS[name], 32))
    assert torch.equal(on_grid(w, searched, *GRIDS[name]), round_trip(w, LEVELS[name], searched))


def test_search_finds_no_worse_scales_for_a_level_more(rng):
    w = torch.from_numpy(rng.standard_normal((50, 32))).float()
    lost = [(on_grid(w, searched_scales(w, *GRIDS[name], 32), *GRIDS[name]) - w).square().sum()
            for name in ("ternary", "2 bits")]
    assert lost[1] < lost[0]


@pytest.mark.parametrize("name", GRIDS)
def test_what_ships_reads_as_what_was_trained(small, name):
    """Logits are equal bit by bit, though scales were learned in fp32."""
    m, model = small
    student = Student(m, model.weights, GRIDS[name], 32)
    for scales in student.scales.values():
        scales.data *= 1.0123
    packed = export(student.weights, student.scales, *GRIDS[name])
    back = restored(packed, *GRIDS[name])
    fake = student.fake()
    assert all(torch.equal(w, back[key]) for key, w in fake.items())
    bits = {"int4": 4.5, "2 bits": 2.5, "ternary": 2.1}[name]
    matrices = [(one, model.weights[key]) for key, one in packed.items() if is_matrix(key)]
    nbytes = sum(one.nbytes for one, _ in matrices)
    assert nbytes == pytest.approx(bits / 8 * sum(w.numel() for _, w in matrices), rel=1e-4)
    assert isinstance(Llama(model.config, back, model.ops), Llama)


@pytest.mark.parametrize("name", GRIDS)
def test_ties_ship_as_the_forward_pass_rounds_them(name):
    """Every half from -10 to 10, over scales that fp16 has."""
    low, top = GRIDS[name]
    scales = torch.tensor([[0.25], [0.3], [1.7]]).half().float()
    w = torch.arange(-10, 10.5, 0.5) * scales
    want = [float(min(max(round(i / 2), low), top)) for i in range(-20, 21)]    # Python's: to even
    assert (on_grid(w, scales, low, top) / scales).tolist() == [want] * 3
    back = restored(export({"w": w}, {"w": scales}, low, top), low, top)
    assert torch.equal(back["w"], on_grid(w, scales, low, top))


@pytest.mark.parametrize("call, says", [
    (lambda: on_grid(torch.ones(64, 96), torch.ones(64, 5), -1, 1), r"scales \(64, 5\) for weights "
     r"\(64, 96\), expected \(64,\) and a divisor of 96"),
    (lambda: on_grid(torch.ones(2, 4), torch.ones(2, 2), -1, 0), "codes from -1 to 0, expected"),
    (lambda: on_grid(torch.ones(2, 4), -torch.ones(2, 2), -1, 1), "least scale is -1, expected"),
    (lambda: export({}, {"k_proj": torch.tensor([[-0.01]])}, -1, 1),
     "k_proj has a scale of -0.01, expected above 0")])
def test_bad_input_is_one_sentence(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_a_loss_that_is_no_number_is_one_sentence(rng):
    student = Student(TINY, tiny(rng), (-1, 1), GROUP)
    student.weights["model.norm.weight"].data[3] = math.nan
    with pytest.raises(ValueError, match="the loss is nan at step 0; the rate is 0.001"):
        student.step(torch.zeros(1, 3, dtype=torch.int64))


def test_gptq_of_the_bench_is_g07s(rng):
    w = torch.from_numpy(rng.standard_normal((5, 64)))
    x = torch.from_numpy(rng.standard_normal((200, 64)))
    scales = least_error_scales(w, LEVELS["ternary"], 32)
    codes = gptq(w, x.T @ x, LEVELS["ternary"], scales)
    back = (codes.to(w.dtype).unflatten(1, (-1, 32)) * scales[..., None]).flatten(1)
    torch.testing.assert_close(bench.gptq_on_grid(w, x.T @ x, scales, -1, 1), back)


def test_awq_of_the_bench_spares_columns_of_large_inputs(rng):
    w = torch.from_numpy(rng.standard_normal((5, 64))).float()
    low, top = GRIDS["int4"]
    plain = on_grid(w, searched_scales(w, low, top, 32), low, top)
    assert torch.equal(bench.awq_on_grid(w, torch.eye(64), low, top), plain)
    x = torch.from_numpy(rng.standard_normal((200, 64))).float() * torch.logspace(-1, 1, 64)
    hessian = x.T @ x
    lost = [float(((fake - w) @ x.T).square().sum())
            for fake in (plain, bench.awq_on_grid(w, hessian, low, top))]
    assert lost[1] < 0.9 * lost[0]


# ---- the record


@pytest.fixture(scope="module")
def record():
    return json.loads(bench.RECORD.read_text("utf-8"))


def test_the_record_is_of_the_script_that_is_there(record):
    for runs in record["runs"].values():
        for seed, run in runs.items():
            steps = run["stories by step"]
            assert run["seed"] == int(seed) and run["steps"] == len(run["loss"]) == bench.STEPS
            assert run["tokens"] == bench.STEPS * bench.B * bench.T
            assert list(steps) == list(map(str, bench.JUDGED))
            assert steps[str(bench.STEPS)] == pytest.approx(run["stories"], rel=1e-6)
            assert run["moved"]["0"] == 0


def test_the_recorded_perplexities_are_of_the_shipped_model(small, record):
    _, model = small
    stories = bench.Judge(model).parts["stories"]
    low, top = GRIDS["ternary"]
    rounded = bench.with_matrices(
        model, lambda _, w: on_grid(w, searched_scales(w, low, top, 32), low, top))
    for name, llama in (("fp32", model), ("ternary, searched", rounded)):
        assert bench.perplexity(llama, stories) == pytest.approx(
            record["rounded"][name]["stories"], rel=1e-3)
    first = {run["stories by step"]["0"] for run in record["runs"]["ternary, QAT"].values()}
    assert all(p == pytest.approx(record["rounded"]["ternary, searched"]["stories"], rel=1e-3)
               for p in first)


def test_the_share_won_back_is_of_the_loss():
    assert bench.share(math.e ** 3, math.e, math.e ** 1.5) == pytest.approx(0.75)


def test_what_the_text_says_of_the_record_is_so(record):
    rows, runs = record["rounded"], record["runs"]
    fp32 = rows["fp32"]["stories"]
    for grid, lost in (("ternary", 0.62), ("2 bits", 0.29)):
        assert rows[f"{grid}, GPTQ"]["stories"] - fp32 == pytest.approx(lost, abs=0.005)
        for run in runs[f"{grid}, QAT"].values():
            steps = run["stories by step"]
            assert run["stories"] - fp32 < 0.04
            assert run["docstrings"] > 1.3 * rows[f"{grid}, searched"]["docstrings"]
            assert steps["0"] - steps["10"] > steps["10"] - steps["300"]
            assert run["moved"]["300"] == pytest.approx(0.03, abs=0.003)
            assert run["moved"]["300"] - run["moved"]["10"] < 290 * 0.0001
            assert run["seconds"] < 80
    for grid, won in (("ternary", 0.02), ("2 bits", -0.09)):
        lost, tried = (rows[f"{grid}, {way}"]["stories"] for way in ("searched", "AWQ"))
        assert bench.share(lost, fp32, tried) == pytest.approx(won, abs=0.005)
    for found in runs.values():
        stories = [run["stories"] for run in found.values()]
        assert len(stories) == bench.SEEDS and max(stories) - min(stories) < 0.02
    rounded = rows["ternary, searched"]["stories"]
    for seed, run in runs["ternary, scales"].items():
        own = runs["ternary, QAT"][seed]["stories"]
        assert own < run["stories"]
        assert bench.share(rounded, fp32, run["stories"]) > 0.85
    for run in runs["2 bits, mixed"].values():
        for part in ("stories", "docstrings"):
            lost, best = rows["2 bits, searched"][part], rows["fp32"][part]
            assert bench.share(lost, best, run[part]) > 0.65
    for seed, run in runs["int4, QAT"].items():
        assert run["stories"] < fp32 and run["docstrings"] > rows["fp32"]["docstrings"] + 10
        low = rows["2 bits, searched"]["stories"]
        assert bench.share(low, run["stories"], runs["2 bits, QAT"][seed]["stories"]) > 0.89
