"""What a grading says of the whole class."""

from collections import Counter, defaultdict

from lab.check import VERDICTS
from lab.course import SPEED
from lab.grading.plain import clean, of, one_line
from lab.grading.points import shown
from lab.mutants import mutants

WEAKEST = "limits"      # the sandbox that keeps nothing from reading files or using the network


def summary(students, lessons, worths, matched, pairs, identical):
    """All of it as data, in the order in which an instructor needs it."""
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
    found = defaultdict(list)
    for student in students:
        for row in student.counted.rows:
            if row.result.verdict == "error" and not row.regrade:
                found[row.name, clean(row.result.message)].append(student.name)
    return [{"exercise": name, "message": message, "students": who}
            for (name, message), who in sorted(found.items(), key=lambda item: -len(item[1]))]


def distribution(students, worths):
    """{lesson/exercise: {verdict: students}}, the verdicts that occur."""
    found = {f"{lesson}/{name}": Counter() for lesson, name in worths}
    for student in students:
        for row in student.counted.rows:
            found[row.name][row.result.verdict] += 1
    return {name: {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}
            for name, counts in found.items()}


def mistakes(students, lesson):
    """The failures of a lesson, the commonest first: [{exercise, kind, mistake, students}]."""
    known, found = mutants(lesson), defaultdict(list)
    for student in students:
        for row in student.counted.rows:
            result = row.result
            if (result.lesson == lesson.id and result.verdict == "fail"
                    and not result.exercise.endswith(SPEED)):
                found[result.exercise, *kind(known, result)].append(student.name)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))     # then as first met
    return [{"exercise": exercise, "kind": told_by, "mistake": mistake, "students": who}
            for (exercise, told_by, mistake), who in ordered]


def kind(known, result):
    """(what the mistake is told by, the mistake): a wrong answer that the course knows by when one
    gets it or by its change of the reference, (find, replace); any other by its message's first
    line."""
    for mutant in known:
        if mutant["exercise"] == result.exercise and mutant["says"] in result.message:
            if "when" in mutant:
                return "when", mutant["when"]
            return "change", (mutant["find"].strip(), mutant["replace"].strip())
    return "message", one_line(result.message.strip().partition("\n")[0])


def lines(said):
    """What the terminal prints at the end: the least that an instructor must know."""
    average = f", mean {said['mean']} of {said['out_of']}" if said["students"] else ""
    found = [of(said["students"], "student") + average]
    if said["course_errors"]:
        count = sum(len(error["students"]) for error in said["course_errors"])
        found.append(f"COURSE ERRORS: {of(count, 'answer')} could not be judged, in "
                     f"{', '.join(sorted({e['exercise'] for e in said['course_errors']}))}")
    if said["weak_sandbox"]:
        found.append(f"WEAK SANDBOX: {of(len(said['weak_sandbox']), 'student')} graded with limits "
                     f"alone; such code could read files and use the network")
    for words, key in (("without a submission", "missing"),
                       ("not on the roster", "not_on_the_roster")):
        if said[key]:
            found.append(f"{words}: {', '.join(map(one_line, said[key]))}")
    found += [f"{one_line(line)}: matched with nobody" for line in said["unclear"]]
    if said["problems"]:
        found.append(f"{of(len(said['problems']), 'submission')} with problems: see summary.html")
    if said["pairs"]:
        found.append(f"{of(len(said['pairs']), 'near-identical pair')} to look at: see "
                     f"summary.html")
    if said["identical"]:
        students = sum(len(same["students"]) for same in said["identical"])
        found.append(f"{of(students, 'student')} with the same text as another: see summary.html")
    return found
