"""The load-to-use distance of a kernel, derived by hand."""

import numpy as np
import pytest

from .conftest import run

# volatile, so that the compiler leaves them where they stand
PRODUCTS = 5 * 'asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(sum) : "f"(factor) : "memory");'


@pytest.mark.parametrize("body, distance", [
    (f"float next = x[threadIdx.x]; {PRODUCTS} y[threadIdx.x] = next + sum;", 5),
    (f"{PRODUCTS} float next = x[threadIdx.x]; y[threadIdx.x] = next + sum;", 0),
    (f"""float4 next = ((const float4*)x)[threadIdx.x]; sum += next.w; {PRODUCTS}
     y[threadIdx.x] = next.x + sum;""", 0),                     # the first use of any part counts
    (f"{PRODUCTS} y[threadIdx.x] = sum;", None)])
def test_multiply_adds_between_a_load_and_its_first_use(body, distance):
    launch = run(f"""extern "C" __global__ void k(const float* x, float* y, float factor) {{
        float sum = factor;
        {body}
    }}""", 1, 32, np.ones(128, np.float32), np.zeros(32, np.float32), np.float32(2))
    assert launch.load_to_use == launch.as_data()["load_to_use"] == distance
