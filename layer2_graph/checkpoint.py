"""A model's folder as Hugging Face has it: weights in safetensors, the tokenizer, its template."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from layer2_graph.config import Config
from layer2_graph.config_entries import ModelError, read_json, shown
from layer2_graph.experts import disk_shapes, expert_shapes, stack
from layer2_graph.mixers import mixer_shapes

__all__ = ["Tokenizer", "read_weights"]

MAX_HEADER_BYTES = 100_000_000      # of a safetensors file, by the format
HEAD = "lm_head.weight"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


# ---- weights


def shapes(m: Config, experts=expert_shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every tensor of a model.
    A matrix is (numbers out, numbers in).

    experts: expert_shapes, as they are in memory, or disk_shapes
    """
    yield "model.embed_tokens.weight", (m.V, m.C)
    for i in range(m.L):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (m.C,)
        yield from mixer_shapes(layer, i, m)
        yield f"{layer}.self_attn.o_proj.weight", (m.C, m.H * m.D)
        if m.bias_o:
            yield f"{layer}.self_attn.o_proj.bias", (m.C,)
        if m.qk_norm:
            yield f"{layer}.self_attn.q_norm.weight", (m.D,)
            yield f"{layer}.self_attn.k_norm.weight", (m.D,)
        yield f"{layer}.post_attention_layernorm.weight", (m.C,)
        if m.has_experts(i):
            yield from experts(f"{layer}.", m)
            continue
        for name, shape in (("gate", (m.F, m.C)), ("up", (m.F, m.C)), ("down", (m.C, m.F))):
            yield f"{layer}.mlp.{name}_proj.weight", shape
            if m.bias_mlp:
                yield f"{layer}.mlp.{name}_proj.bias", shape[:1]
    yield "model.norm.weight", (m.C,)
    if not m.tied:
        yield HEAD, (m.V, m.C)


def read_weights(folder: Path | str, config: Config, dtype: torch.dtype | None = None,
                 device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """{name: tensor} of a model's folder, as `shapes` lists them.

    The folder holds model.safetensors, or model.safetensors.index.json and its shards, or
    weights.npz as o02's nano Llama does. dtype: of the result; None leaves the file's. ModelError
    names the file and the tensor, what was expected and what was found.
    A tensor that the model does not use is an error as well.
    """
    files = files_of(Path(folder))
    weights = {}
    for name, shape in shapes(config, disk_shapes):
        if name not in files:
            raise ModelError(f"{source_of(Path(folder))}: no tensor {name}; expected one of shape "
                             f"{shape}")
        path, read = files[name]
        tensor = read()
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{path}: {name} has shape {tuple(tensor.shape)}, expected {shape} "
                             f"by config.json")
        if tensor.dtype not in FLOATS:
            raise ModelError(f"{path}: {name} is {tensor.dtype}, expected "
                             f"{', '.join(map(str, FLOATS))}")
        weights[name] = tensor.to(device=device, dtype=dtype or tensor.dtype)
    check_extra(files, weights, config)
    for i in range(config.L):
        if config.has_experts(i):
            stack(f"model.layers.{i}.", config, weights)
    return weights


def check_extra(files, weights, config):
    """ModelError if a folder has tensors that this model would leave unused.

    Two are allowed: rotary frequencies, which older files have and which follow from config.json,
    and a head equal to the embedding, if the embedding serves as the head.
    """
    extra = sorted(name for name in files.keys() - weights.keys()
                   if not name.endswith("rotary_emb.inv_freq"))
    if config.tied and HEAD in extra:
        embedding = weights["model.embed_tokens.weight"]
        head = files[HEAD][1]().to(device=embedding.device, dtype=embedding.dtype)
        if not torch.equal(head, embedding):
            raise ModelError(f"{files[HEAD][0]}: {HEAD} is not model.embed_tokens.weight, though "
                             f"config.json has tie_word_embeddings: true")
        extra.remove(HEAD)
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise ModelError(f"{files[extra[0]][0]}: a tensor {shown(extra[0])[1:-1]}{more}, which the "
                         f"model of this config.json does not use; expected only its own")


def source_of(folder):
    """The file that says which tensors a folder has.
    ModelError if there is none."""
    for name in ("weights.npz", "model.safetensors", "model.safetensors.index.json"):
        if (folder / name).exists():
            return folder / name
    raise ModelError(f"{folder}: no model.safetensors and no model.safetensors.index.json")


def files_of(folder):
    """{tensor's name: (its file, a function that reads it)}. ModelError if a file is missing or
    incomplete."""
    index = source_of(folder)
    if index.suffix != ".json":
        return (arrays if index.suffix == ".npz" else tensors)(index)
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
        raise ModelError(f"{index}: expected a weight_map from tensors to files, found none")
    shards = {}
    for name, shard in places.items():
        path = folder / shard
        if not path.exists():
            raise ModelError(f"{path} is missing; {index.name} expects {name} in it")
        if shard not in shards:
            shards[shard] = tensors(path)
        if name not in shards[shard]:
            raise ModelError(f"{path}: no tensor {name}, though {index.name} says so")
    return {name: shards[shard][name] for name, shard in places.items()}


def tensors(path):
    """files_of one safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} is not a complete safetensors file: found "
                         f"{path.stat().st_size} bytes, expected {length(path)} "
                         f"({error})") from None
    return {name: (path, lambda name=name: file.get_tensor(name))
            for name in file.keys()}  # noqa: SIM118


def length(path):
    """The bytes that a rejected safetensors file should have by its own header, in words.

    Source: the format. 8 bytes give the header's length; the header is a JSON object that gives,
    for each tensor, where it begins and ends after the header.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
            header = int.from_bytes(start, "little")
            text = file.read(min(header, MAX_HEADER_BYTES))
        if len(start) < 8:
            return "more than 8"
        if len(text) < header <= MAX_HEADER_BYTES:
            return f"{8 + header} or more"
        ends = [tensor["data_offsets"][1] for name, tensor in json.loads(text).items()
                if name != "__metadata__"]
        return str(8 + header + max(ends))
    except OSError:
        return "a file that can be read"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "a list of tensors first"


def arrays(path):
    """files_of one NumPy archive."""
    try:
        with np.load(path) as file:
            tensors = dict(file)
    except Exception as error:                      # of zipfile, zlib or NumPy, each its own
        raise ModelError(f"{path} is not a complete NumPy archive ({path.stat().st_size} bytes): "
                         f"{error}") from None
    return {name: (path, lambda value=value: torch.from_numpy(value))
            for name, value in tensors.items()}


# ---- text


class Tokenizer:
    """The tokenizer of a folder: tokenizer.json, and tokenizer_config.json for chats."""

    def __init__(self, folder: Path | str, config: Config):
        """ModelError if tokenizer.json is missing, broken, or its vocabulary is not the model's.
        Tokens that were added to it may lie beyond the model's, as long as no text has them."""
        from tokenizers import Tokenizer

        path = Path(folder) / "tokenizer.json"
        if not path.exists():
            raise ModelError(f"{path} is missing")
        try:
            self.own = Tokenizer.from_file(str(path))
        except Exception as error:                  # the library raises nothing narrower
            raise ModelError(f"{path} is not a tokenizer: {error}") from None
        self.own.no_truncation()        # what was set when it was saved: transformers takes neither
        self.own.no_padding()
        self.V = config.V
        self.check(list(self.own.get_vocab(with_added_tokens=False).values()), f"{path} has")
        self.path = path.with_name("tokenizer_config.json")
        self.entries = read_json(self.path) if self.path.exists() else {}
        marks = path.with_name("special_tokens_map.json")
        if marks.exists() and "added_tokens_decoder" not in self.entries:   # as transformers has it
            self.entries |= read_json(marks)
        apart = path.with_name("chat_template.jinja")       # where transformers 5 writes it
        if apart.exists():
            self.path, self.entries["chat_template"] = apart, apart.read_text("utf-8")

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with those before and after it that tokenizer.json asks for.
        As in transformers, tokenizer_config.json adds none: its add_bos_token is not read.
        ModelError if a token is beyond the model's."""
        return self.check(self.own.encode(text).ids, "the text has")

    def check(self, tokens: list[int], has: str) -> list[int]:
        """These tokens.
        ModelError if one is beyond the model's."""
        if (last := max(tokens, default=0)) >= self.V:
            raise ModelError(f"{has} a token number {last}, {self.own.id_to_token(last)!r}, "
                             f"expected numbers below the model's {self.V}")
        return tokens

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, without those that only mark its beginning or end."""
        return self.own.decode(list(tokens))

    def chat(self, messages: Sequence[dict], tools: list[dict] | None = None) -> list[int]:
        """The tokens of a conversation, [{"role": …, "content": …}], up to where the answer begins.
        tools: functions that the model is told of, as OpenAI's clients send them

        ModelError if the template fails or refuses the conversation, or knows no tools.
        """
        template = self.tool_template() if tools else self.template()
        marks = {name: token["content"] if isinstance(token, dict) else token
                 for name, token in self.entries.items() if name.endswith("_token") and token}
        try:
            text = chat_environment().from_string(template).render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=True, **marks)
        except Exception as error:                  # a template is a program: it may raise anything
            raise ModelError(f"{self.path}: the chat_template fails: {error}") from None
        return self.check(self.own.encode(text, add_special_tokens=False).ids, "the text has")

    def tool_template(self) -> str:
        """The template of a conversation with tools.
        ModelError if it would leave them out."""
        from jinja2 import meta

        text = self.template("tool_use")
        try:
            names = meta.find_undeclared_variables(chat_environment().parse(text))
        except Exception as error:                  # of the template's own syntax
            raise ModelError(f"{self.path}: the chat_template fails: {error}") from None
        if "tools" not in names:
            raise ModelError(f"{self.path}: the chat_template knows no tools")
        return text

    def template(self, wanted: str = "default") -> str:
        """The template of a conversation.
        If tokenizer_config.json has a list of named templates, it is the wanted one if that is
        there, and "default" otherwise, as in transformers.
        """
        text = self.entries.get("chat_template")
        if isinstance(text, list):
            try:
                text = {entry["name"]: entry["template"] for entry in text}
            except (KeyError, TypeError):
                raise ModelError(f"{self.path}: chat_template is a list, expected objects with "
                                 f"name and template in it") from None
        if isinstance(text, dict):
            if "default" not in text:
                raise ModelError(f"{self.path}: no chat_template named default; found "
                                 f"{', '.join(map(str, text)) or 'none'}")
            text = text.get(wanted, text["default"])
        if text is None:
            raise ModelError(f"{self.path}: this model has no chat_template; send a plain prompt")
        if not isinstance(text, str):
            raise ModelError(f"{self.path}: chat_template is a {type(text).__name__}, expected a "
                             f"text, or a list of them with names")
        return text


def chat_environment():
    """What chat templates may use: jinja2's sandbox, and what transformers adds to it."""
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Scope
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} … {% endgeneration %} marks the model's own words, for training.
        Its contents are rendered as usual, and names set in them are unset after it."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True),
                         lineno=line)

    def raise_exception(message):
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals |= {"raise_exception": raise_exception,
                            "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment
