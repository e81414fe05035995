"""What a call of torch.distributed sends: bytes to each peer, as exact integers.

A message counts as it is sent.
A library's collective counts as the ring does it, in the pieces of
`torch.tensor_split`: o04's `sent_by` where the pieces are equal.
What a library really does may differ: NCCL has trees for small arrays, gloo halves and doubles.
"""

MESSAGES = ("send", "recv")


def split(N, n):
    """Sizes of the n pieces into which `tensor_split` cuts N numbers: the first N mod n have one
    more."""
    size, longer = divmod(N, n)
    return (size + 1,) * longer + (size,) * (n - longer)


def all_reduce(pieces, r, n, root):
    """Two tours of the ring: all but piece r of the sum, then all but the next rank's."""
    N = sum(pieces)
    parts = split(N, n)
    return {(r + 1) % n: 2 * N - parts[r] - parts[(r + 1) % n]}


def reduce_scatter(pieces, r, n, root):
    return {(r + 1) % n: sum(pieces) - pieces[r]}


def all_gather(pieces, r, n, root):
    return {(r + 1) % n: sum(pieces) - pieces[(r + 1) % n]}


def all_to_all(pieces, r, n, root):
    return {q: pieces[q] for q in range(n) if q != r}


def broadcast(pieces, r, n, root):
    """From the root around the ring; the last one passes nothing on."""
    return {(r + 1) % n: sum(pieces)} if (r + 1) % n != root else {}


def reduce(pieces, r, n, root):
    """Around the ring to the root, which passes nothing on."""
    return {(r + 1) % n: sum(pieces)} if r != root else {}


def gather(pieces, r, n, root):
    return {root: sum(pieces)} if r != root else {}


def scatter(pieces, r, n, root):
    """Every rank's piece has the size of this rank's own."""
    return {q: sum(pieces) for q in range(n) if q != root} if r == root else {}


def barrier(pieces, r, n, root):
    return {}


COLLECTIVES = {f.__name__: f for f in (all_reduce, reduce_scatter, all_gather, all_to_all,
                                       broadcast, reduce, gather, scatter, barrier)}


def sent(operation, rank):
    """{peer: bytes} that a rank sends in an Operation; peers and rank are numbers in the world."""
    if operation.name in MESSAGES:
        count = operation.numbers * operation.itemsize
        return {operation.peer: count} if operation.name == "send" else {}
    n = len(operation.ranks)
    r = operation.ranks.index(rank)
    numbers = COLLECTIVES[operation.name](operation.pieces, r, n, operation.peer)
    return {operation.ranks[q]: count * operation.itemsize
            for q, count in numbers.items() if q != r}
