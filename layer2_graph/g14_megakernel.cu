// g14 · One kernel for a whole decode step: a list of instructions, and counters between them
//
// B blocks stay on the device. Block b runs instructions b, b + B, b + 2·B … of the list, in this order.
// Tensors have the shapes of machine.py. All is fp32.

constexpr int WARP = 32;

enum Op { QKV, ATTEND, OUT, MLP, DOWN, HEAD, EMBED, PAUSE };

// Rows begin to end - 1 of what `op` writes in a layer. See machine.py.
struct Instruction { int op, layer, begin, end, wait, need, signal; };

struct Sizes { int L, C, H, G, D, F, V, R; float eps; int token, position; };

struct Llama {
    Sizes s;
    const float *embedding, *attention_norm, *qkv_weight, *o, *mlp_norm, *gate_up, *down, *norm, *head;
    const float *cos, *sin;
    float *x, *qkv, *mixed, *y, *hidden, *logits, *keys, *values;
};

// ---- counters

// Until counter i has reached `need`: what was written before its signals can be read then.
__device__ void wait_for(const int* counters, int i, int need)
{
    if (threadIdx.x == 0) {
        while (((const volatile int*)counters)[i] < need) {}    // volatile: look again each time
        __threadfence();
    }
    __syncthreads();
}

// Add 1 to counter i: all that this block has written is there, for everybody.
__device__ void signal_cuda(int* counters, int i)
{
    // exercise: all threads have stored; their stores are visible; then one of them adds
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&counters[i], 1);
    }
}

// Blocks 0 to W - 1 write a part of y each, the last block copies y into z when all have signalled. Warp w
// of a writer comes w · late rounds after warp 0. Only to see what a signal does.
extern "C" __global__ void hand_over_cuda(const float* x, float* y, float* z, int* counters, int late)
{
    int W = gridDim.x - 1, n = blockDim.x;
    if (blockIdx.x < W) {
        int i = blockIdx.x * n + threadIdx.x;
        float value = x[i];
        for (int round = 0; round < threadIdx.x / WARP * late; round++) value = value * 0.5f + x[i] * 0.5f;
        y[i] = value;
        signal_cuda(counters, 0);
    } else {
        wait_for(counters, 0, W);
        for (int i = threadIdx.x; i < W * n; i += n) z[i] = y[i];
    }
}

// ---- the operations

__device__ float warp_sum(float a)
{
    for (int apart = WARP / 2; apart; apart /= 2) a += __shfl_xor_sync(~0u, a, apart);
    return a;
}

__device__ float warp_max(float a)
{
    for (int apart = WARP / 2; apart; apart /= 2) a = fmaxf(a, __shfl_xor_sync(~0u, a, apart));
    return a;
}

// The product of two rows of n numbers, for all lanes of a warp
__device__ float warp_dot(const float* a, const float* b, int n)
{
    float sum = 0;
    for (int i = threadIdx.x % WARP; i < n; i += WARP) sum += a[i] * b[i];
    return warp_sum(sum);
}

// `from` into `row`. A barrier follows.
__device__ void copy_row(float* row, const float* from, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = from[i];
    __syncthreads();
}

// The norm of `from` into `row`. Each warp adds up for itself. A barrier follows.
__device__ void norm_row(float* row, const float* from, const float* weight, int n, float eps)
{
    float scale = rsqrtf(warp_dot(from, from, n) / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = from[i] * scale * weight[i];
    __syncthreads();
}

// out[r] = row · w[r], plus add[r] where there is one, for rows begin to end - 1: a warp for each
__device__ void rows_of(float* out, const float* row, const float* w, const float* add, int K, int begin,
                        int end)
{
    for (int r = begin + threadIdx.x / WARP; r < end; r += blockDim.x / WARP) {
        float sum = warp_dot(row, w + (size_t)r * K, K);
        if (threadIdx.x % WARP == 0) out[r] = add ? add[r] + sum : sum;
    }
}

// hidden[r] = silu(row · gate[r]) · (row · up[r])
__device__ void gated_rows(float* hidden, const float* row, const float* gate_up, int C, int F, int begin,
                           int end)
{
    for (int r = begin + threadIdx.x / WARP; r < end; r += blockDim.x / WARP) {
        float gate = warp_dot(row, gate_up + (size_t)r * C, C);
        float up = warp_dot(row, gate_up + (size_t)(F + r) * C, C);
        if (threadIdx.x % WARP == 0) hidden[r] = gate / (1 + expf(-gate)) * up;
    }
}

// `heads` rows of D numbers, each turned by the angle of its position: number i with number i + D/2
__device__ void rotate(float* to, const float* from, int heads, const Llama& m)
{
    int half = m.s.D / 2;
    for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
        int first = i / half * m.s.D + i % half, angle = m.s.position * half + i % half;
        float a = from[first], b = from[first + half], c = m.cos[angle], s = m.sin[angle];
        to[first] = a * c - b * s;
        to[first + half] = b * c + a * s;
    }
}

// Key and value head g: rotate, put into the cache, then mix for its query heads, a warp for each.
__device__ void attend(const Llama& m, int layer, int g, float* row)
{
    int D = m.s.D, per = m.s.H / m.s.G, N = m.s.position + 1, apart = m.s.G * D, lane = threadIdx.x % WARP;
    const float* heads = m.qkv + layer * (m.s.H + 2 * m.s.G) * D;
    size_t first = ((size_t)layer * m.s.R * m.s.G + g) * D, place = first + (size_t)m.s.position * apart;
    rotate(row, heads + g * per * D, per, m);
    rotate(m.keys + place, heads + (m.s.H + g) * D, 1, m);
    for (int d = threadIdx.x; d < D; d += blockDim.x)
        m.values[place + d] = heads[(m.s.H + m.s.G + g) * D + d];
    __syncthreads();
    for (int h = threadIdx.x / WARP; h < per; h += blockDim.x / WARP) {
        float* scores = row + per * D + h * m.s.R;
        float most = -INFINITY, sum = 0;
        for (int j = lane; j < N; j += WARP) {
            float dot = 0;
            for (int d = 0; d < D; d++) dot += row[h * D + d] * m.keys[first + j * apart + d];
            scores[j] = dot * rsqrtf(D);
            most = fmaxf(most, scores[j]);
        }
        most = warp_max(most);
        for (int j = lane; j < N; j += WARP) sum += scores[j] = expf(scores[j] - most);
        sum = warp_sum(sum);
        __syncwarp();
        for (int d = lane; d < D; d += WARP) {
            float value = 0;
            for (int j = 0; j < N; j++) value += scores[j] * m.values[first + j * apart + d];
            m.mixed[(layer * m.s.H + g * per + h) * D + d] = value / sum;
        }
    }
}

// One instruction by the whole block. row: shared memory
__device__ void execute(const Llama& m, const Instruction& w, float* row)
{
    Sizes s = m.s;
    int i = w.layer, wide = (s.H + 2 * s.G) * s.D, mixed = s.H * s.D;
    float *x = m.x + i * s.C, *y = m.y + i * s.C, *hidden = m.hidden + i * s.F;
    if (w.op == EMBED) {
        for (int c = w.begin + threadIdx.x; c < w.end; c += blockDim.x)
            m.x[c] = m.embedding[(size_t)s.token * s.C + c];
    } else if (w.op == QKV) {
        norm_row(row, x, m.attention_norm + i * s.C, s.C, s.eps);
        rows_of(m.qkv + i * wide, row, m.qkv_weight + (size_t)i * wide * s.C, nullptr, s.C, w.begin, w.end);
    } else if (w.op == ATTEND) {
        for (int g = w.begin; g < w.end; g++) {
            attend(m, i, g, row);
            __syncthreads();                                    // the next head uses `row` again
        }
    } else if (w.op == OUT) {
        copy_row(row, m.mixed + i * mixed, mixed);
        rows_of(y, row, m.o + (size_t)i * s.C * mixed, x, mixed, w.begin, w.end);
    } else if (w.op == MLP) {
        norm_row(row, y, m.mlp_norm + i * s.C, s.C, s.eps);
        gated_rows(hidden, row, m.gate_up + (size_t)i * 2 * s.F * s.C, s.C, s.F, w.begin, w.end);
    } else if (w.op == DOWN) {
        copy_row(row, hidden, s.F);
        rows_of(x + s.C, row, m.down + (size_t)i * s.C * s.F, y, s.F, w.begin, w.end);
    } else if (w.op == HEAD) {
        norm_row(row, m.x + s.L * s.C, m.norm, s.C, s.eps);
        rows_of(m.logits, row, m.head, nullptr, s.C, w.begin, w.end);
    } else if (w.op == PAUSE) {
        for (int round = 0; round < w.end; round++) __nanosleep(100);
    }
}

// ---- the kernel

// A decode step. program: `count` instructions    steps: that these counters have counted before
extern "C" __global__ void megakernel_cuda(
    const Instruction* program, int count, int* counters, int steps,
    int L, int C, int H, int G, int D, int F, int V, int R, float eps, int token, int position,
    const float* embedding, const float* attention_norm, const float* qkv_weight, const float* o,
    const float* mlp_norm, const float* gate_up, const float* down, const float* norm, const float* head,
    const float* cos, const float* sin,
    float* x, float* qkv, float* mixed, float* y, float* hidden, float* logits, float* keys, float* values)
{
    extern __shared__ float row[];
    Llama m = {{L, C, H, G, D, F, V, R, eps, token, position},
               embedding, attention_norm, qkv_weight, o, mlp_norm, gate_up, down, norm, head, cos, sin,
               x, qkv, mixed, y, hidden, logits, keys, values};
    // exercise: this block's instructions, one after the other: wait, execute, signal
    for (int i = blockIdx.x; i < count; i += gridDim.x) {
        Instruction w = program[i];
        wait_for(counters, w.wait, w.need * (steps + 1));
        execute(m, w, row);
        signal_cuda(counters, w.signal);
    }
}
