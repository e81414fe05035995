"""What k15 gives: its functions on every back end, what they refuse, and what is compiled."""

import re

import numpy as np
import pytest
import torch

from layer1_kernels import (
    dequantize_weight,
    quantize_weight,
    quantized_matmul,
    quantized_matmul_cuda,
    quantized_matmul_torch,
)
from layer1_kernels.k15_quantized_matmul import KERNELS, quantized_matmul_oracle
from tests.layer1_kernels.row_cases import at
from tests.layer1_kernels.test_k15_quantized_matmul import (
    case,
    dequantized,
    pack,
    quantized,
    tensors,
)

ALL = [(1, 1, 16, 8, 16, "float32"), (1, 41, 144, 4, 16, "float16"), (3, 40, 96, 4, 32, "float32"),
       (1, 9, 2176, 8, 128, "bfloat16"), (16, 33, 256, 4, 128, "bfloat16"),
       (17, 20, 64, 8, 64, "float16"), (70, 33, 80, 4, 16, "bfloat16")]
#      T, N, K, bits, group, dtype


@pytest.mark.usefixtures("triton_on_the_cpu")
@pytest.mark.parametrize("T, N, K, bits, group, dtype", ALL)
def test_every_back_end(agree, rng, T, N, K, bits, group, dtype):
    x, xt, q, scales, packed = case(rng, T, N, K, bits, group, dtype)
    want = x @ dequantized(q, scales, group).T
    rest = *tensors(packed, scales), bits, group
    functions = [quantized_matmul, quantized_matmul_torch]
    if dtype == "float32":
        functions.append(quantized_matmul_cuda)
        y = quantized_matmul_cuda(xt, *rest, "gemv_bytes")
        agree(y, want, dtype, f"gemv_bytes, {T, N, K}, {bits} bits", at)
    for function in functions:
        y = function(xt, *rest)
        assert y.dtype == xt.dtype
        agree(y, want, dtype, f"{function.__name__}, {T, N, K}, {bits} bits, groups of {group}", at)
    agree(quantized_matmul_oracle(x, packed, scales, bits, group), want, "float64")


@pytest.mark.parametrize("bits, group", [(8, 16), (4, 16), (4, 64)])
def test_there_and_back(agree, rng, bits, group):
    """Layout, scales and q are those of the book; strided, 16-bit and extreme weights."""
    w = rng.standard_normal((64, 5), dtype=np.float32)
    w[:16, 0] = 0
    w[:, 1] *= 1e37
    w[:, 2] *= 1e-42                    # subnormal
    for weights in (torch.from_numpy(w).T, torch.from_numpy(w[:, 3:]).T.to(torch.bfloat16)):
        packed, scales = quantize_weight(weights, bits, group)
        q, want = quantized(weights.float().contiguous().numpy(), bits, group)
        q = np.clip(q, -(2 ** (bits - 1) - 1), 2 ** (bits - 1) - 1)
        assert np.array_equal(packed.numpy(), pack(q, bits, group))
        assert np.array_equal(scales.numpy(), want)
        back = dequantize_weight(packed, scales, bits, group)
        agree(back, dequantized(q, want, group).astype(np.float32), "exact")


@pytest.mark.usefixtures("triton_on_the_cpu")
def test_results_repeat(rng):
    """Split over K, and the same bits again."""
    _, x, _, scales, packed = case(rng, 1, 3, 4096, 8, 128, "float32")
    rest = *tensors(packed, scales), 8, 128
    assert torch.equal(quantized_matmul(x, *rest), quantized_matmul(x, *rest))


@pytest.mark.parametrize("T, N, K", [(0, 3, 32), (3, 0, 32), (3, 4, 0), (0, 0, 0)])
@pytest.mark.parametrize("bits", [8, 4])
def test_nothing_to_do(T, N, K, bits):
    packed, scales = quantize_weight(torch.ones(N, K), bits, 16)
    for function in (quantized_matmul, quantized_matmul_torch, quantized_matmul_cuda):
        y = function(torch.ones(T, K), packed, scales, bits, 16)
        assert torch.equal(y, torch.zeros(T, N)), function.__name__


def refuses(call, says):
    with pytest.raises((TypeError, ValueError), match=re.escape(says)):
        call()


def test_what_is_refused():
    w, x = torch.ones(4, 64), torch.ones(2, 64)
    packed, scales = quantize_weight(w, 4, 32)
    for call, says in (
            (lambda: quantize_weight(w, 3, 32), "bits is 3"),
            (lambda: quantize_weight(w, 4, 24), "group is 24"),
            (lambda: quantize_weight(torch.ones(4, 72), 4, 16), "K a multiple of"),
            (lambda: quantize_weight(w / 0, 4, 32), "not finite"),
            (lambda: quantize_weight(w.int(), 4, 32), "w is torch.int32"),
            (lambda: dequantize_weight(packed, scales, 8, 32), "expected (4, 64)"),
            (lambda: quantized_matmul_cuda(torch.ones(1, 64), *quantize_weight(w, 4, 16), 4, 16,
                                           "gemv_wide"), "groups of 16 × 4 bits"),
            (lambda: quantized_matmul_cuda(torch.ones(65_536, 64), packed, scales, 4, 32),
             "x has 65536 rows")):
        refuses(call, says)
    for function in (quantized_matmul, quantized_matmul_cuda):
        for args, says in (((x[0], packed, scales, 4, 32), "x has shape (64,)"),
                           ((x[:, :40], packed, scales, 4, 32), "x has shape (2, 40)"),
                           ((x.double(), packed, scales, 4, 32), "x is torch.float64"),
                           ((x, packed.char(), scales, 4, 32), "packed is torch.int8"),
                           ((x, packed, scales.half(), 4, 32), "scales torch.float16"),
                           ((x, packed, scales, 4, 16), "expected (4, 32) and (4, 4)"),
                           ((torch.ones(64, 2).T, packed, scales, 4, 32), "x has strides (1, 2)"),
                           ((x, packed, torch.ones(2, 4).T, 4, 32), "scales has strides (1, 4)")):
            refuses(lambda function=function, args=args: function(*args), says)


@pytest.mark.slow
@pytest.mark.parametrize("group", [128, 16, 4096])
def test_shipped_kernels_on_hopper(group):
    from layer1_kernels.bench.k15_quantized_matmul import shipped

    for name, kernel in shipped(group=group).items():
        assert kernel.spills == 0 and not kernel.serialised, f"{name}: {kernel}"
        assert kernel.shared <= 227 * 1024, f"{name}: {kernel}"
        _, kind, rows, _ = name.split("_")
        rows = int(rows)
        if rows == 1:           # w and x; the 4 bytes are a scale
            assert kernel.loads[16] >= 5 and set(kernel.loads) == {16, 4}, f"{name}: {kernel}"
        else:                   # straight to shared memory, 16 bytes a lane
            assert kernel.cp_async and not kernel.loads, f"{name}: {kernel}"
            assert set(kernel.stores) == {16}, f"{name}: {kernel}"
        if kind != "fp32" and rows > 1:
            assert kernel.wgmma if rows >= 64 else kernel.mma_sync, f"{name}: {kernel}"


@pytest.mark.slow
def test_the_last_cuda_step_does_not_spill():
    for bits in (8, 4):
        assert KERNELS.get(f"gemv_wide_int{bits}_cuda").resources.spill_stores == 0
