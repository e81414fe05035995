"""What wrong numbers have in common, where no known mistake explains them: facts, not guesses."""

import numpy as np

FEWEST = 3              # numbers of which a sentence about "each" says something
LONG = 5                # an axis with ends worth a word
LARGEST_FACTOR = 64     # of a single number: beyond it a whole ratio is chance


def pattern(value, want, wrong, near):
    """A sentence, "" if nothing stands out.

    value: the answer;  want: the oracle, of the same shape;  wrong: where they differ
    near(a, b): whether all of a is b, within the test's tolerance
    """
    if value.dtype.kind == "c" or want.dtype.kind == "c":
        return ""
    with np.errstate(all="ignore"):
        for sentence in (factor, offset, elsewhere, alike, region):
            if text := sentence(value, want, wrong, near):
                return text
    return ""


def factor(value, want, wrong, near):
    """The answer is a multiple of the right one."""
    value, want = (np.asarray(x, np.float64) for x in (value, want))
    nonzero = np.isfinite(want) & (want != 0)
    if not np.isfinite(value).all() or not nonzero.any():
        return ""
    ratio = float(np.median(value[nonzero] / want[nonzero]))
    if ratio == 0 or f"{ratio:.4g}" == "1" or not near(value, want * ratio):
        return ""
    which = "each is" if want.size > 1 else "that is"
    if near(value, -want):
        return f"{which} the right number with the wrong sign"
    whole = max(abs(ratio), 1 / abs(ratio))
    exact = abs(whole - round(whole)) < 1e-6 and 2 <= round(whole) <= LARGEST_FACTOR
    if exact and ratio > 0:
        times = f"{round(whole)} times" if ratio > 1 else f"1/{round(whole)} of"
        return f"{which} {times} the right number"
    return f"{which} {ratio:.6g} times the right number" if nonzero.sum() >= FEWEST else ""


def offset(value, want, wrong, near):
    """The answer is the right one and a constant."""
    value, want = (np.asarray(x, np.float64) for x in (value, want))
    if value.size < FEWEST or not (np.isfinite(value) & np.isfinite(want)).all():
        return ""
    by = float(np.median(value - want))
    if by == 0 or not wrong.all() or not near(value, want + by) or near(want, want + by):
        return ""
    return f"each is {abs(by):.6g} {'more' if by > 0 else 'less'} than the right number"


def elsewhere(value, want, wrong, near):
    """The right numbers, in other places."""
    if value.size < FEWEST or np.isnan(value).any() or np.isnan(want).any() or \
            not near(np.sort(value, axis=None), np.sort(want, axis=None)):
        return ""
    moves = {f"in reverse order along axis {axis}": np.flip(want, axis)
             for axis in range(want.ndim) if want.shape[axis] > 1}
    moves |= {f"shifted by {by} along axis {axis}, in a circle": np.roll(want, by, axis)
              for axis in range(want.ndim) for by in (1, -1) if want.shape[axis] > 2}
    if want.ndim >= 2 and min(want.shape[-2:]) > 1:
        moves = {"transposed: row and column are exchanged":
                 np.swapaxes(want, -1, -2).reshape(want.shape)} | moves
    for how, moved in moves.items():
        if near(value, moved):
            return f"these are the right numbers {how}"
    return "these are the right numbers in other places"


def alike(value, want, wrong, near):
    """All wrong numbers are the same one."""
    bad = value[wrong]
    if bad.size < FEWEST:
        return ""
    if np.isnan(bad).all():
        return "all the wrong ones are NaN"
    return f"all the wrong ones are {bad[0].item():.6g}" if (bad == bad[0]).all() and not (
        want[wrong] == want[wrong][0]).all() else ""


def region(value, want, wrong, near):
    """The wrong numbers lie at one end of an axis."""
    for axis in reversed(range(wrong.ndim)):
        n = wrong.shape[axis]
        at = np.flatnonzero(wrong.any(axis=tuple(i for i in range(wrong.ndim) if i != axis)))
        if n < LONG or at.size in (0, n) or at.size != at[-1] - at[0] + 1:
            continue
        place = f"along axis {axis}" if wrong.ndim > 1 else "of them"
        if at[-1] == n - 1:
            return f"only the last {at.size} of {n} {place} are wrong" if at.size > 1 else \
                f"only the last of {n} {place} is wrong"
        if at[0] == 0:
            return f"only the first {at.size} of {n} {place} are wrong" if at.size > 1 else \
                f"only the first of {n} {place} is wrong"
    return ""
