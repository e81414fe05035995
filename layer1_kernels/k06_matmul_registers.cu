// k06 · Matmul: c[m, n] = sum over k of a[m, k] · w[n, k]
//
// a: (M, K)   w: (N, K), as a model stores a weight: outputs × inputs   c: (M, N)
// 2·M·N·K FLOPs on M·K + N·K + M·N numbers. A block computes a tile (BM, BN) of c, and each of its
// threads a tile (TM, TN) of that. What matters below is how much is read from shared memory.

constexpr int BK = 8;               // k fetched in one step: 32 bytes of a row, one sector
constexpr int PAD = 4;              // unused numbers in a row of a tile: no conflicts in fetch

// Copies columns start to start + BK of ROWS rows of x (rows, K), from row `first` on, to
// tile[k][row]: transposed, and 0 beyond the end of x.
template <int ROWS>
__device__ void fetch(float (*tile)[ROWS + PAD], const float* x, int first, int start,
                      int rows, int K)
{
    int k = threadIdx.x % BK;
    for (int row = threadIdx.x / BK; row < ROWS; row += blockDim.x / BK) {
        bool inside = first + row < rows && start + k < K;
        tile[k][row] = inside ? x[(size_t)(first + row) * K + start + k] : 0;
    }
}

// The same, 16 bytes a thread. K is a multiple of 4, and x starts at a multiple of 16 bytes.
template <int ROWS>
__device__ void fetch4(float (*tile)[ROWS + PAD], const float* x, int first, int start,
                       int rows, int K)
{
    int k = 4 * threadIdx.x % BK;
    for (int row = 4 * threadIdx.x / BK; row < ROWS; row += 4 * blockDim.x / BK) {
        float4 v = {};
        if (first + row < rows && start + k < K)
            v = *(const float4*)(x + (size_t)(first + row) * K + start + k);
        tile[k][row] = v.x;
        tile[k + 1][row] = v.y;
        tile[k + 2][row] = v.z;
        tile[k + 3][row] = v.w;
    }
}

// Writes v[0] to v[3] to row m of c (M, N), from column n on: at once if N is a multiple of 4.
__device__ void store4(float* c, int m, int n, int M, int N, const float* v)
{
    float* to = c + (size_t)m * N + n;
    if (m < M && n < N && N % 4 == 0)
        *(float4*)to = make_float4(v[0], v[1], v[2], v[3]);
    else if (m < M)
        for (int j = 0; j < 4 && n + j < N; j++)
            to[j] = v[j];
}

// Writes v to c[m][n], if c (M, N) has that element.
__device__ void store(float* c, int m, int n, int M, int N, float v)
{
    if (m < M && n < N)
        c[(size_t)m * N + n] = v;
}

// A thread tile of 8 x 1. 512 threads; thread (x, y) has column x and rows y, y + 8, ... y + 56.
extern "C" __global__ void matmul_strip_cuda(const float* a, const float* w, float* c,
                                             int M, int N, int K)
{
    constexpr int BM = 64, BN = 64, TM = 8;
    __shared__ float a_tile[BK][BM + PAD];                          // transposed: [k][row]
    __shared__ float w_tile[BK][BN + PAD];
    int x = threadIdx.x % BN;
    int y = threadIdx.x / BN;
    int m = blockIdx.y * BM;                                        // of the block's tile
    int n = blockIdx.x * BN;
    float sums[TM] = {};
    for (int start = 0; start < K; start += BK) {
        fetch<BM>(a_tile, a, m, start, M, K);
        fetch<BN>(w_tile, w, n, start, N, K);
        __syncthreads();
        // exercise: for each k read one number of w, add to TM sums; barrier; after the loop store
        for (int k = 0; k < BK; k++) {
            float w_part = w_tile[k][x];
            for (int i = 0; i < TM; i++)
                sums[i] += a_tile[k][y + BM / TM * i] * w_part;
        }
        __syncthreads();
    }
    for (int i = 0; i < TM; i++)
        store(c, m + y + BM / TM * i, n + x, M, N, sums[i]);
}

// A thread tile of 8 x 8. 256 threads; thread (x, y) has rows y, y + 16, ... y + 112 and columns
// x, x + 16, ... x + 112.
extern "C" __global__ void __launch_bounds__(256, 2)
matmul_square_cuda(const float* a, const float* w, float* c, int M, int N, int K)
{
    constexpr int BM = 128, BN = 128, TM = 8, TN = 8, SIDE = 16;
    __shared__ float a_tile[BK][BM + PAD];
    __shared__ float w_tile[BK][BN + PAD];
    int x = threadIdx.x % SIDE;
    int y = threadIdx.x / SIDE;
    int m = blockIdx.y * BM;
    int n = blockIdx.x * BN;
    float sums[TM][TN] = {};
    for (int start = 0; start < K; start += BK) {
        fetch<BM>(a_tile, a, m, start, M, K);
        fetch<BN>(w_tile, w, n, start, N, K);
        __syncthreads();
        // exercise: for each k read TM + TN numbers, then add all products; barrier; then store
        for (int k = 0; k < BK; k++) {
            float a_part[TM], w_part[TN];
            for (int i = 0; i < TM; i++) a_part[i] = a_tile[k][y + SIDE * i];
            for (int j = 0; j < TN; j++) w_part[j] = w_tile[k][x + SIDE * j];
            for (int i = 0; i < TM; i++)
                for (int j = 0; j < TN; j++) sums[i][j] += a_part[i] * w_part[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < TM; i++)
        for (int j = 0; j < TN; j++)
            store(c, m + y + SIDE * i, n + x + SIDE * j, M, N, sums[i][j]);
}

// The same with float4: thread (x, y) has rows 4y to 4y + 3 and columns 4x to 4x + 3 of each half
// of the tile.
extern "C" __global__ void __launch_bounds__(256, 1)
matmul_vector_cuda(const float* a, const float* w, float* c, int M, int N, int K)
{
    constexpr int BM = 128, BN = 128, TM = 8, TN = 8, SIDE = 16;
    __shared__ float4 a_tile[BK][(BM + PAD) / 4];
    __shared__ float4 w_tile[BK][(BN + PAD) / 4];
    int x = threadIdx.x % SIDE;
    int y = threadIdx.x / SIDE;
    int m = blockIdx.y * BM;
    int n = blockIdx.x * BN;
    float sums[TM][TN] = {};
    for (int start = 0; start < K; start += BK) {
        fetch4<BM>((float(*)[BM + PAD])a_tile, a, m, start, M, K);
        fetch4<BN>((float(*)[BN + PAD])w_tile, w, n, start, N, K);
        __syncthreads();
        // exercise: for each k read two float4 of a and of w, add all products; barrier; store4
        for (int k = 0; k < BK; k++) {
            float4 a_part[2] = {a_tile[k][y], a_tile[k][y + SIDE]};
            float4 w_part[2] = {w_tile[k][x], w_tile[k][x + SIDE]};
            for (int i = 0; i < TM; i++)
                for (int j = 0; j < TN; j++)
                    sums[i][j] += ((float*)a_part)[i] * ((float*)w_part)[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < TM; i++)
        for (int j = 0; j < TN; j += 4)
            store4(c, m + 4 * y + i % 4 + i / 4 * BM / 2, n + 4 * x + j / 4 * BN / 2, M, N,
                   &sums[i][j]);
}
