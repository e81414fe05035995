"""The machinery of the course.
It imports no lesson.
Each line may import those above it.

words       numbers with their nouns
course      the manifest: floors, lessons, exercises
device      what this machine has; the environment is read here alone
setup       installs the course in .venv
colab       installs it in a notebook of Google Colab
stub/       stubs cut from a reference, answers spliced into it
simulator/  NVIDIA GPUs on a CPU
remote/     the process that runs a learner's code
judge/      a text graded against a lesson
desk/       the learner's files and notebook
terminal    what all commands share
plots       pictures
measure/    what was measured on GPUs
elsewhere   verdicts and speed from another machine's GPU, over ssh
author/     the tools of those who write lessons
grading/    the instructor's side
doctor      `lab doctor`
cli         the command `lab`
"""

from lab.course import VERSION, CourseError
from lab.desk.notebook import candidate_function, mine, open_lesson

__all__ = ["VERSION", "CourseError", "candidate_function", "mine", "open_lesson"]
