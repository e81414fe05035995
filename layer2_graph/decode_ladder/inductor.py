"""What torch.compile made of a step: the launches in the code that its inductor wrote.

That code is a Python function `call`, line by line: it makes a buffer, launches a kernel of its own
(cpp_… on a CPU, triton_… on a GPU), a matrix of the library (extern_kernels), or an operation that
it was given (torch.ops).
Read with torch 2.13; a later version may write other code.
"""

import re

from layer2_graph.traffic import CHANGED, TARGETS, CountedLaunch

CALL = re.compile(r"(?:(?P<result>\w+) = )?(?:(?P<own>cpp_\w+|triton_\w+)(?:\.run)?"
                  r"|extern_kernels\.(?P<library>\w+)|torch\.ops\.\w+\.(?P<given>\w+)\.\w+)"
                  r"\((?P<arguments>.*)\)$")
ARRAY = re.compile(r"\b(?:buf|arg|primals_)\d\w*")
RENAMED = re.compile(rf"(?P<new>buf\d+) = (?:reinterpret_tensor\()?(?P<old>{ARRAY.pattern})")
MATRIX = re.compile(r"reinterpret_tensor\((?:arg|primals_)\d\w*, \((\d+), (\d+)\), \(1, ")


def launches_in(code):
    """[CountedLaunch] of the code, in its order.
    Bytes are not counted: moved is 0.

    arrays: the shapes (N, K) of the weights that a matrix of the library takes
    """
    launches = []
    writer = {}
    names = {}
    kinds = parameters(code)
    for line in code[code.index("def call("):].splitlines():
        call = CALL.match(line.strip())
        renamed = RENAMED.match(line.strip())
        if call:
            arguments = split(call["arguments"])
            arrays = [[names.get(a, a) for a in ARRAY.findall(text)] for text in arguments]
            name = call["own"] or call["library"] or call["given"]
            reads, writes = access(call, arguments, kinds)
            inputs = {writer[a] for i in reads for a in arrays[i] if a in writer}
            changed = [a for i in writes for a in arrays[i]] + [call["result"]]
            weights = frozenset((int(n), int(k)) for k, n in MATRIX.findall(call["arguments"]))
            writer |= dict.fromkeys(changed, len(launches))
            launches.append(CountedLaunch(name, tuple(sorted(inputs)), 0, weights))
        elif renamed:
            names[renamed["new"]] = names.get(renamed["old"], renamed["old"])
    return launches


def access(call, arguments, kinds):
    """(places of the arguments that are read, places of those that are written)"""
    if call["own"]:                         # sizes come after the arrays
        named = list(enumerate(kinds[call["own"]]))
        return ([i for i, name in named if not name.startswith("out")],
                [i for i, name in named if "out" in name])
    if call["library"]:
        out = [i for i, text in enumerate(arguments) if text.startswith("out=")]
        return [i for i in range(len(arguments)) if i not in out], out
    targets = TARGETS.get(call["given"], ())
    return ([i for i in range(len(arguments)) if i not in targets],
            CHANGED.get(call["given"], ()))


def parameters(code):
    """{kernel: [in_ptr0, in_out_ptr0, out_ptr0, …]}: the names say what it does with each."""
    sizes = {}
    for name, body in re.findall(r"^(\w+) = async_compile\.\w+\((.*?)^'''", code, re.M | re.S):
        signature = re.search(r"(?:void +kernel|def triton_\w+)\((.*?)\)", body, re.S)[1]
        sizes[name] = re.findall(r"\b(?:in_out|in|out)_ptr\d+\b", signature)
    return sizes


def split(text):
    """The arguments of a call: cut at the commas outside brackets."""
    parts = [""]
    depth = 0
    for letter in text:
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
