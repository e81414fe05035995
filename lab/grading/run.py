"""Grade a folder of submissions: every unit (a submission, a lesson) once, several at a time."""

import contextlib
import os
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from queue import SimpleQueue

from lab import course
from lab.course import CourseError
from lab.grading import box, extract, submission_parts
from lab.grading.model import Graded, Result
from lab.grading.worker import COURSE_FAILED
from lab.judge import check
from lab.judge.candidate import Candidate
from lab.judge.preloading import preload
from lab.remote.frames import WireError, read_frame
from lab.remote.servers import private
from lab.remote.warm import Child

MAX_UNIT_SECONDS = 1800  # the slowest lesson's own tests take a tenth on one core


class Grading:
    """Submissions, lessons, and how far their grading has come."""

    def __init__(self, submissions, lessons, journal, level, jobs=1, shard=(1, 1), held_back=()):
        """held_back: ids of lessons whose answers the students do not have."""
        self.submissions = [s for i, s in enumerate(submissions) if i % shard[1] == shard[0] - 1]
        self.lessons = lessons
        self.journal = journal
        self.level = level
        self.slots = SimpleQueue()              # each running job has a user of its own
        for user in box.draw_users(jobs):
            self.slots.put(user)
        self.held = held_back
        self.jobs, self.writing = jobs, threading.Lock()
        self.children = set()                   # of the units that are being graded
        self.stopping = False

    def units(self):
        """[(submission, lesson)] that are still to be done; equal submissions count once."""
        by_key = {(s.digest, lesson.id): (s, lesson)
                 for s in self.submissions for lesson in self.lessons}
        return [unit for key, unit in by_key.items() if key not in self.journal.units
                or key in self.journal.stopped]

    def run(self, advance):
        """Grade the units still to be done. advance(): called after each one."""
        todo = self.units()
        with shared_folder() as folder, ThreadPoolExecutor(self.jobs) as pool:
            waiting = [pool.submit(self.grade, submission, lesson, folder)
                       for submission, lesson in todo]
            try:
                for done in as_completed(waiting):
                    done.result()
                    advance()
            except BaseException:               # Ctrl-C, too
                self.stopping = True
                pool.shutdown(wait=False, cancel_futures=True)
                for child in list(self.children):
                    child.kill()
                raise

    def grade(self, submission, lesson, folder):
        if submission_parts.files_of(lesson, submission):
            user = self.slots.get()
            try:
                results, notes, stopped = self.forked(submission, lesson, folder, user)
            finally:
                if os.getuid() == 0:                # else all jobs have this process's user
                    box.vacate(user, self.level)
                self.slots.put(user)
        else:
            results = untouched(lesson)
            notes = []
            stopped = False
        with self.writing:
            if not self.stopping:
                self.journal.done((submission.digest, lesson.id), self.level, results, notes,
                                  stopped)

    def forked(self, submission, lesson, folder, user):
        """(results, notes, whether it was stopped) of a unit, from a process of its own, which also
        reads the submission.
        One that was stopped has errors of the course for results, so that the other units go on."""
        servers = private()
        modules = preload(lesson)
        servers.start(modules)          # here: a unit's own would end with it
        # Of another server: the unit's own has read the answers.
        subjects = asdict(replace(servers, here=modules))
        request = self.request(submission, lesson, folder, user, subjects)
        child = Child("lab.grading.worker", request, ("lab.grading.warmup", *modules), servers)
        self.children.add(child)
        if self.stopping:
            child.kill()
        deadline = time.monotonic() + MAX_UNIT_SECONDS
        try:
            message, _ = read_frame(lambda n: child.read(n, deadline))
            return message["results"], message["notes"], False
        except TimeoutError:        # each call had its limit: a sum this large is slow code
            return rows(lesson, "fail", 0, f"stopped: grading it took more than "
                                           f"{MAX_UNIT_SECONDS // 60} minutes"), [], False
        except (EOFError, OSError, WireError) as error:
            return rows(lesson, "error", None, f"the grader stopped without an answer: {error!r} "
                                               f"{child.output()[-500:]}"), [], True
        finally:
            self.children.discard(child)
            child.kill()

    def request(self, submission, lesson, folder, user, subjects):
        """What a unit is to do."""
        earlier = course.lessons()[:course.lessons().index(lesson)]
        return {"lesson": lesson.id, "submission": asdict(submission),
                "held": [i.id for i in earlier if i.id in self.held], "level": self.level,
                "folder": folder, "user": user, "seed": self.journal.header["seed"],
                "subjects": subjects}

    def graded(self):
        """[Graded] of every submission whose units are all done."""
        results = []
        for one in self.submissions:
            rows = [self.journal.units.get((one.digest, lesson.id)) for lesson in self.lessons]
            if all(rows):
                notes = [note for row in rows for note in row["notes"]]
                levels = [row["sandbox"] for row in rows]
                results.append(Graded(
                    one.student, one.path, one.when, one.digest, max(levels, key=box.LEVELS.index),
                    (*one.problems, *submission_parts.foreign(one), *notes),
                    tuple(Result(**result) for row in rows for result in row["results"])))
        return results


def rows(lesson, verdict, points, why):
    """The same row for every exercise, as data.
    An error's reason is not the student's to read."""
    feedback = COURSE_FAILED if verdict == "error" else why
    return [asdict(Result(lesson.id, e.name, verdict, points, e.points, why, feedback))
            for e in lesson.exercises]


def untouched(lesson):
    """The rows, as data, of a lesson for which nothing was sent."""
    stubs = Candidate(lesson.stubs, dict.fromkeys(lesson.stubs, extract.NOWHERE))
    return [asdict(Result(lesson.id, v.name, v.verdict, v.points, v.max_points, v.message,
                          v.message)) for v in check.grade(lesson, stubs)]


@contextlib.contextmanager
def shared_folder():
    """A folder that the jobs share while they run; every user may read it."""
    with tempfile.TemporaryDirectory(prefix="lab-grade-") as folder:
        Path(folder).chmod(0o755)
        yield folder


# ---- the command's options

def chosen(words):
    """The lessons that --lessons names: ids or their starts, separated by commas; all if None."""
    if words is None:
        return course.lessons()
    wanted = {course.find(word.strip()).id for word in words.split(",")}
    return [lesson for lesson in course.lessons() if lesson.id in wanted]


def shard_of(text):
    """"2/5" -> (2, 5)."""
    try:
        part, of = map(int, text.split("/"))
    except ValueError:
        part = of = 0
    if not 1 <= part <= of:
        raise CourseError(f"--shard {text}: expected I/N with I from 1 to N, such as 2/5")
    return part, of


def held_back(folder):
    """Ids of the lessons whose answers an edition of `lab release` does not give."""
    if folder is None:
        return set()
    try:
        floors = tomllib.loads((folder / "lab" / "course.toml").read_text("utf-8")).values()
        answered = {i for floor in floors for i in floor["lessons"] if i not in floor["stubs"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CourseError(f"--edition {folder}: expected a folder that `lab release` made: "
                          f"{error!r}") from None
    return {lesson.id for lesson in course.lessons()} - answered


def level(required):
    """(the best sandbox of this machine, why none better).
    CourseError where only resource limits are available and more is required."""
    best, reasons = box.best()
    if required and best == "limits":
        raise CourseError(f"--require-sandbox: this machine has none ({'; '.join(reasons)})")
    return best, reasons
