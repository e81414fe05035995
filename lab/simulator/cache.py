"""Compiled kernels on disk, so that a kernel is compiled once and not at every start of Python."""

import hashlib
import json
import os
import re
import tempfile
from functools import cache
from pathlib import Path

from . import nvrtc
from .session import session


def compile_cached(source, path, options=(), name_expressions=(), folder=None):
    """Like nvrtc.compile_ptx.
    The cached file's name is a hash of all that decides the result: source, its file's name without
    the folder, options, names, NVRTC's version, the architecture, the standard options and the
    simulator's own headers.
    So the PTX may name the folder of an earlier compilation; `own_path` mends that.
    A source that includes files of its own is compiled every time, since these may change.
    folder: None for no cache."""
    if session.compiler is not None:
        return session.compiler("ptx", source, path, options, name_expressions, session.arch)
    if folder is None or '#include "' in source:
        return nvrtc.compile_ptx(source, path, options, name_expressions, session.arch)
    key = json.dumps([source, Path(path).name, options, name_expressions, nvrtc.version(),
                      session.arch, nvrtc.STANDARD_OPTIONS, nvrtc.include_folders(), own_headers()])
    file = Path(folder) / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    if file.exists():
        return nvrtc.Compiled(**json.loads(file.read_text(encoding="utf-8")))
    compiled = nvrtc.compile_ptx(source, path, options, name_expressions, session.arch)
    write_whole(file, json.dumps(compiled._asdict()))
    return compiled


@cache
def own_headers():
    """A digest of the simulator's own headers: another text of theirs is another result."""
    texts = [file.read_bytes() for file in sorted(Path(nvrtc.OWN_HEADERS).rglob("*"))
             if file.is_file()]
    return hashlib.sha256(b"".join(texts)).hexdigest()


def own_path(text, path):
    """PTX with the source's own `path` in its .file table."""
    name = re.escape(Path(path).name)
    return re.sub(rf'(\.file\s+\d+\s+)"(?:[^"]*/)?{name}"', lambda m: f'{m[1]}"{path}"', text)


def write_whole(file, text):
    """Write a file that others see either whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, suffix=".part")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(name, file)
