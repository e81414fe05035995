"""When this process computed and when it exchanged data, from PyTorch's profiler."""

import contextlib

SHORTEST = 10_000       # ns of an operation of PyTorch that is told


@contextlib.contextmanager
def spans(on):
    """A list that is filled at the end of the block with [name, began, ended], in seconds of the
    system's clock: gloo's exchanges, on its own threads, and the outermost operations of PyTorch.
    """
    rows = []
    if not on:
        yield rows
        return
    # torch.profiler.profile is the same, and imports torch._dynamo: seconds in each rank
    from torch.autograd.profiler import profile

    with profile(use_kineto=True, use_cpu=True) as profiler:
        yield rows
    end = 0                                     # of the outermost operation so far
    for event in sorted(profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        space, _, name = event.name().partition(":")
        began = event.start_ns()
        ended = began + event.duration_ns()
        if space == "gloo":
            rows.append([name, began / 1e9, ended / 1e9])
        elif space in ("aten", "c10d") and began >= end:
            end = ended
            if space == "aten" and event.duration_ns() >= SHORTEST:
                rows.append([name.removeprefix(":"), began / 1e9, ended / 1e9])
