"""The processes of a run, found by a variable of their environment, in any process group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "UNEVEN_BENCH_RUN"  # a variable in the environment of all processes of a run: its folder


def running(folder: Path) -> Iterator[psutil.Process]:
    """Yield all processes of the run in this folder, zombies excluded."""
    for one in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if one.status() == psutil.STATUS_ZOMBIE or one.pid == os.getpid():
                continue
            if one.environ().get(MARK) == str(folder) or one.cwd() == str(folder):
                yield one
