"""The runner behind make test-versions, with stubbed commands: nothing is installed."""

import json
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.author import versions
from lab.course import ROOT
from lab.setup import Missing

LISTING = """nvidia-cuda-nvrtc (13.5.37)
Available versions: 14.0.1, 13.5.37, 13.10.2, 13.4.59, 13.0.88rc1, 13.0.88, 13.0.48, 12.9.86
  INSTALLED: 13.0.88
"""

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_good"/>
<testcase classname="tests.a" name="test_bad[1]"><failure message="no">trace</failure></testcase>
<testcase classname="tests.b" name="test_broken"><error message="fixture"/></testcase>
<testcase classname="tests.b" name="test_gpu"><skipped message="needs a GPU"/></testcase>
<testcase classname="tests.b" name="test_gpu_too"><skipped message="needs a GPU"/></testcase>
</testsuite></testsuites>"""


class StubEnvironment:
    """An environment in which pip installs nothing and remembers what it was asked for."""

    asked = []
    own_index = False

    def __init__(self, folder):
        self.folder, self.python = folder, folder / "bin" / "python"

    def version(self):
        return "3.11.7" if self.folder.exists() else None

    def make(self):
        self.folder.mkdir(parents=True)

    def has_own_index(self):
        return self.own_index

    def pip(self, *arguments):
        self.asked.append(arguments)


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course in a folder of its own, and commands that answer from `pip` and `pytest`."""
    (tmp_path / "constraints.txt").write_text(
        "# the tested set\nnumpy==2.4.6\ntriton==3.7.1\nnvidia-cuda-nvrtc==13.0.88\n")
    for name, value in (("ROOT", tmp_path), ("FOLDER", tmp_path / ".cache" / "versions"),
                        ("RECORD", tmp_path / "benchmarks" / "versions.json"),
                        ("Environment", StubEnvironment)):
        monkeypatch.setattr(versions, name, value)
    monkeypatch.setattr(StubEnvironment, "asked", [])
    answers = {"exit_code": 1, "report": REPORT, "offers": {"triton": "3.10.0, 3.9.0, 3.6.0"}}

    def run(command, **options):
        if "pip" in command:
            offers = answers["offers"].get(command[-1], "13.5.37, 13.0.48")
            return subprocess.CompletedProcess(
                command, 0, f"x\nAvailable versions: {offers}\n" if offers else "", "no such thing")
        path = next(c for c in command if str(c).startswith("--junitxml=")).partition("=")[2]
        if answers["report"]:
            Path(path).write_text(answers["report"])
        return subprocess.CompletedProcess(command, answers["exit_code"])
    monkeypatch.setattr(versions, "subprocess", SimpleNamespace(
        run=run, CalledProcessError=subprocess.CalledProcessError))
    return answers


def record():
    return json.loads(versions.RECORD.read_text())


def test_versions_are_compared_as_numbers_and_kept_to_their_range():
    found = versions.offered(LISTING, (13, 0), (14,))
    assert found == ["13.5.37", "13.10.2", "13.4.59", "13.0.88", "13.0.48"]
    assert max(found, key=versions.numbers) == "13.10.2"
    assert versions.offered("ERROR: nothing", (13, 0), (14,)) == []


def test_the_ranges_are_those_of_the_project():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name, (low, (below,)) in versions.RANGES.items():
        text = f"{name}>={'.'.join(map(str, low))},<{below}"
        assert any(line.partition(";")[0].strip() == text for line in stated), text


def test_both_ends_are_installed_and_recorded(course):
    assert versions.prove("wheels") == 1
    found = record()
    assert found["oldest"]["versions"]["triton"] == "3.6.0"
    assert found["newest"]["versions"]["triton"] == "3.10.0"
    assert found["newest"]["versions"]["nvidia-cuda-nvrtc"] == "13.5.37"
    for end in ("oldest", "newest"):
        assert found[end] | {"versions": 0} == {
            "versions": 0, "passed": 1, "failed": 2, "skipped": 2,
            "failures": ["tests.a::test_bad[1]", "tests.b::test_broken"],
            "skips": {"needs a GPU": 2}}
    assert {"date", "python", "platform", "tests"} < found.keys()
    oldest, newest = StubEnvironment.asked
    assert "triton==3.6.0" in oldest and "triton==3.10.0" in newest
    assert oldest[5:7] == ("--extra-index-url", "wheels")


def test_an_index_that_pip_is_set_to_is_enough(course, monkeypatch):
    monkeypatch.setattr(StubEnvironment, "own_index", True)
    versions.prove("wheels")
    assert all("wheels" not in asked for asked in StubEnvironment.asked)


def test_what_varies_is_not_pinned(course):
    versions.prove("wheels")
    assert (versions.FOLDER / "constraints.txt").read_text() == "numpy==2.4.6\n"


def test_all_passed_is_success(course):
    course.update(exit_code=0, report='<s><testcase classname="a" name="b"/></s>')
    assert versions.prove("wheels") == 0
    assert record()["oldest"]["passed"] == 1


@pytest.mark.parametrize("change, says", [
    ({"exit_code": 4}, "exit code 4"), ({"report": ""}, "tested nothing"),
    ({"offers": {"triton": ""}}, "pip offers no triton in the supported range: no such thing"),
    ({"report": "<s/>"}, "tested nothing")])
def test_an_end_that_did_not_run_is_a_failure_and_says_why(course, capsys, change, says):
    course.update(change)
    assert versions.prove("wheels") == 1
    assert says in record()["newest"]["not_run"] and says in capsys.readouterr().out


def test_no_old_report_is_read(course):
    versions.prove("wheels")
    course.update(report="")
    assert versions.prove("wheels") == 1 and "not_run" in record()["oldest"]


def test_a_failed_install_does_not_stop_the_other_end(course, monkeypatch):
    def pip(self, *arguments):
        if self.folder.name == "oldest":
            raise subprocess.CalledProcessError(1, "pip")
    monkeypatch.setattr(StubEnvironment, "pip", pip)
    assert versions.prove("wheels") == 1
    assert "not_run" in record()["oldest"] and record()["newest"]["passed"] == 1


def test_missing_is_one_line():
    with pytest.raises(Missing, match="offers no nvidia-cuda-nvrtc in the supported range: no err"):
        versions.choose("oldest", "false")
