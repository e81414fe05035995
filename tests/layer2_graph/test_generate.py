"""The command that generates: the kernels it reports, its tokens, its speed, bad input."""

import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from day02_overview import NANO
from lab import course, device, simulator
from lab.course import ROOT
from lab.desk.desk import Desk
from lab.judge import check
from layer1_kernels import kernels
from layer2_graph import generate, load
from layer2_graph.models import TWINS

PROMPT = generate.Letters().encode("a warp has")


@pytest.fixture(scope="module", autouse=True)
def triton_as_it_was():
    yield
    if device.gpu() is None:
        simulator.deactivate_triton()


@pytest.fixture
def run(command):
    return partial(command, generate.app, "generate")


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A desk on which two of the model's kernels passed, and one is right but was not graded."""
    desk = Desk(tmp_path_factory.mktemp("a learner") / "work")
    desk.prepare()
    for name, exercise in (("k08_rmsnorm", "rmsnorm_triton"), ("k10_swiglu", "swiglu_triton"),
                           ("k09_rope", None)):
        lesson = course.find(name)
        desk.start(lesson)
        desk.path(lesson, ".py").write_text(lesson.sources["python"])
        if exercise:
            candidate = desk.candidate(lesson)
            verdicts = check.grade(lesson, candidate, [exercise])
            assert verdicts[0].verdict == "pass"        # its speed may be a row after it
            desk.record(lesson, candidate, verdicts)
    return desk.folder


# ---- whose kernels


def test_mine_where_it_passed_and_the_reference_elsewhere(run, desk):
    code, said, _ = run("--kernels", "mine", "--desk", desk, "--tokens", 3)
    assert code == 0 and "yours: 2 of 6" in said and "the same tokens as PyTorch" in said
    whose = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line[:2] == "  "}
    assert whose.pop("rmsnorm") == whose.pop("swiglu") == ["mine"]
    assert whose.pop("rope") == ["reference", "rope"]           # right, and not graded yet
    assert {w[0] for name, w in whose.items() if name not in ("yours:", "all")} == {"reference"}
    assert "\na warp has 32\n" in said


def test_an_empty_desk(run, tmp_path):
    Desk(tmp_path).prepare()
    code, said, _ = run("--kernels", "mine", "--desk", tmp_path, "--tokens", 1)
    assert code == 0 and "yours: 0 of 6" in said and "the same tokens as PyTorch" in said


def test_the_small_model_on_pytorch(run):
    code, said, _ = run("--tokens", 12, "--prompt", "Once upon a time", "--prompt", "Return the")
    assert code == 0 and said.startswith("small: ") and "rmsnorm_torch" in said
    assert "Once upon a time there was" in said and "\nReturn the" in said
    assert "same tokens" not in said            # it would be compared with itself


def test_a_model_with_states(run):
    code, said, _ = run("--model", TWINS / "hybrid", "--tokens", 12)
    assert code == 0 and said.startswith("hybrid: 529,") and "paged_attention_torch" in said
    assert "Once upon a time there was" in said


def test_whose_kernels_run_is_said():
    sources = {"matmul": "matmul_cpu", "rope": "rope_torch", "swiglu": "swiglu", "rmsnorm": "mine"}
    rows = [" ".join(row.split()) for row in generate.whose(sources, sources)]
    assert rows[:4] == ["matmul cpu matmul_cpu", "rope torch rope_torch",
                        "swiglu reference swiglu", "rmsnorm mine"]


def test_only_what_the_model_uses_is_listed():
    model = load(NANO, dtype=torch.float32)
    assert generate.used(model) == ["rmsnorm", "matmul", "rope", "write_kv", "paged_attention",
                                    "swiglu"]


# ---- tokens


@pytest.mark.parametrize("back_end", ["triton", "cuda"])
def test_back_ends_agree(back_end):
    if device.gpu() is None:
        device.use_simulator()
    want = list(generate.continuation(load(NANO, dtype=torch.float32), PROMPT, 4))
    got = list(generate.continuation(load(NANO, kernels(back_end), torch.float32), PROMPT, 4))
    assert [token for token, _ in got] == [token for token, _ in want]
    assert max((a - b).abs().max() for (_, a), (_, b) in zip(got, want, strict=True)) < 1e-4


def test_it_stops_where_the_text_ends():
    model = load(NANO, dtype=torch.float32)
    tokens = [token for token, _ in generate.continuation(model, PROMPT, 200)]
    assert tokens.index(model.config.ends[0]) == len(tokens) - 1


def scores(*values):
    return torch.tensor(values)


@pytest.mark.parametrize("own, want", [
    ([0, 1], None), ([0, 2], (1, pytest.approx(0.25))), ([1], (0, pytest.approx(4.0)))])
def test_where_tokens_part_and_by_what_gap(own, want):
    oracle = [(0, scores(5.0, 1.0, 0.0)), (1, scores(0.0, 1.0, 0.75))]
    assert generate.differ([(token, None) for token in own], oracle) == want


@pytest.fixture
def broken(monkeypatch):
    """broken(swiglu): the command's table, PyTorch's but for this function."""
    right = kernels("torch")

    def one(swiglu):
        wrong = replace(right, swiglu=swiglu)
        monkeypatch.setattr(generate, "kernels",
                            lambda name, desk=None: right if name == "torch" else wrong)
    return one


def test_a_wrong_kernel_is_told(run, broken):
    broken(lambda gate, up: up)
    code, said, _ = run("--kernels", "triton", "--tokens", 5)
    assert code == 1 and "more than rounding explains: a kernel is wrong" in said


def test_a_kernel_that_fails_is_one_line(run, broken):
    def swiglu(gate, up):
        raise simulator.KernelError("out-of-bounds write\nin line 3")

    broken(swiglu)
    code, _, wrong = run("--kernels", "triton")
    assert code == 2 and wrong == "generate: a kernel fails: out-of-bounds write in line 3\n"


def test_a_letter_of_several_tokens_is_written_whole():
    class Bytes:
        def decode(self, tokens):
            return bytes(tokens).decode("utf-8", "replace")

    text = "ü🦊.".encode()
    assert list(generate.pieces(Bytes(), b"a", text)) == ["ü", "🦊", ".", ""]
    assert list(generate.pieces(Bytes(), b"a", text[:4])) == ["ü", "\N{REPLACEMENT CHARACTER}"]


# ---- bad input


BAD = {
    "back end": (["--kernels", "metal"], "'metal', expected torch, triton, cuda or mine"),
    "no folder": (["--model", "no such"], "no such/config.json is missing"),
    "a file": (["--model", "README.md"], "README.md/config.json is not readable"),
    "no tokenizer": (["--model", "NANO"], "tokenizer.json is missing"),
    "empty prompt": (["--prompt", ""], "--prompt is empty, expected a text"),
    "no tokens": (["--tokens", "0"], "--tokens"),
    "tokens in words": (["--tokens", "ten"], "--tokens"),
    "no room": (["--prompt", "the " * 600], "the model has room for 512"),
    "too many": (["--tokens", "600"], "the model has room for 512"),
    "not ASCII": (["--model", str(NANO), "--prompt", "é"], "expected ASCII"),
    "no desk": (["--kernels", "mine", "--desk", "no such"], "run `lab start`"),
    "unknown option": (["--heat", "1"], "--heat"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_2(run, monkeypatch, tmp_path, case):
    words, says = BAD[case]
    if case == "no tokenizer":              # the nano model's files elsewhere
        for path in (NANO / "config.json", NANO / "weights.npz"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
        words = ["--model", tmp_path]
    code, said, wrong = run(*words)
    assert code == 2 and said == "" and says in wrong and len(wrong.splitlines()) == 1, wrong


def test_as_a_command():
    done = subprocess.run([sys.executable, "-m", "layer2_graph.generate", "--tokens", "3"],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and "3 tokens: " in done.stdout
