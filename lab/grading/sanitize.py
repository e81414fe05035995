"""Submitted text made safe to show: without control characters, of bounded length, in any file."""

import hashlib
import re
import unicodedata
from datetime import UTC, datetime

# Marks that change the direction of writing: they make one text look like another.
DIRECTIONS = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")      # what a spreadsheet computes instead of showing
PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}[a-z0-9_]|[a-z0-9]")
DEVICE_NAME = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)")        # not file names on Windows
DIGEST = re.compile(r"-[0-9a-f]{12}$")


def clean(text, most=4000):
    """Newlines and tabs stay, other control characters become �; cut after `most` characters."""
    text = text.replace("\r\n", "\n")
    printable = "".join("\ufffd" if odd(c) else c for c in text[:most])
    if len(text) <= most:
        return printable
    return f"{printable}\n… ({len(text) - most} more characters)"


def odd(character):
    return character in DIRECTIONS or (
        unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t")


def one_line(text, most=300):
    text = " ".join(clean(text).split())
    return text if len(text) <= most else text[:most - 1] + "…"


def cell(value):
    """A value for a CSV file that a spreadsheet shows as it is, and does not compute."""
    text = clean(str(value))
    return "'" + text if FORMULA.match(text) else text


def file_name(student):
    """A name for a student's files, different for every student on every file system."""
    if PLAIN_NAME.fullmatch(student) and not DEVICE_NAME.match(student) and not DIGEST.search(
            student):
        return student
    ascii_only = unicodedata.normalize("NFKD", student).encode("ascii", "ignore").decode().lower()
    readable = re.sub(r"[^a-z0-9]+", "_", ascii_only).strip("_")[:40]
    digest = hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{readable or 'student'}-{digest}"


def utc(when):
    """Seconds since the epoch as an ISO date and time; "" for None, and for a file's time that no
    calendar has."""
    try:
        return "" if when is None else datetime.fromtimestamp(when, UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return ""
