"""A layer of g01's Llama by the book, in float64, and what comes of each known mistake."""

from typing import Any

import numpy as np

Wrong = dict[str, tuple[str, Any]]      # {id: (what went wrong, what comes of it)}


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


class Block:
    """Layer i. A grader sets w, bias: its arrays by name; layers: [(w, bias)] of all;
    x: what comes in; answer: of attention; positions and slots of the tokens; room: rows of cos
    and sin; T, C, H, D, eps."""

    def linear(self, x, name, without=""):
        return x @ self.w[name].T + self.bias[name] * (name not in without.split())

    def normed(self, x, name, eps=None):
        """x itself if no norm is named."""
        if not name:
            return x
        eps = self.eps if eps is None else eps
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.w[name]

    def heads(self, name, positions=None, norm="attention_norm", own=True, swapped=False, eps=None):
        """q, k or v of the tokens, turned if positions are given. own: with the norm of each head
        swapped: sin in the place of cos"""
        x = self.linear(self.normed(self.x, norm, eps), name).reshape(self.T, -1, self.D)
        if own and f"{name}_norm" in self.w:
            x = self.normed(x, f"{name}_norm")
        if positions is None:
            return x
        half = self.D // 2
        angle = positions[:, None] * 100.0 ** (-np.arange(half) / half)             # (T, D/2)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        c, s = (s, c) if swapped else (c, s)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    def wrong_heads(self, name):
        """{id: (what went wrong, the q or the k that comes of it)}"""
        at = self.positions
        short = at.astype(np.int16).astype(int) % self.room     # as an index below 0 is taken
        return {
            f"{name}_not_rotated": (f"{name} is not rotated by rope", self.heads(name)),
            "rows_for_positions": ("rope gets row numbers of the step instead of batch.positions",
                                   self.heads(name, np.arange(self.T))),
            "slots_for_positions": ("rope gets batch.slots instead of batch.positions",
                                    self.heads(name, self.slots)),
            "short_positions": ("positions are kept in 16 bits, which end at 32,767",
                                self.heads(name, short)),
            "positions_from_1": ("positions are counted from 1", self.heads(name, at + 1)),
            "cos_and_sin": ("rope gets cos and sin in the other order",
                            self.heads(name, at, swapped=True)),
            f"{name}_not_normed": (f"{name} is made from x itself: the first norm is left out",
                                   self.heads(name, at, norm="")),
            "first_norm_weights": ("the first norm has the weights of the second",
                                   self.heads(name, at, norm="mlp_norm")),
            "first_norm_eps": ("the first norm has another eps than the model's",
                               self.heads(name, at, eps=0)),
            f"no_{name}_norm": (
                f"{name}_norm is left out: model.heads knows the norms of each head",
                self.heads(name, at, own=False)),
            "layer_0": ("the weights of layer 0 are used for every i",
                        self.of_layer(0, lambda: self.heads(name, at)))} | (
                {} if name == "q" else {"k_and_v": (
                    "k and v are passed in the other order", self.heads("v"))})

    def wrong_scales(self):
        D, C, H = self.D, self.C, self.H
        return {
            "scale_root": ("the scale is √D instead of 1/√D", D ** 0.5),
            "scale_1_over_d": ("the scale is 1/D instead of 1/√D", 1 / D),
            "scale_c_by_h": (
                "the scale is 1/√(C/H); a head has width D, here not C/H", (C / H) ** -0.5),
            "scale_c_whole_h": (
                "the scale is 1/√(C//H); a head has width D, here not C//H", (C // H) ** -0.5),
            "scale_of_c": ("the scale is 1/√C; a head has width D", C ** -0.5),
            "scale_1": ("the scale is 1", 1.0)}

    def out(self, residual=True, second=True, norm="mlp_norm", pair=("gate", "up"), without="",
            read=None, first=None, last=None, answer=None, eps=None, of_x="",
            act=lambda gate, up: silu(gate) * up):
        """first: what the attention's result is added to    last: what the MLP's is added to
        read: what the second norm reads    pair: the two matrices of the MLP
        of_x: gate or up, which takes what the second norm should take"""
        mixed = (self.answer if answer is None else answer).reshape(self.T, -1)
        first = self.x if first is None else first
        x = self.linear(mixed, "o", without) + first * residual
        y = self.normed(x if read is None else read, norm, eps)
        gate, up = (self.linear(x if name == of_x else y, name, without) for name in pair)
        x = x if last is None else y if isinstance(last, str) else last
        return self.linear(act(gate, up), "down", without) + x * second

    def wrong_outs(self):
        """{id: (what went wrong, the result that comes of it)}"""
        mixed = self.linear(self.answer.reshape(self.T, -1), "o")
        return {
            "attention_not_added": ("the result of attention is not added to x",
                                    self.out(residual=False)),
            "mlp_not_added": ("the result of the MLP is not added to x", self.out(second=False)),
            "attention_to_normed": (
                "the result of attention is added to the normed x, not to x itself",
                self.out(first=self.normed(self.x, "attention_norm"))),
            "mlp_to_normed": ("the result of the MLP is added to the normed x, not to x itself",
                              self.out(last="normed")),
            "second_norm_weights": ("the second norm has the weights of the first",
                                    self.out(norm="attention_norm")),
            "no_second_norm": ("the second norm is left out", self.out(norm="")),
            "second_norm_eps": ("the second norm has another eps than the model's",
                                self.out(eps=0)),
            "gate_and_up": ("gate and up are swapped", self.out(pair=("up", "gate"))),
            **{f"{name}_twice": (f"the matrix {name} is used for gate and for up",
                                 self.out(pair=(name, name))) for name in ("gate", "up")},
            "no_silu": ("gate and up are multiplied without SiLU",
                        self.out(act=lambda gate, up: gate * up)),
            "sigmoid": ("gate goes through sigmoid, not SiLU, which is gate · sigmoid(gate)",
                        self.out(act=lambda gate, up: up / (1 + np.exp(-gate)))),
            "relu": ("gate goes through ReLU, not SiLU",
                     self.out(act=lambda gate, up: np.maximum(gate, 0) * up)),
            "silu_twice": ("SiLU is applied twice: ops.swiglu applies it to gate",
                           self.out(act=lambda gate, up: silu(silu(gate)) * up)),
            "silu_of_product": ("SiLU is taken of gate · up, not of gate alone",
                                self.out(act=lambda gate, up: silu(gate * up))),
            "layer_0": ("the weights of layer 0 are used for every i", self.of_layer(0, self.out)),
            "parallel": ("the MLP reads the x that came in, instead of the sum after attention",
                         self.out(read=self.x)),
            "first_norm_for_mlp": ("the MLP reads the first norm's result: the second norm is left "
                                   "out", self.out(norm="", read=self.normed(
                                       self.x, "attention_norm"))),
            "norm_of_attention": ("the second norm reads the result of attention, not the sum",
                                  self.out(read=mixed)),
            "x_added_twice": ("the x that came in is added twice", self.out() + self.x),
            "normed_returned": ("the second norm's result is returned",
                                self.normed(mixed + self.x, "mlp_norm")),
            "mlp_to_original": ("the result of the MLP is added to the x that came in, so that the "
                                "result of attention is lost", self.out(last=self.x)),
            "number_by_number": ("the numbers of a token are in the order (D, H), not (H, D)",
                                 self.out(answer=self.answer.transpose(0, 2, 1))),
            "heads_first": ("heads come before tokens in the rows that are multiplied with o",
                            self.out(answer=self.answer.transpose(1, 0, 2))),
            **{f"no_bias_of_{name}": (
                f"{name} is multiplied without its bias", self.out(without=name))
               for name in ("o", "gate", "up", "down")},
            "no_bias_of_either": ("gate and up are multiplied without their biases",
                                  self.out(without="gate up")),
            "no_bias_of_both": ("o and down are multiplied without their biases",
                                self.out(without="o down")),
            "no_biases": ("o, gate, up and down are multiplied without their biases",
                          self.out(without="o gate up down")),
            **{f"{name}_not_normed": (
                f"{name} takes x, not the result of the second norm", self.out(of_x=name))
               for name in ("gate", "up")},
            **{f"result_normed_by_{name}": (
                f"the result is normed, by the layer's {name}", self.normed(self.out(), name))
               for name in ("attention_norm", "mlp_norm")}}

    def of_layer(self, i, function):
        """What a function gives with the weights of another layer."""
        own, (self.w, self.bias) = (self.w, self.bias), self.layers[i]
        out = function()
        self.w, self.bias = own
        return out
