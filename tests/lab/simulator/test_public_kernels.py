"""Kernels in the manner of public CUDA repositories, written from the known algorithms."""

import numpy as np
import pytest

from lab import simulator

from .conftest import CLOSE, floats, run

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
