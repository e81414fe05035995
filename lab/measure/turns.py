"""Benches that prepare beside each other and measure one at a time.

What they prepare takes compilers' time, and so do the files of tests; what they measure takes the
whole GPU.
"""

import fcntl
from contextlib import contextmanager

LOCKS = []              # the open file that this process shares with the other benches, if any


def prepare(path):
    """From now on this process prepares: no other that was given this file measures, until this
    one reaches `alone` or ends."""
    LOCKS.append(path.open("w"))
    fcntl.flock(LOCKS[-1], fcntl.LOCK_SH)


@contextmanager
def alone():
    """Inside, no other bench of the same run uses the GPU.
    A bench by itself does not wait."""
    for lock in LOCKS:
        fcntl.flock(lock, fcntl.LOCK_UN)        # two that both kept it would wait for ever
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        for lock in LOCKS:
            fcntl.flock(lock, fcntl.LOCK_UN)
