"""A model on pages from a pool."""

import numpy as np
import pytest
import torch

from day01_roofline import LLAMAS, kv_bytes_per_token
from day02_overview import encode
from layer2_graph import greedy
from layer2_graph.testing.random_llama import random_llama
from layer3_system import BlockPool, check_pool
from layer3_system.s02_block_pool import PooledCache, pages_for, predict_pages
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


# ---- what s02 says of its examples


def test_the_ten_texts_of_s02_reach_56_tokens():
    """Two rooms of 64 or 16 pages of 8 hold 128; the prompt of the four answers has 19."""
    texts = ["a warp has", "the ridge is where", "a page", "memory", "a kernel is", "shared memory",
             "the cache", "a token", "a block of threads", "attention"]
    lengths = [len(encode(text)) + 12 + 7 * i % 31 for i, text in enumerate(texts)]
    assert (len(lengths), max(lengths)) == (10, 56)
    assert len(encode("the ridge is where")) == 19


def test_three_of_four_answers_copy_the_page_that_they_share():
    pool = BlockPool(32, 8)
    tables = [[]]
    pool.grow(tables[0], 19)
    for _ in range(3):
        tables.append(list(tables[0]))
        pool.share(tables[-1])
    copies = [pool.copy_on_write(table, 19 // 8) for table in tables]
    assert [copy is None for copy in copies] == [False, False, False, True]
    assert {old for old, _ in copies[:3]} == {tables[3][2]} == {2}


def test_a_page_of_16_slots_of_the_8b_model_has_2_1_megabytes():
    each = kv_bytes_per_token(LLAMAS["Llama-3.1-8B"], 2)
    assert (round(each / 1e3), round(16 * each / 1e6, 1)) == (131, 2.1)


def means(S):
    """(tokens, slots held, entries of all tables) of s02's 64 conversations, over 2000 steps."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(200), 1, (4000, 2)).astype(int), 1, 4096)
    queue = iter(lengths.tolist())
    now, end = np.array([(n, n + more) for n, more in (next(queue) for _ in range(64))]).T
    rows = []
    for _ in range(2000):
        pages = pages_for(now, S).sum()
        rows.append((now.sum(), pages * S, pages))
        now = now + 1
        for i in np.flatnonzero(now > end):
            now[i], more = next(queue)
            end[i] = now[i] + more
    return np.mean(rows, 0)


def test_half_of_a_large_page_is_empty_and_small_pages_have_long_tables():
    """126 of 256 slots a conversation, 18 % of the memory; of 1 slot, nearly 16 times the entries
    of 16."""
    tokens, held, _ = means(256)
    assert (round((held - tokens) / 64), round(1 - tokens / held, 2)) == (126, 0.18)
    assert 15.5 < means(1)[2] / means(16)[2] < 16


def test_a_prompt_of_200_tokens_shares_no_page_of_256():
    assert predict_pages(4, 200, 16, 256) == (4, 4)
