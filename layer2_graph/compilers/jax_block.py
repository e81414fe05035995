"""g09's PlainBlock in JAX. jax is optional: whoever imports this file has it."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp


def norm(x, w, eps):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * w


def turn(x, cos, sin):                              # (T, H, D), 2 × (T, 1, D//2) -> (T, H, D)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), -1)


def jax_block(m: Any) -> Any:
    """A function (x, cos, sin, hidden, weights by name) -> (T, C), traced on its first call.

    m: the layer's Config
    """
    def block(x, cos, sin, hidden, weights):
        w = SimpleNamespace(**weights)
        T = x.shape[0]
        y = norm(x, w.attention_norm, m.eps)
        q, k, v = ((y @ matrix.T).reshape(T, -1, m.D) for matrix in (w.q, w.k, w.v))
        cos, sin = cos[:, None], sin[:, None]
        q = turn(q, cos, sin) * m.scale
        k = turn(k, cos, sin)
        k, v = (jnp.repeat(a, m.H // m.G, 1) for a in (k, v))           # (T, H, D)
        scores = q.transpose(1, 0, 2) @ k.transpose(1, 2, 0)            # (H, T, T)
        shares = jax.nn.softmax(jnp.where(hidden, -jnp.inf, scores), -1)
        mixed = (shares @ v.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(T, -1)
        x = x + mixed @ w.o.T
        y = norm(x, w.mlp_norm, m.eps)
        return x + (jax.nn.silu(y @ w.gate.T) * (y @ w.up.T)) @ w.down.T

    return jax.jit(block)
