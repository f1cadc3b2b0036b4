"""Modules of the benches as programs of their own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from uneven.errors import LaunchError
from uneven.runtime.jobs import Command
from uneven.runtime.jobs.processes import import_path

_CLEANS_WITHIN_S = 30.0


def program(*words: object, timeout_s: float = 600.0) -> str:
    """Run ``python -m WORDS…``, see :func:`finished`."""
    return finished([sys.executable, "-m", *map(str, words)], timeout_s)


def finished(command: Sequence[str], timeout_s: float, **more: Any) -> str:
    """Run a command to its end, and return its output. ``more``: for Popen. Raises LaunchError: it failed, with the end
    of its errors, or took longer; then it may still clean up."""
    name = f"{' '.join(command[:6])} …"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more) as process:
        try:
            said, wrong = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise LaunchError(f"{name} took more than {timeout_s:g} s") from None
        finally:
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=_CLEANS_WITHIN_S)
                process.kill()
    if process.returncode:
        raise LaunchError(f"{name} failed:\n{said[-1500:]}{wrong[-3000:]}", process.returncode)
    return said


def one_thread() -> dict[str, str]:
    """Return the environment of a program that computes with one thread, and imports this copy of uneven."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": import_path()}


def begun_module(module: str, *arguments: object) -> Command:
    """Start ``python -m MODULE ARGUMENTS…``, with one thread."""
    return Command(module, [sys.executable, "-P", "-m", module, *map(str, arguments)], env=one_thread())


@contextmanager
def ended(processes: Sequence[Command]) -> Iterator[None]:
    """End these processes at the end, by force."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def write_whole(path: Path, text: str) -> None:
    """Write a file that another process may read at any time."""
    half = path.with_name(f"half-{path.name}")
    half.write_text(text)
    half.replace(path)


def wait_for(done: Callable[[], bool], what: str, limit_s: float) -> None:
    """Wait until ``done()``. Raises LaunchError: it takes longer than ``limit_s``."""
    end_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end_s:
            raise LaunchError(f"{what}: still waiting after {limit_s:g} s")
        time.sleep(0.02)
