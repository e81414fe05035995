"""The text of an answer in the making, from its tokens"""

from collections.abc import Callable

from layer3_system.s01_request import Detokenizer, Request, StopStrings


class Writer:
    """The text of an answer as it comes: whole characters, and nothing of a stop."""

    def __init__(self, decode: Callable[[list[int]], str], request: Request):
        self.letters = Detokenizer(decode, request.prompt)
        self.stops = StopStrings(request.params.stop)
        self.min_tokens = request.params.min_tokens

    def add(self, token: int, written: int) -> str:
        """Text to show now. written: tokens of the answer so far, this one included."""
        text = self.letters.add(token)
        return self.stops.add(text) if self.stops.stops and written > self.min_tokens else text

    def rest(self) -> str:
        """The text still held back, at the end of an answer that no stop ended."""
        return self.stops.add(self.letters.rest()) + self.stops.rest()
