"""k11 · Cross-entropy: loss = log of the sum of exp(logits) - logit of the target; and its gradient

T: tokens, one row each   V: vocabulary, 128,256 in Llama 3   m, s: maximum, sum of exp(logit - m)
The loss is T numbers.
The gradient, softmax(logits) minus 1 at the target, has the size of logits.
A few FLOPs for each number: memory is the limit, both its speed and its size.
Source of the one-pass sum: Milakov and Gimelshein, "Online normalizer calculation for softmax",
2018.
"""

import math
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from lab import simulator
from layer1_kernels.k07_softmax import LOWEST
from layer1_kernels.k08_rmsnorm import FLOATS, at_least_fp32

__all__ = ["cross_entropy", "cross_entropy_cuda", "cross_entropy_overwriting_logits",
           "cross_entropy_torch"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
THREADS = 256           # a block of the CUDA kernels, one a row
BLOCK = 4096            # columns that cross_entropy_triton handles at a time, 32 a thread
PART = 2048             # columns that one program of gradient_triton handles, 16 a thread
MAX_INDEX = 2**31 - 1 - BLOCK   # largest number of columns, and of programs of a launch


# ---- by the book


def predict_uniform_loss(V):
    """The loss of a model that has learnt nothing: all V logits are equal."""
    # exercise: log of a sum of V equal terms, minus the logit
    return math.log(V)


def cross_entropy_oracle(logits, targets, ignore=-100):     # (T, V), (T,) -> (T,)
    """float64."""
    x = logits.astype(np.float64)                   # (T, V)
    m = x.max(-1, keepdims=True)                    # (T, 1)
    counted = targets != ignore                        # (T,)
    own = x[np.arange(len(x)), np.where(counted, targets, 0)]              # (T,)
    return np.where(counted, np.log(np.exp(x - m).sum(-1)) + m[:, 0] - own, 0)


def cross_entropy_torch(logits, targets, ignore=-100):      # (T, V), (T,) -> (T,)
    """As cross_entropy, by PyTorch; also takes float64.
    A target out of range raises an error."""
    return torch.nn.functional.cross_entropy(at_least_fp32(logits), targets, ignore_index=ignore,
                                             reduction="none")


# ---- the kernels


@triton.jit
def cross_entropy_triton(logits, targets, losses, maxima, sums, V, row, ignore,
                         BLOCK: tl.constexpr):
    """One program for each row, BLOCK columns at a time.
    Stores the row's loss, and m and s of its softmax.

    logits: (T, V), rows start `row` numbers apart   targets, losses, maxima, sums: (T,)
    The loss is 0 if the target is `ignore`, and NaN if it is any other number that is not a column.
    """
    t = tl.program_id(0).to(tl.int64)
    logits += t * row
    target = tl.load(targets + t)
    own = tl.load(logits + target, (target >= 0) & (target < V), float("nan")).to(tl.float32)
    m, s = LOWEST, 0.0                              # finite: -inf minus -inf would be NaN
    # exercise: loop over the row, BLOCK columns at a time, for m and s; the loss; store all three
    for start in range(0, V, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(logits + c, c < V, -float("inf")).to(tl.float32)
        larger = tl.maximum(m, tl.max(v))
        s = s * tl.exp(m - larger) + tl.sum(tl.exp(v - larger))
        m = larger
    loss = tl.log(s) + (m - own)                    # subtract the two large numbers first
    tl.store(losses + t, tl.where(target == ignore, 0, loss))
    tl.store(maxima + t, m)
    tl.store(sums + t, s)


def predict_sizes_moved():
    """Numbers moved by two kernels together, in units of T·V: the first computes losses, m and s;
    the second, once upstream is known, the gradient."""
    # exercise: count the reads and the writes of T·V numbers in both kernels
    return 1 + 1 + 1


@triton.jit
def gradient_triton(logits, targets, maxima, sums, upstream, gradient, V, row, gradient_row, ignore,
                    BLOCK: tl.constexpr):
    """One program for each BLOCK columns of a row.
    `gradient` may be the array `logits` itself.

    logits, gradient: (T, V), rows start `row` and gradient_row numbers apart
    targets, maxima, sums, upstream: (T,)
    """
    blocks = tl.cdiv(V, BLOCK)                      # of a row
    t = (tl.program_id(0) // blocks).to(tl.int64)
    c = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside, target, scale = c < V, tl.load(targets + t), tl.load(upstream + t)
    # exercise: softmax from m and s; minus 1 at the target; times scale; 0 in an ignored row
    v = tl.load(logits + t * row + c, inside).to(tl.float32)
    p = tl.exp(v - tl.load(maxima + t)) / tl.load(sums + t)
    p = tl.where(c == target, p - 1, p) * scale
    tl.store(gradient + t * gradient_row + c, tl.where(target == ignore, 0, p), inside)


# ---- the launchers


def cross_entropy(logits, targets, ignore=-100):    # (T, V), (T,) -> (T,)
    """The loss of each row in fp32, 0 if its target is `ignore`; differentiable by logits.

    logits: float32, float16 or bfloat16, on the CPU or on CUDA; each row is contiguous, rows may
    start any distance apart.
    Computed in fp32. targets: int64.
    A target that is neither a column nor `ignore` gives a NaN loss: raising an error would mean
    waiting for the device.
    T may be 0.
    logits are not changed: the backward pass allocates one new array, the gradient, in the dtype of
    logits. cross_entropy_overwriting_logits needs none.
    """
    check("cross_entropy", FLOATS, logits, targets)
    return CrossEntropy.apply(logits, targets, ignore, False)


def cross_entropy_overwriting_logits(logits, targets, ignore=-100):     # (T, V), (T,) -> (T,)
    """As cross_entropy, but the backward pass writes the gradient over the logits.

    Saves an array of T·V numbers.
    After the backward pass the logits are overwritten: autograd refuses a second one, and any other
    that needs them.
    RuntimeError if logits is a leaf that requires a gradient.
    """
    op = "cross_entropy_overwriting_logits"
    check(op, FLOATS, logits, targets)
    if logits.is_leaf and logits.requires_grad:
        raise RuntimeError(f"{op}: logits is a leaf that requires a gradient, expected the result "
                           f"of an operation; cross_entropy leaves it as it is")
    if logits.stride(0) < logits.shape[1] and len(logits) > 1:
        raise ValueError(f"{op}: logits has strides {logits.stride()}: its rows overlap; expected "
                         f"rows that do not")
    return CrossEntropy.apply(logits, targets, ignore, True)


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, ignore, overwrite):
        T, V = logits.shape
        losses, m, s = (logits.new_empty(T, dtype=torch.float32) for _ in range(3))     # (T,)
        if T:
            cross_entropy_triton[(T,)](logits, targets, losses, m, s, V, logits.stride(0), ignore,
                                       BLOCK=min(BLOCK, triton.next_power_of_2(V)), num_warps=4)
        ctx.save_for_backward(logits, targets, m, s)
        ctx.ignore = ignore
        ctx.overwrite = overwrite
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        logits, targets, m, s = ctx.saved_tensors
        T, V = logits.shape
        logits = logits.detach()
        gradient = logits if ctx.overwrite else logits.new_empty(T, V)  # (T, V)
        if T:
            gradient_triton[(T * triton.cdiv(V, PART),)](
                logits, targets, m, s, upstream.contiguous(), gradient, V, logits.stride(0),
                gradient.stride(0), ctx.ignore, BLOCK=PART)
        if ctx.overwrite:
            torch.autograd.graph.increment_version(logits)      # autograd sees the change
        return gradient, None, None, None


def cross_entropy_cuda(logits, targets, ignore=-100, kernel="cross_entropy_online_cuda"):
    """As cross_entropy, float32, by a CUDA kernel, without gradients."""
    check("cross_entropy_cuda", FLOATS[:1], logits, targets)
    if torch.is_grad_enabled() and logits.requires_grad:
        raise RuntimeError("cross_entropy_cuda: logits requires a gradient, which this function "
                           "does not compute; use cross_entropy, or torch.no_grad()")
    T, V = logits.shape
    losses = logits.new_empty(len(logits))                              # (T,)
    if T:
        KERNELS.get(kernel)(T, THREADS, (logits, targets, losses, V, np.int64(logits.stride(0)),
                                         np.int64(ignore)))
    return losses


def check(op, dtypes, logits, targets):
    """What the kernels assume; they count columns and programs with 32 bits."""
    if logits.ndim != 2 or (len(logits) and not logits.shape[1]):
        raise ValueError(f"{op}: logits has shape {tuple(logits.shape)}, expected (rows, columns), "
                         f"at least one column")
    if logits.dtype not in dtypes:
        raise TypeError(f"{op}: logits is {logits.dtype}, expected {' or '.join(map(str, dtypes))}")
    T, V = logits.shape
    if targets.shape != (T,):
        raise ValueError(f"{op}: targets has shape {tuple(targets.shape)}, expected {(T,)}")
    if targets.dtype != torch.int64 or targets.device != logits.device:
        raise TypeError(f"{op}: targets is {targets.dtype} on {targets.device}, expected "
                        f"torch.int64 on {logits.device}")
    if logits.stride(1) != 1 and V > 1:
        raise ValueError(f"{op}: logits has strides {logits.stride()}, expected a last stride of 1 "
                         f"(the numbers of a row next to each other); call logits.contiguous()")
    if not targets.is_contiguous():
        raise ValueError(f"{op}: targets has strides {targets.stride()}, expected it to be "
                         f"contiguous; call targets.contiguous()")
    if V > MAX_INDEX or T * triton.cdiv(V, PART) > MAX_INDEX:
        raise ValueError(f"{op}: logits has shape {(T, V)}, expected at most {MAX_INDEX} columns, "
                         f"and {MAX_INDEX} parts of {PART} columns in all")
