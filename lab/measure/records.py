"""The record of a GPU, benchmarks/<device>.json: the machine, the sources and the results.

`make gpu` writes a whole one, `lab bench` its own units into it.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from lab.course import ROOT, VERSION, CourseError
from lab.setup import driver_version

CLOCKS = ("clocks.sm", "clocks.max.sm", "clocks.mem")       # MHz, as nvidia-smi names them


def path_of(gpu):
    """Where the record of such a device is."""
    stem = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-")
    return ROOT / "benchmarks" / f"{stem}.json"


def about(gpu):
    """What a record says about the machine and the sources that were proven on it."""
    def version(package):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    cupy = version("cupy-cuda13x") or version("cupy-cuda12x")
    sources = contents(*(folder for pattern in ("lab", "day*", "layer*", "tests")
                         for folder in ROOT.glob(pattern)))
    sources = {str(Path(path).relative_to(ROOT)): digest for path, digest in sources.items()
               if Path(path).suffix in (".py", ".cu", ".toml")}
    return {
        "schema": 1, "course_version": VERSION, "device": gpu.name,
        "capability": list(gpu.capability), "memory_bytes": gpu.memory,
        "driver": driver_version(), "python": platform.python_version(),
        "torch": version("torch"), "triton": version("triton"), "cupy": cupy,
        "sources": hashlib.sha256(json.dumps(sources).encode()).hexdigest(),
    }


def contents(*folders):
    """{path: digest} of every file below, to tell whether one changed."""
    digests = {}
    for path in sorted(path for folder in folders for path in folder.rglob("*")):
        if path.is_symlink():
            digests[str(path)] = os.readlink(path)
        elif path.is_file():
            digests[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            digests[str(path)] = "folder"
    return digests


def clocks():
    """{name: MHz} at this moment; empty where nvidia-smi does not tell, or with several GPUs."""
    smi = shutil.which("nvidia-smi")
    options = [f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader,nounits"]
    output = subprocess.run([smi, *options], capture_output=True, text=True).stdout if smi else ""
    match = re.fullmatch(r"\s*(\d+), (\d+), (\d+)\s*", output)
    return dict(zip(CLOCKS, map(int, match.groups()), strict=True)) if match else {}


def write(file, record):
    """All of it or nothing: a run may be stopped at any moment."""
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(beside, file)


def keep(gpu, name, row):
    """Put one unit into the record of a device; its other units stay.
    Returns the path.

    The record may be older than this unit, so the unit says with what it was measured.
    """
    file = path_of(gpu)
    now = about(gpu)
    try:
        record = json.loads(file.read_text())
        record["units"][name] = {**row, "about": now}
    except FileNotFoundError:
        record = {**now, "units": {name: {**row, "about": now}}}
    except (ValueError, KeyError, TypeError):
        raise CourseError(f"{file} is damaged: expected a record with units; delete it to begin "
                          f"again") from None
    write(file, record)
    return file
