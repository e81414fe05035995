// k08 · RMSNorm of each row: y = x / sqrt(mean of x² + eps) · w, and the residual addition before it
//
// T: rows, one block each   C: columns
// Reads T·C numbers, writes T·C, 4 FLOPs per number: 1/2 FLOP per byte in fp32. Memory is the limit,
// so each kernel below is judged by how often it reads its row. Block sizes are multiples of 32.

__shared__ float warps[32];                     // for block_sum: one number a warp

// The sum over all threads of the block, returned to every thread. Call it only once per kernel: a
// second call could overwrite `warps` while other threads still read it.
__device__ float block_sum(float v)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int away = 16; away > 0; away /= 2)    // lanes l and l ^ away exchange and add
        v += __shfl_xor_sync(0xffffffff, v, away);
    if (lane == 0)
        warps[warp] = v;
    __syncthreads();                            // every warp has written
    v = lane < blockDim.x / 32 ? warps[lane] : 0;
    for (int away = 16; away > 0; away /= 2)
        v += __shfl_xor_sync(0xffffffff, v, away);
    return v;
}

// Two passes over the row: mean square, result. For rows of any length.
extern "C" __global__ void rmsnorm_two_read_cuda(const float* x, const float* w, float* y,
                                                 int C, float eps)
{
    x += (size_t)blockIdx.x * C;                // this block's row
    y += (size_t)blockIdx.x * C;
    float squares = 0;                          // of this thread's columns
    for (int c = threadIdx.x; c < C; c += blockDim.x)
        squares += x[c] * x[c];
    float scale = rsqrtf(block_sum(squares) / C + eps);
    for (int c = threadIdx.x; c < C; c += blockDim.x)
        y[c] = x[c] * scale * w[c];
}

// The same two passes, the second over a copy of the row in shared memory. For rows that fit there.
extern "C" __global__ void rmsnorm_one_read_cuda(const float* x, const float* w, float* y,
                                                 int C, float eps)
{
    extern __shared__ float row[];              // C numbers; a thread reads only its own columns
    x += (size_t)blockIdx.x * C;
    y += (size_t)blockIdx.x * C;
    float squares = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        row[c] = x[c];
        squares += row[c] * row[c];
    }
    float scale = rsqrtf(block_sum(squares) / C + eps);
    for (int c = threadIdx.x; c < C; c += blockDim.x)
        y[c] = row[c] * scale * w[c];
}

// Normalises the sum x + residual while it is on the chip, and writes it for the next addition.
extern "C" __global__ void add_rmsnorm_fused_cuda(const float* x, const float* residual,
                                                  const float* w, float* y, float* sum,
                                                  int C, float eps)
{
    extern __shared__ float row[];
    x += (size_t)blockIdx.x * C;
    residual += (size_t)blockIdx.x * C;
    y += (size_t)blockIdx.x * C;
    sum += (size_t)blockIdx.x * C;
    float squares = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        row[c] = sum[c] = x[c] + residual[c];
        squares += row[c] * row[c];
    }
    float scale = rsqrtf(block_sum(squares) / C + eps);
    for (int c = threadIdx.x; c < C; c += blockDim.x)
        y[c] = row[c] * scale * w[c];
}
