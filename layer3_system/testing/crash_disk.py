"""A disk that remembers what a crash could leave of it, and ranks that write to it by turns.

Of a file that was not synced, a power failure leaves nothing, half or all.
Of the names that were made or changed since the folder was synced, it leaves the first few, in the
order of the changes.
A file that was synced keeps a name, its first or a later one: so it is on ext4 and XFS, and POSIX
does not promise it.
"""

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from layer3_system import s31_fault_tolerance


class File:
    """now: what a process reads.  synced: whether the disk has it, too"""

    def __init__(self, now: bytes = b"", synced: bool = False) -> None:
        self.now = now
        self.synced = synced

    def left(self) -> list[bytes]:
        """What a power failure could leave."""
        return [self.now] if self.synced else [b"", self.now[:len(self.now) // 2], self.now]


class Disk:
    """Files of a folder, in memory. files: those that are there, and safe, at the start"""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.table = {name: File(data, synced=True) for name, data in files.items()}
        self.safe = [dict(self.table)]          # the names after the last sync and each change

    def write(self, name: str, data: bytes) -> None:
        for _ in self.halves(name, data):
            pass

    def halves(self, name: str, data: bytes) -> Iterator[None]:
        """A write, stopped after its first half and at its end."""
        if name not in self.table:
            self.table[name] = File()
            self.safe.append(dict(self.table))
        for part in (data[:len(data) // 2], data):
            self.table[name].now = part
            self.table[name].synced = False
            yield

    def sync(self, name: str) -> None:
        file = self.file(name)
        file.synced = True
        self.safe = [names for names in self.safe if file in names.values()]

    def rename(self, old: str, new: str) -> None:
        self.table[new] = self.file(old)
        del self.table[old]
        self.safe.append(dict(self.table))

    def sync_folder(self) -> None:
        self.safe = [dict(self.table)]

    def read(self, name: str) -> bytes:
        return self.file(name).now

    def names(self) -> list[str]:
        return list(self.table)

    def remove(self, name: str) -> None:
        self.file(name)
        del self.table[name]
        self.safe.append(dict(self.table))

    def file(self, name: str) -> File:
        if name not in self.table:
            raise FileNotFoundError(f"there is no file {name}")
        return self.table[name]

    def after_power(self) -> list[dict[str, bytes]]:
        """What could be found after a power failure: all files whole, all cut, or one of them."""
        disks = []
        for names in self.safe:
            whole = {name: file.now for name, file in names.items()}
            cut = [name for name, file in names.items() if not file.synced]
            for some in ([], cut, *([name] for name in cut if len(cut) > 1)):
                for amount in (0, 1) if some else (2,):
                    disk = whole | {name: names[name].left()[amount] for name in some}
                    if disk not in disks:
                        disks.append(disk)
        return disks


class Ended(BaseException):
    """All ranks wait for one another, or for one that has ended."""


class Rank:
    """The disk and the group as one rank has them: each operation waits for its turn."""

    def __init__(self, crash: "Crash", rank: int) -> None:
        self.crash = crash
        self.rank = rank
        self.size = crash.size
        self.go = threading.Semaphore(0)
        self.values: list = []                  # of the meeting that was last

    def turn(self, *operation: Any) -> None:
        """Let the others on, until this rank is chosen. operation: what it does then"""
        self.crash.back.release()
        self.go.acquire()
        if self.crash.over:
            raise Ended
        self.crash.log.append([self.rank, *operation])

    def write(self, name: str, data: bytes) -> None:
        halves = self.crash.disk.halves(name, bytes(data))
        for operation in ("begin", "write"):
            self.turn(operation, name)
            next(halves)

    def sync(self, name: str) -> None:
        self.turn("sync", name)
        self.crash.disk.sync(name)

    def rename(self, old: str, new: str) -> None:
        self.turn("rename", new)
        self.crash.disk.rename(old, new)

    def sync_folder(self) -> None:
        self.turn("sync_folder", "")
        self.crash.disk.sync_folder()

    def read(self, name: str) -> bytes:
        self.turn("read", name)
        return self.crash.disk.read(name)

    def names(self) -> list[str]:
        self.turn("names", "")
        return self.crash.disk.names()

    def remove(self, name: str) -> None:
        self.turn("remove", name)
        self.crash.disk.remove(name)

    def gather(self, value: Any) -> list:
        self.crash.meeting[self.rank] = value
        self.turn("gather", "")
        return list(self.values)


class Crash:
    """`commit` of some ranks, in an order that a seed draws, and every disk that a stop leaves.

    data: of each rank.  files: on the disk before.  commit: the lesson's, or another
    hasty: a rank that moves whenever it can
    log: [rank, operation, name] in order.  stops: after each operation, {"returned": ranks that
    did, "processes": the disk if all processes die, "power": the disks if the power fails}
    """

    def __init__(self, data: list[bytes], files: dict[str, bytes], step: int, seed: int,
                 commit: Callable[..., None] | None = None, hasty: int | None = None) -> None:
        self.commit = s31_fault_tolerance.commit if commit is None else commit
        self.size = len(data)
        self.disk = Disk(files)
        self.back = threading.Semaphore(0)
        self.meeting: dict[int, Any] = {}
        self.over = False
        self.log: list[list] = []
        self.stops: list[dict] = []
        self.returned: list[int] = []
        self.errors: dict[int, list[str]] = {}
        self.ranks = [Rank(self, r) for r in range(self.size)]
        self.threads = [threading.Thread(target=self.run, args=(rank, step, data[rank.rank]),
                                         daemon=True) for rank in self.ranks]
        self.play(random.Random(seed), hasty)

    def run(self, rank: Rank, step: int, data: bytes) -> None:
        """One rank's thread."""
        try:
            rank.go.acquire()
            self.commit(rank, rank, step, data)
            self.returned.append(rank.rank)
        except Ended:
            pass
        except Exception as error:
            self.errors[rank.rank] = [type(error).__name__, str(error)]
        finally:
            self.back.release()

    def play(self, order: random.Random, hasty: int | None) -> None:
        """Let one rank move at a time until all have ended, or none can move."""
        for thread in self.threads:
            thread.start()
        while ready := self.ready():
            first = [rank for rank in ready if rank.rank == hasty]
            rank = order.choice(first or ready)
            rank.go.release()
            self.back.acquire()
            self.stops.append({"returned": sorted(self.returned), "operations": len(self.log),
                               "processes": {n: f.now for n, f in self.disk.table.items()},
                               "power": self.disk.after_power()})
        self.stuck = len(self.returned) + len(self.errors) < self.size
        self.over = True
        for rank in self.ranks:
            rank.go.release()

    def ready(self) -> list[Rank]:
        """The ranks that can move; a meeting of all ends here."""
        if len(self.meeting) == self.size:
            values = [self.meeting[r] for r in range(self.size)]
            self.meeting.clear()
            for rank in self.ranks:
                rank.values = values
        ended = {*self.returned, *self.errors}
        return [rank for rank in self.ranks if rank.rank not in ended
                and rank.rank not in self.meeting]

    def report(self) -> dict[str, Any]:
        """All that a grader judges."""
        return {"log": self.log, "stops": self.stops, "stuck": self.stuck,
                "errors": sorted([r, *error] for r, error in self.errors.items())}


def crashes(data: list[bytes], files: dict[str, bytes], step: int, seed: int,
            hasty: int | None = None) -> dict[str, Any]:
    """The report of a Crash."""
    return Crash(data, files, step, seed, hasty=hasty).report()
