"""Kernels are launched and variables are shown by the names that their source gives them."""

import numpy as np
import pytest

from lab import simulator
from lab.simulator.run import plain_name

from .conftest import error_of

KERNELS = """__global__ void one(float* x) { x[threadIdx.x] += 1; }
__global__ void two(float* x) { x[threadIdx.x] *= 2; }
namespace ns { __global__ void three(float* x) { x[threadIdx.x] = 3; } }
template <int N> __global__ void add(float* x) { x[threadIdx.x] += N; }
extern "C" __global__ void zero(float* x) { x[threadIdx.x] = 0; }"""


def test_kernels_of_a_module_in_any_order():
    module, x = simulator.RawModule(KERNELS), np.zeros(4, np.float32)
    for name, value in (("one", 1), ("two", 2), ("add<3>", 5), ("ns::three", 3), ("add<4>", 7),
                        ("_Z3twoPf", 14), ("zero", 0), ("one", 1)):
        module.get(name)(1, 4, (x,))
        assert x.tolist() == [value] * 4, name


def test_a_device_variable_outlives_the_second_compilation():
    module, x = simulator.RawModule("""__device__ int count;
__global__ void add() { atomicAdd(&count, 1); }
__global__ void get(int* out) { *out = count; }"""), np.zeros(1, np.int32)
    module.get("add")(1, 32, ())
    module.get("get")(1, 1, (x,))
    assert x[0] == 32


def test_an_unknown_name_spoils_no_other():
    module, x = simulator.RawModule(KERNELS), np.zeros(4, np.float32)
    for _ in range(2):                              # before the first launch, and after it
        with pytest.raises(simulator.KernelError) as caught:
            module.get("four")(1, 4, (x,))
        assert "no kernel `four`; it has `" in str(caught.value) and "`zero`" in str(caught.value)
        with pytest.raises(simulator.CompileError, match="undefined"):
            module.get("add<M>")(1, 4, (x,))
        module.get("two")(1, 4, (x,))


def test_a_shared_array_of_a_template():
    error = error_of("""template <int M, int K, typename T> __global__ void k(const T* x, T* y) {
    __shared__ T As[M * K], Bs[M][K];
    As[threadIdx.x] = x[threadIdx.x];
    Bs[threadIdx.x / K][threadIdx.x % K] = x[threadIdx.x];
    y[threadIdx.x] = Bs[0][threadIdx.x ^ 32] + As[threadIdx.x];
}""", 1, 64, np.zeros(64, np.float32), np.zeros(64, np.float32), name="k<32, 2, float>")
    assert error.kind == "race" and "`Bs` at byte 128" in str(error) and "`k`" in str(error)


@pytest.mark.parametrize("mangled, name", [
    ("_ZZ5sgemmILi64ELi64EEviiifPKfS1_fPfE2Bs", "Bs"), ("_ZZ7softmaxE4warp", "warp"),
    ("_ZZ1kvE1s_0", "s"), ("_ZZ1kPfE4a12b", "a12b"), ("_ZZN2ns1kILi8EEEvPfE4tile__10_", "tile"),
    ("_ZZ3fooPfE3a_1", "a_1"), ("_ZN2ns1eEPf", "ns::e"), ("_Z1cILi3EEvPf", "c"), ("k_3", "k_3")])
def test_plain_names(mangled, name):
    assert plain_name(mangled) == name


def test_a_second_kernel_is_not_compiled_again(monkeypatch):
    """So that on a GPU its module stays, with the values of its variables."""
    module, x = simulator.RawModule(KERNELS), np.zeros(4, np.float32)
    module.get("one")(1, 4, (x,))
    compiled = module.compiled
    module.get("two")(1, 4, (x,))
    module.get("ns::three")(1, 4, (x,))
    assert module.compiled is compiled
    module.get("add<5>")(1, 4, (x,))
    assert module.compiled is not compiled and x.tolist() == [8] * 4


def test_overloads_are_told_apart_by_the_compiler():
    module = simulator.RawModule("""__global__ void k(float* x) { x[0] = 1; }
__global__ void k(float* x, int n) { x[0] = n; }
__global__ void other(float* x) { x[0] = 3; }""")
    x = np.zeros(1, np.float32)
    module.get("other")(1, 1, (x,))
    with pytest.raises(simulator.KernelError):
        module.get("k")(1, 1, (x,))
    assert x[0] == 3
