"""Ladder, targets and measurements of k19_fp8_matmul: see lab/measure/bench.py."""

import numpy as np
import torch

from layer1_kernels.k19_fp8_matmul import part_sums, quantize_blocks

INT8 = 127              # the largest code


def rounded(x, kind, rows, group):              # (M, K) -> (M, K)
    """x as its codes stand for it, with a scale for each rows x group numbers. M, K: multiples.

    kind: e4m3, int8, or bf16, which has no scales
    """
    if kind == "bf16":
        return x.bfloat16().float()
    M, K = x.shape
    blocks = x.reshape(M // rows, rows, K // group, group)
    if kind == "int8":
        scales = blocks.abs().amax((1, 3), keepdim=True) / INT8
        codes = (blocks / torch.where(scales > 0, scales, 1)).round()
    else:
        q, scales = quantize_blocks(x, rows, group)
        codes = q.float().reshape(blocks.shape)
        scales = scales[:, None, :, None]
    return (codes * scales).reshape(M, K)


def outlier_errors(kind, rows, group, factors, M=64, K=1024):
    """Errors of the other K - 1 channels of normal numbers, relative to them, where the last is
    multiplied by each of the factors; a scale for each rows x group numbers."""
    rng = torch.Generator().manual_seed(0)
    plain = torch.randn(M, K, generator=rng)
    errors = []
    for factor in factors:
        x = plain.clone()
        x[:, -1] *= factor
        off = (rounded(x, kind, rows, group) - x)[:, :-1]
        errors.append(float(off.norm() / x[:, :-1].norm()))
    return errors


def sum_errors(promoted_sum, lengths, bits, every, step=32, size=16):
    """Relative errors of sums of K products, for each K of lengths, uniform numbers from 0 to 1;
    after each `step` the sum is cut to `bits`, after each `every` steps it is promoted.

    every: None for never
    """
    rng = np.random.default_rng(0)
    errors = []
    for K in lengths:
        parts = part_sums(rng.random((size, K)), rng.random((size, K)), step)
        exact = parts.sum(0)
        off = promoted_sum(parts, bits, every or len(parts)) - exact
        errors.append(float(np.sqrt((off**2).mean() / (exact**2).mean())))
    return errors
