"""Two processes share a training step in five ways, and the kernel counts what each one sends.

`python -m day02_overview.wire_bytes` prints the bytes beside o04's formulas, and writes
wire_bytes.json.
Messages go through gloo over TCP; the count is the operating system's own, of the bytes that a
process gave its sockets.
"""

import json
import os
import socket
import struct
import tempfile
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from day01_roofline import LlamaShape
from day02_overview.autograd_memory import TorchLlama
from day02_overview.o04_training_math import COLLECTIVES, WAYS, sent_by, step_bytes

RECORD = Path(__file__).with_suffix(".json")
SHAPE = LlamaShape("two ranks", L=2, C=64, H=4, G=2, D=16, F=128, V=256, tied=True)
B, T, SIZE = 4, 64, 400_000         # sequences of the whole step, tokens of each; bytes
COUNTERS = 200      # where tcpi_bytes_sent and tcpi_bytes_retrans lie in Linux' struct tcp_info


def sent():
    """Bytes that this process has given to its TCP connections so far.
    OSError without Linux."""
    total = 0
    for link in list(Path("/proc/self/fd").iterdir()):
        if not os.path.islink(link) or not os.readlink(link).startswith("socket:"):
            continue                                        # a file, or closed meanwhile
        with socket.socket(fileno=os.dup(int(link.name))) as connection:
            if connection.type == socket.SOCK_STREAM and connection.family != socket.AF_UNIX:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                numbers, again = struct.unpack_from("QQ", info, COUNTERS)
                total += numbers - again
    return total


# ---- collectives of an array that all ranks have in equal pieces


def all_reduce(a):
    a = a.contiguous()
    dist.all_reduce(a)
    return a


def all_gather(a, axis=0):
    pieces = [torch.empty_like(a, memory_format=torch.contiguous_format)
              for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, a.contiguous())
    return torch.cat(pieces, axis)


def reduce_scatter(a, axis=0):
    """Around a ring by hand: gloo's own sends twice as much between two ranks."""
    W = dist.get_world_size()
    r = dist.get_rank()
    pieces = [piece.contiguous() for piece in a.chunk(W, axis)]
    passed = pieces[(r - 1) % W]
    for turn in range(2, W + 1):
        got = torch.empty_like(passed)
        for request in dist.batch_isend_irecv([
                dist.P2POp(dist.isend, passed, (r + 1) % W),
                dist.P2POp(dist.irecv, got, (r - 1) % W)]):
            request.wait()
        passed = got + pieces[(r - turn) % W]
    return passed


def across(forward, backward):
    """A function for autograd, made of what goes over the wires in forward and in backward."""
    class Across(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return forward(x)

        @staticmethod
        def backward(ctx, upstream):
            return backward(upstream)

    return Across.apply


def same(x):
    return x.view_as(x)


# ---- five ways to share a step; each returns its share of the loss, and leaves gradients


def dp(model, tokens, targets, W, r):
    """Each rank has sequences of its own; the gradients are averaged."""
    loss = model(tokens.chunk(W)[r], targets.chunk(W)[r]) / W
    loss.backward()
    gradients = all_reduce(torch.cat([w.grad.flatten() for w in model.parameters()]))
    put_gradients(model, gradients)
    return loss


def zero3(model, tokens, targets, W, r):
    """As dp, but each rank keeps 1/W of the weights, and gathers the others when it needs them."""
    weights = parameters_to_vector(model.parameters()).detach()
    shard = F.pad(weights, (0, -len(weights) % W)).chunk(W)[r].clone()
    for w in model.parameters():
        w.data.zero_()                                      # gone until they are gathered

    def gather():
        vector_to_parameters(all_gather(shard)[:len(weights)], model.parameters())

    gather()
    with torch.no_grad():
        model(tokens.chunk(W)[r], targets.chunk(W)[r])      # forward; then the others' are dropped
    gather()
    loss = model(tokens.chunk(W)[r], targets.chunk(W)[r]) / W
    loss.backward()
    gradients = torch.cat([w.grad.flatten() for w in model.parameters()])
    mine = reduce_scatter(F.pad(gradients, (0, -len(gradients) % W)))
    model.shard = mine                                      # what this rank's optimiser would use
    return loss


def split(layer, W, r):
    """This rank's heads and its part of the MLP."""
    for linear in (layer.q, layer.k, layer.v, layer.gate, layer.up):
        linear.weight.data = linear.weight.data.chunk(W)[r].clone()
    for linear in (layer.o, layer.down):
        linear.weight.data = linear.weight.data.chunk(W, 1)[r].clone()


def tp(model, tokens, targets, W, r):
    """Each rank has its part of every layer's matrices, and their results are added up."""
    enter = across(same, all_reduce)
    leave = across(all_reduce, same)
    halves(model, W, r, enter, leave)
    loss = model(tokens, targets)
    loss.backward()
    return loss / W


def sp(model, tokens, targets, W, r):
    """As tp; between the matrices each rank has its part of the tokens."""
    def gather(x):
        return all_gather(x, 1)

    def scatter(x):
        return reduce_scatter(x, 1)

    halves(model, W, r, across(gather, scatter), across(scatter, gather))
    loss = model(tokens.chunk(W, 1)[r], targets.chunk(W, 1)[r]) / W
    loss.backward()
    return loss


def halves(model, W, r, enter, leave):
    """Every layer on 1/W of its matrices: `enter` before the first, `leave` after the last."""
    for layer in model.layers:
        split(layer, W, r)
        attention = layer.attention
        mlp = layer.mlp
        layer.attention = lambda y, run=attention: leave(run(enter(y)))
        layer.mlp = lambda y, run=mlp: leave(run(enter(y)))


def pp(model, tokens, targets, W, r):
    """The first rank has the first half of the layers, the second the rest and the loss."""
    half = len(model.layers) // 2
    if r == 0:
        x = model.embedding(tokens)
        for layer in model.layers[:half]:
            x = layer(x)
        dist.send(x.detach(), 1)
        upstream = torch.empty_like(x)
        dist.recv(upstream, 1)
        x.backward(upstream)
        return torch.zeros(())
    x = torch.empty(*tokens.shape, SHAPE.C)
    dist.recv(x, 0)
    y = x.requires_grad_()
    for layer in model.layers[half:]:
        y = layer(y)
    loss = model.loss(y, targets)
    loss.backward()
    dist.send(x.grad, 0)
    return loss


def put_gradients(model, gradients):
    for w, g in zip(model.parameters(), gradients.split([w.numel() for w in model.parameters()]),
                    strict=True):
        w.grad = g.view_as(w)


SHARED = {"dp": dp, "zero3": zero3, "tp": tp, "sp": sp, "pp": pp}


# ---- both sides of the comparison


def whole(seed=0):
    """The model and its step, the same in every process."""
    torch.manual_seed(seed)
    model = TorchLlama(SHAPE)
    return model, *torch.randint(SHAPE.V, (2, B, T))


def count(do):
    dist.barrier()
    before = sent()
    result = do()
    return sent() - before, result


def rank(r, W, folder):
    """One process: every collective and every way, counted; written to `folder`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=r, world_size=W)
    numbers = torch.ones(SIZE // 4)
    bytes_of = {}
    do = {"all_reduce": partial(all_reduce, numbers), "reduce_scatter": partial(
          reduce_scatter, numbers), "all_gather": partial(all_gather, numbers.chunk(W)[r])}
    for name in COLLECTIVES:
        count(do[name])                                     # the first one connects
        bytes_of[name] = count(do[name])[0]
    for way in WAYS:
        model, tokens, targets = whole()
        bytes_of[way], loss = count(partial(SHARED[way], model, tokens, targets, W, r))
        bytes_of[f"{way} loss"] = all_reduce(loss.detach().clone()).item()
        bytes_of[f"{way} gradient"] = gradient(way, model).tolist()
    torch.save(bytes_of, f"{folder}/{r}")
    dist.destroy_process_group()


def gradient(way, model):
    """The whole embedding's gradient, whichever ranks have parts of it.
    Not counted."""
    if way == "zero3":
        return all_gather(model.shard)[:SHAPE.V * SHAPE.C]          # it comes first
    own = model.embedding.weight.grad.flatten()
    return all_reduce(own) if way in ("sp", "pp") else own


def run(W=2):
    """[{collective or way: bytes sent, "<way> loss": …, "<way> gradient": …} of each rank]."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank, (W, folder), W)
        return [torch.load(f"{folder}/{r}") for r in range(W)]


def expected(name, W=2):
    """Bytes that o04's formulas give a rank; under pp a rank of two has one neighbour, not two."""
    if name in COLLECTIVES:
        return sent_by(name, SIZE, W)
    sequences = B // W if name in ("dp", "zero3") else B
    return step_bytes(name, SHAPE, sequences, T, W, itemsize=4) / (2 if name == "pp" else 1)


def table(counts):
    """A rank's counts beside the formulas', as text."""
    lines = [f"{'':16}{'counted':>10}{'by formula':>12}{'more':>8}"]
    for name in (*COLLECTIVES, *WAYS):
        counted = counts[name]
        formula = expected(name)
        lines.append(f"{name:16}{counted:10,}{formula:12,.0f}{counted / formula - 1:8.1%}")
    return "\n".join(lines)


def main():
    ranks = [{name: counts[name] for name in (*COLLECTIVES, *WAYS)} for counts in run()]
    print(table(ranks[0]))
    RECORD.write_text(json.dumps({
        "what": "bytes that each of two processes sent: gloo over TCP, counted by Linux' TCP_INFO, "
                "retransmissions left out", "command": "python -m day02_overview.wire_bytes",
        "torch": torch.__version__, "shape": vars(SHAPE), "B": B, "T": T, "array_bytes": SIZE,
        "ranks": ranks}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
