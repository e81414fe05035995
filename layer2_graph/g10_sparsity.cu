// g10 · Sparsity: y[t, n] = sum over k of x[t, k] · w[n, k], where of four neighbours of w two are zero
//
// x: (T, K)   w: (N, K)   y: (T, N)   x and w are fp16, y and its sums fp32; K is a multiple of 32
// values: (N, K / 2), what stays of w   meta: (N, K / 8) bytes, where it stands: as pack_2_4 has them
// A warp makes 16 numbers of 8 tokens: w is the A of the tensor cores, x their B.

#include <cuda_fp16.h>

constexpr int ROWS = 16;            // of w, which a warp multiplies
constexpr int TOKENS = 8;           // rows of x
constexpr unsigned FIRST_TWO = 0x4444;      // metadata of four groups: the places 0 and 1 of each

// Two neighbours of a row, or zeros where the row lies beyond the matrix
__device__ unsigned pair(const half* x, int row, int rows, int width, int column)
{
    return row < rows ? *(const unsigned*)&x[(size_t)row * width + column] : 0;
}

// The places of 16 columns of a row of w, from column k on: 16 bits
__device__ unsigned places(const unsigned char* meta, int row, int rows, int K, int k)
{
    return row < rows ? *(const unsigned short*)&meta[(size_t)row * (K / 8) + k / 8] : FIRST_TWO;
}

__device__ void mma(float d[4], const unsigned a[4], const unsigned b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same with twice the k: a (16, 16) is what stays of (16, 32), and b is (32, 8). Places are read
// from lanes 4 · i and 4 · i + 1, 16 columns each: row i in the low half, row i + 8 in the high one.
__device__ void mma_sparse(float d[4], const unsigned a[4], const unsigned b[4], unsigned place)
{
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
                   "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(place));
}

// 16 rows of x (rows, width) from row n and 16 columns from `column` on, as a warp holds its A
__device__ void load_a(unsigned a[4], const half* x, int n, int rows, int width, int column)
{
    int row = n + threadIdx.x / 4, at = column + threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; i++)
        a[i] = pair(x, row + i % 2 * 8, rows, width, at + i / 2 * 8);
}

__device__ void store(float* y, int t, int n, int T, int N, const float sums[4])
{
    for (int i = 0; i < 4; i++) {
        int row = n + threadIdx.x / 4 + i / 2 * 8, token = t + threadIdx.x % 4 * 2 + i % 2;
        if (row < N && token < T) y[(size_t)token * N + row] = sums[i];
    }
}

// All of w, 16 columns at a time
extern "C" __global__ void dense_mma_cuda(const half* x, const half* w, float* y, int T, int N, int K)
{
    int n = blockIdx.x * ROWS, t = blockIdx.y * TOKENS;
    int token = t + threadIdx.x / 4, lane = threadIdx.x % 4;
    float sums[4] = {};
    for (int k = 0; k < K; k += 16) {
        unsigned a[4], b[2];
        load_a(a, w, n, N, K, k);
        for (int i = 0; i < 2; i++) b[i] = pair(x, token, T, K, k + 8 * i + 2 * lane);
        mma(sums, a, b);
    }
    store(y, t, n, T, N, sums);
}

// What stays of w, 32 columns at a time
extern "C" __global__ void sparse_mma_cuda(const half* x, const half* values,
                                           const unsigned char* meta, float* y, int T, int N, int K)
{
    int n = blockIdx.x * ROWS, t = blockIdx.y * TOKENS;
    int token = t + threadIdx.x / 4, lane = threadIdx.x % 4, row = n + threadIdx.x / 4;
    float sums[4] = {};
    for (int k = 0; k < K; k += 32) {
        unsigned a[4], b[4];
        load_a(a, values, n, N, K / 2, k / 2);
        for (int i = 0; i < 4; i++) b[i] = pair(x, token, T, K, k + 8 * i + 2 * lane);
        unsigned place = 0;
        if (lane < 2)               // the other two lanes of four are not read
            place = places(meta, row, N, K, k + 16 * lane) |
                    places(meta, row + 8, N, K, k + 16 * lane) << 16;
        mma_sparse(sums, a, b, place);
    }
    store(y, t, n, T, N, sums);
}
