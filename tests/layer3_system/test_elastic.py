"""The given half of s31: files, faults in words, pieces for other ranks, months, and real kills.
No test depends on speed."""

import errno
import json
import math
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from lab import course, device
from lab.judge.candidate import reference
from lab.judge.isolate import running
from layer3_system import elastic
from layer3_system.bench import kills, stall
from layer3_system.checkpoint import (
    PARTS,
    Folder,
    digest,
    manifest_name,
    pack,
    read_manifest,
    shard_name,
    step_of,
    unpack,
    write_manifest,
)
from layer3_system.s31_fault_tolerance import capture, commit, last_good, restore
from layer3_system.testing.crash_disk import Crash, Disk
from layer3_system.training.failures import HOUR, MONTH, expected_loss, month, share
from layer3_system.training.group import GlooGroup
from layer3_system.training.loop import TrainingError
from layer3_system.training.resume import choose, fault, pieces, read_state
from layer3_system.training.run import ShardedRun, TrainingRun

DRIVER = "layer3_system.testing.recovery_driver"


def checkpoint(step: int, data: list[bytes]) -> dict[str, bytes]:
    shards = {shard_name(step, r): own for r, own in enumerate(data)}
    return shards | {manifest_name(step): write_manifest(step, [digest(own) for own in data])}


FILES = checkpoint(100, [b"a" * 50, b"b" * 80]) | checkpoint(120, [b"c" * 50, b"d" * 80])


# ---- files and states


def test_a_folder_does_what_the_disk_of_the_tests_does(tmp_path):
    for files in (Folder(tmp_path), Disk({})):
        files.write("a", b"123")
        files.write("a", b"4567")
        files.sync("a")
        files.rename("a", "b")
        files.sync_folder()
        assert (files.names(), files.read("b")) == (["b"], b"4567")
        with pytest.raises(FileNotFoundError):
            files.rename("a", "c")
        with pytest.raises(FileNotFoundError):
            files.read("a")
        files.remove("b")
        assert files.names() == []


def test_what_is_not_synced_may_be_lost():
    disk = Disk({"old": b"x"})
    disk.write("new", b"1234")
    left = disk.after_power()
    assert {"old": b"x"} in left
    assert all({"old": b"x", "new": data} in left for data in (b"", b"12", b"1234"))
    disk.sync("new")
    disk.sync_folder()
    assert disk.after_power() == [{"old": b"x", "new": b"1234"}]


def test_a_synced_file_keeps_its_first_name_and_may_lose_a_later_one():
    disk = Disk({})
    disk.write("new", b"1234")
    disk.sync("new")
    assert disk.after_power() == [{"new": b"1234"}]
    disk.rename("new", "renamed")
    assert disk.after_power() == [{"new": b"1234"}, {"renamed": b"1234"}]
    disk.sync_folder()
    assert disk.after_power() == [{"renamed": b"1234"}]


def test_two_trainings_do_not_share_a_folder(tmp_path):
    Folder(tmp_path).lock()
    with pytest.raises(ValueError, match=r"the training of process \d+ writes here"):
        Folder(tmp_path).lock()


def test_a_state_that_was_packed_goes_on_bit_for_bit():
    whole = TrainingRun()
    whole.train(5)
    state = unpack(pack(capture(whole)))
    other = TrainingRun()
    restore(other, state)
    assert other.train(4) == whole.train(4)


def test_a_state_of_another_model_is_refused():
    state = capture(TrainingRun())
    name = "model.norm.weight"
    state["weights"][name] = torch.ones(7)
    with pytest.raises(ValueError, match=r"weights of model.norm.weight has 7 numbers, the run's "
                                         r"has 16"):
        restore(TrainingRun(), state)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"step": 3}',
                                  write_manifest(3, ["1:a"])[:40], write_manifest(3, [])])
def test_what_is_no_manifest_is_refused(data):
    with pytest.raises(ValueError, match="expected"):
        read_manifest(data)


def test_names_of_steps():
    assert [step_of(name) for name in ("step9.manifest", "step10.manifest", "step10.manifest.part",
                                       "step.manifest", "step10.shard0")] == [9, 10, None, None,
                                                                              None]


# ---- faults in words


@pytest.mark.parametrize("change, words", [
    ({"step120.shard1": b"d" * 40}, "shard 1 of 2 has 40 bytes, its manifest says 80"),
    ({"step120.shard1": b"e" * 80}, "shard 1 of 2 has other bytes than its manifest says"),
    ({"step120.shard1": b"b" * 80}, "shard 1 of 2 is that of step 100"),
    ({"step120.shard1": None}, "shard 1 of 2 is not there"),
    ({"step120.manifest": b"{}"}, "expected a manifest of this course, found {}"),
    ({"step120.manifest": FILES["step100.manifest"]}, "its manifest is that of step 100")])
def test_a_fault_says_what_is_wrong_and_where_training_goes_on(change, words):
    files = {name: data for name, data in (FILES | change).items() if data is not None}
    said: list[str] = []
    assert choose(Disk(files), last_good, said.append) == 100
    assert said == [f"step 120: {words}; going on from step 100"]


def test_a_checkpoint_that_is_whole_has_no_fault():
    assert fault(Disk(FILES), 120) is None
    assert choose(Disk(FILES), last_good, pytest.fail) == 120
    assert choose(Disk({}), last_good, pytest.fail) is None


def test_a_folder_without_a_whole_checkpoint_is_not_begun_again():
    with pytest.raises(ValueError, match="1 checkpoints, none whole: step 3: shard 0 of 1 is not"):
        choose(Disk({"step3.manifest": write_manifest(3, ["1:a"])}), last_good, pytest.fail)


def test_a_foreign_folder_is_refused():
    with pytest.raises(ValueError, match="no manifest of this course, found checkpoint.json"):
        choose(Disk({"checkpoint.json": b"{}"}), last_good, pytest.fail)


def test_other_files_beside_an_unfinished_checkpoint_do_not_matter():
    """A training that was killed before its first save was whole begins again."""
    files = dict.fromkeys(("a", "b", "c", "step5.shard0"), b"")
    assert choose(Disk(files), last_good, pytest.fail) is None


@pytest.mark.parametrize("words, says", [
    (["--save", "a", "--every", "0"], "--every: expected a number of steps, found 0"),
    (["--save", "a", "--losses", "a/b.txt"], "--losses: expected a file beside a")])
def test_what_a_training_cannot_be_told(monkeypatch, capsys, words, says):
    monkeypatch.setattr(sys, "argv", ["elastic", *words])
    with pytest.raises(SystemExit):
        elastic.options_of()
    assert says in capsys.readouterr().err


def test_a_training_that_does_not_go_on_is_ended(tmp_path, monkeypatch):
    def wait(*_):
        raise TimeoutError

    ended = []
    monkeypatch.setattr(kills, "Torchrun", lambda *_, **__: SimpleNamespace(
        process=None, end=lambda: ended.append("all")))
    monkeypatch.setattr(kills, "waits", wait)
    with pytest.raises(TimeoutError):
        list(kills.lives(tmp_path, tmp_path / "losses", 9, 3, random.Random(1)))
    assert ended == ["all"]


# ---- other numbers of ranks


def saved_by(W: int, count: int) -> tuple[Disk, torch.Tensor]:
    """A checkpoint of step 5 with W shards of a row of numbers."""
    row = torch.arange(1.0, count + 1)
    k = -(-count // W)
    padded = torch.cat([row, torch.zeros(W * k - count)]).view(W, k)
    return Disk(checkpoint(5, [pack({
        "weights": {"row": own}, "m": {"row": 2 * own}, "v": {"row": 3 * own}, "step": 5,
        "place": {}, "count": count, "generator": torch.zeros(4, dtype=torch.uint8)})
        for own in padded])), row


@pytest.mark.parametrize("W, size, count", [(2, 3, 10), (3, 2, 10), (4, 1, 7), (1, 4, 9), (3, 5, 7),
                                            (2, 2, 9), (5, 4, 3), (2, 7, 1000)])
def test_any_number_of_ranks_reads_the_same_numbers(W, size, count):
    files, row = saved_by(W, count)
    states = [read_state(files, 5, rank, size, count) for rank in range(size)]
    for part, factor in (("weights", 1), ("m", 2), ("v", 3)):
        whole = torch.cat([state[part]["row"] for state in states])
        assert len(whole) == size * -(-count // size)
        assert torch.equal(whole[:count], factor * row)
        assert not whole[count:].any()


def test_only_shards_that_overlap_are_read():
    shards = [torch.arange(4.0) + 4 * r for r in range(5)]
    asked = []
    row = pieces(lambda r: asked.append(r) or shards[r], 4, 6, 11)
    assert (asked, row.tolist()) == ([1, 2], [6, 7, 8, 9, 10])


def test_another_model_is_refused():
    files, _ = saved_by(2, 10)
    with pytest.raises(ValueError, match="the model that was saved has 10 numbers, this one 12"):
        read_state(files, 5, 0, 2, 12)


def test_old_checkpoints_are_deleted(tmp_path):
    files = Folder(tmp_path)
    for step in (1, 10, 9, 100):
        for name, data in checkpoint(step, [b"a", b"b"]).items():
            files.write(name, data)
    elastic.remove_old(files, 2, 100)
    assert sorted(files.names()) == sorted(checkpoint(10, [b"a", b"b"]) | checkpoint(
        100, [b"a", b"b"]))


def test_later_checkpoints_that_are_damaged_do_not_push_out_good_ones(tmp_path):
    """Training goes on from step 10 and saves step 12; 15 and 20 cannot be read."""
    files = Folder(tmp_path)
    for step in (9, 10, 12, 15, 20):
        for name, data in checkpoint(step, [b"a"]).items():
            files.write(name, data if step < 15 else b"")
    elastic.remove_old(files, 2, 12)
    assert last_good(files) == 12
    files.remove("step12.manifest")
    assert last_good(files) == 10


# ---- a rank, alone


@pytest.fixture
def alone():
    """A process group of this process."""
    device.on_loopback()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def losses(path):
    return [(row["step"], float.fromhex(row["loss"])) for row in kills.rows(path)]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_job_goes_on_where_its_last_checkpoint_is(alone, tmp_path, asynchronous):
    files = Folder(tmp_path / "saves")
    job = elastic.Job(files, elastic.Parts(), asynchronous)
    job.resume()
    job.train(7, 3, tmp_path / "first.txt")             # saves 3, 6 and, as its last, 7
    files.remove(manifest_name(7))
    job.train(12, 100, tmp_path / "first.txt")
    files.remove(manifest_name(12))
    other = elastic.Job(files, elastic.Parts(), asynchronous)
    other.resume()
    assert other.run.step == 6
    other.train(12, 3, tmp_path / "second.txt")
    assert losses(tmp_path / "second.txt") == losses(tmp_path / "first.txt")[6:]
    assert last_good(files) == 12


def test_ranks_without_a_sequence_learn_with_the_others(alone):
    lesson = course.find("s31_fault_tolerance")
    right = ShardedRun(B=2).train(4)
    with running(lesson, reference(lesson).sources) as subject:
        run = subject.ranks(f"{DRIVER}:losses_of", [(2, 4)] * 3)
    assert run.results == [pytest.approx(right, rel=1e-5)] * 3


def test_a_loss_that_is_no_number_is_not_saved(alone, tmp_path):
    files = Folder(tmp_path)
    job = elastic.Job(files, elastic.Parts(), False)
    job.train(4, 2, None)
    job.run.model.weights["model.norm.weight"].data[3] = math.nan
    with pytest.raises(TrainingError, match="step 4: the loss is nan; the first weight that is not "
                                            "finite is model.norm.weight"):
        job.train(8, 2, None)
    assert last_good(files) == 4


class FullDisk(Folder):
    """A folder on a disk that has no room for more than some bytes."""

    def __init__(self, path: Path, room: int) -> None:
        super().__init__(path)
        self.room = room

    def write(self, name, data):
        super().write(name, data[:self.room])
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_full_disk_is_said_and_the_last_good_stays(alone, tmp_path, asynchronous):
    """It is full in the second shard, at its end or in the manifest.
    Later room is found again."""
    for name, more in (("shard", -40), ("end", -1), ("manifest", 40)):
        first = elastic.Job(Folder(tmp_path / name), elastic.Parts(), asynchronous)
        first.train(4, 4, None)
        size = len(first.files.read(shard_name(4, 0)))
        job = elastic.Job(FullDisk(tmp_path / name, size + more), elastic.Parts(), asynchronous)
        job.resume()
        with pytest.raises(OSError, match="No space left on device"):
            job.train(12, 4, None)
        assert last_good(job.files) == 4
        again = elastic.Job(Folder(tmp_path / name), elastic.Parts(), asynchronous)
        again.resume()
        again.train(8, 4, None)
        assert last_good(again.files) == 8


def test_the_library_saves_the_same_numbers_and_no_digests(alone, tmp_path):
    """torch.distributed.checkpoint, asynchronous, beside ours; then one byte of each is changed."""
    run = ShardedRun()
    run.train(3)
    files = Folder(tmp_path / "ours")
    commit(files, GlooGroup(), 3, pack(capture(run) | {"count": run.count}))
    theirs = {part: getattr(run, part)["row"] for part in PARTS}
    writing = dcp.async_save(theirs, checkpoint_id=tmp_path / "theirs")
    run.train(2)
    writing.result()
    state = read_state(files, 3, 0, 1, run.count)
    loaded = {part: torch.zeros_like(own) for part, own in theirs.items()}
    dcp.load(loaded, checkpoint_id=tmp_path / "theirs")
    assert all(torch.equal(loaded[part], state[part]["row"]) for part in PARTS)
    for path in (*(tmp_path / "theirs").glob("*.distcp"), tmp_path / "ours" / "step3.shard0"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 64
        path.write_bytes(data)
    dcp.load(loaded, checkpoint_id=tmp_path / "theirs")
    assert not all(torch.equal(loaded[part], state[part]["row"]) for part in PARTS)
    assert last_good(files) is None


# ---- a month


def test_a_month_has_no_gaps_and_every_failure_costs_a_start():
    spans = month(5000, 60, 50 * HOUR, 600, seed=1)
    assert (spans[0].begin, spans[-1].end) == (0, MONTH)
    assert all(a.end == b.begin for a, b in zip(spans, spans[1:], strict=False))
    assert sum(share(spans, kind) for kind in ("useful", "lost", "saving",
                                               "starting")) == pytest.approx(1)


@pytest.mark.parametrize("factor", [0.25, 0.5, 1, 2, 4])
def test_simulated_months_lose_what_young_says(factor):
    """200 months of 10 failures: the standard error of what is lost is about 3 %."""
    between = 68.4375 * HOUR
    tau = factor * math.sqrt(2 * 60 * between)
    months = [month(tau, 60, between, 600, seed) for seed in range(200)]
    lost = sum(share(m, "lost") + share(m, "saving") for m in months) / len(months)
    assert lost == pytest.approx(expected_loss(tau, 60, between), rel=0.1)


def test_a_factor_of_two_costs_a_quarter_more():
    best = math.sqrt(2 * 60 * 50 * HOUR)
    least = expected_loss(best, 60, 50 * HOUR)
    for factor in (0.5, 2):
        assert expected_loss(factor * best, 60, 50 * HOUR) / least == pytest.approx(1.25)


# ---- records, and the real thing


def test_the_record_of_kills_says_that_nothing_differs():
    record = json.loads(kills.RECORD.read_text("utf-8"))
    assert len(record["kills"]) == 30
    assert (record["losses that differ"], record["steps missing"]) == (0, 0)
    assert record["last checkpoints are equal"]
    assert record["steps made"] == record["steps"] + record["steps made again"]


def test_a_stall_is_measured_both_ways(tmp_path):
    seconds = stall.stalls(tmp_path, numbers=1000, rounds=2)["seconds"]
    assert list(seconds) == ["until it is written", "until it is copied"]
    assert last_good(Folder(tmp_path)) == 1


@pytest.mark.soak
@pytest.mark.alone
def test_thirty_kills_change_no_bit(tmp_path):
    record = kills.compare(tmp_path, steps=440, kills=30, seed=random.randrange(10 ** 6))
    assert (record["losses that differ"], record["steps missing"]) == (0, 0), record
    assert record["last checkpoints are equal"], record


def run_torch(folder: Path, name: str, steps: int, ranks: int, more: tuple[str, ...] = ()) -> tuple:
    """(exit code, {step: loss} of all lines, what was written to stderr)"""
    losses = folder / f"{name}.txt"
    run = kills.Torchrun(folder / name, losses, steps, ranks, pause=0.0, more=more)
    code = run.process.wait(kills.MAX_SILENCE_SECONDS)
    return code, {row["step"]: float.fromhex(row["loss"]) for row in kills.rows(losses)}, run.text()


@pytest.mark.slow
@pytest.mark.alone
def test_three_kills_change_no_bit(tmp_path):
    record = kills.compare(tmp_path, steps=60, kills=3, seed=random.randrange(10 ** 6))
    assert (record["losses that differ"], record["steps missing"]) == (0, 0), record
    assert record["last checkpoints are equal"], record


@pytest.mark.slow
@pytest.mark.alone
def test_more_and_fewer_ranks_go_on(tmp_path):
    """2 ranks, then 3, then 1, in one folder; beside 2 all the time.
    Sums have other orders."""
    code, right, text = run_torch(tmp_path, "straight", 24, 2)
    assert code == 0, text
    for steps, ranks in ((8, 2), (16, 3), (24, 1)):
        code, own, text = run_torch(tmp_path, "changing", steps, ranks)
        assert code == 0, text
    assert own.keys() == right.keys()
    for step, loss in own.items():
        assert loss == (right[step] if step < 8 else pytest.approx(right[step], rel=1e-4))
    last = tmp_path / "changing"
    (last / "step24.shard0").write_bytes(b"")
    (last / "step20.manifest").write_bytes(b"{}")
    code, _, text = run_torch(tmp_path, "changing", 28, 1)
    assert code
    assert "2 checkpoints, none whole: step 24: shard 0 of 1 has 0 bytes" in text


@pytest.mark.slow
@pytest.mark.alone
def test_a_save_that_fails_is_said_and_the_last_good_stays(tmp_path):
    """A folder has the name that the manifest of step 8 gets before its rename."""
    (tmp_path / "full" / "step8.manifest.part").mkdir(parents=True)
    code, own, text = run_torch(tmp_path, "full", 12, 2)
    assert code
    assert "not saved: " in text
    assert "the last good step is 4" in text
    assert last_good(Folder(tmp_path / "full")) == 4
    assert len(own) >= 8


# ---- what s31 says of its pictures


def test_saving_every_5_minutes_loses_more_than_failures_and_a_day_the_reverse():
    often, seldom = (month(tau, 60, 48 * HOUR, 600, seed=0) for tau in (300, 24 * HOUR))
    assert share(often, "saving") > 10 * share(often, "lost")
    assert share(seldom, "lost") > 10 * share(seldom, "saving")


def test_all_disks_say_step_9_until_the_rename_and_step_10_after_the_folders_sync():
    """Only then does any rank return."""
    before = Crash([b"rank %d, step 9" % r for r in range(3)], {}, 9, 0, commit).stops[-1]
    crash = Crash([b"rank %d, step 10" % r for r in range(3)], before["processes"], 10, 3, commit)
    kinds = [operation for _, operation, _ in crash.log]
    rename, sync = kinds.index("rename") + 1, kinds.index("sync_folder") + 1
    for stop in crash.stops:
        n = stop["operations"]
        steps = {last_good(Disk(disk)) for disk in stop["power"]}
        assert steps == ({9} if n < rename else {9, 10} if n < sync else {10})
        assert not stop["returned"] or n >= sync
