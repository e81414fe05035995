"""Graders of k02. Outputs start as 7, which no input holds, so that what nobody wrote shows."""

from collections import Counter

import numpy as np
import pytest

from lab.pace import numbers
from lab.subject import Raised

CUDA = ("transpose_naive_cuda", "transpose_tile_cuda", "transpose_padded_cuda",
        "transpose_swizzled_cuda", "transpose_vector_cuda")
TILE = 32
SIZES = [(64, 96), (33, 65), (127, 40), (1, 129), (129, 1), (1, 1)]             # M, N
BY_FOUR = [(64, 96), (36, 68), (4, 132), (100, 4), (4, 4)]
PITCHES = [40, 32, 33, 31, 34, 36, 48, 96, 100, 1]


# ---- matrices, launches, and what goes wrong


def matrix(rng, M, N):                              # -> (M, N) float32
    return rng.standard_normal((M, N), dtype=np.float32)


def run(subject, name, x):
    """(y, launch) of a kernel with the block that it expects."""
    M, N = x.shape
    y = np.full((N, M), 7, np.float32)
    threads = (TILE // 4, TILE) if name == "transpose_vector_cuda" else (TILE, 8)
    return y, subject.launch(name, (-(-N // TILE), -(-M // TILE)), threads, (x, y, M, N))


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
        return np.where(inside, x[np.minimum(row, M - 1), np.minimum(column, N - 1)], 7)

    found = {
        f"{name} takes each tile to its new place but does not turn it: a row of y is a column of "
        f"the tile": number(m - r + c, n - c + r),
        f"{name} turns each tile but leaves it at its old place in a matrix of {M} × {N}":
            number(m - r + c, n - c + r).T.reshape(N, M) if M % TILE == N % TILE == 0 else 7,
        f"{name} copies x as it is": x.reshape(N, M),
        f"{name} takes the rows of x for M numbers long; they have N":
            x.ravel()[np.minimum(m * M + n, M * N - 1)],
        f"in {name} each warp writes out one column of the tile, and leaves the rest":
            np.where(c < 8, x.T, 7),
        f"{name} writes nothing": np.full((N, M), 7)}
    if name == "transpose_swizzled_cuda":
        found[f"{name} looks for column c at place c ^ r, or puts it there, but not both"] = \
            number(m, n - c + (c ^ r))
        found[f"{name} looks for column c in row r ^ c of the tile; the row stays, its place is "
              f"c ^ r"] = number(m - r + (r ^ c), n - c + r)
    if name == "transpose_vector_cuda":
        found[f"{name} exchanges the groups of four where it puts numbers into the tile, or where "
              f"it takes them out, but not both"] = number(m - r + (r ^ (c & 28)), n)
        found[f"{name} puts number r of row c at place r ^ c and looks for it at r ^ (c & 28)"] = \
            number(m - r + (r ^ (c & 3)), n)
    return found


def right(subject, agree, name, x):
    y, launch = run(subject, name, x)
    agree(y, x.T, "exact", f"{name} of {x.shape[0]} × {x.shape[1]}", place, mistakes(name, x),
          unwritten=7)
    return launch


def economical(name, launch, x, lane_bytes):
    """Each number read and written once, by requests that want what they move."""
    for op, where in (("load", "row of x"), ("store", "row of y")):
        got = launch.bytes(op)
        assert got == x.nbytes, \
            f"{name}: the lanes {op} {got:,} bytes, {x.nbytes:,} are enough for {x.size:,} numbers"
        counts = launch.memory("global", op)
        assert counts["transactions"] == counts["ideal"], (
            f"{name}: a {op} of a warp touches {launch.sectors_per_request(op):g} sectors, "
            f"{counts['ideal'] / counts['requests']:g} hold its bytes: the lanes of a warp should "
            f"take neighbours in a {where}")
        enough = x.nbytes // (32 * lane_bytes)
        assert launch.requests(op) == enough, (
            f"{name} makes {launch.requests(op)} {op} requests, {enough} of {lane_bytes} bytes a "
            f"lane are enough: take four neighbours at once, as one float4")


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
           }.get(got, "ask for two neighbouring lanes whether they can share a sector")
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
        why = {len(lanes): f"that is how many banks are wanted, and each by {want} lanes",
               pitch % 32: "the remainder is the distance of two lanes, in banks",
               1: "some lanes want different words of one bank, and these wait for each other",
               32: "only a multiple of 32 puts all lanes into one bank"}.get(got, "count per bank")
        first = ", ".join(str(lane * pitch % 32) for lane in range(5))
        assert got == want, (
            f"column_wavefronts({pitch}): got {got}, expected {want}. Lanes 0 to 4 want banks "
            f"{first}; {why}")


def banks(pitch):
    """{bank: lanes that want it} for a column."""
    return Counter(lane * pitch % 32 for lane in range(32))


# ---- CUDA


@pytest.mark.parametrize("M, N", SIZES)
def test_transpose_tile_cuda(subject, agree, rng, M, N):
    right(subject, agree, "transpose_tile_cuda", matrix(rng, M, N))


def test_transpose_tile_cuda__work(subject, rng):
    x = matrix(rng, 64, 96)
    economical("transpose_tile_cuda", run(subject, "transpose_tile_cuda", x)[1], x, 4)


@pytest.mark.parametrize("M, N", SIZES)
def test_transpose_swizzled_cuda(subject, agree, rng, M, N):
    right(subject, agree, "transpose_swizzled_cuda", matrix(rng, M, N))


def test_transpose_swizzled_cuda__work(subject, rng):
    x = matrix(rng, 64, 96)
    launch = run(subject, "transpose_swizzled_cuda", x)[1]
    economical("transpose_swizzled_cuda", launch, x, 4)
    free_of_conflicts("transpose_swizzled_cuda", launch)


@pytest.mark.parametrize("M, N", BY_FOUR)
def test_transpose_vector_cuda(subject, agree, rng, M, N):
    right(subject, agree, "transpose_vector_cuda", matrix(rng, M, N))


def test_transpose_vector_cuda__work(subject, rng):
    x = matrix(rng, 64, 96)
    launch = run(subject, "transpose_vector_cuda", x)[1]
    economical("transpose_vector_cuda", launch, x, 16)
    free_of_conflicts("transpose_vector_cuda", launch)


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
    from layer1_kernels.k02_transpose import KERNELS, shipped

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
