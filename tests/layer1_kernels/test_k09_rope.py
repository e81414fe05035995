"""Graders of k09. q and k are in an array of more heads; the others must stay unchanged."""

import numpy as np
import pytest

from lab.judge.adversarial import VALUES, shifted
from lab.judge.compare import rounded_once
from lab.judge.mistakes import mistake, same_report
from lab.judge.pace import numbers, whole
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.mistake_rows import named
from tests.layer1_kernels.oracle_k09_rope import THETA, angles, at, inputs, mistakes_of, turned
from tests.layer1_kernels.row_cases import block

SIZES = [(5, 3, 2, 10, "float32"), (1, 1, 1, 2, "float32"), (3, 5, 1, 64, "float16"),
         (4, 2, 2, 34, "bfloat16")]                                 # T, H, G, D, dtype
HARD = {                                        # words: a generator of heads
    "numbers around -3000": lambda rng, shape: shifted(rng, shape, -3000.0),
    "negative numbers only": VALUES["negative"],
    "tokens of very different sizes": VALUES["uneven"],
    "0 and -0 among the numbers": VALUES["signed_zeros"],
    "numbers of 1e-40": VALUES["denormal"],
    "-inf among the numbers": VALUES["infinite"],
    "a NaN": VALUES["not_a_number"]}


# ---- the angles


@pytest.mark.parametrize("room, D, theta", [
    (5, 8, 300.0), (1, 2, 10_000.0), (40, 128, 500_000.0), (0, 4, 100.0), (40_000, 6, 10_000.0)])
def test_rope_angles(subject, agree, room, D, theta):
    p, d = np.arange(room)[:, None], np.arange(D // 2)
    cos, sin = subject.rope_angles(room, D, theta)
    speed = theta ** (-2.0 * d / D)
    right = p * speed
    coarse = "computed in float32, which is too coarse for large angles; use float64"
    wrong = {
        "sign_lost": ("the exponent lacks its minus sign: later pairs must turn more slowly",
                      p / speed),
        "d_over_D": ("the exponent is d/D; it is 2d/D", p * theta ** (-1.0 * d / D)),
        "4d_over_D": ("the exponent is 4d/D; it is 2d/D", p * theta ** (-4.0 * d / D)),
        "whole_exponent": ("the exponent is a whole number: it is divided by //",
                           p * theta ** (-2.0 * d // D)),
        "last_pair": ("the exponent is 2d/(D - 2), so that the last pair has -1; it is 2d/D",
                      p * theta ** (-1.0 * d / max(D // 2 - 1, 1))),
        "pairs_from_1": ("the exponent of the first pair is 2/D; it is 0",
                         p * theta ** (-2.0 * (d + 1) / D)),
        "theta_ignored": ("theta is ignored, and is always 10,000", p * 10_000 ** (-2.0 * d / D)),
        "times_2_pi": ("the angle is multiplied by 2π; a speed is in radians", right * 2 * np.pi),
        "degrees": ("the angle is taken for degrees; it is in radians", np.deg2rad(right)),
        "same_speed": ("all pairs turn at the same speed", p + 0.0 * d),
        "from_position_1": ("positions start at 1; the first position is 0 and is not rotated",
                            (p + 1) * speed),
        "short_speeds": (f"speeds and angles are {coarse}", (
            p.astype(np.float32) * speed.astype(np.float32)).astype(float)),
        "short_angles": (f"angles are {coarse}", right.astype(np.float32).astype(float))}
    for name, got, function in (("cos", cos, np.cos), ("sin", sin, np.sin)):
        cases = {known: (sentence, function(angle)) for known, (sentence, angle) in wrong.items()}
        cases["no_function"] = "the angle itself is returned", right
        if name == "cos":
            cases["swapped"] = "cos and sin are swapped, or sin is returned for both", np.sin(right)
        else:                                       # cos is right
            cases["cos_twice"] = "cos is returned for sin too", np.cos(right)
        agree(got, function(right), "float32", f"{name}, {room} positions, D = {D}",
              lambda i: f"position {i[0]}, pair {i[1]}", cases)


def test_rope_angles__unseen(unseen, rng):
    unseen("rope_angles", int(rng.integers(2, 400)), 2 * int(rng.integers(1, 70)),
           float(rng.integers(100, 10**6)))


# ---- a head a program


def run_heads(subject, x, heads, tables, **meta):
    """On the first `heads` heads of each token."""
    T, _, D = x.shape
    with same_report("past_half", "A load has no mask: it takes BLOCK numbers, and half of a head "
                     "has `half`.", kind="out_of_bounds", array="x"):
        return subject.launch("rope_heads_triton", T * heads, args=(
            x[:, :heads], *tables, x.stride(0), x.stride(1), heads, D // 2), BLOCK=block(D // 2),
            **meta)


def test_rope_heads_triton__apart(subject, agree, rng):
    """One head, before others that must stay: a wrong address is still within the array."""
    name, T, D, half, BLOCK = "rope_heads_triton", 3, 10, 5, 8
    both, x, cos, sin, positions, tables = inputs(rng, T, 2, 1, D, "float32")
    subject.launch(name, T, args=(x, *tables, *x.stride()[:2], 1, half), BLOCK=BLOCK)
    want, mistakes = mistakes_of(name, both, 1, cos, sin, positions)
    c, s = cos[positions], sin[positions]

    def second_half_at(begin):
        heads = both.copy().reshape(T, -1)
        a, b = heads[:, :half].copy(), heads[:, begin:begin + half].copy()
        heads[:, :half] = a * c - b * s
        heads[:, begin:begin + half] = b * c + a * s
        return heads.reshape(both.shape)

    agree(x, want, "float32", f"{name}, {T} tokens, the first of 4 heads of {D} float32, "
          f"BLOCK = {BLOCK}", at, mistakes | named(name, {
              "half_is_block": ("takes the second half to start BLOCK numbers after the first; it "
                                "starts `half` after it", second_half_at(BLOCK)),
              "half_is_head": ("takes the second half to start a whole head after the first; it "
                               "starts `half` after it", second_half_at(D)),
              "half_is_1": ("takes the next number for the second of a pair; that is `half` after "
                            "it", second_half_at(1))}))


@pytest.mark.parametrize("T, H, G, D, dtype", SIZES)
def test_rope_heads_triton(subject, agree, rng, T, H, G, D, dtype):
    both, x, cos, sin, positions, tables = inputs(rng, T, H, G, D, dtype)
    want, mistakes = mistakes_of("rope_heads_triton", both, H, cos, sin, positions)
    run_heads(subject, x, H, tables)
    agree(x, want, dtype, f"rope_heads_triton, {T} token(s), the first {H} of {H + 2 * G} heads of "
          f"{D} {dtype}", at, mistakes)


def test_rope_heads_triton__hard_numbers(subject, agree, rng):
    name = "rope_heads_triton"
    for what, generator in HARD.items():
        both, x, cos, sin, positions, tables = inputs(rng, 3, 3, 1, 16, "float32", generator)
        with np.errstate(invalid="ignore"):
            want, mistakes = mistakes_of(name, both, 3, cos, sin, positions)
        run_heads(subject, x, 3, tables)
        agree(x, want, "float32", f"{name}, {what}", at, mistakes)


def test_rope_heads_triton__rounded_once(subject, rng):
    for dtype in ("float16", "bfloat16"):
        both, x, cos, sin, positions, tables = inputs(rng, 4, 3, 1, 64, dtype)
        want, _ = mistakes_of("rope_heads_triton", both, 3, cos, sin, positions)
        run_heads(subject, x, 3, tables)
        rounded_once(x[:, :3], want[:, :3], "rope_heads_triton", f"4 tokens, 3 heads of 64 {dtype}")


def test_rope_heads_triton__work(subject, reference, rng):
    _, x, *_, tables = inputs(rng, 4, 3, 1, 64, "float32")
    launch = run_heads(subject, x, 3, tables, num_warps=1)
    economical("rope_heads_triton", launch, 12, 12, 64)
    same_work("rope_heads_triton", launch, run_heads(reference, x, 3, tables, num_warps=1))


def economical(name, launch, heads, turns, D):
    """Sectors of one-warp programs: `heads` turned, and angles loaded `turns` times."""
    head = 4 * D // 32
    for op, least, verb in (("load", (heads + turns) * head + turns, "reads"),
                            ("store", heads * head, "writes")):
        got = launch.memory("global", op)["transactions"]
        assert got <= least, mistake(
            "read_again" if op == "load" else "written_again",
            f"{name} {verb} {got} sectors; {least} are enough: each number of a head once" +
            (", and the position and the angles once per program" if op == "load" else ""))


# ---- both arrays in one launch


def run_rope(subject, x, H, G, tables, way=1, heads=None, **meta):
    heads = heads or block(H + G)
    T, _, D = x.shape
    return start_rope(subject, T * -(-(H + G) // heads), x[:, :H], x[:, H:H + G], tables, H, G,
                      D // 2, WAY=way, HEADS=heads, BLOCK=block(D // 2), **meta)


def start_rope(subject, grid, q, k, tables, H, G, half, **meta):
    with same_report("heads_past_last", "A program has room for HEADS heads, and a token has "
                     "H + G.", kind="out_of_bounds", array="k"):
        return subject.launch("rope_triton", grid, args=(
            q, k, *tables, *q.stride()[:2], *k.stride()[:2], H, G, half), **meta)


def test_predict_bytes_ratio(subject, reference, rng):
    for H, G in ((3, 1), (8, 2)):
        _, x, *_, tables = inputs(rng, 2, H, G, 64, "float32")
        naive = run_heads(reference, x, H + G, tables, num_warps=1)
        one = run_rope(reference, x, H, G, tables, num_warps=1)

        def moved(launch, programs):            # without the position: a sector a program
            return sum(launch.memory("global", op)["transactions"]
                       for op in ("load", "store")) - programs

        want, n = moved(naive, 2 * (H + G)) / moved(one, 2), H + G
        got = subject.predict_bytes_ratio(H, G)
        assert isinstance(got, (int, float)), mistake(
            "no_number", f"predict_bytes_ratio: expected a number, got {got!r}")
        rows = {2 * n / (n + 1): ("no_writes", "This leaves out that the heads are written."),
                1.5: ("angles_free", "1.5 leaves out the angles of the single kernel."),
                n: ("angles_alone", "Only the angles are loaded less often; all heads still move."),
                1 / want: ("upside_down", "This is upside down."),
                5 * n / (4 * n + 1): ("one_table", "This counts only one of cos and sin.")}
        known, why = next((row for value, row in rows.items() if abs(got - value) < 1e-6), (
            "other", "A head is 2 halves, read and written; cos and sin are a half each, read."))
        assert abs(got - want) < 1e-6, mistake(
            known, f"predict_bytes_ratio({H}, {G}): the simulator does not count {got:g} for the "
            f"bytes with one head per program ÷ those with one token per program. {why}", why)


def test_predict_bytes_ratio__unseen(unseen, rng):
    for H, G in rng.integers(1, 200, (4, 2)).tolist():
        unseen("predict_bytes_ratio", H, G)


def test_rope_triton__apart(subject, agree, rng):
    """Two heads of q and two of k, each pair before a head that must stay, in one array."""
    name = "rope_triton"
    both, x, cos, sin, positions, tables = inputs(rng, 3, 2, 3, 10, "float32")
    start_rope(subject, 3, x, x[:, 3:], tables, 2, 2, 5, WAY=1, HEADS=4, BLOCK=8)
    turned_all, mistakes = mistakes_of(name, both, 8, cos, sin, positions)

    def of(heads, numbers):
        return np.where(np.isin(range(8), heads)[:, None], numbers, both)

    want = of((0, 1, 3, 4), turned_all)
    beyond = want.copy()
    beyond[:, [1, 2, 4, 5], :3] = 0                 # angles that are not there, in the simulator
    agree(x, want, "float32", f"{name}, heads 0 and 1 are q's, 3 and 4 k's, the others of 8 must "
          f"not change; D = 10, BLOCK = 8", at, named(name, {
              "k_after_q": ("reads the heads of k after those of q; k is an array of its own",
                            of((0, 1, 2, 3), turned_all)),
              "k_from_H": ("counts the heads of k from H on: head h of all is head h - H of k",
                           of((0, 1, 5, 6), turned_all)),
              "H_is_q": ("takes head H for one of q; it is the first of k",
                         of((0, 1, 2, 4), turned_all)),
              "q_only": ("rotates only the heads of q", of((0, 1), turned_all)),
              "block_for_half": ("takes BLOCK numbers for half of a head; it has `half`", beyond)})
          | {known: (sentence, of((0, 1, 3, 4), answer))
             for known, (sentence, answer) in mistakes.items()})


@pytest.mark.parametrize("T, H, G, D, dtype", [*SIZES, (2, 3, 0, 16, "float32")])
def test_rope_triton(subject, agree, rng, T, H, G, D, dtype):
    name = "rope_triton"
    both, x, cos, sin, positions, tables = inputs(rng, T, H, G, D, dtype)
    want, mistakes = mistakes_of(name, both, H + G, cos, sin, positions)
    alone = want.copy()
    alone[:, H:] = both[:, H:]
    run_rope(subject, x, H, G, tables)
    agree(x, want, dtype, f"{name}, {T} token(s), heads 0 to {H - 1} are q's, then {G} of k, then "
          f"{G} that must not change; D = {D}, {dtype}", at,
          named(name, {"q_only": ("rotates only the heads of q", alone)}) | mistakes)


def test_rope_triton__rounded_once(subject, rng):
    for dtype in ("float16", "bfloat16"):
        both, x, cos, sin, positions, tables = inputs(rng, 4, 3, 1, 64, dtype)
        want, _ = mistakes_of("rope_triton", both, 4, cos, sin, positions)
        run_rope(subject, x, 3, 1, tables)
        rounded_once(x[:, :4], want[:, :4], "rope_triton", f"4 tokens of 4 heads of 64 {dtype}")


def test_rope_triton__few_heads_a_program(subject, agree, rng):
    both, x, cos, sin, positions, tables = inputs(rng, 2, 5, 3, 12, "float32", begin=2**16)
    run_rope(subject, x, 5, 3, tables, heads=2)
    want, mistakes = mistakes_of("rope_triton", both, 8, cos, sin, positions)
    short, _ = mistakes_of("rope_triton", both, 8, cos, sin, positions - 2**16)
    agree(x, want, "float32", "rope_triton, 8 heads a token, 2 a program, positions from 65,536 on",
          at, mistakes | named("rope_triton", {"short_position": (
              "keeps a position in 16 bits; a text may have more than 2^15 tokens", short)}))


def test_rope_triton__back(subject, agree, rng):
    both, x, cos, sin, positions, tables = inputs(rng, 3, 2, 1, 12, "float32")
    run_rope(subject, x, 2, 1, tables, way=-1)
    c, s = cos[positions, None], sin[positions, None]
    want, mistakes = mistakes_of("rope_triton", both, 3, cos, sin, positions, way=-1)

    def of(c, s):
        return np.concatenate((turned(both[:, :3], c, s), both[:, 3:]), axis=1)

    agree(x, want, "float32", "rope_triton, WAY = -1", at, named("rope_triton", {
        "no_way": ("ignores WAY, so it does not rotate back", of(c, s)),
        "way_on_cos_too": ("multiplies cos by WAY too; it belongs to sin alone", of(-c, -s)),
        "way_on_cos": ("multiplies cos by WAY; it belongs to sin", of(-c, s))}) | mistakes)


def test_rope_triton__two_arrays(subject, agree, rng):
    """q with its heads first in memory; k, too, with numbers between that must stay: four different
    strides."""
    import torch

    _, _, cos, sin, positions, tables = inputs(rng, 3, 2, 1, 12, "float32")
    q, k = rng.standard_normal((4, 3, 12)), rng.standard_normal((2, 3, 24))
    qt, kt = (torch.from_numpy(a).float().transpose(0, 1) for a in (q, k))
    start_rope(subject, 3, qt, kt, tables, 4, 2, 6, WAY=1, HEADS=8, BLOCK=8)
    c, s = cos[positions, None], sin[positions, None]

    def of(row, head):
        """k if its tokens are `row` numbers apart, and its heads `head`."""
        before, after = k.ravel(), k.ravel().copy()
        for t in range(3):
            for begin in (t * row, t * row + head):
                numbers = before[None, None, begin:begin + 12]
                after[begin:begin + 12] = turned(numbers, c[t:t + 1], s[t:t + 1])[0, 0]
        return after.reshape(k.shape).transpose(1, 0, 2)

    agree(qt, turned(q.transpose(1, 0, 2), c, s), "float32", "rope_triton, q with strides of its "
          "own", at)
    agree(kt, of(24, 72), "float32", "rope_triton, k with strides of its own", at, named(
        "rope_triton", {
            "k_stride": ("takes the tokens of k to be as far apart as those of q; they are k_row "
                         "numbers apart", of(12, 72)),
            "k_head_stride": ("takes the heads of k to be as far apart as those of q; they are "
                              "k_head numbers apart", of(24, 36))}))


def test_rope_triton__hard_numbers(subject, agree, rng):
    name = "rope_triton"
    for what, generator in HARD.items():
        both, x, cos, sin, positions, tables = inputs(rng, 3, 3, 2, 16, "float32", generator)
        with np.errstate(invalid="ignore"):
            want, mistakes = mistakes_of(name, both, 5, cos, sin, positions)
        run_rope(subject, x, 3, 2, tables)
        agree(x, want, "float32", f"{name}, {what}", at, mistakes)


def test_rope_triton__work(subject, reference, rng):
    _, x, *_, tables = inputs(rng, 4, 6, 2, 64, "float32")
    launch = run_rope(subject, x, 6, 2, tables, num_warps=1)
    economical("rope_triton", launch, 32, 4, 64)
    same_work("rope_triton", launch, run_rope(reference, x, 6, 2, tables, num_warps=1))


# ---- the course's own launchers


@pytest.mark.parametrize("T, H, G, D, dtype", [*SIZES, (2, 3, 1, 600, "float32")])
def test_every_launcher(subject, agree, rng, T, H, G, D, dtype):
    both, x, cos, sin, positions, tables = inputs(rng, T, H, G, D, dtype)
    want, _ = mistakes_of("", both, H + G, cos, sin, positions)
    ways = {name: (getattr(subject, name), ()) for name in ("rope", "rope_torch")}
    if dtype == "float32":
        ways |= {name: (subject.rope_cuda, (name,))
                 for name in ("rope_heads_cuda", "rope_fused_cuda")}
    for name, (function, more) in ways.items():
        own = x.clone()
        assert function(own[:, :H], own[:, H:H + G], *tables, *more) is None
        agree(own, want, dtype, f"{name}, {T} tokens, {H} and {G} heads of {D}", at)


@pytest.mark.parametrize("T, H, G, D, dtype", SIZES)
def test_rope_and_cache(subject, agree, rng, T, H, G, D, dtype):
    import torch

    P, S = 3, 4
    both, x, cos, sin, positions, tables = inputs(rng, T, H, G, D, dtype)
    all_turned, _ = mistakes_of("", both, H + G, cos, sin, positions)
    slots = rng.permutation(P * S)[:T].astype(np.int64)
    slots[T // 2] = -1
    want = np.full((2, P * S, G, D), 7.0)
    for pages, new in zip(want, (all_turned[:, H:H + G], both[:, H + G:]), strict=True):
        pages[slots[slots >= 0]] = new[slots >= 0]
    for name in ("rope_and_cache", "rope_and_cache_torch"):
        own = x.clone()
        k_pages, v_pages = (torch.full((P, S, G, D), 7, dtype=x.dtype) for _ in range(2))
        getattr(subject, name)(own[:, :H], own[:, H:H + G], own[:, H + G:], *tables, k_pages,
                               v_pages, torch.from_numpy(slots))
        after = np.concatenate((all_turned[:, :H], both[:, H:]), axis=1)
        agree(own, after, dtype, f"{name}: q turned, k and v as they were", at)
        for what, got, right in (("k", k_pages, want[0]), ("v", v_pages, want[1])):
            agree(got.reshape(P * S, G, D), right, dtype,
                  f"{name}: {what}_pages; slot -1 is skipped",
                  lambda i: f"slot {i[0]}, head {i[1]}, number {i[2]}")


def test_v_reaches_its_page_as_it_is(subject):
    """inf too: no angle touches it."""
    import torch

    x, v = torch.ones(1, 1, 4), torch.tensor([[[torch.inf, 1, -torch.inf, torch.nan]]])
    table, one = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    k_pages, v_pages = torch.ones(2, 1, 1, 1, 4)
    subject.rope_and_cache(x, x.clone(), v, table, table, one, k_pages, v_pages, one)
    assert torch.equal(torch.nan_to_num(v_pages), torch.nan_to_num(v[None]))


@pytest.mark.parametrize("T, H, G, D", [(0, 2, 1, 8), (2, 0, 0, 8), (2, 2, 1, 0), (2, 0, 1, 8)])
def test_nothing_to_do(subject, T, H, G, D):
    import torch

    table, numbers = torch.ones(4, D // 2), torch.zeros(T, dtype=torch.int64)
    for name in ("rope", "rope_cuda", "rope_torch"):
        getattr(subject, name)(torch.ones(T, H, D), torch.ones(T, G, D), table, table, numbers)
    pages = torch.ones(1, 2, G, D)
    new = torch.ones(T, G, D)
    subject.rope_and_cache(torch.ones(T, H, D), new, new, table, table, numbers, pages,
                           pages.clone(), numbers - 1)


def test_what_the_launchers_refuse(subject):
    import torch

    q, k = torch.ones(4, 2, 8), torch.ones(4, 1, 8)
    table, numbers = torch.ones(5, 4), torch.zeros(4, dtype=torch.int64)
    right = {"q": q, "k": k, "cos": table, "sin": table, "positions": numbers}
    for name, value, words in (
            ("q", q[0], "q has shape (2, 8)"), ("k", k[:3], "k (3, 1, 8)"),
            ("k", torch.ones(4, 1, 6), "k (4, 1, 6)"), ("q", q.double(), "q is torch.float64"),
            ("k", k.half(), "torch.float16"),
            ("q", torch.ones(4, 8, 2).transpose(1, 2), "q has strides (16, 1, 2)"),
            ("q", torch.ones(4, 1, 8).expand(4, 2, 8), "its heads overlap"),
            ("cos", table.double(), "cos is torch.float64"),
            ("sin", table[:, :3], "sin has shape (5, 3), expected (5, 4)"),
            ("cos", torch.ones(4, 5).T, "cos has strides (1, 5)"),
            ("positions", numbers[:3], "positions has shape (3,)"),
            ("positions", numbers.int(), "positions is torch.int32")):
        for launcher in (subject.rope, subject.rope_cuda):
            with pytest.raises(Raised) as refusal:
                launcher(*(right | {name: value}).values())
            assert words in refusal.value.text
    with pytest.raises(Raised) as refusal:
        subject.rope(torch.ones(4, 1, 7), torch.ones(4, 1, 7), table, table, numbers)
    assert "heads of 7 numbers, expected an even number" in refusal.value.text
    pages = torch.ones(2, 3, 1, 8)
    right |= {"v": k, "k_pages": pages, "v_pages": pages.clone(), "slots": numbers}
    for name, value, words in (("v", torch.ones(4, 2, 8), "v (4, 2, 8), expected the same"),
                               ("k_pages", pages[0], "k_pages has shape (3, 1, 8)"),
                               ("v_pages", pages[:1], "v_pages has shape (1, 3, 1, 8)"),
                               ("v_pages", pages.half(), "v_pages is torch.float16"),
                               ("slots", numbers.int(), "slots is torch.int32"),
                               ("q", q.clone().requires_grad_(), "an array requires a gradient")):
        arrays = right | {name: value}
        order = ("q", "k", "v", "cos", "sin", "positions", "k_pages", "v_pages", "slots")
        with pytest.raises(Raised) as refusal:
            subject.rope_and_cache(*(arrays[name] for name in order))
        assert words in refusal.value.text


def test_turns_keep_scores_of_equal_distance(subject, rng):
    """What rotary positions are for: a query and a key see only their distance."""
    cos, sin = subject.rope_angles(100, 16, THETA)
    q, k = rng.standard_normal((2, 1, 1, 16))

    def score(p, r):
        return (subject.rope_oracle(q, cos, sin, np.array([p])) *
                subject.rope_oracle(k, cos, sin, np.array([r]))).sum()

    assert np.isclose(score(7, 3), score(94, 90)) and not np.isclose(score(7, 3), score(7, 4))


@pytest.mark.slow
@pytest.mark.parametrize("H, G, D", [(32, 8, 128), (32, 8, 64), (64, 8, 128), (8, 1, 256)])
def test_shipped_kernels_on_hopper(H, G, D):
    from layer1_kernels.bench.k09_rope import shipped

    for name, kernel in shipped(H, G, D).items():
        assert kernel.spills == 0, f"{name}: {kernel}"
        assert kernel.loads[16] >= 4 and set(kernel.stores) == {16}, f"{name}: {kernel}"
        narrow = kernel.loads.total() - kernel.loads[16]
        assert narrow <= 4, f"{name}: all but position, slot, cos and sin are heads; {kernel}"
        assert kernel.shared <= 227 * 1024, f"{name}: {kernel}"


@pytest.mark.slow
def test_the_last_cuda_step_does_not_spill():
    from layer1_kernels.k09_rope import KERNELS

    assert KERNELS.get("rope_fused_cuda").resources.spill_stores == 0


@pytest.mark.gpu
@pytest.mark.parametrize("T, H, G, D", [(0, 2, 1, 8), (1, 1, 1, 2), (129, 5, 3, 34),
                                        (1000, 32, 8, 128)])
def test_every_kernel_on_the_device(T, H, G, D):
    import torch

    from layer1_kernels import rope, rope_and_cache, rope_and_cache_torch, rope_cuda, rope_torch

    cos, sin = (torch.from_numpy(table).cuda() for table in angles(2000, D))
    positions = torch.randperm(2000, device="cuda")[:T]
    x = torch.randn(T, H + 2 * G, D, device="cuda", dtype=torch.float64)
    near = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
    for dtype, relative in near.items():
        ways = [rope, rope_cuda] if dtype == torch.float32 else [rope]
        want = x.to(dtype).double()
        rope_torch(want[:, :H], want[:, H:H + G], cos.double(), sin.double(), positions)
        for way in ways:
            got = x.to(dtype)
            way(got[:, :H], got[:, H:H + G], cos, sin, positions)
            assert torch.allclose(got.double(), want, rtol=relative, atol=relative)
        slots = torch.randperm(T + 16, device="cuda")[:T] - 1
        results = []
        for way in (rope_and_cache, rope_and_cache_torch):
            own = x.to(dtype)
            pages = torch.full((2, 1, T + 16, G, D), 7, device="cuda", dtype=dtype)
            way(own[:, :H], own[:, H:H + G], own[:, H + G:], cos, sin, positions, *pages, slots)
            results.append((own.double(), pages.double()))
        for got, want in zip(*results, strict=True):
            assert torch.allclose(got, want, rtol=relative, atol=relative)


@pytest.mark.gpu
def test_a_launch_a_head_on_the_device():
    import torch

    from layer1_kernels import rope_torch
    from layer1_kernels.k09_rope import rope_heads_triton

    T, H, D = 129, 5, 64
    cos, sin = (torch.from_numpy(table).float().cuda() for table in angles(2000, D))
    positions = torch.randperm(2000, device="cuda")[:T]
    x = torch.randn(T, H, D, device="cuda")
    want = x.double()
    rope_torch(want, want[:, :0], cos.double(), sin.double(), positions)
    rope_heads_triton[(T * H,)](x, cos, sin, positions, *x.stride()[:2], H, D // 2, BLOCK=D // 2,
                                num_warps=1)
    assert torch.allclose(x.double(), want, rtol=2e-5, atol=2e-5)


@pytest.mark.gpu
def test_rope_triton_speed(pace):
    pace("rope", numbers("bfloat16", 8192, 32, 128), numbers("bfloat16", 8192, 8, 128),
         whole("float32", 2, 8192, 64), whole("float32", 2, 8192, 64), whole("int64", 8192, 8192))
