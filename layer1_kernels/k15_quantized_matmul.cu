// k15 · One row times weights of 8 or 4 bits: y[t, n] = sum over k of x[t, k] · q[n, k] · scale
//
// N: rows of w, one warp for each   K: numbers of a row, a multiple of `group`   t: blockIdx.y
// Packed int8: K bytes a row. Packed int4: K / 2; byte i of a group holds its weight i in the low 4
// bits and weight i + group / 2 in the high 4, both with 8 added.
// One row of x: 2 FLOPs for each byte or half byte. The limit is memory, or the instructions that
// unpack.

__device__ float sum_of_warp(float v)
{
    for (int away = 16; away > 0; away /= 2)    // lane l and lane l ^ away swap and add
        v += __shfl_xor_sync(0xffffffff, v, away);
    return v;
}

// The product of one packed byte and its number of x, or its two numbers if int4.
template <int BITS> __device__ float times(unsigned byte, float low, float high)
{
    if (BITS == 8)
        return (float)(signed char)byte * low;
    return ((float)(byte & 15) - 8) * low + ((float)(byte >> 4) - 8) * high;
}

// Each thread loads one byte at a time, with its scale.
template <int BITS> __device__ void gemv_bytes(const float* x, const unsigned char* packed,
                                               const float* scales, float* y,
                                               int N, int K, int group)
{
    int n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (n >= N)
        return;
    int row = K / 8 * BITS, bytes = group / 8 * BITS;       // of a row, of a group
    x += (size_t)blockIdx.y * K;
    packed += (size_t)n * row;
    scales += (size_t)n * (K / group);
    float sum = 0;
    for (int b = lane; b < row; b += 32) {
        int k = b / bytes * group + b % bytes;
        unsigned char byte = packed[b];
        float high = BITS == 4 ? x[k + group / 2] : 0;
        float product = times<BITS>(byte, x[k], high);
        float scale = scales[b / bytes];
        sum += product * scale;
    }
    sum = sum_of_warp(sum);
    if (lane == 0)
        y[(size_t)blockIdx.y * N + n] = sum;
}

// Each thread loads 16 bytes of one group at a time, with one scale. bytes is a multiple of 16.
template <int BITS> __device__ void gemv_wide(const float* x, const unsigned char* packed,
                                              const float* scales, float* y,
                                              int N, int K, int group)
{
    int n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (n >= N)
        return;
    int row = K / 8 * BITS, bytes = group / 8 * BITS;
    x += (size_t)blockIdx.y * K;
    packed += (size_t)n * row;
    scales += (size_t)n * (K / group);
    float sum = 0;
    for (int b = 16 * lane; b < row; b += 16 * 32) {
        int k = b / bytes * group + b % bytes;
        uint4 w = *(const uint4*)(packed + b);
        unsigned words[4] = {w.x, w.y, w.z, w.w};
        float part = 0;
        for (int i = 0; i < 4; i++) {
            float4 low = *(const float4*)(x + k + 4 * i);
            float4 high = {};
            if (BITS == 4)
                high = *(const float4*)(x + k + group / 2 + 4 * i);
            part += times<BITS>(words[i] & 255, low.x, high.x);
            part += times<BITS>(words[i] >> 8 & 255, low.y, high.y);
            part += times<BITS>(words[i] >> 16 & 255, low.z, high.z);
            part += times<BITS>(words[i] >> 24, low.w, high.w);
        }
        float scale = scales[b / bytes];
        sum += part * scale;
    }
    sum = sum_of_warp(sum);
    if (lane == 0)
        y[(size_t)blockIdx.y * N + n] = sum;
}

#define KERNEL(name, BITS) \
    extern "C" __global__ void name##_int##BITS##_cuda( \
        const float* x, const unsigned char* packed, const float* scales, float* y, \
        int N, int K, int group) { name<BITS>(x, packed, scales, y, N, K, group); }

KERNEL(gemv_bytes, 8)
KERNEL(gemv_bytes, 4)
KERNEL(gemv_wide, 8)
KERNEL(gemv_wide, 4)
