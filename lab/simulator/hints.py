"""What NVRTC's messages leave unsaid: advice for files that were written for nvcc."""

import re

HOST_CODE = ("NVRTC compiles device code alone, without the host's headers and functions. Take it "
             "out, with what needs it, or put it between `#ifndef __CUDACC_RTC__` and `#endif`, so "
             "that nvcc still sees it.")
OLD_WARP_FUNCTION = ("Since Volta the lanes must be named: `{0}_sync(0xffffffff, ...)` where the "
                     "whole warp takes part.")
CURAND = ("The header is in the wheel nvidia-curand. Or draw the random numbers on the host and "
          "pass them.")
HINTS = (                       # pattern in the log -> advice; {0} is its first group
    (r'cannot open source file "(curand\w*\.h)"', CURAND),
    (r'cannot open source file "([^"]+)"', HOST_CODE),
    (r'identifier "(cuda[A-Z]\w*|cublas\w*|cudnn\w*|exit|rand|srand)" is undefined', HOST_CODE),
    (r'identifier "(__(?:shfl|shfl_up|shfl_down|shfl_xor|any|all|ballot))" is undefined',
     OLD_WARP_FUNCTION),
)


def hint(log):
    """-> advice on the first of these errors in a log, "" if there is none."""
    found = [(match.start(), order, match, text) for order, (pattern, text) in enumerate(HINTS)
             if (match := re.search(pattern, log))]
    if not found:
        return ""
    _, _, match, text = min(found, key=lambda entry: entry[:2])
    return f"{match[1]}: " + text.format(match[1])
