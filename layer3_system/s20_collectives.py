"""s20 · Collectives: what n ranks send until all of them have the sum

n: ranks   r: this rank   N: numbers of an array   S: its bytes
A message costs alpha seconds to begin and beta seconds a byte.
"""

import torch
import torch.distributed as dist

__all__ = ["exchange"]


def exchange(out: torch.Tensor, into: torch.Tensor) -> None:    # (k,), (m,)
    """Send `out` to the next rank, and fill `into` with what the rank before sends.

    Rank n - 1 sends to rank 0. When it returns, `out` may be written to.
    """
    r = dist.get_rank()
    n = dist.get_world_size()
    # exercise: begin the send, receive, then wait until the send is over
    sending = dist.isend(out, (r + 1) % n)
    dist.recv(into, (r - 1) % n)
    sending.wait()
