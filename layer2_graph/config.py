"""What Hugging Face's config.json says of a Llama and its relatives, in the course's letters."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layer2_graph.config_entries import (
    NEUTRAL,
    NEUTRAL_VALUES,
    READ,
    SCALING_VALUES,
    SCALINGS,
    SHOWN,
    ModelError,
    check_known,
    is_number,
    read_json,
    shown,
    way_around,
)
from layer2_graph.experts import ENTRIES, experts_of
from layer2_graph.mixers import ENTRIES as MIXER_ENTRIES
from layer2_graph.mixers import MAX_INTEGER, mixer_of

__all__ = ["Config", "ModelError", "read_config"]


@dataclass(frozen=True)
class Config:
    """A decoder: L layers of RMSNorm, attention, RMSNorm and gated MLP, each with its residual.

    With experts (g12) a layer has E MLPs, of which each token chooses k. Some layers may keep a
    state (g13) in place of keys and values.
    The differences between families stand at the end.
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
    room: int                       # longest context; no longer than a window
    ends: tuple[int, ...] = ()      # tokens that end a text
    scaling: tuple = ()             # of the rotary angles: (("rope_type", "llama3"), …) or nothing
    tied: bool = False              # the embedding serves as the head
    bias_qkv: bool = False
    bias_o: bool = False
    bias_mlp: bool = False
    qk_norm: bool = False           # RMSNorm of each head of q and k before the rotation
    window: int | None = None       # tokens that attention would slide over; here it never slides
    E: int = 0                      # experts of a layer; 0: one MLP, which every token has
    k: int = 0                      # experts that a token chooses
    F_expert: int = 0               # width of one
    renormalise: bool = True        # the weights of the k experts, to a sum of 1
    dense_layers: tuple[int, ...] = ()      # that have one MLP of width F in place of experts
    expert_names: str = ""          # on disk: a key of layer2_graph.experts.TENSORS
    latent: int = 0                 # width of the latent of keys and values (g11); 0: there is none
    rotated: int = 0                # width of the rotated part of a key, beside a latent
    linear: tuple[int, ...] = ()    # layers that keep a state (g13)
    N: int = 0                      # width of q and k in those; v has D
    W: int = 0                      # tokens that their short convolution sees

    @property
    def scale(self) -> float:
        """The factor of attention's scores."""
        return (self.D + self.rotated) ** -0.5

    def expect_plain(self) -> None:
        """ValueError if layers have experts, latents or states, which few of the tools handle."""
        for what, number in (("experts", self.E), ("latents", self.latent),
                             ("states", len(self.linear))):
            if number:
                raise ValueError(f"a model with {what}, expected one without")

    def pages(self) -> "Config":
        """The same for pages alone: as many layers as have keys and values."""
        return replace(self, L=self.L - len(self.linear), linear=())

    def has_experts(self, i: int) -> bool:
        """Whether layer i has experts."""
        return self.E > 0 and i not in self.dense_layers

    def check_room(self, N: int) -> None:
        """ModelError if a context of N tokens is longer than the model's longest."""
        if self.room < N:
            why = "" if self.window != self.room else (
                ", the window that its attention slides over; here windows do not slide")
            raise ModelError(f"a context of {N} tokens; the model has room for {self.room}{why}")


# architecture -> (bias of q, k and v; of o; of the mlp; norms of q and k); a string names the entry
# of config.json that says so. Source: the models of Hugging Face transformers 5.
FAMILIES = {
    "LlamaForCausalLM": ("attention_bias", "attention_bias", "mlp_bias", False),
    "MistralForCausalLM": (False, False, False, False),
    "Qwen2ForCausalLM": (True, False, False, False),
    "Qwen3ForCausalLM": ("attention_bias", "attention_bias", False, True),
    "MixtralForCausalLM": (False, False, False, False),
    "Qwen3MoeForCausalLM": ("attention_bias", "attention_bias", False, True),
    "ThreeFloorsLatent": (False, False, False, False),
    "ThreeFloorsHybrid": (False, False, False, False),
}
DEFAULTS: dict[str, dict[str, Any]] = {            # of entries that are missing, by the same source
    "LlamaForCausalLM": {"max_position_embeddings": 2048},
    "MistralForCausalLM": {"max_position_embeddings": 131_072, "num_key_value_heads": 8,
                           "sliding_window": 4096},
    "Qwen2ForCausalLM": {"max_position_embeddings": 32_768, "num_key_value_heads": 32,
                         "sliding_window": 4096, "max_window_layers": 28},
    "Qwen3ForCausalLM": {"max_position_embeddings": 32_768, "num_key_value_heads": 32,
                         "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
    "MixtralForCausalLM": {"max_position_embeddings": 131_072, "num_key_value_heads": 8,
                           "rms_norm_eps": 1e-5, "rope_theta": 1e6},
    "Qwen3MoeForCausalLM": {"max_position_embeddings": 32_768, "num_key_value_heads": 4},
    "ThreeFloorsLatent": {"max_position_embeddings": 2048},
    "ThreeFloorsHybrid": {"max_position_embeddings": 2048},
}
NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "vocab_size")
INTEGERS = (*NEEDED, "num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window",
         "max_window_layers")
FLAGS = ("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window")
LARGEST_ROOM = 2**22        # tokens: the rotary tables of wide heads take 2 GB then


def read_config(folder: Path | str, ignore: Collection[str] = ()) -> Config:
    """The Config of a model's folder.
    ModelError names the file, what was expected and found.

    ignore: names of entries that are taken as absent, also in the rotary scaling.
    Any other entry that is neither read here nor known to leave the scores alone is refused.
    """
    path = Path(folder) / "config.json"
    entries = {name: value for name, value in read_json(path).items() if name not in ignore}
    family = family_of(path, entries)
    kind = kind_of(path, family, entries)
    check_known(path, "", entries, READ | NEUTRAL | ENTRIES.get(family, {}).keys()
                | MIXER_ENTRIES.get(family, {}).keys(), NEUTRAL_VALUES)
    entries = DEFAULTS[family] | entries
    check_kinds(path, entries)
    flags = biases(path, family, entries)
    H, G, D = heads(path, entries)
    theta, scaling = rotation(path, entries, ignore)
    room = longest(entries["max_position_embeddings"]
                   or DEFAULTS[family]["max_position_embeddings"], dict(scaling))
    window = sliding(path, family, entries)
    return Config(
        L=entries["num_hidden_layers"], C=entries["hidden_size"], H=H, G=G, D=D,
        F=entries["intermediate_size"], V=entries["vocab_size"],
        eps=entries.get("rms_norm_eps") or 1e-6, theta=theta, room=min(room, window or room),
        ends=ends(path, entries, ignore), scaling=scaling,
        tied=bool(entries.get("tie_word_embeddings")),
        bias_qkv=flags[0], bias_o=flags[1], bias_mlp=flags[2], qk_norm=flags[3], window=window,
        **mixer_of(path, family, entries), **experts_of(path, family, kind, entries))


# ---- what is checked


def family_of(path, entries):
    """The one architecture, which must be in FAMILIES."""
    names = entries.get("architectures") or ["none"]
    if not isinstance(names, list) or len(names) != 1 or str(names[0]) not in FAMILIES:
        words = ", ".join(map(str, names)) if isinstance(names, list) else repr(names)
        raise ModelError(f"{path}: architectures: expected one architecture of "
                         f"{', '.join(FAMILIES)}; found {words[:SHOWN]}")
    return names[0]


def kind_of(path, family, entries):
    """A family's model_type.
    ModelError if the entry of that name says otherwise."""
    kind = family.removesuffix("ForCausalLM").replace("Moe", "_moe").lower()
    if entries.get("model_type", kind) != kind:
        raise ModelError(f"{path}: model_type is {shown(entries['model_type'])}, expected "
                         f"{kind!r} of a {family}")
    return kind


def check_kinds(path, entries):
    """ModelError if an entry that is read has a wrong type."""
    for name in INTEGERS:
        value = entries.get(name)
        if value is None and name not in NEEDED or name == "max_window_layers" and value == 0:
            continue
        largest = LARGEST_ROOM if name == "max_position_embeddings" else MAX_INTEGER
        if not is_number(value, int) or value > largest:
            raise ModelError(f"{path}: {name} is {shown(value)}, expected a whole number above 0, "
                             f"at most {largest}")
    for name in ("rms_norm_eps", "rope_theta"):
        value = entries.get(name)
        if value is not None and not is_number(value, int, float):
            raise ModelError(f"{path}: {name} is {shown(value)}, expected a number above 0")
    for name in FLAGS:
        value = entries.get(name)
        if value is not None and not isinstance(value, bool):
            raise ModelError(f"{path}: {name} is {shown(value)}, expected true or false")
    if entries.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{path}: hidden_act is {shown(entries['hidden_act'])}, expected 'silu'")


def ends(path, entries, ignore):
    """The tokens that end a text: those of generation_config.json, if it names some.
    A number that no token has ends none."""
    V = entries["vocab_size"]
    beside = path.with_name("generation_config.json")
    more = read_json(beside) if beside.exists() and "eos_token_id" not in ignore else {}
    if more.get("eos_token_id") is not None:
        path, entries = beside, more
    value = entries.get("eos_token_id")
    tokens = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(token) is int for token in tokens):
        raise ModelError(f"{path}: eos_token_id is {shown(value)}, expected a whole number, or a "
                         f"list of them")
    return tuple(token for token in tokens if 0 <= token < V)


def biases(path, family, entries):
    """A family's row of FAMILIES, as flags.
    ModelError if an entry says otherwise."""
    flags = FAMILIES[family]
    for name, flag in (("attention_bias", flags[0]), ("mlp_bias", flags[2])):
        if isinstance(flag, bool) and entries.get(name) not in (None, flag):
            raise ModelError(f"{path}: {name} is {entries[name]}, expected {flag}, as every "
                             f"{family} has it")
    return [bool(entries.get(flag)) if isinstance(flag, str) else flag for flag in flags]


def heads(path, entries):
    """(H, G, D): query heads, key heads, head width."""
    H = entries["num_attention_heads"]
    C = entries["hidden_size"]
    G = entries.get("num_key_value_heads") or H
    if H % G:
        raise ModelError(f"{path}: {H} query heads cannot share {G} key heads evenly")
    if not entries.get("head_dim") and C % H:
        raise ModelError(f"{path}: hidden_size is {C}, expected a multiple of the {H} heads, or a "
                         f"head_dim")
    D = entries.get("head_dim") or C // H
    if D % 2:
        raise ModelError(f"{path}: heads are {D} wide, expected an even number: they are turned in "
                         f"pairs")
    return H, G, D


# ---- rotary scaling


def rotation(path, entries, ignore):
    """(theta, scaling): transformers 5 has both in rope_parameters, transformers 4 has them apart.
    """
    objects = [entries[name] for name in ("rope_scaling", "rope_parameters") if entries.get(name)]
    for value in objects:
        if not isinstance(value, dict):
            raise ModelError(f"{path}: rotary scaling is {shown(value)}, expected a JSON object or "
                             f"null")
    if len(objects) == 2 and objects[0] != objects[1]:
        raise ModelError(f"{path}: rope_scaling is {shown(objects[0])} and rope_parameters "
                         f"{shown(objects[1])}, expected one of them, or both the same")
    scaling = {name: value for name, value in (objects or [{}])[0].items()
               if value is not None and name not in ignore}
    theta = scaling.pop("rope_theta", None) or entries.get("rope_theta") or 10_000.0
    if not is_number(theta, int, float):
        raise ModelError(f"{path}: rope_theta is {shown(theta)}, expected a number above 0")
    kind = scaling_type(path, scaling)
    needs, may = SCALINGS[kind]
    check_known(path, f"rotary scaling {kind}: ", scaling, {*needs, *may}, SCALING_VALUES[kind])
    if kind == "yarn":
        scaling.setdefault("original_max_position_embeddings",
                           entries["max_position_embeddings"])
    check_scaling(path, kind, scaling, theta)
    if kind == "default":
        return theta, ()
    return theta, (("rope_type", kind),
                   *sorted(pair for pair in scaling.items() if pair[0] in {*needs, *may}))


def scaling_type(path, scaling):
    """The type of a rotary scaling, which is taken out of it; older files call it `type`."""
    names = [scaling.pop(name) for name in ("rope_type", "type") if name in scaling] or ["default"]
    if str(names[0]) not in SCALINGS or names[-1] != names[0]:
        raise ModelError(f"{path}: rotary scaling {' and '.join(map(shown, names))}, expected "
                         f"one of {', '.join(SCALINGS)}")
    return names[0]


def longest(room, scaling):
    """The tokens of the longest context: where YaRN stretches one, max_position_embeddings may
    still be what it was before, as in the files that Qwen's instructions make."""
    if scaling.get("rope_type") != "yarn":
        return room
    stretched = scaling["factor"] * scaling["original_max_position_embeddings"]
    return int(max(room, min(stretched, LARGEST_ROOM)))


def check_scaling(path, kind, scaling, theta):
    """ModelError if a rotary scaling's numbers are missing, not numbers, or do not fit together."""
    needs, may = SCALINGS[kind]
    for name in (*needs, *may):
        value = scaling.get(name)
        if name == "truncate":
            fits = value is None or isinstance(value, bool)
            expected = "true or false"
        else:
            fits = value is None and name in may or is_number(value, int, float)
            expected = "a number above 0"
        if not fits:
            raise ModelError(f"{path}: rotary scaling {kind} has {name} = {shown(value)}, "
                             f"expected {expected}")
    if kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        raise ModelError(f"{path}: rotary scaling llama3 has low_freq_factor = "
                         f"{scaling['low_freq_factor']}, expected less than high_freq_factor, "
                         f"{scaling['high_freq_factor']}")
    if kind == "yarn" and theta <= 1:
        raise ModelError(f"{path}: rope_theta is {theta}, expected a number above 1 for yarn")


# ---- windows


def sliding(path, family, entries):
    """The window of the layers whose attention slides; None if no layer's does.

    As in transformers: in a Qwen the layers that layer_types names, else those from
    max_window_layers on, and only if use_sliding_window says so.
    A Mistral, a Mixtral or a Qwen 3 with experts slides in all layers or in none.
    A missing sliding_window is 4096 tokens in dense families, and no window in those with experts.
    A Llama has no window.
    """
    layers = entries.get("layer_types")
    L = entries["num_hidden_layers"]
    kinds = {"full_attention", "sliding_attention"}
    if layers is not None and (not isinstance(layers, list) or len(layers) != L
                               or set(map(str, layers)) - kinds):
        raise ModelError(f"{path}: layer_types is {shown(layers)}, expected {L} times "
                         f"'full_attention' or 'sliding_attention'")
    window = entries.get("sliding_window")
    if family == "Qwen3MoeForCausalLM":
        return window if entries.get("use_sliding_window") else None
    if family.startswith("Qwen"):
        if layers is None:
            layers = ["sliding_attention"] if (entries["max_window_layers"] or 0) < L else []
        return window if entries.get("use_sliding_window") and "sliding_attention" in layers \
            else None
    if family in ("LlamaForCausalLM", *MIXER_ENTRIES):
        if window is not None and entries.get("use_sliding_window") is not False:
            raise ModelError(f"{path}: sliding_window is {window}, expected null: a {family}'s "
                             f"attention does not slide; {way_around('sliding_window')}")
        window = None
    kind = "sliding_attention" if window else "full_attention"
    if layers is not None and set(layers) != {kind}:
        raise ModelError(f"{path}: layer_types is {shown(layers)}, expected {kind!r} in every "
                         f"layer of a {family} with sliding_window {window}")
    return window
