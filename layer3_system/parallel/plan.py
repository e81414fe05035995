"""What every rank is told at its start, and the part of the model that it makes of it"""

import hashlib
import json
from typing import NamedTuple

import torch
from torch import Tensor

from lab import device
from lab.course import VERSION
from layer1_kernels import Kernels, kernels
from layer2_graph import Config, cpu_kernels, read_config, read_weights
from layer3_system.s22_tensor_parallel import TensorParallelLlama, local_config, share

__all__ = ["Plan", "facts", "part_of"]


class Plan(NamedTuple):
    """What every rank is told, as JSON on the command line of its process."""

    folder: str                 # of the model
    n: int                      # ranks
    table: str = "torch"        # of kernels
    desk: str | None = None     # of the learner, for the table "mine"
    dtype: str = "float32"
    ignore: tuple[str, ...] = ()
    port: int = 0               # on this machine, where the ranks meet
    parent: int = 0             # process of rank 0

    def text(self) -> str:
        return json.dumps(self)

    @property
    def on_gpus(self) -> bool:
        """Whether every rank has a GPU."""
        return torch.cuda.is_available() and torch.cuda.device_count() >= self.n

    @property
    def simulated(self) -> bool:
        """Whether kernels run in the simulator."""
        return self.table != "torch" and not self.on_gpus

    @property
    def place(self) -> str:
        """Words for where the ranks compute."""
        return "cuda" if self.on_gpus else "cpu"

    def device(self, r: int) -> str:
        return f"cuda:{r}" if self.on_gpus else "cpu"

    def ops(self) -> Kernels:
        """The table of kernels."""
        if self.simulated:
            device.use_simulator()
        if self.table == "torch" and not self.on_gpus:
            return cpu_kernels()
        return kernels(self.table, self.desk)

    def read(self) -> tuple[Config, dict[str, Tensor]]:
        """(Config, weights) of the whole model, on the CPU.
        ModelError if they cannot be read."""
        config = read_config(self.folder, self.ignore)
        return config, read_weights(self.folder, config, getattr(torch, self.dtype))


def part_of(plan: Plan, config: Config, weights: dict[str, Tensor], r: int) -> TensorParallelLlama:
    """Rank r's part of a model. config, weights: of the whole"""
    place = plan.device(r)
    own = {name: w.to(place) for name, w in share(weights, config, r, plan.n).items()}
    return TensorParallelLlama(local_config(config, plan.n), own, plan.ops())


def facts(weights: dict[str, Tensor]) -> dict[str, str]:
    """What all ranks must have alike."""
    digest = hashlib.blake2b(digest_size=16)
    for name, w in weights.items():
        digest.update(f"{name} {w.dtype} {tuple(w.shape)}".encode())
        digest.update(w.contiguous().view(torch.uint8).numpy().tobytes())
    return {"version of the course": VERSION, "copy of the weights": digest.hexdigest()}
