"""mbarriers and what is built on them: a forgotten wait, or one without an end, is reported."""

import numpy as np
import pytest

from lab import simulator

from .conftest import error_of, run


def reversed_by_mbarrier(text, n=64, blocks=3, **keywords):
    a = np.arange(blocks * n, dtype=np.float32)
    out = np.zeros_like(a)
    launch = run(text, blocks, n, a, out, **keywords)
    assert np.array_equal(out.reshape(blocks, n), a.reshape(blocks, n)[:, ::-1])
    return launch


PRIMITIVES = """#include <cuda_awbarrier_primitives.h>
extern "C" __global__ void k(const float* a, float* out) {
    __shared__ __mbarrier_t bar;
    __shared__ float s[64];
    int t = threadIdx.x, n = blockDim.x, at = blockIdx.x * n;
    if (t == 0) __mbarrier_init(&bar, n);
    AFTER_INIT
    for (int i = 0; i < 3; i++) {
        s[t] = a[at + t];
        __mbarrier_token_t token = __mbarrier_arrive(&bar);
        LATE
        WAIT
        out[at + t] = s[n - 1 - t];
        __syncthreads();
    }
    if (t == 0) __mbarrier_inval(&bar);
    AFTER_INVAL
}"""
PARTS = {"AFTER_INIT": "__syncthreads();", "LATE": "", "AFTER_INVAL": "",
         "WAIT": "while(!__mbarrier_test_wait(&bar,token));"}


def primitives(**changes):
    return tuple(f"-D{k}={v}" for k, v in (PARTS | changes).items())


def test_mbarrier_of_a_block():
    assert reversed_by_mbarrier(PRIMITIVES, options=primitives()).warnings == []
    reversed_by_mbarrier(PRIMITIVES, n=48, options=primitives())


@pytest.mark.parametrize("changes, kind, line", [
    ({"WAIT": ""}, "race", 13),
    ({"AFTER_INIT": ""}, "uninitialised", 10),
    ({"LATE": "s[t]+=1;"}, "race", 13),
    ({"AFTER_INVAL": "__syncthreads();__mbarrier_arrive(&bar);"}, "uninitialised", 17),
])
def test_mbarrier_mistakes(changes, kind, line):
    a = np.arange(64, dtype=np.float32)
    source = PRIMITIVES.replace("if (t == 0) __mbarrier_init", "if (t == 63) __mbarrier_init")
    error = error_of(source, 1, 64, a, np.zeros_like(a), options=primitives(**changes))
    assert error.kind in (kind, "race") and error.line == line


def test_mbarrier_counts_down():
    """Tokens, the pending count, parity, dropping out and a phase that ends within one instruction:
    compared with the counting rules of the PTX ISA manual."""
    out = np.zeros(16, np.int32)
    run("""#define ARRIVE(how, more) asm volatile("mbarrier." how ".shared.b64 %0, [%1]" more ";" \\
        : "=l"(token) : "r"(p)); asm("mbarrier.pending_count.b64 %0, %1;" : "=r"(n) : "l"(token));
    #define OVER(parity) asm volatile("{.reg .pred q;" \\
        "mbarrier.test_wait.parity.shared.b64 q, [%1], %2; selp.u32 %0, 1, 0, q;}" \\
        : "=r"(over) : "r"(p), "r"(parity));
    #define TEST() asm volatile("{.reg .pred q; mbarrier.test_wait.shared.b64 q, [%1]," \\
        " %2; selp.u32 %0, 1, 0, q;}" : "=r"(over) : "r"(p), "l"(token));
    extern "C" __global__ void k(int* out) {
        __shared__ unsigned long long bar;
        unsigned p = (unsigned)__cvta_generic_to_shared(&bar), n, over, i = 0;
        unsigned long long token;
        asm volatile("mbarrier.init.shared.b64 [%0], 5;" :: "r"(p));
        ARRIVE("arrive", "") out[i++] = n;
        ARRIVE("arrive.noComplete", ", 2") out[i++] = n;
        OVER(0) out[i++] = over;
        OVER(1) out[i++] = over;
        ARRIVE("arrive_drop", "") out[i++] = n;
        TEST() out[i++] = over;
        ARRIVE("arrive", "") out[i++] = n;
        TEST() out[i++] = over;
        OVER(0) out[i++] = over;
        ARRIVE("arrive_drop.noComplete", ", 2") out[i++] = n;
        ARRIVE("arrive", "") ARRIVE("arrive", "") out[i++] = n;
        ARRIVE("arrive", "") out[i++] = n;
        OVER(0) out[i++] = over;
    }""", 1, 1, out)
    # 5 -> 4 -> 2; phase 0 is not over, the one before is; 2 -> 1 (next 4); 1 -> 0: phase 1 of 4;
    # 4 -> 2 (next 2) -> 1 -> 0: phase 2 of 2
    assert out[:13].tolist() == [5, 4, 0, 1, 2, 0, 1, 1, 1, 4, 1, 2, 0]


def test_mbarrier_that_ends_several_phases_in_one_instruction():
    out = np.zeros(32, np.int32)
    run("""#include <cuda_awbarrier_primitives.h>
    extern "C" __global__ void k(int* out) {
        __shared__ __mbarrier_t bar;
        if (threadIdx.x == 0) __mbarrier_init(&bar, 10);
        __syncthreads();
        __mbarrier_token_t token = __mbarrier_arrive(&bar);
        out[threadIdx.x] = __mbarrier_token_pending_count(token);
        if (threadIdx.x < 30) while (!__mbarrier_test_wait(&bar, token));
    }""", 1, 32, out)
    assert sorted(out.tolist()) == sorted(3 * list(range(1, 11)) + [10, 9])


def test_mbarrier_limits():
    source = """#include <cuda_awbarrier_primitives.h>
extern "C" __global__ void k(int n) {
    __shared__ __mbarrier_t bar;
    __mbarrier_init(&bar, n);
    asm volatile("{.reg .b64 t; mbarrier.arrive.noComplete.shared.b64 t, [%0], 2;}"
        :: "r"((unsigned)__cvta_generic_to_shared(&bar)));
}"""
    run(source, 1, 1, 3)
    error = error_of(source, 1, 1, 0)
    assert error.kind == "argument" and error.line == 4
    error = error_of(source, 1, 1, 2)
    assert error.kind == "barrier" and "noComplete" in str(error)


def test_mbarrier_that_nobody_completes_says_who_waits():
    a = np.arange(64, dtype=np.float32)
    source = PRIMITIVES.replace("__mbarrier_init(&bar, n)", "__mbarrier_init(&bar, n + 1)")
    error = error_of(source, 1, 64, a, np.zeros_like(a), options=primitives())
    assert error.kind == "deadlock" and error.line == 12
    assert "64 threads" in str(error) and "`bar`" in str(error)
    assert "1 of 65 arrivals are missing" in str(error)


def test_mbarrier_deadlock_names_also_those_at_another_barrier():
    error = error_of(AWAIT.replace("BODY", """
        if (threadIdx.x < 64)
            bar.arrive_and_wait();
        __syncthreads();"""), 2, 96, np.zeros(2, np.float32), 96)
    assert error.kind == "deadlock" and "32 of 96 arrivals are missing" in str(error)
    assert "32 threads (first (64, 0, 0)) at barrier 0" in str(error)


def test_slow_thread_keeps_the_others_waiting_at_an_mbarrier():
    """Polling alone is no deadlock: thread 0 is busy for far longer than the others' patience."""
    out = np.ones(2, np.float32)
    run(AWAIT.replace("BODY", """
        float x = 1;
        if (threadIdx.x == 0)
            for (int i = 0; i < 30000; i++) x = x * 0.5f + 1;
        bar.arrive_and_wait();
        if (threadIdx.x == 0) out[blockIdx.x] = x;"""), 2, 96, out, 96)
    assert np.allclose(out, 2)


AWAIT = """#include <cuda/barrier>
extern "C" __global__ void k(float* out, int n) {
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    if (threadIdx.x == 0) init(&bar, n);
    __syncthreads();
    BODY
}"""


WITH_COPIES = """#include <cuda_awbarrier_primitives.h>
#include <cuda_pipeline.h>
extern "C" __global__ void k(const float* a, float* out) {
    __shared__ __mbarrier_t bar;
    __shared__ float s[64];
    int t = threadIdx.x, at = blockIdx.x * 64;
    if (t == 0) __mbarrier_init(&bar, COUNT);
    __syncthreads();
    __pipeline_memcpy_async(&s[t], &a[at + t], 4);
    TELL
    ARRIVE
    WAIT
    out[at + t] = s[63 - t];
}"""
TOLD = {"COUNT": "64", "TELL": "__pipeline_arrive_on(&bar);",
        "ARRIVE": "auto token=__mbarrier_arrive(&bar);",
        "WAIT": "while(!__mbarrier_test_wait(&bar,token));"}
NOINC = {"TELL": 'asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"::"r"'
         '((unsigned)__cvta_generic_to_shared(&bar)));', "COUNT": "128"}


def test_copies_that_arrive_at_an_mbarrier():
    for changes in ({}, NOINC):
        options = tuple(f"-D{k}={v}" for k, v in (TOLD | changes).items())
        assert reversed_by_mbarrier(WITH_COPIES, options=options).warnings == []


@pytest.mark.parametrize("changes", [{"TELL": ""}, {"WAIT": ""}])
def test_copies_that_nobody_waits_for(changes):
    a = np.arange(64, dtype=np.float32)
    error = error_of(WITH_COPIES, 1, 64, a, np.zeros_like(a),
                     options=tuple(f"-D{k}={v}" for k, v in (TOLD | changes).items()))
    assert error.kind == "race" and error.line == 13
    assert "is read in line 13 before its cp.async in line 9 was waited for" in str(error)


def test_cuda_barrier():
    source = """#include <cuda/barrier>
#include <cuda/std/utility>
extern "C" __global__ void k(const float* a, float* out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ float s[64];
    int t = threadIdx.x, at = blockIdx.x * 64;
    if (t == 0) init(&bar, blockDim.x);
    __syncthreads();
    for (int i = 0; i < 3; i++) {
        s[t] = a[at + t];
        auto token = bar.arrive();
        bar.wait(cuda::std::move(token));
        out[at + t] = s[63 - t];
        bar.arrive_and_wait();
    }
    if (t < 32) {
        bar.arrive_and_drop();
        return;
    }
    s[t] = t;
    bar.arrive_and_wait();
    out[at + t] += s[95 - t] - (95 - t);
}"""
    reversed_by_mbarrier(source)


PRODUCER = """#include <cuda/barrier>
extern "C" __global__ void k(const float* a, float* out, bool wait) {
    using barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ barrier full[2], empty[2];
    __shared__ float s[2][32];
    int t = threadIdx.x, at = blockIdx.x * 64;
    if (t < 2) { init(&full[t], 64); init(&empty[t], 64); }
    __syncthreads();
    if (t < 32)                                             // a warp that produces
        for (int i = 0; i < 8; i++) {
            empty[i % 2].arrive_and_wait();
            s[i % 2][t] = a[at + (i * 32 + t) % 64];
            (void)full[i % 2].arrive();
        }
    else {                                                  // and one that consumes
        for (int i = 0; i < 2; i++) (void)empty[i].arrive();
        for (int i = 0; i < 8; i++) {
            if (wait) full[i % 2].arrive_and_wait();
            out[at + 63 - ((i * 32 + t - 32) ^ 31) % 64] = s[i % 2][63 - t];
            (void)empty[i % 2].arrive();
        }
    }
}"""


def forgetting(source, n, says_line, options=()):
    """A kernel that reverses blocks of 64 when it waits -> the error when it does not."""
    kernel = simulator.RawKernel(source, "k", options, path="kernel.cu")
    a = np.arange(2 * 64, dtype=np.float32)
    out = np.zeros_like(a)
    with simulator.trace() as t:
        kernel(2, n, (a, out, True))
    assert np.array_equal(out.reshape(2, 64), a.reshape(2, 64)[:, ::-1])
    assert t.launches[0].warnings == []
    with pytest.raises(simulator.KernelError) as caught:
        kernel(2, n, (a, out, False))
    assert caught.value.kind in ("race", "uninitialised") and caught.value.line == says_line


def test_producer_and_consumer():
    forgetting(PRODUCER, 64, 19)


PIPELINE = """#include <cuda/pipeline>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(const float* a, float* out, bool wait) {
    __shared__ __align__(16) float s[2][64];
    auto block = cg::this_thread_block();
    MAKE
    int t = threadIdx.x, at = blockIdx.x * 64;
    auto fetch = [&](int i) {
        pipe.producer_acquire();
        COPY
        pipe.producer_commit();
    };
    fetch(0);
    for (int i = 0; i < 4; i++) {
        if (i < 3) fetch(i + 1);
        if (wait) { CONSUME }
        SYNC
        out[at + t] = s[i % 2][63 - t];
        SYNC
        pipe.consumer_release();
    }
}"""
OF_A_BLOCK = {
    "MAKE": "__shared__ cuda::pipeline_shared_state<cuda::thread_scope_block,2> state; "
            "auto pipe=cuda::make_pipeline(block,&state);", "SYNC": "",
    "COPY": "cuda::memcpy_async(block,s[i%2],a+at,cuda::aligned_size_t<16>(256),pipe);",
    "CONSUME": "pipe.consumer_wait();"}
OF_A_THREAD = OF_A_BLOCK | {
    "MAKE": "auto pipe=cuda::make_pipeline();", "SYNC": "__syncthreads();",
    "COPY": "cuda::memcpy_async(&s[i%2][t],a+at+t,cuda::aligned_size_t<4>(4),pipe);",
    "CONSUME": "if(i<3)cuda::pipeline_consumer_wait_prior<1>(pipe);else "
               "cuda::pipeline_consumer_wait_prior<0>(pipe);"}


@pytest.mark.parametrize("parts", [OF_A_BLOCK, OF_A_THREAD])
def test_cuda_pipeline(parts):
    forgetting(PIPELINE, 64, 19, tuple(f"-D{k}={v}" for k, v in parts.items()))
