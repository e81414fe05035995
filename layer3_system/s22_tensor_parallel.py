"""s22 · Tensor parallel: n ranks compute each layer together, so that one token comes sooner

n: ranks   r: this rank   T: tokens of a step   C: model width   L: layers   V: vocabulary
H G F: query heads, key and value heads, mlp width of the whole model; in shape comments of a
method of TensorParallelLlama, those of this rank
Each rank reads 1/n of the matrices a step.
What it sends depends on T·C and L, and not on how large the matrices are.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from layer2_graph import Batch, Config, Llama, ModelError
from layer2_graph.g01_llama import Cache, last_rows

__all__ = ["GatherTokens", "TensorParallelLlama", "check_ranks", "embed", "local_config",
           "row_linear", "shard", "share", "vocabulary_loss"]

BY_ROWS = ("q_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")     # of (out, in)
BY_HEADS = ("k_proj", "v_proj")
BY_COLUMNS = ("o_proj", "down_proj")


def predict_all_reduces() -> int:
    """All-reduces in one forward of the small model, of 4 layers, on two ranks or more."""
    # exercise: where do the ranks have to add what they have? Scores are gathered, not added
    L = 4
    return 2 * L + 1


# ---- which rank has which weights


def check_ranks(m: Config, n: int, name: str = "the model") -> None:
    """ModelError unless n ranks can share a model."""
    def fits(k: int) -> bool:
        return not (m.H % k or m.F % k or m.V % k or m.G % k and k % m.G)

    if m.E and n > 1:
        raise ModelError(f"{name} has {m.E} experts in a layer, expected one MLP: ranks cut layers "
                         f"of one MLP here, and share experts in another way (s24)")
    if m.latent and n > 1:
        raise ModelError(f"{name} keeps a latent of {m.latent} numbers for all heads, expected "
                         f"keys and values of each: a latent has no heads that ranks could share")
    if m.linear and n > 1:
        raise ModelError(f"{name} keeps a state in {len(m.linear)} of its {m.L} layers, expected "
                         f"keys and values in all: their matrices are not cut here")
    if n < 1 or not fits(n):
        able = [str(k) for k in range(1, m.H + 1) if fits(k)]
        words = f"{', '.join(able[:-1])} or {able[-1]} ranks" if len(able) > 1 else "1 rank"
        raise ModelError(f"{name} ({m.H} query heads, {m.G} kv heads, mlp {m.F}, vocabulary {m.V}) "
                         f"can be shared by {words}, not by {n}")


def local_config(m: Config, n: int) -> Config:
    """The Config of a rank's part of a model: pages, heads and rotary tables follow from it.
    V stays whole, since every rank gathers all scores."""
    check_ranks(m, n)
    return replace(m, H=m.H // n, G=max(1, m.G // n), F=m.F // n)


def shard(name: str, weight: Tensor, m: Config, r: int, n: int) -> Tensor:
    """Rank r's part of a weight, in memory of its own.

    name: as Hugging Face has it, such as "model.layers.3.self_attn.k_proj.bias".  m: of the whole
    model.
    A matrix is (out, in), a bias (out,).
    BY_ROWS: 1/n of the rows.
    BY_HEADS: whole heads of m.D rows; where n > m.G, each is on n / m.G ranks.
    BY_COLUMNS: 1/n of the columns; their bias is whole, as all else is.
    """
    part = name.split(".")[-2]
    # exercise: rows, heads, columns, or whole; a view would keep the whole weight alive
    if part in BY_ROWS:
        return weight.chunk(n)[r].clone()
    if part in BY_HEADS:
        heads = weight.unflatten(0, (m.G, m.D))             # (G, D) or (G, D, C)
        first = r * m.G // n
        return heads[first:first + max(1, m.G // n)].flatten(0, 1).clone()
    if part in BY_COLUMNS and weight.ndim == 2:
        return weight.chunk(n, 1)[r].clone()
    return weight.clone()


def share(weights: dict[str, Tensor], m: Config, r: int, n: int,
          cut: Callable[..., Tensor] = shard) -> dict[str, Tensor]:
    """Rank r's part of a model's weights. cut: as `shard` does"""
    return {name: cut(name, weight, m, r, n) for name, weight in weights.items()}


# ---- the meetings


def row_linear(model: "TensorParallelLlama", x: Tensor,
               matrix: tuple[Tensor, Tensor | None]) -> Tensor:     # (T, K / n) -> (T, C)
    """x @ weight.T + bias of the whole model, on every rank.

    x: this rank's, of K columns in all.  matrix: this rank's columns of the weight (C, K / n), and
    the whole bias (C,) or None
    """
    weight, bias = matrix
    # exercise: this rank's part, the sum, the bias
    y = model.linear(x, (weight, None))                     # (T, C)
    dist.all_reduce(y)
    return y if bias is None else y + bias


def embed(model: "TensorParallelLlama", tokens: Tensor) -> Tensor:      # (T,) int64 -> (T, C)
    """The embedding's row of each token, on every rank.

    model.embedding: this rank's rows (V / n, C), the first of which is that of token r · V / n
    """
    r = dist.get_rank()
    rows = len(model.embedding)
    # exercise: own rows, zeros for tokens of other ranks, the sum
    local = tokens - r * rows                               # (T,)
    strange = (local < 0) | (local >= rows)                 # (T,)
    x = model.embedding[local.masked_fill(strange, 0)]      # (T, C)
    x[strange] = 0
    dist.all_reduce(x)
    return x


class TensorParallelLlama(Llama):
    """A rank's part of a Llama, which computes with those of the other ranks.

    config: of this rank, see local_config.  weights: this rank's, see share
    """

    def forward(self, batch: Batch, cache: Cache, every: bool = False) -> Tensor:
        """Scores of the next token, of the whole vocabulary, on every rank: g01's `forward`, but
        for the two ends."""
        x = embed(self, batch.tokens)                               # (T, C)
        for i in range(self.config.L):
            x = self.block(i, x, batch, cache)                      # (T, C)
        if not every:
            x = x[last_rows(batch.cu_q)]                            # (B, C)
        x = self.ops.rmsnorm(x, self.norm, self.config.eps)
        return gather_columns(self.ops.matmul(x, self.head))

    def block(self, i: int, x: Tensor, batch: Batch, cache: Cache) -> Tensor:
        """Layer number i: g01's `llama_block`, with two meetings."""
        m = self.config
        layer = self.layers[i]
        y = self.ops.rmsnorm(x, layer.attention_norm, m.eps)        # (T, C)
        q, k, v = self.heads(layer, y)                              # (T, H, D), 2 × (T, G, D)
        self.ops.rope(q, k, self.cos, self.sin, batch.positions)
        mixed = cache.attend(i, q, k, v, batch, self.ops, m.scale)  # (T, H, D)
        x = x + row_linear(self, mixed.flatten(1), layer.o)         # (T, C)
        y = self.ops.rmsnorm(x, layer.mlp_norm, m.eps)              # (T, C)
        hidden = self.ops.swiglu(self.linear(y, layer.gate), self.linear(y, layer.up))  # (T, F)
        return x + row_linear(self, hidden, layer.down)


def gather_columns(part: Tensor) -> Tensor:                         # (B, V / n) -> (B, V)
    """All ranks' columns beside each other, on every rank."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts, 1)

# ---- training


def vocabulary_loss(logits: Tensor, targets: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """(losses (T,), their gradient (T, V / n)) of cross-entropy, where no rank sees all logits.

    logits: this rank's columns (T, V / n), from column `start` on.  targets: (T,), of the whole
    vocabulary.
    Losses are the same on every rank; the gradient is that of their sum with respect to the logits.
    """
    # exercise: the maximum over all ranks; the sum of exponentials and the target's logit, added
    k = logits.shape[1]
    local = targets - start                                         # (T,)
    mine = (local >= 0) & (local < k)                               # (T,)
    top = logits.max(-1).values                                     # (T,)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    e = (logits - top[:, None]).exp()                               # (T, V / n)
    at = logits.gather(1, local.clamp(0, k - 1)[:, None])[:, 0]     # (T,)
    both = torch.stack([e.sum(-1), at.masked_fill(~mine, 0)])       # (2, T)
    dist.all_reduce(both)
    gradient = e / both[0][:, None]                                 # (T, V / n)
    gradient[mine, local[mine]] -= 1
    return both[0].log() + top - both[1], gradient


def choose_summed_gradients() -> list:
    """With sequence parallelism: of "attention_norm", "q", "mlp_norm", "gate" and "down", those
    weights whose gradient must be summed over all ranks after backward."""
    # exercise: which of them is whole on every rank, and sees only some of the tokens?
    return ["attention_norm", "mlp_norm"]


class GatherTokens(torch.autograd.Function):
    """From a rank's own tokens to all of them: where a layer goes from norms to matrices."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:                  # (T / n, C) -> (T, C)
        """All ranks' tokens, in their order, on every rank."""
        # exercise: room for each rank's, and one collective
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:          # (T, C) -> (T / n, C)
        """The gradient of this rank's own tokens.

        gradient: of all tokens, by this rank's bands of the matrices alone
        """
        # exercise: every rank's bands have read my tokens; what does each ask of them?
        parts = list(gradient.chunk(dist.get_world_size()))
        own = torch.empty_like(parts[0])                            # (T / n, C)
        dist.reduce_scatter(own, parts)
        return own
