"""Given code round the exercises of s21: what its ranks are asked to run."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.remote.recorder import mark
from lab.remote.spans import spans
from layer3_system.s21_data_parallel import (
    Adam,
    Buckets,
    GatherWeight,
    flatten,
    unflatten_into,
    zero_step,
)
from layer3_system.testing.training_models import Net, TrainLlama, llama_batch
from layer3_system.testing.training_stages import STAGES, Stage

TURNS = 15              # of a backward, for a picture of its fastest


def backward(gradients: list, orders: list, capacity: int, finish: bool = True) -> list:
    """[{"gradients": afterwards, "waited": whether a sum was waited for during backward}] of steps.

    gradients: this rank's, one a parameter, a list a step.  orders: in which they become complete,
    a list a step.  finish: by the lesson, or by the driver
    """
    parameters: list[Tensor] = [nn.Parameter(torch.zeros_like(one)) for one in gradients[0]]
    buckets = Buckets(parameters, capacity)
    steps = []
    for s, (own, order) in enumerate(zip(gradients, orders, strict=True)):
        for p in parameters:
            p.grad = None
        for k, i in enumerate(order):
            mark(f"step {s}, gradient {k}")
            parameters[i].grad = own[i].clone()
            buckets.ready(i)
        waited = any(one.waited for one in buckets.reductions.values())
        mark(f"step {s}, finish")
        if finish:
            buckets.finish()
        else:
            settle(buckets)
        steps.append({"gradients": [p.grad for p in parameters], "waited": waited})
    return steps


def settle(buckets: Buckets) -> None:
    """Finish by the driver, whatever was launched."""
    for p in buckets.parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    for b in range(len(buckets.buckets)):
        if b not in buckets.reductions:
            buckets.launch(b)
    for b, reduction in buckets.reductions.items():
        unflatten_into(reduction.wait(), buckets.gradients(b))
    buckets.start()


def zero_steps(weights: Tensor, gradients: list, lr: float, limit: float) -> dict:
    """Steps of `zero_step` from some weights (P,): norms, and the weights after each step."""
    n = dist.get_world_size()
    flat = flatten([weights], n)                                            # (N,)
    state = Adam(flat.view(n, -1)[dist.get_rank()])
    norms = []
    after = []
    for s, gradient in enumerate(gradients):
        mark(f"step {s}")
        norms.append(zero_step(flat, flatten([gradient], n), state, lr, limit))
        after.append(flat.clone())
    return {"norms": norms, "weights": after}


def sharded_gradient(weight: Tensor, upstream: Tensor) -> Tensor:           # shape, shape -> (k,)
    """The gradient of this rank's shard of a weight, where `upstream` is that of the whole."""
    n = dist.get_world_size()
    shard = flatten([weight], n).view(n, -1)[dist.get_rank()].clone().requires_grad_()
    whole = GatherWeight.apply(shard, tuple(weight.shape))
    mark("backward")
    (whole * upstream).sum().backward()
    return shard.grad


def train(stage: int, model: Net | TrainLlama, batches: list,
          capacity: int) -> tuple[Stage, list, list]:
    """(the ranks' stage, losses, norms) of a step a batch."""
    training = STAGES[stage](model, capacity)
    losses, norms = zip(*map(training.step, batches), strict=True)
    return training, list(losses), list(norms)


def train_net(stage: int, weights: list, batches: list, capacity: int = 60) -> dict:
    """Steps of a Net: losses, norms, and the weights in a row."""
    training, losses, norms = train(stage, Net(weights), batches, capacity)
    mark("weights")
    return {"losses": losses, "norms": norms, "weights": training.weights()}


def own_batches(lens: list[int], steps: int) -> list:
    """This rank's batches, of every n-th sequence."""
    own = lens[dist.get_rank()::dist.get_world_size()]
    return [llama_batch(own, seed) for seed in range(steps)]


def train_llama(stage: int, lens: list[int], steps: int = 3, dtype: str = "float32",
                capacity: int = 30_000) -> dict:
    """Steps of a TrainLlama on sequences of these lengths, dealt to the ranks in turn."""
    torch.manual_seed(0)
    model = TrainLlama().to(getattr(torch, dtype))
    training, losses, norms = train(stage, model, own_batches(lens, steps), capacity)
    return {"losses": losses, "norms": norms, "parts": training.parts, "peak": training.peak}


def compare_stages(lens: list[int]) -> dict:
    """{stage: what a step in bf16 keeps, and its loss}"""
    return {stage: train_llama(stage, lens, 1, "bfloat16") for stage in STAGES}


def lanes(lens: list[int], capacity: int) -> list:
    """When a rank computed and sent in a backward, as spans: of the fastest of TURNS steps at the
    rank that is done last. stage 0"""
    torch.manual_seed(0)
    training = Stage(TrainLlama(), capacity)
    turns = []
    for batch in own_batches(lens, TURNS):
        loss = training.loss(batch)
        dist.barrier()
        with spans(True) as rows:
            training.backward(loss)
        turns.append(rows)
    seconds = torch.tensor([max(ended for *_, ended in rows) - min(began for _, began, _ in rows)
                            for rows in turns])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return turns[int(seconds.argmin())]
