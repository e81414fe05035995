"""Reductions, scans and sorts in the manner of public CUDA repositories, and by cub."""

import numpy as np
import pytest

from lab import simulator

from .conftest import run

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
