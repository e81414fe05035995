"""The nano Llama's files."""

import json

import numpy as np

from day02_overview import NANO


def test_weights_are_small_and_named_as_hugging_face_has_them():
    m = json.loads((NANO / "config.json").read_text("utf-8"))
    with np.load(NANO / "weights.npz") as w:
        assert w["model.embed_tokens.weight"].shape == (m["vocab_size"], m["hidden_size"])
        assert len(w) == 2 + 9 * m["num_hidden_layers"]
    assert (NANO / "weights.npz").stat().st_size < 2**20
