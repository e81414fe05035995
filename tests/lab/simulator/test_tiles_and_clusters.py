"""Cooperative groups beyond the warp, and what the simulator refuses with advice."""

import numpy as np
import pytest

from lab import simulator

from .conftest import error_of, run

GROUPS = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
"""
TILES = GROUPS + """template <int SIZE>
__device__ auto tile_of(cg::block_tile_memory<256>& memory) {
    return cg::tiled_partition<SIZE>(cg::this_thread_block(memory));
}
"""


@pytest.mark.parametrize("size", [64, 128, 256])
def test_a_tile_larger_than_a_warp_reduces_and_shuffles(size, rng):
    x, y = rng.integers(0, 100, 512).astype(np.int32), np.zeros(512, np.int32)
    launch = run(TILES + f"""extern "C" __global__ void k(const int* x, int* y) {{
        __shared__ cg::block_tile_memory<256> memory;
        auto tile = tile_of<{size}>(memory);
        int i = blockIdx.x * 256 + threadIdx.x;
        int sum = cg::reduce(tile, x[i], cg::plus<int>());
        y[i] = sum + 1000000 * tile.shfl(threadIdx.x, 1) + tile.any(x[i] > 100);
    }}""", 2, 256, x, y)
    first = np.arange(512) % 256 // size * size
    sums = x.reshape(-1, size).sum(1).repeat(size)
    assert np.array_equal(y, sums + 1000000 * (first + 1)) and not launch.warnings


NEIGHBOURS = TILES + """extern "C" __global__ void k(int* y) {
    __shared__ cg::block_tile_memory<256> memory;
    __shared__ int s[256];
    auto tile = tile_of<64>(memory);
    int other = threadIdx.x ^ %s;
    for (int step = 0; step < 3; step++) {
        s[threadIdx.x] = threadIdx.x + step;
        tile.sync();
        y[threadIdx.x] = s[other];
        %s
    }
}"""


def test_sync_orders_the_warps_of_a_tile():
    y = np.zeros(256, np.int32)
    assert not run(NEIGHBOURS % (63, "tile.sync();"), 1, 256, y).warnings
    assert np.array_equal(y, (np.arange(256) ^ 63) + 2)


@pytest.mark.parametrize("other, second, line", [(64, "tile.sync();", 16), (63, "", 14)])
def test_a_race_between_tiles_or_without_the_second_sync_is_reported(other, second, line):
    error = error_of(NEIGHBOURS % (other, second), 1, 256, np.zeros(256, np.int32))
    assert (error.kind, error.line) == ("race", line)


CHILD = "__global__ void child(float* y) { *y = 1; }\n"
KERNEL = 'extern "C" __global__ void %s k(float* y) {\n    %s\n}'


@pytest.mark.parametrize("text, options", [
    (CHILD + KERNEL % ("", "child<<<1, 32>>>(y);"), ()),
    (CHILD + KERNEL % ("", "child<<<1, 32>>>(y);"), ("-rdc=true",)),
    ("\n" + KERNEL % ("", "cudaLaunchDevice(0, 0, dim3(1), dim3(1), 0, 0);"), ())])
def test_a_launch_within_a_kernel_is_refused_with_advice(text, options):
    error = error_of(text, 1, 32, np.zeros(32, np.float32), options=options)
    assert error.line == 3 and "dynamic parallelism" in str(error)
    assert "from the host" in str(error) and "cannot call" not in str(error)


@pytest.mark.parametrize("text, line, options", [
    (GROUPS + KERNEL % ("__cluster_dims__(2, 1, 1)", "*y = 1;"), 4, ()),
    (GROUPS + KERNEL % ("", "cg::cluster_group c = cg::this_cluster();"), 5, ()),
    (GROUPS + KERNEL % ("", "cg::this_cluster().sync();"), 5, ()),
    (KERNEL % ("", "*y = __clusterRelativeBlockRank();"), 2, ()),
    (KERNEL % ("", 'asm volatile("barrier.cluster.arrive.aligned;");'), 2, ()),
    (KERNEL % ("", 'asm volatile("barrier.cluster.arrive.aligned;");'), 2, ("-arch=sm_90",)),
    (KERNEL % ("", 'int r; asm("mov.u32 %%0, %%%%cluster_ctarank;" : "=r"(r)); *y = r;'), 2, ()),
    # NVRTC 13.5 has an instruction for the first of the two statements already
    (GROUPS + KERNEL % ("", "__shared__ float s;\n    auto c = cg::this_cluster(); "
                        "*y = *c.map_shared_rank(&s, 1);"), 6, ("-arch=sm_90",))])
def test_clusters_are_refused_with_advice(text, line, options):
    error = error_of(text.replace("%%", "%"), 2, 32, np.zeros(32, np.float32), options=options)
    assert error.line == line and "came with Hopper" in str(error)
    assert "lacks the instruction" not in str(error)
    assert isinstance(error, simulator.CompileError | simulator.Unsupported)
