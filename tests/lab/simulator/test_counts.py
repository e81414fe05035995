"""Counters equal values derived by hand."""

import numpy as np
import pytest

from lab import simulator

from .conftest import run

LINE_OF_LOAD, LINE_OF_STORE = 4, 3


def matrices(n):
    return np.arange(n * n, dtype=np.float32).reshape(n, n), np.zeros((n, n), np.float32)


def test_neighbouring_floats_need_four_sectors_a_warp():
    x, y = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    launch = run("""extern "C" __global__ void k(const float* a, float* b) {
        b[blockIdx.x * 64 + threadIdx.x] = a[blockIdx.x * 64 + threadIdx.x];
    }""", 4, 64, x, y)
    assert launch.sectors_per_request() == 4                # 32 lanes · 4 bytes / 32
    assert launch.bytes_loaded == launch.bytes_stored == 1024
    assert launch.totals.memory["global", "load"].requests == 8


@pytest.mark.parametrize("stride, sectors", [(1, 4), (2, 8), (4, 16), (8, 32), (32, 32)])
def test_strided_loads(stride, sectors):
    x, y = np.zeros(32 * stride, np.float32), np.zeros(32, np.float32)
    launch = run("""extern "C" __global__ void k(const float* a, float* b, int stride) {
        b[threadIdx.x] = a[threadIdx.x * stride];
    }""", 1, 32, x, y, stride)
    assert launch.sectors_per_request(op="load") == sectors
    assert launch.totals.memory["global", "load"].ideal == 4


def test_shifted_by_one_element_needs_a_fifth_sector():
    launch = run("""extern "C" __global__ void k(const float* a, float* b) {
        b[threadIdx.x] = a[threadIdx.x + 1];
    }""", 1, 32, np.zeros(33, np.float32), np.zeros(32, np.float32))
    assert launch.sectors_per_request(op="load") == 5


def test_one_element_for_all_lanes_is_one_sector():
    launch = run("""extern "C" __global__ void k(const float* a, float* b) {
        b[threadIdx.x] = a[blockIdx.x];
    }""", 2, 32, np.zeros(2, np.float32), np.zeros(32, np.float32))
    assert launch.sectors_per_request(op="load") == 1


@pytest.mark.parametrize("dtype, ctype, sectors", [
    (np.uint8, "unsigned char", 1), (np.float16, "half", 2), (np.float32, "float", 4),
    (np.float64, "double", 8)])
def test_sectors_by_element_size(dtype, ctype, sectors):
    launch = run(f"""#include <cuda_fp16.h>
    extern "C" __global__ void k(const {ctype}* a, {ctype}* b) {{
        b[threadIdx.x] = a[threadIdx.x];
    }}""", 1, 32, np.zeros(32, dtype), np.zeros(32, dtype))
    assert launch.sectors_per_request() == sectors


def test_naive_transpose_stores_to_32_sectors():
    a, b = matrices(64)
    launch = run("""extern "C" __global__ void k(const float* a, float* b, int n) {
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    b[x * n + y] =
        a[y * n + x];
}""", (2, 2), (32, 32), a, b, 64)
    assert np.array_equal(b, a.T)
    assert launch.sectors_per_request(op="load", line=LINE_OF_LOAD) == 4
    assert launch.sectors_per_request(op="store", line=LINE_OF_STORE) == 32


@pytest.mark.parametrize("padding, degree", [(0, 32), (1, 1), (2, 2), (4, 4), (8, 8)])
def test_a_column_of_a_shared_tile(padding, degree):
    a, b = matrices(64)
    launch = run(f"""extern "C" __global__ void k(const float* a, float* b, int n) {{
    __shared__ float t[32][32 + {padding}];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    t[threadIdx.y][threadIdx.x] = a[y * n + x];
    __syncthreads();
    b[(blockIdx.x * 32 + threadIdx.y) * n + blockIdx.y * 32 + threadIdx.x] =
        t[threadIdx.x][threadIdx.y];
}}""", (2, 2), (32, 32), a, b, 64)
    assert np.array_equal(b, a.T)
    assert launch.bank_conflict_degree(line=7) == degree
    assert launch.bank_conflict_degree(line=4) == 1


def test_shared_float4_takes_four_wavefronts_at_best():
    launch = run("""extern "C" __global__ void k(float4* b) {
        __shared__ float4 t[32];
        t[threadIdx.x] = b[threadIdx.x];
        __syncwarp();
        b[threadIdx.x] = t[31 - threadIdx.x];
    }""", 1, 32, np.zeros(128, np.float32))
    stores = launch.totals.memory["shared", "store"]
    assert (stores.requests, stores.transactions, stores.ideal) == (1, 4, 4)
    assert launch.bank_conflict_degree() == 1


@pytest.mark.parametrize("n, tile", [(64, 16), (48, 16)])
def test_tiled_matmul(rng, n, tile):
    a, b = rng.random((2, n, n), np.float32)
    c = np.zeros((n, n), np.float32)
    launch = run("""extern "C" __global__ void k(const float* A, const float* B, float* C, int n) {
        __shared__ float a[16][16], b[16][16];
        int tx = threadIdx.x, ty = threadIdx.y, x = blockIdx.x * 16 + tx, y = blockIdx.y * 16 + ty;
        float s = 0;
        for (int k = 0; k < n; k += 16) {
            a[ty][tx] = A[y * n + k + tx];
            b[ty][tx] = B[(k + ty) * n + x];
            __syncthreads();
            for (int j = 0; j < 16; j++) s += a[ty][j] * b[j][tx];
            __syncthreads();
        }
        C[y * n + x] = s;
    }""", (n // tile, n // tile), (tile, tile), a, b, c, n)
    assert np.allclose(c, a @ b, rtol=1e-5)
    assert launch.flops == 2 * n**3
    assert launch.bytes_loaded == 2 * 4 * n**3 // tile
    assert launch.totals.barriers == 2 * (n // tile)**3 * (tile * tile // 32)
    assert launch.sectors_per_request(op="load") == 4       # two rows of 16 floats
    assert launch.bank_conflict_degree() == 1


def test_naive_matmul_loads_two_rows_or_columns_a_warp(rng):
    n = 32
    a, b = rng.random((2, n, n), np.float32)
    c = np.zeros((n, n), np.float32)
    launch = run("""extern "C" __global__ void k(const float* A, const float* B, float* C, int n) {
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    float s = 0;
    #pragma unroll 1
    for (int k = 0; k < n; k++)
        s +=
            A[y * n + k] *
            B[k * n + x];
    C[y * n + x] = s;
}""", (2, 2), (16, 16), a, b, c, n)
    assert launch.sectors_per_request(op="load", line=7) == 2       # one float of each of two rows
    assert launch.sectors_per_request(op="load", line=8) == 2       # 16 neighbouring floats


def test_divergent_warps_run_both_sides():
    """A warp that splits issues the instructions of both sides; two whole warps do not."""
    source = """extern "C" __global__ void k(float* a) {
    int t = threadIdx.x;
    float v = a[t];
    #pragma unroll 1
    for (int i = 0; i < (CONDITION ? 100 : 50); i++) v = v * 1.5f + 1.0f;
    a[t] = v;
}"""
    split = run(source, 1, 64, np.ones(64, np.float32), options=("-DCONDITION=(t & 1)",))
    whole = run(source, 1, 64, np.ones(64, np.float32), options=("-DCONDITION=(t < 32)",))
    assert abs(split.lane_steps / whole.lane_steps - 1) < 0.01
    assert split.steps > 1.25 * whole.steps
    assert split.totals.splits > 0


def test_a_launch_as_data_and_as_text():
    import json
    launch = run("""extern "C" __global__ void k(float* a) { a[threadIdx.x] *= 2; }""", 1, 32,
                 np.ones(32, np.float32))
    data = json.loads(json.dumps(launch.as_data()))
    assert data["name"] == "k" and data["steps"] == launch.steps
    assert data["lines"]["1"]["memory"]["global load"]["transactions"] == 4
    assert "global load" in str(launch) and "4.00 sectors" in str(launch)
    assert simulator.last_launch() is launch


def test_resources_come_from_the_assembler():
    kernel = simulator.RawKernel("""extern "C" __global__ void k(float* a) {
        __shared__ float t[256];
        t[threadIdx.x] = a[threadIdx.x];
        __syncthreads();
        a[threadIdx.x] = t[255 - threadIdx.x];
    }""", "k")
    assert kernel.resources.shared == 1024 and 4 <= kernel.resources.registers <= 32
    assert kernel.resources.spill_stores == 0
