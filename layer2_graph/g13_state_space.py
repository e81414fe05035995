"""g13 · State space and linear attention: the past in a matrix of fixed size, for each head

T: tokens   H: heads   N: width of q and k   P: width of v   Q: tokens of a chunk   B: sequences
state: (H, N, P), what is left of the tokens so far   R: states that a server holds, one a request
a: the share of the state that a token keeps, above 0, at most 1; log_a: its logarithm
A: running sum of log_a from the beginning of a chunk
A decode step reads and writes the state, 2·H·N·P numbers, for 4·H·N·P FLOPs, however long the text
is: memory decides.
A chunk is products of matrices: Q·(N + P) + 4·N·P FLOPs a token and head.
The chunked form is that of Dao and Gu, "Transformers are SSMs", 2024.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["as_convolution", "chunk_step", "chunked", "compose", "decode_states", "delta_chunk",
           "delta_step", "recurrence_oracle", "scan", "ssd", "ssd_flops", "ssd_torch"]

# Q, warps, stages by bytes of a number. Chosen from what Triton makes of them for Hopper: no spills
# with heads of 128 × 64 in 16 bits and 16 × 16 in fp32. Wide heads in fp32 spill.
TILES = {2: (64, 8, 1), 4: (32, 4, 2)}


# ---- what it costs


def predict_crossing():
    """Tokens of a context at which a layer's keys and values are as many numbers as its state.

    6 heads; keys, values, and both sides of a head's state are 16 wide.
    """
    # exercise: numbers of the state, and numbers that each token adds to the cache
    return 6 * 16 * 16 / (2 * 6 * 16)


def choose_convolution():
    """Which of three layers can be computed as one convolution over the text, by an FFT?

    "fixed": a head has one a for all tokens   "token": each token chooses a   "delta": as fixed,
    and a token first takes out what the state has under its key    or "all" of them
    """
    # exercise: in which is the weight of token s in the answer of t a function of t - s alone?
    return "fixed"


def ssd_flops(Q: int, N: int, P: int) -> int:
    """FLOPs of a token and head in chunks of Q: inside the chunk, half of whose square is needed,
    then out of the state and into it."""
    return Q * (N + P) + 4 * N * P


# ---- by the book


def recurrence_oracle(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor,
                      state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(y (T, H, P), state) token by token, in float64.   q, k (T, H, N), v (T, H, P), log_a (T, H)
    """
    q, k, v, log_a = (x.double() for x in (q, k, v, log_a))
    zeros = q.new_zeros(*q.shape[1:], v.shape[2])                   # (H, N, P)
    state = zeros if state is None else state.double()
    y = torch.empty_like(v)                                         # (T, H, P)
    for t in range(len(q)):
        state = log_a[t].exp()[:, None, None] * state + k[t][:, :, None] * v[t][:, None]
        y[t] = torch.einsum("hn,hnp->hp", q[t], state)
    return y, state


# ---- the same as a scan, and as a convolution


def compose(left: tuple[Tensor, Tensor],
            right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """One pair (a, b) that does what the pair `left` does, and then `right`.

    A pair turns h into a · h + b; a and b are arrays of one shape.
    """
    # exercise: put a₁ · h + b₁ into the second; what multiplies h, what is left?
    return left[0] * right[0], right[0] * left[1] + right[1]


def scan(a: Tensor, b: Tensor) -> Tensor:                           # 2 × (T, X) -> (T, X)
    """h of every token, h = a · h + b from h = 0 on, in ⌈log₂ T⌉ rounds of `compose`."""
    reach = 1                               # a pair holds this many tokens, fewer at the beginning
    while reach < len(a):
        later = compose((a[:-reach], b[:-reach]), (a[reach:], b[reach:]))
        a, b = (torch.cat((old[:reach], new)) for old, new in zip((a, b), later, strict=True))
        reach *= 2
    return b


def as_convolution(a: Tensor, b: Tensor) -> Tensor:                 # (X,), (T, X) -> (T, X)
    """The same for an a that no token changes: b convolved with 1, a, a², … by an FFT.

    Twice as long as the text, because an FFT wraps round: else the end would reach token 0.
    """
    T = len(b)
    if a.shape != b.shape[1:]:
        raise ValueError(f"as_convolution: a has shape {tuple(a.shape)}, expected "
                         f"{tuple(b.shape[1:])}; a decay for each token is no convolution")
    powers = a ** torch.arange(T, device=a.device)[:, None]         # (T, X)
    product = torch.fft.rfft(powers, 2 * T, 0) * torch.fft.rfft(b, 2 * T, 0)
    return torch.fft.irfft(product, 2 * T, 0)[:T]


# ---- in chunks


def chunk_step(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor,
               state: Tensor) -> tuple[Tensor, Tensor]:
    """(y (Q, H, P), state) of Q tokens that come after a state, without a loop over tokens.

    q, k (Q, H, N)   v (Q, H, P)   log_a (Q, H)   state (H, N, P); all of one dtype
    """
    # exercise: running sums; decays from s to t; inside the chunk, out of the state, into it
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))                # (H, Q, ·)
    A = log_a.T.cumsum(-1)                                          # (H, Q)
    future = torch.ones(len(log_a), len(log_a), device=q.device).triu(1).bool()     # (Q, Q)
    decay = (A[:, :, None] - A[:, None]).masked_fill(future, -torch.inf).exp()      # (H, Q, Q)
    y = (q @ k.mT * decay) @ v + A.exp()[..., None] * (q @ state)   # (H, Q, P)
    left = (A[:, -1:] - A).exp()                                    # (H, Q)
    new = (k * left[..., None]).mT @ v                              # (H, N, P)
    return y.transpose(0, 1), A[:, -1].exp()[:, None, None] * state + new


def chunked(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, state: Tensor | None = None,
            Q: int = 64) -> tuple[Tensor, Tensor]:
    """(y (T, H, P), state) in chunks of Q tokens; the last may be shorter. state: None for zeros.

    ValueError for other shapes, and for a log_a above 0 or of −∞ (looked for on the CPU alone).
    """
    check("chunked", q, k, v, log_a)
    if state is None:
        state = q.new_zeros(*q.shape[1:], v.shape[2])               # (H, N, P)
    parts = []
    splits = (x.split(Q) for x in (q, k, v, log_a))
    for queries, keys, values, logs in zip(*splits, strict=True):
        y, state = chunk_step(queries, keys, values, logs, state)
        parts.append(y)
    return torch.cat(parts), state


def check(name, q, k, v, log_a):
    """What a chunk assumes."""
    T, H, _ = q.shape
    if k.shape != q.shape or v.shape[:2] != (T, H) or log_a.shape != (T, H):
        raise ValueError(f"{name}: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} and "
                         f"log_a {tuple(log_a.shape)}, expected (T, H, N) twice, (T, H, P) and "
                         f"(T, H)")
    if log_a.device.type == "cpu" and (wrong := ~(log_a.isfinite() & (log_a <= 0))).any():
        t, h = wrong.nonzero()[0].tolist()
        raise ValueError(f"{name}: log_a has {float(log_a[t, h]):g} at token {t}, expected a finite"
                         f" number, at most 0: a state that grows overflows, and -inf less -inf is "
                         f"no number")


# ---- the same as a kernel


@triton.jit
def load_chunk(x, h, H, first, end, WIDTH: tl.constexpr, Q: tl.constexpr):
    """(Q, WIDTH): rows of head h of x (T, H, WIDTH) from token `first` on; 0 from `end` on."""
    t, w = first + tl.arange(0, Q), tl.arange(0, WIDTH)
    return tl.load(x + (t.to(tl.int64) * H + h)[:, None] * WIDTH + w[None, :],
                   (t < end)[:, None], 0)


@triton.jit
def store_chunk(x, rows, h, H, first, end, WIDTH: tl.constexpr, Q: tl.constexpr):
    """Such rows into x, nothing from token `end` on."""
    t, w = first + tl.arange(0, Q), tl.arange(0, WIDTH)
    tl.store(x + (t.to(tl.int64) * H + h)[:, None] * WIDTH + w[None, :], rows, (t < end)[:, None])


@triton.jit
def ssd_triton(q, k, v, log_a, y, states, cu_q, seats, H, N: tl.constexpr, P: tl.constexpr,
               Q: tl.constexpr):
    """All chunks of one head of one sequence: y, and the state after its last token, in place.

    q, k (T, H, N)   v, y (T, H, P)   log_a (T, H) fp32   states (R, H, N, P) fp32
    cu_q (B + 1): sequence b's tokens are cu_q[b] to cu_q[b + 1] - 1   seats (B,): row of its state
    """
    b, h = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(cu_q + b), tl.load(cu_q + b + 1)
    i = tl.arange(0, Q)
    at = (tl.load(seats + b).to(tl.int64) * H + h) * N * P + (
        tl.arange(0, N)[:, None] * P + tl.arange(0, P)[None, :])
    state = tl.load(states + at)                                    # (N, P)
    # exercise: chunk by chunk: load, inside the chunk, out of the state, store y, into the state
    for first in range(begin, end, Q):
        queries = load_chunk(q, h, H, first, end, N, Q)             # (Q, N)
        keys = load_chunk(k, h, H, first, end, N, Q)                # (Q, N)
        values = load_chunk(v, h, H, first, end, P, Q)              # (Q, P)
        logs = tl.load(log_a + (first + i).to(tl.int64) * H + h, first + i < end, 0)    # (Q,)
        A, total = tl.cumsum(logs, 0), tl.sum(logs, 0)
        gaps = tl.where(i[:, None] >= i[None, :], A[:, None] - A[None, :], -float("inf"))
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * tl.exp(gaps)
        past = tl.dot(queries, state.to(queries.dtype), input_precision="ieee")
        rows = tl.dot(scores.to(values.dtype), values, past * tl.exp(A)[:, None],
                      input_precision="ieee")                       # (Q, P)
        store_chunk(y, rows, h, H, first, end, P, Q)
        keys = (keys * tl.exp(total - A)[:, None]).to(values.dtype)
        state = tl.dot(tl.trans(keys), values, state * tl.exp(total), input_precision="ieee")
    tl.store(states + at, state)


def ssd(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, cu_q: Tensor, states: Tensor,
        seats: Tensor, Q: int | None = None) -> Tensor:             # -> (T, H, P)
    """What all tokens of a step read, by one launch; states (R, H, N, P) change in place.

    q, k (T, H, N), v (T, H, P) of one dtype   log_a (T, H), states: float32   seats (B,) int64:
    the rows of states, each at most once   cu_q (B + 1,) int32
    Q: tokens of a chunk; None: what suits the type
    ValueError for other shapes; N, P and Q are powers of two from 16 on.
    """
    check("ssd", q, k, v, log_a)
    H, N, P = sizes = *q.shape[1:], v.shape[2]
    if states.shape[1:] != sizes:
        raise ValueError(f"ssd: state {tuple(states.shape[1:])}, expected (H, N, P) = {sizes}")
    own, warps, stages = TILES[q.itemsize]
    Q = Q or own
    small = [f"{name} is {n}" for name, n in (("N", N), ("P", P), ("Q", Q))
             if n < 16 or n & n - 1]
    if small:
        raise ValueError(f"ssd: {small[0]}, expected a power of two from 16 on")
    q, k, v, log_a = (x.contiguous() for x in (q, k, v, log_a))
    y = torch.empty_like(v)
    if len(seats):
        ssd_triton[(len(seats), H)](q, k, v, log_a, y, states, cu_q, seats, H, N=N, P=P, Q=Q,
                                    num_warps=warps, num_stages=stages)
    return y


def ssd_torch(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, cu_q: Tensor, states: Tensor,
              seats: Tensor, Q: int = 64) -> Tensor:                # -> (T, H, P)
    """As ssd, by PyTorch, one sequence after another."""
    parts = [x.split(cu_q.diff().tolist()) for x in (q, k, v, log_a)]
    rows = [v.new_zeros(0, *v.shape[1:])]
    for seat, queries, keys, values, logs in zip(seats.tolist(), *parts, strict=True):
        if len(queries):
            y, states[seat] = chunked(queries, keys, values, logs, states[seat], Q)
            rows.append(y)
    return torch.cat(rows)


# ---- one token more


def decode_states(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, states: Tensor,
                  seats: Tensor) -> Tensor:
    """(B, H, P): what the new token of each sequence reads; its state changes in place.

    q, k (B, H, N)   v (B, H, P)   log_a (B, H)   states (R, H, N, P), all float32
    seats (B,) int64: the rows of states; the others stay as they are
    """
    # exercise: the states decay, take the token in, go back to their rows; then read
    new = states[seats] * log_a.exp()[..., None, None]              # (B, H, N, P)
    new += k[..., None] * v[..., None, :]
    states[seats] = new
    return (q[..., None, :] @ new)[..., 0, :]


# ---- to overwrite


def delta_step(state: Tensor, k: Tensor, v: Tensor, log_a: Tensor, beta: Tensor) -> Tensor:
    """(H, N, P): the state after one token of the gated delta rule.

    state (H, N, P)   k (H, N), of length 1   v (H, P)   log_a, beta (H,), beta from 0 to 1
    Source: Gated DeltaNet (Yang and others, 2024).
    """
    # exercise: decay; what does the key find? Add beta times what is missing, under the key
    state = log_a.exp()[:, None, None] * state                      # (H, N, P)
    missing = v - (k[:, None] @ state)[:, 0]                        # (H, P)
    return state + beta[:, None, None] * k[:, :, None] * missing[:, None]


def delta_chunk(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, beta: Tensor,
                state: Tensor) -> tuple[Tensor, Tensor]:
    """(y (Q, H, P), state) of Q tokens of the delta rule.
    Arrays as of chunk_step; beta (Q, H)

    What token t adds under its key depends on what tokens before it added: a triangular system.
    Its solution takes the place of v.
    """
    A = log_a.T.cumsum(-1)                                          # (H, Q)
    keys = k.transpose(0, 1)                                        # (H, Q, N)
    later = torch.ones(len(k), len(k), device=k.device).triu().bool()
    decay = (A[:, :, None] - A[:, None]).masked_fill(later, -torch.inf).exp()       # (H, Q, Q)
    share = beta.T[..., None]                                       # (H, Q, 1)
    alone = share * (v.transpose(0, 1) - A.exp()[..., None] * (keys @ state))       # (H, Q, P)
    added = torch.linalg.solve_triangular(share * (keys @ keys.mT) * decay, alone, upper=False,
                                          unitriangular=True)
    return chunk_step(q, k, added.transpose(0, 1), log_a, state)
