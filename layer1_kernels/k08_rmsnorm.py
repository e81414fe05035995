"""k08 · RMSNorm of each row, y = x / sqrt(mean of x² + eps) · w; with the residual addition before

T: tokens, one row each   C: model width
Reads T·C numbers, writes T·C, 4 FLOPs per number: 1/2 FLOP per byte in fp32.
Memory is the limit.
Sources: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019; Ba, Kiros and Hinton,
"Layer Normalization", 2016.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lab import simulator
from layer1_kernels.gradients import differentiable, without_gradients
from layer1_kernels.k01_vector_add import vector_add_cuda

__all__ = ["add_rmsnorm", "add_rmsnorm_cuda", "add_rmsnorm_torch", "layernorm", "layernorm_torch",
           "rmsnorm", "rmsnorm_cuda", "rmsnorm_torch"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
THREADS = 256           # a block of the CUDA kernels, one a row
FITS = 12_000           # longest row in shared memory: 48 KB a block, on every GPU
MAX_ROW = 32_768        # longest row in registers: 64 in each thread of 16 warps
BLOCK = 4096            # columns that the kernels for longer rows take at a time
FLOATS = torch.float32, torch.float16, torch.bfloat16


# ---- by the formula


def rmsnorm_oracle(x, w, eps):                      # (T, C), (C,) -> (T, C)
    """float64."""
    x = x.astype(np.float64)                        # (T, C)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def layernorm_oracle(x, w, b, eps):                 # (T, C), (C,), (C,) -> (T, C)
    """float64."""
    x = x.astype(np.float64)                        # (T, C)
    x = x - x.mean(-1, keepdims=True)               # (T, C)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w + b


def rmsnorm_torch(x, w, eps):                       # (T, C), (C,) -> (T, C)
    """As rmsnorm, by PyTorch, one operation after another; also takes float64."""
    v = at_least_fp32(x)                            # (T, C)
    return (v * torch.rsqrt((v * v).mean(-1, keepdim=True) + eps) * w).to(x.dtype)


def layernorm_torch(x, w, b, eps):                  # (T, C), (C,), (C,) -> (T, C)
    """As layernorm, by PyTorch, one operation after another; also takes float64."""
    v = at_least_fp32(x)                            # (T, C)
    v = v - v.mean(-1, keepdim=True)                # (T, C)
    return (v * torch.rsqrt((v * v).mean(-1, keepdim=True) + eps) * w + b).to(x.dtype)


def add_rmsnorm_torch(x, residual, w, eps):         # 2 × (T, C), (C,) -> 2 × (T, C)
    """As add_rmsnorm, by PyTorch, one operation after another; also takes float64."""
    residual = x + residual                         # (T, C)
    return rmsnorm_torch(residual, w, eps), residual


def at_least_fp32(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


# ---- the kernels


def predict_bytes_ratio():
    """Your guess: the bytes that an addition and then a norm move, divided by those of one kernel
    that does both and writes both results.
    Leave out w."""
    # exercise: how many arrays of T·C numbers do the two read and write, and how many does the one?
    return ((2 + 1) + (1 + 1)) / (2 + 2)


@triton.jit
def rmsnorm_triton(x, w, y, C, eps, BLOCK: tl.constexpr):
    """One program per row.
    BLOCK: a power of two, at least C."""
    x += tl.program_id(0).to(tl.int64) * C          # this program's row; T·C may not fit 32 bits
    y += tl.program_id(0).to(tl.int64) * C
    c = tl.arange(0, BLOCK)
    inside = c < C
    # exercise: load the row once, as fp32; compute the scale from its squares; store the product
    v = tl.load(x + c, inside, 0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v) / C + eps)
    tl.store(y + c, v * scale * tl.load(w + c, inside), inside)


@triton.jit
def add_rmsnorm_triton(x, residual, w, y, total, C, eps, BLOCK: tl.constexpr):
    """One program per row: total = x + residual, and y is the RMSNorm of total as stored."""
    row = tl.program_id(0).to(tl.int64) * C         # where this program's row begins
    c = tl.arange(0, BLOCK)
    inside = c < C
    # exercise: add, store the sum, normalise the sum that is still in registers
    s = tl.load(x + row + c, inside, 0) + tl.load(residual + row + c, inside, 0)
    tl.store(total + row + c, s, inside)
    v = s.to(tl.float32)                            # the rounded sum, as a separate norm reads it
    scale = tl.rsqrt(tl.sum(v * v) / C + eps)
    tl.store(y + row + c, v * scale * tl.load(w + c, inside), inside)


@triton.jit
def layernorm_triton(x, w, b, y, C, eps, BLOCK: tl.constexpr):
    """One program per row: y is the row, shifted to mean 0, scaled to mean square 1, · w + b."""
    row = tl.program_id(0).to(tl.int64) * C
    c = tl.arange(0, BLOCK)
    inside = c < C
    # exercise: subtract the mean, then continue as in RMSNorm; columns beyond the row must be 0
    v = tl.load(x + row + c, inside, 0).to(tl.float32)
    v = tl.where(inside, v - tl.sum(v) / C, 0)
    scale = tl.rsqrt(tl.sum(v * v) / C + eps)
    tl.store(y + row + c, v * scale * tl.load(w + c, inside) + tl.load(b + c, inside), inside)


@triton.jit
def rmsnorm_loop_triton(x, w, y, C, eps, BLOCK: tl.constexpr):
    """One program per row of any length, BLOCK columns at a time.
    It reads the row twice."""
    row = tl.program_id(0).to(tl.int64) * C
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + c, c < C, 0).to(tl.float32)
        squares += v * v
    scale = tl.rsqrt(tl.sum(squares) / C + eps)
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + c, c < C).to(tl.float32)
        tl.store(y + row + c, v * scale * tl.load(w + c, c < C), c < C)


@triton.jit
def add_rmsnorm_loop_triton(x, residual, w, y, total, C, eps, BLOCK: tl.constexpr):
    """The same with the addition: the second loop reads the sum that the first has written."""
    row = tl.program_id(0).to(tl.int64) * C
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        s = tl.load(x + row + c, c < C, 0) + tl.load(residual + row + c, c < C, 0)
        tl.store(total + row + c, s, c < C)
        squares += s.to(tl.float32) * s.to(tl.float32)
    scale = tl.rsqrt(tl.sum(squares) / C + eps)
    for start in range(0, C, BLOCK):                # each thread reads only columns that it wrote
        c = start + tl.arange(0, BLOCK)
        v = tl.load(total + row + c, c < C).to(tl.float32)
        tl.store(y + row + c, v * scale * tl.load(w + c, c < C), c < C)


@triton.jit
def layernorm_loop_triton(x, w, b, y, C, eps, BLOCK: tl.constexpr):
    """One program per row of any length.
    Mean and squares of two parts merge as in Chan, Golub and LeVeque, "Updating formulae and a
    pairwise algorithm for computing sample variances", 1979."""
    row = tl.program_id(0).to(tl.int64) * C
    mean = 0.0                                      # of the columns so far
    squares = 0.0                                   # of their distances from mean, added up
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + c, c < C, 0).to(tl.float32)
        n = tl.minimum(C - start, BLOCK)            # columns of this block
        own = tl.sum(v) / n
        v = tl.where(c < C, v - own, 0)
        away = own - mean
        share = n / (start + n)
        squares += tl.sum(v * v) + away * away * start * share
        mean += away * share
    scale = tl.rsqrt(squares / C + eps)
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = (tl.load(x + row + c, c < C).to(tl.float32) - mean) * scale
        tl.store(y + row + c, v * tl.load(w + c, c < C) + tl.load(b + c, c < C), c < C)


# ---- the launchers


def plan(C, whole, loop):
    """The kernel for rows of C numbers, `whole` or `loop`, and how to compile it."""
    if C > MAX_ROW:
        return loop, {"BLOCK": BLOCK, "num_warps": 8}
    width = triton.next_power_of_2(C)
    return whole, {"BLOCK": width, "num_warps": min(max(width // 1024, 4), 16)}


@partial(differentiable, oracle=rmsnorm_torch)
def rmsnorm(x, w, eps):                             # (T, C), (C,) -> (T, C)
    """RMSNorm of each row: divided by the root of its mean square, times w.

    By a Triton kernel; gradients of x and w are those of rmsnorm_torch.
    float32, float16 or bfloat16, one dtype, on the CPU or on CUDA, contiguous; sums are fp32.
    T or C may be 0. Where squares overflow fp32, |x| above 1.8e19, y is 0, as in PyTorch.
    """
    check("rmsnorm", FLOATS, x, w=w)
    T, C = x.shape
    y = torch.empty_like(x)                         # (T, C)
    if x.numel():
        kernel, meta = plan(C, rmsnorm_triton, rmsnorm_loop_triton)
        kernel[(T,)](x, w, y, C, eps, **meta)
    return y


@partial(differentiable, oracle=add_rmsnorm_torch)
def add_rmsnorm(x, residual, w, eps):               # 2 × (T, C), (C,) -> 2 × (T, C)
    """(y, residual): the new residual is x + residual, and y its RMSNorm.
    Inputs stay as they are.

    As rmsnorm otherwise; y is the norm of the sum as rounded to x's dtype, as if in two steps.
    """
    check("add_rmsnorm", FLOATS, x, residual=residual, w=w)
    T, C = x.shape
    y = torch.empty_like(x)
    total = torch.empty_like(x)
    if x.numel():
        kernel, meta = plan(C, add_rmsnorm_triton, add_rmsnorm_loop_triton)
        kernel[(T,)](x, residual, w, y, total, C, eps, **meta)
    return y, total


@partial(differentiable, oracle=layernorm_torch)
def layernorm(x, w, b, eps):                        # (T, C), (C,), (C,) -> (T, C)
    """LayerNorm of each row by a Triton kernel.
    As rmsnorm otherwise."""
    check("layernorm", FLOATS, x, w=w, b=b)
    T, C = x.shape
    y = torch.empty_like(x)                         # (T, C)
    if x.numel():
        kernel, meta = plan(C, layernorm_triton, layernorm_loop_triton)
        kernel[(T,)](x, w, b, y, C, eps, **meta)
    return y


@without_gradients
def rmsnorm_cuda(x, w, eps, kernel=None):           # (T, C), (C,) -> (T, C)
    """RMSNorm of each row by a CUDA kernel, the one that fits. float32, contiguous; T, C may be 0.

    ValueError if rmsnorm_one_read_cuda gets a row that does not fit in shared memory.
    """
    check("rmsnorm_cuda", FLOATS[:1], x, w=w)
    T, C = x.shape
    y = torch.empty_like(x)                         # (T, C)
    kernel = kernel or ("rmsnorm_one_read_cuda" if C <= FITS else "rmsnorm_two_read_cuda")
    keeps = kernel == "rmsnorm_one_read_cuda"
    if keeps and C > FITS:
        raise ValueError(f"{kernel}: rows of {C:,} numbers, expected at most {FITS:,}, which fit "
                         f"in shared memory; rmsnorm_two_read_cuda takes any length")
    if x.numel():
        KERNELS.get(kernel)(T, THREADS, (x, w, y, C, np.float32(eps)),
                            shared_mem=x.element_size() * C * keeps)
    return y


@without_gradients
def add_rmsnorm_cuda(x, residual, w, eps):          # 2 × (T, C), (C,) -> 2 × (T, C)
    """As add_rmsnorm, by a CUDA kernel. float32, contiguous; T or C may be 0.

    Rows that do not fit in shared memory, above 12,000 numbers, take two launches.
    """
    check("add_rmsnorm_cuda", FLOATS[:1], x, residual=residual, w=w)
    T, C = x.shape
    y = torch.empty_like(x)
    total = torch.empty_like(x)
    if C > FITS:
        total = vector_add_cuda(x, residual)        # (T, C)
        y = rmsnorm_cuda(total, w, eps)             # (T, C)
    elif x.numel():
        KERNELS.get("add_rmsnorm_fused_cuda")(
            T, THREADS, (x, residual, w, y, total, C, np.float32(eps)),
            shared_mem=x.element_size() * C)
    return y, total


def check(op, dtypes, x, **others):
    """What the kernels assume: contiguous arrays, and columns counted in 32 bits."""
    if x.ndim != 2:
        raise ValueError(f"{op}: x has shape {tuple(x.shape)}, expected (rows, columns)")
    if x.dtype not in dtypes:
        raise TypeError(f"{op}: x is {x.dtype}, expected {' or '.join(map(str, dtypes))}")
    for name, tensor in {"x": x, **others}.items():
        shape = x.shape if name in ("x", "residual") else x.shape[1:]
        if tensor.shape != shape:
            raise ValueError(f"{op}: {name} has shape {tuple(tensor.shape)}, "
                             f"expected {tuple(shape)}")
        if tensor.dtype != x.dtype or tensor.device != x.device:
            raise TypeError(f"{op}: {name} is {tensor.dtype} on {tensor.device}, "
                            f"expected {x.dtype} on {x.device}, as x is")
        if not tensor.is_contiguous():
            raise ValueError(f"{op}: {name} has strides {tensor.stride()}, expected it to be "
                             f"contiguous; {name}.contiguous() makes it so")
    if max(x.shape) >= 2**31 - BLOCK:
        raise ValueError(f"{op}: x has shape {tuple(x.shape)}, expected fewer than "
                         f"2^31 - {BLOCK} rows and columns")


# ---- what is counted and measured


class Eager(TorchDispatchMode):
    """Counts the operations that PyTorch launches, one each, and the bytes of their tensors."""

    def __init__(self):
        super().__init__()
        self.launches = self.loaded = self.stored = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        inputs, outputs = ({id(a): a.nbytes for a in tree_leaves(tree) if torch.is_tensor(a)}
                           for tree in (args, result))
        if outputs and not operation.is_view:       # torch queries dtypes by operations too
            self.launches += 1
            self.loaded += sum(inputs.values())     # an array that is given twice is read once
            self.stored += sum(outputs.values())
        return result
