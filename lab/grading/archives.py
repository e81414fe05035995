"""Archives, read in memory: a .zip or .tar.gz is searched, and nothing is unpacked to disk."""

import io
import json
import re
import stat
import struct
import tarfile
import zipfile
import zlib

from lab.grading import names
from lab.grading.submitted_files import Full

MAX_ARCHIVE_BYTES = 64 * 2**20      # bytes: a desk with pictures and its history is a tenth
MAX_UNPACKED_BYTES = 64 * 2**20     # bytes of a .tar.gz, which must be unpacked to be searched
MAX_ENTRIES = 10_000                # as in a folder; each costs memory before it can be refused
BROKEN = (OSError, ValueError, EOFError, RuntimeError, KeyError, IndexError, OverflowError,
          struct.error, zlib.error, zipfile.BadZipFile, tarfile.TarError)
ENTRY = b"PK\x01\x02"               # starts an entry of a zip's directory
MANIFEST = "manifest.json"


def read(data, name, basket, inside=""):
    """Fill a basket from an archive; return the course version that it states, or None.

    data: the archive's bytes, at most MAX_ARCHIVE_BYTES + 1. inside: a prefix of each file's path.
    """
    if len(data) > MAX_ARCHIVE_BYTES:
        basket.problem(name, f"not read: larger than {MAX_ARCHIVE_BYTES:,} bytes; `lab submit` "
                             f"packs only what is graded")
        return None
    try:
        return (from_zip if name.lower().endswith(".zip") else from_tar)(data, basket, inside)
    except BROKEN as error:
        basket.problem(name, f"cannot be read as an archive: {plain(error)}")
        return None


def plain(error):
    return " ".join(str(error).split())[:100] or type(error).__name__


# ---- zip


def from_zip(data, basket, inside):
    if data.count(ENTRY) > MAX_ENTRIES:
        raise ValueError(f"more than {MAX_ENTRIES:,} files in it")
    version = None
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in sorted(archive.infolist(), key=lambda info: info.orig_filename):
            basket.count()
            path = inside + info.orig_filename.rstrip("/")
            if not basket.wants(path) or not plain_entry(info, path, basket):
                continue
            if info.filename == MANIFEST:
                version = stated_version(unzipped(archive, info, 10_000))
            elif basket.kind(path):
                taken(path, basket, lambda most, info=info: unzipped(archive, info, most))
    return version


def plain_entry(info, path, basket):
    """True for a file; a link, a device or a file that cannot be unpacked is a problem."""
    mode = stat.S_IFMT(info.external_attr >> 16)
    if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
        basket.problem(path, "not read: it is a link or a device")
        return False
    if info.is_dir() or mode == stat.S_IFDIR:
        return False
    if basket.kind(path) and info.flag_bits & 1:
        basket.problem(path, "not read: it is encrypted")
        return False
    if basket.kind(path) and info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        basket.problem(path, "not read: packed by a method other than deflate")
        return False            # bzip2 and LZMA unpack a chunk whole, whatever its size
    return True


def unzipped(archive, info, most):
    with archive.open(info) as file:
        return file.read(most)


# ---- tar


def from_tar(data, basket, inside):
    version = None
    with tarfile.open(fileobj=io.BytesIO(gunzipped(data)), mode="r:") as archive:
        for member in iter(archive.next, None):
            basket.count()
            if member.size < 0:                 # the next entry would be this one again
                raise ValueError(f"the size of {names.shown(member.name)} is negative")
            name = member.name.removeprefix("./")
            path = inside + name
            if member.isdir() or not basket.wants(path):
                continue
            if not member.isreg() or member.issparse():
                basket.problem(path, "not read: it is a link or a device")
            elif name == MANIFEST:
                version = stated_version(archive.extractfile(member).read(10_000))
            elif basket.kind(path):
                taken(path, basket, archive.extractfile(member).read)
    return version


def gunzipped(data):
    """The tar in a .tar.gz.
    ValueError: too large."""
    unpack = zlib.decompressobj(wbits=31)               # 31: gzip
    tar = unpack.decompress(data, MAX_UNPACKED_BYTES + 1)
    if len(tar) > MAX_UNPACKED_BYTES:
        raise ValueError(f"it unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
    if not unpack.eof:
        raise ValueError("it is cut short")
    return tar


# ---- both


def taken(path, basket, read):
    """Add one file; a broken one does not stop the others."""
    try:
        basket.add(path, read)
    except Full:
        raise
    except BROKEN as error:
        basket.problem(path, f"cannot be unpacked: {plain(error)}")


def stated_version(data):
    """The course version that a manifest states, or None."""
    try:
        version = json.loads(data)["course_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return version if isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,40}", version) else None
