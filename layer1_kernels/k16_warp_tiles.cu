// k16 · Warp tiles: c[m, n] = sum over k of a[m, k] · w[n, k], in fp32
//
// a: (M, K)   w: (N, K), as a model stores a weight: outputs × inputs   c: (M, N)
// a and w start at multiples of 16 bytes, K is a multiple of 4.

constexpr int BM = 128, BN = 128;   // rows and columns of a block's tile of c
constexpr int WM = 64, WN = 32;     // of a warp's
constexpr int TM = 8, TN = 8;       // of a thread's
constexpr int BK = 8;               // k fetched in one step
constexpr int PAD = 4;              // numbers, so that keep stores without bank conflicts
constexpr int THREADS = 256;
constexpr int PART = BM * BK / 4 / THREADS;     // float4 of a tile that a thread brings

typedef float4 Tile[BK][(BM + PAD) / 4];        // turned: tile[k][row / 4]

// ---- given: tiles come in, sums go out

// This thread's part of a tile, k start to start + BK of rows first to first + BM of x (rows, K),
// into registers; 0 beyond x.
__device__ void load(float4 part[PART], const float* x, int first, int start, int rows, int K)
{
    for (int i = 0; i < PART; i++) {
        int at = 4 * (threadIdx.x + THREADS * i);
        int row = first + at / BK, k = start + at % BK;
        part[i] = make_float4(0, 0, 0, 0);
        if (row < rows && k < K)
            part[i] = *(const float4*)(x + (size_t)row * K + k);
    }
}

// What load has brought, from registers into the tile
__device__ void keep(Tile tile, const float4 part[PART])
{
    float (*numbers)[BM + PAD] = (float (*)[BM + PAD])tile;
    for (int i = 0; i < PART; i++) {
        int at = 4 * (threadIdx.x + THREADS * i);
        int row = at / BK, k = at % BK;
        numbers[k][row] = part[i].x;
        numbers[k + 1][row] = part[i].y;
        numbers[k + 2][row] = part[i].z;
        numbers[k + 3][row] = part[i].w;
    }
}

// Both at once: the thread waits for its numbers in between.
__device__ void fetch(Tile tile, const float* x, int first, int start, int rows, int K)
{
    float4 part[PART];
    load(part, x, first, start, rows, K);
    keep(tile, part);
}

// Writes v[0] to v[3] to row m of c (M, N), from column n on; in one store if N is a multiple of 4.
__device__ void store4(float* c, int m, int n, int M, int N, const float* v)
{
    float* to = c + (size_t)m * N + n;
    if (m < M && n < N && N % 4 == 0)
        *(float4*)to = make_float4(v[0], v[1], v[2], v[3]);
    else if (m < M)
        for (int j = 0; j < 4 && n + j < N; j++)
            to[j] = v[j];
}

// A thread's sums into the block's tile of c, which begins at row m, column n. The lane's two
// groups of four rows are WM / 2 apart, its two groups of four columns WN / 2.
__device__ void store(float* c, int m, int n, int M, int N, const float sums[TM][TN])
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    m += warp / 4 * WM + lane / 4 * 4;
    n += warp % 4 * WN + lane % 4 * 4;
    for (int i = 0; i < TM; i++)
        for (int j = 0; j < TN; j += 4)
            store4(c, m + i / 4 * WM / 2 + i % 4, n + j / 4 * WN / 2, M, N, &sums[i][j]);
}

// ---- warps

// sums += the numbers of a_tile that this thread wants, times those of w_tile that it wants, for
// all k of a step
__device__ void multiply_warp_cuda(float sums[TM][TN], const Tile a_tile, const Tile w_tile)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // exercise: your float4 y of a_tile[k] and x of w_tile[k], and their second halves; all products
    int y = warp / 4 * (WM / 4) + lane / 4;
    int x = warp % 4 * (WN / 4) + lane % 4;
    for (int k = 0; k < BK; k++) {
        float4 a_part[2] = {a_tile[k][y], a_tile[k][y + WM / 8]};
        float4 w_part[2] = {w_tile[k][x], w_tile[k][x + WN / 8]};
        for (int i = 0; i < TM; i++)
            for (int j = 0; j < TN; j++)
                sums[i][j] += ((float*)a_part)[i] * ((float*)w_part)[j];
    }
}

// A tile of c for each block: fetch, wait, multiply, wait.
extern "C" __global__ void __launch_bounds__(THREADS)
matmul_warp_cuda(const float* a, const float* w, float* c, int M, int N, int K)
{
    __shared__ Tile a_tile, w_tile;
    int m = blockIdx.y * BM, n = blockIdx.x * BN;
    float sums[TM][TN] = {};
    for (int start = 0; start < K; start += BK) {
        fetch(a_tile, a, m, start, M, K);
        fetch(w_tile, w, n, start, N, K);
        __syncthreads();
        multiply_warp_cuda(sums, a_tile, w_tile);
        __syncthreads();
    }
    store(c, m, n, M, N, sums);
}

// ---- two tiles of each

// The same with two tiles of a and two of w: while one pair is multiplied, the other is loaded.
extern "C" __global__ void __launch_bounds__(THREADS)
matmul_buffered_cuda(const float* a, const float* w, float* c, int M, int N, int K)
{
    __shared__ Tile a_tile[2], w_tile[2];
    int m = blockIdx.y * BM, n = blockIdx.x * BN;
    float sums[TM][TN] = {};
    float4 a_next[PART], w_next[PART];
    // exercise: the first pair; in each step load the next one, multiply, keep it, wait; store
    fetch(a_tile[0], a, m, 0, M, K);
    fetch(w_tile[0], w, n, 0, N, K);
    __syncthreads();
    for (int start = 0, now = 0; start < K; start += BK, now ^= 1) {
        load(a_next, a, m, start + BK, M, K);
        load(w_next, w, n, start + BK, N, K);
        multiply_warp_cuda(sums, a_tile[now], w_tile[now]);
        keep(a_tile[now ^ 1], a_next);
        keep(w_tile[now ^ 1], w_next);
        __syncthreads();
    }
    store(c, m, n, M, N, sums);
}
