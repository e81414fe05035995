"""One measurement, in a process of its own: python measure.py JOB SIDE.
Prints it as JSON.

SIDE   simulator     ours with its checks, as a learner meets it
       unchecked     ours without checks, which the other two do not have either
       numba         Numba's CUDA simulator
       interpreter   Triton's interpreter

Times are CPU seconds, which other processes on the machine disturb least.
Each launch is compared with numpy; a wrong result ends the process with exit code 1 and no figures.
"""

import json
import os
import platform
import resource
import sys
import tempfile
import time
from contextlib import nullcontext
from functools import partial
from importlib import metadata
from pathlib import Path

PACKAGES = ("numpy", "numba", "torch", "triton", "nvidia-cuda-nvrtc")
FOLDER = Path(__file__).parent

MIN_SECONDS = 1.0       # CPU seconds to repeat for,
MIN_LAUNCHES, MAX_LAUNCHES = 3, 100  # within these numbers of launches


def cpu_seconds():
    """This process's so far, with its threads and the programs that it ran, such as ptxas."""
    programs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + programs.ru_utime + programs.ru_stime


def prepare(side, caches):
    """Set what must be known before numpy, Numba and Triton are imported."""
    os.environ["OMP_NUM_THREADS"] = "1"                 # BLAS takes no second core
    os.environ["TRITON_CACHE_DIR"] = caches             # empty: the first launch compiles
    if side == "numba":
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    if side == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"


# Jobs: side -> (launch, its result as an array, the true result, the error allowed). An error is
# relative to the largest true element.

def cuda_matmul(N, side):
    """fp32, matmul.cu and matmul_numba.py."""
    import numpy as np

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, N, N), np.float32)
    c = np.empty_like(a)
    grid, block = (N // 16, N // 16), (16, 16)
    if side == "numba":
        from matmul_numba import matmul

        def launch():
            matmul[grid, block](a, b, c, N)
    else:
        from lab import simulator

        simulator.use("simulator")                      # where there is a GPU too
        kernel = simulator.RawKernel((FOLDER / "matmul.cu").read_text(), "matmul")

        def launch():
            kernel(grid, block, (a, b, c, np.int32(N)))
    return launch, c, a.astype(float) @ b, 1e-5         # sums of N terms, roundings of 6e-8


def triton_matmul(N, tiles, side):
    """fp16 with fp32 sums, rounded to fp16."""
    import numpy as np

    kernels, torch = triton_on(side)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, N, N)).astype(np.float16)
    c = np.empty_like(a)
    tensors = [torch.from_numpy(array) for array in (a, b, c)]
    grid = (-(-N // tiles["BM"]) * -(-N // tiles["BN"]),)

    def launch():
        kernels.matmul[grid](*tensors, N, **tiles, GROUP=8)
    return launch, c, a.astype(float) @ b.astype(float), 1e-3       # one rounding of 4.9e-4


def triton_softmax(R, C, side):
    """fp32, a row a program."""
    import numpy as np

    kernels, torch = triton_on(side)
    x = np.random.default_rng(0).standard_normal((R, C), np.float32)
    y = np.empty_like(x)
    tensors = [torch.from_numpy(array) for array in (x, y)]

    def launch():
        kernels.softmax[(R,)](*tensors, C, BLOCK=1 << (C - 1).bit_length())
    e = np.exp(x.astype(float))
    return launch, y, e / e.sum(1, keepdims=True), 1e-5             # sums of C terms


def triton_attention(H, N, D, tiles, side):
    """Flash attention forward, fp16."""
    import numpy as np

    kernels, torch = triton_on(side)
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, H, N, D)).astype(np.float16)
    o = np.empty_like(q)
    tensors = [torch.from_numpy(array) for array in (q, k, v, o)]

    def launch():
        kernels.attention[(N // tiles["BM"], H)](*tensors, N, D**-0.5, D=D, **tiles)
    e = np.exp(np.einsum("hmd,hnd->hmn", q.astype(float), k.astype(float)) * D**-0.5)
    return launch, o, e / e.sum(-1, keepdims=True) @ v, 2e-3        # two roundings of 4.9e-4


def triton_on(side):
    """-> the kernels and torch"""
    import torch
    import triton_kernels

    if side != "interpreter":
        from lab import simulator
        simulator.activate_triton()
    return triton_kernels, torch


# The smallest and the largest tiles that the tutorials try. The interpreter pays for each operation
# on a tile, whatever its size; the simulator for each instruction of a warp, for many warps at
# once. So which is faster depends on the tiles, and one size alone would hide it.
JOBS = {
    "cuda_matmul_64": partial(cuda_matmul, 64),
    "cuda_matmul_512": partial(cuda_matmul, 512),
    "triton_matmul_512_small_tiles": partial(
        triton_matmul, 512, {"BM": 64, "BN": 32, "BK": 32, "num_stages": 5, "num_warps": 2}),
    "triton_matmul_512_large_tiles": partial(
        triton_matmul, 512, {"BM": 128, "BN": 256, "BK": 64, "num_stages": 3, "num_warps": 8}),
    "triton_softmax_1024_1000": partial(triton_softmax, 1024, 1000),
    "triton_attention_4_256_64_small_tiles": partial(
        triton_attention, 4, 256, 64, {"BM": 64, "BN": 32, "num_stages": 3, "num_warps": 4}),
    "triton_attention_4_256_64_large_tiles": partial(
        triton_attention, 4, 256, 64, {"BM": 128, "BN": 64, "num_stages": 3, "num_warps": 4}),
}


def unchecked():
    from lab import simulator
    return simulator.trace(checks=False)


def timed(launch, result, truth, allowed):
    """CPU seconds of one launch, whose result is compared with the truth."""
    import numpy as np

    result.fill(np.nan)                                 # so that no earlier launch's is compared
    begun = cpu_seconds()
    launch()
    seconds = cpu_seconds() - begun
    error = np.abs(result - truth).max() / np.abs(truth).max()
    if not error <= allowed:
        sys.exit(f"wrong result: error {error:.1e} of the largest element, {allowed} allowed")
    return seconds


def measure(job, side):
    """-> imports, first, seconds: CPU seconds from Python's start until all is imported and the
    input made, of the first launch, which compiles, and of each launch after it."""
    case = JOBS[job](side)
    imports = cpu_seconds()
    with unchecked() if side == "unchecked" else nullcontext():
        first, seconds = timed(*case), []
        while len(seconds) < MIN_LAUNCHES or (
                sum(seconds) < MIN_SECONDS and len(seconds) < MAX_LAUNCHES):
            seconds.append(timed(*case))
    return {"imports": imports, "first": first, "seconds": seconds}


def versions():
    installed = {package.name: package.version for package in metadata.distributions()}
    return {"python": platform.python_version(),
            **{name: installed[name] for name in PACKAGES if name in installed}}


def main():
    job, side = sys.argv[1:]
    with tempfile.TemporaryDirectory() as caches:
        prepare(side, caches)
        print(json.dumps({**measure(job, side), "versions": versions()}))


if __name__ == "__main__":
    main()
