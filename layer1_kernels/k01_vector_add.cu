// k01 · Vector add: z[i] = x[i] + y[i]
//
// n: elements. Reads 2n numbers and writes n, one addition each: 1/12 FLOP per byte in fp32.
// Memory is the limit, so each kernel below is judged by the requests that it makes.

// One element a thread.
extern "C" __global__ void add_cuda(const float* x, const float* y, float* z, int n)
{
    // exercise: compute i, this thread's element; if it exists, add
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)                                  // the last block may reach past the end
        z[i] = x[i] + y[i];
}

// Four neighbouring elements a thread, one after the other: right on a CPU, wasteful here.
extern "C" __global__ void add_chunk_cuda(const float* x, const float* y, float* z, int n)
{
    int first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    for (int i = first; i < min(first + 4, n); i++)
        z[i] = x[i] + y[i];
}

// A grid of any size: each round is one element a thread, for all threads in the grid.
extern "C" __global__ void add_grid_stride_cuda(const float* x, const float* y, float* z, int n)
{
    // exercise: loop from this thread's own element; the step is all threads in the grid
    int step = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        z[i] = x[i] + y[i];
}

// Four neighbouring elements a thread again, now in one 16-byte request.
extern "C" __global__ void add_vector_cuda(const float* x, const float* y, float* z, int n)
{
    int first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    // exercise: if all four elements exist, add them as float4; else one by one those that exist
    if (first + 4 <= n) {
        float4 a = *(const float4*)(x + first);
        float4 b = *(const float4*)(y + first);
        *(float4*)(z + first) = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    } else
        for (int i = first; i < n; i++)
            z[i] = x[i] + y[i];
}
