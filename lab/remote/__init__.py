"""The process that runs a learner's code.
Nothing here decides what is right.

agreement    whether all ranks run the same program
changes      what a call changed among its arguments
child        loads the files it is handed, answers calls, judges nothing
compiler     CUDA C and Triton compiled in another process
fork_server  the process that has imported everything and forks children
frames       messages to the trusted process and back: data, as JSON and raw bytes
ledger       what ranks have begun, what does not fit, and the words for it
pace_calls   the calls that are timed for points
rank         one rank, in its own process
ranks        n forks that meet on loopback, and are watched
recorder     writes down every call of torch.distributed
servers      where these processes are: found, shared, started
shapes       holds code to its shape comments: y = f(x)  # (B, T, C)
spans        when a rank computed and when it exchanged data
traffic      what a call of torch.distributed sends, in bytes
warm         a forked child, as the process that asked for it sees it
warm_cuda    what such a process imports for CUDA C
warmup       the same for torch and Triton
wire         values as the parts of such a message
"""
