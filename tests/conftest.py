"""A test that leaves something behind fails: a thread, a child process, a listening port, a variable.

What is meant to live longer is named in ``LASTING_…`` below, or kept by the pool of ``uneven.testing.ranks``.
"""

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

PATIENCE_S = 3.0
"""How long something that has been told to end may take."""

LASTING_THREADS = ("pytest_timeout",)
"""Beginnings of names of threads that outlive a test."""

LASTING_COMMANDS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Parts of command lines of child processes that Python itself keeps."""

LASTING_VARIABLES = ("PYTEST_", "KMP_", "COV_", "TORCHINDUCTOR_")
"""Beginnings of names of variables that pytest, OpenMP (at import of scikit-learn) or torch set for good."""


def _threads() -> set[str]:
    return {
        f"thread {thread.name} ({thread.native_id})"
        for thread in threading.enumerate()
        if thread.is_alive() and not thread.name.startswith(LASTING_THREADS)
    }


def _children() -> set[str]:
    kept = sys.modules.get("uneven.testing.ranks")
    pool = kept.pool_pids() if kept else frozenset()
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            kin = {child.pid, *(parent.pid for parent in child.parents())}
        except psutil.NoSuchProcess:
            continue
        except psutil.ZombieProcess:
            command, kin = "(ended, but nobody has waited for it)", {child.pid}
        if not kin & pool and not any(part in command for part in LASTING_COMMANDS):
            found.add(f"process {child.pid} {command[:100]}")
    return found


def _ports() -> set[str]:
    return {
        f"listening port {connection.laddr.port}"
        for connection in psutil.Process().net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def _variables() -> set[str]:
    return {f"variable {k}={v}" for k, v in os.environ.items() if not k.startswith(LASTING_VARIABLES)}


def _footprint() -> set[str]:
    return _threads() | _children() | _ports() | _variables()


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Compare before and after; automatic, so it is set up first and looks last."""
    before = _footprint()
    yield
    left = _footprint() - before
    deadline = time.monotonic() + PATIENCE_S
    while left and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
        left = _footprint() - before
    gone = {name for name in before - _footprint() if name.startswith("variable")}
    if left or gone:
        pytest.fail(f"left behind: {sorted(left)}; taken away: {sorted(gone)}", pytrace=False)
