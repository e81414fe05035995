"""Ways by which one submission could pass information to another, at each level.
No way counts as
closed that is not: tests/redteam/test_channels.py tries each way at each level."""

LOAD = "how busy the machine is and which parts of shared files are in its memory"
FILES = "files in /tmp, /var/tmp, /dev/shm and wherever else its user may write"
TIMES = "the times of files"
PROCESSES = "names, environments and signals of processes"
KEYS = "the kernel's keyrings"
LOCKS = "locks and watches on files that both see"
SOCKETS = "sockets of this machine"
IPC = "System V and POSIX shared memory, semaphores and queues"


def open_ways(level, filtered):
    """The ways that are open. filtered: whether lab.grading.seccomp's filter is installed."""
    walls = level != "limits"
    ways = [] if walls else [FILES, TIMES, PROCESSES]
    if not filtered:
        ways += [KEYS, LOCKS] + ([] if walls else [SOCKETS, IPC])
    return [*ways, LOAD]


def said(level, problem):
    """What `lab grade` prints about a level. problem: why there is no filter of system calls; None
    where there is one."""
    return [f"system calls: {'filtered' if problem is None else f'NOT FILTERED ({problem})'}",
            "one submission could still pass information to another through: "
            + "; ".join(open_ways(level, problem is None))]
