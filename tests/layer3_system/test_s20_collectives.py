"""Graders of s20."""

import numpy as np
import pytest
import torch

from lab.judge.failures import Raised
from lab.judge.mistakes import mistake
from layer3_system.s20_collectives import crossing, pieces, ring_seconds, tree_rounds, tree_seconds
from layer3_system.testing.collective_driver import case
from tests.layer3_system.reasons import because

DRIVER = "layer3_system.testing.collective_driver"
SIZES = (7, 2, 1, 10, 1000)     # numbers of an array: fewer than ranks, not divisible, many


def arrays(rng, n, N):
    """Whole numbers from 1 to 9 in fp32, an array a rank: their sums are exact."""
    return [torch.from_numpy(rng.integers(1, 10, N).astype(np.float32)) for _ in range(n)]


def only_next(run, name):
    """Every message of a ring goes to the next rank."""
    for message in run.messages:
        right = (message.sender + 1) % run.n
        assert message.receiver == right, because(
            "not_a_ring", f"{name}: rank {message.sender} sends to rank {message.receiver}, "
            f"expected rank {right} alone", "a ring uses one wire a rank, to the next")


def sent(run, name, rank, numbers, messages):
    """A rank sends a number of fp32 numbers, in a number of messages."""
    count = sum(m.sender == rank for m in run.messages)
    assert count == messages, because(
        "messages", f"{name}: rank {rank} sends {count} messages, expected {messages}",
        "a ring has n - 1 rounds, and one message in each")
    assert run.sent(rank) == 4 * numbers, because(
        "bytes", f"{name}: rank {rank} sends {run.sent(rank)} bytes, expected {4 * numbers}",
        "the numbers are right, and more is sent than a piece in each round")


def stays(subject, name, arguments, want):
    """What comes out, an array a rank, has the dtype of what went in, and so all its digits."""
    run = subject.ranks(name, arguments)
    why = "the numbers keep their dtype: a new array has the default dtype unless one is given"
    for r, right in enumerate(want):
        got = run.results[r]
        assert got.dtype == right.dtype and torch.equal(got, right), because(
            "dtype", f"{name} of {str(right.dtype)[6:]}, n = {len(want)}: rank {r} has "
            f"{got.tolist()} of {str(got.dtype)[6:]}, expected {right.tolist()}", why)


DTYPES = (torch.bfloat16, torch.float64, torch.int64)


# ---- exchange


@pytest.mark.parametrize("n, N", [(3, 5), (2, 1), (4, 1000)])
def test_exchange(subject, rng, agree, n, N):
    out = arrays(rng, n, N)
    into = [torch.zeros(N) for _ in range(n)]
    run = subject.ranks("exchange", list(zip(out, into, strict=True)))
    for r in range(n):
        agree(into[r], out[r - 1], what=f"n = {n}: what rank {r} has in `into`", mistakes={
            "wrong_way": ("each rank sends to the left, and receives from the right",
                          out[(r + 1) % n]),
            "own_array": ("a rank keeps its own array", out[r]),
            "nothing_comes": ("nothing is received", torch.zeros(N))})
        sent(run, f"exchange, n = {n}", r, N, messages=1)
    only_next(run, "exchange")


def test_exchange__waits(subject, rng, agree):
    """A rank that returns before its send is over writes over what is still being sent."""
    out = arrays(rng, 4, 7)
    run = subject.ranks(f"{DRIVER}:late_exchange", [(one.clone(), torch.zeros(7)) for one in out])
    for r in range(4):
        agree(run.results[r], out[r - 1], what=f"what rank {r} gets from rank {(r - 1) % 4}",
              mistakes={"no_wait": (
                  f"rank {(r - 1) % 4} writes over `out` after exchange has returned, and it was "
                  f"still being sent: wait for the send", torch.full((7,), -1.0))})


# ---- a ring


def test_predict_ring_bytes(subject):
    cut = [len(p) for p in pieces(torch.zeros(10), 4)]
    got = subject.predict_ring_bytes()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_ring_bytes: expected a number, got {got!r:.50}")
    name, why = {
        60: ("equal_pieces", "that cuts 10 numbers into four pieces of 2.5"),
        120: ("whole_arrays", "that sends rank 0's whole array to each other rank"),
        28: ("one_tour", "that leaves out the second tour, which passes the sums on"),
        80: ("every_piece", "that has a rank pass on every piece, in both tours"),
        14: ("numbers", "that counts numbers, not bytes")}.get(
            got, ("other", "which pieces does rank 0 send in each of the two tours?"))
    assert got == 4 * (2 * 10 - cut[0] - cut[1]), because(
        name, f"predict_ring_bytes: {got!r:.20} bytes is not right", why)


def of_scatter(xs, r):
    """{id: (sentence, answer)} of wrong answers of rank r."""
    n = len(xs)
    total = sum(xs)
    return {
        "next_piece": (f"rank {r} holds piece {(r + 1) % n} of the sum",
                       pieces(total, n)[(r + 1) % n]),
        "last_round_missing": ("the last round is missing: the sum of the others never arrives",
                               pieces(xs[r], n)[r]),
        "not_added": ("a piece that comes takes the place of the own one: nothing is added",
                      pieces(xs[(r + 1) % n], n)[r])}


def test_reduce_scatter(subject, rng, agree):
    """Equal pieces first: uneven ones break on a size before anything else can be said."""
    xs = arrays(rng, 3, 6)
    run = subject.ranks("reduce_scatter", [(x,) for x in xs])
    for r in range(3):
        agree(run.results[r], pieces(sum(xs), 3)[r], what=f"n = 3, N = 6: rank {r}",
              mistakes=of_scatter(xs, r))
        sent(run, "reduce_scatter, n = 3, N = 6", r, 4, messages=2)
    only_next(run, "reduce_scatter")


@pytest.mark.parametrize("n", [3, 2, 4])
def test_reduce_scatter__any_size(subject, rng, agree, n):
    cases = [arrays(rng, n, N) for N in SIZES]                      # [case][rank]
    run = subject.ranks(f"{DRIVER}:scatter_cases",
                        [([xs[r] for xs in cases],) for r in range(n)])
    for i, (N, xs) in enumerate(zip(SIZES, cases, strict=True)):
        parts = pieces(sum(xs), n)
        one = run.during(case(i))
        for r in range(n):
            words = f"reduce_scatter, n = {n}, N = {N}"
            count = len(run.results[r][i])
            assert count == len(parts[r]), because(
                "equal_pieces", f"{words}: rank {r} has {count} numbers, expected {len(parts[r])}",
                "`pieces` cuts N numbers so that the first N mod n pieces have one more")
            agree(run.results[r][i], parts[r], what=f"{words}: rank {r}",
                  mistakes={name: row for name, row in of_scatter(xs, r).items()
                            if row[1].shape == parts[r].shape})
            sent(one, words, r, N - len(parts[r]), messages=n - 1)


def test_reduce_scatter__fractions(subject, rng, agree):
    """Sums that round, against float64."""
    xs = [torch.from_numpy(rng.standard_normal(9).astype(np.float32)) for _ in range(3)]
    run = subject.ranks("reduce_scatter", [(x,) for x in xs])
    total = sum(x.double() for x in xs).numpy()
    agree(torch.cat(run.results), total, "float32", "reduce_scatter of fractions")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reduce_scatter__dtype(subject, dtype):
    xs = [torch.tensor([1, 2, 2**25 + r], dtype=dtype) for r in range(2)]
    stays(subject, "reduce_scatter", [(x,) for x in xs], pieces(sum(xs), 2))


def of_gather(parts, r):
    """{id: (sentence, answer)} of wrong answers of rank r. parts: each rank's piece"""
    n = len(parts)
    rows = {"same_piece": ("each rank sends its own piece in every round",
                           [parts[r] if p == r else parts[r - 1] for p in range(n)]),
            "backwards": ("pieces are put in the order in which they came",
                          [parts[(r - p) % n] for p in range(n)])}
    return {name: (sentence, torch.cat(answer)) for name, (sentence, answer) in rows.items()}


def missing(parts, r):
    """The last piece to come, piece r + 1, is what it was before: zeros."""
    n = len(parts)
    return torch.cat([torch.zeros_like(parts[p]) if p == (r + 1) % n else parts[p]
                      for p in range(n)])


def test_all_gather(subject, rng, agree):
    parts = pieces(arrays(rng, 1, 6)[0], 3)
    run = subject.ranks("all_gather", [(p.clone(), 6) for p in parts])
    for r in range(3):
        agree(run.results[r], torch.cat(parts), what=f"n = 3, N = 6: rank {r}",
              mistakes=of_gather(parts, r) | {"last_round_missing": (
                  "the last round is missing: one piece never arrives", missing(parts, r))})
        sent(run, "all_gather, n = 3, N = 6", r, 4, messages=2)
    only_next(run, "all_gather")


@pytest.mark.parametrize("n", [3, 2, 4])
def test_all_gather__any_size(subject, rng, agree, n):
    cases = [pieces(arrays(rng, 1, N)[0], n) for N in SIZES]        # [case][rank]
    run = subject.ranks(f"{DRIVER}:gather_cases",
                        [([p[r].clone() for p in cases], list(SIZES)) for r in range(n)])
    for i, (N, parts) in enumerate(zip(SIZES, cases, strict=True)):
        words = f"all_gather, n = {n}, N = {N}"
        for r in range(n):
            agree(run.results[r][i], torch.cat(parts), what=f"{words}: rank {r}")
            sent(run.during(case(i)), words, r, N - len(parts[(r + 1) % n]), messages=n - 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_gather__dtype(subject, dtype):
    whole = torch.tensor([1, 2, 2**25 + 1], dtype=dtype)
    stays(subject, "all_gather", [(piece.clone(), 3) for piece in pieces(whole, 2)], [whole] * 2)


# ---- each to each


def to_all(rng, n, sizes):
    """([sender][receiver]: array) of `sizes(sender, receiver)` numbers."""
    return [[arrays(rng, 1, sizes(r, q))[0] for q in range(n)] for r in range(n)]


@pytest.mark.parametrize("n, sizes", [
    (3, lambda r, q: 2), (3, lambda r, q: r + 2 * q), (4, lambda r, q: (r + q) % 3),
    (2, lambda r, q: 5 * q)], ids=["equal", "uneven", "empty", "one-sided"])
def test_all_to_all(subject, rng, agree, n, sizes):
    out = to_all(rng, n, sizes)
    into = [[torch.full((sizes(q, r),), -1.0) for q in range(n)] for r in range(n)]
    run = subject.ranks("all_to_all", [([x.clone() for x in out[r]], into[r]) for r in range(n)])
    for r in range(n):
        for q in range(n):
            want = out[q][r]
            agree(into[r][q], want, what=f"n = {n}: into[{q}] of rank {r}", mistakes={
                name: row for name, row in {
                    "own_piece_left_out": ("a rank's own piece is not copied",
                                           torch.full(want.shape, -1.0)),
                    "piece_of_the_sender": ("a rank sends out[r], its own piece, to each",
                                            out[q][q])}.items()
                if row[1].shape == want.shape and (q == r) == (name == "own_piece_left_out")})
    pairs = sorted((m.sender, m.receiver) for m in run.messages)
    right = [(r, q) for r in range(n) for q in range(n) if r != q]
    assert pairs == right, because(
        "pairs", f"all_to_all, n = {n}: messages (from, to) {pairs}, expected {right}",
        "each rank sends one message to each other rank, and none to itself")


# ---- a tree


def test_broadcast_tree(subject, rng, agree):
    """Alone first: what one broadcast leaves over, the next one of a case would take."""
    xs = arrays(rng, 3, 5)
    copies = [x.clone() for x in xs]
    subject.ranks("broadcast_tree", [(x, 0) for x in copies])
    for r in range(3):
        agree(copies[r], xs[0], what=f"broadcast_tree, n = 3, root = 0: x of rank {r}",
              mistakes={"nothing_comes": ("a rank is never reached", xs[r])})


@pytest.mark.parametrize("n", [3, 4, 5, 2])
def test_broadcast_tree__every_root(subject, rng, agree, n):
    xs = arrays(rng, n, 3)
    run = subject.ranks(f"{DRIVER}:tree_cases", [(x,) for x in xs])
    for root in range(n):
        words = f"broadcast_tree, n = {n}, root = {root}"
        for r in range(n):
            agree(run.results[r][root], xs[root], what=f"{words}: x of rank {r}", mistakes={
                "root_zero": ("root is ignored: rank 0's x is sent", xs[0])} if root else {})
        one = run.during(case(root))
        count = len(one.messages)
        assert count == n - 1, mistake("messages", f"{words}: {count} messages, expected {n - 1}")
        rounds = one.rounds()
        own = sum(m.sender == root for m in one.messages)
        assert own <= tree_rounds(n), because(
            "star", f"{words}: the root sends {own} messages, one after the other; expected at "
            f"most {tree_rounds(n)}", "the root sends to each rank itself: those that have x "
            "could send it on")
        assert rounds <= tree_rounds(n), because(
            "chain", f"{words}: {rounds} rounds, expected {tree_rounds(n)}",
            "each rank sends to one other alone: in a round, all that have x send it")


def test_choose_faster(subject, agree):
    n, S, alpha, beta = 64, 1e6, 10e-6, 1 / 50e9
    faster = min(("ring", ring_seconds(n, S, alpha, beta)),
                 ("tree", tree_seconds(n, S, alpha, beta)), key=lambda row: row[1])[0]
    answer = subject.choose_faster()
    assert isinstance(answer, str) and answer in ("ring", "tree"), mistake(
        "no_choice", f'choose_faster: got {answer!r}, expected "ring" or "tree"')
    assert answer == faster, because(
        "fewest_bytes", f"choose_faster: {answer} takes "
        f"{1e6 * ring_seconds(n, S, alpha, beta):.0f} µs, the other "
        f"{1e6 * tree_seconds(n, S, alpha, beta):.0f} µs", "the fewest bytes are not the fewest "
        "rounds: 126 rounds wait 10 µs each before a byte arrives")


# ---- what no exercise has to show


@pytest.mark.parametrize("n", [2, 3, 4, 5, 64])
def test_the_ring_and_the_tree_cross_where_the_formula_says(n):
    alpha, beta = 10e-6, 1 / 50e9
    S = crossing(n, alpha, beta)
    if n <= 3:                          # as many rounds for both, and fewer bytes
        assert S == 0
        return
    assert ring_seconds(n, S, alpha, beta) == pytest.approx(tree_seconds(n, S, alpha, beta))
    assert ring_seconds(n, S / 2, alpha, beta) > tree_seconds(n, S / 2, alpha, beta)


def test_what_is_refused(subject):
    two = [torch.zeros(3, 4)] * 2
    for name, arguments, sentence in (
            ("reduce_scatter", [(x,) for x in two], "expected one axis, found shape (3, 4)"),
            ("all_gather", [(x, 9) for x in two], "expected one axis, found shape (3, 4)"),
            ("broadcast_tree", [(x, 5) for x in two], "expected a root from 0 to 1, found 5")):
        with pytest.raises(Raised) as refusal:
            subject.ranks(name, arguments)
        assert f"{name}: {sentence}" in str(refusal.value)
    with pytest.raises(ValueError, match="pieces: expected 1 rank or more, found 0"):
        pieces(torch.zeros(3), 0)


def test_all_reduce_sends_what_the_librarys_ring_does(subject, rng):
    """The sum on every rank, and the bytes of a library's call, counted as a ring."""
    xs = arrays(rng, 3, 10)
    run = subject.ranks("all_reduce", [(x,) for x in xs])
    library = subject.ranks("torch.distributed:all_reduce", [(x,) for x in (y.clone() for y in xs)])
    assert all(torch.equal(result, sum(xs)) for result in run.results)
    assert (run.matrix() == library.matrix()).all() and run.sent(0) == 4 * (20 - 4 - 3)
