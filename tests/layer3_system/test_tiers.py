"""What is given of s11: memory below the pages, a file below it, and an engine over both.

Whatever happens to a file, tokens are right: MockLlama refuses pages that are not the sequence's.
"""

import json
import os
import re
import resource
import subprocess
import sys
from contextlib import contextmanager
from random import Random

import pytest
import torch

from day01_roofline import ACCELERATORS, LLAMAS, kv_bytes_per_token
from layer2_graph import load
from layer2_graph.models import SMALL, TWINS
from layer3_system import BlockPool, PrefixPool, SamplingParams, Scheduler, check_engine
from layer3_system.bench.s11_kv_offload import PLACES, RECORD, TURNS
from layer3_system.bench.s11_kv_offload import P as PAGES
from layer3_system.bench.s11_kv_offload import S as SLOTS
from layer3_system.file_tier import FileTier, HostOverFile, digest_of
from layer3_system.records import HEADER, record_of
from layer3_system.s07_engine import Engine
from layer3_system.s11_kv_offload import Costs, TieredPool
from layer3_system.server import assembly, cli
from layer3_system.server.metrics import Metrics
from layer3_system.server.tiers import connect, flops_of_token
from layer3_system.testing.mock_llama import ByteTokenizer, MockLlama
from layer3_system.tiers import HostTier, TieredPages

S = 4
LENGTH = 2 * S * 4              # bytes of a page of MockLlama: keys and values, float32
DIGEST = bytes(32)


def engine(pool, model=None, **options):
    e = Engine(model or MockLlama(400), ByteTokenizer(), pool, Scheduler(pool, 4, 64), **options)
    if isinstance(pool, TieredPool):
        e.pages = TieredPages(e.pages, pool.host)
    return e


def converse(e, users=6, turns=3, seed=0):
    """[[token]] of conversations whose pages do not fit on the device."""
    chance = Random(seed)
    said = [[chance.randrange(200) for _ in range(chance.randrange(20, 30))] for _ in range(users)]
    answers = []
    for _ in range(turns):
        requests = {}
        for user in chance.sample(range(users), users):
            said[user] = said[user] + [chance.randrange(200) for _ in range(5)]
            requests[user] = e.submit(said[user], SamplingParams(6, temperature=0,
                                                                 ignore_eos=True))[0]
        while e.busy:
            e.step()
            check_engine(e)
        for user, request in sorted(requests.items()):
            assert request.reason == "length", request.error
            said[user] = request.tokens
            answers.append(request.output)
    return answers


PLAIN = converse(engine(BlockPool(40, S)))


def tier(path, records=200, digest=DIGEST, **options):
    return FileTier(path, records, LENGTH, digest, **options)


def over_file(file, places=8):
    return TieredPool(40, S, None, HostOverFile(places, file))


# ---- in host memory


@pytest.mark.parametrize("places", [1, 2, 8, 300])
@pytest.mark.parametrize("overlap", [False, True])
def test_conversations_are_the_same(places, overlap):
    pool = TieredPool(40, S, None, HostTier(places))
    assert converse(engine(pool, overlap=overlap)) == PLAIN
    assert pool.copies.pages["out"] > 20
    assert (pool.loaded > 100) == (places == 300)
    assert pool.loaded == pool.copies.pages["into"] * S or places < 300


def test_a_tier_saves_what_an_endless_pool_saves():
    """But for the part-filled page of a request that was sent back."""
    totals = []
    for pool in (PrefixPool(400, S), TieredPool(40, S, None, HostTier(300)), PrefixPool(40, S)):
        e = engine(pool)
        tokens = 0
        step = e.scheduler.schedule

        def schedule(step=step):
            nonlocal tokens
            counts = step()
            tokens += sum(counts.values())
            return counts

        e.scheduler.schedule = schedule
        converse(e)
        totals.append(tokens)
    assert totals[0] <= totals[1] < totals[0] + 4 * S < totals[2]


def test_nothing_is_loaded_where_computing_is_faster():
    pool = TieredPool(40, S, None, HostTier(300), Costs(1, 0, 1, 1e9, 0, 0))
    assert converse(engine(pool)) == PLAIN
    assert pool.loaded == 0 < pool.copies.pages["out"]


def test_salts_share_nothing_below():
    pool = TieredPool(20, S, None, HostTier(100))
    e = engine(pool)
    params = SamplingParams(2, temperature=0, ignore_eos=True)
    cached = []
    for salt in ("a", "b", "a"):
        (request,) = e.submit([7] * 40, params, salt=salt)
        e.submit(list(range(70)), params)           # pushes it out
        while e.busy:
            e.step()
        cached.append(request.num_cached)
    assert cached == [0, 0, 36]


def test_a_model_of_several_layers():
    """Keys and values of every layer come back as they were."""
    small = load(SMALL, dtype=torch.float32)
    prompts = [[5 + i, *range(20, 90)] for i in range(4)] * 2
    outputs = []
    for pool in (BlockPool(12, 16), TieredPool(12, 16, None, HostTier(40))):
        e = Engine(small, ByteTokenizer(), pool, Scheduler(pool, 2, 128))
        if isinstance(pool, TieredPool):
            connect(e)
            assert pool.costs.rate > 0 and pool.costs.bandwidth > 0 and pool.costs.latency >= 0
            pool.costs = None
        rows = []
        for prompt in prompts:
            (request,) = e.submit(prompt, SamplingParams(8, temperature=0, ignore_eos=True))
            while e.busy:
                e.step()
            rows.append(request.output)
        outputs.append(rows)
    assert outputs[0] == outputs[1] and pool.loaded > 100


def test_flops_of_a_token():
    """Twice the weights of the matrices that it meets."""
    small = load(SMALL, dtype=torch.float32)
    m = small.config
    matrices = m.L * (m.C * (m.H + 2 * m.G) * m.D + m.H * m.D * m.C + 3 * m.C * m.F)
    assert flops_of_token(m) == 2 * matrices


# ---- the file


def test_a_later_server_finds_the_pages(tmp_path):
    path = tmp_path / "kv"
    file = tier(path)
    assert converse(engine(over_file(file))) == PLAIN
    file.close()
    later = tier(path)
    assert len(later.slot_of) > 20
    pool = over_file(later, 100)
    assert converse(engine(pool)) == PLAIN
    assert pool.loaded > 100 and later.misses == 0


def test_what_the_host_gives_up_comes_back_from_the_file(tmp_path):
    pool = over_file(tier(tmp_path / "kv"), places=30)
    assert converse(engine(pool)) == PLAIN
    assert pool.copies.pages["down"] > 20 and pool.copies.pages["fill"] > 5


@contextmanager
def room_for(size):
    """A disk that is full at `size` bytes: the system writes what fits, then refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk(tmp_path, caplog):
    file = tier(tmp_path / "kv")
    with room_for(file.place(5) + 50):
        assert converse(engine(over_file(file))) == PLAIN
    assert file.failures > 10 and len(file.slot_of) == 5
    assert "serving goes on without it" in caplog.text
    assert len(re.findall("serving goes on", caplog.text)) == 1
    file.close()
    assert len(tier(tmp_path / "kv").slot_of) <= 6


def spoiled(path, spoil):
    """A file of a server that has ended, and then something happens to it."""
    file = tier(path)
    converse(engine(over_file(file)))
    file.close()
    data = bytearray(path.read_bytes())
    path.write_bytes(spoil(data, file))


def cut(data, file):
    return data[:file.place(7) + 60]


def flipped(data, file):
    for at in range(file.place(0) + HEADER.size + 3, len(data), file.size):
        data[at] ^= 4
    return data


def turned_round(data, file):
    """Two records have changed their payloads."""
    first, other = (file.place(i) + HEADER.size for i in (0, 1))
    one, two = data[first:first + LENGTH], data[other:other + LENGTH]
    data[first:first + LENGTH], data[other:other + LENGTH] = two, one
    return data


def half_written(data, file):
    """A process died while it wrote over a record: a new header, and the old payload."""
    name = bytes(range(32))
    new = record_of(bytes(LENGTH), name, DIGEST)
    data[file.place(2):file.place(2) + HEADER.size + 5] = new[:HEADER.size + 5]
    return data


@pytest.mark.parametrize("spoil", [cut, flipped, turned_round, half_written])
def test_a_damaged_file_is_a_miss(tmp_path, spoil):
    path = tmp_path / "kv"
    spoiled(path, spoil)
    file = tier(path)
    for name in list(file.slot_of):                 # each record: whole, or a miss
        file.get(name)
    assert file.misses or spoil is cut
    file.close()
    file = tier(path)
    assert converse(engine(over_file(file))) == PLAIN


def test_a_file_that_is_cut_while_it_is_used(tmp_path):
    path = tmp_path / "kv"
    file = tier(path)
    e = engine(over_file(file, 4))
    converse(e)
    os.truncate(path, file.place(3))
    assert converse(e, seed=0) == PLAIN
    assert file.misses > 0


CRASH = """
import os, sys
from pathlib import Path
from layer3_system.file_tier import FileTier
file = FileTier(Path(sys.argv[1]), 50, 4096, bytes(32))
pwrite = os.pwrite
def half(fd, data, at):
    pwrite(fd, data[:int(sys.argv[2])], at)
    os.kill(os.getpid(), 9)
for i in range(4):
    if i == 3:
        os.pwrite = half
    file.put(bytes([i]) * 32, bytes([i]) * 4096)
"""


@pytest.mark.parametrize("written", [0, 50, 78, 2000, 4177])
def test_a_crash_while_writing(tmp_path, written):
    """Killed in the middle of a record: the others are whole, this one is a miss."""
    path = tmp_path / "kv"
    done = subprocess.run([sys.executable, "-c", CRASH, path, str(written)], check=False,
                          capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    file = FileTier(path, 50, 4096, DIGEST)
    got = [file.get(bytes([i]) * 32) for i in range(4)]
    assert got == [bytes([i]) * 4096 for i in range(3)] + [None]


def test_whose_file_it_is(tmp_path):
    path = tmp_path / "kv"
    file = tier(path)
    with pytest.raises(ValueError, match=f"is in use by process {os.getpid()}"):
        tier(path)
    file.close()
    with pytest.raises(ValueError, match=r"other weights \(digest 00000000, these are 01010101\)"):
        tier(path, digest=b"\1" * 32)
    with pytest.raises(ValueError, match="32 bytes a page, this model has 64"):
        FileTier(path, 9, 64, DIGEST)
    FileTier(path, 9, 64, DIGEST, reset=True).close()
    (tmp_path / "letter").write_text("Dear reader, this is no file of that kind at all. " * 9)
    with pytest.raises(ValueError, match="is no file of keys and values"):
        tier(tmp_path / "letter")
    assert (tmp_path / "letter").read_text().startswith("Dear")
    with pytest.raises(ValueError, match="No such file or directory"):
        tier(tmp_path / "nowhere" / "kv")


def test_a_digest_sees_every_weight():
    weights = {"a": torch.zeros(9, 300), "b": torch.zeros(5, dtype=torch.bfloat16)}
    config = MockLlama().config
    seen = {digest_of(config, weights, 16), digest_of(config, weights, 32),
            digest_of(MockLlama(99).config, weights, 16)}
    weights["a"][8, 299] = 1e-9
    seen.add(digest_of(config, weights, 16))
    weights["b"] = weights["b"].half()
    seen.add(digest_of(config, weights, 16))
    assert len(seen) == 5


def test_a_request_that_waits_for_its_turn_looks_nothing_up():
    """There is room for its pages, but not for one more of each that runs."""
    pool = TieredPool(12, S, None, HostTier(6))
    e = engine(pool)
    text = list(range(16))
    for prompt in (text, [99] * 44):                # the second takes every page
        e.submit(prompt, SamplingParams(1))
        while e.busy:
            e.step()
    for n in (1, 2):
        e.submit([n] * 9, SamplingParams(12, temperature=0, ignore_eos=True))
    e.step()
    asked = pool.asked
    (late,) = e.submit([*text, 5], SamplingParams(1))
    for _ in range(2):
        e.step()
    assert late.status == "waiting" and len(pool.free) == 6
    assert pool.asked == asked
    while e.busy:
        e.step()
        check_engine(e)
    assert pool.asked > asked and late.reason == "length"


# ---- served


def test_metrics(tmp_path):
    pool = over_file(tier(tmp_path / "kv"), places=30)
    e = engine(pool)
    metrics = Metrics(e, "mock")
    step = e.step
    e.step = lambda: metrics.stepped(e, step())
    converse(e)
    text = metrics.text().decode()
    for name, count in (
            ('kv_offload_total_bytes_total{model_name="mock",transfer_type="GPU_to_CPU"}',
             pool.copies.pages["out"] * LENGTH),
            ('kv_offload_total_bytes_total{model_name="mock",transfer_type="CPU_to_GPU"}',
             pool.copies.pages["into"] * LENGTH),
            ('external_prefix_cache_hits_total{model_name="mock"}', pool.loaded),
            ('external_prefix_cache_queries_total{model_name="mock"}', pool.asked),
            ('kv_offload_cpu_cache_usage_perc{model_name="mock"}', 1)):
        assert f"vllm:{name} {float(count)}" in text
        assert count > 0


@pytest.mark.parametrize("words, message", [
    (["--kv-file", "x"], "expected --host-pages, too"),
    (["--host-pages", "5", "--tp", "2"], "--host-pages and --tp exclude each other"),
    (["--host-pages", "5", "--kv-file", "/nowhere/kv"], "No such file or directory"),
    (["--host-pages", "0"], "should be greater than or equal to 1"),
    ([str(TWINS / "latent"), "--host-pages", "4"], "--host-pages: this model keeps a"),
])
def test_what_serve_refuses(command, words, message):
    code, _, error = command(cli.app, "serve", *words)
    assert code != 0 and message in " ".join(error.split())


def test_the_parts_of_a_learner():
    """TieredPool over a learner's PrefixPool and BlockPool: the methods of all three are there."""
    class Own(BlockPool):
        def grow(self, table, N):
            self.grown = True
            return BlockPool.grow(self, table, N)

    class Below(TieredPool):
        pass

    pool = assembly.pool_of({"BlockPool": Own, "TieredPool": Below}, 40, S, HostTier(300))
    assert isinstance(pool, Below)
    assert converse(engine(pool)) == PLAIN
    assert pool.grown and pool.loaded > 100


def test_the_flags_reach_the_engine(command, monkeypatch, tmp_path):
    listeners = []
    monkeypatch.setattr(cli, "run", lambda listener, *_: listeners.append(listener))
    code, _, wrong = command(cli.app, "serve", "--port", 0, "--host-pages", 5, "--kv-file",
                             tmp_path / "kv")
    assert not code, wrong
    engine = listeners[0].bridge.engine
    pool = engine.pool
    assert (pool.host.places, pool.host.file.records) == (5, 20)
    assert isinstance(engine.pages, TieredPages) and pool.costs.bandwidth > 0


# ---- what s11 says of its record


@pytest.fixture(scope="module")
def shares():
    """{users: {tier: tokens computed, as a share of those without a cache}}"""
    record = json.loads(RECORD.read_text("utf-8"))["conversations"]
    return {int(users): {name: row["computed"] / rows["none"]["computed"]
                         for name, row in rows.items()} for users, rows in record.items()}


def test_the_devices_cache_saves_nearly_all_with_4_users_and_hardly_anything_with_16(shares):
    saved = {users: (1 - row["device"]) / (1 - row["enough pages"])
             for users, row in shares.items()}
    assert saved[4] > 0.98 and saved[16] < 0.03
    assert (TURNS, PAGES, SLOTS) == (4, 100, 16)


def test_all_conversations_end_on_one_floor_two_thirds_below(shares):
    """Where they fit: 400 places for 16 users, 800 for 32.
    A quarter of that loses most."""
    floor = shares[16]["enough pages"]
    assert floor == pytest.approx(1 / 3, abs=0.01)
    for users, places in ((16, 400), (32, 800)):
        row = {n: shares[users][f"host {n}"] for n in PLACES}
        assert all((share == pytest.approx(floor, abs=0.003)) == (n >= places)
                   for n, share in row.items())
        assert 1 - row[places // 4] < 0.5 * (1 - floor)


def test_1600_pages_of_an_8b_model_are_3_4_gigabytes():
    assert max(PLACES) == 1600
    each = kv_bytes_per_token(LLAMAS["Llama-3.1-8B"], 2)
    assert round(max(PLACES) * SLOTS * each / 1e9, 1) == 3.4
    h100 = next(machine for machine in ACCELERATORS if machine.name == "NVIDIA H100 SXM")
    assert h100.peak / 2 == pytest.approx(495e12, rel=0.002)
