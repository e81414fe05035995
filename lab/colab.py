"""The course in a notebook on Google Colab: the first cell of each notebook runs this there.

Packages that Colab has stay where the course can run on them, torch above all; the rest comes as
tested.
Then `lab doctor` says what runs, and the lesson lies on a desk, in three-floors/work.
"""

import importlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def installed(package):
    """Its version, None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def constraints():
    """Lines for pip: a package that is here in a version that fits stays, others come as tested."""
    from packaging.requirements import Requirement  # comes with every IPython kernel

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    ranges = {r.name: r.specifier for r in map(Requirement, project["dependencies"])}
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        name = re.match(r"[\w.-]*", line)[0]
        here = installed(name) if name else None
        fits = here and (name not in ranges or ranges[name].contains(here, prereleases=True))
        yield f"{name}=={here}" if fits else line


def install(extra):
    """The course and what it lacks, into this Python. extra: of pyproject.toml, or None"""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints()))
        file.flush()
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--constraint",
                        file.name, "--editable", f"{ROOT}[{extra}]" if extra else str(ROOT)],
                       check=True)
    importlib.invalidate_caches()


def main(lesson):
    """Install, say what runs here, and go to the lesson's folder on the desk."""
    if str(ROOT) not in sys.path:       # what pip has installed reaches only later processes
        sys.path.insert(0, str(ROOT))
    from lab import setup

    before = installed("torch")
    try:
        setup.check_machine()
        install(setup.fitting_build(setup.driver_version()).extra)
        command = [sys.executable, "-P", "-c", "from lab.cli import main; main()"]
        subprocess.run([*command, "doctor"], cwd=ROOT)      # its advice is no failure
        subprocess.run([*command, "start", lesson], cwd=ROOT, check=True)
    except setup.Missing as problem:
        return print(problem)
    except subprocess.CalledProcessError:
        return print("The course could not be set up here; the lines above say why.")
    if before and installed("torch") != before:
        print(f"The course cannot run on torch {before}: it is {installed('torch')} now. Restart "
              "the session, and run this cell again.")
    [notebook] = (ROOT / "work").glob(f"*/{lesson}.ipynb")
    os.chdir(notebook.parent)
    print(f"Your answers go to {notebook.parent}, which Colab deletes with the machine: download "
          "it before you leave.")


if __name__ == "__main__":
    main(sys.argv[1])
