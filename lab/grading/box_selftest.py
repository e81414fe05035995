"""Move into a box and check its walls: `python -m lab.grading.box_selftest LEVEL`."""

import os
import socket
import sys
import tempfile
from pathlib import Path

from lab.grading.box import Box, move_in


def main(level):
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder, "secret")
        secret.write_text("x")
        box = Box(level, {})
        try:
            problem = look_around(box, str(secret))
        finally:
            box.close()
    if problem:
        sys.exit(problem)


def look_around(box, secret):
    """What a process in the box can do but must not; empty if there is nothing."""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            move_in(box.request(), there)
            answer = ", ".join(problems_of(secret))
            Path("/tmp/own").write_text("x")
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        there.sendall(f"found: {answer}\n".encode())
        os._exit(0)
    there.close()
    output = b""
    while part := here.recv(4096):
        output += part
    os.waitpid(child, 0)
    answers = [line for line in output.decode().splitlines() if line.startswith("found:")]
    return answers[0].removeprefix("found:").strip() if answers else "it said nothing"


def problems_of(secret):
    """What this process sees or may write and must not, a phrase each."""
    problems = []
    if os.path.exists(secret):
        problems.append("files outside are visible")
    if os.access("/usr", os.W_OK):
        problems.append("/usr is writable")
    if any(name != "lo" for name in interfaces()):
        problems.append("there is a network")
    if len([p for p in os.listdir("/proc") if p.isdigit()]) > 3:
        problems.append("other processes are visible")
    return problems


def interfaces():
    """Names of the network interfaces, read without a socket."""
    return [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]]


if __name__ == "__main__":
    main(sys.argv[1])
