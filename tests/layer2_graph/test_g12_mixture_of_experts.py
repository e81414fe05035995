"""Graders of g12.
Oracles are loops over tokens in float64."""

import numpy as np
import pytest
import torch

from lab.judge.mistakes import mistake, raises

# ---- the predictions


def check_guess(name, guess, right, tolerance, why):
    """why: {a wrong guess: (id, sentence)}"""
    assert isinstance(guess, (int, float)), mistake(
        "no_number", f"{name}: a prediction is a number, got {guess!r}")
    near = [row for wrong, row in why.items() if abs(guess - wrong) < 1e-3 * abs(wrong)]
    label, sentence = near[0] if near else ("other", "Count again, one factor at a time.")
    assert abs(guess - right) <= tolerance * right, mistake(
        label, f"{name}: predicted {guess:g}. {sentence}", sentence)


def test_predict_loaded(subject):
    """Counted over drawn steps: 2 different experts of 8 for each of 4 tokens."""
    chances = np.random.default_rng(0).random((20_000, 4, 8))
    experts = chances.argsort(-1)[..., :2].reshape(len(chances), -1)
    right = np.mean([len(set(step)) for step in experts.tolist()])
    check_guess("predict_loaded", subject.predict_loaded(), right, 0.02, {
        8: ("all_differ", "So it is if no two tokens choose the same expert. Often they do."),
        2: ("all_alike", "So it is if all four tokens choose the same two experts."),
        1: ("mean_load", "That is how many tokens an expert has, 4 · 2 / 8. How many experts have "
                         "one at all?")})


def test_predict_flops_ratio(subject):
    """Counted product by product: (rows a token, numbers out, numbers in)."""
    C, F, E, k = 96, 128, 8, 2
    products = [(1, E, C), (k, 2 * F, C), (k, C, F)]
    dense = [(1, 2 * 256, C), (1, C, 256)]
    right = sum(np.prod(p) for p in products) / sum(np.prod(p) for p in dense)
    check_guess("predict_flops_ratio", subject.predict_flops_ratio(), right, 0.002, {
        4: ("all_experts", "So it is if every expert computes every token. A token chooses 2."),
        1: ("router_free", "Two experts of width 128 cost what one MLP of 256 does. And what "
                           "chooses them? The router is a matrix, too."),
        0.5: ("one_expert", "That is one expert: each token has two.")})


# ---- gate


def book(scores, k, renormalise=True, bias=None, wrong=None):       # (T, E) -> 2 × (T, k)
    """(weights, experts), token by token. wrong: the id of a mistake to make"""
    bias = np.zeros(scores.shape[1]) if bias is None else bias
    weights, experts = [], []
    for row in scores.astype(np.float64):
        row = row + bias * (wrong == "bias_before_softmax")
        p = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        chance = p if wrong in ("bias_before_softmax", "bias_ignored") else p + bias
        some = sorted(range(len(p)), key=lambda e: chance[e], reverse=wrong != "smallest_k")[:k]
        w = (chance if wrong == "bias_in_weight" else p)[some]
        as_asked = renormalise if wrong not in ("not_renormalised", "renormalised_anyway") else (
            not renormalise)
        weights.append(w / w.sum() if as_asked else w)
        experts.append(some)
    return np.reshape(weights, (-1, k)), np.reshape(experts, (-1, k)).astype(int)


GATES = {
    "smallest_k": "the experts with the smallest probabilities are chosen",
    "bias_ignored": "the bias has no say in which experts are chosen",
    "bias_before_softmax": "the bias is added to the scores: it belongs to the probabilities, "
                           "after the softmax, or it changes them",
    "bias_in_weight": "the bias counts in the weights: it says which are chosen, and what they "
                      "weigh is the router's",
    "not_renormalised": "the weights of a token are left as they are: with renormalise=True they "
                        "must add up to 1",
    "renormalised_anyway": "the weights of a token are made to add up to 1: with renormalise=False "
                           "they stay those of the softmax over all experts",
}


def apart(rng, T, E):                               # (T, E), no two scores of a token alike
    return rng.permuted(np.tile(np.linspace(-2, 2, E), (T, 1)), axis=1) + rng.uniform(
        -0.1, 0.1, (T, E))


def check_gate(subject, agree, scores, k, renormalise=True, bias=None, what=""):
    tensor = torch.from_numpy(np.asarray(scores, np.float32))
    own = None if bias is None else torch.from_numpy(bias).float()
    got = subject.gate(tensor, k, renormalise, own)
    what = f"{what or f'{tensor.shape[1]} experts, k = {k}'}, renormalise={renormalise}"
    assert isinstance(got, (tuple, list)) and len(got) == 2, mistake(
        "not_a_pair", "gate: expected (weights, experts)")
    right = book(tensor.numpy(), k, renormalise, bias)
    absent = "renormalised_anyway" if renormalise else "not_renormalised"
    wrong = {name: (why, book(tensor.numpy(), k, renormalise, bias, name))
             for name, why in GATES.items() if name != absent}

    def place(index):
        return f"token {index[0]}, choice {index[1]}"

    agree(got[1], right[1], "exact", f"experts of {what}", place,
          {name: (why, both[1]) for name, (why, both) in wrong.items()})
    assert got[1].dtype == torch.int64, mistake(
        "not_int64", f"gate: experts are {got[1].dtype}, expected torch.int64")
    agree(got[0], right[0], "float32", f"weights of {what}", place,
          {name: (why, both[0]) for name, (why, both) in wrong.items()})


@pytest.mark.parametrize("T, E, k", [(37, 8, 2), (1, 5, 1), (13, 5, 5), (0, 8, 2)])
@pytest.mark.parametrize("renormalise", [True, False])
def test_gate(subject, agree, rng, T, E, k, renormalise):
    check_gate(subject, agree, apart(rng, T, E), k, renormalise)


@pytest.mark.parametrize("renormalise", [True, False])
def test_gate__bias(subject, agree, rng, renormalise):
    bias = np.array([0.3, -0.2, 0.0, 0.5, -0.5, 0.1])
    check_gate(subject, agree, apart(rng, 24, 6), 2, renormalise, bias, "6 experts with a bias")


@pytest.mark.parametrize("shift", [200, -200])
def test_gate__large(subject, agree, rng, shift):
    """exp of such a score is infinite, or 0."""
    check_gate(subject, agree, apart(rng, 9, 8) + shift, 2, what=f"scores around {shift}")


def test_gate__sixteen_bits(subject, agree, rng):
    scores = torch.from_numpy(apart(rng, 16, 8)).bfloat16()
    got, _ = subject.gate(scores, 2)
    agree(got, book(scores.double().numpy(), 2)[0], "float32",
          "weights of bfloat16 scores, which go up to fp32 before the softmax",
          lambda i: f"token {i[0]}, choice {i[1]}")


def test_gate__equal(subject):
    """Of equal scores any experts may be chosen, but different ones."""
    weights, experts = subject.gate(torch.zeros(5, 8), 3)
    assert all(len(set(row)) == 3 for row in experts.tolist()), mistake(
        "twice", "gate: of 8 equal scores a token chose one expert twice")
    assert torch.allclose(weights, torch.full((5, 3), 1 / 3)), (
        f"gate: 3 of 8 equal scores got the weights {weights[0].tolist()}, expected 1/3 each")


# ---- moe_mlp


def silu(x):
    return x / (1 + np.exp(-x))


def layer(rng, T, E, C, F, k, absent=(), one=None):
    """x, weights, experts, gate_up, down as arrays. one: the expert that every token has first"""
    chances = rng.random((T, E))
    chances[:, list(absent)] = -1
    if one is not None:
        chances[:, one] = 2
    experts = (-chances).argsort(1)[:, :k]
    weights = rng.random((T, k)) + 0.1
    return (rng.standard_normal((T, C)), weights / weights.sum(1, keepdims=True), experts,
            rng.standard_normal((E, 2 * F, C)) / C**0.5, rng.standard_normal((E, C, F)) / F**0.5)


def mixture(x, weights, experts, gate_up, down, wrong=None):
    """Token by token, expert by expert."""
    y = np.zeros_like(x)
    T, k = experts.shape
    if wrong == "choice_major":             # slot i is taken for choice i // T of token i % T
        experts = experts.T.reshape(T, k)
    for t in range(T):
        for w, e in zip(weights[t], experts[t], strict=True):
            gate, up = np.split(gate_up[e] @ (x[t] * (w if wrong == "weighed_first" else 1)), 2)
            if wrong == "halves_swapped":
                gate, up = up, gate
            one = down[e] @ (silu(gate) * up)
            factor = {"weighed_first": 1, "never_weighed": 1, "weighed_twice": w * w,
                      "mean_of_k": w / k}.get(wrong, w)
            y[t] += factor * one
    return y


MIXTURES = {
    "weighed_first": "x is weighed before the experts: they are not linear, and MLP(w · x) is not "
                     "w · MLP(x)",
    "weighed_twice": "the weights are multiplied twice: each answer counts w²",
    "never_weighed": "every answer counts in full, and the weights are not used",
    "mean_of_k": "the mean over a token's experts is taken: the weights add up to 1 already",
    "halves_swapped": "SiLU is applied to the second half: the first F rows of gate_up are the "
                      "gate's",
    "choice_major": "slots are counted choice by choice: slot 3 is token 1's second choice when "
                    "k = 2, and the order is that of experts row by row",
}


def check_mixture(subject, agree, arrays, what):
    """The answer, and the work that was ordered."""
    x, weights, experts, gate_up, down = (torch.from_numpy(a).float() if a.dtype != int else
                                          torch.from_numpy(a) for a in arrays)
    table = subject.kernels("torch")
    ops = {name: subject.make("lab.judge.mocks:Watched", getattr(table, name))
           for name in ("sort_slots", "grouped_gemm", "swiglu", "matmul")}
    got = subject.moe_mlp(x, weights, experts, gate_up, down,
                          subject.make("types:SimpleNamespace", **ops))
    agree(got, mixture(*arrays), "float32", f"moe_mlp of {what}",
          lambda i: f"token {i[0]}, column {i[1]}",
          {name: (why, mixture(*arrays, wrong=name)) for name, why in MIXTURES.items()})
    products = [len(call[2]) for call in ops["grouped_gemm"].calls]
    slots = experts.numel()
    assert len(products) == 2 and len(ops["swiglu"].calls) == 1, mistake(
        "one_by_one", f"moe_mlp of {what}: {len(products)} grouped products and "
        f"{len(ops['swiglu'].calls)} calls of swiglu, expected 2 and 1 whatever the experts are: "
        f"one launch takes all experts")
    assert products == [slots] * 2, mistake(
        "all_experts", f"moe_mlp of {what}: {max(products)} rows were multiplied, expected "
        f"T · k = {slots}: a token's other experts do not compute")


@pytest.mark.parametrize("T, k, choice", [(13, 2, {"absent": [4]}), (7, 2, {"one": 3}),
                                          (1, 3, {}), (0, 2, {}), (5, 1, {})])
def test_moe_mlp(subject, agree, rng, T, k, choice):
    what = f"{T} tokens, {k} of 6 experts" + "".join(
        f", {name} {e}" for name, e in choice.items())
    check_mixture(subject, agree, layer(rng, T, 6, 24, 20, k, **choice), what)


# ---- keep_within


def rows_kept(experts, E, capacity, wrong=None):
    """Choice by choice, token by token."""
    T, k = experts.shape
    count = np.zeros((k, E), int)
    answer = np.zeros((T, k), bool)
    order = [(t, j) for j in range(k) for t in range(T)]
    for t, j in sorted(order) if wrong == "token_order" else order:
        j_count = j if wrong == "each_choice_apart" else 0
        e = experts[t, j]
        answer[t, j] = count[j_count, e] < capacity + (wrong == "off_by_one")
        count[j_count, e] += 1
    return answer


KEPT = {
    "token_order": "choices are served token by token: first choices of all tokens come before "
                   "any second choice",
    "off_by_one": "an expert takes one row more than its capacity",
    "each_choice_apart": "an expert's room is counted apart for first choices and for second ones",
}


@pytest.mark.parametrize("T, capacity", [(13, 3), (13, 1), (13, 0), (13, 13), (1, 1), (0, 2)])
def test_keep_within(subject, agree, rng, T, capacity):
    experts = rng.random((T, 6)).argsort(1)[:, :2]
    experts = np.where(experts == 5, 0, experts)                # expert 0 is busy, 5 has no row
    experts[:, 1] = np.where(experts[:, 0] == experts[:, 1], 4, experts[:, 1])
    got = subject.keep_within(torch.from_numpy(experts), 6, capacity)
    agree(got, rows_kept(experts, 6, capacity), "exact",
          f"keep_within of {T} tokens, capacity {capacity}",
          lambda i: f"token {i[0]}, choice {i[1]} (expert {experts[i]})",
          {name: (why, rows_kept(experts, 6, capacity, name)) for name, why in KEPT.items()})
    assert got.dtype == torch.bool, mistake(
        "not_bool", f"keep_within: the result is {got.dtype}, expected torch.bool")


# ---- balance_loss and rebalance


def shares(experts, E):
    return np.bincount(experts.ravel(), minlength=E) / experts.size


def check_loss(subject, agree, p, experts, what):
    E = p.shape[1]
    mean = p.mean(0)
    agree(subject.balance_loss(torch.from_numpy(p).float(), torch.from_numpy(experts)),
          np.array(E * (shares(experts, E) * mean).sum()), "float32", f"balance_loss of {what}",
          mistakes={
        "probabilities_squared": ("probabilities stand where shares of choices belong: a router "
                                  "that is sure in each token, but even, is balanced",
                                  np.array(E * (mean * mean).sum())),
        "not_divided_by_k": ("the shares of the experts add up to k: with k = 2 an even router has "
                             "a loss of 2, expected 1",
                             np.array(E * experts.shape[1] * (shares(experts, E) * mean).sum())),
        "first_choice": ("only the first choice of each token counts", np.array(
            E * (shares(experts[:, :1], E) * mean).sum())),
        "no_factor": ("the factor E is missing", np.array((shares(experts, E) * mean).sum()))})


@pytest.mark.parametrize("T, E, k", [(13, 6, 2), (40, 8, 3), (1, 4, 1)])
def test_balance_loss(subject, agree, rng, T, E, k):
    p = np.exp(2 * rng.standard_normal((T, E)) + np.arange(E) / 3)
    p /= p.sum(1, keepdims=True)
    check_loss(subject, agree, p, (-p).argsort(1)[:, :k], f"{T} tokens, {k} of {E} experts")


def test_balance_loss__even(subject, agree):
    """Sure in each token, and even over all: 1."""
    p = np.tile(np.eye(4) * 0.96 + 0.01, (3, 1))
    check_loss(subject, agree, p, np.tile(np.arange(4)[:, None], (3, 1)), "a sure and even router")


def test_balance_loss__gradient(subject, agree, rng):
    p = rng.dirichlet(np.ones(6), 13)
    experts = (-p).argsort(1)[:, :2]
    tensor = torch.from_numpy(p).float().requires_grad_()
    with raises("detached", RuntimeError, "The loss has no gradient by the probabilities: nothing "
                "would move."):
        got, = subject.grad("balance_loss", [tensor, torch.from_numpy(experts)], torch.tensor(1.0))
    want = np.broadcast_to(6 * shares(experts, 6) / 13, p.shape)
    agree(got, want, "float32", "the gradient of balance_loss",
          lambda i: f"token {i[0]}, expert {i[1]}")


def check_bias(subject, agree, experts, bias, rate, what):
    load = np.bincount(experts.ravel(), minlength=len(bias))
    away = load.mean() - load
    with raises("no_minlength", RuntimeError, "An expert that no token chose has a load, too: 0."):
        got = subject.rebalance(torch.from_numpy(bias).float(), torch.from_numpy(experts), rate)
    agree(got, bias + rate * np.sign(away), "float32", f"rebalance, {what}",
          lambda i: f"expert {i[0]} with {load[i]} choices", {
        "wrong_sign": ("the busiest experts get a larger bias, and still more tokens",
                       bias - rate * np.sign(away)),
        "proportional": ("the step grows with the distance from the mean load: it is `rate`, "
                         "whatever the batch", bias + rate * away),
        "forgets": ("the bias before the step is forgotten", rate * np.sign(away))})


def test_rebalance(subject, agree, rng):
    bias = rng.standard_normal(6)
    experts = rng.random((13, 4)).argsort(1)[:, :2]             # no token chooses 4 and 5
    check_bias(subject, agree, experts, bias, 0.25, "13 tokens, 2 of 6 experts")
    even = np.array([[0, 1], [2, 3], [4, 5]])
    check_bias(subject, agree, even, bias, 0.25, "all loads equal")
