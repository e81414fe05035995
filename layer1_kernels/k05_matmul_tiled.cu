// k05 · Matmul: c[m, n] = sum over k of a[m, k] · w[n, k]
//
// a: (M, K)   w: (N, K), as a model stores a weight: outputs × inputs   c: (M, N)
// 2·M·N·K FLOPs on M·K + N·K + M·N numbers. A block of threads computes a tile of c; what one
// thread loads, all of them use.

constexpr int TILE = 32;            // rows and columns of a tile; a warp is one row of it

// One element of c for each thread of (TILE, TILE); neighbouring threads take neighbouring columns.
extern "C" __global__ void matmul_tiled_cuda(const float* a, const float* w, float* c,
                                             int M, int N, int K)
{
    int x = threadIdx.x;
    int y = threadIdx.y;
    int m = blockIdx.y * TILE + y;
    int n = blockIdx.x * TILE + x;
    int row = blockIdx.x * TILE + y;            // of w, which this thread loads for the others
    // Threads whose element does not exist load and wait too, for the others.
    // exercise: in each step along k load a tile of a and of w, wait, multiply, wait; then store
    __shared__ float a_tile[TILE][TILE];
    __shared__ float w_tile[TILE][TILE + 1];    // + 1: a warp reads down a column
    float sum = 0;
    for (int start = 0; start < K; start += TILE) {
        int k = start + x;
        a_tile[y][x] = m < M && k < K ? a[(size_t)m * K + k] : 0;
        w_tile[y][x] = row < N && k < K ? w[(size_t)row * K + k] : 0;
        __syncthreads();                        // both tiles are complete
        for (int i = 0; i < TILE; i++)
            sum += a_tile[y][i] * w_tile[x][i];
        __syncthreads();                        // all threads have used them
    }
    if (m < M && n < N)
        c[(size_t)m * N + n] = sum;
}
