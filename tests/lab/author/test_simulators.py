"""The comparison with other tools: how it judges, its record, and the tables made of it."""

import json
import re
import sys

import pytest

from lab import simulator
from lab.author import simulators
from lab.course import ROOT
from lab.simulator import ptx
from lab.simulator.decode import decode

BROKEN = {"fault": "a race", "named": "race|order"}


@pytest.fixture(scope="module")
def record():
    return json.loads(simulators.RECORD.read_text("utf-8"))


def said(equal=None, refusal=None, warnings=()):
    return {"equal": equal, "refusal": refusal, "warnings": list(warnings)}


@pytest.mark.parametrize("case, code, answer, expected", [
    ({}, 0, said(True), "right"), ({}, 0, said(False), "wrong"), ({}, 0, said(), "passed"),
    ({}, 0, said(refusal="race"), "other"), ({}, 0, said(True, warnings=["order"]), "warned"),
    (BROKEN, 0, said(refusal="a race in line 3"), "named"),
    (BROKEN, 0, said(refusal="no such instruction"), "other"),
    (BROKEN, 0, said(True, warnings=["order not proven"]), "warned"),
    (BROKEN, 0, said(True, warnings=["something else"]), "right"),
    (BROKEN, 0, said(False), "wrong"),
    (BROKEN, -11, None, "crashed"), (BROKEN, 1, said(True), "crashed"),
    (BROKEN, 0, None, "crashed"), (BROKEN, None, None, "hung")])
def test_what_happened_is_judged_by_what_was_said_and_done(case, code, answer, expected):
    assert simulators.outcome(case, code, answer) == expected


@pytest.mark.parametrize("right, expected", [("right", "warned"), ("passed", "warned"),
                                             ("warned", "both"), ("other", "both")])
def test_what_is_said_of_the_right_kernel_too_names_nothing(right, expected):
    rows = [{"kernel": "flag", "tool": "ttsem", "outcome": right},
            {"kernel": "no_fence", "tool": "ttsem", "outcome": "warned"}]
    simulators.compare_with_right(rows)
    assert [row["outcome"] for row in rows] == [right, expected]


def test_a_process_that_hangs_is_ended_and_has_a_second_try(tmp_path, monkeypatch):
    count = tmp_path / "count"
    (tmp_path / "measure.py").write_text(
        f"import time\nopen({str(count)!r}, 'a').write('x')\ntime.sleep(60)\n")
    monkeypatch.setattr(simulators, "FOLDER", tmp_path)
    monkeypatch.setattr(simulators, "LIMIT_SECONDS", 1)
    assert simulators.execute(sys.executable, "numba", "add")[0] is None
    assert count.read_text() == "xx"


def test_ours_on_two_kernels(record):
    """They say today what the record says; a tool that is not here is said to be absent."""
    names = ("add", "no_barrier")
    fresh = simulators.run({"ours_cuda": sys.executable}, names)
    for now in fresh["rows"]:
        before, = (row for row in record["rows"]
                   if (row["kernel"], row["tool"]) == (now["kernel"], now["tool"]))
        if now["tool"] == "ours_cuda":
            assert (now["outcome"], now["said"]) == (before["outcome"], before["said"])
        else:
            assert now["outcome"] in ("absent", "unwritten")


def test_numbas_simulator_on_one_kernel(record):
    pytest.importorskip("numba", reason="not proven here: needs Numba")
    now, _ = simulators.row(simulators.cases()["no_barrier"], "no_barrier", "numba", sys.executable)
    assert now["outcome"] == "wrong"


def test_the_record_is_whole(record):
    """A row for each kernel and tool; what ran has its seconds and its versions; nothing that a
    language can express is called unwritten."""
    kernels = simulators.cases()
    assert [(row["kernel"], row["tool"]) for row in record["rows"]] == [
        (name, tool) for name in kernels for tool in simulators.TOOLS]
    for row in record["rows"]:
        written = simulators.TOOLS[row["tool"]][1] in kernels[row["kernel"]]
        assert row["outcome"] in simulators.CELLS
        assert (row["outcome"] == "unwritten") == (not written)
        ran = row["outcome"] not in ("unwritten", "absent", "crashed", "hung")
        assert (row["seconds"] is not None) == ran
        assert not ran or row["tool"] in record["versions"]
    assert record["limit_seconds"] == simulators.LIMIT_SECONDS


def test_each_kernel_is_whole():
    for name, case in simulators.cases().items():
        assert ("fault" in case) == ("named" in case) == bool(case.get("named"))
        for language in ("cuda", "numba", "triton"):
            assert (language in case) != (language in case.get("unwritten", {})), (name, language)
        assert "right" not in case or "fault" not in simulators.cases()[case["right"]]


def test_the_readme_has_the_tables_of_the_record(record):
    page = simulators.PAGE.read_text("utf-8")
    assert page == simulators.page(record), "make it from the record: simulators.page()"
    table = page.partition(simulators.MARKS[0])[2]
    for tool, of in simulators.counts(record).items():
        line, = re.findall(rf"^\| {re.escape(simulators.TOOLS[tool][0])} \|.*", table, re.M)
        absent = "not run here" in line
        assert absent or [int(n) for n in re.findall(r"\d+", line.split("|", 2)[2])] == [
            number for kind in of.values() for number in kind.values()]
    for outcome in {row["outcome"] for row in record["rows"]}:
        assert simulators.CELLS[outcome] in table


# What it runs, by the README

REFUSED = {                     # the README's word: an instruction
    "wgmma": "wgmma.fence.sync.aligned;", "stmatrix": "stmatrix.sync.aligned.m8n8.x1.shared.b16 "
    "[r],{r};", "tcgen05": "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r], r;",
    "cp.async.bulk": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r], [d], "
    "16, [r];", "mbarrier.try_wait": "mbarrier.try_wait.shared.b64 p, [r], d;",
    "expect_tx": "mbarrier.arrive.expect_tx.shared.b64 d, [r], r;", "vadd": "vadd.u32.u32.u32 r, "
    "r, r;", "fns": "fns.b32 r, r, r, r;", "elect": "elect.sync r|p, r;",
    "`redux` of floats": "redux.sync.min.f32 r, r, r;", "clusters": "barrier.cluster.arrive;",
    "surfaces": "suld.b.2d.b32.trap {r}, [d, {r, r}];", "vectors": "atom.global.v4.f32.add "
    "{r,r,r,r}, [d], {r,r,r,r};", "tld4": "tld4.r.2d.v4.f32.f32 {r,r,r,r}, [d, {r, r}];",
    "layered textures": "tex.a2d.v4.f32.f32 {r,r,r,r}, [d, {r, r, r, r}];",
    "fp4": "cvt.rn.satfinite.e2m1x2.f32 h, r, r;",
    "block scales": "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32."
    "e2m1.e2m1.f32.ue8m0 {r,r,r,r},{r,r,r,r},{r,r},{r,r,r,r},r,{0,0},r,{0,0};",
}


def support():
    """The rows of that table: [(what, runs, refused, tests)]"""
    text = simulators.PAGE.read_text("utf-8").partition("## What it runs")[2].partition("\n## ")[0]
    return [tuple(line.strip("| ").split(" | ")) for line in text.splitlines()
            if line.startswith("| ")][2:]


@pytest.mark.parametrize("word", REFUSED)
def test_what_the_readme_calls_refused_is(word):
    assert any(word in refused for _, _, refused, _ in support())
    module = ptx.parse(f""".version 9.0 .target sm_90 .address_size 64 .entry k() {{
    .reg .b16 h; .reg .b32 r; .reg .b64 d; .reg .pred p; {REFUSED[word]} }}""")
    with pytest.raises(simulator.Unsupported):
        decode(module.functions["k"].code[0])


def test_each_row_names_tests_that_are_there():
    assert len(support()) == 10
    for what, _, _, tests in support():
        files = re.findall(r"`(test_\w+)`", tests)
        assert files, what
        for name in files:
            assert (ROOT / "tests" / "lab" / "simulator" / f"{name}.py").exists(), name
