"""What kind of work an instruction is: its class, its floating-point type, its operations."""

from functools import lru_cache

from .dtypes import SIZES, is_float

CLASSES = {
    "memory": "ld ldu st tex atom red ldmatrix stmatrix prefetch prefetchu discard applypriority "
              "cp multimem createpolicy tensormap",
    "tensor core": "mma wmma wgmma",
    "special": "rcp sqrt rsqrt sin cos ex2 lg2 tanh",
    "convert": "cvt szext",
    "compare": "setp set selp slct testp",
    "move": "mov cvta isspacep mapa getctarank istypep",
    "warp": "shfl vote match redux activemask elect movmatrix",
    "barrier": "bar barrier membar fence mbarrier",
    "control": "bra brx ret exit call trap brkpt nanosleep pmevent griddepcontrol setmaxnreg "
               "alloca stacksave stackrestore",
}
CLASS_OF = {name: kind for kind, names in CLASSES.items() for name in names.split()}
FLOAT_NAMES = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "f16x2": "fp16", "bf16": "bf16",
               "bf16x2": "bf16", "tf32": "tf32", "e4m3": "fp8", "e5m2": "fp8"}
SMALL_INTEGERS = ("s4", "u4", "b1")                 # of matrices only
INTEGER_OPS = {"mad": 2, "mad24": 2, "madc": 2,             # a product and a sum: 2
               "dp4a": 8, "dp2a": 4, "vabsdiff4": 4}


@lru_cache(1 << 16)
def class_of(inst):
    """-> a key of CLASSES, "float" or "integer"."""
    words = inst.modifiers
    if inst.opcode == "wmma" and ("load" in words or "store" in words):
        return "memory"
    if inst.opcode == "cp" and {"commit_group", "wait_group", "wait_all", "mbarrier"} & set(words):
        return "barrier"
    if inst.opcode in ("ld", "st") and "param" in words:        # arguments lie in registers, or in
        return "move"                                           # constants that read as fast
    if inst.opcode in CLASS_OF:
        return CLASS_OF[inst.opcode]
    return "float" if any(is_float(t) for t in types(inst)) else "integer"


def types(inst):
    """The PTX types among an instruction's modifiers."""
    return [word for word in inst.modifiers
            if word in SIZES or word in FLOAT_NAMES or word in SMALL_INTEGERS]


@lru_cache(1 << 16)
def work(inst):
    """-> (floating-point operations of a lane, their type or "", integer operations of a lane)."""
    kind = class_of(inst)
    if kind == "tensor core":
        kinds = types(inst)                             # of D, A, B, C; wmma on fp16 names D and C
        a = kinds[1] if len(kinds) == 4 else "f16"
        if a in FLOAT_NAMES:
            return inst.flops, f"tensor {FLOAT_NAMES[a]}", 0
        return 0, "", inst.flops
    if kind == "integer":
        return 0, "", INTEGER_OPS.get(inst.opcode, 1)
    if not inst.flops:
        return 0, "", 0
    return inst.flops, FLOAT_NAMES[next(t for t in types(inst) if is_float(t))], 0
