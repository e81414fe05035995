"""Set the course up in .venv with the tested versions. make runs it before anything else.

It runs on the system's Python with nothing installed, so it imports the standard library and
nothing else of lab.
Whatever is missing ends in one line that names the fix, and exit code 2.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NO_GPU = "no NVIDIA GPU here: nothing proven, nothing written"

# Where an NVIDIA driver shows itself.
WSL_SMI = Path("/usr/lib/wsl/lib/nvidia-smi")           # WSL 2 does not put it on the path
KERNEL_MODULE = Path("/proc/driver/nvidia/version")     # in a container without nvidia-smi
CONTROL_DEVICE = Path("/dev/nvidiactl")                 # missing in a container without the GPU

CUDA_12_DRIVER, CUDA_13_DRIVER = 525, 580   # the oldest that run them, by NVIDIA's release notes
CUDA_13_CAPABILITY = (7, 5)                 # CUDA 13 dropped what is older than Turing


class Missing(Exception):
    """Something the learner has to provide: one line that ends in the fix."""


@dataclass(frozen=True)
class Build:
    """Which torch and CuPy fit this machine."""

    name: str
    wheels: str | None      # folder of PyTorch's own index; None: its default, the CUDA 13 build
    extra: str | None       # of pyproject.toml
    says: str
    download: str           # measured on x86-64 with Python 3.11; cuda12: an estimate
    disk: str


BUILDS = {build.name: build for build in (
    Build("cpu", "cpu", None, "without CUDA", "0.6 GB", "2.3 GB"),
    Build("cuda12", "cu126", "cuda12", "for CUDA 12", "3 GB", "7 GB"),
    Build("cuda13", None, "cuda13", "for CUDA 13", "2.9 GB", "5.5 GB"),
)}


# What this machine has

def check_machine():
    """Wheels of NVRTC, Triton and torch exist for Linux on two processors, with glibc 2.28."""
    system = platform.system()
    processor = platform.machine()
    if system != "Linux":
        fix = "WSL 2" if system == "Windows" else "a Linux container"
        raise Missing(f"the course runs on Linux and this is {system or 'unknown'}: use {fix}, "
                      "as README.md shows")
    if processor not in ("x86_64", "aarch64"):
        raise Missing(f"the course runs on x86_64 and aarch64 and this is {processor}: "
                      "use a machine with one of these processors")
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(map(int, version.split(".")[:2])) < (2, 28):
        raise Missing(f"torch needs glibc 2.28 or newer and this is {library or 'not glibc'} "
                      f"{version}: use a newer system, such as Debian 12 or Ubuntu 22.04")


def check_writable():
    for folder in (ROOT, ROOT / ".venv"):
        if folder.exists() and not os.access(folder, os.W_OK):
            raise Missing(f"cannot write to {folder}: clone the course into a folder of yours, "
                          "or make this one yours with sudo chown -R")


def ask_smi(field):
    """One nvidia-smi field of every GPU; [] where there is no GPU or no working driver."""
    smi = shutil.which("nvidia-smi") or (WSL_SMI.exists() and str(WSL_SMI))
    if not smi:
        return []
    try:
        done = subprocess.run([smi, f"--query-gpu={field}", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise Missing("nvidia-smi does not answer within a minute: restart the machine, "
                      "or leave the GPU out with BUILD=cpu") from None
    return re.findall(r"^\s*(\d+\.\d+(?:\.\d+)?)\s*$", done.stdout, re.M)


def driver_version():
    """The version of the NVIDIA driver that shows a GPU here, such as "580.65.06", or None."""
    answers = ask_smi("driver_version")
    if answers:
        return answers[0]
    if KERNEL_MODULE.exists() and CONTROL_DEVICE.exists():
        match = re.search(r"Module.*?\s(\d+\.\d+(\.\d+)?)\s", KERNEL_MODULE.read_text())
        return match and match[1]
    return None


def fitting_build(driver):
    if driver is None:
        return BUILDS["cpu"]
    major = int(driver.split(".")[0])
    if major < CUDA_12_DRIVER:
        raise Missing(f"NVIDIA driver {driver} is too old, CUDA needs {CUDA_12_DRIVER} or newer: "
                      f"install driver {CUDA_13_DRIVER}, or leave the GPU out with BUILD=cpu")
    # On several GPUs CUDA's first is the fastest, which is the newest as a rule.
    capability = max((tuple(map(int, text.split("."))) for text in ask_smi("compute_cap")),
                     default=CUDA_13_CAPABILITY)
    modern = major >= CUDA_13_DRIVER and capability >= CUDA_13_CAPABILITY
    return BUILDS["cuda13" if modern else "cuda12"]


# The environment

RECORD = {"root", "build", "forced", "tests", "inputs"}


class Environment:
    """A virtual environment, and the record of what it holds in course.json inside it.

    root: the course's folder. build: a name of BUILDS; forced: the learner asked for it. tests:
    it has what only the tests need. inputs: the fingerprint of what was installed, None until that
    is complete.
    """

    def __init__(self, folder):
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.file = folder / "course.json"

    def record(self):
        try:
            record = json.loads(self.file.read_text())
            return record if record.keys() == RECORD and record["build"] in BUILDS else {}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}           # not begun, interrupted while it was written, or not ours

    def write(self, record):
        self.file.write_text(json.dumps(record))

    def version(self):
        """Its Python's version if that runs, is supported and has pip, else None."""
        try:
            done = subprocess.run(
                [self.python, "-I", "-c",
                 "import pip, platform; print(platform.python_version())"],
                capture_output=True, text=True)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        version = done.stdout.strip()
        return version if re.fullmatch(r"3\.1[123]\..*", version) else None

    def make(self):
        """Make it, in place of anything that is there."""
        name = f"python3.{sys.version_info.minor}"
        if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
            raise Missing(f"{name} cannot make virtual environments: "
                          f"sudo apt install {name}-venv, and try again")
        done = subprocess.run([sys.executable, "-m", "venv", "--clear", self.folder],
                              capture_output=True, text=True)
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["no reason given"]
            raise Missing(f"{name} could not make the virtual environment {self.folder}: "
                          f"{lines[-1]}")

    def pip(self, *arguments):
        subprocess.run([self.python, "-I", "-m", "pip", "--disable-pip-version-check",
                        *arguments], cwd=ROOT, check=True)

    def has_own_index(self):
        """Whether pip is told where to look, by a file or by the environment."""
        done = subprocess.run([self.python, "-I", "-m", "pip", "config", "list"],
                              capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"pip cannot read its configuration: {done.stderr.strip()[-300:]}")
        return bool(re.search(r"\.(index-url|extra-index-url|find-links|no-index)=", done.stdout))

    def drop_unfinished(self):
        """Remove packages without INSTALLER, which pip writes last: a part may be missing."""
        for info in self.folder.glob("lib/python3.*/site-packages/*.dist-info"):
            if not (info / "INSTALLER").exists():
                shutil.rmtree(info)


def inputs(version):
    """A fingerprint of everything that decides what is installed."""
    files = (ROOT / "constraints.txt", ROOT / "pyproject.toml")
    texts = [version, *(file.read_text() for file in files)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def choose_build(build_option, record):
    """The Build to install. build_option: BUILD, kept from then on.
    A CUDA build is kept even while the GPU is absent."""
    if build_option:
        if build_option not in BUILDS:
            raise Missing(f"BUILD={build_option}: expected {', '.join(BUILDS)}")
        return BUILDS[build_option]
    if record.get("forced"):
        return BUILDS[record["build"]]
    build = fitting_build(driver_version())
    return BUILDS[record.get("build", "cpu")] if build.name == "cpu" else build


def set_up(build_option, wheels, tests=False):
    """Bring .venv to the tested set.
    If it is there already, nothing is done.

    tests: with what only the course's own tests need, kept from then on.
    """
    check_machine()
    check_writable()
    venv = Environment(ROOT / ".venv")
    record = venv.record()
    build = choose_build(build_option, record)
    wanted = {"root": str(ROOT), "build": build.name,
              "forced": bool(build_option or record.get("forced")),
              "tests": bool(tests or record.get("tests"))}

    version = venv.version()
    # Its programs hold the folder's path, and two builds do not mix.
    elsewhere = record and (record["root"], record["build"]) != (wanted["root"], wanted["build"])
    if version and not elsewhere and record == {**wanted, "inputs": inputs(version)}:
        return

    if version is None or elsewhere:
        venv.make()
        version = venv.version()
    venv.write({**wanted, "inputs": None})
    install(venv, version, build, wheels, wanted["tests"])
    venv.write({**wanted, "inputs": inputs(version)})


def install(venv, version, build, wheels, tests):
    """The course and what it needs, into an environment that is there.
    Says what it will cost."""
    own_index = venv.has_own_index()
    unless = (f" ({BUILDS['cuda13'].download} if the index that pip is set to has only "
              "CUDA builds of torch)" if own_index and build.name == "cpu" else "")
    print(f"Setting up .venv: Python {version}, torch {build.says}. Up to {build.download} to "
          f"download{unless}, {build.disk} on disk. It may be interrupted: the same command "
          "continues.", flush=True)

    begun = time.monotonic()
    venv.drop_unfinished()
    command = ["install", "--constraint", "constraints.txt", "--only-binary", ":all:"]
    # The tested pip continues a download that breaks off.
    venv.pip(*command, "pip", "hatchling")
    index = ["--extra-index-url", f"{wheels}/{build.wheels}"] \
        if build.wheels and not own_index else []
    extras = ",".join(filter(None, (build.extra, tests and "test")))
    course = f".[{extras}]" if extras else "."
    venv.pip(*command, *index, "--no-build-isolation", "--editable", course)
    print(f"Set up in {time.monotonic() - begun:.0f} s.", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", required=True, help="PyTorch's own index")
    parser.add_argument("--build", help="a build instead of the one that fits")
    parser.add_argument("--tests", action="store_true", help="with what only the tests need")
    parser.add_argument("--need-gpu", action="store_true", help="stop where there is no GPU")
    options = parser.parse_args()
    try:
        if options.need_gpu and driver_version() is None:
            print(NO_GPU)
            return 3
        set_up(options.build, options.wheels, options.tests)
    except (Missing, OSError) as problem:
        print(problem, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError:
        print("pip could not finish; its last lines say why. The same command continues",
              file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: the same command continues", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
