// k12 · Matmul on tensor cores: c[m, n] = sum over k of a[m, k] · w[n, k]
//
// a: (M, K)   w: (N, K), as a model stores a weight: outputs × inputs   c: (M, N)
// The 32 threads of a warp together hold a 16 x 16 matrix, a fragment, and multiply two of them
// with one instruction. a and w are fp16, sums are fp32.

#include <mma.h>
using namespace nvcuda;

constexpr int TILE = 64;            // rows and columns of a block's tile of c
constexpr int BK = 64;              // k fetched in one step
constexpr int THREADS = 128;        // four warps, each with a quarter of the tile
constexpr int PAD = 8;              // unused numbers after a row of a tile, against bank conflicts

// One product of 16 x 16 matrices by one warp: c = a · b, all three stored row by row.
extern "C" __global__ void wmma_once_cuda(const half* a, const half* b, float* c)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a_part;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b_part;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
    wmma::fill_fragment(sums, 0);
    wmma::load_matrix_sync(a_part, a, 16);              // its rows start 16 numbers apart
    wmma::load_matrix_sync(b_part, b, 16);
    wmma::mma_sync(sums, a_part, b_part, sums);         // sums = a_part · b_part + sums
    wmma::store_matrix_sync(c, sums, 16, wmma::mem_row_major);
}

// A tile (16, 16) of c for each block, which is one warp. M, N, K are multiples of 16.
extern "C" __global__ void wmma_warp_cuda(const half* a, const half* w, float* c, int N, int K)
{
    int m = blockIdx.y * 16, n = blockIdx.x * 16;
    // exercise: three fragments; sums from 0; for k = 0, 16, ... load both and multiply; store
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a_part;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> w_part;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
    wmma::fill_fragment(sums, 0);
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(a_part, a + (size_t)m * K + k, K);
        wmma::load_matrix_sync(w_part, w + (size_t)n * K + k, K);
        wmma::mma_sync(sums, a_part, w_part, sums);
    }
    wmma::store_matrix_sync(c + (size_t)m * N + n, sums, N, wmma::mem_row_major);
}

// The same with sums in fp16, to see how much precision they lose.
extern "C" __global__ void wmma_half_sums_cuda(const half* a, const half* w, half* c, int N, int K)
{
    int m = blockIdx.y * 16, n = blockIdx.x * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a_part;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> w_part;
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> sums;
    wmma::fill_fragment(sums, 0);
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(a_part, a + (size_t)m * K + k, K);
        wmma::load_matrix_sync(w_part, w + (size_t)n * K + k, K);
        wmma::mma_sync(sums, a_part, w_part, sums);
    }
    wmma::store_matrix_sync(c + (size_t)m * N + n, sums, N, wmma::mem_row_major);
}

// Every thread writes its own number to all places of a fragment that it holds: which are whose?
extern "C" __global__ void holders_cuda(float* c)
{
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
    for (int i = 0; i < sums.num_elements; i++) sums.x[i] = threadIdx.x;
    wmma::store_matrix_sync(c, sums, 16, wmma::mem_row_major);
}

// Copies columns start to start + BK of TILE rows of x (rows, K) to a tile, with 0 beyond the end
// of x. 16 bytes a thread if rows start at multiples of 16 bytes.
__device__ void fetch(half (*tile)[BK + PAD], const half* x, int first, int start, int rows, int K)
{
    bool by16 = ((size_t)x | 2 * (size_t)K) % 16 == 0;
    int k = 8 * threadIdx.x % BK;
    int inside = K - start - k;                 // numbers of a row, from here on
    for (int row = 8 * threadIdx.x / BK; row < TILE; row += 8 * THREADS / BK) {
        const half* from = x + (size_t)(first + row) * K + start + k;
        bool is_row = first + row < rows;
        uint4 eight = {};
        if (is_row && by16 && inside >= 8)
            eight = *(const uint4*)from;
        else if (is_row)
            for (int j = 0; j < 8; j++)
                if (j < inside) ((half*)&eight)[j] = from[j];
        *(uint4*)&tile[row][k] = eight;
    }
}

// Copies the block's tile to c (M, N), from row m and column n on. itemsize: 2 if c is fp16, 4 if
// it is fp32.
__device__ void store(void* c, int itemsize, float (*tile)[TILE + PAD], int m, int n, int M, int N)
{
    int column = threadIdx.x % TILE;
    for (int row = threadIdx.x / TILE; row < TILE; row += THREADS / TILE)
        if (m + row < M && n + column < N) {
            size_t at = (size_t)(m + row) * N + n + column;
            if (itemsize == 2)
                ((half*)c)[at] = tile[row][column];
            else
                ((float*)c)[at] = tile[row][column];
        }
}

// A tile of c for each block, a quarter (32, 32) of it for each of its four warps.
extern "C" __global__ void __launch_bounds__(THREADS)
wmma_tiled_cuda(const half* a, const half* w, void* c, int itemsize, int M, int N, int K)
{
    __shared__ __align__(32) half a_tile[TILE][BK + PAD], w_tile[TILE][BK + PAD];
    __shared__ __align__(32) float c_tile[TILE][TILE + PAD];
    int m = blockIdx.y * TILE, n = blockIdx.x * TILE;
    int row = threadIdx.x / 64 * 32, column = threadIdx.x / 32 % 2 * 32;    // its quarter's first
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[4];           // row by row
    for (int i = 0; i < 4; i++) wmma::fill_fragment(sums[i], 0);
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a_part[2];
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> w_part[2];
    for (int start = 0; start < K; start += BK) {
        fetch(a_tile, a, m, start, M, K);
        fetch(w_tile, w, n, start, N, K);
        __syncthreads();
        // exercise: per 16 k load 2 + 2 fragments, 4 products; barrier. Then c_tile; barrier; store
        for (int k = 0; k < BK; k += 16) {
            for (int i = 0; i < 2; i++) {
                wmma::load_matrix_sync(a_part[i], &a_tile[row + 16 * i][k], BK + PAD);
                wmma::load_matrix_sync(w_part[i], &w_tile[column + 16 * i][k], BK + PAD);
            }
            for (int i = 0; i < 4; i++)
                wmma::mma_sync(sums[i], a_part[i / 2], w_part[i % 2], sums[i]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        wmma::store_matrix_sync(&c_tile[row + i / 2 * 16][column + i % 2 * 16], sums[i], TILE + PAD,
                                wmma::mem_row_major);
    __syncthreads();
    store(c, itemsize, c_tile, m, n, M, N);
}
