"""The losses of s30's first picture: trainings of a tiny Llama on the same batches, in each arm.

python -m layer3_system.bench.training_curves      writes training_curves.json
"""

import json
from pathlib import Path

from layer2_graph.config import Config
from layer3_system.training.arms import ARMS, FP32, Arm
from layer3_system.training.data import Loader, story_tokens
from layer3_system.training.llama import TrainableLlama, new_weights, training_kernels
from layer3_system.training.loop import Options, Parts, Training

RECORD = Path(__file__).with_suffix(".json")
SHAPE = Config(L=1, C=48, H=3, G=1, D=16, F=128, V=2048, eps=1e-5, theta=1e4, room=64, tied=True)
SLOW = Options(steps=70, warm=7, peak=5e-4)


def make(arm: Arm = FP32, options: Options = SLOW, parts: Parts | None = None) -> Training:
    """A training that has not begun, on 4 sequences of 64 tokens a step."""
    model = TrainableLlama(SHAPE, new_weights(SHAPE, 0), training_kernels("torch"), arm)
    return Training(model, Loader(story_tokens("train", 1000), B=4, T=64, seed=0), options, parts)


def curves(options: Options = SLOW) -> dict[str, list[float]]:
    """{arm: the loss of each step}, nats a token."""
    return {name: [row.loss for row in make(arm, options).run()] for name, arm in ARMS.items()}


def main() -> None:
    losses = {name: [round(loss, 4) for loss in each] for name, each in curves().items()}
    RECORD.write_text(json.dumps(losses) + "\n", "utf-8")


if __name__ == "__main__":
    main()
