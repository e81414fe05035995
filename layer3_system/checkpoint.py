"""A checkpoint in a folder: a file of each rank, its shard, and a manifest that names them all.

    step10.shard0  step10.shard1  step10.manifest

The manifest has the digest of each shard.
A step without a manifest is no checkpoint.
"""

import fcntl
import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors.torch import load, save
from torch import Tensor

FORMAT = "three floors checkpoint 1"
PARTS = "weights", "m", "v"             # of a state: {name: Tensor} each


class Files(Protocol):
    """What a checkpoint is written to: a folder, or a disk of a test."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file.
        It may still be in memory alone, and be lost if the power fails."""

    def sync(self, name: str) -> None:
        """Wait until a file's bytes are on the disk, and its first name if it is new.
        So it is on ext4 and XFS; POSIX promises the bytes alone (fsync(2): its entry in the
        folder is not necessarily kept)."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, at once; it may be lost until `sync_folder`.
        FileNotFoundError if there is no `old`"""

    def sync_folder(self) -> None:
        """Wait until the names of all files are on the disk."""

    def read(self, name: str) -> bytes:
        """A file's bytes.
        FileNotFoundError if there is none"""

    def names(self) -> list[str]:
        """The names of all files, in no order."""

    def remove(self, name: str) -> None:
        """Delete a file."""


class Folder:
    """Files of a folder, which is made. pause: seconds in the middle of each write, for tests"""

    def __init__(self, path: Path, pause: float = 0.0) -> None:
        self.path = path
        self.pause = pause
        path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        with open(self.path / name, "wb") as file:
            file.write(data[:len(data) // 2])
            file.flush()
            time.sleep(self.pause)
            file.write(data[len(data) // 2:])

    def sync(self, name: str) -> None:
        fsync(self.path / name)

    def rename(self, old: str, new: str) -> None:
        os.replace(self.path / old, self.path / new)

    def sync_folder(self) -> None:
        fsync(self.path)

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def names(self) -> list[str]:
        return [path.name for path in self.path.iterdir() if path.name != "lock"]

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def lock(self, name: str = "lock") -> int:
        """Keep other trainings out until this process ends, or the file number is closed.
        ValueError if one is here.  name: of the lock's file"""
        number = os.open(self.path / name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.read(number, 20).decode()
            os.close(number)
            raise ValueError(f"{self.path}: the training of process {other} writes here, expected "
                             f"no other") from None
        os.truncate(number, 0)
        os.write(number, str(os.getpid()).encode())
        return number


def fsync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# ---- names


def shard_name(step: int, rank: int) -> str:
    """The name of a rank's file."""
    return f"step{step}.shard{rank}"


def manifest_name(step: int) -> str:
    """The name of the file that makes a step a checkpoint."""
    return f"step{step}.manifest"


def step_of(name: str) -> int | None:
    """The step whose manifest has this name; None if it is not a manifest's."""
    match = re.fullmatch(r"step(\d+)\.manifest", name)
    return int(match[1]) if match else None


# ---- bytes


def digest(data: bytes) -> str:
    """How many bytes these are, and their SHA-256: "81920:9f86d0…"."""
    return f"{len(data)}:{hashlib.sha256(data).hexdigest()}"


class Manifest(NamedTuple):
    """digests: of shard 0, 1 …"""

    step: int
    digests: list[str]


def write_manifest(step: int, digests: list[str]) -> bytes:
    """The bytes of a manifest. digests: of all ranks' shards, in the order of ranks"""
    return json.dumps({"format": FORMAT, "step": step, "digests": digests}, indent=1).encode()


def read_manifest(data: bytes) -> Manifest:
    """The manifest in some bytes.
    ValueError if they are cut short, or something else"""
    try:
        entries = json.loads(data)
    except ValueError:
        raise ValueError(f"expected a manifest, found {len(data)} bytes of no JSON") from None
    if not isinstance(entries, dict) or entries.get("format") != FORMAT:
        raise ValueError(f"expected a manifest of this course, found {str(entries)[:60]}")
    step = entries.get("step")
    digests = entries.get("digests")
    if not isinstance(step, int) or not isinstance(digests, list) or not digests:
        raise ValueError(f"expected a step and digests in a manifest, found {str(entries)[:60]}")
    return Manifest(step, digests)


def pack(state: dict[str, Any]) -> bytes:
    """A state as safetensors.
    Its entries without tensors are a text of JSON in there."""
    tensors = {f"{part}/{name}": tensor.detach().contiguous() for part in PARTS
               for name, tensor in state[part].items()}
    rest = {key: value for key, value in state.items() if key not in (*PARTS, "generator")}
    text = json.dumps(rest).encode()
    return save(tensors | {"generator": state["generator"],
                           "rest": torch.frombuffer(bytearray(text), dtype=torch.uint8)})


def unpack(data: bytes) -> dict[str, Any]:
    """The state that `pack` made bytes of."""
    tensors = load(data)
    state: dict[str, Any] = json.loads(bytes(tensors.pop("rest").tolist()))
    state["generator"] = tensors.pop("generator")
    for part in PARTS:
        own: dict[str, Tensor] = {name.partition("/")[2]: tensor for name, tensor
                                  in tensors.items() if name.startswith(f"{part}/")}
        state[part] = own
    return state
