"""What a kernel may be given, and what the message says when it is given something else."""

import contextlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from lab import simulator

from .conftest import error_of, run

SCALE = """extern "C" __global__ void scale(const float* a, float* b, int n, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] = a[i] * factor;
}"""


def scale(a, b, n, factor):
    return run(SCALE, 1, 32, a, b, n, factor, name="scale")


def refused(*args):
    error = error_of(SCALE, 1, 32, *args, name="scale")
    assert error.kind == "argument"
    return str(error)


@pytest.fixture
def a():
    return np.arange(32, dtype=np.float32)


def test_numbers_of_python_and_numpy(a):
    for n, factor in ((32, 2.0), (np.int32(32), np.float32(2))):
        b = np.zeros_like(a)
        scale(a, b, n, factor)
        assert np.array_equal(b, 2 * a)


def test_wrong_count_names_the_parameters(a):
    assert "takes 4 arguments (a, b, n, factor), 3 were given" in refused(a, a, 32)


def test_an_integer_is_no_float(a):
    assert "`factor` (float)" in refused(a, a, 32, 2) and "write 2.0" in refused(a, a, 32, 2)


def test_a_float_is_no_integer(a):
    assert "`n` (int)" in refused(a, a, 32.0, 2.0)


def test_numpy_numbers_must_have_the_size(a):
    assert "not int64" in refused(a, a, np.int64(32), 2.0)
    assert "not float64" in refused(a, a, 32, np.float64(2))


def test_integers_must_fit(a):
    assert "does not fit" in refused(a, a, 1 << 31, 2.0)


def test_the_element_type_must_be_the_pointers(a):
    assert "`a` (float*): takes an array of float32, not one of float64" in refused(
        a.astype(np.float64), a, 32, 2.0)


VECTOR_COPY = """extern "C" __global__ void copy(const VECTOR* a, VECTOR* b) {
    b[threadIdx.x] = a[threadIdx.x];
}"""


@pytest.mark.parametrize("vector, width", [("float4", 16), ("int4", 16), ("uint4", 16),
                                           ("float2", 8), ("int2", 8)])
@pytest.mark.parametrize("dtype", ["float16", "uint8", "float32", "int32", "int16"])
def test_vectors_carry_narrower_elements(vector, width, dtype):
    a = np.arange(128 // np.dtype(dtype).itemsize).astype(dtype)
    b = np.zeros_like(a)
    run(VECTOR_COPY.replace("VECTOR", vector), 1, 128 // width, a, b, name="copy")
    assert np.array_equal(a, b)


def test_vectors_carry_tensors_of_bfloat16():
    torch = pytest.importorskip("torch")
    a, b = torch.arange(64).to(torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)
    run(VECTOR_COPY.replace("VECTOR", "float4"), 1, 8, a, b, name="copy")
    assert torch.equal(a, b)


@pytest.mark.parametrize("vector, a, says", [
    ("float4", np.zeros(8), "fill whole vectors of 16 bytes, not one of float64, 64 bytes"),
    ("int4", np.zeros(8, np.int64), "not one of int64"),
    ("float4", np.zeros(12, np.float16), "fill whole vectors of 16 bytes, not one of float16, 24"),
    ("double2", np.zeros(8, np.float32), "takes an array of float64, not one of float32"),
    ("half2", np.zeros(8, np.float32), "takes an array of float16, not one of float32"),
])
def test_vectors_that_are_likely_mistakes(vector, a, says):
    source = "#include <cuda_fp16.h>\n" + VECTOR_COPY.replace("VECTOR", vector)
    error = error_of(source, 1, 1, a, a, name="copy")
    assert error.kind == "argument" and says in str(error)


def test_arrays_and_numbers_are_not_mixed_up(a):
    assert "takes one value, not an array" in refused(a, a, a, 2.0)
    assert "takes an array" in refused(5, a, 32, 2.0)


def test_strided_arrays_are_refused(a):
    assert "contiguous" in refused(np.zeros(64, np.float32)[::2], a, 32, 2.0)


def test_read_only_arrays_may_be_read_and_not_written(a):
    locked = a.copy()
    locked.setflags(write=False)
    b = np.zeros_like(a)
    scale(locked, b, 32, 2.0)
    assert np.array_equal(b, 2 * a)
    error = error_of(SCALE, 1, 32, a, locked, 32, 2.0, name="scale")
    assert "read-only" in str(error)


def test_tensors_and_their_views(a):
    torch = pytest.importorskip("torch")
    whole = torch.zeros(64)
    scale(torch.from_numpy(a), whole[32:], 32, 2.0)
    assert torch.equal(whole, torch.cat([torch.zeros(32), 2 * torch.from_numpy(a)]))
    error = error_of(SCALE, 1, 64, torch.zeros(64)[:40], whole, 64, 2.0, name="scale")
    assert "element 40 of `a` (40 float32)" in str(error)


def test_booleans_and_unsigned_and_64_bit():
    out = np.zeros(3, np.int64)
    source = """extern "C" __global__ void k(long long* out, bool flag, unsigned u, long long big) {
        out[0] = flag; out[1] = u; out[2] = big;
    }"""
    run(source, 1, 1, out, True, 0xFFFFFFFF, -(1 << 40))
    assert out.tolist() == [1, 0xFFFFFFFF, -(1 << 40)]
    assert "does not fit" in str(error_of(source, 1, 1, out, True, -1, 0))


def test_grid_and_block_sizes():
    kernel = simulator.RawKernel(SCALE, "scale")
    for grid, block, words in (((1,), (32, 64), "2048 threads"), (0, 32, "positive"),
                               ((1, 1, 1, 1), 1, "one to three"), ((1, 70000), 1, "largest")):
        with pytest.raises(simulator.KernelError, match=words):
            kernel(grid, block, ())


def test_a_module_of_several_kernels_from_a_file(tmp_path, a):
    file = tmp_path / "two.cu"
    file.write_text(SCALE + "\n" + SCALE.replace("scale(", "again("))
    module, b = simulator.RawModule(str(file)), np.zeros_like(a)
    module.get("scale")(1, 32, (a, b, 32, 2.0))
    module.get("again")(1, 32, (b, b, 32, 2.0))
    assert np.array_equal(b, 4 * a)
    with pytest.raises(simulator.KernelError, match="no kernel `other`; it has `scale`, `again`"):
        module.get("other")(1, 32, ())


def test_compiled_kernels_are_kept_on_disk(tmp_path, a):
    simulator.cache_dir(tmp_path)
    try:
        for _ in range(2):
            b = np.zeros_like(a)
            scale(a, b, 32, 2.0)
            assert np.array_equal(b, 2 * a)
        assert len(list(tmp_path.iterdir())) == 1
    finally:
        simulator.cache_dir(None)


def test_another_text_of_the_own_headers_is_compiled_anew(tmp_path, a, monkeypatch):
    simulator.cache_dir(tmp_path)
    try:
        scale(a, np.zeros_like(a), 32, 2.0)
        monkeypatch.setattr("lab.simulator.cache.own_headers", lambda: "another text")
        scale(a, np.zeros_like(a), 32, 2.0)
        assert len(list(tmp_path.iterdir())) == 2
    finally:
        simulator.cache_dir(None)


def test_numpy_is_enough():
    """The package imports neither torch nor triton nor cupy nor anything else of the course."""
    import subprocess
    import sys
    code = ("import sys; from lab import simulator; simulator.use('simulator');"
            "simulator.self_test();"
            "print([m for m in ('torch', 'triton', 'cupy') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_more_shared_memory_than_a_block_can_have(a):
    error = error_of("extern __shared__ float s[]; extern \"C\" __global__ void k() { s[0] = 1; }",
                     1, 1, shared_mem=200_000)
    assert error.kind == "argument" and "200000 bytes of shared memory" in str(error)


# volatile, or NVRTC 13.5 sees that f returns i
STATIC = """__device__ float f(int i) {
    __shared__ volatile float s[BYTES / 8];
    s[i] = i;
    return s[i];
}
extern "C" __global__ void a(float* out) {
    __shared__ float tile[BYTES / 8];
    tile[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = tile[threadIdx.x] + f(threadIdx.x);
}
extern "C" __global__ void b(float* out) { out[threadIdx.x] = f(threadIdx.x); }"""


def test_static_shared_memory_ends_at_48_kb_and_counts_by_the_kernel():
    def shared(name, size):
        return run(STATIC, 1, 32, out, name=name, options=(f"-DBYTES={size}",)).shared_bytes
    out = np.zeros(32, np.float32)
    assert shared("a", 48 * 1024) == 48 * 1024 and np.array_equal(out, 2 * np.arange(32))
    assert shared("b", 48 * 1024) == 24 * 1024
    with pytest.raises(simulator.CompileError, match=r"too much shared data \(0xc008 bytes"):
        shared("a", 48 * 1024 + 8)


class Device:
    """As much of CuPy as a launch asks for; what lies on it is one more than on the host."""

    def __init__(self):
        self.launches = []
        self.cuda = SimpleNamespace(get_current_stream=contextlib.nullcontext)
        self.shared_size_bytes = 0              # of the one kernel, which this is, too

    def RawModule(self, **options):
        return SimpleNamespace(get_function=lambda name: self)

    def __call__(self, grid, block, values, shared_mem):
        self.launches.append((grid, block, values, shared_mem))

    def asarray(self, array):
        return array + 1

    def asnumpy(self, array):
        return array


def test_a_launch_on_a_gpu_refuses_what_the_simulator_refuses(a, monkeypatch):
    """And then copies arrays there and, where the kernel may write, back."""
    device = Device()
    monkeypatch.setitem(sys.modules, "cupy", device)
    monkeypatch.setattr("lab.simulator.session.session.chosen", "cuda")
    kernel = simulator.RawKernel(SCALE, "scale")
    for wrong in ((a, a, 32), (a.astype(np.float64), a, 32, 2.0), (a[::2], a, 16, 2.0)):
        with pytest.raises(simulator.KernelError):
            kernel((1,), (32,), wrong)
    assert not device.launches
    b = a.copy()
    kernel((1,), (32,), (a, b, 32, 2.0))
    (grid, block, (first, _, n, factor), shared), = device.launches
    assert (grid, block, shared) == ((1, 1, 1), (32, 1, 1), 0)
    assert np.array_equal(first, np.arange(1, 33))
    assert (n, factor) == (32, 2) and n.nbytes == factor.nbytes == 4
    assert np.array_equal(b, np.arange(1, 33))


# ---- templates, tables and launch bounds

TEMPLATE = """template <typename T, int N = 2>
__global__ void scale(T* x, const T factor) {
    x[threadIdx.x] = x[threadIdx.x] * factor * T(N);
}"""


@pytest.mark.parametrize("name, dtype, factor", [
    ("scale<float>", "f4", 2.0), ("scale<double, 2>", "f8", 2.0), ("scale<int>", "i4", 2),
    ("scale<unsigned long long>", "u8", 2)])
def test_a_templates_parameters_have_the_types_it_is_given(name, dtype, factor):
    x = np.ones(32, dtype)
    run(TEMPLATE, 1, 32, x, factor, name=name)
    assert (x == 4).all()
    wrong = np.ones(32, "f8" if dtype != "f8" else "f4")
    error = error_of(TEMPLATE, 1, 32, wrong, factor, name=name)
    assert error.kind == "argument" and f"not one of {wrong.dtype}" in str(error)


def test_a_half_in_a_template():
    x = np.ones(4, np.float16)
    source = "#include <cuda_fp16.h>\n" + TEMPLATE.replace("T(N)", "T(2.f)")
    run(source, 1, 4, x, 2.0, name="scale<__half>")
    assert (x == 4).all()


@pytest.mark.parametrize("declared", ["float** rows", "const float* const* rows", "float* rows[]"])
def test_a_table_of_pointers_is_of_addresses(declared):
    torch = pytest.importorskip("torch")
    source = f'extern "C" __global__ void k({declared}, float* y) {{ *y = rows[1][2]; }}'
    rows = [torch.arange(4.0), torch.arange(4.0) + 10]
    y = torch.zeros(1)
    run(source, 1, 1, torch.tensor([row.data_ptr() for row in rows]), y)
    assert y.item() == 12
    error = error_of(source, 1, 1, rows[0], y)
    assert "takes an array of int64 or uint64, not one of float32" in str(error)


def test_a_pointer_to_rows_is_no_table():
    y = np.zeros(1, np.float32)
    source = 'extern "C" __global__ void k(const float (*x)[8], float* y) { *y = x[1][2]; }'
    run(source, 1, 1, np.arange(16, dtype=np.float32), y)
    assert y == 10


def test_sizes_are_whole_numbers():
    x = np.ones(32, np.float32)
    run(TEMPLATE, np.int64(1), (np.int32(32),), x, 2.0, name="scale<float>")
    assert (x == 4).all()
    for grid in (1.5, "1", None, (1, 2.5)):
        error = error_of(TEMPLATE, grid, 32, x, 2.0, name="scale<float>")
        assert str(error).startswith(f"grid {grid!r}: expected one to three whole numbers")


def test_launch_bounds_hold():
    source = 'extern "C" __global__ void __launch_bounds__(64) k(float* x) { x[threadIdx.x] = 1; }'
    x = np.zeros(128, np.float32)
    run(source, 2, (8, 8), x)
    error = error_of(source, 1, 128, x)
    assert error.kind == "argument"
    assert "has 128 threads; __launch_bounds__ of `k` allows 64" in str(error)
