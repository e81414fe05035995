"""What a pattern costs the steps of eight answers: `python -m layer3_system.bench.mask_cost`

The 135M shape on one thread, with as many pieces of the course's stories as it has tokens.
CPU time of a step with a mask for every answer ÷ without, by turns; and of making one state's mask,
which a grammar does once. mask_cost.json has both.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from layer1_kernels import kernels
from layer2_graph import CpuLlama, Llama, cpu_kernels, tile
from layer2_graph.models import shape_135m
from layer2_graph.small.corpus import stories
from layer3_system.automaton import compile_regex
from layer3_system.s01_request import SamplingParams
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.s07_engine import Engine
from layer3_system.s13_structured import pack_mask, token_mask
from layer3_system.sampling_params import StructuredOutputs
from layer3_system.structured import Grammars
from layer3_system.testing.mock_llama import ByteTokenizer

RECORD = Path(__file__).with_name("mask_cost.json")
PATTERN = "[a-zA-Z ,.!?'\"]*"
ANSWERS = 8
LENGTH = 24             # tokens of an answer
ROUNDS = 5


class Pieces(ByteTokenizer):
    """The 256 bytes, then pieces of two to eight letters that are frequent in a text."""

    def __init__(self, text: str, V: int):
        """V: all tokens, an end among them"""
        counts = Counter(text[i:i + n] for n in range(2, 9) for i in range(0, len(text) - n, n))
        frequent = [piece.encode() for piece, _ in counts.most_common(V - 257)]
        self.pieces: list[bytes] = [*(bytes([byte]) for byte in range(256)), b"", *frequent]
        self.pieces += [b""] * (V - len(self.pieces))

    def vocabulary(self) -> list[bytes | None]:
        return [piece or None for piece in self.pieces]

    def decode(self, tokens: Iterable[int]) -> str:
        return b"".join(self.pieces[token] for token in tokens).decode(errors="replace")


def seconds(model: Llama, words: Pieces, grammars: Grammars | None) -> float:
    """CPU time of the median step of ANSWERS answers after their prompts."""
    pool = PrefixPool(ANSWERS * 8)
    engine = Engine(model, words, pool, Scheduler(pool, ANSWERS, 1024), kernels("torch").sample,
                    grammars=grammars)
    form = StructuredOutputs(regex=PATTERN) if grammars else None
    for seed in range(ANSWERS):
        engine.submit(words.encode("Once upon a time"), SamplingParams(
            LENGTH, seed=seed, structured_outputs=form))
    engine.step()
    steps = []
    while engine.busy:
        began = time.process_time()
        engine.step()
        steps.append(time.process_time() - began)
    return median(steps)


def main() -> None:
    torch.set_num_threads(1)
    config, weights = shape_135m()
    config = replace(config, ends=(256,))
    model = tile(CpuLlama(config, weights, cpu_kernels()))      # as `lab serve` lays it out
    words = Pieces("\n".join(stories("train")), config.V)
    grammars = Grammars(words, config)
    seconds(model, words, grammars)                             # both states get their masks
    rounds = [(seconds(model, words, None), seconds(model, words, grammars))
              for _ in range(ROUNDS)]
    automaton = compile_regex(PATTERN)
    began = time.process_time()
    pack_mask(token_mask(automaton, automaton.start, words.vocabulary(), tuple(config.ends)))
    once = time.process_time() - began
    record = {"vocabulary": config.V, "answers": ANSWERS,
              "step": round(median(plain for plain, _ in rounds), 4),
              "share": [round(guided / plain - 1, 4) for plain, guided in rounds],
              "a mask, once": round(once, 4)}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(record)


if __name__ == "__main__":
    main()
