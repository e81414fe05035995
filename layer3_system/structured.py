"""Answers that must match a pattern, in an engine: grammars, compiled once, and their matchers

V: vocabulary   W: words of 32 bits, V/32 rounded up
"""

import json
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

from layer2_graph import Config
from layer3_system.automaton import Automaton, PatternError, compile_regex
from layer3_system.engine.guide import Guide, MaskGuesses, Matcher
from layer3_system.engine.intake import Codec
from layer3_system.json_schema import StackNeeded, pattern_of
from layer3_system.s13_structured import mask_guesses, pack_mask, step_token, token_mask
from layer3_system.sampling_params import RequestError, StructuredOutputs
from layer3_system.stack_grammar import StackGrammars

__all__ = ["Grammars", "RegexGrammar", "RegexMatcher", "vocabulary_of"]

KEPT = 64               # grammars, those that were used last


# ---- the bytes of tokens


@cache
def byte_letters() -> dict[str, int]:
    """The byte of each letter with which byte-level tokenizers write bytes, as GPT-2 did: printable
    ones stand for themselves, the others for the letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return ({chr(byte): byte for byte in plain}
            | {chr(256 + i): byte for i, byte in enumerate(others)})


def vocabulary_of(tokenizer: Codec, V: int) -> list[bytes | None]:
    """The bytes of each token; None for marks, and for numbers that no token has.

    ValueError if a tokenizer's tokens are not pieces of UTF-8.
    """
    if hasattr(tokenizer, "vocabulary"):
        own = tokenizer.vocabulary()
        return own + [None] * (V - len(own))
    library = getattr(tokenizer, "own", None)
    if library is None or "ByteLevel" not in str(library.decoder):
        raise ValueError("this model's tokenizer is not byte-level")
    added = library.get_added_tokens_decoder()
    letters = byte_letters()
    vocabulary: list[bytes | None] = [None] * V
    for word, token in library.get_vocab(with_added_tokens=True).items():
        if token not in added:
            vocabulary[token] = bytes(letters[letter] for letter in word)
        elif not added[token].special and token < V:
            vocabulary[token] = added[token].content.encode()
    return vocabulary


# ---- a regular expression


class RegexGrammar:
    """An automaton over a vocabulary.
    Each state's mask is made when it is first asked for."""

    def __init__(self, automaton: Automaton, vocabulary: list[bytes | None],
                 ends: tuple[int, ...],
                 token_mask: Callable[..., np.ndarray] = token_mask,
                 pack_mask: Callable[[np.ndarray], np.ndarray] = pack_mask,
                 step_token: Callable[..., int | None] = step_token):
        """ends: tokens that end an answer    token_mask, pack_mask, step_token: as s13's"""
        self.automaton = automaton
        self.vocabulary = vocabulary
        self.ends = ends
        self.step_token = step_token
        self.mask = cache(lambda state: pack_mask(token_mask(automaton, state, vocabulary, ends)))

    def after(self, state: int, token: int) -> int | None:
        """The state after a token that ends nothing; None if it is not allowed."""
        written = self.vocabulary[token]
        return self.step_token(self.automaton.table, state, written) if written else None


class RegexMatcher:
    """Where an answer is in a RegexGrammar."""

    def __init__(self, grammar: RegexGrammar):
        self.grammar = grammar
        self.states: list[int | None] = [grammar.automaton.start]   # None: after the end

    @property
    def ended(self) -> bool:
        return self.states[-1] is None

    def mask(self) -> np.ndarray:                           # (W,) int32
        if self.ended:
            raise ValueError("the answer has ended: no token may follow")
        return self.grammar.mask(self.states[-1])

    def accept(self, token: int) -> bool:
        state = self.states[-1]
        if state is None:
            return False
        if token in self.grammar.ends:
            if self.grammar.automaton.accepting[state]:
                self.states.append(None)
            return self.ended
        after = self.grammar.after(state, token)
        if after is not None:
            self.states.append(after)
        return after is not None

    def rollback(self, count: int) -> None:
        if not 0 <= count < len(self.states):
            raise ValueError(f"rollback: expected at most {len(self.states) - 1} tokens, found "
                             f"{count}")
        del self.states[len(self.states) - count:]


# ---- all grammars of an engine


class Grammars:
    """Guides for the answers of an engine.
    Threads may share it."""

    def __init__(self, tokenizer: Codec, config: Config, mask_guesses: MaskGuesses = mask_guesses):
        """mask_guesses: as s13's"""
        self.V = config.V
        self.ends = tuple(config.ends)
        self.mask_guesses = mask_guesses
        self.vocabulary = cache(lambda: vocabulary_of(tokenizer, config.V))
        self.stacks = cache(lambda: StackGrammars(self.vocabulary(), self.ends))
        self.compile = lru_cache(KEPT)(self.compile_now)

    def guide(self, form: StructuredOutputs) -> Guide:
        """For one answer.
        RequestError if the grammar cannot be served."""
        return Guide(self.compile(form)(), self.mask_guesses)

    def compile_now(self, form: StructuredOutputs) -> Callable[[], Matcher]:
        """What makes matchers at the start of a grammar.
        RequestError as `guide` has it."""
        if not self.ends:
            raise RequestError("structured_outputs: this model has no token that ends a text")
        try:
            return self.matchers(form)
        except RequestError:
            raise
        except (ValueError, RecursionError) as error:
            kind = "regex: " if isinstance(error, PatternError) and form.regex else ""
            raise RequestError(f"structured_outputs: {kind}{error}") from None

    def matchers(self, form: StructuredOutputs) -> Callable[[], Matcher]:
        """By an automaton where a pattern says what the form allows; by xgrammar where a stack is
        needed.
        ValueError where neither can."""
        if form.json_object:
            return self.stacks().any_object()
        schema = json.loads(form.json) if form.json is not None else None
        try:
            pattern = pattern_of(schema) if form.json is not None else form.regex
        except StackNeeded:
            return self.stacks().of_schema(schema)
        grammar = RegexGrammar(compile_regex(pattern), self.vocabulary(), self.ends)
        return lambda: RegexMatcher(grammar)
