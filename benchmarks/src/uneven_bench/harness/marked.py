"""The processes of a run, found by a variable of their environment, in any process group."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from uneven_bench.forked.scripts import Script

_IMPORTED = ("uneven.cli.run", "uneven.runtime.launch.fixed_workers", "rich.console")
MARK = "UNEVEN_BENCH_RUN"  # a variable in the environment of all processes of a run: its folder


def running(folder: Path) -> Iterator[psutil.Process]:
    """Yield all processes of the run in this folder, zombies excluded."""
    for one in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if one.status() == psutil.STATUS_ZOMBIE or one.pid == os.getpid():
                continue
            if one.environ().get(MARK) == str(folder) or one.cwd() == str(folder):
                yield one


def own_environment(folder: Path, temporary: Path) -> dict[str, str]:
    """Return the environment of a run in this folder, without the variables of a launcher of the bench itself, which
    would mislead the workers. ``temporary``: for its temporary files."""
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(("UNEVEN_", "TORCHELASTIC_"))},
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary),
        MARK: str(folder),
    }


def marked_script(words: Sequence[object], folder: Path, temporary: Path, *imported: str, **more: str) -> Script:
    """Start a Python program in a run's folder. ``imported``: modules that it need not import any more, next to those
    of all launchers; ``more``: variables of its environment."""
    environment = own_environment(folder, temporary) | more
    return Script(words, cwd=folder, env=environment, merged=True, imported=(*_IMPORTED, *imported))


def sweep(folder: Path) -> None:
    """Kill all remaining processes of a run."""
    # A process may fork while the list is made, so look until none is left.
    while left := list(running(folder)):
        for one in left:
            with suppress(OSError):
                os.kill(one.pid, signal.SIGKILL)
        time.sleep(0.01)


def named(process: psutil.Process) -> str:
    """Return a process that should have ended, in words."""
    with suppress(psutil.Error):
        return f"process {process.pid}, {process.status()}, {' '.join(process.cmdline())[:80]}"
    return f"process {process.pid}"
