"""Folders of Mixtral and Qwen3-MoE: logits as transformers computes them, one sentence for what is
wrong with a folder, and the shipped twins."""

import hashlib
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab import device, simulator
from layer1_kernels import kernels
from layer2_graph import (
    Config,
    HybridLlama,
    LatentLlama,
    Llama,
    ModelError,
    MoELlama,
    PagedCache,
    Tokenizer,
    gate,
    greedy,
    hessians,
    llama_of,
    load,
    load_moe,
    perplexity,
    quantize_llama,
    read_config,
    router_scores,
    with_kv,
    with_matmul,
    with_matrices,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.experts import ROUTER
from layer2_graph.models import SMALL, TWINS
from layer2_graph.small.corpus import BEGIN, stories
from layer2_graph.twins.model import VARIANTS, Twin
from layer2_graph.twins.train import RUNS
from tests.layer2_graph.twin_training import check_that_it_trains, one_thread

BASE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64,
        "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 128}
QWEN = {"moe_intermediate_size": 24}
FAMILIES = {
    "Mixtral": ("Mixtral", {}),
    "Mixtral, tied": ("Mixtral", {"tie_word_embeddings": True, "num_experts_per_tok": 1}),
    "Qwen 3 MoE": ("Qwen3Moe", QWEN),
    "Qwen 3 MoE, renormalised": ("Qwen3Moe", QWEN | {"norm_topk_prob": True}),
    "Qwen 3 MoE, a dense layer": ("Qwen3Moe", QWEN | {"mlp_only_layers": [0]}),
    "Qwen 3 MoE, every second layer": ("Qwen3Moe", QWEN | {"decoder_sparse_step": 2,
                                                           "num_hidden_layers": 3}),
}


def random_transformer(family, folder, **entries):
    """A model of transformers with random weights, saved to a folder."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(BASE | entries))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(folder)
    return model


@pytest.fixture
def folder(tmp_path):
    """A Mixtral without weights: E = 4, k = 2."""
    write(tmp_path, {})
    return tmp_path


def write(folder, entries, family="Mixtral"):
    (folder / "config.json").write_text(json.dumps(
        BASE | {"architectures": [f"{family}ForCausalLM"]} | entries))


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_tokens_are_those_of_transformers(tmp_path, name):
    family, entries = FAMILIES[name]
    want = random_transformer(family, tmp_path, **entries)
    model = load_moe(tmp_path)
    assert isinstance(model, MoELlama)
    tokens = torch.randint(0, 64, (2, 40), generator=torch.Generator().manual_seed(1))
    cache = PagedCache(model.config, 2, 48)
    with torch.no_grad():
        right = want(tokens).logits
        first = model.forward(cache.step([tokens[0, :39].tolist(), tokens[1].tolist()]), cache,
                              every=True)
        second = model.forward(cache.step([[int(tokens[0, 39])], []]), cache, every=True)
    assert (first - torch.cat((right[0, :39], right[1]))).abs().max() < 1e-4
    assert (second - right[0, 39:]).abs().max() < 1e-4
    got, = greedy(model, [[5, 17, 3]], 12)
    theirs = want.generate(torch.tensor([[5, 17, 3]]), max_new_tokens=12, do_sample=False,
                           eos_token_id=None, pad_token_id=0)
    assert got == theirs[0, 3:].tolist()


def test_kernels_of_the_course_give_the_same(tmp_path, request):
    """Two tokens on the Triton kernels, in the simulator without a GPU."""
    device.use_best()
    request.addfinalizer(simulator.deactivate_triton if device.gpu() is None else lambda: None)
    random_transformer("Mixtral", tmp_path, num_hidden_layers=1)
    want, got = (load_moe(tmp_path, kernels(table), device=device.torch_device())
                 for table in ("torch", "triton"))
    logits = []
    for model in (want, got):
        cache = PagedCache(model.config, 1, 16, device=device.torch_device())
        logits.append(model.forward(cache.step([[7, 9]]), cache))
    assert torch.allclose(*logits, atol=1e-4)


@pytest.mark.parametrize("family, entries, says", [
    ("Mixtral", {"num_experts_per_tok": 5},
     "num_experts_per_tok is 5, expected at most the 4 experts"),
    ("Mixtral", {"num_experts_per_tok": True}, "num_experts_per_tok is True, expected a whole"),
    ("Mixtral", {"num_local_experts": 0}, "num_local_experts is 0, expected a whole number from 1"),
    ("Mixtral", {"num_local_experts": 4000}, "num_local_experts is 4000, expected"),
    ("Mixtral", {"norm_topk_prob": True}, "norm_topk_prob is True, an entry that is not known"),
    ("Mixtral", {"model_type": "qwen3_moe"}, "model_type is 'qwen3_moe', expected 'mixtral'"),
    ("Qwen3Moe", {"model_type": "qwen3moe"}, "model_type is 'qwen3moe', expected 'qwen3_moe'"),
    ("Qwen3Moe", {"num_experts": 8}, "num_local_experts is 4 and num_experts 8, expected one"),
    ("Qwen3Moe", {"norm_topk_prob": 1}, "norm_topk_prob is 1, expected true or false"),
    ("Qwen3Moe", {"mlp_only_layers": [0.5]}, "mlp_only_layers is [0.5], expected a list of whole"),
    ("Qwen3Moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0, expected a whole number"),
    ("Qwen2Moe", {}, "expected one architecture of"),
    ("Llama", {}, "num_local_experts is 4, an entry that is not known here")])
def test_a_config_that_cannot_be_run(folder, family, entries, says):
    write(folder, entries, family)
    with pytest.raises(ModelError) as caught:
        read_config(folder)
    assert says in str(caught.value) and "config.json" in str(caught.value)


def test_entries_of_older_files_and_defaults(folder):
    write(folder, {"num_local_experts": None, "num_experts": 6}, "Qwen3Moe")
    m = read_config(folder)
    assert (m.E, m.k, m.F_expert, m.renormalise, m.dense_layers) == (6, 2, 768, False, ())
    write(folder, {"sliding_window": 40, "use_sliding_window": True}, "Qwen3Moe")
    assert read_config(folder).room == 40
    write(folder, {"num_local_experts": None, "num_experts_per_tok": None})
    m = read_config(folder)
    assert (m.E, m.k, m.F_expert, m.renormalise, m.eps, m.theta) == (8, 2, 48, True, 1e-5, 1e6)


def test_a_tensor_that_is_missing_or_of_another_shape(tmp_path):
    random_transformer("Mixtral", tmp_path)
    path = tmp_path / "model.safetensors"
    name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    whole = load_file(path)
    save_file({n: t for n, t in whole.items() if n != name}, path)
    with pytest.raises(ModelError, match=rf"no tensor {name}; expected one of shape \(32, 48\)"):
        load_moe(tmp_path)
    save_file(whole | {name: torch.zeros(48, 32)}, path)
    with pytest.raises(ModelError, match=rf"{name} has shape \(48, 32\), expected \(32, 48\)"):
        load_moe(tmp_path)
    save_file(whole | {"model.layers.1.mlp.up_proj.weight": torch.zeros(48, 32)}, path)
    with pytest.raises(ModelError, match="a tensor model.layers.1.mlp.up_proj.weight, which"):
        load_moe(tmp_path)


def test_a_dense_reader_refuses_experts(tmp_path):
    random_transformer("Mixtral", tmp_path)
    with pytest.raises(ModelError, match="its layers have experts, expected a dense model"):
        load(tmp_path)


def test_a_config_without_experts_is_a_llama():
    assert type(load_moe(SMALL)) is Llama


@pytest.mark.parametrize("name, reader", [("latent", "load_latent"), ("hybrid", "load_hybrid")])
def test_a_reader_of_experts_refuses_other_layers(name, reader):
    with pytest.raises(ModelError, match=f"expected keys and values.*{reader}"):
        load_moe(TWINS / name)


@pytest.mark.parametrize("change", [
    lambda m: quantize_llama(m, 8, 16), lambda m: with_matrices(m, lambda name, w: w),
    lambda m: hessians(m, [[1, 2]]), lambda m: with_matmul(m, lambda name, x, w: x @ w.T),
    lambda m: with_kv(m, torch.clone, torch.clone)],
    ids=["quantize_llama", "with_matrices", "hessians", "with_matmul", "with_kv"])
@pytest.mark.parametrize("make, entries, what", [
    (MoELlama, {"E": 4, "k": 2, "F_expert": 20}, "experts"),
    (LatentLlama, {"latent": 8, "rotated": 4}, "latents"),
    (HybridLlama, {"linear": (0,), "N": 8, "W": 4}, "states")])
def test_what_changes_a_plain_llama_refuses_another(change, make, entries, what):
    m = Config(L=1, C=32, H=4, G=2, D=8, F=48, V=31, eps=1e-5, theta=1e4, room=32, **entries)
    model = make(m, {name: torch.ones(shape) for name, shape in shapes(m)}, kernels("torch"))
    with pytest.raises(ValueError, match=f"^a model with {what}, expected one without$"):
        change(model)


def test_other_dtypes_and_weights_made_by_shapes():
    torch.manual_seed(0)
    m = Config(L=2, C=32, H=4, G=2, D=8, F=48, V=31, eps=1e-5, theta=1e4, room=32, E=3, k=2,
               F_expert=20, dense_layers=(1,))
    weights = {name: torch.randn(shape) / 6 for name, shape in shapes(m)}
    logits = []
    for dtype in (torch.float32, torch.bfloat16):
        model = llama_of(m, {name: w.to(dtype) for name, w in weights.items()}, kernels("torch"))
        cache = PagedCache(m, 1, 16, dtype)
        logits.append(model.forward(cache.step([[3, 4, 5]]), cache).float())
    assert torch.allclose(*logits, atol=0.1)
    scores, = router_scores(llama_of(m, weights, kernels("torch")), [[3, 4, 5]])
    assert scores.shape == (1, 3, 3)
    with pytest.raises(ValueError, match="gate: k is 4, expected 1 to the 3 experts"):
        router_scores(llama_of(replace(m, k=4), weights, kernels("torch")), [[3]])


# ---- the twins


@pytest.mark.parametrize("name", ["dense", "moe"])
def test_a_shipped_twin_is_what_its_run_says(name):
    run = json.loads((RUNS / f"{name}-0.json").read_text("utf-8"))
    path = TWINS / name / "model.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == run["sha256"]
    assert run["step"] == run["of"] and len(run["perplexity"]) == 4
    model = load_moe(TWINS / name, dtype=torch.float32)
    words = Tokenizer(TWINS / name, model.config)
    some = [words.encode(text.removeprefix(BEGIN))[:256] for text in stories("held out")[:40]]
    score = run["perplexity"][str(run["step"])]
    assert abs(perplexity(model, some) - score) < 0.1 * score


def test_what_the_lesson_says_of_the_runs():
    runs = {path.stem: json.loads(path.read_text("utf-8")) for path in RUNS.glob("*-?.json")}
    kinds = ("dense", "moe", "moe_bias", "moe_unbalanced")
    assert set(runs) == {f"{name}-{seed}" for name in kinds for seed in range(3)}

    def busiest(name):
        return [max(max(load) * 8 / sum(load) for load in runs[f"{name}-{seed}"]["loads"])
                for seed in range(3)]

    def scores(name, step):
        return [runs[f"{name}-{seed}"]["perplexity"][step] for seed in range(3)]

    last = {name: [max(map(int, runs[f"{name}-{seed}"]["perplexity"])) for seed in range(3)]
            for name in kinds}                      # the steps after which loads were counted
    assert last == {"dense": [1500] * 3, "moe": [1500] * 3, "moe_bias": [500, 1000, 500],
                    "moe_unbalanced": [250] * 3}
    assert max(busiest("moe") + busiest("moe_bias")) < 1.2
    alone = busiest("moe_unbalanced")
    assert (round(min(alone), 1), round(max(alone), 1)) == (2.7, 3.1)
    assert min(score for name in kinds[1:] for score in scores(name, "250")) > max(
        scores("dense", "250"))
    for step in ("500", "1000", "1500"):
        assert min(scores("moe", step)) < max(scores("dense", step))
        assert min(scores("dense", step)) < max(scores("moe", step))
    moe, dense = scores("moe", "1500"), scores("dense", "1500")
    assert min(moe) < min(dense) and max(moe) > max(dense)
    assert round(1 - moe[0] / dense[0], 2) == 0.04
    assert round(runs["moe-0"]["weights"] / runs["dense-0"]["weights"], 1) == 2.3


@one_thread()
def test_16_sequences_read_nearly_all_experts_and_13_tokens_fill_a_fifth_of_their_tiles():
    """The twin has four times the dense one's MLP weights.
    A token of each of 24 stories."""
    moe, dense = (load_moe(TWINS / name, dtype=torch.float32) for name in ("moe", "dense"))
    mlps = [sum(w.numel() for name, w in model.weights.items() if ".mlp." in name
                and not name.endswith(ROUTER)) for model in (moe, dense)]
    assert mlps[0] == 4 * mlps[1]
    words = Tokenizer(TWINS / "moe", moe.config)
    some = [words.encode(text.removeprefix(BEGIN))[:100] for text in stories("held out")[::12]]
    scores = router_scores(moe, [tokens for tokens in some if len(tokens) == 100])
    chosen = torch.stack([gate(s.flatten(0, 1), 2)[1].view(*s.shape[:2], 2) for s in scores])
    hot = torch.nn.functional.one_hot(chosen, 8)            # (B, L, T, 2, 8)
    assert 0.9 < hot[:16].amax((0, 3)).float().mean() < 1
    rows = hot[:13, :, 50].sum((0, 2)).float()              # (L, 8)
    assert rows.sum() / (rows > 0).sum() / 16 == pytest.approx(0.2, abs=0.02)


def test_the_moe_loads_in_transformers():
    import transformers

    theirs = transformers.MixtralForCausalLM.from_pretrained(TWINS / "moe", dtype=torch.float32)
    model = load_moe(TWINS / "moe", dtype=torch.float32)
    cache = PagedCache(model.config, 1, 16)
    with torch.no_grad():
        want = theirs(torch.arange(9)[None]).logits[0]
    got = model.forward(cache.step([list(range(9))]), cache, every=True)
    assert (got - want).abs().max() < 1e-4


@pytest.mark.parametrize("name", VARIANTS)
def test_a_twin_trains(name):
    """A step on one text lowers its loss, and all weights of chosen parts move."""
    torch.manual_seed(0)
    twin = Twin(VARIANTS[name])
    tokens = torch.randint(0, 2048, (1, 33))
    check_that_it_trains(twin, tokens[0])
    moved = [layer.bias.abs().sum() > 0 for layer in twin.experts()]
    assert all(moved) if name == "moe_bias" else not any(moved)
