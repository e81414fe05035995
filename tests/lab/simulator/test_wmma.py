"""Products by wmma: exact where the inputs are small integers, and close where not.

Expected values come from numpy in double precision.
"""

import numpy as np
import pytest

from .conftest import error_of, is_product, run, to_bf16

WMMA = """#include <mma.h>
#include <cuda_bf16.h>
using namespace nvcuda;
extern "C" __global__ void k(const STORED* a, const STORED* b, OUT* c) {
    wmma::fragment<wmma::matrix_a, M, N, K, IN, wmma::A_LAYOUT> fa;
    wmma::fragment<wmma::matrix_b, M, N, K, IN, wmma::B_LAYOUT> fb;
    wmma::fragment<wmma::accumulator, M, N, K, OUT> fc;
    LOAD
    wmma::load_matrix_sync(fa, A, LDA);
    wmma::load_matrix_sync(fb, B, LDB);
    wmma::load_matrix_sync(fc, c, LDC, wmma::C_LAYOUT);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, LDC, wmma::C_LAYOUT);
}"""
SHARED = """
    __shared__ __align__(32) STORED A[SIZE_A], B[SIZE_B];
    for (int i = threadIdx.x; i < SIZE_A; i += 32) A[i] = a[i];
    for (int i = threadIdx.x; i < SIZE_B; i += 32) B[i] = b[i];
    __syncwarp();
""".replace("\n", " ")
GLOBAL = "const STORED* A = a; const STORED* B = b;"
TYPES = {                       # name -> the type of elements, as it is stored, of accumulators
    "f16": ("half", "half", "float"), "f16 to f16": ("half", "half", "half"),
    "bf16": ("__nv_bfloat16", "__nv_bfloat16", "float"),
    "tf32": ("wmma::precision::tf32", "float", "float"), "f64": ("double", "double", "double"),
    "s8": ("signed char", "signed char", "int"), "u8": ("unsigned char", "unsigned char", "int"),
}
DTYPES = {"half": np.float16, "__nv_bfloat16": np.uint16, "float": np.float32, "int": np.int32,
          "double": np.float64, "signed char": np.int8, "unsigned char": np.uint8}


def stored(matrix, dtype, layout, lead):
    """A matrix as a kernel finds it: rows or columns `lead` elements apart, rubbish between."""
    rows = matrix if layout == "row_major" else matrix.T
    memory = np.full((rows.shape[0], lead), 7, np.float32)
    memory[:, :rows.shape[1]] = rows
    return to_bf16(memory) if dtype == np.uint16 else memory.astype(dtype)


def wmma(rng, name, shape, a_layout, b_layout, c_layout, load=GLOBAL, pad=16):
    M, N, K = shape
    element, stored_as, out = TYPES[name]
    low = 0 if name == "u8" else -8
    a, b = (rng.integers(low, 9, size).astype(np.float64) for size in ((M, K), (K, N)))
    c = rng.integers(-8, 9, (M, N)).astype(np.float64)
    leads = [(n if layout == "row_major" else m) + pad
             for (m, n), layout in ((a.shape, a_layout), (b.shape, b_layout), (c.shape, c_layout))]
    arrays = [stored(m, DTYPES[t], layout, lead) for m, t, layout, lead in zip(
        (a, b, c), (stored_as, stored_as, out), (a_layout, b_layout, c_layout), leads,
        strict=True)]
    options = {"M": M, "N": N, "K": K, "IN": element, "STORED": stored_as, "OUT": out,
               "A_LAYOUT": a_layout, "B_LAYOUT": b_layout, "C_LAYOUT": "mem_" + c_layout,
               "LDA": leads[0], "LDB": leads[1], "LDC": leads[2], "SIZE_A": arrays[0].size,
               "SIZE_B": arrays[1].size, "LOAD": load}
    launch = run(WMMA, 1, 32, *arrays, options=tuple(f"-D{k}={v}" for k, v in options.items()))
    result = arrays[2] if c_layout == "row_major" else arrays[2].T
    assert np.array_equal(result[:M, :N].astype(np.float64), a @ b + c)
    assert (arrays[2][:, -pad:] == 7).all()                 # and nothing beside the matrix
    return launch


@pytest.mark.parametrize("a_layout, b_layout, c_layout", [
    ("row_major", "row_major", "row_major"), ("row_major", "col_major", "col_major"),
    ("col_major", "row_major", "row_major"), ("col_major", "col_major", "col_major")])
@pytest.mark.parametrize("name", TYPES)
def test_wmma_is_exact_on_small_integers(rng, name, a_layout, b_layout, c_layout):
    shape = {"tf32": (16, 16, 8), "f64": (8, 8, 4)}.get(name, (16, 16, 16))
    wmma(rng, name, shape, a_layout, b_layout, c_layout, GLOBAL if a_layout == c_layout else SHARED)


@pytest.mark.parametrize("shape", [(32, 8, 16), (8, 32, 16)])
@pytest.mark.parametrize("name", ["f16", "f16 to f16", "bf16", "s8", "u8"])
def test_wmma_of_oblong_shapes(rng, name, shape):
    wmma(rng, name, shape, "row_major", "row_major", "col_major", SHARED)
    wmma(rng, name, shape, "col_major", "col_major", "row_major", GLOBAL)


@pytest.mark.parametrize("precision, K, bits, signed", [("s4", 32, 4, True), ("u4", 32, 4, False),
                                                        ("b1", 128, 1, False)])
def test_wmma_below_a_byte(rng, precision, K, bits, signed):
    low, high = (-8, 8) if signed else (0, 2**bits)
    a, b = rng.integers(low, high, (8, K)), rng.integers(low, high, (8, K))     # b by columns
    c, shifts = np.ones((8, 8), np.int32), bits * np.arange(32 // bits)
    words = [((m & 2**bits - 1).reshape(8, -1, 32 // bits) << shifts).sum(-1).astype(np.uint32)
             for m in (a, b)]
    run("""#include <mma.h>
    using namespace nvcuda;
    using namespace wmma::experimental;
    extern "C" __global__ void k(const unsigned* a, const unsigned* b, int* c) {
        wmma::fragment<wmma::matrix_a, 8, 8, K, precision::P, wmma::row_major> fa;
        wmma::fragment<wmma::matrix_b, 8, 8, K, precision::P, wmma::col_major> fb;
        wmma::fragment<wmma::accumulator, 8, 8, K, int> fc;
        wmma::load_matrix_sync(fa, a, K);
        wmma::load_matrix_sync(fb, b, K);
        wmma::load_matrix_sync(fc, c, 8, wmma::mem_row_major);
        MULTIPLY(fc, fa, fb, fc);
        wmma::store_matrix_sync(c, fc, 8, wmma::mem_row_major);
    }""", 1, 32, *words, c, options=(
        f"-DK={K}", f"-DP={precision}",
        f"-DMULTIPLY={'wmma::bmma_sync' if bits == 1 else 'wmma::mma_sync'}"))
    product = (a[:, None] ^ b[None]).sum(-1) if bits == 1 else a @ b.T
    assert np.array_equal(c, product + 1)


def test_wmma_counts_flops_sectors_and_wavefronts(rng):
    launch = wmma(rng, "f16", (16, 16, 16), "row_major", "col_major", "row_major", pad=16)
    assert launch.flops == 2 * 16 * 16 * 16
    assert launch.bytes_loaded == 2 * 16 * 16 * 2 + 16 * 16 * 4
    assert launch.sectors_per_request(line=9) == 8          # 4 registers: 8 rows of 16 bytes each
    launch = wmma(rng, "s8", (16, 16, 16), "row_major", "col_major", "row_major")
    assert launch.flops == 0                                # no floating-point operation


def test_fragments_can_be_changed_element_by_element(rng):
    a, b, c = (rng.integers(-4, 5, (16, 16)).astype(t) for t in ("f2", "f2", "f4"))
    out = np.zeros((16, 16), np.float32)
    run("""#include <mma.h>
    using namespace nvcuda;
    extern "C" __global__ void k(const half* a, const half* b, const float* c, float* out) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc, sum;
        wmma::load_matrix_sync(fa, a, 16);
        wmma::load_matrix_sync(fb, b, 16);
        wmma::load_matrix_sync(fc, c, 16, wmma::mem_col_major);
        for (int i = 0; i < fa.num_elements; i++) fa.x[i] = __hmul(fa.x[i], __float2half(2));
        wmma::fill_fragment(sum, 0.f);
        wmma::mma_sync(sum, fa, fb, sum);
        for (int i = 0; i < sum.num_elements; i++) sum.x[i] = 3 * sum.x[i] - fc.x[i];
        wmma::store_matrix_sync(out, sum, 16, wmma::mem_row_major);
    }""", 1, 32, a, b, c, out)
    assert np.array_equal(out, 6 * (a.astype("f8") @ b.astype("f8")) - c.T)


TILED = """#include <mma.h>
using namespace nvcuda;
const int T = 32, PAD = 16;
extern "C" __global__ void k(const half* A, const half* B, float* C, int M, int N, int K) {
    __shared__ __align__(32) half a[T][T + PAD];
    __shared__ __align__(32) half b[T][T + PAD];
    int warp = threadIdx.x / 32, row = blockIdx.y * T, column = blockIdx.x * T;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < K; k += T) {
        for (int i = threadIdx.x; i < T * T; i += blockDim.x) {
            a[i / T][i % T] = A[(row + i / T) * K + k + i % T];
            b[i / T][i % T] = B[(k + i / T) * N + column + i % T];
        }
        FIRST
        for (int kk = 0; kk < T; kk += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
            wmma::load_matrix_sync(fa, &a[warp / 2 * 16][kk], T + PAD);
            wmma::load_matrix_sync(fb, &b[kk][warp % 2 * 16], T + PAD);
            wmma::mma_sync(sum, fa, fb, sum);
        }
        SECOND
    }
    float* c = C + (row + warp / 2 * 16) * N + column + warp % 2 * 16;
    wmma::store_matrix_sync(c, sum, N, wmma::mem_row_major);
}"""
BOTH = ("-DFIRST=__syncthreads();", "-DSECOND=__syncthreads();")


def test_tiled_wmma_gemm(rng):
    a, b = rng.normal(size=(64, 96)).astype("f2"), rng.normal(size=(96, 64)).astype("f2")
    c = np.zeros((64, 64), np.float32)
    launch = run(TILED, (2, 2), 128, a, b, c, 64, 64, 96, options=BOTH)
    assert is_product(c, a, b, steps=96 // 16)
    assert launch.flops == 2 * 64 * 64 * 96 and launch.warnings == []


@pytest.mark.parametrize("missing, line", [("FIRST", 19), ("SECOND", 12)])
def test_tiled_wmma_gemm_with_a_barrier_missing(rng, missing, line):
    a, b, c = np.zeros((32, 64), "f2"), np.zeros((64, 32), "f2"), np.zeros((32, 32), "f4")
    a[:], b[:] = rng.normal(size=a.shape), rng.normal(size=b.shape)
    options = [o if missing not in o else f"-D{missing}=" for o in BOTH]
    error = error_of(TILED, 1, 128, a, b, c, 32, 32, 64, options=options)
    assert error.kind == "race" and error.line in (line, line + 1)


STAGED = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(float* out) {
    __shared__ __align__(32) float s[256];
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> f;
    for (int round = 0; round < 2; round++) {
        wmma::fill_fragment(f, 1.0f + round);
        wmma::store_matrix_sync(s, f, 16, wmma::mem_row_major);
        SYNC
        for (int i = threadIdx.x; i < 256; i += 32) out[i] += s[i];
    }
}"""


def test_what_a_warp_stores_needs_syncwarp_to_be_read():
    out = np.zeros(256, np.float32)
    run(STAGED, 1, 32, out, options=("-DSYNC=__syncwarp();",))
    assert (out == 3).all()
    error = error_of(STAGED, 1, 32, out, options=("-DSYNC=",))
    assert error.kind == "race" and error.line == 10 and "in line 8" in str(error)


WARPS = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, half* out) {
    __shared__ __align__(32) half s[256];
    int warp = threadIdx.x / 32;
    if (warp == 1)
        for (int i = threadIdx.x % 32; i < 256; i += 32) s[i] = a[i];
    __syncthreads();
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> f;
    const half* from = warp == 1 ? s : a + blockIdx.x * 256;
    if (warp < 2) {
        wmma::load_matrix_sync(f, from, 16, wmma::mem_row_major);
        wmma::store_matrix_sync(out + (blockIdx.x * 2 + warp) * 256, f, 16, wmma::mem_col_major);
    }
}"""


@pytest.mark.parametrize("checks", [True, False])
def test_warps_of_a_block_load_from_different_memories(rng, checks):
    a, out = rng.normal(size=(5, 16, 16)).astype(np.float16), np.zeros((5, 2, 16, 16), np.float16)
    assert run(WARPS, 5, 96, a, out, checks=checks).warnings == []
    assert np.array_equal(out[:, 0], a.transpose(0, 2, 1)) and (out[:, 1] == a[0].T).all()


LOADS = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, half* out, int at, int ld) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> f;
    if (threadIdx.x < LANES)
        wmma::load_matrix_sync(f, a + at EACH, ld, wmma::mem_row_major);
    wmma::store_matrix_sync(out, f, 16, wmma::mem_row_major);
}"""
WHOLE = ("-DLANES=32", "-DEACH=")


@pytest.mark.parametrize("at, ld, options, kind, says", [
    (16, 16, WHOLE, "out_of_bounds", "element 256 of `a` (256 float16)"),
    (0, 24, WHOLE, "out_of_bounds", "`a`"),
    (4, 16, WHOLE, "misaligned", "must be multiples of 16"),
    (0, 12, WHOLE, "misaligned", "the 24 bytes from one row to the next"),
    (0, 16, ("-DLANES=16", "-DEACH="), "mask", "must execute this together"),
    (0, 16, ("-DLANES=32", "-DEACH=+threadIdx.x*16"), "mask", "different addresses"),
])
def test_wmma_load_checks(at, ld, options, kind, says):
    a, out = np.arange(256, dtype=np.float16), np.zeros((16, 16), np.float16)
    run(LOADS, 1, 32, a, out, 0, 16, options=WHOLE)
    assert np.array_equal(out.reshape(-1), a)
    error = error_of(LOADS, 1, 32, a, out, at, ld, options=options)
    assert error.kind == kind and error.line == 6 and says in str(error)


@pytest.mark.parametrize("block", [48, 16])
def test_a_warp_that_is_not_whole(block):
    a, out = np.zeros(256, np.float16), np.zeros(256, np.float16)
    error = error_of(LOADS, 1, block, a, out, 0, 16, options=WHOLE)
    assert error.kind == "mask" and "lane 16, 17" in str(error)
    assert error.line == (6 if block == 16 else 7)          # the second warp skips line 6
