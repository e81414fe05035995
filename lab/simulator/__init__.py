"""A simulator of NVIDIA GPUs that runs real CUDA C and unmodified Triton kernels on a CPU.

NVRTC or Triton compile to PTX; this package interprets the PTX with numpy, for all lanes at once.
It checks what a kernel does, counts what it moves, and says where in the source.
It needs numpy and the NVRTC wheels; torch and triton only for what uses them.

kernel          RawKernel and RawModule, as CuPy has them
nvrtc           CUDA C to PTX
cubin           registers and stack of a kernel, from the assembler
sass            the machine code, as nvdisasm prints it
cuda            RawKernel on a real GPU, through CuPy
signature       the C parameters of a kernel, read from the source
arguments       Python's arguments as the bytes of a kernel's parameters
variables       __device__ and __constant__ variables, from the host
textures        textures: arrays that are read by coordinates
host_addresses  addresses that reach a kernel as numbers
cache           compiled kernels on disk
remembered      results kept for as long as there is room
hints           advice for what NVRTC's messages leave unsaid
triton_driver   a Triton driver whose device is the simulator
triton_default  that driver where Triton finds no GPU
triton_launch   one compiled Triton kernel, launched
triton_tuning   what Triton's autotuner compares
hopper          what Triton and NVRTC make of a kernel for Hopper
ptx             PTX text as a table of instructions
decode          an instruction as a Python function
instructions    the instruction set, a file for each chapter of the PTX manual
classes         what kind of work an instruction is
uses            which registers an instruction reads and writes
distance        how far a kernel loads ahead
dtypes          PTX types and the numpy types that hold them
rounding        numbers and roundings that numpy lacks
exact           double-precision results that numpy lacks
run             one launch while it runs
wave            the blocks that run together
lanes           sets of lanes
scheduler       which lanes run next
series          the same instruction many times in a row, run as one
memory          where addresses lead
access          one load or store of a wave
heap            malloc() and free() in a kernel
system_calls    printf, assert, malloc and free
barriers        where threads of a block wait for each other
warp_room       where lanes of a warp wait for each other
together        lanes of a warp that meet at several instructions of one kind
grid_sync       grid.sync() of cooperative groups
tile_sync       sync() of tiles larger than a warp
in_flight       shared memory that a cp.async is still filling
copies          elements that several of Triton's threads load together
races           what touched a place, and when: the race detector
accesses        what it knows of one instruction's accesses, and how it judges them
ordering        the race detector's clock
stamps          when something happened and which lane did it, in one number
flags           which block has seen which flag: what orders two blocks
hearsay         what a block relies on because it has seen a flag, fenced or not
cells           what the race detector knows of one memory
taint           uninitialised values: where they come from and go
undefined       undefined bits
unset           local variables that are read before they have a value
returns         whether a thread returned or walked past a barrier
patterns        shared addresses that depend on the thread alone
counts          what a launch did, for each instruction
report          the counts of a launch, for each source line
occupancy       blocks on a multiprocessor at a time, and why no more
timeline        when warps run and when they wait
pictures        pictures of a launch
session         what holds for all launches of a process
errors          what can be wrong with a kernel
self_test       whether the simulator works here
pytest_plugin   `pytest --simulate`, for the tests of any project
cupy_on_numpy   what such tests need most of CuPy
"""

from . import pictures
from .errors import CompileError, KernelError, Unsupported
from .hopper import hopper, hopper_cuda
from .kernel import RawKernel, RawModule
from .occupancy import occupancy
from .report import Launch
from .sass import sass
from .self_test import self_test
from .session import budget, cache_dir, last_launch, trace, use
from .textures import Texture
from .triton_default import activate_triton, capability, deactivate_triton, join

__all__ = [
    "CompileError", "KernelError", "Launch", "RawKernel", "RawModule", "Texture", "Unsupported",
    "activate_triton", "budget", "cache_dir", "capability", "deactivate_triton", "hopper",
    "hopper_cuda", "last_launch", "occupancy", "pictures", "sass", "self_test", "trace", "use",
]

join()
