"""What must hold of a scheduler and its pool, whatever drives them"""

from collections.abc import Iterable

from layer3_system.s01_request import Request
from layer3_system.s02_block_pool import Broken, check_pool
from layer3_system.s03_static_batching import StaticScheduler
from layer3_system.s04_continuous_batching import Scheduler


def broken_rules(scheduler: Scheduler | StaticScheduler, counts: dict[Request, int],
                 others: Iterable[list[int]] = ()) -> list[str]:
    """What does not hold, a sentence each.

    counts: what the newest step computes, {request: tokens}
    others: tables with pages that no request of the scheduler has
    """
    running = scheduler.running
    waiting = scheduler.waiting
    tokens = sum(counts.values())
    rules = []
    if tokens > scheduler.budget:
        rules.append(f"{tokens} tokens, the budget is {scheduler.budget}")
    if len(running) > scheduler.max_seqs:
        rules.append(f"{len(running)} requests run, there are {scheduler.max_seqs} seats")
    for request in waiting:
        if request.table or request.num_computed:
            rules.append(f"{request.id} waits, but has pages or computed tokens")
        if request.status != "waiting":
            rules.append(f"{request.id} waits, but its status is {request.status}")
    try:
        check_pool(scheduler.pool, [*(r.table for r in [*running, *waiting]), *others])
    except Broken as error:
        rules.append(str(error))
    return rules
