"""Many processes, each within the limit of one: the box as a whole has a limit, too.

Not in a table: the true limit is more than a test may take, so these tests have a lower one.
"""

import pytest

from lab import course
from lab.grading import box, worker
from lab.judge.candidate import Candidate
from lab.judge.plugin import NotProvenHere

pytestmark = pytest.mark.alone
LESSON = course.find("r01_roofline")
RIGHT = "return min(peak, intensity * bandwidth)"
START = """\
def attainable(intensity, peak, bandwidth):
    import os
    import time
    if "full" in os.environ:            # once is enough: a test calls it again and again
        {then}
    os.environ["full"] = "once"
    {before}
    for _ in range(8):
        if os.fork() == 0:
            {session}
            {each}
            time.sleep({seconds})
            os._exit(0)
    time.sleep(1)
    {then}
"""
FILL = "block = bytearray(b'1') * (200 << 20)"


@pytest.fixture(params=["bubblewrap", "namespaces"])
def graded(request, monkeypatch, tmp_path):
    """Grades a text of r01 where a box may have 1 GiB: {exercise: Result}."""
    if problem := box.trial(request.param):
        raise NotProvenHere(f"{request.param}: {problem}")
    monkeypatch.setattr(box, "BOX_MEMORY", 1 << 30)
    tmp_path.chmod(0o755)

    def grade(**parts):
        text = START.format(**{"before": "pass", "session": "pass", "each": "pass",
                               "then": RIGHT, "seconds": 100} | parts)
        candidate = Candidate(LESSON.stubs | {"python": text}, {"python": "r01_roofline.py"})
        rows = worker.grade(LESSON, candidate, request.param, tmp_path, 7)
        return {row.exercise: row for row in rows}

    return grade


@pytest.mark.parametrize("session", ["pass", "os.setsid()"])
def test_processes_that_fill_the_memory_together_are_ended(graded, session):
    row = graded(each=FILL, session=session, then="time.sleep(100)")["attainable"]
    assert row.verdict == "fail" and row.points == 0
    assert "took more memory than a submission may have" in row.message


def test_pages_that_processes_share_are_counted_once(graded):
    row = graded(before=FILL, seconds=1)["attainable"]
    assert row.verdict == "pass", row.message
