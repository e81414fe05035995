"""A model whose every score can be worked out in microseconds, to test the engine around it

P S: pages and slots    B: sequences of a step    T: its new tokens    N: a context    V: vocabulary
Its key of a token is the token, its value the position.
It reads its whole context back from the pages, as attention does, and refuses one that is not the
sequence's own.
Its scores depend on every token of that context.
"""

from collections.abc import Callable, Iterable, Sequence
from zlib import crc32

import torch

from layer2_graph import Batch, Config
from layer3_system.s02_block_pool import Pages

__all__ = ["ByteTokenizer", "MockLlama", "mock_scores"]

END = 256               # the token that ends a text


class ByteTokenizer:
    """UTF-8: a token is a byte, and 256 ends a text."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(t for t in tokens if t < END).decode(errors="replace")

    def vocabulary(self) -> list[bytes | None]:
        return [*(bytes([byte]) for byte in range(END)), None]

    def chat(self, messages: Iterable[dict[str, str]]) -> list[int]:
        text = "".join(f"<{m['role']}>{m['content']}" for m in messages)
        return self.encode(text + "<assistant>")


def mock_scores(context: Sequence[int], V: int = END + 1) -> torch.Tensor:     # (V,)
    """Scores of the next token after a context: random numbers that any change of it changes."""
    seed = crc32(torch.tensor(context, dtype=torch.int32).numpy().tobytes())
    scores = torch.rand(V, generator=torch.Generator().manual_seed(seed)) * 8
    return scores.double().float()


class MockLlama:
    """Takes steps as a Llama does.
    AssertionError if its context in the pages is not whole."""

    def __init__(self, room: int = 512, V: int = END + 1,
                 scores: Callable[[list[int], int], torch.Tensor] = mock_scores):
        self.config = Config(L=1, C=1, H=1, G=1, D=1, F=1, V=V, eps=1e-5, theta=1e4, room=room,
                             ends=(END,))
        self.scores = scores
        self.steps = 0
        self.embedding = torch.zeros(V, 1)

    def forward(self, batch: Batch, cache: Pages,
                every: bool = False) -> torch.Tensor:   # (B, V), or (T, V) for every token
        self.steps += 1
        k, v = cache.k[0].flatten(), cache.v[0].flatten()           # (P · S,)
        here = batch.slots >= 0
        k[batch.slots[here]] = batch.tokens[here].float()
        v[batch.slots[here]] = batch.positions[here].float()
        S = cache.k.shape[2]
        rows = []
        for table, N, begin, end in zip(batch.block_tables.tolist(), batch.lens.tolist(),
                                        batch.cu_q.tolist(), batch.cu_q.tolist()[1:], strict=False):
            slots = [table[i // S] * S + i % S for i in range(N)]
            assert v[slots].tolist() == list(range(N)), f"positions in the pages: {v[slots]}"
            context = k[slots].int().tolist()                       # (N,)
            assert context[N - (end - begin):] == batch.tokens[begin:end].tolist()
            first = N - (end - begin) if every else N - 1
            rows += [self.scores(context[:n + 1], self.config.V) for n in range(first, N)]
        return torch.stack(rows)
