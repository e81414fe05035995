"""Graders of k19.
Outputs start as 7, so that unwritten places show."""

import json

import numpy as np
import pytest

from lab.course import ROOT
from lab.judge.addresses import FAR, tiles_in_64_bits
from lab.judge.mistakes import mistake, raises, same_report
from lab.judge.pace import made_by, numbers
from lab.judge.work import same_work
from tests.layer1_kernels.oracle_k19_fp8_matmul import product_mistakes

TOP = 448
TILE = {"BM": 16, "BN": 16, "ROWS": 8, "num_warps": 1}
SIZES = [(20, 40, 160, 64, 32), (20, 80, 96, 32, 32), (20, 40, 200, 32, 32),
         (1, 16, 32, 32, 32), (33, 7, 129, 64, 64)]         # M, N, K, GROUP, BK


def e4m3(x):
    """An array or tensor as a tensor of e4m3, each number the nearest."""
    import torch

    return torch.as_tensor(x).float().to(torch.float8_e4m3fn)


def decoded(q):
    """A tensor of e4m3 as float64."""
    return q.float().numpy().astype(np.float64)


# ---- the predictions


def test_predict_outlier_loss(subject, rng):
    got = subject.predict_outlier_loss()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_outlier_loss: expected a number, got {got!r}")
    x = rng.standard_normal((64, 1024))
    errors = []
    for factor in (1, 100):
        x[:, -1] *= factor
        scale = np.abs(x).max() / TOP
        error = decoded(e4m3(x / scale)) * scale - x
        errors.append(np.sqrt((error[:, :-1] ** 2).mean()))
    want = errors[1] / errors[0]
    why = {100: ("int8_story", "so it would be in int8, whose steps are all as long as the scale. "
                               "Steps of e4m3 are as long as the number needs"),
           10: ("square_root", "nothing here goes with a square root"),
           6.64: ("bit_a_doubling", "a bit for each doubling is what int8 loses. In e4m3 a smaller "
                                    "number has a smaller exponent, and the same three bits")}
    name, sentence = next((row for value, row in why.items() if abs(got - value) < 0.1 * value),
                          ("other", "e4m3 rounds each number relative to its own size"))
    assert abs(got - want) < 0.2, mistake(
        name, f"predict_outlier_loss: {got:g} is not what comes out of rounding: {sentence}",
        sentence)


def test_predict_scale_bytes(subject, reference, rng):
    got = subject.predict_scale_bytes()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_scale_bytes: expected a number, got {got!r}")
    import torch

    x = torch.from_numpy(rng.standard_normal((3, 512)).astype(np.float32))
    q, scales = reference.quantize_blocks(x, 1, 128)
    want = scales.nbytes / q.nbytes
    why = {1 / 128: ("numbers", "that counts scales, and a scale has 4 bytes where a number of "
                                "e4m3 has one"),
           4 / 128**2: ("block_of_w", "so it is for w, whose scales are for blocks of 128 x 128. "
                                      "Here a scale is for 128 numbers of a row"),
           4 / 256: ("two_bytes", "a number of e4m3 has 8 bits, which is one byte")}
    name, sentence = next((row for value, row in why.items() if abs(got - value) < 1e-4),
                          ("other", "a group has 128 numbers of a byte, and one fp32 number"))
    assert abs(got - want) < 1e-6, mistake(
        name, f"predict_scale_bytes: {got:g} is not what the arrays have: {sentence}", sentence)


# ---- quantising


def run_quantize(subject, x, group):
    """(codes as a tensor, scales, launch). x: a tensor (M, K)"""
    import torch

    M, K = x.shape
    groups = -(-K // group)
    q = e4m3(torch.full((M, K), 7.0))
    scales = torch.full((M, groups), 7.0)
    launch = subject.launch("quantize_triton", (M, groups), args=(x, q, scales, K, groups),
                            GROUP=group, num_warps=1, capability=89)
    return q, scales.numpy(), launch


def in_groups(x, group):                        # (M, K) -> (M, groups, group)
    """The groups of rows, the last filled up with zeros."""
    M, K = x.shape
    return np.pad(x, ((0, 0), (0, -K % group))).reshape(M, -1, group)


def spread(rng, M, K):
    """Numbers of many sizes; a row whose largest is negative, and a row of zeros."""
    x = rng.standard_normal((M, K)) * 10 ** rng.uniform(-4, 0, (M, K))
    x[0] = -np.abs(x[0])
    x[0, K // 2] = -500
    x[M // 2] = 0
    return x


@pytest.mark.parametrize("M, K, group, dtype", [
    (5, 200, 64, "float32"), (3, 500, 32, "bfloat16"), (2, 32, 32, "float16"),
    (6, 128, 128, "float32")])
def test_quantize_triton(subject, agree, rng, M, K, group, dtype):
    import torch

    x = torch.from_numpy(spread(rng, M, K)).to(getattr(torch, dtype))
    v = in_groups(x.double().numpy(), group)                    # (M, groups, group)
    largest = np.abs(v).max(-1)
    want = largest / TOP
    what = f"quantize_triton, {M} rows of {K} in groups of {group}, {dtype}"
    q, scales, _ = run_quantize(subject, x, group)
    with np.errstate(divide="ignore"):
        agree(scales, want, "float32", f"{what}, scales", lambda i: f"row {i[0]}, group {i[1]}", {
            "signed_max": ("a large negative number is not seen: the largest is one of |x|",
                           v.max(-1) / TOP),
            "top_of_e5m2": ("the largest becomes 57344, which is e5m2's largest number: all above "
                            "448 is cut", largest / 57344),
            "half_range": ("the largest becomes 240, and the codes of e4m3 from 256 to 448 stay "
                           "unused", largest / 240),
            "scale_inverted": ("448 / largest is stored: that makes q of x. To make x of q, the "
                               "product multiplies by largest / 448", TOP / largest),
            "no_scale": ("the largest itself is stored", largest)}, unwritten=7)
    got = decoded(q)

    def codes(ratio):                                           # (M, groups, group) -> (M, K)
        """Of the two that the lesson accepts, see "nearest" there, what was got if it is one."""
        lower, upper = (decoded(e4m3(np.clip(ratio * slack, -TOP, TOP)).reshape(M, -1)[:, :K])
                        for slack in (1 - 2.0**-10, 1 + 2.0**-20))
        return np.where(got == lower, lower, upper)

    def short(array):
        return torch.from_numpy(array).bfloat16().double().numpy()

    divisor = np.where(want > 0, want, 1)[..., None]
    right = codes(v / divisor)
    nan = np.repeat(want == 0, group, axis=1)[:, :K]
    agree(got, right, "exact", f"{what}, codes",
          lambda i: f"x[{i[0]}, {i[1]}] = {float(x[tuple(i)]):.4g}, whose scale is "
                    f"{want[i[0], i[1] // group]:.4g}", {
              "zero_row": ("a group of zeros is divided by its scale, 0: that is not a number",
                           np.where(nan, np.nan, right)),
              "rounded_twice": ("x and its scale are rounded to bf16 before the division: divide "
                                "in fp32, so that e4m3 alone rounds",
                                codes(short(v) / short(divisor))),
              "short_quotient": ("x / scale is rounded to bf16, and from there to e4m3: store the "
                                 "quotient as fp32 has it", codes(short(v / divisor))),
              "not_scaled": ("x is rounded without its scale",
                             decoded(e4m3(x.float().clamp(-TOP, TOP)))),
              "multiplied": ("x is multiplied by its scale: q is x / scale", codes(v * divisor))},
          unwritten=7)


def test_quantize_triton__hard_numbers(subject, rng):
    """What is not finite stays in its own group."""
    import torch

    x = torch.from_numpy(rng.standard_normal((4, 96)).astype(np.float32))
    clean, clean_scales, _ = run_quantize(subject, x, 32)
    x[1, 40] = float("nan")
    x[2, 70] = float("-inf")
    q, scales, _ = run_quantize(subject, x, 32)
    got = q.float()
    assert got[1, 40].isnan(), mistake("lost_nan", f"x[1, 40] is NaN, and its code {got[1, 40]}")
    spoilt = not np.isfinite(scales[2, 2]) or bool(got[2, 64:].isnan().any())
    assert spoilt, mistake("lost_inf", "x[2, 70] is -inf; its group has finite codes and scale")
    other = torch.ones(4, 96, dtype=bool)
    other[1, 32:64] = other[2, 64:] = False
    assert torch.equal(got[other], clean.float()[other]), mistake(
        "spreads", "a NaN or an inf changes the codes of another group")
    np.testing.assert_array_equal(scales[[0, 3]], clean_scales[[0, 3]])


def test_quantize_triton__tiny_numbers(subject, rng):
    """Of 10^-12 down to 10^-26: the largest of each group becomes 448 all the same."""
    import torch

    x = (rng.standard_normal((4, 64)) * 10.0 ** np.array([[-12], [-16], [-20], [-26]])).astype("f4")
    q, scales, _ = run_quantize(subject, torch.from_numpy(x), 32)
    want = np.abs(in_groups(x.astype(np.float64), 32)).max(-1) / TOP
    largest = np.abs(in_groups(decoded(q), 32)).max(-1)
    assert np.allclose(scales, want, rtol=1e-5, atol=0) and (largest == TOP).all(), mistake(
        "least_scale", f"quantize_triton, rows of about 1e-12, 1e-16, 1e-20 and 1e-26: the scales "
        f"of their first groups are {', '.join(f'{s:.3g}' for s in scales[:, 0])}, expected "
        f"{', '.join(f'{s:.3g}' for s in want[:, 0])}. Only a group of zeros needs another divisor "
        f"than its own scale", "only a group of zeros needs another divisor than its own scale")


def test_quantize_triton__work(subject, reference, rng):
    import torch

    x = torch.from_numpy(rng.standard_normal((8, 256)).astype(np.float32))
    same_work("quantize_triton", *(run_quantize(side, x, 128)[2] for side in (subject, reference)))


# ---- a scale from the steps before


def updates(subject, H, inputs):
    """The scales for inputs, one after another."""
    delayed = subject.DelayedScale(H)
    with raises("empty_history", ValueError, "At the first step nothing is remembered."):
        return [delayed.update(x) for x in inputs]


def test_DelayedScale_update(subject, agree, rng):
    H = 3
    largest = [4.48, 8.96, 2.24, 448, 1.12, 3, 2, 1, 0.5, 0]    # a spike, which must be forgotten
    inputs = [rng.uniform(-0.9, 0.9, 40) * size for size in largest]
    for x, size in zip(inputs, largest, strict=True):
        x[17] = -size
    got = updates(subject, H, inputs)

    def scales(maxima, window):
        """Of each step, from the maxima in window(step)."""
        return [max(maxima[window(i)], default=0) / TOP or 1.0 for i in range(len(maxima))]

    agree(got, np.array(scales(largest, lambda i: slice(max(i - H, 0), i))), "float32",
          f"DelayedScale({H}).update, steps whose largest |x| are {largest}",
          lambda i: f"step {i[0]}", {
              "clip_late": ("the scale already knows this step's largest: that is dynamic scaling, "
                            "and needs the read that delayed scaling saves",
                            scales(largest, lambda i: slice(max(i - H + 1, 0), i + 1))),
              "never_forgets": ("the largest of all steps is kept: after one spike, everything is "
                                "small for ever", scales(largest, lambda i: slice(0, i))),
              "last_alone": ("only the step before is remembered",
                             scales(largest, lambda i: slice(max(i - 1, 0), i))),
              "signed_max": ("a large negative number is not seen: the largest is one of |x|",
                             scales([max(x.max(), 0) for x in inputs],
                                    lambda i: slice(max(i - H, 0), i)))})


def test_DelayedScale_update__zeros(subject):
    """Zeros leave no scale of 0, by which the next step would divide."""
    first, second, got = updates(subject, 3, [np.zeros(5), np.zeros(5), np.ones(5)])
    why = "nothing can be divided by 0"
    assert first == 1, mistake("first_step", f"the first scale is {first}, expected 1.0: no step "
                               "was before it", "no step was before it")
    assert second == got == 1, mistake(
        "zero_scale", f"after steps of zeros the scales are {second} and {got}, expected 1.0: "
        f"{why}", why)
    why = "one step that is remembered is enough for a scale"
    got = updates(subject, 1, [np.full(5, 4.48), np.ones(5)])[1]
    assert abs(got - 0.01) < 1e-6, mistake(
        "one_step", f"DelayedScale(1).update, after a step whose largest |x| is 4.48: the scale is "
        f"{got:g}, expected 0.01: {why}", why)


# ---- the product


def operands(rng, M, N, K, group):
    """Codes -3 to 3, and scales that are powers of two, 1/8 to 8, each at most once in a row: every
    sum is exact in fp32."""
    groups = -(-K // group)
    a, w = (rng.integers(-3, 4, (rows, K)).astype(np.float64) for rows in (M, N))
    exponents = np.arange(-3, 4)
    a_scales, w_scales = (2.0 ** rng.permuted(np.tile(exponents, (rows, 1)), axis=1)[:, :groups]
                          for rows in (M, -(-N // group)))
    return a, w, a_scales, w_scales


def run_matmul(subject, a, w, a_scales, w_scales, group, BK):
    """(c, launch)."""
    import torch

    M, K = a.shape
    N = len(w)
    c = torch.full((M, N), 7.0)
    scales = [torch.from_numpy(np.ascontiguousarray(s, np.float32)) for s in (a_scales, w_scales)]
    programs = -(-M // TILE["BM"]) * -(-N // TILE["BN"])
    launch = subject.launch("fp8_matmul_triton", programs, None, (
        e4m3(a), e4m3(w), *scales, c, M, N, K, -(-K // group)), GROUP=group, BK=BK, **TILE,
        capability=89)
    return c, launch


def right_product(agree, got, case, group, BK, precision, what):
    a, w, a_scales, w_scales = case
    M, K = a.shape
    want = sum(a[:, k:k + group] @ w[:, k:k + group].T * a_scales[:, k // group, None]
               * w_scales[np.arange(len(w)) // group, k // group] for k in range(0, K, group))
    agree(got, want, precision, f"fp8_matmul_triton, {what}, M = {M}, N = {len(w)}, K = {K}, "
                                f"groups of {group}",
          lambda i: f"row {i[0]}, column {i[1]}", product_mistakes(*case, group, BK), unwritten=7)


@pytest.mark.parametrize("M, N, K, group, BK", SIZES)
def test_fp8_matmul_triton(subject, agree, rng, M, N, K, group, BK):
    """To the last bit: all sums are exact."""
    case = operands(rng, M, N, K, group)
    with same_report("row_of_w", f"Rows of w share a scale, {group} of them: row n has scale "
                     f"n // {group}.", kind="out_of_bounds", array="w_scales"), \
            same_report("by_step", f"A scale is for {group} of k, and a step takes {BK}.",
                        kind="out_of_bounds", array="a_scales"):
        c, _ = run_matmul(subject, *case, group, BK)
    right_product(agree, c, case, group, BK, "exact", "small whole numbers")


def test_fp8_matmul_triton__random(subject, agree, rng):
    """Any codes and any scales, as quantising gives them."""
    M, N, K, group = 20, 40, 200, 64
    a, w = (decoded(e4m3(rng.standard_normal((rows, K)) * 100)) for rows in (M, N))
    a_scales, w_scales = (rng.uniform(0.01, 1, (rows, -(-K // group))).astype(np.float32)
                          for rows in (M, -(-N // group)))
    case = a, w, a_scales.astype(np.float64), w_scales.astype(np.float64)
    c, _ = run_matmul(subject, *case, group, 32)
    right_product(agree, c, case, group, 32, "float32", "random numbers")


def test_fp8_matmul_triton__addresses(subject):
    import torch

    a, scales, c = e4m3(torch.ones(32, 32)), torch.ones(32), torch.ones(16)
    tiles_in_64_bits(subject, "fp8_matmul_triton", (2,), None, (
        a, a, scales, scales, c, 32, FAR, 32, 1), "m · N (c)", GROUP=32, BK=32, capability=89,
        **TILE)


def test_fp8_matmul_triton__work(subject, reference, rng):
    case = operands(rng, 20, 40, 200, 64)
    own, course = (run_matmul(side, *case, 64, 32)[1] for side in (subject, reference))
    got, want = (each.launches[0]["totals"]["flops_by_type"] for each in (own, course))
    kinds = sorted(kind for kind in got if "tensor" in kind)
    assert kinds == ["tensor fp8"], mistake("not_fp8", (
        f"fp8_matmul_triton multiplies with {' and '.join(kinds) or 'no tensor cores'}: give "
        f"tl.dot the numbers as they were loaded, in e4m3"))
    assert got["tensor fp8"] == want["tensor fp8"], mistake("more_steps", (
        f"fp8_matmul_triton does {got['tensor fp8']:,} FLOPs on tensor cores, the course's own "
        f"{want['tensor fp8']:,}: there is one tl.dot for each {32} of k"))
    same_work("fp8_matmul_triton", own, course)


# ---- sums in few bits


def by_hand(parts, bits, every, final=None):
    """promoted_sum, and with `final` the total in that many bits too."""
    def cut(x, digits):
        fraction, exponent = np.frexp(x)
        return np.ldexp(np.trunc(fraction * 2.0**digits), exponent - digits)

    total = np.zeros(parts.shape[1:])
    for first in range(0, len(parts), every):
        few = np.zeros(parts.shape[1:])
        for part in parts[first:first + every]:
            few = cut(few + part, bits)
        total = cut(total + few, final or 24)
    return total


@pytest.mark.parametrize("S, every, bits", [(12, 4, 8), (13, 4, 8), (5, 1, 6), (3, 7, 9)])
def test_promoted_sum(subject, agree, rng, S, every, bits):
    parts = rng.integers(1, 2**14, (S, 5, 7)) / 1024            # sums are exact in fp32
    want = by_hand(parts, bits, every)
    whole = S // every * every
    uncut = parts.sum(0)
    late = sum(by_hand(parts[i:i + every].sum(0, keepdims=True), bits, 1)
               for i in range(0, S, every))
    agree(subject.promoted_sum(parts, bits, every), want, "float32",
          f"promoted_sum of {S} parts, {bits} bits, promoted after each {every}",
          lambda i: f"row {i[0]}, column {i[1]}", {
              "no_promotion": ("all parts are added in one sum of few bits: after each `every` "
                               "parts it is to begin at 0 again", by_hand(parts, bits, S)),
              "cut_total": ("the total is cut to few bits as well: it is fp32",
                            by_hand(parts, bits, every, bits)),
              "last_left_out": ("the parts after the last full `every` are left out",
                                by_hand(parts[:whole], bits, every)),
              "cut_late": ("a sum is cut only when it is added to the total: it is cut after each "
                           "part", late),
              "not_cut": ("nothing is cut", uncut)})


def test_promoted_sum__nothing(subject):
    got = subject.promoted_sum(np.zeros((0, 2, 3)), 14, 4)
    assert np.array_equal(got, np.zeros((2, 3))), mistake(
        "nothing", f"the sum of no parts is {got}, expected zeros (2, 3)")


# ---- the launchers


def as_tensors(rng, *shapes):
    import torch

    return [torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


@pytest.mark.parametrize("M, N, K", [(1, 16, 32), (5, 130, 300), (70, 40, 129)])
def test_launchers(triton_on_the_cpu, agree, rng, M, N, K):
    """The kernels against float64 on what they were given; and quantising changes little."""
    import torch

    from layer1_kernels import encode_weight, fp8_matmul, quantize_rows, scaled_matmul_fp8
    from layer1_kernels.k19_fp8_matmul import quantize_blocks, scaled_matmul_oracle

    x, w = as_tensors(rng, (M, K), (N, K))
    for group in (32, 128):
        q, scales = quantize_rows(x, group)
        codes, blocks = encode_weight(w, group)
        want = scaled_matmul_oracle(decoded(q), decoded(codes), scales.numpy(), blocks.numpy(),
                                    group)
        got = scaled_matmul_fp8(q, codes, scales, blocks, group)
        agree(got, want, "float32", f"scaled_matmul_fp8, groups of {group}")
        assert np.linalg.norm(want - (x @ w.T).numpy()) < 0.05 * np.linalg.norm(want)
    assert torch.equal(fp8_matmul(x, codes, blocks), got)
    (q, scales), (codes, blocks) = quantize_blocks(x, 1, K), quantize_blocks(w, 1, K)
    want = scaled_matmul_oracle(decoded(q) * scales.numpy(), decoded(codes) * blocks.numpy(),
                                np.ones((M, 1)), np.ones((1, 1)), max(K, N))
    got = scaled_matmul_fp8(q, codes, scales[:, 0], blocks[:, 0])
    agree(got, want, "float32", "scaled_matmul_fp8, rows")
    theirs = torch._scaled_mm(q, codes.T, scale_a=scales, scale_b=blocks.T,
                             out_dtype=torch.float32)
    agree(theirs, want, "float32", "torch._scaled_mm, rows")


@pytest.mark.parametrize("T, N, C", [(0, 3, 40), (3, 0, 40), (3, 5, 0)])
def test_nothing_to_multiply(triton_on_the_cpu, rng, T, N, C):
    from layer1_kernels import encode_weight, fp8_matmul, fp8_matmul_torch

    x, w = as_tensors(rng, (T, C), (N, C))
    for launcher in (fp8_matmul, fp8_matmul_torch):
        y = launcher(x, *encode_weight(w))
        assert y.shape == (T, N) and not y.any()


def test_the_weight_decodes(rng):
    from layer1_kernels import dequantize_blocks, encode_weight

    w, = as_tensors(rng, (130, 300))
    w[:128, :128] = 0
    q, scales = encode_weight(w)
    assert q.shape == w.shape and scales.shape == (2, 3) and scales[0, 0] == 0
    off = (dequantize_blocks(q, scales, 128, 128) - w).abs()
    assert (off <= w.abs() / 16 + scales.max() * 2**-10).all()
    with pytest.raises(ValueError, match="finite in float32"):
        encode_weight(w * float("inf"))


def test_outliers_leave_the_model_as_it_was():
    from day02_overview import Cache, encode, forward, load_nano
    from layer1_kernels.bench.k19_fp8_matmul import with_outliers

    tokens = encode("a warp has")
    plain, spiked = (forward(model, tokens, Cache(model, len(tokens)))
                     for model in (load_nano(), with_outliers(load_nano(), 64)))
    np.testing.assert_allclose(spiked, plain, rtol=1e-4, atol=1e-4)


def test_what_a_model_notices():
    """What the lesson says of its table, on half of the sentences."""
    from day02_overview import NANO, load_nano
    from layer1_kernels.bench.k19_fp8_matmul import model_errors, with_outliers

    texts = (NANO / "sentences.txt").read_text("utf-8").splitlines()[::2]
    letters = sum(len(text) + 1 for text in texts)
    tensor = (10**6, 10**6), (10**6, 10**6)
    plain, spiked = load_nano(), with_outliers(load_nano(), 100)
    bf16, _ = model_errors(plain, texts, "bf16", *tensor)
    for model in (plain, spiked):
        error, same = model_errors(model, texts, "e4m3", *tensor)
        assert 13 < error / bf16 < 17 and same > 0.98 * letters
    assert model_errors(plain, texts, "int8", *tensor)[1] > 0.98 * letters
    assert model_errors(spiked, texts, "int8", *tensor)[1] < 0.6 * letters


def test_what_the_record_says_of_the_small_llama():
    """The lesson's numbers are those of the record, whose every product is off by little."""
    from layer1_kernels.bench.k19_fp8_matmul import by_kind

    record = json.loads((ROOT / "benchmarks" / "fp8_products.json").read_text("utf-8"))
    errors, perplexities = (record[part]["recipes"] for part in ("errors", "quality"))
    bf16, tensor, rows, blocks = (errors[recipe]["fp32"] for recipe in errors)
    ratios = [e4m3[name] / bf16[name] for e4m3 in (tensor, rows, blocks) for name in bf16]
    rises = {part: max(row[part] for row in perplexities.values()) / fp32 - 1
             for part, fp32 in perplexities["fp32"].items()}
    changes = {kind: middle / by_kind(rows)[kind][0] - 1
               for kind, (middle, _) in by_kind(blocks).items()}
    down = changes.pop("down")
    text = " ".join((ROOT / "layer1_kernels/k19_fp8_matmul.md").read_text("utf-8").split())
    for words in (f"error is {min(ratios):.0f} to {max(ratios):.0f} times that of bf16",
                  f"rises by {rises['stories']:.2%} at most on stories and by "
                  f"{rises['docstrings']:.2%} on docstrings".replace("%", " %"),
                  f"rows by {-down:.1%} in `down`, and change it by "
                  f"{max(map(abs, changes.values())):.1%} at most elsewhere".replace("%", " %")):
        assert words in text
    assert all(tensor[name] > max(rows[name], blocks[name]) for name in bf16)
    for part in ("stories", "docstrings"):
        fp32, bf16, tensor, *others = (row[part] for row in perplexities.values())
        assert fp32 < bf16 < tensor < min(others)


def test_refusals(rng):
    """One sentence that says what is expected, and what there is."""
    import torch

    from layer1_kernels import encode_weight, fp8_matmul, fp8_matmul_torch, scaled_matmul_fp8

    x, w = as_tensors(rng, (4, 200), (130, 200))
    q, scales = encode_weight(w)
    e5m2 = w.to(torch.float8_e5m2)
    for launcher in (fp8_matmul, fp8_matmul_torch):
        for operands, error, says in (
                ((x, e5m2, scales), TypeError, "w is torch.float8_e5m2 on cpu, expected "
                                               "torch.float8_e4m3fn"),
                ((x, q, scales.T), ValueError, r"scales has shape \(2, 2\)|scales has strides"),
                ((x, q, scales[:1]), ValueError, r"scales has shape \(1, 2\), expected \(2, 2\)"),
                ((x[:, :100], q, scales), ValueError, "x has strides"),
                ((x[:, :100].contiguous(), q, scales), ValueError, r"expected \(N, 100\)"),
                ((x.double(), q, scales), TypeError, "x is torch.float64"),
                ((x[0], q, scales), ValueError, r"x has shape \(200,\), expected \(T, C\)")):
            with pytest.raises(error, match=says):
                launcher(*operands)
    a = x.to(torch.float8_e4m3fn)
    for group, says in ((48, "group is 48, expected a power of two"), (16, "group is 16")):
        with pytest.raises(ValueError, match=says):
            scaled_matmul_fp8(a, q, scales, scales, group)
    with pytest.raises(ValueError, match=r"a_scales has shape \(2, 2\), expected \(4,\)"):
        scaled_matmul_fp8(a, q, scales, scales)


def test_the_tile_fits_the_rows_and_the_room():
    from layer1_kernels.k19_fp8_matmul import TILES, TILES_OF_ROWS, configuration

    hopper, ada = 227 * 1024, 99 * 1024
    for M, N, tiles, room, want in (
            (8192, 8192, TILES_OF_ROWS, hopper, (128, 256)),
            (8192, 8192, TILES, hopper, (128, 128)),
            (8192, 8192, TILES_OF_ROWS, ada, (128, 128)), (64, 16_384, TILES, ada, (64, 128)),
            (64, 128, TILES, hopper, (16, 64)), (1, 8192, TILES_OF_ROWS, hopper, (16, 64))):
        how = configuration(M, N, tiles, room)
        assert (how["BM"], how["BN"]) == want, (M, N, room)


@pytest.mark.slow
def test_what_hopper_gets():
    from layer1_kernels.bench.k19_fp8_matmul import quantizing, shipped

    for name, kernel in (shipped() | {"quantize": quantizing()}).items():
        assert kernel.spills == 0, f"{name}: {kernel.spills} bytes spilled"
        assert not kernel.serialised, f"{name}: {kernel.serialised}"
        assert kernel.wgmma or "matmul" not in name, f"{name}: no wgmma"


@pytest.mark.gpu
@pytest.mark.parametrize("T, N, C", [(0, 16, 32), (1, 64, 64), (37, 129, 127), (1000, 1000, 512)])
def test_every_kernel_on_the_device(T, N, C):
    """Codes may differ from torch's by one where the device rounds twice."""
    import torch

    from layer1_kernels import encode_weight, fp8_matmul, fp8_matmul_torch

    x, w = torch.randn(T, C, device="cuda"), torch.randn(N, C, device="cuda")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        got, want = (launcher(x.to(dtype), *encode_weight(w)).double()
                     for launcher in (fp8_matmul, fp8_matmul_torch))
        assert (got - want).norm() <= 0.01 * want.norm()


@pytest.mark.gpu
def test_fp8_matmul_triton_speed(pace):
    pace("fp8_matmul", numbers("bfloat16", 4096, 4096),
         made_by("encode_weight", numbers("bfloat16", 4096, 4096)))
