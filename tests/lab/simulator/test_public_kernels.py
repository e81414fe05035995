"""Kernels in the manner of public CUDA repositories, written from the known algorithms."""

import numpy as np
import pytest

from lab import simulator

from .conftest import CLOSE, run


def floats(rng, *shape):
    return rng.random(shape, np.float32)


# ---- SGEMM, a ladder: C = alpha A B + beta C, all row-major

SGEMM = """
#define CEIL(a, b) (((a) + (b) - 1) / (b))
#define FLOAT4(x) (reinterpret_cast<float4*>(&(x))[0])
#define CFLOAT4(x) (reinterpret_cast<const float4*>(&(x))[0])

__global__ void naive(int M, int N, int K, float alpha, const float* A, const float* B, float beta,
                      float* C) {
    const uint row = blockIdx.x * blockDim.x + threadIdx.x;
    const uint col = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < M && col < N) {
        float sum = 0;
        for (int i = 0; i < K; ++i) sum += A[row * K + i] * B[i * N + col];
        C[row * N + col] = alpha * sum + beta * C[row * N + col];
    }
}

template <const uint SIZE>
__global__ void coalesced(int M, int N, int K, float alpha, const float* A, const float* B,
                          float beta, float* C) {
    const int row = blockIdx.x * SIZE + threadIdx.x / SIZE;
    const int col = blockIdx.y * SIZE + threadIdx.x % SIZE;
    if (row < M && col < N) {
        float sum = 0;
        for (int i = 0; i < K; ++i) sum += A[row * K + i] * B[i * N + col];
        C[row * N + col] = alpha * sum + beta * C[row * N + col];
    }
}

template <const int SIZE>
__global__ void shared_tiles(int M, int N, int K, float alpha, const float* A, const float* B,
                             float beta, float* C) {
    __shared__ float As[SIZE * SIZE], Bs[SIZE * SIZE];
    const uint col = threadIdx.x % SIZE, row = threadIdx.x / SIZE;
    A += blockIdx.y * SIZE * K;
    B += blockIdx.x * SIZE;
    C += blockIdx.y * SIZE * N + blockIdx.x * SIZE;
    float sum = 0;
    for (int k = 0; k < K; k += SIZE, A += SIZE, B += SIZE * N) {
        As[row * SIZE + col] = A[row * K + col];
        Bs[row * SIZE + col] = B[row * N + col];
        __syncthreads();
        for (int i = 0; i < SIZE; ++i) sum += As[row * SIZE + i] * Bs[i * SIZE + col];
        __syncthreads();
    }
    C[row * N + col] = alpha * sum + beta * C[row * N + col];
}

template <const int BM, const int BN, const int BK, const int TM>
__global__ void thread_rows(int M, int N, int K, float alpha, const float* A, const float* B,
                            float beta, float* C) {
    __shared__ float As[BM * BK], Bs[BK * BN];
    const int col = threadIdx.x % BN, group = threadIdx.x / BN;
    assert(BM * BK == blockDim.x && BN * BK == blockDim.x);
    A += blockIdx.y * BM * K;
    B += blockIdx.x * BN;
    C += blockIdx.y * BM * N + blockIdx.x * BN;
    float results[TM] = {0.0f};
    for (uint k = 0; k < K; k += BK, A += BK, B += BK * N) {
        As[threadIdx.x] = A[threadIdx.x / BK * K + threadIdx.x % BK];
        Bs[threadIdx.x] = B[threadIdx.x / BN * N + threadIdx.x % BN];
        __syncthreads();
        for (uint i = 0; i < BK; ++i) {
            float b = Bs[i * BN + col];
            for (uint r = 0; r < TM; ++r) results[r] += As[(group * TM + r) * BK + i] * b;
        }
        __syncthreads();
    }
    for (uint r = 0; r < TM; ++r) {
        float& c = C[(group * TM + r) * N + col];
        c = alpha * results[r] + beta * c;
    }
}

// 2-D thread tiles, float4 loads, A transposed on its way to shared memory
template <const int BM, const int BN, const int BK, const int TM, const int TN>
__global__ void __launch_bounds__((BM * BN) / (TM * TN))
vectorised(int M, int N, int K, float alpha, float* A, float* B, float beta, float* C) {
    __shared__ float As[BK * BM];
    __shared__ float Bs[BK * BN];
    const int row = threadIdx.x / (BN / TN), col = threadIdx.x % (BN / TN);
    A += blockIdx.y * BM * K;
    B += blockIdx.x * BN;
    C += blockIdx.y * BM * N + blockIdx.x * BN;
    float acc[TM * TN] = {0.0f}, a[TM], b[TN];
    for (int k = 0; k < K; k += BK, A += BK, B += BK * N) {
        for (int i = threadIdx.x * 4; i < BM * BK; i += blockDim.x * 4) {
            float4 v = FLOAT4(A[i / BK * K + i % BK]);
            As[(i % BK + 0) * BM + i / BK] = v.x;
            As[(i % BK + 1) * BM + i / BK] = v.y;
            As[(i % BK + 2) * BM + i / BK] = v.z;
            As[(i % BK + 3) * BM + i / BK] = v.w;
        }
        for (int i = threadIdx.x * 4; i < BK * BN; i += blockDim.x * 4)
            FLOAT4(Bs[i]) = FLOAT4(B[i / BN * N + i % BN]);
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < BK; ++i) {
            for (int m = 0; m < TM; ++m) a[m] = As[i * BM + row * TM + m];
            for (int n = 0; n < TN; ++n) b[n] = Bs[i * BN + col * TN + n];
            for (int m = 0; m < TM; ++m)
                for (int n = 0; n < TN; ++n) acc[m * TN + n] += a[m] * b[n];
        }
        __syncthreads();
    }
    for (int m = 0; m < TM; ++m)
        for (int n = 0; n < TN; n += 4) {
            float4 c = FLOAT4(C[(row * TM + m) * N + col * TN + n]);
            c.x = alpha * acc[m * TN + n] + beta * c.x;
            c.y = alpha * acc[m * TN + n + 1] + beta * c.y;
            c.z = alpha * acc[m * TN + n + 2] + beta * c.z;
            c.w = alpha * acc[m * TN + n + 3] + beta * c.w;
            FLOAT4(C[(row * TM + m) * N + col * TN + n]) = c;
        }
}

// Tiles of blocks, of warps and of threads, with two buffers in shared memory
template <const int BM, const int BN, const int BK>
__device__ void load(int N, int K, const float* A, const float* B, float* As, float* Bs) {
    for (int i = threadIdx.x * 4; i < BM * BK; i += blockDim.x * 4) {
        const float4 v = CFLOAT4(A[i / BK * K + i % BK]);
        const float* p = &v.x;
        for (int j = 0; j < 4; ++j) As[(i % BK + j) * BM + i / BK] = p[j];
    }
    for (int i = threadIdx.x * 4; i < BK * BN; i += blockDim.x * 4)
        FLOAT4(Bs[i]) = CFLOAT4(B[i / BN * N + i % BN]);
}

template <const int BM, const int BN, const int BK, const int WM, const int WN, const int TM,
          const int TN>
__global__ void __launch_bounds__(BM / WM * BN / WN * 32)
warp_tiles(int M, int N, int K, float alpha, const float* __restrict__ A,
           const float* __restrict__ B, float beta, float* C) {
    static_assert(WM / TM * WN / TN == 32, "a warp has 32 threads");
    __shared__ float As[2][BK * BM], Bs[2][BK * BN];
    const uint warp = threadIdx.x / warpSize, lane = threadIdx.x % warpSize;
    const uint row = warp / (BN / WN) * WM + lane / (WN / TN) * TM;
    const uint col = warp % (BN / WN) * WN + lane % (WN / TN) * TN;
    A += blockIdx.y * BM * K;
    B += blockIdx.x * BN;
    C += (blockIdx.y * BM + row) * N + blockIdx.x * BN + col;
    float acc[TM][TN] = {}, a[TM], b[TN];
    int now = 0;
    load<BM, BN, BK>(N, K, A, B, As[0], Bs[0]);
    __syncthreads();
    for (int k = 0; k < K; k += BK, now ^= 1) {
        if (k + BK < K)
            load<BM, BN, BK>(N, K, A + k + BK, B + (k + BK) * N, As[now ^ 1], Bs[now ^ 1]);
        for (int i = 0; i < BK; ++i) {
            for (int m = 0; m < TM; ++m) a[m] = As[now][i * BM + row + m];
            for (int n = 0; n < TN; ++n) b[n] = Bs[now][i * BN + col + n];
            for (int m = 0; m < TM; ++m)
                for (int n = 0; n < TN; ++n) acc[m][n] = fmaf(a[m], b[n], acc[m][n]);
        }
        __syncthreads();
    }
    for (int m = 0; m < TM; ++m)
        for (int n = 0; n < TN; ++n) C[m * N + n] = alpha * acc[m][n] + beta * C[m * N + n];
}
"""


@pytest.mark.parametrize("name, grid, block", [
    ("naive", (3, 4), (32, 16)), ("coalesced<16>", (6, 4), 256),
    ("shared_tiles<16>", (4, 6), 256), ("thread_rows<32, 32, 4, 8>", (2, 3), 128),
    ("vectorised<32, 32, 8, 4, 4>", (2, 3), 64),
    ("warp_tiles<32, 64, 8, 16, 32, 4, 4>", (1, 3), 128),
])
def test_sgemm(rng, name, grid, block):
    M, N, K = 96, 64, 32
    a, b, c = floats(rng, M, K), floats(rng, K, N), floats(rng, M, N)
    want = 1.5 * (a.astype("f8") @ b) + 0.5 * c
    run("#include <cassert>\n" + SGEMM, grid, block, M, N, K, 1.5, a, b, 0.5, c, name=name)
    assert np.allclose(c, want, **CLOSE)


# ---- reductions: the seven classic steps

REDUCE = """
#include <cooperative_groups.h>
extern __shared__ int s[];
__global__ void interleaved_modulo(const int* in, int* out, int n) {
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? in[i] : 0;
    __syncthreads();
    for (int k = 1; k < blockDim.x; k *= 2) {
        if (t % (2 * k) == 0) s[t] += s[t + k];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];
}
__global__ void interleaved(const int* in, int* out, int n) {
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? in[i] : 0;
    __syncthreads();
    for (int k = 1; k < blockDim.x; k *= 2) {
        int j = 2 * k * t;
        if (j < blockDim.x) s[j] += s[j + k];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];
}
__global__ void sequential(const int* in, int* out, int n) {
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? in[i] : 0;
    __syncthreads();
    for (int k = blockDim.x / 2; k > 0; k >>= 1) {
        if (t < k) s[t] += s[t + k];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];
}
__global__ void first_add_during_load(const int* in, int* out, int n) {
    int t = threadIdx.x, i = blockIdx.x * blockDim.x * 2 + t;
    s[t] = (i < n ? in[i] : 0) + (i + blockDim.x < n ? in[i + blockDim.x] : 0);
    __syncthreads();
    for (int k = blockDim.x / 2; k > 0; k >>= 1) {
        if (t < k) s[t] += s[t + k];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];
}
template <int BLOCK> __device__ void warp_reduce(volatile int* s, int t) {
    int v = s[t];
    if (BLOCK >= 64) { v += s[t + 32]; __syncwarp(); s[t] = v; __syncwarp(); }
    if (BLOCK >= 32) { v += s[t + 16]; __syncwarp(); s[t] = v; __syncwarp(); }
    if (BLOCK >= 16) { v += s[t + 8]; __syncwarp(); s[t] = v; __syncwarp(); }
    if (BLOCK >= 8) { v += s[t + 4]; __syncwarp(); s[t] = v; __syncwarp(); }
    if (BLOCK >= 4) { v += s[t + 2]; __syncwarp(); s[t] = v; __syncwarp(); }
    if (BLOCK >= 2) { v += s[t + 1]; __syncwarp(); s[t] = v; __syncwarp(); }
}
template <int BLOCK> __global__ void unrolled(const int* in, int* out, int n) {
    int t = threadIdx.x, i = blockIdx.x * BLOCK * 2 + t;
    s[t] = (i < n ? in[i] : 0) + (i + BLOCK < n ? in[i + BLOCK] : 0);
    __syncthreads();
    if (BLOCK >= 512) { if (t < 256) s[t] += s[t + 256]; __syncthreads(); }
    if (BLOCK >= 256) { if (t < 128) s[t] += s[t + 128]; __syncthreads(); }
    if (BLOCK >= 128) { if (t < 64) s[t] += s[t + 64]; __syncthreads(); }
    if (t < 32) warp_reduce<BLOCK>(s, t);
    if (t == 0) out[blockIdx.x] = s[0];
}
template <int BLOCK> __global__ void many_per_thread(const int* in, int* out, int n) {
    int t = threadIdx.x, sum = 0;
    for (int i = blockIdx.x * BLOCK * 2 + t; i < n; i += BLOCK * 2 * gridDim.x) {
        sum += in[i];
        if (i + BLOCK < n) sum += in[i + BLOCK];
    }
    s[t] = sum;
    __syncthreads();
    if (BLOCK >= 256) { if (t < 128) s[t] += s[t + 128]; __syncthreads(); }
    if (BLOCK >= 128) { if (t < 64) s[t] += s[t + 64]; __syncthreads(); }
    if (t < 32) warp_reduce<BLOCK>(s, t);
    if (t == 0) out[blockIdx.x] = s[0];
}
__inline__ __device__ int warp_sum(int v) {
    for (int o = warpSize / 2; o > 0; o /= 2) v += __shfl_down_sync(0xffffffff, v, o);
    return v;
}
__global__ void shuffles(const int* in, int* out, int n) {
    static __shared__ int partial[32];
    int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize, sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
        sum += in[i];
    sum = warp_sum(sum);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    sum = threadIdx.x < blockDim.x / warpSize ? partial[lane] : 0;
    if (warp == 0) sum = warp_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
"""


@pytest.mark.parametrize("name", [
    "interleaved_modulo", "interleaved", "sequential", "first_add_during_load", "unrolled<128>",
    "many_per_thread<128>", "shuffles"])
def test_reduction(rng, name):
    n = 2000
    x, out = rng.integers(-1000, 1000, n).astype(np.int32), np.zeros(16, np.int32)
    run(REDUCE, 16, 128, x, out, n, name=name, shared_mem=128 * 4)
    assert out.sum() == x.sum()


def test_the_volatile_warp_step_of_old_is_reported_as_a_race():
    """Since Volta it needs __syncwarp: the old form is wrong and must not pass in silence."""
    with pytest.raises(simulator.KernelError, match="race"):
        run("""extern "C" __global__ void k(int* out) {
            __shared__ volatile int s[64];
            int t = threadIdx.x;
            s[t] = t;
            __syncthreads();
            if (t < 32) { s[t] += s[t + 32]; s[t] += s[t + 16]; s[t] += s[t + 8]; }
            if (t == 0) out[0] = s[0];
        }""", 1, 64, np.zeros(1, np.int32))


# ---- scans

SCAN = """
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_scan.cuh>
extern __shared__ int s[];
__global__ void hillis_steele(const int* in, int* out, int n) {
    int t = threadIdx.x, from = 0, to = 1;
    s[t] = in[t];
    __syncthreads();
    for (int o = 1; o < n; o *= 2) {
        s[to * n + t] = s[from * n + t] + (t >= o ? s[from * n + t - o] : 0);
        __syncthreads();
        from = to, to = 1 - from;
    }
    out[t] = s[from * n + t];
}
__global__ void blelloch(const int* in, int* out, int n) {
    int t = threadIdx.x, o = 1;
    if (t < n / 2) s[2 * t] = in[2 * t], s[2 * t + 1] = in[2 * t + 1];
    for (int d = n >> 1; d > 0; d >>= 1, o *= 2) {
        __syncthreads();
        if (t < d) s[o * (2 * t + 2) - 1] += s[o * (2 * t + 1) - 1];
    }
    if (t == 0) s[n - 1] = 0;
    for (int d = 1; d < n; d *= 2) {
        o >>= 1;
        __syncthreads();
        if (t < d) {
            int i = o * (2 * t + 1) - 1, j = o * (2 * t + 2) - 1, v = s[i];
            s[i] = s[j];
            s[j] += v;
        }
    }
    __syncthreads();
    out[t] = s[t] + in[t];
}
__global__ void by_warps(const int* in, int* out, int n) {
    __shared__ int totals[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, v = in[threadIdx.x];
    #pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        int other = __shfl_up_sync(~0u, v, o);
        if (lane >= o) v += other;
    }
    if (lane == 31) totals[warp] = v;
    __syncthreads();
    for (int w = 0; w < warp; w++) v += totals[w];
    out[threadIdx.x] = v;
}
template <int THREADS> __global__ void cub_block(const int* in, int* out, int n) {
    using Scan = cub::BlockScan<int, THREADS, cub::BLOCK_SCAN_WARP_SCANS>;
    __shared__ typename Scan::TempStorage temp;
    int v;
    Scan(temp).InclusiveSum(in[threadIdx.x], v);
    out[threadIdx.x] = v;
}
template <int WARPS> __global__ void cub_warp(const int* in, int* out, int n) {
    using Scan = cub::WarpScan<int>;
    __shared__ typename Scan::TempStorage temp[WARPS];
    __shared__ int totals[WARPS];
    int warp = threadIdx.x / 32, v, total, before = 0;
    Scan(temp[warp]).InclusiveSum(in[threadIdx.x], v, total);
    if (threadIdx.x % 32 == 0) totals[warp] = total;
    __syncthreads();
    for (int w = 0; w < warp; w++) before += totals[w];
    out[threadIdx.x] = before + v;
}
"""


@pytest.mark.parametrize("name", ["hillis_steele", "blelloch", "by_warps", "cub_block<128>",
                                  "cub_warp<4>"])
def test_scan(rng, name):
    x, out = rng.integers(-99, 99, 128).astype(np.int32), np.zeros(128, np.int32)
    run(SCAN, 1, 128, x, out, 128, name=name, shared_mem=2 * 128 * 4)
    assert np.array_equal(out, x.cumsum())


def test_device_wide_scan_by_look_back(rng):
    """Each tile publishes its sum, then its prefix; a tile's state and value are one word."""
    n = 1500
    x, out = rng.integers(0, 99, n).astype(np.int32), np.zeros(n, np.int32)
    run("""#include <cub/block/block_scan.cuh>
    __device__ unsigned ticket;
    __device__ unsigned long long state[64];        // 1: sum, 2: prefix, in the upper half
    extern "C" __global__ void k(const int* in, int* out, int n) {
        using Scan = cub::BlockScan<int, 128>;
        __shared__ typename Scan::TempStorage temp;
        __shared__ int tile, prefix;
        if (threadIdx.x == 0) tile = atomicAdd(&ticket, 1);
        __syncthreads();
        int i = tile * 128 + threadIdx.x, v, total;
        Scan(temp).InclusiveSum(i < n ? in[i] : 0, v, total);
        if (threadIdx.x == 0) {
            int sum = 0;
            if (tile > 0) {
                atomicExch(&state[tile], 1ULL << 32 | (unsigned)total);
                for (int j = tile - 1; j >= 0; ) {
                    unsigned long long word = atomicAdd(&state[j], 0ULL);
                    if (word >> 32 == 0) continue;
                    sum += (int)(unsigned)word;
                    if (word >> 32 == 2) break;
                    j--;
                }
            }
            atomicExch(&state[tile], 2ULL << 32 | (unsigned)(sum + total));
            prefix = sum;
        }
        __syncthreads();
        if (i < n) out[i] = prefix + v;
    }""", 12, 128, x, out, n)
    assert np.array_equal(out, x.cumsum())


# ---- cub

def test_cub_reductions_and_radix_sort(rng):
    x = rng.integers(-10**6, 10**6, 512).astype(np.int32)
    out, sums = np.zeros(512, np.int32), np.zeros(6, np.int32)
    run("""#include <cub/cub.cuh>
    extern "C" __global__ void k(const int* in, int* out, int* sums) {
        using Load = cub::BlockLoad<int, 128, 4, cub::BLOCK_LOAD_TRANSPOSE>;
        using Store = cub::BlockStore<int, 128, 4, cub::BLOCK_STORE_TRANSPOSE>;
        using Sort = cub::BlockRadixSort<int, 128, 4>;
        using Reduce = cub::BlockReduce<int, 128>;
        using Warp = cub::WarpReduce<int>;
        __shared__ union {
            typename Load::TempStorage load;
            typename Store::TempStorage store;
            typename Sort::TempStorage sort;
            typename Reduce::TempStorage reduce;
            typename Warp::TempStorage warp[4];
        } temp;
        int items[4];
        Load(temp.load).Load(in, items);
        __syncthreads();
        int sum = Reduce(temp.reduce).Sum(items);
        if (threadIdx.x == 0) sums[0] = sum;
        __syncthreads();
        int most = Reduce(temp.reduce).Reduce(items[0], [](int a, int b) { return a > b ? a : b; });
        if (threadIdx.x == 0) sums[1] = most;
        __syncthreads();
        int w = threadIdx.x / 32, part = Warp(temp.warp[w]).Sum(items[0]);
        if (threadIdx.x % 32 == 0) sums[2 + w] = part;
        __syncthreads();
        Sort(temp.sort).Sort(items);
        __syncthreads();
        Store(temp.store).Store(out, items);
    }""", 1, 128, x, out, sums)
    assert np.array_equal(out, np.sort(x))
    assert list(sums) == [x.sum(), x[::4].max(), *x[::4].reshape(4, 32).sum(1)]


# ---- memory patterns

def test_histogram_in_shared_memory(rng):
    x, bins = rng.integers(0, 256, 3000).astype(np.uint8), np.zeros(256, np.uint32)
    run("""extern "C" __global__ void k(const unsigned char* x, unsigned* bins, int n) {
        __shared__ unsigned local[256];
        for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
        __syncthreads();
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
            atomicAdd(&local[x[i]], 1u);
        __syncthreads();
        for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
    }""", 5, 128, x, bins, 3000)
    assert np.array_equal(bins, np.bincount(x, minlength=256))


def test_transpose_with_padding_and_block_rows(rng):
    x, y = floats(rng, 64, 96), np.zeros((96, 64), np.float32)
    launch = run("""#define TILE 32
    #define ROWS 8
    extern "C" __global__ void k(float* __restrict__ out, const float* __restrict__ in, int w,
                                 int h) {
        __shared__ float tile[TILE][TILE + 1];
        int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
        for (int j = 0; j < TILE; j += ROWS)
            tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * w + x];
        __syncthreads();
        x = blockIdx.y * TILE + threadIdx.x, y = blockIdx.x * TILE + threadIdx.y;
        for (int j = 0; j < TILE; j += ROWS)
            out[(y + j) * h + x] = tile[threadIdx.x][threadIdx.y + j];
    }""", (3, 2), (32, 8), y, x, 96, 64)
    assert np.array_equal(y, x.T)
    assert launch.sectors_per_request() == 4


def test_stencil_of_five_points_with_a_halo(rng):
    h, w = 40, 50
    x, y = floats(rng, h, w), np.zeros((h, w), np.float32)
    run("""extern "C" __global__ void k(const float* in, float* out, int h, int w) {
        __shared__ float s[18][18];
        int x = blockIdx.x * 16 + threadIdx.x - 1, y = blockIdx.y * 16 + threadIdx.y - 1;
        bool inside = x >= 0 && x < w && y >= 0 && y < h;
        s[threadIdx.y][threadIdx.x] = inside ? in[y * w + x] : 0.0f;
        __syncthreads();
        if (threadIdx.x > 0 && threadIdx.x < 17 && threadIdx.y > 0 && threadIdx.y < 17 && inside) {
            int i = threadIdx.y, j = threadIdx.x;
            out[y * w + x] = s[i - 1][j] + s[i + 1][j] + s[i][j - 1] + s[i][j + 1] - 4 * s[i][j];
        }
    }""", (4, 3), (18, 18), x, y, h, w)
    p = np.pad(x, 1)
    assert np.allclose(y, p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * x,
                       rtol=2e-5, atol=1e-5)


def test_stencil_in_three_dimensions_with_constant_weights(rng):
    x, y = floats(rng, 8, 12, 16), np.zeros((8, 12, 16), np.float32)
    run("""__constant__ float weight[7] = {-6, 1, 1, 1, 1, 1, 1};
    extern "C" __global__ void k(const float* in, float* out, dim3 n) {
        int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
        if (x < 1 || y < 1 || x >= n.x - 1 || y >= n.y - 1) return;
        int plane = n.x * n.y, i = plane + y * n.x + x;
        float below = in[i - plane], here = in[i];
        for (int z = 1; z < n.z - 1; z++, i += plane) {
            float above = in[i + plane];
            out[i] = weight[0] * here + weight[1] * below + weight[2] * above
                + weight[3] * in[i - 1] + weight[4] * in[i + 1] + weight[5] * in[i - n.x]
                + weight[6] * in[i + n.x];
            below = here, here = above;
        }
    }""", (2, 3), (8, 4), x, y, np.array([(16, 12, 8)], "u4,u4,u4")[0])
    want = np.zeros_like(x)
    c = x[1:-1, 1:-1, 1:-1]
    want[1:-1, 1:-1, 1:-1] = (x[:-2, 1:-1, 1:-1] + x[2:, 1:-1, 1:-1] + x[1:-1, :-2, 1:-1]
                              + x[1:-1, 2:, 1:-1] + x[1:-1, 1:-1, :-2] + x[1:-1, 1:-1, 2:] - 6 * c)
    assert np.allclose(y, want, rtol=2e-5, atol=1e-5)


# ---- neural networks

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


# ---- others

def test_n_body(rng):
    n = 128
    bodies, force = floats(rng, n, 4), np.zeros((n, 3), np.float32)
    run("""extern "C" __global__ void k(const float4* p, float3* f, int n) {
        __shared__ float4 tile[64];
        float4 me = p[blockIdx.x * blockDim.x + threadIdx.x];
        float3 a = make_float3(0, 0, 0);
        for (int start = 0; start < n; start += 64) {
            tile[threadIdx.x] = p[start + threadIdx.x];
            __syncthreads();
            #pragma unroll 8
            for (int j = 0; j < 64; j++) {
                float3 r = {tile[j].x - me.x, tile[j].y - me.y, tile[j].z - me.z};
                float d = r.x * r.x + r.y * r.y + r.z * r.z + 0.01f, inv = rsqrtf(d);
                float s = tile[j].w * inv * inv * inv;
                a.x += r.x * s, a.y += r.y * s, a.z += r.z * s;
            }
            __syncthreads();
        }
        f[blockIdx.x * blockDim.x + threadIdx.x] = a;
    }""", 2, 64, bodies, force, n)
    r = bodies[None, :, :3].astype("f8") - bodies[:, None, :3]
    want = (r * (bodies[:, 3] / ((r**2).sum(2) + 0.01) ** 1.5)[..., None]).sum(1)
    assert np.allclose(force, want, rtol=1e-4, atol=1e-3)


def test_mandelbrot():
    h, w, most = 24, 32, 40
    out = np.zeros((h, w), np.int32)
    run("""extern "C" __global__ void k(int* out, int w, int h, int most) {
        int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
        double cr = 3.0 * x / w - 2.0, ci = 2.0 * y / h - 1.0, zr = 0, zi = 0;
        int i = 0;
        while (i < most && __dadd_rn(__dmul_rn(zr, zr), __dmul_rn(zi, zi)) <= 4.0) {
            double next = __dadd_rn(__dadd_rn(__dmul_rn(zr, zr), -__dmul_rn(zi, zi)), cr);
            zi = __dadd_rn(__dmul_rn(2 * zr, zi), ci);
            zr = next;
            i++;
        }
        out[y * w + x] = i;
    }""", (2, 3), (16, 8), out, w, h, most, options=("--fmad=false",))
    cr, ci = 3.0 * np.arange(w) / w - 2.0, (2.0 * np.arange(h) / h - 1.0)[:, None]
    zr, zi, want = np.zeros((h, w)), np.zeros((h, w)), np.zeros((h, w), int)
    for _ in range(most):
        on = zr * zr + zi * zi <= 4
        want += on
        zr, zi = np.where(on, zr * zr - zi * zi + cr, zr), np.where(on, 2 * zr * zi + ci, zi)
    assert np.array_equal(out, want)


def test_bitonic_sort(rng):
    x = rng.permutation(256).astype(np.float32)
    run("""extern "C" __global__ void k(float* x) {
        extern __shared__ float s[];
        int t = threadIdx.x;
        s[t] = x[t];
        __syncthreads();
        for (int size = 2; size <= blockDim.x; size <<= 1)
            for (int step = size >> 1; step > 0; step >>= 1) {
                int other = t ^ step;
                if (other > t && (s[t] > s[other]) == ((t & size) == 0)) {
                    float v = s[t];
                    s[t] = s[other], s[other] = v;
                }
                __syncthreads();
            }
        x[t] = s[t];
    }""", 1, 256, x, shared_mem=1024)
    assert np.array_equal(x, np.arange(256))


def test_breadth_first_search_by_frontiers(rng):
    n = 60
    edges = rng.random((n, n)) < 0.05
    rows = np.concatenate([[0], edges.sum(1).cumsum()]).astype(np.int32)
    columns = np.nonzero(edges)[1].astype(np.int32)
    level = np.full(n, -1, np.int32)
    level[0] = 0
    frontier, size = np.zeros(n, np.int32), 1
    kernel = simulator.RawKernel("""extern "C" __global__ void k(const int* rows,
            const int* columns, int* level, const int* frontier, int size, int* next, int* count,
            int depth) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= size) return;
        int u = frontier[i];
        for (int e = rows[u]; e < rows[u + 1]; e++) {
            int v = columns[e];
            if (atomicCAS(&level[v], -1, depth) == -1) next[atomicAdd(count, 1)] = v;
        }
    }""", "k")
    depth = 0
    while size:
        depth += 1
        following, count = np.zeros(n, np.int32), np.zeros(1, np.int32)
        kernel(-(-size // 32), 32, (rows, columns, level, frontier, size, following, count, depth))
        frontier, size = following, int(count[0])
    want, now = np.full(n, -1), {0}
    for d in range(n):
        want[list(now)] = d
        now = {v for u in now for v in np.flatnonzero(edges[u]) if want[v] < 0}
    assert np.array_equal(level, want)
