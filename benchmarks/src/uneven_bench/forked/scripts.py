"""Run a Python program in a process of its own that is there at once, where ``subprocess`` would take seconds.

::

    with Script(["train.py", "--epochs", "3"], cwd=folder) as script:
        out, err = script.communicate(timeout_s=60)
    assert script.returncode == 0, err

The process is forked from one that has imported torch and what torch's optimizers import, as the ranks of
:mod:`uneven.testing.ranks` are; five seconds of processor time are saved. Arguments, environment, directory, streams,
exit code and signals are those of a real one. What differs: torch and this package are imported already, so a test of
what an import does needs a real process, as does one that looks at command lines; ``sys.path`` is the test's own, after
the program's folder and ``PYTHONPATH``; and it leads a process group of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from uneven.testing.ranks import fork_server

CHILD = "uneven_bench.forked.script_child"


class Script:
    """A running Python program; a ``with`` block kills it at the end, with all of its process group.

    Args:
        program: what follows ``python`` on a command line: a file, ``-c`` and code, or ``-m`` and a module, and then
            arguments.
        cwd: directory; that of the test by default.
        env: all of its environment; that of the test by default.
        merged: let its errors go where its output goes.
        imported: modules that are to be imported already, such as one that takes long and that several tests need.
        output: file in which what it prints is kept; by default nothing is left of it.

    Attributes:
        pid: process id, which is its process group too.
        returncode: exit code, negative for a signal; None until the end has been waited for.

    Raises:
        LaunchError: the process that all are forked from has ended.
    """

    def __init__(
        self,
        program: Sequence[object],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        merged: bool = False,
        imported: Sequence[str] = (),
        output: Path | None = None,
    ) -> None:
        self.args = [str(word) for word in program]
        self.returncode: int | None = None
        self._fork_server = fork_server()
        self._output: IO[bytes] = tempfile.TemporaryFile() if output is None else output.open("ab+")  # noqa: SIM115
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        task = {
            "program": self.args,
            "directory": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "path": sys.path,
        }
        with tempfile.TemporaryFile() as task_file, open(os.devnull, "rb") as nothing:
            task_file.write(json.dumps(task).encode())
            task_file.seek(0)
            errors = self._output if merged else self._errors
            files = (nothing.fileno(), self._output.fileno(), errors.fileno(), task_file.fileno())
            self.pid = self._fork_server.fork((CHILD, *imported), files)
        _running.add(self.pid)

    def poll(self) -> int | None:
        """How it has ended, or None while it runs."""
        return self._ended(self._fork_server.code(self.pid)) if self.returncode is None else self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs; nothing has been done about it.
        """
        if self.returncode is None and self._ended(self._fork_server.wait(self.pid, timeout_s)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout_s or 0.0, *map(_text, (self._output, self._errors)))
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout_s: float | None = None) -> tuple[str, str]:
        """Wait for its end; what it has printed, and its errors.

        Raises:
            subprocess.TimeoutExpired: as :meth:`wait`.
        """
        self.wait(timeout_s)
        return _text(self._output), _text(self._errors)

    def printed(self) -> str:
        """What it has printed until now, if it has let go of it."""
        return _text(self._output)

    def send_signal(self, number: int) -> None:
        """To it alone, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it alone, whatever it does."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """End it and all of its group, and forget what it printed. Twice is fine."""
        with contextlib.suppress(ProcessLookupError):  # already gone, with all of its group
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        self._output.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ended(self, code: int | None) -> int | None:
        if code is not None and self.returncode is None:
            self.returncode = code
            self._fork_server.forget(self.pid)
            _running.discard(self.pid)
        return code


def run_script(
    program: Sequence[object],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    merged: bool = False,
    imported: Sequence[str] = (),
    timeout_s: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """Run a program until its end, see :class:`Script`.

    Raises:
        subprocess.TimeoutExpired: it took longer, and has been killed; what it had printed is in the error.
    """
    with Script(program, cwd=cwd, env=env, merged=merged, imported=imported) as script:
        out, err = script.communicate(timeout_s)
        return subprocess.CompletedProcess(script.args, script.wait(), out, err)


_running: set[int] = set()


def running_pids() -> frozenset[int]:
    """Programs whose end nobody has seen; a leak check asks."""
    return frozenset(_running)


def _text(file: IO[bytes]) -> str:
    # pread, for the file's position is shared with the process that writes
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
