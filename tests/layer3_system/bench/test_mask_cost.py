"""What masks cost: the vocabulary that it is measured with, and the record that s13 quotes."""

import json
from statistics import median

from layer3_system.bench.mask_cost import ANSWERS, RECORD, Pieces, seconds
from layer3_system.structured import Grammars
from layer3_system.testing.mock_llama import MockLlama


def test_pieces_are_those_of_a_text():
    words = Pieces("a bird and a cat " * 40, 300)
    vocabulary = words.vocabulary()
    assert len(vocabulary) == 300 and vocabulary[256] is None
    assert vocabulary[:256] == [bytes([byte]) for byte in range(256)]
    assert all(2 <= len(piece) <= 8 for piece in vocabulary[257:] if piece)
    assert words.decode([97, 256, vocabulary.index(b"an")]) == "aan"


def test_a_step_is_timed_with_masks_and_without():
    model = MockLlama()
    words = Pieces("", model.config.V)
    assert seconds(model, words, None) > 0
    assert seconds(model, words, Grammars(words, model.config)) > 0


def test_the_record_says_what_s13_says_of_it():
    record = json.loads(RECORD.read_text("utf-8"))
    assert record["answers"] == ANSWERS == 8
    assert record["vocabulary"] == 49_152
    assert 0 < median(record["share"]) <= 0.05
