"""What schedule_running gives in the situations of s04, and what the wrong ways would give."""

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
    "two prompts in chunks of 4, budget 7": (
        {"budget": 7, "chunk": 4}, [("a", 24, 9, 8), ("b", 24, 9, 8)], {"a": 4, "b": 3}, {
            "newest_first": ("The newest request is served first; serve the oldest first.",
                             {"a": 3, "b": 4})}),
    "a prompt with 20 tokens left is older than two decoding requests, budget 6": (
        {"budget": 6}, [("a", 24, 9, 4), ("b", 5, 9, 6), ("c", 3, 9, 3)],
        {"a": 4, "b": 1, "c": 1}, {
            "takes_all": ("The first request takes everything, and those after it get nothing.",
                          {"a": 6})}),
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
