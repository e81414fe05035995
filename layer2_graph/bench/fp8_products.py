"""What e4m3 costs the small model:  python -m layer2_graph.bench.fp8_products errors; … quality

Every matrix w (N, K) of the layers multiplies the activations x (T, K) that enter it after both are
rounded by one of k19's recipes.
All else is fp32: the sums, the results, attention and the head.

errors: of every product, on the activations of the unrounded model, relative to the products of
unrounded numbers (fp32) and to those of numbers rounded to bf16.
quality: perplexity of the model that computes in a recipe.
Both on all held-out text, 16 texts at a time, on one thread. x has all tokens of the 16, so where a
tensor shares a scale, they do. benchmarks/fp8_products.json has both.
"""

import math
import sys
from collections import Counter
from dataclasses import replace

from lab.course import ROOT
from layer1_kernels.bench.k19_fp8_matmul import rounded
from layer2_graph.bench.sparsity import small, tokens
from layer2_graph.bench.weight_bits import keep
from layer2_graph.g01_llama import Llama
from layer2_graph.g07_weight_quantization import is_matrix, perplexity, with_matrices
from layer2_graph.small.corpus import corpus

RECORD = ROOT / "benchmarks" / "fp8_products.json"
EVERY = 10**6           # more than any array has rows or columns
RECIPES = {             # name: (kind, (rows, group) of x that share a scale, the same of w)
    "bf16": ("bf16", (1, 1), (1, 1)),
    "e4m3, tensor": ("e4m3", (EVERY, EVERY), (EVERY, EVERY)),
    "e4m3, rows": ("e4m3", (1, EVERY), (1, EVERY)),
    "e4m3, blocks of 128": ("e4m3", (1, 128), (128, 128)),      # as fp8_matmul has them
}


def judged():
    """{part: the tokens of its held-out texts}"""
    return {part: tokens(texts) for part, texts in corpus("held out")._asdict().items()}


def counts(documents):
    """{part: the tokens that are predicted}"""
    return {part: sum(len(text) - 1 for text in texts) for part, texts in documents.items()}


# ---- of a product


def product_errors(model, documents):
    """{recipe: {"fp32" or "bf16": {name of a matrix: the error of its products}}}

    documents: {part: texts}. The error is sqrt(sum of (c of the recipe - c)² / sum of c²), over all
    tokens; c is the product of numbers in fp32 or in bf16.
    """
    names = {id(w): name for name, w in model.weights.items() if is_matrix(name)}
    weights = {recipe: {name: rounded(model.weights[name], kind, *of_w) for name in names.values()}
               for recipe, (kind, _, of_w) in RECIPES.items()}
    off = Counter()         # (recipe, reference, matrix): sum of squares of what is wrong
    size = Counter()        # (reference, matrix): sum of squares of what is right

    def matmul(x, w):                               # (T, K), (N, K) -> (T, N)
        c = model.ops.matmul(x, w)
        if name := names.get(id(w)):
            products = {recipe: model.ops.matmul(rounded(x, kind, *of_x), weights[recipe][name])
                        for recipe, (kind, of_x, _) in RECIPES.items()}
            for reference, right in {"fp32": c, "bf16": products["bf16"]}.items():
                size[reference, name] += square_sum(right)
                for recipe, product in products.items():
                    off[recipe, reference, name] += square_sum(product - right)
        return c

    def relative(recipe, reference):
        return {name: math.sqrt(off[recipe, reference, name] / size[reference, name])
                for name in names.values()}

    for texts in documents.values():
        perplexity(Llama(model.config, model.weights, replace(model.ops, matmul=matmul)), texts)
    return {recipe: {reference: relative(recipe, reference) for reference in ("fp32", "bf16")
                     if reference != recipe} for recipe in RECIPES}


def square_sum(x):
    return float(x.double().square().sum())


def errors():
    model, _ = small()
    documents = judged()
    return {"recipes": product_errors(model, documents), "tokens": counts(documents)}


# ---- of a model


def in_recipe(model, kind, of_x, of_w):
    """The Llama whose layers multiply rounded numbers."""
    own = with_matrices(model, lambda _, w: rounded(w, kind, *of_w))
    matrices = {id(w) for name, w in own.weights.items() if is_matrix(name)}

    def matmul(x, w):
        return model.ops.matmul(rounded(x, kind, *of_x) if id(w) in matrices else x, w)

    return Llama(own.config, own.weights, replace(own.ops, matmul=matmul))


def quality():
    model, _ = small()
    documents = judged()
    models = {"fp32": model} | {name: in_recipe(model, *recipe) for name, recipe in RECIPES.items()}
    return {"recipes": {name: {part: perplexity(own, texts) for part, texts in documents.items()}
                        for name, own in models.items()},
            "tokens": counts(documents)}


if __name__ == "__main__":
    sys.exit(keep({"errors": errors, "quality": quality}, RECORD))
