"""CUDA C features, one a test, each against numpy."""

import numpy as np
import pytest

from lab import simulator

from .conftest import CLOSE, error_of, run


def floats(rng, *shape):
    return rng.random(shape, np.float32)


def test_three_dimensional_grid_and_block():
    out = np.zeros(12 * 60, np.int32)
    run("""extern "C" __global__ void k(int* out) {
        int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        out[b * blockDim.x * blockDim.y * blockDim.z + t] = b * 1000 + t;
    }""", (2, 3, 2), (4, 5, 3), out)
    assert np.array_equal(out.reshape(12, 60), np.arange(12)[:, None] * 1000 + np.arange(60))


def test_grid_stride_loop(rng):
    x = floats(rng, 1000)
    y = x.copy()
    run("""extern "C" __global__ void k(float* x, int n) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
            x[i] *= 2.0f;
    }""", 3, 64, y, 1000)
    assert np.array_equal(y, 2 * x)


def test_float4(rng):
    x, y = floats(rng, 1024), np.zeros(1024, np.float32)
    launch = run("""extern "C" __global__ void k(const float4* a, float4* b) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        float4 v = a[i];
        v.x *= 2; v.y += 1; v.z = -v.z; v.w = sqrtf(v.w);
        b[i] = v;
    }""", 4, 64, x, y)
    a = x.reshape(-1, 4)
    assert np.allclose(y.reshape(-1, 4), np.stack([a[:, 0] * 2, a[:, 1] + 1, -a[:, 2],
                                                   np.sqrt(a[:, 3])], 1), **CLOSE)
    assert launch.sectors_per_request(op="load") == 16


def test_static_and_dynamic_shared_memory(rng):
    x, y = floats(rng, 256), np.zeros(1, np.float32)
    run("""extern __shared__ float s[];
    extern "C" __global__ void k(const float* a, float* b, int n) {
        __shared__ float scale;
        int t = threadIdx.x;
        if (t == 0) scale = 3.0f;
        s[t] = a[t];
        __syncthreads();
        for (int o = n / 2; o > 0; o >>= 1) {
            if (t < o) s[t] += s[t + o];
            __syncthreads();
        }
        if (t == 0) b[0] = s[0] * scale;
    }""", 1, 256, x, y, 256, shared_mem=1024)
    assert np.allclose(y, 3 * x.sum(), rtol=1e-5)


def test_template_by_name_expression(rng):
    x, y = rng.random(64), np.zeros(64)
    run("""template <typename T, int N> __global__ void scale(const T* a, T* b) {
        b[threadIdx.x] = a[threadIdx.x] * N;
    }""", 1, 64, x, y, name="scale<double, 7>")
    assert np.array_equal(y, 7 * x)


def test_constant_memory_and_struct_by_value():
    y = np.zeros(32, np.float32)
    p = np.array([(7, (1, 2, 3))], np.dtype([("n", "i4"), ("s", "f4", 3)]))[0]
    run("""struct P { int n; float s[3]; };
    __constant__ float w[4] = {1, 2, 3, 4};
    extern "C" __global__ void k(float* b, P p) {
        b[threadIdx.x] = w[threadIdx.x & 3] * p.s[1] + p.n;
    }""", 1, 32, y, p)
    assert np.array_equal(y, np.tile([1, 2, 3, 4], 8) * 2.0 + 7)


def test_local_array_with_a_dynamic_index(rng):
    x, y = floats(rng, 64), np.zeros(64, np.float32)
    run("""extern "C" __global__ void k(const float* a, float* b, int n) {
        float v[8];
        for (int i = 0; i < 8; i++) v[i] = a[threadIdx.x] * i;
        b[threadIdx.x] = v[(threadIdx.x * n) & 7];
    }""", 1, 64, x, y, 5)
    assert np.allclose(y, x * (np.arange(64) * 5 & 7), **CLOSE)


@pytest.mark.parametrize("call, function", [
    ("sinf(x * 100.f)", lambda x: np.sin(x * np.float32(100))), ("cosf(x)", np.cos),
    ("expf(x)", np.exp), ("logf(x + .1f)", lambda x: np.log(x + np.float32(.1))),
    ("powf(x, 1.5f)", lambda x: x**1.5), ("tanhf(x)", np.tanh),
    ("rsqrtf(x)", lambda x: 1 / np.sqrt(x)),
    ("x / (x + 1.f)", lambda x: x / (x + 1)), ("exp2f(x)", np.exp2), ("log2f(x)", np.log2),
    ("erff(x)", None), ("floorf(x * 9)", lambda x: np.floor(x * 9)), ("fabsf(-x)", np.abs),
    ("fmodf(x * 10, 3.f)", lambda x: np.fmod(x * 10, np.float32(3))),
    ("__expf(x)", np.exp), ("__fdividef(x, 3.f)", lambda x: x / 3),
])
def test_math_library(rng, call, function):
    x, y = floats(rng, 64) + np.float32(0.01), np.zeros(64, np.float32)
    run(f"""extern "C" __global__ void k(const float* a, float* b) {{
        float x = a[threadIdx.x];
        b[threadIdx.x] = {call};
    }}""", 1, 64, x, y)
    if function is None:
        from math import erf
        function = np.vectorize(erf)
    assert np.allclose(y, function(x.astype(np.float64)), rtol=2e-5, atol=3e-6)


def test_doubles_64_bit_integers_and_switch(rng):
    x, y = rng.random(28), np.zeros(28)
    run("""extern "C" __global__ void k(const double* a, double* b, long long n) {
        long long i = threadIdx.x;
        double v = a[i];
        switch (i % 7) {
            case 0: v += 1; break;
            case 1: v *= 2; break;
            case 2: v = sqrt(v); break;
            case 3: v = v / 3; break;
            case 4: v = -v; break;
            case 5: v = exp(v); break;
            default: v = floor(v * 10);
        }
        b[i] = v + (double)((i * n) / 3);
    }""", 1, 28, x, y, 11)
    f = [lambda v: v + 1, lambda v: v * 2, np.sqrt, lambda v: v / 3, lambda v: -v, np.exp,
         lambda v: np.floor(v * 10)]
    assert np.allclose(y, [f[i % 7](x[i]) + i * 11 // 3 for i in range(28)], rtol=1e-14)


def test_bytes_and_dot_product_of_bytes(rng):
    a = rng.integers(0, 100, 32).astype(np.uint8)
    b, c = np.zeros(32, np.uint8), np.zeros(32, np.int32)
    run("""extern "C" __global__ void k(const unsigned char* a, unsigned char* b, int* c) {
        int i = threadIdx.x;
        b[i] = a[i] / 2 + a[(i + 1) & 31] % 3;
        c[i] = __dp4a(((const int*)a)[i & 7], ((const int*)a)[(i + 1) & 7], 1);
    }""", 1, 32, a, b, c)
    assert np.array_equal(b, a // 2 + np.roll(a, -1) % 3)
    words = a.reshape(8, 4).astype(int)
    dots = (words * np.roll(words, -1, 0)).sum(1) + 1
    assert np.array_equal(c, np.tile(dots, 4))


def test_half2(rng):
    x, y = rng.random(128).astype(np.float16), np.zeros(128, np.float16)
    run("""#include <cuda_fp16.h>
    extern "C" __global__ void k(const half2* a, half2* b) {
        int i = threadIdx.x;
        b[i] = __hfma2(a[i], a[i], __float2half2_rn(1.f));
    }""", 1, 64, x, y)
    assert np.array_equal(y, (x.astype(np.float64)**2 + 1).astype(np.float16))


def test_bfloat16_as_tensor_and_as_uint16():
    torch = pytest.importorskip("torch")
    x, y = torch.rand(64).bfloat16(), torch.zeros(64).bfloat16()
    source = """#include <cuda_bf16.h>
    extern "C" __global__ void k(const __nv_bfloat16* a, __nv_bfloat16* b) {
        int i = threadIdx.x;
        b[i] = __float2bfloat16(__bfloat162float(a[i]) * 2.f + expf(__bfloat162float(a[i])));
    }"""
    run(source, 1, 64, x, y)
    assert torch.allclose(y.float(), x.float() * 2 + x.float().exp(), rtol=1e-2)
    bits = np.zeros(64, np.uint16)
    run(source, 1, 64, x.view(torch.uint16).numpy(), bits)
    assert np.array_equal(bits, y.view(torch.uint16).numpy())


def test_warp_shuffles_vote_and_reduction(rng):
    x, out = floats(rng, 1 << 15), np.zeros(1, np.float32)
    run("""extern "C" __global__ void k(const float* x, float* out, int n) {
        __shared__ float w[32];
        float s = 0;
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
            s += x[i];
        for (int o = 16; o; o >>= 1) s += __shfl_down_sync(0xffffffff, s, o);
        if ((threadIdx.x & 31) == 0) w[threadIdx.x >> 5] = s;
        __syncthreads();
        if (threadIdx.x < 32) {
            s = threadIdx.x < (blockDim.x >> 5) ? w[threadIdx.x] : 0.f;
            for (int o = 16; o; o >>= 1) s += __shfl_down_sync(0xffffffff, s, o);
            if (threadIdx.x == 0) atomicAdd(out, s);
        }
    }""", 16, 256, x, out, len(x))
    assert np.allclose(out, x.sum(), rtol=1e-4)


def test_ballot_match_and_redux(rng):
    x = floats(rng, 64)
    rank = np.zeros(64, np.uint32)
    run("""extern "C" __global__ void k(const float* a, unsigned* b) {
        int i = threadIdx.x;
        unsigned m = __ballot_sync(0xffffffffu, a[i] > 0.5f);
        b[i] = __popc(m & ((1u << (i & 31)) - 1));
    }""", 1, 64, x, rank)
    over = (x > 0.5).reshape(2, 32).astype(int)
    assert np.array_equal(rank.reshape(2, 32), np.cumsum(over, 1) - over)
    values, out = np.arange(32, dtype=np.int32) // 4, np.zeros(32, np.int32)
    run("""extern "C" __global__ void k(const int* a, int* b) {
        int i = threadIdx.x;
        b[i] = __reduce_add_sync(0xffffffffu, a[i]) + __popc(__match_any_sync(0xffffffffu, a[i]));
    }""", 1, 32, values, out)
    assert (out == values.sum() + 4).all()


def test_shared_and_global_atomics(rng):
    data, counts = rng.integers(0, 16, 1 << 14).astype(np.int32), np.zeros(16, np.int32)
    run("""extern "C" __global__ void k(const int* x, int* h, int n) {
        __shared__ int s[16];
        if (threadIdx.x < 16) s[threadIdx.x] = 0;
        __syncthreads();
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) atomicAdd(&s[x[i]], 1);
        __syncthreads();
        if (threadIdx.x < 16) atomicAdd(&h[threadIdx.x], s[threadIdx.x]);
    }""", 64, 256, data, counts, len(data))
    assert np.array_equal(counts, np.bincount(data, minlength=16))


def test_atomic_maximum_of_floats_by_compare_and_swap(rng):
    x, out = floats(rng, 1024), np.zeros(1, np.float32)
    run("""__device__ float amax(float* p, float v) {
        int* q = (int*)p;
        int o = *q, a;
        do {
            a = o;
            o = atomicCAS(q, a, __float_as_int(fmaxf(v, __int_as_float(a))));
        } while (a != o);
        return __int_as_float(o);
    }
    extern "C" __global__ void k(const float* a, float* b) {
        amax(b, a[blockIdx.x * 256 + threadIdx.x]);
    }""", 4, 256, x, out)
    assert out[0] == x.max()


def test_atomic_add_of_half2():
    out = np.zeros(2, np.float16)
    run("""#include <cuda_fp16.h>
    extern "C" __global__ void k(half2* b) { atomicAdd(&b[0], __floats2half2_rn(1.f, 2.f)); }""",
        1, 32, out)
    assert out.tolist() == [32, 64]


def test_spin_lock_between_warps():
    lock, count = np.zeros(1, np.int32), np.zeros(1, np.int32)
    run("""extern "C" __global__ void k(int* lock, int* c) {
        if ((threadIdx.x & 31) == 0) {
            while (atomicCAS(lock, 0, 1) != 0);
            c[0] = c[0] + 1;
            __threadfence();
            atomicExch(lock, 0);
        }
    }""", 2, 128, lock, count)
    assert count[0] == 8


@pytest.mark.parametrize("setter", [0, 1, 2])
def test_no_warp_starves_beside_two_that_spin(setter):
    """Three warps at three places: two wait for the third."""
    y = np.zeros(96, np.int32)
    with simulator.budget(20_000):
        run("""extern "C" __global__ void k(int* y, int setter) {
        __shared__ volatile int flag;
        if (threadIdx.x == 0) flag = 0;
        __syncthreads();
        int role = (threadIdx.x / 32 - setter + 3) % 3;
        if (PLACE0) { ROLE0; y[threadIdx.x] = 1; }
        else if (PLACE1) { ROLE1; y[threadIdx.x] = 2; }
        else { ROLE2; y[threadIdx.x] = 3; }
    }""".replace(f"ROLE{setter}", "for (int i = 0; i < 9; i++) y[threadIdx.x] = i; "
                 "if (threadIdx.x % 32 == 0) flag = 1").replace("ROLE0", "while (!flag)").replace(
        "ROLE1", "while (!flag)").replace("ROLE2", "while (!flag)").replace(
        "PLACE0", "threadIdx.x < 32").replace("PLACE1", "threadIdx.x < 64"), 1, 96, y, setter,
            checks=False)
    assert y.reshape(3, 32)[:, 0].tolist() == [1, 2, 3]


def test_functions_that_are_not_inlined(rng):
    x, y = floats(rng, 32), np.zeros(32, np.float32)
    run("""__noinline__ __device__ float f(float a, int b) { return b > 0 ? a * b : a - b; }
    extern "C" __global__ void k(const float* a, float* b) {
        int i = threadIdx.x;
        b[i] = f(a[i], i - 8) + f(a[i], 3);
    }""", 1, 32, x, y)
    i = np.arange(32)
    assert np.allclose(y, np.where(i > 8, x * (i - 8), x - (i - 8)) + x * 3, **CLOSE)


def test_recursion():
    out = np.zeros(10, np.int32)
    run("""__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    extern "C" __global__ void k(int* b) { b[threadIdx.x] = fib(threadIdx.x); }""", 1, 10, out)
    assert out.tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]


def test_barrier_with_count_and_or():
    out = np.zeros(64, np.int32)
    run("""extern "C" __global__ void k(int* b) {
        int c = __syncthreads_count(threadIdx.x % 3 == 0);
        int o = __syncthreads_or(threadIdx.x == 5), a = __syncthreads_and(threadIdx.x < 63);
        b[threadIdx.x] = c + 100 * (o != 0) + 1000 * (a != 0);
    }""", 1, 64, out)
    assert (out == 122).all()


def test_printf_and_its_buffer(capsys):
    run("""extern "C" __global__ void k(float* a) {
        printf("thread %d of 100%%: %5.2f %s %lld\\n", threadIdx.x, a[0], "end", 1LL << 40);
    }""", 1, 2, np.array([1.5], np.float32))
    assert capsys.readouterr().out == "".join(
        f"thread {i} of 100%:  1.50 end {1 << 40}\n" for i in range(2))


def test_device_variable_survives_a_launch():
    module = simulator.RawModule("""__device__ int count;
    extern "C" __global__ void add() { atomicAdd(&count, 1); }
    extern "C" __global__ void get(int* out) { *out = count; }""")
    out = np.zeros(1, np.int32)
    for _ in range(3):
        module.get("add")(1, 32, ())
    module.get("get")(1, 1, (out,))
    assert out[0] == 96


def test_clock_goes_forward():
    out = np.zeros(1, np.int64)
    run("""extern "C" __global__ void k(long long* t) {
        long long c = clock64();
        __threadfence();
        t[0] = clock64() - c;
    }""", 1, 1, out)
    assert out[0] > 0


def test_asynchronous_copy(rng):
    x, y = floats(rng, 256), np.zeros(256, np.float32)
    source = """#include <cuda_pipeline.h>
    extern "C" __global__ void k(const float4* a, float4* b) {
        __shared__ float4 s[64];
        int i = threadIdx.x;
        __pipeline_memcpy_async(&s[i], &a[i], 16);
        __pipeline_commit();
        WAIT
        __syncthreads();
        b[i] = s[63 - i];
    }"""
    run(source, 1, 64, x, y, options=("-DWAIT=__pipeline_wait_prior(0);",))
    assert np.array_equal(y.reshape(-1, 4), x.reshape(-1, 4)[::-1])
    with pytest.raises(simulator.KernelError) as caught:
        run(source, 1, 64, x, y, options=("-DWAIT=",))
    assert caught.value.kind == "race"


def test_cooperative_groups(rng):
    x = floats(rng, 64)
    y = x.copy()
    run("""#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(float* a) {
        auto b = cg::this_thread_block();
        auto w = cg::tiled_partition<32>(b);
        float v = a[b.thread_rank()];
        for (int o = 16; o; o >>= 1) v += w.shfl_xor(v, o);
        b.sync();
        a[threadIdx.x] = v;
    }""", 1, 64, y)
    assert np.allclose(y.reshape(2, 32), x.reshape(2, 32).sum(1, keepdims=True), **CLOSE)


def test_cub_block_reduce(rng):
    x, y = floats(rng, 128), np.zeros(1, np.float32)
    run("""#include <cub/block/block_reduce.cuh>
    extern "C" __global__ void k(const float* a, float* b) {
        typedef cub::BlockReduce<float, 128> R;
        __shared__ typename R::TempStorage t;
        float s = R(t).Sum(a[threadIdx.x]);
        if (threadIdx.x == 0) b[0] = s;
    }""", 1, 128, x, y)
    assert np.allclose(y, x.sum(), **CLOSE)


def test_inline_mma(rng):
    a, b = (rng.random((64, 64)).astype(np.float16) for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    run("""#include <cuda_fp16.h>
    extern "C" __global__ void k(const half* A, const half* B, float* C, int n) {
        int g = threadIdx.x >> 2, q = threadIdx.x & 3;
        float c[4] = {0, 0, 0, 0};
        const half* a = A + blockIdx.y * 16 * n;
        const half* b = B + blockIdx.x * 8 * n;             // B as (N, K)
        for (int k = 0; k < n; k += 16) {
            unsigned a0 = *(const unsigned*)&a[g * n + k + 2 * q];
            unsigned a1 = *(const unsigned*)&a[(g + 8) * n + k + 2 * q];
            unsigned a2 = *(const unsigned*)&a[g * n + k + 2 * q + 8];
            unsigned a3 = *(const unsigned*)&a[(g + 8) * n + k + 2 * q + 8];
            unsigned b0 = *(const unsigned*)&b[g * n + k + 2 * q];
            unsigned b1 = *(const unsigned*)&b[g * n + k + 2 * q + 8];
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},"
                         "{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
        }
        float* o = C + blockIdx.y * 16 * n + blockIdx.x * 8;
        o[g * n + 2 * q] = c[0];
        o[g * n + 2 * q + 1] = c[1];
        o[(g + 8) * n + 2 * q] = c[2];
        o[(g + 8) * n + 2 * q + 1] = c[3];
    }""", (8, 4), 32, a, np.ascontiguousarray(b.T), c, 64)
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-3)


ARCH = 'extern "C" __global__ void k(int* y) { y[0] = __CUDA_ARCH__; }'
SHARED = 'extern "C" __global__ void k() { extern __shared__ char s[]; s[threadIdx.x] = 0; }'


def test_a_capability_for_some_launches(tmp_path):
    kernel = simulator.RawKernel(ARCH, "k")
    seen = np.zeros(1, np.int32)
    simulator.cache_dir(tmp_path)
    for capability, arch in ((80, 800), (89, 890), (80, 800)):
        with simulator.capability(capability):
            kernel(1, 1, (seen,))
        assert seen[0] == arch
    simulator.cache_dir(None)
    run(SHARED, 1, 32, shared_mem=163 * 1024)
    with simulator.capability(89):
        run(SHARED, 1, 32, shared_mem=99 * 1024)
        says = error_of(SHARED, 1, 32, shared_mem=99 * 1024 + 16)
    assert "a block can have 101376" in str(says)


def test_a_capability_where_triton_has_no_driver():
    """After `deactivate_triton` Triton has a driver only where there is a GPU."""
    simulator.deactivate_triton()
    with simulator.capability(89):
        assert run(SHARED, 1, 32, shared_mem=99 * 1024) is not None


LOOP = """__device__ __forceinline__ int doublings(int x, int limit) {
    int n = 0;
    asm volatile("{ .reg .pred more; again: setp.ge.s32 more, %1, %2; @more bra done;"
                 " { again: add.s32 %1, %1, %1; add.s32 %0, %0, 1; } bra again; done: }"
                 : "+r"(n), "+r"(x) : "r"(limit));
    return n;
}
extern "C" __global__ void k(int* y) {
    y[0] = doublings(y[0], 100);
    y[1] = doublings(y[1], 1000);
}"""


def test_a_label_in_braces_belongs_to_its_own_copy():
    y = np.array([3, 1], np.int32)
    with simulator.budget(1000):
        run(LOOP, 1, 1, y)
    assert y.tolist() == [6, 10]


def test_a_table_of_labels_in_braces():
    source = """extern "C" __global__ void k(int* y) {
        for (int i = 0; i < 2; i++)
            asm volatile("{ t: .branchtargets a, b; brx.idx %1, t;"
                         " a: mov.s32 %0, 10; bra c; b: mov.s32 %0, 20; c: }"
                         : "+r"(y[i]) : "r"(1 - i));
        asm volatile("{ t: .branchtargets b, a; brx.idx %1, t;"
                     " a: mov.s32 %0, 30; bra c; b: mov.s32 %0, 40; c: }" : "+r"(y[2]) : "r"(1));
    }"""
    y = np.zeros(3, np.int32)
    run(source, 1, 1, y)
    assert y.tolist() == [20, 10, 30]


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_bmsk_by_the_manuals_text(mode):
    """PTX ISA, bmsk: start and length below, at and above 32."""
    y = np.zeros((40, 40), np.uint32)
    run("""extern "C" __global__ void k(unsigned* y) {
        asm("bmsk.MODE.b32 %0, %1, %2;" : "=r"(y[blockIdx.x * 40 + threadIdx.x])
            : "r"(blockIdx.x), "r"(threadIdx.x));
    }""".replace("MODE", mode), 40, 40, y)
    for a in range(40):
        for b in range(40):
            start, length = (a, b) if mode == "clamp" else (a & 31, b & 31)
            assert y[a, b] == sum(1 << i for i in range(start, min(start + length, 32)))
