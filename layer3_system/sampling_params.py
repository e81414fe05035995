"""What a client may ask for, and the sentence that refuses a value that cannot be served

The names are vLLM's. s01 makes them public.
"""

from dataclasses import dataclass, field, fields
from math import inf


class RequestError(ValueError):
    """A request that cannot be served: the field, what was expected, what was found."""


def whole(value, least, most=inf):
    """Whether a value is an integer from least to most.
    True and False are not."""
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


@dataclass(frozen=True)
class StructuredOutputs:
    """What an answer must match as a whole.
    RequestError if it is not one thing.

    regex: a pattern    json: a JSON schema, as its text    json_object: True for any JSON object
    """

    regex: str | None = None
    json: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        forms = {f.name: getattr(self, f.name) for f in fields(self)
                 if getattr(self, f.name) is not None}
        if len(forms) != 1:
            raise RequestError(f"structured_outputs: expected one of regex, json and json_object, "
                               f"found {' and '.join(forms) or 'none of them'}")
        (name, value), = forms.items()
        if name == "json_object" and value is not True:
            raise RequestError(f"structured_outputs: json_object: expected true, found {value!r}")
        if name != "json_object" and not isinstance(value, str):
            raise RequestError(f"structured_outputs: {name}: expected a text, found {value!r}")


def parameter(default, expected, right, client="as it is", scores=False):
    """A field of SamplingParams, declared in one place.

    expected: what a wrong value's error says    right: whether a value is right
    client: how a client's field of the same name is read: "as it is", "otherwise", or None where a
    client has no such field
    scores: whether any value but the default changes the scores of tokens
    """
    return field(default=default, metadata={"expected": expected, "right": right,
                                            "client": client, "scores": scores})


@dataclass(frozen=True)
class SamplingParams:
    """How an answer is sampled and when it ends.
    A wrong value raises RequestError, which names the field.

    max_tokens: most new tokens; None for as many as the model has room for
    min_tokens: before this many, only the length can end an answer
    temperature: 0 is greedy    top_k: keep this many tokens; 0 or -1 keeps all
    top_p: keep the fewest tokens that hold this share    min_p: keep tokens at least this fraction
    as likely as the likeliest, after temperature
    seed: None draws a random one
    stop: strings that end an answer and are not part of it    stop_token_ids: tokens that end it
    ignore_eos: do not stop at the model's end tokens
    logprobs, prompt_logprobs: report this many of the likeliest tokens at each place; None for none
    n: number of answers to the prompt
    presence_penalty: subtracted from the logit of each token that the answer contains
    frequency_penalty: the same, once for each time it occurs
    repetition_penalty: divides positive logits of tokens in prompt or answer, multiplies negative
    ones
    logit_bias: pairs (token, number added to its logit)
    structured_outputs: what the answer must match; it ends where that ends, so ignore_eos and
    min_tokens exclude it
    """

    max_tokens: int | None = parameter(
        16, "an integer from 1", lambda v: v is None or whole(v, 1))
    min_tokens: int = parameter(0, "an integer from 0", lambda v: whole(v, 0))
    temperature: float = parameter(
        1.0, "a number from 0 to 100", lambda v: number(v) and 0 <= v <= 100)
    top_k: int = parameter(
        0, "an integer from 1, or 0 or -1 for all", lambda v: whole(v, -1, 2**31 - 1))
    top_p: float = parameter(
        1.0, "a number above 0, at most 1", lambda v: number(v) and 0 < v <= 1)
    seed: int | None = parameter(
        None, "an integer of 64 bits", lambda v: v is None or whole(v, -2**63, 2**63 - 1))
    stop: tuple[str, ...] = parameter(
        (), "at most 16 texts, none of them empty", lambda v: texts(v) and len(v) <= 16,
        client="otherwise")
    stop_token_ids: tuple[int, ...] = parameter((), "a list of tokens", tokens, client="otherwise")
    ignore_eos: bool = parameter(False, "true or false", lambda v: isinstance(v, bool))
    logprobs: int | None = parameter(None, "an integer from 0 to 20", few, client="otherwise")
    prompt_logprobs: int | None = parameter(None, "an integer from 0 to 20", few, client=None)
    n: int = parameter(1, "an integer from 1 to 128", lambda v: whole(v, 1, 128))
    min_p: float = parameter(
        0.0, "a number from 0 to 1", lambda v: number(v) and 0 <= v <= 1, scores=True)
    presence_penalty: float = parameter(
        0.0, "a number from -2 to 2", lambda v: number(v) and -2 <= v <= 2, scores=True)
    frequency_penalty: float = parameter(
        0.0, "a number from -2 to 2", lambda v: number(v) and -2 <= v <= 2, scores=True)
    repetition_penalty: float = parameter(
        1.0, "a number from 0.01 to 100", lambda v: number(v) and 0.01 <= v <= 100, scores=True)
    logit_bias: tuple[tuple[int, float], ...] = parameter(
        (), "tokens, each with a number from -100 to 100", biases, scores=True)
    structured_outputs: StructuredOutputs | None = parameter(
        None, "a regex, a JSON schema or json_object",
        lambda v: v is None or isinstance(v, StructuredOutputs))

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not f.metadata["right"](value):
                raise RequestError(
                    f"{f.name}: expected {f.metadata['expected']}, found {value!r}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens: expected at most max_tokens, {self.max_tokens}, "
                               f"found {self.min_tokens}")
        if self.structured_outputs and (self.ignore_eos or self.min_tokens):
            name = "ignore_eos" if self.ignore_eos else "min_tokens"
            raise RequestError(f"{name}: not with structured_outputs, whose grammar says where the "
                               f"answer ends")

    @property
    def changes_scores(self) -> bool:
        """Whether penalties have anything to do."""
        return any(getattr(self, name) != default for name, default in SCORE_FIELDS)


SCORE_FIELDS = tuple((f.name, f.default) for f in fields(SamplingParams) if f.metadata["scores"])
# Fields that a client sends under the same name, and those of them with the same value.
CLIENT_FIELDS = tuple(f.name for f in fields(SamplingParams) if f.metadata["client"])
PASSED_THROUGH = tuple(f.name for f in fields(SamplingParams)
                       if f.metadata["client"] == "as it is")
