"""What s04 gives in each situation, and what the wrong ways would give."""

# predict_two_seats: tokens of the answers, and what a wrong count is the count of
LENS = [8, 2, 2, 2, 8, 2]
SEATS = {
    sum(max(pair) for pair in zip(LENS[::2], LENS[1::2], strict=True)): (
        "static_batches", "That is the count for batches that wait for their longest answer. "
                          "Here a seat is filled as soon as it is free."),
    sum(LENS) // 2: (
        "no_empty_seat", "That would be the count if no seat were ever empty. Which request is "
                         "still running at the end, and is the other seat taken?"),
    max(LENS): ("one_answer", "The longest answer alone takes that many. When does the second "
                              "long request get a seat?"),
    min(LENS) + max(LENS): (
        "early_start", "That is the count if the second long request follows one short one. "
                       "How many requests hold that seat before it?"),
    sum(LENS): ("one_seat", "That is the count with one seat. There are two."),
    2 * max(LENS): ("long_in_turn", "That is the count if the second long request waits for "
                                    "the first. There are two seats."),
}

# What neither an end nor a preemption changes of a request, and why.
UNCHANGED = {
    "pending": "A step that was launched still computes its next token, and counts it down itself.",
    "limit": "It bounds prompt and answer together, however often they are computed.",
    "forks": "The other answers to its prompt start or end with it: the engine finds them there.",
}

# name: (sizes, running, waiting, tokens left, expected, mistakes)
# a request: (name, tokens of the prompt, tokens of the answer, answers or tokens computed)
A, B, C, D = ((name, 3, 5, 1) for name in "abcd")
ADMISSIONS = {
    "three seats, four wait": (
        {"max_seqs": 3}, [], [A, B, C, D], 20, {"a": 3, "b": 3, "c": 3}, {
            "seat_empty": ("One seat stays empty: `max_seqs` requests may run.", {"a": 3, "b": 3}),
            "no_seats": ("More requests run than there are seats.",
                         {"a": 3, "b": 3, "c": 3, "d": 3}),
            "only_one": ("Only one request is admitted: go on with the new head of the queue.",
                         {"a": 3}),
            "last_first": ("The last to arrive is served first.", {"d": 3, "c": 3, "b": 3})}),
    "one of three seats is taken": (
        {"max_seqs": 3}, [("x", 3, 5, 4)], [A, B, C], 20, {"a": 3, "b": 3}, {
            "running_uncounted": ("x holds one of the three seats: count the running requests, "
                                  "too.", {"a": 3, "b": 3, "c": 3})}),
    "two of four seats are taken, and the step computes nothing of y": (
        {"max_seqs": 4}, [("x", 3, 5, 4), ("y", 3, 5, 4)], [A, B, C], 20, {"a": 3, "b": 3}, {
            "in_this_step": ("y holds a seat, too: count `running`, not what is in `counts`.",
                             {"a": 3, "b": 3, "c": 3})}),
    "a budget of 20 left, prompts of 5, 30 and 4 tokens": (
        {}, [], [("a", 5, 2, 1), ("b", 30, 2, 1), ("c", 4, 2, 1)], 20, {"a": 5, "b": 15}, {
            "over_budget": ("The second prompt gets more tokens than the budget has left.",
                            {"a": 5, "b": 30}),
            "no_token_left": ("The last request takes a seat and pages although no token is left "
                              "for it.", {"a": 5, "b": 15, "c": 0}),
            "whole_prompts": ("The second prompt is not begun, since it does not fit whole: it may "
                              "be computed in parts, and takes what the budget has left.",
                              {"a": 5}),
            "left_constant": ("`left` does not fall by what each request gets.",
                              {"a": 5, "b": 20, "c": 4}),
            "step_alone": ("A prompt may be computed in parts; part of it may go into this step.",
                           {"a": 5, "c": 4})}),
    "two prompts in chunks of at most 8 tokens, a budget of 14 left": (
        {"chunk": 8}, [], [("a", 30, 2, 1), ("b", 30, 2, 1)], 14, {"a": 8, "b": 6}, {
            "no_chunk": ("Ask `tokens_left` for what a request lacks: it knows the chunk.",
                         {"a": 14})}),
    "six pages of four slots; the second prompt needs five pages, the third one": (
        {"P": 6}, [], [("a", 8, 4, 1), ("b", 20, 2, 1), ("c", 4, 2, 1)], 40, {"a": 8}, {
            "overtakes": ("A short request overtakes an older one. None may, or a long prompt "
                          "never gets its turn.", {"a": 8, "c": 4}),
            "no_pages": ("The second request runs without pages: `admit` returned False.",
                         {"a": 8, "b": 20}, {"a": 8, "b": 20, "c": 4})}),
    "two seats, three answers to the first prompt": (
        {"max_seqs": 2}, [], [("a", 3, 5, 3), B], 20, {}, {
            "forks_uncounted": ("You count requests; count answers: a needs three seats.",
                                {"a": 3, "b": 3}),
            "overtakes_forks": ("b overtakes a, which needs three seats.", {"b": 3})}),
    "four seats; the first prompt wants three answers, the second two": (
        {"max_seqs": 4}, [], [("a", 3, 5, 3), ("b", 3, 5, 2), C], 20, {"a": 3}, {
            "running_forks": ("Each answer needs a seat, those of the running requests, too: these "
                              "are six answers on four seats.", {"a": 3, "b": 3, "c": 3})}),
    "five seats; the first prompt wants three answers, the second two": (
        {"max_seqs": 5}, [], [("a", 3, 5, 3), ("b", 3, 5, 2), C], 20, {"a": 3, "b": 3}, {}),
    "a budget of 20 left, exactly what two prompts need; a third waits": (
        {}, [], [("a", 10, 2, 1), ("b", 10, 2, 1), ("c", 1, 2, 1)], 20, {"a": 10, "b": 10}, {}),
    "a budget of 1 left, two wait": ({}, [], [A, B], 1, {"a": 1}, {}),
    "one seat, taken": ({"max_seqs": 1}, [("x", 3, 5, 4)], [A], 20, {}, {}),
    "three equal requests, pages for one": (
        {"P": 2}, [], [("a", 5, 2, 1), ("b", 5, 2, 1), ("c", 5, 2, 1)], 20, {"a": 5}, {}),
    "the first of three does not fit": (
        {"P": 6}, [("x", 3, 5, 4)], [("a", 18, 2, 1), ("b", 3, 2, 1), C], 20, {}, {}),
    "a budget past 31 bits": ({"budget": 2**32}, [], [A, B], 2**32, {"a": 3, "b": 3}, {}),
    "an empty queue": ({}, [("x", 3, 5, 4)], [], 20, {}, {}),
    "no budget left": ({}, [], [A], 0, {}, {}),
}


# name: (sizes, running, expected, mistakes); a request: (name, prompt, answer, computed)
TURNS = {
    "three requests decode": (
        {}, [("a", 5, 9, 6), ("b", 3, 9, 3), ("c", 8, 9, 12)], {"a": 1, "b": 1, "c": 1}, {}),
    "two requests decode, a prompt has 20 tokens left, budget 8": (
        {"budget": 8}, [("a", 5, 9, 6), ("b", 3, 9, 3), ("c", 24, 9, 4)],
        {"a": 1, "b": 1, "c": 6}, {
            "one_token": ("The prompt gets one token as if it were decoding. It lacks 20, and the "
                          "step has room for more.", {"a": 1, "b": 1, "c": 1}),
            "kept_for_itself": ("One token of the budget stays unused: keep one back for each "
                                "later request, not for the request itself.",
                                {"a": 1, "b": 1, "c": 5}),
            "equal_share": ("You give each at most an equal share of the budget. What one does not "
                            "need goes to those after it.", {"a": 1, "b": 1, "c": 2}),
            "over_budget": ("The last request gets all it lacks, which is more than is left.",
                            {"a": 1, "b": 1, "c": 20}),
            "left_constant": ("The sum exceeds the budget: subtract what each request gets.",
                              {"a": 1, "b": 1, "c": 8})}),
    "a prompt with 20 tokens left is older than two decoding requests, budget 6": (
        {"budget": 6}, [("a", 24, 9, 4), ("b", 5, 9, 6), ("c", 3, 9, 3)],
        {"a": 4, "b": 1, "c": 1}, {
            "takes_all": ("The first request takes everything, and those after it get nothing.",
                          {"a": 6}),
            "equal_share": ("a gets an equal share of what is left. The oldest takes all of it but "
                            "one token for each later request.", {"a": 2, "b": 1, "c": 1})}),
    "two prompts in chunks of 4, budget 7": (
        {"budget": 7, "chunk": 4}, [("a", 24, 9, 8), ("b", 24, 9, 8)], {"a": 4, "b": 3}, {
            "newest_first": ("The newest request is served first; serve the oldest first.",
                             {"a": 3, "b": 4})}),
    "one token for each": (
        {"budget": 3, "max_seqs": 3}, [("a", 24, 9, 4), ("b", 24, 9, 4), ("c", 24, 9, 4)],
        {"a": 1, "b": 1, "c": 1}, {}),
    "the oldest lacks exactly what is left, budget 9": (
        {"budget": 9}, [("a", 24, 9, 16), ("b", 5, 9, 6)], {"a": 8, "b": 1}, {}),
    "the oldest lacks one more than is left, budget 9": (
        {"budget": 9}, [("a", 25, 9, 16), ("b", 5, 9, 6)], {"a": 8, "b": 1}, {
            "kept_for_itself": ("One token of the budget stays unused: keep one back for each "
                                "later request, not for the request itself.", {"a": 7, "b": 1})}),
    "three equal requests, budget 7": (
        {"budget": 7}, [("a", 24, 9, 4), ("b", 24, 9, 4), ("c", 24, 9, 4)],
        {"a": 5, "b": 1, "c": 1}, {}),
    "a budget past 31 bits": (
        {"budget": 2**32}, [("a", 24, 9, 4), ("b", 5, 9, 6)], {"a": 20, "b": 1}, {}),
    "no running request": ({}, [], {}, {}),
}
# name: (budget, prompt, answer and computed of c, expected, mistakes)
NOTHING_FOR_B = {
    "b lacks no token": (64, (5, 9, 6), {"a": 1, "c": 1}, {
        "at_least_one": ("b gets a token that it does not lack.", {"a": 1, "b": 1, "c": 1}),
        "zero_tokens": ("A request that gets 0 tokens does not belong in `counts`.",
                        {"a": 1, "b": 0, "c": 1}),
        "stops_early": ("Those after b are served, too.", {"a": 1})}),
    "budget 10, a lacks 1 token, b none, c 20": (10, (24, 9, 4), {"a": 1, "c": 9}, {
        "counts_served": ("A token is kept back although nothing comes after c: count the requests "
                          "that stand after it, not those without a count.", {"a": 1, "c": 8})}),
}
SHORT_OF_PAGES = {
    "the newest needs a page, there is none, and it is preempted itself": (
        {"P": 4}, [("a", 5, 9, 6), ("b", 3, 9, 8)], {"a": 1}, {
            "zero_tokens": ("A request that gets 0 tokens does not belong in `counts`.",
                            {"a": 1, "b": 0}),
            "ignores_room": ("`make_room` returned 0 for b, which it preempted: take what it "
                             "returns, not what you asked for.", {"a": 1, "b": 1})}),
    "budget 7, a lacks 1 token and a page, b lacks 16, c is preempted for a": (
        {"P": 8, "budget": 7, "max_seqs": 5}, [("a", 5, 9, 8), ("b", 20, 9, 4), ("c", 24, 9, 20)],
        {"a": 1, "b": 6}, {
            "kept_for_preempted": ("One token is kept back for c, which no longer runs: count the "
                                   "later requests again for each request.", {"a": 1, "b": 5})}),
}

# finish: the requests by their state
RUNS, WAITS = ["a", "mid-prompt", "decoding"], ["queued", "z"]


def misplaced(running, waiting, where):
    """(id, sentence) of what is wrong in the two lists after `where` was finished."""
    gone = [n for n in RUNS + WAITS if n not in running + waiting and n != where]
    if where not in running + waiting:
        return ("others_gone", "Others than the finished request have left.") if gone else (
            "moves_others", "finish takes one out, and puts none anywhere.")
    if not gone:
        return "not_removed", "The finished request is still in its list: take it out."
    return {"a": "oldest", "queued": "head_of_queue"}.get(gone[0], "another_gone"), (
        f"{where} is still there, and {gone[0]} has left in its place.")
