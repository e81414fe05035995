// k11 · Cross-entropy of each row: log of the sum of exp(logits), minus the target's logit
//
// T: rows, one block each   V: columns   Rows of logits start `row` numbers apart.
// A few FLOPs for each number read: memory is the limit. blockDim.x is a multiple of 32.

#include <cfloat>

struct Part { float m, s; };                    // maximum m of some columns, sum of exp(x - m)

__shared__ Part warps[32];                      // of block_merge: one part a warp

__device__ Part merge(Part a, Part b)
{
    float m = fmaxf(a.m, b.m);
    return {m, a.s * expf(a.m - m) + b.s * expf(b.m - m)};
}

__device__ Part warp_merge(Part v)
{
    for (int away = 16; away > 0; away /= 2)    // lane l and lane l ^ away swap and merge
        v = merge(v, {__shfl_xor_sync(0xffffffff, v.m, away),
                      __shfl_xor_sync(0xffffffff, v.s, away)});
    return v;
}

// Merges the parts of all threads of the block; every thread gets the result.
__device__ Part block_merge(Part v)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    v = warp_merge(v);
    if (lane == 0)
        warps[warp] = v;
    __syncthreads();                            // every warp has written
    v = lane < blockDim.x / 32 ? warps[lane] : Part{-FLT_MAX, 0};
    v = warp_merge(v);
    __syncthreads();                            // every warp has read: the next call may write
    return v;
}

__device__ void write_loss(Part all, const float* x, long long target, float* loss, int V,
                           long long ignore)
{
    if (threadIdx.x == 0) {
        float own = target >= 0 && target < V ? x[target] : NAN;
        *loss = target == ignore ? 0 : logf(all.s) + (all.m - own);
    }
}

// Two passes: one for the maximum, one for the sum.
extern "C" __global__ void cross_entropy_two_read_cuda(const float* logits,
                                                       const long long* targets, float* losses,
                                                       int V, long long row, long long ignore)
{
    const float* x = logits + blockIdx.x * row;
    Part part = {-FLT_MAX, 0};                  // of this thread's columns
    for (int c = threadIdx.x; c < V; c += blockDim.x)
        part.m = fmaxf(part.m, x[c]);
    part.m = block_merge(part).m;
    for (int c = threadIdx.x; c < V; c += blockDim.x)
        part.s += expf(x[c] - part.m);
    write_loss(block_merge(part), x, targets[blockIdx.x], losses + blockIdx.x, V, ignore);
}

// One pass: the sum is rescaled whenever the maximum grows.
extern "C" __global__ void cross_entropy_online_cuda(const float* logits, const long long* targets,
                                                     float* losses, int V, long long row,
                                                     long long ignore)
{
    const float* x = logits + blockIdx.x * row;
    Part part = {-FLT_MAX, 0};
    for (int c = threadIdx.x; c < V; c += blockDim.x) {
        float v = x[c], larger = fmaxf(part.m, v);
        part = {larger, part.s * expf(part.m - larger) + expf(v - larger)};
    }
    write_loss(block_merge(part), x, targets[blockIdx.x], losses + blockIdx.x, V, ignore);
}
