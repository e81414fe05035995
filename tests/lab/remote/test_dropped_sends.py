"""A send whose handle is gone, and the rank that waits for it."""

import pytest

from lab.remote.ledger import Ending, Ledger, Operation, explain


def operation(name, peer, line, at):
    return Operation(name, "world", [0, 1], peer, 0, "float32", 4, [5], [], line, None, at)


@pytest.mark.parametrize("where, mistake", [(9, "no_wait"), (10, "endless")])
def test_a_send_whose_handle_is_gone_is_told_where_its_receiver_waits(where, mistake):
    """A rank that waits at another line has its message, and waits for something else."""
    ledger = Ledger(2, "lesson.py")
    assert ledger.add(0, operation("send", 1, 7, 0.0)) is None
    assert ledger.add(1, operation("recv", 0, 9, 0.1)) is None
    fault = explain(ledger, [Ending("computes", 8), Ending("waits", where)])
    assert (fault.mistake, fault.rank) == (mistake, 0)
    if mistake == "no_wait":
        assert fault.text == (
            "rank 0 began its send of 5 numbers to rank 1 (lesson.py, line 7), and rank 1 waits "
            "for it in vain (lesson.py, line 9): keep the handle of a send, and wait for it in the "
            "end")
