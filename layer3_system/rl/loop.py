"""The controller of reinforcement learning, whose step reads like the algorithm, and the gap.

The gap of a step is the mean |difference| between the log-probabilities of its answers' tokens by
the engine that wrote them and by the model that learns, before the update.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import lab
from layer2_graph import Tokenizer, read_config, read_weights
from layer2_graph.models import SMALL
from layer3_system import s32_rl_placement
from layer3_system.rl.roles import (
    Actor,
    Answer,
    Rollout,
    contains_role,
    distance,
    log_probs,
    padded,
)

BOUND = 1e-5            # of the gap, where both are fp32 and the weights are the same
DEAD = 5                # steps in a row that teach nothing, after which it stops
ROLES = "painter", "badger", "dancer", "farmer"         # of 20, those that the draft tells most of


class LearningError(RuntimeError):
    """A learning that cannot go on, in words."""


@dataclass(frozen=True)
class Options:
    """age: updates between the weights that write a step's answers and those that learn from them.
    every: updates between two deliveries of weights to the engine; 0: never
    near: weight of the distance to the reference, the actor as it was, in the loss; 0: no reference
    """

    G: int = 16
    lr: float = 3e-3
    clip: float = 0.2
    age: int = 0
    every: int = 1
    near: float = 0.0
    seed: int = 0
    roles: tuple[str, ...] = ROLES


class UpdateRecord(NamedTuple):
    """What a step did. rewards: the mean of each question.  seconds: of this process, to write and
    to learn"""

    step: int
    rewards: list[float]
    gap: float
    loss: float
    dead: int               # questions whose answers all got the same
    seconds: tuple[float, float]

    @property
    def reward(self) -> float:
        return sum(self.rewards) / len(self.rewards)


class Parts(NamedTuple):
    """What a step is made of: the course's, or others of the same signatures."""

    advantages: Callable[..., Tensor] = s32_rl_placement.advantages
    policy_loss: Callable[..., Tensor] = s32_rl_placement.policy_loss

    @classmethod
    def own(cls) -> "Parts":
        """The learner's where they passed on this version of the course, else the course's."""
        each = {name: lab.candidate_function("s32_rl_placement", name) for name in cls._fields}
        return cls(**{name: own for name, own in each.items() if own is not None})


def judged(answers: list[Answer], reward: Callable[[Answer], float], G: int) -> Tensor:  # -> (P, G)
    """The reward of each answer, a row a question.
    LearningError where one is not a number."""
    values = [reward(answer) for answer in answers]
    for i, (answer, value) in enumerate(zip(answers, values, strict=True)):
        if value != value:
            raise LearningError(f"reward of answer {i} is NaN: {answer.text[:60]!r}")
    return torch.tensor(values).view(-1, G)


class Learning:
    """An actor, an engine that writes, and the program that judges. folder: of the model"""

    def __init__(self, options: Options = Options(), parts: Parts = Parts(),   # noqa: B008
                 folder: Path = SMALL.parent / "draft",
                 reward: Callable[[Answer], float] = contains_role) -> None:
        m = read_config(folder)
        weights = read_weights(folder, m, torch.float32, "cpu")
        self.options = options
        self.parts = parts
        self.reward = reward
        self.actor = Actor(m, weights, options.lr)
        self.rollout = Rollout(m, weights, Tokenizer(folder, m))
        self.reference = Actor(m, weights, 0.0).model if options.near else None
        self.waiting: deque[list[Answer]] = deque()     # written, and not learnt from yet
        self.written = 0            # steps whose answers are there
        self.steps = 0
        self.dead = 0               # steps in a row that taught nothing
        self.answers: list[Answer] = []                 # of the newest step

    def write(self) -> list[Answer]:
        """The answers of the next step.
        With an age, they were written that number of steps ago; at the start that number of
        steps is written with the first weights."""
        o = self.options
        while len(self.waiting) <= o.age:
            seed = 10_000 * o.seed + self.written
            self.waiting.append(self.rollout.write(list(o.roles), o.G, seed))
            self.written += 1
        return self.waiting.popleft()

    def step(self) -> UpdateRecord:
        """Write, judge, learn, deliver.
        LearningError where the gap or the rewards forbid it."""
        began = time.process_time()
        answers = self.write()
        rewards = judged(answers, self.reward, self.options.G)      # (P, G)
        written = time.process_time()
        loss, gap = self.learn(answers, rewards)
        self.deliver()
        self.steps += 1
        self.answers = answers
        dead = int((rewards == rewards[:, :1]).all(1).sum())
        self.watch(gap, answers, dead)
        return UpdateRecord(self.steps, rewards.mean(1).tolist(), gap, loss, dead,
                   (written - began, time.process_time() - written))

    def learn(self, answers: list[Answer], rewards: Tensor) -> tuple[float, float]:
        """(loss, gap) of one update."""
        A = self.parts.advantages(rewards).flatten()                # (B,)
        old = padded([answer.logprobs for answer in answers])       # (B, T)
        mask = padded([[1.0] * len(answer.tokens) for answer in answers]) > 0
        losses = []

        def loss(new: Tensor) -> Tensor:
            value = self.parts.policy_loss(new, old, A, mask, self.options.clip)
            if self.reference is not None:
                with torch.no_grad():
                    reference = log_probs(self.reference, answers)
                value = value + self.options.near * distance(new, reference, mask)
            losses.append(value)
            return value

        new = self.actor.learn(answers, loss)
        return losses[0].item(), (new - old)[mask].abs().mean().item()

    def deliver(self) -> None:
        """Give the engine the new weights, as often as the options say."""
        every = self.options.every
        if every and self.actor.version % every == 0:
            self.rollout.load_weights(self.actor.weights, self.actor.version)

    def watch(self, gap: float, answers: list[Answer], dead: int) -> None:
        """LearningError where answers are not the actor's own, though they should be, or where
        nothing is learnt from them."""
        o = self.options
        before = self.actor.version - 1
        if o.age == 0 and o.every == 1 and gap > BOUND:
            raise LearningError(
                f"the gap is {gap:.2g} after update {before}, at most {BOUND:g}: the rollout "
                f"engine has not received the weights of update {before} (it has those of "
                f"{answers[0].version})")
        self.dead = self.dead + 1 if dead == len(o.roles) else 0
        if self.dead == DEAD:
            raise LearningError(f"all {dead} groups are dead for {DEAD} updates: nothing can be "
                                f"learnt from equal answers")
