"""Run the simulator's tests on the oldest and the newest supported compilers: `make test-versions`.

Each end of the ranges in pyproject.toml gets an environment of its own under .cache/versions/:
NVRTC with its headers, and Triton.
All the rest is as constraints.txt pins it.
NVRTC and Triton do not touch, so one environment tests an end of both. benchmarks/versions.json has
the result.
"""

import argparse
import datetime
import json
import platform
import re
import subprocess
import sys
from collections import Counter
from xml.etree import ElementTree

from lab.course import ROOT
from lab.setup import Environment, Missing

FOLDER = ROOT / ".cache" / "versions"
RECORD = ROOT / "benchmarks" / "versions.json"

RANGES = {                          # name: (from, below) as in pyproject.toml
    "nvidia-cuda-nvrtc": ((13, 0), (14,)),
    "nvidia-cuda-runtime": ((13, 0), (14,)),
    "nvidia-cuda-crt": ((13, 0), (14,)),
    "nvidia-cuda-cccl": ((13, 0), (14,)),
    "triton": ((3, 6), (4,)),
}
ENDS = {"oldest": min, "newest": max}
OTHERS = ("numpy", "torch", "matplotlib", "nvidia-curand", "pyyaml", "hatchling", "pytest",
          "pytest-timeout", "pytest-xdist")
TESTS = "tests/lab/simulator"
WORKERS = 2                         # one with torch takes about a gigabyte
LIMIT = 300                         # seconds a test


def numbers(version):
    return tuple(map(int, version.split(".")))


def offered(listing, low, below):
    """What `pip index versions` printed -> the released versions within a range."""
    versions = re.search(r"^Available versions: (.*)$", listing, re.M)
    return [v for v in (versions[1].split(", ") if versions else ())
            if re.fullmatch(r"[\d.]+", v) and low <= numbers(v) < below]


def choose(end, python):
    """-> {package: version}, the oldest or the newest of each range that pip offers."""
    chosen = {}
    for name, (low, below) in RANGES.items():
        done = subprocess.run([python, "-I", "-m", "pip", "index", "versions", name],
                              capture_output=True, text=True)
        versions = offered(done.stdout, low, below)
        if not versions:
            reason = (done.stderr.strip() or "no error").splitlines()[-1]
            raise Missing(f"pip offers no {name} in the supported range: {reason}")
        chosen[name] = ENDS[end](versions, key=numbers)
    return chosen


def made(folder):
    """-> the Environment in this folder, made if it is not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = Environment(folder)
    if environment.version() is None:
        environment.make()
    return environment


def pinned(text, varying):
    """constraints.txt without the packages that vary."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return "".join(f"{line}\n" for line in lines if line.partition("==")[0] not in varying)


def equip(environment, packages, varying, wheels):
    """Install the packages; what does not vary is as constraints.txt pins it."""
    constraints = environment.folder.parent / "constraints.txt"
    constraints.write_text(pinned((ROOT / "constraints.txt").read_text(), varying))
    index = [] if environment.has_own_index() else ["--extra-index-url", wheels]
    environment.pip("install", "--constraint", constraints, "--only-binary", ":all:", *index,
                    *packages)


def install(end, wheels):
    """Make the environment of one end -> (Environment, {package: version})."""
    environment = made(FOLDER / end)
    chosen = choose(end, environment.python)
    exact = [f"{name}=={version}" for name, version in chosen.items()]
    equip(environment, [*OTHERS, *exact], RANGES, wheels)
    return environment, chosen


def run_tests(environment):
    """Run the simulator's tests -> the path of pytest's report."""
    report = environment.folder / "report.xml"
    report.unlink(missing_ok=True)
    done = subprocess.run([environment.python, "-m", "pytest", "-q", "-n", str(WORKERS),
                           f"--timeout={LIMIT}", f"--junitxml={report}", TESTS], cwd=ROOT)
    tested = report.exists() and "<testcase" in report.read_text()
    if done.returncode not in (0, 1) or not tested:
        raise Missing(f"pytest ended with exit code {done.returncode} and tested nothing")
    return report


def counts(report):
    """pytest's report -> passed, failed, skipped, the failures' names and the skips' reasons."""
    failures = set()
    reasons = Counter()
    passed = 0
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failures.add(f"{case.get('classname')}::{case.get('name')}")
        elif (skipped := case.find("skipped")) is not None:
            reasons[skipped.get("message") or "no reason given"] += 1
        else:
            passed += 1
    return {"passed": passed, "failed": len(failures), "skipped": sum(reasons.values()),
            "failures": sorted(failures), "skips": dict(sorted(reasons.items()))}


def prove_end(end, wheels):
    """-> what versions.json says about one end."""
    try:
        environment, chosen = install(end, wheels)
        return {"versions": chosen, **counts(run_tests(environment))}
    except (Missing, subprocess.CalledProcessError) as error:
        return {"not_run": str(error)}


def summary(end, result):
    if "not_run" in result:
        return f"{end}: not run: {result['not_run']}"
    versions = ", ".join(f"{name} {result['versions'][name]}"
                         for name in ("nvidia-cuda-nvrtc", "triton"))
    return (f"{end} ({versions}): {result['passed']} passed, {result['failed']} failed, "
            f"{result['skipped']} skipped")


def prove(wheels):
    """Test both ends and write the record; the exit code."""
    results = {end: prove_end(end, wheels) for end in ENDS}
    record = {"date": datetime.date.today().isoformat(), "python": platform.python_version(),
              "platform": f"{platform.system()} {platform.machine()}", "tests": TESTS, **results}
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    for end, result in results.items():
        print(summary(end, result), *result.get("failures", ()), sep="\n  ")
    return int(any(result.get("failed", 1) for result in results.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", required=True, help="PyTorch's own index of CPU builds, used "
                        "where pip is set to none")
    sys.exit(prove(parser.parse_args().wheels))


if __name__ == "__main__":
    main()
