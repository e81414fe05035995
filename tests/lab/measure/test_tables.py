"""Tables of what GPUs gave, from records that are made here."""

import json

import pytest

from lab.author import build
from lab.measure import bench, tables

ROW = {"seconds": 2e-3, "spread": 0.02, "uncertainty": 0.02, "runs": 9, "bytes": 1,
       "flops": 500_000_000, "flop_per_second": 0.25e12}
LESSON = bench.units()[0]


def record(device, rows):
    return {"device": device, "units": {f"bench {LESSON.id}": {"exit_code": 0, "results": rows}}}


def test_records_are_those_of_whole_runs(tmp_path):
    for name, content in (("b.json", record("B", {})), ("a.json", record("A", {})),
                          ("c.partial.json", record("C", {})), ("speed.json", {"rounds": 3})):
        (tmp_path / name).write_text(json.dumps(content))
    assert [r["device"] for r in tables.records(tmp_path)] == ["A", "B"]


def test_what_was_not_measured_says_so():
    assert "not measured" in tables.of_lesson(LESSON, [])
    assert "not measured" in tables.of_lesson(LESSON, [{"device": "X", "units": {}}])
    assert tables.summary([]).count("not measured") == len(bench.units())
    failed = {"device": "X", "units": {f"bench {LESSON.id}": {"exit_code": 1}}}
    assert "not measured" in tables.of_lesson(LESSON, [failed])


def test_a_lesson_shows_all_rows():
    exact = ROW | {"uncertainty": 0.001, "flops": 0, "flop_per_second": 0.0, "bytes": 8 * 10**9}
    rows = {"copy": exact, "matmul of float16": ROW, "add: none": exact,
            "add: torch": ROW | {"share_of_copy": 0.9, "share_of_read": 0.8},
            "add: add_triton": ROW | {"share_of_copy": 0.975, "share_of_read": 0.866,
                                      "times_torch": 1.08}}
    text = tables.of_lesson(LESSON, [record("H200", rows)])
    assert "Measured on an H200" in text and "not measured" not in text
    assert "|  | µs | TFLOP/s | share of copy | × torch |" in text
    assert "| add: add_triton | 2000.0 ± 2% | 0.2 | 98% | 1.08 |" in text
    assert "| add: none | 2000.0 |  |  |  |" in text
    assert "| copy | 2000.0 | 4.00 TB/s |  |  |" in text
    assert "| matmul of float16 | 2000.0 ± 2% | 0.2 |  |  |" in text


@pytest.fixture
def aimed(monkeypatch):
    """The first lesson with targets, and its record."""
    monkeypatch.setattr(bench, "targets", lambda lesson: lesson == LESSON and {
        "norm: triton": {"share_of_copy": 0.93, "times_torch": 1.3, "flop_per_second": 1e12},
        "norm: lost": {"times_cudnn": 0.7}} or {})
    return record("H200", {
        "norm: torch": ways(), "norm: cudnn": bench.left_out("no such library"),
        "norm: triton": ways(copy=0.95, torch=1.2), "norm: lost": ways(copy=0.1, torch=1.1)})


def test_targets_stand_in_the_tables_before_they_are_measured(aimed):
    text = tables.of_lesson(LESSON, [])
    assert text.splitlines()[2:] == [
        "| target on an H200 | | |", "| --- | --- | --- |",
        "| norm: triton | ≥ 93% of copy | not measured |",
        "| norm: triton | ≥ 1.30 × torch | not measured |",
        "| norm: triton | ≥ 1 TFLOP/s | not measured |",
        "| norm: lost | ≥ 0.70 × cudnn | not measured |"]
    wanted = ("norm: triton ≥ 93% of copy, ≥ 1.30 × torch, ≥ 1 TFLOP/s; "
              "norm: lost ≥ 0.70 × cudnn")
    assert f"| {LESSON.id} | {wanted} | not measured |" in tables.summary([])


def test_targets_are_judged(aimed):
    text = tables.of_lesson(LESSON, [aimed])
    assert "| × torch | target on an H200 |" in text
    assert "| 1.20 | ≥ 93% of copy: met; ≥ 1.30 × torch: missed; ≥ 1 TFLOP/s: missed |" in text
    assert "| 1.10 | ≥ 0.70 × cudnn: not measured |" in text
    assert "| norm: cudnn | no such library |  |" in text
    row = next(line for line in tables.summary([aimed]).splitlines() if LESSON.id in line)
    assert row.endswith("| norm: triton: 95% of copy, 95% of read, 1.20 × torch. "
                        "Targets: 1 of 4 met |")


def test_judged_rows_carry_their_targets():
    rows = {"a": {"share_of_copy": 0.95}, "b": {"share_of_copy": 0.95}, "c": {}}
    assert bench.judge(rows, {"b": {"share_of_copy": 0.95, "times_torch": 1.5},
                              "c": {"share_of_copy": 0.1}}) == {
        "a": {"share_of_copy": 0.95},
        "b": {"share_of_copy": 0.95, "targets": {
            "share_of_copy": {"least": 0.95, "met": True},
            "times_torch": {"least": 1.5, "met": None}}},
        "c": {"targets": {"share_of_copy": {"least": 0.1, "met": None}}}}
    assert rows["b"] == {"share_of_copy": 0.95}


def test_targets_are_read_without_running_the_lesson(tmp_path):
    class Lesson:
        bench = tmp_path / "k01.py"

    assert bench.targets(Lesson) == {}
    Lesson.bench.write_text("import nothing\nH200_TARGETS = {'a: b': {'times_torch': 1.5}}\n")
    assert bench.targets(Lesson) == {"a: b": {"times_torch": 1.5}}
    Lesson.bench.write_text("def bench():\n    H200_TARGETS = 1\n")
    assert bench.targets(Lesson) == {}


def ways(**ratios):
    """A row: way -> its speed over that of others, with its share of the roofs under `copy`."""
    share = ratios.pop("copy", 0.5)
    return ROW | {"share_of_copy": share, "share_of_read": share} | {
        f"times_{other}": ratio for other, ratio in ratios.items()}


@pytest.mark.parametrize("rows, said", [
    ({"torch": ways(copy=0.99), "slow_cuda": ways(torch=0.5), "add_triton": ways(torch=0.98)},
     "add_triton: 50% of copy, 50% of read, 0.98 × torch"),
    # a rival of its own family is no kernel of the course, however it does against other rivals
    ({"norm: torch": ways(library=0.2), "norm: library": ways(torch=5.0),
      "norm: triton": ways(torch=5.5, library=1.1), "norm fp32: library": ways(),
      "norm fp32: fused_cuda": ways(library=0.9)},
     "norm: triton: 50% of copy, 50% of read, 5.50 × torch, 1.10 × library"),
    # the strongest rival counts: 9 × PyTorch is little where the library makes it 10 ×
    ({"a: torch": ways(library=0.1), "a: library": ways(torch=10.0),
      "a: triton": ways(torch=9.0, library=0.9), "b: torch": ways(), "b: triton": ways(torch=1.2)},
     "b: triton: 50% of copy, 50% of read, 1.20 × torch"),
    # what is a rival's name in one family may be a kernel's in another
    ({"a: pair": ways(), "a: fused": ways(pair=0.7),
      "b: torch": ways(), "b: pair": ways(torch=0.8)},
     "b: pair: 50% of copy, 50% of read, 0.80 × torch"),
    # nothing to compare with: the shares decide
    ({"add": ways(copy=0.9), "one_row": ways(copy=0.95)}, "one_row: 95% of copy, 95% of read"),
    ({}, "not measured"),
])
def test_the_summary_names_the_best_of_ones_own_kernels(rows, said):
    rows = {"copy": ways(copy=1.0), "read": ways(copy=1.1)} | rows
    text = tables.summary([record("H200", rows), record("Other", {})])
    assert f"| {LESSON.id} |  | {said} | not measured |" in text


def test_the_terminal_shows_shares_ratios_and_targets():
    rows = {"copy": ways(copy=1.0), "norm fp32: library": bench.left_out("not here"),
            "norm fp32: fused_cuda": ways(library=0.9)}
    wanted = {"norm fp32: fused_cuda": {"times_library": 0.8}, "gone": {"times_library": 0.8}}
    name, copy, library, fused, gone = bench.text(LESSON, bench.judge(rows, wanted)).splitlines()
    assert name == LESSON.id and copy.split()[0] == "copy"
    assert fused.split("2000.0 µs")[1] == (
        " ±  2%     0.25 TFLOP/s   50.0% of copy   50.0% of read  0.90 × library"
        "  target ≥ 0.80 × library: met")
    assert copy.index("µs") == fused.index("µs")
    assert library.endswith("not measured: not here")
    assert gone.endswith("not measured: no such row  target ≥ 0.80 × library: not measured")


@pytest.mark.parametrize("lesson", bench.units(), ids=lambda i: i.id)
def test_every_lesson_that_is_measured_has_a_place_for_it(lesson):
    if lesson.id != "r02_clock":            # its text measures the machine that it runs on
        assert build.MEASURED in lesson.markdown.read_text("utf-8")
