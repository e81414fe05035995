"""Ranks must run the same program: compared once, before the first exchange of data."""

import hashlib

from lab import course, device

SHOWN = 48              # bytes of a fact that a message can quote


def meet(lesson, only_cpu=False, **facts):
    """Join the ranks that `torchrun` started, which must have one version of a lesson.
    The device
    of this rank: "cuda" and NCCL where each rank of its machine has a GPU, else "cpu" and gloo."""
    import torch
    import torch.distributed as dist

    need_torchrun(lesson)
    cuda = not only_cpu and torch.cuda.is_available()
    cuda = cuda and torch.cuda.device_count() >= device.ranks_here()
    dist.init_process_group("nccl" if cuda else "gloo")
    if cuda:
        torch.cuda.set_device(dist.get_node_local_rank())
    else:
        torch.set_num_threads(1)
    place = "cuda" if cuda else "cpu"
    agree({"version of the course": course.VERSION, "lesson": lesson,
           "program": course.find(lesson).sources["python"], **facts}, place)
    return place


def need_torchrun(lesson):
    """End the program with one line where `torchrun` did not start it."""
    if not device.ranks_here():
        raise SystemExit("this process is no rank: start it by torchrun --nproc-per-node …, as "
                         f"{lesson} shows")


def agree(facts, place="cpu"):
    """RuntimeError, the same on every rank, where a rank has another fact than rank 0.

    facts: {what, such as "version of the course": text}. All ranks of the default group call it.
    place: the device from which they exchange data
    """
    import torch
    import torch.distributed as dist

    rows = b"".join(row(text) for text in facts.values())
    own = torch.frombuffer(bytearray(rows), dtype=torch.uint8).to(place)
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
