"""A kernel's work compared with the course's own on the same arguments: right numbers by other work
are no answer where the work is the lesson's point.
Only the simulator's counts are used."""

from lab.judge.mistakes import mistake

LIMITS = {      # count: (times the course's own that still pass as another style, id, meaning)
    "bytes loaded": (1.5, "read_again",
                     "Numbers are loaded again that could stay in a register or in shared memory."),
    "bytes stored": (1.5, "written_again", "Numbers are stored more than once."),
    "requests": (2, "half_empty_requests",
                 "Requests are partly empty. Give neighbouring threads neighbouring numbers, and "
                 "every thread some work."),
    "sectors": (2, "far_apart", "The threads of a warp access numbers that are far apart."),
    "passes through shared memory": (
        3, "bank_conflicts",
        "Shared memory is accessed more often than necessary, or with bank conflicts."),
    "warp instructions": (4, "extra_loop", "There is an unnecessary loop or branch."),
    "barriers": (4, "barrier_in_loop", "There is a barrier in a loop that needs none."),
    "lanes per working lane": (2, "idle_lanes", "Most threads of a warp have no work."),
    "work of the busiest warp": (
        3, "one_does_all", "One warp or one block does almost all the work."),
}
RATIOS = {      # what is told of a count that is a ratio
    "lanes per working lane": "on average one thread in {:.3g} has work; in the course's own "
                              "kernel it is one in {:.3g}",
    "work of the busiest warp": "the busiest warp has {:.3g} times the average work; in the "
                                "course's own kernel it has {:.3g} times",
}


def counts(launch):
    """{count: how much} of a Launched, summed over its launches."""
    row = dict.fromkeys(LIMITS, 0)
    for one in launch.launches:
        memory = one["totals"]["memory"]
        totals = one["totals"]
        for what, c in memory.items():
            space, op = what.split()
            if space == "global":
                if op != "store":
                    row["bytes loaded"] += c["bytes"]
                if op != "load":
                    row["bytes stored"] += c["bytes"]
                row["requests"] += c["requests"]
                row["sectors"] += c["transactions"]
            elif space == "shared":
                row["passes through shared memory"] += c["transactions"]
        row["warp instructions"] += one["steps"]
        row["barriers"] += totals["barriers"]
    steps = max(row["warp instructions"], 1)
    lanes = sum(one["lane_steps"] for one in launch.launches)
    even = sum(one["steps"] * one["evenness"] for one in launch.launches)
    row["lanes per working lane"] = 32 * steps / max(lanes, 1)
    row["work of the busiest warp"] = steps / max(even, 1e-9)
    return row


def same_work(name, launch, reference, but=(), limits=None):
    """AssertionError where a launch does much more than the course's own on the same arguments.

    launch, reference: what `subject.launch` and `reference.launch` gave
    but: counts that do not matter here;  limits: {count: times} instead of those of LIMITS
    """
    got = counts(launch)
    want = counts(reference)
    assert len(launch.launches) == len(reference.launches), mistake(
        "launches", f"{name}: {len(launch.launches)} launches, expected {len(reference.launches)}")
    for count, (times, known, meaning) in LIMITS.items():
        times = (limits or {}).get(count, times)
        words = RATIOS.get(count, f"{{:,.6g}} {count}; the course's own kernel has {{:,.6g}}")
        assert count in but or not want[count] or got[count] <= times * want[count], mistake(
            known, f"{name}: {words.format(got[count], want[count])}. {meaning}", meaning)
    shared = "passes through shared memory"
    if want[shared] and shared not in but:
        assert got[shared], mistake(
            "no_shared_memory", f"{name} does not use shared memory, which this exercise is about")
