// k09 · Rotary positions: rotates each pair (a, b) of a head by its angle, in place
//
// T: tokens   H: heads of q   G: heads of k   half: pairs of a head, number d with number d + half
// Tokens start `row` numbers apart, heads of a token `head` numbers apart. cos and sin have one row of
// `half` numbers per position. A pair moves 4 numbers for 6 FLOPs: memory is the limit.

__device__ void turn(float* first, int half, float c, float s)
{
    float a = first[0], b = first[half];        // both, before either is written
    first[0] = a * c - b * s;
    first[half] = b * c + a * s;
}

// One block per head and token, for one array. Each block reads the token's angles.
extern "C" __global__ void rope_heads_cuda(float* x, const float* cos, const float* sin,
                                           const long long* positions, long long row,
                                           long long head, int H, int half)
{
    int t = blockIdx.x / H, h = blockIdx.x % H;
    for (int d = threadIdx.x; d < half; d += blockDim.x) {
        size_t angle = positions[t] * half + d;
        turn(x + t * row + h * head + d, half, cos[angle], sin[angle]);
    }
}

// One block per token, for both arrays. Each thread uses its angle for all heads.
extern "C" __global__ void rope_fused_cuda(float* q, float* k, const float* cos, const float* sin,
                                           const long long* positions, long long q_row,
                                           long long q_head, long long k_row, long long k_head,
                                           int H, int G, int half)
{
    size_t t = blockIdx.x;
    for (int d = threadIdx.x; d < half; d += blockDim.x) {
        size_t angle = positions[t] * half + d;
        float c = cos[angle], s = sin[angle];
        for (int h = 0; h < H; h++)
            turn(q + t * q_row + h * q_head + d, half, c, s);
        for (int g = 0; g < G; g++)
            turn(k + t * k_row + g * k_head + d, half, c, s);
    }
}
