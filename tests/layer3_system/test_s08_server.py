"""Graders of s08: the parts of a server, one by one, without a thread or a socket.

What comes over HTTP is tested in test_server.py. Cases carry the numbers of the course's list of
what every engine must handle.
"""

import math
from itertools import product

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab.judge.subject import Raised
from layer3_system import (
    ApiError,
    Bridge,
    ByteTokenizer,
    Call,
    Engine,
    MockLlama,
    Output,
    PrefixPool,
    SamplingParams,
    check_engine,
)
from layer3_system.server.app import make_app
from layer3_system.server.metrics import Metrics
from layer3_system.testing.mock_bridge import ByHand, StillEngine

MOCK = "layer3_system.testing.mock_bridge:"


def attempt(subject, function, *args):
    """What a function gives or tells a client; see mock_bridge."""
    return subject.make(MOCK + "attempt", function, *args)


# ---- predict_pieces

ANSWERS = (5, 120, 500, 500)


def waiting():
    """Pieces that wait in the course's own Call."""
    call = Call("call", len(ANSWERS))
    for t in range(max(ANSWERS)):
        for i, n in enumerate(ANSWERS):
            if t < n:
                call.add(i, Output(None, [t], "a", "length" if t + 1 == n else None))
    return len(call.news)


def test_predict_pieces(subject, truth):
    want, got = truth(waiting), subject.predict_pieces()
    assert type(got) is int, f"predict_pieces: pieces are a whole number, got {got!r}"
    near = {
        sum(ANSWERS): "that is a piece for each token. A client that never reads would then fill "
                      "the memory",
        max(ANSWERS): "that is one a step. What two steps wrote of one answer is joined",
        sum(n == max(ANSWERS) for n in ANSWERS):
            "that counts answers that go on to the last step. Has the client read the ends of the "
            "others",
        1: "that would be one for the whole call. The texts of two answers cannot be joined",
    }.get(got, "Which tokens can be one text, and which cannot")
    assert got == want, f"predict_pieces: {got} is not it: {near}?"


# ---- Bridge.read_mail


def by_hand(subject, busy=False, **options):
    """A Bridge whose steps are made by hand, around an engine that computes nothing."""
    engine = subject.make(MOCK + "StillEngine", busy=busy, **options)
    return subject.make(MOCK + "ByHand", subject.Bridge(engine, subject.Limits(queue=3)))


def read_mail(hand, what):
    """What read_mail gives; what a test cannot go on from is told."""
    try:
        return hand.bridge.read_mail()
    except Raised as error:
        assert error.type != "Asleep", (
            f"read_mail, {what}: it read {told(hand.done)}, then it sleeps until mail comes, and "
            f"none will: meanwhile no step is made and running answers stand still")
        assert error.type != "TypeError", (
            f"read_mail, {what}: {error.text}. None is the letter that ends the thread; the others "
            f"are functions")
        raise


def told(names):
    return ", ".join(names) or "nothing"


def test_Bridge_read_mail(subject):
    hand = by_hand(subject, busy=True)
    for name in "abc":
        hand.letter(name)
    goes_on = read_mail(hand, "three letters")
    assert hand.done or hand.mail.qsize(), "read_mail, three letters: it took them out of the " \
        "mailbox and did not call them. A letter is a function of nothing"
    assert hand.done != [], "read_mail, three letters for a busy engine: it left them all lying " \
        "there. A newcomer is to be in the very next step"
    assert hand.done != ["a"], "read_mail, three letters: it read one letter a step. All that " \
        "lies there is read before the step, or a rush of clients waits in the mail"
    assert hand.done != ["c", "b", "a"], "read_mail, letters a, b, c: the last that came was " \
        "read first. An abort would then come before its own request"
    assert hand.done == ["a", "b", "c"], \
        f"read_mail, letters a, b, c: it read {told(hand.done)}; expected all, in their order"
    assert goes_on is True, f"read_mail gave {goes_on!r} after letters; True: go on with a step"


def test_Bridge_read_mail__a_busy_engine_waits_for_nobody(subject):
    hand = by_hand(subject, busy=True)
    assert read_mail(hand, "no mail for a busy engine") is True and hand.mail.slept == 0


def test_Bridge_read_mail__an_idle_engine_sleeps(subject):
    """Each letter comes while it sleeps; the second one gives the engine something to do."""
    hand = by_hand(subject)
    hand.letter("question", later=True)
    hand.letter("request", later=True, busy=True)
    hand.letter("too late", later=True)
    read_mail(hand, "an idle engine")
    done = hand.done
    assert done != [], "read_mail, no mail and an idle engine: it came back with nothing. The " \
        "thread would go round and round on a core of its own: sleep in mail.get()"
    assert done != ["question"], "read_mail: after one letter it came back, with nothing to " \
        "compute. It is awake, and the engine as idle as before"
    assert done == ["question", "request"], (
        f"read_mail, an idle engine: it read {told(done)}; expected question and request. The "
        f"engine is busy then, and wants its step")
    assert hand.mail.slept == 2


def test_Bridge_read_mail__the_last_client_leaves(subject):
    """A letter makes a busy engine idle: it is asked again after each."""
    hand = by_hand(subject, busy=True)
    hand.letter("abort", busy=False)
    hand.letter("request", busy=True, later=True)
    read_mail(hand, "the last client leaves")
    assert hand.done == ["abort", "request"], (
        f"read_mail, an abort left the engine idle: it read {told(hand.done)}. Whether the engine "
        f"is busy changes with each letter")


def test_Bridge_read_mail__the_end(subject):
    for busy in (True, False):
        hand = by_hand(subject, busy=busy)
        hand.letter("a")
        hand.end()
        hand.letter("b")
        goes_on = read_mail(hand, "a, None, b")
        assert goes_on is False, (f"read_mail gave {goes_on!r} where a letter is None. With False "
                                  f"the thread ends; else it makes another step")
        assert hand.done == ["a"], f"read_mail, a, None, b: it read {told(hand.done)}"


def test_Bridge_read_mail__a_client_that_vanishes(subject):
    """Case 20: its pages are free again before the next step, the other's answer goes on."""
    pool = subject.make("layer3_system:PrefixPool", 16, 4)
    engine = subject.make("layer3_system:Engine", subject.make("layer3_system:MockLlama"),
                          subject.make("layer3_system:ByteTokenizer"), pool)
    hand = subject.make(MOCK + "ByHand", subject.Bridge(engine))
    hand.submit("stays", [1, 2, 3], max_tokens=30, ignore_eos=True, seed=1)
    hand.step()
    before = pool.used
    goes = hand.submit("goes", list(range(20)), max_tokens=40, ignore_eos=True)
    hand.step()
    assert pool.used > before, "read_mail, a request in the mail: it has no pages after a step"
    hand.bridge.close(goes)
    for _ in range(2):
        hand.step()
    now = {len(r.prompt) for r in engine.scheduler.running}
    assert now == {3}, ("read_mail: two steps after a client left, its request still runs. Its "
                        "abort lies in the mailbox")
    assert pool.used == -(-6 // 4), f"{pool.used} pages are held by one answer of 6 tokens"


def drawn_letters(rng):
    """[(name, busy after it, or None; while the reader sleeps?)] of which the last wakes it."""
    rows = [(f"{rng.integers(999)}", [None, None, True, False][rng.integers(4)],
             bool(rng.random() < 0.5)) for _ in range(rng.integers(7))]
    return [*rows, ("last", True, True)]


def mail_read(hand, letters, ends):
    """What read_mail does with letters, and then again, with the end in the mail perhaps."""
    for name, busy, later in letters:
        hand.letter(name, busy, later)
    first = (read_mail(hand, f"letters {letters}"), list(hand.done), hand.mail.slept)
    if ends:
        hand.end()
    return (*first, read_mail(hand, f"letters {letters}, then again"), list(hand.done))


def test_Bridge_read_mail__unseen(subject, truth, rng):
    def by_the_course():
        return mail_read(ByHand(Bridge(StillEngine(busy=busy))), letters, ends)

    for busy, ends in list(product((False, True), repeat=2)) * 12:
        letters = drawn_letters(rng)
        got, want = mail_read(by_hand(subject, busy), letters, ends), truth(by_the_course)
        assert got == want, (
            f"read_mail, {'a busy' if busy else 'an idle'} engine, letters (name, busy after it, "
            f"comes while it sleeps) {letters}, {'then None' if ends else 'no end'}: given, read, "
            f"slept, given the second time, read by then are {got}, expected {want}")


# ---- to_params

# ---- to_params

DEFAULTS = {"max_tokens": 16, "min_tokens": 0, "temperature": 1.0, "top_k": 0, "top_p": 1.0,
            "seed": None, "stop": (), "stop_token_ids": (), "ignore_eos": False, "logprobs": None,
            "prompt_logprobs": None, "n": 1, "min_p": 0.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": ()}
ALL = dict.fromkeys(DEFAULTS.keys() - {"prompt_logprobs"})
LENGTH = {"max_tokens": None}           # of a chat that does not say

# (fields, chat?, what differs from the defaults, [(wrong difference, what it means)])
TAKEN = [
    ({"prompt": "a", "model": "m", "stream": True}, False, {}, []),
    ({"temperature": 0, "top_p": 0.5, "top_k": 7, "seed": 0, "n": 3, "max_tokens": 1,
      "min_tokens": 1, "ignore_eos": True}, False,
     {"temperature": 0, "top_p": 0.5, "top_k": 7, "seed": 0, "n": 3, "max_tokens": 1,
      "min_tokens": 1, "ignore_eos": True},
     [({"top_p": 0.5, "top_k": 7, "n": 3, "max_tokens": 1, "min_tokens": 1, "ignore_eos": True},
       "0 is a value like others, not an absent one")]),
    (ALL, False, {}, []),
    ({"stop": "end"}, False, {"stop": ("end",)},
     [({"stop": ("e", "n", "d")}, "One text became a stop for each of its letters")]),
    ({"stop": ["end", "\n"], "stop_token_ids": [5]}, False,
     {"stop": ("end", "\n"), "stop_token_ids": (5,)}, []),
    ({"logprobs": 3}, False, {"logprobs": 3}, []),
    ({"logprobs": 0}, False, {"logprobs": 0}, []),
    ({"messages": []}, True, LENGTH,
     [({}, "An answer of a chat is cut by nothing but the context: max_tokens is None there")]),
    ({"max_tokens": 9}, True, {"max_tokens": 9}, []),
    ({"logprobs": True, "top_logprobs": 3}, True, LENGTH | {"logprobs": 3}, []),
    ({"logprobs": True}, True, LENGTH | {"logprobs": 0}, []),
    ({"logprobs": False, "temperature": None}, True, LENGTH, []),
]


def params_of(subject, fields, chat, *more):
    """attempt() of to_params; an error of the engine's own is told as the mistake that it is."""
    what = f"to_params, {'chat' if chat else 'completion'} with {fields}"
    try:
        found = attempt(subject, subject.to_params, fields, chat, *more)
    except Raised as error:
        assert error.type != "RequestError", (
            f"{what}: RequestError, {error.text}. The server knows it as a fault of its own, 500; "
            f"a client is told 400 by an ApiError")
        raise
    return what, found


def test_to_params(subject):
    for fields, chat, differs, mistakes in TAKEN:
        what, found = params_of(subject, fields, chat)
        if "status" in found:
            why = ("null is as good as not there: it asks for the default"
                   if None in fields.values() else
                   "In a chat logprobs is true or false, and top_logprobs the number"
                   if chat and fields.get("logprobs") else "All of it is right")
            raise AssertionError(f"{what} was refused: {found['text']}. {why}")
        got, want = found["value"], DEFAULTS | differs
        assert got is not None, f"{what}: got nothing (None), expected SamplingParams"
        why = next((why for wrong, why in mistakes if got == DEFAULTS | wrong), "")
        for name in want:
            assert got[name] == want[name], (
                f"{what}: {name} is {got[name]!r}, expected {want[name]!r}. {why}")


def refused(subject, fields, field, chat=False, names=None, **limits):
    """It is refused with 400, and the field is named."""
    what, found = params_of(subject, fields, chat, names, subject.Limits(**limits))
    assert "status" in found, f"{what}, {limits or 'no limits'}: it was taken, with " \
        f"{field} = {found['value'] and found['value'].get(field)!r}. " + (
            "That is above the limit of the server" if limits else
            f"The client's {field} is wrong: refuse it")
    assert found["status"] == 400, f"{what}: status {found['status']}; 400 says: your request"
    assert found["field"] == field, (
        f"{what}: it names {found['field']}, the client's own name is {field}")
    assert found["text"].startswith(f"{field}:"), \
        f"{what}: the message is {found['text']!r}; it begins with the field's name"


def test_to_params__a_wrong_field_is_named(subject):
    """Case 22: max_tokens of 0 or less is refused."""
    for fields, field in (({"max_tokens": 0}, "max_tokens"), ({"max_tokens": -1}, "max_tokens"),
                          ({"n": 0}, "n"), ({"temperature": "hot"}, "temperature"),
                          ({"temperature": -1}, "temperature"), ({"seed": 1.5}, "seed"),
                          ({"stop": ""}, "stop"), ({"stop": 5}, "stop"),
                          ({"stop": ["a", None]}, "stop"), ({"logprobs": 99}, "logprobs"),
                          ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
                          ({"stop_token_ids": [-1]}, "stop_token_ids"),
                          ({"stop_token_ids": 5}, "stop_token_ids"),
                          ({"logprobs": True}, "logprobs"), ({"ignore_eos": 1}, "ignore_eos"),
                          ({"top_k": 2**31}, "top_k"), ({"top_p": 0}, "top_p")):
        refused(subject, fields, field)
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
    what, found = params_of(subject, {"max_completion_tokens": 7}, True, names)
    got = (found.get("value") or {}).get("max_tokens", found)
    assert got == 7, f"{what}: max_tokens is {got!r}; `names` says what the client calls it"


def test_to_params__a_servers_limit(subject):
    for limit in (100, 1, 2**15, 2**40):
        refused(subject, {"max_tokens": limit + 1}, "max_tokens", tokens=limit)
        what, found = params_of(subject, {"max_tokens": limit}, False, None,
                                subject.Limits(tokens=limit))
        assert "value" in found, (f"{what}, at most {limit} tokens: {found['text']}. As many as "
                                  f"the limit are not above it")
    for fields in ({"max_tokens": 100}, {"max_tokens": None}):
        what, found = params_of(subject, fields, True, None, subject.Limits(tokens=100))
        assert "value" in found, f"{what}, at most 100 tokens: {found['text']}"


def drawn_fields(rng):
    """Sampling parameters that are right, some of them, and of those some null."""
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
        fields, count = drawn_fields(rng), int(rng.integers(21))
        want = DEFAULTS | (LENGTH if chat else {}) | {"logprobs": count} | {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.items() if value is not None}
        fields |= {"logprobs": True, "top_logprobs": count} if chat else {"logprobs": count}
        if chat and "max_tokens" in fields:
            fields["max_completion_tokens"] = fields.pop("max_tokens")
        what, found = params_of(subject, fields, chat, names if chat else None)
        assert found.get("value") == want, f"{what}: got {found}, expected {want}"
        limit = int(rng.integers(1, 99))
        refused(subject, {"max_tokens": limit + 1}, "max_tokens", chat, tokens=limit)
        refused(subject, {"n": -limit}, "n", chat)


# ---- Call.add


class Written:
    """A Call under test, and what steps write into it."""

    def __init__(self, subject, count):
        self.subject, self.call = subject, subject.Call("call", count)
        params = subject.make("layer3_system:SamplingParams")
        self.request = subject.make("layer3_system:Request", "r", [1], params,
                                    error="an illegal memory access")

    def add(self, index, text, tokens, reason=None):
        output = self.subject.make("layer3_system:Output", self.request, list(range(tokens)), text,
                                   reason)
        self.call.add(index, output)

    def unread(self):
        return {int(i): tuple(news)
                for i, news in self.subject.make(MOCK + "unread", self.call).items()}


def test_Call_add(subject):
    written = Written(subject, 2)
    written.add(1, "ab", 2)
    got = written.unread()
    assert list(got) == [1], f"Call.add(1, …): news is of the answers {list(got)}, expected of " \
        "answer 1 alone; index says whose it is"
    assert got == {1: ("ab", 2, None)}, (
        f"Call.add(1, 2 tokens that read 'ab'): news is {got}; expected {{1: ('ab', 2, None)}}: "
        f"the text, how many tokens, and no reason yet, of answer 1")
    assert written.call.woken.is_set(), \
        "Call.add: the reader was not woken. It sleeps on with its text there: woken.set()"
    assert written.call.open == 2, (
        f"Call.add: {written.call.open} answers are open after a token. One less is open at an "
        f"answer's end, which a reason tells")


def test_Call_add__joined(subject):
    """Four steps that are not read. The second gives tokens of a character that is not whole."""
    written = Written(subject, 2)
    for step in ((0, "Once", 2), (1, "The", 1), (0, "", 1), (0, " upon", 1), (1, " fox", 1)):
        written.add(*step)
    got, want = written.unread(), {0: ("Once upon", 4, None), 1: ("The fox", 2, None)}
    for i, (text, tokens, _) in want.items():
        assert i in got, f"Call.add: nothing waits of answer {i}, and two steps wrote it"
        found, n = got[i][:2]
        why = {" upon": "Only what the last step wrote is there: the client loses the rest",
               " fox": "Only what the last step wrote is there: the client loses the rest",
               " uponOnce": "New text goes after what was not read yet"}.get(found, "")
        assert found == text, f"Call.add: of answer {i} waits {found!r}, expected {text!r}. {why}"
        assert n == tokens, (f"Call.add: {n} tokens wait of answer {i}, {tokens} were written: "
                             f"without their count, logprobs go to the wrong text")
    assert got == want, f"Call.add: {got} waits, expected {want}"


def test_Call_add__the_end(subject):
    written = Written(subject, 2)
    written.add(0, "a", 1)
    written.add(0, "b", 1, "stop")
    got, open = written.unread()[0], written.call.open
    assert got[2] == "stop", f"Call.add: the answer ended by stop, and its piece says {got[2]!r}"
    assert open == 1, (f"Call.add: {open} of two answers are open after one ended: with 0 the "
                       f"stream ends before its time, with 2 it never does")
    assert written.call.error is None, \
        f"Call.add: the call has failed, {written.call.error}; an answer came to its end, no more"
    written.add(1, "", 0, "length")
    assert written.call.open == 0 and written.unread()[1] == ("", 0, "length")
    silent = Written(subject, 1)
    silent.add(0, "", 1, "stop")                # the token that ends it is not shown
    assert silent.call.woken.is_set(), (
        "Call.add: an answer ended without a text, and its reader was not woken: the client waits "
        "for ever. Every piece wakes it")


def test_Call_add__a_slow_reader(subject):
    """3 answers of 200 tokens each and no reader: 3 pieces wait, and all the text."""
    written = Written(subject, 3)
    for t in range(200):
        for i in range(3):
            written.add(i, chr(97 + t % 26), 1, "length" if t == 199 else None)
    got = written.unread()
    assert len(got) == 3, f"Call.add: {len(got)} pieces wait of three answers"
    want = "".join(chr(97 + t % 26) for t in range(200))
    for i, (text, tokens, reason) in got.items():
        assert (text == want, tokens, reason) == (True, 200, "length"), (
            f"Call.add, 200 tokens in 200 steps: of answer {i} {len(text)} characters wait, "
            f"{tokens} tokens, reason {reason}; expected all 200, and length")


def test_Call_add__a_failure(subject):
    """A kernel that raised: the client is told."""
    written = Written(subject, 2)
    written.add(1, "", 0, "error")
    error = written.call.error
    assert error is not None, ("Call.add, reason error: the call goes on as if nothing had "
                               "happened. The client is told by fail(500, …)")
    assert error[0] == 500 and "an illegal memory access" in error[1], (
        f"Call.add, reason error: fail({error}); expected 500 and the request's own error")
    assert written.call.open == 1, (
        f"Call.add, one of two answers ended by an error: {written.call.open} are open, expected "
        f"1. A failure is an end, too")
    assert written.call.woken.is_set(), "Call.add, reason error: the reader was not woken"


def test_Call_add__many_answers(subject):
    """The last of 40,000 answers, and an output of 40,000 tokens."""
    written = Written(subject, 40_000)
    written.add(39_999, "a", 1)
    written.add(39_999, "b", 40_000, "stop")
    got = written.unread(), written.call.open
    assert got == ({39_999: ("ab", 40_001, "stop")}, 39_999), (
        f"Call.add, the last of 40,000 answers, 1 and 40,000 tokens: news and open are {got}")


def test_Call_add__nothing_is_read_twice(subject):
    written = Written(subject, 1)
    written.add(0, "a", 1)
    assert written.call.woken.is_set(), "Call.add: the reader was not woken and sleeps for ever"
    subject.make(MOCK + "read", written.call)
    written.add(0, "b", 1)
    got = written.unread()
    assert got == {0: ("b", 1, None)}, (
        f"Call.add, after the reader took 'a': {got} waits, expected 'b' alone")


def test_Call_add__unseen(subject, rng):
    """The client reads now and then."""
    written, news, told, reasons = Written(subject, 3), {}, [], [None] * 3
    for _ in range(120):
        i, text = int(rng.integers(3)), f"{rng.integers(99)} "
        reason = str(rng.choice(["stop", "length"])) if rng.random() < 0.1 else None
        if reasons[i] is None:
            tokens, reasons[i] = int(rng.integers(4)), reason
            written.add(i, text, tokens, reason)
            told.append((i, text, tokens, reason))
            before, n, _ = news.get(i, ("", 0, None))
            news[i] = before + text, n + tokens, reason
            got = written.unread(), written.call.open, written.call.woken.is_set()
            want = news, reasons.count(None), True
            assert got == want, (f"Call.add, in turn (index, text, tokens, reason) {told}: news, "
                                 f"open, woken are {got}, expected {want}")
        if news and rng.random() < 0.3:
            subject.make(MOCK + "read", written.call)
            news = {}
            told.append("all was read")


# ---- Bridge.make_room


def ask(subject, count, taken, finished=0, ends=(), seats=2, queue=3):
    """attempt() of make_room at 100 s, with limits on how many run and wait."""
    hand = subject.make(MOCK + "ByHand", subject.Bridge(
        subject.make(MOCK + "StillEngine", seats), subject.Limits(queue=queue)), 100.0)
    hand.fill(taken, finished, list(ends))
    what = (f"make_room({count}), {seats} may run and {queue} wait, {taken} answers were taken and "
            f"{finished} of them have finished")
    return what, attempt(subject, hand.bridge.make_room, count)


def test_Bridge_make_room(subject):
    for count, taken, finished, why in (
            (1, 0, 0, ""), (5, 0, 0, "Five places are five places"),
            (1, 4, 0, "The last place stays empty"),
            (2, 9, 6, "A request that has finished leaves its place free"),
            (1, 1000, 998, "A request that has finished leaves its place free")):
        what, found = ask(subject, count, taken, finished)
        if found.get("status") == 400:
            why = "As many answers as there is room for do fit, later"
        assert "value" in found, f"{what}: {found['status']}, {found['text']}. {why}"
    what, found = ask(subject, 4, 5)
    assert "status" in found, f"{what}: it was taken, and nine are four too many. How many may " \
        "run and wait is told by this engine's max_seqs and this server's limits"
    for count, taken, finished in ((1, 5, 0), (3, 3, 0), (5, 1001, 1000), (1, 105, 100)):
        what, found = ask(subject, count, taken, finished)
        assert "status" in found, f"{what}: it was taken. That makes more than the five there " \
            "is room for: the queue has no end"
        assert found["status"] == 429, f"{what}: {found['status']}; too many requests is 429"


def test_Bridge_make_room__never(subject):
    """Six answers never fit where five may be: waiting is no use."""
    what, found = ask(subject, 6, 0)
    assert found.get("status") == 400 and found["field"] == "prompt", (
        f"{what}: {found}. There will never be room for six: 400, and no time to try again")


def test_Bridge_make_room__when_to_try_again(subject):
    for count, taken, ends, want in (
            (4, 5, (90, 91, 92, 93, 94), 8),        # five ended in 10 s, four must end
            (3, 5, (90, 92, 94, 96, 98), 6),
            (1, 5, (90, 92, 94, 96, 98), 2),
            (1, 5, (97, 98), 2),                    # 1.5 s
            (1, 5, (99.9, 99.95), 1),               # soon, not at once
            (2, 5, (), 2),                          # nothing has ended yet: a second each
            (3, 5, (60, 80), 60), (3, 5, (61, 80), 59), (1, 5, (99,), 1), (1, 5, (100,), 1),
            (4, 5, (20, 60), 60)):                  # no client is sent away for hours
        what, found = ask(subject, count, taken, 0, ends)
        assert found.get("status") == 429, f"{what}: {found}; expected 429"
        got = found["headers"].get("Retry-After")
        assert got is not None, f"{what}: no header Retry-After. A client's library waits by it, " \
            "and without it every client comes again at once"
        why = {(8, "2"): "One place is not enough for four",
               (2, "1"): "After 1.5 s rounded down there is no place yet",
               (1, "0"): "With 0 it comes again at once",
               (8, "10"): "Five ends since the oldest of them are five, not four",
               (8, "4"): "The time goes from the oldest end until now, not to the last end",
               (8, "5"): "The time goes from the oldest end, ends[0], not from the newest",
               (60, "160"): "More than a minute is not a useful guess"}.get((want, got), "")
        assert got == str(want), (
            f"{what}, at 100 s; answers ended at {list(ends)}: Retry-After is {got!r}, expected "
            f"{str(want)!r}. {why}")


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
        what, found = ask(subject, count, taken, finished, ends, seats, queue)
        got = found.get("status"), found.get("headers", {}).get("Retry-After")
        assert got == want, (f"{what}, at 100 s; answers ended at {ends}: status and Retry-After "
                             f"are {got}, expected {want}")


# ---- what is given


def served(pages=64, **parts):
    return Engine(MockLlama(), ByteTokenizer(), PrefixPool(pages), **parts)


def test_case_22_an_empty_prompt_costs_nothing():
    """Case 22: it is refused before it is in the mailbox."""
    bridge = Bridge(served())
    for prompt, params in (([], SamplingParams()), ([1] * 600, SamplingParams())):
        with pytest.raises(ApiError) as refused:
            bridge.submit("call", [prompt], params)
        assert refused.value.status == 400 and refused.value.field == "prompt"
        assert bridge.mail.empty() and not bridge.calls and bridge.taken == 0


def test_a_server_takes_a_bridge_of_ones_own():
    class Mine(Bridge):
        """As it is."""

    bridge = make_app(served(), "mock", kind=Mine).state.bridge
    assert type(bridge) is Mine and len(bridge.observers) == 2


def value(metrics, name):
    return next(sample.value for family in text_string_to_metric_families(metrics.text().decode())
                for sample in family.samples if sample.name == f"vllm:{name}")


def test_case_33_times_count_from_the_arrival():
    """Case 33: TTFT has the wait in the queue; TPOT is (E2E - TTFT) / (n - 1), none for n = 1."""
    now = [10.0]
    engine = served(clock=lambda: now[0])
    metrics = Metrics(engine, "mock")
    engine.submit([1, 2, 3], SamplingParams(max_tokens=5, ignore_eos=True))
    engine.submit([4, 5, 6], SamplingParams(max_tokens=1))
    now[0] = 13.0                                       # both waited for 3 s
    while engine.busy:
        metrics.stepped(engine, engine.step())
        now[0] += 0.5
    check_engine(engine)
    assert value(metrics, "time_to_first_token_seconds_count") == 2
    assert value(metrics, "time_to_first_token_seconds_sum") == pytest.approx(6.0)
    assert value(metrics, "request_time_per_output_token_seconds_count") == 1
    assert value(metrics, "request_time_per_output_token_seconds_sum") == pytest.approx(0.5)
    assert value(metrics, "generation_tokens_total") == 6
