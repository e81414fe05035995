"""What a grading says about the whole class."""

from collections import Counter, defaultdict

from lab.course import SPEED
from lab.grading.points import shown
from lab.grading.sanitize import clean, one_line
from lab.judge.check import VERDICTS
from lab.judge.mutants import fits, mutants
from lab.words import plural

WEAKEST = "limits"      # the level at which code can read files and use the network


def summary(students, lessons, worths, matched, pairs, identical):
    """All of it as data, in the order an instructor needs it."""
    return {
        "students": len(students),
        "mean": shown(mean([s.counted.total for s in students])),
        "out_of": shown(max((s.counted.out_of for s in students), default=None)),
        "course_errors": errors(students),
        "sandboxes": dict(sorted(Counter(s.counted.graded.sandbox for s in students).items())),
        "weak_sandbox": [s.name for s in students if s.counted.graded.sandbox == WEAKEST],
        "missing": [entry.label for entry in matched.missing],
        "not_on_the_roster": list(matched.strangers),
        "unclear": list(matched.unclear),
        "problems": [{"student": s.name, "submission": one.graded.path,
                      "problems": [one_line(text) for text in one.graded.problems]}
                     for s in students for one in (s.counted, *s.others) if one.graded.problems],
        "regrades": [{"student": s.name, "exercise": row.name, "points": shown(row.points),
                      "reason": clean(row.regrade.reason)}
                     for s in students for row in s.counted.rows if row.regrade],
        "exercises": distribution(students, worths),
        "mistakes": {lesson.id: mistakes(students, lesson) for lesson in lessons},
        "pairs": [{"students": list(pair.students), "exercises": [
            {"exercise": name, "likeness": round(index, 3)} for name, index, _ in pair.alike]}
            for pair in pairs],
        "identical": [{"students": list(same.students), "exercises": same.exercises,
                       "as_the_reference": same.as_reference} for same in identical],
    }


def mean(totals):
    return sum(totals) / len(totals) if totals else None


def errors(students):
    """What the course itself got wrong: [{exercise, message, students}]."""
    by_lesson = defaultdict(list)
    for student in students:
        for row in student.counted.rows:
            if row.result.verdict == "error" and not row.regrade:
                by_lesson[row.name, clean(row.result.message)].append(student.name)
    return [{"exercise": name, "message": message, "students": who}
            for (name, message), who in sorted(by_lesson.items(), key=lambda item: -len(item[1]))]


def distribution(students, worths):
    """{lesson/exercise: {verdict: number of students}}, only verdicts that occur."""
    counters = {f"{lesson}/{name}": Counter() for lesson, name in worths}
    for student in students:
        for row in student.counted.rows:
            counters[row.name][row.result.verdict] += 1
    return {name: {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}
            for name, counts in counters.items()}


def mistakes(students, lesson):
    """The failures of a lesson, the commonest first: [{exercise, kind, mistake, students}]."""
    known = mutants(lesson)
    by_mistake = defaultdict(list)
    for student in students:
        for row in student.counted.rows:
            result = row.result
            if (result.lesson == lesson.id and result.verdict == "fail"
                    and not result.exercise.endswith(SPEED)):
                by_mistake[result.exercise, *kind(known, result)].append(student.name)
    ordered = sorted(by_mistake.items(), key=lambda item: -len(item[1]))     # then as first met
    return [{"exercise": exercise, "kind": what, "mistake": mistake, "students": who}
            for (exercise, what, mistake), who in ordered]


def kind(known, result):
    """(kind, the mistake).
    Of a wrong answer that the course knows: "when" and the words for it.
    Else "message" and its first line."""
    for mutant in known:
        if "when" in mutant and fits(mutant, result.exercise, result):
            return "when", mutant["when"]
    return "message", one_line(result.sentence or result.message.strip().partition("\n")[0])


def lines(facts):
    """What the terminal prints at the end: the least that an instructor must know."""
    average = f", mean {facts['mean']} of {facts['out_of']}" if facts["students"] else ""
    text = [plural(facts["students"], "student") + average]
    if facts["course_errors"]:
        count = sum(len(error["students"]) for error in facts["course_errors"])
        text.append(f"COURSE ERRORS: {plural(count, 'answer')} could not be judged, in "
                     f"{', '.join(sorted({e['exercise'] for e in facts['course_errors']}))}")
    if facts["weak_sandbox"]:
        text.append(f"WEAK SANDBOX: {plural(len(facts['weak_sandbox']), 'student')} graded with "
                     f"limits alone; such code could read files and use the network")
    for words, key in (("without a submission", "missing"),
                       ("not on the roster", "not_on_the_roster")):
        if facts[key]:
            text.append(f"{words}: {', '.join(map(one_line, facts[key]))}")
    text += [f"{one_line(line)}: matched with no student" for line in facts["unclear"]]
    if facts["problems"]:
        text.append(f"{plural(len(facts['problems']), 'submission')} with problems: see "
                     f"summary.html")
    if facts["pairs"]:
        text.append(f"{plural(len(facts['pairs']), 'near-identical pair')} to look at: see "
                     f"summary.html")
    if facts["identical"]:
        students = sum(len(same["students"]) for same in facts["identical"])
        text.append(f"{plural(students, 'student')} with the same text as another: see "
                     f"summary.html")
    return text
