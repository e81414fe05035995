"""Graders of k01. Outputs start as NaN, so that an element nobody wrote shows."""

from functools import partial

import numpy as np
import pytest

from lab import device
from lab.pace import numbers

SIZES = [1, 127, 129, 1000]
THREADS = 128
CUDA = ("add_cuda", "add_chunk_cuda", "add_grid_stride_cuda", "add_vector_cuda")


def vectors(rng, n):
    x, y = (rng.standard_normal(n, dtype=np.float32) for _ in range(2))
    return x, y, np.full(n, np.nan, np.float32)


def ceil(a, b):
    return -(-a // b)


def place(block):
    def at(index):
        i = index[0]
        return f"element {i} (thread {i % block} of block {i // block})"
    return at


def unless(n, wrong, want):
    """`want` where the condition holds, NaN (never written) elsewhere."""
    return np.where(wrong(np.arange(n)), want, np.nan)


@pytest.mark.parametrize("n", SIZES)
def test_add_cuda(subject, agree, rng, n):
    x, y, z = vectors(rng, n)
    subject.launch("add_cuda", ceil(n, THREADS), THREADS, (x, y, z, n))
    want = x.astype(np.float64) + y
    agree(z, want, "float32", f"add_cuda of {n} elements in blocks of {THREADS}", place(THREADS), {
        "a thread leaves blockIdx out, so that every block writes the first elements":
            unless(n, lambda i: i < THREADS, want),
        "the last element is left out by the bound": unless(n, lambda i: i < n - 1, want),
        "nothing is written": np.full(n, np.nan)})


def test_add_cuda__coalesced(subject, rng):
    x, y, z = vectors(rng, 1024)
    launch = subject.launch("add_cuda", 8, 128, (x, y, z, 1024))
    got = launch.sectors_per_request("load")
    assert got == 4, \
        (f"add_cuda: a full warp's load touches {got:g} sectors, 4 hold its 128 bytes: "
         f"neighbouring threads should take neighbouring elements")


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


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("blocks", [1, 3])
def test_add_grid_stride_cuda(subject, agree, rng, n, blocks):
    x, y, z = vectors(rng, n)
    subject.launch("add_grid_stride_cuda", blocks, THREADS, (x, y, z, n))
    want, grid = x.astype(np.float64) + y, blocks * THREADS
    what = f"add_grid_stride_cuda of {n} elements by {blocks} block(s) of {THREADS}"
    agree(z, want, "float32", what, place(THREADS), {
        "each thread stops after its first element": unless(n, lambda i: i < grid, want),
        "the first block's threads are left out": unless(n, lambda i: i >= THREADS, want)})


def test_add_grid_stride_cuda__each_element_once(subject, rng):
    x, y, z = vectors(rng, 4096)
    launch = subject.launch("add_grid_stride_cuda", 4, THREADS, (x, y, z, 4096))
    assert launch.bytes("load") <= 2 * 4 * 4096, \
        (f"add_grid_stride_cuda reads {launch.bytes('load'):,} bytes, {2 * 4 * 4096:,} are enough: "
         f"some elements are added more than once (is the step the whole grid, not one block?)")
    got = launch.sectors_per_request("load")
    assert got == 4, \
        (f"add_grid_stride_cuda: a load touches {got:g} sectors, 4 are enough: step by the "
         f"whole grid, so that neighbours stay neighbours")


@pytest.mark.parametrize("n", [1000, 1, 3, 4, 127, 129])
def test_add_vector_cuda(subject, agree, rng, n):
    x, y, z = vectors(rng, n)
    subject.launch("add_vector_cuda", ceil(n, 4 * THREADS), THREADS, (x, y, z, n))
    want = x.astype(np.float64) + y
    tail = n - n % 4

    def at(index):
        return f"element {index[0]} (number {index[0] % 4} of thread {index[0] // 4}'s four)"

    agree(z, want, "float32", f"add_vector_cuda of {n} elements, four a thread", at, {
        "the elements after the last whole four are left out": unless(n, lambda i: i < tail, want),
        "only the first of each four is written": unless(n, lambda i: i % 4 == 0, want)})


def test_add_vector_cuda__sixteen_bytes(subject, rng):
    x, y, z = vectors(rng, 1024)
    launch = subject.launch("add_vector_cuda", 2, 128, (x, y, z, 1024))
    requests, enough = launch.requests("load"), 2 * 1024 // 128     # 128 elements a warp's request
    assert requests == enough, \
        (f"add_vector_cuda makes {requests} load requests for 1024 elements, {enough} are enough: "
         f"load four floats at once, as one float4")


@pytest.mark.parametrize("n", SIZES)
def test_add_triton(subject, agree, rng, n):
    x, y, z = vectors(rng, n)
    subject.launch("add_triton", ceil(n, 256), args=tensors(x, y, z) + (n,), BLOCK=256)
    want = x.astype(np.float64) + y

    def at(index):
        return f"element {index[0]} (number {index[0] % 256} of program {index[0] // 256})"

    agree(z, want, "float32", f"add_triton of {n} elements in programs of 256", at, {
        "every program works on the first block": unless(n, lambda i: i < 256, want),
        "programs start one element apart, not one block": unless(n, lambda i: i < 256 + 3, want),
        "x is stored, y is left out": x})


def test_add_triton__work(subject, rng):
    """Every number is moved once, and 32 lanes ask for neighbours, 16 bytes each."""
    x, y, z = vectors(rng, 4096)
    launch = subject.launch("add_triton", 8, args=tensors(x, y, z) + (4096,), BLOCK=512)
    moved, least = launch.bytes("load"), x.nbytes + y.nbytes
    assert moved == least, (f"add_triton loads {moved:,} bytes for two arrays of {x.nbytes:,}: "
                            f"each number should be loaded once")
    requests, enough = launch.requests("load"), 2 * 4096 // 128     # 128 elements a warp's request
    assert requests == enough, (
        f"add_triton makes {requests} load requests for 4096 elements, {enough} are enough: lanes "
        f"beside each other should work on neighbours, so that four become one load")


def tensors(*arrays):
    """CPU tensors on the same memory."""
    import torch

    return tuple(torch.from_numpy(a) for a in arrays)


@pytest.mark.parametrize("n", [0, 1, 127, 129, 1000])
def test_public_functions(rng, n):
    """Whatever the address: one that is no multiple of 16 gets another kernel."""
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
    """What overflows does so as in torch, and inf or NaN spoils its own element alone."""
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
        with pytest.raises(ValueError, match="expected it contiguous"):
            add(x[::2], x[::2])
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
