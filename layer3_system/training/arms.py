"""Which numbers of a training are rounded to 16 bits.

On a CPU without instructions for 16 bits, products in bf16 are slow imitations.
So products stay in fp32 here, and only the numbers that an arm names are rounded.
"""

from typing import NamedTuple

from torch import Tensor


class Arm(NamedTuple):
    """A way to train."""

    bf16: bool = False          # products read weights rounded to bf16; gradients are rounded too
    master: bool = True         # updates go into fp32 weights; else into the rounded ones
    mean_of: int = 0            # tokens: gradients of logits go through fp16, as those of a mean
    #                             over this many; 0: they stay in fp32
    scale: float = 1.0          # by which the loss is multiplied before that, and divided after


FP32 = Arm()
ARMS = {
    "fp32": FP32,
    "bf16 weights": Arm(bf16=True, master=False),
    "bf16, fp32 masters": Arm(bf16=True),
    "fp16 gradients": Arm(mean_of=2 ** 18),
    "fp16 gradients, scaled": Arm(mean_of=2 ** 18, scale=2.0 ** 16),
}


def through_bf16(x: Tensor) -> Tensor:
    """x rounded to bf16, and kept in its own type.
    Its gradient is rounded likewise."""
    return x.bfloat16().to(x.dtype)


def through_fp16(gradient: Tensor, arm: Arm) -> Tensor:
    """A gradient of a sum over tokens, as it comes out of fp16 where the loss is arm's mean."""
    factor = arm.scale / arm.mean_of
    return (gradient * factor).half().to(gradient.dtype) / factor
