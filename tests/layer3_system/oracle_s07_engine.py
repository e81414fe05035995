"""The rules of s07 by hand: what each step computes, and steps to be built."""

ASKS, BUDGET = [(10, 2), (3, 4), (5, 1)], 8
NEVER = "The last token of an answer is never computed: nothing follows it."


def by_rules(budget=BUDGET, last=1, phases=False, one=False):
    """Rows by simple rules. last: tokens of an answer that need not be computed    phases: no
    answer goes on while a prompt is not done    one: each begins when the one before is over"""
    done, rows = [0] * len(ASKS), []
    total = [prompt + count - last for prompt, count in ASKS]
    while done != total:
        left, row, cut = budget, [0] * len(ASKS), any(
            d < prompt for d, (prompt, _) in zip(done, ASKS, strict=True))
        for i, (prompt, _) in enumerate(ASKS):
            missing = prompt - done[i] if done[i] < prompt else min(1, total[i] - done[i])
            held = phases and cut and done[i] >= prompt or one and done[:i] != total[:i]
            row[i] = 0 if held else min(missing, left)
            left -= row[i]
        done = [d + n for d, n in zip(done, row, strict=True)]
        rows.append(tuple(row))
    return rows


def first_slip(rows, want):
    """(id, sentence) of what is wrong in the first row that differs, "" for what has no id."""
    for i, (row, right) in enumerate(zip(rows, want, strict=False)):
        for k, (prompt, count) in enumerate(ASKS if row != right else ()):
            done, total = sum(r[k] for r in rows[:i]), prompt + count - 1
            if done + row[k] == total + 1:
                return "computes_last", NEVER
            if row[k] < right[k] and sum(row) < BUDGET:
                return "budget_unused", (
                    f"{'abc'[k]} has {total} tokens to compute, and {done} are done. In this step "
                    f"it gets {row[k]}, although {BUDGET - sum(row)} of the budget are unused.")
            if row[k] < right[k] and any(row[k + 1:]):
                return "not_in_order", (
                    f"{'abc'[k]} arrived before the others that get tokens, and {row[k]} are not "
                    f"all that it could compute: the budget goes to it first.")
        if row != right:
            break
    return "", "Which request does the budget reach first, and what is left for the next?"


# name: (S, [(prompt, output, draft, pages of its table, computed, n)])
STEPS = {
    "the rest of a prompt": (4, [(range(10, 18), (), (), (3, 2), 8, 3)]),
    "a token more, beside a part of a prompt and a whole one": (4, [
        (range(20, 26), (30, 31), (), (2, 5), 8, 1), (range(40, 60), (), (), (7, 0, 4), 11, 5),
        (range(70, 73), (), (), (6,), 3, 3)]),
    "answers at and around the end of a page (case 6)": (4, [
        ((1, 2, 3), (), (), (9,), 3, 3), ((1, 2, 3, 4), (), (), (8,), 4, 4),
        ((1, 2, 3, 4), (5,), (), (7, 2), 5, 1)]),
    "guesses, and a token that is still being computed": (2, [
        ((1, 2, 3), (4,), (5, 6), (3, 0, 8), 6, 3), ((7, 8), (9,), (), (5, 1), 4, 1)]),
    "pages of one slot": (1, [((4, 4), (4,), (), (6, 2, 0), 3, 3)]),
}
