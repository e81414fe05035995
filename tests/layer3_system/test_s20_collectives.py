"""Graders of s20."""

import numpy as np
import pytest
import torch

DRIVER = "layer3_system.testing.collective_driver"


def arrays(rng, n, N):
    """Whole numbers from 1 to 9 in fp32, an array a rank: their sums are exact."""
    return [torch.from_numpy(rng.integers(1, 10, N).astype(np.float32)) for _ in range(n)]


def neighbours(run, n):
    """AssertionError where a rank sends to another than the next."""
    for message in run.messages:
        assert message.receiver == (message.sender + 1) % n, (
            f"rank {message.sender} sends to rank {message.receiver}, expected the next, rank "
            f"{(message.sender + 1) % n}")


@pytest.mark.parametrize("n, N", [(3, 5), (2, 1), (4, 1000)])
def test_exchange(subject, rng, agree, n, N):
    out = arrays(rng, n, N)
    into = [torch.zeros(N) for _ in range(n)]
    run = subject.ranks("exchange", list(zip(out, into, strict=True)))
    for r in range(n):
        agree(into[r], out[r - 1], what=f"n = {n}: what rank {r} has in `into`", mistakes={
            "each rank sends to the left, and receives from the right": out[(r + 1) % n],
            "a rank keeps its own array": out[r],
            "nothing is received": torch.zeros(N)})
    neighbours(run, n)
    for r in range(n):
        count = sum(message.sender == r for message in run.messages)
        assert count == 1, f"exchange: rank {r} sends {count} messages, expected one"


def test_exchange__waits(subject, rng, agree):
    """A rank that returns before its send is over writes over what is still being sent."""
    out = arrays(rng, 4, 7)
    run = subject.ranks(f"{DRIVER}:late_exchange", [(one.clone(), torch.zeros(7)) for one in out])
    for r in range(4):
        agree(run.results[r], out[r - 1], what=f"what rank {r} gets from rank {(r - 1) % 4}",
              mistakes={f"rank {(r - 1) % 4} writes over `out` after exchange has returned, and it "
                        f"was still being sent: wait for the send": torch.full((7,), -1.0)})
