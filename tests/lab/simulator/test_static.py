"""What the compilers say of a kernel without running it: resources, occupancy, SASS, Hopper."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lab import simulator
from lab.simulator import nvrtc
from lab.simulator.nvrtc import Resources
from lab.simulator.occupancy import GPUS, MOST_REGISTERS, MULTIPROCESSORS, REGISTERS

SPILLING = """extern "C" __global__ void k(float* a) {
    float v[64];
    #pragma unroll
    for (int i = 0; i < 64; i++) v[i] = a[i * 32 + threadIdx.x];
    for (int n = 0; n < 8; n++) {
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 64; i++) v[i] = v[i] * v[63 - i] + v[i * 7 % 64];
    }
    #pragma unroll
    for (int i = 0; i < 64; i++) a[threadIdx.x * 64 + i] = v[i];
}"""
TILE = """extern "C" __global__ void k(const float4* a, float* b) {
    __shared__ float s[1024];
    float4 v = a[threadIdx.x];
    s[threadIdx.x] = v.x * v.y + v.z;
    __syncthreads();
    b[threadIdx.x] = s[255 - threadIdx.x];
}"""


# ---- resources and occupancy

def test_a_kernel_spills_when_it_may_not_have_the_registers():
    plain = simulator.RawKernel(SPILLING, "k").resources
    tight = simulator.RawKernel(SPILLING, "k", ("--maxrregcount=32",)).resources
    assert plain.registers > 64 and plain.spill_stores == plain.spill_loads == plain.stack == 0
    assert tight.registers <= 32 and tight.stack > 0
    assert tight.spill_stores > 64 and tight.spill_loads > 64
    assert plain.barriers == 1


@pytest.mark.parametrize("gpu, registers, shared, threads, blocks, limiter", [
    ("A100", 32, 0, 256, 8, "warps and registers"),     # 65536 / (32 · 256) = 8 = 64 warps / 8
    ("A100", 64, 0, 256, 4, "registers"),               # 65536 / (64 · 256)
    ("A100", 65, 0, 256, 3, "registers"),               # 72 · 256 = 18432 registers a block
    ("A100", 16, 0, 32, 32, "blocks"),                  # 32 blocks of one warp, of 64 warps
    ("A100", 16, 40 * 1024, 128, 4, "shared memory"),   # 164 KB / (40 KB + 1 KB)
    ("H100", 16, 40 * 1024, 128, 5, "shared memory"),   # 228 / 41
    ("RTX 4090", 16, 40 * 1024, 128, 2, "shared memory"),       # 100 / 41
    ("RTX 4090", 16, 0, 1024, 1, "warps"),              # 48 warps / 32
    ("T4", 16, 32 * 1024, 64, 2, "shared memory"),      # 64 / 32, Turing reserves none
    ("L4", 168, 0, 384, 1, "registers"),                # 168 · 384 = 64512 registers
    ("B200", 128, 0, 128, 4, "registers"),              # 65536 / (128 · 128)
])
def test_occupancy_by_hand(gpu, registers, shared, threads, blocks, limiter):
    found = simulator.occupancy(Resources(registers, shared, 0, 0), threads, gpu=gpu)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.warps == blocks * threads // 32
    assert f"limited by {limiter}" in str(found)


@pytest.mark.parametrize("registers, shared, threads, gpu, what", [
    (16, 164 * 1024, 128, "A100", "shared memory"),     # 163 KB is the most
    (16, 100 * 1024, 128, "L4", "shared memory"),
    (80, 0, 1024, "H100", "registers"),                 # 80 · 1024 > 65536
])
def test_a_block_that_does_not_fit(registers, shared, threads, gpu, what):
    found = simulator.occupancy(Resources(registers, 0, 0, 0), threads, shared, gpu)
    assert (found.blocks, found.limiter, found.fraction) == (0, what, 0)
    assert f"does not fit: too much of {what}" in str(found)


def test_occupancy_compiles_for_the_gpu():
    kernel = simulator.RawKernel(TILE, "k")
    for gpu in ("T4", "A100", "H100", "B200", "RTX 5090"):
        assert simulator.occupancy(kernel, (16, 16), gpu=gpu).warps_of_block == 8
    assert simulator.occupancy(kernel, 256, 60 * 1024, "A100").limiter == "shared memory"
    with pytest.raises(simulator.KernelError, match="GPU 'A1000': expected one of T4,"):
        simulator.occupancy(kernel, 256, gpu="A1000")
    with pytest.raises(simulator.KernelError, match="expected 1 to 1024 threads, not 2048"):
        simulator.occupancy(kernel, (64, 32))
    with pytest.raises(simulator.KernelError, match="block None: expected 1 to 1024 threads"):
        simulator.occupancy(kernel)


NVIDIAS = r"""
#include <cstdio>
#include <cuda_occupancy.h>
int main() {
    int major, minor, warps, registers, threads, barriers; long per_sm, optin, reserved, shared;
    while (scanf("%d %d %d %ld %ld %ld %d %ld %d %d", &major, &minor, &warps, &per_sm, &optin,
                 &reserved, &registers, &shared, &threads, &barriers) == 10) {
        cudaOccDeviceProp p; cudaOccFuncAttributes f; cudaOccDeviceState s; cudaOccResult r;
        p.computeMajor = major; p.computeMinor = minor; p.maxThreadsPerBlock = 1024;
        p.maxThreadsPerMultiprocessor = 32 * warps; p.regsPerBlock = 65536;
        p.regsPerMultiprocessor = 65536; p.warpSize = 32;
        p.sharedMemPerBlock = 49152; p.sharedMemPerMultiprocessor = per_sm;
        p.numSms = 100; p.sharedMemPerBlockOptin = optin; p.reservedSharedMemPerBlock = reserved;
        f.maxThreadsPerBlock = 1024; f.numRegs = registers; f.sharedSizeBytes = 0;
        f.partitionedGCConfig = PARTITIONED_GC_OFF; f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        f.maxDynamicSharedSizeBytes = shared; f.numBlockBarriers = barriers;
        int error = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &f, &s, threads, shared);
        printf("%d\n", error ? -error : r.activeBlocksPerMultiprocessor);
    }
}"""


def test_occupancy_agrees_with_nvidias_own_header(rng, tmp_path):
    """cuda_occupancy.h comes with the runtime's wheel; it needs a C++ compiler to be asked."""
    headers = [f for f in nvrtc.include_folders() if (Path(f) / "cuda_occupancy.h").exists()]
    if not headers or not shutil.which("g++"):
        pytest.skip("not proven here: no g++, or no cuda_occupancy.h")
    (tmp_path / "ask.cpp").write_text(NVIDIAS)
    subprocess.run(["g++", "-O0", "-w", f"-I{headers[0]}", "ask.cpp", "-o", "ask"], cwd=tmp_path,
                   check=True)
    asked, mine = [], []
    for version, sm in MULTIPROCESSORS.items():
        for _ in range(200):
            registers, threads = int(rng.integers(8, 256)), int(rng.integers(1, 1025))
            shared = int(rng.integers(0, sm.shared_of_block + 1)) * int(rng.integers(0, 2))
            barriers = int(rng.integers(0, 9))
            asked.append([*version.split("."), sm.warps, sm.shared, sm.shared_of_block, sm.reserved,
                          registers, shared, threads, barriers])
            mine.append(simulator.occupancy(
                Resources(registers, 0, 0, 0, barriers=barriers), threads, shared, version).blocks)
    text = "\n".join(" ".join(map(str, row)) for row in asked)
    theirs = subprocess.run([tmp_path / "ask"], input=text, capture_output=True, text=True,
                            check=True).stdout.split()
    assert mine == [int(n) for n in theirs]
    assert 0 in mine and len(set(mine)) > 10


def test_every_gpu_has_its_multiprocessor():
    assert set(GPUS.values()) <= set(MULTIPROCESSORS)
    assert REGISTERS == 65536 and MOST_REGISTERS == 255


# ---- SASS

@pytest.fixture
def nvdisasm():
    pytest.importorskip("triton")


def test_sass_of_a_kernel(nvdisasm):
    code = simulator.sass(simulator.RawKernel(TILE, "k", path="tile.cu"), "sm_90")
    assert code.count("LDG") == code.count("LDG.E.128") == code.opcodes["LDG.E.128"] == 1
    assert code.count("LDG.E.128", line=3) == 1 and code.count("LDG", line=4) == 0
    assert (code.count("STS"), code.count("LDS"), code.count("BAR"), code.count("STG")) == (1,) * 4
    assert code.count("STS", line=4) == code.count("BAR", line=5) == code.count("STG", line=6) == 1
    assert code.count("FFMA") == 1 and code.count("STL") == 0
    assert code.count("NOP") == code.count("BRA") == 0      # the padding is no code
    assert "SASS for sm_90" in str(code) and "     1 LDG.E.128" in str(code)


def test_sass_shows_spills(nvdisasm):
    code = simulator.sass(simulator.RawKernel(SPILLING, "k", ("--maxrregcount=32",)))
    assert code.count("STL") > 0 and code.count("LDL") > 0


def test_sass_of_one_kernel_among_several_and_of_a_template(nvdisasm):
    module = simulator.RawModule("""
    extern "C" __global__ void loads(float* a, float* b) { *b = a[0] + a[1]; }
    template <int N> __global__ void stores(float* a) { for (int i = 0; i < N; i++) a[i * 7] = i; }
    """, is_text=True)
    template = module.get("stores<5>")
    assert simulator.sass(module.get("loads")).count("LDG") == 2
    assert simulator.sass(template).count("STG") == 5
    assert simulator.sass(template).name == "stores<5>"


def test_functions_and_endless_loops_are_part_of_the_code(nvdisasm):
    module = simulator.RawModule("""
    __device__ __noinline__ float f(float x, int n) {
        for (int i = 0; i < n; i++) x = x * x + 1;
        return x;
    }
    extern "C" __global__ void calls(float* a, int n) { a[0] = f(a[0], n) + f(a[1], n * 2); }
    extern "C" __global__ void hangs(float* a, int n) { if (n == 3) while (1); a[0] = n; }
    """, is_text=True)
    calls = simulator.sass(module.get("calls"))
    assert calls.count("CALL") == 2 and calls.count("FFMA") >= 1 and calls.count("RET") == 1
    hangs = simulator.sass(module.get("hangs"))
    assert hangs.count("STG") == 1 and hangs.code[-1].opcode == "BRA"       # the loop, no padding


def test_a_loop_keeps_its_jump_and_its_padding_goes(nvdisasm):
    code = simulator.sass(simulator.RawKernel("""extern "C" __global__ void k(float* a, int n) {
        #pragma unroll 1
        for (int i = 0; i < n; i++) a[i] = sqrtf(a[i]);
    }""", "k"))
    assert code.count("BRA") >= 1 and code.code[-1].opcode != "NOP"


def test_no_nvdisasm_is_one_clear_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(simulator.Unsupported) as caught:
        simulator.sass(simulator.RawKernel(TILE, "k"))
    assert str(caught.value).startswith("nvdisasm is not installed: it comes with Triton")
    assert "\n" not in str(caught.value)


def test_compilers_other_than_ours_say_what_they_refuse(nvdisasm):
    from lab.simulator.sass import disassemble
    with pytest.raises(simulator.Unsupported, match="nvdisasm failed"):
        disassemble(b"no cubin", "k", "sm_80")


# ---- Hopper

@pytest.fixture(scope="module")
def kernels():
    pytest.importorskip("triton")
    from . import triton_static
    return triton_static


def test_dots_become_wgmma_where_a_warp_group_has_the_rows(kernels):
    types = ["*fp16", "*fp16", "*fp32", "i32:16"]
    wide = simulator.hopper(kernels.dot, types, {"M": 64, "N": 64, "B": 32})
    assert wide.wgmma > 0 and wide.mma_sync == 0
    assert wide.cp_async > 0 and wide.tma_loads == 0
    assert wide.stores.keys() == {16} and not wide.serialised and wide.spills == 0
    assert wide.sass().count("HGMMA") == wide.wgmma
    narrow = simulator.hopper(kernels.dot, types, {"M": 16, "N": 16, "B": 32})
    assert narrow.wgmma == 0 and narrow.mma_sync > 0        # wgmma needs 64 rows
    assert narrow.sass().count("HMMA") == narrow.mma_sync
    assert "mma.sync" in str(narrow) and "PTX level" in str(narrow)


def test_descriptors_become_tma(kernels):
    tile = {"M": 64, "N": 64, "B": 64}
    found = simulator.hopper(kernels.dot_by_descriptors, ["*fp16"] * 3 + ["i32:16"], tile)
    assert found.tma_loads > 0 and found.tma_stores == 1
    assert found.cp_async == 0 and not found.loads and not found.stores
    assert found.sass().count("UTMALDG") == found.tma_loads
    assert found.sass().count("UTMASTG") == 1
    by_host = simulator.hopper(kernels.dot_by_host_descriptors, [
        *["tensordesc<fp16[64,64]>"] * 3, "i32:16"], tile)
    assert by_host.tma_loads > 0 and by_host.tma_stores == 1


def test_what_does_not_fit_into_registers_is_serialised(kernels):
    found = simulator.hopper(kernels.dot, ["*fp16", "*fp16", "*fp32", "i32:16"],
                             {"M": 128, "N": 256, "B": 16})
    assert found.registers == MOST_REGISTERS and found.spills > 0
    assert "serialized due to insufficient register resources" in found.serialised[0]
    assert "warning: " in str(found)
    assert found.occupancy().limits["registers"] == 2       # 65536 / (256 · 128)


def test_widths_of_loads_follow_from_alignment(kernels):
    torch = pytest.importorskip("torch")
    block, x = {"B": 1024}, torch.zeros(4096)
    by_type = simulator.hopper(kernels.add, ["*fp32", "*fp32", "*fp32", "i32:16"], block)
    assert by_type.loads == {16: 4} and by_type.stores == {16: 2}   # 1024 / 128 threads · 2 / 4
    assert simulator.hopper(kernels.add, (x, x, x, 1024), block).loads == {16: 4}
    # the mask is one for every 4 elements only if n is a multiple of 16, which 1000 is not
    assert simulator.hopper(kernels.add, (x, x, x, 1000), block).loads == {4: 16}
    odd = x[1:]
    assert simulator.hopper(kernels.add, (odd, odd, odd, 1024), block).loads == {4: 16}
    half = x.to(torch.bfloat16)
    assert simulator.hopper(kernels.add, {"x": half, "y": half, "z": half, "n": 1024},
                            block).loads == {16: 2}


def test_hopper_refuses_arguments_that_do_not_fit(kernels):
    with pytest.raises(simulator.KernelError, match="no value for n"):
        simulator.hopper(kernels.add, ["*fp32"] * 3, {"B": 64})
    with pytest.raises(simulator.KernelError, match=r"takes 4 arguments.*\(x, y, z, n\), 5 were"):
        simulator.hopper(kernels.add, ["*fp32"] * 5, {"B": 64})
    with pytest.raises(simulator.KernelError, match="no parameter is called m"):
        simulator.hopper(kernels.add, {"x": "*fp32", "y": "*fp32", "z": "*fp32", "n": 1, "m": 2},
                         {"B": 64})
    with pytest.raises(simulator.KernelError, match="`n`: an argument of type ndarray"):
        simulator.hopper(kernels.add, ["*fp32"] * 3 + [np.zeros(3)], {"B": 64})


def test_sass_of_a_kernel_that_triton_ran(kernels):
    torch = pytest.importorskip("torch")
    simulator.activate_triton()
    try:
        x = torch.ones(1024)
        compiled = kernels.add[(1,)](x, x, torch.empty(1024), 1024, B=1024)
    finally:
        simulator.deactivate_triton()
    code = simulator.sass(compiled)
    assert code.arch == "sm_80" and code.count("LDG.E.128") == 4 and code.count("STG.E.128") == 2
    found = simulator.occupancy(compiled)
    assert found.warps_of_block == 4 and found.limits["warps"] == 16
    with pytest.raises(simulator.KernelError, match="is compiled for sm_80; H100 is sm_90"):
        simulator.occupancy(compiled, gpu="H100")
