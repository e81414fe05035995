// k02 · Transpose: y[n][m] = x[m][n]
//
// M, N: rows and columns of x   m, n: a row and a column of it
// Reads M·N numbers and writes M·N, computes nothing. Memory decides, so each kernel below is
// judged by how it asks for its bytes. A block moves one tile of 32 × 32 numbers. It has 32 × 8
// threads: threadIdx.x is the lane, threadIdx.y the warp. Only the last kernel's block has 8 × 32.

const int TILE = 32, WARPS = 8;                 // WARPS: of a block

// By the book. Neighbouring lanes read neighbours in a row of x, and write them M numbers apart.
extern "C" __global__ void transpose_naive_cuda(const float* x, float* y, int M, int N)
{
    int m0 = TILE * blockIdx.y, n0 = TILE * blockIdx.x;     // the tile's first row and column in x
    int lane = threadIdx.x, warp = threadIdx.y;
    for (int r = warp; r < TILE; r += WARPS)                // row r of the tile
        if (m0 + r < M && n0 + lane < N)
            y[(size_t)(n0 + lane) * M + m0 + r] = x[(size_t)(m0 + r) * N + n0 + lane];
}

// By way of shared memory: rows of x come in, rows of y go out.
extern "C" __global__ void transpose_tile_cuda(const float* x, float* y, int M, int N)
{
    __shared__ float tile[TILE][TILE];
    int m0 = TILE * blockIdx.y, n0 = TILE * blockIdx.x;
    int lane = threadIdx.x, warp = threadIdx.y;
    // exercise: each warp fills rows r of the tile; all warps meet; each writes columns c to y
    for (int r = warp; r < TILE; r += WARPS)
        if (m0 + r < M && n0 + lane < N)
            tile[r][lane] = x[(size_t)(m0 + r) * N + n0 + lane];
    __syncthreads();                            // a column was brought in by all warps
    for (int c = warp; c < TILE; c += WARPS)
        if (n0 + c < N && m0 + lane < M)
            y[(size_t)(n0 + c) * M + m0 + lane] = tile[lane][c];
}

// The rows of the tile are 33 words apart, so the words of a column lie in 32 different banks.
extern "C" __global__ void transpose_padded_cuda(const float* x, float* y, int M, int N)
{
    __shared__ float tile[TILE][TILE + 1];
    int m0 = TILE * blockIdx.y, n0 = TILE * blockIdx.x;
    int lane = threadIdx.x, warp = threadIdx.y;
    for (int r = warp; r < TILE; r += WARPS)
        if (m0 + r < M && n0 + lane < N)
            tile[r][lane] = x[(size_t)(m0 + r) * N + n0 + lane];
    __syncthreads();
    for (int c = warp; c < TILE; c += WARPS)
        if (n0 + c < N && m0 + lane < M)
            y[(size_t)(n0 + c) * M + m0 + lane] = tile[lane][c];
}

// No extra word: row r keeps its numbers in another order, column c at place c ^ r.
extern "C" __global__ void transpose_swizzled_cuda(const float* x, float* y, int M, int N)
{
    __shared__ float tile[TILE][TILE];
    int m0 = TILE * blockIdx.y, n0 = TILE * blockIdx.x;
    int lane = threadIdx.x, warp = threadIdx.y;
    // exercise: as transpose_tile_cuda, with column c of row r at place c ^ r
    for (int r = warp; r < TILE; r += WARPS)
        if (m0 + r < M && n0 + lane < N)
            tile[r][lane ^ r] = x[(size_t)(m0 + r) * N + n0 + lane];
    __syncthreads();
    for (int c = warp; c < TILE; c += WARPS)
        if (n0 + c < N && m0 + lane < M)
            y[(size_t)(n0 + c) * M + m0 + lane] = tile[lane][c ^ lane];
}

// Sixteen bytes a request on both sides. M and N are multiples of 4, x and y of 16 bytes.
extern "C" __global__ void transpose_vector_cuda(const float* x, float* y, int M, int N)
{
    __shared__ __align__(16) float tile[TILE][TILE];        // turned: row c is a column of x
    int m0 = TILE * blockIdx.y, n0 = TILE * blockIdx.x;
    int four = 4 * threadIdx.x, row = threadIdx.y;          // four: 0, 4, ... 28
    // exercise: a float4 of x fills four rows of the tile; all warps meet; a float4 of it goes to y
    if (m0 + row < M && n0 + four < N) {
        float4 v = *(const float4*)(x + (size_t)(m0 + row) * N + n0 + four);
        tile[four][row ^ four] = v.x;           // row c keeps its number r at place r ^ (c & 28)
        tile[four + 1][row ^ four] = v.y;
        tile[four + 2][row ^ four] = v.z;
        tile[four + 3][row ^ four] = v.w;
    }
    __syncthreads();
    if (n0 + row < N && m0 + four < M)
        *(float4*)(y + (size_t)(n0 + row) * M + m0 + four) =
            *(const float4*)&tile[row][four ^ (row & 28)];
}
