"""The files of one submission, taken from an untrusted folder or archive.

A Basket takes the files that can be graded and a line for each thing that cannot.
Nothing that a student sent makes it raise an error, follow a link or exceed its limits.
"""

import json
import re

from lab.course import CourseError
from lab.desk import ipynb
from lab.grading.model import Sent
from lab.grading.names import UNSHOWN, shown

KINDS = {".py": "python", ".cu": "cuda", ".ipynb": "notebook"}
MAX_ENTRIES = 10_000                # files and folders: a desk with its git history has hundreds
MAX_DEPTH = 16                      # folders in folders: a desk in a repository has four
MAX_CODE_BYTES = 200_000            # bytes of a .py or .cu: the course's longest is a tenth
MAX_NOTEBOOK_BYTES = 16 * 2**20     # bytes: pictures in outputs take megabytes
MAX_TEXT_BYTES = 64 * 2**20         # bytes of all that is read for one submission
MAX_PROBLEMS = 20                   # lines: more tell an instructor nothing new
LEFT_OUT = {".lab", ".kept", ".git", "__pycache__", ".ipynb_checkpoints", "__MACOSX", ".venv"}
MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


class Full(Exception):
    """A limit of the whole submission is reached: nothing more is read."""


class Basket:
    def __init__(self):
        self.files = {}
        self.lines = []
        self.entries = 0
        self.bytes = 0
        self.others = {}                # names of files that are not code, in order

    def problem(self, name, what):
        self.lines.append(f"{shown(name)[:200]}: {what}")

    @property
    def problems(self):
        more = len(self.lines) - MAX_PROBLEMS
        last = (f"and {more} more",) if more > 0 else ()
        return (*self.lines[:MAX_PROBLEMS], *last)

    def count(self):
        """Count one more entry.
        Full: too many."""
        self.entries += 1
        if self.entries > MAX_ENTRIES:
            self.problem("the rest", f"not read: more than {MAX_ENTRIES:,} files and folders")
            raise Full

    def wants(self, name):
        """True where a path inside the submission is worth reading; a bad one is a problem."""
        parts = name.split("/")
        if wrong := unsafe(name, parts):
            self.problem(name, f"not read: {wrong}")
            return False
        if LEFT_OUT & set(parts) or parts[-1].startswith("._"):
            return False
        if len(parts) > MAX_DEPTH:
            self.problem(name, f"not read: more than {MAX_DEPTH} folders deep")
            return False
        return True

    def kind(self, name):
        """python, cuda or notebook; None for a file that is not code."""
        kind = next((k for end, k in KINDS.items() if name.lower().endswith(end)), None)
        if kind is None:
            self.others[name] = None
        return kind

    def add(self, name, read):
        """Take a file. read(most) gives its first bytes, at most that many."""
        kind = self.kind(name)
        most = MAX_NOTEBOOK_BYTES if kind == "notebook" else MAX_CODE_BYTES
        data = read(most + 1)
        self.bytes += len(data)
        if len(data) > most:
            self.problem(name, f"not read: larger than {most:,} bytes")
        elif self.bytes > MAX_TEXT_BYTES:
            self.problem(name, f"not read, nor what follows: more than {MAX_TEXT_BYTES:,} "
                               f"bytes in all")
            raise Full
        elif name in self.files:
            self.problem(name, "there twice; the first one counts")
        else:
            self.keep(name, kind, data)

    def keep(self, name, kind, data):
        try:
            text = decoded(data)
            text = code_alone(text) if kind == "notebook" else text
        except ValueError as error:
            self.problem(name, f"not read: {error}")
        else:
            self.files[name] = Sent(name, kind, text)


def unsafe(name, parts):
    """What is wrong with a path inside a submission, or None."""
    if UNSHOWN.search(name):
        return "its name holds control characters"
    if "\\" in name:
        return "its name holds a backslash"
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        return "its path is absolute"
    if ".." in parts:
        return "its path leaves the submission"
    return None


def decoded(data):
    """Bytes as text.
    ValueError: neither UTF-8 nor UTF-16 with its mark."""
    codec = next((codec for mark, codec in MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(codec)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text, nor UTF-16 with a byte order mark") from None
    if "\0" in text:
        raise ValueError("it holds NUL bytes, so it is not text")
    return text


def code_alone(text):
    """A notebook with the sources of its code cells alone.
    ValueError: it is not a notebook.

    Outputs, which can be a hundred times as large, are never held.
    Format 3 becomes format 4.
    """
    try:
        raw = json.loads(text)
        if isinstance(raw, dict) and "cells" not in raw and raw.get("worksheets"):
            raw["cells"] = [{"metadata": {}, "source": cell.get("input", ""), **cell}
                            for sheet in raw["worksheets"] for cell in sheet["cells"]]
            text = json.dumps(raw)
        cells = [ipynb.source(cell) for cell in ipynb.load(text, "it")["cells"]
                 if cell["cell_type"] == "code"]
    except RecursionError:
        raise ValueError("it is nested too deeply for a notebook") from None
    except (CourseError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("it is not a notebook that can be read: it is damaged, or another kind "
                         "of file") from None
    if long := next((n for n, cell in enumerate(cells, 1) if len(cell) > MAX_CODE_BYTES), None):
        raise ValueError(f"its code cell {long} is larger than {MAX_CODE_BYTES:,} characters")
    return ipynb.dump({"cells": [
        {"cell_type": "code", "metadata": {}, "source": sound(cell)} for cell in cells]})


def sound(text):
    """A text that can be written as UTF-8 and compiled: JSON can spell characters that no file
    holds."""
    return re.sub("[\0\ud800-\udfff]", "\ufffd", text)
