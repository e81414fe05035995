"""s32 · Rollout and training together: a model that learns from its own answers

P: questions of a step   G: answers to each   B: all answers, P·G   T: tokens of the longest
W: ranks   N, K: rows and columns of a matrix
A step writes P·G answers, judges them, and makes one update.
Weights go from bands of rows, as training keeps them, to the layout of serving: a matrix that is
served in bands of columns sends N·K·(W - 1)/W numbers; to gather it everywhere would send N·K·(W -
1).
"""

import torch
import torch.distributed as dist
from torch import Tensor

from layer3_system.rl.layout import Piece, Place, part, window

__all__ = ["advantages", "apply_plan", "policy_loss", "reshard_plan"]


# ---- what an answer teaches


def advantages(rewards: Tensor, eps: float = 1e-4) -> Tensor:       # (P, G) -> (P, G)
    """How much better each answer is than the others to the same question, in units of their
    spread: (r - mean) / (σ + eps), with the population's σ. Shao et al. 2024, section 4.1
    """
    # exercise: mean and σ of each question's answers
    mean = rewards.mean(1, keepdim=True)                            # (P, 1)
    spread = rewards.std(1, correction=0, keepdim=True)             # (P, 1)
    return (rewards - mean) / (spread + eps)


def policy_loss(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor,
                clip: float = 0.2) -> Tensor:
    """The loss whose gradient makes good answers likelier, a scalar.

    new, old: log-probabilities (B, T) of the same tokens, by the model that learns and by the one
    that wrote them; no gradient goes to `old`.  advantages: (B,).  mask: (B, T), True for tokens of
    answers; at least one.
    Minus the mean over these tokens of min(ρ·A, ρ'·A): ρ is the ratio of the probabilities, ρ' is ρ
    held between 1 - clip and 1 + clip.
    Schulman et al. 2017, equation 7
    """
    # exercise: the ratio; both products; the smaller one; the mean over tokens that count
    ratio = (new - old).exp()                                       # (B, T)
    A = advantages[:, None]                                         # (B, 1)
    gain = torch.minimum(ratio * A, ratio.clamp(1 - clip, 1 + clip) * A)
    return -gain[mask].mean()


# ---- placing the roles


def predict_idle_share() -> float:
    """The share of all rank-seconds in which a rank waits: 4 ranks write answers and 4 train.

    On all 8 ranks, the answers of a step would take 60 s and its update 20 s; on half of the ranks,
    each takes twice as long.
    Both groups work at the same time, and a step ends when both are done.
    """
    # exercise: how long does a step last, and which ranks wait how long?
    step = max(60 * 2, 20 * 2)
    return (4 * (step - 60 * 2) + 4 * (step - 20 * 2)) / (8 * step)


def predict_moved_share() -> float:
    """The share of a matrix's numbers that change their rank, from training to serving: both on the
    same 4 ranks, each with a quarter of the rows in training, and a quarter of the rows in serving.
    """
    # exercise: which rows does rank 2 have, and which does it need?
    return 0.0


# ---- from one layout to another


def reshard_plan(shape: tuple[int, int], source: str, target: str, W: int) -> list[Piece]:
    """Which rectangles of a matrix go where: [(from rank, to rank, place)], none empty.

    place: (rows, columns) of the whole matrix, each a pair (begin, end).  source: a layout that has
    each number once.
    Together the pieces for a rank are its part in the layout `target`; what it has already is one
    of them, and costs nothing.
    """
    if source == "all":
        raise ValueError("reshard_plan: expected a source that has each number once, found 'all'")
    # exercise: for each pair of ranks, where do the part of one and the part of the other overlap?
    plan = []
    for r in range(W):
        rows, columns = part(target, shape, r, W)
        for q in range(W):
            own_rows, own_columns = part(source, shape, q, W)
            height = max(rows[0], own_rows[0]), min(rows[1], own_rows[1])
            width = max(columns[0], own_columns[0]), min(columns[1], own_columns[1])
            if height[0] < height[1] and width[0] < width[1]:
                plan.append((q, r, (height, width)))
    return plan


def apply_plan(plan: list[Piece], own: Tensor, here: Place, there: Place) -> Tensor:
    """This rank's part in the new layout; every rank calls it with the same plan.

    own: its part in the old one, which lies at `here` of the whole matrix.  there: where the
    result lies.
    One message for each piece that changes its rank.
    """
    rank = dist.get_rank()
    (top, bottom), (left, right) = there
    result = own.new_zeros(bottom - top, right - left)
    # exercise: copy what stays; begin every receive and send; wait; put what came in its place
    calls = []
    arrivals = []
    for source, target, place in plan:
        if source == target == rank:
            window(result, there, place).copy_(window(own, here, place))
        elif source == rank:
            calls.append(dist.isend(window(own, here, place).contiguous(), target))
        elif target == rank:
            arrivals.append((torch.empty_like(window(result, there, place)), place))
            calls.append(dist.irecv(arrivals[-1][0], source))
    for call in calls:
        call.wait()
    for piece, place in arrivals:
        window(result, there, place).copy_(piece)
    return result
