"""What the lessons of this floor say in words of counts that their tables do not print: counted in
the simulator, taken from a launcher's own choice, or worked out."""

import inspect
import json

import numpy as np
import pytest
import torch

from day01_roofline import ACCELERATORS, FORMATS, LLAMAS, encode
from lab import simulator
from lab.course import ROOT
from lab.simulator import occupancy
from layer1_kernels import k05_matmul_tiled as k05
from layer1_kernels import k06_matmul_registers as k06
from layer1_kernels import k12_tensor_cores as k12
from layer1_kernels import k13_flash_attention as k13
from layer1_kernels import k15_quantized_matmul as k15
from layer1_kernels import k16_warp_tiles as k16
from layer1_kernels import k17_pipelines as k17
from layer1_kernels import k19_fp8_matmul as k19
from layer1_kernels.bench import (
    k01_vector_add,
    k04_matmul_naive,
    k06_matmul_registers,
    k07_softmax,
    k16_warp_tiles,
    k20_grouped_gemm,
)
from layer1_kernels.k03_reduce import MAX_BLOCKS
from layer1_kernels.k09_rope import rope, rope_angles
from layer1_kernels.k14_paged_attention import SHORTEST

pytestmark = pytest.mark.usefixtures("triton_on_the_cpu")
SMS = 132               # of an H200


def test_k01_no_byte_of_add_cuda_is_wasted():
    """One column is the same in all rows; one kernel has fewer instructions and more sectors."""
    steps = {step.name: step for step in k01_vector_add.ladder(4096)}
    plain, chunk = steps["add_cuda"], steps["add_chunk_cuda"]
    assert plain.sectors == plain.ideal and len({step.bytes for step in steps.values()}) == 1
    assert chunk.instructions < plain.instructions and chunk.sectors == 4 * plain.sectors


def test_k02_three_of_four_padded_rows_are_not_aligned():
    aligned = [4 * 33 * row % 16 == 0 for row in range(32)]
    assert sum(aligned) / 32 == 1 / 4


def test_k03_in_the_last_six_rounds_a_single_warp_works():
    warps = [-(-s // 32) for s in (128, 64, 32, 16, 8, 4, 2, 1)]
    assert warps[-6:] == [1] * 6 and min(warps[:-6]) > 1
    assert (MAX_BLOCKS, 4 * MAX_BLOCKS) == (1024, 4096)     # sums of a second pass, and bytes


def test_k04_of_what_the_triton_kernel_asks_a_is_16_and_w_32():
    """Eight threads hold a copy of each number of a, which alone would add 2."""
    M, N, K = 64, 64, 128
    with simulator.trace() as trace:
        k04_matmul_naive.ladder(M, N, K)
    launch = trace.launches[-1]
    least = 4 * K * (M + N)
    asked = {"tl.load(a" if "tl.load(a" in launch.text[line] else "tl.load(w":
             counts.memory["global", "load"].bytes / least
             for line, counts in launch.lines.items() if ("global", "load") in counts.memory}
    assert asked == {"tl.load(w": 32, "tl.load(a": 16}
    programs = launch.grid[0] * launch.grid[1]
    assert programs * K * 4 / least == 2


def test_k05_strips_of_a_wave_of_four():
    """Row by row 2 of a and 3 of w, in groups of two rows 2 and 2."""
    assert [k05.first_wave(5, 3, GROUP, 4) for GROUP in (1, 2)] == [(2, 3), (2, 2)]
    assert SMS - 512 // 128 * (4096 // 256) == 68       # SMs that idle


def test_k05_up_to_four_rows_of_fp32_go_to_k04s_kernel():
    assert k05.MAX_NAIVE_ROWS == 4
    for rows, names in ((1, {"dots_triton"}), (4, {"dots_triton"}),
                        (5, {"transpose_triton", "matmul_tiled_triton"})):
        with simulator.trace() as trace:
            k05.matmul(torch.ones(rows, 32), torch.ones(16, 32))
        assert {launch.name for launch in trace.launches} == names


def test_k06_shares_of_instructions_that_multiply():
    """One in five in k05's kernel, 72 % in the last."""
    steps = k06_matmul_registers.ladder(128, 128, 64)
    shares = [step.multiply / (step.multiply + step.shared + step.rest) for step in steps]
    assert round(shares[0], 1) == 0.2 and round(shares[-1], 2) == 0.72


def test_k06_asking_for_two_blocks_takes_registers_away():
    """The kernel fits twice either way."""
    source = k06.KERNELS.source
    one = "__launch_bounds__(256, 1)\nmatmul_vector_cuda"
    assert source.count(one) == 1
    used = [simulator.RawModule(text).resources("matmul_vector_cuda", "sm_90")
            for text in (source, source.replace(one, one.replace("1)", "2)")))]
    assert used[1].registers < used[0].registers
    assert [occupancy(need, 256, gpu="H200").blocks for need in used] == [2, 2]
    assert round(128 * SMS ** 0.5, -1) == 1470


def test_k07_exponentials_of_each_number():
    """One in the fused kernel, two in three passes, three online in CUDA."""
    R, C = 2, 4096
    with simulator.trace() as trace:
        k07_softmax.ladder(R, C)
    special = {launch.name: launch.totals.instructions["special"] / (R * C // 32)
               for launch in trace.launches}
    assert round(special["softmax_fused_cuda"], 1) == 1
    assert round(special["softmax_three_pass_cuda"], 1) == 2
    assert round(special["softmax_online_cuda"]) == 3       # and one of each thread, to merge


def test_k07_six_barriers_for_each_block_of_512_columns():
    barriers = [k07_softmax.ladder(1, C)[-1].barriers for C in (512, 2048, 4096)]
    assert barriers == [6, 6 * 4, 6 * 8]


def test_k09_what_six_positions_turn():
    """Most of a circle in pair 0, a quarter in pair 4, 9 degrees in pair 12."""
    cos, sin = rope_angles(6, 64, 10_000.0)
    turn = np.degrees(np.unwrap(np.arctan2(sin, cos), axis=0)[-1])
    assert 270 < turn[0] < 300 and round(turn[4] / 90, 1) == 1 and round(turn[12]) == 9


def test_k09_one_token_of_the_8b_model_keeps_three_sms_busy():
    m = LLAMAS["Llama-3.1-8B"]
    q, k = torch.ones(1, m.H, m.D), torch.ones(1, m.G, m.D)
    with simulator.trace() as trace:
        rope(q, k, *torch.ones(2, 1, m.D // 2), torch.zeros(1, dtype=torch.int64))
    launch, = trace.launches
    assert launch.grid == (3, 1, 1) and m.H + m.G == 40 and 2 * m.D // 2 * 4 == 512


def test_k10_at_a_width_of_4096_an_h200_saves_a_tenth():
    h200 = next(m for m in ACCELERATORS if "H200" in m.name)
    assert round(2 * h200.peak / h200.bandwidth / 4096, 1) == 0.1


def test_k11_the_largest_array_and_the_spacing_beside_100000():
    V = LLAMAS["Llama-3.1-8B"].V
    assert V == 128_256 and round(2 * 8192 * V / 1e9, 1) == 2.1
    assert round(float(np.spacing(np.float32(100_000))), 2) == 0.01


def test_k12_most_instructions_fetch_tiles_or_store_c():
    with simulator.trace() as trace:
        k12.matmul_wmma_cuda(*torch.ones(2, 128, 256, dtype=torch.float16))
    launch, = trace.launches
    source = (ROOT / "layer1_kernels/k12_tensor_cores.cu").read_text("utf-8").splitlines()
    heads = [number for number, line in enumerate(source, 1)
             if line.startswith(("__device__", 'extern "C"'))]
    given = {name: next(number for number in heads if f" {name}(" in source[number - 1])
             for name in ("fetch", "store")}
    steps = 0
    for begin in given.values():
        end = next(number for number in heads if number > begin)
        steps += sum(counts.steps for line, counts in launch.lines.items() if begin <= line < end)
    assert steps > 0.75 * launch.steps


def test_k12_what_a_tensor_core_does():
    """4,096 FLOPs a cycle and SM, 16 times 256; an mma keeps one of four busy for 8 cycles."""
    cycle = 989e12 / (SMS * 1.83e9)
    assert round(cycle / 4096, 2) == 1 and 4096 / (4 * 32 * 2) == 16
    assert 2 * 16**3 / (4096 / 4) == 8 and 2 * 16**3 / (2 * 512) == 8
    assert (2 * (32 + 32)) / (2 * 32 * 32) == 1 / 16 == 2 * (128 / 4096)
    assert 128 * 256 / (4 * 32) == 256 and 4 * 32 * 2 * 16 * 8 * 16 == 2 * 64**3


def test_k13_tiles_of_the_last_96_of_160_tokens():
    """Four whole, one cut, five of the future in the first row; each row has one whole more."""
    visible = np.arange(160) <= np.arange(64, 160)[:, None]
    tiles = visible.reshape(6, 16, 10, 16)
    whole, empty = tiles.all((1, 3)).sum(1), (~tiles.any((1, 3))).sum(1)
    assert whole.tolist() == [4, 5, 6, 7, 8, 9] and empty.tolist() == [5, 4, 3, 2, 1, 0]
    assert k13.count_tiles(96, 160, 16, 16) == (60 - empty.sum(), whole.sum())
    assert k13.count_tiles(512, 512, 32, 32) == (120 + 16, 120)


def test_k13_with_the_matrix_memory_decides_without_it_arithmetic():
    """And lse adds 0.06 to what is written."""
    h200 = next(m for m in ACCELERATORS if "H200" in m.name)
    N, D = 4096, 128
    least = 4 * N * D * 2
    ratio = (4 * N * D + 4 * N * N) / (4 * N * D)
    assert 4 * D * N * N / (ratio * least) < h200.peak / h200.bandwidth < 4 * D * N * N / least
    assert round(4 / (32 * 2), 2) == 0.06               # an fp32 number for a row of 32 of fp16


def test_k13_how_a_long_prompt_is_launched():
    """128 queries by 64 keys, 8 warps, three stages."""
    assert k13.tiles(4096, 128, 2) == {"BM": 128, "BN": 64, "BD": 128, "num_warps": 8,
                                       "num_stages": 3}


def test_k14_a_split_for_every_256_keys():
    assert SHORTEST == 256 and 128 * 2 / 32 == 8        # sectors of a row of 128 fp16 numbers


def test_k15_sixteen_rows_fit_in_one_tile_and_more_unpack_again_every_128():
    tiles = {T: k15.configuration(T, 4096, 4096, 2)[0]["BT"] for T in (2, 16, 512)}
    assert tiles == {2: 16, 16: 16, 512: 128}


def test_k15_each_bit_doubles_the_error():
    """18 times with 4 bits instead of 8, in every group; three quarters of the space are saved."""
    w = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))
    for group in (16, 128, 1024):
        times = k15.relative_error(w, 4, group) / k15.relative_error(w, 8, group)
        assert round(times) == 18 and times ** 0.25 == pytest.approx(2, abs=0.1)
    assert 1 - k15.predict_bytes_ratio(4, 128) == pytest.approx(0.75, abs=0.02)


def test_k16_what_double_buffering_adds():
    """0.7 % more instructions, and 19 % with 16 k at a time; 'wanted' falls by a third."""
    before, warp, buffered, wide = k16_warp_tiles.ladder(128, 128, 64)
    more = [step.instructions / warp.instructions - 1 for step in (buffered, wide)]
    assert (round(more[0], 3), round(more[1], 2)) == (0.007, 0.19)
    assert warp.wanted / before.wanted == 2 / 3


def test_k16_up_to_1408_rows_there_are_fewer_blocks_than_sms():
    blocks = [(-(-side // k16.BM)) ** 2 for side in (1408, 1409)]
    assert blocks[0] < SMS < blocks[1]


def test_k17_blocks_on_an_sm_with_three_stages_and_with_one():
    """Four, and five; three stages take a block's 48 KB."""
    needs = {name: k17.KERNELS.resources(name, "sm_90")
             for name in ("matmul_staged_cuda", "matmul_mma_cuda")}
    blocks = {name: occupancy(need, 128, gpu="H200").blocks for name, need in needs.items()}
    assert blocks == {"matmul_staged_cuda": 4, "matmul_mma_cuda": 5}
    stage = 2 * k17.TILE * k17.BK * 2
    assert needs["matmul_staged_cuda"].shared == 3 * stage == 48 * 1024
    assert round(4.8e12 / SMS / 1e9) == 36 and round(4.8e12 / SMS * 600e-9 / 1e3) == 22


def test_k18_where_the_matrices_are_no_larger_than_the_rest():
    """Near T = D; at scores of thousands lse is rounded by about 1e-4."""
    D = 128
    matrices, rest = 4 * 4 * D * D, (8 * 2 * D + 4) * D     # bytes of a head
    assert matrices < rest < 1.01 * matrices
    assert float(np.spacing(np.float32(2000))) == pytest.approx(1e-4, rel=0.3)
    assert round(3.5 / 2.5 - 1, 1) == 0.4


def test_k19_cutting_to_fp16_first_moves_a_few_codes_in_a_thousand(rng):
    """By one; counted in numbers, and in the kernel on a GPU before Hopper."""
    x = rng.normal(size=(512, 128)).astype(np.float32)
    codes, scales = k19.quantize_rows(torch.from_numpy(x), 128)
    quotient = (x / scales.numpy()).astype(np.float64)
    nearest = encode(FORMATS["e4m3"], quotient)
    away = np.abs(codes.view(torch.uint8).numpy().astype(int) - nearest)
    assert away.max() == 1 and 0.001 < away.mean() < 0.01


def test_k19_eight_warps_for_the_large_tile():
    assert next(tile for tile in k19.TILES if tile[:3] == (128, 128, 128))[3] == 8


def test_k19_what_the_recorded_errors_say():
    """e4m3 13 to 16 times bf16; blocks against rows; tensors' errors and perplexity."""
    from layer1_kernels.bench.k19_fp8_matmul import by_kind

    record = json.loads((ROOT / "benchmarks/fp8_products.json").read_text("utf-8"))
    errors, quality = record["errors"]["recipes"], record["quality"]["recipes"]
    names = [name for name in errors if name != "bf16"]
    ratios = [error / errors["bf16"]["fp32"][matrix] for name in names
              for matrix, error in errors[name]["fp32"].items()]
    assert (round(min(ratios)), round(max(ratios))) == (13, 16)
    rises = {part: max(quality[name][part] / quality["fp32"][part] - 1 for name in names)
             for part in ("stories", "docstrings")}
    assert {part: round(100 * rise, 2) for part, rise in rises.items()} == {
        "stories": 0.06, "docstrings": 0.28}
    rows, blocks = (by_kind(errors[f"e4m3, {name}"]["fp32"]) for name in ("rows", "blocks of 128"))
    falls = {kind: 100 * (1 - blocks[kind][0] / rows[kind][0]) for kind in rows}
    assert round(falls.pop("down"), 1) == 5.0
    assert round(max(map(abs, falls.values())), 1) == 1.2
    for matrix in errors["bf16"]["fp32"]:
        assert max(names, key=lambda name, m=matrix: errors[name]["fp32"][m]) == "e4m3, tensor"
    for part in ("stories", "docstrings"):
        assert min(names, key=lambda name, p=part: quality[name][p]) == "e4m3, tensor"


def test_k20_a_matrix_of_mixtral_takes_117_mb():
    _, N, K, _ = inspect.signature(k20_grouped_gemm.bench).parameters["mixtral"].default
    assert round(2 * N * K / 1e6) == 117


def test_k20_programs_differ_by_at_most_one_tile():
    load = k20_grouped_gemm.skewed_experts(256, 2, 64).flatten().bincount(minlength=64).numpy()
    tiles = int((-(-load // 16)).sum())
    shares = [len(range(p, tiles, 8)) for p in range(8)]
    assert max(shares) - min(shares) <= 1
    by_expert = [int((-(-load[p::8] // 16)).sum()) for p in range(8)]
    assert max(by_expert) - min(by_expert) > 1
