"""Graders of s05. Chunks are those that s04's Scheduler picks, what is read is counted in the steps
of an engine, and the largest budget is searched for. Case 16 is one of layer 3's 34 cases."""

import json
import math
from dataclasses import asdict, astuple
from itertools import accumulate

import numpy as np
import pytest
import torch

from day01_roofline import (
    ACCELERATORS,
    LLAMAS,
    Llama,
    Machine,
    attended,
    count_bytes,
    count_flops,
    count_parameters,
    ridge,
)
from lab.judge.mocks import Watched
from layer1_kernels import kernels
from layer2_graph import load
from layer2_graph.models import SMALL
from layer3_system import (
    BlockPool,
    ByteTokenizer,
    Engine,
    MockLlama,
    Request,
    SamplingParams,
    Scheduler,
    StepLog,
    check_engine,
    chunks_of,
    on_paper,
    step_seconds,
    tokens_reread,
)
from layer3_system.bench import chunk_sizes

LLAMA = LLAMAS["Llama-3.1-8B"]
H100 = next(machine for machine in ACCELERATORS if machine.name == "NVIDIA H100 SXM")


# ---- predict_longest_gap


def test_predict_longest_gap(subject, truth):
    decodes, whole = (16, 1, 2048), (1, 8192, 8192)
    usual, want = truth(lambda: [1e3 * step_seconds(LLAMA, H100, parts)
                                 for parts in ([decodes], [decodes, whole])])
    got = subject.predict_longest_gap()
    assert isinstance(got, (int, float)), f"a prediction is a number, got {got!r}"
    near = ("seconds. The answer is asked for in milliseconds" if got < 1 else
            "what they wait without the prompt, the bytes of a decode step. But this step has "
            "8208 tokens, and is far beyond the ridge" if 0.7 < got / usual < 1.3 else
            "what it takes to compute the prompt token by token. Here it is one step, which reads "
            "the weights once" if got > 100 * want else
            "half of it: a weight does two FLOPs for each token, a multiplication and an addition"
            if 0.43 < got / want < 0.57 else
            "too low" if got < want else "too high")
    assert abs(got / want - 1) < 0.15, f"predict_longest_gap: {got:g} is {near}"


# ---- chunks_of


def picked(N, decodes, budget, chunk):
    """The tokens of a prompt that the Scheduler picks, step by step, beside decoding requests."""
    scheduler = Scheduler(BlockPool(400), max_seqs=decodes + 1, budget=budget, chunk=chunk)
    params, found = SamplingParams(), []
    others = [Request(f"decode {i}", [1], params) for i in range(decodes)]
    for other in others:
        scheduler.add(other)
    while any(other.num_computed < 1 for other in others):
        scheduler.schedule()
    prompt = Request("prompt", [1] * N, params)
    scheduler.add(prompt)
    while prompt.num_computed < N:
        for other in others:
            other.output.append(1)
        counts = scheduler.schedule()
        assert all(counts[other] == 1 for other in others)
        found.append(counts[prompt])
    return found


def cut(N, most):
    return [min(most, N - begin) for begin in range(0, N, most)]


ASKED = [
    (129, 1, 33, 64), (100, 3, 20, None), (100, 3, 20, 7), (40, 0, 16, 16), (33, 4, 16, 16),
    (5, 2, 64, None), (12, 4, 5, None), (50, 6, 32, 30), (1, 1, 2, 1), (64, 0, 64, 64)]


def test_chunks_of(subject, truth):
    picks = truth(lambda: [picked(*case) for case in ASKED])
    for case, want in zip(ASKED, picks, strict=True):
        chunks_are(subject, want, *case)


def chunks_are(subject, want, N, decodes, budget, chunk):
    got = subject.chunks_of(N, decodes, budget, chunk)
    most = min(budget - decodes, chunk or budget)
    mistakes = {
        "The decodes get their token each out of the same budget: it is not all for the prompt.":
            cut(N, min(budget, chunk or budget)),
        "A chunk has at most `chunk` tokens, even where the budget leaves more.":
            cut(N, budget - decodes),
        "Whatever `chunk` says, a step has no more than the budget leaves.":
            cut(N, chunk or budget - decodes),
        "`chunk` counts the prompt's tokens alone. The decodes' come out of the budget, not of it.":
            cut(N, max(1, min(budget, chunk or budget) - decodes)),
        "The last chunk has only what is left of the prompt.": [most] * -(-N // most),
        "What is left at the end is a chunk, too.": [most] * (N // most),
        "Where the chunks divide the prompt, nothing is left, and there is no chunk of 0.":
            [most] * (N // most) + [N % most],
        "A short rest is a step of its own: it does not fit into the chunk before.":
            [most] * (N // most - 1) + [most + N % most],
        "The first chunk is as large as it can be, and what is less comes last.":
            cut(N, most)[::-1],
        "The prompt has all its tokens in the end, in chunks that need not fill a page.":
            cut(N, max(16, most // 16 * 16)),
        "The Scheduler does not make chunks of equal size: the first ones take all they can.":
            [len(part) for part in np.array_split(range(N), -(-N // most))] if N < 10**4 else None}
    assert isinstance(got, (list, tuple)) and all(whole(n) for n in got), \
        f"chunks_of: expected a list of whole numbers, got {got!r}"
    if list(got) == want:
        return
    step = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b),
                min(len(got), len(want)))
    said = got[step] if step < len(got) else "no such step"
    right = want[step] if step < len(want) else "no such step, since all is computed"
    why = next((why for why, answer in mistakes.items() if list(got) == answer), "")
    if not why and sum(got) == N and len(got) == len(want) and max(got) - min(got) <= 1:
        why = "The Scheduler does not make chunks of equal size: the first ones take all they can."
    if not why and sum(got) != N:
        why = f"The chunks have {sum(got)} tokens together, the prompt {N}."
    raise AssertionError(
        f"chunks_of({N}, {decodes} decodes, budget {budget}, chunk {chunk}): step {step}: got "
        f"{said}, the Scheduler picks {right}\n{why}")


def whole(n):
    """Whether this is a whole number, of Python or of numpy."""
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool)


def test_chunks_of__unseen(subject, rng):
    """Small numbers, so that a chunk often divides the prompt, and is often what is left."""
    cases = [[*rng.integers(1, 500, 3), rng.integers(1, 200)] for _ in range(10)]
    cases += [[rng.integers(1, 20), rng.integers(4), rng.integers(1, 7), rng.integers(8)]
              for _ in range(300)]
    for N, decodes, more, chunk in np.array(cases).tolist():
        chunks_are(subject, cut(N, min(more, chunk or more)), N, decodes, decodes + more,
                   chunk or None)
    for N, most in ((2**15 + 1, 2**15), (2**31 + 5, 2**30), (2**40, 2**39 - 3)):
        chunks_are(subject, cut(N, most), N, 7, most + 7, None)
        chunks_are(subject, cut(N, most), N, 0, 2**41, most)


# ---- tokens_reread


def test_tokens_reread(subject):
    for case in ((100, 24), (96, 16), (7, 7), (7, 100), (1, 1), (65, 64), (50, 1), (8192, 256)):
        reread_is(subject, *case)


def reread_is(subject, N, chunk):
    counts = cut(N, chunk)
    k, contexts = len(counts), list(accumulate(counts))
    want, got = sum(contexts) - N, subject.tokens_reread(N, chunk)
    assert whole(got), f"tokens_reread: tokens are a whole number, got {got!r}"
    mistakes = {
        N: "That is the prompt, which is read in one step, too. What is read beyond that?",
        k: "That is the number of chunks, not of tokens.",
        k - 1: "That is how many chunks have others before them, not the tokens of those.",
        chunk * k * (k + 1) // 2 - N:
            "The context of the last chunk ends with the prompt: it is not a full chunk.",
        sum(contexts) - k * chunk: "The last chunk is shorter: take off its own tokens, not "
                                   "those of a full chunk.",
        (k - 1) * N // 2:
            "That many are read again in k chunks of N / k tokens. Here the last one is shorter.",
        sum(contexts[:-1]) // k: "That is the mean of a chunk. What do all of them read again?",
        sum(n * c for n, c in zip(counts, contexts, strict=True)):
            "Keys are read once a chunk, not once for each of its tokens.",
        sum(contexts): "This counts all that is read. One step would read N of them anyway.",
        k * N - N: "A chunk does not read the whole prompt: what comes after it is not there yet.",
        chunk * k * (k + 1) // 2: "A chunk's own tokens are read for the first time.",
        sum(cut(N, chunk)[:-1]): "Every chunk reads those of all earlier ones, not the last alone.",
        sum(contexts[:-2]): "The last chunk reads its context, too, be it a full chunk or not.",
        N * (N - chunk) // (2 * chunk):
            "This formula holds where the chunk divides the prompt. Here the last one is shorter.",
        chunk * (N // chunk + 1) * (N // chunk) // 2:
            "Where the chunk divides the prompt, no chunk follows the last full one.",
        want * chunk: "Keys are read once a chunk, not once for each of its tokens.",
        sum(range(counts[-1], N, chunk)) if counts[-1] < chunk else None:
            "The short chunk is the last one, not the first.",
        (want + 2**31) % 2**32 - 2**31: "So many do not fit into 32 bits."}
    assert got == want, (
        f"tokens_reread: {N} tokens in chunks of {chunk}: got {got:,}, expected {want:,}.\n"
        f"{mistakes.get(got, '')}")


def test_tokens_reread__unseen(subject, rng):
    """Small numbers, so that the chunk often divides the prompt, or is all of it."""
    for N, chunk in [*rng.integers(1, 2000, (10, 2)).tolist(),
                     *rng.integers(1, 13, (150, 2)).tolist(),
                     (2**17 + 1, 2**6), (2**15, 2**15 - 1), (2**33 + 7, 2**25 + 1)]:
        reread_is(subject, N, chunk)


# ---- largest_budget


def arithmetic(m, decodes, N, T):
    """FLOPs of a step of T tokens, of which some decode."""
    parts = count_parameters(m)
    layers = sum(parts[name] for name in ("qkv", "out", "gate_up", "down"))
    own = sum(count_flops(m, decodes, 1, N).values()) if decodes else 0
    return own + (T - decodes) * 2 * layers


def searched(m, machine, decodes, N, itemsize):
    """The largest T whose arithmetic takes no longer than the step's bytes, by bisection."""
    moved = list(count_bytes(m, max(decodes, 1), 1, N, itemsize).values())
    moved = sum(w for w, _, _ in moved) + (sum(a + c for _, a, c in moved) if decodes else 0)

    def fits(T):
        return arithmetic(m, decodes, N, T) / machine.peak <= moved / machine.bandwidth

    if not fits(decodes):
        return None
    low, high = decodes, 1 << 24
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


SERVED = [
    ("Llama-3.1-8B", "NVIDIA H100 SXM", 16, 2048, 2), ("Llama-3.1-8B", "NVIDIA H200 SXM", 0, 1, 2),
    ("Llama-3.2-1B", "NVIDIA L4", 64, 8192, 2), ("Llama-3.1-70B", "NVIDIA B200", 7, 500, 1),
    ("SmolLM-135M", "NVIDIA T4", 3, 100, 4), ("Llama-3.1-8B", "NVIDIA H100 SXM", 400, 16, 2)]


def test_largest_budget(subject, truth):
    cases = [(LLAMAS[name], next(a for a in ACCELERATORS if a.name == gpu), *rest)
             for name, gpu, *rest in SERVED]
    rows = truth(lambda: [[searched(*case), counted(case[0], case[1], *case[3:])]
                          for case in cases])
    for (name, gpu, *_), case, (want, step) in zip(SERVED, cases, rows, strict=True):
        budget_is(subject, want, step, f"{name} on {gpu}", *case)


def budget_is(subject, want, step, where, m, machine, decodes, N, itemsize):
    got = subject.largest_budget(subject.make("day01_roofline:Llama", **asdict(m)), subject.make(
        "day01_roofline:Machine", **asdict(machine)), decodes, N, itemsize)
    what = f"largest_budget: {where}, {decodes} decodes with contexts of {N}, {itemsize} " \
           f"bytes a number: got {got!r}, expected {want!r}."
    if want is None:
        assert got is None, f"{what}\nThe decodes alone have more arithmetic than their bytes hide."
        return
    assert got is not None, f"{what}\nThe arithmetic of the decodes takes no longer than " \
        f"their bytes: None is for those where it does."
    assert whole(got), f"{what}\nTokens are a whole number."
    if got != want:
        raise AssertionError(f"{what}\n{explained(step, decodes, itemsize, want, got)}")


def drawn_llama(rng, most):
    """A Llama of drawn sizes, tied or not."""
    L, C, G, D, F, V = rng.integers(1, most, 6).tolist()
    return Llama("drawn", L, C, 2 * G, G, D, F, V, bool(rng.integers(2)))


def test_largest_budget__unseen(subject, truth, rng):
    cases = []
    for most in (5000, 300) * 20:
        machine = ACCELERATORS[rng.integers(len(ACCELERATORS))]
        ends = rng.choice([3, 400]), rng.choice([4, 9000, 2**17])
        decodes, N = rng.integers((0, 1), ends).tolist()
        cases.append((drawn_llama(rng, most), machine, decodes, N, int(2 ** rng.integers(4))))
    rows = truth(lambda: [[budget(*case), counted(case[0], case[1], *case[3:])] for case in cases])
    for case, (want, step) in zip(cases, rows, strict=True):
        budget_is(subject, want, step, f"{case[0]} on {case[1]}", *case)


def budget(m, machine, decodes, N, itemsize):
    """The largest budget by the course's own counts, in whole numbers as far as they go."""
    each, flops, weights, own, ridge = counted(m, machine, N, itemsize)
    spare = (weights + decodes * own) * ridge - decodes * flops
    return decodes + math.floor(spare / each) if spare >= 0 else None


def exact(rng, more):
    """A step whose arithmetic takes exactly as long as its bytes with this many tokens beside the
    decodes: ([sizes of a Llama], peak, bandwidth, decodes, N), all of it exact in floats."""
    while True:
        m, decodes, N = drawn_llama(rng, 40), int(rng.integers(1, 5)), int(rng.integers(1, 9))
        each, flops, weights, own, _ = counted(m, H100, N, 2)
        moved, peak = weights + decodes * own, decodes * flops + more * each
        if moved * (peak / moved) == peak:
            return list(astuple(m)), float(peak), float(moved), decodes, N


def test_largest_budget__the_bound(subject, truth, rng):
    """Arithmetic that takes exactly as long as the bytes takes no longer; a slower machine, and the
    last token does not fit."""
    for more in (0, 0, 1, 2, 5, 31):
        sizes, peak, bandwidth, decodes, N = truth(lambda more=more: exact(rng, more))
        m, fits = Llama(*sizes), decodes + more
        for slower, want, words in ((0, fits, "exactly as long as"),
                                    (1, fits - 1 if more else None, "a little longer than")):
            machine = Machine("drawn", peak - slower, bandwidth, 0.0)
            budget_is(subject, want, None, f"{m} on {machine}, whose arithmetic takes {words} the "
                      f"bytes with {fits} tokens", m, machine, decodes, N, 2)


def counted(m, machine, N, itemsize):
    """Of a step: FLOPs of a prompt's token and of a decode, bytes of all weights and of a decode's
    own, FLOPs a byte of the machine's ridge."""
    each = 2 * sum(count_parameters(m)[name] for name in ("qkv", "out", "gate_up", "down"))
    moved = count_bytes(m, 1, 1, N, itemsize).values()
    return (each, sum(count_flops(m, 1, 1, N).values()), sum(w for w, _, _ in moved),
            sum(a + c for _, a, c in moved), ridge(machine))


def explained(step, decodes, itemsize, want, got):
    """What may have gone wrong where the largest budget is not the one that was found. step: of
    `counted`, None where only the bound is in question"""
    if step is None:
        return ("Not one token of a prompt fits beside these decodes." if want == decodes < got else
                "One token more takes longer than the bytes." if want < got else
                "A step whose arithmetic takes exactly as long as its bytes takes no longer.")
    each, flops, weights, own, ridge = step
    hidden = (weights + decodes * own) * ridge
    sixteen = hidden * 2 / itemsize
    near = {
        int(hidden // each):
            "A decode counts as a token of the prompt: its attention and its head are FLOPs, too.",
        int(hidden // flops): "All tokens count as decodes: one of the prompt is token_flops(m).",
        decodes + int((hidden - flops) // each):
            "The FLOPs of one decode are counted, and there are more.",
        decodes + int((hidden - decodes * flops) // (each / 2)):
            "A token of the prompt takes token_flops(m), all of it.",
        decodes + int((weights * ridge) // each):
            "Of the decodes neither the bytes nor the FLOPs are counted.",
        int((hidden - decodes * flops) // each) - decodes:
            "The decodes' tokens are tokens of the step, too, and are not taken off.",
        want - 1: "One token more takes no longer than the bytes.",
        decodes + int((sixteen - decodes * flops) // each):
            f"16-bit numbers are counted, and here each has {itemsize} bytes.",
        want - decodes: "The decodes' tokens are tokens of the step, too.",
        want + 1: "It was rounded up: with this token, arithmetic takes longer.",
        int(ridge): "The ridge is FLOPs a byte. How many tokens are they?",
        decodes + int((weights * ridge - decodes * flops) // each):
            "A step reads the caches of the decodes as well, and has time meanwhile.",
        decodes + int(hidden // each):
            "The decodes do arithmetic themselves, which takes a part of that time.",
        decodes + int(((weights + own) * ridge - decodes * flops) // each):
            "Each decode reads a cache of its own; the weights are read once.",
        decodes + int((hidden - decodes * flops) // flops):
            "A token of the prompt counts token_flops(m), not what a decode does."}
    return near.get(got, "")


# ---- choose_chunk


RARE, OFTEN = [0.003] * 97 + [0.9] * 3, [0.003] * 80 + [0.030] * 20
SWEEP = {                               # the fastest is not the largest, medians know of no stall
    8: (300.0, [0.003] * 50), 16: (500.0, [0.0031] * 100), 64: (1400.0, RARE),
    100: (1500.0, [0.0101] * 40), 128: (1450.0, [0.012] * 30), 256: (1900.0, OFTEN),
    448: (2000.0, [2 * gap if gap > 0.01 else gap for gap in OFTEN])}


def test_choose_chunk(subject):
    for limit, want in ((0.0101, 100), (0.004, 64), (0.011, 100), (0.020, 100), (0.031, 256),
                        (0.07, 448), (0.003, 64), (0.002, None)):
        choice_is(subject, want, SWEEP, limit)


def choice_is(subject, want, sweep, limit, shown=""):
    got = subject.choose_chunk(sweep, limit)
    if got == want:
        return
    within = {name: [c for c, (_, gaps) in sweep.items() if of(gaps) <= limit] for name, of in {
        "p95": lambda gaps: np.quantile(gaps, 0.95),
        "lower": lambda gaps: np.quantile(gaps, 0.95, method="lower"),
        "higher": lambda gaps: np.quantile(gaps, 0.95, method="higher"),
        "p90": lambda gaps: np.quantile(gaps, 0.9), "median": np.median, "longest": max,
        "mean": np.mean}.items()}
    fastest = {name: max(some, key=lambda c: sweep[c][0], default=None)
               for name, some in within.items()}
    rates = [rate for rate, _ in sweep.values()]
    why = ("np.quantile's 95th percentile may lie between two gaps; this one is a gap."
           if got in (fastest["lower"], fastest["higher"]) else
           "It is the 95th percentile that is to stay within, not the 90th."
           if got == fastest["p90"] else
           "Where no chunk stays within the limit there is none to choose: None." if want is None
           else "This is a rate. The chunk is asked for, the key of the sweep." if got in rates else
           "The largest within the limit is not always the fastest; look at the throughput."
           if got == max(within["p95"], default=None) else
           "The smallest is safe, but a larger one stays within the limit, and does more."
           if got == min(sweep, default=None) else
           "The median does not see a stall in every fifth step. The 95th percentile does."
           if got == fastest["median"] else
           "One gap in a hundred may be longer: the 95th percentile is to stay within, not all."
           if got == fastest["longest"] else
           "The mean hides what is rare, or is spoilt by it. Take the 95th percentile."
           if got == fastest["mean"] else
           "There is one whose gaps are exactly at the limit, which is within it."
           if np.quantile(sweep[want][1], 0.95) == limit else "")
    raise AssertionError(f"choose_chunk, at most {limit * 1e3:.9g} ms{shown}: got {got!r}, "
                         f"expected {want!r}.\n{why}")


def test_choose_chunk__unseen(subject, rng):
    """Few gaps of few sizes, chunks in any order; limits at, just below and just above one of the
    percentiles, so that many are exactly at the limit."""
    for count in (6, *rng.integers(0, 6, 120).tolist()):
        chunk_sizes = rng.permutation([8, 16, 64, 100, 128, 256, 448])[:count].tolist()
        rates = rng.permutation(np.arange(10.0, 17))
        sweep = {chunk: (float(rate), rng.integers(1, 9, int(rng.integers(1, 50))) / 64)
                 for chunk, rate in zip(chunk_sizes, rates, strict=False)}
        sweep = {chunk: (rate, gaps.tolist()) for chunk, (rate, gaps) in sweep.items()}
        at = [float(np.quantile(gaps, 0.95)) for _, gaps in sweep.values()] or [0.1]
        limit = at[rng.integers(len(at))] + float(rng.choice([0, 0, -1e-6, 1e-6, 0.5, -1]))
        within = [chunk for chunk, p95 in zip(sweep, at, strict=False) if p95 <= limit]
        want = max(within, key=lambda chunk: sweep[chunk][0], default=None)
        choice_is(subject, want, sweep, limit, f", {{chunk: (rate, gaps)}} {sweep}")


# ---- case 16: chunks change when, never what


PROMPTS = [list(range(65, 65 + n)) for n in (1, 15, 16, 17, 50, 33)]


def finish(engine, requests):
    while engine.busy:
        engine.step()
        check_engine(engine)
    return [request.output for request in requests]


def with_scheduler(model, tokenizer, chunk, budget=256, sample=None):
    pool = BlockPool(160)
    return Engine(model, tokenizer, pool, Scheduler(pool, 8, budget, chunk), sample)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 15, 16, 17, 49, 50, 51])
@pytest.mark.parametrize("budget", [8, 24, 256])
def test_any_chunk_gives_the_same_tokens(chunk, budget):
    """Case 16, and of case 23 the chunked part: greedy and seeded requests, on the mock."""
    def served(chunk, budget):
        engine = with_scheduler(MockLlama(room=128), ByteTokenizer(), chunk, budget)
        requests = [engine.submit(prompt, SamplingParams(
            max_tokens=9, ignore_eos=True, temperature=i % 2, seed=i))[0]
            for i, prompt in enumerate(PROMPTS)]
        return finish(engine, requests)

    assert served(chunk, budget) == served(None, 256)


@pytest.fixture(scope="module")
def small():
    model = load(SMALL, dtype=torch.float32)
    return model, chunk_sizes.texts(chunk_sizes.small_model()[1], 90, 3)


@pytest.mark.parametrize("chunk", [5, 16, 33, 64])
def test_any_chunk_gives_the_same_tokens__of_the_small_llama(small, chunk):
    """Case 16, on a real model: two prompts come while a third is in its answer."""
    model, texts = small

    def served(chunk):
        engine = with_scheduler(model, ByteTokenizer(), chunk)
        params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
        requests = engine.submit(texts[0][:20], params)
        while not requests[0].output:
            engine.step()
        for prompt in texts[1:]:
            requests += engine.submit(prompt, params)
        return finish(engine, requests)

    assert served(chunk) == served(None)


@pytest.mark.parametrize("N, chunk", [(50, 16), (48, 16), (33, 8), (17, 1), (20, 64)])
def test_a_partial_chunk_samples_nothing(N, chunk):
    """Case 16: no token, and no row for the sampler, before all of the prompt is computed."""
    sample = Watched(kernels("torch").sample)
    engine = with_scheduler(MockLlama(room=128), ByteTokenizer(), chunk, sample=sample)
    (other,) = engine.submit([1, 2, 3], SamplingParams(max_tokens=80, ignore_eos=True))
    while not other.output:
        engine.step()
    (prompt,) = engine.submit(list(range(N)), SamplingParams(max_tokens=2, ignore_eos=True))
    counts = chunks_of(N, 1, 256, chunk)
    for number in range(len(counts)):
        written = len(other.output)
        outputs = engine.step()
        assert engine.counts[prompt] == counts[number]
        assert len(other.output) == written + 1, "each decode gets its token in every step"
        last = number == len(counts) - 1
        assert len(prompt.output) == last
        assert [o.request for o in outputs] == [other, prompt] if last else [other]
        assert len(sample.calls[-1][0]) == 1 + last, "rows that were sampled"
        check_engine(engine)


def test_two_chunks_coexist():
    """Case 16: two prompts share a step, each with a part of it, and a third waits its turn."""
    engine = with_scheduler(MockLlama(room=128), ByteTokenizer(), chunk=8, budget=20)
    a, b, c = (engine.submit([n] * n, SamplingParams(max_tokens=1))[0] for n in (20, 30, 9))
    seen = []
    while engine.busy:
        engine.step()
        check_engine(engine)
        seen.append([engine.counts.get(request, 0) for request in (a, b, c)])
    assert seen == [[8, 8, 4], [8, 8, 4], [4, 8, 1], [0, 6, 0]]
    assert all(len(request.output) == 1 for request in (a, b, c))


# ---- what chunks cost, counted


@pytest.mark.parametrize("N, chunk", [(100, 30), (96, 16), (65, 64), (50, 1), (90, 90)])
def test_what_an_engine_reads_is_what_the_formulas_say(N, chunk):
    model = StepLog(MockLlama(room=128))
    engine = with_scheduler(model, ByteTokenizer(), chunk)
    engine.submit([7] * N, SamplingParams(max_tokens=1))
    finish(engine, [])
    new = [noted.new for noted in model.steps]
    assert new == [[n] for n in chunks_of(N, 0, 256, chunk)]
    assert sum(sum(noted.contexts) for noted in model.steps) == N + tokens_reread(N, chunk)
    pairs = sum(attended(T, context) for noted in model.steps
                for T, context in zip(noted.new, noted.contexts, strict=True))
    assert pairs == attended(N, N), "chunks add no FLOPs of attention"


def test_a_step_on_paper_is_day_1s_where_it_has_one_part():
    for T, N in ((1, 2048), (8192, 8192)):
        flops = sum(count_flops(LLAMA, 3, T, N).values())
        moved = sum(map(sum, count_bytes(LLAMA, 3, T, N, 2).values()))
        want = max(flops / H100.peak, moved / H100.bandwidth)
        assert step_seconds(LLAMA, H100, [(3, T, N)]) == pytest.approx(want)


def test_parts_of_a_step_share_the_weights_alone():
    flat = Machine("memory alone", 1e30, 1e9, 0)
    apart = sum(step_seconds(LLAMA, flat, [part]) for part in ((4, 1, 100), (1, 32, 64)))
    weights = sum(w for w, _, _ in count_bytes(LLAMA, 1, 1, 1, 2).values())
    together = step_seconds(LLAMA, flat, [(4, 1, 100), (1, 32, 64)])
    assert together == pytest.approx(apart - weights / 1e9)
    assert on_paper(LLAMA, flat, [32, 32], 4, 100)[1] == pytest.approx(together)


# ---- the record


def test_the_record_counts_what_its_schedule_does():
    record = json.loads(chunk_sizes.RECORD.read_text("utf-8"))
    assert record["long"] == chunk_sizes.LONG and record["rounds"] >= 5
    for part, decoders in (("beside", record["decoders"]), ("alone", 0)):
        assert [int(chunk) for chunk in record[part]] == list(chunk_sizes.CHUNKS)
        for chunk, row in record[part].items():
            N, prompts, answer = (record[name] for name in ("long", "prompts", "answer"))
            steps = prompts * (len(cut(N, int(chunk))) + answer - 1)
            assert row["steps"] == steps
            assert row["tokens"] == prompts * (N + answer - 1) + decoders * steps
            assert row["written"] == prompts * answer + decoders * steps
            assert row["reread"] == prompts * tokens_reread(N, int(chunk))
            assert len(row["gaps"]) == (steps if decoders else 0)
            assert row["seconds"] > 0 and row["first"] > 0


def test_a_sweep_gives_every_chunk_the_same_tokens():
    """Case 16 again, in the runs that are measured."""
    found = chunk_sizes.sweep(rounds=1, chunks=(64, 448))
    assert found[64][0].output == found[448][0].output
    rows = {chunk: chunk_sizes.summary(runs) for chunk, runs in found.items()}
    assert all(point.p95 <= point.longest for point in chunk_sizes.points(rows).values())
