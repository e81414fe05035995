"""The instructor's side: grade a folder of untrusted submissions.

archives          archives, read in memory
autograder        one submission, in Gradescope's container
box               where untrusted code runs: a few folders, read only, no network
box_selftest      whether a box holds: tried from inside
channels          ways by which one submission could inform another
class_speed       how fast a class is graded
commands          `lab submit` and the instructors' commands
extract           a lesson's exercises, found by name in what was sent
feedback          what a student gets
folders           desks, clones and loose files; no link is followed
fresh_lesson      the learner's exercises in a fresh lesson
grade             `lab grade`, from submissions to reports
gradescope        `lab export --gradescope`
intake            a folder of submissions: who sent what, and when
journal           the finished units, so that a killed run can continue
leaked_answers    answers that an edition should not hold
likeness          near-identical answers
missing_answers   cells of an edition's notebooks that need answers it lacks
model             the data that these modules pass to each other
names             who a file is from
namespaces        a box without bubblewrap
nbgrader          `lab export --nbgrader`
pages             HTML pages
pieces            a text with a syntax error, definition by definition
points            what each exercise is worth
regrades          overrides.csv
release           `lab release`: a student edition
reports           tables, pages and summary
rosters           the class list
run               every unit once, several at a time
sandbox           where a submission's code runs while it is judged
sanitize          submitted text made safe to show
scores            from verdicts to points
seccomp           a filter of system calls
submission_parts  a submission's whole files and cells
submit            `lab submit`: a desk in a zip
submitted_files   files of a submission, from a folder or an archive
summary           what a grading says of the class
tables            grades.csv, verdicts.csv, canvas.csv
unit              one submission's text of one lesson
warmup            imports of the process that grades
"""
