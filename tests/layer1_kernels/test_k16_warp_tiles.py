"""Graders of k16.
Outputs start as 7, so that unwritten places show."""

import re

import numpy as np
import pytest

from lab.judge.mistakes import mistake, named
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.matmul_cases import matrices, product

BM, WM, WN, BK = 128, 64, 32, 8
THREADS = 256
TILE_BYTES = BK * (BM + 4) * 4
KERNELS = "matmul_warp_cuda", "matmul_buffered_cuda"
RAGGED = 60, 130, 20                    # two blocks; 3 steps, the last half empty
WHOLE = 128, 128, 64                    # one block, 8 steps


def run(subject, kernel, a, w):
    """(c, launch)."""
    (M, K), N = a.shape, len(w)
    c = np.full((M, N), 7, np.float32)
    grid = -(-N // BM), -(-M // BM)
    return c, subject.launch(kernel, grid, THREADS, (a, w, c, M, N, K))


def right(agree, name, a, w, c, mistakes=None):
    """c is a · wᵀ, or the message names the element and the likely mistake."""
    agree(c, product(a, w), "float32", f"{name}, a {a.shape} and w {w.shape}",
          lambda index: f"row {index[0]}, column {index[1]} of c (row {index[0] % BM}, column "
                        f"{index[1] % BM} of its block's tile)", (mistakes or {}) | {
              "no_store": ("nothing is written to c", np.full((len(a), len(w)), 7))}, unwritten=7)


def report(name, sentence, kind, *parts, buffer=None):
    """Within this context, such a report of the simulator is the mistake `name`.

    parts: of its text    buffer: the one of two tiles in which the place lies
    """
    def applies(error):
        text = getattr(error, "text", "")
        place = re.search(r"`[aw]_tile` at byte (\d+)", text)
        return getattr(error, "kind", None) == kind and all(part in text for part in parts) and (
            buffer is None or place is not None and int(place[1]) // TILE_BYTES == buffer)
    return named(name, sentence, applies)


# ---- predictions


def test_best_warp_tile(subject):
    for M, N, warps in ((128, 128, 8), (128, 128, 4), (64, 256, 8), (256, 64, 8), (32, 32, 1),
                        (128, 32, 32), (64, 128, 16)):
        got = subject.best_warp_tile(M, N, warps)
        assert isinstance(got, (tuple, list)) and len(got) == 2 and min(got) >= 1, mistake(
            "no_pair", f"best_warp_tile({M}, {N}, {warps}): {got!r}, expected (WM, WN)")
        tiles = [(M // rows, N * rows // warps) for rows in 2 ** np.arange(warps.bit_length())]
        least = min(map(sum, tiles))
        best = max(tile for tile in tiles if sum(tile) == least)
        why = {max(tiles): ("tallest", "a tile of all rows wants all rows"),
               min(tiles): ("widest", "a tile of all columns wants all columns"),
               best[::-1]: ("columns_first", "of two that want as many numbers, take the one "
                                             "with more rows")}
        name, sentence = why.get(tuple(got), ("other", "the warp tiles must cover the block's "
                                                       "tile, with the least WM + WN"))
        if M % got[0] or N % got[1] or got[0] * got[1] * warps != M * N:
            name = "does_not_divide"
            sentence = f"{warps} tiles of {got[0]} x {got[1]} do not cover {M} x {N}"
        assert tuple(got) == best, mistake(
            name, f"best_warp_tile({M}, {N}, {warps}): {tuple(got)}, expected "
                  f"{tuple(map(int, best))}: {sentence}", sentence)


def wanted(launch, warps_and_k):
    """Numbers of shared memory that a warp wants for one k."""
    return launch.totals.access("shared", "load").distinct / 4 / warps_and_k


def test_predict_warp_ratio(subject, rng):
    """What lanes ask for, each number once a request, as the simulator counts it."""
    import torch

    from lab import simulator
    from layer1_kernels import matmul_registers_cuda, matmul_warp_tiles_cuda

    a, w = (torch.from_numpy(x) for x in matrices(rng, 128, 128, BK))
    with simulator.trace() as trace:
        matmul_registers_cuda(a, w)
        matmul_warp_tiles_cuda(a, w, "matmul_warp_cuda")
    before, here = (wanted(launch, 8 * BK) for launch in trace.launches)
    got = subject.predict_warp_ratio()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_warp_ratio: expected a number, got {got!r}")
    why = {1: ("each_lane", "that is what lanes ask for, 16 numbers each in both; several lanes "
                            "ask for the same one, which is read once"),
           2: ("rows_and_columns", "the rows become four times as many, but the columns a quarter: "
                                   "add them up"),
           1.41: ("square_root", "that is the law for a square"),
           0.67: ("turned_round", "the larger number belongs to k06")}
    name, sentence = why.get(round(got, 2), ("other", "how many different rows do 32 lanes have, "
                                                      "and how many different columns?"))
    assert got == pytest.approx(before / here, rel=1e-3), mistake(
        name, f"predict_warp_ratio: {got:g} is not what the simulator counts: {sentence}", sentence)


def test_registers_allowed(subject):
    """The largest number of registers with which the occupancy calculator fits the blocks."""
    from lab import simulator
    from lab.simulator.nvrtc import Resources

    for threads in (128, 256, 384, 512, 1024):
        fits = {}
        for registers in range(1, 256):
            needs = Resources(registers, 0, 0, 0, 0, 1)
            fits[registers] = simulator.occupancy(needs, threads, gpu="H200").blocks
        for blocks in range(1, 2048 // threads + 1):
            got = subject.registers_allowed(threads, blocks)
            best = max(registers for registers, n in fits.items() if n >= blocks)
            each = 65_536 // (threads * blocks)
            why = {each: ("no_granule", "registers are dealt out by eights to each thread"),
                   -(-each // 8) * 8: ("rounded_up", "the next multiple of 8 is already too many"),
                   min(255, 65_536 // threads // 8 * 8): (
                       "one_block", "an SM's registers are for all of its blocks"),
                   min(255, each) // 8 * 8: (
                       "limit_rounded", "255 is the limit of an instruction, not of the granule: "
                       "round what the SM has, then take the smaller"),
                   each // 8 * 8: ("no_limit", "no instruction can name a register beyond 255")}
            name, sentence = why.get(got, ("other", "divide an SM's 65,536 registers among all "
                                                    "threads that are on it"))
            assert got == best, mistake(
                name, f"registers_allowed({threads}, {blocks}): {got}, expected {best}: {sentence}",
                sentence)


# ---- warps


def places(y, x, y_apart=8, x_apart=4):
    """Rows (threads, 8, 1) and columns (threads, 1, 8) of the block's tile that threads have whose
    first float4 are y and x, and whose second float4 are y_apart and x_apart further."""
    i = np.arange(8)
    rows, columns = (4 * (first[:, None] + i // 4 * apart) + i % 4
                     for first, apart in ((y, y_apart), (x, x_apart)))
    return rows[:, :, None], columns[:, None]


THREAD = np.arange(THREADS)
WARP = THREAD // 32
LANE = THREAD % 32
Y = WARP // 4 * 16 + LANE // 4
X = WARP % 4 * 8 + LANE % 4


def arranged(want, rows, columns):
    """c, if what a thread stores at its own places belongs to these rows and columns."""
    whole = np.pad(want, [(0, -n % BM) for n in want.shape])
    own_rows, own_columns = places(Y, X)
    c = np.empty_like(whole)
    for m in range(0, len(whole), BM):
        for n in range(0, whole.shape[1], BM):
            c[m + own_rows, n + own_columns] = whole[m + rows, n + columns]
    return c[:want.shape[0], :want.shape[1]]


def arrangements(want):
    """{mistake: (sentence, c)} of threads that multiply other rows and columns than they store."""
    rows, columns = (own.transpose(0, 2, 1) for own in places(Y, X))
    return {
        "no_warps": ("threads have the rows and columns of k06, which knows no warp tiles",
                     arranged(want, *places(THREAD // 16, THREAD % 16, 16, 16))),
        "neighbour_warp": (
            "a warp reads what belongs to another: four warps stand side by side",
            arranged(want, *places(WARP % 2 * 16 + LANE // 4, WARP // 2 * 8 + LANE % 4))),
        "beside": ("a lane's second float4 is beside its first; it is half a warp tile away",
                   arranged(want, *places(Y, X, 1, 1))),
        "no_lanes": ("all lanes of a warp multiply the same numbers",
                     arranged(want, *places(Y - LANE // 4, X - LANE % 4))),
        "no_warp_offset": ("all warps multiply the same numbers",
                           arranged(want, *places(LANE // 4, LANE % 4))),
        "turned": ("sums[i][j] is row i and column j of the thread's tile: a's number i times w's "
                   "number j", arranged(want, rows, columns))}


def test_multiply_warp_cuda(subject, agree, rng):
    a, w = matrices(rng, *RAGGED)
    with report("eight_wide", "A warp tile of 32 columns is 8 float4, and a lane has two of them, "
                "half apart: so four lanes stand side by side, in eight rows.", "out_of_bounds"):
        c, _ = run(subject, "matmul_warp_cuda", a, w)
    k = np.arange(a.shape[1])
    right(agree, "multiply_warp_cuda", a, w, c, arrangements(product(a, w)) | {
        "one_k": ("only the first k of each step is multiplied", product(a, w, k % BK == 0)),
        "replaced": ("sums are replaced with each k; add to them", product(a, w, 0 * k))})


def test_multiply_warp_cuda__work(subject, reference, rng):
    a, w = matrices(rng, *WHOLE)
    launch, own = (run(side, "matmul_warp_cuda", a, w)[1] for side in (subject, reference))
    same_work("multiply_warp_cuda", launch, own)


# ---- two tiles of each


def test_matmul_buffered_cuda(subject, agree, rng):
    a, w = matrices(rng, *RAGGED)
    k = np.arange(a.shape[1])
    with report("no_first_barrier", "The first pair of tiles is read before all threads have "
                "kept their part of it.", "race", "is read", buffer=0), \
            report("one_buffer", "Other warps still multiply this pair of tiles: keep the next one "
                   "in the other pair.", "race", "is written", buffer=0), \
            report("barrier_first", "Between keep and the next multiply all must meet: others read "
                   "what this thread keeps.", "race", buffer=1):
        c, _ = run(subject, "matmul_buffered_cuda", a, w)
    first = product(a, w, k < BK)
    right(agree, "matmul_buffered_cuda", a, w, c, {
        "never_swapped": ("each step multiplies the first pair of tiles", 3 * first),
        "this_step": ("each step loads the tile that is already there: the next one begins at "
                      "start + BK", 2 * first + product(a, w, (k >= BK) & (k < 2 * BK))),
        "last_step_lost": ("the last step is not multiplied", product(a, w, k < 2 * BK)),
        "first_step_lost": ("the first step is not multiplied", product(a, w, k >= BK)),
        "one_step": ("only the first step is multiplied", first)})


@pytest.mark.parametrize("M, N, K", [(1, 1, 4), (128, 35, 8), (3, 5, 0)])
def test_matmul_buffered_cuda__short(subject, agree, rng, M, N, K):
    """One step, and none."""
    a, w = matrices(rng, M, N, K)
    right(agree, "matmul_buffered_cuda", a, w, run(subject, "matmul_buffered_cuda", a, w)[0])


def test_matmul_buffered_cuda__work(subject, reference, rng):
    a, w = matrices(rng, *WHOLE)
    launch, own = (run(side, "matmul_buffered_cuda", a, w)[1] for side in (subject, reference))
    steps = WHOLE[2] // BK
    why = "right, but one barrier a step is enough: there are two pairs of tiles"
    assert launch.barriers <= own.barriers, mistake(
        "two_barriers", f"matmul_buffered_cuda: {launch.barriers} times a warp reaches a barrier "
        f"in {steps} steps, {own.barriers} are enough: {why}", why)
    got = launch.load_to_use or 0
    why = "right, but nothing overlaps: load before the products, and keep after them"
    assert got >= own.load_to_use, mistake(
        "load_late", f"matmul_buffered_cuda: {got} multiplications stand between a load and the "
        f"first use of what it brings, {own.load_to_use} can: {why}", why)
    same_work("matmul_buffered_cuda", launch, own)


# ---- the course's own launcher


def test_matmul_warp_tiles_cuda(subject, agree, rng):
    import torch

    for M, N, K in ((129, 3, 100), (2, 200, 36)):
        a, w = matrices(rng, M, N, K)
        for kernel in KERNELS:
            got = subject.matmul_warp_tiles_cuda(*map(torch.from_numpy, (a, w)), kernel)
            agree(got, product(a, w), "float32", f"{kernel}, {(M, N, K)}")


@pytest.mark.parametrize("M, N, K", [(0, 5, 4), (5, 0, 4), (0, 0, 0), (3, 4, 0)])
def test_nothing_to_do(subject, M, N, K):
    import torch

    for kernel in KERNELS:
        got = subject.matmul_warp_tiles_cuda(torch.ones(M, K), torch.ones(N, K), kernel)
        assert torch.equal(got, torch.zeros(M, N)), kernel


def test_what_the_launcher_refuses(subject):
    import torch

    a, w = torch.ones(4, 16), torch.ones(5, 16)
    for arrays, says in (((a[:, :6].clone(), w[:, :6].clone()), "rows of 6 numbers"),
                         ((a.half(), w.half()), "a is torch.float16"),
                         ((torch.ones(16, 4).T, w), "a has strides (1, 4)"),
                         ((a, w[:, :8]), "expected (M, K)")):
        with pytest.raises(Raised) as refusal:
            subject.matmul_warp_tiles_cuda(*arrays)
        assert says in refusal.value.text


def test_the_launcher_refuses_rows_that_start_anywhere():
    """Here, since a tensor that crosses to the code under test is moved."""
    import torch

    from layer1_kernels import matmul_warp_tiles_cuda

    odd = torch.ones(1 + 4 * 16)[1:].view(4, 16)
    with pytest.raises(ValueError, match="starts at byte 4 of 16, expected"):
        matmul_warp_tiles_cuda(odd, torch.ones(5, 16))


# ---- what the assembler makes, and a device


@pytest.mark.slow
def test_what_the_assembler_makes():
    """No spills.
    Where two blocks are asked for, they fit; without that, 16 k at a time do not."""
    from layer1_kernels.bench.k16_warp_tiles import limits

    rows = limits()
    assert {row.blocks for row in rows if row.bound} == {2}
    assert all(row.spills == 0 for row in rows)
    assert all(row.registers <= 128 for row in rows if row.blocks == 2)
    free = {(row.k, row.arch): row.blocks for row in rows if not row.bound
            and row.name == "matmul_buffered_cuda"}
    assert free == {(8, "sm_80"): 2, (8, "sm_90"): 2, (16, "sm_80"): 1, (16, "sm_90"): 1}


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("M, N, K", [(3, 5, 8), (129, 127, 20), (1000, 1000, 1000),
                                     (1024, 2048, 512)])
def test_every_kernel_on_the_device(kernel, M, N, K):
    import torch

    from layer1_kernels import matmul_warp_tiles_cuda

    a, w = (torch.randn(rows, K, device="cuda") for rows in (M, N))
    got = matmul_warp_tiles_cuda(a, w, kernel).double()
    assert torch.allclose(got, a.double() @ w.double().T, rtol=2e-5, atol=1e-4)


@pytest.mark.gpu
def test_matmul_buffered_cuda_speed(pace):
    pace("matmul_warp_tiles_cuda", numbers("float32", 4096, 4096), numbers("float32", 4096, 4096))
