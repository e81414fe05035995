"""A rank of an engine in a process of its own:  python -m layer3_system.parallel.worker RANK PLAN

It reads the model's folder, keeps its part, and does what rank 0 does.
It ends when that ends.
"""

import json
import signal
import sys

import torch
import torch.distributed as dist

from lab import device
from lab.remote.rank import end_with
from layer3_system.parallel.leader import follow
from layer3_system.parallel.plan import Plan, part_of
from layer3_system.parallel.team import START, failure, meet, ready


def main(r: int, plan: Plan) -> int:
    """The exit code."""
    end_with(plan.parent)
    for number in (signal.SIGINT, signal.SIGTERM):      # rank 0's alone, which lets answers end
        signal.signal(number, signal.SIG_IGN)
    device.on_loopback()
    store = dist.TCPStore("127.0.0.1", plan.port, plan.n, False, START, wait_for_workers=False)
    try:
        config, weights = plan.read()
        model = part_of(plan, config, weights, r)
        store.set(ready(r), "")
        meet(plan, store, r, weights)
        del weights
        with torch.inference_mode():
            follow(model, config.G)
    except Exception as error:                          # a kernel may raise anything
        store.set(failure(r), f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Plan(*json.loads(sys.argv[2]))))
