"""Latents and states in a model's folder: what config.json says of them, and their tensors' names.

L: layers   C: model width   H G D: query heads, key and value heads, head width
N: width of q and k in a layer with a state   W: tokens of its short convolution
"""

from collections.abc import Iterator

from layer2_graph.config_entries import ModelError, is_number, shown

# family -> the entries that it has more than a Llama, and the fields of a Config that they become
LATENTS = {"ThreeFloorsLatent": {"kv_lora_rank": "latent", "qk_rope_head_dim": "rotated"}}
STATES = {"ThreeFloorsHybrid": {"linear_layers": "linear", "linear_key_head_dim": "N",
                                "linear_conv_kernel_dim": "W"}}
ENTRIES = LATENTS | STATES
MAX_INTEGER = 2**31 - 1


def mixer_of(path, family, entries) -> dict:
    """The fields of a Config that say how wide a latent is, or which layers keep a state and how
    wide it is: {} in other families.
    ModelError if an entry is wrong.
    """
    fields = {}
    for name, field in ENTRIES.get(family, {}).items():
        value = entries.get(name)
        if field == "linear":
            fields[field] = layers_of(path, name, value, entries["num_hidden_layers"])
            continue
        if not is_number(value, int) or value > MAX_INTEGER or field == "rotated" and value % 2:
            raise ModelError(f"{path}: {name} is {shown(value)}, expected a whole number above 0"
                             + (", even: it is turned in pairs" if field == "rotated" else ""))
        fields[field] = value
    return fields


def layers_of(path, name, value, L):
    """The numbers of some layers, in order."""
    if (not isinstance(value, list) or not value or len(set(map(str, value))) < len(value)
            or not all(type(i) is int and 0 <= i < L for i in value)):
        raise ModelError(f"{path}: {name} is {shown(value)}, expected a list of one or more "
                         f"numbers from 0 to {L - 1}, each once")
    return tuple(sorted(value))


# ---- tensors


def mixer_shapes(layer: str, i: int, m) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of what layer i has before o_proj.  layer: prefix of its names    m: a Config
    """
    prefix = f"{layer}.self_attn"
    if i in m.linear:
        return state_shapes(prefix, m)
    return (latent_shapes if m.latent else qkv_shapes)(prefix, m)


def qkv_shapes(prefix, m):
    """Of the matrices that make queries, keys and values."""
    for name, heads in (("q", m.H), ("k", m.G), ("v", m.G)):
        yield f"{prefix}.{name}_proj.weight", (heads * m.D, m.C)
        if m.bias_qkv:
            yield f"{prefix}.{name}_proj.bias", (heads * m.D,)


def latent_shapes(prefix, m):
    """The same of latent attention, by DeepSeek-V2's names."""
    yield f"{prefix}.q_proj.weight", (m.H * (m.D + m.rotated), m.C)
    yield f"{prefix}.kv_a_proj_with_mqa.weight", (m.latent + m.rotated, m.C)
    yield f"{prefix}.kv_a_layernorm.weight", (m.latent,)
    yield f"{prefix}.kv_b_proj.weight", (m.H * 2 * m.D, m.latent)


def state_shapes(prefix, m):
    """Of a layer that keeps a state: q, k, v, gate and step are rows of one matrix."""
    channels = m.H * (2 * m.N + m.D)                # of q, k and v
    yield f"{prefix}.in_proj.weight", (channels + m.H * m.D + m.H, m.C)
    yield f"{prefix}.conv", (channels, m.W)
    yield f"{prefix}.step_bias", (m.H,)
    yield f"{prefix}.rate", (m.H,)
    yield f"{prefix}.norm", (m.D,)
