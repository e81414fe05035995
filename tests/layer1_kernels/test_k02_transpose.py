"""Graders of k02.
Outputs start as 7, which no input holds, so that unwritten places show."""

import re
from collections import Counter

import numpy as np
import pytest

from lab.judge.adversarial import VALUES
from lab.judge.mistakes import mistake, same_report
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
    "negative": "negative numbers only", "equal": "all numbers of a row of x equal",
    "uneven": "rows from 0.001 to 1000", "infinite": "-inf among the numbers",
    "not_a_number": "a NaN among the numbers", "denormal": "numbers near 1e-40"}
OWN_PLACE = {           # what gives each number of the tile a place of its own
    "transpose_swizzled_cuda": " In row r, c ^ r is one for each c; c & r and c | r are not.",
    "transpose_vector_cuda": " In row r of the tile, c ^ (r & 28) is one for each c."}


# ---- matrices, launches, and what goes wrong


def matrix(rng, M, N):                              # -> (M, N) float32
    return rng.standard_normal((M, N), dtype=np.float32)


def run(subject, name, x):
    """(y, launch) of a kernel with the block that it expects."""
    M, N = x.shape
    y = np.full((N, M), 7, np.float32)
    threads = (TILE // 4, TILE) if name == "transpose_vector_cuda" else (TILE, 8)
    blocks = [max(-(-size // TILE), 1) for size in (N, M)]
    with same_report("no_barrier", "A warp reads numbers of the tile that other warps write: all "
                     "threads must meet in between (`__syncthreads();`, with its parentheses), and "
                     "not all reach a barrier inside an `if`. No number may be overwritten before "
                     "it is read.",
                     kind="race", array="tile"), \
            same_report("one_place", "Lanes of a warp store in one place of the tile at once; each "
                        f"number needs a place of its own.{OWN_PLACE.get(name, '')}", kind="race",
                        array="tile", words="in the same instruction"), \
            same_report("beyond_tile", "The tile has 32 rows of 32 numbers. tile + 1 is the "
                        "address of the next row; that of a number is &tile[r][c].",
                        kind="out_of_bounds", array="tile"):
        return y, subject.launch(name, blocks, threads, (x, y, M, N))


def place(index):
    n, m = index
    return (f"y[{n}][{m}], which is x[{m}][{n}] (row {m % TILE}, column {n % TILE} of the tile "
            f"that begins at row {m - m % TILE}, column {n - n % TILE} of x)")


def mistakes(name, x):
    """{mistake: (sentence, what it gives)}"""
    M, N = x.shape
    n, m = np.indices((N, M))
    c, r = n % TILE, m % TILE                       # in the tile, as rows and columns of x

    def number(row, column):
        """x there, 7 where x has no such number."""
        inside = (row < M) & (column < N)
        if not x.size:
            return np.zeros((N, M))
        return np.where(inside, x[np.minimum(row, M - 1), np.minimum(column, N - 1)], 7)

    each = 4 if "vector" in name else 1
    rows = {
        "not_turned": ("moves each tile to its new place but does not transpose it: a row of y is "
                       "a column of the tile", number(m - r + c, n - c + r)),
        "old_place": ("transposes each tile but writes it at its old place",
                      number(m - r + c, n - c + r).T.reshape(N, M)
                      if M % TILE == N % TILE == 0 else 7),
        "copied": ("copies x as it is", x.reshape(N, M)),
        "blocks_exchanged": (
            "exchanges M and N in a bound (y has N rows and M columns), or blockIdx.x and "
            "blockIdx.y (x counts tiles along a row of x)", np.where(
                (m // TILE < -(-N // TILE)) & (n // TILE < -(-M // TILE)), x.T, 7)),
        "one_apart": (
            "begins tiles one row and one column apart: blockIdx is not multiplied by TILE",
            np.where((m < TILE - 1 + -(-M // TILE)) & (n < TILE - 1 + -(-N // TILE)), x.T, 7)),
        "no_block": ("leaves blockIdx out: every block moves the first tile",
                     np.where((m < TILE) & (n < TILE), x.T, 7)),
        "rows_of_M": ("treats the rows of x as M numbers long; they have N",
                      x.ravel()[np.minimum(m * M + n, M * N - 1)] if x.size else x.T),
        "one_column": ("lets each warp write only one column of the tile; it has four",
                       np.where(c < 8, x.T, 7)),
        "not_stored": ("writes nothing", np.full((N, M), 7)),
        "last_rows": ("leaves out the last rows of x: check the bound",
                      np.where(m < M - each, x.T, 7)),
        "last_columns": ("leaves out the last columns of x: check the bound",
                         np.where(n < N - each, x.T, 7)),
        "made_finite": ("replaces NaN or infinities by numbers", np.nan_to_num(x.T)),
        "negatives_cut": ("replaces negative numbers by 0", np.maximum(x.T, 0))}
    if name == "transpose_swizzled_cuda":
        rows |= {
            "one_side": ("uses place c ^ r on one side only, where both storing and reading must "
                         "use it, or swizzles the column of x, which stays n0 + lane",
                         number(m, n - c + (c ^ r))),
            "warp_for_row": ("looks for column c at place c ^ warp; the row of the tile is the "
                             "lane", number(m, n - c + (c ^ (c & 7) ^ r))),
            "row_swizzled": ("swizzles the row of the tile or the column of y; they stay r and "
                             "m0 + r, and the place in row r of the tile is c ^ r",
                             number(m - r + (r ^ c), n - c + r))}
    if name == "transpose_vector_cuda":
        for i, j in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
            a, b = "xyzw"[i], "xyzw"[j]
            order = np.arange(4)
            order[[i, j]] = j, i
            rows[f"{a}_for_{b}"] = (f"exchanges .{a} and .{b} of each four",
                                    number(m, n - n % 4 + order[n % 4]))
        rows |= {
            "one_for_four": ("puts .x of each four into all its rows of the tile",
                             number(m, n - n % 4)),
            "one_side": ("swizzles the groups of four on one side only: both storing and reading "
                         "must do it", number(m - r + (r ^ (c & 28)), n)),
            "all_bits": ("stores column c of row r at place c ^ r but reads it from c ^ (r & 28)",
                         number(m - r + (r ^ (c & 3)), n))}
    return {known: (f"{name} {sentence}", gives) for known, (sentence, gives) in rows.items()}


def right(subject, agree, name, x, what=""):
    y, launch = run(subject, name, x)
    what = f"{name} of {x.shape[0]} × {x.shape[1]}{what and ', '}{what}"
    wrong = {known: row for known, row in mistakes(name, x).items()
             if not np.array_equal(row[1], x.T, equal_nan=True)}
    agree(y, x.T, "exact", what, place, wrong, unwritten=7)
    other = y.view(np.int32) != x.T.copy().view(np.int32)
    assert not other.any(), mistake(
        "sign_of_zero", f"{what}: {place(np.argwhere(other)[0])}: got {y[other][0]}, expected "
        f"{x.T[other][0]}, bit for bit, including the sign of 0: a transpose only moves numbers")
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
        want = x.T[:3 * TILE, :3 * TILE]
        agree(y[:3 * TILE, :3 * TILE], want, "exact",
              f"{name}, the first three tiles of {M} × {N}", place, {
                  "short_sizes": ("sizes or indices are kept in 16 bits", np.full_like(want, 7))},
              unwritten=7)


def far_rows(subject, name):
    """Rows of x, then of y, that begin at products of more than 32 bits.
    Only row 0 is there, so that the simulator stops what goes to another: where rows are 2^30
    numbers apart it has to stop the same threads as where they are 2^20 apart, which fits 32
    bits."""
    for array, product in (("x", "m · N"), ("y", "n · M")):
        near, far = (beyond_row_0(subject, name, array, apart) for apart in (2**20, 2**30))
        assert near == far, mistake(
            f"short_product_{array}", f"{name}: the index of an element of {array} overflows 32 "
            f"bits in the product {product}. Cast one factor to size_t. With only row 0 of {array} "
            f"in memory, {near} if rows are 2^20 numbers apart, and {far} if they are 2^30")


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
        assert got == x.nbytes, mistake(
            f"{op}s_again", f"{name} {op}s {got:,} bytes; {x.nbytes:,} are enough for {x.size:,} "
            f"numbers{times}")
        counts = launch.memory("global", op)
        meaning = f"Let the lanes of a warp take neighbours in a {where}."
        assert counts["transactions"] == counts["ideal"], mistake(
            f"scattered_{op}", f"{name}: one {op} request touches "
            f"{launch.sectors_per_request(op):g} sectors; its bytes fit in "
            f"{counts['ideal'] / counts['requests']:g}. {meaning}", meaning)
        enough = x.nbytes // (32 * lane_bytes)
        known, meaning = (
            (f"{op}_one_by_one", f"{op.capitalize()} four neighbours at once, as one float4.")
            if lane_bytes == 16 else ("idle_lanes", "Let every lane of a warp take part."))
        assert launch.requests(op) == enough, mistake(
            known, f"{name} makes {launch.requests(op)} {op} requests; {enough} of {lane_bytes} "
                   f"bytes a lane are enough. {meaning}", meaning)


def free_of_conflicts(name, launch):
    """And in the 4096 bytes that the tile needs."""
    conflicts = launch.bank_conflicts()
    assert conflicts == 1, mistake(
        "conflicts", f"{name}: shared memory needs {conflicts:.3g} times the fewest wavefronts: "
        f"lanes of one warp want different words of the same bank")
    got = launch.launches[0]["shared_bytes"]
    enough = 4 * TILE * TILE
    assert got == enough, mistake(
        "padded", f"{name}: {got} bytes of shared memory for each block; the tile needs {enough}. "
        f"Use no padding.")


# ---- counting


def test_predict_sectors_per_store(subject, reference, rng):
    _, launch = run(reference, "transpose_naive_cuda", matrix(rng, 64, 64))
    want, got = launch.sectors_per_request("store"), subject.predict_sectors_per_store()
    assert isinstance(got, (int, float)), mistake(
        "no_count", f"predict_sectors_per_store: expected a whole number, got {got!r}")
    known, why = {
        4: ("as_load", "4 is what its load touches; the lanes of a store are M numbers apart."),
        8: ("full_sectors", "8 numbers fit in a sector, but no two of these lanes write to the "
                            "same one."),
        1: ("one_sector", "1 would be right if all lanes wrote within the same 32 bytes."),
    }.get(got, ("other", "Can two neighbouring lanes share a sector?"))
    assert got == want, mistake(
        known, f"predict_sectors_per_store: the simulator does not count {got} "
               f"sector{'s' * (got != 1)} in one store request. {why}", why)


def test_column_wavefronts(subject, reference, rng):
    counts = run(reference, "transpose_tile_cuda", matrix(rng, 32, 32))[1].memory("shared", "load")
    of_a_request = counts["transactions"] / counts["requests"]
    assert max(banks(32).values()) == of_a_request, "the simulator counts other wavefronts"
    for pitch in PITCHES:
        lanes = banks(pitch)
        got = subject.column_wavefronts(pitch)
        want = max(lanes.values())
        assert isinstance(got, (int, float, np.number)), mistake(
            "no_count", f"column_wavefronts({pitch}): expected a whole number, got {got!r}")
        late = max(Counter(lane * pitch % 32 for lane in range(1, 32)).values())
        known, why = {
            2 * (1 - pitch % 2): ("one_factor", "An even pitch puts two lanes or more into a bank: "
                                                "all factors of 2 count."),
            pitch: ("pitch_itself", "That is the pitch itself."),
            pitch & -pitch: ("beyond_32", "That is the largest power of 2 in the pitch, and there "
                                          "are 32 lanes and 32 banks."),
            late: ("no_lane_0", "That is of 31 lanes: a warp has lanes 0 to 31."),
            len(lanes): ("banks_used", "That is the number of banks used; the question is how many "
                                       "lanes share one."),
            pitch % 32: ("distance", "pitch % 32 says how many banks apart two neighbouring lanes "
                                     "are, not how many lanes share a bank."),
            1: ("no_conflict", "Some lanes want different words of one bank; these are served one "
                               "after another."),
            32: ("all_in_one", "Only a multiple of 32 puts all lanes into one bank."),
        }.get(got, ("other", "The answer is the largest number of lanes that want one bank."))
        first = ", ".join(str(lane * pitch % 32) for lane in range(5))
        assert got == want, mistake(
            known, f"column_wavefronts({pitch}): got {got}. Lanes 0 to 4 want banks {first}. {why}",
            why)


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
    if lane_bytes == 16:
        loads = launch.requests("load", "shared")
        enough = x.nbytes // (32 * lane_bytes)
        assert loads <= enough or launch.bank_conflicts() == 1, mistake(
            "tile_one_by_one", f"{name} makes {loads} load requests of shared memory; {enough} of "
                               f"16 bytes a lane are enough: read four neighbours of the tile at "
                               f"once, as one float4")
    if name != "transpose_tile_cuda":
        free_of_conflicts(name, launch)
    same_work(name, launch, run(reference, name, x)[1], limits={"barriers": 3})
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


def test_a_pitch_of_33_has_no_conflicts():
    import torch

    from lab import simulator
    from layer1_kernels import transpose_cuda

    with simulator.trace() as trace:
        transpose_cuda(torch.zeros(32, 32), "transpose_padded_cuda")
    load = trace.launches[0].totals.access("shared", "load")
    assert load.transactions == max(banks(33).values()) * load.requests
    assert trace.launches[0].shared_bytes == 4 * TILE * 33


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
