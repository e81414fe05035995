"""How far a kernel loads ahead: the load-to-use distance, read from its code."""

from functools import lru_cache

from .uses import uses_of


@lru_cache(1 << 12)
def load_to_use(function):
    """The most fused multiply-adds that stand in the code between a load from global memory and the
    first instruction that reads what it brings.
    None where nothing is loaded and read.

    function: of ptx.py.
    The order is that of the text: a loop's body counts once.
    """
    begins = {}                 # number of a load -> multiply-adds before it
    loads = {}                  # register -> the load that brings it
    distances = []
    multiply_adds = 0
    for i, inst in enumerate(function.code):
        uses = uses_of(inst)
        for load in {loads[name] for name in uses.reads if name in loads}:
            if load in begins:
                distances.append(multiply_adds - begins.pop(load))
        if inst.opcode == "fma":
            multiply_adds += 1
        for name in uses.writes:
            loads.pop(name, None)
        if inst.opcode in ("ld", "ldu") and "global" in inst.modifiers:
            begins[i] = multiply_adds
            loads |= dict.fromkeys(uses.writes, i)
    return max(distances, default=None)
