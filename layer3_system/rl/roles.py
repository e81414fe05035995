"""Roles of reinforcement learning: what writes answers, what judges them, what learns.

P: questions   G: answers to each   B: all answers, P·G   T: tokens of the longest   V: vocabulary
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from layer1_kernels import kernels
from layer2_graph import Config, Llama, Tokenizer
from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.s07_engine import Engine
from layer3_system.s30_training import adamw_step, unscale_and_clip
from layer3_system.training.llama import TrainableLlama, training_kernels

TOKENS = 14             # of an answer, at most
BETAS = 0.9, 0.95       # of AdamW's means
EPS = 1e-8
LIMIT = 1.0             # of the gradient's norm


class Answer(NamedTuple):
    """tokens: with the one that ends it, if it came.  logprobs: of each token, by the engine.
    version: updates that the weights had had which wrote it"""

    role: str
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    text: str
    version: int


def question(role: str) -> str:
    """A question that a story of this role answers."""
    return f"Do you know a story about a {role}?"


def contains_role(answer: Answer) -> float:
    """The reward: 1 if the role is a word of the text that a client would read, else 0."""
    return float(re.search(rf"\b{answer.role}\b", answer.text) is not None)


class Rollout:
    """Writes answers: the engine of s07, with a copy of the weights and the number of updates that
    this copy has had."""

    def __init__(self, m: Config, weights: dict[str, Tensor], words: Tokenizer) -> None:
        own = {name: w.detach().clone() for name, w in weights.items()}
        pool = PrefixPool(512)
        self.words = words
        self.engine = Engine(Llama(m, own, kernels("torch")), words, pool,
                             Scheduler(pool, max_seqs=128, budget=1024))
        self.weights = own
        self.version = 0

    def load_weights(self, weights: dict[str, Tensor], version: int) -> None:
        """Take over weights, in place.
        ValueError while a request runs: it would be written by two models."""
        if self.engine.busy:
            raise ValueError("load_weights: expected an engine without requests, found some that "
                             "run: a half of each would be another model's")
        for name, own in self.weights.items():
            own.copy_(weights[name].detach())
        self.version = version

    @torch.inference_mode()
    def write(self, roles: list[str], G: int, seed: int) -> list[Answer]:
        """G answers to the question for each role, one role after the other.

        The engine's log-probabilities are those of raw scores, so tokens are drawn at temperature
        1, and of all tokens: else they would not be those of the draw.
        """
        requests = []
        for i, role in enumerate(roles):
            prompt = self.words.chat([{"role": "user", "content": question(role)}])
            params = SamplingParams(n=G, max_tokens=TOKENS, logprobs=0, seed=1000 * seed + i)
            # pages of older weights have other keys: a salt keeps them apart
            requests += self.engine.submit(prompt, params, salt=f"weights {self.version}")
        while self.engine.busy:
            self.engine.step()
        return [self.answer(request, roles[i // G]) for i, request in enumerate(requests)]

    def answer(self, request: Request, role: str) -> Answer:
        """A finished request as an Answer.
        ValueError where it was aborted."""
        if request.reason not in ("stop", "length"):
            raise ValueError(f"an answer about a {role} ended by {request.reason}: "
                             f"{request.error}; it is no answer to learn from")
        logprobs = [row[token] for row, token in zip(request.logprobs, request.output, strict=True)]
        return Answer(role, request.prompt, request.output, logprobs,
                      self.words.decode(request.output), self.version)


def padded(rows: list[list[float]]) -> Tensor:                      # -> (B, T)
    """Rows of different lengths, with zeros after their ends."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def log_probs(model: TrainableLlama, answers: list[Answer]) -> Tensor:      # -> (B, T)
    """The logarithm of the probability of each token of each answer, with gradients; after an
    answer's end they mean nothing."""
    tokens = padded([[*a.prompt, *a.tokens] for a in answers])      # (B, N)
    scores = torch.log_softmax(model.logits(tokens[:, :-1]), -1)    # (B·(N - 1), V)
    each = scores.gather(1, tokens[:, 1:].reshape(-1, 1)).view(len(answers), -1)    # (B, N - 1)
    T = max(len(a.tokens) for a in answers)
    first = torch.tensor([len(a.prompt) - 1 for a in answers])
    at = first[:, None] + torch.arange(T)                           # (B, T)
    return each.gather(1, at.clamp(max=each.shape[1] - 1))


def distance(new: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """How far the actor is from the reference on the mask's tokens, a scalar from 0: the estimate
    of the Kullback-Leibler divergence in Shao et al. 2024, equation 4. All (B, T)"""
    difference = (reference - new)[mask]
    return (difference.exp() - difference - 1).mean()


class Actor:
    """The model that learns, with AdamW's two means of each weight. version: its updates so far"""

    def __init__(self, m: Config, weights: dict[str, Tensor], lr: float) -> None:
        own = {name: w.detach().float().clone() for name, w in weights.items()}
        self.model = TrainableLlama(m, own, training_kernels("torch"))
        self.weights = self.model.weights
        self.lr = lr
        self.version = 0
        self.m = {name: torch.zeros_like(w) for name, w in own.items()}
        self.v = {name: torch.zeros_like(w) for name, w in own.items()}

    def learn(self, answers: list[Answer], loss: Callable[[Tensor], Tensor]) -> Tensor:
        """One update, to make loss(new) smaller: the log-probabilities `new` (B, T) before it.

        ValueError where the gradient is not finite; the weights are then as before.
        """
        for w in self.weights.values():
            w.grad = None
        new = log_probs(self.model, answers)
        loss(new).backward()
        norm, finite = unscale_and_clip([w.grad for w in self.weights.values()], 1.0, LIMIT)
        if not finite:
            raise ValueError(f"update {self.version + 1}: the gradient's norm is {norm}")
        self.version += 1
        with torch.no_grad():
            for name, w in self.weights.items():
                adamw_step(w, w.grad, self.m[name], self.v[name], self.version, self.lr, BETAS,
                           EPS, 0.0)
        return new.detach()
