"""k10 · SwiGLU: y = SiLU(gate) · up, with SiLU(g) = g · sigmoid(g); by itself, and in a matmul

T: tokens, one row each   C: model width   F: mlp width
By itself it reads 2·T·F numbers and writes T·F, 5 FLOPs for each: 5/12 FLOP per byte in fp32.
Memory decides. At the end of the matmul that makes gate and up it moves nothing.
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
    matmul_tiled_triton,  # noqa: F401  (its bytes are counted beside those of the fused one)
)
from layer1_kernels.k08_rmsnorm import FLOATS, at_least_fp32

__all__ = ["matmul_swiglu", "matmul_swiglu_torch", "swiglu", "swiglu_cuda", "swiglu_torch"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
THREADS = 256           # a block of the CUDA kernels
BLOCK = 1024            # columns of a program of swiglu_triton: 16 bytes a thread in 16 bits
MOST = 2**31 - 1        # blocks or programs of a launch, and what 32-bit indices reach


# ---- by the book


def swiglu_oracle(gate, up):                        # (T, F), (T, F) -> (T, F)
    """float64. Where exp overflows, sigmoid is 0."""
    gate = gate.astype(np.float64)                  # (T, F)
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up


def matmul_swiglu_oracle(x, w_gate_up):             # (T, C), (2F, C) -> (T, F)
    """float64."""
    gate, up = np.split(x.astype(np.float64) @ w_gate_up.T.astype(np.float64), 2, axis=-1)
    return swiglu_oracle(gate, up)


def swiglu_torch(gate, up):                         # (T, F), (T, F) -> (T, F)
    """As swiglu, operation by operation in PyTorch; float64 too."""
    return (torch.nn.functional.silu(at_least_fp32(gate)) * up).to(gate.dtype)


def matmul_swiglu_torch(x, w_gate_up):              # (T, C), (2F, C) -> (T, F)
    """As matmul_swiglu, operation by operation in PyTorch; float64 too."""
    both = at_least_fp32(x) @ at_least_fp32(w_gate_up).T                # (T, 2*F)
    return swiglu_torch(*both.chunk(2, dim=-1)).to(x.dtype)


# ---- by itself


@triton.jit
def swiglu_triton(gate, up, y, F, gate_stride, up_stride, BLOCK: tl.constexpr):
    """One program for each BLOCK columns of a row; gate, up, y: (T, F).

    gate_stride, up_stride: numbers from the beginning of a row to that of the next; y has F.
    """
    blocks = tl.cdiv(F, BLOCK)                      # of a row
    t = (tl.program_id(0) // blocks).to(tl.int64)   # T·F may not fit 32 bits
    f = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = f < F
    # exercise: load both, compute in fp32, store; the rows of y are F numbers apart
    g = tl.load(gate + t * gate_stride + f, inside).to(tl.float32)
    u = tl.load(up + t * up_stride + f, inside)
    tl.store(y + t * F + f, g * tl.sigmoid(g) * u, inside)


# ---- at the end of a matmul


def predict_numbers_saved():
    """How many fewer numbers matmul_swiglu_triton moves for each result than two kernels do:
    matmul_tiled_triton for gate and up together, then swiglu_triton."""
    # exercise: what does the first write and the second read, for one result?
    return 2 + 2


def saved_share(C, peak, bandwidth):
    """Time that is saved by not moving those numbers, as a share of the time of the matmul.

    C: model width   peak: FLOP/s   bandwidth: byte/s   A number has 2 bytes. Both times are those
    of the roofs: bytes / bandwidth, and FLOPs / peak. F and T do not matter.
    """
    # exercise: bytes saved for one result, FLOPs of its two dot products of length C
    saved = 2 * 4 / bandwidth
    matmul = 2 * 2 * C / peak
    return saved / matmul


@triton.jit
def matmul_swiglu_triton(x, w, y, T, C, F, BT: tl.constexpr, BF: tl.constexpr, BC: tl.constexpr,
                         GROUP: tl.constexpr):
    """y = SiLU(x · w[:F]ᵀ) · (x · w[F:]ᵀ): one program for each tile (BT, BF) of y, in k05's order.

    x (T, C), w (2F, C), y (T, F), all contiguous; BC: columns of x and w in a round
    """
    row, column = grouped_triton(tl.program_id(0), tl.cdiv(T, BT), tl.cdiv(F, BF), GROUP)
    t, f, c = row * BT + tl.arange(0, BT), column * BF + tl.arange(0, BF), tl.arange(0, BC)
    t_inside, f_inside = (t < T)[:, None], (f < F)[:, None]
    x += t[:, None].to(tl.int64) * C + c            # (BT, BC) addresses
    w += f[:, None].to(tl.int64) * C + c            # (BF, BC), of the gate's rows
    w_up = w + tl.cast(F, tl.int64) * C             # (BF, BC), of up's
    gate, up = tl.zeros((BT, BF), tl.float32), tl.zeros((BT, BF), tl.float32)
    # exercise: the loop of k05 for both sums, each tile of x loaded once; then SwiGLU
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
    """SiLU(gate) · up by a Triton kernel. Gradients of both are those of swiglu_torch.

    float32, float16 or bfloat16, one dtype, on the CPU or on CUDA; computed in fp32. Rows may begin
    any distance apart, so that gate and up may be halves of one array; each row is contiguous.
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
    """As swiglu, float32, by a CUDA kernel: swiglu_vector_cuda where all addresses allow it.

    ValueError where that one is asked for and they do not.
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
    """How matmul_swiglu_triton is compiled for T rows: constexprs, warps, stages.

    No spills, wgmma from 64 rows on: chosen by what the compiler for Hopper says, not timed.
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
    rows of w_gate_up. Gradients of both arguments are those of matmul_swiglu_torch.

    float32 (IEEE, not TF32), float16 or bfloat16, one dtype, on the CPU or on CUDA, contiguous.
    Sums are fp32, and gate and up are not rounded before their product. Any size may be 0.
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
            raise ValueError(f"{op}: {name} has strides {tensor.stride()}, expected the numbers of "
                             f"a row one after the other, the last stride 1; {name}.contiguous() "
                             f"makes them so")
    if gate.shape[0] * triton.cdiv(gate.shape[1], THREADS) > MOST:
        raise ValueError(f"{op}: gate has shape {tuple(gate.shape)}, expected fewer rows: "
                         f"{THREADS} columns of each make a block, and {MOST} blocks a launch")


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
                             f"be contiguous; {name}.contiguous() makes it so")
        if max(tensor.shape) > MOST - BLOCK:
            raise ValueError(f"matmul_swiglu: {name} has shape {tuple(tensor.shape)}, expected "
                             f"sizes up to {MOST - BLOCK}")


def same(op, **tensors):
    """One dtype and one device, or TypeError."""
    (first, a), (second, b) = tensors.items()
    if a.dtype != b.dtype or a.device != b.device:
        raise TypeError(f"{op}: {first} is {a.dtype} on {a.device} and {second} {b.dtype} on "
                        f"{b.device}, expected the same")
