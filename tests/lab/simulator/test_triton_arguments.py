"""What a Triton kernel is launched with: numbers, tuples, views, objects, grids."""

from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from lab import simulator  # noqa: E402

from .triton_kernels import add_kernel  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated_triton")


@triton.jit
def scalars_kernel(out, flag, one, zero, n, big, x, y, nothing, HALF: tl.constexpr,
                   MODE: tl.constexpr):
    if flag:
        tl.store(out, n + one + zero)
    tl.store(out + 1, (big >> 32).to(tl.float64))
    tl.store(out + 2, x * HALF + y)
    if nothing is None:
        tl.store(out + 3, 3.0)
    if MODE == "negate":
        tl.store(out + 4, -x)


@pytest.mark.parametrize("flag, n", [(True, 5), (False, -7)])
def test_scalars(flag, n):
    out = torch.zeros(5, dtype=torch.float64)
    scalars_kernel[(1,)](out, flag, 1, 0, n, 3 << 32, 0.75, 2, None, HALF=0.5, MODE="negate")
    assert out.tolist() == [(n + 1) * flag, 3, 2.375, 3, -0.75]


class Pair(NamedTuple):
    pointer: object
    step: int


@triton.jit
def tuples_kernel(pair, nested, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(pair.pointer + i * pair.step, i < n)
    tl.store(nested[0] + i, v * nested[1][0] + nested[1][1], i < n)


def test_tuples_and_named_tuples():
    x, y = torch.rand(64), torch.zeros(32)
    tuples_kernel[(1,)](Pair(x, 2), (y, (3, 0.5)), 32, BLOCK=32)
    assert torch.allclose(y, 3 * x[::2] + 0.5)


def test_a_member_of_a_tuple_has_its_name_in_messages():
    x, y = torch.rand(10), torch.zeros(32)
    with pytest.raises(simulator.KernelError, match=r"`pair\.pointer`"):
        tuples_kernel[(1,)](Pair(x, 2), (y, (3, 0.5)), 32, BLOCK=32)
    with pytest.raises(simulator.KernelError, match=r"`nested\[0\]`"):
        tuples_kernel[(1,)](Pair(torch.rand(64), 2), (y[:8], (3, 0.5)), 32, BLOCK=32)


@triton.jit
def copy_kernel(x, y, rows, columns, xr, xc, yr, yc, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r, c = i // columns, i % columns
    inside = i < rows * columns
    tl.store(y + r * yr + c * yc, tl.load(x + r * xr + c * xc, inside), inside)


@pytest.mark.parametrize("dtype", [
    torch.bool, torch.int8, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float64,
    torch.float8_e5m2], ids=str)
def test_views_of_any_stride_alignment_and_type(dtype):
    whole = torch.randint(0, 2, (40, 50)).to(dtype)
    for x in (whole, whole.T, whole[3::2, 1::3], whole[:, 7:8], whole[5]):
        x = x if x.ndim == 2 else x[None]
        y = torch.zeros(x.shape, dtype=dtype).T.contiguous().T
        copy_kernel[(triton.cdiv(x.numel(), 128),)](x, y, *x.shape, *x.stride(), *y.stride(),
                                                    BLOCK=128)
        assert torch.equal(y.float(), x.float())


def test_alignment_is_what_the_compiler_saw():
    """Memory from elsewhere may start anywhere: here at 8 beyond a multiple of 16."""
    memory = np.zeros(8192, np.uint8)
    start = -memory.ctypes.data % 16 + 8
    x = torch.from_numpy(memory[start:start + 4096].view(np.float32))
    x[:] = torch.rand(1024)
    for view in (x, x[2:]):                                 # not aligned, and aligned by its offset
        n, z = len(view) // 128 * 128, torch.zeros(1024)
        add_kernel[(8,)](view, view, z, n, BLOCK=128)
        assert torch.equal(z[:n], 2 * view[:n])


def test_a_number_that_does_not_fit_is_an_error():
    @triton.jit
    def kernel(out, n: tl.int8):
        tl.store(out, n)
    out = torch.zeros(1, dtype=torch.int32)
    kernel[(1,)](out, -128)
    assert out.item() == -128
    with pytest.raises(simulator.KernelError, match="`n`: takes i8, 200 does not fit"):
        kernel[(1,)](out, 200)


def test_reinterpreted_tensor():
    x = torch.tensor([1.5, -2.0]).view(torch.int32)
    y, z = torch.zeros(2), torch.ones(2)
    add_kernel[(1,)](triton.reinterpret(x, tl.float32), y, z, 2, BLOCK=2)
    assert z.tolist() == [1.5, -2.0]


class Backwards:
    """A negative stride, which no torch tensor has.
    Triton takes anything with a data_ptr()."""

    def __init__(self, tensor):
        self.tensor, self.dtype = tensor, tensor.dtype

    def data_ptr(self):
        return self.tensor[-1:].data_ptr()


def test_an_object_with_an_address():
    x, y = torch.rand(100), torch.zeros(100)
    copy_kernel[(1,)](Backwards(x), y, 1, 100, 0, -1, 0, 1, BLOCK=128)
    assert torch.equal(y, x.flip(0))
    with pytest.raises(simulator.KernelError, match="belongs to no argument"):
        copy_kernel[(1,)](Backwards(x), y, 1, 100, 0, 1, 0, 1, BLOCK=128)


def test_the_last_row_of_a_view_has_its_padding_too():
    whole = torch.zeros(4, 32)
    part = whole[1:3, :20]                                  # rows of 20, 32 apart
    fill_kernel[(2,)](part, 32, ROW=32)
    assert torch.equal(whole[1:3], torch.ones(2, 32)) and whole.sum() == 64
    with pytest.raises(simulator.KernelError, match="element 64 of `x`"):
        fill_kernel[(3,)](part, 32, ROW=32)


@triton.jit
def fill_kernel(x, stride, ROW: tl.constexpr):
    tl.store(x + tl.program_id(0) * stride + tl.arange(0, ROW), 1.0)


@triton.jit(repr=lambda specialization: f"fill_{specialization.constants['ROW']}")
def renamed_kernel(x, ROW: tl.constexpr):
    tl.store(x + tl.arange(0, ROW), 1.0)


def test_a_kernel_that_names_itself():
    x = torch.zeros(64)
    with simulator.trace() as t:
        renamed_kernel[(1,)](x, ROW=32)
        renamed_kernel[(1,)](x, ROW=64)
    assert x.sum() == 64 and [launch.name for launch in t.launches] == ["fill_32", "fill_64"]


def test_an_expanded_tensor_reaches_its_whole_storage():
    """Strides of 0 let a kernel pick its own elements of a dimension; a slice ends where it ends.
    """
    x, y = torch.rand(20), torch.zeros(20)
    copy_kernel[(1,)](x[:1].expand(20), y, 1, 20, 0, 1, 0, 1, BLOCK=32)
    assert torch.equal(y, x)
    for short, n in ((x[:10], 20), (x[:1].expand(20), 21)):
        with pytest.raises(simulator.KernelError, match="out-of-bounds read .* of `x`"):
            copy_kernel[(1,)](short, torch.zeros(30), 1, n, 0, 1, 0, 1, BLOCK=32)


def test_an_empty_grid_is_no_launch():
    x = torch.rand(8)
    with simulator.trace() as t:
        add_kernel[(0,)](x, x, x, 8, BLOCK=8)
        add_kernel[(3, 0, 2)](x, x, x, 8, BLOCK=8)
    assert not t.launches
    for grid in ((1, 65536), (-1,), (2.0,)):
        with pytest.raises(simulator.KernelError, match="grid"):
            add_kernel[grid](x, x, x, 8, BLOCK=8)
    add_kernel[(np.int64(1),)](x, x, z := torch.zeros(8), 8, BLOCK=8)
    assert torch.equal(z, 2 * x)


@triton.jit
def grid_kernel(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out + at, 100 * x + 10 * y + z)


def test_grids_of_three_dimensions():
    out = torch.zeros(4, 3, 2, dtype=torch.int32)
    grid_kernel[lambda meta: (2, 3, 4)](out)
    z, y, x = np.indices((4, 3, 2))
    assert (out.numpy() == 100 * x + 10 * y + z).all()


@triton.jit
def grid_barrier_kernel(x, total, arrived, y, BLOCK: tl.constexpr):
    """Every program needs what all of them have added."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.atomic_add(total, tl.sum(v, 0))
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < tl.num_programs(0):
        pass
    tl.store(y + i, v / tl.atomic_add(total, 0.0))


def test_a_cooperative_grid_waits_for_all_its_programs():
    """400 programs of 128 threads are more than one wave of the simulator."""
    x = torch.rand(400 * 128)
    y, total, arrived = torch.zeros_like(x), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    grid_barrier_kernel[(400,)](x, total, arrived, y, BLOCK=128, launch_cooperative_grid=True)
    assert torch.allclose(y, x / x.sum(), rtol=1e-4)
