// k04 · Matmul: c[m, n] = sum over k of a[m, k] · w[n, k]
//
// a: (M, K)   w: (N, K), as a model stores a weight: outputs × inputs   c: (M, N)
// 2·M·N·K FLOPs on M·K + N·K + M·N numbers. The kernels below load each number many times; they
// differ in the sectors that this takes.

// One element of c for each thread; neighbouring threads take neighbouring rows of c.
extern "C" __global__ void matmul_naive_cuda(const float* a, const float* w, float* c,
                                             int M, int N, int K)
{
    int m = blockIdx.x * blockDim.x + threadIdx.x;
    int n = blockIdx.y * blockDim.y + threadIdx.y;
    // exercise: if c has that element, store the dot product of row m of a and row n of w
    if (m < M && n < N) {
        float sum = 0;
        for (int k = 0; k < K; k++)
            sum += a[(size_t)m * K + k] * w[(size_t)n * K + k];
        c[(size_t)m * N + n] = sum;
    }
}

// As above with x and y swapped: neighbouring threads take neighbouring columns of c.
extern "C" __global__ void matmul_swapped_cuda(const float* a, const float* w, float* c,
                                               int M, int N, int K)
{
    int m = blockIdx.y * blockDim.y + threadIdx.y;
    int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (m < M && n < N) {
        float sum = 0;
        for (int k = 0; k < K; k++)
            sum += a[(size_t)m * K + k] * w[(size_t)n * K + k];
        c[(size_t)m * N + n] = sum;
    }
}

// One element of c for each warp; its 32 threads share the sum. Blocks of (32, any) threads.
extern "C" __global__ void matmul_coalesced_cuda(const float* a, const float* w, float* c,
                                                 int M, int N, int K)
{
    int m = blockIdx.y;
    int n = blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= N)             // for all threads of a warp or for none, so the shuffles are safe
        return;
    // exercise: neighbouring threads take neighbouring k; add the 32 sums; let one lane store
    float sum = 0;
    for (int k = threadIdx.x; k < K; k += 32)
        sum += a[(size_t)m * K + k] * w[(size_t)n * K + k];
    for (int away = 16; away > 0; away /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, away);
    if (threadIdx.x == 0)
        c[(size_t)m * N + n] = sum;
}
