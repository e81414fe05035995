"""Graders of k10. Outputs start as 7, which no answer is, so that unwritten places show."""

import itertools

import numpy as np
import pytest

from lab.judge.adversarial import VALUES, shifted
from lab.judge.compare import rounded_once
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work

SIZES = [(3, 1000, "float32"), (1, 1, "float32"), (2, 127, "float16"), (3, 129, "bfloat16")]
TILES = [(17, 72, 20, "float32"), (1, 16, 1, "float32"), (17, 50, 33, "float16"),
         (16, 64, 48, "bfloat16"), (3, 0, 5, "float32")]            # T, C, F, dtype
HARD = {                                        # words: a generator of rows
    "numbers around 200": shifted, "only numbers below 0": VALUES["negative"],
    "equal numbers throughout a row": VALUES["equal"],
    "rows of very different sizes": VALUES["uneven"],
    "0 and -0 among the numbers": VALUES["signed_zeros"],
    "numbers of 1e-40": VALUES["denormal"], "-inf among the numbers": VALUES["infinite"],
    "a NaN": VALUES["not_a_number"]}
BLOCK = 128                                     # columns of a program of swiglu_triton
BC = 32                                         # unlike BF: no tile fits the wrong way round
SHAPE = {"BT": 16, "BF": 16, "BC": BC, "GROUP": 2}


# ---- inputs, oracles, and what goes wrong


def sigmoid(g):
    return 1 / (1 + np.exp(-g))


def silu(g):
    return g * sigmoid(g)


def tensors(dtype, *arrays):
    """CPU tensors of dtype; the arrays are rounded to it, so that oracles start from the same."""
    import torch

    found = [torch.from_numpy(a.astype(np.float32)).to(getattr(torch, dtype)) for a in arrays]
    for array, tensor in zip(arrays, found, strict=True):
        array[...] = tensor.double().numpy()
    return found


def sevens(dtype, *shape):
    import torch

    return torch.full(shape, 7, dtype=getattr(torch, dtype))


def telling(want, mistakes):
    """The mistakes that can be seen here: in one round, say, the first is the whole sum."""
    return {mistake: answer for mistake, answer in mistakes.items()
            if not np.allclose(answer, want, rtol=2e-3, atol=0, equal_nan=True)}


def of_gates(name, gate, up):
    """{mistake: what it gives} from gate and up in float64."""
    return {
        f"{name} takes SiLU of up, and multiplies with the gate": silu(up) * gate,
        f"{name} multiplies by the sigmoid alone; SiLU(g) is g · sigmoid(g)": sigmoid(gate) * up,
        f"{name} multiplies gate and up, without the sigmoid": gate * up,
        f"{name} writes SiLU(gate), without up": silu(gate),
        f"{name} takes the sigmoid of -gate, which is 1 - sigmoid(gate)":
            gate * sigmoid(-gate) * up,
        f"{name} takes SiLU of both; up stays as it is": silu(gate) * silu(up),
        f"{name} multiplies SiLU(gate) by the gate again, not by up": silu(gate) * gate,
        f"{name} adds up; it multiplies SiLU(gate)": silu(gate) + up,
        f"{name} takes ReLU of the gate, not SiLU": np.maximum(gate, 0) * up,
        f"{name} takes tanh, not the sigmoid": gate * np.tanh(gate) * up,
        f"{name} multiplies by exp(g); sigmoid(g) is 1 / (1 + exp(-g))": gate * np.exp(gate) * up,
        f"{name} writes nothing": np.full_like(gate, 7)}


def at(index):
    return f"row {index[0]}, column {index[1]}"


# ---- by itself


def run_swiglu(subject, gate, up, block=BLOCK):
    (T, F) = gate.shape
    y = sevens(str(gate.dtype).removeprefix("torch."), T, F)
    launch = subject.launch("swiglu_triton", T * -(-F // block),
                            args=(gate, up, y, F, gate.stride(0), up.stride(0)), BLOCK=block)
    return y, launch


@pytest.mark.parametrize("T, F, dtype", SIZES)
def test_swiglu_triton(subject, agree, rng, T, F, dtype):
    name, both = "swiglu_triton", 3 * rng.standard_normal((T, 2 * F))
    given, = tensors(dtype, both)
    got, _ = run_swiglu(subject, *given.chunk(2, dim=-1))
    gate, up = np.split(both, 2, axis=-1)
    want = silu(gate) * up
    agree(got, want, dtype, f"{name}, {T} row(s) of {F} {dtype}, gate and up halves of one array",
          at, telling(want, of_gates(name, gate, up) | {
              f"{name} takes rows of gate and up to be F numbers apart; they are gate_stride and "
              f"up_stride apart": flat(both, T, F, 0) * flat(both, T, F, F, same=True),
              f"{name} takes rows of up to be F numbers apart; they are up_stride apart":
                  silu(gate) * flat(both, T, F, F, same=True),
              f"{name} takes rows of gate to be F numbers apart; they are gate_stride apart":
                  flat(both, T, F, 0) * up,
              f"in {name} only the first block of columns is right":
                  np.where(np.arange(F) < BLOCK, want, 7),
              f"{name} writes only in its first program":
                  np.where((np.arange(T)[:, None] == 0) & (np.arange(F) < BLOCK), want, 7)}))


def flat(both, T, F, first, same=False):
    """SiLU of gate, or up itself, as read with the wrong stride."""
    found = both.reshape(-1)[first + np.arange(T)[:, None] * F + np.arange(F)]
    return found if same else silu(found)


def test_swiglu_triton__rounded_once(subject, rng):
    for dtype in ("float16", "bfloat16"):
        both = 3 * rng.standard_normal((3, 600))
        given, = tensors(dtype, both)
        got, _ = run_swiglu(subject, *given.chunk(2, dim=-1))
        rounded_once(got, swiglu(*np.split(both, 2, axis=-1)), "swiglu_triton",
                     f"3 rows of 300 {dtype}")


def test_swiglu_triton__two_strides(subject, agree, rng):
    gate, up = rng.standard_normal((3, 200)), rng.standard_normal((3, 100))
    g, u = tensors("float32", gate, up)
    got, _ = run_swiglu(subject, g[:, :100], u)
    agree(got, silu(gate[:, :100]) * up, "float32", "swiglu_triton, rows of gate 200 numbers apart "
          "and rows of up 100", at, {})


def test_swiglu_triton__hard_rows(subject, agree):
    gate = np.float32([[-1e4, -100, -20, 0, 20, 100, 1e4]])
    g, u = tensors("float32", gate, np.ones_like(gate))
    got, _ = run_swiglu(subject, g, u)
    with np.errstate(over="ignore", invalid="ignore"):
        want = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64)))
        wrong = np.exp(gate) / (1 + np.exp(gate)) * gate
    agree(got, want, "float32", "swiglu_triton, gates from -10,000 to 10,000", at,
          {"exp of a large number is inf, and inf / inf is NaN; take 1 / (1 + exp(-g))": wrong})


def test_swiglu_triton__hard_numbers(subject, agree, rng):
    """Each kind in the gate, then in up."""
    for (what, generator), way in itertools.product(HARD.items(), (1, -1)):
        arrays = generator(rng, (3, 150)).astype(float), rng.standard_normal((3, 150))
        gate, up = arrays[::way]
        got, _ = run_swiglu(subject, *tensors("float32", gate, up))
        with np.errstate(all="ignore"):
            want = silu(gate) * up
            mistakes = telling(want, of_gates("swiglu_triton", gate, up))
        for t in range(3):
            agree(got[t:t + 1], want[t:t + 1], "float32",
                  f"swiglu_triton, {what} in {('gate', 'up')[way < 0]}, row {t} looked at alone",
                  lambda i: f"column {i[1]}", {m: each[t:t + 1] for m, each in mistakes.items()})


def test_swiglu_triton__work(subject, reference, rng):
    both, = tensors("float32", rng.standard_normal((4, 4096)))
    _, launch = run_swiglu(subject, *both.chunk(2, dim=-1), block=1024)
    for op, least, verb in (("load", both.nbytes, "reads"), ("store", both.nbytes // 2, "writes")):
        assert launch.bytes(op) <= least, (
            f"swiglu_triton {verb} {launch.bytes(op)} bytes, {least} are enough: each number once")
        counts = launch.memory("global", op)
        assert counts["transactions"] == counts["ideal"] and launch.sectors_per_request(op) == 16, (
            f"swiglu_triton: a {op} of a warp touches {launch.sectors_per_request(op):g} sectors; "
            f"16 whole ones are 16 bytes a thread: f should be neighbours, as given")
    same_work("swiglu_triton", launch,
              run_swiglu(reference, *both.chunk(2, dim=-1), block=1024)[1])


# ---- at the end of a matmul


def run_matmul(subject, x, w, shape=SHAPE, name="matmul_swiglu_triton"):
    (T, C), F = x.shape, w.shape[0] // 2
    y = sevens(str(x.dtype).removeprefix("torch."), T, F)
    grid = -(-T // shape["BT"]) * -(-F // shape["BF"])
    return y, subject.launch(name, grid, args=(x, w, y, T, C, F), **shape)


def moved(launch):
    return launch.bytes("load") + launch.bytes("store")


def test_predict_numbers_saved(subject, reference, rng):
    T, C, F = 32, 32, 32
    x, w = tensors("float32", rng.standard_normal((T, C)), rng.standard_normal((2 * F, C)))
    both = sevens("float32", T, 2 * F)
    shape = {"BM": 16, "BN": 32, "BK": BC, "GROUP": 2}      # a program loads as much as with SHAPE
    first = reference.launch("matmul_tiled_triton", 4, args=(x, w, both, T, 2 * F, C, C, 1, C, 1),
                             **shape)
    _, second = run_swiglu(reference, *both.chunk(2, dim=-1))
    _, one = run_matmul(reference, x, w)
    want = (moved(first) + moved(second) - moved(one)) / (T * F * x.element_size())
    got = subject.predict_numbers_saved()
    assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
    why = {2: "2 is what the matmul writes, or what SwiGLU reads; both are saved",
           3: "3 is all that SwiGLU moves; its result is written either way",
           5: "5 includes the result, which is written either way",
           8: "8 would be bytes of 2, or two results; count numbers for one result"}.get(
        got, "count what the matmul writes and what SwiGLU reads for one result")
    assert got == want, f"numbers saved a result: {got} is not what the counters say; {why}"


@pytest.mark.parametrize("T, C, F, dtype", TILES)
def test_matmul_swiglu_triton(subject, agree, rng, T, C, F, dtype):
    name = "matmul_swiglu_triton"
    x, w = rng.standard_normal((T, C)), 2 * rng.standard_normal((2 * F, C)) / max(C, 1)**0.5
    xt, wt = tensors(dtype, x, w)
    got, _ = run_matmul(subject, xt, wt)
    want, mistakes = from_sums(x, w), of_gates(name, *sums(x, w))
    del mistakes[f"{name} multiplies SiLU(gate) by the gate again, not by up"]  # see below
    last = max(C - 1, 0) // BC * BC
    mistakes |= {
        f"{name} multiplies x with the gate's rows of w twice, and never with up's, or SiLU(gate) "
        f"by the gate":
            silu(sums(x, w)[0]) * sums(x, w)[0],
        f"{name} multiplies x with up's rows of w twice, and never with the gate's":
            silu(sums(x, w)[1]) * sums(x, w)[1],
        f"in {name} each round of the loop replaces the sum of up; the gate's is right":
            silu(sums(x, w)[0]) * sums(x[:, last:], w[:, last:])[1],
        f"in {name} each round of the loop replaces the sum of the gate; up's is right":
            silu(sums(x[:, last:], w[:, last:])[0]) * sums(x, w)[1],
        f"{name} drops the columns beyond the last whole BC":
            from_sums(x[:, :C // BC * BC], w[:, :C // BC * BC]),
        f"{name} leaves out the last column of x and w":
            from_sums(x[:, :max(C - 1, 0)], w[:, :max(C - 1, 0)]),
        f"{name} uses only the first BC columns of x and w": from_sums(x[:, :BC], w[:, :BC]),
        f"in {name} each round of the loop replaces the sums": from_sums(x[:, last:], w[:, last:]),
        f"{name} applies SwiGLU in each round; SiLU of a sum is not a sum of SiLUs":
            sum((from_sums(x[:, c:c + BC], w[:, c:c + BC]) for c in range(0, C, BC)),
                np.zeros((T, F))),
        f"in {name} each round takes the first BC columns again":
            swiglu(*sum((np.stack(sums(x[:, :n], w[:, :n])) for n in widths(C)),
                        np.zeros((2, T, F)))),
        f"{name} makes only its first tile":
            np.where((np.arange(T)[:, None] < 16) & (np.arange(F) < 16), want, 7)}
    mistakes = telling(want, mistakes)
    if dtype == "float32":
        mistakes[f'{name} multiplies in TF32, with 10 bits of fraction; input_precision="ieee" '
                 f'keeps fp32'] = from_sums(tf32(x), tf32(w))
        exact, cut = sums(x, w), sums(tf32(x), tf32(w))
        mistakes[f"{name} multiplies for up in TF32, with 10 bits of fraction; for the gate in "
                 f"fp32"] = swiglu(exact[0], cut[1])
        mistakes[f"{name} multiplies for the gate in TF32, with 10 bits of fraction; for up in "
                 f"fp32"] = swiglu(cut[0], exact[1])
    agree(got, want, dtype, f"{name}, {T} rows, C = {C}, F = {F}, {dtype}, BT = BF = 16, BC = {BC}",
          at, mistakes)


def test_matmul_swiglu_triton__rounded_once(subject, rng):
    name = "matmul_swiglu_triton"
    for dtype in ("float16", "bfloat16"):
        x, w = rng.standard_normal((33, 40)), 2 * rng.standard_normal((66, 40)) / 40**0.5
        xt, wt = tensors(dtype, x, w)
        got, _ = run_matmul(subject, xt, wt)
        rounded_once(got, from_sums(x, w), name, f"33 rows of 40 {dtype}, F = 33")


def sums(x, w):
    """(gate, up) in float64."""
    return np.split(x @ w.T, 2, axis=-1)


def from_sums(x, w):
    return swiglu(*sums(x, w))


def swiglu(gate, up):
    return silu(gate) * up


def widths(C):
    """Columns in each round of BC."""
    return [min(BC, C - start) for start in range(0, C, BC)]


def tf32(x):
    """float32 numbers cut to 10 bits of fraction."""
    return (x.astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)


def test_matmul_swiglu_triton__hard_numbers(subject, agree, rng):
    """Each kind in x, then in w; except numbers of 1e-40: gate · up is too small for fp32."""
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
            gate, up = sums(x, w)
            grown = np.exp(gate.astype(np.float32)).astype(float)
            mistakes = {"exp of a large number is inf, and inf / inf is NaN; take "
                        "1 / (1 + exp(-g))": gate * (grown / (1 + grown)) * up}
            mistakes = telling(want, mistakes | of_gates(name, gate, up))
        agree(got, want, "float32", f"{name}, {what} in {'w' if in_w else 'x'}", at, mistakes)


def test_matmul_swiglu_triton__work(subject, reference, rng):
    T, C, F = 32, 64, 32
    x, w = tensors("float32", rng.standard_normal((T, C)), rng.standard_normal((2 * F, C)))
    _, launch = run_matmul(subject, x, w)
    tile, programs = 16 * C * x.element_size(), 4
    got = launch.bytes("load") / (programs * tile)
    assert got <= 3, (
        f"matmul_swiglu_triton: a program loads {got:g} tiles a round, 3 are enough: one of x, "
        f"which serves gate and up, and one of w for each")
    least = T * F * x.element_size()
    assert launch.bytes("store") <= least, (
        f"matmul_swiglu_triton stores {launch.bytes('store')} bytes, y has {least}: store once, "
        f"after the loop")
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
              "a share above 1 is cut off; a short matmul takes less than the moving":
                  min(want, 1.0),
              "the ridge, peak / bandwidth, is rounded to a whole number":
                  want * np.floor(ridge) / ridge,
              "the 5 FLOPs of SwiGLU are counted too; the share is of the matmul's time":
                  seconds / (matmul + 5 * T * F / peak),
              "3 numbers are counted as saved; gate and up are each written and read": want * 3 / 4,
              "the result is counted as saved too; it is written either way": want * 5 / 4,
              "the bytes are divided by the peak, and the FLOPs by the bandwidth":
                  want / ridge**2,
              "the share is in percent": 100 * want,
              "a quarter of the FLOPs are counted: two dot products, of 2 · C each": 4 * want,
              "bytes are divided by 8, as if they were bits": want / 8,
              "what is left of the time is returned, 1 - share": 1 - want,
              "the division is a whole one, //": want // 1,
              "half of the bytes are counted: 4 numbers are saved, of 2 bytes each": want / 2,
              "half of the FLOPs are counted: two dot products, of 2 · C each (or a number has 4 "
              "bytes; here it has 2)": 2 * want,
              "the share is upside down": 1 / want,
              "the share is of both times together": want / (1 + want)})


def test_saved_share__unseen(unseen, rng):
    for C in rng.integers(1, 20_000, 4).tolist():
        unseen("saved_share", C, float(rng.integers(1, 2000)) * 1e12,
               float(rng.integers(1, 80)) * 1e11)


# ---- the course's own launchers


@pytest.mark.parametrize("T, F", [(1, 1), (3, 127), (2, 1028), (2, 3000)])
def test_every_launcher_of_swiglu(subject, agree, rng, T, F):
    both = 3 * rng.standard_normal((T, 2 * F))
    given, = tensors("float32", both)
    gate, up = np.split(both, 2, axis=-1)
    for halves in (given.chunk(2, dim=-1), [h.contiguous() for h in given.chunk(2, dim=-1)]):
        found = {name: getattr(subject, name)(*halves)
                 for name in ("swiglu", "swiglu_cuda", "swiglu_torch")}
        found["swiglu_scalar_cuda"] = subject.swiglu_cuda(*halves, "swiglu_scalar_cuda")
        for name, got in found.items():
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
    for gate, up, says in ((x[0], x[0], "gate has shape (8,)"), (x, x[:3], "up (3, 8)"),
                           (x.double(), x.double(), "gate is torch.float64"),
                           (x, x.half(), "up torch.float16"),
                           (torch.ones(8, 4).T, x, "gate has strides (1, 4)"),
                           (x, torch.ones(4, 16)[:, ::2], "up has strides (16, 2)")):
        for launcher in (subject.swiglu, subject.swiglu_cuda):
            with pytest.raises(Raised) as refusal:
                launcher(gate, up)
            assert says in refusal.value.text
    for launch, says in (
            (lambda: subject.swiglu_cuda(x[:, :7], x[:, :7], "swiglu_vector_cuda"), "rows of 7"),
            (lambda: subject.matmul_swiglu(x, torch.ones(6, 7)), "w_gate_up (6, 7)"),
            (lambda: subject.matmul_swiglu(x, torch.ones(5, 8)), "w_gate_up (5, 8)"),
            (lambda: subject.matmul_swiglu(x, torch.ones(6, 8).half()), "w_gate_up torch.float16"),
            (lambda: subject.matmul_swiglu(torch.ones(8, 4).T, torch.ones(6, 8)),
             "x has strides (1, 4)")):
        with pytest.raises(Raised) as refusal:
            launch()
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
