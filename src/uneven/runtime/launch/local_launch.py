"""Start workers on this machine and wait for them, in this process or a separate one."""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from subprocess import STDOUT

from uneven.errors import ConfigError
from uneven.runtime.jobs import Command
from uneven.runtime.jobs.processes import import_path
from uneven.runtime.launch.launch_spec import Launch


def run(launch: Launch, *, run_directory: Path | None = None) -> None:
    """Start the workers and wait until they have ended.

    Call it in the main thread: it handles signals. The run continues after the death of a worker that marked itself
    with :func:`uneven.runtime.rundir.mark_expendable`.

    Args:
        launch: what to start.
        run_directory: given to the workers in ``UNEVEN_RUN``.

    Raises:
        LaunchError: another worker died (the message names its rank and exit code or signal), no worker is left, only
            rank 0 was lost, the workers could not be started, or the run was interrupted. All workers have ended by
            then.
    """
    if launch.members_change:
        from uneven.runtime.launch.elastic_workers import run_members  # imports torch

        run_members(launch, run_directory)
        return
    from uneven.runtime.launch.fixed_workers import run_fixed  # imports torch

    run_fixed(launch, run_directory)


def start(
    launch: Launch,
    *,
    run_directory: Path | None = None,  # given to the workers in ``UNEVEN_RUN``
    env: Mapping[str, str] | None = None,  # on top of this process's environment
    output: Path | None = None,  # file for all output of launcher and workers; None shows it here
) -> Command:
    """Start the launcher in a separate process and return immediately; its exit code is that of the first death.

    The launcher and its workers end when the calling *thread* does; a ``with`` block stops them at its end.
    """
    task = {
        "launch": dataclasses.asdict(launch),
        "run_directory": run_directory and str(run_directory),
        "bound": True,  # see __main__.py
    }
    if launch.wait_ready and run_directory is None:
        raise ConfigError("wait_ready needs a run_directory, in which workers report that they are ready")
    if run_directory is not None:
        run_directory.mkdir(parents=True, exist_ok=True)
    line = [sys.executable, "-P", "-m", "uneven.runtime.launch", json.dumps(task)]
    environment = {**os.environ, "PYTHONPATH": import_path(), **(env or {})}
    with ExitStack() as stack:
        sink = None if output is None else stack.enter_context(output.open("ab"))
        return Command("launcher", line, env=environment, stdout=sink, stderr=sink and STDOUT)
