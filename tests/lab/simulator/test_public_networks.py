"""Layers of neural networks in the manner of public CUDA repositories."""

import numpy as np

from .conftest import CLOSE, floats, run


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_softmax_one_warp_a_row_online(rng):
    x, y = floats(rng, 10, 100) * 20, np.zeros((10, 100), np.float32)
    run("""#include <cooperative_groups.h>
    #include <cooperative_groups/reduce.h>
    #include <cfloat>
    namespace cg = cooperative_groups;
    struct __align__(8) State { float most, sum; };
    __device__ __forceinline__ State merge(State a, State b) {
        bool greater = a.most > b.most;
        State large = greater ? a : b, small = greater ? b : a;
        large.sum += small.sum * expf(small.most - large.most);
        return large;
    }
    extern "C" __global__ void k(float* out, const float* in, int rows, int columns) {
        auto warp = cg::tiled_partition<32>(cg::this_thread_block());
        int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
        if (row >= rows) return;
        const float* x = in + row * columns;
        State state{-FLT_MAX, 0.0f};
        for (int i = warp.thread_rank(); i < columns; i += warp.size())
            state = merge(state, State{x[i], 1.0f});
        state = cg::reduce(warp, state, merge);
        for (int i = warp.thread_rank(); i < columns; i += warp.size())
            __stcs(out + row * columns + i, expf(__ldcs(x + i) - state.most) / state.sum);
    }""", 3, 128, y, x, 10, 100)
    assert np.allclose(y, softmax(x.astype("f8")), **CLOSE)


def test_layer_norm_by_welford(rng):
    rows, columns = 6, 200
    x, w, b = floats(rng, rows, columns) + 5, floats(rng, columns), floats(rng, columns)
    y, mean, rstd = np.zeros_like(x), np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    run("""struct Welford {
        float mean = 0, m2 = 0;
        int count = 0;
        __device__ void add(float x) {
            count++;
            float d = x - mean;
            mean += d / count;
            m2 += d * (x - mean);
        }
        __device__ void merge(const Welford& o) {
            int n = count + o.count;
            if (n == 0) return;
            float d = o.mean - mean;
            mean += d * o.count / n;
            m2 += o.m2 + d * d * count * o.count / n;
            count = n;
        }
    };
    __device__ Welford down(Welford w, int o) {
        Welford r;
        r.mean = __shfl_down_sync(~0u, w.mean, o);
        r.m2 = __shfl_down_sync(~0u, w.m2, o);
        r.count = __shfl_down_sync(~0u, w.count, o);
        return r;
    }
    extern "C" __global__ void k(float* out, float* mean, float* rstd, const float* in,
                                 const float* weight, const float* bias, int C) {
        __shared__ float shared[4][3];
        __shared__ float m, r;
        const float* x = in + blockIdx.x * C;
        Welford own;
        for (int i = threadIdx.x; i < C; i += blockDim.x) own.add(x[i]);
        for (int o = 16; o > 0; o >>= 1) own.merge(down(own, o));
        if (threadIdx.x % 32 == 0) {
            float* s = shared[threadIdx.x / 32];
            s[0] = own.mean, s[1] = own.m2, s[2] = own.count;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            Welford all;
            for (int i = 0; i < blockDim.x / 32; i++) {
                Welford part;
                part.mean = shared[i][0], part.m2 = shared[i][1], part.count = shared[i][2];
                all.merge(part);
            }
            m = mean[blockIdx.x] = all.mean;
            r = rstd[blockIdx.x] = rsqrtf(all.m2 / C + 1e-5f);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < C; i += blockDim.x)
            out[blockIdx.x * C + i] = (x[i] - m) * r * weight[i] + bias[i];
    }""", rows, 128, y, mean, rstd, x, w, b, columns)
    xd = x.astype("f8")
    r = 1 / np.sqrt(xd.var(1) + 1e-5)
    assert np.allclose(mean, xd.mean(1), **CLOSE) and np.allclose(rstd, r, rtol=1e-4)
    assert np.allclose(y, (xd - xd.mean(1, keepdims=True)) * r[:, None] * w + b, atol=1e-4)


def test_attention_forward_with_online_softmax(rng):
    heads, n, d = 2, 40, 16
    q, k, v = (floats(rng, heads, n, d) * 2 - 1 for _ in range(3))
    out = np.zeros_like(q)
    run("""#include <math.h>
    template <int Br, int Bc, int D>
    __global__ void flash(const float* Q, const float* K, const float* V, float* O, int n,
                          float scale) {
        extern __shared__ float sram[];
        float *Qi = sram, *Kj = Qi + Br * D, *Vj = Kj + Bc * D, *S = Vj + Bc * D;
        const int t = threadIdx.x, row = blockIdx.x * Br + t, base = blockIdx.y * n * D;
        float o[D] = {}, m = -INFINITY, l = 0;
        for (int x = 0; x < D; x++) Qi[t * D + x] = row < n ? Q[base + row * D + x] : 0.0f;
        for (int j = 0; j < n; j += Bc) {
            for (int x = t; x < Bc * D; x += Br) {
                bool there = j + x / D < n;
                Kj[x] = there ? K[base + j * D + x] : 0.0f;
                Vj[x] = there ? V[base + j * D + x] : 0.0f;
            }
            __syncthreads();
            float most = m;
            for (int y = 0; y < Bc; y++) {
                float sum = 0;
                for (int x = 0; x < D; x++) sum += Qi[t * D + x] * Kj[y * D + x];
                sum = j + y <= row && j + y < n ? sum * scale : -INFINITY;
                S[Bc * t + y] = sum;
                most = fmaxf(most, sum);
            }
            float fix = __expf(m - most);
            l *= fix;
            for (int x = 0; x < D; x++) o[x] *= fix;
            for (int y = 0; y < Bc; y++) {
                float p = __expf(S[Bc * t + y] - most);
                l += p;
                for (int x = 0; x < D; x++) o[x] += p * Vj[y * D + x];
            }
            m = most;
            __syncthreads();
        }
        if (row < n) for (int x = 0; x < D; x++) O[base + row * D + x] = o[x] / l;
    }""", (2, heads), 32, q, k, v, out, n, d**-0.5, name="flash<32, 16, 16>",
        shared_mem=4 * (32 * 16 + 2 * 16 * 16 + 32 * 16))
    s = np.einsum("hid,hjd->hij", q.astype("f8"), k) * d**-0.5
    s[:, np.triu_indices(n, 1)[0], np.triu_indices(n, 1)[1]] = -np.inf
    assert np.allclose(out, softmax(s) @ v, rtol=1e-4, atol=1e-5)


def bfloat16(x):
    """float32 -> the nearest bfloat16, as uint16."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)


def wide(x):
    return (x.astype(np.uint32) << 16).view(np.float32)


PACKED = """
template <class T> struct alignas(16) Packed {
    static constexpr int size = 16 / sizeof(T);
    __device__ T& operator[](int i) { return payload[i]; }
    T payload[size];
};
template <class T> __device__ Packed<T> load128(const T* p) {
    int4 bits = __ldcs(reinterpret_cast<const int4*>(p));
    return *reinterpret_cast<Packed<T>*>(&bits);
}
template <class T> __device__ void store128(T* p, Packed<T> v) {
    __stcs(reinterpret_cast<int4*>(p), *reinterpret_cast<int4*>(&v));
}
"""


def test_gelu_in_bfloat16_by_packs_of_eight(rng):
    x, y = bfloat16(floats(rng, 1024) * 8 - 4), np.zeros(1024, np.uint16)
    run("#include <cuda_bf16.h>\n" + PACKED + """
    extern "C" __global__ void k(__nv_bfloat16* out, const __nv_bfloat16* in) {
        int i = (blockIdx.x * blockDim.x + threadIdx.x) * Packed<__nv_bfloat16>::size;
        Packed<__nv_bfloat16> v = load128(in + i), r;
        for (int j = 0; j < v.size; ++j) {
            float x = (float)v[j], cube = 0.044715f * x * x * x;
            r[j] = (__nv_bfloat16)(0.5f * x * (1.0f + tanhf(sqrtf(2.0f / M_PI) * (x + cube))));
        }
        store128(out + i, r);
    }""", 2, 64, y, x, options=("-DM_PI=3.14159265358979",))
    v = wide(x).astype("f8")
    want = 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))
    assert np.allclose(wide(y), want, rtol=2**-8, atol=1e-5)


def test_encoder_in_half(rng):
    B, T, C = 2, 6, 32
    tokens = rng.integers(0, 20, (B, T)).astype(np.int32)
    wte, wpe = rng.random((20, C)).astype(np.float16), rng.random((T, C)).astype(np.float16)
    out = np.zeros((B, T, C), np.float16)
    run("""#include <cuda_fp16.h>
    extern "C" __global__ void k(half2* out, const int* tokens, const half2* wte, const half2* wpe,
                                 int B, int T, int C2) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= B * T * C2) return;
        int bt = i / C2, c = i % C2;
        out[i] = __hadd2(wte[tokens[bt] * C2 + c], __ldg(&wpe[bt % T * C2 + c]));
    }""", 3, 64, out, tokens, wte, wpe, B, T, C // 2)
    assert np.array_equal(out, wte[tokens] + wpe)


def test_adamw_with_stochastic_rounding(rng):
    n = 300
    p, g, m, v = bfloat16(rng.random(n)), bfloat16(rng.random(n)), floats(rng, n), floats(rng, n)
    master, old = wide(p).copy(), (m.copy(), v.copy())
    run("""#include <cuda_bf16.h>
    __device__ __forceinline__ float lerp(float a, float b, float w) {
        return fma(w, b, fma(-w, a, a));
    }
    __device__ unsigned noise(unsigned x, unsigned seed) {
        x = x * 0xCC9E2D51u ^ seed;
        x = (x << 15 | x >> 17) * 0x1B873593u;
        return x ^ x >> 16;
    }
    template <typename Tp, typename Tg>
    __global__ void adamw(Tp* params, float* master, const Tg* grads, float* m_all, float* v_all,
                          size_t n, float lr, float b1, float b2, float c1, float c2, float eps,
                          float decay, unsigned seed) {
        size_t i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float g = (float)grads[i], m = lerp(g, m_all[i], b1), v = lerp(g * g, v_all[i], b2);
        m_all[i] = m, v_all[i] = v;
        float old = master[i];
        float p = old - lr * (m / c1 / (sqrtf(v / c2) + eps) + decay * old);
        unsigned bits = __float_as_uint(p), keep = bits & 0xFFFF0000u;
        keep = (noise(i, seed) & 0xFFFF) > (bits & 0xFFFF) ? keep : keep + 0x10000u;
        params[i] = __float2bfloat16_rn(__uint_as_float(keep));
        master[i] = p;
    }""", 3, 128, p, master, g, m, v, n, .1, .9, .99, .19, .02, 1e-8, .01, 7,
        name="adamw<__nv_bfloat16, __nv_bfloat16>")
    gd = wide(g).astype("f8")
    m1, v1 = .9 * old[0] + .1 * gd, .99 * old[1] + .01 * gd * gd
    assert np.allclose(m, m1, **CLOSE) and np.allclose(v, v1, **CLOSE)
    near = wide(bfloat16(master))
    assert (abs(wide(p) - master) <= abs(near) * 2.0**-6).all()


def test_cross_entropy_with_its_gradient(rng):
    rows, classes = 5, 70
    logits, target = floats(rng, rows, classes) * 6, rng.integers(0, classes, rows).astype(np.int32)
    want = softmax(logits.astype("f8"))
    loss, gradient = np.zeros(rows, np.float32), logits.copy()
    run("""#include <cub/cub.cuh>
    struct Max {
        template <class T> __device__ T operator()(T a, T b) const { return a < b ? b : a; }
    };
    template <int BLOCK> __global__ void fused(float* logits, float* loss, const int* target,
                                               int classes) {
        using Reduce = cub::BlockReduce<float, BLOCK>;
        __shared__ typename Reduce::TempStorage temp;
        __shared__ float most, sum;
        float* x = logits + blockIdx.x * classes;
        int t = target[blockIdx.x];
        float own = -INFINITY;
        for (int i = threadIdx.x; i < classes; i += BLOCK) own = fmaxf(own, x[i]);
        float result = Reduce(temp).Reduce(own, Max());
        if (threadIdx.x == 0) most = result;
        __syncthreads();
        own = 0;
        for (int i = threadIdx.x; i < classes; i += BLOCK) own += expf(x[i] - most);
        result = Reduce(temp).Sum(own);
        if (threadIdx.x == 0) {
            sum = result;
            loss[blockIdx.x] = logf(result) + most - x[t];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < classes; i += BLOCK)
            x[i] = expf(x[i] - most) / sum - (i == t ? 1.0f : 0.0f);
    }""", rows, 64, gradient, loss, target, classes, name="fused<64>")
    assert np.allclose(loss, -np.log(want[np.arange(rows), target]), **CLOSE)
    want[np.arange(rows), target] -= 1
    assert np.allclose(gradient, want, rtol=1e-4, atol=1e-6)
