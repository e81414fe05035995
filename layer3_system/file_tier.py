"""A file below host memory: pages that outlive the server

One file, a header and then records of one length (s11's `record_of`).
The index is in memory alone; at the start it is read from the headers of the records.
Whatever is odd is a miss: a record that was cut, changed or never finished does not match its
checksum, which is its last four bytes.
The file is read and written by calls, and not mapped into memory: a mapped file that somebody cuts
short, or for which the disk has no room, ends the process.
"""

import fcntl
import hashlib
import logging
import os
import struct
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

import torch

from layer2_graph import Config
from layer3_system.records import CHECK, HEADER, MAGIC, VERSION, record_of
from layer3_system.s02_block_pool import Pages
from layer3_system.s11_kv_offload import read_record
from layer3_system.tiers import Copies, HostTier

log = logging.getLogger(__name__)

__all__ = ["FileTier", "HostOverFile", "digest_of"]

FILE_MAGIC = b"KVFL"
FILE_HEADER = struct.Struct("<4sH32sQI")    # magic, version, digest, bytes a page, process


def digest_of(config: Config, weights: dict[str, torch.Tensor], S: int) -> bytes:
    """32 bytes that differ for another model, other weights, another dtype or page size.
    It reads all weights once."""
    whole = hashlib.sha256(repr((config, S)).encode())
    for name, weight in sorted(weights.items()):
        whole.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        whole.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return whole.digest()


class FileTier:
    """Names and their records in a file.
    The name that was written longest ago is given up first.

    failures: records that could not be written    misses: records that could not be read
    """

    def __init__(self, path: Path, records: int, length: int, digest: bytes, reset: bool = False,
                 read: Callable[..., bytes | None] = read_record):
        """records: at most    length: bytes of keys and values of a page    digest: of the model
        reset: forget what is in the file    read: like read_record
        ValueError if the file cannot be used, which says why
        """
        self.path = Path(path)
        self.records = records
        self.length = length
        self.digest = digest
        self.read = read
        self.size = HEADER.size + length + CHECK.size
        self.slot_of: OrderedDict[bytes, int] = OrderedDict()
        self.failures = 0
        self.misses = 0
        self.file = self.open(reset)
        self.free = deque(self.scan(records))

    def open(self, reset: bool) -> int:
        """The file, locked, its header written."""
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ValueError(f"--kv-file {self.path}: {error.strerror}") from None
        try:
            self.claim(file, reset)
        except BaseException:
            os.close(file)
            raise
        return file

    def claim(self, file: int, reset: bool) -> None:
        """Lock the file, check whose it is, and write its header."""
        header = os.pread(file, FILE_HEADER.size, 0)
        fields = FILE_HEADER.unpack(header) if len(header) == FILE_HEADER.size else None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            user = f"process {fields[4]}" if fields else "another process"
            raise ValueError(f"--kv-file {self.path}: is in use by {user}") from None
        if reset:
            os.ftruncate(file, 0)
        elif header:
            self.check_header(fields)
        try:
            os.pwrite(file, FILE_HEADER.pack(FILE_MAGIC, VERSION, self.digest, self.length,
                                             os.getpid()), 0)
        except OSError as error:
            raise ValueError(f"--kv-file {self.path}: {error.strerror}") from None

    def check_header(self, fields: tuple | None) -> None:
        """ValueError if the file is not one of this model's."""
        advice = "--kv-file-reset empties it, or choose another name"
        if fields is None or fields[:2] != (FILE_MAGIC, VERSION):
            raise ValueError(f"--kv-file {self.path}: is no file of keys and values; {advice}")
        _, _, digest, length, _ = fields
        if length != self.length:
            raise ValueError(f"--kv-file {self.path}: {length:,} bytes a page, this model has "
                             f"{self.length:,}; {advice}")
        if digest != self.digest:
            raise ValueError(f"--kv-file {self.path}: belongs to other weights (digest "
                             f"{digest.hex()[:8]}, these are {self.digest.hex()[:8]}); {advice}")

    def scan(self, records: int) -> list[int]:
        """Read the headers of all records into the index: the slots without one."""
        free = []
        for slot in range(records):
            data = os.pread(self.file, HEADER.size, self.place(slot))
            fields = HEADER.unpack(data) if len(data) == HEADER.size else (None,) * 5
            magic, version, digest, name, length = fields
            if (magic, version, digest, length) == (MAGIC, VERSION, self.digest, self.length) \
                    and name not in self.slot_of:
                self.slot_of[name] = slot
            else:
                free.append(slot)
        return free

    def place(self, slot: int) -> int:
        """Where a record begins, in bytes."""
        return FILE_HEADER.size + slot * self.size

    # ---- records

    def __contains__(self, name: bytes) -> bool:
        return name in self.slot_of

    def get(self, name: bytes) -> bytes | None:
        """Keys and values of a page; None if its record is not whole, and its name is dropped."""
        slot = self.slot_of.get(name)
        if slot is None:
            return None
        try:
            data = os.pread(self.file, self.size, self.place(slot))
        except OSError:
            data = b""
        payload = self.read(data, name, self.digest, self.length)
        if payload is None:
            self.misses += 1
            del self.slot_of[name]
            self.free.append(slot)
        return payload

    def put(self, name: bytes, payload: bytes) -> None:
        """Write a page.
        If the disk is full it is lost, and counted."""
        if name in self.slot_of:
            return
        if not self.free:
            _, slot = self.slot_of.popitem(last=False)
            self.free.append(slot)
        slot = self.free.popleft()
        data = record_of(payload, name, self.digest)
        try:
            written = os.pwrite(self.file, data, self.place(slot))
        except OSError as error:
            self.fail(slot, error.strerror)
            return
        if written < len(data):
            self.fail(slot, "no room")
            return
        self.slot_of[name] = slot

    def fail(self, slot: int, why: str) -> None:
        if not self.failures:
            log.warning("%s: %s after %d pages; serving goes on without it", self.path, why,
                        len(self.slot_of))
        self.failures += 1
        self.free.append(slot)

    def close(self) -> None:
        os.close(self.file)


# ---- between host memory and the file


class FileCopies(Copies):
    """Copies, and those between host memory and a file."""

    def __init__(self, file: FileTier):
        super().__init__()
        self.file = file

    def down(self, place: int, name: bytes) -> None:
        """From a place in host memory to the file."""
        self.queue.append(("down", place, name))

    def fill(self, payload: bytes, place: int) -> None:
        """What was read from the file into a place in host memory."""
        self.queue.append(("fill", payload, place))

    def copy_down(self, pages: Pages, place: int, name: bytes) -> None:
        self.wait()
        self.file.put(name, self.memory[place].view(torch.uint8).numpy().tobytes())

    def copy_fill(self, pages: Pages, payload: bytes, place: int) -> None:
        self.wait()
        numbers = torch.frombuffer(bytearray(payload), dtype=self.memory.dtype)
        self.memory[place] = numbers.view(self.memory[place].shape)


class HostOverFile(HostTier):
    """A HostTier whose names fall into a file, and come back from there."""

    def __init__(self, places: int, file: FileTier):
        super().__init__(places)
        self.file = file
        self.copies: FileCopies = FileCopies(file)

    def __contains__(self, name: bytes) -> bool:
        return super().__contains__(name) or name in self.file

    def get(self, name: bytes) -> int | None:
        """The place of a name, which is read from the file if it has none."""
        place = super().get(name)
        if place is None:
            payload = self.file.get(name)
            place = None if payload is None else self.put(name)
            if place is not None:
                self.copies.fill(payload, place)
        return place

    def fall(self, name: bytes, place: int) -> None:
        if name not in self.file:
            self.copies.down(place, name)
