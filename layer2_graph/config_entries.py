"""The entries of a config.json that the course knows: those it reads, and those it need not read.

Any other entry may change what a model computes, so `read_config` refuses it by name.
"""

import json
from pathlib import Path

READ = frozenset((
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "hidden_act",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "tie_word_embeddings", "attention_bias", "mlp_bias", "eos_token_id", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types"))

# Where it comes from, who wrote it, how it is stored: `read_weights` sees the dtype for itself.
BOOKKEEPING = (
    "_commit_hash", "_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype",
    "use_bfloat16", "transformers.js_config", "is_llama_config", "unsloth_fixed",
    "unsloth_version", "max_sequence_length")
# Numbers and names of tokens. What ends a text is read; the tokenizer's own files have the rest.
TOKENS = (
    "bos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id",
    "tokenizer_class", "prefix")
# Only gradients or random starts see them: dropout, losses, noise.
TRAINING = (
    "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop",
    "attn_pdrop", "classifier_dropout", "neftune_noise_alpha", "tf_legacy_loss",
    "gradient_checkpointing", "router_aux_loss_coef", "router_jitter_noise")
# How a program runs the same formula, and what it hands back.
RUNNING = (
    "use_cache", "_attn_implementation", "attn_implementation", "_attn_implementation_autoset",
    "_attn_implementation_internal", "_experts_implementation", "torchscript", "return_dict",
    "output_attentions", "output_hidden_states", "output_scores", "output_router_logits",
    "return_dict_in_generate", "chunk_size_feed_forward")
# Labels of classifiers: these architectures have none.
CLASSES = ("id2label", "label2id", "num_labels", "problem_type", "finetuning_task",
           "task_specific_params")
# Defaults of Hugging Face's generate(), which older versions wrote into every config.json. Here
# each request says how it wants its tokens drawn.
GENERATION = (
    "max_length", "min_length", "max_new_tokens", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "num_return_sequences", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens")
NEUTRAL = frozenset((*BOOKKEEPING, *TOKENS, *TRAINING, *RUNNING, *CLASSES, *GENERATION))

# Entries that change what a model computes, and the one value at which they do not, besides null,
# which is as good as no entry.
NEUTRAL_VALUES = {
    "partial_rotary_factor": 1, "pretraining_tp": 1, "rope_interleaved": False, "use_mrope": False,
    "embedding_multiplier": 1, "residual_multiplier": 1, "logits_scaling": 1, "logit_scale": 1,
    "use_qk_norm": False, "use_dual_chunk_attention": False, "pruned_heads": {},
    "is_decoder": False, "is_encoder_decoder": False, "add_cross_attention": False,
    "tie_encoder_decoder": False,
}

# Types of rotary scaling: type -> the entries that it needs, and those that it may have.
SCALINGS = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor",
                "original_max_position_embeddings"), ()),
    "yarn": (("factor", "original_max_position_embeddings"),
             ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
              "truncate")),
}
SCALING_VALUES = {      # finetuned: at any length, as it is computed here
    "default": {"partial_rotary_factor": 1, "factor": 1},
    "linear": {"partial_rotary_factor": 1},
    "llama3": {"partial_rotary_factor": 1},
    "yarn": {"partial_rotary_factor": 1, "finetuned": True},
}

LARGEST_NUMBER = 1e30       # float32 holds its reciprocal too
SHOWN = 60                  # characters of a value in a message


class ModelError(ValueError):
    """A folder that is not a model this course can run: file, what was expected, what was found."""


def shown(value: object) -> str:
    """A value as a message shows it: only its beginning if it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def way_around(name):
    """How to run a model despite an entry."""
    return (f"to run the model as if it were absent: --ignore-config {shown(name)[1:-1]}, in "
            f"Python ignore=({shown(name)},)")


def check_known(path, where, entries, known, neutral):
    """ModelError if an entry may change what the model computes, and is not implemented.

    where: what the entries belong to, in words    known: entries that are read or need not be
    neutral: {entry: the value at which it changes nothing}
    """
    for name, value in entries.items():
        if value is None or name in known:
            continue
        if name in neutral:
            flags = isinstance(value, bool), isinstance(neutral[name], bool)
            if value == neutral[name] and flags[0] == flags[1]:         # True == 1 in Python
                continue
            why = f"expected {neutral[name]!r} or null: nothing else is implemented"
        else:
            why = "an entry that is not known here and may change what the model computes"
        label = name if name.isprintable() else repr(name)
        raise ModelError(f"{path}: {where}{label} is {shown(value)}, {why}; {way_around(name)}")


def is_number(value, *kinds):
    """Whether it is above 0 and within float32.
    True and False are not numbers here."""
    return type(value) in kinds and 0 < value <= LARGEST_NUMBER


def read_json(path):
    """A JSON object from a file.
    ModelError if it is missing, unreadable or not an object."""
    try:
        content = json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected a JSON object, found a {type(content).__name__}")
    return content
