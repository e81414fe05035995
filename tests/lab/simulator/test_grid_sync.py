"""grid.sync(): all blocks wait for all, and the race detector knows."""

import numpy as np
import pytest

from .conftest import error_of, run

# Each block leaves a sum, then each adds up the sums of all.
TOTAL = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__device__ void meet() { SYNC }
extern "C" __global__ void k(const int* x, int* sums, int* out, int rounds) {
    for (int r = 0; r < rounds; r++) {
        if (threadIdx.x == 0) sums[blockIdx.x] = x[blockIdx.x] + r;
        meet();
        int total = 0;
        for (int b = 0; b < gridDim.x; b++) total += sums[b];
        if (threadIdx.x == 0) out[blockIdx.x] = total;
        meet();
    }
}"""
SYNC = "-DSYNC=cg::this_grid().sync();"


@pytest.mark.parametrize("grid", [1, 7, (3, 2, 2)])
def test_blocks_see_what_all_have_written(grid):
    blocks = int(np.prod(grid))
    x, out = np.arange(blocks, dtype=np.int32), np.zeros(blocks, np.int32)
    source = TOTAL.replace("blockIdx.x", "cg::this_grid().block_rank()").replace(
        "gridDim.x", "cg::this_grid().num_blocks()")
    launch = run(source, grid, 64, x, np.zeros_like(x), out, 3, options=(SYNC,))
    assert (out == x.sum() + 2 * blocks).all() and launch.warnings == []


@pytest.mark.parametrize("sync", ["-DSYNC=", "-DSYNC=__syncthreads();"])
def test_without_it_the_blocks_race(sync):
    x = np.zeros(4, np.int32)
    error = error_of(TOTAL, 4, 64, x, x.copy(), x.copy(), 1, options=(sync,))
    assert error.kind == "race"


def test_race_after_the_last_grid_sync_is_found():
    source = TOTAL.replace("meet();\n    }", "}\n    sums[0] = blockIdx.x;")
    x = np.zeros(4, np.int32)
    assert error_of(source, 4, 64, x, x.copy(), x.copy(), 1, options=(SYNC,)).kind == "race"


def test_tiles_of_several_warps_know_their_ranks():
    source = """#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(int* out) {
        __shared__ cg::block_tile_memory<128> scratch;
        auto tile = cg::tiled_partition<64>(cg::this_thread_block(scratch));
        tile.sync();
        out[threadIdx.x] = tile.thread_rank();
    }"""
    out = np.zeros(128, np.int32)
    run(source, 1, 128, out)
    assert np.array_equal(out, np.arange(128) % 64)
