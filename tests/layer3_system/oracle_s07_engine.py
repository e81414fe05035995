"""The rules of s07 by hand: what each step computes, steps to be built, and what is drawn of them.
And engines that are looked at: a whole one after every step, one of requests alone, which end in
any state, and one whose parts only note that they are called."""

import numpy as np

from lab.judge.compare import brief
from lab.judge.mistakes import mistake, named, raises
from layer3_system import mock_scores

ASKS, BUDGET = [(10, 2), (3, 4), (5, 1)], 8
NEVER = "The last token of an answer is never computed: nothing follows it."


def by_rules(budget=BUDGET, last=1, phases=False, one=False):
    """Rows by simple rules. last: tokens of an answer that need not be computed    phases: no
    answer goes on while a prompt is not done    one: each begins when the one before is over"""
    done, rows = [0] * len(ASKS), []
    total = [prompt + count - last for prompt, count in ASKS]
    while done != total:
        left, row, cut = budget, [0] * len(ASKS), any(
            d < prompt for d, (prompt, _) in zip(done, ASKS, strict=True))
        for i, (prompt, _) in enumerate(ASKS):
            missing = prompt - done[i] if done[i] < prompt else min(1, total[i] - done[i])
            held = phases and cut and done[i] >= prompt or one and done[:i] != total[:i]
            row[i] = 0 if held else min(missing, left)
            left -= row[i]
        done = [d + n for d, n in zip(done, row, strict=True)]
        rows.append(tuple(row))
    return rows


def first_slip(rows, want):
    """(id, sentence) of what is wrong in the first row that differs, "" for what has no id."""
    for i, (row, right) in enumerate(zip(rows, want, strict=False)):
        for k, (prompt, count) in enumerate(ASKS if row != right else ()):
            done, total = sum(r[k] for r in rows[:i]), prompt + count - 1
            if done + row[k] == total + 1:
                return "computes_last", NEVER
            if row[k] < right[k] and sum(row) < BUDGET:
                return "budget_unused", (
                    f"{'abc'[k]} has {total} tokens to compute, and {done} are done. In this step "
                    f"it gets {row[k]}, although {BUDGET - sum(row)} of the budget are unused.")
            if row[k] < right[k] and any(row[k + 1:]):
                return "not_in_order", (
                    f"{'abc'[k]} arrived before the others that get tokens, and {row[k]} are not "
                    f"all that it could compute: the budget goes to it first.")
        if row != right:
            break
    return "", "Which request does the budget reach first, and what is left for the next?"


# name: (S, [(prompt, output, draft, pages of its table, computed, n)])
STEPS = {
    "the rest of a prompt": (4, [(range(10, 18), (), (), (3, 2), 8, 3)]),
    "a token more, beside a part of a prompt and a whole one": (4, [
        (range(20, 26), (30, 31), (), (2, 5), 8, 1), (range(40, 60), (), (), (7, 0, 4), 11, 5),
        (range(70, 73), (), (), (6,), 3, 3)]),
    "answers at and around the end of a page (case 6)": (4, [
        ((1, 2, 3), (), (), (9,), 3, 3), ((1, 2, 3, 4), (), (), (8,), 4, 4),
        ((1, 2, 3, 4), (5,), (), (7, 2), 5, 1)]),
    "guesses, and a token that is still being computed": (2, [
        ((1, 2, 3), (4,), (5, 6), (3, 0, 8), 6, 3), ((7, 8), (9,), (), (5, 1), 4, 1)]),
    "pages of one slot": (1, [((4, 4), (4,), (), (6, 2, 0), 3, 3)]),
}


# ---- engines that are looked at

REQUEST = "layer3_system.s01_request:Request"
PARAMS = "layer3_system.s01_request:SamplingParams"
SCHEDULER = "layer3_system.s04_continuous_batching:Scheduler"
MOCK = "layer3_system.testing.mock_llama:"
WATCHED = "lab.judge.mocks:Watched"
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def alone(prompt, count):
    """The likeliest tokens after a prompt, for a request that shares nothing."""
    context = list(prompt)
    for _ in range(count):
        context.append(int(mock_scores(context).argmax()))
    return context[len(prompt):]


class Run:
    """An engine of the code under test, its parts the course's, and a note after each step."""

    def __init__(self, subject, P=12, S=4, budget=8, max_seqs=4, chunk=None, room=64,
                 pool="s02_block_pool:BlockPool", **parts):
        self.make = subject.make
        self.pool = self.make(f"layer3_system.{pool}", P, S)
        self.scheduler = self.make(SCHEDULER, self.pool, max_seqs, budget, chunk)
        self.engine = subject.Engine(self.make(f"{MOCK}MockLlama", room), self.make(
            f"{MOCK}ByteTokenizer"), self.pool, self.scheduler, **parts)
        self.recorder = self.make("layer3_system.recorder:Recorder", self.engine, True)
        self.got = {}                   # these three by name
        self.ended = {}
        self.prompts = {}
        self.requests = {}

    def submit(self, name, prompt, **params):
        """[Request] of the engine, as handles."""
        params = self.make(PARAMS, **(GREEDY | params))
        requests = self.engine.submit(prompt, params, name)
        names = [name] if len(requests) == 1 else [f"{name}/{i}" for i in range(len(requests))]
        self.prompts |= dict.fromkeys(names, prompt)
        self.got |= {each: [] for each in names}
        self.requests |= dict(zip(names, requests, strict=True))
        return requests

    def step(self):
        """The note of one step, after which all that must hold does."""
        note = self.recorder.run(1)[-1]
        for name, tokens in note["new"].items():
            self.got[name] += tokens
        self.ended |= note["ended"]
        for name, error in note["errors"].items():
            stub = error.removeprefix("NotImplementedError: ")
            assert stub == error, f"it needs {stub.split(':')[0]}, which is still a stub"
            raise AssertionError(f"step {note['step']}: request {name} fails: {error}")
        self.hold(note)
        return note

    def hold(self, note):
        """The invariants: what must hold after any step."""
        step = f"after step {note['step']}"
        rules = self.make("layer3_system.engine.invariants:broken_rules", self.scheduler,
                          self.engine.counts)
        assert not rules, f"{step}: {rules[0]}"
        pages = note["pages"]
        ahead = self.engine.overlap
        for name, request in pages["requests"].items():
            n, room = request["computed"], len(request["table"]) * pages["slots"]
            known = len(self.prompts[name] + self.got[name])
            assert n <= room, f"{step}: {n} tokens of {name} in {room} slots"
            assert n <= known + ahead, f"{step}: {n} tokens of {name} computed, it has {known}"

    def drain(self, most=200):
        """Steps until no request is left: the notes.
        Then no page is held."""
        notes = []
        while self.engine.busy:
            assert len(notes) < most, f"after {most} steps there are still requests: " \
                f"{notes[-1]['running']} running, {notes[-1]['waiting']} waiting"
            notes.append(self.step())
        assert not self.pool.used, \
            f"no request is left, but {self.pool.used} pages are still allocated"
        states = {name: request.status for name, request in self.requests.items()
                  if request.status != "finished"}
        assert self.engine.submitted == self.engine.finished, mistake("not_each_counted", (
            f"{self.engine.submitted} requests have ended, engine.finished is "
            f"{self.engine.finished}: count the end of each once, in whatever state it was. "
            f"{f'Not finished are {states}' if states else 'All have the status finished'}."))
        return notes

    def as_alone(self, what, *names, count=None):
        """Each of these has the tokens that it gets alone."""
        for name in names:
            want = alone(self.prompts[name], count or len(self.got[name]))
            assert self.got[name] == want, (
                f"{what}: request {name} gets {self.got[name]}, alone it gets {want}")


class Desk:
    """A scheduler with requests in every state, in an engine without a model that has only what an
    end needs; and what should become of each."""

    def __init__(self, subject, rng):
        self.make = subject.make
        self.rng = rng
        self.told = []
        self.pool = self.make("layer3_system.s02_block_pool:BlockPool", 24, 4)
        self.scheduler = self.make(SCHEDULER, self.pool, int(rng.integers(1, 7)),
                                   int(rng.integers(6, 20)))
        self.params = self.make(PARAMS)
        self.state = self.make("operator:attrgetter", "status", "reason", "error", "finished_at")
        self.clock = self.make(WATCHED, None, 0.0)
        self.engine = self.make("types:SimpleNamespace", scheduler=self.scheduler, finished=0,
                                clock=self.clock, pool=self.pool)
        self.requests = {}              # these two by name
        self.over = {}
        for leader in "abcd"[:rng.integers(1, 5)]:
            self.come(leader, int(rng.integers(4)))
        self.leader = {name: name[0] for name in self.requests if len(name) > 1}
        self.scheduler.schedule()
        self.before = {name: self.state(r)[0] for name, r in self.requests.items()}
        self.held = {name: len(r.table) for name, r in self.requests.items()}

    def come(self, name, others):
        tokens = self.rng.integers(9, size=int(self.rng.integers(1, 12))).tolist()
        first, *forks = (self.make(REQUEST, each, tokens, self.params)
                         for each in [name, *(f"{name}{i}" for i in range(others))])
        for i, other in enumerate(forks):
            self.make("builtins:setattr", other, "leader", first)
            self.requests[f"{name}{i}"] = other
        self.make("builtins:setattr", first, "forks", forks)
        self.requests[name] = first
        self.scheduler.add(first)

    def end(self, subject, number):
        """End one of them, for some reason; a finished one stays as it is."""
        name = str(self.rng.choice(list(self.requests)))
        reason = str(self.rng.choice(["abort", "stop", "length", "error"]))
        error = f"error {number}" if reason == "error" else None
        self.told.append(f"{name} by {error or reason}")
        self.make("builtins:setattr", self.clock, "answer", float(number))
        subject.end_request(self.engine, self.requests[name], reason, error)
        for each in [name, *(n for n, leader in self.leader.items() if leader == name)]:
            self.over.setdefault(each, ("finished", reason, error, float(number)))

    def hold(self):
        what = f"end_request, {self.before}, ended in turn: {', '.join(self.told)}: "
        for name, request in self.requests.items():
            got = self.state(request)
            want = self.over.get(name, (self.before[name], None, None, None))
            assert tuple(got) == want, mistake(
                "wrong_end", f"{what}{name} has status, reason, error, finished_at {tuple(got)}, "
                             f"expected {want}", "what the request says of its end is wrong")
        assert self.engine.finished == len(self.over), \
            f"{what}engine.finished is {self.engine.finished}, expected {len(self.over)}"
        left = {name for name in self.requests if name not in self.over}
        for queue in ("running", "waiting"):
            names = [r.id for r in getattr(self.scheduler, queue)]
            want = [n for n in self.requests if n in left and n not in self.leader
                    and self.before[n] == queue]
            assert names == want, f"{what}{queue} are {names}, expected {want}"
        for name in left - set(self.leader):
            got = [r.id for r in self.requests[name].forks]
            want = [n for n, leader in self.leader.items() if leader == name and n in left]
            kind = "forks_reordered" if sorted(got) == sorted(want) else ""
            assert got == want, mistake(
                kind, f"{what}the forks of {name} are {got}, expected {want}",
                "the other forks must keep their order")
        used = sum(pages for name, pages in self.held.items() if name in left)
        assert self.pool.used == used, \
            f"{what}{self.pool.used} pages are allocated, expected {used}"


# ---- a step, and what is drawn of it


class Counted:
    """Requests of a step, and how many of their newest tokens it computes."""

    def __init__(self, subject, S, rows):
        """rows: [(prompt, output, draft, pages of its table, computed, n)]"""
        self.S = S
        self.rows = rows
        params = subject.make(PARAMS)
        self.requests = [subject.make(
            REQUEST, f"request-{b}", list(prompt), params, output=list(output), draft=list(draft),
            table=list(table), num_computed=computed)
            for b, (prompt, output, draft, table, computed, _) in enumerate(rows)]
        self.counts = {r: row[-1] for r, row in zip(self.requests, rows, strict=True)}
        self.owner = [(b, i) for b, row in enumerate(rows) for i in range(row[4] - row[5], row[4])]

    def as_before(self, what):
        """Building a step leaves the requests as they are."""
        for b, (request, row) in enumerate(zip(self.requests, self.rows, strict=True)):
            of = "prompt", "output", "draft", "table", "num_computed"
            for field, want in zip(of, row, strict=False):
                want = want if isinstance(want, int) else list(want)
                got = getattr(request, field)
                assert got == want, mistake(
                    "changes_request", f"{what}: it changes {field} of request {b} from "
                    f"{brief(want)} to {brief(got)}: build_step must only read the requests.",
                    "build_step must only read the requests")

    def at(self, i):
        return f"token {self.owner[i[0]][1]} of request {self.owner[i[0]][0]}"

    def each(self, of):
        """of(row, i) for each token of the step, in its order."""
        return np.array([of(self.rows[b], i) for b, i in self.owner])


def is_the_step(subject, agree, name, S, rows):
    inputs = Counted(subject, S, rows)
    with raises("past_the_end", IndexError, (
            "num_computed already counts the n tokens: positions go from num_computed - n to "
            "num_computed - 1. Position i lies in page i // S of the table, place i % S.")), named(
            "not_padded", "Pad each table with 0 to the length of the longest.",
            lambda error: "expected sequence of length" in str(error)):
        step = subject.build_step(inputs.counts, S)
    assert step is not None, "build_step: got nothing (None), expected a Batch"
    inputs.as_before(f"build_step, {name}")
    lens, ends = np.ravel(step.lens).tolist(), [row[4] for row in rows]
    assert lens == ends or sorted(lens) != sorted(ends), mistake("reordered", (
        f"build_step, {name}: lens is {lens}, expected {ends}: the requests come in another order "
        f"than in `counts`."), "in another order than in `counts`")
    each = inputs.each

    def token(row, i):
        return [*row[0], *row[1], *row[2], 0][i]

    def slot(row, i, size=S):
        return row[3][min(i // size, len(row[3]) - 1)] * size + i % size

    def first(row, i):
        return i - row[4] + row[5]

    what = f"build_step, {name}: "

    def field(name, want, at, mistakes):
        got, same = getattr(step, name), {}
        for id, (sentence, wrong) in mistakes.items():
            if len(wrong) == len(want):
                same[id] = sentence, wrong
            assert id in same or not np.array_equal(got, wrong), mistake(id, (
                f"{what}{name}: length {len(wrong)}, expected {len(want)}: {sentence}"), sentence)
        agree(got, want, "exact", what + name, at=at, mistakes=same)

    field("tokens", each(token), inputs.at, {
        "first_tokens": ("you take the first n tokens of a request, not those that end at "
                         "num_computed", each(lambda row, i: token(row, first(row, i)))),
        "last_known": ("you take the last n known tokens; the step computes those that end at "
                       "num_computed",
                       each(lambda row, i: ([*row[0], *row[1], *row[2]] * 2)[i - row[4]])),
        "last_of_known": ("you take the last n of known_tokens, which ends with a 0: they end at "
                          "num_computed", each(lambda row, i: token(row, i - row[4]))),
        "tokens_only": ("request.tokens has neither guesses nor the 0: take known_tokens", [
            t for row in rows for t in [*row[0], *row[1]][row[4] - row[5]:row[4]]])})
    positions = each(lambda row, i: i)
    field("positions", positions, inputs.at, {
        "positions_from_0": ("you count positions from the first token of this step", each(first)),
        "starts_at_computed": ("you start at num_computed; this step's tokens end there",
                               each(lambda row, i: i + row[5])),
        "positions_16_bits": ("positions are cut to 16 bits",
                              positions.astype(np.int16).astype(int))})
    slots = each(slot)
    field("slots", slots, inputs.at, {
        "ignores_table": ("you ignore the table and use pages 0, 1, … of the pool", positions),
        "first_slot": ("you start at the first slot of the table and overwrite earlier tokens",
                       each(lambda row, i: slot(row, first(row, i)))),
        "count_as_end": ("slots_of takes the position at which the tokens end, not their number", [
            slot(row, i) for row in rows for i in range(row[4] - row[5], row[5])]),
        "pages_of_4": ("pages have 4 slots; use S", each(lambda row, i: slot(row, i, 4))),
        "slots_32_bits": ("slots are cut to 32 bits", slots.astype(np.int32).astype(int))})
    width = max(len(row[3]) for row in rows)

    def padded(fill, front=False):
        pads = [[fill(row)] * (width - len(row[3])) for row in rows]
        return np.array([[*pad, *row[3]] if front else [*row[3], *pad]
                         for pad, row in zip(pads, rows, strict=True)])

    b_of = lambda i: f"request {i[0]}" + (f", page {i[1]}" if len(i) > 1 else "")   # noqa: E731
    field("block_tables", padded(lambda row: 0), b_of, {
        "padded_otherwise": ("you pad a shorter table with something other than 0",
                             padded(lambda row: -1)),
        "padded_with_last": ("you pad a shorter table with its last page",
                             padded(lambda row: row[3][-1])),
        "padded_in_front": ("you pad a shorter table at the front",
                            padded(lambda row: 0, front=True))})
    ns = [row[5] for row in rows]
    field("cu_q", np.array([0, *np.cumsum(ns)]), lambda i: f"entry {i[0]}", {
        "lens_as_cu_q": ("that is lens: as_batch takes cu_q before lens", np.array(ends)),
        "no_running_sum": ("you give the counts, not their running sum", np.array([0, *ns])),
        "no_first_0": ("cu_q begins with 0, where the first request starts", np.cumsum(ns))})
    field("lens", np.array(ends), b_of, {
        "new_only": ("you count only the new tokens, not the whole context", np.array(ns)),
        "all_known": ("you count all tokens, computed or not", np.array(
            [len([*row[0], *row[1], *row[2]]) for row in rows])),
        "counted_twice": ("you count this step's tokens twice: num_computed already includes them",
                          np.array([row[4] + row[5] for row in rows]))})
    kinds = {"tokens": "int64", "positions": "int64", "slots": "int64", "block_tables": "int32",
             "cu_q": "int32", "lens": "int32"}
    for name, kind in kinds.items():
        assert getattr(step, name).is_contiguous(), f"{what}{name} is a view with gaps"
        dtype = str(getattr(step, name).dtype).removeprefix("torch.")
        assert dtype == kind, mistake("dtype", (
            f"{what}{name} has dtype {dtype}, the kernels expect {kind}: as_batch makes it."))


def draws(subject, rows, every=False):
    """[(name, row)] of to_draw. rows: [(id, tokens of the prompt, of the answer, pending, computed,
    n, [ids of those that wait for its prompt])].
    Tokens computed beyond all of these are guesses."""
    params = subject.make(PARAMS)

    def request(id, prompt, answer=0, **more):
        return subject.make(REQUEST, id, [1] * prompt, params, output=[2] * answer,
                            status="running", **more)

    counts = {request(id, prompt, answer, pending=pending, num_computed=computed,
                      draft=[3] * (computed - prompt - answer - pending),
                      forks=[request(other, prompt) for other in forks]): n
              for id, prompt, answer, pending, computed, n, forks in rows}
    got = subject.to_draw(counts, every)
    assert isinstance(got, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in got), \
        f"to_draw: expected a list of pairs (request, row), got {got!r}"
    assert not any(isinstance(first, int) for first, _ in got), mistake(
        "swapped", "to_draw: a pair is (request, row); yours begin with the row.")
    state = subject.make("operator:attrgetter", "pending", "num_computed")
    for request, (id, _, _, pending, computed, _, forks) in zip(counts, rows, strict=True):
        left = *state(request), len(request.forks)
        want = pending, computed, len(forks)
        assert left == want, mistake(
            "changes_request", f"to_draw: it changes (pending, num_computed, number of forks) of "
                               f"{id} from {want} to {left}: to_draw must only read the requests.")
    return [(request.id, row) for request, row in got]


def compare_draws(got, want, rows, every, mistakes=None):
    """mistakes: {id: (sentence, pairs)}, what comes out of each"""
    state = {id: f"{id}: num_computed {computed}, num_tokens {prompt + answer}, pending {pending}"
             for id, prompt, answer, pending, computed, _, _ in rows}
    mistakes = (mistakes or {}) | {
        "reordered": ("the pairs are right, but not in the order of the rows",
                      got if sorted(got) == sorted(want) else None)}
    name, why = next(((name, f"\nThis is what comes out when {text}.")
                      for name, (text, pairs) in mistakes.items() if pairs == got), ("", ""))

    def say(text):
        return mistake(name, f"to_draw: {text}.{why}", why)

    drawn = [id for id, _ in got]
    right = [id for id, _ in want]
    for id in drawn:
        assert id in right, say(f"{id} gets a token and should not. " + state.get(
            id, f"{id} waits for a prompt that is not complete, or has drawn before"))
    for id in right:
        assert id in drawn, say(f"{id} gets no token. " + state.get(
            id, f"{id} waits for a prompt, which is complete now"))
    for (id, row), pair in zip(want, got, strict=False):
        assert (id, row) == pair, say(
            f"every is {every}, the counts are {', '.join(f'{id}: {n}' for id, *_, n, _ in rows)}: "
            f"expected row {row} for {id}, got row {pair[1]} for {pair[0]}")
    assert len(got) == len(want), say(f"a request appears twice: {got}")


# ---- an engine whose parts only note that they are called


def mock_engine(subject, counts, flights, overlap=False):
    """An engine whose parts only note that they were called: (engine, its parts)."""
    def make(**names):
        return subject.make("types:SimpleNamespace", **names)

    def watched(answer=None):
        return subject.make(WATCHED, None, answer)

    outputs = [make(request="a", tokens=[7], text=text, reason=None) for text in ("", "text")]
    parts = {"guess": watched(), "schedule": watched(counts), "launch": watched(flights),
             "commit": watched(outputs)}
    scheduler = make(schedule=parts["schedule"], running=["a"], waiting=[])
    engine = make(guess=parts["guess"], launch=parts["launch"], commit=parts["commit"],
                  scheduler=scheduler, overlap=overlap, flights=["before"], counts="stale")
    return engine, parts


def called(subject, overlap, behind):
    """[[name, arguments …]] of one step, in the order of the calls."""
    engine, parts = mock_engine(subject, {"a": 1}, ["new", "newer"], overlap)
    order = subject.make("collections:deque")

    def put(*what):
        subject.make("builtins:setattr", *what)

    for name, part in parts.items():
        put(part, "calls", order)
        put(engine.scheduler if name == "schedule" else engine, name,
            subject.make("functools:partial", part, name))
    put(engine, "flights", behind)
    subject.run_step(engine)
    return [list(call) for call in order]
