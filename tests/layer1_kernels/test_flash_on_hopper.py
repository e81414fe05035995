"""What the assembler makes of k13's kernels for Hopper: nothing spills, for any launch."""

import pytest

from lab import simulator
from lab.author import hopper_report
from layer1_kernels.k13_flash_attention import KERNELS, flash_triton, tiles

pytestmark = pytest.mark.slow


def compiled(dtype, sizes, warps, stages, change=None):
    """flash_triton for Hopper; change: {argument: another type, or the number 1}"""
    kinds = dict.fromkeys(flash_triton.arg_names[:19], "i32:16") | {"G": "i32"}
    kinds |= dict.fromkeys(("q", "k", "v", "out"), f"*{dtype}") | {"lse": "*fp32", "scale": "fp32"}
    constants = {"CAUSAL": True, "D": 128} | sizes
    return simulator.hopper(flash_triton, kinds | (change or {}), constants, warps, stages)


def test_cuda_does_not_spill():
    assert KERNELS.get("flash_cuda").resources.spill_stores == 0


@pytest.mark.parametrize("T", [1, 32, 4096])
def test_fp32_does_not_spill(T):
    simulator.activate_triton()
    sizes = tiles(T, 128, 4)
    warps = sizes.pop("num_warps")
    stages = sizes.pop("num_stages")
    assert not compiled("fp32", sizes, warps, stages, {"G": "i32:16"}).spills


@pytest.mark.parametrize("change, meta", [
    ({"T": "i32", "N": "i32"}, {}), ({"G": "i32:16"}, {}), ({"G": 1}, {}), ({}, {"CAUSAL": False})])
def test_other_launches_compile_as_well(change, meta):
    """Ragged lengths, no grouping, one kv head, not causal: Triton compiles again for each."""
    code = compiled("bf16", {"BM": 128, "BN": 64, "BD": 128} | meta, 8, 3, change)
    assert not code.spills and not code.serialised and code.wgmma
    assert code.shared <= hopper_report.SHARED
