"""ldmatrix and movmatrix: their fragments, counts and checks, and what was never written."""

import numpy as np
import pytest

from .conftest import error_of, run

LDMATRIX = """extern "C" __global__ void k(const unsigned short* a, unsigned* out) {
    __shared__ __align__(16) unsigned short s[32 * STRIDE];
    int t = threadIdx.x;
    for (int i = t; i < 32 * 8; i += 32) s[i / 8 * STRIDE + i % 8] = a[i];
    __syncwarp();
    unsigned p = (unsigned)__cvta_generic_to_shared(s + (USED) * STRIDE), r[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.FORM {REGISTERS}, [%COUNT];" : OUTPUTS : "r"(p));
    for (int i = 0; i < COUNT; i++) out[i * 32 + t] = r[i];
}"""


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("stride, degree", [(8, 1), (64, 8), (72, 1), (16, 2)])
def test_ldmatrix(rng, count, trans, stride, degree):
    """x1 and x2 look at the addresses of the first 8 and 16 lanes; the others' may be anything."""
    a = rng.integers(0, 2**16, (32, 8)).astype(np.uint16)
    out = np.zeros((count, 32), np.uint32)
    text = LDMATRIX.replace("FORM", f"x{count}{trans}.shared.b16").replace(
        "REGISTERS", ", ".join(f"%{i}" for i in range(count))).replace("COUNT", str(count)).replace(
        "OUTPUTS", ", ".join(f'"=r"(r[{i}])' for i in range(count))).replace(
        "USED", f"t < {8 * count} ? t : 10000000").replace("STRIDE", str(stride))
    launch = run(text, 1, 32, a, out)
    tiles = a.reshape(4, 8, 8)[:count]
    tiles = tiles.transpose(0, 2, 1) if trans else tiles
    assert np.array_equal(out, np.ascontiguousarray(tiles).view(np.uint32).reshape(count, 32))
    memory = launch.lines[7].access("shared", "load")
    assert (memory.requests, memory.ideal, memory.bytes) == (1, count, count * 128)
    assert memory.transactions == count * degree


UNSET = """extern "C" __global__ void k(unsigned* out) {
    __shared__ __align__(16) unsigned s[32];
    int t = threadIdx.x;
    if (t < N) s[t] = 1;
    __syncthreads();
    unsigned p = (unsigned)__cvta_generic_to_shared(s + t % 8 * 4), r, d = 0, e = 0;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(p));
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%2}, {%0,%1};"
                 : "+r"(d), "+r"(e) : "r"(r));
    if (t < STORED) out[t] = d;
}"""


def test_what_nobody_has_written_is_followed_through_ldmatrix_and_mma():
    """Row 7 is unset, and so is row 7 of the product, which lanes 28 to 31 hold."""
    out = np.zeros(32, np.uint32)
    run(UNSET, 1, 32, out, options=("-DN=32", "-DSTORED=32"))
    assert (out == 4).all()
    run(UNSET, 1, 32, out, options=("-DN=28", "-DSTORED=28"))
    error = error_of(UNSET, 1, 32, out, options=("-DN=28", "-DSTORED=29"))
    assert error.kind == "uninitialised" and error.line == 10 and "read in line 7" in str(error)


PADDED = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, float* out, int rows) {
    __shared__ __align__(32) half s[256];
    __shared__ __align__(32) float d[256];
    for (int i = threadIdx.x; i < 10 * 16; i += 32) s[i] = a[i];
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::load_matrix_sync(fa, s, 16);
    wmma::load_matrix_sync(fb, a, 16);
    wmma::fill_fragment(fc, 0.f);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(d, fc, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < rows * 16; i += 32) out[i] = d[i];
}"""


def test_rows_that_nobody_has_written_and_nobody_uses(rng):
    a, out = rng.integers(-4, 5, (16, 16)).astype(np.float16), np.zeros((16, 16), np.float32)
    run(PADDED, 1, 32, a, out, 10)
    assert np.array_equal(out[:10], (a @ a)[:10])
    error = error_of(PADDED, 1, 32, a, out, 12)
    assert error.kind == "uninitialised" and error.line == 17 and "read in line 11" in str(error)


def test_ldmatrix_checks_bounds_and_alignment():
    text = LDMATRIX.replace("FORM", "x1.shared.b16").replace("REGISTERS", "%0").replace(
        "COUNT", "1").replace("OUTPUTS", '"=r"(r[0])').replace("STRIDE", "8")
    arrays = np.zeros(256, np.uint16), np.zeros(32, np.uint32)
    run(text.replace("USED", "t"), 1, 32, *arrays)
    error = error_of(text.replace("USED", "t + 30"), 1, 32, *arrays)
    assert error.kind == "out_of_bounds" and error.thread == (2, 0, 0) and error.line == 7
    error = error_of(text.replace("(USED) * 8", "t * 8 + 4"), 1, 32, *arrays)
    assert error.kind == "misaligned" and error.line == 7


def test_movmatrix(rng):
    a = rng.integers(0, 2**16, (8, 8)).astype(np.uint16)
    out = np.zeros((8, 8), np.uint16)
    run("""extern "C" __global__ void k(const unsigned* a, unsigned* out) {
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
                     : "=r"(out[threadIdx.x]) : "r"(a[threadIdx.x]));
    }""", 1, 32, a.view(np.uint32), out.view(np.uint32))
    assert np.array_equal(out, a.T)
