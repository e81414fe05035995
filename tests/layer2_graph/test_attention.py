"""Caches of g11 hold what `cache_numbers` counts; models with latents; the twins of attention."""

import hashlib
import json
from dataclasses import replace

import pytest
import torch

from layer1_kernels import kernels
from layer2_graph import (
    Config,
    LatentCache,
    LatentLlama,
    LatentPages,
    Llama,
    ModelError,
    PagedCache,
    Tokenizer,
    WindowCache,
    cache_numbers,
    cache_of,
    decode_latent,
    load,
    load_latent,
    model_of,
    pool_heads,
    read_config,
    window_mask,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.models import TWINS
from layer2_graph.small.corpus import BEGIN, stories
from layer2_graph.twins.attention import ATTENTIONS, A, W
from layer2_graph.twins.model import Twin
from layer2_graph.twins.train import RUNS, STEPS, TWIN_VARIANTS, B, T, judge, tokens_of
from layer2_graph.twins.uptrain import WAYS, converted
from tests.layer2_graph.twin_training import check_that_it_trains, one_thread

TOKENS = torch.arange(3, 53) * 37 % 2048


def run(model, cache, prompt):
    """Scores of all tokens, the first `prompt` of them in one step: (T, V)."""
    scores = [model.forward(cache.step([TOKENS[:prompt].tolist()]), cache, every=True)]
    scores += [model.forward(cache.step([[int(t)]]), cache, every=True) for t in TOKENS[prompt:]]
    return torch.cat(scores)


def as_llama(kind, twin, **fields):
    m = Config(**{"L": 3, "C": 96, "H": 6, "G": 6, "D": 16, "F": 256, "V": 2048, "eps": 1e-5,
                  "theta": 1e4, "room": 256, "tied": True} | fields)
    weights = {name: w.detach() for name, w in twin.state_dict().items()}
    assert {name: tuple(w.shape) for name, w in weights.items()} == dict(shapes(m))
    return kind(m, weights, kernels("torch"))


# ---- caches


@pytest.mark.parametrize("N", [1, 20, 37])
def test_caches_hold_what_is_counted(N):
    """The numbers that are not 0 after a prompt of N tokens."""
    letters = {"H": 6, "G": 6, "D": 16, "R": 32, "E": 16, "N": N, "W": 16, "A": 4}
    plain = as_llama(Llama, Twin(TWIN_VARIANTS["dense"]))
    latent = as_llama(LatentLlama, Twin(ATTENTIONS["latent"]), F=251, latent=32, rotated=16)
    for kind, model, cache in (("mha", plain, PagedCache(plain.config, 1, 64)),
                               ("window", plain, WindowCache(plain.config, 16, 4)),
                               ("mla", latent, LatentCache(latent.config, 1, 64))):
        model.forward(cache.step([TOKENS[:N].tolist()]), cache)
        count = sum(int((x[0] != 0).sum()) for x in (cache.k, cache.v))
        assert count == cache_numbers(kind, **letters), kind


@pytest.mark.parametrize("prompt", [1, 3, 20, 40, 50])
def test_a_ring_gives_what_a_mask_gives(prompt):
    twin = Twin(ATTENTIONS["window"])
    model = as_llama(Llama, twin)
    with torch.no_grad():
        want = twin(TOKENS[None])[0]
    assert (run(model, WindowCache(model.config, W, A), prompt) - want).abs().max() < 1e-4
    assert (run(model, PagedCache(model.config, 1, 64), prompt) - want).abs().max() > 1e-3


def test_a_ring_takes_a_prompt_first():
    config = read_config(TWINS / "dense")
    with pytest.raises(ModelError, match=f"a context of {config.room + 1} tokens"):
        WindowCache(config, 8, 0).step([[1] * (config.room + 1)])
    cache = WindowCache(config, 8, 0)
    cache.step([[1, 2, 3]])
    with pytest.raises(ValueError, match="2 new tokens after 3, expected 1"):
        cache.step([[1, 2]])


@pytest.mark.parametrize("prompt", [1, 17, 50])
def test_latents_absorbed_give_what_they_give_expanded(prompt):
    twin = Twin(ATTENTIONS["latent"])
    for w in twin.parameters():
        if w.ndim == 1:                             # norms that do something
            torch.nn.init.uniform_(w, 0.5, 2)
    model = as_llama(LatentLlama, twin, F=251, latent=32, rotated=16)
    with torch.no_grad():
        want = twin(TOKENS[None])[0]
    assert (run(model, LatentCache(model.config, 1, 64), prompt) - want).abs().max() < 1e-4


def test_latent_pages_are_copied_read_and_written():
    m = replace(read_config(TWINS / "latent"), L=2)
    pages = LatentPages(m, 4, 8)
    pages.k.normal_()
    before = pages.k.clone()
    pages.copy({0: 1, 1: 0})
    assert torch.equal(pages.k[:, [0, 1]], before[:, [1, 0]])
    k, v = pages.read([2, 3])
    assert k.shape == (2, 2, 8, 1, 48) and not v.numel()
    pages.write([1, 0, 3], k, v)
    assert torch.equal(pages.k[:, [1, 0]], before[:, [2, 3]])
    assert torch.equal(pages.k[:, 3], before[:, 3])


# ---- folders and words


def test_a_folder_with_latents_is_read():
    m = read_config(TWINS / "latent")
    assert (m.latent, m.rotated, m.scale) == (32, 16, 32 ** -0.5)
    model = load_latent(TWINS / "latent", dtype=torch.float32)
    assert type(model_of(m, model.weights, model.ops)) is LatentLlama
    assert type(cache_of(model, 1, 8)) is LatentCache
    with pytest.raises(ModelError, match="expected one with latents"):
        load_latent(TWINS / "dense")


@pytest.mark.parametrize("entry, words", [
    ({"kv_lora_rank": None}, "kv_lora_rank is None, expected a whole number above 0"),
    ({"kv_lora_rank": 0}, "kv_lora_rank is 0"),
    ({"kv_lora_rank": True}, "kv_lora_rank is True"),
    ({"qk_rope_head_dim": 7}, "qk_rope_head_dim is 7, expected a whole number above 0, even"),
    ({"q_lora_rank": 64}, "q_lora_rank"),
    ({"sliding_window": 64}, "sliding_window is 64, expected null"),
    ({"architectures": ["DeepseekV3ForCausalLM"]}, "found DeepseekV3ForCausalLM"),
    ({"architectures": ["LlamaForCausalLM"]}, "kv_lora_rank"),
])
def test_a_wrong_entry_is_named(tmp_path, entry, words):
    entries = json.loads((TWINS / "latent" / "config.json").read_text("utf-8")) | entry
    (tmp_path / "config.json").write_text(json.dumps(entries))
    with pytest.raises(ModelError, match=words):
        read_config(tmp_path)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="24 rows of 6 heads into 4 groups"):
        pool_heads(torch.zeros(24, 10), 6, 4)
    with pytest.raises(ValueError, match="W 0"):
        window_mask(2, 4, 0, 1)
    with pytest.raises(ValueError, match="T 5, N 4"):
        window_mask(5, 4, 2, 1)
    q, turned, w = torch.zeros(2, 6, 16), torch.zeros(2, 6, 20), torch.zeros(6, 16, 32)
    whole = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32), torch.ones(1)
    with pytest.raises(ValueError, match=r"hold \(1, 48\) numbers a slot, expected .* \(1, 52\)"):
        decode_latent(q, turned, torch.zeros(3, 16, 1, 48), *whole, w, w, kernels("torch"))
    with pytest.raises(ValueError, match=r"w_k has shape \(6, 32, 16\), expected .* \(6, 16, 16\)"):
        decode_latent(q, turned, torch.zeros(3, 16, 1, 36), *whole, w.mT, w, kernels("torch"))


# ---- twins


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_twin_of_attention_trains(name):
    torch.manual_seed(0)
    twin = Twin(ATTENTIONS[name])
    whole = sum(w.numel() for w in Twin(TWIN_VARIANTS["dense"]).parameters())
    assert abs(sum(w.numel() for w in twin.parameters()) / whole - 1) < 0.001
    check_that_it_trains(twin, TOKENS, 2)


def test_the_shipped_twin_is_what_its_run_says():
    row = json.loads((RUNS / "attention" / "latent-0.json").read_text("utf-8"))
    path = TWINS / "latent" / "model.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == row["sha256"]
    assert path.stat().st_size < 1_200_000 and row["step"] == 500
    model = load_latent(TWINS / "latent", dtype=torch.float32)
    text = tokens_of("held out")[0][:200]
    cache = LatentCache(model.config, 1, 256)
    logits = model.forward(cache.step([text[:-1].tolist()]), cache, every=True)
    loss = torch.nn.functional.cross_entropy(logits, text[1:]).exp()
    assert abs(loss / row["perplexity"]["500"] - 1) < 0.3       # one story of 350


def test_converted_twins_begin_where_their_rows_do():
    """On some of the stories; the mean of heads begins worse than the first head."""
    some = tokens_of("held out")[:20]
    scores = {name: judge(converted(WAYS[name]), some)[0] for name in ("mean", "first")}
    for name, score in scores.items():
        row = json.loads((RUNS / "attention" / f"pooled_{name}-1.json").read_text("utf-8"))
        assert abs(score / row["perplexity"]["0"] - 1) < 0.2
    assert scores["first"] < scores["mean"]


def test_what_the_lesson_says_of_the_runs():
    runs = {path.stem: json.loads(path.read_text("utf-8"))["perplexity"]
            for path in [*(RUNS / "attention").glob("*.json"), *RUNS.glob("dense-?.json")]}

    def scores(name, step, seeds=range(3)):
        return [runs[f"{name}-{seed}"][step] for seed in seeds]

    def higher(name):
        return round(100 * (sum(scores(name, "500")) / sum(scores("dense", "500")) - 1))

    dense = scores("dense", "500")
    assert [higher(name) for name in ("gqa", "mqa", "latent")] == [3, 4, 6]
    for name in ("mqa", "latent"):
        assert min(scores(name, "500")) > max(dense)
    assert min(dense) < min(scores("gqa", "500")) < max(dense)
    assert round(runs["gqa-0"]["500"] / runs["dense-0"]["500"], 2) == 1.07
    assert min(scores("latent", "500")) < min(scores("mqa", "500"))
    assert max(scores("latent", "500")) > max(scores("mqa", "500"))
    window, early = scores("window", "250"), scores("dense", "250")
    assert [round(100 * (1 - a / b)) for a, b in ((max(window), min(early)),
                                                  (min(window), max(early)))] == [6, 9]
    assert min(scores("window", "500")) < min(dense) < max(scores("window", "500")) < max(dense)

    mean, first, random = ({step: scores(f"pooled_{way}", step, range(1, 4))
                            for step in ("0", "100")} for way in ("mean", "first", "random"))
    assert max(first["0"]) < min(mean["0"]) and max(mean["0"]) < min(random["0"])
    assert max(mean["100"]) < min(first["100"]) and max(first["100"]) < min(random["100"])
    assert {round(score / runs["dense-0"]["1500"], 2) for score in mean["100"]} == {1.18, 1.19}


def test_what_the_lesson_says_of_the_twins():
    """Their text, steps, weights and caches; g12 and g13 say the first two as well."""
    assert len(tokens_of("held out")) == 350
    assert (B * T, STEPS, STEPS / 100, STEPS / 500) == (1024, 1500, 15, 3)
    runs = [json.loads(path.read_text("utf-8")) for name in ("gqa", "latent", "mqa", "window")
            for path in (RUNS / "attention").glob(f"{name}-?.json")]
    assert len(runs) == 12 and {run["step"] for run in runs} == {500}
    assert all(abs(run["weights"] / 529_000 - 1) < 0.001 for run in runs)
    sizes = {"H": 6, "D": 16, "R": 32, "E": 16, "N": 256, "W": W, "A": A}
    assert (W, A) == (32, 4)
    whole, few, window = (cache_numbers(kind, G=G, **sizes) for kind, G in (
        ("mha", 6), ("gqa", 2), ("window", 6)))
    assert whole / few == 3 and round(whole / window) == 7


@one_thread()
def test_what_the_lesson_says_of_a_window():
    """Of the dense twin and every twelfth story: four sinks gain 2 % at 8, next to nothing from
    16 on; 32 tokens and 4 sinks lose 3 %."""
    folder = TWINS / "dense"
    dense = load(folder, dtype=torch.float32)
    words = Tokenizer(folder, dense.config)
    judged = [words.encode(text.removeprefix(BEGIN))[:256] for text in stories("held out")[::12]]

    def score(*window):
        loss = count = 0
        for tokens in judged:
            cache = (WindowCache(dense.config, *window) if window
                     else PagedCache(dense.config, 1, 256))
            logits = dense.forward(cache.step([tokens[:-1]]), cache, every=True)
            loss += torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]),
                                                      reduction="sum")
            count += len(tokens) - 1
        return float((loss / count).exp())

    assert score(8, 0) / score(8, 4) - 1 == pytest.approx(0.02, abs=0.005)
    assert 0 < score(16, 0) / score(16, 4) - 1 < 0.005
    assert score(32, 4) / score() - 1 == pytest.approx(0.03, abs=0.005)
