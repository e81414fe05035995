"""Graders of g02: the cache against attention by the book, its counts against day 1's."""

from dataclasses import asdict
from numbers import Integral

import numpy as np
import pytest
import torch

from day01_roofline import LLAMAS, count_bytes, count_flops, count_parameters, kv_bytes_per_token
from lab.judge.adversarial import VALUES, WORDS
from lab.judge.mistakes import mistake, named, raises
from layer1_kernels import kernels
from layer2_graph import (
    ContiguousCache,
    Launches,
    PagedCache,
    Work,
    generate_anew,
    generate_on,
    greedy,
)
from layer2_graph.testing.random_llama import random_llama
from tests.layer2_graph.oracle_g02_kv_cache import Attention, wrong_lengths, wrong_shares

# ---- predict_gain


def test_predict_gain(subject, truth):
    m, N, peak, bandwidth = LLAMAS["Llama-3.1-8B"], 2048, 989e12, 3.35e12

    def step(T):
        flops = sum(count_flops(m, 1, T, N).values())
        return flops, sum(map(sum, count_bytes(m, 1, T, N, 2).values()))

    (flops, moved), (less, fewer) = truth(lambda: [step(N), step(1)])
    want = max(flops / peak, moved / bandwidth) / max(less / peak, fewer / bandwidth)
    got = subject.predict_gain()
    assert isinstance(got, (int, float)), f"predict_gain: expected a number, got {got!r}"

    def like(value, share=0.15):
        return abs(got / value - 1) < share

    of_a_step = ("; a step takes its FLOPs over the peak or its bytes over the bandwidth, "
                 "whichever is longer; the gain is one time divided by the other")
    name, near = (
        ("time", "about the time of the step without a cache in ms or s; divide it by that of the "
                 "step with one") if min(abs(got * unit / (flops / peak) - 1)
                                         for unit in (1, 1e-3)) < 0.15 else
        ("upside_down", "upside down: the step without a cache takes longer")
        if 1e-5 < got < 0.9 else
        ("tera", "much too small: is a factor of 10¹² missing? TFLOP/s and TB/s both have it")
        if got < 1e-5 else
        ("no_gain", "no gain at all; but without a cache the step is above the ridge, so it takes "
                    "the time of its FLOPs") if got < 1.1 else
        ("of_bytes", f"the ratio of the bytes; but without a cache the {flops / 1e12:.0f} TFLOP "
                     f"take longer than the bytes") if like(moved / fewer) else
        ("of_flops", "the ratio of the FLOPs; but with a cache the step waits for memory, not for "
                     "arithmetic") if 0.7 < got / (flops / less) < 1.4 else
        ("the_ridge", "the ridge, the FLOPs a byte at which both roofs meet; how far above it is "
                      "the step without a cache?") if like(peak / bandwidth) else
        ("times_ridge", "N times the ridge; a step of N FLOPs a byte is above the ridge by a "
                        "quotient") if like(N * peak / bandwidth) else
        ("half", "too low, as when a number has 4 bytes, or a weight takes one FLOP; both have "
                 "2") if like(want / 2, 0.08) else
        ("double", "too high, as when a number has one byte, or a weight takes 4 FLOPs; both have "
                   "2") if like(2 * want, 0.08) else
        ("other_time", "about the time of the step with a cache in ms; how much longer does the "
                       "one without take?") if like(1000 * fewer / bandwidth, 0.05) else
        ("per_cent", "too high: is it in per cent? The gain is a factor") if
        like(100 * want, 0.05) else
        ("too_low", f"too low{of_a_step}") if got < want else ("too_high", f"too high{of_a_step}"))
    assert like(want), mistake(name, f"predict_gain: predicted {got:g}, which is {near}", near)


# ---- places


@pytest.mark.parametrize("starts, counts, room", [
    ([6, 0, 7], [1, 5, 3], 11), ([0, 0], [3, 3], 3), ([4, 2, 5], [1, 0, 1], 9), ([4, 4], [0, 1], 9),
    ([6], [3], 20)])
def test_places(subject, agree, starts, counts, room):
    judge_places(subject, agree, starts, counts, room)


def judge_places(subject, agree, starts, counts, room, what=""):
    """Positions and slots of these sequences, in int64 as the text says."""
    of = f"{what}starts {starts}, counts {counts}"
    tokens = [(b, i) for b, n in enumerate(counts) for i in range(n)]
    got = subject.places(*(torch.tensor(a, dtype=torch.int64) for a in (starts, counts)), room)
    assert isinstance(got, (tuple, list)) and len(got) == 2, mistake("no_pair", (
        f"places, {of}: got {type(got).__name__}, expected a pair, positions and slots"))
    at = lambda i: f"new token {tokens[i[0]][1]} of sequence {tokens[i[0]][0]}"     # noqa: E731
    owner, i = np.array(tokens, dtype=np.int64).reshape(-1, 2).T
    start, count = (np.array(a, dtype=np.int64)[owner] for a in (starts, counts))
    want, slots = start + i, owner * room + start + i
    for name, part in zip(("positions", "slots"), got, strict=True):
        shape = tuple(np.shape(part))
        assert shape == (len(tokens),), any_of(
            shape, wrong_lengths(np.array(starts), np.array(counts)),
            f"{name} for {of}: got the shape {shape}, expected ({len(tokens)},).")
    # sequences are numbered, and those without a new token get no number
    dense = np.unique(owner, return_inverse=True)[1].reshape(-1)
    other = np.array(starts, dtype=np.int64)[dense] + i
    agree(got[0], want, "exact", f"positions for {of}", at=at, mistakes={
        "starts_left_out": ("starts is left out: a sequence's first new token comes after those "
                            "that it has", i),
        "across_sequences": ("positions count on across sequences; each sequence counts for itself",
                             start + np.arange(len(tokens))),
        "from_1": ("counting starts at 1", want + 1),
        "after_the_new": ("counting begins after the new tokens, not after those that a sequence "
                          "has", want + count),
        "place_of_first": ("all new tokens of a sequence get the position of its first", start),
        "own_taken_off": ("a sequence's own new tokens are subtracted too, not only those before "
                          "it", want - count),
        "other_order": ("positions and slots are returned in the other order", slots),
        "skips_idle": ("a sequence without a new token is not numbered, so that the next one is "
                       "taken for it", other)})
    narrow = (owner * room).astype(np.int32).astype(np.int64)
    agree(got[1], slots, "exact", f"slots for {of}, room for {room}", at=at, mistakes={
        "no_room": ("b · room is left out: all sequences are written over sequence 0", want),
        "first_slots": ("a sequence's new tokens get its first slots, over the tokens that it has",
                        owner * room + i),
        "one_slot": ("all new tokens of a sequence get its first slot", owner * room),
        "b_alone": ("the first slot of sequence b is taken to be b; it is b · room", owner + want),
        "next_sequence": ("sequence b gets the slots of sequence b + 1; those of sequence 0 begin "
                          "at 0", slots + room),
        "times_sequences": ("sequences are B slots apart, not `room`", owner * len(counts) + want),
        "32_bits": ("owner · room is computed in 32 bits", narrow + want),
        "skips_idle": ("a sequence without a new token is not numbered, so that the next one gets "
                       "its slots", dense * room + want),
        "no_gaps": ("the sequences follow each other without gaps; they start `room` slots apart",
                    np.array([sum(starts[:b]) + sum(counts[:b]) for b, _ in tokens]) + want),
        "in_order": ("the slots are 0, 1, 2, …; a slot is b · room + position",
                     np.arange(len(tokens)))})
    for name, part in zip(("positions", "slots"), got, strict=True):
        kind = part.dtype if torch.is_tensor(part) else type(part).__name__
        assert torch.is_tensor(part) and (part.dtype == torch.int64 or not tokens), mistake(
            "not_int64", f"places, {of}: {name} are {kind}, expected a tensor of int64",
            "expected a tensor of int64")


PLACES = {
    "no sequence gets a token": ([3, 4], [0, 0], 9),
    "the first sequence gets no token": ([2, 0], [0, 3], 5), "two in the middle get none": (
        [2, 0, 4, 1], [1, 0, 0, 2], 6), "one slot a sequence": ([0, 0, 0], [1, 0, 1], 1),
    "one new token late": ([40_000], [1], 40_001), "a sequence of 17 beside one of 15": (
        [0, 1], [17, 15], 33), "slots past 2^31": ([2**30, 5, 7], [2, 1, 3], 2**31 + 1)}


def test_places__hard(subject, agree, rng):
    """Ends with small random batches, where many sequences get no token."""
    for what, case in PLACES.items():
        judge_places(subject, agree, *case, f"{what}: ")
    for _ in range(100):
        starts, counts = rng.integers(0, 4, (2, rng.integers(1, 5))).tolist()
        judge_places(subject, agree, starts, counts, 6 + int(rng.integers(3)))


def test_places__unseen(unseen, rng):
    starts, counts = torch.from_numpy(rng.integers(0, 100, (2, 7)))
    unseen("places", starts, counts, 200, precision="exact",
           shown=f"starts {starts.tolist()}, counts {counts.tolist()}")


# ---- attend_contiguous


class Given(Attention):
    """A batch of sequences in a cache whose empty slots hold rubbish."""

    D, scale = 16, 0.3

    def __init__(self, subject, rng, batch, H=4, G=2, room=12):
        self.batch, self.H, self.G, self.room = batch, H, G, room
        self.each = [(b, T, N) for first, end, T, N in batch for b in range(first, end)]
        self.q = rng.standard_normal((sum(T for _, T, _ in self.each), self.H, self.D))
        self.k, self.v = rng.standard_normal((2, len(self.each), self.room, self.G, self.D))
        for b, _, N in self.each:
            self.k[b, N:], self.v[b, N:] = 3.0, 100.0
        table = subject.make("layer1_kernels:kernels", "torch")
        self.flash = subject.make("lab.judge.mocks:Watched", table.flash_attention)
        self.ops = subject.make("types:SimpleNamespace", flash_attention=self.flash)

    def run(self, subject, apart="", dtype=torch.float64):
        """apart: which of q, keys and values have another layout, heads before tokens."""
        before = [torch.from_numpy(getattr(self, name)).to(dtype) for name in "qkv"]
        arrays = [a.transpose(-3, -2).contiguous().transpose(-3, -2) if name in apart else a.clone()
                  for name, a in zip("qkv", before, strict=True)]
        runs = [subject.make("layer2_graph.g02_kv_cache:SequenceRun", *run) for run in self.batch]
        batch = subject.make("collections:UserList", runs)      # stays there: a change is seen
        got = subject.attend_contiguous(*arrays, batch, self.ops, self.scale)
        for name, a, b in zip(("q", "keys", "values"), arrays, before, strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num()), mistake("input_changed", (
                f"attend_contiguous changes its argument {name}, which is used again after it"))
        assert len([*batch]) == len(runs), mistake("batch_changed", (
            "attend_contiguous changes its argument batch: the next layer gets the same list"))
        return got


BATCHES = {
    "decoding together": [(0, 3, 1, 7)],
    "prompts of one length": [(0, 2, 4, 4)],
    "three chunks, then a shorter one": [(0, 3, 4, 9), (3, 4, 2, 8)],
    "a decode, two chunks, a prompt": [(0, 1, 1, 9), (1, 3, 3, 8), (3, 4, 5, 5)],
    "full room": [(0, 1, 2, 12), (1, 2, 1, 12)],
}


@pytest.mark.parametrize("name", BATCHES)
def test_attend_contiguous(subject, agree, rng, name):
    given = Given(subject, rng, BATCHES[name])
    judge_attention(agree, given, subject, name, known=given.wrong_outs())


def of_tokens(error):
    """Whether an exception says that rows do not suffice for (B, T)."""
    text = getattr(error, "text", "")
    return "multiply up" in text or "invalid for input" in text


def computed(given, subject, apart, what):
    """The result of a call; where it raises, the arguments of flash_attention may say why."""
    before = len(given.flash.calls)
    try:
        with named("rows_of_sequences", "The rows of q are tokens: a run has (end - first) · T of "
                   "them, one sequence after another; first and end count sequences.", of_tokens), \
                named("first_token_left_out", "No run was computed: a run of one token is a run "
                      "like any other.", lambda error: "non-empty list" in str(error)):
            return given.run(subject, apart)
    except AssertionError:
        raise
    except Exception:
        calls = given.flash.calls[before:]
        runs = [run for run in given.batch if run[2]]
        if calls and len(calls) <= len(runs):
            judge_shapes(given, calls[-1], runs[len(calls) - 1], what)
        raise


def judge_shapes(given, call, run, what):
    """The shapes that flash_attention is given for a run."""
    first, end, T, N = run
    B, D = end - first, given.D
    for name, array, want in zip(("q", "k", "v"), call, (
            (B, T, given.H, D), (B, N, given.G, D), (B, N, given.G, D)), strict=False):
        got = tuple(np.shape(array))
        before = name != "q" and len(got) and got[0] == end != B
        assert got == want, mistake("sequences_before" if before else f"shape_of_{name}", (
            f"attend_contiguous, {what}: flash_attention got {name} {got} for the run of first = "
            f"{first}, end = {end}, T = {T}, N = {N}; expected {want}" + (
                ". The sequences before a run are taken with it: its own begin at `first`"
                if before else "")), "")


def judge_attention(agree, given, subject, what, apart="", known=None):
    """known: {id: (what went wrong, the result)}"""
    before = len(given.flash.calls)
    got = computed(given, subject, apart, what)
    kind = "nothing (None)" if got is None else f"a {type(got).__name__}"
    assert torch.is_tensor(got), mistake("no_tensor", (
        f"attend_contiguous, {what}: got {kind}, expected a tensor (T, H, D): torch.cat joins the "
        f"rows of the runs"), "")
    (T, H, D), shape, run = given.q.shape, tuple(got.shape), given.batch[0]
    assert len(shape) == 3, any_of(shape, {
        "stacked": ((len(given.batch), T, H, D),
                    "torch.stack makes a new axis; torch.cat joins the rows of the runs."),
        "not_flattened": ((run[1] - run[0], run[2], H, D),
                          "A run's result is (B, T, H, D); its rows are (B · T, H, D)."),
        "heads_flattened": ((T, H * D), "Heads are one axis with D; llama_block does that later."),
        "rows_and_heads": ((T * H, D), "Heads are one axis with the rows; each row has H of them."),
        "lse": ((T, H), "lse, the second result of flash_attention, has this shape."),
    }, f"attend_contiguous, {what}: got the shape {shape}, expected {given.q.shape}.")
    first, end, T, _ = given.batch[0]
    rows = (end - first) * T
    assert shape[0] != rows or rows == len(given.q), mistake("first_run_alone", (
        f"attend_contiguous, {what}: got {rows} rows, expected {len(given.q)}: only the first run "
        f"is computed"), "only the first run is computed")
    calls = given.flash.calls[before:]
    for call in calls:
        assert not (len(call) == 5 and isinstance(call[4], bool)), mistake("arguments_swapped", (
            f"attend_contiguous, {what}: flash_attention got causal = {call[3]!r} and scale = "
            f"{call[4]!r}: the order is q, k, v, causal, scale"), "")
    agree(got, given.out(), "float64", f"attend_contiguous, {what}",
          at=lambda i: f"row {i[0]} of q, head {i[1]}, number {i[2]}", mistakes=known)
    assert calls, "attend_contiguous: ops.flash_attention was never called"
    heads = calls[0][1].shape[2]
    assert heads == given.G, mistake("heads_repeated", (
        f"attend_contiguous, {what}: flash_attention got k of {heads} heads, expected {given.G}: "
        f"it finds the head of a query itself, and to repeat heads is to copy the cache"), "")
    assert len(calls) <= len(given.batch), mistake("call_a_sequence", (
        f"attend_contiguous, {what}: {len(calls)} calls of ops.flash_attention, expected "
        f"{len(given.batch)}: one call takes all sequences of a run"), "")


HARD = {
    "one head": {"batch": [(0, 2, 3, 5)], "H": 1, "G": 1},
    "a key head for each query head": {"batch": [(0, 1, 2, 5), (1, 3, 1, 5)], "G": 4},
    "contexts of 15, 17 and 1": {"batch": [(0, 1, 15, 15), (1, 2, 2, 17), (2, 4, 1, 1)],
                                 "room": 17},
    "two runs that differ only in N": {"batch": [(0, 2, 2, 4), (2, 3, 2, 9)]},
    "two runs that differ only in T": {"batch": [(0, 2, 1, 6), (2, 3, 3, 6)]},
    "a sequence without a new token": {"batch": [(0, 1, 2, 7), (1, 2, 0, 5), (2, 3, 1, 4)]},
    "a sequence that has nothing yet": {"batch": [(0, 1, 0, 0), (1, 2, 2, 3)]},
}


def test_attend_contiguous__hard(subject, agree, rng):
    """Batches and heads, layouts of q, keys and values each in turn, and hard numbers."""
    given = Given(subject, rng, [(0, 1, 1, 1)])
    judge_attention(agree, given, subject, "the first token of one sequence")
    got = given.run(subject, dtype=torch.float32)
    assert got.dtype == torch.float32, mistake("dtype", (
        f"attend_contiguous: got {got.dtype} from q, keys and values of torch.float32; the result "
        f"has their dtype"), "")
    for what, case in HARD.items():
        judge_attention(agree, Given(subject, rng, **case), subject, what)
    given = Given(subject, rng, [(0, 1, 1, 9), (1, 3, 3, 8)])
    for apart in ("q", "k", "v", "kv"):
        with raises("view", RuntimeError, "keys and values are views; .reshape takes any strides"):
            judge_attention(agree, given, subject, f"heads before tokens in {apart}", apart)
    for kind in sorted(set(VALUES) - {"infinite", "not_a_number"}):
        for name in "qkv":
            array = getattr(given, name)
            array[...] = VALUES[kind](rng, array.shape)
        given.k /= max(1.0, np.abs(given.k).max())          # not one weight of a softmax alone
        judge_attention(agree, given, subject, WORDS[kind])
    for b, _, N in given.each:
        given.k[b, N:], given.v[b, N:] = np.nan, np.inf
    judge_attention(agree, given, subject, "NaN and infinities in slots that hold no token")


# ---- cache_outweighs


CACHE_OF_2 = "A number of the cache has `itemsize` bytes, as a weight, not always 2."
ROUNDED_DOWN = "Rounded down: with this many sequences the weights are still the larger part."


@pytest.mark.parametrize("N, itemsize", [(40, 8), (2048, 2), (100_000, 2)])
@pytest.mark.parametrize("name", LLAMAS)
def test_cache_outweighs(subject, truth, name, N, itemsize):
    """At 8 bytes a number and 40 tokens, most mistakes lead to a batch of their own."""
    m = LLAMAS[name]
    parts = truth(lambda: count_parameters(m))
    flops = truth(lambda: sum(count_flops(m, 1, 1, N).values()))
    beside = truth(lambda: sum(new + cache for _, new, cache in
                               count_bytes(m, 1, 1, N, itemsize).values()))
    read = sum(parts.values()) - parts["embedding"] - parts["norms"]
    read += m.V * m.C if m.tied else 0
    each = N * 2 * m.L * m.G * m.D * itemsize

    def smallest(weights, each=each):
        return -(-weights // each)

    shape = subject.make("day01_roofline:LlamaShape", **asdict(m))
    want, got = smallest(read * itemsize), subject.cache_outweighs(shape, N, itemsize)
    assert isinstance(got, Integral), f"cache_outweighs: a batch is a whole number, got {got!r}"
    mistakes = {
        "query_heads": (smallest(read * itemsize, each * m.H // m.G),
                        "Do all query heads have keys of their own? Only m.G heads are cached."),
        "rounded_down": (read * itemsize // each, ROUNDED_DOWN),
        "nearest": (round(read * itemsize / each), "Rounded to the nearest whole number; round "
                                                   "up."),
        "keys_alone": (smallest(read * itemsize, each // 2), (
            "Twice as many as needed: were only the keys counted, or the weights twice?")),
        "kv_twice": (smallest(read * itemsize, 2 * each), (
            "Half as many as needed: was the cache counted twice? kv_bytes_per_token gives keys "
            "and values.")),
        "layers_twice": (smallest(read * itemsize, each * m.L), (
            "Were the layers counted again? kv_bytes_per_token is of all of them.")),
        "itemsize_again": (smallest(read * itemsize ** 2), (
            "Were the weights multiplied by itemsize again, or a number of the cache taken for one "
            "byte? Both functions give bytes.")),
        "cache_of_2_bytes": (smallest(read * itemsize, each * 2 // itemsize), CACHE_OF_2),
        "one_token_less": (smallest(read * itemsize, each // N * (N - 1)),
                           "A sequence reads N tokens, not N - 1."),
        "cache_in_weights": (smallest(read * itemsize + beside), (
            "Was the cache added to the weights? decode_costs gives the two apart.")),
        "flops_as_cache": (smallest(read * itemsize, flops), (
            "Were FLOPs taken for the cache? kv_bytes_per_token gives its bytes a token.")),
        "embedding": (smallest((read + m.V * m.C) * itemsize), (
            "The embedding is counted. A step reads only one row of it for each token, so it does "
            "not count.")),
        "flops": (smallest(flops), "Were FLOPs taken for bytes? decode_costs gives FLOPs first."),
        "third": (smallest(beside), "Was the cache taken for the weights? decode_costs gives the "
                                    "weights second."),
        "activations": (smallest(read * itemsize, beside), (
            "Are activations among the bytes of the cache? decode_costs gives both together, "
            "third.")),
        "upside_down": (-(-each // (read * itemsize)),
                        "Is it upside down? Weights over cache, not cache over weights."),
        "one_byte": (smallest(read), (
            "Was the cache multiplied by itemsize again, or a weight taken for one byte? Both "
            "functions give bytes.")),
        "one_token": (smallest(read * itemsize, each // N),
                      "Each sequence reads N tokens of cache, not one.")}
    assert got == want, any_of(got, mistakes, (
        f"cache_outweighs: {name}, contexts of {N} tokens, {itemsize} bytes a number: got {got}, "
        f"expected {want}. Weights {read * itemsize:,} bytes, each cache {each:,}."))


def any_of(got, mistakes, text):
    """A message with the words of each mistake that has this result; the first gives its id.

    mistakes: {id: (result, words)}
    """
    alike = {name: words for name, (result, words) in mistakes.items() if result == got}
    if not alike:
        return text
    words = "\nor: ".join(alike.values())
    return mistake(next(iter(alike)), f"{text}\n{'Either: ' if len(alike) > 1 else ''}{words}",
                   "" if len(alike) > 1 else words)


BATCHED = {      # in the first, each mistake leads to a batch of its own
    "three tokens in each context": ((2, 7, 2, 1, 3, 5, 11, False), 3),
    "the cache of one sequence is as large as the weights": ((1, 4, 2, 1, 2, 3, 10, False), 31),
    "three caches are as large as the weights": ((1, 4, 2, 1, 2, 5, 9, False), 12),
    "one number more of weights than a cache has": ((1, 1, 2, 1, 1, 1, 2, False), 5),
    "one token in each context": ((2, 7, 2, 1, 3, 5, 11, False), 1),
    "a head tied to the embedding": ((2, 7, 2, 1, 3, 5, 11, True), 3),
    "a context that outweighs any weights": ((2, 7, 2, 1, 3, 5, 11, False), 10**10),
    "weights past 2^31": ((100, 2**13, 64, 8, 128, 2**15, 2**32, False), 2**17)}


def weights_read(L, C, H, G, D, F, V, tied):
    """The numbers of the matrices that a step reads, the head included."""
    return L * (2 * C * H * D + 2 * C * G * D + 3 * C * F) + V * C


def test_cache_outweighs__hard(subject, rng):
    """Every size of a number; then small random shapes, in which equality is frequent."""
    drawn = []
    for _ in range(150):
        L, C, G, D, F, V, N = rng.integers(1, 5, 7).tolist()
        drawn.append((f"a small shape {(L, C, 2 * G, G, D, F, V)}",
                      ((L, C, 2 * G, G, D, F, V, False), N)))
    for what, (sizes, N) in [*BATCHED.items(), *drawn]:
        shape = subject.make("day01_roofline:LlamaShape", "", *sizes)
        L, _, _, G, D, *_ = sizes
        weights, each = weights_read(*sizes), N * L * 2 * G * D
        for itemsize in (2, 1, 4, 8) if what in BATCHED else (2,):
            got, want = subject.cache_outweighs(shape, N, itemsize), -(-weights // each)
            even = weights % each == 0      # the case before has told the other mistakes apart
            mistakes = {
                "equal_too_few": (weights // each + 1,
                                  "Equal is enough: the docstring says \"at least as many\"."),
                "weights_of_2_bytes": (-(-2 * weights // (itemsize * each)), (
                    "A weight has `itemsize` bytes, as a number of the cache, not always 2.")),
                "cache_of_2_bytes": (-(-weights * itemsize // (2 * each)), CACHE_OF_2),
                **{name: (-(-weights // (each // N * n)), f"A sequence reads N tokens, {words}.")
                   for name, n, words in (("one_token_less", N - 1, "not N - 1"),
                                          ("one_token_more", N + 1, "not N + 1"))
                   if n and not even},
                "rounded_down": (weights // each, ROUNDED_DOWN)}
            assert got == want, any_of(got, mistakes, (
                f"cache_outweighs, {what}, contexts of {N}, numbers of {itemsize} bytes: got "
                f"{got}, expected {want}. Weights {weights * itemsize:,} bytes, each cache "
                f"{each * itemsize:,}."))


def test_cache_outweighs__unseen(unseen, rng):
    for N, itemsize in zip(rng.integers(1, 10**5, 3).tolist(), (1, 2, 4), strict=True):
        L, C, G, D, F, V = rng.integers(1, 5000, 6).tolist()
        unseen("cache_outweighs", lambda side, sizes=(L, C, 2 * G, G, D, F, V, False): side.make(
            "day01_roofline:LlamaShape", "", *sizes), N, itemsize, precision="exact",
            shown=f"L={L} C={C} G={G} D={D} F={F} V={V}, {N}, {itemsize}")


# ---- wasted_share


@pytest.mark.parametrize("lens, size", [
    ([5, 17, 2, 8, 11], 4), ([16, 32, 3], 16), ([100, 7, 31], 128), ([9, 2], 1), ([7], 7)])
def test_wasted_share(subject, agree, lens, size):
    held = size * len({(b, n // size) for b, N in enumerate(lens) for n in range(N)})
    agree(subject.wasted_share(lens, size), 1 - sum(lens) / held, "float64",
          f"wasted_share of lengths {lens} in pieces of {size}, {held} slots, "
          f"{held - sum(lens)} of them empty", at=lambda i: "the share",
          mistakes=wrong_shares(lens, size))


WASTES = {
    "one token in a piece of one slot": ([1], 1), "one token in a large piece": ([1], 1000),
    "every piece full": ([16, 32, 16], 16), "one slot short of full": ([15, 31], 16),
    "one slot more than full": ([17, 33], 16), "a context past 2^15": ([40_000, 7], 4096),
    "a piece past 2^32": ([2**32, 2**33, 5], 2**33)}


def test_wasted_share__hard(subject, agree, rng):
    """Ends with small random lengths, in which full pieces and single slots are frequent."""
    cases = [(f"{what}: {lens}, {size}", lens, size) for what, (lens, size) in WASTES.items()]
    for lens, size in zip(rng.integers(1, 4, 150), rng.integers(1, 5, 150).tolist(), strict=True):
        lens = rng.integers(1, 9, lens).tolist()
        cases.append((f"lengths {lens} in pieces of {size}", lens, size))
    for what, lens, size in cases:
        held = size * sum(-(-n // size) for n in lens)
        agree(subject.wasted_share(lens, size), 1 - sum(lens) / held, "float32",
              f"wasted_share, {what}, {held} slots, {held - sum(lens)} of them empty",
              at=lambda i: "the share", mistakes={} if len(lens) > 1 else {
                  "one_wastes_nothing": ("one sequence alone is taken to waste nothing", 0.0)})


def test_wasted_share__unseen(unseen, rng):
    for size in rng.integers(1, 300, 4).tolist():
        unseen("wasted_share", rng.integers(1, 1000, 9).tolist(), size)


# ---- the cache, in a model


PROMPTS = [[5, 17, 3], [1, 2, 3], [9, 8, 7, 6, 5, 4, 3], [30]]


def test_either_cache_gives_the_same_tokens_and_so_does_none():
    model = random_llama()
    want = greedy(model, PROMPTS, 12)
    assert generate_on(ContiguousCache(model.config, 4, 20), model, PROMPTS, 12) == want
    assert generate_on(PagedCache(model.config, 4, 20), model, PROMPTS, 12) == want
    assert generate_anew(model, PROMPTS, 12) == want


def test_triton_kernels_take_slices_of_the_cache(triton_on_the_cpu):
    model = random_llama(L=1)
    want = generate_on(ContiguousCache(model.config, 4, 9), model, PROMPTS, 2)
    model.ops = kernels("triton")
    assert generate_on(ContiguousCache(model.config, 4, 9), model, PROMPTS, 2) == want


def test_logits_of_chunks_are_those_of_pages():
    """Steps of all kinds: prompts, a chunk beside a decode, a sequence that skips one."""
    model = random_llama()
    one, other = ContiguousCache(model.config, 2, 16), PagedCache(model.config, 2, 16)
    for new in ([[1, 2, 3], [4]], [[5], [6, 7, 8, 9]], [[], [1]], [[1], [2]], [[3], []]):
        got, want = (model.forward(c.step(new), c, every=True) for c in (one, other))
        assert got.shape == (sum(map(len, new)), 31)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_step_writes_its_own_slots_alone():
    model = random_llama()
    cache = ContiguousCache(model.config, 3, 6)
    cache.k.fill_(7.0), cache.v.fill_(7.0)
    model.forward(cache.step([[1, 2], [], [3]]), cache, every=True)
    written = (cache.k != 7.0).all(-1).all(-1)                      # (L, B, room)
    want = torch.tensor([[1, 1, 0, 0, 0, 0], [0] * 6, [1, 0, 0, 0, 0, 0]]).bool()
    assert (written == want).all()
    assert ((cache.v != 7.0).all(-1).all(-1) == want).all()


def test_what_does_not_fit_is_one_sentence():
    cache = ContiguousCache(random_llama().config, 2, 4)
    with pytest.raises(ValueError, match="would reach 5 tokens; there is room for 4"):
        cache.step([[1] * 5, [1]])
    with pytest.raises(ValueError, match="new tokens for 1 sequences, expected 2"):
        cache.step([[1]])
    cache.step([[1] * 4, [1]])              # the refused step has left no trace
    assert cache.lens == [4, 1]


def test_its_bytes_are_those_of_the_formula():
    m = random_llama().config
    for dtype in (torch.float32, torch.bfloat16):
        cache = ContiguousCache(m, 3, 17, dtype)
        assert cache.k.nbytes + cache.v.nbytes == 3 * 17 * kv_bytes_per_token(m, dtype.itemsize)


def counted(model, cache, new, counts):
    """counts of a step: a Work, or a Launches, which sees the kernels of the table here."""
    ops, model.ops = model.ops, counts.counting(model.ops)
    model.forward(cache.step(new), cache)
    model.ops = ops
    return counts


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("B, T, N", [(1, 1, 9), (3, 1, 9), (2, 9, 9), (2, 4, 9)])
def test_counted_work_is_that_of_day_1(B, T, N, tied):
    model = random_llama(tied=tied)
    cache = ContiguousCache(model.config, B, 16)
    if N > T:
        counted(model, cache, [[1] * (N - T)] * B, Work())
    work = counted(model, cache, [[2] * T] * B, Work())
    assert work.flops == sum(count_flops(model.config, B, T, N).values())
    moved = count_bytes(model.config, B, T, N, 4)
    assert work.weights == sum(weights for weights, _, _ in moved.values())
    assert work.cache == sum(cache for _, _, cache in moved.values())
    assert work.rows == 7 * model.config.L * B * T + B
    # apart, q, k and v read x three times, gate and up twice; day 1 has them merged
    extra = 3 * model.config.L * B * T * model.config.C * 4
    assert work.activations == sum(new for _, new, _ in moved.values()) + extra


def test_a_run_is_one_launch():
    model = random_llama(L=1)
    for new, runs in (([[1]] * 4, 1), ([[1, 2], [1, 2], [1], [1]], 2),
                      ([[1], [1, 2], [1], [1, 2]], 4)):
        seen = counted(model, ContiguousCache(model.config, 4, 16), new, Launches())
        assert seen.names.count("flash_attention") == runs
