"""Tests of the simulator run on the simulator, even where there is a GPU.

CLOSE: results of approximate instructions and of sums in another order, float32.
"""

import numpy as np
import pytest

from lab import simulator

CLOSE = {"rtol": 2e-5, "atol": 1e-6}
HALF_OF_FLOAT32 = 2.0**-24


@pytest.fixture(autouse=True)
def on_simulator(tmp_path_factory):
    simulator.use("simulator")
    yield
    simulator.use(None)


@pytest.fixture
def simulated_triton():
    torch = pytest.importorskip("torch")
    simulator.activate_triton()
    torch.manual_seed(0)
    yield
    simulator.deactivate_triton()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def run(source, grid, block, *args, name="k", shared_mem=0, options=(), checks=True):
    """Launch a kernel -> its Launch."""
    with simulator.trace(checks) as t:
        simulator.RawKernel(source, name, options, path="kernel.cu")(grid, block, args, shared_mem)
    return t.launches[0]


def error_of(source, grid, block, *args, **keywords):
    """Launch a kernel that must fail -> the KernelError."""
    with pytest.raises(simulator.KernelError) as caught:
        run(source, grid, block, *args, **keywords)
    return caught.value


def race(*arguments, **keywords):
    """Launch a kernel with a race -> the KernelError."""
    error = error_of(*arguments, **keywords)
    assert error.kind == "race" and "race" in str(error)
    return error


def silent(*arguments, **keywords):
    """Launch a kernel without one: no error and no warning."""
    launch = run(*arguments, **keywords)
    assert launch.warnings == []
    return launch


def counted(n=256):
    return np.arange(n, dtype=np.float32)


def ints(n=1):
    return np.zeros(n, np.int32)


def to_bf16(x):
    """float32 numbers that bfloat16 holds -> their bits."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def is_product(c, a, b, steps):
    """Within the error of K products summed in float32, `steps` roundings one after the other."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (np.abs(c - a @ b) <= steps * HALF_OF_FLOAT32 * (np.abs(a) @ np.abs(b))).all()


def floats(rng, *shape):
    return rng.random(shape, np.float32)
