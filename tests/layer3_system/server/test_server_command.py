"""`lab serve`: its words, whose parts run, and the model that it serves."""

import json
import socket
import subprocess
import sys
import tomllib
from functools import partial
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from lab import course
from lab.course import ROOT
from lab.desk.desk import Desk
from lab.judge.verdict import Verdict
from layer3_system import (
    BlockPool,
    Bridge,
    ByteTokenizer,
    Limits,
    MockLlama,
    PrefixPool,
    SamplingParams,
    Scheduler,
    check_engine,
)
from layer3_system.server import app as addresses
from layer3_system.server import assembly
from layer3_system.server import cli as serving
from tests.layer3_system.server.http_server import (
    LONG,
    Fails,
    Gated,
    alone,
    events,
    read_all,
    served,
    told,
    until,
)

SMALL = ROOT / "layer2_graph" / "small"


@pytest.fixture
def run(command):
    return partial(command, serving.app, "serve")


BAD_WORDS = {
    "back end": (["--kernels", "metal"], "'metal', expected torch, triton, cuda or mine"),
    "model": (["no/such"], "no folder no/such, and no model of that name was fetched"),
    "a file": (["README.md"], "no folder README.md"),
    "not a model": (["docs"], "no folder docs"),
    "dtype": (["--dtype", "int8"], "expected float32, bfloat16, float16"),
    "budget": (["--budget", "8", "--max-seqs", "9"], "expected 1 <= max_seqs <= budget"),
    "host": (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    "port": (["--port", "70000"], "--port"),
    "no desk": (["--kernels", "mine", "--desk", "no such"], "run `lab start`"),
}


@pytest.mark.parametrize("case", BAD_WORDS)
def test_bad_words_are_one_line_and_exit_2(run, monkeypatch, case):
    words, says = BAD_WORDS[case]
    if "kernels" in str(words):
        monkeypatch.setattr(serving.device, "use_simulator", lambda: None)
    code, _, wrong = run(*words)
    assert code == 2 and says in wrong and len(wrong.splitlines()) == 1, wrong


def folder_with(folder, **entries):
    """The small model's files, and these entries in config.json besides its own."""
    for path in SMALL.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    own = json.loads((SMALL / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(own | entries), "utf-8")
    return folder


def test_an_entry_that_is_not_implemented_is_refused_unless_it_is_to_be_ignored(
        run, monkeypatch, tmp_path):
    folder = folder_with(tmp_path, logits_scaling=8.0)
    code, _, wrong = run(folder, "--port", 0)
    assert code == 2 and "logits_scaling is 8.0" in wrong and len(wrong.splitlines()) == 1
    assert "--ignore-config logits_scaling" in wrong
    monkeypatch.setattr(serving, "run", lambda *given: print("it serves"))
    code, said, _ = run(folder, "--port", 0, "--ignore-config", "logits_scaling")
    assert not code and "it serves" in said


def test_heads_that_the_kernels_do_not_take_are_refused_before_it_listens(
        run, monkeypatch, tmp_path):
    """The small model's 6 heads of 32 numbers as 24 of 8: the same matrices."""
    folder = folder_with(tmp_path, num_attention_heads=24, num_key_value_heads=8, head_dim=8)
    monkeypatch.setattr(serving.device, "use_simulator", lambda: None)
    monkeypatch.setattr(serving, "run", lambda *given: print("it serves"))
    code, said, wrong = run(folder, "--port", 0, "--kernels", "triton")
    assert code == 2 and "24 heads, 8 wide" in wrong and len(wrong.splitlines()) == 1
    assert "expected a multiple of 16, 16 to 128; --kernels torch takes them" in wrong
    code, said, wrong = run(folder, "--port", 0)
    assert not code and "it serves" in said, wrong


def test_where_a_model_is_found(monkeypatch, tmp_path):
    fetched = tmp_path / "models" / "somebody" / "a-model"
    fetched.mkdir(parents=True)
    monkeypatch.setattr(serving.device, "cache_folder", lambda: tmp_path)
    assert serving.find_model("somebody/a-model", False) == (fetched, "somebody/a-model")
    assert serving.find_model(str(SMALL), False) == (SMALL, "small")
    assert serving.find_model(None, False) == (SMALL, "small")
    assert serving.find_model(None, True)[1] == "nano"      # in the simulator


def test_a_port_that_is_taken(run):
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, _, wrong = run("--port", other.getsockname()[1])
    assert code == 2 and "Address already in use" in wrong and len(wrong.splitlines()) == 1


def test_what_is_small_is_sent_at_once():
    """Else a piece of a stream waits until the one before is acknowledged, for up to 40 ms."""
    with (serving.listen("127.0.0.1", 0) as listening,
          socket.create_connection(listening.getsockname(), timeout=5),
          listening.accept()[0] as end):
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_it_says_whose_parts_run(run, monkeypatch):
    monkeypatch.setattr(serving, "run", lambda *given: None)
    monkeypatch.setattr(serving, "listener_of", lambda *given: print(given[1:4]))
    code, said, _ = run("--port", 0, "--name", "mine", "--tokens", 50, "--api-key", "k")
    assert not code and "paged_attention_cpu" in said and "BlockPool        reference" in said
    assert "('mine', Limits(body=1048576, tokens=50, queue=1024" in said and "'k')" in said


def test_an_empty_key_is_refused(run):
    code, _, wrong = run("--port", 0, "--api-key", "")
    assert code == 2 and "--api-key: expected a key, found an empty text" in wrong


class Desks(Desk):
    """A desk with given modules, on which some exercises passed."""

    def __init__(self, passed, **modules):
        self.names, self.modules = passed, modules

    def passed(self, exercise):
        return exercise.name in self.names

    def module(self, lesson):
        return self.modules[lesson.id]


@pytest.fixture
def lessons(monkeypatch):
    def lesson(id, *names, reached=()):
        exercises = [SimpleNamespace(name=name) for name in names]
        return SimpleNamespace(id=id, exercises=exercises, reached=lambda name: [
            e for e in exercises if e.name in reached])
    monkeypatch.setattr(assembly.course, "lessons", lambda: [
        lesson("s01_request", "sample_row", "predict_seed", reached=("sample_row",)),
        lesson("s02_block_pool", "BlockPool.take", "BlockPool.copy_on_write", "pages_for",
               reached=("pages_for",))])


def test_a_part_is_the_learners_where_all_of_it_passed(lessons):
    pool, sample = object(), object()
    modules = {"s02_block_pool": SimpleNamespace(BlockPool=pool),
               "s01_request": SimpleNamespace(sample_rows=sample)}

    def own(*passed):
        desk = Desks(passed, **modules)
        return {name for name in assembly.PARTS if assembly.candidate_of(desk, name)}
    assert own() == set()
    assert own("BlockPool.take", "BlockPool.copy_on_write") == set()
    assert own("BlockPool.take", "BlockPool.copy_on_write", "pages_for") == {"BlockPool"}
    assert own("sample_row") == {"sample_rows"}


def test_the_learners_parts_run_in_the_engine():
    """Their block pool below the prefix cache, their chain, scheduler and sampler."""
    seen = set()

    def counted(kind, *names):
        def method(name):
            def called(self, *values):
                seen.add(f"{kind.__name__}.{name}")
                return getattr(kind, name)(self, *values)
            return called
        return type(kind.__name__, (kind,), {name: method(name) for name in names})

    parts = assembly.PARTS

    def sample_rows(logits, params):
        seen.add("sample_rows")
        return parts["sample_rows"](logits, params)
    own = {"BlockPool": counted(BlockPool, "take", "release", "match_prefix"),
           "HashChain": counted(parts["HashChain"], "find"),
           "PrefixPool": counted(PrefixPool, "match_prefix"),
           "Scheduler": counted(Scheduler, "admit"), "sample_rows": sample_rows}
    engine = assembly.build(MockLlama(), ByteTokenizer(), None, own, 32)
    for _ in range(2):
        (request,) = engine.submit(list(b"a text of more than a page"), SamplingParams(seed=1))
        while engine.busy:
            engine.step()
        check_engine(engine)
    assert request.num_cached == 16
    assert seen == {"BlockPool.take", "BlockPool.release", "HashChain.find",
                    "PrefixPool.match_prefix", "Scheduler.admit", "sample_rows"}
    (want,) = alone("a text of more than a page", seed=1)
    assert request.output == want[2].output


S08 = course.find("s08_server")
OF_A_BRIDGE = ("Bridge.read_mail", "Bridge.make_room", "Call.add")
OWN_WORDS = {"answers may run or": "are on MY desk and", "request failed": "is MY error"}


def desk_with(folder, *passed):
    """A desk with right answers to all of s08, of which these passed.
    Two sentences are its own."""
    desk = Desk(folder)
    desk.prepare()
    desk.start(S08)
    text = S08.sources["python"]
    for ours, own in OWN_WORDS.items():
        assert text.count(ours) == 1
        text = text.replace(ours, own)
    desk.path(S08, ".py").write_text(text)
    desk.record(S08, desk.candidate(S08), [Verdict(name, "pass", 1, 1) for name in passed])
    return desk


def test_the_learners_bridge_serves(tmp_path):
    """Its refusals and failures reach the client as the course's own do."""
    bridge = assembly.candidate_of(desk_with(tmp_path, *OF_A_BRIDGE), "Bridge")
    model = Gated()
    with served(model, limits=Limits(queue=0), max_seqs=1, kind=bridge) as server:
        told(server.post(prompt=["a"] * 2), 400, "prompt", "at most 1 answers, found 2")
        told(server.post(prompt=LONG + "x"), 400, "prompt")
        client = server.open(prompt="a", max_tokens=2)
        until(lambda: server.bridge.taken == 1)
        answer = server.post(prompt="a")
        assert told(answer, 429, says="on MY desk")["code"] == "queue_full"
        assert int(answer.headers["Retry-After"]) >= 1
        model.gate.release(1000)
        assert b"200 OK" in read_all(client)
    with served(Fails(), kind=bridge) as server:
        told(server.post(prompt="!bad"), 500, says="MY error")
        *_, last = events(server.post(prompt="!bad", stream=True).content)
        assert last["error"]["type"] == "server_error" and "MY error" in last["error"]["message"]
        ((want, *_),) = alone("good", seed=1)
        assert server.post(prompt="good", seed=1).json()["choices"][0]["text"] == want


@pytest.mark.parametrize("left_out", OF_A_BRIDGE)
def test_a_bridge_of_which_a_part_did_not_pass_does_not_serve(tmp_path, left_out):
    desk = desk_with(tmp_path, *(name for name in OF_A_BRIDGE if name != left_out))
    assert assembly.candidate_of(desk, "Bridge") is None


@pytest.mark.parametrize("passed, whose", [(OF_A_BRIDGE, "mine"), ((), "reference")])
def test_the_command_serves_with_the_learners_bridge(run, monkeypatch, tmp_path, passed, whose):
    desk_with(tmp_path, *passed)
    apps = []
    monkeypatch.setattr(serving.device, "use_simulator", lambda: None)
    monkeypatch.setattr(addresses, "Listener", lambda app, **_: SimpleNamespace(
        run=lambda sockets: apps.append(app)))
    code, said, wrong = run("--kernels", "mine", "--desk", tmp_path, "--port", 0)
    assert not code, wrong
    assert f"  {'Bridge':16} {whose}\n" in said
    assert (type(apps[0].state.bridge) is Bridge) == (whose == "reference")


def test_an_address_that_others_reach_is_said():
    assert serving.is_own("127.0.0.1") and serving.is_own("::1") and serving.is_own("localhost")
    assert not serving.is_own("0.0.0.0") and not serving.is_own("10.0.0.1")
    assert not serving.is_own("::") and not serving.is_own("example.org")


def test_heavy_imports_are_lazy():
    code = ("import sys, layer3_system; print([m for m in ('fastapi', 'uvicorn', "
            "'prometheus_client') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_pyproject_registers_it():
    with open(ROOT / "pyproject.toml", "rb") as file:
        registered = tomllib.load(file)["project"]["entry-points"]["lab.commands"]
    assert EntryPoint("serve", registered["serve"], "lab.commands").load() is serving.app
