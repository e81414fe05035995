"""A model whose guesses by look-up come true now and then."""

from layer3_system.testing.mock_llama import MockLlama, mock_scores


class Repeats(MockLlama):
    """It likes the token that came three before."""

    def __init__(self):
        super().__init__(scores=self.score)

    def score(self, context, V):
        z = mock_scores(context, V)
        z[context[max(len(context) - 3, 0)]] += 6
        return z
