"""cuRAND's functions for kernels, whose headers come with a wheel that the course does not need."""

from pathlib import Path

import numpy as np
import pytest

from lab import simulator
from lab.judge.plugin import NotProvenHere
from lab.simulator import nvrtc

from .conftest import error_of, run

KERNEL = """#include <curand_kernel.h>
extern "C" __global__ void k(unsigned long long seed, STATE* states, unsigned* bits, float* uniform,
                             float* normal) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    STATE state;
    curand_init(seed, i, 0, &state);
    bits[i] = curand(&state);
    uniform[i] = curand_uniform(&state);
    normal[i] = curand_normal(&state);
    states[i] = state;
}
extern "C" __global__ void next(STATE* states, float* uniform) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    uniform[i] = curand_uniform(&states[i]);
}"""
XORWOW = KERNEL.replace("STATE", "curandState")
PHILOX = KERNEL.replace("STATE", "curandStatePhilox4_32_10_t")
M32 = 2**32 - 1


def installed():
    return any((Path(folder) / "curand_kernel.h").exists() for folder in nvrtc.include_folders())


@pytest.fixture
def curand():
    if not installed():
        raise NotProvenHere("cuRAND in a kernel: the wheel nvidia-curand is not installed")


def launch(source, seed, n=64):
    bits, uniform, normal = (np.zeros(n, t) for t in (np.uint32, np.float32, np.float32))
    run(source, n // 32, 32, seed, np.zeros(64 * n, np.uint8), bits, uniform, normal)
    return bits, uniform, normal


def philox(key, counter):
    """Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011)"""
    (a, b), c = key, list(counter)
    for _ in range(10):
        high, low = divmod(0xD2511F53 * c[0], 2**32)
        other_high, other_low = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [other_high ^ c[1] ^ a, other_low, high ^ c[3] ^ b, low]
        a, b = (a + 0x9E3779B9) & M32, (b + 0xBB67AE85) & M32
    return c


def test_philox_gives_the_numbers_of_its_paper(curand):
    seed = 0x123456789
    bits, uniform, _ = launch(PHILOX, seed)
    want = np.array([philox((seed & M32, seed >> 32), (0, 0, i, 0)) for i in range(64)])
    assert np.array_equal(bits, want[:, 0])
    assert np.allclose(uniform, (want[:, 1] + 0.5) / 2**32, rtol=1e-6)


def test_xorwow_goes_on_by_marsaglias_step(curand):
    """Thread i's stream starts 2^67 · i numbers on; within it each step follows from the state."""
    n = 32
    states, bits = np.zeros((n, 12), np.uint32), np.zeros(n, np.uint32)
    uniform, normal = np.zeros((2, n), np.float32)
    module = simulator.RawModule(XORWOW)
    module.get("k")(1, n, (1234, states.reshape(-1).view(np.uint8), bits, uniform, normal))
    d, v = states[:, 0].astype(np.uint64), states[:, 1:6].astype(np.uint64)
    module.get("next")(1, n, (states.reshape(-1).view(np.uint8), uniform))
    t = v[:, 0] ^ (v[:, 0] >> np.uint64(2))
    last = (v[:, 4] ^ (v[:, 4] << np.uint64(4)) ^ t ^ (t << np.uint64(1))) & np.uint64(M32)
    d = (d + np.uint64(362437)) & np.uint64(M32)
    assert np.array_equal(states[:, 5], last) and np.array_equal(states[:, 0], d)
    number = ((last + d) & np.uint64(M32)).astype(float)
    assert np.allclose(uniform, (number + 0.5) / 2**32, rtol=1e-6)
    assert len(set(bits)) == n


@pytest.mark.parametrize("source", [XORWOW, PHILOX], ids=["xorwow", "philox"])
def test_numbers_are_spread_as_they_should(curand, source):
    _, uniform, normal = launch(source, 7, 512)
    assert uniform.min() > 0 and uniform.max() <= 1
    assert abs(uniform.mean() - 0.5) < 5 / np.sqrt(12 * 512)
    assert abs(normal.mean()) < 5 / np.sqrt(512) and abs(normal.std() - 1) < 5 / np.sqrt(1024)


def test_without_the_wheel_the_error_names_it(monkeypatch):
    others = [f for f in nvrtc.include_folders() if not (Path(f) / "curand_kernel.h").exists()]
    monkeypatch.setattr(nvrtc, "include_folders", lambda: others)
    error = error_of(f"{XORWOW}// without the wheel", 1, 32)
    assert isinstance(error, simulator.CompileError) and error.line == 1
    assert "pip install nvidia-curand" in str(error)


def test_headers_of_wheels_in_another_folder_are_found(tmp_path, monkeypatch):
    """As with pip install --target, or a user's site-packages beside an environment's."""
    headers = tmp_path / "nvidia" / "other" / "include"
    headers.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = nvrtc.include_folders.__wrapped__()
    assert str(headers) in found and set(nvrtc.include_folders()) <= set(found)
