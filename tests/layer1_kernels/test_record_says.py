"""What the lessons of this floor say in words of an H200: held to benchmarks/nvidia-h200.json, from
which their tables are made, and to benchmarks/LOG.md where they quote it."""

import json
import re

import pytest

from lab import course
from lab.course import ROOT
from layer1_kernels.bench import k06_matmul_registers

LOG = (ROOT / "benchmarks/LOG.md").read_text("utf-8")


@pytest.fixture(scope="module")
def units():
    return json.loads((ROOT / "benchmarks/nvidia-h200.json").read_text("utf-8"))["units"]


@pytest.fixture
def row(units):
    """row(lesson's id, way) -> what was measured"""
    return lambda lesson, way: units[f"bench {lesson}"]["results"][way]


def quoted(pattern):
    """The numbers of the log's only place with this pattern."""
    match, = re.finditer(pattern, " ".join(LOG.split()))
    return [float(number.replace(",", "")) for number in match.groups()]


def text(lesson):
    return " ".join(course.find(lesson).markdown.read_text("utf-8").split())


def test_k01_a_kernel_that_wastes_no_byte_is_slower_than_a_copy(row):
    assert row("k01_vector_add", "add: add_cuda")["share_of_copy"] < 0.9


def test_k03_the_last_three_are_as_fast_as_a_copy_or_a_little_faster(row):
    shares = [row("k03_reduce", f"sum: sum_{name}")["share_of_copy"]
              for name in ("vector_cuda", "atomic_cuda", "triton")]
    assert all(round(share, 2) >= 1 and share < 1.05 for share in shares)


def test_k09_a_head_a_program_loses_more_than_a_launch(row):
    heads, fused = (row("k09_rope", f"rope fp32: {way}")["seconds"]
                    for way in ("heads_triton", "triton"))
    assert heads - fused > 20 * 5e-6


def test_k10_the_epilogue_loses_to_the_librarys_matmul_and_a_kernel_after_it(row):
    assert row("k10_swiglu", "matmul_swiglu: triton")["times_pair"] < 1


def test_k12_wmma_is_not_the_fastest_and_matmul_persistent_is(row):
    seconds = {way: row("k12_tensor_cores", f"fp16: {way}")["seconds"] for way in (
        "matmul", "matmul_dot_triton", "wmma_warp_cuda", "matmul_wmma_cuda", "matmul_persistent")}
    fastest = sorted(seconds, key=seconds.get)
    assert fastest[:2] == ["matmul_persistent", "matmul"]
    assert set(fastest[-2:]) == {"matmul_wmma_cuda", "wmma_warp_cuda"}


def test_k14_a_launch_for_each_head_loses_to_the_copy(row):
    copy, apart = (row("k14_paged_attention", f"decoding: {way}")["seconds"]
                   for way in ("gather, then flash", "heads apart"))
    assert apart > copy


def test_k15_few_rows_do_not_clearly_beat_cublas_and_many_lose(row):
    for bits in (8, 4):
        few, many = (row("k15_quantized_matmul", f"int{bits}, T = {T}: triton") for T in (16, 512))
        assert 0.9 < few["times_cublas"] < 1.1 and many["times_cublas"] < 0.5


def test_k19_groups_are_slower_than_bf16_and_rounding_takes_three_times_torch_compiles(row):
    for way in ("scaled_matmul_fp8", "fp8_matmul"):
        assert row("k19_fp8_matmul", f"groups of 128: {way}")["times_cublas"] < 1
    ours, theirs = (row("k19_fp8_matmul", f"quantise: {way}")["seconds"]
                    for way in ("quantize_rows", "torch.compile"))
    assert round(ours / theirs) == 3


def test_k16_what_k06_aims_at():
    target, = k06_matmul_registers.H200_TARGETS.values()
    assert target == {"times_cublas": 0.65}


def test_k06_and_k16_quote_the_log(row):
    """What two blocks on an SM cost; what ships was measured again, within 1 %."""
    bound, ships = quoted(r"k06's last one ([\d,]+), with 1 in place of 2 ([\d,]+)")
    assert f"it takes {bound:,.0f} µs on an H200 if it asks for two, and {ships:,.0f} if" \
        in text("k06_matmul_registers")
    again = row("k06_matmul_registers", "matmul: matmul_vector_cuda")["seconds"]
    assert again * 1e6 == pytest.approx(ships, rel=0.01)
    bound, ships = quoted(r"k16's buffered kernel ([\d,]+), without the 2 ([\d,]+)")
    assert f"took {bound:,.0f} µs with a bound and {ships:,.0f} without" in text("k16_warp_tiles")
    again = row("k16_warp_tiles", "matmul: matmul_buffered_cuda")["seconds"]
    assert again * 1e6 == pytest.approx(ships, rel=0.01)


def test_k17_quotes_the_log(row):
    """Counting instead of dividing, measured again within 3 %; and the best of mma."""
    divides, = quoted(r"`i // steps` in each step: ([\d,]+),")
    counts, = quoted(r"With two counters ([\d,]+),")
    assert f"a kernel that divides took {divides:,.0f} µs on an H200, this one {counts:,.0f}" \
        in text("k17_pipelines")
    again = row("k17_pipelines", "bf16: matmul_flat")["seconds"]
    assert again * 1e6 == pytest.approx(counts, rel=0.03)
    best, = quoted(r"fragments a step ahead: 3,274, (0\.\d+);")
    assert f"`mma` reached {best} × cuBLAS" in text("k17_pipelines")


def test_k18_quotes_the_log():
    """The tiles that ship, and the best that spill nothing."""
    from layer1_kernels.k18_flash_backward import tiles

    ships, = quoted(r"64, 64, 4, 2: \*\*([\d,]+)\*\*;")
    best, = quoted(r"32, 128, 8, 2: ([\d,]+); 64, 64, 4, 3")
    assert "All but the first and the seventh spill" in LOG
    assert f"these tiles took {ships / 1e3:.2f} ms; the best that spill nothing, 32 queries by " \
        f"128 keys, took {best / 1e3:.2f}" in text("k18_flash_backward")
    sizes = tiles("keys", 4096, 4096, 128, 2)
    assert (sizes["BM"], sizes["BN"], sizes["num_warps"], sizes["num_stages"]) == (64, 64, 4, 2)
