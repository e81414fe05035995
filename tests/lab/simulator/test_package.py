"""The simulator as a package of its own: its wheel, in a folder where no course can be imported."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from lab.course import ROOT

TESTS = '''
import pytest, torch, triton
import triton.language as tl

@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)

@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_triton(launches):
    x, y = (torch.randn(1000, device="cuda") for _ in range(2))
    z = torch.empty_like(x.cuda()).to("cuda:0")
    add[(4,)](x, y, z, 1000, BLOCK=256)
    torch.cuda.synchronize()
    torch.testing.assert_close(z, x + y)
    assert launches[-1].bytes_loaded == 8000

REVERSE = """extern "C" __global__ void reverse(const float* x, float* y) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    SYNC
    y[threadIdx.x] = tile[63 - threadIdx.x];
}"""

@pytest.mark.parametrize("sync", ["__syncthreads();", ""])
def test_cupy(sync):
    import cupy as cp
    x = cp.arange(64, dtype=cp.float32)
    y = cp.zeros_like(x)
    cp.RawKernel(REVERSE, "reverse", options=(f"-DSYNC={sync}",))((1,), (64,), (x, y))
    cp.cuda.Stream.null.synchronize()
    cp.testing.assert_array_equal(y, x[::-1])
    assert y.get()[0] == 63
'''
ADD = '''extern "C" __global__ void add(const float* x, const float* y, float* z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = x[i] + y[i];
}
'''
CALL = ["add.cu", "--grid", "4", "--block", "256", "float32:1000", "float32:1000",
        "zeros:float32:1000", "1000"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the wheel, unpacked, and a project's tests."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
                   cwd=ROOT / "lab" / "simulator", check=True, capture_output=True)
    wheel, = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (folder / "test_kernels.py").write_text(TESTS)
    (folder / "add.cu").write_text(ADD)
    return folder


def python(folder, *words, **more):
    """A process of an interpreter that has the wheel and what the environment has, but no .pth
    file, and so no course."""
    path = os.pathsep.join([str(folder), sysconfig.get_path("purelib")])
    return subprocess.run([sys._base_executable, *words], cwd=folder, text=True,
                          capture_output=True, env=os.environ | {"PYTHONPATH": path} | more)


def test_no_course_is_there(folder):
    assert "No module named 'lab'" in python(folder, "-c", "import lab").stderr
    done = python(folder, "-c", "import kernel_simulator as k; print(k.self_test())")
    assert done.returncode == 0 and "a missing barrier was found" in done.stdout, done.stderr


def test_a_projects_tests_run_and_are_checked(folder):
    done = python(folder, "-m", "pytest", "-q", "--simulate", "-p", "no:cacheprovider")
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "race: `tile` at byte 252" in done.stdout and "races.py" not in done.stdout
    assert "FAILED test_kernels.py::test_cupy[]" in done.stdout


def test_the_kernels_of_tritons_tutorials_run(folder):
    """The same file as in the course, which here switches nothing on; one of its tests switches the
    simulator off and on."""
    text = (ROOT / "tests/lab/simulator/test_triton_tutorials.py").read_text("utf-8")
    text = text.replace("from lab import simulator", "import kernel_simulator as simulator")
    (folder / "tutorials.py").write_text(re.sub(r"^pytestmark = .*", "", text, flags=re.M))
    done = python(folder, "-m", "pytest", "-q", "-rs", "--simulate", "-p", "no:cacheprovider",
                  "tutorials.py")
    said = done.stdout
    whole = "20 passed" in said or "19 passed, 1 skipped" in said and "no block pointers" in said
    assert done.returncode == 0 and whole, said + done.stderr


def test_without_the_flag_nothing_is_changed(folder):
    done = python(folder, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", "triton",
                  CUDA_VISIBLE_DEVICES="")      # a GPU of this machine would not skip it
    assert "no GPU" in done.stdout and "1 skipped" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("words, code, says", [
    (CALL, 0, "8000 bytes loaded, 4000 stored"), (CALL, 0, "argument 2: ["),
    ([*CALL[:5], "float32:10", *CALL[6:]], 1, "element 10 of `x` (10 float32)"),
    (["add.cu", "float3:10"], 2, "numpy has no dtype 'float3'"),
    (["add.cu", "f:10"], 2, "expected a number, or an array such as float32:1000"),
    (["sub.cu"], 2, "sub.cu: no such file"),
    (["add.cu", "--kernel", "sub"], 1, "has no kernel `sub`; it has `add`"),
    (["add.cu", "1"], 1, "takes 4 arguments (x, y, z, n), 1 were given")])
def test_a_file_without_a_host_program(folder, words, code, says):
    done = python(folder, "-m", "kernel_simulator", *words)
    assert done.returncode == code and says in done.stdout + done.stderr, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
