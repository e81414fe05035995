"""k10 · SwiGLU: y = SiLU(gate) · up, with SiLU(g) = g · sigmoid(g); by itself, and in a matmul

T: tokens, one row each   C: model width   F: mlp width
By itself it reads 2·T·F numbers and writes T·F, with 5 FLOPs per result: 5/12 FLOP per byte in
fp32.
Memory is the limit.
At the end of the matmul that computes gate and up, it only writes y.
Source: Shazeer, "GLU Variants Improve Transformer", 2020.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.gradients import differentiable, without_gradients
from layer1_kernels.k05_matmul_tiled import (
    GROUP,
    grouped_triton,
    matmul_tiled_triton,  # noqa: F401  (its bytes are compared with those of the fused kernel)
)
from layer1_kernels.k08_rmsnorm import FLOATS, at_least_fp32

__all__ = ["matmul_swiglu", "matmul_swiglu_torch", "swiglu", "swiglu_cuda", "swiglu_torch"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
THREADS = 256           # a block of the CUDA kernels
BLOCK = 1024            # columns of a program of swiglu_triton: 16 bytes a thread in 16 bits
MAX_INDEX = 2**31 - 1   # largest number of blocks or programs of a launch, and 32-bit index


# ---- by the book


def swiglu_oracle(gate, up):                        # (T, F), (T, F) -> (T, F)
    """float64.
    If exp overflows, the sigmoid is 0."""
    gate = gate.astype(np.float64)                  # (T, F)
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up


def matmul_swiglu_oracle(x, w_gate_up):             # (T, C), (2F, C) -> (T, F)
    """float64."""
    gate, up = np.split(x.astype(np.float64) @ w_gate_up.T.astype(np.float64), 2, axis=-1)
    return swiglu_oracle(gate, up)


def swiglu_torch(gate, up):                         # (T, F), (T, F) -> (T, F)
    """As swiglu, by PyTorch, one operation after another; also takes float64."""
    return (torch.nn.functional.silu(at_least_fp32(gate)) * up).to(gate.dtype)


def matmul_swiglu_torch(x, w_gate_up):              # (T, C), (2F, C) -> (T, F)
    """As matmul_swiglu, by PyTorch, one operation after another; also takes float64."""
    both = at_least_fp32(x) @ at_least_fp32(w_gate_up).T                # (T, 2*F)
    return swiglu_torch(*both.chunk(2, dim=-1)).to(x.dtype)


# ---- by itself


@triton.jit
def swiglu_triton(gate, up, y, F, gate_stride, up_stride, BLOCK: tl.constexpr):
    """One program for each BLOCK columns of a row; gate, up, y: (T, F).

    Rows of gate start gate_stride numbers apart, rows of up up_stride, rows of y F.
    """
    blocks = tl.cdiv(F, BLOCK)                      # of a row
    t = (tl.program_id(0) // blocks).to(tl.int64)   # T·F may not fit 32 bits
    f = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = f < F
    # exercise: load gate and up, compute in fp32, store; rows of y start F numbers apart
    g = tl.load(gate + t * gate_stride + f, inside).to(tl.float32)
    u = tl.load(up + t * up_stride + f, inside)
    tl.store(y + t * F + f, g * tl.sigmoid(g) * u, inside)


# ---- at the end of a matmul


def predict_numbers_saved():
    """How many fewer numbers matmul_swiglu_triton moves, for each number of y, than two kernels:
    matmul_tiled_triton for gate and up together, then swiglu_triton."""
    # exercise: for one result, what do the two kernels move that the one does not?
    return 2 + 2


def saved_share(C, peak, bandwidth):
    """The time saved by not moving these numbers, divided by the time of the matmul.

    C: model width   peak: FLOP/s   bandwidth: byte/s   A number has 2 bytes.
    Both times are roofs:
    bytes / bandwidth and FLOPs / peak.
    T and F cancel.
    """
    # exercise: for one result, the time of the bytes saved over that of its two dot products
    saved = 2 * 4 / bandwidth
    matmul = 2 * 2 * C / peak
    return saved / matmul


@triton.jit
def matmul_swiglu_triton(x, w, y, T, C, F, BT: tl.constexpr, BF: tl.constexpr, BC: tl.constexpr,
                         GROUP: tl.constexpr):
    """y = SiLU(x · w[:F]ᵀ) · (x · w[F:]ᵀ): one program for each tile (BT, BF) of y, in k05's order.

    x (T, C), w (2F, C), y (T, F), all contiguous; BC: columns of x and w in a step
    """
    row, column = grouped_triton(tl.program_id(0), tl.cdiv(T, BT), tl.cdiv(F, BF), GROUP)
    t, f, c = row * BT + tl.arange(0, BT), column * BF + tl.arange(0, BF), tl.arange(0, BC)
    t_inside, f_inside = (t < T)[:, None], (f < F)[:, None]
    x += t[:, None].to(tl.int64) * C + c            # (BT, BC) addresses
    w += f[:, None].to(tl.int64) * C + c            # (BF, BC), rows of w for gate
    w_up = w + tl.cast(F, tl.int64) * C             # (BF, BC), rows of w for up
    gate, up = tl.zeros((BT, BF), tl.float32), tl.zeros((BT, BF), tl.float32)
    # exercise: per step load a tile of x and two of w, add both products; then SwiGLU; store
    for start in range(0, C, BC):
        c_inside = c < C - start
        x_tile = tl.load(x + start, t_inside & c_inside, 0)
        gate_tile = tl.load(w + start, f_inside & c_inside, 0)
        up_tile = tl.load(w_up + start, f_inside & c_inside, 0)
        gate = tl.dot(x_tile, gate_tile.T, gate, input_precision="ieee")
        up = tl.dot(x_tile, up_tile.T, up, input_precision="ieee")
    result = gate * tl.sigmoid(gate) * up
    tl.store(y + t[:, None].to(tl.int64) * F + f, result, t_inside & (f < F))


# ---- the launchers


@partial(differentiable, oracle=swiglu_torch)
def swiglu(gate, up):                               # (T, F), (T, F) -> (T, F)
    """SiLU(gate) · up.

    By a Triton kernel; gradients of both are those of swiglu_torch.
    float32, float16 or bfloat16, one dtype, on the CPU or on CUDA; computed in fp32.
    Rows may start any distance apart, so gate and up may be halves of one array; each row is
    contiguous.
    T or F may be 0.
    """
    check("swiglu", FLOATS, gate, up)
    T, F = gate.shape
    y = gate.new_empty(gate.shape)                                      # (T, F)
    if y.numel():
        swiglu_triton[(T * triton.cdiv(F, BLOCK),)](gate, up, y, F, gate.stride(0), up.stride(0),
                                                    BLOCK=BLOCK)
    return y


@without_gradients
def swiglu_cuda(gate, up, kernel=None):             # (T, F), (T, F) -> (T, F)
    """As swiglu, float32, by a CUDA kernel: swiglu_vector_cuda if all addresses allow it.

    ValueError if it is asked for and they do not.
    """
    check("swiglu_cuda", FLOATS[:1], gate, up)
    T, F = gate.shape
    y = gate.new_empty(gate.shape)                                      # (T, F)
    four = [F, gate.stride(0), up.stride(0), gate.data_ptr() // 4, up.data_ptr() // 4]
    fits = all(number % 4 == 0 for number in four)
    kernel = kernel or ("swiglu_vector_cuda" if fits else "swiglu_scalar_cuda")
    each = 4 if kernel == "swiglu_vector_cuda" else 1
    if each == 4 and not fits:
        raise ValueError(f"{kernel}: rows of {F} numbers, {four[1]} and {four[2]} apart; expected "
                         f"multiples of 4, and arrays that begin at a multiple of 16 bytes")
    if y.numel():
        KERNELS.get(kernel)(T * triton.cdiv(F // each, THREADS), THREADS,
                            (gate, up, y, F, np.int64(four[1]), np.int64(four[2])))
    return y


def tiles(T, dtype):
    """Constexprs, warps and stages of matmul_swiglu_triton for T rows.

    Chosen from the code compiled for Hopper (no spills, wgmma from tiles of 64 rows on); not timed.
    """
    if dtype == torch.float32:
        BT, BF, BC, warps, stages = (16, 64, 16, 4, 3) if T <= 16 else (64, 64, 16, 8, 3)
    else:
        BT, BF, BC, warps, stages = ((16, 64, 128, 4, 4) if T <= 16 else
                                     (64, 64, 64, 4, 4) if T <= 64 else (128, 128, 64, 8, 3))
    return {"BT": BT, "BF": BF, "BC": BC, "GROUP": GROUP, "num_warps": warps, "num_stages": stages}


@partial(differentiable, oracle=matmul_swiglu_torch)
def matmul_swiglu(x, w_gate_up):                    # (T, C), (2F, C) -> (T, F)
    """SiLU(gate) · up by one Triton kernel, where gate and up are x times the first and the last F
    rows of w_gate_up.
    Gradients of both arguments are those of matmul_swiglu_torch.

    float32 (IEEE, not TF32), float16 or bfloat16, one dtype, on the CPU or on CUDA, contiguous.
    Sums are fp32; gate and up are not rounded before they are multiplied.
    Any size may be 0.
    """
    check_matmul(x, w_gate_up)
    T, C = x.shape
    F = len(w_gate_up) // 2
    y = x.new_empty((T, F)) if C else x.new_zeros((T, F))               # (T, F)
    if x.numel() and y.numel():
        meta = tiles(T, x.dtype)
        grid = (triton.cdiv(T, meta["BT"]) * triton.cdiv(F, meta["BF"]),)
        matmul_swiglu_triton[grid](x, w_gate_up, y, T, C, F, **meta)
    return y


def check(op, dtypes, gate, up):
    """What the kernels assume; they count columns and programs with 32 bits."""
    if gate.ndim != 2 or gate.shape != up.shape:
        raise ValueError(f"{op}: gate has shape {tuple(gate.shape)} and up {tuple(up.shape)}, "
                         f"expected (rows, columns), the same for both")
    if gate.dtype not in dtypes:
        raise TypeError(f"{op}: gate is {gate.dtype}, expected {' or '.join(map(str, dtypes))}")
    same(op, gate=gate, up=up)
    for name, tensor in (("gate", gate), ("up", up)):
        if tensor.stride(1) != 1 and tensor.shape[1] > 1:
            raise ValueError(f"{op}: {name} has strides {tensor.stride()}, expected a last stride "
                             f"of 1 (the numbers of a row next to each other); call "
                             f"{name}.contiguous()")
    if gate.shape[0] * triton.cdiv(gate.shape[1], THREADS) > MAX_INDEX:
        raise ValueError(f"{op}: gate has shape {tuple(gate.shape)}, expected fewer rows: "
                         f"a block takes {THREADS} columns of a row, and a launch has at most "
                         f"{MAX_INDEX} blocks")


def check_matmul(x, w):
    """What matmul_swiglu_triton assumes; it counts tokens and columns with 32 bits."""
    if x.ndim != 2 or w.ndim != 2 or w.shape[1] != x.shape[1] or w.shape[0] % 2:
        raise ValueError(f"matmul_swiglu: x has shape {tuple(x.shape)} and w_gate_up "
                         f"{tuple(w.shape)}, expected (T, C) and (2F, C)")
    if x.dtype not in FLOATS:
        raise TypeError(f"matmul_swiglu: x is {x.dtype}, expected "
                        f"{' or '.join(map(str, FLOATS))}")
    same("matmul_swiglu", x=x, w_gate_up=w)
    for name, tensor in (("x", x), ("w_gate_up", w)):
        if not tensor.is_contiguous():
            raise ValueError(f"matmul_swiglu: {name} has strides {tensor.stride()}, expected it to "
                             f"be contiguous; call {name}.contiguous()")
        if max(tensor.shape) > MAX_INDEX - BLOCK:
            raise ValueError(f"matmul_swiglu: {name} has shape {tuple(tensor.shape)}, expected "
                             f"sizes up to {MAX_INDEX - BLOCK}")


def same(op, **tensors):
    """TypeError unless both tensors have one dtype and one device."""
    (first, a), (second, b) = tensors.items()
    if a.dtype != b.dtype or a.device != b.device:
        raise TypeError(f"{op}: {first} is {a.dtype} on {a.device} and {second} {b.dtype} on "
                        f"{b.device}, expected the same")
