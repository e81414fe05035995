"""Places in the README that a file of the course fills in: `lab` knows none of these files."""

import pytest

from lab import build
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


def test_the_readme_is_filled_in():
    text = (ROOT / "README.md").read_text("utf-8")
    assert build.made(text) == text
