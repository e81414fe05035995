// k17 · Pipelines: c[m, n] = sum over k of a[m, k] · w[n, k], while the next tiles are on their way
//
// a: (M, K)   w: (N, K), as a model stores a weight: outputs × inputs   c: (M, N)
// a and w are fp16 and start at multiples of 16 bytes, K is a multiple of 8; sums and c are fp32.

#include <cuda_fp16.h>

constexpr int TILE = 64;            // rows and columns of a block's tile of c
constexpr int BK = 64;              // k fetched in one step: a row of a tile is 128 bytes
constexpr int CHUNK = 8;            // numbers in 16 bytes
constexpr int THREADS = 128;        // four warps, each with a quarter of the tile
constexpr int STAGES = 3;           // tiles of a and of w in a block's ring
constexpr int RING = 2;             // the same with a warp that only copies: barriers need room, too

typedef half Tile[TILE][BK];
typedef unsigned long long Barrier;

// ---- instructions that C++ has no words for

__device__ unsigned place(const void* p) { return __cvta_generic_to_shared(p); }

// 16 bytes into shared memory, zeros beyond the first `bytes`. Returns at once: the copy takes its time.
__device__ void copy16(void* to, const void* from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(place(to)), "l"(from), "r"(bytes) : "memory");
}

// This thread's copies since the last commit are a group now. It may be empty.
__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most LEFT of this thread's groups, the last ones, are still on their way.
template <int LEFT> __device__ void wait()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}

// Four matrices of 8 x 8. Lanes 8·i to 8·i + 7 name the rows of matrix i, 16 bytes each.
__device__ void ldmatrix(unsigned r[4], const half* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(place(row)) : "memory");
}

// d (16, 8) += a (16, 16) · w (8, 16) transposed, for the warp as a whole
__device__ void mma(float d[4], const unsigned a[4], unsigned w_low, unsigned w_high)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(w_low), "r"(w_high));
}

// ---- one tile

// Where in its row of a tile a piece of 16 bytes lies: a number from 0 to 7.
__device__ int swizzle_cuda(int row, int chunk)
{
    // exercise: eight rows that follow each other have the same chunk in eight different places
    return chunk ^ row % 8;
}

// One ldmatrix of 16 rows of 32 bytes, which lie `apart` numbers apart. Only to see what banks say.
extern "C" __global__ void read_rows_cuda(unsigned* out, int apart)
{
    __shared__ __align__(128) half rows[16 * 128];
    for (int i = threadIdx.x; i < 16 * 128; i += 32) rows[i] = __int2half_rn(i);
    __syncwarp();
    unsigned r[4];
    ldmatrix(r, &rows[threadIdx.x % 16 * apart + threadIdx.x / 16 * CHUNK]);
    for (int i = 0; i < 4; i++) out[4 * threadIdx.x + i] = r[i];
}

// Numbers start to start + BK of TILE rows of x (rows, K), from row `first` on, on their way into a
// tile; 0 beyond x. `thread` of `threads` that share the work.
__device__ void fetch(Tile tile, const half* x, int first, int start, int rows, int K, int thread,
                      int threads)
{
    for (int i = thread; i < TILE * BK / CHUNK; i += threads) {
        int row = i / (BK / CHUNK), chunk = i % (BK / CHUNK), k = start + CHUNK * chunk;
        bool inside = first + row < rows && k < K;
        const half* from = x + (size_t)(first + row) * K + k;
        copy16(&tile[row][CHUNK * swizzle_cuda(row, chunk)], from, inside ? 16 : 0);
    }
}

// x (64, 64) into a tile and from there, by ldmatrix, into y, by one warp. Only to see what a swizzle
// does.
extern "C" __global__ void read_tile_cuda(const half* x, half* y)
{
    __shared__ __align__(128) Tile tile;
    int lane = threadIdx.x;
    fetch(tile, x, 0, 0, TILE, BK, lane, 32);
    commit();
    wait<0>();
    __syncwarp();
    for (int first = 0; first < TILE; first += 16)
        for (int piece = 0; piece < BK / CHUNK; piece += 2) {
            unsigned r[4];
            int row = first + lane % 16;
            ldmatrix(r, &tile[row][CHUNK * swizzle_cuda(row, piece + lane / 16)]);
            for (int i = 0; i < 4; i++) {
                half* to = y + (first + i % 2 * 8 + lane / 4) * BK + (piece + i / 2) * CHUNK;
                *(unsigned*)&to[lane % 4 * 2] = r[i];
            }
        }
}

// The warp's sums (32, 32) += rows `row` to `row` + 31 of a_tile times rows `column` to `column` + 31
// of w_tile. sums[4 * i + j] are of rows 16·i to 16·i + 15, columns 8·j to 8·j + 7.
__device__ void multiply_tile_cuda(float sums[8][4], const Tile a_tile, const Tile w_tile, int row,
                                   int column)
{
    int lane = threadIdx.x % 32;
    unsigned a_part[2][4], w_part[2][4];
    // exercise: for each 16 k, two ldmatrix of a_tile and two of w_tile, then eight mma
    for (int chunk = 0; chunk < BK / CHUNK; chunk += 2) {
        for (int i = 0; i < 2; i++) {
            int y = row + 16 * i + lane % 16, x = column + 16 * i + lane % 16;
            ldmatrix(a_part[i], &a_tile[y][CHUNK * swizzle_cuda(y, chunk + lane / 16)]);
            ldmatrix(w_part[i], &w_tile[x][CHUNK * swizzle_cuda(x, chunk + lane / 16)]);
        }
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 4; j++)
                mma(sums[4 * i + j], a_part[i], w_part[j / 2][j % 2], w_part[j / 2][j % 2 + 2]);
    }
}

// The warp's sums into c (M, N) at row m, column n
__device__ void store(float* c, int m, int n, int M, int N, const float sums[8][4])
{
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 8; i++)
        for (int e = 0; e < 4; e++) {
            int y = m + i / 4 * 16 + e / 2 * 8 + lane / 4, x = n + i % 4 * 8 + lane % 4 * 2 + e % 2;
            if (y < M && x < N) c[(size_t)y * N + x] = sums[i][e];
        }
}

// A tile of c for each block. Fetch, wait, multiply, wait.
extern "C" __global__ void __launch_bounds__(THREADS)
matmul_mma_cuda(const half* a, const half* w, float* c, int M, int N, int K)
{
    __shared__ __align__(128) Tile a_tile, w_tile;
    int m = blockIdx.y * TILE, n = blockIdx.x * TILE;
    int row = threadIdx.x / 64 * 32, column = threadIdx.x / 32 % 2 * 32;    // of the warp's quarter
    float sums[8][4] = {};
    for (int start = 0; start < K; start += BK) {
        fetch(a_tile, a, m, start, M, K, threadIdx.x, THREADS);
        fetch(w_tile, w, n, start, N, K, threadIdx.x, THREADS);
        commit();
        wait<0>();
        __syncthreads();
        multiply_tile_cuda(sums, a_tile, w_tile, row, column);
        __syncthreads();
    }
    store(c, m + row, n + column, M, N, sums);
}

// ---- stages

// The same with STAGES tiles of each. Step t uses stage t % STAGES.
extern "C" __global__ void __launch_bounds__(THREADS)
matmul_staged_cuda(const half* a, const half* w, float* c, int M, int N, int K)
{
    __shared__ __align__(128) Tile a_tile[STAGES], w_tile[STAGES];
    int m = blockIdx.y * TILE, n = blockIdx.x * TILE;
    int row = threadIdx.x / 64 * 32, column = threadIdx.x / 32 % 2 * 32;
    int steps = (K + BK - 1) / BK;
    float sums[8][4] = {};
    auto fetch_step = [&](int t) {              // both tiles of step t into its stage
        fetch(a_tile[t % STAGES], a, m, t * BK, M, K, threadIdx.x, THREADS);
        fetch(w_tile[t % STAGES], w, n, t * BK, N, K, threadIdx.x, THREADS);
    };
    // exercise: start the first STAGES - 1 steps; in each step wait, meet, start one more, multiply
    for (int t = 0; t < STAGES - 1; t++) {
        if (t < steps) fetch_step(t);
        commit();
    }
    for (int t = 0; t < steps; t++) {
        wait<STAGES - 2>();
        __syncthreads();
        if (t + STAGES - 1 < steps) fetch_step(t + STAGES - 1);
        commit();
        multiply_tile_cuda(sums, a_tile[t % STAGES], w_tile[t % STAGES], row, column);
    }
    store(c, m + row, n + column, M, N, sums);
}

// ---- a warp that only copies

__device__ void init(Barrier* barrier, int count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(place(barrier)), "r"(count) : "memory");
}

__device__ void arrive(Barrier* barrier)
{
    asm volatile("{ .reg .b64 token; mbarrier.arrive.shared.b64 token, [%0]; }"
                 :: "r"(place(barrier)) : "memory");
}

// This thread arrives when all copies that it has started so far are done. Returns at once.
__device__ void arrive_after_copies(Barrier* barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(place(barrier)) : "memory");
}

// Until the phase with this parity, 0 or 1, is over
__device__ void await(Barrier* barrier, int phase)
{
    asm volatile("{ .reg .pred over; again: mbarrier.test_wait.parity.shared.b64 over, [%0], %1;"
                 " @!over bra again; }" :: "r"(place(barrier)), "r"(phase) : "memory");
}

// The same with RING stages. Warp 4 copies for the others.
extern "C" __global__ void __launch_bounds__(THREADS + 32)
matmul_ring_cuda(const half* a, const half* w, float* c, int M, int N, int K)
{
    __shared__ __align__(128) Tile a_tile[RING], w_tile[RING];
    __shared__ Barrier full[RING], empty[RING];
    int m = blockIdx.y * TILE, n = blockIdx.x * TILE;
    int warp = threadIdx.x / 32, row = warp / 2 * 32, column = warp % 2 * 32;
    int steps = (K + BK - 1) / BK;
    float sums[8][4] = {};
    if (threadIdx.x < RING) {
        init(&full[threadIdx.x], 32);           // the threads of warp 4
        init(&empty[threadIdx.x], THREADS);     // all others
    }
    __syncthreads();
    auto fetch_step = [&](int t) {              // by warp 4
        fetch(a_tile[t % RING], a, m, t * BK, M, K, threadIdx.x % 32, 32);
        fetch(w_tile[t % RING], w, n, t * BK, N, K, threadIdx.x % 32, 32);
    };
    // exercise: in each step warp 4 awaits an empty stage and fills it, the others a full one
    for (int t = 0; t < steps; t++) {
        int s = t % RING, phase = t / RING % 2;
        if (warp == 4) {
            await(&empty[s], phase ^ 1);        // a fresh stage was never used: it counts as empty
            fetch_step(t);
            arrive_after_copies(&full[s]);
        } else {
            await(&full[s], phase);
            multiply_tile_cuda(sums, a_tile[s], w_tile[s], row, column);
            arrive(&empty[s]);
        }
    }
    if (warp < 4) store(c, m + row, n + column, M, N, sums);
}
