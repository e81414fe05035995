"""What a client may ask for, and the sentence that refuses what cannot be served

The names are vLLM's. s01 makes them public.
"""

from dataclasses import dataclass, fields
from math import inf


class RequestError(ValueError):
    """A request that cannot be served: the field, what was expected, what was found."""


def whole(value, least, most=inf):
    """Whether a value is an integer from least to most; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def few(value):
    """Whether a value can be a count of log probabilities."""
    return value is None or whole(value, 0, 20)


def texts(value):
    return isinstance(value, tuple) and all(isinstance(s, str) and s for s in value)


def tokens(value):
    return isinstance(value, tuple) and all(whole(t, 0) for t in value)


def biases(value):
    """Whether a value is pairs of a token and a number from -100 to 100, no token twice."""
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and whole(pair[0], 0) and number(pair[1])
        and -100 <= pair[1] <= 100 for pair in value) and len(dict(value)) == len(value)


# field -> (is it right?, what was expected)
EXPECTED = {
    "max_tokens": (lambda v: v is None or whole(v, 1), "an integer from 1"),
    "min_tokens": (lambda v: whole(v, 0), "an integer from 0"),
    "temperature": (lambda v: number(v) and 0 <= v <= 100, "a number from 0 to 100"),
    "top_k": (lambda v: whole(v, -1, 2**31 - 1), "an integer from 1, or 0 or -1 for all"),
    "top_p": (lambda v: number(v) and 0 < v <= 1, "a number above 0, at most 1"),
    "min_p": (lambda v: number(v) and 0 <= v <= 1, "a number from 0 to 1"),
    "presence_penalty": (lambda v: number(v) and -2 <= v <= 2, "a number from -2 to 2"),
    "frequency_penalty": (lambda v: number(v) and -2 <= v <= 2, "a number from -2 to 2"),
    "repetition_penalty": (lambda v: number(v) and 0.01 <= v <= 100, "a number from 0.01 to 100"),
    "logit_bias": (biases, "tokens, each with a number from -100 to 100"),
    "seed": (lambda v: v is None or whole(v, -2**63, 2**63 - 1), "an integer of 64 bits"),
    "stop": (lambda v: texts(v) and len(v) <= 16, "at most 16 texts, none of them empty"),
    "stop_token_ids": (tokens, "a list of tokens"),
    "ignore_eos": (lambda v: isinstance(v, bool), "true or false"),
    "logprobs": (few, "an integer from 0 to 20"),
    "prompt_logprobs": (few, "an integer from 0 to 20"),
    "n": (lambda v: whole(v, 1, 128), "an integer from 1 to 128"),
}


@dataclass(frozen=True)
class SamplingParams:
    """How an answer is to be sampled, and when it ends. RequestError names a wrong field.

    max_tokens: None takes what the model has room for
    min_tokens: nothing but length ends an answer before it has so many
    temperature: 0 takes the likeliest    top_k: of so many, 0 or -1 all
    top_p: of the fewest that hold this share    seed: None takes one that nobody knows
    stop: texts that end an answer and are not part of it    stop_token_ids: tokens that do
    ignore_eos: go on where the model would end
    logprobs, prompt_logprobs: of so many of the likeliest tokens at each place, None none
    n: answers to one prompt
    min_p: of tokens at least so likely as this share of the likeliest, after temperature
    presence_penalty, frequency_penalty: taken off a token's score if it is in the answer so far,
    and for each time that it is
    repetition_penalty: what divides the score of a token of prompt or answer, or multiplies it
    where it is below 0
    logit_bias: pairs (token, what is added to its score)
    """

    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self):
        for f in fields(self):
            right, expected = EXPECTED[f.name]
            value = getattr(self, f.name)
            if not right(value):
                raise RequestError(f"{f.name}: expected {expected}, found {value!r}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens: expected at most max_tokens, {self.max_tokens}, "
                               f"found {self.min_tokens}")

    @property
    def changes_scores(self):
        """Whether penalties.py has anything to do."""
        return bool(self.min_p or self.presence_penalty or self.frequency_penalty
                    or self.repetition_penalty != 1 or self.logit_bias)
