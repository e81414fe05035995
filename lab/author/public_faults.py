"""Faults found in well-known public kernels, each in a small kernel of our own.

The simulator ran the public kernels as they stand in the named version, and stopped at the faults
described here.
No code of theirs is copied: a twin does something else, smaller, and makes the same mistake in the
line marked `fault`.
`mended` is the twin without it.

    python -m lab.author.public_faults             writes benchmarks/found_in_public_code.md
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab import simulator
from lab.simulator.session import session

PAGE = Path(__file__).parents[2] / "benchmarks" / "found_in_public_code.md"
LLM_C = "[llm.c](https://github.com/karpathy/llm.c)"
LEET = "[LeetCUDA](https://github.com/xlite-dev/LeetCUDA)"
SAMPLES = "[CUDA samples](https://github.com/NVIDIA/cuda-samples)"
HEAD = 'const unsigned ALL = 0xffffffff;\nextern "C" __global__ void twin('


@dataclass(frozen=True)
class Fault:
    """What was found, and the twin that shows it."""
    title: str
    project: str
    file: str
    version: str            # of the public file that was run
    kernel: str
    where: str              # in the public kernel
    why: str
    kind: str               # of the simulator's error, or "warning"
    twin: str
    mended: tuple           # text of the twin, what to write in its place
    shapes: tuple           # of the arrays, float32; a number is an int
    threads: int
    blocks: int = 1

    @property
    def line(self):
        """The line of the twin where the simulator finds the fault."""
        return 1 + next(i for i, line in enumerate(self.source.splitlines()) if "// fault" in line)

    @property
    def source(self):
        return HEAD + self.twin


FAULTS = (
    Fault("Parts of a sum over parts of a maximum", LLM_C, "dev/cuda/softmax_forward.cu", "99fe394",
          "softmax_forward_kernel4", "where each warp stores its sum",
          "One array holds each warp's maximum, then the row's, then each warp's sum. Warp 0 may "
          "store its sum in place 0 before another warp has read the row's maximum from there. A "
          "barrier between the two, or a second array, mends it.",
          "race", """const float* x, float* y) {
    __shared__ float parts[2];
    int t = threadIdx.x;
    float top = x[t];
    for (int d = 16; d; d /= 2) top = fmaxf(top, __shfl_xor_sync(ALL, top, d));
    if (t % 32 == 0) parts[t / 32] = top;
    __syncthreads();
    if (t == 0) parts[0] = fmaxf(parts[0], parts[1]);
    __syncthreads();
    float power = expf(x[t] - parts[0]), sum = power;
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(ALL, sum, d);
    if (t % 32 == 0) parts[t / 32] = sum;               // fault
    __syncthreads();
    y[t] = power / (parts[0] + parts[1]);
}""", ("    if (t % 32 == 0) parts[t / 32] = sum;", "    __syncthreads();\n"
       "    if (t % 32 == 0) parts[t / 32] = sum;"), ((64,), (64,)), 64),
    Fault("One lane writes, the others read", LLM_C, "dev/cuda/attention_forward.cu", "e2a18d9",
          "attention_forward_fused1", "where the lanes read the scores that lane 0 has stored",
          "Lane 0 stores each score in global memory, then every lane reads some. Nothing makes "
          "the other lanes see the last store: that takes __syncwarp().",
          "race", """const float* q, const float* keys, float* scores, float* y) {
    int lane = threadIdx.x;
    for (int j = 0; j < 33; j++) {
        float score = q[lane] * keys[j * 32 + lane];
        for (int d = 16; d; d /= 2) score += __shfl_xor_sync(ALL, score, d);
        if (lane == 31) scores[32 - j] = score;
    }
    y[lane] = scores[lane] * scores[32];                // fault
}""", ("    y[lane] =", "    __syncwarp();\n    y[lane] ="), ((32,), (33, 32), (33,), (32,)), 32),
    Fault("Zeros beside sums", LLM_C, "dev/cuda/attention_backward.cu", "9964224",
          "softmax_autoregressive_backward_kernel7", "where each warp stores its sum",
          "Warp 0 sets the whole array to zero while the other warps may have stored their sums: a "
          "zero may come last. A barrier after the zeros mends it.",
          "race", """const float* x, float* y) {
    __shared__ float sums[32];
    int t = threadIdx.x;
    if (t < 32) sums[t] = 0;
    float sum = x[t];
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(ALL, sum, d);
    sums[t / 32] = sum;                                 // fault
    __syncthreads();
    sum = sums[t % 32];
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(ALL, sum, d);
    y[t] = x[t] / sum;
}""", ("    float sum = x[t];", "    __syncthreads();\n    float sum = x[t];"), ((64,), (64,)), 64),
    Fault("The next row's sums over this row's", LLM_C, "dev/cuda/attention_backward.cu", "9964224",
          "softmax_autoregressive_backward_kernel8",
          "the same store, in the loop over four rows (it has kernel 7's fault too; this one was "
          "seen with that one mended)",
          "A warp that is done with a row stores its sum of the next one while others still read "
          "this row's. A barrier at the end of the loop mends it.",
          "race", """const float* x, float* y) {
    __shared__ float sums[2];
    int t = threadIdx.x;
    for (int row = 0; row < 4; row++) {
        float sum = x[row * 64 + t];
        for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(ALL, sum, d);
        if (t % 32 == 0) sums[t / 32] = sum;            // fault
        __syncthreads();
        y[row * 64 + t] = x[row * 64 + t] / (sums[0] + sums[1]);
    }
}""", ("sums[1]);\n", "sums[1]);\n        __syncthreads();\n"), ((4, 64), (4, 64)), 64),
    Fault("One row too many", LLM_C, "dev/cuda/fused_residual_forward.cu", "9964224",
          "fused_residual_forward2", "where a thread adds the two inputs of its row",
          "The guard lets a thread pass whose row equals the number of rows: there is no such "
          "row. It shows where the rows do not fill the last block.",
          "out_of_bounds", """const float* a, const float* b, float* sum, int rows, int width) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row > rows) return;
    for (int i = row * width; i < (row + 1) * width; i++)
        sum[i] = a[i] + b[i];                           // fault
}""", ("row > rows", "row >= rows"), ((50, 4), (50, 4), (50, 4), 50, 4), 32, 2),
    Fault("A warp reads what few warps have stored", LEET, "kernels/softmax/softmax.cu", "a178097",
          "online_safe_softmax_f32x4_pack_per_token_kernel",
          "where the first warp reads the warps' results from shared memory",
          "All 32 lanes read from an array that has one place for each warp of the block: right "
          "with 32 warps, beyond its end with 2 to 16. Version 7a10437 guards the read.",
          "out_of_bounds", """const float* x, float* y) {
    __shared__ float sums[2];
    int t = threadIdx.x;
    float sum = x[t];
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(ALL, sum, d);
    if (t % 32 == 0) sums[t / 32] = sum;
    __syncthreads();
    if (t >= 32) return;
    sum = sums[t];                                      // fault
    sum += __shfl_xor_sync(ALL, sum, 1);
    if (t == 0) y[0] = sum;
}""", ("sum = sums[t];", "sum = t < 2 ? sums[t] : 0;"), ((64,), (1,)), 64),
    Fault("Threads read what others are deciding", LEET, "kernels/nms/nms.cu",
          "3ffeb35, of a fork", "nms_kernel", "where a thread stores that it keeps its box",
          "Each thread reads whether the earlier boxes are kept while other threads, some in other "
          "blocks, still decide that. No barrier orders blocks. The project's version 951c09a "
          "decides in a single block.",
          "race", """const float* x, float* keep, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float mine = 1;
    for (int j = 0; j < i; j++)
        if (keep[j] && fabsf(x[i] - x[j]) < 0.01f) mine = 0;
    keep[i] = mine;                                     // fault
}""", ("if (keep[j] &&", "if ("), ((70,), (70,), 70), 32, 3),
    Fault("A shuffle beyond its mask", SAMPLES,
          "Samples/2_Concepts_and_Techniques/reduction/reduction_kernel.cu", "2e41896",
          "reduce7",
          "the shuffle of warpReduceSum, where it adds up the warps' sums",
          "With float and 64 to 512 threads the mask names as many lanes as the block has warps, "
          "and the first step reads 16 lanes further. The value of a lane that does not take part "
          "is undefined. With int the instruction is another, with 1024 threads the mask is full.",
          "warning", """const float* x, float* y) {
    __shared__ float sums[4];
    int t = threadIdx.x;
    float sum = x[t];
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(ALL, sum, d);
    if (t % 32 == 0) sums[t / 32] = sum;
    __syncthreads();
    if (t < 4) {
        sum = sums[t];
        for (int d = 16; d; d /= 2)
            sum += __shfl_down_sync(0xf, sum, d);       // fault
    }
    if (t == 0) y[0] = sum;
}""", ("for (int d = 16; d; d /= 2)\n            sum += __shfl_down_sync(",
       "for (int d = 2; d; d /= 2)\n            sum += __shfl_xor_sync("), ((128,), (1,)), 128),
)


def run(fault, source):
    """Launch a twin on the simulator -> (kind, line, message); None if there is nothing to say."""
    rng = np.random.default_rng(0)
    arrays = [size if isinstance(size, int) else rng.random(size, np.float32)
              for size in fault.shapes]
    kernel = simulator.RawKernel(source, "twin", path="twin.cu")
    before = session.chosen
    simulator.use("simulator")
    try:
        with simulator.trace() as launches:
            kernel(fault.blocks, fault.threads, arrays)
    except simulator.KernelError as error:
        return error.kind, error.line, str(error).splitlines()[0]
    finally:
        simulator.use(before)
    for warning in launches.launches[0].warnings:
        message, place = warning.splitlines()
        return "warning", int(place.split("line ")[1].split(":")[0]), message
    return None


def text():
    """The page, as Markdown."""
    lines = [
        "# Found in public code", "",
        "The simulator ran kernels of well-known public code and stopped at these lines. The names "
        "say which version of which file. Beside each is what the simulator says about a small "
        "kernel of our own with the same fault, `lab/author/public_faults.py`; a test holds this "
        "page to it.",
        "", "| kernel | line | the simulator says about our twin | why it is a fault |",
        "| --- | --- | --- | --- |"]
    for fault in FAULTS:
        kind, line, message = run(fault, fault.source)
        lines.append(f"| **{fault.title}**<br>{fault.project}, `{fault.file}` ({fault.version}), "
                     f"`{fault.kernel}` | {fault.where} | line {line}: {message} | {fault.why} |")
    return "\n".join(lines) + "\n\nMade by `python -m lab.author.public_faults`.\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
