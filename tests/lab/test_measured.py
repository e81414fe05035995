"""Tables of what GPUs gave, from records that are made here."""

import json

from lab import bench, measured

ROW = {"seconds": 2e-3, "uncertainty": 0.01, "runs": 9, "bytes": 1, "flops": 1}
LESSON = bench.units()[0]


def record(device, rows):
    return {"device": device, "units": {f"bench {LESSON.id}": {"exit_code": 0, "results": rows}}}


def test_records_are_those_of_whole_runs(tmp_path):
    for name, content in (("b.json", record("B", {})), ("a.json", record("A", {})),
                          ("c.partial.json", record("C", {})), ("speed.json", {"rounds": 3})):
        (tmp_path / name).write_text(json.dumps(content))
    assert [r["device"] for r in measured.records(tmp_path)] == ["A", "B"]


def test_what_was_not_measured_says_so():
    assert "not measured" in measured.of_lesson(LESSON, [])
    assert "not measured" in measured.of_lesson(LESSON, [{"device": "X", "units": {}}])
    assert measured.summary([]).count("not measured") == len(bench.units())
    failed = {"device": "X", "units": {f"bench {LESSON.id}": {"exit_code": 1}}}
    assert "not measured" in measured.of_lesson(LESSON, [failed])


def test_a_lesson_shows_all_rows():
    rows = {"copy": ROW, "torch": ROW | {"share_of_copy": 0.9},
            "add_triton": ROW | {"share_of_copy": 0.975, "times_torch": 1.08}}
    text = measured.of_lesson(LESSON, [record("H200", rows)])
    assert "Measured on an H200" in text and "not measured" not in text
    assert "| add_triton | 2000.0 ± 1% | 98% | 1.08 |" in text
    assert "| copy | 2000.0 ± 1% |  |  |" in text


def test_the_summary_names_the_best_of_ones_own_kernels():
    rows = {"copy": ROW | {"share_of_copy": 1.0}, "torch": ROW | {"share_of_copy": 0.99},
            "slow_cuda": ROW | {"share_of_copy": 0.5, "times_torch": 0.5},
            "add_triton": ROW | {"share_of_copy": 0.97, "times_torch": 0.98}}
    text = measured.summary([record("H200", rows), record("Other", {})])
    assert f"| {LESSON.id} | add_triton: 97% of copy, 0.98 × torch | not measured |" in text
