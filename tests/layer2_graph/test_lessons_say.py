"""What g01 to g06, g14 and g15 say of numbers that none of their cells prints."""

import json
import re
from collections import Counter
from dataclasses import fields

import numpy as np
import pytest
import torch

from day01_roofline import (
    ACCELERATORS,
    LLAMAS,
    attainable,
    count_bytes,
    count_flops,
    decode_costs,
    kv_bytes_per_token,
    ridge,
)
from day02_overview import NANO, NUMPY, load_nano
from lab.course import ROOT
from layer1_kernels import Kernels, kernels
from layer1_kernels.k14_paged_attention import count_splits
from layer2_graph import GRIDS, FusedLlama, Llama, MergedLlama, Student, load
from layer2_graph.bench import qat
from layer2_graph.g01_llama import llama3_frequencies
from layer2_graph.g02_kv_cache import places, wasted_share
from layer2_graph.g03_merging import mla_flops
from layer2_graph.g05_fused_llama import predict_numbers_saved
from layer2_graph.g14_megakernel import blank, bytes_read, schedule, sizes_of, step_program
from layer2_graph.testing.layer_traffic import FAMILIES, traffic

LLAMA_8B = LLAMAS["Llama-3.1-8B"]
LLAMA_1B = LLAMAS["Llama-3.2-1B"]
PART = r"(\d+) ms, of which the (\d+) matrix products take (\d+) ms"       # of benchmarks/LOG.md


def accelerator(name):
    return next(a for a in ACCELERATORS if a.name == name)


def step_of(m, gpu, T, N):
    """(FLOP/byte, least seconds) of a step of one sequence, 16-bit numbers."""
    flops = sum(count_flops(m, 1, T, N).values())
    moved = sum(map(sum, count_bytes(m, 1, T, N, 2).values()))
    return flops / moved, flops / attainable(flops / moved, gpu.peak, gpu.bandwidth)


# ---- g01 and g02


def test_o02_has_six_operations_and_a_table_of_kernels_more():
    assert len(NUMPY) == 6 < len(fields(Kernels))


def test_eight_of_15_launches_are_no_matrix_products_and_seven_move_little():
    """g05 says of the seven that they are nearly half, and compute next to nothing."""
    m = {"L": 1, "C": 64, "F": 176, "V": 128}
    layer = traffic(Llama, **m).launches[1:16]
    kinds = Counter(launch.name for launch in layer)
    assert len(layer) == 15 and kinds["matmul"] == 7 and kinds["paged_attention"] == 1
    small = [launch.moved for launch in layer if launch.name not in ("matmul", "paged_attention")]
    assert len(small) == 7 and sum(small) < 0.1 * sum(launch.moved for launch in layer)
    assert 15 * LLAMA_8B.L == 480


def test_the_head_of_a_1b_model_is_21_percent():
    weights = decode_costs(LLAMA_1B, 1, 2)[1] / 2
    assert round(weights / 1e9, 3) == 1.236
    assert round(LLAMA_1B.V * LLAMA_1B.C / weights, 2) == 0.21


def test_slow_pairs_take_eight_times_as_long_and_fast_ones_as_long_as_before():
    old = 500_000 ** (-torch.arange(0, 128, 2).float() / 128)
    longer = old / llama3_frequencies(old, 8, 1, 4, 8192)
    turns = 8192 * old / (2 * torch.pi)
    torch.testing.assert_close(longer[turns < 1], torch.full_like(longer[turns < 1], 8))
    assert (longer[turns >= 4] == 1).all() and (turns < 1).any() and (turns >= 4).any()


def test_a_cache_leaves_an_nth_of_the_matrices_and_two_nths_of_attention():
    N = 256
    whole, cached = (count_flops(LLAMA_8B, 1, T, N) for T in (N, 1))
    shares = {name: cached[name] / whole[name] for name in whole}
    assert shares.pop("lm_head") == 1
    assert shares.pop("attention") == pytest.approx(2 / N, rel=0.01)
    assert set(shares.values()) == {1 / N}


def test_positions_and_slots_are_those_of_the_caption():
    positions, slots = places(torch.tensor([5, 0, 7]), torch.tensor([1, 4, 2]), 11)
    assert positions.tolist() == [5, 0, 1, 2, 3, 7, 8]
    assert slots.tolist() == [5, 11, 12, 13, 14, 29, 30]


def test_the_time_falls_by_about_n_over_the_ridge():
    gpu = accelerator("NVIDIA H100 SXM")
    (above, whole), (below, cached) = (step_of(LLAMA_8B, gpu, T, 2048) for T in (2048, 1))
    assert whole / cached == pytest.approx(2048 / ridge(gpu), rel=0.1)
    assert above > ridge(gpu) > below


def test_fourteen_users_read_as_much_cache_as_weights():
    _, weights, _ = decode_costs(LLAMA_8B, 8192, 2)
    cache = 14 * 8192 * kv_bytes_per_token(LLAMA_8B, 2)
    assert cache / (cache + weights) == pytest.approx(0.5, abs=0.01)


def test_pages_hold_almost_thirteen_times_as_many_sequences():
    lens = np.clip(np.random.default_rng(0).lognormal(np.log(400), 1, 64).astype(int), 1, 8192)
    lens = lens.tolist()
    more = (1 - wasted_share(lens, 16)) / (1 - wasted_share(lens, 8192))
    assert 12.5 < more < 13
    assert wasted_share(lens, max(lens)) > 3 / 4


# ---- g03


def test_latents_are_few_and_absorbing_them_costs_flops():
    H, D, R, E, N = 128, 128, 512, 64, 32768
    assert H * N * D == 32 * N * R                          # keys, and latents
    assert 2 * H * D + E == 57 * (R + E) and R + E == 576
    assert (2 * R + E) / (2 * D + E) == 3.4
    kept = 2 * H * (2 * D * R + N * (2 * D + E))            # the line of keys and values
    assert round(mla_flops(1, N, H, D, R, E, True) / kept, 1) == 3.4
    assert 1536 * R == 3 * (D * 1536 + D * R)               # W_k and W_q of a head, multiplied out


@pytest.mark.parametrize("H, D, says", [
    (64, 128, None), (65, 128, "at most 64 times"), (4, 144, "16 to 128")])
def test_paged_attention_takes_rows_of_128_and_64_heads(triton_on_the_cpu, H, D, says):
    """g11 says it as well."""
    pages = torch.randn(1, 16, 1, D)
    arguments = (torch.randn(1, H, D), pages, pages, torch.zeros(1, 1, dtype=torch.int32),
                 torch.tensor([0, 1], dtype=torch.int32), torch.tensor([5], dtype=torch.int32), 0.1)
    attend = kernels("triton").paged_attention
    if says is None:
        assert attend(*arguments).shape == (1, H, D)
    else:
        with pytest.raises(ValueError, match=says):
            attend(*arguments)


# ---- g05


def record(name):
    """(facts, {rung: row}) of a recorded run of the ladder."""
    whole = json.loads((ROOT / "benchmarks" / f"{name}.json").read_text("utf-8"))
    return whole, {row["name"]: row for row in whole["rungs"]}


def test_two_launches_in_five_are_gone_and_hardly_a_byte():
    _, rows = record("rungs")
    before, after = rows["g01, op by op"], rows["fused"]
    assert round(1 - after["asked"] / before["asked"], 1) == 0.4
    assert 0 < 1 - after["moved"] / before["moved"] < 0.01
    names = [len(traffic(kind).names) for kind in (Llama, MergedLlama, FusedLlama)]
    assert names == [2 * 15 + 6, 2 * 12 + 6, 2 * 8 + 7]     # two layers of a random model


def test_launches_cost_more_than_memory_and_flops_set_the_time_of_a_prompt():
    gpu = accelerator("NVIDIA H200 SXM")
    (_, one), (intensity, many) = (step_of(LLAMA_1B, gpu, T, max(T, 256)) for T in (1, 2048))
    hosts = {count: count * LLAMA_1B.L * 5e-6 for count in (15, 8)}
    assert hosts[15] > 2 * one and hosts[8] > one
    assert intensity > ridge(gpu)
    saved = predict_numbers_saved(LLAMA_1B) * LLAMA_1B.L * 2 / gpu.bandwidth
    assert saved < 0.001 * one and 2048 * saved < many


def test_keys_are_split_where_a_cache_has_room_for_more_than_256_tokens():
    assert count_splits(1, 256, 132) == 1 < count_splits(1, 257, 132)


def test_six_families_are_compared():
    assert len(FAMILIES) == 6


def test_what_g05_says_of_the_small_models_record():
    facts, rows = record("rungs")
    fused, first = rows["fused"], rows["g01, op by op"]
    theirs = [row for name, row in rows.items() if name.startswith("Hugging Face")]
    assert len(theirs) == 3 and all(row["seconds"] < fused["seconds"] for row in theirs)
    gain = first["seconds"] / fused["seconds"] - 1
    assert gain == pytest.approx(0.1, abs=0.02)
    assert max(first["uncertainty"], fused["uncertainty"]) < gain < 2 * first["uncertainty"]
    compiled = rows["fused, torch.compile"]
    assert compiled["seconds"] > fused["seconds"]           # g09 says it as well
    assert (compiled["launches"], fused["launches"]) == (9, 8)
    assert rows["fused, CUDA graph"]["asked"] == 7
    assert facts["floor"] < facts["cache"]


def test_what_g05_says_of_the_record_of_135_million():
    facts, rows = record("rungs_135m")
    assert 134e6 < facts["weights"] / 4 < 136e6 and facts["weights"] > facts["cache"]
    fused, first = rows["fused"], rows["g01, op by op"]
    assert abs(first["seconds"] / fused["seconds"] - 1) < fused["uncertainty"]


def test_the_compiler_moves_each_add_into_a_matrix_and_leaves_swiglu_alone():
    picture = (ROOT / "benchmarks" / "rungs" / "fused_torch_compile.svg").read_text("utf-8")
    labels = re.findall(r">([^<>\n]+)</text>", picture)
    boxes = labels[labels.index("x") + 1:-2]                # after them, what two colours mean
    assert len(boxes) == 9
    assert [box for box in boxes if box.endswith(" + add")] == ["output + add", "down + add"]
    assert sum("silu" in box for box in boxes) == 1 == boxes.count("gate &amp; up")


def test_most_of_a_step_was_matrix_products():
    whole, count, products = map(int, re.search(
        PART, (ROOT / "benchmarks" / "LOG.md").read_text("utf-8")).groups())
    assert products / whole > 0.6
    assert count == 7 * LLAMAS["SmolLM-135M"].L + 1


# ---- g06 and g14


@pytest.mark.parametrize("lesson, name", [("g05_fused_llama", "g01, op by op"),
                                          ("g06_cuda_graphs", "decode, B = 1: eager")])
def test_a_launch_from_python_costs_far_more_than_5_microseconds(lesson, name):
    units = json.loads((ROOT / "benchmarks" / "nvidia-h200.json").read_text("utf-8"))["units"]
    seconds = units[f"bench {lesson}"]["results"][name]["seconds"]
    assert seconds / (15 * LLAMA_1B.L + 6) > 5 * 5e-6


def test_more_than_six_multiprocessors_gain_nothing_for_a_nano_model():
    m = sizes_of(load_nano())
    program = step_program(m, 32)
    stages = Counter(instruction.signal for instruction in program)
    assert max(stages.values()) == 6
    loads = [bytes_read(instruction, m, 14) / 1024 for instruction in program]
    work = [load / 4 for load in loads]
    for gap in (0, 4):
        ends = {B: max(span.end for span in schedule(program, B, loads, work, gap=gap))
                for B in (5, 6, 7, 32)}
        assert ends[5] > ends[6] == ends[7] == ends[32]


def test_the_kernel_has_eight_tensors():
    assert len(blank(sizes_of(load_nano()))) == 8


# ---- g15


def test_a_rounded_scale_leaves_its_largest_weight_beyond_one():
    largest = torch.linspace(1, 2, 1 << 20, dtype=torch.float64)
    assert round(float((largest / largest.half().double()).max()), 4) == 1.0005


def test_training_holds_16_bytes_a_weight():
    model = load(NANO, dtype=torch.float32)
    entries = json.loads((NANO / "config.json").read_text("utf-8"))
    student = Student(entries, model.weights, GRIDS["ternary"], group=16)
    student.step(torch.arange(9)[None])
    name = "model.layers.0.mlp.down_proj.weight"
    w = student.weights[name]
    means = [a for a in student.optimiser.state[w].values() if a.shape == w.shape]
    assert sum(a.nbytes for a in (w, w.grad, *means)) == 16 * w.numel()


def test_two_rates_were_tried():
    log = " ".join((ROOT / "benchmarks" / "LOG.md").read_text("utf-8").split())
    tried = log[log.index("**QAT, run longer.**"):].partition("**Fresh readers again**")[0]
    assert {float(rate) for rate in re.findall(r"\d+e-\d+", tried)} == {1e-3, qat.RATE}
