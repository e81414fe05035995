"""Ranks must run the same program: compared once, before the first exchange of data."""

import hashlib

SHOWN = 48              # bytes of a fact that a message can quote


def agree(facts):
    """RuntimeError, the same on every rank, where a rank has another fact than rank 0.

    facts: {what, such as "version of the course": text}. All ranks of the default group call it.
    """
    import torch
    import torch.distributed as dist

    rows = b"".join(row(text) for text in facts.values())
    own = torch.frombuffer(bytearray(rows), dtype=torch.uint8)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    first, *others = [bytes(one.tolist()) for one in every]
    for rank, other in enumerate(others, 1):
        if other != first:
            raise RuntimeError(difference(list(facts), first, other, rank))


def row(text):
    """A fact in SHOWN + 16 bytes: its beginning, and a digest of all of it."""
    data = text.encode()
    return data[:SHOWN].ljust(SHOWN, b"\0") + hashlib.blake2b(data, digest_size=16).digest()


def difference(names, first, other, rank):
    """Words for the first fact in which a rank differs from rank 0."""
    width = SHOWN + 16
    for i, name in enumerate(names):
        one, two = (rows[i * width:(i + 1) * width] for rows in (first, other))
        if one != two:
            texts = [r[:SHOWN].rstrip(b"\0").decode("utf-8", "replace") for r in (two, one)]
            if texts[0] == texts[1]:
                texts = [f"digest {r[SHOWN:].hex()[:8]}" for r in (two, one)]
            return (f"rank {rank} has another {name}: {texts[0]}, rank 0 has {texts[1]}")
    raise ValueError("no fact differs")
