"""Graders of k13. Outputs start as 7, which no mix of normal numbers is likely to give."""

import itertools
import math

import numpy as np
import pytest

from lab.judge.adversarial import VALUES, shifted
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work

SIZES = [   # B, T, N, H, G, D, causal, dtype, BM, BN
    (1, 20, 77, 4, 2, 32, True, "float16", 16, 32),     # ragged, grouped heads, N > T
    (2, 33, 33, 1, 1, 48, True, "float16", 32, 16),     # heads padded from 48 to 64
    (1, 20, 45, 2, 1, 32, False, "bfloat16", 16, 32),
    (1, 1, 129, 2, 2, 16, True, "float32", 16, 16)]
HARD = VALUES | {"around -3000": lambda rng, shape: shifted(rng, shape, -3000)}
LAUNCHERS = ("flash_attention", "flash_attention_torch", "flash_attention_cuda")


# ---- inputs, the oracle tile by tile, and what goes wrong


def inputs(rng, B, T, N, H, G, D, dtype="float32", spread=1.0):
    """q, k, v as tensors of a dtype."""
    import torch

    return [torch.from_numpy(spread * rng.standard_normal(shape, np.float32)).to(
        getattr(torch, dtype)) for shape, spread in
        (((B, T, H, D), spread), ((B, N, G, D), 1), ((B, N, G, D), 1))]


def apart(*tensors):
    """The same numbers in wider arrays, so that the strides of no two are alike."""
    import torch

    views = [torch.full((*x.shape[:3], x.shape[3] + 8 * n), 77, dtype=x.dtype)[..., :x.shape[3]]
             for n, x in enumerate(tensors, 1)]
    for view, x in zip(views, tensors, strict=True):
        view[...] = x
    return views


def oracle(q, k, v, causal, scale):
    """(out, lse), float64, by the book."""
    q, k, v, scores, seen = prepared(q, k, v, causal, scale)
    scores = np.where(seen, scores, -np.inf)
    m = scores.max(-1, keepdims=True)
    s = np.exp(scores - m).sum(-1, keepdims=True)
    return np.einsum("bthn,bnhd->bthd", np.exp(scores - m) / s, v), (m + np.log(s))[..., 0]


def prepared(q, k, v, causal, scale):
    """float64, kv heads repeated; scores (B, T, H, N); seen (T, 1, N)."""
    group, (T, N) = q.shape[2] // k.shape[2], (q.shape[1], k.shape[1])
    q, k, v = (x.double().numpy() for x in (q, k, v))
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    seen = np.arange(N) <= (np.arange(N - T, N) if causal else np.full(T, N))[:, None]
    return q, k, v, np.einsum("bthd,bnhd->bthn", q, k) * scale, seen[:, None]


def by_tiles(q, k, v, causal, scale, BN, wrong):
    """out and lse as the recurrence gives them, with one thing wrong."""
    q, k, v, scores, seen = prepared(q, k, v, causal, scale)
    if wrong in ("tf32 scores", "tf32"):
        scores = np.einsum("bthd,bnhd->bthn", tf32(q), tf32(k)) * scale
    if wrong == "scale twice":
        scores = scores * scale * LOG2E
    if wrong == "not scaled":
        scores = scores / scale
    if wrong == "scale left out":           # and log2(e) with it
        scores = scores / scale * math.log(2)
    beyond = -scores.shape[3] % BN          # of the last tile: keys and values that are zero
    scores = np.pad(scores, [(0, 0)] * 3 + [(0, beyond)])
    seen = np.pad(seen, [(0, 0)] * 2 + [(0, beyond)])
    v = np.pad(v, [(0, 0), (0, beyond), (0, 0), (0, 0)])
    if wrong == "16 bits":
        scores = rounded(scores / scale) * scale
    if wrong == "tf32":
        v = tf32(v)
    m, s, mixed = np.full(scores.shape[:3], 0.0 if wrong == "from 0" else -np.inf), 0.0, 0.0
    if wrong == "exp":
        scores = scores / math.log(2)       # log2(e) is in the scale, and exp takes it for 1
    for n in range(0, scores.shape[3], BN):
        tile, sees = scores[..., n:n + BN], seen[..., n:n + BN]
        if wrong != "future":
            tile = np.where(sees, tile, 0 if wrong == "zeros" else -np.inf)
        own = tile.max(-1)
        larger = own if wrong == "own maximum" else np.maximum(m, own)
        weights = np.exp(tile - larger[..., None])
        weights[weights < 1e-45] = 0            # as in fp32
        fade = np.exp(m - larger)
        if wrong == "last tile":
            s, mixed = 0 * fade, 0 * mixed
        s = s * (1 if wrong in ("s", "both") else fade) + weights.sum(-1)
        kept = np.ones_like(fade) if wrong in ("mixed", "both") else fade
        if wrong == "last of mixed":
            kept = 0 * fade
        if wrong == "tf32":                 # s has all their digits
            weights = tf32(weights)
        mixed = mixed * kept[..., None] + np.einsum("bthn,bnhd->bthd", weights, v[:, n:n + BN])
        mixed = mixed / s[..., None] if wrong == "divided" else mixed
        m = larger
    lse = (m * math.log(2) if wrong == "exp" else m) + np.log(s)
    if wrong == "raw maximum":
        lse = m / scale * math.log(2) + np.log(s)
    return mixed / np.asarray(s)[..., None], lse


def tf32(x):
    """fp32 with the 13 last bits cut off, as tensor cores read it."""
    return (x.astype(np.float32).view(np.int32) & ~0x1FFF).view(np.float32).astype(np.float64)


def rounded(x):
    """To bfloat16 and back."""
    import torch

    return torch.from_numpy(x).bfloat16().double().numpy()


LOG2E = math.log2(math.e)
FUTURE = "masked scores count, as if later tokens were seen"
TF32 = {f'{which} in TF32, with 10 bits of fraction; input_precision="ieee" keeps fp32': wrong
        for which, wrong in (("both products are", "tf32"), ("queries · keys is", "tf32 scores"))}
WRONG = {
    "neither s nor mixed is rescaled when the maximum grows": "both",
    "s and mixed hold the last tile alone: each tile replaces what was there, or m is returned as "
    "it came": "last tile",
    "mixed is divided by s after each tile, and store_tile divides again": "divided",
    "mixed holds the last tile alone: tl.dot does not add to it": "last of mixed",
    "the m that is returned is a maximum of scores without scale": "raw maximum",
    "scale is multiplied in twice": "scale twice",
    "the sum s is not rescaled when the maximum grows": "s",
    "mixed keeps its old scale when the maximum grows": "mixed",
    "the weights are exp, not exp2, of scores that hold log2(e) already, or log2(e) is multiplied "
    "in twice": "exp",
    "the scores are not multiplied by scale": "not scaled",
    "scale is left out": "scale left out",
    "the maximum begins at 0, so that all weights are 0 where every score is far below": "from 0",
    "the scores are kept in bfloat16": "16 bits",
    FUTURE: "future",
    "masked scores are 0, not -inf, and exp2(0) is a weight": "zeros",
    "the maximum is that of the tile alone, -inf where a query sees nothing of it": "own maximum"}


def mistakes(part, q, k, v, causal, scale, BN):
    """{mistake: what it gives}; part: 0 for out, 1 for lse."""
    found = {}
    with np.errstate(all="ignore"):
        for what, wrong in (WRONG | (TF32 if "float32" in str(q.dtype) else {})).items():
            found[what] = by_tiles(q, k, v, causal, scale, BN, wrong)[part]
    if not causal:                          # both give those keys a score of 0
        del found["masked scores are 0, not -inf, and exp2(0) is a weight"]
        found["the keys beyond N count, with a score of 0: the last tile needs its mask, though "
              "no key is in the future"] = found.pop(FUTURE)
    return found


def at_query(index):
    b, t, h = index[:3]
    return f"batch {b}, query {t}, head {h}" + (f", column {index[3]}" if len(index) > 3 else "")


def run(subject, kernel, q, k, v, causal, BM, BN):
    """(out, lse, launch) of one flash kernel."""
    import torch

    (B, T, H, D), (_, N, G, _) = q.shape, k.shape
    out = torch.full((B, T, H, D), 7, dtype=q.dtype)
    lse = torch.full((B, T, H), 7, dtype=torch.float32)
    strides = [n for x in (q, k, v) for n in x.stride()[:3]]
    launch = subject.launch(kernel, -(-T // BM) * B * H, args=(
        q, k, v, out, lse, D ** -0.5 * math.log2(math.e), T, N, H, G, *strides),
        CAUSAL=causal, D=D, BM=BM, BN=BN, BD=1 << (D - 1).bit_length(), num_warps=BM // 16)
    return out, lse, launch


def right(subject, agree, kernel, rng, size, spread=1.0, extra=lambda *_: {}):
    """Both results of a launch are the oracle's."""
    B, T, N, H, G, D, causal, dtype, BM, BN = size
    q, k, v = apart(*inputs(rng, B, T, N, H, G, D, dtype, spread))
    out, lse, _ = run(subject, kernel, q, k, v, causal, BM, BN)
    want = oracle(q, k, v, causal, D ** -0.5)
    what = (f"{T} queries, {N} keys, {H} heads on {G}, D = {D}, {'' if causal else 'not '}causal, "
            f"{dtype}, tiles of {BM} by {BN}")
    for part, (name, got) in enumerate((("out", out), ("lse", lse))):
        agree(got, want[part], dtype if name == "out" else "float32", f"{name}, {what}", at_query,
              extra(part, q, k, v, causal, BM, BN)
              | mistakes(part, q, k, v, causal, D ** -0.5, BN), unwritten=7)


def hard(subject, agree, kernel, rng):
    """Hard numbers in q, k and v, each in turn; all keys are seen, for 0 times NaN is NaN."""
    import torch

    D, BM, BN = 16, 16, 16
    for (kind, make), which in itertools.product(HARD.items(), range(3)):
        if which == 1 and kind in ("infinite", "not_a_number"):
            continue                            # the scores of a whole head
        given = [rng.standard_normal(shape, np.float32)
                 for shape in ((1, 5, 1, D), (1, 35, 1, D), (1, 35, 1, D))]
        given[which] = make(rng, given[which][0, :, 0].shape)[None, :, None]
        if which < 2 and kind in ("shifted", "negative", "around -3000"):
            given[1 - which] = abs(given[1 - which])        # scores of one sign
        q, k, v = apart(*map(torch.from_numpy, given))
        out, lse, _ = run(subject, kernel, q, k, v, False, BM, BN)
        with np.errstate(all="ignore"):
            want, want_lse = oracle(q, k, v, False, D ** -0.5)
        what = f"{kind.replace('_', ' ')} in {'qkv'[which]}, 5 queries, 35 keys, D = {D}, float32"
        # scores of hundreds have an error of 1e-5 in fp32, and weights the same
        close = "float16" if which < 2 and kind in ("shifted", "around -3000", "uneven",
                                                    "exact_sums") else "float32"
        why = ("the maximum begins at 0, so that every weight is 0 where all scores are far below"
               if np.isfinite(want_lse).all() else "")
        for t in range(5):
            agree(lse[:, t:t + 1], want_lse[:, t:t + 1], "float32", f"lse of query {t}, {what}",
                  mistakes=({why: np.full((1, 1, 1), -np.inf)} if why else {}) | {
                      "masked scores are -10,000, not -inf, and the scores here are lower":
                          beyond(want_lse[:, t:t + 1], -1e4 * D ** -0.5, -35 % BN)})
            agree(out[:, t:t + 1], want[:, t:t + 1], close, f"out of query {t}, {what}")


def beyond(lse, score, keys):
    """lse with more keys, all of one score."""
    return np.logaddexp(lse, score + math.log(keys))


# ---- counting before building


def test_predict_traffic_ratio(subject):
    N, D = 4096, 128
    arrays, matrix = 4 * N * D, N * N
    want, got = (arrays + 4 * matrix) / arrays, subject.predict_traffic_ratio()
    assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
    why = {(arrays + 2 * matrix) / arrays: "softmax reads the matrix and writes it too",
           4 * matrix / arrays: "this leaves out q, k, v and out, which move in any case",
           (arrays + matrix) / arrays: "the matrix moves more than once: list each kernel's arrays",
           (arrays + 3 * matrix) / arrays: "one of four passes over the matrix is missing",
           arrays / (arrays + 4 * matrix): "this is the other way round"}
    assert abs(got - want) < 0.05, (
        f"bytes with the matrix over bytes without: {got:g} does not follow from what the kernels "
        f"move; {why.get(got, 'add for each kernel what it reads and what it writes')}")


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
    assert done >= want, (
        f"attend_triton does {done:,} FLOPs on tensor cores, expected {want:,}, those of both "
        f"products: tl.dot of fp16 tiles, the weights rounded to the dtype of the values")


def test_attend_triton__work(subject, reference, rng):
    q, k, v = inputs(rng, 2, 64, 64, 2, 1, 32, "float16")
    same_work("attend_triton", *(run(side, "flash_every_tile_triton", q, k, v, True, 32, 32)[2]
                                 for side in (subject, reference)))


# ---- how many tiles


@pytest.mark.parametrize("T, N, BM, BN", [
    (64, 64, 16, 16), (50, 77, 16, 32), (40, 200, 16, 16), (1, 129, 16, 64), (70, 70, 32, 16),
    (0, 9, 16, 16), (129, 1000, 128, 64), (17, 32, 16, 16)])
def test_count_tiles(subject, agree, T, N, BM, BN):
    seen = np.arange(N) <= np.arange(N - T, N)[:, None]
    cut = [(seen[t:t + BM, n:n + BN], n + BN <= N) for t in range(0, T, BM)
           for n in range(0, N, BN)]
    visited, whole = sum(tile.any() for tile, _ in cut), sum(t.all() and full for t, full in cut)
    firsts = [(t, min(t + BM, T) - 1) for t in range(0, T, BM)]
    floor = sum((N - T + last + 1) // BN for _, last in firsts)
    agree(subject.count_tiles(T, N, BM, BN), np.array([visited, whole]), "exact",
          f"count_tiles({T}, {N}, {BM}, {BN})", lambda i: ("visited", "whole")[i[0]], {
              "the last query of a tile sees N - T + last + 1 keys, and one is not counted":
                  (sum(-(-(N - T + last) // BN) for _, last in firsts), whole),
              "tiles that are seen in part are not visited": (floor, whole),
              "the first query of a tile sees N - T + first + 1 keys, and one is not counted":
                  (visited, sum((N - T + first) // BN for first, _ in firsts)),
              "the last tile of queries counts as a whole one; its last query is T - 1": (
                  sum(-(-(N - T + first + BM) // BN) for first, _ in firsts), whole),
              "a last tile of fewer than BN keys counts as whole":
                  (visited, sum(tile.all() for tile, _ in cut)),
              "a last tile of fewer than BM queries has no whole tile of keys":
                  (visited, sizes(T // BM * BM, N - T % BM, BM, BN)[1]),
              "a last tile of fewer than BM queries is left out":
                  sizes(T // BM * BM, N - T % BM, BM, BN),
              "visited and whole are returned in the other order": (whole, visited),
              "whole tiles are not counted as visited; they are visited too":
                  (visited - whole, whole),
              "the last query of a tile sees N - T + last + 1 keys, and one more is counted":
                  (sum(-(-(N - T + last + 2) // BN) for _, last in firsts), whole),
              "every tile of BN keys counts as whole, those in the future too":
                  (visited, N // BN * len(firsts)),
              "BM and BN are exchanged": sizes(T, N, BN, BM),
              "tiles that only the last query sees whole count as whole, or those that the first "
              "sees in part": (visited, floor),
              "every tile counts as visited, those in the future too": (len(cut), whole),
              "query t is taken for token t, but it is token N - T + t": (
                  sum(-(-(last + 1) // BN) for _, last in firsts),
                  sum((first + 1) // BN for first, _ in firsts))})


def sizes(T, N, BM, BN):
    """(visited, whole) of BM queries by BN keys."""
    firsts = range(0, T, BM)
    return (sum(-(-(N - T + min(first + BM, T)) // BN) for first in firsts),
            sum((N - T + first + 1) // BN for first in firsts))


def test_count_tiles__unseen(unseen, rng):
    for T, more, BM, BN in rng.integers(1, 300, (6, 4)).tolist():
        unseen("count_tiles", T, T + more, BM, BN, precision="exact")
    for T, more, BM, BN in rng.integers((0, 0, 1, 1), 6, (200, 4)).tolist():
        unseen("count_tiles", T, T + more, BM, BN, precision="exact")
    unseen("count_tiles", 40, 2**33, 16, 16, precision="exact")
    unseen("count_tiles", 33_000, 40_000, 128, 64, precision="exact")


# ---- the kernel


def loops(part, q, k, v, causal, BM, BN):
    """{mistake: what it gives} of the two loops."""
    T, N, scale = q.shape[1], k.shape[1], q.shape[3] ** -0.5
    *_, values, scores, seen = prepared(q, k, v, causal, scale)
    first = np.arange(T)[:, None, None] // BM * BM
    common = N - T + first + 1 if causal else np.full_like(first, N)
    reach = np.minimum(N - T + first + BM, N) if causal else common
    key = np.arange(N)
    whole = key < common // BN * BN
    own = key != np.arange(N - T, N)[:, None, None]

    def of(weighing):                           # times that each key counts
        with np.errstate(all="ignore"):
            m = np.where(weighing > 0, scores, -np.inf).max(-1, keepdims=True)
            weights = np.where(weighing > 0, weighing * np.exp(scores - m), 0)
            s = weights.sum(-1, keepdims=True)
            out = np.einsum("bthn,bnhd->bthd", weights / s, values)
            return (out, (m + np.log(s))[..., 0])[part]

    def read_as(x, other):
        """x with the other's stride from key to key."""
        return x.as_strided(x.shape, (x.stride(0), other.stride(1), *x.stride()[2:]))

    def with_strides_of_keys(where=None):
        """Of the values where that is true, (T, 1, N); of all by default."""
        with np.errstate(all="ignore"):
            apart = prepared(q, k, read_as(v, k), causal, scale)[2]
            chosen = np.where(seen, scores, -np.inf)
            weights = np.exp(chosen - chosen.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            where = np.ones_like(weights) if where is None else where
            out = (np.einsum("bthn,bnhd->bthd", weights * where, apart)
                   + np.einsum("bthn,bnhd->bthd", weights * (1 - where), values))
        return (out, oracle(q, k, v, causal, scale)[1])[part]

    seen = np.broadcast_to(seen, (T, 1, N)).astype(float)
    return {"values are read with the strides of the keys": with_strides_of_keys(),
            "the values of whole tiles are read with k_n, which is for keys; theirs is v_n":
                with_strides_of_keys(whole * 1.0),
            "the values of the tiles along the edge are read with k_n, which is for keys; theirs "
            "is v_n": with_strides_of_keys(1.0 - whole),
            "the mask lets each query see one key more than `last`":
                of(np.maximum(seen, key == np.arange(N - T + 1, N + 1)[:, None, None])),
            "the last tile, which has fewer than BN keys or reaches beyond what all see, is left "
            "out": of(seen * (key < reach // BN * BN)),
            "the loop without a mask takes tiles that only the last queries see whole":
                of(np.where(key < reach // BN * BN, 1, seen)),
            "the second loop begins at key 0 again, so that whole tiles count twice":
                of(seen + seen * whole),
            "the tiles along the edge, seen in part, are left out": of(seen * whole),
            "the whole tiles are left out": of(seen * ~whole),
            "a query does not see its own token": of(seen * own)}


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
    assert rows == 2 * visited * BN, (
        f"flash_triton loads {rows / 2 / BN:g} tiles of keys and of values, {visited} of "
        f"{T // BM * (N // BN)} hold a key that a query sees: end the loop at reach")
    masked, best = (compares(run(reference, kernel, q, k, v, True, BM, BN)[2])
                    for kernel in ("flash_skip_triton", "flash_triton"))
    got = compares(launch)
    assert got < (masked + best) / 2, (
        f"flash_triton compares or selects {got} times, {best} are enough, and a mask on every "
        f"tile takes {masked}: the {whole} whole tiles need no mask and no bound")
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
    import torch

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


def test_what_the_launchers_refuse(subject, rng):
    q, k, v = inputs(rng, 1, 4, 6, 4, 2, 32)
    wide = inputs(rng, 1, 4, 6, 4, 2, 64)
    for args, says in (
            ((q, k, v[:, :5], True, 1.0), "v (1, 5, 2, 32)"),
            ((q[0], k, v, True, 1.0), "expected q (B, T, H, D)"),
            ((q[:, :, :3], k, v, True, 1.0), "3 query heads, expected a multiple of the 2"),
            ((k, q[:, :, :2], q[:, :, :2], True, 1.0), "6 queries and 4 keys"),
            ((q, k[:, :0], v[:, :0], False, 1.0), "no key"),
            ((q, k, v, True, 0.0), "scale is 0.0, expected a positive one"),
            ((q, k.half(), v, True, 1.0), "k torch.float16"),
            ((wide[0][..., ::2], k, v, True, 1.0), "q has strides (1024, 256, 64, 2)")):
        for name in LAUNCHERS:
            with pytest.raises(Raised) as refusal:
                getattr(subject, name)(*args)
            assert says in refusal.value.text, (name, refusal.value.text)
    for D in (8, 24, 144, 256):
        heads = inputs(rng, 1, 4, 6, 4, 2, D)
        for name in ("flash_attention", "flash_attention_cuda"):
            with pytest.raises(Raised) as refusal:
                getattr(subject, name)(*heads, True, 1.0)
            assert f"{name}: heads of width {D}, expected a multiple of 16" in refusal.value.text
        out, _ = subject.flash_attention_torch(*heads, True, 1.0)       # the plain formula takes it
        assert np.abs(out.numpy() - oracle(*heads, True, 1.0)[0]).max() < 1e-5
    with pytest.raises(Raised) as refusal:
        subject.flash_attention_cuda(q.half(), k.half(), v.half(), True, 1.0)
    assert "q, k and v are torch.float16, expected torch.float32" in refusal.value.text


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients(subject, agree, rng, dtype):
    """Of out and lse, against float64; upstream as it comes, its heads before its tokens, and one
    number for all."""
    import torch

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
    for how, upstream in {"whole": both, "turned": turned, "expanded": expanded}.items():
        got = subject.grad("flash_attention", (q, k, v, True, 0.25), upstream)
        want = torch.autograd.grad((out, scores.logsumexp(-1)), leaves,
                                   [u.double() for u in upstream], retain_graph=True)
        for name, mine, true in zip("qkv", got, want, strict=True):
            assert mine.dtype == q.dtype
            agree(mine, true.numpy(), dtype, f"the gradient by {name}, upstream {how}", at_query)


def test_oracle_agrees(subject, rng):
    q, k, v = inputs(rng, 2, 5, 8, 4, 2, 16)
    for causal in (True, False):
        found = subject.flash_attention_oracle(q.numpy(), k.numpy(), v.numpy(), causal, 0.3)
        for got, want in zip(found, oracle(q, k, v, causal, 0.3), strict=True):
            assert np.allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_cuda_does_not_spill():
    from layer1_kernels.k13_flash_attention import KERNELS

    assert KERNELS.get("flash_cuda").resources.spill_stores == 0


@pytest.mark.slow
@pytest.mark.parametrize("T", [1, 32, 4096])
def test_fp32_does_not_spill(T):
    from lab import simulator
    from layer1_kernels.k13_flash_attention import flash_triton, tiles

    simulator.activate_triton()
    sizes = tiles(T, 128, 4)
    warps, stages = sizes.pop("num_warps"), sizes.pop("num_stages")
    kinds = dict.fromkeys(flash_triton.arg_names[:19], "i32:16")
    kinds |= dict.fromkeys(("q", "k", "v", "out", "lse"), "*fp32") | {"scale": "fp32"}
    found = simulator.hopper(flash_triton, kinds, {"CAUSAL": True, "D": 128} | sizes, warps, stages)
    assert not found.spills


@pytest.mark.slow
@pytest.mark.parametrize("change, meta", [
    ({"T": "i32", "N": "i32"}, {}), ({"G": "i32:16"}, {}), ({"G": 1}, {}), ({}, {"CAUSAL": False})])
def test_other_launches_compile_as_well(change, meta):
    """Ragged lengths, no grouping, one kv head, not causal: Triton compiles again for each."""
    from lab import simulator
    from lab.author import hopper_report
    from layer1_kernels.k13_flash_attention import flash_triton

    kinds = dict.fromkeys(flash_triton.arg_names[:19], "i32:16")
    kinds |= dict.fromkeys(("q", "k", "v", "out"), "*bf16")
    found = simulator.hopper(
        flash_triton, kinds | {"lse": "*fp32", "scale": "fp32", "G": "i32"} | change,
        {"CAUSAL": True, "D": 128, "BM": 128, "BN": 64, "BD": 128} | meta, 8, 3)
    assert not found.spills and not found.serialised and found.wgmma
    assert found.shared <= hopper_report.SHARED


@pytest.mark.gpu
@pytest.mark.parametrize("T, N, causal", [(0, 5, True), (1, 1000, True), (129, 129, True),
                                          (1000, 4096, True), (127, 1000, False)])
@pytest.mark.parametrize("D", [16, 64, 80, 128])
def test_every_kernel_on_the_device(T, N, causal, D):
    import torch

    from layer1_kernels import flash_attention, flash_attention_cuda, flash_attention_torch

    q = torch.randn(2, T, 8, D, device="cuda")
    k, v = (torch.randn(2, N, 2, D, device="cuda") for _ in range(2))
    for dtype, near in ((torch.float32, 2e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
        given = [x.to(dtype) for x in (q, k, v)]
        want = flash_attention_torch(*(x.double() for x in given), causal, D ** -0.5)
        kernels = [flash_attention] + [flash_attention_cuda] * (dtype == torch.float32)
        for kernel in kernels:
            for got, true in zip(kernel(*given, causal, D ** -0.5), want, strict=True):
                assert torch.allclose(got.double(), true, rtol=near, atol=near), (kernel, dtype)


@pytest.mark.gpu
def test_flash_triton_speed(pace):
    pace("flash_attention", numbers("bfloat16", 4, 4096, 16, 128),
         numbers("bfloat16", 4, 4096, 16, 128), numbers("bfloat16", 4, 4096, 16, 128), True,
         128**-0.5)
