"""The process that runs a learner's code.
It is handed files, answers calls, and judges nothing."""

import asyncio
import contextlib
import faulthandler
import importlib
import inspect
import io
import linecache
import os
import signal
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

from lab.course import ROOT, VERSION
from lab.remote import compiler, wire
from lab.remote.changes import seen
from lab.remote.frames import frame, read_frame


def main(connection, request):
    """Answer messages until the other side hangs up.

    request: {"folder": the prepared tree, "floor", "lesson", "simulator": kernels run there,
              "shapes": hold the lesson to its shape comments,
              "shown": {path: text} that messages quote, where another process compiles}
    """
    faulthandler.register(signal.SIGUSR1)       # asks a hung child where it is, before it is ended
    faulthandler.enable()                       # and a crash in C tells where it was
    serve = SubjectServer(connection, request)
    with contextlib.suppress(EOFError):
        while True:
            serve.answer(*read_frame(serve.read))


class SubjectServer:
    def __init__(self, connection, request):
        self.connection = connection
        self.request = request
        self.objects, self.module, self.held = {}, None, contextlib.ExitStack()

    def read(self, n):
        data = bytearray()
        while len(data) < n:
            part = self.connection.recv(min(n - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def handle(self, thing):
        self.objects[id(thing)] = thing         # kept, so that the id stays its own
        return id(thing)

    def answer(self, message, buffers):
        try:
            value = getattr(self, "do_" + message["do"])(
                *wire.unpack(message["with"], buffers, lambda i, _: self.objects[i]))
            reply = self.packed(value)
        except SystemExit as error:
            reply = frame({"error": self.describe(error, "it ended the program (sys.exit)")},
                               [])
        except BaseException as error:
            reply = frame({"error": self.describe(error)}, [])
        self.connection.sendall(reply)

    def packed(self, value):
        try:
            tree, out = wire.pack(value, self.handle)
            return frame({"value": tree}, out)
        except RecursionError:
            raise wire.Unsendable("a value nested too deeply does not cross") from None

    # ---- what can be asked

    def do_load(self):
        """Import the lesson from the prepared tree, which comes before the course itself."""
        folder = self.request["folder"]
        for path in Path(folder).iterdir():
            if path.name in sys.modules and not path.is_symlink():
                raise RuntimeError(f"{path.name} was imported before the fork: expected only "
                                   f"floors that are the course's own")
        sys.path[:] = [folder] + [p for p in sys.path if p and Path(p).resolve() != ROOT]
        os.chdir(folder)
        sys.dont_write_bytecode = True
        if self.request["simulator"]:
            from lab import device
            device.use_simulator()
        name = f"{self.request['floor']}.{self.request['lesson']}"
        if "shown" in self.request:
            compiler.elsewhere(self.ask, name)
        self.module = importlib.import_module(name)
        for path, text in self.request.get("shown", {}).items():
            linecache.cache[path] = len(text), None, [*io.StringIO(text)], path
        if self.request["shapes"]:
            from lab.remote import shapes
            self.held.enter_context(shapes.checked(self.module.__file__))

    def do_get(self, owner, name):
        """An attribute: data as data, the rest as a handle."""
        return getattr(self.module if owner is None else owner, name)

    def do_call(self, function, args, kwargs):
        """(result, arrays among the arguments that the call changed, lists and dicts likewise)."""
        with seen(args, kwargs) as watch:
            result = function(*args, **kwargs)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
        return result, watch.changed(), watch.edited()

    def do_launch(self, name, grid, block, args, meta, steps):
        """Launch one kernel in the simulator: (launches as data, changed arrays).
        CUDA C needs no lesson that is loaded. meta may hold capability: 89 where the kernel
        needs fp8."""
        from lab import device, simulator

        if self.module is None:
            os.chdir(self.request["folder"])
            device.use_simulator(triton=False)
        kernel = getattr(self.module, name, None)
        chosen = simulator.capability(meta.pop("capability", 80))
        with seen(args, {}) as watch, simulator.trace() as trace, simulator.budget(steps), chosen:
            if kernel is None:
                # relative to the working folder: compiled kernels are cached by this name too
                path = Path(self.request["floor"], self.request["lesson"] + ".cu")
                shared = meta.pop("shared_mem", 0)
                simulator.RawModule(path).get(name)(grid, block, args, shared_mem=shared, **meta)
            else:
                kernel[tuple(grid)](*args, **meta)
        return [launch.as_data() for launch in trace.launches], watch.changed()

    def do_ranks(self, name, arguments, kwargs, spans, limit):
        """Call a function on a rank for each tuple of `arguments`: what ranks.run gives.

        name: of the lesson, or `module:function` of the course.  limit: seconds of a rank's CPU
        """
        from lab.remote import rank, ranks

        module, _, inner = name.rpartition(":")
        function = getattr(importlib.import_module(module) if module else self.module, inner)
        file = self.module.__file__
        facts = {"version of the course": VERSION, "lesson": self.request["lesson"],
                 "program": Path(file).read_text("utf-8")}
        return ranks.run(rank.Program(function, kwargs, file, facts, self.describe, spans,
                                      self.connection), arguments, limit)

    def do_grad(self, function, args, upstream):
        """Gradients of sum(function(*args) * upstream) by every argument that requires one."""
        import torch

        result = function(*args)
        wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
        return torch.autograd.grad(result, wanted, upstream)

    def do_make(self, path, args, kwargs):
        """Build a mock of the course, named `module:Class`, in this process."""
        module, _, name = path.partition(":")
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    def do_enter(self, thing):
        return thing.__enter__()

    def do_exit(self, thing):
        return thing.__exit__(None, None, None)

    def do_iter(self, thing):
        return iter(thing)

    def do_next(self, iterator):
        """[value], or [] at the end."""
        for value in iterator:
            return [value]
        return []

    # ---- compiling in another process: both sides

    def ask(self, *values):
        """The answer of the process that compiles, asked by way of the grader."""
        tree, buffers = wire.pack(list(values), self.handle)
        self.connection.sendall(frame({"ask": tree}, buffers))
        message, out = read_frame(self.read)
        return wire.unpack(message["value"], out)

    def do_compile(self, what, *arguments):
        os.chdir(self.request["folder"])
        return getattr(compiler, what)(self.module, *arguments)

    # ---- errors

    def describe(self, error, text=None):
        """Class, text and place, as data for a message that teaches."""
        own = str(Path(self.request["folder"], self.request["floor"], self.request["lesson"]))
        frames = [f for f in traceback.extract_tb(error.__traceback__)
                  if f.filename.startswith(own)]
        path, line = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
        if isinstance(error, SyntaxError):
            path = error.filename
            line = error.lineno
            text = error.msg
        if is_triton_error(error):
            error = innermost(error)
            path, line = triton_line(error, own + ".py")
            text = triton_reason(error)
        if type(error) is AttributeError and (names := self.public(error.obj)):
            text = f"{error}; it has {', '.join(names)}"
        if text is None:
            text = f"{type(error).__name__} that cannot be printed"
            with contextlib.suppress(Exception):
                text = str(error)
        text = text.partition("\nException raised from ")[0]    # C++ frames of PyTorch's
        if type(error) is RuntimeError:         # of Triton's compiler, where it knows no line
            text = meaning(text)
        kind = getattr(error, "kind", None) if is_kernel_error(error) else None
        if kind is not None and error.line is not None:
            path = str(error.path)
            line = error.line
        source = linecache.getline(path, line).strip() if path and line else ""
        last = traceback.extract_tb(error.__traceback__)[-1].filename if error.__traceback__ else ""
        return {"type": type(error).__name__, "text": text[:4000], "kind": kind,
                "inside": kind is None and last.startswith(str(ROOT / "lab" / "simulator")),
                "path": Path(path).name if path else None, "line": line, "source": source[:200],
                "callers": [f.lineno for f in frames[:-1] if f.filename == path]}

    def public(self, thing):
        """The names of an object of the course or of a grader's table; [] for any other, and where
        it does not tell."""
        with contextlib.suppress(Exception):            # a learner's class may answer anything
            if type(thing) is SimpleNamespace:
                return [*vars(thing)]
            kind = thing if isinstance(thing, type) else type(thing)
            floor = kind.__module__.split(".")[0]
            if floor == self.request["floor"] or (ROOT / floor / "__init__.py").exists():
                return [name for name in dir(thing) if not name.startswith("_")]
        return []


LOOP = ("a `for` counts over range(…) or tl.range(…); a block such as tl.arange(…) is one value, "
        "used as a whole")
TRITON_SAYS = {                                 # part of a reason that misleads: what to say
    "Did you forget to add @triton.jit": "a pointer is not an array: tl.load(x + i, mask) "
                                         "reads elements, tl.store(z + i, values, mask) writes "
                                         "them",
    "'tensor_descriptor": "a descriptor is not an address: d.load([row, column]) reads the tile "
                          "that begins there, d.store([row, column], tile) writes one",
    "'Name' object has no attribute 'func'": LOOP,
    "iterators are currently supported": LOOP,
    "Boolean value of Tensor with more than one value": "an `if` or `while` needs a single value, "
                                                        "and this is a block of them: use a mask",
}
TRITON_MEANS = {                                # part of Triton's reason: what it means
    "has no attribute 'values'": "several values are wanted from a call that returns one, or None",
    "'MatMult'": "Triton has no @; tl.dot multiplies tiles",
    "equal reduction dimensions": "tl.dot multiplies (M, K) by (K, N): turn a tile with .T",
    "cannot cast pointer": "an address is not a value: tl.load(x + i, mask) reads what is there",
    "__setitem__": "a pointer is not an array: tl.store(z + i, values, mask) writes elements",
    "unexpected type fp32": "was `/` written for `//`, which gives a whole number?",
    "Unsupported function referenced": "a kernel calls Triton's functions alone, such as tl.arange",
    "PassManager::run failed": "does the kernel return a value? A kernel stores its results, and "
                               "returns nothing",
}


def innermost(error):
    """A Triton compile error in the function that is called, not at the line that calls it."""
    while is_triton_error(error.__cause__) and error.__cause__.src:
        error = error.__cause__
    return error


def is_triton_error(error):
    return any(c.__name__ == "CompilationError" for c in type(error).__mro__) \
        and hasattr(error, "node")


def triton_reason(error):
    """Why Triton cannot compile a line, without the listing that comes first."""
    reason = error.error_message or (repr(error.__cause__) if error.__cause__ else str(error))
    for part, plain in TRITON_SAYS.items():
        if part in reason:
            return plain
    return meaning(reason)


def meaning(reason):
    """Triton's reason, with what it means."""
    for part, advice in TRITON_MEANS.items():
        if part in reason:
            return f"{reason}: {advice}"
    return reason


def triton_line(error, path):
    """(path, line) of a Triton compile error: it counts from the `def` of its function."""
    head = error.src.splitlines()[0].strip()
    for number, text in enumerate(linecache.getlines(path), 1):
        if text.strip() == head:
            return path, number + error.node.lineno - 1
    return None, None


def is_kernel_error(error):
    simulator = sys.modules.get("lab.simulator")
    return simulator is not None and isinstance(error, simulator.KernelError)
