"""Graders of s08: the parts of a server, one by one, without a thread or a socket.

What comes over HTTP is tested in server/. Cases carry the numbers of the course's list of what
every engine must handle.
"""

import math
from dataclasses import asdict
from itertools import product

import pytest

from lab.judge.mistakes import mistake, named, raises
from lab.judge.subject import Raised
from layer3_system import ApiError, Bridge, Call, Output, SamplingParams
from layer3_system.testing.mock_bridge import ByHand, StillEngine
from tests.layer3_system.oracle_s08_server import WHY

MOCK = "layer3_system.testing.mock_bridge:"


def tell(name, seen):
    """The message of a mistake, or of "", which names none: what was seen, and why it is wrong."""
    return mistake(name, f"{seen}. {WHY.get(name, '')}".rstrip(), WHY.get(name, ""))


def attempt(subject, function, *args):
    """What a function returns, or its ApiError, as a dict; see mock_bridge."""
    return subject.make(MOCK + "attempt", function, *args)


# ---- predict_pieces

ANSWERS = (5, 120, 500, 500)


def kept():
    """Pieces that the course's own Call keeps."""
    call = Call("call", len(ANSWERS))
    for t in range(max(ANSWERS)):
        for i, n in enumerate(ANSWERS):
            if t < n:
                call.add(i, Output(None, [t], "a", "length" if t + 1 == n else None))
    return len(call.unread)


def test_predict_pieces(subject, truth):
    want = truth(kept)
    got = subject.predict_pieces()
    assert type(got) is int, f"predict_pieces: pieces are a whole number, got {got!r}"
    name = {sum(ANSWERS): "each_token", max(ANSWERS): "each_step", 1: "whole_call",
            sum(n == max(ANSWERS) for n in ANSWERS): "still_running", 0: "all_read",
            2 * len(ANSWERS): "end_apart"}.get(got, "")
    seen = f"predict_pieces: {got} is not right"
    assert got == want, tell(name, seen) if name else (
        f"{seen}. Which tokens can form one text, and which cannot?")


# ---- Bridge.read_mail


def by_hand(subject, busy=False, **options):
    """A Bridge whose steps are made by hand, around an engine that computes nothing."""
    engine = subject.make(MOCK + "StillEngine", busy=busy, **options)
    return subject.make(MOCK + "ByHand", subject.Bridge(engine, subject.Limits(queue=3)))


def read_mail(hand, what, *twice):
    """What read_mail returns, or read_twice; an AssertionError if it raises."""
    try:
        return hand.read_twice(*twice) if twice else hand.bridge.read_mail()
    except Raised as error:
        for kind, name in (("Asleep", "sleeps_busy"), ("Polled", "polls")):
            assert error.type != kind, tell(name, f"read_mail, {what}: it read {told(hand.done)}")
        assert "positional argument" not in error.text, tell(
            "arguments", f"read_mail, {what}: {error.text}")
        assert "'NoneType' object is not callable" not in error.text, tell(
            "calls_none", f"read_mail, {what}: {error.text}")
        assert "'bool' object is not callable" not in error.text, tell(
            "calls_busy", f"read_mail, {what}: {error.text}")
        assert "SimpleNamespace' object has no attribute" not in error.text, tell(
            "not_busy", f"read_mail, {what}: it asks the scheduler")
        assert error.type != "Empty", tell("empty_raises", f"read_mail, {what}: queue.Empty")
        raise


def told(names):
    return ", ".join(names) or "nothing"


def test_Bridge_read_mail(subject):
    hand = by_hand(subject, busy=True)
    for name in "abc":
        hand.letter(name)
    goes_on = read_mail(hand, "three letters")
    name = {"": "left_in_mailbox" if hand.mail.qsize() else "not_called", "a": "one_letter",
            "cba": "newest_first"}.get("".join(hand.done), "")
    assert hand.done == ["a", "b", "c"], tell(
        name, f"read_mail, letters a, b, c for a busy engine: it read {told(hand.done)}; expected "
              f"all, in their order")
    assert goes_on is True, tell("not_true", f"read_mail returned {goes_on!r} after letters")


def test_Bridge_read_mail__a_burst(subject):
    hand = by_hand(subject, busy=True)
    for i in range(40):
        hand.letter(f"{i}")
    read_mail(hand, "40 letters")
    left = hand.mail.qsize()
    assert not left, tell("one_letter", f"read_mail, 40 letters, a busy engine: {left} are left")


def test_Bridge_read_mail__a_busy_engine_does_not_wait(subject):
    hand = by_hand(subject, busy=True)
    goes_on = read_mail(hand, "no letter for a busy engine")
    assert goes_on is True, tell("not_true", f"read_mail returned {goes_on!r} for a busy engine")
    assert hand.mail.slept == 0, tell("sleeps_busy", "read_mail, no letter for a busy engine")


def test_Bridge_read_mail__an_idle_engine_sleeps(subject):
    """Each letter comes while it sleeps; the second one gives the engine something to do."""
    hand = by_hand(subject)
    hand.letter("question", later=True)
    hand.letter("request", later=True, busy=True)
    hand.letter("too late", later=True)
    read_mail(hand, "an idle engine")
    name = {(): "spins", ("question",): "still_idle"}.get(tuple(hand.done), "")
    assert hand.done == ["question", "request"], tell(
        name, f"read_mail, an empty mailbox and an idle engine: it read {told(hand.done)}; "
              f"expected question and request: then the engine has work, so return True")
    assert hand.mail.slept == 2, tell(
        "polls", f"read_mail slept {hand.mail.slept} times until two letters came, expected 2")


def test_Bridge_read_mail__the_last_client_leaves(subject):
    """A letter makes a busy engine idle: it is asked again after each."""
    hand = by_hand(subject, busy=True)
    hand.letter("abort", busy=False)
    hand.letter("request", busy=True, later=True)
    read_mail(hand, "the last client leaves")
    assert hand.done == ["abort", "request"], (
        f"read_mail, an abort left the engine idle: it read {told(hand.done)}. Ask `engine.busy` "
        f"again after each letter: a letter can change it")


def test_Bridge_read_mail__the_end(subject):
    for busy in (True, False):
        hand = by_hand(subject, busy=busy)
        hand.letter("a")
        hand.end()
        hand.letter("b")
        goes_on = read_mail(hand, "a, None, b")
        assert goes_on is False, tell(
            "ignores_end", f"read_mail, letters a, None, b: it returned {goes_on!r}")
        assert hand.done == ["a"], tell(
            "reads_on", f"read_mail, letters a, None, b: it read {told(hand.done)}, expected a")


def test_Bridge_read_mail__a_letter_that_fails(subject):
    hand = by_hand(subject, busy=True)
    hand.fail()
    with pytest.raises(Raised, match="a letter fails"):
        goes_on = hand.bridge.read_mail()
        raise AssertionError(tell("swallows", f"read_mail returned {goes_on} after an error"))


def drawn_letters(rng):
    """[(name, busy after it, or None; while the reader sleeps?)] of which the last wakes it."""
    rows = [(f"{rng.integers(999)}", [None, None, True, False][rng.integers(4)],
             bool(rng.random() < 0.5)) for _ in range(rng.integers(7))]
    return [*rows, ("last", True, True)]


def test_Bridge_read_mail__unseen(subject, truth, rng):
    def by_the_course():
        return ByHand(Bridge(StillEngine(busy=busy))).read_twice(letters, ends)

    for busy, ends in list(product((False, True), repeat=2)) * 12:
        letters = drawn_letters(rng)
        got = read_mail(by_hand(subject, busy), f"letters {letters}", letters, ends)
        want = truth(by_the_course)
        assert got == want, (
            f"read_mail, {'a busy' if busy else 'an idle'} engine, letters (name, busy after it, "
            f"comes while it sleeps) {letters}, {'then None' if ends else 'no end'}: returned, "
            f"read, slept, returned the second time, read by then are {got}, expected {want}")


# ---- to_params

DEFAULTS = asdict(SamplingParams())
ALL = dict.fromkeys(DEFAULTS.keys() - {"prompt_logprobs"})
LENGTH = {"max_tokens": None}           # of a chat without max_tokens
ONES = {"n": 3, "max_tokens": 1, "min_tokens": 1, "ignore_eos": True}

# (fields, chat?, what differs from the defaults, {id: wrong difference})
ACCEPTED = [
    ({"prompt": "a", "model": "m", "stream": True}, False, {}, {}),
    ({"temperature": 0, "top_p": 0.5, "top_k": 7, "seed": 0} | ONES, False,
     {"temperature": 0, "top_p": 0.5, "top_k": 7, "seed": 0} | ONES,
     {"zero_absent": {"top_p": 0.5, "top_k": 7} | ONES}),
    (ALL, False, {}, {}),
    ({"stop": "end"}, False, {"stop": ("end",)}, {"letters": {"stop": ("e", "n", "d")}}),
    ({"stop": ["end", "\n"], "stop_token_ids": [5]}, False,
     {"stop": ("end", "\n"), "stop_token_ids": (5,)}, {}),
    ({"logprobs": 3}, False, {"logprobs": 3}, {}),
    ({"logprobs": 0}, False, {"logprobs": 0}, {}),
    ({"messages": []}, True, LENGTH, {"chat_of_16": {}}),
    ({"max_tokens": 9}, True, {"max_tokens": 9}, {}),
    ({"logprobs": True, "top_logprobs": 3}, True, LENGTH | {"logprobs": 3}, {}),
    ({"logprobs": True}, True, LENGTH | {"logprobs": 0}, {"top_only": LENGTH}),
    ({"logprobs": False, "temperature": None}, True, LENGTH, {}),
]


def params_of(subject, fields, chat, *more):
    """(what was asked, attempt() of to_params); an AssertionError for the engine's own error."""
    what = f"to_params, {'chat' if chat else 'completion'} with {fields}"
    try:
        outcome = attempt(subject, subject.to_params, fields, chat, *more)
        assert "left" not in outcome, tell(
            "fields_changed", f"{what}: afterwards fields is {outcome['left'][0]}")
        assert "returned" not in outcome, tell("returned", f"{what}: {outcome}")
        return what, outcome
    except Raised as error:
        assert "unexpected keyword" not in error.text, tell("all_fields", f"{what}: {error.text}")
        assert error.type != "RequestError", tell("own_error",
                                                  f"{what}: RequestError, {error.text}")
        raise


def test_to_params(subject):
    for fields, chat, differs, mistakes in ACCEPTED:
        what, outcome = params_of(subject, fields, chat)
        name = ("null_present" if None in fields.values() else
                "chat_logprobs" if chat and fields.get("logprobs") else
                "not_tuples" if outcome.get("text", "").startswith("stop") else "")
        assert "status" not in outcome, tell(name, f"{what} was rejected: {outcome.get('text')}")
        got = outcome["value"]
        want = DEFAULTS | differs
        assert got is not None, f"{what}: got nothing (None), expected SamplingParams"
        id = next((id for id, wrong in mistakes.items() if got == DEFAULTS | wrong), "")
        for name in want:
            assert got[name] == want[name], tell(
                id, f"{what}: {name} is {got[name]!r}, expected {want[name]!r}")


def refused(subject, fields, field, chat=False, names=None, **limits):
    """It is rejected with 400, and the field is named."""
    what, outcome = params_of(subject, fields, chat, names, subject.Limits(**limits))
    name = ("no_limit" if limits else "names_unread" if names else
            "top_alone" if field == "top_logprobs" else
            "zero_absent" if fields[field] == 0 else "accepted")
    assert "status" in outcome, tell(
        name, f"{what}, {limits or 'no limits'}: it was accepted, with {field} = "
              f"{outcome['value'] and outcome['value'].get(field)!r}")
    assert outcome["status"] == 400, f"{what}: status {outcome['status']}, expected 400"
    assert outcome["field"], tell("no_field", f"{what}: {outcome['text']!r} has no field")
    assert field != "top_logprobs" or "true or false" not in outcome["text"], tell(
        "renames_all", f"{what}, names {names}: {outcome['text']}")
    assert outcome["field"] == field, tell(
        "own_name", f"{what}: it names {outcome['field']}; the client calls this field {field}")
    assert outcome["text"].startswith(f"{field}:"), mistake(
        "no_name_first", f"{what}: the message is {outcome['text']!r}; it must begin with the "
                         f"field's name")


WRONG = {"max_tokens": (-1, 0), "n": (0, "3"), "temperature": ("hot", -1), "seed": (1.5,),
         "stop": ("", 5, ["a", None]), "stop_token_ids": ([-1], 5), "logprobs": (99, True),
         "ignore_eos": (1,), "top_k": (2**31,), "top_p": (0,)}


def test_to_params__a_wrong_field_is_named(subject):
    """Case 22: max_tokens of 0 or less is refused."""
    for field, values in WRONG.items():
        for value in values:
            refused(subject, {field: value}, field)
    refused(subject, {"min_tokens": 9, "max_tokens": 3}, "min_tokens")
    for fields, field in (({"top_logprobs": 3}, "top_logprobs"), ({"logprobs": 1}, "logprobs"),
                          ({"logprobs": False, "top_logprobs": 0}, "top_logprobs"),
                          ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
                          ({"max_tokens": 0}, "max_tokens")):
        refused(subject, fields, field, True)


def test_to_params__by_the_clients_names(subject):
    """Newer clients write max_completion_tokens."""
    names = {"max_tokens": "max_completion_tokens", "logprobs": "top_logprobs"}
    refused(subject, {"max_completion_tokens": 0}, "max_completion_tokens", True, names)
    refused(subject, {"logprobs": True, "top_logprobs": 99}, "top_logprobs", True, names)
    what, outcome = params_of(subject, {"max_completion_tokens": 7}, True, names)
    got = (outcome.get("value") or {}).get("max_tokens", outcome)
    assert got == 7, \
        f"{what}: max_tokens is {got!r}; `names` gives the client's name of the field"


def test_to_params__a_servers_limit(subject):
    for limit in (100, 1, 2**15, 2**40):
        refused(subject, {"max_tokens": limit + 1}, "max_tokens", tokens=limit)
        what, outcome = params_of(subject, {"max_tokens": limit}, False, None,
                                  subject.Limits(tokens=limit))
        assert "value" in outcome, tell(
            "limit_excluded", f"{what}, at most {limit} tokens: {outcome.get('text')}")
    for fields in ({"max_tokens": 100}, {"max_tokens": None}):
        what, outcome = params_of(subject, fields, True, None, subject.Limits(tokens=100))
        assert "value" in outcome, f"{what}, at most 100 tokens: {outcome['text']}"


def drawn_fields(rng):
    """Some valid sampling parameters, a few of them null."""
    fields = {
        "max_tokens": int(rng.integers(16, 999)), "min_tokens": int(rng.integers(16)),
        "temperature": float(rng.integers(200) / 100), "top_k": int(rng.integers(99)),
        "top_p": float(rng.integers(1, 100) / 100), "seed": int(rng.integers(2**60)),
        "n": int(rng.integers(1, 129)), "ignore_eos": bool(rng.integers(2)),
        "stop": [f"stop {rng.integers(99)}" for _ in range(rng.integers(4))],
        "stop_token_ids": rng.integers(999, size=int(rng.integers(4))).tolist()}
    return {name: value if rng.random() < 0.8 else None for name, value in fields.items()
            if rng.random() < 0.8}


def test_to_params__unseen(subject, rng):
    names = {"max_tokens": "max_completion_tokens"}
    for chat in (False, True) * 4:
        fields = drawn_fields(rng)
        count = int(rng.integers(21))
        want = DEFAULTS | (LENGTH if chat else {}) | {"logprobs": count} | {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.items() if value is not None}
        fields |= {"logprobs": True, "top_logprobs": count} if chat else {"logprobs": count}
        if chat and "max_tokens" in fields:
            fields["max_completion_tokens"] = fields.pop("max_tokens")
        what, outcome = params_of(subject, fields, chat, names if chat else None)
        assert outcome.get("value") == want, f"{what}: got {outcome}, expected {want}"
        limit = int(rng.integers(1, 99))
        refused(subject, {"max_tokens": limit + 1}, "max_tokens", chat, tokens=limit)
        refused(subject, {"n": -limit}, "n", chat)


# ---- Call.add


def steps_into(subject, count):
    """A StepWriter into a Call of this many answers; see mock_bridge."""
    return subject.make(MOCK + "StepWriter", subject.Call("call", count))


def test_Call_add(subject):
    steps = steps_into(subject, 2)
    with raises("no_piece_yet", KeyError, "Nothing may be unread yet: unread.get(index, Piece())."):
        steps.add(1, "ab", 2)
    got = steps.unread()
    assert got not in ({}, {1: ("", 0, None)}), tell(
        "not_stored", f"Call.add(1, …): unread is {got}")
    assert isinstance([*got.values()][0][0], str), tell(
        "list_of_pieces", "Call.add(1, …): unread holds a list")
    assert list(got) == [1], tell("ignores_index", f"Call.add(1, …): unread is {got}")
    assert got == {1: ("ab", 2, None)}, (
        f"Call.add(1, 2 tokens that read 'ab'): unread is {got}; expected {{1: ('ab', 2, None)}}: "
        f"the text, how many tokens, and no reason yet, of answer 1")
    assert steps.call.woken.is_set(), tell("not_woken", "Call.add, a piece of text")
    assert steps.call.open == 2, tell(
        "each_closes", f"Call.add: open is {steps.call.open} after a token")


def test_Call_add__joined(subject):
    """Four steps that are not read.
    The second gives tokens of a character that is not whole."""
    steps = steps_into(subject, 2)
    for step in ((0, "Once", 2), (1, "The", 1), (0, "", 1), (0, " upon", 1), (1, " fox", 1)):
        steps.add(*step)
    got = steps.unread()
    want = {0: ("Once upon", 4, None), 1: ("The fox", 2, None)}
    names = {" upon": "last_only", " fox": "last_only", " uponOnce": "in_front"}
    for i, (text, tokens, _) in want.items():
        assert i in got, f"Call.add: there is no piece of answer {i}, and two steps wrote it"
        piece, n = got[i][:2]
        assert piece == text, tell(
            names.get(piece, ""), f"Call.add: the piece of answer {i} is {piece!r}, expected "
                                  f"{text!r}")
        assert n == tokens, tell(
            "tokens_lost" if n < tokens else "letters_counted",
            f"Call.add: the piece of answer {i} counts {n} tokens, {tokens} were written")
    assert got == want, f"Call.add: the unread pieces are {got}, expected {want}"


def test_Call_add__the_end(subject):
    steps = steps_into(subject, 2)
    steps.add(0, "a", 1)
    steps.add(0, "b", 1, "stop")
    reason = steps.unread()[0][2]
    assert reason == "stop", tell("reason_lost", f"Call.add, an end by stop: its piece says "
                                                 f"{reason!r}")
    assert steps.call.open == 1, tell(
        "never_closes", f"Call.add: {steps.call.open} of two answers are open after one ended")
    assert steps.call.error is None, tell(
        "every_end_fails", f"Call.add: the call has failed, {steps.call.error}")
    steps.add(1, "", 0, "length")
    assert steps.call.error is None, tell(
        "length_fails", f"Call.add, an end by length: the call has failed, {steps.call.error}")
    assert steps.call.open == 0, tell(
        "some_reasons", f"Call.add, an end by length: open is {steps.call.open}, expected 0")
    got = steps.unread().get(1)
    assert got == ("", 0, "length"), tell(
        "reason_lost", f"Call.add, an end by length, without a text: its piece is {got}")
    silent = steps_into(subject, 1)
    silent.add(0, "", 1, "stop")                # the token that ends it is not shown
    assert silent.call.woken.is_set(), tell(
        "silent_end", "Call.add: an answer ended without a text, and its reader was not woken")


def test_Call_add__a_failure(subject):
    """A kernel that raised: the client is told."""
    steps = steps_into(subject, 2)
    with raises("raises_error", ApiError, "Only the event loop would see that: self.fail(500, …) "
                "tells the reader."):
        steps.add(1, "", 0, "error")
    error = steps.call.error
    assert error is not None, tell("error_ignored", "Call.add, reason error")
    assert error[0] == 500 and "an illegal memory access" in error[1], (
        f"Call.add, reason error: fail({error}); expected 500 and the request's own error")
    assert "Request(" not in error[1], tell(
        "whole_request", f"Call.add, reason error: fail({error})")
    assert steps.call.open == 1, tell(
        "failure_no_end", f"Call.add, one of two answers ended by an error: {steps.call.open} "
                          f"are open, expected 1")
    assert steps.call.woken.is_set(), "Call.add, reason error: the reader was not woken"
    late = steps_into(subject, 1)
    late.call.fail(504, "no answer in 600 s")
    late.add(0, "", 0, "error")
    assert late.call.error[0] == 504, tell(
        "overwrites", f"Call.add, reason error after a time limit: error is {late.call.error}")


def test_Call_add__an_abort(subject):
    steps = steps_into(subject, 1)
    steps.add(0, "", 0, "abort")
    assert steps.call.error is None, tell(
        "length_fails", f"Call.add, an end by abort: the call has failed, {steps.call.error}")
    assert steps.call.open == 0, tell(
        "some_reasons", f"Call.add, an end by abort: open is {steps.call.open}, expected 0")


def test_Call_add__many(subject):
    """The last of 40,000 answers: 200 tokens that are not read, then an output of 40,000 tokens."""
    steps = steps_into(subject, 40_000)
    for t in range(200):
        steps.add(39_999, chr(97 + t % 26), 1)
    steps.add(39_999, ".", 40_000, "stop")
    got = steps.unread(), steps.call.open
    want = {39_999: ("".join(chr(97 + t % 26) for t in range(200)) + ".", 40_200, "stop")}, 39_999
    assert got == want, (f"Call.add, the last of 40,000 answers, in 201 steps that are not read: "
                         f"unread and open are {got}, expected {want}")


def test_Call_add__nothing_is_read_twice(subject):
    steps = steps_into(subject, 1)
    steps.add(0, "a", 1)
    assert steps.call.woken.is_set(), mistake(
        "not_woken", "Call.add: the reader was not woken and sleeps for ever")
    steps.read()
    steps.add(0, "b", 1)
    got = steps.unread()
    assert got == {0: ("b", 1, None)}, (
        f"Call.add, after the reader took 'a': unread is {got}, expected 'b' alone")


def test_Call_add__unseen(subject, rng):
    """The client reads now and then."""
    steps = steps_into(subject, 3)
    unread = {}
    events = []
    reasons = [None] * 3
    for _ in range(120):
        i = int(rng.integers(3))
        text = f"{rng.integers(99)} "
        reason = str(rng.choice(["stop", "length"])) if rng.random() < 0.1 else None
        if reasons[i] is None:
            tokens = int(rng.integers(4))
            reasons[i] = reason
            steps.add(i, text, tokens, reason)
            events.append((i, text, tokens, reason))
            before, n, _ = unread.get(i, ("", 0, None))
            unread[i] = before + text, n + tokens, reason
            got = steps.unread(), steps.call.open, steps.call.woken.is_set()
            want = unread, reasons.count(None), True
            assert got == want, (f"Call.add, in turn (index, text, tokens, reason) {events}: "
                                 f"unread, open, woken are {got}, expected {want}")
        if unread and rng.random() < 0.3:
            steps.read()
            unread = {}
            events.append("all was read")


# ---- Bridge.make_room


def ask(subject, count, taken, finished=0, ends=(), seats=2, queue=3):
    """attempt() of make_room at 100 s: at most `seats` answers run and `queue` wait."""
    hand = subject.make(MOCK + "ByHand", subject.Bridge(
        subject.make(MOCK + "StillEngine", seats), subject.Limits(queue=queue)), 100.0)
    hand.fill(taken, finished, list(ends))
    what = (f"make_room({count}), {seats} may run and {queue} wait, {taken} answers were accepted "
            f"and {finished} of them have finished")
    with named("no_ends", "self.ends may be empty: then assume 1 s an answer.",
               lambda error: not ends and error.type in ("IndexError", "ZeroDivisionError")), named(
            "asks_scheduler", "The scheduler knows no letters: self.taken - self.engine.finished.",
            lambda error: "SimpleNamespace' object has no attribute" in error.text), named(
            "headers_of_a_set", 'headers is a dict: {"Retry-After": str(wait)}.',
            lambda error: "dictionary update sequence" in error.text):
        outcome = attempt(subject, hand.bridge.make_room, count)
    assert hand.bridge.taken == taken, tell(
        "counts_itself", f"{what}: then self.taken is {hand.bridge.taken}")
    left = list(hand.bridge.ends)
    assert left == list(ends), tell(
        "ends_changed", f"{what}: self.ends was {list(ends)}, then it is {left}")
    assert "returned" not in outcome, tell("returned", f"{what}: {outcome}")
    return what, outcome


def test_Bridge_make_room(subject):
    for count, taken, finished, name in (
            (1, 0, 0, ""), (3, 0, 0, "queue_uncounted"), (5, 0, 0, "last_place"),
            (1, 4, 0, "last_place"), (2, 9, 6, "finished_counted"),
            (1, 1000, 998, "finished_counted")):
        what, outcome = ask(subject, count, taken, finished)
        status = outcome.get("status")
        assert "value" in outcome, tell("five_fit" if (count, status) == (5, 400) else name,
                                        f"{what}: {status}, {outcome.get('text')}")
    what, outcome = ask(subject, 4, 5)
    value = outcome.get("value")
    assert value is None, tell("nothing_raised", f"{what}: it returned {value!r}")
    assert "status" in outcome, tell("default_limits", f"{what}: it was accepted")
    for count, taken, finished in ((1, 5, 0), (3, 3, 0), (5, 1001, 1000), (1, 105, 100)):
        what, outcome = ask(subject, count, taken, finished)
        assert "status" in outcome, tell("one_too_many", what)
        assert outcome["status"] == 429, tell("other_status", f"{what}: {outcome['status']}")


def test_Bridge_make_room__never(subject):
    """Six answers never fit where five may be: waiting is no use."""
    what, outcome = ask(subject, 6, 0)
    assert outcome.get("status") == 400 and outcome["field"] == "prompt", tell(
        "never_fits", f"{what}: {outcome}")


# (expected, got): the mistake
WAITS = {(10, "3"): "one_place", (10, "2"): "upside_down", (10, "14"): "gaps",
         (10, "4"): "to_newest", (10, "6"): "from_newest", (8, "10"): "count_ends",
         (8, "7"): "rounded_down", (2, "1"): "rounded_down", (1, "0"): "at_once",
         (3, "1"): "one_second", (60, "160"): "no_cap", (12, "4"): "some_ends"}


def test_Bridge_make_room__when_to_try_again(subject):
    for count, taken, ends, want in (
            (4, 5, (90, 91, 92, 94), 10),           # four ended in 10 s, four must end
            (4, 4, (90, 91, 92, 94), 8),            # 7.5 s: three must end
            (4, 5, (40, *range(81, 100)), 12),      # twenty ended in 60 s
            (3, 5, (90, 92, 94, 96, 98), 6),
            (1, 5, (90, 92, 94, 96, 98), 2),
            (1, 5, (97, 98), 2),                    # 1.5 s
            (1, 5, (99.9, 99.95), 1),               # soon, not at once
            (3, 5, (), 3),                          # nothing has ended yet: a second each
            (3, 5, (60, 80), 60), (3, 5, (61, 80), 59), (1, 5, (99,), 1), (1, 5, (100,), 1),
            (4, 5, (20, 60), 60)):                  # no client is sent away for hours
        what, outcome = ask(subject, count, taken, 0, ends)
        assert outcome.get("status") == 429, f"{what}: {outcome}; expected 429"
        got = outcome["headers"].get("Retry-After")
        assert got is not None, tell("no_header", f"{what}: no header Retry-After")
        assert got == str(want), tell(
            WAITS.get((want, got), ""), f"{what}, at 100 s; answers ended at {list(ends)}: "
                                        f"Retry-After is {got!r}, expected {str(want)!r}")


def test_Bridge_make_room__unseen(subject, rng):
    for case in range(120):
        seats, queue, count, finished = rng.integers((1, 0, 1, 0), (4, 4, 8, 5)).tolist()
        finished += (0, 2**15, 2**40)[case % 3]
        taken = finished + int(rng.integers(seats + queue + 1))
        # 1, 2, 4 or 8 ends in eighths of a second: no quotient is rounded
        ends = sorted((100 - rng.integers(1, 400, 2 ** rng.integers(4)) / 8).tolist()
                      if rng.random() < 0.9 else [])
        each = (100 - ends[0]) / len(ends) if ends else 1
        over = taken - finished + count - seats - queue
        want = (400, None) if count > seats + queue else (None, None) if over <= 0 else (
            429, str(min(math.ceil(over * each), 60)))
        what, outcome = ask(subject, count, taken, finished, ends, seats, queue)
        got = outcome.get("status"), outcome.get("headers", {}).get("Retry-After")
        assert got == want, (f"{what}, at 100 s; answers ended at {ends}: status and Retry-After "
                             f"are {got}, expected {want}")
