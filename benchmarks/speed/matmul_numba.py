"""matmul.cu, line for line, for Numba's CUDA simulator."""

from numba import cuda, float32

TILE = 16


@cuda.jit
def matmul(a, b, c, N):                         # (N, N), (N, N) -> (N, N)
    a_tile = cuda.shared.array((TILE, TILE), float32)
    # Not on one line with the other: the simulator knows a shared array by its line.
    b_tile = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.blockIdx.x * TILE + x, cuda.blockIdx.y * TILE + y
    total = float32(0)
    for t in range(N // TILE):
        a_tile[y, x] = a[row, t * TILE + x]
        b_tile[y, x] = b[t * TILE + y, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    c[row, column] = total
