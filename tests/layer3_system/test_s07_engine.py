"""Graders of s07.
The parts against what they should give by the book; the engine they make by what must hold after
every step, and by the tokens that each request gets alone.

The engine is driven beside the code under test, on a model whose every score can be worked out; a
note comes back after each step.
Case numbers are those of the course's list for engines.
"""

import numpy as np
import pytest

from lab.judge.compare import lists
from lab.judge.failures import Raised
from lab.judge.mistakes import mistake, raises
from layer3_system import (
    BlockPool,
    ByteTokenizer,
    Engine,
    MockLlama,
    Recorder,
    SamplingParams,
    Scheduler,
)
from tests.layer3_system.oracle_s07_engine import (
    ASKS,
    BUDGET,
    GREEDY,
    NEVER,
    STEPS,
    WATCHED,
    Desk,
    Run,
    by_rules,
    called,
    compare_draws,
    draws,
    first_slip,
    is_the_step,
    mock_engine,
)

# ---- predict_steps


def computed_by_the_engine():
    """Rows of tokens by request, from the course's engine."""
    pool = BlockPool(20, 4)
    engine = Engine(MockLlama(), ByteTokenizer(), pool, Scheduler(pool, 8, BUDGET))
    for name, (prompt, count) in zip("abc", ASKS, strict=True):
        engine.submit([1] * prompt, SamplingParams(**(GREEDY | {"max_tokens": count})), name)
    notes = Recorder(engine).run()
    return [tuple(note["counts"].get(name, 0) for name in "abc") for note in notes]


def test_predict_steps(subject, truth):
    want = truth(computed_by_the_engine)
    got = subject.predict_steps()
    assert want == by_rules(), "the course's own engine computes other tokens"
    assert isinstance(got, (list, tuple)) and all(
        isinstance(row, (list, tuple)) and len(row) == 3 for row in got), \
        f"predict_steps: expected a row of three numbers for each step, got {got!r}"
    got = [tuple(row) for row in got]
    mistakes = {
        "computes_last": (NEVER, by_rules(last=0)),
        "phases": ("In your rows answers wait until all prompts are done. There are no phases: a "
                   "request whose prompt is complete gets one token, and the rest of the budget "
                   "goes to the next request.", by_rules(phases=True)),
        "one_by_one": ("In your rows a request starts when the one before has finished. A request "
                       "joins the first step that has budget left.", by_rules(one=True)),
        "no_budget": ("In your rows the steps have no budget. A prompt of 10 tokens is split at 8.",
                      by_rules(budget=10**6))}
    name, why = next(((name, why) for name, (why, rows) in mistakes.items() if rows == got),
                     first_slip(got, want))
    for i, (row, right) in enumerate(zip(got, want, strict=False)):
        more = f" That is more than the budget of {BUDGET}." if sum(row) > BUDGET else ""
        assert row == right, mistake(name, (
            f"predict_steps: step {i + 1} is not {row} tokens of (a, b, c).{more}\n{why}"), why)
    many = "few" if len(got) < len(want) else "many"
    assert len(got) == len(want), mistake(
        name, f"predict_steps: {len(got)} steps are too {many}. In which step does b's fourth "
              f"token appear?")


# ---- build_step


@pytest.mark.parametrize("name", STEPS)
def test_build_step(subject, agree, name):
    is_the_step(subject, agree, name, *STEPS[name])


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


MIXED = [("a", 5, 3, 0, 8, 1, []), ("b", 12, 0, 0, 7, 4, []), ("c", 6, 0, 0, 6, 2, []),
         ("d", 4, 5, 0, 4, 4, []), ("e", 9, 2, 0, 11, 1, []), ("f", 9, 0, 0, 6, 3, [])]


@pytest.mark.parametrize("every", [False, True])
def test_to_draw(subject, every):
    """Case 16: no token from a part of a prompt, nor from a part of a recomputed answer."""
    ends = np.cumsum([n for *_, n, _ in MIXED]) - 1
    place = {id: int(ends[b]) if every else b for b, (id, *_) in enumerate(MIXED)}
    compare_draws(draws(subject, MIXED, every), [(id, place[id]) for id in "ace"], MIXED, every, {
        "every_request": ("you draw for each request; b, d and f have tokens left to compute",
                          [(id, place[id]) for id in "abcdef"]),
        "added_twice": ("you add n to num_computed, which already counts this step's tokens",
                        [(id, place[id]) for id in "acef"]),
        "prompt_only": ("you compare with the prompt alone; d has lost its pages and has tokens of "
                        "its answer left to compute", [(id, place[id]) for id in "acde"]),
        "dense_rows": ("you count rows only among the requests that get a token; the scores have "
                       "rows for the others, too", [(id, i) for i, id in enumerate("ace")]),
        "token_rows": ("with one row for each request, you take the row of its last token",
                       [("a", 0), ("c", 6), ("e", 11)] if not every else None),
        "request_rows": ("with one row for each token, you take the number of the request",
                         [("a", 0), ("c", 2), ("e", 4)] if every else None),
        "others_skipped": ("you add up the tokens of those alone that get one; the others have "
                           "rows, too", [("a", 0), ("c", 2), ("e", 3)] if every else None),
        "place_in_request": ("you take the place of the token in its request, not in the step",
                             [("a", 7), ("c", 5), ("e", 10)] if every else None),
        "first_row": ("you take the row of its first token in this step, not of its last",
                      [("a", 0), ("c", 5), ("e", 11)] if every else None),
        "next_row": ("you take the row after the right one: rows count from 0",
                     [("a", 1), ("c", 7), ("e", 12)] if every else [("a", 1), ("c", 3), ("e", 5)])})


def test_to_draw__a_step_behind(subject):
    """Case 32: a token that is still being computed counts among those to be computed."""
    rows = [("a", 5, 3, 1, 9, 1, []), ("b", 5, 2, 1, 7, 3, []), ("c", 2, 0, 0, 2, 2, [])]
    compare_draws(draws(subject, rows), [("a", 0), ("c", 2)], rows, False, {
        "no_pending": ("you ignore pending: b's newest token is still being computed",
                       [("a", 0), ("b", 1), ("c", 2)])})
    rows = [("a.0", 3, 0, 1, 4, 1, ["a.1"]), ("b", 2, 0, 0, 2, 2, [])]
    compare_draws(draws(subject, rows), [("a.0", 0), ("b", 1)], rows, False, {
        "forks_again": ("the forks draw again; they drew their first token when the prompt was "
                        "completed", [("a.0", 0), ("a.1", 0), ("b", 1)])})


@pytest.mark.parametrize("every", [False, True])
def test_to_draw__several_answers(subject, every):
    """Case 15: one prompt, several answers: all get their first token from its last row."""
    rows = [("a", 3, 2, 0, 5, 1, []), ("b.0", 7, 0, 0, 7, 4, ["b.1", "b.2"]),
            ("c.0", 9, 0, 0, 5, 5, ["c.1"]), ("d", 2, 0, 0, 2, 2, [])]
    b, d = (4, 11) if every else (1, 3)
    compare_draws(draws(subject, rows, every),
                  [("a", 0), ("b.0", b), ("b.1", b), ("b.2", b), ("d", d)], rows, every, {
        "no_forks": ("you leave out the forks of b.0, whose prompt has just been completed",
                     [("a", 0), ("b.0", b), ("d", d)]),
        "fork_rows": ("you give each fork a row of its own; forks use the last row of their prompt",
                      [("a", 0), ("b.0", b), ("b.1", b + 1), ("b.2", b + 2), ("d", d)])})


def test_to_draw__guesses(subject):
    """With guesses more is computed than is known: its row is the last guess's."""
    rows = [("a", 5, 3, 0, 10, 3, []), ("b", 9, 0, 0, 4, 4, []), ("c", 1, 0, 0, 2, 2, [])]
    for every in (True, False):
        want = [("a", 2), ("c", 8)] if every else [("a", 0), ("c", 2)]
        compare_draws(draws(subject, rows, every), want, rows, every, {
            "no_guesses": ("you leave out a request with guesses: its num_computed is above "
                           "num_tokens. Compare by order, with >= or <, not with == or !=", [])})
    rows = [("a", 2**15 + 9, 0, 0, 2**15 + 9, 2**15 + 9, []), ("b", 2, 1, 0, 3, 1, [])]
    compare_draws(draws(subject, rows, True), [("a", 2**15 + 8), ("b", 2**15 + 9)], rows,
                  True)
    assert draws(subject, [], False) == [], "to_draw: an empty step must give an empty list"


def test_to_draw__unseen(subject, rng):
    """Small numbers: a token more or less than needed is frequent, and so is the end of a prompt
    with others that wait for it.
    Every other step has rows for all tokens."""
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
        compare_draws(draws(subject, rows, every), want, rows, every)


# ---- run_step


def test_run_step(subject):
    engine, parts = mock_engine(subject, {"a": 3}, ["first", "second"])
    outputs = subject.run_step(engine)
    assert outputs is None or isinstance(outputs, (list, tuple)), mistake("not_a_list", (
        f"run_step: expected a list of outputs, got {outputs!r}. A generator commits nothing until "
        f"it is read."))
    calls = {name: part.calls for name, part in parts.items()}
    assert calls["schedule"], mistake(
        "never_schedules", "run_step: you never call engine.scheduler.schedule().")
    assert len(calls["schedule"]) == 1, mistake("schedules_twice", (
        "run_step: you call schedule() more than once. Each call adds its tokens to num_computed."))
    assert calls["launch"] == [[{"a": 3}]], f"run_step: launch is called with {calls['launch']}, " \
        f"expected once, with the scheduler's counts {{'a': 3}}"
    assert engine.counts == {"a": 3}, mistake("counts_not_stored", (
        f"run_step: engine.counts is {engine.counts!r}, expected this step's, {{'a': 3}}."))
    assert ["before"] not in calls["commit"], mistake("commits_old", (
        f"run_step: without overlap you committed {calls['commit']}. Commit only what this step "
        f"launched: engine.flights is for overlap."))
    assert calls["commit"] == [["first"], ["second"]], mistake(
        "one_flight", f"run_step: two flights were launched, but you committed {calls['commit']}: "
                      f"launch can return several flights.")
    assert outputs and not isinstance(outputs[0], list), mistake("nested_outputs", (
        f"run_step: got {outputs!r}, expected the outputs of all flights in one list."))
    texts = [output.text for output in outputs]
    assert texts == ["", "text"] * 2, mistake("drops_outputs", (
        f"run_step: two flights gave outputs with the texts '' and 'text' each, and you return "
        f"those with {texts}. One without a text may have a token: return all, in their order."),
        "return all, in their order")
    assert calls["guess"] == [[]], mistake(
        "no_guess", "run_step: engine.guess() must be called exactly once.")
    assert engine.flights, mistake("flights_dropped", (
        f"run_step: without overlap engine.flights is {engine.flights!r}, before ['before']: "
        f"leave it as it was."), "engine.flights is emptied")
    assert engine.flights == ["before"], mistake("flights_kept", (
        f"run_step: without overlap engine.flights is {engine.flights!r}; leave it as it was: what "
        f"is committed would be committed again, and the engine never be idle."))


def test_run_step__no_request_can_run(subject):
    engine, parts = mock_engine(subject, {}, ["a flight"])
    outputs = subject.run_step(engine)
    assert not parts["launch"].calls, mistake(
        "launches_nothing", "run_step: the counts are empty, and you launched a step.")
    assert outputs in ([], ()), f"run_step: nothing was computed, but outputs are {outputs!r}"
    assert engine.counts == {}, mistake("stale_counts", (
        f"run_step: the counts are empty, engine.counts is {engine.counts!r}, an older step's."))


def test_run_step__overlap(subject):
    """Case 32: a step is launched before the results of the one before are read."""
    engine, parts = mock_engine(subject, {"a": 1}, ["new"], overlap=True)
    subject.run_step(engine)
    committed = parts["commit"].calls
    assert committed != [["new"]], mistake(
        "no_overlap", "run_step: with overlap you commit a flight in the step that launched it: "
                      "the host waits, and nothing overlaps.")
    assert committed != [["before"], ["new"]], mistake("same_list", (
        "run_step: with overlap you commit the new flights with the old ones. Is it one list? "
        "`engine.flights += …` changes it under all of its names: store a new one."))
    assert committed == [["before"]], mistake(
        "commits_another_step", f"run_step: with overlap, commit the flights of the step before; "
                                f"you committed {committed}")
    assert engine.flights == ["new"], mistake(
        "flights_not_stored", f"run_step: with overlap, engine.flights is {engine.flights!r}; "
                              f"expected what was launched now, so that the next step commits it.")
    engine, parts = mock_engine(subject, {}, [], overlap=True)
    subject.run_step(engine)
    assert parts["commit"].calls == [["before"]], mistake("last_flight_lost", (
        "run_step: even with empty counts, the flights of the step before must be committed."))


def test_run_step__an_error_comes_through(subject):
    for name in ("launch", "commit"):
        engine, parts = mock_engine(subject, {"a": 1}, ["new"])
        subject.make("builtins:setattr", parts[name], "function",
                     subject.make("operator:itemgetter", "missing"))
        with pytest.raises(Raised):
            outputs = subject.run_step(engine)
            raise AssertionError(mistake("swallows", (
                f"run_step: {name} raised, and you return {outputs!r}: no one will know of it. Let "
                f"the exception through."), "let the exception through"))


def test_run_step__order(subject):
    """Case 32: guess, schedule, launch; with overlap the host launches before it reads."""
    for overlap in (False, True):
        for behind in (["before"], ["one", "two"], []):
            order = called(subject, overlap, behind)
            names = [name for name, *_ in order]
            want = ["guess", "schedule", "launch", *["commit"] * (len(behind) if overlap else 2)]
            what = f"run_step, overlap {overlap}, {len(behind)} flights of the step before: "
            if "launch" in names and overlap:
                assert "commit" not in names[:names.index("launch")], mistake("commits_first", (
                    f"{what}you called {names}: you commit the previous step before launching the "
                    f"next one, so the device is idle meanwhile."), "you commit before you launch")
            assert "guess" not in names[names.index("schedule"):], mistake(
                "guess_late", f"{what}you called {names}: call guess() before schedule().",
                "call guess() before schedule()")
            assert names == want, f"{what}you called {names}, expected {want}"
            read = [flight for name, *flight in order if name == "commit"]
            assert read == [[each] for each in (behind if overlap else ["new", "newer"])], mistake(
                "reversed", f"{what}flights are committed in the order {read}; commit them in the "
                            f"order of their launch.", "commit in the order of their launch")


def test_run_step__launch_reads_flights(subject):
    """Case 32: it finds there the tokens that are still on their way."""
    engine, parts = mock_engine(subject, {"a": 1}, [], overlap=True)
    attribute = subject.make("operator:attrgetter", "getattr")(
        subject.make("importlib:import_module", "builtins"))
    subject.make("builtins:setattr", parts["launch"], "function",
                 subject.make("functools:partial", attribute, engine, "flights"))
    subject.run_step(engine)                    # what launch returns is what it finds there
    assert engine.flights == ["before"], mistake("emptied_before_launch", (
        f"run_step: while launch ran, engine.flights was {engine.flights!r}. It finds tokens that "
        f"are still on their way there: store the new flights after it."), "while launch ran")


def test_run_step__guesses(subject):
    propose = subject.make(WATCHED, None, [1, 1])
    run = Run(subject, drafter=subject.make("layer3_system.engine.drafts:Drafter", propose))
    run.submit("a", [5, 6, 7])
    run.step()
    note = run.step()
    assert note["counts"]["a"] == 3, mistake(
        "guesses_late", f"run_step: call guess() before schedule(): with 2 guesses the second step "
                        f"must compute 3 tokens, it computes {note['counts']['a']}")
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
        assert first == dict.fromkeys(PROMPTS, 0), f"chunks of {chunk}: a request got its " \
            f"first token before its prompt was complete; tokens missing: {first}"
        run.as_alone(f"chunks of {chunk}", *PROMPTS)


def test_run_step__unseen(subject, rng):
    """Step after step of one engine.
    A flight is its number and its outputs."""
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
            got = (lists(subject.run_step(engine)), parts["launch"].calls, parts["commit"].calls,
                   engine.counts, engine.flights if overlap else [])
            want = ([output for _, outputs in now for output in outputs], launched,
                    [[flight] for flight in committed], counts, behind)
            assert got == want, (f"run_step, overlap {overlap}, step {step}, counts {counts}, "
                                 f"flights {flights}: outputs, launched and committed so far, "
                                 f"engine.counts, engine.flights are {got}, expected {want}")


# ---- end_request


def test_end_request(subject):
    """Case 19, decoding: it ends at once, with its pages; the others go on as if alone."""
    run = Run(subject, P=20)
    (a,), _ = run.submit("a", PROMPTS["a"]), run.submit("b", PROMPTS["d"])
    for _ in range(4):
        run.step()
    held = run.pool.used
    run.engine.abort([a])
    assert run.pool.used < held, mistake(
        "keeps_pages", "end_request: the aborted request still holds its pages. scheduler.finish "
                       "gives them back, if the status is not 'finished' yet when it is called.")
    assert a.status == "finished", f"end_request: its status is {a.status!r}, expected 'finished'"
    assert a.reason == "abort", f"end_request: its reason is {a.reason!r}, expected 'abort'"
    at = a.finished_at
    assert at is not None or run.engine.finished, mistake("finish_first", (
        "end_request: the status is 'finished', but finished_at is None and engine.finished 0. "
        "scheduler.finish sets the status: test it before you call that."))
    assert at is None or isinstance(at, float), mistake("clock_itself", (
        "end_request: finished_at is not a number of seconds. Call the function engine.clock."))
    assert at is not None, mistake(
        "no_time", "end_request: finished_at is None, expected engine.clock()'s seconds.")
    assert run.engine.finished == 1, mistake("not_counted", (
        f"end_request: one request has finished, engine.finished is {run.engine.finished}."))
    run.drain()
    run.as_alone("beside an aborted one", "b", count=8)


def test_end_request__twice(subject):
    """Case 19, finished already, and twice: nothing happens.
    The first reason stays."""
    run = Run(subject)
    (a,) = run.submit("a", PROMPTS["a"])
    (b,) = run.submit("b", PROMPTS["c"], max_tokens=1)
    run.step()
    run.step()
    run.engine.abort([b])
    assert (b.status, b.reason) == ("finished", "length"), mistake(
        "ends_again", f"end_request: b had finished by length; a later abort changed its reason to "
                      f"{b.reason!r}.")
    run.engine.abort([a])
    at = a.finished_at
    run.engine.abort([a, a, b])
    assert run.engine.finished == 2, mistake(
        "counts_twice", f"end_request: two requests have finished, engine.finished is "
                        f"{run.engine.finished}: a request that was already finished counts again.")
    assert a.finished_at == at, mistake(
        "ends_again", "end_request: finished_at changes with each further abort; it must keep the "
                      "first value")
    run.engine.abort([])
    run.drain()


def test_end_request__in_every_state(subject):
    """Case 19: waiting, within its prompt, preempted, and with a token on its way."""
    run = Run(subject, max_seqs=2)
    run.submit("a", PROMPTS["a"])
    (b,), (c,) = run.submit("b", PROMPTS["b"]), run.submit("c", PROMPTS["c"])
    note = run.step()
    where = note["prompts"]["b"], note["counts"]["b"], note["waiting"]
    assert where == (3, 3, ["c"]), "the course's own case is wrong: please report it"
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
    assert len(run.engine.flights) == 1, mistake("drops_flights", (
        f"end_request: engine.flights has {len(run.engine.flights)} flights, before 1. Other "
        f"requests have tokens in it, too; `commit` leaves out those of a request that is over."))
    run.drain()
    assert run.ended == {"a": "abort"} and run.got["a"] == [], (
        f"end_request, a is aborted with its last token on its way: {run.ended} have ended, "
        f"expected a by abort, and a got {run.got['a']}, expected no token")


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
    with raises("no_leader", ValueError, "A request that waits for another's prompt is in no list "
                "of the scheduler: take it out of request.leader.forks."):
        run.engine.abort([others[0]])
    left = [r.index for r in first.forks]
    assert left == [2], mistake(
        "stays_with_leader", f"end_request: answer 1 is aborted while it waits for answer 0's "
                             f"prompt; forks then holds {left}, expected [2].")
    notes = run.drain()
    ended = {*notes[-1]["ended"], *run.ended}
    assert ended >= {"a/0", "a/2", "b"}, f"end_request: of a/0, a/2 and b only {ended} have ended"
    run.as_alone("beside an answer that was aborted early", "a/0", "a/2", "b", count=8)

    run, (first, *others) = started(1)
    run.engine.abort([first])
    states = [r.status for r in others]
    assert states != ["finished", "waiting"], mistake("skips_forks", (
        "end_request: their leader is aborted, and only every other fork finishes. Do you go "
        "through request.forks while forks are taken out of it? Go through a copy."))
    assert states == ["finished"] * 2, mistake(
        "forks_go_on", f"end_request: their leader is aborted, so their prompt will never be "
                       f"computed; they must finish too, but are {states}.")
    assert [r.reason for r in others] == ["abort"] * 2, mistake(
        "forks_other_reason", f"end_request: the forks must finish with the same reason, not "
                              f"{[r.reason for r in others]}")
    run.drain()
    run.as_alone("beside an aborted prompt", "b", count=8)

    run, answers = started(4)                       # all three write, on shared pages
    run.engine.abort(answers[:2])
    run.drain()
    run.as_alone("whose pages were shared", "a/2", "b", count=8)


def test_end_request__its_time_and_error(subject):
    """The time is that of the engine's clock, and the text that of its error, for each that ends,
    and for no other."""
    clock = subject.make(WATCHED, None, 12.5)
    run = Run(subject, P=20, clock=clock)
    first, *others = run.submit("a", PROMPTS["b"], n=3)
    (b,) = run.submit("b", PROMPTS["a"])
    run.step()
    subject.make("builtins:setattr", clock, "answer", 99.0)
    run.engine.end(first, "error", "out of ink")
    assert (first.reason, first.error) == ("error", "out of ink"), mistake("error_lost", (
        f"end_request: reason {first.reason!r} and error {first.error!r}; expected 'error' and the "
        f"text that end_request got, 'out of ink'."))
    for request in (first, *others):
        assert request.finished_at == 99.0, mistake("own_clock", (
            f"end_request: all three answers finish when engine.clock() is 99; answer "
            f"{request.index} has finished_at {request.finished_at}."))
        assert request.error == "out of ink", mistake("forks_no_error", (
            f"end_request: all three answers finish by the error 'out of ink'; answer "
            f"{request.index} has the error {request.error}."))
    assert b.finished_at is None, \
        f"end_request: b has not finished, but its finished_at is {b.finished_at}"


def test_end_request__drawn(subject, rng):
    """Running, waiting, and waiting for another's prompt; some are ended again and again."""
    for _ in range(16):
        desk = Desk(subject, rng)
        for number in range(1, 6):
            desk.end(subject, number)
            desk.hold()


def becomes_of(side, asks, ends, error, **sizes):
    """What becomes of answers of which some are ended, the last one by an error: after each step
    how many have finished and how many pages are allocated; then how each answer ended."""
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
