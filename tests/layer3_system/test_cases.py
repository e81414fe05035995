"""The 34 cases that an engine must handle, by number, and a soak of random steps.

The model is MockLlama: it reads its whole context back from the pages and refuses one that is not
the sequence's own, and its scores depend on every token of it. `alone` works out what each answer
must be, with no engine at all. Each case runs a second time with a few places in host memory below
the pages (s11), but for those on back ends in the simulator.
"""

import sys
from collections import Counter
from itertools import count

import pytest
import torch

from day02_overview import NANO
from lab import device, simulator
from layer1_kernels import kernels
from layer2_graph import GraphRunner, PagedCache, greedy, load, load_moe
from layer2_graph.generate import ROUNDING
from layer2_graph.models import TWINS
from layer3_system import (
    BlockPool,
    Broken,
    ByteTokenizer,
    Engine,
    MockLlama,
    PrefixPool,
    RequestError,
    SamplingParams,
    Scheduler,
    TransferError,
    check_engine,
    hand_over,
    mock_scores,
    prefill,
)
from layer3_system.bench.soak import KINDS, RECORD, alone, line, soak
from layer3_system.engine.drafts import Drafter
from layer3_system.s11_kv_offload import TieredPool
from layer3_system.tiers import HostTier, TieredPages

S = 4                                   # slots of a page
END = 256


def pytest_generate_tests(metafunc):
    """Each case on the device alone, and over a tier."""
    name = metafunc.function.__name__
    if name.startswith("test_case") and "back_end" not in name:
        metafunc.parametrize("tiers", [False, True], ids=["device", "tiers"], indirect=True)


def over_host(P, S):
    """A PrefixPool with 6 places below."""
    return TieredPool(P, S, None, HostTier(6))


def connected(*parts, **options):
    """An Engine, whose memory below is connected where its pool has one."""
    e = Engine(*parts, **options)
    if isinstance(e.pool, TieredPool):
        e.pages = TieredPages(e.pages, e.pool.host)
    return e


@pytest.fixture(autouse=True)
def tiers(request, monkeypatch):
    """Whether engines of this module have a tier below."""
    below = getattr(request, "param", False)
    if below:
        monkeypatch.setattr(sys.modules[__name__], "PrefixPool", over_host)
    return below


def engine(P=64, max_seqs=8, budget=64, chunk=None, pool=None, room=512, scores=mock_scores,
           **others):
    """An engine with a mock model, P pages of 4 slots, and a clock that ticks once a reading."""
    pages = (pool or PrefixPool)(P, S)
    return connected(MockLlama(room, scores=scores), ByteTokenizer(), pages,
                     Scheduler(pages, max_seqs, budget, chunk), clock=count().__next__, **others)


def params(max_tokens=8, temperature=0, **others):
    return SamplingParams(max_tokens, temperature=temperature, **others)


def run(e, most=2000):
    """All outputs until nothing is left to do; invariants are checked after every step."""
    outputs = []
    for _ in range(most):
        if not e.busy:
            return outputs
        outputs += e.step()
        check_engine(e)
    raise AssertionError(f"still busy after {most} steps: {len(e.scheduler.running)} run")


def text_of(outputs, request):
    return "".join(o.text for o in outputs if o.request is request)


def writing(*tokens):
    """Scores of a model that writes these tokens after any prompt of 2 tokens, then ends."""
    def scores(context, V):
        z = torch.zeros(V)
        written = len(context) - 2
        z[tokens[written] if written < len(tokens) else END] = 9
        return z
    return scores


def same_as_alone(*requests):
    for request in requests:
        assert request.reason in ("stop", "length"), (request.id, request.reason, request.error)
        assert request.output == alone(request), request.id


# ---- memory


def test_case_01_no_page_left_in_decode():
    """The newest is preempted, is next again, and writes what it would have written anyway."""
    e = engine(P=10, pool=BlockPool)
    old, new = [e.submit([n] * 9, params(16, ignore_eos=True))[0] for n in (1, 2)]
    run(e)
    assert (old.preemptions, new.preemptions > 0) == (0, True)
    same_as_alone(old, new)


def test_case_02_a_prompt_larger_than_the_pool():
    """It is refused at once, and those after it are served."""
    e = engine(P=4)
    with pytest.raises(RequestError, match="at most 15 tokens.*found 17"):
        e.submit([1] * 17, params(1))
    (behind,) = e.submit([1] * 5, params(4))
    run(e)
    same_as_alone(behind)


def test_case_03_a_prompt_at_the_bound():
    """The bound is the sequence's length: 16 slots hold a prompt of 15 and one token."""
    e = engine(P=4)
    with pytest.raises(RequestError, match="found 16"):
        e.submit([1] * 16, params(1))
    (last,) = e.submit([1] * 15, params(1))
    run(e)
    assert len(last.output) == 1
    same_as_alone(last)


def test_case_04_a_lone_request_outgrows_the_pool():
    """It ends by length with what it has; it does not preempt itself again and again."""
    e = engine(P=4)
    (lone,) = e.submit([1] * 5, params(None, ignore_eos=True))
    run(e, 40)
    assert (lone.reason, len(lone.output), lone.preemptions) == ("length", 11, 0)
    same_as_alone(lone)


def test_case_05_longer_than_the_model():
    e = engine(room=32)
    with pytest.raises(RequestError, match="prompt: expected at most 31 tokens"):
        e.submit([1] * 32, params(1))
    with pytest.raises(RequestError, match="max_tokens: expected at most 12 .* found 13"):
        e.submit([1] * 20, params(13))
    (rest,) = e.submit([1] * 20, params(None, ignore_eos=True))
    run(e)
    assert len(rest.output) == 12


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9])
def test_case_06_around_the_end_of_a_page(length):
    """A page is taken when a token needs it, not before, and before it is written."""
    e = engine()
    (request,) = e.submit([1] * length, params(6, ignore_eos=True))
    while e.busy:
        e.step()
        if request.status == "running":
            assert len(request.table) == -(-request.num_computed // S)
    same_as_alone(request)


# ---- shared pages


def test_case_07_the_whole_prompt_is_known():
    """One token at least is computed, or there would be no scores."""
    e = engine()
    prompt = [1, 2, 3, 4] * 3
    (first,) = e.submit(prompt, params())
    run(e)
    (again,) = e.submit(prompt, params())
    outputs = e.step()
    assert again.num_cached == 8 and e.counts == {again: 4} and len(outputs[0].tokens) == 1
    run(e)
    assert again.output == first.output
    same_as_alone(again)


def test_case_08_a_page_that_is_not_full():
    """Its tokens are never found."""
    e = engine()
    (first,) = e.submit([1] * 7, params(1))
    run(e)
    (again,) = e.submit([1] * 12, params(1))
    e.step()
    assert again.num_cached == 4
    run(e)
    same_as_alone(first, again)


def test_case_09_two_identical_prompts_in_one_step():
    """The second does not read what the first has yet to write. Afterwards they share."""
    e = engine()
    twins = [e.submit([1, 2, 3, 4] * 3, params())[0] for _ in range(2)]
    e.step()
    assert list(e.counts.values()) == [12, 12]
    check_engine(e)
    assert twins[0].table[:2] == twins[1].table[:2]
    run(e)
    same_as_alone(*twins)


def test_case_10_a_hit_on_a_free_page():
    """It leaves the free list, and is not counted as room for the rest."""
    e = engine(P=4)
    run_one, = e.submit([1] * 9, params(1))
    run(e)
    free = len(e.pool.free)
    (again,) = e.submit([1] * 9 + [2] * 4, params(1))
    e.step()
    assert free == 4 and again.num_cached == 8
    check_engine(e)
    run(e)
    same_as_alone(run_one, again)


def test_case_10_capacity_is_not_counted_twice():
    """Two of four pages are known and free; three more do not fit beside them."""
    pool = PrefixPool(4, S)
    scheduler = Scheduler(pool, 4, 64)
    e = connected(MockLlama(), ByteTokenizer(), pool, scheduler)
    e.submit([1] * 9, params(1))
    run(e)
    (holder,) = e.submit([7] * 3, params(3, ignore_eos=True))
    e.step()
    (again,) = e.submit([1] * 9 + [2] * 6, params(1))       # 4 pages, 2 of them known; 3 are free
    e.step()
    check_engine(e)
    assert again.status == "waiting" and holder.status == "running"
    run(e)
    same_as_alone(holder, again)


@pytest.mark.parametrize("how", ["abort", "finish"])
def test_case_11_one_of_two_owners_goes(how):
    e = engine()
    prompt = [1, 2, 3, 4] * 4
    (first,) = e.submit(prompt, params(2 if how == "finish" else 30, ignore_eos=True))
    e.step()
    (second,) = e.submit(prompt, params(20, ignore_eos=True))
    e.step()
    shared = first.table[:3] if how == "abort" else second.table[:3]
    if how == "abort":
        assert all(e.pool.refs[page] == 2 for page in shared)
        e.abort([first])
    while first.status != "finished":
        e.step()
    assert all(e.pool.refs[page] == 1 for page in shared)
    run(e)
    same_as_alone(second)


def test_case_12_the_oldest_free_page_goes_first(tiers):
    """Least recently used first; within one request, its last page first."""
    e = engine(P=8)
    a, b = [e.submit([n] * 13, params(1))[0] for n in (1, 2)]
    run(e)
    e.submit([3] * 6, params(1))                # two pages: the last of the first, named or not
    run(e)
    hits = []
    for n in (2, 1):
        (again,) = e.submit([n] * 13, params(1))
        e.step()
        hits.append(again.num_cached)
        run(e)
        same_as_alone(again)
    lost = 12 if tiers else 4                   # the second kept all; its fourth page took another
    assert hits == [12, lost]
    same_as_alone(a, b)


def test_case_12_dropping_a_copy_keeps_the_name():
    """Two computed the same page. The copy is given back and taken; the other stays known."""
    e = engine(P=8)
    twins = [e.submit([1] * 9, params(1))[0] for _ in range(2)]
    run(e)
    filler, = e.submit([2] * 15, params(1))     # takes what was free before
    run(e)
    (again,) = e.submit([1] * 9, params(1))
    e.step()
    assert again.num_cached == 8
    run(e)
    same_as_alone(*twins, filler, again)


def test_case_13_the_same_page_after_another():
    """A page is known by all that is before it, and within its salt."""
    e = engine()
    e.submit([1] * 4 + [9] * 5, params(1), salt="a")
    run(e)
    found = []
    for prompt, salt in (([2] * 4 + [9] * 5, "a"), ([1] * 4 + [9] * 5, "b"),
                         ([1] * 4 + [9] * 5, "a")):
        (request,) = e.submit(prompt, params(1), salt=salt)
        e.step()
        found.append(request.num_cached)
        run(e)
        same_as_alone(request)
    assert found == [0, 0, 8]


def test_case_14_a_copy_makes_way():
    """The table names the other page before the copy becomes free: never a page both free and in a
    table, which check_engine looks for after each step."""
    e = engine()
    twins = [e.submit([1, 2, 3, 4] * 5, params(12, ignore_eos=True))[0] for _ in range(3)]
    run(e)
    same_as_alone(*twins)
    assert len({tuple(t.output) for t in twins}) == 1


@pytest.mark.parametrize("length", [8, 9, 11])
def test_case_15_n_answers_to_one_prompt(length):
    """One computes the prompt; all share its pages, and copy one when they write into it."""
    e = engine()
    prompt = list(range(1, length + 1))
    answers = e.submit(prompt, params(10, temperature=1, n=4, seed=3))
    e.step()
    assert e.counts == {answers[0]: length} and e.pool.used == -(-length // S)
    assert [len(r.output) for r in answers] == [1, 1, 1, 1]
    check_engine(e)
    run(e)
    same_as_alone(*answers)
    assert len({r.output[0] for r in answers}) > 1, "all begin alike"


# ---- the scheduler


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, None])
def test_case_16_chunks(chunk):
    """The same tokens for every chunk size; none from a part of a prompt; two parts in one step."""
    e = engine(budget=16, chunk=chunk)
    two = [e.submit([n] * 19, params())[0] for n in (1, 2)]
    together = False
    while e.busy:
        outputs = e.step()
        check_engine(e)
        together |= len(e.counts) == 2 and all(n > 1 for n in e.counts.values())
        for output in outputs:
            assert output.request.num_computed >= len(output.request.prompt)
    assert together or chunk == 1
    same_as_alone(*two)


def test_case_17_steady_arrivals():
    """A request that writes gets a token in every step, however many come."""
    e = engine(P=200, max_seqs=8, budget=16)
    (early,) = e.submit([1] * 5, params(40, ignore_eos=True))
    e.step()
    for i in range(1, 40):
        e.submit([2 + i % 7] * 15, params(2))
        e.step()
        check_engine(e)
        assert len(early.output) == i + 1
    run(e)
    same_as_alone(early)


def test_case_17_a_long_prompt_before_a_short_answer():
    """Nor does a prompt in parts that came first stop those after it."""
    e = engine(P=200, budget=16, chunk=12)
    e.submit([1] * 150, params(1))
    e.step()
    (late,) = e.submit([2] * 3, params(5, ignore_eos=True))
    for i in range(5):
        e.step()
        assert len(late.output) == i + 1


def test_case_17_answers_behind_a_long_prompt():
    """One prompt's answers get a token each, while an older prompt could take the whole budget."""
    e = engine(P=200, max_seqs=8, budget=16, chunk=12)
    e.submit([1] * 150, params(1))
    answers = e.submit([2] * 4, params(9, n=7, ignore_eos=True))
    e.step()
    for i in range(1, 6):
        assert [len(r.output) for r in answers] == [i] * 7
        e.step()
        check_engine(e)
    run(e)
    same_as_alone(*answers)


def test_case_18_after_a_preemption():
    """Nothing is admitted in that step; the victim is next; preemptions are few."""
    e = engine(P=12, pool=BlockPool)
    requests = [e.submit([n] * 9, params(24, ignore_eos=True))[0] for n in range(1, 6)]
    before = 0
    while e.busy:
        waiting = list(e.scheduler.waiting)
        e.step()
        check_engine(e)
        now = sum(r.preemptions for r in requests)
        if now > before:
            assert list(e.scheduler.waiting)[-len(waiting):] == waiting or not waiting
            assert e.scheduler.waiting[0].preemptions > 0
        before = now
    same_as_alone(*requests)
    assert [r.preemptions for r in requests] == [0, 1, 1, 1, 1], (
        "without a page kept free for each that runs, two of them would go twice")


@pytest.mark.parametrize("overlap", [False, True])
def test_case_19_abort_in_every_state(overlap):
    e = engine(max_seqs=4, budget=8, overlap=overlap)
    requests = [e.submit([n] * 12, params(6, ignore_eos=True))[0] for n in range(1, 7)]
    states = Counter()
    for request, steps in zip(requests, (0, 1, 3, 2, 0, 30), strict=True):
        for _ in range(steps):
            e.step()
        state = (request.status, 0 < request.num_computed < 12, bool(request.output))
        states[state] += 1
        e.abort([request])
        check_engine(e)
        e.abort([request, request])             # twice, and what is over stays as it is
        check_engine(e)
        assert request.reason == ("length" if state[0] == "finished" else "abort")
    run(e)
    assert len(states) >= 3 and e.pool.used == 0


def test_case_19_abort_beats_length():
    """Aborted while its last token is being computed: it ends once, as aborted."""
    e = engine(overlap=True)
    (request,) = e.submit([1] * 5, params(1))
    e.step()                                    # in flight
    e.abort([request])
    outputs = run(e)
    assert (request.reason, request.output, outputs) == ("abort", [], [])


def test_case_20_21_an_abort_is_of_a_request_not_of_its_name():
    """Two of one name: a late abort of the first does not touch the second. The server's part of
    20 is in test_server.py."""
    e = engine()
    (first,) = e.submit([1] * 5, params(1), id="mine")
    run(e)
    (second,) = e.submit([1] * 5, params(4, ignore_eos=True), id="mine")
    e.step()
    e.abort([first])
    run(e)
    assert first.reason == second.reason == "length"
    same_as_alone(second)


def test_case_22_sizes_that_make_no_sense():
    e = engine()
    for wrong, words in ((0, "max_tokens: expected an integer from 1, found 0"), (-1, "found -1")):
        with pytest.raises(RequestError, match=words):
            params(wrong)
    with pytest.raises(RequestError, match="prompt: expected one token or more"):
        e.submit([], params(1))
    (one,) = e.submit([1] * 5, params(1))
    e.step()
    assert not e.busy and e.model.steps == 1 and len(one.output) == 1


# ---- sampling


def test_case_23_a_seed_does_not_see_the_batch():
    """Alone, beside others, in parts, preempted: the same tokens. Two without a seed differ."""
    want = None
    for P, chunk, others in ((64, None, 0), (64, 3, 5), (9, None, 2), (64, None, 7)):
        e = engine(P=P, chunk=chunk, pool=BlockPool)
        crowd = [e.submit([n] * 5, params(12, temperature=1, ignore_eos=True))[0]
                 for n in range(1, others + 1)]
        (seeded,) = e.submit([3] * 6, params(12, temperature=1, seed=5, ignore_eos=True))
        run(e)
        want = want or seeded.output
        assert seeded.output == want, (P, chunk, others)
        same_as_alone(*crowd, seeded)
    e = engine()
    twins = [e.submit([3] * 6, params(12, temperature=1, ignore_eos=True))[0] for _ in range(2)]
    run(e)
    assert twins[0].output != twins[1].output


def test_case_24_greedy_in_any_batch():
    """A real Llama: the same tokens one by one and together, in parts, with and without a prefix
    cache, preempted or not; MockLlama has no rounding, so there it is exact everywhere above."""
    nano = load(NANO, dtype=torch.float32)
    prompts = [[10 + n] + list(range(65, 65 + 3 * n)) for n in range(1, 7)]
    want = [greedy(nano, [p], 12)[0] for p in prompts]
    for P, chunk, pool in ((64, None, PrefixPool), (64, 5, BlockPool), (9, None, PrefixPool)):
        pages = pool(P, 8)
        e = connected(nano, ByteTokenizer(), pages, Scheduler(pages, 4, 32, chunk))
        requests = [e.submit(p, params(12, ignore_eos=True))[0] for p in prompts * 2]
        run(e)
        assert [r.output for r in requests] == want * 2, (P, chunk, pool)


def test_case_24_with_experts():
    """Requests that share steps choose their experts alone: the same tokens."""
    moe = load_moe(TWINS / "moe", dtype=torch.float32)
    prompts = [[0, 300 + n, *range(400, 400 + 3 * n)] for n in range(4)]
    want = [greedy(moe, [p], 12)[0] for p in prompts]
    pages = PrefixPool(64, 8)
    e = connected(moe, ByteTokenizer(), pages, Scheduler(pages, 4, 32, 5))
    requests = [e.submit(p, params(12, ignore_eos=True))[0] for p in prompts]
    run(e)
    assert [r.output for r in requests] == want


@pytest.mark.parametrize("table", ["triton", "cuda"])
def test_case_24_on_each_back_end(table, request):
    """The kernels of a back end, in the simulator without a GPU: PyTorch's tokens, up to a tie."""
    device.use_best()
    request.addfinalizer(simulator.deactivate_triton if device.gpu() is None else lambda: None)
    nano = load(NANO, kernels(table), torch.float32, device.torch_device())
    oracle = load(NANO, dtype=torch.float32)
    prompts = [[10, 97, 32, 119], [10] + list(range(97, 110)), [10, 116]]
    for chunk, P in ((None, 32), (5, 5)):
        pages = PrefixPool(P, 16)
        e = connected(nano, ByteTokenizer(), pages, Scheduler(pages, 3, 16, chunk),
                      sample=nano.ops.sample)
        answers = [e.submit(p, params(4, ignore_eos=True))[0] for p in prompts]
        run(e)
        for answer, prompt in zip(answers, prompts, strict=True):
            own = greedy(oracle, [prompt], 4)[0]
            if answer.output != own:
                at = next(i for i in range(4) if answer.output[i] != own[i])
                assert gap(oracle, prompt + own[:at], own[at], answer.output[at]) < ROUNDING


def gap(model, context, token, other):
    """How much a model prefers a token to another after a context."""
    cache = PagedCache(model.config, 1, len(context))
    z = model.forward(cache.step([context]), cache)[0]
    return float(z[token] - z[other])


def test_case_25_extreme_temperatures_and_a_mixed_batch():
    e = engine()
    asked = [params(6, temperature=0), params(6, temperature=1e-4, seed=1),
             params(6, temperature=1, top_p=1e-6, seed=2), params(6, temperature=1, top_k=1000,
                                                                  seed=3)]
    requests = [e.submit([7] * 5, p)[0] for p in asked]
    run(e)
    same_as_alone(*requests)
    assert requests[0].output == requests[1].output == requests[2].output


@pytest.mark.parametrize("asked, tokens, reason, text", [
    ({}, [65, 66, END], "stop", "AB"),
    ({"ignore_eos": True, "max_tokens": 4}, [65, 66, END, END], "length", "AB"),
    ({"stop_token_ids": (66,)}, [65, 66], "stop", "A"),
    ({"stop_token_ids": (65,), "min_tokens": 2}, [65, 66, END], "stop", "AB"),
    ({"min_tokens": 4, "max_tokens": 5}, [65, 66, END, END], "stop", "AB"),
    ({"max_tokens": 3}, [65, 66, END], "stop", "AB"),
    ({"max_tokens": 2}, [65, 66], "length", "AB"),
])
def test_case_26_what_ends_an_answer(asked, tokens, reason, text):
    e = engine(scores=writing(65, 66))
    (request,) = e.submit([1, 1], params(**{"max_tokens": 8, **asked}))
    outputs = run(e)
    assert (request.output, request.reason, text_of(outputs, request)) == (tokens, reason, text)


@pytest.mark.parametrize("stops, text, count", [
    (("two three",), "one ", 11), (("e t", "ne"), "o", 3), (("zz",), "one two three", 14),
    (("threes",), "one two three", 14), (("ab",), "one two three", 14),
])
def test_case_27_a_stop_over_tokens(stops, text, count):
    """None of it is shown, and nothing after it; text that only began like one is shown."""
    e = engine(scores=writing(*b"one two three"))
    (request,) = e.submit([97, 98], params(20, stop=stops))
    outputs = run(e)
    assert text_of(outputs, request) == text and len(request.output) >= count - 2
    assert request.reason == "stop" and len(request.output) <= count + 2


def test_case_28_characters_of_several_tokens():
    """No broken character on the way; the pieces are the whole."""
    whole = "aé😀—z"
    e = engine(scores=writing(*whole.encode()))
    (request,) = e.submit([1, 1], params(40))
    outputs = run(e)
    assert text_of(outputs, request) == whole
    assert all("\N{REPLACEMENT CHARACTER}" not in o.text for o in outputs)
    e = engine(scores=writing(*"é!".encode()[1:]))
    (request,) = e.submit([1, 0xC3], params(40))            # the prompt ends within é
    assert text_of(run(e), request) == "!"


def test_case_29_log_probabilities():
    """Of the raw scores; the token itself is always there; batches and parts change nothing."""
    seen = []
    for chunk, others in ((None, 0), (3, 4)):
        e = engine(chunk=chunk)
        for n in range(others):
            e.submit([n + 1] * 7, params(9))
        (request,) = e.submit([5] * 9, params(6, temperature=1, top_k=2, seed=1, logprobs=2,
                                              prompt_logprobs=0))
        run(e)
        assert request.num_cached == 0
        for i, (token, found) in enumerate(zip(request.output, request.logprobs, strict=True)):
            want = torch.log_softmax(mock_scores(request.prompt + request.output[:i]), -1)
            assert token in found and found[token] == pytest.approx(float(want[token]))
            assert set(want.topk(2).indices.tolist()) <= set(found)
        for i, found in enumerate(request.prompt_logprobs, 1):
            want = torch.log_softmax(mock_scores(request.prompt[:i]), -1)
            assert found == {request.prompt[i]: pytest.approx(float(want[request.prompt[i]]))}
        assert len(request.prompt_logprobs) == 8
        seen.append((request.logprobs, request.prompt_logprobs))
    assert seen[0] == seen[1]


def test_case_29_a_sampler_that_writes_to_its_scores():
    """They are its own: log probabilities stay those of the model."""
    def writes(logits, sampling):
        tokens = logits.argmax(-1)
        logits.zero_()
        return tokens

    found = []
    for sample in (None, writes):
        e = engine(sample=sample)
        requests = [e.submit([n] * 7, params(6, logprobs=2))[0] for n in (3, 4)]
        run(e)
        found.append([r.logprobs for r in requests])
    assert found[0] == found[1]


class Guesses:
    """Guesses, some of them right: it knows the prompt's answer, and lies at every fifth."""

    def __init__(self, k=3):
        self.k = k

    def propose(self, tokens):
        guesses = list(tokens)
        for _ in range(self.k):
            best = int(mock_scores(guesses).argmax())
            guesses.append((best + (len(guesses) % 5 == 0)) % (END + 1))
        return guesses[len(tokens):]


@pytest.mark.parametrize("asked", [{}, {"temperature": 1, "seed": 4}, {"stop_token_ids": (65,)}])
def test_case_30_guesses_that_are_verified(asked):
    """The same tokens in fewer steps; wrong guesses leave no trace; an end within them ends."""
    e = engine(P=24, drafter=Drafter(Guesses().propose))
    requests = [e.submit([n] * 6, params(21, **asked))[0] for n in range(1, 6)]
    run(e)
    plain = engine()
    want = [plain.submit([n] * 6, params(21, **asked))[0] for n in range(1, 6)]
    run(plain)
    assert [(r.output, r.reason) for r in requests] == [(r.output, r.reason) for r in want]
    if not asked:
        assert e.model.steps < plain.model.steps
    (again,) = e.submit(requests[0].prompt + requests[0].output + [1], params(2))
    run(e)
    same_as_alone(again)                        # no wrong guess was remembered


def test_case_30_guesses_take_no_page_from_anybody():
    """Without pages for guesses they are dropped, and no request is preempted for them."""
    e = engine(P=5, drafter=Drafter(Guesses(7).propose))
    two = [e.submit([n] * 6, params(m, ignore_eos=True))[0] for n, m in ((1, 11), (2, 2))]
    run(e)
    assert [r.preemptions for r in two] == [0, 0]
    same_as_alone(*two)


def test_case_30_a_budget_that_cuts_guesses():
    """Three guesses each, and a budget for one token of each request, or a few more."""
    for budget in (4, 5, 7):
        e = engine(max_seqs=4, budget=budget, drafter=Drafter(Guesses().propose))
        requests = [e.submit([n] * 3, params(9, ignore_eos=True))[0] for n in range(1, 5)]
        run(e)
        same_as_alone(*requests)


# ---- the device


@pytest.mark.parametrize("sizes", [[1, 2, 4], [3], [8]])
def test_case_31_graphs_and_padding(sizes):
    """Every batch from 1 to the most has a graph or runs without; padded rows write nothing."""
    nano = load(NANO, dtype=torch.float32)
    prompts = [[10 + n] + [65] * n for n in range(1, 7)]
    pages = PrefixPool(40, 8)
    e = connected(nano, ByteTokenizer(), pages, Scheduler(pages, 6, 64))
    nobody = e.pages.k[:, -1].clone()           # a page that is not reached
    e.use(GraphRunner(nano, e.pages, sizes, 6, 8))
    requests = [e.submit(p, params(2 + 3 * i, ignore_eos=True))[0]
                for i, p in enumerate(prompts)]
    run(e)
    assert [r.output for r in requests] == [
        greedy(nano, [p], 2 + 3 * i)[0] for i, p in enumerate(prompts)]
    assert torch.equal(e.pages.k[:, -1], nobody)


def test_case_31_scores_outlive_the_next_replay():
    """A graph writes its scores where the last ones were. With steps ahead they are read later."""
    nano, found = load(NANO, dtype=torch.float32), []
    for ahead in (False, True):
        pages = PrefixPool(40, 8)
        e = connected(nano, ByteTokenizer(), pages, Scheduler(pages, 4, 64), overlap=ahead)
        e.use(GraphRunner(nano, e.pages, [4], 4, 8))
        requests = [e.submit([10 + n, 65], params(6, ignore_eos=True, logprobs=1))[0]
                    for n in range(3)]
        run(e)
        found.append([list(map(sorted, r.logprobs)) for r in requests])
        assert all(token in seen for r in requests
                   for token, seen in zip(r.output, r.logprobs, strict=True))
    assert found[0] == found[1]


def test_case_32_a_step_ahead():
    """Steps launched before the results of the one before: the same tokens; a request that ended
    meanwhile loses what was computed too much."""
    e = engine(P=40, overlap=True)
    requests = [e.submit([n] * 7, params(9, temperature=n % 2, seed=n))[0] for n in range(1, 9)]
    requests += e.submit([3] * 9, params(9, n=3, temperature=1, seed=1))
    run(e)
    same_as_alone(*requests)
    e = engine(overlap=True)
    e.submit([1] * 5, params(1))
    run(e)
    assert e.model.steps == 1, "its last token was known to be the last"
    with pytest.raises(ValueError, match="exclude each other"):
        engine(overlap=True, drafter=Drafter(Guesses().propose))


def test_case_33_times():
    """The first token's time counts from arrival, and no preemption resets it."""
    e = engine(P=10, pool=BlockPool)
    old, new = [e.submit([n] * 9, params(16, ignore_eos=True))[0] for n in (1, 2)]
    run(e)
    assert new.preemptions > 0
    for r in (old, new):
        assert len(r.token_times) == 16 and r.token_times == sorted(r.token_times)
        assert r.arrival < r.scheduled_at < r.token_times[0] <= r.finished_at


def torn(k, v):
    raise TransferError("the wire broke")


@pytest.mark.parametrize("wire", [lambda k, v: (k.clone(), v.clone()), torn])
def test_case_34_pages_from_another_engine(wire):
    """The same tokens, received or recomputed; held until the end, then given back."""
    here, there = engine(), engine(P=30)
    asked = params(9, temperature=1, seed=2, ignore_eos=True)
    request = prefill(here, [5] * 14, asked)
    run(here)
    assert here.pool.used == 4
    (busy,) = there.submit([6] * 9, asked)
    (there_,) = hand_over(request, here, there, asked, wire)
    assert here.pool.used == 0
    check_engine(here)
    there.step()
    assert there.counts[there_] == (14 if wire is torn else 1)
    run(there)
    same_as_alone(busy, there_)
    with pytest.raises(TransferError, match="the wire broke"):
        again = prefill(here, [5] * 14, asked)
        run(here)
        hand_over(again, here, there, asked, torn, "fail")
    assert here.pool.used == there.pool.used == 0
    check_engine(here)


def test_case_34_aborted_while_held():
    """An abort of a finished request leaves its pages to their holders."""
    here = engine()
    request = prefill(here, [5] * 14, params())
    run(here)
    here.abort([request])
    check_engine(here)
    assert here.pool.used == 4
    here.release(request)
    check_engine(here)
    assert here.pool.used == 0


# ---- faults


class Cracked(MockLlama):
    """A model whose kernel raises where a token is 13."""

    def forward(self, step, cache, every=False):
        if (step.tokens == 13).any():
            raise FloatingPointError("unlucky")
        return super().forward(step, cache, every)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_kernel_that_raises(overlap):
    """That request fails and says why; the others go on, and no page is lost."""
    pool = PrefixPool(64, S)
    e = connected(Cracked(), ByteTokenizer(), pool, Scheduler(pool, 8, 64), overlap=overlap)
    asked = params(4, ignore_eos=True, min_tokens=4)
    good, bad, late = [e.submit([n] * 5, asked)[0] for n in (1, 13, 2)]
    outputs = run(e)
    assert (bad.reason, bad.error) == ("error", "FloatingPointError: unlucky")
    assert [o.reason for o in outputs if o.request is bad] == ["error"]
    for r in (good, late):
        assert 13 in alone(r) or r.output == alone(r)
        assert r.reason == ("error" if 13 in alone(r)[:-1] else "length")


def test_scores_that_are_no_numbers():
    e = engine(scores=lambda context, V: torch.full((V,), float("nan") if context[0] == 1 else 0.0))
    bad, good = [e.submit([n] * 5, params(2))[0] for n in (1, 2)]
    run(e)
    assert bad.reason == "error" and "not finite" in bad.error and good.reason == "length"


# ---- the soak


@pytest.mark.parametrize("kind", KINDS)
def test_random_steps(kind):
    """Random requests, aborts and steps; every invariant after each; then every answer."""
    counts = soak(kind, 300)
    assert min(counts[name] for name in ("abort", "stop", "length")) > 0, counts
    assert counts["pages in use at the end"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_soak(kind):
    """The same, thousands of steps: the counts are those in benchmarks/soak.txt."""
    counts = soak(kind)
    assert min(counts[name] for name in ("abort", "stop", "length", "preempted")) > 10, counts
    assert (counts["from the cache"] > 100) == (kind != "no prefix cache")
    assert counts["pages in use at the end"] == 0
    assert line(kind, counts) in RECORD.read_text("utf-8").splitlines()


def test_a_soak_sees_what_breaks(monkeypatch):
    """A page that is forgotten, and a token that is not the sequence's own."""
    with monkeypatch.context() as patched:
        patched.setattr(PrefixPool, "release", lambda self, table: table.clear())
        with pytest.raises(Broken):
            soak("plain", 100)
    monkeypatch.setattr("layer3_system.bench.soak.alone", lambda request, scores: [0])
    with pytest.raises(Broken, match="request-"):
        soak("plain", 100)
