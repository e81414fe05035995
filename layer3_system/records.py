"""A page as a file has it: a header, keys and values, a checksum of both"""

import struct
from zlib import crc32

__all__ = ["CHECK", "HEADER", "MAGIC", "VERSION", "record_of"]

MAGIC = b"KVPG"
VERSION = 1
HEADER = struct.Struct("<4sH32s32sQ")   # magic, version, digest of the model, name, bytes
CHECK = struct.Struct("<I")             # CRC-32 of all before it


def record_of(payload: bytes, name: bytes, digest: bytes) -> bytes:
    """The record of a page.

    payload: keys and values    name: 32 bytes, of the page    digest: 32 bytes, of the model
    """
    data = HEADER.pack(MAGIC, VERSION, digest, name, len(payload)) + payload
    return data + CHECK.pack(crc32(data))
