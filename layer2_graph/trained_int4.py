"""What g15 exports as int4, on k15's kernels.

N, K: numbers out and in of a matrix    group: neighbours in a row that share a scale
The file holds a code as one of 16 digits, row after row; k15 wants the two halves of each group in
one byte, and fp32 scales.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from layer2_graph.g01_llama import Llama
from layer2_graph.g07_weight_quantization import PackedWeight, packed_matmul, unpack, with_matrices
from layer2_graph.g15_qat import GRIDS, PackedMatrix, restored

__all__ = ["int4_llama", "int4_weight"]


def int4_weight(matrix: PackedMatrix) -> PackedWeight:
    """An exported int4 matrix in k15's layout.
    ValueError where its groups do not fit there."""
    N, K = matrix.shape
    groups = matrix.scales.shape[1]
    group = K // groups
    if group < 16 or group & (group - 1):
        raise ValueError(f"int4_weight: groups of {group} weights, expected a power of two, 16 or "
                         f"more")
    codes = unpack(matrix.codes, *GRIDS["int4"], matrix.shape).view(N * groups, group)
    low, high = (codes + 8).to(torch.uint8).chunk(2, -1)
    return PackedWeight((low | high << 4).view(N, K // 2), matrix.scales.float(), 4, group)


def int4_llama(model: Llama, packed: Mapping[str, PackedMatrix | Tensor]) -> Llama:
    """A model with the weights of an int4 export, whose matrices k15's kernels read."""
    plain = Llama(model.config, restored(packed, *GRIDS["int4"]), packed_matmul(model.ops))

    def change(name, w):
        part = packed[name]
        return int4_weight(part) if isinstance(part, PackedMatrix) else w

    return with_matrices(plain, change)
