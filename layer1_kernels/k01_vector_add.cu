// k01 · Vector add: z[i] = x[i] + y[i]
//
// n: elements. Reads 2n numbers and writes n, one addition each: 1/12 FLOP per byte in fp32.
// Memory decides, so each kernel below is judged by how it asks for its bytes.

// One element a thread.
extern "C" __global__ void add_cuda(const float* x, const float* y, float* z, int n)
{
    // exercise: which element is this thread's, and does it exist?
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)                                  // the last block may reach past the end
        z[i] = x[i] + y[i];
}

// Four neighbouring elements a thread, one after the other: natural on a CPU, and wrong here.
extern "C" __global__ void add_chunk_cuda(const float* x, const float* y, float* z, int n)
{
    int first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    for (int i = first; i < min(first + 4, n); i++)
        z[i] = x[i] + y[i];
}

// A grid of any size: each thread goes on by as many elements as the whole grid has threads.
extern "C" __global__ void add_grid_stride_cuda(const float* x, const float* y, float* z, int n)
{
    // exercise: start at this thread's own element, step by the number of threads in the grid
    int step = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        z[i] = x[i] + y[i];
}

// Four neighbouring elements a thread again, now in one 16-byte request.
extern "C" __global__ void add_vector_cuda(const float* x, const float* y, float* z, int n)
{
    int first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    // exercise: four elements at once as float4; fewer than four at the end one by one
    if (first + 4 <= n) {
        float4 a = *(const float4*)(x + first), b = *(const float4*)(y + first);
        *(float4*)(z + first) = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    } else
        for (int i = first; i < n; i++)
            z[i] = x[i] + y[i];
}
