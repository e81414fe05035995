"""A filter of system calls for untrusted code: it refuses what no exercise needs and a box does not
wall off. seccomp(2) applies it to a process and all that it starts, for good.

Own code, since no maintained package has it: libseccomp's Python comes with Debian alone, and
PyPI's pyseccomp, of 2020, needs libseccomp installed.
A filter is a program of <linux/filter.h>, which reads a struct seccomp_data.
"""

import ctypes
import errno
import os
import struct

SOCKET = (41, 198)
# Numbers of system calls, <asm/unistd.h>: name -> (x86-64, aarch64; None: it has no such call).
REFUSED = {
    # the kernel's keyrings, which stay for the user's next process
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # System V and POSIX shared memory, semaphores and queues, where a box does not separate IPC
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197),
    "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192), "semctl": (66, 191),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    # sockets by name or number, vsock among them, which no namespace separates; pairs remain
    "socket": SOCKET,
    # locks and watches on files that two boxes see; for fcntl, see LOCKS
    "flock": (73, 32), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27), "fanotify_init": (300, 262),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    # namespaces, mounts, another root
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "open_tree": (428, 428),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "pivot_root": (155, 41), "chroot": (161, 51), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # doors to the kernel
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "userfaultfd": (323, 282), "bpf": (321, 280), "perf_event_open": (298, 241),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "personality": (135, 92),
}
CLONE = (56, 220)
CLONE3 = (435, 435)
FCNTL = (72, 25)
SECCOMP = (317, 277)
NAMESPACES = 0x7E020000         # <linux/sched.h>: CLONE_NEWNS … CLONE_NEWNET, as flags of clone
LOCKS = (5, 6, 7, 36, 37, 38, 1024, 1025, 1026)     # of fcntl: locks, leases, watches
X32 = 0x40000000                # from here on, x86-64's numbers belong to another table
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}      # <linux/audit.h>

# <linux/filter.h>: load a word; jump if equal, not less, a bit in common; return
LOAD, EQUAL, AT_LEAST, ANY_OF, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, MACHINE, FIRST, SECOND, THIRD = 0, 4, 16, 24, 32        # offsets in struct seccomp_data
ALLOW = 0x7FFF0000
ERROR = 0x00050000
SET_MODE_FILTER = 1
INET, NETLINK = 2, 16           # <linux/socket.h>: address families
ROUTE = 0                       # <linux/netlink.h>: the protocol that tells of interfaces


def program(machine, loopback=False):
    """The filter for a machine, as the kernel reads it: bytes, 8 an instruction.

    loopback: ranks meet over sockets.
    For a process whose network namespace has nothing but lo.
    """
    which, audit = MACHINES[machine]
    parts = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, audit), refuse(errno.EPERM),
             (LOAD, 0, 0, NUMBER), *on(AT_LEAST, X32, refuse(errno.EPERM))]
    if loopback:
        # gloo asks netlink for the interfaces; what else netlink serves has a protocol of its own
        parts += on(EQUAL, SOCKET[which], (LOAD, 0, 0, FIRST),
                    *on(EQUAL, INET, (RETURN, 0, 0, ALLOW)),
                    *on(EQUAL, NETLINK, (LOAD, 0, 0, THIRD),
                        *on(EQUAL, ROUTE, (RETURN, 0, 0, ALLOW))),
                    refuse(errno.EPERM))
    for numbers in REFUSED.values():
        if numbers[which] is not None:
            parts += on(EQUAL, numbers[which], refuse(errno.EPERM))
    # its flags lie in memory, where no filter looks: without it, the C library falls back to clone
    parts += on(EQUAL, CLONE3[which], refuse(errno.ENOSYS))
    parts += on(EQUAL, CLONE[which], (LOAD, 0, 0, FIRST),
                *on(ANY_OF, NAMESPACES, refuse(errno.EPERM)), (RETURN, 0, 0, ALLOW))
    parts += on(EQUAL, FCNTL[which], (LOAD, 0, 0, SECOND),
                *(step for command in LOCKS for step in on(EQUAL, command, refuse(errno.EPERM))),
                (RETURN, 0, 0, ALLOW))
    parts.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *part) for part in parts)


def on(test, value, *then):
    """Instructions to run where a test of the word holds; otherwise they are jumped over."""
    return [(test, 0, len(then), value), *then]


def refuse(error):
    return RETURN, 0, 0, ERROR | error


def problem():
    """Why no filter is available here; None where one is."""
    if os.uname().machine not in MACHINES:
        return f"there is no filter for {os.uname().machine}"
    call(None)                          # no program: a kernel that would take one says EFAULT
    error = ctypes.get_errno()
    return None if error == errno.EFAULT else f"seccomp: {os.strerror(error)}"


def install(loopback=False):
    """Filter the calls of this thread and of all that it starts.
    None can gain privileges again."""
    code = program(os.uname().machine, loopback)
    steps = ctypes.create_string_buffer(code, len(code))
    if call(struct.pack("@HP", len(code) // 8, ctypes.addressof(steps))):
        raise OSError(ctypes.get_errno(), "seccomp")


def call(filter_program):
    number = SECCOMP[MACHINES[os.uname().machine][0]]
    return ctypes.CDLL(None, use_errno=True).syscall(number, SET_MODE_FILTER, 0, filter_program)
