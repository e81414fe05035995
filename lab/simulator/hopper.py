"""What compilers make of a kernel for Hopper (H100, H200), on a machine without one.

Triton, NVRTC and their assemblers compile for any GPU anywhere; only a launch needs the device.
So one can read from the code whether a kernel got Hopper's own instructions: tensor cores fed from
shared memory (wgmma), and copies of whole tiles by the TMA (cp.async.bulk.tensor).
The counts are of instructions in the code, at PTX level, not as they run; registers and spills come
from ptxas.
"""

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from . import nvrtc
from .dtypes import SIZES
from .errors import KernelError
from .occupancy import occupancy
from .sass import disassemble

MNEMONIC = re.compile(r"^\s*\{?\s*(?:@!?%?\w+\s+)?([a-z]\w*(?:\.[\w:]+)+)", re.M)
TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
         "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
         "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "i1",
         "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}        # torch's name -> Triton's
COPY = re.compile(r"cp\.async\.c[ag]\.\S+\s*\[[^]]*\]\s*,\s*\[[^]]*\]\s*,\s*(\w+)")   # its bytes
ALIGNED = 16                    # Triton compiles a version of its own for multiples of this
TIMEOUT = 300


@dataclass
class Hopper:
    """A kernel, compiled for sm_90a."""
    name: str
    num_warps: int
    wgmma: int                  # tensor-core instructions of a group of four warps
    mma_sync: int               # tensor-core instructions of one warp, as on Ampere
    tma_loads: int              # tiles copied to shared memory by the TMA
    tma_stores: int
    copies: Counter             # cp.async to shared memory: bytes of a lane -> instructions
    loads: Counter              # of global memory: bytes that a lane asks for -> instructions
    stores: Counter
    resources: nvrtc.Resources  # registers, spills, stack, static shared memory, barriers
    shared: int                 # bytes of shared memory of a block
    serialised: list            # ptxas says that wgmma instructions wait for each other, and why
    needs: tuple                # which of these counts must not be 0, as the caller says
    may_spill: int              # bytes, as the caller says
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)

    @property
    def cp_async(self):
        """Instructions that copy to shared memory without a register."""
        return self.copies.total()

    @property
    def registers(self):
        return self.resources.registers

    @property
    def spills(self):
        """Bytes that a thread stores because it has no register for them."""
        return self.resources.spill_stores

    def occupancy(self, gpu="H100"):
        return occupancy(self.resources._replace(shared=self.shared), 32 * self.num_warps, gpu=gpu)

    def sass(self):
        return disassemble(self.cubin, self.name, "sm_90a")

    def __str__(self):
        def widths(counter):
            return ", ".join(f"{n} of {size} bytes a lane" for size, n in
                             sorted(counter.items(), reverse=True)) or "none"
        rows = [f"{self.name} for Hopper (sm_90a), {self.num_warps} warps; instructions in the "
                f"code at PTX level, not as they run",
                f"  tensor cores: {self.wgmma} wgmma, {self.mma_sync} mma.sync",
                f"  copies to shared memory: {self.tma_loads} TMA loads, cp.async: "
                f"{widths(self.copies)}; from it: {self.tma_stores} TMA stores",
                f"  global loads: {widths(self.loads)}", f"  global stores: {widths(self.stores)}",
                f"  {self.registers} registers, {self.spills} bytes spilled, {self.shared} bytes "
                f"of shared memory"]
        return "\n".join(rows + [f"warning: {text}" for text in self.serialised])


def hopper(kernel, args, constexprs=None, num_warps=4, num_stages=3, needs=(), may_spill=0):
    """Compile a @triton.jit function for Hopper -> Hopper.

    args        what a launch would pass, without the constexprs: {name: value}, or in order.
                In place of a value its type will do: "*fp16" (a pointer, aligned to 16 bytes as
                torch's are), "i32", "i32:16" (a multiple of 16, which Triton makes use of),
                "fp32", "tensordesc<fp16[64,64]>"
    constexprs  {name: value}
    needs       counts that must not be 0: "wgmma", "tma_loads"; kept with the result, not checked
    may_spill   bytes that a thread may spill; likewise
    Raises KernelError for arguments that do not fit; what Triton's compiler raises comes through.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    source = ASTSource(kernel, *specialise(kernel, args, dict(constexprs or {})))
    compiled = compile(source, target=GPUTarget("cuda", 90, 32),
                       options={"num_warps": num_warps, "num_stages": num_stages})
    cubin, resources, log = assemble(compiled.asm["ptx"])
    name = compiled.metadata.name
    return Hopper(
        name, compiled.metadata.num_warps, **instructions(compiled.asm["ptx"]),
        resources=resources[name], shared=compiled.metadata.shared,
        serialised=[row.split(":", 1)[1].strip() for row in log.splitlines() if
                    "serialized" in row], needs=tuple(needs), may_spill=may_spill,
        ptx=compiled.asm["ptx"], cubin=cubin)


def hopper_cuda(kernel, block, needs=(), may_spill=0):
    """Compile a RawKernel, in CUDA C, for Hopper -> Hopper.

    block       its threads
    needs, may_spill    as for `hopper`
    """
    module = kernel.module
    text = module.source, module.path, module.options, tuple(sorted(module.expressions()))
    compiled = nvrtc.compile_ptx(*text, "compute_90a")
    cubin, resources = nvrtc.assemble(*text, "sm_90a")
    name = compiled.names.get(kernel.name, kernel.name)
    if name not in resources:
        raise KernelError(f"{module.path} has no kernel `{kernel.name}`; it has "
                          f"{', '.join(sorted(resources))}", "argument", path=module.path)
    body = re.search(rf"\.entry {re.escape(name)}\(.*?^}}$", compiled.ptx, re.S | re.M)[0]
    return Hopper(name, -(-block // 32), **instructions(body), resources=resources[name],
                  shared=resources[name].shared, serialised=[], needs=tuple(needs),
                  may_spill=may_spill, ptx=body, cubin=cubin)


def instructions(ptx):
    """Counts of what matters on Hopper."""
    counts = Counter()
    loads = Counter()
    stores = Counter()
    for mnemonic in MNEMONIC.findall(ptx):
        words = mnemonic.split(".")
        if mnemonic.startswith("wgmma.mma_async"):
            counts["wgmma"] += 1
        elif mnemonic.startswith("mma.sync"):
            counts["mma_sync"] += 1
        elif "tensor" in words and words[0] == "cp" and "prefetch" not in words:
            to = next(w for w in words if w == "global" or w.startswith("shared"))
            counts["tma_stores" if to == "global" else "tma_loads"] += 1
        elif words[0] in ("ld", "st") and words[1] == "global":
            items = next((int(w[1:]) for w in words if re.fullmatch(r"v\d", w)), 1)
            (loads if words[0] == "ld" else stores)[items * SIZES[words[-1]]] += 1
    copies = Counter(int(size, 0) for size in COPY.findall(ptx))
    names = ("wgmma", "mma_sync", "tma_loads", "tma_stores")
    return {name: counts[name] for name in names} | {"copies": copies, "loads": loads,
                                                     "stores": stores}


def assemble(ptx):
    """-> cubin, {kernel: Resources}, the assembler's log.
    Triton has two assemblers."""
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        target = Path(folder) / "kernel.cubin"
        source.write_text(ptx, encoding="utf-8")
        done = subprocess.run([get_ptxas(90).path, "-v", "-lineinfo", "--gpu-name=sm_90a",
                               str(source), "-o", str(target)], capture_output=True, text=True,
                              timeout=TIMEOUT)
        if done.returncode:
            raise KernelError(f"ptxas failed: {done.stderr.strip()}", "compile")
        return target.read_bytes(), nvrtc.read_resources(done.stderr), done.stderr


# ---- what Triton wants to know about the arguments

def specialise(kernel, args, constexprs):
    """-> signature {name: type}, constexprs {(place,): value}, attributes {(place,): facts}"""
    names = list(kernel.arg_names)
    if not isinstance(args, dict):
        free = [n for n in names if n not in constexprs]
        if len(args) > len(free):
            raise KernelError(f"kernel `{kernel.__name__}` takes {len(free)} arguments besides its "
                              f"constexprs ({', '.join(free)}), {len(args)} were given", "argument")
        args = dict(zip(free, args, strict=False))
    defaults = {p.name: p.default for p in kernel.params if p.has_default}
    values = defaults | args | constexprs
    if values.keys() != set(names):
        missing = [n for n in names if n not in values]
        raise KernelError(f"kernel `{kernel.__name__}`: " + (
            f"no value for {', '.join(missing)}" if missing else
            f"no parameter is called {', '.join(values.keys() - set(names))}"), "argument")
    signature = {}
    constants = {}
    attributes = {}
    for i, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        constant = parameter.is_constexpr or parameter.name in constexprs
        kind, divisible = ("constexpr", False) if constant else type_of(parameter, value)
        signature[parameter.name] = kind
        if kind == "constexpr":
            constants[(i,)] = value
        elif divisible and not parameter.do_not_specialize:
            attributes[(i,)] = [["tt.divisibility", ALIGNED]]
    return signature, constants, attributes


def type_of(parameter, value):
    """An argument or its type -> Triton's type, and is it a multiple of 16?"""
    if isinstance(value, str):
        kind, _, multiple = value.partition(":")
        return kind, multiple == "16" or kind.startswith("*")
    if hasattr(value, "data_ptr"):
        name = str(value.dtype).removeprefix("torch.")
        if name not in TYPES:
            raise KernelError(f"parameter `{parameter.name}`: Triton has no {name}", "argument")
        return f"*{TYPES[name]}", value.data_ptr() % ALIGNED == 0
    if hasattr(value, "block_shape"):                       # a TensorDescriptor
        item = TYPES[str(value.base.dtype).removeprefix("torch.")]
        return f"tensordesc<{item}{list(value.block_shape)}>".replace(" ", ""), False
    if value is None:
        return "constexpr", False
    if isinstance(value, bool):
        return "u1", False
    if isinstance(value, int):
        if value == 1 and not parameter.do_not_specialize:
            return "constexpr", False
        fits = -2**31 <= value < 2**31
        return "i32" if fits else "i64" if value < 2**63 else "u64", value % ALIGNED == 0
    if isinstance(value, float):
        return "fp32", False
    raise KernelError(f"parameter `{parameter.name}`: an argument of type {type(value).__name__} "
                      f"is not known here", "argument")
