"""Folders: desks, cloned repositories, and a student's loose files.
No link is ever followed."""

import os
import re
import resource
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from lab.grading import archives
from lab.grading.names import ARCHIVES

GIT_SECONDS = 10                    # to read one commit
GIT_MEMORY = 2**30                  # bytes that git may take for it
DAY = 86_400                        # seconds that a student's clock may be ahead
COMMIT = re.compile(r"[0-9a-f]{40}")
BRANCH = re.compile(r"refs/heads/(?!.*\.\.)[\w./-]{1,200}")


def opened(path):
    """(file, its stat) of a plain file.
    ValueError: it is not one, or others may share it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        os.close(descriptor)
        raise ValueError("it is not a plain file")
    if about.st_nlink > 1:
        os.close(descriptor)
        raise ValueError("it is a hard link, so it may be another student's file")
    return open(descriptor, "rb"), about


def take(path, name, basket, read):
    """Open a plain file for `read(file)`, and return its time; a problem and None otherwise."""
    try:
        file, about = opened(path)
        with file:
            read(file)
    except (OSError, ValueError) as error:
        basket.problem(name, f"not read: {getattr(error, 'strerror', None) or error}")
        return None
    return about.st_mtime


def walk(folder, basket):
    """(path, name below the folder) of every plain file, sorted; anything else is a problem."""
    waiting = [(Path(folder), "")]
    while waiting:
        place, inside = waiting.pop()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError as error:
            basket.problem(inside or "the folder", f"not read: {error.strerror}")
            continue
        below = []
        for entry in entries:
            basket.count()
            name = inside + entry.name
            if not basket.wants(name):
                continue
            if entry.is_symlink():
                basket.problem(name, "not followed: it is a link")
            elif entry.is_dir(follow_symlinks=False):
                below.append((Path(entry.path), name + "/"))
            elif not entry.is_file(follow_symlinks=False):
                basket.problem(name, "not opened: it is not a plain file")
            else:
                yield Path(entry.path), name
        waiting += reversed(below)


def read(folder, basket):
    """Fill a basket from a student's folder; return (when, the course's version or None).

    Archives in it are opened unless it is a desk or a repository, which may hold old ones.
    """
    folder = Path(folder)
    own = any(os.path.lexists(folder / mark) for mark in (".git", ".lab"))
    times = []
    version = None
    for path, name in walk(folder, basket):
        if basket.kind(name):
            times.append(take(path, name, basket, lambda f, name=name: basket.add(name, f.read)))
        elif name.lower().endswith(ARCHIVES) and not own:
            files = []
            times.append(take(path, name, basket, lambda f, name=name, files=files: files.append(
                archives.read(f.read(archives.MAX_ARCHIVE_BYTES + 1), name, basket, name + "/"))))
            version = version or next(iter(files), None)
    newest = max(filter(None, times), default=None)
    return last_commit(folder, basket) or newest, version


# ---- git, without the repository's own configuration


def last_commit(folder, basket):
    """The time of the last commit; None where there is none, or it cannot be read.

    A clone's configuration can name programs that git would start (a file monitor, a signature
    check), so git gets only its objects, with an empty repository of our own.
    """
    if not os.path.lexists(folder / ".git"):
        return None
    try:
        commit = head(folder / ".git")
        return committed(folder / ".git" / "objects", commit) if commit else None
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        basket.problem(".git", f"the last commit's time cannot be read: {archives.plain(error)}")
        return None


def head(git):
    """The commit that is checked out, or None before the first one.
    ValueError: it is damaged."""
    if stat.S_ISLNK(os.lstat(git).st_mode) or not git.is_dir():
        raise ValueError("it is a link or a file, not a folder")
    text = small(git / "HEAD").strip()
    branch = text.removeprefix("ref: ")
    if text == branch:
        commit = text
    elif not BRANCH.fullmatch(branch):
        raise ValueError("HEAD does not name a branch")
    elif os.path.lexists(git / branch):
        commit = small(git / branch).strip()
    else:
        rows = small(git / "packed-refs") if os.path.lexists(git / "packed-refs") else ""
        commit = next((r.split()[0] for r in rows.splitlines() if r.endswith(" " + branch)), None)
    if commit is not None and not COMMIT.fullmatch(commit):
        raise ValueError("HEAD does not name a commit")
    return commit


def small(path):
    file, _ = opened(path)
    with file:
        return file.read(2**20).decode("utf-8", "replace")


def committed(objects, commit):
    """The committer's time in a commit.
    ValueError: it cannot be read."""
    git = shutil.which("git")
    if git is None:
        raise ValueError("git is not installed")
    with tempfile.TemporaryDirectory() as empty:
        for part in ("objects", "refs"):
            (Path(empty) / part).mkdir()
        (Path(empty) / "HEAD").write_text("ref: refs/heads/main\n")
        done = subprocess.run(
            [git, "--no-replace-objects", "cat-file", "commit", commit], capture_output=True,
            stdin=subprocess.DEVNULL, timeout=GIT_SECONDS, cwd=empty, preexec_fn=limited,
            env={"GIT_DIR": empty, "GIT_OBJECT_DIRECTORY": str(Path(objects).absolute()),
                 "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
                 "GIT_NO_LAZY_FETCH": "1"})
    committer = re.search(rb"^committer [^\n]*> (\d{1,12}) [+-]\d{4}$",
                          done.stdout.split(b"\n\n")[0], re.MULTILINE)
    if done.returncode or not committer:
        raise ValueError(f"commit {commit[:8]} cannot be read")
    when = float(committer[1])
    if when > time.time() + DAY:
        raise ValueError(f"commit {commit[:8]} is dated in the future")
    return when


def limited():
    """Runs in git's own process: a packed commit can be made to unpack without end."""
    resource.setrlimit(resource.RLIMIT_AS, (GIT_MEMORY, GIT_MEMORY))
