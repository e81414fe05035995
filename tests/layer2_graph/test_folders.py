"""Faulty folders of models: the error of each is one sentence with file, tensor, what was expected
and what was found."""

import json
from datetime import datetime
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from layer2_graph import (
    Config,
    ContiguousCache,
    ModelError,
    PagedCache,
    Tokenizer,
    greedy,
    load,
    read_config,
    read_weights,
)
from layer2_graph.checkpoint import shapes
from layer2_graph.generate import continuation

ENTRIES = {"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
           "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
           "vocab_size": 40, "head_dim": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
           "rope_theta": 1e4, "tie_word_embeddings": True}
MISTRAL = {"architectures": ["MistralForCausalLM"]}      # of the same tensors as this Llama
NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path):
    """A whole model in one file."""
    write(tmp_path / "config.json", ENTRIES)
    save_file({name: torch.randn(shape) for name, shape in shapes(read_config(tmp_path))},
              tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def sharded(folder):
    """The same in two files, with an index."""
    split(folder)
    return folder


def split(folder):
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(sorted(whole))}
    for shard in set(places.values()):
        save_file({n: t for n, t in whole.items() if places[n] == shard}, folder / shard)
    write(folder / "model.safetensors.index.json", {"weight_map": places})


def write(path, entries):
    path.write_text(json.dumps(entries))


def change(folder, **tensors):
    """Replace tensors of the one file; None leaves one out."""
    path = folder / "model.safetensors"
    kept = load_file(path) | tensors
    save_file({n: t for n, t in kept.items() if t is not None}, path)


def test_shards_are_read_as_one_file(folder):
    m = read_config(folder)
    want = load_file(folder / "model.safetensors")
    split(folder)
    got = read_weights(folder, m)
    assert got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want)


def test_a_dtype_may_be_asked_for(folder):
    m = read_config(folder)
    assert read_weights(folder, m)[NAME].dtype == torch.float32
    assert read_weights(folder, m, torch.bfloat16)[NAME].dtype == torch.bfloat16


@pytest.mark.parametrize("entries, says", [
    ({"architectures": ["GPT2LMHeadModel"]},
     "expected one architecture of LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, "
     "Qwen3ForCausalLM, MixtralForCausalLM, Qwen3MoeForCausalLM, "
     "ThreeFloorsLatent, ThreeFloorsHybrid; found GPT2LMHeadModel"),
    ({"architectures": None}, "found none"),
    ({"hidden_size": "wide"}, "hidden_size is 'wide', expected a whole number"),
    ({"vocab_size": 0}, "vocab_size is 0, expected a whole number"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
    ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key heads evenly"),
    ({"head_dim": 15}, "heads are 15 wide, expected an even number"),
    ({"head_dim": "16"}, "head_dim is '16', expected a whole number above 0"),
    ({"max_position_embeddings": -1}, "max_position_embeddings is -1, expected a whole number"),
    ({"max_window_layers": "all"}, "max_window_layers is 'all', expected a whole number"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small', expected a number above 0"),
    ({"rope_scaling": "linear"}, "rotary scaling is 'linear', expected a JSON object or null"),
    ({"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta is '1e4', expected a number above 0"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rotary scaling 'dynamic', expected"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
     "rotary scaling llama3 has low_freq_factor = None, expected a number"),
])
def test_a_config_that_cannot_be_run(folder, entries, says):
    write(folder / "config.json", ENTRIES | entries)
    with pytest.raises(ModelError) as caught:
        read_config(folder)
    assert says in str(caught.value) and "config.json" in str(caught.value)


@pytest.mark.parametrize("content, says", [
    (None, "config.json is missing"), ("{", "is not readable JSON"), ("[1]", "found a list")])
def test_a_config_that_cannot_be_read(folder, content, says):
    path = folder / "config.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ModelError, match=says):
        read_config(folder)


SOME = ["full_attention", "sliding_attention"]


@pytest.mark.parametrize("family, entries, room", [
    ("Llama", {}, 9000), ("Llama", {"sliding_window": 16, "use_sliding_window": False}, 9000),
    ("Mistral", {"sliding_window": 16}, 16), ("Mistral", {"sliding_window": None}, 9000),
    ("Mistral", {}, 4096), ("Mistral", {"sliding_window": 10_000}, 9000),
    ("Mistral", {"sliding_window": 16, "use_sliding_window": False}, 16),
    ("Qwen2", {"sliding_window": 16}, 9000),
    ("Qwen2", {"sliding_window": 16, "use_sliding_window": True}, 9000),
    ("Qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2}, 9000),
    ("Qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, 16),
    ("Qwen2", {"use_sliding_window": True, "max_window_layers": 0}, 4096),
    ("Qwen2", {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, 9000),
    ("Qwen2", {"sliding_window": 16, "use_sliding_window": True, "num_hidden_layers": 29}, 16),
    ("Qwen3", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, 16),
    ("Qwen3", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2,
               "layer_types": SOME}, 16),
    ("Qwen2", {"sliding_window": 16, "use_sliding_window": False}, 9000),
    ("Qwen3", {"sliding_window": 16, "use_sliding_window": True, "layer_types": SOME}, 16),
    ("Qwen3", {"sliding_window": 16, "use_sliding_window": True, "layer_types": SOME[:1] * 2},
     9000)])
def test_a_sliding_window_bounds_the_context(folder, family, entries, room):
    given = ENTRIES | {"architectures": [f"{family}ForCausalLM"],
                       "max_position_embeddings": 9000} | entries
    write(folder / "config.json", given)
    assert read_config(folder).room == room
    if family != "Llama":                               # transformers has no window there
        theirs = getattr(pytest.importorskip("transformers"), f"{family}Config")(**given)
        slides = family == "Mistral" or "sliding_attention" in theirs.layer_types
        assert min(slides and theirs.sliding_window or 9000, 9000) == room


@pytest.mark.parametrize("entries, says", [
    (MISTRAL | {"sliding_window": 20}, "a context of 21 tokens; the model has room for 20, the "
                                       "window that its attention slides over"),
    ({"max_position_embeddings": 20}, "a context of 21 tokens; the model has room for 20$")])
def test_a_context_that_the_model_has_no_room_for(folder, entries, says):
    write(folder / "config.json", ENTRIES | entries)
    model = load(folder)
    for kind in (PagedCache, ContiguousCache):
        with pytest.raises(ModelError, match=says):
            kind(model.config, 1, 21)
    with pytest.raises(ModelError, match=says):
        greedy(model, [[1] * 9], 12)
    assert len(greedy(model, [[1] * 9], 11)[0]) == 11


@pytest.mark.parametrize("kind", [PagedCache, ContiguousCache])
def test_a_cache_ends_where_the_model_does(folder, kind):
    """Pages are whole, and the last may have slots that no position of the model belongs to."""
    write(folder / "config.json", ENTRIES | MISTRAL | {"sliding_window": 20})
    model = load(folder)
    cache = kind(model.config, 1, 20)
    model.forward(cache.step([[1] * 20]), cache)
    with pytest.raises(ValueError, match="would reach 21 tokens; there is room for 20"):
        cache.step([[1]])


def test_a_tensor_that_is_missing(folder):
    change(folder, **{NAME: None})
    with pytest.raises(ModelError, match=rf"/model.safetensors: no tensor {NAME}; expected one of "
                                         r"shape \(48, 32\)"):
        load(folder)


def test_a_tensor_that_the_index_does_not_list(sharded):
    index = sharded / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    write(index, {"weight_map": {n: p for n, p in places.items() if n != NAME}})
    with pytest.raises(ModelError, match=rf"/{index.name}: no tensor {NAME}; expected one of"):
        load(sharded)


def test_a_tensor_of_another_shape(folder):
    change(folder, **{NAME: torch.zeros(32, 48)})
    with pytest.raises(ModelError, match=rf"model.safetensors: {NAME} has shape \(32, 48\), "
                                         r"expected \(48, 32\) by config.json"):
        load(folder)


def test_a_tensor_of_another_kind(folder):
    change(folder, **{NAME: torch.zeros(48, 32, dtype=torch.int8)})
    with pytest.raises(ModelError, match=rf"model.safetensors: {NAME} is torch.int8, expected "
                                         r"torch.float32, torch.float16, torch.bfloat16"):
        load(folder)


def test_another_vocabulary(folder):
    write(folder / "config.json", ENTRIES | {"vocab_size": 41})
    with pytest.raises(ModelError, match=r"model.embed_tokens.weight has shape \(40, 32\), "
                                         r"expected \(41, 32\)"):
        load(folder)


@pytest.mark.parametrize("left", [-100, -1, 100, 4, 0])
def test_a_file_that_ends_early(folder, left):
    """Once the header is complete, the message has the length that the file should have."""
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    header = 8 + int.from_bytes(whole[:8], "little")
    expected = {100: f"{header} or more", 4: "more than 8", 0: "more than 8"}.get(left, len(whole))
    with pytest.raises(ModelError, match=(
            rf"model.safetensors is not a complete safetensors file: found {len(whole[:left])} "
            rf"bytes, expected {expected} \(")):
        load(folder)


@pytest.mark.parametrize("content", [
    b"version https://git-lfs.github.com/spec/v1\n", bytes(50), b"\x02" + bytes(7) + b"[]",
    b"\x02" + bytes(7) + b"{}...", b"\x07" + bytes(7) + b'{"a":1}'])
def test_a_file_of_another_kind(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=rf"found {len(content)} bytes, expected a list of tensors "
                                         r"first \("):
        load(folder)


def test_a_file_that_goes_on(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole + b"more")
    with pytest.raises(ModelError, match=rf"found {len(whole) + 4} bytes, expected {len(whole)} "):
        load(folder)


def test_an_archive_that_ends_early(folder):
    for content in (b"", b"PK\x03\x04 and no more", b"nothing of the kind"):
        (folder / "weights.npz").write_bytes(content)
        with pytest.raises(ModelError, match=r"weights.npz is not a complete NumPy archive \(\d+ "):
            load(folder)


def test_an_archive_with_a_wrong_byte(folder):
    """Each library on the way raises its own errors: zipfile, zlib, NumPy."""
    path = folder / "weights.npz"
    np.savez_compressed(path, a=np.arange(1000.0))
    whole, seen = path.read_bytes(), 0
    for i in range(0, len(whole), 7):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0xFF]) + whole[i + 1:])
        with pytest.raises(ModelError) as caught:
            load(folder)
        seen += "weights.npz is not a complete NumPy archive" in str(caught.value)
    assert seen > len(whole) / 7 / 2        # zip ignores some bytes; then the tensors are missing


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no model.safetensors and no model.safetensors.index"):
        load(folder)


def test_a_shard_that_is_missing(sharded):
    (sharded / "part-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"part-1.safetensors is missing; model.safetensors.index."
                                         r"json expects model\.\S+ in it"):
        load(sharded)


def test_a_shard_that_ends_early(sharded):
    path = sharded / "part-1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match="part-1.safetensors is not a complete safetensors file"):
        load(sharded)


def test_the_shard_of_a_wrong_tensor_is_named(sharded):
    index = json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]
    path = sharded / index[NAME]
    save_file(load_file(path) | {NAME: torch.zeros(32, 48)}, path)
    with pytest.raises(ModelError, match=rf"{index[NAME]}: {NAME} has shape \(32, 48\), expected"):
        load(sharded)


def test_an_index_that_is_wrong(sharded):
    index = sharded / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    other = {"part-0.safetensors": "part-1.safetensors",
             "part-1.safetensors": "part-0.safetensors"}[places[NAME]]
    write(index, {"weight_map": places | {NAME: other}})
    with pytest.raises(ModelError, match=f"{other}: no tensor {NAME}, though"):
        load(sharded)
    for entries in ({}, {"weight_map": {NAME: 1}}, {"weight_map": [NAME]}):
        write(index, entries)
        with pytest.raises(ModelError, match="expected a weight_map"):
            load(sharded)


# ---- tokenizers


def tokenizer(folder, size=30, **entries):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:size]
    built = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", entries)


def test_text_to_tokens_and_back(folder):
    tokenizer(folder)
    own = Tokenizer(folder, read_config(folder))
    assert own.decode(own.encode("0123")) == "0123"


def test_no_text_is_cut_or_padded_as_when_the_tokenizer_was_saved(folder):
    tokenizer(folder)
    file = folder / "tokenizer.json"
    built = Tokenizer(folder, read_config(folder)).own
    built.enable_truncation(4)
    built.enable_padding(length=4)
    built.save(str(file))
    own = Tokenizer(folder, read_config(folder))
    assert [own.decode(own.encode(text)) for text in ("0123012", "0")] == ["0123012", "0"]
    assert len(own.encode("0")) == 1


ADDED = [{}, {"bos_token": "0", "eos_token": "1"}, {"bos_token": None, "eos_token": "1"},
         {"bos_token": "<nowhere>", "eos_token": "<nowhere>"}]


@pytest.mark.parametrize("marks", ADDED)
@pytest.mark.parametrize("form, want", [(None, "23"), ("0 $A", "023"), ("0 $A 1", "0231")])
def test_what_stands_around_a_text_is_as_in_transformers(folder, marks, form, want):
    """tokenizer.json says it: add_bos_token and add_eos_token of the other file change nothing."""
    from tokenizers import processors

    reason = "not proven here: transformers is not installed"
    transformers = pytest.importorskip("transformers", reason=reason)
    write(folder / "config.json", ENTRIES | {"model_type": "llama", "vocab_size": 256})
    for flags in product((True, False, None), repeat=2):
        names = zip(("add_bos_token", "add_eos_token"), flags, strict=True)
        tokenizer(folder, 256, **marks, **{name: flag for name, flag in names if flag is not None})
        built = Tokenizer(folder, read_config(folder)).own
        if form:
            built.post_processor = processors.TemplateProcessing(
                single=form, special_tokens=[(mark, built.token_to_id(mark)) for mark in "01"])
        built.save(str(folder / "tokenizer.json"))
        own = Tokenizer(folder, read_config(folder)).encode("23")
        assert own == [built.token_to_id(letter) for letter in want], flags
        for kind in (transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast):
            assert kind.from_pretrained(folder)("23").input_ids == own, (kind, flags)


@pytest.mark.parametrize("more, ends", [
    ({"eos_token_id": [1, 7]}, (1, 7)), ({"eos_token_id": 7}, (7,)), ({"eos_token_id": None}, (2,)),
    ({"max_length": 20}, (2,)), ({"eos_token_id": [1, 40, -1, 10 ** 9]}, (1,))])
def test_a_text_ends_where_the_folder_says(folder, more, ends):
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", config | {"eos_token_id": 2})
    write(folder / "generation_config.json", more)
    assert read_config(folder).ends == ends
    if more.get("eos_token_id") is not None:
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        theirs = transformers.GenerationConfig.from_pretrained(folder).eos_token_id
        theirs = theirs if isinstance(theirs, list) else [theirs]
        assert ends == tuple(token for token in theirs if token in range(40))
    assert read_config(folder, ["eos_token_id"]).ends == ()
    write(folder / "generation_config.json", {"eos_token_id": "7"})
    with pytest.raises(ModelError, match="generation_config.json: eos_token_id is '7'"):
        read_config(folder)


def write_chain(folder, *tokens, **entries):
    """A model whose layers add nothing: after each of these tokens it writes the one after it."""
    write(folder / "config.json", ENTRIES | {"model_type": "llama", "tie_word_embeddings": False}
          | entries)
    weights = {name: torch.zeros(shape) for name, shape in shapes(read_config(folder))}
    weights["model.norm.weight"] += 1
    for i, (token, after) in enumerate(pairwise(tokens)):
        weights["model.embed_tokens.weight"][token, i] = 1
        weights["lm_head.weight"][after, i] = 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_text_ends_at_a_token_that_only_generation_config_names(folder):
    write_chain(folder, 3, 4, 5, 7, 8, 9, eos_token_id=1)
    write(folder / "generation_config.json", {"eos_token_id": [1, 7]})
    own = [token for token, _ in continuation(load(folder), [3], 5)]
    assert own == [4, 5, 7]
    reason = "not proven here: transformers is not installed"
    transformers = pytest.importorskip("transformers", reason=reason)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    want = theirs.generate(torch.tensor([[3]]), do_sample=False, max_new_tokens=5)
    assert want[0, 1:].tolist() == own


def test_a_conversation_goes_through_the_folders_template(folder):
    tokenizer(folder, 40, bos_token="0", eos_token={"content": "1"},
              chat_template="{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}"
                            "{% endfor %}{% if add_generation_prompt %}2{% endif %}")
    own = Tokenizer(folder, read_config(folder))
    assert own.decode(own.chat([{"role": "user", "content": "33"}])) == "03312"


def test_a_template_in_a_file_of_its_own(folder):
    tokenizer(folder, 40, chat_template="1", eos_token="0")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}{{ eos_token }}")
    own = Tokenizer(folder, read_config(folder))
    assert own.decode(own.chat([{"role": "user", "content": "33"}])) == "330"


TOOL = {"type": "function", "function": {"name": "3"}}
TOLD = "{% for t in tools %}{{ t.function.name }}{% endfor %}{{ messages[0].content }}"


@pytest.mark.parametrize("template", [
    TOLD, [{"name": "default", "template": "1"}, {"name": "tool_use", "template": TOLD}]])
def test_a_conversation_with_tools(folder, template):
    tokenizer(folder, 40, chat_template=template)
    own = Tokenizer(folder, read_config(folder))
    assert own.decode(own.chat([{"role": "user", "content": "2"}], [TOOL, TOOL])) == "332"


def test_a_template_that_knows_no_tools(folder):
    tokenizer(folder, chat_template="{{ messages[0].content }}")
    with pytest.raises(ModelError, match="_config.json: the chat_template knows no tools"):
        Tokenizer(folder, read_config(folder)).chat([{"role": "user", "content": "2"}], [TOOL])


@pytest.mark.parametrize("template, says", [
    ("{% for m in messages %}", "Unexpected end of template"),
    ("{{ strange() }}", "'strange' is undefined"), ("{{ 1 // 0 }}", "division"),
    ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "'__class__' of 'str' object is unsafe"),
    ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
    ("{{ raise_exception('roles must take turns') }}", "roles must take turns$")])
def test_a_template_that_fails(folder, template, says):
    tokenizer(folder, chat_template=template)
    with pytest.raises(ModelError, match=f"_config.json: the chat_template fails: .*{says}"):
        Tokenizer(folder, read_config(folder)).chat([])


TURNS = """{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('take turns') }}{% endif %}
{%- if loop.index0 > 2 %}{% break %}{% endif %}
{{ '[' + m.role + ']' }} {{ m | tojson }} {{ bos_token }}{%- endfor %}
{% if tools is defined and tools is none %}{{ strftime_now('%Y') }}{% endif %}"""


def test_a_template_may_use_what_transformers_gives_it(folder):
    from transformers.utils.chat_template_utils import render_jinja_template

    tokenizer(folder, 256, chat_template=TURNS, bos_token="<")
    write(folder / "config.json", ENTRIES | {"vocab_size": 256})
    own = Tokenizer(folder, read_config(folder))
    talk = [{"role": role, "content": "2 < 3 é"} for role in ("user", "assistant") * 2]
    want = render_jinja_template([talk], chat_template=TURNS, add_generation_prompt=True,
                                 bos_token="<")[0][0]
    assert own.decode(own.chat(talk)) == want and str(datetime.now().year) in want
    with pytest.raises(ModelError, match="the chat_template fails: take turns$"):
        own.chat(talk[1:])


@pytest.mark.parametrize("entries", [
    {}, {"bos_token": "4"}, {"added_tokens_decoder": {}, "bos_token": "4", "eos_token": "5"}])
def test_marks_lie_in_a_file_of_their_own_in_older_folders(folder, entries):
    transformers = pytest.importorskip("transformers")
    tokenizer(folder, 256, chat_template="{{ bos_token }}0{{ eos_token }}", **entries)
    write(folder / "config.json", ENTRIES | {"vocab_size": 256})
    write(folder / "special_tokens_map.json", {"bos_token": {"content": "1"}, "eos_token": "2"})
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    own = Tokenizer(folder, read_config(folder))
    want = theirs.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
    assert own.decode(own.chat([])) == want == ("405" if len(entries) > 1 else "102")


NAMED = [{"name": "tool_use", "template": "2"},
         {"name": "default", "template": "{{ messages[0].content }}{{ eos_token }}"}]


@pytest.mark.parametrize("template", [
    NAMED, NAMED[1]["template"],
    "{% set x = '4' %}{% for m in messages %}{% generation %}{% set x = '5' %}{{ x + m.content }}"
    "{% endgeneration %}{{ x }}{% endfor %}",
    "{%- generation -%} 1 {%- endgeneration -%} 2{% generation %}\n0\n{% endgeneration %}\n3"])
def test_a_template_says_what_it_says_in_transformers(folder, template):
    """Templates may have names; a model's own words may stand between generation and its end."""
    transformers = pytest.importorskip("transformers")
    tokenizer(folder, 256, chat_template=template, eos_token="1")
    write(folder / "config.json", ENTRIES | {"vocab_size": 256})
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    talk = [{"role": "user", "content": "33"}, {"role": "assistant", "content": "4"}]
    own = Tokenizer(folder, read_config(folder))
    want = theirs.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    assert own.decode(own.chat(talk)) == want and want


@pytest.mark.parametrize("template, says", [
    (NAMED[:1], "_config.json: no chat_template named default; found tool_use"),
    ([], "_config.json: no chat_template named default; found none"),
    (["{{ eos_token }}"], "chat_template is a list, expected objects with name and template in it"),
    ([{"name": "default"}], "chat_template is a list, expected objects with name and temp"),
    ([{"name": "default", "template": 1}], "chat_template is a int, expected a text"),
    (1, "_config.json: chat_template is a int, expected a text, or a list of them with names")])
def test_templates_of_which_none_can_be_taken(folder, template, says):
    tokenizer(folder, chat_template=template)
    with pytest.raises(ModelError, match=says):
        Tokenizer(folder, read_config(folder)).chat([{"role": "user", "content": "0"}])


@pytest.mark.parametrize("prepare, says", [
    (lambda folder: None, "tokenizer.json is missing"),
    (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is not a tokenizer"),
    (lambda folder: tokenizer(folder, 41), "has a token number 40, 'I', expected numbers ")])
def test_a_tokenizer_that_does_not_fit(folder, prepare, says):
    prepare(folder)
    with pytest.raises(ModelError, match=says):
        Tokenizer(folder, read_config(folder))


def test_a_tokenizer_with_gaps(folder):
    """Few tokens, and one of them beyond the embedding."""
    tokenizer(folder)
    path = folder / "tokenizer.json"
    entries = json.loads(path.read_text())
    entries["model"]["vocab"]["~"] = 50
    write(path, entries)
    with pytest.raises(ModelError, match="has a token number 50, '~', expected numbers below"):
        Tokenizer(folder, read_config(folder))


def test_a_token_that_was_added_beyond_the_embedding(folder):
    """As in transformers: only a text that has it is refused."""
    tokenizer(folder, 40, chat_template="{{ messages[0].content }}")
    own = Tokenizer(folder, read_config(folder))
    own.own.add_tokens(["<more>"])
    own.own.save(str(folder / "tokenizer.json"))
    own = Tokenizer(folder, read_config(folder))
    assert own.decode(own.encode("0123")) == "0123"
    for tokens in (lambda: own.encode("01<more>"), lambda: own.chat([{"content": "<more>"}])):
        with pytest.raises(ModelError, match="the text has a token number 40, '<more>', expected "
                                             "numbers below the model's 40"):
            tokens()


def test_no_chat_template(folder):
    tokenizer(folder)
    with pytest.raises(ModelError, match="this model has no chat_template; send a plain prompt"):
        Tokenizer(folder, read_config(folder)).chat([{"role": "user", "content": "0"}])


def test_config_is_data():
    m = Config(L=1, C=4, H=2, G=1, D=16, F=8, V=3, eps=1e-5, theta=1e4, room=8)
    assert m.scale == 0.25 and hash(m) == hash(Config(**vars(m)))
