"""Graders of k15. Outputs start as 7, so that unwritten places show."""

import itertools

import numpy as np
import pytest

from lab.judge.adversarial import VALUES, shifted
from lab.judge.pace import made_by, numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work

GEMV = [(9, 320, 4, 32, "float32", 2), (5, 96, 8, 16, "float32", 1), (3, 160, 4, 16, "float16", 1),
        (17, 256, 8, 128, "bfloat16", 2), (4, 512, 4, 512, "float32", 3)]
#       N, K, bits, group, dtype, splits of K
BN, BB = 4, 64          # rows of w and bytes of each that a program takes at a time
ALL = [(1, 1, 16, 8, 16, "float32"), (1, 41, 144, 4, 16, "float16"), (3, 40, 96, 4, 32, "float32"),
       (1, 9, 2176, 8, 128, "bfloat16"), (16, 33, 256, 4, 128, "bfloat16"),
       (17, 20, 64, 8, 64, "float16"), (70, 33, 80, 4, 16, "bfloat16")]
#      T, N, K, bits, group, dtype

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


def at(index):
    return f"row {index[0]}, column {index[1]}"


def ceil(a, b):
    return -(-a // b)


def telling(want, mistakes):
    """The mistakes that can be seen here: with one step, say, the first is all."""
    return {mistake: answer for mistake, answer in mistakes.items()
            if not np.allclose(answer, want, rtol=2e-3, atol=0)}


# ---- bytes


def test_predict_bytes_ratio(subject, reference):
    import torch

    w = torch.ones(4, 512)
    for bits, group in ((4, 32), (8, 16), (4, 128), (8, 512)):
        packed, scales = reference.quantize_weight(w, bits, group)
        want = (packed.nbytes + scales.nbytes) / w.half().nbytes
        got = subject.predict_bytes_ratio(bits, group)
        assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
        why = {bits / 16: "the scales are missing: 4 bytes for each group",
               1 / want: "that is the ratio upside down",
               2 * want: "that is bytes for each weight; one in fp16 has 2 bytes",
               (bits / 8 + 2 / group) / 2: "scales are fp32 here, 4 bytes each, not 2",
               (bits / 8 + 4) / 2: "a scale serves a whole group, not one weight"}
        said = next((text for value, text in why.items() if abs(got - value) < 1e-9),
                    "count the bytes of a weight and its share of a scale")
        assert abs(got - want) < 1e-9, (
            f"{bits} bits, groups of {group}: {got:g} is not what the arrays have, {want:g} times "
            f"the bytes of fp16; {said}")


def test_predict_bytes_ratio__unseen(unseen, rng):
    for bits, group in zip(rng.integers(2, 9, 4), 2 ** rng.integers(4, 12, 4), strict=True):
        unseen("predict_bytes_ratio", int(bits), int(group))


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
    scales = np.abs(w).max(-1) / np.float32(top)
    ratio = w / scales[:, None]
    got_q, got_scales = subject.quantize_groups(*tensors(w), bits)
    name = "quantize_groups"
    agree(got_scales, scales, "float32", f"{name}, {bits} bits, the scales",
          lambda i: f"the scale of row {i[0]}", {
              f"{name} takes the largest w, not the largest |w|": w.max(-1) / top,
              f"{name} divides by 2^(bits - 1), and ±top is never reached":
                  np.abs(w).max(-1) / (top + 1),
              f"{name} divides by the number of steps of both signs, 2^bits - 1":
                  np.abs(w).max(-1) / (2 * top + 1),
              f"{name} spreads the steps over max - min; they go from -top to top":
                  (w.max(-1) - w.min(-1)) / (2 * top),
              f"{name} takes the mean of |w|, not the largest": np.abs(w).mean(-1) / top,
              f"{name} does not divide the largest |w| by top": np.abs(w).max(-1),
              f"{name} takes one scale for all rows": np.full(6, np.abs(w).max() / top),
              f"{name} returns top over the maximum, the scale upside down": 1 / scales})
    agree(got_q, np.rint(ratio).astype(int), "exact", f"{name}, {bits} bits, q", at, {
        f"{name} cuts off what is after the point; it should round": np.trunc(ratio).astype(int),
        f"{name} rounds down; it should round to the nearest": np.floor(ratio).astype(int),
        f"{name} rounds up; it should round to the nearest": np.ceil(ratio).astype(int),
        f"{name} rounds halves away from 0; round() takes the even one":
            (np.sign(ratio) * np.floor(np.abs(ratio) + 0.5)).astype(int),
        f"{name} multiplies by the scale; w is q · scale, so divide":
            np.clip(np.rint(w * scales[:, None]), -top, top).astype(int),
        f"{name} loses the sign": np.abs(np.rint(ratio)).astype(int),
        f"{name} rounds halves up; round() takes the even one":
            np.floor(ratio + 0.5).astype(int),
        f"{name} divides by scales of 16 bits":
            np.rint(w / torch.from_numpy(scales).bfloat16().float().numpy()[:, None]).astype(int)})
    assert str(got_q.dtype) == "torch.int8", f"{name}: q is {got_q.dtype}, expected torch.int8"


def test_quantize_groups__zeros(subject, agree):
    w = np.zeros((2, 16), np.float32)
    w[1, 3] = 2
    q, scales = subject.quantize_groups(*tensors(w), 8)
    agree(scales, np.float32([0, 2 / 127]), "float32", "quantize_groups, a row of zeros, scales",
          lambda i: f"the scale of row {i[0]}", {})
    agree(q, np.rint(w * 63.5).astype(int), "exact", "quantize_groups, a row of zeros, q: 0 / 0 is "
          "NaN, and as an integer anything", at, {})


def test_quantize_groups__hard(subject, agree, rng):
    """Rows of every kind, in arrays of several layouts; next to a half either integer is near."""
    import torch

    name = "quantize_groups"
    wide = torch.from_numpy(np.concatenate([make(rng, (17, 32)) for make in FINITE.values()]))
    for w, bits, what in ((wide, 8, "rows of all kinds"), (wide, 4, "rows of all kinds"),
                          (wide.T.contiguous().T, 4, "columns first"),
                          (wide[::3, :16], 8, "rows and columns left out"),
                          (wide[:17], 4, "17 rows"), (-wide.abs() - 1, 8, "negative numbers"),
                          (wide[:1], 8, "one row"), (wide.reshape(1, -1)[:, :16], 4, "one row"),
                          (torch.randn(1, 33_000), 8, "33,000 numbers")):
        q, scales = subject.quantize_groups(w, bits)
        x, top = w.numpy(), np.float32(2 ** (bits - 1) - 1)
        want = np.abs(x).max(-1) / top
        for g in range(len(x)):
            agree(scales[g:g + 1], want[g:g + 1], "float32",
                  f"{name}, {bits} bits, {what}: the scale of row {g}")
        ratio = np.clip(x / np.where(want > 0, want, 1)[:, None].astype(np.float64), -top, top)
        nearest, half = np.rint(ratio), np.abs(ratio % 1 - 0.5) < 1e-4
        with np.errstate(over="ignore"):
            inverse = np.rint(x * (1 / np.where(want > 0, want, 1)[:, None]))
        agree(np.where(half & (np.abs(q.numpy() - ratio) < 0.51), nearest, q.numpy()).astype(int),
              nearest.astype(int), "exact", f"{name}, {bits} bits, {what}: q", at,
              {f"{name} divides by a small number at least, and rows of tiny weights become 0; "
               "only a row of zeros needs another divisor": np.clip(np.rint(
                   x / np.maximum(want, 1e-8)[:, None].astype(np.float64)), -top, top).astype(int),
               f"{name} divides by a scale that has lost its digits, or multiplies by 1 / scale, "
               "which is infinite for the smallest": np.clip(inverse, -top, top).astype(int)})


@pytest.mark.parametrize("bits, largest", [(8, 190), (4, 10)])
def test_quantize_groups__smallest_numbers(subject, agree, bits, largest):
    """A row of so few of float32's smallest steps that its scale, 1.4 or 1.5, is rounded to 1."""
    import torch

    steps, top = np.array([[largest, -largest, 1, 0]]), 2 ** (bits - 1) - 1
    q, _ = subject.quantize_groups(torch.from_numpy(steps * 2.0 ** -149).float(), bits)
    agree(q, np.clip(steps, -top, top), "exact", f"quantize_groups, {bits} bits, q of a row whose "
          f"largest is {largest} times float32's smallest number", mistakes={
              "q is not held between -top and top, and the scale was rounded down":
                  steps.astype(np.int8)})


# ---- unpacking


def test_unpack_triton(subject, agree):
    packed = np.arange(256, dtype=np.uint8)
    given, low, high = tensors(packed, *np.full((2, 256), 7, np.float32))
    subject.launch("unpack_all_triton", 2, args=(given, low, high, 256), BLOCK=128)
    lows, highs = packed.astype(int) & 15, packed.astype(int) >> 4
    signed = [np.where(n > 7, n - 16, n) for n in (lows, highs)]
    for which, got, own, other, twos in (("low", low, lows, highs, signed[0]),
                                         ("high", high, highs, lows, signed[1])):
        agree(got, own - 8, "float32", f"unpack_triton, the {which} numbers of bytes 0 to 255",
              lambda i: f"of byte {i[0]}", {
                  f"unpack_triton does not take off the 8 ({which})": own,
                  f"unpack_triton gives (high, low); the {which} one is the other": other - 8,
                  "unpack_triton takes the bits as two's complement; q + 8 is stored": twos,
                  "unpack_triton subtracts in 8 bits without a sign, where 0 - 8 is 248":
                      (own - 8) % 256,
                  "unpack_triton does not cut off the upper 4 bits": packed.astype(int) - 8,
                  "the byte is shifted with its sign": (packed.astype(np.int8) >> 4) - 8,
                  "the smallest, -8, is cut to -7": np.maximum(own - 8, -7),
                  f"unpack_triton takes off 7, not 8 ({which})": own - 7,
                  f"unpack_triton keeps 3 bits, not 4 ({which})": own % 8 - 8,
                  "the high 4 bits are cut out, and not shifted down": 16 * own - 8,
                  "the byte is shifted by 3, and not by 4": packed.astype(int) // 8 - 8,
                  f"unpack_triton adds 8; it takes it off ({which})": own + 8})


def test_unpack_triton__work(subject, reference):
    launches = []
    for side in (subject, reference):
        given, low, high = tensors(np.arange(256, dtype=np.uint8).repeat(8),
                                   *np.full((2, 2048), 7, np.float32))
        launches.append(side.launch("unpack_all_triton", 4, args=(given, low, high, 2048),
                                    BLOCK=512))
    same_work("unpack_triton", *launches)


def test_unpack_triton__unseen(subject, agree, rng):
    """Bytes in any order: what one gives does not depend on its place."""
    packed = rng.integers(0, 256, 16 * int(rng.integers(9, 25)) + 1, dtype=np.uint8)
    given, low, high = tensors(packed, *np.full((2, len(packed)), 7, np.float32))
    subject.launch("unpack_all_triton", ceil(len(packed), 64), BLOCK=64,
                   args=(given, low, high, len(packed)))
    for which, got, four in (("low", low, packed & 15), ("high", high, packed >> 4)):
        agree(got, four.astype(int) - 8, "float32", f"unpack_triton, the {which} numbers",
              lambda i: f"that of byte {i[0]}, {packed[i[0]]}")


# ---- the GEMV


def run_gemv(subject, x, packed, scales, bits, group, splits=1, bn=BN, bb=BB):
    """y (splits, N) and the launch."""
    N, row = packed.shape
    given = tensors(packed, scales, np.full((splits, N), 7, np.float32))
    span = ceil(ceil(row, bb), splits) * bb
    launch = subject.launch(
        "quantized_gemv_triton", (ceil(N, bn), splits),
        args=(x, *given, N, row, scales.shape[1], span),
        BITS=bits, GROUP=group, BN=bn, BB=bb)
    return given[-1], launch


@pytest.mark.parametrize("N, K, bits, group, dtype, splits", GEMV)
def test_quantized_gemv_triton(subject, agree, rng, N, K, bits, group, dtype, splits):
    x, xt, q, scales, packed = case(rng, 1, N, K, bits, group, dtype)
    got, _ = run_gemv(subject, xt, packed, scales, bits, group, splits)
    right_gemv(agree, got, x, q, scales, packed, (bits, group, dtype, splits))


def right_gemv(agree, got, x, q, scales, packed, how, what="", bb=BB):
    """got is what each split adds up, or the message names the split, the row and the mistake."""
    name, (N, K), (bits, group, dtype, splits) = "quantized_gemv_triton", q.shape, how
    terms = x * dequantized(q, scales, group)                   # (N, K)
    raw = x * q
    k = np.arange(K)
    byte = k // group * (group * bits // 8) + k % group % (group * bits // 8)   # of number k
    span = ceil(ceil(packed.shape[1], bb), splits) * bb

    def parts(terms, of=None):
        """(splits, N): sums over the bytes of each split, of the terms that `of` selects."""
        of = np.ones(K) if of is None else of
        return np.stack([(terms * of * (byte // span == s)).sum(1) for s in range(splits)])

    step = byte // bb
    last = np.array([step[byte // span == s].max(initial=0) for s in range(splits)])[byte // span]
    want = parts(terms)
    half = k % group < group // 2
    mistakes = {
        f"{name} leaves out the scales": parts(raw),
        f"{name} multiplies by the scale twice": parts(terms * np.repeat(scales, group, axis=1)),
        f"{name} starts its sums again with each step":
            parts(terms, step == last),
        f"each split of {name} adds up the whole row": np.stack([terms.sum(1)] * splits),
        f"{name} takes the scale of row 0 for every row":
            parts(raw * np.repeat(scales, group, axis=1)[:1]),
        f"{name} takes the first group's scale for the whole row":
            parts(raw * scales[:, :1]),
        f"{name} ends after the first step": parts(terms, byte % span < bb),
        f"only the first program of {name} adds up": np.where(np.arange(N) < BN, want, 0),
        f"{name} writes nothing": np.full_like(want, 7)}
    if bits == 4:
        partner = np.where(half, k, k - group // 2)
        mistakes |= {
            f"{name} multiplies the high numbers with the x of the low ones, and the low ones with "
            f"that of the high": parts(x[:, k + np.where(half, 1, -1) * (group // 2)]
                                       * dequantized(q, scales, group)),
            f"{name} takes byte b for number b of x: a byte of group g has numbers of group g, "
            f"in either half": parts(x[:, np.where(half, byte, k)] * dequantized(q, scales, group)),
            f"{name} takes bytes b and b + group / 2 for numbers of x":
                parts(x[:, byte + np.where(half, 0, group // 2)] * dequantized(q, scales, group)),
            f"{name} leaves the high numbers without a scale": parts(np.where(half, terms, raw)),
            f"{name} leaves the low numbers without a scale": parts(np.where(half, raw, terms)),
            f"{name} subtracts the high numbers' products": parts(np.where(half, terms, -terms)),
            f"{name} leaves out the high 4 bits": parts(terms, half),
            f"{name} leaves out the low 4 bits": parts(terms, ~half),
            f"{name} multiplies the high numbers with the x of the low ones":
                parts(x[:, partner] * dequantized(q, scales, group)),
            f"{name} takes numbers 2i and 2i + 1 to be in byte i; the layout has i and "
            f"i + group / 2": parts(interleaved(x, group) * dequantized(q, scales, group))}
    agree(got, want, "float32", f"{name}, N = {N}, K = {K}, {bits} bits, groups of {group}, {dtype}"
          f", {splits} split(s), BN = {BN}, BB = {bb}{what}",
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


def interleaved(x, group):
    """x as an answer sees it that pairs neighbours in a byte."""
    K = x.shape[1]
    return x.reshape(1, K // group, group // 2, 2).swapaxes(2, 3).reshape(1, K)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_gemv_triton__work(subject, reference, rng, bits):
    N, K, group, bn, bb = 16, 2048, 128, 8, 1024
    x, xt, _, scales, packed = case(rng, 1, N, K, bits, group, "float16")
    _, launch = run_gemv(subject, xt, packed, scales, bits, group, bn=bn, bb=bb)
    of_x, of_scales = N // bn * xt.nbytes, packed.nbytes // 16 * 4
    least = packed.nbytes + of_x + of_scales
    assert launch.bytes("load") <= least, (
        f"quantized_gemv_triton, {bits} bits: {launch.bytes('load')} bytes are loaded, {least} are "
        f"enough: each packed byte once, x once by each program, a scale for each 16 bytes")
    _, best = run_gemv(reference, xt, packed, scales, bits, group, bn=bn, bb=bb)
    got, enough = launch.requests("load"), best.requests("load")
    assert got <= 1.25 * enough, (
        f"quantized_gemv_triton, {bits} bits: {got} loads of a warp, {enough} are enough, with 16 "
        f"bytes of w a lane: load the bytes (BN, BB) as they lie, neighbours by neighbours")
    assert launch.steps <= 1.5 * best.steps, (
        f"quantized_gemv_triton, {bits} bits: {launch.steps} instructions of a warp, the course's "
        f"has {best.steps}: sum a part first, in the lane that has it, and scale the sum, not each "
        f"weight")
    same_work("quantized_gemv_triton", launch, best)


# ---- the group


def test_largest_group(subject, rng):
    w = rng.standard_normal((4, 1024), dtype=np.float32)
    w[:, 100] *= 40
    errors = {}
    for group in (1024, 512, 256, 128, 64, 32, 16):
        q, scales = quantized(w, 4, group)
        errors[group] = float(np.sqrt(((dequantized(q, scales, group) - w) ** 2).sum()
                                      / (w.astype(np.float64) ** 2).sum()))
    for limit in [1.01 * errors[64], 1.01 * errors[256], 1.01 * errors[16], 1.0,
                  0.5 * errors[16]]:
        want = next((group for group, error in errors.items() if error <= limit), None)
        fits = [group for group, error in errors.items() if error <= limit]
        got = subject.largest_group(*tensors(w), 4, limit)
        said = "" if got not in errors else f" Groups of {got} have an error of {errors[got]:.4f}."
        if want is None:
            said += " No group has so small an error: the answer is None."
        elif got == min(fits) and got != want:
            said += " That is the smallest group that will do: it has the most scales."
        elif got in errors and got not in fits:
            said += " That is more than the limit allows."
        elif got in errors:
            said += f" Groups of {want} are as good as it asks, and larger."
        elif got is None and fits == [16]:
            said += " Groups of 16 will do: the loop must not end before them."
        elif got is None:
            said += " There is one that will do."
        elif isinstance(got, float):
            said += " That is an error; the group is asked for."
        if want == 1024:
            said += " The first to be tried is 1024." if got == 512 else ""
        # where others were found, no `return` is missing, which "got None" would ask about
        shown = "no group" if got is None and want == 16 else got
        assert got == want, (f"largest_group, 4 bits, limit {limit:.4f}: got {shown}, expected "
                             f"{want}.{said}")


def test_largest_group__hard(subject, rng):
    """Weights of every kind and layout; errors that do not grow with the group."""
    import torch

    exact = np.tile(np.float32([7, -3, 2, 0, 5, -1, 4, 1]), (1, 128))
    uneven = exact.copy()
    uneven[:, 512:] = np.clip(exact[:, 512:], -3, 5)            # 5 becomes 7, 4 no integer
    rows = {f"{what.replace('_', ' ')} numbers": make(rng, (17, 1024))
            for what, make in FINITE.items() if what != "denormal"} | {
                "a row of 33,792": rng.standard_normal((1, 33_792), dtype=np.float32),
                "columns first": np.asfortranarray(rng.standard_normal((2, 1024), np.float32)),
                "w that groups of any size hold exactly": exact,
                "w that groups of 1024 hold exactly, and groups of 512 do not": uneven}
    for what, w in rows.items():
        errors = {group: relative(w, group) for group in (1024, 512, 256, 128, 64, 32, 16)}
        limits = [0.0] if "exactly" in what else [1.01 * errors[1024], 1.01 * errors[32], 0.3, 1e-5]
        for limit in limits:
            if any(abs(error - limit) < 1e-3 * limit for error in errors.values()):
                continue
            want = next((group for group, error in errors.items() if error <= limit), None)
            got = subject.largest_group(torch.from_numpy(w), 4, limit)
            why = ("; an error of 0 is `limit` or less" if w is exact else
                   "; errors do not always grow with the group" if w is uneven else "")
            assert got == want, (f"largest_group, {what}, 4 bits, limit {limit:.4g}: got "
                                 f"{'no group' if got is None else got}, expected {want}{why}")


def relative(w, group):
    q, scales = quantized(np.ascontiguousarray(w), 4, group)
    w = w.astype(np.float64)
    return float(np.sqrt(((dequantized(q, scales, group) - w) ** 2).sum() / (w**2).sum()))


def test_largest_group__bits(subject, rng):
    w = rng.standard_normal((2, 1024), dtype=np.float32)
    got = subject.largest_group(*tensors(w), 8, 0.01)
    assert got == 1024, (f"largest_group, 8 bits, limit 0.01: got {got}, expected 1024; do you "
                         f"pass `bits` on?")


# ---- the course's own functions


@pytest.mark.parametrize("T, N, K, bits, group, dtype", ALL)
def test_every_back_end(subject, agree, rng, T, N, K, bits, group, dtype):
    x, xt, q, scales, packed = case(rng, T, N, K, bits, group, dtype)
    want = x @ dequantized(q, scales, group).T
    rest = *tensors(packed, scales), bits, group
    names = ["quantized_matmul", "quantized_matmul_torch"]
    if dtype == "float32":
        names.append("quantized_matmul_cuda")
        got = subject.quantized_matmul_cuda(xt, *rest, "gemv_bytes")
        agree(got, want, dtype, f"gemv_bytes, {T, N, K}, {bits} bits", at)
    for name in names:
        got = getattr(subject, name)(xt, *rest)
        assert got.dtype == xt.dtype
        agree(got, want, dtype, f"{name}, {T, N, K}, {bits} bits, groups of {group}", at)
    agree(subject.quantized_matmul_oracle(x, packed, scales, bits, group), want, "float64")


@pytest.mark.parametrize("bits, group", [(8, 16), (4, 16), (4, 64)])
def test_there_and_back(subject, agree, rng, bits, group):
    """Layout, scales and q are those of the book; strided, 16-bit and extreme weights."""
    import torch

    w = rng.standard_normal((64, 5), dtype=np.float32)
    w[:16, 0] = 0
    w[:, 1] *= 1e37
    w[:, 2] *= 1e-42                    # subnormal
    for given in (torch.from_numpy(w).T, torch.from_numpy(w[:, 3:]).T.to(torch.bfloat16)):
        packed, scales = subject.quantize_weight(given, bits, group)
        as32 = given.float().contiguous().numpy()
        q, want = quantized(as32, bits, group)
        q = np.clip(q, -(2 ** (bits - 1) - 1), 2 ** (bits - 1) - 1)
        assert np.array_equal(packed.numpy(), pack(q, bits, group))
        assert np.array_equal(scales.numpy(), want)
        back = subject.dequantize_weight(packed, scales, bits, group)
        agree(back, dequantized(q, want, group).astype(np.float32), "exact")


def test_results_repeat(subject, rng):
    """Split over K, and the same bits again."""
    import torch

    _, x, _, scales, packed = case(rng, 1, 3, 4096, 8, 128, "float32")
    rest = *tensors(packed, scales), 8, 128
    first = subject.quantized_matmul(x, *rest)
    assert torch.equal(first, subject.quantized_matmul(x, *rest))


@pytest.mark.parametrize("T, N, K", [(0, 3, 32), (3, 0, 32), (3, 4, 0), (0, 0, 0)])
@pytest.mark.parametrize("bits", [8, 4])
def test_nothing_to_do(subject, T, N, K, bits):
    import torch

    packed, scales = subject.quantize_weight(torch.ones(N, K), bits, 16)
    for name in ("quantized_matmul", "quantized_matmul_torch", "quantized_matmul_cuda"):
        got = getattr(subject, name)(torch.ones(T, K), packed, scales, bits, 16)
        assert torch.equal(got, torch.zeros(T, N)), name


def test_what_is_refused(subject):
    import torch

    w, x = torch.ones(4, 64), torch.ones(2, 64)
    packed, scales = subject.quantize_weight(w, 4, 32)
    for launch, says in (
            (lambda: subject.quantize_weight(w, 3, 32), "bits is 3"),
            (lambda: subject.quantize_weight(w, 4, 24), "group is 24"),
            (lambda: subject.quantize_weight(torch.ones(4, 72), 4, 16), "K a multiple of"),
            (lambda: subject.quantize_weight(w / 0, 4, 32), "not finite"),
            (lambda: subject.quantize_weight(w.int(), 4, 32), "w is torch.int32"),
            (lambda: subject.dequantize_weight(packed, scales, 8, 32), "expected (4, 64)"),
            (lambda: subject.quantized_matmul_cuda(torch.ones(1, 64), *subject.quantize_weight(
                w, 4, 16), 4, 16, "gemv_wide"), "groups of 16 x 4 bits"),
            (lambda: subject.quantized_matmul_cuda(torch.ones(65_536, 64), packed, scales, 4, 32),
             "x has 65536 rows")):
        with pytest.raises(Raised) as refusal:
            launch()
        assert says in refusal.value.text
    for name in ("quantized_matmul", "quantized_matmul_cuda"):
        for args, says in (((x[0], packed, scales, 4, 32), "x has shape (64,)"),
                           ((x[:, :40], packed, scales, 4, 32), "x has shape (2, 40)"),
                           ((x.double(), packed, scales, 4, 32), "x is torch.float64"),
                           ((x, packed.char(), scales, 4, 32), "packed is torch.int8"),
                           ((x, packed, scales.half(), 4, 32), "scales torch.float16"),
                           ((x, packed, scales, 4, 16), "expected (4, 32) and (4, 4)"),
                           ((torch.ones(64, 2).T, packed, scales, 4, 32), "x has strides (1, 2)"),
                           ((x, packed, torch.ones(2, 4).T, 4, 32), "scales has strides (1, 4)")):
            with pytest.raises(Raised) as refusal:
                getattr(subject, name)(*args)
            assert says in refusal.value.text


@pytest.mark.slow
@pytest.mark.parametrize("group", [128, 16, 4096])
def test_shipped_kernels_on_hopper(group):
    from layer1_kernels.bench.k15_quantized_matmul import shipped

    for name, kernel in shipped(group=group).items():
        assert kernel.spills == 0 and not kernel.serialised, f"{name}: {kernel}"
        assert kernel.shared <= 227 * 1024, f"{name}: {kernel}"
        _, kind, rows, _ = name.split("_")
        rows = int(rows)
        if rows == 1:           # w and x; the 4 bytes are a scale
            assert kernel.loads[16] >= 5 and set(kernel.loads) == {16, 4}, f"{name}: {kernel}"
        else:                   # straight to shared memory, 16 bytes a lane
            assert kernel.cp_async and not kernel.loads, f"{name}: {kernel}"
            assert set(kernel.stores) == {16}, f"{name}: {kernel}"
        if kind != "fp32" and rows > 1:
            assert kernel.wgmma if rows >= 64 else kernel.mma_sync, f"{name}: {kernel}"


@pytest.mark.slow
def test_the_last_cuda_step_does_not_spill():
    from layer1_kernels.k15_quantized_matmul import KERNELS

    for bits in (8, 4):
        assert KERNELS.get(f"gemv_wide_int{bits}_cuda").resources.spill_stores == 0


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
