"""Modules of the benches as programs of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from uneven.errors import LaunchError


def program(*words: object, timeout_s: float = 600.0) -> str:
    """Run ``python -m WORDS…`` to its end, and return its output. Raises LaunchError: it failed, with the end of its
    errors. subprocess.TimeoutExpired: it took longer."""
    command = [sys.executable, "-m", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise LaunchError(f"{' '.join(map(str, words[:4]))} … failed:\n{done.stderr[-3000:]}", done.returncode)
    return done.stdout


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
