"""Texts of the desk and of files that the user names: read, written, told apart."""

import contextlib
import hashlib

from lab.course import CourseError


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_given(path):
    """The text of a file that the user named."""
    return read(path, str(path), f"no file {path}")


def read(path, label, missing=None):
    """The text of a file; CourseError in one line where it cannot be read."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise CourseError(missing or
                          f"{label} is missing: `lab reset` brings the stub back") from None
    except UnicodeDecodeError:
        raise CourseError(f"{label} is not UTF-8 text") from None
    except OSError as error:
        raise CourseError(f"cannot read {label}: {error.strerror}") from None


@contextlib.contextmanager
def writing(desk):
    try:
        yield
    except OSError as error:
        raise CourseError(
            f"cannot write {error.filename or desk.folder}: {error.strerror}"
        ) from None
