// k02 · Transpose: y[n][m] = x[m][n]
//
// M, N: rows and columns of x   m, n: a row and a column of it
// Reads M·N numbers and writes M·N, computes nothing. Memory is the limit, so each kernel below is
// judged by the requests that it makes. A block moves one tile of 32 × 32 numbers. It has 32 × 8
// threads: threadIdx.x is the lane, threadIdx.y the warp. Only the last kernel has 8 × 32.

const int TILE = 32;
const int WARPS = 8;                            // of a block
#ifndef PITCH
#define PITCH TILE                              // words from one row of a tile to the next
#endif                                          // the compiler's option -DPITCH=33 changes it

// The direct way. Neighbouring lanes read neighbours in a row of x and write them M numbers apart.
extern "C" __global__ void transpose_naive_cuda(const float* x, float* y, int M, int N)
{
    int m0 = TILE * blockIdx.y;                             // the tile's first row in x
    int n0 = TILE * blockIdx.x;                             // and its first column
    int lane = threadIdx.x;
    int warp = threadIdx.y;
    for (int r = warp; r < TILE; r += WARPS)                // row r of the tile
        if (m0 + r < M && n0 + lane < N)
            y[(size_t)(n0 + lane) * M + m0 + r] = x[(size_t)(m0 + r) * N + n0 + lane];
}

// Through shared memory: rows of x in, rows of y out.
extern "C" __global__ void transpose_tile_cuda(const float* x, float* y, int M, int N)
{
    __shared__ float tile[TILE][PITCH];
    int m0 = TILE * blockIdx.y;
    int n0 = TILE * blockIdx.x;
    int lane = threadIdx.x;
    int warp = threadIdx.y;
    // exercise: each warp copies rows r of x into the tile; barrier; each writes columns c to y
    for (int r = warp; r < TILE; r += WARPS)
        if (m0 + r < M && n0 + lane < N)
            tile[r][lane] = x[(size_t)(m0 + r) * N + n0 + lane];
    __syncthreads();                            // a column holds numbers from all warps
    for (int c = warp; c < TILE; c += WARPS)
        if (n0 + c < N && m0 + lane < M)
            y[(size_t)(n0 + c) * M + m0 + lane] = tile[lane][c];
}

// No extra word: row r stores its numbers in another order, column c at place c ^ r.
extern "C" __global__ void transpose_swizzled_cuda(const float* x, float* y, int M, int N)
{
    __shared__ float tile[TILE][TILE];
    int m0 = TILE * blockIdx.y;
    int n0 = TILE * blockIdx.x;
    int lane = threadIdx.x;
    int warp = threadIdx.y;
    // exercise: as transpose_tile_cuda, with column c of row r at place c ^ r
    for (int r = warp; r < TILE; r += WARPS)
        if (m0 + r < M && n0 + lane < N)
            tile[r][lane ^ r] = x[(size_t)(m0 + r) * N + n0 + lane];
    __syncthreads();
    for (int c = warp; c < TILE; c += WARPS)
        if (n0 + c < N && m0 + lane < M)
            y[(size_t)(n0 + c) * M + m0 + lane] = tile[lane][c ^ lane];
}

// 16 bytes a lane on both sides. M and N are multiples of 4, the addresses of x and y of 16 bytes.
extern "C" __global__ void transpose_vector_cuda(const float* x, float* y, int M, int N)
{
    __shared__ __align__(16) float tile[TILE][TILE];        // turned: a row is a column of x
    int m0 = TILE * blockIdx.y;
    int n0 = TILE * blockIdx.x;
    int four = 4 * threadIdx.x;                             // 0, 4, ... 28
    int row = threadIdx.y;
    // exercise: a float4 of x into four rows of the tile; barrier; a float4 of the tile to y
    if (m0 + row < M && n0 + four < N) {
        float4 v = *(const float4*)(x + (size_t)(m0 + row) * N + n0 + four);
        tile[four][row ^ four] = v.x;           // row r keeps column c at place c ^ (r & 28)
        tile[four + 1][row ^ four] = v.y;
        tile[four + 2][row ^ four] = v.z;
        tile[four + 3][row ^ four] = v.w;
    }
    __syncthreads();
    if (n0 + row < N && m0 + four < M)
        *(float4*)(y + (size_t)(n0 + row) * M + m0 + four) =
            *(const float4*)&tile[row][four ^ (row & 28)];
}
