"""g10 · Sparsity: a zero is worth what a machine can skip

N, K: numbers out and in of a matrix w    T: tokens
saliency: what the loss gains where a weight goes
2:4: of each four neighbours of a row, two stay    meta: where these two stood, 2 bits each
S: slots of a page    P: pages of a sequence    H: query heads    G: kv heads    D: head width
A matrix in 2:4 takes 9/16 of its 16-bit bytes, and half of its products.
Of a context, a decode step that loads c of P pages reads c/P of the keys and values, and 2/S of the
keys to choose them.
"""

from pathlib import Path

import torch
from torch import Tensor

from lab import simulator
from layer1_kernels import Kernels
from layer2_graph.g01_llama import Batch, PagedCache

__all__ = ["ChosenPages", "chosen_table", "dense_mma", "keep_2_4", "pack_2_4", "page_bound",
           "page_extremes", "saliency", "sparse_mma", "unpack_2_4"]

KERNELS = simulator.RawModule(Path(__file__).with_suffix(".cu"))
WARP = 32
TILE = 16, 8            # rows of w and tokens of a warp


# ---- which weights matter, and which a machine can skip


def predict_break_even() -> float:
    """The share of the weights that may stay so that their fp16 values and a mask of one bit for
    each weight, zero or not, take as many bytes as all weights in fp16."""
    # exercise: how many bits does a weight take, if a share s of them stays?
    return (16 - 1) / 16


def predict_2_4_bytes() -> float:
    """Bytes of a matrix in 2:4 over those of the whole in bf16.
    Each value that stays has an index of the fewest bits that tell its place in its group of
    four."""
    # exercise: what does a group of four take?
    return (2 * 16 + 2 * 2) / (4 * 16)


def saliency(w: Tensor, hessian: Tensor) -> Tensor:     # (N, K), (K, K) -> (N, K)
    """What the squared error of x wᵀ gains if one weight becomes 0, each alone.

    hessian: the sum of x xᵀ over rows x of a text, as g07's `hessians` has it: half the second
    derivative.
    ValueError if it is not as wide as a row.
    Source: LeCun, Denker and Solla, "Optimal brain damage", 1989.
    """
    if hessian.shape != 2 * w.shape[1:]:
        raise ValueError(f"saliency: a Hessian of {tuple(hessian.shape)} for rows of "
                         f"{w.shape[1]}, expected {tuple(2 * w.shape[1:])}")
    # exercise: half the second derivative, times the square of what is taken away
    return hessian.diagonal() * w.square()


def keep_2_4(score: Tensor) -> Tensor:              # (N, K) -> (N, K) bool
    """Which two of each four neighbours of a row stay: those with the largest scores, of equal
    ones the earlier.
    ValueError unless K is a multiple of 4."""
    if score.shape[1] % 4:
        raise ValueError(f"keep_2_4: rows of {score.shape[1]} numbers, expected a multiple of 4")
    # exercise: groups of four, the order of their scores, True for the first two
    groups = score.unflatten(1, (-1, 4))                            # (N, K / 4, 4)
    order = groups.argsort(dim=-1, descending=True, stable=True)
    keep = torch.zeros_like(groups, dtype=torch.bool)
    return keep.scatter(-1, order[..., :2], True).flatten(1)


def pack_2_4(w: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:     # -> (N, K / 2), (N, K / 8)
    """(values, meta) of a matrix in 2:4.

    w, keep: (N, K), K a multiple of 8    values: what stays, in w's dtype, in the order of a row
    meta: uint8.
    A place in a group of four takes 2 bits; the lowest are of the first value.
    A byte has four places, of two groups.
    ValueError where a group does not keep 2.
    """
    check_2_4("pack_2_4", keep)
    # exercise: values by the mask; the column of each, modulo 4; four places to a byte
    N, K = w.shape
    values = w[keep].view(N, K // 2)
    places = (torch.arange(K, device=w.device) % 4).expand(N, K)[keep].view(N, K // 8, 4)
    meta = (places << places.new_tensor([0, 2, 4, 6])).sum(-1)      # (N, K / 8)
    return values, meta.to(torch.uint8)


def check_2_4(name, keep):
    if keep.shape[1] % 8:
        raise ValueError(f"{name}: rows of {keep.shape[1]} numbers, expected a multiple of 8")
    counts = keep.unflatten(1, (-1, 4)).sum(-1)                     # (N, K / 4)
    if (counts != 2).any():
        row, group = (counts != 2).nonzero()[0].tolist()
        raise ValueError(f"{name}: row {row}, group {group} keeps {counts[row, group]} of 4, "
                         f"expected 2")


def unpack_2_4(values: Tensor, meta: Tensor) -> Tensor:     # (N, K / 2), (N, K / 8) -> (N, K)
    """The matrix again, with its zeros."""
    N, half = values.shape
    shifts = torch.tensor([0, 2, 4, 6], device=meta.device)
    places = meta[..., None].long() >> shifts & 3                           # (N, K / 8, 4)
    columns = places.view(N, half) + torch.arange(half, device=meta.device) // 2 * 4
    return values.new_zeros(N, 2 * half).scatter(1, columns, values)


def sparse_mma(x: Tensor, values: Tensor, meta: Tensor) -> Tensor:      # (T, K), … -> (T, N)
    """x wᵀ for a packed w, on sparse tensor cores. x and values are fp16, the result is fp32.

    K a multiple of 32; rows are neighbours.
    ValueError or TypeError otherwise.
    """
    check_operands("sparse_mma", x, values, 2)
    if meta.dtype != torch.uint8 or meta.shape != (len(values), x.shape[1] // 8):
        raise ValueError(f"sparse_mma: meta is {meta.dtype} of {tuple(meta.shape)}, expected "
                         f"torch.uint8 of {(len(values), x.shape[1] // 8)}")
    return launch("sparse_mma_cuda", x, values, meta.contiguous())


def dense_mma(x: Tensor, w: Tensor) -> Tensor:          # (T, K), (N, K) -> (T, N)
    """x wᵀ by the same kernel on all of w."""
    check_operands("dense_mma", x, w, 1)
    return launch("dense_mma_cuda", x, w)


def check_operands(name, x, w, share):
    """share: K over the width of w"""
    if x.dtype != torch.float16 or w.dtype != torch.float16:
        raise TypeError(f"{name}: x is {x.dtype} and the matrix {w.dtype}, expected float16")
    if x.shape[1] % 32 or x.shape[1] != share * w.shape[1]:
        raise ValueError(f"{name}: rows of {x.shape[1]} numbers in x and {w.shape[1]} of the "
                         f"matrix, expected K, a multiple of 32, and K / {share}")


def launch(kernel, x, *matrix):
    T, K = x.shape
    N = len(matrix[0])
    y = x.new_empty(T, N, dtype=torch.float32)
    if y.numel():
        grid = -(-N // TILE[0]), -(-T // TILE[1])
        arrays = (x.contiguous(), *(part.contiguous() for part in matrix))
        KERNELS.get(kernel)(grid, WARP, (*arrays, y, T, N, K))
    return y


# ---- a context: load the pages that matter


def page_extremes(k_pages: Tensor, tables: Tensor, N: int) -> tuple[Tensor, Tensor]:
    """(low, high), each (P, G, D): the least and the largest of the keys of each page of a sequence
    of N tokens, number by number.
    Slots that hold nothing yet do not count.

    k_pages: (pages, S, G, D)    tables: (P,) int32, the sequence's pages in order
    An engine keeps them beside the pages, and updates them with each key that it writes.
    """
    S = k_pages.shape[1]
    keys = k_pages[tables.long()].float()                           # (P, S, G, D)
    inside = torch.arange(len(tables) * S, device=keys.device).view(-1, S, 1, 1) < N
    return (keys.where(inside, torch.inf).amin(1), keys.where(inside, -torch.inf).amax(1))


def page_bound(q: Tensor, low: Tensor, high: Tensor) -> Tensor:     # (H, D), … -> (P, H)
    """A bound of q · k for each head, over all keys k of a page, as near as low and high allow.

    low, high: (P, G, D), extremes of a page's keys.
    Heads h · R to h · R + R - 1, R = H // G, read kv head h.
    Source: Tang and others, "Quest", 2024.
    """
    # exercise: number by number, which end of low … high makes the product largest?
    R = len(q) // low.shape[1]
    low = low.repeat_interleave(R, 1)                               # (P, H, D)
    high = high.repeat_interleave(R, 1)
    return torch.maximum(q * low, q * high).sum(-1)


def chosen_table(bounds: Tensor, table: Tensor, N: int, S: int,
                 budget: int) -> tuple[Tensor, int]:    # (P, H), (P,) int32 -> (chosen,) int32, int
    """(table, len) of a sequence of N tokens that has only its chosen pages, in the old order.

    The last page is always among them: it holds the newest token, and may be part empty.
    The others are those with the largest bounds of any head; of equal ones the earlier.
    `budget` pages, or all if there are no more.
    ValueError if budget is below 1.
    """
    if budget < 1:
        raise ValueError(f"chosen_table: budget {budget}, expected 1 page or more")
    # exercise: the best of the pages before the last, in order; the last; the tokens in all these
    P = len(bounds)
    best = bounds[:-1].amax(1)                                      # (P - 1,)
    order = best.argsort(descending=True, stable=True)[:budget - 1]
    chosen = torch.cat((order.sort().values, order.new_tensor([P - 1])))
    return table[chosen], N - S * (P - len(chosen))


class ChosenPages(PagedCache):
    """A PagedCache whose decode steps load at most `budget` pages of each sequence and layer.

    Other steps, in which a sequence has no new token or several, load all.
    With a budget of all pages, or more, the answers are PagedCache's.
    """

    budget = 1

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch, ops: Kernels,
               scale: float) -> Tensor:             # (T, H, D), 2 × (T, G, D) -> (T, H, D)
        if (batch.cu_q.diff() != 1).any():
            return super().attend(layer, q, k, v, batch, ops, scale)
        ops.write_kv(k, v, self.k[layer], self.v[layer], batch.slots)
        tables = batch.block_tables.clone()
        lens = batch.lens.clone()
        S = self.k.shape[2]
        for b, N in enumerate(batch.lens.tolist()):
            table = batch.block_tables[b, :-(-N // S)]
            bounds = page_bound(q[b].float(), *page_extremes(self.k[layer], table, N))
            table, lens[b] = chosen_table(bounds, table, N, S, self.budget)
            tables[b, :len(table)] = table
        return ops.paged_attention(q, self.k[layer], self.v[layer], tables, batch.cu_q, lens, scale)
