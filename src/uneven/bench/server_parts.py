"""Processes for ``uneven bench server``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from uneven.errors import LaunchError
from uneven.server.keys import Address, address


def python(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A Python process that runs a module."""
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", module, *arguments], env={**os.environ, **one_thread})


@contextmanager
def ended(processes: Sequence[subprocess.Popen[bytes] | ShardProcess]) -> Iterator[None]:
    """End these processes at the end, by force."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for(done: Callable[[], bool], what: str, limit_s: float) -> None:
    """Wait until something is done.

    Raises:
        LaunchError: it takes longer than ``limit_s``.
    """
    end_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end_s:
            raise LaunchError(f"{what}: still waiting after {limit_s:g} s")
        time.sleep(0.02)


class ShardProcess:
    """A shard in a process of its own."""

    def __init__(self, directory: Path, shard: int, members: int, *options: str) -> None:
        self._directory, self._shard = directory, shard
        self._command = (str(directory), str(shard), str(members), "--with-parent", *options)
        self.process = python("uneven.server", *self._command)

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self.process.pid

    @property
    def address(self) -> Address | None:
        """Where it listens, once it does."""
        return address(self._directory, self._shard)

    def again(self) -> None:
        """Kill it with SIGKILL and start it again, with nothing in it."""
        self.kill()
        self.wait()
        self.process = python("uneven.server", *self._command)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def wait(self) -> int:
        """Until it has ended; its exit status."""
        return self.process.wait()

    def __enter__(self) -> ShardProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
