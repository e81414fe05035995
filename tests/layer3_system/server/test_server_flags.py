"""Flags of `lab serve` that change how the engine works, and never what it writes."""

from types import SimpleNamespace

import pytest
import torch

from day02_overview import NANO
from layer1_kernels import kernels
from layer3_system import SamplingParams
from layer3_system.engine.lengths import StepCost
from layer3_system.s01_request import sample_rows
from layer3_system.server import assembly, cli
from layer3_system.server.metrics import Metrics
from layer3_system.testing.mock_llama import ByteTokenizer
from tests.layer3_system.repeats import Repeats

PROMPTS = (b"the cat and the hat and the cat and the", b"abcabcabcabc", b"x")


@pytest.fixture
def cheap_guesses(monkeypatch):
    """What guesses cost, in place of a measurement, which other work may change."""
    monkeypatch.setattr("layer3_system.server.drafters.measured_cost",
                        lambda *_: StepCost(1, 0.01, 0.01))


def answers(**flags):
    """([[token]] of some requests, how many steps they took)"""
    model = Repeats()
    own = {"sample_rows": sample_rows}
    engine = assembly.build(model, ByteTokenizer(), None, own, 64, **flags)
    requests = [r for i, prompt in enumerate(PROMPTS) for temperature in (0, 0.9)
                for r in engine.submit(list(prompt), SamplingParams(
                    max_tokens=40, seed=i, temperature=temperature, ignore_eos=True, n=2))]
    while engine.busy:
        engine.step()
    return [r.output for r in requests], model.steps


def test_guesses_save_steps_and_change_no_token(cheap_guesses):
    (want, steps), (tokens, fewer) = answers(), answers(draft="lookup", guesses=3)
    assert tokens == want and fewer < steps


def test_steps_launched_ahead_change_no_token():
    assert answers(overlap=True)[0] == answers()[0]


@pytest.mark.parametrize("words, most, overlap", [
    ([], None, False), (["--draft", "lookup", "--guesses", 3], 3, False),
    (["--draft", "shipped"], 4, False), (["--async-scheduling"], None, True)])
def test_the_flags_reach_the_engine(command, monkeypatch, words, most, overlap):
    engines = []
    monkeypatch.setattr(cli, "listener_of", lambda engine, *_: engines.append(engine))
    monkeypatch.setattr(cli, "run", lambda *_: None)
    code, _, wrong = command(cli.app, "serve", "--port", 0, *words)
    assert not code, wrong
    drafter = engines[0].drafter
    assert (drafter.lengths.most if drafter else None) == most and engines[0].overlap == overlap


def test_both_at_once_are_refused(command):
    code, _, wrong = command(cli.app, "serve", "--draft", "lookup", "--async-scheduling")
    assert code == 2 and "exclude each other" in wrong


@pytest.mark.parametrize("dtype, is_slow", [("float32", False), ("bfloat16", True)])
def test_a_dtype_that_is_slow_here_is_said(command, monkeypatch, dtype, is_slow):
    monkeypatch.setattr(cli, "run", lambda *_: None)
    monkeypatch.setattr(assembly.device, "torch_device", lambda: "cpu")
    code, said, wrong = command(cli.app, "serve", "--port", 0, "--dtype", dtype)
    assert not code, wrong
    assert ("without --dtype it answers several times as fast" in said) == is_slow


@pytest.mark.parametrize("word, what", [
    ("none", "--draft none: expected lookup, shipped or the folder of a model"),
    (str(NANO), "a vocabulary of 128 tokens, expected 2048, the model's own")])
def test_a_draft_that_does_not_fit_is_refused(command, word, what):
    code, _, wrong = command(cli.app, "serve", "--port", 0, "--draft", word)
    assert code == 2 and what in wrong


def test_ranks_on_gpus_are_not_told_that_a_cpu_is_slow():
    """Their weights come from this CPU."""
    weights = {"model.embed_tokens.weight": torch.zeros(2, 2)}
    setup = SimpleNamespace(tp=2, called="m", dtype="bfloat16", simulated=lambda: False)
    for place, is_slow in (("cuda", False), ("cpu", True)):
        summary = assembly.about(setup, SimpleNamespace(ops=kernels("torch")),
                                 {"sample_rows": None}, weights, [], place)
        assert ("is slow on a CPU" in summary) == is_slow


def test_guesses_are_counted_with_vllms_names(cheap_guesses):
    engine = assembly.build(Repeats(), ByteTokenizer(), None, {"sample_rows": sample_rows}, 64,
                            draft="lookup", guesses=3)
    metrics = Metrics(engine, "m")
    engine.submit(list(PROMPTS[1]), SamplingParams(40, temperature=0, ignore_eos=True))
    while engine.busy:
        metrics.stepped(engine, engine.step())
    name = 'vllm:spec_decode_num_{}_total{{model_name="m"{}}} {:.1f}\n'
    drafter = engine.drafter
    text = metrics.text().decode()
    assert name.format("drafts", "", drafter.drafts) in text and drafter.drafts
    assert name.format("draft_tokens", "", drafter.guesses) in text
    assert name.format("accepted_tokens", "", drafter.hits.total()) in text and drafter.hits[0]
    assert name.format("accepted_tokens_per_pos", ',position="0"', drafter.hits[0]) in text
