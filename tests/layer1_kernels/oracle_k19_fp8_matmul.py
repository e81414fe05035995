"""What comes out of mistakes in the product of e4m3 and scales, in float64."""

import numpy as np


def product_mistakes(a, w, a_scales, w_scales, group, BK):
    """{id: (sentence, what comes out)}."""
    M, K = a.shape
    groups = a_scales.shape[1]
    own = w_scales[np.arange(len(w)) // group]                  # (N, groups)

    def steps(first, second, last=K):
        """The sum with these scales of a (M, groups) and w (N, groups)."""
        return sum(a[:, k:k + BK] @ w[:, k:k + BK].T * first[:, k // group, None]
                   * second[:, k // group] for k in range(0, last, BK))

    ones = np.ones_like(a_scales), np.ones_like(own)
    rescaled = 0
    for k in range(0, K, BK):
        rescaled = (rescaled + a[:, k:k + BK] @ w[:, k:k + BK].T) \
            * a_scales[:, k // group, None] * own[:, k // group]
    whole = np.arange(groups) < K // group
    turned = a_scales.ravel()[(np.arange(groups) * M + np.arange(M)[:, None])]
    return {
        "last_block": ("the last group of k, which has fewer numbers, is left out",
                       steps(a_scales, own, K // group * group)),
        "last_unscaled": ("the last group of k, which has fewer numbers, is added unscaled",
                          steps(np.where(whole, a_scales, 1), np.where(whole, own, 1))),
        "transposed": ("a's scales are read as (groups, M): those of a row are neighbours", steps(
            turned, own)),
        "not_advanced": ("the scales of the first group serve all groups: they move on with k",
                         steps(a_scales[:, :1] + 0 * a_scales, own[:, :1] + 0 * own)),
        "a_twice": ("a's scale is multiplied twice", steps(a_scales**2, own)),
        "w_left_out": ("w's scales are left out", steps(a_scales, ones[1])),
        "a_left_out": ("a's scales are left out", steps(ones[0], own)),
        "no_scales": ("no scale is used", steps(*ones)),
        "in_accumulator": ("what was summed before is multiplied by each new scale again: a scale "
                           "belongs to its own part", rescaled),
        "after_all": ("all parts are added, and then multiplied by the last group's scales: a part "
                      "must be scaled before it is added",
                      steps(a_scales[:, -1:] + 0 * a_scales, own[:, -1:] + 0 * own))}
