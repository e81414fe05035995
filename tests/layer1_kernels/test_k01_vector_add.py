"""Graders of k01. Outputs start as 7e7, which no sum here is, so that unwritten places show."""

from functools import partial

import numpy as np
import pytest

from lab import device
from lab.judge.adversarial import VALUES
from lab.judge.pace import numbers
from lab.judge.work import same_work

SIZES = [1, 127, 129, 1000]
THREADS = 128
UNWRITTEN = 7e7
CUDA = ("add_cuda", "add_chunk_cuda", "add_grid_stride_cuda", "add_vector_cuda")
ADD = [(5000, 96), (1000, 128), (129, 128), (127, 128), (513, 32), (2000, 256), (1, 128),
       (0, 128)]                                                            # n, threads
GRID_STRIDE = [(1000, 1, 128), (1000, 3, 128), (129, 1, 128), (129, 3, 128), (127, 1, 128),
               (127, 3, 128), (384, 3, 128), (385, 3, 128), (1000, 2, 256), (999, 5, 32),
               (500, 2, 96), (1, 1, 128), (1, 3, 128), (0, 2, 128)]         # n, blocks, threads
VECTOR = [(5003, 96), (1000, 128), (129, 128), (127, 128), (1002, 128), (1023, 64), (1025, 64),
          (2001, 256), (5, 128), (4, 128), (3, 128), (2, 128), (1, 128), (0, 128)]  # n, threads
PROGRAMS = [(5000, 256, "float32"), (513, 256, "float32"), (129, 256, "float32"),
            (127, 256, "float32"), (1000, 128, "float32"), (1025, 1024, "float32"),
            (1000, 64, "float16"), (999, 512, "bfloat16"), (1, 256, "float32"),
            (0, 256, "float32")]                                            # n, BLOCK, dtype
DESCRIBED = {
    "unrounded": "numbers that no 16-bit type holds", "exact_sums": "eighths up to 250",
    "shifted": "numbers around 200", "negative": "only numbers below 0",
    "equal": "equal numbers throughout", "uneven": "numbers from 0.001 to 1000",
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


def ceil(a, b):
    return -(-a // b)


def place(block, each=1):
    def at(index):
        i = index[0]
        within = f"number {i % each} of the {each} of " if each > 1 else ""
        return f"element {i} ({within}thread {i // each % block} of block {i // each // block})"
    return at


def of_values(name, x, y):
    """{mistake: what it gives} for any way of adding."""
    want, tiny = x + y, 2.0**-126
    return {f"{name} stores x, y is left out": x, f"{name} stores y, x is left out": y,
            f"{name} subtracts y": x - y, f"{name} subtracts x from y": y - x,
            f"{name} adds x to itself, y is left out": x + x,
            f"{name} adds y to itself, x is left out": y + y,
            f"{name} turns what is below 0 into 0": np.maximum(want, 0),
            f"{name} replaces NaN or infinities by numbers": np.nan_to_num(want),
            f"{name} flushes numbers below 1e-38 to 0": np.where(np.abs(want) < tiny, 0, want),
            f"{name} multiplies x and y": x * y,    # after the flush, which gives 0 as well
            f"{name} writes nothing, or adds to what z held before": np.full_like(x, UNWRITTEN)}


def telling(mistakes, want):
    """The mistakes that give something else."""
    return {mistake: gives for mistake, gives in mistakes.items()
            if not np.array_equal(gives, want, equal_nan=True)}


def fixed_blocks(words, i, blocks, threads, each=1):
    """{mistake: which elements are written} where blocks have another size than they are taken for.

    words: with {} in place of that size
    """
    found = {}
    for taken in (64, 128, 256, 512, 1024):
        first = np.arange(blocks)[:, None] * taken + np.arange(threads)
        found[words.format(taken)] = np.isin(i, each * first[..., None] + np.arange(each))
    return found


def wrong_starts(i, blocks, threads):
    """{mistake: which elements are written} of one element a thread, with a wrong number of it."""
    b, t = np.arange(blocks)[:, None], np.arange(threads)
    return {
        "gridDim.x stands where blockDim.x should: blocks before this one have blockDim.x threads":
            np.isin(i, b * blocks + t),
        "blocks start one element apart: blockIdx.x is not multiplied by blockDim.x":
            np.isin(i, b + t),
        "block and thread are exchanged: blockIdx.x is what blockDim.x multiplies":
            np.isin(i, t * threads + b),
    }


def strided(i, starts, step):
    """Which elements are written by threads that go on from their starts by `step` each time."""
    first = np.full(step, i.size)
    np.minimum.at(first, starts.ravel() % step, starts.ravel())
    return i >= first[i % step]


def mixed(x, y, want, tail):
    """{mistake: what it gives} where a number of x's four is added to another number of y's."""
    found = {}
    for k, to in enumerate("xyzw"):
        for j, other in enumerate("xyzw"):
            if j != k:
                z = want.copy()
                z[k:tail:4] = x[k:tail:4] + y[j:tail:4]
                found[f"in a four, .{to} of x is added to .{other} of y"] = z
    z = want.copy()
    z[:tail] = np.repeat(want[0:tail:4], 4)
    return found | {"in a four, the sum of .x is stored in all four places": z}


def right(agree, name, x, y, z, what, at, written=None, before=UNWRITTEN,
          gives=None):
    """z is x + y. written: {mistake: which elements it writes};  before: what z held
    gives: {mistake: what it gives}
    """
    x, y, z, i = x.reshape(-1), y.reshape(-1), z.reshape(-1), np.arange(x.size)
    written = (written or {}) | {
        f"in {name} the last element is left out by the bound": i < x.size - 1,
        f"in {name} an element's number is kept in 16 bits": i < 2**16,
        f"in {name} n is kept in 16 bits": i < x.size % 2**16}
    with np.errstate(all="ignore"):
        want = x + y                                # one rounding, as a float32 addition has it
        agree(z, want, "exact", f"{name}, {what}", at, telling({
            mistake: np.where(where, want, before) for mistake, where in written.items()
        } | of_values(name, x, y) | (gives or {}), want), unwritten=before)


def every_value(agree, rng, name, launch, at):
    """launch(x, y, z) of each kind of numbers is right."""
    for x, y, z, what in hard(rng):
        launch(x, y, z)
        right(agree, name, x, y, z, what, at)


def economical(name, launch, n, lane_bytes):
    """Each number moved once, by requests that want what they move and are as few as can be."""
    for op, arrays in (("load", 2), ("store", 1)):
        moved, least = launch.bytes(op), 4 * arrays * n
        assert moved <= least, (
            f"{name} {op}s {moved:,} bytes for {n} elements, {least:,} are enough: each number "
            f"should be moved once")
        got, enough = launch.sectors_per_request(op), lane_bytes
        meaning = ("neighbouring threads should take neighbouring elements" if got > enough else
                   "every lane of a warp should take part")
        assert got == enough, (
            f"{name}: a full warp's {op} touches {got:g} sectors, {enough} hold its "
            f"{32 * lane_bytes} bytes: {meaning}")
        requests, fewest = launch.requests(op), least // (32 * lane_bytes)
        meaning = (f"{op} four floats at once, as one float4" if lane_bytes == 16 else
                   "every lane of a warp should take part")
        assert requests == fewest, (f"{name} makes {requests} {op} requests for {n} elements, "
                                    f"{fewest} are enough: {meaning}")


# ---- CUDA, one element a thread


def test_add_cuda(subject, agree, rng):
    for n, threads in ADD:
        add(subject, agree, rng, n, threads)
    every_value(agree, rng, "add_cuda", lambda x, y, z: subject.launch(
        "add_cuda", 2, 96, (x, y, z, x.size)), place(96))


def add(subject, agree, rng, n, threads):
    (x, y, z), i, blocks = vectors(rng, n), np.arange(n), max(ceil(n, threads), 1)
    subject.launch("add_cuda", blocks, threads, (x, y, z, n))
    right(agree, "add_cuda", x, y, z, f"{n} elements in blocks of {threads}", place(threads), {
        "a thread leaves blockIdx out, so that every block writes the first elements": i < threads,
        **wrong_starts(i, blocks, threads),
        **fixed_blocks("a block is taken for {} threads, whatever blockDim.x is", i, blocks,
                       threads)})


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
    assert isinstance(got, int), f"a count of sectors is a whole number, got {got!r}"
    why = {
        4: "4 is the coalesced case, threads 4 bytes apart; here they are 16 bytes apart",
        32: "32 would be a sector for each thread; here two threads share one",
        8: "8 would be threads 8 bytes apart",
    }.get(got, "count the bytes from thread 0 to thread 31")
    assert got == want, \
        f"a load of add_chunk_cuda: {got} sectors is not what the counter says; {why}"


# ---- CUDA, a grid of any size


def test_add_grid_stride_cuda(subject, agree, rng):
    for sizes in GRID_STRIDE:
        add_grid_stride(subject, agree, rng, *sizes)
    every_value(agree, rng, "add_grid_stride_cuda", lambda x, y, z: subject.launch(
        "add_grid_stride_cuda", 2, 32, (x, y, z, x.size)), place(32))


def add_grid_stride(subject, agree, rng, n, blocks, threads):
    (x, y, z), i = vectors(rng, n), np.arange(n)
    subject.launch("add_grid_stride_cuda", blocks, threads, (x, y, z, n))
    right(agree, "add_grid_stride_cuda", x, y, z, f"{n} elements by {blocks} block(s) of {threads}",
          place(threads), {
              "each thread stops after its first element, or steps too far": i < blocks * threads,
              "the first block's threads are left out": i >= threads,
              "every block starts with the elements of the first: blockIdx is left out":
                  i % (blocks * threads) < threads,
              "the step is gridDim.x + blockDim.x, not their product":
                  strided(i, np.arange(blocks * threads), blocks + threads),
              "each thread steps by two grids": i // (blocks * threads) % 2 == 0,
              "blocks start gridDim.x elements apart, not blockDim.x": strided(
                  i, np.arange(blocks)[:, None] * blocks + np.arange(threads), blocks * threads),
              "blocks start one element apart, not blockDim.x": strided(
                  i, np.arange(blocks)[:, None] + np.arange(threads), blocks * threads),
              "a block is taken for 128 threads, whatever blockDim.x is": i % 128 < threads,
              "a block is taken for 256 threads, whatever blockDim.x is": i % 256 < threads,
              **{f"each thread stops after {n} elements": i < n * blocks * threads
                 for n in (2, 4, 8)}})


def test_add_grid_stride_cuda__each_element_once(subject, reference, agree, rng):
    """Also in a grid whose size and whose blocks are not powers of two."""
    for blocks, threads in ((4, 128), (6, 160)):
        n = 16 * blocks * threads
        x, y, z = vectors(rng, n)
        launch = subject.launch("add_grid_stride_cuda", blocks, threads, (x, y, z, n))
        moved, least = launch.bytes("load"), 2 * 4 * n
        assert moved <= least, (
            f"add_grid_stride_cuda reads {moved:,} bytes, {least:,} are enough: some elements are "
            f"added more than once (is the step the whole grid, not one block?)")
        got = launch.sectors_per_request("load")
        assert got == 4, (
            f"add_grid_stride_cuda: a load touches {got:g} sectors, 4 are enough: step by the "
            f"whole grid, so that neighbours stay neighbours")
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
    blocks = max(ceil(n, 4 * threads), 1)
    subject.launch("add_vector_cuda", blocks, threads, (x, y, z, n))
    right(agree, "add_vector_cuda", x, y, z,
          f"{n} elements, four a thread, in blocks of {threads}", place(threads, 4), {
              **wrong_starts(i // 4, blocks, threads),
              "the elements after the last whole four are left out": i < tail,
              "of the last n % 4 elements only the first is written": i <= tail,
              "of the last n % 4 elements the first is left out": i != tail,
              **fixed_blocks("a block is taken for {} threads, whatever blockDim.x is", i, blocks,
                             threads, 4),
              "only the first of each four is written": i % 4 == 0},
          gives=mixed(x, y, x + y, tail))


def test_add_vector_cuda__sixteen_bytes(subject, reference, agree, rng):
    x, y, z = vectors(rng, 4096)
    args = 8, 128, (x, y, z, 4096)
    launch = subject.launch("add_vector_cuda", *args)
    requests, enough = launch.requests("load"), 2 * 4096 // 128     # 128 elements a warp's request
    meaning = ("the last whole four of n elements is taken apart too" if requests < 2 * enough else
               "load four floats at once, as one float4")
    assert requests == enough, (f"add_vector_cuda makes {requests} load requests for 4096 "
                                f"elements, {enough} are enough: {meaning}")
    economical("add_vector_cuda", launch, 4096, 16)
    same_work("add_vector_cuda", launch, reference.launch("add_vector_cuda", *args))
    x, y, z = vectors(rng, 4099)
    args = 9, 128, (x, y, z, 4099)
    same_work("add_vector_cuda, 4099 elements in blocks of 128",
              *(side.launch("add_vector_cuda", *args) for side in (subject, reference)))
    add_vector(subject, agree, rng, 70_003, 1024)


def test_add_vector_cuda__rest(subject, rng):
    """Two threads or four have work; the others of the block have none."""
    for n in (5, 6, 7, 15):
        x, y, z = vectors(rng, n)
        launch = subject.launch("add_vector_cuda", 1, 128, (x, y, z, n))
        written = launch.bytes("store") // 4
        assert written == n, (
            f"add_vector_cuda, {n} elements in a block of 128: {written} are written. The last "
            f"n % 4 are left to one thread, or one each; threads beyond them do nothing")


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
    programs, i = max(ceil(n, block), 1), np.arange(n)
    subject.launch("add_triton", programs, args=(a, b, c, n), BLOCK=block)

    def at(index):
        return f"element {index[0]} (number {index[0] % block} of program {index[0] // block})"

    with np.errstate(all="ignore"):
        want = (a + b).float().numpy().reshape(-1)                  # one rounding to dtype
    if dtype != "float32":
        return agree(c.float().numpy(), want, "exact", f"add_triton, {what}", at, unwritten=before)
    right(agree, "add_triton", x, y, c.numpy(), what, at, {
        "every program works on the first block, or the mask keeps the first block alone":
            i < block,
        "programs start num_programs elements apart, not BLOCK":
            np.isin(i, np.arange(programs)[:, None] * programs + np.arange(block)),
        "programs start one element apart, not one block": i < block + programs - 1,
        **fixed_blocks("a program is taken for {} elements, whatever BLOCK is", i, programs,
                       block)})


def test_add_triton__wide_types(subject, agree, rng):
    """float32 keeps 24 bits of a number; float64 has 53 of them and int32 has 31."""
    for dtype, pair in (("float64", rng.standard_normal((2, 300))),
                        ("int32", rng.integers(-2**29, 2**29, (2, 300)))):
        x, y, z = tensors(*pair, np.full(300, 7), dtype=dtype)
        subject.launch("add_triton", 5, args=(x, y, z, 300), BLOCK=64)
        want = (x + y).numpy()
        agree(z, want, "exact", f"add_triton, 300 {dtype} elements in programs of 64", mistakes={
            f"add_triton takes x and y to float32; {dtype} keeps more digits":
                x.float().numpy() + y.float().numpy(),
            f"add_triton takes the sum to float32; {dtype} keeps more digits":
                want.astype(np.float32)}, unwritten=7)


def test_add_triton__work(subject, reference, agree, rng):
    """Every number is moved once, and 32 lanes ask for neighbours, 16 bytes each."""
    x, y, z = vectors(rng, 4096)
    args = tensors(x, y, z) + (4096,)
    launch = subject.launch("add_triton", 8, args=args, BLOCK=512)
    moved, least = launch.bytes("load"), x.nbytes + y.nbytes
    assert moved == least, (f"add_triton loads {moved:,} bytes for two arrays of {x.nbytes:,}: "
                            f"each number should be loaded once")
    requests, enough = launch.requests("load"), 2 * 4096 // 128     # 128 elements a warp's request
    assert requests == enough, (
        f"add_triton makes {requests} load requests for 4096 elements, {enough} are enough: lanes "
        f"beside each other should work on neighbours, so that four become one load")
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
    with pytest.raises(ValueError, match="multiple of 16"):
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
