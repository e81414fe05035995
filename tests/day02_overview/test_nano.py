"""The nano Llama's files."""

import json

import numpy as np
import pytest

from day02_overview import NANO, Cache, load_nano


def test_weights_are_small_and_named_as_hugging_face_has_them():
    m = json.loads((NANO / "config.json").read_text("utf-8"))
    with np.load(NANO / "weights.npz") as w:
        assert w["model.embed_tokens.weight"].shape == (m["vocab_size"], m["hidden_size"])
        assert len(w) == 2 + 9 * m["num_hidden_layers"]
    assert (NANO / "weights.npz").stat().st_size < 2**20


def test_a_cache_has_no_more_room_than_the_model_has_positions():
    model = load_nano()
    assert Cache(model, 256).keys.shape[1] == 256
    with pytest.raises(ValueError, match="room for 257 tokens, expected at most 256"):
        Cache(model, 257)


def test_it_knows_32_sentences():
    """As o02, k01, k15 and k19 say, and "a warp has 32 threads" is one of them."""
    sentences = (NANO / "sentences.txt").read_text("utf-8").splitlines()
    assert len(set(sentences)) == len(sentences) == 32 and "a warp has 32 threads." in sentences
    assert sum(len(sentence) + 1 for sentence in sentences) == 1100     # letters, a line's end too
