// k03 · Sum of n numbers, one sum a block; partial[b] is that of block b
//
// Reads n numbers, writes one a block, adds n - 1 times: 1/4 FLOP per byte in fp32. Memory is the
// limit, if nothing else gets in the way. Blocks have a power of two of threads, 32 or more.

// A tree in shared memory: first pairs, then pairs of pairs. One number a thread.
extern "C" __global__ void sum_tree_cuda(const float* x, float* partial, int n)
{
    extern __shared__ float a[];                // one number a thread, its size is given at launch
    int t = threadIdx.x;
    int i = blockIdx.x * blockDim.x + t;
    a[t] = i < n ? x[i] : 0;
    __syncthreads();
    for (int s = 1; s < blockDim.x; s *= 2) {
        if (t % (2 * s) == 0)
            a[t] += a[t + s];
        __syncthreads();                        // the next round reads what this one wrote
    }
    if (t == 0)
        partial[blockIdx.x] = a[0];
}

// As many additions and rounds, but by the fewest warps: neighbouring threads add.
extern "C" __global__ void sum_sequential_cuda(const float* x, float* partial, int n)
{
    extern __shared__ float a[];
    int t = threadIdx.x;
    int i = blockIdx.x * blockDim.x + t;
    a[t] = i < n ? x[i] : 0;
    __syncthreads();
    // exercise: in each round, add the upper half of the remaining numbers to the lower half
    for (int s = blockDim.x / 2; s > 0; s /= 2) {
        if (t < s)
            a[t] += a[t + s];
        __syncthreads();
    }
    if (t == 0)
        partial[blockIdx.x] = a[0];
}

// Returns, in thread 0, the sum of v over all threads of the block; other threads get other values.
// Call it once in a kernel: a second call could overwrite `warps` while it is still read.
__device__ float block_sum_cuda(float v)
{
    __shared__ float warps[32];                 // one number a warp; a block has at most 32
    int warp = threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    // exercise: shuffles add up each warp; lane 0 stores it; barrier; the first warp adds those up
    for (int away = 16; away > 0; away /= 2)
        v += __shfl_down_sync(0xffffffff, v, away);     // lane l adds what lane l + away has
    if (lane == 0)
        warps[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = lane < blockDim.x / 32 ? warps[lane] : 0;
        for (int away = 16; away > 0; away /= 2)
            v += __shfl_down_sync(0xffffffff, v, away);
    }
    return v;
}

// Registers in place of shared memory.
extern "C" __global__ void sum_shuffle_cuda(const float* x, float* partial, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = block_sum_cuda(i < n ? x[i] : 0);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = v;
}

// The sum of this thread's share of x. x starts at a multiple of 16 bytes; any grid takes any n.
__device__ float thread_sum_cuda(const float* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int step = gridDim.x * blockDim.x;
    // exercise: grid-stride loop over whole groups of four; then the last n % 4, one thread each
    float v = 0;
    for (int g = i; g < n / 4; g += step) {
        float4 four = ((const float4*)x)[g];
        v += (four.x + four.y) + (four.z + four.w);
    }
    if (i < n % 4)
        v += x[n - 1 - i];
    return v;
}

// Stores each thread's share, for the tests: sums[i] is that of thread i of the grid.
extern "C" __global__ void shares_cuda(const float* x, float* sums, int n)
{
    sums[blockIdx.x * blockDim.x + threadIdx.x] = thread_sum_cuda(x, n);
}

// Many numbers a thread, sixteen bytes a request.
extern "C" __global__ void sum_vector_cuda(const float* x, float* partial, int n)
{
    float v = block_sum_cuda(thread_sum_cuda(x, n));
    if (threadIdx.x == 0)
        partial[blockIdx.x] = v;
}

// No second pass: each block adds its sum to one total, in whatever order blocks end.
extern "C" __global__ void sum_atomic_cuda(const float* x, float* total, int n)
{
    float v = block_sum_cuda(thread_sum_cuda(x, n));
    if (threadIdx.x == 0)
        atomicAdd(total, v);
}
