"""The instructor's side: grade a folder of submissions that nobody has to trust.

archives     archives, read in memory
autograder   one submission, where Gradescope runs us
box          where code that nobody trusts runs: a few folders, read only, no network
channels     ways from one box to another, tried one by one
class_speed  how fast a class is graded
commands     `lab submit` and the instructors' commands
extract      a lesson's exercises, found by name in what was sent
feedback     what a student gets
folders      desks, clones and loose files; no link is followed
grade        `lab grade`, from submissions to reports
gradescope   `lab export --gradescope`
holder       a box without bubblewrap
intake       a folder of submissions: who sent what, and when
journal      the units that are done, so that a run that was killed goes on
lacks        cells of an edition's notebooks that need answers it lacks
leaks        answers that an edition should not hold
likeness     near-identical answers
model        what the parts of the instructor's side pass on
names        who a file is from
nbgrader     `lab export --nbgrader`
pages        HTML pages
parts        a submission's whole files and cells
pieces       a text with a syntax error, definition by definition
plain        text of others made safe to show
points       what each exercise is worth
pristine     the learner's exercises in a fresh lesson
reading      files of a submission, from a folder or an archive
regrades     overrides.csv
release      `lab release`: a student edition
reports      tables, pages and summary
rosters      the class list
run          every unit once, several at a time
sandbox      where a submission's code runs while it is judged
scores       from verdicts to points
seccomp      a filter of system calls
submit       `lab submit`: a desk in a zip
summary      what a grading says of the class
tables       grades.csv, verdicts.csv, canvas.csv
trial        whether a box is one: tried from within
unit         one submission's text of one lesson
warmup       what the process that grades imports
"""
