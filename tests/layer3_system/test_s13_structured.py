"""Graders of s13.
V: vocabulary   W: words of 32 bits   n: guesses

Oracles know no automaton: they ask Python's re about whole texts, or a list of all texts.
"""

import re
from functools import cache
from itertools import product

import numpy as np

from lab.judge.mistakes import mistake, raises
from layer3_system.automaton import compile_regex
from layer3_system.testing.grammar_driver import TextMatcher

AUTOMATON = "layer3_system.automaton:Automaton"
MATCHER = "layer3_system.testing.grammar_driver:TextMatcher"
LETTERS = [b"a", b"b", "ü".encode()]            # of the texts that are enumerated
PATTERNS = ("a", "ab", "a*b", "(ab|ba)+", "ü+a?", "a{2,3}|bü", "(a|b)?ü")
EIGHT = [b"{", b'{"', b'{"a', b'"', b'"a', b"a", b"a", b" {"]
# Ragged: marks, an empty token, halves of characters, equal ones, one longer than any text.
VOCABULARY = [None, None, b"", b"a", b"b", b"c", b"ab", b"ba", b"aba", b"bab", b"\xc3", b"\xbc",
              "ü".encode(), "üa".encode(), b"\xbca", b"a\xc3", b"b\xc3\xbc", b"aa", b"aaa", b"a",
              b"aaaabbbb", b"\xff", b"abc", b"cab", b"aac", b"\xc3\xc3", b"bbbbb", None,
              b" ", b"A", b"\x00", b"a\x00a", "üü".encode(), b"\xbc\xc3", b"bb", b"b" * 40, b"\x80"]


@cache
def texts_of(pattern, letters=6):
    """All texts of at most `letters` letters that a pattern matches.
    Longer ones only repeat."""
    return [text for n in range(letters + 1) for text in map(b"".join, product(LETTERS, repeat=n))
            if re.fullmatch(pattern, text.decode())]


def states_of(pattern):
    """{a state of the pattern's automaton: the shortest beginning of a text that leads there}"""
    automaton = compile_regex(pattern)
    paths = {automaton.start: b""}
    for state in paths.copy():
        waiting = [state]
        while waiting:
            at = waiting.pop(0)
            for byte in np.flatnonzero(automaton.table[at] >= 0).tolist():
                after = int(automaton.table[at, byte])
                if after not in paths:
                    paths[after] = paths[at] + bytes([byte])
                    waiting.append(after)
    return automaton, paths


def shown(token):
    return "a mark" if token is None else repr(token)[1:]


# ---- predictions


def test_predict_allowed(subject):
    want = sum(b'{"a": 1}'.startswith(token) for token in EIGHT)
    got = subject.predict_allowed()
    known = {1: ("one_byte", "a token may be several bytes long"),
             7: ("contains", "what may come later is not allowed now"),
             4: ("leading_space", "a space is a byte like any other, and the text has none there")}
    name, why = known.get(got, ("other", "which of them does the text begin with?"))
    assert got == want, mistake(name, f"predict_allowed: {got!r:.20} is not right: {why}", why)


def test_predict_mask_bytes(subject):
    want = 32 * len(np.packbits(np.zeros(128_256, dtype=bool)))
    got = subject.predict_mask_bytes()
    known = {128_256 * 32: ("booleans", "that is a byte a token, 32 tokens fit into four"),
             128_256 * 32 * 4: ("floats", "-inf for each token is the row of scores again"),
             want // 8: ("eighth", "divided by 8 twice"),
             want // 32: ("one_row", "that is one row of 32")}
    name, why = known.get(got, ("other", "how many words has a row, and how many bytes a word?"))
    assert got == want, mistake(name, f"predict_mask_bytes: {got!r:.20} is not right: {why}", why)


# ---- the step of a token


def walk(table, state, token):
    for byte in token:
        state = int(table[state, byte]) if state is not None and table[state, byte] >= 0 else None
    return state


def step_variants(table, state, token):
    """{id: (sentence, what comes out of it)}"""
    wraps = state
    for byte in token:
        wraps = int(table[wraps, byte])
    return {"minus_one": ("-1 is the table's sign for no state, and Python's last row; say None",
                          -1),
            "first_byte": ("only the first byte was looked at; a token dies with any of its bytes",
                           walk(table, state, token[:1])),
            "last_byte": ("each byte has to start where the one before it ended",
                          walk(table, state, token[-1:])),
            "dead_wraps": ("-1 as a state is Python's last row: a dead token came alive again",
                           wraps if wraps >= 0 else None),
            "one_early": ("the last byte was left out", walk(table, state, token[:-1])),
            "must_accept": ("a token may also end where no text ends: the text may go on", None)}


def check_step(subject, automaton, paths, texts, state, token):
    written = paths[state] + token
    want = walk(automaton.table, state, token)
    goes_on = any(text.startswith(written) for text in texts)
    assert (want is not None) == goes_on, "the course's own case is wrong: please report it"
    got = subject.step_token(automaton.table, state, token)
    wrong = step_variants(automaton.table, state, token)
    name, why = next(((name, why) for name, (why, value) in wrong.items() if value == got),
                     ("other", ""))
    assert got == want, mistake(
        name, f"step_token: after {shown(paths[state])}, state {state}, token {shown(token)}: got "
        f"{got!r:.40}, expected {want}: {'no' if want is None else 'a'} text of the pattern begins "
        f"with {shown(written)}: {why}", why)


def test_step_token(subject):
    table = np.full((4, 256), -1, dtype=np.int32)
    table[0, ord("a")] = 1
    table[1, ord("b")] = 2
    table[0, ord("c")] = 2
    table[3] = 3                                    # what table[-1] is: everything goes on there
    own = compile_regex("ab|c")._replace(table=table)
    for token in (b"axc", b"abc", b"ab", b"a", b"c", b"x"):
        check_step(subject, own, {0: b""}, [b"ab", b"c"], 0, token)
    for pattern in PATTERNS:
        automaton, paths = states_of(pattern)
        texts = texts_of(pattern, 7)
        for state in [s for s, path in paths.items() if len(path) < 4]:
            for token in [t for t in VOCABULARY if t is not None and len(t) < 4]:
                check_step(subject, automaton, paths, texts, state, token)


def test_step_token__inside_a_character(subject):
    """Half a character may come, and the other half after it; the table is never read past -1."""
    table = np.full((4, 256), -1, dtype=np.int32)
    table[0, 0xC3] = 1
    table[1, 0xBC] = 2
    table[3] = 3                                    # what table[-1] is: everything goes on there
    automaton = compile_regex("ü")
    own = automaton._replace(table=table)
    paths = {0: b"", 1: b"\xc3", 2: "ü".encode(), 3: b"?"}
    for state in (0, 1, 2):
        for token in (b"\xc3", b"\xbc", "ü".encode(), b"\xc3\xc3", b"\xbc\xc3", b"zz", b"\xc3za"):
            check_step(subject, own, paths, ["ü".encode()], state, token)


# ---- the mask of a state


def mask_variants(automaton, path, state, texts, ends):
    """{id: (sentence, mask)}"""
    alive = [any(text.startswith(path + (t or b"")) for text in texts) for t in VOCABULARY]
    survive = np.array([bool(t) and ok for t, ok in zip(VOCABULARY, alive, strict=True)])
    over = path in texts
    end = np.isin(np.arange(len(VOCABULARY)), ends)
    right = np.where(end, over, survive)
    first = [bool(t) and any(text.startswith(path + t[:1]) for text in texts) for t in VOCABULARY]
    whole = [bool(t) and path + t in texts for t in VOCABULARY]
    replaced = [text.decode(errors="replace") for text in texts]
    decodes = [bool(t) and t.decode(errors="ignore").encode() == t for t in VOCABULARY]
    text = [bool(t) and any(r.startswith((path + t).decode(errors="replace")) for r in replaced)
            for t in VOCABULARY]
    none = np.array([t is None for t in VOCABULARY]) & ~end
    empty = np.array([t == b"" for t in VOCABULARY])
    return right, {
        "marks": ("a mark is allowed: it has no bytes, so none of them is refused", right | none),
        "empty": ("a token without bytes is allowed: it leads nowhere, and an answer could go on "
                  "with it for ever", right | empty),
        "marks_and_empty": ("marks and tokens without bytes are allowed: they lead nowhere",
                            right | empty | none),
        "end_always": ("the answer may end in the middle of a text", right | end),
        "end_by_bytes": ("an end is allowed for its bytes: it ends the answer, whatever they are",
                         right | survive),
        "end_never": ("the answer can never end; where nothing may follow, no token is left",
                      right & ~end),
        "first_byte": ("only the first byte of a token was looked at", np.where(end, over, first)),
        "whole_characters": ("half of a character is refused; its other half may be the next token",
                             right & (end | decodes)),
        "must_accept": ("a token is allowed only where a text ends after it", np.where(
            end, over, whole)),
        "from_text": ("half characters were compared as U+FFFD", np.where(end, over, text)),
        "from_start": ("that is the mask of the start, of no other state", None)}


def check_mask(subject, pattern, automaton, state, path, ends):
    texts = texts_of(pattern)
    want, wrong = mask_variants(automaton, path, state, texts, ends)
    own = subject.make(AUTOMATON, automaton.table, automaton.start, automaton.accepting)
    got = np.asarray(subject.token_mask(own, state, VOCABULARY, ends))
    assert got.shape == want.shape and got.dtype == bool, mistake(
        "shape", f"token_mask: expected {len(VOCABULARY)} booleans, got {got.dtype} {got.shape}",
        "a boolean for each token")
    start, _ = mask_variants(automaton, b"", automaton.start, texts, ends)
    wrong["from_start"] = (wrong["from_start"][0], start)
    name, why = next(((name, why) for name, (why, mask) in wrong.items()
                      if np.array_equal(mask, got)), ("other", ""))
    at = int(np.argmax(got != want))
    assert np.array_equal(got, want), mistake(
        name, f"token_mask of {pattern!r} after {shown(path)}: token {at}, "
        f"{'an end' if at in ends else shown(VOCABULARY[at])}, is "
        f"{'allowed' if got[at] else 'refused'}, expected the opposite: {why}", why)


def test_token_mask(subject):
    for pattern, ends in product(PATTERNS, ([1], [1, 27], [1, 19], [])):
        automaton, paths = states_of(pattern)
        for state, path in paths.items():
            check_mask(subject, pattern, automaton, state, path, ends)


# ---- bits


def test_pack_mask(subject, rng):
    for V in (1, 31, 32, 33, 1000, 2048):
        for mask in (np.zeros(V, dtype=bool), np.ones(V, dtype=bool), np.arange(V) == V - 1,
                     np.arange(V) == 0, rng.random(V) < 0.5):
            check_packed(subject, mask)


def check_packed(subject, mask):
    V = len(mask)
    W = -(-V // 32)
    words = [sum(int(b) << i for i, b in enumerate(mask[32 * w:32 * w + 32])) for w in range(W)]
    want = np.array([w - 2**32 if w >= 2**31 else w for w in words], dtype=np.int64)
    padded = np.zeros(32 * W, dtype=bool)
    padded[:V] = mask
    ones = padded.copy()
    ones[V:] = True
    little = {"bitorder": "little"}
    with raises("ragged", ValueError, "the bytes do not fill whole words of four"):
        got = np.asarray(subject.pack_mask(mask))
    wrong = {"big_endian": ("token 0 is the highest bit of a byte, and should be the lowest",
                            np.packbits(padded).view("<i4")),
             "tail_ones": ("bits after the last token are 1: tokens that do not exist are allowed",
                           np.packbits(ones, **little).view("<i4")),
             "swapped_bytes": ("the first byte of a word is worth most, and should be worth least",
                               np.packbits(padded, **little).view(">i4")),
             "inverted": ("a bit is 1 where a token is allowed", ~want)}
    name, why = next(((name, why) for name, (why, value) in wrong.items()
                      if np.array_equal(got, value)), ("other", ""))
    assert got.nbytes == 4 * W, mistake(
        "wide" if got.nbytes > 4 * W else "cut", f"pack_mask of {V} tokens: {got.nbytes} bytes, "
        f"expected {W} words of four bytes",
        "more bytes than a bit a token" if got.nbytes > 4 * W else "tokens are missing")
    assert got.dtype == np.int32 and np.array_equal(got, want), mistake(
        name, f"pack_mask of {V} tokens, of which {int(mask.sum())} are allowed, the first at "
        f"{int(mask.argmax())}: got {got.dtype} {got.tolist()[:3]}, expected "
        f"{want.tolist()[:3]}: {why}", why)


# ---- guesses

TEXTS = [b"ab", b"abab", b"ba", b"abc"]
TOKENS = [b"a", b"b", b"ab", b"c", b"ba", None, *[b"x"] * 29]     # 35, so two words
END = 5


def stacked(answer, guesses):
    """(masks, allowed), each place computed from the start of the answer."""
    masks = []
    allowed = []
    for guess in [*guesses, None]:
        here = TextMatcher(TEXTS, TOKENS, END, answer + allowed)
        masks.append(np.zeros(2, dtype=np.int32) if here.ended else here.mask())
        if guess is None or not here.accept(guess):
            break
        allowed.append(guess)
    return np.stack(masks), allowed


def check_guesses(subject, answer, guesses):
    want, allowed = stacked(answer, guesses)
    matcher = subject.make(MATCHER, TEXTS, TOKENS, END, answer)
    what = f"mask_guesses after the tokens {answer}, guesses {guesses}"
    with raises("after_end", RuntimeError, "a grammar that has ended has no mask for a next token, "
                                           "and only tokens that were accepted can be taken back"):
        masks, stay = subject.mask_guesses(matcher, list(guesses))
    known = {"keeps_all": ("a refused guess stays", list(guesses)),
             "skips_refused": ("guesses after a refused one stay", [g for g in guesses if g != 6])}
    name, why = next(((name, why) for name, (why, value) in known.items() if value == list(stay)),
                     ("other", "a guess stays if all before it do and it is allowed there"))
    assert list(stay) == allowed, mistake(
        name, f"{what}: {list(stay)} stay, expected {allowed}: {why}", why)
    masks = np.asarray(masks)
    name = "bonus_free" if len(masks) == len(want) - 1 else "rows"
    why = ("the token after the last guess has no mask: nothing binds it" if name == "bonus_free"
           else "a mask for each guess that stays and one for the token after them")
    assert masks.shape == want.shape, mistake(
        name, f"{what}: masks {masks.shape}, expected {want.shape}: {why}", why)
    same = np.array_equal(masks, np.repeat(want[:1], len(want), 0))
    why = ("all rows have the first mask: a place must be masked as if the guesses before it had "
           "come" if same else "the mask of another place")
    at = int(np.argmax((masks != want).any(1)))
    assert np.array_equal(masks, want), mistake(
        "same_mask" if same else "other_mask", f"{what}: row {at} is {masks[at].tolist()}, "
        f"expected {want[at].tolist()}: {why}", why)
    why = "the dtype of matcher.mask() is lost; a row of zeros needs it too"
    assert masks.dtype == np.int32, mistake(
        "not_int32", f"{what}: masks are {masks.dtype}, expected int32: {why}", why)
    left = list(matcher.tokens)
    name = "advanced" if len(left) > len(answer) else "too_far_back"
    why = ("guesses are not accepted yet, and the matcher has gone on by them"
           if name == "advanced" else "more tokens were taken back than guesses were accepted")
    assert left == answer, mistake(
        name, f"{what}: afterwards the matcher has the tokens {left}, expected {answer}: {why}",
        why)


def test_mask_guesses(subject, rng):
    for answer, guesses in (([], []), ([], [0, 1]), ([], [2, 0, 1]), ([], [6, 0]), ([0, 1], [0]),
                            ([0], [1, 6, 5]), ([0], [6, 1]), ([2], [5]), ([2], [5, 0]),
                            ([2], [0, 5]), ([0, 1], [3, 5, 5]), ([2, 2], [5, 2]), ([], [3, 1])):
        check_guesses(subject, answer, guesses)
    for _ in range(20):
        check_guesses(subject, [[], [0], [2], [4]][rng.integers(4)],
                      rng.integers(7, size=rng.integers(1, 6)).tolist())


# ---- forced bytes


def forced_variants(path, texts):
    """(what is forced, {id: (sentence, what comes out of it)})"""
    rests = [text[len(path):] for text in texts if text.startswith(path)]
    longest = min(rests, key=len)
    common = next((longest[:i] for i in range(len(longest)) if len(
        {rest[:i + 1] for rest in rests}) > 1), longest)
    past = common
    while len(ways := {rest[len(past):len(past) + 1] for rest in rests if
                       rest.startswith(past)} - {b""}) == 1:
        past += ways.pop()
    whole = common
    while whole and whole.decode(errors="ignore").encode() != whole:
        whole = whole[:-1]
    return common, {
        "past_choice": ("a text may end there, so nothing is forced after it", past),
        "one_only": ("only the first forced byte", common[:1]),
        "whole_characters": ("half a character is forced, too", whole),
        "nothing": ("no byte", b""),
        "stops_early": ("the last forced byte is missing", common[:-1])}


def test_forced_bytes(subject):
    for pattern in ("ab", "ab?", "abab|abba", "a*b", "üb|üa", "[ü-þ]a", '(ab|ba)a', "a|ab",
                    "aüb(a|b)?", "(abab)?", "ü{2}"):
        automaton, paths = states_of(pattern)
        texts = [text for n in range(7) for text in map(b"".join, product(
            [*LETTERS, "ý".encode(), "þ".encode()], repeat=n if n < 5 else 0))
            if re.fullmatch(pattern, text.decode())]
        for state, path in paths.items():
            own = subject.make(AUTOMATON, automaton.table, automaton.start, automaton.accepting)
            got = subject.forced_bytes(own, state)
            want, wrong = forced_variants(path, texts)
            name, why = next(((name, why) for name, (why, value) in wrong.items()
                              if value == got), ("other", ""))
            assert got == want, mistake(
                name, f"forced_bytes of {pattern!r} after {shown(path)}: got {shown(got)}, "
                f"expected {shown(want)}: {why}", why)
