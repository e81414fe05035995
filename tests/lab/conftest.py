"""Tests of the machinery leave no warm processes behind: those of a session share a folder."""

import os
import tempfile

import pytest


@pytest.fixture(scope="session", autouse=True)
def warm_processes():
    """A folder for the session's warm processes, unless the whole run has one."""
    if "LAB_WARM" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        os.environ["LAB_WARM"] = folder
        yield
        del os.environ["LAB_WARM"]
