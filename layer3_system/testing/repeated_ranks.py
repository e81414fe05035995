"""A lesson's program on each rank, again and again until the ranks are ended from outside."""

import importlib
import os

import torch.distributed as dist


def repeat(program: str, arguments: tuple) -> None:
    """Prints this rank's process ID when the program, `module:function`, has run once: then all
    ranks have met."""
    module, _, name = program.partition(":")
    function = getattr(importlib.import_module(module), name)
    function(*arguments)
    os.write(1, f"rank {dist.get_rank()} is process {os.getpid()}\n".encode())  # in one piece
    while True:
        function(*arguments)
