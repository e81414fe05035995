"""Graders of g11.
Oracles are loops in float64; latent attention's makes every key and value."""

import numpy as np
import pytest
import torch

from lab.judge.mistakes import mistake, raises

# ---- the predictions


def check_guess(name, guess, right, why):
    """why: {a wrong guess: (id, sentence)}"""
    assert isinstance(guess, (int, float)), mistake(
        "no_number", f"{name}: a prediction is a number, got {guess!r}")
    near = [row for wrong, row in why.items() if abs(guess - wrong) < 1e-3 * wrong]
    label, sentence = near[0] if near else ("other", "Count the numbers of one token, one array "
                                                     "after the other.")
    assert abs(guess - right) <= 0.01 * right, mistake(
        label, f"{name}: predicted {guess:g}. {sentence}", sentence)


def test_predict_equal_heads(subject):
    head = np.zeros((2, 16)).size
    latent = np.zeros(32).size + np.zeros(16).size
    check_guess("predict_equal_heads", subject.predict_equal_heads(), latent / head, {
        3: ("keys_alone", "A head keeps a value as well as a key."),
        1: ("rotated_part_free", "The rotated part of the key is kept, too; or you rounded: "
                                 "the answer need not be whole."),
        2: ("keys_and_latent_alone", "A head keeps a value as well as a key, and the rotated part "
                                     "is kept beside the latent.")})


def test_predict_speedup_of_gqa(subject):
    many, few = (np.zeros((2, 100, G, 16), np.float16).nbytes for G in (6, 2))
    check_guess("predict_speedup_of_gqa", subject.predict_speedup_of_gqa(), many / few, {
        1 / 3: ("share_of_bytes", "That is the share of bytes; the speed-up is its inverse."),
        1: ("work_not_bytes", "The products are as many as before, and they are not what it waits "
                              "for."),
        6: ("one_head_left", "That is with one key and value head for all. Here there are two."),
        9: ("squared", "Keys and values are each a third. Their sum is a third, not a ninth.")})


# ---- cache_numbers


def counted(kind, H, G, D, R, E, N, W, A, wrong=None):
    """Token by token: what is still visible to the next one is kept."""
    heads = {"mha": H, "mqa": 1, "gqa": H if wrong == "query_heads" else G,
             "window": H if wrong == "window_heads" else G, "mla": 0}[kind]
    if wrong == "full_window" and kind == "window":
        N = max(N, W + A)
    if wrong == "rotated_by_head":
        E *= H
    total = 0
    for n in range(N):
        sink = n < A and wrong != "sinks_dropped"
        inside = N - 1 - n < W or wrong == "window_grows"
        if kind != "window" or sink or inside:
            each = np.zeros((1 if wrong == "keys_only" else 2, heads, D)).size
            each += (2 if wrong == "latent_twice" else 1) * (R + E) * (kind == "mla")
            total += each
    return total


NUMBERS = {
    "keys_only": "values are kept as well as keys",
    "query_heads": "a group of query heads shares one key head: G of them are kept, not H",
    "latent_twice": "keys and values come from one latent: it is kept once",
    "window_grows": "beyond the window nothing is kept but the sinks",
    "window_heads": "the window keeps the keys and values of G heads, not of H",
    "full_window": "a context that is shorter than W + A has not filled the window yet",
    "rotated_by_head": "the rotated part is shared by all heads: E numbers, not H · E",
    "sinks_dropped": "the sinks stay, however long the context grows",
}


@pytest.mark.parametrize("N", [1, 16, 20, 37])
@pytest.mark.parametrize("kind", ["mha", "mqa", "gqa", "mla", "window"])
def test_cache_numbers(subject, rng, kind, N):
    more = int(rng.integers(1, 9))
    letters = {"H": 6, "G": 3, "D": 4 + more, "R": 20 + more, "E": 8, "N": N, "W": 16, "A": 4}
    got = subject.cache_numbers(kind, **letters)
    right = counted(kind, **letters)
    near = [name for name in NUMBERS if got == counted(kind, **letters, wrong=name) != right]
    why = NUMBERS[near[0]] if near else "count the numbers of one token, then the tokens"
    assert got == right, mistake(
        near[0] if near else "", f"cache_numbers({kind!r}, " + ", ".join(
            f"{name}={value}" for name, value in letters.items())
        + f"): got {got!r}, expected {right}: {why}", why)


# ---- pool_heads


def pooled(weight, H, G, wrong=None):
    D = len(weight) // H
    share = H // G
    rows = []
    for g in range(G):
        heads = [h for h in range(H) if h // share == g]
        if wrong == "strided_groups":
            heads = [h for h in range(H) if h % G == g]
        for d in range(D):
            places = [h * D + d for h in heads[:1 if wrong == "first_head" else None]]
            if wrong == "neighbour_rows":
                places = [(g * D + d) * share + i for i in range(share)]
            rows.append(weight[places].sum(0) / (1 if wrong == "sum_of_heads" else len(places)))
    return np.array(rows)


POOLED = {
    "strided_groups": "heads that stand G apart are averaged: group 0 is the first H / G "
                      "neighbours, whose queries share a key",
    "sum_of_heads": "heads are added and not averaged: keys and values get H / G times as long",
    "first_head": "the first head of each group is taken, and the others are thrown away",
    "neighbour_rows": "neighbouring rows are averaged: they are different numbers of one head; the "
                      "same row of different heads belongs together",
}


@pytest.mark.parametrize("G", [1, 2, 3, 6])
def test_pool_heads(subject, agree, rng, G):
    weight = rng.standard_normal((6 * 4, 10))
    got = subject.pool_heads(torch.from_numpy(weight).float(), 6, G)
    agree(got, pooled(weight, 6, G), "float32", f"pool_heads of 6 heads of 4 rows, {G} groups",
          lambda i: f"group {i[0] // 4}, row {i[0] % 4}, column {i[1]}",
          {name: (why, pooled(weight, 6, G, name)) for name, why in POOLED.items()})


# ---- latent_parts


def parts(y, w_q, w_kv, norm, H, D, R, E, eps, wrong=None):
    """{name: array}"""
    rows = y @ w_q.T
    q = rows.reshape(-1, H, D + E)
    plain, turned = q[..., :D], q[..., D:]
    if wrong == "rotated_first":
        plain, turned = q[..., E:], q[..., :E]
    if wrong == "heads_apart":
        plain = rows[:, :H * D].reshape(-1, H, D)
        turned = rows[:, H * D:].reshape(-1, H, E)
    row = y @ w_kv.T
    c, k_turned = row[:, :R], row[:, R:]
    if wrong == "latent_last":
        c, k_turned = row[:, E:], row[:, :E]
    length = np.sqrt((c * c).mean(-1, keepdims=True) + eps)
    if wrong == "norm_of_all":
        length = np.sqrt((row * row).mean(-1, keepdims=True) + eps)
        k_turned = k_turned / length
    return {"q": plain, "turned": turned, "c": {
        "no_norm": c, "no_weight": c / length}.get(wrong, c / length * norm),
            "k_turned": k_turned}


PARTS = {
    "rotated_first": "the first numbers of each head's row are taken for the rotated part: a head "
                     "has its D numbers first, then its E to be rotated",
    "heads_apart": "the row is cut into H · D and H · E numbers before the heads are named: every "
                   "head has its own D + E rows, one after the other",
    "latent_last": "the rotated part of the key is cut off at the beginning: the latent's R rows "
                   "come first",
    "norm_of_all": "the norm goes over the R + E numbers together: the latent is normalised alone, "
                   "and the rotated part not at all",
    "no_weight": "the latent is normalised, but not multiplied by kv_norm",
    "no_norm": "the latent is left as the product gives it: ops.rmsnorm with kv_norm is missing",
}


@pytest.mark.parametrize("T, eps", [(7, 1e-5), (1, 1e-5), (127, 0.5)])
def test_latent_parts(subject, agree, rng, T, eps):
    H, C, D, E, R = 3, 10, 12, 8, 20
    y, w_q, w_kv = (rng.standard_normal(shape) for shape in (
        (T, C), (H * (D + E), C), (R + E, C)))
    norm = rng.uniform(0.5, 2, R)
    tensors = [torch.from_numpy(x).float() for x in (w_q, w_kv, norm)]
    layer = subject.make("types:SimpleNamespace", **dict(zip(("q", "kv", "kv_norm"), tensors,
                                                             strict=True)))
    m = subject.make("types:SimpleNamespace", H=H, D=D, C=C, latent=R, rotated=E, eps=eps)
    got = subject.latent_parts(layer, torch.from_numpy(y).float(), m, subject.kernels("torch"))
    assert isinstance(got, (tuple, list)) and len(got) == 4, mistake(
        "not_four", "latent_parts: expected (q, turned, c, k_turned)")
    sizes = (w_q, w_kv, norm, H, D, R, E, eps)
    wrong = {name: parts(y, *sizes, wrong=name) for name in PARTS}
    for value, (name, want) in zip(got, parts(y, *sizes).items(), strict=True):
        agree(value, want, "float32", f"{name} of latent_parts, {T} tokens", lambda i: (
            f"token {i[0]}, head {i[1]}, number {i[2]}" if len(i) == 3 else
            f"token {i[0]}, number {i[1]}"),
            {label: (why, wrong[label][name]) for label, why in PARTS.items()})


# ---- decode_latent


def attended(q, turned, pages, tables, cu_q, lens, w_k, w_v, wrong=None):
    """Keys and values of every head are made, token by token: (T, H, D)."""
    _, H, D = q.shape
    R, E = w_k.shape[2], turned.shape[2]
    S = pages.shape[1]
    scale = {"scale_of_latent": R + E, "scale_of_head": D}.get(wrong, D + E) ** -0.5
    out = np.zeros_like(q)
    for b, N in enumerate(lens):
        rows = np.array([pages[tables[b, n // S], n % S, 0] for n in range(N)])     # (N, R + E)
        values = rows[:, E:] if wrong == "values_of_the_end" else rows[:, :R]
        for t in range(cu_q[b], cu_q[b + 1]):
            visible = N if wrong == "not_causal" else N - (cu_q[b + 1] - 1 - t)
            for h in range(H):
                query = np.concatenate((q[t, h] @ (w_v if wrong == "absorbs_w_v" else w_k)[h],
                                        turned[t, h]))
                if wrong == "parts_swapped":
                    query = np.roll(query, E)
                scores = rows[:visible] @ query * scale
                p = np.exp(scores - scores.max())
                mixed = p / p.sum() @ values[:visible]
                out[t, h] = (w_k if wrong == "back_by_w_k" else w_v)[h] @ mixed
    return out


ATTENDED = {
    "scale_of_latent": "scores are divided by √(R + E): they are those of keys of D + E numbers, "
                       "whatever is kept in their place",
    "scale_of_head": "scores are divided by √D: the rotated part belongs to the key, so E is "
                     "missing under the root",
    "values_of_the_end": "the last R numbers of the mixture are taken: a row begins with the "
                         "latent, and the rotated part is its end",
    "parts_swapped": "the rotated part of the query stands before the latent one: pages have the "
                     "latent first",
    "absorbs_w_v": "queries are multiplied by w_v: keys are w_k times a latent",
    "back_by_w_k": "the mixtures are multiplied by w_k: values are w_v times a latent",
    "not_causal": "a query sees the tokens after it",
}


def pages_of(rng, lens, news, H, D, R, E, S=16):
    """Arguments of decode_latent, as arrays.
    Pages are shuffled; what is unused is wild."""
    count = [-(-n // S) for n in lens]
    order = rng.permutation(sum(count) + 2)
    tables = np.full((len(lens), max(count)), order[-1])
    pages = np.full((sum(count) + 2, S, 1, R + E), 1e4)
    for b, n in enumerate(count):
        tables[b, :n] = order[sum(count[:b]):][:n]
        for i in range(lens[b]):
            pages[tables[b, i // S], i % S, 0] = rng.standard_normal(R + E)
    T = sum(news)
    return [rng.standard_normal((T, H, D)), rng.standard_normal((T, H, E)), pages,
            tables, np.cumsum([0, *news]), np.array(lens),
            rng.standard_normal((H, D, R)) / R**0.5, rng.standard_normal((H, D, R)) / R**0.5]


@pytest.mark.parametrize("lens, news, sizes", [
    ((1, 17, 33), (1, 1, 1), (6, 16, 32, 16)),          # H, D, R, E
    ((37, 5), (9, 5), (2, 16, 16, 8)),                  # D = R: a wrong side of w_k shows no shape
    ((16,), (0,), (2, 12, 20, 4)),
])
def test_decode_latent(subject, agree, rng, lens, news, sizes):
    arrays = pages_of(rng, lens, news, *sizes)
    tensors = [torch.from_numpy(a).to(torch.int32 if a.dtype == int else torch.float32)
               for a in arrays]
    attention = subject.make("lab.judge.mocks:Watched", subject.kernels("torch").paged_attention)
    ops = subject.make("types:SimpleNamespace", paged_attention=attention)
    R, width = sizes[2], sizes[2] + sizes[3]
    with raises("whole_row", RuntimeError, f"If it is the product with w_v: paged_attention "
                f"returns R + E = {width} numbers a head, and w_v takes R = {R}. Which part is "
                f"the latent?"):
        got = subject.decode_latent(*tensors, ops)
    what = f"decode_latent, {', '.join(map(str, news))} new tokens of {', '.join(map(str, lens))}"
    agree(got, attended(*arrays), "float32", what,
          lambda i: f"token {i[0]}, head {i[1]}, number {i[2]}",
          {name: (why, attended(*arrays, wrong=name)) for name, why in ATTENDED.items()})
    calls = len(attention.calls)
    assert calls > 0 or not sum(news), mistake(
        "expands", f"{what}: paged_attention was not called: keys and values of {sizes[0]} heads "
                   f"were made, {2 * sizes[0] * sizes[1]} numbers a token, where the pages hold "
                   f"{sizes[2] + sizes[3]}")
    assert calls <= 1, mistake(
        "launch_by_launch", f"{what}: {calls} launches of paged_attention, expected 1: it takes "
                            f"all sequences and all heads")


# ---- window_mask


def shown(T, N, W, A, wrong=None):
    result = np.zeros((T, N), bool)
    for t in range(T):
        n = t if wrong == "top_left" else N - T + t
        for i in range(N):
            inside = n - i < W + (wrong == "one_too_many")
            sink = i < A and wrong != "no_sinks"
            before = i <= n or wrong == "looks_ahead" or wrong == "sinks_ahead" and sink
            result[t, i] = before and (inside or sink)
    return result


SHOWN = {
    "one_too_many": "a query sees W + 1 keys: W counts the token itself",
    "sinks_ahead": "sinks are seen by tokens before them",
    "looks_ahead": "a query sees the tokens after it",
    "top_left": "the queries are taken for the first T tokens: they are the last T of N",
    "no_sinks": "the first A tokens are not seen from beyond the window",
}


@pytest.mark.parametrize("T, N, W, A", [(9, 9, 3, 4), (1, 37, 16, 4), (5, 12, 1, 0), (6, 6, 20, 2),
                                        (4, 7, 2, 9), (3, 127, 16, 4)])
def test_window_mask(subject, agree, T, N, W, A):
    got = subject.window_mask(T, N, W, A)
    agree(got, shown(T, N, W, A), "exact", f"window_mask(T={T}, N={N}, W={W}, A={A})",
          lambda i: f"query {N - T + i[0]}, key {i[1]}",
          {name: (why, shown(T, N, W, A, name)) for name, why in SHOWN.items()})
    assert got.dtype == torch.bool, mistake(
        "not_bool", f"window_mask: the result is {got.dtype}, expected torch.bool")
