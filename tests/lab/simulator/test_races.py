"""Races: reported where two threads clash, silent where something orders them."""

import numpy as np
import pytest

from lab import simulator

from .conftest import counted, ints, race, run, silent

# ---- global memory, within a block and between blocks

def test_a_sum_by_all_threads_into_one_element():
    source = """extern "C" __global__ void k(const float* x, float* total) {
    int i = blockIdx.x * 64 + threadIdx.x;
    ADD
}"""
    error = race(source, 4, 64, counted(), counted(1), options=("-DADD=total[0] += x[i];",))
    assert error.line == 3 and "element 0 of `total` (1 float32)" in str(error)
    assert "in line 3" in str(error) and "thread" in str(error) and "block" in str(error)
    total = np.zeros(1, np.float32)
    silent(source, 4, 64, counted(), total, options=("-DADD=atomicAdd(total, x[i]);",))
    assert total[0] == counted().sum()


def test_a_sum_by_one_thread_of_each_block():
    source = """extern "C" __global__ void k(const float* x, float* total) {
    float v = x[blockIdx.x];
    if (threadIdx.x == 0) total[WHERE] += v;
}"""
    error = race(source, 8, 32, counted(8), counted(8), options=("-DWHERE=0",))
    assert error.line == 3 and "by threads of several blocks" in str(error)
    assert "nothing orders two blocks" in str(error)
    silent(source, 8, 32, counted(8), counted(8), options=("-DWHERE=blockIdx.x",))


def test_reading_what_another_block_wrote():
    source = """extern "C" __global__ void k(float* part, float* out) {
    part[blockIdx.x * 32 + threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[blockIdx.x * 32 + threadIdx.x] = part[(blockIdx.x * 32 + OTHER) % 256];
}"""
    error = race(source, 8, 32, counted(), counted(), options=("-DOTHER=32 + threadIdx.x",))
    assert error.line == 4 and "`part`" in str(error) and "in line 2" in str(error)
    assert "of block (1, 0, 0)" in str(error) and error.block == (0, 0, 0)
    silent(source, 8, 32, counted(), counted(), options=("-DOTHER=31 - threadIdx.x",))


def test_a_race_between_blocks_of_different_waves():
    source = """extern "C" __global__ void k(float* x) {
    int i = blockIdx.x * 256 + threadIdx.x;
    x[i HALF] = i;
}"""
    n = 1 << 18
    silent(source, n // 256, 256, counted(n), options=("-DHALF=",))
    # block 0 and the last block, which are far apart and both in the sample
    assert race(source, n // 256, 256, counted(n), options=(f"-DHALF=% ({n} - 256)",)).line == 3


def test_threads_of_a_block_through_global_memory():
    source = """extern "C" __global__ void k(float* x, float* y) {
    int t = threadIdx.x;
    x[t] = t;
    SYNC
    y[t] = x[t ^ OTHER];
}"""
    for other, sync in (("64", "__syncthreads();"), ("1", "__syncwarp();"), ("0", "")):
        silent(source, 1, 128, counted(), counted(), options=(f"-DOTHER={other}", f"-DSYNC={sync}"))
    for other, sync in (("64", "__syncwarp();"), ("1", "")):
        error = race(source, 1, 128, counted(), counted(),
                     options=(f"-DOTHER={other}", f"-DSYNC={sync}"))
        assert error.line == 5 and "in line 3" in str(error)


def test_in_place_shift_writes_what_others_have_yet_to_read():
    source = """extern "C" __global__ void k(float* x, int n) {
    int i = threadIdx.x;
    float v = i + 1 < n ? x[i + 1] : 0;
    SYNC
    x[i] = v;
}"""
    silent(source, 1, 128, counted(), 128, options=("-DSYNC=__syncthreads();",))
    error = race(source, 1, 128, counted(), 128, options=("-DSYNC=",))
    assert error.line == 5 and "read in line 3" in str(error)


def test_the_same_value_written_by_many_is_no_race():
    source = """extern "C" __global__ void k(const float* x, int* found) {
    if (x[blockIdx.x * 64 + threadIdx.x] > 5.f) found[0] = VALUE;
}"""
    silent(source, 4, 64, counted(), ints(), options=("-DVALUE=1",))
    race(source, 4, 64, counted(), ints(), options=("-DVALUE=threadIdx.x",))


def test_bytes_and_halves_next_to_each_other():
    source = """extern "C" __global__ void k(unsigned char* x) {
    x[blockIdx.x * 32 + threadIdx.x] = threadIdx.x;
}"""
    silent(source, 8, 32, np.zeros(256, np.uint8))


def test_several_arrays_by_one_pointer_register():
    source = """extern "C" __global__ void k(float* a, float* b) {
    float* p = threadIdx.x & 1 ? a : b;
    p[threadIdx.x OTHER] = threadIdx.x;
}"""
    silent(source, 1, 64, counted(64), counted(64), options=("-DOTHER=",))
    race(source, 1, 64, counted(64), counted(64), options=("-DOTHER=/4",))


# ---- atomics, and libraries that use them

def test_an_atomic_against_a_plain_access_is_a_warning():
    source = """extern "C" __global__ void k(int* count) {
    if (threadIdx.x == 0) count[0] = 0;
    SYNC
    atomicAdd(count + WHERE, 1);
}"""
    launch = run(source, 4, 64, ints(2), options=("-DSYNC=", "-DWHERE=0"))
    assert "ordering not proven" in launch.warnings[0] and "atomic" in launch.warnings[0]
    silent(source, 4, 64, ints(2), options=("-DSYNC=", "-DWHERE=1"))
    silent(source, 1, 64, ints(2), options=("-DSYNC=__syncthreads();", "-DWHERE=0"))


def test_atomics_everywhere():
    bins, smallest = ints(16), np.full(1, 1000, np.int32)
    silent("""extern "C" __global__ void k(int* bins, int* smallest) {
    __shared__ int mine[16];
    if (threadIdx.x < 16) mine[threadIdx.x] = 0;
    __syncthreads();
    int v = (blockIdx.x * 64 + threadIdx.x) * 7 % 16;
    atomicAdd(&mine[v], 1);
    atomicMin(smallest, v);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&bins[threadIdx.x], mine[threadIdx.x]);
}""", 8, 64, bins, smallest)
    assert bins.sum() == 512 and smallest[0] == 0


CUB = """#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
extern "C" __global__ void k(const int* x, int* y, int valid) {
    using Reduce = cub::BlockReduce<int, 128>;
    using Scan = cub::BlockScan<int, 128>;
    using WarpReduce = cub::WarpReduce<int, 16>;
    using WarpScan = cub::WarpScan<int>;
    __shared__ typename Reduce::TempStorage a;
    __shared__ typename Scan::TempStorage b;
    __shared__ typename WarpReduce::TempStorage c[8];
    __shared__ typename WarpScan::TempStorage d[4];
    int t = threadIdx.x, v = x[blockIdx.x * 128 + t], s, w;
    int total = Reduce(a).Sum(v, valid);
    Scan(b).InclusiveSum(v, s);
    int part = WarpReduce(c[t / 16]).Sum(v);
    WarpScan(d[t / 32]).ExclusiveSum(v, w);
    y[blockIdx.x * 128 + t] = (t == 0 ? total : 0) + s + (t % 16 == 0 ? part : 0) + w;
}"""


@pytest.mark.parametrize("valid", [128, 77])
def test_cub(valid):
    x, y = np.arange(512, dtype=np.int32), ints(512)
    silent(CUB, 4, 128, x, y, valid)
    rows = x.reshape(4, 128)
    warps = rows.reshape(4, 4, 32)
    expected = rows.cumsum(1) + (warps.cumsum(2) - warps).reshape(4, 128)
    expected[:, 0] += rows[:, :valid].sum(1)
    expected[:, ::16] += rows.reshape(4, 8, 16).sum(2)
    assert np.array_equal(y.reshape(4, 128), expected)


def test_cub_sort_in_memory_used_three_times():
    """Storage that a union shares, with barriers between; the tail of the tile is not stored."""
    x, y = np.arange(1024, dtype=np.int32) * 7919 % 1024, ints(1024)
    silent("""#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_store.cuh>
extern "C" __global__ void k(const int* x, int* y, int n) {
    using Load = cub::BlockLoad<int, 128, 4, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
    using Sort = cub::BlockRadixSort<int, 128, 4>;
    using Store = cub::BlockStore<int, 128, 4, cub::BLOCK_STORE_TRANSPOSE>;
    __shared__ union { Load::TempStorage l; Sort::TempStorage s; Store::TempStorage o; } u;
    int v[4], start = blockIdx.x * 512;
    Load(u.l).Load(x + start, v, n, 1 << 30);
    __syncthreads();
    Sort(u.s).Sort(v);
    __syncthreads();
    Store(u.o).Store(y + start, v, n);
}""", 2, 128, x, y, 500)
    for part in (slice(0, 500), slice(512, 1012)):
        assert np.array_equal(y[part], np.sort(x[part]))


def test_cooperative_groups():
    y = counted()
    silent("""#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(float* y) {
    __shared__ float s[64];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
    s[block.thread_rank()] = block.thread_rank();
    tile.sync();
    float v = s[threadIdx.x ^ 15];
    for (int o = 8; o; o >>= 1) v += tile.shfl_xor(v, o);
    block.sync();
    s[63 - threadIdx.x] = v;
    cg::sync(block);
    y[blockIdx.x * 64 + threadIdx.x] = s[threadIdx.x];
}""", 4, 64, y)
    assert y[0] == np.arange(48, 64).sum()


# ---- shared memory

WARP_SUM = """extern "C" __global__ void k(const float* x, float* y) {
    __shared__ QUALIFIER float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (t < 32) {
        BODY
    }
    if (t == 0) y[0] = s[0];
}"""


@pytest.mark.parametrize("qualifier", ["", "volatile"])
@pytest.mark.parametrize("body", [
    "s[t] += s[t + 32]; SYNC s[t] += s[t + 16]; SYNC if (t < 8) s[t] += s[t + 8] + s[t + 16];",
    "for (int o = 32; o; o >>= 1) { if (t < o) s[t] += s[t + o]; SYNC }",
    "for (int o = 1; o < 32; o *= 2) { if (t % (2 * o) == 0) s[t] += s[t + o]; SYNC }",
    "float v = s[t ^ 1]; SYNC s[t] = v;"])
def test_warp_code_without_syncwarp(body, qualifier):
    """However the compiler orders and unrolls it: the last step of the first body is wrong in its
    numbers and free of races, all are free of races with __syncwarp()."""
    options = f"-DBODY={body}", f"-DQUALIFIER={qualifier}"
    if "t + 16]; SYNC if" not in body:
        run(WARP_SUM, 1, 64, counted(64), counted(1), options=(*options, "-DSYNC=__syncwarp();"))
    race(WARP_SUM, 1, 64, counted(64), counted(1), options=(*options, "-DSYNC="))


@pytest.mark.parametrize("meet", ["v = __shfl_xor_sync(~0u, v, 1);",
                                  "v += __any_sync(~0u, v > 0);"])
def test_a_shuffle_between_is_a_warning(meet):
    """It makes the lanes meet but promises no order of memory.
    It does not concern other warps."""
    source = """extern "C" __global__ void k(float* x) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    float v = s[t ^ OTHER];
    MEET
    s[t] = v;
}"""
    options = "-DOTHER=1", f"-DMEET={meet}"
    launch = run(source, 1, 64, counted(64), options=options)
    assert len(launch.warnings) == 1
    assert "read in line 6" in launch.warnings[0] and "__syncwarp() does" in launch.warnings[0]
    silent(source, 1, 64, counted(64), options=("-DOTHER=1", f"-DMEET={meet} __syncwarp();"))
    race(source, 1, 64, counted(64), options=("-DOTHER=32", f"-DMEET={meet}"))
    race(source, 1, 64, counted(64), options=("-DOTHER=1", "-DMEET="))


def test_a_reader_that_is_slower_than_the_next_writer():
    source = """extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float best;
    for (int r = 0; r < 3; r++) {
        if (threadIdx.x == r) best = x[r];
        __syncthreads();
        y[r * 64 + threadIdx.x] = best;
        SYNC
    }
}"""
    silent(source, 1, 64, counted(), counted(), options=("-DSYNC=__syncthreads();",))
    error = race(source, 1, 64, counted(), counted(), options=("-DSYNC=",))
    assert error.line == 4 and "read in line 6" in str(error)


NAMED = """extern "C" __global__ void k(float* y) {
    __shared__ float s[128];
    int t = threadIdx.x, half = t / 64;
    s[t] = t;
    asm volatile("bar.sync %0, 64;" :: "r"(half + 1) : "memory");
    y[t] = s[(t ^ 63) OTHER];
}"""


def test_named_barriers_order_those_who_meet_there():
    y = counted(128)
    silent(NAMED, 1, 128, y, options=("-DOTHER=",))
    assert np.array_equal(y, np.arange(128) ^ 63)
    launch = run(NAMED, 1, 128, counted(128), options=("-DOTHER=^ 64",))
    assert "ordering not proven" in launch.warnings[0]


def test_producer_and_consumer_by_bar_arrive():
    source = """extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[32];
    int t = threadIdx.x & 31;
    if (threadIdx.x < 32) {
        for (int i = 0; i < 4; i++) {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            s[t] = x[32 * i + t];
            asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
    } else {
        for (int i = 0; i < 4; i++) {
            asm volatile("bar.arrive 1, 64;" ::: "memory");
            WAIT
            y[32 * i + t] = s[31 - t];
        }
    }
}"""
    y = counted(128)
    silent(source, 1, 64, counted(128), y,
           options=('-DWAIT=asm volatile("bar.sync 2, 64;" ::: "memory");',))
    assert np.array_equal(y.reshape(4, 32), counted(128).reshape(4, 32)[:, ::-1])


# ---- what is checked

def test_the_report_says_how_many_blocks_were_checked():
    source = 'extern "C" __global__ void k(float* x) { x[blockIdx.x * 256 + threadIdx.x] = 1; }'
    launch = run(source, 4, 256, counted(1024))
    assert launch.checked_blocks == 4 and "4 of 4 blocks checked" in str(launch)
    launch = run(source, 2048, 256, counted(1 << 19))
    assert 0 < launch.checked_blocks <= 64
    assert f"{launch.checked_blocks} of 2048 blocks checked" in str(launch)
    assert run(source, 4, 256, counted(1024), checks=False).checked_blocks == 0


def test_a_large_grid_is_checked_in_its_middle_too():
    source = """extern "C" __global__ void k(float* x) {
    int b = blockIdx.x;
    if (b >= LOW && b < LOW + 8) x[0] += b;
}"""
    for low in (0, 510, 1016):
        race(source, 1024, 64, counted(1), options=(f"-DLOW={low}",))


def test_triton_sort_and_in_place_updates():
    torch, triton = pytest.importorskip("torch"), pytest.importorskip("triton")
    from .triton_kernels import bump_kernel, clash_kernel, sort_kernel
    assert triton
    simulator.activate_triton()
    x = torch.rand(4, 256)
    expected = x.sort(dim=1).values
    with simulator.trace() as t:
        sort_kernel[(4,)](x, 256)
        bump_kernel[(2,)](x)
    assert [launch.warnings for launch in t.launches][0] == []
    expected[:2, 0] += 1
    assert torch.equal(x, expected)
    with pytest.raises(simulator.KernelError) as caught:
        clash_kernel[(4,)](x)
    assert caught.value.kind == "race" and "race" in str(caught.value)


@pytest.mark.parametrize("narrow, same, other", [
    ("((int*)y)[1] = VALUE", 5, 6), ("((int*)y)[3] = VALUE", 7, 8),
    ("((short*)y)[5] = VALUE", 0, 1), ("((char*)y)[4] = VALUE", 5, 4)])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("space, end", [
    ("int* y = out", ""),
    ("__shared__ int y[4]", "__syncthreads(); out[threadIdx.x % 4] = y[threadIdx.x % 4];")])
def test_same_value_by_stores_of_two_widths(narrow, same, other, first, space, end):
    """What counts is the bytes that both write, whichever comes first."""
    wide = "*(int4*)y = make_int4(4, 5, 6, 7)"
    one, two = (narrow, wide) if first else (wide, narrow)
    source = f"""extern "C" __global__ void k(int* out) {{
        {space.replace("__shared__", "__shared__ __align__(16)")};
        if (threadIdx.x < 32) {one};
        else {two};
        {end}
    }}"""
    silent(source, 1, 64, ints(4), options=(f"-DVALUE={same}",))
    race(source, 1, 64, ints(4), options=(f"-DVALUE={other}",))


# ---- arguments that share memory

SHIFT = """extern "C" __global__ void k(float* y, const float* x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i];
}"""


@pytest.mark.parametrize("first, second", [(slice(0, 256), slice(1, 257)),
                                           (slice(64, 320), slice(0, 256))])
def test_arguments_that_overlap(first, second):
    whole = counted(512)
    assert "`y`" in str(race(SHIFT, 4, 64, whole[first], whole[second]))


def test_arguments_that_only_touch():
    whole = counted(512)
    silent(SHIFT, 4, 64, whole[:256], whole[256:])
    assert np.array_equal(whole[:256], counted(512)[256:])


# ---- atomics in shared memory

OWN = """extern "C" __global__ void k(int* y) {
    __shared__ int s[96];
    int i = threadIdx.x;
    s[i] = 0;
    %s
    y[i] = s[i / SAME * SAME];
}"""


def test_a_thread_reads_what_it_alone_changed_by_atomics():
    y = ints(96)
    silent(OWN % "atomicAdd(&s[i], i); atomicAdd(&s[i], 5);", 1, 96, y, options=("-DSAME=1",))
    assert np.array_equal(y, np.arange(96) + 5)


@pytest.mark.parametrize("body", [
    "__syncthreads(); atomicAdd(&s[i / SAME * SAME], 1);",
    "__syncthreads(); atomicAdd(&s[i / SAME * SAME], 1); __syncwarp();"])
@pytest.mark.parametrize("same", [2, 96])
def test_a_thread_reads_what_others_changed_by_atomics(body, same):
    """Atomics of one warp are ordered by __syncwarp(), those of several are not."""
    check = silent if same == 2 and "syncwarp" in body else race
    check(OWN % body, 1, 96, ints(96), options=(f"-DSAME={same}",))
    silent(OWN % (body + "__syncthreads();"), 1, 96, ints(96), options=(f"-DSAME={same}",))


@pytest.mark.parametrize("meet, check", [("__syncwarp();", race), ("__syncthreads();", silent)])
def test_atomics_of_earlier_warps_are_not_forgotten(meet, check):
    """The last warp has met its own lanes, and reads what the others changed as well."""
    source = """extern "C" __global__ void k(int* y) {
    __shared__ int s;
    if (threadIdx.x == 0) s = 0;
    __syncthreads();
    atomicAdd(&s, 1);
    MEET
    if (threadIdx.x >= 64) y[threadIdx.x] = s;
}"""
    check(source, 1, 96, ints(96), options=(f"-DMEET={meet}",))
