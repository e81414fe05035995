// k10 · SwiGLU: y = SiLU(gate) · up, with SiLU(g) = g / (1 + exp(-g))
//
// T: rows   F: columns   Rows of gate and up start gate_stride and up_stride numbers apart, so both
// may be halves of one array. Rows of y are contiguous.
// Reads 2·T·F numbers and writes T·F, 5 FLOPs per result: 5/12 FLOP per byte in fp32. Memory is the
// limit.

__device__ float silu(float g) { return g / (1 + expf(-g)); }

// One result a thread. A row has ⌈F / blockDim.x⌉ blocks; some threads of its last may be idle.
extern "C" __global__ void swiglu_scalar_cuda(const float* gate, const float* up, float* y, int F,
                                              long long gate_stride, long long up_stride)
{
    int blocks = (F + blockDim.x - 1) / blockDim.x;             // of a row
    size_t t = blockIdx.x / blocks;
    int f = blockIdx.x % blocks * blockDim.x + threadIdx.x;
    if (f < F)
        y[t * F + f] = silu(gate[t * gate_stride + f]) * up[t * up_stride + f];
}

// Four results a thread, 16 bytes of each array at once. F and both strides are multiples of 4.
extern "C" __global__ void swiglu_vector_cuda(const float* gate, const float* up, float* y, int F,
                                              long long gate_stride, long long up_stride)
{
    int blocks = (F / 4 + blockDim.x - 1) / blockDim.x;
    size_t t = blockIdx.x / blocks;
    int f = 4 * (blockIdx.x % blocks * blockDim.x + threadIdx.x);
    if (f < F) {
        float4 g = *(const float4*)(gate + t * gate_stride + f);
        float4 u = *(const float4*)(up + t * up_stride + f);
        *(float4*)(y + t * F + f) = make_float4(silu(g.x) * u.x, silu(g.y) * u.y,
                                                silu(g.z) * u.z, silu(g.w) * u.w);
    }
}
