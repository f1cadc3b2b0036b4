"""Processes for ``uneven bench server``."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from uneven.runtime.jobs import Command
from uneven.runtime.jobs.processes import import_path


def python(module: str, *arguments: str) -> Command:
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment = {**os.environ, **one_thread, "PYTHONPATH": import_path()}
    return Command(module, [sys.executable, "-P", "-m", module, *arguments], env=environment)


@contextmanager
def ended(processes: Sequence[Command]) -> Iterator[None]:
    """End these processes at the end, by force."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
