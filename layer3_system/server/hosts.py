"""Access to a server: names of hosts, origins of pages, and how long a client may be silent

A page that somebody visits can make their browser send requests to this machine.
Without permission it cannot send JSON, so other bodies are refused.
If its own name is made to point here, by DNS rebinding, the Host header still has that name.
So the server answers only to its own names.
"""

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Access:
    """Which clients a server answers, beyond this machine's own."""

    hosts: tuple[str, ...] = ()     # names and addresses; 0.0.0.0 or :: for any address
    origins: tuple[str, ...] = ()   # of pages elsewhere that may call it, or "*"
    patience: float = 20.0          # seconds for all headers, and for the next part of a body


def host_of(header):
    """The name or address in a Host header, in lower case and without its port; "" for none, or
    where it has a user, which RFC 9110 forbids."""
    try:
        if "@" in header:
            return ""
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:                                      # a bracket that does not close
        return ""


def address_of(host):
    """An ip_address; None if a host is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_own(host):
    """Whether a host is this machine's own, out of reach of any other."""
    address = address_of(host)
    return host == "localhost" if address is None else address.is_loopback


def is_trusted(host, access):
    """Whether a request for this host is meant for this server."""
    listed = [name.lower() for name in access.hosts]
    everywhere = any((address := address_of(name)) and address.is_unspecified for name in listed)
    return is_own(host) or host in listed or everywhere and address_of(host) is not None
