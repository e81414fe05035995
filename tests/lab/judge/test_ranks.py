"""What a test gets of ranks: counts of a run, longer limits, and no forged answers."""

import numpy as np
import pytest

from lab.judge import ranks
from lab.judge.failures import RankFault, Stopped
from lab.judge.inputs import Changed
from lab.judge.ranks import Question, RankRun
from lab.judge.subject import Subject
from lab.remote.ledger import Operation


def message(name, peer, at=0.0, label=None):
    return Operation(name, "0", [0, 1, 2, 3], peer, 0, "float32", 4, [5], [], None, label, at)


def sends(peer):
    return message("send", peer)


def receives(peer):
    return message("recv", peer)


@pytest.mark.parametrize("operations, rounds", [
    ([[], [], [], []], 0),
    ([[sends(1)], [receives(0)], [], []], 1),
    ([[sends(1), sends(2), sends(3)], [receives(0)], [receives(0)], [receives(0)]], 3),  # a star
    ([[sends(1)], [receives(0), sends(2)], [receives(1), sends(3)], [receives(2)]], 3),  # a chain
    ([[sends(1), sends(2)], [receives(0), sends(3)], [receives(0)], [receives(1)]], 2),  # a tree
    ([[sends(1), receives(3)] * 2, [sends(2), receives(0)] * 2, [sends(3), receives(1)] * 2,
      [sends(0), receives(2)] * 2], 2),  # a ring
    ([[receives(1), sends(1)], [sends(0), receives(0)], [], []], 2)])
def test_rounds_are_the_longest_chain(operations, rounds):
    assert RankRun([None] * 4, operations).rounds() == rounds


def test_messages_meet_when_both_sides_have_begun():
    run = RankRun([None] * 4, [[message("send", 1, 3.0, "a"), message("send", 1, 4.0, "b")],
                               [message("recv", 0, 2.0), message("recv", 0, 7.0)], [], []])
    assert [(m.sender, m.receiver, m.bytes, m.label, m.began, m.met) for m in run.messages] == [
        (0, 1, 20, "a", 3.0, 3.0), (0, 1, 20, "b", 4.0, 7.0)]
    assert run.during("b").sent(0) == 20 and run.during("b").n == 4


GOOD = {"operations": [[], []], "results": [1, 2], "changed": [[], []], "edited": [[], []],
        "spans": [[], []], "seconds": 0.1}


class Child(Subject):
    """A Subject whose child gives these outcomes, one after the other."""

    def __init__(self, outcomes, reference=None):
        super().__init__(None, reference)
        self._outcomes = list(outcomes)
        self._limits = []

    def _ask(self, what, name, arguments, kwargs, spans, limit, slow=None):
        self._limits.append(limit)
        return self._outcomes.pop(0)


def test_an_honest_outcome_passes():
    run = Child([GOOD]).ranks("f", [(1,), (2,)])
    assert run.results == [1, 2] and run.matrix().tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("change", [
    {"results": [1]}, {"results": None}, {"operations": [[]]}, {"operations": [[[1, 2]], []]},
    {"operations": [[["all_reduce", "0", [], None, 0, "", 4, [1], [], None, None, 0.0]], []]},
    {"operations": [[["nothing", "0", [0, 1], 1, 0, "", 4, [1], [], None, None, 0.0]], []]},
    {"changed": [[], 3]}, {"changed": [[(0, np.zeros(2))], []]}, {"edited": 1}, {"seconds": "1"},
    {"spans": [[[1]], []]}, {"spans": [[["a", "b", "c"]], []]}, {"fault": ["order"]},
    {"fault": 3}], ids=str)
def test_a_forged_outcome_is_garbled(change):
    with pytest.raises(Stopped) as stopped:
        Child([GOOD | change]).ranks("f", [(1,), (2,)])
    assert stopped.value.why == "garbled"


@pytest.mark.parametrize("outcome", [3, None, {}, {"seconds": 1.0}, {"operations": [[], []]}])
def test_an_answer_that_is_no_outcome_is_garbled(outcome):
    with pytest.raises(Stopped, match="expected what ranks did"):
        Child([outcome]).ranks("f", [(1,), (2,)])


ENDLESS = {"operations": [[], []], "seconds": 10.0, "fault": ["endless", "rank 0 computes", 0]}


def test_the_limit_is_a_multiple_of_the_references_own():
    slow = Child([GOOD | {"seconds": 3.0}])
    patient = Child([ENDLESS, GOOD], lambda: slow)
    assert patient.ranks("f", [(1,), (2,)]).results == [1, 2]
    assert patient._limits == [10, 60.0]
    quick = Child([ENDLESS], lambda: Child([GOOD]))
    with pytest.raises(RankFault, match="rank 0 computes") as fault:
        quick.ranks("f", [(1,), (2,)])
    assert fault.value.mistake == "endless" and fault.value.rank == 0


def test_an_input_that_the_reference_leaves_stays_as_it_was():
    x = [np.arange(3.0), np.arange(3.0)]
    outcome = GOOD | {"changed": [[], [(0, np.zeros(3))]]}
    with pytest.raises(Changed, match="f changes its argument number 1, .*, on rank 1"):
        Child([outcome], lambda: Child([GOOD])).ranks("f", [(x[0],), (x[1],)])
    assert x[1].tolist() == [0, 1, 2]
    Child([outcome], lambda: Child([outcome])).ranks("f", [(x[0],), (x[1],)])
    assert x[1].tolist() == [0, 0, 0] and x[0].tolist() == [0, 1, 2]


def test_a_question_is_what_the_child_is_asked():
    assert Question._fields == ("name", "arguments", "kwargs", "spans")
    assert ranks.ask(Child([GOOD]), Question("f", [(), ()], {}, False), 1, 20) == GOOD
