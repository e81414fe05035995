"""Shortcuts past work that was done before give what the long way gives."""

import numpy as np
import pytest

from lab.simulator import ptx
from lab.simulator.counts import (
    BANK_BYTES,
    BANKS,
    SECTOR,
    in_order,
    of_pattern,
    sectors_of,
    wavefronts_of,
)
from lab.simulator.memory import raw
from lab.simulator.patterns import pattern_of
from lab.simulator.remembered import Remembered
from lab.simulator.run import CHECKED_WHOLE
from lab.simulator.uses import last_uses

from .conftest import run

T = 64
ROWS = {
    "one after the other": np.arange(T) + 3,
    "backwards": np.arange(T)[::-1],
    "by sixteens": np.repeat(np.arange(T // 16) * 5, 16),
    "by eights": np.repeat(np.arange(T // 8) * 5, 8),
    "aligned rows of 16": np.arange(T) % 16 + 32,
    "rows of 16, one off": np.arange(T) % 16 + 33,
    "padded rows": np.arange(T) + np.arange(T) // 16,
    "aligned pairs": (np.arange(T) // 2 * 4 + np.arange(T) % 2) % 96,
    "almost": np.where(np.arange(T) == T - 1, 0, np.arange(T)),
    "any": np.random.default_rng(0).integers(0, 96, T),
}


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", ROWS)
def test_a_pattern_fetches_what_indexing_does(name, size):
    row = ROWS[name]
    memory = np.random.default_rng(size).integers(0, 256, (3, 96 * size), np.uint8).view(raw(size))
    pattern = pattern_of(row.reshape(1, -1) * size, size, (0, 0, 0))
    got = pattern.fetch(memory)
    assert got.dtype == memory.dtype and got.tobytes() == memory[:, row].tobytes()
    assert not np.shares_memory(got, memory)
    in_some_order = len(set(row)) == T == row.max() - row.min() + 1
    assert (pattern.run is not None) == in_some_order
    assert (pattern.order is None) == (name == "one after the other")


def test_stores_in_any_order_arrive(rng):
    """Unchecked waves store a permutation of neighbours as one slice, others lane by lane."""
    a, b = rng.integers(0, 1000, 2 * T).astype(np.int32), np.zeros((3, 2 * T), np.int32)
    run("""extern "C" __global__ void k(const int* a, int* b) {
        __shared__ int s[64];
        int t = threadIdx.x, i = blockIdx.x * 64 + t, orders[3] = {63 - t, t ^ 5, t & ~1};
        for (int k = 0; k < 3; k++) {
            s[orders[k]] = a[i];
            __syncthreads();
            b[128 * k + i] = s[t & ~(k / 2)];
            __syncthreads();
        }
    }""", 2, T, a, b, checks=False)
    rows, t = a.reshape(2, T), np.arange(T)
    for got, order in zip(b.reshape(3, 2, T), (T - 1 - t, t ^ 5, t | 1), strict=True):
        assert (got == rows[:, order]).all()


def test_absent_lanes_are_not_taken_for_others():
    """Tables that look alike when both are moved to their first offset."""
    table = np.arange(32).reshape(1, 32) * 128 + 127
    absent = np.where(np.arange(32) == 0, -1, table - 128)
    for one in (table, absent, table):
        for count, unit in ((sectors_of, SECTOR), (wavefronts_of, BANKS * BANK_BYTES)):
            assert of_pattern(one, 1, count, unit) == count(one, 1)


@pytest.mark.parametrize("size", [1, 4, 16])
def test_lanes_in_order_are_counted_as_their_table_is(size, rng):
    for share in (0.05, 0.5, 1):
        lane = np.flatnonzero(rng.random(8 * 32) < share)
        warp, rows = lane // 32, np.unique(lane // 32)
        offset = size * (rng.integers(0, 3, len(lane)).cumsum() - 40 * warp + 500)
        table = np.full((len(rows), 32), -1)
        table[np.searchsorted(rows, warp), lane % 32] = offset
        assert in_order(warp, offset, size) == (len(rows), *sectors_of(table, size))
        assert in_order(warp, np.where(lane == lane[-1], 0, offset), size) is None \
            or warp[-1] != warp[-2]


def test_what_is_remembered_is_made_once_until_there_is_no_room():
    made, memory = [], Remembered(2)
    for key in "aababcca":
        assert memory.get(key, lambda key=key: made.append(key) or key) == key
    assert "".join(made) == "abca"


def sectors(lanes, step, times):
    """The sectors of a loop in which lane i of a warp reads element lanes[i] + step · k."""
    return sum(len({int(4 * (lane + step * k)) // 32 for lane in lanes}) for k in range(times))


@pytest.mark.parametrize("step", [1, 4, 8, -8, 12, 64])
def test_a_loop_over_global_memory_counts_every_step(step):
    """Steps of whole sectors and others, from a start that is not on a boundary."""
    first = 300 + np.arange(32) * 3
    launch = run("""extern "C" __global__ void k(const float* a, float* b, int step) {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float sum = 0;
        #pragma unroll 1
        for (int k = 0; k < 4; k++)
            sum += a[300 + lane * 3 + warp * 64 + blockIdx.x * 8 + k * step];
        b[blockIdx.x * 64 + threadIdx.x] = sum;
    }""", 2, 64, np.zeros(1000, np.float32), np.zeros(128, np.float32), step)
    counted = launch.totals.memory["global", "load"]
    assert counted.requests == 2 * 2 * 4
    assert counted.transactions == 4 * sectors(first, step, 4)      # warps start 64 or 8 apart


def test_a_last_wave_with_fewer_blocks_is_counted_as_such():
    """All blocks read and write the same elements; 65 blocks of 1024 lanes make two waves."""
    launch = run("""extern "C" __global__ void k(const float* a, float* b) {
        __shared__ float s[1024];
        s[threadIdx.x] = a[threadIdx.x];
        __syncthreads();
        b[threadIdx.x] = s[threadIdx.x ^ 1];
    }""", 65, 1024, np.zeros(1024, np.float32), np.zeros(1024, np.float32), checks=False)
    for space, op in (("global", "load"), ("global", "store"), ("shared", "load")):
        assert launch.totals.memory[space, op].requests == 65 * 32, (space, op)
    assert launch.totals.memory["global", "load"].transactions == 65 * 32 * 4
    assert launch.totals.memory["shared", "load"].transactions == 65 * 32


def test_a_large_grid_is_checked_in_part_though_it_fits_one_wave():
    source = """extern "C" __global__ void k(float* a) { a[blockIdx.x * 256 + threadIdx.x] = 1; }"""
    for blocks, whole in ((CHECKED_WHOLE // 256, True), (CHECKED_WHOLE // 256 + 1, False)):
        launch = run(source, blocks, 256, np.zeros(blocks * 256, np.float32))
        assert (launch.checked_blocks == blocks) is whole


BODY = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    mov.u32 %r1, %tid.x;
    add.u32 %r2, %r1, 1;
    add.u32 %r3, %r2, %r2;
    setp.lt.u32 %p1, %r1, 5;
    @%p1 mov.u32 %r4, 7;
    add.u32 %r4, %r4, %r3;
$L:
    add.u32 %r5, %r4, 1;
    add.u32 %r1, %r5, %r1;
    @%p1 bra $L;
    ret;
}
"""


def test_registers_die_only_where_no_path_reads_them():
    function = ptx.parse(BODY).functions["k"]
    dying = last_uses(function)
    by_text = {function.code[pc].text.split(",")[0]: set(names) for pc, names in dying.items()}
    assert by_text == {"add.u32 %r3": {"%r2"}, "add.u32 %r4": {"%r3"}, "add.u32 %r1": {"%r5"}}
