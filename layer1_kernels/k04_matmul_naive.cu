// k04 · Matmul: c[m, n] = sum over k of a[m, k] · w[n, k]
//
// a: (M, K)   w: (N, K), as a model keeps a weight: numbers out, numbers in   c: (M, N)
// 2·M·N·K FLOPs on M·K + N·K + M·N numbers. Each kernel below asks for two numbers for each
// multiplication, so each is judged by the sectors that this costs.

// An element of c for each thread; neighbouring threads take neighbouring rows.
extern "C" __global__ void matmul_naive_cuda(const float* a, const float* w, float* c,
                                             int M, int N, int K)
{
    int m = blockIdx.x * blockDim.x + threadIdx.x;
    int n = blockIdx.y * blockDim.y + threadIdx.y;
    // exercise: c[m, n] is the dot product of row m of a and row n of w, if c has that element
    if (m < M && n < N) {
        float sum = 0;
        for (int k = 0; k < K; k++)
            sum += a[(size_t)m * K + k] * w[(size_t)n * K + k];
        c[(size_t)m * N + n] = sum;
    }
}

// The same, x and y swapped: neighbouring threads take neighbouring columns.
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

// An element of c for each warp; its 32 threads share the sum. Blocks of (32, any) threads.
extern "C" __global__ void matmul_coalesced_cuda(const float* a, const float* w, float* c,
                                                 int M, int N, int K)
{
    int m = blockIdx.y;
    int n = blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= N)                                 // all threads of the warp, or none
        return;
    // exercise: neighbouring threads take neighbouring k; 32 sums become one; one thread stores it
    float sum = 0;
    for (int k = threadIdx.x; k < K; k += 32)
        sum += a[(size_t)m * K + k] * w[(size_t)n * K + k];
    for (int away = 16; away > 0; away /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, away);
    if (threadIdx.x == 0)
        c[(size_t)m * N + n] = sum;
}
