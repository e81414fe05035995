"""PTX types and the numpy types that hold them.

A PTX register is a bag of bits: `mov.b32 %r1, %f1` moves a float into an integer register.
So an array in a register may have any dtype of the right width, and a reader views it as what it
needs.
bfloat16 has no numpy dtype and is held as uint16; the x2 types are two halves in a uint32.
"""

import numpy as np

UNSIGNED = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32),
            8: np.dtype(np.uint64)}
SIGNED = {1: np.dtype(np.int8), 2: np.dtype(np.int16), 4: np.dtype(np.int32),
          8: np.dtype(np.int64)}
BOOL = np.dtype(np.bool_)
U8, U16, U32, U64 = UNSIGNED.values()
S8, S16, S32, S64 = SIGNED.values()
F16 = np.dtype(np.float16)
F32 = np.dtype(np.float32)
F64 = np.dtype(np.float64)
FLOATS = {2: F16, 4: F32, 8: F64}

DTYPES = {
    "pred": BOOL,
    **{f"{kind}{8 * size}": dtype for kind in "bu" for size, dtype in UNSIGNED.items()},
    **{f"s{8 * size}": dtype for size, dtype in SIGNED.items()},
    "f16": F16, "f32": F32, "f64": F64, "bf16": U16, "tf32": U32, "f16x2": U32, "bf16x2": U32,
    "e4m3x2": U16, "e5m2x2": U16,
}
SIZES = {name: dtype.itemsize for name, dtype in DTYPES.items()} | {"b128": 16}


def is_float(ptx_type):
    """Does arithmetic on this PTX type round?"""
    return ptx_type[0] == "f" or ptx_type.startswith("bf") or ptx_type == "tf32"


def is_signed(ptx_type):
    return ptx_type[0] == "s"
