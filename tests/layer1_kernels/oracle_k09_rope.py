"""Rotated heads by the book, in float64, and what mistakes give instead."""

import numpy as np

from tests.layer1_kernels.mistake_rows import named

ROOM, THETA = 50, 100.0


def angles(room, D, theta=THETA):               # -> 2 × (room, D//2), as float32 has them
    angle = np.arange(room)[:, None] * theta ** (-np.arange(0, D, 2) / D)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def turned(x, c, s):                            # (T, H, D), 2 × (T, 1, D//2) -> (T, H, D)
    a, b = np.split(x, 2, axis=-1)
    return halves(a * c - b * s, b * c + a * s)


def halves(first, second):
    return np.concatenate((first, second), axis=-1)


def tensor(array, dtype):
    """A CPU tensor of dtype; the array is rounded to it, so that oracles start from the same."""
    import torch

    rounded = torch.from_numpy(array.astype(np.float32)).to(getattr(torch, dtype))
    array[...] = rounded.double().numpy()
    return rounded


def inputs(rng, T, H, G, D, dtype, generator=None, begin=0):
    """An array of H + 2·G heads a token, the same as a tensor, and the tables and positions, all
    of them from `begin` on."""
    import torch

    shape = T, H + 2 * G, D
    both = generator(rng, shape).astype(float) if generator else rng.standard_normal(shape)
    x = tensor(both, dtype)
    positions = begin + np.array([ROOM - 1, *rng.permutation(ROOM - 1)[:T - 1]], np.int64)
    cos, sin = angles(begin + ROOM, D)
    return both, x, cos, sin, positions, [torch.from_numpy(a) for a in (cos, sin, positions)]


def mistakes_of(name, both, until, cos, sin, positions, way=1):
    """(what is right, {mistake: (sentence, what it gives)}): `until` heads of a token rotated."""
    c, s = cos[positions, None].astype(np.float64), way * sin[positions, None].astype(np.float64)
    T, _, D = both.shape
    x = both[:, :until]
    a, b = np.split(x, 2, axis=-1)
    new, old = a * c - b * s, b * c + a * s         # of the first half, of the second
    pairs = np.empty_like(x)
    pairs[..., ::2] = x[..., ::2] * c - x[..., 1::2] * s
    pairs[..., 1::2] = x[..., 1::2] * c + x[..., ::2] * s
    flat = [table.reshape(-1)[positions[:, None] + np.arange(D // 2)][:, None] for table in
            (cos, way * sin)]
    right = turned(x, c, s)
    rows = {
        "first_added": ("adds b · s in the first half; subtract it", halves(a * c + b * s, old)),
        "second_subtracted": ("subtracts a · s in the second half; add it",
                              halves(new, b * c - a * s)),
        "second_mixed": ("computes the second half as a · c + b · s; it is b · c + a · s",
                         halves(new, a * c + b * s)),
        "halves_taken_swapped": ("takes the first half for b and the second for a",
                                 halves(b * c - a * s, a * c + b * s)),
        "halves_stored_swapped": ("stores each half in the place of the other", halves(old, new)),
        "no_sin": ("multiplies by cos alone, and leaves sin out", turned(x, c, 0)),
        "cos_for_sin": ("takes cos for sin too", turned(x, c, c)),
        "sin_for_cos": ("takes sin for cos too", turned(x, s, s)),
        "cos_and_sin_swapped": ("swaps cos and sin", turned(x, s, c)),
        "p_plus_d": ("uses number p + d of the tables; position p starts at p * half",
                     turned(x, *flat)),
        "first_half_overwritten": (
            "computes the second half from the first half after it was overwritten; load both "
            "halves before you store", halves(new, b * c + new * s)),
        "other_way": ("rotates the other way: check the signs", turned(x, c, -s)),
        "neighbours": ("pairs neighbours (0 with 1); number d goes with number d + D/2", pairs),
        "row_t": ("uses the angles of row t; use the row positions[t]",
                  turned(x, cos[:T, None], way * sin[:T, None])),
        "first_position": ("gives every token the angles of the first", turned(x, c[:1], s[:1])),
        "first_half_only": ("writes only the first half", halves(new, b)),
        "first_token_only": ("rotates only the first token", np.concatenate((right[:1], x[1:]))),
        "first_head_only": ("rotates only the first head of each token",
                            np.concatenate((right[:, :1], x[:, 1:]), axis=1)),
        "nothing_changed": ("changes nothing", x)}
    want, *answers = (np.concatenate((part, both[:, until:]), axis=1)
                      for part in (right, *(answer for _, answer in rows.values())))
    return want, named(name, {
        known: (phrase, answer) for (known, (phrase, _)), answer in zip(
            rows.items(), answers, strict=True)
        if not np.allclose(answer, want, rtol=2e-3, atol=0, equal_nan=True)})


def at(index):
    t, h, d = index
    return f"token {t}, head {h}, number {d}"
