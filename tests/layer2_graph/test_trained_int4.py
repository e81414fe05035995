"""g15's int4 export on k15's kernels."""

import pytest
import torch

from layer1_kernels import dequantize_weight
from layer2_graph import GRIDS, Llama, PagedCache, load
from layer2_graph.g07_weight_quantization import PackedWeight, is_matrix
from layer2_graph.g15_qat import export, restored, searched_scales
from layer2_graph.models import TWINS
from layer2_graph.trained_int4 import int4_llama, int4_weight


@pytest.fixture(scope="module")
def exported():
    """(the dense twin, its export as int4 with scales that are not absmax)"""
    model = load(TWINS / "dense", dtype=torch.float32)
    scales = {name: 0.9 * searched_scales(w, *GRIDS["int4"], 32)
              for name, w in model.weights.items() if is_matrix(name)}
    return model, export(model.weights, scales, *GRIDS["int4"])


def test_a_matrix_is_the_same_in_both_layouts(exported):
    _, packed = exported
    plain = restored(packed, *GRIDS["int4"])
    for name, part in packed.items():
        if is_matrix(name):
            assert torch.equal(dequantize_weight(*int4_weight(part)), plain[name])


def test_the_model_computes_the_same_on_k15(exported):
    model, packed = exported
    own = int4_llama(model, packed)
    matrices = [name for name in own.weights if is_matrix(name)]
    assert matrices and all(isinstance(own.weights[name], PackedWeight) for name in matrices)
    want = Llama(model.config, restored(packed, *GRIDS["int4"]), model.ops)
    scores = []
    for each in (want, own):
        cache = PagedCache(model.config, 1, 16)
        scores.append(each.forward(cache.step([[5, 9, 300, 7]]), cache, every=True))
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-4)


def test_groups_that_k15_cannot_read_are_refused():
    w = torch.randn(4, 24)
    packed = export({"a.q_proj.weight": w}, {"a.q_proj.weight": torch.ones(4, 1)}, *GRIDS["int4"])
    with pytest.raises(ValueError, match="groups of 24 weights, expected a power of two"):
        int4_weight(packed["a.q_proj.weight"])
