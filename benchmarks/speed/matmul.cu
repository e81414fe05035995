// Tiled matmul, c = a · b, fp32: (N, N), (N, N) -> (N, N), N a multiple of TILE. Each block of
// TILE × TILE threads makes one tile of c, from tiles of a and b in shared memory.
// matmul_numba.py says the same in Python, line for line.
#define TILE 16

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int N) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int column = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
    float sum = 0;
    for (int t = 0; t < N / TILE; t++) {
        a_tile[y][x] = a[row * N + t * TILE + x];
        b_tile[y][x] = b[(t * TILE + y) * N + column];
        __syncthreads();
        for (int k = 0; k < TILE; k++)
            sum += a_tile[y][k] * b_tile[k][x];
        __syncthreads();
    }
    c[row * N + column] = sum;
}
