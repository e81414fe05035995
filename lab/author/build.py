"""Make what is generated: notebooks, solutions, tables of contents, maps.
Edit none by hand."""

import ast
import base64
import hashlib
import json
import re
import runpy
import tomllib
from io import BytesIO

from lab import course, stub
from lab.author import interface, simulator_speed
from lab.course import ROOT, CourseError
from lab.desk import ipynb
from lab.desk.notebook import WORDS as VERDICTS
from lab.measure import tables

INCLUDE = re.compile(r'^(\w+)\.([\w.]+)$')
PICTURE = ROOT / "benchmarks" / "roofline.png", "r02_clock"     # the README's: a measured result
MEASURED = "<!-- lab:measured -->"      # in a lesson's text: what a GPU gave
LARGEST = 300 * 1024            # bytes of an executed notebook
WORDS = 1500                    # of prose in a lesson, tables left out
# A check's verdict that a solution must not show, as a notebook words it.
WRONG = "|".join(word for verdict, word in VERDICTS.items()
                 if verdict not in ("pass", "not_proven_here"))


def build(lessons, redraw=False):
    """Write what is generated for these lessons and the course; return the paths that changed.

    redraw: execute solutions whose sources have not changed, too
    """
    changed = [path for path, text in shared().items() if put(path, text)]
    for lesson in lessons:
        stubbed, solved = make(lesson)
        if put(lesson.notebook, ipynb.dump(stubbed)):
            changed.append(lesson.notebook)
        if solved and (redraw or outdated(lesson.solution, solved)):
            text = None if redraw else with_outputs(lesson, solved)
            if put(lesson.solution, text or execute(solved, lesson)):
                changed.append(lesson.solution)
    if put_picture():
        changed.append(PICTURE[0])
    return changed


def check(lessons):
    """What `build` would change, as sentences; nothing is written and nothing is executed."""
    stale = []
    for lesson in lessons:
        stubbed, solved = make(lesson)
        for path, notebook in ((lesson.notebook, stubbed), (lesson.solution, solved)):
            name = path.relative_to(ROOT)
            if notebook is None:
                continue
            if not path.exists():
                stale.append(f"{name} is missing")
            elif outdated(path, notebook):
                stale.append(f"{name} is not what {lesson.id}.md and its code make now")
            elif (size := path.stat().st_size) > LARGEST:
                stale.append(f"{name} has {size // 1024} KB; at most {LARGEST // 1024}")
        words = sum(len(line.split()) for c in stubbed["cells"] if c["id"].startswith("text-")
                    for line in ipynb.source(c).splitlines() if not line.startswith("|"))
        if words > WORDS:
            name = lesson.markdown.relative_to(ROOT)
            stale.append(f"{name} has {words} words of prose; at most {WORDS}")
    stale += [f"{path.relative_to(ROOT)} is not what `lab build` makes"
              for path, text in shared().items()
              if not path.exists() or path.read_text("utf-8") != text]
    return stale


def put(path, text):
    """Write a file if its text differs; True if it did."""
    if path.exists() and path.read_text("utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return True


def put_picture():
    """Keep the README's picture that of the executed lesson; True if it changed."""
    path, name = PICTURE
    if course.edition():
        return False
    now = picture(course.find(name))
    if now is None or (path.exists() and path.read_bytes() == now):
        return False
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(now)
    return True


# ---- notebooks


def make(lesson):
    """(stub notebook, solution notebook), neither executed; None if an edition has no solution."""
    digest = source_hash(lesson.sources)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    opens = f'from lab import open_lesson\n\nlesson = open_lesson("{lesson.id}")'
    notebooks = []
    for which, sources in (("stub", lesson.stubs), ("solution", lesson.sources)):
        first = code_cell("open", fetching(lesson) + opens if which == "stub" else opens)
        metadata = {"kernelspec": kernel, "language_info": {"name": "python"},
                    "lab": {"lesson": lesson.id, "kind": which, "hash": digest}}
        notebooks.append({"cells": [first, *body(lesson, sources)], "metadata": metadata,
                          "nbformat": 4, "nbformat_minor": 5})
    return notebooks if lesson.answered else [notebooks[0], None]


def fetching(lesson):
    """On Google Colab there is the notebook alone: lines that bring the course there first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return ('import sys\n\nif "google.colab" in sys.modules:   # the course is not there yet\n'
            f"    !git clone -q --depth 1 {project['urls']['Repository']} three-floors\n"
            f"    %run three-floors/lab/colab.py {lesson.id}\n")


def linked(text):
    """A text in whose tables the numbers of lessons that are there, such as `k07`, are links."""
    notebooks = {i.id[:3]: f"../{i.floor}/{i.id}.ipynb" for i in course.lessons()}

    def link(match):
        place = notebooks.get(match[1])
        return f"[{match[1]}]({place})" if place else match[0]

    return "\n".join(re.sub(r"`([rokgs]\d\d)`", link, line) if line.startswith("| ") else line
                     for line in text.split("\n"))


def body(lesson, sources):
    """The cells of the lesson's Markdown, with included code from `sources`."""
    import jupytext  # heavy, and only authors need it

    prose = lesson.markdown.read_text("utf-8").split("---\n", 2)[2]       # after the front matter
    notebook = jupytext.reads(prose, fmt="md")
    ids = set()
    known = tables.records()
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            yield text_cell(f"text-{number}", linked(cell.source.replace(
                MEASURED, tables.of_lesson(lesson, known))))
        elif "interface" in cell.metadata:
            yield text_cell(f"calls-{number}", "**What you may call:**\n\n"
                            + interface.text(cell.metadata["interface"]))
        elif "include" not in cell.metadata:
            yield plain_cell(f"code-{number}", cell.source)
        else:
            exercise, source = included(lesson, sources, cell.metadata["include"])
            ids |= {exercise}
            yield code_cell(f"code-{number}", source,
                            {"lab": {"exercise": exercise}} if exercise else {})
    missing = [e.name for e in lesson.exercises if e.name not in ids]
    if missing:
        raise CourseError(f"{lesson.markdown.name} includes no cell for {', '.join(missing)}")


def text_cell(name, source):
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def plain_cell(name, source):
    """Code that stands in the Markdown itself.
    A first line for nbval becomes a tag."""
    word, _, rest = source.partition("\n")
    marked = re.fullmatch(r"# (NBVAL_\w+)", word)         # for nbval, not for the learner
    if not marked:
        return code_cell(name, source, {})
    return code_cell(name, rest, {"tags": [marked[1].lower().replace("_", "-")]})


def included(lesson, sources, include):
    """(name of the exercise or None, source of the cell) of `include="LESSON.NAME"`."""
    match = INCLUDE.match(include)
    if not match or match[1] != lesson.id:
        raise CourseError(f'{lesson.markdown.name}: include="{include}", '
                          f"expected {lesson.id}.NAME")
    language, text = definition(lesson, sources, match[2])
    is_exercise = match[2] in {e.name for e in lesson.exercises}
    return (match[2] if is_exercise else None,
            ("%%cuda\n" if language == "cuda" else "") + text)


def definition(lesson, sources, name):
    for language, text in sources.items():
        if name in stub.definitions(text, language):
            return language, stub.extract(text, name, language).rstrip()
    raise CourseError(f"{lesson.markdown.name} includes {name}, which {lesson.id} does not define")


def code_cell(name, text, metadata=None):
    return {"cell_type": "code", "id": name, "metadata": metadata or {}, "source": text,
            "execution_count": None, "outputs": []}


def source_hash(sources):
    digest = hashlib.sha256()
    for text in sources.values():
        digest.update(text.encode())
    return digest.hexdigest()[:16]


def outdated(path, fresh):
    """True where a notebook's cells, or the sources it was made from, are not those of `fresh`."""
    if not path.exists():
        return True
    text = path.read_text("utf-8")
    return not (same_sources(text, fresh) and ipynb.same_cells(text, ipynb.dump(fresh)))


def same_sources(text, fresh):
    """True where a notebook's text was made from the code that `fresh` was made from."""
    stored = json.loads(text)["metadata"].get("lab") or {}
    return stored.get("hash") == fresh["metadata"]["lab"]["hash"]


def with_outputs(lesson, fresh):
    """`fresh` as text, with the outputs of the solution that is there, where only prose differs;
    None where code differs."""
    import nbformat

    if not lesson.solution.exists():
        return None
    text = lesson.solution.read_text("utf-8")
    executed = json.loads(text)["cells"]
    code = [cell for cell in executed if cell["cell_type"] == "code"]
    cells = [cell for cell in fresh["cells"] if cell["cell_type"] == "code"]
    if not same_sources(text, fresh) or [ipynb.source(c) for c in code] != [
            ipynb.source(c) for c in cells]:
        return None
    for cell, before in zip(cells, code, strict=True):
        cell |= {"execution_count": before["execution_count"], "outputs": before["outputs"]}
    return nbformat.writes(nbformat.from_dict(fresh)) + "\n"


def execute(notebook, lesson):
    """Run the solution and return its text with outputs; a cell that fails stops the build."""
    import nbclient
    import nbformat

    lesson.solution.parent.mkdir(parents=True, exist_ok=True)
    live = nbformat.reads(ipynb.dump(notebook), as_version=4)
    client = nbclient.NotebookClient(live, timeout=300, kernel_name="python3",
                                     extra_arguments=["--IPKernelApp.log_level=ERROR"],
                                     resources={"metadata": {"path": str(lesson.solution.parent)}})
    try:
        client.execute()
    except nbclient.exceptions.CellExecutionError as error:
        raise CourseError(f"{lesson.id}: a cell of the solution fails: "
                          f"{error.ename}: {error.evalue}") from None
    refuse_failed(lesson, live.cells)
    for cell in live.cells:
        cell.metadata.pop("execution", None)  # times of day: they would change every build
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])
    live.metadata = nbformat.from_dict(notebook["metadata"])
    return nbformat.writes(live) + "\n"


def smaller(png):
    """A PNG in base64 with 256 colours, which is a third of what plots are drawn in, and looks the
    same."""
    from PIL import Image

    # of matplotlib's pictures white is what lies behind
    drawn = Image.open(BytesIO(base64.b64decode(png))).convert("RGBA")
    whole = Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")
    file = BytesIO()
    whole.quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def refuse_failed(lesson, cells):
    """CourseError where a check in the executed solution did not pass, with its message."""
    for cell in cells:
        for output in cell.get("outputs", ()):
            text = "".join(output.get("data", {}).get("text/html", ""))
            match = re.search(rf">({WRONG})</b> <code>([^<]*)</code>", text)
            if match:
                raise CourseError(f"{lesson.id}: in its own solution {match[2]} gets `{match[1]}`")


# ---- what the whole course shares


def shared():
    """path -> text of the generated files that belong to no single lesson."""
    texts = {ROOT / floor.name / "__init__.py": contents(floor)
             for floor in course.floors() if (ROOT / floor.name).is_dir()}
    readme, every, figures = (ROOT / folder / "README.md" for folder in (
        "", "notebooks", "benchmarks"))
    if course.edition():
        return texts | {readme: between(readme.read_text("utf-8"), "map",
                                        map_table("notebooks/", course.lessons()))}
    core = [lesson for lesson in course.lessons() if lesson.core]
    texts[readme] = between(made(readme.read_text("utf-8")), "map", map_table("notebooks/", core))
    texts[every] = between(every.read_text("utf-8"), "map",
                           map_table("", course.lessons(), planned=True))
    speed = json.loads(simulator_speed.RECORD.read_text("utf-8"))
    text = between(made(figures.read_text("utf-8")), "speed", simulator_speed.text(speed))
    return texts | {figures: between(text, "measured", tables.summary(tables.records()))}


def picture(lesson):
    """The last picture in a lesson's executed solution, as PNG; None before it was executed."""
    if not lesson.solution.exists():
        return None
    cells = json.loads(lesson.solution.read_text("utf-8"))["cells"]
    outputs = [o for c in cells for o in c.get("outputs", [])]
    pictures = [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    return base64.b64decode("".join(pictures[-1])) if pictures else None


def contents(floor):
    """A floor's __init__.py: its table of contents and its API, from its modules' __all__."""
    lines = [f'"""{floor.title}.', ""]
    lines += [f"{lesson.id}  {lesson.title}" for lesson in floor.lessons]
    lines += ['"""', "# Generated by `lab build` from the modules' __all__.", ""]
    modules = {lesson.id: public(lesson.path(".py")) for lesson in floor.lessons}
    for path in (ROOT / floor.name).rglob("[!_]*.py"):      # what serves several lessons
        name = ".".join(path.relative_to(ROOT / floor.name).with_suffix("").parts)
        if name not in modules and "\n__all__ = " in path.read_text("utf-8"):
            modules[name] = public(path)
    everything = [name for names in modules.values() for name in names]
    for module in sorted(modules):
        if modules[module]:
            listed = [f"    {n}," for n in sorted(modules[module], key=import_order)]
            lines += [f"from {floor.name}.{module} import (", *listed, ")"]
    twice = {n for n in everything if everything.count(n) > 1}
    if twice:
        raise CourseError(f"{floor.name}: two modules make {', '.join(sorted(twice))} public")
    listed = [f'    "{n}",' for n in sorted(everything, key=import_order)]
    lines += ["", "__all__ = [", *listed, "]", ""]
    return "\n".join(lines)


def import_order(name):
    """The sort key of isort: constants, classes, the rest; case aside, and numbers by value."""
    constant = name.isupper() and len(name) > 1
    word = re.sub(r"\d+", lambda m: m[0].zfill(9), name.lower())
    return not constant, not name[0].isupper(), word


def public(path):
    """The names in a module's __all__."""
    for node in ast.parse(path.read_text("utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if [getattr(t, "id", None) for t in targets] == ["__all__"]:
            return ast.literal_eval(node.value)
    raise CourseError(f"{path.name} has no __all__")


def map_table(base, lessons, planned=False):
    """The lessons as Markdown tables, ★ for the core path.

    base: the folder of notebooks, as a link. planned: list the planned lessons too
    """
    rows = []
    for floor in course.floors():
        entries = [(f"[{i.id}]({base}{floor.name}/{i.id}.ipynb){' ★' if i.core else ''}", i.title)
                   for i in floor.lessons if i in lessons]
        entries += [(f"{i}{' ★' if path == 'core' else ''}", f"{title} (planned)")
                    for i, path, title in floor.planned if planned]
        if entries:
            rows += [f"\n**{floor.title}**\n", "| lesson | |", "| --- | --- |"]
            rows += [f"| {link} | {title} |" for link, title in entries]
    return "\n".join(rows) + "\n"


def between(text, name, content):
    """`text`, a README's, with `content` between its markers <!-- lab:name --> and
    <!-- /lab:name -->."""
    pattern = re.compile(rf"(<!-- lab:{name} -->\n).*?(<!-- /lab:{name} -->)", re.S)
    if not pattern.search(text):
        raise CourseError(f"README.md has no <!-- lab:{name} --> markers")
    return pattern.sub(lambda m: m[1] + content + m[2], text)


def made(text):
    """`text` with the parts that files of the course fill in: between <!-- lab:made PATH --> and
    <!-- /lab:made --> what the function text() of that file returns; after
    <!-- lab:made PATH NAME --> what NAME() returns."""
    def one(marker):
        if not (ROOT / marker[2]).is_file():
            raise CourseError(f"README.md: <!-- lab:made {marker[2]} --> names no file")
        return marker[1] + runpy.run_path(str(ROOT / marker[2]))[marker[3] or "text"]() + marker[4]

    return re.sub(r"(<!-- lab:made (\S+)(?: (\w+))? -->\n).*?(<!-- /lab:made -->)", one, text,
                  flags=re.S)
