"""The instruction set, one file a chapter of the PTX ISA manual. Importing fills decode.TABLE."""

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
    mbarrier,
    move,
    texture,
    transcendental,
    warp,
    wmma,
)
