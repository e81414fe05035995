"""Graders of s04. Requests are played by Drive; the oracle of a trace is the trace without a rush.

Cases carry the numbers of the course's list of what every engine must handle.
"""

import random

import pytest

from lab.judge.subject import Raised
from layer3_system import BlockPool, Drive, RequestError, Scheduler

# ---- a scheduler and all around it


def played(subject, P=64, S=4, **sizes):
    """Drive around the scheduler under test, on P pages of S slots."""
    pool = subject.make("layer3_system:BlockPool", P, S)
    scheduler = subject.Scheduler(pool, **sizes)
    return subject.make("layer3_system.testing.scheduler_driver:Drive", scheduler)


def own(P=64, S=4, **sizes):
    """Drive around the course's own scheduler, in this process."""
    return Drive(Scheduler(BlockPool(P, S), **sizes))


def counted(counts):
    """{name: tokens} of {request: tokens}."""
    return {request.id: n for request, n in counts.items()}


def told(counts):
    return ", ".join(f"{n} of {name}" for name, n in counts.items()) or "nothing"


def same(what, got, want, mistakes):
    """The parts of a step are those expected; mistakes: [(wrong parts, what they mean)]."""
    if got != want:
        why = next((why for wrong, why in mistakes if got == wrong), "")
        raise AssertionError(f"{what}: it computes {told(got)}; expected {told(want)}. {why}")


def calm(drive, what):
    """Nothing was ever wrong around the scheduler."""
    faults = drive.faults
    assert not faults, f"{what}: {faults[0]}"


# ---- situations that are drawn


def drawn_seats(rng):
    """Who runs, as Drive.seat takes it, and how many pages of four slots each holds."""
    seated = []
    for i in range(int(rng.integers(2, 6))):
        prompt, count = rng.integers((1, 2), (20, 12)).tolist()
        seated.append((f"s{i}", prompt, count, int(rng.integers(1, prompt + count - 1))))
    return seated, {name: -(-computed // 4) for name, *_, computed in seated}


def drawn_chunk(rng):
    return [None, 3, 8][rng.integers(3)]


def situation(drive, seated, queue=()):
    """A drive in which some run and some wait."""
    for entry in seated:
        drive.seat(*entry)
    for entry in queue:
        drive.add(*entry)
    return drive


def left_in(drive):
    """Which requests run, which wait, how many pages are held."""
    return drive.running, drive.waiting, drive.pool.used


# ---- predict_two_seats


def test_predict_two_seats(subject, truth):
    lens = [8, 2, 2, 2, 8, 2]

    def steps():
        drive = own(max_seqs=2)
        for i, count in enumerate(lens):
            drive.add(f"r{i}", 3, count)
        return drive.run()

    want, got = truth(steps), subject.predict_two_seats()
    assert type(got) is int, f"predict_two_seats: steps are a whole number, got {got!r}"
    near = {
        sum(max(pair) for pair in zip(lens[::2], lens[1::2], strict=True)):
            "that is the count of batches that wait for their longest. Here a seat is taken as "
            "soon as it is free",
        sum(lens) // 2: "that would be the count if no seat were ever empty. Which answer is still "
                        "written at the end, and what is beside it?",
        max(lens): "that is the longest answer alone. When does the second long one get a seat?",
        sum(lens): "that is one answer at a time. Two run at a time",
        2 * max(lens): "that would be right if the second long one waits for the first. There are "
                       "two seats",
    }.get(got, "Write down for each seat which request sits there, and until which step")
    assert got == want, f"predict_two_seats: {got} is not it: {near}."


# ---- Scheduler.admit_waiting

# name: (sizes, running, waiting, tokens left, expected, mistakes)
# a request: (name, tokens of the prompt, tokens of the answer, answers or tokens computed)
A, B, C, D = ((name, 3, 5, 1) for name in "abcd")
ADMISSIONS = {
    "three seats, four wait": (
        {"max_seqs": 3}, [], [A, B, C, D], 20, {"a": 3, "b": 3, "c": 3}, [
            ({}, "It is written into the counts that were handed in, and nowhere else."),
            ({"a": 3, "b": 3}, "One seat stays empty: max_seqs may run."),
            ({"a": 3, "b": 3, "c": 3, "d": 3}, "More run than there are seats."),
            ({"d": 3, "c": 3, "b": 3}, "It is last come, first served.")]),
    "one of three seats is taken": (
        {"max_seqs": 3}, [("x", 3, 5, 4)], [A, B, C], 20, {"a": 3, "b": 3}, [
            ({"a": 3, "b": 3, "c": 3}, "x sits on one of the three: who runs counts, too.")]),
    "20 tokens are left, prompts have 5, 30 and 4": (
        {}, [], [("a", 5, 2, 1), ("b", 30, 2, 1), ("c", 4, 2, 1)], 20, {"a": 5, "b": 15}, [
            ({"a": 5, "b": 30}, "The second prompt takes more than the budget leaves."),
            ({"a": 5, "b": 15, "c": 0},
             "The last one takes a seat and pages with no token left for it."),
            ({"a": 5}, "The second prompt is not begun, since it does not fit whole: it may be "
                       "computed in parts, and takes what the budget leaves."),
            ({"a": 5, "b": 20, "c": 4}, "`left` does not fall by what each gets."),
            ({"a": 5, "c": 4}, "A prompt may be computed in parts: it needs no step for itself.")]),
    "case 16: two prompts in parts, at most 8 tokens each": (
        {"chunk": 8}, [], [("a", 30, 2, 1), ("b", 30, 2, 1)], 14, {"a": 8, "b": 6}, [
            ({"a": 14}, "`tokens_left` knows the chunk, the rest of the prompt does not.")]),
    "six pages of four slots, the second prompt needs five, the third one": (
        {"P": 6}, [], [("a", 8, 4, 1), ("b", 20, 2, 1), ("c", 4, 2, 1)], 40, {"a": 8}, [
            ({"a": 8, "c": 4}, "A short one overtakes one that came before it: none may, or a "
                               "long one never gets its turn."),
            ({"a": 8, "b": 20}, "The second one runs and has no pages: `admit` says False."),
            ({"a": 8, "b": 20, "c": 4}, "The second one runs and has no pages: `admit` says "
                                        "False.")]),
    "two seats, three answers to the first prompt": (
        {"max_seqs": 2}, [], [("a", 3, 5, 3), B], 20, {}, [
            ({"a": 3, "b": 3}, "Requests are counted, not their answers: a needs three seats."),
            ({"b": 3}, "b overtakes a, which needs three seats.")]),
    "four seats, three answers to the first prompt, two to the second": (
        {"max_seqs": 4}, [], [("a", 3, 5, 3), ("b", 3, 5, 2), C], 20, {"a": 3}, [
            ({"a": 3, "b": 3, "c": 3}, "Each answer needs a seat, those of the requests that run, "
                                       "too: six would sit on four.")]),
    "five seats, three answers to the first prompt, two to the second": (
        {"max_seqs": 5}, [], [("a", 3, 5, 3), ("b", 3, 5, 2), C], 20, {"a": 3, "b": 3}, []),
    "20 tokens are left, as many as two prompts have, and one more waits": (
        {}, [], [("a", 10, 2, 1), ("b", 10, 2, 1), ("c", 1, 2, 1)], 20, {"a": 10, "b": 10}, []),
    "the last token goes to the first of two": ({}, [], [A, B], 1, {"a": 1}, []),
    "one seat, and one sits there": ({"max_seqs": 1}, [("x", 3, 5, 4)], [A], 20, {}, []),
    "three equal requests, pages for one": (
        {"P": 2}, [], [("a", 5, 2, 1), ("b", 5, 2, 1), ("c", 5, 2, 1)], 20, {"a": 5}, []),
    "the first of three does not fit": (
        {"P": 6}, [("x", 3, 5, 4)], [("a", 18, 2, 1), ("b", 3, 2, 1), C], 20, {}, []),
    "a budget past 31 bits": ({"budget": 2**32}, [], [A, B], 2**32, {"a": 3, "b": 3}, []),
    "no request waits": ({}, [("x", 3, 5, 4)], [], 20, {}, []),
    "nothing is left": ({}, [], [A], 0, {}, []),
}


def test_Scheduler_admit_waiting(subject):
    """Case 16 among others."""
    for name, case in ADMISSIONS.items():
        admit(subject, f"admit_waiting, {name}", *case)


def admit(subject, what, sizes, seated, queue, left, want, mistakes):
    drive = situation(played(subject, **sizes), seated, queue)
    counts = subject.make("collections:OrderedDict")
    for name, *_ in seated[:1]:         # running requests may be in the counts already
        counts.setdefault(drive.requests[name], 1)
    drive.scheduler.admit_waiting(counts, left)
    got = counted(counts)
    for name, *_ in seated[:1]:
        assert got.pop(name, None) == 1, f"{what}: what {name} computes was changed"
    same(what, got, want, mistakes)
    runs, waits = drive.running, drive.waiting
    assert runs == [e[0] for e in seated] + list(want), (
        f"{what}: {', '.join(runs)} run now; expected those that ran, then "
        f"{', '.join(want) or 'nobody'}")
    assert waits == [e[0] for e in queue if e[0] not in want], (
        f"{what}: {', '.join(waits) or 'nobody'} waits now. A request that is admitted leaves "
        f"the queue, the others stay in order")
    held = {name: len(drive.requests[name].table) for name in waits if drive.requests[name].table}
    assert not held, (
        f"{what}: requests that still wait hold pages, {held}. `admit` takes pages: ask for it "
        f"only when there is a seat")


def test_Scheduler_admit_waiting__known_pages(subject):
    """Tokens that the pool knows already are not missing once a request is admitted."""
    for known, want in (([0, 1, 2], {"a": 8, "b": 6}), ([0], {"a": 14}), ([], {"a": 14})):
        drive = situation(played(subject), [("x", 16, 5, 16)], [("a", 20, 2), ("b", 10, 2)])
        subject.make("builtins:setattr", drive.requests["a"], "hashes", known)
        subject.make("builtins:setattr", drive.pool, "match_prefix",
                     subject.make("operator:attrgetter", "hashes"))
        counts = subject.make("collections:OrderedDict")
        drive.scheduler.admit_waiting(counts, 14)
        same(f"admit_waiting, 14 tokens left, of the 20 of a the pool knows {4 * len(known)}",
             counted(counts), want, [
                 ({"a": 14}, "What the pool knows is not computed again. Ask for the tokens that "
                             "are left after `admit`, which finds the pages.")])


def test_Scheduler_admit_waiting__unseen(subject, rng, truth):
    def admitted():
        drive, counts = situation(own(**sizes), seated, queue), {}
        drive.scheduler.admit_waiting(counts, left)
        return counted(counts)

    for _ in range(25):
        seated, pages = drawn_seats(rng)
        queue = [(f"q{i}", *row) for i, row in enumerate(
            rng.integers(1, (20, 9, 4), (5, 3)).tolist())]
        sizes = {"P": sum(pages.values()) + int(rng.integers(6, 20)),
                 "max_seqs": int(rng.integers(4, 10)), "chunk": drawn_chunk(rng)}
        left = int(rng.choice([1, 2, sum(row[1] for row in queue[:2]), rng.integers(1, 50)]))
        admit(subject, f"admit_waiting, {sizes}, {left} tokens left, {seated} run, {queue} wait",
              sizes, seated, queue, left, truth(admitted), [])


# ---- Scheduler.preempt


def test_Scheduler_preempt(subject):
    """Case 18: the victim is at the head of the queue. Case 1: its pages are free."""
    drive = played(subject)
    drive.seat("a", 6, 9, 7)
    drive.seat("b", 5, 9, 7)                        # three tokens of its answer are there
    drive.add("c", 4, 2)
    victim = drive.requests["b"]
    answer = victim.output
    drive.scheduler.preempt(victim)
    assert drive.running == ["a"], (
        f"preempt: {', '.join(drive.running)} run. A request that is sent back "
        f"runs no more, all others do")
    assert drive.waiting == ["b", "c"], (
        f"preempt: {', '.join(drive.waiting) or 'nobody'} waits, in this order. It came before all "
        f"that wait, so it goes to the head of the queue")
    held = drive.pool.used
    assert held == 2, (
        f"preempt: {held} pages are held, {len(victim.table)} of them by the one that waits. That "
        f"is what it was sent away for: give them back to the pool")
    assert not victim.table, (
        f"preempt: the pages are back in the pool, and the table of the one that waits still names "
        f"{victim.table}. pool.release empties the list that it gets: hand in the table itself")
    assert victim.output == answer, (
        f"preempt: of its answer {len(victim.output)} tokens are left of {len(answer)}. They were "
        f"sent already: only keys and values are lost")
    assert victim.num_computed == 0, (
        f"preempt: num_computed is {victim.num_computed}. The pages that held those keys and "
        f"values are gone")
    assert victim.status == "waiting", f"preempt: its status is {victim.status}, expected waiting"
    assert victim.preemptions == 1, f"preempt: counted {victim.preemptions} times, expected 1"


def test_Scheduler_preempt__not_the_newest(subject):
    """The oldest, the one between, the only one, and one in the middle of its prompt."""
    for names, victim in (("abc", "a"), ("abc", "b"), ("a", "a"), ("abc", "c")):
        drive = played(subject, budget=2**32)
        for name in names:
            drive.seat(name, 6, 9, 4)
        drive.scheduler.preempt(drive.requests[victim])
        got, want = (drive.running, drive.waiting), (sorted({*names} - {victim}), [victim])
        assert got == want, (
            f"preempt of {victim}, {', '.join(names)} run: run and wait {got}, expected {want}: "
            f"the request that is handed in is sent back, the newest or not")
        assert drive.pool.used == len(names) - 1, (
            f"preempt of {victim}, {', '.join(names)} run with a page each: {drive.pool.used} are "
            f"held")


def test_Scheduler_preempt__unseen(subject, rng):
    for _ in range(12):
        seated, pages = drawn_seats(rng)
        runs, waits, gone = list(pages), ["w"], []
        drive = situation(played(subject), seated, [("w", 4, 2)])
        for name in rng.permutation(runs).tolist()[:3]:
            victim, gone = drive.requests[name], [*gone, name]
            answer = victim.output
            drive.scheduler.preempt(victim)
            runs.remove(name), waits.insert(0, name)
            what = f"preempt of {gone} in turn, {seated} run"
            want = runs, waits, sum(pages[each] for each in runs)
            assert left_in(drive) == want, (
                f"{what}: running, waiting, pages held: {left_in(drive)}, expected {want}")
            got = victim.output, victim.table, victim.num_computed, victim.status
            assert got == (answer, [], 0, "waiting"), (
                f"{what}: output, table, num_computed, status of the last one are {got}, expected "
                f"{(answer, [], 0, 'waiting')}")


# ---- Scheduler.finish


def test_Scheduler_finish(subject):
    """Case 19, the scheduler's part: decoding, in the middle of a prompt, waiting."""
    for where in ("decoding", "mid-prompt", "waiting", "z"):
        finish(subject, where)


def finish(subject, where):
    drive = played(subject, budget=2**32)
    drive.seat("a", 6, 9, 7)
    drive.seat("mid-prompt", 20, 9, 8)
    drive.seat("decoding", 5, 9, 7)
    drive.add("waiting", 4, 2)
    drive.add("z", 4, 2)
    request, held = drive.requests[where], drive.pool.used
    pages = len(request.table)
    try:
        drive.scheduler.finish(request, "abort")
    except Raised as error:
        raise AssertionError(f"finish: of a request that is {where} it raised {error}. Is it "
                             f"looked for in the queue that it is in?") from None
    left = [drive.running, drive.waiting]
    assert left == [[n for n in ("a", "mid-prompt", "decoding") if n != where],
                    [n for n in ("waiting", "z") if n != where]], (
        f"finish: of {where}, now {', '.join(left[0])} run and {', '.join(left[1])} wait. It "
        f"leaves its queue, and no other does")
    assert not request.table and drive.pool.used == held - pages, (
        f"finish: of {where}, {drive.pool.used} pages are held after {held}. It had {pages}, and "
        f"its pages never come back")
    assert request.status == "finished", (
        f"finish: the status is {request.status!r} at the end, expected 'finished'")
    assert request.reason == "abort", f"finish: the reason is {request.reason!r}, expected 'abort'"


def test_Scheduler_finish__twice(subject):
    """Case 19: finished, and finished again. The first reason stays."""
    drive = played(subject)
    drive.seat("a", 6, 9, 7)
    drive.seat("b", 5, 9, 7)
    request = drive.requests["b"]
    drive.scheduler.finish(request, "length")
    held = drive.pool.used
    try:
        drive.scheduler.finish(request, "abort")
    except Raised as error:
        raise AssertionError(f"finish: a second time it raised {error}. A client may leave just "
                             f"when its answer is over: then there is nothing to do") from None
    assert request.reason == "length", (
        f"finish: it ended by length; a second finish made it {request.reason!r}. What is over "
        f"stays as it was")
    assert drive.pool.used == held, "finish: a second time it changed the pages"


def test_Scheduler_finish__shared_pages(subject):
    """One of several answers that share their prompt's pages ends; the others still read them."""
    drive = played(subject, P=20)
    drive.add("a", 6, 9, 3)
    drive.step()
    first, second = drive.requests["a"], drive.requests["a.1"]
    prompt, refs = second.table[0], list(drive.pool.refs)
    drive.scheduler.finish(first, "abort")
    got, want = drive.pool.refs[prompt], refs[prompt] - 1
    why = "the others still read it" if got < want else \
        "the one that is over holds it no more. A page that others read loses a holder, too"
    assert got == want, (
        f"finish: of one of three answers that share the prompt's page {prompt}, that page now has "
        f"{got} holders, expected {want}: {why}")
    drive.run(40)
    calm(drive, "finish: of one of three answers to a prompt")


def test_Scheduler_finish__pages_not_full_yet(subject):
    """A request has pages for tokens that no step has computed so far: those go back, too."""
    drive = played(subject, budget=4, max_seqs=1)
    drive.add("a", 30, 2)
    drive.step()
    request, held = drive.requests["a"], drive.pool.used
    drive.scheduler.finish(request, "abort")
    assert drive.pool.used == 0, (
        f"finish: of a request with 4 of 30 tokens computed, {drive.pool.used} of its {held} pages "
        f"stay held: all in its table go back, also those that no token is in yet")


def test_Scheduler_finish__unseen(subject, rng):
    for _ in range(10):
        seated, pages = drawn_seats(rng)
        runs, waits, reasons, asked = list(pages), ["w0", "w1", "w2"], {}, []
        drive = situation(played(subject), seated, [(name, 4, 2) for name in waits])
        for name in rng.choice([*runs, *waits], 7).tolist():
            reason = str(rng.choice(["stop", "length", "abort", "error"]))
            request, asked = drive.requests[name], [*asked, (name, reason)]
            drive.scheduler.finish(request, reason)
            reasons.setdefault(name, reason)
            want = tuple([n for n in names if n not in reasons] for names in (runs, waits))
            want = (*want, sum(pages[n] for n in want[0]), "finished", reasons[name], [])
            got = (*left_in(drive), request.status, request.reason, request.table)
            assert got == want, (
                f"finish of {asked} in turn, {seated} run: running, waiting, pages held, "
                f"status, reason, table of the last one: {got}, expected {want}")


# ---- Scheduler.schedule_running

# name: (sizes, running, expected, mistakes); a request: (name, prompt, answer, computed)
TURNS = {
    "three decode": (
        {}, [("a", 5, 9, 6), ("b", 3, 9, 3), ("c", 8, 9, 12)], {"a": 1, "b": 1, "c": 1}, []),
    "two decode, a prompt lacks 20, the budget is 8": (
        {"budget": 8}, [("a", 5, 9, 6), ("b", 3, 9, 3), ("c", 24, 9, 4)],
        {"a": 1, "b": 1, "c": 6}, [
            ({"a": 1, "b": 1, "c": 1}, "A prompt gets one token as if it were decoding. It lacks "
                                       "all of its tokens, and the step has room."),
            ({"a": 1, "b": 1, "c": 5}, "One token is left over: one is set aside for each "
                                       "later request, and none is later than itself."),
            ({"a": 1, "b": 1, "c": 20}, "The last one gets all it lacks, more than is left."),
            ({"a": 1, "b": 1, "c": 8}, "In all that is more than the budget: what one gets is "
                                       "lost for the next.")]),
    "case 16: two prompts in parts of 4, the budget is 7": (
        {"budget": 7, "chunk": 4}, [("a", 24, 9, 8), ("b", 24, 9, 8)], {"a": 4, "b": 3}, [
            ({"a": 3, "b": 4}, "The newest is served first.")]),
    "a prompt lacks 20 and is older than two that decode, the budget is 6": (
        {"budget": 6}, [("a", 24, 9, 4), ("b", 5, 9, 6), ("c", 3, 9, 3)],
        {"a": 4, "b": 1, "c": 1}, [
            ({"a": 6}, "Nothing is left for those after the first: they stand still.")]),
    "one token for each": (
        {"budget": 3, "max_seqs": 3}, [("a", 24, 9, 4), ("b", 24, 9, 4), ("c", 24, 9, 4)],
        {"a": 1, "b": 1, "c": 1}, []),
    "one lacks exactly what is left, the budget is 9": (
        {"budget": 9}, [("a", 24, 9, 16), ("b", 5, 9, 6)], {"a": 8, "b": 1}, []),
    "one lacks one more than is left, the budget is 9": (
        {"budget": 9}, [("a", 25, 9, 16), ("b", 5, 9, 6)], {"a": 8, "b": 1}, [
            ({"a": 7, "b": 1}, "One token is left over: one is set aside for each "
                               "later request, and none is later than itself.")]),
    "three equal ones, the budget is 7": (
        {"budget": 7}, [("a", 24, 9, 4), ("b", 24, 9, 4), ("c", 24, 9, 4)],
        {"a": 5, "b": 1, "c": 1}, []),
    "a budget past 31 bits": (
        {"budget": 2**32}, [("a", 24, 9, 4), ("b", 5, 9, 6)], {"a": 20, "b": 1}, []),
    "no request runs": ({}, [], {}, []),
}


def test_Scheduler_schedule_running(subject):
    """Case 16 among others."""
    for name, (sizes, seated, want, mistakes) in TURNS.items():
        drive = situation(played(subject, **{"max_seqs": 4, **sizes}), seated)
        got = counted(drive.scheduler.schedule_running())
        same(f"schedule_running, {name}", got, want, mistakes)


def test_Scheduler_schedule_running__no_page_is_left(subject):
    """Case 1: the newest is preempted, and older ones get their turn."""
    drive = played(subject, P=5)
    drive.seat("a", 5, 9, 8)                        # two full pages: it needs a third
    drive.seat("b", 3, 9, 6)
    drive.seat("c", 3, 9, 3)
    got, waits = counted(drive.scheduler.schedule_running()), drive.waiting
    what = f"schedule_running, no page is left: it computes {told(got)}"
    assert waits, f"{what}, and no room was made: a has two full pages and needs a third"
    assert waits == ["c"], (
        f"{what}, and {' and '.join(waits)} wait, expected c alone. c was sent back: asking "
        f"for more pages for it takes them from the others")
    same("schedule_running, no page is left", got, {"a": 1, "b": 1}, [
        ({"a": 1, "b": 1, "c": 1}, "c was sent back to wait: it has no part in the step.")])


def test_Scheduler_schedule_running__the_newest_needs_the_page_itself(subject):
    """Case 1: the newest request is preempted itself when it needs a page."""
    drive = played(subject, P=4)
    drive.seat("a", 5, 9, 6)
    drive.seat("b", 3, 9, 8)
    got = counted(drive.scheduler.schedule_running())
    same("schedule_running, the newest needs a page and there is none", got, {"a": 1}, [
        ({"a": 1, "b": 0}, "A request with 0 tokens has no part in a step.")])


def test_Scheduler_schedule_running__nothing_is_kept_for_one_that_was_sent_back(subject):
    """a needs a page and gets c's: b may have all tokens that are left."""
    drive = played(subject, P=8, budget=7, max_seqs=5)
    drive.seat("a", 5, 9, 8)
    drive.seat("b", 20, 9, 4)
    drive.seat("c", 24, 9, 20)
    same("schedule_running, budget 7, a lacks 1 token and a page, b lacks 16, c is sent back for a",
         counted(drive.scheduler.schedule_running()), {"a": 1, "b": 6}, [
             ({"a": 1, "b": 5}, "One token is set aside for c, which runs no more: count those "
                                "that run after `make_room` of those before.")])


def test_Scheduler_schedule_running__at_the_edge_of_a_page(subject):
    """Case 6: prompts of 2·S - 1, 2·S and 2·S + 1 tokens. A page comes when it is needed, before
    the write."""
    S = 4
    for prompt in (2 * S - 1, 2 * S, 2 * S + 1):
        drive, held = played(subject, S=S), []
        drive.add("a", prompt, 7)
        for _ in range(7):
            drive.step()
            held.append(drive.pool.used)
        calm(drive, f"a prompt of {prompt} tokens, pages of {S}")
        want = [-(-(prompt + i) // S) for i in range(6)] + [0]
        assert held == want, (f"a prompt of {prompt} tokens, pages of {S}: step by step it holds "
                              f"{held} pages, expected {want}")


RUSH = [("a", 5, 20), ("b", 9, 14), ("c", 3, 17), ("d", 12, 9), ("e", 6, 11)]


def answers(drive, trace):
    """{name: tokens} after a trace that arrives whole at the start."""
    for entry in trace:
        drive.add(*entry)
    drive.run(500)
    calm(drive, "a trace")
    return {name: request.output for name, request in drive.requests.items()}


def test_Scheduler_schedule_running__preempted_or_not(subject, truth):
    """Case 1: the same tokens as without a rush. Case 16: in parts of any size."""
    want = truth(lambda: answers(own(), RUSH))
    for sizes in ({"P": 8}, {"P": 12, "budget": 5, "max_seqs": 5}, {"P": 9, "chunk": 2}):
        drive = played(subject, **sizes)
        got = answers(drive, RUSH)
        assert sum(r.preemptions for r in drive.requests.values()), (
            f"with {sizes} no request was sent back, and there are not enough pages for all")
        assert got == want, (f"with {sizes} not all answers are those of a pool with room for all: "
                             f"{[name for name in want if got[name] != want[name]]}")
        assert drive.pool.used == 0, f"with {sizes}, {drive.pool.used} pages are held at the end"


def test_Scheduler_schedule_running__steady_arrivals(subject):
    """Case 17: every step a prompt of 20 tokens comes, and 8 are computed a step. Who decodes gets
    a token in each step nevertheless."""
    drive = played(subject, P=400, budget=8, max_seqs=8)
    drive.add("first", 4, 30)
    for i in range(30):
        drive.step()
        drive.add(f"long {i}", 20, 5)
    sent = drive.sent["first"]
    calm(drive, "steady arrivals")
    assert sent == list(range(1, 31)), (
        f"while prompts arrive all the time, an answer gets tokens in the steps {sent} of 30: who "
        f"decodes advances in each")


def test_Scheduler_schedule_running__guesses_without_pages(subject, rng, truth):
    """Guesses for which no pages are left are dropped: then others may have what they asked for."""
    def picked(drive, put, guesses):
        drive.seat("a", 5, 9, 6)
        drive.add("b", 24, 9)
        drive.step()                    # b has all of its pages, and one is left
        put(drive.requests["a"], "draft", list(range(guesses)))
        return counted(drive.scheduler.schedule_running())

    for guesses, budget in ((5, 12), (2, 12), (6, 9), *rng.integers(5, (9, 20), (5, 2)).tolist()):
        sizes = {"P": 9, "budget": budget, "max_seqs": 5}
        want = truth(lambda sizes=sizes, guesses=guesses: picked(own(**sizes), setattr, guesses))
        got = picked(played(subject, **sizes),
                     lambda *entry: subject.make("builtins:setattr", *entry), guesses)
        lacks = 24 - (budget - 1)
        same(f"schedule_running, budget {budget}, a lacks 1 token and has {guesses} guesses, b "
             f"lacks {lacks}, one page is free", got, want, [
                 ({"a": 1, "b": min(lacks, budget - 1 - guesses)},
                  "a has no pages for its guesses, and computes 1 token. The rest of what it asked "
                  "for is still in the budget: `make_room` says how many it has pages for.")])


def test_Scheduler_schedule_running__unseen(subject, rng, truth):
    """Pages are short."""
    def picked(drive):
        return (counted(drive.scheduler.schedule_running()), *left_in(drive))

    def by_the_course():
        return picked(situation(own(**sizes), seated))

    for _ in range(30):
        seated, pages = drawn_seats(rng)
        sizes = {"P": sum(pages.values()) + int(rng.integers(3)), "max_seqs": 5,
                 "budget": int(rng.integers(5, 30)), "chunk": drawn_chunk(rng)}
        want, what = truth(by_the_course), f"schedule_running, {sizes}, {seated} run"
        counts, *left = picked(situation(played(subject, **sizes), seated))
        same(what, counts, want[0], [])
        assert left == list(want[1:]), \
            f"{what}: then run, wait, pages held: {left}, expected {list(want[1:])}"


# ---- what is given: coming


def test_a_prompt_that_no_pool_holds_is_refused_and_the_queue_goes_on():
    """Case 2: it is never prefilled. Case 3: P · S tokens are too many, one less is served."""
    drive = own(P=3)
    drive.add("a", 4, 3)
    for tokens in (12, 13, 500):
        with pytest.raises(RequestError, match=f"at most 11 tokens.* found {tokens}"):
            drive.add("large", tokens, 1)
    drive.add("edge", 11, 1)
    drive.add("b", 4, 2)
    drive.run(50)
    calm(drive, "after a refusal")
    assert {n: len(r.output) for n, r in drive.requests.items() if n != "large"} == \
        {"a": 3, "edge": 1, "b": 2}


def test_a_lone_request_that_outgrows_the_pool_ends_by_length():
    """Case 4: with the tokens that fit, and no preemption."""
    drive = own(P=3)
    drive.add("a", 5, 100)
    drive.add("b", 2, 3)
    assert drive.run(100) < 30
    calm(drive, "a lone request")
    a, b = drive.requests["a"], drive.requests["b"]
    assert (a.reason, len(a.output), a.preemptions) == ("length", 12 - 5, 0)
    assert (b.reason, len(b.output)) == ("length", 3)


def test_sizes_that_cannot_work_are_refused():
    for sizes in ({"max_seqs": 0}, {"max_seqs": 9, "budget": 8}, {"chunk": 0}):
        with pytest.raises(ValueError, match="Scheduler: expected"):
            Scheduler(BlockPool(4), **sizes)


# ---- what is given: pages


class Known(BlockPool):
    """A pool that knows the first pages of every request."""

    known = ()

    def match_prefix(self, request):
        return list(self.known)


def test_a_free_page_that_is_found_counts_once():
    """Case 10: it leaves the free list, so it is no longer there for the rest of the prompt."""
    pool = Known(4, 4)
    drive = Drive(Scheduler(pool))
    pool.known = [0, 1]
    exact, more = drive.make("exact", 16, 1), drive.make("more", 17, 1)
    assert not drive.scheduler.admit(more)          # five pages, two found and two free
    assert list(pool.free) == [2, 3, 1, 0] and not more.table and not any(pool.refs)
    assert drive.scheduler.admit(exact)
    assert exact.table[:2] == [0, 1] and len(set(exact.table)) == 4 and not pool.free
    assert (exact.num_computed, exact.num_cached, exact.num_cached_pages) == (8, 8, 2)


def test_a_newcomer_leaves_a_page_for_each_that_runs():
    drive = own(P=6)
    drive.seat("a", 4, 9, 4)
    drive.seat("b", 4, 9, 4)
    assert not drive.scheduler.admit(drive.make("c", 9, 1))         # three of four free pages
    assert drive.scheduler.admit(drive.make("d", 8, 1))


def test_guesses_go_before_anybody_does():
    drive = own(P=3)
    drive.seat("a", 5, 9, 6)
    drive.seat("b", 3, 9, 3)
    a = drive.requests["a"]
    a.draft = [1, 2, 3]                             # slots for two more, a page for the others
    assert counted(drive.scheduler.schedule_running()) == {"a": 1, "b": 1}
    assert a.draft == [] and drive.waiting == []


def test_answers_to_one_prompt_write_into_pages_of_their_own():
    drive = own(P=40, max_seqs=4, budget=7, chunk=4)
    drive.add("long", 20, 3)
    drive.add("a", 6, 9, 3)
    drive.run(100)
    calm(drive, "three answers")
    outputs = [r.output for n, r in drive.requests.items() if n.startswith("a")]
    assert len({tuple(o) for o in outputs}) == 3 and {len(o) for o in outputs} == {9}


# ---- cases of the whole


def test_two_prompts_in_parts_share_a_step():
    """Case 16: the sum stays within the budget, and a part gives no token."""
    drive = own(max_seqs=3, budget=7, chunk=4)
    drive.add("a", 10, 2)
    drive.add("b", 6, 2)
    assert [drive.step() for _ in range(4)] == [
        {"a": 4, "b": 3}, {"a": 4, "b": 3}, {"a": 2, "b": 1}, {"a": 1}]
    assert drive.sent == {"a": [3, 4], "b": [2, 3]}
    calm(drive, "two prompts in parts")


def test_nobody_comes_in_the_step_in_which_somebody_goes():
    """Case 18: and the victim is the next to come."""
    drive, seen = own(P=9, max_seqs=5), 0
    for entry in RUSH:
        drive.add(*entry)
    while drive.scheduler.running or drive.scheduler.waiting:
        running, victims = drive.running, [r for r in drive.requests.values() if r.preemptions]
        before = {r.id: r.preemptions for r in victims}
        drive.step()
        gone = [n for n, r in drive.requests.items() if r.preemptions > before.get(n, 0)]
        if gone:
            seen += 1
            assert set(drive.history[-1]) - set(running) <= set(drive.waiting)
            assert drive.waiting[:len(gone)] == [n for n in running if n in gone]
    assert seen and not drive.faults


def random_trace(seed, count=40):
    rng = random.Random(seed)
    return [(f"r{i}", rng.randint(1, 30), rng.randint(1, 30)) for i in range(count)]


@pytest.mark.parametrize("seed", range(4))
def test_nobody_is_sent_back_again_and_again(seed):
    """Case 18: each time, it has written at least one token since; and seldom."""
    drive = own(P=20, max_seqs=8)
    for entry in random_trace(seed):
        drive.add(*entry)
    written = {}
    while drive.scheduler.running or drive.scheduler.waiting:
        drive.step()
        for name, request in drive.requests.items():
            now = request.preemptions, len(request.output)
            then = written.get(name, (0, 0))
            assert now[0] <= then[0] + 1
            if now[0] > then[0]:
                assert now[1] > then[1], f"{name} is sent back with nothing done since"
                written[name] = now
    calm(drive, "a rush")
    assert written and max(r.preemptions for r in drive.requests.values()) <= 5


@pytest.mark.parametrize("sizes", [
    {"P": 20}, {"P": 16, "chunk": 3}, {"P": 30, "budget": 6, "max_seqs": 6}], ids=str)
def test_random_days(sizes):
    """600 steps with requests that come and go, in any state: what must hold holds after each."""
    rng, drive, number = random.Random(7), own(**{"max_seqs": 6, **sizes}), 0
    for _ in range(600):
        if rng.random() < 0.25:
            answers = rng.choice([1, 1, 1, 3])
            drive.add(f"r{number}", rng.randint(1, 25), rng.randint(1, 20), answers)
            number += 1
        drive.step()
        if drive.requests and rng.random() < 0.1:
            request = rng.choice(list(drive.requests.values()))
            if not request.leader and not request.forks:
                drive.scheduler.finish(request, "abort")
    drive.run(5000)
    calm(drive, "random days")
    assert all(r.status == "finished" for r in drive.requests.values()) and number > 100
    assert drive.pool.used == 0
