"""Answers to random JSON schemas, each of which must parse and validate:
python -m layer3_system.bench.soak_schemas

Engines take turns: one preempts for want of pages, one verifies guesses, one launches steps ahead,
one has a tier below.
The text that a client was sent piece by piece is what is validated.
benchmarks/soak_schemas.txt has the result.
"""

import json
import random
from collections import Counter
from itertools import cycle
from typing import Any

import jsonschema
import torch

from lab.course import ROOT
from layer3_system.engine.drafts import Drafter
from layer3_system.s01_request import SamplingParams
from layer3_system.s02_block_pool import Broken
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.s07_engine import Engine, check_engine
from layer3_system.s11_kv_offload import TieredPool
from layer3_system.sampling_params import StructuredOutputs
from layer3_system.structured import Grammars
from layer3_system.testing.mock_llama import ByteTokenizer, MockLlama, mock_scores
from layer3_system.tiers import HostTier, TieredPages

RECORD = ROOT / "benchmarks" / "soak_schemas.txt"
SCHEMAS = 10_000
KINDS = ("few pages", "guesses", "ahead", "tiers")
BATCH = 8               # schemas that an engine is asked for at a time
FEW_PAGES = 24          # of 8 tokens each
MAX_TOKENS = 180        # of an answer
CLOSING = [*b'"]}', 256]        # tokens that the model likes: an answer comes to its end
KINDS_OF_SCHEMAS = ("leaf", "enum", "object", "array", "anyOf")
LEAVES = ("string", "integer", "number", "boolean", "null")
WORDS = ("a", "b", "ü", "a b", '"', "(.)", "€")
WHAT = ("schemas", "answers", "valid", "cut at the longest", "preempted", "characters")
Schema = dict[str, Any]


def schema(chance: random.Random, depth: int = 3) -> Schema:
    """A random schema."""
    kind = chance.choice(KINDS_OF_SCHEMAS if depth else ("leaf", "enum"))
    if kind == "enum":
        return {"enum": chance.sample([*WORDS, 3, -1, True, None], chance.randrange(1, 4))}
    if kind == "anyOf":
        return {"anyOf": [schema(chance, depth - 1) for _ in range(chance.randrange(1, 4))]}
    if kind == "array":
        least = chance.randrange(3)
        return {"type": "array", "items": schema(chance, depth - 1), "minItems": least,
                "maxItems": least + chance.randrange(1, 3)}
    if kind == "object":
        return an_object(chance, depth)
    return a_leaf(chance)


def a_leaf(chance: random.Random) -> Schema:
    kind = chance.choice(LEAVES)
    if kind != "string" or chance.random() < 0.5:
        return {"type": kind}
    least = chance.randrange(4)
    return {"type": kind, "minLength": least, "maxLength": least + chance.randrange(6)}


def an_object(chance: random.Random, depth: int) -> Schema:
    names = chance.sample(WORDS, chance.randrange(1, 5))
    return {"type": "object", "properties": {name: schema(chance, depth - 1) for name in names},
            "required": [name for name in names if chance.random() < 0.6],
            "additionalProperties": False}


def whole_schema(chance: random.Random) -> Schema:
    """A random schema, of which one in ten is a list of lists of itself: it needs a stack."""
    if chance.random() < 0.1:
        return {"$ref": "#/$defs/list", "$defs": {"list": {
            "type": "array", "items": {"anyOf": [{"$ref": "#/$defs/list"}, a_leaf(chance)]}}}}
    return an_object(chance, depth=3)


def scores(context: list[int], V: int) -> torch.Tensor:         # (V,)
    z = mock_scores(context, V)
    z[CLOSING] += 4
    return z


def guesses(tokens: list[int]) -> list[int]:
    """Some that a grammar refuses, its end among them."""
    return [[34, 125, 256], [58, 32, 34], [93], [44, 32]][len(tokens) % 4]


def engine_for(kind: str) -> Engine:
    pool = (TieredPool(FEW_PAGES, 8, None, HostTier(40)) if kind == "tiers" else
            PrefixPool(FEW_PAGES if kind == "few pages" else 1000, 8))
    model = MockLlama(scores=scores)
    engine = Engine(model, ByteTokenizer(), pool, Scheduler(pool), overlap=kind == "ahead",
                    drafter=Drafter(guesses) if kind == "guesses" else None,
                    grammars=Grammars(ByteTokenizer(), model.config))
    if isinstance(pool, TieredPool):
        engine.pages = TieredPages(engine.pages, pool.host)
    return engine


def answered(engine: Engine, wanted: list[Schema], chance: random.Random) -> Counter[str]:
    """Ask for an answer or three to each schema, and look at all of them.
    Broken if one is wrong.
    """
    schema_of = {}
    for one in wanted:
        params = SamplingParams(
            MAX_TOKENS, temperature=chance.choice([0, 1]), n=chance.choice([1, 1, 3]),
            seed=chance.randrange(99),
            structured_outputs=StructuredOutputs(json=json.dumps(one)))
        schema_of |= dict.fromkeys(engine.submit([chance.randrange(1, 9)] * 5, params), one)
    texts = dict.fromkeys(schema_of, "")
    while engine.busy:
        for output in engine.step():
            texts[output.request] += output.text
        check_engine(engine)
    for request, one in schema_of.items():
        look(texts[request], request.reason, one)
    reasons = Counter(request.reason for request in schema_of)
    return Counter(dict(zip(WHAT, (
        len(wanted), len(schema_of), reasons["stop"], reasons["length"],
        sum(request.preemptions for request in schema_of), sum(map(len, texts.values()))),
        strict=True)))


def look(text: str, reason: str | None, wanted: Schema) -> None:
    """Broken if an answer failed, or is whole and does not parse and validate."""
    try:
        if reason == "stop":
            jsonschema.validate(json.loads(text), wanted)
        elif reason != "length":
            raise ValueError(f"it ended by {reason}")
    except ValueError as error:                 # of json, too
        raise Broken(f"{text!r} for {json.dumps(wanted)}: {error}") from None
    except jsonschema.ValidationError as error:
        raise Broken(f"{text!r} for {json.dumps(wanted)}: {error.message}") from None


def soak(count: int = SCHEMAS, seed: int = 0) -> dict[str, Counter[str]]:
    """What came of `count` schemas, by engine.
    Broken at the first answer that is wrong."""
    chance = random.Random(seed)
    engines = {kind: engine_for(kind) for kind in KINDS}
    totals = {kind: Counter[str]() for kind in KINDS}
    for begin, kind in zip(range(0, count, BATCH), cycle(KINDS), strict=False):
        wanted = [whole_schema(chance) for _ in range(min(BATCH, count - begin))]
        totals[kind] += answered(engines[kind], wanted, chance)
    return totals


def main() -> None:
    totals = soak()
    lines = [f"{kind}: " + ", ".join(f"{what} {counts[what]:,}" for what in WHAT)
             for kind, counts in totals.items()]
    RECORD.write_text("\n".join(lines) + "\n", "utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
