"""Attention's gradients by the book, in float64, and the cases that are graded."""

import math

import numpy as np

from lab.judge.adversarial import apart
from tests.layer1_kernels.matmul_cases import tf32

LOG2E = math.log2(math.e)
TF32 = ("a product is in TF32, with 10 bits of fraction: input_precision=\"ieee\" in every tl.dot "
        "keeps fp32")


def inputs(rng, B, T, N, H, G, D, dtype="float32"):
    """q, k, v and grad_out as tensors of a dtype; grad_lse, float32."""
    import torch

    shapes = (B, T, H, D), (B, N, G, D), (B, N, G, D), (B, T, H, D)
    arrays = [torch.from_numpy(rng.standard_normal(shape, np.float32)).to(getattr(torch, dtype))
              for shape in shapes]
    return *arrays, torch.from_numpy(rng.standard_normal((B, T, H), np.float32))


def plain(x):
    return x.double().numpy()


def visible(T, N, causal):
    """(T, 1, N): which query sees which key."""
    last = np.arange(N - T, N) if causal else np.full(T, N)
    return (np.arange(N) <= last[:, None])[:, None]


class Book:
    """Attention and its gradients in float64; `heads` (H,): the kv head of each query head."""

    def __init__(self, q, k, v, grad_out, grad_lse, causal, scale):
        self.H, self.G = q.shape[2], k.shape[2]
        self.q, self.k, self.v, self.grad_out, self.grad_lse = map(
            plain, (q, k, v, grad_out, grad_lse))
        self.scale = scale
        self.heads = np.arange(self.H) // (self.H // self.G)
        self.seen = visible(q.shape[1], k.shape[1], causal)
        scores = np.where(self.seen, self.scores(self.heads), -np.inf)          # (B, T, H, N)
        m = scores.max(-1, keepdims=True)
        self.lse = (m + np.log(np.exp(scores - m).sum(-1, keepdims=True)))[..., 0]
        weights = np.exp(scores - self.lse[..., None])
        self.out = np.einsum("bthn,bnhd->bthd", weights, self.v[:, :, self.heads])
        self.delta = (self.grad_out * self.out).sum(-1) - self.grad_lse

    def scores(self, heads):
        return np.einsum("bthd,bnhd->bthn", self.q, self.k[:, :, heads]) * self.scale

    def gradients(self, seen=None, heads=None, cut=lambda x: x):
        """(grad_q, grad_k, grad_v), weights being 0 but where `seen`.

        cut: what is done to the operands of the products that are added up
        """
        heads = self.heads if heads is None else heads
        seen = self.seen if seen is None else seen
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.where(seen, np.exp(self.scores(heads) - self.lse[..., None]), 0)
        grad_weights = np.einsum("bthd,bnhd->bthn", self.grad_out, self.v[:, :, heads])
        grad_scores = weights * (grad_weights - self.delta[..., None])
        of = (heads[:, None] == np.arange(self.G)).astype(float)                # (H, G)
        return (self.scale * np.einsum("bthn,bnhd->bthd", cut(grad_scores),
                                       cut(self.k[:, :, heads])),
                self.scale * np.einsum("bthn,bthd,hg->bngd", cut(grad_scores), cut(self.q), of),
                np.einsum("bthn,bthd,hg->bngd", cut(weights), cut(self.grad_out), of))


class Case:
    """Arrays and sizes of one launch, and what is right."""

    def __init__(self, rng, size):
        self.size = size
        B, T, N, H, G, D, self.causal, self.dtype, self.BM, self.BN = size
        self.q, self.k, self.v, self.grad_out, grad_lse = inputs(rng, B, T, N, H, G, D, self.dtype)
        self.settle(grad_lse)

    def settle(self, grad_lse):
        import torch

        self.book = Book(self.q, self.k, self.v, self.grad_out, grad_lse, self.causal, self.scale)
        self.q, self.k, self.v = apart(self.q, self.k, self.v)
        self.lse, self.delta = (torch.from_numpy(x.astype(np.float32))
                                for x in (self.book.lse, self.book.delta))

    @property
    def scale(self):
        return self.q.shape[3] ** -0.5

    @property
    def words(self):
        B, T, N, H, G, D, *_ = self.size
        return (f"{T} queries, {N} keys, {H} heads on {G}, D = {D}, "
                f"{'' if self.causal else 'not '}causal, {self.dtype}, tiles of {self.BM} queries "
                f"by {self.BN} keys")

    def run(self, subject, which):
        """(the gradients that a pass writes, the launch); which: "keys" or "queries"."""
        import torch

        B, T, N, H, G, D, *_ = self.size
        like = [self.q] if which == "queries" else [self.k, self.v]
        outputs = [torch.full(x.shape, 7, dtype=x.dtype) for x in like]
        strides = [n for x in (self.q, self.k, self.v) for n in x.stride()[:3]]
        grid = -(-T // self.BM) * B * H if which == "queries" else -(-N // self.BN) * B * G
        launch = subject.launch(f"{which}_pass_triton", grid, args=(
            self.q, self.k, self.v, self.grad_out, self.lse, self.delta, *outputs, self.scale, T, N,
            H, G, *strides), CAUSAL=self.causal, D=D, BM=self.BM, BN=self.BN,
            BD=1 << (D - 1).bit_length(), num_warps=4 if self.dtype == "float32" else 1)
        return outputs, launch


def tensor_flops(launch):
    kinds = launch.launches[0]["totals"]["flops_by_type"]
    return sum(count for kind, count in kinds.items() if kind.startswith("tensor"))


def visited(T, N, BM, BN):
    """Tiles of a causal square in which some query sees some key."""
    return sum(visible(T, N, True)[t:t + BM, 0, n:n + BN].any()
               for t in range(0, T, BM) for n in range(0, N, BN))


BM, BN, D = 16, 32, 16          # of one_tile_triton here


def at_pair(index):
    return f"query {index[0]}, key {index[1]}"


def tile_answers(q, k, v, grad_out, lse, delta, scale, dtype):
    """((weights, grad_scores), {mistake: (sentence, the same)}), each (T, BN)."""
    k, v = (np.pad(x, ((0, BN - len(k)), (0, 0))) for x in (k, v))
    seen = np.arange(BN) < BN - (k == 0).all(1).sum()
    scores = q @ k.T * scale - lse[:, None]
    grad_weights = grad_out @ v.T
    weights = np.where(seen, np.exp(scores), 0)
    less = delta[:, None]

    def answer(weights, less, grad_weights=grad_weights):
        return weights, weights * (grad_weights - less)

    def masked(exponents):
        return np.where(seen, np.exp(exponents), 0)

    own = (weights * grad_weights).sum(1, keepdims=True)
    mistakes = {
        "no_delta": ("delta is not taken off the gradients of the weights", answer(weights, 0)),
        "delta_of_tile": ("delta is made of this tile's keys: it is a sum over all keys, and comes "
                          "as an argument", answer(weights, own)),
        "delta_added": ("delta is added, and it comes off", answer(weights, -less)),
        "weights_missing": ("the gradients of the weights, less delta, are not multiplied by the "
                            "weights", (weights, np.where(seen, grad_weights - less, 0))),
        "exchanged": ("weights and grad_scores are returned in the other order",
                      answer(weights, less)[::-1]),
        "natural_exponent": ("the weights are exp, not exp2, of scores and lse that hold log2(e) "
                             "already", answer(masked(scores * LOG2E), less)),
        "no_scale": ("the scores are not multiplied by scale",
                     answer(masked(q @ k.T / LOG2E - lse[:, None]), less)),
        "not_masked": ("keys that are not seen have weights: a key that is not there has a score "
                       "of 0, and a weight", answer(np.exp(scores), less))}
    if dtype == "float32":
        coarse = masked(tf32(q) @ tf32(k).T * scale - lse[:, None])
        mistakes["tf32"] = TF32, answer(coarse, less, tf32(grad_out) @ tf32(v).T)
    return answer(weights, less), mistakes
