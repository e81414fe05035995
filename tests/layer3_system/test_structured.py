"""What is given of s13: automata against Python's re, schemas, and masks in an engine."""

import json
import re
from dataclasses import replace
from itertools import product
from random import Random

import jsonschema
import numpy as np
import pytest
import torch

from layer2_graph import Tokenizer, load, read_config
from layer2_graph.models import SMALL
from layer3_system import MockLlama, PrefixPool, SamplingParams, Scheduler, check_engine
from layer3_system.automaton import PatternError, compile_regex, trimmed
from layer3_system.bench import soak_schemas
from layer3_system.engine.drafts import Drafter
from layer3_system.json_schema import SchemaError, check_schema, pattern_of
from layer3_system.s01_request import RequestError
from layer3_system.s02_block_pool import Broken
from layer3_system.s07_engine import Engine
from layer3_system.s13_structured import step_token, token_mask
from layer3_system.sampling_params import StructuredOutputs
from layer3_system.speculation import ModelDrafter
from layer3_system.structured import Grammars, RegexGrammar, RegexMatcher, vocabulary_of
from layer3_system.testing.mock_llama import ByteTokenizer

PATTERN = "[a-d]{3,9}(, [0-9]{1,4})?|ü{2,5}"
TEXTS = ["".join(t) for n in range(5) for t in product("abü€", repeat=n)] + [
    "1", "\n", "\U0001f600", "a\U0001f600", "é", "ab\nb", "a1_"]


# ---- automata


def part(chance, depth):
    """A random pattern."""
    kind = chance.random()
    if depth == 0 or kind < 0.3:
        return chance.choice(["a", "b", "ü", ".", "[ab]", "[^a]", r"\d", r"\W", "[a-ü]", "€",
                              r"[\x61-\u20ac]", "[]a]"])
    if kind < 0.5:
        return part(chance, depth - 1) + part(chance, depth - 1)
    if kind < 0.65:
        return f"(?:{part(chance, depth - 1)}|{part(chance, depth - 1)})"
    return f"({part(chance, depth - 1)})" + chance.choice(
        ["*", "+", "?", "{2}", "{0}", "{1,3}", "{2,}", "{0,2}"])


def matches(automaton, text):
    state = automaton.start
    for byte in text.encode():
        state = automaton.table[state, byte]
        if state < 0:
            return False
    return bool(automaton.accepting[state])


def test_automata_match_what_re_matches():
    chance = Random(3)
    for _ in range(60):
        pattern = part(chance, 3)
        automaton = compile_regex(pattern)
        for text in TEXTS:
            want = re.fullmatch(pattern, text, re.ASCII) is not None
            assert matches(automaton, text) == want, (pattern, text)


@pytest.mark.parametrize("pattern, says", {
    "(a": "not closed at character 0", "a)": "never opened", "a{2,1}": "m to be at most n",
    "*a": "repeats nothing", "(?=a)": "not regular", r"(a)\1": "not regular", "[a": "bracket",
    "[b-a]": "backwards", "a**": "after a repetition", r"\q": "no meaning", "^a": "anchors",
    "a{1001}": "at most 1000", "(" * 99: "within each other", r"\x4": "2 hexadecimal",
    "(a|b)*a(a|b){30}": "too many states", "(a{999}){999}": "nodes", "a" * 20_000: "characters",
    r"\ud800": "no text matches", r"[+-\d]": "ends in a class", r"[\d-x]": "ends in a class",
    r"[a-\w]": "ends in a class"}.items())
def test_what_is_no_pattern_is_named(pattern, says):
    with pytest.raises(PatternError, match=re.escape(says)):
        compile_regex(pattern)


def test_states_that_lead_nowhere_are_left_out():
    """Compared with a search from every state of random tables."""
    chance = np.random.default_rng(1)
    for _ in range(50):
        n = int(chance.integers(1, 12))
        table = np.full((n, 256), -1, np.int32)
        table[:, 97:99] = chance.integers(-2 * n, n, (n, 2)).clip(-1)
        accepting = chance.random(n) < 0.2
        useful = {s for s in range(n) if accepting[list(reached(table, s))].any()}
        if 0 not in useful:
            with pytest.raises(PatternError, match="no text matches"):
                trimmed(table, accepting)
            continue
        automaton = trimmed(table, accepting)
        names = {state: number for number, state in enumerate(sorted(useful))}
        want = [[names.get(int(after), -1) for after in table[s, 97:99]] for s in sorted(useful)]
        assert automaton.table[:, 97:99].tolist() == want
        assert automaton.accepting.tolist() == accepting[sorted(useful)].tolist()


def reached(table, state):
    """The states that some text leads to from here, this one too."""
    states = {state}
    while more := {int(t) for s in states for t in table[s] if t >= 0} - states:
        states |= more
    return states


def test_tokens_of_the_small_model_have_the_bytes_of_their_texts():
    config = read_config(SMALL)
    words = Tokenizer(SMALL, config)
    vocabulary = vocabulary_of(words, config.V)
    assert len(vocabulary) == config.V and vocabulary[:4] == [None] * 4
    text = "Müller: 7 € {\"a\": 1}\n\U0001f600"
    tokens = [token for token in words.encode(text) if vocabulary[token]]
    assert b"".join(vocabulary[token] for token in tokens) == text.encode()


def test_a_token_beyond_the_vocabulary_has_no_place_in_it():
    config = read_config(SMALL)
    words = Tokenizer(SMALL, config)
    words.own.add_tokens([f"more{n}" for n in range(config.V)])
    assert len(vocabulary_of(words, config.V)) == config.V


# ---- schemas

SCHEMA = {
    "type": "object", "required": ["a", "b"], "additionalProperties": False, "properties": {
        "a": {"type": "string", "maxLength": 5}, "b": {"enum": ["x", "(.)", 3, None]},
        "c": {"type": "array", "items": {"type": ["integer", "boolean"]}, "minItems": 1,
              "maxItems": 3},
        "d": {"anyOf": [{"$ref": "#/$defs/D"}, {"type": "null"}]}},
    "$defs": {"D": {"type": "object", "properties": {"x": {"type": "number"}}}}}


def test_random_texts_of_a_schema_satisfy_it():
    automaton = compile_regex(pattern_of(SCHEMA))
    chance = np.random.default_rng(0)
    for _ in range(100):
        state = automaton.start
        text = bytearray()
        while not automaton.accepting[state]:
            byte = int(chance.choice(np.flatnonzero(automaton.table[state] >= 0)))
            text.append(byte)
            state = automaton.table[state, byte]
        jsonschema.validate(json.loads(text.decode()), SCHEMA)


def test_an_enum_may_have_several_types():
    automaton = compile_regex(pattern_of({"type": ["string", "null"], "enum": ["a", None]}))
    assert matches(automaton, '"a"') and matches(automaton, "null")
    assert not matches(automaton, '"b"')
    assert matches(compile_regex(pattern_of({"type": ["null", "number"], "enum": [3]})), "3")
    with pytest.raises(SchemaError, match="3 is not of type"):
        pattern_of({"type": ["string", "null"], "enum": ["a", 3]})


@pytest.mark.parametrize("schema, says", [
    (3, "expected an object"), ({}, "found None at #"), ({"type": "x"}, "found 'x' at #"),
    ({"type": "string", "pattern": "a"}, "pattern: not enforced"),
    ({"type": "array"}, "items: expected"), ({"$ref": "#/a"}, "leads nowhere"),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/A"}}}},
     "needs a stack"),
    ({"type": "object", "required": ["a"]}, "'a' is not among"),
    ({"type": "string", "enum": [1]}, "not of type 'string'"), ({"enum": []}, "not empty"),
    ({"type": "array", "items": {"type": "null"}, "maxItems": True}, "an integer from 0")])
def test_what_a_schema_cannot_have_is_named(schema, says):
    with pytest.raises(SchemaError, match=re.escape(says)):
        pattern_of(schema)


def test_a_schema_too_deep_is_refused():
    schema = {"type": "null"}
    for _ in range(400):
        schema = {"type": "array", "items": schema}
    with pytest.raises(SchemaError, match="levels deep"):
        pattern_of(schema)


# ---- in an engine


def engine(P=200, scores=None, grammars=True, **options):
    model = MockLlama(400, **({"scores": scores} if scores else {}))
    pool = PrefixPool(P, 4)
    return Engine(model, ByteTokenizer(), pool, Scheduler(pool), grammars=Grammars(
        ByteTokenizer(), model.config) if grammars else None, **options)


def run(e, count=6, **fields):
    """[Request] of answers that match PATTERN."""
    params = {"max_tokens": 30, "structured_outputs": StructuredOutputs(PATTERN)} | fields
    requests = [r for i in range(count)
                for r in e.submit([i % 7 + 1] * (5 + i), SamplingParams(**{"seed": i} | params))]
    while e.busy:
        e.step()
        check_engine(e)
    return requests


def outputs(requests):
    for request in requests:
        assert request.reason == "stop", request.error
        assert re.fullmatch(PATTERN, ByteTokenizer().decode(request.output))
    return [request.output for request in requests]


def guesses(tokens):
    """Some that the grammar refuses, its end among them."""
    return [[97, 98, 256, 97], [44, 32, 49, 50], [122]][len(tokens) % 3]


def test_definitions_that_double_are_refused_at_once():
    """Each level uses the one below twice: 2 to the 40th texts in 2 KB of schema."""
    below = {f"d{i}": {"type": "object", "properties": dict.fromkeys("ab", {
        "$ref": f"#/$defs/d{i + 1}"})} for i in range(40)}
    schema = {"$defs": {**below, "d40": {"type": "null"}}, "$ref": "#/$defs/d0"}
    for read in (pattern_of, check_schema):
        with pytest.raises(SchemaError, match="would have more than 100000 characters at"):
            read(schema)


def test_answers_match_and_are_the_same_in_any_engine():
    plain = outputs(run(engine(), count=12))
    assert outputs(run(engine(overlap=True), count=12)) == plain
    assert outputs(run(engine(drafter=Drafter(guesses)), count=12)) == plain
    tight = engine(P=10)
    requests = run(tight, count=12, max_tokens=20)
    assert sum(r.preemptions for r in requests) > 0
    assert outputs(requests) == plain


def test_each_of_n_answers_has_its_own_state():
    assert len(set(map(tuple, outputs(run(engine(), count=2, n=4))))) > 1


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_drafts_guesses_obey(seed, temperature):
    drafter = ModelDrafter(MockLlama(400), 3, 400, 4)
    requests = run(engine(drafter=drafter), seed=seed, temperature=temperature)
    outputs(requests)
    # The draft is the model itself; an answer's end is not counted as a guess that held.
    refused = drafter.guesses - sum(drafter.hits.values())
    assert 0 <= refused <= len(requests) < drafter.guesses


def liking(*tokens):
    """Scores that do not depend on the context."""
    return lambda context, V: torch.zeros(V).index_fill(0, torch.tensor(tokens), 3.0)


def test_guesses_do_not_change_the_distribution():
    """Of 600 letters after a z; the draft likes forbidden ones, too."""
    e = engine(P=4000, scores=liking(97),
               drafter=ModelDrafter(MockLlama(400, scores=liking(98, 120, 121)), 2, 4000))
    requests = [request for i in range(20) for request in e.submit([1, i], SamplingParams(
        max_tokens=9, n=30, structured_outputs=StructuredOutputs("z[a-d]")))]
    for i, request in enumerate(requests):
        request.seed = i                        # drawn by rejection: params.seed is None
    while e.busy:
        e.step()
    counts = np.bincount([request.output[1] - 97 for request in requests], minlength=4)
    shares = np.exp([3, 0, 0, 0])
    want = len(requests) * shares / shares.sum()
    assert ((counts - want)**2 / want).sum() < 16.3     # χ² of 3 degrees of freedom: 1 in 1,000


def test_a_mask_comes_before_min_p_and_after_the_bias():
    bias = ((122, 100.0), (256, 100.0))
    outputs(run(engine(), logit_bias=bias, min_p=1.0, top_k=1))


def test_a_matcher_is_strict():
    grammar = RegexGrammar(compile_regex("ab"), [b"a", b"b", b"ab", None], (3,))
    matcher = RegexMatcher(grammar)
    assert not matcher.accept(3) and not matcher.accept(1) and matcher.accept(2)
    assert matcher.mask().tolist() == [8] and matcher.accept(3) and matcher.ended
    assert not matcher.accept(0)
    with pytest.raises(ValueError, match="has ended"):
        matcher.mask()
    matcher.rollback(2)
    assert matcher.mask().tolist() == [5]
    with pytest.raises(ValueError, match="at most 0 tokens"):
        matcher.rollback(1)


def test_what_an_engine_cannot_serve_is_refused():
    asked = SamplingParams(structured_outputs=StructuredOutputs("a"))
    with pytest.raises(RequestError, match="without grammars"):
        engine(grammars=False).submit([1], asked)
    with pytest.raises(RequestError, match="regex: the parenthesis"):
        engine().submit([1], SamplingParams(structured_outputs=StructuredOutputs("(")))
    with pytest.raises(RequestError, match="expected one of regex, json and json_object"):
        StructuredOutputs()
    e = engine()
    e.intake.grammars = Grammars(ByteTokenizer(), replace(e.model.config, ends=()))
    with pytest.raises(RequestError, match="no token that ends"):
        e.submit([1], asked)
    e.intake.grammars = Grammars(object(), e.model.config)
    with pytest.raises(RequestError, match="not byte-level"):
        e.submit([1], asked)


# ---- random schemas


def test_answers_to_random_schemas_are_valid():
    found = soak_schemas.soak(32, seed=1)
    assert all(counts["valid"] > 0.8 * counts["answers"] for counts in found.values())


@pytest.mark.soak
@pytest.mark.alone
def test_answers_to_ten_thousand_schemas_are_valid():
    found = soak_schemas.soak(10_000, seed=2)
    assert found["few pages"]["preempted"] and found["tiers"]["preempted"]


@pytest.mark.parametrize("text, reason, says", [
    ('{"a": 1', "stop", "Expecting"), ('{"a": "x"}', "stop", "'x' is not of type 'integer'"),
    ("", "error", "it ended by error")])
def test_the_soak_refuses_what_is_not_valid(text, reason, says):
    with pytest.raises(Broken, match=says):
        soak_schemas.look(text, reason, {"properties": {"a": {"type": "integer"}}})
    soak_schemas.look('{"a": 1}', "stop", {"properties": {"a": {"type": "integer"}}})


# ---- what s13 says of its example

PERSON = r'\{"name": "[A-Z][a-z]{1,11}", "age": [1-9][0-9]?\}'


@pytest.fixture
def one_thread():
    """Matrices this small gain nothing from a second one, which other work may hold up."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_all_of_20_answers_leave_the_form_without_a_mask():
    """Their first ten bytes are given."""
    begun = '{"name": "'
    small = load(SMALL, dtype=torch.float32)
    words = Tokenizer(SMALL, small.config)
    e = Engine(small, words)
    prompt = words.encode("A girl and her age: " + begun)
    requests = [e.submit(prompt, SamplingParams(max_tokens=40, seed=seed))[0] for seed in range(20)]
    while e.busy:
        e.step()
    texts = [begun + words.decode(request.output) for request in requests]
    assert len(begun.encode()) == 10
    assert not any(re.fullmatch(PERSON, text) for text in texts)


def test_a_name_leaves_hundreds_of_tokens_and_a_key_three():
    """After `{"`: n, na and name.
    Nothing but that key may follow `{`."""
    config = read_config(SMALL)
    vocabulary = vocabulary_of(Tokenizer(SMALL, config), config.V)
    person = compile_regex(PERSON)

    def allowed(text):
        state = step_token(person.table, person.start, text)
        mask = token_mask(person, state, vocabulary, config.ends)
        return {vocabulary[v] for v in np.flatnonzero(mask)}

    assert allowed(b'{"') == {b"n", b"na", b"name"}
    assert len(allowed(b'{"name": "A')) > 200


def test_an_integer_has_three_states_and_one_where_it_may_end():
    automaton = compile_regex("-?[0-9]+")
    assert sorted(automaton.accepting.tolist()) == [False, False, True]
    start = automaton.start
    ends = {step_token(automaton.table, start, text) for text in (b"-1", b"20", b"7")}
    assert len(ends) == 1 and automaton.accepting[ends.pop()]
    assert step_token(automaton.table, start, b"-") != start
