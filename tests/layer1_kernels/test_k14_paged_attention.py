"""Graders of k14.
Outputs start as 7; slots that no token uses hold NaN, and entries of a block table after the
last page name no page at all."""

import itertools
import math

import numpy as np
import pytest
import torch

from lab.judge.addresses import FAR, ROWS, in_64_bits
from lab.judge.adversarial import VALUES, WORDS, shifted
from lab.judge.compare import rounded_once
from lab.judge.mistakes import mistake, same_report
from lab.judge.pace import made_by
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.oracle_k14_paged_attention import (
    attention,
    batch,
    merge_mistakes,
    merge_parts,
    rows_of,
    store_rows,
    widened,
)

SIZES = [   # new tokens and lengths of each sequence, H, G, D, S, dtype, BM, BN, splits
    ([1, 3], [37, 20], 4, 2, 32, 16, "float16", 16, 16, 1),
    ([1, 0, 9], [21, 30, 9], 6, 2, 48, 7, "float16", 16, 32, 1),    # idle rows, a chunk, padded D
    ([2], [50], 4, 1, 32, 16, "bfloat16", 16, 16, 3),               # splits of 32 keys, one short
    ([1, 1], [40, 5], 2, 1, 16, 16, "float32", 16, 16, 2),
    ([17], [17], 1, 1, 16, 16, "float32", 16, 16, 1),               # a prompt of its own, two tiles
    ([1], [1], 1, 1, 16, 1, "float32", 16, 16, 1)]                  # one token at position 0
FAR_BELOW = "numbers around -3000"
HARD = VALUES | {FAR_BELOW: lambda rng, shape: shifted(rng, shape, -3000)}
TOO_SHORT = "numbers are rounded to 16 bits on the way"


def at(text):
    """The name of an element, its index in the {} of a text."""
    return lambda index: text.format(*index)


AT_PLACE = at("page {}, place {}, head {}, column {}")
AT_KEY = at("sequence {}, key {}, head {}, column {}")
AT_TOKEN = at("new token {}, head {}, column {}")


def enough(known, text, got, most, why):
    """AssertionError of the mistake `known` where more is moved than is enough."""
    assert got <= most, mistake(known, f"{text.format(got)}. {why}", why)


def far(run, what):
    """Page 16 of pages that are 2^28 numbers apart begins at 2^32, which 32 bits take for 0."""
    try:
        run()
    except Raised as error:
        assert "out-of-bounds" in error.text, error
    else:
        raise AssertionError(mistake("short_page", (
            f"{what}: page 16 is taken for page 0 when pages are 2^28 numbers apart, because page "
            f"· stride is computed in 32 bits. Use .to(tl.int64) on the page before you multiply")))


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


# ---- counting before building


def test_predict_reads_ratio(subject, reference, rng):
    args = batch(rng, [1], [96], 8, 2, 32, 16, "float16")

    def read(q):
        return run(reference, q, *args[1:], 16, 16, 1)[2].bytes("load")

    apart = sum(read(args[0][:, r::4]) for r in range(4))
    got = subject.predict_reads_ratio()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_reads_ratio: expected a number, got {got!r}")
    known, why = {
        8: ("kv_heads", "8 is the number of kv heads. How many query heads share one of them?"),
        32: ("programs", "32 is the number of programs in the first case. How many are there in "
                         "the other?"),
        1: ("same_keys", "The keys are the same, but each program loads them itself."),
        1 / 4: ("turned_round", "This is the ratio the other way round."),
    }.get(got, ("other", "Count the programs that load the same keys."))
    assert abs(got - apart / read(args[0])) < 0.5, mistake(
        known, f"predict_reads_ratio: the simulator does not count {got:g}. {why}", why)


# ---- into the pages


def write(subject, k, v, k_pages, v_pages, slots):
    (T, G, D), S = k.shape, k_pages.shape[1]
    with same_report("before_page_0", "Slot -1 leads to the last place of the page before page 0: "
                     "skip the token.", kind="out_of_bounds", words="element -"):
        return subject.launch("write_kv_triton", T, args=(
            k, v, k_pages, v_pages, slots, *k.stride()[:2], *v.stride()[:2], *k_pages.stride()[:3],
            *v_pages.stride()[:3], S, G), D=D, BLOCK=1 << (G * D - 1).bit_length(), num_warps=1)


def write_mistakes(letter, got, pages, x, other, slots):
    """{id: (sentence, what it gives)} of k_pages or v_pages, got; x, other: k and v, or v and k."""
    page, place, head, _ = got.stride()
    first = np.where(np.arange(len(slots)) == 0, slots, -1)
    lanes = 1 << (x.shape[1] * x.shape[2] - 1).bit_length()
    return {
        "slot_0_written": ("the token with slot -1 goes to slot 0: skip it",
                           store_rows(got, x, np.maximum(slots, 0))),
        "place_and_page": ("page and place are swapped",
                           store_rows(got, x, slots, (place, page, head))),
        "keys_and_values": ("keys and values are swapped", store_rows(got, other, slots)),
        "first_token": ("only the first token is written", store_rows(got, x, first)),
        "strides_of_k": ("v_pages are written with the strides of k_pages",
                         store_rows(got, x, slots, pages[0].stride()[:3])),
        "no_mask": ("the store has no mask, so the numbers after a slot are overwritten",
                    store_rows(got, x, slots, lanes=lanes)),
        "head_0": ("every head gets the numbers of head 0",
                   store_rows(got, x[:, :1].expand(x.shape), slots)),
        "head_stride": (f"heads in {letter}_pages are put as far apart as those of {letter}",
                        store_rows(got, x, slots, (page, place, x.stride(1)))),
        "in_turn": ("token t goes to slot t, not to the slot that `slots` names",
                    store_rows(got, x, range(len(x)))),
        "not_stored": ("nothing is written", np.full(got.shape, 7.0))}


@pytest.mark.parametrize("T, G, D, S, dtype, slot", [
    (6, 2, 32, 4, "float16", "int64"), (5, 3, 48, 7, "float32", "int32"),
    (1, 1, 16, 16, "bfloat16", "int64"), (4, 1, 16, 1, "float32", "int64")])
def test_write_kv_triton(subject, agree, rng, T, G, D, S, dtype, slot):
    k, v = widened(*(torch.from_numpy(rng.standard_normal((T, G, D), np.float32)).to(
        getattr(torch, dtype)) for _ in range(2)))
    P = 5
    slots = rng.permutation(np.arange(1, P * S))[:T]        # 0 stays free: -1 must not lead there
    if T > 1:
        slots[1] = -1
    pages = widened(*(torch.full((P, S, G, D), 7, dtype=k.dtype) for _ in range(2)), pages=True,
                    first=3)
    write(subject, k, v, *pages, torch.from_numpy(slots.astype(slot)))
    for letter, got, x, other in (("k", pages[0], k, v), ("v", pages[1], v, k)):
        agree(got, store_rows(got, x, slots), "exact", f"{letter}_pages, {T} tokens into slots "
              f"{slots.tolist()}", AT_PLACE, write_mistakes(letter, got, pages, x, other, slots))


def test_write_kv_triton__hard(subject, agree, rng):
    """Every number as it is, NaN and the smallest too; slot 0, and the last one."""
    for kind, make in HARD.items():
        k, v = (torch.from_numpy(make(rng, (3, 17))[:, None]) for _ in range(2))
        pages = [torch.full((3, 5, 1, 17), 7.0) for _ in range(2)]
        write(subject, k, v, *pages, torch.tensor([0, -1, 14]))
        for letter, x, got in (("k", k, pages[0]), ("v", v, pages[1])):
            agree(got, store_rows(got, x, (0, -1, 14)), "exact",
                  f"{letter}_pages, {WORDS.get(kind, kind)} into slots 0, -1 and 14", AT_PLACE, {
                      "slot_0_skipped": ("slot 0 is skipped; only -1 means none",
                                         store_rows(got, x, (-1, -1, 14))),
                      "short": (TOO_SHORT, store_rows(got, x.bfloat16().float(), (0, -1, 14)))})


def test_write_kv_triton__addresses(subject):
    x, pages = torch.zeros(1, 1, 16), torch.zeros(1, 4, 1, 16)
    for which in range(2):
        strides = [[64, 16, 16], [64, 16, 16]]
        strides[which][0], strides[1 - which][0] = 2**28, 0
        far(lambda strides=strides: subject.launch("write_kv_triton", 1, args=(
            x, x, pages, pages.clone(), int32(64), 16, 16, 16, 16, *strides[0], *strides[1], 4, 1),
            D=16, BLOCK=16, num_warps=1), f"write_kv_triton, {'kv'[which]}_pages")


def test_write_kv_triton__work(subject, reference, rng):
    T, G, D = 4, 2, 64
    k, v = (torch.ones(T, G, D, dtype=torch.float16) for _ in range(2))
    pages = [torch.zeros(3, 4, G, D, dtype=torch.float16) for _ in range(2)]
    launched, own = (write(side, k, v, *pages, torch.tensor([3, -1, 9, -1]))
                     for side in (subject, reference))
    moved = launched.bytes("load") - 32 * 8 * T     # all lanes ask for the slot
    least = 2 * 2 * G * D * 2
    enough("loaded_first", "write_kv_triton loads {} bytes of keys and values for 2 tokens with a "
           f"slot and 2 without; {least} are enough", moved, least,
           "Test the slot before you load")
    same_work("write_kv_triton", launched, own)


# ---- out of the pages


def gather(subject, pages, tables, lengths, BN):
    """(out (B, N, G, D), launch) of gather_triton."""
    (_, S, G, D), B, N = pages.shape, len(lengths), int(lengths.max())
    out = torch.full((B, N, G, D), 7, dtype=pages.dtype)
    with same_report("past_the_table", "A block table is read after the sequence's last page; "
                     "mask its load with key < bound.", kind="out_of_bounds",
                     array="block_tables"), \
            same_report("outside_pages", "An address leads out of the pages: it should be page · "
                        "stride_page + place · stride_slot.", kind="out_of_bounds", array="pages"):
        return out, subject.launch("gather_triton", (-(-N // BN), G, B), args=(
            pages, tables, lengths, out, *pages.stride()[:3], tables.stride(0), N, G), S=S, D=D,
            BN=BN, BD=1 << (D - 1).bit_length(), num_warps=1)


def read_rows(pages, tables, lens, page=None, place=None, strides=None):
    """(B, N, G, D) float64: key n lies at entry page(n) and at place(n); 7 where that leads out.

    strides: of page and place, those of the pages where they are None
    """
    _, S, G, D = pages.shape
    page_stride, place_stride = strides or pages.stride()[:2]
    whole = pages.as_strided((pages.untyped_storage().nbytes() // pages.element_size(),), (1,), 0)
    out = np.full((len(lens), max(lens), G, D), 7.0)
    for b, length in enumerate(lens):
        for n in range(length):
            number = int(page(b, n) if page else tables[b, n // S])
            begin = number * page_stride + (place(n) if place else n % S) * place_stride
            if begin + G * pages.stride(2) <= len(whole):
                out[b, n] = whole[begin:].as_strided((G, D), pages.stride()[2:]).double().numpy()
    return out


@pytest.mark.parametrize("lens, G, D, S, dtype, BN", [
    ([20, 37], 2, 32, 16, "float16", 32), ([9, 30], 1, 48, 7, "float32", 32),
    ([5], 1, 16, 64, "bfloat16", 16), ([17, 1], 1, 16, 1, "float32", 16),
    ([40, 33], 1, 16, 7, "float32", 16)])               # tiles that begin within a page
def test_load_pages_triton(subject, agree, rng, lens, G, D, S, dtype, BN):
    _, pages, _, tables, _, lengths = batch(rng, [0] * len(lens), lens, G, G, D, S, dtype, spare=0)
    (pages,) = widened(pages, pages=True)
    page, place = pages.stride()[:2]

    def keys(*how, **more):
        return read_rows(pages, tables, lens, *how, **more)

    agree(gather(subject, pages, tables, lengths, BN)[0], keys(), "exact",
          f"load_pages_triton, {lens} keys from pages of {S}, {BN} at a time", AT_KEY, {
              "no_table": ("page number n // S is read, not the page that the table names",
                           keys(lambda b, n: min(n // S, len(pages) - 1))),
              "page_of_tile": ("all keys of a tile come from the page of its first key",
                               keys(lambda b, n: tables[b, n // BN * BN // S])),
              "tile_as_page": (
                  "the table entry is counted from the tile's first key, as if a page started "
                  "there; it is key // S of each key",
                  keys(lambda b, n: tables[b, n // BN * BN // S + n % BN // S])),
              "dense_pages": ("page numbers are multiplied by S · stride_slot; pages start "
                              "stride_page apart", keys(strides=(S * place, place))),
              "place_0": ("every key is read at place 0 of its page", keys(place=lambda n: 0)),
              "place_in_tile": (
                  "the place in a page is counted from the tile's first key, as if a page started "
                  "there", keys(place=lambda n: n % BN % S)),
              "no_n": ("n is not added: each tile has the sequence's first keys",
                       keys(lambda b, n: tables[b, n % BN // S], lambda n: n % BN % S)),
              "first_page": ("all keys come from the sequence's first page",
                             keys(lambda b, n: tables[b, 0])),
              "from_1": ("places in a page are counted from 1", keys(place=lambda n: (n + 1) % S)),
              "strides_swapped": ("the strides of page and place are swapped",
                                  keys(strides=(place, page)))})


def test_load_pages_triton__addresses(subject):
    pages = torch.zeros(1, 1, 1, 16)
    far(lambda: subject.launch("gather_triton", (1, 1, 1), args=(
        pages, int32(16)[None], int32(1), torch.full_like(pages, 7), 2**28, 16, 16, 1, 1, 1), S=1,
        D=16, BN=16, BD=16, num_warps=1), "load_pages_triton")


@pytest.mark.parametrize("length", [17, 16])
def test_load_pages_triton__bound(subject, length):
    """A page of 64 slots, of which memory holds only those of the keys."""
    pages = torch.ones(length, 1, 16)
    with same_report("rows_past_bound", f"bound = {length}: keys from {length} on are read from "
                     f"memory. Return zeros there: mask the rows with key < bound.",
                     kind="out_of_bounds", array="pages"):
        subject.launch("gather_triton", (1, 1, 1), args=(
            pages, int32(0)[None], int32(length), torch.full_like(pages, 7), 1024, 16, 16, 1,
            length, 1), S=64, D=16, BN=32, BD=16, num_warps=1)


def test_load_pages_triton__work(subject, reference, rng):
    _, pages, _, tables, _, lengths = batch(rng, [0, 0], [64, 50], 2, 2, 32, 16, "float16")
    same_work("load_pages_triton", *(gather(side, pages, tables, lengths, 16)[1]
                                     for side in (subject, reference)),
              limits={"bytes loaded": 2.5, "requests": 4})      # each lane may ask for its page


def test_load_pages_triton__hard(subject, agree, rng):
    for kind, make in HARD.items():
        pages = torch.from_numpy(make(rng, (18, 16))).reshape(2, 9, 1, 16)
        got, _ = gather(subject, pages, int32(1, 0)[None], int32(13), 16)
        want = torch.cat([pages[1], pages[0]])[None, :13]
        agree(got, want.numpy(), "exact",
              f"load_pages_triton, 13 keys, {WORDS.get(kind, kind)}, from pages of 9", AT_KEY,
              {"short": (TOO_SHORT, want.bfloat16().float().numpy())})


# ---- the kernel


def run(subject, q, k_pages, v_pages, tables, cu_q, lens, BM, BN, splits):
    """(parts, lse in base 2, launch) of the kernel."""
    (T, H, D), (_, S, G, _), B = q.shape, k_pages.shape, len(lens)
    R = H // G
    parts = torch.full((splits, T, H, D), 7, dtype=q.dtype if splits == 1 else torch.float32)
    lse = torch.full((splits, T, H), 7.0)
    strides = [*q.stride()[:2], *k_pages.stride()[:3], *v_pages.stride()[:3], tables.stride(0)]
    launched = subject.launch("paged_triton", (T // (BM // R) + B, G, splits), args=(
        q, k_pages, v_pages, parts, lse, tables, cu_q, lens, D ** -0.5 * math.log2(math.e), T, B, H,
        *strides, splits), R=R, S=S, D=D, BM=BM, BN=BN, BD=1 << (D - 1).bit_length(), num_warps=1)
    return parts, lse, launched


def attention_mistakes(args, scale, BN, splits):
    """{id: (sentence, what it gives)} of paged_triton."""
    q, k_pages, v_pages, *others, lens = args
    H, G = q.shape[1], k_pages.shape[2]
    longest = int(lens.max())
    tiles = -(-longest // BN)
    share = -(-tiles // splits) * BN

    def overlapping(n):
        """How often key n is taken where a split has its part of the keys, in whole tiles."""
        part = -(-longest // splits)
        begins = np.arange(splits)[:, None] * part
        return ((begins <= n) & (n < begins + -(-part // BN) * BN)).sum(0)

    def of(times=None, k_pages=k_pages, v_pages=v_pages, **how):
        return attention(q, k_pages, v_pages, *others, lens, scale, times, **how)

    def some(keys):
        """Attention to the keys that a token sees, each keys(n) times."""
        return of(lambda t, n, count, N: (n <= N - count + t) * keys(n))

    strides = *k_pages.stride()[:2], *v_pages.stride()[2:]
    return {
        "strides_of_k": ("values are read with the strides of the keys",
                         of(v_pages=v_pages.as_strided(v_pages.shape, strides))),
        "sees_later": ("a new token also sees the tokens after it",
                       of(lambda t, n, count, N: n < N)),
        "not_itself": ("a token does not see itself", of(lambda t, n, count, N: n < N - count + t)),
        "as_token_t": ("new token t is treated as token t; it is token N - count + t",
                       of(lambda t, n, count, N: n <= t)),
        "first_share": ("only the first split's keys are read, by every split",
                        some(lambda n: n < share)),
        "rounded_down": ("a split's share is rounded down, so no split has the last keys",
                         some(lambda n: n < tiles // splits * BN * splits)),
        "overlap": ("splits overlap: a split must be a whole number of tiles (BN keys)",
                    some(overlapping)),
        "sees_next": ("a new token sees the one after it",
                      of(lambda t, n, count, N: n <= N - count + t + 1)),
        "keys_and_values": ("keys and values are swapped", of(k_pages=v_pages, v_pages=k_pages)),
        "only_keys": ("values are read from the pages of keys", of(v_pages=k_pages)),
        "only_values": ("keys are read from the pages of values", of(k_pages=v_pages)),
        "kv_head_0": ("all query heads read kv head 0", of(head=lambda h: 0)),
        "kv_head_h": ("query head h reads kv head h % G, not h // (H // G)",
                      of(head=lambda h: h % G) if H > G else of()),
        "no_tile": ("no tile of keys is added: the state stays as it started", np.zeros(q.shape))}


@pytest.mark.parametrize("size", SIZES)
def test_paged_triton(subject, agree, rng, size):
    counts, lens, H, G, D, S, dtype, BM, BN, splits = size
    q, *pages, tables, cu_q, lengths = batch(rng, counts, lens, H, G, D, S, dtype)
    args = *widened(q), *widened(*pages, pages=True), tables, cu_q, lengths
    parts, lse, _ = run(subject, *args, BM, BN, splits)
    what = (f"{counts} new tokens of sequences of {lens}, {H} heads on {G}, D = {D}, pages of {S}, "
            f"{dtype}, {splits} split(s)")
    for split in range(splits):
        known, why = ("early_return", "A split without a visible key has a part, too: zeros, and "
                      "lse = -inf.") if split else (
            "part_unwritten", "Its rows in out and lse are (split · T + token) · H + h.")
        assert (lse[split] != 7).all(), mistake(known, f"paged_triton, {what}: the part of split "
                                                f"{split} is not completely written. {why}", why)
    with np.errstate(all="ignore"):
        agree(merge_parts(parts, lse), attention(*args, D ** -0.5), dtype, f"paged_triton, {what}",
              AT_TOKEN, attention_mistakes(args, D ** -0.5, BN, splits))


def test_paged_triton__splits(subject, agree, rng):
    """Each split's own part and sum; the last of five has no key at all."""
    args = batch(rng, [1], [60], 2, 1, 32, 16, "float32")
    parts, lse, _ = run(subject, *args, 16, 16, 5)
    scale = 32 ** -0.5
    scores = args[0][0].double().numpy() @ rows_of(args[1], args[3][0], 60)[:, 0].T * scale
    weights = np.exp(scores)
    with np.errstate(divide="ignore"):
        want = np.log2([[weights[:, n:n + 16].sum(-1)] for n in range(0, 80, 16)])      # (5, 1, 2)
    assert (lse[4] != 7).all(), mistake(
        "early_return", "paged_triton: nothing is written for a split without a key: call "
        "store_part for it as well, which stores zeros and lse = -inf")
    agree(lse, want, "float32", "lse of 60 keys in 5 splits of 16 keys at most",
          lambda i: f"split {i[0]}, head {i[2]}", {
              "empty_lse": ("a split without a visible key stores another lse than -inf",
                            np.where(np.isinf(want), lse.double().numpy(), want)),
              "all_keys": ("every split takes all keys", np.log2(weights.sum(-1)))})
    assert not parts[4].any(), mistake(
        "empty_part", "paged_triton: a split without a visible key must store zeros")


def test_paged_triton__hard(subject, agree, rng):
    """Hard numbers in q, k and v, each in turn, of one token after 34 others, a sequence each of
    one launch."""
    cases = [(kind, which) for kind, which in itertools.product(HARD, range(3))
             if which != 1 or kind not in ("infinite", "not_a_number")]     # scores of a whole head
    n = len(cases)
    q, *pages, tables, cu_q, lens = batch(rng, [1] * n, [35] * n, 1, 1, 16, 9)
    pages = [torch.where(x.isnan(), 0, x) for x in pages]
    for b, (kind, which) in enumerate(cases):
        table = tables[b, :4].long()
        hard = torch.from_numpy(HARD[kind](rng, (36 if which else 2, 16)))
        if which == 0:
            q[b] = hard[1:]
        else:
            pages[which - 1][table] = hard.reshape(4, 9, 1, 16)
        if which < 2 and kind in ("shifted", "negative", FAR_BELOW):   # scores of one sign
            if which == 0:
                pages[0][table] = pages[0][table].abs()
            else:
                q[b] = q[b].abs()
    args = q, *pages, tables, cu_q, lens
    parts, lse, _ = run(subject, *args, 16, 16, 2)
    with np.errstate(all="ignore"):
        merged, want = merge_parts(parts, lse), attention(*args, 16 ** -0.5)
    for b, (kind, which) in enumerate(cases):
        close = "float16" if which < 2 and kind in ("shifted", FAR_BELOW, "uneven",
                                                    "exact_sums") else "float32"
        agree(merged[b:b + 1], want[b:b + 1], close,
              f"paged_triton, {WORDS.get(kind, kind)} in {'qkv'[which]}, 35 keys, 2 splits",
              AT_TOKEN)


def test_paged_triton__addresses(subject):
    """One token with itself as its only key, and parts of splits that are 2^28 tokens apart."""
    q, k, v, out, lse = torch.zeros(5, 1)
    in_64_bits(subject, "paged_triton", (1, 1, ROWS), None, (
        q, k, v, out, lse, int32(0), int32(0, 1), int32(1), 1.0, FAR, 1, 1, *[1] * 9, ROWS), 1,
        "out, split · T", R=1, S=1, D=1, BM=16, BN=16, BD=16, num_warps=1)


def test_paged_triton__work(subject, reference, rng):
    counts, lens, H, G, D, S, BN = [1, 4], [96, 64], 4, 1, 32, 16, 16
    args = batch(rng, counts, lens, H, G, D, S, "float16")
    launched, own = (run(side, *args, 16, BN, 2)[2] for side in (subject, reference))
    least = sum(lens) * 2 * G * D * 2
    others = 4 * (2 * sum(lens) + 3 * 10 * len(lens)) + sum(counts) * H * D * 2 * 2
    enough("share_again", f"paged_triton loads {{:,}} bytes; keys and values have {least:,}",
           launched.bytes("load"), least + others + 32 * 256,
           "Each split must read its own share of the keys, and only once")
    same_work("paged_triton", launched, own)
    args = batch(rng, [96], [96], 1, 1, 16, S, "float32")       # 6 tiles, each with its own reach
    launched, own = (run(side, *args, 16, BN, 1)[2] for side in (subject, reference))
    least = own.bytes("load")
    enough("past_reach", "paged_triton loads {:,} bytes for 96 new tokens in tiles of 16; "
           f"{least:,} are enough", launched.bytes("load"), 1.3 * least,
           "Keys after the last visible one of a tile are read: end the loop at reach")
    same_work("paged_triton", launched, own)


# ---- merge


def merge(subject, parts, lse, dtype):
    """(out, launch)."""
    splits, rows, D = parts.shape
    out = torch.full((rows, D), 7, dtype=getattr(torch, dtype))
    with same_report("no_mask", "The store has no mask: columns from D on belong to the next row, "
                     "or are outside out.", kind="out_of_bounds", array="out"):
        return out, subject.launch(
            "merge_triton", rows, args=(parts, lse, out, rows, splits), D=D,
            BS=1 << (splits - 1).bit_length(), BD=1 << (D - 1).bit_length(), num_warps=1)


@pytest.mark.parametrize("splits, rows, D, dtype", [
    (3, 4, 32, "float16"), (8, 2, 48, "float32"), (1, 3, 16, "bfloat16")])
def test_merge_triton(subject, agree, rng, splits, rows, D, dtype):
    parts = torch.from_numpy(rng.standard_normal((splits, rows, D), np.float32))
    lse = torch.from_numpy(30 * rng.standard_normal((splits, rows), np.float32) + 200)
    right_merge(subject, agree, parts, lse, dtype)


def test_merge_triton__hard(subject, agree, rng):
    for kind, make in HARD.items():
        parts = torch.from_numpy(make(rng, (9 * 4, 17)).reshape(9, 4, 17))
        for by in (-200, -3000, 0, -30_000):
            lse = torch.from_numpy(shifted(rng, (9, 4), by))
            right_merge(subject, agree, parts, lse, "float32",
                        f", {WORDS.get(kind, kind)} in parts, lse around {by}")
    for by in (300, -300):
        lse = (by * torch.arange(9.0))[:, None].repeat(1, 4)
        right_merge(subject, agree, torch.from_numpy(VALUES["unrounded"](rng, (9, 4, 17))), lse,
                    "float32", f", each lse {by} above the one before")


def test_merge_triton__addresses(subject):
    """lse of splits that are 2^28 rows apart; it is read before the parts are."""
    parts, lse, out = (torch.zeros(1) for _ in range(3))
    in_64_bits(subject, "merge_triton", 1, None, (parts, lse, out, 2**28, 17), 1, "lse, i · rows",
               D=1, BS=32, BD=1, num_warps=1)


@np.errstate(all="ignore")
def right_merge(subject, agree, parts, lse, dtype, kind=""):
    """Each row of out is its parts' mean by their sums, or the likely mistake is named."""
    splits, rows, _ = parts.shape
    lse[:, 0] = lse[0, 0] + torch.linspace(0, 1, splits)    # row 0: weights near each other
    if splits > 1:
        lse[-1, 1], parts[-1, 1] = -math.inf, 0             # row 1: a split without a key
    out, _ = merge(subject, parts, lse, dtype)
    want = merge_parts(parts, lse)
    mistakes = merge_mistakes(parts, lse, want, kind)
    for r in range(rows):
        one = np.s_[r:r + 1]
        agree(out[one], want[one], dtype, f"row {r} of {rows}, of {splits} parts{kind}",
              lambda i: f"column {i[1]}",
              {name: (why, answer[one]) for name, (why, answer) in mistakes.items()})


def test_merge_triton__rounded_once(subject, rng):
    """Weights of one size, so that the digits of each count."""
    parts = torch.from_numpy(rng.standard_normal((5, 12, 64), np.float32))
    lse = torch.from_numpy(rng.standard_normal((5, 12), np.float32))
    for dtype in ("float16", "bfloat16"):
        rounded_once(merge(subject, parts, lse, dtype)[0], merge_parts(parts, lse), "merge_triton",
                     f"12 rows of 64 {dtype}, of 5 parts")


def test_merge_triton__work(subject, reference, rng):
    """Every part and its lse are read once, the result is written once."""
    parts = torch.from_numpy(rng.standard_normal((8, 4, 64), np.float32))
    lse = torch.from_numpy(rng.standard_normal((8, 4), np.float32))
    (out, launched), (_, own) = (merge(side, parts, lse, "float32")
                                 for side in (subject, reference))
    most = parts.nbytes + 32 * lse.nbytes       # where each lane of a warp asks for the lse itself
    enough("parts_again", f"merge_triton loads {{:,}} bytes; the parts have {parts.nbytes:,}",
           launched.bytes("load"), most, "Load each part once")
    enough("stored_again", f"merge_triton stores {{:,}} bytes for a result of {out.nbytes:,}",
           launched.bytes("store"), out.nbytes, "Add up in registers, and store the sum")
    same_work("merge_triton", launched, own)


# ---- on the device; the launchers' other tests are in test_paged_launchers.py


@pytest.mark.gpu
@pytest.mark.parametrize("counts, lens", [
    ([1, 20, 0, 3], [50, 33, 7, 40]), ([1], [5000]), ([1] * 40, [100] * 40),
    ([500, 1], [2000, 130])])
def test_every_kernel_on_the_device(rng, counts, lens):
    from layer1_kernels import paged_attention, paged_attention_cuda, paged_attention_torch

    for dtype, near in (("float32", 2e-5), ("float16", 2e-3), ("bfloat16", 1.6e-2)):
        q, k, v, tables, cu_q, lengths = batch(rng, counts, lens, 8, 2, 64, 16, dtype)
        args = [x.cuda() for x in (q, k, v, tables, cu_q, lengths)]
        want = paged_attention_torch(*(x.float() for x in args[:3]), *args[3:], 0.125)
        for kernel in [paged_attention] + [paged_attention_cuda] * (dtype == "float32"):
            got = kernel(*args, 0.125).float()
            assert torch.allclose(got, want, rtol=near, atol=near), (kernel, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_write_kv_on_the_device(dtype):
    from layer1_kernels import write_kv, write_kv_torch

    T, P, S, G, D = 129, 20, 16, 3, 64
    k, v = torch.randn(2, T, G, D, device="cuda").to(getattr(torch, dtype))
    slots = torch.randperm(P * S, device="cuda")[:T]
    slots[::7] = -1
    ours, theirs = torch.full((2, 2, P, S, G, D), 7.0, device="cuda", dtype=k.dtype)
    write_kv(k, v, *ours, slots)
    write_kv_torch(k, v, *theirs, slots)
    assert torch.equal(ours, theirs)


@pytest.mark.gpu
def test_paged_triton_speed(pace):
    pace("paged_attention", made_by("decode_batch", 64, 4096, 32, 8, 128, 16, "cuda"))
