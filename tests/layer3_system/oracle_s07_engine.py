"""The rules of s07 by hand: what each step computes, and steps to be built. And two engines whose
every step is looked at: a whole one, and one of requests alone, which end in any state."""

import numpy as np

from lab.judge.mistakes import mistake
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
        self.budget = budget
        self.max_seqs = max_seqs
        self.got = {}                   # these three by name
        self.ended = {}
        self.prompts = {}

    def submit(self, name, prompt, **params):
        """[Request] of the engine, as handles."""
        params = self.make(PARAMS, **(GREEDY | params))
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
            assert len(notes) < most, f"after {most} steps there are still requests: " \
                f"{notes[-1]['running']} running, {notes[-1]['waiting']} waiting"
            notes.append(self.step())
        assert not self.pool.used, \
            f"no request is left, but {self.pool.used} pages are still allocated"
        assert self.engine.submitted == self.engine.finished, \
            f"{self.engine.submitted} requests were submitted, engine.finished is " \
            f"{self.engine.finished}"
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
