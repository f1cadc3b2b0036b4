"""Start workers on this machine and wait for them, in this process or a separate one."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from uneven.errors import ConfigError, LaunchError
from uneven.runtime.jobs.processes import descendants, import_path
from uneven.runtime.launch.launch_spec import Launch

_STOP_WITHIN_S = 15.0


def run(launch: Launch, *, run_directory: Path | None = None) -> None:
    """Start the workers and wait until they have ended.

    Call it in the main thread: torch's launcher installs signal handlers. The run continues after the death of a worker
    that marked itself with :func:`uneven.runtime.rundir.mark_expendable`.

    Args:
        launch: what to start.
        run_directory: given to the workers in ``UNEVEN_RUN``.

    Raises:
        LaunchError: another worker died (the message names its rank and exit code or signal), no worker is left, only
            rank 0 was lost, the workers could not be started, or the run was interrupted. All workers have ended by
            then.
    """
    if launch.members_change:
        from uneven.runtime.launch import elastic_workers  # imports torch

        elastic_workers.run_members(launch, run_directory)
        return
    from uneven.runtime.launch import agent  # imports torch

    agent.run(launch, run_directory)


class LocalRun:
    """A launcher in a separate process (``pid``), with its workers below it; a ``with`` block stops it at the end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end and return the exit code, that of the first death; raise LaunchError after ``timeout_s``."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise LaunchError(f"the run (process {self.pid}) has not ended within {timeout_s} s") from None

    def stop(self) -> int:
        """End the launcher and every worker, with SIGTERM first, and return the exit code."""
        if self._process.poll() is None:
            # Before the signal: orphans of a dead launcher are no longer its descendants.
            workers = descendants(self.pid)
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                for pid in workers:
                    _kill(pid)
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    launch: Launch,
    *,
    run_directory: Path | None = None,  # given to the workers in ``UNEVEN_RUN``
    env: Mapping[str, str] | None = None,  # on top of this process's environment
    output: Path | None = None,  # file for all output of launcher and workers; None shows it here
) -> LocalRun:
    """Start the launcher in a separate process and return immediately. It ends when this process does."""
    task = {
        "launch": dataclasses.asdict(launch),
        "run_directory": run_directory and str(run_directory),
        "parent": os.getpid(),
    }
    if launch.wait_ready and run_directory is None:
        raise ConfigError("wait_ready needs a run_directory: workers say there that they are ready")
    if run_directory is not None:
        run_directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "uneven.runtime.launch", json.dumps(task)]
    environment = {**os.environ, "PYTHONPATH": import_path(), **(env or {})}
    sink = None if output is None else output.open("ab")
    try:
        # Not a uneven.runtime.jobs.Command: the launcher shares this terminal, so Ctrl-C reaches it. If this program
        # is killed,
        # it ends its workers and cleans up first.
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink and subprocess.STDOUT
        )
    finally:
        if sink is not None:
            sink.close()
    return LocalRun(process)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
