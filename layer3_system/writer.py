"""The text of an answer in the making, from its tokens"""

from layer3_system.s01_request import Detokenizer, StopStrings


class Writer:
    """The text of an answer as it comes: characters whole, and nothing of a stop."""

    def __init__(self, decode, request):
        self.letters = Detokenizer(decode, request.prompt)
        self.stops, self.min_tokens = StopStrings(request.params.stop), request.params.min_tokens

    def add(self, token, written):
        """Text to show now. written: tokens of the answer so far, this one included."""
        text = self.letters.add(token)
        return self.stops.add(text) if self.stops.stops and written > self.min_tokens else text

    def rest(self):
        """What was held back, at the end of an answer that no stop ended."""
        return self.stops.add(self.letters.rest()) + self.stops.rest()
