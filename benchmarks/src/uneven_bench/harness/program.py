"""Modules of the benches as programs of their own."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from uneven.errors import LaunchError

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
