"""The set-up, driven with stand-ins for Python, pip and nvidia-smi; nothing is installed."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lab import setup
from lab.course import ROOT

WHEELS = "https://wheels.example"
OLD_PYTHON = 'case "$*" in *version_info*) exit 1;; -V) echo Python 3.9.2;; esac'
SHIM = "echo 'this version is not chosen' >&2; exit 127"
# What the environment's own Python answers: its version, pip's configuration, and an install
# that fails while a file named broken lies beside it.
VENV_PYTHON = """
case "$*" in
    *platform*) echo 3.12.4;;
    *"config list"*) cat "$(dirname "$0")/config";;
    *) echo "$*" >> "$(dirname "$0")/calls"; test ! -e "$(dirname "$0")/broken";;
esac
"""


def script(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A folder that is the whole path: sh, make and what a test adds."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "make", "cat", "dirname"):
        (folder / tool).symlink_to(shutil.which(tool))
    monkeypatch.setenv("PATH", str(folder))
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):       # `make test` runs these tests too
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def clone(tmp_path, path, monkeypatch):
    """A clone in a path with a space, on a machine with no sign of NVIDIA."""
    folder = tmp_path / "a course"
    (folder / "lab").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "lab/setup.py"):
        shutil.copy(ROOT / name, folder / name)
    monkeypatch.setattr(setup, "ROOT", folder)
    for name in ("WSL_SMI", "KERNEL_MODULE", "CONTROL_DEVICE"):
        monkeypatch.setattr(setup, name, tmp_path / name)
    return folder


@pytest.fixture
def run(clone, monkeypatch, capfd):
    """run("--build", "cpu") -> (exit code, output lines, error lines, pip's calls)."""
    config = clone.parent / "config"
    config.write_text("global.timeout='60'\n")

    def make(environment):
        shutil.rmtree(environment.folder, ignore_errors=True)
        script(environment.python, VENV_PYTHON)
        (environment.folder / "bin" / "config").symlink_to(config)

    monkeypatch.setattr(setup.Environment, "make", make)

    def call(*options):
        monkeypatch.setattr(sys, "argv", ["setup.py", "--wheels", WHEELS, *options])
        calls = clone / ".venv" / "bin" / "calls"
        calls.unlink(missing_ok=True)
        code = setup.main()
        captured = capfd.readouterr()
        return (code, captured.out.splitlines(), captured.err.splitlines(),
                calls.read_text().splitlines() if calls.exists() else [])
    return call


def nvidia(path, driver, capability="9.0"):
    script(path / "nvidia-smi", f'case "$*" in *driver_version*) echo "{driver}";; '
                                f'*compute_cap*) echo "{capability}";; esac')


def make(clone, *arguments):
    return subprocess.run(["make", *arguments], cwd=clone, capture_output=True, text=True)


# Python

@pytest.mark.parametrize("stand_in, found", [
    (None, "missing"), (OLD_PYTHON, "Python 3.9.2"), (SHIM, "missing")])
def test_no_supported_python_is_one_line(clone, path, stand_in, found):
    if stand_in:
        script(path / "python3", stand_in)
    done = make(clone, "test")
    said, from_make = done.stderr.splitlines()
    assert said == (f"no Python 3.11, 3.12 or 3.13 here, python3 is {found}: install one, such as "
                    "sudo apt install python3.12-venv, and try again")
    assert from_make.startswith("make: ***")
    assert done.returncode == 2


def test_another_python_on_the_path_is_taken(clone, path):
    script(path / "python3", OLD_PYTHON)
    script(path / "python3.13", SHIM)
    script(path / "python3.12", 'case "$2" in -c) ;; *) echo "3.12 runs $*";; esac')
    done = make(clone, "set-up", "BUILD=cpu")
    assert done.stdout.strip() == ("3.12 runs -I lab/setup.py --wheels "
                                   "https://download.pytorch.org/whl --build cpu")


def test_python_without_venv_is_one_line(clone, monkeypatch, capsys):
    find = setup.importlib.util.find_spec
    monkeypatch.setattr(setup.importlib.util, "find_spec",
                        lambda name: None if name == "ensurepip" else find(name))
    monkeypatch.setattr(sys, "argv", ["setup.py", "--wheels", WHEELS])
    assert setup.main() == 2
    name = f"python3.{sys.version_info.minor}"
    assert capsys.readouterr().err == (f"{name} cannot make virtual environments: "
                                       f"sudo apt install {name}-venv, and try again\n")


# The machine

@pytest.mark.parametrize("system, processor, library, fix", [
    ("Darwin", "arm64", ("", ""), "a Linux container"),
    ("Windows", "AMD64", ("", ""), "WSL 2"),
    ("Linux", "riscv64", ("glibc", "2.36"), "x86_64 and aarch64"),
    ("Linux", "x86_64", ("glibc", "2.17"), "glibc 2.28"),
    ("Linux", "x86_64", ("", ""), "glibc 2.28"),
])
def test_unsupported_machine_is_one_line(run, monkeypatch, system, processor, library, fix):
    monkeypatch.setattr(setup.platform, "system", lambda: system)
    monkeypatch.setattr(setup.platform, "machine", lambda: processor)
    monkeypatch.setattr(setup.platform, "libc_ver", lambda: library)
    code, _, [line], calls = run()
    assert code == 2 and fix in line and not calls


def test_folder_that_cannot_be_written_is_one_line(run, clone, monkeypatch):
    monkeypatch.setattr(setup.os, "access", lambda folder, mode: False)
    code, _, [line], calls = run()
    assert code == 2 and line.startswith(f"cannot write to {clone}: ") and not calls


@pytest.mark.parametrize("driver, capability, build", [
    ("525.60.13", "8.0", "cuda12"), ("575.51.03", "9.0", "cuda12"),
    ("580.65.06", "7.5", "cuda13"), ("595.10", "12.0", "cuda13"),
    ("580.65.06", "7.0", "cuda12"),             # CUDA 13 has no code for Volta
    ("580.65.06", "6.1\n9.0", "cuda13"),        # the newest of two decides
    ("No devices were found", "", "cpu"),
    ("NVIDIA-SMI has failed", "", "cpu"),
])
def test_build_fits_driver_and_gpu(run, clone, path, driver, capability, build):
    nvidia(path, driver, capability)
    code, [announced, _], errors, _ = run()
    assert (code, errors) == (0, [])
    assert setup.BUILDS[build].says in announced and setup.BUILDS[build].download in announced
    assert json.loads((clone / ".venv" / "course.json").read_text())["build"] == build


def test_old_driver_is_one_line(run, path):
    nvidia(path, "470.256.02")
    code, _, [line], calls = run()
    assert code == 2 and not calls
    assert line == ("NVIDIA driver 470.256.02 is too old, CUDA needs 525 or newer: install driver "
                    "580, or leave the GPU out with BUILD=cpu")


def test_cpu_can_be_asked_for_once(run, path):
    nvidia(path, "470.256.02")
    assert run("--build", "cpu")[0] == 0
    assert run() == (0, [], [], [])             # kept, although the driver is too old


def test_unknown_build_is_one_line(run):
    assert run("--build", "gpu")[::2] == (2, ["BUILD=gpu: expected cpu, cuda12, cuda13"])


@pytest.mark.parametrize("module", [
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:36:34 UTC 2025",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build",
])
def test_driver_without_nvidia_smi(clone, module):
    setup.KERNEL_MODULE.write_text(module + "\n")
    assert setup.driver_version() is None       # a container on such a machine, without its GPU
    setup.CONTROL_DEVICE.touch()
    assert setup.driver_version() == "580.65.06"


def test_driver_in_wsl(clone):
    nvidia(setup.WSL_SMI.parent, "581.1")
    (setup.WSL_SMI.parent / "nvidia-smi").rename(setup.WSL_SMI)
    assert setup.driver_version() == "581.1"


def test_gpu_needed_and_none_here(run):
    assert run("--need-gpu") == (3, [setup.NO_GPU], [], [])


# What is installed

@pytest.mark.parametrize("driver, config, index, course", [
    (None, "", f"{WHEELS}/cpu", "."),
    ("550.54.14", "", f"{WHEELS}/cu126", ".[cuda12]"),
    ("580.65.06", "", None, ".[cuda13]"),
    (None, "global.index-url='https://mirror.example/simple'", None, "."),
    (None, ":env:.extra-index-url='https://mirror.example/simple'", None, "."),
    (None, "install.find-links='/wheels'", None, "."),
    (None, ":env:.no-index='1'", None, "."),
])
def test_index_is_added_only_where_pip_has_none(run, clone, path, driver, config, index, course):
    (clone.parent / "config").write_text(config + "\n")
    if driver:
        nvidia(path, driver)
    code, [announced, _], _, [tools, packages] = run()
    assert code == 0
    assert tools.endswith("install --constraint constraints.txt --only-binary :all: pip hatchling")
    assert packages.endswith(f"--editable {course}")
    assert ("--extra-index-url" in packages) == (index is not None)
    assert index is None or f"--extra-index-url {index} " in packages
    assert ("2.9 GB if" in announced) == (driver is None and index is None)


def test_set_up_continues_then_rests(run, clone):
    (clone / "work").mkdir()
    (clone / "work" / "mine.py").write_text("mine")
    shutil.rmtree(clone / ".venv", ignore_errors=True)
    setup.Environment(clone / ".venv").make()
    (clone / ".venv" / "bin" / "broken").touch()
    code, _, [line], _ = run()
    assert code == 2
    assert line == "pip could not finish; its last lines say why. The same command continues"
    (clone / ".venv" / "bin" / "broken").unlink()
    code, _, errors, calls = run()
    assert (code, errors, len(calls)) == (0, [], 2)
    assert run() == (0, [], [], [])
    assert (clone / "work" / "mine.py").read_text() == "mine"


def test_what_tests_need_comes_when_asked_for_and_stays(run):
    assert run()[3][-1].endswith("--editable .")
    assert run("--tests")[3][-1].endswith("--editable .[test]")
    assert run("--tests") == run() == (0, [], [], [])


def test_other_pins_are_installed_into_the_same_environment(run, clone):
    run()
    kept = clone / ".venv" / "kept"
    kept.touch()
    with open(clone / "constraints.txt", "a") as file:
        file.write("another==1.0\n")
    assert len(run()[3]) == 2 and kept.exists()


@pytest.mark.parametrize("damage", [
    "", "[1]", "{}", '{"root": 1',
    '{"root": 1, "build": [], "forced": 0, "tests": 0, "inputs": 0}'])
def test_damaged_record_is_written_anew(run, clone, damage):
    run()
    (clone / ".venv" / "course.json").write_text(damage)
    assert run()[0] == 0
    assert run() == (0, [], [], [])


def test_moved_folder_is_set_up_anew(run, clone, monkeypatch):
    run()
    moved = clone.rename(clone.with_name("moved"))
    (moved / ".venv" / "kept").touch()
    monkeypatch.setattr(setup, "ROOT", moved)
    run()
    assert not (moved / ".venv" / "kept").exists()


def test_gpu_that_comes_and_goes(run, clone, path):
    run()
    nvidia(path, "580.65.06")
    assert "CUDA 13" in run()[1][0]             # CPU and CUDA builds do not mix: it is made again
    (path / "nvidia-smi").unlink()
    assert run() == (0, [], [], [])             # the CUDA build runs without a GPU too


def test_environment_that_does_not_run_is_made_anew(run, clone):
    run()
    (clone / ".venv" / "bin" / "python").unlink()
    assert len(run()[3]) == 2


def test_unfinished_package_is_installed_again(tmp_path):
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    for name in ("whole-1.0.dist-info", "part-1.0.dist-info"):
        (packages / name).mkdir(parents=True)
        (packages / name / "METADATA").touch()
    (packages / "whole-1.0.dist-info" / "INSTALLER").touch()
    setup.Environment(tmp_path).drop_unfinished()
    assert os.listdir(packages) == ["whole-1.0.dist-info"]


# The pins

def test_every_requirement_is_pinned_within_its_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines()
             if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert list(pins) == sorted(pins) and all(name == canonicalize_name(name) for name in pins)
    extras = project["project"]["optional-dependencies"].values()
    for text in (*project["project"]["dependencies"], *project["build-system"]["requires"],
                 *(text for extra in extras for text in extra)):
        needed = Requirement(text)
        exact = [s.version for s in needed.specifier if s.operator == "=="]
        pin = exact[0] if exact else pins[canonicalize_name(needed.name)]
        assert needed.specifier.contains(pin), f"{needed} and its pin {pin} disagree"
    assert "+" not in pins["torch"]


def test_the_script_stands_alone():
    """It runs before anything is installed: no lab, no package."""
    done = subprocess.run([sys.executable, "-I", "-S", ROOT / "lab" / "setup.py", "--help"],
                          capture_output=True, text=True, cwd=Path("/"))
    assert done.returncode == 0, done.stderr
