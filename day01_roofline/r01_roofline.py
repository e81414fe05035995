"""r01 · The roofline: rate = min(peak, intensity · bandwidth)

A kernel does FLOPs and moves bytes. The machine has a roof for each, and the lower one decides.
n: elements   M N K: matmul sizes   R C: rows and columns   itemsize: bytes of one number
"""

from dataclasses import dataclass

__all__ = ["ACCELERATORS", "Machine", "attainable", "bound", "count_add", "count_matmul",
           "count_softmax", "ridge"]


@dataclass(frozen=True)
class Machine:
    """Peak rates as the vendor's data sheet gives them; a real kernel stays below."""

    name: str
    peak: float             # FLOP/s of dense 16-bit matrix work with 32-bit sums
    bandwidth: float        # byte/s of the device's main memory
    link: float             # byte/s to the next device, both directions together


# Vendors' data sheets, dense rates. Their headline number is often that with 2:4 sparsity, which is
# twice as high.
ACCELERATORS = (
    Machine("NVIDIA T4", 65e12, 0.32e12, 32e9),
    Machine("NVIDIA A100 40GB", 312e12, 1.555e12, 600e9),
    Machine("NVIDIA L4", 121e12, 0.30e12, 64e9),
    Machine("NVIDIA H100 SXM", 989e12, 3.35e12, 900e9),
    Machine("NVIDIA H200 SXM", 989e12, 4.8e12, 900e9),
    Machine("NVIDIA B200", 2250e12, 8.0e12, 1800e9),
    Machine("AMD MI300X", 1307e12, 5.3e12, 896e9),
)


def count_add(n, itemsize):
    """z = x + y over n elements: (FLOPs, bytes moved to and from memory)."""
    # exercise: one addition an element; which arrays must cross the memory bus, and how often?
    flops = n
    moved = 3 * n * itemsize        # read x, read y, write z
    return flops, moved


def count_matmul(M, N, K, itemsize):
    """c (M, N) = a (M, K) @ b (K, N): (FLOPs, the fewest bytes that must move)."""
    # exercise: each output is a dot product of length K; each matrix crosses the bus once
    flops = 2 * M * N * K           # a multiplication and an addition for each of K terms
    moved = (M * K + K * N + M * N) * itemsize
    return flops, moved


def count_softmax(R, C, itemsize):
    """Softmax of each row of (R, C), fused: (FLOPs, the fewest bytes that must move).

    Counts max, subtract, exp, sum and divide as one FLOP an element each: 5 in all.
    """
    # exercise: a fused kernel reads each number once and writes it once
    flops = 5 * R * C
    moved = 2 * R * C * itemsize
    return flops, moved


def attainable(intensity, peak, bandwidth):
    """The most FLOP/s that a kernel of `intensity` FLOP/byte can reach."""
    # exercise: two roofs; the lower one decides
    return min(peak, intensity * bandwidth)


def bound(flops, moved, peak, bandwidth):
    """Which roof a kernel hits: "compute" or "memory". On the ridge itself: "compute"."""
    # exercise: compare the time the arithmetic needs with the time the bytes need
    return "compute" if flops / peak >= moved / bandwidth else "memory"


def ridge(machine):
    """The intensity, in FLOP/byte, at which the two roofs meet."""
    return machine.peak / machine.bandwidth


def predict_intensity_of_matmul():
    """FLOP/byte of a 4096 x 4096 x 4096 matmul in 16-bit numbers, before you compute it."""
    # exercise: within 5 % is right; think 2n³ FLOPs over three matrices of n² numbers
    return 4096 / 3


def predict_gain_of_doubled_peak():
    """How many times faster the 4096 x 4096 add runs with twice the FLOP/s and the same memory."""
    # exercise: where does the add stand on the roofline?
    return 1.0
