"""r01 · The roofline: rate = min(peak, intensity · bandwidth)

A kernel does FLOPs and moves bytes.
The machine has a speed limit for each; the lower one decides.
n: elements   M N K: matmul sizes   R C: rows and columns   itemsize: bytes of one number
"""

from dataclasses import dataclass

__all__ = ["ACCELERATORS", "Machine", "attainable", "bound", "count_add", "count_matmul",
           "count_softmax", "ridge"]


@dataclass(frozen=True)
class Machine:
    """The top speeds in the vendor's data sheet; a real kernel stays below them."""

    name: str
    peak: float             # FLOP/s of the matrix units: dense, 16-bit numbers, 32-bit sums
    bandwidth: float        # byte/s of the device's main memory
    link: float             # byte/s of its links to other devices, both directions together


# From the vendors' data sheets, without sparsity. The headline figure is often the one with 2:4
# sparsity, which is twice as high.
ACCELERATORS = (
    # 320 GB/s is the figure of the T4's product page; its data sheet of 2019 says 300.
    Machine("NVIDIA T4", 65e12, 0.32e12, 32e9),
    Machine("NVIDIA A100 40GB", 312e12, 1.555e12, 600e9),
    Machine("NVIDIA L4", 121e12, 0.30e12, 64e9),
    Machine("NVIDIA H100 SXM", 989e12, 3.35e12, 900e9),
    Machine("NVIDIA H200 SXM", 989e12, 4.8e12, 900e9),
    Machine("NVIDIA B200", 2250e12, 8.0e12, 1800e9),
    Machine("AMD MI300X", 1307e12, 5.3e12, 896e9),
)


def count_add(n, itemsize):
    """z = x + y over n elements: (FLOPs, bytes read from memory and written to it)."""
    # exercise: one addition an element; which arrays are read, which are written, how often?
    flops = n
    moved = 3 * n * itemsize        # read x, read y, write z
    return flops, moved


def count_matmul(M, N, K, itemsize):
    """c (M, N) = a (M, K) @ b (K, N): (FLOPs, fewest possible bytes)."""
    # exercise: each element of c is a dot product of length K; each matrix moves once
    flops = 2 * M * N * K           # a multiplication and an addition for each of K terms
    moved = (M * K + K * N + M * N) * itemsize
    return flops, moved


def count_softmax(R, C, itemsize):
    """Softmax of each row of (R, C), fused: (FLOPs, fewest possible bytes).

    Count 5 FLOPs for each element: one each for max, subtract, exp, sum and divide.
    """
    # exercise: a fused kernel reads each number once and writes each result once
    flops = 5 * R * C
    moved = 2 * R * C * itemsize
    return flops, moved


def attainable(intensity, peak, bandwidth):
    """The most FLOP/s that a kernel of `intensity` FLOP/byte can reach.

    peak: FLOP/s    bandwidth: byte/s
    """
    # exercise: two roofs; the lower one decides
    return min(peak, intensity * bandwidth)


def bound(flops, moved, peak, bandwidth):
    """Which roof limits a kernel: "compute" or "memory".
    Exactly on the ridge: "compute".

    flops: operations    moved: bytes    peak: FLOP/s    bandwidth: byte/s
    """
    # exercise: compare the time the arithmetic needs with the time the bytes need
    return "compute" if flops / peak >= moved / bandwidth else "memory"


def ridge(machine):
    """The intensity, in FLOP/byte, at which the two roofs meet."""
    return machine.peak / machine.bandwidth


def predict_intensity_of_matmul():
    """Your guess: FLOP/byte of a product of two 4096 × 4096 matrices of 16-bit numbers."""
    # exercise: within 5 % is right; FLOPs of the product over bytes of three matrices
    return 4096 / 3


def predict_gain_of_doubled_peak():
    """Your guess: how many times faster the addition of two 4096 × 4096 matrices runs with twice
    the FLOP/s and the same memory."""
    # exercise: which roof limits the addition?
    return 1.0
