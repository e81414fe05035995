"""The 34 cases that an engine must handle, by number: 23 to 34, tokens and the device.

Each runs again with a few places in host memory below the pages (s11), and with guesses that steps
verify (s10). 24 on the back ends in the simulator is in test_engine.py.
"""

import pytest
import torch

from day02_overview import NANO
from layer1_kernels import kernels
from layer2_graph import GraphRunner, greedy, load, load_moe
from layer2_graph.models import TWINS
from layer3_system import (
    BlockPool,
    ByteTokenizer,
    Scheduler,
    TransferError,
    check_engine,
    hand_over,
    mock_scores,
    prefill,
)
from layer3_system.engine.drafts import Drafter
from tests.layer2_graph.test_experts import FAMILIES, random_transformer
from tests.layer3_system.engine_cases import (  # noqa: F401  (what pytest looks for)
    END,
    Guesses,
    connected,
    engine,
    mode_of_engines,
    params,
    prefix_pool,
    pytest_generate_tests,
    run,
    same_as_alone,
    text_of,
    writing,
)

pytestmark = pytest.mark.usefixtures("mode")


# ---- sampling


def test_case_23_a_seed_does_not_see_the_batch():
    """Alone, beside others, in parts, preempted: the same tokens.
    Two without a seed differ."""
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
    for P, chunk, pool in ((64, None, prefix_pool), (64, 5, BlockPool), (9, None, prefix_pool)):
        pages = pool(P, 8)
        e = connected(nano, ByteTokenizer(), pages, Scheduler(pages, 4, 32, chunk))
        requests = [e.submit(p, params(12, ignore_eos=True))[0] for p in prompts * 2]
        run(e)
        assert [r.output for r in requests] == want * 2, (P, chunk, pool)


def folder_with_experts(tmp_path, family):
    """The twin that ships, which is a Mixtral, or random weights that transformers has saved."""
    if family == "Mixtral":
        return TWINS / "moe"
    pytest.importorskip("transformers")
    kind, entries = FAMILIES[family]
    random_transformer(kind, tmp_path, **entries)
    return tmp_path


@pytest.mark.parametrize("family", ["Mixtral", "Qwen 3 MoE", "Qwen 3 MoE, a dense layer"])
def test_case_24_with_experts(tmp_path, family):
    """Requests that share steps choose their experts alone: the same tokens."""
    moe = load_moe(folder_with_experts(tmp_path, family), dtype=torch.float32)
    prompts = [[n, 30 + n, *range(40, 40 + 3 * n)] for n in range(4)]
    want = [greedy(moe, [p], 12)[0] for p in prompts]
    pages = prefix_pool(64, 8)
    e = connected(moe, ByteTokenizer(), pages, Scheduler(pages, 4, 32, 5))
    requests = [e.submit(p, params(12, ignore_eos=True))[0] for p in prompts]
    run(e)
    assert [r.output for r in requests] == want


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
    ({"stop": ("AB",), "min_tokens": 1}, [65, 66], "stop", ""),       # it ends after the border
    ({"stop": ("A",), "min_tokens": 1}, [65, 66, END], "stop", "AB"),
    ({"stop": ("A", "xA", "ABC"), "min_tokens": 1, "max_tokens": 2}, [65, 66], "length", "AB"),
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


@pytest.mark.parametrize("asked", [{}, {"temperature": 1, "seed": 4}, {"stop_token_ids": (65,)}])
def test_case_30_guesses_that_are_verified(asked):
    """The same tokens in fewer steps; wrong guesses leave no trace; an end within them ends."""
    e = engine(P=24, drafter=Drafter(Guesses().propose))
    requests = [e.submit([n] * 6, params(21, **asked))[0] for n in range(1, 6)]
    run(e)
    plain = engine(drafter=None)
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
    pages = prefix_pool(40, 8)
    e = connected(nano, ByteTokenizer(), pages, Scheduler(pages, 6, 64))
    unreached = e.pages.k[:, -1].clone()           # a page that is not reached
    e.use(GraphRunner(nano, e.pages, sizes, 6, 8))
    requests = [e.submit(p, params(2 + 3 * i, ignore_eos=True))[0]
                for i, p in enumerate(prompts)]
    run(e)
    assert [r.output for r in requests] == [
        greedy(nano, [p], 2 + 3 * i)[0] for i, p in enumerate(prompts)]
    assert torch.equal(e.pages.k[:, -1], unreached)


def through_a_graph(nano, pages, count, **options):
    """Three answered requests with log probabilities, whose steps are replays of a graph of 4."""
    e = connected(nano, ByteTokenizer(), pages, Scheduler(pages, 4, 64), **options)
    e.use(GraphRunner(nano, e.pages, [4], 4, 8))
    requests = [e.submit([10 + n, 65], params(count, ignore_eos=True, logprobs=1))[0]
                for n in range(3)]
    run(e)
    return requests


def test_case_31_scores_outlive_the_next_replay():
    """A graph writes its scores where the last ones were.
    With steps ahead they are read later."""
    nano, found = load(NANO, dtype=torch.float32), []
    for ahead in (False, True):
        pages = prefix_pool(40, 8)
        requests = through_a_graph(nano, pages, 6, overlap=ahead)
        found.append([list(map(sorted, r.logprobs)) for r in requests])
        assert all(token in seen for r in requests
                   for token, seen in zip(r.output, r.logprobs, strict=True))
    assert found[0] == found[1]


def test_case_31_scores_of_a_step_that_is_taken_one_by_one():
    """A sampler fails once, and each request is computed alone: each keeps its own scores."""
    nano = load(NANO, dtype=torch.float32)
    own = kernels("torch").sample
    rows = []
    for fails in (False, True):
        failures = iter([False, fails])         # in the step after the prompts

        def sample(scores, wanted, failures=failures):
            if len(scores) == 3 and next(failures, False):
                raise RuntimeError("once")
            return own(scores, wanted)

        requests = through_a_graph(nano, prefix_pool(40, 8), 3, sample=sample)
        assert not next(failures, False), "no step of three came after the prompts"
        rows.append([r.logprobs for r in requests])
    for plain, one_by_one in zip(*rows, strict=True):
        for a, b in zip(plain, one_by_one, strict=True):
            assert a == pytest.approx(b, abs=1e-4)


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


def test_case_34_a_prompt_whose_step_failed():
    """It is computed again, or the failure is told."""
    here, there = engine(), engine(P=30)
    asked = params(9, temperature=1, seed=2, ignore_eos=True)
    request = prefill(here, [5] * 14, asked)
    here.abort([request])
    (there_,) = hand_over(request, here, there, asked, lambda k, v: (k, v))
    run(there)
    same_as_alone(there_)
    with pytest.raises(TransferError, match=f"{request.id} holds no pages"):
        hand_over(request, here, there, asked, lambda k, v: (k, v), "fail")


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

def test_case_32_a_page_that_is_known_is_never_written():
    """The first of three answers writes the slot after the prompt, and ends; its page is known with
    that token.
    The last of the others must not write its own token there."""
    def scores(context, V):
        z = mock_scores(context, V)
        if len(context) == 3:
            z[:] = -9
            z[[END, 65]] = 9
        return z

    ended = 0
    for seed in range(12):
        e = engine(P=40, overlap=True, scores=scores)
        first, *_ = e.submit([1, 2, 3], params(4, temperature=1, n=3, seed=seed))
        run(e)
        ended += first.reason == "stop" and first.output == [END]
        (later,) = e.submit([1, 2, 3, END, 7], params(2))
        run(e)
        assert later.output == alone_by(scores, later), seed
    assert ended, "the first answer never ended at once: the test shows nothing"


def alone_by(scores, request):
    """The greedy answer by these scores."""
    tokens = list(request.prompt)
    while len(tokens) < len(request.tokens):
        tokens.append(int(scores(tokens, END + 1).argmax()))
    return tokens[len(request.prompt):]
