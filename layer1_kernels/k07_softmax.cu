// k07 · Softmax of each row: y = exp(x - max) / sum of exp(x - max)
//
// R: rows, one block each   C: columns
// Reads R·C numbers, writes R·C, 5 FLOPs each: 5/8 FLOP per byte in fp32. Memory is the limit, so
// each kernel below is judged by how often it reads its row. A block has a multiple of 32 threads.

#include <cfloat>

__shared__ float warps[32];                     // for block_reduce: one number a warp

__device__ float add(float a, float b) { return a + b; }

// Combines the values of all threads of the block; every thread gets the result.
// `nothing` is the neutral element: combine(v, nothing) is v.
template <float combine(float, float)>
__device__ float block_reduce(float v, float nothing)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int away = 16; away > 0; away /= 2)    // lanes l and l ^ away exchange and combine
        v = combine(v, __shfl_xor_sync(0xffffffff, v, away));
    if (lane == 0)
        warps[warp] = v;
    __syncthreads();                            // every warp has written
    v = lane < blockDim.x / 32 ? warps[lane] : nothing;
    for (int away = 16; away > 0; away /= 2)
        v = combine(v, __shfl_xor_sync(0xffffffff, v, away));
    __syncthreads();                            // every warp has read: the next call may write
    return v;
}

__device__ float block_max(float v) { return block_reduce<fmaxf>(v, -INFINITY); }
__device__ float block_sum(float v) { return block_reduce<add>(v, 0); }

// Three passes over the row: maximum, sum, result.
extern "C" __global__ void softmax_three_pass_cuda(const float* x, float* y, int C)
{
    x += (size_t)blockIdx.x * C;                // this block's row
    y += (size_t)blockIdx.x * C;
    float m = -INFINITY, s = 0;                 // of this thread's columns, then of the row
    for (int c = threadIdx.x; c < C; c += blockDim.x)
        m = fmaxf(m, x[c]);
    m = block_max(m);
    for (int c = threadIdx.x; c < C; c += blockDim.x)
        s += expf(x[c] - m);
    s = block_sum(s);
    for (int c = threadIdx.x; c < C; c += blockDim.x)
        y[c] = expf(x[c] - m) / s;
}

// The same three passes, the last two over a copy of the row in shared memory, if it fits there.
extern "C" __global__ void softmax_fused_cuda(const float* x, float* y, int C)
{
    extern __shared__ float row[];              // C numbers; the launch says how many bytes
    x += (size_t)blockIdx.x * C;
    y += (size_t)blockIdx.x * C;
    // exercise: read each x[c] once; keep in row[c] what you need again
    float m = -INFINITY, s = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        row[c] = x[c];
        m = fmaxf(m, row[c]);
    }
    m = block_max(m);
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        row[c] = expf(row[c] - m);
        s += row[c];
    }
    s = block_sum(s);
    for (int c = threadIdx.x; c < C; c += blockDim.x)
        y[c] = row[c] / s;
}

// Rows of any length: maximum and sum in one pass; the sum is rescaled when the maximum grows.
extern "C" __global__ void softmax_online_cuda(const float* x, float* y, int C)
{
    x += (size_t)blockIdx.x * C;
    y += (size_t)blockIdx.x * C;
    // exercise: one pass to compute this thread's (m, s); merge over the block; one pass to write
    float m = -FLT_MAX, s = 0;                  // finite: -inf minus -inf would be NaN
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        float v = x[c];
        float larger = fmaxf(m, v);
        s = s * expf(m - larger) + expf(v - larger);
        m = larger;
    }
    float row_m = block_max(m);
    s = block_sum(s * expf(m - row_m));
    for (int c = threadIdx.x; c < C; c += blockDim.x)
        y[c] = expf(x[c] - row_m) / s;
}
