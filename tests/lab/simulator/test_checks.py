"""What a learner gets wrong: each check reports the mistake, and not the corrected kernel."""

import re

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


def test_a_read_that_begins_at_an_element_that_is_there_says_that_it_goes_on():
    source = """extern "C" __global__ void k(const float* a, float4* b) {
    b[0] = ((const float4*)a)[0];
}"""
    error = error_of(source, 1, 1, np.zeros(1, np.float32), np.zeros(4, np.float32))
    assert ("read of 16 bytes: the last 12 of those that begin at element 0 of `a` (1 float32)"
            in str(error))


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
    assert "an endless loop? It was here" in str(error)
    with simulator.budget(10_000):
        run(source, 1, 64, -1 - arrays(64)[0])


def test_a_wait_for_blocks_that_have_not_begun_is_told():
    """40 blocks of 1,024 threads: more than the simulator runs at once."""
    source = """extern "C" __global__ void k(unsigned* arrived) {
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1);
        while (atomicAdd(arrived, 0) < gridDim.x);
    }
}"""
    with simulator.budget(100_000):
        error = error_of(source, 40, 1024, np.zeros(1, np.uint32))
    assert error.kind == "endless" and "Or does it wait for a later block?" in str(error)
    assert re.search(r"Blocks from \d+ on had not begun: only a cooperative launch", str(error))


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
        run("""extern "C" __global__ void k(unsigned* a) {
    unsigned x = a[0], y = 0, z = 0, u = 0, v = 0;
    asm("mma.sp.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3},{%4,%4},{%4,%4},"
        "{%4,%4,%4,%4},%4,0;" : "=r"(y), "=r"(z), "=r"(u), "=r"(v) : "r"(x));
    a[0] = y + z + u + v;
}""", 1, 1, np.zeros(1, np.uint32))
    assert caught.value.kind == "unsupported" and "mma.sp.sync" in str(caught.value)
    assert caught.value.line in (3, 4)      # NVRTC 13.0 blames an asm's last line, 13.5 its first


def test_checks_can_be_turned_off():
    run(REVERSE, 4, 256, *arrays(), options=("-DSYNC=",), checks=False)


def test_large_grids_are_checked_at_both_ends():
    a, b = arrays(256 * 1024)
    launch = run(REVERSE, 1024, 256, a, b, options=("-DSYNC=__syncthreads();",))
    assert 0 < launch.checked_blocks < 1024
    assert error_of(REVERSE, 1024, 256, a, b, options=("-DSYNC=",)).kind == "race"


# ---- barriers: which threads came, left, wait

EARLY = {
    "plain": "if (i >= n) return;",
    "braces": "if (i >= n) {\n b[0] = 0;\n return;\n }",
    "two conditions": "if (i < 0\n || i >= n)\n return;",
    "a macro": "CHECK(i, n)",
    "nested": "if (n < 5000) { if (i >= n) return; }",
    "in a loop": "for (int k = 0; k < 3; k++) {\n if (i >= n) return;\n s[threadIdx.x] = a[i]; "
                 "__syncthreads(); b[i] = s[threadIdx.x]; __syncthreads(); }",
    "else": "if (i < n) b[i] = 0; else return;",
}
PAST = {
    "skipped": "if (i < n) {\n __syncthreads();\n s[threadIdx.x] = 1; }",
    "skipped, nothing follows": "if (i < n) {\n __syncthreads();\n b[i] = 1; }\n return;",
    "too few turns": "for (int k = i; k < n + 500; k += 300) {\n __syncthreads(); }",
    "break": "for (int k = 0; k < 4; k++) {\n if (i + k >= n) break;\n __syncthreads(); }",
    "while": "int k = i;\n while (k++ < n) {\n __syncthreads(); }",
}
WAYS_OUT = """#define CHECK(i, n) if (i >= n) return;
extern "C" __global__ void k(const float* a, float* b, int n) {
    __shared__ float s[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    BODY
}"""


@pytest.mark.parametrize("how", EARLY)
def test_a_return_ahead_of_the_barrier_is_a_warning(how):
    source = WAYS_OUT.replace("BODY", EARLY[how] + """
    s[threadIdx.x] = a[i];
    __syncthreads();
    b[i] = s[threadIdx.x];""")
    launch = run(source, 4, 256, *arrays(1024), 1000)
    assert launch.warnings and all("returned before" in w for w in launch.warnings)
    assert run(source, 4, 256, *arrays(1024), 1024).warnings == []


@pytest.mark.parametrize("how", PAST)
def test_walking_past_a_barrier_is_an_error(how):
    source = WAYS_OUT.replace("BODY", PAST[how])
    error = error_of(source, 4, 256, *arrays(1024), 1000)
    assert error.kind == "barrier" and "divergent" in str(error)
    if how.startswith("skipped"):
        assert run(source, 4, 256, *arrays(1024), 1024).warnings == []


@pytest.mark.parametrize("block", [0, 5, 7])
def test_whichever_block_it_is(block):
    source = """extern "C" __global__ void k(float* a) {
    bool mine = blockIdx.x == BLOCK && threadIdx.x >= 40;
    if (mine) OTHER
    __syncthreads();
    } a[blockIdx.x * 64 + threadIdx.x] = 1;
}"""
    early = source.replace("OTHER", "return; {")
    launch = run(early, 8, 64, arrays(512)[0], options=(f"-DBLOCK={block}",))
    assert len(launch.warnings) == 1 and f"24 threads of block ({block}, 0, 0)" in \
        launch.warnings[0]
    past = source.replace("(mine) OTHER", "(!mine) {")
    error = error_of(past, 8, 64, arrays(512)[0], options=(f"-DBLOCK={block}",))
    assert error.kind == "barrier" and error.block == (block, 0, 0) and error.line == 4


def test_barriers_that_count():
    """__syncthreads_count, _and and _or, and barrier.red at two named barriers at once."""
    out = np.zeros((64, 4), np.int32)
    launch = run("""extern "C" __global__ void k(int* y) {
    int t = threadIdx.x, n;
    y[4 * t] = __syncthreads_count(t % 3 == 0);
    y[4 * t + 1] = __syncthreads_and(t < 64);
    y[4 * t + 2] = __syncthreads_or(t > 63);
    asm volatile("{ .reg .pred p; setp.lt.s32 p, %1, 40; barrier.red.popc.u32 %0, %2, 32, p; }"
                 : "=r"(n) : "r"(t), "r"(1 + t / 32));
    y[4 * t + 3] = n;
}""", 1, 64, out)
    assert launch.warnings == []
    assert (out[:, :3] == [22, 1, 0]).all()
    assert (out[:32, 3] == 32).all() and (out[32:, 3] == 8).all()


NAMED = """extern "C" __global__ void k(float* a, int n, int count, int n2, int count2) {
    if (threadIdx.x < 64)
        asm volatile("bar.sync %0, %1;" :: "r"(n), "r"(count));
    else
        asm volatile("bar.sync %0, %1;" :: "r"(n2), "r"(count2));
    a[threadIdx.x] = 1;
}"""


@pytest.mark.parametrize("operands", [(1, 64, 2, 64), (1, 128, 1, 128), (3, 32, 3, 32),
                                      (0, 128, 0, 128)])
def test_named_barriers(operands):
    assert run(NAMED, 1, 128, arrays(128)[0], *operands).warnings == []


@pytest.mark.parametrize("operands, says", [
    ((16, 64, 2, 64), "no barrier 16"), ((1, 60, 2, 64), "multiple of 32"),
    ((1, 128, 1, 64), "for 128 threads")])
def test_named_barriers_that_cannot_be(operands, says):
    error = error_of(NAMED, 1, 128, arrays(128)[0], *operands)
    assert error.kind == "barrier" and says in str(error)


def test_a_deadlock_counts_the_threads_that_wait():
    error = error_of(NAMED, 1, 128, arrays(128)[0], 1, 128, 2, 128)
    assert error.kind == "deadlock"
    assert "64 threads (first (0, 0, 0)) at barrier 1 in line 3, which waits for 128" in str(error)
    assert "64 threads (first (64, 0, 0)) at barrier 2 in line 5, which waits for 128" in str(error)
    error = error_of("""extern "C" __global__ void k(float* a) {
    if (threadIdx.x >= 96) return;
    asm volatile("bar.sync 0, 128;");
    a[threadIdx.x] = 1;
}""", 1, 128, arrays(128)[0])
    assert error.kind == "deadlock" and "96 threads" in str(error)
    assert "32 threads have ended" in str(error)


def test_lanes_that_wait_for_each_other_at_different_places():
    source = """extern "C" __global__ void k(float* a) {
    int t = threadIdx.x;
    float v = a[t];
    if (t < 16)
        v = __shfl_xor_sync(MASK, v, 1);
    else
        __syncthreads();
    if (t < 16)
        __syncthreads();
    a[t] = v;
}"""
    error = error_of(source, 1, 32, arrays(32)[0], options=("-DMASK=0xffffffffu",))
    assert error.kind == "mask" and "lane 16" in str(error)
    assert "wait at a barrier in line 7" in str(error)
    assert error_of(source, 1, 32, arrays(32)[0], options=("-DMASK=0xffffu",)).kind == "barrier"


def test_a_lane_outside_of_its_own_mask():
    source = """extern "C" __global__ void k(unsigned* a) {
    a[threadIdx.x] = __ballot_sync(MASK, threadIdx.x & 1);
}"""
    run(source, 1, 32, np.zeros(32, np.uint32), options=("-DMASK=0xffffffffu",))
    error = error_of(source, 1, 32, np.zeros(32, np.uint32), options=("-DMASK=0xffffu",))
    assert error.kind == "mask" and error.line == 2 and "lane 16" in str(error)


def test_lanes_that_returned_before_a_shuffle():
    source = """extern "C" __global__ void k(float* a, int n) {
    if (threadIdx.x >= n) return;
    a[threadIdx.x] = __shfl_down_sync(0xffffffffu, a[threadIdx.x], 1);
}"""
    run(source, 1, 32, arrays(32)[0], 32)
    launch = run(source, 1, 32, arrays(32)[0], 24)
    assert len(launch.warnings) == 1 and "lane 24" in launch.warnings[0]


def test_lanes_that_walked_past_a_shuffle():
    source = """extern "C" __global__ void k(float* a, int n) {
    int t = threadIdx.x;
    if (t < n)
        a[t] = __shfl_down_sync(0xffffffffu, a[t], 1);
    a[t + 32] = 1;
}"""
    run(source, 1, 32, arrays(64)[0], 32)
    error = error_of(source, 1, 32, arrays(64)[0], 24)
    assert error.kind == "mask" and error.line == 4 and "went on to line 5" in str(error)


def test_shared_memory_of_an_odd_size():
    y = np.zeros(33, np.uint8)
    run("""extern "C" __global__ void k(unsigned char* y) {
    __shared__ unsigned char s[33];
    __shared__ int n;
    s[threadIdx.x] = threadIdx.x;
    n = 7;
    __syncthreads();
    y[threadIdx.x] = s[32 - threadIdx.x] + n;
}""", 2, 33, y)
    assert np.array_equal(y, 39 - np.arange(33))


def test_an_extern_array_without_its_memory_says_what_the_launch_lacks():
    source = """extern "C" __global__ void k(int* y) {
        extern __shared__ int s[];
        s[threadIdx.x] = y[threadIdx.x];
    }"""
    error = error_of(source, 1, 32, np.zeros(32, np.int32))
    assert error.line == 3 and "the launch gave shared_mem=0 for the extern array" in str(error)
    error = error_of(source, 1, 32, np.zeros(32, np.int32), shared_mem=64)
    assert error.line == 3 and "shared_mem=0" not in str(error)
