"""JSON that needs a stack: any object, and schemas that are part of themselves, by xgrammar."""

import json
import sys
from functools import partial

import jsonschema
import numpy as np
import pytest

from layer3_system import ByteTokenizer, Engine, MockLlama, PrefixPool, SamplingParams, Scheduler
from layer3_system.automaton import compile_regex
from layer3_system.engine.drafts import Drafter
from layer3_system.json_schema import SchemaError, StackNeeded, pattern_of
from layer3_system.s01_request import RequestError
from layer3_system.s10_speculative import lookup
from layer3_system.sampling_params import StructuredOutputs
from layer3_system.stack_grammar import StackGrammars, bounded, plain
from layer3_system.structured import Grammars, RegexGrammar, RegexMatcher

pytest.importorskip("xgrammar", reason="xgrammar is not installed")

END = 256
VOCABULARY = ByteTokenizer().vocabulary()
WORDS = [*VOCABULARY, b'{"', b'": ', b", ", b"true", b'"}', b"]}"]
SOON = tuple((token, 2.0) for token in b'"}]')          # so that most answers end
TREE = {"$defs": {"N": {
    "type": "object", "required": ["v", "c"], "additionalProperties": False, "properties": {
        "v": {"type": "string", "maxLength": 3},
        "c": {"type": "array", "items": {"$ref": "#/$defs/N"}, "maxItems": 2}}}},
    "$ref": "#/$defs/N"}


def engine(P=400, drafter=None, **options):
    pool = PrefixPool(P)
    model = MockLlama(room=512)
    return Engine(model, ByteTokenizer(), pool, Scheduler(pool, **options), drafter=drafter,
                  grammars=Grammars(ByteTokenizer(), model.config))


def answers(e, form, count=60, **params):
    """The texts of answers that ended by themselves. e.preempted: how often one was put back"""
    requests = [r for seed in range(count) for r in e.submit([1, seed % 7], SamplingParams(
        structured_outputs=form, seed=seed, max_tokens=120, logit_bias=SOON, **params))]
    while e.busy:
        e.step()
    e.preempted = sum(r.preemptions for r in requests)
    return [e.tokenizer.decode(r.output) for r in requests if r.reason == "stop"]


ANY = StructuredOutputs(json_object=True)


@pytest.mark.parametrize("options, params", [
    ({}, {}), ({"max_seqs": 40}, {"n": 3}), ({"P": 12, "max_seqs": 16}, {})])
def test_an_answer_is_an_object(options, params):
    """The last one has so few pages that requests are preempted."""
    e = engine(**options)
    texts = answers(e, ANY, **params)
    assert (e.preempted > 0) == ("P" in options)
    assert len(texts) > 30
    assert all(isinstance(json.loads(text), dict) for text in texts)
    assert any(len(json.loads(text)) for text in texts)


def test_guesses_change_no_answer():
    drafter = Drafter(partial(lookup, count=3, longest=1))
    assert answers(engine(drafter=drafter), ANY, 20) == answers(engine(), ANY, 20)
    assert 0 < sum(drafter.hits.values()) < drafter.guesses


def test_a_schema_may_be_part_of_itself():
    form = StructuredOutputs(json=json.dumps(TREE))
    texts = answers(engine(), form)
    assert len(texts) > 30
    for text in texts:
        jsonschema.validate(json.loads(text), TREE)
    assert any(json.loads(text)["c"] for text in texts)


@pytest.mark.parametrize("node", [
    {"anyOf": [{"type": "null"}, {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/N"}}]},
    {"type": ["object", "integer"], "required": ["n"], "properties": {"n": {"$ref": "#/$defs/N"}}},
    {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}},
    {"type": "array", "items": {"$ref": "#/$defs/N"}}])
def test_a_schema_whose_texts_may_end_is_taken(node):
    StackGrammars(WORDS, (END,)).of_schema({"$defs": {"N": node}, "$ref": "#/$defs/N"})


def test_a_property_may_have_a_keywords_name():
    text = {"type": "string", "maxLength": 1}
    found = bounded({"type": "object", "properties": {"enum": text, "const": {"enum": [text]}}})
    assert found["properties"]["enum"] == bounded(text) != text
    assert found["properties"]["const"] == {"enum": [text]}


def test_its_masks_are_those_of_an_automaton():
    """Where both can say what a schema allows, along random walks."""
    schema = {"type": "object", "additionalProperties": False, "required": ["a", "b"],
              "properties": {"a": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
                             "b": {"enum": ["x", 'q"', 7]}}}
    grammar = RegexGrammar(compile_regex(pattern_of(schema)), WORDS, (END,))
    start = StackGrammars(WORDS, (END,)).of_schema(schema)
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = RegexMatcher(grammar), start()
        while not one.ended:
            bits = np.unpackbits(one.mask().view(np.uint8), bitorder="little")[:len(WORDS)]
            theirs = np.unpackbits(other.mask().view(np.uint8), bitorder="little")[:len(WORDS)]
            np.testing.assert_array_equal(theirs, bits)
            token = int(rng.choice(np.flatnonzero(bits)))
            assert one.accept(token) and other.accept(token)
        assert other.ended


def test_a_matcher_is_strict():
    matcher = StackGrammars(WORDS, (END,)).any_object()()
    first = matcher.mask().tolist()
    assert not matcher.accept(END) and not matcher.accept(ord("[")) and matcher.accept(ord("{"))
    assert matcher.accept(ord("}")) and matcher.accept(END) and matcher.ended
    assert not matcher.accept(ord("x"))
    with pytest.raises(ValueError, match="has ended"):
        matcher.mask()
    matcher.rollback(3)
    assert matcher.mask().tolist() == first
    with pytest.raises(ValueError, match="at most 0 tokens"):
        matcher.rollback(1)


# ---- what is refused


@pytest.mark.parametrize("node, says", [
    ({"$ref": "#/$defs/N"}, r"\$ref #/\$defs/N is nothing but itself"),
    ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/N"}]}, "is nothing but itself"),
    ({"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "integer",
                                                                  "multipleOf": 5}]}},
     "multipleOf: not enforced here, at #/\\$defs/N/items/anyOf/1"),
    ({"type": "object", "required": ["n"], "properties": {"n": {"$ref": "#/$defs/N"}}},
     "no text of this schema ends"),
    ({"type": "array", "minItems": 1, "items": {"anyOf": [{"$ref": "#/$defs/N"}] * 2}},
     "no text of this schema ends")])
def test_what_xgrammar_would_not_enforce_is_refused(node, says):
    schema = {"$defs": {"N": node}, "$ref": "#/$defs/N"}
    with pytest.raises(SchemaError, match=says):
        StackGrammars(WORDS, (END,)).of_schema(schema)


def test_a_pattern_says_that_it_cannot():
    with pytest.raises(StackNeeded, match="is part of itself, which needs a stack"):
        pattern_of(TREE)


def test_without_xgrammar_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    for form in (ANY, StructuredOutputs(json=json.dumps(TREE))):
        with pytest.raises(RequestError, match=r"pip install \"three-floors\[structured\]\""):
            engine().submit([1], SamplingParams(structured_outputs=form))


def test_an_error_of_the_librarys_is_told_without_its_clock():
    assert plain("[13:45:56] /project/cpp/grammar.cc:17: Check failed: (a < b) is false: no "
                 "type") == "no type"
