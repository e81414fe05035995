"""What Hugging Face's config.json says of a Llama and its relatives, in the course's letters."""

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Config", "ModelError", "read_config"]


class ModelError(ValueError):
    """A folder that is not a model this course can run: file, what was expected, what was found."""


@dataclass(frozen=True)
class Config:
    """A decoder: L layers of RMSNorm, attention, RMSNorm and gated MLP, each with its residual.

    What the families differ in stands at the end.
    """

    L: int                          # layers
    C: int                          # model width
    H: int                          # query heads
    G: int                          # key and value heads
    D: int                          # head width
    F: int                          # mlp width
    V: int                          # vocabulary
    eps: float                      # of the norms
    theta: float                    # base of the rotary angles
    room: int                       # longest context; with a window no longer than that
    ends: tuple[int, ...] = ()      # tokens that end a text
    scaling: tuple = ()             # of the rotary angles: (("rope_type", "llama3"), …) or nothing
    tied: bool = False              # the embedding serves as the head
    bias_qkv: bool = False
    bias_o: bool = False
    bias_mlp: bool = False
    qk_norm: bool = False           # RMSNorm of each head of q and k before the rotation
    window: int | None = None       # tokens that attention would slide over; here it never slides

    @property
    def scale(self):
        """Of the scores of attention."""
        return self.D ** -0.5

    def check_room(self, N):
        """ModelError where a context of N tokens is longer than the model's longest."""
        if self.room < N:
            why = "" if self.window != self.room else (
                ", the window that its attention slides over; here none slides")
            raise ModelError(f"a context of {N} tokens; the model has room for {self.room}{why}")


# architecture -> (bias of q, k and v; of o; of the mlp; norms of q and k); a string names the entry
# of config.json that says so. Source: the models of Hugging Face transformers 5.
FAMILIES = {
    "LlamaForCausalLM": ("attention_bias", "attention_bias", "mlp_bias", False),
    "MistralForCausalLM": (False, False, False, False),
    "Qwen2ForCausalLM": (True, False, False, False),
    "Qwen3ForCausalLM": ("attention_bias", "attention_bias", False, True),
}
SCALINGS = {        # type -> the entries that it needs
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "vocab_size")
OPTIONAL = {"num_key_value_heads": int, "head_dim": int, "max_position_embeddings": int,
            "sliding_window": int, "rms_norm_eps": int | float, "rope_theta": int | float}


def read_config(folder):
    """The Config of a model's folder. ModelError names the file, what was expected and found."""
    path = Path(folder) / "config.json"
    entries = read_json(path)
    family, *others = entries.get("architectures") or ("none",)
    if family not in FAMILIES or others:
        raise ModelError(f"{path}: expected one architecture of {', '.join(FAMILIES)}; found "
                         f"{', '.join([family, *others])}")
    for name in NEEDED:
        if not isinstance(entries.get(name), int) or entries[name] < 1:
            raise ModelError(f"{path}: {name} is {entries.get(name)!r}, expected a whole number")
    first = entries.get("max_window_layers", 0)
    if not isinstance(first, int) or first < 0:
        raise ModelError(f"{path}: max_window_layers is {first!r}, expected a whole number")
    for name, kind in OPTIONAL.items():
        value = entries.get(name)
        if value is not None and (not isinstance(value, kind) or value <= 0):
            raise ModelError(f"{path}: {name} is {value!r}, expected a "
                             f"{'whole number' if kind is int else 'number'} above 0")
    if entries.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{path}: hidden_act is {entries['hidden_act']!r}, expected 'silu'")
    H, C = entries["num_attention_heads"], entries["hidden_size"]
    G = entries.get("num_key_value_heads") or H
    if H % G:
        raise ModelError(f"{path}: {H} query heads cannot share {G} key heads evenly")
    D = entries.get("head_dim") or C // H
    if D % 2:
        raise ModelError(f"{path}: heads are {D} wide, expected an even number: they are turned in "
                         f"pairs")
    theta, scaling = rotation(path, entries)
    room, window = entries.get("max_position_embeddings") or 2048, sliding(family, entries)
    flags = [entries.get(f, False) if isinstance(f, str) else f for f in FAMILIES[family]]
    ends = entries.get("eos_token_id")
    return Config(
        L=entries["num_hidden_layers"], C=C, H=H, G=G, D=D,
        F=entries["intermediate_size"], V=entries["vocab_size"],
        eps=entries.get("rms_norm_eps", 1e-6), theta=theta, room=min(room, window or room),
        ends=() if ends is None else tuple(ends) if isinstance(ends, list) else (ends,),
        scaling=scaling,
        tied=entries.get("tie_word_embeddings", False),
        bias_qkv=flags[0], bias_o=flags[1], bias_mlp=flags[2], qk_norm=flags[3], window=window)


def rotation(path, entries):
    """(theta, scaling): transformers 5 has both in rope_parameters, transformers 4 apart."""
    found = entries.get("rope_parameters") or entries.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise ModelError(f"{path}: rotary scaling is {found!r}, expected a JSON object or null")
    found = dict(found)
    theta = found.pop("rope_theta", None) or entries.get("rope_theta") or 10_000.0
    if not isinstance(theta, int | float) or theta <= 0:
        raise ModelError(f"{path}: rope_theta is {theta!r}, expected a number above 0")
    kind = found.pop("rope_type", None) or found.pop("type", "default")
    found.pop("type", None)
    if kind not in SCALINGS:
        raise ModelError(f"{path}: rotary scaling {kind!r}, expected {', '.join(SCALINGS)}")
    for name in SCALINGS[kind]:
        if name == "original_max_position_embeddings" and kind == "yarn":
            found.setdefault(name, entries.get("max_position_embeddings"))
        if not isinstance(found.get(name), int | float):
            raise ModelError(f"{path}: rotary scaling {kind} has {name} = {found.get(name)!r}, "
                             f"expected a number")
    if kind == "default":
        return theta, ()
    return theta, (("rope_type", kind), *sorted(found.items()))


def sliding(family, entries):
    """The window of the layers whose attention slides; None where none does.

    As transformers has it: of a Qwen the layers that layer_types names, else those from
    max_window_layers on, and none where use_sliding_window does not say so. A window that is not
    named has 4096 tokens. A Llama has none there; one that names one is taken by its word here.
    """
    if family.startswith("Qwen"):
        layers = entries.get("layer_types") or ["sliding_attention"] * (
            entries["num_hidden_layers"] > entries.get("max_window_layers", 28))
        if not entries.get("use_sliding_window") or "sliding_attention" not in layers:
            return None
    return entries.get("sliding_window", None if family == "LlamaForCausalLM" else 4096)


def read_json(path):
    """A JSON object from a file. ModelError where it is missing, unreadable or no object."""
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path}: expected a JSON object, found a {type(found).__name__}")
    return found
