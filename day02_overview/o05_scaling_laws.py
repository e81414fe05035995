"""o05 · Scaling laws: loss = E + A / N^a + B / D^b

N: parameters   D: training tokens, each used once   loss: nats per token, on held-out text
E: the loss that no model gets below   A, a, B, b: the other constants of a law   log: to base e
theta: (log E, log A, log B, a, b)
A training run takes about 6·N·D FLOPs: per weight and token 2 forward and 4 backward.
So a law predicts what a budget will buy before it is spent.
"""

import json
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["HOFFMANN", "REFIT", "Law", "best_split", "chinchilla", "effective_parameters", "fit",
           "huber", "kaplan", "kaplan_split", "law_of", "power_law", "recorded", "rosenfeld"]

RUNS = Path(__file__).parent / "laws" / "runs.json"     # made by laws/train.py
LOG_CEILING = np.log(np.log(96))        # the loss of guessing one of 96 characters is log 96


# ---- one power law


def predict_windows():
    """The number of held-out windows for a standard error of 0.003 nats, if it is 0.012 with 2,048
    windows."""
    # exercise: the standard error falls with the square root of the number of windows
    return 2048 * 16


def power_law(n, y):
    """(A, a) of y = A / n^a, from the least-squares line of log y over log n.

    n, y: positive numbers, equally many; at least two different n
    """
    n = np.asarray(n, np.float64)
    y = np.asarray(y, np.float64)
    if n.shape != y.shape or len(np.unique(n)) < 2 or min(n.min(), y.min()) <= 0:
        raise ValueError("power_law: expected equally many n and y, all above 0, with at least two "
                         f"different n; got n = {n.tolist()} and y = {y.tolist()}")
    # exercise: log y = log A - a · log n is a straight line
    x = np.log(n)
    log_y = np.log(y)
    across = x - x.mean()
    a = -(across @ log_y) / (across @ across)
    return np.exp(log_y.mean() + a * x.mean()), a


# ---- joint laws: each gives the log of the loss


def chinchilla(theta, N, D):
    """log(E + A / N^a + B / D^b), Hoffmann et al. 2022.

    theta: (log E, log A, log B, a, b)    N, D: numbers or arrays of one shape
    During a fit the constants can be far off: A itself may be too large for a float, so work with
    logarithms.
    """
    log_E, log_A, log_B, a, b = theta
    # exercise: compute the logarithms of the three terms; add them with np.logaddexp
    terms = log_A - a * np.log(N), log_B - b * np.log(D)
    return np.logaddexp(log_E, np.logaddexp(*terms))


def rosenfeld(theta, N, D):
    """The log of the same sum s, limited by a ceiling c: s · c / sqrt(s² + c²).

    Rosenfeld et al. 2020. c is the loss of guessing.
    If s is much larger, the loss is about c; if it is much smaller, about s. (The paper has one
    more constant, for where the curve bends; it can be scaled away.)
    """
    s = chinchilla(theta, N, D)
    return s - np.logaddexp(0, 2 * (s - LOG_CEILING)) / 2


def kaplan(theta, N, D):
    """log(((Nc / N)^(aN / aD) + Dc / D)^aD), Kaplan et al. 2020, equation 1.5. There is no E.

    theta: (log Nc, log Dc, aN, aD)
    """
    log_Nc, log_Dc, aN, aD = theta
    return aD * np.logaddexp(aN / aD * (log_Nc - np.log(N)), log_Dc - np.log(D))


class Law(NamedTuple):
    """A law of Chinchilla's form with its constants."""

    E: float
    A: float
    B: float
    a: float
    b: float

    def loss(self, N, D):
        """Nats per token."""
        return np.exp(chinchilla((*np.log(self[:3]), *self[3:]), N, D))


def law_of(theta):
    """The Law of a fitted theta of `chinchilla`."""
    return Law(*map(float, (*np.exp(theta[:3]), *theta[3:])))


HOFFMANN = Law(1.69, 406.4, 410.7, 0.34, 0.29)                  # rounded; see the lesson
REFIT = Law(1.8172, 482.01, 2085.43, 0.3478, 0.3658)            # Besiroglu et al. 2024


# ---- fitting them


def huber(r, delta):
    """(cost, weight) of residuals r, two arrays (runs,). delta: > 0

    The cost is r² / 2 up to |r| = delta and a straight line from there, without a step or a kink.
    weight · r is the slope of the cost, so a run that is far off pulls only as hard as one that is
    off by delta.
    """
    # exercise: write both cases; min(|r|, delta) helps in both
    size = np.abs(r)
    bent = np.minimum(size, delta)
    return bent * (size - bent / 2), delta / np.maximum(size, delta)


def fit(form, N, D, loss, begin=None):
    """The theta of the form that describes the runs best: the smallest sum of Huber costs of log
    losses.

    form: chinchilla, rosenfeld or kaplan    N, D, loss: (runs,)
    begin: starting points, by default `starts`; the best result counts
    """
    N, D, target = (np.asarray(x, np.float64) for x in (N, D, np.log(loss)))
    begin = starts(form, N, D) if begin is None else begin
    if len(N) < len(begin[0]):
        raise ValueError(f"fit: expected at least {len(begin[0])} runs, one for each constant of "
                         f"{form.__name__}; got {len(N)}")
    ends = [descend(lambda theta: form(theta, N, D) - target, np.array(theta, np.float64))
            for theta in begin]
    return min(ends, key=lambda end: end[1])[0]


def starts(form, N, D):
    """Starting points: every term about 1 in the middle of the runs, with several exponents."""
    n = np.log(N).mean()
    d = np.log(D).mean()
    if form is kaplan:
        return [(n + 0.7 / p, d + 0.7 / q, p, q) for p, q in product((0.05, 0.2, 0.8), repeat=2)]
    return [(e, p * n, q * d, p, q) for e, p, q in product((-1, 0.3), *[(0.2, 0.5, 1)] * 2)]


def descend(residuals, theta, delta=1e-3, rounds=300):
    """Levenberg-Marquardt.
    Returns (theta, its cost).
    Huber's weights reduce the influence of outliers.

    residuals: theta -> (runs,)    delta: of log losses; 0.001 as in Hoffmann et al. 2022
    """
    damping = 1e-3
    r = residuals(theta)
    cost, weight = huber(r, delta)
    for _ in range(rounds):
        slopes = np.stack([(residuals(theta + step) - residuals(theta - step)) / 2e-5
                           for step in 1e-5 * np.eye(len(theta))], 1)       # (runs, constants)
        square = slopes.T @ (weight[:, None] * slopes)
        square += damping * np.diag(np.diag(square)) + 1e-12 * np.eye(len(theta))
        there = theta - np.linalg.solve(square, slopes.T @ (weight * r))
        r_there = residuals(there)
        cost_there, weight_there = huber(r_there, delta)
        better = cost_there.sum() < cost.sum()          # NaN is not
        if better:
            theta = there
            r = r_there
            cost = cost_there
            weight = weight_there
        damping = max(damping / 3, 1e-9) if better else damping * 4
        if damping > 1e9:                               # even the smallest step goes uphill
            break
    return theta, cost.sum()


def recorded(name):
    """The recorded runs of a set, as dicts. name: grid, lstm, depth, rate, seed or far"""
    runs = json.loads(RUNS.read_text("utf-8"))["runs"]
    rows = [run for run in runs if run["set"] == name]
    if not rows:
        known = ", ".join(dict.fromkeys(run["set"] for run in runs))
        raise ValueError(f"recorded: expected one of {known}; got {name!r}")
    return rows


# ---- what a budget buys


def predict_tokens_per_parameter():
    """D / N of the best split of 5.76e23 FLOPs, by HOFFMANN's constants."""
    # exercise: within 25 % is right; which term falls more slowly, and what does it need more of?
    return 42


def best_split(law, flops):
    """The (N, D) with 6·N·D = flops that has the lowest predicted loss."""
    # exercise: substitute D = flops / 6 / N; where is the slope of A / N^a + B / D^b zero?
    product_ = flops / 6                                        # of N and D
    balance = law.a * law.A / (law.b * law.B)                   # N^a / D^b at the best split
    N = (balance * product_ ** law.b) ** (1 / (law.a + law.b))
    return N, product_ / N


def kaplan_split(flops):
    """The split of Kaplan et al. 2020, Table 6. N does not count embeddings."""
    days = flops / 8.64e19                                      # PFLOP/s-days
    return 1.3e9 * days ** 0.73, 2e10 * days ** 0.27


def effective_parameters(N, experts):
    """The size of the dense model that is as good as one of size N with this many experts.

    N: parameters that one token uses (a dense model in which experts have replaced every second
    MLP).
    Clark et al. 2022, equations 1, 2 and 11, with Table 3's constants for S-BASE:
    log L = a log N + b log Ê + c log N log Ê + d, to base 10.
    """
    a, b, c, few, many = -0.082, -0.108, 0.009, 1.847, 314.478
    one = 1 / (1 / few - 1 / many)
    saturated = np.log10(1 / (1 / (experts - 1 + one) + 1 / many))      # Ê: effective experts
    routed = a * np.log10(N) + b * saturated + c * np.log10(N) * saturated
    return 10 ** ((routed - b * np.log10(few)) / (a + c * np.log10(few)))
