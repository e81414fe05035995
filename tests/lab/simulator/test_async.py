"""Asynchronous copies: what must wait for what; a forgotten wait is reported."""

import numpy as np
import pytest

from lab import simulator
from lab.simulator import ptx
from lab.simulator.decode import decode

from .conftest import error_of, is_product, run

COPY = """extern "C" __global__ void k(const char* a, int* out, int given, int at) {
    __shared__ __align__(16) char s[33 * SIZE];
    int t = threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(s + t * SIZE + at);
    const char* from = a + t * SIZE;
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0;"
                 "cp.async.HOW.shared.global [%0], [%1], FORM;}"
                 :: "r"(to), "l"(from), "r"(given) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int i = t; i < 8 * SIZE; i += 32) out[i] = ((int*)s)[8 * SIZE - 1 - i];
}"""


def copy(rng, size, how, form, given=0, at=0):
    text = COPY.replace("SIZE", str(size)).replace("HOW", how).replace("FORM", form)
    a, out = rng.integers(1, 256, 32 * size).astype(np.uint8), np.zeros(8 * size, np.int32)
    launch = run(text, 1, 32, a.view(np.int8), out, given, at)
    return a.reshape(32, size), out[::-1].copy().view(np.uint8).reshape(32, size), launch


@pytest.mark.parametrize("size, how", [(4, "ca"), (8, "ca"), (16, "ca"), (16, "cg")])
def test_copy(rng, size, how):
    a, out, launch = copy(rng, size, how, str(size))
    assert np.array_equal(out, a)
    read = launch.totals.access("global", "load")
    written = launch.totals.access("shared", "store")
    assert (read.requests, read.transactions, read.bytes) == (1, size, 32 * size)
    assert (written.requests, written.transactions, written.bytes) == (1, size // 4, 32 * size)


@pytest.mark.parametrize("given", [0, 1, 6, 8])
def test_copy_of_a_part_fills_up_with_zeros(rng, given):
    a, out, launch = copy(rng, 8, "ca", "8, %2", given)
    assert np.array_equal(out[:, :given], a[:, :given]) and not out[:, given:].any()
    assert launch.bytes_loaded == 32 * given
    assert launch.totals.access("global", "load").requests == (given > 0)


@pytest.mark.parametrize("ignore", [0, 1])
def test_copy_that_ignores_its_source(rng, ignore):
    a, out, launch = copy(rng, 16, "cg", "16, p", ignore)
    assert np.array_equal(out, a * (1 - ignore)) and launch.bytes_loaded == 512 * (1 - ignore)


def test_copy_checks(rng):
    with pytest.raises(simulator.KernelError, match="reads 20 bytes to copy 16"):
        copy(rng, 16, "cg", "16, %2", 20)
    with pytest.raises(simulator.KernelError) as caught:
        copy(rng, 16, "cg", "16", at=8)
    assert caught.value.kind == "misaligned" and caught.value.line in (6, 7, 8)
    with pytest.raises(simulator.KernelError) as caught:
        copy(rng, 16, "cg", "16", at=32)
    assert caught.value.kind == "out_of_bounds" and caught.value.thread == (31, 0, 0)


def test_copies_into_shared_memory_of_an_odd_size(rng):
    a, out = rng.integers(0, 99, 128).astype(np.int32), np.zeros(128, np.int32)
    run("""#include <cuda_pipeline.h>
    extern "C" __global__ void k(const int4* a, int4* out) {
        __shared__ int4 s[32];
        __shared__ char last;
        int t = threadIdx.x;
        if (t == 0) last = 1;
        __pipeline_memcpy_async(&s[t], &a[t], 16);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
        if (last) out[31 - t] = s[t];
    }""", 3, 32, a, out)
    assert np.array_equal(out.reshape(32, 4)[::-1], a.reshape(32, 4))


RING = """#include <cuda_pipeline.h>
extern "C" __global__ void k(const float4* a, float4* out, int n) {
    __shared__ float4 s[STAGES][32];
    int t = threadIdx.x;
    for (int i = 0; i < STAGES - 1; i++) {
        __pipeline_memcpy_async(&s[i][t], &a[i * 32 + t], 16);
        __pipeline_commit();
    }
    for (int i = 0; i < n; i++) {
        int next = i + STAGES - 1;
        if (next < n)
            __pipeline_memcpy_async(&s[next % STAGES][t], &a[next * 32 + t], 16);
        __pipeline_commit();
        WAIT
        FIRST
        out[i * 32 + t] = s[i % STAGES][31 - t];
        SECOND
    }
}"""
FULL = {"WAIT": "__pipeline_wait_prior(STAGES-1);", "FIRST": "__syncthreads();",
        "SECOND": "__syncthreads();"}


def ring(**changes):
    a = np.arange(6 * 32 * 4, dtype=np.float32)
    return (RING, 1, 32, a, np.zeros_like(a), 6), tuple(
        f"-D{k}={v}" for k, v in ({"STAGES": 3} | FULL | changes).items())


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_ring_of_buffers(stages):
    arguments, options = ring(STAGES=stages)
    launch = run(*arguments, options=options)
    a, out = (x.reshape(6, 32, 4) for x in arguments[3:5])
    assert np.array_equal(out, a[:, ::-1]) and launch.warnings == []


@pytest.mark.parametrize("changes, kind, line, says", [
    ({"WAIT": ""}, "race", 16, "is read in line 16 before its cp.async in line 6 was waited for"),
    ({"WAIT": "__pipeline_wait_prior(STAGES);"}, "race", 16,
     "is read in line 16 before its cp.async in line 6 was waited for"),
    ({"STAGES": 2, "WAIT": "if(i<2)__pipeline_wait_prior(1);"}, "race", 16,
     "is read in line 16 before its cp.async in line 12 was waited for"),
    ({"FIRST": ""}, "race", 16, "in line 6"),
    ({"SECOND": ""}, "race", 12, "and read in line 16"),
])
def test_ring_with_a_wait_or_a_barrier_missing(changes, kind, line, says):
    arguments, options = ring(**changes)
    error = error_of(*arguments, options=options)
    assert error.kind == kind and error.line == line and says in str(error)


def test_without_checks_a_forgotten_wait_reads_what_was_there():
    arguments, options = ring(WAIT="")
    run(*arguments, options=options, checks=False)
    assert not np.array_equal(arguments[4].reshape(6, 32, 4),
                              arguments[3].reshape(6, 32, 4)[:, ::-1])


AHEAD = """#include <cuda_pipeline.h>
extern "C" __global__ void k(const float* a, float* out, int n) {
    __shared__ __align__(16) float s[4][256];
    int t = threadIdx.x, sum = 0;
    for (int i = 0; i < AHEAD + n; i++) {
        if (i < n && t < COPYING)
            __pipeline_memcpy_async(&s[i % 4][4 * t], &a[256 * i + 4 * t], 16);
        __pipeline_commit();
        if (i < AHEAD) continue;
        if (t < WAITING) __pipeline_wait_prior(LEFT);
        __syncthreads();
        out[64 * i + t] = s[(i - AHEAD) % 4][t];
        __syncthreads();
    }
}"""


@pytest.mark.parametrize("ahead, left, threads, copying, bytes_in_flight", [
    (2, 2, 64, 64, 1024 * (2 + 2 + 2 + 1 + 0) / 5),     # the last groups are empty
    (2, 1, 64, 64, 1024 * (1 + 1 + 1 + 0 + 0) / 5),     # one of the two is waited for too early
    (2, 0, 64, 64, 0), (0, 0, 64, 64, 0),
    (1, 1, 64, 32, 512 * 4 / 5),                        # half of the threads wait for nothing
    (1, 1, 32, 32, 512 * 4 / 5),                        # or do not wait at all
])
@pytest.mark.parametrize("blocks", [1, 3])
def test_bytes_that_are_in_flight_after_a_wait(ahead, left, threads, copying, bytes_in_flight,
                                               blocks):
    text = AHEAD
    for word, value in {"COPYING": copying, "WAITING": threads, "AHEAD": ahead,
                        "LEFT": left}.items():
        text = text.replace(word, str(value))
    launch = run(text, blocks, 64, np.zeros(1280, "f4"), np.zeros(448, "f4"), 5)
    assert launch.in_flight == launch.as_data()["in_flight"] == pytest.approx(bytes_in_flight)
    assert f"cp.async: {launch.in_flight:.6g} bytes" in str(launch)


def test_without_a_wait_for_groups_nothing_is_said_of_bytes_in_flight():
    launch = run('extern "C" __global__ void k(float* a) { a[threadIdx.x] = 1; }', 1, 32,
                 np.zeros(32, "f4"))
    assert launch.in_flight is None and "cp.async" not in str(launch)


def test_a_loop_of_two_instructions_lets_the_others_run():
    """A warp counts to 8 · 32 in a loop of its own, another awaits each 32 in inline PTX."""
    y = np.zeros(32, np.int32)
    with simulator.budget(60_000):
        run("""__device__ void await(unsigned place, int phase) {
            asm volatile("{ .reg .pred over; again: mbarrier.test_wait.parity.shared.b64 over,"
                         " [%0], %1; @!over bra again; }" :: "r"(place), "r"(phase) : "memory");
        }
        __device__ void arrive(unsigned place) {
            asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" :: "r"(place)
                         : "memory");
        }
        extern "C" __global__ void k(int* y, int n) {
            __shared__ unsigned long long full, empty;
            volatile __shared__ int number[32];
            unsigned to = __cvta_generic_to_shared(&full), back = __cvta_generic_to_shared(&empty);
            if (threadIdx.x == 0) {
                asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(to));
                asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(back));
            }
            __syncthreads();
            for (int i = 0; i < n; i++)
                if (threadIdx.x < 32) {
                    await(back, i % 2 ^ 1);
                    for (int j = 0; j < 4 * n; j++)         // more jumps than a turn allows
                        number[threadIdx.x] = j + 1;
                    arrive(to);
                } else {
                    await(to, i % 2);
                    y[threadIdx.x - 32] += number[threadIdx.x - 32];
                    arrive(back);
                }
        }""", 1, 64, y, 8)
    assert (y == 8 * 32).all()


GEMM = """#include <cuda_fp16.h>
const int BM = 64, BN = 64, BK = 32;
__device__ unsigned shared(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void copy(half* to, const half* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
                 :: "r"(shared(to)), "l"(from));
}
// eight halves make a chunk; a row has four, and its chunks change places with the row
__device__ int at(int row, int chunk) { return row * BK + (chunk ^ (row / 2 % 4 SWIZZLE)) * 8; }
__device__ int at_b(int row, int chunk) { return row * BN + (chunk ^ (row % 8 SWIZZLE)) * 8; }

extern "C" __global__ void k(const half* A, const half* B, float* C, int M, int N, int K) {
    __shared__ __align__(128) half a[2][BM * BK], b[2][BK * BN];
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    int row = blockIdx.y * BM, column = blockIdx.x * BN;
    auto fetch = [&](int stage, int k) {
        for (int i = t; i < BM * BK / 8; i += blockDim.x)
            copy(&a[stage][at(i / 4, i % 4)], &A[(row + i / 4) * K + k + i % 4 * 8]);
        for (int i = t; i < BK * BN / 8; i += blockDim.x)
            copy(&b[stage][at_b(i / 8, i % 8)], &B[(k + i / 8) * N + column + i % 8 * 8]);
        asm volatile("cp.async.commit_group;");
    };
    float c[2][4][4] = {};
    int wm = warp / 2 * 32, wn = warp % 2 * 32;
    fetch(0, 0);
    for (int k = 0, stage = 0; k < K; k += BK, stage ^= 1) {
        if (k + BK < K) {
            fetch(stage ^ 1, k + BK);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        for (int kk = 0; kk < BK; kk += 16) {
            unsigned fa[2][4], fb[4][2];
            for (int m = 0; m < 2; m++) {
                const half* p = &a[stage][at(wm + m * 16 + lane % 16, kk / 8 + lane / 16)];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                    : "=r"(fa[m][0]), "=r"(fa[m][1]), "=r"(fa[m][2]), "=r"(fa[m][3])
                    : "r"(shared(p)));
            }
            for (int n = 0; n < 4; n++) {
                const half* p = &b[stage][at_b(kk + lane % 16, wn / 8 + n)];
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                    : "=r"(fb[n][0]), "=r"(fb[n][1]) : "r"(shared(p)));
            }
            for (int m = 0; m < 2; m++)
                for (int n = 0; n < 4; n++)
                    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                        : "+f"(c[m][n][0]), "+f"(c[m][n][1]), "+f"(c[m][n][2]), "+f"(c[m][n][3])
                        : "r"(fa[m][0]), "r"(fa[m][1]), "r"(fa[m][2]), "r"(fa[m][3]),
                          "r"(fb[n][0]), "r"(fb[n][1]));
        }
        LAST
    }
    for (int m = 0; m < 2; m++)
        for (int n = 0; n < 4; n++)
            for (int half_ = 0; half_ < 2; half_++) {
                float* p = &C[(row + wm + m * 16 + half_ * 8 + lane / 4) * N + column + wn + n * 8
                              + lane % 4 * 2];
                *(float2*)p = make_float2(c[m][n][half_ * 2], c[m][n][half_ * 2 + 1]);
            }
}"""


@pytest.mark.parametrize("swizzle, degree", [("", 1), ("*0", None)])
def test_double_buffered_gemm_with_swizzled_tiles(rng, swizzle, degree):
    a, b = rng.normal(size=(128, 128)).astype("f2"), rng.normal(size=(128, 64)).astype("f2")
    c = np.zeros((128, 64), np.float32)
    launch = run(GEMM, (1, 2), 128, a, b, c, 128, 64, 128,
                 options=(f"-DSWIZZLE={swizzle}", "-DLAST=__syncthreads();"))
    assert is_product(c, a, b, steps=128 // 16)
    assert launch.flops == 2 * 128 * 64 * 128 and launch.warnings == []
    loads = launch.totals.access("shared", "load")
    assert (loads.transactions == loads.ideal) == (degree == 1)


def test_double_buffered_gemm_that_overwrites_what_is_still_read(rng):
    a, b, c = np.zeros((64, 128), "f2"), np.zeros((128, 64), "f2"), np.zeros((64, 64), "f4")
    error = error_of(GEMM, 1, 128, a, b, c, 64, 64, 128, options=("-DSWIZZLE=", "-DLAST="))
    assert error.kind == "race" and "written by cp.async" in str(error)


@pytest.mark.parametrize("text", [
    "mbarrier.try_wait.shared.b64 p, [r], d;", "mbarrier.arrive.shared.b64 d, [r], r;",
    "mbarrier.arrive.expect_tx.shared.b64 d, [r], r;", "mbarrier.complete_tx.shared.b64 [r], r;",
    "mbarrier.test_wait.acquire.cluster.shared::cta.b64 p, [r], d;",
    "cp.async.cg.shared.global [r], [d], 8;", "cp.async.ca.shared.global [r], [d], 12;",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r], [d], 16, [r];",
    "cp.async.bulk.wait_group 0;", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 "
    "[d], [r], 16;",
])
def test_forms_of_later_architectures_are_refused(text):
    module = ptx.parse(f""".version 9.0 .target sm_80 .address_size 64
    .entry k() {{ .reg .b32 r; .reg .b64 d; .reg .pred p; {text} }}""")
    with pytest.raises(simulator.Unsupported) as caught:
        decode(module.functions["k"].code[0])
    assert text.split()[0] in str(caught.value)
