"""Graders of k13.
Outputs start as 7, which no mix of normal numbers is likely to give."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch

from lab.judge.adversarial import VALUES, WORDS, apart, shifted
from lab.judge.mistakes import mistake
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.matmul_cases import tf32

SIZES = [   # B, T, N, H, G, D, causal, dtype, BM, BN
    (1, 20, 77, 4, 2, 32, True, "float16", 16, 32),     # ragged, grouped heads, N > T
    (2, 33, 33, 1, 1, 48, True, "float16", 32, 16),     # heads padded from 48 to 64
    (1, 20, 45, 2, 1, 32, False, "bfloat16", 16, 32),
    (1, 1, 129, 2, 2, 16, True, "float32", 16, 16)]
HARD = VALUES | {"around -3000": lambda rng, shape: shifted(rng, shape, -3000)}
LAUNCHERS = ("flash_attention", "flash_attention_torch", "flash_attention_cuda")
LOG2E = math.log2(math.e)
LN2 = math.log(2)


# ---- inputs, the oracle tile by tile, and what goes wrong


def inputs(rng, B, T, N, H, G, D, dtype="float32", spread=1.0):
    """q, k, v as tensors of a dtype; q is `spread` times as large."""
    return [torch.from_numpy(size * rng.standard_normal(shape, np.float32)).to(
        getattr(torch, dtype)) for shape, size in
        (((B, T, H, D), spread), ((B, N, G, D), 1), ((B, N, G, D), 1))]


def oracle(q, k, v, causal, scale):
    """(out, lse), float64, by the book."""
    q, k, v, scores, visible = prepared(q, k, v, causal, scale)
    scores = np.where(visible, scores, -np.inf)
    m = scores.max(-1, keepdims=True)
    s = np.exp(scores - m).sum(-1, keepdims=True)
    return mix(np.exp(scores - m) / s, v), (m + np.log(s))[..., 0]


def prepared(q, k, v, causal, scale, BM=1, BN=1):
    """float64, kv heads repeated, tiles filled up with zeros; scores (B, T, H, N); which query sees
    which key (T, 1, N): one that is filled up sees all."""
    group, (T, N) = q.shape[2] // k.shape[2], (q.shape[1], k.shape[1])
    q, k, v = (np.pad(x.double().numpy(), [(0, 0), (0, -x.shape[1] % tile), (0, 0), (0, 0)])
               for x, tile in ((q, BM), (k, BN), (v, BN)))
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    last = np.arange(N - T, N - T + q.shape[1]) if causal else np.full(q.shape[1], N)
    visible = np.arange(k.shape[1]) <= np.minimum(last, N - 1)[:, None]
    return q, k, v, score(q, k) * scale, visible[:, None]


def score(q, k):
    return np.einsum("bthd,bnhd->bthn", q, k)


def mix(weights, v):
    return np.einsum("bthn,bnhd->bthd", weights, v)


def stored(x, dtype):
    """As numbers of a torch dtype."""
    return torch.from_numpy(x).to(dtype).double().numpy()


WRONG = {
    "no_rescale": "neither s nor mixed is rescaled when the maximum grows",
    "last_tile": "s and mixed contain only the last tile: each tile replaces what was there, or m "
                 "is returned unchanged",
    "divided_twice": "mixed is divided by s after each tile, and store_tile divides again",
    "mixed_replaced": "mixed contains only the last tile: tl.dot does not add to it",
    "unscaled_m": "the returned m is a maximum of scores without scale",
    "scaled_twice": "the scores are multiplied by scale twice",
    "s_not_rescaled": "the sum s is not rescaled when the maximum grows",
    "mixed_not_rescaled": "mixed is not rescaled when the maximum grows",
    "natural_exponent": "the weights are computed with exp instead of exp2 (scale already contains "
                        "log2(e)), or the scores are multiplied by log2(e) again",
    "log2e_alone": "the scores are multiplied by log2(e) only, not by scale",
    "scale_left_out": "the scores are not multiplied by scale at all",
    "from_0": "the running maximum starts at 0, so all weights become 0 when every score is far "
              "below 0",
    "short_scores": "the scores are rounded to bfloat16",
    "mask_ignored": "the mask is ignored: later tokens count",
    "masked_0": "masked scores are set to 0 instead of -inf, and so they get a weight",
    "own_maximum": "the maximum is taken over the current tile only (and is -inf where a query "
                   "sees no key of it)",
    "one_maximum": "the maximum is one number for the whole tile: tl.max(scores, 1) gives one for "
                   "each query",
    "one_sum": "the sum s is one number for the whole tile: tl.sum(weights, 1) gives one for each "
               "query",
    "fade_inverted": "an exponent is above 0, as in exp2(larger - m): it is inf while m is -inf, "
                     "and inf times 0 is NaN; or the mask is the wrong way round",
    "fade_scaled": "the fade is multiplied by scale: m and larger already contain it",
    "untransposed": "the keys are not transposed: tl.trans(keys)"}
TF32 = {name: f'{what} in TF32, with 10 bits of fraction; input_precision="ieee" keeps fp32'
        for name, what in (("tf32", "both products are"), ("tf32_scores", "queries · keys is"))}
KEYS_BEYOND = ("the keys beyond N count, with a score of 0: the last tile needs its mask, though "
               "no key is in the future")


def by_tiles(q, k, v, causal, scale, BM, BN, wrong):
    """(out, lse) as the recurrence gives them, with one thing wrong: a name of WRONG or TF32."""
    T = q.shape[1]
    cut = tf32 if wrong == "tf32" else partial(stored, dtype=q.dtype)
    q, k, v, scores, visible = prepared(q, k, v, causal, scale, BM, BN)
    if wrong in ("tf32", "tf32_scores"):
        scores = score(tf32(q), tf32(k)) * scale
    if wrong == "untransposed":
        blocks = k.reshape(len(k), -1, BN, *k.shape[2:])        # (B, tiles, BN, H, D = BN)
        scores = score(q, blocks.swapaxes(2, 4).reshape(k.shape)) * scale
    if wrong == "short_scores":
        scores = stored(scores / scale, torch.bfloat16) * scale
    scores = scores * {"scaled_twice": scale * LOG2E, "log2e_alone": 1 / scale, "natural_exponent":
                       LOG2E, "scale_left_out": LN2 / scale}.get(wrong, 1)
    m, s, mixed = np.full(scores.shape[:3], 0.0 if wrong == "from_0" else -np.inf), 0.0, 0.0
    for n in range(0, scores.shape[3], BN):
        tile = scores[..., n:n + BN]
        if wrong != "mask_ignored":
            hidden = 0 if wrong == "masked_0" else -np.inf
            tile = np.where(visible[..., n:n + BN], tile, hidden)
        own = tile.max(-1)
        if wrong == "one_maximum":
            own = of_all_queries(own, BM, np.max)
        larger = own if wrong == "own_maximum" else np.maximum(m, own)
        weights = exp(tile - larger[..., None])
        total = weights.sum(-1)
        if wrong == "one_sum":
            total = of_all_queries(total, BM, np.sum)
        fade = exp(larger - m if wrong == "fade_inverted" else
                   (m - larger) * (scale * LOG2E if wrong == "fade_scaled" else 1))
        one = np.ones_like(fade)
        of_s, of_mixed = {
            "no_rescale": (one, one), "last_tile": (0 * fade, 0 * fade), "s_not_rescaled":
            (one, fade), "mixed_not_rescaled": (fade, one), "mixed_replaced": (fade, 0 * fade),
        }.get(wrong, (fade, fade))
        s = s * of_s + total                    # all their digits, whatever the product has
        mixed = mixed * of_mixed[..., None] + mix(cut(weights), cut(v[:, n:n + BN]))
        if wrong == "divided_twice":
            mixed = mixed / s[..., None]
        m = larger
    m = m * {"natural_exponent": LN2, "unscaled_m": LN2 / scale}.get(wrong, 1)
    return (mixed / s[..., None])[:, :T], (m + np.log(s))[:, :T]


def exp(x):
    """0 where fp32 has no number as small."""
    y = np.exp(x)
    return np.where(y < 1e-45, 0, y)


def of_all_queries(x, BM, reduce):
    """x (B, T, H), each number replaced by what all queries of its tile give."""
    tiles = x.reshape(len(x), -1, BM, x.shape[2])
    return np.broadcast_to(reduce(tiles, 2, keepdims=True), tiles.shape).reshape(x.shape)


def mistakes(q, k, v, causal, scale, BM, BN):
    """{id: (sentence, (out, lse) that it gives)}."""
    sentences = WRONG | (TF32 if q.dtype == torch.float32 else {})
    if q.shape[3] != BN:
        sentences = {name: text for name, text in sentences.items() if name != "untransposed"}
    with np.errstate(all="ignore"):
        rows = {name: (text, by_tiles(q, k, v, causal, scale, BM, BN, name))
                for name, text in sentences.items()}
    if not causal:                              # both give the keys beyond N a score of 0
        del rows["masked_0"]
        rows["keys_beyond"] = KEYS_BEYOND, rows.pop("mask_ignored")[1]
    return rows


def at_query(index):
    b, t, h = index[:3]
    return f"batch {b}, query {t}, head {h}" + (f", column {index[3]}" if len(index) > 3 else "")


def run(subject, kernel, q, k, v, causal, BM, BN):
    """(out, lse, launch) of one flash kernel."""
    (B, T, H, D), (_, N, G, _) = q.shape, k.shape
    out = torch.full((B, T, H, D), 7, dtype=q.dtype)
    lse = torch.full((B, T, H), 7, dtype=torch.float32)
    strides = [n for x in (q, k, v) for n in x.stride()[:3]]
    launch = subject.launch(kernel, -(-T // BM) * B * H, args=(
        q, k, v, out, lse, D ** -0.5 * LOG2E, T, N, H, G, *strides),
        CAUSAL=causal, D=D, BM=BM, BN=BN, BD=1 << (D - 1).bit_length(), num_warps=BM // 16)
    return out, lse, launch


def right(subject, agree, kernel, rng, size, spread=1.0, extra=lambda *_: {}):
    """Both results of a launch are the oracle's."""
    B, T, N, H, G, D, causal, dtype, BM, BN = size
    q, k, v = apart(*inputs(rng, B, T, N, H, G, D, dtype, spread))
    out, lse, _ = run(subject, kernel, q, k, v, causal, BM, BN)
    want = oracle(q, k, v, causal, D ** -0.5)
    known = extra(q, k, v, causal, BM, BN) | mistakes(q, k, v, causal, D ** -0.5, BM, BN)
    what = (f"{T} queries, {N} keys, {H} heads on {G}, D = {D}, {'' if causal else 'not '}causal, "
            f"{dtype}, tiles of {BM} by {BN}")
    for part, (name, got, precision) in enumerate((("out", out, dtype), ("lse", lse, "float32"))):
        agree(got, want[part], precision, f"{name}, {what}", at_query,
              {key: (text, pair[part]) for key, (text, pair) in known.items()}, unwritten=7)


def hard(subject, agree, kernel, rng):
    """Hard numbers in q, k and v, each in turn, a batch each of one launch; all keys are seen, for
    0 times NaN is NaN."""
    D, BM, BN = 16, 16, 16
    one_sign = ("shifted", "negative", "around -3000")
    cases = [(kind, which) for kind, which in itertools.product(HARD, range(3))
             if which != 1 or kind not in ("infinite", "not_a_number")]     # scores of a whole head
    arrays = [rng.standard_normal((len(cases), n, 1, D), np.float32) for n in (5, 35, 35)]
    for b, (kind, which) in enumerate(cases):
        arrays[which][b, :, 0] = HARD[kind](rng, arrays[which][b, :, 0].shape)
        if which < 2 and kind in one_sign:
            arrays[1 - which][b] = abs(arrays[1 - which][b])
    q, k, v = apart(*map(torch.from_numpy, arrays))
    out, lse, _ = run(subject, kernel, q, k, v, False, BM, BN)
    with np.errstate(all="ignore"):
        want, want_lse = oracle(q, k, v, False, D ** -0.5)
        low = np.logaddexp(want_lse, -1e4 * D ** -0.5 + math.log(-35 % BN))
    for b, (kind, which) in enumerate(cases):
        what = f"{WORDS.get(kind, kind)} in {'qkv'[which]}, 5 queries, 35 keys, D = {D}, float32"
        # scores of hundreds have an error of 1e-5 in fp32, and weights the same
        close = "float16" if which < 2 and kind in (
            "shifted", "around -3000", "uneven", "exact_sums") else "float32"
        from_0 = {"from_0": (WRONG["from_0"], np.full((5, 1), -np.inf))}
        known = {"low_mask": ("masked scores are set to -10,000 instead of -inf, and the scores of "
                              "this query are lower", low[b])}
        known |= from_0 if np.isfinite(want_lse[b]).all() else {}
        # all queries at once: a tolerance is relative to the largest number, and one may be near 0
        agree(lse[b], want_lse[b], "float32", f"lse, {what}", lambda i: f"query {i[0]}", known)
        for t in range(5):
            agree(out[b, t], want[b, t], close, f"out of query {t}, {what}")


# ---- counting


def test_predict_traffic_ratio(subject):
    N, D = 4096, 128
    arrays, matrix = 4 * N * D, N * N
    want, got = (arrays + 4 * matrix) / arrays, subject.predict_traffic_ratio()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_traffic_ratio: expected a number, got {got!r}")
    known, why = next((row for value, *row in (
        ((arrays + 2 * matrix) / arrays, "softmax_left_out",
         "The softmax kernel also reads the matrix and writes it back."),
        (4 * matrix / arrays, "matrix_alone",
         "This leaves out q, k, v and out, which move in any case."),
        ((arrays + matrix) / arrays, "one_pass",
         "The matrix moves more than once: list the inputs and the output of each kernel."),
        ((arrays + 3 * matrix) / arrays, "pass_missing",
         "One of the passes over the matrix is missing."),
        (arrays / (arrays + 4 * matrix), "upside_down", "This is the ratio upside down."),
    ) if abs(got - value) < 0.01 * value), (
        "other", "For each kernel, add what it reads and what it writes."))
    assert abs(got - want) < 0.05, mistake(
        known, f"predict_traffic_ratio: {got:g} is not what the kernels move. {why}", why)


# ---- one tile of keys


@pytest.mark.parametrize("size", SIZES)
def test_attend_triton(subject, agree, rng, size):
    right(subject, agree, "flash_every_tile_triton", rng, size)


def test_attend_triton__large_scores(subject, agree, rng):
    """Scores of some thousand: nothing overflows, and one key takes all."""
    right(subject, agree, "flash_every_tile_triton", rng,
          (1, 40, 40, 1, 1, 32, True, "float16", 16, 32), spread=1000.0)


def test_attend_triton__hard(subject, agree, rng):
    hard(subject, agree, "flash_every_tile_triton", rng)


def test_attend_triton__tensor_cores(subject, rng):
    q, k, v = inputs(rng, 1, 32, 64, 1, 1, 32, "float16")
    totals = run(subject, "flash_every_tile_triton", q, k, v, True, 32, 32)[2].launches[0]["totals"]
    done = sum(n for kind, n in totals["flops_by_type"].items() if kind.startswith("tensor"))
    want = 4 * 32 * 64 * 32
    why = "Use tl.dot for both, and convert the weights to the dtype of the values."
    assert done >= want, mistake(
        "no_tensor_cores", f"attend_triton does {done:,} FLOPs on tensor cores, expected {want:,} "
        f"(both products). {why}", why)


def test_attend_triton__work(subject, reference, rng):
    q, k, v = inputs(rng, 2, 64, 64, 2, 1, 32, "float16")
    same_work("attend_triton", *(run(side, "flash_every_tile_triton", q, k, v, True, 32, 32)[2]
                                 for side in (subject, reference)))


# ---- how many tiles


@pytest.mark.parametrize("T, N, BM, BN", [
    (64, 64, 16, 16), (50, 77, 16, 32), (40, 200, 16, 16), (1, 129, 16, 64), (70, 70, 32, 16),
    (0, 9, 16, 16), (129, 1000, 128, 64), (17, 32, 16, 16)])
def test_count_tiles(subject, agree, T, N, BM, BN):
    sees = np.arange(N) <= np.arange(N - T, N)[:, None]
    tiles = [(sees[t:t + BM, n:n + BN], n + BN <= N) for t in range(0, T, BM)
             for n in range(0, N, BN)]
    visited = sum(tile.any() for tile, _ in tiles)
    whole = sum(tile.all() and full for tile, full in tiles)
    firsts = [(t, min(t + BM, T) - 1) for t in range(0, T, BM)]
    floor = sum((N - T + last + 1) // BN for _, last in firsts)

    def up_to(keys):
        return sum(-(-keys(first, last) // BN) for first, last in firsts)

    by_first = sum((N - T + first) // BN for first, _ in firsts)
    known = (
        ("last_key", "the last query of a tile sees N - T + last + 1 keys; the + 1 is missing",
         up_to(lambda first, last: N - T + last), whole),
        ("partly", "tiles that are only partly visible are not counted as visited", floor, whole),
        ("first_key", "the first query of a tile sees N - T + first + 1 keys; the + 1 is missing",
         visited, by_first),
        ("full_tile", "the last tile of queries is counted as if it had BM queries; its last query "
         "is T - 1", up_to(lambda first, last: N - T + first + BM), whole),
        ("short_whole", "a last tile of fewer than BN keys counts as whole",
         visited, sum(tile.all() for tile, _ in tiles)),
        ("short_rows", "a last tile of fewer than BM queries is never counted as whole",
         visited, sizes(T // BM * BM, N - T % BM, BM, BN)[1]),
        ("rows_left_out", "a last tile of fewer than BM queries is left out",
         *sizes(T // BM * BM, N - T % BM, BM, BN)),
        ("order", "visited and whole are returned in the other order", whole, visited),
        ("without_whole", "whole tiles are not counted as visited", visited - whole, whole),
        ("key_more", "the last query of a tile sees N - T + last + 1 keys; one more is counted",
         up_to(lambda first, last: N - T + last + 2), whole),
        ("all_whole", "all tiles of BN keys count as whole, future ones too",
         visited, N // BN * len(firsts)),
        ("exchanged", "BM and BN are exchanged", *sizes(T, N, BN, BM)),
        ("whole_of_last", "a tile counts as whole although only its last query sees all its keys",
         visited, floor),
        ("all_visited", "all tiles count as visited, future ones too", len(tiles), whole),
        ("token_t", "query t is treated as token t; it is token N - T + t",
         up_to(lambda first, last: last + 1), sum((first + 1) // BN for first, _ in firsts)))
    agree(subject.count_tiles(T, N, BM, BN), np.array([visited, whole]), "exact",
          f"count_tiles({T}, {N}, {BM}, {BN})", lambda i: ("visited", "whole")[i[0]],
          {name: (sentence, pair) for name, sentence, *pair in known})


def sizes(T, N, BM, BN):
    """(visited, whole) of BM queries by BN keys."""
    firsts = range(0, T, BM)
    return (sum(-(-(N - T + min(first + BM, T)) // BN) for first in firsts),
            sum((N - T + first + 1) // BN for first in firsts))


def test_count_tiles__unseen(unseen, rng):
    cases = [*rng.integers(1, 300, (6, 4)).tolist(),
             *rng.integers((0, 0, 1, 1), 6, (200, 4)).tolist(),
             [40, 2**33 - 40, 16, 16], [33_000, 7_000, 128, 64]]
    for T, more, BM, BN in cases:
        unseen("count_tiles", T, T + more, BM, BN, precision="exact")


# ---- the kernel


def loops(q, k, v, causal, BM, BN):
    """{id: (sentence, (out, lse) that it gives)} of the two loops."""
    T, N, scale = q.shape[1], k.shape[1], q.shape[3] ** -0.5
    *_, values, scores, visible = prepared(q, k, v, causal, scale)
    visible = np.broadcast_to(visible, (T, 1, N)).astype(float)
    first = np.arange(T)[:, None, None] // BM * BM
    common = N - T + first + 1 if causal else np.full_like(first, N)
    reach = np.minimum(N - T + first + BM, N) if causal else common
    key = np.arange(N)
    token = np.arange(N - T, N)[:, None, None]
    whole = key < common // BN * BN
    within = key < reach // BN * BN

    def weighed(times):
        """(weights, lse) where each key counts that number of times."""
        with np.errstate(all="ignore"):
            m = np.where(times > 0, scores, -np.inf).max(-1, keepdims=True)
            weights = np.where(times > 0, times * np.exp(scores - m), 0)
            s = weights.sum(-1, keepdims=True)
            return weights / s, (m + np.log(s))[..., 0]

    def times(number):
        weights, lse = weighed(number)
        return mix(weights, values), lse

    def strides_of_keys(where):
        """Where that is true, (T, 1, N), values are read with the keys' stride from key to key."""
        strides = v.stride(0), k.stride(1), *v.stride()[2:]
        with np.errstate(all="ignore"):
            other = prepared(q, k, v.as_strided(v.shape, strides), causal, scale)[2]
            weights, lse = weighed(visible)
            return mix(weights * where, other) + mix(weights * ~where, values), lse

    values_of = (("strides", "", whole | True), ("strides_in_whole", " of whole tiles", whole),
                 ("strides_on_edge", " of the tiles along the edge", ~whole))
    return {name: (f"the values{of} are loaded with the keys' stride (k_n instead of v_n)",
                   strides_of_keys(where)) for name, of, where in values_of} | {
        "key_more": ("the mask lets each query see one key more than `last`",
                     times(np.maximum(visible, key == token + 1))),
        "last_tile_left_out": ("the last tile, which has fewer than BN keys or reaches beyond what "
                               "all see, is left out", times(visible * within)),
        "whole_too_far": ("the loop without a mask also takes tiles that only the last queries see "
                          "completely: it must end at common // BN * BN",
                          times(np.where(within, 1, visible))),
        "whole_twice": ("the second loop starts at key 0 again, so whole tiles count twice",
                        times(visible + visible * whole)),
        "edge_left_out": ("the partly visible tiles along the edge are left out",
                          times(visible * whole)),
        "whole_left_out": ("the whole tiles are left out", times(visible * ~whole)),
        "own_token": ("a query does not see its own token", times(visible * (key != token)))}


@pytest.mark.parametrize("size", SIZES)
def test_flash_triton(subject, agree, rng, size):
    right(subject, agree, "flash_triton", rng, size, extra=loops)


def test_flash_triton__hard(subject, agree, rng):
    hard(subject, agree, "flash_triton", rng)


def test_flash_triton__work(subject, reference, rng):
    T = N = 128
    D, BM, BN = 32, 32, 16
    q, k, v = inputs(rng, 1, T, N, 1, 1, D, "float16")
    launch = run(subject, "flash_triton", q, k, v, True, BM, BN)[2]
    visited, whole = reference.count_tiles(T, N, BM, BN)
    rows = (launch.bytes("load") / 2 - T * D) / D           # of keys and values, 2 bytes a number
    why = "End the second loop at reach."
    assert rows == 2 * visited * BN, mistake(
        "future_tiles", f"flash_triton loads {rows / 2 / BN:g} tiles of keys and as many of "
        f"values; only {visited} of {T // BM * (N // BN)} contain a visible key. {why}", why)
    masked, best = (compares(run(reference, kernel, q, k, v, True, BM, BN)[2])
                    for kernel in ("flash_skip_triton", "flash_triton"))
    got = compares(launch)
    why = f"Pass None for the mask and the bound of the {whole} whole tiles."
    assert got < (masked + best) / 2, mistake(
        "masks_whole_tiles", f"flash_triton executes {got} compare or select instructions; {best} "
        f"are enough, and a mask on every tile takes {masked}. {why}", why)
    same_work("flash_triton", launch, run(reference, "flash_triton", q, k, v, True, BM, BN)[2])


def compares(launch):
    """Warp instructions that compare or select."""
    return launch.launches[0]["totals"]["instructions"]["compare"]


# ---- the course's own launchers


@pytest.mark.parametrize("size", [
    (1, 70, 70, 2, 1, 64, True, "float32"), (2, 5, 140, 4, 2, 80, True, "float16"),
    (1, 30, 9, 2, 2, 16, False, "bfloat16"), (1, 1, 1, 1, 1, 128, True, "float16"),
    (1, 3, 3, 1, 1, 112, True, "float32")])
def test_every_launcher(subject, agree, rng, size):
    *sizes, D, causal, dtype = size
    q, k, v = inputs(rng, *sizes, D, dtype)
    want = oracle(q, k, v, causal, 0.3)
    for name in LAUNCHERS[:3 if dtype == "float32" else 2]:
        for what, got, precision, true in zip(
                ("out", "lse"), getattr(subject, name)(q, k, v, causal, 0.3), (dtype, "float32"),
                want, strict=True):
            agree(got, true, precision, f"{what} of {name}, {size}", at_query)


def test_any_strides(subject, agree, rng):
    """Heads before tokens, one tensor of q, k and v, every other token, a batch of one expanded."""
    packed = inputs(rng, 1, 24, 24, 6, 1, 32, "float16")[0]             # (1, 24, 6, 32)
    q, k, v = packed[:, :, :4], packed[:, :, 4:5], packed[:, :, 5:]
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    sparse = [q[:, ::2], k[:, ::2], v[:, ::2]]
    expanded = [torch.cat([q, q]), k.expand(2, -1, -1, -1), v.expand(2, -1, -1, -1)]
    for case in ([q, k, v], heads_first, sparse, expanded):
        out, lse = subject.flash_attention(*case, True, 0.2)
        want = oracle(*case, True, 0.2)
        agree(out, want[0], "float16", f"out of strides {case[0].stride()}", at_query)
        agree(lse, want[1], "float32", f"lse of strides {case[0].stride()}", at_query)


@pytest.mark.parametrize("B, T, N", [(0, 5, 5), (2, 0, 5), (2, 0, 0)])
def test_nothing_to_do(subject, rng, B, T, N):
    q, k, v = inputs(rng, B, T, N, 2, 1, 16)
    for name in LAUNCHERS:
        out, lse = getattr(subject, name)(q, k, v, True, 1.0)
        assert out.shape == (B, T, 2, 16) and lse.shape == (B, T, 2), name


def refusal(subject, name, *args):
    with pytest.raises(Raised) as error:
        getattr(subject, name)(*args)
    return error.value.text


def test_what_the_launchers_refuse(subject, rng):
    q, k, v = inputs(rng, 1, 4, 6, 4, 2, 32)
    sparse = inputs(rng, 1, 4, 6, 4, 2, 64)[0][..., ::2]
    for args, says in (
            ((q, k, v[:, :5], True, 1.0), "v (1, 5, 2, 32)"),
            ((q[0], k, v, True, 1.0), "expected q (B, T, H, D)"),
            ((q[:, :, :3], k, v, True, 1.0), "3 query heads, expected a multiple of the 2"),
            ((k, q[:, :, :2], q[:, :, :2], True, 1.0), "6 queries and 4 keys"),
            ((q, k[:, :0], v[:, :0], False, 1.0), "no key; expected at least one key"),
            ((q, k, v, True, 0.0), "scale is 0.0, expected a positive number"),
            ((q, k.half(), v, True, 1.0), "k torch.float16"),
            ((sparse, k, v, True, 1.0), "q has strides (1024, 256, 64, 2)")):
        for name in LAUNCHERS:
            assert says in refusal(subject, name, *args), name
    for D in (8, 24, 144, 256):
        heads = inputs(rng, 1, 4, 6, 4, 2, D)
        for name in ("flash_attention", "flash_attention_cuda"):
            assert (f"{name}: heads of width {D}, expected a multiple of 16"
                    in refusal(subject, name, *heads, True, 1.0))
        out, _ = subject.flash_attention_torch(*heads, True, 1.0)       # the plain formula takes it
        assert np.abs(out.numpy() - oracle(*heads, True, 1.0)[0]).max() < 1e-5
    assert ("q, k and v are torch.float16, expected torch.float32"
            in refusal(subject, "flash_attention_cuda", q.half(), k.half(), v.half(), True, 1.0))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients(subject, agree, rng, dtype):
    """Of out and lse, against float64; upstream as it comes, its heads before its tokens, and one
    number for all."""
    q, k, v = (x.requires_grad_() for x in inputs(rng, 1, 9, 12, 4, 2, 16, dtype))
    of_out, of_lse = (torch.from_numpy(rng.standard_normal(shape, np.float32))
                      for shape in ((1, 9, 4, 16), (1, 9, 4)))
    of_out = of_out.to(q.dtype)                     # lse is float32, whatever q is
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    queries, keys, values = leaves[0], *(x.repeat_interleave(2, dim=2) for x in leaves[1:])
    scores = torch.einsum("bthd,bnhd->bthn", queries, keys) * 0.25
    later = torch.ones(9, 12).triu(4).bool()[:, None]
    scores = scores.masked_fill(later, -math.inf)
    out = torch.einsum("bthn,bnhd->bthd", scores.softmax(-1), values)
    both = [of_out, of_lse]
    turned = [u.transpose(1, 2).contiguous().transpose(1, 2) for u in both]
    expanded = [u.flatten()[0].expand(u.shape) for u in both]
    for how, upstream in (("whole", both), ("turned", turned), ("expanded", expanded)):
        got = subject.grad("flash_attention", (q, k, v, True, 0.25), upstream)
        want = torch.autograd.grad((out, scores.logsumexp(-1)), leaves,
                                   [u.double() for u in upstream], retain_graph=True)
        for name, mine, true in zip("qkv", got, want, strict=True):
            assert mine.dtype == q.dtype
            agree(mine, true.numpy(), dtype, f"the gradient by {name}, upstream {how}", at_query)


def test_oracle_agrees(subject, rng):
    q, k, v = inputs(rng, 2, 5, 8, 4, 2, 16)
    for causal in (True, False):
        pair = subject.flash_attention_oracle(q.numpy(), k.numpy(), v.numpy(), causal, 0.3)
        for got, want in zip(pair, oracle(q, k, v, causal, 0.3), strict=True):
            assert np.allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("T, N, causal", [(0, 5, True), (1, 1000, True), (129, 129, True),
                                          (1000, 4096, True), (127, 1000, False)])
@pytest.mark.parametrize("D", [16, 64, 80, 128])
def test_every_kernel_on_the_device(T, N, causal, D):
    from layer1_kernels import flash_attention, flash_attention_cuda, flash_attention_torch

    q = torch.randn(2, T, 8, D, device="cuda")
    k, v = (torch.randn(2, N, 2, D, device="cuda") for _ in range(2))
    for dtype, near in ((torch.float32, 2e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
        heads = [x.to(dtype) for x in (q, k, v)]
        want = flash_attention_torch(*(x.double() for x in heads), causal, D ** -0.5)
        for kernel in [flash_attention] + [flash_attention_cuda] * (dtype == torch.float32):
            for got, true in zip(kernel(*heads, causal, D ** -0.5), want, strict=True):
                assert torch.allclose(got.double(), true, rtol=near, atol=near), (kernel, dtype)


@pytest.mark.gpu
def test_flash_triton_speed(pace):
    heads = [numbers("bfloat16", 4, 4096, 16, 128) for _ in range(3)]
    pace("flash_attention", *heads, True, 128**-0.5)
