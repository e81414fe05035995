"""g14 · A megakernel: a decode step as a list of instructions, and one kernel that runs it

L: layers   C, H, G, D, F, V, R: the sizes of machine.py   B: blocks, one for an SM
tile: rows of a matrix that an instruction multiplies   counter: one for each stage of each layer
A step reads every weight once, 2 FLOPs with each, as before.
A launch boundary says that all before is done.
Here each instruction waits for what it reads, and for nothing else.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from day02_overview import Cache, NumpyLlama, forward
from lab import simulator
from layer2_graph.machine import (
    ATTEND,
    DOWN,
    EMBED,
    HEAD,
    MLP,
    OPS,
    OUT,
    QKV,
    STAGES,
    Instruction,
    Machine,
    Sizes,
    Tensors,
    blank,
    sizes_of,
    stacked,
)

__all__ = ["Instruction", "Machine", "Megakernel", "Sizes", "blank", "bytes_read", "counter",
           "deal", "first_difference", "layer_program", "most_blocks", "run_program", "schedule",
           "sizes_of", "stacked", "step_program", "tiles"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
MULTIPROCESSORS = {"H100": 132, "H200": 132, "A100": 108}       # NVIDIA's data sheets


# ---- the list


def predict_instructions():
    """Instructions of a decode step of the nano Llama in tiles of 32 rows.

    2 layers; C = 64, H = 4 and G = 2 heads of D = 16, F = 176, V = 128.
    In tiles: the embedding's C numbers, and in each layer (H + 2·G)·D rows of q, k and v, C of o, F
    of the mlp (an instruction makes gate and up) and C of down; then V of the head.
    Attention: one for each kv head.
    """
    # exercise: count the tiles of each stage; a layer has five stages
    return 2 + 2 * (4 + 2 + 2 + 6 + 2) + 4


def predict_chain():
    """The fewest rounds in which that step can be done, if in one round any number of
    instructions run, each of which has what it waits for from earlier rounds."""
    # exercise: a stage waits for all of the stage before it
    return 1 + 2 * 5 + 1


def tiles(rows: int, tile: int) -> list[tuple[int, int]]:
    """(begin, end) of the tiles of `rows` rows: the last may be short."""
    if tile < 1:
        raise ValueError(f"tiles: a tile of {tile} rows, expected 1 or more")
    return [(begin, min(begin + tile, rows)) for begin in range(0, rows, tile)]


def counter(i: int, op: int) -> int:
    """The number of the counter of stage `op` of layer i. counter(-1, DOWN) is the embedding's,
    which gives layer 0 its x as DOWN gives it to the others; counter(L, QKV) is the head's."""
    return 1 + STAGES * i + op


def layer_program(i: int, m: Sizes, tile: int) -> list[Instruction]:
    """The instructions of layer i: stages QKV, ATTEND, OUT, MLP and DOWN, in this order.

    Each stage waits for all of the stage before it; QKV for DOWN of the layer before.
    Rows are (H + 2·G)·D for QKV, C for OUT and DOWN, F for MLP, each in tiles; ATTEND has one
    instruction for each of the G kv heads.
    """
    # exercise: for each stage its tiles; what they wait for is the counter of the stage before
    stages = ((QKV, tiles((m.H + 2 * m.G) * m.D, tile)), (ATTEND, tiles(m.G, 1)),
              (OUT, tiles(m.C, tile)), (MLP, tiles(m.F, tile)), (DOWN, tiles(m.C, tile)))
    program = []
    wait = counter(i - 1, DOWN)
    need = len(tiles(m.C, tile))
    for op, parts in stages:
        program += [Instruction(op, i, *part, wait, need, counter(i, op)) for part in parts]
        wait = counter(i, op)
        need = len(parts)
    return program


def step_program(m: Sizes, tile: int) -> list[Instruction]:
    """A decode step: the embedding, all layers, the head."""
    parts = tiles(m.C, tile)
    start = counter(-1, DOWN)
    program = [Instruction(EMBED, 0, *part, start, 0, start) for part in parts]
    for i in range(m.L):
        program += layer_program(i, m, tile)
    wait = counter(m.L - 1, DOWN)
    return program + [Instruction(HEAD, m.L, *part, wait, len(parts), counter(m.L, QKV))
                      for part in tiles(m.V, tile)]


def deal(program: Sequence[Instruction], blocks: int) -> list[list[Instruction]]:
    """Each block's own instructions, as the kernel deals them: b, b + B, b + 2·B …"""
    return [list(program[b::blocks]) for b in range(blocks)]


# ---- the machine


def stuck(block: int, instruction: Instruction, machine: Machine) -> RuntimeError:
    """The error of a step in which no block can go on."""
    return RuntimeError(f"deadlock: block {block} waits for counter {instruction.wait}, which is "
                        f"at {machine.counters[instruction.wait]} of {instruction.need}, before "
                        f"{OPS[instruction.op]} of layer {instruction.layer}")


def run_program(queues: Sequence[Sequence[Instruction]], machine: Machine,
                seed: int = 0) -> list[Instruction]:
    """All instructions in an order that blocks might have: those that ran, in this order.

    queues: each block's instructions; a block takes its own in their order, and only when the
    counter that the next one waits for has reached what it needs
    Of the blocks that can go on, random.Random(seed).choice picks one, and it runs one instruction.
    RuntimeError, from `stuck`, names the first block that waits if none can go on.
    """
    rng = random.Random(seed)
    # exercise: while there are instructions: which blocks can go on? One: execute, then signal
    rest = [deque(queue) for queue in queues]
    order = []
    while any(rest):
        waiting = [b for b, queue in enumerate(rest) if queue]
        ready = [b for b in waiting if machine.counters[rest[b][0].wait] >= rest[b][0].need]
        if not ready:
            raise stuck(waiting[0], rest[waiting[0]][0], machine)
        instruction = rest[rng.choice(ready)].popleft()
        machine.execute(instruction)
        machine.counters[instruction.signal] += 1
        order.append(instruction)
    return order


def first_difference(program: Sequence[Instruction], got: Tensors, want: Tensors,
                     tolerance: float = 1e-4) -> str | None:
    """The first instruction of the list whose rows differ, in words; None if none does.

    tolerance: of the largest number of a tensor.
    NaN differs from all; of what is NaN in `want`, such as cached rows of later positions, nothing
    is asked.
    """
    width = want.mixed.shape[1] // want.keys.shape[2]       # of the query heads of a kv head
    for number, instruction in enumerate(program):
        op, i, begin, end, *_ = instruction
        for name, place, first in written(instruction, width):
            a = getattr(got, name)[place]
            b = getattr(want, name)[place]
            largest = np.fmax.reduce(abs(b), axis=None, initial=0)
            wrong = ~(abs(a - b) <= tolerance * largest) & ~np.isnan(b)     # NaN: not written yet
            if wrong.any():
                *cached, row = np.argwhere(wrong)[0][:2]
                at = f"position {cached[0]}, kv head" if cached else "row"
                return (f"`{name}`, layer {i}, {at} {first + row}: instruction {number}, {OPS[op]} "
                        f"{begin} to {end - 1}: {a[wrong][0]:g}, expected {b[wrong][0]:g}")
    return None


def written(instruction: Instruction, width: int) -> list[tuple[str, tuple, int]]:
    """(tensor, the place in it, its first row) of all that an instruction writes.

    width: rows of `mixed` that belong to a kv head
    """
    op, i, begin, end, *_ = instruction
    rows = slice(begin, end)
    if op == ATTEND:
        cached = (i, slice(None), rows)
        mixed = slice(begin * width, end * width)
        return [("keys", cached, begin), ("values", cached, begin), ("mixed", (i, mixed),
                                                                     mixed.start)]
    name = ("qkv", "", "y", "hidden", "x", "logits", "x")[op]
    return [(name, {DOWN: (i + 1, rows), HEAD: (rows,)}.get(op, (i, rows)), begin)]


# ---- the kernel


def most_blocks(threads: int, shared: int, gpu: str) -> int:
    """Blocks of the kernel that are resident at a time on a GPU of this name.

    threads: of a block    shared: its bytes of dynamic shared memory
    """
    resources = KERNELS.resources("megakernel_cuda", "sm_80" if gpu == "A100" else "sm_90")
    fits = simulator.occupancy(resources._replace(shared=resources.shared + shared), threads,
                               gpu=gpu)
    return fits.blocks * MULTIPROCESSORS[gpu]


class Megakernel:
    """A Llama of o02 whose decode step is one launch, one token at a time.

    blocks: of the grid; all must be resident at once    gpu: on which they must be
    """

    def __init__(self, model: NumpyLlama, blocks: int, tile: int = 32, threads: int = 128,
                 gpu: str = "H100"):
        self.model = model
        self.m = sizes_of(model)
        self.weights = stacked(model)
        self.tensors = blank(self.m)
        self.program = np.array(step_program(self.m, tile), np.int32)       # (instructions, 7)
        self.counters = np.zeros(STAGES * self.m.L + 2, np.int32)
        self.steps = 0
        self.blocks = blocks
        self.threads = threads
        self.shared = shared_bytes(self.m)
        most = most_blocks(threads, self.shared, gpu)
        if not 1 <= blocks <= most:
            raise ValueError(f"Megakernel: {blocks} blocks, expected 1 to {most}, those that are "
                             f"resident on an {gpu} at a time: others would never start, and those "
                             f"that wait for them never end")

    def prefill(self, tokens: np.ndarray) -> np.ndarray:            # (T,) -> (V,)
        """The logits after a prompt, whose keys and values are o02's: decoding is one launch."""
        cache = Cache(self.model, self.m.R)
        logits = forward(self.model, tokens, cache)                 # (T, V)
        past = slice(len(tokens))
        self.tensors.keys[:, past] = cache.keys[:, past]
        self.tensors.values[:, past] = cache.values[:, past]
        return logits[-1]

    def step(self, token: int, position: int,
             kernel: Callable | None = None) -> np.ndarray:         # -> (V,)
        """The logits after a token; its key and value are put into the cache at its position.

        kernel: in place of the course's own
        """
        if not 0 <= position < self.m.R:
            raise ValueError(f"Megakernel: position {position}, expected 0 to {self.m.R - 1}: the "
                             f"cache has room for {self.m.R}")
        kernel = kernel or KERNELS.get("megakernel_cuda")
        kernel(self.blocks, self.threads, self.arguments(token, position), shared_mem=self.shared)
        self.steps += 1
        return self.tensors.logits

    def arguments(self, token: int, position: int) -> tuple:
        """What the kernel gets, in the order of its parameters."""
        return (self.program, len(self.program), self.counters, self.steps, *self.m,
                np.float32(self.model.eps), token, position, *self.weights, *self.tensors)


def shared_bytes(m: Sizes) -> int:
    """Shared memory of a block: the longest row, or a kv head's queries and scores, in fp32."""
    return 4 * max(m.C, m.H * m.D, m.F, m.H // m.G * (m.D + m.R))


# ---- when


def bytes_read(instruction: Instruction, m: Sizes, N: int) -> int:
    """Bytes of weights that an instruction reads; of keys and values, in attention over N tokens.
    fp32."""
    per_row = {QKV: m.C, ATTEND: 2 * N * m.D, OUT: m.H * m.D, MLP: 2 * m.C, DOWN: m.F, HEAD: m.C,
               EMBED: 1}
    return 4 * (instruction.end - instruction.begin) * per_row[instruction.op]


class Span(NamedTuple):
    """An instruction on a block, in the unit of its costs."""

    block: int
    load: float             # when its weights are asked for
    loaded: float           # when they are there
    start: float            # when it computes
    end: float


def schedule(program: Sequence[Instruction], blocks: int, loads: Sequence[float],
             work: Sequence[float], gap: float | None = None,
             early: bool = False) -> list[Span]:
    """When each instruction of a list runs, dealt out as the kernel does it.
    A drawing, no time.

    An instruction loads its weights, then computes. loads, work: what both take, for each
    gap: each stage is a launch: it begins `gap` after the end of all before it.
    None: one kernel
    early: weights are loaded before the wait, else after it
    """
    free = [0.0] * blocks
    signals: dict[int, list[float]] = {}
    stage, barrier, last = None, 0.0, 0.0
    spans = []
    for number, instruction in enumerate(program):
        block = number % blocks
        ready = max(signals.get(instruction.wait, [0.0])) if instruction.need else 0.0
        if gap is not None and instruction.signal != stage:
            stage, barrier = instruction.signal, last + gap
        load = free[block] if early else max(free[block], ready, barrier)
        loaded = load + loads[number]
        start = max(loaded, ready)
        free[block] = start + work[number]
        last = max(last, free[block])
        signals.setdefault(instruction.signal, []).append(free[block])
        spans.append(Span(block, load, loaded, start, free[block]))
    return spans
