"""Warps of a block that meet at different lines: an error, unless the kernel asks for it."""

import numpy as np
import pytest

from lab import simulator

from .conftest import error_of, ints, race, silent

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


# ---- warps

BRANCHES = """extern "C" __global__ void k(int* y) {
    __shared__ int s[64];
    int i = threadIdx.x;
    if (i %% 32 < 16) {
        s[i] = i;
        __syncwarp(%s);
        y[i] = s[i + 16];
    } else {
        s[i] = 2 * i;
        %s
        y[i] = s[i - 16] + 1;
    }
}"""


def test_lanes_of_a_warp_may_meet_at_two_syncwarps():
    """Each of the two is a bar.warp.sync of the same mask, and memory is in order after it."""
    y = ints(64)
    silent(BRANCHES % ("", "__syncwarp();"), 1, 64, y)
    i = np.arange(64)
    assert np.array_equal(y, np.where(i % 32 < 16, 2 * (i + 16), i - 16 + 1))


def test_what_comes_after_two_syncwarps_is_not_in_order():
    body = "__syncwarp(); s[i] = 7;"
    assert "s[" in str(race(BRANCHES % ("", body), 1, 64, ints(64)))


@pytest.mark.parametrize("first, second", [("", "__syncwarp(0xffff0000);"),
                                           ("0xffffffff", "__shfl_sync(~0u, i, 0);")])
def test_lanes_that_never_come(first, second):
    error = error_of(BRANCHES % (first, second), 1, 64, ints(64))
    assert error.kind == "mask"
    assert "names lanes that do not come" in str(error)


LANES = np.arange(32)
LOW = LANES < 16


@pytest.mark.parametrize("call, first, second", [
    ("__shfl_xor_sync(~0u, v, 16)", LANES + 16, LANES - 16),
    ("__shfl_sync(~0u, v, 16 + t / 2)", 16 + LANES // 2, 16 + LANES // 2),
    ("__ballot_sync(~0u, t % 2)", 0xAAAAAAAA - 2 ** 32, 0xAAAAAAAA - 2 ** 32),
    ("__any_sync(~0u, t == 20)", 1, 1), ("__all_sync(~0u, t < 16)", 0, 0),
    ("__match_any_sync(~0u, t % 16)", 0x10001 << LANES % 16, 0x10001 << LANES % 16),
    ("__reduce_add_sync(~0u, t)", 496, 496), ("__reduce_max_sync(~0u, -t)", 0, 0)])
def test_lanes_of_a_warp_may_meet_in_two_branches(call, first, second):
    """Each mask's lanes come to one kind of instruction, twice, in a loop."""
    source = """extern "C" __global__ void k(int* y) {
    int t = threadIdx.x % 32, sum = 0;
    for (int i = 0; i < 2; i++) {
        int v = t;
        if (t < 16) v = CALL;
        else v = 2 * CALL;
        sum += v;
    }
    y[threadIdx.x] = sum;
}"""
    y = ints(64)
    silent(source, 1, 64, y, options=(f"-DCALL={call}",))
    want = 2 * np.where(LOW, first, 2 * np.asarray(second)).astype(np.int32)
    assert np.array_equal(y, np.tile(want, 2))


def test_a_shuffle_in_two_branches_has_undefined_values_too():
    error = error_of("""extern "C" __global__ void k(int* y) {
    __shared__ int s[32];
    int t = threadIdx.x, v = 0;
    if (t < 16) s[t] = t;
    __syncwarp();
    if (t < 16) v = __shfl_xor_sync(~0u, v, 16);
    else v = __shfl_xor_sync(~0u, s[t], 16) + 1;
    y[t] = v;
}""", 1, 32, ints(32))
    assert error.kind == "uninitialised"


@pytest.mark.parametrize("other", ["__shfl_down_sync(~0u, v, 16)", "__any_sync(~0u, v)",
                                   "__shfl_xor_sync(0xffff0000, v, 16)"])
def test_another_kind_or_mask_in_the_other_branch_is_an_error(other):
    error = error_of("""extern "C" __global__ void k(int* y) {
    int t = threadIdx.x, v = t;
    if (t < 16) v = __shfl_xor_sync(~0u, v, 16);
    else v = OTHER;
    y[t] = v;
}""", 1, 32, ints(32), options=(f"-DOTHER={other}",))
    assert error.kind == "mask" and "names lanes that do not come" in str(error)
