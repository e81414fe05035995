"""The machinery of the course. It imports no lesson."""

from lab.course import VERSION, CourseError
from lab.notebook import mine, open_lesson, own

__all__ = ["VERSION", "CourseError", "mine", "open_lesson", "own"]
