"""Graders of s04: Drive plays requests; the oracle of a trace is the trace without a rush.

Cases carry the numbers of the course's list of what every engine must handle.
"""

import contextlib
import re

from lab.judge.mistakes import mistake, named, raises
from lab.judge.subject import Raised
from layer3_system import BlockPool, Drive, Scheduler
from tests.layer3_system.oracle_s04_continuous_batching import (
    ADMISSIONS,
    LENS,
    NOTHING_FOR_B,
    RUNS,
    SEATS,
    SHORT_OF_PAGES,
    TURNS,
    UNCHANGED,
    WAITS,
    misplaced,
)

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


def names(requests):
    """The names of requests in a message."""
    return f"[{', '.join(requests)}]"


def same(what, got, want, mistakes):
    """The parts of a step are those expected; mistakes: {id: (sentence, wrong parts, …)}."""
    if got != want:
        name, why = next(((name, why) for name, (why, *wrong) in mistakes.items() if got in wrong),
                         ("", ""))
        text = f"{what}: the step computes {told(got)}; expected {told(want)}. {why}"
        raise AssertionError(mistake(name, text.rstrip(), why))


def calm(drive, what):
    """Nothing was ever wrong around the scheduler."""
    assert not drive.faults, f"{what}: {drive.faults[0]}"


@contextlib.contextmanager
def with_a_table():
    """Within this context pages are given back, as pool.release(request.table) does."""
    with named("no_table", "pool.release takes a table: pass request.table.",
               lambda error: re.search("' object is not (iter|revers)ible", str(error))), \
            named("frees_itself", "Give pages back with pool.release(request.table): the pool "
                                  "knows what else reads them.",
                  lambda error: "OrderedDict" in str(error)):
        yield


def unchanged(request):
    """{field: value} of what must stay as it is."""
    return {"pending": request.pending, "limit": request.limit,
            "forks": [each.id for each in request.forks]}


def stays(what, request, before):
    for field, now in unchanged(request).items():
        assert now == before[field], mistake(f"changes_{field}", (
            f"{what}: {field} was {before[field]}, and is {now}. {UNCHANGED[field]}"),
            UNCHANGED[field])


# ---- situations that are drawn


def drawn_seats(rng):
    """Running requests, as Drive.seat takes them, and the pages of four slots that each holds."""
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


def stays_a_deque(drive, what):
    assert type(drive.scheduler.waiting) is not list, mistake("list_queue", (
        f"{what}: waiting is a list now. The scheduler needs a deque, with its two ends: change it "
        f"in place."), "change it in place")


def left_in(drive):
    """Which requests run, which wait, how many pages are allocated."""
    return drive.running, drive.waiting, drive.pool.used


# ---- predict_two_seats


def test_predict_two_seats(subject, truth):
    queue = [(f"r{i}", 3, count) for i, count in enumerate(LENS)]
    want = truth(lambda: situation(own(max_seqs=2), [], queue).run())
    got = subject.predict_two_seats()
    assert type(got) is int, f"predict_two_seats: steps are a whole number, got {got!r}"
    name, why = SEATS.get(got, ("", "Write down for each seat which request holds it, and until "
                                    "which step."))
    assert got == want, mistake(name, f"predict_two_seats: {got} is not right. {why}", why)


# ---- Scheduler.admit_waiting

def test_Scheduler_admit_waiting(subject):
    """Case 16 among others."""
    for name, case in ADMISSIONS.items():
        admit(subject, f"admit_waiting, {name}", *case)


def admit(subject, what, sizes, seated, queue, left, want, mistakes):
    drive = situation(played(subject, **sizes), seated, queue)
    counts = subject.make("collections:UserDict")
    for name, *_ in seated[:1]:         # running requests may be in the counts already
        counts.setdefault(drive.requests[name], 1)
    drive.scheduler.admit_waiting(counts, left)
    got = counted(counts)
    for name, *_ in seated[:1]:
        assert got.pop(name, None) == 1, f"{what}: what {name} computes was changed"
    runs, waits = drive.running, drive.waiting
    assert len(runs) == len({*runs}), mistake("not_popped", (
        f"{what}: running is {names(runs)}. {runs[-1]} is admitted again and again: take it out of "
        f"the queue."), "take it out of the queue")
    first = [name for name, *_ in seated]
    new = [name for name in runs if name not in first]
    assert got or not new, mistake("own_counts", (
        f"{what}: running is {names(runs)}, but `counts` got nothing. Write into the `counts` that "
        f"you are given; a new dict is lost."), "write into the `counts` that you are given")
    assert {*got} <= {*new}, mistake("not_running", (
        f"{what}: the step computes {told(got)}, but running is {names(runs)}: an admitted request "
        f"goes there."), "an admitted request goes there")
    same(what, got, want, mistakes)
    assert runs == first + list(want), (f"{what}: running is {names(runs)}; expected the requests "
                                        f"that ran before, then {names(want)}")
    assert waits == [e[0] for e in queue if e[0] not in want], (
        f"{what}: waiting is {names(waits)}. An admitted request leaves the queue; the others keep "
        f"their order.")
    early = [name for name in want if drive.requests[name].num_computed]
    assert not early, mistake("admit_adds", (
        f"{what}: num_computed of {early[0]} has risen. `schedule` adds the tokens later: write "
        f"them into `counts` alone."), "write them into `counts` alone")
    status = [drive.requests[name].status for name in want]
    assert status == ["running"] * len(want), mistake("own_status", (
        f"{what}: the status of those that were admitted is {names(status)}. `admit` sets it to "
        f"running: leave it."), "`admit` sets it to running: leave it")
    held = [name for name in waits if drive.requests[name].table]
    assert not held, mistake("admits_before_seats", (
        f"{what}: {names(held)} still wait, but hold pages. `admit` allocates them: call it only "
        f"if there is a seat."))


def test_Scheduler_admit_waiting__known_pages(subject):
    """Tokens that the pool knows already are not missing once a request is admitted."""
    for P, known, want in ((64, [0, 1, 2], {"a": 8, "b": 6}), (64, [0], {"a": 14}),
                           (64, [], {"a": 14}), (8, [0, 1, 2], {"a": 8})):
        drive = situation(played(subject, P), [("x", 16, 5, 16)], [("a", 20, 2), ("b", 10, 2)])
        subject.make("builtins:setattr", drive.requests["a"], "hashes", known)
        subject.make("builtins:setattr", drive.pool, "match_prefix",
                     subject.make("operator:attrgetter", "hashes"))
        counts = subject.make("collections:UserDict")
        drive.scheduler.admit_waiting(counts, 14)
        same(f"admit_waiting, 14 tokens left, of the 20 of a the pool knows {4 * len(known)}, "
             f"{P - 4} of {P} pages are free", counted(counts), want, {
                 "own_pages": ("a needs no more pages than are free, since others hold what the "
                               "pool knows: only `admit` can tell.", {}),
                 "asks_before_admit": ("What the pool knows is not computed again. Ask for the "
                                       "tokens that are left after `admit`, which finds the "
                                       "pages.", {"a": 14})})


def test_Scheduler_admit_waiting__preempted_before(subject):
    drive = situation(played(subject), [], [("a", 3, 5), ("b", 3, 5)])
    subject.make("builtins:setattr", drive.requests["a"], "preemptions", 2)
    counts = subject.make("collections:UserDict")
    drive.scheduler.admit_waiting(counts, 20)
    same("admit_waiting, a was preempted in an earlier step", counted(counts), {"a": 3, "b": 3}, {
        "skips_preempted": ("It is admitted as any other, or it never ends.", {}, {"b": 3})})


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
        admit(subject, f"admit_waiting, {sizes}, {left} tokens left, (name, prompt, answer, "
              f"computed) {seated} run, (name, prompt, answer, answers) {queue} wait", sizes,
              seated, queue, left, truth(admitted), {})


# ---- Scheduler.preempt


def test_Scheduler_preempt(subject):
    """Case 18: the victim is at the head of the queue; case 1: its pages are free."""
    drive = situation(played(subject), [("a", 6, 9, 7), ("b", 5, 9, 7)], [("c", 4, 2)])
    victim = drive.requests["b"]
    answer = victim.output              # three tokens of it are there
    forks = [drive.make("fork", 5, 9)]
    for thing, field, value in ((victim, "pending", 1), (victim, "forks", forks),
                                (drive.scheduler, "copies", {40: 41})):
        subject.make("builtins:setattr", thing, field, value)
    before = unchanged(victim)
    with with_a_table():
        drive.scheduler.preempt(victim)
    stays_a_deque(drive, "preempt")
    assert len(victim.prompt) == 5, mistake("answer_in_prompt", (
        f"preempt: the prompt had 5 tokens and has {len(victim.prompt)} now. `tokens` is already "
        f"prompt and answer: leave both as they are."))
    assert drive.running == ["a"], mistake(
        "still_running", f"preempt: running is {names(drive.running)}. A preempted request no "
                         f"longer runs; all others do.")
    assert "fork" not in drive.waiting, mistake("queues_forks", (
        f"preempt: waiting is {names(drive.waiting)}. `fork` starts the answers in b's forks once "
        f"b's prompt is complete: they need no place in the queue."), "they need no place")
    assert drive.waiting == ["b", "c"], mistake("tail_of_queue", (
        f"preempt: waiting is {names(drive.waiting)}, expected [b, c]. The preempted request "
        f"arrived before those that wait, so it goes to the head of the queue."))
    held = drive.pool.used
    assert held == 2 or victim.table, mistake("emptied_first", (
        f"preempt: {held} pages are still allocated, expected 2, and the table is empty. Do "
        f"not empty it before: pool.release(request.table) frees its pages and empties it."))
    assert held == 2, mistake("pages_kept", (
        f"preempt: {held} pages are still allocated, {len(victim.table)} of them to the preempted "
        f"request. Freeing them is the point of preemption: give them back to the pool."))
    assert not victim.table, mistake("table_kept", (
        f"preempt: the pages are free, but the table of the preempted request still names "
        f"{victim.table}. pool.release empties the list that it gets: pass the table itself."))
    assert victim.output == answer, mistake(
        "answer_lost", f"preempt: {len(victim.output)} of the {len(answer)} tokens of its answer "
                       f"are left. The client has them already: only keys and values are lost.")
    assert victim.num_computed == 0, mistake(
        "still_computed", f"preempt: num_computed is {victim.num_computed}, expected 0: the pages "
                          f"with those keys and values are gone.")
    assert victim.status == "waiting", mistake(
        "status_kept", f"preempt: its status is {victim.status}, expected waiting.")
    assert victim.preemptions == 1, f"preempt: counted {victim.preemptions} times, expected 1"
    assert victim.reason is None, mistake("has_a_reason", (
        f"preempt: its reason is {victim.reason!r}, expected None: it has not ended."))
    stays("preempt", victim, before)
    assert drive.scheduler.copies == {40: 41}, mistake("copies_lost", (
        f"preempt: copies was {{40: 41}}, and is {drive.scheduler.copies}: the step still has to "
        f"copy this page for another request."), "the step still has to copy")


def test_Scheduler_preempt__not_the_newest(subject):
    """The oldest, the one between, the only one, and one in the middle of its prompt."""
    for runs, victim in (("abc", "a"), ("abc", "b"), ("a", "a"), ("abc", "c")):
        drive = situation(played(subject), [(name, 6, 9, 4) for name in runs])
        drive.scheduler.preempt(drive.requests[victim])
        got = drive.running, drive.waiting
        want = sorted({*runs} - {victim}), [victim]
        lost = [name for name in runs if name not in got[0] + got[1]]
        assert not lost, mistake("others_lost", (
            f"preempt of {victim}, running was {names(runs)}: {names(lost)} neither run nor wait. "
            f"Take out {victim} alone."), "neither run nor wait")
        assert got == want, mistake(
            "newest", f"preempt of {victim}, running was {names(runs)}: (running, waiting) is "
                      f"{got}, expected {want}: preempt the request that you are given, whether or "
                      f"not it is the newest.")
        assert drive.pool.used == len(runs) - 1, (
            f"preempt of {victim}, running was {names(runs)} with a page each: {drive.pool.used} "
            f"are still allocated")


def test_Scheduler_preempt__unseen(subject, rng):
    for _ in range(12):
        seated, pages = drawn_seats(rng)
        runs, waits, gone = list(pages), ["w"], []
        drive = situation(played(subject), seated, [("w", 4, 2)])
        for name in rng.permutation(runs).tolist()[:3]:
            victim = drive.requests[name]
            gone = [*gone, name]
            answer = victim.output
            drive.scheduler.preempt(victim)
            runs.remove(name)
            waits.insert(0, name)
            what = f"preempt of {gone} in turn, {seated} run"
            want = runs, waits, sum(pages[each] for each in runs)
            assert left_in(drive) == want, (
                f"{what}: running, waiting, allocated pages: {left_in(drive)}, expected {want}")
            got = victim.output, victim.table, victim.num_computed, victim.status
            assert got == (answer, [], 0, "waiting"), (
                f"{what}: output, table, num_computed, status of the last one are {got}, expected "
                f"{(answer, [], 0, 'waiting')}")


# ---- Scheduler.finish


def test_Scheduler_finish(subject):
    """Case 19, the scheduler's part: decoding, in the middle of a prompt, waiting."""
    for where in ("decoding", "mid-prompt", "queued", "z"):
        finish(subject, where)


def finish(subject, where):
    drive = situation(played(subject), [("a", 6, 9, 7), ("mid-prompt", 20, 9, 8),
                                        ("decoding", 5, 9, 7)], [("queued", 4, 2, 2), ("z", 4, 2)])
    request, held = drive.requests[where], drive.pool.used
    pages = len(request.table)
    answer, before = request.output, unchanged(request)
    with raises("one_list", ValueError, f"finish: '{where}' is in one of the lists: "
                                        f"remove it from that one."), with_a_table():
        drive.scheduler.finish(request, "abort")
    stays_a_deque(drive, "finish")
    assert request.output == answer, mistake("answer_lost", (
        f"finish: {len(request.output)} of the {len(answer)} tokens of its answer are left; the "
        f"client has yet to read them."))
    left = drive.running, drive.waiting
    name, why = misplaced(*left, where)
    assert left == tuple([n for n in each if n != where] for each in (RUNS, WAITS)), mistake(
        name, f"finish of {where}, running was {names(RUNS)} and waiting {names(WAITS)}: running "
              f"is {names(left[0])} and waiting {names(left[1])}. {why}", why)
    assert not request.table or drive.pool.used > held - pages, mistake("table_kept", (
        f"finish('{where}'): its table still lists {len(request.table)} pages that "
        f"it no longer holds. release(request.table) empties the list: pass the table itself."),
        "release(request.table) empties the list: pass the table itself")
    assert drive.pool.used == held - pages, mistake(
        "pages_kept", f"finish('{where}') leaves {drive.pool.used} pages allocated of {held}. The "
                      f"request held {pages}: its pages never come back.")
    assert request.status == "finished", mistake(
        "status_kept", f"finish: the status is {request.status!r} at the end, expected 'finished'.")
    assert request.reason == "abort", mistake(
        "own_reason", f"finish: the reason is {request.reason!r}, expected 'abort'.")
    stays(f"finish of {where}", request, before)


def test_Scheduler_finish__twice(subject):
    """Case 19: finished, and finished again; the first reason stays."""
    drive = situation(played(subject), [("a", 6, 9, 7), ("b", 5, 9, 7)])
    request = drive.requests["b"]
    drive.scheduler.finish(request, "length")
    held = drive.pool.used
    with named("second_raises", "finish, a second time: a client may disconnect just as its answer "
               "ends; then there is nothing to do", lambda error: isinstance(error, Raised)):
        drive.scheduler.finish(request, "abort")
    assert request.reason == "length", mistake(
        "reason_changed", f"finish: it finished by length, and the second call changed the reason "
                          f"to {request.reason!r}. What is over stays as it is.")
    assert drive.pool.used == held, mistake(
        "released_again", "finish: the second call changed the pages")


def test_Scheduler_finish__shared_pages(subject):
    """One of several answers that share their prompt's pages ends; the others still read them."""
    drive = played(subject, P=20)
    drive.add("a", 6, 9, 3)
    drive.step()
    first, second = drive.requests["a"], drive.requests["a.1"]
    prompt, refs = second.table[0], list(drive.pool.refs)
    drive.scheduler.finish(first, "abort")
    got, want = drive.pool.refs[prompt], refs[prompt] - 1
    name, why = ("takes_from_others", "The other answers still read it.") if got < want else (
        "shared_kept", "The finished answer no longer holds it. A page that others read loses a "
                       "holder, too.")
    assert got == want, mistake(
        name, f"finish: one of three answers that share the prompt's page {prompt} has finished. "
              f"That page now has {got} holders, expected {want}: {why}", why)
    drive.run(40)
    calm(drive, "finish, one of three answers to a prompt")


def test_Scheduler_finish__pages_not_full_yet(subject):
    """A request has pages for tokens that no step has computed so far: those go back, too."""
    drive = played(subject, budget=4, max_seqs=1)
    drive.add("a", 30, 2)
    drive.step()
    request, held = drive.requests["a"], drive.pool.used
    drive.scheduler.finish(request, "abort")
    assert drive.pool.used == 0, mistake("computed_pages_only", (
        f"finish: a request with 4 of 30 tokens computed keeps {drive.pool.used} of its {held} "
        f"pages: give back its whole table, pages without tokens included."))


def test_Scheduler_finish__unseen(subject, rng):
    for _ in range(10):
        seated, pages = drawn_seats(rng)
        runs = list(pages)
        waits = ["w0", "w1", "w2"]
        reasons = {}
        asked = []
        drive = situation(played(subject), seated, [(name, 4, 2) for name in waits])
        for name in rng.choice([*runs, *waits], 7).tolist():
            reason = str(rng.choice(["stop", "length", "abort", "error"]))
            request = drive.requests[name]
            asked = [*asked, (name, reason)]
            drive.scheduler.finish(request, reason)
            reasons.setdefault(name, reason)
            want = tuple([n for n in each if n not in reasons] for each in (runs, waits))
            want = (*want, sum(pages[n] for n in want[0]), "finished", reasons[name], [])
            got = (*left_in(drive), request.status, request.reason, request.table)
            assert got == want, (
                f"finish of {asked} in turn, {seated} run: running, waiting, allocated "
                f"pages, status, reason, table of the last one: {got}, expected {want}")


# ---- Scheduler.schedule_running

def test_Scheduler_schedule_running(subject):
    """Case 16 among others."""
    take_turns(subject, TURNS)


def take_turns(subject, situations):
    for name, (sizes, seated, want, mistakes) in situations.items():
        drive = situation(played(subject, **{"max_seqs": 4, **sizes}), seated)
        got = counted(drive.scheduler.schedule_running())
        same(f"schedule_running, {name}", got, want, mistakes)
        for each, _, _, computed in seated:
            now = drive.requests[each].num_computed
            assert each not in want or now >= computed, mistake("admits_running", (
                f"schedule_running, {name}: num_computed of {each} falls from {computed} to {now}. "
                f"`admit` is for waiting requests; for running ones call `make_room`."), "")
            assert each not in want or now == computed, mistake("adds_computed", (
                f"schedule_running, {name}: num_computed of {each} rises from {computed} to {now}. "
                f"`schedule` adds the tokens later: only return them."), "only return them")


def test_Scheduler_schedule_running__nothing_to_compute(subject):
    """Case 32: the last token of b is on its way; it runs, and has nothing to compute."""
    for name, (budget, c, want, mistakes) in NOTHING_FOR_B.items():
        drive = situation(played(subject, budget=budget, max_seqs=4),
                          [("a", 5, 9, 6), ("b", 5, 9, 6), ("c", *c)])
        subject.make("builtins:setattr", drive.requests["b"], "limit", 7)
        got = counted(drive.scheduler.schedule_running())
        assert drive.running == ["a", "b", "c"], mistake("removed", (
            f"schedule_running: running is {names(drive.running)}. b lacks no token, but its last "
            f"one has not arrived: it stays."), "it stays")
        same(f"schedule_running, {name}", got, want, mistakes)


def test_Scheduler_schedule_running__no_page_is_left(subject):
    """Case 1: the newest is preempted, itself if it needs a page, and older ones get their turn."""
    drive = situation(played(subject, P=5), [("a", 5, 9, 8), ("b", 3, 9, 6), ("c", 3, 9, 3)])
    got, waits = counted(drive.scheduler.schedule_running()), drive.waiting
    what = f"schedule_running, no page is left: the step computes {told(got)}"
    assert waits, mistake("no_room", f"{what}, and no request was preempted, although a has filled "
                                     f"its two pages and needs a third: call `make_room`.")
    assert waits == ["c"], mistake("room_for_preempted", (
        f"{what}, and waiting is {names(waits)}, expected [c]. c was already preempted; do not "
        f"call `make_room` for it again, or it takes pages from the others."))
    same("schedule_running, no page is left", got, {"a": 1, "b": 1}, {
        "preempted_in_step": ("c was preempted: leave it out of the step.",
                              {"a": 1, "b": 1, "c": 1})})
    take_turns(subject, SHORT_OF_PAGES)


def test_Scheduler_schedule_running__a_page_to_be_copied(subject):
    """Case 15: the next token of a goes into a page that another answer reads, too."""
    drive = situation(played(subject), [("a", 5, 9, 6), ("b", 3, 9, 3)])
    request = drive.requests["a"]
    old = request.table[1]
    drive.pool.share([old])
    drive.scheduler.schedule_running()
    copies, want = drive.scheduler.copies, {request.table[1]: old}
    assert copies == want, mistake("drops_copies", (
        f"schedule_running: copies is {copies}, expected {want}: `make_room` noted there what the "
        f"step has to copy, and `schedule` empties it before."), "`schedule` empties it before")


def test_Scheduler_schedule_running__at_the_edge_of_a_page(subject):
    """Case 6: prompts of 2·S - 1, 2·S and 2·S + 1 tokens.
    A page comes when it is needed, before the write."""
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
    situation(drive, [], trace).run(500)
    calm(drive, "a trace")
    return {name: request.output for name, request in drive.requests.items()}


def test_Scheduler_schedule_running__preempted_or_not(subject, truth):
    """Case 1: the same tokens as without a rush; case 16: in parts of any size."""
    want = truth(lambda: answers(own(), RUSH))
    for sizes in ({"P": 8}, {"P": 12, "budget": 5, "max_seqs": 5}, {"P": 9, "chunk": 2}):
        drive = played(subject, **sizes)
        got = answers(drive, RUSH)
        assert sum(r.preemptions for r in drive.requests.values()), (
            f"with {sizes} nothing was preempted, although there are too few pages for all")
        assert got == want, (f"with {sizes} not all answers are those of a pool with room for all: "
                             f"{[name for name in want if got[name] != want[name]]}")
        assert drive.pool.used == 0, f"with {sizes}, {drive.pool.used} pages are never freed"


def test_Scheduler_schedule_running__steady_arrivals(subject):
    """Case 17: at every step a prompt of 20 tokens arrives, and 8 tokens are computed.
    A request that decodes gets a token in each step nevertheless."""
    drive = played(subject, P=400, budget=8, max_seqs=8)
    drive.add("first", 4, 30)
    for i in range(30):
        drive.step()
        drive.add(f"long {i}", 20, 5)
    sent = drive.sent["first"]
    calm(drive, "steady arrivals")
    assert sent == list(range(1, 31)), mistake(
        "starved", f"while prompts keep arriving, the running answer gets tokens in steps {sent} "
                   f"of 30; it must get one in every step")


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
             f"lacks {lacks}, one page is free", got, want, {
                 "subtracts_wanted": (
                     "a has no pages for its guesses, and computes 1 token. The rest of what it "
                     "asked for is still in the budget: subtract what `make_room` returns.",
                     {"a": 1, "b": min(lacks, budget - 1 - guesses)})})


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
        same(what, counts, want[0], {})
        assert left == list(want[1:]), \
            f"{what}: running, waiting, allocated pages: {left}, expected {list(want[1:])}"
