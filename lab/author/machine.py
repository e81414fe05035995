"""What the machine went through during a proof: memory, processes killed for want of it, load."""

import os
import re
import resource
import threading
from pathlib import Path

from lab import device

EVERY = 1.0             # seconds between two looks
GIB = 2**30


class Watch:
    """Looks at the machine until it is closed, as a context."""

    def __enter__(self):
        self.least_free = device.free_memory()
        self.highest_load = os.getloadavg()[0]
        self.killed = oom_kills()
        self.cpu = cpu_seconds()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()
        return self

    def look(self):
        while not self.over.wait(EVERY):
            self.least_free = min(self.least_free, device.free_memory())
            self.highest_load = max(self.highest_load, os.getloadavg()[0])

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.cpu = cpu_seconds() - self.cpu
        self.killed = oom_kills() - self.killed

    def told(self):
        return (f"{self.cpu:.0f} CPU seconds, least free memory {self.least_free / GIB:.1f} GiB, "
                f"{self.killed} processes killed for want of memory, "
                f"highest load {self.highest_load:.1f}")


def cpu_seconds():
    """CPU time of all processes of the machine, also of those that were killed and never waited
    for; where there is no /proc, of those waited for."""
    try:
        times = Path("/proc/stat").read_text().split()[1:4]         # user, nice, system
    except FileNotFoundError:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def oom_kills():
    """Processes that Linux has killed for want of memory since it started."""
    try:
        text = Path("/proc/vmstat").read_text()
    except FileNotFoundError:
        return 0
    return int(re.search(r"^oom_kill (\d+)", text, re.M)[1])
