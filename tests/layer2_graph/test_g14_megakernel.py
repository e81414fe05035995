"""Graders of g14.
Tensors start as NaN, so that what is read too early shows."""

import re
from collections import Counter

import numpy as np
import pytest

from day02_overview import NUMPY, Cache, NumpyLlama, forward, load_nano
from day02_overview.o02_life_of_a_token import Layer
from lab import simulator
from lab.judge.mistakes import mistake, named, raises, same_report
from lab.judge.subject import Raised
from layer2_graph.g14_megakernel import KERNELS, Megakernel
from layer2_graph.machine import (
    ATTEND,
    DOWN,
    EMBED,
    HEAD,
    MLP,
    OPS,
    OUT,
    PAUSE,
    QKV,
    Instruction,
    Machine,
    Sizes,
    Tensors,
    Weights,
    blank,
    sizes_of,
    stacked,
)

TILE = 16
RAGGED = Sizes(L=1, C=40, H=4, G=2, D=8, F=36, V=24, R=8)       # tiles of 16: the last are short
SMALL = Sizes(L=1, C=12, H=4, G=2, D=4, F=12, V=9, R=8)         # for the simulator
THREADS = 64
PAUSES = 1000           # rounds that a block comes later: the simulator gives others turns
LATE = 2000             # rounds that the second warp of a writer comes later: others get turns


# ---- what is right


def book(m, tile, layer=None, wrong=None):
    """The list of a step, or of one layer: (instructions, 7). wrong: a mistake of a layer"""
    rows = {QKV: (m.H + 2 * m.G) * m.D, ATTEND: m.G, OUT: m.C, MLP: m.F, DOWN: m.C}
    count = {op: -(-n // (1 if op == ATTEND else tile)) for op, n in rows.items()}
    program = []

    def stage(op, i, n, step, wait, need, signal):
        for begin in range(0, n, step):
            end = begin + step if wrong == "past_the_end" else min(begin + step, n)
            program.append((op, i, begin, end, wait, need, signal))

    def of_layer(i):
        for op, n in rows.items():
            before = op - 1 if op else DOWN
            wait = 1 + 5 * (i if op else i - 1) + before
            need = count[before]
            if wrong == "layer_before" and op:
                wait -= 5
            if wrong == "own_counter":
                wait = 1 + 5 * i + op
            if wrong == "residual_alone" and op == DOWN:
                wait -= 1
            if wrong == "first_unwaited" and not i and not op:
                need = 0
            need = {"one_is_enough": 1, "own_tiles": count[op], "one_fewer": need - 1,
                    "no_wait": 0}.get(wrong, need)
            signal = wait if wrong == "signals_what_it_waited_for" else 1 + 5 * i + op
            stage(op, i, n, 1 if op == ATTEND else tile, wait, need, signal)

    if layer is not None:
        of_layer(layer)
        return np.array(program)
    stage(EMBED, 0, m.C, tile, 0, 0, 0)
    for i in range(m.L):
        of_layer(i)
    stage(HEAD, m.L, m.V, tile, 5 * m.L, count[DOWN], 1 + 5 * m.L)
    return np.array(program)


def tiny(rng, m):
    """A Llama of o02 of these sizes, in float64, with random weights."""
    def matrix(*shape):
        return rng.standard_normal(shape).astype(np.float32).astype(np.float64) / shape[-1] ** 0.5

    layers = [Layer(1 + matrix(m.C), matrix(m.H * m.D, m.C), matrix(m.G * m.D, m.C),
                    matrix(m.G * m.D, m.C), matrix(m.C, m.H * m.D), 1 + matrix(m.C),
                    matrix(m.F, m.C), matrix(m.F, m.C), matrix(m.C, m.F)) for _ in range(m.L)]
    angle = np.arange(m.R)[:, None] * 0.3 ** np.arange(m.D // 2)
    return NumpyLlama(m.D, 1e-5, np.cos(angle), np.sin(angle), matrix(m.V, m.C), layers,
                 1 + matrix(m.C), matrix(m.V, m.C))


def oracle(model, tokens):
    """(Tensors before the last of the tokens, Tensors after it), in float64, by o02."""
    notes = {name: [] for name in NUMPY._fields}

    def noting(name):
        def operation(*args):
            result = getattr(NUMPY, name)(*args)
            if result is not None:
                notes[name].append(result[-1].flatten())     # a copy: rope works in place
            return result
        return operation

    m = sizes_of(model)
    ops = type(NUMPY)(*map(noting, NUMPY._fields))
    cache = Cache(model, m.R)
    cache.keys[:], cache.values[:] = np.nan, np.nan
    forward(model, tokens[:-1], cache)
    before = blank(m)._replace(keys=cache.keys.astype(np.float32),
                               values=cache.values.astype(np.float32))
    logits = forward(model, tokens[-1:], cache, ops)[-1]
    products = notes["matmul"][:-1]
    x = np.stack([model.embedding[tokens[-1]], *notes["add"][1::2]])
    qkv = np.stack([np.concatenate(products[7 * i:7 * i + 3]) for i in range(m.L)])
    return before, Tensors(x, qkv, np.stack(notes["attention"]), np.stack(notes["add"][::2]),
                           np.stack(notes["swiglu"]), logits, cache.keys, cache.values)


def same_tensors(agree, got, want, what):
    """Tensor by tensor, in the order in which a layer makes them."""
    for name in ("x", "qkv", "keys", "values", "mixed", "y", "hidden", "logits"):
        agree(np.nan_to_num(getattr(got, name), nan=7), np.nan_to_num(getattr(want, name), nan=7),
              "float32", f"{what}, `{name}`", unwritten=7)


# ---- predictions


def guess(exercise, got, want, why, other):
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"{exercise}: expected a number, got {got!r}")
    name, sentence = why.get(got, ("other", other))
    assert got == want, mistake(
        name, f"{exercise}: {got:g} is not what the list gives: {sentence}", sentence)


def test_predict_instructions(subject):
    nano = sizes_of(load_nano())
    guess("predict_instructions", subject.predict_instructions(), len(book(nano, 32)), {
        34: ("no_head", "the head is a part of the step, too"),
        36: ("no_embedding", "the embedding is a part of the step, too"),
        42: ("query_heads", "attention has an instruction for each kv head, not for each query "
                            "head"),
        22: ("one_layer", "there are two layers"),
        48: ("gate_and_up_apart", "an instruction of the mlp makes a row of gate and the same "
                                  "row of up")},
          "a last tile may be short, and it is a tile")


def test_predict_chain(subject):
    rounds = Counter()              # of each counter: the round in which it is full
    for *_, wait, need, signal in book(sizes_of(load_nano()), 32).tolist():
        rounds[signal] = max(rounds[signal], 1 + (rounds[wait] if need else 0))
    guess("predict_chain", subject.predict_chain(), max(rounds.values()), {
        38: ("one_by_one", "instructions of one stage do not wait for each other"),
        10: ("layers_alone", "the embedding comes before the layers, and the head after them"),
        7: ("one_layer", "the second layer waits for the first"),
        6: ("layers_at_once", "a stage waits for the one before it, also within a layer")},
          "count the stages, one after the other")


# ---- the list


LIST = {
    "layer_before": "it waits for the counter of that stage in the layer before, which was done "
                    "long ago",
    "one_is_enough": "it begins when one tile of what it reads is there, and it reads all of them",
    "own_tiles": "it waits for as many signals as its own stage has tiles, not as the stage before",
    "one_fewer": "it begins when all tiles but one are there",
    "first_unwaited": "layer 0's QKV waits for nothing: the embedding comes before it",
    "no_wait": "it waits for nothing: a counter is never below 0",
    "own_counter": "it waits for the counter of its own stage, which it will raise itself",
    "residual_alone": "DOWN waits for y, which it adds, and not for `hidden`, which it multiplies",
    "past_the_end": "the last tile of a stage goes past its rows",
    "signals_what_it_waited_for": "it adds to the counter that it waited for, not to its own "
                                  "stage's",
}
FIELDS = Instruction._fields


@pytest.mark.parametrize("i, m, tile", [
    (0, Sizes(2, 64, 4, 2, 16, 176, 128, 256), 32), (1, RAGGED, 16),
    (3, Sizes(4, 48, 6, 2, 8, 100, 50, 8), 32), (2, Sizes(3, 24, 3, 1, 8, 127, 9, 8), 1000)])
def test_layer_program(subject, agree, i, m, tile):
    check_list(subject, agree, i, m, tile)


def test_layer_program__unseen(subject, agree, rng):
    C, F, G, tile = (int(n) for n in rng.integers((17, 17, 2, 5), (150, 300, 6, 16)))
    check_list(subject, agree, int(rng.integers(1, 9)), Sizes(9, C, 2 * G, G, 8, F, 64, 8), tile)


def table_of(subject, name, program):                           # -> (instructions, 7)
    """A list of Instructions as an array."""
    rows = program if isinstance(program, (list, tuple)) else ()
    lengths = {len(row) for row in rows if isinstance(row, (list, tuple))}
    assert lengths <= {7}, mistake("no_list", f"{name}: rows of {sorted(lengths)} numbers came "
                                              f"out, expected Instructions, of 7 each")
    table = subject.make("numpy:array", program)
    assert table.shape[1:] == (7,) or not table.size, mistake(
        "no_list", f"{name}: an array {table.shape} came out, expected a list of Instructions")
    return table.reshape(-1, 7)


def check_list(subject, agree, i, m, tile):
    sizes = subject.make("layer2_graph.machine:Sizes", *m)
    got = table_of(subject, "layer_program", subject.layer_program(i, sizes, tile))
    want = book(m, tile, i)
    what = f"layer {i} with C = {m.C}, G = {m.G}, F = {m.F} in tiles of {tile}"
    for op in range(5):
        number, right = ((x[:, 0] == op).sum() for x in (got, want))
        name, why = ("tiles", "a last tile may be short, or the only one")
        if op == ATTEND and number == m.H:
            name, why = ("query_heads", "a kv head has one instruction, for all its query heads")
        assert number == right, mistake(name, f"{what}: {number} instructions of {OPS[op]}, "
                                              f"expected {right}: {why}", why)
    agree(got, want, "exact", what,
          lambda at: f"instruction {at[0]} ({OPS[want[at[0], 0]]}), `{FIELDS[at[1]]}`",
          {name: (why, book(m, tile, i, name)) for name, why in LIST.items()})


# ---- the machine


def machine(subject, rng, m):
    """(machine, beside the code under test; what its tensors must be)."""
    model = tiny(rng, m)
    tokens = rng.integers(0, m.V, 4)
    before, want = oracle(model, tokens)
    parts = ((Sizes, m), (Weights, stacked(model)), (Tensors, before))
    made = (subject.make(f"layer2_graph.machine:{kind.__name__}", *value) for kind, value in parts)
    return subject.make("layer2_graph.machine:Machine", *made, model.eps, int(tokens[-1]), 3), want


def queues_of(subject, program, blocks):
    made = [subject.make("layer2_graph.machine:Instruction", *row) for row in program.tolist()]
    return [made[b::blocks] for b in range(blocks)]


@pytest.mark.parametrize("blocks, seed", [(1, 0), (3, 1), (4, 2), (30, 3)])
def test_run_program(subject, agree, rng, blocks, seed):
    own, want = machine(subject, rng, RAGGED)
    program = book(RAGGED, TILE)
    with raises("gives_up", RuntimeError, "This list can be run: another block could go on."), \
            named("no_signal", "What raises the counters? An instruction that has run signals.",
                  lambda e: "counter 0, which is at 0 of 3" in getattr(e, "text", "")), \
            named("above_need", "A counter that is at what an instruction needs is enough.",
                  lambda e: "at 0 of 0" in getattr(e, "text", "")):
        order = subject.run_program(queues_of(subject, program, blocks), own, seed)
    rows = table_of(subject, "run_program", order).tolist()
    legal(rows, program.tolist(), blocks)
    counts = Counter(program[:, -1].tolist())
    assert own.counters == [counts[i] for i in range(len(own.counters))], mistake(
        "counters", f"counters are at {own.counters} after the step, expected "
                    f"{[counts[i] for i in range(len(own.counters))]}: each instruction adds 1")
    got = Tensors(*subject.make("builtins:tuple", own.tensors))
    same_tensors(agree, got, want, f"{blocks} blocks, seed {seed}")


def legal(rows, program, blocks):
    """The order is one that the counters and the blocks' own orders allow."""
    counters, places = Counter(), [0] * blocks
    for op, i, begin, end, wait, need, signal in rows:
        number = program.index([op, i, begin, end, wait, need, signal])
        why = "the counter that it waits for has not reached what it needs"
        assert counters[wait] >= need, mistake(
            "too_early", f"{OPS[op]} {begin} to {end - 1} of layer {i} runs when counter {wait} is "
                         f"at {counters[wait]} of {need}: {why}", why)
        block = number % blocks
        assert number == block + blocks * places[block], mistake(
            "out_of_turn", f"block {block} runs instruction {number} before "
                           f"{block + blocks * places[block]}: a block keeps the order of its list")
        places[block] += 1
        counters[signal] += 1
    why = "all of them must run"
    assert len(rows) == len(program), mistake(
        "left_over", f"{len(rows)} of {len(program)} instructions have run: {why}", why)


def test_run_program__orders(subject, rng):
    """Another seed, another order."""
    orders = set()
    for seed in range(4):
        own, _ = machine(subject, rng, RAGGED)
        order = subject.run_program(queues_of(subject, book(RAGGED, TILE), 5), own, seed)
        orders.add(str(table_of(subject, "run_program", order).tolist()))
    assert len(orders) > 1, mistake("one_order", "four seeds, one order: a wrong list may be right "
                                                 "in that one. `rng` chooses among the blocks that "
                                                 "can go on")


def test_run_program__deadlock(subject, rng):
    """The list in reverse: the first instruction waits for the last."""
    own, _ = machine(subject, rng, RAGGED)
    program = book(RAGGED, TILE)[::-1]
    try:
        subject.run_program(queues_of(subject, program, 2), own, 0)
    except Raised as error:
        if error.type != "RuntimeError":
            raise
        assert "block 0 waits for counter 5, which is at 0 of 3" in error.text, mistake(
            "wrong_block", f"expected the first block that waits, and its counter: {error.text}")
    else:
        raise AssertionError(mistake("stops_quietly", "a list in reverse, where each block waits "
                                     "for a later instruction: expected a RuntimeError that says "
                                     "deadlock, and nothing was raised"))


# ---- the kernel


def test_signal_cuda(subject, rng):
    """Two blocks write, warp by warp, and signal.
    The last block copies what they wrote."""
    writers = 2
    x = rng.standard_normal(writers * THREADS).astype(np.float32)
    y, z = np.full((2, x.size), 7, np.float32)
    counters = np.zeros(1, np.int32)
    with same_report("plain_add", "Two blocks add at a time: the addition must be atomic.",
                     kind="race", array="counters"), \
            same_report("no_barrier", "A block's second warp writes when the first one has "
                        "signalled: all its threads must have stored before.", kind="race",
                        array="y"), \
            same_report("never_full", "The last block waits for ever: each block adds 1.",
                        kind="endless"):
        launch = subject.launch("hand_over_cuda", writers + 1, THREADS, (x, y, z, counters, LATE))
    times = counters[0] / writers
    why = "one thread of a block signals for all"
    assert times <= 1, mistake("by_many", f"signal_cuda: the counter is at {counters[0]} after "
                                          f"{writers} signals: {why}", why)
    wrong = np.flatnonzero(x != z)
    why = "its signal came before its threads had stored"
    assert not wrong.size, mistake(
        "too_early", f"signal_cuda: thread {wrong[:1] % THREADS} of block {wrong[:1] // THREADS} "
                      f"wrote {x[wrong[:1]]}, and {z[wrong[:1]]} was read after the signal of its "
                      f"block: {why}", why)
    fenced(launch.launches[0], writers)


def fenced(launch, writers):
    """Each writer has a fence before it adds.
    The simulator runs loads and stores in order, so it cannot show what a missing fence does,
    and the instructions are counted."""
    fences = launch["totals"]["instructions"].get("barrier", 0) - launch["totals"]["barriers"] - 1
    atomics = {int(n): line["text"].partition("//")[0] for n, line in launch["lines"].items()
               if "global atomic" in line["memory"]}
    after = [int(n) for n, line in launch["lines"].items()
             if line["instructions"].get("barrier", 0) > line["barriers"] and int(n) > max(atomics)]
    release = atomics and all(
        re.search(r"\.release|\.acq_rel|memory_order_(release|acq_rel|seq_cst)", text)
        for text in atomics.values())
    why = "on a GPU the counter may be seen before the numbers"
    assert fences >= writers or release, mistake(
        "no_fence", f"signal_cuda: {fences} fences by {writers} blocks: {why}", why)
    why = "a fence orders what comes before it with what comes after it: the addition comes after"
    assert not after or release, mistake(
        "fence_last", f"signal_cuda: the addition in line {max(atomics)}, a fence in line "
                      f"{after[0]}: {why}", why)


def arguments(m, model, program, tensors, counters, steps, token, position):
    """What the kernel gets."""
    return (program.astype(np.int32), len(program), counters, steps, *m, np.float32(model.eps),
            int(token), position, *stacked(model), *tensors)


def launch_step(subject, blocks, m, args):
    return subject.launch("megakernel_cuda", blocks, THREADS, args,
                          shared_mem=4 * max(m.C, m.H * m.D, m.F, m.H // m.G * (m.D + m.R)))


NOT_RUN = "some instructions are run by no block"
TWICE = "some instructions are run by more than one block"
TOO_EARLY = (
    ("out_of_order", "An instruction reads when its counter is at what it needs, and signals when "
                     "it has written: wait, execute, signal. It is one block's alone."),
    ("counters_kept", "In the second step the counters begin where the first one left them, so a "
                      "wait is over too early: they must reach `need` more for each step before."))
NO_WAIT = "An instruction runs when the counter that it names has reached what it needs."
UNRAISED = "A block waits for a counter that is never raised: each instruction is some " \
           "block's, and a block begins with its first."


def uneven(program):
    """The list of a step with two instructions a stage, one for each of two blocks.
    The first block comes late to its part of the mlp, and the second is at the next stage by
    then."""
    whole = {}
    for op, i, _, end, wait, need, signal in program.tolist():
        whole[op, i] = op, i, end, wait, min(need, 2), signal
    spare = program[:, -1].max() + 1
    rows = []
    for op, i, end, wait, need, signal in whole.values():
        if op == MLP:
            rows += [(PAUSE, i, 0, rounds, 0, 0, spare) for rounds in (PAUSES, 0)]
        rows += [(op, i, begin, stop, wait, need, signal)
                 for begin, stop in ((0, end - 1), (end - 1, end))]
    return np.array(rows)


def test_megakernel_cuda__wait(subject, rng):
    """One block writes late, and announces it by an instruction after that.
    Only a kernel without a wait reads too early here: one that signals before it executes does
    not."""
    m = SMALL
    tensors, _ = oracle(tiny(rng, m), rng.integers(0, m.V, 2))
    late, spare = 5 * m.L + 2, 5 * m.L + 3
    idle = (PAUSE, 0, 0, 0, 0, 0, spare)
    program = np.array([(PAUSE, 0, 0, 4 * PAUSES, 0, 0, spare), idle,
                        (EMBED, 0, 0, m.C, 0, 0, 0), idle,
                        (PAUSE, 0, 0, 0, 0, 1, late),
                        (QKV, 0, 0, 1, late, 1, 1), idle, idle])
    counters = np.zeros(5 * m.L + 4, np.int32)
    args = arguments(m, tiny(rng, m), program, tensors, counters, 0, 1, 1)
    with same_report("no_wait", NO_WAIT, kind="race"), \
            same_report("deadlock", UNRAISED, kind="endless"):
        launch_step(subject, 2, m, args)
    assert not np.isnan(tensors.qkv[0, 0]), mistake(
        "no_wait", f"megakernel_cuda: block 1 reads `x` before block 0 has written it. {NO_WAIT}",
        NO_WAIT)


def test_megakernel_cuda(subject, agree, rng):
    """Two steps with the same counters, by two blocks."""
    m = SMALL
    model = tiny(rng, m)
    tokens = rng.integers(0, m.V, 5)
    program = uneven(book(m, 8))
    tensors, _ = oracle(model, tokens[:4])
    counters = np.zeros(5 * m.L + 3, np.int32)
    for steps, n in enumerate((4, 5)):
        _, want = oracle(model, tokens[:n])
        args = arguments(m, model, program, tensors, counters, steps, tokens[n - 1], n - 1)
        name, why = TOO_EARLY[steps]
        with same_report(name, why, kind="race"), same_report("deadlock", UNRAISED, kind="endless"):
            launch_step(subject, 2, m, args)
        full = np.bincount(program[:, -1]) * (steps + 1)
        for i in np.flatnonzero(counters != full)[:1]:
            why = NOT_RUN if counters[i] < full[i] else TWICE
            raise AssertionError(mistake(
                "left_over" if why is NOT_RUN else "all_by_all", f"counter {i} is at {counters[i]} "
                f"after {steps + 1} steps, expected {full[i]}: {why}", why))
        with named(name, why, lambda e: isinstance(e, AssertionError)):
            same_tensors(agree, Tensors(*tensors), want, f"step {steps}, two blocks")


def test_megakernel_cuda__one_block(subject, agree, rng):
    """A grid of one block runs the whole list."""
    m = SMALL
    model = tiny(rng, m)
    tokens = rng.integers(0, m.V, 2)
    tensors, want = oracle(model, tokens)
    program = book(m, 8)
    counters = np.zeros(5 * m.L + 2, np.int32)
    launch_step(subject, 1, m, arguments(m, model, program, tensors, counters, 0, tokens[-1], 1))
    same_tensors(agree, Tensors(*tensors), want, "one block")


# ---- the course's own launcher


def test_megakernel_is_o02(subject, rng):
    """Two tokens after a prompt."""
    model = tiny(rng, SMALL)
    tokens = rng.integers(0, SMALL.V, 5)
    mega = Megakernel(model, 1, tile=8, threads=64)
    mega.prefill(tokens[:3])
    for n in (4, 5):
        with simulator.trace(checks=False):
            got = mega.step(int(tokens[n - 1]), n - 1)
        want = oracle(model, tokens[:n])[1].logits
        assert np.allclose(got, want, rtol=1e-4, atol=1e-5)


def test_what_is_refused(subject, rng):
    model = tiny(rng, SMALL)
    with pytest.raises(ValueError, match="Megakernel: 5000 blocks, expected 1 to .* on an H100"):
        Megakernel(model, 5000)
    with pytest.raises(ValueError, match="position 8, expected 0 to 7: the cache has room for 8"):
        Megakernel(model, 1).step(0, 8)
    with pytest.raises(ValueError, match="tiles: a tile of 0 rows, expected 1 or more"):
        Megakernel(model, 1, tile=0)
    machine = Machine(SMALL, stacked(model), blank(SMALL), 1e-5, 0, 0)
    with pytest.raises(ValueError, match="an instruction has op 9, expected 0 to 7"):
        machine.execute(Instruction(9, 0, 0, 1, 0, 0, 0))
    with pytest.raises(ValueError, match="Machine: position 8, expected 0 to 7"):
        Machine(SMALL, stacked(model), blank(SMALL), 1e-5, 0, 8)


# ---- a device


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", [1, 3, 64])
def test_the_step_on_the_device(blocks):
    nano = load_nano()
    tokens = np.array([10, *b"a warp has 32"])
    mega = Megakernel(nano, blocks)
    mega.prefill(tokens[:-2])
    for n in (len(tokens) - 1, len(tokens)):
        got = mega.step(int(tokens[n - 1]), n - 1)
        want = oracle(load_nano(np.float64), tokens[:n])[1].logits
        assert np.allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_the_signal_on_the_device():
    x = np.arange(64 * THREADS, dtype=np.float32)
    y, z = np.full((2, x.size), 7, np.float32)
    counters = np.zeros(1, np.int32)
    KERNELS.get("hand_over_cuda")(65, THREADS, (x, y, z, counters, LATE))
    assert counters[0] == 64 and np.array_equal(x, z)
