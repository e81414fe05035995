"""Graders of k02. Outputs start as 7, which no input holds, so that unwritten places show."""

import re
from collections import Counter

import numpy as np
import pytest

from lab.judge.adversarial import VALUES
from lab.judge.pace import numbers
from lab.judge.subject import Raised
from lab.judge.work import same_work

CUDA = ("transpose_naive_cuda", "transpose_tile_cuda", "transpose_padded_cuda",
        "transpose_swizzled_cuda", "transpose_vector_cuda")
TILE = 32
SIZES = [(64, 96), (33, 65), (127, 40), (31, 63), (1, 129), (129, 1), (1, 1), (0, 5), (5, 0)]
                                                                                # M, N
BY_FOUR = [(64, 96), (36, 68), (28, 60), (4, 132), (100, 4), (4, 4), (0, 8), (8, 0)]
PITCHES = [40, 32, 33, 31, 34, 36, 48, 96, 100, 1, *range(2, 140), 2**15 - 1, 2**15 + 16, 2**31,
           2**31 + 8, 2**40 + 3]
BEYOND = re.compile(r"out-of-bounds .*?element (-?\d+) of `(\w+)`.*?(?: and (\d+) other|$)",
                    re.DOTALL)
DESCRIBED = {
    "signed_zeros": "0 and -0 among the numbers", "shifted": "numbers around 200",
    "negative": "only numbers below 0", "equal": "equal numbers throughout a row of x",
    "uneven": "rows from 0.001 to 1000", "infinite": "-inf among the numbers",
    "not_a_number": "a NaN among the numbers", "denormal": "numbers of 1e-40"}


# ---- matrices, launches, and what goes wrong


def matrix(rng, M, N):                              # -> (M, N) float32
    return rng.standard_normal((M, N), dtype=np.float32)


def run(subject, name, x):
    """(y, launch) of a kernel with the block that it expects."""
    M, N = x.shape
    y = np.full((N, M), 7, np.float32)
    threads = (TILE // 4, TILE) if name == "transpose_vector_cuda" else (TILE, 8)
    blocks = [max(-(-size // TILE), 1) for size in (N, M)]
    return y, subject.launch(name, blocks, threads, (x, y, M, N))


def place(index):
    n, m = index
    return (f"y[{n}][{m}], which is x[{m}][{n}] (row {m % TILE}, column {n % TILE} of the tile "
            f"that begins at row {m - m % TILE}, column {n - n % TILE} of x)")


def mistakes(name, x):
    """{mistake: what it gives}"""
    M, N = x.shape
    n, m = np.indices((N, M))
    c, r = n % TILE, m % TILE                       # in the tile, as rows and columns of x

    def number(row, column):
        """x there, 7 where x has no such number."""
        inside = (row < M) & (column < N)
        if not x.size:
            return np.zeros((N, M))
        return np.where(inside, x[np.minimum(row, M - 1), np.minimum(column, N - 1)], 7)

    found = {
        f"{name} takes each tile to its new place but does not turn it: a row of y is a column of "
        f"the tile": number(m - r + c, n - c + r),
        f"{name} turns each tile but leaves it at its old place in a matrix of {M} × {N}":
            number(m - r + c, n - c + r).T.reshape(N, M) if M % TILE == N % TILE == 0 else 7,
        f"{name} copies x as it is": x.reshape(N, M),
        f"{name} exchanges blockIdx.x and blockIdx.y: x counts tiles along a row of x": np.where(
            (m // TILE < -(-N // TILE)) & (n // TILE < -(-M // TILE)), x.T, 7),
        f"in {name} tiles begin one row and one column apart: blockIdx is not multiplied by TILE":
            np.where((m < TILE - 1 + -(-M // TILE)) & (n < TILE - 1 + -(-N // TILE)), x.T, 7),
        f"{name} leaves blockIdx out: every block moves the first tile":
            np.where((m < TILE) & (n < TILE), x.T, 7),
        f"{name} takes the rows of x for M numbers long; they have N":
            x.ravel()[np.minimum(m * M + n, M * N - 1)] if x.size else x.T,
        f"in {name} each warp writes out one column of the tile, and leaves the rest":
            np.where(c < 8, x.T, 7),
        f"{name} writes nothing": np.full((N, M), 7)}
    each = 4 if "vector" in name else 1
    found |= {f"{name} leaves out the last rows of x by its bound": np.where(m < M - each, x.T, 7),
              f"{name} leaves out the last columns of x by its bound":
                  np.where(n < N - each, x.T, 7),
              f"{name} replaces NaN or infinities by numbers": np.nan_to_num(x.T),
              f"{name} turns what is below 0 into 0": np.maximum(x.T, 0)}
    if name == "transpose_swizzled_cuda":
        found[f"{name} looks for column c at place c ^ r, or puts it there, but not both"] = \
            number(m, n - c + (c ^ r))
        found[f"{name} looks for column c at place c ^ warp; the row of the tile is the lane"] = \
            number(m, n - c + (c ^ (c & 7) ^ r))
        found[f"{name} looks for column c in row r ^ c of the tile; the row stays, its place is "
              f"c ^ r"] = number(m - r + (r ^ c), n - c + r)
    if name == "transpose_vector_cuda":
        for i, j in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
            place = np.arange(4)
            place[[i, j]] = j, i
            found[f"{name} exchanges .{'xyzw'[i]} and .{'xyzw'[j]} of each four"] = \
                number(m, n - n % 4 + place[n % 4])
        found[f"{name} puts .x of each four into all its rows of the tile"] = number(m, n - n % 4)
        found[f"{name} exchanges the groups of four where it puts numbers into the tile, or where "
              f"it takes them out, but not both"] = number(m - r + (r ^ (c & 28)), n)
        found[f"{name} puts number r of row c at place r ^ c and looks for it at r ^ (c & 28)"] = \
            number(m - r + (r ^ (c & 3)), n)
    return found


def right(subject, agree, name, x, what=""):
    y, launch = run(subject, name, x)
    what = f"{name} of {x.shape[0]} × {x.shape[1]}{what and ', '}{what}"
    wrong = {mistake: gives for mistake, gives in mistakes(name, x).items()
             if not np.array_equal(gives, x.T, equal_nan=True)}
    agree(y, x.T, "exact", what, place, wrong, unwritten=7)
    kept = y.view(np.int32) == x.T.copy().view(np.int32)
    assert kept.all(), (
        f"{what}: {place(np.argwhere(~kept)[0])}: got {y[~kept][0]}, expected {x.T[~kept][0]} with "
        f"every bit as it is, the sign of 0 too: numbers are moved, nothing is computed")
    return launch


def every_case(subject, agree, rng, name, sizes, M, N):
    """Every size, then every kind of numbers in an M × N matrix."""
    for size in sizes:
        right(subject, agree, name, matrix(rng, *size))
    for kind, what in DESCRIBED.items():
        right(subject, agree, name, VALUES[kind](rng, (M, N)), what)


def far_sizes(subject, agree, rng, name):
    """The first three tiles of a matrix with many rows or columns: the sizes do not fit 16 bits."""
    for M, N, grid in ((2, 40_000, (3, 1)), (40_000, 2, (1, 3))):
        x, y = matrix(rng, M, N), np.full((N, M), 7, np.float32)
        subject.launch(name, grid, (TILE, 8), (x, y, M, N))
        agree(y[:3 * TILE, :3 * TILE], x.T[:3 * TILE, :3 * TILE], "exact",
              f"{name}, the first three tiles of {M} × {N}", place, unwritten=7)


def far_rows(subject, name):
    """Rows of x, then of y, that begin at products of more than 32 bits. Only row 0 is there, so
    that the simulator stops what goes to another: where rows are 2^30 numbers apart it has to stop
    the same threads as where they are 2^20 apart, which fits 32 bits."""
    for array, product in (("x", "m · N"), ("y", "n · M")):
        near, far = (beyond_row_0(subject, name, array, apart) for apart in (2**20, 2**30))
        assert near == far, (
            f"{name}: the number of an element of {array} is a product that does not fit 32 bits, "
            f"{product}: take (size_t) for one of its factors. With only row 0 of {array} in "
            f"memory, {near} where rows are 2^20 numbers apart, and {far} where they are 2^30")


def beyond_row_0(subject, name, array, apart):
    """Which threads the simulator stops in words, on TILE rows of `array` that are `apart`."""
    M, N = (TILE, apart) if array == "x" else (apart, TILE)
    x, y = np.zeros(TILE if array == "x" else TILE * TILE, np.float32), np.zeros(TILE, np.float32)
    threads = (TILE // 4, TILE) if name == "transpose_vector_cuda" else (TILE, 8)
    try:
        subject.launch(name, (1, 1), threads, (x, y, M, N))
    except Raised as error:
        beyond = BEYOND.search(error.text)
        if beyond is None:
            raise
        row, column = divmod(int(beyond[1]), apart)
        return f"{int(beyond[3] or 0) + 1} threads go beyond {beyond[2]}, the first to row {row}" \
               f"{f', column {column}' if column else ''}"
    return "no thread goes beyond it"


def economical(name, launch, x, lane_bytes):
    """Each number read and written once, by requests that want what they move."""
    for op, where in (("load", "row of x"), ("store", "row of y")):
        got = launch.bytes(op)
        times = f": {op}s of each number: {got // x.nbytes}" if got % x.nbytes == 0 else ""
        assert got == x.nbytes, \
            f"{name}: the lanes {op} {got:,} bytes, {x.nbytes:,} are enough for {x.size:,} " \
            f"numbers{times}"
        counts = launch.memory("global", op)
        assert counts["transactions"] == counts["ideal"], (
            f"{name}: a {op} of a warp touches {launch.sectors_per_request(op):g} sectors, "
            f"{counts['ideal'] / counts['requests']:g} hold its bytes: the lanes of a warp should "
            f"take neighbours in a {where}")
        enough = x.nbytes // (32 * lane_bytes)
        meaning = ("take four neighbours at once, as one float4" if lane_bytes == 16 else
                   "every lane of a warp should take part")
        assert launch.requests(op) == enough, (
            f"{name} makes {launch.requests(op)} {op} requests, {enough} of {lane_bytes} bytes a "
            f"lane are enough: {meaning}")


def free_of_conflicts(name, launch):
    """And in the 4096 bytes that the tile needs."""
    conflicts = launch.bank_conflicts()
    assert conflicts == 1, (
        f"{name}: shared memory takes {conflicts:.3g} times the wavefronts it needs: lanes of a "
        f"warp want different words of one bank")
    got, enough = launch.launches[0]["shared_bytes"], 4 * TILE * TILE
    assert got == enough, \
        f"{name} takes {got} bytes of shared memory a block, {enough} hold the tile: no padding"


# ---- counting


def test_predict_sectors_per_store(subject, reference, rng):
    _, launch = run(reference, "transpose_naive_cuda", matrix(rng, 64, 64))
    want, got = launch.sectors_per_request("store"), subject.predict_sectors_per_store()
    assert isinstance(got, int), f"a count of sectors is a whole number, got {got!r}"
    why = {4: "4 is what its load touches; the lanes of a store are M numbers apart",
           8: "8 numbers fit in a sector, but no two of these lanes write to the same one",
           1: "1 would hold if all lanes wrote within the same 32 bytes",
           }.get(got, "ask whether two neighbouring lanes can share a sector")
    assert got == want, \
        f"a store of transpose_naive_cuda: {got} sectors is not what the counter says; {why}"


def test_column_wavefronts(subject, reference, rng):
    for pitch, kernel in ((32, "transpose_tile_cuda"), (33, "transpose_padded_cuda")):
        counts = run(reference, kernel, matrix(rng, 32, 32))[1].memory("shared", "load")
        assert max(banks(pitch).values()) == counts["transactions"] / counts["requests"]
    for pitch in PITCHES:
        lanes, got = banks(pitch), subject.column_wavefronts(pitch)
        want = max(lanes.values())
        assert isinstance(got, (int, np.integer)), \
            f"column_wavefronts({pitch}) is a whole number, got {got!r}"
        late = max(Counter(lane * pitch % 32 for lane in range(1, 32)).values())
        why = {2 * (1 - pitch % 2): "an even pitch puts two lanes or more into a bank: all factors "
                                    "of 2 count",
               pitch: "that is the pitch itself, and there are 32 lanes and 32 banks",
               late: "that is without lane 0, which wants a word too",
               len(lanes): f"that is how many banks are wanted, and each by {want} lanes",
               pitch % 32: "the remainder is the distance of two lanes, in banks",
               1: "some lanes want different words of one bank, and these wait for each other",
               32: "only a multiple of 32 puts all lanes into one bank",
               }.get(got, "the answer is how many lanes want the bank that most of them want")
        first = ", ".join(str(lane * pitch % 32) for lane in range(5))
        assert got == want, (
            f"column_wavefronts({pitch}): got {got}, expected {want}. Lanes 0 to 4 want banks "
            f"{first}; {why}")


def banks(pitch):
    """{bank: lanes that want it} for a column."""
    return Counter(lane * pitch % 32 for lane in range(32))


# ---- CUDA


def test_transpose_tile_cuda(subject, agree, rng):
    every_case(subject, agree, rng, "transpose_tile_cuda", SIZES, 33, 65)


def test_transpose_tile_cuda__work(subject, reference, agree, rng):
    work(subject, reference, rng, "transpose_tile_cuda", 4)
    far_sizes(subject, agree, rng, "transpose_tile_cuda")
    far_rows(subject, "transpose_tile_cuda")


def work(subject, reference, rng, name, lane_bytes):
    """What a kernel does on 20 tiles; then on six, five of which reach past the edge."""
    x = matrix(rng, 128, 160)
    launch = run(subject, name, x)[1]
    economical(name, launch, x, lane_bytes)
    if name != "transpose_tile_cuda":
        free_of_conflicts(name, launch)
    same_work(name, launch, run(reference, name, x)[1])
    M, N = (44, 76) if lane_bytes == 16 else (47, 79)
    x = matrix(rng, M, N)
    same_work(f"{name}, {M} × {N}", *(run(side, name, x)[1] for side in (subject, reference)))


def test_transpose_swizzled_cuda(subject, agree, rng):
    every_case(subject, agree, rng, "transpose_swizzled_cuda", SIZES, 33, 65)


def test_transpose_swizzled_cuda__work(subject, reference, agree, rng):
    work(subject, reference, rng, "transpose_swizzled_cuda", 4)
    far_sizes(subject, agree, rng, "transpose_swizzled_cuda")
    far_rows(subject, "transpose_swizzled_cuda")


def test_transpose_vector_cuda(subject, agree, rng):
    every_case(subject, agree, rng, "transpose_vector_cuda", BY_FOUR, 36, 68)


def test_transpose_vector_cuda__work(subject, reference, agree, rng):
    work(subject, reference, rng, "transpose_vector_cuda", 16)
    far_rows(subject, "transpose_vector_cuda")
    right(subject, agree, "transpose_vector_cuda", matrix(rng, 4, 33_000))
    right(subject, agree, "transpose_vector_cuda", matrix(rng, 33_000, 4))


# ---- the course's own launchers


def views(x):
    """{what: x or a part of it, with other strides}"""
    return {"as it is": x, "transposed": x.T, "every second column": x[:, ::2],
            "every third row": x[::3], "one row for all": x[:1].expand(x.shape)}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("M, N", [(1, 127), (129, 3), (65, 130)])
def test_transpose(subject, rng, M, N, dtype):
    import torch

    x = torch.from_numpy(matrix(rng, M, N)).to(getattr(torch, dtype))
    x[0, 0], x[M // 2, N // 2] = float("inf"), float("nan")
    for what, view in views(x).items():
        for name in ("transpose", "transpose_torch"):
            got = getattr(subject, name)(view)
            assert got.shape == view.T.shape and got.dtype == x.dtype and got.is_contiguous()
            bits = [t.contiguous().view(torch.int32 if dtype == "float32" else torch.int16)
                    for t in (got, view.T)]
            assert torch.equal(*bits), f"{name} of {M} × {N} {dtype}, {what}"


def test_any_size(subject, rng):
    import torch

    for M, N in SIZES + BY_FOUR:
        x = torch.from_numpy(matrix(rng, M, N))
        assert torch.equal(subject.transpose(x), x.T), (M, N)
        for kernel in (None, *CUDA):
            if (M, N) in BY_FOUR or kernel != "transpose_vector_cuda":
                assert torch.equal(subject.transpose_cuda(x, kernel), x.T), (M, N, kernel)


def test_transpose_torch_copies():
    import torch

    from layer1_kernels import transpose_torch

    x = torch.zeros(4, 8)
    transpose_torch(x.T)[0, 0] = 1                  # x.T.T is x, and yet a copy is asked for
    assert x[0, 0] == 0


@pytest.mark.parametrize("M, N", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_do(subject, M, N):
    import torch

    for name in ("transpose", "transpose_cuda", "transpose_torch"):
        assert getattr(subject, name)(torch.ones(M, N)).shape == (N, M)


def test_what_the_launchers_refuse(subject):
    import torch

    def refuses(says, function, *args):
        with pytest.raises(Raised) as refusal:
            function(*args)
        assert says in refusal.value.text

    for launcher in (subject.transpose, subject.transpose_cuda):
        refuses("shape (5,)", launcher, torch.ones(5))
        refuses("float64", launcher, torch.ones(4, 6).double())
    refuses("strides (1, 5)", subject.transpose_cuda, torch.ones(4, 5).T)
    refuses("torch.float16", subject.transpose_cuda, torch.ones(4, 4).half())
    refuses("6 × 8", subject.transpose_cuda, torch.ones(6, 8), "transpose_vector_cuda")
    refuses("2097121 rows", subject.transpose_cuda, torch.ones(2_097_121, 1))


@pytest.mark.slow
def test_shipped_for_hopper():
    from layer1_kernels.bench.k02_transpose import shipped
    from layer1_kernels.k02_transpose import KERNELS

    for name, found in shipped().items():
        assert found.spills == 0 and not found.serialised, found
        assert found.shared <= 227 * 1024, found
        assert set(found.loads) == set(found.stores) == {16}, f"{name}: not by 16 bytes\n{found}"
    resources = KERNELS.get("transpose_vector_cuda").resources
    assert resources.spill_stores == resources.spill_loads == 0, resources


@pytest.mark.gpu
@pytest.mark.parametrize("M, N", [(0, 5), *SIZES, *BY_FOUR, (1000, 2004), (3000, 1001)])
def test_every_kernel_on_the_device(M, N):
    import torch

    from layer1_kernels import transpose, transpose_cuda

    x = torch.randn(M, N, device="cuda")
    for kernel in (None, *CUDA):
        if M % 4 == N % 4 == 0 or kernel != "transpose_vector_cuda":
            assert torch.equal(transpose_cuda(x, kernel), x.T), kernel
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for what, view in views(x.to(dtype)).items():
            assert torch.equal(transpose(view), view.T), (dtype, what)


@pytest.mark.gpu
def test_transpose_vector_cuda_speed(pace):
    pace("transpose_cuda", numbers("float32", 4096, 8192), "transpose_vector_cuda")
