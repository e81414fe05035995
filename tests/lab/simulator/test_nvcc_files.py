"""Files that were written for nvcc: what compiles as it is, and what the error advises."""

import numpy as np
import pytest

from lab import simulator

from .conftest import error_of, run

ONE = 'extern "C" __global__ void k(double* y) { y[threadIdx.x] = %s; }'


@pytest.mark.parametrize("header, expression, want", [
    ("math.h", "M_PI + M_SQRT2", np.pi + np.sqrt(2)),
    ("cmath", "cos(M_PI)", -1),
    ("algorithm", "std::max(2, 3) + std::min(2.5, 1.5)", 4.5),
    ("utility", "std::pair<int, int>(3, 4).second", 4),
    ("array", "std::array<int, 3>{1, 2, 3}[2]", 3),
    ("tuple", "std::get<1>(std::make_tuple(1, 5))", 5),
    ("functional", "std::plus<int>()(2, 3)", 5),
    ("complex", "std::abs(std::complex<double>(3, 4) * std::complex<double>(0, 1))", 5),
    ("complex", "std::pow(std::complex<float>(0, 2), 2.0f).real() + std::exp(0.0f)", -3),
    ("cstddef", "sizeof(size_t)", 8)])
def test_headers_that_kernels_include(header, expression, want):
    y = np.zeros(2)
    run(f"#include <{header}>\n" + ONE % expression, 1, 2, y)
    assert np.allclose(y, want)


@pytest.mark.parametrize("header", ["string.h", "cstring", "memory.h", "stddef.h", "numeric"])
def test_headers_without_which_nvrtc_does(header):
    run(f"#include <{header}>\n" + ONE % 1, 1, 2, np.zeros(2))


WITHOUT_A_HEADER = [
    ("ushort(-1) + uint(1) + ulong(1) + uchar(257)", 65538),
    ("sizeof(uint8_t) + sizeof(int16_t) + sizeof(int32_t) + sizeof(uint64_t)", 15),
    ("std::uint32_t(-1) + std::size_t(1)", 2**32),
    ("INT32_MAX + (double)UINT8_MAX", 2**31 - 1 + 255), ("SIZE_MAX", 2.0**64),
    ("M_PI + M_PI_4", 1.25 * np.pi), ("FLT_MAX", np.finfo(np.float32).max),
    ("FLT_EPSILON", np.finfo(np.float32).eps), ("DBL_MIN", np.finfo(np.float64).tiny),
    ("INT_MAX", 2**31 - 1), ("INT_MIN", -2**31), ("UINT_MAX", 2**32 - 1), ("LLONG_MIN", -2.0**63),
    ("1 / INFINITY + HUGE_VALF * 0 != 0 && isnan(NAN)", 1), ("NULL == nullptr", 1),
    ("std::max(2, 3) + std::min(2.5f, 1.5f)", 4.5), ("std::sqrt(16.0f) + std::abs(-2)", 6),
    ("sqrt(16) + pow(2, 0.5f) * std::pow(2.0f, 0.5)", 6), ("(assert(threadIdx.x < 9), 1)", 1)]


@pytest.mark.parametrize("expression, want", WITHOUT_A_HEADER)
def test_names_that_need_no_header(expression, want):
    y = np.zeros(2)
    run(ONE % expression, 1, 2, y)
    assert np.allclose(y, want)


@pytest.mark.parametrize("own", [
    "typedef unsigned char uint8_t;", "using uint64_t = unsigned long long;",
    "#define M_PI 3.14159265358979f", "#define FLT_MAX 1e30f", "#define INT_MAX (1 << 30)",
    "typedef unsigned char uchar;", "using namespace std;",
    "template <class T> __device__ T min(T a, T b) { return a < b ? a : b; }",
    "#include <cuda/std/cstdint>\n#include <cuda/std/climits>\n#include <cuda/std/cmath>"])
def test_a_file_may_declare_such_a_name_itself(own):
    y = np.zeros(2)
    sum = "uint8_t(257) + min(M_PI, 4.0) + max(1, 2) + (INT_MAX < FLT_MAX)"
    run(own + "\n" + ONE % sum, 1, 2, y)
    assert np.allclose(y, 4 + np.pi)


def test_lines_stay_right_beside_the_names_without_a_header():
    source = """#include <algorithm>
    __shared__ int s[4];
    extern "C" __global__ void k(int* y) {
        std::swap(y[threadIdx.x], y[2]);
    }"""
    error = error_of(source, 1, 4, np.zeros(3, np.int32))
    assert (error.kind, error.line) == ("out_of_bounds", 4)
    assert error_of("\n\n" + ONE % "nothing", 1, 1, np.zeros(1)).line == 3


def test_complex_numbers_in_double_precision(rng):
    a, b = (rng.random(64) + 1j * rng.random(64) for _ in range(2))
    y = np.zeros(64, complex)
    run("""#include <cuda/std/complex>
using C = cuda::std::complex<double>;
extern "C" __global__ void k(const C* a, const C* b, C* y) {
    __shared__ C s[64];
    int t = threadIdx.x;
    s[t] = a[t] / b[t] + exp(a[t]) * conj(b[t]);
    __syncthreads();
    y[t] = sqrt(s[63 - t]);
}""", 1, 64, a, b, y)
    assert np.allclose(y, np.sqrt(a / b + np.exp(a) * b.conj())[::-1])


@pytest.mark.parametrize("text, line, advice", [
    ("#include <vector>\n", 1, "vector: NVRTC compiles device code alone"),
    ("\nvoid host(float* p) { cudaMalloc(&p, 4); }\n", 2, "cudaMalloc: NVRTC compiles device code"),
    ("__device__ int f(int v) { return __shfl_down(v, 1); }\n", 1,
     "`__shfl_down_sync(0xffffffff, ...)`"),
    ("__device__ int f() { int n = 1\n return n; }\n", 2, "often at the end of the line above"),
    ("__device__ float f(const float* x) { return x[0][1]; }\n", 1, "takes one index"),
    ("__device__ void f(const float* x) {\n    x[0] += 1;\n}\n", 2, "const can only be read"),
    ("__device__ void f(float4* x) {\n    *x = (1.f, 2.f, 3.f, 4.f);\n}\n", 2, "make_float4(a, b"),
    ("__device__ float4 f(float4 x) { return x + x; }\n", 1, "one by one")])
def test_advice_on_what_nvrtc_does_not_know(text, line, advice):
    error = error_of(text + ONE % 1, 1, 1, np.zeros(1))
    assert isinstance(error, simulator.CompileError) and error.line == line
    assert advice in str(error)


@pytest.mark.parametrize("statement, advice", [
    ("float4 a = {}; a = a + a;", "float4 has no operators"),
    ("float4 a = {}; float s = 0; s += a;", "float4 has no operators"),
    ("float4 a = *(const float4*)x + 4;", "brackets: *(const float4*)(x + i)"),
    ("float4 a = (float4) x[4];", "Cast the address"),
    ("float4 a = *(const float4*)x[4];", "Cast the address"),
    ("float4 a = (const float4*)(x + 4);", "with a * in front"),
    ("__shared__ float tile[4][4]; tile[1, 2] = 0;", "one index a bracket"),
    ("__shared__ float tile[4][4]; float f; f = tile[1, 2];", "one index a bracket")])
def test_advice_to_beginners(statement, advice):
    source = f"__device__ void f(const float* x) {{ {statement} }}\n" + ONE % 1
    said = str(error_of(source, 1, 1, np.zeros(1)))
    assert advice in said.splitlines()[-1] and len(said.splitlines()) <= 5


def test_other_errors_come_without_advice():
    error = error_of(ONE % "missing", 1, 1, np.zeros(1))
    assert str(error).splitlines()[-1].strip() == "^"


def test_the_first_errors_are_shown_without_the_warnings():
    wrong = "".join(f"__device__ int f{i}() {{ int unused; return missing{i}; }}\n"
                    for i in range(5))
    said = str(error_of(wrong + ONE % 1, 1, 1, np.zeros(1)))
    assert "missing0" in said and "missing2" in said and "missing3" not in said
    assert "warning" not in said and said.endswith("and 2 more, which may follow from these")


def test_cpp_kernel_in_a_file_with_a_c_block():
    """Only the kernels within the braces keep their plain names."""
    source = """extern "C" {
    struct S { int v; };
    __global__ void plain(int* y) { *y = 1; }
}
__global__ void mangled(int* y) { *y = 2; }
extern "C" __global__ void alone(int* y) { *y = 3; }"""
    for name, want in (("plain", 1), ("mangled", 2), ("alone", 3)):
        y = np.zeros(1, np.int32)
        run(source, 1, 1, y, name=name)
        assert y[0] == want, name


def test_a_kernel_with_layers_of_textures_is_refused_and_the_one_beside_it_runs():
    source = """extern "C" __global__ void k(cudaTextureObject_t image, float* y) {
        *y = tex2DLayered<float>(image, 1.0f, 2.0f, 3);
    }
    extern "C" __global__ void other(float* y) { *y = 1; }"""
    y = np.zeros(1, np.float32)
    run(source, 1, 1, y, name="other")
    assert y[0] == 1
    refused = "lacks this form of the instruction: `tex.a2d"
    with pytest.raises(simulator.Unsupported, match=refused) as caught:
        run(source, 1, 1, np.uint64(0), y)
    assert caught.value.line == 2
