"""Graders of k10.
Outputs start as 7, which no answer is, so that unwritten places show."""

import itertools

import numpy as np
import pytest

from lab.judge.addresses import FAR, tiles_in_64_bits
from lab.judge.adversarial import VALUES, shifted
from lab.judge.compare import rounded_once
from lab.judge.mistakes import mistake, same_report
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.matmul_cases import tf32
from tests.layer1_kernels.mistake_rows import telling
from tests.layer1_kernels.row_cases import at, tensors

SIZES = [(3, 1000, "float32"), (1, 1, "float32"), (2, 127, "float16"), (3, 129, "bfloat16")]
TILES = [(17, 72, 20, "float32"), (1, 16, 1, "float32"), (17, 50, 33, "float16"),
         (16, 64, 48, "bfloat16"), (3, 0, 5, "float32")]            # T, C, F, dtype
HARD = {                                        # words: a generator of rows
    "numbers around 200": shifted, "negative numbers only": VALUES["negative"],
    "rows of equal numbers": VALUES["equal"], "rows of very different sizes": VALUES["uneven"],
    "0 and -0 among the numbers": VALUES["signed_zeros"],
    "numbers around 1e-40": VALUES["denormal"], "-inf among the numbers": VALUES["infinite"],
    "a NaN": VALUES["not_a_number"]}
BLOCK = 128                                     # columns of a program of swiglu_triton
BC = 32                                         # unlike BF: no tile fits the wrong way round
SHAPE = {"BT": 16, "BF": 16, "BC": BC, "GROUP": 2}


# ---- inputs, oracles, and what goes wrong


def sigmoid(g):
    return 1 / (1 + np.exp(-g))


def silu(g):
    return g * sigmoid(g)


def of_gates(gate, up):
    """{id: (what the kernel does, what it gives)} from gate and up in float64."""
    grown = np.exp(gate.astype(np.float32)).astype(np.float64)
    return {
        "silu_of_up": ("applies SiLU to up; apply it to gate", silu(up) * gate),
        "sigmoid_alone": ("forgets the factor g of SiLU(g) = g · sigmoid(g)", sigmoid(gate) * up),
        "no_sigmoid": ("computes gate · up, without the sigmoid", gate * up),
        "gate_alone": ("writes the gate alone: up and SwiGLU are missing", gate),
        "no_up": ("writes SiLU(gate), without up", silu(gate)),
        "sigmoid_of_minus": ("takes the sigmoid of -gate", gate * sigmoid(-gate) * up),
        "silu_of_both": ("applies SiLU to both; up stays as it is", silu(gate) * silu(up)),
        "gate_twice": ("multiplies SiLU(gate) by gate again, not by up", silu(gate) * gate),
        "up_added": ("adds up; multiply SiLU(gate) by it", silu(gate) + up),
        "relu": ("applies ReLU to gate, not SiLU", np.maximum(gate, 0) * up),
        "tanh": ("takes tanh, not the sigmoid", gate * np.tanh(gate) * up),
        "exp_alone": ("multiplies by exp(gate), not its sigmoid", gate * np.exp(gate) * up),
        "overflow": ("divides exp(g) by 1 + exp(g), and inf / inf is NaN: use 1 / (1 + exp(-g)) or "
                     "tl.sigmoid", gate * (grown / (1 + grown)) * up),
        "not_stored": ("writes nothing", np.full_like(gate, 7))}


# ---- by itself


def run_swiglu(subject, gate, up, block=BLOCK):
    (T, F) = gate.shape
    y = gate.new_full((T, F), 7)
    launch = subject.launch("swiglu_triton", T * -(-F // block),
                            args=(gate, up, y, F, gate.stride(0), up.stride(0)), BLOCK=block)
    return y, launch


@pytest.mark.parametrize("T, F, dtype", SIZES)
def test_swiglu_triton(subject, agree, rng, T, F, dtype):
    name = "swiglu_triton"
    both = 3 * rng.standard_normal((T, 2 * F))
    tensor, = tensors(dtype, both)
    got, _ = run_swiglu(subject, *tensor.chunk(2, dim=-1))
    gate, up = np.split(both, 2, axis=-1)
    want = silu(gate) * up
    near_gate, near_up = (both.reshape(-1)[start + np.arange(T)[:, None] * F + np.arange(F)]
                          for start in (0, F))              # as read with rows F numbers apart
    first = np.broadcast_to(np.arange(F) < BLOCK, (T, F))
    agree(got, want, dtype, f"{name}, {T} row(s) of {F} {dtype}, gate and up halves of one array",
          at, telling(name, want, of_gates(gate, up) | {
              "rows_of_F": ("reads gate and up as if their rows were F numbers apart; they are "
                            "gate_stride and up_stride apart", silu(near_gate) * near_up),
              "up_rows_of_F": ("reads up as if its rows were F numbers apart; they are up_stride "
                               "apart", silu(gate) * near_up),
              "gate_rows_of_F": ("reads gate as if its rows were F numbers apart; they are "
                                 "gate_stride apart", silu(near_gate) * up),
              "first_block": ("writes only the first BLOCK columns", np.where(first, want, 7)),
              "one_program": ("writes only in the first program", np.where(
                  first & (np.arange(T)[:, None] == 0), want, 7))}))


def test_swiglu_triton__rounded_once(subject, rng):
    for dtype in ("float16", "bfloat16"):
        both = 3 * rng.standard_normal((3, 600))
        tensor, = tensors(dtype, both)
        got, _ = run_swiglu(subject, *tensor.chunk(2, dim=-1))
        rounded_once(got, swiglu(*np.split(both, 2, axis=-1)), "swiglu_triton",
                     f"3 rows of 300 {dtype}")


def test_swiglu_triton__two_strides(subject, agree, rng):
    gate, up = rng.standard_normal((3, 200)), rng.standard_normal((3, 100))
    g, u = tensors("float32", gate, up)
    with same_report("up_at_gate_stride", "Rows of up are up_stride numbers apart.",
                     kind="out_of_bounds", array="up"):
        got, _ = run_swiglu(subject, g[:, :100], u)
    agree(got, silu(gate[:, :100]) * up, "float32", "swiglu_triton, rows of gate 200 numbers apart "
          "and rows of up 100", at)


def test_swiglu_triton__hard_rows(subject, agree):
    gate = np.float32([[-1e4, -100, -20, 0, 20, 100, 1e4]])
    up = np.ones_like(gate)
    got, _ = run_swiglu(subject, *tensors("float32", gate, up))
    exact = gate.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        agree(got, silu(exact), "float32", "swiglu_triton, gates from -10,000 to 10,000", at,
              telling("swiglu_triton", silu(exact), of_gates(exact, up)))


def test_swiglu_triton__hard_numbers(subject, agree, rng):
    """Each kind in the gate, then in up."""
    for (what, generator), way in itertools.product(HARD.items(), (1, -1)):
        arrays = generator(rng, (3, 150)).astype(float), rng.standard_normal((3, 150))
        gate, up = arrays[::way]
        got, _ = run_swiglu(subject, *tensors("float32", gate, up))
        with np.errstate(all="ignore"):
            want = silu(gate) * up
            mistakes = telling("swiglu_triton", want, of_gates(gate, up))
        for t in range(3):
            agree(got[t:t + 1], want[t:t + 1], "float32",
                  f"swiglu_triton, {what} in {('gate', 'up')[way < 0]}, row {t}",
                  lambda i: f"column {i[1]}", {known: (sentence, gives[t:t + 1])
                                               for known, (sentence, gives) in mistakes.items()})


def test_swiglu_triton__work(subject, reference, rng):
    both, = tensors("float32", rng.standard_normal((4, 4096)))
    _, launch = run_swiglu(subject, *both.chunk(2, dim=-1), block=1024)
    for op, least in (("load", both.nbytes), ("store", both.nbytes // 2)):
        got = launch.bytes(op)
        meaning = f"{op.capitalize()} each number once."
        assert got <= least, mistake(
            f"{op}s_again", f"swiglu_triton {op}s {got:,} bytes; {least:,} are enough. {meaning}",
            meaning)
        counts = launch.memory("global", op)
        meaning = f"Use f as it is, so that neighbouring positions {op} neighbouring numbers."
        assert counts["transactions"] == counts["ideal"] and launch.sectors_per_request(op) == 16, \
            mistake(f"scattered_{op}", f"swiglu_triton: one {op} request of a warp touches "
                    f"{launch.sectors_per_request(op):g} sectors; 16 full sectors are 16 bytes a "
                    f"thread. {meaning}", meaning)
    same_work("swiglu_triton", launch,
              run_swiglu(reference, *both.chunk(2, dim=-1), block=1024)[1])


# ---- at the end of a matmul


def run_matmul(subject, x, w):
    (T, C), F = x.shape, w.shape[0] // 2
    y = x.new_full((T, F), 7)
    grid = -(-T // SHAPE["BT"]) * -(-F // SHAPE["BF"])
    return y, subject.launch("matmul_swiglu_triton", grid, args=(x, w, y, T, C, F), **SHAPE)


def test_predict_numbers_saved(subject, reference, rng):
    T, C, F = 32, 32, 32
    x, w = tensors("float32", rng.standard_normal((T, C)), rng.standard_normal((2 * F, C)))
    both = x.new_full((T, 2 * F), 7)
    shape = {"BM": 16, "BN": 32, "BK": BC, "GROUP": 2}      # a program loads as much as with SHAPE
    first = reference.launch("matmul_tiled_triton", 4, args=(x, w, both, T, 2 * F, C, C, 1, C, 1),
                             **shape)
    _, second = run_swiglu(reference, *both.chunk(2, dim=-1))
    _, one = run_matmul(reference, x, w)
    moved = [launch.bytes("load") + launch.bytes("store") for launch in (first, second, one)]
    want = (moved[0] + moved[1] - moved[2]) / (T * F * x.element_size())
    got = subject.predict_numbers_saved()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_numbers_saved: expected a number, got {got!r}")
    known, why = {
        2: ("one_way", "2 is one of two savings: numbers are both written and read."),
        3: ("swiglu_alone", "3 is everything that SwiGLU moves; but y is written in both cases, "
                            "and the matmul's stores are saved too."),
        5: ("y_too", "5 includes y, which is written in both cases."),
        8: ("bytes", "8 counts bytes of 16-bit numbers, or two results: count numbers for one."),
    }.get(got, ("other", "Count, for one result, what the matmul writes and what SwiGLU reads."))
    assert got == want, mistake(
        known, f"predict_numbers_saved: the simulator does not count {got} numbers saved per "
               f"result. {why}", why)


@pytest.mark.parametrize("T, C, F, dtype", TILES)
def test_matmul_swiglu_triton(subject, agree, rng, T, C, F, dtype):
    name = "matmul_swiglu_triton"
    x = rng.standard_normal((T, C))
    w = 2 * rng.standard_normal((2 * F, C)) / max(C, 1)**0.5
    with same_report("no_column_mask", "The last step loads columns from C on: mask with "
                     "c < C - start.", kind="out_of_bounds", array="x"):
        got, _ = run_matmul(subject, *tensors(dtype, x, w))
    want = from_sums(x, w)
    mistakes = telling(name, want, of_gates(*sums(x, w)) | of_loop(x, w))
    if dtype == "float32":                      # so near that they are not telling
        (gate, up), (short_gate, short_up) = sums(x, w), sums(tf32(x), tf32(w))
        mistakes |= {known: (f"{name} multiplies {what} in TF32, with 10 fraction bits: pass "
                             f'input_precision="ieee" to tl.dot', gives) for known, what, gives in (
            ("tf32", "both", swiglu(short_gate, short_up)),
            ("tf32_up", "for up", swiglu(gate, short_up)),
            ("tf32_gate", "for the gate", swiglu(short_gate, up)))}
    agree(got, want, dtype, f"{name}, {T} rows, C = {C}, F = {F}, {dtype}, BT = BF = 16, BC = {BC}",
          at, mistakes)


def test_matmul_swiglu_triton__addresses(subject):
    """x without columns, so that only y is touched."""
    import torch

    x, y = torch.zeros(0), torch.zeros(SHAPE["BF"])
    tiles_in_64_bits(subject, "matmul_swiglu_triton", (2,), None, (x, x, y, 32, 0, FAR),
                     "t · F (y)", **SHAPE)


def of_loop(x, w):
    """{id: (what the kernel does, what it gives)} of the walk along C."""
    (T, C), F = x.shape, len(w) // 2
    gate, up = sums(x, w)
    last = max(C - 1, 0) // BC * BC
    last_gate, last_up = sums(x[:, last:], w[:, last:])
    tile = (np.arange(T)[:, None] < 16) & (np.arange(F) < 16)
    steps = [sums(x[:, c:c + BC], w[:, c:c + BC]) for c in range(0, C, BC)]
    first = [sums(x[:, :min(BC, C - c)], w[:, :min(BC, C - c)]) for c in range(0, C, BC)]

    def part(end):
        return from_sums(x[:, :end], w[:, :end])

    return {
        "gate_twice": ("uses the gate's rows of w twice and never up's (load from w_up), or "
                       "multiplies SiLU(gate) by gate", silu(gate) * gate),
        "up_twice": ("uses up's rows of w twice and never the gate's: load from w", silu(up) * up),
        "up_overwritten": ("overwrites the sums of up in each step: pass them to tl.dot",
                           swiglu(gate, last_up)),
        "gate_overwritten": ("overwrites the sums of the gate in each step: pass them to tl.dot",
                             swiglu(last_gate, up)),
        "both_overwritten": ("overwrites both tiles of sums in each step: pass them to tl.dot",
                             swiglu(last_gate, last_up)),
        "last_step_left_out": ("leaves out the last columns if C is not a multiple of BC",
                               part(C // BC * BC)),
        "last_column_left_out": ("leaves out the last column of x and w", part(max(C - 1, 0))),
        "one_step": ("uses only the first BC columns of x and w", part(BC)),
        "swiglu_in_each_step": (
            "applies SwiGLU in each step; apply it once, after the loop: SiLU of a sum is not a "
            "sum of SiLUs", sum((swiglu(*pair) for pair in steps), np.zeros((T, F)))),
        "not_advanced": ("loads the first BC columns in each step: add `start` to the addresses",
                         swiglu(*sum(map(np.stack, first), np.zeros((2, T, F))))),
        "one_program": ("writes only the tile of the first program",
                        np.where(tile, swiglu(gate, up), 7))}


def test_matmul_swiglu_triton__rounded_once(subject, rng):
    for dtype in ("float16", "bfloat16"):
        x, w = rng.standard_normal((33, 40)), 2 * rng.standard_normal((66, 40)) / 40**0.5
        got, _ = run_matmul(subject, *tensors(dtype, x, w))
        rounded_once(got, from_sums(x, w), "matmul_swiglu_triton", f"33 rows of 40 {dtype}, F = 33")


def sums(x, w):
    """(gate, up) in float64."""
    return np.split(x @ w.T, 2, axis=-1)


def from_sums(x, w):
    return swiglu(*sums(x, w))


def swiglu(gate, up):
    return silu(gate) * up


def test_matmul_swiglu_triton__hard_numbers(subject, agree, rng):
    """Each kind in x, then in w; except numbers around 1e-40: gate · up is too small for fp32."""
    name, (T, C, F) = "matmul_swiglu_triton", (4, 40, 6)
    kinds = [(what, f) for what, f in HARD.items() if f is not VALUES["denormal"]]
    for (what, generator), in_w in itertools.product(kinds, (False, True)):
        x, w = rng.standard_normal((T, C)), rng.standard_normal((2 * F, C)) / C**0.5
        if in_w:
            w = generator(rng, (2 * F, C)).astype(float)
        else:
            x = generator(rng, (T, C)).astype(float)
        got, _ = run_matmul(subject, *tensors("float32", x, w))
        with np.errstate(all="ignore"):
            want = from_sums(x, w)
            mistakes = telling(name, want, of_gates(*sums(x, w)))
        agree(got, want, "float32", f"{name}, {what} in {'w' if in_w else 'x'}", at, mistakes)


def test_matmul_swiglu_triton__work(subject, reference, rng):
    T, C, F = 32, 64, 32
    x, w = tensors("float32", rng.standard_normal((T, C)), rng.standard_normal((2 * F, C)))
    _, launch = run_matmul(subject, x, w)
    tile, programs = 16 * C * x.element_size(), 4
    got = launch.bytes("load") / (programs * tile)
    why = "3 are enough: one of x for both products, and one of w for each."
    assert got <= 3, mistake(
        "x_twice", f"matmul_swiglu_triton: a program loads {got:g} tiles per step; {why}", why)
    least = T * F * x.element_size()
    got = launch.bytes("store")
    assert got <= least, mistake(
        "stores_again", f"matmul_swiglu_triton stores {got:,} bytes; y has {least:,}. Store once, "
        f"after the loop.", "Store once, after the loop.")
    same_work("matmul_swiglu_triton", launch, run_matmul(reference, x, w)[1])


@pytest.mark.parametrize("C, peak, bandwidth", [(4096, 989e12, 4.8e12), (1024, 65e12, 0.32e12),
                                                (1, 1.0, 1.0), (40_000, 1e15, 1e13),
                                                (2**31, 1e3, 1e-3)])
def test_saved_share(subject, agree, C, peak, bandwidth):
    T, F, itemsize = 7, 11, 2
    seconds = itemsize * 4 * T * F / bandwidth
    matmul = 2 * T * (2 * F) * C / peak         # (T, C) by (C, 2F)
    want, ridge = seconds / matmul, peak / bandwidth
    agree(subject.saved_share(C, peak, bandwidth), want, "float64",
          f"saved_share, C = {C}, {peak:g} FLOP/s, {bandwidth:g} byte/s", mistakes={
              "limited_to_1": ("the share is limited to 1; it may be larger, if the matmul takes "
                               "less time than moving the numbers", min(want, 1.0)),
              "ridge_rounded": ("the ridge is rounded down", want * np.floor(ridge) / ridge),
              "swiglu_flops": ("the 5 FLOPs of SwiGLU are counted too",
                               seconds / (matmul + 5 * T * F / peak)),
              "three_numbers": ("3 numbers are counted; 4 are saved", want * 3 / 4),
              "y_too": ("y is counted as saved too; it is written in both cases", want * 5 / 4),
              "roofs_exchanged": ("peak and bandwidth are exchanged", want / ridge**2),
              "percent": ("the share is in percent", 100 * want),
              "quarter_of_flops": ("three quarters of the FLOPs are missing", 4 * want),
              "bits": ("bytes are divided by 8, as if they were bits", want / 8),
              "rest": ("1 - share is returned, what is left of the time", 1 - want),
              "whole_division": ("the division is a whole one, //", want // 1),
              "half_of_bytes": ("half of the bytes are missing: 4 numbers of 2 bytes are saved",
                                want / 2),
              "half_of_flops": ("half of the FLOPs are missing: two dot products of 2 · C FLOPs "
                                "each (or a number has 4 bytes; here it has 2)", 2 * want),
              "inverted": ("matmul / saved is returned; the share is saved / matmul", 1 / want),
              "of_both": ("both times together divide it, not the matmul's alone",
                          want / (1 + want))})


def test_saved_share__unseen(unseen, rng):
    for C in rng.integers(1, 20_000, 4).tolist():
        unseen("saved_share", C, float(rng.integers(1, 2000)) * 1e12,
               float(rng.integers(1, 80)) * 1e11)


# ---- the course's own launchers


@pytest.mark.parametrize("T, F", [(1, 1), (3, 127), (2, 1028), (2, 3000)])
def test_every_launcher_of_swiglu(subject, agree, rng, T, F):
    both = 3 * rng.standard_normal((T, 2 * F))
    tensor, = tensors("float32", both)
    gate, up = np.split(both, 2, axis=-1)
    for halves in (tensor.chunk(2, dim=-1), [h.contiguous() for h in tensor.chunk(2, dim=-1)]):
        results = {name: getattr(subject, name)(*halves)
                   for name in ("swiglu", "swiglu_cuda", "swiglu_torch")}
        results["swiglu_scalar_cuda"] = subject.swiglu_cuda(*halves, "swiglu_scalar_cuda")
        for name, got in results.items():
            agree(got, silu(gate) * up, "float32", f"{name}, {T} rows of {F}", at)


@pytest.mark.parametrize("T, C, F, dtype", [(1, 40, 33, "float32"), (20, 33, 1, "float32"),
                                            (3, 1, 5, "bfloat16"), (40, 70, 33, "float16"),
                                            (70, 130, 70, "bfloat16")])
def test_every_launcher_of_matmul_swiglu(subject, agree, rng, T, C, F, dtype):
    """For few rows, some, and many: the tiles differ."""
    x, w = rng.standard_normal((T, C)), rng.standard_normal((2 * F, C)) / C**0.5
    xt, wt = tensors(dtype, x, w)
    for name in ("matmul_swiglu", "matmul_swiglu_torch"):
        agree(getattr(subject, name)(xt, wt), from_sums(x, w), dtype,
              f"{name}, T = {T}, C = {C}, F = {F}", at)


def test_special_gates_are_torchs(subject):
    import torch

    gate = torch.tensor([[-1e4, -100.0, 1e4, torch.inf, -torch.inf, torch.nan]])
    want = torch.nn.functional.silu(gate)
    for function in (subject.swiglu, subject.swiglu_cuda):
        assert torch.equal(torch.nan_to_num(function(gate, torch.ones(1, 6))),
                           torch.nan_to_num(want))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients(subject, agree, rng, dtype):
    """Against the same formula in float64; gate and up halves of one array; upstream as it comes,
    its columns before its rows, and one row for all."""
    import torch

    def by_the_book(gate, up):
        return gate / (1 + torch.exp(-gate)) * up

    arrays = [rng.standard_normal(shape) for shape in ((3, 40), (3, 20), (3, 16), (40, 16))]
    both, g, x, w = tensors(dtype, *arrays)
    halves = [h.detach().requires_grad_() for h in both.chunk(2, dim=-1)]
    cases = {"swiglu": (halves, by_the_book),
             "matmul_swiglu": ([x.requires_grad_(), w.requires_grad_()],
                               lambda x, w: by_the_book(*(x @ w.T).chunk(2, dim=-1)))}
    for name, (args, formula) in cases.items():
        doubles = [a.detach().double().requires_grad_() for a in args]
        for how, up in {"whole": g, "turned": g.T.contiguous().T,
                        "expanded": g[:1].expand(g.shape)}.items():
            want = torch.autograd.grad(formula(*doubles), doubles, up.double())
            for i, (got, right) in enumerate(zip(subject.grad(name, args, up), want, strict=True)):
                assert got.dtype == g.dtype
                agree(got, right.numpy(), dtype, f"gradient of {name} for argument {i}, "
                      f"upstream {how}")


@pytest.mark.parametrize("T, F", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_do(subject, T, F):
    import torch

    empty = torch.ones(T, F)
    assert subject.swiglu(empty, empty).shape == (T, F)
    assert subject.swiglu_cuda(empty, empty).shape == (T, F)
    assert subject.matmul_swiglu(torch.ones(T, 4), torch.ones(2 * F, 4)).shape == (T, F)
    nothing = subject.matmul_swiglu(torch.ones(3, 0), torch.ones(2 * F, 0))
    assert torch.equal(nothing, torch.zeros(3, F))


def test_what_the_launchers_refuse(subject):
    import torch

    x = torch.ones(4, 8)
    pairs = [(x[0], x[0], "gate has shape (8,)"), (x, x[:3], "up (3, 8)"),
             (x.double(), x.double(), "gate is torch.float64"), (x, x.half(), "up torch.float16"),
             (torch.ones(8, 4).T, x, "gate has strides (1, 4)"),
             (x, torch.ones(4, 16)[:, ::2], "up has strides (16, 2)")]
    cases = [(launcher, pair, says) for *pair, says in pairs
             for launcher in (subject.swiglu, subject.swiglu_cuda)]
    cases += [(subject.matmul_swiglu, pair, says) for *pair, says in (
        (x, torch.ones(6, 7), "w_gate_up (6, 7)"), (x, torch.ones(5, 8), "w_gate_up (5, 8)"),
        (x, torch.ones(6, 8).half(), "w_gate_up torch.float16"),
        (torch.ones(8, 4).T, torch.ones(6, 8), "x has strides (1, 4)"))]
    cases += [(subject.swiglu_cuda, (x[:, :7], x[:, :7], "swiglu_vector_cuda"), "rows of 7")]
    for launcher, args, says in cases:
        with pytest.raises(Raised) as refusal:
            launcher(*args)
        assert says in refusal.value.text


def test_oracles_are_torchs(subject, rng):
    import torch

    x, w = rng.standard_normal((3, 20)), rng.standard_normal((14, 20))
    gate, up = (torch.from_numpy(x) @ torch.from_numpy(w).T).chunk(2, dim=-1)
    want = torch.nn.functional.silu(gate) * up
    assert np.allclose(subject.matmul_swiglu_oracle(x, w), want, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("T", [1, 64, 8192])
def test_shipped_kernels_on_hopper(T):
    from layer1_kernels.bench.k10_swiglu import shipped

    kernels = shipped(T)
    for name, kernel in kernels.items():
        assert kernel.spills == 0 and not kernel.serialised, f"{name}: {kernel}"
        assert kernel.shared <= 227 * 1024, f"{name}: {kernel}"
        assert set(kernel.stores) == {16} and set(kernel.loads) <= {16}, f"{name}: {kernel}"
    matmul = kernels["matmul_swiglu_triton"]
    assert matmul.cp_async and (matmul.wgmma if T >= 64 else matmul.mma_sync), f"{matmul}"


@pytest.mark.slow
def test_the_last_cuda_step_does_not_spill():
    from layer1_kernels.k10_swiglu import KERNELS

    assert KERNELS.get("swiglu_vector_cuda").resources.spill_stores == 0


@pytest.mark.gpu
@pytest.mark.parametrize("T, C, F", [(0, 5, 5), (1, 1, 1), (3, 127, 129), (64, 256, 512),
                                     (1000, 1000, 1000)])
def test_every_kernel_on_the_device(T, C, F):
    import torch

    from layer1_kernels import matmul_swiglu, swiglu, swiglu_cuda

    x = torch.randn(T, C, device="cuda")
    w = torch.randn(2 * F, C, device="cuda") / C**0.5
    near = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
    for dtype, relative in near.items():
        xd, wd = x.to(dtype), w.to(dtype)
        gate, up = (xd.double() @ wd.double().T).chunk(2, dim=-1)
        want = torch.nn.functional.silu(gate) * up
        assert torch.allclose(matmul_swiglu(xd, wd).double(), want, rtol=relative, atol=relative)
        g, u = torch.cat((gate, up), dim=-1).to(dtype).chunk(2, dim=-1)
        want = torch.nn.functional.silu(g.double()) * u.double()
        assert torch.allclose(swiglu(g, u).double(), want, rtol=relative, atol=relative)
        if dtype == torch.float32:
            assert torch.allclose(swiglu_cuda(g, u).double(), want, rtol=relative, atol=relative)


@pytest.mark.gpu
def test_swiglu_triton_speed(pace):
    pace("swiglu", numbers("bfloat16", 4096, 14_336), numbers("bfloat16", 4096, 14_336))


@pytest.mark.gpu
def test_matmul_swiglu_triton_speed(pace):
    pace("matmul_swiglu", numbers("bfloat16", 4096, 4096), numbers("bfloat16", 16_384, 4096))
