"""The instruction set, one file a chapter of the PTX ISA manual.
Importing fills decode.TABLE.

async_copy      cp.async, from global to shared memory
atomic          atom and red
bits            logic, shifts, bit fields
collective      ldmatrix, wmma.load and wmma.store: a warp's accesses made as one
compare         setp, set, selp, slct
control         branches, barriers, calls, the end
convert         cvt
floating        f32, f64, f16, bf16, f16x2 and bf16x2
fragments       how a matrix lies in the registers of a warp
integer         integer arithmetic
loads           ld and st
matrix          mma
matrix_loads    ldmatrix and movmatrix
mbarrier        mbarrier
move            moves, and addresses from one window to another
products        products of many fragments at once
texture         tex
transcendental  reciprocals, roots, the special function unit
warp            shfl, vote, match, redux
wmma            wmma
"""

from . import (  # noqa: F401
    async_copy,
    atomic,
    bits,
    compare,
    control,
    convert,
    floating,
    integer,
    loads,
    matrix,
    matrix_loads,
    mbarrier,
    move,
    texture,
    transcendental,
    warp,
    wmma,
)
