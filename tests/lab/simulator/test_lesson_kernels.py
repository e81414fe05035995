"""The kernels of the first kernel lessons in CUDA C: vector add and softmax, float and half."""

import numpy as np
import pytest

from .conftest import error_of, run

ADD = """extern "C" __global__ void k(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    BODY
}"""
ONE = "if (i < n) c[i] = a[i] + b[i];"
STRIDE = "for (; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];"
VECTOR = """if (4 * i + 3 < n) {
        float4 x = reinterpret_cast<const float4*>(a)[i], y = reinterpret_cast<const float4*>(b)[i];
        reinterpret_cast<float4*>(c)[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
    } else for (int j = 4 * i; j < n; j++) c[j] = a[j] + b[j];"""


@pytest.mark.parametrize("body, per_block, sectors", [(ONE, 256, 4), (STRIDE, 1024, 4),
                                                      (VECTOR, 1024, 16)])
@pytest.mark.parametrize("n", [1, 127, 1000, 4096])
def test_vector_add(rng, body, per_block, sectors, n):
    a, b = rng.random((2, n), np.float32)
    c = np.zeros(n, np.float32)
    launch = run(ADD.replace("BODY", body), -(-n // per_block), 256, a, b, c, n)
    assert np.array_equal(c, a + b)
    assert launch.flops == n and launch.bytes_loaded == 8 * n and launch.bytes_stored == 4 * n
    if n == 4096:
        assert launch.sectors_per_request() == sectors


HEAD = """#include <cuda_fp16.h>
__device__ float warp_max(float v) {
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, o));
    return v;
}
__device__ float warp_sum(float v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    return v;
}
"""
THREE_PASSES = HEAD + """
__global__ void row_max(const ELEMENT* x, float* m, int n) {      // one warp a row
    float v = -INFINITY;
    for (int i = threadIdx.x; i < n; i += 32) v = fmaxf(v, (float)x[blockIdx.x * n + i]);
    v = warp_max(v);
    if (threadIdx.x == 0) m[blockIdx.x] = v;
}
__global__ void row_sum(const ELEMENT* x, const float* m, float* s, int n) {
    float v = 0;
    for (int i = threadIdx.x; i < n; i += 32)
        v += expf((float)x[blockIdx.x * n + i] - m[blockIdx.x]);
    v = warp_sum(v);
    if (threadIdx.x == 0) s[blockIdx.x] = v;
}
__global__ void divide(const ELEMENT* x, const float* m, const float* s, ELEMENT* y, int n) {
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    for (int i = threadIdx.x; i < n; i += 32)
        y[i] = (ELEMENT)(expf((float)x[i] - m[blockIdx.x]) / s[blockIdx.x]);
}"""
FUSED = HEAD + """
extern __shared__ float row[];
// One block a row, the row in shared memory.
extern "C" __global__ void k(const ELEMENT* x, ELEMENT* y, int n) {
    __shared__ float partial[32];
    int t = threadIdx.x, warp = t / 32, lane = t % 32;
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    float m = -INFINITY;
    for (int i = t; i < n; i += blockDim.x) { row[i] = x[i]; m = fmaxf(m, row[i]); }
    m = warp_max(m);
    if (lane == 0) partial[warp] = m;
    __syncthreads();
    m = warp_max(lane < blockDim.x / 32 ? partial[lane] : -INFINITY);
    SYNC
    float s = 0;
    for (int i = t; i < n; i += blockDim.x) { row[i] = expf(row[i] - m); s += row[i]; }
    s = warp_sum(s);
    if (lane == 0) partial[warp] = s;
    __syncthreads();
    s = warp_sum(lane < blockDim.x / 32 ? partial[lane] : 0);
    for (int i = t; i < n; i += blockDim.x) y[i] = (ELEMENT)(row[i] / s);
}"""
ONLINE = HEAD + """
// One warp a row, one pass for maximum and sum.
extern "C" __global__ void k(const ELEMENT* x, ELEMENT* y, int n) {
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    float m = -INFINITY, s = 0;
    for (int i = threadIdx.x; i < n; i += 32) {
        float v = x[i], m_new = fmaxf(m, v);
        s = s * expf(m - m_new) + expf(v - m_new);
        m = m_new;
    }
    float m_all = warp_max(m);
    s = warp_sum(s * expf(m - m_all));
    for (int i = threadIdx.x; i < n; i += 32) y[i] = (ELEMENT)(expf((float)x[i] - m_all) / s);
}"""


def softmax(x):
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def matrix(rng, rows, n, dtype):
    return (8 * rng.standard_normal((rows, n))).astype(dtype), np.zeros((rows, n), dtype)


TYPES = pytest.mark.parametrize("dtype, ctype", [(np.float32, "float"), (np.float16, "half")])
SIZES = pytest.mark.parametrize("n", [1, 33, 127, 1000])


def close(y, x):
    return np.allclose(y, softmax(x), rtol=2e-3 if y.dtype == np.float16 else 1e-5, atol=1e-7)


@TYPES
@SIZES
def test_softmax_in_three_passes(rng, dtype, ctype, n):
    x, y = matrix(rng, 5, n, dtype)
    m, s = np.zeros((2, 5), np.float32)
    options = (f"-DELEMENT={ctype}",)
    run(THREE_PASSES, 5, 32, x, m, n, name="row_max", options=options)
    run(THREE_PASSES, 5, 32, x, m, s, n, name="row_sum", options=options)
    run(THREE_PASSES, 5, 32, x, m, s, y, n, name="divide", options=options)
    assert np.array_equal(m, x.max(1).astype(np.float32)) and close(y, x)


@TYPES
@SIZES
def test_softmax_fused_in_shared_memory(rng, dtype, ctype, n):
    x, y = matrix(rng, 5, n, dtype)
    launch = run(FUSED, 5, 128, x, y, n, shared_mem=4 * n,
                 options=(f"-DELEMENT={ctype}", "-DSYNC=__syncthreads();"))
    assert close(y, x) and launch.warnings == []
    assert launch.bytes_loaded == launch.bytes_stored == x.nbytes


def test_softmax_fused_without_its_second_barrier(rng):
    x, y = matrix(rng, 5, 1000, np.float32)
    error = error_of(FUSED, 5, 128, x, y, 1000, shared_mem=4000,
                     options=("-DELEMENT=float", "-DSYNC="))
    assert error.kind == "race" and "`partial`" in str(error)


@TYPES
@SIZES
def test_softmax_online(rng, dtype, ctype, n):
    x, y = matrix(rng, 5, n, dtype)
    launch = run(ONLINE, 5, 32, x, y, n, options=(f"-DELEMENT={ctype}",))
    assert close(y, x) and launch.bytes_loaded == 2 * x.nbytes
