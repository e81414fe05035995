"""What every twin must do: learn.
And how the lessons run them."""

from contextlib import contextmanager

import torch


def check_that_it_trains(twin, text, steps=3):
    """Steps on one text (T + 1,) lower its loss, and every weight moves."""
    before = [w.detach().clone() for w in twin.parameters()]
    optimiser = torch.optim.AdamW(twin.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(twin(text[None, :-1])[0], text[1:])
        optimiser.zero_grad()
        (loss + sum(layer.loss for layer in twin.experts())).backward()
        optimiser.step()
        losses.append(loss.item())
        for layer in twin.experts():
            layer.step()
    assert losses[-1] < losses[0]
    assert all(not torch.equal(a, b) for a, b in zip(before, twin.parameters(), strict=True))


@contextmanager
def one_thread():
    """As the lessons have it: matrices this small gain nothing from a second.
    Without gradients."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)
