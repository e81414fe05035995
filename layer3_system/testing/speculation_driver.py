"""What surrounds one step with guesses: a request in its pages, before it is rolled back."""

from typing import Any

from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s06_prefix_cache import PrefixPool

__all__ = ["GuessedStep"]


class GuessedStep:
    """A request just after a step with guesses: its new tokens are written, and all guesses still
    count as computed.

    S: slots of a page    prompt, answer: tokens before the step    guesses: those of the step
    tokens: what the step decided
    """

    def __init__(self, S: int, prompt: list[int], answer: list[int], guesses: list[int],
                 tokens: list[int]):
        self.pool = PrefixPool(40, S)
        self.pool.take()                            # another table's, so that pages are not 0, 1 …
        self.request = Request("a", list(prompt), SamplingParams(), output=list(answer))
        known = self.request.num_tokens
        self.pool.grow(self.request.table, known)
        self.request.num_computed = known - 1
        self.pool.cache_pages(self.request)
        self.pool.grow(self.request.table, known + len(guesses))
        self.request.num_computed = known + len(guesses)
        self.request.draft = list(guesses)
        self.request.output += tokens

    def state(self) -> dict[str, Any]:
        """What a roll-back may change."""
        request = self.request
        return {"tokens": request.tokens, "num_computed": request.num_computed,
                "draft": list(request.draft), "table": list(request.table),
                "cached": request.num_cached_pages, "used": self.pool.used - 1,
                "known": [page for page in request.table if self.pool.is_cached(page)]}
