"""The code under test, as a test sees it: a proxy to a process of its own.

    subject.softmax(x)                      calls the learner's function
    pool = subject.BlockPool(8)             a handle; its methods and attributes work the same way
    subject.launch("softmax_cuda", grid, block, args)       one kernel, in the simulator
    subject.grad("rmsnorm", args, upstream)                 gradients

A child that dies, hangs or floods raises Stopped here; an exception of the learner's, Raised.
"""

import numpy as np

from lab.judge import inputs, ranks, stand_ins
from lab.judge.conversation import call
from lab.judge.failures import NotStarted, Raised, Stopped
from lab.judge.launched import Launched
from lab.judge.time_limit import LAST_RESORT, TimeLimit
from lab.remote import wire
from lab.remote.frames import WireError, frame, read_frame

# The least limit of a call; the reference's own time or steps, times SLACK, may be more.
SECONDS = 10            # as time_limit.py counts them
STEPS = 20_000          # warp instructions of a launch
SLACK = 20
LARGEST = 256 * 2**20   # bytes of a reply
MAX_GUESS_CHARS = 200   # characters of a prediction that is kept, to be drawn beside the result


class Subject:
    """A child with a lesson loaded.
    `reference` is asked for its time or steps at a limit.

    compiler(tree, buffers): the answer of another process that compiles for the child.
    patience: how many times SECONDS an answer may take where there is no reference.
    cuda: (names of the lesson's kernels, what starts a child that launches them and no more).
    """

    def __init__(self, start, reference=None, compiler=None, patience=SLACK, cuda=((), None)):
        self._start, self._reference, self._compiler = start, reference, compiler
        # The reference itself has no other to compare with: it ends, and may take its time.
        self._patience = 1 if reference is not None else patience
        self._cuda_kernels, self._start_cuda = cuda
        self._child, self._loaded, self._bare = None, False, False
        self.values, self.stopped = {}, False
        self._changeable = {}               # by name: the inputs that the reference changes
        self.observer = None                # told of every call, if there is one (observer.py)
        self.edited = []                # lists and dicts that the last call changed, by place, name
        self.calls = []                 # Calls so far; a fixture clears them before each test

    # ---- what a test writes

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self._get(None, name)

    def launch(self, name, grid, block=None, args=(), **meta):
        """Launch kernel `name` over `grid`; arrays in `args` are written as on a device.

        CUDA: give `block` and perhaps `shared_mem`.
        Triton: give the constexprs and num_warps.
        capability=89: the simulator is a GPU with fp8.
        """
        self._observe(name, [list(args), meta], launch=True)
        request = (name, aslist(grid), aslist(block), list(args), meta)
        own = wire.arrays(list(args))
        copies = [a.copy() if isinstance(a, np.ndarray) else a.clone() for a in own]
        try:
            launches, changed = parts(self._ask("launch", *request, STEPS * self._patience), 2)
        except Raised as error:
            if error.kind != "endless" or self._reference is None:
                raise
            inputs.restore(own, copies)
            steps, seconds = self._reference()._effort(request, meta)
            inputs.restore(own, copies)
            if SLACK * steps <= STEPS:
                raise
            launches, changed = parts(
                self._ask("launch", *request, SLACK * steps, slow=lambda: seconds), 2)
        self._check_inputs(name, list(args), {}, (changed,),
                           lambda: ("launch", *request, STEPS * SLACK))
        inputs.copy_back(list(args), changed)
        self.calls.append(call(f"the kernel {name}", args, meta, None, changed))
        return Launched(launches)

    def grad(self, function, args, upstream):
        """Gradients by each argument that requires one, as a tuple."""
        self._observe(function, [list(args), upstream])
        return self._ask("grad", getattr(self, function), list(args), upstream)

    def ranks(self, name, arguments, *, spans=False, **kwargs):
        """A function on a rank for each tuple of `arguments`: a RankRun, see lab/judge/ranks.py.

        name: of the lesson, or `module:function` of the course.  spans: also when each rank did
        what, by PyTorch's profiler
        """
        question = ranks.Question(name, [tuple(own) for own in arguments], kwargs, spans)
        return ranks.run(self, question, SECONDS, SLACK)

    def make(self, path, *args, **kwargs):
        """A mock of the course, `module:Class`, built beside the code under test."""
        stand_ins.name(kwargs)
        stand_ins.name_fields(args)
        if path == "builtins:setattr":
            stand_ins.name({args[1]: args[2]})
        result = self._ask("make", path, list(args), kwargs)
        if isinstance(result, Remote) and stand_ins.is_one(path):
            result._given = result._label = stand_ins.UNNAMED
        self.calls.append(call(path.rpartition(":")[2], args, kwargs, result))
        return result

    def compile(self, what, *arguments):
        """What lab.remote.compiler makes of it there."""
        return self._ask("compile", what, *arguments)

    # ---- what another Subject asks of the reference at a limit

    def _effort(self, request, meta):
        """Steps of the longest launch, and the seconds of CPU that all take."""
        self._prepare("launch", request)
        before, _ = self._child.work()
        launches = self.launch(*request[:4], **meta).launches
        return max(n["steps"] for n in launches), self._child.work()[0] - before

    def _seconds(self, name, args, kwargs):
        """Seconds of CPU that a call takes: other work beside it does not lengthen them.
        The caller's arrays stay as they are."""
        function = getattr(self, name)
        before, _ = self._child.work()
        self._ask("call", function, list(args), kwargs)
        return self._child.work()[0] - before

    def _on_ranks(self, question, limit, slack):
        """What came of a ranks.Question."""
        return ranks.ask(self, question, limit, slack)

    def _written(self, question):
        """The inputs that the same call or launch changes here; the caller's stay as they are."""
        _, *changes = self._ask(*question)
        return inputs.written([], *changes)

    # ---- plumbing

    def _observe(self, name, values, launch=False):
        if self.observer is not None:
            self.observer(name, values, launch)

    def _check_inputs(self, name, args, kwargs, changes, question):
        """AssertionError where an input is not what it was, though the course's own leaves it.

        changes: (arrays, lists and dicts) as the child says
        question(): the same call for the reference, made while the caller's arrays are as before
        """
        try:
            suspects = inputs.written(wire.arrays([args, kwargs]), *changes)
        except (TypeError, ValueError):
            raise Stopped("garbled",
                          "its answer cannot be read: what changed is not a list") from None
        if not suspects - self._changeable.get(name, set()) or self._reference is None:
            return
        allowed = self._reference()._written(question())
        self._changeable[name] = suspects if allowed is None else allowed
        if wrong := suspects - self._changeable[name]:
            which = inputs.described(min(wrong, key=str), args, kwargs)
            raise inputs.Changed(f"{name} changes {which}: expected it as before the call")

    def _get(self, owner, name):
        value = self._ask("get", owner, name)
        label = name if owner is None else stand_ins.attribute(owner, name)
        if isinstance(value, Remote):
            value._name, value._label = name if owner is None else None, label
        else:
            self.calls.append(call(label, None, {}, value))
        return value

    def _call(self, function, name, args, kwargs):
        def again():                # the reference's own time, with the same arguments
            return self._reference()._seconds(name, args, kwargs)

        self._observe(name or f"a {function._type}", [list(args), kwargs])
        self._name_stand_ins(function, args, kwargs)
        shared = contains_handle([list(args), kwargs])  # the reference's process has no such object
        slow = again if self._reference is not None and name and not shared else None
        result, changed, edited = parts(
            self._ask("call", function, list(args), kwargs, slow=slow), 3)
        self.edited = edited
        if name and not shared:
            self._check_inputs(name, list(args), kwargs, (changed, edited), lambda: (
                "call", getattr(self._reference(), name), list(args), kwargs))
        inputs.copy_back([list(args), kwargs], changed)
        self.calls.append(call(function._label, args, kwargs, result, changed))
        if name and name.startswith(("predict_", "choose_")):
            result = result.item() if isinstance(result, np.generic) else result
            if may_be_kept(result):
                self.values[name] = result
        return result

    def _name_stand_ins(self, function, args, kwargs):
        """Name what the test hands over as the function that gets it does."""
        stand_ins.name(kwargs)
        stand_ins.name_fields(args)
        if any(map(stand_ins.nameless, args)):
            parameters = self._ask("make", "lab.judge.stand_ins:parameters", [function], {})
            if type(parameters) is list and all(type(own) is str for own in parameters):
                stand_ins.name(dict(zip(parameters, args, strict=False)))

    def _ask(self, what, *values, slow=None):
        try:
            self._prepare(what, values)
            return self._exchange(what, *values, slow=slow)
        except (Raised, Stopped) as error:
            error.subject = error.subject or self
            if what == "call":
                function, args, kwargs = values
                error.call = call(function._label, args, kwargs, None)
            raise

    def _prepare(self, what, values):
        """Have a process that can answer.
        CUDA C is compiled and launched without the learner's Python; one that only launches it
        may lack torch and Triton, and gives way to another."""
        cuda = what == "launch" and values[0] in self._cuda_kernels
        if self._child is None or (self._bare and not cuda):
            self.close()
            self._bare = cuda
            self._child = self._started(self._start_cuda if cuda else self._start)
        if not (self._loaded or cuda or (what, *values[:1]) == ("compile", "cuda")):
            try:
                self._exchange("load")
            except Raised as error:
                error.loading = True
                raise
            self._loaded = True

    def _started(self, start):
        try:
            return start()
        except (OSError, RuntimeError) as error:
            raise NotStarted(str(error)) from error

    def _exchange(self, what, *values, slow=None):
        child = self._child
        tree, buffers = wire.pack(list(values), lambda thing: self._number(thing))
        try:
            child.connection.settimeout(LAST_RESORT * SECONDS)
            child.connection.sendall(frame({"do": what, "with": tree}, buffers))
            message, out = self._reply(slow)
        except (EOFError, OSError, WireError) as error:
            stopped = self._stopped(error)
            child.kill()
            raise stopped from None
        except (Raised, Stopped):       # of the process that compiles: this one still waits for it
            child.kill()
            self._child = None
            self._loaded = False
            raise
        if "error" in message:
            raise Raised(message["error"] if isinstance(message["error"], dict) else {})
        try:
            return wire.unpack(message["value"], out, lambda i, kind: Remote(self, i, kind))
        except (WireError, KeyError) as error:
            child.kill()
            raise self._stopped(error) from None

    def _reply(self, slow):
        """The child's answer.
        `slow()`: how long the reference takes; called at the limit."""
        message, out = self._frame(slow)
        while self._compiler is not None and "ask" in message:
            tree, buffers = wire.pack(self._compiler(message["ask"], out), None)
            self._child.connection.settimeout(LAST_RESORT * SECONDS)
            self._child.connection.sendall(frame({"value": tree}, buffers))
            message, out = self._frame(slow)
        return message, out

    def _frame(self, slow):
        time_limit = TimeLimit(self._child)
        limit = SECONDS * self._patience
        if not time_limit.answered(limit) and slow is not None:
            limit = max(limit, SLACK * slow())
        if not time_limit.answered(limit):
            raise TimeoutError(f"{limit:.0f}")
        rest = TimeLimit(self._child)           # of an answer that has begun
        return read_frame(lambda n: self._read(n, rest), LARGEST)

    def _read(self, n, time_limit):
        """Exactly n bytes of an answer."""
        data = bytearray()
        while len(data) < n:
            if not time_limit.answered(SECONDS):
                raise TimeoutError(f"{SECONDS:.0f}")
            data += self._child.part(n - len(data), data)
        return bytes(data)

    def _stopped(self, error):
        self.stopped = True
        if self._child.flooded:
            return Stopped("flooded", "it printed more than 16 MB; it was stopped")
        if isinstance(error, TimeoutError):
            return Stopped("hung", f"no answer within {error} s: an endless loop?",
                           self._child.stack())
        if isinstance(error, WireError):
            return Stopped("garbled", f"its answer cannot be read: {error}")
        cause, stack = self._child.crash()
        ending = self._child.ending() or "os._exit, a crash, or out of memory"
        return Stopped("died", f"the process crashed: {cause}" if cause else
                       f"the process ended without an answer: {ending}", stack)

    def _number(self, thing):
        if isinstance(thing, Remote):
            return thing._id
        raise wire.Unsendable(f"a value of type {type(thing).__name__} does not cross to the code "
                              f"under test: mocks are built there, with subject.make")

    def close(self):
        if self._child is not None:
            self._child.kill()

    def printed(self):
        return self._child.output() if self._child is not None else ""


class Remote:
    """An object in the child: call it, read its attributes, iterate, enter it."""

    def __init__(self, subject, number, kind):
        self._subject, self._id, self._type = subject, number, kind
        self._name, self._label = None, f"an object of type {kind}"
        self._given = None              # the learner's name for a stand-in, see stand_ins.py

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._subject._get(self, name)

    def __call__(self, *args, **kwargs):
        return self._subject._call(self, self._name, args, kwargs)

    def __enter__(self):
        return self._subject._ask("enter", self)

    def __exit__(self, *error):
        self._subject._ask("exit", self)

    def __iter__(self):
        iterator = self._subject._ask("iter", self)
        while more := self._subject._ask("next", iterator):
            yield more[0]

    def __repr__(self):
        return self._label


def contains_handle(value):
    if type(value) is dict:
        value = list(value.values())
    several = type(value) in (list, tuple)
    return isinstance(value, Remote) or (several and any(map(contains_handle, value)))


def may_be_kept(answer):
    """Whether a prediction fits in a file, to be drawn beside the result."""
    if isinstance(answer, str):
        return len(answer) <= MAX_GUESS_CHARS and answer.isprintable()
    return isinstance(answer, float) or isinstance(answer, int) and answer.bit_length() <= 64


def aslist(size):
    return size if size is None else [size] if isinstance(size, int) else list(size)


def parts(reply, n):
    """The n parts of a reply, whose form a hostile child chooses."""
    if type(reply) is not tuple or len(reply) != n:
        raise Stopped("garbled", "its answer cannot be read: expected a result and what changed")
    return reply
