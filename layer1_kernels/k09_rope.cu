// k09 · Rotary positions: each pair (a, b) of a head is turned by its angle, in place
//
// T: tokens   H: heads of q   G: heads of k   half: pairs of a head, number d with number d + half
// Tokens begin `row` numbers apart, the heads of a token `head`. cos and sin have a row of `half`
// numbers for each position. 4 numbers are moved for 6 FLOPs: memory decides.

__device__ void turn(float* first, int half, float c, float s)
{
    float a = first[0], b = first[half];        // both, before either is written
    first[0] = a * c - b * s;
    first[half] = b * c + a * s;
}

// One block a head of a token, one array. Each block reads the token's angles.
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

// One block a token, both arrays. Each thread keeps its angle for all heads.
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
