"""Warps of a block that meet at different lines: an error, unless the kernel asks for it."""

import numpy as np
import pytest

from lab import simulator

SPECIALISED = """extern "C" __global__ void k(const float* x, float* y, int turns) {
    __shared__ float s[32];
    int t = threadIdx.x;
    for (int i = 0; i < turns; i++) {
        if (SPLIT) {
            s[t % 32] = x[i * 32 + t % 32];
            __syncthreads();
            __syncthreads();
        } else {
            __syncthreads();
            y[i * 32 + t - 32] = s[t - 32] * 2;
            __syncthreads();
        }
    }
}"""


def launch(split, source=SPECIALISED, threads=64, **keywords):
    x, y = np.arange(96, dtype=np.float32), np.zeros(96, np.float32)
    kernel = simulator.RawKernel(source, "k", (f"-DSPLIT={split}",), **keywords)
    kernel(1, threads, (x, y, 3))
    return y, 2 * x


def test_by_default_it_is_an_error_that_names_the_switch():
    with pytest.raises(simulator.KernelError) as caught:
        launch("t < 32")
    error = caught.value
    assert error.kind == "barrier" and {error.line} < {7, 10} and "in line" in str(error)
    assert "any_barrier=True" in str(error) and "RawKernel or RawModule" in str(error)


def test_whole_warps_may_meet_where_the_kernel_says_so():
    assert np.array_equal(*launch("t < 32", any_barrier=True))
    module = simulator.RawModule(SPECIALISED, ("-DSPLIT=t<32",), any_barrier=True)
    y = np.zeros(96, np.float32)
    module.get("k")(1, 64, (np.ones(96, np.float32), y, 3))
    assert y.tolist() == [2] * 96


def test_a_warp_must_stay_together_all_the_same():
    with pytest.raises(simulator.KernelError) as caught:
        launch("t < 48", any_barrier=True, threads=96)
    assert caught.value.kind == "barrier" and "any_barrier" not in str(caught.value)


def test_the_switch_hides_no_race():
    """Such a barrier really orders; one that is missing is still reported."""
    source = SPECIALISED.replace("            __syncthreads();\n        } else", "        } else") \
        .replace("2;\n            __syncthreads();", "2;")
    with pytest.raises(simulator.KernelError) as caught:
        launch("t < 32", source, any_barrier=True)
    assert caught.value.kind == "race"


def test_the_counts_must_still_agree():
    source = SPECIALISED.replace("            y[", "            __syncthreads();\n            y[")
    with pytest.raises(simulator.KernelError) as caught:
        launch("t < 32", source, any_barrier=True)
    assert caught.value.kind in ("barrier", "race")
