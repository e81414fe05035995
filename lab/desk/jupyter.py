"""JupyterLab on the desk: found if it runs, started if not."""

import signal
import subprocess
import sys
import time
import webbrowser
from pathlib import Path
from urllib.parse import quote

from lab import device
from lab.course import ROOT, CourseError

QUIET = ("--LabApp.news_url=None",
         "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate")
PATIENCE = 60           # seconds that the server may take to start


def serve(desk, notebook, browser=True):
    """Show `notebook` in JupyterLab; returns the server's exit code, or 0 where one ran already."""
    place = quote(notebook.relative_to(desk.folder).as_posix())
    if server := running(desk.folder):
        tell(server, place, browser)
        return 0
    log = desk.folder / ".lab" / "jupyter.log"
    with open(log, "w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", *QUIET,
             f"--ServerApp.root_dir={desk.folder}", f"--LabApp.default_url=/lab/tree/{place}"],
            cwd=desk.folder, env=device.terminal_environment(), stdout=output, stderr=output)
    began = time.monotonic()
    while not (server := running(desk.folder)):
        if process.poll() is not None:
            raise CourseError(f"JupyterLab ended at once; {desk.label(log)} says why")
        if time.monotonic() - began > PATIENCE:
            process.terminate()
            raise CourseError(f"JupyterLab did not start within {PATIENCE} s")
        time.sleep(0.2)
    tell(server, place, browser)
    print("Ctrl-C here ends JupyterLab.", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()


def running(folder):
    """The record of a live server whose root is this folder, or None."""
    from jupyter_server.serverapp import list_running_servers

    for record in list_running_servers():
        if Path(record.get("root_dir", "/")).resolve() == folder:
            return record
    return None


def tell(record, place, browser):
    """Open the page where a browser can be opened; print address and activate line in any case."""
    token = f"?token={record['token']}" if record.get("token") else ""
    address = f"{record['url']}lab/tree/{place}{token}"
    if browser and device.has_screen():
        webbrowser.open(address)
    print(f"JupyterLab: {address}")
    print(f"In another terminal: source '{ROOT / '.venv' / 'bin' / 'activate'}', then `lab --help`",
          flush=True)
