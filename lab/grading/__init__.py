"""The instructor's side: grade a folder of untrusted submissions; in the order of their way.

submit            `lab submit`: a desk in a zip
intake            a folder of submissions: who sent what, and when
archives          archives, read in memory
folders           desks, clones and loose files; no link is followed
submitted_files   files of a submission, from a folder or an archive
names             who a file is from
rosters           the class list
submission_parts  a submission's whole files and cells

extract           a lesson's exercises, found by name in what was sent
broken_text       a text with a syntax error, definition by definition
fresh_lesson      the learner's exercises in a fresh lesson
worker            one submission's text of one lesson
model             the data that these modules pass to each other

grade             `lab grade`, from submissions to reports
run               every unit once, several at a time
journal           the finished units, so that a killed run can continue
sandbox           where a submission's code runs while it is judged
box               where untrusted code runs: a few folders, read only, no network
namespaces        a box without bubblewrap
seccomp           a filter of system calls
box_selftest      whether a box holds: tried from inside
warmup            imports of the process that grades
class_speed       how fast a class is graded

scores            from verdicts to points
points            what each exercise is worth
regrades          overrides.csv
likeness          near-identical answers
channels          ways by which one submission could inform another
feedback          what a student gets
sanitize          submitted text made safe to show
pages             HTML pages
reports           tables, pages and summary
summary           what a grading says of the class
tables            grades.csv, verdicts.csv, canvas.csv

release           `lab release`: a student edition
missing_answers   cells of an edition's notebooks that need answers it lacks
leaked_answers    answers that an edition should not hold
nbgrader          `lab export --nbgrader`
gradescope        `lab export --gradescope`
autograder        one submission, in Gradescope's container
commands          `lab submit` and the instructors' commands
"""
