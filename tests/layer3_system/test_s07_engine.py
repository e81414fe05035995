"""Graders of s07. The parts against what they should give by the book; the engine they make by what
must hold after every step, and by the tokens that each request gets alone.

The engine is driven beside the code under test, on a model whose every score can be worked out; a
note comes back after each step. Case numbers are those of the course's list for engines.
"""

import numpy as np
import pytest

from lab.judge.compare import brief
from lab.judge.subject import Raised
from layer3_system import (
    BlockPool,
    ByteTokenizer,
    Engine,
    MockLlama,
    Pages,
    Recorder,
    SamplingParams,
    Scheduler,
    check_engine,
    mock_scores,
)

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
        self.scheduler = self.make("layer3_system.s04_continuous_batching:Scheduler", self.pool,
                                   max_seqs, budget, chunk)
        self.model = self.make("layer3_system.testing.mock_llama:MockLlama", room)
        tokenizer = self.make("layer3_system.testing.mock_llama:ByteTokenizer")
        self.engine = subject.Engine(self.model, tokenizer, self.pool, self.scheduler, **parts)
        self.recorder = self.make("layer3_system.recorder:Recorder", self.engine, True)
        self.budget, self.max_seqs = budget, max_seqs
        self.got, self.ended, self.prompts = {}, {}, {}         # by name

    def submit(self, name, prompt, **params):
        """[Request] of the engine, as handles."""
        params = self.make("layer3_system.s01_request:SamplingParams", **(GREEDY | params))
        requests = self.engine.submit(prompt, params, name)
        names = [name] if len(requests) == 1 else [f"{name}/{i}" for i in range(len(requests))]
        self.prompts |= dict.fromkeys(names, prompt)
        self.got |= {each: [] for each in names}
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
        pages, step = note["pages"], f"after step {note['step']}"
        tables = [request["table"] for request in pages["requests"].values()]
        held = np.bincount([page for table in tables for page in table], minlength=pages["pages"])
        for page, (holders, counted) in enumerate(zip(held, pages["refs"], strict=True)):
            assert holders == counted, \
                f"{step}: page {page} is in {holders} tables, and counts {counted}"
        computed = sum(note["counts"].values())
        assert computed <= self.budget, f"{step}: {computed} tokens, the budget is {self.budget}"
        assert len(note["running"]) <= self.max_seqs, f"{step}: {note['running']} run"
        ahead = self.engine.overlap
        for name, request in pages["requests"].items():
            n, room = request["computed"], len(request["table"]) * pages["slots"]
            known = len(self.prompts[name] + self.got[name])
            assert n <= room, f"{step}: {n} tokens of {name} in {room} slots"
            assert n <= known + ahead, f"{step}: {n} tokens of {name} computed, it has {known}"

    def drain(self, most=200):
        """Steps until no request is left: the notes. Then no page is held."""
        notes = []
        while self.engine.busy:
            assert len(notes) < most, f"after {most} steps a request is still there: " \
                f"{notes[-1]['running']} running, {notes[-1]['waiting']} waiting"
            notes.append(self.step())
        assert not self.pool.used, f"no request is left, and {self.pool.used} pages are held"
        assert self.engine.submitted == self.engine.finished, \
            f"{self.engine.submitted} requests came, {self.engine.finished} are counted as over"
        return notes

    def as_alone(self, what, *names, count=None):
        """Each of these has the tokens that it gets alone."""
        for name in names:
            want = alone(self.prompts[name], count or len(self.got[name]))
            assert self.got[name] == want, (
                f"{what}: request {name} gets {self.got[name]}, alone it gets {want}")


# ---- predict_steps


ASKS, BUDGET = [(10, 2), (3, 4), (5, 1)], 8


def computed_by_the_engine():
    """Rows of tokens by request, from the course's engine."""
    pool = BlockPool(20, 4)
    engine = Engine(MockLlama(), ByteTokenizer(), pool, Scheduler(pool, 8, BUDGET))
    for name, (prompt, count) in zip("abc", ASKS, strict=True):
        engine.submit([1] * prompt, SamplingParams(**(GREEDY | {"max_tokens": count})), name)
    notes = Recorder(engine).run()
    return [tuple(note["counts"].get(name, 0) for name in "abc") for note in notes]


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


def test_predict_steps(subject, truth):
    want, got = truth(computed_by_the_engine), subject.predict_steps()
    assert want == by_rules()
    assert isinstance(got, (list, tuple)) and all(
        isinstance(row, (list, tuple)) and len(row) == 3 for row in got), \
        f"predict_steps: expected a row of three numbers for each step, got {got!r}"
    got = [tuple(row) for row in got]
    mistakes = {
        "The last token of an answer is never computed: no token follows it.":
            by_rules(last=0),
        "Here answers wait until the prompts are done. A step knows no phases: a request past its "
        "prompt gets one token, and the rest of the budget goes on.": by_rules(phases=True),
        "Here one request begins when the one before is over. A newcomer joins the next step that "
        "has budget left.": by_rules(one=True),
        "Here no step has a budget. A prompt of 10 tokens is cut at 8.": by_rules(budget=10**6)}
    why = next((text for text, rows in mistakes.items() if rows == got), "")
    for i, (row, right) in enumerate(zip(got, want, strict=False)):
        more = f" That is more than the budget of {BUDGET}." if sum(row) > BUDGET else ""
        assert row == right, f"predict_steps: step {i + 1} computes {right} tokens of (a, b, c), " \
            f"not {row}.{more}\n{why}"
    assert len(got) == len(want), \
        f"predict_steps: {len(got)} steps, the engine takes {len(want)}.\n{why}"


# ---- build_step


class Counted:
    """Requests of a step, and how many of their newest tokens it computes."""

    def __init__(self, subject, S, rows):
        """rows: [(prompt, output, draft, pages of its table, computed, n)]"""
        self.S, self.rows = S, rows
        params = subject.make("layer3_system.s01_request:SamplingParams")
        self.requests = [subject.make(
            "layer3_system.s01_request:Request", f"request-{b}", list(prompt), params,
            output=list(output), draft=list(draft), table=list(table), num_computed=computed)
            for b, (prompt, output, draft, table, computed, _) in enumerate(rows)]
        self.counts = {r: row[-1] for r, row in zip(self.requests, rows, strict=True)}
        self.owner = [(b, i) for b, row in enumerate(rows) for i in range(row[4] - row[5], row[4])]

    def as_before(self, what):
        """A step is laid out from the requests, and they stay as they are."""
        for b, (request, row) in enumerate(zip(self.requests, self.rows, strict=True)):
            of = "prompt", "output", "draft", "table", "num_computed"
            for field, want in zip(of, row, strict=False):
                want = want if isinstance(want, int) else list(want)
                got = getattr(request, field)
                assert got == want, f"{what}: it changes {field} of request {b} from " \
                    f"{brief(want)} to {brief(got)}; a step only reads its requests"

    def at(self, i):
        return f"token {self.owner[i[0]][1]} of request {self.owner[i[0]][0]}"

    def each(self, of):
        """of(row, i) for each token of the step, in its order."""
        return np.array([of(self.rows[b], i) for b, i in self.owner])


STEPS = {
    "a prompt": (4, [(range(10, 15), (), (), (3, 1), 5, 5)]),
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


@pytest.mark.parametrize("name", STEPS)
def test_build_step(subject, agree, name):
    is_the_step(subject, agree, name, *STEPS[name])


def is_the_step(subject, agree, name, S, rows):
    given = Counted(subject, S, rows)
    step = subject.build_step(given.counts, S)
    assert step is not None, "build_step: got nothing (None), expected a Batch"
    given.as_before(f"build_step, {name}")

    def token(row, i):
        return [*row[0], *row[1], *row[2], 0][i]

    what = f"build_step, {name}: "
    agree(step.tokens, given.each(token), "exact", what + "tokens", at=given.at, mistakes={
        "a request's first tokens are taken, not its newest computed ones":
            given.each(lambda row, i: token(row, i - row[4] + row[5])),
        "the last n known tokens are taken, whether they are computed now or later":
            given.each(lambda row, i: ([*row[0], *row[1], *row[2]] * 2)[i - row[4]])})
    positions = given.each(lambda row, i: i)
    agree(step.positions, positions, "exact", what + "positions", at=given.at, mistakes={
        "positions count from the first token of the step":
            given.each(lambda row, i: i - row[4] + row[5]),
        "num_computed is where this step begins; it is where it ends, and counts its tokens":
            given.each(lambda row, i: i + row[5])})
    slots = given.each(lambda row, i: row[3][i // S] * S + i % S)
    agree(step.slots, slots, "exact", what + "slots", at=given.at, mistakes={
        "tokens are put into the pages 0, 1, … of the pool, whatever the table says": positions,
        "a step's tokens begin at the first slot of the table, over those that are there":
            given.each(lambda row, i: row[3][(i - row[4] + row[5]) // S] * S
                       + (i - row[4] + row[5]) % S)})
    width = max(len(row[3]) for row in rows)
    tables = np.array([[*row[3], *[0] * (width - len(row[3]))] for row in rows])
    b_of = lambda i: f"request {i[0]}" + (f", page {i[1]}" if len(i) > 1 else "")   # noqa: E731
    agree(step.block_tables, tables, "exact", what + "block_tables", at=b_of, mistakes={
        "a table that is shorter is filled with something else than 0":
            np.array([[*row[3], *[-1] * (width - len(row[3]))] for row in rows]),
        "a table that is shorter is filled with its last page":
            np.array([[*row[3], *[row[3][-1]] * (width - len(row[3]))] for row in rows]),
        "a table that is shorter is filled in front":
            np.array([[*[0] * (width - len(row[3])), *row[3]] for row in rows])})
    starts = np.array([0, *np.cumsum([row[5] for row in rows])])
    agree(step.cu_q, starts, "exact", what + "cu_q", at=lambda i: f"entry {i[0]}", mistakes={
        "numbers of tokens stand there, not their running sum":
            np.array([0, *(row[5] for row in rows)])})
    agree(step.lens, np.array([row[4] for row in rows]), "exact", what + "lens", at=b_of,
          mistakes={"only the new tokens are counted, not the context":
                    np.array([row[5] for row in rows]),
                    "the whole text is counted, computed or not":
                    np.array([len([*row[0], *row[1], *row[2]]) for row in rows]),
                    "this step's tokens are counted twice: num_computed has them already":
                    np.array([row[4] + row[5] for row in rows])})
    kinds = {"tokens": "int64", "positions": "int64", "slots": "int64", "block_tables": "int32",
             "cu_q": "int32", "lens": "int32"}
    for field, kind in kinds.items():
        assert getattr(step, field).is_contiguous(), f"{what}{field} is a view with gaps"
        found = str(getattr(step, field).dtype).removeprefix("torch.")
        assert found == kind, f"{what}{field} are {found}, the kernels expect {kind}"


def test_build_step__unseen(subject, agree, rng):
    """Small numbers: whole prompts, single tokens and full pages are frequent."""
    for most in (12, 5, 3, 12, *[3] * 30):
        S, rows, pages = int(rng.integers(1, 6)), [], iter(rng.permutation(199).tolist())
        for _ in range(int(rng.integers(1, 5))):
            prompt, output, draft = [rng.integers(200, size=int(n)).tolist()
                                     for n in rng.integers((1, 0, 0), (most, 5, 3))]
            computed = int(rng.integers(1, len(prompt + output + draft) + 2))
            table = [next(pages) for _ in range(-(-computed // S) + int(rng.integers(2)))]
            rows.append((prompt, output, draft, table, computed,
                         int(rng.integers(1, computed + 1))))
        is_the_step(subject, agree, f"pages of {S}, (prompt, output, draft, table, computed, n) "
                    f"{rows}", S, rows)


def test_build_step__far(subject, agree):
    """One token late in a text, among others; slots beyond 31 bits."""
    late = (range(2**15 + 3), (5,), (), tuple(range(2**11 + 1)), 2**15 + 4, 1)
    is_the_step(subject, agree, "one token at position 32,771 among short ones", 16, [
        ((1,), (), (), (2**12,), 1, 1), late, ((3,), (4,), (), (2**12 + 1,), 2, 1)])
    is_the_step(subject, agree, "pages whose slots pass 2^31", 16, [
        ((1, 2), (), (), (2**28,), 2, 2), ((3,), (4,), (), (2**31 - 1,), 2, 1)])


# ---- to_draw


def draws(subject, rows, every=False):
    """[(name, row)] of to_draw. rows: [(id, tokens of the prompt, of the answer, pending, computed,
    n, [ids of those that wait for its prompt])]. Tokens computed beyond all of these are
    guesses."""
    params = subject.make("layer3_system.s01_request:SamplingParams")

    def request(id, prompt, answer=0, **more):
        return subject.make("layer3_system.s01_request:Request", id, [1] * prompt, params,
                            output=[2] * answer, **more)

    counts = {request(id, prompt, answer, pending=pending, num_computed=computed,
                      draft=[3] * (computed - prompt - answer - pending),
                      forks=[request(other, prompt) for other in forks]): n
              for id, prompt, answer, pending, computed, n, forks in rows}
    got = subject.to_draw(counts, every)
    assert isinstance(got, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in got), \
        f"to_draw: expected a list of pairs (request, row), got {got!r}"
    state = subject.make("operator:attrgetter", "pending", "num_computed")
    for request, (id, _, _, pending, computed, _, forks) in zip(counts, rows, strict=True):
        left = *state(request), len(request.forks)
        want = pending, computed, len(forks)
        assert left == want, f"to_draw: it leaves {id} with pending, num_computed and the number " \
            f"of its forks {left}, they were {want}: it only says which requests draw"
    return [(who.id, row) for who, row in got]


def compare_draws(got, want, rows, mistakes=None):
    state = {id: f"{id} has {computed} of its {prompt + answer} tokens computed"
             for id, prompt, answer, _, computed, _, _ in rows}
    why = next((f"\nThis is what comes out when {text}." for text, pairs in (mistakes or {}).items()
                if pairs == got), "")
    names, right = [name for name, _ in got], [name for name, _ in want]
    for name in names:
        assert name in right, f"to_draw: {name} gets a token, and should not. " \
            f"{state.get(name, f'{name} gets one when its prompt has just become whole')}.{why}"
    for name in right:
        assert name in names, f"to_draw: {name} gets no token. " \
            f"{state.get(name, f'{name} waits for a prompt, and it is whole now')}.{why}"
    for (name, row), pair in zip(want, got, strict=False):
        assert (name, row) == pair, f"to_draw: expected row {row} for {name}, got row {pair[1]} " \
            f"for {pair[0]}.{why}"
    assert len(got) == len(want), f"to_draw: a request gets two tokens: {got}.{why}"


MIXED = [("a", 5, 3, 0, 8, 1, []), ("b", 12, 0, 0, 7, 4, []), ("c", 6, 0, 0, 6, 2, []),
         ("d", 4, 2, 0, 4, 4, []), ("e", 9, 2, 0, 11, 1, [])]


@pytest.mark.parametrize("every", [False, True])
def test_to_draw(subject, every):
    """Case 16: no token from a part of a prompt, nor from a part of a recomputed answer."""
    ends = np.cumsum([n for *_, n, _ in MIXED]) - 1
    place = {id: int(ends[b]) if every else b for b, (id, *_) in enumerate(MIXED)}
    dense = [(id, i) for i, id in enumerate("ace")]
    compare_draws(draws(subject, MIXED, every), [(id, place[id]) for id in "ace"], MIXED, {
        "the row is counted among those that get a token; scores have rows of the others, too":
            dense,
        "there is a row for each request, and the row of its last token is taken":
            [("a", 0), ("c", 6), ("e", 11)] if not every else None,
        "there is a row for each token, and the request's number is taken":
            [("a", 0), ("c", 2), ("e", 4)] if every else None,
        "the row is the one after the request's last token":
            [("a", 1), ("c", 7), ("e", 12)] if every else None})


def test_to_draw__a_step_behind(subject):
    """Case 32: a token that is still being computed counts among those to be computed."""
    rows = [("a", 5, 3, 1, 9, 1, []), ("b", 5, 2, 1, 7, 3, []), ("c", 2, 0, 0, 2, 2, [])]
    compare_draws(draws(subject, rows), [("a", 0), ("c", 2)], rows, {
        "pending is forgotten: b's newest token is still being computed":
            [("a", 0), ("b", 1), ("c", 2)]})
    rows = [("a.0", 3, 0, 1, 4, 1, ["a.1"]), ("b", 2, 0, 0, 2, 2, [])]
    compare_draws(draws(subject, rows), [("a.0", 0), ("b", 1)], rows, {
        "those that wait for a prompt draw again: they did so in the step that ended it":
            [("a.0", 0), ("a.1", 0), ("b", 1)]})


@pytest.mark.parametrize("every", [False, True])
def test_to_draw__several_answers(subject, every):
    """Case 15: one prompt, several answers: all get their first token from its last row."""
    rows = [("a", 3, 2, 0, 5, 1, []), ("b.0", 7, 0, 0, 7, 4, ["b.1", "b.2"]),
            ("c.0", 9, 0, 0, 5, 5, ["c.1"]), ("d", 2, 0, 0, 2, 2, [])]
    b, d = (4, 11) if every else (1, 3)
    compare_draws(draws(subject, rows, every),
                  [("a", 0), ("b.0", b), ("b.1", b), ("b.2", b), ("d", d)], rows, {
        "those that wait have a row of their own; they share their prompt's last one":
            [("a", 0), ("b.0", b), ("b.1", b + 1), ("b.2", b + 2), ("d", d)]})


def test_to_draw__guesses(subject):
    """With guesses more is computed than is known: its row is the last guess's."""
    rows = [("a", 5, 3, 0, 10, 3, []), ("b", 9, 0, 0, 4, 4, []), ("c", 1, 0, 0, 2, 2, [])]
    for every in (True, False):
        want = [("a", 2), ("c", 8)] if every else [("a", 0), ("c", 2)]
        compare_draws(draws(subject, rows, every), want, rows, {
            "a request with guesses has more computed than it knows, and is left out": []})
    rows = [("a", 2**15 + 9, 0, 0, 2**15 + 9, 2**15 + 9, []), ("b", 2, 1, 0, 3, 1, [])]
    compare_draws(draws(subject, rows, True), [("a", 2**15 + 8), ("b", 2**15 + 9)], rows)
    assert draws(subject, [], False) == [], "to_draw: a step without requests gives tokens"


def test_to_draw__unseen(subject, rng):
    """Small numbers: a token more or less than needed is frequent, and so is the end of a prompt
    with others that wait for it. Every other step has rows for all tokens."""
    for step in range(150):
        every, rows, want, end = step % 2 == 1, [], [], 0
        for b in range(int(rng.integers(0 if step > 20 else 2, 7))):
            prompt, answer, pending = rng.integers((1, 0, 0), (rng.choice([3, 9]), 4, 2)).tolist()
            known = prompt + answer + pending
            guesses = 0 if pending else int(rng.choice([0, 0, 0, 1, 2]))
            computed = known + guesses if rng.random() < 0.6 else int(rng.integers(1, known + 1))
            n = int(rng.integers(1, computed + 1))
            forks = [f"{b}.{i}" for i in range(rng.integers(3))] if answer + guesses == 0 else []
            rows.append((f"{b}", prompt, answer, pending, computed, n, forks))
            end += n
            if computed >= known:
                draw = [f"{b}", *(forks if computed == prompt else [])]
                want += [(name, end - 1 if every else b) for name in draw]
        compare_draws(draws(subject, rows, every), want, rows)


# ---- run_step


def mock_engine(subject, counts, flights, overlap=False):
    """An engine whose parts only note that they were called: (engine, its parts)."""
    def make(**names):
        return subject.make("types:SimpleNamespace", **names)

    def watched(answer=None):
        return subject.make("lab.judge.mocks:Watched", None, answer)

    parts = {"guess": watched(), "schedule": watched(counts), "launch": watched(flights),
             "commit": watched(["an output", "and another"])}
    engine = make(guess=parts["guess"], launch=parts["launch"], commit=parts["commit"],
                  scheduler=make(schedule=parts["schedule"]), overlap=overlap, flights=["before"],
                  counts="stale")
    return engine, parts


def test_run_step(subject):
    engine, parts = mock_engine(subject, {"a": 3}, ["first", "second"])
    outputs = subject.run_step(engine)
    calls = {name: part.calls for name, part in parts.items()}
    assert calls["schedule"], "run_step: the scheduler is never asked: engine.scheduler.schedule()"
    assert len(calls["schedule"]) == 1, "run_step: the scheduler is asked more than once. Each " \
        "time it moves on: what it picked counts as computed"
    assert calls["launch"] == [[{"a": 3}]], f"run_step: launch is called with {calls['launch']}, " \
        f"expected once, with the scheduler's counts {{'a': 3}}"
    assert engine.counts == {"a": 3}, f"run_step: engine.counts is {engine.counts!r}, expected " \
        f"the counts of this step, {{'a': 3}}"
    assert calls["commit"] == [["first"], ["second"]], f"run_step: two flights were launched, " \
        f"and committed is {calls['commit']}: a launch may come back as several flights"
    assert outputs == ["an output", "and another"] * 2, f"run_step: got {outputs!r}, expected " \
        f"the outputs of all flights in one list"
    assert calls["guess"] == [[]], "run_step: engine.guess() is not called once"


def test_run_step__nobody_can_run(subject):
    engine, parts = mock_engine(subject, {}, ["a flight"])
    outputs = subject.run_step(engine)
    assert not parts["launch"].calls, \
        "run_step: there is nothing to compute, and a step was launched"
    assert outputs == [], f"run_step: nothing to compute, and outputs {outputs!r}"
    assert engine.counts == {}, f"run_step: engine.counts is {engine.counts!r} where no request " \
        f"runs; it tells of an older step"


def test_run_step__overlap(subject):
    """Case 32: a step is launched before the results of the one before are read."""
    engine, parts = mock_engine(subject, {"a": 1}, ["new"], overlap=True)
    subject.run_step(engine)
    committed = parts["commit"].calls
    assert committed != [["new"]], "run_step: with overlap, a flight is read in the step that " \
        "launched it: the host waits for it, and nothing overlaps"
    assert committed == [["before"]], f"run_step: with overlap, the flight of the step before " \
        f"is to be committed; committed was {committed}"
    assert engine.flights == ["new"], f"run_step: with overlap, engine.flights is " \
        f"{engine.flights!r}; expected what was launched now, so that the next step commits it"
    engine, parts = mock_engine(subject, {}, [], overlap=True)
    subject.run_step(engine)
    assert parts["commit"].calls == [["before"]], "run_step: with overlap, the last flight is " \
        "never committed: where no request can run, the one before still has results"


def test_run_step__order(subject):
    """Case 32: the guesses come before the schedule, the schedule before the launch; with overlap
    the host launches first, and reads while the device computes."""
    for overlap in (False, True):
        for behind in (["before"], ["one", "two"], []):
            order = called(subject, overlap, behind)
            names = [name for name, *_ in order]
            want = ["guess", "schedule", "launch", *["commit"] * (len(behind) if overlap else 2)]
            what = f"run_step, overlap {overlap}, {len(behind)} flights of the step before: "
            if "launch" in names and overlap:
                assert "commit" not in names[:names.index("launch")], (
                    f"{what}called were {names}: it reads the results of the step before and only "
                    f"then launches the next one; until then the device has nothing to do")
            assert "guess" not in names[names.index("schedule"):], \
                f"{what}called were {names}: guesses are to be made before the scheduler picks"
            assert names == want, f"{what}called were {names}, expected {want}"
            read = [flight for name, *flight in order if name == "commit"]
            assert read == [[each] for each in (behind if overlap else ["new", "newer"])], \
                f"{what}flights are committed in the order {read}, not in that of their launch"


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


def test_run_step__guesses(subject):
    propose = subject.make("lab.judge.mocks:Watched", None, [1, 1])
    run = Run(subject, drafter=subject.make("layer3_system.engine.drafts:Drafter", propose))
    run.submit("a", [5, 6, 7])
    run.step()
    note = run.step()
    assert note["counts"]["a"] == 3, f"run_step: guesses are to be made before the scheduler " \
        f"picks; with 2 guesses the second step computes {note['counts']['a']} tokens"
    run.as_alone("with guesses", "a")


PROMPTS = {"a": [1, 2, 3, 4, 5], "b": [9] * 11, "c": [7], "d": list(range(40, 47))}


@pytest.mark.parametrize("overlap", [False, True])
def test_run_step__chunks(subject, overlap):
    """Cases 16 and 24: the same tokens as alone, in a batch, with chunks of any size."""
    for chunk in (1, 2, 3, 5, None):
        run = Run(subject, P=40, chunk=chunk, overlap=overlap)
        for name, prompt in PROMPTS.items():
            run.submit(name, prompt, max_tokens=40)
        first, left = {}, {name: len(prompt) for name, prompt in PROMPTS.items()}
        for note in [run.step() for _ in range(20)]:
            for name, part in note["prompts"].items():
                left[name] -= part
            for name in note["new"]:
                first.setdefault(name, left[name])
        assert first == dict.fromkeys(PROMPTS, 0), f"chunks of {chunk}: first tokens came with " \
            f"this many tokens of the prompt not computed: {first}"
        run.as_alone(f"chunks of {chunk}", *PROMPTS)


def test_run_step__unseen(subject, rng):
    """Step after step of one engine. A flight is its number and its outputs."""
    for overlap in (False, True):
        engine, parts = mock_engine(subject, {}, [], overlap)
        read = subject.make("operator:itemgetter", 1)
        subject.make("builtins:setattr", parts["commit"], "function", read)
        subject.make("builtins:setattr", engine, "flights", [])
        behind, launched, committed = [], [], []
        for step in range(8):
            counts = {f"r{i}": int(rng.integers(1, 9)) for i in range(rng.integers(3))}
            flights = [[int(rng.integers(999)), rng.integers(999, size=2).tolist()]
                       for _ in range(rng.integers(3))] if counts else []
            subject.make("builtins:setattr", parts["schedule"], "answer", counts)
            subject.make("builtins:setattr", parts["launch"], "answer", flights)
            now, behind = (behind, flights) if overlap else (flights, [])
            launched, committed = launched + [[counts]] * bool(counts), committed + now
            got = (subject.run_step(engine), parts["launch"].calls, parts["commit"].calls,
                   engine.counts, engine.flights if overlap else [])
            want = ([output for _, outputs in now for output in outputs], launched,
                    [[flight] for flight in committed], counts, behind)
            assert got == want, (
                f"run_step, overlap {overlap}, step {step}, counts {counts}, flights {flights}: "
                f"outputs, launched and committed so far, engine.counts, engine.flights are {got}, "
                f"expected {want}")


# ---- end_request


def test_end_request(subject):
    """Case 19, decoding: it ends at once, with its pages; the others go on as if alone."""
    run = Run(subject, P=20)
    (a,), _ = run.submit("a", PROMPTS["a"]), run.submit("b", PROMPTS["d"])
    for _ in range(4):
        run.step()
    held = run.pool.used
    run.engine.abort([a])
    assert run.pool.used < held, "end_request: an aborted request still holds its pages"
    assert a.status == "finished", f"end_request: its status is {a.status!r}, expected 'finished'"
    assert a.reason == "abort", f"end_request: its reason is {a.reason!r}, expected 'abort'"
    assert isinstance(a.finished_at, float), \
        f"end_request: finished_at is {a.finished_at!r}, expected engine.clock()'s seconds"
    assert run.engine.finished == 1, f"end_request: one is over, {run.engine.finished} are counted"
    run.drain()
    run.as_alone("beside an aborted one", "b", count=8)


def test_end_request__its_error(subject):
    """It is told what went wrong."""
    run = Run(subject)
    (a,) = run.submit("a", PROMPTS["a"])
    run.step()
    run.engine.end(a, "error", "the pages are on fire")
    assert (a.reason, a.error) == ("error", "the pages are on fire"), f"end_request: reason " \
        f"{a.reason!r} and error {a.error!r}; expected 'error' and what it was told"


def test_end_request__twice(subject):
    """Case 19, finished already, and twice: nothing happens. The first reason stays."""
    run = Run(subject)
    (a,), (b,) = run.submit("a", PROMPTS["a"]), run.submit("b", PROMPTS["c"], max_tokens=1)
    run.step(), run.step()
    run.engine.abort([b])
    assert (b.status, b.reason) == ("finished", "length"), f"end_request: b had ended for its " \
        f"length; after a late abort its reason is {b.reason!r}"
    run.engine.abort([a])
    at = a.finished_at
    run.engine.abort([a, a, b])
    assert run.engine.finished == 2, f"end_request: two requests are over, and " \
        f"{run.engine.finished} are counted: those that were over count again"
    assert a.finished_at == at, "end_request: it ended once, and its time moves with each abort"
    run.engine.abort([])
    run.drain()


def test_end_request__in_every_state(subject):
    """Case 19: waiting, within its prompt, preempted, and with a token on its way."""
    run = Run(subject, max_seqs=2)
    run.submit("a", PROMPTS["a"])
    (b,), (c,) = run.submit("b", PROMPTS["b"]), run.submit("c", PROMPTS["c"])
    note = run.step()
    assert note["prompts"]["b"] == note["counts"]["b"] == 3 and note["waiting"] == ["c"]
    run.engine.abort([b, c])            # one within its prompt, one that waits
    run.drain()
    run.as_alone("beside aborted ones", "a", count=8)

    run = Run(subject, P=5, budget=16)
    run.submit("a", PROMPTS["a"], max_tokens=12)
    (b,) = run.submit("b", PROMPTS["a"], max_tokens=12)
    while "b" not in run.step()["preempted"]:
        pass
    run.engine.abort([b])
    run.drain()
    assert run.ended == {"a": "length", "b": "abort"}, f"b was aborted while preempted: {run.ended}"

    run = Run(subject, overlap=True)
    (a,) = run.submit("a", PROMPTS["a"], max_tokens=1)
    run.step()                          # its last token is on its way
    run.engine.abort([a])
    run.drain()
    assert run.ended == {"a": "abort"} and run.got["a"] == [], \
        f"aborted with its last token on its way: ended {run.ended}, got {run.got['a']}"


def test_end_request__answers_that_wait(subject):
    """Cases 11 and 19: answers that wait for another's prompt, and pages that several hold."""
    def started(steps, n=3):
        run = Run(subject, P=20)
        answers = run.submit("a", PROMPTS["b"], n=n)
        run.submit("b", PROMPTS["a"])
        for _ in range(steps):
            run.step()
        return run, answers

    run, (first, *others) = started(1)              # 8 of 11 tokens of the prompt
    run.engine.abort([others[0]])
    left = [r.index for r in first.forks]
    assert left == [2], f"end_request: answer 1 is aborted while it waits for the prompt of " \
        f"answer 0; those that still wait are {left}, expected [2]"
    notes = run.drain()
    assert set(notes[-1]["ended"]) | set(run.ended) >= {"a/0", "a/2", "b"}
    run.as_alone("beside an answer that was aborted early", "a/0", "a/2", "b", count=8)

    run, (first, *others) = started(1)
    run.engine.abort([first])
    states = [r.status for r in others]
    assert states == ["finished"] * 2, f"end_request: the one whose prompt they wait for is " \
        f"aborted, and will never be computed; the others are {states}"
    assert [r.reason for r in others] == ["abort"] * 2, \
        f"end_request: those that wait end for the same reason, not {[r.reason for r in others]}"
    run.drain()
    run.as_alone("beside an aborted prompt", "b", count=8)

    run, answers = started(4)                       # all three write, on shared pages
    run.engine.abort(answers[:2])
    run.drain()
    run.as_alone("whose pages were shared", "a/2", "b", count=8)


def test_end_request__its_time(subject):
    """The time is that of the engine's clock, for each that ends, and for no other."""
    clock = subject.make("lab.judge.mocks:Watched", None, 12.5)
    run = Run(subject, P=20, clock=clock)
    first, *others = run.submit("a", PROMPTS["b"], n=3)
    (b,) = run.submit("b", PROMPTS["a"])
    run.step()
    subject.make("builtins:setattr", clock, "answer", 99.0)
    run.engine.end(first, "error", "out of ink")
    for request in (first, *others):
        assert request.finished_at == 99.0, f"end_request: the prompt of three answers ends when " \
            f"engine.clock() says 99; answer {request.index} has finished_at {request.finished_at}"
        assert request.error == "out of ink", f"end_request: the prompt of three answers ends by " \
            f"'out of ink'; answer {request.index}, which waits for it, has error {request.error}"
    assert b.finished_at is None, f"end_request: b goes on, and is over since {b.finished_at}"


class Desk:
    """A scheduler with requests in every state and no model, behind an engine that has only what an
    end needs; and what should become of each."""

    def __init__(self, subject, rng):
        self.make, self.rng, self.told = subject.make, rng, []
        pool = self.make("layer3_system.s02_block_pool:BlockPool", 24, 4)
        self.pool, self.scheduler = pool, self.make(
            "layer3_system.s04_continuous_batching:Scheduler", pool, int(rng.integers(1, 7)),
            int(rng.integers(6, 20)))
        self.params = self.make("layer3_system.s01_request:SamplingParams")
        self.state = self.make("operator:attrgetter", "status", "reason", "error", "finished_at")
        self.clock = self.make("lab.judge.mocks:Watched", None, 0.0)
        self.engine = self.make("types:SimpleNamespace", scheduler=self.scheduler, finished=0,
                                clock=self.clock)
        self.requests, self.over, self.held = {}, {}, {}        # by name
        for leader in "abcd"[:rng.integers(1, 5)]:
            self.come(leader, int(rng.integers(4)))
        self.leader = {name: name[0] for name in self.requests if len(name) > 1}
        self.scheduler.schedule()
        self.before = {name: self.state(r)[0] for name, r in self.requests.items()}
        self.held = {name: len(r.table) for name, r in self.requests.items()}

    def come(self, name, others):
        tokens = self.rng.integers(9, size=int(self.rng.integers(1, 12))).tolist()
        first, *forks = (self.make("layer3_system.s01_request:Request", each, tokens, self.params)
                         for each in [name, *(f"{name}{i}" for i in range(others))])
        for i, other in enumerate(forks):
            self.make("builtins:setattr", other, "leader", first)
            self.requests[f"{name}{i}"] = other
        self.make("builtins:setattr", first, "forks", forks)
        self.requests[name] = first
        self.scheduler.add(first)

    def end(self, subject, number):
        """End one of them, for some reason; what is over already stays as it is."""
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
            assert tuple(got) == want, f"{what}{name} has status, reason, error, finished_at " \
                f"{tuple(got)}, expected {want}"
        assert self.engine.finished == len(self.over), \
            f"{what}{self.engine.finished} are counted as over, expected {len(self.over)}"
        left = {name for name in self.requests if name not in self.over}
        for queue in ("running", "waiting"):
            names = [r.id for r in getattr(self.scheduler, queue)]
            want = [n for n in self.requests if n in left and n not in self.leader
                    and self.before[n] == queue]
            assert names == want, f"{what}{queue} are {names}, expected {want}"
        for name in left - set(self.leader):
            got = [r.id for r in self.requests[name].forks]
            want = [n for n, leader in self.leader.items() if leader == name and n in left]
            order = ", in the order in which they came" if sorted(got) == sorted(want) else ""
            assert got == want, f"{what}for the prompt of {name} {got} wait, expected {want}{order}"
        used = sum(pages for name, pages in self.held.items() if name in left)
        assert self.pool.used == used, f"{what}{self.pool.used} pages are held, expected {used}"


def test_end_request__drawn(subject, rng):
    """Running, waiting, and waiting for another's prompt; some are ended again and again."""
    for _ in range(16):
        desk = Desk(subject, rng)
        for number in range(1, 6):
            desk.end(subject, number)
            desk.hold()


# The life of requests, up to the end of each.


@pytest.mark.parametrize("overlap", [False, True])
def test_end_request__out_of_pages(subject, overlap):
    """Case 1: when pages run out, the newest goes back, and ends with the tokens it gets alone."""
    run = Run(subject, P=7, budget=16, overlap=overlap)
    for name in "abc":
        run.submit(name, PROMPTS["a"], max_tokens=9)
    gone = [name for note in run.drain() for name in note["preempted"]]
    assert gone and "a" not in gone, f"preempted were {gone}: expected the newest, never the oldest"
    run.as_alone("preempted or not", *"abc", count=9)


def test_end_request__the_bound(subject):
    """Case 3: of a room of 16 tokens, a prompt of 16 leaves none for the answer; 15 one."""
    run = Run(subject, P=4, budget=16)
    with pytest.raises(Raised, match="at most 15 tokens"):
        run.submit("a", [1] * 16, max_tokens=None)
    run.submit("b", [1] * 15, max_tokens=None)
    run.drain()
    assert run.ended == {"b": "length"} and len(run.got["b"]) == 1, \
        f"a prompt of 15 in a room of 16: ended {run.ended}, got {run.got['b']}"


@pytest.mark.parametrize("overlap", [False, True])
def test_end_request__a_pool_is_full(subject, overlap):
    """Case 4: a request that fills the pool alone ends there, with its tokens, not preempted."""
    run = Run(subject, P=4, overlap=overlap)
    run.submit("a", PROMPTS["a"], max_tokens=None)
    notes = run.drain()
    assert run.ended == {"a": "length"}, f"alone in a full pool: ended {run.ended}"
    assert not any(note["preempted"] for note in notes), "it was preempted, though it was alone"
    run.as_alone("alone in a full pool", "a", count=11)


def test_end_request__a_prompt_that_is_known(subject):
    """Case 7: all of a prompt is in the pages already; its last token is computed all the same."""
    run = Run(subject, pool="s06_prefix_cache:PrefixPool")
    run.submit("a", PROMPTS["d"] + [1])
    run.drain()
    run.submit("b", PROMPTS["d"] + [1])
    notes = run.drain()
    asked = notes[0]["prompts"]["b"]
    assert asked == 4, f"of 8 tokens, all known, the first step computes {asked}; expected the " \
        f"last page's 4"
    run.as_alone("a prompt that is known", "a", "b", count=8)


@pytest.mark.parametrize("overlap", [False, True])
def test_end_request__several_answers(subject, truth, overlap):
    """Case 15: one prompt for three answers, then copies on write; the answers of their seeds."""
    run, params = Run(subject, P=20, overlap=overlap), {"temperature": 1.0, "seed": 3, "n": 3}
    run.submit("a", PROMPTS["b"], **params)
    notes = run.drain()
    asked = sum(part for note in notes for part in note["prompts"].values())
    assert asked == 11, f"three answers to a prompt of 11 tokens: {asked} of them were computed"

    def answers():
        engine, told = Engine(MockLlama(), ByteTokenizer()), {}
        engine.submit(PROMPTS["b"], SamplingParams(**(GREEDY | params)), "a")
        for note in Recorder(engine).run():
            for name, tokens in note["new"].items():
                told.setdefault(name, []).extend(tokens)
        return told

    want = truth(answers)
    assert run.got == want, f"three answers of one seed: got {run.got}, expected {want}"
    assert len(set(map(tuple, want.values()))) == 3


def becomes_of(side, asks, ends, error, **sizes):
    """What becomes of answers of which some are ended, the last one by an error: after each step
    how many are over and how many pages are held; then of each answer what is said of its end."""
    run, answers, after = Run(side, **sizes), [], []
    for step in range(10):
        for name, prompt, n in asks.get(step, ()):
            answers += run.submit(name, prompt, n=n, max_tokens=5)
        if step in ends:
            run.engine.end(answers[ends[step][0] % len(answers)], ends[step][1])
        if run.engine.busy:
            run.step()
        after.append((run.engine.finished, run.pool.used))
    run.drain()
    answers += run.submit("last", [1, 2, 3])
    run.engine.end(answers[-1], "error", error)
    return after, [(r.id, r.index, r.status, r.reason, r.error, type(r.finished_at).__name__,
                    r.output) for r in answers]


@pytest.mark.parametrize("overlap", [False, True])
def test_end_request__unseen(subject, reference, rng, overlap):
    asks = {step: [(name, rng.integers(99, size=int(rng.integers(1, 14))).tolist(),
                    int(rng.integers(1, 4)))] for step, name in ((0, "a"), (1, "b"), (4, "c"))}
    ends = {step: (int(rng.integers(9)), str(rng.choice(["abort", "stop"])))
            for step in range(1, 9) if rng.random() < 0.6}
    sizes = {"P": int(rng.integers(12, 20)), "overlap": overlap, "budget": int(rng.integers(4, 12))}
    error = f"error {rng.integers(999)}"
    got, want = (becomes_of(side, asks, ends, error, **sizes) for side in (subject, reference))
    what = f"end_request, {sizes}, asked at steps (name, prompt, n) {asks}, ended before steps " \
        f"(which, why) {ends}, one more by {error!r}:"
    for step, pair in enumerate(zip(got[0], want[0], strict=True)):
        assert pair[0] == pair[1], f"{what} after step {step} (requests over, pages held) " \
            f"is {pair[0]}, expected {pair[1]}"
    for each, right in zip(got[1], want[1], strict=True):
        assert each == right, f"{what} one has (id, index, status, reason, error, type of " \
            f"finished_at, output) {each}, expected {right}"


# ---- given code


class Faulty(MockLlama):
    """A model that raises where a step has this token."""

    token = 99

    def forward(self, step, cache, every=False):
        if (step.tokens == self.token).any():
            raise RuntimeError("a kernel fails")
        return super().forward(step, cache, every)


class Blank(MockLlama):
    """A model whose scores are NaN."""

    def forward(self, *args):
        return super().forward(*args) * float("nan")


def test_a_kernel_that_raises_ends_the_one_at_fault():
    engine = Engine(Faulty(), ByteTokenizer())
    params = SamplingParams(**GREEDY)
    (good,), (bad,) = engine.submit([1, 2], params, "good"), engine.submit([1, 99], params, "bad")
    ended = {}
    while engine.busy:
        for output in engine.step():
            if output.reason:
                assert output.request.id not in ended, "it was told twice that it is over"
                ended[output.request.id] = output.reason
    assert ended == {"good": "length", "bad": "error"}
    assert good.output == alone([1, 2], 8) and bad.error == "RuntimeError: a kernel fails"
    assert not engine.pool.used


def test_scores_that_are_no_numbers_end_an_answer_once():
    engine = Engine(Blank(), ByteTokenizer())
    engine.submit([1, 2, 3])
    assert [(o.tokens, o.reason) for o in engine.step()] == [([], "error")]
    assert not engine.busy and not engine.pool.used


class Latent(MockLlama):
    """A model that makes its own cache."""

    def make_cache(self, *sizes):
        self.sizes = sizes
        self.cache = Pages(self.config, *sizes)
        return self.cache

    def forward(self, batch, cache, every=False):
        assert cache is self.cache
        return super().forward(batch, cache, every)


def test_a_model_may_make_its_own_cache():
    """Of the pool's pages, the weights' dtype and device; forks and preemptions work on it."""
    model, pool = Latent(), BlockPool(7, 4)
    engine = Engine(model, ByteTokenizer(), pool, Scheduler(pool))
    answers = [*engine.submit([1, 2, 3, 4, 5], SamplingParams(**GREEDY | {"n": 2})),
               *engine.submit([6] * 9, SamplingParams(**GREEDY))]
    while engine.busy:
        engine.step()
        check_engine(engine)
    assert engine.pages is model.cache
    assert model.sizes == (7, 4, model.embedding.dtype, model.embedding.device)
    assert any(r.preemptions for r in answers)
    assert [r.output for r in answers] == [alone(r.prompt, 8) for r in answers]
