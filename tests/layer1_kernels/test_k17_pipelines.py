"""Graders of k17.
Outputs start as 7, so that unwritten places show."""

import re

import numpy as np
import pytest

from lab.judge.mistakes import mistake, named
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work
from tests.layer1_kernels.matmul_cases import matrices, product

TILE, BK, CHUNK, STAGES = 64, 64, 8, 3
STAGE_BYTES = TILE * BK * 2             # of one operand
THREADS = {"matmul_mma_cuda": 128, "matmul_staged_cuda": 128, "matmul_ring_cuda": 160}
RAGGED = 65, 70, 328                    # four blocks; 6 steps, the last of them ragged
ONE_BLOCK = 64, 64, 320                 # 5 steps
FLAT = {"BM": 32, "BN": 64, "BK": 32, "GROUP": 8, "num_warps": 4, "num_stages": 3}


def run(subject, kernel, a, w):
    """(c, launch)."""
    (M, K), N = a.shape, len(w)
    c = np.full((M, N), 7, np.float32)
    grid = -(-N // TILE), -(-M // TILE)
    return c, subject.launch(kernel, grid, THREADS[kernel], (a, w, c, M, N, K))


def right(agree, kernel, a, w, c, mistakes=None):
    """c is a · wᵀ, or the message names the element and the likely mistake."""
    k = np.arange(a.shape[1])
    want = product(a, w)
    agree(c, want, "float32", f"{kernel}, a {a.shape} and w {w.shape}",
          lambda index: f"row {index[0]}, column {index[1]} of c", (mistakes or {}) | {
              "too_few_digits": ("the sums have too few digits: they are fp32", want),
              "tail": ("the last k are left out, those of a step that is not full",
                       product(a, w, k < len(k) // BK * BK)),
              "first_step_alone": ("only the first step is added up", product(a, w, k < BK)),
              "no_store": ("nothing is written to c", np.full(want.shape, 7))}, unwritten=7)


def report(name, sentence, *parts, stage=None):
    """Within this context, a report of the simulator that has all these parts is the mistake
    `name`. stage: of a_tile, in which it lies"""
    def applies(error):
        text = getattr(error, "text", "")
        place = re.search(r"`a_tile` at byte (\d+)", text)
        return all(part in text for part in parts) and (
            stage is None or place is not None and int(place[1]) // STAGE_BYTES == stage)
    return named(name, sentence, applies)


# ---- predictions


def test_bytes_in_flight(subject, reference, rng):
    """A pair of tiles is as large as what the course's kernel loads in a step."""
    a, w = matrices(rng, *ONE_BLOCK, np.float16)
    pair = run(reference, "matmul_mma_cuda", a, w)[1].bytes("load") // 5
    for stages in (1, 2, 3, 7):
        got = subject.bytes_in_flight(stages)
        why = {stages * pair: ("tile_in_use", "one stage is being multiplied, and not copied"),
               (stages - 1) * pair // 2: ("one_operand", "a step copies a tile of a and one of w, "
                                          "and each number has two bytes"),
               (stages - 1) * pair // 4: ("numbers", "a tile of 64 x 64 numbers of fp16 has 8,192 "
                                          "bytes, and there are two")}
        name, sentence = why.get(got, ("other", "count the stages that are not being multiplied"))
        want = (stages - 1) * pair
        assert got == want, mistake(name, f"bytes_in_flight({stages}): {got}, expected {want}: "
                                    f"{sentence}", sentence)


def test_predict_ways(subject, reference):
    launch = reference.launch("read_rows_cuda", 1, 32, (np.zeros((32, 4), np.int32), BK))
    counts = launch.memory("shared", "load")
    want = counts["transactions"] // counts["ideal"]
    got = subject.predict_ways()
    assert isinstance(got, (int, float)), mistake(
        "no_number", f"predict_ways: expected a number, got {got!r}")
    why = {1: ("no_conflict", "16 bytes of one lane lie in four banks, but eight lanes are served "
                              "together"),
           4: ("matrices", "the four matrices come one after the other anyway"),
           32: ("all_lanes", "eight lanes are served at a time, not 32"),
           2: ("pairs", "rows of 128 bytes all begin in bank 0, not every other one")}
    name, sentence = why.get(got, ("other", "32 banks of 4 bytes are 128 bytes: where does the "
                                   "next row begin?"))
    assert got == want, mistake(
        name, f"predict_ways: {got:g} times is not what the simulator counts: {sentence}", sentence)


# ---- one tile


def test_swizzle_cuda(subject, agree, rng):
    """A tile is written and read by the rule; nothing is multiplied."""
    x = rng.permutation(TILE * BK).reshape(TILE, BK).astype(np.uint16).view(np.float16)
    y = np.full_like(x, 7)
    with report("same_place", "Two pieces of a row have one place: each of the eight needs its "
                "own.", "race", "different values"), \
            report("beyond_the_row", "A row has places 0 to 7: take the row modulo 8.",
                   "out-of-bounds"):
        launch = subject.launch("read_tile_cuda", 1, 32, (x, y))
    agree(y.view(np.uint16), x.view(np.uint16), "exact", "a tile that is read again",
          lambda i: f"row {i[0]}, piece {i[1] // CHUNK}")
    ways = launch.memory("shared", "load")
    ways = ways["transactions"] / ways["ideal"]
    why = {8: ("same_bank", "eight rows that follow each other begin in the same bank"),
           2: ("four_rows", "eight rows are read at once, and only four differ")}
    name, sentence = why.get(round(ways), ("bank_conflicts", "some of eight rows that follow each "
                                           "other share a bank"))
    assert ways == 1, mistake(name, f"swizzle_cuda: ldmatrix takes {ways:.3g} times as long as "
                              f"without conflicts: {sentence}", sentence)


def pieces(x, places):
    """x with the pieces of each step exchanged: row r finds at piece c that of places[r, c]."""
    rows, K = x.shape
    whole = np.pad(x, [(0, 0), (0, -K % BK)]).reshape(rows, -1, BK // CHUNK, CHUNK)
    return whole[np.arange(rows)[:, None], :, places[:rows]].transpose(0, 2, 1, 3).reshape(
        rows, -1)


def by_pairs(a, w):
    """c where r[0] and r[1] are taken for one column's halves of k, then r[2] and r[3]."""
    N, K = w.shape
    whole = np.pad(w, [(0, -N % 16), (0, -K % 16)])
    r = whole.reshape(len(whole) // 16, 2, 8, -1, 2, 8)         # tile, n half, n, step, k half, k
    taken = r.transpose(0, 4, 2, 3, 1, 5).reshape(whole.shape)
    return product(np.pad(a, [(0, 0), (0, -K % 16)]), taken)[:, :N]


def test_multiply_tile_cuda(subject, reference, agree, rng):
    a, w = matrices(rng, *RAGGED, np.float16)
    c, launch = run(subject, "matmul_mma_cuda", a, w)
    k, row = np.arange(a.shape[1]), np.arange(128)[:, None]
    turned = np.arange(8) ^ row % 8
    full = [np.pad(x, [(0, 0), (0, -len(k) % BK)]) for x in (a, w)]
    half = k % BK < BK // 2
    right(agree, "multiply_tile_cuda", a, w, c, {
        "pairs": ("the two registers of a column's k are r[j] and r[j + 2], not neighbours",
                  by_pairs(a, w)),
        "half_of_k": ("only half of a tile's k are multiplied: a step of 16 k has two pieces",
                      product(a, w, half)),
        "plain_read": ("the tiles are read as if they had not been swizzled",
                       product(pieces(a, turned), pieces(w, turned))),
        "plain_read_of_a": ("a_tile is read as if it had not been swizzled",
                            product(pieces(a, turned), full[1])),
        "plain_read_of_w": ("w_tile is read as if it had not been swizzled",
                            product(full[0], pieces(w, turned))),
        "first_rows": ("the second 16 rows of the warp's quarter are taken to be the first",
                       product(a[np.arange(len(a)) // 32 * 32 + np.arange(len(a)) % 16], w))})
    _, own = run(reference, "matmul_mma_cuda", a, w)
    same_work("multiply_tile_cuda", launch, own)


# ---- stages


TOO_YOUNG = "was waited for"
STILL_READ = "is written by cp.async here and read"


def test_matmul_staged_cuda(subject, agree, rng):
    a, w = matrices(rng, *RAGGED, np.float16)
    with report("wait_one_more", "The tile of this step may still be on its way: how many younger "
                "groups may be open?", "race", TOO_YOUNG), \
            report("commit_if_copied", "The count of open groups is one short at the end: without "
                   "a copy there must be an empty group.", "race", TOO_YOUNG, stage=2), \
            report("no_barrier", "You have waited for your own copies. Those of the others are "
                   "there after a barrier that all reach after their waits.", "race",
                   "is read here and written"), \
            report("too_early", "Some warp is still at the step before, which reads this stage: "
                   "start the copy after the barrier.", "race", STILL_READ):
        c, _ = run(subject, "matmul_staged_cuda", a, w)
    right(agree, "matmul_staged_cuda", a, w, c)


def test_matmul_staged_cuda__short(subject, agree, rng):
    """One step, fewer than there are stages; and nothing to add up."""
    for M, N, K in ((3, 5, 8), (2, 2, 0)):
        a, w = matrices(rng, M, N, K, np.float16)
        c, _ = run(subject, "matmul_staged_cuda", a, w)
        agree(c, product(a, w), "float32", f"matmul_staged_cuda, {(M, N, K)}", unwritten=7)


def test_matmul_staged_cuda__work(subject, reference, rng):
    a, w = matrices(rng, *ONE_BLOCK, np.float16)
    launch = run(subject, "matmul_staged_cuda", a, w)[1]
    own = run(reference, "matmul_staged_cuda", a, w)[1]
    steps = ONE_BLOCK[2] // BK
    got = launch.in_flight or 0
    why = "right, but a wait leaves fewer copies on their way than it might"
    assert got >= own.in_flight, mistake(
        "wait_all", f"matmul_staged_cuda: {got:,.0f} bytes are on their way after a wait, on "
        f"average; {own.in_flight:,.0f} may be: {why}", why)
    why = "right, but one barrier a step is enough: after it, all have left the step before"
    assert launch.barriers <= own.barriers, mistake(
        "two_barriers", f"matmul_staged_cuda: {launch.barriers} times a warp reaches a barrier in "
        f"{steps} steps, {own.barriers} are enough: {why}", why)
    same_work("matmul_staged_cuda", launch, own)


# ---- a warp that only copies


def test_matmul_ring_cuda(subject, agree, rng):
    """Two steps, one round of the ring; then three rounds."""
    reports = (
        report("not_yet_full", "A stage is full when its copies are done: await full[s], at which "
               "the copies arrive, not the threads that started them.", "race", TOO_YOUNG),
        report("still_read", "A stage is empty when the others have multiplied it: they arrive at "
               "empty[s] after that, and warp 4 awaits it.", "race", STILL_READ),
        report("phase_each_step", "A stage's phase ends once a round, every RING steps.",
               "uninitialised"))
    blocked = "No thread arrives: a barrier that was never used counts as free for the phase " \
              "before its first, and each stage needs both arrivals in each round."
    with named("blocked", blocked, lambda error: getattr(error, "kind", "") in (
            "deadlock", "endless")), reports[0], reports[1], reports[2]:
        a, w = matrices(rng, 65, 70, 2 * BK, np.float16)
        right(agree, "matmul_ring_cuda", a, w, run(subject, "matmul_ring_cuda", a, w)[0])
        a, w = matrices(rng, *RAGGED, np.float16)
        c, _ = run(subject, "matmul_ring_cuda", a, w)
    why = "right as long as no stage is used twice: which phase is it the second time?"
    again = differ(c, product(a, w))
    assert not again, mistake("phase_stays", f"matmul_ring_cuda, 6 steps: {again} of {c.size} "
                              f"numbers of c are wrong, though 2 steps come out {why}", why)


def differ(c, want):
    """How many numbers of c are wrong."""
    return int((np.abs(c - want) > 1e-4 * np.abs(want).max()).sum())


def test_matmul_ring_cuda__work(subject, reference, rng):
    a, w = matrices(rng, *ONE_BLOCK, np.float16)
    launches = [run(side, "matmul_ring_cuda", a, w)[1] for side in (subject, reference)]
    same_work("matmul_ring_cuda", *launches)


# ---- Triton


def flat_tiles(c, order):
    """The parts of c that the tiles are, in the order of their numbers."""
    rows = -(-c.shape[0] // FLAT["BM"])
    return [(slice(p % rows * FLAT["BM"], (p % rows + 1) * FLAT["BM"]),
             slice(p // rows * FLAT["BN"], (p // rows + 1) * FLAT["BN"])) for p in order]


def test_matmul_flat_triton(subject, agree, rng):
    import torch

    M, N, K, P = 70, 136, 72, 4                     # 9 tiles
    a, w = (torch.from_numpy(x) for x in matrices(rng, M, N, K, np.float16))
    c = torch.full((M, N), 7, dtype=torch.float16)
    subject.launch_flat(a, w, c, P, FLAT)
    left, right_ = a.double().numpy(), w.double().numpy()
    want = left @ right_.T
    tiles = flat_tiles(want, range(9))
    padded = np.pad(left, [(0, 26), (0, 0)]) @ np.pad(right_, [(0, 56), (0, 0)]).T
    neighbours, summed = (np.full((M, N), 7.0) for _ in range(2))
    for p in range(P):
        own = range(p, 9, P)
        for j in range(len(own)):
            if p + j < 9:
                neighbours[tiles[p + j]] = want[tiles[p + j]]
        for j, tile in enumerate(own):
            part = sum(padded[at] for at in flat_tiles(padded[:96, :192], own[:j + 1]))
            rows, columns = want[tiles[tile]].shape
            summed[tiles[tile]] = part[:rows, :columns]
    agree(c, want, "float16", f"matmul_flat_triton, {(M, N, K)}, {P} programs",
          lambda i: f"row {i[0]}, column {i[1]}", {
              "stride_one": ("a program goes on to the next tile, which is another program's: its "
                             "own are P apart", neighbours),
              "not_reset": ("the sums of a program's second tile go on from those of its first",
                            summed),
              "first_tile_alone": ("a program stores its first tile only", np.where(
                  np.isin(number_of(want), range(P)), want, 7)),
              "each_step": ("the sums start again with each step, and not with each tile",
                            left[:, 64:] @ right_[:, 64:].T)}, unwritten=7)


def number_of(c):
    """The tile of each number of c."""
    numbers_ = np.empty(c.shape, int)
    for p, tile in enumerate(flat_tiles(c, range(9))):
        numbers_[tile] = p
    return numbers_


# ---- the course's own launcher


def test_matmul_pipelined_cuda(subject, agree, rng):
    import torch

    for M, N, K in ((1, 129, 128), (3, 5, 1000)):
        a, w = (torch.from_numpy(x) for x in matrices(rng, M, N, K, np.float16))
        want = product(a.numpy(), w.numpy())
        agree(subject.matmul_pipelined_cuda(a, w), want, "float32",
              f"matmul_pipelined_cuda, {(M, N, K)}")


@pytest.mark.parametrize("M, N, K", [(0, 5, 8), (5, 0, 8), (0, 0, 0), (3, 4, 0)])
def test_nothing_to_do(subject, M, N, K):
    import torch

    got = subject.matmul_pipelined_cuda(torch.ones(M, K).half(), torch.ones(N, K).half())
    assert torch.equal(got, torch.zeros(M, N))


def test_what_the_launcher_refuses(subject):
    import torch

    a, w = torch.ones(4, 16).half(), torch.ones(5, 16).half()
    for arrays, says in (((a[:, :12], w[:, :12]), "rows of 12 numbers, expected a multiple of 8"),
                         ((a.float(), w.float()), "a is torch.float32"),
                         ((torch.ones(16, 4).half().T, w), "a has strides (1, 4)"),
                         ((a, w[:, :8]), "expected (M, K)")):
        with pytest.raises(Raised) as refusal:
            subject.matmul_pipelined_cuda(*arrays)
        assert says in refusal.value.text


def test_the_launcher_refuses_rows_that_start_anywhere():
    """Here, since a tensor that crosses to the code under test is moved."""
    import torch

    from layer1_kernels import matmul_pipelined_cuda

    odd = torch.ones(1 + 4 * 16).half()[1:].view(4, 16)
    with pytest.raises(ValueError, match="a starts at byte .* of 16, expected a multiple of 16"):
        matmul_pipelined_cuda(odd, torch.ones(5, 16).half())


# ---- what the assembler makes, and a device


@pytest.mark.slow
def test_what_the_assembler_makes():
    """No spills; registers and shared memory leave five, four and four blocks on an SM."""
    from lab import simulator
    from layer1_kernels.k17_pipelines import KERNELS

    for kernel, shared, blocks in (("matmul_mma_cuda", 16_384, 5),
                                   ("matmul_staged_cuda", 49_152, 4),
                                   ("matmul_ring_cuda", 32_800, 4)):
        for arch in ("sm_80", "sm_90"):
            needs = KERNELS.resources(kernel, arch)
            assert needs.spill_stores == needs.stack == 0 and needs.shared == shared, needs
        fits = simulator.occupancy(KERNELS.resources(kernel, "sm_90"), THREADS[kernel], gpu="H200")
        assert fits.blocks == blocks, kernel


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", THREADS)
@pytest.mark.parametrize("M, N, K", [(3, 5, 8), (65, 70, 328), (1000, 1000, 1000)])
def test_every_kernel_on_the_device(kernel, M, N, K):
    import torch

    from layer1_kernels.k17_pipelines import matmul_pipelined_cuda

    a, w = (torch.randn(rows, K, device="cuda").half() for rows in (M, N))
    got = matmul_pipelined_cuda(a, w, kernel)
    assert torch.allclose(got.double(), a.double() @ w.double().T, rtol=2e-5, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("M, N, K", [(3, 8, 16), (65, 72, 328), (1000, 1000, 1000)])
def test_the_flat_kernel_on_the_device(M, N, K):
    import torch

    from layer1_kernels.k12_tensor_cores import PERSISTENT
    from layer1_kernels.k17_pipelines import launch_flat

    a, w = (torch.randn(rows, K, device="cuda").bfloat16() for rows in (M, N))
    c = torch.empty(M, N, dtype=torch.bfloat16, device="cuda")
    launch_flat(a, w, c, 132, PERSISTENT)
    assert torch.allclose(c.double(), a.double() @ w.double().T, rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
def test_matmul_staged_cuda_speed(pace):
    pace("matmul_pipelined_cuda", numbers("float16", 4096, 4096), numbers("float16", 4096, 4096))
