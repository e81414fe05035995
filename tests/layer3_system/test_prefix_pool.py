"""What is given of s06: two indexes beside dictionaries of whole texts, and a pool in an engine.

Cases carry the numbers of the course's list of what every engine must handle.
"""

import random
from hashlib import sha256

import pytest
import torch

from layer3_system import (
    BlockPool,
    ByteTokenizer,
    Engine,
    HashChain,
    MockLlama,
    PrefixPool,
    RadixTree,
    Request,
    SamplingParams,
    Scheduler,
    check_engine,
    check_pool,
)
from layer3_system.engine.drafts import Drafter
from layer3_system.s06_prefix_cache import page_hash

BOTH = pytest.mark.parametrize("index", [HashChain, RadixTree])


# ---- the indexes, by themselves


def noted(index, tokens, table, S=4, salt=""):
    """A request whose pages an index was told of; its table names what the index answered."""
    request = Request("r", list(tokens), SamplingParams(), salt=salt, table=list(table))
    for i in range(len(table)):
        request.table[i] = index.note(request, i, S)
    return request


def hits(index, tokens, S=4, salt=""):
    request = Request("r", list(tokens), SamplingParams(), salt=salt)
    return index.find(request, len(tokens) // S, S)


@BOTH
def test_collision(index):
    """Case 13: tokens of one Python hash, tokens that differ in high bits only, are not a hit."""
    known = index()
    noted(known, [0] * 4 + [1] * 4, [5, 6])
    assert hash((0,) * 4) == hash((2**61 - 1,) * 4)
    for wrong in (2**61 - 1, 2**32, 256, 1):
        assert hits(known, [wrong] * 4 + [1] * 4) == []
    assert hits(known, [0] * 4 + [1] * 4) == [5, 6]


def test_a_name_is_a_strong_hash_of_the_whole_text():
    """Case 13: as written in the docstring, so that other programs can name the same pages."""
    known, tokens = HashChain(), [7, 300, 2**40, 0, 1, 2, 3, 4]
    request = noted(known, tokens, [5, 6], salt="blue")
    name = sha256(b"blue").digest()
    for i in (0, 4):
        name = sha256(name + b"".join(t.to_bytes(8, "little") for t in tokens[i:i + 4])).digest()
        assert request.hashes[i // 4] == name


@BOTH
def test_parent_chain(index):
    """Case 13: the same tokens after other text are another page."""
    known = index()
    noted(known, [1] * 4 + [2] * 4 + [3] * 4, [0, 1, 2])
    assert hits(known, [9] * 4 + [2] * 4) == []
    assert hits(known, [2] * 4) == []
    assert hits(known, [1] * 4 + [3] * 4) == [0]
    assert noted(known, [9] * 4 + [2] * 4, [5, 6]).table == [5, 6]
    assert hits(known, [9] * 4 + [2] * 4) == [5, 6]
    assert hits(known, [1] * 4 + [2] * 4 + [3] * 4) == [0, 1, 2]


@BOTH
def test_salt(index):
    """Case 13: requests with different salts share nothing."""
    known, text = index(), [1] * 8
    noted(known, text, [0, 1], salt="red")
    assert hits(known, text) == hits(known, text, salt="blue") == []
    assert noted(known, text, [4, 5], salt="blue").table == [4, 5]
    assert hits(known, text, salt="red") == [0, 1] and hits(known, text, salt="blue") == [4, 5]
    known.drop(0)
    assert hits(known, text, salt="red") == [] and hits(known, text, salt="blue") == [4, 5]


@BOTH
def test_a_copy_is_never_named(index):
    """Case 12: evicting a copy keeps the twin's entry."""
    known, text = index(), [1] * 4 + [2] * 4
    noted(known, text, [0, 1])
    assert noted(known, text, [4, 5]).table == [0, 1]
    known.drop(4), known.drop(5)
    assert hits(known, text) == [0, 1]


@BOTH
def test_drop(index):
    """Pages after a dropped one are not found; an unknown page may be dropped."""
    known, text = index(), [1] * 4 + [2] * 4 + [3] * 4
    noted(known, text, [0, 1, 2])
    known.drop(1), known.drop(1), known.drop(99)
    assert hits(known, text) == [0]
    assert noted(known, text, [0, 5, 6]).table[1] == 5
    assert hits(known, text)[:2] == [0, 5]


def test_where_tree_and_chain_differ():
    """A page whose predecessor went and came back: the chain has kept its name."""
    chain, tree, text = HashChain(), RadixTree(), [1] * 4 + [2] * 4
    for known in (chain, tree):
        noted(known, text, [0, 1])
        known.drop(0)
        assert hits(known, text) == []
        noted(known, text[:4], [7])
    assert hits(chain, text) == [7, 1]
    assert hits(tree, text) == [7]


def check_tree(tree):
    """Every page is where place_of says, once, in a run that its parent knows by its first key."""
    seen, nodes = {}, [tree.root]
    assert not tree.root.pages and tree.root.parent is None
    while nodes:
        node = nodes.pop()
        assert len(node.keys) == len(node.pages) and (node.pages or node is tree.root)
        seen |= {page: (node, place) for place, page in enumerate(node.pages)}
        for key, child in node.children.items():
            assert child.parent is node and child.keys[0] == key
            nodes.append(child)
    assert seen == tree.place_of


class WholeTexts:
    """What an index must return, from a dictionary of texts.

    prunes: whether a drop takes the later pages of a text with it
    """

    def __init__(self, prunes):
        self.prunes, self.page_of = prunes, {}

    def note(self, text, table, i):
        before = text[:i]
        if self.prunes and i and self.page_of.get(before) != table[i - 1]:
            return table[i]
        return self.page_of.setdefault(text[:i + 1], table[i])

    def drop(self, text):
        if self.prunes:
            self.page_of = {t: p for t, p in self.page_of.items() if t[:len(text)] != text}
        else:
            self.page_of.pop(text, None)

    def find(self, text):
        pages = [self.page_of.get(text[:i + 1]) for i in range(len(text))]
        return pages[:pages.index(None)] if None in pages else pages


@pytest.mark.parametrize("seed", range(20))
def test_random_texts_under_random_drops(seed):
    """Chain and tree find what dictionaries of texts do; the tree, a prefix of the chain's."""
    rnd, fresh = random.Random(seed), iter(range(10**6))
    both = [(HashChain(), WholeTexts(False)), (RadixTree(), WholeTexts(True))]
    live, apart = [], 0
    for _ in range(400):
        if rnd.random() < 0.3 or not live:
            pages = tuple(rnd.randrange(2) for _ in range(rnd.randrange(1, 7)))
            tokens = [t for page in pages for t in (page, 5)]
            live.append((pages, [Request("r", tokens, SamplingParams()) for _ in both]))
        pages, requests = rnd.choice(live)
        i = len(requests[0].table)
        if rnd.random() < 0.3:
            gone = pages[:rnd.randrange(len(pages)) + 1]
            for known, oracle in both:
                if gone in oracle.page_of:
                    known.drop(oracle.page_of[gone])
                    oracle.drop(gone)
        elif i < len(pages):
            for (known, oracle), request in zip(both, requests, strict=True):
                request.table.append(next(fresh))
                want = oracle.note(pages, request.table, i)
                assert known.note(request, i, 2) == want
                request.table[i] = want
        lengths = []
        for (known, oracle), request in zip(both, requests, strict=True):
            assert known.find(request, len(pages), 2) == oracle.find(pages)
            lengths.append(len(oracle.find(pages)))
        check_tree(both[1][0])
        assert lengths[1] <= lengths[0]
        apart += lengths[0] != lengths[1]
    assert apart > 0, "texts and drops never set them apart: the test shows little"


# ---- the pool, in an engine


def engine(index=HashChain, P=64, S=4, model=None, **limits):
    pool = PrefixPool(P, S, index())
    return Engine(model or MockLlama(200), ByteTokenizer(), pool, Scheduler(pool, **limits))


def drain(engine):
    while engine.busy:
        engine.step()
        check_engine(engine)


def served(engine, *prompts, max_tokens=1, **entries):
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, **entries)
    requests = [engine.submit(prompt, params)[0] for prompt in prompts]
    drain(engine)
    return requests


def alone(prompt, max_tokens):
    pool = BlockPool(64, 4)
    (request,) = served(Engine(MockLlama(200), ByteTokenizer(), pool, Scheduler(pool)), prompt,
                        max_tokens=max_tokens)
    return request.output


@BOTH
@pytest.mark.parametrize("n, want", [(11, 8), (12, 8), (13, 12), (4, 0), (5, 4), (1, 0)])
def test_whole_prompt_is_known(index, n, want):
    """Case 7: at least one token is computed, and the scores are those of the whole prompt."""
    served_before, prompt = engine(index), list(range(n))
    served(served_before, prompt, max_tokens=9)
    (again,) = served(served_before, prompt, max_tokens=9)
    assert again.num_cached == want < n
    assert again.output == alone(prompt, 9)


@BOTH
def test_an_answer_is_known_but_its_last_token(index):
    """A turn finds what the turn before computed, which is all but the last token drawn."""
    e, prompt = engine(index), list(range(7))
    (first,) = served(e, prompt, max_tokens=6)
    (second,) = served(e, first.tokens + [3, 3, 3])
    assert first.num_computed == 12 and second.num_cached == 12
    (first,) = served(e, [9, *prompt], max_tokens=5)        # 13 tokens, the last never computed
    (second,) = served(e, first.tokens + [3, 3, 3])
    assert first.num_computed == 12 and second.num_cached == 12


@BOTH
def test_a_partly_filled_page_is_not_shared(index):
    """Case 8: texts that part within a page share only the pages before."""
    e = engine(index)
    served(e, [1, 2, 3, 4, 5, 6])
    (second,) = served(e, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert second.num_cached == 4
    assert second.output == alone(second.prompt, 1)


@BOTH
@pytest.mark.parametrize("chunk", [None, 3])
def test_two_identical_prompts_in_one_step(index, chunk):
    """Case 9: the second does not read what is not written; both compute, then share."""
    e, prompt = engine(index, chunk=chunk), list(range(14))
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    one, other = (e.submit(prompt, params)[0] for _ in range(2))
    computed = 0
    while len(one.output) == 0:
        e.step()
        check_engine(e)
        computed += sum(e.counts.values())
    assert computed == 28 and other.num_cached == 0
    assert one.table[:3] == other.table[:3] and one.table[3] != other.table[3]
    assert e.pool.used == 5
    drain(e)
    assert one.output == other.output == alone(prompt, 6)


@BOTH
def test_hit_on_a_free_page(index):
    """Case 10: a page that is found leaves the free list, and is not counted as free, too."""
    e = engine(index, P=5)
    (first,) = served(e, list(range(12)))
    pages = e.pool.match_prefix(first)
    assert e.pool.used == 0 and len(pages) == 3
    assert all(page in e.pool.free for page in pages)
    (other,) = e.submit([50, 51], SamplingParams(max_tokens=14, ignore_eos=True))
    e.step()                                            # holds one page of five
    before = list(e.pool.refs), set(e.pool.free)
    (second,) = e.submit(list(range(14)), SamplingParams(max_tokens=1, temperature=0))
    e.step()                                            # three found, one more, one kept in reserve
    assert second.status == "waiting" and (list(e.pool.refs), set(e.pool.free)) == before
    e.abort([other])
    e.step()
    assert second.num_cached == 12 and second.output == alone(second.prompt, 1)
    assert not e.pool.used
    drain(e)


@BOTH
def test_eviction_order(index):
    """Case 12: of the pages given back longest ago first, and of a text from its end on."""
    e = engine(index, P=8)
    (old,) = served(e, [1] * 13)                        # four pages, three of them known
    (new,) = served(e, [2] * 13)
    served(e, [3] * 5)                                  # two pages, of the oldest
    assert len(e.pool.match_prefix(old)) == 2 and len(e.pool.match_prefix(new)) == 3
    served(e, [4] * 5)
    assert len(e.pool.match_prefix(old)) == 0 and len(e.pool.match_prefix(new)) == 3
    served(e, [2] * 13, [5] * 9)                        # in use again, so not the oldest any more
    assert len(e.pool.match_prefix(new)) == 3


@BOTH
def test_evicting_a_copy_keeps_the_twin(index):
    """Case 12: two computed the same; the one that made way is taken, the other is still found."""
    e, prompt = engine(index, P=8), [1] * 9
    one, other = served(e, prompt, prompt)
    pages = e.pool.match_prefix(one)
    others = [page for page in e.pool.free if page not in pages]
    assert None not in [e.pool.take() for _ in others]
    assert e.pool.match_prefix(other) == pages and len(pages) == 2


class TableFirst(PrefixPool):
    """A pool that refuses to free a page that a table still names."""

    tables = ()

    def cache_pages(self, request):
        self.tables = [request.table]
        super().cache_pages(request)
        self.tables = ()

    def release(self, table):
        for page in table:
            assert self.refs[page] > 1 or not any(page in t for t in self.tables)
        self.swaps = getattr(self, "swaps", 0) + bool(self.tables)
        super().release(table)


@BOTH
def test_the_table_changes_before_the_copy_is_free(index):
    """Case 14."""
    pool = TableFirst(32, 4, index())
    e = Engine(MockLlama(200), ByteTokenizer(), pool, Scheduler(pool))
    served(e, list(range(14)), list(range(14)), max_tokens=6)
    assert pool.swaps >= 3
    check_pool(pool, [])


@BOTH
def test_scores_of_the_prompt_pass_the_cache_by(index):
    """Case 29: with prompt_logprobs the whole prompt is computed; its pages are shared after."""
    e, prompt = engine(index), list(range(13))
    served(e, prompt)
    known = e.pool.match_prefix(Request("r", prompt, SamplingParams()))
    (asks,) = served(e, prompt, prompt_logprobs=2)
    assert asks.num_cached == 0 and len(asks.prompt_logprobs) == 12
    (fresh,) = served(engine(index), prompt, prompt_logprobs=2)
    assert asks.prompt_logprobs == fresh.prompt_logprobs
    assert e.pool.match_prefix(Request("r", prompt, SamplingParams())) == known
    (after,) = served(e, prompt)
    assert after.num_cached == 12


@BOTH
def test_salts_in_the_engine(index):
    """Case 13: the time of an answer does not tell what another salt has asked."""
    e, prompt = engine(index), list(range(9))
    for salt, want in (("red", 0), ("blue", 0), ("red", 8), ("blue", 8), ("", 0)):
        (request,) = e.submit(prompt, SamplingParams(max_tokens=1), salt=salt)
        drain(e)
        assert request.num_cached == want


# ---- the soak


class EndsFirst(RadixTree):
    """A tree in which a dropped page must be the last of its text."""

    def drop(self, page):
        if page in self.place_of:
            node, place = self.place_of[page]
            assert place == len(node.pages) - 1 and not node.children, \
                f"page {page} is taken before those after it"
        super().drop(page)


def four_letters(context, V):
    g = torch.Generator().manual_seed(hash(tuple(context)) % 2**31)
    scores = torch.full((V,), -20.0)
    scores[:4], scores[256] = torch.rand(4, generator=g) * 3, -2.0
    return scores


class Guesses:
    """A drafter that guesses at random, the same in each run."""

    def __init__(self, seed):
        self.rnd = random.Random(seed)

    def propose(self, tokens):
        return [self.rnd.randrange(4) for _ in range(self.rnd.randrange(4))]


class Soak:
    """One engine under random requests and aborts, all by its seed."""

    def __init__(self, seed, index, mode):
        self.rnd, self.live = random.Random(seed), []
        pool = PrefixPool(24, 4, index)
        limits = self.rnd.choice([6, 9, 32]), self.rnd.choice([None, 3])
        self.engine = Engine(MockLlama(80, scores=four_letters), ByteTokenizer(), pool,
                             Scheduler(pool, 6, *limits), overlap=mode == "overlap",
                             drafter=Drafter(Guesses(seed).propose) if mode == "guesses" else None)

    def step(self):
        rnd, engine = self.rnd, self.engine
        if rnd.random() < 0.3:
            prompt = rnd.choice([[1] * 9, [2, 3] * 8, [0]])
            prompt = prompt + [rnd.randrange(4) for _ in range(rnd.randrange(1, 20))]
            self.live += engine.submit(prompt, SamplingParams(
                max_tokens=rnd.randrange(1, 30), seed=rnd.randrange(9), n=rnd.choice([1, 1, 3]),
                temperature=rnd.choice([0, 1.0])), salt=rnd.choice(["", "", "blue"]))
        if self.live and rnd.random() < 0.04:
            engine.abort([rnd.choice(self.live)])
        engine.step()
        check_engine(engine)
        if isinstance(engine.pool.index, RadixTree):
            check_tree(engine.pool.index)
        return [(r.id, r.index, n, tuple(r.table)) for r, n in engine.counts.items()]

    def end(self):
        drain(self.engine)
        assert not self.engine.pool.used
        assert all(r.reason in ("stop", "length", "abort") for r in self.live)
        return [(r.id, r.index, r.reason, r.output) for r in self.live]


@pytest.mark.parametrize("mode", ["plain", "overlap", "guesses"])
@pytest.mark.parametrize("seed", range(4))
def test_soak(seed, mode):
    """A chain and a tree side by side: the same pages in every step, every invariant after each;
    the pool takes a text's pages from its end on; tokens are those of an engine without either."""
    chain, tree = (Soak(seed, index, mode) for index in (HashChain(), EndsFirst()))
    for _ in range(250):
        assert chain.step() == tree.step()
    assert chain.end() == tree.end()
    assert sum(r.num_cached for r in chain.live) > 100
    assert sum(r.preemptions for r in chain.live) > 0
    assert len(tree.engine.pool.index.place_of) <= 24
    for request in tree.live[::8]:
        if request.reason != "abort" and request.index == 0:
            params = request.params
            e = Engine(MockLlama(80, scores=four_letters), ByteTokenizer(), BlockPool(24, 4))
            (again,) = e.submit(request.prompt, SamplingParams(
                max_tokens=params.max_tokens, seed=params.seed, temperature=params.temperature))
            drain(e)
            assert again.output == request.output


# ---- what s06 says of its hashes and its conversation


def test_a_name_is_the_hash_of_8_bytes_a_token_and_32_of_the_parent():
    parent = sha256(b"a salt").digest()
    tokens = [5, 12, 9, 2047]
    data = parent + b"".join(token.to_bytes(8, "little") for token in tokens)
    assert len(data) == 8 * len(tokens) + 32
    assert page_hash(parent, tokens) == sha256(data).digest()


def test_a_turn_computes_its_new_tokens_and_at_most_one_page_more():
    """As in s06: 20 tokens are asked, 24 are answered, and the last of them is never computed."""
    rnd = random.Random(0)
    pool = PrefixPool(128, 16)
    e = Engine(MockLlama(1024), ByteTokenizer(), pool, Scheduler(pool, 32, 512))
    said = [rnd.randrange(2, 256) for _ in range(60)]
    for turn in range(12):
        said = said + [rnd.randrange(2, 256) for _ in range(20)]
        (request,) = e.submit(said, SamplingParams(max_tokens=24, temperature=0, ignore_eos=True))
        computed = 0
        while e.busy:
            e.step()
            computed += sum(e.counts.values())
        new = 20 + 24 if turn else 80 + 23
        assert new <= computed < new + 16
        said = request.tokens
