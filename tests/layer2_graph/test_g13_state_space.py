"""Graders of g13.
Oracles go token by token in float64.
Outputs of the kernel start as 7."""

import numpy as np
import pytest
import torch

from lab.judge.mistakes import mistake, raises, same_report
from lab.judge.subject import Raised

# ---- the prediction and the choice


def test_predict_crossing(subject):
    """Counted: a token of a cache and a state, as arrays."""
    G = H = 6
    token, state = np.zeros((2, G, 16)), np.zeros((H, 16, 16))
    right, got = state.size / token.size, subject.predict_crossing()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_crossing: a prediction is a number, got {got!r}")
    why = {16: ("keys_alone", "A token leaves a key and a value."),
           48: ("one_head", "Every head has a state of its own, and keys and values too."),
           1536: ("state_alone", "That is the state. How many tokens' keys and values are as many "
                                 "numbers?")}
    name, sentence = why.get(got, ("other", "Count the state: H · N · P. Count a token: 2 · H · "
                                            "16."))
    assert got == right, mistake(name, f"predict_crossing: predicted {got:g}. {sentence}", sentence)


def test_choose_convolution(subject):
    got = subject.choose_convolution()
    why = {"token": "A convolution has one set of weights by distance. Here a distance of three "
                    "tokens decays by what those three chose.",
           "delta": "A token takes out what the state has under its key: how much is left of an "
                    "older one depends on the keys in between, and not on the distance.",
           "all": "Ask of each layer: is the weight of token s in the answer of token t a function "
                  "of t - s?"}
    assert got == "fixed", mistake(f"chose_{got}" if got in why else "other",
                                   f"choose_convolution: {got!r}. "
                                   f"{why.get(got, 'Expected fixed, token, delta or all.')}")


# ---- compose


def applied(pairs, h):
    """h after all pairs, one after another."""
    for a, b in pairs:
        h = a * h + b
    return h


@pytest.mark.parametrize("shape", [(1,), (7, 5), (0, 3)])
def test_compose(subject, agree, rng, shape):
    (a1, b1), (a2, b2) = pairs = rng.uniform(-1, 1, (2, 2, *shape))
    got = subject.compose(*(tuple(map(torch.from_numpy, pair)) for pair in pairs))
    assert isinstance(got, (tuple, list)) and len(got) == 2, mistake(
        "not_a_pair", "compose: expected a pair (a, b)")
    zero = applied(pairs, np.zeros(shape))
    agree(got[0], applied(pairs, np.ones(shape)) - zero, "float64", f"a of compose, shape {shape}",
          mistakes={"decay_added": ("decays are added: they multiply, and their logarithms add",
                                    a1 + a2)})
    agree(got[1], zero, "float64", f"b of compose, shape {shape}", mistakes={
        "operands_swapped": ("the later pair's b is decayed by the earlier a: what came earlier "
                             "decays by what comes later", b2 * a1 + b1),
        "both_decayed": ("the later pair decays its own b, too", a2 * (b1 + b2)),
        "never_decayed": ("nothing decays", b1 + b2)})


@pytest.mark.parametrize("T", [1, 2, 37, 64])
def test_compose__scan(subject, agree, rng, T):
    a, b = rng.uniform(0, 1, (T, 5)), rng.standard_normal((T, 5))
    want = np.stack([applied(zip(a[:t], b[:t], strict=True), np.zeros(5))
                     for t in range(1, T + 1)])
    agree(subject.scan(*map(torch.from_numpy, (a, b))), want, "float64",
          f"scan of {T} tokens, which calls compose", lambda i: f"token {i[0]}, column {i[1]}")


# ---- chunk_step


def arrays(rng, T, H, N, P, lowest=-1.0):
    """q, k, v, log_a, state in float64; log_a from `lowest` to 0."""
    return (*(rng.standard_normal((T, H, width)) for width in (N, N, P)),
            rng.uniform(lowest, 0, (T, H)), rng.standard_normal((H, N, P)))


def by_token(q, k, v, log_a, state, cut=lambda state: state):
    """(y, state), token by token. cut: what becomes of the state after each token"""
    y = np.zeros_like(v)
    for t in range(len(q)):
        state = cut(np.exp(log_a[t])[:, None, None] * state + np.einsum("hn,hp->hnp", k[t], v[t]))
        y[t] = np.einsum("hn,hnp->hp", q[t], state)
    return y, state


def as_matrix(q, k, v, log_a, state, wrong):
    """(y, state) from the T × T weights of a chunk, with a mistake."""
    T, _, N = q.shape
    A = np.cumsum(log_a, 0)                                         # (T, H)
    t, s = np.mgrid[:T, :T]
    gaps = A[:, None] - A[None] + (log_a[None] if wrong == "own_decay" else 0)      # (t, s, H)
    seen = {"future_seen": s >= 0, "not_itself": s < t}.get(wrong, s <= t)
    with np.errstate(over="ignore"):
        weights = np.where(seen[..., None], np.exp(gaps), wrong == "future_undecayed")
    weights = weights * np.einsum("thn,shn->tsh", q, k) / (N ** 0.5 if wrong == "scaled" else 1)
    left = np.exp({"from_the_start": A, "added_undecayed": 0 * A}.get(wrong, A[-1] - A))[..., None]
    share = 1 if wrong == "state_not_scaled" else np.exp(A[-1])[:, None, None]
    new = share * state + np.einsum("shn,shp->hnp", k * left, v)
    past = np.einsum("thn,hnp->thp", q, new if wrong == "reads_the_new" else state)
    past = past * (1 if wrong == "past_stays" else np.exp(A)[..., None])
    return np.einsum("tsh,shp->thp", weights, v) + past, new


CHUNK = {
    "own_decay": "what a token adds decays by its own a, too: only the tokens after it count",
    "future_seen": "a token sees those after it: weights with s > t are 0",
    "not_itself": "a token does not see itself: s = t belongs to the sum",
    "past_stays": "the answers read the old state undecayed: before token t reads it, it decays by "
                  "the tokens of the chunk up to t",
    "from_the_start": "what token s adds reaches the end of the chunk decayed by the tokens up to "
                      "s: it is those after s that count",
    "added_undecayed": "what token s adds reaches the end of the chunk as it is: it decays by the "
                       "tokens after s",
    "state_not_scaled": "the old state does not decay: it does by all tokens of the chunk",
    "future_undecayed": "the difference is 0 in the places of the future, and exp(0) is 1: a token "
                        "sees those after it. Put -inf there",
    "scaled": "products of queries and keys are divided by √N: there is no scale here",
    "reads_the_new": "the answers are read from the state after the chunk, which has its tokens in "
                     "already: what they add is counted twice",
}


def compare(agree, got, want, wrong, precision, what):
    """Both parts of an answer. wrong: {id: (sentence, (y, state))}"""
    assert isinstance(got, (tuple, list)) and len(got) == 2, mistake(
        "not_a_pair", f"{what}: expected (y, state)")
    for part, name, at in ((0, "y", lambda i: f"token {i[0]}, head {i[1]}, column {i[2]}"),
                           (1, "state", lambda i: f"head {i[0]}, row {i[1]}, column {i[2]}")):
        agree(got[part], want[part], precision, f"{name} of {what}", at,
              {key: (why, both[part]) for key, (why, both) in wrong.items()})


@pytest.mark.parametrize("Q, lowest", [(1, -1), (16, -1), (77, -1), (77, -20)])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_chunk_step(subject, agree, rng, Q, lowest, precision):
    inputs = arrays(rng, Q, 3, 8, 6, lowest)
    got = subject.chunk_step(*(torch.from_numpy(x).to(getattr(torch, precision)) for x in inputs))
    what = f"chunk_step, {Q} tokens, log_a from {lowest} to 0, {precision}"
    for part in got:
        assert torch.isfinite(part).all(), mistake(
            "overflows", f"{what}: numbers that are not finite. exp of a running sum is 0 where "
                         f"decay is strong, and exp of its negative infinite: subtract first, and "
                         f"put -inf in the places of the future before exp, not 0 after it")
    compare(agree, got, by_token(*inputs), {
        name: (why, as_matrix(*inputs, name)) for name, why in CHUNK.items()}, precision, what)


def test_chunk_step__gradient(subject, agree, rng):
    """With strong decay, against autograd through the recurrence."""
    inputs = [torch.from_numpy(x).requires_grad_() for x in arrays(rng, 77, 2, 4, 3, -20)]
    upstream = [torch.from_numpy(rng.standard_normal(shape)) for shape in ((77, 2, 3), (2, 4, 3))]
    with raises("detached", RuntimeError, "No gradient comes back: all of the answer must be "
                "computed by PyTorch, without no_grad, detach or writing over what it needs."):
        got = subject.grad("chunk_step", inputs, upstream)
    q, k, v, log_a, state = inputs
    rows = []
    for t in range(77):
        state = log_a[t].exp()[:, None, None] * state + k[t][:, :, None] * v[t][:, None]
        rows.append((q[t][:, None] @ state)[:, 0])
    want = torch.autograd.grad([torch.stack(rows), state], inputs, upstream)
    for name, mine, true in zip(("q", "k", "v", "log_a", "state"), got, want, strict=True):
        assert torch.isfinite(mine).all(), mistake(
            "gradient_overflows", f"chunk_step: the answers are right, but the gradient by {name} "
            f"is not finite. In the places of the future exp is infinite, and a mask after it "
            f"multiplies that by 0 on the way back: put -inf there before exp")
        agree(mine, true.numpy(), "float64", f"the gradient of chunk_step by {name}")


def test_chunk_step__without_a_loop(subject, rng):
    """As many launches for 4 tokens as for 32."""
    counts = []
    for Q in (4, 32):
        seen = subject.make("layer2_graph.launches:Launches")
        tensors = [torch.from_numpy(x) for x in arrays(rng, Q, 2, 4, 4)]
        with seen:
            subject.chunk_step(*tensors)
        counts.append(len(seen.names))
    assert counts[0] == counts[1], mistake(
        "loop", f"chunk_step: {counts[0]} operations for 4 tokens and {counts[1]} for 32: there is "
                f"a loop over tokens, where products of matrices take all at once")


# ---- ssd_triton


def run_kernel(side, inputs, lens, R, seats, Q, dtype="float32"):
    """(y, states, launch) of sequences of these lengths, whose states lie at `seats` of R."""
    q, k, v, log_a, states = inputs
    tensors = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in (q, k, v)]
    y = torch.full(v.shape, 7.0, dtype=tensors[0].dtype)
    states = torch.from_numpy(states).float()
    cu_q = torch.tensor([0, *np.cumsum(lens)], dtype=torch.int32)
    launch = side.launch("ssd_triton", (len(lens), q.shape[1]), args=(
        *tensors, torch.from_numpy(log_a).float(), y, states, cu_q, torch.tensor(seats),
        q.shape[1]), N=q.shape[2], P=v.shape[2], Q=Q, num_warps=1)
    return y, states, launch


def packed(rng, lens, H, R, lowest=-1.0, dtype="float32"):
    """q, k, v, log_a of all sequences, and R states; q, k, v hold in the dtype."""
    q, k, v, log_a, _ = arrays(rng, sum(lens), H, 16, 16, lowest)
    short = (torch.from_numpy(x).to(getattr(torch, dtype)).double().numpy() for x in (q, k, v))
    return *short, log_a.astype(np.float32).astype(float), rng.standard_normal((R, H, 16, 16))


def tf32(x):
    """float32 with 10 bits of fraction."""
    return (x.astype(np.float32).view(np.uint32) & 0xffffe000).view(np.float32).astype(float)


def each(inputs, lens, seats, one):
    """(y, states) of a function of one sequence."""
    *rows, states = inputs
    states = states.copy()
    ends = np.cumsum(lens)
    parts = []
    for seat, begin, end in zip(seats, ends - lens, ends, strict=True):
        y, states[seat] = one(*(x[begin:end] for x in rows), states[seat])
        parts.append(y)
    return np.concatenate(parts), states


def in_chunks(Q, wrong):
    """As by_token, with a mistake of chunks of Q."""
    def one(q, k, v, log_a, state):
        parts = []
        first = state
        for begin in range(0, len(q), Q):
            part = [x[begin:begin + Q] for x in (q, k, v, log_a)]
            y, state = as_matrix(*part, first if wrong == "first_state" else state, wrong)
            parts.append(y)
            if wrong == "padded_state" and len(part[0]) < Q:
                state = 0 * state
        return np.concatenate(parts), state
    return one


KERNEL = {
    "padded_state": "the places after the last token decay the state: load their log_a as 0, and "
                    "the state is that after the last token",
    "first_state": "each chunk begins with the state from before the step: it goes on with that "
                   "after the chunk before",
    "no_past": "nothing is read out of the state: each chunk sees itself alone",
    "undecayed": "nothing decays",
    "not_stored": "states stays as it was: the last state must be stored where it was loaded",
    "head_by_head": "log_a is read as if all tokens of a head stood together: it is (T, H), so "
                    "token t of head h is at t · H + h",
}
ALSO = ("past_stays", "state_not_scaled", "added_undecayed", "future_undecayed", "reads_the_new")


def one_head_after_another(log_a, lens):
    """log_a (T, H) as it is read at h · end + t."""
    result = np.empty_like(log_a)
    ends = np.cumsum(lens)
    for begin, end in zip(ends - lens, ends, strict=True):
        for h in range(log_a.shape[1]):
            result[begin:end, h] = log_a.ravel()[h * end + begin:h * end + end]
    return result


@pytest.mark.parametrize("lens, Q, lowest", [([37, 1], 16, -1), ([5, 33], 32, -1),
                                             ([17, 32], 32, -20)])
def test_ssd_triton(subject, agree, rng, lens, Q, lowest):
    R, seats = 4, [2, 0]
    inputs = packed(rng, lens, 2, R, lowest)
    with same_report("from_token_0", "Two sequences wrote one token. Sequence b begins at token "
                     "cu_q[b]: its chunks lie between begin and end.", kind="race", array="y"):
        y, states, _ = run_kernel(subject, inputs, lens, R, seats, Q)
    right, ends = want = each(inputs, lens, seats, by_token)
    wrong = {name: each(inputs, lens, seats, in_chunks(Q, name))
             for name in ("padded_state", "first_state", *ALSO)}
    q, k, v, log_a, begin = inputs
    wrong["no_past"] = each((q, k, v, log_a, 0 * begin), lens, seats, lambda q, k, v, log_a, state:
                            (in_chunks(Q, "first_state")(q, k, v, log_a, state)[0], state))
    wrong["no_past"] = wrong["no_past"][0], ends
    wrong["undecayed"] = each((q, k, v, 0 * log_a, begin), lens, seats, by_token)
    rough = each((tf32(q), tf32(k), tf32(v), log_a, begin), lens, seats, by_token)
    wrong["not_stored"] = right, begin
    wrong["head_by_head"] = each((q, k, v, one_head_after_another(log_a, lens), begin), lens, seats,
                                 by_token)
    what = f"ssd_triton, sequences of {lens}, chunks of {Q}, log_a from {lowest} to 0"
    assert lowest == -1 or torch.isfinite(y).all() and torch.isfinite(states).all(), mistake(
        "overflows", f"{what}: numbers that are not finite. exp(-A) is infinite where decay is "
                     f"strong, and exp(A) is 0: subtract running sums first, then take exp")
    assert torch.isfinite(states).all(), mistake(
        "no_number", f"{what}: a state is not finite. With log_a = -inf after the last token, "
                     f"running sums are -inf, and their differences are no numbers")
    known = {name: (why, wrong[name]) for name, why in KERNEL.items()}
    known |= {name: (CHUNK[name], wrong[name]) for name in ALSO}
    known["tf32"] = ("a product is in TF32, with 10 bits of fraction: input_precision=\"ieee\" in "
                     "every tl.dot keeps fp32", rough)
    for part, name, at in ((0, "y", lambda i: f"token {i[0]}, head {i[1]}, column {i[2]}"),
                           (1, "states", lambda i: f"row {i[0]}, head {i[1]}, place {i[2:]}")):
        agree((y, states)[part], want[part], "float32", f"{name} of {what}", at,
              {key: (why, both[part]) for key, (why, both) in known.items()}, unwritten=7)


def test_ssd_triton__bfloat16(subject, agree, rng):
    """160 tokens without decay: what is added is small beside the state."""
    q, k, v, log_a, states = packed(rng, [160], 1, 1, dtype="bfloat16")
    k, v, log_a = abs(k), abs(v), 0 * log_a
    y, got, _ = run_kernel(subject, (q, k, v, log_a, states), [160], 1, [0], 16, "bfloat16")
    right, end = by_token(q, k, v, log_a, states[0])
    short = states[0]
    for begin in range(0, 160, 16):
        short = by_token(*(x[begin:begin + 16] for x in (q, k, v, log_a)), short)[1]
        short = torch.from_numpy(short).bfloat16().double().numpy()
    agree(got, end[None], "float32", "states of ssd_triton after 160 tokens in bfloat16", mistakes={
        "half_state": ("the state is rounded to 16 bits after each chunk: small additions get lost "
                       "in a large sum, so keep it in fp32", short[None])})
    agree(y, right, "bfloat16", "y of ssd_triton in bfloat16", unwritten=7)


# ---- decode_states


@pytest.mark.parametrize("B, R", [(3, 7), (1, 1), (0, 2)])
def test_decode_states(subject, agree, rng, B, R):
    q, k, v, log_a, _ = (x.astype(np.float32) for x in arrays(rng, B, 2, 8, 6))
    states = rng.standard_normal((R, 2, 8, 6)).astype(np.float32)
    seats = rng.permutation(R)[:B]
    tensors = [torch.from_numpy(x.copy()) for x in (q, k, v, log_a, states, seats)]
    y = subject.decode_states(*tensors)
    a = np.exp(log_a.astype(float))[..., None, None]
    added = np.einsum("bhn,bhp->bhnp", k, v)
    old = states[seats].astype(float)
    want = states.astype(float)
    want[seats] = a * old + added
    undecayed, early, logarithm = (states.astype(float) for _ in range(3))
    undecayed[seats] += added
    early[seats] = a * (old + added)
    logarithm[seats] = np.log(a) * old + added
    what = f"decode_states, {B} sequences of {R} states"

    def place(i):
        row = "that of no sequence" if i[0] not in seats else f"sequence {list(seats).index(i[0])}"
        return f"row {i[0]} ({row}), head {i[1]}, place {i[2:]}"

    others = [r for r in range(R) if r not in seats]
    assert (tensors[4].numpy()[others] == states[others]).all(), mistake(
        "all_rows", f"{what}: a state that belongs to no sequence of the step has changed")
    agree(tensors[4], want, "float32", f"states after {what}", place, {
        "copy_of_state": ("states stays as it was: states[seats] is a copy, which must be written "
                          "back", states),
        "no_decay": ("the old state does not decay", undecayed),
        "logarithm_as_share": ("the old state is multiplied by log_a itself: the share that stays "
                               "is its exponential", logarithm),
        "decays_the_new": ("what the new token adds decays at once", early)} if B else {})
    read = np.einsum("bhn,bhnp->bhp", q, want[seats])
    agree(y, read, "float32", f"y of {what}", lambda i: f"sequence {i[0]}, head {i[1]}, column "
          f"{i[2]}", {"output_before_update": (
              "the answers are read before the new token is in: a token sees itself",
              np.einsum("bhn,bhnp->bhp", q, old)),
              "output_half_way": ("the answers are read from the decayed state, before the new "
                                  "token is in", np.einsum("bhn,bhnp->bhp", q, a * old))})


# ---- delta_step


def delta(state, k, v, log_a, beta, wrong=None):
    """Head by head."""
    new = np.zeros_like(state)
    for h, S in enumerate(state):
        a = np.exp(log_a[h])
        target = 0 if wrong == "adds" else S.T @ k[h] * (1 if wrong == "reads_undecayed" else a)
        share = 1 if wrong == "all_of_it" else beta[h]
        missing = v[h] * share - target if wrong == "takes_all_out" else share * (v[h] - target)
        new[h] = (1 if wrong == "never_decays" else a) * S + np.outer(k[h], missing)
    return new


DELTA = {
    "adds": "v is added, whatever the state has under k already: first take that out",
    "reads_undecayed": "what k finds is read before the state decays",
    "all_of_it": "beta is left out: it says how much of the way the value under k moves",
    "takes_all_out": "all that k finds is taken out, and only beta · v put in",
    "never_decays": "the state does not decay",
}


@pytest.mark.parametrize("H, N, P", [(3, 8, 6), (1, 1, 1)])
def test_delta_step(subject, agree, rng, H, N, P):
    _, k, v, log_a, state = arrays(rng, 1, H, N, P)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    case = state, k[0], v[0], log_a[0], rng.uniform(0.2, 0.8, H)
    got = subject.delta_step(*map(torch.from_numpy, case))
    agree(got, delta(*case), "float64", f"delta_step, {H} heads, state {N} × {P}",
          lambda i: f"head {i[0]}, row {i[1]}, column {i[2]}",
          {name: (why, delta(*case, name)) for name, why in DELTA.items()})


# ---- what is given


@pytest.mark.parametrize("T, Q", [(1, 16), (77, 32), (77, 100), (64, 16)])
def test_chunked_is_the_recurrence(subject, agree, rng, T, Q):
    q, k, v, log_a, state = inputs = arrays(rng, T, 3, 8, 6)
    tensors = [torch.from_numpy(x) for x in inputs]
    for got in (subject.chunked(*tensors, Q), subject.recurrence_oracle(*tensors)):
        compare(agree, got, by_token(*inputs), {}, "float64", f"{T} tokens in chunks of {Q}")
    got = subject.chunked(*tensors[:4], None, Q)
    compare(agree, got, by_token(q, k, v, log_a, 0 * state), {}, "float64", "from no state")


def test_convolution_is_the_scan(subject, agree, rng):
    a, b = torch.from_numpy(rng.uniform(0, 1, 5)), torch.from_numpy(rng.standard_normal((77, 5)))
    agree(subject.as_convolution(a, b), subject.scan(a.expand(77, 5).contiguous(), b).numpy(),
          "float64", "as_convolution")
    with pytest.raises(Raised) as refusal:
        subject.as_convolution(a.expand(77, 5).contiguous(), b)
    assert "a has shape (77, 5), expected (5,); a decay for each token is no convolution" in str(
        refusal.value.text)


def test_delta_chunk_is_delta_step(subject, agree, rng):
    q, k, v, log_a, state = arrays(rng, 33, 3, 8, 6)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    beta = rng.uniform(0, 1, (33, 3))
    want, S = [], state
    for t in range(33):
        S = delta(S, k[t], v[t], log_a[t], beta[t])
        want.append(np.einsum("hn,hnp->hp", q[t], S))
    got = subject.delta_chunk(*map(torch.from_numpy, (q, k, v, log_a, beta, state)))
    compare(agree, got, (np.stack(want), S), {}, "float64", "delta_chunk")


def test_ssd_torch_packs(subject, agree, rng):
    lens, seats = [5, 0, 33], [3, 1, 0]
    inputs = packed(rng, lens, 2, 4)
    *tensors, states = map(torch.tensor, inputs)
    cu_q = torch.tensor([0, *np.cumsum(lens)], dtype=torch.int32)
    y = subject.ssd_torch(*tensors, cu_q, states, torch.tensor(seats), 16)
    want = each(inputs, lens, seats, by_token)
    agree(y, want[0], "float64", "y of ssd_torch")
    agree(states, want[1], "float64", "states of ssd_torch")


def test_what_is_refused(subject, rng):
    q, k, v, log_a, state = (torch.from_numpy(x).float() for x in arrays(rng, 9, 2, 16, 16))
    high, none, unknown = (log_a.clone() for _ in range(3))
    high[4, 1], none[3, 0], unknown[2, 1] = 0.3, -torch.inf, torch.nan
    cu_q, seats = torch.tensor([0, 9], dtype=torch.int32), torch.tensor([0])
    for call, says in (
            (lambda: subject.chunked(q, k, v, high), "log_a has 0.3 at token 4, expected a finite "
                                                     "number, at most 0"),
            (lambda: subject.chunked(q, k, v, none), "log_a has -inf at token 3, expected a "),
            (lambda: subject.ssd(q, k, v, unknown, cu_q, state[None], seats),
             "log_a has nan at token 2, expected a "),
            (lambda: subject.chunked(q, k[:, :1], v, log_a), "k (9, 1, 16)"),
            (lambda: subject.ssd(q, k, v, log_a, cu_q, state[None, :, :8], seats),
             "state (2, 8, 16), expected (H, N, P) = (2, 16, 16)"),
            (lambda: subject.ssd(q, k, v, log_a, cu_q, state[None], seats, 24),
             "Q is 24, expected a power of two from 16 on")):
        with pytest.raises(Raised) as refusal:
            call()
        assert says in refusal.value.text, refusal.value.text


@pytest.mark.gpu
@pytest.mark.parametrize("N, P", [(16, 16), (128, 64)])
@pytest.mark.parametrize("dtype, near", [("float32", 1e-4), ("bfloat16", 2e-2)])
def test_the_kernel_on_the_device(N, P, dtype, near):
    from layer2_graph import ssd, ssd_torch

    lens = [1, 127, 0, 129, 1000]
    T, H = sum(lens), 4
    q, k, v = (torch.randn(T, H, width, device="cuda").to(getattr(torch, dtype)) / width ** 0.5
               for width in (N, N, P))
    log_a = -torch.rand(T, H, device="cuda")
    states = torch.randn(9, H, N, P, device="cuda")
    cu_q = torch.tensor([0, *np.cumsum(lens)], dtype=torch.int32, device="cuda")
    seats = torch.tensor([3, 8, 1, 0, 5], device="cuda")
    want = states.double()
    right = ssd_torch(q.double(), k.double(), v.double(), log_a.double(), cu_q, want, seats)
    got = ssd(q, k, v, log_a, cu_q, states, seats)
    for mine, true in ((got, right), (states, want)):
        assert torch.allclose(mine.double(), true, rtol=near, atol=near * float(true.abs().max()))
