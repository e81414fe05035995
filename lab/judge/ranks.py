"""An exercise on n ranks, as a test sees it: what they returned, and what they sent.

    run = subject.ranks("exchange", [(out0, into0), (out1, into1)])
    run.results, run.sent(1), run.matrix(), run.messages, run.collectives
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from lab.judge import inputs
from lab.judge import subject as subjects
from lab.judge.conversation import call
from lab.remote import traffic, wire
from lab.remote.ledger import Operation

KINDS = ("order", "size", "dtype", "root", "died", "endless", "early_return", "lost_send",
         "missing_send", "no_wait", "deadlock")


class RankFault(subjects.Stopped):
    """Ranks that do not fit each other. .mistake: one of KINDS   .rank: the one it begins with"""

    def __init__(self, mistake, text, rank):
        super().__init__(mistake, text)
        self.mistake = mistake
        self.rank = rank


class Message(NamedTuple):
    """began: when its sender did, in seconds of a monotonic clock; met: when both sides had."""

    sender: int
    receiver: int
    bytes: int
    tag: int
    label: str | None       # of the sender's case, see lab.remote.recorder.mark
    began: float
    met: float


class Collective(NamedTuple):
    rank: int
    index: int              # among its rank's collectives of this group
    name: str
    group: str
    pieces: list            # numbers: one piece, or one for each rank
    dtype: str
    bytes: int
    label: str | None
    began: float


class RankRun:
    """What n ranks returned and did. operations: [[Operation]] by rank, in its order"""

    def __init__(self, results, operations, seconds=0.0):
        self.results = results
        self.operations = operations
        self.seconds = seconds          # of CPU, of the busiest rank
        self.n = len(operations)

    @property
    def messages(self):
        """The Messages, in the order in which they began."""
        receives = {}
        for rank, operations in enumerate(self.operations):
            for o in operations:
                if o.name == "recv":
                    receives.setdefault((o.peer, rank, o.group, o.tag), []).append(o.at)
        taken = Counter()
        messages = []
        for rank, operations in enumerate(self.operations):
            for o in operations:
                if o.name == "send":
                    key = rank, o.peer, o.group, o.tag
                    met = receives.get(key, [])[taken[key]:][:1]    # of recv from any: unknown
                    taken[key] += 1
                    messages.append(Message(rank, o.peer, o.bytes, o.tag, o.label, o.at,
                                            max([o.at, *met])))
        return sorted(messages, key=lambda m: m.began)

    @property
    def collectives(self):
        """The Collectives, by rank and in its order."""
        rows = []
        for rank, operations in enumerate(self.operations):
            index = Counter()
            for o in operations:
                if o.name not in traffic.MESSAGES:
                    rows.append(Collective(rank, index[o.group], o.name, o.group, o.pieces, o.dtype,
                                           o.bytes, o.label, o.at))
                    index[o.group] += 1
        return rows

    def during(self, label):
        """The same of one case alone, as the driver marked it; its results are not told apart."""
        return RankRun(self.results, [[o for o in operations if o.label == label]
                                      for operations in self.operations])

    def sent(self, rank):
        """Bytes that a rank sends; collectives as a ring, see lab/remote/traffic.py."""
        return int(self.matrix()[rank].sum())

    def matrix(self):
        """(n, n): bytes from each rank to each."""
        matrix = np.zeros((self.n, self.n), np.int64)           # (n, n)
        for rank, operations in enumerate(self.operations):
            for o in operations:
                for peer, count in traffic.sent(o, rank).items():
                    matrix[rank, peer] += count
        return matrix


def run(subject, name, arguments, kwargs):
    """`subject.ranks`: a RankRun. Arrays that a rank changed are copied back into its arguments.

    Raised where a rank raised, with .rank; RankFault where ranks do not fit each other.
    """
    arguments = [tuple(own) for own in arguments]
    subject._observe(name, [list(map(list, arguments)), kwargs])
    outcome = ask(subject, name, arguments, kwargs, subjects.SECONDS)
    fault = outcome.get("fault")
    if fault and fault[0] == "endless" and subject._reference is not None:
        longer = subjects.SLACK * ask(subject._reference(), name, arguments, kwargs,
                                      subjects.SECONDS * subjects.SLACK)["seconds"]
        if longer > subjects.SECONDS:
            outcome = ask(subject, name, arguments, kwargs, longer)
            fault = outcome.get("fault")
    title = f"{name.rpartition(':')[2]} on {len(arguments)} ranks"
    words = call(title, arguments[0] if arguments else (), kwargs, outcome.get("results"))
    try:
        if fault:
            raise RankFault(str(fault[0]), str(fault[1])[:subjects.LONGEST_TEXT], fault[2])
        if "error" in outcome:
            raise raised(outcome["error"], outcome["rank"])
    except (RankFault, subjects.Raised) as error:
        error.subject = subject
        error.call = words
        raise
    check_inputs(subject, name, arguments, kwargs, outcome)
    for own, changed in zip(arguments, outcome["changed"], strict=True):
        subjects.copy_back([list(own), kwargs], changed)
    subject.calls.append(words)
    return RankRun(outcome["results"], operations(outcome), outcome["seconds"])


def ask(subject, name, arguments, kwargs, limit):
    """The outcome of ranks.run in the child. It ends by itself at the limit, so the wait for it is
    longer: ranks share cores, and each may take as many seconds of CPU."""
    wait = len(arguments) * limit + subjects.SECONDS
    outcome = subject._ask("ranks", name, arguments, kwargs, limit, slow=lambda: wait
                           / subjects.SLACK)
    n = len(arguments)
    if type(outcome) is not dict or type(outcome.get("operations")) is not list or not any(
            key in outcome for key in ("results", "error", "fault")) or any(
            key in outcome and (type(outcome[key]) is not list or len(outcome[key]) != n)
            for key in ("results", "changed", "edited", "operations")):
        raise subjects.Stopped("garbled", "its answer cannot be read: expected what ranks did")
    return outcome


def operations(outcome):
    """Operations by rank, whose form a hostile child chooses."""
    try:
        return [[checked(Operation(*fields)) for fields in rows] for rows in outcome["operations"]]
    except (TypeError, KeyError, ValueError, IndexError):
        raise subjects.Stopped("garbled",
                               "its answer cannot be read: the calls of ranks") from None


def checked(operation):
    """The operation, if bytes can be counted for it; TypeError or ValueError if not."""
    traffic.sent(operation, operation.ranks[0])
    return operation


def raised(error, rank):
    """Raised, with the rank in its text."""
    error = error if isinstance(error, dict) else {}
    exception = subjects.Raised(error | {"text": f"{error.get('text')} (on rank {rank})"})
    exception.rank = rank
    exception.mistake = "exception"
    return exception


def check_inputs(subject, name, arguments, kwargs, outcome):
    """AssertionError where a rank changed an input that the course's own leaves as it is."""
    suspects = changes(arguments, kwargs, outcome)
    allowed = subject._changeable.get(name, set())
    if subject._reference is None or not set().union(*suspects) - allowed:
        return
    own = ask(subject._reference(), name, arguments, kwargs, subjects.SECONDS * subjects.SLACK)
    allowed = allowed.union(*changes(arguments, kwargs, own))
    subject._changeable[name] = allowed
    for rank, rows in enumerate(suspects):
        if wrong := rows - allowed:
            which = inputs.described(min(wrong, key=str), arguments[rank], kwargs)
            raise AssertionError(f"{name} changes {which}, on rank {rank}: expected it as before "
                                 f"the call")


def changes(arguments, kwargs, outcome):
    """What each rank's call changed, as of inputs.written."""
    try:
        return [inputs.written(wire.arrays([list(own), kwargs]), changed, edited)
                for own, changed, edited in zip(arguments, outcome["changed"], outcome["edited"],
                                                strict=True)]
    except (TypeError, ValueError, KeyError):
        raise subjects.Stopped("garbled", "its answer cannot be read: what changed is not a list"
                               ) from None
