"""Graders of s05.
Chunks are those that s04's Scheduler picks, what is read is counted chunk by chunk, and the largest
budget is searched for.
What s05 gives beside its exercises: test_chunks.py.
"""

import math
from dataclasses import asdict, astuple
from itertools import accumulate, zip_longest

import numpy as np

from day01_roofline import (
    ACCELERATORS,
    LLAMAS,
    LlamaShape,
    Machine,
    count_bytes,
    count_flops,
    count_parameters,
    ridge,
)
from lab.judge.mistakes import mistake
from layer3_system import BlockPool, Request, SamplingParams, Scheduler, step_seconds

LLAMA = LLAMAS["Llama-3.1-8B"]
H100 = next(machine for machine in ACCELERATORS if machine.name == "NVIDIA H100 SXM")

WHY = {
    # predict_longest_gap
    "seconds": "Is that in seconds? Give milliseconds.",
    "without_prompt": "That is the gap without the prompt: the time to read the bytes of a decode "
                      "step. This step has 8208 tokens and is far beyond the ridge.",
    "token_by_token": "That is the time to compute the prompt token by token. Here one step "
                      "computes it all and reads the weights once.",
    "one_flop": "That is half of it: each weight does two FLOPs a token, a multiplication and an "
                "addition.",
    # chunks_of
    "decodes_forgotten": "Each decoding request takes one token of the same budget, so the prompt "
                         "cannot have all of it.",
    "chunk_ignored": "A chunk has at most `chunk` tokens, even if the budget leaves more.",
    "budget_ignored": "A step never has more than the budget leaves, whatever `chunk` is.",
    "decodes_in_chunk": "`chunk` limits the prompt's tokens only. The decoding requests reduce the "
                        "budget, not `chunk`.",
    "last_full": "The last chunk has only the rest of the prompt.",
    "rest_dropped": "The rest at the end is a chunk, too.",
    "empty_chunk": "If the chunks divide the prompt evenly, there is no chunk of 0 tokens.",
    "rest_joined": "A short rest needs a step of its own; it does not fit into the chunk before.",
    "rest_first": "Chunks are as large as possible from the start; the smaller one comes last.",
    "whole_pages": "Chunks need not be whole pages.",
    "equal_sizes": "The Scheduler does not balance the chunks: the first ones are as large as "
                   "possible.",
    "other_sum": "The chunks together do not have as many tokens as the prompt.",
    # tokens_reread
    "whole_prompt": "That is the prompt, which is read in one step, too. What is read beyond that?",
    "chunks": "That is the number of chunks, not of tokens.",
    "later_chunks": "That is how many chunks have others before them, not the tokens of those.",
    "last_context": "The context of the last chunk ends with the prompt: it is not a full chunk.",
    "own_full": "The last chunk is shorter: subtract its own tokens, not those of a full chunk.",
    "equal_chunks": "That many are read again in k chunks of N / k tokens. Here the last one is "
                    "shorter.",
    "mean": "That is the mean of a chunk. What do all of them read again?",
    "each_token": "Keys are read once for each chunk, not once for each token.",
    "all_reads": "That is everything that is read. A single step would read N of it anyway: "
                 "subtract N.",
    "prompt_each": "A chunk does not read the whole prompt: the tokens after it do not exist yet.",
    "own_tokens": "A chunk reads its own tokens for the first time: do not count them.",
    "last_alone": "Each chunk reads the keys of all earlier chunks, not only of the one before.",
    "last_forgotten": "The last chunk reads its context as well, even if it is short.",
    "must_divide": "This formula holds only if the chunk divides the prompt. Here the last chunk "
                   "is shorter.",
    "one_chunk_more": "If the chunk divides the prompt, no short chunk follows.",
    "short_first": "The short chunk comes last, not first.",
    "32_bits": "The number overflowed 32 bits.",
    # largest_budget
    "decodes_too_many": "The decodes alone need more time for arithmetic than for their bytes: "
                        "None.",
    "none_too_early": "Return None only if the decodes alone need more time for arithmetic.",
    "no_prompt_token": "No prompt token fits beside these decodes.",
    "one_more": "With one token more, arithmetic takes longer than memory.",
    "exact_fit": "Arithmetic may take exactly as long as memory: test for spare >= 0.",
    "decodes_as_prompt": "You counted a decode like a prompt token; its attention and its head are "
                         "FLOPs, too.",
    "all_decodes": "You counted all tokens as decodes; a prompt token costs token_flops(m).",
    "one_decode": "You subtracted the FLOPs of one decode; there are more.",
    "half_token": "A prompt token costs all of token_flops(m), not half of it.",
    "no_decodes": "You counted neither the bytes nor the FLOPs of the decodes.",
    "subtracted": "The decodes' tokens are part of the step: do not subtract them.",
    "one_less": "With one token more, arithmetic takes no longer than memory.",
    "two_bytes": "You assumed 2 bytes a number: use itemsize.",
    "without_decodes": "Count the decodes' tokens as well: they are part of the step.",
    "rounded_up": "You rounded up: with this token, arithmetic takes longer than memory.",
    "ridge": "The ridge is in FLOPs a byte. How many tokens do those FLOPs make?",
    "no_caches": "The step also reads the caches of the decoding sequences; that time counts, too.",
    "free_decodes": "The decodes need FLOPs, too: subtract them.",
    "one_cache": "Each decoding sequence reads its own cache; the weights are read once.",
    "flops_of_decode": "A prompt token costs token_flops(m), not the FLOPs of a decode.",
    # choose_chunk
    "one_of_the_gaps": "np.quantile interpolates between two gaps; do not pick one of the gaps.",
    "p90": "The limit is on the 95th percentile, not the 90th.",
    "nothing_fits": "If no chunk stays within the limit, return None.",
    "rate": "That is a rate. Return the chunk, the key of the sweep.",
    "largest": "The largest allowed chunk is not always the fastest: compare the rates.",
    "smallest": "The smallest chunk is safe, but a larger one stays within the limit and is "
                "faster.",
    "median": "The median does not notice a stall in every fifth step. The 95th percentile does.",
    "longest": "Not every gap must stay within the limit, only the 95th percentile.",
    "mean_gap": "The mean does not show rare stalls clearly. Use the 95th percentile.",
    "below_limit": "A p95 exactly at the limit is allowed.",
}


def tell(name, seen):
    """The message of a mistake, or of "", which names none: what was seen, and why it is wrong."""
    why = WHY.get(name, "")
    return mistake(name, f"{seen}\n{why}".rstrip(), why)


def first_true(cases):
    """The first name whose condition holds, of {name: condition}; "" if none does."""
    return next((name for name, holds in cases.items() if holds), "")


def whole(n):
    """Whether this is a whole number, of Python or of numpy."""
    return isinstance(n, (int, np.integer)) and not isinstance(n, bool)


# ---- predict_longest_gap


def test_predict_longest_gap(subject, truth):
    decodes = (16, 1, 2048)
    usual, want = truth(lambda: [1e3 * step_seconds(LLAMA, H100, parts)
                                 for parts in ([decodes], [decodes, (1, 8192, 8192)])])
    got = subject.predict_longest_gap()
    assert isinstance(got, (int, float)), f"predict_longest_gap: expected a number, got {got!r}"
    name = first_true({"seconds": got < 1, "without_prompt": 0.7 < got / usual < 1.3,
                       "token_by_token": got > 100 * want, "one_flop": 0.43 < got / want < 0.57})
    too = "" if name else " It is too low." if got < want else " It is too high."
    assert abs(got / want - 1) < 0.15, tell(name, f"predict_longest_gap: {got:g} ms is not right."
                                                  f"{too}")


# ---- chunks_of


def picked(N, decodes, budget, chunk):
    """The tokens of a prompt that the Scheduler picks, step by step, beside decoding requests."""
    scheduler = Scheduler(BlockPool(400), max_seqs=decodes + 1, budget=budget, chunk=chunk)
    params = SamplingParams()
    others = [Request(f"decode {i}", [1], params) for i in range(decodes)]
    for other in others:
        scheduler.add(other)
    while any(other.num_computed < 1 for other in others):
        scheduler.schedule()
    prompt = Request("prompt", [1] * N, params)
    scheduler.add(prompt)
    chunks = []
    while prompt.num_computed < N:
        for other in others:
            other.output.append(1)
        counts = scheduler.schedule()
        assert all(counts[other] == 1 for other in others), (
            f"beside a long prompt the others get {[counts[o] for o in others]}, expected 1 each")
        chunks.append(counts[prompt])
    return chunks


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
    assert isinstance(got, (list, tuple)) and all(whole(n) for n in got), \
        f"chunks_of: expected a list of whole numbers, got {got!r}"
    got = list(got)
    if got == want:
        return
    most = min(budget - decodes, chunk or budget)
    full, rest = divmod(N, most)
    mistakes = {
        "decodes_forgotten": cut(N, min(budget, chunk or budget)),
        "chunk_ignored": cut(N, budget - decodes),
        "budget_ignored": cut(N, chunk or budget - decodes),
        "decodes_in_chunk": cut(N, max(1, min(budget, chunk or budget) - decodes)),
        "last_full": [most] * -(-N // most),
        "rest_dropped": [most] * full,
        "empty_chunk": [most] * full + [rest],
        "rest_joined": [most] * (full - 1) + [most + rest],
        "rest_first": cut(N, most)[::-1],
        "whole_pages": cut(N, max(16, most // 16 * 16))}
    name = first_true({name: got == answer for name, answer in mistakes.items()} | {
        "equal_sizes": sum(got) == N and len(got) == len(want) and max(got) - min(got) <= 1,
        "other_sum": sum(got) != N})
    step, (pick, right) = next(row for row in enumerate(zip_longest(got, want))
                               if row[1][0] != row[1][1])
    raise AssertionError(tell(name, (
        f"chunks_of({N}, {decodes} decodes, budget {budget}, chunk {chunk}): step {step}: got "
        f"{'no such step' if pick is None else pick}, the Scheduler computes "
        f"{'no such step: the prompt is complete' if right is None else right}")))


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
    got = subject.tokens_reread(N, chunk)
    assert whole(got), f"tokens_reread: tokens are a whole number, got {got!r}"
    counts = cut(N, chunk)
    contexts = list(accumulate(counts))
    k = len(counts)
    full = N // chunk
    want = sum(contexts) - N
    mistakes = {                # of two with one number the later is named
        N: "whole_prompt",
        k: "chunks",
        k - 1: "later_chunks",
        chunk * k * (k + 1) // 2 - N: "last_context",
        sum(contexts) - k * chunk: "own_full",
        (k - 1) * N // 2: "equal_chunks",
        sum(contexts[:-1]) // k: "mean",
        sum(n * c for n, c in zip(counts, contexts, strict=True)): "each_token",
        sum(contexts): "all_reads",
        k * N - N: "prompt_each",
        chunk * k * (k + 1) // 2: "own_tokens",
        sum(counts[:-1]): "last_alone",
        sum(contexts[:-2]): "last_forgotten",
        N * (N - chunk) // (2 * chunk): "must_divide",
        chunk * (full + 1) * full // 2: "one_chunk_more",
        want * chunk: "each_token",
        sum(range(counts[-1], N, chunk)) if counts[-1] < chunk else None: "short_first",
        (want + 2**31) % 2**32 - 2**31: "32_bits"}
    assert got == want, tell(mistakes.get(got, ""), (
        f"tokens_reread: {N} tokens in chunks of {chunk}: got {got:,}, expected {want:,}."))


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
    shape = subject.make("day01_roofline:LlamaShape", **asdict(m))
    gpu = subject.make("day01_roofline:Machine", **asdict(machine))
    got = subject.largest_budget(shape, gpu, decodes, N, itemsize)
    what = f"largest_budget: {where}, {decodes} decodes with contexts of {N}, {itemsize} " \
           f"bytes a number: got {got!r}, expected {want!r}."
    if want is None:
        assert got is None, tell("decodes_too_many", what)
        return
    assert got is not None, tell("none_too_early", what)
    assert whole(got), f"{what}\nTokens are a whole number."
    assert got == want, tell(likely(step, decodes, itemsize, want, got), what)


def drawn_llama(rng, most):
    """A Llama of drawn sizes, tied or not."""
    L, C, G, D, F, V = rng.integers(1, most, 6).tolist()
    return LlamaShape("drawn", L, C, 2 * G, G, D, F, V, bool(rng.integers(2)))


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
        m, fits = LlamaShape(*sizes), decodes + more
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


def likely(step, decodes, itemsize, want, got):
    """The mistake that gives this budget, "" if none is known. step: of `counted`; None if only the
    bound is in question"""
    if step is None:
        return first_true({"no_prompt_token": want == decodes < got, "one_more": want < got,
                           "exact_fit": True})
    each, flops, weights, own, ridge = step
    hidden = (weights + decodes * own) * ridge
    spare = hidden - decodes * flops

    def tokens(flops_left, flops_each=each):
        return decodes + int(flops_left // flops_each)

    near = {                    # of two with one number the later is named
        int(hidden // each): "decodes_as_prompt",
        int(hidden // flops): "all_decodes",
        tokens(hidden - flops): "one_decode",
        tokens(spare, each / 2): "half_token",
        tokens(weights * ridge): "no_decodes",
        int(spare // each) - decodes: "subtracted",
        want - 1: "one_less",
        tokens(hidden * 2 / itemsize - decodes * flops): "two_bytes",
        want - decodes: "without_decodes",
        want + 1: "rounded_up",
        int(ridge): "ridge",
        tokens(weights * ridge - decodes * flops): "no_caches",
        tokens(hidden): "free_decodes",
        tokens((weights + own) * ridge - decodes * flops): "one_cache",
        tokens(spare, flops): "flops_of_decode"}
    return near.get(got, "")


# ---- choose_chunk


RARE = [0.003] * 97 + [0.9] * 3
OFTEN = [0.003] * 80 + [0.030] * 20
SWEEP = {                               # the fastest is not the largest, medians know of no stall
    8: (300.0, [0.003] * 50), 16: (500.0, [0.0031] * 100), 64: (1400.0, RARE),
    100: (1500.0, [0.0101] * 40), 128: (1450.0, [0.012] * 30), 256: (1900.0, OFTEN),
    448: (2000.0, [2 * gap if gap > 0.01 else gap for gap in OFTEN])}


def test_choose_chunk(subject):
    for limit, want in ((0.0101, 100), (0.004, 64), (0.011, 100), (0.020, 100), (0.031, 256),
                        (0.07, 448), (0.003, 64), (0.002, None)):
        choice_is(subject, want, SWEEP, limit)


P95 = {"p95": lambda gaps: np.quantile(gaps, 0.95), "median": np.median, "longest": max,
       "lower": lambda gaps: np.quantile(gaps, 0.95, method="lower"),
       "higher": lambda gaps: np.quantile(gaps, 0.95, method="higher"),
       "p90": lambda gaps: np.quantile(gaps, 0.9), "mean_gap": np.mean}


def choice_is(subject, want, sweep, limit, shown=""):
    got = subject.choose_chunk(sweep, limit)
    assert got == want, tell(other_choice(got, want, sweep, limit), (
        f"choose_chunk, at most {limit * 1e3:.9g} ms{shown}: got {got!r}, expected {want!r}."))


def other_choice(got, want, sweep, limit):
    """The mistake that makes this choice, "" if none is known."""
    within = {name: [c for c, (_, gaps) in sweep.items() if of(gaps) <= limit]
              for name, of in P95.items()}
    fastest = {name: max(chunks, key=lambda c: sweep[c][0], default=None)
               for name, chunks in within.items()}
    return first_true({
        "one_of_the_gaps": got in (fastest["lower"], fastest["higher"]),
        "p90": got == fastest["p90"],
        "nothing_fits": want is None,
        "rate": got in [rate for rate, _ in sweep.values()],
        "largest": got == max(within["p95"], default=None),
        "smallest": got == min(sweep, default=None),
        "median": got == fastest["median"],
        "longest": got == fastest["longest"],
        "mean_gap": got == fastest["mean_gap"],
        "below_limit": want is not None and P95["p95"](sweep[want][1]) == limit})

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
