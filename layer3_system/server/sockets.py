"""A socket that listens, for a server and its clients' connections."""

import socket

from lab.course import CourseError


def listen(host, port):
    """A socket that listens.
    CourseError if the address is not available.

    Its connections inherit TCP_NODELAY, so they send at once what they have: else a small piece of
    a stream waits until the client has acknowledged the one before, and clients take 40 ms to do
    so. asyncio sets it only for a socket that names its protocol; create_server's does not.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, OverflowError) as error:
        raise CourseError(f"cannot listen on {host}, port {port}: {error}") from None
