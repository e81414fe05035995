"""Graders of k01.
Outputs start as 7e7, which no sum here is, so that unwritten places show."""

from functools import partial

import numpy as np
import pytest

from lab import device
from lab.judge.adversarial import VALUES
from lab.judge.mistakes import mistake, same_report
from lab.judge.pace import numbers
from lab.judge.work import same_work
from tests.layer1_kernels.mistake_rows import different

SIZES = [1, 127, 129, 1000]
THREADS = 128
UNWRITTEN = 7e7
ASSUMED = "the code assumes blocks of {} threads; blockDim.x says how many there are"
CUDA = ("add_cuda", "add_chunk_cuda", "add_grid_stride_cuda", "add_vector_cuda")
ADD = [(5000, 96), (1000, 128), (129, 128), (127, 128), (513, 32), (2000, 256), (1, 128),
       (0, 128)]                                                            # n, threads
GRID_STRIDE = [(1000, 1, 128), (1000, 3, 128), (129, 1, 128), (129, 3, 128), (127, 1, 128),
               (127, 3, 128), (384, 3, 128), (385, 3, 128), (1000, 2, 256), (999, 5, 32),
               (500, 2, 96), (1, 1, 128), (1, 3, 128), (0, 2, 128)]         # n, blocks, threads
VECTOR = [(5003, 96), (1000, 128), (129, 128), (127, 128), (1002, 128), (1023, 64), (1025, 64),
          (2001, 256), (5, 128), (4, 128), (3, 128), (2, 128), (1, 128), (0, 128)]  # n, threads
PROGRAMS = [(5000, 256, "float32"), (513, 256, "float32"), (129, 256, "float32"),
            (127, 256, "float32"), (1000, 128, "float32"), (4500, 2048, "float32"),
            (1025, 1024, "float32"), (1000, 64, "float16"), (999, 512, "bfloat16"),
            (1, 256, "float32"), (0, 256, "float32")]                       # n, BLOCK, dtype
DESCRIBED = {
    "unrounded": "numbers that no 16-bit type can hold", "exact_sums": "eighths up to 250",
    "shifted": "numbers around 200", "negative": "negative numbers only",
    "equal": "all numbers equal", "uneven": "numbers from 0.001 to 1000",
    "infinite": "-inf among the numbers", "not_a_number": "a NaN in x and one in y",
    "signed_zeros": "0 and -0 among the numbers", "denormal": "numbers of 1e-40",
    "tied": "whole numbers from 0 to 2"}


# ---- vectors, launches, and what goes wrong


def vectors(rng, n, kind="unrounded"):              # -> (n,), (n,), (n,)
    """x, y and what z holds before."""
    return *(VALUES[kind](rng, (1, n))[0] for _ in range(2)), np.full(n, UNWRITTEN, np.float32)


def hard(rng):
    """(x, y, z, what) of each kind of numbers, in three rows, which no kernel here sees."""
    for kind, what in DESCRIBED.items():
        x, y = (VALUES[kind](rng, (3, 43)) for _ in range(2))
        yield x, np.roll(y, 1), np.full_like(x, UNWRITTEN), what


def place(block, each=1, blocks=None):
    """at(index): whose element that is.  blocks: of a grid that takes it round by round"""
    def at(index):
        i = index[0]
        if blocks:
            return (f"element {i} (round {i // block // blocks} of thread {i % block} of block "
                    f"{i // block % blocks})")
        within = f", its element {i % each} of 0 to {each - 1}" if each > 1 else ""
        return f"element {i} (thread {i // each % block} of block {i // each // block}{within})"
    return at


def of_values(x, y):
    """{mistake: (sentence, what it gives)} for any way of adding."""
    want = x + y
    tiny = np.abs(want) < 2.0**-126
    return {
        "x_alone": ("x is stored and y left out", x),
        "y_alone": ("y is stored and x left out", y),
        "y_subtracted": ("y is subtracted from x", x - y),
        "x_subtracted": ("x is subtracted from y", y - x),
        "x_twice": ("x is added to itself and y left out", x + x),
        "y_twice": ("y is added to itself and x left out", y + y),
        "negatives_cut": ("negative sums are replaced by 0", np.maximum(want, 0)),
        "made_finite": ("NaN or infinities are replaced by numbers", np.nan_to_num(want)),
        "flushed": ("numbers below 1e-38 are replaced by 0", np.where(tiny, 0, want)),
        "multiplied": ("x and y are multiplied", x * y),    # after the flush: it gives 0 as well
        "not_stored": ("nothing is written, or the sum is added to what z held before",
                       np.full_like(x, UNWRITTEN))}


def fixed_blocks(words, i, blocks, threads, each=1):
    """{mistake: (sentence, which elements are written)} of code that assumes a size of blocks.

    words: with {} in place of that size
    """
    rows = {}
    for size in (64, 128, 256, 512, 1024):
        first = np.arange(blocks)[:, None] * size + np.arange(threads)
        rows[f"blocks_of_{size}"] = (
            words.format(size), np.isin(i, each * first[..., None] + np.arange(each)))
    return rows


def wrong_starts(i, blocks, threads):
    """{mistake: (sentence, which elements are written)} of one element a thread, with a wrong i."""
    b = np.arange(blocks)[:, None]
    t = np.arange(threads)
    return {
        "no_block": ("i leaves blockIdx.x out, so every block writes the first elements",
                     i < threads),
        "grid_for_block": ("gridDim.x stands where blockDim.x should: each block before this one "
                           "has blockDim.x threads", np.isin(i, b * blocks + t)),
        "one_apart": ("blocks start one element apart: blockIdx.x is not multiplied by blockDim.x",
                      np.isin(i, b + t)),
        "exchanged": ("block and thread are exchanged: blockIdx.x is what blockDim.x multiplies",
                      np.isin(i, t * threads + b)),
    }


def strided(i, starts, step):
    """Which elements are written by threads that go on from their starts by `step` each time."""
    first = np.full(step, i.size)
    np.minimum.at(first, starts.ravel() % step, starts.ravel())
    return i >= first[i % step]


def mixed(x, y, want, tail):
    """{mistake: (sentence, what it gives)} where parts of a four are added to other parts."""
    rows = {}
    for k, to in enumerate("xyzw"):
        for j, other in enumerate("xyzw"):
            if j != k:
                z = want.copy()
                z[k:tail:4] = x[k:tail:4] + y[j:tail:4]
                rows[f"{to}_with_{other}"] = f"in a four, .{to} of x is added to .{other} of y", z
    z = want.copy()
    z[:tail] = np.repeat(want[0:tail:4], 4)
    return rows | {"one_for_four": ("in a four, the sum of .x is stored in all four places", z)}


def right(agree, name, x, y, z, what, at, written=None, before=UNWRITTEN, gives=None):
    """z is x + y. written: {mistake: (sentence, which elements it writes)};  before: what z held
    gives: {mistake: (sentence, what it gives)}
    """
    x, y, z, i = x.reshape(-1), y.reshape(-1), z.reshape(-1), np.arange(x.size)
    written = (written or {}) | {
        "last_left_out": ("the last element is left out: check the bound", i < x.size - 1),
        "short_index": ("i is kept in 16 bits", i < 2**16),
        "short_n": ("n is kept in 16 bits", i < x.size % 2**16)}
    with np.errstate(all="ignore"):
        want = x + y                                # one rounding, as a float32 addition has it
        agree(z, want, "exact", f"{name}, {what}", at, different({
            known: (sentence, np.where(where, want, before))
            for known, (sentence, where) in written.items()
        } | of_values(x, y) | (gives or {}), want), unwritten=before)


def every_value(agree, rng, name, launch, at):
    """launch(x, y, z) of each kind of numbers is right."""
    for x, y, z, what in hard(rng):
        launch(x, y, z)
        right(agree, name, x, y, z, what, at)


def economical(name, launch, n, lane_bytes):
    """Each number moved once, by requests that want what they move and are as few as can be."""
    for op, arrays, known in (("load", 2, "read_again"), ("store", 1, "written_again")):
        moved = launch.bytes(op)
        least = 4 * arrays * n
        assert moved <= least, mistake(
            known, f"{name} {op}s {moved:,} bytes for {n} elements; {least:,} are enough. Move "
                   f"each number once.")
        got = launch.sectors_per_request(op)
        idle = "idle_lanes", "Some threads of each warp do nothing: give every thread an element."
        known, meaning = idle if got < lane_bytes else (
            "far_apart", "Give neighbouring threads neighbouring elements.")
        assert got == lane_bytes, mistake(
            known, f"{name}: one {op} request of a full warp touches {got:g} sectors; its "
                   f"{32 * lane_bytes} bytes fit in {lane_bytes}. {meaning}", meaning)
        requests = launch.requests(op)
        fewest = least // (32 * lane_bytes)
        known, meaning = idle if lane_bytes < 16 else (
            f"one_by_one_{op}", f"{op.capitalize()} four floats at once, as one float4.")
        assert requests == fewest, mistake(
            known, f"{name} makes {requests} {op} requests for {n} elements; {fewest} are enough. "
                   f"{meaning}", meaning)


# ---- CUDA, one element a thread


def test_add_cuda(subject, agree, rng):
    for n, threads in ADD:
        add(subject, agree, rng, n, threads)
    every_value(agree, rng, "add_cuda", lambda x, y, z: subject.launch(
        "add_cuda", 2, 96, (x, y, z, x.size)), place(96))


def add(subject, agree, rng, n, threads):
    (x, y, z), i, blocks = vectors(rng, n), np.arange(n), max(-(-n // threads), 1)
    subject.launch("add_cuda", blocks, threads, (x, y, z, n))
    right(agree, "add_cuda", x, y, z, f"{n} elements in blocks of {threads}", place(threads), {
        **wrong_starts(i, blocks, threads),
        **fixed_blocks(ASSUMED, i, blocks, threads)})


def test_add_cuda__work(subject, reference, agree, rng):
    x, y, z = vectors(rng, 2048)
    args = 16, 128, (x, y, z, 2048)
    launch = subject.launch("add_cuda", *args)
    economical("add_cuda", launch, 2048, 4)
    same_work("add_cuda", launch, reference.launch("add_cuda", *args))
    add(subject, agree, rng, 70_001, 1024)


def test_predict_sectors_per_request(subject, reference, rng):
    x, y, z = vectors(rng, 1024)
    want = reference.launch("add_chunk_cuda", 2, 128, (x, y, z, 1024)).sectors_per_request("load")
    got = subject.predict_sectors_per_request()
    assert isinstance(got, (int, float)), mistake(
        "no_count", f"predict_sectors_per_request: expected a whole number, got {got!r}")
    known, why = {
        4: ("coalesced", "4 is right for threads 4 bytes apart; here they are 16 bytes apart."),
        32: ("one_each", "32 would be a sector for each thread; here two threads share one."),
        8: ("eight_apart", "8 would be right if the threads read 8 bytes apart."),
        500: ("bytes", "500 is the number of bytes from the first to the last; a sector has 32."),
        512: ("bytes", "512 is a number of bytes; a sector has 32."),
    }.get(got, ("other", "Count the bytes from the first of thread 0 to the last of thread 31."))
    assert got == want, mistake(
        known, f"predict_sectors_per_request: the simulator does not count {got} sectors in one "
               f"load request. {why}", why)


# ---- CUDA, a grid of any size


def test_add_grid_stride_cuda(subject, agree, rng):
    for sizes in GRID_STRIDE:
        add_grid_stride(subject, agree, rng, *sizes)
    every_value(agree, rng, "add_grid_stride_cuda", lambda x, y, z: subject.launch(
        "add_grid_stride_cuda", 2, 32, (x, y, z, x.size)), place(32, blocks=2))


def add_grid_stride(subject, agree, rng, n, blocks, threads):
    (x, y, z), i, step = vectors(rng, n), np.arange(n), blocks * threads
    subject.launch("add_grid_stride_cuda", blocks, threads, (x, y, z, n))
    right(agree, "add_grid_stride_cuda", x, y, z, f"{n} elements by {blocks} block(s) of {threads}",
          place(threads, blocks=blocks), {
              "one_round": ("each thread stops after one element, or steps too far", i < step),
              "round_early": ("each thread leaves out its last element: the bound of i is n",
                              i < n - step),
              "whole_rounds": ("the last round, in which only some threads have an element, is "
                               "left out", i < n - n % step),
              "first_block_left_out": ("the first block's threads are left out", i >= threads),
              "no_block": ("every block starts with the elements of the first: blockIdx.x is left "
                           "out", i % step < threads),
              "sum_for_product": ("the step is gridDim.x + blockDim.x, not their product", strided(
                  i, np.arange(step), blocks + threads)),
              "two_grids": ("each thread steps by two grids", i // step % 2 == 0),
              "four_grids": ("each thread steps by four grids", i // step % 4 == 0),
              "grid_for_block": ("blocks start gridDim.x elements apart, not blockDim.x", strided(
                  i, np.arange(blocks)[:, None] * blocks + np.arange(threads), step)),
              "one_apart": ("blocks start one element apart, not blockDim.x", strided(
                  i, np.arange(blocks)[:, None] + np.arange(threads), step)),
              **{f"blocks_of_{size}": (ASSUMED.format(size), i % size < threads)
                 for size in (128, 256)},
              **{f"{number}_rounds": (f"each thread stops after {number} elements",
                                      i < number * step) for number in (2, 4, 8)}})


def test_add_grid_stride_cuda__each_element_once(subject, reference, agree, rng):
    """Also in a grid whose size and whose blocks are not powers of two."""
    for blocks, threads in ((4, 128), (6, 160)):
        n = 16 * blocks * threads
        x, y, z = vectors(rng, n)
        launch = subject.launch("add_grid_stride_cuda", blocks, threads, (x, y, z, n))
        moved, least = launch.bytes("load"), 2 * 4 * n
        assert moved <= least, mistake(
            "step_of_a_block", f"add_grid_stride_cuda reads {moved:,} bytes; {least:,} are enough: "
            f"some elements are added more than once. The step must be all threads in the grid, "
            f"not those of one block.")
        got = launch.sectors_per_request("load")
        assert got >= 4, mistake(
            "idle_threads", f"add_grid_stride_cuda: one load request touches {got:g} of the 4 "
            f"sectors that the 32 threads of a warp need, so some threads add nothing. Each thread "
            f"has an element of its own to start at: blockIdx.x * blockDim.x + threadIdx.x.")
        assert got == 4, mistake(
            "far_apart", f"add_grid_stride_cuda: one load request touches {got:g} sectors; 4 are "
            f"enough. Neighbouring threads should have neighbouring elements in each round: start "
            f"at blockIdx.x * blockDim.x + threadIdx.x, and step by the whole grid.")
        economical("add_grid_stride_cuda", launch, n, 4)
        same_work("add_grid_stride_cuda", launch, reference.launch(
            "add_grid_stride_cuda", blocks, threads, (x, y, z, n)))
    add_grid_stride(subject, agree, rng, 70_001, 3, 512)


# ---- CUDA, sixteen bytes at once


def test_add_vector_cuda(subject, agree, rng):
    for n, threads in VECTOR:
        add_vector(subject, agree, rng, n, threads)
    every_value(agree, rng, "add_vector_cuda", lambda x, y, z: subject.launch(
        "add_vector_cuda", 2, 32, (x, y, z, x.size)), place(32, 4))


def add_vector(subject, agree, rng, n, threads):
    (x, y, z), i, tail = vectors(rng, n), np.arange(n), n - n % 4
    blocks = max(-(-n // (4 * threads)), 1)
    subject.launch("add_vector_cuda", blocks, threads, (x, y, z, n))
    right(agree, "add_vector_cuda", x, y, z,
          f"{n} elements, four a thread, in blocks of {threads}", place(threads, 4), {
              **wrong_starts(i // 4, blocks, threads),
              "tail_left_out": ("the last n % 4 elements are left out", i < tail),
              "first_of_tail": ("of the last n % 4 elements only the first is written", i <= tail),
              "tail_from_second": ("of the last n % 4 elements the first is left out", i != tail),
              **fixed_blocks(ASSUMED, i, blocks, threads, 4),
              "one_of_four": ("only the first of each four is written", i % 4 == 0)},
          gives=mixed(x, y, x + y, tail))


def test_add_vector_cuda__rest(subject, rng):
    """Two threads or four have work; the others of the block have none."""
    for n in (5, 6, 7, 15):
        x, y, z = vectors(rng, n)
        launch = subject.launch("add_vector_cuda", 1, 128, (x, y, z, n))
        written = launch.bytes("store") // 4
        known, meaning = (
            ("both_ways", "The four elements of a thread are added at once and again one by one: "
                          "is an `else` missing?") if written == n + n // 4 * 4 else
            ("tail_by_all", "The last n % 4 elements are for one thread, or one each; the threads "
                            "after it write nothing."))
        assert written == n, mistake(
            known, f"add_vector_cuda, {n} elements in a block of 128: {written} are written. "
                   f"{meaning}", meaning)


def test_add_vector_cuda__sixteen_bytes(subject, reference, agree, rng):
    x, y, z = vectors(rng, 4096)
    args = 8, 128, (x, y, z, 4096)
    launch = subject.launch("add_vector_cuda", *args)
    requests, enough = launch.requests("load"), 2 * 4096 // 128     # 128 elements a warp's request
    known, meaning = (
        ("last_four_apart", "The last complete group of four is added one by one too: check the "
                            "comparison.") if requests < 2 * enough else
        ("one_by_one_load", "Load four floats at once, as one float4."))
    assert requests == enough, mistake(
        known, f"add_vector_cuda makes {requests} load requests for 4096 elements; {enough} are "
               f"enough. {meaning}", meaning)
    economical("add_vector_cuda", launch, 4096, 16)
    same_work("add_vector_cuda", launch, reference.launch("add_vector_cuda", *args))
    x, y, z = vectors(rng, 4099)
    args = 9, 128, (x, y, z, 4099)
    same_work("add_vector_cuda, 4099 elements in blocks of 128",
              *(side.launch("add_vector_cuda", *args) for side in (subject, reference)))
    add_vector(subject, agree, rng, 70_003, 1024)


# ---- Triton


def test_add_triton(subject, agree, rng):
    for n, block, dtype in PROGRAMS:
        launched(subject, agree, *vectors(rng, n), block, dtype,
                 f"{n} {dtype} elements in programs of {block}")
    for x, y, z, what in hard(rng):
        launched(subject, agree, x, y, z, 64, "float32", what)


def launched(subject, agree, x, y, z, block, dtype, what):
    """add_triton of x and y, rounded to dtype, is right."""
    n, before = x.size, UNWRITTEN if dtype == "float32" else 7      # which any type holds
    a, b, c = tensors(x, y, np.full_like(z, before), dtype=dtype)
    programs, i = max(-(-n // block), 1), np.arange(n)
    with same_report("all_positions", "A program has only the BLOCK positions of its own, and "
                     "works on them at once: no loop over n.", kind="endless"):
        subject.launch("add_triton", programs, args=(a, b, c, n), BLOCK=block)

    def at(index):
        return f"element {index[0]} (position {index[0] % block} in program {index[0] // block})"

    with np.errstate(all="ignore"):
        want = (a + b).float().numpy().reshape(-1)                  # one rounding to dtype
    if dtype != "float32":
        return agree(c.float().numpy(), want, "exact", f"add_triton, {what}", at, unwritten=before)
    right(agree, "add_triton", x, y, c.numpy(), what, at, {
        "no_program": ("every program works on the first block, or the mask keeps the first block "
                       "alone", i < block),
        "number_of_programs": (
            "the programs start num_programs elements apart instead of one block apart",
            np.isin(i, np.arange(programs)[:, None] * programs + np.arange(block))),
        **{f"always_{size}": (f"each program has {size} elements, whatever BLOCK says",
                              i < programs * size) for size in (256, 512, 1024)},
        "one_apart": ("the programs start one element apart instead of one block apart",
                      i < block + programs - 1),
        **fixed_blocks("the code assumes programs of {} elements; BLOCK says how many there are",
                       i, programs, block)})


def test_add_triton__wide_types(subject, agree, rng):
    """float32 keeps 24 bits of a number; float64 has 53 of them and int32 has 31."""
    for dtype, pair in (("float64", rng.standard_normal((2, 300))),
                        ("int32", rng.integers(-2**29, 2**29, (2, 300)))):
        x, y, z = tensors(*pair, np.full(300, 7), dtype=dtype)
        subject.launch("add_triton", 5, args=(x, y, z, 300), BLOCK=64)
        want = (x + y).numpy()
        agree(z, want, "exact", f"add_triton, 300 {dtype} elements in programs of 64", mistakes={
            "inputs_to_float32": (f"x and y are converted to float32; {dtype} keeps more digits",
                                  x.float().numpy() + y.float().numpy()),
            "sum_to_float32": (f"the sum is converted to float32; {dtype} keeps more digits",
                               want.astype(np.float32))}, unwritten=7)


def test_add_triton__work(subject, reference, agree, rng):
    """Every number is moved once, and 32 lanes ask for neighbours, 16 bytes each."""
    x, y, z = vectors(rng, 4096)
    args = tensors(x, y, z) + (4096,)
    launch = subject.launch("add_triton", 8, args=args, BLOCK=512)
    moved, least = launch.bytes("load"), x.nbytes + y.nbytes
    assert moved == least, mistake(
        "read_again", f"add_triton loads {moved:,} bytes for two arrays of {x.nbytes:,}: each "
        f"number should be loaded once.")
    requests, enough = launch.requests("load"), 2 * 4096 // 128     # 128 elements a warp's request
    assert requests == enough, mistake(
        "shuffled", f"add_triton makes {requests} load requests for 4096 elements; {enough} are "
        f"enough. Neighbouring positions must be neighbouring addresses; then the compiler turns "
        f"four loads into one.")
    economical("add_triton", launch, 4096, 16)
    same_work("add_triton", launch, reference.launch("add_triton", 8, args=args, BLOCK=512))
    launched(subject, agree, *vectors(rng, 70_001), 512, "float32", "70001 elements")


def tensors(*arrays, dtype="float32"):
    """CPU tensors; those of float32 share the arrays' memory."""
    import torch

    return tuple(torch.from_numpy(a).to(getattr(torch, dtype)) for a in arrays)


# ---- the course's own launchers


@pytest.mark.parametrize("n", [0, 1, 127, 129, 1000])
def test_public_functions(rng, n):
    """Whatever the address: one that is not a multiple of 16 gets another kernel."""
    import torch

    from layer1_kernels import vector_add, vector_add_cuda

    if device.gpu() is None:
        device.use_simulator()
    x, y = torch.from_numpy(rng.standard_normal((2, n + 1), dtype=np.float32))
    for a, b in ((x[:n], y[:n].clone()), (x[1:], y[1:])):
        for add in (vector_add, vector_add_cuda):
            assert torch.equal(add(a, b), a + b)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_extreme_values(dtype):
    """Overflow is as in torch, and inf or NaN spoils only its own element."""
    import torch

    from layer1_kernels import vector_add, vector_add_cuda

    if device.gpu() is None:
        device.use_simulator()
    dtype, inf, nan = getattr(torch, dtype), torch.inf, torch.nan
    most = torch.finfo(dtype).max
    x = torch.tensor([inf, -inf, inf, nan, 1, most, -most, most, 0.0, 1], dtype=dtype)
    y = torch.tensor([1, 1, -inf, 1, nan, most, -most, -most, -0.0, 2], dtype=dtype)
    want = torch.tensor([inf, -inf, nan, nan, nan, inf, -inf, 0, 0, 3], dtype=dtype)
    adds = [vector_add] if dtype != torch.float32 else [vector_add] + [
        partial(vector_add_cuda, kernel=kernel) for kernel in CUDA]
    for add in adds:
        assert torch.equal((x + y).nan_to_num(nan=7), want.nan_to_num(nan=7))
        assert torch.equal(add(x, y).nan_to_num(nan=7), want.nan_to_num(nan=7)), add


def test_bad_input():
    import torch

    from layer1_kernels import vector_add, vector_add_cuda

    x = torch.zeros(9)
    for add in (vector_add, vector_add_cuda):
        with pytest.raises(ValueError, match="expected the same"):
            add(x, x[1:])
        with pytest.raises(ValueError, match="expected it to be contiguous"):
            add(x[::2], x[::2])
    long = torch.empty(2**31 // 5 * 4, device="meta")
    for add in (vector_add, vector_add_cuda):       # i + step would pass 2^31 in a grid-stride loop
        with pytest.raises(ValueError, match="expected at most 1717985"):
            add(long, long)
    with pytest.raises(TypeError, match="expected float32"):
        vector_add_cuda(x.half(), x.half())
    with pytest.raises(ValueError, match="multiples of 16"):
        vector_add_cuda(x[1:], x[1:], "add_vector_cuda")


@pytest.mark.slow
def test_the_last_cuda_step_does_not_spill():
    from layer1_kernels.k01_vector_add import KERNELS

    assert KERNELS.get("add_vector_cuda").resources.spill_stores == 0


@pytest.mark.gpu
@pytest.mark.parametrize("n", [0, *SIZES, 2**20 + 3])
def test_every_kernel_on_the_device(n):
    import torch

    from layer1_kernels import vector_add, vector_add_cuda

    x, y = (torch.randn(n, device="cuda") for _ in range(2))
    assert torch.equal(vector_add(x, y), x + y)
    for kernel in ("add_cuda", "add_chunk_cuda", "add_grid_stride_cuda", "add_vector_cuda"):
        assert torch.equal(vector_add_cuda(x, y, kernel), x + y), kernel


@pytest.mark.gpu
def test_add_vector_cuda_speed(pace):
    pace("vector_add_cuda", numbers("float32", 1 << 25), numbers("float32", 1 << 25))


@pytest.mark.gpu
def test_add_triton_speed(pace):
    pace("vector_add", numbers("float32", 1 << 25), numbers("float32", 1 << 25))
