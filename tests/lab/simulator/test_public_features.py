"""What public CUDA repositories use of the language, its headers and its intrinsics."""

import numpy as np
import pytest

from .conftest import CLOSE, error_of, run


def floats(rng, *shape):
    return rng.random(shape, np.float32)


# ---- the language

def test_function_pointers_in_a_table(rng):
    x, y = floats(rng, 64), np.zeros(64, np.float32)
    run("""typedef float (*Function)(float);
    __device__ __noinline__ float twice(float x) { return 2 * x; }
    __device__ __noinline__ float square(float x) { return x * x; }
    __device__ __noinline__ float next(float x) { return x + 1; }
    __device__ Function table[] = {twice, square, next};
    extern "C" __global__ void k(const float* x, float* y) {
        y[threadIdx.x] = table[threadIdx.x % 3](x[threadIdx.x]);
    }""", 1, 64, x, y)
    assert np.array_equal(y, np.choose(np.arange(64) % 3, [2 * x, x * x, x + 1]))


def test_a_function_pointer_as_an_argument(rng):
    x, y = floats(rng, 32), np.zeros(32, np.float32)
    run("""__device__ __noinline__ float half_of(float x) { return x / 2; }
    __device__ __noinline__ float apply(float (*f)(float), float x) { return f(f(x)); }
    extern "C" __global__ void k(const float* x, float* y, int n) {
        float (*f)(float) = n > 3 ? half_of : nullptr;
        y[threadIdx.x] = apply(f, x[threadIdx.x]);
    }""", 1, 32, x, y, 5)
    assert np.array_equal(y, x / 4)


def test_calls_with_a_large_struct_and_with_numbers(rng):
    """Both calls name their parameters param0, param1."""
    x, y = floats(rng, 64), np.zeros(64, np.float32)
    run("""struct Large { float v[12]; };
    __device__ __noinline__ float pick(Large large, int i) { return large.v[i]; }
    __device__ __noinline__ float add(int i, float x) { return i + x; }
    extern "C" __global__ void k(const float* x, float* y) {
        Large large;
        for (int i = 0; i < 12; i++) large.v[i] = x[threadIdx.x] * i;
        y[threadIdx.x] = add(threadIdx.x, pick(large, threadIdx.x % 12));
    }""", 1, 64, x, y)
    assert np.allclose(y, x * (np.arange(64) % 12) + np.arange(64), **CLOSE)


def test_a_null_function_pointer_is_an_error():
    error = error_of("""extern "C" __global__ void k(float* y, int n) {
        __shared__ float (*f[4])(float);
        f[threadIdx.x & 3] = nullptr;
        __syncthreads();
        y[threadIdx.x] = f[n](1.0f);
    }""", 1, 32, np.zeros(32, np.float32), 2)
    assert error.kind == "out_of_bounds" and error.line == 5


def test_virtual_functions(rng):
    x, y = floats(rng, 64), np.zeros(64, np.float32)
    run("""struct Shape {
        __device__ virtual float area() const = 0;
    };
    struct Square : Shape {
        float side;
        __device__ Square(float side) : side(side) {}
        __device__ __noinline__ float area() const override { return side * side; }
    };
    struct Line : Shape {
        __device__ __noinline__ float area() const override { return 0.5f; }
    };
    __device__ __noinline__ float measure(const Shape* shape) { return shape->area(); }
    extern "C" __global__ void k(const float* x, float* y) {
        Square square(x[threadIdx.x]);
        Line line;
        y[threadIdx.x] = measure(threadIdx.x & 1 ? (const Shape*)&line : &square);
    }""", 1, 64, x, y)
    assert np.allclose(y, np.where(np.arange(64) & 1, np.float32(0.5), x * x), **CLOSE)


def test_lambdas_and_functors(rng):
    x, y = floats(rng, 64), np.zeros(64, np.float32)
    run("""template <typename F> __device__ float twice(F f, float x) { return f(f(x)); }
    struct Affine {
        float a, b;
        __device__ float operator()(float x) const { return a * x + b; }
    };
    extern "C" __global__ void k(const float* x, float* y, float shift) {
        auto add = [=](float v) { return v + shift; };
        y[threadIdx.x] = twice(Affine{2.0f, 1.0f}, twice(add, x[threadIdx.x]));
    }""", 1, 64, x, y, 3.0)
    assert np.allclose(y, 4 * (x + 6) + 3, **CLOSE)


def test_unions_and_bit_fields(rng):
    x, y = floats(rng, 64), np.zeros((64, 3), np.uint32)
    run("""union Bits { float f; unsigned u; unsigned short h[2]; };
    struct Ieee { unsigned fraction : 23; unsigned exponent : 8; unsigned sign : 1; };
    extern "C" __global__ void k(const float* x, unsigned* y) {
        Bits bits;
        bits.f = -x[threadIdx.x];
        Ieee parts;
        memcpy(&parts, &bits.u, 4);
        y[3 * threadIdx.x] = bits.h[threadIdx.x & 1];
        y[3 * threadIdx.x + 1] = parts.exponent | parts.sign << 8;
        parts.exponent = 127;
        memcpy(&y[3 * threadIdx.x + 2], &parts, 4);
    }""", 1, 64, x, y)
    bits = (-x).view(np.uint32)
    half = np.arange(64) & 1
    assert np.array_equal(y[:, 0], bits >> 16 * half.astype(np.uint32) & 0xFFFF)
    assert np.array_equal(y[:, 1], bits >> 23)
    assert np.array_equal(y[:, 2], bits & 0x807FFFFF | 127 << 23)


def test_several_arrays_in_one_extern_buffer(rng):
    x, y = floats(rng, 64), np.zeros(64)
    run("""extern __shared__ unsigned char buffer[];
    extern "C" __global__ void k(const float* x, double* y, int n) {
        double* wide = reinterpret_cast<double*>(buffer);
        float* narrow = reinterpret_cast<float*>(wide + n);
        short* index = reinterpret_cast<short*>(narrow + n);
        int t = threadIdx.x;
        narrow[t] = x[t], index[t] = n - 1 - t;
        wide[t] = 10.0 * t;
        __syncthreads();
        y[t] = wide[index[t]] + narrow[index[t]];
    }""", 1, 64, x, y, 64, shared_mem=64 * 14)
    assert np.array_equal(y, (10.0 * np.arange(64) + x)[::-1])


def test_launch_bounds_unroll_restrict_and_ldg(rng):
    x, y = floats(rng, 8, 64), np.zeros(64, np.float32)
    run("""template <int ROWS>
    __global__ void __launch_bounds__(64, 2) k(const float* __restrict__ x, float* __restrict__ y) {
        float sum = 0;
        #pragma unroll 4
        for (int i = 0; i < ROWS; ++i) sum += __ldg(&x[i * blockDim.x + threadIdx.x]);
        float4 v = __ldg(reinterpret_cast<const float4*>(x) + threadIdx.x / 4);
        y[threadIdx.x] = sum + (&v.x)[threadIdx.x % 4];
    }""", 1, 64, x, y, name="k<8>")
    assert np.allclose(y, x.sum(0) + x[0], **CLOSE)


HEADERS = ["cuda_runtime.h", "device_launch_parameters.h", "cuda.h", "cassert", "cstdio", "cstdint",
           "cmath", "cfloat", "climits", "stdio.h", "stdlib.h", "stdint.h", "assert.h", "float.h",
           "limits.h", "math.h", "cuda_fp16.h", "cuda_bf16.h", "mma.h", "cuda_pipeline.h",
           "vector_types.h", "type_traits", "limits", "cuda/std/cstdint"]


@pytest.mark.parametrize("header", HEADERS)
def test_headers_that_kernels_include(header):
    y = np.zeros(32, np.int32)
    run(f"""#include <{header}>
    extern "C" __global__ void k(int* y) {{ y[threadIdx.x] = threadIdx.x; }}""", 1, 32, y)
    assert np.array_equal(y, np.arange(32))


@pytest.mark.parametrize("own", ["", "typedef unsigned int uint;", "using uint = unsigned;",
                                 "#define uint unsigned"])
def test_uint_is_known_and_may_be_declared_again(own):
    y = np.zeros(32, np.uint32)
    run(own + """
    extern "C" __global__ void k(uint* y) { uint t = threadIdx.x; y[t] = t - 1; }""", 1, 32, y)
    assert np.array_equal(y, np.arange(32, dtype=np.uint32) - np.uint32(1))


def test_assert_names_its_line():
    source = """extern "C" __global__ void k(int* y, int n) {
        assert(threadIdx.x < n);
        y[threadIdx.x] = 1;
    }"""
    run("#include <assert.h>\n" + source, 1, 32, np.zeros(32, np.int32), 32)
    error = error_of("#include <assert.h>\n" + source, 1, 32, np.zeros(32, np.int32), 31)
    assert error.line == 3 and error.thread == (31, 0, 0)


def test_printf_of_every_type(capsys):
    run(r"""extern "C" __global__ void k(float x) {
        printf("%d %5.2f|%-4s|%c %x %lld %%\n", -3, x, "ab", 'z', 255u, 1LL << 40);
    }""", 1, 1, 2.5)
    assert capsys.readouterr().out == f"-3  2.50|ab  |z ff {1 << 40} %\n"


def test_printf_of_texts_of_every_memory_and_of_widths_among_the_arguments(capsys):
    n = np.zeros(2, np.int32)
    run(r"""extern "C" __global__ void k(int* n, char* none) {
        __shared__ char s[3];
        char own[3] = {(char)('a' + threadIdx.x), 'z', 0};
        if (threadIdx.x == 0) { s[0] = 'x'; s[1] = 'y'; s[2] = 0; }
        __syncthreads();
        n[threadIdx.x] = printf("%s|%s|%s|%*d|%-*d|%.*f|%6p|%3c|\n", own, s, none, 4, 7, 3, 8, 2,
                                3.14159, (void*)16, 'q');
    }""", 1, 2, n, None)
    assert capsys.readouterr().out == "".join(
        f"{own}|xy|(null)|   7|8  |3.14|  0x10|  q|\n" for own in ("az", "bz"))
    assert n.tolist() == [11, 11]


def test_printf_of_a_text_that_is_nowhere():
    error = error_of(r"""extern "C" __global__ void k(long long x) {
        printf("%s\n", (char*)x);
    }""", 1, 1, 1 << 46)
    assert error.kind == "out_of_bounds" and "no text lies at 0x400000000000" in str(error)


# ---- atomics

@pytest.mark.parametrize("ctype, dtype", [("float", "f4"), ("double", "f8")])
def test_maximum_by_compare_and_swap(rng, ctype, dtype):
    x = (rng.random(256) - 0.5).astype(dtype)
    y = np.full(4, -np.inf, dtype)
    word, bits = ("int", "int") if dtype == "f4" else ("unsigned long long", "longlong")
    to, back = {"f4": ("__float_as_int", "__int_as_float"),
                "f8": ("__double_as_longlong", "__longlong_as_double")}[dtype]
    run(f"""__device__ void atomic_max({ctype}* place, {ctype} value) {{
        {word}* word = ({word}*)place;
        {word} old = *(volatile {word}*)word, assumed;
        do {{
            assumed = old;
            old = atomicCAS(word, assumed, ({word}){to}(fmax(value, {back}(assumed))));
        }} while (assumed != old);
    }}
    extern "C" __global__ void k(const {ctype}* x, {ctype}* y) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        atomic_max(&y[i % 4], x[i]);
    }}""", 2, 128, x, y)
    assert np.array_equal(y, x.reshape(-1, 4).max(0))


def test_sum_of_halves_by_16_bit_compare_and_swap(rng):
    x, y = rng.integers(0, 4, 64).astype(np.float16), np.zeros(3, np.float16)
    run("""#include <cuda_fp16.h>
    extern "C" __global__ void k(const half* x, half* y) {
        unsigned short* word = reinterpret_cast<unsigned short*>(y + 1);
        unsigned short old = *(volatile unsigned short*)word, assumed;
        do {
            assumed = old;
            half sum = __hadd(__ushort_as_half(assumed), x[threadIdx.x]);
            old = atomicCAS(word, assumed, __half_as_ushort(sum));
        } while (assumed != old);
        atomicAdd(y + 2, x[threadIdx.x]);
    }""", 1, 64, x, y)
    assert np.array_equal(y, [0, x.sum(), x.sum()])


def test_64_bit_atomics():
    y = np.array([0, 0, 2**63 - 1, 0, -1, 0], np.int64)
    run("""typedef unsigned long long u64;
    extern "C" __global__ void k(u64* y) {
        u64 t = threadIdx.x;
        atomicAdd(&y[0], t << 33);
        atomicMax((long long*)&y[1], (long long)(t << 32));
        atomicMin((long long*)&y[2], -(long long)t);
        atomicOr(&y[3], 1ULL << t);
        atomicAnd(&y[4], ~(1ULL << t));
        atomicXor(&y[5], 3ULL << t);
    }""", 1, 64, y)
    xor = 0
    for t in range(64):
        xor ^= 3 << t
    assert [int(v) & 2**64 - 1 for v in y] == [
        2016 << 33, 63 << 32, -63 & 2**64 - 1, 2**64 - 1, 0, xor & 2**64 - 1]


def test_atomics_that_wrap_and_exchange():
    y = np.array([0, 5, 7], np.uint32)
    run("""extern "C" __global__ void k(unsigned* y) {
        atomicInc(&y[0], 9);
        atomicDec(&y[1], 9);
        if (threadIdx.x == 40) atomicExch(&y[2], 11u);
    }""", 1, 64, y)
    assert np.array_equal(y, [64 % 10, (5 - 64) % 10, 11])


def test_atomic_ref_and_fetch_max():
    y = np.zeros(3, np.int32)
    run("""#include <cuda/atomic>
    extern "C" __global__ void k(int* y) {
        cuda::atomic_ref<int, cuda::thread_scope_device> sum(y[0]), most(y[1]);
        sum.fetch_add(threadIdx.x, cuda::memory_order_relaxed);
        most.fetch_max(threadIdx.x);
        cuda::atomic_ref<int, cuda::thread_scope_block> other(y[2]);
        int seen = other.load();
        while (!other.compare_exchange_weak(seen, seen + 2)) {}
    }""", 1, 64, y)
    assert np.array_equal(y, [2016, 63, 128])


# ---- cooperative groups

def test_tiles_of_16_and_8(rng):
    x = rng.integers(0, 100, 64).astype(np.int32)
    y, z = np.zeros(64, np.int32), np.zeros(64, np.int32)
    run("""#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(const int* x, int* y, int* z) {
        cg::thread_block block = cg::this_thread_block();
        auto tile = cg::tiled_partition<16>(block);
        auto small = cg::tiled_partition<8>(tile);
        int v = x[block.thread_rank()];
        for (int o = tile.size() / 2; o > 0; o /= 2) v += tile.shfl_down(v, o);
        y[block.thread_rank()] = tile.shfl(v, 0);
        z[block.thread_rank()] = small.shfl_xor(x[block.thread_rank()], 3)
            + 1000 * small.any(x[block.thread_rank()] > 90) + 10000 * small.meta_group_rank();
        block.sync();
    }""", 1, 64, x, y, z)
    assert np.array_equal(y, np.repeat(x.reshape(-1, 16).sum(1), 16))
    t = np.arange(64)
    assert np.array_equal(z, x[t ^ 3] + 1000 * np.repeat((x > 90).reshape(-1, 8).any(1), 8)
                          + 10000 * (t // 8 % 2))


def test_coalesced_threads_aggregate_an_atomic():
    y, z = np.zeros(1, np.int32), np.full(64, -1, np.int32)
    run("""#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(int* y, int* z) {
        if (threadIdx.x % 3 == 0) {
            cg::coalesced_group active = cg::coalesced_threads();
            int base;
            if (active.thread_rank() == 0) base = atomicAdd(y, (int)active.size());
            z[active.shfl(base, 0) + active.thread_rank()] = threadIdx.x;
        }
    }""", 1, 64, y, z)
    assert y[0] == 22 and np.array_equal(np.sort(z[:22]), np.arange(0, 64, 3))
    assert (z[22:] == -1).all()


def test_reduce_and_scan_of_groups(rng):
    x = rng.integers(0, 100, 64).astype(np.int32)
    y, z, w = (np.zeros(64, np.int32) for _ in range(3))
    run("""#include <cooperative_groups.h>
    #include <cooperative_groups/reduce.h>
    #include <cooperative_groups/scan.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(const int* x, int* y, int* z, int* w) {
        auto warp = cg::tiled_partition<32>(cg::this_thread_block());
        int t = threadIdx.x;
        y[t] = cg::reduce(warp, x[t], cg::greater<int>());
        z[t] = cg::inclusive_scan(warp, x[t], cg::plus<int>());
        w[t] = cg::exclusive_scan(cg::tiled_partition<8>(warp), x[t]);
    }""", 1, 64, x, y, z, w)
    assert np.array_equal(y, np.repeat(x.reshape(2, 32).max(1), 32))
    assert np.array_equal(z, x.reshape(2, 32).cumsum(1).ravel())
    assert np.array_equal(w, (x.reshape(8, 8).cumsum(1) - x.reshape(8, 8)).ravel())


def test_labeled_and_binary_partition():
    y, z = np.zeros(32, np.int32), np.zeros(32, np.int32)
    run("""#include <cooperative_groups.h>
    #include <cooperative_groups/reduce.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(int* y, int* z) {
        auto warp = cg::tiled_partition<32>(cg::this_thread_block());
        auto same = cg::labeled_partition(warp, threadIdx.x % 5);
        y[threadIdx.x] = cg::reduce(same, (int)threadIdx.x, cg::plus<int>());
        auto side = cg::binary_partition(warp, threadIdx.x < 10);
        z[threadIdx.x] = side.size() * 100 + side.thread_rank();
    }""", 1, 32, y, z)
    t = np.arange(32)
    assert np.array_equal(y, [t[t % 5 == i % 5].sum() for i in t])
    assert np.array_equal(z, np.where(t < 10, 1000 + t, 2200 + t - 10))


# ---- intrinsics

def test_funnel_shift_and_byte_permute(rng):
    a, b = rng.integers(0, 2**32, (2, 64), np.uint32)
    y = np.zeros((64, 4), np.uint32)
    run("""extern "C" __global__ void k(const unsigned* a, const unsigned* b, unsigned* y) {
        int t = threadIdx.x;
        y[4 * t] = __funnelshift_l(a[t], b[t], t);
        y[4 * t + 1] = __funnelshift_r(a[t], b[t], t);
        y[4 * t + 2] = __funnelshift_rc(a[t], b[t], t);
        y[4 * t + 3] = __byte_perm(a[t], b[t], 0x0167 + t % 8);
    }""", 1, 64, a, b, y)
    t = np.arange(64, dtype=np.uint64)
    wide = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    assert np.array_equal(y[:, 0], (wide << t % 32 >> np.uint64(32)).astype(np.uint32))
    assert np.array_equal(y[:, 1], (wide >> t % 32).astype(np.uint32))
    assert np.array_equal(y[:, 2], (wide >> np.minimum(t, 32)).astype(np.uint32))
    both = np.concatenate([a.view(np.uint8).reshape(64, 4), b.view(np.uint8).reshape(64, 4)], 1)
    picks = [[0x0167 + i % 8 >> 4 * j & 7 for j in range(4)] for i in range(64)]
    assert np.array_equal(y[:, 3], np.take_along_axis(both, np.array(picks), 1)
                          .copy().view(np.uint32).ravel())


def test_integer_intrinsics(rng):
    a, b = rng.integers(-2**31, 2**31, (2, 64)).astype(np.int32)
    calls = ["__popc(a)", "__clz(a)", "__ffs(a)", "__brev(a)", "__mulhi(a, b)", "__sad(a, b, 3u)",
             "__vadd4(a, b)", "__vmaxs2(a, b)", "__dp4a(a, b, 7)", "__dp2a_lo(a, b, 7)",
             "__umul24(a, b)", "__hadd(a, b)", "__rhadd(a, b)"]
    y = np.zeros((64, len(calls)), np.int32)
    body = " ".join(f"y[{i}] = {call};" for i, call in enumerate(calls))
    run(f"""extern "C" __global__ void k(const int* x, const int* z, int* out) {{
        int a = x[threadIdx.x], b = z[threadIdx.x], *y = out + {len(calls)} * threadIdx.x;
        {body}
    }}""", 1, 64, a, b, y)

    def wrap(v):
        return (v + 2**31) % 2**32 - 2**31
    for i in range(64):
        p, q = int(a[i]), int(b[i])
        u = p % 2**32
        s8, t8 = a[i:i + 1].view(np.int8).astype(int), b[i:i + 1].view(np.int8).astype(int)
        s16, t16 = a[i:i + 1].view(np.int16).astype(int), b[i:i + 1].view(np.int16).astype(int)
        want = [u.bit_count(), 32 - u.bit_length(), (u & -u).bit_length(),
                wrap(int(f"{u:032b}"[::-1], 2)), p * q >> 32, wrap(abs(p - q) + 3),
                int(((s8 + t8) % 256).astype(np.uint8).view(np.int32)[0]),
                int(np.maximum(s16, t16).astype(np.int16).view(np.int32)[0]),
                int(s8 @ t8) + 7, int(s16 @ t8[:2]) + 7,
                wrap((u % 2**24) * (q % 2**24)), p + q >> 1, p + q + 1 >> 1]
        assert list(y[i]) == want, (p, q)


def test_absolute_differences_of_bytes(rng):
    x, y = rng.integers(0, 256, (2, 64, 4)).astype(np.uint8)
    sums, parts, signed = (np.zeros(64, np.uint32) for _ in range(3))
    run("""extern "C" __global__ void k(const unsigned* x, const unsigned* y, unsigned* sums,
                                        unsigned* parts, unsigned* signs) {
        int t = threadIdx.x;
        sums[t] = __vsadu4(x[t], y[t]);
        parts[t] = __vabsdiffu4(x[t], y[t]);
        signs[t] = __vsads4(x[t], y[t]);
    }""", 1, 64, *(a.reshape(-1).view(np.uint32) for a in (x, y)), sums, parts, signed)
    wide = np.abs(x.astype(int) - y)
    assert np.array_equal(sums, wide.sum(1)) and np.array_equal(parts.view(np.uint8), wide.ravel())
    assert np.array_equal(signed, np.abs(x.view(np.int8).astype(int) - y.view(np.int8)).sum(1))


def test_integers_of_128_bits(rng):
    x, y = rng.integers(0, 2**63, (2, 64), np.uint64)
    high, quotient = np.zeros((2, 64), np.uint64)
    run("""extern "C" __global__ void k(const unsigned long long* x, const unsigned long long* y,
                                        unsigned long long* high, unsigned long long* quotient) {
        int t = threadIdx.x;
        unsigned __int128 product = (unsigned __int128)x[t] * y[t];
        high[t] = product >> 64;
        quotient[t] = (product + 1) / (y[t] + 1);
    }""", 1, 64, x, y, high, quotient)
    for a, b, h, q in zip(*(v.tolist() for v in (x, y, high, quotient)), strict=True):
        assert (h, q) == (a * b >> 64, (a * b + 1) // (b + 1))


def test_half2_intrinsics(rng):
    a, b = (rng.random((2, 64, 2)) * 4 - 2).astype(np.float16)
    y = np.zeros((64, 6, 2), np.float16)
    run("""#include <cuda_fp16.h>
    extern "C" __global__ void k(const half2* a, const half2* b, half2* out) {
        half2 p = a[threadIdx.x], q = b[threadIdx.x], *y = out + 6 * threadIdx.x;
        y[0] = __hadd2(p, q);
        y[1] = __hmul2(p, q);
        y[2] = __hfma2(p, q, __float2half2_rn(1.5f));
        y[3] = __hmax2(p, __lowhigh2highlow(q));
        y[4] = __hgt2(p, q);
        y[5] = __floats2half2_rn(__low2float(p) + __high2float(q), __half2float(__habs(p.y)));
    }""", 1, 64, a, b, y)
    exact = a.astype(np.float64) * b + 1.5
    assert np.array_equal(y[:, 0], a + b) and np.array_equal(y[:, 1], a * b)
    assert np.array_equal(y[:, 2], exact.astype(np.float16))
    assert np.array_equal(y[:, 3], np.maximum(a, b[:, ::-1]))
    assert np.array_equal(y[:, 4], (a > b).astype(np.float16))
    assert np.array_equal(y[:, 5, 0], (a[:, 0].astype("f4") + b[:, 1]).astype("f2"))
    assert np.array_equal(y[:, 5, 1], np.abs(a[:, 1]))


def test_clock64_nanosleep_and_globaltimer():
    y = np.zeros(2, np.int64)
    run("""extern "C" __global__ void k(long long* y) {
        long long start = clock64();
        __nanosleep(100);
        y[0] = clock64() - start;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(y[1]));
    }""", 1, 1, y)
    assert y[0] > 0


# ---- cuda::std

def test_cuda_std_containers(rng):
    x, y = floats(rng, 64), np.zeros(64, np.float32)
    run("""#include <cuda/std/array>
    #include <cuda/std/complex>
    #include <cuda/std/span>
    #include <cuda/std/tuple>
    #include <cuda/std/utility>
    #include <cuda/std/limits>
    __device__ float sum(cuda::std::span<const float> values) {
        float total = 0;
        for (float v : values) total += v;
        return total;
    }
    extern "C" __global__ void k(const float* x, float* y) {
        int t = threadIdx.x;
        cuda::std::array<float, 4> four{x[t], 1, 2, 3};
        cuda::std::complex<float> z(x[t], 1);
        z = z * z;
        auto pair = cuda::std::make_tuple(z.real(), z.imag());
        float most = cuda::std::numeric_limits<float>::max();
        for (float v : four) most = v < most ? v : most;
        y[t] = sum({x, 8}) + cuda::std::get<0>(pair) + 2 * cuda::std::get<1>(pair) + most;
    }""", 1, 64, x, y)
    assert np.allclose(y, x[:8].sum() + x * x - 1 + 4 * x + np.minimum(x, 1), **CLOSE)
