"""Graders of s24.
Ranks have tokens of their own, and each E / W of the experts."""

import numpy as np
import pytest
import torch

from lab.judge.mistakes import mistake, raises
from tests.layer3_system.reasons import because

DRIVER = "layer3_system.testing.expert_ranks"
E, C, K = 12, 24, 2             # experts, model width, experts of a token
TOKENS = [5, 0, 17, 9]          # of ranks 0 to 3
BYTES = 8                       # of a number, float64 and int64
EVERY_CALL = "all ranks must make every call, one without rows too"


# ---- predictions


def test_predict_dispatch_rows(subject):
    W, T = 8, 4096
    rng = np.random.default_rng(0)
    draws = rng.random((200, T // 16, 64)).argpartition(2, -1)[..., :2]     # a 16th of the tokens
    want = 16 * (draws // 8 != 3).sum((1, 2)).mean()                        # about 7168
    got = subject.predict_dispatch_rows()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_dispatch_rows: expected a number, got {got!r:.50}")
    known = {2 * T: ("all_leave", "one row in eight is for an expert of the rank's own"),
             T * 7 / 8: ("one_expert", "each token goes to two experts"),
             2 * T * 63 / 64: ("one_stays", "the other 7 experts of the rank are at home, too: "
                               "count ranks, not experts")}
    name, why = next((row for wrong, row in known.items() if abs(got - wrong) < 20),
                     ("other", f"count a rank's choices, and take away those of its own experts; "
                               f"with {W} ranks that is one in {W}"))
    assert abs(got - want) < 0.01 * want, because(
        name, f"predict_dispatch_rows: {got:g} is not right", why)


def test_choose_sends_less(subject):
    W, k = 4, 8
    rng = np.random.default_rng(0)
    draws = rng.random((4000, 64)).argpartition(k, -1)[:, :k]
    rows = {"ep": 2 * (draws // 16 != 0).sum() / len(draws), "tp": 2.0 * (W - 1)}
    got = subject.choose_sends_less()
    assert got in rows, because("no_choice", f"choose_sends_less: {got!r:.50} is not right",
                                'expected "ep" or "tp"')
    why = (f"there and back ep sends 2·k·(W - 1)/W rows for a token, here {rows['ep']:.1f}, and tp "
           f"2·(W - 1), here {rows['tp']:.0f}")
    assert got == min(rows, key=rows.get), because(
        "row_a_choice", f'choose_sends_less: "{got}" is not right', why)


# ---- sorting


def is_int64(got, what):
    kind = got.dtype if torch.is_tensor(got) else type(got).__name__
    assert kind == torch.int64, mistake(
        "not_int64", f"{what} has dtype {kind}, expected torch.int64")


def check_sort(subject, experts, E):
    T, k = experts.shape
    words = f"sort_by_expert of {T} tokens with {k} of {E} experts"
    got = subject.sort_by_expert(torch.from_numpy(experts), E)
    assert isinstance(got, (tuple, list)) and len(got) == 2, mistake(
        "no_pair", f"{words}: expected order and counts, got {type(got).__name__}")
    order, counts = map(np.asarray, got)
    flat = experts.ravel()
    want = np.array([(flat == e).sum() for e in range(E)])
    assert len(counts) in (E, E + 1), because(
        "short", f"{words}: counts has {len(counts)} numbers, expected {E}",
        "the last experts have no token, and count as well")
    name, why = (("offsets", "these are sums over all experts so far, not each one's own")
                 if np.array_equal(counts[-E:], want.cumsum()) else
                 ("counts", "count the slots that chose each expert"))
    assert np.array_equal(counts, want), because(
        name, f"{words}: counts are {counts}, expected {want}", why)
    assert order.shape == flat.shape, mistake(
        "no_slots", f"{words}: order has shape {order.shape}, expected ({T * k},): a slot for each "
        f"choice")
    assert not len(flat) or sorted(order) == list(range(T * k)), because(
        "values", f"{words}: order is {order[:12]}…, which does not have each slot once",
        "order says which slots, not which experts they chose")
    sorted_by_choice = (np.diff(experts.T.ravel()[order]) >= 0).all()
    falls = np.flatnonzero(np.diff(flat[order]) < 0)
    if len(falls):
        i = falls[0]
        name, why = (("choice_first", "slot i is token i // k's choice i % k, but here all first "
                      "choices come before all second ones") if sorted_by_choice else
                     ("mixed", "the slots of one expert must stand together, those of expert 0 "
                      "first"))
        raise AssertionError(because(
            name, f"{words}: place {i} has a slot of expert {flat[order[i]]}, and the next place "
            f"one of expert {flat[order[i + 1]]}", why))
    for name, part in zip(("order", "counts"), got, strict=True):
        is_int64(part, f"{words}: {name}")


def test_sort_by_expert(subject, rng):
    few = np.array([[3, 0], [1, 3], [0, 1], [3, 1]])            # no token chose 2, 4 and 5
    check_sort(subject, few, 6)
    check_sort(subject, rng.integers(0, E, (17, K)), E)
    check_sort(subject, np.full((9, 1), 4), 5)
    check_sort(subject, np.zeros((0, 3), np.int64), 7)
    check_sort(subject, np.array([[2]]), 3)


# ---- what travels


class Routing:
    """What each of W ranks chose, and by that which slots travel where.
    Places in `order`."""

    def __init__(self, choices, E):             # W × (T, k)
        self.choices = choices
        self.W = len(choices)
        self.E = E
        self.orders = [c.ravel().argsort(kind="stable") for c in choices]
        self.counts = [np.bincount(c.ravel(), minlength=E) for c in choices]
        self.received = [np.stack([c.reshape(self.W, -1)[r] for c in self.counts])
                         for r in range(self.W)]                            # each (W, E/W)

    def sent(self, j, r):
        """The places in rank j's order whose slots go to rank r."""
        owners = self.choices[j].ravel()[self.orders[j]] // (self.E // self.W)
        return np.flatnonzero(owners == r)

    def away(self, r):
        """How many of rank r's slots leave it."""
        return len(self.orders[r]) - len(self.sent(r, r))

    def at(self, r, rows):
        """What comes to rank r, if each rank j sends rows[j], an array in its order."""
        return np.concatenate([rows[j][self.sent(j, r)] for j in range(self.W)])

    def back(self, r, rows):
        """What comes back to rank r, if rank j has rows[j] in the order in which they came."""
        result = np.zeros((len(self.orders[r]), rows[0].shape[1]))
        for j in range(self.W):
            begin = sum(len(self.sent(i, j)) for i in range(r))
            places = self.sent(r, j)
            result[places] = rows[j][begin:begin + len(places)]
        return result


def draw(rng, W, k=K, tokens=TOKENS):
    """Distinct choices of each token; no token chooses expert 5."""
    able = np.delete(np.arange(E), 5)
    return Routing([np.array([rng.permutation(able)[:k] for _ in range(T)], int).reshape(T, k)
                    for T in tokens[:W]], E)


def even(rng, W, m=2):
    """Each rank chooses each expert m times: all ranks send and receive as many rows."""
    return Routing([rng.permutation(np.tile(np.arange(E), m)).reshape(-1, K) for _ in range(W)], E)


def tensors(*arrays):
    return tuple(torch.from_numpy(x) for x in arrays)


def check_calls(run, r, words, name, want, calls, why):
    """A rank sends `want` bytes, in a number of all-to-alls."""
    names = [c.name for c in run.collectives if c.rank == r]
    assert run.sent(r) == want and names == ["all_to_all"] * calls, because(
        name, f"{words}: rank {r} sends {run.sent(r):,} bytes in {', '.join(names) or 'no call'}; "
        f"expected {want:,} in {calls} × all_to_all", why)


# ---- dispatch


def of_dispatch(routing, r, xs):
    """{id: (sentence, rows)} of wrong answers of rank r."""
    def sent(row):
        return routing.at(r, [row(x, order) for x, order in zip(xs, routing.orders, strict=True)])

    return {
        "unsorted": ("rows are sent in the order of slots, not sorted by expert",
                     sent(lambda x, order: x.repeat(K, 0))),
        "choice_first": ("slot i is taken to be of token i mod T: it is of token i // k",
                         sent(lambda x, order: x[order % max(len(x), 1)])),
        "same_rows": ("`order` counts choices, k of a token: row i is for slot order[i], of token "
                      "order[i] // k", sent(lambda x, order: x[:1].repeat(len(order), 0)
                                            if len(x) else x[order]))}


def check_dispatch(subject, rng, agree, routing, words):
    W = routing.W
    xs = [rng.standard_normal((len(c), C)) for c in routing.choices]
    token = "order[i] is a slot; its token is order[i] // k"
    split = ("send[j] is the number of this rank's slots for experts of rank j: counts, added up "
             "for each rank")
    with raises("token_index", IndexError, token), raises("wrong_sends", ValueError, split):
        run = subject.ranks(f"{DRIVER}:dispatched", [
            (*tensors(x, order, counts), K) for x, order, counts in zip(
                xs, routing.orders, routing.counts, strict=True)])
    for r in range(W):
        rows = routing.at(r, [x[order // K] for x, order in zip(xs, routing.orders, strict=True)])
        here = f"dispatch, {W} ranks, {words}: "
        agree(run.results[r]["received"], routing.received[r], "exact", f"{here}received of rank "
              f"{r}", mistakes={"own_counts": (
                  "these are the counts that rank r sends, not those that come",
                  routing.counts[r].reshape(W, -1))})
        is_int64(run.results[r]["received"], f"{here}received of rank {r}")
        agree(run.results[r]["rows"], rows, "exact", f"{here}rows of rank {r}",
              lambda i: f"row {i[0]}, number {i[1]}", mistakes={
                  key: row for key, row in of_dispatch(routing, r, xs).items()
                  if not np.array_equal(row[1], rows)})
        want = BYTES * (C * routing.away(r) + E * (W - 1) // W)
        check_calls(run, r, here[:-2], "more_bytes", want, 2,
                    "first each rank tells each other how many rows for each of its E/W experts "
                    "will come, then the rows themselves go, each to one rank")


@pytest.mark.parametrize("W", [3, 2, 4])
def test_dispatch(subject, rng, agree, W):
    if W == 3:
        check_dispatch(subject, rng, agree, even(rng, W), "an even router")
    check_dispatch(subject, rng, agree, draw(rng, W), "one of them without tokens")


# ---- gradients


def check_backward(subject, rng, agree, sends, words):
    """sends: (W, W), rows from each rank to each."""
    W = len(sends)
    rows = [rng.standard_normal((n, C)) for n in sends.sum(1)]
    ups = [rng.standard_normal((n, C)) for n in sends.sum(0)]
    with raises("wrong_counts", RuntimeError, "backward goes the other way: what was received is "
                "sent, and as many rows come as were sent"):
        run = subject.ranks(f"{DRIVER}:returned", [
            (torch.from_numpy(rows[r]), sends[r].tolist(), sends[:, r].tolist(),
             torch.from_numpy(ups[r])) for r in range(W)])
    pieces = [np.split(up, sends[:, r].cumsum()[:-1]) for r, up in enumerate(ups)]  # [at][of]
    for r in range(W):
        want = np.concatenate([pieces[j][r] for j in range(W)])
        wrong = {"average": ("the gradient is divided by the number of ranks: each row has gone to "
                             "one rank alone", want / W),
                 "stays_there": ("the gradient of the rows that came here is returned: they belong "
                                 "to other ranks", ups[r])}
        if (sends.sum(0) == sends.sum(1)).all():
            forward = [np.split(up, sends[j].cumsum()[:-1]) for j, up in enumerate(ups)]
            wrong["goes_on"] = ("gradients go the way of the rows again, not back", (
                np.concatenate([forward[j][r] for j in range(W)])))
        here = f"Exchange.backward, {W} ranks, {words}"
        agree(run.results[r]["gradient"], want, "float64", f"{here}: gradient of rank {r}",
              lambda i: f"row {i[0]}, number {i[1]}", mistakes={
                  key: row for key, row in wrong.items() if not np.array_equal(row[1], want)})
        check_calls(run.during("backward"), r, here, "more_bytes",
                    BYTES * C * int(sends[:, r].sum() - sends[r, r]), 1,
                    "each gradient goes to the rank that its row came from")


@pytest.mark.parametrize("W", [3, 2, 4])
def test_Exchange_backward(subject, rng, agree, W):
    if W == 3:
        ring = np.array([[2, 5, 1], [1, 2, 5], [5, 1, 2]])          # all send and receive 8
        check_backward(subject, rng, agree, ring, "8 rows each")
    sends = rng.integers(1, 9, (W, W))
    sends[1] = 0                                                    # rank 1 has no tokens
    check_backward(subject, rng, agree, sends, "one sends nothing")
    check_backward(subject, rng, agree, sends.T, "one gets nothing")


# ---- combine


def of_combine(routing, r, answers, weights):
    """{id: (sentence, tokens)} of wrong answers of rank r."""
    rows = routing.back(r, answers)
    order = routing.orders[r]
    T, k = weights.shape
    slots = np.empty_like(rows)
    slots[order] = rows

    def added(slots, w=weights):
        return (slots.reshape(T, k, C) * w[..., None]).sum(1)

    wrong = {
        "no_weights": ("a token's answers are added as they are", added(slots, weights**0)),
        "mean_of_k": ("the weighed answers are averaged: the weights add up to 1 already",
                      added(slots) / k),
        "weighed_twice": ("weights are applied twice", added(slots, weights**2)),
        "gathers_instead": ("row i of what comes back is put where slot i's row was: order[i] says "
                            "to which slot row i belongs", added(rows[order])),
        "unsorted": ("what comes back is sorted by expert still, and is taken to be in the order "
                     "of slots", added(rows))}
    if len(answers[r]) == len(order):
        own = np.empty_like(rows)
        own[order] = answers[r]
        ids = np.tile(np.arange(routing.E // routing.W), routing.W)
        places = np.repeat(ids, routing.received[r].ravel()).argsort(kind="stable")
        received = np.empty_like(rows)
        received[places] = rows
        wrong |= {"stays_there": ("these are the answers of this rank's experts to other ranks' "
                                  "tokens: they have to go back", added(own)),
                  "dispatched_ids": ("answers are sorted by what this rank received; they are to "
                                     "what it has sent", added(received))}
    return wrong


def check_combine(subject, rng, agree, routing, words):
    W = routing.W
    answers = [rng.standard_normal((n.sum(), C)) for n in routing.received]
    weights = [rng.dirichlet([1.0] * K, len(c)).reshape(-1, K) for c in routing.choices]
    split = "what was received is sent back, and this rank's own slots come back"
    with raises("wrong_sends", ValueError, split):
        run = subject.ranks(f"{DRIVER}:combined", [tensors(
            answers[r], routing.orders[r], routing.counts[r], routing.received[r], weights[r])
            for r in range(W)])
    for r in range(W):
        rows = routing.back(r, answers)
        want = np.zeros((len(weights[r]), C))
        for place, slot in enumerate(routing.orders[r]):
            want[slot // K] += weights[r].flat[slot] * rows[place]
        here = f"combine, {W} ranks, {words}"
        agree(run.results[r], want, "float64", f"{here}: answers of rank {r}",
              lambda i: f"token {i[0]}, number {i[1]}", mistakes={
                  key: row for key, row in of_combine(routing, r, answers, weights[r]).items()
                  if not np.allclose(row[1], want)})
        others = len(answers[r]) - len(routing.sent(r, r))
        check_calls(run, r, here, "more_bytes", BYTES * C * others, 1,
                    "each answer goes to the rank that has its token, and to no other")


@pytest.mark.parametrize("W", [3, 2, 4])
def test_combine(subject, rng, agree, W):
    if W == 3:
        check_combine(subject, rng, agree, even(rng, W), "an even router")
    check_combine(subject, rng, agree, draw(rng, W), "one of them without tokens")


# ---- pack_rows


def packed(x, experts, keep, capacity, E, counted=None, place_of=None, row_of=None, by_slot=False):
    """(E, capacity, C) by a loop, perhaps with a mistake; what has no place is left out.

    counted: which choices take a place, if not those that are kept.  place_of, row_of: of (t, c)
    """
    T, k = experts.shape
    room = np.zeros((E, capacity, x.shape[1]))
    taken = [0] * E
    pairs = [(t, c) for t in range(T) for c in range(k)]
    for t, c in pairs if by_slot else sorted(pairs, key=lambda pair: pair[::-1]):
        e = experts[t, c]
        place = taken[e] if place_of is None else place_of(t, c)
        row = t if row_of is None else row_of(t, c)
        if keep[t, c] and place < capacity and row < T:
            room[e, place] = x[row]
        taken[e] += bool((keep if counted is None else counted)[t, c])
    return room


def test_pack_rows(subject, rng, agree):
    E, T = 6, 13
    for capacity in (T, 3, 1):
        experts = np.array([rng.permutation(np.delete(np.arange(E), 4))[:K] for _ in range(T)])
        keep = np.zeros((T, K), bool)
        taken = [0] * E
        for t, c in rng.permutation([(t, c) for t in range(T) for c in range(K)]):
            keep[t, c] = taken[experts[t, c]] < capacity and rng.random() < 0.8
            taken[experts[t, c]] += keep[t, c]
        x = rng.standard_normal((T, 5))
        case = x, experts, keep, capacity, E
        want = packed(*case)
        with raises("beyond", IndexError, "a choice's place is the number of choices of the same "
                    "expert that are kept before it: below capacity"):
            got = subject.pack_rows(*tensors(x, experts, keep), E, capacity)
        wrong = {
            "token_place": ("a row's place is the number of its token",
                            packed(*case, place_of=lambda t, c: t)),
            "dropped_counted": ("a choice that is dropped takes a place, too",
                                packed(*case, counted=np.ones_like(keep))),
            "choice_as_slot": ("choice i of experts.T is token i % T's, here it is taken for token "
                               "i // k's", packed(*case, row_of=lambda t, c: (c * T + t) // K)),
            "slot_order": ("choices come token by token: all first choices come before all second "
                           "ones", packed(*case, by_slot=True))}
        agree(got, want, "exact", f"pack_rows, capacity {capacity}",
              lambda i: f"expert {i[0]}, place {i[1]}, number {i[2]}", mistakes={
                  key: row for key, row in wrong.items() if not np.array_equal(row[1], want)})
