"""The faults of well-known public kernels, in small kernels of our own: each is found with its
line, and its mended twin is silent and right."""

import pytest

from lab.author.public_faults import FAULTS, PAGE, run, text

SAYS = {
    "softmax_forward_kernel4": ("`parts` at byte 0", "is written here and read in line 11",
                                "no __syncthreads()"),
    "attention_forward_fused1": ("element 0 of `scores`", "read here and written in line 7",
                                 "__syncwarp()"),
    "softmax_autoregressive_backward_kernel7": ("`sums` at byte 4", "written in line 5"),
    "softmax_autoregressive_backward_kernel8": ("`sums` at byte 0", "read in line 10"),
    "fused_residual_forward2": ("out-of-bounds read", "element 200 of `"),
    "online_safe_softmax_f32x4_pack_per_token_kernel": (
        "out-of-bounds read of 4 bytes at byte 8 of shared memory", "`sums` 8"),
    "nms_kernel": ("of `keep`", "read in line 7", "nothing orders two blocks"),
    "reduce7": ("a shuffle reads lane 16", "does not take part: the value is undefined"),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kernel)
def test_the_fault_is_found(fault):
    kind, line, message = run(fault, fault.source)
    assert (kind, line) == (fault.kind, fault.line), message
    assert all(words in message for words in SAYS[fault.kernel]), message


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kernel)
def test_the_mended_twin_is_silent(fault):
    old, new = fault.mended
    assert fault.source.count(old) == 1
    assert run(fault, fault.source.replace(old, new)) is None


def test_the_page_says_what_the_simulator_says():
    assert PAGE.read_text("utf-8") == text(), "python -m lab.author.public_faults"
