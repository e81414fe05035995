"""Ranks under the judge: what runs, what a beginner does wrong and reads, and what is left over."""

import os
import signal
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from lab.judge import subject as subjects
from lab.judge.failures import Raised, RankFault, Stopped
from lab.judge.subject import Subject
from lab.remote.warm import Child, fields

PROBE = '''
    import os, time
    import torch
    import torch.distributed as dist
    from lab.remote.agreement import agree
    from lab.remote.recorder import mark

    def where():
        return dist.get_rank(), dist.get_world_size()
    def ring(out, into):
        r, n = where()
        sending = dist.isend(out, (r + 1) % n)
        dist.recv(into, (r - 1) % n)
        sending.wait()
        return r
    def order(x):
        if where()[0] == 1: dist.barrier()
        else: dist.all_reduce(x)
    def size(x):
        dist.all_reduce(x[:3 + where()[0]])
    def dtype(x):
        dist.all_reduce(x if where()[0] else x.int())
    def root(x):
        dist.broadcast(x, where()[0] % 2)
    def uneven(x):
        r, n = where()
        dist.all_to_all_single(torch.empty(n), x[:n] if r else x[:2 * n],
                               input_split_sizes=[1 + (r == 0)] * n, output_split_sizes=[1] * n)
    def early_return(x):
        dist.barrier()
        if where()[0] != 1: dist.all_reduce(x)
    def exception(x):
        if where()[0] == 1: raise ValueError("no such piece")
        dist.all_reduce(x)
    def leaves(x):
        if where()[0] == 1: os._exit(3)
        dist.all_reduce(x)
    def killed(x):
        if where()[0] == 1: os.kill(os.getpid(), 9)
        dist.all_reduce(x)
    def sends_first(x):
        r, n = where()
        dist.send(x, (r + 1) % n)
        dist.recv(x, (r - 1) % n)
    def receives_first(x):
        r, n = where()
        dist.recv(x, (r - 1) % n)
        dist.send(x, (r + 1) % n)
    def lost_send(x):
        if where()[0] == 1: sending.append(dist.isend(x, 0))
    def missing_send(x):
        if where()[0] == 1: dist.recv(x, 0)
    def room(x):
        if where()[0] == 0: dist.send(x, 1)
        if where()[0] == 1: dist.recv(x[:2], 0)
    def larger(x):
        if where()[0] == 0: dist.send(x[:2], 1)
        if where()[0] == 1: dist.recv(x, 0)
    def no_wait(x):
        if where()[0] == 0: dist.isend(x, 1)
        else: time.sleep(0.3); dist.recv(x, 0)
    def mesh(x):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        whole = distribute_tensor(x, init_device_mesh("cpu", (where()[1],)), [Shard(0)])
        mark("norm")
        return whole.norm().full_tensor()
    def endless(x):
        while where()[0] == 1: pass
        dist.barrier()
    def too_far(x):
        dist.send(x, where()[1])
    sending = []

    def collectives(x):
        r, n = where()
        dist.all_reduce(x)
        mark("rest")
        dist.all_gather([torch.empty(len(x)) for _ in range(n)], x)
        dist.broadcast(x, 1)
        dist.barrier()
        dist.all_to_all_single(torch.empty(n), torch.ones(n))
    def any_source(x):
        r, n = where()
        if r == 0:
            for _ in range(1, n): dist.recv(x)
        else: dist.send(x, 0)
    def computes(x):
        if where()[0] == 0:
            end = time.process_time() + 1.5
            while time.process_time() < end: pass
        dist.barrier()
    def objects(x): return dist.group.WORLD
    def talks(x): os.write(1, b"hello from %d\\n" % where()[0])
    def versions(x):
        agree({"lesson": "s20", "version of the course": f"1.4.{where()[0] // 2}"})
    def pids(x, seconds):
        print("pids", os.getpid(), flush=True)
        time.sleep(seconds)
        dist.barrier()
'''


@pytest.fixture
def probe(tmp_path):
    (tmp_path / "floor").mkdir()
    (tmp_path / "floor" / "x99_probe.py").write_text(textwrap.dedent(PROBE))

    def start():
        request = {"folder": str(tmp_path), "floor": "floor", "lesson": "x99_probe",
                   "simulator": False, "shapes": False}
        return Child("lab.remote.child", request, ("numpy", "torch", "lab.remote.child"))

    proxy = Subject(start)
    yield proxy
    proxy.close()


def arrays(n, N=5):
    return [(torch.full((N,), float(r)),) for r in range(n)]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_results_changed_arrays_messages_and_bytes(probe, n):
    pairs = [(torch.full((5,), float(r)), torch.zeros(5)) for r in range(n)]
    if n == 1:                          # torch.distributed: a rank does not send to itself
        with pytest.raises(Raised, match="on rank 0"):
            probe.ranks("ring", pairs)
        return
    run = probe.ranks("ring", pairs)
    assert run.results == list(range(n))
    assert [into.tolist() for _, into in pairs] == [[float((r - 1) % n)] * 5 for r in range(n)]
    assert sorted((m.sender, m.receiver, m.bytes) for m in run.messages) == [
        (r, (r + 1) % n, 20) for r in range(n)]
    assert all(m.met >= m.began for m in run.messages)
    assert [run.sent(r) for r in range(n)] == [20] * n and run.matrix().sum() == 20 * n
    assert run.collectives == [] and run.spans == []


WRONG = [
    ("order", "order", "rank 0 is in all_reduce of 5 numbers (x99_probe.py, line {2}), rank 1 in "
     "barrier (x99_probe.py, line {1}): all ranks must make the same calls in the same order"),
    ("size", "size", "all ranks must hand over the same sizes"),
    ("dtype", "dtype", "hands over int32, the second float32"),
    ("root", "root", "with roots 0 and 1: all ranks must name the same root"),
    ("uneven", "size", "collective 1, all_to_all: rank 0 sends 2 numbers to rank "),
    ("early_return", "early_return", "rank 1 returned after 1 collective; rank "),
    ("leaves", "died", "the process of rank 1 ended by itself, with exit code 3"),
    ("killed", "died", "the process of rank 1 was ended by signal 9"),
    ("sends_first", "send_first", "and no rank receives: begin the send with isend, receive, then"),
    ("receives_first", "receive_first", "and no rank sends: begin the send first"),
    ("lost_send", "lost_send", "rank 1 sends 5 numbers to rank 0 (x99_probe.py, line {1}), and "
     "rank 0 never receives them: a send without a receive"),
    ("missing_send", "missing_send", "rank 1 receives 5 numbers from rank 0 (x99_probe.py, line "
     "{1}), and rank 0 never sends them: a receive without a send"),
    ("room", "size", "rank 0 sends 5 numbers (x99_probe.py, line {1}), rank 1 receives 2 numbers"),
    ("larger", "size", "rank 0 sends 2 numbers (x99_probe.py, line {1}), rank 1 receives 5"),
    ("no_wait", "no_wait", "was still being sent, and rank 1 waits for it"),
]
OF_TWO = ("no_wait", "order", "dtype", "root")      # of three, the two that come first are named


@pytest.mark.parametrize("name, mistake, sentence", WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_program_is_named(probe, name, mistake, sentence):
    """{1} and {2}: lines of the program after its `def`."""
    lines = textwrap.dedent(PROBE).splitlines()
    line = lines.index(f"def {name}(x):") + 1
    with pytest.raises(RankFault) as fault:
        probe.ranks(name, arrays(2 if name in OF_TWO else 3))
    assert sentence.format(0, line + 1, line + 2) in str(fault.value)
    assert fault.value.mistake == mistake == fault.value.why
    assert probe.ranks("ring", [(a, a.clone()) for a, in arrays(2)]).results == [0, 1]


def test_an_exception_has_its_rank_and_line(probe):
    with pytest.raises(Raised, match=r"ValueError: no such piece \(on rank 1\)") as error:
        probe.ranks("exception", arrays(3))
    assert error.value.rank == 1 and "no such piece" in error.value.source
    with pytest.raises(Raised, match="send: there is no rank 2, expected 0 to 1"):
        probe.ranks("too_far", arrays(2))


def test_an_endless_loop_is_a_fault_of_its_rank(probe, monkeypatch):
    monkeypatch.setattr(subjects, "SECONDS", 2)
    with pytest.raises(RankFault, match="rank 1 computes without an end .*: an endless") as fault:
        probe.ranks("endless", arrays(3))
    assert fault.value.mistake == "endless" and "rank 0 waits in barrier" in str(fault.value)


def test_a_rank_that_computes_while_others_wait_is_not_stuck(probe):
    assert probe.ranks("computes", arrays(3)).results == [None] * 3


def test_a_receive_from_whoever_sends(probe):
    run = probe.ranks("any_source", arrays(3))
    assert run.matrix().tolist() == [[0, 0, 0], [20, 0, 0], [20, 0, 0]]


def test_collectives_are_listed_and_counted_as_rings(probe):
    run = probe.ranks("collectives", arrays(3, 7))          # pieces of 3, 2, 2 numbers
    names = ["all_reduce", "all_gather", "broadcast", "barrier", "all_to_all"]
    assert [c.name for c in run.collectives if c.rank == 2] == names
    assert [c.index for c in run.collectives if c.rank == 2] == list(range(5))
    assert [run.during(None).sent(r) for r in range(3)] == [
        4 * (14 - 3 - 2), 4 * (14 - 2 - 2), 4 * (14 - 2 - 3)]
    rest = run.during("rest").matrix()
    # all_gather 14 numbers to the right, broadcast 7 from rank 1 around to rank 0, all_to_all one
    assert rest.tolist() == [[0, 60, 4], [4, 0, 88], [88, 4, 0]]


def test_calls_within_a_distributed_tensor_are_seen(probe):
    run = probe.ranks("mesh", [(torch.full((4,), 3.0),)] * 2)
    assert run.results[0].item() == pytest.approx(6)
    assert [(c.name, c.bytes) for c in run.during("norm").collectives] == [("all_reduce", 4)] * 2


def test_spans_are_of_all_ranks_on_one_clock(probe):
    run = probe.ranks("ring", [(a, a.clone()) for a, in arrays(3)], spans=True)
    assert sorted((s.rank, s.name) for s in run.spans if s.exchange) == [
        (r, name) for r in range(3) for name in ("recv", "send")]
    assert min(s.began for s in run.spans) == 0 and all(s.ended >= s.began for s in run.spans)


def test_what_is_no_data_does_not_come_back(probe):
    with pytest.raises(Raised, match="a value of type"):
        probe.ranks("objects", arrays(2))


def test_what_ranks_print_is_kept(probe):
    probe.ranks("talks", arrays(2))
    deadline = time.monotonic() + 5
    while probe.printed().count("hello from") < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert {"hello from 0", "hello from 1"} <= set(probe.printed().splitlines())


def test_ranks_on_two_versions_of_the_course(probe):
    with pytest.raises(Raised, match="rank 2 has another version of the course: 1.4.1, rank 0 has "
                                     "1.4.0"):
        probe.ranks("versions", arrays(3))


def session(pid):
    """The process IDs of a session, but for its leader."""
    pids = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if fields(process / "stat")[3] == str(pid) and process.name != str(pid):
                pids.add(int(process.name))
        except OSError:
            continue
    return pids


def gone(pids, seconds=10):
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("end", ["run", "fault", "child", "kill"])
def test_no_rank_outlives_its_run(probe, end):
    """Nor a child that is ended from outside, while its ranks wait."""
    assert probe.ranks("ring", [(a, a.clone()) for a, in arrays(4)]).results == [0, 1, 2, 3]
    child = probe._child.pid
    if end == "run":
        assert session(child) == set()
        return
    if end == "fault":
        with pytest.raises(RankFault):
            probe.ranks("sends_first", arrays(4))
        assert session(child) == set()
        return
    def act():
        deadline = time.monotonic() + 20
        while probe.printed().count("pids") < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        ranks.update(session(child))
        os.kill(child if end == "child" else min(ranks), signal.SIGKILL)

    ranks = set()
    thread = threading.Thread(target=act)
    thread.start()
    with pytest.raises(Stopped) as stopped:
        probe.ranks("pids", [(*a, 0.9) for a in arrays(4)])
    thread.join()
    assert len(ranks) == 4 and gone(ranks)
    assert stopped.value.why == "died"
    if end == "kill":
        assert "was ended by signal 9" in str(stopped.value)
