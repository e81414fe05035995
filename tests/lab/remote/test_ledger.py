"""The ledger of what ranks do, and bytes of collectives: both without processes."""

import itertools

import pytest

from day02_overview import sent_by
from lab.remote import agreement, traffic
from lab.remote.ledger import Ending, Ledger, Operation, explain

WAITS, RETURNED = Ending("waits"), Ending("returned")


def operation(name, rank=0, n=3, line=None, **fields):
    pieces = [1] * n if name in ("all_gather", "reduce_scatter", "all_to_all") else [4]
    return Operation(**{
        "name": name, "group": "0", "ranks": list(range(n)), "peer": None, "tag": 0,
        "dtype": "float32", "itemsize": 4, "pieces": pieces, "received": pieces, "line": line,
        "label": None, "at": 0.0} | fields)


def ledger(*rows, n=3):
    """The ledger of operations that fit. rows: (rank, Operation)"""
    one = Ledger(n, "s20.py")
    assert [fault for row in rows if (fault := one.add(*row))] == []
    return one


@pytest.mark.parametrize("first, second, mistake", [
    (operation("all_reduce"), operation("barrier", pieces=[]), "order"),
    (operation("all_reduce"), operation("all_reduce", pieces=[5]), "size"),
    (operation("all_gather", pieces=[1, 2, 2]), operation("all_gather", pieces=[2, 2, 1]), "size"),
    (operation("all_reduce"), operation("all_reduce", dtype="int32"), "dtype"),
    (operation("broadcast", peer=0), operation("broadcast", peer=1), "root"),
    (operation("all_to_all"), operation("all_to_all", pieces=[3] * 3, received=[3] * 3), "size"),
    (operation("all_reduce"), operation("all_reduce"), None),
    (operation("all_reduce"), operation("all_reduce", group="1", pieces=[9]), None),
    (operation("all_reduce", line=3), operation("all_reduce", line=9), None)])
@pytest.mark.parametrize("ranks", [(0, 1), (2, 0)])
def test_collectives_of_a_group_must_fit(first, second, mistake, ranks):
    one = Ledger(3, "s20.py")
    faults = [one.add(ranks[0], first), one.add(ranks[1], second)]
    assert [fault.mistake for fault in faults if fault] == ([mistake] if mistake else [])


def test_the_second_call_of_a_rank_is_compared_with_the_second_of_another():
    one = ledger((0, operation("barrier", pieces=[])), (0, operation("all_reduce", line=41)),
                 (1, operation("barrier", pieces=[])))
    fault = one.add(1, operation("broadcast", peer=0, line=44))
    assert fault.text.startswith("collective 2: rank 0 is in all_reduce of 4 numbers (s20.py, line "
                                 "41), rank 1 in broadcast of 4 numbers (s20.py, line 44)")


@pytest.mark.parametrize("fields, mistake", [
    ({}, None), ({"pieces": [3]}, "size"), ({"pieces": [5]}, "size"), ({"dtype": "int32"}, "dtype"),
    ({"tag": 1}, None), ({"group": "1", "pieces": [9]}, None)])
def test_messages_meet_in_order_by_tag_and_group(fields, mistake):
    """One with another tag meets no other."""
    for order in itertools.permutations([(0, operation("send", peer=1)),
                                         (1, operation("recv", peer=0, **fields))]):
        one = Ledger(2, "s20.py")
        faults = [one.add(*row) for row in order]
        assert [fault.mistake for fault in faults if fault] == ([mistake] if mistake else [])
        lost, missing = one.unmet()
        assert len(lost) == len(missing) == (1 if set(fields) & {"tag", "group"} else 0)


def test_a_receive_from_any_rank_is_not_followed():
    one = ledger((0, operation("recv", peer=None)), (1, operation("send", peer=0, pieces=[9])))
    assert one.unmet() == [[], []] and explain(one, [RETURNED] * 3) is None


SEND, RECV = operation("send", peer=1, line=7), operation("recv", peer=1, line=8)


@pytest.mark.parametrize("rows, endings, mistake, sentence", [
    ([], [RETURNED] * 3, None, None),
    ([(0, SEND)], [RETURNED] * 3, "lost_send", "rank 0 sends 4 numbers to rank 1 (s20.py, line 7)"),
    ([(0, RECV)], [RETURNED] * 3, "missing_send", "rank 0 receives 4 numbers from rank 1"),
    ([(0, SEND)], [WAITS, RETURNED, RETURNED], "lost_send", "rank 1 never receives them"),
    ([(0, RECV)], [WAITS, RETURNED, RETURNED], "missing_send", "rank 1 never sends them"),
    ([(0, operation("all_reduce"))], [WAITS, RETURNED, WAITS], "early_return",
     "rank 1 returned after 0 collectives; rank 0 waits in all_reduce of 4 numbers"),
    ([(0, SEND), (1, operation("send", peer=0))], [WAITS, WAITS, RETURNED], "send_first",
     "and no rank receives"),
    ([(0, RECV), (1, operation("recv", peer=0))], [WAITS, WAITS, RETURNED], "receive_first",
     "and no rank sends"),
    ([(0, operation("send", peer=2)), (0, RECV), (1, operation("recv", peer=0)),
      (2, operation("recv", peer=1))], [WAITS] * 3, "missing_send",
     "Each receives what no rank has begun to send"),
    ([(0, SEND), (1, operation("recv", peer=0, tag=5))], [WAITS, WAITS, RETURNED], "deadlock",
     "rank 1 in recv of 4 numbers from rank 0 with tag 5"),
    ([(1, operation("recv", peer=0)), (0, SEND)], [RETURNED, WAITS, RETURNED], "no_wait",
     "rank 0 returned while its send of 4 numbers to rank 1 (s20.py, line 7) was still being sent"),
    ([(0, SEND)], [Ending("waits", 12), RETURNED, Ending("died", code=-9)], "died",
     "rank 2 was ended by signal 9; rank 0 waits at s20.py, line 12, after send of 4 numbers"),
    ([], [Ending("died", code=3), RETURNED, RETURNED], "died", "by itself, with exit code 3"),
    ([], [WAITS, Ending("computes", 5), RETURNED], "endless",
     "rank 1 computes without an end (s20.py, line 5): an endless loop?; rank 0 waits before its"),
])
def test_how_ranks_end_is_explained(rows, endings, mistake, sentence):
    fault = explain(ledger(*rows), endings)
    assert (fault and fault.mistake) == mistake
    assert mistake is None or sentence in fault.text


# ---- bytes


@pytest.mark.parametrize("n", [2, 3, 4, 8])
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_ring_of_equal_pieces_sends_what_o04_says(n, name):
    pieces = [5 * n] if name == "all_reduce" else [5] * n
    for rank in range(n):
        one = operation(name, n=n, pieces=pieces)
        assert traffic.sent(one, rank) == {(rank + 1) % n: sent_by(name, 4 * 5 * n, n)}


@pytest.mark.parametrize("n, N", [(2, 7), (3, 7), (3, 10), (4, 10), (4, 2), (5, 1)])
def test_a_ring_of_uneven_pieces_is_counted_piece_by_piece(n, N):
    """Every piece but its own end goes over every wire once in each half."""
    import torch

    parts = [len(p) for p in torch.arange(N).tensor_split(n)]
    assert list(traffic.split(N, n)) == parts
    scatter, gather = [0] * n, [0] * n
    for p, turn in itertools.product(range(n), range(1, n)):
        scatter[(p + turn) % n] += parts[p]             # from its first rank p + 1 to its last, p
        gather[(p + turn - 1) % n] += parts[p]
    for rank in range(n):
        both = (traffic.sent(operation(name, n=n, pieces=parts, itemsize=1), rank)[(rank + 1) % n]
                for name in ("reduce_scatter", "all_gather"))
        assert list(both) == [scatter[rank], gather[rank]]
        whole = traffic.sent(operation("all_reduce", n=n, pieces=[N], itemsize=1), rank)
        assert whole == {(rank + 1) % n: scatter[rank] + gather[rank]}


def test_other_collectives_and_subgroups():
    group = {"ranks": [4, 2, 7], "itemsize": 2}
    cases = {
        "broadcast": ({"peer": 1}, {4: {}, 2: {7: 8}, 7: {4: 8}}),
        "reduce": ({"peer": 1}, {4: {2: 8}, 2: {}, 7: {4: 8}}),
        "gather": ({"peer": 2}, {4: {7: 8}, 2: {7: 8}, 7: {}}),
        "scatter": ({"peer": 0}, {4: {2: 8, 7: 8}, 2: {}, 7: {}}),
        "all_to_all": ({"pieces": [1, 2, 3]}, {4: {2: 4, 7: 6}, 2: {4: 2, 7: 6}, 7: {4: 2, 2: 4}}),
        "barrier": ({"pieces": []}, {4: {}, 2: {}, 7: {}}),
        "send": ({"peer": 7}, {4: {7: 8}}), "recv": ({"peer": 7}, {4: {}})}
    assert set(cases) | {"all_reduce", "all_gather", "reduce_scatter"} == {
        *traffic.COLLECTIVES, *traffic.MESSAGES}
    for name, (fields, expected) in cases.items():
        one = operation(name, **group | fields)
        assert {rank: traffic.sent(one, rank) for rank in expected} == expected, name


# ---- the same program


@pytest.mark.parametrize("other, sentence", [
    ({"version": "1.4.0"}, "rank 2 has another version: 1.4.0, rank 0 has 1.3.2"),
    ({"weights": "a" * 200 + "c"}, "rank 2 has another weights: digest ")])
def test_a_difference_is_told_with_both_sides(other, sentence):
    facts = {"version": "1.3.2", "weights": "a" * 200 + "b"}
    first, second = (b"".join(map(agreement.row, rows.values())) for rows in (facts, facts | other))
    assert agreement.difference(list(facts), first, second, 2).startswith(sentence)


def test_without_torchrun_the_program_ends_with_a_line(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(SystemExit, match="no rank: start it by torchrun .* as s20_collectives "):
        agreement.meet("s20_collectives")
