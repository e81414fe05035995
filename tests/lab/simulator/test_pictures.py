"""The pictures say what was counted."""

import re
import subprocess
import sys

import numpy as np
import pytest

from lab import simulator

from .conftest import run

TRANSPOSE = """extern "C" __global__ void k(const float* a, float* b, int n) {
    __shared__ float s[32][32];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    s[threadIdx.y][threadIdx.x] = a[y * n + x];
    __syncthreads();
    b[x * n + y] =
        s[threadIdx.x][threadIdx.y] + 1;
}"""


@pytest.fixture(scope="module", autouse=True)
def no_window():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")


@pytest.fixture(scope="module")
def transpose():
    simulator.use("simulator")
    x = np.zeros((64, 64), np.float32)
    return run(TRANSPOSE, (2, 2), (32, 32), x, x.copy(), 64, checks=False)


def words(figure):
    """All the text in a figure."""
    import matplotlib.text
    figure.canvas.draw()
    return " | ".join(t.get_text() for t in figure.findobj(matplotlib.text.Text) if t.get_text())


def colours(figure):
    from matplotlib.colors import to_hex
    axes = figure.axes[0]
    return {to_hex(p.get_facecolor()) for p in axes.patches} | \
        {to_hex(line.get_color()) for line in axes.lines}


def test_sectors_of_the_worst_line(transpose):
    figure = simulator.pictures.sectors(transpose)
    text = words(figure)
    assert "line 6: b[x * n + y] =" in text and "first store: warp 0 of block (0, 0, 0)" in text
    assert "32 sectors of 32 bytes, 4 would do; 128 of 1024 bytes wanted" in text
    assert "byte of b" in text
    red = simulator.pictures.RED
    assert red in colours(figure)
    assert sum(line.get_color() == red for line in figure.axes[0].lines) == 32   # one for each lane


def test_sectors_without_waste_are_not_red(transpose):
    figure = simulator.pictures.sectors(transpose, 4)
    assert "4 sectors of 32 bytes, 4 would do; 128 of 128 bytes wanted" in words(figure)
    assert simulator.pictures.RED not in colours(figure)


def test_sectors_of_two_arrays_and_idle_lanes():
    launch = run("""extern "C" __global__ void k(const float* a, const float* c, float* b) {
    if (threadIdx.x >= 8) b[threadIdx.x] = (threadIdx.x < 16 ? a : c)[threadIdx.x];
}""", 1, 32, *np.zeros((3, 32), np.float32))
    figure = simulator.pictures.sectors(launch, op="load")
    text = words(figure)
    assert "byte of a" in text and "byte of c" in text
    assert "3 sectors of 32 bytes, 3 would do; 96 of 96 bytes wanted" in text
    assert len(figure.axes[0].lines) == 24


def test_banks_of_a_column(transpose):
    figure = simulator.pictures.banks(transpose)
    text = words(figure)
    assert "32 wavefronts, 1 would do" in text and "red: banks that serve several words" in text
    assert simulator.pictures.RED in colours(figure)
    row = simulator.pictures.banks(transpose, 4)
    assert "1 wavefront, 1 would do" in words(row)
    assert simulator.pictures.RED not in colours(row)


@pytest.mark.parametrize("index, wavefronts, shared_word", [
    ("0", 1, True), ("threadIdx.x / 2", 1, True), ("threadIdx.x * 2", 2, False)])
def test_banks_where_lanes_share_words(index, wavefronts, shared_word):
    launch = run("""extern "C" __global__ void k(float* b) {
    __shared__ float s[64];
    s[threadIdx.x] = s[threadIdx.x + 32] = b[threadIdx.x];
    __syncwarp();
    b[threadIdx.x] = s[INDEX];
}""".replace("INDEX", index), 1, 32, np.zeros(32, np.float32))
    text = words(simulator.pictures.banks(launch, 5))
    assert re.search(rf"\b{wavefronts} wavefronts?, 1 would do", text)
    assert ("+ for several lanes" in text) == shared_word


def test_wide_words_are_served_in_parts():
    """float4: a quarter of a warp at a time, so four rows without a conflict."""
    launch = run("""extern "C" __global__ void k(float4* b) {
    __shared__ float4 s[32];
    s[threadIdx.x] = b[threadIdx.x];
    __syncwarp();
    b[threadIdx.x] = s[31 - threadIdx.x];
}""", 1, 32, np.zeros(128, np.float32))
    figure = simulator.pictures.banks(launch, 5)
    assert "4 wavefronts, 4 would do" in words(figure)
    assert simulator.pictures.RED not in colours(figure)


def test_timeline_shows_waits_and_lines():
    launch = run("""extern "C" __global__ void k(float* a) {
    float v = a[threadIdx.x];
    #pragma unroll 1
    for (int i = 0; i < threadIdx.x / 32 * 20; i++) v = v * 1.5f + 1;
    __syncthreads();
    a[threadIdx.x] = v;
}""", 1, 128, np.ones(128, np.float32))
    figure = simulator.pictures.timeline(launch)
    text = words(figure)
    assert "not time" in text and "waits at a barrier" in text and re.search(r"\b5 \|", text)
    waits = [b for b in figure.axes[0].patches if b.get_width() > 0 and
             b.get_facecolor()[:3] != figure.axes[0].patches[0].get_facecolor()[:3]]
    assert len(waits) == 3                                      # all but the slowest
    assert waits[0].get_width() > waits[1].get_width() > waits[2].get_width()


def test_roofline_puts_a_launch_at_its_counted_intensity(transpose):
    figure = simulator.pictures.roofline(transpose, "A GPU", 10e12, 1e12)
    moved, asked = transpose.totals.intensity, transpose.totals.intensity_asked
    assert moved == 4096 / (32 * (512 + 4096)) and asked == 4096 / (4 * 8192)
    dots = [tuple(float(v[0]) for v in line.get_data()) for line in figure.axes[0].lines
            if len(line.get_xdata()) == 1]
    assert (moved, moved * 1e12) in dots and (asked, asked * 1e12) in dots
    assert "A GPU: 10 TFLOP/s, 1 TB/s" in words(figure) and "ridge 10 FLOP/byte" in words(figure)


def test_what_cannot_be_drawn_is_said(transpose):
    with pytest.raises(simulator.KernelError, match="no access of global memory in line 99; lines "
                                                    "with an access: 4, 6"):
        simulator.pictures.sectors(transpose, 99)
    copy = run("""extern "C" __global__ void k(int* a) { a[0] = 1; }""", 1, 1,
               np.zeros(1, np.int32))
    with pytest.raises(simulator.KernelError, match="no load of shared memory; .* none"):
        simulator.pictures.banks(copy, op="load")
    with pytest.raises(simulator.KernelError, match="k: a launch without FLOPs"):
        simulator.pictures.roofline(copy, "A GPU", 1e12, 1e12)


def test_figures_are_closed(transpose):
    import matplotlib.pyplot as plt
    simulator.pictures.sectors(transpose)
    simulator.pictures.timeline(transpose)
    assert not plt.get_fignums()


def test_the_simulator_loads_no_matplotlib_until_it_draws():
    code = "import sys; from lab import simulator; print('matplotlib' in sys.modules, " \
           "'triton' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 3
