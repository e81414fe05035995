"""`lab get`: the hub's own library fetches from a stand-in for the hub on this machine."""

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from urllib.parse import unquote

import pytest
from safetensors.torch import load, save

from lab.course import ROOT
from lab.terminal import main
from layer2_graph.checkpoint import read_weights
from layer2_graph.config import read_config
from layer2_graph.get import app

SMALL = ROOT / "layer2_graph" / "small"
REVISION = "0123456789abcdef0123456789abcdef01234567"
WANTED = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
          "model.safetensors"}


class Hub(http.server.BaseHTTPRequestHandler):
    """What the hub answers for the models in server.models: {name: {file: bytes}}.

    Weights lie elsewhere, so it first gives their ETag and redirects to /elsewhere/.
    server.closed: (status, headers) of its answer about files, if it gives none away
    server.revision: of all models
    """

    def do_GET(self):
        path, models = unquote(self.path.partition("?")[0]), self.server.models
        revision = self.server.revision
        if path.startswith("/elsewhere/"):
            name, _, file = path.removeprefix("/elsewhere/").partition("//")
            self.server.redirected.append(file)
            return self.answer(models[name][file])
        for name, files in models.items():
            if path.startswith(f"/api/models/{name}/tree/"):
                return self.answer(json.dumps([
                    {"type": "file", "path": file, "size": len(content),
                     "oid": hashlib.sha1(content).hexdigest()}
                    for file, content in files.items()]).encode())
            if path.startswith(f"/api/models/{name}"):
                return self.answer(json.dumps({"id": name, "sha": revision, "siblings": [],
                                               "private": False, "tags": []}).encode())
            if path.startswith(f"/{name}/resolve/{revision}/"):
                file = path.removeprefix(f"/{name}/resolve/{revision}/")
                self.server.fetched.append(file)
                if self.server.closed:
                    return self.answer(b"{}", *self.server.closed)
                if not file.endswith(".safetensors"):
                    return self.answer(files[file])
                return self.answer(b"", 302, {
                    "Location": f"http://127.0.0.1:{self.server.server_port}/elsewhere/{name}//"
                                f"{file}",
                    "X-Linked-Size": len(files[file]),
                    "X-Linked-Etag": f'"{hashlib.sha256(files[file]).hexdigest()}"'})
        return self.answer(b"{}", 404, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def answer(self, content, status=200, headers=()):
        self.send_response(status)
        for name, value in {"Content-Length": len(content), "X-Repo-Commit": self.server.revision,
                            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
                            "Content-Type": "application/json", **dict(headers)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:self.server.most])

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def hub():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def get(hub, tmp_path):
    """get(words, files=…) -> (the finished process, the model's folder)"""
    hub.fetched, hub.redirected = [], []

    def one(*words, files=None, endpoint=None, most=None, closed=None,
            revision=REVISION):
        hub.models, hub.most = {"somebody/a-model": files or {}}, most
        hub.closed, hub.revision = closed, revision
        done = subprocess.run(
            [sys.executable, "-m", "layer2_graph.get", *words], cwd=ROOT, capture_output=True,
            text=True, env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path),
                 "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1",
                 "HF_ENDPOINT": endpoint or f"http://127.0.0.1:{hub.server_port}"})
        return done, tmp_path / "three-floors" / "models" / "somebody" / "a-model"
    return one


def files(**others):
    """The small model's files, and some that the course does not read.
    None leaves one out."""
    found = {path.name: path.read_bytes() for path in SMALL.iterdir() if path.name in WANTED}
    found |= {"README.md": b"#", "pytorch_model.bin": b"x", "consolidated.safetensors": b"x",
              "original/params.json": b"{}"}
    found |= {re.sub("_(?=(json|safetensors|jinja)$)", ".", name): content
              for name, content in others.items()}
    return {name: content for name, content in found.items() if content is not None}


def one_line(done, says):
    lines = [line for line in done.stderr.splitlines() if line.startswith("get: ")]
    assert done.returncode == 2 and len(lines) == 1 and says in lines[0], done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_a_model_is_fetched_whole_and_nothing_else(get, hub):
    done, folder = get("somebody/a-model", files=files())
    assert done.returncode == 0, done.stderr
    assert str(folder) in done.stdout and REVISION in done.stdout and "complete" in done.stdout
    assert {path.name for path in folder.iterdir() if path.is_file()} == WANTED
    assert hub.fetched[0] == "config.json" and set(hub.fetched) == WANTED
    assert set(hub.redirected) == {"model.safetensors"}
    for name in WANTED:
        assert (folder / name).read_bytes() == (SMALL / name).read_bytes()


@pytest.mark.parametrize("others, says", [
    ({"config_json": b'{"architectures": ["GPT2LMHeadModel"]}'}, "found GPT2LMHeadModel"),
    ({"config_json": None}, "config.json is missing")])
def test_a_model_that_cannot_be_run_costs_no_weights(get, hub, others, says):
    done, folder = get("somebody/a-model", files=files(**others))
    one_line(done, says)
    assert set(hub.fetched) <= {"config.json"}


def test_a_later_revision_leaves_nothing_of_the_earlier_one(get):
    """Its weights lie in shards, and it has no template; the reader's own files stay."""
    small = files(chat_template_jinja=b"{{ messages }}")
    _, folder = get("somebody/a-model", files=small)
    (folder / "notes.md").write_bytes(b"mine")
    assert (folder / "chat_template.jinja").exists()
    shard = "model-00001-of-00001.safetensors"
    names = load(small["model.safetensors"])
    index = json.dumps({"weight_map": dict.fromkeys(names, shard)}).encode()
    later = files(model_safetensors=None) | {
        shard: save({name: 2 * w for name, w in names.items()}),
        "model.safetensors.index.json": index}
    done, _ = get("somebody/a-model", files=later, revision=REVISION[::-1])
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir() if path.is_file()} == (
        WANTED - {"model.safetensors"} | {shard, "model.safetensors.index.json", "notes.md"})
    norm = "model.norm.weight"
    assert read_weights(folder, read_config(folder))[norm].equal(2 * names[norm])


def test_an_entry_that_is_not_implemented_is_refused_unless_it_is_to_be_ignored(get, hub):
    own = json.loads((SMALL / "config.json").read_text("utf-8"))
    model = files(config_json=json.dumps(own | {"logits_scaling": 8.0}).encode())
    done, _ = get("somebody/a-model", files=model)
    one_line(done, "logits_scaling is 8.0")
    assert set(hub.fetched) <= {"config.json"}
    done, _ = get("somebody/a-model", "--ignore-config", "logits_scaling", files=model)
    assert done.returncode == 0 and "complete" in done.stdout, done.stderr
    assert done.stdout.endswith(" --ignore-config logits_scaling\n")


@pytest.mark.parametrize("others, says", [
    ({"tokenizer_json": None}, "tokenizer.json is missing"),
    ({"model_safetensors": None}, "no model.safetensors and no model.safetensors.index.json"),
    ({"model_safetensors": b"\x00" * 50}, "is not a complete safetensors file")])
def test_what_is_not_whole_is_not_called_done(get, others, says):
    one_line(get("somebody/a-model", files=files(**others))[0], says)


def test_no_such_model(get):
    """The real hub says 401 without a code, which the library takes for this over https alone."""
    one_line(get("somebody/other")[0], "has no model somebody/other")


@pytest.mark.parametrize("status", [401, 403])
def test_a_model_that_wants_a_consent(get, hub, status):
    """Everyone can see that it exists, but it gives its files to no one."""
    done, folder = get("somebody/a-model", files=files(),
                       closed=(status, {"X-Error-Code": "GatedRepo"}))
    one_line(done, "needs an account (`hf auth login`) or your consent on its page")
    assert set(hub.fetched) == {"config.json"} and not (folder / "config.json").exists()


@pytest.mark.parametrize("word", ["model", "a/b/c", "../x", "a/..", "", "https://hub/a/b", "a/b "])
def test_a_name_that_is_none(monkeypatch, capsys, word):
    monkeypatch.setattr(sys, "argv", ["get", word])
    monkeypatch.delattr("layer2_graph.get.fetch")           # it must not be called
    with pytest.raises(SystemExit) as done:
        main(app, "get")
    assert done.value.code == 2
    assert capsys.readouterr() == ("", "get: expected OWNER/NAME, such as "
                                   f"HuggingFaceTB/SmolLM2-135M; found {word!r}\n")


@pytest.mark.parametrize("word", ["a/b--c", "a/b.git", "a/b-", "a/b..c", "a/" + 100 * "b"])
def test_a_name_that_the_hub_does_not_allow(get, hub, word):
    one_line(get(word)[0], f"expected OWNER/NAME by the hub's rules, found {word!r}: ")
    assert not hub.fetched


def test_no_network(get):
    done, folder = get("somebody/a-model", endpoint="http://127.0.0.1:9")     # no server there
    one_line(done, "cannot fetch somebody/a-model from http://127.0.0.1:9 (ConnectError")
    assert "copied by hand" in done.stderr and "--model FOLDER" in done.stderr
    assert not folder.exists()


@pytest.mark.slow           # the library waits and tries again
def test_the_network_goes_meanwhile(get):
    """A connection that ends early leaves no file that looks complete; the next call resumes."""
    done, folder = get("somebody/a-model", files=files(), most=100_000)
    one_line(done, "cannot fetch somebody/a-model")
    assert (folder / "config.json").exists() and not (folder / "model.safetensors").exists()
    assert get("somebody/a-model", files=files())[0].returncode == 0
    assert (folder / "model.safetensors").stat().st_size == (
        SMALL / "model.safetensors").stat().st_size


def test_the_network_goes_after_an_older_download(get):
    """The files already there are not taken for the requested ones."""
    assert get("somebody/a-model", files=files())[0].returncode == 0
    one_line(get("somebody/a-model", endpoint="http://127.0.0.1:9")[0], "cannot fetch")


def test_pyproject_registers_it():
    with open(ROOT / "pyproject.toml", "rb") as file:
        registered = tomllib.load(file)["project"]["entry-points"]["lab.commands"]
    assert EntryPoint("get", registered["get"], "lab.commands").load() is app
    assert Path(sys.modules["layer2_graph.get"].__file__).is_relative_to(ROOT)
