// k05 · Matmul: c[m, n] = sum over k of a[m, k] · w[n, k]
//
// a: (M, K)   w: (N, K), as a model keeps a weight: numbers out, numbers in   c: (M, N)
// 2·M·N·K FLOPs on M·K + N·K + M·N numbers. A block of threads makes a tile of c, and all of
// them use what it fetches for that.

constexpr int TILE = 32;            // rows and columns of a tile; a warp is one row of it

// An element of c for each thread of (TILE, TILE); neighbouring threads take neighbouring columns.
extern "C" __global__ void matmul_tiled_cuda(const float* a, const float* w, float* c,
                                             int M, int N, int K)
{
    int x = threadIdx.x, y = threadIdx.y;
    int m = blockIdx.y * TILE + y;
    int n = blockIdx.x * TILE + x;
    int row = blockIdx.x * TILE + y;            // of w, which this thread fetches for the others
    // exercise: step by step along k: fetch a tile of a and of w, wait, multiply, wait
    __shared__ float a_tile[TILE][TILE], w_tile[TILE][TILE + 1];    // + 1: read down its columns
    float sum = 0;
    for (int start = 0; start < K; start += TILE) {
        int k = start + x;
        a_tile[y][x] = m < M && k < K ? a[(size_t)m * K + k] : 0;
        w_tile[y][x] = row < N && k < K ? w[(size_t)row * K + k] : 0;
        __syncthreads();                        // the tiles are there
        for (int i = 0; i < TILE; i++)
            sum += a_tile[y][i] * w_tile[x][i];
        __syncthreads();                        // no thread needs them any more
    }
    if (m < M && n < N)
        c[(size_t)m * N + n] = sum;
}
