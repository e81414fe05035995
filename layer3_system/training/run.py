"""A small training with all that makes one hard to go on with: Adam, warm-up, a place in the text,
dropout.
`TrainingRun` is one process; of a `ShardedRun` each rank keeps a share of Adam's part.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor

from layer2_graph.config import Config
from layer3_system.s21_data_parallel import Adam, flatten, unflatten_into, zero_step
from layer3_system.s30_training import accumulate, adamw_step, rate
from layer3_system.training.data import Batch, Loader
from layer3_system.training.llama import TrainableLlama, new_weights, training_kernels
from layer3_system.training.loop import TrainingError

TINY = Config(L=1, C=16, H=2, G=1, D=8, F=32, V=50, eps=1e-5, theta=1e4, room=16, tied=True)
WARM = 8                # steps in which the rate goes up; it then falls until step ALL
ALL = 1000
PEAK = 2e-2             # the highest rate
BETAS = 0.9, 0.95       # of the two means
EPS = 1e-8


def random_text(m: Config, length: int = 400) -> Tensor:            # -> (length,)
    """Tokens with an order that can be learnt: most are the one before, and one."""
    generator = torch.Generator().manual_seed(31)
    steps = (torch.rand(length, generator=generator) < 0.8).long()
    return steps.cumsum(0) % m.V


class DroppingLlama(TrainableLlama):
    """What each layer gives out loses a share of its numbers, drawn from a generator."""

    def __init__(self, m: Config, share: float, generator: torch.Generator) -> None:
        super().__init__(m, new_weights(m, 0), training_kernels("torch"))
        self.share = share
        self.generator = generator

    def layer(self, B: int, x: Tensor, weights: list[Tensor]) -> Tensor:   # (B·T, C) -> (B·T, C)
        y = super().layer(B, x, weights)
        stays = torch.rand(y.shape, generator=self.generator) >= self.share
        return y * stays / (1 - self.share)


class TrainingRun:
    """A training in one process.

    weights, m, v: {name: Tensor}.  step: the next one's number, from 0.  data: batches, in order.
    generator: decides what dropout drops
    """

    def __init__(self, m: Config = TINY, share: float = 0.1) -> None:
        self.generator = torch.Generator().manual_seed(1)
        self.model = DroppingLlama(m, share, self.generator)
        self.weights = self.model.weights
        self.m = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self.v = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self.step = 0
        self.data = Loader(random_text(m), B=2, T=9, seed=0)

    def train(self, steps: int) -> list[float]:
        """Some steps, and the loss of each."""
        return [self.train_step() for _ in range(steps)]

    def train_step(self) -> float:
        loss, _ = accumulate([self.data.next()], self.model.loss_sum, list(self.weights.values()))
        lr = rate(self.step, WARM, ALL, PEAK, 0.0)
        self.step += 1
        with torch.no_grad():
            for name, w in self.weights.items():
                adamw_step(w, w.grad, self.m[name], self.v[name], self.step, lr, BETAS, EPS, 0.0)
        return loss


class ShardedRun:
    """A training on all ranks, which need a process group.
    Of the weights in fp32 and Adam's two means each rank keeps the part of one row that is its
    own: ZeRO's first stage, by s21.

    weights, m, v: {"row": this rank's part (k,)}; the rest as in TrainingRun.
    B: sequences of all ranks
    """

    def __init__(self, m: Config = TINY, share: float = 0.0, B: int = 6) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.generator = torch.Generator().manual_seed(1 + self.rank)
        self.model = DroppingLlama(m, share, self.generator)
        self.count = sum(w.numel() for w in self.model.weights.values())
        self.row = flatten(self.whole(), self.size)                 # (N,)
        self.adam = Adam(self.row.view(self.size, -1)[self.rank])
        self.weights = {"row": self.adam.master}
        self.m = {"row": self.adam.mean}
        self.v = {"row": self.adam.variance}
        self.data = Loader(random_text(m), B, T=9, seed=0)

    def whole(self) -> list[Tensor]:
        """The model's weights, as they are on every rank."""
        return [w.data for w in self.model.weights.values()]

    @property
    def step(self) -> int:
        return self.adam.steps

    @step.setter
    def step(self, number: int) -> None:
        self.adam.steps = number

    def suspect(self) -> str:
        """Which weight has numbers that are not finite, the first in their order."""
        for name, w in self.model.weights.items():
            if not w.isfinite().all():
                return f"the first weight that is not finite is {name}"
        return "all weights are finite"

    def spread(self) -> None:
        """After this rank's part was restored: the whole weights from all parts."""
        dist.all_gather_into_tensor(self.row, self.adam.master)
        unflatten_into(self.row, self.whole())

    def train(self, steps: int) -> list[float]:
        """Some steps, and the loss of each over all ranks' sequences."""
        return [self.train_step() for _ in range(steps)]

    def train_step(self) -> float:
        """TrainingError where the loss is not a number, on every rank and before the update."""
        whole = self.data.next()
        own = Batch(whole.tokens[self.rank::self.size], whole.targets[self.rank::self.size])
        weights = list(self.model.weights.values())
        for w in weights:
            w.grad = None
        loss = torch.stack([0 * w.sum() for w in weights]).sum()
        if len(own.tokens):                     # else there are more ranks than sequences
            loss = self.model.loss_sum(own)[0] / whole.tokens.numel()
        loss.backward()
        total = loss.detach().reshape(1)
        dist.all_reduce(total)
        if not math.isfinite(total.item()):
            raise TrainingError(f"step {self.step}: the loss is {total.item()}; {self.suspect()}")
        gradient = flatten([w.grad for w in weights], self.size)    # (N,)
        zero_step(self.row, gradient, self.adam, rate(self.step, WARM, ALL, PEAK, 0.0), 1.0)
        unflatten_into(self.row, self.whole())
        return total.item()
