"""The learner's side: their files, their notebook, hints.

desk         the folder with the lessons' files: what passed, what was put aside
texts        texts that are read, written and told apart
merge        a learner's text merged with a new version of the course's
answer_file  what a file that the user named is graded as
notebook     open_lesson, lesson.check, mine
ipynb        notebook files as data
hints        three hints for an exercise, then the reference
jupyter      JupyterLab on the desk
watch        `lab watch`
classroom    verdicts as GitHub Classroom's points
"""
