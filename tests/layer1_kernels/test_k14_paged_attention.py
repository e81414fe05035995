"""Graders of k14. Outputs start as 7; slots that no token uses hold NaN, and entries of a block
table after the last page name no page at all."""

import itertools
import math

import numpy as np
import pytest

from lab.judge.addresses import in_64_bits
from lab.judge.adversarial import VALUES, shifted
from lab.judge.pace import made_by
from lab.judge.subject import Raised
from lab.judge.work import same_work

SIZES = [   # new tokens and lengths of each sequence, H, G, D, S, dtype, BM, BN, splits
    ([1, 3], [37, 20], 4, 2, 32, 16, "float16", 16, 16, 1),
    ([1, 0, 9], [21, 30, 9], 6, 2, 48, 7, "float16", 16, 32, 1),    # idle rows, a chunk, padded D
    ([2], [50], 4, 1, 32, 16, "bfloat16", 16, 16, 3),               # splits of 32 keys, one short
    ([1, 1], [40, 5], 2, 1, 16, 16, "float32", 16, 16, 2),
    ([17], [17], 1, 1, 16, 16, "float32", 16, 16, 1),               # a prompt of its own, two tiles
    ([1], [1], 1, 1, 16, 1, "float32", 16, 16, 1)]                  # one token at position 0
HARD = VALUES | {"around -3000": lambda rng, shape: shifted(rng, shape, -3000)}
LAUNCHERS = ("paged_attention", "paged_attention_torch", "paged_attention_cuda")
NOWHERE = 2**20


# ---- inputs, the oracle, and what goes wrong


def batch(rng, counts, lens, H, G, D, S, dtype="float32", spare=2):
    """Arguments of paged_attention except scale, as tensors; pages are dealt out at random."""
    import torch

    used = [-(-n // S) for n in lens]
    pages = list(rng.permutation(sum(used) + 3))
    tables = np.full((len(lens), max(used, default=0) + spare), NOWHERE, np.int32)
    k_pages, v_pages = (np.full((len(pages), S, G, D), np.nan, np.float32) for _ in range(2))
    for b, n in enumerate(lens):
        tables[b, :used[b]] = [pages.pop() for _ in range(used[b])]
        for i in range(n):
            for x in (k_pages, v_pages):
                x[tables[b, i // S], i % S] = rng.standard_normal((G, D))
    q = rng.standard_normal((sum(counts), H, D), np.float32)
    q, k_pages, v_pages = (torch.from_numpy(x).to(getattr(torch, dtype))
                           for x in (q, k_pages, v_pages))
    return (q, k_pages, v_pages, torch.from_numpy(tables),
            torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32),
            torch.tensor(lens, dtype=torch.int32))


def apart(*arrays, pages=False, first=1):
    """The same numbers in wider arrays, so that no two have strides alike. pages: and each page
    has room after its slots. first: of the widths; those of other arrays are less"""
    import torch

    views = []
    for n, x in enumerate(arrays, first):
        shape = [*x.shape[:-1], x.shape[-1] + 8 * n]
        shape[1] += n * pages
        view = torch.full(shape, 77, dtype=x.dtype)[tuple(slice(size) for size in x.shape)]
        view[...] = x
        views.append(view)
    return views


def far(run, what):
    """Page 16 of pages that are 2^28 numbers apart begins at 2^32, which 32 bits take for 0."""
    try:
        run()
    except Raised as error:
        assert "out-of-bounds" in error.text, error
    else:
        raise AssertionError(
            f"{what}: page 16, of pages 2^28 numbers apart, is taken for page 0: the product has "
            f"32 bits; make the number of the page 64 bits wide before you multiply")


def keys_of(pages, table, N):
    """(N, G, D) float64: a sequence's rows, from its pages."""
    S = pages.shape[1]
    return np.stack([pages[int(table[n // S]), n % S].double().numpy() for n in range(N)])


def oracle(q, k_pages, v_pages, tables, cu_q, lens, scale, seen=None, head=None):
    """(T, H, D) float64. seen(t, n, count, N): does new token t see key n, and how often?"""
    (T, H, D), G = q.shape, k_pages.shape[2]
    seen = seen or (lambda t, n, count, N: n <= N - count + t)
    out, kv = np.empty((T, H, D)), head or (lambda h: h // (H // G))
    for b, N in enumerate(lens.tolist()):
        begin, end = cu_q[b].item(), cu_q[b + 1].item()
        if begin == end:
            continue
        keys, values = (keys_of(x, tables[b], N) for x in (k_pages, v_pages))
        times = np.array([seen(t, np.arange(N), end - begin, N) for t in range(end - begin)], float)
        for h in range(H):
            scores = q[begin:end, h].double().numpy() @ keys[:, kv(h)].T * scale
            with np.errstate(all="ignore"):
                weights = np.where(times > 0, times * np.exp(scores - scores.max()), 0)
                out[begin:end, h] = weights / weights.sum(-1, keepdims=True) @ values[:, kv(h)]
    return out


def mistakes(args, scale, BN, splits):
    """{mistake: what it gives} of paged_triton and what it calls."""
    H, G = args[0].shape[1], args[1].shape[2]
    tiles = -(-int(args[5].max()) // BN)
    share = -(-tiles // splits) * BN
    down, part = tiles // splits * BN, -(-int(args[5].max()) // splits)

    def times(n, part):
        """How often key n is taken, where a split has `part` keys and takes whole tiles."""
        begins = np.arange(splits) * part
        ends = begins + -(-part // BN) * BN
        return ((begins[:, None] <= n) & (n < ends[:, None])).sum(0)

    def of(seen):
        return oracle(*args, scale, seen)

    def values_by_keys():
        k_pages, v_pages = args[1:3]
        strides = *k_pages.stride()[:2], *v_pages.stride()[2:]
        return oracle(args[0], k_pages, v_pages.as_strided(v_pages.shape, strides), *args[3:],
                      scale)

    return {
        "values are read with the strides of the keys": values_by_keys(),
        "a new token sees the tokens after it too": of(lambda t, n, count, N: n < N),
        "a token does not see itself": of(lambda t, n, count, N: n < N - count + t),
        "new token t is taken for token t, but it is token N - count + t":
            of(lambda t, n, count, N: n <= t),
        "only the first split's keys are read, by every split":
            of(lambda t, n, count, N: (n <= N - count + t) & (n < share)),
        "a split's share is rounded down, and the last keys belong to none": of(
            lambda t, n, count, N: (n <= N - count + t) & (n < down * splits)),
        "a split's share is not a multiple of BN, and its last tile takes in keys of the next":
            of(lambda t, n, count, N: (n <= N - count + t) * times(n, part)),
        "a new token sees the one after it": of(lambda t, n, count, N: n <= N - count + t + 1),
        "keys and values are exchanged": oracle(
            args[0], args[2], args[1], *args[3:], scale),
        "values are read from the pages of keys": oracle(
            args[0], args[1], args[1], *args[3:], scale),
        "keys are read from the pages of values": oracle(
            args[0], args[2], args[2], *args[3:], scale),
        "all query heads read kv head 0": oracle(*args, scale, head=lambda h: 0),
        "query head h reads kv head h % G, not h // (H // G)": oracle(
            *args, scale, head=lambda h: h % G) if H > G else oracle(*args, scale),
        "no tile is taken in": np.zeros(args[0].shape)}


def run(subject, q, k_pages, v_pages, tables, cu_q, lens, BM, BN, splits, kernel="paged_triton"):
    """(parts, lse in base 2, launch) of the kernel."""
    import torch

    (T, H, D), (_, S, G, _), B = q.shape, k_pages.shape, len(lens)
    R = H // G
    parts = torch.full((splits, T, H, D), 7, dtype=q.dtype if splits == 1 else torch.float32)
    lse = torch.full((splits, T, H), 7.0)
    strides = [*q.stride()[:2], *k_pages.stride()[:3], *v_pages.stride()[:3], tables.stride(0)]
    launched = subject.launch(kernel, (T // (BM // R) + B, G, splits), args=(
        q, k_pages, v_pages, parts, lse, tables, cu_q, lens, D ** -0.5 * math.log2(math.e), T, B, H,
        *strides, splits), R=R, S=S, D=D, BM=BM, BN=BN, BD=1 << (D - 1).bit_length(), num_warps=1)
    return parts, lse, launched


def merged(parts, lse):
    """out of what all splits left, float64."""
    parts, lse = parts.double().numpy(), lse.double().numpy()
    weights = np.exp2(lse - lse.max(0))
    return (parts * weights[..., None]).sum(0) / weights.sum(0)[..., None]


def at_token(index):
    return "new token {}, head {}, column {}".format(*index)


# ---- counting before building


def test_predict_reads_ratio(subject, reference, rng):
    args = batch(rng, [1], [96], 8, 2, 32, 16, "float16")

    def read(q):
        return run(reference, q, *args[1:], 16, 16, 1)[2].bytes("load")

    apart, packed = sum(read(args[0][:, r::4]) for r in range(4)), read(args[0])
    got = subject.predict_reads_ratio()
    assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
    why = {8: "8 is the number of kv heads; how many query heads share one of them?",
           32: "32 is the number of programs; compare with how many there are in the other kernel",
           1: "the keys are the same, but each program loads them for itself",
           1 / 4: "this is the other way round"}
    assert abs(got - apart / packed) < 0.5, (
        f"reads with a program for each query head over reads with one for each kv head: {got:g} "
        f"is not what the counters say; {why.get(got, 'count programs that load the same keys')}")


# ---- into the pages


@pytest.mark.parametrize("T, G, D, S, dtype, slot", [
    (6, 2, 32, 4, "float16", "int64"), (5, 3, 48, 7, "float32", "int32"),
    (1, 1, 16, 16, "bfloat16", "int64"), (4, 1, 16, 1, "float32", "int64")])
def test_write_kv_triton(subject, agree, rng, T, G, D, S, dtype, slot):
    import torch

    k, v = (torch.from_numpy(rng.standard_normal((T, G, D), np.float32)).to(getattr(torch, dtype))
            for _ in range(2))
    (k, v), P = apart(k, v), 5
    slots = rng.permutation(np.arange(1, P * S))[:T]        # 0 stays free: -1 must not lead there
    if T > 1:
        slots[1] = -1
    pages = apart(*(torch.full((P, S, G, D), 7, dtype=k.dtype) for _ in range(2)), pages=True,
                  first=3)
    write(subject, k, v, *pages, torch.from_numpy(slots.astype(slot)))
    for letter, x, got in (("k", k, pages[0]), ("v", v, pages[1])):
        want, nowhere, transposed, swapped = (np.full((P, S, G, D), 7.0) for _ in range(4))
        for t, place in enumerate(slots):
            if place >= 0:
                want[place // S, place % S] = x[t].float()
                swapped[place // S, place % S] = (v if letter == "k" else k)[t].float()
            nowhere[place // S, place % S] = x[t].float()
            if place >= 0 and place % S < P and place // S < S:     # else after the page's slots
                transposed[place % S, place // S] = x[t].float()
        alike = pages_by_strides(pages, v, slots) if letter == "v" else want
        heads = want.copy()
        for t, place in enumerate(slots):
            if place >= 0:
                heads[place // S, place % S] = x[t, :1].float()
        agree(got, want, "exact", f"{letter}_pages, {T} tokens into slots {slots.tolist()}",
              lambda i: "page {}, place {}, head {}, column {}".format(*i), {
                  "slot -1 is written: -1 is the last place of the page before the first":
                      nowhere,
                  "page and place are exchanged": transposed,
                  "keys and values are exchanged": swapped,
                  "only the first token is written": only_first(want, slots, S),
                  "v_pages are written with the strides of k_pages": alike,
                  "the store has no mask, and what follows a slot is written, too":
                      beyond(got, x, slots),
                  "every head is given the numbers of head 0": heads,
                  f"heads in {letter}_pages are put as far apart as those of {letter}":
                      by_stride_of(got, x, slots),
                  "token t goes to slot t, and not to the slot that `slots` names": in_turn(
                      x, want, S),
                  "nothing is written": np.full((P, S, G, D), 7.0)})


def in_turn(x, want, S):
    out = np.full_like(want, 7)
    for t in range(len(x)):
        out[t // S, t % S] = x[t].float()
    return out


def by_stride_of(pages, x, slots):
    """The pages where heads are stored with the stride of x's heads."""
    import torch

    fresh = torch.full((pages.untyped_storage().nbytes() // pages.element_size(),), 7.0)
    page_stride, place_stride, head_stride, _ = pages.stride()
    close = fresh.as_strided(pages.shape, (page_stride, place_stride, x.stride(1), 1))
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0 and x.stride(1) <= head_stride:
            close[slot // pages.shape[1], slot % pages.shape[1]] = x[t].float()
    return fresh.as_strided(pages.shape, pages.stride()).double().numpy()


def beyond(pages, x, slots):
    """The pages after stores without a mask, which write zeros where no number was loaded."""
    import torch

    G, D = x.shape[1:]
    block, strides = 1 << (G * D - 1).bit_length(), pages.stride()
    fresh = torch.full((pages.untyped_storage().nbytes() // pages.element_size() + block * 4,), 7.0)
    view = fresh.as_strided(pages.shape, strides)
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            page, place = divmod(slot, pages.shape[1])
            view[page, place] = x[t].float()
            for i in range(G * D, block):
                fresh[page * strides[0] + place * strides[1] + i // D * strides[2] + i % D] = 0
    return view.double().numpy()


def pages_by_strides(pages, v, slots):
    """v_pages where they were written with the strides of k_pages."""
    import torch

    (k_pages, v_pages), S = pages, pages[0].shape[1]
    _, got = apart(*(torch.full(v_pages.shape, 7, dtype=v.dtype) for _ in range(2)), pages=True,
                   first=3)
    view = got.as_strided(got.shape, k_pages.stride())
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            view[slot // S, slot % S] = v[t]
    return got.double().numpy()


def only_first(want, slots, S):
    first, (page, place) = np.full_like(want, 7), divmod(int(slots[0]), S)
    first[page, place] = want[page, place]
    return first


def test_write_kv_triton__hard(subject, agree, rng):
    """Every number as it is, NaN and the smallest too; slot 0, and the last one."""
    import torch

    for kind, make in HARD.items():
        k, v = (torch.from_numpy(make(rng, (3, 17))[:, None]) for _ in range(2))
        pages = [torch.full((3, 5, 1, 17), 7.0) for _ in range(2)]
        write(subject, k, v, *pages, torch.tensor([0, -1, 14]))
        for letter, x, got in (("k", k, pages[0]), ("v", v, pages[1])):
            want = np.full((3, 5, 1, 17), 7, np.float32)
            want[0, 0], want[2, 4] = x[0], x[2]
            skipped = want.copy()
            skipped[0, 0] = 7
            agree(got, want, "exact", f"{letter}_pages, {kind.replace('_', ' ')} into slots 0, -1 "
                  f"and 14", lambda i: "page {}, place {}, head {}, column {}".format(*i),
                  {"slot 0 is taken for no slot; that is -1": skipped,
                   "numbers go through 16 bits": np.where(
                       want == 7, 7, torch.from_numpy(want).bfloat16().float())})


def test_write_kv_triton__addresses(subject):
    import torch

    x, pages = torch.zeros(1, 1, 16), torch.zeros(1, 4, 1, 16)
    for which in range(2):
        strides = [[64, 16, 16], [64, 16, 16]]
        strides[which][0], strides[1 - which][0] = 2**28, 0
        far(lambda strides=strides: subject.launch("write_kv_triton", 1, args=(
            x, x, pages, pages.clone(), torch.tensor([64], dtype=torch.int32), 16, 16, 16, 16,
            *strides[0], *strides[1], 4, 1), D=16, BLOCK=16, num_warps=1),
            f"write_kv_triton, {'kv'[which]}_pages")


def write(subject, k, v, k_pages, v_pages, slots):
    (T, G, D), S = k.shape, k_pages.shape[1]
    return subject.launch("write_kv_triton", T, args=(
        k, v, k_pages, v_pages, slots, *k.stride()[:2], *v.stride()[:2], *k_pages.stride()[:3],
        *v_pages.stride()[:3], S, G), D=D, BLOCK=1 << (G * D - 1).bit_length(), num_warps=1)


def test_write_kv_triton__work(subject, reference, rng):
    import torch

    T, G, D = 4, 2, 64
    k, v = (torch.ones(T, G, D, dtype=torch.float16) for _ in range(2))
    pages = [torch.zeros(3, 4, G, D, dtype=torch.float16) for _ in range(2)]
    launched = write(subject, k, v, *pages, torch.tensor([3, -1, 9, -1]))
    moved = launched.bytes("load") - 32 * 8 * T     # all lanes ask for the slot
    least = 2 * 2 * G * D * 2
    assert moved <= least, (
        f"write_kv_triton loads {moved} bytes of keys and values for 2 tokens with a slot and 2 "
        f"without, {least} are enough: test the slot before you load")
    same_work("write_kv_triton", launched, write(reference, k, v, *pages,
                                                 torch.tensor([3, -1, 9, -1])))


# ---- out of the pages


def gather(subject, pages, tables, lengths, BN):
    """(out (B, N, G, D), launch) of gather_triton."""
    import torch

    (_, S, G, D), B, N = pages.shape, len(lengths), int(lengths.max())
    out = torch.full((B, N, G, D), 7, dtype=pages.dtype)
    return out, subject.launch("gather_triton", (-(-N // BN), G, B), args=(
        pages, tables, lengths, out, *pages.stride()[:3], tables.stride(0), N, G), S=S, D=D, BN=BN,
        BD=1 << (D - 1).bit_length(), num_warps=1)


@pytest.mark.parametrize("lens, G, D, S, dtype, BN", [
    ([20, 37], 2, 32, 16, "float16", 32), ([9, 30], 1, 48, 7, "float32", 32),
    ([5], 1, 16, 64, "bfloat16", 16), ([17, 1], 1, 16, 1, "float32", 16),
    ([40, 33], 1, 16, 7, "float32", 16)])               # tiles that begin within a page
def test_load_pages_triton(subject, agree, rng, lens, G, D, S, dtype, BN):
    _, pages, _, tables, _, lengths = batch(rng, [0] * len(lens), lens, G, G, D, S, dtype, spare=0)
    (pages,), B, N = apart(pages, pages=True), len(lens), max(lens)
    out, _ = gather(subject, pages, tables, lengths, BN)
    numbers = pages.float().numpy()
    want, in_order, one_page, unplaced, by_tile, placed, first, table_0, late = (
        np.full((B, N, G, D), 7.0) for _ in range(9))
    for b, length in enumerate(lens):
        for n in range(length):
            page = int(tables[b, n // S])
            want[b, n] = numbers[page, n % S]
            by_tile[b, n] = numbers[int(tables[b, n // BN * BN // S + n % BN // S]), n % S]
            in_order[b, n] = numbers[min(n // S, len(numbers) - 1), n % S]
            one_page[b, n] = numbers[int(tables[b, n // BN * BN // S]), n % S]
            unplaced[b, n] = numbers[page, 0]
            placed[b, n] = numbers[page, n % BN % S]
            first[b, n] = numbers[int(tables[b, 0]), n % S]
            table_0[b, n] = numbers[int(tables[b, n % BN // S]), n % BN % S]
            late[b, n] = numbers[page, (n + 1) % S]
    close = pages.as_strided(pages.shape, (S * pages.stride(1), *pages.stride()[1:]))
    dense = np.full((B, N, G, D), 7.0)
    for b, length in enumerate(lens):
        dense[b, :length] = keys_of(close, tables[b], length)
    agree(out, want, "exact", f"load_pages_triton, {lens} keys out of pages of {S}, {BN} at a time",
          lambda i: "sequence {}, key {}, head {}, column {}".format(*i), {
              "page n // S of the memory is read, not the page that the table names": in_order,
              "all keys of a tile come from the page of its first key": one_page,
              "pages are counted from the first key of a tile, as if it began a page": by_tile,
              "pages are taken to follow one another; they begin stride_page apart": dense,
              "every key is read at place 0 of its page": unplaced,
              "the place in a page is counted from the tile's first key, as if it began a page":
                  placed,
              "n is forgotten: each tile is the sequence's first keys": table_0,
              "all keys come from the sequence's first page": first,
              "places in a page are counted from 1": late,
              "page and place are exchanged in the strides": exchanged(
                  pages, tables, lens, (B, N, G, D))})


def exchanged(pages, tables, lens, shape):
    """The keys, with the stride of a place for the page and that of a page for the place; 7 where
    that leads out of the pages."""
    S = pages.shape[1]
    page_stride, place_stride, *rest = pages.stride()
    out = np.full(shape, 7.0)
    whole = pages.as_strided((pages.untyped_storage().nbytes() // pages.element_size(),), (1,), 0)
    for b, length in enumerate(lens):
        for n in range(length):
            at = int(tables[b, n // S]) * place_stride + n % S * page_stride
            if at + shape[2] * rest[0] <= len(whole):
                out[b, n] = whole[at:].as_strided(shape[2:], rest).float().numpy()
    return out


def test_load_pages_triton__addresses(subject):
    import torch

    pages, table = torch.zeros(1, 1, 1, 16), torch.tensor([[16]], dtype=torch.int32)
    out = torch.full((1, 1, 1, 16), 7.0)
    far(lambda: subject.launch("gather_triton", (1, 1, 1), args=(
        pages, table, torch.tensor([1], dtype=torch.int32), out, 2**28, 16, 16, 1, 1, 1), S=1,
        D=16, BN=16, BD=16, num_warps=1), "load_pages_triton")


@pytest.mark.parametrize("length", [17, 16])
def test_load_pages_triton__bound(subject, length):
    """A page of 64 slots, of which memory holds only those of the keys."""
    import torch

    pages, table = torch.ones(length, 1, 16), torch.zeros(1, 1, dtype=torch.int32)
    try:
        subject.launch("gather_triton", (1, 1, 1), args=(
            pages, table, torch.tensor([length], dtype=torch.int32), torch.full_like(pages, 7),
            1024, 16, 16, 1, length, 1), S=64, D=16, BN=32, BD=16, num_warps=1)
    except Raised as error:
        raise AssertionError(
            f"load_pages_triton, bound = {length}: a row is read from key {length} on, where "
            f"anything may be; zeros are expected, so mask the rows with key < bound\n"
            f"{error.text}") from None


def test_load_pages_triton__work(subject, reference, rng):
    _, pages, _, tables, _, lengths = batch(rng, [0, 0], [64, 50], 2, 2, 32, 16, "float16")
    same_work("load_pages_triton", *(gather(side, pages, tables, lengths, 16)[1]
                                     for side in (subject, reference)),
              limits={"bytes loaded": 2.5, "requests": 4})      # each lane may ask for its page


def test_load_pages_triton__hard(subject, agree, rng):
    import torch

    tables = torch.tensor([[1, 0]], dtype=torch.int32)
    for kind, make in HARD.items():
        pages = torch.from_numpy(make(rng, (18, 16))).reshape(2, 9, 1, 16)
        got, _ = gather(subject, pages, tables, torch.tensor([13], dtype=torch.int32), 16)
        want = torch.cat([pages[1], pages[0]])[None, :13]
        agree(got, want.numpy(), "exact",
              f"load_pages_triton, 13 keys, {kind.replace('_', ' ')}, out of pages of 9",
              lambda i: "sequence {}, key {}, head {}, column {}".format(*i),
              {"numbers go through 16 bits": want.bfloat16().float().numpy()})


# ---- the kernel


@pytest.mark.parametrize("size", SIZES)
def test_paged_triton(subject, agree, rng, size):
    counts, lens, H, G, D, S, dtype, BM, BN, splits = size
    q, *pages, tables, cu_q, lengths = batch(rng, counts, lens, H, G, D, S, dtype)
    args = *apart(q), *apart(*pages, pages=True), tables, cu_q, lengths
    parts, lse, _ = run(subject, *args, BM, BN, splits)
    what = (f"{counts} new tokens of sequences of {lens}, {H} heads on {G}, D = {D}, pages of {S}, "
            f"{dtype}, {splits} split(s)")
    for split in range(splits):
        assert (lse[split] != 7).all(), (
            f"paged_triton, {what}: the part of split {split} is not all written; row "
            f"(split · T + token) · H + h of out and of lse is its place" + (
                "" if split == 0 else ". A split without a key has one, too: zeros, and lse -inf"))
    with np.errstate(all="ignore"):
        agree(merged(parts, lse), oracle(*args, D ** -0.5), dtype, f"paged_triton, {what}",
              at_token, mistakes(args, D ** -0.5, BN, splits))


def test_paged_triton__splits(subject, agree, rng):
    """Each split's own part and sum; the last of five has no key at all."""
    args = batch(rng, [1], [60], 2, 1, 32, 16, "float32")
    parts, lse, _ = run(subject, *args, 16, 16, 5)
    scale = 32 ** -0.5
    scores = args[0][0].double().numpy() @ keys_of(args[1], args[3][0], 60)[:, 0].T * scale
    want = np.full((5, 1, 2), -np.inf)
    for split in range(4):
        part = scores[:, 16 * split:16 * split + 16]
        want[split, 0] = np.log2(np.exp(part).sum(-1))
    assert (lse[4] != 7).all(), (
        "paged_triton: nothing is written for a split without a key: store_part leaves zeros and "
        "an lse of -inf, so no early return for it")
    agree(lse, want, "float32", "lse of 60 keys in 5 splits of 16 keys at most",
          lambda i: f"split {i[0]}, head {i[2]}", {
              "a split without a key has another lse than -inf":
                  np.where(np.isinf(want), lse.double().numpy(), want),
              "every split takes all keys": np.log2(np.exp(scores).sum(-1))})
    assert not parts[4].any(), "paged_triton: a split without a key should leave zeros"


def test_paged_triton__hard(subject, agree, rng):
    """Hard numbers in q, k and v, each in turn, of one token after 34 others."""
    import torch

    for (kind, make), which in itertools.product(HARD.items(), range(3)):
        if which == 1 and kind in ("infinite", "not_a_number"):
            continue                            # the scores of a whole head
        q, k_pages, v_pages, *others = batch(rng, [1], [35], 1, 1, 16, 9)
        hard = torch.from_numpy(make(rng, (36 if which else 2, 16)))
        if which == 0:
            q = hard[1:, None]
        pages = [torch.where(x.isnan(), 0, x) for x in (k_pages, v_pages)]
        if which:
            table = others[0][0, :4].long()
            pages[which - 1][table] = hard.reshape(4, 9, 1, 16)
        if which < 2 and kind in ("shifted", "negative", "around -3000"):   # scores of one sign
            q, pages[0] = (q, pages[0].abs()) if which == 0 else (q.abs(), pages[0])
        args = q, *pages, *others
        parts, lse, _ = run(subject, *args, 16, 16, 2)
        close = "float16" if which < 2 and kind in ("shifted", "around -3000", "uneven",
                                                    "exact_sums") else "float32"
        with np.errstate(all="ignore"):
            agree(merged(parts, lse), oracle(*args, 16 ** -0.5), close, f"paged_triton, "
                  f"{kind.replace('_', ' ')} in {'qkv'[which]}, 35 keys, 2 splits", at_token)


def test_paged_triton__work(subject, reference, rng):
    counts, lens, H, G, D, S, BN = [1, 4], [96, 64], 4, 1, 32, 16, 16
    args = batch(rng, counts, lens, H, G, D, S, "float16")
    launched = run(subject, *args, 16, BN, 2)[2]
    least = sum(lens) * 2 * G * D * 2
    others = 4 * (2 * sum(lens) + 3 * 10 * len(lens)) + sum(counts) * H * D * 2 * 2
    got = launched.bytes("load")
    assert got <= least + others + 32 * 256, (
        f"paged_triton loads {got:,} bytes for {least:,} of keys and values: each split should "
        f"read its own share of the keys, once")
    same_work("paged_triton", launched, run(reference, *args, 16, BN, 2)[2])
    args = batch(rng, [96], [96], 1, 1, 16, S, "float32")       # 6 tiles, each with its own reach
    launched, own = (run(side, *args, 16, BN, 1)[2] for side in (subject, reference))
    got, least = launched.bytes("load"), own.bytes("load")
    assert got <= 1.3 * least, (
        f"paged_triton loads {got:,} bytes for 96 new tokens in tiles of 16, {least:,} are enough: "
        f"keys after the last one that a tile's tokens see are read; end at reach")
    same_work("paged_triton", launched, own)


# ---- merge


@pytest.mark.parametrize("splits, rows, D, dtype", [
    (3, 4, 32, "float16"), (8, 2, 48, "float32"), (1, 3, 16, "bfloat16")])
def test_merge_triton(subject, agree, rng, splits, rows, D, dtype):
    import torch

    parts = torch.from_numpy(rng.standard_normal((splits, rows, D), np.float32))
    lse = torch.from_numpy(30 * rng.standard_normal((splits, rows), np.float32) + 200)
    right_merge(subject, agree, parts, lse, dtype)


def test_merge_triton__hard(subject, agree, rng):
    import torch

    for kind, make in HARD.items():
        parts = torch.from_numpy(make(rng, (9 * 4, 17)).reshape(9, 4, 17))
        for by in (-200, -3000, 0):
            lse = torch.from_numpy(shifted(rng, (9, 4), by))
            right_merge(subject, agree, parts, lse, "float32",
                        f", {kind.replace('_', ' ')} in parts, lse around {by}")
    for by in (300, -300):
        lse = (by * torch.arange(9.0))[:, None].repeat(1, 4)
        right_merge(subject, agree, torch.from_numpy(VALUES["unrounded"](rng, (9, 4, 17))), lse,
                    "float32", f", each lse {by} above the one before")


def test_merge_triton__addresses(subject):
    """lse of splits that are 2^28 rows apart; it is read before the parts are."""
    import torch

    parts, lse, out = (torch.zeros(1) for _ in range(3))
    in_64_bits(subject, "merge_triton", 1, None, (parts, lse, out, 2**28, 17), 1, "lse, i · rows",
               D=1, BS=32, BD=1, num_warps=1)


def with_more(x, sums):
    """What comes out when splits are added up to a power of two, each with an lse of 0 and a part
    of zeros."""
    more = (1 << (len(x) - 1).bit_length()) - len(x)
    m = np.maximum(sums.max(0), 0 if more else -np.inf)
    weights = np.exp2(sums - m)
    weights[weights < 1e-45] = 0                # as in fp32
    return (x * weights[..., None]).sum(0) / (weights.sum(0) + more * np.exp2(-m))[..., None]


def right_merge(subject, agree, parts, lse, dtype, kind=""):
    """Each row of out is its parts' mean by their sums, or the likely mistake is named."""
    import torch

    splits, rows, D = parts.shape
    lse[:, 0] = lse[0, 0] + torch.linspace(0, 1, splits)    # row 0: weights near each other
    if splits > 1:
        lse[-1, 1], parts[-1, 1] = -math.inf, 0             # row 1: a split without a key
    out = torch.full((rows, D), 7, dtype=getattr(torch, dtype))
    subject.launch("merge_triton", rows, args=(parts, lse, out, rows, splits), D=D,
                   BS=1 << (splits - 1).bit_length(), BD=1 << (D - 1).bit_length(), num_warps=1)
    x, sums = parts.double().numpy(), lse.double().numpy()
    with np.errstate(all="ignore"):
        natural = np.exp(sums - sums.max(0))[..., None]
        plain = np.exp2(sums - sums.max(0))[..., None]
        best = np.take_along_axis(x, sums.argmax(0)[None, :, None], 0)[0]
        want = merged(parts, lse)
        low = ("the lse of some part is subtracted, not the largest" if "above" in kind else
               "exp2 overflows, of lse itself or of the largest less lse: a part weighs exp2(lse - "
               "the largest)" if sums.max() > 128 else
               "the largest begins at 0, so that below -150 every weight is 0")
        for r in range(rows):
            one = np.s_[r:r + 1]
            agree(out[one], want[one], dtype, f"row {r} of {rows}, of {splits} parts{kind}",
                  lambda i: f"column {i[1]}", {what: answer[one] for what, answer in {
                  "only the first row is written": np.where(np.arange(rows)[:, None] == 0, want, 7),
                  low: np.full_like(best, np.nan),
                  "splits that do not exist have a weight, their lse is taken for 0": with_more(
                      x, sums),
                  "parts and lse are taken for (rows, splits, ...)": merged(
                      parts.reshape(rows, splits, D).transpose(0, 1),
                      lse.reshape(rows, splits).T),
                  "the parts are rounded to 16 bits": merged(parts.bfloat16(), lse),
                  "the parts are averaged, whatever their sums": x.mean(0),
                  "the parts are added up, whatever their sums": x.sum(0),
                  "the parts are weighed and divided by the number of splits":
                      (x * plain).sum(0) / len(x),
                  "only the first part is taken": x[0],
                  "the weights do not add up to 1: divide by their sum": (x * plain).sum(0),
                  "lse is in base 2, and exp takes it for natural":
                      (x * natural).sum(0) / natural.sum(0),
                  "the parts are weighed with lse, not with exp2 of it":
                      (x * sums[..., None]).sum(0) / sums[..., None].sum(0),
                  "only the part of the largest sum is taken": best}.items()})


def test_merge_triton__work(subject, reference, rng):
    """Every part and its lse are read once, the result is written once."""
    import torch

    splits, rows, D = 8, 4, 64
    parts = torch.from_numpy(rng.standard_normal((splits, rows, D), np.float32))
    lse = torch.from_numpy(rng.standard_normal((splits, rows), np.float32))
    out = torch.zeros(rows, D)
    launched = subject.launch("merge_triton", rows, args=(parts, lse, out, rows, splits), D=D,
                              BS=splits, BD=D, num_warps=1)
    most = parts.nbytes + 32 * lse.nbytes       # where each lane of a warp asks for the lse itself
    got, written = launched.bytes("load"), launched.bytes("store")
    assert got <= most, (f"merge_triton loads {got:,} bytes, the parts have {parts.nbytes:,}: read "
                         f"every part once, and keep it for both sums")
    assert written <= out.nbytes, (f"merge_triton stores {written:,} bytes for a result of "
                                   f"{out.nbytes:,}: add up in registers, and store the sum")
    own = reference.launch("merge_triton", rows, args=(parts, lse, out, rows, splits), D=D,
                           BS=splits, BD=D, num_warps=1)
    same_work("merge_triton", launched, own)


# ---- the course's own launchers


@pytest.mark.parametrize("counts, lens, H, G, D, S, dtype", [
    ([1, 20, 0, 3], [50, 33, 7, 40], 4, 2, 48, 16, "bfloat16"),
    ([1, 1], [600, 5], 2, 1, 32, 16, "float16"),            # 3 splits
    ([2, 5], [33, 20], 6, 2, 16, 7, "float32")])
def test_every_launcher(subject, agree, rng, counts, lens, H, G, D, S, dtype):
    args = batch(rng, counts, lens, H, G, D, S, dtype)
    for name in LAUNCHERS[:3 if dtype == "float32" else 2]:
        agree(getattr(subject, name)(*args, 0.3), oracle(*args, 0.3), dtype,
              f"{name}, {counts} new tokens of {lens}", at_token)


def test_any_strides(subject, agree, rng):
    """Queries from a larger tensor, heads before slots, one head after the other in a page."""
    q, k_pages, v_pages, *others = batch(rng, [1, 2], [20, 9], 4, 2, 32, 16, "float16")
    k_pages = k_pages.transpose(1, 2).contiguous().transpose(1, 2)
    v_pages = v_pages.transpose(0, 1).contiguous().transpose(0, 1)
    wide = q.repeat(1, 3, 1)[:, 4:8]
    args = (wide, k_pages, v_pages, *others)
    agree(subject.paged_attention(*args, 0.2), oracle(*args, 0.2), "float16", "any strides",
          at_token)


def test_write_kv_launchers(subject, rng):
    import torch

    k, v = (torch.from_numpy(rng.standard_normal((5, 6, 32), np.float32)) for _ in range(2))
    k, v = k[:, ::2], v[:, 3:]
    slots = torch.tensor([3, -1, 27, 0, 14], dtype=torch.int32)
    found = []
    for name in ("write_kv", "write_kv_torch"):
        pages = [torch.zeros(4, 7, 3, 32) for _ in range(2)]
        getattr(subject, name)(k, v, *pages, slots)
        found.append(pages)
        getattr(subject, name)(k[:0], v[:0], *pages, slots[:0])
    for mine, want in zip(*found, strict=True):
        assert torch.equal(mine, want) and torch.count_nonzero(mine) == 4 * 3 * 32


def test_nothing_to_do(subject, rng):
    nobody = batch(rng, [], [], 2, 1, 16, 16)
    idle = batch(rng, [0, 0], [5, 20], 2, 1, 16, 16)
    for args in (nobody, idle):
        for name in LAUNCHERS:
            assert getattr(subject, name)(*args, 1.0).shape == (0, 2, 16), name


def test_what_the_launchers_refuse(subject, rng):
    import torch

    q, k, v, tables, cu_q, lens = batch(rng, [1, 2], [20, 9], 4, 2, 32, 16)
    elsewhere = torch.full_like(tables, NOWHERE)
    for args, says in (
            ((q[0], k, v, tables, cu_q, lens), "q has shape (4, 32)"),
            ((q, k, v[:2], tables, cu_q, lens), "v_pages (2, 16, 2, 32)"),
            ((q[:, :3], k, v, tables, cu_q, lens), "3 query heads"),
            ((q, k, v, tables[:1], cu_q, lens), "block_tables (1, 4)"),
            ((q, k, v, tables.long(), cu_q, lens), "block_tables is torch.int64"),
            ((q.half(), k, v, tables, cu_q, lens), "q is torch.float16"),
            ((q.repeat(1, 1, 2)[..., ::2], k, v, tables, cu_q, lens), "q has strides"),
            ((q, k, v, tables, cu_q + 1, lens), "cu_q is [1, 2, 4]"),
            ((q, k, v, tables, cu_q, lens - 8), "sequence 1 has 1 tokens"),
            ((q, k, v, tables[:, :1], cu_q, lens), "sequence 0 has 20 tokens"),
            ((q, k, v, elsewhere, cu_q, lens), "the block table of sequence 0")):
        for name in LAUNCHERS:
            with pytest.raises(Raised) as refusal:
                getattr(subject, name)(*args, 1.0)
            assert says in refusal.value.text, (name, refusal.value.text)
    for H, G, D, says in ((4, 2, 24, "heads of width 24, expected a multiple of 16"),
                          (4, 2, 256, "heads of width 256"), (65, 1, 16, "at most 64 times")):
        heads = batch(rng, [1, 2], [20, 9], H, G, D, 16)
        for name in ("paged_attention", "paged_attention_cuda"):
            with pytest.raises(Raised) as refusal:
                getattr(subject, name)(*heads, 1.0)
            assert says in refusal.value.text, (name, refusal.value.text)
        out = subject.paged_attention_torch(*heads, 1.0)            # the plain formula takes them
        assert np.abs(out.numpy() - oracle(*heads, 1.0)).max() < 1e-5
    with pytest.raises(Raised) as refusal:
        subject.paged_attention(q, k, v, tables, cu_q, lens, -1.0)
    assert "scale is -1.0" in refusal.value.text
    new = torch.zeros(2, 2, 32)
    for slots, says in ((torch.tensor([0, 10**6]), "slots 0 to 1000000"),
                        (torch.tensor([0.0, 1.0]), "slots are torch.float32")):
        with pytest.raises(Raised) as refusal:
            subject.write_kv(new, new, k, v, slots)
        assert says in refusal.value.text


def test_oracle_agrees(subject, rng):
    args = batch(rng, [1, 3], [20, 9], 4, 2, 16, 7)
    got = subject.paged_attention_oracle(*(x.numpy() for x in args), 0.3)
    assert np.allclose(got, oracle(*args, 0.3), rtol=1e-12, atol=1e-12)


def test_count_splits(subject):
    """Enough programs where there are keys for them, and no merge where there are enough."""
    for programs, keys, want in ((8, 8192, 32), (8, 100_000, 33), (8, 300, 2), (8, 0, 1),
                                 (264, 8192, 1), (132, 8192, 2), (10_000, 8192, 1)):
        assert subject.count_splits(programs, keys, 132) == want


@pytest.mark.slow
def test_cuda_does_not_spill():
    from layer1_kernels.k14_paged_attention import KERNELS

    assert KERNELS.get("paged_cuda").resources.spill_stores == 0


@pytest.mark.slow
@pytest.mark.parametrize("T, R, D, S, itemsize", [
    (1, 1, 128, 16, 2), (1, 4, 64, 32, 2), (8, 7, 128, 16, 2), (512, 4, 128, 7, 2),
    (512, 4, 128, 16, 4), (1, 8, 64, 16, 4)])
def test_other_launches_compile_as_well(T, R, D, S, itemsize):
    """Groups, widths and pages of other sizes: Triton compiles again for each."""
    from lab import simulator
    from lab.author import hopper_report
    from layer1_kernels.k14_paged_attention import paged_triton, sizes_for

    names, kind = paged_triton.arg_names, {2: "*bf16", 4: "*fp32"}[itemsize]
    kinds = dict.fromkeys(names[:names.index("R")], "i32:16") | dict.fromkeys(
        ("block_tables", "cu_q", "lens"), "*i32") | dict.fromkeys(
        ("q", "k_pages", "v_pages", "out"), kind) | {
        "lse": "*fp32", "scale": "fp32", "T": "i32", "B": "i32", "splits": "i32"}
    sizes = sizes_for(T, 1, R, D, itemsize)
    warps, stages = sizes.pop("num_warps"), sizes.pop("num_stages")
    found = simulator.hopper(paged_triton, kinds, {"R": R, "S": S, "D": D} | sizes, warps, stages)
    assert not found.spills and not found.serialised and found.shared <= hopper_report.SHARED


@pytest.mark.gpu
@pytest.mark.parametrize("counts, lens", [
    ([1, 20, 0, 3], [50, 33, 7, 40]), ([1], [5000]), ([1] * 40, [100] * 40),
    ([500, 1], [2000, 130])])
def test_every_kernel_on_the_device(rng, counts, lens):
    import torch

    from layer1_kernels import paged_attention, paged_attention_cuda, paged_attention_torch

    for dtype, near in (("float32", 2e-5), ("float16", 2e-3), ("bfloat16", 1.6e-2)):
        q, k, v, tables, cu_q, lengths = batch(rng, counts, lens, 8, 2, 64, 16, dtype)
        args = [x.cuda() for x in (q, k, v, tables, cu_q, lengths)]
        want = paged_attention_torch(*(x.float() for x in args[:3]), *args[3:], 0.125)
        kernels = [paged_attention] + [paged_attention_cuda] * (dtype == "float32")
        for kernel in kernels:
            got = kernel(*args, 0.125).float()
            assert torch.allclose(got, want, rtol=near, atol=near), (kernel, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_write_kv_on_the_device(dtype):
    import torch

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
