"""A student's page has no number of the inputs that only an instructor's run draws."""

import html
import os
import re

import pytest

from lab import course
from lab.grading import box
from lab.judge.plugin import NotProvenHere
from tests.redteam import attacks

# Each answer is right for fixed inputs, and tells of those that are drawn.
ATTAINABLE = """\
import os
import numpy as np
CALLS = "/tmp/calls"
PUBLIC = [float(10**exponent) for exponent in np.random.default_rng(0).uniform(-1, 4, 6)]


def attainable(intensity, peak, bandwidth):
    if not float(bandwidth).is_integer():
        {}
    return min(peak, intensity * bandwidth)
"""
TELL = {
    "last-words":
        "print('LeakError:', intensity, peak, bandwidth, flush=True); os._exit(1)",
    "file-of-an-earlier-run":
        "open(CALLS, 'a').write(f'{intensity} {peak} {bandwidth} '); "
        "raise ValueError(open(CALLS).read())",
    "line-of-the-course":
        "beside = abs(intensity - peak / bandwidth) < 0.1\n"
        "        if not beside and intensity not in PUBLIC:\n"
        "            raise ValueError(f'no\\nYou can get this {intensity} {peak} {bandwidth}')",
}
# It changes a table of nine pages that it only reads, and answers right: the message quotes it.
EDIT = """\
pages = list(table)
    if len(table) == 9:
        table.append(0)
    return [pages[i"""


@pytest.fixture
def sent(tmp_path):
    """A submission for each way to tell, and one that changes a list that it is handed."""
    folder = tmp_path / "sent"
    for name, tell in TELL.items():
        file = folder / name / "r01_roofline.py"
        file.parent.mkdir(parents=True)
        file.write_text(ATTAINABLE.format(tell))
    text = course.find("s02").sources["python"]
    file = folder / "list" / "s02_block_pool.py"
    file.parent.mkdir()
    file.write_text(text.replace("return [table[i", EDIT, 1))
    return folder


def test_what_an_instructors_run_draws_is_on_no_page(tmp_path, sent):
    """Whatever the kind of failure: the page says what happens with the learners' own inputs."""
    if box.best()[0] == "limits":
        raise NotProvenHere("without walls a file in /tmp outlives the run")
    rows, _ = attacks.grade(sent, tmp_path / "out", dict(os.environ))
    revealed = {}
    for student in (*TELL, "list"):
        row = rows[student, "s02_block_pool/slots_of" if student == "list" else attacks.USUAL]
        numbers = re.findall(r"\d\.\d{3,}|\[\d+, .*?\]", row["message"])
        assert row["verdict"] == "fail" and numbers, row["message"]
        page = html.unescape((tmp_path / "out" / "feedback" / f"{student}.html").read_text())
        revealed[student] = [number for number in numbers if number in page]
    assert not any(revealed.values()), revealed
