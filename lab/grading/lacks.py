"""What a notebook of an edition uses and does not find: answers of another lesson."""

import re

from lab import build, course, notebooks


def notes(plan):
    """Sentences: what a notebook of the edition uses of a lesson whose answers are not there."""
    for lesson in plan.lessons:
        for other, name in dict.fromkeys(borrowed(lesson)):
            if other != lesson and other not in plan.answered:
                yield (f"the notebook of {lesson.id} uses {name} of {other.id}, whose answers are "
                       f"not in this edition: that cell ends in an exception")


def borrowed(lesson):
    """(lesson, name) of what the cells of a lesson import and what needs an exercise there."""
    known = {i.id: i for i in course.lessons()}
    names = {floor.name for floor in course.floors()}
    for cell in build.make(lesson)[0]["cells"]:
        text = notebooks.source(cell)
        for floor, listed in re.findall(r"^from (\w+)(?:\.\w+)? import ([^(\n]+)", text, re.M):
            for name in listed.split(",") if floor in names else ():
                home = known.get(home_of(floor, name.strip()))
                if home and reaches(home, name.strip()):
                    yield home, name.strip()


def home_of(floor, name):
    """The id of the lesson whose module makes a name of a floor public; None where none does."""
    for lesson in course.lessons():
        if lesson.floor == floor and name in build.public(lesson.path(".py")):
            return lesson.id
    return None


def reaches(lesson, name):
    return any(e.name == name for e in lesson.exercises) or bool(lesson.reached(name))
