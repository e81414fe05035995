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
        if not self.stops.stops:
            return text
        return self.stops.add(text) if written > self.min_tokens else self.hold(text)

    def hold(self, text: str) -> str:
        """Text to show while no stop counts yet: an ending is kept that may begin one that does."""
        stops = self.stops.stops
        whole = self.stops.held + text
        sizes = {n for stop in stops for n in range(1, len(stop)) if whole.endswith(stop[:n])}
        most = max((n for n in sizes if not any(stop in whole[-n:] for stop in stops)), default=0)
        self.stops.held = whole[len(whole) - most:]
        return whole[:len(whole) - most]

    def rest(self) -> str:
        """The text still held back, at the end of an answer that no stop ended."""
        return self.stops.add(self.letters.rest()) + self.stops.rest()
