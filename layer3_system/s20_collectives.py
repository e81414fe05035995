"""s20 · Collectives: what n ranks send until all of them hold the sum

n: ranks   r: this rank's number   N: numbers of an array   S: its bytes
alpha: seconds until a message begins to arrive   beta: seconds for each of its bytes
A ring sends 2 (n - 1) / n · S bytes from each rank, in 2 (n - 1) rounds; in no way does the busiest
rank send fewer.
A tree sends S in a round, in 2 · log2(n) rounds.
"""

import torch
import torch.distributed as dist

__all__ = ["WIRES", "all_gather", "all_reduce", "all_to_all", "broadcast_tree", "crossing",
           "exchange", "pieces", "reduce_scatter", "ring_seconds", "tree_rounds", "tree_seconds"]

# Bytes per second in one direction, from a GPU or a machine: NVIDIA's H100 and ConnectX-7 data
# sheets (NVLink 4: 900 GB/s both ways; InfiniBand NDR: 400 Gbit/s), PCI-SIG (PCIe 5, 16 lanes).
WIRES = {"NVLink 4": 450e9, "PCIe 5 x16": 64e9, "InfiniBand NDR": 50e9,
         "Ethernet, 100 Gbit/s": 12.5e9}


# ---- a message, and the array in pieces


def exchange(out: torch.Tensor, into: torch.Tensor) -> None:    # (k,), (m,)
    """Send `out` to the next rank, and fill `into` with what the rank before sends.

    Rank n - 1 sends to rank 0. When this returns, `out` may be written to.
    """
    r = dist.get_rank()
    n = dist.get_world_size()
    # exercise: begin the send, receive, then wait until the send is over
    sending = dist.isend(out, (r + 1) % n)
    dist.recv(into, (r - 1) % n)
    sending.wait()


def pieces(x: torch.Tensor, n: int) -> list[torch.Tensor]:
    """x in n pieces, views of it: the first N mod n have one number more."""
    if n < 1:
        raise ValueError(f"pieces: expected 1 rank or more, found {n}")
    return list(x.tensor_split(n))


def one_axis(name, x):
    """ValueError unless x has one axis."""
    if x.ndim != 1:
        raise ValueError(f"{name}: expected one axis, found shape {tuple(x.shape)}")


# ---- a ring


def predict_ring_bytes() -> int:
    """Bytes that rank 0 of 4 sends in an all-reduce by a ring, of 10 fp32 numbers a rank."""
    # exercise: which pieces does rank 0 pass on, in each of the two tours?
    return 4 * (2 * 10 - 3 - 3)


def reduce_scatter(x: torch.Tensor) -> torch.Tensor:            # (N,) -> (|p_r|,)
    """Piece r of the sum of all ranks' x, by a ring. x stays as it was."""
    one_axis("reduce_scatter", x)
    r = dist.get_rank()
    n = dist.get_world_size()
    # exercise: n - 1 rounds; piece p starts at rank p + 1 and ends at rank p, each adds its own
    parts = pieces(x.clone(), n)
    for s in range(n - 1):
        coming = torch.empty_like(parts[(r - s - 2) % n])
        exchange(parts[(r - s - 1) % n], coming)
        parts[(r - s - 2) % n] += coming
    return parts[r]


def all_gather(piece: torch.Tensor, N: int) -> torch.Tensor:    # (|p_r|,) -> (N,)
    """All ranks' pieces in order, by a ring. piece: piece r of N numbers"""
    one_axis("all_gather", piece)
    r = dist.get_rank()
    n = dist.get_world_size()
    # exercise: n - 1 rounds; pass on what came in the round before, in the first your own piece
    whole = piece.new_empty(N)                                  # (N,)
    parts = pieces(whole, n)
    parts[r].copy_(piece)
    for s in range(n - 1):
        exchange(parts[(r - s) % n], parts[(r - s - 1) % n])
    return whole


def all_reduce(x: torch.Tensor) -> torch.Tensor:                # (N,) -> (N,)
    """The sum of all ranks' x, on every rank: 2 (n - 1) / n of its bytes sent by each."""
    return all_gather(reduce_scatter(x), len(x))


# ---- each to each, and a tree


def all_to_all(out: list[torch.Tensor], into: list[torch.Tensor]) -> None:
    """out[q] goes to rank q, into[q] is filled by rank q. Sizes may differ, and be 0."""
    r = dist.get_rank()
    n = dist.get_world_size()
    # exercise: your own piece is copied; begin all sends, receive from each other rank, wait
    into[r].copy_(out[r])
    others = [q for q in range(n) if q != r]
    sending = [dist.isend(out[q], q) for q in others]
    for q in others:
        dist.recv(into[q], q)
    for each in sending:
        each.wait()


def broadcast_tree(x: torch.Tensor, root: int) -> None:
    """Fill every rank's x with the root's, in ceil(log2 n) rounds."""
    r = dist.get_rank()
    n = dist.get_world_size()
    if not 0 <= root < n:
        raise ValueError(f"broadcast_tree: expected a root from 0 to {n - 1}, found {root}")
    # exercise: in each round those that have x send it, each to one rank, `reach` further on
    place = (r - root) % n              # counted from the root
    reach = 1                           # ranks that have x
    while reach < n:
        if place < reach and place + reach < n:
            dist.send(x, (r + reach) % n)
        elif reach <= place < 2 * reach:
            dist.recv(x, (r - reach) % n)
        reach *= 2


# ---- what it costs


def tree_rounds(n: int) -> int:
    """ceil(log2 n): rounds in which what one rank has reaches all n."""
    return (n - 1).bit_length()


def ring_seconds(n: int, S: float, alpha: float, beta: float) -> float:
    """An all-reduce of S bytes by a ring."""
    return 2 * (n - 1) * (alpha + S / n * beta)


def tree_seconds(n: int, S: float, alpha: float, beta: float) -> float:
    """An all-reduce of S bytes by a tree: sums go up to the root, then down again."""
    return 2 * tree_rounds(n) * (alpha + S * beta)


def crossing(n: int, alpha: float, beta: float) -> float:
    """Bytes from which on the ring is faster than the tree; 0 (always) up to 3 ranks."""
    rounds = tree_rounds(n)
    return alpha / beta * (n - 1 - rounds) / (rounds - (n - 1) / n) if n > 2 else 0.0


def choose_faster() -> str:
    """"ring" or "tree": which sums 1 MB over 64 ranks faster, where a message takes 10 µs to begin
    and a wire carries 50 GB/s?"""
    # exercise: 126 rounds of 16 kB, or 12 rounds of 1 MB
    return "tree"
