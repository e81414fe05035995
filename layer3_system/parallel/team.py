"""The ranks of an engine as processes: rank 0 is this one, the others are its children

No port is ever in use: the listening socket is made before the others start.
Each child is watched; when one ends, all end, and `Team.fault` says which and why.
When this process ends, they do.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from lab import device
from lab.course import CourseError
from lab.remote.agreement import agree
from layer2_graph import Config
from layer3_system.parallel.leader import Leader
from layer3_system.parallel.plan import Plan, facts, part_of

__all__ = ["Team", "meet"]

IDLE = timedelta(days=365)          # between two steps nothing is asked for
START = timedelta(seconds=60)       # for ranks that are ready to find each other
LOOK = 0.05                         # seconds between two looks at ranks that start
ECHO = 2.0                          # seconds in which a rank that ended is known to its parent


def ready(r: int) -> str:
    """The store's key that says that a rank has its weights."""
    return f"rank {r} is ready"


def failure(r: int) -> str:
    """The store's key for why a rank ends."""
    return f"rank {r} fails"


def meet(plan: Plan, store: dist.TCPStore, r: int, weights: dict[str, Tensor]) -> None:
    """Join the other ranks.
    RuntimeError if one has another course or other weights."""
    torch.set_num_threads(max(1, torch.get_num_threads() // plan.n))
    if plan.on_gpus:
        torch.cuda.set_device(r)
    dist.init_process_group("nccl" if plan.on_gpus else "gloo", store=store, rank=r,
                            world_size=plan.n, timeout=IDLE)
    agree(facts(weights), plan.device(r))


def words(code: int) -> str:
    """How a process ended."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class Team:
    """The processes of ranks 1 to n - 1.

    fault: why one ended, once it has; None before
    """

    def __init__(self, plan: Plan):
        """Start them."""
        device.on_loopback()
        listener = socket.create_server(("127.0.0.1", 0))
        self.plan = plan._replace(port=listener.getsockname()[1], parent=os.getpid())
        self.store = dist.TCPStore("127.0.0.1", self.plan.port, plan.n, True, START,
                                   wait_for_workers=False, master_listen_fd=listener.detach())
        self.on_fault: Callable[[], None] = lambda: None
        self.fault: str | None = None
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.processes = {r: subprocess.Popen(
            [sys.executable, "-P", "-m", "layer3_system.parallel.worker", str(r),
             self.plan.text()], env=device.child_environment(), stdin=subprocess.DEVNULL)
            for r in range(1, plan.n)}
        self.watchers = [threading.Thread(target=self.watch, args=(r,), daemon=True)
                         for r in self.processes]
        for thread in self.watchers:
            thread.start()
        atexit.register(self.end)

    def watched_by(self, on_fault: Callable[[], None]) -> None:
        """Have a function called, in any thread, when a rank ends by itself; at once if one has."""
        with self.lock:
            self.on_fault = on_fault
        if self.fault:
            on_fault()

    def watch(self, r: int) -> None:
        """Wait until a rank ends."""
        code = self.processes[r].wait()
        known = self.store.check([failure(r)])
        self.fail(f"rank {r}: {self.store.get(failure(r)).decode()}" if known else
                  f"rank {r} ended ({words(code)})")

    def fail(self, text: str) -> None:
        """Note the first fault, and end all ranks."""
        with self.lock:
            first = not self.over.is_set()
            if first:
                self.fault = text
            self.over.set()
        if first:
            self.kill()
            self.on_fault()

    def rank_0_failed(self, text: str) -> str:
        """Note a fault of rank 0, if it is not the echo of another rank's end: the first fault."""
        if not self.over.wait(ECHO):
            self.fail(text)
        return self.fault or text

    def lead(self, config: Config, weights: dict[str, Tensor]) -> Leader:
        """Meet the others, when all have read their weights: a model for an engine.
        CourseError if that fails. config, weights: of the whole model"""
        while not self.store.check([ready(r) for r in self.processes]):
            if self.over.wait(LOOK):
                raise CourseError(self.fault)
        try:
            meet(self.plan, self.store, 0, weights)
        except RuntimeError as error:
            self.over.wait(ECHO)
            raise CourseError(self.fault or str(error)) from None
        return Leader(part_of(self.plan, config, weights, 0), config.G, self.rank_0_failed)

    def kill(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """End all ranks; a fault that comes now is none."""
        with self.lock:
            self.over.set()
        self.kill()
        for thread in self.watchers:    # one that asks the store while Python ends is an abort
            thread.join()
