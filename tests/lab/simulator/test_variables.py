"""__device__ and __constant__ variables, read and written by the host."""

import contextlib
import types

import numpy as np
import pytest

from lab import simulator

SOURCE = """
struct Particle { float x; int cell[3]; };
__constant__ float weights[2][3] = {{1, 2, 3}, {4, 5, 6}};
__device__ int count = 7, other[4];
__device__ Particle particles[2];
__device__ __align__(16) float4 corner;
__device__ unsigned char bytes[5];
static __constant__ double scale;
__device__ float (*table[2])(float);
namespace filters {
constexpr int N = 3;
__device__ unsigned long long taps[N];
static __device__ int own[2][2];
}
extern "C" __global__ void k(float* y, unsigned long long* taps) {
    y[threadIdx.x] = weights[threadIdx.x / 3][threadIdx.x % 3] * scale + count;
    taps[0] = filters::taps[2];
    filters::own[1][0] = particles[1].cell[2] + other[3] + bytes[4] + corner.z;
    if (threadIdx.x == 0) atomicAdd(&count, 1);
}"""


@pytest.fixture
def module():
    return simulator.RawModule(SOURCE, path="own.cu")


def launch(module):
    y, taps = np.zeros(6, np.float32), np.zeros(1, np.uint64)
    module.get("k")(1, 6, (y, taps))
    return y, int(taps[0])


def test_initial_values_are_there_before_the_first_launch(module):
    weights, count = module.get_global("weights"), module.get_global("count")
    assert weights.dtype == np.float32 and weights.shape == (2, 3)
    assert np.array_equal(weights, [[1, 2, 3], [4, 5, 6]])
    assert count.shape == () and count.dtype == np.int32 and int(count[()]) == 7


def test_a_launch_sees_what_the_host_has_written_and_the_other_way_round(module):
    module.get_global("weights")[...] = np.arange(6).reshape(2, 3)
    module.get_global("weights")[1, 2] = 10
    module.get_global("scale")[...] = 2
    module.get_global("filters::taps")[2] = 1 << 40
    y, taps = launch(module)
    assert np.array_equal(y, [7, 9, 11, 13, 15, 27]) and taps == 1 << 40
    assert module.get_global("count")[()] == 8
    assert launch(module)[0][0] == 8


def test_static_variables_structs_and_vectors(module):
    particle = np.dtype([("x", np.float32), ("cell", np.int32, 3)])
    module.get_global("particles").view(particle)[1] = (0.5, (1, 2, 30))
    module.get_global("other")[3] = 400
    module.get_global("bytes")[4] = 255
    module.get_global("corner")[2] = 5000
    launch(module)
    own = module.get_global("filters::own")
    assert own.dtype == np.int32 and np.array_equal(own, [[0, 0], [5685, 0]])
    assert module.get_global("particles").dtype == np.uint8
    assert module.get_global("filters::taps").dtype == np.uint64


def test_unknown_names_are_refused_with_those_there_are(module):
    with pytest.raises(simulator.KernelError, match="no __device__ or __constant__ variable `taps`"
                       ".*`weights`.*`filters::taps`"):
        module.get_global("taps")
    with pytest.raises(simulator.KernelError, match="variable `weight`"):
        module.get_global("weight")
    with pytest.raises(simulator.KernelError, match=r"it has `mine` \(the compiler"):
        simulator.RawModule("#include <cooperative_groups.h>\n__device__ int mine;").get_global("x")


def test_an_overshoot_names_the_variable_with_its_namespace():
    kernel = simulator.RawKernel("""namespace filters { __device__ int taps[3]; }
    extern "C" __global__ void k(int* y) { y[0] = filters::taps[*y]; }""", "k")
    with pytest.raises(simulator.KernelError, match="of `filters::taps` \\(12 bytes\\)"):
        kernel(1, 1, (np.array([3], np.int32),))


def test_cupy_is_asked_for_the_same_variables(module, monkeypatch):
    """On a GPU CuPy finds the memory; here a stand-in takes its place."""
    memories = {"weights": np.zeros(24, np.uint8), "_ZN4cupyE": np.zeros(16, np.uint8)}

    class RawModule:
        def __init__(self, name_expressions, **_):
            assert "&filters::own" in name_expressions
            self.module = types.SimpleNamespace(mapping={"&filters::own": "_ZN4cupyE"})
            self.get_global = memories.__getitem__

    stream = types.SimpleNamespace(get_current_stream=contextlib.nullcontext)
    stand_in = types.SimpleNamespace(
        RawModule=RawModule, cuda=stream, asnumpy=np.array, asarray=np.asarray,
        ndarray=lambda shape, dtype, pointer: pointer.reshape(shape).view(dtype))
    monkeypatch.setitem(__import__("sys").modules, "cupy", stand_in)
    module.compile()
    simulator.use("cuda")
    module.get_global("weights")[0, 1] = 3
    module.get_global("filters::own")[...] = 9
    assert np.array_equal(module.get_global("weights"), [[0, 3, 0], [0, 0, 0]])
    assert np.array_equal(memories["_ZN4cupyE"].view(np.int32), [9] * 4)
