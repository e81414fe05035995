"""Graders of k15.
Outputs start as 7, so that unwritten places show.
What k15 gives: test_quantized_matmul.py."""

import itertools
from numbers import Real

import numpy as np
import pytest

from lab.judge.addresses import FAR, ROWS, in_64_bits
from lab.judge.adversarial import VALUES, shifted
from lab.judge.compare import brief
from lab.judge.mistakes import mistake, same_report
from lab.judge.pace import made_by, numbers
from lab.judge.work import same_work
from tests.layer1_kernels.row_cases import at

GROUPS = (1024, 512, 256, 128, 64, 32, 16)
GEMV = [(5, 96, 8, 16, "float32", 1), (17, 256, 8, 128, "bfloat16", 2),
        (9, 320, 4, 32, "float32", 2), (3, 160, 4, 16, "float16", 1),
        (4, 512, 4, 512, "float32", 3)]
#       N, K, bits, group, dtype, splits of K; 8 bits first, as the lesson says
BN, BB = 4, 64          # rows of w and bytes of each that a program takes at a time

FINITE = {name: make for name, make in VALUES.items()
          if name not in ("infinite", "not_a_number")} | {
              "around -3000": lambda rng, shape: shifted(rng, shape, -3000)}


# ---- by the book


def quantized(w, bits, group):
    """(q (N, K) of int, scales (N, K / group)) of float32 weights."""
    top = np.float32(2 ** (bits - 1) - 1)
    groups = w.reshape(len(w), -1, group)
    scales = np.abs(groups).max(-1) / top
    q = np.rint(groups / np.where(scales > 0, scales, 1)[..., None])
    return q.astype(int).reshape(w.shape), scales


def pack(q, bits, group):
    if bits == 8:
        return q.astype(np.int8)
    halves = (q + 8).reshape(len(q), -1, 2, group // 2).astype(np.uint8)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(len(q), -1)


def dequantized(q, scales, group):
    return q * np.repeat(scales, group, axis=1).astype(np.float64)


def case(rng, T, N, K, bits, group, dtype):
    """x in float64 as rounded to dtype, the same as a tensor, q, scales, packed."""
    import torch

    x = torch.from_numpy(rng.standard_normal((T, K))).to(getattr(torch, dtype))
    q, scales = quantized(rng.standard_normal((N, K), dtype=np.float32), bits, group)
    return x.double().numpy(), x, q, scales, pack(q, bits, group)


def tensors(*arrays):
    import torch

    return [torch.from_numpy(a) for a in arrays]


def telling(want, mistakes):
    """The mistakes that can be seen here: with one step, say, the first is all."""
    return {name: (sentence, answer) for name, (sentence, answer) in mistakes.items()
            if not np.allclose(answer, want, rtol=2e-3, atol=0)}


# ---- bytes


def judge_ratio(subject, bits, group, want):
    """AssertionError unless the prediction is `want`, which no message tells."""
    got = subject.predict_bytes_ratio(bits, group)
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_bytes_ratio: expected a number, got {got!r}")
    why = {
        "no_scales": ("the scales are missing: 4 bytes for each group", bits / 16),
        "reciprocal": ("that is fp16 divided by quantised; the question is the other way round",
                       1 / want),
        "bytes_per_weight": ("that is bytes per weight; divide by the 2 bytes of fp16", 2 * want),
        "short_scales": ("scales are fp32 here, 4 bytes each, not 2", (bits / 8 + 2 / group) / 2),
        "scale_each": ("a scale serves a whole group, not one weight", (bits / 8 + 4) / 2)}
    name, sentence = next(((name, text) for name, (text, value) in why.items()
                           if abs(got - value) < 1e-9),
                          ("other", "count the bytes of a weight and its share of a scale"))
    assert abs(got - want) < 1e-9, mistake(
        name, f"predict_bytes_ratio({bits}, {group}): the arrays do not have {got:g} times the "
              f"bytes of fp16; {sentence}", sentence)


def test_predict_bytes_ratio(subject, reference):
    import torch

    w = torch.ones(4, 512)
    for bits, group in ((4, 32), (8, 16), (4, 128), (8, 512)):
        packed, scales = reference.quantize_weight(w, bits, group)
        judge_ratio(subject, bits, group, (packed.nbytes + scales.nbytes) / w.half().nbytes)


def test_predict_bytes_ratio__unseen(subject, reference, rng):
    for bits, group in zip(rng.integers(2, 9, 4), 2 ** rng.integers(4, 12, 4), strict=True):
        judge_ratio(subject, int(bits), int(group),
                    reference.predict_bytes_ratio(int(bits), int(group)))


# ---- quantising


@pytest.mark.parametrize("bits", [8, 4])
def test_quantize_groups(subject, agree, rng, bits):
    import torch

    w = rng.standard_normal((6, 32), dtype=np.float32)
    w[1] *= 1e-4
    w[2, 5] = -9                # the largest is negative
    top = 2 ** (bits - 1) - 1
    w[3, :8] = np.arange(8) - 3.5
    w[3, 8:] = 0
    w[3, 31] = top              # scale 1: halves
    largest = np.abs(w).max(-1)
    scales = largest / np.float32(top)
    ratio = w / scales[:, None]
    short = torch.from_numpy(scales).bfloat16().float().numpy()
    got_q, got_scales = subject.quantize_groups(*tensors(w), bits)
    name = "quantize_groups"
    agree(got_scales, scales, "float32", f"{name}, {bits} bits, the scales",
          lambda i: f"the scale of row {i[0]}", {
              "signed_maximum": (f"{name} takes the largest w; take the largest |w|",
                                 w.max(-1) / top),
              "top_plus_1": (f"{name} divides by 2^(bits - 1), so ±top is never reached; divide by "
                             "top", largest / (top + 1)),
              "all_steps": (f"{name} divides by 2^bits - 1, the steps of both signs together; "
                            "divide by top", largest / (2 * top + 1)),
              "max_minus_min": (f"{name} spreads the steps over max - min; they go from -top to "
                                "top", (w.max(-1) - w.min(-1)) / (2 * top)),
              "mean": (f"{name} takes the mean of |w|, not the largest", np.abs(w).mean(-1) / top),
              "not_divided": (f"{name} does not divide the largest |w| by top", largest),
              "one_scale": (f"{name} takes one scale for all rows",
                            np.full(6, largest.max() / top)),
              "reciprocal": (f"{name} returns top / maximum; the scale is maximum / top",
                             1 / scales)})
    agree(got_q, np.rint(ratio).astype(int), "exact", f"{name}, {bits} bits, q", at, {
        known: (f"{name} {sentence}", answer.astype(int)) for known, (sentence, answer) in {
            "truncated": ("truncates; round to the nearest integer", np.trunc(ratio)),
            "rounded_down": ("rounds down; round to the nearest integer", np.floor(ratio)),
            "rounded_up": ("rounds up; round to the nearest integer", np.ceil(ratio)),
            "halves_away": ("rounds halves away from 0; round() rounds them to the even integer",
                            np.sign(ratio) * np.floor(np.abs(ratio) + 0.5)),
            "multiplied": ("multiplies by the scale; w is q · scale, so divide",
                           np.clip(np.rint(w * scales[:, None]), -top, top)),
            "no_sign": ("loses the sign", np.abs(np.rint(ratio))),
            "halves_up": ("rounds halves up; round() rounds them to the even integer",
                          np.floor(ratio + 0.5)),
            "short_scales": ("divides by scales of 16 bits", np.rint(w / short[:, None]))}.items()})
    assert str(got_q.dtype) == "torch.int8", mistake(
        "not_int8", f"{name}: q is {got_q.dtype}, expected torch.int8")


def test_quantize_groups__zeros(subject, agree):
    w = np.zeros((2, 16), np.float32)
    w[1, 3] = 2
    q, scales = subject.quantize_groups(*tensors(w), 8)
    agree(scales, np.float32([0, 2 / 127]), "float32", "quantize_groups, a row of zeros, scales",
          lambda i: f"the scale of row {i[0]}", {
              "scale_of_zeros": ("a row of zeros gets the scale 1 instead of 0", [1, 2 / 127])})
    agree(q, np.rint(w * 63.5).astype(int), "exact", "quantize_groups, a row of zeros, q: 0 / 0 is "
          "NaN, and NaN as an integer can be anything", at)


def test_quantize_groups__hard(subject, agree, rng):
    """Rows of every kind, in arrays of several layouts; next to a half either integer is near."""
    import torch

    name = "quantize_groups"
    wide = torch.from_numpy(np.concatenate([make(rng, (17, 32)) for make in FINITE.values()]))
    for w, bits, what in ((wide, 8, "rows of all kinds of numbers"), (wide, 4, "rows of all kinds"),
                          (wide.T.contiguous().T, 4, "columns first"),
                          (wide[::3, :16], 8, "a strided part of an array"),
                          (wide[:17], 4, "17 rows"), (-wide.abs() - 1, 8, "negative numbers"),
                          (wide[:1], 8, "one row"), (wide.reshape(1, -1)[:, :16], 4, "one row"),
                          (torch.randn(1, 33_000), 8, "33,000 numbers")):
        q, scales = subject.quantize_groups(w, bits)
        x, top = w.numpy(), np.float32(2 ** (bits - 1) - 1)
        want = np.abs(x).max(-1) / top
        for g in range(len(x)):
            agree(scales[g:g + 1], want[g:g + 1], "float32",
                  f"{name}, {bits} bits, {what}: the scale of row {g}")
        divisor = np.where(want > 0, want, 1)[:, None]
        ratio = np.clip(x / divisor.astype(np.float64), -top, top)
        nearest, half = np.rint(ratio), np.abs(ratio % 1 - 0.5) < 1e-4
        with np.errstate(over="ignore"):
            inverse = np.rint(x * (1 / divisor))
        small = np.rint(x / np.maximum(want, 1e-8)[:, None].astype(np.float64))
        agree(np.where(half & (np.abs(q.numpy() - ratio) < 0.51), nearest, q.numpy()).astype(int),
              nearest.astype(int), "exact", f"{name}, {bits} bits, {what}: q", at, {
                  "least_divisor": (
                      f"{name} divides by a small number at least, and rows of tiny weights become "
                      "0; only a row of zeros needs another divisor",
                      np.clip(small, -top, top).astype(int)),
                  "inverse_scale": (
                      f"{name} divides by a rounded scale, or multiplies by 1 / scale, which "
                      "overflows if the scale is tiny; divide by the scale",
                      np.clip(inverse, -top, top).astype(int))})


@pytest.mark.parametrize("bits, largest", [(8, 190), (4, 10)])
def test_quantize_groups__smallest_numbers(subject, agree, bits, largest):
    """A row of so few of float32's smallest steps that its scale, 1.4 or 1.5, is rounded to 1."""
    import torch

    steps, top = np.array([[largest, -largest, 1, 0]]), 2 ** (bits - 1) - 1
    q, _ = subject.quantize_groups(torch.from_numpy(steps * 2.0 ** -149).float(), bits)
    agree(q, np.clip(steps, -top, top), "exact", f"quantize_groups, {bits} bits, q of a row whose "
          f"largest is {largest} times float32's smallest number", mistakes={
              "not_clamped": ("q leaves the range -top to top, because the scale was rounded down: "
                              "clamp it", steps.astype(np.int8))})


# ---- unpacking


def unpacked(subject, packed, block):
    """(low, high, launch) of unpack_all_triton."""
    n = len(packed)
    operands = tensors(packed, *np.full((2, n), 7, np.float32))
    launch = subject.launch("unpack_all_triton", -(-n // block), args=(*operands, n), BLOCK=block)
    return *operands[1:], launch


def test_unpack_triton(subject, agree):
    packed = np.arange(256, dtype=np.uint8)
    low, high, _ = unpacked(subject, packed, 128)
    whole = packed.astype(int)
    lows, highs = whole & 15, whole >> 4
    for which, got, own, other in (("low", low, lows, highs), ("high", high, highs, lows)):
        agree(got, own - 8, "float32", f"unpack_triton, the {which} numbers of bytes 0 to 255",
              lambda i: f"of byte {i[0]}", {
                  "no_minus_8": ("unpack_triton does not subtract the 8", own),
                  "exchanged": ("unpack_triton returns (high, low); expected (low, high)",
                                other - 8),
                  "twos_complement": ("unpack_triton reads the 4 bits as two's complement; they "
                                      "hold q + 8", np.where(own > 7, own - 16, own)),
                  "unsigned": ("unpack_triton subtracts in unsigned 8 bits, where 0 - 8 is 248: "
                               "convert first", (own - 8) % 256),
                  "not_masked": ("unpack_triton does not mask the high 4 bits: & 15", whole - 8),
                  "signed_shift": ("the byte is shifted as a signed number",
                                   (packed.astype(np.int8) >> 4) - 8),
                  "no_minus_eighth": ("-8 is replaced by -7", np.maximum(own - 8, -7)),
                  "minus_7": ("unpack_triton subtracts 7, not 8", own - 7),
                  "three_bits": ("unpack_triton keeps 3 bits, not 4", own % 8 - 8),
                  "not_shifted": ("the high 4 bits are cut out, and not shifted down",
                                  16 * own - 8),
                  "shifted_by_3": ("the byte is shifted by 3, and not by 4", whole // 8 - 8),
                  "plus_8": ("unpack_triton adds 8; subtract it", own + 8)})


def test_unpack_triton__work(subject, reference):
    packed = np.arange(256, dtype=np.uint8).repeat(8)
    same_work("unpack_triton", *(unpacked(side, packed, 512)[2] for side in (subject, reference)))


def test_unpack_triton__unseen(subject, agree, rng):
    """Bytes in any order: what one gives does not depend on its place."""
    packed = rng.integers(0, 256, 16 * int(rng.integers(9, 25)) + 1, dtype=np.uint8)
    low, high, _ = unpacked(subject, packed, 64)
    for which, got, four in (("low", low, packed & 15), ("high", high, packed >> 4)):
        agree(got, four.astype(int) - 8, "float32", f"unpack_triton, the {which} numbers",
              lambda i: f"that of byte {i[0]}, {packed[i[0]]}")


# ---- the GEMV


def run_gemv(subject, x, packed, scales, bits, group, splits=1, bn=BN, bb=BB):
    """y (splits, N) and the launch."""
    N, row = packed.shape
    operands = tensors(packed, scales, np.full((splits, N), 7, np.float32))
    span = -(-row // (bb * splits)) * bb
    with (same_report("no_rows_mask", "Rows from N on are not there: mask w with `n_inside` too.",
                      kind="out_of_bounds", array="packed"),
          same_report("no_store_mask", "The last program may have rows from N on: store if n < N.",
                      kind="out_of_bounds", array="y"),
          same_report("one_row_of_y", "Split s stores its sums at y + s · N.",
                      kind="race", array="y")):
        launch = subject.launch(
            "quantized_gemv_triton", (-(-N // bn), splits),
            args=(x, *operands, N, row, scales.shape[1], span),
            BITS=bits, GROUP=group, BN=bn, BB=bb)
    return operands[-1], launch


@pytest.mark.parametrize("N, K, bits, group, dtype, splits", GEMV)
def test_quantized_gemv_triton(subject, agree, rng, N, K, bits, group, dtype, splits):
    x, xt, q, scales, packed = case(rng, 1, N, K, bits, group, dtype)
    got, _ = run_gemv(subject, xt, packed, scales, bits, group, splits)
    right_gemv(agree, got, x, q, scales, packed, (bits, group, dtype, splits))


def right_gemv(agree, got, x, q, scales, packed, how, what="", bb=BB):
    """got is what each split adds up, or the message names the split, the row and the mistake."""
    name, (N, K), (bits, group, dtype, splits) = "quantized_gemv_triton", q.shape, how
    weights, factor = dequantized(q, scales, group), np.repeat(scales, group, axis=1)   # 2 × (N, K)
    terms, raw = x * weights, x * q
    k, bytes_ = np.arange(K), group * bits // 8
    byte = k // group * bytes_ + k % group % bytes_             # of number k
    span = -(-packed.shape[1] // (bb * splits)) * bb

    def parts(terms, of=True):
        """(splits, N): sums over the bytes of each split, of the terms that `of` selects."""
        return np.stack([(terms * of * (byte // span == s)).sum(1) for s in range(splits)])

    def over_rows():
        """Place n of a program has the sum of its rows' n-th parts of each step."""
        part = byte % bb // min(bytes_, 16)
        program = np.arange(N) // BN
        return np.stack([parts(terms * (program == program[n])[:, None], part == n % BN).sum(1)
                         for n in range(N)], 1)

    step = byte // bb
    last = np.array([step[byte // span == s].max(initial=0) for s in range(splits)])[byte // span]
    want = parts(terms)
    half = k % group < group // 2
    mistakes = {
        "no_scales": (f"{name} leaves out the scales", parts(raw)),
        "scaled_twice": (f"{name} multiplies by the scale twice", parts(terms * factor)),
        "sums_reset": (f"{name} sets its sums to 0 again in each step", parts(terms, step == last)),
        "whole_row": (f"each split of {name} adds up the whole row",
                      np.stack([terms.sum(1)] * splits)),
        "scale_of_row_0": (f"{name} takes the scale of row 0 for every row",
                           parts(raw * factor[:1])),
        "first_scale": (f"{name} takes the first group's scale for the whole row",
                        parts(raw * scales[:, :1])),
        "first_step": (f"{name} ends after the first step", parts(terms, byte % span < bb)),
        "over_rows": (f"{name} adds up the sums of parts along axis 0, over rows of w; the parts "
                      "of a row lie along axis 1", over_rows()),
        "one_program": (f"only the first program of {name} adds anything up",
                        np.where(np.arange(N) < BN, want, 0)),
        "not_stored": (f"{name} writes nothing", np.full_like(want, 7))}
    if bits == 4:
        partner = k + np.where(half, 1, -1) * (group // 2)
        mistakes |= {
            "x_exchanged": (f"{name} multiplies the high halves by the x of the low halves, and "
                            "the low halves by that of the high", parts(x[:, partner] * weights)),
            "x_at_byte": (f"{name} takes byte b for number b of x: a byte of group g has numbers "
                          "of group g, in either half",
                          parts(x[:, np.where(half, byte, k)] * weights)),
            "x_half_a_group_on": (f"{name} takes bytes b and b + group / 2 for numbers of x", parts(
                x[:, byte + np.where(half, 0, group // 2)] * weights)),
            "high_unscaled": (f"{name} leaves the high halves without a scale",
                              parts(np.where(half, terms, raw))),
            "low_unscaled": (f"{name} leaves the low halves without a scale",
                             parts(np.where(half, raw, terms))),
            "high_subtracted": (f"{name} subtracts the products of the high halves",
                                parts(np.where(half, terms, -terms))),
            "no_high": (f"{name} leaves out the high 4 bits", parts(terms, half)),
            "no_low": (f"{name} leaves out the low 4 bits", parts(terms, ~half)),
            "low_x": (f"{name} multiplies the high halves by the x of the low halves: load x at "
                      "k + GROUP // 2", parts(x[:, np.where(half, k, partner)] * weights)),
            "neighbours": (f"{name} assumes weights 2i and 2i + 1 in byte i; the layout has i and "
                           "i + group / 2", parts(interleaved(x, group) * weights))}
    agree(got, want, "float32", f"{name}, N = {N}, K = {K}, {bits} bits, groups of {group}, {dtype}"
          f", {splits} split{'s' * (splits > 1)}, BN = {BN}, BB = {bb}{what}",
          lambda i: f"split {i[0]}, row {i[1]} of w", telling(want, mistakes))


def test_quantized_gemv_triton__hard(subject, agree, rng):
    """Hard numbers in x, and in w, whose rows are looked at alone."""
    import torch

    N, K, group = 6, 160, 32
    for (what, make), bits, in_w in itertools.product(VALUES.items(), (4, 8), (False, True)):
        if what == "denormal" or in_w and what not in FINITE:
            continue
        x, w = rng.standard_normal((1, K), dtype=np.float32), rng.standard_normal((N, K))
        x, w = (x, make(rng, (N, K))) if in_w else (make(rng, (1, K)), w.astype(np.float32))
        q, scales = quantized(w, bits, group)
        q = np.clip(q, 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)
        packed = pack(q, bits, group)
        got, _ = run_gemv(subject, torch.from_numpy(x), packed, scales, bits, group)
        for n in range(N) if in_w else (np.s_[:],):
            rows = np.s_[n:n + 1] if in_w else n
            with np.errstate(invalid="ignore"):
                right_gemv(agree, got[:, rows], x.astype(float), q[rows], scales[rows],
                           packed[rows], (bits, group, "float32", 1),
                           f", {what.replace('_', ' ')} in {f'row {n} of w' if in_w else 'x'}")
    x, xt, q, scales, packed = case(rng, 1, 1, 33_024, 8, 128, "float32")
    got, _ = run_gemv(subject, xt, packed, scales, 8, 128, bb=1024)
    right_gemv(agree, got, x, q, scales, packed, (8, 128, "float32", 1), bb=1024)


def test_quantized_gemv_triton__addresses(subject):
    """w without columns, so that only y is touched: one row for each split."""
    packed, scales, x, y = tensors(np.zeros(1, np.int8), *np.zeros((3, 1), np.float32))
    in_64_bits(subject, "quantized_gemv_triton", (1, ROWS), None, (
        x, packed, scales, y, FAR, 0, 0, BB), 1, "y, split · N", BITS=8, GROUP=16, BN=1, BB=BB)


def interleaved(x, group):
    """x as an answer sees it that pairs neighbours in a byte."""
    K = x.shape[1]
    return x.reshape(1, K // group, group // 2, 2).swapaxes(2, 3).reshape(1, K)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_gemv_triton__work(subject, reference, rng, bits):
    N, K, group, bn, bb = 16, 2048, 128, 8, 1024
    x, xt, _, scales, packed = case(rng, 1, N, K, bits, group, "float16")
    (_, launch), (_, best) = (run_gemv(side, xt, packed, scales, bits, group, bn=bn, bb=bb)
                              for side in (subject, reference))
    least = packed.nbytes + N // bn * xt.nbytes + packed.nbytes // 16 * 4
    for known, got, limit, unit, sentence in (
            ("loaded_again", launch.bytes("load"), least, "bytes loaded",
             "each packed byte once, x once per program, one scale per 16 bytes"),
            ("narrow_loads", launch.requests("load"), 1.25 * best.requests("load"), "load requests",
             "each thread can load 16 bytes of w; load the tile (BN, BB) at `packed + start + b`, "
             "so that neighbouring positions are neighbouring bytes"),
            ("scale_each", launch.steps, 1.5 * best.steps, "warp instructions",
             "sum each part first, then multiply the sum by the scale, not each weight")):
        assert got <= limit, mistake(
            known, f"quantized_gemv_triton, {bits} bits: {got} {unit}, at most {int(limit)} are "
                   f"needed: {sentence}", sentence)
    same_work("quantized_gemv_triton", launch, best)


# ---- the group


def errors_of(w, groups=GROUPS):
    """{group: the relative error of w in int4}"""
    exact = w.astype(np.float64)
    return {group: float(np.sqrt(((dequantized(*quantized(w, 4, group), group) - exact) ** 2).sum()
                                 / (exact**2).sum())) for group in groups}


def wrong_group(got, want, errors, limit):
    """(id, sentence) of a group that is not the largest within the limit."""
    fits = [group for group, error in errors.items() if error <= limit]
    if isinstance(got, float):
        return "error_returned", "That is an error; return the group."
    if got is None:
        return ("not_16", "Groups of 16 are within the limit: the loop must not end before them."
                ) if fits == [16] else ("no_group", "There is a group within the limit.")
    if want is None:
        return "no_none", "No group has an error that small: return None."
    if got not in fits:
        return "over_limit", "That exceeds the limit."
    if want == 1024 and got == 512:
        return "not_1024", "The first group to try is 1024."
    if got == min(fits):
        return "smallest", "That is the smallest group within the limit; it has the most scales. " \
                           "Return the largest."
    return "smaller", "A larger group is within the limit too."


def judge_group(subject, w, bits, limit, errors, what, known=None):
    """AssertionError unless the largest group within the limit comes out.

    known: the (id, sentence) of any other group, or None for what the group itself tells
    """
    want = next((group for group, error in errors.items() if error <= limit), None)
    got = subject.largest_group(w, bits, limit)
    assert got is None or isinstance(got, Real), mistake(
        "no_group_at_all", f"largest_group, {what}: got {brief(got)}, expected an int or None")
    name, sentence = known or wrong_group(got, want, errors, limit)
    error = f" Groups of {got} have an error of {errors[got]:.4f}." if got in errors else ""
    # "got None" would ask about a missing `return`, and for other limits groups are returned
    shown = "no group" if got is None else got
    assert got == want, mistake(name, f"largest_group, {what}, limit {limit:.4g}: got {shown}, "
                                      f"expected {want}.{error} {sentence}", sentence)


def test_largest_group(subject, rng):
    w = rng.standard_normal((4, 1024), dtype=np.float32)
    w[:, 100] *= 40
    errors = errors_of(w)
    for limit in (1.01 * errors[64], 1.01 * errors[256], 1.01 * errors[16], 1.0, 0.5 * errors[16]):
        judge_group(subject, *tensors(w), 4, limit, errors, "4 bits")


def test_largest_group__hard(subject, rng):
    """Weights of every kind and layout; errors that do not grow with the group."""
    import torch

    exact = np.tile(np.float32([7, -3, 2, 0, 5, -1, 4, 1]), (1, 128))
    uneven = exact.copy()
    uneven[:, 512:] = np.clip(exact[:, 512:], -3, 5)            # 5 becomes 7, 4 no integer
    for what, w, known in (
            ("w that groups of any size hold exactly", exact,
             ("strict", "With limit 0, an error of 0 is within the limit: compare with <=.")),
            ("w that groups of 1024 hold exactly, and groups of 512 do not", uneven,
             ("stops_early", "Errors do not always grow with the group: try 1024 first."))):
        judge_group(subject, torch.from_numpy(w), 4, 0.0, errors_of(w), what, known)
    rows = {f"{what.replace('_', ' ')} numbers": make(rng, (17, 1024))
            for what, make in FINITE.items() if what != "denormal"} | {
                "a row of 33,792": rng.standard_normal((1, 33_792), dtype=np.float32),
                "columns first": np.asfortranarray(rng.standard_normal((2, 1024), np.float32))}
    for what, w in rows.items():
        errors = errors_of(np.ascontiguousarray(w))
        for limit in (1.01 * errors[1024], 1.01 * errors[32], 0.3, 1e-5):
            if all(abs(error - limit) >= 1e-3 * limit for error in errors.values()):
                judge_group(subject, torch.from_numpy(w), 4, limit, errors, f"{what}, 4 bits")


def test_largest_group__bits(subject, rng):
    w = rng.standard_normal((2, 1024), dtype=np.float32)
    judge_group(subject, *tensors(w), 8, 0.01, {1024: 0.0}, "8 bits",
                ("bits_ignored", "Pass `bits` on to relative_error."))


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("T, N, K, bits, group", [
    (1, 1, 16, 8, 16), (1, 1000, 4096, 4, 128), (1, 4096, 176, 8, 16), (16, 127, 1024, 4, 32),
    (129, 1000, 2048, 4, 128), (1000, 129, 512, 8, 64)])
def test_every_kernel_on_the_device(T, N, K, bits, group):
    import torch

    from layer1_kernels import (
        dequantize_weight,
        quantize_weight,
        quantized_matmul,
        quantized_matmul_cuda,
    )

    x, w = torch.randn(T, K, device="cuda"), torch.randn(N, K, device="cuda")
    packed, scales = quantize_weight(w, bits, group)
    back = dequantize_weight(packed, scales, bits, group).double()
    near = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
    for dtype, relative in near.items():
        xd = x.to(dtype)
        want = xd.double() @ back.T
        got = quantized_matmul(xd, packed, scales, bits, group).double()
        assert (got - want).abs().max() <= relative * want.abs().max()
        assert torch.equal(got, quantized_matmul(xd, packed, scales, bits, group).double())
    want = x.double() @ back.T
    got = quantized_matmul_cuda(x, packed, scales, bits, group).double()
    assert (got - want).abs().max() <= 2e-5 * want.abs().max()


@pytest.mark.gpu
def test_quantized_gemv_triton_speed(pace):
    pace("quantized_matmul", numbers("bfloat16", 1, 16_384),
         made_by("quantize_weight", numbers("float32", 16_384, 16_384), 4, 128), 4, 128)
