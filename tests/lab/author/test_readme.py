"""Places in the README that a file of the course fills in: `lab` knows none of these files."""

import re

import pytest

from lab.author import build
from lab.course import ROOT, CourseError


def test_a_file_says_what_stands_between_its_markers(tmp_path):
    own = tmp_path / "card.py"
    own.write_text('"""A card."""\n\n\ndef text():\n    return f"{__doc__} \\\\1\\n"\n')
    page = f"a\n<!-- lab:made {own} -->\n{{}}<!-- /lab:made -->\nb\n"
    for old in ("", "old\nlines\n"):
        assert build.made(page.format(old)) == page.format("A card. \\1\n")
    assert build.made("nothing here") == "nothing here"


def test_a_marker_without_its_file_is_one_sentence():
    with pytest.raises(CourseError, match="lab:made no/such.py --> names no file"):
        build.made("<!-- lab:made no/such.py -->\n<!-- /lab:made -->\n")


@pytest.mark.parametrize("name", ["README.md", "benchmarks/README.md", "notebooks/README.md"])
def test_a_page_is_filled_in(name):
    assert build.shared()[ROOT / name] == (ROOT / name).read_text("utf-8")


def test_a_marker_may_name_another_function(tmp_path):
    (tmp_path / "card.py").write_text("def text():\n    return ''\n\n\ndef short():\n"
                                      "    return 'brief\\n'\n")
    page = f"<!-- lab:made {tmp_path}/card.py short -->\n{{}}<!-- /lab:made -->\n"
    assert build.made(page.format("")) == page.format("brief\n")


def test_the_readme_is_short_and_promises_nothing():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 1200
    assert "planned" not in text and "not measured" not in text


@pytest.mark.parametrize("name", ["README.md", "benchmarks/README.md", "notebooks/README.md"])
def test_links_lead_somewhere(name):
    for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text("utf-8")):
        assert (ROOT / name).parent.joinpath(link).exists(), link
