"""A model on pages from a pool."""

import pytest
import torch

from layer2_graph import greedy
from layer2_graph.testing.random_llama import random_llama
from layer3_system import BlockPool, check_pool
from layer3_system.s02_block_pool import PooledCache
from tests.layer3_system.oracle_s02_block_pool import counted


@pytest.mark.parametrize("S", [1, 4, 64])
def test_sequences_that_come_and_go_get_the_tokens_of_greedy(S, rng):
    model = random_llama()
    cache = PooledCache(model.config, BlockPool(3 * -(-24 // S), S))
    cache.k.fill_(torch.nan), cache.v.fill_(torch.nan)
    prompts = [rng.integers(31, size=n).tolist() for n in (3, 1, 7, 12, 4, 9, 2)]
    texts, waiting, running = [list(p) for p in prompts], list(range(7)), {}
    while waiting or running:
        while waiting and len(running) < 3:
            name = waiting.pop(0)
            running[name] = prompts[name]
        some = {name: new for name, new in running.items() if rng.random() < 0.7} or dict(running)
        assert all(cache.reserve(name, len(new)) for name, new in some.items())
        check_pool(cache.pool, cache.tables.values())
        scores = model.forward(cache.step(some), cache)
        for name, token in zip(some, scores.argmax(-1).tolist(), strict=True):
            texts[name].append(token)
            running[name] = [token]
            if len(texts[name]) == len(prompts[name]) + 12:
                cache.leave(name)
                del running[name]
    assert cache.pool.used == 0
    assert texts == [p + greedy(model, [p], 12)[0] for p in prompts]


@pytest.mark.parametrize("prompt", [[5, 1, 9], [5, 1, 9, 2], [5, 1, 9, 2, 7]])
def test_answers_that_branch_are_those_of_each_alone(prompt):
    model = random_llama()
    cache = PooledCache(model.config, BlockPool(16, 4))
    assert cache.reserve("a", len(prompt))
    model.forward(cache.step({"a": prompt}), cache)
    cache.branch("a", "b"), cache.branch("a", "c")
    answers = {"a": [3], "b": [8], "c": [20]}
    for _ in range(9):
        assert all(cache.reserve(name, 1) for name in answers)
        check_pool(cache.pool, cache.tables.values())
        step = cache.step({name: answer[-1:] for name, answer in answers.items()})
        for answer, token in zip(answers.values(), model.forward(step, cache).argmax(-1).tolist(),
                                 strict=True):
            answer.append(token)
    assert cache.pool.used == counted(3, len(prompt), 9, 4)
    for answer in answers.values():
        assert answer[1:] == greedy(model, [prompt + answer[:1]], 9)[0]


def test_who_finds_no_page_is_told_and_keeps_what_it_had():
    cache = PooledCache(random_llama().config, BlockPool(2, 4))
    assert cache.reserve("a", 6)
    cache.step({"a": [1] * 6})
    cache.branch("a", "b")
    assert not cache.reserve("b", 1)            # its tail is shared, and no page is left to copy to
    assert not cache.reserve("a", 3)
    assert cache.tables == {"a": [0, 1], "b": [0, 1]}
    cache.leave("a")
    assert cache.reserve("b", 2) and cache.tables == {"b": [0, 1]}
    check_pool(cache.pool, cache.tables.values())
