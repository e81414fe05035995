"""What a learner gets wrong: each check reports the mistake, and not the corrected kernel."""

import numpy as np
import pytest

from lab import simulator

from .conftest import error_of, run

REVERSE = """extern "C" __global__ void k(const float* a, float* b) {
    __shared__ float t[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    t[threadIdx.x] = a[i];
    SYNC
    b[i] = t[255 - threadIdx.x];
}"""


def arrays(n=1024):
    return np.arange(n, dtype=np.float32), np.zeros(n, np.float32)


def test_out_of_bounds_names_array_element_thread_and_line():
    source = """extern "C" __global__ void k(const float* a, float* b, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n LIMIT)
        b[i] = a[i] * 2;
}"""
    run(source, 4, 256, *arrays(1000), 1000, options=("-DLIMIT=",))
    error = error_of(source, 5, 256, *arrays(1000), 1000, options=("-DLIMIT=+1",))
    assert error.kind == "out_of_bounds" and error.line == 4
    assert error.thread == (232, 0, 0) and error.block == (3, 0, 0)
    assert "element 1000 of `a` (1000 float32)" in str(error)
    assert "kernel.cu, line 4: b[i] = a[i] * 2;" in str(error)


@pytest.mark.parametrize("index", ["-1", "1 << 20", "-(1 << 28)"])
def test_out_of_bounds_on_either_side_never_hits_another_array(index):
    error = error_of('extern "C" __global__ void k(float* a, float* b) { b[INDEX] = 1; }', 1, 1,
                     *arrays(8), options=(f"-DINDEX={index}",))
    assert error.kind == "out_of_bounds" and "`b`" in str(error)


def test_shared_memory_has_bounds():
    source = """extern "C" __global__ void k(float* a, int n) {
    __shared__ float tile[32];
    tile[threadIdx.x + n] = 1;
    a[threadIdx.x] = tile[threadIdx.x + n];
}"""
    run(source, 1, 32, np.zeros(32, np.float32), 0)
    error = error_of(source, 1, 32, np.zeros(32, np.float32), 1)
    assert error.kind == "out_of_bounds" and error.line == 3 and "`tile` 128" in str(error)


def test_null_pointer():
    error = error_of('extern "C" __global__ void k(float* a) { a[0] = 1; }', 1, 1, None)
    assert error.kind == "out_of_bounds" and "null" in str(error)


def test_misaligned():
    source = """extern "C" __global__ void k(float* a, int n) {
    *(float4*)(a + n) = make_float4(1, 2, 3, 4);
}"""
    run(source, 1, 1, np.zeros(8, np.float32), 4)
    error = error_of(source, 1, 1, np.zeros(8, np.float32), 1)
    assert error.kind == "misaligned" and error.line == 2 and "multiple of 16" in str(error)


def test_race_read_after_write():
    run(REVERSE, 4, 256, *arrays(), options=("-DSYNC=__syncthreads();",))
    error = error_of(REVERSE, 4, 256, *arrays(), options=("-DSYNC=",))
    assert error.kind == "race" and error.line == 6
    assert "race" in str(error) and "in line 4" in str(error) and "`t`" in str(error)


LOOP = """extern "C" __global__ void k(const float* a, float* b) {
    __shared__ float t[256];
    float s = 0;
    for (int k = 0; k < 4; k++) {
        t[threadIdx.x] = a[k * 256 + threadIdx.x];
        __syncthreads();
        s += t[255 - threadIdx.x];
        SYNC
    }
    b[threadIdx.x] = s;
}"""


def test_race_write_after_read():
    run(LOOP, 1, 256, *arrays(), options=("-DSYNC=__syncthreads();",))
    error = error_of(LOOP, 1, 256, *arrays(), options=("-DSYNC=",))
    assert error.kind == "race" and error.line == 5 and "in line 7" in str(error)


def test_race_of_two_writes_in_one_instruction():
    source = """extern "C" __global__ void k(float* b) {
    __shared__ float t[32];
    t[threadIdx.x DIV] = threadIdx.x;
    __syncthreads();
    b[threadIdx.x] = t[threadIdx.x DIV];
}"""
    run(source, 1, 32, np.zeros(32, np.float32), options=("-DDIV=",))
    error = error_of(source, 1, 32, np.zeros(32, np.float32), options=("-DDIV=/2",))
    assert error.kind == "race" and error.line == 3


def test_race_within_a_warp_needs_syncwarp():
    source = """extern "C" __global__ void k(const float* a, float* b) {
    __shared__ float s[32];
    int t = threadIdx.x;
    s[t] = a[t];
    SYNC
    for (int o = 16; o; o >>= 1) {
        float v = s[t ^ o];
        SYNC
        s[t] += v;
        SYNC
    }
    if (t == 0) b[0] = s[0];
}"""
    a, b = arrays(32)
    run(source, 1, 32, a, b, options=("-DSYNC=__syncwarp();",))
    assert b[0] == a.sum()
    assert error_of(source, 1, 32, a, b, options=("-DSYNC=",)).kind == "race"


def test_halves_that_share_a_word_do_not_race():
    x, y = np.arange(256, dtype=np.float16), np.zeros(256, np.float16)
    run("""#include <cuda_fp16.h>
    extern "C" __global__ void k(const half* a, half* b) {
        __shared__ half t[256];
        t[threadIdx.x] = a[threadIdx.x];
        __syncthreads();
        b[threadIdx.x] = t[255 - threadIdx.x];
    }""", 1, 256, x, y)
    assert np.array_equal(y, x[::-1])


def test_uninitialised_shared_memory():
    source = """extern "C" __global__ void k(float* b) {
    __shared__ float t[64];
    if (threadIdx.x < N) t[threadIdx.x] = 1;
    __syncthreads();
    b[threadIdx.x] = t[threadIdx.x];
}"""
    run(source, 1, 64, np.zeros(64, np.float32), options=("-DN=64",))
    error = error_of(source, 1, 64, np.zeros(64, np.float32), options=("-DN=60",))
    assert error.kind == "uninitialised" and error.line == 5 and error.thread == (60, 0, 0)


def test_barrier_that_some_threads_pass_by():
    source = """extern "C" __global__ void k(float* a) {
    __shared__ float t[64];
    t[threadIdx.x] = a[threadIdx.x];
    if (threadIdx.x < N) {
        __syncthreads();
        a[threadIdx.x] = t[N - 1 - threadIdx.x];
    }
    a[threadIdx.x] += 1;
}"""
    run(source, 1, 64, arrays(64)[0], options=("-DN=64",))
    error = error_of(source, 1, 64, arrays(64)[0], options=("-DN=40",))
    assert error.kind == "barrier" and error.line == 5


def test_two_barriers_met_by_one_block():
    error = error_of("""extern "C" __global__ void k(float* a) {
    if (threadIdx.x < 40) {
        a[0] = 1;
        __syncthreads();
    } else {
        a[64] = 1;
        __syncthreads();
    }
}""", 1, 64, arrays(128)[0])
    assert error.kind == "barrier" and {"4", "7"} <= set(str(error).replace(",", " ").replace(
        ":", " ").split())


def test_barrier_in_a_tree_reduction_under_if():
    source = """extern "C" __global__ void k(const float* a, float* b) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = a[t];
    __syncthreads();
    for (int o = 64; o > 0; o >>= 1)
        if (t < o) {
            s[t] += s[t + o];
            __syncthreads();
        }
    if (t == 0) b[0] = s[0];
}"""
    assert error_of(source, 1, 128, *arrays(128)).kind in ("barrier", "race")


def test_early_return_before_a_barrier_is_a_warning():
    source = """extern "C" __global__ void k(const float* a, float* b, int n) {
    __shared__ float s[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    s[threadIdx.x] = a[i];
    __syncthreads();
    b[i] = s[threadIdx.x ^ 1];
}"""
    a, b = arrays(1000)
    launch = run(source, 4, 256, a, b, 1000)
    assert np.array_equal(b.reshape(-1, 2), a.reshape(-1, 2)[:, ::-1])
    assert len(launch.warnings) == 1 and "returned before this barrier" in launch.warnings[0]
    assert run(source, 4, 256, *arrays(1024), 1024).warnings == []


def test_deadlock_says_who_waits_where():
    error = error_of("""extern "C" __global__ void k(float* a) {
    if (threadIdx.x < 32)
        asm volatile("bar.sync 1, 64;");
    else
        asm volatile("bar.sync 2, 64;");
    a[threadIdx.x] = 1;
}""", 1, 64, arrays(64)[0])
    assert error.kind == "deadlock" and "line 3" in str(error) and "line 5" in str(error)


def test_endless_loop_names_its_line():
    source = """extern "C" __global__ void k(volatile float* a) {
    int i = 0;
    while (a[0] >= 0.f)
        i++;
    a[1] = i;
}"""
    with simulator.budget(10_000):
        error = error_of(source, 1, 64, arrays(64)[0])
    assert error.kind == "endless" and error.line in (3, 4)
    with simulator.budget(10_000):
        run(source, 1, 64, -1 - arrays(64)[0])


def test_shuffle_mask_that_names_absent_lanes():
    source = """extern "C" __global__ void k(float* a) {
    int t = threadIdx.x;
    float v = a[t];
    if (t < 16)
        v += __shfl_down_sync(MASK, v, 8, 16);
    a[t] = v;
}"""
    run(source, 1, 32, arrays(32)[0], options=("-DMASK=0x0000ffffu",))
    error = error_of(source, 1, 32, arrays(32)[0], options=("-DMASK=0xffffffffu",))
    assert error.kind == "mask" and error.line == 5 and "lane 16" in str(error)


def test_shuffle_from_a_lane_that_is_not_there_is_a_warning():
    source = """extern "C" __global__ void k(float* a) {
    a[threadIdx.x] += __shfl_down_sync(0xffffffffu, a[threadIdx.x], 4);
}"""
    launch = run(source, 1, 8, arrays(8)[0])
    assert len(launch.warnings) == 1 and "undefined" in launch.warnings[0]
    assert run(source, 1, 32, arrays(32)[0]).warnings == []


def test_assert():
    source = """#include <assert.h>
    extern "C" __global__ void k(int n) { assert(threadIdx.x < n); }"""
    run(source, 1, 32, 32)
    error = error_of(source, 1, 32, 31)
    assert error.kind == "assert" and error.thread == (31, 0, 0) and "threadIdx.x < n" in str(error)


def test_compile_error_shows_the_learners_line():
    error = error_of("""extern "C" __global__ void k(float* a) {
    a[0] = scal * 2;
}""", 1, 1, arrays(1)[0])
    assert isinstance(error, simulator.CompileError) and error.kind == "compile" and error.line == 2
    assert 'kernel.cu(2): error: identifier "scal" is undefined' in str(error) and "^" in str(error)


def test_unknown_instruction_is_an_error_and_not_a_wrong_number():
    with pytest.raises(simulator.Unsupported) as caught:
        run("""extern "C" __global__ void k(float* a) {
    asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(0));
}""", 1, 1, arrays(1)[0])
    assert caught.value.kind == "unsupported" and "mbarrier.inval" in str(caught.value)
    assert caught.value.line == 2


def test_checks_can_be_turned_off():
    run(REVERSE, 4, 256, *arrays(), options=("-DSYNC=",), checks=False)


def test_large_grids_are_checked_at_both_ends():
    a, b = arrays(256 * 1024)
    launch = run(REVERSE, 1024, 256, a, b, options=("-DSYNC=__syncthreads();",))
    assert 0 < launch.checked_blocks < 1024
    assert error_of(REVERSE, 1024, 256, a, b, options=("-DSYNC=",)).kind == "race"
