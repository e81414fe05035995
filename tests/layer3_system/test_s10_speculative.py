"""Graders of s10.
V: vocabulary   γ: guesses of a step   S: slots of a page"""

import numpy as np

from lab.judge.compare import lists
from lab.judge.mistakes import mistake, raises

DRIVER = "layer3_system.testing.speculation_driver:GuessedStep"
# χ² of 7 degrees of freedom: 1 in 1,000 right answers is above. Seeds are fixed, so none ever is.
LIMIT = 24.3


def named(got, variants, rule):
    """(id, sentence) of the variant that gives what came out, else ("other", rule).

    variants: {id: (sentence, value)}
    """
    return next(((name, why) for name, (why, value) in variants.items() if value == got),
                ("other", rule))


# ---- predictions


def written(alpha, guesses, blocks=40_000):
    """Tokens a step, the mean of seeded steps."""
    holds = np.random.default_rng(0).random((blocks, guesses)) < alpha
    return 1 + np.cumprod(holds, 1).sum() / blocks


def near(got, wrong, tolerance):
    return isinstance(got, (int, float)) and abs(got - wrong) <= tolerance


def test_predict_tokens_a_step(subject):
    want = written(0.8, 4)
    got = subject.predict_tokens_a_step()
    known = {"each_alone": (4.2, "1 + 4 · 0.8 counts guesses that come after a refused one"),
             "no_bonus": (2.3616, "that is the guesses that hold; each step adds a token of its "
                                  "own"),
             "all_hold": (5, "that is a step in which all guesses hold"),
             "only_all": (1 + 0.8**4 * 4, "a step keeps the guesses before a refused one, too")}
    name, why = next(((name, why) for name, (wrong, why) in known.items()
                      if near(got, wrong, 0.005)), ("other", "what is the chance of n tokens or "
                                                    "more?"))
    assert near(got, want, 0.02) and near(got, (1 - 0.8**5) / 0.2, 0.01), mistake(
        name, f"predict_tokens_a_step: {got!r:.20} tokens a step is not right: {why}", why)


def test_predict_same_number(subject):
    sums = np.cumsum([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]], 1)
    u = (np.arange(10_000) + 0.5) / 10_000
    one, other = (np.searchsorted(row, u, side="right") for row in sums)
    want = (one == other).mean()
    got = subject.predict_same_number()
    known = {"minimum": (0.7, "the sum of the smaller shares is what the best rule reaches; here "
                              "what lies before a token shifts it in the running sum"),
             "independent": (0.29, "that is for two draws with a number each"),
             "always": (1, "the same u lies at another token where the shares differ")}
    name, why = next(((name, why) for name, (wrong, why) in known.items()
                      if near(got, wrong, 0.005)), ("other", "draw both sums above each other"))
    assert near(got, want, 0.005), mistake(
        name, f"predict_same_number: {got!r:.20} is not right: {why}", why)


# ---- lookup


def followed(tokens, count, longest=4, choose=lambda n, begin: (n, begin), overlap=True):
    """By all pairs of a length and a place.
    The options are mistakes."""
    N = len(tokens)
    pairs = [(n, begin) for n in range(1, longest + 1)
             for begin in range(N - n if overlap else N - 2 * n + 1)
             if tokens[begin:begin + n] == tokens[N - n:]]
    if not pairs:
        return []
    n, begin = max(pairs, key=lambda pair: choose(*pair))
    return tokens[begin + n:begin + n + count]


def check_lookup(subject, tokens, count, **options):
    got = lists(subject.lookup(list(tokens), count, **options))
    want = followed(tokens, count, **options)
    wrong = {
        "no_overlap": ("an earlier occurrence may overlap the end, and this one does",
                       followed(tokens, count, **options, overlap=False)),
        "first_occurrence": (
            "this followed the first earlier occurrence; the last one is nearer to what comes now",
            followed(tokens, count, **options, choose=lambda n, begin: (n, -begin))),
        "shortest_first": (
            "this followed a shorter end of the text, though a longer one occurred before, too",
            followed(tokens, count, **options, choose=lambda n, begin: (-n, begin))),
        "any_length": ("the end that was looked for is longer than `longest`",
                       followed(tokens, count, longest=len(tokens))),
        "all_that_follows": ("that is more than `count` tokens",
                             followed(tokens, len(tokens), **options)),
        "starts_at_match": ("guesses begin after the occurrence; these begin with the occurrence "
                            "itself", followed(tokens, count + 99, **options)),
        "finds_itself": ("no guess: was the end of the text found at its own place, where nothing "
                         "follows it?", [])}
    name, why = named(got, wrong, "the longest end first, then the last of its earlier "
                                  "occurrences, then what follows")
    shown = f"{tokens}" if len(tokens) < 20 else f"[… {', '.join(map(str, tokens[-12:]))}]"
    assert got == want, mistake(
        name, f"lookup({shown}, {count}{''.join(f', {k}={v}' for k, v in options.items())}): got "
        f"{got!r:.100}, expected {want}: {why}", why)


def test_lookup(subject, rng):
    for tokens in ([1, 2, 3, 9, 1, 2], [5, 1, 7, 5, 2, 5], [1, 2, 8, 3, 2, 9, 1, 2], [], [7],
                   [7, 7, 7], [1, 2, 3] * 4, [1, 2, 3], [4, 1, 2, 3, 4, 5, 9, 2, 3, 4, 5]):
        for count in (1, 4):
            check_lookup(subject, tokens, count)
    check_lookup(subject, [1, 2, 3, 1, 2], 0)
    check_lookup(subject, [3, 7, 1, 2, 3, 8, 3, 9, 2, 3], 2, longest=1)
    check_lookup(subject, [0, 1, 2, 3, 4, 5, 8, 1, 2, 3, 4, 5, 9, 0, 1, 2, 3, 4, 5], 2, longest=2)
    for symbols, length in ((5, 600), (40, 127), (2, 30)):
        check_lookup(subject, rng.integers(symbols, size=length).tolist(), 4)


# ---- a race


def winners(rows, shares):
    """By Gumbel's noise, and by likely mistakes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        times = -np.log(rows) / shares
        return (np.argmax(np.log(shares) - np.log(-np.log(rows)), 1).tolist(), {
            "times_noise": ("shares are multiplied by the noise: shares 0.6 and 0.4 would win 0.67 "
                            "and 0.33 of the races", np.argmax(shares * rows, 1).tolist()),
            "slowest": ("the greatest time wins", np.nanargmax(times, 1).tolist()),
            "no_log": ("the time is (1 - noise) / share, without a logarithm: that is close and "
                       "not exact, a share of 0.9 would win 0.944 of the races",
                       np.argmin((1 - rows) / shares, 1).tolist()),
            "times_shares": ("the time is E · share: the least likely token wins most often",
                             np.argmin(-np.log(rows) * shares, 1).tolist()),
            "no_noise": ("the likeliest token always wins",
                         np.argmax(np.tile(shares, (len(rows), 1)), 1).tolist())})


def check_races(subject, shares, rows):
    want, wrong = winners(rows, shares)
    got = [int(subject.draw_by_noise(shares, row)) for row in rows]
    name, why = named(got, wrong, "the least -log(noise) / share wins")
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), 0)
    assert got == want, mistake(
        name, f"draw_by_noise: of {len(shares)} tokens with shares {shares.round(3)[:6]}, token "
        f"{got[at]} wins with the noise {rows[at].round(3)[:6]}, expected token {want[at]}: {why}",
        why)


def test_draw_by_noise(subject, rng):
    for shares in (np.array([0.6, 0.4]), np.array([0.9, 0.05, 0.05]), rng.dirichlet([0.7] * 8),
                   np.array([0, 0.5, 0, 0.5, 0]), rng.dirichlet([0.1] * 127)):
        check_races(subject, shares, np.maximum(rng.random((40, len(shares))), 2.0**-53))
    check_races(subject, np.ones(1), np.array([[0.3]]))
    check_races(subject, np.array([0.2, 0.8]), np.array([[1e-300, 0.5], [0.5, 1e-300]]))


def test_draw_by_noise__distribution(subject):
    shares = np.random.default_rng(3).dirichlet([0.7] * 8)
    counts = np.asarray(subject.tally_noise(shares, 20_000, 5))
    value = chi_square(counts, shares)
    assert value < LIMIT, mistake(
        "distribution", f"20,000 races: χ² is {value:.0f}, of 7 degrees of freedom at most {LIMIT} "
        f"is chance. Won: {counts}, expected {(20_000 * shares).round().astype(int)}",
        "tokens do not win as often as their shares say")


# ---- accept


def chi_square(counts, shares):
    """Counts of a place against its shares."""
    want = counts.sum() * shares
    return float(((counts - want) ** 2 / want).sum())


def take(weights, u):
    """The first token whose share of the total, added to those before it, is above u."""
    running = 0.0
    total = float(weights.sum())
    for token, weight in enumerate(weights):
        running += weight
        if running > u * total:
            return token
    return int(np.flatnonzero(weights)[-1])


def decided(p, q, guesses, u_accept, u_draw, ratio=lambda p, q: p / q if q else np.inf,
            residual=lambda p, q: np.clip(p - q, 0, None), last=None, number=None, bonus=-1,
            go_on=False):
    """A table of all γ decisions, then the first refusal.
    The options are mistakes."""
    table = [u < ratio(p[i, x], q[i, x]) for i, (x, u) in enumerate(zip(guesses, u_accept,
                                                                        strict=True))]
    refusals = [i for i, holds in enumerate(table) if not holds]
    tokens = list(guesses)
    for i in refusals if go_on else refusals[:1]:
        left = residual(p[i], q[i])
        tokens[i] = take(left if left.any() else p[i], (u_draw if number is None else number)[i])
    if refusals and not go_on:
        return tokens[:refusals[0] + 1]
    return [*tokens, take(p[-1] if last is None else last, u_draw[bonus])]


def wrong_blocks(*step):
    p, q, guesses, u_accept, u_draw = step
    left = np.clip(p[-1] - q[-1], 0, None) if len(q) else p[-1]
    return {
        "no_residual": ("a refused guess is replaced by a draw with p: then tokens that the draft "
                        "likes too much come too often", decided(*step, residual=lambda p, q: p)),
        "residual_of_draft": ("a refused guess is replaced by a draw with q",
                              decided(*step, residual=lambda p, q: q)),
        "absolute": ("the residual is |p - q|: tokens that the draft likes too much come back "
                     "through it", decided(*step, residual=lambda p, q: abs(p - q))),
        "accepts_nearly": ("p and q differ by rounding alone, and this guess is refused all the "
                           "same. The residual is 0 everywhere; draw with p[i] then", decided(
                               *step, ratio=lambda p, q: (1 + 1e-12) * p / q if q else np.inf)),
        "accepts_often": ("guesses hold more often than p / q", decided(
            *step, ratio=lambda p, q: 1.25 * p / q if q else np.inf)),
        "zero_share": ("a guess that p rules out is kept where u_accept is 0; it holds where u is "
                       "below p / q, not where it is equal", decided(
                           *step, ratio=lambda p, q: np.nextafter(p / q, np.inf) if q else np.inf)),
        "by_share": ("a guess holds with p, whatever q is", decided(*step, ratio=lambda p, q: p)),
        "upside_down": ("a guess holds with q / p: the model's own favourites are refused",
                        decided(*step, ratio=lambda p, q: q / p if p else np.inf)),
        "bonus_of_draft": ("the token after the last guess is drawn with a row of q",
                           decided(*step, last=q[-1] if len(q) else p[-1])),
        "bonus_of_residual": ("the token after the last guess is drawn with a residual; no guess "
                              "was refused there",
                              decided(*step, last=left if left.any() else p[-1])),
        "likeliest": ("the token after the last guess is always the likeliest one; it must be "
                      "drawn", decided(*step, last=np.eye(len(p[-1]))[p[-1].argmax()])),
        "bonus_number": ("the token after the last guess is drawn with the number of the first "
                         "place: place i has u_draw[i]", decided(*step, bonus=0)),
        "last_number": ("a refused guess is replaced by a draw with the number of the last place: "
                        "place i has u_draw[i]",
                        decided(*step, number=np.full(len(u_draw), u_draw[-1]))),
        "no_bonus": ("all guesses hold, and the token after them is missing",
                     decided(*step)[:len(guesses)] if guesses else []),
        "nothing_drawn": ("a refused guess is left out, and no token replaces it",
                          decided(*step)[:-1]),
        "one_number": ("the replacement is drawn with u_accept, which is never small where a guess "
                       "was refused", decided(*step, number=u_accept)),
        "goes_on": ("guesses after a refused one are kept: they rest on a token that is not there",
                    decided(*step, go_on=True))}


def step_of(rng, V, guesses, alpha=0.7):
    """Arguments of `accept`, drawn."""
    p = rng.dirichlet([alpha] * V, guesses + 1)
    q = rng.dirichlet([alpha] * V, guesses).reshape(guesses, V)
    drafted = [int(rng.choice(V, p=row)) for row in q]
    return p, q, drafted, rng.random(guesses), rng.random(guesses + 1)


def digits(x):
    """A share as text, with all digits where two would hide that it is not 1."""
    return f"{x:.17g}" if 0 < abs(1 - x) < 0.005 else f"{x:.2f}"


def check_blocks(subject, steps):
    """All steps at once: a mistake is one that explains each of them."""
    got = [[int(t) for t in subject.accept(*step)] for step in steps]
    want = [decided(*step) for step in steps]
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), None)
    if at is None:
        return
    every = [wrong_blocks(*step) for step in steps]
    name, why = named(got, {key: (every[0][key][0], [row[key][1] for row in every])
                            for key in every[0]},
                      "the bonus is drawn with p alone, and place i has u_draw[i]")
    p, q, guesses, u_accept, _ = steps[at]
    ratios = [digits(p[i, x] / q[i, x] if q[i, x] else np.inf) for i, x in enumerate(guesses)]
    raise AssertionError(mistake(
        name, f"accept: guesses {guesses} with p/q {', '.join(ratios) or '(none)'} and u_accept "
        f"{', '.join(map(digits, u_accept)) or '(none)'}: got {got[at]}, expected {want[at]}: "
        f"{why}", why))


def test_accept(subject, rng):
    check_blocks(subject, [step_of(rng, 8, 3) for _ in range(60)])
    check_blocks(subject, [step_of(rng, V, n) for V, n in ((1, 2), (2, 1), (127, 5), (8, 0))])


def test_accept__edges(subject):
    """q equal to p; no token in common; a guess that p rules out; a residual of rounding alone."""
    chance = np.random.default_rng(2)
    p, _, _, _, u = step_of(chance, 8, 2)
    check_blocks(subject, [(p, p[:2].copy(), [int(p[0].argmax()), int(p[1].argmax())],
                            np.array([0.999, 0.0]), u)])
    apart = np.array([[0.5, 0.5, 0, 0], [0.2, 0.3, 0.4, 0.1]])
    check_blocks(subject, [(apart, np.array([[0, 0, 0.4, 0.6]]), [guess], np.array([least]),
                            np.array([0.7, 0.1])) for guess in (2, 3) for least in (0.0, 0.9)])
    almost = np.array([[0.25, 0.75], [0.5, 0.5]])
    with raises("empty_residual", ValueError, "p and q differ by rounding alone: the residual is 0 "
                                              "everywhere; draw with p[i] then"):
        check_blocks(subject, [(almost, almost[:1] * [1 + 2e-16, 1 + 2e-16], [1],
                                np.array([1 - 2.0**-53]), np.array([0.1, 0.9]))])


def test_accept__distribution(subject):
    """20,000 steps: each place has the distribution of p, and steps are as long as they should."""
    chance = np.random.default_rng(7)
    p, q, _, _, _ = step_of(chance, 8, 3)
    counts = np.asarray(subject.tally(p, q, 20_000, 11))
    for place, row in enumerate(counts):
        value = chi_square(row, p[place])
        assert value < LIMIT, mistake(
            "distribution", f"20,000 steps, token {place + 1} of a step: χ² is {value:.0f}, of 7 "
            f"degrees of freedom at most {LIMIT} is chance. Came: {row}, expected "
            f"{(row.sum() * p[place]).round().astype(int)}", "the distribution is not the model's")
    alphas = np.minimum(p[:3], q).sum(1)
    want = 1 + np.cumprod(alphas).sum()
    got = counts.sum() / 20_000
    assert abs(got - want) < 0.02, mistake(
        "length", f"a step has {got:.2f} tokens on average, expected {want:.2f}",
        "steps are not as long as the shares allow")


# ---- roll_back


def check_roll_back(subject, S, prompt, answer, guesses, right):
    """right: how many guesses held; the step wrote one token more"""
    drafted = list(range(100, 100 + guesses))
    tokens = [*drafted[:right], 7]
    step = subject.make(DRIVER, S, list(range(prompt)), list(range(50, 50 + answer)), drafted,
                        tokens)
    before = step.state()
    with raises("not_back", IndexError, "num_computed counts tokens whose pages are gone"):
        subject.roll_back(step.request, step.pool)
    got = step.state()
    N = prompt + answer + right + 1
    need = -(-N // S)
    what = (f"a text of {prompt + answer} tokens, {guesses} guesses, {right} of them held; pages "
            f"of {S} slots")
    assert got["tokens"] == before["tokens"], mistake(
        "tokens_changed", f"{what}: the tokens are {got['tokens']}, they were {before['tokens']}",
        "the tokens of the answer change")
    computed = got["num_computed"]
    lost = guesses - right
    name, why = (("not_back", f"of these, {lost} are keys of refused guesses")
                 if computed == before["num_computed"] else
                 ("all_refused", "the keys of guesses that held stay right")
                 if computed == prompt + answer - 1 else
                 ("one_too_far", "a token with keys will be computed again")
                 if computed < N - 1 else
                 ("newest_too", "the newest token was drawn, and has no keys yet"))
    assert computed == N - 1, mistake(
        name, f"{what}: num_computed is {computed}, expected {N - 1}: {why}",
        why if name != "not_back" else "refused guesses count as computed")
    assert got["draft"] == [], mistake(
        "draft_kept", f"{what}: request.draft still has {got['draft']}", "old guesses stay")
    assert got["table"] == before["table"][:need], mistake(
        "keeps_pages" if len(got["table"]) > need else "wrong_pages",
        f"{what}: the table has the pages {got['table']}, expected {before['table'][:need]}, for "
        f"{N} tokens", "the table has other pages than the tokens need")
    size = len(got["table"])
    assert got["used"] == size, mistake(
        "leaks", f"{what}: {got['used']} pages are held, the table has {size}: the others must go "
        f"back to the pool", "pages that leave the table are not given back")
    full = (N - 1) // S
    name, why = (("cached_first", "that is a page with keys of refused guesses, or one that is not "
                                  "full") if got["cached"] > full else
                 ("not_cached", "cache_pages was not called after the count was right"))
    assert got["cached"] == full and got["known"] == got["table"][:full], mistake(
        name, f"{what}: the pool remembers {got['cached']} pages, expected {full}: {why}", why)


def test_roll_back(subject, rng):
    for right in (2, 0, 1, 3, 4, 5):
        check_roll_back(subject, 4, 5, 2, 5, right)
    for S, prompt, answer, guesses, right in ((4, 4, 0, 3, 0), (1, 1, 0, 2, 1), (16, 127, 3, 5, 2),
                                              (4, 3, 1, 0, 0), (4, 7, 1, 8, 8)):
        check_roll_back(subject, S, prompt, answer, guesses, right)
    for S, prompt, answer, guesses in rng.integers((1, 1, 0, 1), (6, 20, 9, 9), (6, 4)).tolist():
        check_roll_back(subject, S, prompt, answer, guesses, int(rng.integers(guesses + 1)))
