"""What NVRTC's messages leave unsaid: advice for nvcc files and for beginners."""

import re

HOST_CODE = ("NVRTC compiles device code alone, without the host's headers and functions. Remove "
             "it and what needs it, or put it between `#ifndef __CUDACC_RTC__` and `#endif`, so "
             "that nvcc still sees it.")
OLD_WARP_FUNCTION = ("Since Volta the lanes must be named: `{0}_sync(0xffffffff, ...)` where the "
                     "whole warp takes part.")
CURAND = ("The header is in the wheel nvidia-curand: pip install nvidia-curand. Or draw the random "
          "numbers on the host and pass them.")
MISSING_SEMICOLON = "It is missing before the place shown, often at the end of the line above."
ONE_INDEX = ("A pointer to numbers takes one index: x[row * columns + column], not "
             "x[row][column].")
CONST = "What is declared const can only be read: store to the array of the result."
COMMA = "An array takes one index a bracket: tile[r][c]. In tile[r, c] the comma drops the r."
FOUR = ("A float4 has no operators: take its .x, .y, .z and .w one by one. An address moves within "
        "the brackets: *(const float4*)(x + i).")
MAKE_FOUR = ("A float4 takes four numbers: make_float4(a, b, c, d). In C, (a, b, c, d) is d alone.")
ADDRESS = ("Cast the address, and read there with a * in front: *(const float4*)(x + i), or "
           "*(const float4*)&tile[r][c].")
DYNAMIC = ("The simulator does not launch a kernel from a kernel (dynamic parallelism): launch the "
           "inner one from the host, on what the outer one has written.")
CLUSTERS = ("Clusters of blocks and their distributed shared memory came with Hopper (sm_90), and "
            "the simulator is an Ampere GPU (sm_80): let blocks exchange data through global "
            "memory, in two launches or around grid.sync().")
TEXTURE_REFERENCE = ("CUDA 12 has no texture references any more: give the kernel a parameter of "
                     "type cudaTextureObject_t and pass a simulator.Texture(array).")
OF_CLUSTERS = re.compile(r"^(?:barrier\.cluster|mapa|getctarank|(?:ld|st|atom|red)\.\S*::cluster)|"
                         r"%\w*cluster")
HINTS = (                       # pattern in the log -> advice; {0} is its first group
    (r'cannot open source file "(curand\w*\.h)"', CURAND),
    (r'cannot open source file "([^"]+)"', HOST_CODE),
    (r"error: (texture) is not a template", TEXTURE_REFERENCE),
    (r"(device-side kernel launch) could not be processed", DYNAMIC),
    (r'identifier "(cudaLaunchDevice\w*|cudaGetParameterBuffer\w*)" is undefined', DYNAMIC),
    (r"(__cluster_dims__) is not supported", CLUSTERS),
    (r'has no member "(cluster_group|this_cluster)"', CLUSTERS),
    (r'identifier "(__cluster\w+)" is undefined', CLUSTERS),
    (r"Feature '([^']*(?:cluster|mapa)[^']*)' requires .target sm_90", CLUSTERS),
    (r'identifier "(cuda[A-Z]\w*|cublas\w*|cudnn\w*|exit|rand|srand)" is undefined', HOST_CODE),
    (r'identifier "(__(?:shfl|shfl_up|shfl_down|shfl_xor|any|all|ballot))" is undefined',
     OLD_WARP_FUNCTION),
    (r'error: (expected a ";")', MISSING_SEMICOLON),
    (r'error: (expression must have pointer-to-object type)', ONE_INDEX),
    (r'no (operator "=") matches these operands\s+operand types are: float4 = (?:float|int)\b',
     MAKE_FOUR),
    (r'no (operator "[^"]+") matches these operands\s+operand types are: .*\bfloat[24]\b', FOUR),
    (r'no suitable constructor exists to (convert from "[^"]+" to "float[24]")', ADDRESS),
    (r'error: (invalid type conversion)\s.*\bfloat[24]\s*\*\s*\)', ADDRESS),
    (r'error: (expression must be a modifiable lvalue)\s.*\[[^\]\n]*,', COMMA),
    (r'error: (expression must be a modifiable lvalue)\n\s*\w+\[[^\]\n]*\]\s*[-+*/]?=', CONST),
    (r'error: a value of type "float \*" (cannot be assigned)[^\n]*\s.*\[[^\]\n]*,', COMMA),
)


def hint(log):
    """-> advice on the first of these errors in a log, "" if there is none."""
    matches = [(match.start(), order, match, text) for order, (pattern, text) in enumerate(HINTS)
             if (match := re.search(pattern, log))]
    if not matches:
        return ""
    _, _, match, text = min(matches, key=lambda entry: entry[:2])
    return f"{match[1]}: " + text.format(match[1])


def refusal(text):
    """-> advice on an instruction or a call that the simulator lacks, "" if there is none."""
    if OF_CLUSTERS.search(text):
        return CLUSTERS
    return DYNAMIC if "__cudaCDP" in text or "cudaGetParameterBuffer" in text else ""
