"""An exercise on n ranks, as a test sees it: what they returned, and what they sent.

    run = subject.ranks("exchange", [(out0, into0), (out1, into1)])
    run.results, run.sent(1), run.matrix(), run.messages, run.collectives
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from lab.judge import inputs
from lab.judge.conversation import call
from lab.judge.failures import Raised, RankFault, Stopped
from lab.remote import traffic, wire
from lab.remote.ledger import Operation


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


class Span(NamedTuple):
    rank: int
    name: str               # send, all_reduce, mm …
    exchange: bool          # of data, on a thread of gloo's
    began: float            # seconds since the first span of all ranks
    ended: float


class RankRun:
    """What n ranks returned and did. operations: [[Operation]] by rank, in its order"""

    def __init__(self, results, operations, seconds=0.0, spans=()):
        self.results = results
        self.operations = operations
        self.spans = spans              # in their order; empty where none was asked for
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

    def rounds(self):
        """The longest chain of messages: in a round each rank sends at most one, and what it
        received in the rounds before may be in it."""
        rows = [list(operations) for operations in self.operations]
        round_of = [0] * self.n             # of each rank: the last one that it took part in
        sent = {}                           # (sender, receiver, group, tag) -> [rounds], in order
        moved = True
        while moved:
            moved = False
            for rank, own in enumerate(rows):
                while own and (own[0].name != "recv" or sent.get(
                        (own[0].peer, rank, own[0].group, own[0].tag))):
                    o = own.pop(0)
                    moved = True
                    if o.name == "send":
                        round_of[rank] += 1
                        key = rank, o.peer, o.group, o.tag
                        sent.setdefault(key, []).append(round_of[rank])
                    elif o.name == "recv":
                        came = sent[o.peer, rank, o.group, o.tag].pop(0)
                        round_of[rank] = max(round_of[rank], came)
        return max(round_of)

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


class Question(NamedTuple):
    name: str               # of the lesson's function, or `module:function` of the course
    arguments: list         # a tuple a rank
    kwargs: dict
    spans: bool


def run(subject, question, seconds, slack):
    """`subject.ranks`: a RankRun.
    Arrays that a rank changed are copied back into its arguments.

    seconds: of CPU that a rank may use, or as many times the reference's as `slack` says.
    Raised where a rank raised, with .rank; RankFault where ranks do not fit each other.
    """
    name, arguments, kwargs, _ = question
    subject._observe(name, [list(map(list, arguments)), kwargs])
    title = name.rpartition(":")[2]
    first = arguments[0] if arguments else ()
    try:
        outcome = within(subject, question, seconds, slack)
        if "fault" in outcome:
            raise RankFault(*outcome["fault"])
        if "error" in outcome:
            raise raised(outcome["error"], outcome["rank"])
    except (Raised, Stopped) as error:
        error.subject = error.subject or subject
        error.call = call(title, first, kwargs, None)
        raise
    check_inputs(subject, question, outcome, seconds * slack)
    for own, changed in zip(arguments, outcome["changed"], strict=True):
        inputs.copy_back([list(own), kwargs], changed)
    subject.calls.append(call(title, first, kwargs, outcome["results"]))
    return RankRun(outcome["results"], operations(outcome), outcome["seconds"], spans(outcome))


def within(subject, question, seconds, slack):
    """The outcome of a question; asked again where the reference is as slow."""
    outcome = subject._on_ranks(question, seconds, slack)
    if subject._reference is not None and outcome.get("fault", [""])[0] == "endless":
        reference = subject._reference()._on_ranks(question, seconds * slack, slack)
        longer = slack * reference["seconds"]
        if longer > seconds:
            return ask(subject, question, longer, slack)
    return outcome


def ask(subject, question, limit, slack):
    """The outcome of ranks.run in the child.
    It ends by itself at the limit, so the wait for it is
    longer: each rank may use as many seconds of CPU."""
    n = len(question.arguments)
    wait = (n + 1) * limit
    outcome = subject._ask("ranks", *question, limit, slow=lambda: wait / slack)
    lists = [outcome[key] for key in ("results", "changed", "edited", "spans", "operations")
             if key in outcome] if type(outcome) is dict else []
    fault = outcome.get("fault", [0, 0, 0]) if lists else None
    if not lists or any(type(rows) is not list or len(rows) != n for rows in lists) or not (
            type(fault) is list and len(fault) == 3 and type(outcome.get("seconds")) is float
            and any(key in outcome for key in ("results", "error", "fault"))):
        raise Stopped("garbled", "its answer cannot be read: expected what ranks did")
    return outcome


def operations(outcome):
    """Operations by rank, whose form a hostile child chooses."""
    try:
        return [[checked(Operation(*fields)) for fields in rows] for rows in outcome["operations"]]
    except (TypeError, KeyError, ValueError, IndexError, AttributeError):
        raise Stopped("garbled", "its answer cannot be read: the calls of ranks") from None


def checked(operation):
    """The operation, if bytes can be counted for it; TypeError or ValueError if not."""
    traffic.sent(operation, operation.ranks[0])
    return operation


def spans(outcome):
    """Spans, in their order."""
    try:
        rows = [(began, ended, str(name), rank) for rank, own in enumerate(outcome["spans"])
                for name, began, ended in own]
        start = min((row[0] for row in rows), default=0.0)
        # gloo's names and those of PyTorch's operations do not overlap
        return [Span(rank, name, name in (*traffic.COLLECTIVES, *traffic.MESSAGES),
                     began - start, ended - start) for began, ended, name, rank in sorted(rows)]
    except (TypeError, ValueError):
        raise Stopped("garbled", "its answer cannot be read: the spans of ranks") from None


def raised(error, rank):
    """Raised, with the rank in its text."""
    error = error if isinstance(error, dict) else {}
    exception = Raised(error | {"text": f"{error.get('text')} (on rank {rank})"})
    exception.rank = rank
    return exception


def check_inputs(subject, question, outcome, limit):
    """inputs.Changed where a rank changed an input that the course's own leaves as it is."""
    suspects = changes(question, outcome)
    allowed = subject._changeable.get(question.name, set())
    if subject._reference is None or not set().union(*suspects) - allowed:
        return
    reference = subject._reference()._on_ranks(question, limit, 1)
    allowed = allowed.union(*(changes(question, reference) if "changed" in reference
                              else suspects))
    subject._changeable[question.name] = allowed
    for rank, rows in enumerate(suspects):
        if wrong := rows - allowed:
            which = inputs.described(min(wrong, key=str), question.arguments[rank], question.kwargs)
            raise inputs.Changed(f"{question.name} changes {which}, on rank {rank}: expected it as "
                                 f"before the call")


def changes(question, outcome):
    """What each rank's call changed, as of inputs.written."""
    try:
        return [inputs.written(wire.arrays([list(own), question.kwargs]), changed, edited)
                for own, changed, edited in zip(question.arguments, outcome["changed"],
                                                outcome["edited"], strict=True)]
    except (TypeError, ValueError, KeyError):
        raise Stopped("garbled", "its answer cannot be read: what changed is not a list") from None
