"""The process that runs a learner's code. Nothing here decides what is right.

child       loads the files it is handed, answers calls, judges nothing
compiler    CUDA C and Triton compiled in another process
pace_calls  the calls that are timed for points
shapes      holds code to its shape comments: y = f(x)  # (B, T, C)
warm        a process that has imported everything and forks children
warmup      what that process imports
wire        what crosses to the trusted process and back: data, as JSON and raw bytes
"""
