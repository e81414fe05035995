"""What ranks have begun so far, and what in it contradicts itself.

A Ledger takes Operations as they are written, each rank's in its order, and names the first call
that does not fit the others'. `Ending`s say how each rank ended, or where it waits; `explain` finds
the reason.
Neither starts anything or looks at a process.
"""

from collections import Counter, defaultdict
from typing import NamedTuple

from lab.remote.traffic import MESSAGES
from lab.words import plural


class Operation(NamedTuple):
    """One call of torch.distributed, as its rank wrote it before making it."""

    name: str               # as in torch.distributed: send, recv, all_reduce, barrier …
    group: str              # name of the process group
    ranks: list             # its members, by their numbers in the world
    peer: int | None        # of a message, in the world; of a collective, the root in the group
    tag: int
    dtype: str
    itemsize: int           # bytes of one number
    pieces: list            # numbers handed over: one piece, or one for each rank
    received: list          # of all_to_all: numbers that each rank sends here
    line: int | None        # of the lesson
    label: str | None       # of the case, see recorder.mark
    at: float               # seconds of the machine's monotonic clock

    @property
    def numbers(self):
        return sum(self.pieces)

    @property
    def bytes(self):
        return self.numbers * self.itemsize


class Fault(NamedTuple):
    """What went wrong: the id of the mistake, a sentence, and the rank that it begins with."""

    # order, size, dtype, root; early_return, lost_send, missing_send, no_wait; send_first,
    # receive_first, deadlock; died, endless
    mistake: str
    text: str
    rank: int


class Ending(NamedTuple):
    """How a rank ended, or where it is. kind: returned, raised, died, waits or computes"""

    kind: str
    line: int | None = None         # of the lesson, where it waits or computes
    code: int = 0                   # of one that died: its exit code, or minus the signal


class Ledger:
    """The operations of n ranks. file: the lesson's name, for its lines"""

    def __init__(self, n, file):
        self.n = n
        self.file = file
        self.operations = [[] for _ in range(n)]            # by rank, in its order
        self.calls = Counter()                              # collectives of (rank, group)
        self.collectives = defaultdict(list)    # (group, k) -> [(rank, Operation)], as they came
        # (sender, receiver, group, tag) -> Operations, in order
        self.sends = defaultdict(list)
        self.receives = defaultdict(list)
        self.takers = set()         # ranks that receive from whoever sends: not followed

    def add(self, rank, operation):
        """Take the next Operation of a rank; the Fault that it is, or None."""
        self.operations[rank].append(operation)
        if operation.name in MESSAGES:
            return self.message(rank, operation)
        key = operation.group, self.calls[rank, operation.group]
        self.calls[rank, operation.group] += 1
        calls = self.collectives[key]
        calls.append((rank, operation))
        # each pair has sizes of its own in all_to_all; else all must be like the first
        for other in calls if operation.name == "all_to_all" else calls[:1]:
            fault = unlike(key[1] + 1, *sorted([other, calls[-1]]), self.at)
            if fault is not None:
                return fault
        return None

    def message(self, rank, operation):
        sends = operation.name == "send"
        if operation.peer is None:
            self.takers.add(rank)
            return None
        pair = (rank, operation.peer) if sends else (operation.peer, rank)
        key = *pair, operation.group, operation.tag
        own, others = (self.sends, self.receives) if sends else (self.receives, self.sends)
        own[key].append(operation)
        k = len(own[key])
        if len(others[key]) < k or pair[1] in self.takers:
            return None
        sent = self.sends[key][k - 1]
        room = self.receives[key][k - 1]
        name = f"message {k} from rank {pair[0]} to rank {pair[1]}"
        if sent.numbers != room.numbers:
            return Fault("size", f"{name}: rank {pair[0]} sends {count(sent)}{self.at(sent.line)}, "
                         f"rank {pair[1]} receives {count(room)}{self.at(room.line)}: both must "
                         f"name the same size", pair[1])
        if sent.dtype != room.dtype:
            return Fault("dtype", f"{name}: rank {pair[0]} sends {sent.dtype}{self.at(sent.line)}, "
                         f"rank {pair[1]} receives {room.dtype}{self.at(room.line)}: both must "
                         f"name the same dtype", pair[1])
        return None

    def at(self, line):
        return f" ({self.file}, line {line})" if line else ""

    def unmet(self):
        """(sends that no rank receives, receives that no rank sends): [(rank, Operation)], in the
        order of their beginning.
        Those of ranks that receive from whoever sends are left out."""
        both = []
        for own, others, side in ((self.sends, self.receives, 0), (self.receives, self.sends, 1)):
            rows = [(key[side], operation) for key, begun in own.items()
                    if key[1] not in self.takers
                    for operation in begun[len(others.get(key, ())):]]
            both.append(sorted(rows, key=lambda row: row[1].at))
        return both

    def sender(self, rank):
        """(the rank whose send is to meet the last receive of `rank`, that send); (None, None)
        where that is no receive, or no such send has begun."""
        last = self.operations[rank][-1] if self.operations[rank] else None
        if last is not None and last.name == "recv" and rank not in self.takers:
            key = last.peer, rank, last.group, last.tag
            if len(self.sends[key]) >= len(self.receives[key]):
                return last.peer, self.sends[key][len(self.receives[key]) - 1]
        return None, None

    def place(self, rank, ending):
        """Words for where a rank waits."""
        last = self.operations[rank][-1] if self.operations[rank] else None
        if last is None:
            return f"before its first call{self.at(ending.line)}"
        if ending.line not in (None, last.line):
            return f"at {self.file}, line {ending.line}, after {described(last)}" \
                   f"{self.at(last.line)}"
        return f"in {described(last)}{self.at(last.line)}"


def unlike(k, one, other, at):
    """The Fault of two ranks' k-th collectives of a group, or None. one, other: (rank, Operation)
    """
    (a, first), (b, second) = one, other
    text = (f"collective {k}: rank {a} is in {described(first)}{at(first.line)}, rank {b} in "
            f"{described(second)}{at(second.line)}")
    if first.name != second.name:
        return Fault("order", f"{text}: all ranks must make the same calls in the same order", b)
    if first.name == "all_to_all":
        p = first.ranks.index(a)
        q = first.ranks.index(b)
        for (x, sender, to), (y, taker, source) in (((a, first, q), (b, second, p)),
                                                    ((b, second, p), (a, first, q))):
            if sender.pieces[to] != taker.received[source]:
                return Fault("size", f"collective {k}, all_to_all: rank {x} sends "
                             f"{plural(sender.pieces[to], 'number')} to rank {y}{at(sender.line)}, "
                             f"which expects {plural(taker.received[source], 'number')}"
                             f"{at(taker.line)}", b)
    elif first.pieces != second.pieces:
        return Fault("size", f"{text}: all ranks must hand over the same sizes", b)
    if first.peer != second.peer:
        return Fault("root", f"{text}, with roots {first.peer} and {second.peer}: all ranks must "
                     f"name the same root", b)
    if first.dtype != second.dtype:
        return Fault("dtype", f"{text}: the first hands over {first.dtype}, the second "
                     f"{second.dtype}; all must have one dtype", b)
    return None


def count(operation):
    return plural(operation.numbers, "number")


def described(operation):
    """A call in the words of a message."""
    tag = f" with tag {operation.tag}" if operation.tag else ""
    if operation.name == "send":
        return f"send of {count(operation)} to rank {operation.peer}{tag}"
    if operation.name == "recv":
        source = "any rank" if operation.peer is None else f"rank {operation.peer}"
        return f"recv of {count(operation)} from {source}{tag}"
    return f"{operation.name} of {count(operation)}" if operation.pieces else operation.name


# ---- the end


def explain(ledger, endings):
    """The Fault of ranks that have ended, or wait without an end; None where all is well.

    endings: an Ending a rank.
    Exceptions are told elsewhere: of ranks that raised, none is here.
    """
    for rank, ending in enumerate(endings):
        if ending.kind == "died":
            return Fault("died", dead(ledger, rank, endings), rank)
    for rank, ending in enumerate(endings):
        if ending.kind == "waits" and (fault := dropped(ledger, rank, endings)):
            return fault
    for rank, ending in enumerate(endings):
        if ending.kind == "computes":
            return Fault("endless", f"rank {rank} computes without an end"
                         f"{ledger.at(ending.line)}: an endless loop?{waiting(ledger, endings)}",
                         rank)
    stuck = [rank for rank, ending in enumerate(endings) if ending.kind == "waits"]
    if stuck:
        return deadlock(ledger, endings, stuck)
    lost, missing = ledger.unmet()
    for rank, operation in lost:
        return unreceived(ledger, rank, operation)
    for rank, operation in missing:
        return unsent(ledger, rank, operation)
    return None


def dropped(ledger, rank, endings):
    """The Fault of a send whose handle is gone, for which a rank waits in its receive; None where
    that is not so. gloo then never sends, and its thread may compute without an end."""
    other, send = ledger.sender(rank)
    line = endings[rank].line
    if other is None or line is None or line != ledger.operations[rank][-1].line \
            or endings[other].kind not in ("waits", "computes"):
        return None
    return Fault("no_wait", f"rank {other} began its {described(send)}{ledger.at(send.line)}, and "
                 f"rank {rank} waits for it in vain{ledger.at(line)}: keep the handle of a send, "
                 f"and wait for it in the end", other)


def unreceived(ledger, rank, operation):
    return Fault("lost_send", f"rank {rank} sends {count(operation)} to rank {operation.peer}"
                 f"{ledger.at(operation.line)}, and rank {operation.peer} never receives them: a "
                 f"send without a receive", rank)


def unsent(ledger, rank, operation):
    return Fault("missing_send", f"rank {rank} receives {count(operation)} from rank "
                 f"{operation.peer}{ledger.at(operation.line)}, and rank {operation.peer} never "
                 f"sends them: a receive without a send", rank)


def dead(ledger, rank, endings):
    code = endings[rank].code
    how = f"was ended by signal {-code}" if code < 0 else f"ended by itself, with exit code {code}"
    done = ledger.operations[rank]
    last = f" after it began {described(done[-1])}{ledger.at(done[-1].line)}" if done else ""
    return f"the process of rank {rank} {how}{last}{waiting(ledger, endings)}"


def waiting(ledger, endings):
    """What the other ranks wait in, as the end of a sentence."""
    places = [f"rank {rank} waits {ledger.place(rank, ending)}"
              for rank, ending in enumerate(endings) if ending.kind == "waits"]
    return "".join(f"; {place}" for place in places)


def deadlock(ledger, endings, stuck):
    """Ranks that wait for what cannot come."""
    over = {rank for rank, ending in enumerate(endings) if ending.kind == "returned"}
    lost, missing = ledger.unmet()
    early = early_return(ledger, endings, stuck, over) or no_wait(ledger, endings, stuck, over)
    if early:
        return early
    for rank, operation in missing:
        if rank in stuck and operation.peer in over:
            return unsent(ledger, rank, operation)
    for rank, operation in lost:
        if rank in stuck and operation.peer in over:
            return unreceived(ledger, rank, operation)
    mistake, why = circle(stuck, lost, missing)
    text = "; ".join(f"rank {rank} {ledger.place(rank, endings[rank])}" for rank in stuck)
    return Fault(mistake, f"the ranks wait for each other: {text}{why}", stuck[0])


def early_return(ledger, endings, stuck, over):
    """A rank that is over made fewer collective calls than one that waits in such a call."""
    for rank in stuck:
        last = ledger.operations[rank][-1] if ledger.operations[rank] else None
        if last is None or last.name in MESSAGES:
            continue
        for other in last.ranks:
            calls = ledger.calls[other, last.group]
            if other in over and calls < ledger.calls[rank, last.group]:
                return Fault("early_return", f"rank {other} returned after "
                             f"{plural(calls, 'collective')}; "
                             f"rank {rank} waits {ledger.place(rank, endings[rank])}: all ranks "
                             f"must make every call", other)
    return None


def no_wait(ledger, endings, stuck, over):
    """A rank that is over did not wait for a send of its own."""
    for rank in stuck:
        other, send = ledger.sender(rank)
        if other in over:
            return Fault("no_wait", f"rank {other} returned while its {described(send)}"
                         f"{ledger.at(send.line)} was still being sent, and rank {rank} waits for "
                         f"it{ledger.at(endings[rank].line)}: wait for the send before you return",
                         other)
    return None


def circle(stuck, lost, missing):
    """(mistake, why) of ranks that wait for each other. lost: sends that no rank receives
    missing: receives to which no rank sends"""
    if {rank for rank, _ in missing} >= set(stuck):
        if lost:
            return "missing_send", ". Each receives what no rank has begun to send"
        return "receive_first", (". A receive ends when a message comes, and no rank sends: begin "
                                 "the send first")
    if {rank for rank, _ in lost} >= set(stuck) and not missing:
        return "send_first", (". A send ends when the other side receives, and no rank receives: "
                              "begin the send with isend, receive, then wait for it")
    return "deadlock", ""
