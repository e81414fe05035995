"""What config.json may say: every entry is read, known to change nothing, or refused by its name;
and what a model computes is what Hugging Face transformers computes on the same folder."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab import device, simulator
from lab.desk.desk import Desk
from layer1_kernels import kernels
from layer2_graph import (
    CpuLlama,
    ModelError,
    PagedCache,
    cpu_kernels,
    generate,
    load,
    read_config,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.decode_ladder import comparison

transformers = pytest.importorskip("transformers")
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
TINY = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
TOKENS = [7, 3, 3, 39, 0, 12, 25, 8, 1, 30, 2]


def write(folder, entries):
    (folder / "config.json").write_text(json.dumps(entries), "utf-8")
    return folder


def change(folder, **tensors):
    """Replace tensors of the one file; None leaves one out."""
    path = folder / "model.safetensors"
    every = load_file(path) | tensors
    save_file({name: t.contiguous() for name, t in every.items() if t is not None}, path)


@pytest.fixture(scope="module")
def entries_of(tmp_path_factory):
    """entries_of(family) -> (entries of its config.json, its tensors): random, by transformers."""
    models = {}

    def one(family):
        if family not in models:
            folder = tmp_path_factory.mktemp(family)
            torch.manual_seed(0)
            config = getattr(transformers, f"{family}Config")(**TINY, tie_word_embeddings=False)
            model = getattr(transformers, f"{family}ForCausalLM")(config).float()
            with torch.no_grad():
                for weight in model.parameters():       # no norm of ones, no bias of zeros
                    weight.add_(0.2 * torch.randn_like(weight))
            model.save_pretrained(folder)
            models[family] = (json.loads((folder / "config.json").read_text("utf-8")),
                              load_file(folder / "model.safetensors"))
        return models[family]
    return one


@pytest.fixture
def model(entries_of, tmp_path):
    """model(entries, family) -> the folder of a model with these entries besides its own."""
    def one(entries=(), family="Llama"):
        own, tensors = entries_of(family)
        save_file(tensors, tmp_path / "model.safetensors")
        return write(tmp_path, own | dict(entries))
    return one


def logits(folder, **options):
    """Scores of TOKENS by the course: (T, V)."""
    own = load(folder, dtype=torch.float32, **options)
    cache = PagedCache(own.config, 1, len(TOKENS))
    return own.forward(cache.step([TOKENS]), cache, every=True)


def theirs(folder):
    """Scores of TOKENS by transformers: (T, V); None if it refuses the folder."""
    try:
        own = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    except Exception:                               # each of its checks has its own
        return None
    with torch.no_grad():
        return own.eval()(torch.tensor([TOKENS])).logits[0]


def refused(folder, *words, **options):
    """The one sentence that refuses a folder; it names the file and has these words."""
    with pytest.raises(ModelError) as refusal:
        load(folder, **options)
    text = str(refusal.value)
    assert "\n" not in text and str(folder) in text and len(text) < 600, text
    assert all(word in text for word in words), text
    return text


# ---- what transformers writes


@pytest.mark.parametrize("family", FAMILIES)
def test_every_entry_that_transformers_writes_is_known(tmp_path, family):
    entries = getattr(transformers, f"{family}Config")().to_dict()
    write(tmp_path, entries | {"architectures": [f"{family}ForCausalLM"]})
    m = read_config(tmp_path)
    assert (4096, 32, entries["vocab_size"]) == (m.C, m.H, m.V)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("missing", ["num_key_value_heads", "head_dim", "max_position_embeddings",
                                     "rms_norm_eps", "rope_parameters", "tie_word_embeddings",
                                     "sliding_window", "max_window_layers", "attention_bias"])
def test_an_entry_that_is_missing_has_the_value_of_transformers(tmp_path, family, missing):
    entries = getattr(transformers, f"{family}Config")().to_dict()
    entries |= {"architectures": [f"{family}ForCausalLM"], "layer_types": None,
                "use_sliding_window": True}
    whole = read_config(write(tmp_path, entries))
    entries.pop(missing, None)
    if missing == "sliding_window" and family.startswith("Qwen"):
        assert read_config(write(tmp_path, entries)).window == 4096     # theirs: null is written
    else:
        assert read_config(write(tmp_path, entries)) == whole


# What versions 4 wrote beside the entries of a family: all of a configuration, as of 4.2x.
VERSION_4 = {
    "return_dict": True, "output_hidden_states": False, "output_attentions": False,
    "torchscript": False, "torch_dtype": "float32", "use_bfloat16": False, "tf_legacy_loss": False,
    "pruned_heads": {}, "chunk_size_feed_forward": 0, "is_encoder_decoder": False,
    "is_decoder": False, "cross_attention_hidden_size": None, "add_cross_attention": False,
    "tie_encoder_decoder": False, "max_length": 20, "min_length": 0, "do_sample": False,
    "early_stopping": False, "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0,
    "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0,
    "length_penalty": 1.0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None, "num_return_sequences": 1, "output_scores": False,
    "return_dict_in_generate": False, "forced_bos_token_id": None, "forced_eos_token_id": None,
    "remove_invalid_values": False, "exponential_decay_length_penalty": None,
    "suppress_tokens": None, "begin_suppress_tokens": None, "finetuning_task": None,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "tokenizer_class": None, "prefix": None, "bos_token_id": 1, "pad_token_id": None,
    "eos_token_id": 2, "sep_token_id": None, "decoder_start_token_id": None,
    "task_specific_params": None, "problem_type": None, "_name_or_path": "",
    "_attn_implementation_autoset": True, "transformers_version": "4.46.0", "use_cache": True,
    "initializer_range": 0.02, "attention_dropout": 0.0, "pretraining_tp": 1,
    "rope_theta": 1e4, "rope_scaling": None, "hidden_act": "silu"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_entry_of_a_config_of_transformers_4_is_known(model, family):
    folder = model(VERSION_4, family)
    entries = json.loads((folder / "config.json").read_text("utf-8"))
    for name in ("rope_parameters", "dtype"):
        entries.pop(name, None)
    assert (logits(write(folder, entries)) - theirs(folder)).abs().max() < 1e-4


# ---- models that people have


def llama(*sizes, **entries):
    """C, F, L, H, G, V, room of a folder that must load, and what else its config.json says."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "vocab_size", "max_position_embeddings")
    return dict(zip(names, sizes, strict=True)) | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "initializer_range": 0.02, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.40.0", "use_cache": True,
        "bos_token_id": 1, "eos_token_id": 2} | entries


def other(family, *sizes, **entries):
    return llama(*sizes, architectures=[f"{family}ForCausalLM"], model_type=family.lower(),
                 attention_dropout=0.0, **entries)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192, "rope_type": "llama3"}
QWEN = {"attention_dropout": 0.0, "use_sliding_window": False, "rope_theta": 1e6}
KNOWN = {       # name: (entries, D, window, type of scaling)
    "LLaMA 7B": (llama(4096, 11008, 32, 32, None, 32000, None, max_sequence_length=2048,
                       pad_token_id=0), 128, None, None),
    "Llama 2 7B": (llama(4096, 11008, 32, 32, 32, 32000, 4096, pretraining_tp=1,
                         _name_or_path="meta-llama/Llama-2-7b-hf", rope_scaling=None),
                   128, None, None),
    "Llama 2 70B": (llama(8192, 28672, 80, 64, 8, 32000, 4096, pretraining_tp=1, max_length=4096,
                          pad_token_id=0), 128, None, None),
    "CodeLlama 7B": (llama(4096, 11008, 32, 32, 32, 32016, 16384, rope_theta=1000000,
                           pretraining_tp=1, rope_scaling=None), 128, None, None),
    "Llama 3 8B": (llama(4096, 14336, 32, 32, 8, 128256, 8192, attention_bias=False,
                         attention_dropout=0.0, pretraining_tp=1, rope_scaling=None,
                         rope_theta=500000.0, eos_token_id=128001), 128, None, None),
    "Llama 3.1 8B": (llama(4096, 14336, 32, 32, 8, 128256, 131072, attention_bias=False,
                           attention_dropout=0.0, mlp_bias=False, pretraining_tp=1,
                           rope_scaling=LLAMA3, rope_theta=500000.0,
                           eos_token_id=[128001, 128008, 128009]), 128, None, "llama3"),
    "Llama 3.2 1B": (llama(2048, 8192, 16, 32, 8, 128256, 131072, head_dim=64, mlp_bias=False,
                           attention_bias=False, attention_dropout=0.0, pretraining_tp=1,
                           rope_scaling=LLAMA3 | {"factor": 32.0}, rope_theta=500000.0,
                           tie_word_embeddings=True), 64, None, "llama3"),
    "Vicuna 1.5 7B 16k": (llama(4096, 11008, 32, 32, 32, 32000, 4096, pad_token_id=0,
                                pretraining_tp=1, rope_scaling={"factor": 4.0, "type": "linear"}),
                          128, None, "linear"),
    "TinyLlama 1.1B": (llama(2048, 5632, 22, 32, 4, 32000, 2048, attention_bias=False,
                             pretraining_tp=1, rope_scaling=None, rope_theta=10000.0),
                       64, None, None),
    "SmolLM2 135M": (llama(576, 1536, 30, 9, 3, 49152, 8192, attention_bias=False,
                           attention_dropout=0.0, mlp_bias=False, pretraining_tp=1,
                           is_llama_config=True, rope_interleaved=False, rope_scaling=None,
                           rope_theta=100000, tie_word_embeddings=True,
                           **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}}),
                     64, None, None),
    "DeepSeek R1 Distill Llama 8B": (llama(4096, 14336, 32, 32, 8, 128256, 131072,
                                           attention_bias=False, attention_dropout=0.0,
                                           mlp_bias=False, pretraining_tp=1, rope_theta=500000.0,
                                           rope_scaling=LLAMA3), 128, None, "llama3"),
    "Mistral 7B v0.1": (other("Mistral", 4096, 14336, 32, 32, 8, 32000, 32768, rope_theta=10000.0,
                              sliding_window=4096), 128, 4096, None),
    "Mistral 7B v0.3": (other("Mistral", 4096, 14336, 32, 32, 8, 32768, 32768, rope_theta=1e6,
                              sliding_window=None), 128, None, None),
    "Mistral Nemo": (other("Mistral", 5120, 14336, 40, 32, 8, 131072, 131072, rope_theta=1e6,
                           head_dim=128, sliding_window=None), 128, None, None),
    "Qwen2 7B": (other("Qwen2", 3584, 18944, 28, 28, 4, 152064, 131072, max_window_layers=28,
                       sliding_window=131072, use_sliding_window=False, rope_theta=1000000.0),
                 128, None, None),
    "Qwen2.5 0.5B": (other("Qwen2", 896, 4864, 24, 14, 2, 151936, 32768, max_window_layers=24,
                           sliding_window=32768, use_mrope=False, use_sliding_window=False,
                           rope_theta=1000000.0, tie_word_embeddings=True), 64, None, None),
    "Qwen2.5 7B, long": (other("Qwen2", 3584, 18944, 28, 28, 4, 152064, 32768,
                               rope_scaling={"factor": 4.0, "type": "yarn",
                                             "original_max_position_embeddings": 32768},
                               use_sliding_window=False, max_window_layers=28), 128, None, "yarn"),
    "DeepSeek R1 Distill Qwen 1.5B": (other("Qwen2", 1536, 8960, 28, 12, 2, 151936, 131072,
                                            max_window_layers=21, sliding_window=4096,
                                            use_mrope=False, use_sliding_window=False,
                                            rope_theta=10000), 128, None, None),
    "Qwen3 0.6B": (other("Qwen3", 1024, 3072, 28, 16, 8, 151936, 40960, attention_bias=False,
                         head_dim=128, max_window_layers=28, rope_scaling=None,
                         rope_theta=1000000, sliding_window=None, use_sliding_window=False,
                         tie_word_embeddings=True), 128, None, None),
}


@pytest.mark.parametrize("name", KNOWN)
def test_models_that_people_have_load(tmp_path, name):
    entries, D, window, scaling = KNOWN[name]
    m = read_config(write(tmp_path, entries))
    assert (m.D, m.window, dict(m.scaling).get("rope_type")) == (D, window, scaling)
    assert m.theta == entries.get("rope_theta", 1e4) and entries["hidden_size"] == m.C


def test_yarn_makes_room_for_what_it_stretches(tmp_path):
    """The original length times the factor; room that is said to be larger stays."""
    entries, *_ = KNOWN["Qwen2.5 7B, long"]
    assert read_config(write(tmp_path, entries)).room == 4 * 32_768
    longer = entries | {"max_position_embeddings": 2**20}
    assert read_config(write(tmp_path, longer)).room == 2**20
    entries, *_ = KNOWN["DeepSeek R1 Distill Llama 8B"]
    assert read_config(write(tmp_path, entries)).room == 131_072        # not YaRN


# ---- one entry changed


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
        "original_max_position_embeddings": 16}
LLAMA3_TINY = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
NAN, INF = float("nan"), float("inf")
ROPE = "rope_parameters"
SAME = (        # what loads, with the scores of transformers: (entries, family)
    [({name: None}, "Llama") for name in (
        "quantization_config", "embedding_multiplier", "final_logit_softcapping", "mlp_bias",
        "layer_types", "attention_bias", "num_nextn_predict_layers", "sliding_window",
        "partial_rotary_factor", "auto_map", "eos_token_id")]
    + [(entries, "Llama") for entries in (
        {}, {"pretraining_tp": 1}, {"partial_rotary_factor": 1.0}, {"logits_scaling": 1.0},
        {"attention_dropout": 0.5}, {"use_cache": False}, {"eos_token_id": [1, 2]},
        {"rms_norm_eps": 1}, {"rms_norm_eps": 0.5}, {"max_position_embeddings": 2**20},
        {"rope_interleaved": False}, {"temperature": 0.1, "repetition_penalty": 3.0},
        {"sliding_window": 4, "use_sliding_window": False}, {"layer_types": ["full_attention"] * 2},
        {ROPE: None}, {ROPE: {}}, {ROPE: None, "rope_theta": 100}, {ROPE: {"rope_theta": 50.0}},
        {ROPE: {"rope_theta": 50.0}, "rope_theta": 7.0},
        {ROPE: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
        {ROPE: {"rope_type": "linear", "rope_theta": 1e4, "factor": 3}},
        {ROPE: None, "rope_scaling": {"type": "linear", "factor": 3.0}}, {ROPE: LLAMA3_TINY},
        {ROPE: YARN}, {ROPE: YARN | {"attention_factor": 0.5}}, {ROPE: YARN | {"beta_fast": 4}},
        {ROPE: YARN | {"beta_slow": 0.25}}, {ROPE: YARN | {"beta_fast": 1, "beta_slow": 8}},
        {ROPE: YARN | {"truncate": False, "beta_fast": 2.5}}, {ROPE: YARN | {"truncate": True}},
        {ROPE: YARN | {"mscale": 0.7}}, {ROPE: YARN | {"mscale_all_dim": 0.7}},
        {ROPE: YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}}, {ROPE: YARN | {"factor": 1.0}},
        {ROPE: YARN | {"beta_fast": None, "mscale": None, "attention_factor": None}},
        {ROPE: YARN | {"rope_theta": 1.5}}, {ROPE: YARN | {"rope_theta": 1e4, "factor": 0.5}},
        {ROPE: YARN | {"original_max_position_embeddings": 3}},
        {ROPE: YARN | {"original_max_position_embeddings": 10**6}},
        {ROPE: {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}})]
    + [({"sliding_window": 64}, "Mistral"), ({"sliding_window": None}, "Mistral"),
       ({"attention_bias": False}, "Mistral"), ({"attention_bias": True}, "Qwen2"),
       ({"use_mrope": False}, "Qwen2"), ({ROPE: YARN | {"attention_factor": 2.0}}, "Qwen3")])


@pytest.mark.parametrize("entries, family", SAME, ids=str)
def test_what_loads_computes_what_transformers_does(model, entries, family):
    folder = model(entries, family)
    own, right = logits(folder), theirs(folder)
    if right is None:           # transformers wants 1.0 for 1, and no null for other types
        assert entries in ({"mlp_bias": None}, {"attention_bias": None}, {"auto_map": None},
                           {"rms_norm_eps": 1})
        right = theirs(model({"rms_norm_eps": 1.0} if "rms_norm_eps" in entries else {}, family))
    assert (own - right).abs().max() < 1e-4


JUNK = {"a": [{"b": [None, {"c": {}}]}] * 3}
REFUSED = (     # (entries, the word that the message must name, family)
    [({name: value}, name) for name, values in {
        "partial_rotary_factor": (0.5, "1", True), "pretraining_tp": (2, True),
        "quantization_config": ({"quant_method": "awq", "bits": 4}, {}), "sliding_window": (16,),
        "embedding_multiplier": (12.0,), "residual_multiplier": (0.22, NAN),
        "attention_multiplier": (0.0078125,), "logits_scaling": (8.0,),
        "final_logit_softcapping": (30.0,), "attn_logit_softcapping": (50.0,),
        "rope_interleaved": (True,), "num_experts": (8,), "no_rope_layers": ([1, 0],),
        "auto_map": ({"AutoModelForCausalLM": "modeling.Own"},), "strange": (1, False, JUNK),
        "original_max_position_embeddings": (16,), "is_decoder": (1,), "pruned_heads": ({"0": []},),
        "model_type": ("granite", "mistral", 5), "hidden_act": ("gelu", JUNK),
        "attention_bias": ("true", "false", 1, 0, []), "mlp_bias": ("true", 1, 0.0),
        "tie_word_embeddings": ("true", "false", 1, 0, JUNK), "use_sliding_window": ("false", 0),
        "num_hidden_layers": (True, 2.0, "2", None, -1, NAN, 10**30, JUNK),
        "num_attention_heads": (True, 10**30), "num_key_value_heads": (True, 0, -2, 2.0),
        "head_dim": (True, INF, -16), "vocab_size": (True, 10**12), "hidden_size": (None, 32.0),
        "intermediate_size": (JUNK, [48]),
        "max_position_embeddings": (True, 10**12, 0, -1, 64.0),
        "rms_norm_eps": (True, NAN, INF, -1e-5, 0, "1e-5", 10**400),
        "rope_theta": (True, NAN, INF, "1e4", -1), "max_window_layers": (True, -1),
        "eos_token_id": (True, "2", 2.0, [1, "2"], [True], JUNK),
        "layer_types": (["full_attention"], "full_attention", [1, 2], JUNK,
                        ["full_attention", "sliding_attention"]),
        "architectures": ([], "LlamaForCausalLM", [["LlamaForCausalLM"]], JUNK, 5,
                          ["LlamaForCausalLM"] * 2)}.items() for value in values]
    + [({ROPE: value}, word) for value, word in (
        (5, "rotary scaling"), ([1], "rotary scaling"), ("yarn", "rotary scaling"),
        ({"rope_type": "dynamic", "factor": 2.0}, "dynamic"), ({"rope_type": JUNK}, "rotary"),
        ({"rope_type": "longrope"}, "longrope"), ({"type": "mrope", "rope_type": "default"}, "mr"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, "mrope_section"),
        ({"rope_type": "default", "factor": 8.0}, "factor"),
        ({"rope_theta": True}, "rope_theta"), ({"full_attention": {"rope_theta": 5.0}}, "full_att"),
        ({"rope_type": "linear"}, "factor"), ({"rope_type": "linear", "factor": True}, "factor"),
        (LLAMA3_TINY | {"low_freq_factor": 4.0}, "low_freq_factor"),
        (LLAMA3_TINY | {"high_freq_factor": "4"}, "high_freq_factor"),
        (LLAMA3_TINY | {"attention_factor": 2.0}, "attention_factor"),
        (YARN | {"factor": NAN}, "factor"), (YARN | {"factor": None}, "factor"),
        (YARN | {"attn_factor": 0.88}, "attn_factor"), (YARN | {"finetuned": False}, "finetuned"),
        (YARN | {"beta_fast": "32"}, "beta_fast"), (YARN | {"beta_slow": -1}, "beta_slow"),
        (YARN | {"mscale": True}, "mscale"), (YARN | {"attention_factor": 0}, "attention_factor"),
        (YARN | {"truncate": "false"}, "truncate"), (YARN | {"truncate": 0}, "truncate"),
        (YARN | {"mscale_all_dim": INF}, "mscale_all_dim"),
        (YARN | {"rope_theta": 1.0}, "rope_theta"))]
    + [({"rope_scaling": YARN, ROPE: YARN | {"factor": 2.0}}, "rope_scaling"),
       ({"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": None}, "hidden_size"),
       ({"num_attention_heads": 5}, "5 query heads")])
REFUSED = [(*case, "Llama") for case in REFUSED] + [
    ({"attention_bias": True}, "attention_bias", "Mistral"),
    ({"attention_bias": False}, "attention_bias", "Qwen2"),
    ({"mlp_bias": True}, "mlp_bias", "Qwen3"), ({"use_mrope": True}, "use_mrope", "Qwen2"),
    ({"layer_types": ["full_attention"] * 2, "sliding_window": 16}, "layer_types", "Mistral"),
    ({"sliding_window": True}, "sliding_window", "Mistral"),
    ({"sliding_window": True}, "sliding_window", "Qwen2"),
    ({"use_sliding_window": "false"}, "use_sliding_window", "Qwen3"),
    ({"dual_chunk_attention_config": {"chunk_size": 4}}, "dual_chunk_attention_config", "Qwen2")]


@pytest.mark.parametrize("entries, word, family", REFUSED, ids=lambda v: str(v)[:70])
def test_what_does_not_load_is_named(model, entries, word, family):
    refused(model(entries, family), word, "config.json")


@pytest.mark.parametrize("content", ['{"a": ' * 100_000, "[" * 100_000, "1" * 10_000,
                                     '{"a": ' + "1" * 10_000 + "}", "\ufeff{}", ""],
                         ids=["objects", "lists", "a number", "a long number", "a mark", "nothing"])
def test_what_is_no_json_is_one_sentence(model, content):
    folder = model()
    (folder / "config.json").write_text(content, "utf-8")
    refused(folder, "config.json")


# ---- ignored entries


def test_an_entry_is_ignored_where_that_is_asked(model):
    want = logits(model())
    folder = model({"embedding_multiplier": 12.0, ROPE: {"rope_theta": 1e4, "strange": 1}})
    text = refused(folder, "embedding_multiplier is 12.0", "--ignore-config embedding_multiplier",
                   "ignore=('embedding_multiplier',)")
    assert "expected 1 or null" in text
    refused(folder, "strange is 1, an entry that is not known here and may change what the model",
            "--ignore-config strange", ignore=("embedding_multiplier",))
    assert torch.equal(logits(folder, ignore=("embedding_multiplier", "strange")), want)


def test_a_needed_entry_that_is_ignored_is_missing(model):
    refused(model(), "hidden_size is None, expected a whole number", ignore=("hidden_size",))


# ---- weights


LAYER = "model.layers.1."
Q = LAYER + "self_attn.q_proj.weight"
WEIGHTS = {     # name: (tensors by name, the words of the refusal; empty if it must load)
    "the same": ({}, ()),
    "rotary frequencies": ({LAYER + "self_attn.rotary_emb.inv_freq": torch.ones(8),
                            "model.rotary_emb.inv_freq": torch.ones(8)}, ()),
    "half precision": ({Q: "half"}, ()), "bfloat16": ({Q: "bfloat16"}, ()),
    "float64": ({Q: "double"}, (Q, "torch.float64")), "int8": ({Q: "char"}, (Q, "torch.int8")),
    "fp8": ({Q: "float8"}, (Q, "torch.float8_e4m3fn")), "flags": ({Q: "bool"}, (Q, "torch.bool")),
    "one missing": ({Q: None}, (f"no tensor {Q}",)),
    "no head": ({"lm_head.weight": None}, ("no tensor lm_head.weight",)),
    "no embedding": ({"model.embed_tokens.weight": None}, ("no tensor model.embed_tokens.weight",)),
    "turned": ({Q: torch.zeros(32, 64)}, (Q, "(32, 64), expected (64, 32)")),
    "flat": ({Q: torch.zeros(64 * 32)}, (Q, "(2048,)")), "empty": ({Q: torch.zeros(0)}, (Q, "(0,")),
    "a number": ({Q: torch.tensor(1.0)}, (Q, "()")),
    "a norm of heads": ({LAYER + "self_attn.q_norm.weight": torch.ones(16)},
                        (f"a tensor {LAYER}self_attn.q_norm.weight",)),
    "biases": ({LAYER + f"self_attn.{n}_proj.bias": torch.ones(64) for n in "qkv"},
               (f"a tensor {LAYER}self_attn.k_proj.bias and 2 more",)),
    "a layer more": ({"model.layers.2.mlp.up_proj.weight": torch.ones(48, 32)},
                     ("a tensor model.layers.2.mlp.up_proj.weight,",)),
    "scales": ({Q + "_scale_inv": torch.ones(1)}, (f"a tensor {Q}_scale_inv,",)),
    "another thing": ({"score.weight": torch.ones(2, 32)}, ("a tensor score.weight,",)),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_others(model, entries_of, name):
    changes, words = WEIGHTS[name]
    folder, own = model(), entries_of("Llama")[1]
    types = {"float8": torch.float8_e4m3fn}
    change(folder, **{n: own[n].to(types[v]) if v in types else getattr(own[n], v)()
                      if isinstance(v, str) else v for n, v in changes.items()})
    if words:
        refused(folder, "model.safetensors", *words)
    else:
        assert (logits(folder) - theirs(folder)).abs().max() < 1e-4


def test_extra_tensors_of_shards_are_named(model):
    folder = model()
    every = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    extra = LAYER + "self_attn.q_norm.weight"
    save_file(every, folder / "part-0.safetensors")
    save_file({extra: torch.ones(16)}, folder / "part-1.safetensors")
    places = dict.fromkeys(every, "part-0.safetensors") | {extra: "part-1.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    refused(folder, "part-1.safetensors", f"a tensor {extra},")


def test_the_head_of_a_tied_model_may_be_there_once_more(model, entries_of):
    """If it differs, the folder contradicts itself."""
    folder = model({"tie_word_embeddings": True})
    refused(folder, "lm_head.weight is not model.embed_tokens.weight", "tie_word_embeddings")
    change(folder, **{"lm_head.weight": entries_of("Llama")[1]["model.embed_tokens.weight"]})
    assert (logits(folder) - theirs(folder)).abs().max() < 1e-4


# ---- widths of heads


def of_width(folder, D, H=4, G=2):
    """A random model with heads of this width, by transformers."""
    torch.manual_seed(D)
    config = transformers.LlamaConfig(**TINY | {
        "head_dim": D, "num_attention_heads": H, "num_key_value_heads": G,
        "hidden_size": -(-32 // H) * H})
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("D", [2, 8, 12, 20, 48, 80, 96, 100, 160, 256, 512])
def test_pytorchs_table_takes_heads_of_any_width(tmp_path, D):
    folder = of_width(tmp_path, D)
    right = theirs(folder)
    assert (logits(folder) - right).abs().max() < 1e-5
    own = load(folder)
    host = CpuLlama(own.config, own.weights, cpu_kernels())
    cache = PagedCache(own.config, 1, len(TOKENS))
    host.forward(cache.step([TOKENS[:-1]]), cache)
    last = host.forward(cache.step([TOKENS[-1:]]), cache)           # by NumPy, after a prefill
    assert (last - right[-1]).abs().max() < 1e-5


@pytest.mark.parametrize("D, H, G, says", [
    (8, 4, 2, "heads of width 8, expected a multiple of 16, 16 to 128"),
    (20, 4, 2, "heads of width 20"), (100, 4, 2, "heads of width 100"),
    (160, 4, 2, "heads of width 160"), (256, 4, 2, "heads of width 256"),
    (16, 65, 1, "65 query heads, expected at most 64 times as many as the 1 kv heads")])
@pytest.mark.parametrize("table", ["triton", "cuda"])
def test_heads_that_a_table_does_not_take_are_refused_before_a_token(tmp_path, table, D, H, G,
                                                                     says):
    folder = of_width(tmp_path, D, H, G)
    m = read_config(folder)
    with pytest.raises(ModelError) as refusal:
        generate.check_table(folder, m, kernels(table), torch.float32)
    text = str(refusal.value)
    assert str(folder / "config.json") in text and f"{H} heads, {D} wide" in text
    assert says in text and "--kernels torch takes them" in text and "\n" not in text
    generate.check_table(folder, m, kernels("torch"), torch.float32)


@pytest.mark.parametrize("D", [16, 48, 80, 96, 128])
@pytest.mark.parametrize("table", ["triton", "cuda"])
def test_heads_that_a_table_takes(tmp_path, table, D):
    m = read_config(of_width(tmp_path, D))
    assert generate.check_table(tmp_path, m, kernels(table), torch.float32) is None


def test_a_dtype_that_a_table_does_not_take(tmp_path):
    m = read_config(of_width(tmp_path, 16))
    with pytest.raises(ModelError, match="torch.bfloat16.*expected float32"):
        generate.check_table(tmp_path, m, kernels("cuda"), torch.bfloat16)


# ---- the command


@pytest.mark.parametrize("entries, words, says", [
    ({"logits_scaling": 8.0}, (), "logits_scaling is 8.0, expected 1 or null"),
    ({"head_dim": 8}, ("--kernels", "triton"), "heads of width 8, expected a multiple of 16"),
    ({"head_dim": 8}, ("--kernels", "mine"), "heads of width 8, expected a multiple of 16"),
    ({"tie_word_embeddings": "false"}, (), "tie_word_embeddings is 'false', expected true or fal")])
def test_the_command_refuses_in_one_line(command, desk_of_nobody, folder_with, entries, words,
                                         says):
    folder = folder_with(entries)
    if "mine" in words:
        words = (*words, "--desk", desk_of_nobody)
    code, said, wrong = command(generate.app, "generate", "--model", folder, "--tokens", 1,
                                *words)
    assert code == 2 and said == "" and says in wrong and len(wrong.splitlines()) == 1, wrong


def test_the_command_ignores_what_it_is_told_to(command, folder_with):
    folder = folder_with({"logits_scaling": 8.0, "strange": 1})
    code, said, wrong = command(generate.app, "generate", "--model", folder, "--tokens", 2,
                                "--ignore-config", "logits_scaling", "--ignore-config", "strange")
    assert code == 0 and "2 tokens: " in said, wrong


def test_the_rungs_ignore_what_they_are_told_to(folder_with, monkeypatch, capsys):
    def measured(model, theirs):
        raise ModelError(f"measured; transformers: {theirs}")

    folder = folder_with({"logits_scaling": 8.0, "max_position_embeddings": 128})
    monkeypatch.setattr(comparison, "measure", measured)
    assert comparison.main(["--model", str(folder)]) == 2
    assert "--ignore-config logits_scaling" in capsys.readouterr().err
    assert comparison.main(["--model", str(folder), "--ignore-config", "logits_scaling"]) == 2
    assert capsys.readouterr().err == (
        "measured; transformers: transformers does not ignore logits_scaling\n")


@pytest.fixture(scope="module", autouse=True)
def triton_as_it_was():
    yield
    if device.gpu() is None:
        simulator.deactivate_triton()


@pytest.fixture
def folder_with(tmp_path):
    """folder_with(entries) -> a folder with the small model's tokenizer and random weights."""
    def one(entries):
        own = TINY | {"architectures": ["LlamaForCausalLM"], "vocab_size": 2048}
        width = {"head_dim": entries.get("head_dim", 16)}
        m = read_config(write(tmp_path, own | width))
        save_file({name: torch.randn(shape) for name, shape in shapes(m)},
                  tmp_path / "model.safetensors")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(generate.SMALL / name, tmp_path)
        return write(tmp_path, own | entries)
    return one


@pytest.fixture
def desk_of_nobody(tmp_path_factory):
    """A desk on which nothing passed."""
    desk = Desk(tmp_path_factory.mktemp("empty") / "work")
    desk.prepare()
    return desk.folder
