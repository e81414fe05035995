"""The filter of system calls: what it refuses here, and its program for either machine."""

import errno
import os
import struct
import subprocess
import sys

import pytest

from lab.course import ROOT
from lab.grading import channels, seccomp
from lab.judge.plugin import NotProvenHere

HONEST = """
import asyncio, subprocess, tempfile, threading
import numpy as np
from lab.grading import seccomp
seccomp.install()
async def both():
    await asyncio.sleep(0)
    return await asyncio.get_running_loop().run_in_executor(None, lambda: 7)
assert asyncio.run(both()) == 7
thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
assert subprocess.run(["/bin/echo", "x"], capture_output=True).stdout == b"x\\n"
with tempfile.TemporaryFile() as file:
    file.write(b"x")
assert np.ones((64, 64)).dot(np.ones((64, 64))).sum() == 64**3
print("all of it")
"""
REFUSED = """
import ctypes, errno, sys
from lab.grading import seccomp
seccomp.install()
libc = ctypes.CDLL(None, use_errno=True)
which = seccomp.MACHINES[__import__("os").uname().machine][0]
for name, numbers in seccomp.REFUSED.items():
    if numbers[which] is not None:
        answer = libc.syscall(numbers[which], 0, 0, 0, 0, 0, 0), ctypes.get_errno()
        if answer != (-1, errno.EPERM):
            print(name, answer)
"""


def python(text):
    if problem := seccomp.problem():
        raise NotProvenHere(problem)
    return subprocess.run([sys.executable, "-P", "-c", text], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_every_call_of_the_table_is_refused():
    done = python(REFUSED)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_what_exercises_need_goes_on():
    done = python(HONEST)
    assert done.stdout == "all of it\n", done.stderr


def answer(machine, number, *args, audit=None):
    """The program's answer to a call, run as the kernel would run it."""
    code = [struct.unpack("=HBBI", seccomp.program(machine)[i:i + 8])
            for i in range(0, len(seccomp.program(machine)), 8)]
    data = struct.pack("=IIQ6Q", number, audit or seccomp.MACHINES[machine][1], 0,
                       *(*args, *[0] * 6)[:6])
    at = word = 0
    while True:
        kind, yes, no, value = code[at]
        at += 1
        if kind == seccomp.RETURN:
            return value
        if kind == seccomp.LOAD:
            word = struct.unpack_from("=I", data, value)[0]
        else:
            holds = {seccomp.EQUAL: word == value, seccomp.AT_LEAST: word >= value,
                     seccomp.ANY_OF: word & value != 0}[kind]
            at += yes if holds else no


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_program_decides_by_machine_call_and_flags(machine):
    which = seccomp.MACHINES[machine][0]
    denied, none = seccomp.ERROR | errno.EPERM, seccomp.ERROR | errno.ENOSYS
    for numbers in seccomp.REFUSED.values():
        if numbers[which] is not None:
            assert answer(machine, numbers[which]) == denied
    clone, fcntl = seccomp.CLONE[which], seccomp.FCNTL[which]
    assert answer(machine, clone, 0x003D0F00) == seccomp.ALLOW         # a thread
    assert answer(machine, clone, 0x10000000 | 17) == denied           # a user namespace
    assert answer(machine, seccomp.CLONE3[which]) == none
    assert answer(machine, fcntl, 3, 4) == seccomp.ALLOW and answer(machine, fcntl, 3, 6) == denied
    assert answer(machine, 0) == seccomp.ALLOW
    assert answer(machine, 0, audit=0x40000003) == denied              # 32 bits
    assert answer(machine, seccomp.X32 | 1) == denied


def test_where_there_is_no_filter_the_level_says_so(monkeypatch):
    monkeypatch.setattr(seccomp, "call", lambda program: None)
    monkeypatch.setattr(seccomp.ctypes, "get_errno", lambda: errno.ENOSYS)
    lines = channels.said("bubblewrap", seccomp.problem())
    assert "NOT FILTERED (seccomp: Function not implemented)" in lines[0]
    assert "keyrings" in lines[1] and "keyrings" not in channels.said("bubblewrap", None)[1]


def test_a_machine_that_is_not_known_has_no_filter(monkeypatch):
    monkeypatch.setattr(seccomp.os, "uname", lambda: type("U", (), {"machine": "riscv64"}))
    assert "riscv64" in seccomp.problem()
