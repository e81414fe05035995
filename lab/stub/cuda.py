"""CUDA C by a tokenizer and the shape of its declarations: enough to tell one from the next.

A declaration's skeleton shows what it is: its words, with nothing left in its brackets.
That of `template <int N> __device__ float f(int n) { … }` is `template __device__ float f () {}`.
"""

import re
import textwrap
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from lab.stub.units import MARK, Unit, about

GAP = "\n\n"                                # one empty line around a definition
TOKEN = re.compile(r"""
      (?P<comment> //(?:\\\n|[^\n])* | /\*.*?\*/ )
    | (?P<directive> ^[^\S\n]*\#(?: \\\n | //[^\n]* | /\*.*?\*/ | [^\n] )*)
    | (?P<space> [^\S\n]+ | \\?\n )
    | (?P<literal> R"(?P<fence>[^()\\\s]*)\(.*?\)(?P=fence)"
                 | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
    | (?P<unended> R"[^()\\\s"]*\( | ["'] | /\* )
    | (?P<word> \.?\d(?:[eEpP][+-]|'?[\w.])* | \w+ )
    | (?P<sign> ::|->|\+\+|--|<<|>>|&&|\|\||[-+*/%&|^=!<>]= | . )
    """, re.VERBOSE | re.MULTILINE | re.DOTALL)
MAX_WORDS = 1000                            # of a declaration, outside its brackets
CLOSER = {"(": ")", "[": "]", "{": "}"}
IF = {"if", "ifdef", "ifndef"}
ELSE = {"elif", "else", "elifdef", "elifndef"}

# Of skeletons:
ASIDE = re.compile(r"(?:__launch_bounds__|__align__|__attribute__|alignas) \(\) ?|< [^<>]*> ?")
BLOCK = re.compile(r'(?:extern "C"|(?:inline )?namespace\b.*) {')
FUNCTION = re.compile(r"(?:(?! : |=).)*?\b(operator [^()]+?|\w+) \(\) "
                      r"(?:(?:const|noexcept|->|:)[^=]* )?\{\}")
RECORD = re.compile(r"(typedef )?(?:\S+ )*?(?:struct|class|union|enum) "
                    r"(?:[^:={]*?(\w+) (?:final )?(?::[^=]*)?)?\{\} ?(\w*)")
STRAY = re.compile(r"using namespace .*|(?:.* )?(?:struct|class|union|enum) \w+")
VARIABLE = re.compile(r"[^=([{]*?(\w+)(?: [=[{].*)?")


class Token(NamedTuple):
    kind: str           # comment, directive, literal, word or sign
    text: str
    start: int
    end: int
    line: int


@dataclass(frozen=True)
class Block:
    """A namespace, `extern "C" {` or `#if` that is entered; two are equal if they read the same."""

    opener: str
    closer: str
    token: Token = field(compare=False)


def read(text):
    """The units of a text.
    ValueError: a bracket, #if, comment or string never ends."""
    tokens, comments = [], {}               # whole lines of comment: where they end -> begin
    for token in _tokens(text):
        if token.kind == "unended":
            what = {"'": "character", "/": "comment"}.get(token.text[0], "string")
            _fail(token, f"this {what} never ends")
        begin = _row(text, token.start)
        end = text.index("\n", token.end) + 1
        if token.kind != "comment":
            tokens.append(token)
        elif text[begin:end].strip() == token.text:
            comments[end] = begin

    units = []
    conditions = []
    blocks = []
    inside = 0
    for first, last, skeleton in _declarations(tokens):
        token = tokens[first]
        word = _directive(tokens[first])
        if not conditions and not blocks:
            inside = len(units)
            outermost = token
        if word in IF:
            conditions.append(Block(token.text, "#endif", token))
        elif word in ELSE or word == "endif":
            if not conditions:
                _fail(token, f"this #{word} has no #if")
            block = conditions.pop()
            if word in ELSE:
                conditions.append(replace(block, opener=f"{block.opener}\n{token.text}"))
        elif BLOCK.fullmatch(skeleton):
            blocks.append(Block(text[token.start:tokens[last].end], "}", token))
        elif skeleton == "}":
            if not blocks:
                _fail(token, "this } closes nothing")
            blocks.pop()
        else:
            units.append(_unit(text, tokens[first:last + 1], skeleton, comments,
                               (*conditions, *blocks)))
        if not conditions and not blocks:   # additions go outside the outermost block
            for unit in units[inside:]:
                if unit.scope:
                    unit.span = _row(text, outermost.start), text.index("\n", tokens[last].end)
    for block in blocks + conditions:
        _fail(block.token, f"this {block.opener.splitlines()[0]} is never closed")
    return units


def _tokens(text):
    line = 1
    for match in TOKEN.finditer(text):
        token = Token(match.lastgroup, match[0], match.start(), match.end(), line)
        if token.kind != "space":
            yield token
        line += token.text.count("\n")


def _fail(token, what):
    raise ValueError(f"line {token.line}: {what}")


def _row(text, offset):
    """The offset at which the line of an offset begins."""
    return text.rfind("\n", 0, offset) + 1


def _before(text, offset):
    return text[_row(text, offset):offset]


def _directive(token):
    return re.match(r"\s*#\s*(\w*)", token.text)[1] if token.kind == "directive" else ""


def _declarations(tokens):
    """(first token, last, skeleton) of all outside functions; a block's { and } are separate."""
    first = k = 0
    words = []
    while k < len(tokens):
        token = tokens[k]
        last = k
        alone = token.text == "}" or token.kind == "directive"
        if alone and words:                 # no semicolon: for the compiler to complain about
            yield first, k - 1, _skeleton(words)
            first = k
            words = []
        if token.text in CLOSER and not BLOCK.fullmatch(" ".join([*words, token.text])):
            last = _close(tokens, k)
            words.append(token.text + CLOSER[token.text])
        elif token.text != ";":
            words.append(token.text)
        if len(words) > MAX_WORDS:
            _fail(tokens[first], "this declaration never ends")
        k = last + 1
        if alone or token.text in (";", "{"):
            skeleton = _skeleton(words)
            if token.text != "{" or BLOCK.fullmatch(skeleton) or FUNCTION.fullmatch(skeleton):
                if words:
                    yield first, last, skeleton
                first = k
                words = []
    if words:
        yield first, len(tokens) - 1, _skeleton(words)


def _depths(tokens, opener):
    """How many brackets are open after each token; every branch of an #if counts alone."""
    depth = 0
    before = []
    for token in tokens:
        word = _directive(token)
        if word in IF:
            before.append(depth)
        elif word in ELSE and before:
            depth = before[-1]
        elif word == "endif" and before:
            before.pop()
        if token.text == opener:
            depth += 1
        elif token.text == CLOSER[opener]:
            depth -= 1
        yield depth


def _close(tokens, k):
    """The index of the bracket that closes the one at k."""
    for j, depth in enumerate(_depths(islice(tokens, k, None), tokens[k].text), k):
        if not depth:
            return j
    _fail(tokens[k], f"this {tokens[k].text} is never closed")


def _skeleton(words):
    """Words in one line, without attributes and what stands in < >."""
    text = " ".join(words).replace(">>", "> >")
    while ASIDE.search(text):               # from the innermost < > outwards
        text = ASIDE.sub("", text)
    return text


def _named(skeleton):
    """(what a declaration binds or None, whether it defines it)."""
    if skeleton.lstrip().startswith("#"):
        macro = re.match(r"\s*#\s*define\s+(\w+)", skeleton)
        return macro and macro[1], bool(macro)
    if match := FUNCTION.fullmatch(skeleton):
        return match[1].replace(" ", ""), True
    if match := RECORD.fullmatch(skeleton):
        typedef, name, after = match.groups()
        return (after if typedef else name or after) or None, True
    match = VARIABLE.fullmatch(skeleton)
    return (match[1] if match and not STRAY.fullmatch(skeleton) else None), False


def _unit(text, tokens, skeleton, comments, scope):
    start = tokens[0].start
    end = tokens[-1].end
    line = tokens[0].line
    if not _before(text, start).strip():
        start = _row(text, start)
    end += len(re.match(r"(?:[^\S\n]*(?://.*)?(?=\n))?", text[end:])[0])    # a comment after it
    lead = start
    while lead in comments:
        lead = comments[lead]
    name, defines = _named(skeleton)
    normal = " ".join(_words(tokens))
    kind = "" if tokens[0].kind == "directive" else re.split(r" [{=] ", normal)[0]
    role = [kind, *(block.opener for block in scope if block.closer == "#endif")]
    return Unit(start, line, text[lead:start], text[start:end], (name,) if name else (), defines,
                lambda: normal, (lead, text.index("\n", end)), "\n".join(role), scope)


def _words(tokens):
    """Token texts without comments, those within preprocessor lines included."""
    for token in tokens:
        if token.kind == "directive":
            yield from ["#", *_words(_tokens(token.text.lstrip()[1:])), "\n"]
        elif token.kind != "comment":
            yield token.text


def stub(unit, name):
    """The text of a function down to its mark, with all that is open there closed.

    ValueError: there is no mark, or it is in the middle of a statement.
    """
    mark, closers, lines = _parts(unit, name)
    body = [f"// {about(len(lines), name, unit.line + mark.line - 1)}"]
    if not re.match(rf"[^{{]*?\bvoid\b[^{{]*?\b{re.escape(name)}\s*\(", unit.text):
        body.append("return {};")
    elif len(closers) > 1:                  # in a block, which may be a loop
        body.append("return;")
    return rewritten(unit, name, "\n".join(body))


def rewritten(unit, name, body):
    """The text of a function down to its mark, then `body`, with all that is open there closed.
    ValueError: as for `stub`."""
    mark, closers, _ = _parts(unit, name)
    text = unit.text
    rows = [re.match(r"\s*", text[_row(text, t.start):])[0] + "}" for t in closers]
    return "\n".join([text[:mark.end], textwrap.indent(body, _before(text, mark.start)), *rows]
                     ) + text[closers[-1].end:]


def _parts(unit, name):
    """(the mark, the brackets that close what is open there, the lines of the learner's part)."""
    text = unit.text
    tokens = list(_tokens(unit.text))
    mark = next((t for t in tokens if t.kind == "comment" and MARK.match(t.text)
                 and not _before(text, t.start).strip()), None)
    if mark is None:
        raise ValueError(f"line {unit.line}: {name} has no comment // exercise:")
    line = unit.line + mark.line - 1
    tokens_kept = [t for t in tokens if t.start < mark.start and t.kind != "comment"]
    words = [*map(_directive, tokens_kept)]
    conditions = sum(word in IF for word in words) - words.count("endif")
    before = [t.text for t in tokens_kept if t.kind != "directive"][-1]
    if conditions or before not in {*"{};:"}:
        raise ValueError(f"line {line}: {name} cannot be cut here, "
                         + ("under an #if" if conditions else "in the middle of a statement"))
    closers, lines = [], set()              # of what is open at the mark; of the learner's part
    for token, depth in zip(tokens, _depths(tokens, "{"), strict=True):
        if token.start <= mark.start:
            lowest = depth
        elif depth < lowest:
            lowest = depth
            closers.append(token)
        elif token.kind != "comment":
            lines.add(token.line)
    return mark, closers, lines
