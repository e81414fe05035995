"""Counters equal values derived by hand."""

import re

import numpy as np
import pytest

from lab import simulator

from .conftest import run

LINE_OF_LOAD, LINE_OF_STORE = 4, 3


def matrices(n):
    return np.arange(n * n, dtype=np.float32).reshape(n, n), np.zeros((n, n), np.float32)


def test_neighbouring_floats_need_four_sectors_a_warp():
    x, y = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    launch = run("""extern "C" __global__ void k(const float* a, float* b) {
        b[blockIdx.x * 64 + threadIdx.x] = a[blockIdx.x * 64 + threadIdx.x];
    }""", 4, 64, x, y)
    assert launch.sectors_per_request() == 4                # 32 lanes · 4 bytes / 32
    assert launch.bytes_loaded == launch.bytes_stored == 1024
    assert launch.totals.memory["global", "load"].requests == 8


@pytest.mark.parametrize("stride, sectors", [(1, 4), (2, 8), (4, 16), (8, 32), (32, 32)])
def test_strided_loads(stride, sectors):
    x, y = np.zeros(32 * stride, np.float32), np.zeros(32, np.float32)
    launch = run("""extern "C" __global__ void k(const float* a, float* b, int stride) {
        b[threadIdx.x] = a[threadIdx.x * stride];
    }""", 1, 32, x, y, stride)
    assert launch.sectors_per_request(op="load") == sectors
    assert launch.totals.memory["global", "load"].ideal == 4


def test_shifted_by_one_element_needs_a_fifth_sector():
    launch = run("""extern "C" __global__ void k(const float* a, float* b) {
        b[threadIdx.x] = a[threadIdx.x + 1];
    }""", 1, 32, np.zeros(33, np.float32), np.zeros(32, np.float32))
    assert launch.sectors_per_request(op="load") == 5


def test_one_element_for_all_lanes_is_one_sector():
    launch = run("""extern "C" __global__ void k(const float* a, float* b) {
        b[threadIdx.x] = a[blockIdx.x];
    }""", 2, 32, np.zeros(2, np.float32), np.zeros(32, np.float32))
    assert launch.sectors_per_request(op="load") == 1


@pytest.mark.parametrize("dtype, ctype, sectors", [
    (np.uint8, "unsigned char", 1), (np.float16, "half", 2), (np.float32, "float", 4),
    (np.float64, "double", 8)])
def test_sectors_by_element_size(dtype, ctype, sectors):
    launch = run(f"""#include <cuda_fp16.h>
    extern "C" __global__ void k(const {ctype}* a, {ctype}* b) {{
        b[threadIdx.x] = a[threadIdx.x];
    }}""", 1, 32, np.zeros(32, dtype), np.zeros(32, dtype))
    assert launch.sectors_per_request() == sectors


def test_naive_transpose_stores_to_32_sectors():
    a, b = matrices(64)
    launch = run("""extern "C" __global__ void k(const float* a, float* b, int n) {
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    b[x * n + y] =
        a[y * n + x];
}""", (2, 2), (32, 32), a, b, 64)
    assert np.array_equal(b, a.T)
    assert launch.sectors_per_request(op="load", line=LINE_OF_LOAD) == 4
    assert launch.sectors_per_request(op="store", line=LINE_OF_STORE) == 32


@pytest.mark.parametrize("padding, degree", [(0, 32), (1, 1), (2, 2), (4, 4), (8, 8)])
def test_a_column_of_a_shared_tile(padding, degree):
    a, b = matrices(64)
    launch = run(f"""extern "C" __global__ void k(const float* a, float* b, int n) {{
    __shared__ float t[32][32 + {padding}];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    t[threadIdx.y][threadIdx.x] = a[y * n + x];
    __syncthreads();
    b[(blockIdx.x * 32 + threadIdx.y) * n + blockIdx.y * 32 + threadIdx.x] =
        t[threadIdx.x][threadIdx.y];
}}""", (2, 2), (32, 32), a, b, 64)
    assert np.array_equal(b, a.T)
    assert launch.bank_conflict_degree(line=7) == degree
    assert launch.bank_conflict_degree(line=4) == 1


@pytest.mark.parametrize("kind, which, distinct", [
    ("float", "0", 4), ("float", "t", 128), ("float", "t / 8", 16), ("float", "31 - t", 128),
    ("float4", "0", 16), ("float4", "t / 4", 128), ("float4", "t % 8", 128),    # 8 of 16 bytes
    ("double", "t % 2", 16), ("short", "t % 4", 8), ("char", "t", 32), ("char", "t / 16", 2),
])
def test_lanes_that_read_the_same_element_share_its_bytes(kind, which, distinct):
    """Two warps and three blocks; the second kernel's half warps are masked."""
    launch = run("""struct alignas(ALIGN) Item { TYPE x; };
extern "C" __global__ void k(const Item* a, Item* b, int n) {
    __shared__ Item s[64];
    int t = threadIdx.x % 32;
    s[threadIdx.x] = a[WHICH];
    __syncthreads();
    if (t % 2 < n)
        b[threadIdx.x] = s[WHICH];
}""".replace("WHICH", which).replace("TYPE", kind).replace("ALIGN", {
        "float4": "16", "double": "8", "short": "2", "char": "1"}.get(kind, "4")), 3, 64,
        *np.zeros((2, 256), np.float32), 2)
    memory = launch.totals.memory
    assert memory["shared", "load"].distinct == memory["global", "load"].distinct == 6 * distinct
    assert memory["shared", "store"].distinct == memory["shared", "store"].bytes
    assert launch.as_data()["totals"]["memory"]["shared load"]["distinct"] == 6 * distinct


def test_distinct_bytes_of_some_lanes_and_of_other_spaces():
    launch = run("""__constant__ double table[8];
extern "C" __global__ void k(const float* a, float* b) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = a[t];
    __syncwarp();
    if (t % 2) {
        b[t] =
            s[t / 4] +
            table[t / 8];
    }
    __syncwarp();
    if (t % 2) {
        atomicAdd(&s[t % 8], 1.0f);
    }
}""", 1, 32, *np.zeros((2, 64), np.float32))
    lines = launch.lines
    assert lines[9].memory["shared", "load"].distinct == 8 * 4
    assert lines[10].memory["const", "load"].distinct == 4 * 8
    assert launch.totals.memory["shared", "atomic"].distinct == 4 * 4


def test_a_request_to_several_arrays_has_distinct_bytes_of_each():
    x, y = np.zeros((2, 32), np.float32)
    launch = run("""extern "C" __global__ void k(const float* a, const float* c, float* b) {
    int t = threadIdx.x;
    b[t] = (t < 8 ? a : c)[t / 8];
}""", 1, 32, x, x.copy(), y)
    assert launch.totals.memory["global", "load"].distinct == 4 * 4


def test_shared_float4_takes_four_wavefronts_at_best():
    launch = run("""extern "C" __global__ void k(float4* b) {
        __shared__ float4 t[32];
        t[threadIdx.x] = b[threadIdx.x];
        __syncwarp();
        b[threadIdx.x] = t[31 - threadIdx.x];
    }""", 1, 32, np.zeros(128, np.float32))
    stores = launch.totals.memory["shared", "store"]
    assert (stores.requests, stores.transactions, stores.ideal) == (1, 4, 4)
    assert launch.bank_conflict_degree() == 1


@pytest.mark.parametrize("n, tile", [(64, 16), (48, 16)])
def test_tiled_matmul(rng, n, tile):
    a, b = rng.random((2, n, n), np.float32)
    c = np.zeros((n, n), np.float32)
    launch = run("""extern "C" __global__ void k(const float* A, const float* B, float* C, int n) {
        __shared__ float a[16][16], b[16][16];
        int tx = threadIdx.x, ty = threadIdx.y, x = blockIdx.x * 16 + tx, y = blockIdx.y * 16 + ty;
        float s = 0;
        for (int k = 0; k < n; k += 16) {
            a[ty][tx] = A[y * n + k + tx];
            b[ty][tx] = B[(k + ty) * n + x];
            __syncthreads();
            for (int j = 0; j < 16; j++) s += a[ty][j] * b[j][tx];
            __syncthreads();
        }
        C[y * n + x] = s;
    }""", (n // tile, n // tile), (tile, tile), a, b, c, n)
    assert np.allclose(c, a @ b, rtol=1e-5)
    assert launch.flops == 2 * n**3
    assert launch.bytes_loaded == 2 * 4 * n**3 // tile
    assert launch.totals.barriers == 2 * (n // tile)**3 * (tile * tile // 32)
    assert launch.sectors_per_request(op="load") == 4       # two rows of 16 floats
    assert launch.bank_conflict_degree() == 1


def test_naive_matmul_loads_two_rows_or_columns_a_warp(rng):
    n = 32
    a, b = rng.random((2, n, n), np.float32)
    c = np.zeros((n, n), np.float32)
    launch = run("""extern "C" __global__ void k(const float* A, const float* B, float* C, int n) {
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    float s = 0;
    #pragma unroll 1
    for (int k = 0; k < n; k++)
        s +=
            A[y * n + k] *
            B[k * n + x];
    C[y * n + x] = s;
}""", (2, 2), (16, 16), a, b, c, n)
    assert launch.sectors_per_request(op="load", line=7) == 2       # one float of each of two rows
    assert launch.sectors_per_request(op="load", line=8) == 2       # 16 neighbouring floats


def test_divergent_warps_run_both_sides():
    """A warp that splits issues the instructions of both sides; two whole warps do not."""
    source = """extern "C" __global__ void k(float* a) {
    int t = threadIdx.x;
    float v = a[t];
    #pragma unroll 1
    for (int i = 0; i < (CONDITION ? 100 : 50); i++) v = v * 1.5f + 1.0f;
    a[t] = v;
}"""
    split = run(source, 1, 64, np.ones(64, np.float32), options=("-DCONDITION=(t & 1)",))
    whole = run(source, 1, 64, np.ones(64, np.float32), options=("-DCONDITION=(t < 32)",))
    assert abs(split.lane_steps / whole.lane_steps - 1) < 0.01
    assert split.steps > 1.25 * whole.steps
    assert split.totals.splits > 0


def test_a_launch_as_data_and_as_text():
    import json
    launch = run("""extern "C" __global__ void k(float* a) { a[threadIdx.x] *= 2; }""", 1, 32,
                 np.ones(32, np.float32))
    data = json.loads(json.dumps(launch.as_data()))
    assert data["name"] == "k" and data["steps"] == launch.steps
    assert data["lines"]["1"]["memory"]["global load"]["transactions"] == 4
    assert "global load" in str(launch) and "4.00 sectors" in str(launch)
    assert "counted at PTX level" in str(launch) and "32 flops: 32 fp32" in str(launch)
    assert simulator.last_launch() is launch
    totals = data["totals"]
    assert totals["flops_by_type"] == {"fp32": 32} and totals["bytes_moved"] == 256
    assert totals["bytes_by_space"] == {"global": {"load": 128, "store": 128}}
    assert totals["instructions"]["memory"] == 2                # without ld.param
    assert totals["intensity"] == totals["intensity_asked"] == 32 / 256


def test_intensity_by_sectors_and_by_bytes_asked_for():
    launch = run("""extern "C" __global__ void k(const float* a, float* b) {
        b[threadIdx.x] = a[threadIdx.x * 8] * 2 + 1;
    }""", 1, 32, np.zeros(256, np.float32), np.zeros(32, np.float32))
    assert launch.totals.bytes_moved == 32 * (32 + 4) and launch.totals.bytes_asked == 256
    assert launch.totals.intensity == 64 / (32 * 36)
    assert launch.totals.intensity_asked == 64 / 256
    assert launch.sectors_per_request(op="load") == 32 and launch.ideal_per_request(op="load") == 4


def test_a_launch_without_traffic_has_no_intensity():
    launch = run("""extern "C" __global__ void k() {}""", 1, 32)
    assert launch.totals.intensity is None and launch.sectors_per_request() is None
    assert launch.bank_conflict_degree() is None and launch.flops == 0
    assert "0 flops;" in str(launch) and "FLOP/byte" not in str(launch)


def test_warps_that_go_different_ways_do_not_diverge():
    source = """extern "C" __global__ void k(float* a) {
    if (CONDITION) a[threadIdx.x] = sqrtf(a[threadIdx.x]);
    else a[threadIdx.x] = a[threadIdx.x] * 2 + 1;
}"""
    by_warp = run(source, 2, 128, np.ones(128, np.float32), options=("-DCONDITION=threadIdx.x<64",),
                  checks=False)
    by_lane = run(source, 2, 128, np.ones(128, np.float32), options=("-DCONDITION=threadIdx.x%2",),
                  checks=False)
    assert by_warp.totals.splits > 0 and by_warp.totals.divergent == 0
    assert by_warp.totals.active_lanes == 32
    assert by_lane.totals.divergent == 8                        # every warp of both blocks
    assert by_lane.lines[2].divergent == 8 and by_lane.totals.active_lanes < 32


def test_a_switch_diverges_by_warp():
    launch = run("""extern "C" __global__ void k(int* a) {
    int v = a[threadIdx.x];
    switch (threadIdx.x / DIVISOR % 6) {
        case 0: v *= 3; break;
        case 1: v = __popc(v); break;
        case 2: v ^= 77; break;
        case 3: v = v / 5 + 1; break;
        case 4: v = __brev(v); break;
        default: v = -v;
    }
    a[threadIdx.x] = v;
}""".replace("DIVISOR", "32"), 1, 192, np.ones(192, np.int32))
    assert launch.totals.divergent == 0


def test_generic_lanes_in_shared_and_in_global_memory():
    """One instruction, one request of each space: 16 lanes · 4 bytes are 2 sectors and 16 banks."""
    launch = run("""extern "C" __global__ void k(const float* a, float* b) {
    __shared__ float s[32];
    s[threadIdx.x] = 1;
    __syncwarp();
    const float* p = threadIdx.x < 16 ? a : s;
    b[threadIdx.x] =
        p[threadIdx.x];
}""", 1, 32, np.zeros(32, np.float32), np.zeros(32, np.float32))
    counts = launch.lines[7].memory
    assert (counts["global", "load"].requests, counts["global", "load"].transactions) == (1, 2)
    assert (counts["shared", "load"].requests, counts["shared", "load"].transactions) == (1, 1)


@pytest.mark.parametrize("size, read", [
    ("16 - i % 2 * 8", [16, 8]), ("12", [12, 12]), ("16 - i % 4 / 3 * 16", [16, 16, 16, 0])])
def test_cp_async_that_fills_with_zeros_is_one_request(size, read):
    launch = run("""extern "C" __global__ void k(const float4* a, float4* b) {
    __shared__ float4 s[32];
    int i = threadIdx.x;
    unsigned place = __cvta_generic_to_shared(&s[i]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(place), "l"(&a[i]),
                 "r"(SIZE));
    asm volatile("cp.async.wait_all;" ::: "memory");
    b[i] = s[i];
}""".replace("SIZE", size), 1, 32, np.ones(128, np.float32), np.zeros(128, np.float32))
    loads, total = launch.totals.memory["global", "load"], 32 * sum(read) // len(read)
    assert (loads.requests, loads.transactions, loads.bytes) == (1, 16, total)
    assert loads.ideal == total // 32


def test_a_view_that_starts_off_a_boundary_needs_a_fifth_sector():
    torch = pytest.importorskip("torch")
    source = """extern "C" __global__ void k(const float* a, float* b) {
        b[threadIdx.x] = a[threadIdx.x];
    }"""
    x, y = torch.zeros(64), torch.zeros(32)
    assert run(source, 1, 32, x[1:], y).sectors_per_request(op="load") == 5
    assert run(source, 1, 32, x[8:], y).sectors_per_request(op="load") == 4


def test_lines_of_another_file_keep_its_name(tmp_path):
    (tmp_path / "twice.cuh").write_text("__device__ float twice(float v) {\n    return v * 2;\n}\n")
    (tmp_path / "k.cu").write_text('#include "twice.cuh"\nextern "C" __global__ void k(float* a)'
                                   " {\n    a[threadIdx.x] = twice(a[threadIdx.x]);\n}\n")
    module = simulator.RawModule(tmp_path / "k.cu")
    with simulator.trace() as t:
        module.get("k")(1, 32, (np.ones(32, np.float32),))
    launch = t.launches[0]
    assert launch.path.endswith("k.cu") and launch.lines["twice.cuh:2"].flops == 32
    assert launch.text["twice.cuh:2"] == "return v * 2;"
    assert "lines" in launch.as_data() and "twice.cuh:2" in launch.as_data()["lines"]
    assert str(launch)


def test_every_instruction_has_a_class():
    """The classes name all that is neither float nor integer arithmetic."""
    from lab.simulator import scheduler  # noqa: F401  (fills the table)
    from lab.simulator.classes import CLASS_OF
    from lab.simulator.decode import TABLE
    arithmetic = """
        fma copysign add sub min max addc subc madc neg abs mul mad mul24 mad24 sad div rem and or
        xor not cnot shl shr shf lop3 popc clz bfind brev bfe bfi prmt dp4a dp2a fns bmsk
        vabsdiff4"""
    lacking = set(TABLE) - set(CLASS_OF) - set(re.findall(r"\w+", arithmetic))
    assert not lacking, "add them to lab/simulator/classes.py"


def test_who_waits_at_a_barrier_is_recorded():
    """Warp 0 alone runs a loop of 100 rounds before the first barrier; warp 1 before the second."""
    launch = run("""extern "C" __global__ void k(float* a) {
    float v = a[threadIdx.x];
    #pragma unroll 1
    for (int i = 0; i < (threadIdx.x < 32 ? 100 : 1); i++) v = v * 1.5f + 1;
    __syncthreads();
    #pragma unroll 1
    for (int i = 0; i < (threadIdx.x < 32 ? 1 : 100); i++) v = v * 1.5f + 1;
    __syncthreads();
    a[threadIdx.x] = v;
}""", 2, 64, np.ones(64, np.float32), checks=False)
    first, second = launch.timeline.meetings
    assert (first[0], second[0]) == (5, 8) and first[1] == second[1] == [0, 1]
    assert first[2][0] == first[3] and first[2][1] < first[3] - 200
    assert second[2][1] == second[3] and second[2][0] < second[3] - 200
    waits = [[line for _, _, line in launch.timeline.spans(w) if line] for w in (0, 1)]
    assert waits == [[8], [5]]
    ran = [sum(e - s for s, e, line in launch.timeline.spans(w) if line is None) for w in (0, 1)]
    assert sum(ran) * 2 == launch.steps                         # two blocks
    assert "waited longest at" in str(launch.timeline)


def test_resources_come_from_the_assembler():
    kernel = simulator.RawKernel("""extern "C" __global__ void k(float* a) {
        __shared__ float t[256];
        t[threadIdx.x] = a[threadIdx.x];
        __syncthreads();
        a[threadIdx.x] = t[255 - threadIdx.x];
    }""", "k")
    assert kernel.resources.shared == 1024 and 4 <= kernel.resources.registers <= 32
    assert kernel.resources.spill_stores == 0


def test_lanes_in_three_memories_make_one_request_of_each_space():
    """8 lanes in shared memory, 12 in a, 12 in c: 48 bytes from byte 32 of a on are 2 sectors, 48
    from byte 80 of c are 2."""
    launch = run("""extern "C" __global__ void k(const float* a, const float* c, float* b) {
    __shared__ float s[32];
    int t = threadIdx.x;
    s[t] = 1;
    __syncwarp();
    const float* p = t < 8 ? s : t < 20 ? a : c;
    b[t] =
        p[t];
}""", 1, 32, *np.zeros((3, 32), np.float32))
    counts = launch.lines[8].memory
    shared, loads = counts["shared", "load"], counts["global", "load"]
    assert (shared.requests, shared.bytes) == (1, 32)
    assert (loads.requests, loads.transactions, loads.ideal, loads.bytes) == (1, 4, 3, 96)
    first = launch.requests[8, "global", "load"]
    assert first.lanes[8] == ("a", 32) and first.lanes[20] == ("c", 80) and 0 not in first.lanes


def test_a_named_barrier_holds_only_its_warps():
    """Warps 0 and 1 meet at barrier 1, the others run past it."""
    launch = run("""extern "C" __global__ void k(float* a) {
    float v = a[threadIdx.x];
    if (threadIdx.x < 32) {
        #pragma unroll 1
        for (int i = 0; i < 50; i++) v = v * 1.5f + 1;
    }
    if (threadIdx.x < 64)
        asm volatile("bar.sync 1, 64;" ::: "memory");
    a[threadIdx.x] = v;
}""", 1, 128, np.ones(128, np.float32), checks=False)
    (line, warps, arrived, left), = launch.timeline.meetings
    assert (line, warps) == (8, [0, 1]) and arrived[0] == left > arrived[1] + 100
    assert [len(launch.timeline.spans(w)) for w in range(4)] == [2, 3, 1, 1]


def test_triton_kernels_by_hand():
    """add: 1024 elements for 128 threads, 2 loads of 16 bytes of each input. dot, 64³ on halves:
    two tiles of 64 · 32 each of A and B at 16 bytes a lane, 2 · 64³ operations on tensor cores."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from . import triton_static
    x, half = torch.ones(1024), torch.ones(64, 64, dtype=torch.float16)
    simulator.activate_triton()
    try:
        with simulator.trace() as t:
            triton_static.add[(1,)](x, x, torch.empty(1024), 1024, B=1024)
            triton_static.dot[(1,)](half, half, torch.empty(64, 64), 64, M=64, N=64, B=32)
    finally:
        simulator.deactivate_triton()
    add, dot = t.launches
    loads, stores = (add.totals.memory["global", op] for op in ("load", "store"))
    assert (loads.requests, loads.transactions, loads.ideal) == (16, 256, 256)
    assert (stores.requests, stores.transactions, stores.ideal) == (8, 128, 128)
    assert add.totals.flops_by_type == {"fp32": 1024}
    assert dot.totals.flops_by_type == {"tensor fp16": 2 * 64**3}
    assert dot.totals.memory["global", "load"].bytes == 2 * 2 * 64 * 64
    assert dot.totals.memory["global", "load"].requests == 2 * 2 * 64 * 64 // 512
    assert dot.totals.memory["global", "store"].bytes == 4 * 64 * 64
    assert dot.bank_conflict_degree() == 1 and dot.totals.divergent == 0


def by_hand(wanted, size, unit):
    """What a list of byte offsets, one for each active lane of a warp, costs in global memory:
    sectors, and the fewest that hold the distinct elements."""
    touched = {byte // unit for offset in wanted for byte in range(offset, offset + size)}
    return len(touched), -(-len(set(wanted)) * size // unit)


def wavefronts_by_hand(wanted, size):
    """wanted: {lane: byte offset}. Lanes are served in groups of 128 bytes; in a group each bank
    gives one word of 4 bytes a wavefront."""
    group, total, ideal = 32 * 4 // max(size, 4), 0, 0
    for start in range(0, 32, group):
        words = {byte // 4 for lane, offset in wanted.items() if start <= lane < start + group
                 for byte in range(offset, offset + size)}
        banks = [word % 32 for word in words]
        total += max((banks.count(bank) for bank in banks), default=0)
        ideal += bool(words)
    return total, ideal


@pytest.mark.parametrize("trial", range(8))
@pytest.mark.parametrize("ctype, dtype, size", [
    ("unsigned char", np.uint8, 1), ("short", np.int16, 2), ("int", np.int32, 4),
    ("int2", np.int32, 8), ("int4", np.int32, 16)])
def test_random_accesses_against_a_plain_count(ctype, dtype, size, trial):
    rng = np.random.default_rng([trial, size])
    index = rng.integers(0, rng.choice([8, 64, 512]), 64).astype(np.int32)
    active = rng.random(64) < rng.choice([0.2, 0.9, 1])
    launch = run("""extern "C" __global__ void k(const T* a, T* b, const int* at, const char* on) {
    __shared__ T s[512];
    for (int i = threadIdx.x; i < 512; i += 64) s[i] = a[i];
    __syncthreads();
    int j = at[threadIdx.x];
    if (on[threadIdx.x]) b[j] = s[j];
}""".replace("T*", f"{ctype}*").replace("T s", f"{ctype} s"), 1, 64,
                 *np.zeros((2, 512 * size // dtype().itemsize), dtype), index,
                 active.astype(np.int8))
    warps = [{lane: int(index[start + lane]) * size for lane in range(32) if active[start + lane]}
             for start in (0, 32)]
    warps = [w for w in warps if w]
    stores, loads = ((c.requests, c.transactions, c.ideal) for c in (
        launch.totals.memory["global", "store"], launch.totals.memory["shared", "load"]))
    sectors = [by_hand(list(w.values()), size, 32) for w in warps]
    wavefronts = [wavefronts_by_hand(w, size) for w in warps]
    assert stores == (len(warps), *map(sum, zip(*sectors, strict=True)))
    assert loads == (len(warps), *map(sum, zip(*wavefronts, strict=True)))
