"""Which processes belong to a run: those whose environment says so, wherever they have been put."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "UNEVEN_BENCH_RUN"
"""In the environment of all processes of a run: its folder."""


def running(folder: Path) -> Iterator[psutil.Process]:
    """All processes of the run in this folder, without those that have ended and wait to be buried."""
    for one in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if one.status() == psutil.STATUS_ZOMBIE or one.pid == os.getpid():
                continue
            if one.environ().get(MARK) == str(folder) or one.cwd() == str(folder):
                yield one
