"""Occupancy: how many blocks of a kernel are on a multiprocessor (SM) at one time, and why.

A block stays on its SM until it ends, with its warps, registers and shared memory.
So each of these limits how many blocks fit, and the scarcest decides.
Rules and granularities are those of NVIDIA's cuda_occupancy.h; the sizes are in the CUDA
Programming Guide, "Compute Capabilities".
"""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from . import cubin, nvrtc
from .errors import KernelError
from .lanes import WARP

REGISTERS = 65536               # of an SM, and the most that a block can have
REGISTER_UNIT = 256             # a warp gets registers in units of this
PARTITIONS = 4                  # of an SM; each has a quarter of its registers
MOST_REGISTERS = 255            # of a thread
KB = 1024


class Multiprocessor(NamedTuple):
    """An SM of one compute capability."""
    warps: int                  # resident at most
    blocks: int
    shared: int                 # bytes of shared memory
    shared_of_block: int        # the most that a kernel can ask for
    shared_unit: int            # bytes; it comes in multiples of this
    reserved: int               # bytes that the driver takes of every block
    barriers: int               # of an SM, named ones included; before 9.0 they limit nothing: 0


MULTIPROCESSORS = {
    "7.5": Multiprocessor(32, 16, 64 * KB, 64 * KB, 256, 0, 0),
    "8.0": Multiprocessor(64, 32, 164 * KB, 163 * KB, 128, KB, 0),
    "8.6": Multiprocessor(48, 16, 100 * KB, 99 * KB, 128, KB, 0),
    "8.9": Multiprocessor(48, 24, 100 * KB, 99 * KB, 128, KB, 0),
    "9.0": Multiprocessor(64, 32, 228 * KB, 227 * KB, 128, KB, 64),
    "10.0": Multiprocessor(64, 32, 228 * KB, 227 * KB, 128, KB, 64),
    "12.0": Multiprocessor(48, 24, 100 * KB, 99 * KB, 128, KB, 24),
}
# Which GPU has which: developer.nvidia.com/cuda-gpus.
GPUS = {"T4": "7.5", "RTX 2080": "7.5", "A100": "8.0", "A10": "8.6", "A40": "8.6",
        "RTX 3090": "8.6", "L4": "8.9", "L40S": "8.9", "RTX 4090": "8.9", "H100": "9.0",
        "H200": "9.0", "GH200": "9.0", "B200": "10.0", "GB200": "10.0", "RTX 5090": "12.0",
        "RTX PRO 6000 Blackwell": "12.0"}


@dataclass(frozen=True)
class Occupancy:
    """Of one kernel, launched with one size of block, on one GPU."""
    gpu: str
    warps_of_block: int
    blocks: int                 # resident on an SM; 0: the block cannot be launched
    most_warps: int
    limits: dict                # what -> the blocks that it allows

    @property
    def warps(self):
        return self.blocks * self.warps_of_block

    @property
    def fraction(self):
        """Resident warps over the most that there can be."""
        return self.warps / self.most_warps

    @property
    def limiter(self):
        """The names of what allows no more blocks, joined by "and"."""
        return " and ".join(name for name, n in self.limits.items() if n == self.blocks)

    def __str__(self):
        if not self.blocks:
            return f"{self.gpu}: the block does not fit: too much of {self.limiter}"
        return (f"{self.gpu}: {self.blocks} blocks of {self.warps_of_block} warps on an SM, "
                f"{self.warps} of {self.most_warps} warps ({self.fraction:.0%}), limited by "
                f"{self.limiter}")


def capability(gpu):
    """A name in GPUS, or "8.6" -> compute capability.
    Raises KernelError."""
    number = gpu if gpu in MULTIPROCESSORS else GPUS.get(gpu)
    if number is None:
        raise KernelError(f"GPU {gpu!r}: expected one of {', '.join(GPUS)}, or a compute "
                          f"capability: {', '.join(MULTIPROCESSORS)}", "argument")
    return number


def occupancy(kernel, block=None, shared_mem=0, gpu="A100"):
    """-> Occupancy.

    kernel      a RawKernel, which is compiled for that GPU; nvrtc.Resources; or what a launch of a
                Triton kernel returns, which knows its block and must be compiled for that GPU
    block       threads of a block, or its (x, y, z)
    shared_mem  bytes of dynamic shared memory
    gpu         a name in GPUS or a compute capability
    """
    version = capability(gpu)
    if hasattr(kernel, "asm"):
        block = 32 * kernel.metadata.num_warps
        kernel = resources_of_triton(kernel, version, gpu)
    if not isinstance(kernel, nvrtc.Resources):
        kernel = kernel.module.resources(kernel.name, f"sm_{version.replace('.', '')}")
    threads = block if isinstance(block, int) else prod(block or (0,))
    if not 1 <= threads <= 1024:
        raise KernelError(f"block {block}: expected 1 to 1024 threads, not {threads}", "argument")
    sm = MULTIPROCESSORS[version]
    warps = -(-threads // WARP)
    limits = {"warps": sm.warps // warps, "blocks": sm.blocks,
              "registers": by_registers(kernel.registers, warps),
              "shared memory": by_shared(kernel.shared + shared_mem, sm)}
    if kernel.barriers and sm.barriers:
        limits["barriers"] = sm.barriers // kernel.barriers
    return Occupancy(gpu, warps, min(limits.values()), sm.warps, limits)


def resources_of_triton(compiled, version, gpu):
    """-> Resources without the spills, which a cubin does not distinguish from local arrays"""
    arch = compiled.metadata.target.arch
    wanted = int(version.replace(".", ""))
    if arch != wanted:
        raise KernelError(f"kernel `{compiled.metadata.name}` is compiled for sm_{arch}; {gpu} "
                          f"is sm_{wanted}", "argument")
    needs = cubin.needs(compiled.asm["cubin"], compiled.metadata.name)
    return nvrtc.Resources(needs.registers, compiled.metadata.shared, 0, 0, needs.stack)


def by_registers(registers, warps):
    """Blocks for which an SM has registers."""
    of_warp = up(max(registers, 1) * WARP, REGISTER_UNIT)
    if registers > MOST_REGISTERS or of_warp * up(warps, PARTITIONS) > REGISTERS:
        return 0
    return REGISTERS // PARTITIONS // of_warp * PARTITIONS // warps


def by_shared(size, sm):
    """Blocks for which an SM has shared memory."""
    if size > sm.shared_of_block:
        return 0
    used = up(size + sm.reserved, sm.shared_unit)
    return sm.shared // used if used else sm.blocks


def up(n, unit):
    return -(-n // unit) * unit
