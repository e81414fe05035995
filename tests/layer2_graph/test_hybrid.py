"""Layers with a state: the model that serves against the one that trains, and its cache."""

import hashlib
import json
from dataclasses import replace

import pytest
import torch

from layer1_kernels import kernels
from layer2_graph import (
    HybridCache,
    HybridLlama,
    ModelError,
    PagedCache,
    SeatedBatch,
    StateCache,
    cache_of,
    load,
    load_hybrid,
    model_of,
    read_config,
    read_weights,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.models import TWINS
from layer2_graph.twins import recall
from layer2_graph.twins.linear import CHUNK, LINEARS
from layer2_graph.twins.model import Twin
from layer2_graph.twins.train import RUNS, judge, tokens_of
from tests.layer2_graph.twin_training import check_that_it_trains, one_thread

LAYERS = {"linear": (0, 1, 2), "hybrid": (0, 2), "attention": ()}


def both(name, seed=0):
    """(twin, the HybridLlama of its weights), random, in float32."""
    torch.manual_seed(seed)
    twin = Twin(LINEARS[name])
    F = len(twin.model.layers[0].mlp.gate_proj.weight)
    config = replace(read_config(TWINS / "dense"), F=F, linear=LAYERS[name], N=16, W=4)
    weights = {key: weight.detach() for key, weight in twin.named_parameters()}
    assert {key: tuple(weight.shape) for key, weight in weights.items()} == dict(shapes(config))
    return twin, HybridLlama(config, weights, kernels("torch"))


@pytest.mark.parametrize("name", LINEARS)
@pytest.mark.parametrize("cuts", [(40,), (1, 2, 37), (33, *[1] * 7)])
def test_the_model_gives_the_scores_of_the_twin(name, cuts):
    """Whole, in steps, and token by token; a prompt may be shorter than the convolution."""
    twin, model = both(name)
    texts = torch.randint(2, 2048, (2, 40)).tolist()
    cache = HybridCache(model.config, 2, 48)
    rows = [[], []]
    at = 0
    for n in cuts:
        batch = cache.step([text[at:at + n] for text in texts])
        scores = model.forward(batch, cache, every=True)
        for mine, part in zip(rows, scores.split(n), strict=True):
            mine.append(part)
        at += n
    with torch.no_grad():
        want = twin(torch.tensor(texts))
    assert (torch.stack([torch.cat(mine) for mine in rows]) - want).abs().max() < 1e-4


def test_sequences_of_different_lengths_do_not_meet():
    _, model = both("hybrid")
    texts = [[5, 6, 7], [8], [9] * 20]
    cache = HybridCache(model.config, 3, 32)
    together = model.forward(cache.step(texts), cache)
    later = model.forward(cache.step([[3], [], [4, 5]]), cache, every=True)
    for b, (text, more) in enumerate(zip(texts, ([3], [], [4, 5]), strict=True)):
        alone = HybridCache(model.config, 1, 32)
        assert torch.allclose(model.forward(alone.step([text]), alone), together[b:b + 1],
                              atol=1e-5)
        if more:
            begin = 0 if b == 0 else 1
            own = model.forward(alone.step([more]), alone, every=True)
            assert torch.allclose(own, later[begin:begin + len(more)], atol=1e-5)


def test_the_cache_holds_pages_of_layers_that_attend_alone():
    _, model = both("hybrid")
    m = model.config
    cache = HybridCache(m, 2, 32)
    assert cache.k.shape[0] == 1
    assert cache.state.states.shape == (2, 2, m.H, 16, 16)
    assert cache.state.inputs.shape == (2, 2, 3, 3 * m.H * 16)


def test_a_step_that_fails_leaves_states_as_they_were():
    _, model = both("hybrid")
    cache = HybridCache(model.config, 1, 32)
    model.forward(cache.step([[5, 6, 7]]), cache)
    batch = cache.step([[8]])
    model.ops = replace(model.ops, paged_attention=None)
    before = [x.clone() for x in (cache.state.states, cache.state.inputs)]
    with pytest.raises(TypeError):
        model.forward(batch, cache)
    assert all(map(torch.equal, before, (cache.state.states, cache.state.inputs)))


def test_a_batch_without_seats_is_refused():
    _, model = both("linear")
    batch = PagedCache(model.config, 1, 32).step([[5]])
    with pytest.raises(ValueError, match="a batch without seats"):
        model.forward(batch, HybridCache(model.config, 1, 32))


def test_a_seat_is_empty_for_who_begins():
    _, model = both("linear")
    state = StateCache(model.config, 3)
    state.states += 1
    state.inputs += 1
    cache = HybridCache(model.config, 2, 32)
    cache.step([[5, 6], []])
    state.begin(SeatedBatch(cache.step([[7], [8]]), torch.tensor([2, 0])))
    assert state.states[:, 0].eq(0).all() and state.states[:, 1:].eq(1).all()
    assert state.inputs[:, 0].eq(0).all() and state.inputs[:, 1:].eq(1).all()


# ---- the folder


def test_a_folder_with_states_is_read():
    m = read_config(TWINS / "hybrid")
    assert (m.linear, m.N, m.W, m.L, m.pages().L) == ((0, 2), 16, 4, 3, 1)
    model = load_hybrid(TWINS / "hybrid", dtype=torch.float32)
    assert type(model_of(m, model.weights, model.ops)) is HybridLlama
    assert type(cache_of(model, 1, 8)) is HybridCache
    with pytest.raises(ModelError, match="no layer keeps a state, expected a model with some"):
        load_hybrid(TWINS / "dense")
    with pytest.raises(ModelError, match="layers keep a state, expected keys and values in all; "
                                         "load_hybrid, in layer2_graph/hybrid.py, reads it"):
        load(TWINS / "hybrid")


LISTED = "expected a list of one or more numbers from 0 to 2, each once"


@pytest.mark.parametrize("entry, words", [
    ({"linear_layers": None}, f"linear_layers is None, {LISTED}"),
    ({"linear_layers": 1}, f"linear_layers is 1, {LISTED}"),
    ({"linear_layers": []}, rf"linear_layers is \[\], {LISTED}"),
    ({"linear_layers": [0, 3]}, rf"linear_layers is \[0, 3\], {LISTED}"),
    ({"linear_layers": [-1]}, rf"linear_layers is \[-1\], {LISTED}"),
    ({"linear_layers": [0, 2, 0]}, rf"linear_layers is \[0, 2, 0\], {LISTED}"),
    ({"linear_layers": [True]}, rf"linear_layers is \[True\], {LISTED}"),
    ({"linear_layers": [1.0]}, rf"linear_layers is \[1.0\], {LISTED}"),
    ({"linear_layers": [[0]]}, rf"linear_layers is \[\[0\]\], {LISTED}"),
    ({"linear_key_head_dim": None}, "linear_key_head_dim is None, expected a whole number above 0"),
    ({"linear_key_head_dim": "16"}, "linear_key_head_dim is '16'"),
    ({"linear_key_head_dim": 2**31}, "linear_key_head_dim is 2147483648"),
    ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim is 0, expected a whole number above 0"),
    ({"linear_conv_kernel_dim": True}, "linear_conv_kernel_dim is True"),
    ({"linear_num_value_heads": 6}, "linear_num_value_heads is 6, an entry that is not known"),
    ({"kv_lora_rank": 32}, "kv_lora_rank is 32, an entry that is not known"),
    ({"attention_bias": True}, "attention_bias is True, expected False, as every ThreeFloorsHyb"),
    ({"sliding_window": 64}, "sliding_window is 64, expected null"),
    ({"architectures": ["LlamaForCausalLM"]}, r"linear_layers is \[0, 2\], an entry that is not"),
])
def test_a_wrong_entry_is_named(tmp_path, entry, words):
    entries = json.loads((TWINS / "hybrid" / "config.json").read_text("utf-8")) | entry
    (tmp_path / "config.json").write_text(json.dumps(entries))
    with pytest.raises(ModelError, match=words):
        read_config(tmp_path)


@pytest.mark.parametrize("fields, words", [
    ({"linear": (0,)}, r"no tensor model.layers.2.self_attn.q_proj.weight; expected one of shape"),
    ({"N": 8}, r"0.self_attn.in_proj.weight has shape \(390, 96\), expected \(294, 96\) by confi"),
    ({"W": 5}, r"0.self_attn.conv has shape \(288, 4\), expected \(288, 5\) by config.json")])
def test_tensors_that_do_not_fit_are_named(fields, words):
    with pytest.raises(ModelError, match=words):
        read_weights(TWINS / "hybrid", replace(read_config(TWINS / "hybrid"), **fields))


@one_thread()
def test_the_shipped_twin_is_what_its_run_says():
    """Its perplexity on all held-out stories, and the scores of the model that serves."""
    row = json.loads((RUNS / "linear" / "hybrid-0.json").read_text("utf-8"))
    path = TWINS / "hybrid" / "model.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == row["sha256"]
    assert path.stat().st_size < 1_200_000 and row["step"] == 500
    model = load_hybrid(TWINS / "hybrid", dtype=torch.float32)
    twin = Twin(LINEARS["hybrid"])
    twin.load_state_dict(model.weights)
    documents = tokens_of("held out")
    assert abs(judge(twin, documents)[0] / row["perplexity"]["500"] - 1) < 1e-3    # fp16 weights
    text = documents[0][:200]
    cache = cache_of(model, 1, 256)
    parts = [model.forward(cache.step([part.tolist()]), cache, every=True)
             for part in text.tensor_split((100, 110, 111))]
    assert (torch.cat(parts) - twin(text[None])[0]).abs().max() < 1e-3


# ---- training


@pytest.mark.parametrize("name", LINEARS)
def test_a_twin_with_states_trains(name):
    """A step on one text lowers its loss, and all weights move."""
    twin, _ = both(name)
    tokens = torch.randint(0, 2048, (1, 41))
    check_that_it_trains(twin, tokens[0])


def test_what_the_lesson_says_of_the_runs():
    runs = {name: [json.loads((RUNS / "linear" / f"{name}-{seed}.json").read_text("utf-8"))
                   for seed in range(3)] for name in LINEARS}
    weights = [run["weights"] for each in runs.values() for run in each]
    assert max(weights) / min(weights) < 1.001 and CHUNK == 32
    assert all(run["step"] == 500 and run["seed"] == seed
               for each in runs.values() for seed, run in enumerate(each))
    for seed, run in enumerate(runs["attention"]):
        dense = json.loads((RUNS / f"dense-{seed}.json").read_text("utf-8"))["perplexity"]
        assert all(run["perplexity"][step] == dense[step] for step in ("250", "500"))
    attention, linear, hybrid = ([run["perplexity"]["500"] for run in runs[name]]
                                 for name in ("attention", "linear", "hybrid"))
    assert max(attention) < min(linear)
    assert min(attention) < min(hybrid) < max(attention)
    assert min(hybrid) < min(linear) < max(linear) < max(hybrid)
    assert attention[0] < linear[0] < hybrid[0]

    def percent(score, best):
        return round(100 * (score / best - 1))

    assert [percent(sum(each), sum(attention)) for each in (linear, hybrid)] == [5, 4]
    gaps = [[percent(*pair) for pair in zip(ours["by_position"], best["by_position"], strict=True)]
            for ours, best in zip(runs["linear"], runs["attention"], strict=True)]
    early, late = [gap[0] for gap in gaps], [gap[-1] for gap in gaps]
    assert [min(early), max(early), min(late), max(late)] == [7, 8, 1, 6]


def test_what_the_lesson_says_of_recall():
    assert (recall.STEPS, recall.N, recall.PAIRS[-1]) == (1500, 16, 32)
    for seed in range(3):
        row = json.loads((RUNS / "linear" / f"recall-{seed}.json").read_text("utf-8"))
        shares = row["shares"]
        assert row["seed"] == seed and set(shares["attention"].values()) == {1}
        assert round(100 * shares["linear"]["16"]) in (96, 97)
        assert round(100 * shares["linear"]["32"]) == 77
        assert all(abs(shares["delta"][n] - share) < 0.01 for n, share in shares["linear"].items())


def test_a_memory_learns_to_recall():
    """A few steps of two pairs, from a share of right answers by chance."""
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    for kind in recall.KINDS:
        memory = recall.Memory(kind)
        optimiser = torch.optim.AdamW(memory.parameters(), lr=0.03)
        before = recall.right_share(memory, 2, rng)
        for _ in range(60):
            keys, values = recall.draw(2, rng)
            loss = torch.nn.functional.cross_entropy(memory(keys, values).flatten(0, 1),
                                                     values.flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        assert recall.right_share(memory, 2, rng) > before + 0.3
