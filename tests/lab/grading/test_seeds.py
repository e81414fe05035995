"""Right answers pass whatever numbers an instructor's run draws."""

import pytest

from lab import course
from lab.judge import check
from lab.judge.candidate import reference

SEEDS = 100


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda i: i.id)
def test_the_reference_passes_at_every_seed(lesson):
    for seed in range(1, SEEDS + 1):
        wrong = [f"{lesson.id}/{v.name}: {v.verdict}, {v.message}"
                 for v in check.grade(lesson, reference(lesson), seed=seed)
                 if v.verdict not in ("pass", "not_proven_here")]
        assert not wrong, "\n".join([f"with LAB_SEED={seed}", *wrong])
