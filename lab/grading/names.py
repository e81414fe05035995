"""Who a file is from: the names that Canvas, Moodle and `lab submit` give to submissions."""

import re
import unicodedata
from pathlib import Path
from typing import NamedTuple

# lastnamefirst_LATE_12345_67890_original-name-1.ipynb: the student's number, the file's number
CANVAS = re.compile(r"(?P<student>[^_]+)_(?:LATE_)?(?P<number>\d+)_\d+_(?P<rest>.+)")
# Full Name_123456_assignsubmission_file_, a folder, or the start of a file's name
MOODLE = re.compile(r"(?P<student>.+?)_(?P<number>\d+)_assignsubmission_(?:file|onlinetext)"
                    r"(?:_(?P<rest>.*))?")
AGAIN = re.compile(r"(?P<first>.+)-(?P<number>\d{1,3})")        # name-1: the same name, sent again
ARCHIVES = (".zip", ".tar.gz", ".tgz")
# Characters that change how a terminal or a page shows the rest of a line.
UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Name(NamedTuple):
    student: str
    number: str | None      # the student's, where the platform gives one
    rest: str               # what the student called it


def read(name, folder=False):
    """Who a file or folder of this name is from: a Name."""
    name = unicodedata.normalize("NFC", name)           # macOS separates accents from their letters
    match = CANVAS.fullmatch(name) or MOODLE.fullmatch(name)
    if match:
        return Name(match["student"].strip(), match["number"], match["rest"] or "")
    return Name(name if folder else stem(name), None, name)


def stem(name):
    """A file's name without its suffix; `.tar.gz` counts as one."""
    ending = next((end for end in ARCHIVES if name.lower().endswith(end)), Path(name).suffix)
    return name.removesuffix(name[-len(ending):]) if ending else name


def sent_again(name):
    """How often an archive or file was sent again: the number at the end of its name, or 0."""
    again = AGAIN.fullmatch(read(name).student)
    return int(again["number"]) if again else 0


def lesson_stem(path):
    """(stem of a file as its student named it, how often it was sent again)."""
    short = stem(read(path.rsplit("/", 1)[-1]).rest or path)
    again = AGAIN.fullmatch(short)
    return (again["first"], int(again["number"])) if again else (short, 0)


def shown(name):
    """A name in printable characters; others become their escapes."""
    return UNSHOWN.sub(lambda match: match[0].encode("unicode_escape").decode(), name)
