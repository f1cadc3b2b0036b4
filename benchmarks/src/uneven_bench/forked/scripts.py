"""Run a Python program in a process that starts immediately; ``subprocess`` would take seconds.

::

    with Script(["train.py", "--epochs", "3"], cwd=folder) as script:
        out, err = script.communicate(timeout_s=60)
    assert script.returncode == 0, err

The process is forked from one that has imported torch and its optimizers, as the ranks of :mod:`uneven.testing.ranks`
are, which saves five seconds of processor time. Arguments, environment, directory, streams, exit code and signals are
real. Differences: torch and this package are imported already, so tests of imports or of command lines need a real
process; ``sys.path`` is the test's, after the program's folder and ``PYTHONPATH``; it leads a process group.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from uneven.testing.ranks import fork_server

CHILD = "uneven_bench.forked.script_child"


class Script:
    """A running Python program; a ``with`` block kills its process group at the end. Raises LaunchError: the common
    parent process has ended.

    Args:
        program: the words after ``python``: a file, ``-c`` and code, or ``-m`` and a module, then arguments.
        cwd: directory; that of the test by default.
        env: the whole environment; that of the test by default.
        merged: errors go to its output.
        imported: modules that are imported already, such as slow ones of several tests.
        output: file that keeps its output; by default the output is deleted.
        streams: descriptors of its standard input, output and error, in place of these files.

    Attributes:
        pid: process id, also of its process group.
        returncode: exit code, negative for a signal; None until :meth:`wait` or :meth:`poll` has seen the end.
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
        streams: tuple[int, int, int] | None = None,
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
            streams = streams or (nothing.fileno(), self._output.fileno(), errors.fileno())
            self.pid = self._fork_server.fork((CHILD, *imported), (*streams, task_file.fileno()))
        _running.add(self.pid)

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return self._ended(self._fork_server.code(self.pid)) if self.returncode is None else self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired: it still runs, and is left alone."""
        if self.returncode is None and self._ended(self._fork_server.wait(self.pid, timeout_s)) is None:
            output, errors = map(_text, (self._output, self._errors))
            expired = subprocess.TimeoutExpired(self.args, timeout_s or 0.0, output, errors)
            expired.add_note(f"printed until then:\n{output}\n{errors}")
            raise expired
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout_s: float | None = None) -> tuple[str, str]:
        """Wait for its end, and return its output and its errors. Raises subprocess.TimeoutExpired: as :meth:`wait`."""
        self.wait(timeout_s)
        return _text(self._output), _text(self._errors)

    def printed(self) -> str:
        """Return its flushed output so far."""
        return _text(self._output)

    def send_signal(self, number: int) -> None:
        """Signal the process, not its group, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process, not its group."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill its group, and delete its output. A second call does nothing."""
        with contextlib.suppress(ProcessLookupError):  # the group has ended
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        self._output.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
    """Run a program until its end, see :class:`Script`. Raises subprocess.TimeoutExpired: it took longer, and has been
    killed; the error holds its output."""
    with Script(program, cwd=cwd, env=env, merged=merged, imported=imported) as script:
        out, err = script.communicate(timeout_s)
        return subprocess.CompletedProcess(script.args, script.wait(), out, err)


_running: set[int] = set()


def running_pids() -> frozenset[int]:
    """Return programs whose end was not seen, for a leak check."""
    return frozenset(_running)


def _text(file: IO[bytes]) -> str:
    # pread, because the writing process shares the file's position
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
