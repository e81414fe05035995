"""tex: reads of textures."""

import numpy as np

from ..access import SeveralSegments, split
from ..decode import MEMORY, destination, opcode, source
from ..dtypes import DTYPES
from ..memory import SEGMENT_SHIFT, TEXTURE_WINDOW

PARTS = 4                       # numbers that every read gives; those that a texture lacks are 0


@opcode("tex", kind=MEMORY)
def tex(inst, mods):
    """tex.1d.v4.f32.f32 {r, g, b, a}, [texture, {x}]"""
    dimensions = int(mods.need("1d", "2d", "3d")[0])
    mods.need("v4")
    kind, coordinates = mods.type("f32", "s32", "u32"), mods.type("f32", "s32")
    if len(inst.operands) != 3 or (coordinates == "s32" and dimensions > 1):
        mods.refuse()
    results, handle, place = inst.operands
    writes = [destination(item, kind) for item in results.items]
    read_handle = source(handle, "u64")
    reads = [source(item, coordinates) for item in place.items[:dimensions]]

    def run(wave):
        texture = texture_of(wave, inst, read_handle(wave), kind, dimensions)
        where = [read(wave) for read in reads]
        values = texture.fetch(*where) if coordinates == "s32" else texture.sample(*where)
        missing = [np.zeros_like(values[..., 0])] * (PARTS - texture.channels)
        parts = [*np.moveaxis(values, -1, 0), *missing]
        for write, part in zip(writes, parts, strict=True):
            write(wave, np.ascontiguousarray(part.astype(DTYPES[kind])))
    return run


def texture_of(wave, inst, handle, kind, dimensions):
    """The Texture that a handle names, and that fits the read."""
    first, textures = int(handle.flat[0]), wave.launch.space.textures
    if (handle != handle.flat[0]).any():
        raise SeveralSegments(split(wave, handle))
    number = first - (TEXTURE_WINDOW << SEGMENT_SHIFT)
    if not 0 <= number < len(textures):
        text = f"reads the texture 0x{first:x}, which belongs to no argument"
    elif textures[number].dimensions != dimensions:
        text = f"reads a texture of {dimensions} dimensions, this one has " \
               f"{textures[number].dimensions}"
    elif (textures[number].dtype.kind == "f") != (kind == "f32"):
        text = f"reads {'floats' if kind == 'f32' else 'integers'}, the texture holds " \
               f"{textures[number].dtype}"
    else:
        return textures[number]
    raise wave.launch.error(inst, "argument", f"tex{dimensions}D {text}", wave,
                            int(wave.lanes.index[0]))
