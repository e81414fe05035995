"""Did a thread return early, or did it walk past a barrier?
Both have ended without it.

`if (i >= n) return;` before a barrier is common, and hardware lets it pass.
A barrier inside `if (i < n) { ... }` is a mistake.
Where nothing follows the braces the two are the same program, and only the source text tells what
was meant.
"""

import re
from functools import lru_cache

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.S)
FAR = 60                    # lines of source to read


def returned_early(before, waiting, launch):
    """Did a lane whose last instruction was `before` end by a return that comes ahead of the
    instruction that others wait at?"""
    if before.function is waiting.function and before.pc in after(waiting) and \
            waiting.pc not in after(before):
        return False                                    # it ran code that follows the barrier
    text = source_from(before.location, launch)
    return not text or says_return(text, whole(before.location, launch))


@lru_cache(1 << 10)
def after(inst):
    """The places in the code that can be reached from an instruction."""
    function = inst.function
    code = function.code
    reached = set()
    todo = successors(inst)
    while todo:
        pc = todo.pop()
        if pc not in reached and pc < len(code):
            reached.add(pc)
            todo += successors(code[pc])
    return reached


def successors(inst):
    function = inst.function
    if inst.opcode == "bra":
        target = [function.labels[inst.operands[0].name]]
        return target + [inst.pc + 1] if inst.guard else target
    if inst.opcode == "brx":
        return [function.labels[name] for name in function.branch_targets[inst.operands[1].name]]
    return [inst.pc + 1] if inst.opcode not in ("ret", "exit") or inst.guard else []


def whole(location, launch):
    launch.text(location)                               # reads the file if need be
    return launch.sources.get(location.path, "") if location else ""


def source_from(location, launch):
    """The source from a location on, without comments and strings."""
    lines = whole(location, launch).split("\n")[location.line - 1:] if location else []
    return COMMENT.sub(" ", "\n".join(lines[:FAR]))


def says_return(text, source):
    """Does the statement that starts here hold a return?
    For an `if`, what it governs; for a loop too, since the compiler may have moved an `if` ahead
    of it."""
    first = text.split("\n", 1)[0]
    if re.match(r"\s*\}\s*while\b", first):
        return False                                    # the end of a do
    start = re.search(r"\b(if|for|while)\b", first)
    if start:
        at = closing(text, text.find("(", start.end())) + 1
    elif (at := unmatched(first)) is not None:          # the condition goes on from the line above
        at += 1
    else:
        return has_return(before_brace(text), source)
    return has_return(governed(text, at), source)


def governed(text, at):
    """The statement at a place, and its else."""
    rest = text[at:]
    skip = len(rest) - len(rest.lstrip())
    end = closing(rest, skip, "{", "}") + 1 if rest[skip:skip + 1] == "{" else rest.find(";") + 1
    other = re.match(r"\s*else\b", rest[end:])
    return rest[:end] + (governed(rest, end + other.end()) if other else "")


def step(char, opener, closer):
    """By how much a character changes the depth of brackets."""
    return 1 if char == opener else -1 if char == closer else 0


def closing(text, start, opener="(", closer=")"):
    depth = 0
    for i in range(max(start, 0), len(text)):
        depth += step(text[i], opener, closer)
        if depth == 0:
            return i
    return len(text)


def unmatched(line):
    """The place of a `)` that was opened on an earlier line, or None."""
    depth = 0
    for i, char in enumerate(line):
        depth += step(char, "(", ")")
        if depth < 0:
            return i
    return None


def before_brace(text):
    """Up to the end of the braces around, without what lies in braces of its own."""
    depth = 0
    tokens = []
    for char in text:
        depth += step(char, "{", "}")
        if depth < 0:
            break
        if depth == 0:
            tokens.append(char)
    return "".join(tokens)


def has_return(text, source):
    """Also by a macro."""
    return bool(re.search(r"\breturn\b", text)) or any(
        re.search(rf"#define\s+{word}\b(?:[^\n]*\\\n)*[^\n]*\breturn\b", source)
        for word in set(re.findall(r"\b[A-Z_]\w*", text)))
