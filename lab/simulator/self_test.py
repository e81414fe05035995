"""Does the simulator work on this machine?"""

import numpy as np

from . import nvrtc
from .errors import KernelError
from .kernel import RawKernel
from .session import session, trace

SOURCE = """
extern "C" __global__ void reverse(const float* x, float* y, int n) {
    __shared__ float tile[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) tile[threadIdx.x] = 2.0f * x[i];
    SYNC
    if (i < n) y[i] = tile[63 - threadIdx.x];
}
"""


def self_test():
    """Compile and run a kernel, and see that a missing barrier is found -> one line of text.
    Raises KernelError if anything is not as it should be."""
    before = session.chosen
    session.chosen = "simulator"
    try:
        x = np.arange(256, dtype=np.float32)
        y = np.zeros(256, np.float32)
        with trace() as t:
            RawKernel(SOURCE, "reverse", ("-DSYNC=__syncthreads();",))(4, 64, (x, y, 256))
        wanted = 2 * x.reshape(4, 64)[:, ::-1].reshape(-1)
        if not np.array_equal(y, wanted):
            raise KernelError("the simulator's self-test gave wrong numbers")
        try:
            RawKernel(SOURCE, "reverse", ("-DSYNC=",))(4, 64, (x, y, 256))
        except KernelError as error:
            if error.kind != "race":
                raise
        else:
            raise KernelError("the simulator's self-test did not find a race")
        major, minor = nvrtc.version()
        return (f"NVRTC {major}.{minor} compiled a kernel, {t.launches[0].steps} warp instructions "
                f"ran correctly, a missing barrier was found")
    finally:
        session.chosen = before
