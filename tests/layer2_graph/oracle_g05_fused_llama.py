"""g05 by the book, in float64, and what comes of each known mistake."""

from itertools import product

import numpy as np

ALONE = {"rmsnorm": "an add and a norm are two launches; ops.add_rmsnorm does both in one",
         "rope": "rope rotates but does not write; ops.rope_and_cache does both in one launch",
         "write_kv": "write_kv is a launch of its own; ops.rope_and_cache writes as well",
         "swiglu": "swiglu is a launch of its own; model.gated computes it at the end of a matrix "
                   "product"}


class Block:
    """Layer i. A grader sets w, bias: its arrays by name; layers: [(w, bias)] of all;
    x and residual: what comes in; answer: of attention; cos and sin; T, D, eps and biases;
    calls(name): of a kernel."""

    def linear(self, x, name, without=""):
        return x @ self.w[name].T + self.bias[name] * (name not in without.split())

    def normed(self, x, name, eps=None):
        eps = self.eps if eps is None else eps
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.w[name]

    def rotated(self, x, positions, swapped=False):
        a, b = np.split(x, 2, -1)
        c, s = (table[positions, None] for table in (self.cos, self.sin)[::-1 if swapped else 1])
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    def heads(self, x, y=None, norms=True):
        """(q, k, v), not rotated. x: the sum that came in"""
        y = self.normed(x, "attention_norm") if y is None else y
        for name in "qkv":
            a = self.linear(y, name).reshape(self.T, -1, self.D)
            yield self.normed(a, f"{name}_norm") if norms and f"{name}_norm" in self.w else a

    def out(self, x, norm="mlp_norm", added=True, without="", eps=None, swapped=False, mixed=None):
        """(x, residual) by the book. x: the sum that came in"""
        mixed = self.answer if mixed is None else mixed
        projected = self.linear(mixed.reshape(self.T, -1), "o", without)
        residual = projected + x if added else projected
        y = self.normed(residual, norm, eps) if norm else residual
        return self.mlp(y, without, swapped), residual

    def mlp(self, y, without="", swapped=False):
        gate, up = self.linear(y, "gate", without), self.linear(y, "up", without)
        gate, up = (up, gate) if swapped else (gate, up)
        return self.linear(gate / (1 + np.exp(-gate)) * up, "down", without)

    def swapped_pair(self, x):
        """The residual, where the norm and the sum change places at the first norm."""
        mixed = self.linear(self.answer.reshape(self.T, -1), "o")
        return mixed + self.normed(x, "attention_norm")

    def first_norm_is_read(self, sum_in):
        """Whether the rotation was given the q of the first norm's result."""
        calls = self.calls("rope_and_cache") or self.calls("rope")
        q, *_ = self.heads(sum_in)
        return any(np.shape(call[0]) == q.shape and np.allclose(call[0], q) for call in calls[-1:])

    def of_layer(self, i, x):
        """The result with the weights of another layer."""
        own, (self.w, self.bias) = (self.w, self.bias), self.layers[i]
        out = self.out(x)
        self.w, self.bias = own
        return out


def wrong_residuals(given, sum_in, want_x, want):
    transposed = given.answer.swapaxes(1, 2)
    known = {
        "pair_swapped": ("the two are swapped: x comes first, the residual second", want_x),
        "residual_unchanged": ("the residual is returned unchanged: the result of attention was "
                               "never added", sum_in),
        "residual_replaced": ("the result of attention replaces the residual instead of being "
                              "added to it", given.out(sum_in, added=False)[1]),
        "first_add_missing": ("the addition before the first norm was left out",
                              given.out(given.x)[1]),
        **{f"always_layer_{n}" if n == 1 else f"layer_{n}": (
            f"the weights of layer {n} are used in layer {given.i}", given.of_layer(n, sum_in)[1])
           for n in range(3) if n != given.i},
        "y_for_o": ("the first norm's result is added, instead of the result of o",
                    sum_in + given.normed(sum_in, "attention_norm")),
        "residual_twice": ("the residual is added to x by hand, and again by add_norm",
                           given.out(given.x + 2 * given.residual)[1]),
        "norm_as_residual": ("the normed sum is returned as the residual; the next layer adds to "
                             "the sum itself", given.normed(want, "mlp_norm")),
        "norm_added": ("the result of the second norm is added to the residual",
                       want + given.normed(want, "mlp_norm")),
        "x_twice": ("the x that came in is added a second time, instead of the result of o",
                    sum_in + given.x),
        "x_by_hand": ("x is added twice: by hand, as in g01, and by add_rmsnorm, which makes that "
                      "addition", want + given.x),
        **({"norm_handed_on": ("the second norm is given the first norm's result as the residual, "
                               "not the sum", given.swapped_pair(sum_in))}
           if given.first_norm_is_read(sum_in) else {
               "norm_and_sum_swapped": ("add_norm's pair is taken the wrong way round: the norm "
                                        "comes first, the sum second",
                                        given.swapped_pair(sum_in))}),
        "old_residual": ("the second norm adds the residual that the layer was given; the first "
                         "norm has returned a new one", want - sum_in + given.residual),
        "x_to_itself": ("x is added to itself: in the first layer there is no residual",
                        given.out(2 * given.x)[1]),
        "heads_transposed": ("attention's result is transposed: each head's numbers belong side by "
                             "side", given.out(sum_in, mixed=transposed)[1]),
        "mlp_in_residual": ("the residual already contains the MLP's result, and the next layer "
                            "will add it a second time", want + want_x)}
    if given.biases:
        known["no_bias_o"] = ("o is multiplied without its bias", given.out(sum_in, without="o")[1])
    return known


def wrong_x(given, sum_in, want_x, want):
    known = {
        "mlp_added": ("the MLP's result is already added: a launch that the next layer's norm "
                      "would have saved", want + want_x),
        "first_norm_twice": ("the second norm has the weights of the first",
                             given.out(sum_in, norm="attention_norm")[0]),
        "second_eps": ("the second norm's eps is 1e-5 or less, whatever config.eps is",
                       given.out(sum_in, eps=1e-6)[0]),
        "mlp_of_the_sum": ("gate and up are computed from the sum: the second norm's result is not "
                           "used", given.out(sum_in, norm=None)[0]),
        "mlp_of_first_norm": ("gate and up read the first norm's result; the second norm is left "
                              "out", given.mlp(given.normed(sum_in, "attention_norm"))),
        "gate_up_swapped": ("up goes through SiLU and gate does not: the two are swapped",
                            given.out(sum_in, swapped=True)[0])}
    if given.biases:
        known |= {"no_bias_gate_up": ("gate and up are multiplied without their biases",
                                      given.out(sum_in, without="gate up")[0]),
                  "no_bias_down": ("down is multiplied without its bias",
                                   given.out(sum_in, without="down")[0])}
    return known


class Scores:
    """A grader sets x, residual, norm and head, embedding and eps."""

    def scores(self, a, rows, head=None, eps=None):
        return self.normed(a[rows], eps) @ (self.head if head is None else head).T

    def normed(self, a, eps=None):
        eps = self.eps if eps is None else eps
        return a / np.sqrt((a * a).mean(-1, keepdims=True) + eps) * self.norm

    def wrong_scores(self, places, want):
        total = self.x + self.residual
        first = np.arange(len(places))
        with np.errstate(invalid="ignore", over="ignore"):
            shares = np.exp(want - want.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
        return {
            "x_alone": ("only x is used: the residual was never added",
                        self.scores(self.x, places)),
            "residual_alone": ("only the residual is normed: the last MLP's result is missing",
                               self.scores(self.residual, places)),
            "no_norm": ("the sum is not normed", total[places] @ self.head.T),
            "embedding_as_head": ("the embedding is taken for the head; in this model they are two",
                                  self.scores(total, places, self.embedding)),
            "first_rows": ("they are the scores of the first rows", self.scores(total, first)),
            "rows_before": ("the row before each wanted one is used: `rows` are the last ones",
                            self.scores(total, places - 1)),
            "residual_again": ("the residual is added again after the norm",
                               (self.normed(total[places]) + self.residual[places]) @ self.head.T),
            "x_normed": ("x alone is normed, and the residual added after the norm",
                         (self.normed(self.x[places]) + self.residual[places]) @ self.head.T),
            "ascending": ("rows are taken in ascending order", self.scores(total, np.sort(places))),
            "last_eps": ("the last norm's eps is 1e-5 or less, whatever config.eps is",
                         self.scores(total, places, eps=1e-6)),
            "residual_twice": ("the residual is added twice: add_rmsnorm adds it already",
                               self.scores(total + self.residual, places)),
            "x_doubled": ("x is added to itself, and the residual not at all",
                          self.scores(2 * self.x, places)),
            "residual_doubled": ("the residual is added to itself, and x not at all",
                                 self.scores(2 * self.residual, places)),
            "no_weights": ("the norm's weights are left out: model.norm",
                           self.normed(total[places]) / self.norm @ self.head.T),
            "normed_twice": ("the rows are normed twice",
                             self.normed(self.normed(total[places])) @ self.head.T),
            "shares": ("they are shares, after a softmax, not scores", shares),
            "rows_of_x": ("`rows` are taken of x, and of the residual the first ones",
                          self.normed(self.x[places] + self.residual[first]) @ self.head.T),
            "rows_of_residual": ("`rows` are taken of the residual, and of x the first ones",
                                 self.normed(self.x[first] + self.residual[places]) @ self.head.T)}


def slips(off, m):
    """[(id, sentence)]: the fewest mistakes that make a count wrong by `off`, two at most and one
    of each kind; none where several ways are as short."""
    C, F, D, G, H = m.C, m.F, m.D, m.G, m.H
    kept = ("swiglu_too", "SwiGLU's result is still written, and read by down: gate and up alone "
                          "are saved.")
    once = ("add_once", "Each add saves one reading of C numbers, in the norm after it.")
    tables = (
        {-2 * F: ("gate_up_half", "Gate and up are written by one launch and read by the next: "
                                  "both are saved."),
         -F: ("gate_up_once", "Gate and up are 2·F numbers, which are written and read."),
         -4 * F: ("no_gate_up", "Which arrays went through memory from the gate-and-up matrix to "
                                "SwiGLU?"),
         F: kept, 2 * F: kept,
         4 * F: ("gate_up_twice", "Gate and up are written once and read once.")},
        {-C: ("one_norm", "Two adds are followed by a norm, not one."),
         -2 * C: ("no_norms", "A norm need not read the sum that an add has just written."),
         2 * C: ("sums_not_written", "The sum is still written, since it is the new residual: only "
                                     "its reading is saved."),
         C: once, 4 * C: once, 6 * C: once},
        {-G * D: ("keys_half", "In g03's layer the rotated k is written back and read again: one "
                               "write and one read are saved."),
         -2 * G * D: ("no_keys", "In g03's layer the rotated k is written back before it goes into "
                                 "its slot."),
         **dict.fromkeys((G * D, 2 * G * D), (
             "values_too", "v goes from the matrix product straight into its slot in both layers; "
                           "only k made a detour.")),
         **dict.fromkeys((2 * G - 2 * G * D, 2 * D - 2 * G * D), (
             "head_width", "A token's keys are G heads of D numbers.")),
         2 * H * D - 2 * G * D: ("query_heads", "k has G heads, not H.")},
        {2 * H * D: ("q_too", "q saves nothing: both layers write and read it.")})
    ways = [way for way in product(*({0: None} | table for table in tables)) if sum(way) == off]
    ways = sorted(ways, key=lambda way: sum(map(bool, way)))
    counts = [sum(map(bool, way)) for way in ways]
    if not ways or counts[0] > 2 or counts[0] in counts[1:]:
        return []
    return [table[part] for part, table in zip(ways[0], tables, strict=True) if part]
