"""What matmul graders have in common: a (M, K) · wᵀ, with w (N, K)."""

import numpy as np


def matrices(rng, M, N, K, dtype=np.float32):
    """a (M, K), w (N, K)."""
    return [rng.standard_normal((rows, K), dtype=np.float32).astype(dtype) for rows in (M, N)]


def operands(rng, M, N, K):
    """a (M, K), w (N, K), and c (M, N) of sevens."""
    return *matrices(rng, M, N, K), np.full((M, N), 7, np.float32)


def tensors(rng, M, N, K, dtype):
    """a (M, K) and w (N, K) as tensors."""
    import torch

    return [torch.from_numpy(x).to(getattr(torch, dtype)) for x in matrices(rng, M, N, K)]


def product(a, w, of=None):
    """a · wᵀ in float64, of some of the k or with a weight for each."""
    of = np.ones(a.shape[1]) if of is None else of
    return (a * of).astype(np.float64) @ w.astype(np.float64).T


def tf32(x):
    """fp32 with the 13 last bits cut off, as tensor cores read it; in float64."""
    return (x.astype(np.float32).view(np.int32) & ~0x1FFF).view(np.float32).astype(np.float64)
