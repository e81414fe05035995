"""The wire between two processes: parts over TCP, each in a message of its own

Connections are those of `multiprocessing.connection`: messages with their lengths, so a sender that
is killed in the middle of one leaves no half part, and a key that both sides must know.
"""

import contextlib
import json
import queue
import struct
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from typing import Any

from layer3_system.disaggregation.parts import Part, Ticket

HEAD = struct.Struct("<I")              # bytes of the JSON that follows
Address = tuple[str, int]


def pack(part: Part) -> bytes:
    """A part as one message."""
    k, v = part.k, part.v
    head = json.dumps(part._replace(k=len(k), v=len(v))).encode()       # type: ignore
    return HEAD.pack(len(head)) + head + k + v


def unpack(message: bytes) -> Part:
    """The part of such a message.
    Whether it came whole, its checksum says."""
    (length,) = HEAD.unpack_from(message)
    body = HEAD.size + length
    part = Part(*json.loads(message[HEAD.size:body]))
    middle = body + int(part.k)
    return part._replace(k=message[body:middle], v=message[middle:])


class TcpWire:
    """Sends parts, a thread for each receiver.
    A part is copied when it is posted, so its page may change from then on; its ticket is
    pending until the part is sent."""

    def __init__(self, key: bytes):
        self.key = key
        self.queues: dict[Address, queue.SimpleQueue] = {}

    def post(self, address: Address, read: Callable[[], Part]) -> Ticket:
        ticket = Ticket()
        if address not in self.queues:
            self.queues[address] = queue.SimpleQueue()
            threading.Thread(target=self.send_all, args=(address,), daemon=True).start()
        self.queues[address].put((ticket, pack(read())))
        return ticket

    def send_all(self, address: Address) -> None:
        """Send what is posted for a receiver.
        Once it is gone, every ticket is an error."""
        connection = None
        with contextlib.suppress(OSError, EOFError):        # it may be gone: the tickets say so
            connection = Client(address, authkey=self.key)
        while True:
            ticket, message = self.queues[address].get()
            try:
                if connection is None:
                    raise OSError(f"{address} does not answer")
                connection.send_bytes(message)
                ticket.state = "done"
            except OSError:
                connection = None
                ticket.state = "error"


class PartListener:
    """Receives parts, a thread for each sender.  address: where they connect to"""

    def __init__(self, key: bytes):
        self.key = key
        self.listener = Listener(("127.0.0.1", 0), backlog=64)
        self.address: Any = self.listener.address
        self.parts: queue.SimpleQueue[Part] = queue.SimpleQueue()
        threading.Thread(target=self.accept_all, daemon=True).start()

    def accept_all(self) -> None:
        while True:
            try:
                connection = self.listener.accept()
            except (OSError, EOFError):         # a sender that was killed while it knocked
                continue
            threading.Thread(target=self.receive_all, args=(connection,), daemon=True).start()

    def receive_all(self, connection: Connection) -> None:
        """Read until the sender is gone, perhaps within a message, which is dropped.
        One that does not know the key is not heard, and keeps no other waiting."""
        with contextlib.suppress(OSError, EOFError, AuthenticationError), connection:
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            while True:
                self.parts.put(unpack(connection.recv_bytes()))

    def take(self) -> list[Part]:
        """The parts that have arrived."""
        return [self.parts.get() for _ in range(self.parts.qsize())]
