// k14 · Paged attention: keys and values of a sequence lie in pages; its block table says in which
//
// q, out (T, H, D)   k_pages, v_pages (P, S, G, D)   block_tables (B, pages)   all numbers fp32
// A block takes one token and one query head. Each of its warps takes every WARPS-th key, a number
// of D in each lane; at the end the warps' parts are merged, as merge_triton merges those of splits.

#include <cfloat>

#define WARPS 4
#define COLUMNS 4                               // of a lane: D is at most 128

extern "C" __global__ void paged_cuda(const float* q, const float* k_pages, const float* v_pages,
                                      float* out, const int* block_tables, const int* cu_q,
                                      const int* lens, float scale, int B, int H, int G, int D,
                                      int S, int pages)
{
    __shared__ float all_m[WARPS], all_s[WARPS], all_mixed[WARPS][32 * COLUMNS];
    int token = blockIdx.x / H, h = blockIdx.x % H, g = h / (H / G), b = 0;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token >= cu_q[B])
        return;                                 // a token of no sequence
    while (cu_q[b + 1] <= token)                // the sequence of this token
        b++;
    int seen = lens[b] - (cu_q[b + 1] - 1 - token);     // keys up to the token's own
    const int* table = block_tables + (size_t)b * pages;
    q += (size_t)blockIdx.x * D;
    float m = -FLT_MAX, s = 0, mixed[COLUMNS] = {};
    for (int n = warp; n < seen; n += WARPS) {
        size_t row = (((size_t)table[n / S] * S + n % S) * G + g) * D;
        float score = 0;
        for (int d = lane; d < D; d += 32)
            score += q[d] * k_pages[row + d];
        for (int away = 16; away > 0; away /= 2)
            score += __shfl_xor_sync(0xffffffff, score, away);
        score *= scale;
        float larger = fmaxf(m, score), fade = exp2f(m - larger), weight = exp2f(score - larger);
        s = s * fade + weight;
        for (int c = 0; c < COLUMNS; c++)
            if (lane + 32 * c < D)
                mixed[c] = mixed[c] * fade + weight * v_pages[row + lane + 32 * c];
        m = larger;
    }
    all_m[warp] = m;                            // a warp without a key leaves (-FLT_MAX, 0, 0)
    all_s[warp] = s;
    for (int c = 0; c < COLUMNS; c++)
        all_mixed[warp][lane + 32 * c] = mixed[c];
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        m = fmaxf(m, all_m[w]);
    for (int d = threadIdx.x; d < D; d += 32 * WARPS) {
        float sum = 0, total = 0;
        for (int w = 0; w < WARPS; w++) {
            float fade = exp2f(all_m[w] - m);
            sum += all_s[w] * fade;
            total += all_mixed[w][d] * fade;
        }
        out[(size_t)blockIdx.x * D + d] = total / sum;
    }
}
