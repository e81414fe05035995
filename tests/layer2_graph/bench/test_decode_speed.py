"""layer2_graph.bench.decode_speed: its parts, and the record.
No time is judged."""

import json
from functools import partial

import pytest

from lab.course import CourseError
from layer2_graph.bench import decode_speed as speed
from layer2_graph.bench.decode_card import table
from layer2_graph.bench.decode_speed import DecodeTarget, agreement, floor_bytes, in_process, judge


def answers(*seconds):
    return [{"prefill": 10 * s, "decode": s} for s in seconds]


ROUNDS = {speed.OURS: answers(1.0, 2.0, 4.0), "generate": answers(3.0, 4.0, 4.0),
          speed.READ: [{"rate": 100.0}, {"rate": 50.0}, {"rate": 100.0}]}


@pytest.mark.parametrize("phase, over, limit, figure, lowest, highest, met", [
    ("decode", "generate", 2, 2, 1, 3, True),               # ratios of a round: 3, 2, 1
    ("decode", "generate", 2.1, 2, 1, 3, False),
    ("prefill", "generate", 1, 2, 1, 3, True),
    ("decode", speed.READ, 0.55, 0.5, 0.125, 0.5, False)])  # 50 bytes: floors of 0.5, 1 and 0.5 s
def test_a_target_is_judged_by_the_median_of_its_rounds(phase, over, limit, figure, lowest,
                                                        highest, met):
    row = judge(DecodeTarget("it", "135M", phase, over, limit), ROUNDS, 50)
    assert [row[name] for name in ("figure", "lowest", "highest", "met")] == \
        [figure, lowest, highest, met]


def test_the_floor_is_the_weights_once_and_the_context_of_a_step():
    m, weights = speed.shape_135m()
    assert 134e6 < sum(a.numel() for a in weights.values()) < 136e6
    N = speed.PROMPT + 1 + speed.WARM + speed.STEPS // 2
    matrices = sum(a.nbytes for a in weights.values() if a.ndim == 2)       # tied: the head's too
    kept = 4 * 2 * m.L * m.G * m.D * N
    assert 0 <= floor_bytes("135M") - matrices - kept < 0.02 * matrices


def test_agreement_ends_at_the_first_other_token():
    assert [agreement([1, 2, 3], other) for other in ([1, 2, 3], [1, 5, 3], [0, 2, 3])] == [3, 1, 0]


@pytest.mark.parametrize("arm", speed.ARMS)
def test_every_arm_says_the_same_and_takes_time(monkeypatch, arm):
    if arm in ("generate", "static"):
        pytest.importorskip("transformers")
    for name, count in (("PROMPT", 20), ("WARM", 1), ("STEPS", 6), ("PREFILLS", 1)):
        monkeypatch.setattr(speed, name, count)
    found = speed.measure(arm, "small")
    assert found["tokens"] == speed.measure("torch", "small")["tokens"]
    assert len(found["tokens"]) == 8 and found["prefill"] > 0 and found["decode"] > 0


def test_an_arm_that_fails_is_one_line():
    with pytest.raises(CourseError, match="^no such arm, small: .*invalid choice"):
        in_process("no such arm", "small")


def test_the_record_is_whole_and_its_verdicts_follow_from_its_rounds():
    record = json.loads(speed.RECORD.read_text("utf-8"))
    for row, target in zip(record["targets"], speed.TARGETS, strict=True):
        found = record["models"][target.model]
        rounds = {arm: [dict(zip(("prefill", "decode"), pair, strict=True)) for pair in
                        zip(times["prefill"], times["decode"], strict=True)]
                  for arm, times in found["arms"].items()}
        rounds[speed.READ] = [{"rate": rate} for rate in found["rates"]]
        assert judge(target, rounds, found["floor_bytes"]) == row
    assert table(record).count("met") + table(record).count("missed") == len(record["targets"])


def test_the_record_as_rows_of_lab_bench():
    record = json.loads(speed.RECORD.read_text("utf-8"))
    rows = speed.rows(record)
    assert len(rows) == len(speed.MODELS) * len(speed.ARMS) * 2
    ours, theirs = (rows[f"small, prefill: {arm}"] for arm in (speed.OURS, "generate"))
    assert ours["times_generate"] == theirs["seconds"] / ours["seconds"]
    decode = rows["135M, decode: fused"]
    assert decode["share_of_read"] == pytest.approx(
        decode["bytes"] / decode["seconds"]
        / sorted(record["models"]["135M"]["rates"])[len(record["models"]["135M"]["rates"]) // 2])


def test_lab_bench_measures_g05_without_a_gpu(monkeypatch, capsys):
    from lab import device
    from lab.cli import app
    from lab.terminal import main

    monkeypatch.setattr(device, "gpu", lambda: None)
    monkeypatch.setattr(speed, "measure_all", lambda: json.loads(speed.RECORD.read_text("utf-8")))

    def lab(*words):
        with pytest.raises(SystemExit) as done:
            main(partial(app, words))
        return done.value.code

    for words in (["bench"], ["bench", "g05"]):
        assert not lab(*words) and "small, decode: fused" in capsys.readouterr().out
    assert lab("bench", "k01") == 2
    assert capsys.readouterr().err == (
        "lab: no NVIDIA GPU here, and without one k01_vector_add has nothing to measure; "
        "g05_fused_llama can be measured\n")
