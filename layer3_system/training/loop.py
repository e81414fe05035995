"""The loop of a training, made of the lesson's parts, and what it needs to go on after a stop."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

import lab
from layer3_system import s30_training
from layer3_system.training.arms import Arm
from layer3_system.training.data import Loader
from layer3_system.training.llama import TrainableLlama, decayed, load

CALM = 2000             # finite steps after which a loss scale doubles: torch's GradScaler's


class TrainingError(RuntimeError):
    """A training that cannot go on, in words."""


@dataclass(frozen=True)
class Options:
    """steps: in all.  warm: of them, in which the rate goes up.  parts: micro-batches a step."""

    steps: int
    warm: int
    peak: float                                 # the highest learning rate
    floor: float = 0.0
    parts: int = 1
    limit: float = 1.0                          # of the gradient's norm
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.1


class StepRecord(NamedTuple):
    """What a step did. loss: mean of its tokens.  rate: of learning.  norm: before clipping."""

    step: int
    loss: float
    rate: float
    norm: float
    tokens: int


class Parts(NamedTuple):
    """The functions that a step is made of: the course's, or others of the same signatures."""

    rate: Callable[..., float] = s30_training.rate
    adamw_step: Callable[..., None] = s30_training.adamw_step
    accumulate: Callable[..., tuple[float, int]] = s30_training.accumulate
    unscale_and_clip: Callable[..., tuple[float, bool]] = s30_training.unscale_and_clip

    def sources(self) -> dict[str, str]:
        """{function: "mine" or "the course's"}"""
        return {name: "mine" if part.__module__.startswith("desk.") else "the course's"
                for name, part in self._asdict().items()}


def own_parts() -> Parts:
    """The learner's functions where they passed on this version of the course, else the course's.
    """
    own = {name: lab.candidate_function("s30_training", name) for name in Parts._fields}
    return Parts(**{name: part for name, part in own.items() if part is not None})


class Training:
    """A model, the text that it learns, and AdamW's two means of each weight.
    ValueError where the text has tokens that the model does not know."""

    def __init__(self, model: TrainableLlama, loader: Loader, options: Options,
                 parts: Parts | None = None) -> None:
        if (largest := int(loader.text.max())) >= model.m.V:
            raise ValueError(f"Training: the text has token {largest}, expected less than the "
                             f"model's V = {model.m.V}: another tokenizer made it")
        self.parts = Parts() if parts is None else parts
        self.model = model
        self.loader = loader
        self.options = options
        self.m = {name: torch.zeros_like(w) for name, w in model.weights.items()}
        self.v = {name: torch.zeros_like(w) for name, w in model.weights.items()}
        self.done = 0                           # steps
        self.skipped = 0                        # of them, since a scaled gradient overflowed
        self.calm = 0                           # since the scale changed

    def step(self) -> StepRecord:
        """One step.
        TrainingError where the loss or a gradient is not a number."""
        o = self.options
        batches = [self.loader.next() for _ in range(o.parts)]
        weights = list(self.model.weights.values())
        loss, tokens = self.parts.accumulate(batches, self.model.loss_sum, weights)
        norm, finite = self.parts.unscale_and_clip([w.grad for w in weights], 1.0, o.limit)
        lr = self.parts.rate(self.done, o.warm, o.steps, o.peak, o.floor)
        if finite:
            self.update(lr)
        elif self.model.arm.scale <= 1 or math.isnan(loss):
            raise TrainingError(self.fault(loss))
        else:
            self.skipped += 1
        self.rescale(finite)
        self.done += 1
        return StepRecord(self.done - 1, loss, lr, norm, tokens)

    def rescale(self, finite: bool) -> None:
        """Halve the loss scale after an overflow, double it after CALM steps without one."""
        arm = self.model.arm
        self.calm = self.calm + 1 if finite else 0
        if arm.scale > 1 and (not finite or self.calm == CALM):
            self.model.arm = arm._replace(scale=arm.scale * (2 if finite else 0.5))
            self.calm = 0

    @torch.no_grad()
    def update(self, lr: float) -> None:
        """AdamW on every weight that has a gradient."""
        o = self.options
        for name, w in self.model.weights.items():
            if w.grad is not None:
                self.parts.adamw_step(
                    w, w.grad, self.m[name], self.v[name], self.done - self.skipped + 1, lr,
                    o.betas, o.eps, o.decay if decayed(w) else 0.0)
        self.model.round()

    def run(self, report: Callable[[StepRecord], None] | None = None) -> list[StepRecord]:
        """All steps that are left."""
        rows = []
        while self.done < self.options.steps:
            rows.append(self.step())
            if report is not None:
                report(rows[-1])
        return rows

    def fault(self, loss: float) -> str:
        """What is not finite, and where first, in the order of the weights."""
        for name, w in self.model.weights.items():
            wrong = 0 if w.grad is None else int((~w.grad.isfinite()).sum())
            if wrong:
                return (f"step {self.done}: the loss is {loss:.4g}, and {wrong:,} of {w.numel():,} "
                        f"numbers are not finite in the gradient of {name}, the first weight with "
                        f"one; the weights are those after step {self.done - 1}")
        return f"step {self.done}: the loss is {loss:.4g}, and every gradient is finite"

    def state(self) -> dict[str, Any]:
        """All that the next step depends on."""
        return {"weights": {name: w.detach() for name, w in self.model.weights.items()},
                "m": self.m, "v": self.v, "done": self.done, "skipped": self.skipped,
                "calm": self.calm, "arm": self.model.arm._asdict(), "place": self.loader.place()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state.
        ValueError where it is one of another text or seed."""
        self.loader.seek(state["place"])
        load(state["weights"], self.model)
        self.m = state["m"]
        self.v = state["v"]
        self.done = state["done"]
        self.skipped = state["skipped"]
        self.calm = state["calm"]
        self.model.arm = Arm(**state["arm"])
