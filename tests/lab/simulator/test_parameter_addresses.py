"""A kernel that takes the address of a parameter, and chooses between two of them."""

import numpy as np
import pytest

from lab.simulator import ptx
from lab.simulator.arguments import bind
from lab.simulator.run import Run

# As Triton makes it of tl.where on two pointers: 3.7 keeps the address in 64 bits, 3.9 in 32.
TEXT = """.version 8.8
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 out, .param .u32 which)
{{
    .reg .pred %p; .reg .b32 %w, %x; .reg .b64 %from, %to; .reg .b{bits} %at, %first, %second;
    ld.param.u32 %w, [which];
    setp.eq.u32 %p, %w, 0;
    mov.b{bits} %first, a;
    mov.b{bits} %second, b;
    selp.b{bits} %at, %first, %second, %p;
    ld.param.b64 %from, [%at];
    ld.param.b64 %to, [out];
    ld.global.b32 %x, [%from];
    st.global.b32 [%to], %x;
    ret;
}}
"""


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("which", [0, 1])
def test_a_choice_between_two_parameters(bits, which):
    module = ptx.parse(TEXT.format(bits=bits))
    kernel = module.functions["k"]
    a, b, out = (np.array([n], np.int32) for n in (7, 8, 0))
    run = Run(module, kernel, (1, 1, 1), (1, 1, 1), sources={}, checks=True)
    run.parameters = bind("k", kernel.parameters, None, (a, b, out, which), run.space)
    run.place_globals({})
    run.run()
    assert out[0] == (7, 8)[which]
