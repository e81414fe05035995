"""Experts in a model's folder: what config.json says of them, and what their tensors are called.

E: experts of a layer   k: experts that a token chooses   C: model width   F: width of one expert
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from layer2_graph.config_entries import ModelError, is_number, shown

# family -> the entries that it has more than a dense model, with their defaults. Source: the
# configurations of Hugging Face transformers 5. Older files call num_local_experts num_experts.
ENTRIES: dict[str, dict] = {
    "MixtralForCausalLM": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen3MoeForCausalLM": {"num_local_experts": 128, "num_experts": None,
                            "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                            "norm_topk_prob": False, "decoder_sparse_step": 1,
                            "mlp_only_layers": []},
}
# model_type -> a layer's tensors on disk: the router's, and gate, up and down of an expert
TENSORS = {
    "mixtral": ("block_sparse_moe.gate.weight", "block_sparse_moe.experts.{}.w1.weight",
                "block_sparse_moe.experts.{}.w3.weight", "block_sparse_moe.experts.{}.w2.weight"),
    "qwen3_moe": ("mlp.gate.weight", "mlp.experts.{}.gate_proj.weight",
                  "mlp.experts.{}.up_proj.weight", "mlp.experts.{}.down_proj.weight"),
}
# In memory, whatever the family: as transformers 5 has them there
ROUTER = "mlp.gate.weight"                      # (E, C)
GATE_UP = "mlp.experts.gate_up_proj"            # (E, 2·F, C)
DOWN = "mlp.experts.down_proj"                  # (E, C, F)
LARGEST_E = 1024                                # that sort_slots takes


def experts_of(path, family, kind, entries) -> dict:
    """The fields of a Config that say which layers have experts, and of what kind: {} if no layer
    has.
    ModelError if an entry is wrong.
    """
    if family not in ENTRIES:
        return {}
    known = {name: default if entries.get(name) is None else entries[name]
             for name, default in ENTRIES[family].items()}
    E = count_of(path, entries, known)
    for name in ("num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"):
        if name in known and not is_number(known[name], int):
            raise ModelError(f"{path}: {name} is {shown(known[name])}, expected a whole number "
                             f"above 0")
    k = known["num_experts_per_tok"]
    if k > E:
        raise ModelError(f"{path}: num_experts_per_tok is {k}, expected at most the {E} experts")
    if not isinstance(known.get("norm_topk_prob", True), bool):
        raise ModelError(f"{path}: norm_topk_prob is {shown(known['norm_topk_prob'])}, expected "
                         f"true or false")
    return {"E": E, "k": k, "F_expert": known.get("moe_intermediate_size",
                                                  entries["intermediate_size"]),
            "renormalise": known.get("norm_topk_prob", True), "expert_names": kind,
            "dense_layers": dense_layers(path, entries["num_hidden_layers"], known)}


def count_of(path, entries, known):
    """E, by either name; both are refused if they differ."""
    counts = {name: entries[name] for name in ("num_local_experts", "num_experts")
              if name in known and entries.get(name) is not None}
    if len(set(counts.values())) > 1:
        raise ModelError(f"{path}: num_local_experts is {shown(counts['num_local_experts'])} and "
                         f"num_experts {shown(counts['num_experts'])}, expected one of them, or "
                         f"both the same")
    for name, count in counts.items():
        if not is_number(count, int) or count > LARGEST_E:
            raise ModelError(f"{path}: {name} is {shown(count)}, expected a whole number from 1 "
                             f"to {LARGEST_E}")
    return next(iter(counts.values()), known["num_local_experts"])


def dense_layers(path, L, known):
    """The layers that have one MLP instead: those that are listed, and those between the steps."""
    listed = known.get("mlp_only_layers", [])
    if not isinstance(listed, list) or not all(type(i) is int for i in listed):
        raise ModelError(f"{path}: mlp_only_layers is {shown(listed)}, expected a list of whole "
                         f"numbers")
    every = known.get("decoder_sparse_step", 1)
    return tuple(i for i in range(L) if i in listed or (i + 1) % every)


def expert_shapes(prefix: str, m) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of the tensors in memory of a layer with experts. m: a Config"""
    yield prefix + ROUTER, (m.E, m.C)
    yield prefix + GATE_UP, (m.E, 2 * m.F_expert, m.C)
    yield prefix + DOWN, (m.E, m.C, m.F_expert)


def disk_shapes(prefix: str, m) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same of a file: each expert's matrices stand alone."""
    router, gate, up, down = TENSORS[m.expert_names]
    yield prefix + router, (m.E, m.C)
    for e in range(m.E):
        yield prefix + gate.format(e), (m.F_expert, m.C)
        yield prefix + up.format(e), (m.F_expert, m.C)
        yield prefix + down.format(e), (m.C, m.F_expert)


def stack(prefix: str, m, weights: dict[str, Tensor]) -> None:
    """Replace a layer's tensors of the file in `weights` by those of `expert_shapes`."""
    router, gate, up, down = TENSORS[m.expert_names]
    weights[prefix + ROUTER] = weights.pop(prefix + router)
    weights[prefix + GATE_UP] = torch.stack([
        torch.cat([weights.pop(prefix + name.format(e)) for name in (gate, up)])
        for e in range(m.E)])
    weights[prefix + DOWN] = torch.stack([weights.pop(prefix + down.format(e))
                                          for e in range(m.E)])
