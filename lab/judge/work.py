"""A kernel's work compared with the course's own on the same arguments: right numbers by other work
are no answer where the work is the lesson's point. Only the simulator's counts are used."""

from lab.judge.mistakes import mistake

LIMITS = {      # count: (times the course's own that still pass as another style, id, meaning)
    "bytes loaded": (1.5, "read_again",
                     "numbers are read again that a register or shared memory could keep"),
    "bytes stored": (1.5, "written_again", "numbers are written more than once"),
    "requests": (2, "half_empty_requests",
                 "requests of a warp are half empty: neighbouring threads should take "
                 "neighbouring numbers, and every lane should take part"),
    "sectors": (2, "far_apart", "threads of a warp reach for numbers far apart"),
    "shared wavefronts": (3, "bank_conflicts",
                          "shared memory is accessed more often, or lanes meet in one bank"),
    "warp instructions": (4, "extra_loop", "there is a loop or a branch too many"),
    "barriers": (4, "barrier_in_loop", "a barrier stands within a loop that needs none"),
    "lanes in a warp for each that works": (
        2, "idle_lanes", "most threads of a warp have nothing to do"),
    "times the average warp's work, done by the busiest": (
        3, "one_does_all", "one warp or one block does the work of all"),
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
                row["shared wavefronts"] += c["transactions"]
        row["warp instructions"] += one["steps"]
        row["barriers"] += totals["barriers"]
    steps = max(row["warp instructions"], 1)
    lanes = sum(one["lane_steps"] for one in launch.launches)
    even = sum(one["steps"] * one["evenness"] for one in launch.launches)
    row["lanes in a warp for each that works"] = 32 * steps / max(lanes, 1)
    row["times the average warp's work, done by the busiest"] = steps / max(even, 1e-9)
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
        assert count in but or not want[count] or got[count] <= times * want[count], mistake(
            known, f"{name}: {got[count]:,.6g} {count}, the course's own {want[count]:,.6g}: "
                   f"{meaning}", meaning)
    if want["shared wavefronts"] and "shared wavefronts" not in but:
        assert got["shared wavefronts"], mistake(
            "no_shared_memory", f"{name} does not use shared memory, which this exercise is about")
