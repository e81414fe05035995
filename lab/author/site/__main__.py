"""`make site`: write the pages' source to .cache/site/source and the site to .cache/site/html."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from lab.author.site import overviews, pages, reference
from lab.course import ROOT

FOLDER = ROOT / ".cache" / "site"
LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:|#)([^)#]+)[^)]*\)")
# Texts of the course that are pages as they are.
TEXTS = {"instructors.md": "lab/grading/README.md", "figures.md": "benchmarks/README.md",
         "reference/simulator.md": "lab/simulator/README.md"}
PICTURES = ("benchmarks/roofline.png",)     # that these show


def source():
    """{path below the site's source: text} of all pages."""
    return {"index.md": overviews.index(), "glossary.md": overviews.glossary(),
            "where.md": overviews.where(), "proven.md": overviews.proven(),
            **pages.pages(), **reference.pages(),
            **{page: as_page(ROOT / path) for page, path in TEXTS.items()}}


def as_page(path):
    """A text whose links to files of the course, which are no pages, are the files' names.
    Its pictures lie at the top of the site's source."""
    def name(match):
        target = (path.parent / match[3]).resolve()
        if match[1]:
            return f"![{match[2]}](/{target.name})"
        return f"`{target.relative_to(ROOT)}`" if target.is_relative_to(ROOT) else match[0]

    return LINK.sub(name, path.read_text("utf-8"))


def write(folder):
    """Write the source of all pages, and nothing else, into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in source().items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    for path in PICTURES:
        shutil.copy(ROOT / path, folder)


def main(folder=FOLDER):
    """Make the site; Sphinx's exit code.
    A warning of Sphinx's is an error."""
    write(folder / "source")
    return subprocess.run([
        sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html",
        "-c", str(Path(__file__).parent), "-d", str(folder / "doctrees"), str(folder / "source"),
        str(folder / "html")]).returncode


if __name__ == "__main__":
    sys.exit(main())
