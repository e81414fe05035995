"""k20's launchers: how often they launch, and where w may lie in memory."""

import pytest
import torch

from lab import simulator
from layer1_kernels.k20_grouped_gemm import aligned_rows, grouped_gemm, sort_slots

pytestmark = pytest.mark.usefixtures("triton_on_the_cpu")


@pytest.mark.parametrize("E", [1, 40])
def test_launches_do_not_grow_with_experts(E):
    """Three for the sort, one for the product, whatever E is and however the slots fall."""
    with simulator.trace() as trace:
        order, offsets = sort_slots(torch.arange(20, dtype=torch.int32)[:, None] % E, E)
        grouped_gemm(torch.ones(20, 16), torch.ones(E, 16, 16), order, offsets)
    assert len(trace.launches) == 4


@pytest.mark.parametrize("dtype, start, K", [
    (torch.float32, 1, 16), (torch.float16, 0, 13), (torch.bfloat16, 3, 8)])
def test_w_may_start_anywhere_and_have_rows_of_any_length(dtype, start, K):
    """What is beyond w, or between its rows, is not a number and is never read."""
    x = torch.randn(4, K).to(dtype)
    whole = torch.full((start + 10 * K + 99,), torch.nan, dtype=dtype)
    w = whole[start:start + 10 * K].normal_().view(2, 5, K)
    assert aligned_rows(w).data_ptr() != w.data_ptr()
    order, offsets = torch.arange(4).int(), torch.tensor([0, 1, 4]).int()
    want = torch.einsum("rk,rnk->rn", x.double(), w[[0, 1, 1, 1]].double())
    got = grouped_gemm(x, w, order, offsets).double()
    assert torch.allclose(got, want, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("w", [torch.ones(2, 5, 8), torch.ones(4).as_strided((1, 1, 4), (9, 7, 1))],
                         ids=["several", "one row, of odd strides"])
def test_rows_that_are_aligned_are_not_copied(w):
    rows = aligned_rows(w)
    assert rows.data_ptr() == w.data_ptr() and rows.stride() == (w.shape[2], 1)


def test_slots_of_no_expert():
    """Wrong, but no crash: there is no w that a descriptor could hold."""
    got = grouped_gemm(torch.ones(4, 8), torch.ones(0, 5, 8), torch.arange(4).int(),
                       torch.zeros(1).int())
    assert torch.equal(got, torch.zeros(4, 5))
