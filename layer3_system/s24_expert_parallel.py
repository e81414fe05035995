"""s24 · Expert parallelism: each rank has some of the experts, and the tokens travel to them

W: ranks   r: this rank   E: experts; rank j has the E / W from j · E / W on
T: tokens of this rank; ranks differ in it   k: experts that a token chooses
C: model width   F: width of one expert   b: bytes of a number   R: rows that come to this rank
slot: a choice; slot i = token · k + choice, as in k20
With an even router a rank sends T·k·C·b·(W - 1) / W bytes to the experts, and as many come back.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import one_hot

from layer1_kernels import Kernels
from layer2_graph import MoELayer, MoELlama, moe_mlp, route

__all__ = ["Exchange", "ExpertParallelLlama", "combine", "dispatch", "exchange_rows", "moe_layer",
           "pack_rows", "run_experts", "sort_by_expert"]


# ---- what it costs


def predict_dispatch_rows() -> float:
    """Rows that leave a rank on their way to the experts, in one layer: 8 ranks, 4096 tokens on
    each, every token chooses 2 of 64 experts, and the router spreads them evenly."""
    # exercise: how many rows does a rank have to send, and which of them stay at home?
    return 4096 * 2 * 7 / 8


def choose_sends_less() -> str:
    """"ep" or "tp": which sends fewer rows for a token, where it chooses k = 8 experts and there
    are 4 ranks with tokens of their own?
    Count both ways, there and back."""
    # exercise: ep sends a row for each choice, tp a row to each other rank
    return "tp"


# ---- there


def sort_by_expert(experts: Tensor, E: int) -> tuple[Tensor, Tensor]:   # (T, k) -> (T·k,), (E,)
    """order: this rank's slots, those of expert 0 first; counts: how many each expert has.

    Both int64.
    The slots of one expert may stand in any order.
    ValueError if an expert is not from 0 to E - 1.
    """
    wrong = experts[(experts < 0) | (experts >= E)]
    if len(wrong):
        raise ValueError(f"sort_by_expert: an expert is {wrong[0]}, expected 0 to {E - 1}")
    # exercise: sort the slots by expert, and count, also experts that no token chose
    flat = experts.flatten()                                            # (T·k,)
    return flat.argsort(stable=True), torch.bincount(flat, minlength=E)


class Exchange(torch.autograd.Function):
    """Rows that go to other ranks, and whose gradients come back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int],
                receive: list[int]) -> Tensor:                          # (S, C) -> (R, C)
        """The rows that the ranks send here, those of rank 0 first.

        rows: for rank 0 first    send: how many for each rank    receive: how many from each
        """
        ctx.send = send
        ctx.receive = receive
        into = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(into, rows.contiguous(), receive, send)
        return into

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:      # (R, C) -> (S, C)
        """The gradient of `rows`, from that of what came here; None for send and receive."""
        # exercise: each row's gradient is where the row has gone. Fetch it
        gradient = upstream.new_empty(sum(ctx.send), upstream.shape[1])
        dist.all_to_all_single(gradient, upstream.contiguous(), ctx.send, ctx.receive)
        return gradient, None, None


def exchange_rows(rows: Tensor, send: list[int],
                  receive: list[int]) -> Tensor:            # (S, C) -> (R, C)
    """Send the first send[0] rows to rank 0, the next send[1] to rank 1, …; return those that come,
    receive[0] from rank 0 first.
    All ranks must call it, with 0 rows too.
    Gradients pass.

    ValueError unless there are as many rows as `send` says.
    """
    if sum(send) != len(rows):
        raise ValueError(f"exchange_rows: this rank has {len(rows)} rows, and send adds up to "
                         f"{sum(send)}")
    return Exchange.apply(rows, send, receive)


def dispatch(x: Tensor, order: Tensor, counts: Tensor,
             k: int) -> tuple[Tensor, Tensor]:              # (T, C) -> (R, C), (W, E/W)
    """Send each token's row to the k experts that it chose.

    order, counts: as from sort_by_expert.
    Returns the rows that come here, rank 0's first, each rank's in its own order, by expert; and
    received[j, e]: how many of rank j's are for this rank's expert number e, int64.
    """
    W = dist.get_world_size()
    if len(counts) % W:
        raise ValueError(f"dispatch: {len(counts)} experts do not divide by {W} ranks")
    # exercise: exchange the counts, sum both by rank, then exchange the rows
    received = torch.empty_like(counts)                                 # (E,)
    dist.all_to_all_single(received, counts)
    received = received.view(W, -1)                                     # (W, E/W)
    send = counts.view(W, -1).sum(1).tolist()
    receive = received.sum(1).tolist()
    return exchange_rows(x[order // k], send, receive), received


# ---- and back


def run_experts(rows: Tensor, received: Tensor, gate_up: Tensor, down: Tensor,
                ops: Kernels) -> Tensor:                    # (R, C) -> (R, C)
    """The answers of this rank's experts, in the order of the rows.

    received: (W, E/W), the rows of each rank for each expert here, which is how they are ordered
    gate_up: (E/W, 2·F, C)    down: (E/W, C, F)

    To g12's moe_mlp each row is a token that has chosen one expert.
    """
    if len(rows) == 0:
        return rows         # still of the graph, which new zeros would not be
    W, experts = received.shape
    chosen = torch.arange(experts, device=rows.device).repeat(W)        # (W·E/W,)
    chosen = chosen.repeat_interleave(received.flatten())[:, None]      # (R, 1)
    ones = torch.ones_like(chosen, dtype=torch.float32)
    return moe_mlp(rows, ones, chosen, gate_up, down, ops)


def combine(answers: Tensor, order: Tensor, counts: Tensor, received: Tensor,
            weights: Tensor) -> Tensor:                     # (R, C) -> (T, C)
    """Each token's answer: its experts', weighed and added up.

    answers: of this rank's experts, to the rows that came, in the order in which they came
    order, counts: of this rank's own slots    received: as from dispatch    weights: (T, k)
    """
    # exercise: send the answers back, bring them into the order of slots, weigh, add
    send = received.sum(1).tolist()
    receive = counts.view(len(received), -1).sum(1).tolist()
    rows = exchange_rows(answers, send, receive)            # (T·k, C), as in `order`
    slots = torch.empty_like(rows).index_copy(0, order, rows)           # (T·k, C)
    return (slots.view(*weights.shape, rows.shape[1]) * weights[..., None]).sum(1)


def moe_layer(x: Tensor, layer: MoELayer, k: int, ops: Kernels,
              renormalise: bool = True) -> Tensor:          # (T, C) -> (T, C)
    """g12's layer with its experts on all ranks. layer: all of the router, (E, C), and this rank's
    part of gate_up, (E/W, 2·F, C), and down, (E/W, C, F)"""
    weights, experts = route(x, layer.router, k, ops, renormalise)      # (T, k)
    order, counts = sort_by_expert(experts, len(layer.router))
    rows, received = dispatch(x, order, counts, k)
    answers = run_experts(rows, received, layer.gate_up, layer.down, ops)       # (R, C)
    return combine(answers, order, counts, received, weights).to(x.dtype)


class ExpertParallelLlama(MoELlama):
    """A Llama whose experts are on all ranks, with tokens of its own on each.
    All ranks must step as often, one without work with a token that is never read."""

    def experts(self, layer: MoELayer, y: Tensor) -> Tensor:            # (T, C) -> (T, C)
        return moe_layer(y, layer, self.config.k, self.ops, self.config.renormalise)


# ---- messages of one size


def pack_rows(x: Tensor, experts: Tensor, keep: Tensor, E: int,
         capacity: int) -> Tensor:                          # (T, C) -> (E, capacity, C)
    """The rows of each expert, in the order of g12's keep_within, then rows of zeros.

    experts: (T, k)    keep: (T, k), bool: which choices have room; at most `capacity` of an expert
    """
    # exercise: at which place does a choice that is kept stand among those of its expert?
    flat = experts.T.flatten()                                          # (k·T,) first choices first
    inside = keep.T.flatten()                                           # (k·T,)
    same = one_hot(flat, E) * inside[:, None]                           # (k·T, E)
    place = (same.cumsum(0) * same).sum(1) - 1                          # (k·T,)
    token = torch.arange(len(x), device=x.device).repeat(experts.shape[1])
    room = x.new_zeros(E, capacity, x.shape[1])
    room[flat[inside], place[inside]] = x[token[inside]]
    return room
