"""What crosses between the trusted process and the code under test: data, as JSON and raw bytes.

A message is a frame: two lengths, a JSON text, then the bytes of its arrays one after the other
(wire.py).
Nothing here is ever unpickled, so a reply can be wrong but cannot run anything.
"""

import json
import math
import struct

HEAD = struct.Struct(">QQ")              # bytes of JSON, bytes of arrays
MAX_JSON_BYTES = 16 * 2**20  # bytes of JSON in a limited reply: a list of 3 takes 64 when read


class WireError(Exception):
    """The bytes that came are not a message of this protocol."""


def frame(message, buffers):
    """The bytes of one message.
    `message` is JSON-able and holds the tree."""
    text = json.dumps({"message": message, "sizes": [len(b) for b in buffers]}).encode()
    return b"".join((HEAD.pack(len(text), sum(map(len, buffers))), text, *buffers))


def read_frame(read, largest=math.inf):
    """(message, buffers) from `read(n)`, which returns exactly n bytes or raises EOFError."""
    text_size, data_size = HEAD.unpack(read(HEAD.size))
    if text_size + data_size > largest:
        raise WireError(f"a reply of {text_size + data_size:,} bytes; at most {largest:,} are "
                        f"allowed")
    if largest < math.inf and text_size > MAX_JSON_BYTES:
        raise WireError(f"a reply with {text_size:,} bytes of JSON, which lists become; at most "
                        f"{MAX_JSON_BYTES:,} are allowed")
    try:
        head = json.loads(read(text_size))
        message = head["message"]
        sizes = head["sizes"]
        if any(type(n) is not int or n < 0 for n in sizes) or sum(sizes) != data_size:
            raise WireError("the lengths of a message do not add up")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WireError(f"malformed message: {error!r}") from None
    return message, [read(n) for n in sizes]
