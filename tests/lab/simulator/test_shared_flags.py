"""cuda::atomic in shared memory: flags and counters between the warps of a block."""

import numpy as np
import pytest

from .conftest import error_of, run

FLAG = """#include <cuda/atomic>
extern "C" __global__ void k(int* y) {
    __shared__ int flag, data[32];
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    cuda::atomic_ref<int, cuda::thread_scope_block> raised(flag);
    if (threadIdx.x < 32) {
        data[threadIdx.x] = y[threadIdx.x] + 1;
        %s
        if (threadIdx.x == 0) raised.store(1, cuda::memory_order_%s);
    } else {
        while (raised.load(cuda::memory_order_acquire) == 0) {}
        y[threadIdx.x] = data[63 - threadIdx.x];
    }
}"""


def test_a_flag_that_is_released_hands_over_what_its_warp_wrote():
    y = np.arange(64, dtype=np.int32)
    launch = run(FLAG % ("__syncwarp();", "release"), 1, 64, y)
    assert np.array_equal(y[32:], np.arange(32)[::-1] + 1)
    assert [w.split(":")[0] for w in launch.warnings] == ["ordering not proven"]


@pytest.mark.parametrize("sync, order", [("__syncwarp();", "relaxed"), ("", "release")])
def test_without_the_release_or_the_meeting_of_the_warp_it_is_a_race(sync, order):
    error = error_of(FLAG % (sync, order), 1, 64, np.arange(64, dtype=np.int32))
    assert error.kind == "race" and error.line == 13 and "`data`" in str(error)


COUNTER = """#include <cuda/atomic>
extern "C" __global__ void k(int* y) {
    __shared__ int n;
    if (threadIdx.x == 0) n = 0;
    __syncthreads();
    cuda::atomic_ref<int, cuda::thread_scope_block> count(n);
    count.fetch_add(1, cuda::memory_order_relaxed);
    while (%s < 64) {}
    y[threadIdx.x] = 1;
}"""


def test_threads_may_load_a_counter_that_others_change():
    y = np.zeros(64, np.int32)
    launch = run(COUNTER % "count.load(cuda::memory_order_relaxed)", 1, 64, y)
    assert y.all() and not launch.warnings


def test_a_plain_read_of_such_a_counter_is_a_race():
    error = error_of(COUNTER % "n", 1, 64, np.zeros(64, np.int32))
    assert error.kind == "race" and "`n`" in str(error)
