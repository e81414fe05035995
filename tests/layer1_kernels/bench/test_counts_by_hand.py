"""The ladders of k16, k17, k19 and k20 against counts that are derived here, not measured."""

import pytest

from lab import simulator
from layer1_kernels.bench import (
    k16_warp_tiles,
    k17_pipelines,
    k19_fp8_matmul,
    k20_grouped_gemm,
)


@pytest.fixture(scope="module", autouse=True)
def triton_on_the_cpu():
    simulator.activate_triton()
    yield
    simulator.deactivate_triton()


def columns(steps, *names):
    return [tuple(getattr(step, name) for name in names) for step in steps]


def test_k16():
    """A thread has 8 × 8 results in each kernel, a block 8 warps."""
    K, warps = 32, 8
    steps = k16_warp_tiles.ladder(128, 128, K)
    asked = (8 + 8) / (8 * 8)
    rows = 2 * 8 + 16 * 8                   # k06's warp: 2 rows of 16 threads
    tile = 64 + 32                          # of a warp
    requests = warps * K * (8 + 8) / 4      # of 16 bytes a lane: each takes four wavefronts
    twice, once, half = 2 * (K // 8), K // 8 + 1, K // 16 + 1
    assert columns(steps, "asked", "wanted", "wavefronts", "barriers", "distance") == [
        (asked, rows, 4 * requests, twice, 0), (asked, tile, 4 * requests, twice, 0),
        (asked, tile, 4 * requests, once, 8 * 8), (asked, tile, 4 * requests, half, 8 * 8)]


def test_k17():
    """Four warps have 32 × 32 results each of a block's 64 × 64; a step takes 64 k in fp16."""
    K = 256
    steps = K // 64
    stage = 2 * 64 * 64 * 2 / 1024          # KB of a and w; none is on its way in the last step
    read = (32 + 32) * 2 / (2 * 32 * 32)    # bytes a FLOP
    sums = 64 * 64 * 4 / (2 * 64 * 64 * K)  # k12 reads c back from shared memory
    rungs = k17_pipelines.ladder(64, 64, K)
    assert columns(rungs, "barriers", "in_flight", "conflicts", "shared") == [
        (2 + 1 / steps, None, 1, read + sums), (2, 0, 1, read),
        (1, stage * (steps - 1) / steps, 1, read), (1 / steps, None, 1, read)]


def test_k19():
    """Programs have 16 × 64 results."""
    M, N, K, group = 32, 128, 256, 128
    programs = M // 16 * N // 64
    codes = M * K * N // 64 + N * K * M // 16
    plain, by_tensor, by_row, by_group = k19_fp8_matmul.ladder(M, N, K)
    assert plain.operands == 2 * codes
    assert {step.operands for step in (by_tensor, by_row, by_group)} == {codes}
    assert plain.scales == 0
    assert by_group.scales == programs * K // group * (16 + 64) * 4
    # two factors for each result; for each group two factors and an addition
    assert [step.arithmetic for step in (plain, by_tensor, by_row, by_group)] == [
        0, 2, 2, 3 * K // group]


def test_k20():
    T, k, E = 64, 2, 16
    loads = k20_grouped_gemm.skewed_experts(T, k, E).flatten().bincount(minlength=E)
    chosen = int((loads > 0).sum())
    each, padded, *grouped = k20_grouped_gemm.ladder(T, k, E, 32, 64)
    assert (each.launches, each.host_waits, padded.launches) == (chosen, 1, 1)
    assert padded.rows == E * int(loads.max()) / (T * k)
    for BM, step in zip((16, 32, 64), grouped, strict=True):
        tiles = int((-(-loads // BM)).sum())
        assert (step.launches, step.host_waits) == (4, 0)
        assert step.rows == tiles * BM / (T * k)
        assert step.weights == tiles / chosen
