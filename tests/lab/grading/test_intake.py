"""A folder of submissions is read whole: who, when, what; hostile entries are a line each."""

import gzip
import io
import json
import os
import socket
import stat
import subprocess
import tarfile
import zipfile

import pytest

from lab.course import CourseError
from lab.grading import archives, intake, names, submitted_files
from lab.grading.sanitize import utc

CODE = "def merge(a, b):\n    return a\n"
BOOK = {"cells": [{"cell_type": "markdown", "metadata": {}, "source": "Text"},
                  {"cell_type": "code", "metadata": {}, "outputs": ["long"] * 1000,
                   "source": ["def merge(a, b):\n", "    return a\n"]}]}


def one(folder):
    found = intake.read_all(folder)
    assert len(found) == 1, found
    return found[0]


def zipped(path, files, **about):
    """A zip of {name: text, or (ZipInfo's fields, text)}."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            for field, value in about.get(name, {}).items():
                setattr(info, field, value)
            archive.writestr(info, text)
    return path


def tarred(path, *members):
    """A .tar.gz of (name, text or None, fields of TarInfo)."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text, about in members:
            info = tarfile.TarInfo(name)
            info.size = len(text or "")
            for field, value in about.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO((text or "").encode()))
    return path


def told(submission, *words):
    lines = [line for line in submission.problems if all(word in line for word in words)]
    assert lines, f"no line with {words} in {submission.problems}"


# ---- names


@pytest.mark.parametrize("name, student, rest", [
    ("byronada_12345_67890_k07_softmax.ipynb", "byronada", "k07_softmax.ipynb"),
    ("byronada_LATE_12345_67890_k07_softmax-1.ipynb", "byronada", "k07_softmax-1.ipynb"),
    ("Ada Byron_123456_assignsubmission_file_", "Ada Byron", ""),
    ("Ada Byron_123456_assignsubmission_file", "Ada Byron", ""),
    ("Ada Byron_123456_assignsubmission_onlinetext_", "Ada Byron", ""),
    ("Ada Byron_123456_assignsubmission_file_k07_softmax.py", "Ada Byron", "k07_softmax.py"),
    ("ada.tar.gz", "ada", "ada.tar.gz"),
    ("ada.b.zip", "ada.b", "ada.b.zip"),
    ("k07_softmax.py", "k07_softmax", "k07_softmax.py"),
    ("Jose\u0301.zip", "José", "José.zip"),
])
def test_a_name_tells_the_student(name, student, rest):
    read = names.read(name)
    assert (read.student, read.rest) == (student, rest)


@pytest.mark.parametrize("path, stem", [
    ("layer1_kernels/k07_softmax.cu", ("k07_softmax", 0)),
    ("byronada_LATE_12345_67890_k07_softmax-2.ipynb", ("k07_softmax", 2)),
    ("Ada_12_assignsubmission_file_k07_softmax.py", ("k07_softmax", 0)),
])
def test_the_stem_of_a_file_as_its_student_named_it(path, stem):
    assert names.lesson_stem(path) == stem


def test_loose_files_of_one_student_are_one_submission(tmp_path):
    (tmp_path / "byronada_1_10_k07_softmax.py").write_text(CODE)
    (tmp_path / "byronada_LATE_1_11_k01_vector_add.ipynb").write_text(json.dumps(BOOK))
    os.utime(tmp_path / "byronada_1_10_k07_softmax.py", (5000, 5000))
    os.utime(tmp_path / "byronada_LATE_1_11_k01_vector_add.ipynb", (7000, 7000))
    sent = one(tmp_path)
    assert sent.student == "byronada" and sent.when == 7000 and not sent.problems
    assert [f.kind for f in sent.files] == ["python", "notebook"]


def test_two_students_of_one_name_stay_two(tmp_path):
    (tmp_path / "byronada_1_10_a.py").write_text(CODE)
    (tmp_path / "byronada_2_11_a.py").write_text(CODE)
    assert [s.student for s in intake.read_all(tmp_path)] == ["byronada_1", "byronada_2"]


def test_moodle_folders_of_one_student_are_one_submission(tmp_path):
    for part, name in (("file", "k07_softmax.py"), ("onlinetext", "onlinetext.html")):
        folder = tmp_path / f"Ada Byron_12_assignsubmission_{part}_"
        folder.mkdir()
        (folder / name).write_text(CODE)
    sent = one(tmp_path)
    assert sent.student == "Ada Byron" and [f.name for f in sent.files] == ["k07_softmax.py"]


def test_an_archive_in_a_students_folder_is_opened(tmp_path):
    (tmp_path / "ada").mkdir()
    zipped(tmp_path / "ada" / "desk.zip", {"layer1_kernels/k07_softmax.py": CODE})
    assert [f.name for f in one(tmp_path).files] == ["desk.zip/layer1_kernels/k07_softmax.py"]


def test_an_archive_on_a_desk_is_not_opened(tmp_path):
    (tmp_path / "ada" / ".lab").mkdir(parents=True)
    (tmp_path / "ada" / "k07_softmax.py").write_text(CODE)
    zipped(tmp_path / "ada" / "desk.zip", {"old.py": CODE})
    assert [f.name for f in one(tmp_path).files] == ["k07_softmax.py"]


def test_an_archive_sent_again_is_a_second_submission(tmp_path):
    times = {"ada-1.zip": 2000, "ada.zip": 1000, "team-1.zip": 1, "team-2.zip": 1}
    for name, when in times.items():
        os.utime(zipped(tmp_path / name, {"a.py": CODE}), (when, when))
    found = [(s.student, s.path, s.when) for s in intake.read_all(tmp_path)]
    assert found == [("ada", "ada.zip", 1000), ("ada", "ada-1.zip", 2000),
                     ("team-1", "team-1.zip", 1), ("team-2", "team-2.zip", 1)]


def test_a_folder_has_its_students_whole_name(tmp_path):
    """smith-2 is another student; smith-3.zip is smith's third archive."""
    for name in ("smith", "smith-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(CODE)
    zipped(tmp_path / "smith-3.zip", {"a.py": CODE})
    found = {(s.student, s.path) for s in intake.read_all(tmp_path)}
    assert found == {("smith", "smith"), ("smith-2", "smith-2"), ("smith", "smith-3.zip")}


def test_an_archives_manifest_tells_the_version_and_no_name(tmp_path):
    manifest = json.dumps({"course_version": "0.1.0", "student": "ben", "when": 1})
    zipped(tmp_path / "ada.zip", {"manifest.json": manifest, "a.py": CODE})
    sent = one(tmp_path)
    assert (sent.student, sent.version) == ("ada", "0.1.0") and sent.when > 1e9


@pytest.mark.parametrize("manifest", ["[" * 100_000, "[]", '{"course_version": "<b>"}', "\xff"])
def test_a_broken_manifest_tells_nothing(tmp_path, manifest):
    zipped(tmp_path / "ada.zip", {"manifest.json": manifest, "a.py": CODE})
    assert one(tmp_path).version is None and one(tmp_path).files


def test_a_folder_is_its_student_whole_name_and_all(tmp_path):
    (tmp_path / "j.byron" / "hw").mkdir(parents=True)
    (tmp_path / "j.byron" / "hw" / "mine.py").write_text(CODE)
    for name in (".kept/a.py", ".lab/base/a.py", "__pycache__/a.py", ".ipynb_checkpoints/a.py",
                 "._a.py", "README.md"):
        (tmp_path / "j.byron" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "j.byron" / name).write_text(CODE)
    sent = one(tmp_path)
    assert sent.student == "j.byron" and [f.name for f in sent.files] == ["hw/mine.py"]
    assert not sent.problems


def test_all_sorted_and_one_broken_stops_none(tmp_path):
    (tmp_path / "cleo.zip").write_bytes(b"PK nothing")
    (tmp_path / "ben.py").write_text(CODE)
    (tmp_path / "ada.pdf").write_bytes(b"%PDF")
    (tmp_path / ".DS_Store").write_bytes(b"")
    found = intake.read_all(tmp_path)
    assert [s.student for s in found] == ["ada", "ben", "cleo"]
    told(found[0], "ada.pdf", "expected .py")
    told(found[2], "cleo.zip", "cannot be read as an archive")


def test_a_file_that_is_no_code_is_a_problem_of_the_submission_beside_it(tmp_path):
    zipped(tmp_path / "ada.zip", {"a.py": CODE})
    (tmp_path / "ada.pdf").write_bytes(b"%PDF")
    told(one(tmp_path), "ada.pdf", "expected")
    assert one(tmp_path).files


def test_no_folder_is_a_sentence(tmp_path):
    with pytest.raises(CourseError, match="cannot read the submissions"):
        intake.read_all(tmp_path / "none")


def test_the_same_folder_reads_the_same(tmp_path):
    zipped(tmp_path / "ada.zip", {"b.py": CODE, "a.py": CODE})
    assert intake.read_all(tmp_path) == intake.read_all(tmp_path)


# ---- texts


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16"])
def test_texts_with_their_mark_are_read(tmp_path, codec):
    (tmp_path / "ada.py").write_bytes("# ü\n".encode(codec))
    assert one(tmp_path).files[0].text == "# ü\n"


@pytest.mark.parametrize("data, says", [
    ("# ü\n".encode("latin-1"), "not UTF-8"), (b"a = 1\0\n", "NUL"),
    (b"#" * (submitted_files.MAX_CODE_BYTES + 1), "larger"), ("x".encode("utf-16-le") * 2, "NUL")])
def test_other_texts_are_a_problem_that_names_the_file(tmp_path, data, says):
    (tmp_path / "ada.py").write_bytes(data)
    sent = one(tmp_path)
    told(sent, "ada.py", says)
    assert not sent.files


def test_a_notebook_is_kept_without_its_outputs(tmp_path):
    (tmp_path / "ada.ipynb").write_text(json.dumps(BOOK))
    text = one(tmp_path).files[0].text
    assert "merge" in text and "long" not in text and "Text" not in text


def test_a_notebook_of_format_3_is_read(tmp_path):
    old = {"nbformat": 3, "worksheets": [{"cells": [
        {"cell_type": "code", "input": CODE, "outputs": []},
        {"cell_type": "heading", "level": 1, "source": "Title"}]}]}
    (tmp_path / "ada.ipynb").write_text(json.dumps(old))
    assert "merge" in one(tmp_path).files[0].text


@pytest.mark.parametrize("text", ["", "[" * 200_000, "[]", '{"cells": 3}', '{"cells": [{}]}',
                                  '{"worksheets": [3]}', "print(1)"])
def test_what_is_no_notebook_is_a_problem(tmp_path, text):
    (tmp_path / "ada.ipynb").write_text(text)
    told(one(tmp_path), "ada.ipynb", "not read")


def test_a_cell_longer_than_any_code_is_a_problem(tmp_path):
    cell = {"cell_type": "code", "metadata": {},
            "source": "#" * (submitted_files.MAX_CODE_BYTES + 1)}
    (tmp_path / "ada.ipynb").write_text(json.dumps({"cells": [cell]}))
    told(one(tmp_path), "ada.ipynb", "code cell 1", "larger")


def test_characters_that_no_file_holds_are_replaced(tmp_path):
    cell = '{"cell_type": "code", "metadata": {}, "source": "a = 1 # \\ud800\\u0000"}'
    (tmp_path / "ada.ipynb").write_text(f'{{"cells": [{cell}]}}')
    one(tmp_path).files[0].text.encode()
    assert "\ud800" not in one(tmp_path).files[0].text


# ---- hostile archives


def test_an_encrypted_zip(tmp_path):
    path = zipped(tmp_path / "ada.zip", {"a.py": CODE})
    data = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + place] |= 1
    path.write_bytes(data)
    told(one(tmp_path), "a.py", "encrypted")


@pytest.mark.parametrize("name, says", [
    ("../../ben/a.py", "leaves"), ("/etc/a.py", "absolute"), ("C:/a.py", "absolute"),
    ("x\\..\\a.py", "backslash"), ("a\x1b[2J.py", "control"), ("a\u202ey.py", "control"),
    ("/".join("d" * 1000) + "/a.py", "deep")])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_paths_that_lead_astray(tmp_path, name, says, kind):
    if kind == "zip":
        zipped(tmp_path / "ada.zip", {name: CODE, "good.py": CODE})
    else:
        tarred(tmp_path / "ada.tgz", (name, CODE, {}), ("good.py", CODE, {}))
    sent = one(tmp_path)
    told(sent, says)
    assert [f.name for f in sent.files] == ["good.py"]
    assert not any("\x1b" in line or "\u202e" in line for line in sent.problems)


def test_links_in_a_zip(tmp_path):
    zipped(tmp_path / "ada.zip", {"a.py": "/etc/passwd", "b.py": "x"},
           **{"a.py": {"external_attr": (stat.S_IFLNK | 0o777) << 16, "create_system": 3},
              "b.py": {"external_attr": (stat.S_IFCHR | 0o777) << 16, "create_system": 3}})
    sent = one(tmp_path)
    told(sent, "a.py", "link")
    told(sent, "b.py", "device")
    assert not sent.files


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE,
                                  tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE])
def test_links_and_devices_in_a_tar(tmp_path, kind):
    tarred(tmp_path / "ada.tar.gz", ("a.py", None, {"type": kind, "linkname": "/etc/passwd"}))
    sent = one(tmp_path)
    assert not sent.files and sent.problems
    if kind != tarfile.GNUTYPE_SPARSE:
        told(sent, "a.py", "link or a device")


def test_a_bomb_of_one_file(tmp_path):
    large = b" " * (submitted_files.MAX_NOTEBOOK_BYTES + 10)
    zipped(tmp_path / "ada.zip", {"a.ipynb": large, "b.py": CODE})
    sent = one(tmp_path)
    told(sent, "a.ipynb", "larger")
    assert [f.name for f in sent.files] == ["b.py"]


def test_a_bomb_of_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(submitted_files, "MAX_TEXT_BYTES", 1000)
    zipped(tmp_path / "ada.zip", {f"{n:03}.py": "#" * 300 for n in range(100)})
    sent = one(tmp_path)
    told(sent, "1,000 bytes in all")
    assert len(sent.files) == 3


def test_a_bomb_whose_header_lies(tmp_path):
    path = zipped(tmp_path / "ada.zip", {"a.py": b"#" * 2**20, "b.py": CODE})
    size = (2**20).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size, (9).to_bytes(4, "little")))
    sent = one(tmp_path)
    told(sent, "a.py", "cannot be unpacked")
    assert [f.name for f in sent.files] == ["b.py"]


def test_a_bomb_of_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_ENTRIES", 50)
    zipped(tmp_path / "ada.zip", {f"{n}.txt": "" for n in range(51)})
    told(one(tmp_path), "more than 50 files")


def test_a_bomb_in_gzip(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 2**20)
    (tmp_path / "ada.tgz").write_bytes(gzip.compress(bytes(2**24)))
    told(one(tmp_path), "unpacks to more than")


def test_a_tar_that_is_cut_or_damaged(tmp_path):
    path = tarred(tmp_path / "ada.tgz", ("a.py", CODE * 1000, {}))
    whole = path.read_bytes()
    path.write_bytes(whole[:len(whole) // 2])
    told(one(tmp_path), "cut short")
    path.write_bytes(gzip.compress(b"x" * 5000))
    told(one(tmp_path), "cannot be read as an archive")


@pytest.mark.parametrize("low", [0x00, 0xff])           # -256; and -1, rounded up to 0
@pytest.mark.parametrize("middle", [0xff, 0xfe])        # -512 leads back to the entry itself
def test_a_tar_with_a_negative_size(tmp_path, low, middle):
    path = tarred(tmp_path / "ada.tgz", ("a.py", CODE, {}))
    raw = bytearray(gzip.decompress(path.read_bytes()))
    raw[124:136] = b"\xff" * 10 + bytes([middle, low])      # in base 256
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    path.write_bytes(gzip.compress(bytes(raw)))
    sent = one(tmp_path)
    told(sent, "negative")
    assert not sent.files


def test_an_archive_in_an_archive_stays_closed(tmp_path):
    inner = zipped(tmp_path / "inner.zip", {"a.py": CODE}).read_bytes()
    (tmp_path / "inner.zip").unlink()
    zipped(tmp_path / "ada.zip", {"inner.zip": inner})
    told(one(tmp_path), "nothing to grade")


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_there_instead_of_code_is_named(tmp_path, packed):
    files = {"report.pdf": "%PDF", "homework.txt": "done"}
    if packed:
        zipped(tmp_path / "ada.zip", files)
    else:
        (tmp_path / "ada").mkdir()
        for name, text in files.items():
            (tmp_path / "ada" / name).write_text(text)
    told(one(tmp_path), "nothing to grade in it", "report.pdf", "homework.txt")


def test_one_name_twice_in_a_zip(tmp_path):
    with pytest.warns(UserWarning), zipfile.ZipFile(tmp_path / "ada.zip", "w") as archive:
        archive.writestr("a.py", CODE)
        archive.writestr("a.py", "import os\n")
    sent = one(tmp_path)
    told(sent, "a.py", "twice")
    assert [f.text for f in sent.files] == [CODE]


def test_a_huge_archive_is_not_read(tmp_path):
    with open(tmp_path / "ada.zip", "wb") as file:
        file.truncate(archives.MAX_ARCHIVE_BYTES + 5)
    told(one(tmp_path), "larger than")


def test_a_student_cannot_flood_the_report(tmp_path):
    zipped(tmp_path / "ada.zip", {f"../{n}.py": CODE for n in range(500)})
    assert len(one(tmp_path).problems) <= submitted_files.MAX_PROBLEMS + 2


# ---- hostile folders


def test_links_in_folders_are_not_followed(tmp_path):
    (tmp_path / "ben").mkdir()
    (tmp_path / "ben" / "b.py").write_text(CODE)
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "theirs").symlink_to(tmp_path / "ben")
    (tmp_path / "ada" / "c.py").symlink_to(tmp_path / "ben" / "b.py")
    os.link(tmp_path / "ben" / "b.py", tmp_path / "ada" / "d.py")
    (tmp_path / "cleo").symlink_to(tmp_path / "ben")
    ada, ben, cleo = intake.read_all(tmp_path)
    assert not ada.files and not cleo.files
    for words in (("theirs", "link"), ("c.py", "link"), ("d.py", "hard link")):
        told(ada, *words)
    told(cleo, "link")
    told(ben, "hard link")                      # whose file it is cannot be known


def test_pipes_and_sockets_are_never_opened(tmp_path):
    (tmp_path / "ada").mkdir()
    os.mkfifo(tmp_path / "ada" / "a.py")
    os.mkfifo(tmp_path / "ben.py")
    os.mkfifo(tmp_path / "cleo.zip")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "ada" / "b.py"))
        for sent in intake.read_all(tmp_path):
            told(sent, "plain file")
            assert not sent.files


def test_a_folder_a_thousand_levels_deep(tmp_path):
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "a.py").write_text(CODE)
    here = os.open(tmp_path / "ada", os.O_RDONLY)
    for _ in range(1000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    sent = one(tmp_path)
    told(sent, "deep")
    assert [f.name for f in sent.files] == ["a.py"]
    subprocess.run(["rm", "-rf", tmp_path / "ada"], check=True)     # too deep for pytest


def test_a_folder_of_too_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(submitted_files, "MAX_ENTRIES", 10)
    (tmp_path / "ada").mkdir()
    for n in range(20):
        (tmp_path / "ada" / f"{n:02}.py").write_text(CODE)
    sent = one(tmp_path)
    told(sent, "more than 10 files")
    assert len(sent.files) == 10


def test_names_that_a_terminal_would_obey(tmp_path):
    (tmp_path / "ada\x1b[2J").mkdir()
    (tmp_path / "ada\x1b[2J" / "a\n.py").write_text(CODE)
    (tmp_path / os.fsdecode(b"ben\xff.py")).write_text(CODE)
    ada, ben = intake.read_all(tmp_path)
    assert ada.student == "ada\\x1b[2J" and not ada.files and "\n" not in ada.problems[0]
    assert ben.student == "ben\\udcff"
    json.dumps([ada.problems, ben.problems, ben.path]).encode()


# ---- repositories


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "subs" / "ada"
    folder.mkdir(parents=True)
    (folder / "k07_softmax.py").write_text(CODE)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "mine")
    return folder


def git(folder, *words):
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
    when = {"GIT_COMMITTER_DATE": "1700000000 +0000", "GIT_AUTHOR_DATE": "1600000000 +0000"}
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True,
                   env={**os.environ, **when})


@pytest.mark.parametrize("pack", [False, True])
def test_a_repository_is_as_old_as_its_last_commit(repository, pack):
    if pack:
        git(repository, "gc", "-q")
        git(repository, "pack-refs", "--all")
    sent = one(repository.parent)
    assert sent.when == 1700000000 and [f.name for f in sent.files] == ["k07_softmax.py"]
    assert not sent.problems


@pytest.mark.parametrize("date", ["@999999999999 +0000", "@4000000000 +0000"])
def test_a_commit_of_the_future_is_a_problem_and_no_date(repository, date, monkeypatch):
    """The year 33,658 is in no calendar; that of 2096 would be the latest."""
    monkeypatch.setenv("GIT_COMMITTER_DATE", date)
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q",
                    "--allow-empty", "-m", "later"], cwd=repository, check=True)
    os.utime(repository / "k07_softmax.py", (9000, 9000))
    sent = one(repository.parent)
    told(sent, ".git", "is dated in the future")
    assert sent.when == 9000 and utc(sent.when) == "1970-01-01T02:30:00Z"
    assert utc(999_999_999_999) == ""


def test_a_detached_head_is_read(repository):
    git(repository, "checkout", "-q", "--detach")
    assert one(repository.parent).when == 1700000000


def test_a_repository_without_a_commit_is_as_old_as_its_files(repository):
    subprocess.run(["rm", "-rf", repository / ".git"], check=True)
    git(repository, "init", "-q")
    os.utime(repository / "k07_softmax.py", (9000, 9000))
    sent = one(repository.parent)
    assert sent.when == 9000 and not sent.problems


def test_a_repositorys_own_configuration_starts_nothing(repository, tmp_path):
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "gpg.program", "core.sshCommand", "diff.external",
                "alias.cat-file"):
        git(repository, "config", key, str(program))
    git(repository, "config", "log.showSignature", "true")
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        (repository / ".git" / "hooks" / hook).write_text(program.read_text())
        (repository / ".git" / "hooks" / hook).chmod(0o755)
    assert one(repository.parent).when == 1700000000
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("head", ["ref: refs/heads/../../../../etc/passwd", "0" * 40, "--help",
                                  "ref: HEAD", ""])
def test_a_head_that_names_no_commit_is_a_problem(repository, head):
    (repository / ".git" / "HEAD").write_text(head)
    sent = one(repository.parent)
    told(sent, ".git", "last commit")
    assert sent.files and sent.when > 1.7e9


def test_a_git_that_leads_elsewhere_is_not_followed(repository, tmp_path):
    (repository / ".git").rename(tmp_path / "git")
    (repository / ".git").symlink_to(tmp_path / "git")
    told(one(repository.parent), ".git", "not a folder")
    (repository / ".git").unlink()
    (repository / ".git").write_text(f"gitdir: {tmp_path}/git\n")
    told(one(repository.parent), ".git", "not a folder")
