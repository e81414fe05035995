"""An engine on each back end, under faults, and in a soak of random steps."""

import re
from statistics import mean

import pytest
import torch

from day01_roofline import ACCELERATORS, LLAMAS, decode_costs
from day02_overview import NANO
from lab import course, device, simulator
from layer1_kernels import kernels
from layer2_graph import PagedCache, Tokenizer, greedy, load
from layer2_graph.generate import ROUNDING
from layer2_graph.models import SMALL
from layer3_system import (
    BlockPool,
    Broken,
    ByteTokenizer,
    Engine,
    MockLlama,
    Pages,
    PrefixPool,
    Recorder,
    SamplingParams,
    Scheduler,
)
from layer3_system.bench.soak import KINDS, RECORD, alone, line, soak
from layer3_system.s01_request import Detokenizer
from tests.layer2_graph.test_folders import write, write_chain
from tests.layer3_system.engine_cases import (
    S,
    connected,
    engine,
    params,
    prefix_pool,
    run,
    same_as_alone,
)


@pytest.mark.parametrize("table", ["triton", "cuda"])
def test_case_24_on_each_back_end(table, request):
    """The kernels of a back end, in the simulator without a GPU: PyTorch's tokens, up to a tie."""
    device.use_best()
    request.addfinalizer(simulator.deactivate_triton if device.gpu() is None else lambda: None)
    nano = load(NANO, kernels(table), torch.float32, device.torch_device())
    oracle = load(NANO, dtype=torch.float32)
    prompts = [[10, 97, 32, 119], [10] + list(range(97, 110)), [10, 116]]
    for chunk, P in ((None, 32), (5, 5)):
        pages = prefix_pool(P, 16)
        e = connected(nano, ByteTokenizer(), pages, Scheduler(pages, 3, 16, chunk),
                      sample=nano.ops.sample)
        answers = [e.submit(p, params(4, ignore_eos=True))[0] for p in prompts]
        run(e)
        for answer, prompt in zip(answers, prompts, strict=True):
            own = greedy(oracle, [prompt], 4)[0]
            if answer.output != own:
                at = next(i for i in range(4) if answer.output[i] != own[i])
                assert gap(oracle, prompt + own[:at], own[at], answer.output[at]) < ROUNDING


def gap(model, context, token, other):
    """How much a model prefers a token to another after a context."""
    cache = PagedCache(model.config, 1, len(context))
    z = model.forward(cache.step([context]), cache)[0]
    return float(z[token] - z[other])


# ---- faults


class Cracked(MockLlama):
    """A model whose kernel raises where a token is 13."""

    def forward(self, step, cache, every=False):
        if (step.tokens == 13).any():
            raise FloatingPointError("unlucky")
        return super().forward(step, cache, every)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_kernel_that_raises(overlap):
    """That request fails and says why; the others go on, and no page is lost."""
    pool = prefix_pool(64, S)
    e = connected(Cracked(), ByteTokenizer(), pool, Scheduler(pool, 8, 64), overlap=overlap)
    asked = params(4, ignore_eos=True, min_tokens=4)
    good, bad, late = [e.submit([n] * 5, asked)[0] for n in (1, 13, 2)]
    outputs = run(e)
    assert (bad.reason, bad.error) == ("error", "FloatingPointError: unlucky")
    assert [o.reason for o in outputs if o.request is bad] == ["error"] and not e.pool.used
    for r in (good, late):
        assert 13 in alone(r) or r.output == alone(r)
        assert r.reason == ("error" if 13 in alone(r)[:-1] else "length")


def test_scores_that_are_no_numbers():
    e = engine(scores=lambda context, V: torch.full((V,), float("nan") if context[0] == 1 else 0.0))
    bad, good = [e.submit([n] * 5, params(2))[0] for n in (1, 2)]
    outputs = [(o.tokens, o.reason) for o in run(e) if o.request is bad]
    assert outputs == [([], "error")] and not e.pool.used
    assert bad.reason == "error" and "not finite" in bad.error and good.reason == "length"


def test_a_text_that_cannot_be_decoded_ends_its_own_request():
    class Torn(ByteTokenizer):
        def decode(self, tokens):
            if 13 in tokens:
                raise ValueError("no text")
            return super().decode(tokens)

    pool = prefix_pool(64, S)
    scores = lambda context, V: torch.eye(V)[13 if context[0] == 1 else 65]     # noqa: E731
    e = connected(MockLlama(scores=scores), Torn(), pool, Scheduler(pool, 8, 64))
    bad, good = [e.submit([n] * 5, params(3))[0] for n in (1, 2)]
    run(e)
    assert (bad.reason, bad.error) == ("error", "ValueError: no text")
    assert good.output == [65] * 3 and not e.pool.used


def test_a_mark_amid_an_answer_costs_no_space():
    """As tokenizers of SentencePiece have it: a text's first space is not shown."""
    words = {1: "▁Hello", 2: "▁world"}

    def decode(tokens):
        return "".join(words.get(t, "") for t in tokens).replace("▁", " ").removeprefix(" ")

    letters = Detokenizer(decode, [1])
    assert [letters.add(token) for token in (1, 0, 0, 2)] == [" Hello", "", "", " world"]


# ---- a cache that is the model's own


class Latent(MockLlama):
    """A model that makes its own cache."""

    def make_cache(self, *sizes):
        self.sizes = sizes
        self.cache = Pages(self.config, *sizes)
        return self.cache

    def forward(self, batch, cache, every=False):
        assert cache is self.cache
        return super().forward(batch, cache, every)


def test_a_model_may_make_its_own_cache():
    """Of the pool's pages, the weights' dtype and device; forks and preemptions work on it."""
    model, pool = Latent(), BlockPool(7, S)
    e = Engine(model, ByteTokenizer(), pool, Scheduler(pool))
    answers = [*e.submit([1, 2, 3, 4, 5], params(ignore_eos=True, n=2)),
               *e.submit([6] * 9, params(ignore_eos=True))]
    run(e)
    assert e.pages is model.cache
    assert model.sizes == (7, S, model.embedding.dtype, model.embedding.device)
    assert any(r.preemptions for r in answers)
    same_as_alone(*answers)


def test_an_answer_ends_at_a_token_that_only_generation_config_names(tmp_path):
    write_chain(tmp_path, 3, 4, 5, 7, 8, 9, eos_token_id=1)
    write(tmp_path / "generation_config.json", {"eos_token_id": [1, 7]})
    pool = BlockPool(7, S)
    e = Engine(load(tmp_path), ByteTokenizer(), pool, Scheduler(pool))
    [answer] = e.submit([3], params())
    run(e)
    assert (answer.output, answer.reason) == ([4, 5, 7], "stop")


# ---- the soak


@pytest.mark.parametrize("kind", KINDS)
def test_random_steps(kind):
    """Random requests, aborts and steps; every invariant after each; then every answer."""
    counts = soak(kind, 300)
    assert min(counts[name] for name in ("abort", "stop", "length")) > 0, counts
    assert counts["pages in use at the end"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_soak(kind):
    """The same, thousands of steps: the counts are those in benchmarks/soak.txt."""
    counts = soak(kind)
    assert min(counts[name] for name in ("abort", "stop", "length", "preempted")) > 10, counts
    assert (counts["from the cache"] > 100) == (kind != "no prefix cache")
    assert counts["pages in use at the end"] == 0
    assert line(kind, counts) in RECORD.read_text("utf-8").splitlines()


def test_a_soak_sees_what_breaks(monkeypatch):
    """A page that is forgotten, and a token that is not the sequence's own."""
    with monkeypatch.context() as patched:
        patched.setattr(PrefixPool, "release", lambda self, table: table.clear())
        with pytest.raises(Broken):
            soak("plain", 100)
    monkeypatch.setattr("layer3_system.bench.soak.alone", lambda request, scores: [0])
    with pytest.raises(Broken, match="request-"):
        soak("plain", 100)


# ---- what s07 says of its example and of an H100

GIRL = "Once upon a time there was a little girl named Lily. She"
ASKS = {"a": (GIRL + " had a red ball", 30), "b": ("Tom saw a dog", 24),
        "c": (GIRL + " went to the park with her mom. They saw a big tree", 16),
        "d": ("The cat", 40), "e": (GIRL + " was sad", 12), "f": ("One day", 20)}


@pytest.fixture(scope="module")
def one_thread():
    """Matrices this small gain nothing from a second one, which other work may hold up."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def history(one_thread):
    """The notes of s07's six requests on 15 pages of 8 slots."""
    model = load(SMALL, dtype=torch.float32)
    words = Tokenizer(SMALL, model.config)
    pool = PrefixPool(15, 8)
    recorder = Recorder(Engine(model, words, pool, Scheduler(pool, max_seqs=8, budget=24)),
                        pages=True)
    requests = {name: recorder.engine.submit(words.encode(text), SamplingParams(
        max_tokens=length, temperature=0, ignore_eos=True), id=name)[0]
        for name, (text, length) in ASKS.items()}
    recorder.run(9)
    recorder.engine.abort([requests["d"]])
    return recorder.run()


def test_step_0_of_s07_ends_in_bs_prompt_and_two_pages_are_shared(history):
    counts = {name: sum(note["prompts"].get(name, 0) for note in history) for name in "abce"}
    assert history[0]["prompts"] == {"a": 20, "b": 4} and counts["b"] == 7
    assert history[0]["waiting"] == ["c", "d", "e", "f"]
    assert (counts["c"], counts["e"]) == (16, 2)            # of 32 and of 18
    pages = history[3]["pages"]
    assert all(pages["requests"][name]["table"][:2] == [0, 1] for name in "ace")
    assert pages["refs"][:2] == [3, 3]


def test_f_of_s07_waits_four_steps_and_computes_6_of_14_tokens_again(history):
    assert [i for i, note in enumerate(history) if note["preempted"]] == [13]
    assert history[13]["preempted"] == ["f"]
    assert [i for i in range(2, 25) if "f" not in history[i]["counts"]] == [13, 14, 15, 16]
    written = sum(len(note["new"].get("f", [])) for note in history[:13])
    assert (3 + written, history[17]["counts"]["f"]) == (14, 6)
    table = history[17]["pages"]["requests"]["f"]["table"]
    assert table[0] in history[16]["pages"]["remembered"], "8 of them were still in a page"


def test_the_small_model_has_2_million_parameters_in_8_megabytes():
    weights = load(SMALL, dtype=torch.float32).weights.values()
    assert round(sum(w.numel() for w in weights) / 1e6, 2) == 1.97
    assert round(sum(w.nbytes for w in weights) / 1e6) == 8


def test_a_step_of_an_8b_model_on_an_h100_takes_4_5_ms():
    _, weights, _ = decode_costs(LLAMAS["Llama-3.1-8B"], 1, 2)
    h100 = next(machine for machine in ACCELERATORS if machine.name == "NVIDIA H100 SXM")
    assert round(weights / 1e9, 1) == 15.0
    assert round(1e3 * weights / h100.bandwidth, 1) == 4.5


def test_the_four_functions_of_s07_have_about_ten_lines():
    stubs = "".join(course.find("s07_engine").stubs.values())
    lines = dict(re.findall(r"(\w+): about (\d+) lines", stubs))
    counts = [int(lines[name]) for name in ("build_step", "to_draw", "run_step", "end_request")]
    assert mean(counts) == pytest.approx(10, abs=1) and max(counts) < 15
