"""What can go wrong with a kernel, as exceptions that teach.

Every error has a `kind`, the source line, the thread and the block, so that a grader can look
at the facts and a learner can read the sentence.
"""


class KernelError(Exception):
    """A kernel did what CUDA forbids, or what cannot be right.

    kind         out_of_bounds, misaligned, race, barrier, deadlock, endless, uninitialised, mask,
                 assert, argument, compile, unsupported
    line         line of the source, or None where no line is to blame
    path         name of the source file
    source_line  the text of that line
    thread       (x, y, z) within its block, or None
    block        (x, y, z) within the grid, or None
    """

    kind = "kernel"

    def __init__(self, message, kind=None, *, line=None, path=None, source_line="", thread=None,
                 block=None):
        super().__init__(message)
        self.kind = kind or self.kind
        self.line = line
        self.path = path
        self.source_line = source_line
        self.thread = thread
        self.block = block


class CompileError(KernelError):
    """The CUDA C text does not compile.
    The message is the compiler's log."""

    kind = "compile"


class Unsupported(KernelError):
    """The kernel may well be right, but the simulator cannot run it."""

    kind = "unsupported"
