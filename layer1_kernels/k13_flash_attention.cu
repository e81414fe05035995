// k13 · Flash attention: out = softmax(q · kᵀ · scale) · v, its matrix of scores never stored
//
// q, out (B, T, H, D)   k, v (B, N, G, D)   lse (B, T, H)   all fp32, D at most 128
// One block handles a tile of queries of one head; LANES threads of a warp share a query. The
// structure is that of flash_triton, but each product is an FMA on two numbers from shared memory
// instead of a tensor-core instruction.

#define TILE 16                                 // queries of a block, keys of a round
#define LANES 8                                 // threads of a query
#define OWN (TILE / LANES)                      // keys per thread and round
#define MAX_HEAD_WIDTH 128                      // largest D

__device__ float across(float v, float combine(float, float))
{
    for (int away = LANES / 2; away > 0; away /= 2)
        v = combine(v, __shfl_xor_sync(0xffffffff, v, away));
    return v;
}

__device__ float add(float a, float b) { return a + b; }
__device__ float larger_of(float a, float b) { return fmaxf(a, b); }

extern "C" __global__ void flash_cuda(const float* q, const float* k, const float* v, float* out,
                                      float* lse, float scale, int T, int N, int H, int G, int D,
                                      int causal)
{
    __shared__ float queries[TILE][MAX_HEAD_WIDTH + 1];     // + 1: neighbouring rows in other banks
    __shared__ float keys[TILE][MAX_HEAD_WIDTH + 1], values[TILE][MAX_HEAD_WIDTH + 1];
    int tiles = (T + TILE - 1) / TILE, first = (tiles - 1 - blockIdx.x % tiles) * TILE;
    size_t b = blockIdx.x / tiles / H;
    int h = blockIdx.x / tiles % H, g = h / (H / G);
    int row = threadIdx.x / LANES, lane = threadIdx.x % LANES, t = first + row;
    int last = causal ? min(N - T + t, N - 1) : N - 1;              // the last key of this query
    int reach = causal ? min(N - T + first + TILE, N) : N;          // keys that the block needs

    for (int d = lane; d < D; d += LANES)
        queries[row][d] = t < T ? q[((b * T + t) * H + h) * D + d] : 0;
    float m = -INFINITY, s = 0;
    float mixed[MAX_HEAD_WIDTH / LANES] = {};   // columns lane, lane + LANES, …
    for (int n = 0; n < reach; n += TILE) {
        for (int d = lane; d < D; d += LANES) {
            size_t i = ((b * N + n + row) * G + g) * D + d;
            keys[row][d] = n + row < N ? k[i] : 0;
            values[row][d] = n + row < N ? v[i] : 0;
        }
        __syncthreads();                        // the tiles are complete
        float w[OWN], larger = m;               // scores, then weights, of keys lane, lane + LANES
        for (int i = 0; i < OWN; i++) {
            w[i] = 0;
            for (int d = 0; d < D; d++)
                w[i] += queries[row][d] * keys[lane + i * LANES][d];
            w[i] = n + lane + i * LANES <= last ? w[i] * scale : -INFINITY;
            larger = fmaxf(larger, w[i]);
        }
        larger = across(larger, larger_of);
        float fade = exp2f(m - larger), sum = 0;
        for (int i = 0; i < OWN; i++)
            sum += w[i] = exp2f(w[i] - larger);
        s = s * fade + across(sum, add);
        m = larger;
        for (int c = 0; c < MAX_HEAD_WIDTH / LANES; c++)
            mixed[c] *= fade;
        for (int j = 0; j < TILE; j++) {        // thread j % LANES of this query has key j's weight
            float weight = __shfl_sync(0xffffffff, w[j / LANES], j % LANES, LANES);
            for (int c = 0; c < MAX_HEAD_WIDTH / LANES; c++)
                if (lane + c * LANES < D)
                    mixed[c] += weight * values[j][lane + c * LANES];
        }
        __syncthreads();                        // all have read: the next round may write
    }
    for (int c = 0; c < MAX_HEAD_WIDTH / LANES; c++)
        if (t < T && lane + c * LANES < D)
            out[((b * T + t) * H + h) * D + lane + c * LANES] = mixed[c] / s;
    if (t < T && lane == 0)
        lse[(b * T + t) * H + h] = (m + log2f(s)) * 0.693147181f;   // ln 2
}
