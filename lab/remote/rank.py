"""One rank, in its own process: it meets the others, calls the function, and waits to be ended."""

import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from lab import device
from lab.remote import agreement, wire
from lab.remote.frames import frame

PR_SET_PDEATHSIG = 1
LOOK = 0.1              # seconds between two looks for the parent, where no signal comes


class Program(NamedTuple):
    """What every rank runs."""

    function: Callable      # called with the rank's own arguments
    kwargs: dict
    file: str               # of the lesson, whose lines are noted
    facts: dict             # what all ranks must have alike, see agreement.agree
    describe: Callable      # an exception as data
    spans: bool             # whether to ask the profiler
    private: socket.socket  # a connection that ranks do not have


def become(program, arguments, r, n, listener, parent, write, answer):
    """The life of rank r of n; never returns.

    write: the end of the pipe for its lines.  answer: the file for its result
    """
    try:
        end_with(parent)
        program.private.close()
        faulthandler.register(signal.SIGUSR1, file=write, all_threads=False, chain=False)
        over = {"kind": "returned"}
        try:
            tree, buffers = wire.pack(work(program, arguments, r, n, listener, write))
            answer.write(frame({"value": tree}, buffers))
            answer.flush()
        except BaseException as error:
            over = {"kind": "raised", "error": program.describe(error)}
        sys.stdout.flush()
        sys.stderr.flush()
        put(write, json.dumps(over | {"at": time.monotonic()}))
        while True:                 # others may still read from its sockets
            signal.pause()
    finally:
        os._exit(1)


def end_with(parent):
    """End this process when its parent ends, however that comes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=look_for, args=(parent,), daemon=True).start()
    if os.getppid() != parent:      # it has ended meanwhile
        os._exit(1)


def look_for(parent):
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)


def put(write, line):
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(write, data):]


def work(program, arguments, r, n, listener, write):
    """Meet the other ranks, then call the function with the recorder on: (result, changed arrays,
    edited lists, spans)."""
    import torch
    import torch.distributed as dist

    from lab.remote import recorder
    from lab.remote.changes import seen
    from lab.remote.spans import spans

    device.on_loopback()
    torch.set_num_threads(1)
    port = listener.getsockname()[1]
    patience = timedelta(minutes=10)            # a call that is stuck is told of long before
    if r == 0:
        store = dist.TCPStore("127.0.0.1", port, n, True, patience, wait_for_workers=False,
                              master_listen_fd=listener.detach())
    else:
        listener.close()
        store = dist.TCPStore("127.0.0.1", port, n, False, patience, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=r, world_size=n, timeout=patience)
    agreement.agree(program.facts)
    recorder.current = recorder.CollectiveRecorder(lambda line: put(write, line), program.file)
    with seen(arguments, program.kwargs) as watch, spans(program.spans) as rows, recorder.current:
        result = program.function(*arguments, **program.kwargs)
    return result, watch.changed(), watch.edited(), rows
