"""s23 · Pipeline parallel: consecutive layers on each rank, and the order of the work as data

p: stages, a rank each   i: this stage   m: micro-batches   j: one of them
T_j: tokens of micro-batch j   C: model width
An action is ("F", j), the forward of micro-batch j, or ("B", j), its backward.
A schedule is a list of a stage's actions.
Between two stages T_j · C numbers go forward, and as many come back.
"""

import torch
import torch.distributed as dist

from layer3_system.pipeline import Stage

__all__ = ["backward_step", "forward_step", "gpipe", "needs", "one_forward_one_backward"]


def predict_steps() -> int:
    """Ticks until 8 stages are done with 32 micro-batches, all forwards before all backwards, where
    a forward takes one tick and a backward takes one tick."""
    # exercise: when does the last stage begin, how long does it work, what is left to do then?
    p = 8
    m = 32
    return 2 * (m + p - 1)


def predict_kept() -> list[int]:
    """Micro-batches kept at the peak by stages 0, 1, 2 and 3 under 1F1B, of 8 micro-batches."""
    # exercise: how many forwards does a stage do before its first backward?
    p = 4
    return [p - i for i in range(p)]


def gpipe(i: int, p: int, m: int) -> list[tuple[str, int]]:
    """The schedule of stage i of p: all forwards, then all backwards, each in the order of the
    micro-batches."""
    # exercise: m forwards, then m backwards
    return [(kind, j) for kind in "FB" for j in range(m)]


def one_forward_one_backward(i: int, p: int, m: int) -> list[tuple[str, int]]:
    """The schedule 1F1B of stage i of p, each kind in the order of the micro-batches.

    First as many forwards as there are stages after this one, but not more than m. Then one forward
    and one backward in turn until no forward is left, then the remaining backwards.
    """
    # exercise: the forwards at the beginning, the pairs, the backwards at the end
    ahead = min(p - 1 - i, m)
    pairs = [action for j in range(m - ahead) for action in (("F", ahead + j), ("B", j))]
    return [("F", j) for j in range(ahead)] + pairs + [("B", j) for j in range(m - ahead, m)]


def needs(kind: str, i: int, j: int, p: int) -> list[tuple[str, int, int]]:
    """The actions (kind, stage, micro-batch) that must be over before stage i of p can do its own
    action (kind, j), in any order.
    What a stage does next is its schedule's matter, not this."""
    # exercise: where does the input of a forward come from? And the two inputs of a backward?
    if kind == "F":
        return [("F", i - 1, j)] if i > 0 else []
    own = [("F", i, j)]
    return own + [("B", i + 1, j)] if i < p - 1 else own


def forward_step(stage: Stage, j: int) -> None:
    """The forward of micro-batch j: get its input, compute, keep (input, output) in stage.kept[j],
    and send the output on without waiting: (tensor, handle of the send) goes to stage.flights.

    The input must get a gradient, except on the first stage.
    The last stage sends nothing: its output is the loss, which it also adds to stage.total.
    """
    # exercise: from the stage before, through the layers, to the next stage
    x = stage.input(j) if stage.first else stage.empty(j)       # (T_j, C)
    if not stage.first:
        dist.recv(x, stage.i - 1)
        x.requires_grad_()
    y = stage.layers(x)                                         # (T_j, C)
    if stage.last:
        y = stage.loss(y, j)                                    # ()
        stage.total += y.item()
    else:
        stage.flights.append((y, dist.isend(y.detach(), stage.i + 1)))
    stage.kept[j] = x, y


def backward_step(stage: Stage, j: int) -> None:
    """The backward of micro-batch j: take (input, output) out of stage.kept, add to the weights'
    gradients, and send the input's gradient to the stage before, as forward_step sends.

    The gradient of the output comes from the next stage.
    On the last stage the output is the loss.
    """
    # exercise: the gradient comes, goes back through the layers, and on to the stage before
    x, y = stage.kept.pop(j)
    gradient = None
    if not stage.last:
        gradient = torch.empty_like(y)                          # (T_j, C)
        dist.recv(gradient, stage.i + 1)
    y.backward(gradient)
    if not stage.first:
        stage.flights.append((x.grad, dist.isend(x.grad, stage.i - 1)))
