"""o05 · Scaling laws: loss = E + A / N^a + B / D^b

N: parameters   D: tokens learnt, each once   loss: nats a token, on held-out text
E: the loss that no model avoids   A, a, B, b: the other constants of a law   log: to base e
theta: (log E, log A, log B, a, b)
A training run does about 6·N·D FLOPs: 2 for each weight and token forward, 4 backward. So a law
says what a budget buys before it is spent.
"""

import json
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["HOFFMANN", "REFIT", "Law", "best_split", "chinchilla", "effective_parameters", "fit",
           "huber", "kaplan", "kaplan_split", "law_of", "power_law", "recorded", "rosenfeld"]

RUNS = Path(__file__).parent / "laws" / "runs.json"     # made by laws/train.py
LOG_CEILING = np.log(np.log(96))        # a guess among the 96 characters of the runs: log 96 nats


# ---- one power law


def predict_windows():
    """How many held-out windows make the standard error of a mean loss 0.003 nats.

    It is 0.012 with 2048 windows.
    """
    # exercise: the error of a mean falls with the root of the number
    return 2048 * 16


def power_law(n, y):
    """(A, a) of y = A / n^a: the line of least squares through log y over log n.

    n, y: positive numbers, as many y as n, with at least two different n
    """
    n = np.asarray(n, np.float64)
    y = np.asarray(y, np.float64)
    if n.shape != y.shape or len(np.unique(n)) < 2 or min(n.min(), y.min()) <= 0:
        raise ValueError(f"power_law: expected as many y as n, all above 0, and two different n; "
                         f"got n = {n.tolist()} and y = {y.tolist()}")
    # exercise: log y = log A - a · log n is a straight line
    x, log_y = np.log(n), np.log(y)
    across = x - x.mean()
    a = -(across @ log_y) / (across @ across)
    return np.exp(log_y.mean() + a * x.mean()), a


# ---- joint laws: each gives the log of the loss


def chinchilla(theta, N, D):
    """log(E + A / N^a + B / D^b), Hoffmann et al. 2022.

    theta: (log E, log A, log B, a, b)    N, D: numbers or arrays of one shape
    During a fit the constants may be far off: A may be larger than a float can hold.
    """
    log_E, log_A, log_B, a, b = theta
    # exercise: the logs of the three terms; add the terms without leaving the logs
    terms = log_A - a * np.log(N), log_B - b * np.log(D)
    return np.logaddexp(log_E, np.logaddexp(*terms))


def rosenfeld(theta, N, D):
    """The log of the same sum s under a ceiling c: s · c / sqrt(s² + c²), Rosenfeld et al. 2020.

    c is what guessing costs. Where s is far above c, the loss is c; where s is far below, it is s.
    The paper has another constant for the bend; the others can be scaled so that it is c.
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
        """Nats a token."""
        return np.exp(chinchilla((*np.log(self[:3]), *self[3:]), N, D))


def law_of(theta):
    """The Law of a fitted theta of `chinchilla`."""
    return Law(*map(float, (*np.exp(theta[:3]), *theta[3:])))


HOFFMANN = Law(1.69, 406.4, 410.7, 0.34, 0.29)                  # rounded; see the lesson
REFIT = Law(1.8172, 482.01, 2085.43, 0.3478, 0.3658)            # Besiroglu et al. 2024


# ---- fitting them


def huber(r, delta):
    """(cost, weight) of residuals: r² / 2 up to |r| = delta, and a straight line beyond.

    r: (runs,)    delta: > 0    The line continues the curve without a step or a kink.
    weight · r is the slope of the cost: a run far off pulls as hard as one that is delta off.
    """
    # exercise: both cases at once, with |r| cut off at delta
    size = np.abs(r)
    bent = np.minimum(size, delta)
    return bent * (size - bent / 2), delta / np.maximum(size, delta)


def fit(form, N, D, loss, begin=None):
    """The theta with which a form fits the runs best: the least sum of Huber costs of log losses.

    form: chinchilla, rosenfeld or kaplan    N, D, loss: (runs,)
    begin: thetas to begin at, by default those of `starts`; the best result counts
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
    """Starting points: each term about 1 in the middle of the runs, with several exponents."""
    n = np.log(N).mean()
    d = np.log(D).mean()
    if form is kaplan:
        return [(n + 0.7 / p, d + 0.7 / q, p, q) for p, q in product((0.05, 0.2, 0.8), repeat=2)]
    return [(e, p * n, q * d, p, q) for e, p, q in product((-1, 0.3), *[(0.2, 0.5, 1)] * 2)]


def descend(residuals, theta, delta=1e-3, rounds=300):
    """Levenberg-Marquardt: (theta, its cost). Runs far off count less, by Huber's weights.

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
        if damping > 1e9:                               # no step, however small, is downhill
            break
    return theta, cost.sum()


def recorded(name):
    """The recorded runs of a set, a dict each: grid, lstm, depth, rate, seed or far."""
    runs = json.loads(RUNS.read_text("utf-8"))["runs"]
    rows = [run for run in runs if run["set"] == name]
    if not rows:
        known = ", ".join(dict.fromkeys(run["set"] for run in runs))
        raise ValueError(f"recorded: expected one of {known}; got {name!r}")
    return rows


# ---- what a budget buys


def predict_tokens_per_parameter():
    """D / N of the best split of 5.76e23 FLOPs, by HOFFMANN's constants."""
    # exercise: within 25 % is right; which term is worth more, and what follows for its share?
    return 42


def best_split(law, flops):
    """(N, D) with 6·N·D = flops at which a law promises the least loss."""
    # exercise: with D = flops / 6 / N, where is the slope of A / N^a + B / D^b over log N zero?
    product_ = flops / 6                                        # of N and D
    balance = law.a * law.A / (law.b * law.B)                   # N^a / D^b at the best split
    N = (balance * product_ ** law.b) ** (1 / (law.a + law.b))
    return N, product_ / N


def kaplan_split(flops):
    """(N, D) as Kaplan et al. 2020, Table 6, would split a budget. N without embeddings."""
    days = flops / 8.64e19                                      # PFLOP/s-days
    return 1.3e9 * days ** 0.73, 2e10 * days ** 0.27


def effective_parameters(N, experts):
    """Parameters of the dense model that is as good as one of N with this many experts.

    N: of the dense model in which experts replaced every second MLP, which is about what one
    token meets. Clark et al. 2022, equations 1, 2 and 11, with Table 3's constants for S-BASE:
    log L = a log N + b log Ê + c log N log Ê + d, to base 10.
    """
    a, b, c, few, many = -0.082, -0.108, 0.009, 1.847, 314.478
    one = 1 / (1 / few - 1 / many)
    saturated = np.log10(1 / (1 / (experts - 1 + one) + 1 / many))      # Ê: experts that count
    routed = a * np.log10(N) + b * saturated + c * np.log10(N) * saturated
    return 10 ** ((routed - b * np.log10(few)) / (a + c * np.log10(few)))
