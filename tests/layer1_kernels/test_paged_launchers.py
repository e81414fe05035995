"""k14's launchers: every back end on the same batches, strides, what they refuse, sizes chosen."""

import numpy as np
import pytest
import torch

from layer1_kernels import k14_paged_attention as k14
from tests.layer1_kernels.oracle_k14_paged_attention import NOWHERE, attention, batch

LAUNCHERS = (k14.paged_attention, k14.paged_attention_torch, k14.paged_attention_cuda)
NEAR = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}       # as tests/conftest.py has them
pytestmark = pytest.mark.usefixtures("triton_on_the_cpu")


def check(got, want, dtype):
    """Relative to the largest, and again to each."""
    largest = np.abs(want).max()
    np.testing.assert_allclose(got.double().numpy(), want, rtol=NEAR[dtype] / 2,
                               atol=NEAR[dtype] / 2 * largest)


def test_oracle_agrees(rng):
    args = batch(rng, [1, 3], [20, 9], 4, 2, 16, 7)
    got = k14.paged_attention_oracle(*(x.numpy() for x in args), 0.3)
    assert np.allclose(got, attention(*args, 0.3), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("counts, lens, H, G, D, S, dtype", [
    ([1, 20, 0, 3], [50, 33, 7, 40], 4, 2, 48, 16, "bfloat16"),
    ([1, 1], [600, 5], 2, 1, 32, 16, "float16"),            # 3 splits
    ([2, 5], [33, 20], 6, 2, 16, 7, "float32")])
def test_every_launcher(rng, counts, lens, H, G, D, S, dtype):
    args = batch(rng, counts, lens, H, G, D, S, dtype)
    for launcher in LAUNCHERS[:3 if dtype == "float32" else 2]:
        check(launcher(*args, 0.3), attention(*args, 0.3), dtype)


def test_any_strides(rng):
    """Queries from a larger tensor, heads before slots, one head after the other in a page."""
    q, k_pages, v_pages, *others = batch(rng, [1, 2], [20, 9], 4, 2, 32, 16, "float16")
    k_pages = k_pages.transpose(1, 2).contiguous().transpose(1, 2)
    v_pages = v_pages.transpose(0, 1).contiguous().transpose(0, 1)
    wide = q.repeat(1, 3, 1)[:, 4:8]
    args = (wide, k_pages, v_pages, *others)
    check(k14.paged_attention(*args, 0.2), attention(*args, 0.2), "float16")


def test_write_kv_launchers(rng):
    k, v = (torch.from_numpy(rng.standard_normal((5, 6, 32), np.float32)) for _ in range(2))
    k, v = k[:, ::2], v[:, 3:]
    slots = torch.tensor([3, -1, 27, 0, 14], dtype=torch.int32)
    both = []
    for write in (k14.write_kv, k14.write_kv_torch):
        pages = [torch.zeros(4, 7, 3, 32) for _ in range(2)]
        write(k, v, *pages, slots)
        both.append(pages)
        write(k[:0], v[:0], *pages, slots[:0])
    for one, other in zip(*both, strict=True):
        assert torch.equal(one, other) and torch.count_nonzero(one) == 4 * 3 * 32


def test_nothing_to_do(rng):
    no_sequence = batch(rng, [], [], 2, 1, 16, 16)
    idle = batch(rng, [0, 0], [5, 20], 2, 1, 16, 16)
    for args in (no_sequence, idle):
        for launcher in LAUNCHERS:
            assert launcher(*args, 1.0).shape == (0, 2, 16), launcher


# name of the argument: what it becomes, and what the error says
REFUSED = [
    ({"q": lambda q: q[0]}, "q has shape (4, 32)"),
    ({"v": lambda v: v[:2]}, "v_pages (2, 16, 2, 32)"),
    ({"q": lambda q: q[:, :3]}, "3 query heads"),
    ({"tables": lambda tables: tables[:1]}, "block_tables (1, 4)"),
    ({"tables": lambda tables: tables.long()}, "block_tables is torch.int64"),
    ({"q": lambda q: q.half()}, "q is torch.float16"),
    ({"q": lambda q: q.repeat(1, 1, 2)[..., ::2]}, "q has strides"),
    ({"cu_q": lambda cu_q: cu_q + 1}, "cu_q is [1, 2, 4]"),
    ({"lens": lambda lens: lens - 8}, "sequence 1 has 1 tokens"),
    ({"tables": lambda tables: tables[:, :1]}, "sequence 0 has 20 tokens"),
    ({"tables": lambda tables: torch.full_like(tables, NOWHERE)}, "the block table of sequence 0")]


def refused(says, function, *args):
    with pytest.raises((ValueError, TypeError)) as refusal:
        function(*args)
    assert says in str(refusal.value), (function, refusal.value)


@pytest.mark.parametrize("changes, says", REFUSED)
def test_what_the_launchers_refuse(rng, changes, says):
    names = ("q", "k", "v", "tables", "cu_q", "lens")
    args = dict(zip(names, batch(rng, [1, 2], [20, 9], 4, 2, 32, 16), strict=True))
    args |= {name: change(args[name]) for name, change in changes.items()}
    for launcher in LAUNCHERS:
        refused(says, launcher, *args.values(), 1.0)


@pytest.mark.parametrize("H, G, D, says", [
    (4, 2, 24, "heads of width 24, expected a multiple of 16"),
    (4, 2, 256, "heads of width 256"), (65, 1, 16, "at most 64 times")])
def test_heads_that_the_kernels_refuse(rng, H, G, D, says):
    args = batch(rng, [1, 2], [20, 9], H, G, D, 16)
    for launcher in (k14.paged_attention, k14.paged_attention_cuda):
        refused(says, launcher, *args, 1.0)
    out = k14.paged_attention_torch(*args, 1.0)             # the plain formula takes them
    assert np.abs(out.numpy() - attention(*args, 1.0)).max() < 1e-5


def test_a_scale_and_slots_that_are_refused(rng):
    args = batch(rng, [1, 2], [20, 9], 4, 2, 32, 16)
    refused("scale is -1.0", k14.paged_attention, *args, -1.0)
    new = torch.zeros(2, 2, 32)
    for slots, says in ((torch.tensor([0, 10**6]), "slots 0 to 1000000"),
                        (torch.tensor([0.0, 1.0]), "slots are torch.float32")):
        refused(says, k14.write_kv, new, new, *args[1:3], slots)


def test_count_splits():
    """Enough programs where there are keys for them, and no merge where there are enough."""
    for programs, keys, want in ((8, 8192, 32), (8, 100_000, 33), (8, 300, 2), (8, 0, 1),
                                 (264, 8192, 1), (132, 8192, 2), (10_000, 8192, 1)):
        assert k14.count_splits(programs, keys, 132) == want


@pytest.mark.slow
def test_cuda_does_not_spill():
    assert k14.KERNELS.get("paged_cuda").resources.spill_stores == 0


@pytest.mark.slow
@pytest.mark.parametrize("T, R, D, S, itemsize", [
    (1, 1, 128, 16, 2), (1, 4, 64, 32, 2), (8, 7, 128, 16, 2), (512, 4, 128, 7, 2),
    (512, 4, 128, 16, 4), (1, 8, 64, 16, 4)])
def test_other_launches_compile_as_well(T, R, D, S, itemsize):
    """Groups, widths and pages of other sizes: Triton compiles again for each."""
    from lab import simulator
    from lab.author import hopper_report

    names, kind = k14.paged_triton.arg_names, {2: "*bf16", 4: "*fp32"}[itemsize]
    kinds = dict.fromkeys(names[:names.index("R")], "i32:16") | dict.fromkeys(
        ("block_tables", "cu_q", "lens"), "*i32") | dict.fromkeys(
        ("q", "k_pages", "v_pages", "out"), kind) | {
        "lse": "*fp32", "scale": "fp32", "T": "i32", "B": "i32", "splits": "i32"}
    sizes = k14.sizes_for(T, 1, R, D, itemsize)
    warps, stages = sizes.pop("num_warps"), sizes.pop("num_stages")
    code = simulator.hopper(k14.paged_triton, kinds, {"R": R, "S": S, "D": D} | sizes, warps,
                            stages)
    assert not code.spills and not code.serialised and code.shared <= hopper_report.SHARED
