"""`lab bench` from made-up rows to the record of a device, and from there to the tables."""

import json

import pytest
from typer.testing import CliRunner

from lab import cli, course, device
from lab.author import build
from lab.measure import bench, records, tables

GPU = device.Gpu("NVIDIA Made Up 1", (9, 0), 80 * 2**30)
LESSONS = [course.find(name) for name in ("k02_transpose", "k08_rmsnorm")]


def row(**figures):
    return {"seconds": 2e-3, "spread": 0.02, "uncertainty": 0.01, "runs": 9, "bytes": 1,
            "flops": 0, "flop_per_second": 0.0, **figures}


ROWS = {
    "k02_transpose": {"transpose: torch": row(share_of_copy=0.5),
                      "transpose: transpose_vector_cuda": row(share_of_copy=0.9, times_torch=1.8),
                      "transpose: transpose_triton": row(share_of_copy=0.88, times_torch=1.76)},
    "k08_rmsnorm": {"rmsnorm: triton": row(share_of_copy=0.94)}}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder in place of the course's, on a machine whose GPU gives ROWS."""
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setattr(device, "gpu", lambda: GPU)
    monkeypatch.setattr(records, "clocks", lambda: {"clocks.sm": 1980})
    monkeypatch.setattr(bench, "measure", lambda lesson: bench.judge(
        ROWS[lesson.id], bench.targets(lesson)))
    return tmp_path


def lab(*words):
    return CliRunner().invoke(cli.app, ["bench", *words], catch_exceptions=False)


def read(machine):
    return json.loads((machine / "benchmarks" / "nvidia-made-up-1.json").read_text())


def test_bench_writes_a_record_and_keeps_what_is_in_it(machine):
    done = lab("k02")
    assert done.exit_code == 0
    assert "target ≥ 92% of copy: missed" in done.stdout
    assert "target ≥ 88% of copy: met" in done.stdout
    assert done.stderr == ("written: benchmarks/nvidia-made-up-1.json; `lab build` makes the "
                           "tables from it\n")
    first = read(machine)
    assert (first["device"], first["capability"]) == (GPU.name, [9, 0])
    assert {"driver", "torch", "triton", "cupy", "python", "sources"} <= set(first)

    done = lab("k08", "--json")
    rows = json.loads(done.stdout)["k08_rmsnorm"]
    assert rows["rmsnorm: triton"]["targets"] == {"share_of_copy": {"least": 0.93, "met": True}}
    assert rows["layernorm: triton"]["targets"] == {"share_of_copy": {"least": 0.93, "met": None}}
    second = read(machine)
    assert second["units"]["bench k02_transpose"] == first["units"]["bench k02_transpose"]
    unit = second["units"]["bench k08_rmsnorm"]
    assert unit["results"] == rows and unit["clocks"] == {"clocks.sm": 1980}
    assert unit["about"] == records.about(GPU)


def test_what_was_proven_before_stays(machine):
    before = {"device": GPU.name, "driver": "old",
              "units": {"tests/test_a.py": {"exit_code": 0}, "bench k02_transpose": {"results": 1}}}
    records.write(records.path_of(GPU), before)
    assert lab("k08").exit_code == 0
    after = read(machine)
    new = after["units"].pop("bench k08_rmsnorm")
    assert after == before and new["about"]["driver"] != "old"
    assert lab("k02").exit_code == 0
    assert read(machine)["units"]["bench k02_transpose"]["results"] != 1


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_record_is_not_overwritten(machine, content):
    path = records.path_of(GPU)
    path.write_text(content)
    with pytest.raises(course.CourseError, match="is damaged: expected a record with units"):
        records.keep(GPU, "bench k02_transpose", {})
    assert path.read_text() == content


def test_tables_are_made_from_the_record(machine, monkeypatch):
    for lesson in LESSONS:
        lab(lesson.id)
    found = tables.records(machine / "benchmarks")
    monkeypatch.setattr(tables, "records", lambda: found)
    readme = build.shared()[course.ROOT / "benchmarks" / "README.md"]
    assert "| lesson | targets on an H200 | NVIDIA Made Up 1 |" in readme
    lines = {line.split(" | ")[0].strip("| "): line for line in readme.splitlines()}
    assert lines["k02_transpose"].endswith(
        "| transpose: transpose_vector_cuda: 90% of copy, 1.80 × torch. Targets: 1 of 2 met |")
    assert lines["k08_rmsnorm"].endswith("| rmsnorm: triton: 94% of copy. Targets: 1 of 3 met |")
    assert lines["k03_reduce"].endswith("| not measured |")
    stubbed, _ = build.make(LESSONS[0])
    assert any("Measured on an NVIDIA Made Up 1" in "".join(cell["source"])
               and "≥ 92% of copy: missed" in "".join(cell["source"]) for cell in stubbed["cells"])
    assert "not measured" in tables.of_lesson(course.find("k03_reduce"), found)


def test_clocks_are_what_nvidia_smi_says_of_one_gpu(tmp_path, monkeypatch):
    smi = tmp_path / "smi"
    monkeypatch.setattr(records.shutil, "which", lambda name: str(smi))
    for said, found in (("1980, 1980, 3201", dict(zip(records.CLOCKS, (1980, 1980, 3201),
                                                      strict=True))),
                        ("[N/A], 1980, 3201", {}), ("1980, 1980, 3201\n345, 1980, 3201", {})):
        smi.write_text(f"#!/bin/sh\nprintf '%s\\n' '{said}'\n")
        smi.chmod(0o755)
        assert records.clocks() == found
    monkeypatch.setattr(records.shutil, "which", lambda name: None)
    assert records.clocks() == {}
