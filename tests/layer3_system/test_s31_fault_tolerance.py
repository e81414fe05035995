"""Graders of s31: every disk that a stop could leave is looked at, and no clock is."""

import json
import math

import numpy as np
import pytest

from lab.judge.mistakes import mistake, named, raises
from layer3_system.checkpoint import digest, read_manifest, write_manifest

DISK = "layer3_system.testing.crash_disk"
DRIVER = "layer3_system.testing.recovery_driver"
LAST = "step9.manifest"
NEW = "step10.manifest"


def near(guess, right, share=0.02):
    return isinstance(guess, int | float) and abs(guess - right) <= share * abs(right)


def learner_error(name, words, sentence):
    """Within this context, an error whose text has these words is the mistake `name`."""
    return named(name, sentence, lambda error: words in getattr(error, "text", ""))


# ---- predictions


def best_minutes(delta, between):
    """The τ that loses least, where failures come at random.
    A stretch of τ + δ minutes is done again and again until no failure falls into it: Daly 2006,
    equation 13, without a restart."""
    taus = np.linspace(5, 500, 100_000)
    return taus[np.argmin(between * np.expm1((taus + delta) / between) / taus)]


def off_balance(guess, right):
    """(id, sentence) of an answer that comes from no known mistake."""
    if not isinstance(guess, int | float):
        return "", "the answer is a number of minutes"
    if guess < right:
        return "too_often", "too often: the term of saves, δ/τ, is larger than that of lost work"
    return "too_seldom", "too seldom: the term of lost work, τ/(2·M), is larger than that of saves"


def test_predict_minutes_between_saves(subject):
    machine = 365 * 24 * 60
    job = machine / 128
    right = best_minutes(1, job)
    known = {"one_machine": (math.sqrt(2 * machine), "it is the best τ of a job on one machine: "
                             "with 128 machines, one of them fails 128 times as often"),
             "no_two": (math.sqrt(job), "a failure costs τ/2 on average, not τ: then δ/τ + "
                        "τ/(2·M) is least at √(2·δ·M)"),
             "half_mtbf": (job, "a save for each failure: half of all work would be lost"),
             "no_root": (2 * job, "the root is missing: the derivative is zero where τ² = 2·δ·M"),
             "seconds": (60 * right, "it is in seconds, and the answer in minutes")}
    guess = subject.predict_minutes_between_saves()
    name, why = next(((name, why) for name, (wrong, why) in known.items() if near(guess, wrong)),
                     off_balance(guess, right))
    assert near(guess, right), mistake(
        name, f"predict_minutes_between_saves: {guess!r:.20} minutes is not right: {why}", why)


def test_predict_bytes_a_rank(subject):
    P = 8 * 10 ** 9
    right = 12 * P / 64
    known = {"everybody_all": (12 * P, "every rank would write the whole state; each has 1/64 of "
                               "it"),
             "weights_only": (4 * P / 64, "those are the weights alone: without m and v, Adam "
                              "begins again"),
             "gradients_too": (16 * P / 64, "gradients are counted, but the next step makes its "
                               "own"),
             "half_weights": (2 * P / 64, "those are weights in 16 bits: training keeps them, m "
                              "and v in fp32")}
    guess = subject.predict_bytes_a_rank()
    name, why = next(((name, why) for name, (wrong, why) in known.items() if guess == wrong),
                     ("", "count the numbers of 4 bytes that the next step needs of a "
                          "parameter, and the parameters of one rank"))
    assert guess == right, mistake(
        name, f"predict_bytes_a_rank: {guess!r:.20} bytes is not right: {why}", why)


# ---- what there is to lose


LOST = {
    "weights": ("no_weights", "the weights are not those of the run"),
    "m": ("no_moments", "m is lost: the first loss after the start is right, and Adam begins "
                        "again"),
    "v": ("no_moments", "v is lost: the first loss after the start is right, and Adam begins "
                        "again"),
    "step": ("no_step", "the step's number is lost: rate and bias correction are those of another "
                        "step"),
    "place": ("no_place", "the place in the text is lost: batches come a second time"),
    "generator": ("no_generator", "the generator's state is lost: dropout drops other numbers"),
}


@pytest.mark.parametrize("before, between", [(3, 2), (9, 1), (0, 1)])
def test_capture(subject, before, between):
    with (raises("entry_missing", ValueError, "What is not captured cannot be restored."),
          learner_error("generator_itself", "ByteTensor", "`generator` is the object, not a copy "
                        "of its state (`get_state`).")):
        run = subject.make(f"{DRIVER}:resumed", before, between, 3)
    words = f"captured after {before} steps, restored when the run had done {between} more: "
    then, later, restored = (run[part] for part in ("then", "later", "restored"))
    for part, (name, why) in LOST.items():
        if part in ("weights", "m", "v") and np.array_equal(restored[part], later[part]):
            name = "views"
            why = f"{part} went on with the run: what was captured is no copy"
        assert np.array_equal(restored[part], then[part]), mistake(name, (
            f"{words}losses {run['losses']}, without a stop {run['straight']}: {why}"), why)
    assert run["losses"] == run["straight"], (
        f"{words}losses {run['losses']}, expected {run['straight']}, bit for bit")


# ---- when a checkpoint exists


def shards(step, W):
    return [f"rank {r} of step {step}: ".encode() + bytes(range(r, 40)) for r in range(W)]


def folder(step, data):
    """A whole checkpoint: {name: bytes}."""
    names = {f"step{step}.shard{r}": own for r, own in enumerate(data)}
    return names | {f"step{step}.manifest": write_manifest(step, [digest(own) for own in data])}


def fault(disk, step, data):
    """What is wrong with a checkpoint on a disk: None, "absent", "cut" or the number of a shard."""
    if f"step{step}.manifest" not in disk:
        return "absent"
    try:
        manifest = read_manifest(disk[f"step{step}.manifest"])
    except ValueError:
        return "cut"
    assert manifest == (step, [digest(own) for own in data]), mistake(
        "other_manifest", f"the manifest of step {step} names {str(manifest)[:80]}, expected the "
        f"digests of {len(data)} shards in the order of ranks")
    return next((r for r, own in enumerate(data) if disk.get(f"step{step}.shard{r}") != own), None)


def judged(disk, log, returned, power, old, data):
    """None, or (id, sentence) of what is wrong with a disk that a stop left."""
    done = {(operation, name) for _, operation, name in log}
    if fault(disk, 9, old) is not None:
        return "removes_last", "step 9 is gone or spoilt, and step 10 is not there yet"
    new = fault(disk, 10, data)
    if new == "cut":
        if ("rename", NEW) not in done:
            return "in_place", "half a manifest has the manifest's name while it is being written"
        return "manifest_unsynced", "the manifest has its name, and its bytes were not synced"
    if isinstance(new, int):
        if ("write", f"step10.shard{new}") not in done:
            return "no_meeting_before", f"there is a manifest, and rank {new} has not written yet"
        return "no_sync", f"the manifest names shard {new}, whose bytes were not synced"
    if new == "absent" and returned:
        if ("rename", NEW) in done and power:
            return "folder_unsynced", (f"rank {returned[0]} has returned, and the manifest's new "
                                       "name was lost: names are safe after `sync_folder`")
        return "no_meeting_after", f"rank {returned[0]} has returned, and there is no manifest yet"
    return None


def moment(log):
    """When a stop comes: words for the last operation of a log."""
    rank, operation, name = log[-1] if log else (0, "start", "")
    if operation == "begin":
        return f"in the middle of rank {rank}'s write of {name}"
    return f"after rank {rank}'s {operation} {name}".strip()


# {words of an error: (id, sentence)}
ERRORS = {"FileNotFoundError": ("everybody", "Did another rank rename it already? One makes the "
                                "manifest."),
          "bytes is not JSON": ("data_gathered", "Were the data gathered? The manifest holds "
                                "digests.")}


def check_commit(subject, W, seed, hasty=None):
    old = shards(9, W)
    data = shards(10, W)
    run = subject.make(f"{DISK}:crashes", data, folder(9, old), 10, seed, hasty)
    words = f"{W} ranks: "
    rank, kind, text = (run["errors"] or [[0, "", ""]])[0]
    error = f"{kind} on rank {rank}: {text}"
    name, why = next((row for part, row in ERRORS.items() if part in error), (kind, ""))
    assert not kind, mistake(name, f"{words}{error}. {why}", why)
    assert not run["stuck"], mistake("uneven_meeting", (
        f"{words}some wait in `gather` for ever: every rank calls it as often as the others"))
    for stop in run["stops"]:
        log = run["log"][:stop["operations"]]
        for power in (False, True):
            for disk in stop["power"] if power else [stop["processes"]]:
                wrong = judged(disk, log, stop["returned"], power, old, data)
                cause = "the power fails" if power else "all processes die"
                assert wrong is None, mistake(wrong and wrong[0], (
                    f"{words}{cause} {moment(log)}: {wrong and wrong[1]}"), wrong and wrong[1])
    assert fault(run["stops"][-1]["processes"], 10, data) is None, (
        f"{words}all have returned, and step 10 is not there: expected its shards and {NEW}")
    renames = [name for _, operation, name in run["log"] if operation == "rename"]
    assert renames.count(NEW) == 1, mistake("everybody", (
        f"{words}{renames.count(NEW)} of them made the manifest, expected one"))


@pytest.mark.parametrize("W", [3, 1, 2])
def test_commit(subject, rng, W):
    for seed in rng.integers(10 ** 6, size=6).tolist():
        check_commit(subject, W, seed)
    for rank in range(W):               # the others lag as far behind as the meetings allow
        check_commit(subject, W, 0, rank)


# ---- which one


def edited(files, **changes):
    """A folder with other bytes for some of its files; None takes a file away."""
    files = files | {name.replace("_", "."): data for name, data in changes.items()}
    return {name: data for name, data in files.items() if data is not None}


TWO = folder(9, shards(9, 2)) | folder(10, shards(10, 2))
OLDER = "a checkpoint that is not whole is no end: the next older one may be"
HALF = shards(10, 2)[1][:20]
OTHER = shards(9, 2)[1]
# {what is there: (the folder, the step to go on from, id if another answer comes, its sentence)}
TABLE = {
    "steps 3 and 5, both whole": (folder(3, shards(3, 1)) | folder(5, shards(5, 1)), 5, "oldest",
                                  "the newest whole one loses least"),
    "steps 9 and 10, both whole": (TWO, 10, "as_text", 'as text, "9" comes after "10"'),
    "no shard 1 of step 10": (edited(TWO, step10_shard1=None), 9, "newest_name",
                              "the manifest names a file that is not there"),
    "half of shard 1 of step 10": (edited(TWO, step10_shard1=HALF), 9, "exists",
                                   "its name is there, and half of its bytes: compare digests"),
    "shard 1 of step 9 under the name of step 10": (
        edited(TWO, step10_shard1=OTHER), 9, "exists",
        "all files are there, but one is that of another step: compare digests"),
    "steps 9 and 10, and 100 in halves": (
        TWO | edited(folder(100, shards(100, 1)), step100_shard0=b""), 10, "as_text",
        'as text, "9" comes after "10"'),
    "half of the manifest of step 10": (edited(TWO, step10_manifest=TWO[NEW][:60]), 9, "cut",
                                        "a manifest that cannot be read names nothing"),
    "an empty manifest": (edited(TWO, step10_manifest=b""), 9, "cut",
                          "a manifest that cannot be read names nothing"),
    "a manifest that another program wrote": (
        edited(TWO, step10_manifest=json.dumps({"step": 10}).encode()), 9, "foreign",
        "it is not a manifest of this course, and an older one is"),
    "the manifest of step 9 under the name of step 10": (
        edited(TWO, step10_manifest=TWO[LAST], step10_shard0=TWO["step9.shard0"],
               step10_shard1=TWO["step9.shard1"]), 9, "name_believed",
        "all of it is step 9's, and it is called step 10"),
    "a manifest that was not renamed": (
        edited(TWO, step10_manifest=None) | {f"{NEW}.part": TWO[NEW]}, 9, "part_counts",
        "before the rename there is no checkpoint"),
    "shards without a manifest, and a note": (
        {"step10.shard0": b"a", "step.manifest": b"", "notes.txt": b"x"}, None, "no_manifest",
        "without a manifest there is no checkpoint"),
    "nothing": ({}, None, "no_manifest", "without a manifest there is no checkpoint"),
}


@pytest.mark.parametrize("case", TABLE)
def test_last_good(subject, case):
    files, right, name, why = TABLE[case]
    disk = subject.make(f"{DISK}:Disk", files)
    with raises("gives_up", FileNotFoundError, OLDER), raises("gives_up", ValueError, OLDER):
        got = subject.last_good(disk)
    if got is None:
        name = "gives_up"
        why = OLDER
    assert got == right, mistake(name, f"{case}: got {got!r:.20}, expected {right}: {why}", why)


def test_last_good__unseen(subject, rng):
    """Many steps, of which some are whole."""
    for _ in range(5):
        steps = rng.choice(2000, 8, replace=False).tolist()
        bad = set(rng.choice(steps, 4, replace=False).tolist())
        files = {}
        for step in steps:
            own = folder(step, shards(step, 1))
            files |= own | ({f"step{step}.shard0": b"x"} if step in bad else {})
        right = max(set(steps) - bad)
        got = subject.last_good(subject.make(f"{DISK}:Disk", files))
        name = "newest_name" if got in bad else "as_text"
        assert got == right, mistake(name, (
            f"steps {sorted(steps)}, of which {sorted(bad)} have a spoilt shard: got {got!r:.20}, "
            f"expected {right}"), "the largest number that is whole")


# ---- without waiting


def first(events, *wanted):
    """The place of an event, or one after all."""
    return events.index(list(wanted)) if list(wanted) in events else len(events)


def told(events):
    return ", ".join(" ".join(map(str, event)) for event in events)


def check_saves(events, steps):
    """AssertionError unless each step's own state is written, one at a time, without waiting."""
    for step in steps:
        call = first(events, "call", step)
        back = first(events, "return", step)
        within = [event[0] for event in events[call:back]]
        written = [event for event in events if event[:2] == ["write", step]]
        assert "submit" in within, mistake("silent", (
            f"save({step}) submits nothing to the pool: {told(events)}"))
        assert ["write", step, step] not in events[call:back], mistake("waits", (
            f"save({step}) returns only when its own state is written: training waits for the "
            f"disk"))
        assert ["unkept", step] not in events, mistake("unkept", (
            f"save({step}) submits to the pool and returns, and `pending` is still None: the next "
            f"save cannot wait for what it does not know"))
        assert len(written) == 1, mistake("not_written", (
            f"step {step} is written {len(written)} times, expected once"))
        assert written[0][2] == step, mistake("late_snapshot", (
            f"what is written as step {step} is the state of step {written[0][2]}: it was taken "
            f"when training had gone on"))
    for one, other in zip(steps, steps[1:], strict=False):
        assert first(events, "write", one, one) < first(events, "snapshot", other), mistake(
            "two_in_flight", (f"step {other}'s copy is made while step {one} is not yet written: "
                              f"each save that waits keeps another copy in memory"))


def test_Saver_save(subject):
    for steps in ([10, 20, 30], [7], [1, 2, 3, 4]):
        with learner_error("write_called", "not callable", "`write` was called here, and its "
                           "result was submitted: the pool wants the function and its arguments."):
            events = subject.make(f"{DRIVER}:saves", steps, [])
        check_saves(events, steps)


def test_Saver_save__full_disk(subject):
    events = subject.make(f"{DRIVER}:saves", [10, 20, 30], [10])
    during = events[first(events, "call", 20):first(events, "return", 20)]
    assert "error" in [event[0] for event in during], mistake("silent", (
        f"the disk was full at step 10, and save(20) raises nothing: {told(events)}"))
    assert first(events, "snapshot", 20) == len(events), mistake("goes_on_at_once", (
        f"save(20) raises the error of step 10 and begins another save as well: {told(events)}"))
    assert ["write", 30, 30] in events, mistake("raises_for_ever", (
        f"the error of step 10 was raised at step 20, and step 30 is not written: {told(events)}"))
