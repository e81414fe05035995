"""The learner's desk: a folder of their own with the lessons' files, what passed, what was kept.

work/<floor>/<lesson>.py|.cu    the text that counts: the stub with the learner's text in it
work/<floor>/<lesson>.ipynb     a way of writing to it
work/.kept/                     every text that was ever replaced
work/.lab/                      desk.json, and the stubs as they were handed out
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from lab import course, stub
from lab.course import ROOT, SPEED, SUFFIX, CourseError
from lab.desk import merge
from lab.desk.texts import read, sha, writing
from lab.judge.candidate import Candidate

EMPTY = {"lessons": {}, "passed": {}, "hints": {}, "predictions": {}, "synced": {}, "cells": {}}


class Desk:
    def __init__(self, folder):
        self.folder = Path(folder).resolve()

    @classmethod
    def find(cls, folder=None, start=None):
        """The desk at `folder`, else the one around `start` (the current folder), else work/."""
        if folder is not None:
            return cls(folder)
        for place in (here := Path(start or Path.cwd()).resolve(), *here.parents):
            if (place / ".lab" / "desk.json").exists():
                return cls(place)
        return cls(ROOT / "work")

    def exists(self):
        return self.state_file.exists()

    def path(self, lesson, suffix):
        return self.folder / lesson.floor / f"{lesson.id}{suffix}"

    def base(self, lesson, suffix):
        return self.folder / ".lab" / "base" / lesson.floor / f"{lesson.id}{suffix}"

    def label(self, path):
        """How a message names a file: relative to where the reader stands, if it is below."""
        with contextlib.suppress(ValueError):
            return str(Path(path).relative_to(Path.cwd().resolve()))
        with contextlib.suppress(ValueError):
            return str(Path(path).relative_to(self.folder.parent))
        return str(path)

    # ---- state

    @property
    def state_file(self):
        return self.folder / ".lab" / "desk.json"

    def state(self):
        try:
            state = json.loads(self.state_file.read_text("utf-8"))
        except FileNotFoundError:
            return json.loads(json.dumps(EMPTY))
        except ValueError as error:
            raise CourseError(
                f"{self.label(self.state_file)} is damaged ({error}): move it away and run "
                f"`lab start`; your own files stay as they are"
            ) from None
        except OSError as error:
            label = self.label(self.state_file)
            raise CourseError(f"cannot read {label}: {error.strerror}") from None
        if not isinstance(state, dict) or any(
                not isinstance(state.get(k, {}), dict) for k in EMPTY):
            raise CourseError(
                f"{self.label(self.state_file)} is damaged (not the fields it should have): "
                f"move it away and run `lab start`; your own files stay as they are"
            )
        return json.loads(json.dumps(EMPTY)) | state

    @contextlib.contextmanager
    def changing(self):
        """The state, read and written back under a lock: a notebook may be writing too."""
        with writing(self):
            self.state_file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.state_file.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                state = self.state()
                yield state
                self.write(self.state_file, json.dumps(state, indent=1, ensure_ascii=False))

    def write(self, path, text):
        """Replace a file in one step, so that a crash leaves the old one or the new one."""
        with writing(self):
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            fresh.write_text(text, "utf-8")
            fresh.replace(path)

    def keep(self, path):
        """Copy a file that is about to be replaced to .kept/ and return the copy's path."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        target = self.folder / ".kept" / f"{stamp}-{path.name}"
        number = 1
        while target.exists():
            number += 1
            target = target.with_name(f"{stamp}-{number}-{path.name}")
        with writing(self):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        return target

    # ---- lessons on the desk

    def start(self, lesson):
        """Put a lesson on the desk, or bring it up to the course's present version.

        Returns one word for each file: new, same, refreshed (it was untouched) or rebuilt (touched:
        the learner's parts are in the new file, the old file is in .kept/).
        """
        done = {suffix: self.hand_out(lesson, suffix, text)
                for suffix, text in self.handed_out(lesson).items()}
        with self.changing() as state:
            state["lessons"][lesson.id] = {"version": course.VERSION}
        return done

    def hand_out(self, lesson, suffix, text):
        """One file of `start`, and its word."""
        path = self.path(lesson, suffix)
        base = self.base(lesson, suffix)
        old = base.read_text("utf-8") if base.exists() else None
        if path.exists() and old == text:
            return "same"
        mine = read(path, self.label(path)) if path.exists() else None
        if mine is None:
            now = text
            word = "new"
        elif old is not None and merge.alike(mine, old, suffix):
            now = text
            word = "refreshed"
        else:
            now = merge.rebuilt(mine, old or text, text, lesson, suffix, self.label(path))
            word = "same" if now == mine else "rebuilt"
        if word == "rebuilt":
            self.keep(path)
        if word != "same":
            self.write(path, now)
        self.write(base, text)
        return word

    def handed_out(self, lesson):
        """suffix -> text of every file that the desk gets."""
        if not lesson.notebook.exists():
            raise CourseError(
                f"{lesson.notebook.relative_to(ROOT)} is missing: run `lab build {lesson.id}`"
            )
        return {SUFFIX[k]: text for k, text in lesson.stubs.items()} | {
            ".ipynb": lesson.notebook.read_text("utf-8")}

    def prepare(self):
        """Make the folder a desk: its own git if git is installed, and the tutor's policy.
        In a student edition its files belong to the edition's git, so that they are pushed with
        it."""
        fresh = not self.exists()
        with self.changing():
            pass
        policy = self.folder / "AGENTS.md"
        ignored = self.folder / ".gitignore"
        if not policy.exists():
            self.write(policy, (ROOT / "lab" / "desk_policy.md").read_text("utf-8"))
        if not fresh:
            return
        if not ignored.exists():
            self.write(ignored, ".lab/*.lock\n.ipynb_checkpoints/\n__pycache__/\n")
        if shutil.which("git") and not course.edition() and not (self.folder / ".git").exists():
            subprocess.run(
                ["git", "init", "-q", str(self.folder)], check=False, capture_output=True
            )

    def lessons(self):
        """The lessons on the desk, in the course's order."""
        on = self.state()["lessons"]
        return [lesson for lesson in course.lessons() if lesson.id in on]

    def has(self, lesson):
        return lesson.id in self.state()["lessons"]

    def candidate(self, lesson):
        """The desk's text of a lesson, for grading."""
        if not self.has(lesson):
            raise CourseError(f"{lesson.id} is not on the desk: run `lab start {lesson.id}`")
        sources = {}
        labels = {}
        for language in lesson.sources:
            path = self.path(lesson, SUFFIX[language])
            sources[language], labels[language] = read(path, self.label(path)), self.label(path)
        return Candidate(sources, labels, earlier=self.earlier(lesson))

    def earlier(self, lesson):
        """{"floor/name": text} of the files of earlier lessons whose answers the course does not
        have: the desk's own stand in for them."""
        there = course.lessons()
        paths = [self.path(other, SUFFIX[language]) for other in there[:there.index(lesson)]
                 if not other.answered for language in other.sources]
        return {f"{path.parent.name}/{path.name}": read(path, self.label(path))
                for path in paths if path.exists()}

    def write_cell(self, lesson, exercise, cell, take=None):
        """Splice a notebook cell into the desk's file: the file is what is graded.

        CourseError if the exercise in the file, or a helper, is no longer what the notebook last
        wrote there: then `take` says which of the two to go on with, "cell" or "file".
        The other is kept.
        """
        language = exercise.language
        state = self.state()
        path = self.path(lesson, SUFFIX[language])
        text = read(path, self.label(path))
        self.parsed(path, text, language)
        spliced = stub.splice(text, cell, language).text
        others = [t for e, t in state["cells"].items() if e != exercise.id
                  and e in {o.id for o in lesson.exercises if o.language == language}]
        last = state["cells"].get(exercise.id, "")
        helper = merge.edited_helper(text, last, cell, others, exercise)
        if last:
            spliced = merge.handed_back(spliced, last, [cell, *others], exercise)
            spliced = merge.forget(spliced, last, [cell, lesson.stubs[language], *others], language)

        def digest(source):
            return self.digest(exercise, source)

        in_file = digest(text)
        in_cell = digest(spliced)
        untouched = digest(lesson.stubs[exercise.language])
        known = state["synced"].get(exercise.id, untouched)
        if in_cell == untouched and in_file != untouched and take is None:
            take = "file"                   # an empty cell never overwrites work
        if take is None and in_file not in (known, in_cell, untouched):
            raise self.two_versions(exercise, exercise.name, path, text)
        if take is None and helper:
            raise self.two_versions(exercise, helper, path, text)
        if take != "file" and spliced != text:
            self.keep(path)
            self.write(path, spliced)
        if take != "file":          # the choice of a file holds once, and no longer
            with self.changing() as state:
                for one in merge.exercises_in(cell, lesson, language):
                    state["synced"][one.id] = self.digest(one, spliced)
                state["cells"][exercise.id] = cell
        return take or "cell"

    def two_versions(self, exercise, name, path, text):
        """The CourseError of `write_cell`. name: what has them, the exercise or a helper of it"""
        line = stub.find_line(text, name, exercise.language)
        return CourseError(
            f"{name} has two versions: this notebook's cell, and "
            f"{self.label(path)}, line {line}, which was edited since. Nothing was changed. "
            f"Go on with the one you want: lesson.check({exercise.name!r}, take=\"cell\") or "
            f"lesson.check({exercise.name!r}, take=\"file\").")

    def parsed(self, path, text, language):
        """CourseError where a file of the desk cannot be read as code."""
        try:
            stub.definitions(text, language)
        except SyntaxError as error:
            problem = f"line {error.lineno} does not parse: {error.msg}"
        except ValueError as error:
            problem = str(error)
        else:
            return
        raise CourseError(f"{self.label(path)}, {problem}. Mend it there, or bring the stubs back "
                          f"with `lab reset {path.stem}`: the old text is kept")

    def reset(self, lesson, exercise=None):
        """Back to the stub: a whole lesson or one exercise.
        Returns the copies that were kept."""
        if not self.has(lesson):
            raise CourseError(f"{lesson.id} is not on the desk: nothing to reset")
        aside = []
        texts = {self.path(lesson, suffix): text
                 for suffix, text in self.handed_out(lesson).items()}
        if exercise is not None:            # all are read before one is written
            texts = {path: self.without(path, text, exercise) for path, text in texts.items()}
        for path, text in texts.items():
            if path.exists():
                if path.read_bytes() == text.encode():
                    continue
                aside.append(self.keep(path))
            self.write(path, text)
        names = {e.id for e in ([exercise] if exercise else lesson.exercises)}
        with self.changing() as state:
            for part in ("passed", "synced"):       # helpers of its cell are still in the file
                state[part] = {k: v for k, v in state[part].items() if k not in names}
        return aside

    def without(self, path, handed_out, exercise):
        """The text of a file of the desk with one exercise put back to the stub."""
        if not path.exists():
            return handed_out
        mine = read(path, self.label(path))
        if path.suffix == SUFFIX[exercise.language]:
            self.parsed(path, mine, exercise.language)
        return merge.without(mine, handed_out, exercise, path.suffix)

    # ---- what passed

    def record(self, lesson, candidate, verdicts):
        """Remember what passed with which text, and the first answer to each prediction."""
        with self.changing() as state:
            for verdict in verdicts:
                if verdict.name.endswith(SPEED):
                    continue
                exercise = lesson.exercise(verdict.name)
                if verdict.value is not None:
                    state["predictions"].setdefault(exercise.id, verdict.value)
                if verdict.verdict == "pass":
                    text = candidate.sources[exercise.language]
                    state["passed"][exercise.id] = {"text": sha(merge.own_text(exercise, text)),
                                                    "lesson": lesson.fingerprint}
                elif verdict.verdict in ("fail", "not_attempted"):
                    state["passed"].pop(exercise.id, None)

    def digest(self, exercise, text):
        return sha(stub.normalised(text, exercise.name, exercise.language) or "")

    def passed(self, exercise):
        """True where the desk's text is the one that last passed, on this version of the course."""
        entry = self.state()["passed"].get(exercise.id)
        path = self.path(exercise.lesson, SUFFIX[exercise.language])
        if entry is None or entry["lesson"] != exercise.lesson.fingerprint or not path.exists():
            return False
        try:
            return entry["text"] == sha(merge.own_text(exercise, path.read_text("utf-8")))
        except (SyntaxError, ValueError):       # edited since, and does not parse
            return False

    def touched(self, exercise):
        """True where the desk's text of an exercise is no longer the stub."""
        path = self.path(exercise.lesson, SUFFIX[exercise.language])
        try:
            return self.digest(exercise, path.read_text("utf-8")) != self.digest(
                exercise, exercise.lesson.stubs[exercise.language])
        except (OSError, SyntaxError, ValueError):
            return path.exists()

    def mine(self, exercise):
        """The learner's implementation where it passed, an object of the desk's module; or None."""
        if not self.passed(exercise):
            return None
        if exercise.language == "cuda":
            return self.cuda_module(exercise.lesson).get(exercise.name)
        thing = self.module(exercise.lesson)
        for part in exercise.name.split("."):
            thing = getattr(thing, part)
        return thing

    def cuda_module(self, lesson):
        """The desk's CUDA file, what has not passed as stubs: it need not compile."""
        from lab import simulator

        path = self.path(lesson, ".cu")
        text = path.read_text("utf-8")
        for other in lesson.exercises:
            if other.language == "cuda" and not self.passed(other):
                there = stub.extract(lesson.stubs["cuda"], other.name, "cuda")
                text = stub.splice(text, there, "cuda").text
        return simulator.RawModule(text, path=str(path), is_text=True)

    def candidate_function(self, lesson, name):
        """A public function of a lesson as the desk has it, if all exercises that it needs have
        passed; None if one has not, or if it needs no exercise."""
        needed = lesson.reached(name)
        if not needed or not all(map(self.passed, needed)):
            return None
        return getattr(self.module(lesson), name)

    def module(self, lesson):
        """The desk's module of a lesson, imported once for each text."""
        path = self.path(lesson, ".py")
        name = f"desk.{lesson.id}.{sha(path.read_text('utf-8'))}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        return sys.modules[name]
