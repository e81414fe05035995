"""One verdict: everything that grades a text against a lesson.

check         grades: pytest in this process, the text in another
plugin        one run of pytest, and what came of each exercise
messages      what a failed test says, in the files and lines of the text's author
alone         grades again, with the course's own in place of what an exercise uses
attempt       what can be said of a text before it runs: not attempted, not parsable
candidate     what is graded: a text and where it comes from
verdict       what was found about one exercise
report        what `lab check` prints at its end: JSON, and the exit code
forked        grades in a process forked from a warm one
failures      what stops a test: the code under test raised, or is gone
fixtures      the fixtures of graders: subject, reference, truth, pace, rng
subject       the code under test, as a test sees it: a proxy
ranks         the code under test on n ranks: results, messages, bytes
launched      the simulator's report on a launch
time_limit    how long an answer may take, counted by what the code does
isolate       starts the process in which that code runs, with the files it may see
preloading    what a process imports before it forks, by lesson
imports       which floors a lesson needs, and floors that import on demand
mistakes      ids of mistakes, which travel with a failure
compare       compares an answer with its oracle and says what is wrong
patterns      what wrong numbers have in common
conversation  what a test asked and what it got, in the words of a message
inputs        inputs that a call changed
blame         whose fault an unexpected exception is
mocks         machines whose every cost is known, and functions that are watched
stand_ins     what a learner's code calls them
adversarial   hard inputs, each kind with its reason
observer      which of these kinds a grader hands over
mutants       wrong answers that graders must refuse, and twins that they must accept
tape          recorded answers of the reference, for an edition without it
warmup        what a process imports that grades many texts
warm_pytest   what one imports that grades a few
work          the work of a kernel compared with the reference's
addresses     whether a kernel counts in 64 bits
pace          the speed of an answer on a GPU
"""
