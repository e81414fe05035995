"""What k19 shows of the small Llama: the bench that recorded it, and the record."""

import json
from dataclasses import replace

import pytest
import torch

from layer1_kernels import encode_weight, fp8_matmul_torch
from layer2_graph import PagedCache, Tokenizer, is_matrix, load, perplexity
from layer2_graph.bench.fp8_products import RECIPES, RECORD, in_recipe, product_errors
from layer2_graph.bench.weight_bits import RECORD as WEIGHT_BITS
from layer2_graph.g01_llama import Llama
from layer2_graph.models import SMALL
from layer2_graph.small.corpus import BEGIN, stories
from layer2_graph.testing.random_llama import random_llama

BLOCKS = "e4m3, blocks of 128"


@pytest.fixture(scope="module")
def small():
    return load(SMALL, dtype=torch.float32)


@pytest.fixture(scope="module")
def documents(small):
    words = Tokenizer(SMALL, small.config)
    return {"stories": [words.encode(text.removeprefix(BEGIN)) for text in stories("held out")[:4]]}


@pytest.fixture(scope="module")
def record():
    return json.loads(RECORD.read_text("utf-8"))


def logits(model, prompts):
    cache = PagedCache(model.config, len(prompts), 32)
    return model.forward(cache.step(prompts), cache, every=True)


def test_blocks_are_those_of_fp8_matmul():
    """In all matrices of the layers, and in nothing else."""
    model = random_llama(C=136, F=264)                  # blocks of 128, and what is left over
    codes = {id(w): encode_weight(w) for name, w in model.weights.items() if is_matrix(name)}

    def matmul(x, w):
        return fp8_matmul_torch(x, *codes[id(w)]) if id(w) in codes else model.ops.matmul(x, w)

    want = Llama(model.config, model.weights, replace(model.ops, matmul=matmul))
    prompts = [[5, 17, 3], [9, 8, 7, 6]]
    assert torch.equal(logits(in_recipe(model, *RECIPES[BLOCKS]), prompts), logits(want, prompts))


def test_an_error_is_of_all_tokens():
    """Of the first matrix, by the book: its activations are the normalised embeddings."""
    model = random_llama()
    texts = [[5, 17, 3, 11], [9, 8, 7, 6, 2]]
    errors = product_errors(model, {"one": texts[:1], "two": texts[1:]})
    name = "model.layers.0.self_attn.q_proj.weight"
    read = torch.tensor([token for text in texts for token in text[:-1]])
    norm = model.weights["model.layers.0.input_layernorm.weight"]
    x = model.ops.rmsnorm(model.embedding[read], norm, model.config.eps)
    w = model.weights[name]
    fp32 = (x @ w.T).double()
    bf16 = (x.bfloat16().float() @ w.bfloat16().float().T).double()
    e4m3 = fp8_matmul_torch(x, *encode_weight(w)).double()
    for got, off, right in ((errors["bf16"]["fp32"], bf16 - fp32, fp32),
                            (errors[BLOCKS]["fp32"], e4m3 - fp32, fp32),
                            (errors[BLOCKS]["bf16"], e4m3 - bf16, bf16)):
        assert got[name] == pytest.approx(float(off.norm() / right.norm()), rel=1e-4)
    assert errors["bf16"].keys() == {"fp32"}


def test_the_record_is_of_the_shipped_model(record, small):
    """Every matrix, in every recipe; and the tokens and the perplexity of g07's record."""
    names = {name for name in small.weights if is_matrix(name)}
    assert len(names) == 28
    errors = record["errors"]["recipes"]
    assert list(errors) == list(RECIPES)
    for recipe, against in errors.items():
        assert list(against) == [name for name in ("fp32", "bf16") if name != recipe]
        for values in against.values():
            assert values.keys() == names
            assert all(0 < value < 0.05 for value in values.values())
    weights = json.loads(WEIGHT_BITS.read_text("utf-8"))["quality"]
    assert record["errors"]["tokens"] == record["quality"]["tokens"] == weights["tokens"]
    perplexities = record["quality"]["recipes"]
    assert list(perplexities) == ["fp32", *RECIPES]
    for part in ("stories", "docstrings"):
        assert perplexities["fp32"][part] == pytest.approx(weights["schemes"]["fp32"][part],
                                                           rel=1e-5)
    for part in ("errors", "quality"):
        assert record[part]["cpu"] and record[part]["torch"] and record[part]["date"]


def test_a_few_stories_give_what_the_record_says(record, small, documents):
    """A matrix's error is that of all held-out text within a tenth; perplexity moves as little."""
    errors = product_errors(small, documents)
    for recipe, against in record["errors"]["recipes"].items():
        for reference, values in against.items():
            assert errors[recipe][reference] == pytest.approx(values, rel=0.1)
    plain = perplexity(small, documents["stories"])
    for recipe in RECIPES:
        rounded = perplexity(in_recipe(small, *RECIPES[recipe]), documents["stories"])
        assert rounded != plain
        assert rounded == pytest.approx(plain, rel=5e-3)
