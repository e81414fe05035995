"""By which ways one submission could pass word to another, at each level: nothing is said to be
closed that is not. tests/redteam/test_channels.py tries each way at each level."""

LOAD = "how busy the machine is and what of shared files is in its memory"
FILES = "files in /tmp, /var/tmp, /dev/shm and wherever else its user may write"
TIMES = "the times of files"
PROCESSES = "names, environments and signals of processes"
KEYS = "the kernel's keyrings"
LOCKS = "locks and watches on files that both see"
SOCKETS = "sockets of this machine"
IPC = "System V's and POSIX's shared memory, semaphores and queues"


def open_ways(level, filtered):
    """Which are open. filtered: lab.grading.seccomp refuses what it refuses."""
    walls = level != "limits"
    ways = [] if walls else [FILES, TIMES, PROCESSES]
    if not filtered:
        ways += [KEYS, LOCKS] + ([] if walls else [SOCKETS, IPC])
    return [*ways, LOAD]


def said(level, problem):
    """What `lab grade` prints of a level. problem: why there is no filter of system calls; None
    where there is one."""
    return [f"system calls: {'filtered' if problem is None else f'NOT FILTERED ({problem})'}",
            "one submission could still tell another something by: "
            + "; ".join(open_ways(level, problem is None))]
