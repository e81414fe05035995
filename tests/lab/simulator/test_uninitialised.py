"""Uninitialised values: reported where they decide a branch, are an address or reach global memory;
silent where nothing uses them."""

import numpy as np
import pytest

from lab import simulator
from lab.simulator.ptx import parse
from lab.simulator.uses import uses_of

from .conftest import error_of, run


def floats(n=64):
    return np.arange(n, dtype=np.float32)


def undefined(*arguments, **keywords):
    """Launch a kernel that uses an undefined value -> the KernelError."""
    error = error_of(*arguments, **keywords)
    assert error.kind == "uninitialised", error
    return error


def silent(*arguments, **keywords):
    launch = run(*arguments, **keywords)
    assert launch.warnings == []
    return launch


# A tile of 64 of which COUNT elements are written; what comes of reading all of it
TILE = """extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    int t = threadIdx.x;
    if (t < COUNT) s[t] = x[t];
    __syncthreads();
    float v = s[t];
    USE
}"""

USES = {
    "store": ("y[t] = v;", 7, "is stored to `y`"),
    "sum": ("float w = v * 2 + 1; y[t] = w;", 7, "is stored to `y`"),
    "branch": ("if (v > 3) atomicAdd(y, 1.f);", 7, "decides which way"),
    "loop": ("while (v > 3) { v -= 1; y[t] = 0; }", 7, "decides which way"),
    "address": ("y[(int)v] = 0;", 7, "address"),
    "load address": ("y[t] = x[(int)v & 63];", 7, "address"),
    "atomic": ("atomicAdd(y, v);", 7, "works with"),
    "shuffle": ("v += __shfl_xor_sync(~0u, v, 1); if (t == 59) y[0] = v; "
                "else if (t == 60) y[1] = v;", 7, "is stored to `y`"),
    "ballot": ("unsigned b = __ballot_sync(~0u, v > 3); if (t == 32) y[0] = b;", 7, "stored"),
    "shared again": ("__syncthreads(); s[63 - t] = v; __syncthreads(); y[t] = s[t];", 7, "stored"),
    "local again": ("float l[4]; for (int i = 0; i < 4; i++) l[i] = v; y[t] = l[t % 4 + "
                    "(x[0] > 1)];", 7, "stored"),
}


@pytest.mark.parametrize("use", USES)
def test_what_must_not_depend_on_an_undefined_value(use):
    code, line, says = USES[use]
    silent(TILE, 1, 64, floats(), floats(), options=("-DCOUNT=64", f"-DUSE={code}"))
    error = undefined(TILE, 1, 64, floats(), floats(), options=("-DCOUNT=60", f"-DUSE={code}"))
    assert error.line == line and says in str(error)
    assert "`s` at byte 240" in str(error) and "read in line 6" in str(error)
    if use in ("store", "sum", "address"):
        assert error.thread == (60, 0, 0)


UNUSED = {
    "no use": "y[t] = 0;",
    "guarded store": "if (t < 60) y[t] = v;",
    "select": "y[t] = t < 60 ? v : -1.f;",
    "select early": "float w = t < 60 ? v : 0.f; for (int o = 16; o; o >>= 1) "
                    "w += __shfl_xor_sync(~0u, w, o); y[t] = w;",
    "branch by others": "if (t < 60 && v > 3) y[t] = 1;",
    "shuffle from defined": "float w = __shfl_sync(~0u, v, t & 15); y[t] = w;",
    "bits": "int b = __float_as_int(v); y[t] = t < 60 ? 1 : (b & 0) + (b ^ b) + (b | -1);",
    "ballot": "unsigned b = __ballot_sync(~0u, v > 3) & 0x0fffffff; y[t] = b;",
    "shared again": "__syncthreads(); s[63 - t] = v; __syncthreads(); if (t >= 4) y[t] = s[t];",
    "overwritten": "v = 1; y[t] = v;",
    "loop": "float w = 0; for (int i = 0; i < 70; i += 4) { float u = s[i & 63]; "
            "if (i < 60) w += u; } y[t] = w;",
    "shared then written": "__syncthreads(); s[t] = v; __syncthreads(); s[t] = 1; y[t] = s[t];",
}


@pytest.mark.parametrize("use", UNUSED)
def test_an_undefined_value_that_nobody_uses(use):
    silent(TILE, 2, 64, floats(), floats(), options=("-DCOUNT=60", f"-DUSE={UNUSED[use]}"))


def test_a_float4_over_the_end_of_what_was_written():
    source = """extern "C" __global__ void k(const float* x, float* y) {
    __shared__ __align__(16) float s[64];
    int t = threadIdx.x;
    for (int i = t; i < 58; i += 15) s[i] = x[i];
    __syncthreads();
    float4 v = ((float4*)s)[t];
    y[4 * t] = v.x;
    y[4 * t + 1] = v.y;
    if (4 * t + 2 < N) { y[4 * t + 2] = v.z; y[4 * t + 3] = v.w; }
}"""
    silent(source, 1, 15, floats(), floats(), options=("-DN=58",))
    error = undefined(source, 1, 15, floats(), floats(), options=("-DN=60",))
    assert error.line == 9 and "read in line 6" in str(error) and error.thread == (14, 0, 0)


def test_halves_of_a_word():
    source = """#include <cuda_fp16.h>
extern "C" __global__ void k(half* y) {
    __shared__ half s[64];
    int t = threadIdx.x;
    s[2 * t] = __float2half(t);
    __syncwarp();
    half2 v = ((half2*)s)[t];
    y[t] = __hadd(WHICH, __float2half(1.f));
}"""
    y = np.zeros(32, np.float16)
    silent(source, 1, 32, y, options=("-DWHICH=v.x",))
    assert np.array_equal(y, np.arange(32) + 1)
    assert undefined(source, 1, 32, y, options=("-DWHICH=v.y",)).line == 8


def test_local_arrays():
    source = """extern "C" __global__ void k(const int* at, float* y) {
    float l[8];
    for (int i = 0; i < N; i++) l[at[i]] = i;
    y[threadIdx.x] = l[at[threadIdx.x]];
}"""
    silent(source, 1, 8, np.arange(8, dtype=np.int32), floats(), options=("-DN=8",))
    error = undefined(source, 1, 8, np.arange(8, dtype=np.int32), floats(), options=("-DN=7",))
    assert error.line == 4 and "local variable" in str(error) and "read in line 4" in str(error)
    assert error.thread == (7, 0, 0)


def test_a_struct_with_gaps_is_copied_whole():
    source = """struct S { char c; int i; short s; };
__noinline__ __device__ void fill(S* s, int n) { s->c = n; s->i = n + 1; SHORT }
extern "C" __global__ void k(S* y) {
    S s;
    fill(&s, threadIdx.x);
    y[threadIdx.x] = s;
}"""
    y = np.zeros(32 * 12, np.uint8)
    silent(source, 1, 32, y, options=("-DSHORT=s->s = n + 2;",))
    assert np.array_equal(y.view(np.int32)[1::3], np.arange(32) + 1)
    assert undefined(source, 1, 32, y, options=("-DSHORT=",)).line == 6


def test_through_functions_and_recursion():
    source = """__noinline__ __device__ float add(float a, float b) { return a + b; }
__noinline__ __device__ int depth(int n) { int l[4]; l[n & 3] = n;
    return n < 1 ? 0 : l[n & 3] + depth(n - 1); }
extern "C" __global__ void k(float* y) {
    __shared__ float s[32];
    if (threadIdx.x < COUNT) s[threadIdx.x] = depth(3);
    __syncwarp();
    y[threadIdx.x] = add(s[threadIdx.x], 1);
}"""
    silent(source, 1, 32, floats(), options=("-DCOUNT=32",))
    assert undefined(source, 1, 32, floats(), options=("-DCOUNT=31",)).line in (1, 8)


def test_a_variable_that_was_never_set():
    source = """extern "C" __global__ void k(const float* x, float* y) {
    float v;
    asm volatile("{ .reg .f32 u; add.f32 %0, u, %1; }" : "=f"(v) : "f"(x[0]));
    if (threadIdx.x < N) y[threadIdx.x] = v;
}"""
    silent(source, 1, 32, floats(), floats(), options=("-DN=0",))
    error = undefined(source, 1, 32, floats(), floats(), options=("-DN=1",))
    assert error.line == 4 and "never set" in str(error)


def test_shared_atomics():
    source = """extern "C" __global__ void k(int* y) {
    __shared__ int n;
    if (SET) n = 0;
    __syncthreads();
    atomicAdd(&n, 1);
    __syncthreads();
    if (threadIdx.x == 0) y[0] = n;
}"""
    y = np.zeros(1, np.int32)
    silent(source, 1, 64, y, options=("-DSET=threadIdx.x == 0",))
    error = undefined(source, 1, 64, y, options=("-DSET=false",))
    assert y[0] == 64 and error.line == 5 and "`n`" in str(error)


def test_data_that_has_not_arrived_yet():
    source = """#include <cuda_pipeline.h>
extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[32];
    __pipeline_memcpy_async(&s[threadIdx.x], &x[threadIdx.x], 4);
    __pipeline_commit();
    WAIT
    y[threadIdx.x] = s[threadIdx.x];
    __pipeline_wait_prior(0);
}"""
    silent(source, 1, 32, floats(), floats(), options=("-DWAIT=__pipeline_wait_prior(0);",))
    error = error_of(source, 1, 32, floats(), floats(), options=("-DWAIT=",))
    assert error.kind == "race" and error.line == 7
    assert "is read in line 7 before its cp.async in line 4 was waited for" in str(error)


MMA = """#include <cuda_fp16.h>
extern "C" __global__ void k(const half* x, float* y) {
    __shared__ half a[16 * 16];
    int t = threadIdx.x;
    for (int i = t; i < ROWS * 16; i += 32) a[i] = x[i];
    __syncwarp();
    unsigned r[4], b = 0x3c003c00;
    unsigned at = __cvta_generic_to_shared(a + (t % 16) * 16 + t / 16 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
    float d[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7},"
        " {%8,%8}, {%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(b));
    int row = t / 4, column = t % 4 * 2;
    y[row * 8 + column] = d[0];
    y[row * 8 + column + 1] = d[1];
    if (row + 8 < STORED) {
        y[(row + 8) * 8 + column] = d[2];
        y[(row + 8) * 8 + column + 1] = d[3];
    }
}"""


def test_rows_of_a_matrix_product():
    """A row of A that was never written spoils its row of the product, and no other."""
    x, y = np.ones(256, np.float16), np.zeros(128, np.float32)
    silent(MMA, 1, 32, x, y, options=("-DROWS=13", "-DSTORED=13"))
    assert np.array_equal(y[:13 * 8], np.full(13 * 8, 16))
    error = undefined(MMA, 1, 32, x, y, options=("-DROWS=13", "-DSTORED=14"))
    assert error.line == 19 and "`a`" in str(error)
    # NVRTC 13.0 blames an asm's last line, 13.5 its first
    assert "read in line 10" in str(error) or "read in line 9" in str(error)


# One half of %0 is x, the other is not set; then what the halves do, and one that is stored
HALVES = """extern "C" __global__ void k(const unsigned short* x, unsigned short* y) {
    asm volatile("{.reg .b32 t; .reg .b16 x, y, unset; ld.global.b16 x, [%0];"
        "mov.b32 t, {x, unset}; fma.rn.f16x2 t, t, t, t; neg.f16x2 t, t;"
        "mov.b32 {x, y}, t; st.global.b16 [%1], " USE ";}" :: "l"(x), "l"(y) : "memory");
}"""


def test_the_halves_of_a_pair_do_not_meet():
    x, y = np.full(1, 3, np.float16), np.zeros(1, np.float16)
    silent(HALVES, 1, 1, x.view(np.uint16), y.view(np.uint16), options=("-DUSE=\"x\"",))
    assert y[0] == -12
    undefined(HALVES, 1, 1, x.view(np.uint16), y.view(np.uint16), options=("-DUSE=\"y\"",))


def test_global_memory_counts_as_written():
    """numpy.empty and numpy.zeros cannot be told apart."""
    silent('extern "C" __global__ void k(float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }',
           1, 32, np.empty(32, np.float32), floats())


def test_checks_can_be_off():
    run(TILE, 1, 64, floats(), floats(), options=("-DCOUNT=60", "-DUSE=y[t] = v;"), checks=False)


def test_results_do_not_change_by_being_watched(rng):
    """The same kernel, with and without undefined values about, gives the same numbers."""
    source = TILE.replace("s[64]", "s[128]")
    x = rng.random(64, np.float32)
    results = []
    for checks in (True, False):
        y = np.zeros(64, np.float32)
        code = ("float u = s[(t + 1) & 127]; u = t < 63 ? u : v; "
                "y[t] = __shfl_xor_sync(~0u, u, 3) + v;")
        run(source, 1, 64, x, y, options=("-DCOUNT=64", f"-DUSE={code}"), checks=checks)
        results.append(y)
    assert np.array_equal(*results)


def test_triton_tails():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from .triton_kernels import tail_kernel
    simulator.activate_triton()
    x = torch.rand(100, 100)
    y = torch.zeros(100)
    with simulator.trace() as t:
        tail_kernel[(1,)](x, y, 100, BLOCK=128)
    assert t.launches[0].warnings == []
    assert torch.allclose(y, x.max(dim=1).values + x.sum(dim=0))


def test_of_several_undefined_values_the_first_of_the_instruction_is_named():
    """Not now one and now another."""
    module = parse(""".version 8.0
.target sm_80
.address_size 64
.visible .entry k() {
    .reg .f32 %f<9>;
    fma.rn.f32 %f1, %f7, %f3, %f5;
    st.global.v4.f32 [%f8], {%f6, %f2, %f4, %f6};
    ret;
}""")
    fma, store, _ = module.functions["k"].code
    assert uses_of(fma).reads == ("%f7", "%f3", "%f5")
    assert uses_of(store).reads == ("%f8", "%f6", "%f2", "%f4")
