"""Right numbers by other work are refused, another style of the same work is not."""

import numpy as np
import pytest

from lab import simulator
from lab.judge.launched import Launched
from lab.judge.work import same_work

HEAD = 'extern "C" __global__ void k(const float* x, float* y, int C) {\n'
OWN = """x += blockIdx.x * C; y += blockIdx.x * C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) y[c] = 2 * x[c];"""
STYLES = {
    "a while loop": """x += blockIdx.x * C; y += blockIdx.x * C; int c = threadIdx.x;
    while (c < C) { float v = x[c]; y[c] = v + v; c += blockDim.x; }""",
    "one index": "for (int i = blockIdx.x * C + threadIdx.x; i < (blockIdx.x + 1) * C; "
                 "i += blockDim.x) y[i] = x[i] * 2.0f;"}
WRONG = {
    "one thread": ("if (threadIdx.x == 0) for (int c = 0; c < C; c++) y[blockIdx.x * C + c] = "
                   "2 * x[blockIdx.x * C + c];", "Requests are partly empty"),
    "one warp": (OWN.replace("threadIdx.x; c", "threadIdx.x; threadIdx.x < 32 && c").replace(
        "c += blockDim.x", "c += 32"), "the busiest warp has 3.81 times the average work"),
    "one block": ("if (blockIdx.x == 0) for (int i = threadIdx.x; i < gridDim.x * C; "
                  "i += blockDim.x) y[i] = 2 * x[i];",
                  "One warp or one block does almost all the work"),
    "read twice": (OWN.replace("2 * x[c]", "x[c] + ((volatile float*)x)[c]"), "bytes loaded"),
    "written twice": (OWN.replace("y[c] = 2", "((volatile float*)y)[c] = 1, y[c] = 2"),
                      "bytes stored"),
    "far apart": ("""x += blockIdx.x * C; y += blockIdx.x * C; int each = C / blockDim.x;
    for (int c = 0; c < each; c++) { int i = threadIdx.x * each + c; y[i] = 2 * x[i]; }""",
                  "The threads of a warp access numbers that are far apart")}


def launched(body):
    x, y = np.ones((8, 2048), np.float32), np.zeros((8, 2048), np.float32)
    kernel = simulator.RawKernel(HEAD + body + "\n}", "k")
    with simulator.trace() as trace:
        kernel((8,), (128,), (x, y, np.int32(2048)))
    assert (y == 2).all()
    return Launched([one.as_data() for one in trace.launches])


@pytest.fixture(scope="module")
def own():
    return launched(OWN)


@pytest.mark.parametrize("style", STYLES)
def test_another_style_passes(own, style):
    same_work("k", launched(STYLES[style]), own)


@pytest.mark.parametrize("mistake", WRONG)
def test_other_work_is_refused(own, mistake):
    body, says = WRONG[mistake]
    with pytest.raises(AssertionError, match=says):
        same_work("k", launched(body), own)


def test_a_count_that_does_not_matter(own):
    same_work("k", launched(WRONG["read twice"][0]), own, but=["bytes loaded", "requests"])


def test_shared_memory_that_is_the_point():
    shared = launched("__shared__ float s[128];" + OWN.replace(
        "y[c] = 2 * x[c]", "s[threadIdx.x] = x[c], y[c] = 2 * s[threadIdx.x]"))
    with pytest.raises(AssertionError, match="does not use shared memory"):
        same_work("k", launched(OWN), shared)
